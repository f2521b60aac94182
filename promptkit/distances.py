"""How far apart two sets of embedded prompts are: pure functions `(X, Y) -> float`, nothing else.

    X   ndarray of shape (n, d): the candidates        Y   ndarray of shape (m, d): the training mix

A distance is not a test. Confidence and p-values are written once, over any of these, in `inference.py`: a
distance of 0.1 says nothing until it stands beside the distance of equally many rows drawn from the mix itself.
Every function but `frechet` and the random ones is exact; the random ones are seeded and so are plain functions too.

What they cost (n = 200, m = 20,000, d = 256, one core) and how they lie when n is small:

| name | cost | at small n, X and Y alike |
|---|---|---|
| `mmd2` | 0.2 s | mean 0: no bias, may be negative |
| `mmd` | 0.2 s | sqrt((1 - mean kernel) (1/n + 1/m)): never 0, so read it beside a floor |
| `mmd2_features` | 0.1 s | as `mmd2`, with a relative error of about 1/sqrt(n_features) |
| `energy` | 0.3 s | biased up like `mmd` |
| `frechet` | 0.1 s | biased up, strongly: below n = 10 d it mostly measures n |
| `kid` | 0.2 s | mean 0, no bias |
| `sliced_wasserstein` | 0.5 s | biased up, about n^(-1/2) |
| `c2st` | 1-3 s | mean 0.5; no power unless the classes are balanced, so Y is cut to 2 n rows |
| `total_variation`, `jensen_shannon`, `chi_square` | 0.3 s | biased up: clusters of X are counted with noise |
| `fidelity`, `coverage` | 0.5 s | nearly none for fidelity; reach depends on n, chance is about 1/2 |

`mmd`, `mmd2`, `energy`, `frechet`, `sliced_wasserstein` and `kid` are symmetric when the bandwidth is given. The
cluster divergences, `c2st`, `fidelity` and `coverage` treat Y as the mix and are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptkit import gpu
from promptkit.errors import InputError

Matrix = NDArray[Any]
BANDWIDTHS = (1.0, 0.5, 0.25)  # times the median squared distance of the mix: each is its own statistic


def checked(X: Matrix, name: str = "X") -> Matrix:
    """Return X as a 2-d float array; InputError for another shape, no rows, or a value that is not finite."""
    X = np.asarray(X)
    if X.ndim != 2 or X.shape[0] == 0:
        raise InputError(f"{name}: found shape {X.shape}, expected (rows, dimensions) with at least one row")
    if X.dtype.kind != "f":
        X = X.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(X).all(axis=1))
    if bad.size:
        rows = ", ".join(map(str, bad[:10])) + (", ..." if bad.size > 10 else "")
        raise InputError(
            f"{name}: vectors of rows {rows} hold NaN or infinity ({bad.size} of {X.shape[0]} rows)",
            hint="check the embedder: encode(texts) must return finite numbers for every text",
        )
    return X


def squared_distances(X: Matrix, Y: Matrix) -> Matrix:
    """Return the (n, m) squared Euclidean distances, by one matrix product, never below zero."""
    D = (X * X).sum(axis=1)[:, None] + (Y * Y).sum(axis=1)[None, :] - 2.0 * (X @ Y.T)
    out: Matrix = np.maximum(D, 0.0)
    return out


def median_squared_distance(Y: Matrix, *, rows: int = 1000) -> float:
    """Return the median squared distance between different rows of Y (the first `rows`, evenly spaced).

    The usual choice of a Gaussian bandwidth. 1.0 where all rows are equal, so that a kernel stays defined.
    """
    take = np.unique(np.linspace(0, len(Y) - 1, min(rows, len(Y))).astype(np.int64))
    Z = np.asarray(Y[take], dtype=np.float64)
    D = squared_distances(Z, Z)[np.triu_indices(len(Z), 1)]
    D = D[D > 1e-9]
    return float(np.median(D)) if D.size else 1.0


# ------------------------------------------------------------------------------------------------ kernels


def _kernel_mean(X: Matrix, Y: Matrix, kernel: Callable[[Matrix, Matrix], Matrix], batch_size: int) -> float:
    """Return the mean of kernel(x, y) over all pairs, in blocks, so that memory stays at batch_size x m."""
    total = 0.0
    for start in range(0, len(X), batch_size):
        total += float(kernel(X[start : start + batch_size], Y).sum(dtype=np.float64))
    return total / (len(X) * len(Y))


def _mmd2(X: Matrix, Y: Matrix, kernel: Callable[[Matrix, Matrix], Matrix], unbiased: bool, batch_size: int) -> float:
    """Return E k(x, x') + E k(y, y') - 2 E k(x, y); unbiased leaves a row's pair with itself out."""

    def within(Z: Matrix) -> float:
        n = len(Z)
        if not unbiased:
            return _kernel_mean(Z, Z, kernel, batch_size)
        if n < 2:
            return math.nan  # one row has no pairs
        own = sum(float(kernel(Z[i : i + 1], Z[i : i + 1])[0, 0]) for i in range(n))
        return (_kernel_mean(Z, Z, kernel, batch_size) * n * n - own) / (n * (n - 1))

    return within(X) + within(Y) - 2.0 * _kernel_mean(X, Y, kernel, batch_size)


def _gaussian(bandwidth2: float) -> Callable[[Matrix, Matrix], Matrix]:
    return lambda A, B: np.exp(squared_distances(A, B) / (-2.0 * bandwidth2))


def _bandwidth2(Y: Matrix, bandwidth2: float | None, scale: float) -> float:
    return scale * (median_squared_distance(Y) if bandwidth2 is None else bandwidth2)


def mmd2(
    X: Matrix,
    Y: Matrix,
    *,
    bandwidth2: float | None = None,
    scale: float = 1.0,
    batch_size: int = 1024,
    device: str = "cpu",
) -> float:
    """Return the unbiased squared maximum mean discrepancy under a Gaussian kernel (Gretton et al. 2012, lemma 6).

    k(x, y) = exp(-|x - y|^2 / (2 scale bandwidth2)); `bandwidth2` defaults to the median squared distance of Y. Mean
    zero where X and Y come from one distribution, hence sometimes negative; at most 2. NaN where a set has one row.
    `device` "cuda": on a GPU in float32, within 1e-6, and quicker from some 10,000 rows on (`gpu`).
    """
    X, Y = _pair(X, Y)
    if device != "cpu":
        return gpu.mmd2(X, Y, bandwidth2=_bandwidth2(Y, bandwidth2, scale), device=gpu.resolve(device))
    return _mmd2(X, Y, _gaussian(_bandwidth2(Y, bandwidth2, scale)), True, batch_size)


def mmd(X: Matrix, Y: Matrix, *, bandwidth2: float | None = None, scale: float = 1.0, batch_size: int = 1024) -> float:
    """Return the maximum mean discrepancy itself (root of the V-statistic: a row's pair with itself counts).

    A true metric between the two samples, in [0, sqrt 2]; zero only where they are the same, so it has a floor of
    sqrt((1 - mean kernel) (1/n + 1/m)) for two draws of one distribution.
    """
    X, Y = _pair(X, Y)
    return math.sqrt(max(0.0, _mmd2(X, Y, _gaussian(_bandwidth2(Y, bandwidth2, scale)), False, batch_size)))


def kid(X: Matrix, Y: Matrix, *, batch_size: int = 1024) -> float:
    """Return the kernel distance of Binkowski et al. 2018: unbiased MMD^2 under k(x, y) = (x.y / d + 1)^3."""
    X, Y = _pair(X, Y)
    d = X.shape[1]
    return _mmd2(X, Y, lambda A, B: (A @ B.T / d + 1.0) ** 3, True, batch_size)


def energy(X: Matrix, Y: Matrix, *, batch_size: int = 1024) -> float:
    """Return the energy distance sqrt(2 E|x - y| - E|x - x'| - E|y - y'|) (Szekely and Rizzo 2013; as scipy in 1-d)."""
    X, Y = _pair(X, Y)
    value = -_mmd2(X, Y, lambda A, B: np.sqrt(squared_distances(A, B)), False, batch_size)
    return math.sqrt(max(0.0, value))


# ------------------------------------------------------------------------------------------------ random features


@dataclass(frozen=True)
class FourierFeatures:
    """Random Fourier features of Gaussian kernels of several bandwidths that share their frequencies.

    f(x) = [cos(w_1.x), sin(w_1.x), ...] / sqrt(n_frequencies), so f(x).f(x) = 1 exactly and f(x).f(y) is close to
    exp(-|x - y|^2 / (2 b)) with an error of about 1/sqrt(2 n_frequencies) (Rahimi and Recht 2007). f(x).f(y) is a
    kernel in its own right: a permutation test over it is exact however few the features; only its eye gets coarser.
    """

    frequencies: NDArray[np.float32]  # (n_frequencies, d), of unit bandwidth
    bandwidths2: tuple[float, ...]

    def __call__(self, X: Matrix) -> NDArray[np.float32]:
        """Return the features, (n, len(bandwidths2) * 2 * n_frequencies) float32, one block per bandwidth."""
        Z = np.asarray(X, dtype=np.float32) @ self.frequencies.T
        blocks = []
        for b in self.bandwidths2:
            A = Z * np.float32(1.0 / math.sqrt(b))
            blocks += [np.cos(A), np.sin(A)]
        F: NDArray[np.float32] = np.concatenate(blocks, axis=1)
        F *= np.float32(1.0 / math.sqrt(len(self.frequencies)))
        return F

    @property
    def width(self) -> int:
        """Columns per bandwidth."""
        return 2 * len(self.frequencies)


def fourier(
    d: int, bandwidths2: tuple[float, ...] | list[float], *, n_features: int = 512, seed: int = 0
) -> FourierFeatures:
    """Return the random features of `d`-dimensional vectors, `n_features` columns per bandwidth.

    Frequencies are drawn in orthogonal blocks with chi-distributed lengths (Yu et al. 2016): the same mean, less
    variance, at no cost later.
    """
    rng = np.random.default_rng(seed)
    rows: list[Matrix] = [] if d else [np.zeros(((n_features + 1) // 2, 0))]
    while sum(map(len, rows)) < (n_features + 1) // 2:
        Q, R = np.linalg.qr(rng.standard_normal((d, d)))
        rows.append((Q * np.sign(np.diag(R))).T * np.sqrt(rng.chisquare(d, size=d))[:, None])
    W = np.concatenate(rows)[: (n_features + 1) // 2]
    return FourierFeatures(np.ascontiguousarray(W, dtype=np.float32), tuple(float(b) for b in bandwidths2))


def features(X: Matrix, *, seed: int = 0, bandwidth2: float = 1.0, n_features: int = 512) -> NDArray[np.float32]:
    """Return (n, n_features) float32 with unit rows whose inner products are near exp(-|x - y|^2 / (2 bandwidth2))."""
    X = checked(X)
    return fourier(X.shape[1], (bandwidth2,), n_features=n_features, seed=seed)(X)


def mmd2_features(
    X: Matrix, Y: Matrix, *, bandwidth2: float | None = None, scale: float = 1.0, n_features: int = 2048, seed: int = 0
) -> float:
    """Return the unbiased MMD^2 of the random-feature kernel: linear in n + m, within 1/sqrt(n_features) of `mmd2`."""
    X, Y = _pair(X, Y)
    f = fourier(X.shape[1], (_bandwidth2(Y, bandwidth2, scale),), n_features=n_features, seed=seed)
    a, b = f(X).mean(axis=0, dtype=np.float64), f(Y).mean(axis=0, dtype=np.float64)

    def within(mean: Matrix, n: int) -> float:
        return (n * float(mean @ mean) - 1.0) / (n - 1) if n > 1 else math.nan

    return within(a, len(X)) + within(b, len(Y)) - 2.0 * float(a @ b)


# ------------------------------------------------------------------------------------------------ moments, transport


def frechet(X: Matrix, Y: Matrix) -> float:
    """Return |mean gap|^2 + tr(A + B - 2 (A B)^(1/2)) of two fitted Gaussians (Dowson and Landau 1982; "FID").

    A diagnostic: with n rows in d dimensions a covariance has rank n - 1, and the value falls with n for sets that
    are alike (Chong and Forsyth 2020). Never compare it across sizes. NaN where a set has one row.
    """
    X, Y = _pair(X, Y)
    if min(len(X), len(Y)) < 2:
        return math.nan
    gap = X.mean(axis=0, dtype=np.float64) - Y.mean(axis=0, dtype=np.float64)
    A = (X - X.mean(axis=0)).astype(np.float64) / math.sqrt(len(X) - 1)
    B = (Y - Y.mean(axis=0)).astype(np.float64) / math.sqrt(len(Y) - 1)
    # tr (A'A B'B)^(1/2) is the sum of the singular values of A B': no root of a matrix that is nearly singular.
    # The smaller of the two shapes: (n, m), or (d, d) through the triangular factors.
    R, S = (np.asarray(np.linalg.qr(Z, mode="r")) if len(Z) > Z.shape[1] else Z for Z in (A, B))
    cross = float(np.linalg.svd(np.asarray(R @ S.T), compute_uv=False).sum())
    return max(0.0, float(gap @ gap) + float((A * A).sum()) + float((B * B).sum()) - 2.0 * cross)


def sliced_wasserstein(X: Matrix, Y: Matrix, *, order: int = 2, n_projections: int = 128, seed: int = 0) -> float:
    """Return the mean over random directions of the 1-d Wasserstein distance, exact on each (Bonneel et al. 2015).

    (mean over directions of W_order^order)^(1/order); sets of different size are compared on the common refinement
    of their quantile steps.
    """
    X, Y = _pair(X, Y)
    n, m, d = len(X), len(Y), X.shape[1]
    if d == 1:
        U = np.ones((1, 1))
    else:
        U = np.random.default_rng(seed).standard_normal((d, n_projections))
        U /= np.linalg.norm(U, axis=0)
    A, B = (np.sort(np.asarray(Z, dtype=np.float64) @ U, axis=0) for Z in (X, Y))
    # Integers, so that a step that both share is one step: levels are multiples of 1 / (n m).
    steps = np.union1d(np.arange(1, n + 1, dtype=np.int64) * m, np.arange(1, m + 1, dtype=np.int64) * n)
    width = np.diff(steps, prepend=0) / (n * m)
    cost = np.abs(A[(steps - 1) // m] - B[(steps - 1) // n]) ** order
    return float((width @ cost).mean() ** (1.0 / order))


def c2st(X: Matrix, Y: Matrix, *, folds: int = 5, seed: int = 0) -> float:
    """Return the cross-validated AUC of a logistic regression that tells X from Y (Lopez-Paz and Oquab 2017).

    0.5 where they cannot be told apart. Y is cut to 2 n rows: against a hundred times as many rows a classifier
    of 200 sees nothing at all. NaN below two rows per fold.
    """
    X, Y = _pair(X, Y)
    if min(len(X), len(Y)) < 2 * folds:
        return math.nan
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(seed)
    Y = Y[np.sort(rng.permutation(len(Y))[: 2 * len(X)])]
    Z = np.concatenate([X, Y]).astype(np.float64)
    y = np.repeat([1, 0], [len(X), len(Y)])
    fold = np.concatenate([rng.permutation(np.arange(len(part)) % folds) for part in (X, Y)])
    total = 0.0
    for f in range(folds):
        train, test = fold != f, fold == f
        model = LogisticRegression(class_weight="balanced", max_iter=500).fit(Z[train], y[train])
        total += float(roc_auc_score(y[test], model.decision_function(Z[test])))
    return total / folds


# ------------------------------------------------------------------------------------------------ shares of clusters


def shares(counts: Matrix) -> NDArray[np.float64]:
    """Return non-negative counts as shares that sum to one; InputError where they cannot."""
    p = np.asarray(counts, dtype=np.float64)
    if p.ndim != 1 or not np.isfinite(p).all() or (p < 0).any() or p.sum() <= 0:
        raise InputError("histogram: expected a row of finite counts >= 0 with a positive sum")
    return np.asarray(p / p.sum(), dtype=np.float64)


def total_variation(p: Matrix, q: Matrix) -> float:
    """Return half the sum of |p - q|: the share that would have to move. 0..1."""
    return float(0.5 * np.abs(shares(p) - shares(q)).sum())


def jensen_shannon(p: Matrix, q: Matrix) -> float:
    """Return the Jensen-Shannon divergence in bits (not its root): 0 for equal shares, 1 for disjoint ones."""
    p, q = shares(p), shares(q)
    m = 0.5 * (p + q)

    def bits(a: Matrix) -> float:
        some = a > 0
        return float((a[some] * np.log2(a[some] / m[some])).sum())

    return max(0.0, 0.5 * bits(p) + 0.5 * bits(q))


def chi_square(p: Matrix, q: Matrix) -> float:
    """Return half the sum of (p - q)^2 / (p + q): the symmetric chi-square, 0..1."""
    p, q = shares(p), shares(q)
    total = p + q
    some = total > 0
    return float(0.5 * ((p[some] - q[some]) ** 2 / total[some]).sum())


def on_clusters(divergence: Callable[[Matrix, Matrix], float], *, k: int = 16, seed: int = 0) -> Distance:
    """Return a distance between vectors out of a divergence between shares: k clusters of Y, both sets counted."""

    def distance(X: Matrix, Y: Matrix) -> float:
        X, Y = _pair(X, Y)
        from sklearn.cluster import KMeans

        model = KMeans(min(k, len(np.unique(Y, axis=0))), n_init=1, random_state=seed).fit(Y.astype(np.float64))
        size = model.n_clusters
        return divergence(
            np.bincount(model.predict(X.astype(np.float64)), minlength=size), np.bincount(model.labels_, minlength=size)
        )

    distance.__doc__ = f"Return the {divergence.__name__} of the shares of {k} k-means clusters fitted on Y."
    return distance


# ------------------------------------------------------------------------------------------------ fidelity, coverage


def reach_size(m: int, n: int) -> int:
    """Return k: how many nearest others of m rows are a row's reach, so that n new rows touch about half of them.

    (1 - 0.7 / n)^n is near 1/2 at every n, which keeps the measure comparable across sizes.
    """
    return max(1, min(m - 1, math.ceil(0.7 * m / n)))


def chance_coverage(m: int, n: int, k: int | None = None) -> float:
    """Return the exact chance that one of n new rows of the mix lies within the reach of a row that has m - 1 others.

    All m - 1 + n other rows are exchangeable, so the new rows miss when the nearest k of them all are old ones:
    product over j = 1..k of (m - j) / (m + n - j). Rows drawn from the m themselves would hit more often (0.86 against
    0.62 at m = 1600, n = 1000), and new rows measured against that would seem to cover too little. `k` is the
    size of the reach where it is not that of n.
    """
    j = np.arange(1, (reach_size(m, n) if k is None else k) + 1)
    return 1.0 - float(np.prod((m - j) / (m + n - j)))


def reaches(similarity: Matrix, n: int) -> NDArray[Any]:
    """Return, from the (m, m) similarities of Y to itself, each row's similarity to its k-th nearest other row."""
    m = len(similarity)
    S = similarity.copy()
    np.fill_diagonal(S, -np.inf)
    k = reach_size(m, n)
    return np.asarray(np.partition(S, m - k, axis=1)[:, m - k])


def coverage(X: Matrix, Y: Matrix) -> float:
    """Return the share of Y's rows within reach of some row of X, over what n random rows of Y would reach.

    1 for a set as broad as the mix; not cut at 1, since chance goes both ways. Similarity is the cosine. NaN where
    Y has fewer than three rows.
    """
    X, Y = _pair(X, Y)
    if len(Y) < 3:
        return math.nan
    A, B = _unit(X), _unit(Y)
    reach = reaches(B @ B.T, len(X))
    hit = ((B @ A.T).max(axis=1) >= reach - 1e-6).mean()
    return float(hit) / chance_coverage(len(Y), len(X))


def fidelity(X: Matrix, Y: Matrix, *, k: int = 10, alpha: float = 0.05) -> float:
    """Return the share of X nearer to Y than the oddest `alpha` of Y's own rows, over 1 - alpha, at most 1.

    Nearness is the mean cosine to the k nearest rows. The score uses its own lexical typicality instead; this is the
    same idea for any vectors. NaN where Y has fewer than k + 2 rows.
    """
    X, Y = _pair(X, Y)
    if len(Y) < k + 2:
        return math.nan
    A, B = _unit(X), _unit(Y)

    def near(S: Matrix) -> Matrix:
        return np.asarray(np.partition(S, S.shape[1] - k, axis=1)[:, -k:].mean(axis=1))

    own = B @ B.T
    np.fill_diagonal(own, -np.inf)
    edge = np.quantile(near(own), alpha, method="lower")
    return min(1.0, float((near(A @ B.T) >= edge).mean()) / (1.0 - alpha))


def _unit(X: Matrix) -> NDArray[np.float64]:
    X = np.asarray(X, dtype=np.float64)
    length = np.linalg.norm(X, axis=1, keepdims=True)
    return np.asarray(X / np.where(length > 0, length, 1.0))


def _pair(X: Matrix, Y: Matrix) -> tuple[Matrix, Matrix]:
    X, Y = checked(X, "X"), checked(Y, "Y")
    if X.shape[1] != Y.shape[1]:
        raise InputError(f"X has {X.shape[1]} dimensions and Y {Y.shape[1]}; embed both with the same embedder")
    return X, Y


Distance = Callable[[Matrix, Matrix], float]

DISTANCES: dict[str, Distance] = {
    "mmd": mmd,
    "mmd2": mmd2,
    "mmd2_features": mmd2_features,
    "energy": energy,
    "frechet": frechet,
    "kid": kid,
    "sliced_wasserstein": sliced_wasserstein,
    "c2st": c2st,
    "total_variation": on_clusters(total_variation),
    "jensen_shannon": on_clusters(jensen_shannon),
    "chi_square": on_clusters(chi_square),
    "fidelity": fidelity,
    "coverage": coverage,
}
