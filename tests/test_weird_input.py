"""Strange sets of prompts, strange prompts and strange embedders: a sensible answer, or a refusal that says why."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

pytest.importorskip("sklearn")

import sys

from conftest import ROOT

sys.path.append(str(ROOT))  # benchmarks/ is not installed
from benchmarks import worlds
from promptkit import scoring
from promptkit.conversation import opening
from promptkit.errors import InputError
from promptkit.tokenizers import load_tokenizer


@pytest.fixture(scope="module")
def mix():
    prompts, topics = worlds.made_up("topics", 560, np.random.default_rng(3))
    return prompts, topics, load_tokenizer("words")


@pytest.fixture(scope="module")
def ref(mix):
    prompts, topics, tokenizer = mix
    return worlds.fit(prompts[:500], topics[:500], tokenizer, 0)


@pytest.fixture(scope="module")
def fresh(mix):
    return [opening(p.messages) for p in mix[0][500:]]


def sound(s):
    """Assert what holds of any score: its JSON is plain, its shares are shares, its prompts are all there."""
    text = json.dumps(s.to_json(), allow_nan=False)
    assert len(json.loads(text)["prompts"]) == s.n == len(s.prompts)
    for name in ("p_value", "p_fidelity", "p_mix", "fidelity", "mix_overlap", "domain_overlap"):
        value = getattr(s, name)
        assert value is None or 0.0 <= value <= 1.0, name
    for name, (low, high) in s.intervals.items():
        assert low <= high, name
        value = getattr(s, name)
        assert value is None or low - 1e-9 <= value <= high + 1e-9, name
    if not s.prompts["typicality"].null_count():
        assert s.prompts["typicality"].is_between(0, 1).all()
    assert s.verdict_code in ("yes", "no", "unsure")
    assert s.verdict.strip()
    return s


def test_one_prompt_is_no_set(ref, fresh):
    s = sound(scoring.score(fresh[:1], ref, draws=99))
    assert (s.p_value, s.distance, s.fidelity) == (None, None, None)
    assert "too few" in s.verdict
    assert s.verdict_code == "unsure"


@pytest.mark.parametrize("n", [2, 30])
def test_one_text_over_and_over_is_called_by_its_name(ref, fresh, n):
    s = sound(scoring.score(fresh[:1] * n, ref, draws=199))
    assert s.prompts["typicality"].n_unique() == 1
    assert s.verdict_code != "yes"
    if n == 30:
        assert s.p_mix < 0.05  # thirty copies are no draw of the mix, though each of them belongs
        assert s.coverage < 0.5
        assert s.fidelity == scoring.score(fresh[:1] * 2, ref, draws=99).fidelity


def test_half_a_set_repeated_is_seen_and_each_copy_scores_the_same(ref, fresh):
    twice = [t for t in fresh[:15] for _ in range(4)]
    s = sound(scoring.score(twice, ref, draws=199))
    once = scoring.score(fresh[:15], ref, draws=199)
    assert s.prompts["typicality"].to_list() == [t for t in once.prompts["typicality"].to_list() for _ in range(4)]
    assert s.p_mix < 0.05
    assert s.distance == pytest.approx(once.distance, abs=1e-5)  # the same distribution
    assert s.fidelity == pytest.approx(once.fidelity)


@pytest.mark.parametrize("text", ["x", "?", "the", "0", "\U0001f600", "\u00e9"])
def test_prompts_of_one_token(ref, text):
    s = sound(scoring.score([text] * 12, ref, draws=99))
    assert s.verdict_code == "no"
    assert math.isfinite(s.cross_entropy)


def test_prompts_of_one_known_word_have_neighbours(ref, fresh):
    words = [t.split()[0] for t in fresh[:20]]
    s = sound(scoring.score(words, ref, draws=99))
    assert s.prompts["nearest_similarity"].max() > 0
    assert s.verdict_code != "yes"


def test_prompts_of_a_hundred_thousand_characters(ref, fresh):
    one_word, letters = "word " * 20_000, "a" * 100_000
    own_words = " ".join(fresh * 9)[:100_000]
    prompts = [one_word, letters, own_words, *fresh[:9]]
    assert min(map(len, prompts[:3])) == 100_000 or len(one_word) == 100_000
    s = sound(scoring.score(prompts, ref, draws=99))
    typicality = s.prompts["typicality"].to_list()
    assert typicality[0] < 0.05
    assert typicality[1] < 0.05
    assert s.prompts["cross_entropy"][2] < s.prompts["cross_entropy"][0]
    assert typicality[3:] == scoring.score(fresh[:9], ref, draws=99).prompts["typicality"].to_list()
    assert len(json.dumps(s.to_json())) < 100_000  # a score quotes no prompt in full


@pytest.mark.parametrize(
    "language",
    [
        "Какая погода будет завтра в Москве и нужно ли брать зонт?",
        "東京で一番おいしいラーメン屋を三つ教えてください。",
        "ما هي عاصمة المغرب وكم عدد سكانها اليوم؟",
        "Wie lange braucht der Zug von Hamburg nach München?",
    ],
    ids=["ru", "ja", "ar", "de"],
)
def test_a_language_that_the_mix_has_not_is_foreign_prompt_by_prompt(ref, fresh, language):
    prompts = [*fresh[:16], *[f"{language} {i}" for i in range(4)]]
    s = sound(scoring.score(prompts, ref, draws=199))
    assert not s.prompts["belongs"][16:].any()
    assert s.prompts["belongs"][:16].mean() > 0.7
    assert s.p_fidelity < 0.05


def test_letters_that_no_encoder_likes(ref):
    odd = ["a\x00b c", "\u202egnirts", "\ud800 lone surrogate", "a\u0301" * 50, "\u200b\u200b word", "\ufffd" * 9]
    s = sound(scoring.score(odd, ref, draws=99))
    assert s.prompts["typicality"].null_count() == 0
    as_mapping = scoring.score([{"prompt": t} for t in odd], ref, draws=99)
    assert s.prompts["id"].to_list() == as_mapping.prompts["id"].to_list()


@pytest.mark.parametrize("rows", [1, 2, 20, 50, 99])
def test_a_reference_of_few_rows_gives_distances_and_refuses_p_values(mix, fresh, rows):
    prompts, topics, tokenizer = mix
    small = worlds.fit(prompts[:rows], topics[:rows], tokenizer, 0)
    s = sound(scoring.score(fresh[:20], small, draws=99))
    assert (s.p_value, s.p_fidelity, s.p_mix, s.fidelity, s.coverage) == (None,) * 5
    assert s.distance > 0 or rows == 1  # the space of one row has no room for a distance
    assert s.prompts["closeness"].null_count() == 0
    assert s.verdict_code == "unsure"
    assert f"only {rows} row{'s' * (rows > 1)}," in s.verdict


def test_a_hundred_rows_are_enough_for_p_values(mix, fresh):
    prompts, topics, tokenizer = mix
    s = sound(scoring.score(fresh[:10], worlds.fit(prompts[:100], topics[:100], tokenizer, 0), draws=99))
    assert s.p_value is not None


# ---------------------------------------------------------------------------------------------- a user's own embedder


class Embedder:
    """Vectors of word lengths, or whatever `spoil` makes of them."""

    def __init__(self):
        self.spoil = lambda X, texts: X

    def encode(self, texts, **_):
        X = np.array([[len(t), t.count("a"), t.count("e"), t.count("o"), 1.0] for t in texts], dtype=np.float32)
        return self.spoil(X / np.linalg.norm(X, axis=1, keepdims=True), texts)


@pytest.fixture
def own(mix):
    prompts, topics, tokenizer = mix
    embedder = Embedder()
    return worlds.fit(prompts[:200], topics[:200], tokenizer, 0, embedder=embedder), embedder


def test_an_embedder_of_ones_own_serves(own, fresh):
    assert sound(scoring.score(fresh[:20], own[0], draws=99)).p_value is not None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda X, t: np.where(np.arange(len(X))[:, None] == 1, np.nan, X), r"NaN|not finite|finite"),
        (lambda X, t: np.where(np.arange(len(X))[:, None] == 0, np.inf, X), r"NaN|infin|finite"),
        (lambda X, t: X[:-1], r"\d+ (vectors|rows)|shape"),
        (lambda X, t: X[:, :3], r"20 vectors of 3 dimensions for 20 texts, expected 20 of 5"),
        (lambda X, t: X[0], r"shape|vector|dimension"),
    ],
    ids=["NaN", "infinity", "one vector short", "other dimensions", "flat"],
)
def test_what_an_embedder_must_not_return_is_refused(own, fresh, spoil, message):
    ref, embedder = own
    ref.embedder  # noqa: B018  checked against its stored vectors when first used, while it still behaves
    embedder.spoil = spoil
    with pytest.raises(InputError, match=message) as refused:
        scoring.score(fresh[:20], ref, draws=99)
    assert "Traceback" not in str(refused.value)


def test_vectors_of_length_zero_are_far_from_everything_and_no_error(own, fresh):
    ref, embedder = own
    ref.embedder  # noqa: B018
    embedder.spoil = lambda X, t: np.zeros_like(X)
    s = sound(scoring.score(fresh[:20], ref, draws=99))
    assert s.verdict_code == "no"
