"""Ids and masks of a row -> int64 and bool arrays of one length.

    [5, 6, 7] · [[5, 6, 7]] · an array · with loss_mask [0, 0, 1], labels [-100, -100, 7] or packed_loss_mask "2,1"

Nothing is bent: floats, bools, null, another length or a value beyond 64 bits raise BadRow with a reason.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptkit.readers.fields import IDS, MASKS, first
from promptkit.readers.packed import end_of, starts_of
from promptkit.readers.records import BadRow, EmptyRow


def ids_of(fields: Mapping[str, Any]) -> NDArray[np.int64] | None:
    for key in IDS:
        if fields.get(key) is not None:
            ids = _integers(fields[key], key)
            if not len(ids):
                raise EmptyRow(f"{key} is empty")
            return ids
    return None


def _integers(value: Any, key: str) -> NDArray[np.int64]:
    """Return a 1-d int64 array of a list or array; one outer dimension of length 1 is taken off."""
    if type(value) is np.ndarray and value.ndim == 1 and value.dtype == np.int64:
        return value
    if isinstance(value, list):
        if len(value) == 1 and isinstance(value[0], (list, np.ndarray)):
            return _integers(value[0], key)
        if not value:
            return np.zeros(0, np.int64)
        try:
            ids, least = _from_list(value)
        except (TypeError, OverflowError):
            raise BadRow(f"{key} holds {_kinds(set(map(type, value)), value)}, expected integers") from None
        if least < 2 and any(type(value[i]) is bool for i in np.flatnonzero(ids < 2).tolist()):
            raise BadRow(f"{key} holds booleans, expected integers")
        return ids
    if not isinstance(value, np.ndarray):
        raise BadRow(f"{key} is a {type(value).__name__}, expected a list of integers")
    if value.ndim == 2 and value.shape[0] == 1:
        value = value[0]
    if value.ndim != 1:
        raise BadRow(f"{key} has {value.ndim} dimensions or several rows: a batch, not a sample")
    if value.dtype.kind not in "iu":
        raise BadRow(f"{key} is of type {value.dtype}, expected integers")
    if value.dtype == np.uint64 and len(value) and int(value.max()) > 2**63 - 1:
        raise BadRow(f"{key} holds an integer beyond 64 bits")
    typed: NDArray[np.int64] = value.astype(np.int64, copy=False)
    return typed


def _from_list(value: list[Any]) -> tuple[NDArray[np.int64], int]:
    """Return a list as an array, and the least of its numbers; a bool is 0 or 1.

    Raises TypeError for floats, null and text, OverflowError beyond 64 bits.
    """
    try:  # as unsigned numbers first: three times as fast
        ids = np.frombuffer(array("Q", value), np.int64)
        if (least := ids[ids.argmin()]) >= 0:
            return ids, least
    except OverflowError:
        pass
    ids = np.frombuffer(array("q", value), np.int64)
    return ids, ids[ids.argmin()]


def _kinds(kinds: set[type], value: list[Any]) -> str:
    if float in kinds:
        if any(isinstance(v, float) and v != v for v in value):
            return "NaN"
        return "an integer beyond 64 bits" if any(isinstance(v, float) and abs(v) > 2**53 for v in value) else "floats"
    names = {type(None): "null", str: "strings", list: "several lists", np.ndarray: "several lists", dict: "objects"}
    names |= {bool: "booleans", int: "an integer beyond 64 bits"}
    return next((text for kind, text in names.items() if kind in kinds), "other values")


def mask_of(fields: Mapping[str, Any], n: int) -> NDArray[np.bool_] | None:
    key = first(fields, MASKS)
    if key is None:
        return None
    value = fields[key]
    if key == "packed_loss_mask":
        return _unpack_runs(value, n)
    if key == "labels":
        labels = _integers(value, key)
        _same_length(len(labels), key, n)
        supervised: NDArray[np.bool_] = labels != -100
        return supervised
    return zero_one(value, key, n)


def _unpack_runs(value: Any, n: int) -> NDArray[np.bool_]:
    """TorchSpec: "12,30" is 12 tokens of prompt, 30 of response; it always begins with the prompt's run."""
    parts = value.split(",") if isinstance(value, str) and value else []
    if not parts or not all(p.isascii() and p.isdigit() and len(p) < 12 for p in parts):
        raise BadRow("packed_loss_mask is not a list of run lengths")
    runs = np.array([int(p) for p in parts], dtype=np.int64)
    _same_length(int(runs.sum()), "packed_loss_mask", n)
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs)


def zero_one(value: Any, key: str, n: int) -> NDArray[np.bool_]:
    """Return zeros and ones of any type as bool. Raises BadRow for other values, or another number than `n`."""
    if (bits := _bits(value, n)) is not None:
        return bits
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (list, np.ndarray)):
        value = value[0]
    if isinstance(value, list) and set(map(type, value)) - {int, bool, float}:
        raise BadRow(f"{key} holds other values than 0 and 1")
    if not isinstance(value, (list, np.ndarray)):
        raise BadRow(f"{key} is a {type(value).__name__}, expected a list of 0 and 1")
    values = np.asarray(value)
    if values.ndim == 2 and values.shape[0] == 1:
        values = values[0]
    if values.ndim != 1:
        raise BadRow(f"{key} has {values.ndim} dimensions or several rows: a batch, not a sample")
    _same_length(len(values), key, n)
    if values.dtype == np.bool_:
        return values
    # as unsigned numbers, negative ones are large
    if n and values.dtype.kind in "iu" and values.dtype.isnative:
        unsigned = values.view(f"u{values.itemsize}")
        if unsigned[unsigned.argmax()] < 2:
            return values.astype(np.bool_)
    mask: NDArray[np.bool_] = values == 1
    if values.dtype.kind not in "iuf" or not bool(np.all(mask | (values == 0))):
        raise BadRow(f"{key} holds other values than 0 and 1")
    return mask


def _bits(value: Any, n: int) -> NDArray[np.bool_] | None:
    """Return what is plainly `n` zeros and ones, several times faster than by looking at types; None for all else."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (list, np.ndarray)):
        value = value[0]
    if isinstance(value, np.ndarray):
        return value if value.dtype == np.bool_ and value.shape == (n,) else None
    if not isinstance(value, list) or len(value) != n or not n:
        return None
    try:
        packed = bytearray(value)
    except (TypeError, ValueError):
        return None
    return None if packed.translate(None, b"\0\1") else np.frombuffer(packed, np.bool_)


def _same_length(found: int, key: str, n: int) -> None:
    if found != n:
        raise BadRow(f"{key} has another length than the ids")


def places_of(
    fields: Mapping[str, Any], ids: NDArray[np.int64], mask: NDArray[np.bool_] | None, begins: tuple[int, ...]
) -> tuple[NDArray[np.bool_] | None, tuple[int, ...]]:
    """Return where the row is attended to, and where the conversations of a packed row begin: nothing for one.

    Numbers above 1 in the attention mask tell the conversations of a packed row apart. Packers pad with positions of 0
    and may attend to the padding, so an unsupervised tail of such positions counts as padding too.
    """
    n = len(ids)
    value = fields.get("attention_mask")
    attention = _bits(value, n)
    segments = None
    if value is not None and attention is None:
        segments = _small_integers(value, n)
        attention = zero_one(value, "attention_mask", n) if segments is None else segments > 0
        if segments is not None and int(segments.max(initial=0)) < 2:
            segments = None
    positions = _small_integers(fields.get("position_ids"), n)
    end = n if positions is None or mask is None else end_of(positions)
    if end < n and mask is not None and not mask[end:].any():
        attention = np.ones(n, np.bool_) if attention is None else attention.copy()
        attention[end:] = False
    parted = np.isin(ids, begins) if begins and fields.get("labels") is not None else None
    if parted is not None and not parted[0]:
        parted = None  # a row that does not begin with one was not packed from rows that do
    return attention, starts_of(positions, segments, parted)


def _small_integers(value: Any, n: int) -> NDArray[np.int64] | None:
    """Return a column of integers of the length of the ids, None for anything else."""
    if value is None:
        return None
    try:
        values = np.asarray(value)
    except ValueError:
        return None
    if values.ndim == 2 and values.shape[0] == 1:
        values = values[0]
    if values.ndim != 1 or len(values) != n or values.dtype.kind not in "iu" or int(values.min(initial=0)) < 0:
        return None
    return values.astype(np.int64, copy=False)
