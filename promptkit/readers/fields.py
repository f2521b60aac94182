"""The names under which training rows keep what they hold. All that is known about foreign schemas is in this table.

A key that is not here is not read, so a column of hidden states costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from promptkit.errors import UsageError
from promptkit.readers.records import BadRow, Hints
from promptkit.registry import suggest

IDS = ("input_ids", "token_ids", "prompt_token_ids")
MASKS = ("loss_mask", "packed_loss_mask", "labels", "assistant_masks", "assistant_mask", "completion_mask")
MESSAGES = ("messages", "conversations", "conversation", "trajectory", "traj", "dialogue", "dialog")
TEXTS = ("formatted_prompt", "text")
NAMES = ("id", "data_id", "uuid", "conversation_id", "traj_id", "instance_id")
# (what is asked, further input, what is answered); the first row whose `asked` field is a filled string is taken
SINGLE_TURN = (
    ("instruction", "input", ("output", "response", "answer", "completion")),  # Alpaca, Magicoder Evol
    ("problem", None, ("solution", "deepseek_solution", "answer", "output")),  # Magicoder OSS, OpenThoughts metadata
    ("question", "context", ("answer", "response", "output", "solution")),  # Glaive code assistant
    ("input", None, ("output", "response", "answer")),  # OpenCodeInstruct
    ("prompt", None, ("completion", "response", "output", "answer", "chosen")),
    ("query", None, ("response", "answer", "output")),
)
SAMPLE = frozenset({*IDS, *MESSAGES, *TEXTS, "chat", "history", *(asked for asked, _, _ in SINGLE_TURN)})
WANTED = frozenset(
    {*SAMPLE, *MASKS, *NAMES, "attention_mask", "tools", "functions", "system", "history", "status", "error"}
    | {"position_ids", "deepseek_reasoning", "chosen", "context", "system_prompt"}
    | {answer for _, _, answers in SINGLE_TURN for answer in answers}
)
TOKENS = frozenset({*IDS, *MASKS, "attention_mask", "position_ids"})
PAIR = frozenset({"input_ids", "loss_mask"})
PLACES = frozenset({"attention_mask", "position_ids", "labels"})  # what tells padding and the parts of a packed row
VOCABULARY = ("d2t", "t2d")
NO_HINTS = Hints()


def first(fields: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    """Return the first of `keys` that stands for something."""
    for key in keys:
        if key in fields and filled(fields[key]):
            return key
    return None


def filled(value: Any) -> bool:
    """Return whether a value stands for something: not null, not empty."""
    if isinstance(value, (str, list, tuple, dict)):
        return bool(value)
    return value is not None and getattr(value, "size", 1) > 0  # an array may be empty too


def some_keys(keys: Iterable[Any]) -> str:
    """Return "keys a, b, c" for a reason, at most eight of them and each cut short."""
    names = [str(k)[:40] for k in keys]
    return "keys " + ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "no keys"


def is_sample(fields: Any, hints: Hints = NO_HINTS) -> bool:
    """Return whether a dict has a field that training rows have, or one that the user named."""
    if not isinstance(fields, Mapping):
        return False
    return not SAMPLE.isdisjoint(fields) or any(_top(column, fields) for _, column in hints.fields)


# ---- what the user says (--map field=column)

KINDS = (IDS, (*MASKS,), (*MESSAGES, *TEXTS, "chat", "history", *(asked for asked, _, _ in SINGLE_TURN)), NAMES)


def check_map(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the pairs (field, column). Raises UsageError for a field that promptkit does not know, or twice one."""
    out = tuple(pairs)
    for field, column in out:
        if field not in WANTED:
            raise UsageError(f"unknown field {field!r} in --map", hint=suggest(field, sorted(WANTED)))
        if not column:
            raise UsageError(f"--map {field}= names no column", hint="write --map field=column")
    if len({field for field, _ in out}) != len(out):
        raise UsageError("a field stands twice in --map", hint="give each field one column")
    return out


@lru_cache(maxsize=64)
def wanted(hints: Hints) -> frozenset[str]:
    """Return the columns that are worth reading: known fields, and those that the user named."""
    columns = {column for _, column in hints.fields}
    return WANTED | columns | {column.partition(".")[0] for column in columns}


def _top(column: str, fields: Mapping[str, Any]) -> bool:
    return column in fields or column.partition(".")[0] in fields


def mapped(fields: Mapping[str, Any], hints: Hints) -> Mapping[str, Any]:
    """Return the row under the names that the user gave; what is mapped stands in for all other fields of its kind.

    `a.b` is the key b of the object a. Raises BadRow where the row has no such column.
    """
    if not hints.fields:
        return fields
    taken = {field for field, _ in hints.fields}
    replaced = {name for kind in KINDS if not taken.isdisjoint(kind) for name in kind}
    out = {k: v for k, v in fields.items() if k not in replaced}
    for field, column in hints.fields:
        value: Any = fields
        for key in (column,) if column in fields else column.split("."):
            if not isinstance(value, Mapping) or key not in value:
                raise BadRow(f"no column {column[:60]}, which --map names")
            value = value[key]
        out[field] = value
    return out
