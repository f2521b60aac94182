"""The sizes that a Parquet footer states, read without pyarrow.

Asking pyarrow for one column's metadata (`row_group(i).column(j)`) ends the whole process where the footer's own tables
disagree: a C++ exception that nothing catches (seen in 26.0; one flipped bit is enough). Its reader proper raises
as it should, but by then a page may have been unpacked. So the few numbers that a bomb shows in are taken from the
footer here, which is thrift in its compact protocol: field 4 of the file is the row groups, field 1 of a row group its
columns, field 3 of a column its metadata (3 path, 5 values, 6 bytes unpacked, 7 bytes packed).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptkit.readers.records import BadFile

MAX_FOOTER = 64 << 20
_WANTED: dict[int, Any] = {4: {1: {3: {3: None, 5: None, 6: None, 7: None}}}}
_DAMAGED = "damaged Parquet footer"


@dataclass(frozen=True, slots=True)
class ColumnSize:
    name: str  # of the top-level column
    n_values: int
    plain: int  # bytes
    packed: int  # bytes


def column_sizes(path: Path) -> list[list[ColumnSize]]:
    """Return for each row group the sizes of its columns. Raises BadFile where the footer is no whole one."""
    try:
        root = _Walk(_footer(path)).struct(_WANTED, 0)
        return [[_size(c.get(3, {})) for c in group.get(1, [])] for group in root.get(4, [])]
    except (IndexError, ValueError, TypeError, AttributeError) as error:
        raise BadFile(_DAMAGED) from error


def count_rows(path: Path) -> int | None:
    """Return the number of rows that the footer states (field 3 of the file); None where it cannot be read."""
    try:
        n = _Walk(_footer(path)).struct({3: None}, 0).get(3)
    except (BadFile, OSError, IndexError, ValueError, TypeError, AttributeError):
        return None
    return n if isinstance(n, int) and n >= 0 else None


def _footer(path: Path) -> bytes:
    with open(path, "rb") as file:
        end = file.seek(0, 2) - 8
        file.seek(max(end, 0))
        length = int.from_bytes(file.read(4), "little")
        if not 0 < length <= end - 4:
            raise BadFile(f"{_DAMAGED}: it is longer than the file")
        if length > MAX_FOOTER:
            raise BadFile(f"a Parquet footer of {length} bytes, more than {MAX_FOOTER}")
        file.seek(end - length)
        return file.read(length)


def _size(meta: dict[int, Any]) -> ColumnSize:
    path = meta.get(3) or [b""]
    n_values, plain, packed = (meta.get(k, 0) for k in (5, 6, 7))
    if min(n_values, plain, packed) < 0:
        raise ValueError("a size below 0")
    return ColumnSize(path[0].decode("utf-8", "replace"), n_values, plain, packed)


class _Walk:
    """Walks thrift values; what is not wanted is passed over and costs no memory."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("an integer beyond 64 bits")

    def integer(self) -> int:
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def struct(self, wanted: dict[int, Any] | None, depth: int) -> dict[int, Any]:
        if depth > 32:
            raise ValueError("nested too deep")
        out: dict[int, Any] = {}
        number = 0
        while head := self.data[self.at]:
            self.at += 1
            number = number + (head >> 4) if head >> 4 else self.integer()
            keep = wanted is not None and number in wanted
            value = self.value(head & 15, wanted.get(number) if wanted else None, keep, depth, alone=True)
            if keep:
                out[number] = value
        self.at += 1
        return out

    def value(self, kind: int, wanted: dict[int, Any] | None, keep: bool, depth: int, *, alone: bool) -> Any:
        if kind in (1, 2):  # a bool alone is its type; in a list it is a byte
            self.at += not alone
            return kind == 1
        if kind == 3:
            self.at += 1
            return None
        if kind in (4, 5, 6):
            return self.integer()
        if kind == 7:
            self.at += 8
            return None
        if kind == 8:
            length = self.varint()
            start, self.at = self.at, self.at + length
            if self.at > len(self.data):
                raise ValueError("cut")
            return self.data[start : self.at] if keep else None
        if kind in (9, 10):
            head = self.data[self.at]
            self.at += 1
            n = head >> 4 if head >> 4 < 15 else self.varint()
            if n > len(self.data) - self.at:  # an element takes a byte at least
                raise ValueError("cut")
            items: list[Any] | None = [] if keep else None
            for _ in range(n):
                item = self.value(head & 15, wanted, keep, depth + 1, alone=False)
                if items is not None:
                    items.append(item)
            return items
        if kind == 11:
            n = self.varint()
            kinds = self.data[self.at] if n else 0
            self.at += bool(n)
            if n > len(self.data) - self.at:
                raise ValueError("cut")
            for _ in range(n):
                self.value(kinds >> 4, None, False, depth + 1, alone=False)
                self.value(kinds & 15, None, False, depth + 1, alone=False)
            return None
        if kind == 12:
            return self.struct(wanted, depth + 1)
        raise ValueError("an unknown type")
