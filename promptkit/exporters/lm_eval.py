"""lm-evaluation-harness: a directory for --include_path with one task per domain, all under one tag.

    pack_NAME__DOMAIN.yaml   {"task": "pack_NAME__DOMAIN", "tag": "pack_NAME", "class": !function ...}
    pack_NAME__DOMAIN.jsonl  {"domain", "id", "max_tokens", "messages": "[{...}]"}, messages as JSON text
    pack_task.py             the class: output length of each row, messages as they are

A plain YAML task has one output length for all its rows, renders prompts as Jinja and evaluates a numeric one; the
class asks for each row's own length and hands the messages to the model's chat template. `until` is empty, because
without it generation stops at the first blank line. Rows come back whole in the samples file (`doc.id`). Tools cannot
be carried: requests are grouped by a hash of their options. Tried with 0.4.13.
"""

from __future__ import annotations

import json

from promptkit.exporters.carry import carried, words
from promptkit.exporters.job import Job, Loss, Piece, lines

TASK = '''\
"""Prompts of a promptkit pack for lm-evaluation-harness. Written by `promptkit export`; the rows lie beside it."""

import json
from pathlib import Path

from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask


class PackTask(ConfigurableTask):
    def __init__(self, config):
        super().__init__(config={k: v for k, v in config.items() if k != "class"})

    def download(self, dataset_kwargs=None, **kwargs):
        path = Path(__file__).with_name(self.config.metadata["rows"])
        self.dataset = {"test": Dataset.from_list([json.loads(line) for line in path.open(encoding="ascii")])}

    def fewshot_context(self, doc, *args, chat_template=None, **kwargs):
        messages = json.loads(doc["messages"])
        if chat_template is not None:
            return chat_template(messages)
        if [m["role"] for m in messages] != ["user"]:
            raise ValueError(f"prompt {doc['id']} has several turns: run with --apply_chat_template")
        return messages[0]["content"]

    def construct_requests(self, doc, ctx, apply_chat_template=False, chat_template=None, **kwargs):
        options = {**self.config.generation_kwargs, "max_gen_toks": doc["max_tokens"]}
        return Instance(request_type="generate_until", doc=doc, arguments=(ctx, options), idx=0, **kwargs)
'''


def lm_eval(job: Job) -> Piece:
    """Return the task directory and the command that runs all of it against a chat endpoint."""
    job, losses = carried(job, system=True, history=True)
    if not job.prompts:
        return Piece({}, "", losses)
    tag = "pack_" + words([job.name])[job.name]
    domains = sorted({p.domain or "" for p in job.prompts})
    files = {"pack_task.py": TASK.encode()}
    for domain, word in words(domains).items():
        prompts = [p for p in job.prompts if (p.domain or "") == domain]
        name = f"{tag}__{word}"
        rows = [
            {"domain": domain, "id": p.id, "max_tokens": job.length(p), "messages": json.dumps(p.messages)}
            for p in prompts
        ]
        files[f"{name}.jsonl"] = lines(rows)
        files[f"{name}.yaml"] = _yaml(name, tag, f"{name}.jsonl")
    note = "lm-eval sends requests of one output length together; results come back in the pack's order"
    losses.append(Loss("order of sending", len(job.prompts), note))
    if job.concurrency > 1:
        note = f"requests of one output length run together, others after them: seldom {job.concurrency} at a time"
        losses.append(Loss("concurrency", len(job.prompts), note))
    model = f"model=$MODEL,base_url=$BASE_URL/v1/chat/completions,num_concurrent={job.concurrency},max_retries=1"
    return Piece(
        files=files,
        command=job.shell(
            "lm_eval", "run", "--model", "local-chat-completions", "--model_args", model, "--include_path",
            job.directory, "--tasks", tag, "--apply_chat_template", "--log_samples", "--output_path",
            job.directory + "-results",
        ),
        losses=losses,
        ids=[(p.id, p.id) for d in domains for p in job.prompts if (p.domain or "") == d],
        notes=["The samples files hold each row as `doc`, with its id and domain; there is no metric but bypass."],
    )  # fmt: skip


def _yaml(task: str, tag: str, rows: str) -> bytes:
    """Return a task's YAML: JSON but for the one tag that lm-eval's reader turns into the class."""
    document = {
        "task": task, "tag": tag, "class": "CLASS", "output_type": "generate_until", "dataset_path": "json",
        "test_split": "test", "num_fewshot": 0, "doc_to_text": "id", "doc_to_target": "",
        "generation_kwargs": {"until": [], "do_sample": False, "temperature": 0.0},
        "metric_list": [{"metric": "bypass", "aggregation": "bypass", "higher_is_better": False}],
        "metadata": {"version": 1.0, "rows": rows},
    }  # fmt: skip
    return "".join(
        f"{k}: {'!function pack_task.PackTask' if k == 'class' else json.dumps(v)}\n" for k, v in document.items()
    ).encode()
