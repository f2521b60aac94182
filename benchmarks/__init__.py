"""Measurements: time, memory and tokens per second of each stage, beside what the machine allows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from promptkit.errors import PromptkitError, UsageError


def command(main: Callable[[], None]) -> None:
    """Run a command: what is wrong with its inputs is one line on standard error, and the exit code says so."""
    try:
        main()
    except PromptkitError as error:
        print("error: " + " ".join(f"{error.message}; next: {error.hint}".split()), file=sys.stderr)
        sys.exit(error.exit_code)


def a_folder(text: str) -> Path:
    """Return the path of a directory that is there; a type of argparse. Raises UsageError."""
    return _there(text, Path.is_dir, "directory")


def a_file(text: str) -> Path:
    """Return the path of a file that is there; a type of argparse. Raises UsageError."""
    return _there(text, Path.is_file, "file")


def _there(text: str, is_kind: Callable[[Path], bool], kind: str) -> Path:
    path = Path(text)
    if not is_kind(path):
        found = "something else is" if path.exists() else "nothing is"
        raise UsageError(
            f"{text}: expected a {kind}, and {found} there", hint="check the path; --help says what it holds"
        )
    return path
