"""The shipped training directory is what its maker says, and promptkit reads it back exactly."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import EXAMPLES

from promptkit import readers, tokenizers
from promptkit.conversation import opening

MIX = EXAMPLES / "training_mix"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_training_mix", EXAMPLES / "make_training_mix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def golden(maker: ModuleType) -> list[dict[str, Any]]:
    return list(maker.rows())


def plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages without what the text of a row need not tell: the name beside a tool call's id."""
    return [
        {k: v for k, v in m.items() if v is not None and not (k == "name" and m["role"] == "tool")} for m in messages
    ]


def test_every_row_reads_back_exactly(golden: list[dict[str, Any]]) -> None:
    from promptkit import templates

    tree = readers.find_shards(MIX)
    tokenizer = tokenizers.find_tokenizer(MIX, tree.tokenizer_dirs, None)
    found = {}
    for shard in tree.shards:
        for record in readers.read(MIX, shard):
            assert isinstance(record, readers.Record), record
            conversation = templates.recover(record, tokenizer, "kimi-k2")
            found[shard.path, record.row] = (shard.source, conversation)
    assert len(found) == len(golden)
    for row in golden:
        source, conversation = found[row["shard"], row["row"]]
        where = f"{row['shard']} row {row['row']}"
        assert source == row["source"], where
        assert plain(conversation.messages) == plain(row["messages"]), where
        assert conversation.tools == row["tools"], where
        assert not conversation.truncated, where
        if row["n_tokens"] is not None:
            assert (conversation.n_tokens, conversation.n_supervised) == (row["n_tokens"], row["n_supervised"]), where


def test_files_on_disk_are_what_the_maker_writes(maker: ModuleType, tmp_path: Path) -> None:
    """Byte for byte where no library's version decides (ckpt, JSONL, tokenizer config); the others hold the same rows."""
    (tmp_path / "tokenizer").mkdir()
    maker.write_tokenizer_config(tmp_path / "tokenizer")
    list(maker.rows(tmp_path))
    written = {p.relative_to(tmp_path).as_posix(): p for p in tmp_path.rglob("*") if p.is_file()}
    shipped = {p.relative_to(MIX).as_posix() for p in MIX.rglob("*") if p.is_file()}
    assert shipped - {"tokenizer/tiktoken.model"} == set(written)
    own = [name for name in written if name.endswith((".ckpt", ".jsonl", ".json"))]
    assert len(own) > 60
    assert [name for name in own if written[name].read_bytes() != (MIX / name).read_bytes()] == []


def test_mix_is_varied(golden: list[dict[str, Any]]) -> None:
    assert Counter(row["source"] for row in golden) == {
        "A1_sweagent": 60, "B1_toolcalls": 85, "B2_codeproblems": 219, "B3_codeinstruct": 209,
        "C1_reasoning": 76, "D1_raw": 18,
    }  # fmt: skip
    grams = []
    for row in golden:
        words = opening(row["messages"]).lower().split()
        grams.append({tuple(words[i : i + 5]) for i in range(max(1, len(words) - 4))})
    holders = defaultdict(list)
    for i, g in enumerate(grams):
        for gram in g:
            holders[gram].append(i)
    shared_grams: Counter[tuple[int, int]] = Counter()
    for rows in holders.values():
        shared_grams.update((a, b) for n, a in enumerate(rows) for b in rows[n + 1 :])
    near = [p for p, n in shared_grams.items() if n >= 0.8 * (len(grams[p[0]]) + len(grams[p[1]]) - n)]
    assert len(near) <= 8


def test_texts_that_claim_a_result_are_true(maker: ModuleType) -> None:
    """Every check of a Python task holds for its code, and fails with the bug where the seed says so."""
    lines, names = [], []
    for seed in maker.read_seeds("code_python.txt"):
        if ".txt" in seed["tests"] or ".csv" in seed["tests"]:
            continue  # needs a file
        for check in seed["tests"].split("\n"):
            lines.append((seed["code"], check))
            names.append(f"{seed.name}: {check}")
        if "fails" in dict(seed.sections):
            lines.append((seed.buggy, f"not ({seed['fails']})"))
            names.append(f"{seed.name} with its bug: {seed['fails']}")
    program = "import json, sys\nfor code, check in json.load(sys.stdin):\n    g = {}\n    exec(code, g)\n    print(eval(check, g))"
    done = subprocess.run([sys.executable, "-c", program], input=json.dumps(lines), capture_output=True, text=True,
                          timeout=60, check=True)  # fmt: skip
    assert [n for n, line in zip(names, done.stdout.split("\n"), strict=False) if line != "True"] == []
    assert len(names) > 80


def test_torch_and_datasets_read_the_files(golden: list[dict[str, Any]]) -> None:
    """The containers are real: the libraries that trainers use open them."""
    torch = pytest.importorskip("torch", reason="torch opens the .ckpt files in this test")
    datasets = pytest.importorskip("datasets")
    rows = {row["shard"]: row for row in golden}
    for path in sorted(MIX.glob("A1_sweagent/*/*.ckpt")):
        data = torch.load(path, weights_only=True)
        row = rows[path.relative_to(MIX).as_posix()]
        assert data["input_ids"].dtype == data["loss_mask"].dtype == torch.int64
        assert len(data["input_ids"]) >= row["n_tokens"]
        assert int(data["loss_mask"].sum()) == row["n_supervised"]
        assert data["hidden_state"].dtype == torch.bfloat16
        assert data["aux_hidden_state"].shape == (1, len(data["input_ids"]), 3)
    data = datasets.load_from_disk(str(MIX / "B2_codeproblems"))
    assert [len(ids) for ids in data["input_ids"]] == [
        r["n_tokens"] for r in golden if r["source"] == "B2_codeproblems"
    ]
