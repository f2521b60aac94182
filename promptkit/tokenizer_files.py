"""The files that hold tokenizers, read as plain data: tables id -> bytes, special ids, nothing executed.

tiktoken.model, *.tiktoken      "IQ== 0"                                   parse_ranks
tokenizer_config.json           {"added_tokens_decoder": {"163586": ...}}  config_specials
tokenizer.json                  {"model": {"vocab": {"!": 0}}}             json_table
tekken.json                     {"vocab": [{"token_bytes": "IQ=="}]}       tekken_tables
tokenizer.model                 protobuf: 0A 0E 0A 05 "<unk>" 15 ...       sentencepiece_to_json
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from promptkit.encoders import space_tokens
from promptkit.errors import InputError

MAX_FILE_BYTES = 512 << 20
MAX_ID = 1 << 20  # the largest vocabulary known has 901,629; a larger id in a file would only cost time and memory


def read_bytes(path: Path) -> bytes:
    """Read a whole regular file, and say so where it is a stand-in for the real one."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"tokenizer file {path}: not a regular file")
        if info.st_size > MAX_FILE_BYTES:
            raise InputError(
                f"tokenizer file {path}: {info.st_size:,} bytes, more than the limit of {MAX_FILE_BYTES:,}"
            )
        data = path.read_bytes()
    except OSError as error:
        reason = "a link whose target is missing" if path.is_symlink() else error.strerror
        raise InputError(f"tokenizer file {path}: {reason}", hint="copy the real file there") from error
    if not data.strip():
        raise InputError(f"tokenizer file {path}: the file is empty", hint="copy it again")
    if data.startswith(b"version https://git-lfs"):
        raise InputError(f"tokenizer file {path}: a Git LFS pointer, not the file itself", hint="run `git lfs pull`")
    if len(data) < 1024 and b"\n" not in data.strip() and re.fullmatch(rb"[^\s{]*/[^\s{]*", data.strip()):
        target = data.strip().decode("utf-8", "replace")
        raise InputError(
            f"tokenizer file {path}: it holds the path text {target!r}, not a table: "
            "a symbolic link that was flattened by a copy",
            hint=f"copy the file that {target!r} stood for over it, or give its directory with --tokenizer",
        )
    return data


def read_json(path: Path, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"tokenizer file {path}: no valid JSON: {error}", hint="copy it again") from error
    if not isinstance(value, dict):
        raise InputError(f"tokenizer file {path}: a JSON {type(value).__name__}, expected an object")
    return value


def read_config(directory: Path) -> dict[str, Any]:
    path = directory / "tokenizer_config.json"
    return read_json(path, read_bytes(path)) if path.exists() else {}


def config_specials(config: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, token in (config.get("added_tokens_decoder") or {}).items():
        content = token.get("content") if isinstance(token, dict) else token
        if not isinstance(content, str) or not content or not str(key).isdecimal() or int(key) > MAX_ID:
            raise InputError(
                f"tokenizer_config.json: added_tokens_decoder entry {key!r} is {token!r:.80}",
                hint='expected an id with {"content": "<|name|>"}',
            )
        if content in found:
            raise InputError(f"tokenizer_config.json: {content!r} has two ids, {found[content]} and {key}")
        found[content] = int(key)
    return found


def parse_ranks(path: Path, data: bytes) -> dict[bytes, int]:
    """Return bytes -> rank of lines `base64 rank`; two columns for every line, no rank or token twice."""
    words = data.split()
    try:
        if len(words) % 2:
            raise ValueError("an odd number of words")
        tokens = list(map(_unbase64, words[::2]))
        numbers = list(map(int, words[1::2]))
    except ValueError as error:
        line = next((i for i, text in enumerate(data.splitlines(), 1) if not _RANK_LINE.fullmatch(text)), 0)
        raise InputError(
            f"tokenizer file {path}: line {line} is not base64 and a rank ({error})",
            hint="expected lines such as 'IQ== 0'; check that this is a tiktoken rank file and copied whole",
        ) from error
    ranks = dict(zip(tokens, numbers, strict=True))
    if len(ranks) < len(tokens) or len(set(numbers)) < len(numbers):
        raise InputError(f"tokenizer file {path}: a token or a rank stands in it twice", hint="copy it again")
    if not 0 <= min(numbers) <= max(numbers) <= MAX_ID:
        raise InputError(
            f"tokenizer file {path}: ranks from {min(numbers)} to {max(numbers)}, expected 0 to {MAX_ID}",
            hint="copy it again",
        )
    return ranks


_DIGIT = r"[A-Za-z0-9+/]"  # of base64, four to three bytes
_RANK_LINE = re.compile(rf"\s*|\s*(?=\S)(?:{_DIGIT}{{4}})*(?:{_DIGIT}{{2}}==|{_DIGIT}{{3}}=)?\s+\d+\s*".encode())


if sys.version_info >= (3, 11):
    _unbase64 = partial(binascii.a2b_base64, strict_mode=True)  # in C: it is called for each of 160,000 tokens
else:
    _unbase64 = partial(base64.b64decode, validate=True)


class RankFile:
    """A rank file as `Tokenizer.save` writes it: all of its bytes at once, its tokens only when they are asked for.

    A table of 160,000 tokens takes 0.3 s to parse and to give to tiktoken. Texts need few of them: a merge makes a part
    of the text, so a token that is no part of a text changes nothing of how it is encoded.
    """

    def __init__(self, path: Path, data: bytes, tokens: tuple[NDArray[Any], ...]) -> None:
        self.path, self.data = path, data
        self._bytes, self._starts, self._sizes, self._ranks = tokens

    @classmethod
    def of(cls, path: Path, data: bytes) -> RankFile | None:
        """Return the file, or None where a line is not base64, a space and a larger rank than before."""
        raw = np.frombuffer(data, np.uint8)
        spaces, ends = np.flatnonzero(raw == 32), np.flatnonzero(raw == 10)
        if len(spaces) != len(ends) or not len(ends) or ends[-1] != len(raw) - 1:
            return None
        starts = np.concatenate([[0], ends[:-1] + 1])
        written, digits = spaces - starts, ends - spaces - 1
        if written.min() < 4 or (written % 4).any() or digits.min() < 1 or digits.max() > 7:
            return None
        ranks = np.zeros(len(ends), np.int32)
        for k in range(int(digits.max())):
            here = np.flatnonzero(digits > k)
            digit = raw[spaces[here] + 1 + k].astype(np.int32) - 48
            if digit.min() < 0 or digit.max() > 9:
                return None
            ranks[here] = ranks[here] * 10 + digit
        # Four characters are three bytes. Padding is at a token's end, and its bytes are not counted in the size.
        groups = written // 4
        before = np.cumsum(groups) - groups
        at = np.repeat(starts - 4 * before, groups) + 4 * np.arange(int(groups.sum()))
        values = [_SIXTET[raw[at + k]] for k in range(4)]
        pads = (raw[spaces - 1] == 61).astype(np.int64) + (raw[spaces - 2] == 61)
        last = before + groups - 1
        n_pads = sum(int((v == 64).sum()) for v in values)
        ends_well = (values[3][last] == 64) == (pads > 0), (values[2][last] == 64) == (pads > 1)
        if max(int(v.max()) for v in values) > 64 or n_pads != pads.sum() or not all(e.all() for e in ends_well):
            return None
        a, b, c, d = (v & 63 for v in values)
        tokens = np.stack([a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d], axis=1).reshape(-1)
        if (np.diff(ranks) <= 0).any() or ranks[-1] > MAX_ID:
            return None
        return cls(path, data, (tokens, 3 * before, 3 * groups - pads, ranks))

    def ranks(self) -> dict[bytes, int]:
        """Return all tokens, bytes -> rank, checked as those of any file."""
        ranks = self._of(np.arange(len(self._ranks)))
        if len(ranks) < len(self._ranks):
            return parse_ranks(self.path, self.data)  # which says what is twice
        return ranks

    def by_rank(self) -> dict[int, bytes]:
        """Return all tokens, rank -> bytes."""
        return {rank: token for token, rank in self.ranks().items()}

    def within(self, texts: Sequence[bytes]) -> dict[bytes, int]:
        """Return the tokens that are a part of the texts, and some more: those all of whose four-byte pieces are."""
        data, size, start = np.frombuffer(b"\0".join(texts), np.uint8), self._sizes, self._starts
        kept = size == 1
        for k in (2, 3, _PIECE):
            seen = np.zeros(1 << _PIECE_BITS, dtype=bool)
            seen[_hash(sliding_window_view(data, k) if len(data) >= k else np.zeros((0, k), np.uint8))] = True
            if k < _PIECE:
                own = np.flatnonzero(size == k)
                kept[own] = seen[_hash(self._bytes[start[own, None] + np.arange(k)])]
            else:
                own = np.flatnonzero(size >= k)
                unseen = np.concatenate([[0], np.cumsum(~seen[self._pieces], dtype=np.int32)])
                kept[own] = unseen[start[own] + size[own] - k + 1] == unseen[start[own]]
        return self._of(np.flatnonzero(kept))

    def _of(self, where: NDArray[np.int64]) -> dict[bytes, int]:
        tokens, start, ranks = self._bytes.tobytes(), self._starts[where], self._ranks[where]
        spans = map(slice, start.tolist(), (start + self._sizes[where]).tolist())
        return dict(zip(map(tokens.__getitem__, spans), ranks.tolist(), strict=True))

    @cached_property
    def _pieces(self) -> NDArray[np.uint32]:
        return _hash(sliding_window_view(self._bytes, _PIECE))


_PIECE, _PIECE_BITS = 4, 18
_SIXTET = np.full(256, 255, np.uint8)  # of base64; 64 is padding
_SIXTET[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")] = np.arange(65)


def _hash(pieces: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return a hash of each row of up to four bytes."""
    mixed = np.zeros(len(pieces), np.uint32)
    for k in range(pieces.shape[1]):
        mixed |= pieces[:, k].astype(np.uint32) << np.uint32(8 * k)
    mixed *= np.uint32(0x9E3779B1)
    return np.asarray(mixed >> np.uint32(32 - _PIECE_BITS))


# ---- tokenizer.json


def _byte_of_char() -> dict[str, int]:
    """Return GPT-2's map from printable characters back to bytes: others were moved to U+0100 and up, in order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(moved)}


_BYTE_OF_CHAR = _byte_of_char()
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def json_table(path: Path, source: dict[str, Any]) -> tuple[dict[int, bytes], dict[str, int]]:
    """Return id -> bytes and the added tokens of a tokenizer.json: byte-level BPE, or metaspace with byte fallback.

    Added tokens of white space alone (Gemma's runs of spaces and newlines) are text like any other.
    """
    model = source.get("model")
    model = model if isinstance(model, dict) else {}
    vocab = model.get("vocab")
    try:
        if isinstance(vocab, list):  # Unigram: [[piece, score], ...]
            vocab = {piece[0]: i for i, piece in enumerate(vocab)}
        added = {t["content"]: t["id"] for t in source.get("added_tokens") or ()}
        spaces = {t["content"]: t["id"] for t in space_tokens(source)}
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f"tokenizer file {path}: its tokens have no known form ({error!r})") from error
    if not isinstance(vocab, dict) or not vocab:
        raise InputError(f"tokenizer file {path}: no model.vocab in it", hint="expected a Hugging Face tokenizer.json")
    for piece, i in (*vocab.items(), *added.items()):
        if not isinstance(piece, str) or type(i) is not int or not 0 <= i <= MAX_ID:
            raise InputError(f"tokenizer file {path}: {piece!r:.80} has the id {i!r:.80}, expected 0 to {MAX_ID}")
    kinds = _kinds(source.get("decoder")) | _kinds(source.get("pre_tokenizer")) | _kinds(source.get("normalizer"))
    if "WordPiece" in kinds or model.get("type") in ("WordPiece", "WordLevel"):
        raise InputError(
            f"tokenizer file {path}: a {model.get('type')} model does not keep the text's spaces",
            hint="expected byte-level BPE or metaspace with byte fallback, as generative models have",
        )
    to_bytes = _from_byte_level if "ByteLevel" in kinds else _from_metaspace
    text = {i: piece if to_bytes is _from_byte_level else piece.replace("\u2581", " ") for piece, i in spaces.items()}
    table = {i: to_bytes(piece) for piece, i in vocab.items()} | {
        i: s.encode("utf-8", "replace") for i, s in text.items()
    }
    return table, {piece: i for piece, i in added.items() if piece not in spaces}


def _kinds(part: Any) -> set[str]:
    """The types named anywhere in a part of a tokenizer.json (sequences nest)."""
    if isinstance(part, list):
        return set().union(*map(_kinds, part)) if part else set()
    if isinstance(part, dict):
        own = {part["type"]} if isinstance(part.get("type"), str) else set()
        return own.union(*(_kinds(v) for v in part.values() if isinstance(v, (dict, list))))
    return set()


def _from_byte_level(piece: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF_CHAR.__getitem__, piece))
    except KeyError:  # an added token that also stands in the vocabulary
        return piece.encode("utf-8", "replace")


def _from_metaspace(piece: str) -> bytes:
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode("utf-8", "replace")


def tekken_tables(path: Path, source: dict[str, Any]) -> tuple[dict[bytes, int], dict[str, int], str]:
    """Return bytes -> id, special ids and the splitting pattern of Mistral's tekken.json.

    The special ids come first; a token of rank r has the id n_special + r.
    """
    try:
        config = source["config"]
        n_special = int(config["default_num_special_tokens"])
        size = min(int(config["default_vocab_size"]) - n_special, len(source["vocab"]))
        ranks = {base64.b64decode(t["token_bytes"]): int(t["rank"]) + n_special for t in source["vocab"][:size]}
        listed = source.get("special_tokens") or [{"token_str": s, "rank": i} for i, s in enumerate(_TEKKEN)]
        specials = {str(t["token_str"]): int(t["rank"]) for t in listed}
        pattern = str(config["pattern"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"tokenizer file {path}: not a tekken table ({error!r})") from error
    used = (*ranks.values(), *specials.values())
    if not ranks or max(used) > MAX_ID or min(used) < 0:
        raise InputError(f"tokenizer file {path}: its ids are not in 0 to {MAX_ID}")
    taken = set(specials.values())
    specials |= {f"<SPECIAL_{i}>": i for i in range(n_special) if i not in taken}
    return ranks, specials, pattern


# fmt: off
_TEKKEN = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)
# fmt: on


# ---- sentencepiece


def sentencepiece_to_json(path: Path, data: bytes) -> dict[str, Any]:
    """Return a sentencepiece model as a tokenizer.json: pieces, scores and types by a walk over its protobuf.

    ModelProto: field 1 = piece (1 text, 2 score, 3 type: 2 unknown, 3 control, 4 user defined, 6 byte);
    field 2 = trainer (3 model type: 1 unigram, 2 BPE).
    """
    pieces: list[tuple[str, float, int]] = []
    model_type = 1
    try:
        for number, value in _fields(data):
            if number == 1 and isinstance(value, bytes):
                inner = dict(_fields(value))
                score = np.frombuffer(inner.get(2, b"\0\0\0\0"), "<f4")[0]
                pieces.append((inner[1].decode("utf-8"), float(score), inner.get(3, 1)))
            elif number == 2 and isinstance(value, bytes):
                model_type = dict(_fields(value)).get(3, 1)
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise InputError(
            f"tokenizer file {path}: not a sentencepiece model ({error!r})", hint="copy it again"
        ) from error
    if not pieces or model_type not in (1, 2):
        raise InputError(f"tokenizer file {path}: sentencepiece model type {model_type}, expected unigram or BPE")
    vocab = {piece: i for i, (piece, _, _) in enumerate(pieces)}
    unknown = next((i for i, p in enumerate(pieces) if p[2] == 2), 0)
    added = [{"id": i, "content": p, "special": kind == 3, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for i, (p, _, kind) in enumerate(pieces) if kind in (2, 3, 4)]  # fmt: skip
    fallback = any(kind == 6 for _, _, kind in pieces)
    if model_type == 1:
        model: dict[str, Any] = {"type": "Unigram", "unk_id": unknown, "byte_fallback": fallback,
                                 "vocab": [[p, s] for p, s, _ in pieces]}  # fmt: skip
    else:
        model = {"type": "BPE", "unk_token": pieces[unknown][0], "fuse_unk": True, "byte_fallback": fallback,
                 "vocab": vocab, "merges": _merges(pieces, vocab)}  # fmt: skip
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": model,
    }


def _merges(pieces: list[tuple[str, float, int]], vocab: dict[str, int]) -> list[list[str]]:
    """Every way to make a piece of two others; better scores first, as sentencepiece merges."""
    found = []
    for rank, (piece, score, kind) in enumerate(pieces):
        if kind == 1:
            halves = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
            found += [(-score, rank, vocab[a], vocab[b], a, b) for a, b in halves if a in vocab and b in vocab]
    return [[a, b] for *_, a, b in sorted(found)]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value) of one protobuf message; length-delimited and fixed values as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size, at = _varint(data, at) if wire == 2 else ({1: 8, 5: 4}.get(wire, -1), at)
        if size < 0 or at + size > len(data):
            raise ValueError(f"broken field at byte {at}")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError(f"broken number at byte {at}")
