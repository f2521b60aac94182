"""lsa against scikit-learn; a contract for all that encodes; names that are not models."""

from __future__ import annotations

import numpy as np
import pytest

from promptkit import embedders
from promptkit.embedders import Lsa, SentenceTransformer
from promptkit.errors import InputError, UsageError


def encode_words(texts):
    return [np.array([sum(map(ord, w)) % 97 for w in t.split()], dtype=np.int64) for t in texts]


def mix(n=80, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 40, rng.integers(3, 30)) for _ in range(n)]


def test_lsa_equals_truncated_svd_up_to_signs(monkeypatch):
    decomposition = pytest.importorskip("sklearn.decomposition")
    monkeypatch.setattr(embedders, "N_COMPONENTS", 12)
    rows = mix()
    lsa = Lsa.fit(rows, encode_words, seed=3)
    svd = decomposition.TruncatedSVD(12, random_state=3).fit(lsa.tfidf.transform(rows))
    agreement = np.abs(np.sum(lsa.components * svd.components_.T, axis=0))
    np.testing.assert_allclose(agreement, 1.0, atol=1e-3)
    expected = svd.transform(lsa.tfidf.transform(rows))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    signs = np.sign(np.sum(lsa.components * svd.components_.T, axis=0))
    np.testing.assert_allclose(lsa.transform(rows), expected * signs, atol=1e-3)


@pytest.mark.parametrize("shape", [(40, 90), (90, 40)])
def test_the_svd_is_that_of_scikit_learn_to_the_same_bits(shape):
    from scipy import sparse
    from sklearn.utils.extmath import randomized_svd

    X = sparse.random(*shape, density=0.2, format="csr", dtype=np.float32, random_state=0)
    _, strength, components = randomized_svd(X, 8, n_iter=5, random_state=3)
    own_strength, own = embedders._randomized_svd(X, 8, 3)
    assert own_strength.tobytes() == strength.tobytes()
    assert np.abs(own).tobytes() == np.abs(components).tobytes()  # signs are fixed later


def test_lsa_is_the_same_bytes_each_time_and_its_signs_are_fixed():
    a, b = Lsa.fit(mix(), encode_words), Lsa.fit(mix(), encode_words)
    assert a.components.tobytes() == b.components.tobytes()
    assert (a.components.max(axis=0) >= -a.components.min(axis=0) - 2e-4).all()


def test_a_row_has_the_same_bits_alone_and_among_a_thousand():
    lsa = Lsa.fit(mix(), encode_words)
    rows = mix(1000, seed=5)
    many = lsa.transform(rows)
    assert all(lsa.transform([rows[i]]).tobytes() == many[i].tobytes() for i in range(0, 1000, 50))


def test_rows_have_unit_length_and_unknown_texts_are_zero():
    lsa = Lsa.fit(mix(), encode_words)
    X = lsa.transform([*mix(20, seed=1), np.array([95, 96]), np.zeros(0, dtype=np.int64)])
    assert X.dtype == np.float32
    assert X.flags.c_contiguous
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), [1.0] * 20 + [0.0] * 2, atol=1e-6)


@pytest.mark.parametrize("rows", [[[1]], [[1, 2, 3]] * 40, [[]], [[4], [5]]])
def test_lsa_fits_tiny_and_equal_mixes(rows):
    lsa = Lsa.fit([np.array(r, dtype=np.int64) for r in rows], encode_words)
    X = lsa.transform([np.array([1, 2]), np.array([4])])
    assert X.shape[0] == 2
    assert np.isfinite(X).all()


def test_arrays_restore_the_embedder():
    lsa = Lsa.fit(mix(), encode_words)
    again = Lsa.load(lsa.arrays(), encode_words)
    texts = ["one two three", "alpha beta"]
    assert again.encode(texts).tobytes() == lsa.encode(texts).tobytes()


class Fixed:
    def __init__(self, answer):
        self.answer = answer

    def encode(self, texts):
        return self.answer


def test_any_object_with_encode_is_used_and_its_rows_are_brought_to_unit_length():
    model = Fixed(np.array([[3.0, 4.0], [0.0, 2.0]]))
    assert embedders.embedder(model) is model
    np.testing.assert_allclose(embedders.embed(model, ["a", "b"]), [[0.6, 0.8], [0.0, 1.0]])


@pytest.mark.parametrize("answer", [np.zeros((3, 2)), np.zeros(2), np.full((2, 2), np.nan)])
def test_answers_that_are_no_finite_matrix_are_refused(answer):
    with pytest.raises(InputError, match="embedder"):
        embedders.embed(Fixed(answer), ["a", "b"])


def test_unknown_names_list_the_known_and_objects_need_encode():
    with pytest.raises(UsageError, match=r"unknown embedder 'lsb'[\s\S]*lsa"):
        embedders.embedder("lsb")
    with pytest.raises(UsageError, match="no encode"):
        embedders.embedder(3)
    assert embedders.embedder("lsa") is Lsa


def test_sentence_transformers_get_texts_longest_first_and_rows_come_back_in_order():
    class Model:
        def encode(self, texts, batch_size, show_progress_bar):
            assert [len(t) for t in texts] == sorted((len(t) for t in texts), reverse=True)
            return np.array([[len(t), 1.0] for t in texts])

    model = SentenceTransformer("some/model")
    model._model = Model()
    X = model.encode(["aa", "aaaa", "a"])
    np.testing.assert_allclose(X[:, 0] / X[:, 1], [2, 4, 1], rtol=1e-5)


def test_a_path_that_is_no_model_is_a_usage_error(tmp_path, monkeypatch):
    pytest.importorskip("sentence_transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UsageError, match=r"not loaded as a sentence-transformers model \(no such directory\)"):
        embedders.embedder(str(tmp_path / "nothing-here")).encode(["a"])
    with pytest.raises(UsageError, match="not loaded as a sentence-transformers model"):
        embedders.embedder(str(tmp_path)).encode(["a"])
