"""LightEval: a directory that the data set library reads as rows, and a task file with one task per domain.

    NAME/test.jsonl    {"domain": "math", "id": "9f2c...", "max_tokens": 412, "prompt": "\"What is 7 x 8?\""}
    pack_NAME.py       TASKS_TABLE for --custom-tasks: pack_NAME:DOMAIN

A prompt is JSON text, because the reader makes dates of strings that look like dates. A task has one generation_size;
the document of this task file keeps its own instead. LightEval carries one user turn. It answers from two caches: the
task file switches one off, the command gives the other an empty directory. Its LiteLLM client sends all documents
again for each output length (seen: 378 requests for 21 prompts), which the task file mends. Tried with 0.13.0 and
litellm 1.81 (1.110 lacks what LightEval imports) and xxhash 3 (4 takes no text, on which its results fail).
"""

from __future__ import annotations

import json

from promptkit.exporters.carry import carried, user_turns, words
from promptkit.exporters.job import Job, Loss, Piece, lines

TASK = '''\
"""Prompts of a promptkit pack for LightEval. Written by `promptkit export`; its rows lie beside this file."""

import json
import sys
from functools import partial
from pathlib import Path

from lighteval.metrics.metrics import Metrics
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.requests import Doc

DOMAINS = @DOMAINS@
if client := sys.modules.get("lighteval.models.endpoints.litellm_model"):

    class OneSplit(client.GenerativeTaskDataset):
        """LightEval 0.13.0's client sends every document again for each output length: let it see those of one."""

        def splits_iterator(self):
            for self.split in super().splits_iterator():
                yield self.split

        def __iter__(self):
            return iter(self.split)

    client.GenerativeTaskDataset = OneSplit
    client.litellm.cache = None  # a second run would be answered from it


class PackDoc(Doc):
    """A document whose output length is its own: LightEval writes the task's over it."""

    generation_size = property(lambda self: self.specific["max_tokens"], lambda self, value: None)


def prompt(line, task_name=None):
    specific = {"id": line["id"], "domain": line["domain"], "max_tokens": line["max_tokens"]}
    return PackDoc(query=json.loads(line["prompt"]), choices=[""], gold_index=0, specific=specific)


def is_of(domain, line):
    return line["domain"] == domain


TASKS_TABLE = [
    LightevalTaskConfig(
        name=name,
        prompt_function=prompt,
        hf_repo=str(Path(__file__).with_name(@ROWS@)),
        hf_subset="default",
        hf_filter=partial(is_of, domain),
        hf_avail_splits=["test"],
        evaluation_splits=["test"],
        metrics=[Metrics.exact_match],  # one is asked for; its value says nothing
        generation_size=@LONGEST@,
        stop_sequence=[],
    )
    for name, domain in DOMAINS.items()
]
'''


def lighteval(job: Job) -> Piece:
    """Return the rows, the task file and the command that runs it against an OpenAI-compatible server."""
    job, losses = carried(job)
    if not job.prompts:
        return Piece({}, "", losses)
    rows = [
        {"domain": p.domain or "", "id": p.id, "max_tokens": job.length(p), "prompt": json.dumps(user_turns(p)[0])}
        for p in job.prompts
    ]
    domains = sorted({p.domain or "" for p in job.prompts})
    group = "pack_" + words([job.name])[job.name]
    names = [f"{group}:{w}" for w in words(domains).values()]
    task = (
        TASK.replace("@DOMAINS@", json.dumps(dict(zip(names, domains, strict=True))))
        .replace("@ROWS@", json.dumps(job.name))
        .replace("@LONGEST@", str(max(map(job.length, job.prompts))))
    )
    note = "LightEval shuffles the rows of a task with a seed of its own, then sorts them by length"
    losses.append(Loss("order of sending", len(rows), note))
    model = f"model_name=openai/$MODEL,base_url=$BASE_URL/v1,api_key=none,concurrent_requests={job.concurrency}"
    word = job.shell(model + ",api_max_retry=1,cache_dir=")
    cache = word[:-1] + '$(mktemp -d)"' if word.endswith('"') else word + '"$(mktemp -d)"'
    run = job.shell(
        f"{group if len(names) > 1 else names[0]}|0", "--custom-tasks", job.file(f"pack_{job.name}.py"),
        "--save-details", "--output-dir", job.directory + "-results",
    )  # fmt: skip
    return Piece(
        files={f"{job.name}/test.jsonl": lines(rows), f"pack_{job.name}.py": task.encode()},
        command=f"lighteval endpoint litellm {cache} {run}",
        losses=losses,
        ids=[(p.id, p.id) for p in job.prompts],
        notes=[
            'Needs pip install "lighteval[litellm]==0.13.0" "litellm<1.82" "xxhash<4".',
            "Details hold each document's `specific`: id and domain. Where LiteLLM knows the model by its name as one"
            " that reasons, LightEval asks for ten times the output length; an empty answer is asked for once more.",
        ],
    )
