"""Near-duplicates against a brute-force oracle; leaks on planted copies and on templated prompts that are no leak."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptkit import leakage
from promptkit.leakage import leaks, near_duplicate_groups


def words(rng: random.Random, n: int, vocabulary: int = 5000) -> str:
    return " ".join(f"w{rng.randrange(vocabulary)}" for _ in range(n))


def change(rng: random.Random, text: str, share: float) -> str:
    return " ".join(f"new{rng.randrange(10**6)}" if rng.random() < share else w for w in text.split())


def oracle(texts: list[str]) -> list[int]:
    """All pairs, Python sets, union by relabelling."""
    tokens = [re.findall(r"\w+", t.lower()) for t in texts]
    grams = [{tuple(w[i : i + 5]) for i in range(len(w) - 4)} for w in tokens]
    group = list(range(len(texts)))
    for i in range(len(texts)):
        for j in range(i):
            if grams[i] and grams[j]:
                near = len(grams[i] & grams[j]) >= 0.8 * len(grams[i] | grams[j]) - 1e-9
            else:
                near = not grams[i] and not grams[j] and texts[i].lower().split() == texts[j].lower().split()
            if near:
                group = [group[i] if g == group[j] else g for g in group]
    first: dict[int, int] = {}
    return [first.setdefault(g, len(first)) for g in group]


@pytest.mark.parametrize("seed", range(6))
def test_groups_equal_the_oracle_on_texts_that_differ_a_little(seed):
    rng = random.Random(seed)
    texts = [words(rng, rng.randrange(1, 60), 300) for _ in range(30)]
    texts += [change(rng, rng.choice(texts), rng.choice([0, 0.01, 0.03, 0.06])) for _ in range(90)]
    rng.shuffle(texts)
    assert near_duplicate_groups(texts).tolist() == oracle(texts)


@given(st.lists(st.lists(st.sampled_from("ab"), max_size=14).map(" ".join), max_size=25))
@settings(max_examples=150, deadline=None)
def test_groups_equal_the_oracle_on_two_words_only(texts):
    assert near_duplicate_groups(texts).tolist() == oracle(texts)


@given(st.lists(st.text(max_size=60), max_size=8))
@settings(max_examples=100, deadline=None)
def test_any_text_is_grouped_with_its_copy(texts):
    groups = near_duplicate_groups(texts + texts).tolist()
    assert groups[: len(texts)] == groups[len(texts) :]


def test_partition_ignores_order():
    rng = random.Random(1)
    texts = [words(rng, 40) for _ in range(40)]
    texts += [change(rng, t, 0.02) for t in texts]
    order = list(range(len(texts)))
    rng.shuffle(order)
    a, b = near_duplicate_groups(texts)[order], near_duplicate_groups([texts[i] for i in order])
    assert len(set(zip(a.tolist(), b.tolist(), strict=True))) == len(set(a.tolist())) == len(set(b.tolist()))


def test_case_space_and_punctuation_do_not_tell_texts_apart():
    assert near_duplicate_groups([
        "Write a function that adds two numbers.", "write  a function\nthat ADDS two numbers!", "Write a function that adds three numbers.",
    ]).tolist() == [0, 0, 1]  # fmt: skip


def test_short_texts_group_by_their_normalised_form_only():
    texts = ["Hi there", "hi  THERE", "hi there!", "", "  ", "1+1", "1-1"]
    assert near_duplicate_groups(texts).tolist() == [0, 0, 1, 2, 2, 3, 4]


def test_a_character_is_a_word_where_script_has_no_spaces():
    text = "".join(chr(0x4E00 + i) for i in range(60))
    assert near_duplicate_groups([text, text + "的", text[::-1]]).tolist() == [0, 0, 1]


def test_no_texts():
    assert near_duplicate_groups([]).shape == (0,)
    assert near_duplicate_groups([]).dtype == np.int64


def test_thousands_of_rows_from_one_template_are_no_trap():
    rng = random.Random(0)
    template = words(rng, 100)
    texts = [f"{template} {words(rng, 30)}" for _ in range(3000)]  # 100 of 130 shared: Jaccard 0.6
    assert len(set(near_duplicate_groups(texts).tolist())) == 3000


def test_a_borderline_template_with_thousands_of_rows_ends_soon():
    rng = random.Random(0)
    template = words(rng, 150)
    texts = [f"{template} {words(rng, 21)}" for _ in range(2000)]  # just under the limit: every pair is nearly one
    groups = near_duplicate_groups(texts)
    assert groups[:40].tolist() == oracle(texts[:40])


def test_counting_bits_does_not_need_numpy_2(monkeypatch):
    x = np.array([[0, 1], [2**64 - 1, 5]], dtype=np.uint64)
    assert leakage._n_bits(x).tolist() == [[0, 1], [64, 2]]
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert leakage._n_bits(x).tolist() == [[0, 1], [64, 2]]


# -- leaks


@pytest.fixture(scope="module")
def training():
    rng = random.Random(7)
    return [words(rng, rng.randrange(40, 160)) for _ in range(600)]


def kinds(candidates, training, **options):
    return [leak and leak["kind"] for leak in leaks(candidates, training, **options)]


def test_a_copy_is_exact_whatever_its_case_and_white_space(training):
    found = leaks([training[3], "  " + training[5].upper().replace(" ", "\n\t")], training)
    assert [(x["kind"], x["share"], x["row"]) for x in found] == [("exact", 1.0, 3), ("exact", 1.0, 5)]


def test_a_few_changed_words_are_near_and_more_are_found_by_ngrams(training):
    rng = random.Random(1)
    slightly = [" ".join(["other", *t.split()[1:]]) for t in training[:50]]
    assert kinds(slightly, training) == ["near"] * 50
    tenth = leaks([change(rng, t, 0.1) for t in training[:200]], training)
    assert sum(x is not None for x in tenth) >= 180
    assert all(x["row"] == i for i, x in enumerate(tenth) if x)


def test_a_copy_inside_other_text_is_found_with_its_share(training):
    rng = random.Random(2)
    [found] = leaks([f"{words(rng, 30, 10**6)} {' '.join(training[9].split()[:40])} {words(rng, 30, 10**6)}"], training)
    assert found["kind"] == "ngram"
    assert found["share"] == pytest.approx(36 / 96)  # 40 copied words hold 36 of the 96 5-grams
    assert found["ngram_8"] == pytest.approx(33 / 93)
    assert found["ngram_13"] == pytest.approx(28 / 88)
    assert found["row"] == 9


def test_a_short_copy_with_a_tenth_of_its_words_changed_is_found_by_what_one_text_holds():
    rng = random.Random(9)
    short = [words(rng, 14) for _ in range(300)]
    changed = [" ".join("new" if i == 8 else w for i, w in enumerate(t.split())) for t in short]
    found = leaks(changed, short)
    assert all(x["ngram_8"] == pytest.approx(1 / 7) for x in leaks(changed, short, min_share=0.0))
    assert [x["row"] for x in found] == list(range(300))
    assert {x["share"] for x in found} == {0.5}  # words 0-7 and 9-13 hold 4 + 1 of the ten 5-grams


def test_phrases_of_many_texts_do_not_add_up_to_a_leak():
    rng = random.Random(10)
    phrases = [words(rng, 6) for _ in range(40)]
    training = [f"{words(rng, 20)} {p} {words(rng, 20)}" for p in phrases]
    made = [" ".join(f"{p} {words(rng, 1)}" for p in rng.sample(phrases, 6)) for _ in range(50)]
    assert leaks(made, training) == [None] * 50
    assert [x["kind"] for x in leaks([phrases[0] + " " + words(rng, 4)], [*training, phrases[0] + " yes no"])] == [
        "ngram"
    ]


def test_new_text_is_no_leak(training):
    rng = random.Random(3)
    assert kinds([words(rng, 100) for _ in range(100)], training) == [None] * 100


def test_shares_equal_a_brute_force_count(training):
    rng = random.Random(4)
    candidates = [change(rng, rng.choice(training), 0.15) for _ in range(40)]
    for n in (8, 13):
        held = {tuple(w[i : i + n]) for w in map(str.split, training) for i in range(len(w) - n + 1)}
        for text, leak in zip(candidates, leaks(candidates, training, min_share=0.0), strict=True):
            w = text.split()
            own = {tuple(w[i : i + n]) for i in range(len(w) - n + 1)}
            share = len(own & held) / len(own)
            assert (leak[f"ngram_{n}"] if leak else 0.0) == pytest.approx(share, abs=1e-6)


def test_one_template_in_many_rows_is_no_leak_but_a_task_under_it_is():
    rng = random.Random(5)
    template = words(rng, 400)
    tasks = [words(rng, 30) for _ in range(300)]
    rows = [f"{template} {t}" for t in tasks]
    assert kinds([f"{template} {words(rng, 30)}" for _ in range(20)], rows) == [None] * 20
    assert kinds([f"{template} {tasks[7]}", f"{tasks[8]} {words(rng, 5)}"], rows) == ["exact", "ngram"]
    assert kinds([f"{template} {tasks[7]} please"], rows) == ["near"]


def test_twenty_rollouts_of_one_task_are_a_leak_and_no_template():
    rng = random.Random(6)
    task = words(rng, 200)
    rows = [words(rng, 200) for _ in range(50)] + [f"{task} attempt {i}" for i in range(20)]
    assert kinds([task, f"{words(rng, 40)} {task}"], rows) == ["near", "near"]
    assert kinds([f"{words(rng, 150)} {task}"], rows) == ["ngram"]


def test_short_texts_leak_only_when_equal():
    assert kinds(["Hi there", "Hi you", "sort a list", ""], ["hi  THERE", "Sort a list now"]) == [
        "exact",
        None,
        None,
        None,
    ]


@given(
    texts=st.lists(st.lists(st.sampled_from(["ab", "cd", "ef", "gh", "ij"]), max_size=14).map(" ".join), max_size=12),
    candidates=st.lists(
        st.lists(st.sampled_from(["ab", "cd", "ef", "gh", "ij"]), max_size=14).map(" ".join), max_size=4
    ),
)
def test_texts_that_were_hashed_before_leak_the_same(texts, candidates):
    stored = leakage.Words(**leakage.hashed(texts), text=texts.__getitem__)
    assert leakage.leaks(candidates, stored) == leakage.leaks(candidates, texts)


def test_hashing_in_blocks_changes_nothing(training):
    texts = [" ".join(training), *training] * 2  # more words than a block holds
    stored = leakage.Words(**leakage.hashed(texts), text=texts.__getitem__)
    assert len(stored.words) > 1 << 17
    grams = leakage._scramble(leakage._raw(stored.words, None, leakage.GRAM)) & np.uint64(0xFFFFFFFF)
    np.testing.assert_array_equal(stored.low, grams[stored.places])
    np.testing.assert_array_equal(np.sort(stored.places), np.arange(len(grams)))
    assert (np.diff(stored.low.astype(np.int64)) >= 0).all()
    assert leakage.leaks(training[:5], stored) == leakage.leaks(training[:5], texts)


def test_grams_of_many_texts_are_those_of_each(training):
    texts = ["", "one", *training[:70], training[0] + " " + training[0], "a b c d e a b c d e a b c d e"]
    words = list(leakage._word_hashes(texts))
    for n in (5, 8, 13):
        for w, found in zip(words, leakage._grams(words, n), strict=True):
            raw = [w[i : i + n].tolist() for i in range(len(w) - n + 1)]
            one_by_one = set()
            for gram in raw:
                mixed = 0
                for word in gram:
                    mixed = (mixed * int(leakage._P) + word) % 2**64
                one_by_one.add(int(leakage._scramble(np.array([mixed], dtype=np.uint64))[0]))
            assert found.tolist() == sorted(one_by_one)


def test_stored_words_are_read_in_parts_of_whole_texts(training, monkeypatch):
    stored = leakage.Words(**leakage.hashed(training), text=training.__getitem__)
    candidates = [training[0], change(random.Random(8), training[599], 0.05), *training[40:60:3]]
    whole = leaks(candidates, training)
    for size in (1, 7, 100):
        monkeypatch.setattr(leakage, "_BATCH_HITS", size)
        assert leaks(candidates, stored) == whole


def test_training_may_be_a_stream_of_any_length(training, monkeypatch):
    candidates = [training[0], change(random.Random(8), training[599], 0.05)]
    whole = leaks(candidates, training)
    monkeypatch.setattr(leakage, "_BATCH_TEXTS", 7)
    assert leaks(candidates, iter(training)) == whole
    assert leaks(candidates, []) == [None, None]
    assert leaks([], training) == []


@given(st.lists(st.text(max_size=40), max_size=5), st.lists(st.text(max_size=40), max_size=5))
@settings(max_examples=80, deadline=None)
def test_any_text_is_a_leak_of_itself(candidates, training):
    found = leaks(candidates, [*training, *candidates])
    assert [x["kind"] for x in found] == ["exact"] * len(candidates)
