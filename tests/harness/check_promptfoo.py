"""Compare what promptfoo sends for an export with the pack: the export's command against a mock server.

PATH=promptfoo/bin:$PATH python tests/harness/check_promptfoo.py EXPORT_DIRECTORY PACK_DIRECTORY
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path

from compare import arguments, expected, jsonl, judge, words
from mock_server import Server

export, pack = (path.resolve() for path in arguments(__doc__))
command = words(export)
command = command[command.index("promptfoo") :]
want = expected(export, pack)
with tempfile.TemporaryDirectory() as work:
    record, results = Path(work) / "requests.jsonl", Path(work) / "results.json"
    command[command.index("-c") + 1] = str(export / Path(command[command.index("-c") + 1]).name)
    command[command.index("-o") + 1] = str(results)
    with Server(record) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {
            **os.environ,
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "PROMPTFOO_CONFIG_DIR": work,
            "PROMPTFOO_DISABLE_TELEMETRY": "1",
            "PROMPTFOO_DISABLE_UPDATE": "1",
        }
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        server.shutdown()
    got = [{**r["body"], "tools": r["body"].get("tools")} for r in jsonl(record) if r["method"] == "POST"]
    rows = json.loads(results.read_bytes())["results"]["results"]
    reported = [r["testCase"]["metadata"]["id"] for r in sorted(rows, key=lambda r: r["testIdx"])]
assert reported == [w["id"] for w in want]
judge("promptfoo", got, want, keys=("messages", "tools", "max_tokens"))
