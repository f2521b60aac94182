"""Weights that balance prompts against a mix, and what the averages under them are worth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import t

from promptkit.balance import NOISE, Balance, Side, balance, estimate, linearised, plain


def side(n: int, shares: list[float], rng: np.random.Generator, *, d: int = 6) -> Side:
    """Rows of three clusters, of which the last two share a domain; vectors lie about their cluster's axis."""
    clusters = rng.choice(len(shares), size=n, p=shares)
    X = np.eye(d)[clusters] + rng.normal(0, 0.4, (n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return Side(clusters.astype(np.int64), np.minimum(clusters, 1).astype(np.int64), X, np.ones(n))


def test_weights_are_the_constrained_optimum() -> None:
    """Oracle: a general solver on the same objective finds nothing better."""
    rng = np.random.default_rng(0)
    found = balance(side(14, [0.7, 0.2, 0.1], rng), side(300, [0.2, 0.3, 0.5], rng))
    K, k = sum(found.kernels), sum(found.to_mix)

    def cost(w: np.ndarray) -> float:
        return float(w @ K @ w - 2 * w @ k + NOISE * w @ w)

    start = np.full(14, 1 / 14)
    best = minimize(cost, start, bounds=[(0, None)] * 14, constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
                    options={"ftol": 1e-14, "maxiter": 500})  # fmt: skip
    assert best.success
    assert cost(found.weights) <= best.fun + 1e-6
    assert found.weights.sum() == pytest.approx(1.0)
    assert found.weights.min() >= 0.0


def test_many_prompts_get_the_shares_of_the_mix() -> None:
    """The penalty vanishes as prompts grow: post-stratification."""
    rng = np.random.default_rng(1)
    prompts, mix = side(900, [0.7, 0.2, 0.1], rng), side(2000, [0.2, 0.3, 0.5], rng)
    found = balance(prompts, mix)
    got = np.bincount(prompts.clusters, found.weights)
    assert got == pytest.approx(np.bincount(mix.clusters) / 2000, abs=0.01)
    assert found.covered_share == 1.0
    assert 200 < found.effective_n < 900


def test_a_draw_of_the_mix_keeps_nearly_equal_weights() -> None:
    rng = np.random.default_rng(2)
    found = balance(side(200, [0.2, 0.3, 0.5], rng), side(1000, [0.2, 0.3, 0.5], rng))
    assert found.effective_n > 140


def test_weights_do_not_depend_on_the_order_of_prompts() -> None:
    rng = np.random.default_rng(3)
    prompts, mix = side(40, [0.5, 0.3, 0.2], rng), side(500, [0.2, 0.3, 0.5], rng)
    order = rng.permutation(40)
    moved = Side(prompts.clusters[order], prompts.domains[order], prompts.X[order], prompts.weights[order])
    assert balance(moved, mix).weights == pytest.approx(balance(prompts, mix).weights[order], abs=1e-10)


def test_covered_share_is_the_mix_with_a_prompt_in_its_cluster_and_domain() -> None:
    rng = np.random.default_rng(4)
    prompts, mix = side(30, [0.5, 0.5, 0.0], rng), side(1000, [0.2, 0.3, 0.5], rng)
    assert balance(prompts, mix).covered_share == pytest.approx((mix.clusters < 2).mean())
    weighted = Side(mix.clusters, mix.domains, mix.X, np.where(mix.clusters == 2, 3.0, 1.0))
    n = np.bincount(mix.clusters)
    assert balance(prompts, weighted).covered_share == pytest.approx((n[0] + n[1]) / (n[0] + n[1] + 3 * n[2]))


@pytest.mark.parametrize("shares", [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
def test_estimate_is_nearer_and_its_interval_honest_where_strata_matter(shares: list[float]) -> None:
    """Effects of 2, 3 and 5 in the clusters, noise of 1; 150 biased draws of 60."""
    rng = np.random.default_rng(5)
    effect, mix = np.array([2.0, 3.0, 5.0]), side(2000, [0.2, 0.3, 0.5], rng)
    truth = float(effect[mix.clusters].mean())
    better, inside, inside_plain = [], [], []
    for _ in range(150):
        prompts = side(60, shares, rng)
        y = effect[prompts.clusters] + rng.normal(0, 1, 60)
        got, without = estimate(balance(prompts, mix), y), plain(y)
        better.append(abs(got.mean - truth) < abs(without.mean - truth))
        inside.append(got.low <= truth <= got.high)
        inside_plain.append(without.low <= truth <= without.high)
    assert np.mean(better) >= 0.9
    assert 0.9 <= np.mean(inside) <= 0.995
    assert np.mean(inside_plain) < 0.8


def halves(n: int, first: float, rng: np.random.Generator) -> tuple[Side, np.ndarray]:
    """Rows whose half no cluster and no domain tells, and whose vectors tell it with noise; and that half."""
    rows, half = side(n, [0.2, 0.3, 0.5], rng), (rng.random(n) > first).astype(np.int64)
    X = np.eye(6)[rows.clusters] + np.eye(6)[3 + half] + rng.normal(0, 0.3, (n, 6))
    return Side(rows.clusters, rows.domains, X / np.linalg.norm(X, axis=1, keepdims=True), np.ones(n)), half


def test_interval_widens_where_the_set_was_off_in_what_labels_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """One half is 85 % of the prompts and 50 % of the mix; its effect is twice the noise."""
    rng = np.random.default_rng(9)
    mix, mix_half = halves(2000, 0.5, rng)
    effect = np.array([2.0, 3.0, 5.0])
    truth = float((effect[mix.clusters] + mix_half).mean())
    inside, without = [], []
    for _ in range(60):
        prompts, half = halves(60, 0.85, rng)
        found, y = balance(prompts, mix), effect[prompts.clusters] + half + rng.normal(0, 0.5, 60)
        for seen in (inside, without):
            with monkeypatch.context() as patch:
                if seen is without:
                    patch.setattr(Balance, "hidden", 0.0)
                got = estimate(found, y)
            seen.append(got.low <= truth <= got.high)
    assert np.mean(inside) >= 0.85
    assert np.mean(without) < 0.8


def test_a_draw_of_the_mix_hides_nothing_beyond_chance() -> None:
    rng = np.random.default_rng(10)
    mix, _ = halves(2000, 0.5, rng)
    draws = [balance(halves(100, 0.5, rng)[0], mix).hidden for _ in range(20)]
    off = [balance(halves(100, 0.85, rng)[0], mix).hidden for _ in range(20)]
    assert np.mean(draws) < 0.1 * np.mean(off)


def test_interval_of_a_plain_mean_is_students() -> None:
    y = np.random.default_rng(6).normal(3, 2, 25)
    got = plain(y)
    half = t.ppf(0.975, 24) * y.std(ddof=1) / 5
    assert (got.mean, got.low, got.high) == pytest.approx((y.mean(), y.mean() - half, y.mean() + half))
    assert math.isnan(plain(np.array([1.0])).low)


def test_linearised_ratio_has_the_ratio_as_mean_and_the_bootstraps_spread() -> None:
    rng = np.random.default_rng(7)
    steps = rng.integers(5, 60, 200).astype(float)
    tokens = steps * rng.normal(2.5, 0.4, 200)
    w = np.full(200, 1 / 200)
    ratio, z = linearised(tokens, steps, w)
    assert ratio == pytest.approx(tokens.sum() / steps.sum())
    assert w @ z == pytest.approx(ratio)
    drawn = rng.integers(0, 200, (4000, 200))
    spread = (tokens[drawn].sum(axis=1) / steps[drawn].sum(axis=1)).std()
    assert plain(z).stderr == pytest.approx(spread, rel=0.05)


def test_equal_values_have_an_interval_of_width_zero() -> None:
    rng = np.random.default_rng(8)
    found = balance(side(20, [0.4, 0.3, 0.3], rng), side(100, [0.4, 0.3, 0.3], rng))
    got = estimate(found, np.full(20, 1.0))
    assert (got.mean, got.low, got.high) == pytest.approx((1.0, 1.0, 1.0))
