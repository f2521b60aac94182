"""The wheel and the sdist hold what they must: built, installed without dependencies, run far from the checkout.

Slow, and needs a package index to build in isolation; the dependencies come from the interpreter that runs the tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import EXAMPLES, ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build sdist and, from the sdist, the wheel: what is missing in the sdist is missing in the wheel."""
    pytest.importorskip("build", reason="the package `build` is needed: pip install '.[test]'")
    out = tmp_path_factory.mktemp("dist")
    tree = tmp_path_factory.mktemp("tree") / "promptkit"  # a copy: building leaves files in the tree that it builds
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", ".*_cache",
                                                              "__pycache__", ".hypothesis", "promptkit-out"))  # fmt: skip
    subprocess.run([sys.executable, "-m", "build", "--outdir", out, tree], check=True, timeout=900, cwd=out)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def members(path: Path) -> set[str]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as z:
            return set(z.namelist())
    with tarfile.open(path) as t:
        return {name.partition("/")[2] for name in t.getnames()}


def test_wheel_has_three_packages_and_their_data(built: dict[str, Path]) -> None:
    names = members(built["wheel"])
    tops = {n.partition("/")[0] for n in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"promptkit", "promptkit_cli", "promptkit_corpora"}
    code = {p.relative_to(ROOT).as_posix() for p in (ROOT / "promptkit").rglob("*.py")}
    code |= {f"promptkit_cli/{p.relative_to(ROOT / 'cli').as_posix()}" for p in (ROOT / "cli").rglob("*.py")}
    assert code <= names
    data = [p for p in (ROOT / "promptkit").rglob("*") if p.suffix in (".npz", ".json", ".html", ".js", ".css")]
    assert {p.relative_to(ROOT).as_posix() for p in [*data, ROOT / "promptkit/py.typed"]} <= names
    assert [n for n in names if "__pycache__" in n] == []


def test_sdist_can_be_tested(built: dict[str, Path]) -> None:
    names = members(built["sdist"])
    assert {"README.md", "CHANGELOG.md", "LICENSE", "tests/conftest.py"} <= names
    mix = {p.relative_to(ROOT).as_posix() for p in (EXAMPLES / "training_mix").rglob("*") if p.is_file()}
    assert mix <= names


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_installed_command_works_outside_the_checkout(
    built: dict[str, Path], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # would put the checkout in front of what is installed
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python, command = home / "bin" / "python", home / "bin" / "promptkit"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", built[kind]], check=True, timeout=600)
    site = Path(subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                               capture_output=True, text=True, check=True).stdout.strip())  # fmt: skip
    ours = {p.name for p in site.iterdir() if not p.name.startswith(("pip", "setuptools", "_distutils", "distutils-"))
            and not p.name.endswith(".dist-info") and p.name not in ("__pycache__", "pkg_resources")}  # fmt: skip
    assert ours == {"promptkit", "promptkit_cli", "promptkit_corpora"}
    # the dependencies of this interpreter, behind the new environment's own packages
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(*args: str | Path) -> str:
        done = subprocess.run([*args], cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(command, "--version").startswith("promptkit ")
    where = run(python, "-c", "import promptkit; print(promptkit.__file__)")
    assert Path(where.strip()).is_relative_to(home.resolve())
    assert "A1_sweagent" in run(command, "inspect", EXAMPLES / "training_mix", "--json")
    run(command, "build", "--from", EXAMPLES / "training_mix", "--size", "40", "-q")
    (pack,) = (tmp_path / "promptkit-out" / "packs").glob("*/*")
    assert '"ok": true' in run(command, "verify", pack, "--json").replace('"ok":true', '"ok": true')
    assert run(python, "-m", "promptkit_cli", "--version").startswith("promptkit ")
