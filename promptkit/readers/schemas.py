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

import re
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptkit.conversation import Message
from promptkit.readers.records import BadRow, EmptyRow, Limits, Record
from promptkit.readers.values import drop_nulls, loads

IDS = ("input_ids", "token_ids", "prompt_token_ids")
MASKS = ("loss_mask", "packed_loss_mask", "labels", "assistant_masks", "assistant_mask", "completion_mask")
MESSAGES = ("messages", "conversations", "conversation", "trajectory", "dialogue", "dialog")
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
SAMPLE = frozenset({*IDS, *MESSAGES, *TEXTS, "chat", *(asked for asked, _, _ in SINGLE_TURN)})
WANTED = frozenset(
    {*SAMPLE, *MASKS, *NAMES, "attention_mask", "tools", "functions", "system", "history", "status", "error"}
    | {"position_ids", "deepseek_reasoning", "chosen", "context"}
    | {answer for _, _, answers in SINGLE_TURN for answer in answers}
)
VOCABULARY = ("d2t", "t2d")

ROLES = {
    **dict.fromkeys(("system", "developer", "context"), "system"),
    **dict.fromkeys(("user", "human", "prompter", "customer"), "user"),
    **dict.fromkeys(
        ("assistant", "gpt", "chatgpt", "bing", "bard", "ai", "model", "bot", "agent", "claude"), "assistant"
    ),
    **dict.fromkeys(("function_call", "tool_call", "assistant_analysis", "assistant_commentary"), "assistant"),
    **dict.fromkeys(("assistant_final",), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "function_response", "tool_response", "ipython"), "tool"),
}


def to_record(row: int, fields: Mapping[str, Any], limits: Limits, marks: Iterable[str] = ()) -> Record:
    """Return the Record of one stored row. Raises BadRow, or EmptyRow where the row holds nothing."""
    remarks = list(marks)
    if fields.get("status") in ("error", "skipped") and ("error" in fields or "data" in fields):
        raise EmptyRow(f"status {fields['status']}: the answer was never generated")
    ids = _ids(fields)
    mask = None if ids is None else _mask(fields, len(ids))
    attention = None
    if ids is not None and fields.get("attention_mask") is not None:
        attention = _zero_one(fields["attention_mask"], "attention_mask", len(ids))
    if ids is not None and fields.get("position_ids") is not None and _restarts(fields["position_ids"]):
        remarks.append("packed: position_ids restart inside the row")
    tools = _tools(fields, limits, remarks)
    messages = _messages(fields, limits, remarks)
    if messages is None and ids is None and isinstance(fields.get("chat"), str):
        messages, tools = _glaive(fields)
    key = _first(fields, TEXTS)
    text = fields[key] if key is not None and isinstance(fields[key], str) else None
    if messages is None and ids is None and text is None:
        messages = _single_turn(fields, limits, remarks)
    if ids is None and messages is None and text is None:
        raise _nothing(fields)
    key = _first(fields, NAMES)
    name = str(fields[key]) if key is not None and isinstance(fields[key], (str, int)) else None
    size = 0 if ids is None else 9 * len(ids)
    if text is not None or messages is not None:
        size += len(text or "") + sum(len(m["content"]) for m in messages or ())
    if size > limits.record_bytes:
        raise BadRow(f"record larger than {limits.record_bytes} bytes (--record-bytes)")
    return Record(row, ids, mask, attention, messages, tools, text, name, None, tuple(remarks))


def _first(fields: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    """Return the first of `keys` that stands for something."""
    for key in keys:
        if key in fields and _filled(fields[key]):
            return key
    return None


def _nothing(fields: Mapping[str, Any]) -> BadRow:
    for key in fields:
        if key in SAMPLE:
            what = "null" if fields[key] is None else "empty" if not _filled(fields[key]) else "of an unknown kind"
            return EmptyRow(f"{key} is {what}") if what != "of an unknown kind" else BadRow(f"{key} is {what}")
    return BadRow(f"no known field: {some_keys(fields)}")


def _filled(value: Any) -> bool:
    return bool(len(value)) if hasattr(value, "__len__") else value is not None


def some_keys(keys: Iterable[Any]) -> str:
    """Return "keys a, b, c" for a reason, at most eight of them and each cut short."""
    names = [str(k)[:40] for k in keys]
    return "keys " + ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "no keys"


def is_sample(fields: Any) -> bool:
    """Return whether a dict has a field that training rows have."""
    return isinstance(fields, Mapping) and not SAMPLE.isdisjoint(fields)


# ---- ids and masks


def _ids(fields: Mapping[str, Any]) -> NDArray[np.int64] | None:
    for key in IDS:
        if fields.get(key) is not None:
            ids = _integers(fields[key], key)
            if not len(ids):
                raise EmptyRow(f"{key} is empty")
            return ids
    return None


def _integers(value: Any, key: str) -> NDArray[np.int64]:
    """Return a 1-d int64 array of a list or array; one outer dimension of length 1 is taken off."""
    if isinstance(value, list):
        if len(value) == 1 and isinstance(value[0], (list, np.ndarray)):
            return _integers(value[0], key)
        # array("q") refuses floats, null and text, is the fastest way in, and takes True for 1: only then look at types
        try:
            ids = np.frombuffer(array("q", value), np.int64) if value else np.zeros(0, np.int64)
        except (TypeError, OverflowError):
            raise BadRow(f"{key} holds {_kinds(set(map(type, value)), value)}, expected integers") from None
        if len(ids) and ids.min() < 2 and bool in set(map(type, value)):
            raise BadRow(f"{key} holds booleans, expected integers")
        return ids
    if not isinstance(value, np.ndarray):
        raise BadRow(f"{key} is a {type(value).__name__}, expected a list of integers")
    if value.ndim == 2 and value.shape[0] == 1:
        value = value[0]
    if value.ndim != 1:
        raise BadRow(f"{key} has {value.ndim} dimensions or several rows: a batch, not a sample")
    if value.dtype.kind not in "iu":
        raise BadRow(f"{key} is of type {value.dtype}, expected integers")
    if value.dtype == np.uint64 and len(value) and int(value.max()) > 2**63 - 1:
        raise BadRow(f"{key} holds an integer beyond 64 bits")
    typed: NDArray[np.int64] = value.astype(np.int64, copy=False)
    return typed


def _kinds(kinds: set[type], value: list[Any]) -> str:
    if float in kinds:
        if any(isinstance(v, float) and v != v for v in value):
            return "NaN"
        return "an integer beyond 64 bits" if any(isinstance(v, float) and abs(v) > 2**53 for v in value) else "floats"
    names = {type(None): "null", str: "strings", list: "several lists", np.ndarray: "several lists", dict: "objects"}
    names |= {bool: "booleans", int: "an integer beyond 64 bits"}
    return next((text for kind, text in names.items() if kind in kinds), "other values")


def _mask(fields: Mapping[str, Any], n: int) -> NDArray[np.bool_] | None:
    key = _first(fields, MASKS)
    if key is None:
        return None
    value = fields[key]
    if key == "packed_loss_mask":
        return _unpack_runs(value, n)
    if key == "labels":
        labels = _integers(value, key)
        _same_length(len(labels), key, n)
        supervised: NDArray[np.bool_] = labels != -100
        return supervised
    return _zero_one(value, key, n)


def _unpack_runs(value: Any, n: int) -> NDArray[np.bool_]:
    """TorchSpec: "12,30" is 12 tokens of prompt, 30 of response; it always begins with the prompt's run."""
    parts = value.split(",") if isinstance(value, str) and value else []
    if not parts or not all(p.isascii() and p.isdigit() and len(p) < 12 for p in parts):
        raise BadRow("packed_loss_mask is not a list of run lengths")
    runs = np.array([int(p) for p in parts], dtype=np.int64)
    _same_length(int(runs.sum()), "packed_loss_mask", n)
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs)


def _zero_one(value: Any, key: str, n: int) -> NDArray[np.bool_]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (list, np.ndarray)):
        value = value[0]
    if isinstance(value, list):
        try:  # the common case, several times faster than what follows
            packed = np.frombuffer(bytes(value), np.uint8)
            if len(packed) == n and (not n or packed.max() < 2):
                return packed.view(np.bool_)
        except (TypeError, ValueError):
            pass
        if set(map(type, value)) - {int, bool, float}:
            raise BadRow(f"{key} holds other values than 0 and 1")
    if not isinstance(value, (list, np.ndarray)):
        raise BadRow(f"{key} is a {type(value).__name__}, expected a list of 0 and 1")
    values = np.asarray(value)
    if values.ndim == 2 and values.shape[0] == 1:
        values = values[0]
    if values.ndim != 1:
        raise BadRow(f"{key} has {values.ndim} dimensions or several rows: a batch, not a sample")
    _same_length(len(values), key, n)
    if values.dtype == np.bool_:
        return values
    mask: NDArray[np.bool_] = values == 1
    if values.dtype.kind not in "iuf" or not bool(np.all(mask | (values == 0))):
        raise BadRow(f"{key} holds other values than 0 and 1")
    return mask


def _same_length(found: int, key: str, n: int) -> None:
    if found != n:
        raise BadRow(f"{key} has another length than the ids")


def _restarts(positions: Any) -> bool:
    try:
        steps = np.diff(np.asarray(positions).reshape(-1))
        return steps.dtype.kind == "i" and bool(np.any(steps < 0))
    except (ValueError, OverflowError):
        return False


# ---- messages


def _messages(fields: Mapping[str, Any], limits: Limits, marks: list[str]) -> list[Message] | None:
    key = _first(fields, MESSAGES)
    if key is None:
        return None
    value = _json_in_string(fields[key], key, limits, marks)
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        value = value["messages"]
    if not isinstance(value, list):
        raise BadRow(f"{key} is a {type(value).__name__}, expected a list of messages")
    if key == "trajectory":
        value = _last_query(value)
    messages = [normalise(m, f"{key}", limits, marks) for m in value]
    if not messages:
        return None
    system = fields.get("system")
    if isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _last_query(steps: list[Any]) -> list[Any]:
    """SWE-agent's .traj: the last step holds the whole history as `query` (>= 1.1.0) or `messages`."""
    last = steps[-1] if steps and isinstance(steps[-1], dict) else {}
    for key in ("query", "messages"):
        if isinstance(last.get(key), list) and last[key]:
            answer = last.get("response")
            return [*last[key], *([{"role": "assistant", "content": answer}] if isinstance(answer, str) else [])]
    return steps


def _json_in_string(value: Any, key: str, limits: Limits, marks: list[str]) -> Any:
    if not isinstance(value, str):
        return value
    try:
        parsed, more = loads(value.encode("utf-8", "surrogatepass"), limits)
    except BadRow:
        raise BadRow(f"{key} is a string but not JSON") from None
    marks += more
    return parsed


def normalise(message: Any, key: str, limits: Limits, marks: list[str]) -> Message:
    """Return one message with role, content and what else it holds, under the names of promptkit.conversation."""
    if not isinstance(message, dict):
        raise BadRow(f"{key} holds a {type(message).__name__}, expected messages")
    stored = next((message[k] for k in ("role", "from") if isinstance(message.get(k), str)), None)
    if stored is None:
        raise BadRow(f"{key} holds a message without a role")
    role = ROLES.get(stored.strip().lower())
    if role is None:
        role = "user"
        marks.append(f"role {stored[:40]} read as user")
    content = next((message[k] for k in ("content", "value", "text") if message.get(k) is not None), None)
    if content is None and role == "system":
        content = message.get("system_prompt")  # nebius keeps it here, with a null text
    out: Message = {"role": role, "content": _content(content, key, marks)}
    reasoning = next((message[k] for k in ("reasoning_content", "reasoning") if isinstance(message.get(k), str)), None)
    if stored == "assistant_analysis":
        out["content"], reasoning = "", out["content"]
    if reasoning:
        out["reasoning"] = reasoning
    if calls := _tool_calls(message, stored, out, limits, marks):
        out["tool_calls"] = calls
    for name in ("tool_call_id", "name"):
        if isinstance(message.get(name), str) and message[name]:
            out[name] = message[name]
    return out


def _content(content: Any, key: str, marks: list[str]) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        raise BadRow(f"{key} holds a message whose content is a {type(content).__name__}")
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            parts.append(part["text"])
        elif isinstance(part, dict):
            marks.append("content parts that are not text left out")
        else:
            raise BadRow(f"{key} holds a message with a content part that is a {type(part).__name__}")
    return "\n".join(parts)  # as servers join the parts of a request


def _tool_calls(message: dict[str, Any], stored: str, out: Message, limits: Limits, marks: list[str]) -> list[Any]:
    value = message.get("tool_calls")
    if value is None and isinstance(message.get("function_call"), dict):
        value = [message["function_call"]]
    if isinstance(value, str):
        value = _json_in_string(value, "tool_calls", limits, marks) if value.strip() else None
    if value is None and stored in ("function_call", "tool_call"):
        try:
            value, _ = loads(out["content"].encode("utf-8", "surrogatepass"), limits)
        except BadRow:
            return []  # a call in a convention of its own stays text
        value = value if isinstance(value, list) else [value]
        if not all(isinstance(c, dict) and isinstance(c.get("name"), str) for c in value):
            return []
        out["content"] = ""
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRow(f"tool_calls is a {type(value).__name__}, expected a list")
    return [_call(call) for call in value]


def _call(call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRow("tool_calls holds an entry without a function name")
    out: dict[str, Any] = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    arguments = function.get("arguments", function.get("parameters"))
    if not isinstance(arguments, str):
        arguments = dumps(drop_nulls(arguments) if arguments is not None else {})
    return out | {"type": "function", "function": {"name": function["name"], "arguments": arguments}}


def dumps(value: Any) -> str:
    """Return JSON for a value that was stored as a structure: keys in stored order, text as it is."""
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


def _tools(fields: Mapping[str, Any], limits: Limits, marks: list[str]) -> list[Any] | None:
    key = _first(fields, ("tools", "functions"))
    value = fields[key] if key is not None else None
    if isinstance(value, str):
        try:
            value = _json_in_string(value, "tools", limits, marks)
        except BadRow:
            marks.append("tools are not JSON: left out")
            return None
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list) or not value:
        return None
    # a column of JSON strings, one for each tool, is as common as one string for all
    return [
        _json_in_string(t, "tools", limits, marks) if isinstance(t, str) and t.startswith("{") else t for t in value
    ]


# ---- data sets with fields of their own


def _single_turn(fields: Mapping[str, Any], limits: Limits, marks: list[str]) -> list[Message] | None:
    for asked, further, answers in SINGLE_TURN:
        value = fields.get(asked)
        if asked == "prompt" and isinstance(value, list) and value:  # preference data: prompt and answer are messages
            answer: Any = next((fields[k] for k in answers if _filled(fields.get(k))), [])
            answer = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
            return [normalise(m, asked, limits, marks) for m in value + (answer if isinstance(answer, list) else [])]
        if isinstance(value, str) and value.strip():
            more = fields.get(further) if further else None
            if isinstance(more, str) and more.strip():
                value = f"{value}\n\n{more}"
            return _turns(fields, value, next((fields[k] for k in answers if _is_text(fields.get(k))), None))
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _turns(fields: Mapping[str, Any], asked: str, answer: str | None) -> list[Message]:
    out: list[Message] = []
    if _is_text(fields.get("system")):
        out.append({"role": "system", "content": fields["system"]})
    history = fields.get("history")
    for pair in history if isinstance(history, list) else ():
        if isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(p, str) for p in pair):
            out += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    out.append({"role": "user", "content": asked})
    if answer is not None:
        reply: Message = {"role": "assistant", "content": answer}
        if _is_text(fields.get("deepseek_reasoning")):
            reply["reasoning"] = fields["deepseek_reasoning"]
        out.append(reply)
    return out


_GLAIVE_TURN = re.compile(r"(?:^|\n\s*)(USER|ASSISTANT|FUNCTION RESPONSE): ?")
_GLAIVE_CALL = re.compile(
    r"<functioncall>\s*\{\s*\"name\"\s*:\s*\"([^\"]+)\"\s*(?:,\s*\"arguments\"\s*:\s*(?:'(.*)'|(\{.*\}|\"\")))?\s*\}\s*$",
    re.S,
)


def _glaive(fields: Mapping[str, Any]) -> tuple[list[Message] | None, list[Any] | None]:
    """Glaive function calling v2: `system` with specs as JSON objects in a row, `chat` as text with markers."""
    import json

    system = fields.get("system") if isinstance(fields.get("system"), str) else ""
    head = re.sub(r"^SYSTEM: ?", "", system or "")
    tools: list[Any] = []
    start = head.find("{")
    decoder, at = json.JSONDecoder(), start
    while 0 <= at < len(head):
        try:
            spec, at = decoder.raw_decode(head, at)
        except (ValueError, RecursionError):
            tools = []  # braces of prose: leave the text whole
            break
        tools.append(spec)
        at = next((i for i in range(at, len(head)) if not head[i].isspace()), len(head))
    if tools:
        head = head[:start]
    out: list[Message] = [{"role": "system", "content": head.strip()}] if head.strip() else []
    pieces = _GLAIVE_TURN.split(fields["chat"])
    roles = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
    for marker, body in zip(pieces[1::2], pieces[2::2], strict=True):
        content = body.strip().removesuffix("<|endoftext|>").strip()
        message: Message = {"role": roles[marker], "content": content}
        call = _GLAIVE_CALL.search(content) if marker == "ASSISTANT" else None
        if call is not None:
            function = {"name": call[1], "arguments": call[2] or call[3] or "{}"}
            message["content"] = content[: call.start()].strip()
            message["tool_calls"] = [{"type": "function", "function": function}]
        out.append(message)
    return (out if len(pieces) > 2 else None), tools or None
