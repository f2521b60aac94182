"""From turns to messages: think pairs, tool calls, tool results and declared tools, one builder for each grammar.

    kimi      <think>R</think>C<|tool_calls_section_begin|><|tool_call_begin|>functions.ls:0 ...
    hermes    <think>\\nR\\n</think>\\n\\nC\\n<tool_call>\\n{"name": "ls", "arguments": {}}\\n</tool_call>
    glm       \\n<think>R</think>\\nC\\n<tool_call>ls\\n<arg_key>p</arg_key>\\n<arg_value>.</arg_value>\\n</tool_call>
    deepseek  C<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ls<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
    mistral   C[TOOL_CALLS][{"name": "ls", "arguments": {}}]
    harmony   <|start|>assistant<|channel|>commentary to=functions.ls<|message|>{}<|call|>
    llama     C<|python_tag|>{"name": "ls", "parameters": {}}<|eom_id|>
    minimax   C\n<minimax:tool_call>\n<invoke name="ls">\n<parameter name="p">.</parameter>\n</invoke>\n</minimax:...>
    k3        <|open|>message role="assistant"<|sep|><|open|>think<|sep|>R<|close|>think<|sep|>...
    plain     content only

Arguments stay the string that was stored. What is no well-formed call stays in the content and is remarked. At a cut
an unfinished call and a half character are left off. Tool use in plain text (`<function=...>`, fenced commands) is
content: `uses_tools` knows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from promptkit.conversation import Message
from promptkit.declarations import take
from promptkit.grammars import (
    HERMES_CALL,
    KIMI_CALL,
    KIMI_SECTION,
    KIMI_SECTION_ALSO,
    MINIMAX_CALL,
    RETURN,
    Template,
)
from promptkit.turns import ROLE_WORDS, Part, Turn, Walk, cut_parts

Calls = tuple[str, list[dict[str, Any]]]  # content and tool calls


def messages_of(t: Template, w: Walk, as_text: tuple[str, ...] = ()) -> tuple[list[Message], bool]:
    """Return the messages of all turns, and whether the row is cut; declared tools are left in `w.tools`.

    `as_text` names markers inside assistant turns that stand as text in this row.
    """
    build = _BUILDERS[t.grammar]
    out: list[Message] = []
    truncated = w.cut_header
    for k, turn in enumerate(w.turns):
        ends = bool(t.ends) and turn.role not in t.open_ended
        cut = ends and not turn.closed and k == len(w.turns) - 1
        if as_text and turn.role == "assistant":
            turn.parts = cut_parts(turn.parts, as_text)
        made = _undeclared(t, turn, w, build(t, turn, w, cut))
        last = k == len(w.turns) - 1 and not turn.closed
        if last and made and made[-1]["content"] == "" and not made[-1].keys() & {"reasoning", "tool_calls"}:
            # Nothing but a header: the generation prompt of a row that is a prompt only, or a cut; or half a call.
            truncated |= cut and (turn.role != "assistant" or any(mark in t.inner for mark, _ in turn.parts))
            made.pop()
        elif cut:
            truncated = True
        out += made
    return (_joined(out) if t.grammar == "harmony" else out), truncated


def _undeclared(t: Template, turn: Turn, w: Walk, made: list[Message]) -> list[Message]:
    """Take the declaration of tools off the turn that holds it; a system turn of nothing else is gone."""
    if turn.role not in _DECLARING.get(t.grammar, ("system",)) or len(made) != 1:
        return made
    (message,) = made
    if turn.header == "developer" and t.grammar == "harmony":
        message["content"] = message["content"].removeprefix("# Instructions\n\n")
    taken = take(t.grammar, message["content"]) if w.tools is None else None
    if taken is None:
        return made
    message["content"], w.tools = taken
    return made if message["content"] or message["role"] == "user" else []


_DECLARING = {"llama": ("system", "user")}


# ---- text


def decode(data: bytes, *, cut: bool) -> str:
    """Decode one message; at a cut the bytes of a half character are left off."""
    if cut and (tail := _half_character(data)):
        data = data[:-tail]
    return data.decode("utf-8", "replace")


def _half_character(data: bytes) -> int:
    """The number of bytes at the end that begin a character but do not finish it."""
    for n in range(1, min(4, len(data) + 1)):
        byte = data[-n]
        if byte >= 0xC0:
            return n if n < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
        if byte < 0x80:
            return 0
    return 0


def _join(parts: Sequence[Part]) -> bytes:
    return b"".join(mark.encode("utf-8") + text for mark, text in parts)


def _named(message: Message, header: str) -> Message:
    """Add the name that stands in the header where it is not the role itself."""
    if header and header not in ROLE_WORDS:
        message["name"] = header
    return message


# ---- the common case


def _plain(t: Template, turn: Turn, w: Walk, cut: bool) -> list[Message]:
    if turn.role == "assistant":
        return [_assistant(t, turn, w, cut, lambda parts, *_: (decode(_join(parts), cut=cut), []))]
    if t.opener and turn.header and turn.header not in ROLE_WORDS:
        w.mark("unknown role")
    return [_named({"role": turn.role, "content": decode(_join(turn.parts), cut=cut)}, turn.header)]


def _assistant(t: Template, turn: Turn, w: Walk, cut: bool, calls_of: Callable[..., Calls]) -> Message:
    """Take the think pair off the front and the tool calls off the end."""
    parts, reasoning = _think(t, turn.parts, w, cut)
    content, calls = calls_of(parts, w, cut)
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return _named(message, turn.header)


def _think(t: Template, parts: list[Part], w: Walk, cut: bool) -> tuple[list[Part], str]:
    """Return the parts behind the think pair, and what stands in it."""
    if t.think is None or len(parts) < 2:
        return parts, ""
    begin, close = t.think
    end = next((k for k, p in enumerate(parts) if p[0] == close), None)
    if parts[1][0] == begin and not parts[0][1].strip():
        inner = parts[1:end] if end is not None else parts[1:]
    elif end == 1 and t.lone_close:  # the pair was opened by the generation prompt, or there is only its end
        inner = parts[:1]
    else:
        return parts, ""
    if end is None and not cut:
        w.mark("think block without end")
    rest = [("", parts[end][1]), *parts[end + 1 :]] if end is not None else []
    reasoning = decode(inner[0][1] + _join(inner[1:]), cut=cut and not rest)
    if t.think_newlines:  # "<think>\n" R "\n</think>\n\n" C
        reasoning = reasoning.removeprefix("\n").removesuffix("\n")
        if rest:
            text = rest[0][1]
            rest[0] = ("", text[2:] if text.startswith(b"\n\n") else text.removeprefix(b"\n"))
    return rest, reasoning


def _call(call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    call: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call_id, **call} if call_id is not None else call


# ---- Kimi


def _kimi(t: Template, turn: Turn, w: Walk, cut: bool) -> list[Message]:
    if turn.role == "assistant":
        return [_assistant(t, turn, w, cut, _kimi_calls)]
    if turn.role == "system":
        return _kimi_system(turn, w, cut)
    return _plain(t, turn, w, cut)


def _kimi_system(turn: Turn, w: Walk, cut: bool) -> list[Message]:
    """A system marker opens system turns, tool lists and tool results; the text tells them apart."""
    text, header = decode(_join(turn.parts), cut=cut), turn.header
    if header == "system":
        return [{"role": "system", "content": text}]
    if header == "tool_declare":
        w.tools = _declared(text, w, cut) if w.tools is None else w.tools
        return []
    if cut and "\n" not in text and (text.startswith(RETURN) or RETURN.startswith(text)):
        return [{"role": "tool", "content": ""}]  # cut in the line that names the call
    if text.startswith(RETURN):
        call, _, content = text[len(RETURN) :].partition("\n")
        message: Message = {"role": "tool", "content": content, "tool_call_id": call.strip()}
        return [_named(message, header)]
    return [_named({"role": "tool" if header == "tool" else "system", "content": text}, header)]


def _declared(text: str, w: Walk, cut: bool) -> list[Any] | None:
    try:
        tools = json.loads(text)
    except (ValueError, RecursionError):
        if cut:
            w.mark("tool list is cut")
            w.cut_header = True
            return None
        return [text]  # K2.5 may declare tools in TypeScript
    return tools if isinstance(tools, list) else [tools]


_CALL_ID = re.compile(r"(?:functions\.)?(.+):\d+", re.DOTALL)


def _kimi_calls(parts: list[Part], w: Walk, cut: bool) -> Calls:
    """SECTION_BEGIN (CALL_BEGIN id ARGUMENT_BEGIN json CALL_END)* SECTION_END; an id such as call_1 tells no name."""
    begins = (KIMI_SECTION[0], KIMI_SECTION_ALSO[0], KIMI_CALL[0])
    start = next((k for k, p in enumerate(parts) if p[0] in begins), len(parts))
    content, calls, k = parts[:start], [], start
    unfinished = False
    while k < len(parts):
        mark, text = parts[k]
        names = tuple(p[0] for p in parts[k : k + 3])
        if names == KIMI_CALL:
            call_id = text.decode("utf-8", "replace").strip()
            name = _CALL_ID.fullmatch(call_id)
            calls.append(_call(call_id, name[1] if name else None, parts[k + 1][1].decode("utf-8", "replace")))
            text, k = parts[k + 2][1], k + 3
        elif mark in (*KIMI_SECTION, *KIMI_SECTION_ALSO):
            k += 1
        elif cut and names == KIMI_CALL[: len(parts) - k]:
            unfinished = True
            w.mark("unfinished tool call")
            break
        else:
            w.mark("malformed tool call")
            content.append((mark, text))
            k += 1
            continue
        if text.strip():
            content.append(("", text))
            w.mark("text after a tool call")
    return decode(_join(content), cut=cut and not calls and not unfinished), calls


# ---- Hermes: Qwen and other ChatML


def _hermes(t: Template, turn: Turn, w: Walk, cut: bool) -> list[Message]:
    if turn.role == "assistant":
        return [_assistant(t, turn, w, cut, lambda parts, w, cut: _pair_calls(parts, w, cut, _hermes_call))]
    text = decode(_join(turn.parts), cut=cut)
    if turn.role == "user" and (results := _responses(text, cut)) is not None:
        return results
    return _plain(t, turn, w, cut)


def _pair_calls(parts: list[Part], w: Walk, cut: bool, read: Callable[[str], dict[str, Any] | None]) -> Calls:
    """<tool_call> TEXT </tool_call>, each behind a newline; `read` makes a call of the text, or None."""
    start = next((k for k, p in enumerate(parts) if p[0] == HERMES_CALL[0]), len(parts))
    content, calls, k = parts[:start], [], start
    unfinished = False
    while k < len(parts):
        mark, text = parts[k]
        later = range(k + 1, len(parts)) if mark == HERMES_CALL[0] else ()
        end = next((j for j in later if parts[j][0] in HERMES_CALL), None)
        if mark == HERMES_CALL[0] and end is None and cut:
            unfinished = True
            w.mark("unfinished tool call")
            break
        if mark == HERMES_CALL[0] and end is not None and parts[end][0] == HERMES_CALL[1]:
            call = read((text + _join(parts[k + 1 : end])).decode("utf-8", "replace"))
            if call is not None:
                calls.append(call)
                text, k = parts[end][1], end + 1
                if text.strip():
                    content.append(("", text))
                    w.mark("text after a tool call")
                continue
        w.mark("malformed tool call")
        content.append((mark, text))
        k += 1
    joined = _join(content)
    if (calls or unfinished) and len(content) == start:
        joined = joined.removesuffix(b"\n")
    return decode(joined, cut=cut and not calls and not unfinished), calls


_QWEN_CALL = re.compile(r'\s*\{"name": ("(?:[^"\\]|\\.)*"), "arguments": (.*)\}\s*', re.DOTALL)


def _hermes_call(text: str) -> dict[str, Any] | None:
    """The call in JSON, its arguments as the string that stands there; or in tags, as Qwen3-Coder and 3.5 write it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _tagged_call(text)
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    match = _QWEN_CALL.fullmatch(text)
    arguments = value.get("arguments", value.get("parameters", {}))
    if match and len(value) == 2 and not isinstance(arguments, str):
        return _call(None, value["name"], match[2])
    return _call(None, value["name"], _as_string(arguments))


_TAGGED = re.compile(r"\s*<function=([^<>\n]+)>\n(.*?)</function>\s*", re.DOTALL)
_TAGGED_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>\n(.*?)\n</parameter>\n", re.DOTALL)


def _tagged_call(text: str) -> dict[str, Any] | None:
    match = _TAGGED.fullmatch(text)
    pairs = _all(_TAGGED_PARAMETER, match[2]) if match else None
    return _call(None, match[1], _arguments_of(pairs)) if match and pairs is not None else None


def _all(pattern: re.Pattern[str], text: str) -> list[tuple[str, str]] | None:
    """The pairs that a text is made of, each matched in its place (linear), or None if anything else is in it."""
    pairs, at = [], 0
    while at < len(text) and (match := pattern.match(text, at)):
        pairs.append((match[1], match[2]))
        at = match.end()
    return None if text[at:].strip() else pairs


def _arguments_of(pairs: list[tuple[str, str]]) -> str:
    """A value that is JSON counts as such, else it is a string."""
    return json.dumps({k: _json_or_text(v) for k, v in pairs}, ensure_ascii=False)


def _as_string(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


_RESPONSE = re.compile(r"\n?<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


def _responses(text: str, cut: bool) -> list[Message] | None:
    """Tool messages, if the turn holds nothing but tool responses: so Qwen's own template reads a user turn."""
    if not text.lstrip().startswith("<tool_response>"):
        return None
    out: list[Message] = []
    at = 0
    while match := _RESPONSE.match(text, at):
        out.append({"role": "tool", "content": match[1]})
        at = match.end()
    rest = text[at:]
    if not rest.strip():
        return out
    if cut and (half := re.match(r"\n?<tool_response>\n", rest)):
        return [*out, {"role": "tool", "content": rest[half.end() :]}]
    if cut and out and "\n<tool_response>\n".startswith(rest):
        return out
    return None


# ---- GLM


def _glm(t: Template, turn: Turn, w: Walk, cut: bool) -> list[Message]:
    if turn.role == "assistant":
        message = _assistant(t, turn, w, cut, lambda parts, w, cut: _pair_calls(parts, w, cut, _glm_call))
        message["content"] = message["content"].removesuffix("\n") if turn is not w.turns[-1] else message["content"]
        return [message]
    text = decode(_join(turn.parts), cut=cut)
    if turn.role == "tool":
        return _responses(text, cut) or _responses(text.removesuffix("\n"), cut) or _plain(t, turn, w, cut)
    return _plain(t, turn, w, cut)


_GLM_NAME = re.compile(r"\s*([^\s<]+)\s*")
_GLM_ARGUMENT = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def _glm_call(text: str) -> dict[str, Any] | None:
    """NAME and pairs of <arg_key> and <arg_value>."""
    name = _GLM_NAME.match(text)
    pairs = _all(_GLM_ARGUMENT, text[name.end() :]) if name else None
    return _call(None, name[1], _arguments_of(pairs)) if name and pairs is not None else None


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


# ---- DeepSeek

DEEPSEEK_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCED = re.compile(r"\s*([^\n]+)\n```json\n(.*)\n```\s*", re.DOTALL)


def _deepseek(t: Template, turn: Turn, w: Walk, cut: bool) -> list[Message]:
    if turn.role != "assistant":
        return _plain(t, turn, w, cut)
    return [_assistant(t, turn, w, cut, _deepseek_calls)]


def _deepseek_calls(parts: list[Part], w: Walk, cut: bool) -> Calls:
    """CALL_BEGIN name SEP json CALL_END (V3.1), or CALL_BEGIN "function" SEP name, newline, fenced json (V3, R1)."""
    content: list[Part] = []
    calls, k = [], 0
    while k < len(parts):
        mark, text = parts[k]
        names = tuple(p[0] for p in parts[k : k + 3])
        if names == DEEPSEEK_CALL:
            name, body = (x.decode("utf-8", "replace") for x in (text, parts[k + 1][1]))
            fenced = _FENCED.fullmatch(body) if name.strip() == "function" else None
            calls.append(_call(None, fenced[1], fenced[2]) if fenced else _call(None, name.strip(), body))
            text, k = parts[k + 2][1], k + 3
            if text.strip():
                content.append(("", text))
            continue
        k += 1
        if mark in ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"):
            content += [("", text)] if text.strip() else []
        elif cut and names == DEEPSEEK_CALL[: len(names)]:
            w.mark("unfinished tool call")
            break
        else:
            content.append((mark, text))
    return decode(_join(content), cut=cut and not calls), calls


# ---- Mistral


def _mistral(t: Template, turn: Turn, w: Walk, cut: bool) -> list[Message]:
    if turn.role == "assistant":
        return [_assistant(t, turn, w, cut, _mistral_calls)]
    if turn.role == "tool":
        return [_mistral_result(turn, cut)]
    text = decode(_join(turn.parts), cut=cut).removesuffix("[/AVAILABLE_TOOLS]")
    if turn.role == "tools":
        w.tools = _declared(text, w, cut)
        return []
    return [{"role": turn.role, "content": text}]


_RESULT_KEYS = ({"content", "call_id"}, {"content"})


def _mistral_result(turn: Turn, cut: bool) -> Message:
    """The result alone, in JSON with its call's id (v2, v3), or behind the id (v7 and later)."""
    parts = turn.parts
    if len(parts) == 2 and parts[1][0] == "[TOOL_CONTENT]":
        content, call_id = decode(parts[1][1].removeprefix(b" "), cut=cut), decode(parts[0][1], cut=False).strip()
        return {"role": "tool", "content": content, **({"tool_call_id": call_id} if call_id else {})}
    text = decode(_join(parts), cut=cut)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"role": "tool", "content": text}
    if not isinstance(value, dict) or value.keys() not in _RESULT_KEYS:
        return {"role": "tool", "content": text}
    message: Message = {"role": "tool", "content": _as_string(value["content"])}
    return {**message, "tool_call_id": str(value["call_id"])} if "call_id" in value else message


def _mistral_calls(parts: list[Part], w: Walk, cut: bool) -> Calls:
    """[TOOL_CALLS] and a JSON list of calls; or, from v11 on, [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]JSON for each."""
    start = next((k for k, p in enumerate(parts) if p[0] == "[TOOL_CALLS]"), None)
    if start is None:
        return decode(_join(parts), cut=cut), []
    try:
        if any(mark == "[ARGS]" for mark, _ in parts):
            calls = _mistral_named_calls(parts[start:])
        else:
            listed = json.loads(parts[start][1] + _join(parts[start + 1 :]))
            calls = [_call(c.get("id"), c["name"], _as_string(c.get("arguments", {}))) for c in listed]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        w.mark("unfinished tool call" if cut else "malformed tool call")
        return decode(_join(parts[:start] if cut else parts), cut=False), []
    return decode(_join(parts[:start]), cut=False), calls


def _mistral_named_calls(parts: list[Part]) -> list[dict[str, Any]]:
    """Raises ValueError for what is no such call."""
    calls: list[dict[str, Any]] = []
    for mark, data in parts:
        text = data.decode("utf-8", "replace").strip()
        if mark == "[TOOL_CALLS]":
            calls.append(_call(None, text, ""))
        elif mark == "[CALL_ID]":
            calls[-1] = {"id": text, **calls[-1]}
        elif mark == "[ARGS]":
            json.loads(text)
            calls[-1]["function"]["arguments"] = text
        else:
            raise ValueError(mark)
    if any(not c["function"]["name"] or not c["function"]["arguments"] for c in calls):
        raise ValueError("half a call")
    return calls


# ---- Llama


def _llama(t: Template, turn: Turn, w: Walk, cut: bool) -> list[Message]:
    if turn.role != "assistant":
        return _plain(t, turn, w, cut)
    answer = _assistant(t, turn, w, cut, lambda parts, w, cut: _llama_calls(parts, t.inner, w, cut))
    if not cut and "tool_calls" not in answer and (call := _llama_bare_call(answer["content"])) is not None:
        later = next((b for a, b in pairwise(w.turns) if a is turn), None)
        known = {(x.get("function") or x).get("name") for x in w.tools or () if isinstance(x, dict)}
        if (later is not None and later.role == "tool") or call["function"]["name"] in known:
            answer |= {"content": "", "tool_calls": [call]}
    return [answer]


_BARE_CALL = re.compile(r'\{"name": "[^"\\]+", "parameters": (\{.*\})\}', re.DOTALL)


def _llama_bare_call(text: str) -> dict[str, Any] | None:
    """Llama 3 calls the tools of its users without a tag: an answer that is nothing but the call in JSON."""
    match = _BARE_CALL.fullmatch(text.strip())
    if match is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _call(None, value["name"], match[1]) if value.keys() == {"name", "parameters"} else None


_BUILT_IN = re.compile(r"(\w+)\.call\((.*)\)", re.DOTALL)


def _llama_calls(parts: list[Part], marks: tuple[str, ...], w: Walk, cut: bool) -> Calls:
    """Behind the tag: a call in JSON, a built-in tool as `brave_search.call(query="...")`, else code to run."""
    start = next((k for k, p in enumerate(parts) if p[0] == marks[0]), None)
    if start is None:
        return decode(_join(parts), cut=cut), []
    content = decode(_join(parts[:start]), cut=False)
    text = (parts[start][1] + b"".join(x for m, x in parts[start + 1 :])).decode("utf-8", "replace")
    if any(m not in marks for m, _ in parts[start + 1 :]):
        w.mark("malformed tool call")
        return decode(_join(parts), cut=cut), []
    if cut:
        w.mark("unfinished tool call")
        return content, []
    call = _hermes_call(text)
    built_in = _BUILT_IN.fullmatch(text.strip())
    if call is None and built_in is not None:
        call = _call(None, built_in[1], built_in[2])
    return content, [call or _call(None, "code_interpreter", text)]


# ---- MiniMax

_INVOKE = re.compile(r'\s*<invoke name="([^"<>\n]+)">(.*?)</invoke>\s*', re.DOTALL)
_PARAMETER = re.compile(r'\s*<parameter name="([^"<>\n]+)">(.*?)</parameter>\s*', re.DOTALL)
_MINIMAX_RESULT = re.compile(r"\s*<(response)>(.*?)</response>\s*", re.DOTALL)


def _minimax(t: Template, turn: Turn, w: Walk, cut: bool) -> list[Message]:
    if turn.role == "assistant":
        return [_assistant(t, turn, w, cut, _minimax_calls)]
    if turn.role == "tool":
        text = decode(_join(turn.parts), cut=cut)
        if results := _all(_MINIMAX_RESULT, text):
            return [{"role": "tool", "content": result} for _, result in results]
    return _plain(t, turn, w, cut)


def _minimax_calls(parts: list[Part], w: Walk, cut: bool) -> Calls:
    """One block of calls."""
    start = next((k for k, p in enumerate(parts) if p[0] == MINIMAX_CALL[0]), None)
    if start is None:
        return decode(_join(parts), cut=cut), []
    stop = next((k for k in range(start + 1, len(parts)) if parts[k][0] == MINIMAX_CALL[1]), None)
    before = _join(parts[:start]).removesuffix(b"\n")
    if stop is None and cut:
        w.mark("unfinished tool call")
        return decode(before, cut=False), []
    inner = (parts[start][1] + _join(parts[start + 1 : stop])).decode("utf-8", "replace")
    calls = [_minimax_call(name, body) for name, body in _all(_INVOKE, inner) or ()]
    if stop is None or not calls or None in calls:
        w.mark("malformed tool call")
        return decode(_join(parts), cut=cut), []
    rest = parts[stop][1] + _join(parts[stop + 1 :])
    if rest.strip():
        w.mark("text after a tool call")
        before += rest
    return decode(before, cut=False), [call for call in calls if call is not None]


def _minimax_call(name: str, body: str) -> dict[str, Any] | None:
    pairs = _all(_PARAMETER, body)
    return _call(None, name, _arguments_of(pairs)) if pairs is not None else None


# ---- Harmony


_RECIPIENT = re.compile(r"\bto=(\S+?)(?=<|\s|$)")


def _harmony(t: Template, turn: Turn, w: Walk, cut: bool) -> list[Message]:
    """One message for each channel: `analysis` is reasoning, a recipient makes a call; `_joined` puts them together."""
    text, header = decode(_join(turn.parts), cut=cut), turn.header
    if turn.role == "assistant":
        to = _RECIPIENT.search(header)
        if to is not None and to[1] != "assistant":
            if cut:
                w.mark("unfinished tool call")
                return [{"role": "assistant", "content": ""}]
            name = to[1].removeprefix("functions.")
            return [{"role": "assistant", "content": "", "tool_calls": [_call(None, name, text)]}]
        if "<|channel|>analysis" in header:
            return [{"role": "assistant", "content": "", "reasoning": text}]
        return [{"role": "assistant", "content": text}]
    if turn.role == "tool":
        return [{"role": "tool", "content": text, "name": re.split(r"[\s<]", header)[0].removeprefix("functions.")}]
    return [{"role": turn.role, "content": text}]


def _joined(messages: list[Message]) -> list[Message]:
    """Join reasoning with the answer or the call behind it, and calls in a row."""
    out: list[Message] = []
    for m in messages:
        before = out[-1] if out and out[-1]["role"] == m["role"] == "assistant" else None
        if before is None or "reasoning" in m or (before.get("tool_calls") and "tool_calls" not in m):
            out.append(dict(m))
        elif "tool_calls" in m:
            before["tool_calls"] = [*before.get("tool_calls", ()), *m["tool_calls"]]
        elif before["content"]:
            out.append(dict(m))
        else:
            before["content"] = m["content"]
    return out


# ---- Kimi K3


def _k3(t: Template, turn: Turn, w: Walk, cut: bool) -> list[Message]:
    """Take the first `think` and `response` out of their tags; all other tags stay as they are."""
    text = decode(_join(turn.parts), cut=cut).removesuffix("<|close|>message<|sep|>")
    text, reasoning = _k3_tag(text, "think")
    text, response = _k3_tag(text, "response")
    message: Message = {"role": turn.role, "content": response + text}
    if reasoning:
        message["reasoning"] = reasoning
    return [message]


def _k3_tag(text: str, tag: str) -> tuple[str, str]:
    """The text without the tag, and what stands in it."""
    before, begin, behind = text.partition(f"<|open|>{tag}<|sep|>")
    inner, end, after = behind.partition(f"<|close|>{tag}<|sep|>")
    return (before + after, inner) if begin and end else (text, "")


_BUILDERS: dict[str, Callable[[Template, Turn, Walk, bool], list[Message]]] = {
    "plain": _plain,
    "kimi": _kimi,
    "hermes": _hermes,
    "glm": _glm,
    "deepseek": _deepseek,
    "mistral": _mistral,
    "llama": _llama,
    "minimax": _minimax,
    "harmony": _harmony,
    "k3": _k3,
}
