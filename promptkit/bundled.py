"""References of the packs that come with promptkit, fitted when they are asked for: `load_reference("general")`.

    corpora/general/1.0.0/prompts.jsonl  ->  224 rows  ->  Reference, in about a second

Fitting so few rows takes less time than checking and mapping a stored reference would save, so none is stored. Domains
are those that the prompts' authors gave them. Tokens are those of the built-in splitter, since no target is known.

What it is good for: telling of which of four broad kinds a set of prompts is. What it is not: a training mix. Some 220
prompts, written and not sampled, give p-values by cross-validation (no row is held out for good) and no answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from promptkit.conversation import Prompt
    from promptkit.reference import Reference


def packs() -> dict[str, Path]:
    """Return name -> directory of the newest version of each pack that came with promptkit."""
    from promptkit import pack

    homes = [home for home in pack._bundled() if home.is_dir()]
    found = {p.name: (p, pack._versions(p)) for home in homes for p in sorted(home.iterdir()) if p.is_dir()}
    return {name: p / versions[-1] for name, (p, versions) in sorted(found.items()) if versions}


def reference(name: str, *, device: str = "auto") -> Reference:
    """Return the reference of a bundled pack; its `path` is the name."""
    from promptkit.pack import load_pack

    pack = load_pack(packs()[name])
    fitted = fit(list(pack), recipe={"kind": "bundled pack", "name": pack.name, "content_hash": pack.content_hash})
    fitted.path, fitted.device = name, device
    return fitted


def fit(prompts: Sequence[Prompt], *, recipe: dict[str, Any] | None = None) -> Reference:
    """Return the reference of some prompts, which keep their own domains (`other` where they have none)."""
    import polars as pl

    from promptkit import domains, languages
    from promptkit import reference as references
    from promptkit.conversation import canonical, opening
    from promptkit.tokenizers import words_tokenizer

    tokenizer = words_tokenizer()
    texts = [opening(p.messages) for p in prompts]
    n = len(texts)
    frame = pl.DataFrame(
        {
            "shard": ["prompts.jsonl"] * n,
            "row": list(range(n)),
            "id": [p.id for p in prompts],
            "source": [p.source or "" for p in prompts],
            "messages": [canonical(p.messages).decode() for p in prompts],
            "tools": [canonical(p.tools).decode() if p.tools else None for p in prompts],
            "text": texts,
            "response_text": pl.Series([None] * n, dtype=pl.String),
            "n_prompt_tokens": [len(ids) for ids in tokenizer.encode_batch(texts)],
            "n_response_tokens": [0] * n,
            "n_supervised_tokens": [p.expected_output_tokens or 0 for p in prompts],
            "n_turns": [sum(m["role"] == "user" for m in p.messages) for p in prompts],
            "has_tools": [bool(p.tools) for p in prompts],
            "truncated": [False] * n,
            "language": languages.detect(texts),
        },
        schema_overrides={"tools": pl.String},
    )
    said = [p.domain or "other" for p in prompts]
    return references.fit(
        frame, tokenizer=tokenizer, recipe=recipe, label=lambda texts, **_: said, masses=domains.masses
    )
