"""genai-perf: a payload file. Its makers advise AIPerf instead (`--to aiperf`), which reports more and goes on.

    {"session_id": "9f2c...", "text_input": "...", "output_length": 412, "messages": [...], "tools": [...]}

A key that genai-perf does not know is put into the request's body last, so `messages` replaces what it makes of
`text_input` (which it strips of white space, and for which it would invent a text if there were none). Read from
0.0.16.
"""

from __future__ import annotations

from typing import Any

from promptkit.exporters.carry import carried
from promptkit.exporters.job import Job, Piece, lines, sent_reasoning


def genai_perf(job: Job) -> Piece:
    """Return NAME.jsonl: one session a prompt, one request a session."""
    job, losses = carried(job, system=True, history=True, tools=True)
    rows: list[dict[str, Any]] = []
    for p in job.prompts:
        tools = {"tools": p.tools} if p.tools else {}
        stands_in = next((m["content"] for m in reversed(p.messages) if m["content"].strip()), ".")
        row = {"session_id": p.id, "text_input": stands_in, "output_length": job.length(p), "messages": p.messages}
        rows.append(row | tools)
    name = f"{job.name}.jsonl"
    tokenizer = ["--tokenizer", job.tokenizer_path] if job.tokenizer_path else []
    return Piece(
        files={name: lines(rows)} if rows else {},
        command=job.shell(
            "genai-perf", "profile", "-m", "$MODEL", "-u", "$BASE_URL", "--endpoint-type", "chat", "--streaming",
            *tokenizer, "--input-file", f"payload:{job.file(name)}", "--session-concurrency", str(job.concurrency),
        ),
        losses=losses + sent_reasoning(job),
        ids=[(p.id, p.id) for p in job.prompts],
        notes=["The server applies its chat template.", "Prefer --to aiperf, which replaces this tool."],
    )  # fmt: skip
