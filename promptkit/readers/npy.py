"""NumPy's .npy: a header that says type and shape, then the values.

    \\x93NUMPY 1 0  76 0  {'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }        values

One dimension is a stream of ids, two are rows. Masks lie beside the ids in files of their own, under the same name with
`loss_mask`, `labels` or `attention_mask` where the ids' says `input_ids`. The header is matched by a pattern and never
evaluated; object arrays are pickles and refused. What only calls itself .npy (Dolma, OLMo, nanotron) has no header and
is read by `headerless`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from promptkit.readers.fields import IDS, MASKS
from promptkit.readers.id_streams import documents, pieces
from promptkit.readers.records import BadFile, BadRow, Fault, Limits, NoSamples, Record
from promptkit.readers.schemas import to_record
from promptkit.readers.streams import Stream

MAGIC = b"\x93NUMPY"
MAX_HEADER = 1 << 16
_HEADER = re.compile(
    rb"\s*\{\s*'descr'\s*:\s*'([<>|=]?[a-zA-Z]\d*)'\s*,\s*'fortran_order'\s*:\s*(True|False)\s*,"
    rb"\s*'shape'\s*:\s*\(([\d,\sL]{0,200})\)\s*,?\s*\}\s*"
)


@dataclass(frozen=True, slots=True)
class Array:
    """The header of an array whose values follow in `stream`."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    stream: Stream

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=object)) * self.dtype.itemsize

    def row(self) -> np.ndarray[Any, Any]:
        """Return the next entry along the first dimension."""
        data = self.stream.take(self.row_bytes, "its values")
        return _values(data, self.dtype).reshape(self.shape[1:])

    def whole(self, limits: Limits) -> np.ndarray[Any, Any]:
        """Return all values. Raises BadRow where they are more than one record may have."""
        n_bytes = int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize
        if n_bytes > limits.record_bytes:
            raise BadRow(f"record larger than {limits.record_bytes} bytes (--record-bytes)")
        return _values(self.stream.take(n_bytes, "its values"), self.dtype).reshape(self.shape)


def _values(data: bytes, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if dtype == np.bool_:  # another byte than 0 or 1 is no bool to numpy
        flags: np.ndarray[Any, Any] = np.frombuffer(data, np.uint8) != 0
        return flags
    values = np.frombuffer(data, dtype)
    native: np.ndarray[Any, Any] = values if dtype.isnative else values.astype(dtype.newbyteorder("="))
    return native


def open_array(stream: Stream) -> Array:
    """Read the header of an array. Raises BadFile where it is none, NoSamples where it holds no integers."""
    head = stream.take(8, "the header of an array")
    if not head.startswith(MAGIC):
        raise BadFile("not a NumPy array: its first bytes are others")
    width = 2 if head[6] == 1 else 4
    length = int.from_bytes(stream.take(width, "the header of an array"), "little")
    if length > MAX_HEADER:
        raise BadFile(f"the header of a NumPy array is {length} bytes long, more than {MAX_HEADER}")
    found = _HEADER.fullmatch(stream.take(length, "the header of an array"))
    if found is None:
        raise BadFile("the header of a NumPy array is damaged, or its values are no plain numbers")
    name, fortran, shape = found[1].decode(), found[2] == b"True", found[3].decode().replace("L", "")
    if name.lstrip("<>|=").startswith("O"):
        raise BadFile("refused: a NumPy array of objects is a pickle, which can run code; nothing was run")
    sizes = tuple(int(n) for n in shape.split(",") if n.strip())
    try:
        dtype = np.dtype(name)
    except TypeError:
        raise BadFile(f"a NumPy array of an unknown type ({name})") from None
    if dtype.kind not in "iub":
        raise NoSamples(f"not samples: a NumPy array of {dtype.name}")
    if fortran and len(sizes) > 1:
        raise BadFile("a NumPy array in Fortran order: save it in C order")
    return Array(dtype, sizes, stream)


def read(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of a two-dimensional array, or the documents of a one-dimensional one."""
    array = open_array(Stream.of(path, limits))
    beside = {k: open_array(Stream.of(p, limits)) for k, p in _beside(path).items()}
    if len(array.shape) == 2:
        yield from rows({"input_ids": array, **beside}, limits)
    elif len(array.shape) != 1 or array.dtype == np.bool_:
        raise NoSamples(f"not samples: a NumPy array of {array.dtype.name}, {len(array.shape)} dimensions")
    elif beside:
        yield one(0, {k: a.whole(limits) for k, a in {"input_ids": array, **beside}.items()}, limits)
    else:
        stream = bounded(array.stream, array.shape[0] * array.dtype.itemsize)
        yield from documents(pieces(stream, array.dtype.str), limits)


def bounded(stream: Stream, n_bytes: int) -> Stream:
    """Return the next `n_bytes` as a stream of their own; an early end is a BadFile."""

    def chunks() -> Iterator[bytes]:
        left = n_bytes
        while left:
            data = stream.take(min(left, 1 << 20), "its values")
            left -= len(data)
            yield data

    return Stream(chunks())


def rows(arrays: dict[str, Array], limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of arrays that share their first dimension, one at a time from each."""
    if len({a.shape[0] if a.shape else -1 for a in arrays.values()}) != 1:
        shapes = ", ".join(f"{k} {list(a.shape)}" for k, a in arrays.items())
        raise BadFile(f"arrays with different numbers of rows: {shapes}")
    n_rows = next(iter(arrays.values())).shape[0]
    if sum(a.row_bytes for a in arrays.values()) > limits.record_bytes:
        raise BadFile(f"records larger than {limits.record_bytes} bytes (--record-bytes)")
    if not all(a.row_bytes for a in arrays.values()):  # a header may claim 2^60 rows of nothing
        raise BadFile("rows of no length")
    for row in range(n_rows):
        yield one(row, {k: a.row() for k, a in arrays.items()}, limits)


def one(row: int, fields: dict[str, Any], limits: Limits) -> Record | Fault:
    try:
        return to_record(row, fields, limits)
    except BadRow as error:
        return Fault(row, error.status, str(error))


BESIDE = (*(m for m in MASKS if m != "packed_loss_mask"), "attention_mask", "position_ids")


def beside_name(name: str) -> dict[str, str]:
    """Return field -> name of the file that would hold it, for the file of ids `name`."""
    key = next((k for k in IDS if k in name), None)
    return {} if key is None else {m: name.replace(key, m) for m in BESIDE}


def _beside(path: Path) -> dict[str, Path]:
    found = {m: path.with_name(name) for m, name in beside_name(path.name).items()}
    return {m: p for m, p in found.items() if p.is_file() and not p.is_symlink()}
