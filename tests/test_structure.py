"""Length and structure beside the mix: what is an outlier, what a set of a mix's own shape gets."""

from __future__ import annotations

import numpy as np
import pytest

from promptkit import structure
from promptkit.conversation import Prompt


def mix(n=1000, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "n_tokens": rng.integers(50, 500, n),
        "n_turns": np.where(np.arange(n) % 4 == 0, 3, 1),
        "has_tools": np.zeros(n, dtype=bool),
    }


def shape(tokens, turns=1, tools=False):
    n = len(tokens)
    return {"n_tokens": np.array(tokens), "n_turns": np.full(n, turns), "has_tools": np.full(n, tools)}


def test_shapes_count_user_turns_and_see_tools():
    turns = [{"role": r, "content": "a"} for r in ("system", "user", "assistant", "user")]
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "ls", "arguments": "{}"}}]}
    prompts = [Prompt("a", turns), Prompt("b", turns[:2], tools=[{"name": "ls"}]), Prompt("c", [*turns[:2], call])]
    found = structure.shapes(prompts, [5, 6, 7])
    assert found["n_tokens"].tolist() == [5, 6, 7]
    assert found["n_turns"].tolist() == [2, 1, 1]
    assert found["has_tools"].tolist() == [False, True, True]


def test_percentile_is_the_share_that_is_shorter_and_half_of_the_equal():
    of = {"n_tokens": np.array([10, 20, 20, 40])}
    assert structure.length_percentiles(np.array([5, 10, 20, 30, 99]), of).tolist() == [0.0, 0.125, 0.5, 0.75, 1.0]


def test_only_what_hardly_any_row_has_is_an_outlier():
    said = structure.outliers(shape([200, 5000, 3]), mix())
    assert said == [[], ["5,000 tokens, longer than all of the mix"], ["3 tokens, shorter than all of the mix"]]
    assert structure.outliers(shape([200], turns=3), mix()) == [[]]
    assert structure.outliers(shape([200], turns=4), mix()) == [["4 user turns, more than all of the mix"]]
    assert structure.outliers(shape([200], tools=True), mix()) == [["tools, which all of the mix does without"]]


def test_rows_of_the_mix_are_rarely_outliers_and_a_small_mix_calls_nothing_one():
    new = mix(4000, seed=1)
    assert np.mean([bool(s) for s in structure.outliers(new, mix())]) < 0.016  # 1 in 200 on each side
    assert structure.outliers(shape([10**6, 1], turns=99, tools=True), mix(198)) == [[], []]


def test_a_set_of_the_mixs_own_shape_is_no_finding_and_a_short_one_is():
    w, rows = np.full(60, 1 / 60), np.ones(1000)
    rates = []
    for seed in range(200):
        sets = mix(60, seed=100 + seed)
        sets["n_turns"] = np.where(np.random.default_rng(seed).random(60) < 0.25, 3, 1)
        rates.append([r["p_value"] < 0.05 for r in structure.table(sets, mix(), w, rows)])
    assert np.any(rates, axis=1).mean() < 0.09
    short = structure.table(shape(np.arange(60) + 50), mix(), w, rows)
    assert [r["what"] for r in short] == ["median tokens", "several user turns", "tools"]
    assert short[0]["candidates"] == 79
    assert short[0]["p_value"] < 0.001
    assert short[1]["reference"] == pytest.approx(0.25)
    assert short[1]["p_value"] < 0.001
    assert short[2]["p_value"] == 1.0


def test_weights_and_order_of_the_set():
    w = np.array([10, 1, 1, 1]) / 13
    a = structure.table(shape([60, 100, 200, 300]), mix(), w, np.ones(1000))
    b = structure.table(shape([300, 200, 100, 60]), mix(), w[::-1], np.ones(1000))
    assert a == b
    assert a[0]["candidates"] == 60
