"""Arrow IPC, as a stream (Hugging Face `save_to_disk` and map caches, often called .pkl) or as a file (Feather 2).

Files are read, not mapped: a mapped file that another process cuts short kills the reader. Batches before a damaged one
are kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptkit.readers.arrow_headers import batches, check_first, check_header
from promptkit.readers.records import BadFile, Fault, Limits, Record
from promptkit.readers.tables import records, wanted_columns

if TYPE_CHECKING:
    import pyarrow as pa


def read_stream(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of an IPC stream."""
    import pyarrow as pa

    with open(path, "rb") as raw, pa.OSFile(os.fsencode(path)) as file:
        check_first(raw, 0)
        yield from _read(file, limits, batches(raw, 0, limits))


def read_stream_behind(path: Path, start: int, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of an IPC stream that begins in the middle of a file."""
    import pyarrow as pa

    with open(path, "rb") as raw, pa.OSFile(os.fsencode(path)) as file:
        file.seek(start)
        check_first(raw, start)
        yield from _read(file, limits, batches(raw, start, limits))


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
    columns = wanted_columns(stream.schema, limits.hints)
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

    with open(path, "rb") as raw, pa.OSFile(os.fsencode(path)) as source:
        check_first(raw, 8)
        raw.seek(max(0, raw.seek(0, 2) - 10))
        tail = raw.read(10)
        if tail.endswith(b"ARROW1"):  # a file that is cut has no footer
            check_header(int.from_bytes(tail[:4], "little", signed=True))
        try:
            file = pa.ipc.open_file(source)
            n_batches = file.num_record_batches
        except (pa.ArrowException, OSError, ValueError) as error:
            source.seek(8)  # behind its magic, a file is a stream
            yield from _read(source, limits, batches(raw, 8, limits))
            raise BadFile("the Arrow file is cut or damaged: no footer, only whole batches were read") from error
        for _ in batches(raw, 8, limits):
            pass  # refuses a bomb
        columns = wanted_columns(file.schema, limits.hints)
        row = 0
        for i in range(n_batches):
            try:
                batch = file.get_batch(i)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise BadFile(f"the Arrow file is damaged: {short(error)}") from error
            yield from _rows(batch, columns, row, limits)
            row += batch.num_rows


def _rows(batch: pa.RecordBatch, columns: list[str], row: int, limits: Limits) -> Iterator[Record | Fault]:
    import pyarrow as pa

    try:
        yield from records(batch.select(columns), row, limits)
    except (pa.ArrowException, ValueError) as error:
        raise BadFile(f"an Arrow batch is damaged: {short(error)}") from error


def short(error: BaseException) -> str:
    """Return the first line of a library's message, cut at 160 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
