"""Stored fields -> Record: which keys hold ids, masks, messages or text.

Whatever the container, a row arrives here as a dict, for example one of

    {"input_ids": [163587, 2482], "loss_mask": [0, 0]}                     SpecForge, speculators, EAGLE
    {"data_id": "a", "formatted_prompt": "…", "input_ids": [[…]], "packed_loss_mask": "12,30"}         TorchSpec
    {"id": "a", "conversations": [{"from": "human", "value": "Hi"}]}       ShareGPT
    {"messages": "[{\\"role\\": \\"user\\", \\"content\\": \\"Hi\\"}]", "tools": "[]"}   agents: JSON in strings
    {"instruction": "Add 1 and 2", "input": "", "output": "3"}             Alpaca, and its many cousins

and leaves as a `Record`, or raises BadRow with a reason that names the field. Values are never bent into shape: an id
that is a float or a bool, a mask of another length, or a message that is a number fails its row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from promptkit.readers.fields import NAMES, PAIR, PLACES, SAMPLE, TEXTS, TOKENS, filled, first, mapped, some_keys
from promptkit.readers.ids import ids_of, mask_of, places_of, zero_one
from promptkit.readers.messages import messages_of, tools_of
from promptkit.readers.records import BadRow, EmptyRow, Limits, Record
from promptkit.readers.single_turn import glaive, single_turn


def to_record(row: int, fields: Mapping[str, Any], limits: Limits, marks: Iterable[str] = ()) -> Record:
    """Return the Record of one stored row. Raises BadRow, or EmptyRow where the row holds nothing."""
    if fields.keys() == PAIR and not limits.hints.fields and (ids := ids_of(fields)) is not None:
        # by far the commonest row, and nothing of what follows concerns it
        flags = fields["loss_mask"]
        mask = zero_one(flags, "loss_mask", len(ids)) if filled(flags) else None
        _check_size(9 * len(ids), limits)
        return Record(row, ids, mask, marks=tuple(marks))
    remarks = list(marks)
    fields = mapped(fields, limits.hints)
    if fields.get("status") in ("error", "skipped") and ("error" in fields or "data" in fields):
        raise EmptyRow(f"status {fields['status']}: the answer was never generated")
    ids = ids_of(fields)
    mask = attention = None
    starts: tuple[int, ...] = ()
    if ids is not None:
        mask = mask_of(fields, len(ids))
        if not PLACES.isdisjoint(fields):
            attention, starts = places_of(fields, ids, mask, limits.hints.begins)
            if starts:
                remarks.append("cut out of a packed row")
    if ids is not None and TOKENS.issuperset(fields):  # there is nothing else in the row
        _check_size(9 * len(ids), limits)
        return Record(row, ids, mask, attention, marks=tuple(remarks), starts=starts)
    tools = tools_of(fields, limits, remarks)
    messages = messages_of(fields, limits, remarks)
    if messages is None and ids is None and isinstance(fields.get("chat"), str):
        messages, tools = glaive(fields)
    key = first(fields, TEXTS)
    text = fields[key] if key is not None and isinstance(fields[key], str) else None
    if messages is None and ids is None and text is None:
        messages = single_turn(fields, limits, remarks)
    if ids is None and messages is None and text is None:
        raise _nothing(fields)
    key = first(fields, NAMES)
    name = str(fields[key]) if key is not None and isinstance(fields[key], (str, int)) else None
    size = 0 if ids is None else 9 * len(ids)
    if text is not None or messages is not None:
        size += len(text or "") + sum(len(m["content"]) for m in messages or ())
    _check_size(size, limits)
    return Record(row, ids, mask, attention, messages, tools, text, name, None, tuple(remarks), starts)


def _check_size(size: int, limits: Limits) -> None:
    if size > limits.record_bytes:
        raise BadRow(f"record larger than {limits.record_bytes} bytes (--record-bytes)")


def _nothing(fields: Mapping[str, Any]) -> BadRow:
    for key in fields:
        if key in SAMPLE and not filled(fields[key]):
            return EmptyRow(f"{key} is {'null' if fields[key] is None else 'empty'}")
    return BadRow(f"no known field: {some_keys(fields)}")
