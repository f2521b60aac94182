"""Which reader a file needs, told by its first bytes; the extension is asked last.

read(path) -> Verdict(format="torch")                       a shard
              Verdict(status="skipped", reason="not data")   an entry of the account
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from promptkit.readers import llmc
from promptkit.readers.companions import kind_of
from promptkit.readers.limits import packing, peek, unpack
from promptkit.readers.pickles import Machine
from promptkit.readers.records import BadFile, Limits
from promptkit.readers.widths import ASK, SAMPLE_BYTES, width_of

HEAD = 512
JSON_EXTENSIONS = ("json", "jsonl", "ndjson", "traj")
DATA_EXTENSIONS = ("parquet", "arrow", "feather", "ckpt", "pt", "pth", "pkl", "pickle", "safetensors")
UNREAD_EXTENSIONS = ("npz", "idx", "tar", "h5", "hdf5")
# Compressions that MDS and others may use and that are not read; Brotli's first bytes say nothing.
_UNREAD_PACKINGS = {"br": "Brotli", "snappy": "Snappy", "lz4": "LZ4", "lzo": "LZO"}
_UNREAD_FRAMES = {b"\xff\x06\x00\x00sNaPpY": "Snappy", b"\x04\x22\x4d\x18": "LZ4"}
HEADERLESS = ("bin", "npy")  # where the first bytes say nothing, the name does: token ids, as wide as they look
TORCH_LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
# A JSON array begins with a value, a Markdown link does not.
_JSON = re.compile(rb'(?:\xef\xbb\xbf)?\s*(?:\{\s*(?:"|\}|$)|\[\s*(?:[\[{"\d-]|\]|$))')
# Containers that hold data promptkit does not read: losing them is a failure, not a skip.
_UNREAD = (
    (0, b"MMIDIDX\0\0", "a Megatron index without its .bin"),
    (0, b"TNTIDX\0\0", "a fairseq index of the old layout"),
    (0, b"\x89HDF\r\n\x1a\n", "HDF5"),
    (0, b"GGUF", "GGUF"),
    (0, b"SQLite format 3\0", "an SQLite database"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    format: str = ""  # a key of READERS, or empty
    status: Literal["skipped", "failed"] = "skipped"
    reason: str = ""
    note: str = ""  # evidence for a format or width that no header states


def unfinished(name: str, n_bytes: int) -> str | None:
    """Return why a file is not looked into at all, told by name and size, or None."""
    if n_bytes == 0 and not name.endswith(".lock"):
        return "empty file"
    if name.endswith(".lock"):
        return "lock file"
    if name.startswith("._") or name == ".DS_Store":
        return "left by macOS, not data"
    if name.endswith((".tmp", ".incomplete", ".part")) or name.startswith("tmp"):
        return "an unfinished write"
    return None


def detect(path: Path, limits: Limits, told: str = "") -> Verdict:
    """Return the format of a regular file; `told` is what an index says of it. Raises OSError from opening it."""
    with open(path, "rb", buffering=0) as file:
        head = file.read(HEAD)
        if packed := _unread_packing(path.name, head):
            return Verdict(status="failed", reason=f"packed with {packed}, not read: unpack it, or write it with zstd")
        if told:
            kind = packing(head)
            return Verdict(f"{told}.{kind}" if kind else told)
        beside = kind_of(path)
        if beside == "ids":
            return _headerless(path, limits)
        if beside is not None:
            return Verdict(beside)
        kind = packing(head)
        if kind is None:
            return _detect(path, path.name, head, file, limits)
        rest: Iterator[bytes] = iter(lambda: file.read(1 << 14), b"")
        name, suffix = path.name.removesuffix(f".{kind}").removesuffix(".bz2").removesuffix(".zstd"), kind
        damage = None
        try:
            inner, rest = peek(unpack(kind, _chain(head, rest), limits), HEAD)
            if packing(inner) is not None:
                inner, _ = peek(unpack(packing(inner) or "", rest, limits), HEAD)
                if packing(inner) is not None:
                    return Verdict(status="failed", reason="packed more than twice: unpack it first")
        except BadFile as error:
            inner, damage = b"", str(error)  # within its first bytes
        verdict = _detect(path, name, inner, None, limits)
        if not verdict.format:
            return verdict if damage is None else Verdict(status="failed", reason=damage)
        if verdict.format in ("parquet", "arrow-file", "safetensors", "npz"):
            return Verdict(status="failed", reason=f"{verdict.format} inside {suffix}: unpack it first")
        return Verdict(f"{verdict.format}.{suffix}", note=verdict.note)


def _unread_packing(name: str, head: bytes) -> str | None:
    """Return the name of a compression that is not read, told by magic bytes or, where there are none, by the name."""
    framed = next((what for magic, what in _UNREAD_FRAMES.items() if head.startswith(magic)), None)
    return framed or _UNREAD_PACKINGS.get(_extension(name))


def _chain(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from rest


def _extension(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name else ""


def _detect(path: Path, name: str, head: bytes, file: io.FileIO | None, limits: Limits) -> Verdict:
    extension = _extension(name)
    if head.startswith(b"PK\x03\x04"):
        # whether torch wrote it is in its directory, at the end; the reader looks there
        first = head[30 : 30 + int.from_bytes(head[26:28], "little")]
        if extension == "npz" or first.endswith(b".npy"):
            return Verdict("npz")
        if extension in ("zip", "docx", "xlsx"):
            return Verdict(reason=f"a ZIP archive (.{extension}), not read")
        return Verdict("torch")
    if head.startswith(b"\xff\xff\xff\xff"):
        return Verdict("arrow-stream")
    if head.startswith(b"ARROW1"):
        return Verdict("arrow-file")
    if head.startswith(b"PAR1"):
        return Verdict("parquet")
    if head.startswith(b"PARE"):
        return Verdict(status="failed", reason="Parquet with an encrypted footer: decrypt it first")
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 100_000_000:
        return Verdict("safetensors")
    if head.startswith(b"\x93NUMPY"):
        return Verdict("npy")
    if head[257:262] == b"ustar":
        return Verdict("tar")
    if len(head) >= 8 and int.from_bytes(head[:4], "little") in llmc.WIDTHS:
        return Verdict("llmc")
    if int.from_bytes(head[:4], "little") == llmc.EVALUATION:
        return Verdict(reason="an llm.c evaluation file, not samples")
    if extension == "mds":
        return Verdict("mds")
    for offset, magic, what in _UNREAD:
        if head[offset : offset + len(magic)] == magic:
            return Verdict(status="failed", reason=f"{what}: not read by this version, convert it to JSON lines")
    if head.startswith(TORCH_LEGACY):
        return Verdict(status="failed", reason="torch's format before 1.6: load it yourself and save it again")
    if head[:1] == b"\x80" and head[1:2] in (b"\x00", b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"):
        return Verdict(status="failed", reason=_pickle_reason(head, file))
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) and extension in JSON_EXTENSIONS:
        return Verdict("jsonl")  # UTF-16: the reader refuses it and says how to convert it
    if _JSON.match(head) or extension in JSON_EXTENSIONS:
        return Verdict("jsonl")
    if extension in HEADERLESS:
        return _headerless(path, limits) if file is not None else _packed_ids(limits)
    if extension in UNREAD_EXTENSIONS:
        return Verdict(
            status="failed", reason=f"a .{extension} file: not read by this version, convert it to JSON lines"
        )
    if extension in DATA_EXTENSIONS:
        return Verdict(status="failed", reason=f"named .{extension}, but its first bytes are those of no known format")
    return Verdict(reason="not data")


def _headerless(path: Path, limits: Limits) -> Verdict:
    try:
        with open(path, "rb") as file:
            width = width_of(file.read(SAMPLE_BYTES), path.stat().st_size, limits.hints)
    except BadFile as error:
        return Verdict(status=error.status, reason=str(error))
    return Verdict("ids", note=width.why)


def _packed_ids(limits: Limits) -> Verdict:
    if limits.hints.dtype is None:
        return Verdict(status="failed", reason=f"packed ids without a header; {ASK}, or unpack them")
    return Verdict("ids", note=f"ids are {limits.hints.dtype}, as --dtype says")


def _pickle_reason(head: bytes, file: io.FileIO | None) -> str:
    """Say what a pickle would call, found without running it."""
    more = file.read(1 << 22) if file is not None else b""
    try:
        Machine(head + more).run()
    except BadFile as error:
        if "refused" in str(error):
            return str(error)
    return "refused: a Python pickle, which can run code; save the rows as JSON lines, Parquet or safetensors"
