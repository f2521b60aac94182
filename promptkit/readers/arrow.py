"""Arrow IPC, as a stream (Hugging Face `save_to_disk` and map caches, often called .pkl) or as a file (Feather 2).

Files are read, not mapped: a mapped file that another process cuts short kills the reader. Batches before a damaged one
are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from promptkit.readers.limits import HARMLESS
from promptkit.readers.records import BadFile, Fault, Limits, Record
from promptkit.readers.tables import records, wanted_columns

if TYPE_CHECKING:
    import pyarrow as pa


def read_stream(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of an IPC stream."""
    import pyarrow as pa

    with open(path, "rb") as raw, pa.OSFile(str(path)) as file:
        yield from _read(file, limits, batches(raw, 0, limits))


def read_packed_stream(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of an IPC stream inside gzip, zstd, xz or bzip2."""
    import pyarrow as pa

    from promptkit.readers.limits import Unpacked

    with pa.PythonFile(Unpacked(path, limits), mode="r") as file:
        yield from _read(file, limits, iter(()))  # its size is already held against the packed one


def _read(file: Any, limits: Limits, frames: Iterator[int]) -> Iterator[Record | Fault]:
    import pyarrow as pa

    try:
        stream = pa.ipc.open_stream(file)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadFile(f"not a whole Arrow stream: {short(error)}") from error
    columns = wanted_columns(stream.schema)
    row = 0
    while True:
        try:
            next(frames, None)
            batch = stream.read_next_batch()
        except StopIteration:
            return
        except (pa.ArrowException, OSError, ValueError) as error:
            raise BadFile(f"the Arrow stream is cut or damaged: {short(error)}") from error
        yield from _rows(batch, columns, row, limits)
        row += batch.num_rows


def read_file(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of an IPC file."""
    import pyarrow as pa

    with open(path, "rb") as raw, pa.OSFile(str(path)) as source:
        try:
            file = pa.ipc.open_file(source)
            n_batches = file.num_record_batches
        except (pa.ArrowException, OSError, ValueError) as error:
            source.seek(8)  # behind its magic, a file is a stream
            yield from _read(source, limits, batches(raw, 8, limits))
            raise BadFile("the Arrow file is cut or damaged: no footer, only whole batches were read") from error
        for _ in batches(raw, 8, limits):
            pass  # refuses a bomb
        columns = wanted_columns(file.schema)
        row = 0
        for i in range(n_batches):
            try:
                batch = file.get_batch(i)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise BadFile(f"the Arrow file is damaged: {short(error)}") from error
            yield from _rows(batch, columns, row, limits)
            row += batch.num_rows


def count_rows(path: Path, *, stream: bool, limits: Limits) -> int | None:
    """Return the number of rows that the batch headers state, without reading a batch; None where one is damaged."""
    try:
        with open(path, "rb") as file:
            return sum(batches(file, 0 if stream else 8, limits))
    except BadFile:
        return None


def batches(file: IO[bytes], start: int, limits: Limits) -> Iterator[int]:
    """Yield the number of rows of each record batch, from the headers alone. Raises BadFile for a packed bomb.

    A message is: FF FF FF FF, length of its header, header (a flatbuffer), body. In a compressed body each buffer
    begins with its plain length, which Arrow allocates unseen; here it is held against the packed one first.
    """
    size, at = file.seek(0, 2), start
    while at + 8 <= size:
        file.seek(at)
        mark, length = struct.unpack("<Ii", file.read(8))
        if mark != 0xFFFFFFFF or not 0 < length <= size - at - 8:
            return  # the end marker, or a cut that the stream itself will report
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


def _rows(batch: pa.RecordBatch, columns: list[str], row: int, limits: Limits) -> Iterator[Record | Fault]:
    import pyarrow as pa

    try:
        yield from records(batch.select(columns), row, limits)
    except (pa.ArrowException, ValueError) as error:
        raise BadFile(f"an Arrow batch is damaged: {short(error)}") from error


def short(error: BaseException) -> str:
    """Return the first line of a library's message, cut at 160 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
