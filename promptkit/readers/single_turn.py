"""Data sets with fields of their own -> messages: one question, one answer; and Glaive's chat in one string."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from promptkit.conversation import Message
from promptkit.readers.fields import SINGLE_TURN, filled
from promptkit.readers.messages import is_messages, normalise
from promptkit.readers.records import Limits


def single_turn(fields: Mapping[str, Any], limits: Limits, marks: list[str]) -> list[Message] | None:
    for asked, further, answers in SINGLE_TURN:
        value = fields.get(asked)
        if isinstance(value, list) and is_messages(value):  # preference data, Nemotron: the answer may be messages too
            answer: Any = next((fields[k] for k in answers if filled(fields.get(k))), [])
            answer = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
            turns = [*value, *(answer if isinstance(answer, list) else [])]
            told = _system(fields) if turns[0].get("role") != "system" else []
            return told + [normalise(m, asked, limits, marks) for m in turns]
        if isinstance(value, str) and value.strip():
            more = fields.get(further) if further else None
            if isinstance(more, str) and more.strip():
                value = f"{value}\n\n{more}"
            return _turns(fields, value, next((fields[k] for k in answers if _is_text(fields.get(k))), None))
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _system(fields: Mapping[str, Any]) -> list[Message]:
    text = next((fields[k] for k in ("system", "system_prompt") if _is_text(fields.get(k))), None)
    return [{"role": "system", "content": text}] if text is not None else []


def _turns(fields: Mapping[str, Any], asked: str, answer: str | None) -> list[Message]:
    out = _system(fields)
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


_GLAIVE_TURN = re.compile(r"(?:^|\n)[^\S\n]*(USER|ASSISTANT|FUNCTION RESPONSE): ?")
_GLAIVE_CALL = re.compile(
    r"<functioncall>\s*\{\s*\"name\"\s*:\s*\"([^\"]+)\"\s*(?:,\s*\"arguments\"\s*:\s*(?:'(.*)'|(\{.*\}|\"\")))?\s*\}\s*$",
    re.S,
)


def glaive(fields: Mapping[str, Any]) -> tuple[list[Message] | None, list[Any] | None]:
    """Glaive function calling v2: `system` with specs as JSON objects in a row, `chat` as text with markers."""
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
        call = _glaive_call(content) if marker == "ASSISTANT" else None
        if call is not None:
            function = {"name": call[1], "arguments": call[2] or call[3] or "{}"}
            message["content"] = content[: call.start()].strip()
            message["tool_calls"] = [{"type": "function", "function": function}]
        out.append(message)
    return (out if len(pieces) > 2 else None), tools or None


def _glaive_call(content: str) -> re.Match[str] | None:
    """The call that an answer ends with; only the first and the last tag may begin it, as there may be very many."""
    places = dict.fromkeys((content.find("<functioncall>"), content.rfind("<functioncall>")))
    return next((m for at in places if at >= 0 and (m := _GLAIVE_CALL.match(content, at))), None)
