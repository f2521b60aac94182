"""Compare a question file with the pack, read as its three kinds of readers do: by text lines, and by datasets.

    base/bin/python tests/harness/check_mt_bench.py EXPORT_DIRECTORY PACK_DIRECTORY

Spec-Bench, EAGLE and specdec_bench read each line of the text file as JSON (they are scripts, no packages); AngelSlim
and specdec_bench's SPEED-Bench loader go through the datasets library. Works for mt-bench and specdec-bench exports.
"""

from __future__ import annotations

import json
from tempfile import TemporaryDirectory

import datasets
from compare import arguments, expected, jsonl, judge

export, pack = (path.resolve() for path in arguments(__doc__))
want = [
    {"id": w["id"], "turns": [m["content"] for m in w["messages"]], "max_tokens": 0} for w in expected(export, pack)
]
reported = {r["reported"]: r["id"] for r in jsonl(export / "ids.jsonl")}
parquet = sorted(export.glob("*.parquet"))
(path,) = parquet or sorted(export.glob("*/question.jsonl"))
if not parquet:
    with path.open() as file:  # in text mode, as they open it
        questions = [json.loads(line) for line in file if line]
    assert all(isinstance(q["question_id"], int) for q in questions)
    by_lines = [{"id": reported[str(q["question_id"])], "turns": q["turns"], "max_tokens": 0} for q in questions]
    judge("question file, by lines", by_lines, want, keys=("id", "turns"))
with TemporaryDirectory() as cache:
    kind = "parquet" if parquet else "json"
    table = datasets.load_dataset(kind, data_files=str(path), cache_dir=cache)["train"]
    got = [{"id": reported[str(r["question_id"])], "turns": r["turns"], "max_tokens": 0} for r in table]
judge("question file, by datasets", got, want, keys=("id", "turns"))
