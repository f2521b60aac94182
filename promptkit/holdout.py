"""Rows to keep out of the next training run, so that a pack drawn from them is unseen.

    every row -> hash of its place below FRACTION? -> drawn -> near-twins of drawn rows in the whole mix, and theirs
              -> holdout.jsonl, one {"row":17,"shard":"B1/train-0003.jsonl"} a line

Which rows are drawn depends on the seed and their place alone, so any number of processes gives the same file. A row
that nearly equals a drawn one would teach the drafter that row, so it is held too, and so are its own near-twins.
"Nearly equals" is the leak of `leakage.leaks`: equal but for case and white space, or Jaccard >= 0.8 on word 5-grams,
both with and without boilerplate. Without that last clause one long system prompt would chain a whole source together
and take it out of training. Boilerplate is judged on the mix's sample.

Openings are compared, so all rows that a trainer made of one conversation go together. The mix is read twice more than
for a build without a holdout, and once of these times decoded; a further time for each round of new twins.
"""

from __future__ import annotations

import heapq
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptkit import readers
from promptkit.collect import (
    Opened,
    Plan,
    Progress,
    Row,
    Summary,
    collect,
    packed,
    plan_for,
    recover,
    row_priority,
    rows_of,
    run,
)  # fmt: skip
from promptkit.conversation import canonical, opening
from promptkit.errors import InputError, UsageError

if TYPE_CHECKING:
    from promptkit.leakage import Twins
    from promptkit.tokenizers import Tokenizer

POOL = 5_000  # drawn rows that are decoded for the pack to be chosen from, or ten times its size
BATCH = 1000  # texts that are compared at once

Place = tuple[int, int]  # shard index, row


@dataclass(frozen=True)
class Holdout:
    """What is kept out: `rows` of each shard, the number drawn and of twins, and drawn rows to choose a pack from."""

    rows: dict[str, frozenset[int]]
    n_drawn: int
    n_twins: int
    pool: list[Row]

    def lines(self, shards: Sequence[readers.Shard]) -> bytes:
        """Return holdout.jsonl: canonical lines in the order of shards, then rows."""
        kept = [(s.path, row) for s in shards for row in sorted(self.rows.get(s.path, ()))]
        return b"".join(canonical({"shard": shard, "row": row}) + b"\n" for shard, row in kept)


def check_fraction(fraction: float) -> float:
    """Return `fraction` if it can be held out; UsageError else (NaN too)."""
    if not 0 < fraction < 1:
        raise UsageError(
            f"holdout is {fraction}", hint="give the fraction of rows to keep out of training: above 0, below 1"
        )
    return fraction


def hold(
    opened: Opened,
    fraction: float,
    *,
    size: int,
    sample_size: int,
    seed: int,
    processes: int | None = None,
    limits: readers.Limits | None = None,
    progress: Progress | None = None,
) -> Holdout:
    """Return the rows to keep out of the next training run. Raises InputError where none is drawn, or all are held."""
    from promptkit import leakage

    plan = plan_for(opened, max(POOL, 10 * size), seed, limits, merge_prefixes=True)
    drawn: dict[Place, str] = {}
    pool: list[Row] = []
    for _, part in run(_draw, opened, plan, processes, progress, "hold", fraction):
        if isinstance(part, Summary):  # a file that could not be read; the build's own account says so
            continue
        drawn.update(part[0])
        pool = heapq.nsmallest(plan.sample_size, [*pool, *part[1]], key=lambda r: r.priority)
    if not drawn:
        raise InputError(
            f"holdout: no row is drawn at a fraction of {fraction:g}",
            hint="give a larger --holdout for so small a mix",
        )
    sample = collect(
        opened, sample_size=sample_size, seed=seed, processes=processes, limits=limits, merge_prefixes=True,
        progress=progress,
    )  # fmt: skip
    mix = (opening(recover(r.record, opened.tokenizer, opened.template).messages) for r in sample.sample)
    boilerplate = leakage.boilerplate(sorted(set(drawn.values())), mix)
    every = replace(plan, merge_prefixes=False)  # a row that begins another is in training too
    held = set(drawn)
    new, known = sorted(set(drawn.values())), set(drawn.values())
    while new:
        with tempfile.TemporaryDirectory() as folder:
            write_twins(folder, new, boilerplate)
            found: dict[Place, str] = {}
            for _, part in run(_match, opened, every, processes, progress, "twins", folder):
                if not isinstance(part, Summary):
                    found.update(part)
        held.update(found)
        new = sorted(set(found.values()) - known)
        known.update(new)
    rows: dict[str, set[int]] = {}
    for index, row in held:
        rows.setdefault(opened.shards[index].path, set()).add(row)
    return Holdout({path: frozenset(r) for path, r in sorted(rows.items())}, len(drawn), len(held) - len(drawn), pool)


def is_drawn(seed: int, shard: str, row: int, fraction: float) -> bool:
    """Say whether a row is held out by chance: the first 8 bytes of a hash of its place, as a number in [0, 1)."""
    return int.from_bytes(row_priority(seed, f"holdout\0{shard}", row)[:8], "big") < fraction * 2**64


def _draw(
    unit: list[int], shards: list[readers.Shard], plan: Plan, fraction: float, tokenizer: Tokenizer | None
) -> tuple[dict[Place, str], list[Row]]:
    """Return place -> opening of the rows drawn from a unit, and the records of those of smallest priority."""
    texts: dict[Place, str] = {}
    pool: list[Row] = []
    for index, shard in zip(unit, shards, strict=True):
        for record in rows_of(index, shard, plan, tokenizer, Summary()):
            if is_drawn(plan.seed, shard.path, record.row, fraction):
                text = opening(recover(record, tokenizer, plan.template).messages)
                if text.strip():  # else nothing to compare, and no prompt
                    texts[index, record.row] = text
                    pool.append(Row(row_priority(plan.seed, shard.path, record.row), index, packed(record)))
    return texts, heapq.nsmallest(plan.sample_size, pool, key=lambda r: r.priority)


def _match(
    unit: list[int], shards: list[readers.Shard], plan: Plan, folder: str, tokenizer: Tokenizer | None
) -> dict[Place, str]:
    """Return place -> opening of the rows of a unit that nearly equal one of the texts in `folder`."""
    twins = read_twins(folder)
    found: dict[Place, str] = {}
    places: list[Place] = []
    texts: list[str] = []

    def compare() -> None:
        found.update({places[i]: texts[i] for i in twins.among(texts)})
        places.clear()
        texts.clear()

    for index, shard in zip(unit, shards, strict=True):
        for record in rows_of(index, shard, plan, tokenizer, Summary()):
            texts.append(opening(recover(record, tokenizer, plan.template).messages))
            places.append((index, record.row))
            if len(texts) == BATCH:
                compare()
    compare()
    return found


# A worker matches many units against the same texts, which may be many: they go by a file and are indexed once.
_INDEXED: dict[str, Any] = {}


def write_twins(folder: str | os.PathLike[str], texts: Iterable[str], boilerplate: Any) -> None:
    import numpy as np

    Path(folder, "texts.json").write_text(json.dumps(list(texts)), encoding="ascii")
    np.save(Path(folder, "boilerplate.npy"), boilerplate, allow_pickle=False)


def read_twins(folder: str) -> Twins:
    if folder not in _INDEXED:
        import numpy as np

        from promptkit.leakage import Twins

        _INDEXED.clear()
        texts = json.loads(Path(folder, "texts.json").read_bytes())
        _INDEXED[folder] = Twins(texts, np.load(Path(folder, "boilerplate.npy"), allow_pickle=False))
    twins: Twins = _INDEXED[folder]
    return twins
