"""One row of a prompt file, in any harness's dialect -> a Prompt.

    {"question_id": 81, "category": "writing", "turns": ["Compose ...", "Rewrite ..."]}           MT-Bench, Spec-Bench
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}       ShareGPT
    {"custom_id": "a", "body": {"messages": [{"role": "user", "content": "..."}], "max_tokens": 64}}   OpenAI Batch
    {"doc_id": 0, "doc": {...}, "arguments": {"gen_args_0": {"arg_0": "..."}}, "resps": [["..."]]}     lm-eval samples

Which key means what is data: the tuples below, first hit wins. An answer is the candidate's response wherever it
stands: a final assistant turn, or one of RESPONSE_KEYS (of several samples, the first). `max_tokens` is a cap and no
expected length; `reference`, `target` and `expected_output` are what a data set wanted and no model's answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from promptkit.conversation import Message, Prompt, prompt_id, response_text

ID_KEYS = ("id", "prompt_id", "question_id", "custom_id", "task_id", "conversation_id", "uuid", "uid", "doc_id", "name")
DOMAIN_KEYS = ("domain", "category")
MESSAGE_KEYS = ("messages", "chat_messages", "conversations", "conversation")
PROMPT_KEYS = (
    "prompt", "question", "instruction", "query", "user_prompt", "user_input", "user", "problem", "text_input", "input",
    "text", "goal", "content", "value",
)  # fmt: skip
RESPONSE_KEYS = (
    "response", "output", "completion", "generated_text", "generated", "generation", "model_output", "model_response",
    "prediction", "output_text", "text_output", "filtered_resps", "resps", "outputs", "choices", "answer",
)  # fmt: skip
OUTPUT_TOKEN_KEYS = ("expected_output_tokens", "output_tokens", "output_tokens_count", "output_length")
ROLE_NAMES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant", "ai": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "ipython": "tool",
}  # fmt: skip
EXPECTED = "a string, or a mapping with prompt, messages, turns, question or instruction"


class BadRow(Exception):
    """Why one row is no prompt."""


@dataclass(frozen=True)
class Row:
    value: Any
    place: str  # "line 12", "row 3": how a message names it
    defaults: dict[str, str] = field(default_factory=dict)  # id or domain from a mapping's key, name in a script


def to_prompt(row: Row, source: str, response_keys: tuple[str, ...] = RESPONSE_KEYS) -> tuple[Prompt, bool]:
    """Return the prompt of a row, and whether the file gave it an id."""
    value = row.value
    fields: Mapping[str, Any] = value if isinstance(value, Mapping) else {"prompt": value}
    extra: dict[str, Any] = {"place": row.place, **{k: v for k, v in row.defaults.items() if k not in ("id", "domain")}}
    if "script_name" in extra:
        source = f"{source}:{extra['script_name']}"
    messages = _messages_of(fields)
    tools = _tools(fields)
    response = _first(fields, response_keys, _answer)
    if messages[-1]["role"] == "assistant":
        last = messages.pop()
        response = response or response_text([last])
    if not any(m["content"].strip() for m in messages):
        raise BadRow("empty prompt: no text in it")
    dirty = 0
    for m in messages:
        for key, text in m.items():
            if isinstance(text, str):
                m[key], n = _no_surrogates(text)
                dirty += n
    if dirty:
        extra["surrogates_replaced"] = dirty
    given = _first(fields, ID_KEYS, _label) or row.defaults.get("id")
    return Prompt(
        id=_no_surrogates(given)[0] if given else prompt_id(messages, tools),
        messages=messages,
        tools=tools,
        response=_no_surrogates(response)[0] if response and response.strip() else None,
        domain=_first(fields, DOMAIN_KEYS, _label) or row.defaults.get("domain"),
        source=_first(fields, ("source",), _label) or source,
        weight=_weight(fields.get("weight")),
        expected_output_tokens=_first(fields, OUTPUT_TOKEN_KEYS, _count),
        extra=extra,
    ), given is not None


def _messages_of(fields: Mapping[str, Any], depth: int = 0) -> list[Message]:
    """Find what is sent: messages, turns, the body of a request, or a text field."""
    for key in ("body", "payload", "request"):  # OpenAI Batch, AIPerf, promptfoo
        if isinstance(fields.get(key), Mapping) and depth < 3:
            return _messages_of(fields[key], depth + 1)
    system = next(
        (fields[k] for k in ("system", "system_prompt") if isinstance(fields.get(k), str) and fields[k].strip()), None
    )
    messages = _body(fields, depth)
    if system is not None and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    return messages


def _body(fields: Mapping[str, Any], depth: int) -> list[Message]:
    for key in (*MESSAGE_KEYS, "turns"):
        value = json_in_string(fields.get(key))
        if isinstance(value, list) and value:
            return _messages(value)
    for key in ("turns", "conversations", "conversation"):
        if isinstance(fields.get(key), str) and fields[key].strip():
            return _user(fields[key])
    if "arguments" in fields and "doc" in fields:  # lm-evaluation-harness --log_samples
        value = fields["arguments"]
        while isinstance(value, (list, Mapping)) and value:
            value = next(iter(value.values())) if isinstance(value, Mapping) else value[0]
        if isinstance(value, str):
            decoded = json_in_string(value)
            return _messages(decoded) if isinstance(decoded, list) and decoded else _user(value)
    if isinstance(fields.get("instruction"), str) and isinstance(fields.get("input"), str) and fields["input"].strip():
        return _user(fields["instruction"] + "\n\n" + fields["input"])  # Alpaca
    numbered = [fields[k] for k in (f"prompt_{i}" for i in range(64)) if isinstance(fields.get(k), str)]
    if numbered and not isinstance(fields.get("prompt"), str):  # GuideLLM
        return _messages(numbered)
    for key in PROMPT_KEYS:
        value = fields.get(key)
        if isinstance(value, str):
            if value.strip() or not any(isinstance(fields.get(k), str) and fields[k].strip() for k in PROMPT_KEYS):
                return _user(value)
        elif isinstance(value, list) and value:
            return _messages(value)
        elif isinstance(value, Mapping) and depth < 3:
            return _messages_of({"prompt": value["raw"]} if "raw" in value else value, depth + 1)
        elif value is not None and key == "prompt":
            raise BadRow(f"prompt is {kind_of(value)}; expected {EXPECTED}")
    if all(v is None or v == "" for v in fields.values()):
        raise BadRow("empty prompt: no text in it")
    found = ", ".join(cut(str(k), 30) for k in list(fields)[:8])
    if _first(fields, RESPONSE_KEYS, _answer) is not None:
        raise BadRow(f"an answer without its prompt (keys: {found}); join the two by id first")
    colon = "; text that holds ': ' needs quotes in YAML" if len(fields) == 1 and " " in str(next(iter(fields))) else ""
    raise BadRow(f"no prompt among the keys {found}{colon}")


def _user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def _messages(turns: list[Any]) -> list[Message]:
    """Normalise messages of any dialect; plain strings are user turns (MT-Bench)."""
    out: list[Message] = []
    for i, turn in enumerate(turns):
        if isinstance(turn, str):
            out.append({"role": "user", "content": turn})
            continue
        if not isinstance(turn, Mapping):
            raise BadRow(f"turn {i} is {kind_of(turn)}; expected text or a mapping with role and content")
        role = turn.get("role", turn.get("from", "user"))
        known = ROLE_NAMES.get(role.lower()) if isinstance(role, str) else None
        if known is None:
            raise BadRow(f"turn {i} has role {cut(str(role), 30)}; known: {', '.join(sorted(ROLE_NAMES))}")
        content = next((turn[k] for k in ("content", "value", "text") if turn.get(k) is not None), "")
        message: Message = {"role": known, "content": _content(content, i)}
        reasoning = next(
            (turn[k] for k in ("reasoning", "reasoning_content", "thinking") if isinstance(turn.get(k), str)), ""
        )
        if reasoning:
            message["reasoning"] = reasoning
        calls = json_in_string(turn.get("tool_calls"))
        if isinstance(calls, list) and calls:
            message["tool_calls"] = [_call(c, i) for c in calls]
        message.update({k: turn[k] for k in ("tool_call_id", "name") if isinstance(turn.get(k), str)})
        out.append(message)
    return out


def _content(content: Any, i: int) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):  # OpenAI content parts; images and sounds are no text and are left out
        parts = [p.get("text") if isinstance(p, Mapping) else p for p in content]
        return "\n".join(p for p in parts if isinstance(p, str))
    if isinstance(content, Mapping) and isinstance(content.get("text"), str):
        return str(content["text"])
    raise BadRow(f"turn {i} has {kind_of(content)} as content; expected text")


def _call(call: Any, i: int) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    # A name of null is what detokenize writes for a call whose ids hold no name.
    if not isinstance(function, Mapping) or not isinstance(function.get("name", 0), str | None):
        raise BadRow(f"turn {i} has a tool call without a function name")
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, default=str)
    out = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return {"id": call["id"], **out} if isinstance(call.get("id"), str) else out


def _tools(fields: Mapping[str, Any]) -> list[Any] | None:
    for holder in (fields, fields.get("body"), fields.get("payload")):
        if isinstance(holder, Mapping):
            tools = json_in_string(holder.get("tools"))
            if isinstance(tools, list) and tools:
                try:
                    return list(json.loads(_no_surrogates(json.dumps(tools, allow_nan=False, ensure_ascii=False))[0]))
                except (ValueError, TypeError, RecursionError):
                    raise BadRow("tools hold something that is no JSON") from None
    return None


def _answer(value: Any, depth: int = 0) -> str | None:
    """Return the generated text of any dialect's answer; of several samples, the first."""
    if isinstance(value, str):
        return value if value.strip() else None
    if depth > 8:
        return None
    if isinstance(value, list):
        return next((a for a in (_answer(v, depth + 1) for v in value) if a), None)
    if isinstance(value, Mapping):
        if isinstance(value.get("tool_calls"), list) and value["tool_calls"]:
            return response_text(_messages([{"role": "assistant", **value}])) or None
        keys = (
            "completion",
            "output",
            "generated_text",
            "text",
            "content",
            "message",
            "choices",
            "body",
            "turns",
            "response",
        )
        return next((a for a in (_answer(value.get(k), depth + 1) for k in keys) if a), None)
    return None


def _first(fields: Mapping[str, Any], keys: tuple[str, ...], read: Callable[[Any], Any]) -> Any:
    for key in keys:
        if fields.get(key) is None:
            continue
        if key == "choices" and not (
            isinstance(fields[key], list) and all(isinstance(c, Mapping) for c in fields[key])
        ):
            continue  # the options of a multiple-choice question
        found = read(fields[key])
        if found is not None:
            return found
    return None


def _label(value: Any) -> str | None:
    if isinstance(value, str):
        return value if value.strip() else None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    try:
        return int(value) if not isinstance(value, (bool, float)) and int(value) > 0 else None
    except (TypeError, ValueError):
        return None


def _weight(value: Any) -> float:
    if value is None or value == "":
        return 1.0
    try:
        weight = float(value) if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError, OverflowError):
        weight = -1.0
    if not 0 < weight < float("inf"):
        raise BadRow(f"weight {cut(str(value), 30)}; expected a positive number")
    return weight


def json_in_string(value: Any) -> Any:
    """Decode a list that a CSV or Parquet column holds as JSON text; anything else comes back as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    if isinstance(value, tuple):
        return list(value)
    return value


_SURROGATE = re.compile("[\ud800-\udfff]")


def _no_surrogates(text: str) -> tuple[str, int]:
    return _SURROGATE.subn("\ufffd", text)


def kind_of(value: Any) -> str:
    names = {
        bool: "true/false",
        int: "a number",
        float: "a number",
        list: "a list",
        tuple: "a list",
        dict: "a mapping",
        str: "text",
    }
    return (
        "nothing"
        if value is None
        else names.get(type(value), "a mapping" if isinstance(value, Mapping) else type(value).__name__)
    )


def cut(text: str, n: int = 60) -> str:
    return repr(text if len(text) <= n else text[: n - 1] + "…")
