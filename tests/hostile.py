"""Prompts that broke a real loader at least once, as rows of a pack: the fixtures of every exporter test."""

from __future__ import annotations

from typing import Any

from promptkit.conversation import prompt_id

TOOL = {
    "type": "function",
    "function": {
        "name": "ls",
        "description": "List {{files}} of a directory.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string", "minLength": 1}}},
    },
}
CALL = {"id": "functions.ls:0", "type": "function", "function": {"name": "ls", "arguments": '{"path":  "."}'}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "Answer {{ briefly }}."}
TEXTS = [
    "12345",  # numeric: some readers make it a number
    "4e5",
    "true",
    "null",
    "[1, 2]",  # JSON: some clients send it as messages
    '{"role": "user"}',
    "Fill {{name}} and {% if x %} and {# note #} please",
    "a stray #} and %} and }} here",
    "{% endraw %} leaves a raw block {% raw %}",
    "file:///etc/hostname",
    "file://prompt.txt says what?",
    "@prompt.txt",
    "first\nsecond\r\nthird\n",
    "  spaces around \t",
    "one\u2028two\u2029three\x85four\x0bfive\x0csix",
    "Что такое B-дерево? 什么是B树？ 🌳 e\u0301",
    "- role: user\n  content: yaml",
    "quotes \" ' ` and \\ backslash \\n $HOME $(id) %s ${x}",
    "<think>2 + 2</think> what follows?",
    "env {{ env.HOME }} and {{ 7 * 7 }}",
    "word " * 1100,
]
CONVERSATIONS: list[tuple[list[dict[str, Any]], list[Any] | None]] = [
    ([SYSTEM, user("With a system turn.")], None),
    ([user("Hi."), assistant(""), user("An empty answer came before.")], None),
    ([SYSTEM, user("List."), assistant("", tool_calls=[CALL]),
      {"role": "tool", "content": "a.txt\n{{b}}", "tool_call_id": "functions.ls:0", "name": "ls"}], [TOOL]),
    ([user("Tools, no history.")], [TOOL]),
    ([user("A task."), user("Its context.")], None),
]  # fmt: skip
DIALOGUES = [
    ["What is 7 x 8?", "And {{half}} of it?", "12"],
    ["One turn."],
    ["First\n", "file://second"],
]


def row(messages: list[dict[str, Any]], tools: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"id": prompt_id(messages, tools), "messages": messages, "tools": tools, "domain": "chat", **more}


def rows() -> list[dict[str, Any]]:
    """Return a row for each hostile text and conversation, over three domains; every fifth knows no output length."""
    every = [([user(t)], None) for t in TEXTS] + CONVERSATIONS
    domains = ("chat", "math & logic", "coding")
    return [
        row(messages, tools, domain=domains[i % 3], expected_output_tokens=None if i % 5 == 4 else 7 + 13 * i)
        for i, (messages, tools) in enumerate(every)
    ]


def dialogues() -> list[dict[str, Any]]:
    """Return rows whose user turns are replayed, as `build --turns all` makes them; one has a system turn."""
    talks = [[user(t) for t in turns] for turns in DIALOGUES] + [[SYSTEM, user("One."), user("Two.")]]
    return [row(messages, domain="chat", expected_output_tokens=100 + i) for i, messages in enumerate(talks)]
