"""Do weights bring a biased set of prompts to what the mix would have accepted? From RESULTS alone.

    prepare  .study/rows.parquet -> RESULTS/reweight_rows.parquet  (ids and numbers: cluster, label, a short vector)
    check    RESULTS/*.parquet   -> RESULTS/reweight.json, printed as tables

Population: the test prompts of a mix's sources, each source counted by its share of the mix; *truth*: their mean
acceptance length. What the weights see of the mix is 3,000 of its training rows, without any result. A draw is n test
prompts, without replacement, with chances tilted in one of five ways:

    none     no tilt: a random draw of the mix
    label    one or two of the domains, as promptkit labels them, make up 50 to 80 % (whichever; all others stay in)
    cluster  each of promptkit's clusters is favoured by a factor exp(1.2 z), z normal
    domain   as `label`, by the true domain of the source, which the labeller sees imperfectly
    source   as `cluster`, by source: what is inside a cluster and a domain changes too, which no weight can see

*Bias* of a draw is that of its tilt: what unweighted means of such draws are off by on average (over 200 others; draws
are without replacement, so a small domain cannot fill one). It does not depend on the draw itself: none is chosen
by its outcome. Draws below the least covered share are refused.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TILTS = ("none", "label", "cluster", "domain", "source")
BIASES = (0.0, 0.03, 0.05, 0.08, 9.0)  # shares of the truth
MIXES = "abcdef"
QUANTITIES = tuple(f"{mode}_4_seed{s}" for mode in ("sampled", "greedy") for s in range(3))
MIX_ROWS, N_FITTED, DIMENSIONS = 3000, 2250, 32
OTHERS = 200


# --------------------------------------------------------------------------------------------------------- prepare


def prepare(data: Path, out: Path) -> None:
    """Write, for each mix, the cluster, the label and the vector of its test prompts and of some of its rows."""
    from promptkit import clusters, domains, embedders
    from promptkit.tokenizers import load_tokenizer

    rows = pq.read_table(data / "rows.parquet").to_pydict()
    tokenizer = load_tokenizer(data / "tokenizer")
    texts, source = rows["prompt"], np.array(rows["source"])
    test = np.flatnonzero(np.array(rows["test"]))
    rng = np.random.default_rng(0)
    known: dict[int, str] = {}

    def labels(of: np.ndarray) -> list[str]:
        new = [int(i) for i in of if int(i) not in known]
        said = [[{"role": "user", "content": texts[i]}] for i in new]
        found = domains.label([texts[i] for i in new], messages=said, tools=[None] * len(new), spoken=False)
        known.update(zip(new, (x.domain for x in found), strict=True))
        return [known[int(i)] for i in of]

    tables = []
    for mix in MIXES:
        member = np.flatnonzero(np.array(rows[f"mix_{mix}"]))
        shares = dict(zip(*np.unique(source[member], return_counts=True), strict=True))
        own = np.sort(rng.permutation(member)[:MIX_ROWS])
        tried = test[np.isin(source[test], list(shares))]
        both = np.concatenate([own, tried])
        ids = tokenizer.encode_batch([texts[i] for i in both])
        fitted = rng.permutation(len(own))[:N_FITTED]
        space = embedders.Lsa.fit([ids[i] for i in fitted], tokenizer.encode_batch)
        X = space.transform(ids)
        centroids = clusters.fit(X[fitted], n_clusters=16)
        axes = np.linalg.svd(X[fitted], full_matrices=False)[2][:DIMENSIONS]
        V = X @ axes.T
        V = np.round(127 * V / np.maximum(np.abs(V).max(axis=1, keepdims=True), 1e-9)).astype(np.int8)
        counts = dict(zip(*np.unique(source[tried], return_counts=True), strict=True))
        weight = np.concatenate([np.ones(len(own)), [shares[s] / counts[s] for s in source[tried]]])
        unseen = np.ones(len(both), dtype=bool)
        unseen[fitted] = False
        columns = {
            "mix": [mix] * len(both),
            "test": np.arange(len(both)) >= len(own),
            "row": both.astype(np.int32),
            "weight": weight.astype(np.float32),
            "cluster": clusters.assign(X, centroids).astype(np.int8),
            "label": labels(both),
            "unseen": unseen,
        }
        vectors = [None if not seen else v.tobytes() for v, seen in zip(V, unseen, strict=True)]
        tables.append(pa.table(columns | {"vector": pa.array(vectors, pa.binary())}))
        print(f"mix {mix}: {len(own)} rows of the mix, {len(tried)} test prompts", flush=True)
    pq.write_table(pa.concat_tables(tables), out / "reweight_rows.parquet", compression="zstd", compression_level=15)


# ----------------------------------------------------------------------------------------------------------- check


def load(results: Path, mix: str) -> dict[str, Any]:
    """Return both sides of one mix and the acceptance lengths of its test prompts, by drafter and quantity."""
    from promptkit.balance import Side

    frame = pq.read_table(results / "reweight_rows.parquet", filters=[("mix", "=", mix)]).to_pydict()
    _, domain = np.unique(frame["label"], return_inverse=True)
    X = np.zeros((len(domain), DIMENSIONS), dtype=np.float32)
    for i, v in enumerate(frame["vector"]):
        if v is not None:
            X[i] = np.frombuffer(v, dtype=np.int8)
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9)
    cluster, weight = np.array(frame["cluster"], dtype=np.int64), np.array(frame["weight"], dtype=np.float64)
    test = np.array(frame["test"])
    sides = [Side(cluster[at], domain[at].astype(np.int64), X[at], weight[at]) for at in (~test, test)]
    prompts = pq.read_table(results / "prompts.parquet", columns=["row", "source", "domain"]).to_pydict()
    at = np.searchsorted(prompts["row"], np.array(frame["row"])[test])
    al = {}
    for drafter in ("head", "small"):
        where = [("mix", "=", mix), ("drafter", "=", drafter)]
        table = pq.read_table(results / "acceptance.parquet", columns=list(QUANTITIES), filters=where)
        al |= {(drafter, q): table[q].to_numpy()[at] / 1000 for q in QUANTITIES}
    strata = {
        "label": sides[1].domains,
        "cluster": sides[1].clusters,
        "domain": np.array(prompts["domain"])[at],
        "source": np.array(prompts["source"])[at],
    }
    return {"mix": sides[0], "unseen": np.array(frame["unseen"])[~test], "test": sides[1], "al": al, "strata": strata}


def tilted(weight: np.ndarray, strata: dict[str, np.ndarray], tilt: str, rng: np.random.Generator) -> np.ndarray:
    """Return the chance of each test prompt to be drawn, summing to one."""
    base = weight / weight.sum()
    if tilt == "none":
        return base
    names, group = np.unique(strata[tilt], return_inverse=True)
    share = np.bincount(group, base)
    if tilt in ("label", "domain"):
        favoured = np.isin(np.arange(len(names)), rng.permutation(len(names))[: rng.integers(1, 3)])
        favoured[0] &= not favoured.all()
        own = float(share[favoured].sum())
        aim = max(float(rng.uniform(0.5, 0.8)), (1 + own) / 2)
        factor = np.where(favoured, aim / max(own, 1e-12), (1 - aim) / max(1 - own, 1e-12))
    else:
        factor = np.exp(rng.normal(0.0, 1.2, len(names)))
    chance = base * factor[group]
    return chance / chance.sum()


def draw(chance: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return n different rows, the next always in proportion to the chances of those left (Efraimidis 2006)."""
    keys = rng.exponential(size=len(chance)) / np.maximum(chance, 1e-300)
    return np.sort(np.argpartition(keys, n)[:n])


def one(d: dict[str, Any], key: tuple[str, str], tilt: str, n: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return what one draw gives: errors over the truth, bias of its tilt, whether the interval covers the truth."""
    from promptkit.balance import Side, balance, estimate, plain
    from promptkit.reweighting import LEAST_COVERED

    y, side = d["al"][key], d["test"]
    usable = np.flatnonzero(y > 0)
    weight = side.weights[usable] / side.weights[usable].sum()
    truth = float(weight @ y[usable])
    chance = tilted(weight, {k: v[usable] for k, v in d["strata"].items()}, tilt, rng)
    others = np.mean([y[usable[draw(chance, n, rng)]].mean() for _ in range(OTHERS)])
    bias = abs(float(others) - truth) / truth
    rows = usable[draw(chance, n, rng)]
    mine = Side(side.clusters[rows], side.domains[rows], side.X[rows], np.ones(n))
    found = balance(mine, d["mix"], unseen=d["unseen"])
    out = {"bias": bias, "covered": found.covered_share, "refused": found.covered_share < LEAST_COVERED}
    got, without = estimate(found, y[rows]), plain(y[rows])
    return out | {
        "error": (got.mean - truth) / truth,
        "error_unweighted": (without.mean - truth) / truth,
        "inside": got.low <= truth <= got.high,
        "inside_unweighted": without.low <= truth <= without.high,
        "half": (got.high - got.low) / 2 / truth,
        "effective_n": found.effective_n,
    }


def summary(draws: list[dict[str, Any]]) -> dict[str, Any]:
    """Return shares and root mean squares over draws that were not refused, all and by bias of the tilt."""

    def of(some: list[dict[str, Any]]) -> dict[str, Any]:
        c = {k: np.array([x[k] for x in some], dtype=float) for k in (some[0] if some else ())}
        if not some:
            return {"draws": 0}
        return {
            "draws": len(some),
            "less_error": round(float((abs(c["error"]) < abs(c["error_unweighted"])).mean()), 3),
            "rmse": round(float(np.sqrt((c["error"] ** 2).mean())), 4),
            "rmse_unweighted": round(float(np.sqrt((c["error_unweighted"] ** 2).mean())), 4),
            "inside": round(float(c["inside"].mean()), 3),
            "inside_unweighted": round(float(c["inside_unweighted"].mean()), 3),
            "half": round(float(c["half"].mean()), 4),
            "effective_n": round(float(c["effective_n"].mean()), 1),
        }

    kept = [x for x in draws if not x["refused"]]
    out = {"refused": len(draws) - len(kept), **of(kept)}
    for low, high in pairwise(BIASES):
        out[f"bias {low:g} to {high:g}" if high < 9 else f"bias {low:g} and more"] = of(
            [x for x in kept if low <= x["bias"] < high]
        )
    out["bias 0.05 and more"] = of([x for x in kept if x["bias"] >= 0.05])
    return out


def check(results: Path, *, n: int, draws: int, tilts: tuple[str, ...] = TILTS, seed: int = 0) -> dict[str, Any]:
    """Return the summary of each tilt: `draws` draws over mixes, drafters, sampled and greedy, and seeds in turn."""
    keys = [(drafter, q) for drafter in ("head", "small") for q in QUANTITIES]
    data = {mix: load(results, mix) for mix in MIXES}
    out = {}
    for t, tilt in enumerate(tilts):
        rng = np.random.default_rng([seed, t, n])
        cells = [(m, key) for key in keys for m in MIXES]
        order = rng.permutation(np.arange(draws) % len(cells))
        out[tilt] = summary([one(data[cells[i][0]], cells[i][1], tilt, n, rng) for i in order.tolist()])
    return out


def pooled(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one summary of several: shares by their draws, errors as root mean squares."""
    parts = [p for p in parts if p["draws"]]
    n = np.array([p["draws"] for p in parts])

    def of(name: str, power: int = 1) -> float:
        values = np.array([p[name] for p in parts]) ** power
        return round(float((n @ values / n.sum()) ** (1 / power)), 4)

    return {
        "draws": int(n.sum()),
        **{name: of(name) for name in ("less_error", "inside", "inside_unweighted")},
        **{name: of(name, 2) for name in ("rmse", "rmse_unweighted")},
    }


def markdown(found: dict[str, dict[str, Any]]) -> str:
    """Return the table of docs/reweight.md: per n and tilt all draws, and those of a bias of 5 % or more."""
    lines = [
        "| n | tilt | draws | error, % (unweighted) | interval covers | bias >= 5 %: draws | less error | covers |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for n, tilts in found.items():
        rows = [(tilt, s, s["bias 0.05 and more"]) for tilt, s in tilts.items()]
        some = [s for tilt, s in tilts.items() if tilt != "none"]
        rows.append(("**any tilt**", pooled(some), pooled([s["bias 0.05 and more"] for s in some])))
        for tilt, s, biased in rows:
            error = f"{100 * s['rmse']:.1f} ({100 * s['rmse_unweighted']:.1f})"
            own = f"{biased['less_error']:.2f} | {biased['inside']:.2f}" if biased["draws"] else "- | -"
            line = f"| {n} | {tilt} | {s['draws']} | {error} | {s['inside']:.2f} ({s['inside_unweighted']:.2f}) |"
            lines.append(f"{line} {biased['draws']} | {own} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that prepare.py wrote: compute reweight_rows.parquet again")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--n", type=int, nargs="+", default=[100, 200])
    parser.add_argument("--draws", type=int, default=216)
    args = parser.parse_args()
    if args.data:
        prepare(args.data, args.out)
    found = {str(n): check(args.out, n=n, draws=args.draws) for n in args.n}
    (args.out / "reweight.json").write_text(json.dumps(found, indent=1) + "\n")
    print(markdown(found))
    for n, tilts in found.items():
        for tilt, s in tilts.items():
            print(f"n = {n}, tilt by {tilt}: {s['refused']} refused")
            for band in ("all", *(k for k in s if k.startswith("bias"))):
                b = s if band == "all" else s[band]
                if b["draws"]:
                    error = f"error {b['rmse']:.3f} ({b['rmse_unweighted']:.3f})"
                    covers = f"covers {b['inside']:.3f} ({b['inside_unweighted']:.3f})"
                    print(f"  {band:18s} {b['draws']:4d} draws: less error {b['less_error']:.3f}, {error}, {covers}")


if __name__ == "__main__":
    main()
