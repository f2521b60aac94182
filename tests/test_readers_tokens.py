"""Token formats: widths of headerless ids, streams cut into documents, packed rows, files that serve others, hostile ones."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import shard_files
import tiny_tokenizers as tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_files import WRITERS, npy_bytes
from test_readers import good, reasons

from promptkit import pipeline
from promptkit.errors import InputError, UsageError
from promptkit.readers import READERS, Hints, Limits, Record, Shard, find_shards, hub, read, with_hints
from promptkit.readers.id_streams import PIECE, UNCUT, documents
from promptkit.readers.packed import starts_of
from promptkit.readers.records import BadFile, NoSamples
from promptkit.readers.schemas import to_record
from promptkit.readers.widths import width_of

ROWS = [([5, 6, 7], [0, 0, 1]), ([0, 163586, 9, 9], [0, 1, 1, 0]), ([1], [1])]


def save(directory: Path, files: dict[str, bytes]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def everything(root: Path, limits: Limits | None = None):
    tree = find_shards(root, limits=limits)
    return tree, [item for shard in tree.shards for item in read(tree.root, shard, limits=limits)]


def one_reason(root: Path, limits: Limits | None = None) -> str:
    """Return the only reason for which something below `root` failed."""
    tree, items = everything(root, limits)
    told = [r for _, _, r in reasons(items)] + [a.reason for a in tree.account if a.status == "failed"]
    assert len(told) == 1, told
    return told[0]


# ---- widths


def text_like(n: int, top: int, seed: int = 0) -> np.ndarray:
    """Ids as frequent as those of text: the k-th commonest about 1/k of the first."""
    rng = np.random.default_rng(seed)
    return np.minimum(rng.zipf(1.3, n), top - 1)


@pytest.mark.parametrize(
    ("top", "dtype"), [(50257, "<u2"), (50257, "<u4"), (50257, "<i8"), (163840, "<u4"), (163840, "<i8")]
)
def test_the_width_of_ids_shows_in_their_bytes(top, dtype):
    ids = text_like(5000, top)
    ids[::10] = np.random.default_rng(1).integers(1000, top, 500)
    width = width_of(ids.astype(dtype).tobytes(), 5000 * np.dtype(dtype).itemsize, Hints())
    assert width.dtype == dtype
    assert np.dtype(dtype).name in width.why


@pytest.mark.parametrize(
    ("data", "hints", "reason"),
    [
        (np.random.default_rng(0).bytes(20_000), Hints(), "no text; pass --dtype"),
        (np.random.default_rng(0).normal(size=5000).astype("<f4").tobytes(), Hints(), "no text; pass --dtype"),
        (bytes(range(10)), Hints(), "too few"),
        (np.full(100, 2, "<u4").tobytes(), Hints(), "both are possible"),
        (text_like(999, 50000).astype("<u2").tobytes() + b"x", Hints(), "not a whole number of uint16"),
        (text_like(1000, 50000).astype("<u2").tobytes(), Hints(n_vocab=600), "outside the tokenizer"),
        (bytes(10), Hints(dtype="uint64"), "not a whole number of uint64"),
    ],
)  # fmt: skip
def test_a_width_is_never_guessed(data, hints, reason):
    with pytest.raises(BadFile, match=reason):
        width_of(data, len(data), hints)


def test_a_label_mask_is_no_file_of_ids():
    with pytest.raises(NoSamples, match="label mask"):
        width_of(bytes([0, 1] * 50), 100, Hints())


def test_nanogpt_files_say_how_they_were_read_and_what_was_told_wins(tmp_path):
    ids = text_like(4000, 50256)
    ids[[1000, 2000]] = 50256
    save(tmp_path, {"train.bin": ids.astype("<u2").tobytes(), "meta.pkl": b"\x80\x04."})
    tree, items = everything(tmp_path, Limits(hints=Hints(ends=(50256,))))
    assert [s.format for s in tree.shards] == ["ids"]
    assert "read as uint16: 16-bit ids" in tree.evidence["id_widths"]["train.bin"]
    assert [(a.path, a.status) for a in tree.account] == [("meta.pkl", "skipped")]
    assert [r.ids.tolist() for r in items] == [ids[:1001].tolist(), ids[1001:2001].tolist(), ids[2001:].tolist()]
    _, items = everything(tmp_path, with_hints(None, dtype="uint32"))
    assert len(items[0].ids) == 2000
    with pytest.raises(UsageError, match="unknown dtype 'uint17'"):
        with_hints(None, dtype="uint17")


def test_random_binary_files_are_no_ids(tmp_path):
    save(tmp_path, {"weights.bin": np.random.default_rng(0).bytes(9000)})
    assert "pass --dtype" in one_reason(tmp_path)


# ---- streams


def oracle(ids: list[int], cuts: set[int], before: bool) -> list[list[int]]:
    out: list[list[int]] = [[]]
    for k, i in enumerate(ids):
        last = ids[k - 1] if k else None
        begins = (i in cuts and last not in cuts) if before else (last in cuts and i not in cuts)
        if k and begins:
            out.append([])
        out[-1].append(i)
    return out


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.lists(st.integers(1, 9), max_size=9), st.booleans())
def test_streams_are_cut_alike_wherever_their_pieces_end(ids, steps, before):
    arrays, at = [], 0
    for step in [*steps, 99]:
        if at < len(ids):
            arrays.append(np.array(ids[at : at + step], np.int64))
        at += step
    separators = {"begins": [3]} if before else {"ends": [4]}
    cut = 3 if before else 4
    found = [r.ids.tolist() for r in documents(iter(arrays), Limits(), **separators)]
    assert [i for d in found for i in d] == ids
    if cut not in ids:
        assert found == [ids]
    else:
        assert found == oracle(ids, {cut}, before or ids[0] == cut)


def test_a_long_stream_without_an_end_is_cut_and_says_so():
    records = list(documents(iter([np.ones(300_000, np.int64)]), Limits()))
    assert {len(r.ids) for r in records[:-1]} == {PIECE}
    assert sum(len(r.ids) for r in records) == 300_000
    assert {r.marks for r in records} == {(UNCUT,)}


def test_a_document_above_the_limit_fails_alone():
    ids = np.array([1, 1, 9, *[2] * 50, 9, 3], np.int64)
    items = list(documents(iter(np.split(ids, 11)), Limits(record_bytes=9 * 40), ends=[9]))
    assert [i.ids.tolist() for i in good(items)] == [[1, 1, 9], [3]]
    assert reasons(items) == [(1, "failed", "record larger than 360 bytes (--record-bytes)")]


def test_llmc_16_bit_files_begin_documents_with_gpt2s_end_of_text(tmp_path):
    rows = [([50256, 5, 6], []), ([50256, 7], [])]
    _, items = everything(save(tmp_path, shard_files.llmc(rows, magic=20240520)))
    assert [r.ids.tolist() for r in items] == [[50256, 5, 6], [50256, 7]]


# ---- packed rows


@pytest.mark.parametrize(
    ("positions", "segments", "begins", "starts"),
    [
        ([0, 1, 2, 0, 1], None, None, (0, 3)),
        ([0, 1, 2, 3, 4], None, None, ()),
        ([0, 1, 0, 1, 0, 0, 0], None, None, (0, 2)),
        ([0, 0, 0, 0], None, None, ()),
        (None, [1, 1, 2, 2, 0], None, (0, 2)),
        (None, [1, 1, 1], None, ()),
        (None, None, [True, False, True, False], (0, 2)),
        (None, None, [True, True, False], ()),
        (None, None, None, ()),
    ],
)
def test_where_conversations_begin_in_a_packed_row(positions, segments, begins, starts):
    arrays = [None if x is None else np.array(x) for x in (positions, segments, begins)]
    assert starts_of(*arrays) == starts


def test_packed_rows_are_cut_at_the_beginning_of_text_where_they_say_nothing_else(tmp_path):
    rows = [
        {"input_ids": [1, 5, 1, 6, 7], "labels": [-100, 5, -100, 6, 7], "id": "p"},
        {"input_ids": [1, 8], "labels": [1, 8]},
    ]
    save(tmp_path, {"a.jsonl": b"".join(json.dumps(r).encode() + b"\n" for r in rows)})
    _, items = everything(tmp_path, Limits(hints=Hints(begins=(1,))))
    assert [(r.row, r.ids.tolist(), r.id) for r in items] == [
        (0, [1, 5], "p#0"),
        (1, [1, 6, 7], "p#1"),
        (2, [1, 8], None),
    ]
    assert items[1].mask.tolist() == [False, True, True]
    assert [r.row for r in everything(tmp_path)[1]] == [0, 1]


# ---- what the user says


@pytest.mark.parametrize(
    ("fields", "mapping", "expected"),
    [
        ({"ask": "Hi", "reply": "Ho"}, {"prompt": "ask", "response": "reply"}, [("user", "Hi"), ("assistant", "Ho")]),
        (
            {"text": "no", "row": {"turns": [{"role": "user", "content": "Hi"}]}},
            {"messages": "row.turns"},
            [("user", "Hi")],
        ),
        ({"prompt": "wrong", "a.b": "Hi"}, {"prompt": "a.b"}, [("user", "Hi")]),
    ],
)
def test_columns_are_read_under_the_name_that_the_user_gives(fields, mapping, expected, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    limits = with_hints(None, fields=mapping)
    save(
        tmp_path / "a", {"a.jsonl": json.dumps(fields).encode(), "b.json": json.dumps([fields] * 2, indent=1).encode()}
    )
    pq.write_table(pa.Table.from_pylist([fields]), tmp_path / "a/c.parquet")
    _, items = everything(tmp_path, limits)
    assert len(items) == 4
    for record in items:
        assert isinstance(record, Record), record
        assert [(m["role"], m["content"]) for m in record.messages] == expected
        assert record.text is None


def test_mapped_ids_in_every_container_of_columns(tmp_path):
    import torch_files

    limits = with_hints(None, fields={"input_ids": "tok", "loss_mask": "sup"})
    arrays = {"tok": np.array([[5, 6, 7]]), "sup": np.array([[0, 0, 1]])}
    header = {k: {"dtype": "I64", "shape": [1, 3], "data_offsets": [24 * n, 24 * n + 24]} for n, k in enumerate(arrays)}
    head = json.dumps(header).encode()
    sink = io.BytesIO()
    torch_files.save({k: v[0] for k, v in arrays.items()}, sink)
    files = {
        "a.npz": shard_files.npz_bytes(arrays),
        "b.safetensors": len(head).to_bytes(8, "little") + head + b"".join(a.tobytes() for a in arrays.values()),
        "c.pt": sink.getvalue(),
        "c2.pt.gz": gzip.compress(sink.getvalue()),
        "d.mds": shard_files.mds_bytes(
            {"tok": ("ndarray:int64:3", 24), "sup": ("ndarray:int64:3", 24)},
            [{k: v.tobytes() for k, v in arrays.items()}],
        ),
        "e.tar": shard_files.tar_bytes({f"0.{k}.npy": npy_bytes(v[0]) for k, v in arrays.items()}),
    }
    _, items = everything(save(tmp_path, files), limits)
    assert [(r.ids.tolist(), r.mask.tolist()) for r in items] == [([5, 6, 7], [False, False, True])] * len(files)


def test_a_column_that_is_not_there_and_a_field_that_is_none_are_said(tmp_path):
    save(tmp_path, {"a.jsonl": b'{"text": "Hi"}\n'})
    assert (
        one_reason(tmp_path, with_hints(None, fields={"messages": "dialog"})) == "no column dialog, which --map names"
    )
    with pytest.raises(UsageError, match="unknown field 'mesages'"):
        with_hints(None, fields={"mesages": "dialog"})


# ---- agents


def test_swe_agent_trajectories_without_a_query_are_made_of_their_steps():
    steps = [{"action": "ls", "observation": "a.py", "response": "I look.\n```\nls\n```", "thought": "I look."}]
    record = to_record(0, {"trajectory": steps, "info": {}}, Limits())
    assert [(m["role"], m["content"]) for m in record.messages] == [
        ("assistant", steps[0]["response"]),
        ("user", "a.py"),
    ]
    history = [{"role": "user", "content": "Fix it"}, {"role": "assistant", "content": "ls"}]
    assert to_record(0, {"trajectory": steps, "history": history}, Limits()).messages == history


def test_openhands_events_become_messages():
    history = [
        {"source": "user", "action": "message", "args": {"content": "Fix it"}},
        {"source": "agent", "action": "run", "args": {"command": "ls", "thought": "I look."}},
        {"source": "environment", "observation": "agent_state_changed", "content": ""},
        {"source": "environment", "observation": "run", "content": "a.py"},
        {"source": "agent", "action": "message", "args": {"content": "Done."}},
    ]
    call = {"type": "function", "function": {"name": "run", "arguments": '{"command": "ls"}'}}
    for fields in ({"history": history}, {"trajectory": json.dumps(history), "instance_id": "x"}):
        assert to_record(0, fields, Limits()).messages == [
            {"role": "user", "content": "Fix it"},
            {"role": "assistant", "content": "I look.", "tool_calls": [call]},
            {"role": "tool", "content": "a.py", "name": "run"},
            {"role": "assistant", "content": "Done."},
        ]


def test_nemotron_input_is_messages_and_output_text():
    fields = {
        "system_prompt": "Be brief.",
        "input": [{"role": "user", "content": "Hi"}],
        "output": "Ho",
        "category": "chat",
    }
    assert [(m["role"], m["content"]) for m in to_record(0, fields, Limits()).messages] == [
        ("system", "Be brief."), ("user", "Hi"), ("assistant", "Ho"),
    ]  # fmt: skip


# ---- files that belong together


def test_what_serves_a_shard_is_in_the_account_and_no_shard(tmp_path):
    root = tmp_path / "mix"
    for name in ("megatron", "datatrove", "ids", "litdata", "npy"):
        save(root / name, WRITERS[name](ROWS if name != "npy" else [ROWS[0]] * 2))
    save(root / "mds", {**shard_files.mds(ROWS), "index.json": shard_files.mds_index("shard.00000.mds")})
    tree = find_shards(root, limits=with_hints(None, dtype="uint32"))
    assert [(s.source, s.format) for s in tree.shards] == [
        (name, name) for name in ("datatrove", "ids", "litdata", "mds", "megatron", "npy")
    ]
    assert tree.evidence["tokenizer"] == "moonshotai/Kimi-K2.5"
    assert {a.path.split("/", 1)[1]: a.reason for a in tree.account} == {
        "00000_a.ds.index": "index of 00000_a.ds", "00000_a.ds.loss": "loss of 00000_a.ds",
        "00000_a.ds.metadata": "metadata of 00000_a.ds", "a_text_document.idx": "index of a_text_document.bin",
        "index.json": "index of MDS shards", "token_ids_part_0.csv.gz": "list of documents of token_ids_part_0.npy",
        "labels_mask_part_0.npy": "mask of token_ids_part_0.npy", "loss_mask.npy": "mask of input_ids.npy",
    } | {"index.json": "index of MDS shards"}  # fmt: skip


def test_one_file_is_read_with_what_lies_beside_it(tmp_path):
    for name in ("megatron", "datatrove", "litdata", "npy"):
        rows = ROWS if name != "npy" else [ROWS[0]] * 2
        files = WRITERS[name](rows)
        _, items = everything(save(tmp_path / name, files) / next(iter(files)))
        assert [r.ids.tolist() for r in items] == [ids for ids, _ in rows]


def test_llm_foundry_calls_its_ids_tokens(tmp_path):
    row = {"tokens": np.array([5, 6, 7], "<i8").tobytes()}
    save(tmp_path, {"shard.00000.mds": shard_files.mds_bytes({"tokens": ("bytes", None)}, [row])})
    assert [r.ids.tolist() for r in everything(tmp_path)[1]] == [[5, 6, 7]]


def test_an_index_that_names_missing_files_or_paths_is_said(tmp_path):
    save(
        tmp_path / "a",
        {**shard_files.mds(ROWS), "index.json": shard_files.mds_index("shard.00000.mds", "shard.00001.mds")},
    )
    save(tmp_path / "b", {"index.json": shard_files.mds_index("../a/shard.00000.mds", "/etc/passwd")})
    save(tmp_path / "c", {"x.idx": shard_files.megatron(ROWS)["a_text_document.idx"]})
    tree = find_shards(tmp_path)
    assert [s.path for s in tree.shards] == ["a/shard.00000.mds"]
    assert {a.path: a.reason for a in tree.account if a.status == "failed"} == {
        "a/shard.00001.mds": "named by index.json, but missing",
        "b/index.json": "index.json names 2 paths, not files",
        "c/x.idx": "a Megatron index without its .bin: not read by this version, convert it to JSON lines",
    }


# ---- hostile files


def patched(data: bytes, at: int, form: str, *values: int) -> bytes:
    return data[:at] + struct.pack(form, *values) + data[at + struct.calcsize(form) :]


MEGATRON = shard_files.megatron(ROWS)["a_text_document.idx"]
N = len(ROWS)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (patched(MEGATRON, 34, "<i", 2**31 - 1), "sequence 0 reaches beyond"),
        (patched(MEGATRON, 34, "<i", -1), "sequence 0 reaches beyond"),
        (patched(MEGATRON, 34 + 4 * N, "<q", 1 << 62), "sequence 0 reaches beyond"),
        (patched(MEGATRON, 34 + 4 * N, "<q", -8), "sequence 0 reaches beyond"),
        (patched(MEGATRON, 18, "<Q", 1 << 60), "its .idx is cut"),
        (patched(MEGATRON, 26, "<Q", 1 << 60), "its .idx is cut"),
        (patched(MEGATRON, 34 + 12 * N + 8, "<q", 99), "out of order, or beyond"),
        (patched(MEGATRON, 34 + 12 * N + 16, "<q", 0), "out of order, or beyond"),
        (patched(MEGATRON, 17, "<B", 7), "type 7, which are no integers"),
        (patched(MEGATRON, 9, "<Q", 2), "version 2"),
        (MEGATRON[:20], "cut"),
    ],
)
def test_a_megatron_index_that_lies_is_refused(index, reason, tmp_path):
    save(tmp_path, {**shard_files.megatron(ROWS), "a_text_document.idx": index})
    assert reason in one_reason(tmp_path)


def test_megatron_documents_of_several_sequences_are_joined(tmp_path):
    files = shard_files.megatron(ROWS)
    head = patched(files["a_text_document.idx"], 26, "<Q", 2)[: 34 + 12 * N]
    save(tmp_path, {**files, "a_text_document.idx": head + np.array([0, 2], "<i8").tobytes()})
    _, items = everything(tmp_path)
    assert [r.ids.tolist() for r in items] == [[5, 6, 7, 0, 163586, 9, 9], [1]]


DATATROVE = shard_files.datatrove(ROWS)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("00000_a.ds.index", struct.pack("<3Q", 3, 1 << 63, 8), "document 1 ends at id"),
        ("00000_a.ds.index", struct.pack("<3Q", 3, 2, 8), "document 1 ends at id 2"),
        ("00000_a.ds.index", struct.pack("<2Q", 3, 7), "its index ends at id 7, the file goes on to 8"),
        ("00000_a.ds.index", b"12345", "its .index is cut"),
        ("00000_a.ds.loss", b"\1", "its .loss has 1 entries, the ids are 8"),
    ],
)
def test_a_datatrove_index_that_lies_is_refused(name, data, reason, tmp_path):
    assert reason in one_reason(save(tmp_path, {**DATATROVE, name: data}))


def test_datatrove_width_comes_from_the_index_where_no_metadata_says_it(tmp_path):
    files = {k: v for k, v in DATATROVE.items() if not k.endswith("metadata")}
    _, items = everything(save(tmp_path, files))
    assert [r.ids.tolist() for r in items] == [ids for ids, _ in ROWS]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (b"0,3,a\n2,8,b\n", "document 2-8 lies outside of the 8 ids, or overlaps"),
        (b"0,99,a\n", "document 0-99 lies outside"),
        (b"-1,3,a\n", "document -1-3 lies outside"),
        (b"a,b\n", "not start,end,id"),
        (b"0," + b"1" * 70_000, "a line longer than"),
    ],
)
def test_a_list_of_documents_that_lies_is_refused(lines, reason, tmp_path):
    files = {**shard_files.dolma(ROWS), "token_ids_part_0.csv.gz": gzip.compress(lines)}
    _, items = everything(save(tmp_path, files), with_hints(None, dtype="uint32"))
    assert reason in reasons(items)[-1][2]


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n") + b"\x80\x04.",
            "array of objects is a pickle",
        ),
        (
            header("{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,), }\n"),
            "header of a NumPy array is damaged",
        ),
        (header("{'descr': '<i8', 'fortran_order': False, 'shape': (1152921504606846976, 8), }\n"), "truncated"),
        (header("{'descr': '<i8', 'fortran_order': False, 'shape': (4, 999999999999), }\n"), "records larger than"),
        (header("{'descr': '<i8', 'fortran_order': False, 'shape': (999999999999999, 0), }\n"), "rows of no length"),
        (header("{'descr': '<i8', 'fortran_order': True, 'shape': (4, 2), }\n"), "Fortran order"),
        (b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + b"{", "is 2147483648 bytes long"),
    ],
)
def test_hostile_numpy_headers_are_refused(data, reason, tmp_path):
    assert reason in one_reason(save(tmp_path, {"a.npy": data}))


def test_arrays_of_floats_are_no_samples(tmp_path):
    _tree, items = everything(save(tmp_path, {"hidden.npy": npy_bytes(np.zeros((3, 4), "<f4"))}))
    assert reasons(items) == [(None, "skipped", "not samples: a NumPy array of float32")]


def test_a_bomb_in_a_zip_of_arrays_is_refused_in_little_memory(tmp_path):
    save(tmp_path, {"a.npz": shard_files.npz_bytes({"input_ids": np.zeros((20, 400_000), "<i8")})})
    tracemalloc.start()
    reason = one_reason(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "more than 200 times its size" in reason
    assert peak < 32 << 20


def test_entries_of_a_zip_that_overlap_or_hide_pickles_are_refused(tmp_path):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr(
            "input_ids.npy", header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + b"cos\nsystem\n."
        )
    assert "is a pickle" in one_reason(save(tmp_path, {"a.npz": sink.getvalue()}))


def test_mds_columns_that_are_pickles_are_refused_and_others_ignored(tmp_path):
    poison = b"cos\nsystem\n(S'touch owned'\ntR."
    save(tmp_path / "a", {"a.mds": shard_files.mds_bytes({"messages": ("pkl", None)}, [{"messages": poison}])})
    assert one_reason(tmp_path) == "refused: its column messages is a pickle, which can run code; nothing was run"
    columns = {"text": ("str", None), "image": ("pkl", None)}
    save(tmp_path / "a", {"a.mds": shard_files.mds_bytes(columns, [{"text": b"Hi", "image": poison}])})
    assert [r.text for r in everything(tmp_path)[1]] == ["Hi"]


MDS = shard_files.mds(ROWS)["shard.00000.mds"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (patched(MDS, 0, "<I", 2**31), "counts 2147483648 samples"),
        (patched(MDS, 0, "<I", 10_000), "ends inside its table of offsets"),
        (patched(MDS, 4, "<I", 2**32 - 1), "out of order"),
        (patched(MDS, 8, "<I", 1), "out of order"),
        (patched(MDS, 4 + 4 * N, "<I", 2**31), "ends inside a sample"),
        (MDS.replace(b'"column_sizes": [null', b'"column_sizes": [-123'), "its config is damaged"),
        (MDS.replace(b'"ndarray:int32"', b'"ndarray:inf32"'), "is damaged"),
    ],
)
def test_an_mds_shard_that_lies_is_refused(data, reason, tmp_path):
    _, items = everything(save(tmp_path, {"a.mds": data}))
    assert reason in "; ".join(r for _, _, r in reasons(items))
    assert all(status == "failed" for _, status, _ in reasons(items))


@pytest.mark.parametrize(
    ("names", "formats", "config", "reason"),
    [
        (["input_ids"], ["pickle"], {}, "refused: its leaf input_ids is a pickle"),
        (["input_ids"], ["no_header_tensor:18"], {"encryption": {"algorithm": "fernet"}}, "encrypted"),
        (["input_ids"], ["no_header_tensor:18"], {"compression_level": "sample"}, "packed by sample"),
        (["input_ids"], ["no_header_tensor:99"], {}, "input_ids is damaged"),
        (["input_ids"], ["numpy"], {}, "input_ids is damaged"),
        (["input_ids"], [], {}, "does not say how samples are stored"),
    ],
)
def test_litdata_that_cannot_be_read_safely_is_refused(names, formats, config, reason, tmp_path):
    sample = shard_files.litdata_sample(np.array([5, 6], "<i8").tobytes())
    index = shard_files.litdata_index(names, formats, "chunk-0-0.bin", **config)
    save(tmp_path, {"chunk-0-0.bin": shard_files.chunk([sample]), "index.json": index})
    assert reason in one_reason(tmp_path)


def test_names_inside_a_tar_lead_nowhere(tmp_path):
    members = {"../../../escaped.json": b'{"text": "Hi"}', "/etc/abs.txt": b"Ho", "x/inner.tar": b"\0" * 1024}
    data = shard_files.tar_bytes(members)
    with tarfile.open(fileobj=(sink := io.BytesIO()), mode="w") as archive:
        link = tarfile.TarInfo("0.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    before = sorted(os.listdir(tmp_path.parent))
    _tree, items = everything(save(tmp_path / "mix", {"a.tar": data, "b.tar": sink.getvalue()}))
    assert [r.text for r in good(items)] == ["Hi", "Ho"]
    assert [r for _, _, r in reasons(items)] == ["no known field: members tar"]
    assert sorted(os.listdir(tmp_path.parent)) == before


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_every_dialect_of_tar(format, tmp_path):
    name = "d" * 90 + "/" + "n" * (60 if format == tarfile.USTAR_FORMAT else 300)
    members = {f"{name}.txt": b"Hi", f"{name}.json": b'{"id": "x"}', "é.txt": "ü".encode()}
    _, items = everything(save(tmp_path, {"a.tar": shard_files.tar_bytes(members, format)}))
    assert [r.text for r in items] == ["Hi", "ü"]


TAR = shard_files.tar_bytes({"a.txt": b"Hi", "b.txt": b"Ho"})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (patched(TAR, 0, "<B", 7), "its checksum differs"),
        (TAR[:700], "ends inside a member"),
        (TAR[:1024], "its end is missing"),
        (shard_files.tar_bytes({"a.pkl": b"cos\nsystem\n.", "b.pyd": b"x"}), "refused: a .pkl member can run code"),
        (
            shard_files.tar_bytes({"a.npy": header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }")}),
            "is a pickle",
        ),
    ],
)
def test_damaged_and_dangerous_tars_are_refused(data, reason, tmp_path):
    _, items = everything(save(tmp_path, {"a.tar": data}))
    assert reason in "; ".join(r for _, _, r in reasons(items))


def test_a_packed_tar_that_is_a_bomb_is_refused_in_little_memory(tmp_path):
    data = gzip.compress(shard_files.tar_bytes({"a.bin": bytes(200 << 20)}))
    save(tmp_path, {"a.tar.gz": data})
    tracemalloc.start()
    _, items = everything(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "more than 200 times its size" in reasons(items)[-1][2]
    assert peak < 32 << 20


BINARY = ("npy", "npz", "megatron", "datatrove", "ids", "llmc", "mds", "litdata", "tar")


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(BINARY), data=st.data())
def test_damaged_bytes_give_rows_or_reasons_and_never_an_exception(name, data, tmp_path_factory):
    """Any byte of the shard or of what serves it is changed; rows stay numbered, ids stay inside what was stored."""
    rows = [([5, 6, 7, 8], [0, 0, 1, 1])] * 3
    files = WRITERS[name](rows)
    for _ in range(data.draw(st.integers(1, 3))):
        victim = data.draw(st.sampled_from(sorted(files)))
        raw = bytearray(files[victim])
        if raw:
            at = data.draw(st.integers(0, len(raw) - 1))
            raw[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, raw[at] ^ 1]))
        files[victim] = bytes(raw[: data.draw(st.sampled_from([len(raw)] * 4 + [len(raw) // 2]))])
    root = tmp_path_factory.mktemp("damaged")
    save(root, files)
    shard = Shard(next(iter(files)), name, "s", 0)
    items = list(read(root, shard, limits=Limits(record_bytes=1 << 16, hints=Hints(dtype="uint32"))))
    rows_seen = [i.row for i in items if i.row is not None]
    assert rows_seen == list(range(len(rows_seen)))
    for _, _, reason in reasons(items):
        assert not reason.startswith(
            ("AttributeError", "TypeError", "NameError", "AssertionError", "RecursionError")
        ), reason
    find_shards(root)


# ---- the hub


class FakeDataset:
    def __init__(self, path: Path, n: int) -> None:
        self.cache_files, self.num_rows = [{"filename": str(path)}], n


def test_a_hub_data_set_is_read_through_datasets(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.jsonl").write_bytes(b'{"input_ids": [5, 6], "loss_mask": [0, 1]}\n' * 3)
    asked = []
    real = datasets.load_dataset

    def load(name, *, revision, split):
        asked.append((name, revision, split))
        files = {"train": str(tmp_path / "data/train.jsonl"), "test": str(tmp_path / "data/train.jsonl")}
        return real("json", data_files=files, split=split, cache_dir=str(tmp_path / "cache"))

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.chdir(tmp_path)
    for root, splits in (("hf://owner/name@v1:train", 1), ("hf://owner/name", 2)):
        tree, items = everything(root)
        assert [(s.format, s.source, s.n_rows) for s in tree.shards] == [("arrow-stream", "name", 3)] * splits
        assert all("/" not in s.path for s in tree.shards)
        assert [r.ids.tolist() for r in items] == [[5, 6]] * 3 * splits
    assert asked == [("owner/name", "v1", "train"), ("owner/name", None, None)]
    seen = pipeline.inspect("hf://owner/name:test", tokenizer=str(tiny.write_kimi(tmp_path / "tokenizer")))
    assert [(s["source"], s["rows"], s["tokens"]) for s in seen.sources] == [("name", 3, 6)]


def test_hub_names_are_checked_and_failures_are_said(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    for name in ("hf://", "hf://a/b/c", "hf://../x/y", "hf://a b"):
        with pytest.raises(UsageError, match="not the name of a hub data set"):
            find_shards(name)
    (tmp_path / "owner/name").mkdir(parents=True)
    with pytest.raises(UsageError, match="there is a local directory owner/name"):
        find_shards("hf://owner/name")

    def load(*_, **__):
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(InputError, match="cannot be fetched: no network"):
        find_shards("hf://owner/other")
    assert hub.is_hub("hf://x")
    assert not hub.is_hub(Path("hf://x"))


def test_every_binary_format_has_a_reader():
    assert set(BINARY) <= set(READERS)
