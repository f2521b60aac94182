"""What is known of these distances from the literature, reproduced. MAUVE's dependence on its settings: test_power.py."""

from __future__ import annotations

import math

import numpy as np
import pytest

from promptkit import distances as ds
from promptkit import selection


def slope(sizes, errors):
    """Return the exponent b of errors ~ sizes^b."""
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


def draws(n, times, d=12):
    return [np.random.default_rng([n, s, d]).standard_normal((n, d)) for s in range(times)]


def test_fid_of_two_draws_of_one_law_is_all_bias_and_falls_as_one_over_n():
    """Chong and Forsyth 2020: linear in 1/n, so what is drawn from the mix itself seems far off while n is small."""
    mix = np.random.default_rng(99).standard_normal((10_000, 12))
    sizes = (50, 100, 200, 400)
    fid = [np.mean([ds.frechet(X, mix) for X in draws(n, 12)]) for n in sizes]
    assert slope(sizes, fid) == pytest.approx(-1.0, abs=0.2)
    # and it is no noise: every single small draw lies beyond every large one
    assert min(ds.frechet(X, mix) for X in draws(50, 12)) > max(ds.frechet(X, mix) for X in draws(400, 12))


@pytest.mark.parametrize("n", [10, 40, 160])
def test_kid_has_no_bias_at_any_size(n):
    """Binkowski et al. 2018."""
    kid = np.array([ds.kid(X, Y) for X, Y in zip(draws(n, 80), draws(200, 80), strict=True)])
    assert abs(kid.mean()) < 3.5 * kid.std() / math.sqrt(len(kid))
    assert kid.min() < 0 < kid.max()


def test_fid_prefers_a_larger_draw_of_a_wrong_law_and_kid_does_not():
    """The mistake that the bias leads to: sets of different size are ranked by their size."""
    mix = np.random.default_rng(97).standard_normal((1000, 12))
    right, wrong = draws(40, 8), [X + np.eye(12)[0] for X in draws(500, 8)]
    assert np.mean([ds.frechet(X, mix) for X in right]) > np.mean([ds.frechet(X, mix) for X in wrong])
    assert np.mean([ds.kid(X, mix) for X in right]) < np.mean([ds.kid(X, mix) for X in wrong])


def test_herding_nears_the_mix_faster_than_random_draws():
    """Chen, Welling and Smola 2010: error O(1/k) where random draws have O(1/sqrt k)."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 3)) + rng.choice([-2.0, 2.0], size=(400, 3))
    sizes, b = (6, 12, 24, 48), ds.median_squared_distance(X)

    def error(rows):
        return ds.mmd(X[rows], X, bandwidth2=b)

    chosen = [error(selection.select(X, X, k=k, domains=["a"] * 400, bandwidth2=b)) for k in sizes]
    at_random = [np.mean([error(rng.choice(400, k, replace=False)) for _ in range(20)]) for k in sizes]
    assert slope(sizes, at_random) == pytest.approx(-0.5, abs=0.1)
    assert slope(sizes, chosen) < -0.85
    ratio = np.array(at_random) / chosen
    assert (np.diff(ratio) > 0).all()  # the lead grows with k
    assert ratio[-1] > 4
