"""A synthetic training directory with the mess found in the field: every row and every planted fault is accounted for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from promptkit.readers import FileAccount, Record, find_shards, read

TOOL = Path(__file__).resolve().parents[2] / "shared" / "tools" / "make_synth.py"


@pytest.fixture(scope="module")
def synth(tmp_path_factory):
    if not TOOL.exists():
        pytest.skip("the generator of synthetic directories is not beside this checkout")
    for module in ("torch", "datasets", "tiktoken"):
        pytest.importorskip(module)
    where = tmp_path_factory.mktemp("synth")
    command = [
        sys.executable,
        str(TOOL),
        "--out",
        "mix",
        "--golden",
        "golden",
        "--rows",
        "300",
        "--max-tokens",
        "1024",
        "--dirty",
    ]
    subprocess.run(command, cwd=where, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    golden = json.loads((where / "golden/golden.json").read_text())
    rows = {}
    for line in (where / "golden/golden.jsonl").read_text().split("\n"):
        if line:
            row = json.loads(line)
            rows[row["shard"], row["row"]] = (row["n_tokens"], row["n_supervised"])
    return where, golden, rows


def test_every_row_and_every_fault_of_a_dirty_directory_is_accounted_for(synth, monkeypatch):
    where, golden, rows = synth
    monkeypatch.chdir(where)
    tree = find_shards(where / "mix")
    account = {a.path: a for a in tree.account}
    seen, per_source = set(), Counter()
    for shard in tree.shards:
        account[shard.path] = entry = FileAccount(shard.path)
        for item in read(tree.root, shard):
            entry.count(item)
            if not isinstance(item, Record):
                continue
            per_source[shard.source] += 1
            seen.add((shard.path, item.row))
            n_tokens, n_supervised = rows.get((shard.path, item.row), (None, None))
            if item.ids is not None and n_tokens is not None:
                assert len(item.ids) >= n_tokens  # padding is still there
                assert item.mask.sum() == n_supervised
        assert shard.n_rows in (None, entry.rows + entry.rows_failed + entry.rows_skipped) or entry.status == "failed"
    assert rows.keys() - seen == set()
    assert len(seen - rows.keys()) == 1  # the row with an id out of vocabulary, which only a tokenizer can tell
    assert {s: v["rows"] + (s == "B1_glaive") for s, v in golden["sources"].items()} == per_source
    for fault in golden["dirty_files"]:
        entry = account[fault["path"]]
        if "row" in fault:
            assert entry.status == "read"
        elif fault["expected"] == "kept":
            assert (entry.status, entry.rows, entry.rows_failed) == ("read", fault["rows_kept"], fault["rows_failed"])
        else:
            assert entry.status == fault["expected"], fault
    planted = {f["path"] for f in golden["dirty_files"]}
    assert [a.path for a in account.values() if (a.status == "failed" or a.rows_failed) and a.path not in planted] == []
    assert not list(where.rglob("promptkit_poison_marker"))
    assert tree.tokenizer_dirs == ["tokenizer"]
    assert tree.evidence["target_vocab_size"] == 163840
