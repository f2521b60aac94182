"""Arrow, Parquet and safetensors: column types, nesting, damage, bombs."""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_files import file_bytes, parquet_bytes, safetensors_bytes, stream_bytes, table
from test_readers import ROWS, good, reasons, rows_of

from promptkit.readers import Limits, Record, Shard, find_shards, read
from promptkit.readers.tables import _numbers


@pytest.mark.parametrize(
    ("name", "head", "tail"),
    [
        ("a.arrow", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b""),
        ("a.arrow", b"ARROW1\0\0\xff\xff\xff\xff\x10\0\0\0", b"\xff\xff\xff\x7fARROW1"),
        ("a.pt", b"PK\3\4", b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 65535, 65535, 0xFFFFFFF0, 16, 0)),
    ],
)
def test_headers_that_claim_gigabytes_are_refused_before_they_are_read(name, head, tail, tmp_path):
    with open(tmp_path / name, "wb") as file:
        file.write(head)
        file.truncate(4 << 30)
        file.seek(0, 2)
        file.write(tail)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tree = find_shards(tmp_path)
    faults = [f.reason for s in tree.shards for f in read(tmp_path, s)] or [a.reason for a in tree.account]
    assert "bytes, more than" in faults[0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_parquet_footer_that_claims_gigabytes_is_refused_before_it_is_read(tmp_path):
    with open(tmp_path / "a.parquet", "wb") as file:
        file.write(b"PAR1")
        file.truncate(4 << 30)  # sparse: takes no room
        file.seek(0, 2)
        file.write(b"\xff\xff\xff\x7fPAR1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (shard,) = find_shards(tmp_path).shards
    (fault,) = read(tmp_path, shard)
    assert fault.reason.startswith("a Parquet footer of 2,147,483,647 bytes")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def stream_of(data: pa.Table, path, *, chunk: int = 1000, **options) -> None:
    with pa.ipc.new_stream(str(path), data.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(data, max_chunksize=chunk)


def arrow_items(tmp_path, data: pa.Table, **how):
    stream_of(data, tmp_path / "a.arrow", **how)
    return rows_of(tmp_path / "a.arrow")


def parquet_items(tmp_path, data: pa.Table, **how):
    pq.write_table(data, tmp_path / "a.parquet", **how)
    return rows_of(tmp_path / "a.parquet")


INTEGERS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]


@pytest.mark.parametrize("integer", INTEGERS, ids=str)
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list], ids=["list", "large_list"])
@pytest.mark.parametrize("nested", [False, True])
def test_every_list_of_integers_is_one(integer, kind, nested, tmp_path):
    rows = [[1, 2, 3], [4], [5, 6]]
    column = pa.array([[r] for r in rows], kind(kind(integer))) if nested else pa.array(rows, kind(integer))
    data = pa.table({"input_ids": column, "loss_mask": [[[1] * len(r)] if nested else [1] * len(r) for r in rows]})
    for read_table in (arrow_items, parquet_items):
        items = read_table(tmp_path, data)
        assert [(i.row, i.ids.tolist(), i.mask.tolist()) for i in items] == [
            (k, r, [True] * len(r)) for k, r in enumerate(rows)
        ]
        assert {i.ids.dtype for i in items} == {np.dtype(np.int64)}


def test_fixed_size_lists_and_sliced_batches(tmp_path):
    data = pa.table({"input_ids": pa.array([[i, i + 1] for i in range(3000)], pa.list_(pa.int32(), 2))})
    for items in (
        arrow_items(tmp_path, data, chunk=2500),
        arrow_items(tmp_path, data.slice(7)),
        parquet_items(tmp_path, data),
    ):
        first = items[0].ids[0]
        assert [i.ids.tolist() for i in items] == [[k, k + 1] for k in range(first, 3000)]
    assert arrow_items(tmp_path, data.slice(0, 0)) == []


def test_masks_may_be_bools_and_labels_minus_hundred(tmp_path):
    data = pa.table({"input_ids": [[1, 2, 3]], "labels": [[-100, 2, 3]], "attention_mask": [[True, True, False]]})
    (item,) = arrow_items(tmp_path, data)
    assert item.mask.tolist() == [False, True, True]
    assert item.attention.tolist() == [True, True, False]


def test_bad_rows_fail_alone(tmp_path):
    data = pa.table({"input_ids": [[1], None, [], [2, None], [3]], "loss_mask": [[1], None, [], [1, 1], [1, 0]]})
    for items in (arrow_items(tmp_path, data), parquet_items(tmp_path, data)):
        assert [i.row for i in items] == [0, 1, 2, 3, 4]
        assert reasons(items) == [
            (1, "skipped", "input_ids is null"),
            (2, "skipped", "input_ids is empty"),
            (3, "failed", "input_ids holds null, expected integers"),
            (4, "failed", "loss_mask has another length than the ids"),
        ]


def test_floats_are_no_ids(tmp_path):
    items = arrow_items(tmp_path, pa.table({"input_ids": [[1.0, 2.0]]}))
    assert reasons(items) == [(0, "failed", "input_ids is of type float64, expected integers")]


def test_structs_lose_the_nulls_that_arrow_invented(tmp_path):
    messages = [
        {"role": "user", "content": "Sum?"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}]},
        {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"},
    ]  # fmt: skip
    data = pa.table({"id": pa.array(["x"]).dictionary_encode(), "messages": [messages], "extra": [[1.5]]})
    for items in (arrow_items(tmp_path, data), parquet_items(tmp_path, data)):
        (item,) = items
        assert item.id == "x"
        assert item.messages == [
            {"role": "user", "content": "Sum?"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]},
            {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"},
        ]  # fmt: skip


def test_json_in_strings_is_parsed(tmp_path):
    messages = json.dumps([{"role": "user", "content": "Hi"}])
    data = pa.table({"messages": [messages], "tools": [json.dumps([{"name": "f"}])], "id": [7]})
    (item,) = parquet_items(tmp_path, data)
    assert (item.messages, item.tools, item.id) == ([{"role": "user", "content": "Hi"}], [{"name": "f"}], "7")


def test_tables_of_other_things_are_skipped(tmp_path):
    data = pa.table({"weight": [[1.5]], "bias": [1]})
    for items in (arrow_items(tmp_path, data), parquet_items(tmp_path, data)):
        assert reasons(items) == [(None, "skipped", "not samples: keys weight, bias")]


def test_batches_before_a_cut_are_kept(tmp_path):
    rows = [([i] * 20, [1] * 20) for i in range(1000)]
    path = tmp_path / "a"
    for data in (stream_bytes(rows), file_bytes(rows)):
        path.write_bytes(data[: len(data) // 2])
        items = rows_of(path)
        assert 400 < len(good(items)) < 600
        assert [r[:2] for r in reasons(items)] == [(None, "failed")]
    data = stream_bytes(rows)
    path.write_bytes(data[:-8])  # only the end marker is missing
    assert (len(good(rows_of(path))), find_shards(path).shards[0].n_rows) == (1000, 1000)


def test_a_damaged_row_group_costs_its_own_rows(tmp_path):
    data = pa.table({"input_ids": [[i] * 30 for i in range(300)]})
    path = tmp_path / "a.parquet"
    pq.write_table(data, path, row_group_size=100, write_page_checksum=True, use_dictionary=False, compression="none")
    at = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset + 60
    raw = bytearray(path.read_bytes())
    raw[at : at + 8] = b"\xff" * 8
    path.write_bytes(raw)
    items = rows_of(path)
    assert [i.row for i in items] == list(range(300))
    assert [i.row for i in good(items)] == [*range(100), *range(200, 300)]
    assert {s for _, s, _ in reasons(items)} == {"failed"}


def test_cut_and_encrypted_parquet_say_so(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet_bytes(ROWS)[:-10])
    assert reasons(rows_of(path)) == [(None, "failed", "truncated Parquet: no footer, so nothing can be read")]
    path.write_bytes(parquet_bytes(ROWS)[:-4] + b"PARE")
    assert reasons(rows_of(path)) == [(None, "failed", "Parquet with an encrypted footer: decrypt it first")]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_arrow_is_read_and_bombs_are_refused(compression, tmp_path):
    items = arrow_items(tmp_path, table(ROWS), compression=compression)
    assert [i.ids.tolist() for i in items] == [ids for ids, _ in ROWS]
    bomb = pa.table({"text": ["x" * (40 << 20)]})
    ((row, status, reason),) = reasons(arrow_items(tmp_path, bomb, compression=compression))
    assert (row, status) == (None, "failed")
    assert "--inflate-ratio" in reason
    with (
        pa.OSFile(str(tmp_path / "b"), "w") as sink,
        pa.ipc.new_file(sink, bomb.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer,
    ):
        writer.write_table(bomb)
    assert "--inflate-ratio" in reasons(rows_of(tmp_path / "b"))[0][2]


def test_parquet_bombs_are_refused(tmp_path):
    bomb = pa.table({"text": ["x" * (40 << 20)]})
    ((row, status, reason),) = reasons(parquet_items(tmp_path, bomb, compression="zstd", use_dictionary=False))
    assert (row, status) == (None, "failed")
    assert "--inflate-ratio" in reason


def test_safetensors_of_one_row_and_of_stacked_rows(tmp_path):
    ids = np.arange(5, dtype=np.int32)
    header = json.dumps({"__metadata__": {"a": "b"}, "hidden_states": {"dtype": "BF16", "shape": [2], "data_offsets": [20, 24]},
                         "token_ids": {"dtype": "I32", "shape": [5], "data_offsets": [0, 20]}}).encode()  # fmt: skip
    path = tmp_path / "hs_0.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + ids.tobytes() + b"\0" * 4)
    (item,) = rows_of(path)
    assert (item.ids.tolist(), item.mask) == ([0, 1, 2, 3, 4], None)
    path.write_bytes(safetensors_bytes([([1, 2], [0, 1]), ([3, 4], [1, 1])]))
    assert [(i.row, i.ids.tolist(), i.mask.tolist()) for i in rows_of(path)] == [
        (0, [1, 2], [False, True]), (1, [3, 4], [True, True])]  # fmt: skip


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, "skipped"),
        ({"input_ids": {"dtype": "I64", "shape": [10], "data_offsets": [0, 80]}}, "failed"),
        ({"input_ids": {"dtype": "I64", "shape": [1], "data_offsets": [0, 4]}}, "failed"),
        ({"input_ids": {"dtype": "I64", "shape": [-1], "data_offsets": [8, 0]}}, "failed"),
        ({"input_ids": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, "failed"),
        ({"input_ids": {"dtype": ["I64"], "shape": [2**70], "data_offsets": [0, 4]}}, "failed"),
        ({"input_ids": 5}, "failed"),
        ([], "failed"),
    ],
)
def test_bad_safetensors_are_faults(header, status, tmp_path):
    data = json.dumps(header).encode()
    (tmp_path / "a").write_bytes(len(data).to_bytes(8, "little") + data + b"\0" * 8)
    items = list(read(tmp_path, Shard("a", "safetensors", "s", 0)))
    assert [i.status for i in items] == [status]


SMALL = {"arrow-stream": stream_bytes(ROWS), "arrow-file": file_bytes(ROWS), "parquet": parquet_bytes(ROWS),
         "safetensors": safetensors_bytes([([1, 2], [0, 1]), ([3, 4], [1, 1])])}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damage_gives_rows_or_faults(name, tmp_path_factory, data):
    tmp_path = tmp_path_factory.mktemp("damage")
    bad = bytearray(SMALL[name][: data.draw(st.integers(0, len(SMALL[name])))])
    for _ in range(data.draw(st.integers(0, 4))):
        if bad:
            bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "a").write_bytes(bad)
    items = list(read(tmp_path, Shard("a", name, "s", 0), limits=Limits(record_bytes=1 << 20)))
    assert all(isinstance(i, Record) or i.reason for i in items)
    assert [i.row for i in items if i.row is not None] == list(range(sum(i.row is not None for i in items)))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([b"", b"PK\3\4", b"\xff\xff\xff\xff", b"ARROW1\0\0", b"PAR1", b"\x1f\x8b\x08\0",
                                                 b"\x28\xb5\x2f\xfd", b"{", b"[", b"\x80\x02", b"\x20\0\0\0\0\0\0\0{"]))  # fmt: skip
def test_any_bytes_end_in_the_account(tmp_path_factory, data, magic):
    tmp_path = tmp_path_factory.mktemp("any")
    (tmp_path / "a").write_bytes(magic + data)
    tree = find_shards(tmp_path)
    assert len(tree.shards) + len(tree.account) == 1
    for shard in tree.shards:
        list(read(tmp_path, shard))


def test_every_cut_of_every_small_file_is_survived(tmp_path):
    for name, whole in SMALL.items():
        for n in range(0, len(whole), 7):
            (tmp_path / "a").write_bytes(whole[:n])
            for item in read(tmp_path, Shard("a", name, "s", 0)):
                assert isinstance(item, Record) or item.reason


def test_memory_of_a_batch_is_not_that_of_its_rows(tmp_path):
    """The ids of a batch are views of one array."""
    items = arrow_items(tmp_path, table(ROWS))
    assert items[0].ids.base is not None


def test_any_damaged_byte_of_a_parquet_footer_loses_rows_aloud(tmp_path):
    """Row numbers stay whole, and the process alive: a wrong count of rows once moved all later rows without a word,
    and levels that did not fit their histogram made pyarrow end the process."""
    data = parquet_bytes([([k] * 3, [1] * 3) for k in range(5)])
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path = tmp_path / "a"
    shard = Shard("a", "parquet", "s", 0)
    for at in range(begin, len(data) - 8):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 + at % 2]) + data[at + 1 :])
        items = list(read(tmp_path, shard))
        rows = [i.row for i in items if i.row is not None]
        assert rows == list(range(len(rows))), at
        assert len(good(items)) == 5 or reasons(items), at


@pytest.mark.parametrize(
    "kind", ["int8", "int16", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64", "bool_"]
)
def test_numbers_of_a_column_are_those_that_arrow_gives(kind):
    whole = pa.array(np.arange(100) % 3 == 1 if kind == "bool_" else np.arange(100).astype(kind))
    for part in (whole, whole.slice(3), whole.slice(17, 42), whole.slice(8, 8), whole.slice(5, 0), whole[:0]):
        numbers = _numbers(part)
        assert numbers.dtype == np.dtype(kind)
        assert numbers.tolist() == part.to_pylist()


@pytest.mark.parametrize("name", ["a.arrow", "a.parquet"])
def test_reading_tables_does_not_import_pandas(name, tmp_path):
    """It takes 0.2 seconds, once in each process that reads."""
    (tmp_path / name).write_bytes((stream_bytes if name.endswith("arrow") else parquet_bytes)(ROWS))
    program = f"""
import sys
from promptkit.readers import find_shards, read
(shard,) = find_shards({str(tmp_path)!r}).shards
assert len(list(read({str(tmp_path)!r}, shard))) > 1
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("record_bytes", [300, 64 << 20])
def test_rows_of_ids_and_mask_fail_as_those_of_json_do(record_bytes, tmp_path):
    rows = [([5, 6], [0, 1]), ([], []), ([7], [1, 0]), ([1, 2, 3], []), ([8], [1]), ([1] * 40, [1] * 40)]
    (tmp_path / "a.arrow").write_bytes(stream_bytes(rows))
    lines = [json.dumps({"input_ids": ids, "loss_mask": mask}) + "\n" for ids, mask in rows]
    (tmp_path / "b.jsonl").write_text("".join(lines))
    told = [
        [
            (i.row, i.ids.tolist(), None if i.mask is None else i.mask.tolist()) if isinstance(i, Record) else i
            for i in rows_of(tmp_path / name, Limits(record_bytes=record_bytes))
        ]
        for name in ("a.arrow", "b.jsonl")
    ]
    assert told[0] == told[1]
    assert len({str(t) for t in told[0]}) == len(rows)
