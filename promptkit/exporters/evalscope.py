"""evalscope perf: the line_by_line dataset, where a JSON object is a whole request whose keys win over the flags.

    {"max_tokens": 412, "messages": [{"content": "What is 7 x 8?", "role": "user"}], "tools": [...]}

A plain line would lose its newlines and be cut to one length for all. `--number` is 1,000 unless given and repeats the
file; without `--no-test-connection` a request of its own comes first. A history is context; turns cannot be replayed.
Tried with 1.14.1.
"""

from __future__ import annotations

from promptkit.exporters.carry import carried
from promptkit.exporters.job import Job, Piece, body, lines


def evalscope(job: Job) -> Piece:
    """Return NAME.jsonl, one body a line, and the command of evalscope perf."""
    job, losses = carried(job, system=True, history=True, tools=True)
    if not job.prompts:
        return Piece({}, "", losses)
    name = f"{job.name}.jsonl"
    return Piece(
        files={name: lines([body(job, p) for p in job.prompts])},
        command=job.shell(
            "evalscope", "perf", "--api", "openai", "--url", "$BASE_URL/v1/chat/completions", "--model", "$MODEL",
            "--dataset", "line_by_line", "--dataset-path", job.file(name), "--number", str(len(job.prompts)),
            "--parallel", str(job.concurrency), "--no-test-connection", "--outputs-dir", job.directory + "-results",
        ),
        losses=losses,
        ids=[(p.id, str(i)) for i, p in enumerate(job.prompts)],
        notes=["The database of results holds each request's body; ids are rows of the file, counted from 0."],
    )  # fmt: skip
