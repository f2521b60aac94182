"""What torch.save writes (.pt, .ckpt, also inside gzip), read without torch.

    archive/data.pkl        {"input_ids": tensor(storage 0), "loss_mask": tensor(storage 1), "hidden_state": ...}
    archive/data/0          the bytes of storage 0, stored and not compressed
    archive/byteorder       "little"

The pickle says where each tensor lies (`pickles.Machine`, which can run no code); only the bytes of the ids and masks
are then read, so a file of 100 MB of hidden states costs 0.2 ms. Inside gzip the same order of entries lets the reader
stop inflating behind the last wanted storage; any surprise on that way ends in the plain one, on a temporary file.

One dict is one row, a list of dicts (TorchSpec) many. Everything else is no sample.
"""

from __future__ import annotations

import math
import mmap
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from promptkit.readers import pickle_shapes, zip_directory
from promptkit.readers.fields import NO_HINTS, is_sample, wanted
from promptkit.readers.pickles import Machine, TensorRef
from promptkit.readers.records import BadFile, BadRow, Fault, Hints, Limits, NoSamples, Record
from promptkit.readers.schemas import to_record
from promptkit.readers.tables import not_samples
from promptkit.readers.values import clean
from promptkit.readers.zip_directory import Entry

MAPPED = 256 << 20
PADDING = 128  # torch aligns its storages to 64 bytes
HEAD = 2048  # bytes
_LENGTHS = struct.Struct("<HH").unpack_from
Storages = Callable[[str, int, int], "bytes | memoryview"]  # (key, first byte, past the last byte)


def read(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of one torch file."""
    with open(path, "rb", buffering=0) as file:
        yield from read_file(file, limits)


def read_file(file: IO[bytes], limits: Limits) -> Iterator[Record | Fault]:
    archive = _Archive(file)
    machine = Machine(archive.pickle())
    machine.root = pickle_shapes.recall(machine.data, wanted(limits.hints))
    if machine.root is None:
        for row, item in enumerate(machine):
            yield to_row(row, item, machine, archive.read, archive.order, limits)
        pickle_shapes.learn(machine)
    if not isinstance(machine.root, list):
        yield to_row(0, only(machine.root, limits.hints), machine, archive.read, archive.order, limits)


def only(root: Any, hints: Hints = NO_HINTS) -> dict[Any, Any]:
    """Return the one dict of a file. Raises NoSamples where it is none, or holds no sample."""
    if not isinstance(root, dict):
        raise NoSamples(f"not samples: a {'tensor' if isinstance(root, TensorRef) else type(root).__name__}")
    if not is_sample(root, hints):
        raise NoSamples(not_samples(root))
    return root


def vocabulary_size(path: Path) -> int | None:
    """Return the size of the target vocabulary where a torch file is a d2t/t2d mapping, else None."""
    with open(path, "rb") as file:
        machine = Machine(_Archive(file).pickle())
        if any(True for _ in machine):  # a list of rows; no need to see the rest of it
            return None
        root = machine.root
    t2d = root.get("t2d") if isinstance(root, dict) else None
    return t2d.size[0] if isinstance(t2d, TensorRef) and len(t2d.size) == 1 else None


def to_row(row: int, item: Any, machine: Machine, read: Storages, order: str, limits: Limits) -> Record | Fault:
    if not isinstance(item, dict):
        return Fault(row, "failed", f"no known field: the item is a {type(item).__name__}")
    marks: set[str] = set()
    known = wanted(limits.hints)
    try:
        fields = {
            key: _array(value, read, order, limits)
            if isinstance(value, TensorRef)
            else clean(machine.whole(value), marks)
            for key, value in item.items()
            if key in known
        }
        if not fields:
            fields = dict.fromkeys(map(str, item))
        return to_record(row, fields, limits, sorted(marks))
    except BadRow as error:
        return Fault(row, error.status, str(error))


def _array(ref: TensorRef, read: Storages, order: str, limits: Limits) -> NDArray[Any]:
    """Return the values of a tensor that may be a view of its storage. Only its own stretch of bytes is read."""
    if not ref.dtype:
        raise BadRow("ids or mask are stored as floats")
    dtype = np.dtype(order + ref.dtype)
    if 0 in ref.size:
        return np.zeros(0, ref.dtype)
    # storages of view tensors are untyped in rebuild v3: their length counts bytes, the tensor's offset counts elements
    last = ref.offset
    for n, step in zip(ref.size, ref.stride, strict=True):
        last += (n - 1) * step
    count = last - ref.offset + 1
    if count * dtype.itemsize > limits.record_bytes or math.prod(ref.size) > limits.record_bytes // 8:
        raise BadRow(f"record larger than {limits.record_bytes} bytes (--record-bytes)")
    data = read(ref.storage.key, ref.offset * dtype.itemsize, (last + 1) * dtype.itemsize)
    flat = np.frombuffer(data, dtype, count)
    if ref.dtype == "?":
        flat = np.frombuffer(data, np.uint8, count) != 0
    if _is_whole(ref):
        view = flat.reshape(ref.size)
    else:
        steps = tuple(step * flat.itemsize for step in ref.stride)
        view = np.lib.stride_tricks.as_strided(flat, ref.size, steps, writeable=False)
    return view if dtype.isnative else view.astype(view.dtype.newbyteorder("="))


def _is_whole(ref: TensorRef) -> bool:
    """Return whether the elements of a tensor stand in their order, one behind the other: nearly all do."""
    step = 1
    for n, stride in zip(reversed(ref.size), reversed(ref.stride), strict=True):
        if stride != step:
            return False
        step *= n
    return True


class _Archive:
    """The ZIP around a pickle and its storages. Entries must be stored, inside the file and apart from each other."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = file.seek(0, 2)
        try:
            entries = zip_directory.entries(file, self._size) or zip_directory.through_zipfile(file)
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
            raise BadFile("truncated or damaged torch file: no ZIP directory at its end") from error
        pickles = [e[0] for e in entries if e[0].endswith("/data.pkl") or e[0] == "data.pkl"]
        if len(pickles) != 1:
            raise NoSamples("a ZIP archive that torch did not write (no data.pkl)")
        self._root = pickles[0].removesuffix("data.pkl")
        self._entries = {e[0]: e for e in entries}
        if len(self._entries) != len(entries):
            raise BadFile("damaged torch file: two entries of its ZIP have one name")
        zip_directory.check_apart([(e[1], e[3]) for e in entries])
        file.seek(0)
        self._head = file.read(HEAD)
        order = self._whole("byteorder") if self._root + "byteorder" in self._entries else b"little"
        self.order = ">" if order.strip() == b"big" else "<"

    def pickle(self) -> bytes | memoryview:
        """Return the pickle; a large one (a cache with its texts) is mapped instead of read."""
        entry = self._entries[self._root + "data.pkl"]
        _, _, size, _, _, method = entry
        if size <= MAPPED or method != zipfile.ZIP_STORED:
            return self._whole("data.pkl")
        begin, _ = self._begin(entry, 0)
        mapped = mmap.mmap(self._file.fileno(), begin + size, access=mmap.ACCESS_READ)
        return memoryview(mapped)[begin:]

    def _whole(self, name: str) -> bytes:
        entry = self._entries[self._root + name]
        return self._read(entry, 0, entry[2])

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Return some bytes of a storage; its checksum is verified where all of it was asked for."""
        entry = self._entries.get(f"{self._root}data/{key}")
        if entry is None:
            raise BadRow("damaged torch file: a storage is missing")
        if stop > entry[2]:
            raise BadRow("damaged torch file: a storage is shorter than its tensor")
        try:
            return self._read(entry, start, stop)
        except BadFile as error:
            raise BadRow(str(error)) from error

    def _bytes(self, at: int, n: int) -> bytes:
        """Return `n` bytes of the file, fewer at its end. Pickle and byte order stand at its beginning, read once."""
        if at + n <= len(self._head):
            return self._head[at : at + n]
        self._file.seek(at)
        data = self._file.read(n)
        while len(data) < n and (more := self._file.read(n - len(data))):  # not buffered: some file systems give a part
            data += more
        return data

    def _begin(self, entry: Entry, n: int) -> tuple[int, bytes]:
        """Return where the data of an entry begins, and at most its first `n` bytes: they cost no read of their own."""
        name, at, size, packed, _, method = entry
        if method != zipfile.ZIP_STORED or size != packed:
            raise BadFile("refused: an entry of its ZIP is compressed, torch stores them as they are")
        head = self._bytes(at, 30 + len(name) + PADDING + n)
        if len(head) < 30 or head[:4] != b"PK\x03\x04":
            raise BadFile("damaged torch file: its ZIP directory points to no entry")
        n_name, n_extra = _LENGTHS(head, 26)
        length = 30 + n_name + n_extra
        if at + length + size > self._size:
            raise BadFile("damaged torch file: an entry reaches beyond its end")
        return at + length, head[length : length + n]

    def _read(self, entry: Entry, start: int, stop: int) -> bytes:
        begin, data = self._begin(entry, 0 if start else stop)
        if len(data) != stop - start:
            data = self._bytes(begin + start, stop - start)
        if len(data) != stop - start:
            raise BadFile("damaged torch file: an entry is cut")
        _, _, size, _, crc, _ = entry
        # torch can be told to leave checksums out; it then writes a zero
        if start == 0 and stop == size and crc and zlib.crc32(data) != crc:
            raise BadFile("damaged torch file: a checksum differs")
        return data
