"""The lexical profile against scikit-learn, a slow trigram model and brute force; and the odd texts."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptkit import lexical
from promptkit.lexical import LexicalProfile, TfIdf, _top, cut

N_VOCAB = 60


def texts(n, *, seed=0, low=1, high=25, vocab=30):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, rng.integers(low, high)).astype(np.int32) for _ in range(n)]


def slow_bits(train, text):
    """Witten-Bell, as written in the module's docstring, with dictionaries."""
    grams = {n: Counter() for n in (1, 2, 3)}
    for row in train:
        s = ["^", *row.tolist()]
        for i in range(1, len(s)):
            grams[1][s[i],] += 1
            grams[2][s[i - 1], s[i]] += 1
            if i > 1:
                grams[3][s[i - 2], s[i - 1], s[i]] += 1

    def interpolate(n, context, word, lower):
        after = [c for g, c in grams[n].items() if g[:-1] == context]
        if not after:
            return lower
        return (grams[n][(*context, word)] + len(after) * lower) / (sum(after) + len(after))

    s, total = ["^", *text.tolist()], 0.0
    for i in range(1, len(s)):
        p = interpolate(1, (), s[i], 1 / N_VOCAB)
        p = interpolate(2, (s[i - 1],), s[i], p)
        if i > 1:
            p = interpolate(3, (s[i - 2], s[i - 1]), s[i], p)
        total -= math.log2(p)
    return total / len(text)


def test_tfidf_equals_scikit_learn_over_the_whole_vocabulary():
    sklearn = pytest.importorskip("sklearn.feature_extraction.text")
    train, new = texts(40, vocab=30), texts(10, seed=1, vocab=N_VOCAB)  # half of the new ids were never seen
    oracle = sklearn.TfidfVectorizer(
        analyzer=lambda ids: ids.tolist(),
        vocabulary=range(N_VOCAB),
        sublinear_tf=True,
        smooth_idf=True,
        lowercase=False,
    ).fit(train)
    ours = TfIdf.fit(train)
    expected = oracle.transform(new).toarray()[:, ours.terms]
    np.testing.assert_allclose(ours.transform(new).toarray(), expected, atol=1e-6)
    assert (np.linalg.norm(expected, axis=1) < 0.99).any()  # unseen ids lower what is left of the row


def test_nearest_rows_are_those_of_brute_force():
    train, new = texts(70), texts(9, seed=1, vocab=40)
    profile = LexicalProfile.fit(train, n_vocab=N_VOCAB)
    similar = (profile.tfidf.transform(new) @ profile.tfidf.transform(train).T).toarray()
    found = profile.nearest(new)
    np.testing.assert_allclose(found.cosine, -np.sort(-similar, axis=1)[:, :10], atol=1e-5)
    np.testing.assert_allclose(profile.closeness(new), np.sort(similar, axis=1)[:, -10:].mean(axis=1), atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_cross_entropy_equals_the_slow_model(seed):
    train = texts(30, seed=seed, vocab=8)
    new = [*texts(6, seed=seed + 50, vocab=12), np.array([3]), np.array([59])]
    profile = LexicalProfile.fit(train, n_vocab=N_VOCAB)
    np.testing.assert_allclose(profile.cross_entropy(new), [slow_bits(train, t) for t in new], atol=1e-5)


def test_probabilities_of_the_next_id_sum_to_one():
    profile = LexicalProfile.fit(texts(30, vocab=8), n_vocab=N_VOCAB)
    context = np.array([1, 2])
    bits = profile.cross_entropy([np.append(context, w) for w in range(N_VOCAB)]) * 3
    before = profile.cross_entropy([context])[0] * 2
    assert sum(2.0 ** -(b - before) for b in bits) == pytest.approx(1.0, abs=1e-4)


def test_a_text_of_the_fit_is_scored_as_if_its_unit_had_never_been_there():
    train = texts(40, vocab=8)
    units = np.arange(40) // 2
    profile = LexicalProfile.fit(train, n_vocab=N_VOCAB, units=units)
    without = [t for t, u in zip(train, units, strict=True) if u != 7]
    expected = slow_bits(without, train[14])
    assert profile.cross_entropy([train[14]], exclude=np.array([7]))[0] == pytest.approx(expected, abs=1e-5)
    found = profile.nearest([train[14]], exclude=np.array([7]))
    assert not {14, 15} & set(found.position[0].tolist())
    assert profile.nearest([train[14]]).position[0, 0] == 14


def test_a_score_has_the_same_bits_alone_in_10_and_in_1000():
    profile = LexicalProfile.fit(texts(300), n_vocab=N_VOCAB)
    many = texts(1000, seed=3, vocab=50, high=60)
    close, bits = profile.closeness(many), profile.cross_entropy(many)
    for i in (0, 7, 63, 64, 999):
        ten = many[max(0, i - 9) : i + 1]
        assert profile.closeness([many[i]])[0] == profile.closeness(ten)[-1] == close[i]
        assert profile.cross_entropy([many[i]])[0] == profile.cross_entropy(ten)[-1] == bits[i]
    np.testing.assert_array_equal(profile.closeness(many, threads=2), close)


def test_odd_texts_have_finite_scores():
    profile = LexicalProfile.fit(texts(30), n_vocab=N_VOCAB)
    empty, one, unknown, long = [], [3], [59], np.tile([1, 2, 3], 40_000)
    odd = [np.array(t, dtype=np.int32) for t in (empty, one, unknown, long)]
    assert profile.closeness(odd)[[0, 2]].tolist() == [0.0, 0.0]
    bits = profile.cross_entropy(odd)
    assert bits[0] == pytest.approx(math.log2(N_VOCAB), abs=1e-6)
    assert np.isfinite(bits).all()
    assert bits[2] > bits[1]


@pytest.mark.parametrize("train", [[], [[]], [[5]], [[1, 2, 3]] * 30])
def test_tiny_mixes_fit(train):
    profile = LexicalProfile.fit([np.array(t, dtype=np.int32) for t in train], n_vocab=N_VOCAB)
    new = [np.array([1, 2, 3]), np.array([9])]
    assert np.isfinite(profile.cross_entropy(new)).all()
    assert profile.closeness(new)[0] == (1.0 if train == [[1, 2, 3]] * 30 else 0.0)


def test_the_longest_rows_are_cut_when_a_mix_is_too_long():
    rows = [np.zeros(n, dtype=np.int32) for n in (3, 10, 100, 200)]
    assert [len(r) for r in cut(rows, 53)] == [3, 10, 20, 20]
    assert [len(r) for r in cut(rows, 313)] == [3, 10, 100, 200]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 20), max_size=12), max_size=12), st.lists(st.integers(0, 30), max_size=12))
def test_any_ids_give_a_cosine_and_bits(train, text):
    profile = LexicalProfile.fit([np.array(t, dtype=np.int64) for t in train], n_vocab=31)
    new = [np.array(text, dtype=np.int64)]
    assert 0.0 <= profile.closeness(new)[0] <= 1.0 + 1e-6
    assert 0.0 <= profile.cross_entropy(new)[0] < 60.0


@pytest.mark.parametrize("n", [3, 200, 3000])
def test_the_nearest_of_each_text_are_those_of_a_whole_sort(n):
    rng = np.random.default_rng(n)
    similar = np.where(rng.random((n, 7)) < 0.3, rng.random((n, 7)).round(2), 0.0).astype(np.float32)  # many ties
    similar[rng.random((n, 7)) < 0.1] = -1.0  # left out
    similar[:, 6] = 0.0  # a text that shares nothing with any row
    similar[1:, 5] = -1.0
    column, rank, row, value = _top(similar)
    for i in range(7):
        values = np.round(similar[:, i].astype(np.float64), 6)
        order = [r for r in np.argsort(-values, kind="stable") if values[r] >= 0][:10]
        assert row[column == i].tolist() == order
        assert rank[column == i].tolist() == list(range(len(order)))
        assert value[column == i].tolist() == values[order].tolist()


@pytest.mark.parametrize("batch", [lexical.BATCH_TOKENS, 1])
def test_many_texts_of_units_are_scored_as_each_alone(batch, monkeypatch):
    monkeypatch.setattr(lexical, "BATCH_TOKENS", batch)
    train = texts(40, vocab=8)
    units = np.arange(40) // 4 * 3
    profile = LexicalProfile.fit(train, n_vocab=N_VOCAB, units=units)
    new = [train[5], train[9], train[4], *texts(3, seed=9, vocab=12), np.zeros(0, np.int64), train[39]]
    exclude = np.array([3, 6, 3, -1, 27, 28, 0, 27])  # 28 is no unit of the fit
    found = profile.cross_entropy(new, exclude=exclude)
    alone = [profile.cross_entropy([t], exclude=exclude[[i]])[0] for i, t in enumerate(new)]
    assert found.tolist() == alone
    without = [[t for t, u in zip(train, units, strict=True) if u != unit] for unit in exclude]
    expected = [slow_bits(mix, t) if len(t) else np.log2(N_VOCAB) for mix, t in zip(without, new, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
