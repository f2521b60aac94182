"""Parts of a pack, from what its rows store: no reference, no embedder, so any benchmark can split a pack it was given.

Rows become vectors: log lengths, turns, tools, typicality, cluster, and 64 hashed word features that stand in for an
embedding. Two parts are alike when the means of these vectors are.

    sample    random within domains         replicas  deal within domains, then swap until no swap helps
    order     the next domain by Webster's method, in it the prompt that keeps the mean of all so far nearest the
              pack's: every beginning of the order represents the pack, and each holds the smaller ones
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Rows = Sequence[Mapping[str, Any]]

_WORDS = 64
_DECIMALS = 9  # vectors and gains are rounded before each argmin: the same choice on any processor of a class
_PASSES = 20


def sample(rows: Rows, n: int, seed: int) -> list[int]:
    """Return `n` row indices drawn with a seed; domains take turns by Webster's method."""
    if not 1 <= n <= len(rows):
        raise UsageError(f"a sample of {n} from a pack of {len(rows)}", hint=f"give 1 to {len(rows)}")
    rng = np.random.default_rng(seed)
    left = {d: list(rng.permutation(m)) for d, m in _members(rows).items()}
    return sorted(int(left[d].pop()) for d in _turns(rows)[:n])


def order(rows: Rows) -> list[int]:
    """Return all row indices, so ordered that every beginning is as like the whole as its size allows."""
    V = vectors(rows)
    target = V.mean(axis=0)
    left = _members(rows)
    total = np.zeros(V.shape[1])
    out: list[int] = []
    for d in _turns(rows):
        pool = left[d]
        gap = V[pool] + total - (len(out) + 1) * target
        best = int(np.argmin(np.round((gap * gap).sum(axis=1), _DECIMALS)))
        chosen = int(pool[best])
        left[d] = np.delete(pool, best)
        total += V[chosen]
        out.append(chosen)
    return out


def replicas(rows: Rows, k: int) -> list[list[int]]:
    """Return `k` disjoint lists of row indices that together are all rows, alike in domains, lengths and words."""
    if not 1 <= k <= len(rows):
        raise UsageError(f"{k} replicas of a pack of {len(rows)} prompts", hint=f"give 1 to {len(rows)}")
    V = vectors(rows)
    part = np.empty(len(rows), dtype=np.int64)
    start = 0
    for members in _members(rows).values():
        # Neighbours in length go to different parts; the deal goes on where the last domain stopped, so that totals
        # differ by at most one as well.
        longest = sorted(members, key=lambda i: (-(rows[i]["n_prompt_tokens"] or 0), rows[i]["id"]))
        for place, i in enumerate(longest):
            part[i] = (start + place) % k
        start += len(members)
    _swap(V, part, k, list(_members(rows).values()))
    return [np.flatnonzero(part == p).tolist() for p in range(k)]


def _swap(V: NDArray[np.float64], part: NDArray[np.int64], k: int, domains: list[NDArray[np.int64]]) -> None:
    """Exchange rows of one domain between parts while it lowers the sum of squared gaps of the parts' means.

    In place. A swap keeps every count, so domain shares stay as dealt. Each row takes its best swap in turn.
    """
    target = V.mean(axis=0)
    size = np.bincount(part, minlength=k).astype(np.float64)
    gaps = np.array([V[part == p].sum(axis=0) for p in range(k)]) - size[:, None] * target
    weight = 1.0 / size**2
    for _ in range(_PASSES):
        moved = False
        for members in domains:
            for i in members.tolist():
                others = members[part[members] != part[i]]
                if not len(others):
                    continue
                p, q = part[i], part[others]
                step = V[others] - V[i]  # what part p gains and part q loses
                square = (step * step).sum(axis=1)
                change = weight[p] * (2 * step @ gaps[p] + square)
                change += weight[q] * (square - 2 * (step * gaps[q]).sum(axis=1))
                best = int(np.argmin(np.round(change, _DECIMALS)))
                if change[best] < -1e-8:
                    j = int(others[best])
                    gaps[part[i]] += step[best]
                    gaps[part[j]] -= step[best]
                    part[i], part[j] = part[j], part[i]
                    moved = True
        if not moved:
            return


def vectors(rows: Rows) -> NDArray[np.float64]:
    """Return (n, d) float64: what is stored about each row, standardised, and its words. Unknown values are means."""
    columns = [
        [math.log1p(v) if (v := r[key]) is not None else math.nan for r in rows]
        for key in ("n_prompt_tokens", "expected_output_tokens", "n_templated_tokens")
    ]
    columns += [
        [math.nan if (v := r[key]) is None else float(v) for r in rows]
        for key in ("typicality_u6", "nearest_similarity_u6")
    ]
    columns += [
        [math.log1p(sum(m["role"] == "user" for m in r["messages"])) for r in rows],
        [float(bool(r["tools"])) for r in rows],
        [float(bool(r["in_training"])) for r in rows],
    ]
    numbers = np.array(columns, dtype=np.float64).T.reshape(len(rows), -1)
    known = ~np.isnan(numbers)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, numbers, 0.0).sum(axis=0) / count
    centred = np.where(known, numbers - mean, 0.0)
    spread = np.sqrt((centred**2).sum(axis=0) / count)
    spread[spread == 0] = 1.0
    clusters = sorted({r["cluster"] for r in rows if r["cluster"] is not None})
    which = np.array([[float(r["cluster"] == c) for c in clusters] for r in rows]).reshape(len(rows), -1)
    # Lengths lead (they decide a benchmark's time), clusters and words follow: each block has about unit variance.
    return np.concatenate([centred / spread * 0.5, which, _words(rows)], axis=1)


def _words(rows: Rows) -> NDArray[np.float64]:
    """Return (n, 64) unit rows: signed hashed counts of words, 1 + log tf, weighted by rarity inside the pack."""
    counts = [Counter(re.findall(r"\w+", " ".join(m["content"] for m in r["messages"]).lower())) for r in rows]
    seen = Counter(word for c in counts for word in c)
    out = np.zeros((len(rows), _WORDS))
    for i, c in enumerate(counts):
        for word, n in sorted(c.items()):
            h = zlib.crc32(word.encode("utf-8", "replace"))
            sign = 1.0 if h & 1 else -1.0
            out[i, (h >> 1) % _WORDS] += sign * (1 + math.log(n)) * math.log((1 + len(rows)) / seen[word])
    norm = np.linalg.norm(out, axis=1, keepdims=True)
    return out / np.where(norm == 0, 1.0, norm)


def _members(rows: Rows) -> dict[str, NDArray[np.int64]]:
    out: dict[str, list[int]] = {}
    for i, r in enumerate(rows):
        out.setdefault(r["domain"], []).append(i)
    return {d: np.array(m, dtype=np.int64) for d, m in sorted(out.items())}


def _turns(rows: Rows) -> list[str]:
    """Return the domain of each turn by Webster's method: after any n turns each has its share of n, rounded.

    The c-th prompt of a domain with share s comes when n s reaches c - 1/2, so a domain above 1/(2n) is there.
    """
    share = Counter(r["domain"] for r in rows)
    turns = [((c + 0.5) / n, -n, d) for d, n in share.items() for c in range(n)]
    return [d for _, _, d in sorted(turns)]
