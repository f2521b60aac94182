"""Which k prompts of a pool stand for the whole mix: domain quotas, then the smallest kernel distance under them.

The squared distance of a chosen set S to the mix is MMD^2 under k(x, y) = the mean of the Gaussian kernels at the
bandwidths that a score tests. Up to what the mix alone decides it is

    mean of k(s, s') over S x S  -  2 * mean of m(s) over S,        m(x) = mean of k(x, y) over the mix,

and we hold both exactly: k between all candidates, m of each candidate over every row of the mix. Features of the
kernel, random or landmark, are cheaper and lead to sets that fit what the features see: past k = 200 plain kernel
thinning beat them (`benchmarks/selection.py`).

First kernel herding restricted to the pool (Chen, Welling, Smola 2010: error O(1/k), where random draws have
O(1/sqrt k)): take again and again the prompt that brings the mean of what is chosen nearest to the mix. Then swap
chosen prompts for others of their domain until no swap helps. That ends in one of many hollows, so a few of the chosen
are replaced at random and the swaps begin again from there, and what is nearer is kept: this finds deeper ones than
as many fresh starts do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit.errors import InputError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

CANDIDATES = 4000  # rows of a large pool that are searched, drawn by quota: their kernel takes 64 MB
KICKS = (400, 8000)  # how often a few of the chosen are replaced at random: the first, or the second over k if fewer
KICKED = 0.05  # of the chosen, and never fewer than two
ROUNDS = 5  # of choosing again without what `drop` names
_WORTH = 1e-6  # a swap must lower half of k^2 MMD^2 by this, which is above the noise of float32 kernels


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


def kernel(X: NDArray[Any], Y: NDArray[Any], *, bandwidth2: float) -> NDArray[np.float32]:
    """Return the (n, m) mean of exp(-|x - y|^2 / (2 s bandwidth2)) over s = 1, 1/2 and 1/4, the bandwidths of a score.

    Sets chosen under the mean of the three are as near or nearer at the first alone than those chosen under it, and
    hold better on rows that nobody has seen: the wide kernel alone leaves the search in shallower hollows.
    """
    from promptkit import distances

    K: NDArray[np.float32] = distances.squared_distances(np.asarray(X, np.float32), np.asarray(Y, np.float32))
    for i in range(0, len(K), 256):  # blocks that stay near the processor, and need no second matrix
        part = K[i : i + 256]
        part *= np.float32(-0.5 / bandwidth2)
        np.exp(part, out=part)  # at s; its square is the one at s / 2, the square of that at s / 4
        square = part * part
        part += square
        square *= square
        part += square
        part /= np.float32(3)
    return K


def select(
    X: NDArray[Any],
    mix: NDArray[Any],
    *,
    k: int,
    domains: Sequence[str],
    weights: NDArray[Any] | None = None,
    bandwidth2: float | None = None,
    quotas: Mapping[str, int] | None = None,
    extra: NDArray[Any] | None = None,
    extra_target: NDArray[Any] | None = None,
    groups: NDArray[Any] | None = None,
    exclude: NDArray[Any] | None = None,
    drop: Callable[[NDArray[np.int64]], Sequence[int]] | None = None,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Return the indices, ascending, of `k` pool rows that are as near to the mix as quotas allow.

    X : ndarray (n, d), the pool.  mix : ndarray (m, d), rows of the mix, which count by `weights` (m,) or alike.
    bandwidth2 : None: the median squared distance of the mix.  domains : n names.  quotas : domain -> count (as
    `quotas` gives; a domain that holds fewer hands the rest on); None: no quotas.  extra, extra_target : (n, e) and
    (e,), features (lengths, turns, tools) whose mean shall be near the target too, scaled to the weight they shall
    have.  groups : (n,) ids of near-duplicates, of which at most one is taken.  exclude : (n,) bool, rows that must
    not be taken (leaks).  drop : asked which of the indices chosen must go after all; without them we choose again.

    Fewer than k indices come back where the pool holds fewer distinct prompts in the domains asked for. Deterministic
    for a seed, which decides the kicks, and which rows of a large pool are candidates.
    """
    from threadpoolctl import threadpool_limits

    from promptkit import distances

    X, mix = distances.checked(X, "pool"), distances.checked(mix, "mix")
    n = len(X)
    if n != len(domains) or (groups is not None and len(groups) != n) or (exclude is not None and len(exclude) != n):
        raise InputError(f"selection: {n} pool rows, {len(domains)} domains; expected as many groups and marks")
    if k < 1:
        raise UsageError(f"k is {k}", hint="give a number of prompts above 0")
    labels = np.array(domains if quotas is not None else ["all"] * n, dtype=object)
    group = np.unique(groups, return_inverse=True)[1] if groups is not None else np.arange(n)
    free = np.ones(n, dtype=bool) if exclude is None else ~np.asarray(exclude, dtype=bool)
    free &= _in_domain_of_group(labels, group, free)
    names, label = np.unique(labels.astype(str), return_inverse=True)
    rng = np.random.default_rng(seed)

    def quota_of(free: NDArray[np.bool_]) -> NDArray[np.int64]:
        available = {d: len(np.unique(group[free & (label == i)])) for i, d in enumerate(names.tolist())}
        wanted = _feasible({"all": k} if quotas is None else quotas, k, available)
        return np.array([wanted.get(d, 0) for d in names.tolist()], dtype=np.int64)

    quota = quota_of(free)
    if not quota.sum():
        return np.empty(0, dtype=np.int64)
    pool = _candidates(quota, label, group, free, rng)
    with threadpool_limits(1):  # sums in one order, whatever the number of cores
        b = distances.median_squared_distance(mix) if bandwidth2 is None else bandwidth2
        G = kernel(X[pool], X[pool], bandwidth2=b)
        toward = _mean_kernel(X[pool], mix, weights, b)
        if extra is not None:
            E = np.asarray(extra[pool], np.float32)
            G += E @ E.T
            toward += E @ (np.zeros(E.shape[1]) if extra_target is None else np.asarray(extra_target, np.float64))
        open_ = np.ones(len(pool), dtype=bool)
        for _ in range(ROUNDS):
            search = _Search(G, toward, label[pool], group[pool], open_, quota)
            chosen = np.sort(pool[search.run(rng)])
            gone = np.asarray([] if drop is None else drop(chosen), np.int64)
            if not len(gone):
                return chosen
            open_ &= ~np.isin(pool, gone)
            left = np.zeros(n, dtype=bool)
            left[pool[open_]] = True
            quota = quota_of(left)
            if not quota.sum():
                return np.empty(0, dtype=np.int64)
        return np.setdiff1d(chosen, gone)


def _feasible(wanted: Mapping[str, int], k: int, available: Mapping[str, int]) -> dict[str, int]:
    """Hand on what a domain cannot fill; shares that are counts over k come back as they are where they fit."""
    positive = {d: float(q) for d, q in wanted.items() if q > 0}
    return quotas(positive, min(k, sum(wanted.values())), available=available) if positive else {}


def _in_domain_of_group(labels: NDArray[Any], group: NDArray[Any], free: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark rows in the domain of their group's first free row: it counts in one domain, so quotas can be filled."""
    first: dict[int, Any] = {}
    return np.array([free[i] and first.setdefault(g, labels[i]) == labels[i] for i, g in enumerate(group.tolist())])


def _candidates(
    quota: NDArray[np.int64],
    label: NDArray[np.int64],
    group: NDArray[np.int64],
    free: NDArray[np.bool_],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return the free rows, domain by domain, or a random part in proportion to its quota where there are many."""
    k = int(quota.sum())
    size = max(CANDIDATES, 2 * k)
    kept = []
    for d, q in enumerate(quota.tolist()):
        own = np.flatnonzero(free & (label == d)) if q else np.empty(0, np.int64)
        most = max(200, -(-size * q // k))
        if len(own) > most:
            # One row per group first, so that quotas can be filled whatever the draw.
            own = rng.permutation(own)
            _, first = np.unique(group[own], return_index=True)
            own = np.sort(own[np.sort(first)][:most])
        kept.append(own)
    return np.concatenate(kept)


def _mean_kernel(X: NDArray[Any], mix: NDArray[Any], weights: NDArray[Any] | None, b: float) -> NDArray[np.float64]:
    w = np.ones(len(mix)) if weights is None else np.asarray(weights, np.float64)
    w = w / w.sum()
    out = np.zeros(len(X))
    for i in range(0, len(mix), 1024):  # blocks that stay near the processor
        out += kernel(X, mix[i : i + 1024], bandwidth2=b) @ w[i : i + 1024]
    return out


class _Search:
    """The chosen set while it is searched: places of candidates, which come domain by domain.

    What a swap of i for j changes of k^2 MMD^2, halved, is cost[j] - G[i, j] - (cost[i] - G[i, i]), where
    cost[x] = sum of G[x, chosen] + G[x, x] / 2 - k * toward[x].
    """

    def __init__(
        self,
        G: NDArray[np.float32],
        toward: NDArray[np.float64],
        label: NDArray[np.int64],
        group: NDArray[np.int64],
        open_: NDArray[np.bool_],
        quota: NDArray[np.int64],
    ) -> None:
        self.G, self.toward, self.label, self.group, self.open, self.quota = G, toward, label, group, open_, quota
        self.k = int(quota.sum())
        self.norm = np.diag(G).astype(np.float64)
        ends = np.cumsum(np.bincount(label, minlength=len(quota)))
        self.own = [slice(int(e - c), int(e)) for e, c in zip(ends, np.diff(ends, prepend=0), strict=True)]
        by_group = np.argsort(group, kind="stable")
        bounds = np.searchsorted(group[by_group], group, "left"), np.searchsorted(group[by_group], group, "right")
        self.twins = [by_group[a:b] for a, b in zip(*bounds, strict=True)]  # of each candidate, itself among them

    def run(self, rng: np.random.Generator) -> NDArray[np.int64]:
        best = self._swap(self._herd())
        value = self._value(best)
        for _ in range(min(KICKS[0], KICKS[1] // self.k)):
            chosen = self._swap(self._kick(best, rng))
            lower = self._value(chosen)
            if lower < value - _WORTH:
                best, value = chosen, lower
        return best

    def _value(self, chosen: NDArray[np.int64]) -> float:
        """Return half of k^2 MMD^2, up to what no choice changes."""
        k = len(chosen)
        return float(self.G[np.ix_(chosen, chosen)].sum(dtype=np.float64) / 2 - k * self.toward[chosen].sum())

    def _herd(self) -> NDArray[np.int64]:
        left = self.quota.copy()
        shut = ~self.open | (left[self.label] == 0)
        total = self.norm / 2
        out: list[int] = []
        while len(out) < self.k:
            value = total - (len(out) + 1) * self.toward
            value[shut] = np.inf
            best = _first_least(value)
            if not np.isfinite(value[best]):
                break
            out.append(best)
            d = int(self.label[best])
            left[d] -= 1
            shut[self.twins[best]] = True
            if left[d] == 0:
                shut[self.own[d]] = True
            total += self.G[best]
        return np.array(out, dtype=np.int64)

    def _kick(self, chosen: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the choice with a few of its rows replaced by random ones of their domain."""
        out: NDArray[np.int64] = chosen.copy()
        shut = self._shut(out)
        few = min(len(out), max(2, math.ceil(KICKED * len(out))))
        for place in rng.permutation(len(out))[:few].tolist():
            own = self.own[self.label[out[place]]]
            free = np.flatnonzero(~shut[own])
            if len(free):
                out[place] = own.start + free[rng.integers(len(free))]
                shut[self.twins[out[place]]] = True
        return out

    def _shut(self, chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
        shut = ~self.open
        shut[np.concatenate([self.twins[i] for i in chosen.tolist()])] = True
        return shut

    def _swap(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give each chosen row in turn to the candidate of its domain that closes the gap best, until none does."""
        chosen, G = chosen.copy(), self.G
        k = len(chosen)
        cost = G[chosen].sum(axis=0, dtype=np.float64) + self.norm / 2 - k * self.toward
        shut = self._shut(chosen)
        idle, place = 0, 0
        for _ in range(30 * k):
            if idle == k:
                break
            i = int(chosen[place])
            own = self.own[self.label[i]]
            value = cost[own] - G[i, own]
            here = value[i - own.start]
            value[shut[own]] = np.inf
            for twin in self.twins[i].tolist():  # may take its twin's place
                if self.open[twin]:
                    value[twin - own.start] = cost[twin] - G[i, twin]
            best = _first_least(value)
            idle += 1
            if value[best] < here - _WORTH:
                j = chosen[place] = own.start + best
                shut[self.twins[i]] = ~self.open[self.twins[i]]
                shut[self.twins[j]] = True
                cost += G[j]
                cost -= G[i]
                idle = 0
            place = (place + 1) % k
        return chosen


def _first_least(value: NDArray[np.float64]) -> int:
    """Return the first place whose value is the least but for noise: ties fall alike on every processor."""
    return int(np.argmax(value <= value.min() + _WORTH))
