"""Typicality: uniform on rows of the mix, low on what is foreign, the same in any company."""

from __future__ import annotations

import numpy as np
import pytest

from promptkit.conformal import View, folds_by_unit, join_small

N_VOCAB = 200


def mix(n, *, rng, regions=3):
    """Texts of `regions` vocabularies; returns ids and the region of each, one clustering."""
    region = rng.integers(0, regions, n)
    return [(rng.zipf(1.6, rng.integers(4, 16)) % 25 + 25 * r).astype(np.int32) for r in region], region[:, None]


def view(n, *, rng, seed=0, regions=3, affinity=None, domain=None):
    ids, region = mix(n, rng=rng, regions=regions)
    units = np.arange(n)
    return View.fit(
        ids,
        rows=np.arange(n),
        folds=folds_by_unit(units, seed=seed),
        units=units,
        clusters=region,
        centroids=np.eye(regions, dtype=np.float32)[None],
        n_vocab=N_VOCAB,
        affinity=affinity,
        domain=domain,
    )


@pytest.mark.parametrize(("n", "regime", "refits"), [(1700, "split", 12), (150, "cross", 60)])
def test_typicality_of_fresh_rows_is_uniform_over_refits(n, regime, refits):
    rng = np.random.default_rng(1)
    p = []
    for _ in range(refits):
        v = view(n, rng=rng)
        assert v.regime == regime
        ids, region = mix(100, rng=rng)
        p.append(v.typicality(ids, region).typicality)
    p = np.array(p)
    for level in (0.05, 0.1, 0.5, 0.9):
        rate, se = (p <= level).mean(), (p <= level).mean(axis=1).std() / np.sqrt(refits)
        assert abs(rate - level) < 3.5 * se + 0.01, (level, rate, se)


def test_held_out_rows_get_uniform_values_of_their_own():
    v = view(1700, rng=np.random.default_rng(0))
    assert np.abs(np.sort(v.p) - np.arange(1, len(v.p) + 1) / len(v.p)).max() < 0.02
    # ... and are what a fresh copy of the row gets, own unit left out.
    ids, region = mix(1700, rng=np.random.default_rng(0))
    i = v.rows[:50]
    again = v.typicality([ids[j] for j in i], region[i], exclude_units=i)
    np.testing.assert_allclose(again.typicality, v.p[:50], atol=0.005)


def test_a_row_of_the_fit_is_no_more_typical_than_a_fresh_one_once_its_unit_is_left_out():
    rng = np.random.default_rng(0)
    ids, region = mix(1700, rng=rng)
    v = view(1700, rng=np.random.default_rng(0))
    fitted = np.setdiff1d(np.arange(1700), v.rows)[:400]
    texts = [ids[i] for i in fitted]
    assert v.typicality(texts, region[fitted]).typicality.mean() > 0.6
    assert v.typicality(texts, region[fitted], exclude_units=fitted).typicality.mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("n", [1700, 150])
def test_foreign_texts_are_flagged(n):
    v = view(n, rng=np.random.default_rng(0))
    foreign = [np.random.default_rng(i).integers(100, 200, 12) for i in range(50)]
    assert (v.typicality(foreign, np.zeros((50, 1), dtype=np.int64)).typicality < 0.05).mean() > 0.9


@pytest.mark.parametrize("n", [1700, 150])
def test_typicality_has_the_same_bits_alone_in_10_and_in_1000(n):
    v = view(n, rng=np.random.default_rng(0))
    ids, region = mix(1000, rng=np.random.default_rng(9))
    ids = [np.append(t, [190] * (i % 3)) for i, t in enumerate(ids)]
    many = v.typicality(ids, region)
    for i in (0, 5, 63, 64, 500, 999):
        alone = v.typicality([ids[i]], region[i : i + 1])
        ten = v.typicality(ids[max(0, i - 9) : i + 1], region[max(0, i - 9) : i + 1])
        for name in ("typicality", "closeness", "cross_entropy", "nearest", "nearest_cosine"):
            assert getattr(alone, name)[0].tobytes() == getattr(ten, name)[-1].tobytes()
            assert getattr(alone, name)[0].tobytes() == getattr(many, name)[i].tobytes()


def test_below_a_hundred_rows_p_values_are_refused_but_neighbours_are_found():
    v = view(99, rng=np.random.default_rng(0))
    assert v.regime == "none"
    ids, region = mix(3, rng=np.random.default_rng(1))
    found = v.typicality(ids, region)
    assert np.isnan(found.typicality).all()
    assert (found.nearest >= 0).all()
    assert (found.closeness > 0).all()


@pytest.mark.parametrize("n", [1700, 150])
def test_farther_is_odder_beyond_all_held_out_rows(n):
    v = view(n, rng=np.random.default_rng(0))
    worst = v._odd_of_row.max()
    far = v._odd(np.array([0.0, 0.0]), v.cross_entropy.max() + np.array([1.0, 2.0]), None)
    assert worst <= far[0] < far[1]


def test_neighbours_are_sample_rows_once_each():
    v = view(150, rng=np.random.default_rng(0))
    ids, region = mix(20, rng=np.random.default_rng(1))
    found = v.typicality(ids, region)
    assert all(len(set(row.tolist())) == 10 for row in found.nearest)
    assert (np.diff(found.nearest_cosine, axis=1) <= 0).all()


def test_small_clusters_join_their_nearest():
    centroids = np.array([[1, 0], [0, 1], [0.1, 1]], dtype=np.float32)
    assert join_small(np.array([100, 90, 5]), centroids).tolist() == [0, 1, 1]
    assert join_small(np.array([100, 30, 5]), centroids).tolist() == [0, 0, 0]
    assert join_small(np.array([10, 9, 5]), centroids).tolist() == [-1, -1, -1]
    assert join_small(np.array([41, 50, 60]), centroids).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("n", "expected"), [(99, {-1}), (100, {0, 1, 2, 3, 4}), (1599, {0, 1, 2, 3, 4}), (1600, {-1, 0})]
)
def test_regimes_begin_where_the_page_says(n, expected):
    folds = folds_by_unit(np.arange(n), seed=0)
    assert set(folds.tolist()) == expected
    assert np.ptp(np.bincount(folds[folds >= 0], minlength=1)) <= 1


def test_no_unit_is_split():
    units = np.random.default_rng(0).integers(0, 700, 3000)
    for n in (3000, 800):
        folds = folds_by_unit(units[:n], seed=1)
        assert all(len(set(folds[units[:n] == u].tolist())) == 1 for u in set(units[:n].tolist()))
    assert abs((folds_by_unit(units, seed=1) == 0).sum() - 750) < 10


def test_copies_of_a_few_texts_calibrate_nothing():
    assert set(folds_by_unit(np.zeros(5000, dtype=np.int64), seed=0).tolist()) == {-1}
    assert set(folds_by_unit(np.arange(5000) % 9, seed=0).tolist()) == {-1}


def test_affinity_moves_typicality_of_texts_that_words_cannot_tell_apart():
    ids, region = mix(1700, rng=np.random.default_rng(5))
    affinity = np.random.default_rng(6).normal(size=1700)
    v = view(1700, rng=np.random.default_rng(5), affinity=affinity)
    same = [ids[0]] * 3
    p = v.typicality(same, np.full((3, 1), region[0]), affinity=np.array([3.0, 0.0, -9.0])).typicality
    assert p[0] > p[1] > p[2]
    with pytest.raises(ValueError, match="affinity"):
        v.typicality(same, np.full((3, 1), region[0]))


def test_most_of_what_is_usual_in_a_loose_region_is_taken_off():
    v = view(1700, rng=np.random.default_rng(0))
    raw = v._odd(v.closeness, v.cross_entropy, None)
    group = v._group[:, 0]
    for g in np.unique(group[group >= 0]):
        own = group == g
        taken = 0.8 * max(0.0, np.median(raw[own]) - np.median(raw))
        np.testing.assert_allclose(raw[own] - v._odd_of_row[own], taken, atol=1e-5)
    np.testing.assert_array_equal(v._odd_of_row[group < 0], raw[group < 0])


def test_a_text_is_ranked_among_all_rows_and_those_of_its_domain():
    """Oracle: plain counting. A domain of fewer than 40 held-out rows is no domain."""
    rng = np.random.default_rng(3)
    domain = rng.choice([0, 1, 2], 1700, p=[0.6, 0.38, 0.02])
    v = view(1700, rng=np.random.default_rng(0), domain=domain)
    odd, code = np.array([900.0, 400.0, 2000.0]), np.array([0, 1, 2])
    held_domain = domain[v.rows]
    assert 0 < (held_domain == 2).sum() < 40

    def p(x, rows):
        return (1 + sum(1 for r in rows if v._odd_of_row[r] >= x)) / (1 + len(rows))

    everyone = range(len(v.rows))
    expected = []
    for x, d in zip(odd, code, strict=True):
        of_domain = everyone if d == 2 else np.flatnonzero(held_domain == d)
        expected.append(-0.8 * np.log(p(x, everyone)) - 0.2 * np.log(p(x, of_domain)))
    np.testing.assert_allclose(v._ranked(odd, code), expected, atol=1e-8)


def test_what_is_taken_off_is_the_mean_over_the_clusterings():
    ids, region = mix(1700, rng=np.random.default_rng(0))
    coarse = np.minimum(region, 1)
    folds, rows = folds_by_unit(np.arange(1700), seed=0), np.arange(1700)

    def fitted(clusters):
        centroids = np.stack([np.eye(3, dtype=np.float32)] * clusters.shape[1])
        shared = {"rows": rows, "folds": folds, "units": rows, "n_vocab": N_VOCAB}
        return View.fit(ids, clusters=clusters, centroids=centroids, **shared)

    one, two, both = fitted(region), fitted(coarse), fitted(np.hstack([region, coarse]))
    np.testing.assert_array_equal(np.hstack([one._group, two._group]), both._group)
    raw = both._odd(both.closeness, both.cross_entropy, None)
    taken = [raw - v._odd_of_row for v in (one, two, both)]
    assert np.abs(taken[0] - taken[1]).max() > 1
    np.testing.assert_allclose(taken[2], (taken[0] + taken[1]) / 2, atol=2e-6)


def test_rows_of_a_tidy_domain_are_flagged_too():
    """Half of the rows have more of the mix's domains than the others; ranks within domains even this out in part."""
    rng = np.random.default_rng(8)
    tidy = rng.random(1700) < 0.5
    affinity = rng.normal(np.where(tidy, 0.7, -0.7), 1.0)

    def flagged(domain):
        v = view(1700, rng=np.random.default_rng(5), affinity=affinity, domain=domain)
        return (v.p[tidy[v.rows]] < 0.05).mean()

    assert flagged(tidy.astype(np.int64)) > 1.2 * flagged(None)


def test_a_held_out_row_scored_again_gets_what_it_got():
    """Its own unit is left out, of every rank: the row is among the others as it was when it was held out."""
    rng = np.random.default_rng(5)
    ids, region = mix(1700, rng=rng)
    domain = np.random.default_rng(1).integers(0, 2, 1700)
    v = view(1700, rng=np.random.default_rng(5), domain=domain)
    some = v.rows[:40]
    again = v.typicality([ids[i] for i in some], region[some], domain=domain[some], exclude_units=v._units[:40])
    np.testing.assert_allclose(again.typicality, v.p[:40], atol=2.5 / len(v.rows))
