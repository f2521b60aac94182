"""How near to the mix are k prompts chosen by promptkit, and by the usual ways of choosing?

    python -m benchmarks.selection [--sizes 20,50,100,200,500] [--seeds 3] [--json]

The mix: the coding and agentic sources of ../shared/data where that folder is there, and a made-up mixture of
clusters. Three quarters (by near-duplicate group) are the mix, of which the pool holds one row per group, for every
way alike. Every choice is judged on its distance to the mix and to the quarter that it never saw: exact MMD at the
median bandwidth, not the features that the selection optimised. `lost` counts domains above 1/(2k) without a prompt.
"""

from __future__ import annotations

import argparse
import heapq
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from promptkit import distances, selection

Matrix = Any
SOURCES = (
    "agentbench", "aider_swe_bench", "bfcl", "bigcodebench", "cruxeval", "glaive_toolcall", "gpteacher_code",
    "mini_swe_agent", "reason_tool_use", "swebench_verified", "tau_bench", "toolbench", "webarena",
)  # fmt: skip


@dataclass
class Data:
    """Unit rows of the mix, of its pool (one per near-duplicate group) and of rows kept out; domain labels."""

    name: str
    X: Matrix
    held: Matrix
    domains: list[str]  # of X
    pool: Matrix  # indices into X

    @property
    def shares(self) -> dict[str, float]:
        names, counts = np.unique(self.domains, return_counts=True)
        return dict(zip(names.tolist(), (counts / counts.sum()).tolist(), strict=True))

    @property
    def P(self) -> Matrix:
        return self.X[self.pool]

    @property
    def pool_domains(self) -> list[str]:
        return [self.domains[i] for i in self.pool]


def shared(rng: np.random.Generator) -> Data | None:
    """Return the shared sources' openings as `lsa` vectors fitted on the mix part alone, or None without the folder."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        return None
    from promptkit import embedders, leakage
    from promptkit.conversation import opening
    from promptkit.tokenizers import words_tokenizer

    texts, domains = [], []
    for source in SOURCES:
        for line in (folder / source / f"{source}.jsonl").read_text("utf-8").splitlines():
            row = json.loads(line)
            texts.append(opening(row.get("messages") or [{"role": "user", "content": row["prompt"]}]))
            domains.append(row["domain"])
    groups = leakage.near_duplicate_groups(texts)
    out = np.isin(groups, rng.permutation(groups.max() + 1)[: (groups.max() + 1) // 4])
    encode = words_tokenizer().encode_batch
    ids = encode(texts)
    lsa = embedders.Lsa.fit([ids[i] for i in np.flatnonzero(~out)], encode, seed=0)
    X = lsa.transform(ids)
    pool = np.sort(np.unique(groups[~out], return_index=True)[1])
    return Data("shared", X[~out], X[out], [domains[i] for i in np.flatnonzero(~out)], pool)


def made_up(rng: np.random.Generator, n: int = 6000, d: int = 64) -> Data:
    """Return a mixture of 60 clusters in 8 domains of unequal size, on the sphere."""
    centres = rng.standard_normal((60, d))
    domain = rng.integers(0, 8, 60)
    which = rng.choice(60, size=n, p=rng.dirichlet(np.full(60, 0.5)))
    X = centres[which] + rng.standard_normal((n, d)) * rng.uniform(0.3, 1.2, 60)[which][:, None]
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    keep = n * 3 // 4
    return Data("made up", X[:keep], X[keep:], [f"d{domain[w]}" for w in which[:keep]], np.arange(keep))


# ------------------------------------------------------------------------------------------------ ways of choosing


# Each returns indices into the pool.


def ours(data: Data, k: int, seed: int) -> Matrix:
    mapped = selection.landmark_features(data.X, seed=seed)
    return selection.select(
        mapped(data.P), mapped(data.X).mean(axis=0, dtype=np.float64), k=k, domains=data.pool_domains,
        quotas=selection.quotas(data.shares, k), seed=seed,
    )  # fmt: skip


def random(data: Data, k: int, seed: int) -> Matrix:
    return np.random.default_rng(seed).choice(len(data.pool), k, replace=False)


def stratified(data: Data, k: int, seed: int) -> Matrix:
    """Random under the same domain quotas as ours."""
    rng = np.random.default_rng(seed)
    domains = np.array(data.pool_domains)
    quotas = selection.quotas(data.shares, k)
    return np.concatenate([rng.choice(np.flatnonzero(domains == d), q, replace=False) for d, q in quotas.items()])


def k_medoids(data: Data, k: int, seed: int) -> Matrix:
    """The row nearest to each centre of k-means."""
    from sklearn.cluster import KMeans

    centres = KMeans(k, n_init=1, max_iter=25, random_state=seed).fit(data.X).cluster_centers_
    return np.unique(distances.squared_distances(centres.astype(np.float32), data.P).argmin(axis=1))


def facility_location(data: Data, k: int, seed: int) -> Matrix:
    """Lazy greedy maximum of the sum over the mix of the similarity to the nearest chosen row (Minoux 1978)."""
    S = data.P @ data.X.T
    best = np.full(S.shape[1], -1.0, np.float32)
    heap = [(-float((row - best).sum()), i) for i, row in enumerate(S)]
    heapq.heapify(heap)
    out: list[int] = []
    while len(out) < k:
        _, i = heapq.heappop(heap)
        gain = float(np.maximum(S[i] - best, 0.0).sum())  # gains only fall, so an old one is an upper bound
        if heap and -gain > heap[0][0]:
            heapq.heappush(heap, (-gain, i))
            continue
        out.append(i)
        best = np.maximum(best, S[i])
    return np.array(out)


def minimum_similarity(data: Data, k: int, seed: int) -> Matrix:
    """SPEED-Bench: the smallest mean pairwise cosine, greedily, then one pass of swaps."""
    rng = np.random.default_rng(seed)
    S = data.P @ data.P.T
    out = [int(rng.integers(len(S)))]
    for _ in range(k - 1):
        total = S[out].sum(axis=0)
        total[out] = np.inf
        out.append(int(total.argmin()))
    total = S[out].sum(axis=0)
    for place in range(k):
        rest = total - S[out[place]]
        rest[[o for i, o in enumerate(out) if i != place]] = np.inf
        new = int(rest.argmin())
        total += S[new] - S[out[place]]
        out[place] = new
    return np.array(out)


def kernel_thinning(data: Data, k: int, seed: int) -> Matrix:
    """KT-split by halving random rows of the pool, then KT-swap toward the mix (Dwivedi and Mackey 2021)."""
    rng = np.random.default_rng(seed)
    b = distances.median_squared_distance(data.X)
    P, X = data.P, data.X
    m = int(np.log2(len(P) / k))
    left = rng.permutation(len(P))[: k << m]

    def kernel(A: Matrix, B: Matrix) -> Matrix:
        return np.exp(distances.squared_distances(A, B) / (-2 * b))

    for _ in range(m):
        K = kernel(P[left], P[left])
        signed = np.zeros(len(left))  # sum of sign * k(x_i, .) at every row of what is left
        kept = []
        for i in range(0, len(left) - 1, 2):
            pair = signed[i] - signed[i + 1]
            width2 = max(K[i, i] + K[i + 1, i + 1] - 2 * K[i, i + 1], 1e-12)
            chance = min(1.0, max(0.0, 0.5 * (1 - pair / (width2**0.5 * max(width2**0.5, 1.0)))))
            first = rng.random() < chance
            signed += (K[i] - K[i + 1]) * (1 if first else -1)
            kept.append(i if first else i + 1)
        left = left[kept]
    toward = np.concatenate([kernel(part, X).mean(axis=1) for part in np.array_split(P, 8)])
    columns = kernel(P[left], P)
    total = columns.sum(axis=0)
    for place in range(len(left)):
        value = 2 * (total - columns[place]) - 2 * len(left) * toward
        value[np.delete(left, place)] = np.inf
        new = int(value.argmin())
        column = kernel(P[[new]], P)[0]
        total += column - columns[place]
        columns[place], left[place] = column, new
    return left


WAYS: dict[str, Callable[[Data, int, int], Matrix]] = {
    "promptkit": ours,
    "random": random,
    "stratified random": stratified,
    "k-medoids": k_medoids,
    "facility location": facility_location,
    "kernel thinning": kernel_thinning,
    "minimum similarity": minimum_similarity,
}


# ------------------------------------------------------------------------------------------------ judging


class Judge:
    """Distance of a set to a fixed set of rows: MMD whose own part counts in full and whose fixed part is unbiased."""

    def __init__(self, Y: Matrix, bandwidth2: float) -> None:
        self.Y, self.b = Y, bandwidth2
        n = len(Y)
        self.within = (sum(self._kernel(Y[i : i + 500], Y).sum() for i in range(0, n, 500)) - n) / (n * (n - 1))

    def _kernel(self, A: Matrix, B: Matrix) -> Matrix:
        return np.exp(distances.squared_distances(A.astype(np.float64), B.astype(np.float64)) / (-2 * self.b))

    def __call__(self, S: Matrix) -> float:
        squared = self._kernel(S, S).mean() + self.within - 2 * self._kernel(S, self.Y).mean()
        return float(max(0.0, squared) ** 0.5)


def lost(data: Data, chosen: Matrix) -> int:
    have = {data.domains[i] for i in data.pool[chosen]}
    return sum(share > 1 / (2 * len(chosen)) and d not in have for d, share in data.shares.items())


def measure(data: Data, sizes: Sequence[int], seeds: int) -> list[dict[str, Any]]:
    """Return one row per size and way: mean distances over the seeds, most domains lost, mean seconds."""
    b = distances.median_squared_distance(data.X)
    mix, held = Judge(data.X, b), Judge(data.held, b)
    out = []
    for k in sizes:
        for name, way in WAYS.items():
            results = []
            for seed in range(seeds if name != "facility location" else 1):
                start = time.perf_counter()
                chosen = way(data, k, seed)
                seconds = time.perf_counter() - start
                rows = data.P[chosen]
                results.append((mix(rows), held(rows), lost(data, chosen), seconds))
            means = np.mean(results, axis=0)
            out.append({
                "data": data.name, "k": k, "way": name, "mix": means[0], "held_out": means[1],
                "domains_lost": int(np.max(results, axis=0)[2]), "seconds": means[3],
            })  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="20,50,100,200,500")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    sizes = [int(s) for s in args.sizes.split(",")]
    rows = []
    for data in (shared(np.random.default_rng(0)), made_up(np.random.default_rng(0))):
        if data is not None:
            rows += measure(data, sizes, args.seeds)
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'data':<9}{'k':>5}  {'way':<20}{'mix':>9}{'held out':>10}{'lost':>6}{'seconds':>9}")
    for r in rows:
        print(
            f"{r['data']:<9}{r['k']:>5}  {r['way']:<20}{r['mix']:>9.4f}{r['held_out']:>10.4f}"
            f"{r['domains_lost']:>6}{r['seconds']:>9.2f}"
        )


if __name__ == "__main__":
    main()
