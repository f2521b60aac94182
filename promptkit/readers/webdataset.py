"""webdataset: a tar in which the members of one sample share a name up to its first dot.

    a/0001.json   {"messages": [...]}        a/0001.input_ids.npy   a/0001.loss_mask.npy     -> one row
    a/0002.txt    some text                                                                  -> the next

The tar is read as a stream, packed or not, and nothing is ever extracted: names group members and end up nowhere else,
so that `../../x` is only an odd name. Links, devices and archives inside are passed over. Members that webdataset would
unpickle (`.pkl`, `.pyd`, ...) are refused where nothing else in their sample holds a conversation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptkit.readers.fields import SAMPLE, WANTED
from promptkit.readers.npy import open_array
from promptkit.readers.records import BadFile, BadRow, Fault, Limits, Record
from promptkit.readers.schemas import to_record
from promptkit.readers.streams import Stream
from promptkit.readers.values import clean, loads

BLOCK = 512
MAX_NAME = 1 << 16  # of a long name or a pax header
PICKLES = ("pkl", "pickle", "pyd", "pth", "pt", "ten")
TEXTS = ("txt", "text", "transcript")


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    kind: bytes
    size: int


def read(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the samples of one tar as rows."""
    stream = Stream.of(path, limits)
    row = 0
    key: str | None = None
    sample: dict[str, bytes | None] = {}
    size = 0
    for member in _members(stream):
        if member.kind not in (b"0", b"\0") or member.name.rpartition("/")[2].startswith("."):
            stream.skip(member.size, "a member")
        else:
            folder, _, name = member.name.rpartition("/")
            base, _, extension = name.partition(".")
            if key is not None and key != f"{folder}/{base}":
                yield _row(row, key, sample, limits)
                row, sample, size = row + 1, {}, 0
            key = f"{folder}/{base}"
            size += member.size
            if size > limits.record_bytes or not _read_extension(extension):
                stream.skip(member.size, "a member")
                sample[extension.lower()] = None
            else:
                sample[extension.lower()] = stream.take(member.size, "a member")
        stream.skip(-member.size % BLOCK, "a member")
    if key is not None:
        yield _row(row, key, sample, limits)


def _read_extension(extension: str) -> bool:
    return extension.lower().rpartition(".")[2] in ("json", "npy", *TEXTS)


def _row(row: int, key: str, sample: dict[str, bytes | None], limits: Limits) -> Record | Fault:
    try:
        marks: set[str] = set()
        fields: dict[str, Any] = {"id": key.rpartition("/")[2][:256]}
        for extension, data in sample.items():
            if data is not None:
                fields |= _decoded(extension, data, limits, marks)
            elif _read_extension(extension):
                raise BadRow(f"record larger than {limits.record_bytes} bytes (--record-bytes)")
        columns = {column for _, column in limits.hints.fields}
        if SAMPLE.isdisjoint(fields) and columns.isdisjoint(fields):
            pickle = next((e for e in sample if e.rpartition(".")[2] in PICKLES), None)
            if pickle is not None:
                raise BadRow(f"refused: a .{pickle[:40]} member can run code; nothing was run")
            raise BadRow(f"no known field: members {', '.join(sorted(e[:40] for e in sample))[:200]}")
        return to_record(row, fields, limits, sorted(marks))
    except BadRow as error:
        return Fault(row, error.status, str(error))


def _decoded(extension: str, data: bytes, limits: Limits, marks: set[str]) -> dict[str, Any]:
    """Return the fields of one member: those of a JSON object, or one that is named as the member is."""
    name, _, kind = extension.rpartition(".")
    if kind == "npy":
        try:
            value: Any = open_array(Stream(iter([data]))).whole(limits)
        except BadFile as error:
            raise BadRow(f".{extension[:40]}: {error}") from error
        return {name or "input_ids": value}
    if kind == "json":
        value, more = loads(data, limits)
        marks.update(more)
        if not name and isinstance(value, dict):
            return value
        return {name if name in WANTED else "messages": value}
    try:
        return {name or "text": clean(data.decode("utf-8"), marks)}
    except UnicodeDecodeError:
        raise BadRow(f".{extension[:40]}: not UTF-8") from None


def _members(stream: Stream) -> Iterator[_Member]:
    """Yield the members; the caller takes their bytes and the padding. Raises BadFile at what is no header."""
    long_name: str | None = None
    pax_size: int | None = None
    while True:
        header = stream.some(BLOCK)
        if len(header) < BLOCK:
            raise BadFile("the tar is cut: its end is missing")
        if not header.strip(b"\0"):
            return
        if _number(header[148:156]) != sum(header[:148]) + 8 * 32 + sum(header[156:]):
            raise BadFile("a damaged tar header: its checksum differs")
        kind, size = header[156:157], _number(header[124:136])
        if kind in (b"L", b"K", b"x", b"g"):
            if size > MAX_NAME:
                raise BadFile(f"a tar header of {size} bytes, more than {MAX_NAME}")
            data = stream.take(size, "a header")
            stream.skip(-size % BLOCK, "a header")
            if kind == b"L":
                long_name = data.rstrip(b"\0").decode("utf-8", "replace")
            elif kind == b"x":
                pax = _pax(data)
                long_name = pax.get("path", long_name)
                pax_size = int(pax["size"]) if pax.get("size", "").isdigit() and len(pax["size"]) < 19 else None
            continue
        name = header[:100].rstrip(b"\0").split(b"\0")[0]
        prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
        plain = (prefix + b"/" + name if prefix else name).decode("utf-8", "replace")
        yield _Member(plain if long_name is None else long_name, kind, size if pax_size is None else pax_size)
        long_name = pax_size = None


def _number(field: bytes) -> int:
    """A number of a tar header: octal text, or binary behind a first byte of 0x80."""
    if field[:1] == b"\x80":
        value = int.from_bytes(field[1:], "big")
        if value >= 1 << 62:
            raise BadFile("a damaged tar header: a size without bounds")
        return value
    text = field.strip(b" \0")
    if not text:
        return 0
    if text.strip(b"01234567"):
        raise BadFile("a damaged tar header: a number that is none")
    return int(text, 8)


def _pax(data: bytes) -> dict[str, str]:
    """The `length key=value` lines of a pax header."""
    out: dict[str, str] = {}
    while data:
        length, _, _ = data[:20].partition(b" ")
        n = int(length) if length.isdigit() else 0
        if not len(length) + 2 <= n <= len(data):
            return out
        key, _, value = data[len(length) + 1 : n - 1].decode("utf-8", "replace").partition("=")
        out[key] = value
        data = data[n:]
    return out
