"""Several sets of prompts beside one mix: which lies nearer, and is the difference more than chance?

    benchmark-a.yaml benchmark-b.yaml        two sets
    packs/mix  ->  1.0.0 1.1.0 2.0.0         all versions of a pack, oldest first

Each set is scored as ever; each but the first is compared with the one before it, by its excess (distance to the mix)
and by its mean typicality (what ranks sets by acceptance). Under the null all prompts of both are draws of one
population, so the labels "only here", "only there" and "in both" are dealt to them anew: versions of a pack share most
prompts, and those move both sets alike. Where prompt i of one set is a version of prompt i of the other, `paired`
swaps within pairs instead. With several steps the p-values are Holm's: the chance that any of them is a false alarm
stays below the level.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit import inference
from promptkit.conversation import Prompt, opening
from promptkit.errors import InputError, UsageError
from promptkit.scoring import MIN_DRAWS, Score, _mix, _mix_rows, as_prompts, score

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from promptkit.comparison import Mix
    from promptkit.inference import Floats
    from promptkit.reference import Reference

SHOWN = (
    "n", "n_effective", "distance", "noise_floor", "ratio", "excess", "p_value", "fidelity", "coverage", "mix_overlap",
    "domain_overlap", "typicality", "cross_entropy", "closeness", "verdict_code", "verdict", "intervals",
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A set less the one before it: differences, and the two-sided p-value of each. None where there is no value.

    n_shared : prompts that both have.
    """

    n_shared: int
    excess: float | None
    excess_p_value: float
    typicality: float | None
    typicality_p_value: float | None


@dataclass(frozen=True)
class Step:
    """One set: its name, its score, and how it differs from the set before it (None for the first)."""

    name: str
    score: Score
    change: Change | None

    def to_json(self) -> dict[str, Any]:
        """Return what `compare --json` prints of a set."""
        whole = self.score.to_json()
        change = self.change and {k: round(v, 6) if isinstance(v, float) else v for k, v in vars(self.change).items()}
        return {"name": self.name, **{k: whole[k] for k in SHOWN}, "change": change}


def trend(
    sets: Sequence[str | Path | Iterable[Any]],
    reference: Reference | str | Path,
    *,
    names: Sequence[str] | None = None,
    paired: bool = False,
    seed: int = 0,
    draws: int = 999,
) -> list[Step]:
    """Return each set's score against the reference, and its change from the set before it.

    Parameters
    ----------
    sets : two or more, each whatever `score` takes. names : one per set; default: the path, or its number.
    paired : prompt i of each set is a version of prompt i of the one before it. draws : of the tests of change, and
        null draws of each score.

    Raises InputError for a set of fewer than two prompts, and for paired sets of different size.
    """
    from threadpoolctl import threadpool_limits

    if len(sets) < 2:
        raise UsageError(f"{len(sets)} set to compare", hint="give two or more, or a directory of pack versions")
    if draws < MIN_DRAWS:
        raise UsageError(f"draws is {draws}", hint=f"give {MIN_DRAWS} or more; 999 is the default")
    if isinstance(reference, str | Path):
        from promptkit.reference import load_reference

        reference = load_reference(reference)
    if names is None:
        names = [str(s) if isinstance(s, str | Path) else f"set {i}" for i, s in enumerate(sets, 1)]
    prompts = [as_prompts(s) for s in sets]
    for name, own in zip(names, prompts, strict=True):
        if len(own) < 2:
            raise InputError(f"{name}: {len(own)} prompt, too few to compare", hint="a set needs two prompts at least")
    scores = [score(own, reference, seed=seed, draws=draws) for own in prompts]
    with threadpool_limits(1):
        rows, domains, _ = _mix_rows(reference, reference.weight, [])
        mix = _mix(reference, rows, domains, reference.weight, seed)
        tables = [_table(own, scored, reference, mix) for own, scored in zip(prompts, scores, strict=True)]
        mean, within, width = mix.mean[: mix.width], mix.within[0], mix.width

        def distance2(lines: NDArray[Any]) -> float:
            w = lines[:, -1] / lines[:, -1].sum()
            m, squares = w @ lines[:, :width], float(w @ w)
            return (float(m @ m) - squares) / (1.0 - squares) + within - 2.0 * float(m @ mean)

        whole = list(zip(prompts, tables, scores, strict=True))
        changes = [
            _change(before, after, distance2, paired=paired, seed=seed, draws=draws)
            for before, after in itertools.pairwise(whole)
        ]
    return [Step(n, s, c) for n, s, c in zip(names, scores, [None, *_adjusted(changes)], strict=True)]


def versions(path: str | Path) -> list[Path]:
    """Return the versions of a pack in the directory NAME/, oldest first; the path itself where it is no such thing."""
    from promptkit.versions import parse_version

    there = {p.parent for p in Path(path).glob("*/pack.json")}
    found = []
    for folder in there:
        try:
            found.append((parse_version(folder.name), folder))
        except UsageError:
            continue
    return [folder for _, folder in sorted(found)] or [Path(path)]


def _table(prompts: list[Prompt], scored: Score, reference: Reference, mix: Mix) -> Floats:
    """Return one line per prompt: random features of its vector, typicality, weight."""
    F = mix.features(reference.embed([opening(p.messages) for p in prompts]))[:, : mix.width].astype(np.float64)
    typicality = scored.prompts["typicality"].fill_null(float("nan")).to_numpy()
    return np.column_stack([F, typicality, [p.weight for p in prompts]])


def _change(before: Any, after: Any, distance2: Any, *, paired: bool, seed: int, draws: int) -> Change:
    (old, A, was), (new, B, now) = before, after
    shared = [] if paired else _shared(old, new)
    if paired:
        n_shared = sum(opening(p.messages) == opening(q.messages) for p, q in zip(old, new, strict=False))
    else:
        n_shared = len(shared)
        A, B = (
            np.concatenate([X[both], np.delete(X, both, axis=0)])
            for X, both in ((A, [i for i, _ in shared]), (B, [j for _, j in shared]))
        )

    def p_of(statistic: Any) -> float:
        return inference.compare_sets(
            A, B, statistic, paired=paired, n_shared=0 if paired else n_shared, draws=draws, rng=seed
        ).p_value

    known = was.typicality is not None and now.typicality is not None
    return Change(
        n_shared=n_shared,
        excess=None if was.excess is None or now.excess is None else now.excess - was.excess,
        excess_p_value=p_of(distance2),
        typicality=now.typicality - was.typicality if known else None,
        typicality_p_value=p_of(lambda rows: float(np.average(rows[:, -2], weights=rows[:, -1]))) if known else None,
    )


def _shared(old: list[Prompt], new: list[Prompt]) -> list[tuple[int, int]]:
    """Return (i, j) of prompts that both sets hold with the same weight; a text that stands twice is shared twice."""

    def keys(prompts: list[Prompt]) -> dict[tuple[str, float, int], int]:
        seen: Counter[tuple[str, float]] = Counter()
        out = {}
        for i, p in enumerate(prompts):
            key = (opening(p.messages), p.weight)
            out[(key[0], key[1], seen[key])] = i
            seen[key] += 1
        return out

    here, there = keys(old), keys(new)
    return [(i, there[key]) for key, i in here.items() if key in there]


def _adjusted(changes: list[Change]) -> list[Change]:
    fields = [(i, f) for i in range(len(changes)) for f in ("excess_p_value", "typicality_p_value")]
    known = [(i, f) for i, f in fields if getattr(changes[i], f) is not None]
    out = list(changes)
    for (i, f), p in zip(known, inference.holm([getattr(changes[i], f) for i, f in known]), strict=True):
        values: dict[str, Any] = {f: float(p)}
        out[i] = replace(out[i], **values)
    return out
