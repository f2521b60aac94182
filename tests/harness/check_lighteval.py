"""Compare what LightEval makes of an export with the pack: its registry, documents, splits and chat messages.

lighteval/bin/python tests/harness/check_lighteval.py EXPORT_DIRECTORY PACK_DIRECTORY
"""

from __future__ import annotations

from compare import arguments, expected, judge, words
from lighteval.models.endpoints import litellm_model as client  # first, as the command does
from lighteval.tasks.lighteval_task import LightevalTask
from lighteval.tasks.prompt_manager import PromptManager
from lighteval.tasks.registry import Registry

# The tasks that LightEval brings are imported first, and some of them fetch files when they are imported.
Registry._load_from_files = Registry._load_from_subdirs = staticmethod(lambda *args: {})
export, pack = (path.resolve() for path in arguments(__doc__))
command = words(export)
file = export / command[command.index("--custom-tasks") + 1].rpartition("/")[2]
spec = next(w for w in command if w.endswith("|0"))
tasks = Registry(tasks=spec, custom_tasks=str(file)).load_tasks()
LightevalTask.load_datasets(tasks, 1)
docs = [doc for task in tasks.values() for doc in task.get_docs()]
data = client.GenerativeTaskDataset(requests=docs, num_dataset_splits=1)
manager = PromptManager(use_chat_template=True)
got = {}
for split in data.splits_iterator():
    for doc in data:  # as the client does, which takes a split's length from its first document
        body = {"messages": manager.prepare_prompt_api(doc), "max_tokens": split[0].generation_size}
        assert doc.specific["id"] not in got, "sent twice"
        got[doc.specific["id"]] = {"id": doc.specific["id"], **body}
        assert not doc.stop_sequences
        assert doc.num_samples == 1
want = expected(export, pack)
assert len(docs) == len(got)
judge("lighteval", [got[w["id"]] for w in want if w["id"] in got], want, keys=("id", "messages", "max_tokens"))
