"""JSON values, parsed fast and checked: one behaviour whatever the bytes hold.

orjson does the work. It keeps the last of two equal keys without a word, so the keys of the result are counted against
the `":` of the bytes: equal numbers prove that no key was lost, and only where they differ does the slow parser look.
The slow parser (the standard library's) also takes over what orjson refuses and promptkit does not: NaN outside of
token ids becomes null, a lone surrogate becomes U+FFFD, and both are said in a mark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from promptkit.readers.records import BadRow, Limits

ID_FIELDS = frozenset({"input_ids", "token_ids", "prompt_token_ids", "labels", "loss_mask", "attention_mask"})
NOT_JSON = "not JSON, or cut"
NAN_MARK, SURROGATE_MARK = "NaN read as null", "lone surrogate read as U+FFFD"


def loads(data: bytes | bytearray, limits: Limits) -> tuple[Any, tuple[str, ...]]:
    """Return the JSON value of `data` and marks. Raises BadRow: not JSON, not UTF-8, a key twice, nested too deep."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return _loads_slow(data, limits)
    # Nothing is quoted but the keys: a row of ids. None is lost, and an object in it can only be empty.
    plain = isinstance(value, dict) and data.count(b'"') == 2 * len(value)
    if data.count(b"[") + (2 if plain else data.count(b"{")) > limits.nesting:
        _check_depth(value, limits.nesting)
    if not plain and _may_repeat_keys(data, value):
        _refuse_repeated_keys(data)
    return value, ()


def _may_repeat_keys(data: bytes | bytearray, value: Any) -> bool:
    """Return False only where the bytes hold as many keys as the value."""
    if b'" :' in data or b'"\t' in data or b'"\n' in data or b'"\r' in data or b'\\\\":' in data:
        return True
    return data.count(b'":') - (data.count(b'\\":') if b"\\" in data else 0) != _n_keys(value)


def _n_keys(value: Any) -> int:
    """Return the number of keys in a value. Lists that begin with a number or text are not looked into: a count that
    is too low only costs a slow look."""
    if isinstance(value, dict):
        return len(value) + sum(_n_keys(v) for v in value.values() if isinstance(v, (dict, list)))
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return sum(_n_keys(v) for v in value if isinstance(v, (dict, list)))
    return 0


def _refuse_repeated_keys(data: bytes | bytearray) -> None:
    try:
        json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise BadRow(NOT_JSON) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise BadRow("a key twice in one object")
    return out


def _check_depth(value: Any, most: int) -> None:
    level, depth = [value], 0
    while level := [node for node in level if isinstance(node, (dict, list))]:
        depth += 1
        if depth > most:
            raise BadRow(f"nested deeper than {most} (--nesting)")
        level = [child for node in level for child in (node.values() if isinstance(node, dict) else node)]


class Scanner:
    """Finds the brackets of JSON text that comes in blocks, strings left out. Nothing else is looked at."""

    def __init__(self) -> None:
        self.quoted = False
        self._escaped = False  # the next block begins behind a backslash

    def brackets(self, block: bytes | bytearray) -> Iterator[int]:
        """Yield the place of each bracket outside of strings."""
        skip = 0 if self._escaped else -1
        for at in np.flatnonzero(_STRUCTURAL[np.frombuffer(block, np.uint8)]).tolist():
            if at == skip:
                continue
            byte = block[at]
            if byte == QUOTE:
                self.quoted = not self.quoted
            elif byte == BACKSLASH:
                skip = at + 1
            elif not self.quoted:
                yield at
        if block:
            self._escaped = skip == len(block)


OPEN, CLOSE = b"[{", b"]}"
QUOTE, BACKSLASH = b'"\\'
_STRUCTURAL = np.zeros(256, np.bool_)
_STRUCTURAL[list(b'"\\[]{}')] = True


def _too_deep(data: bytes | bytearray, most: int) -> bool:
    scanner, depth = Scanner(), 0
    for start in range(0, len(data), 1 << 20):
        block = data[start : start + (1 << 20)]
        for at in scanner.brackets(block):
            depth += 1 if block[at] in OPEN else -1
            if depth > most:
                return True
    return False


def _loads_slow(data: bytes | bytearray, limits: Limits) -> tuple[Any, tuple[str, ...]]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRow("not UTF-8") from None
    if _too_deep(data, limits.nesting):
        raise BadRow(f"nested deeper than {limits.nesting} (--nesting)")
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise BadRow("a number with too many digits" if "digits" in str(error) else NOT_JSON) from None
    marks: set[str] = set()
    return clean(value, marks), tuple(sorted(marks))


def clean(value: Any, marks: set[str]) -> Any:
    """Return `value` with NaN outside of ids as None and lone surrogates as U+FFFD; say in `marks` what was found."""
    if isinstance(value, str):
        return clean_text(value, marks)
    if isinstance(value, dict):
        return {
            clean_text(k, marks) if isinstance(k, str) else k: v if k in ID_FIELDS else clean(v, marks)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [clean(v, marks) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        marks.add(NAN_MARK)
        return None
    return value


def clean_text(text: str, marks: set[str]) -> str:
    """Return `text` with lone surrogates as U+FFFD."""
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        marks.add(SURROGATE_MARK)
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)


def drop_nulls(value: Any) -> Any:
    """Return `value` without the null keys that Arrow gives to every struct of a column, at any depth."""
    if isinstance(value, dict):
        return {k: drop_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [drop_nulls(v) for v in value]
    return value
