"""JSON and JSON lines, plain or packed (gz, zst, xz, bz2).

    {"input_ids": [163587, 2482, 163601], "loss_mask": [0, 0, 0]}

Extensions lie (`.json` often holds JSON lines and the other way round), so the bytes decide between four forms: one
value per line; one array of rows; one object with the rows in a list under `data`, `rows`, ...; values that follow each
other in any layout. In the first form a bad line costs itself and nothing else: the next newline is a fresh start.
Lines end at `\\n` alone (U+2028 is text). A line is held only up to `limits.record_bytes`; the rest of a longer one is
dropped as it comes in.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from promptkit.readers.fields import is_sample
from promptkit.readers.limits import CHUNK, plain_chunks
from promptkit.readers.records import BadFile, BadRow, Fault, Limits, Record
from promptkit.readers.schemas import to_record
from promptkit.readers.values import NOT_JSON, OPEN, Scanner, loads

WRAPPERS = ("data", "rows", "train", "samples", "examples", "items", "instances", "conversations", "dataset", "records")
HEAD = 4 << 20  # bytes in which the form of the file must show
MANY = 8 << 20  # bytes, below which no list of numbers is long
_WRAPPER_SET = frozenset(WRAPPERS)
BLANK = b" \t\r\n"


def read(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of one file; row numbers count values from 0. Raises BadFile for the rest of a broken file."""
    row = 0
    for value in _values(plain_chunks(path, limits), limits):
        if isinstance(value, BadRow):
            yield Fault(row, "failed", str(value))
            row += 1
            continue
        try:
            if len(value) > MANY:
                _check_numbers(value, limits)
            parsed, marks = loads(value, limits)
        except BadRow as error:
            yield Fault(row, error.status, str(error))
            row += 1
            continue
        for fields in _rows_in(parsed, limits):
            yield _one(row, fields, limits, marks)
            row += 1


def _check_numbers(value: bytes | bytearray, limits: Limits) -> None:
    """Refuse a long list of numbers before it becomes Python objects of four times its size."""
    if 8 * value.count(b",") > limits.record_bytes:
        raise _too_large(limits)


def _one(row: int, fields: Any, limits: Limits, marks: tuple[str, ...]) -> Record | Fault:
    if isinstance(fields, list) and fields and isinstance(fields[0], dict):
        fields = {"messages": fields}  # a conversation without a name around it
    if not isinstance(fields, dict):
        return Fault(row, "failed", f"no known field: the row is a {type(fields).__name__}")
    try:
        return to_record(row, fields, limits, marks)
    except BadRow as error:
        return Fault(row, error.status, str(error))


def _rows_in(value: Any, limits: Limits) -> list[Any]:
    """Return the rows that one value stands for: itself, unless it wraps a list of rows."""
    if isinstance(value, dict) and not _WRAPPER_SET.isdisjoint(value):
        for key in WRAPPERS:
            rows = value.get(key)
            # a list of turns is no list of rows, though `text` is a field of both
            if not (isinstance(rows, list) and rows and is_sample(rows[0], limits.hints)):
                continue
            if "from" in rows[0] or "role" in rows[0]:
                continue
            if not is_sample({k: None for k in value if k != key}):
                return rows
    return [value]


def _values(chunks: Iterator[bytes], limits: Limits) -> Iterator[bytes | bytearray | BadRow]:
    """Yield the bytes of each value of the file, or a BadRow in the place of one that is too large."""
    head, damage = bytearray(), None
    try:
        for chunk in chunks:
            head += chunk
            if len(head) >= (CHUNK if b"\n" in head else HEAD):
                break
    except BadFile as error:  # what came before it is still good
        damage = error
    if head.startswith(b"\xef\xbb\xbf"):
        del head[:3]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or bytes(head[:2]) in (b"{\0", b"[\0", b"\0{", b"\0["):
        raise BadFile("UTF-16 text, expected UTF-8: convert it first (iconv -f UTF-16 -t UTF-8)")
    rest = _joined(head, chunks, damage)
    yield from (_lines(rest, limits) if _is_lines(head, limits) else _elements(rest, limits))


def _joined(head: bytearray, chunks: Iterator[bytes], damage: BadFile | None) -> Iterator[bytes | bytearray]:
    yield head
    if damage is not None:
        raise damage
    yield from chunks


def _is_lines(head: bytearray, limits: Limits) -> bool:
    """Return whether the file is one value per line, told from its first two lines that are not blank."""
    lines = [line.strip(BLANK) for line in bytes(head).split(b"\n") if line.strip(BLANK)][:3]
    first, second = (*lines, b"", b"")[:2]
    if first[:1] not in (b"{", b"["):
        return True  # text: each line fails by itself
    if len(first) > limits.record_bytes:
        return False  # perhaps a whole file on one line; brackets tell its rows apart
    value = _parsed(first, limits)
    if value is not None:
        # [{...}, {...}] alone on the only line is an array of rows, on the first of many a row
        return isinstance(value, dict) or len(lines) > 1
    if first.endswith((b"[", b"{")):
        return False  # a value laid out over many lines
    # A first line that is bad by itself (cut, latin-1) is followed by a good one, or at least by one that looks whole.
    return isinstance(_parsed(second, limits), dict) or (
        first[:1] == b"{" and b"}{" not in first and second.startswith(b'{"') and second.endswith(b"}")
    )


def _parsed(line: bytes, limits: Limits) -> Any:
    try:
        return loads(line, limits)[0]
    except BadRow:
        return None


def _lines(chunks: Iterator[bytes | bytearray], limits: Limits) -> Iterator[bytes | bytearray | BadRow]:
    pending, dropping = bytearray(), False
    for chunk in chunks:
        lines = bytes(chunk).split(b"\n")
        for piece in lines[:-1]:
            if dropping:
                dropping = False
                yield _too_large(limits)
            elif pending:
                pending += piece
                if pending.strip(BLANK):
                    yield pending if len(pending) <= limits.record_bytes else _too_large(limits)
                pending = bytearray()
            elif piece.strip(BLANK):
                yield piece if len(piece) <= limits.record_bytes else _too_large(limits)
        if not dropping:
            pending += lines[-1]
            if len(pending) > limits.record_bytes:
                pending, dropping = bytearray(), True
    if dropping:
        yield _too_large(limits)
    elif pending.strip(BLANK):
        yield pending


# {"version": 1, "data": [{ : rows in a list behind nothing but plain values
_WRAPPED = re.compile(
    rb'\s*\{\s*(?:"[^"\\]{0,64}"\s*:\s*(?:"[^"\\]{0,256}"|[-+.\w]{1,32})\s*,\s*){0,16}"(?:%s)"\s*:\s*(?=\[\s*\{)'
    % b"|".join(k.encode() for k in WRAPPERS if k != "conversations")
)


def _elements(chunks: Iterator[bytes | bytearray], limits: Limits) -> Iterator[bytes | bytearray | BadRow]:
    """Yield the values of an array, of a wrapped list, or that simply follow each other.

    Only quotes, escapes and brackets are looked at. An array that does not end, or ends and goes on, is a BadFile.
    """
    first = bytes(next(chunks, b""))
    scanner = Scanner()
    base = depth = 0  # a value begins where the depth is `base`
    if first.lstrip(BLANK).startswith(b"["):
        base, depth, first = 1, 1, first.lstrip(BLANK)[1:]
    elif len(first) >= CHUNK and (wrapped := _WRAPPED.match(first)):
        base, depth, first = 2, 2, first[wrapped.end() + 1 :]
    element, large, stray = bytearray(), False, False
    for piece in itertools.chain([first], chunks):
        start = 0
        for at in scanner.brackets(piece):
            if piece[at] in OPEN:
                if depth == base:
                    if stray or piece[start:at].strip(BLANK + b","):
                        yield BadRow(NOT_JSON)
                        stray = False
                    start = at
                depth += 1
                continue
            depth -= 1
            if depth == base:
                element += piece[start : at + 1]
                yield _too_large(limits) if large or len(element) > limits.record_bytes else element
                element, large, start = bytearray(), False, at + 1
            elif depth < base:
                if stray or piece[start:at].strip(BLANK + b","):
                    yield BadRow(NOT_JSON)
                if base == 1 and (piece[at + 1 :].strip(BLANK) or next(chunks, b"").strip(BLANK)):
                    raise BadFile("the array is followed by other data")
                if base == 0:
                    raise BadFile("a bracket is closed that was never opened: the rest cannot be told apart")
                return
        if depth == base:
            stray = stray or bool(piece[start:].strip(BLANK + b","))
        elif not large:
            element += piece[start:]
            if len(element) > limits.record_bytes:
                element, large = bytearray(), True
    if depth > base or stray:
        yield _too_large(limits) if large else BadRow(NOT_JSON)
    if base:
        raise BadFile("the array is cut: its end is missing")


def _too_large(limits: Limits) -> BadRow:
    return BadRow(f"record larger than {limits.record_bytes} bytes (--record-bytes)")
