"""LitData's chunks, described by the index.json beside them.

    chunk-0-0.bin   u32 n · u32 offsets[n + 1] · samples
    index.json      {"chunks": [{"filename": "chunk-0-0.bin", "dim": 5, ...}], "config": {"data_spec": "[1, {...}]",
                     "data_format": ["no_header_tensor:16", "str"], "item_loader": "PyTreeLoader", ...}}
    sample          u32 size of each leaf · the leaves          (written for its TokensLoader: nothing but ids)

Rows with lists inside are, in recent versions, an Arrow file behind an empty table of offsets. Leaves that are pickles,
media or encrypted are never decoded.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from promptkit.readers import arrow
from promptkit.readers.chunks import open_chunk, samples, shaped, split
from promptkit.readers.fields import is_sample, wanted
from promptkit.readers.records import BadFile, BadRow, Fault, Limits, NoSamples, Record
from promptkit.readers.schemas import to_record
from promptkit.readers.streams import Stream
from promptkit.readers.tables import not_samples
from promptkit.readers.values import clean, loads

MAX_INDEX = 64 << 20
# 13 and 14 are both int16 (torch.int16, torch.short), and so on
TORCH = {11: "u1", 12: "i1", 13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 19: "?", 20: "<u2"}
NUMPY = {0: "i1", 1: "<i2", 2: "<i4", 3: "<i8", 4: "u1", 5: "<u2", 6: "<u4", 7: "<u8", 13: "?"}


def load_index(directory: Path) -> dict[str, Any] | None:
    """Return the index.json of a directory of chunks, None where it is none."""
    try:
        with open(directory / "index.json", "rb") as file:
            index = json.loads(file.read(MAX_INDEX))
    except (OSError, ValueError, RecursionError):
        return None
    sound = isinstance(index, dict) and isinstance(index.get("chunks"), list) and isinstance(index.get("config"), dict)
    return index if sound else None


def read(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of one chunk."""
    index = load_index(path.parent)
    if index is None:
        raise BadFile("no index.json of LitData beside the chunk: its samples cannot be told apart")
    config = index["config"]
    if config.get("encryption"):
        raise BadFile("an encrypted LitData chunk: decrypt it first")
    if config.get("compression_level") in ("batch", "sample"):
        raise BadFile(
            f"LitData chunks packed by {config['compression_level']}: write them with compression_level='chunk'"
        )
    formats = config.get("data_format")
    if not isinstance(formats, list) or not formats or not all(isinstance(f, str) for f in formats):
        raise BadFile("the index.json of LitData does not say how samples are stored")
    names = _names(config.get("data_spec"), len(formats))
    if not is_sample(dict.fromkeys(names), limits.hints):
        raise NoSamples(not_samples(names))
    keys = wanted(limits.hints)
    for name, kind in zip(names, formats, strict=True):
        if name in keys and kind == "pickle":
            raise BadFile(f"refused: its leaf {name[:60]} is a pickle, which can run code; nothing was run")
    entry = next((c for c in index["chunks"] if isinstance(c, dict) and c.get("filename") == path.name), {})
    only_ids = len(formats) == 1 and entry.get("dim") is not None
    stream = Stream.of(path, limits)
    sizes, _ = open_chunk(stream)
    if len(sizes) and not sizes.any() and stream.some(6) == b"ARROW1":  # rows that hold lists: an Arrow file at the end
        yield from arrow.read_stream_behind(path, 4 * (len(sizes) + 2) + 8, limits)
        return
    for row, data in enumerate(samples(stream, sizes, limits)):
        try:
            if data is None:
                raise BadRow(f"record larger than {limits.record_bytes} bytes (--record-bytes)")
            fields, marks = _fields(data, names, formats, keys, only_ids, limits)
            yield to_record(row, fields, limits, marks)
        except BadRow as error:
            yield Fault(row, error.status, str(error))


def _names(spec: Any, n_leaves: int) -> list[str]:
    """Return the names of the leaves: the keys of a dict, else `input_ids` for a single leaf."""
    try:
        tree = json.loads(spec)[1]
        names = json.loads(tree["context"]) if tree["type"] == "builtins.dict" else []
        if len(names) == n_leaves == len(tree["children_spec"]) and all(isinstance(n, str) for n in names):
            return list(names)
    except (TypeError, ValueError, KeyError, IndexError, RecursionError):
        pass
    return ["input_ids"] if n_leaves == 1 else [f"leaf {i}" for i in range(n_leaves)]


def _fields(
    data: bytes, names: list[str], formats: list[str], keys: frozenset[str], only_ids: bool, limits: Limits
) -> tuple[dict[str, Any], list[str]]:
    n_head = 0 if only_ids else 4 * len(names)
    try:
        sizes = [len(data)] if only_ids else np.frombuffer(data[:n_head], "<u4").tolist()
        parts = split(data[n_head:], sizes)
        if len(parts) != len(names):
            raise ValueError
    except ValueError:
        raise BadRow("the leaves of a sample do not fill it") from None
    marks: set[str] = set()
    out: dict[str, Any] = {}
    for name, kind, part in zip(names, formats, parts, strict=True):
        if name in keys:
            try:
                out[name] = clean(_leaf(kind, part, limits), marks)
            except (ValueError, TypeError, IndexError, KeyError, struct.error, RecursionError) as error:
                raise BadRow(f"{name} is damaged: not what its format says") from error
    return out, sorted(marks)


def _leaf(kind: str, data: bytes, limits: Limits) -> Any:
    name, _, code = kind.partition(":")
    if name == "no_header_tensor":
        return shaped(data, TORCH[int(code)], (-1,))
    if name == "no_header_numpy":
        return shaped(data, NUMPY[int(code)], (-1,))
    if name in ("tensor", "numpy"):
        order, table = (">", TORCH) if name == "tensor" else ("<", NUMPY)
        number, rank = struct.unpack_from(f"{order}II", data)
        if rank > 8:
            raise ValueError("too many dimensions")
        shape = struct.unpack_from(f"{order}{rank}I", data, 8)
        dtype, body = table[number], data[8 + 4 * rank :]
        if math.prod(shape) * np.dtype(dtype).itemsize != len(body):
            raise ValueError("shape and bytes differ")
        return shaped(body, dtype, shape)
    if name in ("str", "text"):
        return data.decode("utf-8")
    if name == "json":
        return loads(data, limits)[0] if data[:1] > b" " else _nested(data)
    if name in ("int", "float"):
        return np.frombuffer(data, "<i8" if name == "int" else "<f8")[0].item()
    return None


_I64S = 2


def _nested(data: bytes) -> Any:
    """LitData's compact lists: only the one that ids are kept in."""
    if data[0] != _I64S or len(data) != 5 + 8 * int.from_bytes(data[1:5], "little"):
        raise ValueError("a compact list that is not of integers")
    return np.frombuffer(data[5:], "<i8")
