"""From a stored row to a conversation: by special *ids*, not by text, with every remark kept as a mark.

    ids     163587 2121 163601 13347 163586 163588 ...
    cut at markers   <|im_user|> "user" <|im_middle|> "Hi" <|im_end|> <|im_assistant|> ...
    turns            user "Hi", assistant ...
    messages         {"role": "user", "content": "Hi"}, ...

Ids and stored text share one path: both are cut into markers and the bytes between them. Bytes are joined for a whole
message before they are decoded, because a character often spans tokens. Loss masks are not used for turns (at least
six conventions exist, most are off by a token or two) unless no template is known. Nothing is dropped silently: what
does not follow the grammar stays in the content and is marked. About 50 us for a row of 500 tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptkit.conversation import DEFAULT_SYSTEMS, Conversation, Message
from promptkit.encoders import whole
from promptkit.errors import UsageError
from promptkit.grammars import (
    HERMES_CALL,
    KIMI_CALL,
    KIMI_SECTION,
    KIMI_SECTION_ALSO,
    QWEN_TOOLS,
    RETURN,
    TEMPLATES,
    Template,
    template_named,
)
from promptkit.tokenizers import Tokenizer, split_at

if TYPE_CHECKING:
    from promptkit.readers.records import Record

# Roles as templates and data sets write them.
ROLE_WORDS = {
    **{"system": "system", "developer": "system", "user": "user", "human": "user"},
    **dict.fromkeys(("assistant", "ai", "gpt", "model"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "ipython"), "tool"),
}
MAX_HEADER_BYTES = 128

Part = tuple[str, bytes]  # a marker ("" for the first part of a turn) and the bytes behind it


@dataclass
class Turn:
    """A turn as it stands between its markers; `role` is None where the row begins in the middle of it."""

    role: str | None
    header: str
    parts: list[Part]
    closed: bool = False


@dataclass
class Walk:
    """All turns of a row; `n_good` of `n_markers` turn markers stand where the grammar wants them."""

    turns: list[Turn] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    cut_header: bool = False
    n_good: int = 0
    n_markers: int = 0

    def mark(self, remark: str) -> None:
        if remark not in self.marks:
            self.marks.append(remark)


# ---- cutting at markers


@lru_cache(maxsize=64)
def _marker_table(tokenizer: Tokenizer, template: Template) -> tuple[NDArray[np.bool_], dict[int, str]]:
    """A flag for each id (one more for ids out of range) that is a marker of the template, and its names."""
    names = {tokenizer.specials[m]: m for m in template.markers if m in tokenizer.specials}
    flags = np.zeros(tokenizer.n_vocab + 1, bool)
    flags[list(names)] = True
    return flags, names


@lru_cache(maxsize=64)
def _as_text(tokenizer: Tokenizer, template: Template) -> tuple[str, ...]:
    """The markers inside assistant turns that this tokenizer spells as text, so that text has to be searched for them.

    Kimi's tool markers are never text: what only looks like them stays content.
    """
    inner = template.inner if template.grammar == "hermes" else ()
    return tuple(m for m in (*inner, *(template.think or ())) if m not in tokenizer.specials)


def cut_ids(ids: NDArray[Any], tokenizer: Tokenizer, template: Template) -> tuple[list[str], list[bytes]]:
    """Return the n markers among the ids and the n + 1 byte strings around them."""
    flags, names = _marker_table(tokenizer, template)
    at = flags[tokenizer.clip(ids)].nonzero()[0]
    data, ends = tokenizer.spell(ids)
    marks = [names[i] for i in ids[at].tolist()]
    behind = ends[at].tolist()
    before = [b - len(m.encode()) for b, m in zip(behind, marks, strict=True)]
    return marks, [data[a:b] for a, b in zip([0, *behind], [*before, len(data)], strict=True)]


def cut_text(text: str, template: Template) -> tuple[list[str], list[bytes]]:
    """Return the same for text in which the markers are written out."""
    parts = split_at(template.markers).split(whole(text))
    return parts[1::2], [p.encode("utf-8") for p in parts[::2]]


# ---- turns


def walk(template: Template, marks: Sequence[str], texts: Sequence[bytes]) -> Walk:
    """Follow the grammar of turns; what breaks it stays in the content of the turn before and is marked."""
    w = Walk()
    openers, ends, n = template.openers, template.closers, len(marks)
    if texts[0].strip():
        w.turns.append(Turn(template.lead, "", [("", texts[0])]))
    i = 0
    while i < n:
        mark, text = marks[i], texts[i + 1]
        turn = w.turns[-1] if w.turns else None
        is_open = turn is not None and not turn.closed
        if mark in openers:
            w.n_markers += 1
            head = _header(template, marks, texts, i, strict=is_open and bool(template.ends))
            if head is not None:
                role, header, body, used = head
                if turn is not None and is_open and (turn.role is not None or template.lead is None) and template.ends:
                    if turn.role is None:
                        w.mark("cut at the start")
                    else:
                        w.mark("marker inside a message")
                        w.n_good -= 1
                w.turns.append(Turn(role, header, [("", body)]))
                w.n_good += 1
                i += used
                continue
            if i == n - 1 and not is_open and len(text) <= MAX_HEADER_BYTES:
                w.cut_header = True
                break
        elif mark in ends:
            w.n_markers += mark in template.ends
            if is_open and not text.strip():
                assert turn is not None
                turn.closed = True
                w.n_good += mark in template.ends
                i += 1
                continue
            if turn is not None and turn.closed and mark in template.finals and not text.strip():
                i += 1
                continue
        elif mark in template.skips and not is_open and not text.strip():
            i += 1
            continue
        elif mark in template.skips and turn is None:
            w.turns.append(Turn(template.lead, "", [("", text)]))
            i += 1
            continue
        elif is_open and mark != template.header_end:
            assert turn is not None
            turn.parts.append((mark, text))
            i += 1
            continue
        # Outside the grammar: a marker that some text quotes became the real one, or the row begins in a turn.
        w.mark("cut at the start" if turn is None else "quoted markers")
        if turn is None:
            turn = Turn(None, "", [("", b"")], closed=mark in ends and not text.strip())
            w.turns.append(turn)
            if not turn.closed:
                turn.parts.append((mark, text))
        else:
            turn.closed = False
            turn.parts.append((mark, text))
            if mark in ends and not text.strip() and (i == n - 1 or marks[i + 1] in openers):
                turn.closed = True
        i += 1
    for turn, later in zip_longest(w.turns, w.turns[1:]):
        if turn.role is None:  # what comes before an answer was asked
            turn.role = "user" if later is not None and later.role == "assistant" else "assistant"
    return w


def _header(
    t: Template, marks: Sequence[str], texts: Sequence[bytes], i: int, *, strict: bool
) -> tuple[str, str, bytes, int] | None:
    """Return (role, header text, first bytes of the body, markers used) if a turn opens at marker i."""
    mark, text = marks[i], texts[i + 1]
    body, used = text, 1
    if t.header_end == "\n":
        head, newline, body = text.partition(b"\n")
        if not newline:
            return None
    elif t.header_end is not None:
        if i + 1 >= len(marks) or marks[i + 1] != t.header_end:
            return None
        head, body, used = text, texts[i + 2], 2
    else:
        head = b""
    if len(head) > MAX_HEADER_BYTES or b"\n" in head:
        return None
    header = head.decode("utf-8", "replace").strip()
    role = t.roles.get(mark) or ROLE_WORDS.get(header)
    if role is None:
        if strict or not header or len(header.split()) > 1:
            return None
        role = "user"
    if t.body_prefix and body.startswith(t.body_prefix.encode()):
        body = body[len(t.body_prefix) :]
    return role, header, body, used


# ---- messages


def _decode(data: bytes, *, cut: bool) -> str:
    """Decode one message; at a cut the bytes of a half character are left off."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if cut and error.reason == "unexpected end of data" and error.end == len(data):
            return data[: error.start].decode("utf-8", "replace")
        if cut and (tail := _half_character(data)):
            return data[:-tail].decode("utf-8", "replace")
        return data.decode("utf-8", "replace")


def _half_character(data: bytes) -> int:
    """The number of bytes at the end that begin a character but do not finish it."""
    for n in range(1, min(4, len(data) + 1)):
        byte = data[-n]
        if byte & 0xC0 == 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return n if n < need else 0
        if byte & 0xC0 != 0x80:
            return 0
    return 0


def _join(parts: Sequence[Part]) -> bytes:
    return b"".join(mark.encode("utf-8") + text for mark, text in parts)


def _messages(template: Template, w: Walk, missing: tuple[str, ...]) -> tuple[list[Message], list[Any] | None, bool]:
    """Return messages, declared tools, and whether the row is cut."""
    out: list[Message] = []
    tools: list[Any] | None = None
    truncated = w.cut_header
    for k, turn in enumerate(w.turns):
        cut = bool(template.ends) and not turn.closed and k == len(w.turns) - 1
        if missing and turn.role == "assistant":
            turn.parts = _resplit(turn.parts, missing)
        if template.grammar == "kimi" and turn.role == "system":
            made, declared = _kimi_system(turn, w, cut=cut)
            tools = declared if tools is None else tools
        elif template.grammar == "hermes" and turn.role == "user":
            made = _hermes_user(turn, cut=cut)
        elif template.grammar == "hermes" and turn.role == "system" and k == 0:
            made, tools = _hermes_system(turn, cut=cut)
        elif turn.role == "assistant":
            made = [_assistant(template, turn, w, cut=cut)]
        else:
            made = [{"role": turn.role, "content": _decode(_join(turn.parts), cut=cut)}]
            if turn.header and turn.header not in ROLE_WORDS:
                made[0]["name"] = turn.header
                if template.opener:
                    w.mark("unknown role")
        if cut:
            if made and made[-1]["content"] == "" and len(made[-1].keys() - {"name", "tool_call_id"}) == 2:
                # Nothing but a header: the generation prompt of a row that is a prompt only, or a cut.
                truncated |= turn.role != "assistant"
                made.pop()
            else:
                truncated = True
        out += made
    return out, tools, truncated


def _resplit(parts: Sequence[Part], names: tuple[str, ...]) -> list[Part]:
    """Cut at markers that the tokenizer does not know as special, so that they stand as text in the row."""
    out: list[Part] = []
    pattern = split_at(names)
    for mark, text in parts:
        pieces = pattern.split(text.decode("utf-8", "surrogateescape"))
        out.append((mark, pieces[0].encode("utf-8", "surrogateescape")))
        for name, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            out.append((name, piece.encode("utf-8", "surrogateescape")))
    return out


def _kimi_system(turn: Turn, w: Walk, *, cut: bool) -> tuple[list[Message], list[Any] | None]:
    text = _decode(_join(turn.parts), cut=cut)
    header = turn.header
    if header == "system":
        return [{"role": "system", "content": text}], None
    if header == "tool_declare":
        try:
            tools = json.loads(text)
            return [], tools if isinstance(tools, list) else [tools]
        except (ValueError, RecursionError):
            if cut:
                w.mark("tool list is cut")
                w.cut_header = True
                return [], None
            return [], [text]  # K2.5 may declare tools in TypeScript
    if cut and "\n" not in text and (text.startswith(RETURN) or RETURN.startswith(text)):
        return [{"role": "tool", "content": ""}], None
    if text.startswith(RETURN):
        call, _, content = text[len(RETURN) :].partition("\n")
        message: Message = {"role": "tool", "content": content, "tool_call_id": call.strip()}
    elif header == "tool":
        message = {"role": "tool", "content": text}
    else:
        message = {"role": "system", "content": text}
    if header not in ("tool", ""):
        message["name"] = header
    return [message], None


def _assistant(t: Template, turn: Turn, w: Walk, *, cut: bool) -> Message:
    """Take the think pair off the front and the tool calls off the end."""
    parts = list(turn.parts)
    reasoning: str | None = None
    newlines = t.grammar == "hermes"
    if t.think and len(parts) > 1 and parts[1][0] == t.think[0] and not parts[0][1].strip():
        end = next((k for k, p in enumerate(parts) if p[0] == t.think[1]), None)
        if end is None:
            if not cut:
                w.mark("think block without end")
            inner, parts = parts[1:], []
        else:
            inner, parts = parts[1:end], [("", parts[end][1]), *parts[end + 1 :]]
        reasoning = _decode(inner[0][1] + _join(inner[1:]), cut=cut and not parts)
        if newlines:
            reasoning = reasoning.removeprefix("\n").removesuffix("\n")
            if parts:
                after = parts[0][1]
                stripped = after.removeprefix(b"\n\n") if after.startswith(b"\n\n") else after.removeprefix(b"\n")
                parts[0] = ("", stripped)
    if t.grammar == "kimi":
        content, calls = _kimi_calls(parts, w, cut=cut)
    elif t.grammar == "hermes":
        content, calls = _hermes_calls(parts, w, cut=cut)
    else:
        content, calls = _decode(_join(parts), cut=cut), []
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = calls
    if turn.header not in ROLE_WORDS and turn.header:
        message["name"] = turn.header
    return message


_CALL_ID = re.compile(r"(?:functions\.)?(.+):\d+", re.DOTALL)


def _kimi_calls(parts: list[Part], w: Walk, *, cut: bool) -> tuple[str, list[dict[str, Any]]]:
    """Return content and calls: SECTION_BEGIN (CALL_BEGIN id ARGUMENT_BEGIN json CALL_END)* SECTION_END."""
    begins = (KIMI_SECTION[0], KIMI_SECTION_ALSO[0], KIMI_CALL[0])
    start = next((k for k, p in enumerate(parts) if p[0] in begins), None)
    if start is None:
        return _decode(_join(parts), cut=cut), []
    content, tail, calls = parts[:start], parts[start:], []
    k = 0
    while k < len(tail):
        mark, text = tail[k]
        names = tuple(p[0] for p in tail[k : k + 3])
        if names == KIMI_CALL:
            name = text.decode("utf-8", "replace").strip()
            calls.append(_call(name, _kimi_name(name), tail[k + 1][1].decode("utf-8", "replace")))
            text, k = tail[k + 2][1], k + 3
        elif mark in (*KIMI_SECTION, *KIMI_SECTION_ALSO):
            k += 1
        elif cut and names == KIMI_CALL[: len(tail) - k]:
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
    return _decode(_join(content), cut=cut and not calls), calls


def _kimi_name(call_id: str) -> str | None:
    """The function's name in `functions.NAME:IDX`; an id such as call_1 does not tell it."""
    match = _CALL_ID.fullmatch(call_id)
    return match[1] if match else None


def _call(call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    call: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call_id, **call} if call_id is not None else call


def _hermes_calls(parts: list[Part], w: Walk, *, cut: bool) -> tuple[str, list[dict[str, Any]]]:
    """Return content and calls: <tool_call> JSON </tool_call>, each behind a newline."""
    start = next((k for k, p in enumerate(parts) if p[0] == HERMES_CALL[0]), None)
    if start is None:
        return _decode(_join(parts), cut=cut), []
    content, tail, calls = parts[:start], parts[start:], []
    k = 0
    while k < len(tail):
        mark, text = tail[k]
        if (mark, *(p[0] for p in tail[k + 1 : k + 2])) == HERMES_CALL:
            call = _hermes_call(text.decode("utf-8", "replace"))
            if call is not None:
                calls.append(call)
                text, k = tail[k + 1][1], k + 2
                if text.strip():
                    content.append(("", text))
                    w.mark("text after a tool call")
                continue
        elif cut and mark == HERMES_CALL[0] and k == len(tail) - 1:
            w.mark("unfinished tool call")
            calls_cut = True
            break
        w.mark("malformed tool call")
        content.append((mark, text))
        k += 1
    else:
        calls_cut = False
    joined = _join(content)
    if (calls or calls_cut) and len(content) == start:
        joined = joined.removesuffix(b"\n")
    return _decode(joined, cut=cut and not (calls or calls_cut)), calls


_QWEN_CALL = re.compile(r'\s*\{"name": ("(?:[^"\\]|\\.)*"), "arguments": (.*)\}\s*', re.DOTALL)


def _hermes_call(text: str) -> dict[str, Any] | None:
    """Return the call, its arguments as the string that stands there, or None where it is no JSON of a call."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        return _call(None, value["name"], arguments)
    match = _QWEN_CALL.fullmatch(text)
    if match and len(value) == 2:
        return _call(None, value["name"], match[2])
    return _call(None, value["name"], json.dumps(arguments, ensure_ascii=False))


_RESPONSE = re.compile(r"\n?<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


def _hermes_user(turn: Turn, *, cut: bool) -> list[Message]:
    """A user turn that holds nothing but tool responses is as many tool messages, as Qwen's template reads it."""
    text = _decode(_join(turn.parts), cut=cut)
    bare = text.lstrip()
    if bare.startswith("<tool_response>"):
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
        if cut and "\n<tool_response>\n".startswith(rest.lstrip()) and out:
            return out
    message: Message = {"role": "user", "content": text}
    if turn.header not in ROLE_WORDS and turn.header:
        message["name"] = turn.header
    return [message]


def _hermes_system(turn: Turn, *, cut: bool) -> tuple[list[Message], list[Any] | None]:
    """Take Qwen's own declaration of tools off the system turn."""
    text = _decode(_join(turn.parts), cut=cut)
    before, declared, after = text.partition(QWEN_TOOLS[0] + "\n")
    lines, end, rest = after.partition(QWEN_TOOLS[1])
    if declared and end and not rest:
        try:
            tools = [json.loads(line) for line in lines.split("\n")]
        except (ValueError, RecursionError):
            return [{"role": "system", "content": text}], None
        before = before.removesuffix("\n\n")
        return ([{"role": "system", "content": before}] if before else []), tools
    return [{"role": "system", "content": text}], None


# ---- padding


@lru_cache(maxsize=64)
def _padding(tokenizer: Tokenizer, template: Template | None) -> tuple[frozenset[int], frozenset[int]]:
    """The ids that are padding, and the ids behind which zeros are padding: ends of turns and of headers."""
    s = tokenizer.specials
    names = {"[PAD]", "<pad>", "<|pad|>", "<|finetune_right_pad_id|>", "<｜▁pad▁｜>"}
    pads = {s[n] for n in names if n in s} | ({tokenizer.pad} if tokenizer.pad is not None else set())
    closing: set[int] = set()
    for t in [template] if template else TEMPLATES.values():
        closing |= {s[n] for n in (*t.ends, *t.finals, t.header_end, *(t.think or ())) if n in s}
        pads -= {s[n] for n in t.ends if n in s}  # a model may pad with its end of turn: not told from a real one
    return frozenset(pads), frozenset(closing)


ZEROS = 4  # so many zeros in a row are padding: a text with "!!!!" has merged tokens for it


def trim(
    ids: NDArray[Any],
    mask: NDArray[Any] | None,
    attention: NDArray[Any] | None,
    tokenizer: Tokenizer | None,
    template: str | Template | None,
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return ids and mask without padding at the end (and, where an attention mask or pad ids say so, at the start).

    SpecForge pads with id 0 and stores no attention mask, yet id 0 is a real token (`!` in most vocabularies): zeros
    are taken off where the mask leaves them out and what stands before closes a turn, or where there are many.
    """
    start, stop = 0, len(ids)
    if attention is not None and len(attention) == len(ids):
        attended = np.flatnonzero(attention)
        if len(attended):
            start, stop = int(attended[0]), int(attended[-1]) + 1
    if stop <= start:
        return ids[start:stop], None if mask is None else mask[start:stop]
    found = template_named(template) if template is not None else None
    pads, closing = _padding(tokenizer, found) if tokenizer is not None else (frozenset[int](), frozenset[int]())
    if pads:
        while stop > start and int(ids[stop - 1]) in pads:
            stop -= 1
        while start < stop and int(ids[start]) in pads:
            start += 1
    if stop > start and ids[stop - 1] == 0:
        nonzero = np.flatnonzero(ids[start:stop])
        last = start + int(nonzero[-1]) if len(nonzero) else start - 1
        zeros = stop - last - 1
        masked = mask is None or not mask[last + 1 : stop].any() or bool(mask.all())
        if masked and (zeros >= ZEROS or _closes(ids[: last + 1], tokenizer, closing)):
            stop = last + 1
    return ids[start:stop], None if mask is None else mask[start:stop]


def _closes(ids: NDArray[Any], tokenizer: Tokenizer | None, closing: frozenset[int]) -> bool:
    """Whether the ids end with a marker that closes something, white space behind it allowed."""
    for i in reversed(ids[-4:].tolist()):
        if i in closing:
            return True
        if tokenizer is None or tokenizer.decode_bytes(np.array([i])).strip():
            return False
    return False


# ---- the whole row


def recover(record: Record, tokenizer: Tokenizer | None, template: str | None) -> Conversation:
    """Return the conversation of one stored row.

    Stored messages come before stored text, text before ids; counts are always those of the ids less padding.
    Raises UsageError where ids have to be decoded and no tokenizer is given.
    """
    marks = list(record.marks)
    ids, mask, n_tokens, n_supervised = None, None, None, None
    if record.ids is not None:
        ids, mask = trim(record.ids, record.mask, record.attention, tokenizer, template)
        n_tokens = len(ids)
        n_supervised = int(np.count_nonzero(mask)) if mask is not None else None
        if tokenizer is not None and tokenizer.name != "words":
            bad = n_tokens - int(np.count_nonzero(tokenizer.known(ids)))
            marks += [f"bad ids: {bad}"] if bad else []
    found = template_named(template) if template is not None else None
    if record.messages is not None:
        conversation = Conversation(list(record.messages), record.tools)
    elif record.text is not None:
        conversation = parse_text(record.text, found)
        if record.response:
            answer: Message = {"role": "assistant", "content": record.response}
            conversation = Conversation(
                [*conversation.messages, answer], conversation.tools, truncated=conversation.truncated,
                marks=conversation.marks,
            )  # fmt: skip
        if ids is not None and tokenizer is not None and tokenizer.name != "words":
            conversation, remark = _compare(record.text, ids, tokenizer, conversation)
            marks += [remark] if remark else []
    elif ids is not None:
        if tokenizer is None:
            raise UsageError(
                "the shards hold token ids and no tokenizer was found beside them",
                hint="give --tokenizer: the model's directory, tiktoken.model or tokenizer.json",
            )
        conversation = parse_ids(ids, mask, tokenizer, found)
    else:
        conversation = Conversation([], marks=("empty row",))
    marks += conversation.marks
    first = conversation.messages[0] if conversation.messages else None
    if first is not None and first["role"] == "system" and str(first["content"]).strip() in DEFAULT_SYSTEMS:
        marks.append("system is default")
    if conversation.truncated:
        marks.append("truncated")
    return Conversation(
        conversation.messages,
        conversation.tools if conversation.tools is not None else record.tools,
        n_tokens=n_tokens,
        n_supervised=n_supervised,
        truncated=conversation.truncated,
        marks=tuple(dict.fromkeys(marks)),
    )


def parse_ids(
    ids: NDArray[Any], mask: NDArray[Any] | None, tokenizer: Tokenizer, template: Template | None
) -> Conversation:
    """Return the conversation that the ids hold (padding taken off before); never raises for any ids."""
    if template is not None:
        marks, texts = cut_ids(ids, tokenizer, template)
        if not template.openers.isdisjoint(marks):
            return _conversation(template, walk(template, marks, texts), _as_text(tokenizer, template))
    return _without_template(ids, mask, tokenizer)


def parse_text(text: str, template: Template | None) -> Conversation:
    """Return the conversation in text with chat markers; without any marker it is one message of the user."""
    for t in [template] if template is not None else _most_marked(text):
        marks, texts = cut_text(text, t)
        if not t.openers.isdisjoint(marks):
            return _conversation(t, walk(t, marks, texts), ())
    return Conversation([{"role": "user", "content": whole(text)}], marks=("no template: one text",))


def _most_marked(text: str) -> list[Template]:
    counts = [(sum(text.count(m) for m in t.openers), t) for t in TEMPLATES.values()]
    return [t for n, t in sorted(counts, key=lambda c: -c[0]) if n][:1]


def _conversation(template: Template, w: Walk, missing: tuple[str, ...]) -> Conversation:
    messages, tools, truncated = _messages(template, w, missing)
    return Conversation(messages, tools, truncated=truncated or w.cut_header, marks=tuple(w.marks))


def _without_template(ids: NDArray[Any], mask: NDArray[Any] | None, tokenizer: Tokenizer) -> Conversation:
    """Turns from the runs of the loss mask; one text where the mask says nothing."""
    if mask is not None and len(mask) == len(ids) and mask.any() and not mask.all():
        edges = [0, *(np.flatnonzero(np.diff(mask.astype(np.int8))) + 1).tolist(), len(ids)]
        messages: list[Message] = [
            {"role": "assistant" if mask[a] else "user", "content": tokenizer.decode(ids[a:b])}
            for a, b in pairwise(edges)
        ]
        return Conversation(messages, marks=("no template: turns from the loss mask",))
    if not len(ids):
        return Conversation([], marks=("empty row",))
    return Conversation([{"role": "user", "content": tokenizer.decode(ids)}], marks=("no template: one text",))


def _compare(
    text: str, ids: NDArray[Any], tokenizer: Tokenizer, conversation: Conversation
) -> tuple[Conversation, str | None]:
    """Say where the ids are not those of the stored text: cut (then the row is truncated) or different."""
    decoded, stored = tokenizer.decode_bytes(ids), whole(text).encode("utf-8")
    if decoded == stored:
        return conversation, None
    if len(decoded) < len(stored) and stored.startswith(decoded):
        cut = Conversation(conversation.messages, conversation.tools, truncated=True, marks=conversation.marks)
        return cut, "ids are cut, text is whole"
    return conversation, "ids differ from the text"


def is_growing_prefix(shorter: NDArray[Any], longer: NDArray[Any]) -> bool:
    """Whether the longer row is the shorter one and more: trainers that mask one turn a row store k such rows."""
    n = len(shorter)
    return 0 < n < len(longer) and bool(longer[n - 1] == shorter[-1]) and bool(np.array_equal(longer[:n], shorter))


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
