"""docs/ci.md: the job's steps, the hook and the test do what the page says, on prompts that fail and on some that pass."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import CHECKOUT, EXAMPLES, ROOT

from promptkit.safe_yaml import load

PAGE = (ROOT / "docs/ci.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture
def repository(example_build: Path, tmp_path: Path) -> Path:
    """A project with prompts, a reference, and `promptkit` on its PATH."""
    (tmp_path / "bench").mkdir()
    shutil.copy(EXAMPLES / "original_benchmark.yaml", tmp_path / "bench" / "prompts.yaml")
    (tmp_path / "mix").symlink_to(example_build)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "promptkit"
    command.write_text(f"#!{sys.executable}\n{CHECKOUT}", encoding="utf-8")
    command.chmod(0o755)
    return tmp_path


def run(command: str | list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "PATH": f"{cwd / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "GITHUB_STEP_SUMMARY": str(cwd / "step.md"),
    }
    words = ["bash", "-eo", "pipefail", "-c", command] if isinstance(command, str) else command
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def use_good_prompts(repository: Path) -> None:
    """In place of the essays, the prompts of the pack that was made of the mix."""
    (rows,) = (repository / "mix").glob("packs/*/*/prompts.jsonl")
    prompts = [{k: json.loads(r)[k] for k in ("id", "messages")} for r in rows.read_text(encoding="utf-8").splitlines()]
    (repository / "bench" / "prompts.yaml").write_text(json.dumps(prompts), encoding="utf-8")


def job() -> dict[str, Any]:
    document = load(blocks("yaml")[0], "ci.md")
    return {step.get("name", step.get("uses")): step for step in document["jobs"]["drift"]["steps"]}


def test_the_job_fails_on_essays_and_writes_its_summary(repository: Path) -> None:
    done = run(str(job()["score"]["run"]), repository)
    assert done.returncode == 3, done.stderr
    summary = (repository / "step.md").read_text(encoding="utf-8")
    assert summary == (repository / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith(blocks("markdown")[0].rstrip())
    assert "| gate: fidelity &gt;= 0.9 |" in summary
    assert "**failed**" in summary
    assert len(summary) < 3000
    assert (repository / "report.html").stat().st_size > 10_000


def test_the_job_passes_on_prompts_of_the_mix(repository: Path) -> None:
    use_good_prompts(repository)
    done = run(str(job()["score"]["run"]), repository)
    assert done.returncode == 0, done.stderr
    assert "**failed**" not in (repository / "step.md").read_text(encoding="utf-8")


def test_the_comment_is_made_of_the_summary_even_when_the_gate_fails() -> None:
    comment = job()["comment"]
    assert comment["if"] == "always()"
    assert comment["run"].endswith("--body-file summary.md")


def test_the_hook_fails_on_essays_as_pre_commit_would_run_it(repository: Path) -> None:
    (hook,) = load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"), "hooks")
    (used,) = load(blocks("yaml")[1], "ci.md")["repos"][0]["hooks"]
    assert used["id"] == hook["id"]
    assert hook["pass_filenames"] == "false"  # this reader keeps words as text
    assert re.search(used["files"], used["args"][0])
    call = [*shlex.split(hook["entry"]), *map(str, used["args"])]
    call[0] = str(repository / "bin" / "promptkit")
    done = run(call, repository)
    assert done.returncode == 3
    assert "gate fidelity >= 0.9" in done.stdout
    assert "next:" not in done.stderr
    use_good_prompts(repository)
    assert run(call, repository).returncode == 0


def test_limits_in_pyproject_and_the_test_in_python_agree(repository: Path) -> None:
    (repository / "pyproject.toml").write_text(blocks("toml")[0], encoding="utf-8")
    assert run("promptkit score bench/prompts.yaml --against mix", repository).returncode == 3
    (program,) = blocks("python")
    done = run([sys.executable, "-c", program], repository)
    assert done.returncode == 1
    assert "AssertionError: Not representative" in done.stderr
    use_good_prompts(repository)
    assert run([sys.executable, "-c", program], repository).returncode == 0
