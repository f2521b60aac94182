"""Distances: against independent implementations, closed forms, and the laws that a distance must keep."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from promptkit import distances as ds
from promptkit.errors import InputError

N_SMALL = 12


def cloud(n: int, d: int = 6, *, shift: float = 0.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)) + shift


def kernel_by_hand(x, y, b):
    return math.exp(-sum((a - c) ** 2 for a, c in zip(x, y, strict=True)) / (2 * b))


# ---------------------------------------------------------------------------------------------- oracles


@pytest.mark.parametrize("unbiased", [True, False])
def test_mmd_equals_the_sum_over_all_pairs(unbiased):
    X, Y, b = cloud(5, 3), cloud(7, 3, shift=0.5, seed=1), 1.7

    def within(Z):
        pairs = [(i, j) for i in range(len(Z)) for j in range(len(Z)) if i != j or not unbiased]
        return sum(kernel_by_hand(Z[i], Z[j], b) for i, j in pairs) / len(pairs)

    across = sum(kernel_by_hand(x, y, b) for x in X for y in Y) / 35
    expected = within(X) + within(Y) - 2 * across
    got = ds.mmd2(X, Y, bandwidth2=b) if unbiased else ds.mmd(X, Y, bandwidth2=b) ** 2
    assert got == pytest.approx(expected, abs=1e-12)


def test_unbiased_mmd_averages_to_zero_over_every_split_of_a_pool():
    pool = cloud(8, 2)
    values = []
    for rows in itertools.combinations(range(8), 4):
        rest = [i for i in range(8) if i not in rows]
        values.append(ds.mmd2(pool[list(rows)], pool[rest], bandwidth2=1.0))
    within = np.mean([kernel_by_hand(pool[i], pool[j], 1.0) for i, j in itertools.permutations(range(8), 2)])
    assert np.mean(values) == pytest.approx(within + within - 2 * within, abs=1e-12)
    assert min(values) < 0 < max(values)


def test_mmd_of_two_gaussians_matches_its_closed_form():
    # N(0, I) and N(delta, I) in d = 2 with bandwidth b: E k = (b / (b + 2))^(d/2) exp(-|delta|^2 / (2 (b + 2)))
    b, delta = 2.0, 1.0
    own = b / (b + 2)
    expected = 2 * own - 2 * own * math.exp(-(delta**2) / (2 * (b + 2)))
    X = cloud(4000, 2, seed=1)
    Y = cloud(4000, 2, seed=2) + np.array([delta, 0.0])
    assert ds.mmd2(X, Y, bandwidth2=b) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("n", "m"), [(20, 20), (15, 40)])
def test_energy_is_scipys_in_one_dimension(n, m):
    from scipy.stats import energy_distance

    X, Y = cloud(n, 1), cloud(m, 1, shift=0.7, seed=1)
    assert ds.energy(X, Y) == pytest.approx(energy_distance(X[:, 0], Y[:, 0]), abs=1e-9)


@pytest.mark.parametrize(("n", "m"), [(20, 20), (15, 40), (7, 9), (1, 5)])
def test_sliced_wasserstein_is_scipys_in_one_dimension(n, m):
    from scipy.stats import wasserstein_distance

    X, Y = cloud(n, 1), cloud(m, 1, shift=0.7, seed=1)
    assert ds.sliced_wasserstein(X, Y, order=1) == pytest.approx(wasserstein_distance(X[:, 0], Y[:, 0]), abs=1e-12)


def test_sliced_wasserstein_of_a_shift_is_the_mean_projected_shift():
    X = cloud(50, 8)
    v = np.array([3.0, 0, 0, 0, 0, 0, 0, 0])
    # the mean over directions of (u.v)^2 is |v|^2 / d
    assert ds.sliced_wasserstein(X, X + v, n_projections=4000) == pytest.approx(3 / math.sqrt(8), rel=0.03)


def test_frechet_of_two_gaussians_matches_its_closed_form():
    X, Y = cloud(30_000, 3, seed=3), 2.0 * cloud(30_000, 3, shift=0.5, seed=4)
    # |gap|^2 + sum (sigma_x - sigma_y)^2 over the axes
    assert ds.frechet(X, Y) == pytest.approx(3 * 1.0 + 3 * (2 - 1) ** 2, rel=0.03)


@pytest.mark.parametrize(("n", "m"), [(40, 90), (4, 90), (5, 4)])
def test_frechet_equals_the_matrix_square_root_formula(n, m):
    from scipy.linalg import sqrtm

    X, Y = cloud(n, 6), cloud(m, 6, shift=0.3, seed=1) * 1.4
    A, B = np.cov(X.T), np.cov(Y.T)
    gap = X.mean(0) - Y.mean(0)
    eigenvalues = np.linalg.eigvals(A @ B).astype(complex)  # tr (A B)^(1/2), safe for singular A
    expected = gap @ gap + np.trace(A) + np.trace(B) - 2 * np.sqrt(eigenvalues).real.sum()
    assert ds.frechet(X, Y) == pytest.approx(expected, rel=1e-4)
    if min(n, m) > 6:
        root = np.trace(np.real(sqrtm(A @ B)))
        assert ds.frechet(X, Y) == pytest.approx(gap @ gap + np.trace(A) + np.trace(B) - 2 * root, rel=1e-6)


def test_kid_equals_the_sum_over_all_pairs():
    X, Y = cloud(4, 3), cloud(5, 3, seed=1)

    def k(a, b):
        return (float(a @ b) / 3 + 1) ** 3

    def within(Z):
        return np.mean([k(Z[i], Z[j]) for i, j in itertools.permutations(range(len(Z)), 2)])

    expected = within(X) + within(Y) - 2 * np.mean([k(x, y) for x in X for y in Y])
    assert ds.kid(X, Y) == pytest.approx(expected, abs=1e-12)


def test_frechet_is_biased_at_small_n_and_kid_is_not():
    """The published fact (Binkowski et al. 2018; Chong and Forsyth 2020), on sets of one distribution."""
    fid = {
        n: np.mean([ds.frechet(cloud(n, 16, seed=s), cloud(2000, 16, seed=99)) for s in range(20)]) for n in (20, 500)
    }
    kid = [ds.kid(cloud(20, 16, seed=s), cloud(2000, 16, seed=99)) for s in range(200)]
    assert fid[20] > 10 * fid[500]
    assert abs(np.mean(kid)) < 3 * np.std(kid) / math.sqrt(200)


def test_divergences_of_shares_match_scipy_and_hand():
    from scipy.spatial.distance import jensenshannon

    p, q = np.array([3, 1, 0, 6]), np.array([0.2, 0.3, 0.5, 0.0])
    assert ds.jensen_shannon(p, q) == pytest.approx(jensenshannon(p, q, base=2) ** 2, abs=1e-12)
    assert ds.total_variation(p, q) == pytest.approx((0.1 + 0.2 + 0.5 + 0.6) / 2)
    assert ds.chi_square([1, 0], [0, 1]) == 1.0
    assert ds.chi_square([2, 2], [3, 1]) == pytest.approx(0.5 * (0.0625 / 1.25 + 0.0625 / 0.75))
    assert ds.jensen_shannon([1, 0], [0, 5]) == 1.0


def test_c2st_finds_a_shift_and_nothing_where_there_is_none():
    assert ds.c2st(cloud(60), cloud(400, shift=1.0, seed=1)) > 0.9
    same = np.mean([ds.c2st(cloud(60, seed=s), cloud(400, seed=50 + s)) for s in range(8)])
    assert same == pytest.approx(0.5, abs=0.08)


# ---------------------------------------------------------------------------------------------- random features


def test_random_features_approach_the_kernel_as_one_over_root_of_their_number():
    X = cloud(60, 10, seed=5) / math.sqrt(10)
    exact = np.exp(-ds.squared_distances(X, X) / (2 * 0.5))
    error = {}
    for n_features in (128, 2048):
        F = ds.features(X, bandwidth2=0.5, n_features=n_features)
        assert F.shape == (60, n_features)
        assert F.dtype == np.float32
        np.testing.assert_allclose((F * F).sum(axis=1), 1.0, atol=1e-5)
        error[n_features] = np.sqrt(np.mean((F @ F.T - exact) ** 2))
    assert error[2048] < 1 / math.sqrt(2048)
    assert error[2048] < error[128] / 2.5


def test_features_of_several_bandwidths_are_those_of_each():
    X = cloud(9, 4)
    both = ds.fourier(4, (1.0, 0.25), n_features=64, seed=3)
    F = both(X)
    assert F.shape == (9, 128)
    np.testing.assert_array_equal(F[:, :64], ds.features(X, seed=3, bandwidth2=1.0, n_features=64))
    np.testing.assert_array_equal(F[:, 64:], ds.features(X, seed=3, bandwidth2=0.25, n_features=64))


def test_vectors_without_dimensions_are_all_alike():
    F = ds.features(np.zeros((3, 0)), n_features=8)
    np.testing.assert_allclose(F @ F.T, 1.0, atol=1e-6)


def test_mmd_by_features_is_near_the_exact_one():
    X, Y = cloud(80, 8), cloud(200, 8, shift=0.6, seed=1)
    assert ds.mmd2_features(X, Y, n_features=4096) == pytest.approx(ds.mmd2(X, Y), rel=0.1)


# ---------------------------------------------------------------------------------------------- laws

SYMMETRIC = {
    "mmd": lambda X, Y: ds.mmd(X, Y, bandwidth2=1.0),
    "mmd2": lambda X, Y: ds.mmd2(X, Y, bandwidth2=1.0),
    "mmd2_features": lambda X, Y: ds.mmd2_features(X, Y, bandwidth2=1.0),
    "energy": ds.energy,
    "frechet": ds.frechet,
    "kid": ds.kid,
    "sliced_wasserstein": ds.sliced_wasserstein,
}
UNBIASED = {"mmd2", "mmd2_features", "kid"}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_symmetric_distances_are_symmetric(name):
    X, Y = cloud(20), cloud(33, shift=0.4, seed=1)
    assert SYMMETRIC[name](X, Y) == pytest.approx(SYMMETRIC[name](Y, X), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", [n for n in SYMMETRIC if n not in UNBIASED])
def test_a_set_is_at_distance_zero_from_itself(name):
    X = cloud(25)
    assert SYMMETRIC[name](X, X) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("name", ds.DISTANCES)
def test_row_order_does_not_matter(name):
    X, Y = cloud(40), cloud(80, shift=0.5, seed=1)
    rng = np.random.default_rng(7)
    if name == "c2st":
        pytest.skip("folds follow the row order; its value scatters by the fold")
    shuffled = ds.DISTANCES[name](X[rng.permutation(40)], Y)
    assert shuffled == pytest.approx(ds.DISTANCES[name](X, Y), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", ds.DISTANCES)
def test_every_distance_is_a_plain_deterministic_function_of_two_matrices(name):
    X, Y = cloud(40), cloud(80, shift=2.0, seed=1)
    value = ds.DISTANCES[name](X, Y)
    assert isinstance(value, float)
    assert math.isfinite(value)
    assert value == ds.DISTANCES[name](X, Y)
    assert ds.DISTANCES[name].__doc__


@pytest.mark.parametrize("name", ds.DISTANCES)
def test_every_distance_tells_a_shifted_set_from_a_set_of_the_mix(name):
    here, there = np.eye(8)[0] * 4, np.eye(8)[1] * 4
    Y, X = cloud(300, 8, seed=1) + here, cloud(60, 8, seed=2)
    near, far = ds.DISTANCES[name](X + here, Y), ds.DISTANCES[name](X + there, Y)
    assert near > 2 * far if name in ("fidelity", "coverage") else far > 1.5 * near


@pytest.mark.parametrize("name", ds.DISTANCES)
def test_vectors_that_are_not_finite_are_named(name):
    X = cloud(15)
    X[3, 1] = np.nan
    with pytest.raises(InputError, match=r"rows 3 hold NaN"):
        ds.DISTANCES[name](X, cloud(30))


def test_vectors_of_different_length_are_refused():
    with pytest.raises(InputError, match="6 dimensions and Y 5"):
        ds.mmd(cloud(3), cloud(3, 5))


@pytest.mark.parametrize("name", ds.DISTANCES)
def test_a_single_row_gives_a_number_or_nan_and_never_an_error(name):
    value = ds.DISTANCES[name](cloud(1), cloud(30, seed=1))
    assert isinstance(value, float)


# ---------------------------------------------------------------------------------------------- coverage


@pytest.mark.parametrize("n", [3, 20, 60, 200])
def test_new_rows_of_the_mix_cover_what_chance_says(n):
    ratios = [ds.coverage(cloud(n, 5, seed=s), cloud(300, 5, seed=1000 + s)) for s in range(40)]
    assert np.mean(ratios) == pytest.approx(1.0, abs=3.5 * np.std(ratios) / math.sqrt(40))
    assert np.std(ratios) < 0.3
    assert 0.39 < ds.chance_coverage(300, n) < 0.66  # about a half at every size


def test_chance_coverage_counts_the_orders_of_old_and_new_rows():
    # m = 3, n = 2: k = ceil(0.7 * 3 / 2) = 2 nearest of 2 old and 2 new rows; both are old in 1 of 6 choices
    assert ds.reach_size(3, 2) == 2
    assert ds.chance_coverage(3, 2) == pytest.approx(5 / 6)


def test_coverage_falls_with_a_set_from_one_corner():
    Y = np.concatenate([cloud(100, 8, shift=s, seed=i) for i, s in enumerate((-4.0, 4.0))])
    Y[:, 0] += np.repeat([6.0, -6.0], 100)
    both = np.concatenate([Y[:20], Y[100:120]]) + 1e-3
    assert ds.coverage(both, Y) > 0.8
    assert ds.coverage(Y[:40] + 1e-3, Y) < 0.9
