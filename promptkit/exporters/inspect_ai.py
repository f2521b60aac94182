"""Inspect AI: samples as JSON lines and a task whose solver asks each sample's own output length and replays turns.

    {"id": "9f2c...", "input": [{"content": "...", "role": "user"}], "metadata": {"domain": "math", "max_tokens": 412},
     "target": ""}

Inspect parses the arguments of earlier tool calls and writes them anew, and rewrites the schemas of tools; rows with
either hold the exact body in `metadata.body`, which the solver has the provider send instead. There is no scorer:
what is measured is the server. Tried with 0.3.285, which crashes on an absolute path of a task: the command changes
into the directory first.
"""

from __future__ import annotations

import json
from typing import Any

from promptkit.exporters.carry import carried, replayed, shared_lengths, turn_length
from promptkit.exporters.job import Job, Piece, lines

TASK = '''\
"""Prompts of a promptkit pack for Inspect AI. Written by `promptkit export`; SAMPLES lies beside this file."""

from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.dataset import json_dataset
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.solver import Generate, TaskState, solver

SAMPLES = Path(__file__).with_name(@SAMPLES@)


@solver
def send():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        config = GenerateConfig(max_tokens=state.metadata["max_tokens"], extra_body=state.metadata.get("body"))
        replay = state.metadata.get("replay")  # user turns one by one, the model's own answers between them
        context, state.messages = state.messages, []
        for message in context:
            state.messages.append(message)
            if message is context[-1] or (replay and message.role == "user"):
                state.output = await get_model().generate(state.messages, config=config)
                state.messages.append(state.output.message)
        return state

    return solve


@task
def pack(domain: str | None = None) -> Task:
    """All prompts in pack order, or those of one domain: -T domain=math."""
    dataset = json_dataset(str(SAMPLES))
    if domain is not None:
        dataset = dataset.filter(lambda sample: sample.metadata["domain"] == domain)
    return Task(dataset=dataset, solver=send())
'''


def inspect_ai(job: Job) -> Piece:
    """Return NAME.jsonl, pack_NAME.py and the command that runs it against an OpenAI-compatible server."""
    job, losses = carried(job, system=True, history=True, tools=True, replay=True)
    if not job.prompts:
        return Piece({}, "", losses)
    rows = []
    for p in job.prompts:
        metadata: dict[str, Any] = {"domain": p.domain, "max_tokens": turn_length(job, p), "source": p.source}
        body: dict[str, Any] = (
            {"messages": p.messages} if any(m["role"] in ("assistant", "tool") for m in p.messages) else {}
        )
        if p.tools:
            body["tools"] = p.tools
        if body:
            metadata["body"] = body
        if replayed(job, p):
            metadata["replay"] = True
        rows.append({"id": p.id, "input": [_message(m) for m in p.messages], "metadata": metadata, "target": ""})
    task = TASK.replace("@SAMPLES@", json.dumps(f"{job.name}.jsonl"))
    run = job.shell(
        "inspect", "eval", f"pack_{job.name}.py", "--model", "openai-api/pack/$MODEL",
        "--model-base-url", "$BASE_URL/v1", "--max-connections", str(job.concurrency), "--max-retries", "0",
    )  # fmt: skip
    return Piece(
        files={f"{job.name}.jsonl": lines(rows), f"pack_{job.name}.py": task.encode()},
        command=f"{job.shell('cd', job.directory)} && PACK_API_KEY=${{PACK_API_KEY:-none}} {run}",
        losses=losses + shared_lengths(job),
        ids=[(p.id, p.id) for p in job.prompts],
        notes=[
            "Results hold each sample's id and metadata (inspect log dump). PACK_API_KEY is the server's key.",
            "Providers that are not OpenAI-compatible ignore metadata.body: rows with tools are sent without them.",
        ],
    )


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as Inspect's reader wants it: arguments of calls as an object, a name for a tool's answer."""
    kept: dict[str, Any] = {k: message[k] for k in ("role", "content", "tool_call_id") if k in message}
    if message["role"] == "tool" and "name" in message:
        kept["function"] = message["name"]
    if message.get("tool_calls"):
        kept["tool_calls"] = [_call(i, c) for i, c in enumerate(message["tool_calls"])]
    return kept


def _call(index: int, call: dict[str, Any]) -> dict[str, Any]:
    raw = call["function"].get("arguments") or ""
    try:
        arguments = json.loads(raw)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):  # shown in Inspect's logs only: what is sent is the body
        arguments = {"arguments": raw}
    return {"id": str(call.get("id") or index), "function": call["function"].get("name") or "", "arguments": arguments}
