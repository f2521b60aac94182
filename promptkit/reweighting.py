"""Results measured on any prompts -> what they say of the mix: an estimate with its interval, or a refusal.

    results file + prompts  -> joined: a number (or tokens and steps) per prompt; every row joined or unmatched(reason)
    prompts + Reference     -> weights (`balance`): what each prompt stands for in the mix
    both                    -> mean over the mix, per domain; of two runs their difference, prompt by prompt

Acceptance length has two definitions, and a result names its own. *Ratio of sums*: all tokens over all
verification steps, what a server counts; a long answer counts for more. *Mean of requests*: the mean over prompts of
each one's own. `tokens` include the bonus token of each step, so that nothing accepted gives 1. With weights w per
prompt: sum w t / sum w s, and sum w a. Why this estimator, how good it is and when it lies: `docs/reweight.md`.

Refused (`refused`, and no weighted value): prompts that leave more than a fifth of the mix without a prompt in the same
cluster and one in the same domain, fewer than 10 prompts, or weights that leave fewer than 5 effective ones.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit import balance as balancing
from promptkit.balance import Balance, Estimate, Side, linearised, plain
from promptkit.conversation import Prompt, opening, prompt_id
from promptkit.errors import InputError, UsageError
from promptkit.inference import holm
from promptkit.results import LENGTHS, NO_ROW, WITH_BONUS, Result, Results, need_metric, read_results
from promptkit.visible import one_line

if TYPE_CHECKING:
    from promptkit.inference import Floats
    from promptkit.reference import Reference

LEAST_COVERED = 0.80  # share of the mix that prompts must reach
LEAST_PROMPTS, LEAST_EFFECTIVE = 10, 5.0
LEAST_IN_DOMAIN = 3  # prompts of a domain below which no interval is given
MOST_PROMPTS = 5000
LEVEL, POWER = 1.959964, 0.841621  # normal quantiles of a two-sided 5 % test and of a power of 80 %
RATIO, MEAN = "ratio of sums", "mean of requests"
BONUS, UNKNOWN = "bonus token counted", "as the results report it"
# Ratios of two metrics that rows hold: name -> numerator, denominator, convention
RATIOS = {"acceptance_length": ("tokens", "steps"), "tokens_per_chunk": ("tokens_after_first", "chunks")}
WANTED = ("accept", "ttft", "first_token", "latency", "tpot", "throughput")
PROMPT_ID = re.compile("[0-9a-f]{32}")
SMALLER_IS_BETTER = (
    "latency",
    "ttft",
    "tpot",
    "itl",
    "time",
    "duration",
    "wait",
    "delay",
    "cross_entropy",
    "perplexity",
)


@dataclass(frozen=True)
class Reweighted:
    """What results say of a mix. Attributes are the keys of `reweight --json`.

    metric : `column` and `kind`: "acceptance_length, ratio of sums";  convention : whether the bonus token counts, None
    for others;  unweighted, weighted : `mean, low, high` (95 %; None where refused);  domains : per domain `domain,
    mix_share, n, weight, mean, low, high` and, with a baseline, `difference`, `p_value` (Holm) and `better`;
    joined : how rows became prompts, and what became of each row;  missing : strata of the mix without a prompt;
    difference : None, or results less baseline over the mix, with the number of prompts that such a difference needs.
    """

    metric: str
    column: str
    kind: str
    convention: str | None
    n: int
    effective_n: float | None
    covered_share: float
    unweighted: dict[str, float | None]
    weighted: dict[str, float | None]
    domains: list[dict[str, Any]]
    refused: bool
    reason: str | None
    missing: list[dict[str, Any]]
    joined: dict[str, Any]
    difference: dict[str, Any] | None
    weight: str
    reference: dict[str, Any]
    seed: int
    promptkit_version: str
    weights: dict[str, float] = field(repr=False, default_factory=dict)  # prompt id -> weight, summing to one

    def to_json(self) -> dict[str, Any]:
        """Return what `reweight --json` prints."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "weights"}


def reweight(
    results: str | Path | Sequence[Mapping[str, Any]],
    *,
    pack: Any,
    against: Reference | str | Path,
    metric: str | None = None,
    baseline: str | Path | Sequence[Mapping[str, Any]] | None = None,
    ids: str | Path | None = None,
    weight: str | None = None,
    seed: int = 0,
) -> Reweighted:
    """Return what per-prompt results say of a mix.

    Parameters
    ----------
    results : path of a harness's results per request (see `results.py`), or mappings with an id and numbers.
    pack : the prompts that were sent: a pack, its path or name, or whatever `score` takes.
    against : the mix: a reference or the path of one.
    metric : name of a metric of the rows; None: acceptance length.
    baseline : results of another run of the same prompts; the two are compared prompt by prompt.
    ids : the `ids.jsonl` of an export, for harnesses that report numbers instead of prompt ids.
    weight : what the mix counts by, "rows" or "tokens"; None: what the reference was fitted for.

    Raises
    ------
    UsageError : for an unknown metric.
    InputError : where rows and prompts cannot be joined. A mix that the prompts do not cover is no error: `refused` is
        true and `reason` says why.
    """
    from threadpoolctl import threadpool_limits

    from promptkit.reference import load_reference
    from promptkit.scoring import as_prompts

    prompts = list(pack) if hasattr(pack, "manifest") else as_prompts(_pack_path(pack))
    reference = load_reference(against) if isinstance(against, str | Path) else against
    runs = [read_results(r) for r in (results, baseline) if r is not None]
    names = _read_ids(ids) if ids is not None else {}
    chosen = [_choose(run, metric) for run in runs]
    joins = [join(_with_metric(run, which), prompts, names) for run, which in zip(runs, chosen, strict=True)]
    columns = [_column(found, which) for found, which in zip(joins, chosen, strict=True)]
    used = sorted(set.intersection(*({*column} for column in columns)))
    if not used:
        raise InputError(
            f"no prompt has a value of {chosen[0].metric}" + (" in both runs" if baseline is not None else ""),
            hint="check that results and prompts belong together; --metric names another column",
        )
    if len(used) > MOST_PROMPTS:
        raise UsageError(
            f"{len(used)} prompts with results, at most {MOST_PROMPTS}", hint="give the results of a part of them"
        )
    for found, column, which in zip(joins, columns, chosen, strict=True):
        if which.convention == BONUS and which.kind == RATIO and np.subtract(*np.sum([*column.values()], axis=0)) < 0:
            found.notes.append("fewer tokens than steps: the tokens do not hold the bonus token of each step")
    with threadpool_limits(1):  # sums of BLAS differ in the last bit with the number of threads
        return _reweight(
            [prompts[i] for i in used],
            [np.array([column[i] for i in used], dtype=np.float64) for column in columns],
            chosen, joins, reference, weight or reference.weight, seed,
        )  # fmt: skip


def _reweight(
    prompts: list[Prompt], values: list[Floats], chosen: list[Choice], joins: list[Join], reference: Reference,
    weight: str, seed: int,
) -> Reweighted:  # fmt: skip
    from promptkit import __version__

    mine, mix, unseen, names = _sides(prompts, reference, weight)
    found = balancing.balance(mine, mix, unseen=unseen, seed=seed)
    effective = found.effective_n
    reason = _refusal(len(prompts), effective, found.covered_share)
    value = values[0]
    unweighted = plain(_per_prompt(value, np.ones(len(value))))
    weighted = balancing.estimate(found, _per_prompt(value, found.weights), seed=seed)
    pair = values if len(values) == 2 else None
    return Reweighted(
        metric=f"{chosen[0].metric}, {chosen[0].kind}",
        column=chosen[0].metric,
        kind=chosen[0].kind,
        convention=chosen[0].convention,
        n=len(prompts),
        effective_n=round(effective, 2),
        covered_share=round(found.covered_share, 6),
        unweighted=unweighted.to_json(),
        weighted=_NOTHING if reason else weighted.to_json(),
        domains=_domain_table(value, pair, found, mine, mix, names, chosen[0].metric),
        refused=reason is not None,
        reason=reason,
        missing=_missing(mine, mix, names, reference),
        joined=_account(joins),
        difference=_difference(pair, found, refused=reason is not None, seed=seed) if pair else None,
        weight=weight,
        reference={"path": reference.path, "fingerprint": reference.fingerprint},
        seed=seed,
        promptkit_version=__version__,
        weights={p.id: float(w) for p, w in zip(prompts, found.weights, strict=True)},
    )


_NOTHING: dict[str, float | None] = {"mean": None, "low": None, "high": None}


def _pack_path(pack: Any) -> Any:
    """Return a pack's prompts for a name or path of one; anything else as it is."""
    if isinstance(pack, str | Path) and not Path(pack).is_file():
        from promptkit.pack import load_pack

        return list(load_pack(pack))
    return pack


# ------------------------------------------------------------------------------------------------------ the join


@dataclass(frozen=True)
class Join:
    """Rows of a run by prompt, how they were joined, and why the others were not."""

    by: str
    rows: int
    of_prompt: dict[int, list[Result]]
    unmatched: list[tuple[str, str]]  # place, reason
    notes: list[str]


def join(run: Results, prompts: Sequence[Prompt], names: Mapping[str, str] | None = None) -> Join:
    """Return the rows of a run by index of their prompt: by id, else by the text that was sent, else by order.

    `names` maps what a harness reports to prompt ids. One way is taken for the whole file: the first that finds a
    prompt for any row. Order counts only when there are as many rows as prompts. Failed requests are never joined.
    """
    at = {p.id: i for i, p in enumerate(prompts)}
    sent: dict[str, int] = {}
    for i, p in enumerate(prompts):
        sent.setdefault(prompt_id(p.messages, p.tools), i)
        sent.setdefault(prompt_id(p.messages), i)
    names = names or {}
    # Ids that look like those of prompts and are of none here: results of another pack, whatever their number.
    foreign = any(PROMPT_ID.fullmatch(i) for row in run.rows for i in row.ids)

    def by_id(row: Result) -> int | None:
        return next((at[i] for i in row.ids if i in at), None)

    def by_map(row: Result) -> int | None:
        reported = row.ids or (str(row.index),)
        return next((at[names[i]] for i in reported if names.get(i) in at), None)

    def by_text(row: Result) -> int | None:
        return sent.get(row.content) if row.content else None

    def by_order(row: Result) -> int | None:
        return row.index if len(run.rows) == len(prompts) and not foreign else None

    ways = (("id", by_id), ("ids map", by_map), ("text", by_text), ("row order", by_order))
    by, find = next(((by, f) for by, f in ways if any(f(r) is not None for r in run.rows)), ("nothing", by_id))
    of_prompt: dict[int, list[Result]] = {}
    unmatched = []
    for row in run.rows:
        at_prompt = find(row)
        if row.error is not None:
            ours = row.error.startswith("no value of") or row.error == NO_ROW
            unmatched.append((row.place, row.error if ours else "failed request"))
        elif at_prompt is None:
            known = row.ids or row.content
            unmatched.append(
                (row.place, "no prompt of that " + (by if by != "ids map" else "id") if known else "no id")
            )
        else:
            of_prompt.setdefault(at_prompt, []).append(row)
    notes = list(run.notes)
    if by == "row order":
        why = "their own ids name no prompt" if any(row.ids for row in run.rows) else "nothing else names them"
        notes.append(f"{len(run.rows)} rows were taken to be the {len(prompts)} prompts in order: {why}")
    if not of_prompt and by != "nothing":
        (reason, _), *_ = Counter(reason for _, reason in unmatched).most_common()
        raise InputError(
            f"{run.harness} results, {len(run.rows)} rows: {reason}",
            hint="check the run; --metric names another column",
        )
    if not of_prompt:
        ways_tried = "id, text" + (", ids map" if names else "") + " and order"
        raise InputError(
            f"none of {len(run.rows)} rows ({run.harness}) could be joined to {len(prompts)} prompts by {ways_tried}"
            + (f"; the first row has id {run.rows[0].ids[0]!r}" if run.rows[0].ids else ""),
            hint="give the pack that was sent, and --ids the ids.jsonl of its export",
        )
    return Join(by, len(run.rows), of_prompt, unmatched, notes)


def _read_ids(path: str | Path) -> dict[str, str]:
    names = {}
    try:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            if line.strip():
                row = json.loads(line)
                names[str(row["reported"])] = str(row["id"])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", hint="give the ids.jsonl beside an export") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path}: not an ids.jsonl of an export", hint='rows are {"id": ..., "reported": ...}'
        ) from None
    return names


def _account(joins: Sequence[Join]) -> dict[str, Any]:
    """Return what became of the rows of the results, and of the baseline's below its own key."""

    def of(found: Join) -> dict[str, Any]:
        joined = sum(map(len, found.of_prompt.values()))
        assert joined + len(found.unmatched) == found.rows
        return {
            "by": found.by, "rows": found.rows, "joined": joined, "unmatched": len(found.unmatched),
            "reasons": dict(sorted(Counter(reason for _, reason in found.unmatched).items())),
            "rows_unmatched": [{"row": place, "reason": reason} for place, reason in found.unmatched],
            "prompts": len(found.of_prompt), "notes": found.notes,
        }  # fmt: skip

    return of(joins[0]) | ({"baseline": of(joins[1])} if len(joins) > 1 else {})


# ----------------------------------------------------------------------------------------------------- the metric


@dataclass(frozen=True)
class Choice:
    """What is averaged: the metric's name, how, and for an acceptance length what it counts."""

    metric: str
    kind: str
    convention: str | None
    columns: tuple[str, ...]


def _choose(run: Results, metric: str | None) -> Choice:
    known = {*run.metrics()}
    for name, columns in RATIOS.items():
        if metric in (None, name) and {*columns} <= known and (metric or name == "acceptance_length"):
            return Choice(name, RATIO, BONUS if name == "acceptance_length" else None, columns)
    if metric is None:
        metric = next((name for name in LENGTHS if name in known), None)
        if metric is None:
            # what a benchmark is run for comes first; names are the file's, and stay on the line
            known_first = sorted(run.metrics(), key=lambda name: not any(w in name.lower() for w in WANTED))
            more = f" and {len(known_first) - 12} more" if len(known_first) > 12 else ""
            some = ", ".join(one_line(name, 40) for name in known_first[:12]) + more
            chunks = "; tokens_per_chunk estimates acceptance from streamed chunks" if "chunks" in known else ""
            raise UsageError(
                f"{run.harness} results hold no acceptance length, and no tokens with steps",
                hint=f"name a column with --metric: {some}{chunks}",
            )
    need_metric(run, metric)
    convention = BONUS if metric in WITH_BONUS else UNKNOWN if metric in LENGTHS else None
    return Choice(metric, MEAN, convention, (metric,))


def _column(found: Join, which: Choice) -> dict[int, list[float]]:
    """Return, per prompt, the metric (several rows: their mean) or numerator and denominator (their sums)."""
    out = {}
    for i, rows in found.of_prompt.items():
        have = [[r.metrics[c] for c in which.columns] for r in rows]
        out[i] = (np.sum if which.kind == RATIO else np.mean)(have, axis=0).tolist()
    return out


def _with_metric(run: Results, which: Choice) -> Results:
    """Return the run with rows that lack the metric marked as such, so that the join gives them their reason."""
    none = f"no value of {which.metric}"

    def marked(row: Result) -> Result:
        if row.error is not None:
            return row
        if not all(c in row.metrics for c in which.columns):
            return replace(row, error=none)
        return row if _can_be(row, which) else replace(row, error=f"{none} that can be")

    rows = [marked(r) for r in run.rows]
    return Results(run.harness, rows, run.notes)


def _can_be(row: Result, which: Choice) -> bool:
    """Return False for what no run measures: a ratio over no steps, a number of tokens or a length below nothing."""
    if which.kind == RATIO:
        top, bottom = (row.metrics[c] for c in which.columns)
        return top >= 0 and bottom > 0
    return which.metric not in LENGTHS or row.metrics[which.metric] >= 0


def _per_prompt(values: Floats, weights: Floats) -> Floats:
    """Return a number per prompt whose weighted mean is the metric: the value itself, or the ratio linearised."""
    if values.shape[1] == 1:
        return values[:, 0]
    return linearised(values[:, 0], values[:, 1], weights)[1]


# ------------------------------------------------------------------------------------------------------ the mix


def _sides(
    prompts: list[Prompt], reference: Reference, weight: str
) -> tuple[Side, Side, np.ndarray[Any, np.dtype[np.bool_]], list[str]]:
    """Return clusters, domains and vectors of prompts and mix; domains as `score` compares them."""
    from promptkit import domains

    sample = reference.sample
    if weight not in ("rows", "tokens"):
        raise UsageError(f"weight {weight!r} is unknown", hint="known: rows, tokens")
    weights = np.ones(len(sample))
    if weight == "tokens":
        weights = sample["n_supervised_tokens"].fill_null(0).to_numpy().astype(np.float64)
        if not weights.sum():
            raise InputError("no row of the mix has supervised tokens to weigh it by", hint='use weight="rows"')
    texts = [opening(p.messages) for p in prompts]
    X = np.asarray(reference.embed(texts, ids=reference.tokenizer.encode_batch(texts)), dtype=np.float64)
    theirs = sample["domain"].to_list()
    names = sorted({*theirs})
    labels = domains.label(
        texts, messages=[p.messages for p in prompts], tools=[p.tools for p in prompts], spoken=False
    )
    known = {*names, *domains.DOMAINS}
    own = [p.domain if p.domain and p.domain in known else x.domain for p, x in zip(prompts, labels, strict=True)]
    names = [*names, *sorted({*own} - {*names})]
    code = {d: i for i, d in enumerate(names)}
    view = reference.prompts
    unseen = np.zeros(len(sample), dtype=bool)
    unseen[np.asarray(view.rows[view.fold == 0], dtype=np.int64)] = True
    mine = Side(reference.assign(X.astype(np.float32)), np.array([code[d] for d in own], dtype=np.int64), X,
                np.full(len(prompts), 1.0 / len(prompts)))  # fmt: skip
    mix = Side(sample["cluster"].to_numpy().astype(np.int64), np.array([code[d] for d in theirs], dtype=np.int64),
               np.asarray(reference.X), weights)  # fmt: skip
    return mine, mix, unseen, names


def _refusal(n: int, effective: float, covered: float) -> str | None:
    if n < LEAST_PROMPTS:
        return f"{n} prompt{'' if n == 1 else 's'} with a result, at least {LEAST_PROMPTS} are needed"
    if covered < LEAST_COVERED:
        return (
            f"the prompts reach {100 * covered:.0f} % of the mix, at least {100 * LEAST_COVERED:.0f} % is needed: "
            "the rest lies in clusters or domains without a prompt"
        )
    if effective < LEAST_EFFECTIVE:
        return f"the weights leave {effective:.1f} effective prompts, at least {LEAST_EFFECTIVE:g} are needed"
    return None


def _missing(mine: Side, mix: Side, names: list[str], reference: Reference) -> list[dict[str, Any]]:
    """Return the clusters and domains of the mix without a prompt, the largest first."""
    share = mix.weights / mix.weights.sum()
    of_cluster = {int(r["cluster"]): str(r["name"]) for r in reference.clusters.iter_rows(named=True)}
    out = []
    for kind, own, theirs, called in (
        ("cluster", mine.clusters, mix.clusters, of_cluster),
        ("domain", mine.domains, mix.domains, dict(enumerate(names))),
    ):
        for code in sorted({*theirs.tolist()} - {*own.tolist()}):
            out.append({"kind": kind, "name": called[code], "share": round(float(share[theirs == code].sum()), 6)})
    return sorted(out, key=lambda r: (-r["share"], r["kind"], r["name"]))


# ------------------------------------------------------------------------------------- by domain, and two runs


def _domain_table(
    values: Floats, pair: list[Floats] | None, found: Balance, mine: Side, mix: Side, names: list[str], metric: str
) -> list[dict[str, Any]]:
    """Return one row per domain of the mix or of the prompts; prompts of a domain keep their weights within it."""
    share = np.bincount(mix.domains, mix.weights / mix.weights.sum(), minlength=len(names))
    rows: list[dict[str, Any]] = []
    for code, name in enumerate(names):
        at = np.flatnonzero(mine.domains == code)
        if not len(at) and not share[code]:
            continue
        w = found.weights[at] if found.weights[at].sum() > 0 else np.ones(len(at))
        row: dict[str, Any] = {
            "domain": name, "mix_share": round(float(share[code]), 6), "n": len(at),
            "weight": round(float(found.weights[at].sum()), 6), **_NOTHING,
        }  # fmt: skip
        if len(at):
            row |= plain(_per_prompt(values[at], w), w).to_json()
            if len(at) < LEAST_IN_DOMAIN:
                row |= {"low": None, "high": None}
        if pair and len(at):
            row["difference"], p = _paired(pair, at, w)
            row["p_value"] = p
        elif pair:
            row |= {"difference": dict(_NOTHING), "p_value": None}
        rows.append(row)
    rows.sort(key=lambda r: (-r["mix_share"], -r["n"], r["domain"]))
    if pair:
        _name_winners(rows, metric)
    return rows


def _paired(pair: list[Floats], at: Any, w: Floats) -> tuple[dict[str, float | None], float | None]:
    """Return results less baseline over some prompts, with interval and the p-value of no difference."""
    from scipy.stats import t

    d = plain(_per_prompt(pair[0][at], w) - _per_prompt(pair[1][at], w), w)
    if len(at) < LEAST_IN_DOMAIN or not math.isfinite(d.stderr):
        return d.to_json() | {"low": None, "high": None}, None
    if d.stderr == 0:
        return d.to_json(), 1.0 if d.mean == 0 else 0.0
    effective = float(w.sum()) ** 2 / float(w @ w)
    return d.to_json(), float(2 * t.sf(abs(d.mean) / d.stderr, effective - 1))


def _name_winners(rows: list[dict[str, Any]], metric: str) -> None:
    """Set `better` where a domain's difference holds after Holm's correction over domains; else "undecided"."""
    tested = [r for r in rows if r["p_value"] is not None]
    adjusted = holm([r["p_value"] for r in tested]).tolist() if tested else []
    for row in rows:
        row["better"] = "undecided"
    for row, p in zip(tested, adjusted, strict=True):
        row["p_value"] = round(float(p), 6)
        if p < 0.05 and row["difference"]["mean"]:
            row["better"] = "results" if (row["difference"]["mean"] > 0) != _smaller(metric) else "baseline"


def _smaller(metric: str) -> bool:
    return any(part in metric.lower() for part in SMALLER_IS_BETTER)


def _difference(pair: list[Floats], found: Balance, *, refused: bool, seed: int) -> dict[str, Any]:
    """Return results less baseline over the mix and over the prompts as they are, and what such a number can see.

    n_needed : prompts of this kind and weights that find the difference in 80 % of runs, at 5 %, paired; unpaired: the
    same for two sets that share no prompt. smallest_seen : the difference that these prompts find in 80 %.
    """
    w, n = found.weights, len(found.weights)
    sides = [_per_prompt(v, w) for v in pair]
    over: Estimate = balancing.estimate(found, sides[0] - sides[1], seed=seed)
    as_is = plain(_per_prompt(pair[0], np.ones(n)) - _per_prompt(pair[1], np.ones(n)))
    base = float(w @ sides[1])
    apart = [balancing.estimate(found, s, seed=seed).stderr for s in sides]

    def needed(stderr: float) -> int | None:
        if refused or not over.mean or not math.isfinite(stderr):
            return None
        return max(2, math.ceil(n * ((LEVEL + POWER) * stderr / over.mean) ** 2))

    return {
        "unweighted": as_is.to_json(),
        "weighted": dict(_NOTHING) if refused else over.to_json(),
        "baseline": None if refused else round(base, 6),
        "ratio": None if refused or not base else round(float(w @ sides[0]) / base, 6),
        "n_needed": needed(over.stderr),
        "n_needed_unpaired": needed(math.hypot(*apart)),
        "smallest_seen": None if refused or not math.isfinite(over.stderr) else round((LEVEL + POWER) * over.stderr, 6),
    }
