"""Where the entries of a ZIP archive lie, read with one look at its end.

    archive/data/0 -> Entry(filename="archive/data/0", header_offset=854, file_size=16056, ...)

`zipfile` seeks and reads five times and makes a large object of each entry: 40 microseconds, which is long for a file
of one row. `entries` answers only where nothing is left to interpret: directory and end records stand behind each other
at the end of the file and agree, no entry has an extra field or a comment, all names are ASCII. torch writes nothing
else. Of any other archive it says nothing, and `zipfile` is asked.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Sequence
from typing import IO, NamedTuple

from promptkit.readers.records import BadFile

TAIL = 4096  # bytes: the end of an archive of some fifty entries


class Entry(NamedTuple):
    """What is needed of a `zipfile.ZipInfo`, under its names."""

    filename: str
    header_offset: int
    file_size: int
    compress_size: int
    CRC: int
    compress_type: int


# The record at the end, and what a file with a 64-bit record has before it: that record, and a pointer to it.
_END = struct.Struct("<4sHHHHLLH")
_END_64 = struct.Struct("<4sQ4xLLQQQQ")
_POINTER_64 = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s2xB3xH4xLLLHHH8xL")
_NEWEST = 63  # the last version of the format that zipfile takes


def entries(file: IO[bytes], size: int) -> list[Entry] | None:
    """Return the entries of the archive that ends at `size`, or None where zipfile has to look."""
    try:
        file.seek(max(0, size - TAIL))
        tail = file.read(TAIL)
        return _parsed(tail, size - len(tail))
    except (struct.error, UnicodeDecodeError):
        return None


def _parsed(tail: bytes, base: int) -> list[Entry] | None:
    stop = len(tail) - _END.size
    if stop < 0:
        return None
    mark, disk, first_disk, n_here, n, length, start, n_comment = _END.unpack_from(tail, stop)
    if mark != b"PK\5\6" or disk or first_disk or n_here != n or n_comment:
        return None
    pointer, record = stop - _POINTER_64.size, stop - _POINTER_64.size - _END_64.size
    if tail[max(0, pointer) : pointer + 4] == b"PK\6\7":
        if record < 0 or _POINTER_64.unpack_from(tail, pointer) != (b"PK\6\7", 0, base + record, 1):
            return None
        if _END_64.unpack_from(tail, record) != (b"PK\6\6", _END_64.size - 12, 0, 0, n, n, length, start):
            return None
        stop = record
    at = start - base
    if at < 0 or at + length != stop:
        return None
    found = []
    while at < stop:
        mark, version, method, crc, packed, plain, n_name, n_extra, n_comment, offset = _ENTRY.unpack_from(tail, at)
        at += _ENTRY.size + n_name
        if mark != b"PK\1\2" or version > _NEWEST or n_extra or n_comment or at > stop:
            return None
        found.append(Entry(tail[at - n_name : at].decode("ascii"), offset, plain, packed, crc, method))
    names = "".join([e.filename for e in found])
    # zipfile ends a name at a zero byte, and on some systems changes backslashes
    return None if len(found) != n or "\0" in names or "\\" in names else found


def check_apart(entries: Sequence[Entry | zipfile.ZipInfo]) -> None:
    """Raise BadFile where entries overlap: a small file could then unpack to a large one."""
    end = 0
    for begin, length in sorted([(e.header_offset, e.compress_size) for e in entries]):
        if begin < end:
            raise BadFile("refused: entries of its ZIP overlap")
        end = begin + 30 + length
