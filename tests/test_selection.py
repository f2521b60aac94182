"""Quotas that add up, and a selection that is nearer to the mix than every usual way of choosing."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptkit import distances, selection
from promptkit.errors import InputError, UsageError

ROOT = Path(__file__).resolve().parents[1]


# -- quotas


@pytest.mark.parametrize(
    ("shares", "k", "expected"),
    [
        ({"a": 0.5, "b": 0.5}, 4, {"a": 2, "b": 2}),
        ({"a": 0.55, "b": 0.45}, 3, {"a": 2, "b": 1}),
        ({"a": 0.98, "b": 0.02}, 20, {"a": 20, "b": 0}),  # 0.02 is below 1/40
        ({"a": 0.97, "b": 0.03}, 20, {"a": 19, "b": 1}),
        ({"a": 0.9, "b": 0.034, "c": 0.033, "d": 0.033}, 20, {"a": 17, "b": 1, "c": 1, "d": 1}),
        ({"a": 2, "b": 2}, 3, {"a": 2, "b": 1}),  # need not sum to one; ties by name
    ],
)
def test_quotas_by_hand(shares, k, expected):
    assert selection.quotas(shares, k) == expected


def test_what_a_domain_lacks_goes_to_the_others_by_their_shares():
    shares = {"a": 0.5, "b": 0.3, "c": 0.2}
    assert selection.quotas(shares, 100, available={"a": 10, "b": 1000, "c": 1000}) == {"a": 10, "b": 54, "c": 36}
    assert selection.quotas(shares, 100, available={"a": 10, "b": 20, "c": 1000}) == {"a": 10, "b": 20, "c": 70}
    assert selection.quotas(shares, 100, available={"a": 10, "b": 20, "c": 5}) == {"a": 10, "b": 20, "c": 5}


def test_a_domain_outside_the_mix_never_fills_up():
    assert selection.quotas({"a": 1.0, "b": 0.0}, 10, available={"a": 4, "b": 100}) == {"a": 4, "b": 0}


@given(
    st.dictionaries(st.sampled_from("abcdefghijkl"), st.floats(0, 1), min_size=1).filter(
        lambda d: sum(d.values()) > 1e-6
    ),
    st.integers(1, 600),
)
@settings(max_examples=300, deadline=None)
def test_quotas_sum_to_k_and_lose_no_domain_above_half_a_prompt(shares, k):
    quotas = selection.quotas(shares, k)
    total = sum(shares.values())
    assert sum(quotas.values()) == k
    large = [d for d, s in shares.items() if s / total > (1 + 1e-9) / (2 * k)]
    if len(large) <= k:
        assert all(quotas[d] >= 1 for d in large)
    assert all(abs(quotas[d] - k * s / total) < 1 + len(shares) * 0.5 for d, s in shares.items())


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.floats(0.01, 1), st.integers(0, 60)), min_size=1),
    st.integers(1, 100),
)
@settings(max_examples=200, deadline=None)
def test_quotas_never_ask_for_more_than_there_is(table, k):
    available = {d: n for d, (_, n) in table.items()}
    quotas = selection.quotas({d: s for d, (s, _) in table.items()}, k, available=available)
    assert all(quotas[d] <= available[d] for d in table)
    assert sum(quotas.values()) == min(k, sum(available.values()))


@pytest.mark.parametrize("shares", [{}, {"a": 0.0}, {"a": -1.0, "b": 2.0}, {"a": float("nan")}])
def test_shares_that_are_none_are_refused(shares):
    with pytest.raises(InputError):
        selection.quotas(shares, 5)
    with pytest.raises(UsageError):
        selection.quotas({"a": 1.0}, 0)


# -- select


def pool(n=300, d=12, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((6, d))
    which = rng.integers(0, 6, n)
    F = (centres[which] + 0.5 * rng.standard_normal((n, d))).astype(np.float32)
    return F, [f"d{w % 3}" for w in which]


def gap(X, chosen, mix):
    """MMD with every pair counted, from the formula of a Gaussian kernel at three bandwidths."""
    b = distances.median_squared_distance(mix)

    def mean(A, B):
        A, B = A.astype(float), B.astype(float)
        squares = (A**2).sum(axis=1)[:, None] + (B**2).sum(axis=1) - 2 * A @ B.T
        return np.mean([np.exp(-squares / (2 * s * b)).mean() for s in distances.BANDWIDTHS])

    return float(np.sqrt(max(0.0, mean(X[chosen], X[chosen]) + mean(mix, mix) - 2 * mean(X[chosen], mix))))


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_all_sets_of_three(seed):
    X, _ = pool(25, 4, seed)
    least = min(gap(X, list(s), X) for s in itertools.combinations(range(25), 3))
    assert gap(X, selection.select(X, X, k=3, domains=["x"] * 25), X) == pytest.approx(least, abs=1e-5)


def test_a_row_of_the_mix_counts_by_its_weight():
    X, _ = pool(25, 4)
    weights = 1 + 9 * (np.arange(25) < 5)
    many = np.repeat(X, weights, axis=0)
    b = distances.median_squared_distance(X)
    ours = selection.select(X, X, k=3, domains=["x"] * 25, weights=weights, bandwidth2=b)
    again = selection.select(X, many, k=3, domains=["x"] * 25, bandwidth2=b)
    assert ours.tolist() == again.tolist()
    assert ours.tolist() != selection.select(X, X, k=3, domains=["x"] * 25).tolist()


def test_quotas_are_kept_and_no_index_comes_twice():
    F, domains = pool()
    chosen = selection.select(F, F, k=20, domains=domains, quotas={"d0": 10, "d1": 7, "d2": 3})
    names = [domains[i] for i in chosen]
    assert [names.count(d) for d in ("d0", "d1", "d2")] == [10, 7, 3]
    assert len(set(chosen.tolist())) == 20
    assert chosen.dtype == np.int64
    assert (np.diff(chosen) > 0).all()


def test_at_most_one_of_a_group_and_none_of_the_excluded():
    F, domains = pool()
    groups = np.arange(300) // 10
    exclude = np.zeros(300, bool)
    exclude[:50] = True
    chosen = selection.select(F, F, k=24, domains=domains, groups=groups, exclude=exclude)
    assert len(chosen) == 24
    assert len(set(groups[chosen].tolist())) == 24
    assert (chosen >= 50).all()


def test_quotas_are_filled_though_groups_cross_domains():
    F, _ = pool(12, 4)
    domains = ["a", "b"] * 6
    groups = np.array([0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8])
    chosen = selection.select(F, F, k=9, domains=domains, quotas={"a": 5, "b": 4}, groups=groups)
    assert len(chosen) == 9
    assert len(set(groups[chosen].tolist())) == 9


def test_a_domain_that_holds_too_few_hands_the_rest_on():
    F, _ = pool(40)
    chosen = selection.select(F, F, k=10, domains=["a"] * 2 + ["b"] * 38, quotas={"a": 5, "b": 5})
    assert (chosen < 2).sum() == 2
    assert len(chosen) == 10


def test_a_pool_smaller_than_k_is_taken_whole():
    F, domains = pool(7)
    assert selection.select(F, F, k=20, domains=domains).tolist() == list(range(7))
    assert selection.select(F, F, k=20, domains=domains, exclude=np.ones(7, bool)).tolist() == []
    assert selection.select(F, F, k=3, domains=domains, quotas={"elsewhere": 3}).tolist() == []


def test_equal_rows_are_taken_in_order_of_index():
    F = np.zeros((50, 4), np.float32)
    assert selection.select(F, F, k=5, domains=["x"] * 50).tolist() == [0, 1, 2, 3, 4]


def test_same_bytes_twice_and_without_changing_the_input():
    F, domains = pool()
    before = F.copy()
    a = selection.select(F, F, k=30, domains=domains, seed=3)
    b = selection.select(F, F, k=30, domains=domains, seed=3)
    assert a.tolist() == b.tolist()
    assert (before == F).all()


def test_what_is_dropped_after_all_is_replaced_from_its_domain():
    F, domains = pool()
    asked = []

    def drop(chosen):
        asked.append(chosen.tolist())
        return [i for i in chosen.tolist() if i % 2]

    quotas = {"d0": 10, "d1": 7, "d2": 3}
    chosen = selection.select(F, F, k=20, domains=domains, quotas=quotas, drop=drop)
    assert (chosen % 2 == 0).all()
    assert len(asked) <= selection.ROUNDS
    names = [domains[i] for i in chosen]
    if not [i for i in asked[-1] if i % 2]:
        assert [names.count(d) for d in quotas] == [10, 7, 3]
    first = [i for i in asked[0] if i % 2]
    twice = selection.select(F, F, k=20, domains=domains, quotas=quotas, drop=lambda c: [i for i in c if i in first])
    assert len(twice) == 20
    assert not set(first) & set(twice.tolist())


def test_extra_features_pull_lengths_toward_the_mix():
    rng = np.random.default_rng(0)
    F, domains = pool(2000)
    length = rng.exponential(size=2000)
    extra = ((length - length.mean()) / length.std())[:, None].astype(np.float32)
    mix = F[length < 5]
    plain = selection.select(F, mix, k=20, domains=domains)
    fitted = selection.select(F, mix, k=20, domains=domains, extra=0.3 * extra, extra_target=np.zeros(1))
    assert abs(extra[fitted].mean()) < 0.1
    assert abs(extra[fitted].mean()) <= abs(extra[plain].mean())


def test_a_part_of_a_large_pool_is_searched_and_serves_as_well(monkeypatch):
    F, domains = pool(3000)
    whole = gap(F, selection.select(F, F, k=30, domains=domains), F)
    monkeypatch.setattr(selection, "CANDIDATES", 600)
    chosen = selection.select(F, F, k=30, domains=domains, quotas={"d0": 29, "d1": 1}, seed=1)
    assert len(chosen) == 30
    chosen = selection.select(F, F, k=30, domains=domains, seed=1)
    assert gap(F, chosen, F) < 1.5 * whole
    random = np.median([gap(F, np.random.default_rng(s).choice(3000, 30), F) for s in range(5)])
    assert gap(F, chosen, F) < random / 3


def test_shapes_that_do_not_fit_are_refused():
    F, domains = pool(10)
    with pytest.raises(InputError, match="10 pool rows, 9 domains"):
        selection.select(F, F, k=2, domains=domains[:9])
    with pytest.raises(InputError, match="mix: vectors of rows 0"):
        selection.select(F, np.full((3, 12), np.nan), k=2, domains=domains)


def test_the_kernel_is_the_mean_of_three_gaussians():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((20, 8)), rng.standard_normal((30, 8))
    squares = ((X[:, None] - Y[None]) ** 2).sum(axis=2)
    expected = np.mean([np.exp(-squares / (2 * s * 3.0)) for s in distances.BANDWIDTHS], axis=0)
    assert np.abs(selection.kernel(X, Y, bandwidth2=3.0) - expected).max() < 1e-6


def test_nearer_to_the_mix_and_to_rows_never_seen_than_the_usual_ways(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    sys.modules.pop("benchmarks", None)
    try:
        from benchmarks import selection as bench
    except ImportError:
        pytest.skip("benchmarks are not shipped with the package")
    data = bench.made_up(np.random.default_rng(0), n=1600, d=32)
    rows = {(r["k"], r["way"]): r for r in bench.measure(data, [20, 50, 100], 1)}
    for k in (20, 50, 100):
        ours = rows[k, "promptkit"]
        assert ours["domains_lost"] == 0
        assert ours["domain_gap"] < 1 / k
        for way in bench.WAYS.keys() - {"promptkit"}:
            assert ours["mix"] < rows[k, way]["mix"], (k, way)
            assert ours["held_out"] < 1.02 * rows[k, way]["held_out"], (k, way)
    assert rows[100, "promptkit"]["mix"] < rows[100, "random"]["mix"] / 2
    assert rows[100, "promptkit"]["held_out"] < rows[100, "random"]["held_out"] / 1.5
