"""What a pack sends: the part of a training conversation that a client would send to a server.

    {"messages": [system, user, assistant, user], "answer": "...", "turns": "prefix"}

Three readings (`turns`): "first" is the system turn and the first user turn; "all" is every user turn, replayed one by
one as in MT-Bench; "prefix" is the whole history before one sampled assistant turn, which is what an agentic request
really looks like. By default rows with tools or more than two user turns are sent as "prefix", others as "first".
A system turn that the template inserts by itself is left out, and so is the reasoning of earlier turns, as the
templates of reasoning models leave it out.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from promptkit.conversation import DEFAULT_SYSTEMS, Message, answer_text
from promptkit.errors import UsageError

TURNS = ("first", "all", "prefix")


@dataclass(frozen=True, slots=True)
class Request:
    """Messages to send, the answer that the mix holds for them (None where it was cut or never given)."""

    messages: list[Message]
    answer: str | None


def request(
    messages: list[Message], *, tools: bool, truncated: bool, key: str, turns: str | None = None
) -> Request | None:
    """Return what to send of a conversation, or None if its first user turn is missing or was cut.

    `key` decides which assistant turn "prefix" stops at: the same row gives the same request in every run.
    Raises UsageError for an unknown `turns`.
    """
    if turns is not None and turns not in TURNS:
        raise UsageError(f"turns is {turns!r}", hint=f"known: {', '.join(TURNS)}")
    kept = [m for m in messages if not (m["role"] == "system" and m["content"].strip() in DEFAULT_SYSTEMS)]
    users = [i for i, m in enumerate(kept) if m["role"] == "user" and m["content"].strip()]
    if not users or (truncated and users[0] == len(kept) - 1):
        return None
    whole = kept[:-1] if truncated else kept  # the last message of a cut row is not what anybody would send
    if turns is None:
        turns = "prefix" if tools or len(users) > 2 else "first"
    # The first user turn ends the opening; several user messages in a row (a task and its context) belong together.
    end = users[0] + 1
    if turns == "first":
        answer = next((m for m in whole[end:] if m["role"] == "assistant"), None)
        return Request(_sent(kept[:end]), None if answer is None else answer_text(answer))
    if turns == "all":
        sent = [m for m in whole if m["role"] in ("system", "user") and m["content"].strip()]
        answers = [answer_text(m) for m in whole if m["role"] == "assistant"]
        return Request(_sent(sent), "\n".join(answers) or None)
    stops = [i for i, m in enumerate(whole) if m["role"] == "assistant" and i >= end and answer_text(m)]
    if not stops:
        return Request(_sent(whole if whole[-1]["role"] != "assistant" else whole[:-1]), None)
    digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    stop = stops[int.from_bytes(digest, "big") % len(stops)]
    return Request(_sent(whole[:stop]), answer_text(whole[stop]))


def _sent(messages: list[Message]) -> list[Message]:
    sent: list[Message] = []
    for m in messages:
        copy: dict[str, Any] = {k: v for k, v in m.items() if k != "reasoning" and v is not None}
        sent.append(copy)
    return sent
