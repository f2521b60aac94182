"""MosaicML's MDS shards.

    u32 n · u32 offsets[n + 1] · {"column_names": ["input_ids", "text"], "column_encodings": ["ndarray:int32", "str"],
                                  "column_sizes": [null, null], "compression": null, "format": "mds", ...} · samples
    sample: u32 size of each column without a fixed one · the columns

A shard says itself how it is encoded; `index.json` is only used to know that a directory is one. Columns that are
pickles, or hold images, are never decoded: the first are named as refused where they carry a field that is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from promptkit.readers.chunks import open_chunk, samples, shaped, split
from promptkit.readers.fields import is_sample, wanted
from promptkit.readers.records import BadFile, BadRow, Fault, Limits, NoSamples, Record
from promptkit.readers.schemas import to_record
from promptkit.readers.streams import Stream
from promptkit.readers.tables import not_samples
from promptkit.readers.values import clean, loads

SCALARS = {f"{kind}{bits}": f"<{kind[0]}{bits // 8}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)} | {
    f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)
}
# the byte that names the type of an array whose column does not
CODES = {
    8: "u1",
    9: "i1",
    16: "<u2",
    17: "<i2",
    18: "<f2",
    32: "<u4",
    33: "<i4",
    34: "<f4",
    64: "<u8",
    65: "<i8",
    66: "<f8",
}
Decoder = Callable[[bytes, Limits], Any]


def read(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of one shard."""
    stream = Stream.of(path, limits)
    sizes, config = open_chunk(stream)
    names, encodings, fixed = _columns(config, limits)
    if not is_sample(dict.fromkeys(names), limits.hints):
        if "tokens" not in names:
            raise NoSamples(not_samples(names))
        names[names.index("tokens")] = "input_ids"  # as LLM Foundry calls them
    keys = wanted(limits.hints)
    unsafe = [
        n for n, e in zip(names, encodings, strict=True) if n in keys and e.partition(":")[0] in ("pkl", "pickle")
    ]
    if unsafe:
        raise BadFile(f"refused: its column {unsafe[0][:60]} is a pickle, which can run code; nothing was run")
    decoders = {n: _decoder(e) for n, e in zip(names, encodings, strict=True) if n in keys}
    for row, data in enumerate(samples(stream, sizes, limits)):
        try:
            if data is None:
                raise BadRow(f"record larger than {limits.record_bytes} bytes (--record-bytes)")
            fields, marks = _fields(data, names, fixed, decoders, limits)
            yield to_record(row, fields, limits, marks)
        except BadRow as error:
            yield Fault(row, error.status, str(error))


def _columns(config: bytes, limits: Limits) -> tuple[list[str], list[str], list[int | None]]:
    try:
        value, _ = loads(config, limits)
        names, encodings, sizes = (list(value[f"column_{k}"]) for k in ("names", "encodings", "sizes"))
    except (BadRow, TypeError, KeyError) as error:
        raise BadFile("no MDS shard, or its config is damaged") from error
    sound = (
        len(names) == len(encodings) == len(sizes) == len(set(map(str, names)))
        and all(isinstance(n, str) for n in names + encodings)
        and all(s is None or (type(s) is int and 0 <= s < 1 << 31) for s in sizes)
    )
    if not sound:
        raise BadFile("no MDS shard, or its config is damaged")
    return names, encodings, sizes


def _fields(
    data: bytes, names: list[str], fixed: list[int | None], decoders: dict[str, Decoder], limits: Limits
) -> tuple[dict[str, Any], list[str]]:
    n_open = 4 * sum(1 for size in fixed if not size)  # a size of 0 counts as open, as the library has it
    try:
        told = iter(np.frombuffer(data[:n_open], "<u4").tolist())
        parts = split(data[n_open:], [size or next(told) for size in fixed])
    except (ValueError, StopIteration):
        raise BadRow("the columns of a sample do not fill it") from None
    marks: set[str] = set()
    out: dict[str, Any] = {}
    for name, part in zip(names, parts, strict=True):
        if name in decoders:
            try:
                out[name] = clean(decoders[name](part, limits), marks)
            except (ValueError, TypeError, IndexError, KeyError) as error:
                raise BadRow(f"{name} is damaged: not what its encoding says") from error
    return out, sorted(marks)


def _decoder(encoding: str) -> Decoder:
    kind, _, rest = encoding.partition(":")
    if kind == "str":
        return lambda data, _: data.decode("utf-8")
    if kind == "json":
        return lambda data, limits: loads(data, limits)[0]
    if kind == "int":
        return lambda data, _: int(np.frombuffer(data, "<i8")[0])
    if kind in SCALARS:
        return lambda data, _: np.frombuffer(data, SCALARS[kind])[0].item()
    if kind in ("str_int", "str_float"):
        return lambda data, _: (int if kind == "str_int" else float)(data.decode("ascii")[:400])
    if kind == "ndarray":
        dtype, _, shape = rest.partition(":")
        return lambda data, _: _array(data, dtype, shape)
    if kind == "bytes":
        return _raw
    return lambda data, _: None  # images and what is yet to come: no field of a sample


def _raw(data: bytes, limits: Limits) -> Any:
    """Bytes without a type: ids, as wide as --dtype says or 8 bytes each, as the library's examples write them."""
    from promptkit.readers.widths import DTYPES

    return np.frombuffer(data, DTYPES.get(limits.hints.dtype or "int64"))


def _array(data: bytes, dtype: str, shape: str) -> np.ndarray[Any, Any]:
    at = 0
    if dtype:
        code = SCALARS[dtype]
    else:
        code, at = CODES[data[0]], 1
    if shape:
        sizes = tuple(int(n) for n in shape.split(","))
    else:
        n, width = data[at] >> 2, 1 << (data[at] & 3)
        table = data[at + 1 : at + 1 + n * width]
        sizes = tuple(np.frombuffer(table, f"<u{width}" if width > 1 else "u1").tolist())
        at += 1 + n * width
        if len(sizes) != n:
            raise ValueError("cut")
    if math.prod(sizes) * np.dtype(code).itemsize != len(data) - at:
        raise ValueError("shape and bytes differ")
    return shaped(data[at:], code, sizes)
