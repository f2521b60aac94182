"""Near-duplicates against a brute-force oracle; leaks on planted copies and on templated prompts that are no leak."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptkit.leakage import near_duplicate_groups


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
