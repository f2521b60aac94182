"""Other tests on the sets of `benchmarks.power`, and how far MAUVE depends on its settings.

    python -m benchmarks.power_peers sets.npz [--count 40] [--drift-rows 1000] [--out peers.json]
    python -m benchmarks.power_peers sets.npz --mauve [--out mauve.json]

Needs NumPy, SciPy and scikit-learn, and no promptkit, so that it runs in an environment of its own; alibi-detect (with
torch) and mauve-text are used where they are installed. All tests see the same vectors: those of each set, and as the
mix the held-out rows, which the vector space was not fitted on (fitted rows lie nearer to each other than new ones do).

    MMDDrift   alibi-detect, Gaussian kernel at the median distance, 100 permutations; --drift-rows cuts the mix for it,
               since every answer computes the kernel of all rows anew
    C2ST       logistic regression against 2 n rows of the mix, half for fitting; Mann and Whitney's test of the other
               half's scores: its AUC is 1/2 under the null
    MAUVE      k-means of both sets together (n / 10 clusters, as mauve-text does); 199 permutations of the labels. The
               clusters do not know the labels, so they need not be fitted again and the test is exact
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import a_file, command

PERMUTATIONS = 199


def main(argv: list[str] | None = None) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("sets", type=a_file, metavar="SETS.npz", help="from benchmarks.power --save-sets")
    parser.add_argument("--count", type=int, default=40, help="sets of each kind (the first ones)")
    parser.add_argument("--drift-rows", type=int, help="rows of the mix for MMDDrift (default: all held-out rows)")
    parser.add_argument("--shares", help="only these, as 0,0.1,0.25 (default: all)")
    parser.add_argument("--mauve", action="store_true", help="instead: MAUVE by size, clusters and implementation")
    parser.add_argument("--out", type=Path, default=Path("peers.json"))
    o = parser.parse_args(argv)
    with np.load(o.sets) as stored:
        data = {name: stored[name] for name in stored.files}
    shares = {float(x) for x in o.shares.split(",")} if o.shares else None
    rows = mauve_study(data) if o.mauve else compare(data, o.count, o.drift_rows, shares)
    o.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(mauve_table(rows) if o.mauve else table(rows))


def compare(data: dict[str, Any], count: int, drift_rows: int | None, shares: Any) -> list[dict[str, Any]]:
    X, Y = (data[name].astype(np.float32) for name in ("vectors", "reference"))
    tests: dict[str, Callable[..., float]] = {"C2ST": c2st, "MAUVE": mauve_test}
    try:
        tests["MMDDrift"] = mmd_drift(drift_rows)
    except ImportError as error:
        print(f"MMDDrift is left out: {error}")
    rows = []
    for name in data:
        if "|" not in name:
            continue
        n, kind, share = name.split("|")
        if shares is not None and float(share) not in shares:
            continue
        for test, p_of in tests.items():
            start = time.process_time()
            p = [p_of(X[at], Y, seed) for seed, at in enumerate(data[name][:count])]
            took = (time.process_time() - start) / len(p)
            row = {"n": int(n), "kind": kind, "share": float(share), "test": test, "sets": len(p)}
            rows.append({**row, "power": float((np.array(p) < 0.05).mean()), "seconds": took})
            print(f"{name} {test} {rows[-1]['power']:.2f} ({took:.2f} s)", flush=True)
    return rows


# ------------------------------------------------------------------------------------------------ the tests


def mmd_drift(rows: int | None = None) -> Callable[..., float]:
    from alibi_detect.cd import MMDDrift
    from alibi_detect.utils import frameworks

    if not frameworks.has_pytorch:
        raise ImportError("alibi-detect finds no torch")
    import torch

    torch.set_num_threads(1)

    def p_of(X: Any, Y: Any, seed: int) -> float:
        torch.manual_seed(seed)
        Y = np.random.default_rng(seed).permutation(Y)[:rows]
        detector = MMDDrift(Y, backend="pytorch", n_permutations=100, device="cpu")
        return float(detector.predict(X)["data"]["p_val"])

    return p_of


def c2st(X: Any, Y: Any, seed: int) -> float:
    from scipy.stats import mannwhitneyu
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(seed)
    A, B = rng.permutation(X), rng.permutation(Y)[: 2 * len(X)]
    a, b = len(A) // 2, len(B) // 2
    model = LogisticRegression(class_weight="balanced", max_iter=300)
    model.fit(np.concatenate([A[:a], B[:b]]), np.repeat([1, 0], [a, b]))
    scores = [model.decision_function(Z) for Z in (A[a:], B[b:])]
    return float(mannwhitneyu(*scores, alternative="greater").pvalue)


def mauve_test(X: Any, Y: Any, seed: int) -> float:
    from sklearn.cluster import KMeans

    n, k = len(X), max(2, round(len(X) / 10))
    labels = KMeans(k, n_init=1, random_state=seed).fit(np.concatenate([X, Y])).labels_
    rng = np.random.default_rng(seed)

    def value(order: Any) -> float:
        return mauve_of_shares(*(np.bincount(labels[part], minlength=k) for part in (order[:n], order[n:])))

    observed = value(np.arange(len(labels)))
    null = np.array([value(rng.permutation(len(labels))) for _ in range(PERMUTATIONS)])
    return float((1 + (null <= observed + 1e-12).sum()) / (1 + PERMUTATIONS))  # small MAUVE: far apart


def mauve_of_shares(p: Any, q: Any, *, scale: float = 5.0, points: int = 25) -> float:
    """Return MAUVE of two histograms: the area below the curve of exp(-scale KL) to mixtures (Pillutla et al. 2021)."""
    p, q = (np.asarray(s, dtype=np.float64) / np.sum(s) for s in (p, q))

    def kl(a: Any, b: Any) -> float:
        some = a > 0
        return float((a[some] * np.log(a[some] / b[some])).sum())

    curve = [(1.0, 0.0)]
    for w in np.linspace(1e-6, 1 - 1e-6, points):
        r = w * p + (1 - w) * q
        curve.append((np.exp(-scale * kl(q, r)), np.exp(-scale * kl(p, r))))
    x, y = np.array([*curve, (0.0, 1.0)]).T
    down = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    return float((area(x[down[0]], y[down[0]]) + area(y[down[1]], x[down[1]])) / 2)


def area(x: Any, y: Any) -> float:
    return float((np.diff(x) * (y[1:] + y[:-1])).sum() / 2)


# ------------------------------------------------------------------------------------------------ MAUVE's settings


def mauve_study(data: dict[str, Any], *, times: int = 5) -> list[dict[str, Any]]:
    """Return mean and spread of mauve-text's value, for two parts of the mix and for sets against it."""
    import logging

    import mauve

    logging.disable(logging.WARNING)
    X, Y = (data[name].astype(np.float32) for name in ("vectors", "reference"))
    rng, rows = np.random.default_rng(0), []

    def measure(what: str, pairs: Any, n: int, k: Any) -> None:
        start = time.process_time()
        values = [
            mauve.compute_mauve(p_features=P, q_features=Q, num_buckets=k, verbose=False, seed=s).mauve
            for s, (P, Q) in enumerate(pairs)
        ]
        took = (time.process_time() - start) / len(values)
        rows.append({"what": what, "n": n, "k": k, "mean": float(np.mean(values)),
                     "sd": float(np.std(values, ddof=1)), "seconds": took})  # fmt: skip
        print(rows[-1], flush=True)

    for n in (20, 50, 200, len(Y) // 2):
        orders = [rng.permutation(len(Y)) for _ in range(times)]
        for k in ("auto", 16, 64):
            if k == "auto" or 2 * n >= k:
                measure("two parts of the mix", [(Y[o[:n]], Y[o[n : 2 * n]]) for o in orders], n, k)
    for name in data:
        if "|" in name and name.split("|")[2] in ("0.0", "0.25"):
            n, kind, share = name.split("|")
            what = f"a set with {float(share):.0%} {kind}, all held-out rows"
            measure(what, [(X[at], Y) for at in data[name][:times]], int(n), "auto")
    return rows


def mauve_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| compared | n | clusters | MAUVE | s |", "|---|---:|---:|---|---:|"]
    for r in rows:
        lines.append(f"| {r['what']} | {r['n']} | {r['k']} | {r['mean']:.3f} +- {r['sd']:.3f} | {r['seconds']:.2f} |")
    return "\n".join(lines)


def table(rows: list[dict[str, Any]]) -> str:
    tests = list(dict.fromkeys(r["test"] for r in rows))
    lines = [f"| set | n | {' | '.join(tests)} |", "|---|---:" + "|---:" * len(tests) + "|"]
    for key in dict.fromkeys((r["kind"], r["share"], r["n"]) for r in rows):
        at = {r["test"]: r["power"] for r in rows if (r["kind"], r["share"], r["n"]) == key}
        kind, share, n = key
        cells = " | ".join(f"{at[t]:.2f}" for t in tests)
        lines.append(f"| {f'{100 * share:g} % {kind}' if share else 'in-mix'} | {n} | {cells} |")
    for t in tests:
        took = {n: np.mean([r["seconds"] for r in rows if r["test"] == t and r["n"] == n]) for n in
                dict.fromkeys(r["n"] for r in rows)}  # fmt: skip
        lines.append(f"\n{t}: " + ", ".join(f"{s:.2f} s at n = {n}" for n, s in took.items()))
    return "\n".join(lines)


if __name__ == "__main__":
    command(main)
