"""The short ways of the torch reader against the long ones: directory of the ZIP, and pickles like one seen before.

Whatever the bytes are, a short way gives what the long one gives, or nothing.
"""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch_files
from torch_files import View

from promptkit.readers import Record, Shard, pickle_shapes, read, zip_directory
from promptkit.readers.fields import WANTED
from promptkit.readers.pickles import Machine, TensorRef
from promptkit.readers.records import BadFile

IDS, MASK = np.arange(100, 400), np.arange(300) % 2


def row(n: int = 300, **more) -> dict:
    hidden = np.zeros((1, n, 8), np.float32)
    return {"input_ids": IDS[:n], "loss_mask": MASK[:n], "hidden_state": hidden, **more}


def saved(value, **how) -> bytes:
    file = io.BytesIO()
    torch_files.save(value, file, **how)
    return file.getvalue()


def as_torch_ends_it(data: bytes) -> bytes:
    """Put the 64-bit record, and the pointer to it, before the end record: torch always does."""
    *_, n, length, start, _ = struct.unpack("<4sHHHHLLH", data[-22:])
    record = struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 30, 45, 0, 0, n, n, length, start)
    return data[:-22] + record + struct.pack("<4sLQL", b"PK\6\7", 0, len(data) - 22, 1) + data[-22:]


def archive(*names: str, extra: bytes = b"", comment: bytes = b"", of_all: bytes = b"") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out:
        for name in names:
            entry = zipfile.ZipInfo(name)
            entry.extra, entry.comment = extra, comment
            out.writestr(entry, name * 3)
        out.comment = of_all
    return file.getvalue()


def short(data: bytes):
    return zip_directory.entries(io.BytesIO(data), len(data))


def long(data: bytes):
    try:
        return zip_directory.through_zipfile(io.BytesIO(data))
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error, BadFile):
        return None


PLAIN = {
    "no entry": archive(),
    "by hand": saved(row()),
    "as torch": as_torch_ends_it(saved(row())),
    "packed": saved(row(), compression=zipfile.ZIP_DEFLATED),
}
ODD = {
    "comment": archive("a", of_all=b"why not"),
    "comment of an entry": archive("a", comment=b"why not"),
    "extra field": archive("a", extra=b"\x99\x99\2\0ab"),
    "not ASCII": archive("é"),
    "behind other data": b"MZ" * 50 + archive("a"),
    "64-bit, behind other data": b"MZ" * 50 + as_torch_ends_it(archive("a")),
    "many": archive(*map(str, range(200))),
    "a zero in a name": archive("abc").replace(b"abc", b"a\0c"),
    "a backslash in a name": archive("abc").replace(b"abc", b"a\\c"),
    "counts one too many": archive("a")[:-14] + b"\2\0\2\0" + archive("a")[-10:],
    "empty": b"",
    "no archive": b"x" * 5000,
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_directory_is_read_as_zipfile_reads_it(name):
    assert short(PLAIN[name]) == long(PLAIN[name]) is not None


@pytest.mark.parametrize("name", ODD)
def test_an_odd_directory_is_left_to_zipfile(name):
    assert short(ODD[name]) is None


@pytest.mark.parametrize("name", [*PLAIN, *ODD])
def test_a_damaged_directory_is_read_as_zipfile_reads_it_or_not_at_all(name):
    rng = np.random.default_rng(3)
    whole = (PLAIN | ODD)[name]
    for _ in range(400 if whole else 0):
        bad = bytearray(whole)
        for at in len(bad) - 1 - rng.integers(0, min(len(bad), 700), rng.integers(1, 4)):
            bad[at] = rng.choice([0, 1, 2, 80, 255, bad[at] ^ 1 << rng.integers(8)])
        if rng.random() < 0.1:
            del bad[-int(rng.integers(1, 120)) :]
        assert short(bytes(bad)) in (None, long(bytes(bad)))


# ---- pickles


@pytest.fixture
def unlearned(monkeypatch):
    monkeypatch.setattr(pickle_shapes, "_known", {})
    monkeypatch.setattr(pickle_shapes, "_tried", 0)


def pickled(value) -> bytes:
    return b"\x80\x02" + torch_files.dump(value, []) + b"."


def learned(data: bytes) -> None:
    machine = Machine(data)
    machine.run()
    pickle_shapes.learn(machine)


def root_of(data: bytes):
    try:
        return Machine(data).run()
    except BadFile:
        return None


def test_a_pickle_of_other_lengths_is_recalled(unlearned):
    learned(pickled(row(280)))
    for n in (256, 281, 299):
        data = pickled(row(n))
        assert pickle_shapes.recall(data, row()) == root_of(data)
        assert pickle_shapes.recall(data, row())["input_ids"].size == (n,)
    only = pickle_shapes.recall(pickled(row(299)), WANTED)
    assert [type(v) for v in only.values()] == [TensorRef, TensorRef, type(None)]
    assert pickle_shapes.recall(pickled(row(255)), row()) is None  # numbers of one byte: another shape
    learned(pickled(row(255)))
    assert pickle_shapes.recall(pickled(row(254)), row()) == root_of(pickled(row(254)))


@pytest.mark.parametrize(
    "value",
    [
        row(data_id="a"),
        row(nested={"t": MASK}),
        {1: IDS},
        {},
        [row()],
        row(ids=IDS.astype(np.int64).reshape(10, 30), long=View(IDS, 0, (1 << 40,), (0,))),  # LONG1
        {f"t{i}": IDS for i in range(80)},  # more numbers than one byte counts
    ],
)
def test_other_pickles_are_left_to_the_machine(value, unlearned):
    data = pickled(value)
    learned(data)
    assert pickle_shapes.recall(data, WANTED) is None


def test_sizes_out_of_the_keys_of_a_dict_are_left_to_the_machine(unlearned):
    """Two keys of one number are one key: here an opcode does look at a number."""
    data = pickled(row())
    places = torch_files.numbers((300,)) + torch_files.numbers((1,))
    bad = data.replace(places, b"ctorch\nSize\n}(K\x07NK\x08Nu\x85R" + torch_files.numbers((1, 1)), 1)
    assert root_of(bad)["input_ids"].size == (7, 8)
    learned(bad)
    assert pickle_shapes.recall(bad, row()) is None


def test_shapes_are_so_many_and_no_more(unlearned):
    for k in range(2 * pickle_shapes.MOST_SHAPES):
        learned(pickled({f"t{k}": IDS}))
    assert sum(map(len, pickle_shapes._known.values())) == pickle_shapes.MOST_SHAPES


def test_a_damaged_pickle_is_recalled_as_the_machine_reads_it_or_not_at_all(unlearned):
    rng = np.random.default_rng(4)
    whole = pickled(row() | {"v": View(IDS, 70_000, (3, 7), (70_000, 2)), "w": IDS.astype(np.uint16)})
    learned(whole)
    n_recalled = 0
    for _ in range(4000):
        bad = bytearray(whole)
        for at in rng.integers(0, len(bad), rng.integers(1, 4)):
            bad[at] = rng.choice([0, 255, bad[at] ^ 1 << rng.integers(8)])
        recalled = pickle_shapes.recall(bytes(bad), {*row(), "v", "w"})
        n_recalled += recalled is not None
        assert recalled is None or recalled == root_of(bytes(bad))
    assert n_recalled > 100


# ---- whole files


def outcome(path: Path):
    items = []
    for item in read(path.parent, Shard(path.name, "torch", "s", 0)):
        if isinstance(item, Record):
            items.append((item.row, item.ids.tolist(), None if item.mask is None else item.mask.tolist()))
        else:
            items.append(item)
    return items


@pytest.mark.parametrize("end", [bytes, as_torch_ends_it])
def test_a_damaged_file_gives_the_same_rows_or_reasons_by_either_way(end, tmp_path, monkeypatch, unlearned):
    rng = np.random.default_rng(5)
    path = tmp_path / "data_0.ckpt"
    whole = end(saved({"input_ids": IDS[:20], "loss_mask": MASK[:20]}))
    files = [whole, end(saved({"input_ids": IDS[:21], "loss_mask": MASK[:21]}))]
    for _ in range(1000):
        bad = bytearray(whole)
        for at in rng.integers(0, len(bad), rng.integers(1, 3)):
            bad[at] = rng.choice([0, 255, bad[at] ^ 1 << rng.integers(8)])
        files.append(bytes(bad[: rng.integers(len(bad))] if rng.random() < 0.05 else bad))
    seen = []
    for data in files:
        path.write_bytes(data)
        seen.append(outcome(path))
    monkeypatch.setattr(zip_directory, "entries", lambda file, size: None)
    monkeypatch.setattr(pickle_shapes, "recall", lambda data, keys: None)
    for data, first in zip(files, seen, strict=True):
        path.write_bytes(data)
        assert outcome(path) == first
    assert [s[0][1] for s in seen[:2]] == [IDS[:20].tolist(), IDS[:21].tolist()]
    assert len({str(s) for s in seen}) > 8
