"""AIPerf: three of its dataset types, and `aiperf`, which picks the one that carries the pack best.

    aiperf-single-turn   {"session_id": "9f2c...", "text": "...", "output_length": 412}
    aiperf-multi-turn    {"session_id": "9f2c...", "turns": [{"role": "system", "text": "..."}, {"role": "user", ...}]}
    aiperf-mooncake      {"session_id": "9f2c...", "messages": [...], "tools": [...], "output_length": 412}

`session_id` is the prompt's id and comes back as `conversation_id` in AIPerf's per-request export, so results join to
prompts and domains. multi_turn feeds the server's own answers back between user turns; mooncake_trace sends messages
as they are. Read from 0.13.0: the type is always given, because detection by content takes the wrong one; the count is
of sessions or requests in the file, because a larger one would start again from the first.
"""

from __future__ import annotations

from typing import Any

from promptkit.exporters.carry import carried, shared_lengths, turn_length
from promptkit.exporters.job import Job, Loss, Piece, lines, sent_reasoning
from promptkit.exporters.vllm import is_plain


def aiperf(job: Job) -> Piece:
    """Return multi_turn for a pack to replay, single_turn where all prompts are one user turn, else mooncake_trace."""
    pack = job.pack or job.prompts
    if job.replay and any(sum(m["role"] == "user" for m in p.messages) > 1 for p in pack):
        return aiperf_multi_turn(job)
    plain = all(is_plain(p) and p.messages[0]["content"] for p in pack)
    return aiperf_single_turn(job) if plain else aiperf_mooncake(job)


def aiperf_single_turn(job: Job) -> Piece:
    """Return NAME.jsonl of single user turns."""
    job, losses = _with_text(*carried(job))
    rows = [{"session_id": p.id, "text": p.messages[0]["content"], "output_length": job.length(p)} for p in job.prompts]
    return _piece(job, "single_turn", rows, losses)


def aiperf_multi_turn(job: Job) -> Piece:
    """Return NAME.jsonl of conversations: user turns are sent one by one, live answers between them."""
    job, losses = _with_text(*carried(job, system=True, tools=True, replay=True))
    late = [p for p in job.prompts if any(m["role"] == "system" for m in p.messages[1:])]
    if late:
        note = "left out: AIPerf takes one system turn, the first; aiperf-mooncake sends messages as they are"
        losses.append(Loss("a later system turn", len(late), note))
        job = job.of([p for p in job.prompts if p not in late])
    rows = [{"session_id": p.id, "turns": [_turn(job, p, m) for m in p.messages]} for p in job.prompts]
    return _piece(job, "multi_turn", rows, losses + shared_lengths(job))


def aiperf_mooncake(job: Job) -> Piece:
    """Return NAME.jsonl of whole chat requests."""
    job, losses = carried(job, system=True, history=True, tools=True)
    rows = []
    for p in job.prompts:
        tools = {"tools": p.tools} if p.tools else {}
        rows.append({"session_id": p.id, "messages": p.messages, "output_length": job.length(p), **tools})
    return _piece(job, "mooncake_trace", rows, losses + sent_reasoning(job))


def _turn(job: Job, prompt: Any, message: dict[str, Any]) -> dict[str, Any]:
    turn = {"role": message["role"], "text": message["content"]}
    if message["role"] == "system":
        return turn
    tools = {"extra": {"tools": prompt.tools}} if prompt.tools else {}  # merged into the request's body
    return {**turn, "output_length": turn_length(job, prompt), **tools}


def _with_text(job: Job, losses: list[Loss]) -> tuple[Job, list[Loss]]:
    """Leave out the prompts with an empty message, which single_turn and multi_turn refuse with the whole file."""
    kept = [p for p in job.prompts if all(m["content"] for m in p.messages)]
    if n := len(job.prompts) - len(kept):
        losses = [*losses, Loss("an empty message", n, "left out: AIPerf refuses the file; aiperf-mooncake carries it")]
    return job.of(kept), losses


def _piece(job: Job, kind: str, rows: list[dict[str, Any]], losses: list[Loss]) -> Piece:
    name = f"{job.name}.jsonl"
    tokenizer = ["--tokenizer", job.tokenizer_path] if job.tokenizer_path else []
    count = "--num-sessions" if kind == "multi_turn" else "--request-count"
    return Piece(
        files={name: lines(rows)} if rows else {},
        command=job.shell(
            "aiperf", "profile", "--model", "$MODEL", "--url", "$BASE_URL", "--endpoint-type", "chat", "--streaming",
            *tokenizer, "--input-file", job.file(name), "--custom-dataset-type", kind,
            "--dataset-sampling-strategy", "sequential", count, str(len(rows)), "--concurrency", str(job.concurrency),
        ),
        losses=losses,
        ids=[(p.id, p.id) for p in job.prompts],
        notes=[f"The dataset type is {kind}; the server applies its chat template."],
    )  # fmt: skip
