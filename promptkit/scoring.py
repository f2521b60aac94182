"""Does a set of prompts look like the training mix? One call, one value that holds the answer and its evidence.

    prompts + Reference -> per prompt: typicality, closeness, bits, region, nearest rows, leak, influence
                        -> as a set:   fidelity (what does not belong), coverage (what is missing), mix (proportions)
                        -> Score: verdict, p-values, intervals, what a set of this size cannot see

The three faults are reported apart, in this order, because one distance hides them: against a coding mix HumanEval
lies farther away than trivia does, though HumanEval belongs to it. What is compared is the opening of a conversation
(`conversation.opening`). No value of a prompt but its influence depends on the other prompts; the values of the set do
not depend on their order. A value that cannot be had is None, never NaN: a set of one has no distance, a reference of
fewer than 100 rows no p-values.

What a score is worth (`docs`, pilot of one target and eight drafters): it ranks sets and mixes well and single prompts
poorly, and it promises no acceptance length. Responses tell more; where candidates carry them they are scored too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptkit import gpu, inference, labellers, structure
from promptkit.comparison import ALPHA, NULL_DRAWS, POWER_SIZES, Mix, Rows
from promptkit.conversation import Prompt, opening, prompt_id
from promptkit.distances import checked, total_variation
from promptkit.errors import InputError, UsageError
from promptkit.labellers import Labeller
from promptkit.workers import trim

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    import polars as pl

    from promptkit.comparison import Chance
    from promptkit.inference import Floats, Joint
    from promptkit.reference import Reference

SCHEMA_VERSION = 1
MIN_DRAWS = 99
CLOSE = 0.10  # default margin: excess at or below which a set is representative (its upper 95 % bound must be)
FAITHFUL = 0.90  # fidelity that the lower 95 % bound must reach
NEAREST = 3
TEXT_CHARACTERS = 300

Interval = tuple[float, float]


@dataclass(frozen=True)
class Score:
    """What `score` found. Attributes are the keys of `score --json`; frames are polars frames with its columns.

    distance, noise_floor : MMD to the mix, and its mean over random draws of the mix of the same size;  excess :
    distance beyond chance, comparable across sizes;  p_value : smaller of p_fidelity and p_mix, calibrated;  fidelity,
    coverage, mix_overlap, domain_overlap : 0..1 (coverage may exceed 1);  typicality (ranks sets by acceptance, see
    docs/acceptance.md), cross_entropy (bits per token), closeness (cosine) : set means;  n_effective : what the
    weights leave of n;  equivalence : whether the distance is shown to be small;  advice : how many prompts that takes;
    structure : lengths, turns, tools;  chance : what random draws get on average;  null : arrays behind floor and
    p-value.
    """

    verdict: str
    verdict_code: str
    n: int
    n_effective: float
    distance: float | None
    noise_floor: float | None
    excess: float | None
    p_value: float | None
    p_fidelity: float | None
    p_mix: float | None
    fidelity: float | None
    coverage: float | None
    mix_overlap: float | None
    domain_overlap: float | None
    typicality: float | None
    cross_entropy: float | None
    closeness: float | None
    intervals: dict[str, Interval]
    chance: dict[str, float]
    equivalence: dict[str, Any] | None
    advice: str | None
    power: list[dict[str, Any]]
    structure: list[dict[str, Any]]
    domains: pl.DataFrame
    clusters: pl.DataFrame
    missing: pl.DataFrame
    prompts: pl.DataFrame
    responses: dict[str, Any] | None
    reference: dict[str, Any]
    seed: int
    promptkit_version: str
    null: dict[str, NDArray[np.float64]] = field(repr=False, compare=False, default_factory=dict)

    def __repr__(self) -> str:
        from promptkit.notebook import score_line

        return score_line(self)

    def _repr_html_(self) -> str:
        from promptkit.notebook import score_html

        return score_html(self)

    @property
    def representative(self) -> bool:
        """Whether the verdict is yes."""
        return self.verdict_code == "yes"

    @property
    def ratio(self) -> float | None:
        """Distance over noise floor: 1 on average for a random draw of the mix; grows as sqrt(n) otherwise."""
        if self.distance is None or not self.noise_floor:
            return None
        return self.distance / self.noise_floor

    @property
    def worth(self) -> dict[str, Any] | None:
        """What sets of such a fidelity had in acceptance length in our study: context, no promise (`worth.py`)."""
        from promptkit.worth import worth

        return worth(self.fidelity, self.intervals.get("fidelity"), self.n)

    def to_json(self) -> dict[str, Any]:
        """Return what `score --json` prints: plain lists, numbers rounded to 6 decimals, None for what was refused."""
        out: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        for name in (f.name for f in fields(self) if f.name != "null"):
            value = getattr(self, name)
            out[name] = value.to_dicts() if name in ("domains", "clusters", "missing", "prompts") else value
            if name == "verdict_code":
                out["representative"] = self.representative
            elif name == "noise_floor":
                out["ratio"] = self.ratio
            elif name == "responses":
                out["worth"] = self.worth
        for row in out["prompts"]:
            if row["response_typicality"] is None and row["response_cross_entropy"] is None:
                del row["response_typicality"], row["response_cross_entropy"]
        return dict(_plain(out))


def score(
    candidates: str | Path | Iterable[Any],
    reference: Reference | str | Path,
    *,
    seed: int = 0,
    draws: int = NULL_DRAWS,
    weight: str | None = None,
    margin: float = CLOSE,
    labeller: str | Labeller | None = None,
) -> Score:
    """Return how well the candidates represent the mix of a reference.

    Parameters
    ----------
    candidates : a path that `read_candidates` reads (a file, a pack), or prompts: `Prompt`s (a `Pack` is an iterable of
        them), strings, lists of messages, mappings with `prompt` or `messages`, or a frame with such a column.
    reference : a `Reference`, or the path of a saved one.
    seed : of the null draws. draws : how many in each of three batches; 99 at least.
    weight : what the mix counts by, "rows" or "tokens"; None: what the reference was fitted for.
    margin : the excess (0..1) up to which a set counts as representative; what a user can bear, not a test's level.
    labeller : that of the reference, where it was built with another than promptkit's own; see `labellers`.

    Raises
    ------
    InputError : where there is no candidate, where one has no text (indices are named) or no finite vector.

    Examples
    --------
    >>> score(["Fix the failing test in utils.py"], reference).prompts["belongs"]  # doctest: +SKIP
    """
    from threadpoolctl import threadpool_limits

    if not 0 <= seed < 2**32:
        raise UsageError(f"seed is {seed}", hint="give a number from 0 to 4294967295")
    if draws < MIN_DRAWS:
        raise UsageError(f"draws is {draws}", hint=f"give {MIN_DRAWS} or more; 1999 is the default")
    if not 0 < margin <= 1:
        raise UsageError(f"margin is {margin:g}", hint="give a number above 0, up to 1; 0.1 is the default")
    if isinstance(reference, str | Path):
        from promptkit.reference import load_reference

        reference = load_reference(reference)
    prompts = as_prompts(candidates)
    with threadpool_limits(1):  # sums of BLAS differ in the last bit with the number of threads
        label = _labeller_for(prompts, reference, labeller)
        return _score(
            prompts, reference, label, seed=seed, draws=draws, weight=weight or reference.weight, margin=margin
        )


def _labeller_for(prompts: list[Prompt], reference: Reference, given: str | Labeller | None) -> Labeller | None:
    """Return the labeller to use; a reference may say that it needs the user's own, and never which code to run."""
    needed = reference.recipe.get("labeller")
    if given is None and needed and any(p.domain is None for p in prompts):
        raise UsageError(
            f"reference was labelled by {needed}, and these prompts have no domains of their own",
            hint="pass that labeller again: score --labeller MODULE:CALLABLE, or score(..., labeller=...)",
        )
    return labellers.of(given)[0]


def _score(
    prompts: list[Prompt],
    reference: Reference,
    label: Labeller | None,
    *,
    seed: int,
    draws: int,
    weight: str,
    margin: float,
) -> Score:
    from concurrent.futures import ThreadPoolExecutor

    n = len(prompts)
    reference.prefetch()
    weights = np.array([p.weight for p in prompts], dtype=np.float64)
    if not np.isfinite(weights).all() or (weights < 0).any() or weights.sum() <= 0:
        raise InputError("weights of candidates must be finite, not negative and not all zero")
    weights /= weights.sum()
    begin = partial(_begin, weights, reference, seed=seed, draws=draws, weight=weight)
    with ThreadPoolExecutor(1) as pool:  # for products; all else is Python in large part, and gains nothing by threads
        begun = [pool.submit(begin, None)]
        seen = _look(prompts, reference, label, pool, embedded=lambda *of: begun.append(pool.submit(begin, of)))
        found = _as_set(
            seen, weights, reference, pool,
            seed=seed, draws=draws, weight=weight, margin=margin, own=begun[1].result(),
        )  # fmt: skip

    shares = _domain_table(found)
    clusters = _cluster_table(found, reference)
    missing = _missing(found, clusters, reference)
    verdict, code = _verdict(found, missing, reference)
    from promptkit import __version__

    joint, chance = found.joint, found.chance
    return Score(
        verdict=verdict,
        verdict_code=code,
        n=n,
        n_effective=found.n_effective,
        distance=_number(found.distance),
        noise_floor=_number(found.floor),
        excess=_number(found.excess),
        p_value=joint.overall if joint else None,
        p_fidelity=joint.family["fidelity"] if joint else None,
        p_mix=joint.family["mix"] if joint else None,
        fidelity=_number(found.fidelity),
        coverage=_number(found.coverage),
        mix_overlap=_number(found.mix_overlap),
        domain_overlap=_number(found.domain_overlap),
        typicality=_number(float(weights @ seen.typicality)),
        cross_entropy=_number(float(weights @ seen.cross_entropy)),
        closeness=_number(float(weights @ seen.closeness)),
        intervals={k: v for k, v in found.intervals.items() if math.isfinite(v[0]) and math.isfinite(v[1])},
        chance=_by_chance(chance),
        equivalence=found.equivalence,
        advice=_advice(found),
        power=found.power,
        structure=found.structure,
        domains=shares,
        clusters=clusters,
        missing=missing,
        prompts=_prompt_table(prompts, seen, found, reference),
        responses=_response_summary(seen, weights),
        reference={"path": reference.path, "fingerprint": reference.fingerprint},
        seed=seed,
        promptkit_version=__version__,
        null={
            **({"distance": chance.distance} if chance else {}),
            **({"depth": joint.null_depths} if joint else {}),
        },
    )


# ---------------------------------------------------------------------------------------------------- candidates


def as_prompts(candidates: str | Path | Iterable[Any]) -> list[Prompt]:
    """Return candidates of any accepted form as prompts with an opening; InputError names those that have none."""
    if isinstance(candidates, Prompt):
        raise UsageError("candidates: got one Prompt, expected several", hint="pass a list: score([prompt], ...)")
    if isinstance(candidates, str | Path):
        from promptkit.candidates import read_candidates

        prompts = read_candidates(candidates)
    else:
        if hasattr(candidates, "iter_rows"):
            candidates = list(_frame_rows(candidates))
        prompts = [_as_prompt(c, i) for i, c in enumerate(candidates)]
    if not prompts:
        raise InputError("no candidates: the list of prompts is empty", hint="give at least one prompt")
    empty = [i for i, p in enumerate(prompts) if not opening(p.messages).strip()]
    if empty:
        listed = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
        raise InputError(
            f"candidates {listed}: {len(empty)} of {len(prompts)} prompts have no text (counted from 0)",
            hint="drop them, or check the field that holds the prompt",
        )
    return prompts


def _as_prompt(value: Any, index: int) -> Prompt:
    if isinstance(value, Prompt):
        return value
    if isinstance(value, str):
        from promptkit.encoders import whole

        messages = [{"role": "user", "content": whole(value)}]  # half a surrogate pair becomes U+FFFD, as in files
        return Prompt(prompt_id(messages), messages)
    from promptkit.dialects import BadRow, Row, to_prompt

    if isinstance(value, Sequence) and not isinstance(value, bytes):
        value = {"messages": list(value)}
    if not isinstance(value, Mapping):
        raise InputError(
            f"candidate {index}: found {type(value).__name__}, expected a string, a list of messages or a Prompt"
        )
    try:
        return to_prompt(Row(dict(value), f"candidate {index}"), "candidates")[0]
    except BadRow as error:
        raise InputError(f"candidate {index}: {error}") from error


def _frame_rows(frame: Any) -> Iterable[dict[str, Any]]:
    """Yield the rows of a polars frame as mappings; `messages` and `tools` may be JSON in strings, as in ours."""
    for row in frame.iter_rows(named=True):
        given = {k: v for k, v in row.items() if v is not None}
        for key in ("messages", "tools"):
            if isinstance(given.get(key), str):
                given[key] = json.loads(given[key])
        yield given


# -------------------------------------------------------------------------------------------- each prompt on its own


@dataclass(frozen=True)
class _Seen:
    """What is known of each prompt by itself; arrays are aligned with the candidates."""

    texts: list[str]
    X: NDArray[np.float32]
    cluster: NDArray[np.int64]
    units: NDArray[np.int64]  # of the mix that the prompt is in, -1: in none
    domain: list[str]  # as shown: the candidate's own label where it has one
    compared: list[str]  # as compared with the mix: the labeller's word where the candidate's is not one the mix knows
    typicality: Floats
    closeness: Floats
    cross_entropy: Floats
    nearest: NDArray[np.int64]
    cosine: Floats
    leaks: list[dict[str, Any] | None]
    response_typicality: Floats  # NaN: no response, or none to compare with
    response_bits: Floats
    shape: dict[str, NDArray[Any]]  # of `structure`

    @property
    def known(self) -> bool:
        """Whether the reference is large enough to say what is typical."""
        return not np.isnan(self.typicality).any()


def _look(
    prompts: list[Prompt],
    reference: Reference,
    label: Labeller | None,
    pool: ThreadPoolExecutor | None = None,
    *,
    embedded: Callable[[list[str], NDArray[np.float32]], object] | None = None,
) -> _Seen:
    """Return what is known of each prompt; `embedded` is called as soon as there are vectors of their texts."""
    from promptkit import domains
    from promptkit.leakage import GRAM, CandidateIndex, leaks

    texts = [opening(p.messages) for p in prompts]
    ids = reference.tokenizer.encode_batch(texts)
    X = checked(reference.embed(texts, ids=ids), "candidates")
    if X.shape != (len(texts), reference.X.shape[1]):
        raise InputError(
            f"embedder returned {len(X)} vectors of {X.shape[1]} dimensions for {len(texts)} texts, expected "
            f"{len(texts)} of {reference.X.shape[1]} as in the reference",
            hint="use the embedder, and its version, that the reference was built with",
        )
    X = X.astype(np.float32, copy=False)
    if embedded:
        embedded(texts, X)
    cluster, region = reference.assign(X), reference.region(X)
    grams = CandidateIndex(texts)
    units = reference.find_units(texts, grams=grams.sets[GRAM])
    nearest = pool.submit(reference.prompts.nearest, ids, units) if pool else None
    leaked = leaks(grams, reference.words)
    affinity, likeliest = reference.domain_evidence(texts)
    labels = labellers.labels(
        texts, messages=[p.messages for p in prompts], tools=[p.tools for p in prompts], label=label
    )
    seen = reference.prompts.typicality(
        ids, region, affinity=affinity, domain=likeliest, exclude_units=units,
        neighbours=nearest.result if nearest else None,
    )  # fmt: skip
    known = {*domains.DOMAINS, *reference.domains["domain"].to_list()}
    own = [p.domain or said for p, (said, _) in zip(prompts, labels, strict=True)]
    compared = [d if d in known else said for d, (said, _) in zip(own, labels, strict=True)]

    response_typicality, response_bits = np.full(len(prompts), np.nan), np.full(len(prompts), np.nan)
    answered = [i for i, p in enumerate(prompts) if p.response and p.response.strip()]
    if answered and reference.responses is not None:
        answer_ids = reference.tokenizer.encode_batch([prompts[i].response or "" for i in answered])
        answers = reference.responses.typicality(answer_ids, region[answered], exclude_units=units[answered])
        response_typicality[answered], response_bits[answered] = answers.typicality, answers.cross_entropy
    return _Seen(
        texts=texts,
        X=X,
        cluster=cluster,
        units=np.asarray(units, dtype=np.int64),
        domain=own,
        compared=compared,
        typicality=np.asarray(seen.typicality, dtype=np.float64),
        closeness=np.asarray(seen.closeness, dtype=np.float64),
        cross_entropy=np.asarray(seen.cross_entropy, dtype=np.float64),
        nearest=np.asarray(seen.nearest),
        cosine=np.asarray(seen.nearest_cosine, dtype=np.float64),
        leaks=leaked,
        response_typicality=response_typicality,
        response_bits=response_bits,
        shape=structure.shapes(prompts, [len(i) for i in ids]),
    )


# ---------------------------------------------------------------------------------------------------- all as a set


@dataclass
class _Set:
    """What is known of the candidates together; NaN and None for what was refused."""

    n: int
    n_effective: float  # what the weights leave of n
    m: float  # rows of the mix's sample, likewise
    n_foreign: int | None
    domain_names: list[str]
    domain_shares: tuple[Floats, Floats]  # reference, candidates
    cluster_shares: tuple[Floats, Floats]
    influence: Floats
    distance: float = math.nan
    floor: float = math.nan
    excess: float = math.nan
    fidelity: float = math.nan
    coverage: float = math.nan
    mix_overlap: float = math.nan
    domain_overlap: float = math.nan
    intervals: dict[str, Interval] = field(default_factory=dict)
    joint: Joint | None = None
    chance: Chance | None = None
    power: list[dict[str, Any]] = field(default_factory=list)
    structure: list[dict[str, Any]] = field(default_factory=list)
    equivalence: dict[str, Any] | None = None
    margin: float = CLOSE


def _as_set(
    seen: _Seen, weights: Floats, reference: Reference, pool: ThreadPoolExecutor,
    *, seed: int, draws: int, weight: str, margin: float, own: Floats | None,
) -> _Set:  # fmt: skip
    n = len(weights)
    order = _in_order(seen.texts, weights, seen.compared)
    rows, names, row_weights = _mix_rows(reference, weight, seen.compared)
    code = {d: i for i, d in enumerate(names)}
    candidates = Rows(
        seen.X, seen.cluster, np.array([code[d] for d in seen.compared], dtype=np.int64), seen.typicality,
        np.arange(n, dtype=np.int64), weights,
    ).take(order)  # fmt: skip
    w = candidates.weights
    shares = [
        (
            np.bincount(mine, row_weights, minlength=size) / row_weights.sum(),
            np.bincount(theirs, w, minlength=size).astype(np.float64),
        )
        for mine, theirs, size in (
            (rows.domains, candidates.domains, len(names)),
            (rows.clusters, candidates.clusters, len(reference.centroids)),
        )
    ]
    belongs = seen.typicality >= ALPHA
    found = _Set(
        n=n,
        n_effective=round(inference.effective_size(w), 6),
        m=inference.effective_size(row_weights),
        n_foreign=int((~belongs).sum()) if seen.known else None,
        domain_names=names,
        domain_shares=shares[0],
        cluster_shares=shares[1],
        influence=np.full(n, math.nan),
        margin=margin,
    )
    if n == 1:  # its own values say all there is; a set of one has no spread
        return found
    fit, held = _split(reference)
    mix = _mix(reference, rows, names, weight, seed)
    table = mix.table(candidates)
    features = table[:, : mix.width]
    _distances(found, mix, features, candidates.weights, order)
    _overlaps(found, candidates, len(names), seed)
    if not len(held) or not seen.known:
        return found

    in_fit = np.isin(seen.units[order], rows.units[fit])
    rng, behind = (np.random.default_rng([seed, n]) for _ in range(2))
    mix.draw(w, draws, behind)
    covered = pool.submit(mix.coverage, candidates.X, behind, in_fit=in_fit)
    chance = found.chance = mix.chance(w, rng)
    found.floor = float(chance.distance.mean())
    low, high = np.quantile(chance.distance, [0.025, 0.975])
    found.intervals["noise_floor"] = (float(low), float(high))
    share = float(w @ (candidates.typicality >= ALPHA))
    _fidelity(found, share)
    _excess(found, mix, features, w, chance.excess2, share)
    found.joint = mix.test(table, w, draws=draws, rng=rng, own=own)
    found.coverage, found.intervals["coverage"] = covered.result()
    found.structure = structure.table(seen.shape, structure.of_sample(reference.sample), weights, row_weights)
    found.power = mix.power(sorted({*POWER_SIZES, n}))
    return found


def _begin(
    weights: Floats, reference: Reference, embedded: tuple[list[str], NDArray[np.float32]] | None,
    *, seed: int, draws: int, weight: str,
) -> Floats | None:  # fmt: skip
    """Make the mix and its draws, which are kept, and of texts and vectors what `Mix.begin` can say of them.

    These are products, for a thread beside the reading of the prompts, which is Python. None where that gains nothing:
    then it is made where it is used.
    """
    n = len(weights)
    if n == 1 or np.ptp(weights) or gpu.asked(reference.device) != "cpu" or not len(_split(reference)[1]):
        return None
    rows, names, _ = _mix_rows(reference, weight, [])
    mix, rng, w = _mix(reference, rows, names, weight, seed), np.random.default_rng([seed, n]), weights / weights.sum()
    if embedded is None:
        mix.draw(w, draws, rng)
        return None
    texts, X = embedded
    return mix.begin(X[_in_order(texts, weights)], w, draws, rng)


def _in_order(texts: Sequence[str], *keys: Sequence[Any] | Floats) -> NDArray[np.int64]:
    """Return candidates in one order, whatever the file's: draws number them, and sums hang on it in the last bit."""
    return np.array(sorted(range(len(texts)), key=lambda i: (texts[i], *(k[i] for k in keys))), dtype=np.int64)


def _mix_rows(reference: Reference, weight: str, compared: list[str]) -> tuple[Rows, list[str], Floats]:
    """Return the rows of the reference's sample, the names of all domains, and the rows' weights, kept for the next.

    Domains that neither has are named too: so the mix, and its draws, are the same for all sets with labels of ours.
    """
    from promptkit.domains import DOMAINS

    sample = reference.sample
    if weight not in ("rows", "tokens"):
        raise UsageError(f"weight {weight!r} is unknown", hint="known: rows, tokens")
    if "names" not in reference.kept:
        reference.kept["names"] = reference.domains["domain"].to_list(), {*sample["domain"].unique(), *DOMAINS}
    listed, others = reference.kept["names"]
    names = [*listed, *sorted({*others, *compared}.difference(listed))]
    key = "rows", weight
    kept: tuple[Rows, list[str], Floats] | None = reference.kept.get(key)
    if kept and kept[1] == names:
        return kept
    if weight == "tokens":
        weights = sample["n_supervised_tokens"].fill_null(0).to_numpy().astype(np.float64)
        if not weights.sum():
            raise InputError("no row of the mix has supervised tokens to weigh it by", hint='use weight="rows"')
    else:
        weights = np.ones(len(sample))
    code = {d: i for i, d in enumerate(names)}
    typicality = np.full(len(sample), np.nan)
    typicality[reference.prompts.rows] = reference.prompts.p
    rows = Rows(
        X=np.asarray(reference.X, dtype=np.float32),
        clusters=sample["cluster"].to_numpy().astype(np.int64),
        domains=sample["domain"].replace_strict(code).to_numpy().astype(np.int64),
        typicality=typicality,
        units=sample["unit"].to_numpy().astype(np.int64),
        weights=weights / weights.sum(),
    )
    reference.kept[key] = rows, names, weights
    return rows, names, weights


def _mix(reference: Reference, rows: Rows, names: list[str], weight: str, seed: int) -> Mix:
    """Return the mix that sets are compared with. The last one is kept with the reference: the next score needs it."""
    key = "mix", weight, tuple(names), seed
    found: Mix | None = reference.kept.get(key)
    if found is None:
        fit, held = _split(reference)
        weights, n_clusters = rows.weights, len(reference.centroids)
        for old in [k for k in list(reference.kept) if k[0] == "mix"]:
            reference.kept.pop(old, None)
        found = reference.kept[key] = Mix(
            rows.take(fit), rows.take(held) if len(held) else rows.take(fit),
            cluster_shares=np.bincount(rows.clusters, weights, minlength=n_clusters) / weights.sum(),
            domain_shares=np.bincount(rows.domains, weights, minlength=len(names)) / weights.sum(),
            weighted=weight == "tokens", seed=seed, learned=reference.learned() if weight == reference.weight else None,
            device=gpu.asked(reference.device),
        )  # fmt: skip
    return found


def learn(reference: Reference) -> Reference:
    """Return the reference with what a score learns of the mix alone, to be saved with it: scores start at once."""
    rows, names, _ = _mix_rows(reference, reference.weight, [])
    if not len(_split(reference)[1]) or not len(reference.X[0]):
        return reference
    learned = _mix(reference, rows, names, reference.weight, 0).learned()
    reference.kept.clear()  # the draws behind it: 100 MB that nobody needs while it is saved
    trim()
    return reference.with_learned(learned)


def _split(reference: Reference) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that the vector space was fitted on, and the rows of the first fold, which it has never seen."""
    if "split" not in reference.kept:
        view = reference.prompts
        held = np.asarray(view.rows[view.fold == 0], dtype=np.int64)
        reference.kept["split"] = np.setdiff1d(np.arange(len(reference.sample), dtype=np.int64), held), held
    fit, held = reference.kept["split"]
    return fit, held


def _distances(found: _Set, mix: Mix, features: NDArray[Any], w: Floats, order: NDArray[np.int64]) -> None:
    """Set the distance, and each prompt's influence: the distance less what it would be without the prompt."""
    F = features.astype(np.float64)
    mu = mix.mean[: mix.width]
    m = w @ F

    def distance(own: Any, cross: Any) -> Any:
        return np.sqrt(np.maximum(own - 2.0 * cross + mix.own[0], 0.0))

    found.distance = float(distance(m @ m, m @ mu))
    rest = np.maximum(1.0 - w, 1e-12)
    own = (m @ m - 2.0 * w * (F @ m) + w * w) / rest**2
    without = distance(own, (m @ mu - w * (F @ mu)) / rest)
    found.influence[order] = np.where(w < 1.0, found.distance - without, math.nan)


def _excess(found: _Set, mix: Mix, features: NDArray[Any], w: Floats, by_chance: float, share: float) -> None:
    """Set the excess, whether it is shown to be small, and how many prompts like these would show it."""
    jack = inference.jackknife_mmd2(features, mix.mean[: mix.width], mix.within[0], w)
    low, high = jack.interval()
    found.excess, *ends = (math.sqrt(max(0.0, v - by_chance)) if math.isfinite(v) else math.nan
                           for v in (jack.value, low, high))  # fmt: skip
    found.intervals["excess"] = (ends[0], ends[1])
    if not math.isfinite(jack.stderr):
        return
    beyond = jack.value - by_chance
    sizes = (
        inference.enough_for_equivalence(jack, found.n_effective, found.margin**2, value=beyond),
        # No set of the mix has a share of more than 0.95 in the long run, whatever a small one shows.
        inference.enough_for_share(min(share, 1.0 - ALPHA), FAITHFUL * (1.0 - ALPHA)),
    )
    needed = None if None in sizes else max(s for s in sizes if s is not None) * found.n / found.n_effective
    found.equivalence = {
        "margin": found.margin,
        "p_value": _number(inference.equivalence(beyond, jack.stderr, found.margin**2)),
        "n_needed": None if needed is None else _two_digits(needed),
    }


def _fidelity(found: _Set, share: float) -> None:
    low, high = inference.wilson(share, found.n_effective)
    found.fidelity = min(1.0, share / (1.0 - ALPHA))
    found.intervals["fidelity"] = (min(1.0, low / (1.0 - ALPHA)), min(1.0, high / (1.0 - ALPHA)))


def _overlaps(found: _Set, candidates: Rows, n_domains: int, seed: int) -> None:
    """Set the overlaps of cluster and domain shares, with half-sample intervals: resampling would add its own noise."""
    kinds = (
        ("mix_overlap", candidates.clusters, found.cluster_shares),
        ("domain_overlap", candidates.domains, found.domain_shares),
    )
    for name, labels, (reference, own) in kinds:
        value = 1.0 - total_variation(own, reference)
        setattr(found, name, value)
        if found.n < 4:
            continue

        def of(rows: NDArray[np.int64], labels: Any = labels, reference: Any = reference) -> Floats:
            k = len(reference)
            at = labels[rows] + k * np.arange(len(rows))[:, None]
            sums = np.bincount(at.ravel(), candidates.weights[rows].ravel(), minlength=k * len(rows)).reshape(-1, k)
            total = np.maximum(sums.sum(axis=1, keepdims=True), 1e-300)
            return np.asarray(1.0 - 0.5 * np.abs(sums / total - reference).sum(axis=1))

        low, high = inference.half_sample(found.n, of, centre=value, rng=seed)
        found.intervals[name] = (max(0.0, low), min(1.0, high))


# ------------------------------------------------------------------------------------------------------ the tables


def _domain_table(found: _Set) -> pl.DataFrame:
    import polars as pl

    mine, theirs = found.domain_shares
    kept = [i for i in range(len(mine)) if mine[i] > 0 or theirs[i] > 0]
    kept.sort(key=lambda i: (-mine[i], -theirs[i], found.domain_names[i]))
    columns = {
        "domain": [found.domain_names[i] for i in kept],
        "reference_share": mine[kept],
        "candidate_share": theirs[kept],
        "p_value": _share_tests(found, mine[kept], theirs[kept]),
    }
    return pl.DataFrame(columns, schema={k: pl.String if k == "domain" else pl.Float64 for k in columns})


def _share_tests(found: _Set, mine: Floats, theirs: Floats) -> list[float | None]:
    """Return the p-value of each share, Benjamini-Hochberg over all of them; None where p-values are refused."""
    if found.joint is None:
        return [None] * len(mine)
    each = [inference.share_test(b, found.n_effective, a, found.m) for a, b in zip(mine, theirs, strict=True)]
    return [float(p) for p in inference.benjamini_hochberg(each)]


def _cluster_table(found: _Set, reference: Reference) -> pl.DataFrame:
    import polars as pl

    mine, theirs = found.cluster_shares
    numbers = reference.clusters["cluster"].to_numpy()
    return reference.clusters.select("cluster", "name", "domain").with_columns(
        pl.Series("reference_share", mine[numbers], dtype=pl.Float64),
        pl.Series("candidate_share", theirs[numbers], dtype=pl.Float64),
        pl.Series("p_value", _share_tests(found, mine[numbers], theirs[numbers]), dtype=pl.Float64),
    )


def _missing(found: _Set, clusters: pl.DataFrame, reference: Reference) -> pl.DataFrame:
    """Return the clusters that hold fewer candidates than chance allows, largest gap first, with openings to add.

    A cluster is listed when its own count is too low (binomial, Benjamini-Hochberg over clusters), or when it has
    less than half its share in a set whose shares as a whole are no draw of the mix: then the gaps are its fault.
    """
    import polars as pl

    n = max(1, round(found.n_effective))
    rows = clusters.join(reference.clusters.select("cluster", "examples"), on="cluster", how="left")
    low = [
        inference.binomial_at_most(round(theirs * n), n, mine)
        for mine, theirs in zip(rows["reference_share"], rows["candidate_share"], strict=True)
    ]
    off = found.joint is not None and found.joint.single["jensen_shannon"] < ALPHA
    mine, theirs = rows["reference_share"].to_numpy(), rows["candidate_share"].to_numpy()
    rare = (inference.benjamini_hochberg(low) < ALPHA) & (theirs < mine) & (found.n > 1)
    listed = rare | ((theirs < 0.5 * mine) & (mine >= 1.0 / n) & off)
    return (
        rows.with_columns(pl.Series("gap", mine - theirs))
        .filter(pl.Series(listed))
        .sort(["gap", "cluster"], descending=[True, False])
        .drop("gap", "p_value")
    )


def _prompt_table(prompts: list[Prompt], seen: _Seen, found: _Set, reference: Reference) -> pl.DataFrame:
    import polars as pl

    def numbers(values: Floats) -> pl.Series:
        return pl.Series(np.where(np.isfinite(values), values, math.nan), nan_to_null=True)

    of_mix = structure.of_sample(reference.sample)
    leak = pl.DataFrame(
        [(x["kind"], float(x["share"])) if x else (None, None) for x in seen.leaks],
        schema={"kind": pl.String, "share": pl.Float64}, orient="row",
    ).select(pl.when(pl.col("kind").is_not_null()).then(pl.struct("kind", "share")))  # fmt: skip
    nearest = _nearest(seen, reference)
    columns: list[tuple[str, Any, Any]] = [
        ("index", np.arange(len(prompts)), pl.Int64),
        ("id", [p.id for p in prompts], pl.String),
        ("typicality", numbers(seen.typicality), pl.Float64),
        ("belongs", [None if math.isnan(t) else bool(t >= ALPHA) for t in seen.typicality], pl.Boolean),
        ("cross_entropy", numbers(seen.cross_entropy), pl.Float64),
        ("closeness", numbers(seen.closeness), pl.Float64),
        ("domain", seen.domain, pl.String),
        ("cluster", seen.cluster, pl.Int64),
        ("nearest_similarity", np.where(seen.nearest[:, 0] >= 0, seen.cosine[:, 0], 0.0), pl.Float64),
        ("nearest", nearest, nearest.dtype),
        ("n_tokens", seen.shape["n_tokens"], pl.Int64),
        ("length_percentile", structure.length_percentiles(seen.shape["n_tokens"], of_mix), pl.Float64),
        ("outliers", structure.outliers(seen.shape, of_mix), pl.List(pl.String)),
        ("influence", numbers(found.influence), pl.Float64),
        ("leaked", [leak is not None for leak in seen.leaks], pl.Boolean),
        ("leak", leak.to_series(), leak.dtypes[0]),
        ("response_typicality", numbers(seen.response_typicality), pl.Float64),
        ("response_cross_entropy", numbers(seen.response_bits), pl.Float64),
    ]
    return pl.DataFrame({name: pl.Series(name, values, dtype=kind) for name, values, kind in columns})


def _nearest(seen: _Seen, reference: Reference) -> pl.Series:
    """Return the rows of the mix nearest to each prompt: a list each, of similarity, text and source."""
    import polars as pl

    prompt, rank = np.nonzero(seen.nearest[:, :NEAREST] >= 0)
    rows, cosines = seen.nearest[prompt, rank], seen.cosine[prompt, rank]
    found = reference.sample[rows].select(
        pl.lit(pl.Series(cosines)).alias("similarity"), pl.col("text").str.slice(0, TEXT_CHARACTERS), "source"
    )
    of_prompt = found.select(pl.lit(pl.Series(prompt)).alias("prompt"), pl.struct(pl.all()).alias("nearest"))
    lists = of_prompt.group_by("prompt", maintain_order=True).agg("nearest")
    alone = np.setdiff1d(np.arange(len(seen.nearest)), prompt)
    empty = pl.DataFrame({"prompt": alone, "nearest": [[]] * len(alone)}, schema=lists.schema)
    return pl.concat([lists, empty]).sort("prompt")["nearest"]


def _response_summary(seen: _Seen, weights: Floats) -> dict[str, Any] | None:
    """Return what the answers say as a set, or None where there is none or nothing to compare it with."""
    have = ~np.isnan(seen.response_bits)
    if not have.any():
        return None
    w = weights[have] / weights[have].sum() if weights[have].sum() > 0 else np.full(int(have.sum()), 1 / have.sum())
    typicality = seen.response_typicality[have]
    share = math.nan if np.isnan(typicality).any() else float(w @ (typicality >= ALPHA))
    return {
        "n": int(have.sum()),
        "fidelity": _number(min(1.0, share / (1.0 - ALPHA))),
        "cross_entropy": _number(float(w @ seen.response_bits[have])),
    }


# ----------------------------------------------------------------------------------------------------- the verdict


def _verdict(found: _Set, missing: pl.DataFrame, reference: Reference) -> tuple[str, str]:
    """Return the verdict in words, and its code.

    yes: shown to be close (upper bound of excess at most the margin, lower bound of fidelity at least 0.90); no: shown
    to be no draw of the mix (p < 0.05) and not shown to be close; unsure: neither. A set of 20 is hardly ever a yes.
    """
    n = found.n
    if n == 1:
        belongs = {0: "It belongs to the mix", 1: "It does not belong to the mix"}.get(
            -1 if found.n_foreign is None else found.n_foreign, "Its place is unknown"
        )
        return f"One prompt is too few for a set. {belongs}; see its own values.", "unsure"
    if found.joint is None:
        rows = len(reference.sample)
        return (
            f"Cannot tell: the reference has only {rows} row{'s' * (rows != 1)}, too few to say what chance does "
            f"(100 at least). Distances are given, p-values are not.",
            "unsure",
        )
    parts = _parts(found, missing)
    close = found.intervals["excess"][1] <= found.margin and found.intervals["fidelity"][0] >= FAITHFUL
    if close:
        return f"Representative of the training mix: {parts}.", "yes"
    if found.joint.overall < ALPHA:
        return f"Not representative of the training mix (p = {found.joint.overall:.2g}): {parts}.", "no"
    return (
        f"Not shown to differ, not shown to represent: {parts}, but {n} prompts are too few to be sure.{_blind(found)}",
        "unsure",
    )


def _parts(found: _Set, missing: pl.DataFrame) -> str:
    """Return what is wrong or right, in the order fidelity, coverage, mix."""
    n, foreign = found.n, found.n_foreign or 0
    assert found.joint is not None
    by_chance = f"chance alone: {ALPHA * n:.1f}"
    odd = 1.0 - inference.binomial_at_most(foreign - 1, n, ALPHA) if foreign else 1.0
    if odd < ALPHA:
        out = [f"{foreign} of {n} prompts {'does' if foreign == 1 else 'do'} not belong ({by_chance})"]
    elif found.joint.family["fidelity"] < ALPHA and found.joint.overall < ALPHA:
        out = [f"the prompts as a whole are odder than those of the mix ({foreign} of {n} below 5 %, {by_chance})"]
    elif foreign > 2 * ALPHA * n:
        out = [f"{foreign} of {n} prompts look foreign, no more than chance may make ({by_chance})"]
    elif found.intervals["fidelity"][0] >= FAITHFUL:
        out = [f"the prompts belong ({foreign} of {n} look foreign, {by_chance})"]
    else:
        out = [f"no sign of foreign prompts ({foreign} of {n} look foreign, {by_chance})"]
    low, high = found.intervals.get("coverage", (math.nan, math.nan))
    if high < 0.9:
        out.append(f"they reach {found.coverage:.0%} of what a random draw reaches")
    elif low >= 0.9:
        out.append(f"they reach as much of the mix as a random draw ({found.coverage:.2f})")
    elif math.isfinite(high):
        out.append(
            f"they may reach as much of the mix as a random draw ({found.coverage:.2f}, {low:.2f} to {high:.2f})"
        )
    if found.joint.family["mix"] < ALPHA:
        text = "the proportions are off"
        if len(missing):
            first = missing.row(0, named=True)
            text += (
                f" (most missing: {first['name']}, {first['reference_share']:.0%} of the mix, "
                f"{first['candidate_share']:.0%} here)"
            )
        out.append(text)
    else:
        out.append("the proportions are within chance")
    return "; ".join(out)


def _blind(found: _Set) -> str:
    """Return what a set of this size mostly misses, as a sentence."""
    rows = [r for r in found.power if r["n"] == found.n and r["power"] is not None and r["power"] < 0.8]
    if not rows:
        return ""
    listed = ", ".join(f"{r['change']} ({r['power']:.0%} found)" for r in rows)
    enough = inference.sample_size(found.power, rows[0]["change"])
    advice = f"; {enough} would find {rows[0]['change']}" if enough and enough > found.n else ""
    return f" A set of {found.n} mostly misses: {listed}{advice}."


def _advice(found: _Set) -> str | None:
    """Return whether more prompts like these would make the verdict a yes, and about how many."""
    if found.equivalence is None or "fidelity" not in found.intervals:
        return None
    margin = f"{found.margin:.2f}" if round(found.margin, 2) == found.margin else f"{found.margin:g}"
    within = f"within {margin} of the mix"
    needed, excess, fidelity = found.equivalence["n_needed"], found.intervals["excess"], found.intervals["fidelity"]
    if excess[1] <= found.margin and fidelity[0] >= FAITHFUL:
        return f"{found.n} prompts are enough to call this set {within}"
    if excess[0] > found.margin:
        return f"more prompts like these will not bring the set {within}: its excess is above {margin}"
    if fidelity[1] < FAITHFUL:  # the distance may be within the margin already
        return "more prompts like these will not represent the mix: too many of them do not belong"
    if needed is None:
        return f"whether more prompts like these would bring the set {within} is open: it lies near that bound"
    return f"to call this set {within} takes about {max(needed, found.n + 1):,} prompts like these"


# ------------------------------------------------------------------------------------------------------ small parts


def _by_chance(chance: Chance | None) -> dict[str, float]:
    """Return what random draws of the mix of the same size get on average, by the name of the value."""
    if chance is None:
        return {}
    return {
        "fidelity": float(np.minimum(1.0, chance.belong / (1.0 - ALPHA)).mean()),
        "coverage": 1.0,  # by construction: coverage is relative to chance
        "mix_overlap": float(chance.mix_overlap.mean()),
        "domain_overlap": float(chance.domain_overlap.mean()),
    }


def _two_digits(value: float) -> int:
    """Return a number rounded up to two digits: 163 is 170."""
    step = int(10 ** max(0, len(str(math.ceil(value))) - 2))
    return math.ceil(value / step) * step


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """Return a JSON value: tuples as lists, floats rounded, NaN refused by becoming None."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
