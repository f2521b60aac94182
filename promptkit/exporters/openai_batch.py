"""OpenAI Batch: one request per line, as the API's batch endpoint and vLLM's batch runner read it.

    {"custom_id": "9f2c...", "method": "POST", "url": "/v1/chat/completions",
     "body": {"model": "m", "messages": [...], "tools": [...], "max_tokens": 412}}

`custom_id` is the prompt's id and comes back in the results. A history is context; turns cannot be replayed. The
model stands in every row: without `model` it reads "MODEL", and the command puts $MODEL there before it sends.
"""

from __future__ import annotations

from typing import Any

from promptkit.exporters.job import Job, Loss, Piece, lines, unknown_lengths

MAX_REQUESTS, MAX_BYTES = 50_000, 200_000_000  # of one file


def openai_batch(job: Job) -> Piece:
    """Return the requests in as many files as the API's limits ask for, and a command for vLLM's batch runner."""
    kept = [p for p in job.prompts if not (job.replay and sum(m["role"] == "user" for m in p.messages) > 1)]
    rows = []
    for p in kept:
        body: dict[str, Any] = {
            "model": job.model or "MODEL",
            "messages": p.messages,
            "max_tokens": job.length(p),
        }
        if p.tools:
            body["tools"] = p.tools
        rows.append({"custom_id": p.id, "method": "POST", "url": "/v1/chat/completions", "body": body})
    parts = _cut([lines([r]) for r in rows])
    names = [f"{job.name}.jsonl"] if len(parts) < 2 else [f"{job.name}-{i}.jsonl" for i in range(len(parts))]
    losses = unknown_lengths(job)
    if len(kept) < len(job.prompts):
        note = "the batch API sends a fixed context; use a target that replays turns (aiperf-multi-turn, mt-bench)"
        losses.append(Loss("turns to replay", len(job.prompts) - len(kept), note))
    first = job.file(names[0])
    fill = "" if job.model else job.shell("sed", "-i", 's|"model": "MODEL"|"model": "$MODEL"|', first) + " && "
    return Piece(
        files=dict(zip(names, parts, strict=True)) if rows else {},
        command=fill + job.shell("vllm", "run-batch", "-i", first, "-o", first + ".results", "--model", "$MODEL"),
        losses=losses,
        ids=[(p.id, p.id) for p in kept],
        notes=[f"{len(parts)} files, the limits of one are {MAX_REQUESTS} requests and {MAX_BYTES // 10**6} MB"]
        if len(parts) > 1
        else [],
    )


def _cut(encoded: list[bytes]) -> list[bytes]:
    """Join lines into parts within the API's limits, in order."""
    parts: list[list[bytes]] = [[]]
    size = 0
    for line in encoded:
        if parts[-1] and (len(parts[-1]) == MAX_REQUESTS or size + len(line) > MAX_BYTES):
            parts.append([])
            size = 0
        parts[-1].append(line)
        size += len(line)
    return [b"".join(p) for p in parts]
