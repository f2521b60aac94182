"""safetensors: a JSON header that says where each tensor lies, then the bytes.

    8 bytes: length of the header   {"token_ids": {"dtype": "I64", "shape": [812], "data_offsets": [0, 6496]}, ...}

Read here without its library, because only the wanted tensors are wanted: speculators' `hs_*.safetensors` (`token_ids`,
one row) and NeMo Automodel's shards (`input_ids`, `loss_mask`, `attention_mask`, stacked rows).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from promptkit.readers.fields import IDS, MASKS, is_sample
from promptkit.readers.records import BadFile, BadRow, Fault, Limits, NoSamples, Record
from promptkit.readers.schemas import to_record
from promptkit.readers.tables import not_samples
from promptkit.readers.values import loads

DTYPES = {
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"
}  # fmt: skip
ROWS = frozenset({*IDS, *MASKS, "attention_mask", "position_ids"})


def read(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of one file: one for ids of shape [n], S for ids of shape [S, n]."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, 100_000_000):
            raise BadFile("truncated safetensors: its header is cut")
        try:
            header, _ = loads(file.read(length), limits)
        except BadRow as error:
            raise BadFile(f"damaged safetensors header: {error}") from error
        if not isinstance(header, dict):
            raise BadFile("damaged safetensors header: no object")
        if not is_sample(header, limits.hints):
            raise NoSamples(not_samples(k for k in header if k != "__metadata__"))
        columns = {column for _, column in limits.hints.fields}
        tensors = {k: _tensor(header[k], 8 + length, size) for k in header if k in ROWS or k in columns}
        ids = next((k for k in (dict(limits.hints.fields).get("input_ids"), *IDS) if k in tensors), None)
        if ids is None:
            raise NoSamples(not_samples(k for k in header if k != "__metadata__"))
        shape = tensors[ids].shape
        if len(shape) not in (1, 2):
            raise BadFile(f"ids of {len(shape)} dimensions, expected 1 or 2")
        n_rows = 1 if len(shape) == 1 else shape[0]
        for key, tensor in tensors.items():
            if len(shape) == 2 and (len(tensor.shape) != 2 or tensor.shape[0] != n_rows):
                raise BadFile(f"{key} has another number of rows than the ids")
        for row in range(n_rows):
            try:
                yield to_record(row, {k: t.row(file, row, len(shape), limits) for k, t in tensors.items()}, limits)
            except BadRow as error:
                yield Fault(row, error.status, str(error))


class _Tensor:
    def __init__(self, dtype: str, shape: tuple[int, ...], start: int) -> None:
        self.dtype, self.shape, self.start = dtype, shape, start

    def row(self, file: Any, row: int, dims: int, limits: Limits) -> np.ndarray[Any, Any]:
        """Return one row: all of a tensor when the ids have one dimension, else its entry along the first."""
        shape = self.shape if dims == 1 else self.shape[1:]
        if not self.dtype:
            raise BadRow("ids or mask are stored as floats")
        dtype = np.dtype(self.dtype)
        n_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if n_bytes > limits.record_bytes:
            raise BadRow(f"record larger than {limits.record_bytes} bytes (--record-bytes)")
        file.seek(self.start + row * n_bytes * (dims == 2))
        data = file.read(n_bytes)
        if len(data) != n_bytes:
            raise BadRow("the file ends inside a tensor")
        if self.dtype == "?":
            dtype, data = np.dtype(np.bool_), bytes(map(bool, data))  # another byte than 0 or 1 is no bool to numpy
        values: np.ndarray[Any, Any] = np.frombuffer(data, dtype).reshape(shape)
        return values


def _tensor(entry: Any, base: int, size: int) -> _Tensor:
    try:
        dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        numbers = (*shape, start, stop)
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile("damaged safetensors header: an entry is malformed") from error
    if not all(type(n) is int and n >= 0 for n in numbers) or start > stop:
        raise BadFile("damaged safetensors header: an entry is malformed")
    if base + stop > size:
        raise BadFile("truncated safetensors: a tensor reaches beyond the end of the file")
    code = DTYPES.get(dtype, "") if isinstance(dtype, str) else ""
    if code and int(np.prod(shape, dtype=object)) * np.dtype(code).itemsize != stop - start:
        raise BadFile("damaged safetensors header: the shape of a tensor does not fit its bytes")
    return _Tensor(code, shape, base + start)
