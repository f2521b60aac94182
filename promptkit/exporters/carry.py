"""Which prompts a target can carry, and what is said of the others: nothing is dropped without a line.

    job, losses = carried(job, system=True)     the job with the prompts that fit, and one Loss per reason

A chat body carries everything; most harnesses carry less. A *history* is any assistant or tool turn before the last
one, and several user turns that are one context. In a replay pack (`job.replay`) several user turns without answers
between them are sent one by one, the model's own answers in between: that is not a history.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from promptkit.exporters.job import Job, Loss, sent_reasoning, unknown_lengths

if TYPE_CHECKING:
    from promptkit.pack import PackPrompt

_NOTES = {
    "no user turn": "left out: there is nothing to ask",
    "tool definitions": "left out: the target has no place for them; openai-batch, evalscope and promptfoo carry them",
    "history": "left out: the target cannot send earlier turns as they are; openai-batch, evalscope and inspect do",
    "turns to replay": "left out: the target sends one request a prompt; mt-bench, specforge and inspect replay turns",
    "system turn": "left out: the target sends user turns only; openai-batch, evalscope and inspect carry it",
}


def carried(
    job: Job, *, system: bool = False, history: bool = False, tools: bool = False, replay: bool = False
) -> tuple[Job, list[Loss]]:
    """Return `job` with the prompts that a target with these abilities can send, and the losses, reasons in order."""
    reasons = [_obstacle(job, p, system, history, tools, replay) for p in job.prompts]
    kept = replace(job, prompts=[p for p, why in zip(job.prompts, reasons, strict=True) if why is None])
    n = Counter(reasons)
    left_out = [Loss(why, n[why], note) for why, note in _NOTES.items() if n[why]]
    return kept, [*left_out, *unknown_lengths(kept), *(sent_reasoning(kept) if history else [])]


def words(labels: Iterable[str]) -> dict[str, str]:
    """Return label -> a word of its own of a-z, 0-9 and _, at most 70 long: labels may hold anything."""
    out: dict[str, str] = {}
    for label in labels:
        stem = re.sub(r"[^a-z0-9]+", "_", label.lower())[:64].strip("_") or "none"
        taken = set(out.values())
        numbered = (f"{stem}_{n}" for n in itertools.count(2))
        out[label] = stem if stem not in taken else next(w for w in numbered if w not in taken)
    return out


def user_turns(prompt: PackPrompt) -> list[str]:
    """Return the contents of the user turns."""
    return [m["content"] for m in prompt.messages if m["role"] == "user"]


def system_text(prompt: PackPrompt) -> str | None:
    """Return the system turns joined by a blank line, or None."""
    return "\n\n".join(m["content"] for m in prompt.messages if m["role"] == "system") or None


def replayed(job: Job, prompt: PackPrompt) -> bool:
    """Return whether a prompt's user turns are sent one by one, the model's own answers between them."""
    roles = [m["role"] for m in prompt.messages]
    return job.replay and roles.count("user") > 1 and not {"assistant", "tool"} & set(roles)


def turn_length(job: Job, prompt: PackPrompt) -> int:
    """Return the tokens to generate for each turn: a replayed prompt knows the sum of its answers, shared equally."""
    turns = len(user_turns(prompt)) if replayed(job, prompt) else 1
    return -(-job.length(prompt) // turns)


def shared_lengths(job: Job) -> list[Loss]:
    """Return the loss that says of how many prompts each turn gets a share of the known sum, or nothing."""
    n = sum(replayed(job, p) for p in job.prompts)
    note = "a pack knows the sum over a prompt's turns: each turn may be as long as its equal share"
    return [Loss("output length of each turn", n, note)] if n else []


def one_length(job: Job) -> tuple[int, list[Loss]]:
    """Return the longest output length, for a target that has one for all, and how many prompts it is not right for."""
    lengths = [turn_length(job, p) for p in job.prompts]
    longest = max(lengths)
    n = sum(x != longest for x in lengths)
    note = (
        f"one limit for all: {longest} tokens, the longest of the file; shorter answers end where the model ends them"
    )
    return longest, ([Loss("output length of its own", n, note)] if n else []) + shared_lengths(job)


def _obstacle(job: Job, prompt: PackPrompt, system: bool, history: bool, tools: bool, replay: bool) -> str | None:
    roles = Counter(m["role"] for m in prompt.messages)
    answered = roles["assistant"] + roles["tool"] > 0
    if not roles["user"]:
        return "no user turn"
    if prompt.tools and not tools:
        return "tool definitions"
    if (answered or (roles["user"] > 1 and not job.replay)) and not history:
        return "history"
    if replayed(job, prompt) and not replay:
        return "turns to replay"
    return "system turn" if roles["system"] and not system else None
