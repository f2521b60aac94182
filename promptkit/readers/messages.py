"""Messages of any convention -> role, content, reasoning, tool_calls, tool_call_id, name.

    {"from": "human", "value": "Hi"} · {"role": "user", "content": [{"type": "text", "text": "Hi"}]} · JSON in a string

Roles become system, user, assistant, tool; what has to be guessed or left out is said in a mark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from promptkit.conversation import Message
from promptkit.readers import trajectories
from promptkit.readers.fields import MESSAGES, first
from promptkit.readers.records import BadRow, Limits
from promptkit.readers.values import drop_nulls, loads

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


def messages_of(fields: Mapping[str, Any], limits: Limits, marks: list[str]) -> list[Message] | None:
    key = first(fields, MESSAGES)
    if key is None and (is_messages(fields.get("history")) or trajectories.is_events(fields.get("history"))):
        key = "history"  # SWE-agent, OpenHands; Alpaca's history is pairs of strings
    if key is None:
        return None
    value = _json_in_string(fields[key], key, limits, marks)
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        value = value["messages"]
    if not isinstance(value, list):
        raise BadRow(f"{key} is a {type(value).__name__}, expected a list of messages")
    if key == "trajectory":
        value = trajectories.messages_in(value, fields.get("history"))
    elif value and trajectories.is_event(value[0]):
        value = trajectories.of_events(value)
    messages = [normalise(m, f"{key}", limits, marks) for m in value]
    if not messages:
        return None
    system = next((fields[k] for k in ("system", "system_prompt") if isinstance(fields.get(k), str)), "")
    if system.strip() and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages


def is_messages(value: Any) -> bool:
    """Return whether a value is a list that begins with a message."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and ("role" in first or "from" in first)


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
    text, reasoning, calls = _content(content, key, limits, marks)
    out: Message = {"role": role, "content": text}
    for name in ("reasoning_content", "reasoning"):
        reasoning = reasoning or (message[name] if isinstance(message.get(name), str) else None)
    if stored == "assistant_analysis":
        out["content"], reasoning = "", out["content"]
    if reasoning:
        out["reasoning"] = reasoning
    if calls := [_call(call) for call in calls] + _tool_calls(message, stored, out, limits, marks):
        out["tool_calls"] = calls
    answered = message.get("tool_call_ids")  # SWE-agent: a list, of one
    if role == "tool" and "tool_call_id" not in message and isinstance(answered, list) and len(answered) == 1:
        message = {**message, "tool_call_id": answered[0]}
    for name in ("tool_call_id", "name"):
        if isinstance(message.get(name), str) and message[name]:
            out[name] = message[name]
    return out


def _content(content: Any, key: str, limits: Limits, marks: list[str]) -> tuple[str, str | None, list[Any]]:
    """Return text, reasoning and tool calls of a message's content: a string, or a list of typed parts."""
    if content is None:
        return "", None, []
    if isinstance(content, str):
        return content, None, []
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        raise BadRow(f"{key} holds a message whose content is a {type(content).__name__}")
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[Any] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, dict):
            raise BadRow(f"{key} holds a message with a content part that is a {type(part).__name__}")
        kind = part.get("type")
        value = next((part[k] for k in ("text", "value", "thinking", "content") if isinstance(part.get(k), str)), None)
        if kind == "tool_use":  # Anthropic
            calls.append({"id": part.get("id"), "name": part.get("name"), "arguments": part.get("input")})
        elif value is None:
            marks.append("content parts that are not text left out")
        elif kind == "tool_call":  # LLaMA-Factory 1
            calls.append(_json_in_string(value, "tool_call", limits, marks))
        elif kind in ("reasoning", "thinking"):
            reasoning.append(value)
        else:
            texts.append(value)
    return "\n".join(texts), "\n".join(reasoning) or None, calls  # as servers join the parts of a request


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
    return json.dumps(value, ensure_ascii=False, default=str)


def tools_of(fields: Mapping[str, Any], limits: Limits, marks: list[str]) -> list[Any] | None:
    key = first(fields, ("tools", "functions"))
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
