"""Inference: every p-value, interval and draw against enumeration, another implementation, or its own promise."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from promptkit import distances as ds
from promptkit import inference as inf
from promptkit.errors import InputError, UsageError

# ---------------------------------------------------------------------------------------------- draws


@pytest.mark.parametrize(("n", "pool"), [(2, 6), (4, 6), (6, 6), (1, 6)])
def test_every_subset_is_drawn_equally_often(n, pool):
    draws = 6000
    rows = inf.draw_subsets(n, pool, draws, rng=1)
    seen = Counter(map(tuple, rows.tolist()))
    subsets = list(itertools.combinations(range(pool), n))
    assert set(seen) == set(subsets)  # distinct and sorted
    expected = draws / len(subsets)
    assert max(abs(seen[s] - expected) for s in subsets) < 4.5 * math.sqrt(expected)


def test_draws_repeat_with_a_seed_and_differ_without():
    first = inf.draw_subsets(5, 100, 20, rng=3)
    np.testing.assert_array_equal(first, inf.draw_subsets(5, 100, 20, rng=3))
    assert (first != inf.draw_subsets(5, 100, 20, rng=4)).any()


def test_weighted_draws_follow_the_weights():
    rows = inf.draw_subsets(3, 3, 4000, rng=0, probabilities=np.array([1.0, 0.0, 3.0]))
    share = np.bincount(rows.ravel(), minlength=3) / rows.size
    assert share[1] == 0.0
    assert share[2] == pytest.approx(0.75, abs=0.02)


def test_more_rows_than_there_are_is_refused():
    with pytest.raises(UsageError, match="cannot draw 5 different rows from 4"):
        inf.draw_subsets(5, 4, 1, rng=0)


def test_units_are_drawn_once_and_equally_often_whatever_their_size():
    units = np.array([7, 7, 7, 7, 7, 7, 3, 9, 9, 1])
    rows = inf.draw_units(2, units, 6000, rng=0)
    drawn = units[rows]
    assert (drawn[:, 0] != drawn[:, 1]).all()
    share = {u: (drawn == u).any(axis=1).mean() for u in (1, 3, 7, 9)}
    assert all(abs(s - 0.5) < 0.03 for s in share.values())
    inside = Counter(rows[units[rows] == 7].tolist())
    assert set(inside) == set(range(6))
    assert max(inside.values()) < 1.3 * min(inside.values())


@pytest.mark.parametrize("n", [3, 40])  # sparse, dense
@pytest.mark.parametrize("weighted", [False, True])
def test_means_of_draws_equal_a_plain_loop(n, weighted):
    rng = np.random.default_rng(0)
    table = rng.standard_normal((200, 300)).astype(np.float32)
    rows = inf.draw_subsets(n, 200, 30, rng=1)
    weights = np.full(n, 1 / n)
    if weighted:
        weights = np.zeros(n)
        weights[0] = 1.0  # all weight on one row: each mean is one of the rows drawn
    means = inf.weighted_means(rows, table, weights, rng=2)
    assert means.shape == (30, 300)
    for mean, line in zip(means, rows, strict=True):
        if weighted:
            assert any(np.allclose(mean, table[r], atol=1e-6) for r in line)
        else:
            np.testing.assert_allclose(mean, table[line].mean(axis=0), atol=1e-6)


def test_weights_are_not_tied_to_the_order_of_rows():
    table = np.arange(50, dtype=np.float32)[:, None]
    rows = inf.draw_subsets(5, 50, 2000, rng=0)  # lines are sorted: the last row of a line is its largest
    means = inf.weighted_means(rows, table, np.array([0.0, 0.0, 0.0, 0.0, 1.0]), rng=1)
    assert means.mean() == pytest.approx(24.5, abs=1.0)


# ---------------------------------------------------------------------------------------------- p-values


def test_p_value_counts_the_observed_among_the_null():
    assert inf.p_value(5.0, np.array([1.0, 2.0, 3.0])) == 0.25
    assert inf.p_value(2.0, np.array([1.0, 2.0, 3.0])) == 0.75  # a tie is as extreme
    assert inf.p_value(-9.0, np.array([1.0, 2.0, 3.0])) == 1.0
    assert math.isnan(inf.p_value(math.nan, np.array([1.0])))


def p_by_hand(x, null):
    return (1 + sum(v >= x for v in null)) / (1 + len(null))


def depth_by_hand(x, null):
    mean = sum(null) / len(null)
    spread = math.sqrt(sum((v - mean) ** 2 for v in null) / len(null)) or 1.0
    return -math.log(p_by_hand(x, null)) + max(0.0, x - max(null)) / spread


@pytest.mark.parametrize("seed", range(6))
def test_joint_p_values_equal_a_plain_recomputation(seed):
    """A second implementation in plain Python: three batches, two families, minimum of minima."""
    rng = np.random.default_rng(seed)
    batches = [np.round(rng.standard_normal((19, 3)), 1) for _ in range(3)]  # rounded: ties
    observed = np.round(rng.standard_normal(3) + 1.5, 1)
    names, families = ("a", "b", "c"), {"left": ("a", "b"), "right": ("c",)}

    first = [[row[i] for row in batches[0].tolist()] for i in range(3)]

    def family_depths(row, family_nulls=None):
        single = [depth_by_hand(row[i], first[i]) for i in range(3)]
        minima = {"left": max(single[0], single[1]), "right": single[2]}
        if family_nulls is None:
            return minima
        return {f: depth_by_hand(minima[f], family_nulls[f]) for f in minima}

    second = [family_depths(row) for row in batches[1].tolist()]
    nulls = {f: [m[f] for m in second] for f in families}
    third = [max(family_depths(row, nulls).values()) for row in batches[2].tolist()]

    joint = inf.Ranking(batches, names, families).joint(observed)
    assert joint.single == {n: pytest.approx(p_by_hand(observed[i], first[i])) for i, n in enumerate(names)}
    own = family_depths(observed.tolist())
    assert joint.family == {f: pytest.approx(p_by_hand(own[f], nulls[f])) for f in families}
    assert joint.overall == pytest.approx(p_by_hand(max(family_depths(observed.tolist(), nulls).values()), third))


def test_the_minimum_of_p_values_is_calibrated_and_would_not_be_by_itself():
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((6, 6))
    overall, smallest = [], []
    for _ in range(120):
        batches = [rng.standard_normal((99, 6)) @ mix for _ in range(3)]
        ranking = inf.Ranking(batches, "abcdef", {"one": "abcde", "two": "f"})
        single, _, p = ranking(rng.standard_normal((10, 6)) @ mix)
        overall += p.tolist()
        smallest += single.min(axis=1).tolist()
    overall, smallest = np.array(overall), np.array(smallest)
    for level in (0.01, 0.05, 0.1, 0.5):
        assert (overall <= level).mean() == pytest.approx(level, abs=0.012 + 2.5 * math.sqrt(level / 1200))
    assert (smallest <= 0.05).mean() > 0.12  # the trap


def test_values_beyond_the_null_stay_in_order():
    null = np.linspace(0, 1, 99)
    ranking = inf.Ranking([null[:, None]] * 3, ("a",), {"f": ("a",)})
    single, _, overall = ranking(np.array([[2.0], [50.0]]))
    np.testing.assert_array_equal(single, 0.01)
    np.testing.assert_array_equal(overall, 0.01)
    assert inf._depth(np.array([50.0]), null) > inf._depth(np.array([2.0]), null)


def mean_gap(X, Y):
    return abs(float(X.mean() - Y.mean()))


def test_permutation_test_approaches_the_enumeration_of_all_splits():
    rng = np.random.default_rng(3)
    X, held = rng.standard_normal((3, 1)) + 1.2, rng.standard_normal((5, 1))
    pool = np.concatenate([X, held])
    observed = mean_gap(X, held)
    gaps = [
        mean_gap(pool[list(rows)], pool[[i for i in range(8) if i not in rows]])
        for rows in itertools.combinations(range(8), 3)
    ]
    exact = np.mean([g >= observed - 1e-12 for g in gaps])
    test = inf.permutation_test(X, held, mean_gap, draws=4000, rng=0)
    assert test.p_value == pytest.approx(exact, abs=0.025)
    assert test.statistic == observed


def test_permutation_test_is_scipys():
    from scipy import stats

    rng = np.random.default_rng(1)
    X, Y = rng.standard_normal((12, 1)) + 0.8, rng.standard_normal((15, 1))
    theirs = stats.permutation_test(
        (X[:, 0], Y[:, 0]), lambda a, b: abs(a.mean() - b.mean()), n_resamples=4000, alternative="greater"
    )
    assert inf.permutation_test(X, Y, mean_gap, draws=4000, rng=0).p_value == pytest.approx(theirs.pvalue, abs=0.02)


@pytest.mark.parametrize("name", ["mmd2", "energy", "mmd2_features"])
def test_any_distance_becomes_a_test(name):
    rng = np.random.default_rng(0)
    fitted, held = rng.standard_normal((60, 4)), rng.standard_normal((80, 4))
    near, far = rng.standard_normal((8, 4)), rng.standard_normal((8, 4)) + 2
    test = inf.null_test(far, held, fitted, ds.DISTANCES[name], draws=99)
    assert test.p_value == 0.01
    assert test.statistic > test.floor
    assert test.null.shape == (99,)
    assert inf.null_test(near, held, fitted, ds.DISTANCES[name], draws=99).p_value > 0.05
    assert inf.permutation_test(far, held, ds.DISTANCES[name], fitted=fitted, draws=99).p_value == 0.01


def test_sign_flip_equals_all_signs():
    d = np.array([0.5, 1.0, -0.2, 0.8, 0.3, 1.1, 0.9])
    exact = np.mean([abs(np.mean(np.array(s) * d)) >= d.mean() - 1e-12 for s in itertools.product([-1, 1], repeat=7)])
    assert inf.sign_flip_test(d, draws=6000, rng=0).p_value == pytest.approx(exact, abs=0.01)


def test_two_sets_are_compared_with_their_distance_to_a_mix():
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((200, 3))
    near, also_near, far = (rng.standard_normal((25, 3)) + s for s in (0.0, 0.0, 1.5))

    def to_mix(A):
        return ds.mmd2(A, mix, bandwidth2=3.0)

    assert inf.compare_sets(near, far, to_mix, draws=99).p_value == 0.01
    assert inf.compare_sets(near, also_near, to_mix, draws=99).p_value > 0.05
    edited = near + np.array([0.8, 0.0, 0.0])  # every prompt of a pack edited a little: pairs see it
    paired = inf.compare_sets(near, edited, to_mix, paired=True, draws=199)
    assert paired.p_value <= inf.compare_sets(near, edited, to_mix, draws=199).p_value
    with pytest.raises(InputError, match="25 and 24 rows"):
        inf.compare_sets(near, far[1:], to_mix, paired=True)


# ---------------------------------------------------------------------------------------------- many at once


def test_holm_by_hand_and_benjamini_hochberg_as_scipy():
    from scipy.stats import false_discovery_control

    p = [0.01, 0.04, 0.03, 0.005]
    np.testing.assert_allclose(inf.holm(p), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(inf.benjamini_hochberg(p), false_discovery_control(p))
    many = np.random.default_rng(0).uniform(size=50) ** 2
    np.testing.assert_allclose(inf.benjamini_hochberg(many), false_discovery_control(many))


@pytest.mark.parametrize(
    ("k", "n", "p"), [(0, 20, 0.06), (3, 20, 0.3), (200, 200, 0.5), (12, 5000, 0.01), (-1, 5, 0.2)]
)
def test_binomial_tail_is_scipys(k, n, p):
    from scipy.stats import binom

    assert inf.binomial_at_most(k, n, p) == pytest.approx(binom.cdf(k, n, p), rel=1e-9)
    assert inf.binomial_at_most(0, 5, 0.0) == 1.0
    assert inf.binomial_at_most(2, 5, 1.0) == 0.0


# ---------------------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize(("k", "n"), [(0, 20), (7, 20), (20, 20), (190, 200)])
def test_wilson_is_scipys(k, n):
    from scipy.stats import binomtest

    theirs = binomtest(k, n).proportion_ci(method="wilson")
    assert inf.wilson(k / n, n) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert inf.wilson(0.5, 0) == (0.0, 1.0)


def test_equal_weights_count_in_full_and_one_weight_counts_once():
    assert inf.effective_size(np.full(7, 0.3)) == pytest.approx(7)
    assert inf.effective_size(np.array([1.0, 0, 0])) == pytest.approx(1)


def test_bootstrap_interval_of_a_mean_covers_it():
    rng = np.random.default_rng(0)
    hits = 0
    for i in range(200):
        low, high = inf.bootstrap(rng.exponential(size=60), draws=199, rng=i)
        hits += low <= 1.0 <= high
    assert 0.86 <= hits / 200 <= 0.98
    assert inf.bootstrap(np.arange(9.0), np.median, draws=99)[0] < 4


def test_half_samples_scatter_like_the_whole():
    x = np.random.default_rng(0).standard_normal(400)
    low, high = inf.half_sample(400, lambda rows: x[rows].mean(axis=1), centre=float(x.mean()), draws=999)
    assert (high - low) / 2 == pytest.approx(1.96 * x.std() / 20, rel=0.1)
    assert (high + low) / 2 == pytest.approx(x.mean())


def test_jackknife_leaves_each_row_out():
    rng = np.random.default_rng(0)
    f = ds.fourier(5, (2.0,), n_features=128)
    X, Y = rng.standard_normal((9, 5)) + 0.5, rng.standard_normal((50, 5))
    F, G = f(X).astype(float), f(Y).astype(float)
    mean = G.mean(axis=0)
    within = (50 * mean @ mean - 1) / 49
    jack = inf.jackknife_mmd2(F, mean, within, np.full(9, 1 / 9))
    whole = ds.mmd2_features(X, Y, bandwidth2=2.0, n_features=128)
    assert jack.value == pytest.approx(whole, abs=1e-5)
    for i in range(9):
        rest = ds.mmd2_features(np.delete(X, i, axis=0), Y, bandwidth2=2.0, n_features=128)
        assert jack.left_out[i] == pytest.approx(rest, abs=1e-5)
    expected = math.sqrt(8 / 9 * ((jack.left_out - jack.left_out.mean()) ** 2).sum())
    assert jack.stderr == pytest.approx(expected)
    assert math.isnan(inf.jackknife_mmd2(F[:2], mean, within, np.full(2, 0.5)).stderr)


@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_jackknife_interval_covers_the_true_distance(shift):
    """True MMD^2 from its closed form; alike (a degenerate statistic) and apart."""
    d, b, hits = 3, 4.0, 0
    f = ds.fourier(d, (b,), n_features=2048)
    # the mean feature of N(0, I): cos -> exp(-|w|^2 / 2b), sin -> 0
    decay = np.exp(-(f.frequencies.astype(float) ** 2).sum(axis=1) / (2 * b))
    mean = np.concatenate([decay, np.zeros_like(decay)]) / math.sqrt(len(decay))
    phase = f.frequencies.astype(float) @ np.full(d, shift) / math.sqrt(b)
    moved = np.concatenate([decay * np.cos(phase), decay * np.sin(phase)]) / math.sqrt(len(decay))
    truth = float(((moved - mean) ** 2).sum())
    for i in range(150):
        X = np.random.default_rng(i).standard_normal((40, d)) + shift
        low, high = inf.jackknife_mmd2(f(X), mean, float(mean @ mean), np.full(40, 1 / 40)).interval()
        hits += low - 1e-9 <= truth <= high
    assert hits / 150 >= 0.88


def test_the_part_of_the_error_that_falls_faster_is_all_of_it_where_sets_are_alike():
    rng = np.random.default_rng(5)
    base = rng.normal(size=(4000, 3))
    f = ds.fourier(3, (2.0,), n_features=256, seed=0)
    mean = f(base).mean(axis=0)

    def parts(n, shift):
        jacks = [
            inf.jackknife_mmd2(f(rng.normal(size=(n, 3)) + shift), mean, float(mean @ mean), np.full(n, 1 / n))
            for _ in range(40)
        ]
        return np.mean([j.second_order for j in jacks]), np.mean([j.stderr**2 for j in jacks])

    alike, alike_twice, far = parts(40, 0.0), parts(80, 0.0), parts(40, 1.0)
    assert alike[0] == pytest.approx(alike[1], rel=0.25)
    assert alike[0] / alike_twice[0] == pytest.approx(4.0, rel=0.2)
    assert far[0] < 0.3 * far[1]


def test_sizes_that_are_enough_are_enough_and_one_less_is_not():
    jack = inf.Jackknife(0.004, 0.004, np.zeros(20), 0.004**2)  # all of the error falls as 1/n
    n = inf.enough_for_equivalence(jack, 20, 0.01)
    reach = inf.z(0.95) + 0.8416
    assert 0.004 + reach * 0.004 * 20 / n <= 0.01 < 0.004 + reach * 0.004 * 20 / (n - 1)
    slow = inf.enough_for_equivalence(inf.Jackknife(0.004, 0.004, np.zeros(20), 0.0), 20, 0.01)
    assert slow == pytest.approx(20 * (reach * 0.004 / 0.006) ** 2, abs=1)
    assert inf.enough_for_equivalence(inf.Jackknife(0.02, 0.001, np.zeros(20), 0.0), 20, 0.01) is None
    n = inf.enough_for_share(0.95, 0.855)
    rng = np.random.default_rng(0)
    shown = np.mean([inf.wilson(x / n, n)[0] >= 0.855 for x in rng.binomial(n, 0.95, 4000)])
    assert shown == pytest.approx(0.8, abs=0.08)
    assert inf.enough_for_share(0.85, 0.855) is None


def test_a_share_is_tested_against_a_share_that_is_itself_a_sample():
    rng = np.random.default_rng(2)
    for n, m in ((20, 300), (200, 300), (200, 20000)):
        p = [inf.share_test(rng.binomial(n, 0.2) / n, n, rng.binomial(m, 0.2) / m, m) for _ in range(2000)]
        assert np.mean(np.array(p) < 0.05) < 0.06, (n, m)
    from scipy.stats import binom

    assert inf.share_test(0.4, 50, 0.2, math.inf) == pytest.approx(2 * binom.sf(19, 50, 0.2))
    assert inf.share_test(0.5, 20, 0.0, 400) < 1e-6  # a kind that the mix lacks
    assert inf.share_test(0.05, 20, 0.0, 400) > 0.05  # one prompt of it may be chance


def test_equivalence_is_shown_by_a_small_distance_with_a_small_error():
    assert inf.equivalence(0.01, 0.02, 0.1) < 0.001
    assert inf.equivalence(0.1, 0.02, 0.1) == pytest.approx(0.5)
    assert inf.equivalence(0.01, 0.2, 0.1) > 0.3  # not rejected is not shown equal
    assert math.isnan(inf.equivalence(0.01, 0.0, 0.1))


def test_sample_size_is_the_smallest_that_sees_the_change():
    table = [{"n": n, "change": "c", "power": p} for n, p in ((10, 0.1), (50, 0.85), (20, None), (100, 0.99))]
    assert inf.sample_size(table, "c") == 50
    assert inf.sample_size(table, "c", target=0.995) is None
    assert inf.power_of([0.01, 0.2, 0.04, 0.05]) == 0.5


@pytest.mark.parametrize("df", [6, 9, 29, 200])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_t_is_students(df, level):
    from scipy import stats

    assert inf.t(level, df) == pytest.approx(stats.t.ppf(0.5 + level / 2, df), abs=0.02)
