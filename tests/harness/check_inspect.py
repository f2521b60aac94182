"""Compare what Inspect AI makes of an export with the pack: its loader's samples, and its requests to a mock server.

inspect/bin/python tests/harness/check_inspect.py EXPORT_DIRECTORY PACK_DIRECTORY
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path

from compare import arguments, expected, jsonl, judge, words

export, pack = (path.resolve() for path in arguments(__doc__))
command = words(export)
task = command[command.index("eval") + 1]
want = expected(export, pack)
replay = json.loads((pack / "pack.json").read_bytes())["recipe"]
replay = (replay or {}).get("turns") == "all"

with tempfile.TemporaryDirectory() as work:
    os.chdir(export)  # absolute paths of tasks crash this release
    os.environ["PACK_API_KEY"] = "none"
    from inspect_ai import eval as inspect_eval
    from inspect_ai.dataset import json_dataset
    from mock_server import Server

    samples = json_dataset(Path(task).with_suffix(".jsonl").name.removeprefix("pack_"))
    read = [{"id": s.id, "texts": [m.content for m in s.input]} for s in samples]
    texts = [{**w, "texts": [m["content"] for m in w["messages"]]} for w in want]
    judge("inspect, samples read", [{**r, "max_tokens": 0} for r in read], texts, keys=("id", "texts"))

    record = Path(work) / "requests.jsonl"
    with Server(record) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (log,) = inspect_eval(
            task, model="openai-api/pack/m", model_base_url=f"{server.url}/v1", max_connections=1, display="none",
            log_dir=work,
        )  # fmt: skip
        server.shutdown()
    assert log.status == "success", log.error
    assert sorted(str(s.id) for s in log.samples or []) == sorted(w["id"] for w in want)
    got = [{**r["body"], "tools": r["body"].get("tools")} for r in jsonl(record) if r["method"] == "POST"]

if replay:  # one request a turn, the mock's answers between the turns
    sent = []
    for w in want:
        users = [i for i, m in enumerate(w["messages"]) if m["role"] == "user"]
        for i in users:
            share = -(-w["max_tokens"] // len(users))
            sent.append({"id": w["id"], "messages": w["messages"][: i + 1], "tools": w["tools"], "max_tokens": share})
    for g, s in zip(got, sent, strict=False):
        answers = [m for m in g["messages"] if m["role"] == "assistant"]
        assert len(answers) == sum(m["role"] == "user" for m in s["messages"]) - 1
        g["messages"] = [m for m in g["messages"] if m["role"] != "assistant"]
    want = sent
judge("inspect, requests sent", got, want, keys=("messages", "tools", "max_tokens"))
