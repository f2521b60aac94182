"""OpenAI Batch: one request per line, as the API's batch endpoint and vLLM's batch runner read it.

    {"custom_id": "9f2c...", "method": "POST", "url": "/v1/chat/completions",
     "body": {"model": "m", "messages": [...], "max_tokens": 412, "tools": [...]}}

`custom_id` is the prompt's id and comes back in the results. A history is context; turns cannot be replayed. The
model stands in every row: without `--model` it reads "MODEL", and the command passes a copy on in which the first
"MODEL" of each line, which is that one, is $MODEL. The exported file stays as it is.
"""

from __future__ import annotations

from promptkit.exporters.carry import carried
from promptkit.exporters.job import Job, Piece, body, lines, sent_reasoning

MAX_REQUESTS, MAX_BYTES = 50_000, 200_000_000  # of one file


def openai_batch(job: Job) -> Piece:
    """Return the requests in as many files as the API's limits ask for, and a command for vLLM's batch runner."""
    job, losses = carried(job, system=True, history=True, tools=True)
    rows = [
        {
            "custom_id": p.id,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": job.model or "MODEL", **body(job, p)},
        }
        for p in job.prompts
    ]
    parts = _cut([lines([r]) for r in rows])
    names = [f"{job.name}.jsonl"] if len(parts) < 2 else [f"{job.name}-{i}.jsonl" for i in range(len(parts))]
    paths = [job.file(n) for n in names]
    copied = ["cat"] if job.model else ["sed", 's|"model": "MODEL"|"model": "$MODEL"|']
    piped = len(paths) > 1 or job.model is None
    run = job.shell(
        "vllm", "run-batch", "--input-file", "/dev/stdin" if piped else paths[0],
        "--output-file", f"{job.name}.batch-results.jsonl", "--model", "$MODEL",
    )  # fmt: skip
    notes = [
        "vLLM's batch runner loads the model itself; elsewhere upload the file to the batch endpoint"
        + ("." if job.model else ", after exporting with --model.")
    ]
    if len(parts) > 1:
        notes.append(f"{len(parts)} files, the limits of one are {MAX_REQUESTS} requests and {MAX_BYTES // 10**6} MB")
    return Piece(
        files=dict(zip(names, parts, strict=True)) if rows else {},
        command=f"{job.shell(*copied, *paths)} | {run}" if piped else run,
        losses=losses + sent_reasoning(job),
        ids=[(p.id, p.id) for p in job.prompts],
        notes=notes,
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
