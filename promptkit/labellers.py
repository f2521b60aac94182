"""Whose word counts for the domain of a row: a source's that the user named, a labeller of the user's, or ours.

    labels(["Fix the build"], sources=["A1"], label=None, by_source={"A1": "agentic"})  ->  [("agentic", False)]

A labeller is a callable `(texts, messages=..., tools=...)` that returns, for each text, a domain or an object with
`.domain` and maybe `.unsure`. Naming one as "module:callable" imports that module, which runs its code: as with any
import it is for code that you trust, and nothing that promptkit reads (a reference, a pack) can name one for you.

Typicality goes on seeing domains through promptkit's own probabilities, which both sides share; what is replaced are
the labels in tables, quotas and packs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from promptkit.errors import InputError, UsageError
from promptkit.registry import suggest

Labeller = Callable[..., Sequence[Any]]


def named(name: str) -> Labeller:
    """Import "module:callable", from the working directory too, and return the callable."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise UsageError(f"labeller {name!r}: not module:callable", hint="write for example mylabels:label")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # as uvicorn and gunicorn do: an installed command does not look there by itself
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"labeller {name!r}: {error}", hint="is the module installed, or in this directory?") from None
    finally:
        sys.path.remove(here)
    for part in attribute.split("."):
        found = getattr(found, part, None)  # type: ignore[assignment]
    if not callable(found):
        raise UsageError(f"labeller {name!r}: {module} has no callable {attribute!r}", hint="write module:callable")
    return found


def of(labeller: str | Labeller | None) -> tuple[Labeller | None, str | None]:
    """Return the callable and the name under which a recipe remembers it; both None for promptkit's own."""
    if labeller is None:
        return None, None
    if isinstance(labeller, str):
        return named(labeller), labeller
    name = getattr(labeller, "__qualname__", type(labeller).__name__)
    return labeller, f"{getattr(labeller, '__module__', '?')}:{name}"


def check(by_source: Mapping[str, str] | None, *, own_names: bool) -> dict[str, str]:
    """Return the mapping, sorted; a domain must be one of ours unless the labeller brings names of its own."""
    from promptkit.domains import DOMAINS

    for source, domain in (by_source or {}).items():
        if not domain.strip() or (domain not in DOMAINS and not own_names):
            raise UsageError(f"domain of {source}: {domain!r} is none", hint=suggest(domain, list(DOMAINS)))
    return dict(sorted((by_source or {}).items()))


def labels(
    texts: Sequence[str],
    *,
    messages: Sequence[Any] | None = None,
    tools: Sequence[Any] | None = None,
    sources: Sequence[str | None] | None = None,
    label: Labeller | None = None,
    by_source: Mapping[str, str] | None = None,
) -> list[tuple[str, bool]]:
    """Return domain and unsure of each text. A source's domain wins and is sure; `label` None is promptkit's own."""
    if label is None:
        from promptkit import domains

        found: Sequence[Any] = domains.label(texts, messages=messages, tools=tools, spoken=False, explain=False)
    else:
        found = list(label(texts, messages=messages, tools=tools))
        if len(found) != len(texts):
            raise InputError(
                f"labeller: {len(found)} labels for {len(texts)} texts", hint="return one domain for each text"
            )
    out = []
    for i, said in enumerate(found):
        given = (by_source or {}).get(sources[i] or "") if sources is not None else None
        domain = given or (said if isinstance(said, str) else getattr(said, "domain", None))
        if not isinstance(domain, str) or not domain.strip():
            raise InputError(
                f"labeller: {said!r:.80} for text {i} is no domain", hint="return names, or objects with .domain"
            )
        out.append((domain, given is None and bool(getattr(said, "unsure", False))))
    return out
