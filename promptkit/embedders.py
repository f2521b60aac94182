"""Texts to unit vectors: what clusters, the map, MMD and selection stand on.

An embedder is anything with `encode(list[str]) -> (n, d)`, the protocol of sentence-transformers. `embedder(...)` takes
a name or the thing itself:

    "lsa"             TF-IDF over the target's token ids, truncated SVD (256) fitted on the mix alone; offline, exact
    any other name    a sentence-transformers model, by hub name or local path (static-embedding models too)
    an object         used as it is

`lsa` is never fitted on candidates: a prompt's vector would depend on its neighbours in the file. Unit-row `lsa` says
*where* in the mix a text lies, not *whether* it belongs: what the subspace cannot express is lost when the row is
brought to unit length. The lexical profile says whether.

All return float32 unit rows, C order; a text without any known id is a row of zeros.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from promptkit.errors import InputError, UsageError
from promptkit.lexical import TfIdf

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from promptkit.lexical import Ids

    Spread = Callable[["SentenceTransformer", list[str]], tuple[NDArray[np.float32], str]]

N_COMPONENTS = 256


class Encoder(Protocol):
    """What sentence-transformers, model2vec and our own `Lsa` satisfy."""

    def encode(self, texts: list[str], /) -> Any:
        """Return one vector per text."""


class Lsa:
    """Latent semantic analysis of a mix's token ids; `encode` is the sentence-transformers protocol.

    components : float32 (t, d), row j belongs to `tfidf.terms[j]`.
    """

    def __init__(self, tfidf: TfIdf, components: NDArray[np.float32], encode_ids: Callable[[list[str]], Sequence[Ids]]):
        self.tfidf = tfidf
        self.components = components
        self._encode_ids = encode_ids

    @classmethod
    def fit(cls, rows: Sequence[Ids], encode_ids: Callable[[list[str]], Sequence[Ids]], *, seed: int = 0) -> Lsa:
        """Fit TF-IDF and SVD on the token ids of the mix's rows; `encode_ids` turns texts into ids.

        The SVD has one thread, so that the bytes do not depend on the number of cores. Directions without variance are
        dropped; the largest entry of each component is positive; entries are rounded to 6 decimals.
        """
        from threadpoolctl import threadpool_limits

        tfidf, X = TfIdf.fit_transform(rows)
        d = min(N_COMPONENTS, *X.shape)
        if d == 0:
            return cls(tfidf, np.zeros((X.shape[1], 0), dtype=np.float32), encode_ids)
        with threadpool_limits(1):
            strength, components = _randomized_svd(X, d, seed)
        components = components[strength > 1e-4 * strength[0]]
        largest = np.abs(np.round(components, 4)).argmax(axis=1)
        signs = np.sign(components[np.arange(len(components)), largest])
        components = np.round(components * signs[:, None], 6)
        return cls(tfidf, np.ascontiguousarray(components.T, dtype=np.float32), encode_ids)

    def encode(self, texts: list[str], /) -> NDArray[np.float32]:
        """Return unit rows (n, d)."""
        return self.transform(self._encode_ids(list(texts)))

    def transform(self, rows: Sequence[Ids]) -> NDArray[np.float32]:
        """Return unit rows (n, d) of texts given as token ids; each row is computed on its own."""
        return unit_rows(self.tfidf.transform(rows) @ self.components)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what a saved embedder consists of, by name."""
        size = np.array([self.tfidf.n_rows], dtype=np.int64)
        return {"terms": self.tfidf.terms, "df": self.tfidf.df, "size": size, "components": self.components}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], encode_ids: Callable[[list[str]], Sequence[Ids]]) -> Lsa:
        """Return the embedder whose `arrays()` these are (they may be memory maps)."""
        tfidf = TfIdf(arrays["terms"], arrays["df"], int(arrays["size"][0]))
        return cls(tfidf, arrays["components"], encode_ids)


def _randomized_svd(X: Any, d: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the d largest singular values of X and their right vectors (d, columns), up to their signs.

    Step by step what `randomized_svd` of scikit-learn does (Halko, Martinsson and Tropp 2011; five power iterations,
    ten more directions than asked for), to the same bits: importing it takes 75 MB and over a second, in every build.
    """
    from scipy import linalg

    wide = X.shape[0] < X.shape[1]
    M = X.T if wide else X
    Q = np.random.RandomState(seed).normal(size=(M.shape[1], d + 10)).astype(np.float32)
    for _ in range(5):
        Q = linalg.lu(M @ Q, permute_l=True, check_finite=False)[0]
        Q = linalg.lu(M.T @ Q, permute_l=True, check_finite=False)[0]
    Q = linalg.qr(M @ Q, mode="economic", check_finite=False)[0]
    U, strength, V = linalg.svd(Q.T @ M, full_matrices=False, lapack_driver="gesdd")
    return strength[:d], (Q @ U)[:, :d].T if wide else V[:d]


class SentenceTransformer:
    """A sentence-transformers model by hub name or local path, loaded on first use.

    device : "auto" (the GPU where torch sees one), "cpu", "cuda" or "cuda:N". A GPU computes in bfloat16.
    batch_tokens : of one batch, padding included; None leaves it to the device (`sentences.BATCH_TOKENS`).
    spread : has copies of this model do it elsewhere: (model, texts) -> unit rows, and `embedded_on` of the copies.
    """

    def __init__(
        self, name: str, *, device: str = "auto", batch_tokens: int | None = None, threads: int = 1,
        spread: Spread | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.device = device
        self.batch_tokens = batch_tokens
        self.threads = threads
        self._spread = spread
        self._spread_on = ""
        self._model: Any = None
        self._fast: Any = None

    def encode(self, texts: list[str], /) -> NDArray[np.float32]:
        """Return unit rows (n, d): `sentences.Fast` where that gives the model's own vectors, else its own `encode`."""
        if self._spread is not None:
            X, self._spread_on = self._spread(self, texts)
            return X
        model = self._load()
        if self._fast is not None:
            return unit_rows(self._fast.encode(texts, batch_tokens=self.batch_tokens))
        from promptkit import sentences

        found = [
            (rows, np.asarray(model.encode([texts[i] for i in rows], batch_size=32, show_progress_bar=False)))
            for rows in sentences.chunks(texts)
        ]
        X = np.empty((len(texts), found[0][1].shape[1] if found else 0), dtype=np.float32)
        for rows, vectors in found:
            X[rows] = vectors
        return unit_rows(X)

    @property
    def embedded_on(self) -> str:
        """The device and precision of its vectors, as a reference notes them: "cpu float32", "cuda bfloat16"."""
        if self._spread_on:
            return self._spread_on
        model = self._load()
        kinds = {str(p.dtype).removeprefix("torch.") for p in model.parameters()} or {"float32"}
        return f"{model.device.type} {' '.join(sorted(kinds))}"

    def _load(self) -> Any:
        if self._model is None:
            import torch
            from sentence_transformers import SentenceTransformer as Model
            from transformers.utils import logging as bars

            from promptkit import gpu, sentences

            torch.set_num_threads(self.threads)
            device = gpu.resolve(self.device)
            shown = bars.is_progress_bar_enabled()
            bars.disable_progress_bar()  # type: ignore[no-untyped-call]  # of its weights, on standard error, --quiet or not
            try:  # code that comes with a model is never run: trust_remote_code stays off
                if (os.path.isabs(self.name) or self.name.startswith(".")) and not os.path.isdir(self.name):
                    raise OSError("no such directory")  # the library would look for it on the hub
                model = Model(self.name, device=device)
            except (OSError, ValueError, KeyError, RuntimeError) as error:
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise UsageError(
                    f"embedder {self.name!r}: not loaded as a sentence-transformers model ({reason})",
                    hint='check the name or path, download it first when offline, or use embedder="lsa"',
                ) from error
            finally:
                if shown:
                    bars.enable_progress_bar()  # type: ignore[no-untyped-call]
            self._model = model.bfloat16() if device != "cpu" else model
            self._fast = sentences.Fast.of(model)
        return self._model


EMBEDDERS: dict[str, type[Lsa]] = {"lsa": Lsa}


def embedder(name: Any, *, device: str = "auto", threads: int = 1, spread: Spread | None = None) -> Any:
    """Return the embedder that `name` stands for: the `Lsa` class, a model by name or path, or the object itself.

    `device`, `threads` and `spread` are those of a `SentenceTransformer`.
    """
    if not isinstance(name, str):
        if not callable(getattr(name, "encode", None)):
            raise UsageError(
                f"embedder: {type(name).__name__} object has no encode(texts) method",
                hint='pass "lsa", a sentence-transformers name or path, or an object with encode(list[str]) -> (n, d)',
            )
        return name
    if name in EMBEDDERS:
        return EMBEDDERS[name]
    from importlib.metadata import entry_points

    plugins = {e.name: e for e in entry_points(group="promptkit.embedders")}
    if name in plugins:
        return plugins[name].load()
    if not ("/" in name or os.sep in name or "-" in name or os.path.isdir(name)):
        from promptkit.registry import suggest

        raise UsageError(f"unknown embedder {name!r}", hint=suggest(name, [*EMBEDDERS, *plugins]) + ", or a model path")
    return SentenceTransformer(name, device=device, threads=threads, spread=spread)


def identity(model: Any) -> str:
    """Return the name under which a reference remembers its embedder."""
    if isinstance(model, Lsa) or model is Lsa:
        return "lsa"
    name = getattr(model, "name", None)
    return name if isinstance(name, str) else f"{type(model).__module__}.{type(model).__qualname__}"


def embed(model: Encoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return unit rows (n, d) of any encoder; InputError where its answer is not a finite matrix of n rows."""
    X = np.asarray(model.encode(list(texts)), dtype=np.float32)
    if X.ndim != 2 or len(X) != len(texts):
        raise InputError(f"embedder {identity(model)}: shape {X.shape} for {len(texts)} texts, expected (n, d)")
    if not np.isfinite(X).all():
        raise InputError(f"embedder {identity(model)}: {int((~np.isfinite(X)).any(axis=1).sum())} rows hold NaN or inf")
    return unit_rows(X)


def unit_rows(X: Any) -> NDArray[np.float32]:
    """Return the rows brought to unit length, float32, C order; rows of zeros stay.

    NumPy sums each row by itself (no blocked product), so that a row's bits do not depend on how many stand beside it.
    A thousand rows at a time stay in the cache.
    """
    X = np.asarray(X)
    out = np.empty(X.shape, dtype=np.float32)
    for at in range(0, len(X), 1024):
        Y = np.ascontiguousarray(X[at : at + 1024], dtype=np.float64)
        length = np.sqrt((Y * Y).sum(axis=1, keepdims=True))
        out[at : at + 1024] = Y / np.where(length > 0, length, 1.0)
    return out
