"""sentence-transformers models: the library's own vectors, however they are batched, or its own `encode`."""

from __future__ import annotations

import os

import numpy as np
import pytest

from promptkit import embedders, sentences
from promptkit.embedders import SentenceTransformer
from promptkit.errors import ResourceError, UsageError

TEXTS = [
    "Write a parser for INI files in Rust.", "", " ", "x", "Was ist ein Föhn? 漢字 and 🤖", "\n\ta  b\n",
    "long " * 3000, "Wort-für-Wort, " * 200, "a" * 5000, " " * 9000 + "at the end", "q?" * 1500, "Hello", "Hello",
]  # fmt: skip


@pytest.fixture(scope="module")
def loaded(minilm: str) -> SentenceTransformer:
    model = SentenceTransformer(minilm, device="cpu")
    model._load()
    return model


def library(model: SentenceTransformer, texts: list[str]) -> np.ndarray:
    return np.asarray(model._model.encode(texts, show_progress_bar=False))


def test_vectors_are_the_librarys_in_the_order_of_the_texts(loaded):
    X = loaded.encode(TEXTS)
    assert loaded._fast is not None
    assert loaded.embedded_on == "cpu float32"
    np.testing.assert_allclose(X, library(loaded, TEXTS), atol=1e-5)
    assert X.dtype == np.float32
    assert loaded.encode(TEXTS).tobytes() == X.tobytes()


def test_one_text_and_none(loaded):
    np.testing.assert_allclose(loaded.encode(["Hello"]), library(loaded, ["Hello"]), atol=1e-5)
    assert loaded.encode([]).shape == (0, 0)


def test_chunks_and_batches_of_any_size_give_the_same_vectors(loaded, monkeypatch):
    X = loaded.encode(TEXTS)
    monkeypatch.setattr(sentences, "CHUNK", 2)
    for batch_tokens in (1, 40, 10_000):
        np.testing.assert_allclose(loaded._fast.encode(TEXTS, batch_tokens=batch_tokens), X, atol=1e-5)


def test_only_the_head_of_a_long_text_is_tokenised_and_its_ids_are_those_of_the_whole(loaded):
    class Counted:
        def __init__(self, tokenizer):
            self.tokenizer, self.pre_tokenizer, self.characters = tokenizer, tokenizer.pre_tokenizer, 0

        def encode_batch_fast(self, texts):
            self.characters += sum(map(len, texts))
            return self.tokenizer.encode_batch_fast(texts)

    counted = Counted(loaded._fast.tokenizer)
    fast = sentences.Fast(loaded._model, counted, 256, "", {})
    ids, lengths = fast.tokens(TEXTS)
    expected = [e.ids for e in counted.tokenizer.encode_batch_fast(TEXTS)]
    assert [list(part) for part in np.split(ids, np.cumsum(lengths)[:-1])] == expected
    before, counted.characters = counted.characters, 0
    fast.tokens(["long " * 100_000])
    assert counted.characters < 3000
    assert before > 9000  # too few tokens in the head: read whole


def test_max_seq_length_and_the_default_prompt_are_the_models(minilm):
    model = SentenceTransformer(minilm, device="cpu")
    inner = model._load()
    whole = model.encode(TEXTS)
    inner.max_seq_length = 16
    inner.prompts, inner.default_prompt_name = {"q": "query: "}, "q"
    model._fast = sentences.Fast.of(inner)
    assert model._fast.limit == 16
    X = model.encode(TEXTS)
    np.testing.assert_allclose(X, library(model, TEXTS), atol=1e-5)
    assert np.abs(X - whole).max() > 0.1


def test_out_of_memory_halves_the_batches_and_goes_on(loaded, monkeypatch):
    import torch

    whole, sizes = loaded.encode(TEXTS), []
    real = sentences._Batches._vectors

    def small(self, flat, start, size, width):
        sizes.append(len(start) * width)
        if sizes[-1] > 600:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return real(self, flat, start, size, width)

    monkeypatch.setattr(sentences._Batches, "_vectors", small)
    np.testing.assert_allclose(loaded._fast.encode(TEXTS, batch_tokens=10_000), whole, atol=1e-5)
    assert sizes[0] > 2 * 600
    monkeypatch.setattr(sentences._Batches, "_vectors", lambda *_: small(*_[:4], 1000))
    with pytest.raises(ResourceError, match="one text of"):
        loaded._fast.encode(["long " * 3000], batch_tokens=10)


def test_a_model_whose_tokens_are_not_ours_encodes_by_itself(minilm):
    from sentence_transformers import SentenceTransformer as Model

    class Upper(Model):
        def preprocess(self, inputs, *args, **kwargs):
            return super().preprocess(["Reversed " + text[::-1] for text in inputs], *args, **kwargs)

        tokenize = preprocess

    model = SentenceTransformer(minilm, device="cpu")
    model._model = Upper(minilm, device="cpu")
    model._fast = sentences.Fast.of(model._model)
    assert model._fast is None
    np.testing.assert_allclose(model.encode(TEXTS), library(model, TEXTS), atol=1e-5)


def test_modules_after_the_pooling_take_part(minilm):
    import torch
    from sentence_transformers import SentenceTransformer as Model
    from sentence_transformers.models import Dense

    torch.manual_seed(0)
    inner = Model(minilm, device="cpu")
    inner = Model(modules=[*inner, Dense(384, 8)], device="cpu")
    fast = sentences.Fast.of(inner)
    assert fast is not None
    X = embedders.unit_rows(fast.encode(TEXTS))
    np.testing.assert_allclose(X, embedders.unit_rows(inner.encode(TEXTS)), atol=1e-5)
    assert X.shape == (len(TEXTS), 8)


def test_a_static_model_without_attention_encodes_by_itself(minilm):
    from sentence_transformers import SentenceTransformer as Model
    from sentence_transformers.models import StaticEmbedding
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.path.join(minilm, "tokenizer.json"))
    model = SentenceTransformer("static", device="cpu")
    model._model = Model(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu")
    assert sentences.Fast.of(model._model) is None
    expected = embedders.unit_rows(model._model.encode(TEXTS))
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)


def test_devices_that_are_not_there_are_refused():
    pytest.importorskip("torch")
    for device, message in (("cuda:99", "sees"), ("gpu", "unknown device 'gpu'")):
        with pytest.raises(UsageError, match=message):
            embedders.embedder("some/model", device=device).encode(["a"])


def test_loading_a_model_prints_nothing(minilm: str, capfd: pytest.CaptureFixture[str]) -> None:
    SentenceTransformer(minilm, device="cpu").encode(["sort a list"])
    assert capfd.readouterr() == ("", "")  # not even with --quiet was there silence
