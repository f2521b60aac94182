"""What README and docs tell people to type works: blocks are run, commands exist, links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import EXAMPLES, ROOT, Command

PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def lines(language: str) -> list[str]:
    return [line for block in blocks(README, language) for line in block.splitlines()]


def promptkit_calls() -> list[list[str]]:
    """Return the arguments of each `promptkit` call of the README's bash blocks, in order."""
    steps = [step for line in lines("bash") for step in line.split(" && ")]
    words = [shlex.split(step) for step in steps]
    return [w[1:] for w in words if w[0] in ("promptkit", ".venv/bin/promptkit")]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory with `examples` in it, as in a fresh checkout; `.git` says that no pyproject.toml lies above."""
    place = tmp_path_factory.mktemp("checkout")
    (place / "examples").symlink_to(EXAMPLES)
    return place


def test_set_up_is_one_line_each() -> None:
    main, tests = (line for line in lines("bash") if "venv" in line)
    for line in (main, tests):
        assert line.startswith(
            'python3 -m venv .venv && .venv/bin/pip install "torch==2.13.0" && .venv/bin/pip install '
        )
    assert main.endswith("promptkit build --from examples/training_mix && "
                         ".venv/bin/promptkit score examples/original_benchmark.yaml")  # fmt: skip
    assert "pytest" in tests


def test_ci_runs_the_line_of_the_readme(tmp_path: Path) -> None:
    """`.ci/run` with a shell that only prints what it would run."""
    for name in ("README.md", ".ci/run"):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    fake = tmp_path / "bin" / "bash"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nfor last; do :; done\necho "RUN $last"\n')
    fake.chmod(0o755)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("pytest", "python"):
        (tmp_path / ".venv/bin" / name).symlink_to("/bin/true")
    env = {**os.environ, "PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["/bin/bash", ".ci/run"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (expected,) = (line for line in lines("bash") if "pytest" in line)
    assert f"RUN {expected}" in done.stdout.splitlines()
    assert "bash .ci/run" in (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")


def test_bash_and_python_blocks_run(promptkit_command: Command, workplace: Path) -> None:
    calls = promptkit_calls()
    assert [c[0] for c in calls][:2] == ["build", "score"]
    for call in calls:
        done = promptkit_command(*call, cwd=workplace)
        assert done.returncode == 0, (call, done.stderr)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    for block in blocks(README, "python"):
        ran = subprocess.run([sys.executable, "-c", block], cwd=workplace, env=env, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.strip()


def test_original_benchmark_does_not_represent_the_mix(promptkit_command: Command, example_build: Path) -> None:
    """What the README claims of the three essay questions."""
    done = promptkit_command("score", EXAMPLES / "original_benchmark.yaml", "--against", example_build / "reference",
                             "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    import json

    score = json.loads(done.stdout)
    assert score["representative"] is False
    typicality = {p["id"]: p["typicality"] for p in score["prompts"]}
    belongs = {p["id"]: p["belongs"] for p in score["prompts"]}
    assert set(typicality) == {"relativity", "b-trees", "economics"}
    assert not belongs["relativity"]
    assert not belongs["economics"]
    assert typicality["b-trees"] > min(typicality.values())


def test_example_script_lists_the_domains_of_a_pack(example_build: Path) -> None:
    (pack,) = (example_build / "packs").glob("*/*")
    env = {k: v for k, v in os.environ.items() if k not in ("BASE_URL", "MODEL")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, EXAMPLES / "use_in_a_benchmark.py", pack], env=env, capture_output=True,
                          text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    counts = [int(n) for n in re.findall(r"(\d+) prompts", done.stdout)]
    assert sum(counts) == 60
    assert len(counts) > 1


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [t for t in targets if not (page.parent / t).exists()] == []


def test_commands_that_pages_name_exist_and_none_is_forgotten(promptkit_command: Command) -> None:
    done = promptkit_command("--help")
    known = set(re.findall(r"^  ([a-z]+)  ", done.stdout.partition("Commands:")[2], re.M))
    assert {"build", "score", "inspect", "detokenize"} <= known
    # in fenced blocks and inline code; "list / report / doctor" names three
    code = [c for page in PAGES for c in re.findall(r"`[^`\n]+`|^promptkit .*", page.read_text(encoding="utf-8"), re.M)]
    calls = [re.match(r"(?:\.venv/bin/)?promptkit ([a-z]+(?: / [a-z]+)*)\b", c.strip("`")) for c in code]
    named = {name for call in calls if call for name in call.group(1).split(" / ")}
    assert named - known == set()
    assert known - named == set()


def test_pages_name_no_machine_and_no_package_host() -> None:
    bad = re.compile(r"/(?:root|tmp|home)/\w|--(?:extra-)?index-url")
    tracked = [*PAGES, ROOT / "CHANGELOG.md", ROOT / ".ci/run", ROOT / "pyproject.toml", *EXAMPLES.rglob("*.py")]
    assert [p.name for p in tracked if bad.search(p.read_text(encoding="utf-8"))] == []
