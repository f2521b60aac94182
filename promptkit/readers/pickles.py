"""A pickle is a program for a small stack machine. This is the part of the machine that `torch.save` needs.

The standard unpickler imports and calls whatever the file names. This one has no import and no call: a global is looked
up in the table below and otherwise refused by name, and "calling" a tensor rebuild only notes where the tensor lies
(`TensorRef`). So no file can run code, and the hidden states beside the ids are never read.

The items of a list at the bottom of the stack (TorchSpec's cache: one dict per row, all texts among them) are handed
out as they come, and a long text stays in the file until `whole` fetches it, so that memory stays flat.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from promptkit.readers.records import BadFile, BadRow

_FLOATS = ("Double", "Float", "Half", "BFloat16", "ComplexDouble", "ComplexFloat", "QInt32", "QInt8", "QUInt8")
_STORAGES = {"Long": "i8", "Int": "i4", "Short": "i2", "Char": "i1", "Byte": "u1", "Bool": "?", "Untyped": "u1"}
_DTYPES = {
    "int64": "i8", "int32": "i4", "int16": "i2", "int8": "i1", "uint8": "u1", "bool": "?",
    "uint16": "u2", "uint32": "u4", "uint64": "u8",
}  # fmt: skip
_OTHER_DTYPES = ("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2")
NOT_READ = ""  # the dtype of what promptkit never reads
LONG = 256  # bytes
DEEP = 1 << 22  # entries of the stack or of the memo


@dataclass(slots=True)  # not frozen, which would cost a microsecond each
class Storage:
    """One block of numbers: its numpy dtype without byte order ("" where it is never read), name and length."""

    dtype: str
    key: str
    numel: int


@dataclass(slots=True)
class TensorRef:
    """A view of a storage: offset, sizes and strides in elements."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class _Kind:
    dtype: str


class _Mark:
    pass


@dataclass(frozen=True, slots=True)
class _Long:
    """A long text, left where it stands in the file: the memo would otherwise hold every text of a cache."""

    start: int
    length: int


def _tensor(*args: Any) -> TensorRef:
    storage, offset, size, stride = args[:4]
    return _checked(TensorRef(storage, offset, size, stride, storage.dtype))


def _tensor_v3(*args: Any) -> TensorRef:
    storage, offset, size, stride = args[:4]
    dtype = next((a.dtype for a in args[4:] if isinstance(a, _Kind)), NOT_READ)
    return _checked(TensorRef(storage, offset, size, stride, dtype))


def _checked(ref: TensorRef) -> TensorRef:
    numbers = (ref.offset, *ref.size, *ref.stride)
    if not isinstance(ref.storage, Storage) or len(ref.size) != len(ref.stride):
        raise ValueError("a tensor without a storage")
    if not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError("a tensor with odd sizes")
    return ref


def _first(*args: Any) -> Any:
    return args[0]


def _dict() -> dict[Any, Any]:
    return {}


def _size(*args: Any) -> tuple[Any, ...]:
    return tuple(args[0]) if args else ()


GLOBALS: dict[str, Any] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _first,
    "torch.Size": _size,
    "collections.OrderedDict": _dict,
    **{f"torch.{name}Storage": _Kind(kind) for name, kind in _STORAGES.items()},
    **{f"torch.{name}Storage": _Kind(NOT_READ) for name in _FLOATS},
    "torch.storage.UntypedStorage": _Kind("u1"),
    **{f"torch.{name}": _Kind(kind) for name, kind in _DTYPES.items()},
    **{f"torch.{name}": _Kind(NOT_READ) for name in _OTHER_DTYPES},
}


def refusal(name: str) -> BadFile:
    """Return the error for a global that is no part of a file of tensors."""
    return BadFile(f"refused: its pickle names {name[:120]!r}, which could run code; nothing was run")


class Machine:
    """Runs one pickle. Iterate to get the items of a list; afterwards `root` is the value and `end` where it stopped.

    What comes out still has holes for long texts: `whole` fills them.

    Raises BadFile for a refused global and for anything that is not a whole pickle.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data)
        self.root: Any = None
        self.end = 0
        # A value can hold itself many times over, and grow without bound when it is copied out.
        self._budget = 64 * len(self.data) + 100_000

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._run()
        except BadFile:
            raise
        except (IndexError, ValueError, TypeError, KeyError, AttributeError, OverflowError, struct.error) as error:
            raise BadFile("its pickle is cut or malformed") from error

    def run(self) -> Any:
        """Return the value; the items of a list are lost."""
        for _ in self:
            pass
        return self.root

    def whole(self, value: Any, nesting: int = 256) -> Any:
        """Return a copy of a value with its long texts fetched. Raises BadRow where it has no bounds."""
        kind = type(value)
        if kind is _Long:
            self._budget -= value.length
        elif kind in (dict, list, tuple):
            self._budget -= 1 + len(value)
            if nesting == 0:
                raise BadRow("its pickle nests too deep")
        if self._budget < 0:
            raise BadRow("its pickle repeats itself without bound")
        if kind is _Long:
            return str(self.data[value.start : value.start + value.length], "utf-8", "surrogatepass")
        if kind is dict:
            return {k: self.whole(v, nesting - 1) for k, v in value.items()}
        if kind in (list, tuple):
            return kind(self.whole(v, nesting - 1) for v in value)
        return value

    def _run(self) -> Iterator[Any]:
        data, at = self.data, 0
        n = len(data)
        stack: list[Any] = []
        memo: dict[int, Any] = {}

        def since_mark() -> list[Any]:
            for i in range(len(stack) - 1, -1, -1):
                if stack[i] is _Mark:
                    items = stack[i + 1 :]
                    del stack[i:]
                    return items
            raise ValueError("no mark")

        def text(start: int, length: int) -> str | _Long:
            if start + length > n:
                raise ValueError("cut")
            if length > LONG:
                return _Long(start, length)
            return str(data[start : start + length], "utf-8", "surrogatepass")

        def line(start: int) -> tuple[str, int]:
            raw = bytes(data[start : start + 512])
            stop = raw.index(b"\n")
            return raw[:stop].decode("utf-8"), start + stop + 1

        while True:
            op = data[at]
            at += 1
            if op == 0x71:  # BINPUT
                memo[data[at]] = stack[-1]
                at += 1
            elif op == 0x68:  # BINGET
                stack.append(memo[data[at]])
                at += 1
            elif op == 0x58:  # BINUNICODE
                (length,) = _U32(data, at)
                stack.append(text(at + 4, length))
                at += 4 + length
            elif op == 0x4B:  # BININT1
                stack.append(data[at])
                at += 1
            elif op == 0x4D:  # BININT2
                stack.append(data[at] | data[at + 1] << 8)
                at += 2
            elif op == 0x4A:  # BININT
                stack.append(_I32(data, at)[0])
                at += 4
            elif op == 0x28:  # MARK
                stack.append(_Mark)
            elif op == 0x74:  # TUPLE
                stack.append(tuple(since_mark()))
            elif op in (0x85, 0x86, 0x87):  # TUPLE1, TUPLE2, TUPLE3
                count = op - 0x84
                if len(stack) < count:
                    raise ValueError("stack too short")
                stack[-count:] = [tuple(stack[-count:])]
            elif op == 0x29:  # EMPTY_TUPLE
                stack.append(())
            elif op == 0x7D:  # EMPTY_DICT
                stack.append({})
            elif op == 0x5D:  # EMPTY_LIST
                stack.append([])
            elif op == 0x72:  # LONG_BINPUT
                memo[_U32(data, at)[0]] = stack[-1]
                at += 4
            elif op == 0x6A:  # LONG_BINGET
                stack.append(memo[_U32(data, at)[0]])
                at += 4
            elif op == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif op == 0x63:  # GLOBAL
                module, at = line(at)
                name, at = line(at)
                stack.append(_global(f"{module}.{name}"))
            elif op == 0x93:  # STACK_GLOBAL
                name, module = stack.pop(), stack.pop()
                stack.append(_global(f"{module}.{name}"))
            elif op == 0x51:  # BINPERSID
                stack.append(_storage(stack.pop()))
            elif op == 0x52:  # REDUCE
                args = stack.pop()
                function: Callable[..., Any] = stack.pop()
                if function not in _CALLABLE or not isinstance(args, tuple):
                    raise ValueError("a call of what is no function")
                stack.append(function(*args))
            elif op == 0x75:  # SETITEMS
                items = since_mark()
                _set(stack[-1], items)
            elif op == 0x73:  # SETITEM
                value, key = stack.pop(), stack.pop()
                _set(stack[-1], [key, value])
            elif op == 0x65 or op == 0x61:  # APPENDS, APPEND
                items = since_mark() if op == 0x65 else [stack.pop()]
                if len(stack) == 1 and type(stack[0]) is list:
                    yield from items
                else:
                    _extend(stack[-1], items)
            elif op == 0x4E:  # NONE
                stack.append(None)
            elif op == 0x88:  # NEWTRUE
                stack.append(True)
            elif op == 0x89:  # NEWFALSE
                stack.append(False)
            elif op == 0x8A:  # LONG1
                length = data[at]
                stack.append(int.from_bytes(_take(data, at + 1, length), "little", signed=True))
                at += 1 + length
            elif op == 0x47:  # BINFLOAT
                stack.append(_F64(data, at)[0])
                at += 8
            elif op == 0x8C:  # SHORT_BINUNICODE
                stack.append(text(at + 1, data[at]))
                at += 1 + data[at]
            elif op == 0x8D:  # BINUNICODE8
                (length,) = _U64(data, at)
                stack.append(text(at + 8, length))
                at += 8 + length
            elif op in (0x43, 0x55):  # SHORT_BINBYTES, SHORT_BINSTRING
                stack.append(bytes(_take(data, at + 1, data[at])))
                at += 1 + data[at]
            elif op in (0x42, 0x54):  # BINBYTES, BINSTRING
                (length,) = _U32(data, at)
                stack.append(bytes(_take(data, at + 4, length)))
                at += 4 + length
            elif op == 0x8E:  # BINBYTES8
                (length,) = _U64(data, at)
                stack.append(bytes(_take(data, at + 8, length)))
                at += 8 + length
            elif op in (0x62, 0x30):  # BUILD (the state of an OrderedDict or tensor, nothing in it is a sample), POP
                stack.pop()
            elif op == 0x31:  # POP_MARK
                since_mark()
            elif op == 0x6C:  # LIST
                stack.append(since_mark())
            elif op == 0x64:  # DICT
                fresh: dict[Any, Any] = {}
                _set(fresh, since_mark())
                stack.append(fresh)
            elif op == 0x80:  # PROTO
                at += 1
            elif op == 0x95:  # FRAME
                at += 8
            elif op == 0x2E:  # STOP
                self.root, self.end = stack.pop(), at
                return
            elif op == 0x69:  # INST: import and call in one
                module, at = line(at)
                name, at = line(at)
                raise refusal(f"{module}.{name}")
            else:
                raise BadFile(f"refused: its pickle uses opcode {op:#04x}, which no file of tensors needs")
            if n > DEEP and (len(stack) > DEEP or len(memo) > 8 * DEEP):  # each takes a byte
                raise BadFile("its pickle nests or remembers too much")


_U32, _I32, _U64 = (struct.Struct(code).unpack_from for code in ("<I", "<i", "<Q"))
_F64 = struct.Struct(">d").unpack_from
_CALLABLE = (_tensor, _tensor_v3, _first, _dict, _size)


def _take(data: memoryview, start: int, length: int) -> memoryview:
    if start + length > len(data):
        raise ValueError("cut")
    return data[start : start + length]


def _global(name: str) -> Any:
    if name not in GLOBALS:
        raise refusal(name)
    return GLOBALS[name]


def _storage(pid: Any) -> Storage:
    tag, kind, key, _, numel = pid
    if tag != "storage" or not isinstance(kind, _Kind) or type(numel) is not int or numel < 0:
        raise ValueError("an unknown persistent id")
    if not isinstance(key, str) or not key or any(c in key for c in "/\\\0"):
        raise ValueError("a storage with an odd name")
    return Storage(kind.dtype, key, numel)


def _set(target: Any, items: list[Any]) -> None:
    if type(target) is not dict or len(items) % 2:
        raise ValueError("items for what is no dict")
    for key in items[::2]:
        # the hash of a tuple that nests deep enough ends the process
        if key is not None and type(key) not in (str, int, float, bool, bytes):
            raise ValueError("a key that is no plain value")
    target.update(zip(items[::2], items[1::2], strict=True))


def _extend(target: Any, items: list[Any]) -> None:
    if type(target) is not list:
        raise ValueError("items for what is no list")
    target.extend(items)
