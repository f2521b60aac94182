"""Which k prompts of a pool stand for the whole mix: domain quotas, then the smallest kernel distance under them.

In: F, one feature row per pool prompt (`landmark_features`), and the mean feature of the mix. The squared distance of
a chosen set S to the mix is |mean of F over S - target|^2, which is MMD^2 up to the error of the features: what they
do not see is left to chance, so they decide more than the search does (`benchmarks/selection.py`). First kernel
herding restricted to the pool (Chen, Welling, Smola 2010: error
O(1/k), where random draws have O(1/sqrt k)): take again and again the prompt that brings the mean of what is chosen
nearest to the target. Then swap chosen prompts for others of their domain as long as that lowers the distance.

Steps run on a few thousand candidates whose inner products fit in memory (4,000 and what joins: 140 MB), so that a
step costs microseconds. After each round of swaps the rest of the pool is asked, by one product with the gap that is
left, for prompts that would close it better, and those join. The pool itself is never copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit.errors import InputError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

CANDIDATES = 4000
ROUNDS = 4
STARTS = (4, 24)  # fewest, most: swaps end in the nearest hollow, and the deepest is kept; small sets have more of them
JOINING = 500  # per round
_DECIMALS = 6  # objectives are rounded before each argmin, so that ties fall to the lower index on every processor
_WORTH = 1e-5  # a swap must lower |sum of gaps|^2 by this, which is above the noise of float32 products


def quotas(shares: Mapping[str, float], k: int, *, available: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return how many of `k` prompts each domain gets: largest remainder, at least one for a domain above 1/(2k).

    The one is taken from the domain most above its share. With `available` (distinct prompts per domain in the pool)
    no domain gets more than it has, and what is left over is shared among the others by the same rule; the sum is k,
    or less where the domains of the mix hold fewer. A domain outside the mix (share 0) gets nothing.

    >>> quotas({"coding": 0.7, "math": 0.294, "chat": 0.006}, 100)
    {'chat': 1, 'coding': 70, 'math': 29}
    """
    if k < 1:
        raise UsageError(f"k is {k}", hint="give a number of prompts above 0")
    total = sum(shares.values())
    if not all(math.isfinite(s) and s >= 0 for s in shares.values()) or not total > 0:
        raise InputError(f"domain shares {dict(shares)}: expected numbers >= 0 with a positive sum")
    share = {d: s / total for d, s in sorted(shares.items())}
    room = {d: k if available is None else available.get(d, 0) for d in share}
    out: dict[str, int] = {}  # domains that hold less than their share: all they have
    while True:
        open_ = {d: s for d, s in share.items() if d not in out}
        dealt = _largest_remainder(open_, k - sum(out.values()))
        short = {d: room[d] for d, n in dealt.items() if n > room[d]}
        if not short:
            out |= dealt
            break
        out |= short
    _at_least_one(out, share, room, k)
    return dict(sorted(out.items()))


def _largest_remainder(share: Mapping[str, float], k: int) -> dict[str, int]:
    total = sum(share.values())
    exact = {d: k * s / total if total else 0.0 for d, s in share.items()}
    out = {d: math.floor(x + 1e-9) for d, x in exact.items()}
    rest = k - sum(out.values()) if total else 0
    for d in sorted(exact, key=lambda d: (round(out[d] - exact[d], 9), d))[:rest]:
        out[d] += 1
    return out


def _at_least_one(out: dict[str, int], share: Mapping[str, float], room: Mapping[str, int], k: int) -> None:
    for d in sorted(share, key=lambda d: (-share[d], d)):
        if share[d] * 2 * k > 1 and out[d] == 0 and room[d] > 0:
            # max by (excess, later name): the largest remainders were rounded up, so somebody is above its share
            giver = max(
                (e for e in out if out[e] > 1), key=lambda e: (round(out[e] - k * share[e], 9), e), default=None
            )
            if giver is not None:
                out[giver] -= 1
                out[d] = 1


def landmark_features(
    Y: NDArray[Any], *, n_landmarks: int = 2000, n_features: int = 1000, bandwidth2: float | None = None, seed: int = 0
) -> Callable[[NDArray[Any]], NDArray[np.float32]]:
    """Return a function X (n, d) -> features (n, at most n_features) float32 of the Gaussian kernel, fitted on Y.

    Nystrom features (Williams and Seeger 2001): f(x) = k(x, L) U s^(-1/2), where L are rows drawn from Y and U, s the
    leading eigenvectors and values of k(L, L), so that f(x).f(y) is the kernel exp(-|x - y|^2 / (2 bandwidth2)) seen
    through the landmarks. `bandwidth2` defaults to the median squared distance of Y; sets chosen at this bandwidth are
    as near at a half and a quarter of it. On a coding and agentic mix a pack of 100 chosen with these lies at 0.027
    from it, with 768 random Fourier features at 0.044, a random draw at 0.058.
    """
    from scipy.linalg import eigh
    from threadpoolctl import threadpool_limits

    from promptkit import distances

    Y = distances.checked(Y, "Y")
    b = distances.median_squared_distance(Y) if bandwidth2 is None else bandwidth2
    rng = np.random.default_rng(seed)
    L = np.asarray(Y[np.sort(rng.permutation(len(Y))[:n_landmarks])], dtype=np.float32)

    def kernel(X: NDArray[Any]) -> NDArray[np.float32]:
        K: NDArray[np.float32] = np.exp(distances.squared_distances(np.asarray(X, np.float32), L) / np.float32(-2 * b))
        return K

    with threadpool_limits(1):
        leading = (max(0, len(L) - n_features), len(L) - 1)
        strength, directions = eigh(kernel(L).astype(np.float64), subset_by_index=leading)
    keep = strength > 1e-6 * strength[-1]  # below, float32 has only noise to offer
    back = (directions[:, keep] / np.sqrt(strength[keep])).astype(np.float32)

    def features(X: NDArray[Any]) -> NDArray[np.float32]:
        out = np.empty((len(X), back.shape[1]), np.float32)
        with threadpool_limits(1):
            for i in range(0, len(X), 2048):
                out[i : i + 2048] = kernel(X[i : i + 2048]) @ back
        return out

    return features


def select(
    F: NDArray[Any],
    target: NDArray[Any],
    *,
    k: int,
    domains: Sequence[str],
    quotas: Mapping[str, int] | None = None,
    extra: NDArray[Any] | None = None,
    extra_target: NDArray[Any] | None = None,
    groups: NDArray[Any] | None = None,
    exclude: NDArray[Any] | None = None,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Return the indices, ascending, of `k` pool rows whose mean feature is as near `target` as quotas allow.

    F : ndarray (n, D) float32, features of the pool.  target : ndarray (D,), mean feature of the mix.
    domains : n names.  quotas : domain -> count (as `quotas` gives; a domain that holds fewer hands the rest on);
    None: no quotas.  extra, extra_target : (n, e) and (e,), further features (lengths, turns, tools), already scaled
    to the weight they shall have.  groups : (n,) ids of near-duplicates, of which at most one is taken.
    exclude : (n,) bool, rows that must not be taken (leaks).

    Fewer than k indices come back where the pool holds fewer distinct prompts in the domains asked for. Deterministic
    for a seed, which only decides which rows are candidates from the start when the pool is larger than 4,000.
    """
    n = len(F)
    if n != len(domains) or (groups is not None and len(groups) != n) or (exclude is not None and len(exclude) != n):
        raise InputError(f"selection: {n} feature rows, {len(domains)} domains; expected as many groups and marks")
    if k < 1:
        raise UsageError(f"k is {k}", hint="give a number of prompts above 0")
    if not np.isfinite(target).all():
        raise InputError("selection: the target holds NaN or infinity", hint="check the embedder")
    labels = np.array(domains if quotas is not None else ["all"] * n, dtype=object)
    group = np.unique(groups, return_inverse=True)[1] if groups is not None else np.arange(n)
    free = np.ones(n, dtype=bool) if exclude is None else ~np.asarray(exclude, dtype=bool)
    free &= _in_domain_of_group(labels, group, free)
    names, label = np.unique(labels.astype(str), return_inverse=True)
    available = {d: len(np.unique(group[free & (label == i)])) for i, d in enumerate(names.tolist())}
    wanted = _feasible({"all": k} if quotas is None else quotas, k, available)
    quota = np.array([wanted.get(d, 0) for d in names.tolist()], dtype=np.int64)
    if not quota.sum():
        return np.empty(0, dtype=np.int64)
    from threadpoolctl import threadpool_limits

    search = _Search(F, target, extra, extra_target, label, group, free, quota)
    with threadpool_limits(1):  # sums in one order, whatever the number of cores
        return search.run(np.random.default_rng(seed))


def _feasible(wanted: Mapping[str, int], k: int, available: Mapping[str, int]) -> dict[str, int]:
    """Hand on what a domain cannot fill; shares that are counts over k come back as they are where they fit."""
    positive = {d: float(q) for d, q in wanted.items() if q > 0}
    return quotas(positive, min(k, sum(wanted.values())), available=available) if positive else {}


def _in_domain_of_group(labels: NDArray[Any], group: NDArray[Any], free: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark rows in the domain of their group's first free row: it counts in one domain, so quotas can be filled."""
    first: dict[int, Any] = {}
    return np.array([free[i] and first.setdefault(g, labels[i]) == labels[i] for i, g in enumerate(group.tolist())])


class _Search:
    """Candidates, their inner products, and the chosen set while it is searched."""

    def __init__(
        self,
        F: NDArray[Any],
        target: NDArray[Any],
        extra: NDArray[Any] | None,
        extra_target: NDArray[Any] | None,
        label: NDArray[np.int64],
        group: NDArray[np.int64],
        free: NDArray[np.bool_],
        quota: NDArray[np.int64],
    ) -> None:
        self.F, self.extra = F, extra
        self.label, self.group, self.free, self.quota = label, group, free & (quota[label] > 0), quota
        self.k = int(quota.sum())
        parts = [np.asarray(target, np.float64)]
        if extra is not None:
            parts.append(np.asarray(np.zeros(extra.shape[1]) if extra_target is None else extra_target, np.float64))
        self.target = np.concatenate(parts)

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        parts = [self.F[indices]] if self.extra is None else [self.F[indices], self.extra[indices]]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def run(self, rng: np.random.Generator) -> NDArray[np.int64]:
        pool = self._first_candidates(rng)
        room = len(pool) + ROUNDS * (JOINING + len(self.quota))
        V = np.empty((room, len(self.target)), np.float32)
        G = np.empty((room, room), np.float32)
        m = self._join(V, G, 0, pool)
        starts = [self._herd(pool, V[:m], G[:m, :m])]
        starts += [self._draw(pool, rng) for _ in range(min(STARTS[1], max(STARTS[0], 600 // self.k)) - 1)]
        best: tuple[float, NDArray[np.int64]] | None = None
        for start in starts:
            found = self._swap(pool, V[:m], G[:m, :m], start)
            value = round(self._distance2(V[found]), _DECIMALS + 3)
            if best is None or value < best[0]:
                best = value, found
        assert best is not None
        chosen = best[1]
        for _ in range(ROUNDS):
            new = self._joining(pool, V[chosen])
            if not len(new):
                break
            m = self._join(V, G, m, new)
            pool = np.concatenate([pool, new])
            chosen = self._swap(pool, V[:m], G[:m, :m], chosen)
        return np.sort(pool[chosen])

    def _join(self, V: NDArray[np.float32], G: NDArray[np.float32], m: int, new: NDArray[np.int64]) -> int:
        """Write the vectors and inner products of new candidates behind the first m; return how many there are now."""
        n = m + len(new)
        V[m:n] = self.rows(new)
        G[m:n, :n] = V[m:n] @ V[:n].T
        G[:m, m:n] = G[m:n, :m].T
        return n

    def _distance2(self, S: NDArray[np.float32]) -> float:
        gap = S.mean(axis=0, dtype=np.float64) - self.target
        return float(gap @ gap)

    def _first_candidates(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return all free rows of each domain, or a random part in proportion to its quota where there are many."""
        size = max(CANDIDATES, 2 * self.k)
        kept = []
        for d, q in enumerate(self.quota.tolist()):
            own = np.flatnonzero(self.free & (self.label == d))
            most = max(200, -(-size * q // self.k))
            if len(own) > most:
                # One row per group first, so that quotas can be filled whatever the draw.
                own = rng.permutation(own)
                _, first = np.unique(self.group[own], return_index=True)
                own = own[np.sort(first)][:most]
            kept.append(own)
        return np.sort(np.concatenate(kept))

    def _herd(self, pool: NDArray[np.int64], V: NDArray[np.float32], G: NDArray[np.float32]) -> NDArray[np.int64]:
        toward = (V @ self.target.astype(np.float32)).astype(np.float64)
        norm = np.diag(G).astype(np.float64)
        label, group = self.label[pool], self.group[pool]
        left = self.quota.copy()
        open_ = np.ones(len(pool), dtype=bool)
        total = np.zeros(len(pool))  # inner products with the sum of what is chosen
        out: list[int] = []
        while len(out) < self.k:
            value = np.round(2 * total - 2 * (len(out) + 1) * toward + norm, _DECIMALS)
            value[~open_ | (left[label] == 0)] = np.inf
            best = int(np.argmin(value))
            if not np.isfinite(value[best]):
                break
            out.append(best)
            left[label[best]] -= 1
            open_ &= group != group[best]
            total += G[best]
        return np.array(out, dtype=np.int64)

    def _draw(self, pool: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Return a random choice under the same quotas."""
        left = self.quota.copy()
        seen: set[int] = set()
        out = []
        for i in rng.permutation(len(pool)).tolist():
            d, g = int(self.label[pool[i]]), int(self.group[pool[i]])
            if left[d] and g not in seen:
                left[d] -= 1
                seen.add(g)
                out.append(i)
        return np.array(out, dtype=np.int64)

    def _swap(
        self, pool: NDArray[np.int64], V: NDArray[np.float32], G: NDArray[np.float32], chosen: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Give each chosen row in turn to the candidate of its domain that closes the gap best, until none does."""
        k = len(chosen)
        toward = k * (V @ self.target.astype(np.float32)).astype(np.float64)
        norm = np.diag(G).astype(np.float64)
        label, group = self.label[pool], self.group[pool]
        own = {d: np.flatnonzero(label == d) for d in np.unique(label[chosen]).tolist()}
        taken = np.zeros(int(self.group.max()) + 1, dtype=bool)
        taken[group[chosen]] = True
        chosen = chosen.copy()
        total = G[chosen].sum(axis=0, dtype=np.float64)
        for _ in range(30):
            moved = False
            for place in range(k):
                i = int(chosen[place])
                others = own[int(label[i])]
                value = 2 * (total[others] - G[i, others] - toward[others]) + norm[others]
                here = value[np.searchsorted(others, i)]
                value[taken[group[others]] & (group[others] != group[i])] = np.inf
                best = int(np.argmin(np.round(value, _DECIMALS)))
                if value[best] < here - _WORTH:
                    j = int(others[best])
                    chosen[place] = j
                    taken[group[i]], taken[group[j]] = False, True
                    total += G[j].astype(np.float64) - G[i]
                    moved = True
            if not moved:
                break
        return chosen

    def _joining(self, pool: NDArray[np.int64], S: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the rows outside the candidates that point most against the gap, per domain by quota."""
        gap = S.mean(axis=0, dtype=np.float64) - self.target
        D = self.F.shape[1]
        pull = self.F @ gap[:D].astype(np.float32)
        if self.extra is not None:
            pull = pull + self.extra @ gap[D:].astype(np.float32)
        outside = self.free.copy()
        outside[pool] = False
        new = []
        for d, q in enumerate(self.quota.tolist()):
            own = np.flatnonzero(outside & (self.label == d))
            new.append(own[np.argsort(np.round(pull[own], _DECIMALS), kind="stable")[: -(-JOINING * q // self.k)]])
        return np.concatenate(new)
