"""What a reference stores of what scores learn of the mix: it saves time and changes nothing."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
import pytest

from promptkit import comparison, reference, scoring
from promptkit.conversation import canonical, prompt_id
from promptkit.tokenizers import load_tokenizer

WORDS = ("sort", "merge", "list", "array", "pivot", "find", "grep", "files", "select", "join", "traceback", "module")


def texts(n, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(8, 30))) for _ in range(n)]


def fitted(n):
    mix = texts(n, 5)
    messages = [[{"role": "user", "content": t}, {"role": "assistant", "content": t[::-1]}] for t in mix]
    frame = pl.DataFrame(
        {
            "shard": ["a"] * n, "row": list(range(n)), "id": [prompt_id(m) for m in messages], "source": ["s"] * n,
            "messages": [canonical(m).decode() for m in messages], "tools": [None] * n, "text": mix,
            "response_text": [t[::-1] for t in mix], "n_prompt_tokens": [len(t.split()) for t in mix],
            "n_response_tokens": [9] * n, "n_supervised_tokens": [9 + i % 7 for i in range(n)], "n_turns": [1] * n,
            "has_tools": [False] * n, "truncated": [False] * n, "language": ["en"] * n,
        },
        schema_overrides={"tools": pl.String},
    )  # fmt: skip
    return reference.fit(frame, tokenizer=load_tokenizer("words"))


@pytest.fixture(scope="module")
def bare():
    return fitted(600)


@pytest.fixture(scope="module")
def stored(bare, tmp_path_factory):
    return scoring.learn(bare).save(tmp_path_factory.mktemp("stored") / "reference")


@pytest.mark.parametrize(
    ("n", "seed", "weight"), [(30, 0, "rows"), (12, 1, "rows"), (150, 0, "rows"), (30, 0, "tokens")]
)
def test_scores_are_the_same_with_and_without_what_is_stored(bare, stored, n, seed, weight):
    def of(r, which=7):
        return scoring.score(texts(n, which), r, seed=seed, weight=weight, draws=199)

    def plain(s):
        return json.dumps({k: v for k, v in s.to_json().items() if k != "reference"}), [
            s.null[k].tobytes() for k in sorted(s.null)
        ]

    plainly = plain(of(bare))
    loaded = reference.load_reference(stored)
    assert loaded.learned() is not None
    assert bare.learned() is None
    assert plain(of(loaded)) == plainly
    of(loaded, which=8)  # a set of the same size between: what is kept for the next call must not show
    assert plain(of(loaded)) == plainly


def test_what_is_stored_is_what_would_be_learned(bare, stored):
    again = scoring.learn(bare).learned()
    loaded = reference.load_reference(stored).learned()
    assert set(again) == set(loaded) == {"base", "mean", "power", "nearest", "floor_of", "floor", "own_of", "own"}
    assert all(np.array_equal(again[k], loaded[k], equal_nan=True) for k in again)


def test_a_mix_without_held_out_rows_has_nothing_to_store(bare):
    few = reference.fit(bare.sample.head(20).hstack(bare.conversations.head(20)).select(list(bare.conversations.columns)
        + [c for c in bare.sample.columns if c in FRAME]), tokenizer=load_tokenizer("words"))  # fmt: skip
    assert scoring.learn(few) is few


FRAME = ("shard", "row", "id", "source", "text", "n_prompt_tokens", "n_response_tokens", "n_supervised_tokens",
         "n_turns", "has_tools", "truncated", "language")  # fmt: skip


@pytest.mark.parametrize(("kind", "most"), [("own", comparison.MAX_PAIRED), ("lines", 0)])
def test_stored_draws_are_found_and_change_nothing(bare, kind, most, monkeypatch, tmp_path):
    """With the default draws a set of 50 finds its null in the reference, and it is what would be drawn.

    Its floor it finds only where it has no domain that the mix has not; that one is drawn.
    """
    asked = []
    find = comparison.Mix._find

    def watched(self, name, key):
        value = find(self, name, key)
        asked.append((name, value is not None))
        return value

    def plain(r):
        s = scoring.score(texts(50, 7), r)
        return {k: v for k, v in s.to_json().items() if k != "reference"}, [s.null[k].tobytes() for k in sorted(s.null)]

    monkeypatch.setattr(comparison, "MAX_PAIRED", most)
    bare.kept.clear()
    stored = scoring.learn(bare).save(tmp_path / "reference")
    drawn = plain(bare)
    monkeypatch.setattr(comparison.Mix, "_find", watched)
    assert plain(reference.load_reference(stored)) == drawn
    assert (kind, True) in asked


def test_a_mix_too_small_for_the_stored_sizes_is_learned_too():
    learned = scoring.learn(fitted(110)).learned()
    assert "mean" in learned
    assert not {"own", "lines", "floor"} & set(learned)


def test_sets_that_are_scored_at_the_same_time_do_not_see_each_other(bare):
    """A reference keeps the draws of the last set: another thread may replace them at any moment."""

    def of(n):
        return json.dumps(scoring.score(texts(n, n), bare, draws=99, seed=n % 3).to_json())

    sizes = [12, 20, 30, 50, 60]
    alone = [of(n) for n in sizes]
    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(of, sizes * 2)) == alone * 2
