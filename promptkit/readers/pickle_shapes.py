"""Pickles of one writer differ in a few numbers, so the next one is read by comparing it with one seen before.

    }q.(X....input_idsq. ... X....cpuq.M\\xd7\\x07tq.QK\\x00M\\xd7\\x07\\x85q. ...    a number behind each M and K

A directory of 100k files of one row each has 100k pickles of the same opcodes and texts. `pickles.Machine` takes 60
microseconds for one, a comparison 5, and it gives the same: no opcode of `_BLIND` looks at a number, save that a tensor
may have none below zero, and such a pickle is left to the machine. To learn which number goes where, the machine runs
the pickle once more, each number in it replaced by its place among them.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from promptkit.readers.pickles import Machine, Storage, TensorRef
from promptkit.readers.records import BadFile

LARGE = 1 << 14  # bytes; longer pickles hold texts, and none is like another
MOST_SHAPES = 64  # lengths below 256, 65536 and above have pickles of different lengths
_NUMBERS = {"BININT1": "B", "BININT2": "H", "BININT": "i"}
# LONG1 is a number too, and no opcode but these sets up a list, another dict's items or bytes.
_BLIND = frozenset(
    {"PROTO", "STOP", "MARK", "EMPTY_DICT", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINUNICODE",
     "SHORT_BINUNICODE", "NEWFALSE", "NEWTRUE", "GLOBAL", "BINPERSID", "REDUCE", "BINPUT", "LONG_BINPUT", "BINGET",
     "LONG_BINGET", "MEMOIZE", "SETITEM", "SETITEMS"}
)  # fmt: skip


@dataclass(slots=True)
class _Shape:
    layout: struct.Struct  # texts and numbers in turn, a text first and last
    texts: tuple[bytes, ...]
    tensors: dict[str, TensorRef]  # places of numbers stand for the numbers


# Length -> shapes. Only what was learned: it changes no result, so processes need not share it.
_known: dict[int, list[_Shape]] = {}
_tried = 0


def recall(data: bytes | memoryview, keys: Collection[str]) -> dict[str, TensorRef | None] | None:
    """Return the dict that a pickle stands for where it is like one learned before; only tensors of `keys` are there,
    the others are None."""
    for shape in _known.get(len(data), ()):
        parts = shape.layout.unpack(data)
        if parts[::2] == shape.texts:
            numbers = parts[1::2]
            if min(numbers) < 0:
                return None
            return {k: _filled(ref, numbers) if k in keys else None for k, ref in shape.tensors.items()}
    return None


def learn(machine: Machine) -> None:
    """Remember the pickle that a machine has run, if it is a dict of tensors alone."""
    global _tried
    root = machine.root
    if len(machine.data) > LARGE or _tried >= MOST_SHAPES or not _tensors_alone(root):
        return
    _tried += 1
    data = bytes(machine.data)
    try:
        shape = _shape(data)
    except (BadFile, ValueError, struct.error):
        return
    if shape is not None:
        _known.setdefault(len(data), []).append(shape)
        if recall(data, root) != root:
            _known[len(data)].pop()


def _tensors_alone(root: Any) -> bool:
    return type(root) is dict and bool(root) and all(type(k) is str and type(v) is TensorRef for k, v in root.items())


def _shape(data: bytes) -> _Shape | None:
    import pickletools

    ops = [(op.name, at) for op, _, at in pickletools.genops(data) if at is not None]
    names = [name for name, _ in ops]
    holes = [(at + 1, _NUMBERS[name]) for name, at in ops if name in _NUMBERS]
    # One change of one dict, which is the root, as that is not empty. Dicts of other keys could give other sizes.
    n_changes = names.count("SETITEM") + names.count("SETITEMS")
    if not _BLIND.issuperset(set(names) - _NUMBERS.keys()) or n_changes != 1 or not 0 < len(holes) < 256:
        return None
    marked, code, done = bytearray(data), "<", 0
    for place, (at, kind) in enumerate(holes):
        width = struct.calcsize(kind)
        marked[at : at + width] = place.to_bytes(width, "little")
        code += f"{at - done}s{kind}"
        done = at + width
    layout = struct.Struct(f"{code}{len(data) - done}s")
    tensors = Machine(bytes(marked)).run()
    return _Shape(layout, layout.unpack(data)[::2], tensors) if _tensors_alone(tensors) else None


def _filled(ref: TensorRef, numbers: tuple[int, ...]) -> TensorRef:
    storage = Storage(ref.storage.dtype, ref.storage.key, numbers[ref.storage.numel])
    size, stride = tuple([numbers[i] for i in ref.size]), tuple([numbers[i] for i in ref.stride])
    return TensorRef(storage, numbers[ref.offset], size, stride, ref.dtype)
