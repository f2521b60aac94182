"""How sure a number is: nulls, p-values, intervals, power. Written once, for any statistic of a set of rows.

What the score asks of it (`statistics.md`, section 2): a set of n candidates stands beside draws of n rows from
the *held-out* part of the mix, rows that nothing was fitted on. Several statistics look for different faults, so
their p-values are joined by their minimum, and the minimum is ranked among minima of the null: an uncalibrated
minimum of five p-values "finds" 10-16 % false alarms at 5 %. Each ranking uses draws that no earlier ranking has
used: single p-values from the first batch, family minima from the second, the final minimum from the third.

    p = (1 + number of null values at least as extreme) / (1 + number of null values)

is valid for any number of draws, never zero, and its smallest value is 1 / (1 + draws). Nothing here knows what a
prompt is: rows in, numbers out. Everything random takes `rng`, a seed or a generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptkit import gpu
from promptkit.errors import InputError, UsageError

if TYPE_CHECKING:
    from numpy.random import Generator

Floats = NDArray[np.float64]
Statistic = Callable[[NDArray[Any], NDArray[Any]], float]

# ------------------------------------------------------------------------------------------------ draws


def draw_subsets(
    n: int, pool: int, draws: int, *, rng: int | Generator, probabilities: NDArray[Any] | None = None
) -> NDArray[np.int32]:
    """Return (draws, n) sorted row numbers: each line a random n-subset of range(pool).

    Without replacement, all subsets equally likely. With `probabilities` (pool,), rows are drawn with replacement
    in proportion to them, which is what a mix weighted by tokens needs.
    """
    rng = np.random.default_rng(rng)
    if probabilities is not None:
        edges = np.cumsum(np.asarray(probabilities, dtype=np.float64))
        rows = np.searchsorted(edges, rng.random((draws, n)) * edges[-1], side="right")
        return np.asarray(np.sort(np.minimum(rows, pool - 1), axis=1), dtype=np.int32)
    if not 0 < n <= pool:
        raise UsageError(f"cannot draw {n} different rows from {pool}", hint="give a smaller n or a larger reference")
    if 2 * n > pool:
        if n == pool:
            return np.tile(np.arange(pool, dtype=np.int32), (draws, 1))
        keys = rng.random((draws, pool), dtype=np.float32)
        return np.sort(np.argpartition(keys, n, axis=1)[:, :n].astype(np.int32), axis=1)
    # Rows that came twice are drawn again until none does: every label is treated alike, so every subset stays
    # equally likely, and the cost is that of n numbers per draw rather than of a shuffle of the whole pool.
    rows = np.sort(rng.integers(0, pool, size=(draws, n), dtype=np.int32), axis=1)
    todo = np.arange(draws)
    while todo.size:
        part = rows[todo]
        twice = np.zeros(part.shape, dtype=bool)
        twice[:, 1:] = part[:, 1:] == part[:, :-1]
        todo = todo[twice.any(axis=1)]
        part, twice = part[twice.any(axis=1)], twice[twice.any(axis=1)]
        part[twice] = rng.integers(0, pool, size=int(twice.sum()), dtype=np.int32)
        rows[todo] = np.sort(part, axis=1)
    return np.asarray(rows)


def draw_units(n: int, units: NDArray[Any], draws: int, *, rng: int | Generator) -> NDArray[np.int32]:
    """Return (draws, n) row numbers: n different units each, and one random row of each unit.

    A unit is a group of near-duplicates. Held-out units are held out whole, so a prompt that the mix repeats 90 times
    is either absent from the held-out rows or far too frequent there; drawn as one unit it can distort nothing.
    """
    rng = np.random.default_rng(rng)
    _, unit, size = np.unique(units, return_inverse=True, return_counts=True)
    members = np.argsort(unit, kind="stable")
    drawn = draw_subsets(n, len(size), draws, rng=rng)
    if len(size) == len(members):
        return np.asarray(members[drawn], dtype=np.int32)
    within = (rng.random(drawn.shape, dtype=np.float32) * size[drawn]).astype(np.int64)
    at = (np.cumsum(size) - size)[drawn] + np.minimum(within, size[drawn] - 1)
    return np.asarray(members[at], dtype=np.int32)


def weighted_means(
    rows: NDArray[np.int32],
    table: NDArray[Any],
    weights: NDArray[Any] | None = None,
    *,
    rng: int | Generator = 0,
    device: str = "cpu",
) -> NDArray[Any]:
    """Return (draws, columns): for each line of `rows`, the mean of those rows of `table`.

    One product of a matrix of weights with the table: 6,000 draws of 200 from 5,000 rows of 1,500 columns take 0.8 s on
    one core. Sparse, 128 columns at a time, so that the table's block stays in the cache (2.5 times as fast as whole
    rows); dense where a draw takes more than an eighth of the rows. `weights` (n,) sum to one and are dealt to the
    rows of each line anew, since lines come sorted. `device` "cuda": float32 on a GPU, within 1e-6 (`gpu`).
    """
    draws, n = rows.shape
    starts = np.arange(0, draws * n, n)
    if weights is None or np.ptp(weights) == 0:
        if device != "cpu":
            found = gpu.sums(rows.ravel(), starts, None, table, device=gpu.resolve(device))
            return np.asarray(found / found.dtype.type(n))
        data = np.full(draws * n, 1.0 / n)
    else:
        data = np.random.default_rng(rng).permuted(np.tile(weights, (draws, 1)), axis=1).ravel()
    data = data.astype(table.dtype)
    if device != "cpu":
        return gpu.sums(rows.ravel(), starts, data, table, device=gpu.resolve(device))
    if 8 * n > len(table):
        out = np.empty((draws, table.shape[1]), dtype=table.dtype)
        for start in range(0, draws, 512):  # 512 lines of 10,000 rows: 20 MB
            block = rows[start : start + 512]
            line = np.repeat(np.arange(len(block)), n) * len(table)
            flat = np.bincount(
                line + block.ravel(), data[start * n : (start + len(block)) * n], len(block) * len(table)
            )
            out[start : start + 512] = flat.reshape(len(block), len(table)).astype(table.dtype) @ table
        return out
    from scipy.sparse import csr_matrix

    matrix = csr_matrix((data, rows.ravel(), np.arange(0, draws * n + 1, n)), shape=(draws, len(table)))
    blocks = [matrix @ np.ascontiguousarray(table[:, at : at + 128]) for at in range(0, table.shape[1], 128)]
    return np.concatenate(blocks, axis=1)


# ------------------------------------------------------------------------------------------------ p-values


def p_value(observed: float, null: NDArray[Any]) -> float:
    """Return (1 + #{null >= observed}) / (1 + len(null)): large values are extreme. NaN for a NaN observed."""
    return math.nan if math.isnan(observed) else float(p_values(np.array([observed]), null)[0])


def p_values(observed: NDArray[Any], null: NDArray[Any]) -> Floats:
    """Return `p_value` of each of `observed` among the same null."""
    ranked = np.sort(np.asarray(null, dtype=np.float64))
    at_least = len(ranked) - np.searchsorted(ranked, np.asarray(observed, dtype=np.float64), side="left")
    return np.asarray((1.0 + at_least) / (1.0 + len(ranked)), dtype=np.float64)


@dataclass(frozen=True)
class Joint:
    """P-values of one set: of each statistic, of each family (calibrated minimum), and overall (calibrated again)."""

    single: dict[str, float]
    family: dict[str, float]
    overall: float
    depth: float  # -log of the smaller family p-value
    null_depths: Floats  # the same of the third batch, ascending: what `depth` was ranked among


class Ranking:
    """Three batches of null draws, turned into what calibrates single p-values, family minima and the final minimum.

    Parameters
    ----------
    batches : three arrays (draws, s) of the same statistics under the null, from draws that share nothing; large is
    extreme. names : the s names. families : family name -> names of its statistics.
    """

    def __init__(
        self, batches: Sequence[NDArray[Any]], names: Sequence[str], families: Mapping[str, Sequence[str]]
    ) -> None:
        first, second, third = (np.asarray(b, dtype=np.float64) for b in batches)
        self.names, self.families = tuple(names), {f: [names.index(m) for m in ms] for f, ms in families.items()}
        self._first = np.sort(first, axis=0)
        depths = self._depths(second)
        self._minima = {f: np.sort(depths[:, at].max(axis=1)) for f, at in self.families.items()}
        self._final = np.sort(self._family_depths(self._depths(third)).max(axis=1))

    def _depths(self, values: NDArray[Any]) -> Floats:
        return np.stack([_depth(values[:, i], self._first[:, i]) for i in range(len(self.names))], axis=1)

    def _family_depths(self, depths: Floats) -> Floats:
        return np.stack([_depth(depths[:, at].max(axis=1), self._minima[f]) for f, at in self.families.items()], axis=1)

    def __call__(self, observed: NDArray[Any]) -> tuple[Floats, Floats, Floats]:
        """Return the p-values of m sets (m, s): single (m, s), by family (m, families) and overall (m,)."""
        observed = np.asarray(observed, dtype=np.float64)
        depths = self._depths(observed)
        deepest = self._family_depths(depths).max(axis=1)
        return (
            np.stack([p_values(observed[:, i], self._first[:, i]) for i in range(len(self.names))], axis=1),
            np.stack([p_values(depths[:, at].max(axis=1), self._minima[f]) for f, at in self.families.items()], axis=1),
            p_values(deepest, self._final),
        )

    def joint(self, observed: NDArray[Any]) -> Joint:
        """Return the p-values of one set (s,), by name."""
        single, family, overall = self(np.asarray(observed)[None, :])
        return Joint(
            single={name: float(p) for name, p in zip(self.names, single[0], strict=True)},
            family={name: float(p) for name, p in zip(self.families, family[0], strict=True)},
            overall=float(overall[0]),
            depth=float(self._family_depths(self._depths(np.asarray(observed, dtype=np.float64)[None, :])).max()),
            null_depths=self._final,
        )


def _depth(values: NDArray[Any], ascending: NDArray[Any]) -> Floats:
    """Return -log p of each value, going on beyond the largest null value by the distance to it.

    Ranks alone tie all values beyond the null, and a minimum of tied p-values cannot be told from what chance gives
    once in 1 + draws. Any function of the first batch may order what comes later: the ranking stays exact.
    """
    p = p_values(values, ascending)
    spread = float(ascending.std()) or 1.0
    return np.asarray(np.maximum(values - ascending[-1], 0.0) / spread - np.log(p))


@dataclass(frozen=True)
class Test:
    """The answer of a test and what it rests on."""

    statistic: float
    p_value: float
    null: Floats

    __test__ = False  # pytest: not a test case

    @property
    def floor(self) -> float:
        """Mean of the statistic under the null."""
        return float(self.null.mean())


def null_test(
    X: NDArray[Any],
    held_out: NDArray[Any],
    fitted: NDArray[Any],
    statistic: Statistic,
    *,
    draws: int = 1999,
    rng: int | Generator = 0,
    probabilities: NDArray[Any] | None = None,
) -> Test:
    """Return the size-matched test of statistic(X, fitted) against draws of len(X) rows of `held_out`.

    For sets that are small beside the held-out part (a tenth at most); else `permutation_test` is right.
    """
    rows = draw_subsets(len(X), len(held_out), draws, rng=rng, probabilities=probabilities)
    null = np.array([statistic(held_out[r], fitted) for r in rows])
    observed = float(statistic(X, fitted))
    return Test(observed, p_value(observed, null), null)


def permutation_test(
    X: NDArray[Any],
    held_out: NDArray[Any],
    statistic: Statistic,
    *,
    fitted: NDArray[Any] | None = None,
    draws: int = 1999,
    rng: int | Generator = 0,
) -> Test:
    """Return the permutation test of X against `held_out`: n rows drawn from both together take the place of X.

    Exact at any size, for any statistic. With `fitted` the statistic compares the n rows with those fixed rows; without
    it, with the rows of the pool that were not drawn.
    """
    pool = np.concatenate([X, held_out])
    n, everything = len(X), np.arange(len(pool))

    def of(rows: NDArray[Any]) -> float:
        rest = fitted if fitted is not None else pool[np.setdiff1d(everything, rows, assume_unique=True)]
        return float(statistic(pool[rows], rest))

    null = np.array([of(r) for r in draw_subsets(n, len(pool), draws, rng=rng)])
    observed = of(everything[:n])
    return Test(observed, p_value(observed, null), null)


def sign_flip_test(differences: NDArray[Any], *, draws: int = 1999, rng: int | Generator = 0) -> Test:
    """Return the two-sided paired test that differences (n,) are symmetric about zero; statistic = |mean|.

    For two measurements of the same prompts, such as typicality under two mixes.
    """
    d = np.asarray(differences, dtype=np.float64)
    signs = np.random.default_rng(rng).choice(np.array([-1.0, 1.0]), size=(draws, len(d)))
    null = np.abs((signs * d).mean(axis=1))
    observed = abs(float(d.mean()))
    return Test(observed, p_value(observed - 1e-12, null), null)


def compare_sets(
    A: NDArray[Any],
    B: NDArray[Any],
    statistic: Callable[[NDArray[Any]], float],
    *,
    paired: bool = False,
    n_shared: int = 0,
    draws: int = 1999,
    rng: int | Generator = 0,
) -> Test:
    """Return the two-sided test that two sets are equally far from a mix: |statistic(A) - statistic(B)|.

    `statistic` takes one set's rows (its distance to the mix). Labels are shuffled over all rows, or, when row i of A
    and row i of B belong together (two versions of one prompt), swapped within pairs. The first `n_shared` rows of A
    and B are the same ones: a shuffled deal gives both sets as many in common, of all rows.
    """
    rng = np.random.default_rng(rng)
    if paired and len(A) != len(B):
        raise InputError(f"paired comparison: {len(A)} and {len(B)} rows, expected equally many")
    observed = abs(statistic(A) - statistic(B))
    pool, n = np.concatenate([A, B[n_shared:]]), len(A)
    null = np.empty(draws)
    for i in range(draws):
        if paired:
            swap = rng.random(n) < 0.5
            swap = swap.reshape(-1, *[1] * (A.ndim - 1))
            one, other = np.where(swap, B, A), np.where(swap, A, B)
        else:
            order = rng.permutation(len(pool))
            one, other = pool[order[:n]], pool[np.concatenate([order[:n_shared], order[n:]])]
        null[i] = abs(statistic(one) - statistic(other))
    return Test(observed, p_value(observed - 1e-12, null), null)


# ------------------------------------------------------------------------------------------------ many at once


def holm(p: Sequence[float] | NDArray[Any]) -> Floats:
    """Return Holm's adjusted p-values: the chance of any false alarm among them stays below the level."""
    p = np.asarray(p, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    out = np.empty_like(p)
    out[order] = np.minimum(steps, 1.0)
    return out


def benjamini_hochberg(p: Sequence[float] | NDArray[Any]) -> Floats:
    """Return Benjamini and Hochberg's adjusted p-values: the expected share of false alarms stays below the level."""
    p = np.asarray(p, dtype=np.float64)
    order = np.argsort(p, kind="stable")[::-1]
    steps = np.minimum.accumulate(p[order] * len(p) / (len(p) - np.arange(len(p))))
    out = np.empty_like(p)
    out[order] = np.minimum(steps, 1.0)
    return out


def binomial_at_most(k: int, n: int, p: float) -> float:
    """Return P(X <= k) of a binomial count, summed exactly (n is a number of prompts, not of rows)."""
    if p <= 0.0 or k >= n:
        return 1.0
    if p >= 1.0:
        return 0.0
    i = np.arange(k + 1)
    logs = np.array([math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1) for j in range(k + 1)])
    return min(1.0, float(np.exp(logs + i * math.log(p) + (n - i) * math.log1p(-p)).sum()))


def share_test(share: float, n: float, expected: float, m: float) -> float:
    """Return the two-sided p-value of a share seen in n draws, where `expected` is itself a share of m rows.

    Binomial, of as many draws as have the variance of the difference, 1 / (1/n + 1/m): a sample of 500 rows does not
    know its shares to the percent. A kind that the m rows lack is taken to have one row in m + 1. n and m may be
    effective numbers. Doubling the smaller tail makes it conservative.
    """
    draws = max(1, round(1.0 / (1.0 / n + 1.0 / m)))
    k, expected = round(share * draws), min(max(expected, 1.0 / (m + 1.0)), 1.0 - 1.0 / (m + 1.0))
    low = binomial_at_most(k, draws, expected)
    high = 1.0 - binomial_at_most(k - 1, draws, expected) if k > 0 else 1.0
    return min(1.0, 2.0 * max(0.0, min(low, high)))


# ------------------------------------------------------------------------------------------------ intervals


def normal_cdf(x: float) -> float:
    """Return the chance that a standard normal value is at most x."""
    return NormalDist().cdf(x)


def z(level: float = 0.95) -> float:
    """Return how many standard errors an interval of this level reaches to each side."""
    return NormalDist().inv_cdf(0.5 + level / 2)


def t(level: float, df: float) -> float:
    """Return the two-sided quantile of Student's t, by the Cornish-Fisher series (within 0.02 from 6 degrees on)."""
    x = z(level)
    return x + (x**3 + x) / (4 * df) + (5 * x**5 + 16 * x**3 + 3 * x) / (96 * df**2)


def wilson(share: float, n: float, *, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval of a share seen in n cases (n may be an effective number, hence a float)."""
    if n <= 0:
        return 0.0, 1.0
    k = z(level)
    middle = (share + k * k / (2 * n)) / (1 + k * k / n)
    half = k / (1 + k * k / n) * math.sqrt(share * (1 - share) / n + k * k / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def effective_size(weights: NDArray[Any]) -> float:
    """Return Kish's effective number (sum w)^2 / sum w^2: what n equal weights would tell as much as these."""
    w = np.asarray(weights, dtype=np.float64)
    return float(w.sum() ** 2 / (w * w).sum())


def bootstrap(
    values: NDArray[Any],
    statistic: Callable[[NDArray[Any]], float] | None = None,
    *,
    level: float = 0.95,
    draws: int = 999,
    rng: int | Generator = 0,
) -> tuple[float, float]:
    """Return the percentile interval of a statistic of rows (default: the mean), resampling rows.

    For means and shares. Wrong for MMD^2 where the sets are alike (a degenerate U-statistic): `jackknife_mmd2`.
    """
    values, rng = np.asarray(values), np.random.default_rng(rng)
    rows = rng.integers(0, len(values), size=(draws, len(values)))
    if statistic is None:
        stats = values[rows].mean(axis=1)
    else:
        stats = np.array([statistic(values[r]) for r in rows])
    low, high = np.quantile(stats, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def half_sample(
    n: int,
    statistic: Callable[[NDArray[np.int64]], Floats],
    *,
    centre: float,
    extra: float = 0.0,
    level: float = 0.95,
    draws: int = 99,
    rng: int | Generator = 0,
) -> tuple[float, float]:
    """Return centre +- t sd over random halves: subsampling, for what resampling with repeats would spoil.

    Halves drawn *without* replacement scatter about the whole exactly as the whole scatters about the truth:
    s^2 (1/(n/2) - 1/n) = s^2 / n (the delete-half jackknife). `statistic` takes the row numbers of all halves, (draws,
    n // 2), and gives (draws,). `extra` is a variance that the rows do not show, such as that of the other side of a
    comparison.
    """
    rows = draw_subsets(max(1, n // 2), n, draws, rng=rng)
    variance = float(np.var(statistic(rows.astype(np.int64)), ddof=1)) + extra
    half = t(level, n - 1) * math.sqrt(variance)
    return centre - half, centre + half


def jackknife_mmd2(features: NDArray[Any], mean: NDArray[Any], within: float, weights: NDArray[Any]) -> Jackknife:
    """Return the unbiased MMD^2 of feature rows to a fixed mean embedding, with its jackknife standard error.

    Parameters
    ----------
    features : (n, D) rows with f.f = 1 (`FourierFeatures`). mean : (D,) mean feature of the mix.
    within : mean kernel between different rows of the mix. weights : (n,) summing to one.

    The jackknife of a U-statistic is right where the sets differ and too wide (by up to sqrt 2) where they do not:
    the safe side for a claim of equality. Leaving one row out costs nothing, since only means change.
    """
    F, w = np.asarray(features, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    n = len(F)
    m = w @ F
    to_mix, to_own = F @ mean, F @ m

    def unbiased(own: NDArray[Any] | float, squares: NDArray[Any] | float, cross: NDArray[Any] | float) -> Any:
        return (own - squares) / (1.0 - squares) + within - 2.0 * cross

    value = float(unbiased(m @ m, w @ w, m @ mean)) if n > 1 else math.nan
    if n < 3:
        return Jackknife(value, math.nan, np.full(n, math.nan), math.nan)
    rest = 1.0 - w
    own = (m @ m - 2.0 * w * to_own + w * w) / rest**2  # |m without i|^2, with f_i.f_i = 1
    squares = (w @ w - w * w) / rest**2
    left_out = unbiased(own, squares, (m @ mean - w * to_mix) / rest)
    stderr = math.sqrt((n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum()))
    # Mean squared kernel between different rows, centred on the set: ||F'WF||^2 without its diagonal.
    C = F - m
    halves = C * np.sqrt(w)[:, None]
    second = halves @ halves.T if n < F.shape[1] else halves.T @ halves  # of one length: the smaller is sooner made
    pairs = float((second * second).sum() - ((w * (C * C).sum(axis=1)) ** 2).sum()) / (1.0 - float(w @ w))
    return Jackknife(value, stderr, left_out, 4.0 * max(0.0, pairs) * float(w @ w) ** 2)


@dataclass(frozen=True)
class Jackknife:
    """An estimate, its standard error, the estimate without each row in turn.

    `second_order` is the part of stderr^2 that falls as 1/n^2, all of it where the sets are alike; the rest falls
    as 1/n.
    """

    value: float
    stderr: float
    left_out: Floats
    second_order: float

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return value +- z stderr."""
        return self.value - z(level) * self.stderr, self.value + z(level) * self.stderr


def equivalence(value: float, stderr: float, margin: float) -> float:
    """Return the one-sided p-value of "at least `margin` away": small means close, not merely "not rejected".

    Not rejecting a difference is no evidence of its absence; this is (two one-sided tests, of which a distance
    needs one).
    """
    if not stderr > 0.0 or math.isnan(value):
        return math.nan
    return NormalDist().cdf((value - margin) / stderr)


def enough_for_equivalence(
    jack: Jackknife, n: float, margin: float, *, value: float | None = None, level: float = 0.95, target: float = 0.8
) -> int | None:
    """Return how many rows like these n would put the upper bound of a squared distance below `margin`.

    In `target` of all tries, if `value` (default: the estimate, at least 0) is the truth; None: no number would.
    """
    value = max(0.0, jack.value if value is None else value)
    second = min(jack.second_order, jack.stderr**2)
    first = jack.stderr**2 - second
    reach = z(level) + NormalDist().inv_cdf(target)

    def enough(size: int) -> bool:
        return value + reach * math.sqrt(first * n / size + second * (n / size) ** 2) <= margin

    return _smallest(enough)


def enough_for_share(share: float, least: float, *, level: float = 0.95, target: float = 0.8) -> int | None:
    """Return how many cases put the lower bound of a share, if it is truly `share`, above `least`; None: no number."""

    def enough(size: int) -> bool:
        unlucky = share - NormalDist().inv_cdf(target) * math.sqrt(share * (1.0 - share) / size)
        return unlucky > 0.0 and wilson(unlucky, size, level=level)[0] >= least

    return _smallest(enough)


def _smallest(enough: Callable[[int], bool], most: int = 1_000_000) -> int | None:
    """Return the smallest size from 2 on that is enough, where a larger one is too; None above `most`."""
    high = 2
    while not enough(high):
        high *= 2
        if high > most:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


# ------------------------------------------------------------------------------------------------ power


def power_of(observed: Sequence[float] | NDArray[Any], *, alpha: float = 0.05) -> float:
    """Return the share of p-values below alpha: the power where the change is real, the size where it is not."""
    return float((np.asarray(observed) < alpha).mean())


def sample_size(power: Sequence[dict[str, Any]], change: str, *, target: float = 0.8) -> int | None:
    """Return the smallest n of a power table (`n, change, power`) that finds `change` with `target` power, or None."""
    enough = [row["n"] for row in power if row["change"] == change and (row["power"] or 0.0) >= target]
    return min(enough, default=None)
