"""First contact: columns and types as each container states them, the mask's convention, one row; never an exception."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shard_files
import tiny_tokenizers as tiny
import torch_files
from conftest import EXAMPLES, Command
from hypothesis import given, settings
from hypothesis import strategies as st

from promptkit import collect, pipeline
from promptkit.containers import containers
from promptkit.readers import Limits
from promptkit.readers.look import look

ROWS = [([5, 6, 7, 8], [0, 0, 1, 1])] * 3


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("jsonl", {"input_ids": "list of 4 int", "loss_mask": "list of 4 int"}),
        ("arrow-stream", {"input_ids": "list<int32>", "loss_mask": "list<int8>"}),
        ("arrow-file", {"input_ids": "list<int32>", "loss_mask": "list<int8>"}),
        ("parquet", {"input_ids": "list<int32>", "loss_mask": "list<int8>"}),
        ("torch", {"input_ids": "int64 [1, 4]", "loss_mask": "int64 [1, 4]"}),
        ("safetensors", {"input_ids": "I64 [3, 4]", "loss_mask": "I64 [3, 4]"}),
        ("npy", {"input_ids": "int32 [3, 4]"}),
        ("npz", {"input_ids": "uint32 [3, 4]", "loss_mask": "int8 [3, 4]"}),
        ("mds", {"input_ids": "ndarray:int32", "loss_mask": "ndarray", "n": "int"}),
        ("litdata", {"input_ids": "no_header_tensor:18", "loss_mask": "no_header_numpy:2"}),
        ("megatron", {}),
        ("llmc", {}),
    ],
)
def test_columns_and_types_are_those_that_the_file_states(kind: str, expected: dict[str, str], tmp_path: Path) -> None:
    files = shard_files.WRITERS[kind](ROWS)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert look(tmp_path / next(iter(files)), kind, Limits()) == expected


def test_packed_files_and_columns_that_are_never_read_are_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(
        gzip.compress(b'{"question": "Why?", "meta": {"k": 1}, "tools": "[]", "n": [1, 2.5]}\n')
    )
    assert look(tmp_path / "a", "jsonl.gz", Limits()) == {
        "question": "text", "meta": "object", "tools": "text, JSON", "n": "list of 2 float or int",
    }  # fmt: skip
    torch_files.save({"input_ids": np.arange(3), "hidden_state": np.zeros((1, 3, 8), np.float32)}, tmp_path / "b")
    found = look(tmp_path / "b", "torch", Limits())
    assert found == {"input_ids": "int64 [3]", "hidden_state": "float [1, 3, 8]"}
    (tmp_path / "c").write_bytes(gzip.compress((tmp_path / "b").read_bytes()))
    assert look(tmp_path / "c", "torch.gz", Limits()) == found


@given(kind=st.sampled_from(["jsonl", "torch", "safetensors", "npy", "npz", "mds", "litdata"]), data=st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_files_are_looked_at_without_an_exception(kind: str, data: Any, tmp_path_factory: Any) -> None:
    root = tmp_path_factory.mktemp("look")
    files = shard_files.WRITERS[kind](ROWS)
    name = next(iter(files))
    raw = bytearray(files[name])
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    (root / name).write_bytes(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    assert all(isinstance(v, str) for v in look(root / name, kind, Limits()).values())


def mix(root: Path, **sources: list[dict[str, Any]]) -> Path:
    tiny.write_kimi(root / "tokenizer")
    for source, rows in sources.items():
        (root / source).mkdir()
        (root / source / "a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return root


def test_mask_conventions_are_told_apart(tmp_path: Path) -> None:
    from promptkit.templates import render
    from promptkit.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(tiny.write_kimi(tmp_path / "t"))
    messages = [{"role": "user", "content": "Hi there"}, {"role": "assistant", "content": "Ho ho"}]
    ids = tokenizer.encode_rendered(render(messages, None, "kimi-k2.5", default_system=False)).tolist()
    start = ids.index(tokenizer.specials["</think>"]) + 1
    n = len(ids)
    included = [int(k >= start) for k in range(n)]
    excluded = [*included[:-1], 0]
    early = [*included[:-3], 0, 0, 0]
    rows = {"included": included, "excluded": excluded, "early": early, "all": [1] * n, "none": [0] * n}
    sources = {k: [{"input_ids": ids, "loss_mask": m}] * 4 for k, m in rows.items()}
    sources["labels"] = [
        {"input_ids": ids, "labels": [i if m else -100 for i, m in zip(ids, included, strict=True)]}
    ] * 4
    sources["text"] = [{"prompt": "Hi", "response": "Ho"}]
    found = {c["source"]: c for c in containers(collect.open_directory(mix(tmp_path / "mix", **sources)))}
    assert {k: c["mask"] and c["mask"]["convention"] for k, c in found.items()} == {
        "included": "end of turn included", "excluded": "end of turn left out", "early": "ends elsewhere than turns",
        "all": "every id is supervised", "none": "nothing is supervised", "labels": "end of turn included", "text": None,
    }  # fmt: skip
    assert found["labels"]["mask"]["field"] == "labels"
    assert found["included"]["mask"]["supervised_share"] == round(sum(included) / n, 4)
    assert found["included"]["template"] == "kimi-k2.5"
    assert found["included"]["sample"] == {"row": 0, "messages": messages}
    assert found["text"]["sample"]["messages"][0] == {"role": "user", "content": "Hi"}


def test_inspect_prints_each_container_within_eighty_columns(promptkit_command: Command) -> None:
    done = promptkit_command("inspect", EXAMPLES / "training_mix")
    assert done.returncode == 0, done.stderr
    assert "input_ids" in done.stdout
    assert "end of turn included" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    found = pipeline.inspect(EXAMPLES / "training_mix").to_json()["containers"]
    assert len({(c["source"], c["format"]) for c in found}) == len(found) >= 6
    assert all(c["sample"]["messages"] for c in found)
    assert all(f"{c['source']}, {c['format']}" in done.stdout for c in found)


def test_ids_that_no_probe_met_are_said_to_have_no_template(tmp_path: Path) -> None:
    """A shard in the middle of many others of its kind, in a directory of text."""
    for i in range(40):
        (tmp_path / f"text_{i}.jsonl").write_text('{"text": "Write a sort."}\n')
    (tmp_path / "text_7b.jsonl").write_text('{"input_ids": [5, 6, 7]}\n')
    tokenizer = tiny.write_kimi(tmp_path.parent / f"{tmp_path.name}-tokenizer")
    evidence = pipeline.inspect(tmp_path, tokenizer=str(tokenizer)).template["evidence"]
    assert any("3 ids stand in shards among shards of text, which no probe met" in line for line in evidence)
