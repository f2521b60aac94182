"""What does a score find, and at which size? Rejections by source, contamination curves, and the same sets for others.

    python -m benchmarks.power --mix DIR --foreign DIR [--tokenizer PATH] [--sizes 20,50,200] [--sets 50]
                               [--out power.json] [--save-sets sets.npz]

DIR holds *.jsonl, or one folder per source with *.jsonl (`prompt` or `messages`; `domain` where known). The mix is
fitted once on five sixths of its near-duplicate groups; its sets are drawn from the rest. Measured, at each size:

    sources        share of draws of one source with p < 0.05; of a source that is in the mix, kept-out rows are drawn
    changes        kept-out rows, and the same with a part swapped for prompts of foreign sources, drawn by source
    contamination  the same with x % of one kind of prompt (--kind, by the rows' `domain`), and the smallest x that is
                   found in 80 % of draws, between measured points by a straight line

*Foreign* are sources less than a quarter of whose rows lie in the mix's own domains (those with 5 % of it). With
--save-sets the vectors of the changes and contaminations are kept, so that `python -m benchmarks.power_peers sets.npz`
can put other tests to the same sets, in an environment of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import a_folder, command

SHARES = (0.025, 0.05, 0.10, 0.15, 0.20, 0.30, 0.50)
CHANGES = (0.0, 0.10, 0.25)
TARGET = 0.8


def main(argv: list[str] | None = None) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mix", type=a_folder, required=True, help="directory of the mix's sources")
    parser.add_argument("--foreign", type=a_folder, required=True, help="directory of all sources to try")
    parser.add_argument("--tokenizer", default="words", help="a tokenizer's path (default: words)")
    parser.add_argument("--sizes", default="20,50,200")
    parser.add_argument("--sets", type=int, default=50, help="sets per source and size; four times as many for changes")
    parser.add_argument("--draws", type=int, default=199, help="null draws of each batch; 499 for changes")
    parser.add_argument("--kind", default="encyclopedic", help="domain of the contaminating prompts")
    parser.add_argument("--per-source", type=int, default=600, help="rows of a foreign source that are looked at")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("power.json"), help="and the same name with .md")
    parser.add_argument("--save-sets", type=Path, help="vectors of the sets, for power_peers")
    o = parser.parse_args(argv)
    figures = measure(o)
    write(o.out, figures)
    print(tables(figures))


def measure(o: argparse.Namespace) -> dict[str, Any]:
    import numpy as np
    from threadpoolctl import threadpool_limits

    from benchmarks import worlds
    from promptkit import inference, scoring
    from promptkit.tokenizers import load_tokenizer

    rng = np.random.default_rng([o.seed, 12])
    sizes = [int(n) for n in o.sizes.split(",")]
    mix, others = worlds.read_sources(o.mix), worlds.read_sources(o.foreign)
    prompts = [p for ps in mix.values() for p in ps]
    sources = np.array([s for s, ps in mix.items() for _ in ps])
    units = worlds.units_of(prompts)
    # Whole groups of near-duplicates are kept out: an unseen row has no twin that was seen.
    rank = rng.permutation(len(np.unique(units)))[np.unique(units, return_inverse=True)[1]]
    kept = rank >= 5 / 6 * (rank.max() + 1)
    fitted, kept = np.flatnonzero(~kept), np.flatnonzero(kept)
    say(f"fitting {len(fitted)} of {len(prompts)} rows")
    with threadpool_limits(1):
        tokenizer = load_tokenizer(o.tokenizer)
        ref = worlds.fit([prompts[i] for i in fitted], sources[fitted].tolist(), tokenizer, o.seed)
        foreign = {
            s: [ps[i] for i in np.sort(rng.permutation(len(ps))[: o.per_source])]
            for s, ps in others.items()
            if s not in mix
        }
        known = [prompts[i] for i in kept]
        pool = known + [p for ps in foreign.values() for p in ps]
        say(f"looking at {len(pool)} prompts")
        judge = worlds.Judge(pool, ref)
    label = np.array([*sources[kept], *(s for s, ps in foreign.items() for _ in ps)])
    of = {s: np.flatnonzero(label == s) for s in dict.fromkeys(label.tolist())}
    domain = np.array([p.domain or d for p, d in zip(pool, judge.seen.domain, strict=True)])
    own = Counter(p.domain or d for p, d in zip(known, judge.seen.domain, strict=False))
    home = {d for d, n in own.items() if n >= 0.05 * len(known)}
    strange = [s for s in foreign if np.isin(domain[of[s]], sorted(home)).mean() < 0.25]
    kind = np.flatnonzero((domain == o.kind) & (np.arange(len(pool)) >= len(known)))
    figures: dict[str, Any] = {
        "machine": worlds.machine(), "mix": list(mix), "fitted": len(fitted), "held_out": len(judge.mix.held),
        "kept_out": len(kept), "foreign": strange, "kind": o.kind, "sizes": sizes, "sources": [], "changes": [],
        "contamination": [], "draws": o.draws, "seed": o.seed,
    }  # fmt: skip

    def rejected(sets: Any, draws: int) -> dict[str, Any]:
        with threadpool_limits(1):
            start = time.process_time()
            p = np.array([judge.p_values(at, seed=s, draws=draws) for s, at in enumerate(sets)])
            took = (time.process_time() - start) / len(sets)
        found = dict(zip(("p_value", "p_mix", "p_fidelity"), (p < 0.05).mean(axis=0).round(4).tolist(), strict=True))
        belong = float((judge.seen.typicality[np.asarray(sets)] >= 0.05).mean() / 0.95)
        return {**found, "fidelity": round(min(1.0, belong), 4), "sets": len(sets), "seconds": round(took, 4)}

    def of_the_mix(n: int, sets: int) -> Any:
        return inference.draw_units(n, units[kept], sets, rng=rng).astype(np.int64)

    def swapped(sets: Any, share: float, draw: Any) -> Any:
        k = round(share * sets.shape[1])
        out = np.array([rng.permutation(s) for s in sets])
        for line in out:
            line[:k] = draw(k)
        return out

    outside = np.concatenate([of[s] for s in strange]) if strange else np.array([], dtype=np.int64)
    alike = np.concatenate([np.full(len(of[s]), 1.0 / len(of[s]) / len(strange)) for s in strange] or [[]])

    def by_source(k: int) -> Any:
        return rng.choice(outside, size=k, replace=False, p=alike)

    saved: dict[str, Any] = {}
    for n in sizes:
        plain = of_the_mix(n, 4 * o.sets)
        for share in CHANGES:
            if round(share * n) > len(outside):
                continue
            sets = swapped(plain, share, by_source)
            saved[f"{n}|foreign|{share}"] = sets
            figures["changes"].append({"n": n, "share": share, **rejected(sets, 499)})
            say(f"n = {n}: {share:.0%} foreign {figures['changes'][-1]['p_value']:.2f}")
        for share in SHARES:
            if len(kind) < n or round(share * n) == 0:
                continue
            sets = swapped(plain[: 2 * o.sets], share, lambda k: rng.choice(kind, size=k, replace=False))
            saved[f"{n}|{o.kind}|{share}"] = sets
            figures["contamination"].append({"n": n, "share": round(share * n) / n, **rejected(sets, o.draws)})
        for source, rows in of.items():
            if len(rows) >= n:
                sets = [rng.choice(rows, size=n, replace=False) for _ in range(o.sets)]
                row = {"source": source, "n": n, "in_mix": source in mix, "rows": len(rows)}
                figures["sources"].append({**row, **rejected(sets, o.draws)})
        say(f"n = {n}: {len(of)} sources")
        write(o.out, figures)
    texts = [pool[i] for i in of_the_mix(sizes[-1], 1)[0]]
    start = time.process_time()
    scoring.score(texts, ref)
    figures["score_seconds"] = round(time.process_time() - start, 2)
    if o.save_sets:
        held = scoring._split(ref)[1]
        np.savez_compressed(o.save_sets, vectors=judge.seen.X, reference=np.asarray(ref.X)[held], **saved)
    return figures


def write(path: Path, figures: dict[str, Any]) -> None:
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(tables(figures) + "\n", encoding="utf-8")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def smallest(points: list[tuple[float, float]], target: float = TARGET) -> float | None:
    """Return the share at which the power first reaches `target`, on straight lines between (share, power) points."""
    points = sorted(points)
    for (x0, p0), (x1, p1) in itertools.pairwise(points):
        if p0 < target <= p1:
            return x0 + (target - p0) / (p1 - p0) * (x1 - x0)
    return points[0][0] if points and points[0][1] >= target else None


def curve(figures: dict[str, Any], n: int) -> list[tuple[float, float]]:
    """Return (share, power) of one size, from no contamination on."""
    at = [(c["share"], c["p_value"]) for c in figures["contamination"] if c["n"] == n]
    return [(c["share"], c["p_value"]) for c in figures["changes"] if c["n"] == n and c["share"] == 0.0] + at


def tables(figures: dict[str, Any]) -> str:
    sizes = [n for n in figures["sizes"] if any(c["n"] == n for c in figures["changes"])]  # all, or those done so far
    head = " | ".join(f"n = {n}" for n in sizes)
    rule = "|---" * (len(sizes) + 1) + "|"
    lines = [f"Machine: {figures['machine']}.", ""]
    lines.append(
        f"{figures['fitted']} rows fitted ({figures['held_out']} of them held out), {figures['kept_out']} kept out."
    )
    lines += ["", f"| p < 0.05 (p_mix, p_fidelity) | {head} |", rule]
    for share in dict.fromkeys(c["share"] for c in figures["changes"]):
        at = {c["n"]: c for c in figures["changes"] if c["share"] == share}
        cells = [f"{at[n]['p_value']:.3f} ({at[n]['p_mix']:.2f}, {at[n]['p_fidelity']:.2f})" for n in sizes]
        lines.append(f"| {f'{share:.0%} foreign' if share else 'in-mix'} | " + " | ".join(cells) + " |")
    lines += ["", f"| {figures['kind']} swapped in | {head} |", rule]
    for share in SHARES:
        at = {c["n"]: c for c in figures["contamination"] if round(share * c["n"]) / c["n"] == c["share"]}
        cells = [f"{at[n]['p_value']:.2f}" if n in at else "" for n in sizes]
        lines.append(f"| {100 * share:g} % | " + " | ".join(cells) + " |")
    found = [smallest(curve(figures, n)) for n in sizes]
    lines.append(
        "| **found in 80 %** | "
        + " | ".join("more than 50 %" if x is None else f"{100 * x:.0f} %" for x in found)
        + " |"
    )
    lines += ["", f"| source (`*` in the mix) | {head} | fidelity |", rule + "---|"]
    rows: dict[str, dict[int, Any]] = {}
    for s in figures["sources"]:
        rows.setdefault(s["source"] + (" *" if s["in_mix"] else ""), {})[s["n"]] = s
    for name, at in sorted(rows.items(), key=lambda r: (r[0].endswith("*"), r[0])):
        cells = [f"{at[n]['p_value']:.2f}" if n in at else "" for n in sizes]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {at[max(at)]['fidelity']:.2f} |")
    took = ", ".join(f"{c['seconds']:.2f} s at n = {c['n']}" for c in figures["changes"] if c["share"] == 0.0)
    lines += ["", f"A test of vectors takes {took} of one processor (499 draws)."]
    if "score_seconds" in figures:
        whole = f"a whole score from text, with all tables and 1999 draws, takes {figures['score_seconds']:.1f} s"
        lines[-1] = lines[-1][:-1] + f"; {whole} at n = {sizes[-1]}."
    return "\n".join(lines)


if __name__ == "__main__":
    command(main)
