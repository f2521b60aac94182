"""datatrove's tokenized documents: ids in X.ds, and beside it what they mean.

    X.ds            ids of 2 or 4 bytes            X.ds.index      u64: where each document ends, in ids
    X.ds.loss       one byte per id, 1 = trained   X.ds.metadata   moonshotai/Kimi-K2.5|4

The metadata names the tokenizer: the best hint that any binary format gives. Without it the index says the width, for
its last entry is the number of ids.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from promptkit.readers.id_streams import as_ids, documents, pieces
from promptkit.readers.records import BadFile, Fault, Limits, Record
from promptkit.readers.streams import Stream
from promptkit.readers.widths import DTYPES, SAMPLE_BYTES, width_of

PIECE = 1 << 16


def tokenizer_of(path: Path) -> tuple[str | None, int | None]:
    """Return the tokenizer that the metadata of X.ds names, and the bytes of one id; None where it does not say."""
    try:
        with open(_beside(path, "metadata"), "rb") as file:
            line = file.read(4096).split(b"\n")[0].decode("utf-8", "replace")
    except OSError:
        return None, None
    name, _, size = line.rpartition("|")
    return (name or None) if name != "Unknown Tokenizer" else None, int(size) if size in ("2", "4") else None


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f"{path.name}.{what}")


def read(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the documents of X.ds, which `path` names."""
    n_bytes = path.stat().st_size
    index, losses = _beside(path, "index"), _beside(path, "loss")
    size = tokenizer_of(path)[1]
    n_documents = _entries(index)
    if limits.hints.dtype is not None:
        code = DTYPES[limits.hints.dtype]
    elif size is not None:
        code = f"<u{size}"
    elif n_documents:
        n_ids = next(_ends(index, n_documents, first=n_documents - 1))
        if n_ids * 2 != n_bytes and n_ids * 4 != n_bytes:
            raise BadFile(f"its index counts {n_ids} ids, which does not fit {n_bytes} bytes")
        code = "<u2" if n_ids * 2 == n_bytes else "<u4"
    else:
        with open(path, "rb") as file:
            code = width_of(file.read(SAMPLE_BYTES), n_bytes, limits.hints).dtype
    if not n_documents:
        yield from documents(pieces(Stream.of_plain(path), code), limits)
        return
    itemsize = np.dtype(code).itemsize
    if losses.is_file() and losses.stat().st_size * itemsize != n_bytes:
        raise BadFile(f"its .loss has {losses.stat().st_size} entries, the ids are {n_bytes // itemsize}")
    with open(path, "rb") as file, open(losses if losses.is_file() else path, "rb") as loss:
        start = 0
        for row, stop in enumerate(_ends(index, n_documents)):
            if not start <= stop <= n_bytes // itemsize:
                raise BadFile(
                    f"document {row} ends at id {stop}, beyond the {n_bytes // itemsize} ids or before it began"
                )
            if (stop - start) * 9 > limits.record_bytes:
                yield Fault(row, "failed", f"record larger than {limits.record_bytes} bytes (--record-bytes)")
            elif start == stop:
                yield Fault(row, "skipped", "a document of no ids")
            else:
                file.seek(start * itemsize)
                ids = as_ids(np.frombuffer(file.read((stop - start) * itemsize), code))
                mask = None
                if losses.is_file():
                    loss.seek(start)
                    mask = np.frombuffer(loss.read(stop - start), np.uint8) != 0
                yield Record(row, ids, mask)
            start = stop
        if start * itemsize != n_bytes:
            raise BadFile(f"its index ends at id {start}, the file goes on to {n_bytes // itemsize}")


def _entries(index: Path) -> int:
    try:
        n_bytes = index.stat().st_size
    except OSError:
        return 0
    if n_bytes % 8:
        raise BadFile("its .index is cut: not a whole number of entries")
    return n_bytes // 8


def _ends(index: Path, n: int, first: int = 0) -> Iterator[int]:
    with open(index, "rb") as file:
        file.seek(8 * first, os.SEEK_SET)
        for k in range(first, n, PIECE):
            yield from np.frombuffer(file.read(8 * min(PIECE, n - k)), "<u8").tolist()
