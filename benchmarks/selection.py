"""How near to the mix are k prompts chosen by promptkit, and by the usual ways of choosing?

    python -m benchmarks.selection [--mix coding,general,made-up] [--reference DIR] [--sizes 20,50,100,200,500]
                                   [--seeds 3] [--json]

The mixes: two sets of sources of ../shared/data where that folder is there (coding and agentic; knowledge, chat and
writing), a made-up mixture of clusters, and the sample of a reference that `build` wrote. Three quarters (by
near-duplicate group) are the mix, of which the pool holds one row per group, for every way alike. Every choice is
judged on its distance to the mix and to the quarter that it never saw: exact MMD at the median bandwidth. The line
`all of the mix` is the distance of the whole mix to that quarter: what no choice of prompts of the mix gets much below.

cover : held-out rows within reach of a chosen one, over what random new rows reach.  gap : most that a domain's share
is off.  lost : domains above 1/(2k) without a prompt.  length : Wasserstein distance of the log lengths of prompt and
response from those of the mix, in their standard deviations.
"""

from __future__ import annotations

import argparse
import heapq
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import command
from promptkit import distances, packing, selection

Matrix = Any
SOURCES = {
    "coding": (
        "agentbench", "aider_swe_bench", "bfcl", "bigcodebench", "cruxeval", "glaive_toolcall", "gpteacher_code",
        "mini_swe_agent", "reason_tool_use", "swebench_verified", "tau_bench", "toolbench", "webarena",
    ),
    "general": (
        "arena_hard", "bbh", "fireact", "gpteacher_roleplay", "ifeval", "mmlu", "mt_bench", "nq_open", "ntrex",
        "pubmedqa", "scitldr", "self_instruct", "spec_bench", "writingbench",
    ),
}  # fmt: skip


@dataclass
class Data:
    """Unit rows of the mix, of its pool (one per near-duplicate group) and of rows kept out; what else is known."""

    name: str
    X: Matrix
    held: Matrix
    domains: list[str]  # of X
    pool: Matrix  # indices into X
    lengths: Matrix  # of X: log words or tokens of prompt and response, turns
    words: list[Any]  # of X: what DSIR hashes

    @property
    def shares(self) -> dict[str, float]:
        names, counts = np.unique(self.domains, return_counts=True)
        return dict(zip(names.tolist(), (counts / counts.sum()).tolist(), strict=True))

    @cached_property
    def P(self) -> Matrix:
        return self.X[self.pool]

    @cached_property
    def bandwidth2(self) -> float:
        return distances.median_squared_distance(self.X)

    @property
    def pool_domains(self) -> list[str]:
        return [self.domains[i] for i in self.pool]

    @cached_property
    def standard_lengths(self) -> Matrix:
        spread = self.lengths.std(axis=0)
        return (self.lengths - self.lengths.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def of_texts(name: str, texts: list[str], domains: list[str], lengths: Matrix) -> Data:
    """Return texts as `lsa` vectors fitted on the mix part alone."""
    from promptkit import embedders, leakage
    from promptkit.tokenizers import words_tokenizer

    rng = np.random.default_rng(0)
    groups = leakage.near_duplicate_groups(texts)
    out = np.isin(groups, rng.permutation(groups.max() + 1)[: (groups.max() + 1) // 4])
    mix = np.flatnonzero(~out)
    encode = words_tokenizer().encode_batch
    ids = encode(texts)
    X = embedders.Lsa.fit([ids[i] for i in mix], encode, seed=0).transform(ids)
    pool = np.sort(np.unique(groups[mix], return_index=True)[1])
    return Data(name, X[mix], X[out], [domains[i] for i in mix], pool, lengths[mix], [ids[i] for i in mix])


def shared(name: str) -> Data | None:
    """Return the openings of the shared sources, or None without the folder."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        return None
    from promptkit.conversation import opening

    texts, domains, lengths = [], [], []
    for source in SOURCES[name]:
        for line in (folder / source / f"{source}.jsonl").read_text("utf-8").splitlines():
            row = json.loads(line)
            messages = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
            answers = [m["content"] for m in messages if m["role"] == "assistant"] + [str(row.get("response") or "")]
            texts.append(opening(messages))
            domains.append(row["domain"])
            lengths.append([len(texts[-1].split()), sum(len(a.split()) for a in answers), len(messages)])
    return of_texts(name, texts, domains, np.log1p(np.array(lengths, float)))


def of_reference(directory: str) -> Data:
    from promptkit import load_reference

    sample = load_reference(directory).sample
    lengths = sample.select("n_prompt_tokens", "n_response_tokens", "n_turns").to_numpy().astype(float)
    return of_texts("reference", sample["text"].to_list(), sample["domain"].to_list(), np.log1p(lengths))


def made_up(rng: np.random.Generator, n: int = 6000, d: int = 64) -> Data:
    """Return a mixture of 60 clusters in 8 domains of unequal size, on the sphere; "words" are its largest axes."""
    centres = rng.standard_normal((60, d))
    domain = rng.integers(0, 8, 60)
    which = rng.choice(60, size=n, p=rng.dirichlet(np.full(60, 0.5)))
    X = centres[which] + rng.standard_normal((n, d)) * rng.uniform(0.3, 1.2, 60)[which][:, None]
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    keep = n * 3 // 4
    lengths = rng.gamma(2.0, 1.0, (keep, 1)) + 0.5 * which[:keep, None] / 60
    words = np.argsort(-X[:keep], axis=1)[:, :6].tolist()
    return Data("made-up", X[:keep], X[keep:], [f"d{domain[w]}" for w in which[:keep]], np.arange(keep), lengths, words)


# ------------------------------------------------------------------------------------------------ ways of choosing


# Each returns indices into the pool.


def ours(data: Data, k: int, seed: int) -> Matrix:
    """As `build` does it, lengths at the weight that it gives them."""
    Z = (packing.LENGTH_WEIGHT * data.standard_lengths[data.pool]).astype(np.float32)
    return selection.select(
        data.P, data.X, k=k, domains=data.pool_domains, quotas=selection.quotas(data.shares, k), extra=Z, seed=seed
    )


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
    """SPEED-Bench: the smallest mean pairwise cosine, greedily, then swaps until none lowers it."""
    rng = np.random.default_rng(seed)
    S = data.P @ data.P.T
    out = [int(rng.integers(len(S)))]
    total = S[out[0]].astype(float)
    for _ in range(k - 1):
        value = total.copy()
        value[out] = np.inf
        out.append(int(value.argmin()))
        total += S[out[-1]]
    for _ in range(20):
        before = list(out)
        for place, i in enumerate(before):
            value = total - S[i]
            value[[o for o in out if o != i]] = np.inf
            out[place] = int(value.argmin())
            total += S[out[place]] - S[i]
        if out == before:
            break
    return np.array(out)


def kernel_thinning(data: Data, k: int, seed: int) -> Matrix:
    """Kernel thinning with the target's own kernel (Dwivedi and Mackey 2021, 2022): split, then swap.

    KT-split halves the pool, in random order, m times into 2^m sets of k, each by the self-balancing walk with the
    published thresholds, delta = 1/2. KT-swap takes the one nearest to the mix, or a standard thinning if that is
    nearer, and gives each place in turn to the best row of the pool. Both judge by the mix, not by the pool.
    """
    rng = np.random.default_rng(seed)
    P, X = data.P, data.X
    m = int(np.log2(len(P) / k))
    n = k << m
    order = rng.permutation(len(P))[:n]

    def kernel(A: Matrix, B: Matrix) -> Matrix:
        return np.exp(distances.squared_distances(A, B) / (-2 * data.bandwidth2))

    K = kernel(P[order], P[order])
    sets = [np.arange(n)]
    for level in range(1, m + 1):
        sets = [half for rows in sets for half in _halves(K[np.ix_(rows, rows)], rows, n, m, level, rng)]
    sets.append(np.arange(n)[(1 << m) - 1 :: 1 << m])  # standard thinning
    toward = np.concatenate([kernel(part, X).mean(axis=1, dtype=float) for part in np.array_split(P, 8)])
    best = min(sets, key=lambda rows: K[np.ix_(rows, rows)].mean(dtype=float) - 2 * toward[order[rows]].mean())
    left = order[best]
    columns = kernel(P[left], P)
    total = columns.sum(axis=0, dtype=float)
    for place in range(k):
        value = 2 * (total - columns[place]) - 2 * k * toward
        value[np.delete(left, place)] = np.inf
        new = int(value.argmin())
        column = kernel(P[[new]], P)[0]
        total += column - columns[place]
        columns[place], left[place] = column, new
    return left


def _halves(K: Matrix, rows: Matrix, n: int, m: int, level: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    """Split rows in two of one size whose kernel means are near each other."""
    half = len(rows) // 2
    delta = 0.5 * 2 ** (level - 1) / (m * n)  # of each step: they add up to 1/2 over all levels
    signed = np.zeros(len(rows))  # sum of sign * (k(x, .) - k(x', .)) over the pairs so far
    sigma, first = 0.0, []
    for i in range(0, 2 * half, 2):
        width2 = float(max(K[i, i] + K[i + 1, i + 1] - 2 * K[i, i + 1], 0.0))
        threshold = max((width2**0.5) * sigma * (2 * np.log(2 / delta)) ** 0.5, width2) or 1.0
        if sigma or width2:
            grown = width2 * (1 + (width2 - 2 * threshold) * sigma**2 / threshold**2)
            sigma = float(sigma**2 + max(grown, 0.0)) ** 0.5
        towards = float(signed[i] - signed[i + 1])
        plus = rng.random() < 0.5 * (1 - min(1.0, max(-1.0, towards / threshold)))
        signed += (K[i] - K[i + 1]) * (1 if plus else -1)
        first.append(i if plus else i + 1)
    one = np.array(first)
    return rows[one], rows[np.setdiff1d(np.arange(2 * half), one)]


def dsir(data: Data, k: int, seed: int) -> Matrix:
    """DSIR (Xie and others 2023): importance resampling on hashed word uni- and bigrams, by Gumbel top-k."""
    size = 10_000

    def hashed(ids: Any) -> Matrix:
        w = np.asarray(ids, dtype=np.int64)
        pairs = (w[:-1] * 1_000_003 + w[1:] * 7 + 13) % size
        return np.concatenate([w * 2_654_435_761 % size, pairs])

    bags = [hashed(ids) for ids in data.words]
    target = np.bincount(np.concatenate(bags), minlength=size) + 1e-8
    raw = np.bincount(np.concatenate([bags[i] for i in data.pool]), minlength=size) + 1e-8
    ratio = np.log(target / target.sum()) - np.log(raw / raw.sum())
    weight = np.array([ratio[bags[i]].sum() for i in data.pool])
    return np.argsort(-(weight + np.random.default_rng(seed).gumbel(size=len(weight))), kind="stable")[:k]


WAYS: dict[str, Callable[[Data, int, int], Matrix]] = {
    "promptkit": ours,
    "random": random,
    "stratified random": stratified,
    "k-medoids": k_medoids,
    "facility location": facility_location,
    "kernel thinning": kernel_thinning,
    "minimum similarity": minimum_similarity,
    "DSIR": dsir,
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


class Cover:
    """Coverage at one k: held-out rows within reach of a chosen one, over what random new rows would reach."""

    def __init__(self, held: Matrix, k: int) -> None:
        own = held @ held.T
        self.held, self.reach = held, distances.reaches(own, k)
        self.chance = distances.chance_coverage(len(held), k)

    def __call__(self, S: Matrix) -> float:
        return float(((self.held @ S.T).max(axis=1) >= self.reach - 1e-6).mean()) / self.chance


def shares_off(data: Data, chosen: Matrix) -> tuple[float, int]:
    """Return the most that a domain's share is off, and how many domains above 1/(2k) have no prompt."""
    have = [data.domains[i] for i in data.pool[chosen]]
    k = len(have)
    gap = max(abs(have.count(d) / k - share) for d, share in data.shares.items())
    return gap, sum(share > 1 / (2 * k) and d not in have for d, share in data.shares.items())


def length_off(data: Data, chosen: Matrix) -> float:
    """Return the mean over lengths of the Wasserstein distance to the mix, in standard deviations of the mix."""
    from scipy.stats import wasserstein_distance

    Z = data.standard_lengths[:, :2]
    return float(np.mean([wasserstein_distance(Z[data.pool[chosen], j], Z[:, j]) for j in range(Z.shape[1])]))


def measure(data: Data, sizes: Sequence[int], seeds: int) -> Iterator[dict[str, Any]]:
    """Yield one row per size and way: means over the seeds, the most domains lost, processor seconds."""
    mix, held = Judge(data.X, data.bandwidth2), Judge(data.held, data.bandwidth2)
    yield {"data": data.name, "k": len(data.X), "way": "all of the mix", "mix": 0.0, "held_out": held(data.X)}
    for k in sizes:
        cover = Cover(data.held, k)
        for name, way in WAYS.items():
            results = []
            for seed in range(seeds if name != "facility location" else 1):
                start = time.process_time()
                chosen = way(data, k, seed)
                seconds = time.process_time() - start
                rows = data.P[chosen]
                gap, lost = shares_off(data, chosen)
                results.append((mix(rows), held(rows), cover(rows), gap, length_off(data, chosen), lost, seconds))
            means = np.mean(results, axis=0)
            yield {
                "data": data.name, "k": k, "way": name, "mix": means[0], "held_out": means[1], "coverage": means[2],
                "domain_gap": means[3], "length": means[4], "domains_lost": int(np.max(results, axis=0)[5]),
                "seconds": means[6],
            }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mix", default="coding,general,made-up")
    parser.add_argument("--reference")
    parser.add_argument("--sizes", default="20,50,100,200,500")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if unknown := {*filter(None, args.mix.split(","))} - {*SOURCES, "made-up"}:
        parser.error(f"--mix: {', '.join(sorted(unknown))} is none of {', '.join(SOURCES)}, made-up")
    sizes = [int(s) for s in args.sizes.split(",")]
    rows = []
    if not args.json:
        print(
            f"{'mix':<10}{'k':>5}  {'way':<19}{'mix':>7}{'held out':>9}{'cover':>6}{'gap':>6}{'length':>7}{'lost':>5}"
            f"{'s':>6}"
        )
    names = [name for name in args.mix.split(",") if name] + (["reference"] if args.reference else [])
    for name in names:
        if name == "reference":
            data: Data | None = of_reference(args.reference)
        else:
            data = made_up(np.random.default_rng(0)) if name == "made-up" else shared(name)
        for r in measure(data, sizes, args.seeds) if data else ():
            rows.append(r)
            if args.json:
                continue
            line = f"{r['data']:<10}{r['k']:>5}  {r['way']:<19}{r['mix']:>7.4f}{r['held_out']:>9.4f}"
            if "coverage" in r:
                line += f"{r['coverage']:>6.2f}{r['domain_gap']:>6.3f}{r['length']:>7.3f}{r['domains_lost']:>5}"
                line += f"{r['seconds']:>6.1f}"
            print(line, flush=True)
    if args.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    command(main)
