"""The headers of Arrow record batches, read without the batches: how many rows, and how large once unpacked.

A message is: FF FF FF FF, length of its header, header (a flatbuffer), body. In a compressed body each buffer begins
with its plain length, which Arrow allocates unseen; here it is held against the packed one first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from promptkit.readers.limits import HARMLESS
from promptkit.readers.records import BadFile, Limits


def count_rows(path: Path, *, stream: bool, limits: Limits) -> int | None:
    """Return the number of rows that the batch headers state, without reading a batch; None where one is damaged."""
    try:
        with open(path, "rb") as file:
            return sum(batches(file, 0 if stream else 8, limits))
    except BadFile:
        return None


def batches(file: IO[bytes], start: int, limits: Limits) -> Iterator[int]:
    """Yield the number of rows of each record batch, from the headers alone. Raises BadFile for a packed bomb."""
    size, at = file.seek(0, 2), start
    while at + 8 <= size:
        file.seek(at)
        mark, length = struct.unpack("<Ii", file.read(8))
        if mark != 0xFFFFFFFF or not 0 < length <= size - at - 8:
            return  # the end marker, or a cut that the stream itself will report
        check_header(length)
        header = file.read(length)
        body = at + 8 + length
        try:
            message = _Table(header, struct.unpack_from("<I", header)[0])
            kind, body_length = message.scalar(1, "<B"), message.scalar(3, "<q")
            if kind in (RECORD_BATCH, DICTIONARY_BATCH):
                batch = message.table(2) if kind == RECORD_BATCH else message.table(2).table(1)
                if batch.has(3):
                    _check_buffers(file, batch.vector(2), body, body_length, limits)
                if kind == RECORD_BATCH:
                    yield batch.scalar(0, "<q")
        except (struct.error, MemoryError) as error:
            raise BadFile("the Arrow stream is damaged: a batch header is malformed") from error
        if body_length < 0:
            raise BadFile("the Arrow stream is damaged: a batch header is malformed")
        at = body + body_length


RECORD_BATCH, DICTIONARY_BATCH = 3, 2
MAX_HEADER = 64 << 20


def check_header(length: int) -> None:
    """Refuse a header so long that reading it alone would fill the memory."""
    if length > MAX_HEADER:
        raise BadFile(f"the Arrow stream is damaged: a header of {length:,} bytes, more than {MAX_HEADER:,}")


def check_first(file: IO[bytes], start: int) -> None:
    """Hold the length of the first header, which Arrow reads before any batch, against the most it may be."""
    file.seek(start)
    if len(head := file.read(8)) == 8 and head[:4] == b"\xff" * 4:
        check_header(int.from_bytes(head[4:], "little", signed=True))


def _check_buffers(file: IO[bytes], buffers: list[tuple[int, int]], body: int, packed: int, limits: Limits) -> None:
    plain = 0
    for offset, length in buffers:
        if length >= 8:
            file.seek(body + max(offset, 0))
            plain += max(0, *struct.unpack("<q", file.read(8).ljust(8, b"\0")))
    if plain > max(HARMLESS, limits.inflate_ratio * packed) or plain > limits.inflate_bytes:
        raise BadFile(f"a batch unpacks to more than {limits.inflate_ratio} times its size (--inflate-ratio)")


class _Table:
    """A flatbuffer table: fields by number, absent ones are 0."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        if self._fields < 0:
            raise struct.error("a table outside of its buffer")
        self._size = struct.unpack_from("<H", data, self._fields)[0]

    def _field(self, number: int) -> int:
        place = 4 + 2 * number
        if place + 2 > self._size:
            return 0
        offset: int = struct.unpack_from("<H", self._data, self._fields + place)[0]
        return self._at + offset if offset else 0

    def has(self, number: int) -> bool:
        return self._field(number) > 0

    def scalar(self, number: int, code: str) -> int:
        at = self._field(number)
        value: int = struct.unpack_from(code, self._data, at)[0] if at else 0
        return value

    def table(self, number: int) -> _Table:
        at = self._field(number)
        return _Table(self._data, at + struct.unpack_from("<I", self._data, at)[0])

    def vector(self, number: int) -> list[tuple[int, int]]:
        """Return a vector of structs of two int64."""
        at = self._field(number)
        at += struct.unpack_from("<I", self._data, at)[0]
        count = struct.unpack_from("<I", self._data, at)[0]
        return [struct.unpack_from("<qq", self._data, at + 4 + 16 * i) for i in range(count)]
