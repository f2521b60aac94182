"""Several sets beside one mix: what is called a change, what is not, and how often by chance."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_score import fit, texts

from promptkit import inference, scoring, trend
from promptkit.conversation import Prompt
from promptkit.errors import InputError, UsageError


@pytest.fixture(scope="module")
def ref():
    return fit(1700)


def change(a, b, ref, **more):
    return trend.trend([a, b], ref, draws=199, **more)[1].change


def test_a_set_nearer_to_the_mix_is_called_so(ref):
    near, also_near, far = texts(40, 90), texts(40, 91), texts(40, 92, ("shell",))
    first, second = trend.trend([near, far], ref, draws=199)
    assert first.change is None
    assert second.change.excess == second.score.excess - first.score.excess > 0.1
    assert second.change.excess_p_value < 0.05
    assert second.change.n_shared == 0
    same = change(near, also_near, ref)
    assert same.excess_p_value > 0.05
    assert same.typicality_p_value > 0.05


def test_each_set_is_scored_as_ever(ref):
    sets = [texts(20, 1), texts(30, 2)]
    steps = trend.trend(sets, ref, draws=99, seed=3, names=["a", "b"])
    for step, name, own in zip(steps, "ab", sets, strict=True):
        alone = scoring.score(own, ref, draws=99, seed=3).to_json()
        said = step.to_json()
        assert said["name"] == name
        assert {k: said[k] for k in trend.SHOWN} == {k: alone[k] for k in trend.SHOWN}
    assert json.loads(json.dumps(steps[1].to_json(), allow_nan=False))["change"]["n_shared"] == 0


def test_swapping_a_few_prompts_for_foreign_ones_is_a_change(ref):
    old = texts(40, 93)
    new = old[:30] + texts(10, 94, ("trivia", "translate"))
    for paired in (False, True):
        found = change(old, new, ref, paired=paired)
        assert found.n_shared == 30
        assert found.typicality < 0
        assert found.typicality_p_value < 0.05
        assert found.excess_p_value < 0.05
    nothing = change(old, old, ref)
    assert (nothing.n_shared, nothing.excess_p_value, nothing.typicality_p_value) == (40, 1.0, 1.0)
    with pytest.raises(InputError, match="40 and 39 rows"):
        change(old, new[1:], ref, paired=True)


def test_shared_prompts_are_found_in_any_order_and_by_weight(ref):
    old = texts(12, 95)
    assert change(old, old[::-1], ref).n_shared == 12
    assert change([*old, old[0]], [*old, old[0], old[0]], ref).n_shared == 13

    def weighed(weights):
        turns = [[{"role": "user", "content": t}] for t in old]
        return [Prompt(str(i), m, weight=w) for i, (m, w) in enumerate(zip(turns, weights, strict=True))]

    assert change(weighed([1.0] * 12), weighed([10.0] * 6 + [1.0] * 6), ref).n_shared == 6


def test_weights_count_as_repetition(ref):
    old, new = texts(6, 96), texts(6, 97, ("shell",))
    weighed = [Prompt(str(i), [{"role": "user", "content": t}], weight=3.0) for i, t in enumerate(new)]
    a, b = change(old, weighed, ref), change(old, new, ref)
    assert a.typicality == pytest.approx(b.typicality)
    assert a.excess == pytest.approx(b.excess)


@pytest.mark.parametrize(("n", "m", "n_shared"), [(30, 30, 0), (30, 20, 15), (20, 35, 20)])
def test_false_alarms_of_sets_that_share_rows(n, m, n_shared):
    rng = np.random.default_rng(n + m + n_shared)
    p = []
    for _ in range(400):
        both = rng.normal(size=(n_shared, 1))
        A, B = (np.concatenate([both, rng.normal(size=(k - n_shared, 1))]) for k in (n, m))
        p.append(inference.compare_sets(A, B, lambda X: float(X.mean()), n_shared=n_shared, draws=99, rng=rng).p_value)
    assert 0.02 <= np.mean(np.array(p) <= 0.05) <= 0.085
    A, B = both, np.concatenate([both, np.full((9, 1), 3.0)])
    if n_shared:
        assert inference.compare_sets(A, B, lambda X: float(X.mean()), n_shared=n_shared, draws=199).p_value < 0.02


def test_many_steps_are_adjusted(ref):
    rng_sets = [texts(25, 300 + i) for i in range(4)]
    steps = trend.trend(rng_sets, ref, draws=99)
    pairs = [change_of(rng_sets[i], rng_sets[i + 1], ref) for i in range(3)]
    raw = [p for pair in pairs for p in pair]
    said = [p for s in steps[1:] for p in (s.change.excess_p_value, s.change.typicality_p_value)]
    # two p-values of a pair are already Holm's of two; over six each is at least as large
    assert all(b >= a - 0.021 for a, b in zip(raw, said, strict=True))
    assert max(said) <= 1.0


def change_of(a, b, ref):
    found = trend.trend([a, b], ref, draws=99)[1].change
    return found.excess_p_value, found.typicality_p_value


def test_versions_of_a_pack_come_in_order(tmp_path):
    for version in ("1.10.0", "1.2.0", "2.0.0"):
        (tmp_path / "mix" / version).mkdir(parents=True)
        (tmp_path / "mix" / version / "pack.json").write_text("{}")
    (tmp_path / "mix" / "draft").mkdir()
    assert [p.name for p in trend.versions(tmp_path / "mix")] == ["1.2.0", "1.10.0", "2.0.0"]
    assert trend.versions(tmp_path / "mix" / "1.2.0") == [tmp_path / "mix" / "1.2.0"]


def test_wrong_sets_are_refused(ref):
    with pytest.raises(UsageError, match="1 set to compare"):
        trend.trend([texts(5, 1)], ref)
    with pytest.raises(InputError, match="b: 1 prompt, too few"):
        trend.trend([texts(5, 1), texts(1, 1)], ref, names=["a", "b"])
    with pytest.raises(UsageError, match="draws is 5"):
        trend.trend([texts(5, 1), texts(5, 2)], ref, draws=5)


def test_a_small_reference_gives_no_typicality():
    found = change(texts(10, 1), texts(10, 2), fit(50))
    assert found.typicality is None
    assert found.typicality_p_value is None
    assert found.excess is None
    assert 0 < found.excess_p_value <= 1
