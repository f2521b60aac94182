"""Megatron's indexed data set: ids in X.bin, where they lie in X.idx.

    MMIDIDX 0 0 · u64 version 1 · u8 dtype · u64 sequences · u64 documents     34 bytes, little-endian
    i32 lengths[sequences] · i64 byte offsets[sequences] · i64 documents[...]  first sequence of each document

A row is a document: its sequences (sentences, where the preparation split them) joined. The two tables are read side by
side in pieces, and each length and offset is held against the size of the .bin before it is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from promptkit.readers.id_streams import as_ids
from promptkit.readers.records import BadFile, Fault, Limits, Record

MAGIC = b"MMIDIDX\0\0"
HEADER = 34
# 9 and 10 are fairseq's; 6 and 7 are floats, in an order on which the two disagree
DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}
PIECE = 1 << 16


def read(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the documents of X.bin, which `path` names."""
    with open(path, "rb") as data, open(path.with_suffix(".idx"), "rb") as index:
        header = index.read(HEADER)
        if len(header) < HEADER or not header.startswith(MAGIC):
            raise BadFile("its .idx is cut, or no Megatron index")
        version, code = int.from_bytes(header[9:17], "little"), header[17]
        n_sequences, n_marks = (int.from_bytes(header[k : k + 8], "little") for k in (18, 26))
        if version != 1:
            raise BadFile(f"its .idx is of version {version}, known is 1")
        if code not in DTYPES:
            raise BadFile(f"its .idx says ids of type {code}, which are no integers")
        size = os.fstat(index.fileno()).st_size
        rest = size - HEADER - 12 * n_sequences
        # the count is that of the table in Megatron, one less in some writers; modes (one byte each) may follow
        if rest not in (8 * n_marks + modes for modes in (0, n_sequences)) and rest >= 8 * (n_marks + 1):
            n_marks += 1
        if rest < 8 * n_marks:
            raise BadFile(f"its .idx is cut: {size} bytes for {n_sequences} sequences and {n_marks} documents")
        yield from _documents(data, index, DTYPES[code], n_sequences, n_marks, limits)


def _documents(
    data: IO[bytes], index: IO[bytes], code: str, n_sequences: int, n_marks: int, limits: Limits
) -> Iterator[Record | Fault]:
    n_bytes = os.fstat(data.fileno()).st_size
    itemsize = np.dtype(code).itemsize
    most = limits.record_bytes // 9
    spans = _spans(index, n_sequences, itemsize, n_bytes)
    done = 0
    for row, stop in enumerate(_stops(index, n_sequences, n_marks)):
        if stop < done:
            raise BadFile("its .idx lists documents out of order, or beyond the sequences")
        held: list[NDArray[np.int64]] = []
        n = 0
        for _ in range(stop - done):
            start, length = next(spans)
            n += length
            if n <= most and length:
                data.seek(start)
                raw = data.read(length * itemsize)
                if len(raw) != length * itemsize:
                    raise BadFile("the file ends inside a sequence")
                held.append(as_ids(np.frombuffer(raw, code)))
        done = stop
        if n > most:
            yield Fault(row, "failed", f"record larger than {limits.record_bytes} bytes (--record-bytes)")
        elif not n:
            yield Fault(row, "skipped", "a document of no ids")
        else:
            yield Record(row, np.concatenate(held))


def _stops(index: IO[bytes], n_sequences: int, n_marks: int) -> Iterator[int]:
    """Yield for each document the number of the sequence behind its last one."""
    if not n_marks:
        yield from range(1, n_sequences + 1)  # no document is marked: a sequence is a row
        return
    at = HEADER + 12 * n_sequences
    last = -1
    for k in range(0, n_marks, PIECE):
        index.seek(at + 8 * k)
        for mark in np.frombuffer(index.read(8 * min(PIECE, n_marks - k)), "<i8").tolist():
            if not 0 <= mark <= n_sequences or mark < last:
                raise BadFile("its .idx lists documents out of order, or beyond the sequences")
            if mark or last >= 0:
                yield mark
            last = mark
    if last < n_sequences:
        yield n_sequences


def _spans(index: IO[bytes], n_sequences: int, itemsize: int, n_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the first byte and the number of ids of each sequence, inside the file and known to be so."""
    for k in range(0, n_sequences, PIECE):
        count = min(PIECE, n_sequences - k)
        index.seek(HEADER + 4 * k)
        lengths = np.frombuffer(index.read(4 * count), "<i4").astype(np.int64)
        index.seek(HEADER + 4 * n_sequences + 8 * k)
        starts = np.frombuffer(index.read(8 * count), "<i8")
        bad = (lengths < 0) | (starts < 0) | (starts > n_bytes - lengths * itemsize)
        if bad.any():
            yield from zip(starts[: bad.argmax()].tolist(), lengths[: bad.argmax()].tolist(), strict=True)
            raise BadFile(f"sequence {k + int(bad.argmax())} reaches beyond the {n_bytes} bytes of the .bin")
        yield from zip(starts.tolist(), lengths.tolist(), strict=True)
