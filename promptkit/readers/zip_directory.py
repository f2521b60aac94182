"""Where the entries of a ZIP archive lie, read with one look at its end.

    archive/data/0 -> ("archive/data/0", 854, 16056, 16056, 0x357aaf77, 0)

`zipfile` seeks and reads five times and makes a large object of each entry: 40 microseconds, which is long for a file
of one row. `entries` answers only where nothing is left to interpret: directory and end records stand behind each other
at the end of the file and agree, no entry has an extra field or a comment, all names are ASCII. torch writes nothing
else. Of any other archive it says nothing, and `zipfile` is asked.
"""

from __future__ import annotations

import struct
import zipfile
from typing import IO

from promptkit.readers.limits import ModestReads
from promptkit.readers.records import BadFile

TAIL = 4096  # bytes: the end of an archive of some fifty entries


# Name, where its header begins, its bytes, its bytes as stored, its checksum, how it is compressed. No class: there are
# ten in a file of one row, and each would cost as much as its parsing.
Entry = tuple[str, int, int, int, int, int]

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
    found: list[Entry] = []
    unpack, size = _ENTRY.unpack_from, _ENTRY.size
    while at < stop:
        mark, version, method, crc, packed, plain, n_name, n_extra, n_comment, offset = unpack(tail, at)
        name_at = at + size
        at = name_at + n_name
        if mark != b"PK\1\2" or n_extra or n_comment or version > _NEWEST or at > stop:
            return None
        found.append((tail[name_at:at].decode("ascii"), offset, plain, packed, crc, method))
    names = "".join([e[0] for e in found])
    # zipfile ends a name at a zero byte, and on some systems changes backslashes
    return None if len(found) != n or "\0" in names or "\\" in names else found


def through_zipfile(file: IO[bytes]) -> list[Entry]:
    """Return the entries of any archive. Raises what zipfile raises."""
    infos = zipfile.ZipFile(ModestReads(file)).infolist()
    return [(e.filename, e.header_offset, e.file_size, e.compress_size, e.CRC, e.compress_type) for e in infos]


def check_apart(places: list[tuple[int, int]]) -> None:
    """Raise BadFile where entries (where its header begins, its bytes as stored) overlap: a small file could then
    unpack to a large one."""
    end = 0
    for begin, length in sorted(places):
        if begin < end:
            raise BadFile("refused: entries of its ZIP overlap")
        end = begin + 30 + length
