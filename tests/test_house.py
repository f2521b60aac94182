"""The house holds: imports run down, importing is light, names and packages are what they say."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Command

import promptkit

HEAVY = {
    "numpy", "polars", "pyarrow", "scipy", "sklearn", "torch", "datasets", "sentence_transformers", "transformers",
    "tiktoken", "tokenizers", "zstandard", "orjson", "rich", "jinja2", "ruamel", "py3langid", "pandas", "matplotlib",
    "detect_secrets", "phonenumbers", "license_expression", "ray",
}  # fmt: skip

# Floor of every module that is not on floor 3, where the rooms stand. A module may import modules of lower floors, and on
# floor 3 its neighbours (the flow needs it: reference -> lexical, clusters, leakage for its groups of near-duplicates).
FLOORS = {
    "promptkit.errors": 1,
    "promptkit.registry": 2,
    "promptkit.conversation": 2,
    "promptkit.corpora": 2,
    "promptkit.scoring": 4,
    "promptkit.trend": 4,
    "promptkit.score": 4,
    "promptkit.selection": 4,
    "promptkit.packing": 4,
    "promptkit.collect": 4,
    "promptkit.parts": 4,
    "promptkit.containers": 4,
    "promptkit.frames": 4,
    "promptkit.drift": 4,
    "promptkit.holdout": 4,
    "promptkit.requests": 4,
    "promptkit.exporters": 4,
    "promptkit.reweighting": 4,
    "promptkit.report": 5,
    "promptkit.plots": 5,  # draws the report's map
    "promptkit.pipeline": 5,  # build ends by writing a report
    "promptkit": 6,  # the face: names everything, is imported by nobody below
    "promptkit_cli": 7,
}


def modules() -> dict[str, Path]:
    """Return dotted name -> file of every module we ship; `cli/` is installed as promptkit_cli."""
    found = {}
    for folder, package in (("promptkit", "promptkit"), ("cli", "promptkit_cli")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *(p for p in parts if p != "__init__")))] = path
    return found


def floor(name: str) -> int:
    """Return the floor of the longest known prefix; other modules of promptkit stand on floor 3."""
    parts = name.split(".")
    prefixes = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((FLOORS[p] for p in prefixes if p in FLOORS and (p != "promptkit" or p == name)), 3)


def typing_only(tree: ast.Module) -> set[ast.AST]:
    """Return the nodes below `if TYPE_CHECKING:`."""
    return {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for child in block.body
        for node in ast.walk(child)
    }


def imported(name: str, path: Path, known: dict[str, Path], *, lazy: bool = True) -> set[str]:
    """Return our modules that a module imports: anywhere in its text, or at module level only with lazy=False."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skip = typing_only(tree)
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    result: set[str] = set()
    for node in ast.walk(tree) if lazy else tree.body:
        if node in skip:
            continue
        if isinstance(node, ast.Import):
            result.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for member in (f"{base}.{alias.name}" for alias in node.names):
                # `from package import module` names a module; anything else is a name inside `base`
                if member != "promptkit.__version__":  # a string, as low as it gets
                    result.add(member if member in known else base)
    return {n for n in result if n in known} - {name}


def test_imports_run_down_only() -> None:
    known = modules()
    assert len(known) > 20
    upward = [
        f"{name} (floor {floor(name)}) imports {other} (floor {floor(other)})"
        for name, path in known.items()
        for other in sorted(imported(name, path, known))
        if floor(other) > floor(name) or (floor(other) == floor(name) < 3)
    ]
    assert upward == []


def test_floor_test_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "errors.py"
    path.write_text("def f():\n    from promptkit import pipeline\n    from promptkit.score import score\n")
    names = imported("promptkit.errors", path, {**modules(), "promptkit.pipeline": path, "promptkit.score": path})
    assert names == {"promptkit.pipeline", "promptkit.score"}
    assert floor("promptkit.pipeline") > floor("promptkit.errors")
    assert floor("promptkit.readers.arrow") == 3


def test_no_import_circles() -> None:
    """Imports at module level leave an order in which the modules can be loaded one by one."""
    known = modules()
    edges = {name: imported(name, path, known, lazy=False) - {"promptkit"} for name, path in known.items()}
    placed: set[str] = set()
    while ready := [n for n in edges if n not in placed and edges[n] <= placed]:
        placed.update(ready)
    assert sorted(set(edges) - placed) == []


def test_importing_loads_nothing_heavy() -> None:
    program = "import sys, promptkit; print('\\n'.join(sorted({m.partition('.')[0] for m in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(done.stdout.split()) & HEAVY == set()


def test_help_loads_nothing_heavy(promptkit_command: Command) -> None:
    done = promptkit_command("--help", python=["-X", "importtime"])
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "promptkit_cli" in loaded
    assert loaded & HEAVY == set()


def test_import_takes_less_than_100_ms() -> None:
    """The best of five: other processes only make it slower."""
    program = "import time; a = time.perf_counter(); import promptkit; print(time.perf_counter() - a)"
    times = [
        float(
            subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT).stdout
        )
        for _ in range(5)
    ]
    assert min(times) < 0.1


def test_package_list_equals_init_files() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or later reads TOML")
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    renamed = {folder: name for name, folder in setup["package-dir"].items()}
    on_disk = set()
    for top in ("promptkit", "cli", "corpora"):
        for init in (ROOT / top).rglob("__init__.py"):
            first, *rest = init.parent.relative_to(ROOT).parts
            on_disk.add(".".join([renamed.get(first, first), *rest]))
    assert sorted(setup["packages"]) == sorted(on_disk)


def test_public_names_resolve_and_equal_all() -> None:
    assert sorted(promptkit.__all__) == sorted(set(promptkit.__all__))
    assert dir(promptkit) == sorted(promptkit.__all__)
    for name in promptkit.__all__:
        assert getattr(promptkit, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'scoer'"):
        promptkit.scoer  # noqa: B018


def test_names_stay_functions_when_their_modules_are_imported_first() -> None:
    """`promptkit.score` is a function, and a module of that name lies beside it; importing must not swap them."""
    program = (
        "import importlib, pathlib, promptkit\n"
        "for path in sorted(pathlib.Path(promptkit.__file__).parent.glob('*.py')):\n"
        "    if path.stem != '__init__':\n"
        "        importlib.import_module('promptkit.' + path.stem)\n"
        "print([n for n in promptkit.__all__ if type(getattr(promptkit, n)).__name__ == 'module'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_every_module_says_what_it_is() -> None:
    silent = [n for n, p in modules().items() if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))]
    assert silent == []


def test_version_is_said_once() -> None:
    assert f'\nversion = "{promptkit.__version__}"\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
