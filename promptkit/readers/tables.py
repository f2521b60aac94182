"""Record batches -> Records, for Arrow and Parquet alike.

Only the columns that a training row can need are touched. A column of lists of integers becomes one numpy array for
the batch and a view per row; `list`, `large_list` and `fixed_size_list` of any integer width are equal, and so is a
list nested once in another (SpecForge's map cache). Other columns become Python values, without the null keys that
Arrow gives to every struct.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptkit.readers.fields import NO_HINTS, PAIR, VOCABULARY, is_sample, some_keys, wanted
from promptkit.readers.records import BadFile, BadRow, Fault, Hints, Limits, NoSamples, Record
from promptkit.readers.schemas import to_record
from promptkit.readers.values import drop_nulls

if TYPE_CHECKING:
    import pyarrow as pa

FLAGS = ("loss_mask", "assistant_masks", "attention_mask")
SLICE = 1024  # rows at a time: a batch of a million rows must not become a million Python objects


def wanted_columns(schema: pa.Schema, hints: Hints = NO_HINTS) -> list[str]:
    """Return the columns to read. Raises NoSamples where none is a row's, BadFile where a name stands twice."""
    names = list(schema.names)
    if not is_sample(dict.fromkeys(names), hints):
        raise NoSamples(not_samples(names))
    columns = [n for n in names if n in wanted(hints)]
    if len(set(columns)) != len(columns):
        raise BadFile("a column name stands twice")
    return columns


def not_samples(keys: Iterable[Any]) -> str:
    """Return the reason for a file of unknown fields."""
    keys = list(keys)
    return "vocabulary mapping, not samples" if set(VOCABULARY) & set(keys) else f"not samples: {some_keys(keys)}"


def records(batch: pa.RecordBatch, first_row: int, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of a batch that holds wanted columns only. Raises ArrowInvalid where its offsets lie."""
    batch.validate(full=True)
    for start in range(0, batch.num_rows, SLICE):
        part = batch.slice(start, SLICE)
        columns = {name: _values(part.column(i), flags=name in FLAGS) for i, name in enumerate(part.schema.names)}
        if columns.keys() == PAIR and not limits.hints.fields and _are_pairs(part, columns):
            yield from _pairs(columns["input_ids"], columns["loss_mask"], first_row + start, limits)
            continue
        for row, values in enumerate(zip(*columns.values(), strict=True), first_row + start):
            yield _row(row, dict(zip(columns, values, strict=True)), limits)


def _row(row: int, fields: dict[str, Any], limits: Limits) -> Record | Fault:
    try:
        return to_record(row, fields, limits)
    except BadRow as error:
        return Fault(row, error.status, str(error))


def _pairs(ids: list[Any], masks: list[Any], first_row: int, limits: Limits) -> Iterator[Record | Fault]:
    """Yield as `to_record` does, in a third of its time."""
    most = limits.record_bytes // 9
    for row, (some, mask) in enumerate(zip(ids, masks, strict=True), first_row):
        if 0 < len(some) == len(mask) and len(some) <= most:
            yield Record(row, some, mask)
        else:
            yield _row(row, {"input_ids": some, "loss_mask": mask}, limits)


def _are_pairs(part: pa.RecordBatch, columns: dict[str, list[Any]]) -> bool:
    """Return whether all rows are an array of int64 and one of bool: without nulls a column is views of one array."""
    first = {name: values[0] for name, values in columns.items()}
    return all(c.null_count == 0 for c in part.columns) and all(
        type(first[name]) is np.ndarray and first[name].dtype == kind
        for name, kind in (("input_ids", np.int64), ("loss_mask", np.bool_))
    )


def _values(column: pa.Array, *, flags: bool = False) -> list[Any]:
    """Return a value for each row; `flags` are expected to be 0 and 1, and are looked at once for the whole column."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    lists = _number_lists(column, flags)
    if lists is not None:
        return lists
    values: list[Any] = column.to_pylist()
    return [drop_nulls(v) for v in values] if pa.types.is_nested(column.type) else values


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _number_lists(column: pa.Array, flags: bool = False) -> list[Any] | None:
    """Return a numpy view per row (None for null), or None where the column does not hold lists of numbers."""
    import pyarrow as pa

    if not _is_list(column.type):
        return None
    if pa.types.is_fixed_size_list(column.type):
        width = column.type.list_size
        column = pa.array([None], column.type).slice(1) if not len(column) else column
        edges = np.arange(column.offset, column.offset + len(column) + 1, dtype=np.int64) * width
    else:
        edges = _numbers(column.offsets).astype(np.int64)
    first, last = int(edges[0]), int(edges[-1])
    child = column.values.slice(first, last - first)
    inner: Any
    if _is_list(child.type):
        inner = _number_lists(child, flags)
        if inner is None:
            return None
    else:
        kind = child.type
        if (
            not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
            or child.null_count
        ):
            return None
        inner = _numbers(child)
        if flags and inner.dtype.kind in "iu" and not (inner & ~inner.dtype.type(1)).any():
            inner = inner.astype(bool)
        elif inner.dtype.kind in "iu" and inner.dtype != np.uint64:
            inner = inner.astype(np.int64, copy=False)
    valid = column.is_valid().to_pylist() if column.null_count else None
    edges = (edges - first).tolist()
    return [inner[a:b] if valid is None or valid[i] else None for i, (a, b) in enumerate(itertools.pairwise(edges))]


def _numbers(values: pa.Array) -> NDArray[Any]:
    """Return numbers without nulls as an array. `to_numpy` does so too, but imports pandas: 0.2 s in each process."""
    data, start, n = values.buffers()[1], values.offset, len(values)
    kind = _FLOATS.get(str(values.type), str(values.type))
    if not n:
        return np.zeros(0, kind)
    if kind == "bool":  # bits
        packed = np.frombuffer(data, np.uint8)[start // 8 : (start + n + 7) // 8]
        return np.unpackbits(packed, bitorder="little")[start % 8 : start % 8 + n].view(np.bool_)
    dtype = np.dtype(kind)
    return np.frombuffer(data, dtype, n, start * dtype.itemsize)


_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}  # as Arrow and as NumPy call them
