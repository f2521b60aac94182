"""Weights that make the prompts of a benchmark stand for a mix, and how sure an average under them is.

    clusters, domains, vectors of n prompts and of the rows of a mix  ->  balance  ->  w (n,), what the prompts reach
    balance, a number per prompt                                      ->  estimate ->  mean and its 95 % interval

A quantity is thought of as a mean plus effects of the cluster, of the domain, of the cell of both, a smooth function of
the vector, and noise. With kernel K between prompts (1 for each of the first three that two prompts share, plus
exp(-|x - x'|^2 / 2 s^2)) and k its mean over the rows of the mix, the weights minimise

    w'K w - 2 w'k + w'w    subject to  sum w = 1,  w >= 0

the squared distance of the weighted prompts to the mix in the space of such functions (kernel mean matching) plus what
noise costs. With one effect and no penalty this is post-stratification; the penalty merges strata that hold few
prompts with the rest by as much as they lack, so strata need not be chosen. Weights do not depend on the results: all
metrics of a run share them.

The variance has three parts. Noise: sum w^2 r^2 (r: leave-one-out residual), or its homogeneous counterpart
where that is larger. Imbalance that is left: w'Kw - 2 w'k + mean K, times the variances of the effects, which
restricted maximum likelihood estimates from the results themselves. And what nothing shows: a set whose vectors were
unlike the mix is unlike it in other ways too, which no weight repairs. They are taken to be off by as much as the
vectors were before weighting, beyond chance (what is not observed judged by what is: Altonji, Elder and Taber 2005);
of a draw of the mix that is nothing. Quantiles are Student's t at the effective number less one. Measured by
`examples/acceptance_study/reweight_check.py`; figures in `docs/reweight.md`.
Cost: n^3; 2,000 prompts take 1.6 s and 450 MB.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptkit.inference import effective_size

if TYPE_CHECKING:
    from promptkit.inference import Floats

Ints = NDArray[np.int64]
WIDTH = 0.25  # 2 s^2 of the kernel of vectors, which have unit length
NOISE = 1.0  # variance of the noise beside that of one effect
MIX_VECTORS = 1000  # rows of the mix whose vectors are compared
GRID = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)  # variances of the two kinds of effect over that of the noise
REML_PROMPTS = 500  # variances are estimated from that many prompts at most


@dataclass(frozen=True)
class Side:
    """What is known of some rows: codes of clusters and domains (n,), unit vectors (n, d), weights (n,)."""

    clusters: Ints
    domains: Ints
    X: NDArray[np.floating]
    weights: Floats

    def __len__(self) -> int:
        return len(self.clusters)


@dataclass(frozen=True)
class Balance:
    """Weights of the prompts, and the kernels that say how well they stand for the mix: of strata, of vectors."""

    weights: Floats
    covered_share: float  # of the mix: its cluster holds a prompt, and so does its domain
    kernels: tuple[Floats, Floats]  # (n, n)
    to_mix: tuple[Floats, Floats]  # (n,) mean kernel to the rows of the mix
    of_mix: tuple[float, float]  # mean kernel between two rows of the mix

    @property
    def effective_n(self) -> float:
        return effective_size(self.weights)

    def imbalance(self, kind: int, weights: Floats) -> float:
        """Return the squared distance of the weighted prompts to the mix in one kernel; never below zero."""
        w = weights
        own = float(w @ self.kernels[kind] @ w)
        return max(0.0, own - 2.0 * float(w @ self.to_mix[kind]) + self.of_mix[kind])

    @property
    def hidden(self) -> float:
        """Return what the vectors were off by before weighting, less what a draw of the mix is by chance."""
        n = len(self.weights)
        return max(0.0, self.imbalance(1, np.full(n, 1.0 / n)) - (1.0 - self.of_mix[1]) / n)


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error and its 95 % interval; NaN where it cannot be had."""

    mean: float
    stderr: float
    low: float
    high: float

    def to_json(self) -> dict[str, float | None]:
        found = {"mean": self.mean, "low": self.low, "high": self.high}
        return {k: (round(v, 6) if math.isfinite(v) else None) for k, v in found.items()}


def balance(prompts: Side, mix: Side, *, unseen: NDArray[np.bool_] | None = None, seed: int = 0) -> Balance:
    """Return the weights of the prompts for a mix; rows of the mix are counted by their weights.

    `unseen` marks the rows of the mix that the vector space was not fitted on: only their vectors are comparable with
    those of new prompts.
    """
    share = mix.weights / mix.weights.sum()
    strata = np.zeros((len(prompts), len(prompts)))
    to_mix, of_mix = np.zeros(len(prompts)), 0.0
    n_domains = int(max(prompts.domains.max(), mix.domains.max())) + 1
    for mine, theirs in (
        (prompts.clusters, mix.clusters),
        (prompts.domains, mix.domains),
        (prompts.clusters * n_domains + prompts.domains, mix.clusters * n_domains + mix.domains),
    ):
        mass = np.bincount(theirs, share, minlength=int(max(mine.max(), theirs.max())) + 1)
        strata += mine[:, None] == mine[None]
        to_mix += mass[mine]
        of_mix += float((mass**2).sum())
    kernels = (strata, _near(prompts.X, prompts.X))
    Y, y = _some(mix, share if unseen is None or not share[unseen].sum() else share * unseen, seed)
    among = _near(Y, Y)
    squares = float(y @ y)  # a row's pair with itself says nothing of the mix
    spread = (float(y @ among @ y) - squares) / (1.0 - squares) if squares < 1.0 else 1.0
    means = (to_mix, _near(prompts.X, Y) @ y)
    weights = _match(kernels[0] + kernels[1], means[0] + means[1])
    reached = np.isin(mix.clusters, prompts.clusters) & np.isin(mix.domains, prompts.domains)
    covered = 1.0 if reached.all() else float(share[reached].sum())
    return Balance(weights, covered, kernels, means, (of_mix, spread))


def _some(mix: Side, share: Floats, seed: int) -> tuple[NDArray[np.floating], Floats]:
    """Return the vectors of some rows of the mix that have weight, and their weights, summing to one."""
    rows = np.flatnonzero(share > 0)
    if len(rows) > MIX_VECTORS:
        rows = np.sort(np.random.default_rng(seed).permutation(rows)[:MIX_VECTORS])
    return mix.X[rows], share[rows] / share[rows].sum()


def _near(A: NDArray[np.floating], B: NDArray[np.floating]) -> Floats:
    """Return the Gaussian kernel between rows, rounded so that the last bits of a product do not matter."""
    A, B = A.astype(np.float64), B.astype(np.float64)
    squared = (A**2).sum(axis=1)[:, None] + (B**2).sum(axis=1)[None] - 2.0 * (A @ B.T)
    return np.asarray(np.round(np.exp(-np.maximum(squared, 0.0) / WIDTH), 6), dtype=np.float64)


def _match(K: Floats, k: Floats) -> Floats:
    """Return the weights: the closed form, again without the prompts that got a negative one, until none does."""
    kept = np.arange(len(k))
    while True:
        A = K[np.ix_(kept, kept)] + NOISE * np.eye(len(kept))
        plain, towards = np.linalg.solve(A, np.stack([np.ones(len(kept)), k[kept]], axis=1)).T
        w = towards + plain * (1.0 - towards.sum()) / plain.sum()
        if (w >= -1e-12).all():
            break
        kept = kept[w > 0]
    out = np.zeros(len(k))
    out[kept] = np.maximum(w, 0.0)
    return np.asarray(out / out.sum(), dtype=np.float64)


# ---------------------------------------------------------------------------------------------------- estimates


def linearised(total: Floats, count: Floats, weights: Floats) -> tuple[float, Floats]:
    """Return the ratio of weighted sums R, and a number per prompt whose weighted mean is R and varies as R does.

    z = R + (total - R count) / weighted mean of count: the ratio estimator (Cochran 1977, section 6.3).
    """
    w = weights / weights.sum()
    mean = float(w @ count)
    ratio = float(w @ total) / mean
    return ratio, np.asarray(ratio + (total - ratio * count) / mean, dtype=np.float64)


def plain(values: Floats, weights: Floats | None = None) -> Estimate:
    """Return the (weighted) mean of prompts that stand for themselves, with Student's interval."""
    n = len(values)
    w = np.full(n, 1.0 / n) if weights is None else weights / weights.sum()
    mean = float(w @ values)
    effective = effective_size(w)
    if n < 2 or effective < 1.5:
        return Estimate(mean, math.nan, math.nan, math.nan)
    stderr = math.sqrt(float((w**2) @ (values - mean) ** 2) * effective / (effective - 1.0))
    return _interval(mean, stderr, effective - 1.0)


def estimate(found: Balance, values: Floats, *, seed: int = 0) -> Estimate:
    """Return the mean of `values` over the mix, one value per prompt, with its 95 % interval."""
    w = found.weights
    mean = float(w @ values)
    if len(values) < 3 or float(np.ptp(values)) < 1e-12:
        return Estimate(mean, math.nan, math.nan, math.nan) if len(values) < 3 else Estimate(mean, 0.0, mean, mean)
    effects, noise = _variances(found.kernels, values, seed)
    residual = _residuals(found.kernels, effects, noise, values)
    scatter = max(float((w**2) @ residual**2), noise * float(w @ w))
    imbalance = effects[0] * found.imbalance(0, w) + effects[1] * (found.imbalance(1, w) + found.hidden)
    return _interval(mean, math.sqrt(scatter + imbalance), max(found.effective_n - 1.0, 2.0))


def _interval(mean: float, stderr: float, degrees: float) -> Estimate:
    from scipy.stats import t

    half = float(t.ppf(0.975, degrees)) * stderr
    return Estimate(mean, stderr, mean - half, mean + half)


def _variances(kernels: tuple[Floats, Floats], y: Floats, seed: int) -> tuple[tuple[float, float], float]:
    """Return the variance of an effect of strata and of vectors, and of the noise: REML over a grid of ratios."""
    from scipy.linalg import solve_triangular

    if len(y) > REML_PROMPTS:
        rows = np.sort(np.random.default_rng(seed).permutation(len(y))[:REML_PROMPTS])
        kernels, y = (kernels[0][np.ix_(rows, rows)], kernels[1][np.ix_(rows, rows)]), y[rows]
    n, best = len(y), (-math.inf, (0.0, 0.0), 0.0)
    for a in GRID:
        for b in GRID:
            L = np.linalg.cholesky(np.eye(n) + a * kernels[0] + b * kernels[1])
            zy, z1 = solve_triangular(L, np.stack([y, np.ones(n)], axis=1), lower=True, check_finite=False).T
            ones = float(z1 @ z1)
            rest = zy - z1 * float(zy @ z1) / ones
            noise = float(rest @ rest) / (n - 1)
            likelihood = -0.5 * ((n - 1) * math.log(max(noise, 1e-300)) + math.log(ones)) - np.log(np.diag(L)).sum()
            if likelihood > best[0]:
                best = (float(likelihood), (a * noise, b * noise), noise)
    return best[1], best[2]


def _residuals(kernels: tuple[Floats, Floats], effects: tuple[float, float], noise: float, y: Floats) -> Floats:
    """Return what each value differs by from the fit to all others (leave one out, leverage at most 0.8)."""
    n = len(y)
    if noise <= 0:
        return np.zeros(n)
    K = (effects[0] * kernels[0] + effects[1] * kernels[1]) / noise
    inverse = np.linalg.inv(K + np.eye(n))
    ones = inverse.sum(axis=1)
    centre = float(ones @ y) / float(ones.sum())
    return np.asarray(inverse @ (y - centre) / np.maximum(np.diag(inverse), 0.2), dtype=np.float64)
