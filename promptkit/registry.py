"""A name or the thing itself: how every option that picks an implementation is resolved.

Known things live in module-level dicts (`READERS`, `TEMPLATES`, `EMBEDDERS`, `DISTANCES`, ...). Other packages add
theirs through the entry-point group `promptkit.<kind>`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from promptkit.errors import UsageError


def resolve(kind: str, name: Any, known: Mapping[str, Any]) -> Any:
    """Return `name` itself unless it is a string, else what that string stands for.

    Looked up in `known`, then in the entry points of group `promptkit.<kind>`. Raises UsageError with the known
    names and the nearest one.
    """
    if not isinstance(name, str):
        return name
    if name in known:
        return known[name]
    plugins = {e.name: e for e in entry_points(group=f"promptkit.{kind}")}
    if name in plugins:
        return plugins[name].load()
    raise UsageError(f"unknown {kind.removesuffix('s')} {name!r}", hint=suggest(name, [*known, *plugins]))


def suggest(name: str, known: list[str]) -> str:
    """Say the nearest of the `known` names, then all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return (f"did you mean {near[0]!r}? " if near else "") + "known: " + (", ".join(sorted(known)) or "none")
