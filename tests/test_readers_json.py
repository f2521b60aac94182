"""JSON and JSON lines: forms, packings, damage, and values that must not pass in silence."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from test_readers import PACK, ROWS, good, jsonl_bytes, reasons, rows_of

from promptkit.readers import Limits, Record, Shard, read
from promptkit.readers.limits import unpack
from promptkit.readers.records import BadFile, BadRow
from promptkit.readers.values import loads

TEXT_ROWS = [{"id": "a", "text": 'say "hi": {x}'}, {"id": "b", "text": "]}\\"}, {"id": "c", "text": "\u2028é\n"}]


def items_of(tmp_path: Path, data: bytes, name: str = "a.jsonl", limits: Limits | None = None):
    path = tmp_path / name
    path.write_bytes(data)
    return list(read(tmp_path, Shard(name, "jsonl", "s", len(data)), limits=limits))


@pytest.mark.parametrize(
    "data",
    [
        b"\n".join(json.dumps(r).encode() for r in TEXT_ROWS),
        b"\r\n\r\n".join(json.dumps(r).encode() for r in TEXT_ROWS) + b"\r\n",
        b"\xef\xbb\xbf" + b"\n".join(json.dumps(r, ensure_ascii=False).encode() for r in TEXT_ROWS),
        json.dumps(TEXT_ROWS).encode(),
        json.dumps(TEXT_ROWS, indent=2).encode(),
        b"[\n" + b",\n".join(json.dumps(r).encode() for r in TEXT_ROWS) + b"\n]\n",
        b"".join(json.dumps(r).encode() for r in TEXT_ROWS),
        b"\n".join(json.dumps(r, indent=1).encode() for r in TEXT_ROWS),
        json.dumps({"version": 1, "data": TEXT_ROWS}).encode(),
        json.dumps({"conversations": TEXT_ROWS}, indent=1).encode(),
    ],
    ids=[
        "lines",
        "crlf",
        "bom",
        "array",
        "laid out",
        "array of lines",
        "run together",
        "one after another",
        "wrapped",
        "wrapped 2",
    ],
)
def test_every_form_of_json_gives_the_same_rows(data, tmp_path):
    for name in ("a.jsonl", "a.json", "a.txt"):
        items = items_of(tmp_path, data, name)
        assert [(i.row, i.id, i.text) for i in items] == [(k, r["id"], r["text"]) for k, r in enumerate(TEXT_ROWS)]


def test_one_row_laid_out_over_lines_is_one_row(tmp_path):
    row = {"id": "x", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}
    (item,) = items_of(tmp_path, json.dumps(row, indent=4).encode())
    assert item.messages == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


def test_a_row_that_holds_rows_stays_one_row(tmp_path):
    row = {"instruction": "Hi", "instances": [{"input": "a", "output": "b"}, {"input": "c", "output": "d"}]}
    (item,) = items_of(tmp_path, json.dumps(row).encode())
    assert item.messages == [{"role": "user", "content": "Hi"}]


def test_a_wrapper_larger_than_a_record_is_streamed(tmp_path):
    rows = [{"text": "x" * 1000, "id": str(i)} for i in range(3000)]
    items = items_of(tmp_path, json.dumps({"version": "1", "rows": rows}).encode(), limits=Limits(record_bytes=1 << 20))
    assert [i.id for i in items] == [str(i) for i in range(3000)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"input_ids": [1, 2', "not JSON, or cut"),
        (b'{"input_ids": [1, 2]} {"a": 1}', "not JSON, or cut"),
        (b"nonsense", "not JSON, or cut"),
        (b'{"input_ids": [1, NaN]}', "input_ids holds NaN, expected integers"),
        (b'{"input_ids": [1, Infinity]}', "input_ids holds an integer beyond 64 bits, expected integers"),
        (b'{"input_ids": [1, 2.5]}', "input_ids holds floats, expected integers"),
        (b'{"input_ids": [1, 99999999999999999999]}', "input_ids holds an integer beyond 64 bits, expected integers"),
        (b'{"input_ids": [1, 9223372036854775808]}', "input_ids holds an integer beyond 64 bits, expected integers"),
        (b'{"input_ids": [7, true]}', "input_ids holds booleans, expected integers"),
        (b'{"input_ids": [7, null]}', "input_ids holds null, expected integers"),
        (b'{"input_ids": [7, "8"]}', "input_ids holds strings, expected integers"),
        (b'{"input_ids": "7"}', "input_ids is a str, expected a list of integers"),
        (b'{"input_ids": [[1], [2]]}', "input_ids holds several lists, expected integers"),
        (b'{"input_ids": [1, 2], "loss_mask": [1]}', "loss_mask has another length than the ids"),
        (b'{"input_ids": [1, 2], "loss_mask": [1, 2]}', "loss_mask holds other values than 0 and 1"),
        (b'{"input_ids": [1, 2], "loss_mask": [1, 0.5]}', "loss_mask holds other values than 0 and 1"),
        (b'{"input_ids": [1, 2], "loss_mask": [1, 300]}', "loss_mask holds other values than 0 and 1"),
        (b'{"input_ids": [1, 2], "loss_mask": "01"}', "loss_mask is a str, expected a list of 0 and 1"),
        (b'{"input_ids": [1, 2], "attention_mask": [1]}', "attention_mask has another length than the ids"),
        (b'{"input_ids": [1, 2], "packed_loss_mask": "1,2"}', "packed_loss_mask has another length than the ids"),
        (b'{"input_ids": [1, 2], "packed_loss_mask": "1,-1,2"}', "packed_loss_mask is not a list of run lengths"),
        (b'{"input_ids": [1, 2], "labels": [1]}', "labels has another length than the ids"),
        (b'{"input_ids": [1], "input_ids": [2]}', "a key twice in one object"),
        (b'{"input_ids" : [1], "input_ids": [2]}', "a key twice in one object"),
        (b'{"text": "\\\\", "meta": {"a": 1, "a": 2}}', "a key twice in one object"),
        (b'{"text": "a", "meta": [1, {"a": 1, "a": 2}]}', "a key twice in one object"),
        (b'{"a\\\\":1, "a\\\\":2, "text": "t"}', "a key twice in one object"),
        (b'{"text": "caf\xe9"}', "not UTF-8"),
        (b'{"text": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"text": ' + b"9" * 5000 + b"}", "a number with too many digits"),
        (b'{"text": ' + b"[" * 300 + b"]" * 300 + b"}", "nested deeper than 256 (--nesting)"),
        (b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper than 256 (--nesting)"),
        (b'{"odd": 1}', "no known field: keys odd"),
        (b"17", "no known field: the row is a int"),
        (b'{"messages": "[not json"}', "messages is a string but not JSON"),
        (b'{"messages": {"a": 1}}', "messages is a dict, expected a list of messages"),
        (b'{"messages": [1]}', "messages holds a int, expected messages"),
        (b'{"messages": [{"content": "x"}]}', "messages holds a message without a role"),
        (b'{"messages": [{"role": "user", "content": 5}]}', "messages holds a message whose content is a int"),
    ],
)
def test_a_bad_row_costs_itself_and_says_why(line, reason, tmp_path):
    whole = b'{"input_ids": [1]}\n'
    items = items_of(tmp_path, whole + line + b"\n" + whole)
    assert [i.row for i in items] == [0, 1, 2]
    assert reasons(items) == [(1, "failed", reason)]
    # also as the first line, where the form of the file is still open
    items = items_of(tmp_path, line + b"\n" + whole + whole)
    assert reasons(items) == [(0, "failed", reason)]
    assert [i.row for i in good(items)] == [1, 2]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"input_ids": []}', "input_ids is empty"),
        (b'{"input_ids": null}', "input_ids is null"),
        (b'{"text": ""}', "text is empty"),
        (b'{"messages": []}', "messages is empty"),
        (
            b'{"id": "a", "conversations": [], "status": "error", "error": "timeout"}',
            "status error: the answer was never generated",
        ),
    ],
)
def test_a_row_that_holds_nothing_is_skipped(line, reason, tmp_path):
    assert reasons(items_of(tmp_path, line + b"\n" + line)) == [(0, "skipped", reason), (1, "skipped", reason)]


def test_odd_values_that_are_kept_are_marked(tmp_path):
    data = b'{"text": "a\\ud800b \\ud83d\\ude00", "score": 1.0}\n{"text": "x", "history": NaN}\n{"text": "nul \\u0000 \\ue000 \xe2\x80\xa8"}\n'
    items = items_of(tmp_path, data)
    assert [(i.text, i.marks) for i in items] == [
        ("a\ufffdb \U0001f600", ("lone surrogate read as U+FFFD",)),
        ("x", ("NaN read as null",)),
        ("nul \0 \ue000 \u2028", ()),
    ]


def test_a_file_of_other_things_is_skipped_whole(tmp_path):
    assert reasons(items_of(tmp_path, b'{"lr": 0.1, "steps": 5}')) == [(None, "skipped", "not samples: keys lr, steps")]
    assert reasons(items_of(tmp_path, b'{"a": 1}\n' * 5000)) == [(None, "skipped", "not samples: keys a")]
    assert items_of(tmp_path, b"\n \n") == []


def test_a_schema_that_changes_costs_the_rows_without_known_fields(tmp_path):
    items = items_of(tmp_path, b'{"a": 1}\n{"text": "x"}\n{"a": 1}\n')
    assert reasons(items) == [(0, "failed", "no known field: keys a"), (2, "failed", "no known field: keys a")]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_refused_with_the_remedy(encoding, tmp_path):
    (tmp_path / "a.jsonl").write_bytes('{"text": "x"}\n{"text": "y"}\n'.encode(encoding))
    ((row, status, reason),) = reasons(rows_of(tmp_path / "a.jsonl"))
    assert (row, status) == (None, "failed")
    assert "UTF-16" in reason


def test_the_rest_of_a_cut_array_is_a_fault(tmp_path):
    data = json.dumps(TEXT_ROWS, indent=1).encode()
    items = items_of(tmp_path, data[:-20])
    assert [i.id for i in good(items)] == ["a", "b"]
    assert reasons(items) == [
        (2, "failed", "not JSON, or cut"),
        (None, "failed", "the array is cut: its end is missing"),
    ]
    items = items_of(tmp_path, data + b"more")
    assert [i.id for i in good(items)] == ["a", "b", "c"]
    assert reasons(items) == [(None, "failed", "the array is followed by other data")]


@pytest.mark.parametrize("n", [1, 2, 5, 100])
def test_a_line_over_the_limit_costs_itself(n, tmp_path):
    limits = Limits(record_bytes=1000)
    long = b'{"text": "' + b"x" * (1000 * n) + b'"}'
    items = items_of(tmp_path, b'{"text": "a"}\n' + long + b"\n" + b'{"text": "b"}\n' + long, limits=limits)
    assert [(i.row, i.text) for i in good(items)] == [(0, "a"), (2, "b")]
    assert reasons(items) == [(k, "failed", "record larger than 1000 bytes (--record-bytes)") for k in (1, 3)]


# ---- packed


def pack_zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)  # as the zstd command does


def test_members_and_frames_in_a_row_are_one_file(tmp_path):
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    for name, data in {
        "gz": gzip.compress(jsonl_bytes(ROWS[:1])) + gzip.compress(jsonl_bytes(ROWS[1:])) + b"\0" * 100,
        "zst": skippable + pack_zst(jsonl_bytes(ROWS[:1])) + skippable + pack_zst(jsonl_bytes(ROWS[1:])),
        "twice": gzip.compress(gzip.compress(jsonl_bytes(ROWS))),
    }.items():
        (tmp_path / name).write_bytes(data)
        assert [r.ids.tolist() for r in rows_of(tmp_path / name)] == [ids for ids, _ in ROWS]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.binary(max_size=2000), min_size=1, max_size=3),
    st.sampled_from(["gz", "zst", "xz", "bz2"]),
    st.integers(1, 3000),
)
def test_unpacking_does_not_depend_on_the_chunks(members, kind, size):
    packed = b"".join(PACK[kind](m * 50) for m in members)
    chunks = [packed[i : i + size] for i in range(0, len(packed), size)]
    assert b"".join(unpack(kind, chunks, Limits())) == b"".join(m * 50 for m in members)
    with pytest.raises(BadFile):
        list(unpack(kind, [packed[:-1]], Limits()))


@pytest.mark.parametrize("pack", [gzip.compress, pack_zst])
def test_rows_before_damage_are_kept(pack, tmp_path):
    rng = random.Random(0)
    lines = [json.dumps({"id": str(i), "text": f"{rng.random()}" * 20}).encode() + b"\n" for i in range(5000)]
    data = pack(b"".join(lines))
    for name, broken in {
        "cut": data[: len(data) // 2],
        "end": data[:-1],
        "garbage": data + b"garbage garbage",
        "flip": data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 255]) + data[len(data) // 2 + 1 :],
    }.items():
        items = items_of(tmp_path, broken, name)
        faults = reasons(items)
        assert faults[-1][:2] == (None, "failed")
        rows = good(items)
        assert [r.id for r in rows] == [str(i) for i in range(len(rows))]
        assert len(rows) > {"cut": 2000, "flip": 2000}.get(
            name, 4900 if pack is gzip.compress or name == "garbage" else 4000
        )


BOMB = """
import gzip, json, resource, sys
import zstandard, orjson, numpy
from promptkit.readers import Shard, read
warm = list(read(sys.argv[1], Shard("small.jsonl", "jsonl", "s", 0)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
items = [i for i in read(sys.argv[1], Shard(sys.argv[2], "jsonl", "s", 0))]
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"mib": (after - before) // 1024, "reasons": sorted({i.reason for i in items})}))
"""


def bomb_gz(path: Path) -> None:
    with gzip.open(path, "wb", 6) as file:
        for _ in range(256):
            file.write(b"0" * (1 << 20))


def bomb_zst(path: Path) -> None:
    path.write_bytes(pack_zst(b"0" * (256 << 20)))


def long_line(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(b'{"text": "')
        for _ in range(256):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n')


def long_ids(path: Path) -> None:
    path.write_bytes(b'{"input_ids": [' + b"1," * (30 << 20) + b"1]}\n")


@pytest.mark.parametrize("make", [bomb_gz, bomb_zst, long_line, long_ids])
def test_a_refusal_stays_small(make, tmp_path):
    (tmp_path / "small.jsonl").write_bytes(jsonl_bytes(ROWS))
    make(tmp_path / "big")
    env = {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", BOMB, str(tmp_path), "big"], capture_output=True, text=True, check=True, env=env
    )
    out = json.loads(done.stdout)
    assert out["mib"] < 200, out
    assert "--inflate-ratio" in out["reasons"][0] or "--record-bytes" in out["reasons"][0]


# ---- the parser against the standard library's

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(values, st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]), st.booleans())
def test_any_json_value_is_read_as_json_reads_it(value, separators, ascii_only):
    text = json.dumps(value, separators=separators, ensure_ascii=ascii_only)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return
    if "\\ud" in text.lower():
        return  # lone surrogates have a test of their own
    assert loads(data, Limits())[0] == json.loads(text)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", 'q"', "\\", "c:"]), values), max_size=4),
    st.sampled_from([":", ": ", " :"]),
)
def test_a_key_twice_is_always_found(pairs, colon):
    text = "{" + ",".join(json.dumps(k) + colon + json.dumps(v) for k, v in pairs) + "}"
    keys = [k for k, _ in pairs]
    if "\\ud" in text.lower():
        return
    if len(set(keys)) == len(keys):
        assert loads(text.encode(), Limits())[0] == dict(pairs)
    else:
        with pytest.raises(BadRow, match="a key twice"):
            loads(text.encode(), Limits())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.dictionaries(st.text(max_size=4), values, max_size=3), max_size=5),
    st.sampled_from([None, 0, 2]),
    st.integers(1, 64),
)
def test_arrays_are_cut_into_their_values_whatever_the_chunks(rows, indent, size):
    from promptkit.readers.json_lines import _elements

    text = json.dumps(rows, indent=indent)
    data = text.encode("utf-8", "replace")
    chunks = iter([data[i : i + size] for i in range(0, len(data), size)])
    assert [json.loads(bytes(v)) for v in _elements(chunks, Limits())] == json.loads(data)


def test_reading_rows_does_not_share_memory_that_changes(tmp_path):
    first, *_ = items_of(tmp_path, jsonl_bytes(ROWS))
    assert isinstance(first, Record)
    assert first.ids.tolist() == [5, 6, 7]
