"""trtllm-bench: prompts as templated text, or as token ids where a tokenizer is given.

    {"task_id": 0, "prompt": "<|im_user|>user<|im_middle|>...", "output_tokens": 412}
    {"task_id": 0, "input_ids": [163587, 2482, ...], "output_tokens": 412}

Nothing on its way applies a chat template, so the file holds what the template makes of a prompt. It runs the model
itself, without a server. Read from source: two requests warm up unless `--warmup 0`; end-of-sequence is off unless
`--eos_id` names one, so every answer runs to its length.
"""

from __future__ import annotations

from typing import Any

from promptkit.exporters.carry import carried
from promptkit.exporters.job import Job, Loss, Piece, lines
from promptkit.exporters.vllm import templated


def trtllm(job: Job) -> Piece:
    """Return NAME.jsonl: ids if the job has a tokenizer, else text; nothing where the template cannot be written."""
    if why_not := job.unwritable():
        note = f"trtllm-bench applies no chat template, and {why_not}: name the model's with --template"
        return Piece({}, "", [Loss("prompts without a template", len(job.prompts), note)])
    job, losses = carried(job, system=True, history=True, tools=True)
    texts, inexact = templated(job)
    rows: list[dict[str, Any]] = []
    for i, (p, text) in enumerate(zip(job.prompts, texts, strict=True)):
        what = {"input_ids": job.tokenizer.encode_rendered(text).tolist()} if job.tokenizer else {"prompt": text}
        rows.append({"task_id": i, **what, "output_tokens": job.length(p)})
    name = f"{job.name}.jsonl"
    eos = job.tokenizer.eos if job.tokenizer else None
    return Piece(
        files={name: lines(rows)} if rows else {},
        command=job.shell(
            "trtllm-bench", "--model", "$MODEL", "throughput", "--backend", "pytorch", "--dataset", job.file(name),
            "--num_requests", str(len(rows)), "--warmup", "0", "--concurrency", str(job.concurrency),
            *(["--eos_id", str(eos)] if eos is not None else []),
            "--request_json", f"{job.name}.trtllm.json",
        ),
        losses=losses + inexact,
        ids=[(p.id, str(i)) for i, p in enumerate(job.prompts)],
        notes=[
            "It runs the model itself: no server, and $MODEL is a name or path that it can load.",
            "Ids fit this tokenizer alone." if job.tokenizer else "The text is tokenized as it is, with no template.",
            *(["Answers run to their full length: add --eos_id with the model's own to let them end."] * (eos is None)),
        ],
    )  # fmt: skip
