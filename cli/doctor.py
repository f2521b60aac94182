"""`promptkit doctor`: what is installed, what was found, what would go wrong."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from promptkit import __version__

from .app import shared
from .console import Talk

# What the commands need to run, and what they use where it is there.
NEEDED = (
    "click", "numpy", "scipy", "polars", "pyarrow", "scikit-learn", "tiktoken", "tokenizers", "zstandard", "orjson",
    "rich", "jinja2", "ruamel.yaml", "py3langid", "threadpoolctl",
)  # fmt: skip
OPTIONAL = ("datasets", "sentence-transformers", "torch", "ray", "bokeh", "matplotlib")
LITTLE_DISK = 1 << 30


@click.command(
    "doctor",
    epilog="""\b
Example:
  promptkit doctor --json""",
)
@click.argument("directory", default=".")
@shared
def doctor_command(talk: Talk, directory: str) -> int:
    """Say what is installed and found: versions, tokenizer in DIRECTORY, references, offline state, free disk.

    Exits 2 when something that every run needs is missing.
    """
    report = _examine(Path(directory))
    if talk.json:
        talk.document(report)
    else:
        _show(talk, report)
    if report["problems"]:
        for problem in report["problems"]:
            talk.error(problem["problem"], problem["hint"])
        return 2
    if report["references"]:
        talk.next("promptkit", "score", "YOUR_PROMPTS.yaml", note="score against the reference found here")
    else:
        talk.next("promptkit", "build", "--from", "TRAINING_DIR", note="make a reference")
    return 0


def _examine(where: Path) -> dict[str, Any]:
    packages = {name: _version(name) for name in (*NEEDED, *OPTIONAL)}
    problems = [
        {"problem": f"{name} is not installed", "hint": f"pip install {name}"}
        for name in NEEDED
        if packages[name] is None
    ]
    folder = where if where.is_dir() else Path.cwd()
    free = shutil.disk_usage(folder).free
    if free < LITTLE_DISK:
        problems.append(
            {"problem": f"{free >> 20} MiB free at {folder}", "hint": "builds write some 100 MB; free some space"}
        )
    if not os.access(folder, os.W_OK):
        problems.append({"problem": f"{folder} is not writable", "hint": "run elsewhere, or give build --out"})
    from .scoring import references_here

    return {
        "promptkit_version": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": packages,
        "tokenizers": [str(p) for p in _tokenizers(folder)],
        "references": [str(p) for p in references_here(folder)],
        "offline": any(
            os.environ.get(k, "").lower() in ("1", "true", "yes", "on")
            for k in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        ),
        "tiktoken_cache": os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR"),
        "hub_cache": _hub_cache(),
        "free_disk_bytes": free,
        "encoding": getattr(sys.stdout, "encoding", None),
        "problems": problems,
    }


def _show(talk: Talk, report: dict[str, Any]) -> None:
    rows = [
        ("promptkit", report["promptkit_version"]),
        ("python", f"{report['python']}, {report['platform']}"),
        ("processors", report["cpus"]),
        ("tokenizers", ", ".join(report["tokenizers"]) or "none in this directory: give --tokenizer"),
        ("references", ", ".join(report["references"]) or "none in this directory: run promptkit build"),
        ("hub", "offline" if report["offline"] else "may be used, only for names that you give"),
        ("free disk", f"{report['free_disk_bytes'] / 1e9:,.1f} GB"),
        ("output", f"{report['encoding']}, {'terminal' if talk.out.is_terminal else 'piped'}"),
    ]
    for name, value in rows:
        talk.line(f"{name:<12} {value}")
    talk.line()
    talk.table(
        ["package", "version", "needed"],
        [[n, v or "not installed", "yes" if n in NEEDED else "if used"] for n, v in report["packages"].items()],
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _tokenizers(folder: Path) -> list[Path]:
    names = {"tiktoken.model", "tokenizer.json", "tokenizer.model"}
    try:
        near = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))[:200]
        return sorted(f for d in (folder, *near) for f in d.iterdir() if f.name in names or f.suffix == ".tiktoken")[
            :20
        ]
    except OSError:
        return []


def _hub_cache() -> str | None:
    home = os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    return home if os.path.isdir(home) else None
