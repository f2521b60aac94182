"""The names under which training rows keep what they hold. All that is known about foreign schemas is in this table.

A key that is not here is not read, so a column of hidden states costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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
    | {"position_ids", "deepseek_reasoning", "chosen", "context"}
    | {answer for _, _, answers in SINGLE_TURN for answer in answers}
)
VOCABULARY = ("d2t", "t2d")


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


def is_sample(fields: Any) -> bool:
    """Return whether a dict has a field that training rows have."""
    return isinstance(fields, Mapping) and not SAMPLE.isdisjoint(fields)
