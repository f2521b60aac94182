"""What a training row or a candidate prompt is, once it has been read.

A message is a plain dict, as every chat API has it:

    {"role": "assistant", "content": "Let me look.", "reasoning": "The file may be missing.",
     "tool_calls": [{"id": "functions.ls:0", "type": "function",
                     "function": {"name": "ls", "arguments": "{\\"path\\": \\".\\"}"}}]}

`role` and `content` (a string) are always there; `reasoning`, `tool_calls`, `tool_call_id` and `name` only where
they exist. `arguments` is the raw string. What is *compared* with a training mix is the `opening`: system turn
(unless it is the template's own default) and first user turn, contents only.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

Message = dict[str, Any]

ROLES = ("system", "user", "assistant", "tool")

# System turns that templates and trainers insert by themselves (Kimi K2, SpecForge, Qwen2.5): no part of the request.
DEFAULT_SYSTEMS = frozenset(
    {
        "You are a helpful assistant",
        "You are a helpful assistant.",
        "You are Kimi, an AI assistant created by Moonshot AI.",
        "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    }
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """One training row. `marks` are remarks such as "truncated", "bad ids: 1", "system is default"."""

    messages: list[Message]
    tools: list[Any] | None = None
    n_tokens: int | None = None  # stored ids less padding; None where the row holds no ids
    n_supervised: int | None = None
    truncated: bool = False
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """One candidate, or one row of a pack: what is sent to a server, and what is known about it."""

    id: str
    messages: list[Message]
    tools: list[Any] | None = None
    response: str | None = None  # what a model answered, where the file holds it
    domain: str | None = None
    source: str | None = None
    weight: float = 1.0
    expected_output_tokens: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # other fields of a pack row


def opening(messages: list[Message]) -> str:
    """Return the text that is compared: system turn unless default, and first user turn, joined by a blank line.

    A row without a user turn is represented by its first turn with text, so that no row compares as nothing.
    """
    parts: list[str] = []
    for m in messages:
        if m["role"] == "system" and m["content"].strip() not in DEFAULT_SYSTEMS:
            parts.append(m["content"])
        elif m["role"] == "user":
            parts.append(m["content"])
            break
    text = "\n\n".join(p for p in parts if p.strip())
    return text or next((m["content"] for m in messages if m["content"].strip()), "")


def response_text(messages: list[Message]) -> str:
    """Return all that the assistant wrote, turn by turn, joined by newlines."""
    return "\n".join(t for m in messages if m["role"] == "assistant" and (t := answer_text(m)))


def answer_text(message: Message) -> str:
    """Return all that one assistant turn generated: reasoning, content, calls. A call may have lost its name."""
    calls = [f"{c['function']['name'] or ''} {c['function']['arguments']}" for c in message.get("tool_calls") or ()]
    return "\n".join(p for p in (message.get("reasoning") or "", message["content"], *calls) if p)


# Tool use that is written as plain text: Glaive, SWE-agent and OpenHands, Hermes on a foreign template.
_TEXT_CALLS = re.compile(
    r"<function=[\w.-]+>|<functioncall>|<tool_call>|<invoke name=|\[TOOL_CALLS\]|^Action:[^\n]*\nAction Input:",
    re.MULTILINE,
)
_FENCE = re.compile(r"^```(?:bash|sh|shell|console)?[ \t]*\n.*?^```", re.MULTILINE | re.DOTALL)
# What an environment answers to a fenced command.
_OBSERVATION = re.compile(
    r"\s*(?:<returncode>|<output>|<observation>|observation:|\[The command completed|EXECUTION RESULT)"
    r"|.*\((?:Open file|Current directory): [^)]*\)\s*(?:bash-\$)?\s*\Z|.*\bbash-\$\s*\Z",
    re.DOTALL | re.IGNORECASE,
)


def uses_tools(conversation: Conversation) -> bool:
    """Whether the conversation declares, calls or answers tools, natively or by a text convention."""
    messages = conversation.messages
    if conversation.tools:
        return True
    for m, later in zip_longest(messages, messages[1:]):
        if m["role"] == "tool" or m.get("tool_calls"):
            return True
        if m["role"] == "assistant":
            if _TEXT_CALLS.search(m["content"]):
                return True
            answered = later is not None and later["role"] == "user" and _OBSERVATION.match(later["content"])
            if answered and _FENCE.search(m["content"]):
                return True
    return False


def canonical(value: Any) -> bytes:
    """Return JSON as promptkit hashes and writes it: UTF-8, sorted keys, no spaces, NaN refused."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8")


def prompt_id(messages: list[Message], tools: list[Any] | None = None) -> str:
    """Return the identity of a prompt: 32 hex of sha256 over its canonical messages and tools."""
    return id_of(canonical(messages), canonical(tools))


def id_of(messages: bytes, tools: bytes) -> str:
    """Return the `prompt_id` of messages and tools that are canonical JSON already."""
    return hashlib.sha256(b'{"messages":%b,"tools":%b}' % (messages, tools)).hexdigest()[:32]
