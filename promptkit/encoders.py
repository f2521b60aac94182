"""How ordinary text becomes ids: by byte-pair ranks, by a tokenizer.json, or by hashing words.

No encoder knows a special token, so that no text can produce one, whatever it quotes. Text without any break is split
as Kimi's own code does it, because a piece without a break costs the merge loop time in the square of its length.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptkit.errors import InputError, UsageError

if TYPE_CHECKING:
    from promptkit.tokenizer_files import RankFile

Ids = NDArray[np.int32]

WORDS_VOCAB = 1 << 20
FEW_CHARACTERS = 1 << 20  # for so little, once, not the whole table of a saved tokenizer is built

# How text is cut into pieces before the merges: one regular expression per family (Rust syntax, for tiktoken).

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UP, _LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_NOT_HAN = r"&&[^\p{Han}]]"


def _cased(up: str, low: str) -> str:
    """Words in which capitals come first: `up`* `low`+ or `up`+ `low`*, each with an English contraction."""
    return rf"{_LEAD}{up}*{low}+{_CONTRACTION}?|{_LEAD}{up}+{low}*{_CONTRACTION}?"


PATTERNS = {
    "kimi": rf"\p{{Han}}+|{_cased(_UP[:-1] + _NOT_HAN, _LOW[:-1] + _NOT_HAN)}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}",
    "qwen": rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|\p{{N}}|{_SYMBOLS}|{_SPACES}",
    "qwen3.5": rf"{_CONTRACTION}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
    "cl100k": rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}",
    "o200k": rf"{_cased(_UP, _LOW)}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
    "r50k": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}


class Encoder:
    """What all encoders share; `identity` is (kind, detail) and part of the tokenizer's own identity."""

    identity: tuple[str, str] = ("none", "")
    releases_the_lock = False

    def encode(self, text: str) -> Ids:
        raise UsageError(f"this tokenizer can decode only ({self.identity[1]})", hint="give tokenizer.json as well")

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        return [self.encode(text) for text in texts]

    def ready(self) -> None:
        """Build what is built on first use, before threads would build it twice."""

    def files(self) -> dict[str, bytes]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_built"}


class RankEncoder(Encoder):
    """Byte-pair merges in rank order, by tiktoken; `pattern` is a key of PATTERNS or a regular expression."""

    releases_the_lock = True

    def __init__(self, ranks: dict[bytes, int] | RankFile, pattern: str) -> None:
        self._given = ranks
        self.pattern = pattern
        self.identity = ("ranks", pattern)
        self._had_few = False

    @property
    def ranks(self) -> dict[bytes, int]:
        if not isinstance(self._given, dict):
            self._given = self._given.ranks()
        return self._given

    def ready(self) -> None:
        if "_built" not in self.__dict__:
            self._built = self._of(self.ranks)

    def _of(self, ranks: dict[bytes, int]) -> Any:
        import tiktoken

        lacking = [b for b in range(256) if bytes([b]) not in ranks]
        if lacking:  # tiktoken would panic in the middle of a text
            raise InputError(
                f"tokenizer table: {len(lacking)} of the 256 single bytes are missing, the first is {lacking[0]}",
                hint="it can decode but not encode; use the model's own tiktoken.model",
            )
        pattern = PATTERNS.get(self.pattern, self.pattern)
        return tiktoken.Encoding("promptkit", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})

    def encode(self, text: str) -> Ids:
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        if self.pattern in ("qwen", "qwen3.5"):  # as Qwen's own tokenizer does
            texts = [unicodedata.normalize("NFC", text) for text in texts]
        encode = self._encoding_for(texts).encode_ordinary
        out = []
        for text in texts:
            parts = [np.array(encode(piece), np.int32) for piece in split_long(text)]
            out.append(parts[0] if len(parts) == 1 else np.concatenate(parts))
        return out

    def _encoding_for(self, texts: Sequence[str]) -> Any:
        """Return the encoding of all tokens; the first time, for few texts, one of those that can occur in them."""
        few = not self._had_few and sum(map(len, texts)) <= FEW_CHARACTERS
        if "_built" in self.__dict__ or isinstance(self._given, dict) or not few:
            self.ready()
            return self._built
        self._had_few = True
        return self._of(self._given.within([whole(text).encode("utf-8") for text in texts]))

    def files(self) -> dict[str, bytes]:
        ranks, text = self.ranks, bytearray()
        for token in sorted(ranks, key=ranks.__getitem__):  # no list of lines: it would be 30 MB at a build's peak
            text += b"%s %d\n" % (base64.b64encode(token), ranks[token])
        return {"tiktoken.model": bytes(text)}


class JsonEncoder(Encoder):
    """Hugging Face `tokenizers` over a tokenizer.json without its added tokens, so that none is ever produced.

    Runs of white space that were added as tokens of their own, as Gemma's are, stay: they are ordinary text.
    """

    def __init__(self, source: dict[str, Any]) -> None:
        self.source = source
        # The table and the specials are hashed by the tokenizer; what is left decides how text is cut.
        rest = {k: source.get(k) for k in ("normalizer", "pre_tokenizer", "decoder")}
        rest["merges"] = (source.get("model") or {}).get("merges")
        self.identity = ("json", hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16])

    def ready(self) -> None:
        if "_built" not in self.__dict__:
            spaces = space_tokens(self.source)
            self._built = self._backend(spaces)
            if any(self._built.token_to_id(t["content"]) != t["id"] for t in spaces):  # it numbers them by their order
                self._built = self._backend([])

    def _backend(self, added: list[dict[str, Any]]) -> Any:
        from tokenizers import Tokenizer as Backend

        plain = {**self.source, "added_tokens": added, "post_processor": None, "truncation": None, "padding": None}
        try:
            return Backend.from_str(json.dumps(plain))
        except Exception as error:  # the library raises bare Exception
            raise InputError(f"tokenizer.json: the tokenizers library refuses it: {error}") from error

    def encode(self, text: str) -> Ids:
        self.ready()
        text = whole(text)
        parts = [np.array(self._built.encode(p, add_special_tokens=False).ids, np.int32) for p in split_long(text)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def files(self) -> dict[str, bytes]:
        return {"tokenizer.json": json.dumps(self.source, ensure_ascii=False, separators=(",", ":")).encode("utf-8")}


def space_tokens(source: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the added tokens of a tokenizer.json that are nothing but white space, and so no markers."""
    added = source.get("added_tokens") or ()
    return [t for t in added if not t.get("special") and t["content"] and not _spaced(t["content"]).strip()]


def _spaced(piece: str) -> str:
    return piece.replace("\u2581", " ")


# Chinese and Japanese have no spaces: each character is a word there.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+|[^\w\s]")


class WordEncoder(Encoder):
    """Words and symbols, each hashed to one of 2^20 ids; white space is dropped."""

    identity = ("words", str(WORDS_VOCAB))

    def encode(self, text: str) -> Ids:
        return np.array([word_id(word) for word in _WORD.findall(whole(text))], np.int32)


@lru_cache(maxsize=1 << 16)
def word_id(word: str) -> int:
    """Return the id of one word: blake2b of its UTF-8, modulo 2^20 (Python's own hash differs in each process)."""
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8"), digest_size=8).digest(), "big") % WORDS_VOCAB


def whole(text: str) -> str:
    """Return the text with lone surrogates as U+FFFD; they cannot be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


CHUNK, RUN = 400_000, 25_000  # Kimi's own limits, in characters
_RUNS = re.compile(r"\S+|\s+")


def split_long(text: str) -> Iterator[str]:
    """Yield the text in parts of at most CHUNK characters, cut inside runs of RUN characters without (or all) space.

    A piece without any break costs the merge loop time in the square of its length.
    """
    if len(text) <= RUN:
        yield text
        return
    for begin in range(0, len(text), CHUNK):
        part, start = text[begin : begin + CHUNK], 0
        for run in _RUNS.finditer(part):
            for cut in range(run.start() + RUN, run.end(), RUN):
                yield part[start:cut]
                start = cut
        yield part[start:]
