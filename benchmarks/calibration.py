"""Are the false-alarm rates, the intervals and the typicalities of a score what they claim to be?

    python -m benchmarks.calibration [--dir DIR ...] [--made-up KIND ...] [--refits 50] [--sets 10] [--processes N]
                                     [--fit-rows 3000] [--rows] [--out calibration.json]

Each refit draws anew which rows the mix is fitted on (and so which of them are held out) and judges sets of rows that
no part of that fit has seen. Reported, averaged over refits:

    p_value, p_mix, p_fidelity   share of in-mix sets with p at most 1, 5 and 10 %, for n = 10, 20, 50, 200
    typicality                   share of unseen rows with typicality at most 1 % ... 90 %
    intervals (95 %)             share that holds the true value, for sets of the mix and for sets of half its sources

beside limits within which the share should lie (95 % of the time) if the claim were true; they allow for the scatter
from refit to refit. DIR holds *.jsonl, or one folder per source with *.jsonl (`prompt` or `messages`). Without --dir or
--made-up, all made-up mixes run. Sets are drawn by near-duplicate group (one row each), which is what p-values promise;
--rows draws plain rows. Every finished refit is written to the JSON; run again with the same --out to add more.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks import a_folder, command
from promptkit.errors import UsageError

SIZES = (10, 20, 50, 200)
LEVELS = (0.01, 0.05, 0.10)
QUANTILES = (0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90)
P_VALUES = ("p_value", "p_mix", "p_fidelity")
SHOWN = {
    "excess": "`excess`", "fidelity": "`fidelity`", "mix_overlap": "`mix_overlap`, against its mean at n",
    "mix_overlap_of_all": "`mix_overlap`, against that of all rows",
    "domain_overlap": "`domain_overlap`, against its mean at n",
    "domain_overlap_of_all": "`domain_overlap`, against that of all rows", "coverage": "`coverage`",
}  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(name, "1")  # before numpy is imported here and in every worker
    from benchmarks.worlds import MADE_UP, machine

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--dir", type=a_folder, nargs="*", default=[], help="directories of JSONL sources")
    parser.add_argument("--made-up", nargs="*", choices=MADE_UP, metavar="KIND", help=f"of: {', '.join(MADE_UP)}")
    parser.add_argument("--tokenizer", default="words", help="for directories: a tokenizer's path (default: words)")
    parser.add_argument("--refits", type=int, default=50)
    parser.add_argument("--sets", type=int, default=10, help="sets of each size and refit")
    parser.add_argument("--fit-rows", type=int, nargs="*", default=[3000], help="rows a mix is fitted on")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--draws", type=int, default=499, help="null draws of each of the three batches")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--fresh", type=int, default=2000, help="unseen rows of a made-up mix")
    parser.add_argument("--rows", action="store_true", help="draw plain rows, not near-duplicate groups")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("calibration.json"), help="and the same name with .md")
    o = parser.parse_args(argv)
    kinds = list(MADE_UP) if o.made_up is None and not o.dir else o.made_up or []
    worlds = [("made up: " + kind, kind, None) for kind in kinds] + [(d.name, None, str(d)) for d in o.dir]
    figures: dict[str, Any] = {"machine": machine(), "records": []}
    if o.out.exists():
        figures = json.loads(o.out.read_text(encoding="utf-8"))
    done = {(r["world"], r["fit_rows"], r["drawn"], r["seed"]) for r in figures["records"]}
    drawn = "rows" if o.rows else "groups"
    tasks = [
        {"world": name, "kind": kind, "dir": where, "tokenizer": o.tokenizer, "fit_rows": rows, "drawn": drawn,
         "seed": seed, "sets": o.sets, "sizes": o.sizes, "draws": o.draws, "fresh": o.fresh}
        for seed in range(o.first_seed, o.first_seed + o.refits) for name, kind, where in worlds for rows in o.fit_rows
        if (name, rows, drawn, seed) not in done
    ]  # fmt: skip
    start = time.monotonic()
    for i, record in enumerate(answers(tasks, o.processes), 1):
        figures["records"].append(record)
        write(o.out, figures)
        print(
            f"{i}/{len(tasks)}  {time.monotonic() - start:6.0f} s  {record['world']}, seed {record['seed']}", flush=True
        )
    print("\n" + write(o.out, figures))


def answers(tasks: list[dict[str, Any]], processes: int) -> Any:
    if processes == 1:
        yield from map(refit, tasks)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(refit, task) for task in tasks]):
            yield future.result()


# ----------------------------------------------------------------------------------------------------- one refit


@functools.cache
def _directory(where: str) -> Any:
    from benchmarks import worlds

    found = worlds.read_sources(Path(where))
    prompts = [p for ps in found.values() for p in ps]
    return prompts, [s for s, ps in found.items() for _ in ps], worlds.units_of(prompts)


def refit(task: dict[str, Any]) -> dict[str, Any]:
    """Fit one mix, judge sets of unseen rows, and return the counts."""
    import numpy as np
    from threadpoolctl import threadpool_limits

    from benchmarks import worlds
    from promptkit.tokenizers import load_tokenizer

    start = time.monotonic()
    rng = np.random.default_rng([task["seed"], 11])
    if task["kind"]:
        prompts, sources = worlds.made_up(task["kind"], task["fit_rows"] + task["fresh"], rng)
        units, tokenizer = worlds.units_of(prompts), load_tokenizer("words")
    else:
        prompts, sources, units = _directory(task["dir"])
        tokenizer = load_tokenizer(task["tokenizer"])
    # Whole groups go to the fit until it is full: an unseen row has no twin that was seen.
    order = rng.permutation(len(np.unique(units)))[np.unique(units, return_inverse=True)[1]]
    by_group = np.argsort(order, kind="stable")
    fitted, fresh = np.sort(by_group[: task["fit_rows"]]), by_group[task["fit_rows"] :]
    fresh = np.sort(fresh[~np.isin(units[fresh], units[fitted])])
    if len(fresh) < 2 * max(task["sizes"]):
        raise UsageError(
            f"{task['world']}: {len(fresh)} rows left beside {len(fitted)} fitted, expected {2 * max(task['sizes'])}",
            hint="lower --fit-rows or --sizes",
        )
    with threadpool_limits(1):
        ref = worlds.fit([prompts[i] for i in fitted], [sources[i] for i in fitted], tokenizer, task["seed"])
        judge = worlds.Judge([prompts[i] for i in fresh], ref)
        groups = units[fresh] if task["drawn"] == "groups" else np.arange(len(fresh))
        record = {k: task[k] for k in ("world", "fit_rows", "drawn", "seed", "sets", "draws")}
        record |= {"held_out": len(judge.mix.held), "regime": ref.prompts.regime, "fresh": len(fresh)}
        record["typicality"] = [float((judge.seen.typicality <= q).mean()) for q in QUANTILES]
        record |= judged(judge, np.array([sources[i] for i in fresh]), groups, task, rng)
    record["seconds"] = round(time.monotonic() - start, 1)
    return record


def judged(judge: Any, sources: Any, groups: Any, task: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Return p-values of in-mix sets by size, and [held, sets] of each interval by size, for both kinds of sets."""
    import numpy as np

    from promptkit import inference

    everyone = np.arange(len(groups))
    names = np.unique(sources)
    half = np.flatnonzero(np.isin(sources, rng.permutation(names)[: -(-len(names) // 2)]))
    out: dict[str, Any] = {"p": {}, "intervals": {}}
    for kind, rows in (("mix", everyone), ("half of its sources", half)):
        true = truths(judge, rows, everyone, mix=kind == "mix")
        for n in task["sizes"]:
            n_groups = len(np.unique(groups[rows]))
            if kind != "mix" and 5 * n > n_groups:
                continue  # sets that share most of their rows scatter too little
            at = rows[inference.draw_units(n, groups[rows], task["sets"] + 200, rng=rng)]
            true |= mean_overlaps(judge, at[task["sets"] :])
            found = [
                judge(a, seed=s, draws=task["draws"], test=kind == "mix") for s, a in enumerate(at[: task["sets"]])
            ]
            if kind == "mix":
                out["p"][str(n)] = [
                    [round(p, 6) for p in (f.joint.overall, f.joint.family["mix"], f.joint.family["fidelity"])]
                    for f in found
                ]
            if 5 * n <= n_groups:
                out["intervals"].setdefault(kind, {})[str(n)] = held(found, true)
    return out


def truths(judge: Any, rows: Any, everyone: Any, *, mix: bool) -> dict[str, float]:
    """Return what all unseen rows of a kind say: the value that intervals of small sets are about."""
    import numpy as np

    from promptkit.comparison import ALPHA
    from promptkit.distances import total_variation

    _, all_rows, _ = judge.take(rows)
    belong = float((all_rows.typicality >= ALPHA).mean())
    share = {
        "domain_overlap_of_all": (all_rows.domains, judge.shares[0]),
        "mix_overlap_of_all": (all_rows.clusters, judge.shares[1]),
    }
    found = {
        name: 1.0 - total_variation(np.bincount(labels, minlength=len(mine)), mine)
        for name, (labels, mine) in share.items()
    }
    # The mix has no distance from itself: what its unseen rows have is what a fit makes of rows that it has not seen.
    beyond = 0.0 if mix else judge.mmd2(rows) - judge.mmd2(everyone)
    found |= {"excess": max(0.0, beyond) ** 0.5, "fidelity": min(1.0, belong / (1.0 - ALPHA))}
    return found | ({"coverage": 1.0} if mix else {})


def mean_overlaps(judge: Any, sets: Any) -> dict[str, float]:
    """Return the mean overlap of sets of one size: small sets have less than all rows have."""
    import numpy as np

    out = {}
    for name, labels, mine in (
        ("mix_overlap", judge.seen.cluster, judge.shares[1]),
        ("domain_overlap", judge.domains, judge.shares[0]),
    ):
        counts = np.stack([np.bincount(labels[a], minlength=len(mine)) for a in sets]) / sets.shape[1]
        out[name] = float((1.0 - 0.5 * np.abs(counts - mine).sum(axis=1)).mean())
    return out


def held(found: list[Any], true: dict[str, float]) -> dict[str, list[int]]:
    """Return [intervals that hold the truth, intervals] by name."""
    out = {}
    for name, value in true.items():
        ends = [f.intervals.get(name.removesuffix("_of_all")) for f in found]
        ends = [e for e in ends if e is not None and e[0] == e[0]]
        if ends:
            out[name] = [sum(low - 1e-9 <= value <= high + 1e-9 for low, high in ends), len(ends)]
    return out


# ----------------------------------------------------------------------------------------------------- the tables


def write(path: Path, figures: dict[str, Any]) -> str:
    """Write the JSON with its summary, and the tables beside it; return the tables."""
    figures["records"].sort(key=lambda r: (r["world"], r["fit_rows"], r["drawn"], r["seed"]))
    figures["summary"] = summary(figures["records"])
    text = tables(figures)
    for target, content in ((path, json.dumps(figures, indent=1) + "\n"), (path.with_suffix(".md"), text + "\n")):
        scratch = target.with_name(target.name + ".part")
        scratch.write_text(content, encoding="utf-8")
        scratch.replace(target)
    return text


def summary(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry per mix, rows fitted and way of drawing: each rate with its limits."""
    import numpy as np

    from benchmarks.worlds import clustered

    out: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for r in records:
        out.setdefault((r["world"], r["fit_rows"], r["drawn"]), []).append(r)
    found = []
    for (world, rows, drawn), refits in out.items():
        entry: dict[str, Any] = {
            "world": world, "fit_rows": rows, "drawn": drawn, "refits": len(refits), "regime": refits[0]["regime"],
            "held_out": float(np.mean([r["held_out"] for r in refits])),
            "fresh": float(np.mean([r["fresh"] for r in refits])), "alarms": [], "intervals": [],
        }  # fmt: skip
        entry["typicality"] = [
            clustered([r["typicality"][i] for r in refits], q, refits[0]["fresh"]) for i, q in enumerate(QUANTILES)
        ]
        for n in sorted({int(n) for r in refits for n in r["p"]}):
            p = [np.array(r["p"][str(n)]) for r in refits if str(n) in r["p"]]
            for i, name in enumerate(P_VALUES):
                for level in LEVELS:
                    rate = clustered([float((x[:, i] <= level).mean()) for x in p], level, len(p[0]))
                    entry["alarms"].append({"n": n, "p": name, **rate})
        for kind in sorted({k for r in refits for k in r["intervals"]}, reverse=True):
            for name in SHOWN:
                for n in sorted({int(n) for r in refits for n in r["intervals"].get(kind, {})}):
                    counts = [r["intervals"].get(kind, {}).get(str(n), {}).get(name) for r in refits]
                    counts = [c for c in counts if c]
                    if counts:
                        rate = clustered([hit / of for hit, of in counts], 0.95, counts[0][1])
                        entry["intervals"].append({"n": n, "sets": kind, "value": name, **rate})
        found.append(entry)
    return found


def tables(figures: dict[str, Any]) -> str:
    def cell(r: dict[str, Any]) -> str:
        mark = "" if r["low"] - 1e-12 <= r["rate"] <= r["high"] + 1e-12 else " !"
        return f"{100 * r['rate']:.1f} ({100 * r['low']:.1f}-{100 * r['high']:.1f}){mark}"

    lines = [f"Machine: {figures['machine']}.", ""]
    lines.append(
        "Each figure: per cent found, and in brackets the limits within which it should lie; `!` marks one outside."
    )
    everything = [c for e in figures["summary"] for c in (*e["alarms"], *e["typicality"])]
    outside = sum(not c["low"] - 1e-12 <= c["rate"] <= c["high"] + 1e-12 for c in everything)
    n = len(everything)
    lines.append(
        f"Of {n} rates of false alarms and typicalities {outside} lie outside; chance puts {0.05 * n:.0f} there."
    )
    for e in figures["summary"]:
        lines += ["", f"## {e['world']}, {e['fit_rows']} rows", ""]
        rows = f"{e['held_out']:.0f} rows held out, {e['fresh']:.0f} unseen"
        lines.append(f"{e['refits']} refits ({e['regime']}, {rows}), sets drawn by {e['drawn']}.")
        for name in P_VALUES:
            lines += ["", f"| `{name}` | at 1 % | at 5 % | at 10 % |", "|---|---|---|---|"]
            for n in sorted({a["n"] for a in e["alarms"]}):
                row = [cell(a) for a in e["alarms"] if a["n"] == n and a["p"] == name]
                lines.append(f"| n = {n} | " + " | ".join(row) + " |")
        lines += ["", "| typicality at most | " + " | ".join(f"{100 * q:.0f} %" for q in QUANTILES) + " |"]
        lines += [
            "|---" * (len(QUANTILES) + 1) + "|",
            "| unseen rows | " + " | ".join(map(cell, e["typicality"])) + " |",
        ]
        for kind in dict.fromkeys(i["sets"] for i in e["intervals"]):
            sizes = sorted({i["n"] for i in e["intervals"] if i["sets"] == kind})
            lines += ["", f"| 95 % interval, sets of {kind if kind != 'mix' else 'the mix'} | "
                      + " | ".join(f"n = {n}" for n in sizes) + " |", "|---" * (len(sizes) + 1) + "|"]  # fmt: skip
            for name, shown in SHOWN.items():
                at = {i["n"]: cell(i) for i in e["intervals"] if i["sets"] == kind and i["value"] == name}
                if at:
                    lines.append(f"| {shown} | " + " | ".join(at.get(n, "") for n in sizes) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    command(main)
