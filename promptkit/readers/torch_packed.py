"""Torch files inside gzip (or zstd, xz, bzip2), inflated no further than needed.

torch writes pickle, ids and mask before tens of megabytes of hidden states, so 34 KB of a file of 94 MB are enough. Any
surprise on this short way ends in the plain one: the whole file, unpacked into a temporary one.
"""

from __future__ import annotations

import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from promptkit.readers import pickle_shapes
from promptkit.readers.fields import wanted
from promptkit.readers.limits import plain_chunks
from promptkit.readers.pickles import Machine, TensorRef
from promptkit.readers.records import BadFile, BadRow, Fault, Limits, Record
from promptkit.readers.torch_zip import only, read_file, to_row


class _Surprise(Exception):
    """The stream is not laid out as torch writes it."""


EARLY = 32 << 20  # inflate at most this much before giving up on the short way
EARLY_CHUNK = 1 << 15  # at a time: a row of 1,000 ids and its mask stand in the first 17 KB


def read_packed(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the row of a packed torch file, inflating no more of it than holds its ids and mask."""
    try:
        early = _Early(plain_chunks(path, limits, chunk=EARLY_CHUNK))
        machine = Machine(early.pickle())
        root = pickle_shapes.recall(machine.data, wanted(limits.hints))
        if root is None:
            root = machine.run()
            pickle_shapes.learn(machine)
        if isinstance(root, list):
            raise _Surprise
        item = only(root, limits.hints)
        refs = {v.storage.key: v for k, v in item.items() if k in wanted(limits.hints) and isinstance(v, TensorRef)}
        early.find({key: ref.storage.numel * np.dtype(ref.dtype or "u1").itemsize for key, ref in refs.items()})
    except _Surprise:
        yield from _read_unpacked(path, limits)
        return
    yield to_row(0, item, machine, early.read, "<", limits)


def _read_unpacked(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    with tempfile.TemporaryFile() as file:
        for chunk in plain_chunks(path, limits):
            file.write(chunk)
        yield from read_file(file, limits)


class _Early:
    """Walks the local headers of a ZIP stream. Their sizes are zero, real ones follow the data in a descriptor."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._buffer = bytearray()
        self._at = 0
        self._found: dict[str, bytes] = {}

    def _need(self, end: int) -> None:
        while len(self._buffer) < end:
            if end > EARLY:
                raise _Surprise
            try:
                chunk = next(self._chunks, b"")
            except BadFile:  # in small chunks zeros look like a bomb sooner: the plain way says what it is
                raise _Surprise from None
            if not chunk:
                raise _Surprise
            self._buffer += chunk

    def _header(self) -> str:
        self._need(self._at + 30)
        if self._buffer[self._at : self._at + 4] != b"PK\x03\x04":
            raise _Surprise
        method = struct.unpack_from("<H", self._buffer, self._at + 8)[0]
        name_length, extra_length = struct.unpack_from("<HH", self._buffer, self._at + 26)
        begin = self._at + 30
        self._need(begin + name_length + extra_length)
        name = bytes(self._buffer[begin : begin + name_length]).decode("utf-8", "replace")
        if method != zipfile.ZIP_STORED:
            raise _Surprise
        self._at = begin + name_length + extra_length
        return name

    def _entry(self, length: int | None) -> bytes:
        """Return the data of the entry at hand, whose length is known or told by a descriptor that fits."""
        begin, search = self._at, self._at
        if length is not None:
            search = begin + length
            self._need(search + 24)
        while True:
            stop = self._buffer.find(b"PK\x07\x08", search)
            if stop < 0:
                search = max(search, len(self._buffer) - 3)
                self._need(len(self._buffer) + 1)
                continue
            self._need(stop + 24)
            crc, size, size_high, again = struct.unpack_from("<IIII", self._buffer, stop + 4)
            wide = (
                size_high == 0
                and again == size
                and size == stop - begin
                and self._buffer[stop + 16 : stop + 20] != b"PK\3\4"
            )
            narrow = size == size_high == stop - begin
            data = bytes(self._buffer[begin:stop])
            if (wide or narrow) and (not crc or zlib.crc32(data) == crc):
                self._at = stop + (16 if narrow else 24)
                return data
            if length is not None:
                raise _Surprise
            search = stop + 1

    def pickle(self) -> bytes:
        if not self._header().endswith("/data.pkl"):
            raise _Surprise
        return self._entry(None)

    def find(self, wanted: Mapping[str, int]) -> None:
        """Read on until each wanted storage (key -> bytes) is there."""
        while not self._found.keys() >= wanted.keys():
            name = self._header()
            key = name.rpartition("/data/")[2] if "/data/" in name else ""
            data = self._entry(wanted.get(key))
            if name.endswith("/byteorder") and data.strip() != b"little":
                raise _Surprise
            if key in wanted:
                self._found[key] = data

    def read(self, key: str, start: int, stop: int) -> bytes:
        data = self._found[key]
        if stop > len(data):
            raise BadRow("damaged torch file: a storage is shorter than its tensor")
        return data[start:stop]
