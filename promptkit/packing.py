"""From a fitted mix to the rows of a pack: what is eligible, what is chosen, what is known about each.

    Reference -> eligible rows -> select (quotas, MMD, lengths) -> score each -> canonical rows
    or files of prompts (`pool`)

A pack drawn from the mix is what the drafter was trained on: it represents the mix best and flatters the drafter, so
its rows are marked `in_training`, and so is a row of a pool that the sample holds or nearly holds. Rows that are held
out of the next training run are not. Prompts that hold a secret or personal data are not eligible unless asked for.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit.collect import Progress
from promptkit.conversation import Message, Prompt, opening, prompt_id
from promptkit.errors import InputError, UsageError
from promptkit.licences import of_source
from promptkit.requests import Request, request

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from promptkit.labellers import Labeller
    from promptkit.reference import Reference

LENGTH_WEIGHT = 0.1  # of length, turns and tools beside the kernel features: enough to break ties, too little to lead


@dataclass(frozen=True, slots=True)
class Eligible:
    """One prompt that may enter a pack: all but its texts, which `_Offer` has of those that are chosen."""

    id: str
    domain: str
    unsure: bool
    language: str
    n_prompt_tokens: int
    expected_output_tokens: int | None
    n_turns: int
    has_tools: bool
    row: int  # of the reference's sample, of the rows held out, or of the pool's prompts
    group: int  # near-duplicates share it
    kinds: tuple[str, ...] = ()  # of secrets and personal data
    shard: str | None = None
    shard_row: int | None = None
    source: str | None = None
    licence: str = "NOASSERTION"


@dataclass(frozen=True)
class _Offer:
    """What may be drawn, and what gives the openings (which are compared) and the prompts of some of it.

    Of 20,000 rows 200 are chosen: the messages of the others are read once, counted, and not kept.
    """

    rows: list[Eligible]
    texts: Callable[[Sequence[Eligible]], list[str]]
    prompts: Callable[[Sequence[Eligible]], list[Prompt]]


@dataclass(frozen=True)
class Drawn:
    """The rows of a pack and the pack's Score; remarks; what was flagged; rows that may not be shared."""

    rows: list[dict[str, Any]]
    score: Any
    notes: list[str]
    personal_data: dict[str, Any]  # looked_at, flagged, found (kind -> prompts), kept
    withheld: list[dict[str, Any]]  # with `redistributable`: chosen, and left out for their licence


def pack_rows(
    reference: Reference,
    *,
    pool: Sequence[Any] = (),
    held: pl.DataFrame | None = None,
    size: int,
    seed: int = 0,
    turns: str | None = None,
    max_leak: float | None = None,
    keep_personal_data: bool = False,
    licences: Mapping[str, str] | None = None,
    redistributable: bool = False,
    label: Labeller | None = None,
    by_source: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Drawn:
    """Choose `size` prompts that represent the mix, from the mix itself, or from `pool`, or from rows `held` out of it.

    `held` is a frame as `frames.frame_of` makes it. `licences` maps a source to the SPDX expression of its rows. With
    `redistributable`, chosen rows that may not be shared on are taken out again. `label` and `by_source` are those that
    the reference was fitted with.

    Domain quotas follow the mix's shares; within them the kernel distance (MMD) to the whole sample is minimised, with
    lengths, turns and tools at small weight. Raises InputError if nothing is eligible.
    """
    from promptkit import domains, scoring, workers
    from promptkit import licences as licensing

    notes: list[str] = []
    known = licences or {}
    check_pool(pool, max_leak, holdout=held is not None)
    if progress:
        progress("scan", 0, None)
    if held is not None:
        held = _labelled(held, label, by_source)
        offer = _unseen(reference, _from_mix(reference, held, turns, known, notes), max_leak, notes)
    elif pool:
        offer = _from_pool(reference, pool, turns, max_leak, known, notes, label, by_source)
    else:
        offer = _from_mix(reference, None, turns, known, notes)
    eligible, personal_data = _clean(offer.rows, keep_personal_data, notes)
    offer = replace(offer, rows=eligible)
    of_mix = held is None and not pool
    workers.trim()
    if not eligible:
        raise InputError("no prompt is eligible for the pack", hint="; ".join(notes) or "check the training directory")
    chosen = _choose(reference, offer, of_mix=of_mix, size=size, seed=seed, notes=notes, progress=progress)
    if not chosen:
        raise InputError(
            f"no prompt to choose: none of {len(eligible)} is of a domain that {size} prompts of this mix would hold",
            hint="; ".join([*notes, "give a larger --size, or a --pool that holds these domains"]),
        )
    if len(chosen) < size:
        notes.append(f"asked for {size} prompts, {len(chosen)} distinct ones were eligible")
    workers.trim()  # the kernels of the choice
    if progress:
        progress("score", 0, len(chosen))
    prompts = offer.prompts(chosen)
    score = scoring.score(prompts, reference, seed=seed)
    reference.kept.clear()  # its draws: 60 MB
    labels = domains.label(
        offer.texts(chosen), messages=[p.messages for p in prompts], tools=[p.tools for p in prompts]
    )
    templated = _templated(reference, prompts)
    seen = score.prompts.to_dicts()
    # A held row is not in the next training set, whatever it shares with rows that are; a pool's may be there.
    trained = [held is None and (not pool or bool(s["leaked"])) for s in seen]
    rows = [
        _row(e, prompts[i], seen[i], tags=labels[i].tags, n_templated=templated[i], in_training=trained[i])
        for i, e in enumerate(chosen)
    ]
    withheld: list[dict[str, Any]] = []
    if redistributable:
        share = [licensing.shareable(r["licence"]) for r in rows]
        withheld = [r for r, ok in zip(rows, share, strict=True) if not ok]
        rows = [r for r, ok in zip(rows, share, strict=True) if ok]
        if not rows:
            found = ", ".join(sorted({r["licence"] for r in withheld}))
            source = next((r["source"] for r in withheld if r["source"]), "SOURCE")
            raise InputError(
                f"no prompt of the pack may be shared on: licences are {found}",
                hint=f"state what you know with --licence SOURCE=SPDX, for example --licence {source}=Apache-2.0",
            )
        if withheld:
            score = scoring.score([p for p, ok in zip(prompts, share, strict=True) if ok], reference, seed=seed)
            notes.append(f"{len(withheld)} chosen prompts may not be shared on (licence) and are withheld")
    return Drawn(rows, score, notes, personal_data, withheld)


def check_pool(pool: Sequence[Any], max_leak: float | None, *, holdout: bool = False) -> None:
    """Raise UsageError where a file of the pool is missing, or options contradict each other; before any long work."""
    if pool and holdout:
        raise UsageError(
            "a pool and a holdout were given: a pack is drawn from one of them",
            hint="leave --pool or --holdout out; they make two packs",
        )
    if max_leak is not None and not 0 <= max_leak <= 1:  # nor NaN, which no share exceeds
        raise UsageError(f"max_leak is {max_leak}", hint="give a share of n-grams from 0 to 1")
    if max_leak is not None and not pool and not holdout:
        raise UsageError(
            "max_leak was given for a pack drawn from the mix itself, whose every row is in training",
            hint="give files of other prompts with --pool, hold rows out with --holdout, or leave --max-leak out",
        )
    for path in pool:
        if isinstance(path, (str, os.PathLike)) and str(path) != "-" and not os.path.exists(path):
            raise UsageError(f"pool {path}: no such file", hint="check the path given with --pool")


# ---------------------------------------------------------------------------------------------------- eligible


def _clean(eligible: list[Eligible], keep: bool, notes: list[str]) -> tuple[list[Eligible], dict[str, Any]]:
    """Leave out prompts that seem to hold a secret or personal data, unless `keep`; count them by kind."""
    found = Counter(kind for e in eligible for kind in e.kinds)
    n = sum(bool(e.kinds) for e in eligible)
    counts = {"looked_at": len(eligible), "flagged": n, "found": dict(sorted(found.items())), "kept": keep}
    if n:
        listed = ", ".join(f"{kind} {c}" for kind, c in sorted(found.items()))
        told = "may be drawn" if keep else "are left out"
        notes.append(f"{n} of {len(eligible)} prompts seem to hold secrets or personal data ({listed}) and {told}")
    return [e for e in eligible if keep or not e.kinds], counts


def _unseen(reference: Reference, offer: _Offer, max_leak: float | None, notes: list[str]) -> _Offer:
    """Say how many held rows share much with rows that stay in training; with a limit, leave out those beyond it."""
    from promptkit import leakage

    least = leakage.MIN_SHARE if max_leak is None else 0.0
    eligible = offer.rows
    leaked = leakage.leaks(offer.texts(eligible), reference.words, min_share=least)
    if max_leak is None:
        if n := sum(leak is not None for leak in leaked):
            notes.append(
                f"{n} of {len(eligible)} held-out prompts share {leakage.MIN_SHARE:.0%} or more of their n-grams with "
                f"rows that stay in training; --max-leak {leakage.MIN_SHARE:g} drops them"
            )
        return offer
    kept = [e for e, leak in zip(eligible, leaked, strict=True) if leak is None or leak["share"] <= max_leak]
    if len(kept) < len(eligible):
        notes.append(
            f"{len(eligible) - len(kept)} held-out prompts share more than {max_leak:g} of their n-grams with training"
        )
    return replace(offer, rows=kept)


def _from_mix(
    reference: Reference, held: pl.DataFrame | None, turns: str | None, licences: Mapping[str, str], notes: list[str]
) -> _Offer:
    """Return what may be sent of the reference's own sample, or of rows held out of it."""
    from promptkit import personal

    def frame() -> pl.DataFrame:
        return reference.sample.hstack(reference.conversations) if held is None else held

    def prompts(chosen: Sequence[Eligible]) -> list[Prompt]:
        out = []
        for e, row in zip(chosen, frame()[[e.row for e in chosen]].iter_rows(named=True), strict=True):
            wanted, tools = _request(row, turns)
            assert wanted is not None  # as when it was counted
            out.append(
                Prompt(
                    id=e.id, messages=wanted.messages, tools=tools, domain=e.domain, source=e.source,
                    expected_output_tokens=e.expected_output_tokens,
                )
            )  # fmt: skip
        return out

    def texts(chosen: Sequence[Eligible]) -> list[str]:
        found: list[str] = frame()["text"][[e.row for e in chosen]].to_list()
        return found

    out: list[Eligible] = []
    dropped: Counter[str] = Counter()
    seen: set[str] = set()
    flagged: dict[bytes, tuple[str, ...]] = {}
    for i, row in enumerate(frame().drop("text", "response_text").iter_rows(named=True)):
        wanted, tools = _request(row, turns)
        if wanted is None:
            dropped["without a whole first user turn"] += 1
            continue
        contents = [m["content"] for m in wanted.messages]
        if any("\ufffd" in content for content in contents):
            dropped["with broken characters"] += 1
            continue
        if (key := prompt_id(wanted.messages, tools)) in seen:
            dropped["equal to another"] += 1
            continue
        seen.add(key)
        answer, ids = reference.tokenizer.encode_batch([wanted.answer or "", "\n\n".join(contents)])
        out.append(
            Eligible(
                id=key,
                domain=row["domain"],
                unsure=bool(row["unsure"]),
                language=row["language"],
                n_prompt_tokens=len(ids),
                # An answer's end-of-turn token is generated too.
                expected_output_tokens=len(answer) + 1 if wanted.answer is not None else None,
                n_turns=sum(m["role"] == "user" for m in wanted.messages),
                has_tools=bool(tools),
                row=i,
                group=int(row["unit"]),
                kinds=personal.flags([personal.texts_of(wanted.messages, tools)], flagged)[0],
                shard=row["shard"],
                shard_row=int(row["row"]),
                source=row["source"],
                licence=of_source(licences, row["source"]),
            )
        )
    what = "sampled" if held is None else "held-out"
    notes += [f"{n} {what} rows {why} are not eligible for the pack" for why, n in sorted(dropped.items())]
    return _Offer(out, texts, prompts)


def _request(row: Mapping[str, Any], turns: str | None) -> tuple[Request | None, list[Any] | None]:
    """Return what to send of a row of the mix, None where nothing can be, and its tools."""
    wanted = request(
        json.loads(row["messages"]), tools=bool(row["has_tools"]), truncated=bool(row["truncated"]),
        key=f"{row['shard']}\0{row['row']}", turns=turns,
    )  # fmt: skip
    return wanted, json.loads(row["tools"]) if row["tools"] else None


def _labelled(
    held: pl.DataFrame, label: Labeller | None = None, by_source: Mapping[str, str] | None = None
) -> pl.DataFrame:
    """Add what a reference's sample has beside a frame's columns: domain, unsure, unit (group of near-duplicates)."""
    import polars as pl

    from promptkit import labellers, leakage

    texts = held["text"].to_list()
    found = labellers.labels(
        texts,
        messages=[json.loads(m) for m in held["messages"]],
        tools=[json.loads(t) if t else None for t in held["tools"]],
        sources=held["source"].to_list(),
        label=label,
        by_source=by_source,
    )
    return held.with_columns(
        pl.Series("domain", [domain for domain, _ in found], pl.String),
        pl.Series("unsure", [unsure for _, unsure in found], pl.Boolean),
        pl.Series("unit", leakage.near_duplicate_groups(texts), pl.Int64),
    )


def _from_pool(
    reference: Reference,
    pool: Sequence[Any],
    turns: str | None,
    max_leak: float | None,
    licences: Mapping[str, str],
    notes: list[str],
    label: Labeller | None,
    by_source: Mapping[str, str] | None,
) -> _Offer:
    from promptkit import labellers, languages, leakage, personal
    from promptkit.candidates import read_candidates

    prompts: dict[str, tuple[Prompt, list[Message], str | None]] = {}
    for path in pool:
        for p in read_candidates(path):
            wanted = request(p.messages, tools=bool(p.tools), truncated=False, key=p.id, turns=turns)
            if wanted is None:
                continue
            prompts.setdefault(prompt_id(wanted.messages, p.tools), (p, wanted.messages, p.response or wanted.answer))
    entries = list(prompts.items())
    texts = [opening(m) for _, (_, m, _) in entries]
    # With a limit every share counts, also those below what is called a leak.
    least = leakage.MIN_SHARE if max_leak is None else 0.0
    leaked = leakage.leaks(texts, reference.words, min_share=least)
    if max_leak is not None:
        keep = [i for i, leak in enumerate(leaked) if leak is None or leak["share"] <= max_leak]
        if len(keep) < len(entries):
            notes.append(
                f"{len(entries) - len(keep)} pool prompts share more than {max_leak:g} of their n-grams with training"
            )
        entries, texts = [entries[i] for i in keep], [texts[i] for i in keep]
    else:
        n = sum(leak is not None for leak in leaked)
        if n:
            notes.append(
                f"{n} of {len(entries)} pool prompts are in the training sample, or nearly so, and may be drawn "
                f"(marked in_training); --max-leak {leakage.MIN_SHARE:g} drops them"
            )
    labels = labellers.labels(
        texts, messages=[m for _, (_, m, _) in entries], tools=[p.tools for _, (p, _, _) in entries],
        sources=[p.source for _, (p, _, _) in entries], label=label, by_source=by_source,
    )  # fmt: skip
    spoken = languages.detect(texts)
    groups = leakage.near_duplicate_groups(texts)
    lengths = reference.tokenizer.encode_batch(["\n\n".join(m["content"] for m in w) for _, (_, w, _) in entries])
    answers = reference.tokenizer.encode_batch([a or "" for _, (_, _, a) in entries])
    flags = personal.flags([personal.texts_of(messages, p.tools) for _, (p, messages, _) in entries])
    out, sent = [], []
    for i, (key, (p, messages, answer)) in enumerate(entries):
        own = None if p.source in (by_source or {}) else p.domain  # the user's mapping wins
        domain, unsure = (own, False) if own else labels[i]
        expected = len(answers[i]) + 1 if answer else p.expected_output_tokens
        sent.append(
            Prompt(
                id=key, messages=messages, tools=p.tools, domain=domain, source=p.source,
                expected_output_tokens=expected,
            )
        )  # fmt: skip
        out.append(
            Eligible(
                id=key,
                domain=domain,
                unsure=unsure,
                language=spoken[i],
                n_prompt_tokens=len(lengths[i]),
                expected_output_tokens=expected,
                n_turns=sum(m["role"] == "user" for m in messages),
                has_tools=bool(p.tools),
                row=i,
                group=int(groups[i]),
                kinds=flags[i],
                source=p.source,
                licence=of_source(licences, p.source, str(p.extra.get("licence") or p.extra.get("license") or "")),
            )
        )
    return _Offer(out, lambda chosen: [texts[e.row] for e in chosen], lambda chosen: [sent[e.row] for e in chosen])


# ---------------------------------------------------------------------------------------------------- choosing


def _choose(
    reference: Reference,
    offer: _Offer,
    *,
    of_mix: bool,
    size: int,
    seed: int,
    notes: list[str],
    progress: Progress | None,
) -> list[Eligible]:
    """Select under quotas; where two chosen prompts are near-duplicates in full, drop the later and choose again."""
    from promptkit import leakage, selection

    weight = reference.sample["weight"].to_numpy()
    eligible = offer.rows
    shares = {d["domain"]: float(d["share"]) for d in reference.domains.to_dicts()}
    extra, extra_target = _lengths(reference, eligible, weight, of_mix)

    def twins(chosen: NDArray[np.int64]) -> list[int]:
        """Return the chosen rows that nearly repeat an earlier one in full."""
        prompts = offer.prompts([eligible[i] for i in chosen])
        whole = ["\n\n".join(m["content"] for m in p.messages) for p in prompts]
        groups = leakage.near_duplicate_groups(whole).tolist()
        first: dict[int, int] = {}
        return [i for i, g in zip(chosen.tolist(), groups, strict=True) if first.setdefault(g, i) != i]

    if progress:
        progress("select", 0, size)
    chosen = selection.select(
        reference.X[[e.row for e in eligible]] if of_mix else reference.embed(offer.texts(eligible)), reference.X,
        weights=weight, k=size, domains=[e.domain for e in eligible], quotas=selection.quotas(shares, size),
        extra=LENGTH_WEIGHT * extra, extra_target=LENGTH_WEIGHT * extra_target,
        groups=np.array([e.group for e in eligible], np.int64), drop=twins, seed=seed,
    )  # fmt: skip
    if progress:
        progress("select", len(chosen), size)
    missing = sorted(
        d for d, s in shares.items() if s >= 1 / (2 * size) and d not in {eligible[i].domain for i in chosen}
    )
    if missing:
        notes.append("no eligible prompt of: " + ", ".join(missing))
    return [eligible[i] for i in chosen]


def _lengths(
    reference: Reference, eligible: list[Eligible], weight: NDArray[np.float64], of_mix: bool
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return log ISL, log OSL, turns and tools of each eligible prompt, and their mean over the mix, standardised."""
    sample = reference.sample
    mix = np.column_stack(
        [
            np.log1p(sample["n_prompt_tokens"].to_numpy()),
            np.log1p(sample["n_response_tokens"].to_numpy()),
            np.log1p(sample["n_turns"].to_numpy()),
            sample["has_tools"].to_numpy().astype(float),
        ]
    )
    mean = np.average(mix, axis=0, weights=weight)
    if of_mix:
        mine = mix[[e.row for e in eligible]]
    else:
        mine = np.column_stack(
            [
                np.log1p([e.n_prompt_tokens for e in eligible]),
                np.log1p([e.expected_output_tokens or np.expm1(mean[1]) for e in eligible]),
                np.log1p([e.n_turns for e in eligible]),
                np.array([e.has_tools for e in eligible], float),
            ]
        )
    spread = np.sqrt(np.average((mix - mean) ** 2, axis=0, weights=weight))
    spread[spread == 0] = 1.0
    return ((mine - mean) / spread).astype(np.float32), np.zeros(mix.shape[1])


# ---------------------------------------------------------------------------------------------------- rows


def _templated(reference: Reference, prompts: list[Prompt]) -> list[int | None]:
    """Return the length of each request under the target's chat template, None where we cannot know it exactly.

    Tool declarations are rendered by helpers of the model's own that differ between releases, so rows with tools have
    none.
    """
    from promptkit import templates

    out: list[int | None] = []
    for p in prompts:
        plain = not p.tools and not any(m["role"] == "tool" or m.get("tool_calls") for m in p.messages)
        try:
            text = templates.render(p.messages, None, reference.template or "") if plain else None
        except UsageError:  # unknown, or a template that we can read and not write
            text = None
        out.append(None if text is None else len(reference.tokenizer.encode_rendered(text)))
    return out


def _row(
    e: Eligible,
    prompt: Prompt,
    seen: dict[str, Any],
    *,
    tags: Sequence[str],
    n_templated: int | None,
    in_training: bool,
) -> dict[str, Any]:
    nearest = seen.get("nearest_similarity")
    typicality = seen.get("typicality")
    return {
        "id": e.id,
        "messages": prompt.messages,
        "tools": prompt.tools,
        "domain": e.domain,
        "unsure": e.unsure,
        "cluster": int(seen["cluster"]),
        "language": e.language,
        "licence": e.licence,
        "source": e.source,
        "shard": e.shard,
        "row": e.shard_row,
        "in_training": in_training,
        "n_prompt_tokens": e.n_prompt_tokens,
        "n_templated_tokens": n_templated,
        "expected_output_tokens": e.expected_output_tokens,
        "nearest_similarity_u6": None if nearest is None else round(nearest * 1e6),
        "typicality_u6": None if typicality is None else round(typicality * 1e6),
        "tags": sorted(tags),
    }
