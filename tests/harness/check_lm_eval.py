"""Compare what lm-evaluation-harness makes of an export with the pack: its own tasks, requests and chat payloads.

lm-eval/bin/python tests/harness/check_lm_eval.py EXPORT_DIRECTORY PACK_DIRECTORY
"""

from __future__ import annotations

import copy

from compare import arguments, expected, judge, words
from lm_eval.models.openai_completions import LocalChatCompletion
from lm_eval.tasks import TaskManager

export, pack = arguments(__doc__)
command = words(export)
tag = command[command.index("--tasks") + 1]
model = LocalChatCompletion(model="m", base_url="http://127.0.0.1:9/v1/chat/completions")
manager = TaskManager(include_path=str(export), include_defaults=False)
tasks = manager.load([tag])["tasks"]
got = []
for name in sorted(tasks):
    task = tasks[name]
    task.build_all_requests(
        rank=0, world_size=1, apply_chat_template=True, chat_template=model.apply_chat_template, tokenizer_name=""
    )
    for request in task.instances:
        context, options = request.args
        body = model._create_payload(
            model.create_message([context]), generate=True, gen_kwargs=copy.deepcopy(options), eos=None
        )
        assert body["stop"] == [], body["stop"]  # it would end the answer early
        got.append({"id": request.doc["id"], "messages": body["messages"], "max_tokens": body["max_tokens"]})
judge("lm-eval", got, expected(export, pack), keys=("id", "messages", "max_tokens"))
