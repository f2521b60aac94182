"""A row cut at its turn markers: ids or stored text -> markers and the bytes between them -> turns.

    <|im_user|> "user" <|im_middle|> "Hi" <|im_end|> <|im_assistant|> "assistant" <|im_middle|> "Hello" <|im_end|>
    Turn(role="user", header="user", parts=[("", b"Hi")], closed=True), Turn(role="assistant", ...)

Ids and text share one path. Markers are told by their *ids*: text that merely looks like a marker stays text. A trainer
that encodes user text with all special tokens allowed turns a quoted marker into the real one; what then breaks the
grammar stays in the content of the turn before and is remarked. No byte is lost but white space between turns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptkit.encoders import whole
from promptkit.grammars import Template
from promptkit.tokenizers import Tokenizer, split_at

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
    """A turn as it stands between its markers; `role` is None while a row that begins in its middle is read."""

    role: str | None
    header: str
    parts: list[Part]
    closed: bool = False
    after: list[Part] = field(default_factory=list)  # its end marker and white space, wanted if it was a quotation


@dataclass
class Walk:
    """All turns of a row; `n_good` of `n_markers` turn markers stand where the grammar wants them."""

    turns: list[Turn] = field(default_factory=list)
    tools: list[Any] | None = None
    marks: list[str] = field(default_factory=list)
    cut_header: bool = False
    n_good: int = 0
    n_markers: int = 0

    def mark(self, remark: str) -> None:
        """Add a remark once."""
        if remark not in self.marks:
            self.marks.append(remark)


# ---- cutting


@lru_cache(maxsize=64)
def _marker_table(tokenizer: Tokenizer, template: Template) -> tuple[NDArray[np.bool_], dict[int, str]]:
    """A flag for each id (one more for ids out of range) that is a marker of the template, and its names."""
    names = {tokenizer.specials[m]: m for m in template.markers if m in tokenizer.specials}
    flags = np.zeros(tokenizer.n_vocab + 1, bool)
    flags[list(names)] = True
    return flags, names


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


def cut_parts(parts: Sequence[Part], names: tuple[str, ...]) -> list[Part]:
    """Cut a turn at markers that the tokenizer does not know as special, so that they stand as text in the row."""
    out: list[Part] = []
    pattern = split_at(names)
    for mark, text in parts:
        pieces = pattern.split(text.decode("utf-8", "surrogateescape"))
        out.append((mark, pieces[0].encode("utf-8", "surrogateescape")))
        for name, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            out.append((name, piece.encode("utf-8", "surrogateescape")))
    return out


# ---- turns


def walk(template: Template, marks: Sequence[str], texts: Sequence[bytes]) -> Walk:
    """Return the turns that the n `marks` and the n + 1 `texts` around them make; never raises."""
    w = Walk()
    if texts[0].strip():
        w.turns.append(Turn(template.lead, "", [("", texts[0])]))
    i = 0
    while i < len(marks):
        i += _step(w, template, marks, texts, i)
    for turn, later in zip_longest(w.turns, w.turns[1:]):
        if turn.role is None:  # what comes before an answer was asked
            turn.role = "user" if later is not None and later.role == "assistant" else "assistant"
    return w


def _step(w: Walk, t: Template, marks: Sequence[str], texts: Sequence[bytes], i: int) -> int:
    """Enter marker i and the text behind it; return how many markers that used."""
    mark, text = marks[i], texts[i + 1]
    turn = w.turns[-1] if w.turns else None
    still_open = turn if turn is not None and not turn.closed else None
    unfinished = still_open is not None and bool(t.ends) and still_open.role not in t.open_ended
    if mark in t.reopens and not text.strip() and (i + 1 == len(marks) or marks[i + 1] not in t.within):
        if still_open is not None:
            still_open.closed = True
        w.n_markers, w.n_good = w.n_markers + 1, w.n_good + 1
        return 1
    if mark in t.openers and text.startswith(t.opener_text):
        w.n_markers += 1
        head = _header(t, marks, texts, i, strict=unfinished)
        if head is not None:
            role, header, body, used = head
            if unfinished and still_open is not None:
                w.mark("cut at the start" if still_open.role is None else "marker inside a message")
            w.n_good += not (unfinished and still_open is not None and still_open.role is not None)
            w.turns.append(Turn(role, header, [("", body)]))
            return used
        if _is_cut_header(t, marks, texts, i) and not unfinished:
            w.cut_header = True
            return len(marks)
    elif mark in t.closers:
        w.n_markers += mark in t.ends
        if not text.strip() and turn is not None and (still_open is not None or mark in t.finals):
            w.n_good += mark in t.ends
            turn.closed = True
            turn.after.append((mark, text))
            return 1
    elif mark in t.skips and still_open is None:
        if text.strip():
            w.turns.append(Turn(t.lead, "", [("", text)]))
        return 1
    elif still_open is not None and (mark != t.header_end or t.opener_text):
        still_open.parts.append((mark, text))
        return 1
    _quoted(w, t, marks, texts, i)
    return 1


def _quoted(w: Walk, t: Template, marks: Sequence[str], texts: Sequence[bytes], i: int) -> None:
    """Enter a marker that stands against the grammar: some text quotes it, or the row begins in a turn."""
    mark, text = marks[i], texts[i + 1]
    ends = mark in t.closers and not text.strip() and (i + 1 == len(marks) or marks[i + 1] in t.openers)
    if not w.turns:
        w.mark("cut at the start")
        w.turns.append(Turn(None, "", [("", b"")] if ends else [("", b""), (mark, text)], closed=ends))
        return
    w.mark("quoted markers")
    turn = w.turns[-1]
    turn.parts += turn.after
    turn.after = []
    turn.closed = ends
    if ends:
        turn.after.append((mark, text))
    else:
        turn.parts.append((mark, text))


def _header(
    t: Template, marks: Sequence[str], texts: Sequence[bytes], i: int, *, strict: bool
) -> tuple[str, str, bytes, int] | None:
    """Return (role, header text, first bytes of the body, markers used) if a turn opens at marker i, else None."""
    mark, body, used = marks[i], texts[i + 1], 1
    head = b""
    if t.header_end == "\n":
        head, newline, body = body.partition(b"\n")
        if not newline:
            return None
    elif t.header_end is not None:
        head = body
        while i + used < len(marks) and marks[i + used] in t.header_inner:
            head += marks[i + used].encode() + texts[i + used + 1]
            used += 1
        if i + used >= len(marks) or marks[i + used] != t.header_end:
            return None
        body, used = texts[i + used + 1], used + 1
    if len(head) > MAX_HEADER_BYTES or b"\n" in head:
        return None
    header = head.decode("utf-8", "replace").strip()
    role = t.roles.get(mark) or _role(t, header)
    if role is None:
        if strict or not header or len(header.split()) > 1:
            return None
        role = "user"
    return role, header, body.removeprefix(t.body_prefix), used


_HARMONY_ROLE = re.compile(r"[\w.]+")
_K3_ROLE = re.compile(r'message role="(\w+)".*')


def _role(t: Template, header: str) -> str | None:
    """The role that a header text says, or None."""
    if t.grammar == "harmony":
        word = _HARMONY_ROLE.match(header)
        if word is None:
            return None
        return ROLE_WORDS.get(word[0]) or ("tool" if "to=assistant" in header else None)
    if t.grammar == "k3":
        match = _K3_ROLE.fullmatch(header)
        return ROLE_WORDS.get(match[1]) if match else None
    return ROLE_WORDS.get(header)


def _is_cut_header(t: Template, marks: Sequence[str], texts: Sequence[bytes], i: int) -> bool:
    """Whether the row ends in the header that begins at marker i."""
    room = MAX_HEADER_BYTES
    for k in range(i + 1, len(texts)):  # up to the first marker that cannot stand in a header: rows may hold millions
        room -= len(texts[k])
        if room < 0 or (k < len(marks) and marks[k] not in t.header_inner):
            return False
    return True
