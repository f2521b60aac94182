"""Torch files: views, dtypes, byte orders, packed files, and pickles that must not run."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch_files
from hypothesis import given, settings
from hypothesis import strategies as st
from test_readers import good, reasons, rows_of
from torch_files import Global, View

from promptkit.readers import Limits, Record, Shard, find_shards, read, torch_zip
from promptkit.readers.pickles import Machine
from promptkit.readers.records import BadFile

IDS, MASK = np.arange(100, 110), np.array([0, 0, 1, 1, 1, 0, 0, 1, 1, 0])
HIDDEN = np.zeros((1, 10, 64), np.float32)


def saved(value, **how) -> bytes:
    file = io.BytesIO()
    torch_files.save(value, file, **how)
    return file.getvalue()


def items_of(tmp_path: Path, data: bytes, name: str = "torch", limits: Limits | None = None):
    (tmp_path / "data_0.ckpt").write_bytes(data)
    return list(read(tmp_path, Shard("data_0.ckpt", name, "s", len(data)), limits=limits))


def only(items) -> Record:
    (item,) = items
    assert isinstance(item, Record), item
    return item


SPECFORGE = {"input_ids": IDS, "loss_mask": MASK, "aux_hidden_state": HIDDEN, "hidden_state": HIDDEN}


def test_one_dict_is_one_row(tmp_path):
    row = only(items_of(tmp_path, saved(SPECFORGE)))
    assert (row.row, row.ids.tolist(), row.mask.tolist()) == (0, IDS.tolist(), (MASK == 1).tolist())


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "uint8", "int8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("order", ["little", "big"])
def test_every_integer_width_and_byte_order(dtype, order, tmp_path):
    data = saved({"input_ids": IDS.astype(dtype)[None], "loss_mask": MASK.astype(bool)[None]}, order=order)
    row = only(items_of(tmp_path, data))
    assert row.ids.dtype == np.int64
    assert row.ids.tolist() == IDS.tolist()
    assert row.mask.tolist() == (MASK == 1).tolist()


def test_a_view_is_read_through_its_offset_and_strides(tmp_path):
    storage = np.arange(1000)
    data = saved({"input_ids": View(storage, 10, (1, 5), (7, 3)), "loss_mask": View(storage % 2, 0, (5,), (0,))})
    row = only(items_of(tmp_path, data))
    assert row.ids.tolist() == [10, 13, 16, 19, 22]
    assert row.mask.tolist() == [False] * 5


def test_hidden_states_are_not_read(tmp_path, monkeypatch):
    data = saved({"input_ids": IDS, "loss_mask": MASK, "hidden_state": np.zeros(4 << 20, np.float32)})
    path = tmp_path / "a.ckpt"
    path.write_bytes(data)
    amount = []

    class Counting(io.FileIO):
        def readinto(self, buffer):
            n = super().readinto(buffer)
            amount.append(n)
            return n

    from promptkit.readers import torch_zip

    with io.BufferedReader(Counting(path)) as file:
        row = only(torch_zip.read_file(file, Limits()))
    assert row.ids.tolist() == IDS.tolist()
    assert sum(amount) < 200_000 < len(data)


def test_a_list_of_dicts_is_a_cache_of_rows(tmp_path):
    rows = [
        {"data_id": f"r{i}", "formatted_prompt": f"<|im_user|>{i}" * 100, "input_ids": IDS[None] + i, "metadata": {},
         "packed_loss_mask": "2,3,2,2,1", "multimodal_inputs": None}
        for i in range(5)
    ]  # fmt: skip
    items = items_of(tmp_path, saved([*rows, 7, {"input_ids": IDS, "packed_loss_mask": "1"}]))
    assert [(r.row, r.id, r.text, r.ids.tolist()) for r in good(items)] == [
        (i, f"r{i}", f"<|im_user|>{i}" * 100, (IDS + i).tolist()) for i in range(5)
    ]
    assert good(items)[0].mask.astype(int).tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 1, 0]
    assert reasons(items) == [
        (5, "failed", "no known field: the item is a int"),
        (6, "failed", "packed_loss_mask has another length than the ids"),
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"d2t": IDS, "t2d": MASK.astype(bool)}, "vocabulary mapping, not samples"),
        ({0: 5, 1: 7}, "not samples: keys 0, 1"),
        ({"weight": HIDDEN}, "not samples: keys weight"),
        (HIDDEN, "not samples: a tensor"),
        ("text", "not samples: a str"),
    ],
)
def test_other_torch_files_are_skipped(value, reason, tmp_path):
    assert reasons(items_of(tmp_path, saved(value))) == [(None, "skipped", reason)]


def test_a_vocabulary_mapping_is_evidence(tmp_path):
    (tmp_path / "A").mkdir()
    (tmp_path / "A/vocab_mapping.pt").write_bytes(saved({"d2t": IDS, "t2d": np.zeros(163840, bool)}))
    tree = find_shards(tmp_path)
    assert (tree.shards, tree.evidence["target_vocab_size"]) == ([], 163840)
    assert [(a.path, a.status, a.reason) for a in tree.account] == [
        ("A/vocab_mapping.pt", "skipped", "vocabulary mapping, not samples")
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"input_ids": IDS.astype(np.float32)}, "ids or mask are stored as floats"),
        (
            {"input_ids": np.zeros((3, 4), np.int64)},
            "input_ids has 2 dimensions or several rows: a batch, not a sample",
        ),
        ({"input_ids": View(IDS, 5, (10,), (1,))}, "damaged torch file: a storage is shorter than its tensor"),
        ({"input_ids": View(IDS, 0, (1 << 40,), (1,))}, "record larger than 67108864 bytes (--record-bytes)"),
        ({"input_ids": View(IDS, 0, (1 << 40,), (0,))}, "record larger than 67108864 bytes (--record-bytes)"),
        ({"input_ids": IDS, "loss_mask": MASK[:5]}, "loss_mask has another length than the ids"),
    ],
)
def test_bad_tensors_fail_their_row(value, reason, tmp_path):
    assert reasons(items_of(tmp_path, saved(value))) == [(0, "failed", reason)]


class Evil:
    def __reduce__(self):
        return open, ("promptkit_marker", "w")


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "builtins.getattr", "torch.load", "numpy.core.multiarray.scalar"]
)
def test_a_refused_global_is_named_and_not_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    poison = Global(name, ("touch promptkit_marker",))
    ((row, status, reason),) = reasons(items_of(tmp_path, saved({"input_ids": IDS, "loss_mask": poison})))
    assert (row, status) == (None, "failed")
    assert repr(name) in reason
    ((_, _, packed),) = reasons(items_of(tmp_path, gzip.compress(saved({"input_ids": poison})), "torch.gz"))
    assert packed == reason
    assert not os.path.exists("promptkit_marker")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_poisoned_pickle_is_named_by_the_walk(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache.pkl").write_bytes(pickle.dumps({"input_ids": Evil()}, protocol))
    ((_, status, reason),) = reasons(rows_of(tmp_path / "cache.pkl"))
    assert status == "failed"
    assert "open'" in reason
    assert "nothing was run" in reason
    assert not os.path.exists("promptkit_marker")


@pytest.mark.parametrize(
    "program",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02}q\x00X\xff\xff\xff\xffab.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",  # BINBYTES8 of 2**63 bytes
        b"\x80\x02r\xff\xff\xff\xff.",  # LONG_BINPUT far out, on an empty stack
        b"\x80\x02Nr\xff\xff\xff\xff0N.",  # the same with a value: the C unpickler would allocate 32 GiB
        b"\x80\x02" + b"(" * 100_000 + b".",
        b"\x80\x02" + b")" + b"\x85" * 100_000 + b"}(" + b"h\x00" + b"u.",
        b"\x80\x02}(" + b")" + b"\x85" * 100_000 + b"Nu.",  # a key whose hash would overflow the C stack
        b"\x80\x02(iposix\nsystem\n.",
        b"\x80\x02\x82\x01.",  # an extension code
        b"\x80\x02Nb.",
        b"\x80\x02)R.",
        b"\x80\x02ccollections\nOrderedDict\n}(NNutR.",
        b"\x80\x02ctorch\nLongStorage\n)R.",
        b"\x80\x02X\x01\x00\x00\x00a\x85Q.",
    ],
)
def test_malformed_pickles_end_in_one_fault(program, tmp_path):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", program)
    (fault,) = items_of(tmp_path, file.getvalue())
    assert (fault.row, fault.status) in ((None, "failed"), (None, "skipped"))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.tuples(inner, inner) | st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(plain, st.sampled_from([2, 3, 4, 5]))
def test_plain_pickles_are_read_as_pickle_reads_them(value, protocol):
    data = pickle.dumps({"v": value}, protocol)
    machine = Machine(data)
    if b"c_codecs\nencode" in data or b"c__builtin__\nbytes" in data:  # protocol 2 writes bytes as a call
        assert protocol == 2
        with pytest.raises(BadFile, match=r"encode|bytes"):
            machine.run()
    else:
        assert machine.whole(machine.run()) == {"v": value}


def test_a_text_that_comes_back_from_the_memo_is_the_same(tmp_path):
    long = "x" * 1000
    machine = Machine(pickle.dumps({"a": long, "b": long, "c": [long, "y" * 300]}, 4))
    assert machine.whole(machine.run()["c"]) == [long, "y" * 300]
    row = {"text": long, "id": "r"}
    machine = Machine(pickle.dumps([row, {"text": long}, row], 2))
    assert [machine.whole(item) for item in machine] == [row, {"text": long}, row]


def test_a_value_that_holds_itself_over_and_over_is_refused(tmp_path):
    laughs = b"(X\x02\x00\x00\x00haq\x00" + b"h\x00" * 9 + b"l"
    for level in range(1, 30):
        laughs = b"(" + laughs + b"q" + bytes([level]) + (b"h" + bytes([level])) * 9 + b"l"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}X\x08\x00\x00\x00messages" + laughs + b"s.")
    assert reasons(items_of(tmp_path, file.getvalue())) == [(0, "failed", "its pickle repeats itself without bound")]


@pytest.mark.parametrize("how", ["compressed", "overlap", "crc", "no pickle", "cut", "same names", "beyond"])
def test_odd_archives_are_refused(how, tmp_path):
    data = bytearray(saved(SPECFORGE))
    if how == "compressed":
        data = bytearray(saved(SPECFORGE, compression=zipfile.ZIP_DEFLATED))
    elif how == "crc":
        at = data.index(IDS.astype(np.int64).tobytes())
        data[at] ^= 1
    elif how == "cut":
        data = data[: len(data) // 2]
    elif how == "no pickle":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("word/document.xml", "x")
        data = bytearray(file.getvalue())
    elif how == "same names":
        file = io.BytesIO(bytes(data))
        with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(file, "a") as archive:
            archive.writestr("archive/data/0", "x")
        data = bytearray(file.getvalue())
    else:  # point the directory entry of storage 1 to storage 0, or behind the end
        at = data.index(b"archive/data/1", data.index(b"PK\x01\x02")) - 4
        first = data.index(b"archive/data/0", data.index(b"PK\x01\x02")) - 4
        data[at : at + 4] = data[first : first + 4] if how == "overlap" else (len(data) - 200).to_bytes(4, "little")
    (fault,) = items_of(tmp_path, bytes(data))
    assert fault.status == ("skipped" if how == "no pickle" else "failed")


def gz_of_torch(value) -> bytes:
    """Gzip around a ZIP with sizes behind the data, as torch writes it to a stream."""

    class Unseekable(io.RawIOBase):
        def __init__(self):
            self.data = bytearray()

        def writable(self):
            return True

        def write(self, data):
            self.data += data
            return len(data)

    file = Unseekable()
    torch_files.save(value, file)
    return gzip.compress(bytes(file.data), 6)


def test_gzip_is_inflated_no_further_than_needed(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, 8 << 20, dtype=np.uint8)
    data = gz_of_torch({"input_ids": IDS, "loss_mask": MASK, "hidden_state": noise})
    row = only(items_of(tmp_path, data, "torch.gz"))
    assert (row.ids.tolist(), row.mask.tolist()) == (IDS.tolist(), (MASK == 1).tolist())
    # what lies behind the ids and the mask is never looked at: a cut there is not seen
    assert only(items_of(tmp_path, data[: len(data) // 2], "torch.gz")).ids.tolist() == IDS.tolist()


def test_zeros_before_the_ids_are_no_bomb(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, 400_000, dtype=np.uint8)
    value = {"hidden_state": np.zeros(20 << 20, np.uint8), "more": noise, "input_ids": IDS, "loss_mask": MASK}
    assert only(items_of(tmp_path, gz_of_torch(value), "torch.gz")).ids.tolist() == IDS.tolist()


def test_gzip_in_another_order_is_read_all_the_same(tmp_path):
    value = {"hidden_state": np.zeros(100, np.uint8), "input_ids": IDS, "loss_mask": MASK}
    for data in (gzip.compress(saved(value)), gz_of_torch(value), gzip.compress(saved(value, order="big"))):
        assert only(items_of(tmp_path, data, "torch.gz")).ids.tolist() == IDS.tolist()


def test_real_torch_files_are_read(tmp_path):
    torch = pytest.importorskip("torch")
    base = torch.arange(50)
    value = {
        "input_ids": base[3:43:4],
        "loss_mask": torch.nn.Parameter(torch.from_numpy(MASK.copy()), requires_grad=False),
        "aux_hidden_state": torch.zeros(1, 10, 24, dtype=torch.bfloat16),
        "attention_mask": torch.ones(10, dtype=torch.uint16),
        "conversation_id": "c7",
    }
    torch.save(value, tmp_path / "data_0.ckpt")
    with gzip.open(tmp_path / "data_1.ckpt.gz", "wb") as file:
        torch.save(value, file)
    torch.save([value, value], tmp_path / "list.pt")
    tree = find_shards(tmp_path)
    assert [(s.path, s.format, s.n_rows) for s in tree.shards] == [
        ("data_0.ckpt", "torch", 1), ("data_1.ckpt.gz", "torch.gz", 1), ("list.pt", "torch", None),
    ]  # fmt: skip
    for shard, n in zip(tree.shards, (1, 1, 2), strict=True):
        items = list(read(tmp_path, shard))
        assert [(i.row, i.ids.tolist(), i.mask.astype(int).tolist(), i.id) for i in items] == [
            (k, list(range(3, 43, 4)), MASK.tolist(), "c7") for k in range(n)
        ]


def test_a_small_checkpoint_takes_less_than_a_millisecond(tmp_path):
    data = saved(SPECFORGE)
    (tmp_path / "data_0.ckpt").write_bytes(data)
    shard = Shard("data_0.ckpt", "torch", "s", len(data))
    start = time.process_time()
    for _ in range(200):
        only(read(tmp_path, shard))
    assert time.process_time() - start < 200 * 0.002  # twice the promise: the machine may be busy


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_damage_gives_a_row_or_a_fault(tmp_path_factory, data):
    tmp_path = tmp_path_factory.mktemp("damage")
    packed = data.draw(st.booleans())
    good_bytes = (gz_of_torch if packed else saved)(
        {"input_ids": IDS, "loss_mask": MASK, "hidden_state": HIDDEN[:, :2]}
    )
    bad = bytearray(good_bytes[: data.draw(st.integers(0, len(good_bytes)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if bad:
            bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    items = items_of(tmp_path, bytes(bad), "torch.gz" if packed else "torch")
    assert len(items) <= 1 or items[-1].row is None


def test_every_flipped_byte_of_a_small_file_is_survived(tmp_path):
    whole = saved({"input_ids": IDS[:2], "loss_mask": MASK[:2]})
    for i in range(len(whole)):
        bad = bytearray(whole)
        bad[i] ^= 0xFF
        items = items_of(tmp_path, bytes(bad))
        assert len(items) in (0, 1)
        if items and isinstance(items[0], Record):
            assert items[0].ids.tolist() == IDS[:2].tolist(), "a flip in the ids passed in silence"


def test_a_file_system_that_gives_a_part_at_a_time_is_read_to_the_end(tmp_path):
    class Parts(io.FileIO):
        def read(self, n=-1):
            return super().read(min(n, 700) if n > 700 and self.tell() < self.whole else n)

    path = tmp_path / "data_0.ckpt"
    path.write_bytes(saved({"input_ids": np.arange(9000) % 250, "loss_mask": np.ones(9000, np.int64)}))
    with Parts(path) as file:
        file.whole = path.stat().st_size - 4096  # the ZIP directory
        [found] = torch_zip.read_file(file, Limits())
    assert found.ids.tolist() == (np.arange(9000) % 250).tolist()
