"""The set statistics: what they are, that their p-values are right over many refits, and what they can see."""

from __future__ import annotations

import math

import numpy as np
import pytest

from promptkit import comparison
from promptkit import distances as ds
from promptkit.comparison import CHANGES, STATISTICS, Mix, Rows
from promptkit.inference import draw_subsets, t

K = 6


def world(seed: int, *, heavy: bool = False):
    """Return a way to draw rows of a mixture of K clusters in 12 dimensions, each with an oddness (0..1 uniform)."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((K, 12)) * 1.5
    shares = rng.dirichlet(np.full(K, 2.0))

    def draw(n: int, rng: np.random.Generator, *, only: int | None = None):
        cluster = rng.choice(K, size=n, p=shares) if only is None else np.full(n, only)
        noise = rng.standard_t(2.5, size=(n, 12)) if heavy else rng.standard_normal((n, 12))
        X = centres[cluster] + noise
        odd = np.linalg.norm(noise, axis=1)
        return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32), odd

    return draw, centres / np.linalg.norm(centres, axis=1, keepdims=True)


def rows(X, odd, centres, calibration, *, units=None, weights=None):
    n = len(X)
    clusters = (X @ centres.T.astype(np.float32)).argmax(axis=1)
    p = (1 + (calibration[None, :] >= odd[:, None]).sum(axis=1)) / (1 + len(calibration))
    w = np.full(n, 1 / n) if weights is None else weights / weights.sum()
    return Rows(X, clusters, clusters % 2, p, np.arange(n) if units is None else units, w)


def fitted(seed: int, *, n_fit=300, n_held=150, n_features=64, heavy=False, **more):
    """Return a fitted mix and a way to draw candidates for it."""
    draw, centres = world(seed, heavy=heavy)
    rng = np.random.default_rng([seed, 1])
    held_X, held_odd = draw(n_held, rng)
    fit = rows(*draw(n_fit, rng), centres, held_odd)
    held = rows(held_X, held_odd, centres, held_odd)
    shares = np.bincount(fit.clusters, minlength=K) / n_fit
    domains = np.bincount(fit.domains, minlength=2) / n_fit
    mix = Mix(fit, held, cluster_shares=shares, domain_shares=domains, n_features=n_features, **more)
    return mix, lambda n, rng, **k: rows(*draw(n, rng, **k), centres, held_odd)


def p_of(mix, candidates, *, draws=99, seed=0):
    return mix.test(mix.table(candidates), candidates.weights, draws=draws, rng=np.random.default_rng(seed))


# ---------------------------------------------------------------------------------------------- what they are


def test_statistics_equal_their_definitions_on_pairs_and_shares():
    mix, draw = fitted(0, n_features=4096)
    c = draw(20, np.random.default_rng(5))
    got = mix.statistics((c.weights.astype(np.float32) @ mix.table(c))[None], 1 / 20)[0]
    for value, bandwidth2 in zip(got, mix.bandwidths2, strict=False):
        assert value == pytest.approx(ds.mmd2(c.X, mix.fitted.X, bandwidth2=bandwidth2), abs=0.004)
    own = np.bincount(c.clusters, minlength=K) / 20
    assert got[3] == pytest.approx(ds.jensen_shannon(own, mix.fitted_shares), abs=1e-5)
    assert got[4] == pytest.approx(-np.log(c.typicality).mean(), abs=1e-5)
    assert mix.distance((c.weights.astype(np.float32) @ mix.table(c))[None])[0] == pytest.approx(
        ds.mmd(c.X, mix.fitted.X, bandwidth2=mix.bandwidths2[0]), rel=0.03
    )


def test_weights_count_as_repetition_in_means():
    mix, draw = fitted(1)
    c = draw(6, np.random.default_rng(0))
    weighted = Rows(c.X, c.clusters, c.domains, c.typicality, c.units, np.array([3, 1, 1, 1, 1, 1]) / 8)
    repeated = c.take(np.array([0, 0, 0, 1, 2, 3, 4, 5]))
    a, b = ((x.weights.astype(np.float32) @ mix.table(x))[None] for x in (weighted, repeated))
    np.testing.assert_allclose(mix.distance(a), mix.distance(b), atol=1e-5)


def test_order_of_candidates_changes_no_observed_statistic():
    mix, draw = fitted(2)
    c = draw(15, np.random.default_rng(1))
    other = c.take(np.random.default_rng(2).permutation(15))
    a, b = (mix.statistics((x.weights.astype(np.float32) @ mix.table(x))[None], 1 / 15) for x in (c, other))
    np.testing.assert_allclose(a, b, atol=2e-6)


def test_thinned_features_are_those_of_a_thinner_mix():
    mix, _ = fitted(3, n_features=64)
    thin, direct = mix._thin(16), fitted(3, n_features=16)[0]
    np.testing.assert_allclose(thin.mean, direct.mean, atol=1e-5)
    domains = slice(-2 - mix.n_domains, -2)  # no test looks at them
    np.testing.assert_allclose(thin.held_table, np.delete(direct.held_table, domains, axis=1), atol=1e-5)
    np.testing.assert_allclose(thin.within, direct.within, atol=1e-5)


# ---------------------------------------------------------------------------------------------- calibration


@pytest.mark.parametrize(
    ("n", "heavy", "n_held"),
    [(10, False, 150), (40, False, 150), (40, True, 60), (100, True, 150)],
    ids=["n=10", "n=40", "n=40 heavy tails, 60 held out", "n=100 heavy tails"],
)
def test_false_alarms_are_nominal_over_fifty_refits(n, heavy, n_held):
    p = []
    for seed in range(50):
        mix, draw = fitted(seed, heavy=heavy, n_held=n_held, n_features=32)
        for s in range(6):
            j = p_of(mix, draw(n, np.random.default_rng([seed, 7, s])), seed=s)
            p.append([j.overall, j.family["mix"], j.family["fidelity"]])
    p = np.array(p)
    # 300 sets; sets of one refit share its held-out rows, so the rate scatters about twice as much as a binomial
    assert ((p < 0.05).mean(axis=0) >= 0.01).all()
    assert ((p < 0.05).mean(axis=0) <= 0.09).all()
    assert ((p <= 0.10).mean(axis=0) <= 0.16).all()
    assert 0.35 <= (p[:, 0] <= 0.5).mean() <= 0.65


def test_the_noise_floor_is_the_mean_distance_of_random_sets():
    for n in (10, 60, 120):  # 120: more than half of the held-out rows, so drawn with replacement and corrected
        ratios = []
        for seed in range(30):
            mix, draw = fitted(seed)
            c = draw(n, np.random.default_rng([seed, 3]))
            floor = mix.chance(c.weights, np.random.default_rng(0)).distance.mean()
            ratios.append(mix.distance((c.weights.astype(np.float32) @ mix.table(c))[None])[0] / floor)
        assert np.mean(ratios) == pytest.approx(1.0, abs=0.12)  # one ratio scatters by 0.2-0.3


# ---------------------------------------------------------------------------------------------- power


def changed(draw, kind, n, rng):
    c = draw(n, rng)
    if kind == "foreign":
        p = c.typicality.copy()
        p[: n // 4] = 0.01
        return Rows(c.X, c.clusters, c.domains, p, c.units, c.weights)
    if kind == "one cluster":
        return draw(n, rng, only=1)
    return c.take(np.repeat(np.arange(n // 4), 4))  # every prompt four times


@pytest.mark.parametrize("kind", ["foreign", "one cluster", "repeated"])
def test_each_fault_is_found_by_its_family(kind):
    found = []
    for seed in range(8):
        mix, draw = fitted(seed)
        j = p_of(mix, changed(draw, kind, 40, np.random.default_rng([seed, 2])), draws=199)
        found.append(j.overall < 0.05 and j.family["fidelity" if kind == "foreign" else "mix"] < 0.05)
    assert np.mean(found) >= 0.75


def test_power_rises_with_n_and_is_refused_where_nothing_can_be_drawn():
    mix, _ = fitted(0, n_held=250)
    table = mix.power((10, 100, 200))
    assert [row["change"] for row in table[:4]] == list(CHANGES)
    power = {(row["n"], row["change"]): row["power"] for row in table}
    assert power[100, "25 % foreign"] > 0.9
    assert power[100, "10 % foreign"] > power[10, "10 % foreign"] + 0.2
    assert power[100, "largest cluster missing"] > power[10, "largest cluster missing"]
    assert all(power[200, change] is None for change in CHANGES)  # 2 * 200 > 250
    assert all(p is None or 0 <= p <= 1 for p in power.values())


def test_the_power_of_a_size_does_not_depend_on_the_other_sizes():
    mix, _ = fitted(0, n_held=250)
    other, _ = fitted(0, n_held=250)
    assert mix.power((50,)) == other.power((10, 50))[4:]


def test_draws_that_were_kept_are_what_drawing_again_gives():
    def p_values(mix, draw, rng):
        w = np.full(40, 1 / 40)
        return mix.test(mix.table(draw), w, draws=99, rng=rng).single, rng.random()

    mix, draw = fitted(0, n_held=250)
    other, _ = fitted(0, n_held=250)
    first, second = (draw(40, np.random.default_rng(seed)) for seed in (1, 2))
    p_values(mix, first, np.random.default_rng(3))
    assert p_values(mix, second, np.random.default_rng(3)) == p_values(other, second, np.random.default_rng(3))
    assert p_values(mix, second, np.random.default_rng(4)) == p_values(other, second, np.random.default_rng(4))


# ---------------------------------------------------------------------------------------------- coverage


def test_new_rows_cover_one_and_one_cluster_covers_little():
    whole, part = [], []
    for seed in range(12):
        mix, draw = fitted(seed, n_held=200)
        rng = np.random.default_rng([seed, 4])
        whole.append(mix.coverage(draw(30, rng).X, rng)[0])
        part.append(mix.coverage(draw(30, rng, only=0).X, rng)[0])
    assert np.mean(whole) == pytest.approx(1.0, abs=0.1)
    assert np.mean(part) < 0.6


def test_coverage_and_its_halves_count_rows_within_reach_one_by_one():
    mix, draw = fitted(2)
    X = draw(40, np.random.default_rng(1)).X
    value, (low, high) = mix.coverage(X, np.random.default_rng(5))
    H, w = mix._covered
    near = np.round(H @ X.T, 5)

    def covered(columns, n):
        reach = mix._reaches(H, n)
        inside = sum(w[i] for i in range(len(H)) if any(near[i, j] >= reach[i] for j in columns))
        return inside / ds.chance_coverage(len(H), n, ds.reach_size(len(H), n))

    assert value == pytest.approx(covered(range(40), 40), rel=1e-12)
    halves = draw_subsets(20, 40, 99, rng=np.random.default_rng(5))
    spread = np.var([covered(half.tolist(), 20) for half in halves], ddof=1)
    hit = (near >= mix._reaches(H, 40)[:, None]).any(axis=1)
    chance = ds.chance_coverage(len(H), 40, ds.reach_size(len(H), 40))
    half = t(0.95, 39) * math.sqrt(spread + (w**2 * (hit - w @ hit) ** 2).sum() / chance**2)
    assert (low, high) == pytest.approx((max(0.0, value - half), value + half), rel=1e-9)


def test_draws_that_are_kept_are_those_that_are_made_anew():
    mix, draw = fitted(4)
    first, second = (draw(20, np.random.default_rng(s)) for s in (1, 2))
    p_of(mix, first)
    again, fresh = p_of(mix, second), p_of(fitted(4)[0], second)
    assert again.single == fresh.single
    assert again.overall == fresh.overall
    np.testing.assert_array_equal(again.null_depths, fresh.null_depths)
    other = p_of(mix, second, seed=1)  # another state of the generator: other draws
    assert not np.array_equal(other.null_depths, again.null_depths)
    rng, plain = np.random.default_rng(3), np.random.default_rng(3)
    mix.chance(first.weights, np.random.default_rng(3))
    mix.chance(second.weights, rng)
    fitted(4)[0].chance(second.weights, plain)
    assert rng.random() == plain.random()  # left as drawing leaves it


@pytest.mark.parametrize("most", [comparison.MAX_PAIRED, 0], ids=["pairs", "lines"])
def test_summing_what_candidates_add_gives_what_summing_all_gives(most, monkeypatch):
    monkeypatch.setattr(comparison, "MAX_PAIRED", most)
    mix, draw = fitted(4)
    c = draw(20, np.random.default_rng(2))
    table, w = mix.table(c), c.weights
    null = mix._draw(20, 99, np.random.default_rng(3))
    assert (null.own is None, null.lines is None) == (not most, bool(most))
    found = mix._statistics_of(null, table, mix._own_of(null, mix.features(c.X)))
    whole = mix._draw_lines(w, 99, np.random.default_rng(3))
    np.testing.assert_allclose(
        found, np.concatenate([mix.statistics(h + in_it @ table, 1 / 20) for h, in_it in whole]), atol=2e-6
    )
    # Drawn one by one: the same rows, means of float64.
    pool = np.concatenate([mix.held_table, table]).astype(np.float64)
    rows = np.concatenate(list(mix._null_rows(20, 99, np.random.default_rng(3))))
    np.testing.assert_allclose(found, mix.statistics(pool[rows].mean(axis=1), 1 / 20), atol=2e-6)


def test_draws_that_another_thread_replaces_at_once_are_not_taken():
    class Replaced(dict):
        def __setitem__(self, what, found):
            super().__setitem__(what, (found[0], "another's", found[2]))

    mix, _ = fitted(4)
    mix._kept = Replaced()
    assert mix._once("chance", np.random.default_rng(0), np.ones(2), lambda: "mine") == "mine"


def test_what_is_begun_early_changes_nothing(monkeypatch):
    mix, draw = fitted(4)
    c = draw(20, np.random.default_rng(2))
    own = mix.begin(c.X, c.weights, 199, np.random.default_rng(3))
    rng = [np.random.default_rng(3) for _ in range(2)]
    for r in rng:
        mix.chance(c.weights, r)
    early = mix.test(mix.table(c), c.weights, draws=199, rng=rng[0], own=own)
    assert own is not None
    monkeypatch.setattr(comparison, "MAX_WHOLE", 0)
    large = p_of(fitted(4)[0], c, draws=199)  # as a larger set, in parts
    monkeypatch.undo()
    assert p_of(fitted(4)[0], c, draws=199).single == large.single
    late = fitted(4)[0].test(mix.table(c), c.weights, draws=199, rng=rng[1])
    assert (early.single, early.overall) == (late.single, late.overall)
    np.testing.assert_array_equal(early.null_depths, late.null_depths)
    assert fitted(4, weighted=True)[0].begin(c.X, c.weights, 199, np.random.default_rng(3)) is None


def test_coverage_interval_holds_the_value_and_widens_with_fewer_prompts():
    mix, draw = fitted(1, n_held=200)
    rng = np.random.default_rng(0)
    value, (low, high) = mix.coverage(draw(100, rng).X, rng)
    assert low <= value <= high
    few = mix.coverage(draw(12, rng).X, rng)[1]
    assert few[1] - few[0] > high - low
    assert math.isnan(mix.coverage(draw(3, rng).X, rng)[1][0])


# ---------------------------------------------------------------------------------------------- units and weights


def test_a_prompt_repeated_in_the_held_out_rows_distorts_no_draw():
    mix, _ = fitted(0)
    h = mix.held
    at = np.concatenate([np.arange(150), np.full(150, 3)])  # one held-out row 151 times
    repeated = h.take(at)
    twin = Mix(mix.fitted, repeated, cluster_shares=mix.cluster_shares, domain_shares=mix.domain_shares, n_features=64)
    w = np.full(20, 1 / 20)
    plain, crowded = (m.chance(w, np.random.default_rng(0)).distance.mean() for m in (mix, twin))
    assert crowded == pytest.approx(plain, rel=0.03)


def test_a_mix_by_tokens_draws_in_proportion_to_them():
    mix, _ = fitted(0)
    heavy = np.where(mix.held.clusters == 0, 20.0, 1.0)
    held = Rows(
        mix.held.X, mix.held.clusters, mix.held.domains, mix.held.typicality, mix.held.units, heavy / heavy.sum()
    )
    m = Mix(mix.fitted, held, cluster_shares=mix.cluster_shares, domain_shares=mix.domain_shares, weighted=True)
    drawn, repeats = m.draw_held(30, 200, np.random.default_rng(0))
    assert repeats
    expected = heavy[held.clusters == 0].sum() / heavy.sum()
    assert (held.clusters[drawn] == 0).mean() == pytest.approx(expected, abs=0.03)


def test_names_of_statistics_and_changes_stay():
    assert STATISTICS == ("mmd_1", "mmd_1/2", "mmd_1/4", "jensen_shannon", "fisher")
