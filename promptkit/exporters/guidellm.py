"""GuideLLM: conversations as one JSON string a row.

    {"conversation_turns": "{\"graph_id\": \"9f2c...\", \"turns\": [{\"node_id\": \"0\", \"parents\": [], \"columns\":
      {\"raw_messages_column\": [[...]], \"output_tokens_count_column\": [412]}}]}"}

A plain `prompt` or `messages` column loses too much: the loader unites the rows' schemas, so that every message gets
the keys of every other, and the id is gone. A conversation of GuideLLM's own form passes as text, carries messages as
they are, replays turns, and its `graph_id` comes back as `conversation_id` in the results. Read from 0.8.1: a row with
tools must call them the server's and the choice free, else it becomes two requests without a limit that must call one;
a known output length turns ignore_eos on, which the command turns off again.
"""

from __future__ import annotations

import json
from typing import Any

from promptkit.errors import UsageError
from promptkit.exporters.carry import carried, shared_lengths, turn_length
from promptkit.exporters.job import Job, Piece, lines, sent_reasoning


def guidellm(job: Job) -> Piece:
    """Return NAME.jsonl and the command of `guidellm run`."""
    job, losses = carried(job, system=True, history=True, tools=True, replay=True)
    name = f"{job.name}.jsonl"
    for word in (job.file(name), job.base_url or "", job.model or ""):
        if "," in word:
            raise UsageError(f"{word!r}: GuideLLM cuts its options at commas", hint="give a name or --out without one")
    return Piece(
        files={name: lines([{"conversation_turns": _graph(job, p)} for p in job.prompts])} if job.prompts else {},
        command=job.shell(
            "guidellm", "run",
            "--backend", "kind=openai_http,target=$BASE_URL,model=$MODEL,extras.body.ignore_eos=false",
            "--data", f"kind=json_file,path={job.file(name)}", *_tokenizer(job),
            "--profile", f"kind=concurrent,streams={job.concurrency}",
            "--constraint", f"kind=max_requests,count={_requests(job)}",
            "--output", f"kind=json,path={job.name}.guidellm.json",
        ),
        losses=losses + shared_lengths(job) + sent_reasoning(job),
        ids=[(p.id, p.id) for p in job.prompts],
        notes=["The server applies its chat template."],
    )  # fmt: skip


def _graph(job: Job, prompt: Any) -> str:
    length = turn_length(job, prompt)
    turns: list[dict[str, Any]] = []
    for messages in job.requests(prompt):
        columns: dict[str, Any] = {"raw_messages_column": [messages], "output_tokens_count_column": [length]}
        if prompt.tools:
            columns |= {"tools_column": [prompt.tools], "tool_choice_column": ["auto"]}
            columns["turn_type_column"] = ["server_tool_call"]
        parents = [{"parent_node_id": str(len(turns) - 1), "history_context": "full"}] if turns else []
        turns.append({"node_id": str(len(turns)), "parents": parents, "columns": columns})
    return json.dumps({"graph_id": prompt.id, "turns": turns}, ensure_ascii=True)


def _requests(job: Job) -> int:
    return sum(len(job.requests(p)) for p in job.prompts)


def _tokenizer(job: Job) -> list[str]:
    return ["--tokenizer", f"kind=huggingface_auto,model={job.tokenizer_path}"] if job.tokenizer_path else []
