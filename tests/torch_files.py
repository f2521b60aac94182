"""Torch files without torch: the pickle is put together by hand, so that a test can also put together a wrong one."""

from __future__ import annotations

import pickle
import struct
import zipfile
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

STORAGES = {
    "int64": "Long",
    "int32": "Int",
    "int16": "Short",
    "uint8": "Byte",
    "bool": "Bool",
    "float32": "Float",
    "int8": "Char",
}


@dataclass
class View:
    """A tensor that is a window into a larger storage; offset and strides in elements."""

    storage: np.ndarray
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass
class Global:
    """A global with arguments to call it with, as a poisoned file has it."""

    name: str
    args: tuple[Any, ...] = ()


def dump(value: Any, storages: list[np.ndarray]) -> bytes:
    """Return the opcodes for a value, without header and end; storages are collected."""
    if isinstance(value, np.ndarray):
        value = View(value, 0, value.shape, tuple(s // value.itemsize for s in np.ascontiguousarray(value).strides))
    if isinstance(value, View):
        storages.append(np.ascontiguousarray(value.storage))
        kind, numel = value.storage.dtype.name, value.storage.size
        new = kind in ("uint16", "uint32", "uint64")
        storage = b"ctorch.storage\nUntypedStorage\n" if new else f"ctorch\n{STORAGES[kind]}Storage\n".encode()
        key = str(len(storages) - 1)
        pid = (
            b"("
            + text("storage")
            + storage
            + text(key)
            + text("cpu")
            + number(numel * (value.storage.itemsize if new else 1))
            + b"tQ"
        )
        rest = number(value.offset) + numbers(value.size) + numbers(value.stride) + b"\x89ccollections\nOrderedDict\n)R"
        rebuild = b"ctorch._utils\n_rebuild_tensor_v3\n(" if new else b"ctorch._utils\n_rebuild_tensor_v2\n("
        return rebuild + pid + rest + (f"ctorch\n{kind}\n".encode() if new else b"") + b"tR"
    if isinstance(value, Global):
        module, _, name = value.name.rpartition(".")
        return f"c{module}\n{name}\n(".encode() + b"".join(dump(a, storages) for a in value.args) + b"tR"
    if isinstance(value, dict):
        return b"}(" + b"".join(dump(k, storages) + dump(v, storages) for k, v in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(dump(v, storages) for v in value) + b"e"
    if isinstance(value, str):
        return text(value)
    return pickle.dumps(value, 2)[2:-1]


def text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def save(value: Any, file: IO[bytes] | Any, *, order: str = "little", compression: int = zipfile.ZIP_STORED) -> None:
    """Write what torch.save would write."""
    storages: list[np.ndarray] = []
    program = b"\x80\x02" + dump(value, storages) + b"."
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/byteorder", order)
        for i, storage in enumerate(storages):
            swap = order == "big" and storage.itemsize > 1
            archive.writestr(f"archive/data/{i}", (storage.byteswap() if swap else storage).tobytes())
        archive.writestr("archive/version", "3\n")
