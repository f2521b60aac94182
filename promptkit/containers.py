"""First contact: what each container of each source holds, told by a few of its rows.

    [{"source": "B1_glaive", "format": "jsonl", "files": 1, "shard": "B1_glaive/rows.jsonl", "rows_seen": 24,
      "keys": [{"name": "input_ids", "type": "list of 412 int"}, ...], "template": "kimi-k2.5", "template_share": 1.0,
      "mask": {"field": "loss_mask", "supervised_share": 0.225, "runs_per_row": 1.4,
               "convention": "end of turn included"},
      "sample": {"row": 0, "messages": [...]}}]

At least six conventions exist for where a loss mask ends; which one a file follows is counted at the ends of its runs.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit import readers, workers
from promptkit.collect import Opened, foreign, recover
from promptkit.readers.fields import MASKS
from promptkit.readers.look import look
from promptkit.readers.walk import locate

if TYPE_CHECKING:
    from promptkit.tokenizers import Tokenizer

ROWS = 24
TRIED = 3  # files of a container, until one gives rows


def containers(opened: Opened) -> list[dict[str, Any]]:
    """Return one entry for each source and container, in natural order."""
    alike: dict[tuple[str, str], list[readers.Shard]] = {}
    for shard in opened.shards:
        alike.setdefault((shard.source, shard.format), []).append(shard)
    limits = opened.limits
    found: dict[tuple[str, str], dict[str, Any]] = {}
    tasks = []
    for key, shards in alike.items():
        arguments = (shards[:TRIED], opened.tree.root, limits, opened.template)
        if foreign(shards[0]):
            tasks.append((key, _container, arguments))
        else:
            found[key] = _container(*arguments, opened.tokenizer)
    if tasks:
        found |= dict(workers.each(tasks, 1, (opened.tokenizer,), limits.shard_timeout))
    out = []
    for (source, kind), shards in alike.items():
        told = found[source, kind]
        told = {"keys": [], "sample": None} if isinstance(told, workers.Lost) else told
        out.append({"source": source, "format": kind, "files": len(shards), **told})
    return out


def _container(
    shards: list[readers.Shard], root: str, limits: readers.Limits, template: str | None, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    keys: dict[str, str] = {}
    shard, records = shards[0], list[readers.Record]()
    for shard in shards:
        workers.beat(shard.path)
        path = locate(Path(root), shard.path) if Path(root).is_dir() else Path(root)
        keys = look(path, shard.format, limits)
        items = itertools.islice(readers.read(Path(root), shard, limits=limits), 4 * ROWS)
        records = list(itertools.islice((i for i in items if isinstance(i, readers.Record)), ROWS))
        if records:
            break
    told: dict[str, Any] = {
        "shard": shard.path,
        "keys": [{"name": name, "type": kind} for name, kind in keys.items()],
        "rows_seen": len(records),
        **_evidence(records, template, tokenizer),
        "mask": _mask(records, keys, template, tokenizer),
        "sample": None,
    }
    if records and (tokenizer is not None or records[0].ids is None):
        first = records[0]
        conversation = recover(first, tokenizer, template)
        told["sample"] = {"row": first.row, "messages": conversation.messages}
    return told


def _pairs(records: list[readers.Record], tokenizer: Tokenizer, template: str | None) -> list[tuple[Any, Any]]:
    """Return ids and masks of rows that have ids, padding off."""
    from promptkit import templates

    return [templates.trim(r.ids, r.mask, r.attention, tokenizer, template) for r in records if r.ids is not None]


def _evidence(records: list[readers.Record], template: str | None, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the template that these rows alone speak for, and the share of turn markers in their place."""
    from promptkit import templates

    if tokenizer is None or tokenizer.name == "words":
        return {"template": None, "template_share": None}
    pairs = _pairs(records, tokenizer, template)
    seen = templates.detect(pairs, tokenizer) if pairs else None
    return {"template": seen.template if seen else None, "template_share": seen.score if seen else None}


def _mask(
    records: list[readers.Record], keys: dict[str, str], template: str | None, tokenizer: Tokenizer | None
) -> dict[str, Any] | None:
    """Return how the rows say what is supervised; None where they do not."""
    from promptkit import templates

    rows = [r for r in records if r.ids is not None and r.mask is not None]
    if not rows:
        return None
    pairs: list[tuple[Any, Any]] = [(r.ids, r.mask) for r in rows]
    ends: set[int] = set()
    if tokenizer is not None and tokenizer.name != "words":
        pairs = _pairs(rows, tokenizer, template)
        if template is not None:
            names = templates.TEMPLATES[template].ends
            ends = {tokenizer.specials[n] for n in names if n in tokenizer.specials}
    n_ids = sum(len(ids) for ids, _ in pairs)
    n_runs = inside = outside = 0
    for ids, mask in pairs:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])) == -1)
        n_runs += len(edges)
        # a newline behind it, or one id too far, is a usual slip
        inside += sum(not ends.isdisjoint(ids[max(e - 2, 0) : e].tolist()) for e in edges.tolist())
        outside += sum(int(ids[e]) in ends for e in edges.tolist() if e < len(ids))
    share = sum(int(mask.sum()) for _, mask in pairs) / n_ids if n_ids else 0.0
    convention: str | None
    if share == 1.0:
        convention = "every id is supervised"
    elif share == 0.0:
        convention = "nothing is supervised"
    elif inside > n_runs / 2:
        convention = "end of turn included"
    elif outside > n_runs / 2:
        convention = "end of turn left out"
    else:
        convention = "ends elsewhere than turns" if ends else None
    field = next((k for k in MASKS if k in keys), None)
    return {
        "field": field,
        "supervised_share": round(share, 4),
        "runs_per_row": round(n_runs / len(pairs), 2),
        "convention": convention,
    }
