"""SGLang's bench_serving: chat requests as they are, and traces whose turns are replayed.

    sglang                {"messages": [...], "max_tokens": 412, "tools": [...]}       --dataset-name openai
    sglang-agentic-trace  {"metadata": {}, "conversations": [[{"messages": [...]}, ...], ...]}

`openai` carries a prompt whole and keeps the order. The trace sends one request per turn with the server's own answers
between them; it knows roles and contents only, and one output length. Read from 0.5.23: without
`--warmup-requests 0` the first prompt is sent twice, without `--disable-ignore-eos` every answer runs to its limit; the
temperature is 0 unless `--temperature` says otherwise.
"""

from __future__ import annotations

import json

from promptkit.exporters.carry import carried, one_length
from promptkit.exporters.job import Job, Loss, Piece, body, lines, sent_reasoning

FLUSH = "Against an SGLang server add --flush-cache: an earlier run may have warmed it. Others lack the route."


def sglang(job: Job) -> Piece:
    """Return NAME.jsonl for `--dataset-name openai`: whole chat requests."""
    job, losses = carried(job, system=True, history=True, tools=True)
    name = f"{job.name}.jsonl"
    return Piece(
        files={name: lines([body(job, p) for p in job.prompts])} if job.prompts else {},
        command=_bench(job, "openai", name),
        losses=losses + sent_reasoning(job),
        ids=[(p.id, str(i)) for i, p in enumerate(job.prompts)],
        notes=["The server applies its chat template.", FLUSH],
    )


def sglang_agentic_trace(job: Job) -> Piece:
    """Return NAME.json for `--dataset-name agentic-trace`: a turn per replayed user message, else one."""
    job, losses = carried(job, system=True, history=True, replay=True)
    whole = [p for p in job.prompts if all(m.keys() <= {"role", "content"} for m in p.messages)]
    if n := len(job.prompts) - len(whole):
        note = "left out: a trace holds roles and contents only; sglang and aiperf send messages as they are"
        losses.append(Loss("tool calls, names or reasoning in the history", n, note))
    job = job.of(whole)
    if not job.prompts:
        return Piece({}, "", losses)
    longest, lengths = one_length(job)
    conversations = [[{"messages": turn} for turn in job.requests(p)] for p in job.prompts]
    document = {"conversations": conversations, "metadata": {"source": "promptkit"}}
    name = f"{job.name}.json"
    return Piece(
        files={name: json.dumps(document, ensure_ascii=True).encode() + b"\n"},
        command=_bench(job, "agentic-trace", name, "--sharegpt-output-len", str(longest)),
        losses=losses + lengths,
        ids=[(p.id, str(i)) for i, p in enumerate(job.prompts)],
        notes=["The server applies its chat template.", FLUSH],
    )


def _bench(job: Job, dataset: str, name: str, *length: str) -> str:
    tokenizer = ["--tokenizer", job.tokenizer_path] if job.tokenizer_path else []
    return job.shell(
        "python", "-m", "sglang.bench_serving", "--backend", "sglang-oai-chat", "--base-url", "$BASE_URL",
        "--model", "$MODEL", *tokenizer, "--dataset-name", dataset, "--dataset-path", job.file(name),
        "--num-prompts", str(len(job.prompts)), *length, "--disable-ignore-eos", "--warmup-requests", "0",
        "--max-concurrency", str(job.concurrency), "--output-file", f"{job.name}.{dataset}.results.jsonl",
        "--output-details",
    )  # fmt: skip
