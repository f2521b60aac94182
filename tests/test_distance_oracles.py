"""Distances and tests against other people's code, against all cases counted, closed forms and laws.

The foreign implementations: scipy and scikit-learn (dependencies), POT and prdc (of the `test` extra), hyppo and geomloss
(heavy: with numba and torch, so only where they are). A missing one skips its own test and says so.
"""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from promptkit import distances as ds
from promptkit import inference as inf


def cloud(n: int, d: int = 6, *, shift: float = 0.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)) + shift


def unit(X):
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def missing(name: str):
    return pytest.importorskip(name, reason=f"{name} is not installed; it is an oracle of this one test")


SIZES = [(20, 20), (15, 40), (60, 7)]


def pair(n, m, d=6):
    return cloud(n, d), cloud(m, d, shift=0.5, seed=1)


# ---------------------------------------------------------------------------------------------- other people's code


def off_diagonal_mean(K):
    n = len(K)
    return (K.sum() - np.trace(K)) / (n * (n - 1))


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_mmd_and_kid_equal_the_kernel_matrices_of_scikit_learn(n, m):
    from sklearn.metrics.pairwise import polynomial_kernel, rbf_kernel

    X, Y = pair(n, m)
    for ours, kernel in (
        (ds.mmd2(X, Y, bandwidth2=1.5), lambda A, B: rbf_kernel(A, B, gamma=1 / 3)),
        (ds.kid(X, Y), lambda A, B: polynomial_kernel(A, B, degree=3, coef0=1)),
    ):
        theirs = off_diagonal_mean(kernel(X, X)) + off_diagonal_mean(kernel(Y, Y)) - 2 * kernel(X, Y).mean()
        assert ours == pytest.approx(theirs, rel=1e-10)
    K = [rbf_kernel(A, B, gamma=1 / 3).mean() for A, B in ((X, X), (Y, Y), (X, Y))]
    assert ds.mmd(X, Y, bandwidth2=1.5) ** 2 == pytest.approx(K[0] + K[1] - 2 * K[2], rel=1e-10)


def test_the_default_bandwidth_is_the_median_of_scipys_distances():
    from scipy.spatial.distance import pdist

    X, Y = pair(30, 200)
    median = float(np.median(pdist(Y, "sqeuclidean")))
    assert ds.mmd2(X, Y) == pytest.approx(ds.mmd2(X, Y, bandwidth2=median), rel=1e-12)
    assert ds.mmd2(X, Y, scale=0.25) == pytest.approx(ds.mmd2(X, Y, bandwidth2=median / 4), rel=1e-12)


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_energy_equals_scipys_pairwise_distances(n, m):
    from scipy.spatial.distance import cdist

    X, Y = pair(n, m)
    theirs = math.sqrt(2 * cdist(X, Y).mean() - cdist(X, X).mean() - cdist(Y, Y).mean())
    assert ds.energy(X, Y) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_energy_and_mmd_are_those_of_geomloss(n, m):
    geomloss, torch = missing("geomloss"), missing("torch")
    X, Y = pair(n, m)
    A, B = torch.from_numpy(X), torch.from_numpy(Y)
    half = geomloss.SamplesLoss("energy", backend="tensorized")(A, B).item()  # half the squared distance
    assert ds.energy(X, Y) == pytest.approx(math.sqrt(2 * half), rel=1e-5)
    half = geomloss.SamplesLoss("gaussian", blur=1.2, backend="tensorized")(A, B).item()
    assert ds.mmd(X, Y, bandwidth2=1.44) == pytest.approx(math.sqrt(2 * half), rel=1e-5)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_sliced_wasserstein_is_pots_on_the_same_directions(n, m, order):
    ot = missing("ot")
    X, Y = pair(n, m)
    U = np.random.default_rng(3).standard_normal((6, 40))
    U /= np.linalg.norm(U, axis=0)
    theirs = ot.sliced_wasserstein_distance(X, Y, projections=U, p=order)
    assert ds.sliced_wasserstein(X, Y, order=order, n_projections=40, seed=3) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(("n", "m"), [(40, 90), (60, 20)])
def test_frechet_is_the_squared_bures_wasserstein_distance_of_pot(n, m):
    ot = missing("ot")
    X, Y = pair(n, m)
    theirs = ot.gaussian.bures_wasserstein_distance(X.mean(0), Y.mean(0), np.cov(X.T), np.cov(Y.T))
    assert ds.frechet(X, Y) == pytest.approx(float(theirs) ** 2, rel=1e-8)


@pytest.mark.parametrize(("n", "m"), [(10, 60), (30, 120), (100, 50)])
def test_coverage_before_it_is_divided_by_chance_is_prdcs(n, m):
    prdc = missing("prdc")
    X, Y = unit(cloud(n)), unit(cloud(m, shift=0.4, seed=1))  # on unit rows the nearest by cosine are the nearest
    k = ds.reach_size(m, n)
    theirs = prdc.compute_prdc(real_features=Y, fake_features=X, nearest_k=k)["coverage"]
    assert ds.coverage(X, Y) * ds.chance_coverage(m, n) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.6])
def test_fidelity_equals_the_neighbours_of_scikit_learn(shift):
    from sklearn.neighbors import NearestNeighbors

    X, Y = cloud(50, shift=shift), cloud(160, seed=1)
    near = NearestNeighbors(n_neighbors=10, metric="cosine").fit(Y)
    own = 1 - near.kneighbors()[0].mean(axis=1)  # without arguments a row is not its own neighbour
    edge = np.sort(own)[math.floor(0.05 * (len(own) - 1))]
    theirs = min(1.0, np.mean(1 - near.kneighbors(X)[0].mean(axis=1) >= edge) / 0.95)
    assert ds.fidelity(X, Y) == pytest.approx(theirs, abs=1e-12)


def test_c2st_is_the_cross_validated_auc_of_scikit_learn_up_to_the_folds():
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    X, Y = cloud(120, shift=0.35), cloud(240, seed=1)
    Z, y = np.concatenate([X, Y]), np.repeat([1, 0], [120, 240])
    model = LogisticRegression(class_weight="balanced", max_iter=500)
    theirs = [
        cross_val_score(model, Z, y, scoring="roc_auc", cv=StratifiedKFold(5, shuffle=True, random_state=s)).mean()
        for s in range(8)
    ]
    ours = [ds.c2st(X, Y, seed=s) for s in range(8)]
    assert np.mean(ours) == pytest.approx(np.mean(theirs), abs=0.01)


@pytest.mark.parametrize("name", ["total_variation", "jensen_shannon", "chi_square"])
def test_cluster_divergences_equal_scipy_on_the_same_clusters(name):
    from scipy.spatial.distance import cdist, jensenshannon
    from sklearn.cluster import KMeans

    X, Y = cloud(50, 4, shift=0.5), cloud(300, 4, seed=1)
    centres = KMeans(16, n_init=1, random_state=0).fit(Y).cluster_centers_
    p, q = (np.bincount(cdist(Z, centres).argmin(axis=1), minlength=16) / len(Z) for Z in (X, Y))
    theirs = {
        "total_variation": np.abs(p - q).sum() / 2,
        "jensen_shannon": jensenshannon(p, q, base=2) ** 2,
        "chi_square": cdist(p[None], q[None], lambda a, b: ((a - b) ** 2 / np.maximum(a + b, 1e-300)).sum() / 2)[0, 0],
    }
    assert ds.DISTANCES[name](X, Y) == pytest.approx(theirs[name], abs=1e-10)


def test_permutation_p_values_are_those_of_hyppo():
    ksample = missing("hyppo.ksample")
    X, Y = cloud(25, 3), cloud(35, 3, shift=0.45, seed=1)
    theirs = ksample.Energy().test(X, Y, reps=1500, workers=1, random_state=0)
    ours = inf.permutation_test(X, Y, ds.energy, draws=1500, rng=0).p_value
    assert ours == pytest.approx(theirs[1], abs=0.03)
    assert 0.001 < ours < 0.2  # neither end, where any two tests agree


def test_every_distance_has_an_oracle_here_or_beside():
    covered = {
        "mmd", "mmd2", "kid", "energy", "sliced_wasserstein", "frechet", "coverage", "fidelity", "c2st",
        "total_variation", "jensen_shannon", "chi_square", "mmd2_features",
    }  # fmt: skip
    assert set(ds.DISTANCES) == covered


# ---------------------------------------------------------------------------------------------- all cases counted


@pytest.mark.parametrize("paired", [False, True])
def test_comparison_of_two_sets_approaches_the_count_of_all_relabellings(paired):
    rng = np.random.default_rng(2)
    A, B = rng.standard_normal((4, 1)) + 1.1, rng.standard_normal((4, 1))

    def statistic(rows):
        return float(rows.mean()) ** 2

    pool, gaps = np.concatenate([A, B]), []
    if paired:
        for swap in itertools.product([False, True], repeat=4):
            s = np.array(swap)[:, None]
            gaps.append(abs(statistic(np.where(s, B, A)) - statistic(np.where(s, A, B))))
    else:
        for one in itertools.combinations(range(8), 4):
            other = [i for i in range(8) if i not in one]
            gaps.append(abs(statistic(pool[list(one)]) - statistic(pool[other])))
    exact = np.mean(np.array(gaps) >= abs(statistic(A) - statistic(B)) - 1e-12)
    assert inf.compare_sets(A, B, statistic, paired=paired, draws=4000, rng=0).p_value == pytest.approx(
        exact, abs=0.025
    )


def test_a_permutation_p_value_is_uniform_over_all_ways_to_be_the_candidates():
    """Whichever 3 of 7 rows are the candidates, the exact p-values are the ranks of the 35 subsets."""
    pool = cloud(7, 2, seed=4)
    subsets = list(itertools.combinations(range(7), 3))
    rest = [[i for i in range(7) if i not in s] for s in subsets]
    values = np.array([ds.energy(pool[list(s)], pool[r]) for s, r in zip(subsets, rest, strict=True)])
    exact = np.array([(values >= v - 1e-12).mean() for v in values])
    np.testing.assert_allclose(np.sort(exact), np.arange(1, 36) / 35)
    for i in (0, 11, 30):
        test = inf.permutation_test(pool[list(subsets[i])], pool[rest[i]], ds.energy, draws=1500, rng=i)
        assert test.p_value == pytest.approx(exact[i], abs=0.05)


@pytest.mark.parametrize("batch", [30, 20_000])
def test_the_joint_p_value_is_valid_whichever_set_was_observed(batch):
    """Any first and second batch: the observed set and the third batch trade places, and each rank comes once.

    With few draws in the earlier batches sets tie, and a tie counts as extreme: then no rank comes too early.
    """
    rng = np.random.default_rng(5)
    first, second = rng.standard_normal((2, batch, 3)) ** 3
    last = rng.standard_normal((20, 3))
    families = {"left": ("a", "b"), "right": ("c",)}
    found = [
        inf.Ranking((first, second, np.delete(last, i, axis=0)), ("a", "b", "c"), families).joint(last[i]).overall
        for i in range(20)
    ]
    ranks = np.arange(1, 21) / 20
    assert (np.sort(found) >= ranks - 1e-12).all()
    if batch > 1000:
        np.testing.assert_allclose(np.sort(found), ranks)


def test_unbiased_statistics_average_to_the_mean_over_the_population():
    """Over all subsets of 4 of a finite population, mmd2 and kid average to the value of its own pairs."""
    population, Y = cloud(7, 2, seed=6), cloud(9, 2, seed=7)
    for name, kernel in (
        ("mmd2", lambda A, B: np.exp(-ds.squared_distances(A, B) / 2)),
        ("kid", lambda A, B: (A @ B.T / 2 + 1) ** 3),
    ):
        distance = (lambda A, B: ds.mmd2(A, B, bandwidth2=1.0)) if name == "mmd2" else ds.kid
        mean = np.mean([distance(population[list(s)], Y) for s in itertools.combinations(range(7), 4)])
        whole = (
            off_diagonal_mean(kernel(population, population))
            + off_diagonal_mean(kernel(Y, Y))
            - 2 * kernel(population, Y).mean()
        )
        assert mean == pytest.approx(whole, abs=1e-12), name


@pytest.mark.parametrize(("m", "n"), [(3, 1), (4, 2), (5, 3), (6, 2)])
def test_chance_coverage_counts_every_order_of_old_and_new_rows(m, n):
    k = ds.reach_size(m, n)
    orders = list(itertools.combinations(range(m - 1 + n), n))  # places of the new rows among all, nearest first
    hit = sum(min(order) < k for order in orders) / len(orders)  # fewer than k old rows before the first new one
    assert ds.chance_coverage(m, n) == pytest.approx(hit, abs=1e-12)


# ---------------------------------------------------------------------------------------------- closed forms


def mean_gap(delta: float) -> float:
    """E|x - y| of N(0, 1) and N(delta, 1): the mean of a folded normal."""
    s = math.sqrt(2.0)
    return s * math.sqrt(2 / math.pi) * math.exp(-(delta**2) / (2 * s**2)) + delta * (
        1 - 2 * NormalDist().cdf(-delta / s)
    )


@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0])
def test_energy_of_two_gaussians_matches_its_closed_form(delta):
    expected = math.sqrt(2 * mean_gap(delta) - 2 * mean_gap(0.0))
    X, Y = cloud(3000, 1, seed=1), cloud(3000, 1, seed=2, shift=delta)
    assert ds.energy(X, Y) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("scale", "order"), [(2.0, 2), (3.0, 2), (2.0, 1)])
def test_sliced_wasserstein_of_two_widths_is_that_of_every_direction(scale, order):
    # On every line N(0, 1) and N(0, s^2): W_2 = s - 1, W_1 = (s - 1) E|z|
    expected = (scale - 1) * (1.0 if order == 2 else math.sqrt(2 / math.pi))
    X, Y = cloud(20_000, 4, seed=1), scale * cloud(20_000, 4, seed=2)
    assert ds.sliced_wasserstein(X, Y, order=order, n_projections=16) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("b", [0.5, 4.0])
def test_mmd_of_two_widths_matches_its_closed_form(b):
    # E k of N(0, s^2 I) and N(0, t^2 I) in d dimensions: (b / (b + s^2 + t^2))^(d/2)
    d, s2 = 3, 4.0
    kernel = lambda v: (b / (b + v)) ** (d / 2)  # noqa: E731
    expected = kernel(2.0) + kernel(2 * s2) - 2 * kernel(1 + s2)
    X, Y = cloud(4000, d, seed=1), 2.0 * cloud(4000, d, seed=2)
    assert ds.mmd2(X, Y, bandwidth2=b) == pytest.approx(expected, abs=0.005)


def test_kid_of_two_gaussians_matches_its_closed_form():
    # (z + 1)^3 with z = x.y / d; x, y ~ N(mu, I): E z = a, and moments of products of independent Gaussians
    d, mu = 2, 1.0
    points, weights = np.polynomial.hermite_e.hermegauss(8)
    weights = weights / weights.sum()
    grid = np.array(list(itertools.product(range(8), repeat=d)))
    G, w = points[grid], weights[grid].prod(axis=1)  # Gauss-Hermite: exact for polynomials of this degree

    def k(A, B):
        return (A @ B.T / d + 1) ** 3

    expected = float(w @ k(G, G) @ w + w @ k(G + mu, G + mu) @ w - 2 * w @ k(G, G + mu) @ w)
    X, Y = cloud(3000, d, seed=1), cloud(3000, d, seed=2, shift=mu)
    assert ds.kid(X, Y) == pytest.approx(expected, rel=0.1)


# ---------------------------------------------------------------------------------------------- laws

V_STATISTICS = {  # functions of the two distributions alone: repeating every row changes nothing
    "mmd": lambda X, Y: ds.mmd(X, Y, bandwidth2=1.0),
    "energy": ds.energy,
    "sliced_wasserstein": lambda X, Y: ds.sliced_wasserstein(X, Y, n_projections=16),
}
SYMMETRIC = {
    **V_STATISTICS,
    "mmd2": lambda X, Y: ds.mmd2(X, Y, bandwidth2=1.0),
    "mmd2_features": lambda X, Y: ds.mmd2_features(X, Y, bandwidth2=1.0, n_features=64),
    "kid": ds.kid,
    "frechet": ds.frechet,
}
values = st.floats(-4, 4, allow_nan=False, width=32).map(lambda v: round(v, 3))


def rows(low, high, d=3):
    return st.integers(low, high).flatmap(lambda n: arrays(np.float64, (n, d), elements=values))


def near(a, b):
    # Distance zero between two rows is a difference of sums, and off by the root of the last bit: 1e-7 in a mean of
    # distances, whose root is the energy distance.
    return math.isclose(a, b, rel_tol=1e-6) or abs(a * a - b * b) < 1e-6


@pytest.mark.parametrize("name", SYMMETRIC)
@given(X=rows(2, 9), Y=rows(2, 9), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_distances_are_symmetric_and_blind_to_the_order_of_rows(name, X, Y, seed):
    f, rng = SYMMETRIC[name], np.random.default_rng(seed)
    assert near(f(X, Y), f(Y, X))
    assert near(f(X, Y), f(rng.permutation(X), rng.permutation(Y)))


@pytest.mark.parametrize("name", [*V_STATISTICS, "frechet"])
@given(X=rows(2, 9))
@settings(max_examples=30, deadline=None)
def test_a_set_is_no_way_from_itself(name, X):
    assert near(SYMMETRIC[name](X, X[::-1]), 0.0)


@pytest.mark.parametrize("name", V_STATISTICS)
@given(X=rows(1, 6), Y=rows(1, 6), times=st.integers(2, 4))
@settings(max_examples=30, deadline=None)
def test_a_set_merged_with_itself_is_the_same_distribution(name, X, Y, times):
    f = V_STATISTICS[name]
    assert near(f(np.repeat(X, times, axis=0), Y), f(X, Y))
    assert near(f(X, np.concatenate([Y] * times)), f(X, Y))


@pytest.mark.parametrize("name", V_STATISTICS)
@given(X=rows(1, 6), Y=rows(1, 6), Z=rows(1, 6))
@settings(max_examples=30, deadline=None)
def test_metrics_keep_the_triangle_inequality(name, X, Y, Z):
    f = V_STATISTICS[name]
    assert f(X, Z) <= f(X, Y) + f(Y, Z) + 1e-3


@given(X=rows(2, 6), Y=rows(2, 6), Z=rows(2, 8))
@settings(max_examples=30, deadline=None)
def test_mmd_of_two_sets_merged_is_that_of_the_mean_of_their_embeddings(X, Y, Z):
    """Merge law: mean features of A and B together are the mean by rows of those of A and of B."""
    f = ds.fourier(3, (1.0,), n_features=32)
    a, b, z = (f(A).mean(axis=0, dtype=np.float64) for A in (X, Y, Z))
    both = (len(X) * a + len(Y) * b) / (len(X) + len(Y))
    merged = f(np.concatenate([X, Y])).mean(axis=0, dtype=np.float64)
    assert float(((merged - z) ** 2).sum()) == pytest.approx(float(((both - z) ** 2).sum()), abs=1e-6)


@pytest.mark.parametrize("name", ["mmd", "energy", "frechet"])
@given(X=rows(2, 8), Y=rows(2, 8), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_moving_and_turning_space_changes_nothing(name, X, Y, seed):
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    t = rng.standard_normal(3)
    assert near(SYMMETRIC[name](X @ Q + t, Y @ Q + t), SYMMETRIC[name](X, Y))


counts = st.lists(st.integers(0, 50), min_size=3, max_size=8)


@given(p=counts, q=counts)
@settings(max_examples=80, deadline=None)
def test_divergences_of_shares_keep_their_bounds_and_shrink_when_clusters_are_merged(p, q):
    size = min(len(p), len(q))
    p, q = np.array(p[:size]) + np.eye(size)[0], np.array(q[:size]) + np.eye(size)[-1]
    tv, js, chi = (f(p, q) for f in (ds.total_variation, ds.jensen_shannon, ds.chi_square))
    assert 0 <= js <= tv + 1e-12 <= 1 + 2e-12  # Lin 1991, theorem 3
    assert tv**2 - 1e-12 <= chi <= tv + 1e-12  # Cauchy and Schwarz; |p - q| <= p + q
    assert js <= chi + 1e-12 <= 2 * math.log(2) * js + 1e-9  # Topsoe 2000, in bits
    for f in (ds.total_variation, ds.jensen_shannon, ds.chi_square):
        assert f(p, q) == pytest.approx(f(q, p), abs=1e-12)
        assert f(p, p) == pytest.approx(0.0, abs=1e-12)
        assert f(3 * p, q) == pytest.approx(f(p, q), abs=1e-12)  # shares, not counts
        merged = [np.append(s[2:], s[0] + s[1]) for s in (p, q)]
        assert f(*merged) <= f(p, q) + 1e-12
