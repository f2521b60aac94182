"""Mixes to measure on, real and made up, and many sets judged against one reference at the price of a few.

`read_sources` reads directories of JSONL; `made_up` writes seeded text whose law is known; `fit` makes a reference of
either; `Judge` says of sets of rows what `promptkit.score` says of them (a test holds the two equal), but looks at each
row once and at the mix once, so that a draw costs its test alone.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from promptkit import domains, inference, reference, scoring
from promptkit.comparison import ALPHA, Mix, Rows
from promptkit.conversation import Prompt, canonical, opening, prompt_id
from promptkit.errors import UsageError

MADE_UP = ("topics", "near-duplicates", "heavy tails", "templates")


# ------------------------------------------------------------------------------------------------- real directories


def read_sources(root: Path) -> dict[str, list[Prompt]]:
    """Return source -> prompts of `root/*.jsonl` and `root/SOURCE/*.jsonl`, empty openings left out."""
    from promptkit.candidates import read_candidates

    found: dict[str, list[Prompt]] = {}
    for path in sorted([*root.glob("*.jsonl"), *root.glob("*/*.jsonl")]):
        source = path.parent.name if path.parent != root else path.stem
        prompts = [p for p in read_candidates(path, fmt="jsonl") if opening(p.messages).strip()]
        found.setdefault(source, []).extend(prompts)
    if not found:
        raise UsageError(f"{root}: no *.jsonl there, nor one folder below", hint="give a directory of SOURCE/*.jsonl")
    return found


# ------------------------------------------------------------------------------------------------- made-up text


def made_up(kind: str, n: int, rng: np.random.Generator) -> tuple[list[Prompt], list[str]]:
    """Return n independent prompts of a made-up mix, and the topic of each. The law depends on `kind` alone.

    topics : twelve word distributions of unequal shares, ordinary lengths
    near-duplicates : forty topics down to shares of 0.3 %, four rows in ten a copy of one of 600 texts but for a word
    heavy tails : lengths and shares of words that occur nowhere else, both with a heavy tail
    templates : each topic below a system turn of its own, much longer than what follows
    """
    law = np.random.default_rng(MADE_UP.index(kind))
    words = np.array(
        ["".join(law.choice(list("bdfglmnprstvz"), 3) + law.choice(list("aeiou"), 3)) for _ in range(4000)]
    )
    n_topics = 40 if kind == "near-duplicates" else 12
    shares = (1.0 + np.arange(n_topics)) ** -1.0
    shares /= shares.sum()
    zipf = (1.0 + np.arange(400)) ** -1.0
    zipf /= zipf.sum()
    own = [law.permutation(4000)[:400] for _ in range(n_topics)]  # a topic's words, the frequent ones first
    common = law.permutation(4000)[:400]

    def write(topic: int, length: int, rng: np.random.Generator, private: float = 0.0) -> list[str]:
        rank = rng.choice(400, size=length, p=zipf)
        text = words[np.where(rng.random(length) < 0.4, common[rank], own[topic][rank])].tolist()
        return [f"x{rng.integers(10**9):09d}" if rng.random() < private else word for word in text]

    originals = [(t, write(t, 120, law)) for t in law.choice(n_topics, size=600, p=shares)]
    often = (1.0 + np.arange(600)) ** -0.7
    often /= often.sum()
    systems = [" ".join(write(t, 90, law)) for t in range(n_topics)]
    prompts, topics = [], []
    for topic in rng.choice(n_topics, size=n, p=shares).tolist():
        messages = []
        if kind == "heavy tails":
            length = min(3000, 3 + int(12 * rng.pareto(1.3)))
            text = write(topic, length, rng, float(rng.beta(0.3, 2.0)))
        elif kind == "near-duplicates" and rng.random() < 0.4:
            topic, original = originals[int(rng.choice(600, p=often))]
            text = list(original)
            text[int(rng.integers(120))] = f"x{rng.integers(10**9):09d}"
        else:
            text = write(topic, max(4, int(rng.lognormal(3.2, 0.6))), rng)
        if kind == "templates":
            messages.append({"role": "system", "content": systems[topic]})
        messages.append({"role": "user", "content": " ".join(text)})
        prompts.append(Prompt(prompt_id(messages), messages))
        topics.append(f"topic {topic:02d}")
    return prompts, topics


# ------------------------------------------------------------------------------------------------- references


def units_of(prompts: Sequence[Prompt]) -> np.ndarray:
    """Return the near-duplicate group of each prompt, template families split, as a reference would group them."""
    from promptkit.leakage import near_duplicate_groups

    texts = [opening(p.messages) for p in prompts]
    return np.asarray(reference._units(texts, np.asarray(near_duplicate_groups(texts), dtype=np.int64))[0])


def fit(prompts: Sequence[Prompt], sources: Sequence[str], tokenizer: Any, seed: int, **more: Any) -> Any:
    """Return a reference of these prompts as the mix, fitted as `build` fits it."""
    import polars as pl

    from promptkit.frames import FRAME_SCHEMA

    n = len(prompts)
    texts = [opening(p.messages) for p in prompts]
    answers = [p.response or None for p in prompts]
    lengths = [len(ids) for ids in tokenizer.encode_batch([a or "" for a in answers])]
    frame = pl.DataFrame(
        {
            "shard": [f"{s}.jsonl" for s in sources], "row": list(range(n)), "id": [p.id for p in prompts],
            "source": list(sources), "messages": [canonical(p.messages).decode() for p in prompts],
            "tools": [None if p.tools is None else canonical(p.tools).decode() for p in prompts],
            "text": texts, "response_text": answers,
            "n_prompt_tokens": [len(ids) for ids in tokenizer.encode_batch(texts)],
            "n_response_tokens": lengths, "n_supervised_tokens": lengths, "n_turns": [1] * n,
            "has_tools": [p.tools is not None for p in prompts], "truncated": [False] * n, "language": ["en"] * n,
        },
        schema=FRAME_SCHEMA(),
    )  # fmt: skip
    return reference.fit(frame, tokenizer=tokenizer, seed=seed, label=domains.label, masses=domains.masses, **more)


# ------------------------------------------------------------------------------------------------- many sets


class Judge:
    """What `score` says of any set of these prompts, each looked at once. Equal weights, shares by rows."""

    def __init__(self, prompts: Sequence[Prompt], ref: Any) -> None:
        self.seen = scoring._look(list(prompts), ref, None)
        rows, self.names, weights = scoring._mix_rows(ref, "rows", self.seen.compared)
        fit_rows, held = scoring._split(ref)
        if not len(held):
            raise ValueError("a reference without held-out rows judges nothing")
        code = {d: i for i, d in enumerate(self.names)}
        self.domains = np.array([code[d] for d in self.seen.compared], dtype=np.int64)
        self.shares = [
            np.bincount(labels, weights, minlength=size) / weights.sum()
            for labels, size in ((rows.domains, len(self.names)), (rows.clusters, len(ref.centroids)))
        ]
        self.m = inference.effective_size(weights)
        self.fitted_units = rows.units[fit_rows]
        self.mix = Mix(
            rows.take(fit_rows), rows.take(held), cluster_shares=self.shares[1], domain_shares=self.shares[0]
        )

    def take(self, at: np.ndarray) -> tuple[scoring._Seen, Rows, np.ndarray]:
        """Return what is known of the prompts `at`, and them as rows in the one order that a score counts them in."""

        def picked(value: Any) -> Any:
            if isinstance(value, dict):
                return {k: picked(v) for k, v in value.items()}
            return value[at] if isinstance(value, np.ndarray) else [value[i] for i in at]

        seen = replace(self.seen, **{f.name: picked(getattr(self.seen, f.name)) for f in fields(self.seen)})
        n = len(at)
        order = np.array(sorted(range(n), key=lambda i: (seen.texts[i], seen.compared[i])), dtype=np.int64)
        rows = Rows(seen.X, seen.cluster, self.domains[at], seen.typicality, np.arange(n), np.full(n, 1.0 / n))
        return seen, rows.take(order), order

    def __call__(self, at: np.ndarray, *, seed: int = 0, draws: int = 499, test: bool = True) -> Any:
        """Return the set's values and intervals as `scoring._Set`; `joint` holds its p-values unless `test` is off."""
        at = np.asarray(at, dtype=np.int64)
        seen, candidates, order = self.take(at)
        n, w = len(at), candidates.weights
        found = scoring._Set(
            n=n, n_effective=float(n), m=self.m, n_foreign=int((seen.typicality < ALPHA).sum()),
            domain_names=self.names,
            domain_shares=(self.shares[0], np.bincount(candidates.domains, w, minlength=len(self.names))),
            cluster_shares=(self.shares[1], np.bincount(candidates.clusters, w, minlength=len(self.shares[1]))),
            influence=np.full(n, np.nan),
        )  # fmt: skip
        table = self.mix.table(candidates)
        features = table[:, : self.mix.width]
        scoring._distances(found, self.mix, features, w, order)
        scoring._overlaps(found, candidates, len(self.names), seed)
        rng = np.random.default_rng([seed, n])
        found.chance = self.mix.chance(w, rng)
        found.floor = float(found.chance.distance.mean())
        low, high = np.quantile(found.chance.distance, [0.025, 0.975])
        found.intervals["noise_floor"] = (float(low), float(high))
        share = float(w @ (candidates.typicality >= ALPHA))
        scoring._fidelity(found, share)
        scoring._excess(found, self.mix, features, w, found.chance.excess2, share)
        if test:
            found.joint = self.mix.test(table, w, draws=draws, rng=rng)
        in_fit = np.isin(seen.units[order], self.fitted_units)
        found.coverage, found.intervals["coverage"] = self.mix.coverage(candidates.X, rng, in_fit=in_fit)
        return found

    def p_values(self, at: np.ndarray, *, seed: int = 0, draws: int = 499) -> tuple[float, float, float]:
        """Return p_value, p_mix and p_fidelity alone, which is most of what a power study needs."""
        rows = self.take(np.asarray(at, dtype=np.int64))[1]
        rng = np.random.default_rng([seed, len(at)])
        joint = self.mix.test(self.mix.table(rows), rows.weights, draws=draws, rng=rng)
        return joint.overall, joint.family["mix"], joint.family["fidelity"]

    def mmd2(self, at: np.ndarray) -> float:
        """Return the unbiased MMD^2 of these prompts to the mix: for many of them, the truth about their kind."""
        table = self.mix.table(self.take(np.asarray(at))[1])
        return float(self.mix.statistics(table.mean(axis=0, dtype=np.float64)[None], 1.0 / len(at))[0, 0])


# ------------------------------------------------------------------------------------------------- where it ran


def machine() -> str:
    """Return processor, cores, system, Python and the libraries that matter, in one line."""
    import os

    cpu = "unknown processor"
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    have = []
    for name in ("numpy", "scipy", "scikit-learn", "polars"):
        try:
            have.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            have.append(f"{name} missing")
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, {', '.join(have)}"


def clustered(rates: Sequence[float], nominal: float, per_refit: int) -> dict[str, float]:
    """Return the mean of one rate per refit, beside the limits between which it should lie if `nominal` were true.

    Sets of one refit share its held-out rows, so rates scatter from refit to refit by more than a binomial. The limits
    are nominal +- t times the standard error over refits, or the binomial one where that is larger.
    """
    from scipy.stats import t

    r = np.asarray(rates, dtype=np.float64)
    binomial = float(np.sqrt(nominal * (1 - nominal) / (len(r) * per_refit)))
    between = float(r.std(ddof=1) / np.sqrt(len(r))) if len(r) > 1 else 0.0
    half = float(t.ppf(0.975, max(1, len(r) - 1))) * max(binomial, between)
    return {
        "rate": float(r.mean()), "nominal": nominal, "low": max(0.0, nominal - half), "high": min(1.0, nominal + half),
        "scatter": between / binomial, "cases": len(r) * per_refit,
    }  # fmt: skip
