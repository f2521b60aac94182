"""`[tool.promptkit]` of the nearest pyproject.toml -> defaults of options.

    [tool.promptkit]            options of any command, "_" for "-"
    seed = 7
    [tool.promptkit.score]      options of one command
    max_ratio = 1.5

Flags win over the file. An unknown key stops the run: a misspelt threshold that is ignored would be a gate that is off.
"""

from __future__ import annotations

import difflib
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from promptkit.errors import UsageError


def defaults(start: Path, running: str) -> dict[str, dict[str, Any]]:
    """Return click's default_map for the command that runs, from the nearest pyproject.toml with our table."""
    found = _table(start)
    if found is None:
        return {}
    path, table = found
    from .app import COMMANDS, cli

    root = click.Context(cli)
    options: dict[str, dict[str, click.Parameter]] = {}
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command is not None
        options[name] = {key: p for p in command.params for key in _keys(p)}
    anywhere = {key for known in options.values() for key in known}
    out: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            if key not in options:
                raise _unknown(path, "tool.promptkit", key, list(COMMANDS), "table")
            for inner, setting in value.items():
                if inner not in options[key]:
                    raise _unknown(path, f"tool.promptkit.{key}", inner, sorted(options[key]), "key")
                if key == running:
                    out[options[key][inner].name or inner] = setting
        elif key not in anywhere:
            raise _unknown(path, "tool.promptkit", key, sorted(anywhere), "key")
        elif key in options[running]:
            out.setdefault(options[running][key].name or key, value)
    return {running: out}


def origin(error: click.UsageError) -> str:
    """Say that a bad value came from the file, where it did."""
    param, ctx = getattr(error, "param", None), error.ctx
    if param is not None and ctx is not None and ctx.parent is not None:
        given = (ctx.parent.default_map or {}).get(ctx.info_name or "", {})
        if param.name in given and ctx.get_parameter_source(param.name) is not click.core.ParameterSource.COMMANDLINE:
            found = _table(Path.cwd())
            return f" (from [tool.promptkit] in {found[0]})" if found else ""
    return ""


def _keys(param: click.Parameter) -> list[str]:
    return (
        [o[2:].replace("-", "_") for o in param.opts if o.startswith("--")] if isinstance(param, click.Option) else []
    )


def _unknown(path: Path, table: str, key: str, known: list[str], what: str) -> UsageError:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return UsageError(f"{path}: [{table}] has an unknown {what} {key!r}", hint=f"{guess}known: {', '.join(known)}")


def _table(start: Path) -> tuple[Path, dict[str, Any]] | None:
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        try:
            raw = path.read_bytes()
        except OSError:
            continue
        if b"promptkit" not in raw:
            continue
        toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        try:
            document = toml.loads(raw.decode("utf-8"))
        except ValueError as e:
            raise UsageError(
                f"{path}: not readable as TOML: {e}", hint="mend the file, or run from another directory"
            ) from None
        table = document.get("tool", {}).get("promptkit")
        if isinstance(table, dict):
            return path, table
    return None
