"""A tokenizer is a table id -> bytes plus named special ids; it is read from files as data, and never downloaded.

What comes in: a model directory or one file of it, in any of these forms.

    tiktoken.model, *.tiktoken      lines of base64(bytes), space, rank       "IQ== 0"
    tokenizer_config.json           "added_tokens_decoder": {"163586": {"content": "<|im_end|>", ...}, ...}
    tokenizer.json                  Hugging Face: byte-level BPE, or metaspace with byte fallback
    tokenizer.model                 sentencepiece, walked as protobuf (no library needed)
    tekken.json                     Mistral: base64 bytes and ranks

Decoding needs no regex, no tiktoken and no remote code: look the ids up, join the bytes, decode UTF-8 once. Ids that
the table lacks become a visible placeholder, because `tokenizers` would drop them in silence and tiktoken would raise.
A table may have holes (the Kimi-format one that we test with has none of 151643-163583). Measured: 20-35 M tokens/s.

Encoding is for *ordinary text*: no special id is ever produced, whatever the text quotes. It uses tiktoken or
`tokenizers`; text without any break is split as Kimi's own code does, else tiktoken needs quadratic time.

"words" is a built-in splitter for mixes that hold text only: words and symbols, hashed to 2^20 ids. It cannot decode.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptkit.encoders import WORDS_VOCAB, Encoder, Ids, JsonEncoder, RankEncoder, WordEncoder, space_tokens
from promptkit.errors import InputError, UsageError
from promptkit.registry import suggest
from promptkit.tokenizer_files import (
    RankFile,
    config_specials,
    json_table,
    parse_ranks,
    read_bytes,
    read_config,
    read_json,
    sentencepiece_to_json,
    tekken_tables,
)

SPELLED_IDS = 1 << 17  # ids looked up at once: bounds the memory of one look-up to some MB


class Tokenizer:
    """A table id -> bytes with named special ids, and an encoder of ordinary text.

    Attributes
    ----------
    name : the family ("kimi", "qwen", ...), the encoding ("cl100k_base"), "bpe" or "words"; no path: it may be hashed
    sha256 : identity over the table, the special ids and the splitting pattern
    n_vocab : one more than the highest id
    specials : name -> id of every special or added token
    pad, eos, bos : their ids, or None
    notes : remarks for the user, such as special ids that were assumed

    Instances pickle; the encoder is built on first use in each process. `table` may be a function that gives the table
    when it is first needed: to encode a few texts it is not.
    """

    def __init__(
        self,
        table: Mapping[int, bytes] | Callable[[], Mapping[int, bytes]],
        specials: Mapping[str, int],
        *,
        name: str,
        encoder: Encoder,
        pad: str | None = None,
        eos: str | None = None,
        bos: str | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.specials = dict(sorted(specials.items(), key=lambda item: item[1]))
        self.encoder = encoder
        self.notes = tuple(notes)
        self._remembered: dict[bytes, Ids] = {}  # by the hash of the text, which is not kept
        self._table = table
        if not callable(table):
            _ = self._flat  # now: what was given may change
        self.pad, self.eos, self.bos = (self.specials.get(s) if s else None for s in (pad, eos, bos))

    @cached_property
    def _flat(self) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.uint8]]:
        """Which ids the table holds, one more than there are: where every id out of range is looked up. How long the
        tokens are, and the bytes of all of them: gathered by numpy, ids never become Python integers.
        """  # fmt: skip
        table = self._table() if callable(self._table) else self._table
        self._table = {}
        tokens = {**table, **{i: s.encode("utf-8") for s, i in self.specials.items()}}
        n_vocab = max(tokens, default=-1) + 1
        known = np.zeros(n_vocab + 1, bool)
        known[list(tokens)] = True
        shown = [tokens[i] if i in tokens else placeholder(i) for i in range(n_vocab)]
        return known, np.array([len(t) for t in shown], np.int64), np.frombuffer(b"".join(shown), np.uint8)

    @cached_property
    def n_vocab(self) -> int:
        return len(self._flat[0]) - 1

    @cached_property
    def _known(self) -> NDArray[np.bool_]:
        return self._flat[0]

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return self._flat[1]

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.asarray(np.cumsum(self._lengths) - self._lengths)

    @cached_property
    def _bytes(self) -> NDArray[np.uint8]:
        return self._flat[2]

    @cached_property
    def sha256(self) -> str:
        known, lengths, data = self._flat
        digest = hashlib.sha256(lengths.astype("<i4").tobytes())
        digest.update(known[:-1].tobytes())
        digest.update(data.tobytes())
        digest.update(json.dumps([self.specials, self.encoder.identity]).encode())
        return digest.hexdigest()

    def known(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """Return for each id whether the table holds it."""
        return self._known.take(self.clip(ids))

    def n_unknown(self, ids: NDArray[Any]) -> int:
        """Return how many of the ids the table lacks."""
        return len(ids) - int(np.count_nonzero(self.known(ids)))

    def clip(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Return the ids with `n_vocab` in the place of those out of range, to index a table of n_vocab + 1."""
        ids = np.asarray(ids, np.int64)
        if self._all_inside(ids):
            return ids
        return np.where((ids < 0) | (ids > self.n_vocab), self.n_vocab, ids)

    def _all_inside(self, ids: NDArray[np.int64]) -> bool:
        unsigned = ids.view(np.uint64)  # a negative id is a huge one here
        return not len(ids) or bool(unsigned[unsigned.argmax()] < self.n_vocab)

    def spell(self, ids: NDArray[Any]) -> tuple[bytes, NDArray[np.int64]]:
        """Return the bytes of all ids, joined, and where each one ends; `<|unknown_id_N|>` where the table has none."""
        if self.encoder.identity[0] == "words":
            raise UsageError(
                "the words splitter hashes words to ids and cannot decode them",
                hint="give the tokenizer of the target model: a model directory, tiktoken.model or tokenizer.json",
            )
        ids = np.asarray(ids, np.int64)
        if len(ids) > SPELLED_IDS:
            parts = [self.spell(ids[k : k + SPELLED_IDS]) for k in range(0, len(ids), SPELLED_IDS)]
            shifts = np.cumsum([0, *(len(data) for data, _ in parts)])
            ends = np.concatenate([e + shift for (_, e), shift in zip(parts, shifts, strict=False)])
            return b"".join(data for data, _ in parts), ends
        if not self._all_inside(ids):
            tokens = [self.token(i) for i in ids.tolist()]
            return b"".join(tokens), np.cumsum([len(t) for t in tokens], dtype=np.int64)
        lengths = self._lengths[ids]
        ends = np.cumsum(lengths)
        if not len(ids):
            return b"", ends
        where = np.arange(int(ends[-1]))
        where += np.repeat(self._starts[ids] - (ends - lengths), lengths)
        return self._bytes[where].tobytes(), ends

    def token(self, i: int) -> bytes:
        """Return the bytes of one id."""
        if not 0 <= i < self.n_vocab:
            return placeholder(i)
        start = int(self._starts[i])
        return self._bytes[start : start + int(self._lengths[i])].tobytes()

    def tokens(self, ids: NDArray[Any]) -> list[bytes]:
        """Return the bytes of each id."""
        data, ends = self.spell(ids)
        return [data[a:b] for a, b in pairwise([0, *ends.tolist()])]

    def decode_bytes(self, ids: NDArray[Any]) -> bytes:
        """Return the bytes of all ids, joined."""
        return self.spell(ids)[0]

    def decode(self, ids: NDArray[Any]) -> str:
        """Return the text of all ids; bytes that are no UTF-8 become U+FFFD (lossy)."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def encode(self, text: str) -> Ids:
        """Return the ids of ordinary text; a quoted special token is encoded as the text that it is."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], *, threads: int = 1) -> list[Ids]:
        """Return the ids of each text, in order; the same for any number of `threads`."""
        if self._remembered:
            known = [self._remembered.get(_digest(text)) for text in texts]
            made = iter(self._encode_all([t for t, ids in zip(texts, known, strict=True) if ids is None], threads))
            return [next(made) if ids is None else ids for ids in known]
        return self._encode_all(texts, threads)

    def remember(self, texts: Sequence[str], ids: Sequence[Ids]) -> None:
        """Keep the ids of texts that will be asked for again, until `forget`: a build needs most of them thrice."""
        # One array for all of them: thousands of small ones would lie among what is freed, and hold its pages.
        if len(texts):
            apart = np.split(np.concatenate(ids), np.cumsum([len(i) for i in ids[:-1]], dtype=np.int64))
            self._remembered.update(zip(map(_digest, texts), apart, strict=True))

    def forget(self) -> None:
        self._remembered.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_remembered": {}}

    def _encode_all(self, texts: Sequence[str], threads: int) -> list[Ids]:
        if threads > 1 and len(texts) > 1 and self.encoder.releases_the_lock:
            self.encoder.ready()
            with ThreadPoolExecutor(threads) as pool:
                return list(pool.map(self.encoder.encode, texts))
        return self.encoder.encode_all(texts)

    def encode_rendered(self, text: str) -> Ids:
        """Return the ids of text that a chat template has rendered: the names of special tokens become their ids."""
        if not self.specials:
            return self.encode(text)
        parts = split_at(self.specials).split(text)
        pieces = [p for p in parts[::2] if p]
        ids = iter(self.encode_batch(pieces))
        out = [
            np.array([self.specials[p]], np.int32) if i % 2 else next(ids) for i, p in enumerate(parts) if i % 2 or p
        ]
        return np.concatenate(out) if out else np.zeros(0, np.int32)

    def save(self, directory: Path) -> None:
        """Write the files from which `load_tokenizer(directory)` makes an equal tokenizer; the same bytes each time."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        by_id = {i: s for s, i in self.specials.items()}
        special = {
            key: by_id[i] for key, i in (("bos_token", self.bos), ("eos_token", self.eos), ("pad_token", self.pad))
            if i is not None
        }  # fmt: skip
        config = {
            "added_tokens_decoder": {str(i): {"content": s} for i, s in by_id.items()},
            "promptkit": {"name": self.name, "encoder": list(self.encoder.identity), "notes": list(self.notes)},
            **special,
        }
        for name, data in self.encoder.files().items():
            (directory / name).write_bytes(data)
        text = json.dumps(config, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
        (directory / "tokenizer_config.json").write_text(text, encoding="utf-8", newline="\n")

    def __repr__(self) -> str:
        return f"<Tokenizer {self.name}: {self.n_vocab} ids, {len(self.specials)} special, {self.sha256[:12]}>"


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def placeholder(i: int) -> bytes:
    """Return what is shown for an id that the table lacks."""
    return b"<|unknown_id_%d|>" % i


@lru_cache(maxsize=16)
def _split_at(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("(" + "|".join(re.escape(n) for n in sorted(names, key=lambda n: (-len(n), n))) + ")")


def split_at(names: Mapping[str, Any] | Sequence[str]) -> re.Pattern[str]:
    """Return a pattern whose `split` cuts a text at each of the `names` and keeps them (odd positions)."""
    return _split_at(tuple(names))


# ---- loading


def load_tokenizer(where: str | Path) -> Tokenizer:
    """Return the tokenizer of a model directory, of one tokenizer file, of a cached tiktoken encoding, or "words".

    Raises UsageError where nothing is there, InputError where the content cannot be used. Never downloads.
    """
    if str(where) == "words":
        return words_tokenizer()
    path = Path(where)
    if path.is_dir():
        return _load_directory(path)
    if path.exists():
        return _load_file(path)
    if str(where) in _ENCODINGS:
        return _load_cached(str(where))
    if _looks_like_path(str(where)):
        raise UsageError(
            f"tokenizer {str(where)!r}: there is no such file or directory",
            hint="give a model directory, tiktoken.model, a .tiktoken file or tokenizer.json",
        )
    raise UsageError(
        f"unknown tokenizer {str(where)!r}: neither a path nor a tiktoken encoding (nothing is downloaded)",
        hint=suggest(str(where), [*_ENCODINGS, "words"]) + "; or a model directory, tiktoken.model or tokenizer.json",
    )


def words_tokenizer() -> Tokenizer:
    """Return the built-in splitter into words and symbols for mixes that hold text only."""
    tokenizer = Tokenizer({}, {}, name="words", encoder=WordEncoder())
    tokenizer.n_vocab = WORDS_VOCAB
    tokenizer._known = np.ones(WORDS_VOCAB + 1, bool)
    tokenizer._known[-1] = False
    return tokenizer


def find_tokenizer(tree_root: Path, tokenizer_dirs: Sequence[str], given: str | None) -> Tokenizer | None:
    """Return the `given` tokenizer, else the first that loads of `tokenizer_dirs` (relative to the root), else None.

    If directories were found but none loads, the first error is raised: a broken tokenizer must not look like none.
    """
    if given is not None:
        return load_tokenizer(given)
    first: InputError | UsageError | None = None
    for directory in tokenizer_dirs:
        try:
            return _load_directory(Path(tree_root) / directory)
        except (InputError, UsageError) as error:
            first = first or error
    if first is not None:
        raise first
    return None


def _looks_like_path(where: str) -> bool:
    return "/" in where or "\\" in where or where.startswith(".") or bool(re.search(r"\.(model|tiktoken|json)$", where))


def _load_directory(path: Path) -> Tokenizer:
    """Prefer ranks to tokenizer.json: beside a Kimi model the latter is often somebody's conversion."""
    config = read_config(path)
    ours = config.get("promptkit")
    if isinstance(ours, dict) and ours.get("encoder", [""])[0] == "words":
        return words_tokenizer()
    ranks = sorted(path.glob("*.tiktoken"))
    for file in (
        path / "tiktoken.model",
        *ranks,
        *(path / n for n in ("tokenizer.json", "tekken.json", "tokenizer.model")),
    ):
        if file.exists() or file.is_symlink():
            return _load_file(file, config)
    raise UsageError(
        f"tokenizer directory {path}: no tokenizer file in it",
        hint="expected tiktoken.model, *.tiktoken, tokenizer.json, tekken.json or tokenizer.model",
    )


def _load_file(path: Path, config: dict[str, Any] | None = None) -> Tokenizer:
    config = read_config(path.parent) if config is None else config
    data = read_bytes(path)
    if path.name == "tokenizer_config.json":
        return _load_directory(path.parent)
    if data[:1] == b"{":
        source = read_json(path, data)
        if "vocab" in source and "config" in source:
            return _from_tekken(path, source)
        return _from_json(path, source, config)
    if data[:1] == b"\n" and ".model" in path.name:  # protobuf: field 1, length-delimited
        return _from_json(path, sentencepiece_to_json(path, data), config)
    return _from_ranks(path, data, config)


def _named(config: dict[str, Any], key: str) -> str | None:
    value = config.get(key)
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _family(specials: Mapping[str, int], default: str) -> str:
    return next((family for marker, family in _FAMILIES if marker in specials), default)


def _with_reserved(specials: dict[str, int]) -> dict[str, int]:
    """Name what Kimi leaves unnamed: the 256 ids from the first special one are `<|reserved_token_N|>`."""
    if "<|im_middle|>" not in specials:
        return specials
    first, taken = min(specials.values()), set(specials.values())
    block = range(first, first + 256)
    return {**specials, **{f"<|reserved_token_{i}|>": i for i in block if i not in taken}}


def _build(
    table: dict[int, bytes] | Callable[[], dict[int, bytes]], specials: dict[str, int], config: dict[str, Any],
    default: str, encoder: Callable[[str], Encoder], notes: Sequence[str] = (),
) -> Tokenizer:  # fmt: skip
    ours = config.get("promptkit")
    ours = ours if isinstance(ours, dict) else {}
    name = str(ours.get("name") or _family(specials, default))
    twice = [] if ours or callable(table) else sorted(
        i for i in specials.values() if i in table and table[i].decode("utf-8", "replace") not in specials
    )  # fmt: skip
    if twice:
        notes = [*notes, f"{len(twice)} special ids, the first is {twice[0]}, also stand for ordinary tokens"]
    pad, eos, bos = (_named(config, key) for key in ("pad_token", "eos_token", "bos_token"))
    notes = ours.get("notes") or notes
    return Tokenizer(table, specials, name=name, encoder=encoder(name), pad=pad, eos=eos, bos=bos, notes=notes)


def _from_json(path: Path, source: dict[str, Any], config: dict[str, Any]) -> Tokenizer:
    table, added = json_table(path, source)
    spaces = {t["content"] for t in space_tokens(source)}
    named = {name: i for name, i in config_specials(config).items() if name not in spaces}
    return _build(table, _with_reserved({**added, **named}), config, "bpe", lambda name: JsonEncoder(source))


def _from_tekken(path: Path, source: dict[str, Any]) -> Tokenizer:
    ranks, specials, pattern = tekken_tables(path, source)
    config = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return _build({i: t for t, i in ranks.items()}, specials, config, "mistral", lambda _: RankEncoder(ranks, pattern))


def _from_ranks(path: Path, data: bytes, config: dict[str, Any]) -> Tokenizer:
    ours = config.get("promptkit") or {}
    if ours.get("encoder") and (file := RankFile.of(path, data)):  # `Tokenizer.save` wrote it, and all is settled
        specials = config_specials(config)
        return _build(file.by_rank, specials, config, "", lambda _: RankEncoder(file, ours["encoder"][1]))
    ranks = parse_ranks(path, data)
    specials, notes, default = config_specials(config), [], "tiktoken"
    if path.stem in _ENCODINGS:
        default = path.stem
        specials = specials or dict(_ENCODINGS[path.stem][2])
    if not specials and len(ranks) in _ALONE:
        model, known = _ALONE[len(ranks)]
        specials = dict(known)
        notes.append(f"no tokenizer_config.json beside {path.name}: the special ids of {model} are assumed")
    elif not specials:
        notes.append(f"no tokenizer_config.json beside {path.name}: no special token is known")
    specials = _with_reserved(specials)

    def encoder(name: str) -> Encoder:
        pattern = "qwen3.5" if name == "qwen" and len(ranks) > _QWEN3_RANKS else _PATTERN_OF.get(name, "cl100k")
        return RankEncoder(ranks, ours.get("encoder", ["", ""])[1] or pattern)

    return _build({r: t for t, r in ranks.items()}, specials, config, default, encoder, notes)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _load_cached(name: str) -> Tokenizer:
    """Read an encoding from tiktoken's cache: a file named by the SHA-1 of the address it once came from."""
    file, sha256, _ = _ENCODINGS[name]
    address = f"https://openaipublic.blob.core.windows.net/encodings/{file}.tiktoken"
    folder = next((os.environ[k] for k in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR") if k in os.environ), None)
    folder = os.path.join(tempfile.gettempdir(), "data-gym-cache") if folder is None else folder
    path = Path(folder) / hashlib.sha1(address.encode()).hexdigest()
    if not folder or not path.is_file():
        raise UsageError(
            f"tokenizer {name!r}: not in tiktoken's cache ({path if folder else 'the cache is switched off'}), "
            "and nothing is downloaded",
            hint=f"give the file {file}.tiktoken itself, or set TIKTOKEN_CACHE_DIR to a folder that holds it",
        )
    data = read_bytes(path)
    if _sha256(data) != sha256:
        raise InputError(f"tokenizer {name!r}: the cached file {path} is not the published one", hint="delete it")
    config = {"promptkit": {"name": name}, "added_tokens_decoder": {str(i): s for s, i in _ENCODINGS[name][2].items()}}
    return _from_ranks(path, data, config)


# A special token that only one family has -> the family. The order decides: Kimi keeps Llama's header tokens.
_FAMILIES = (
    ("<|im_middle|>", "kimi"),
    ("<|channel|>", "harmony"),
    ("[gMASK]", "glm"),
    ("<|im_start|>", "qwen"),
    ("<｜User｜>", "deepseek"),
    ("<|eot_id|>", "llama3"),
    ("<start_of_turn>", "gemma"),
    ("[INST]", "mistral"),
)
_PATTERN_OF = {"kimi": "kimi", "qwen": "qwen", "harmony": "o200k", "o200k_base": "o200k", "o200k_harmony": "o200k",
               "r50k_base": "r50k", "p50k_base": "r50k"}  # fmt: skip

# Special ids to fall back on where a rank file lies alone, by its number of ranks. Said in `notes`, because some
# public conversions renumber them: the user's own tokenizer_config.json is always better.
_KIMI = {
    **{"[BOS]": 163584, "[EOS]": 163585, "<|im_end|>": 163586, "<|im_user|>": 163587, "<|im_assistant|>": 163588},
    **{"<|start_header_id|>": 163590, "<|end_header_id|>": 163591, "[EOT]": 163593, "<|im_system|>": 163594},
    **{"<|tool_calls_section_begin|>": 163595, "<|tool_calls_section_end|>": 163596, "<|tool_call_begin|>": 163597},
    **{"<|tool_call_argument_begin|>": 163598, "<|tool_call_end|>": 163599, "<|im_middle|>": 163601},
    **{"<|media_begin|>": 163602, "<|media_content|>": 163603, "<|media_end|>": 163604, "<|media_pad|>": 163605},
    **{"<think>": 163606, "</think>": 163607, "[UNK]": 163838, "[PAD]": 163839},
}
_QWEN_NAMES = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>"
)
_QWEN35_NAMES = (
    f"{_QWEN_NAMES} <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> "
    "<|audio_pad|>"
)
_QWEN3_RANKS = 151643
_ALONE: dict[int, tuple[str, dict[str, int]]] = {
    163584: ("Kimi K2", _KIMI),
    _QWEN3_RANKS: ("Qwen3", {name: _QWEN3_RANKS + i for i, name in enumerate(_QWEN_NAMES.split())}),
    248044: ("Qwen3.5", {name: 248044 + i for i, name in enumerate(_QWEN35_NAMES.split())}),
}

# tiktoken's own encodings: sha256 of the file and the special ids. Read from tiktoken's cache, never fetched.
_ENDOFTEXT = "<|endoftext|>"
_ENCODINGS: dict[str, tuple[str, str, dict[str, int]]] = {
    "r50k_base": ("r50k_base", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930", {_ENDOFTEXT: 50256}),
    "p50k_base": ("p50k_base", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069", {_ENDOFTEXT: 50256}),
    "cl100k_base": (
        "cl100k_base",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        {_ENDOFTEXT: 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260,
         "<|endofprompt|>": 100276},
    ),
    "o200k_base": (
        "o200k_base",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        {_ENDOFTEXT: 199999, "<|endofprompt|>": 200018},
    ),
    "o200k_harmony": (
        "o200k_base",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        {"<|startoftext|>": 199998, _ENDOFTEXT: 199999, "<|return|>": 200002, "<|constrain|>": 200003,
         "<|channel|>": 200005, "<|start|>": 200006, "<|end|>": 200007, "<|message|>": 200008, "<|call|>": 200012,
         "<|endofprompt|>": 200018},
    ),
}  # fmt: skip
