"""Chat templates as data, and how a conversation is rendered with them.

A template is what stands between messages: which marker opens a turn and says its role, what ends the header, what
ends the turn, the think pair, and the form of tool calls. `recover` parses with it, `render` writes with it; the two
are inverse. Markers are names; which id a name has is always taken from the user's own tokenizer.

    <|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>Hello<|im_end|>
    <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\nHello<|im_end|>\\n

Read from the chat templates of Kimi K2, K2-Thinking and K2.5, Qwen2.5 and Qwen3 (2025-07 to 2026-08). No Jinja is run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from promptkit.conversation import Message
from promptkit.errors import UsageError
from promptkit.registry import resolve


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, which is quick: tables are cached for each
class Template:
    """One family of chat templates.

    A turn opens with a marker of `roles` (the marker says the role) or with `opener` (the text behind it says the
    role), has header text up to `header_end` (a marker, or a newline), and ends with one of `ends`; without `ends` it
    ends where the next one opens. `finals` may follow the last turn, `skips` may precede the first.
    """

    name: str
    grammar: str  # the builder in messages.py that reads the content
    roles: Mapping[str, str] = field(default_factory=dict)
    opener: str | None = None
    opener_text: bytes = b""  # how the text behind the opener must begin
    header_end: str | None = None
    header_inner: frozenset[str] = frozenset()  # markers that may stand in a header
    ends: tuple[str, ...] = ()
    open_ended: frozenset[str] = frozenset()  # roles whose turns end where the next one opens
    reopens: frozenset[str] = frozenset()  # of `roles`: ends of tool results, which open an answer if one follows
    finals: tuple[str, ...] = ()
    skips: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()  # markers inside a turn: tool calls
    think: tuple[str, str] | None = None
    think_newlines: bool = False
    lone_close: bool = False  # the generation prompt may have opened the think pair
    thinking: bool = False  # assistant turns are written with a think pair
    body_prefix: bytes = b""  # what stands between the header and the content
    lead: str | None = None  # role of text before the first marker
    default_system: str | None = None  # inserted by the template itself where no system turn is given

    @cached_property
    def markers(self) -> tuple[str, ...]:
        """All marker names, each once."""
        ends = (self.header_end,) if self.header_end not in (None, "\n") else ()
        opener = (self.opener,) if self.opener else ()
        names = (*self.roles, *opener, *ends, *sorted(self.header_inner), *self.ends, *self.finals, *self.skips)
        names = (*names, *self.inner, *(self.think or ()))
        return tuple(dict.fromkeys(n for n in names if n))

    @cached_property
    def openers(self) -> frozenset[str]:
        """The markers that open a turn."""
        return frozenset((*self.roles, self.opener) if self.opener else self.roles)

    @cached_property
    def within(self) -> frozenset[str]:
        """The markers that stand inside a turn."""
        return frozenset((*self.inner, *(self.think or ())))

    @cached_property
    def closers(self) -> frozenset[str]:
        """The markers that end a turn."""
        return frozenset((*self.ends, *self.finals))


THINK = ("<think>", "</think>")
KIMI_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI_CALL = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
# A spelling that was seen in the wild.
KIMI_SECTION_ALSO = "<|tool_call_section_begin|>", "<|tool_call_section_end|>"
HERMES_CALL = "<tool_call>", "</tool_call>"
MINIMAX_CALL = "<minimax:tool_call>", "</minimax:tool_call>"
PYTHON_TAG = "<|python_tag|>"
RETURN = "## Return of "

_KIMI: dict[str, Any] = {
    "grammar": "kimi",
    "roles": {"<|im_user|>": "user", "<|im_assistant|>": "assistant", "<|im_system|>": "system"},
    "header_end": "<|im_middle|>",
    "ends": ("<|im_end|>",),
    "finals": ("[EOS]", "[EOT]"),
    "skips": ("[BOS]",),
    "inner": (*KIMI_SECTION, *KIMI_SECTION_ALSO, *KIMI_CALL),
    "think": THINK,
}
_CHATML: dict[str, Any] = {
    "grammar": "hermes",
    "opener": "<|im_start|>",
    "header_end": "\n",
    "ends": ("<|im_end|>",),
    "finals": ("<|endoftext|>",),
    "inner": HERMES_CALL,
    "think": THINK,
    "think_newlines": True,
}
_LLAMA4 = ("<|header_start|>", "<|header_end|>", "<|eot|>", "<|eom|>")
_ASKING = frozenset({"system", "user", "tool", "tools"})

TEMPLATES: dict[str, Template] = {
    t.name: t
    for t in (
        Template("kimi-k2", **_KIMI, default_system="You are a helpful assistant"),
        Template("kimi-k2.5", **_KIMI, thinking=True),
        Template("chatml", **_CHATML),
        Template("qwen3", **_CHATML, thinking=True),
        Template(
            "kimi-k3",
            "k3",
            opener="<|open|>",
            opener_text=b"message ",
            header_end="<|sep|>",
            ends=("<|end_of_msg|>",),
            finals=("[EOS]",),
            skips=("[BOS]",),
            inner=("<|close|>",),
        ),
        Template(
            "llama3",
            "llama",
            opener="<|start_header_id|>",
            header_end="<|end_header_id|>",
            ends=("<|eot_id|>", "<|eom_id|>"),
            finals=("<|end_of_text|>",),
            skips=("<|begin_of_text|>",),
            inner=(PYTHON_TAG,),
            body_prefix=b"\n\n",
        ),
        Template(
            "llama4",
            "llama",
            opener=_LLAMA4[0],
            header_end=_LLAMA4[1],
            ends=_LLAMA4[2:],
            finals=("<|end_of_text|>",),
            skips=("<|begin_of_text|>",),
            inner=("<|python_start|>", "<|python_end|>"),
            body_prefix=b"\n\n",
        ),
        Template(
            "deepseek",
            "deepseek",
            roles={
                "<｜User｜>": "user",
                "<｜Assistant｜>": "assistant",
                "<｜tool▁output▁begin｜>": "tool",
                "<｜tool▁output▁end｜>": "assistant",
                "<｜tool▁outputs▁end｜>": "assistant",
            },
            reopens=frozenset({"<｜tool▁output▁end｜>", "<｜tool▁outputs▁end｜>"}),
            ends=("<｜end▁of▁sentence｜>",),
            open_ended=_ASKING,
            skips=("<｜begin▁of▁sentence｜>", "<｜tool▁outputs▁begin｜>"),
            inner=(
                "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
                "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
            ),
            think=THINK,
            lone_close=True,
            lead="system",
        ),
        Template(
            "glm",
            "glm",
            roles={
                "<|system|>": "system",
                "<|user|>": "user",
                "<|assistant|>": "assistant",
                "<|observation|>": "tool",
            },
            finals=("<|endoftext|>",),
            skips=("[gMASK]", "<sop>"),
            inner=HERMES_CALL,
            think=THINK,
            think_newlines=True,
            lone_close=True,
            body_prefix=b"\n",
        ),
        Template(
            "harmony",
            "harmony",
            opener="<|start|>",
            header_end="<|message|>",
            header_inner=frozenset({"<|channel|>", "<|constrain|>"}),
            ends=("<|end|>", "<|return|>", "<|call|>"),
        ),
        Template(
            "gemma",
            "plain",
            opener="<start_of_turn>",
            header_end="\n",
            ends=("<end_of_turn>",),
            finals=("<eos>",),
            skips=("<bos>",),
        ),
        Template(
            "mistral",
            "mistral",
            roles={
                "[SYSTEM_PROMPT]": "system",
                "[AVAILABLE_TOOLS]": "tools",
                "[INST]": "user",
                "[/INST]": "assistant",
                "[TOOL_RESULTS]": "tool",
                "[/TOOL_RESULTS]": "assistant",
            },
            reopens=frozenset({"[/TOOL_RESULTS]"}),
            ends=("</s>", "[/SYSTEM_PROMPT]", "[/AVAILABLE_TOOLS]"),
            open_ended=_ASKING,
            skips=("<s>",),
            inner=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[TOOL_CONTENT]"),
            think=("[THINK]", "[/THINK]"),
            body_prefix=b" ",
        ),
        Template(
            "minimax",
            "minimax",
            opener="]~b]",
            header_end="\n",
            ends=("[e~[",),
            skips=("]~!b[",),
            inner=MINIMAX_CALL,
            think=THINK,
            think_newlines=True,
        ),
    )
}  # fmt: skip


def template_named(template: str | Template) -> Template:
    """Return the template of this name; UsageError lists the known ones."""
    found = resolve("templates", template, TEMPLATES)
    assert isinstance(found, Template)
    return found


def render(
    messages: list[Message],
    tools: list[Any] | None = None,
    template: str | Template = "chatml",
    *,
    generation_prompt: bool = True,
    thinking: bool = True,
    default_system: bool = True,
) -> str:
    """Return the text that the template makes of a conversation: what the server tokenizes.

    `generation_prompt` adds the header of the assistant turn to come (not after a conversation that ends with one),
    `thinking` says whether that turn may reason, `default_system` whether the template inserts its own system turn.
    Reasoning of earlier turns is left out, as the templates do; a last assistant turn keeps its own. So a parsed
    training row renders to the text it came from.
    """
    found = template_named(template)
    writer = _WRITERS.get(found.grammar)
    if writer is None:
        raise UsageError(
            f"template {found.name!r} can be read but not written",
            hint="lengths of templated prompts are null for it; known for writing: "
            + ", ".join(sorted(t.name for t in TEMPLATES.values() if t.grammar in _WRITERS)),
        )
    answered = bool(messages) and messages[-1]["role"] == "assistant"
    return writer(found, messages, tools, generation_prompt and not answered, thinking, default_system)


def _json(value: Any) -> str:
    """JSON as Hugging Face templates write it."""
    return json.dumps(value, ensure_ascii=False)


def _arguments(call: dict[str, Any]) -> str:
    arguments = call["function"].get("arguments", "{}")
    return arguments if isinstance(arguments, str) else _json(arguments)


def _write_kimi(
    t: Template, messages: list[Message], tools: list[Any] | None, prompt: bool, thinking: bool, default_system: bool
) -> str:
    out: list[str] = []
    if tools:
        declared = tools[0] if len(tools) == 1 and isinstance(tools[0], str) else _json(tools)  # TypeScript: as it was
        out.append(f"<|im_system|>tool_declare<|im_middle|>{declared}<|im_end|>")
    if default_system and t.default_system and messages and messages[0]["role"] != "system":
        out.append(f"<|im_system|>system<|im_middle|>{t.default_system}<|im_end|>")
    keep_from = _last(messages[:-1], lambda m: m["role"] == "assistant" and not m.get("tool_calls")) + 1
    for i, m in enumerate(messages):
        role = m["role"]
        marker = role if role in ("user", "assistant") else "system"
        out.append(f"<|im_{marker}|>{m.get('name') or role}<|im_middle|>")
        if role == "assistant" and t.thinking:
            out.append(f"<think>{m.get('reasoning', '') if i >= keep_from else ''}</think>")
        if role == "tool" and m.get("tool_call_id"):
            out.append(f"{RETURN}{m['tool_call_id']}\n")
        out.append(m["content"])
        if m.get("tool_calls"):
            out.append(KIMI_SECTION[0])
            for k, call in enumerate(m["tool_calls"]):
                name = call.get("id") or f"functions.{call['function'].get('name')}:{k}"
                out.append(f"{KIMI_CALL[0]}{name}{KIMI_CALL[1]}{_arguments(call)}{KIMI_CALL[2]}")
            out.append(KIMI_SECTION[1])
        out.append("<|im_end|>")
    if prompt:
        out.append("<|im_assistant|>assistant<|im_middle|>")
        if t.thinking:
            out.append("<think>" if thinking else "<think></think>")
    return "".join(out)


# Qwen's own words around the tool list; parsed back by `recover`.
QWEN_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>",
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>",
)


def _write_hermes(
    t: Template, messages: list[Message], tools: list[Any] | None, prompt: bool, thinking: bool, default_system: bool
) -> str:
    out: list[str] = []
    system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
    rest = messages if system is None else messages[1:]
    if tools:
        declared = QWEN_TOOLS[0] + "".join("\n" + (x if isinstance(x, str) else _json(x)) for x in tools)
        head = "" if system is None else system + "\n\n"
        out.append(f"<|im_start|>system\n{head}{declared}{QWEN_TOOLS[1]}<|im_end|>\n")
    elif system is not None:
        out.append(f"<|im_start|>system\n{system}<|im_end|>\n")
    asked = any(m["role"] == "user" for m in rest)
    last_query = _last(rest, lambda m: m["role"] == "user") if asked else len(rest) - 1  # as Qwen's template has it
    roles = [m["role"] for m in rest] + [""]
    for i, m in enumerate(rest):
        role = m["role"]
        if role == "tool":
            opens, closes = (i == 0 or roles[i - 1] != "tool"), roles[i + 1] != "tool"
            out.append("<|im_start|>user" * opens)
            out.append(f"\n<tool_response>\n{m['content']}\n</tool_response>" + "<|im_end|>\n" * closes)
            continue
        out.append(f"<|im_start|>{m.get('name') if role == 'user' and m.get('name') else role}\n")
        reasoning = m.get("reasoning") or ""
        if role == "assistant" and t.thinking and i > last_query and (reasoning or not roles[i + 1]):
            out.append(f"<think>\n{reasoning}\n</think>\n\n")
        out.append(m["content"])
        for k, call in enumerate(m.get("tool_calls") or ()):
            out.append("\n" * bool(m["content"] or k))
            name = _json(call["function"].get("name"))
            out.append(f'<tool_call>\n{{"name": {name}, "arguments": {_arguments(call)}}}\n</tool_call>')
        out.append("<|im_end|>\n")
    if prompt:
        out.append("<|im_start|>assistant\n")
        if t.thinking and not thinking:
            out.append("<think>\n\n</think>\n\n")
    return "".join(out)


def _last(messages: list[Message], what: Callable[[Message], bool]) -> int:
    """The index of the last message of which `what` is true, or -1."""
    return max((i for i, m in enumerate(messages) if what(m)), default=-1)


_WRITERS = {"kimi": _write_kimi, "hermes": _write_hermes}
