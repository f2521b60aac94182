"""What a file holds, before any of it is decoded: the names of its columns and the types that it states.

    look(Path("data_7.ckpt"), "torch", Limits()) -> {"input_ids": "int64 [812]", "hidden_state": "float [1, 812, 7168]"}

Of JSON the first row is looked at, of the others only headers. For a first contact: a file that cannot be read
says nothing here, its reader says why.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from promptkit.readers import json_lines, litdata, npy, torch_packed, torch_zip
from promptkit.readers.chunks import open_chunk
from promptkit.readers.limits import ModestReads, Unpacked, plain_chunks
from promptkit.readers.pickles import Machine, TensorRef
from promptkit.readers.records import BadRow, Limits
from promptkit.readers.streams import Stream
from promptkit.readers.values import loads

MOST = 40  # columns that are listed


def look(path: Path, kind: str, limits: Limits) -> dict[str, str]:
    """Return column -> type as the file states it; nothing where it states none or cannot be read."""
    family, _, packing = kind.partition(".")
    try:
        found = dict(_LOOKS[family](path, packing, limits)) if family in _LOOKS else {}
    except Exception:  # damaged in any way: the reader names it
        return {}
    return dict(list(found.items())[:MOST])


def _json(path: Path, _: str, limits: Limits) -> Iterator[tuple[str, str]]:
    for value in json_lines._values(plain_chunks(path, limits), limits):
        if isinstance(value, BadRow):
            continue
        row = json_lines._rows_in(loads(value, limits)[0], limits)[0]
        if isinstance(row, dict):
            yield from ((str(k), _typed(v)) for k, v in row.items())
            return


def _typed(value: Any) -> str:
    """Say what a JSON value is: "list of 812 int", "text", "object"."""
    if isinstance(value, list):
        inner = sorted({_typed(v) if not isinstance(v, list) else "list" for v in value[:64]})
        return f"list of {len(value)} {' or '.join(inner)}" if inner else "empty list"
    if isinstance(value, str):
        return "text, JSON" if value[:1] in ("[", "{") and value[-1:] in ("]", "}") else "text"
    names = {dict: "object", bool: "bool", int: "int", float: "float", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def _torch(path: Path, packing: str, limits: Limits) -> Iterator[tuple[str, str]]:
    if packing:
        try:
            machine = Machine(torch_packed._Early(plain_chunks(path, limits)).pickle())
        except Exception:  # another order of entries than torch's own; a small file can be unpacked
            machine = Machine(torch_zip._Archive(io.BytesIO(Unpacked(path, limits).read(limits.record_bytes))).pickle())
    else:
        with open(path, "rb") as file:
            machine = Machine(torch_zip._Archive(file).pickle())
    first = next(iter(machine), None)
    row = first if first is not None else machine.root
    if isinstance(row, dict):
        for key, value in row.items():
            tensor = isinstance(value, TensorRef)
            yield str(key), f"{_dtype(value.dtype)} {list(value.size)}" if tensor else _typed(machine.whole(value))


def _dtype(code: str) -> str:
    return np.dtype(code).name if code else "float"


def _safetensors(path: Path, _: str, limits: Limits) -> Iterator[tuple[str, str]]:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = loads(file.read(min(length, 100_000_000)), limits)[0]
    for key, entry in header.items():
        if key != "__metadata__":
            yield str(key), f"{entry['dtype']} {entry['shape']}"


def _schema(path: Path, packing: str, limits: Limits, kind: str) -> Iterator[tuple[str, str]]:
    import pyarrow as pa

    if kind == "parquet":
        import pyarrow.parquet as pq

        with pa.OSFile(os.fsencode(path)) as file:
            schema = pq.ParquetFile(file).schema_arrow
    elif packing:
        with pa.PythonFile(Unpacked(path, limits), mode="r") as file:
            schema = pa.ipc.open_stream(file).schema
    else:
        with pa.OSFile(os.fsencode(path)) as file:
            schema = (pa.ipc.open_stream if kind == "arrow-stream" else pa.ipc.open_file)(file).schema
    for field in schema:
        yield field.name, str(field.type).replace("element: ", "").replace("item: ", "").replace(" not null", "")


def _npy(path: Path, _: str, limits: Limits) -> Iterator[tuple[str, str]]:
    array = npy.open_array(Stream.of(path, limits))
    yield path.name.partition(".")[0], f"{array.dtype} {list(array.shape)}"


def _npz(path: Path, _: str, limits: Limits) -> Iterator[tuple[str, str]]:
    with open(path, "rb") as file, zipfile.ZipFile(ModestReads(file)) as archive:
        for name in archive.namelist():
            with archive.open(name) as entry:
                array = npy.open_array(Stream(iter([entry.read(1 << 16)])))
                yield name.removesuffix(".npy"), f"{array.dtype} {list(array.shape)}"


def _mds(path: Path, _: str, limits: Limits) -> Iterator[tuple[str, str]]:
    config = json.loads(open_chunk(Stream.of(path, limits))[1])
    yield from zip(config["column_names"], config["column_encodings"], strict=True)


def _litdata(path: Path, _: str, limits: Limits) -> Iterator[tuple[str, str]]:
    index = litdata.load_index(path.parent)
    if index is not None:
        formats = index["config"]["data_format"]
        yield from zip(litdata._names(index["config"].get("data_spec"), len(formats)), formats, strict=True)


_LOOKS: dict[str, Any] = {
    "jsonl": _json,
    "torch": _torch,
    "safetensors": _safetensors,
    "npy": _npy,
    "npz": _npz,
    "mds": _mds,
    "litdata": _litdata,
    **{
        kind: lambda path, packing, limits, kind=kind: _schema(path, packing, limits, kind)
        for kind in ("arrow-stream", "arrow-file", "parquet")
    },
}
