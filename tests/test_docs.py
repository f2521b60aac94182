"""The docs: the tutorial prints what the commands print, every public name has its entry, the site builds strictly.

After a change on purpose: `PROMPTKIT_GOLDEN=write pytest tests/test_docs.py` puts the new output into the tutorial.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from difflib import SequenceMatcher
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import EXAMPLES, ROOT, Command

import promptkit

DOCS = ROOT / "docs"
STEP = re.compile(r"^```bash\n(promptkit .*)\n```\n\n```text\n((?:.*\n)*?)```", re.M)
SHOWN = 60  # lines of one output; the rest is cut, and said to be


ALIKE = 0.8  # of the lines: near ties fall differently elsewhere, and a number that moves need not fail the docs


def lines_of(text: str) -> list[str]:
    """Lines without what differs near ties and between machines: numbers, hashes, bars."""
    text = re.sub(r"\b[0-9a-f]{12,}\b", "HASH", text)
    return [" ".join(line.split()) for line in re.sub(r"[\d.,]*\d|[█#]+", "", text).splitlines() if line.strip()]


def test_the_tutorial_prints_what_the_commands_print(promptkit_command: Command, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("acceptance_study"))
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    steps = STEP.findall(page)
    assert [shlex.split(command)[1] for command, _ in steps] == [
        "inspect", "detokenize", "build", "score", "score", "export",
    ]  # fmt: skip
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "BASE_URL", "MODEL")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    for command, told in steps:
        done = promptkit_command(*shlex.split(command)[1:], cwd=tmp_path, env=env)
        assert done.returncode == 0, (command, done.stderr)
        lines = done.stdout.rstrip("\n").split("\n")
        if len(lines) > SHOWN:
            lines = [*lines[: SHOWN - 1], f"... and {len(lines) - SHOWN + 1} more lines"]
        printed = "\n".join(lines) + "\n"
        if os.environ.get("PROMPTKIT_GOLDEN") == "write":
            page = page.replace(f"{command}\n```\n\n```text\n{told}```", f"{command}\n```\n\n```text\n{printed}```")
            (DOCS / "tutorial.md").write_text(page, encoding="utf-8")
        else:
            now, then = lines_of(printed), lines_of(told)
            assert now[0].split()[:3] == then[0].split()[:3], command  # the verdict, or what a table holds
            assert SequenceMatcher(None, now, then).ratio() >= ALIKE, (command, printed)


def test_every_public_name_has_an_entry() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    named = {entry.rpartition(".")[2]: entry for entry in re.findall(r"^::: (\S+)", page, re.M)}
    assert set(promptkit.__all__) - {"__version__"} == set(named) - {"plots"}
    for name, entry in named.items():
        module, _, attribute = entry.rpartition(".")
        value = sys.modules["promptkit"] if name == "plots" else getattr(promptkit, name)
        assert name == "plots" or (value.__module__, value.__name__) == (module, attribute)
        assert value.__doc__


def test_every_public_method_has_a_docstring() -> None:
    silent = [
        f"{name}.{method}"
        for name in promptkit.__all__
        if isinstance(getattr(promptkit, name), type)
        for method, value in vars(getattr(promptkit, name)).items()
        if not method.startswith("_") and callable(getattr(value, "fget", value)) and not isinstance(value, type)
        if not (getattr(value, "fget", value).__doc__ or "").strip() and hasattr(value, "__name__")
    ]
    assert silent == []


def test_every_page_is_in_the_menu_and_the_menu_has_no_other() -> None:
    menu = re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert sorted(menu) == sorted(p.name for p in DOCS.glob("*.md"))


def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    """Dead links, dead anchors and pages outside of the menu are warnings, and warnings are errors."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        if find_spec(package) is None:
            pytest.skip(f"no {package}: pip install '.[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img)[^>]*src="?https?:|<link[^>]*stylesheet[^>]*href="?https?:', text), (
            page.name
        )
    api = (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    for name in set(promptkit.__all__) - {"__version__"}:
        assert re.search(rf'id="promptkit\.\w+\.{name}"', api), name
    assert "Prompts with an identity" in api


def test_completion_completes(promptkit_command: Command) -> None:
    page = (DOCS / "terminal.md").read_text(encoding="utf-8")
    (variable, shell) = re.findall(r"eval \"\$\((\w+)=(\w+) promptkit\)\"", page)[0]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    script = promptkit_command(env={**env, variable: shell})
    assert "complete -o nosort -F _promptkit_completion promptkit" in script.stdout, script.stderr
    asked = {variable: "bash_complete", "COMP_WORDS": "promptkit score --min", "COMP_CWORD": "2"}
    done = promptkit_command(env={**env, **asked})
    assert "plain,--min-fidelity" in done.stdout.splitlines()
