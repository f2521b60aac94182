"""From a stored row to a conversation, every remark kept as a mark.

    ids -> cut at markers -> turns -> messages          (turns, messages)
    5731 ... 0 0 0 0 -> padding off, counts, placeholders for ids that the table lacks, the way without a template

Stored messages come before stored text, stored text before ids; counts are always those of the ids. Loss masks are not
used for turns (at least six conventions exist, most are off by a token or two) unless no template is known. Nothing is
dropped silently. About 60 us of processor time for a row of 500 tokens.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptkit.conversation import DEFAULT_SYSTEMS, Conversation, Message
from promptkit.encoders import whole
from promptkit.errors import UsageError
from promptkit.grammars import TEMPLATES, Template, template_named
from promptkit.messages import messages_of
from promptkit.tokenizers import Tokenizer
from promptkit.turns import Walk, cut_ids, cut_text, walk

if TYPE_CHECKING:
    from promptkit.readers.records import Record


# ---- padding


@lru_cache(maxsize=64)
def _padding(tokenizer: Tokenizer, template: str | Template | None) -> tuple[frozenset[int], frozenset[int]]:
    """The ids that are padding, and the ids behind which zeros are padding: ends of turns and of headers."""
    s = tokenizer.specials
    names = {"[PAD]", "<pad>", "<|pad|>", "<|finetune_right_pad_id|>", "<｜▁pad▁｜>"}
    pads = {s[n] for n in names if n in s} | ({tokenizer.pad} if tokenizer.pad is not None else set())
    closing: set[int] = set()
    for t in [template_named(template)] if template is not None else TEMPLATES.values():
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
    pads, closing = _padding(tokenizer, template) if tokenizer is not None else (frozenset[int](), frozenset[int]())
    while start < stop and int(ids[start]) in pads:
        start += 1
    while stop > start:
        last = int(ids[stop - 1])
        if last in pads:
            stop -= 1
            continue
        if last != 0:
            break
        zeros = _zeros(ids[start:stop])
        masked = mask is None or not mask[stop - zeros : stop].any() or bool(mask.all())
        if not masked or not (zeros >= ZEROS or _closes(ids[start : stop - zeros], tokenizer, closing)):
            break
        stop -= zeros
    if stop - start == len(ids):
        return ids, mask
    return ids[start:stop], None if mask is None else mask[start:stop]


def _zeros(ids: NDArray[Any]) -> int:
    """How many zeros stand at the end."""
    nonzero = np.flatnonzero(ids)
    return len(ids) - 1 - int(nonzero[-1]) if len(nonzero) else len(ids)


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
            bad = tokenizer.n_unknown(ids)
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


def _conversation(template: Template, w: Walk, as_text: tuple[str, ...]) -> Conversation:
    messages, truncated = messages_of(template, w, as_text)
    return Conversation(messages, w.tools, truncated=truncated or w.cut_header, marks=tuple(w.marks))


@lru_cache(maxsize=64)
def _as_text(tokenizer: Tokenizer, template: Template) -> tuple[str, ...]:
    """The markers inside assistant turns that this tokenizer spells as text, so that text has to be searched for them.

    Kimi's tool markers are never text: what only looks like them stays content.
    """
    inner = () if template.grammar == "kimi" else template.inner
    return tuple(m for m in (*inner, *(template.think or ())) if m not in tokenizer.specials)


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
