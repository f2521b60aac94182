"""docs/score.md names every key that a score has, and no key that it has not."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT
from test_score import fit, texts, with_answers

from promptkit import scoring, trend

PAGE = (ROOT / "docs" / "score.md").read_text(encoding="utf-8")
BY_VALUE = {"intervals"}  # its keys are names of other values


def keys(value, name=""):
    """Return every key of a JSON value, of rows in lists too."""
    if isinstance(value, list):
        return {k for v in value for k in keys(v)}
    if isinstance(value, dict):
        return set(value) | {k for n, v in value.items() if n not in BY_VALUE for k in keys(v, n)}
    return set()


@pytest.fixture(scope="module")
def said():
    ref = fit(420)
    prompts = texts(24, 50)
    answers = ["sure : " + " ".join(p.split()[::-1][:12]) for p in prompts]
    prompts[3] = ref.sample["text"][5]  # a leak
    shell = texts(30, 4, ("shell",))  # something is missing
    scores = [scoring.score(with_answers(prompts, answers), ref, draws=99), scoring.score(shell, ref, draws=99)]
    steps = [s.to_json() for s in trend.trend([prompts, shell], ref, draws=99)]
    return set().union(*(keys(s.to_json()) for s in scores), *map(keys, steps))


def test_every_key_is_on_the_page(said):
    assert {"share", "examples", "n_needed", "ratio", "band", "excess_p_value"} <= said
    assert sorted(k for k in said if f"`{k}`" not in PAGE) == []


def test_first_columns_name_keys_that_exist(said):
    told = {
        key
        for table in re.findall(r"^\| key[^\n]*\n(?:\|[^\n]*\n)+", PAGE, re.M)
        for line in table.splitlines()[2:]
        for key in re.findall(r"`(\w+)`", line.split(" | ")[0])
    }
    assert len(told) > 35
    assert sorted(told - said) == []


def test_keys_of_the_command_alone_are_on_the_page():
    for key in ("gates", "gate", "key", "value", "limit", "passed", "drift", "directory", "rows", "sampled", "lossy"):
        assert f"`{key}`" in PAGE, key
