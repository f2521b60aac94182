"""The door of the readers: what is a shard, what is not, and one contract for every format."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shard_files
import zstandard
from shard_files import (
    MATRICES,
    STREAMS,
    WITHOUT_MASK,
    WRITERS,
    jsonl_bytes,
    parquet_bytes,
    safetensors_bytes,
    stream_bytes,
)

from promptkit.errors import UsageError
from promptkit.readers import READERS, Fault, FileAccount, Hints, Limits, Record, Shard, find_shards, read

PACK = {
    "gz": gzip.compress,
    "zst": lambda data: zstandard.ZstdCompressor().compress(data),
    "xz": lzma.compress,
    "bz2": bz2.compress,
}
ROWS = [([5, 6, 7], [0, 0, 1]), ([0, 163586, 9, 9], [0, 1, 1, 0]), ([1], [1])]


def rows_of(path: Path, limits: Limits | None = None) -> list[Record | Fault]:
    """Read one file as find_shards sees it."""
    tree = find_shards(path)
    if not tree.shards:
        return [Fault(None, a.status, a.reason) for a in tree.account]
    return list(read(tree.root, tree.shards[0], limits=limits))


def good(items: list[Record | Fault]) -> list[Record]:
    return [i for i in items if isinstance(i, Record)]


def reasons(items: list[Record | Fault]) -> list[tuple[int | None, str, str]]:
    return [(i.row, i.status, i.reason) for i in items if isinstance(i, Fault)]


EQUAL_LENGTHS = [([5, 6, 7], [0, 0, 1]), ([0, 163586, 9], [0, 1, 1])]


EOT = 128000  # of Llama 3: where llm.c's documents begin


def rows_for(name: str, rows, equal_rows):
    container = name.partition(".")[0]
    if name in STREAMS or container in STREAMS:
        return [([EOT, *ids], [0, *mask]) for ids, mask in rows]
    return equal_rows if container in MATRICES else rows


def write(name: str, rows, directory: Path) -> Path:
    """Write rows as a format has it, packed where its name says so; return the shard."""
    container, _, packing = name.partition(".")
    files = (shard_files.stream if name in STREAMS and container == "ids" else WRITERS[container])(rows)
    first = next(iter(files))
    for file, data in files.items():
        beside = file != first and container != "npy"  # what serves a shard is not packed with it
        packed = packing and not beside
        target = directory / (f"{file}.{packing}" if packed and file != "a.pkl" and container != "litdata" else file)
        target.write_bytes(PACK[packing](data) if packed else data)
    return next(p for p in (directory / first, directory / f"{first}.{packing}") if p.exists())


@pytest.mark.parametrize("name", READERS)
def test_every_format_gives_the_same_rows_whatever_the_file_is_called(name, tmp_path):
    rows = rows_for(name, ROWS, EQUAL_LENGTHS)
    path = write(name, rows, tmp_path)
    limits = Limits(hints=Hints(dtype="uint32", begins=(EOT,))) if name.startswith("ids") else None
    tree = find_shards(tmp_path, limits=limits)
    assert [(s.path, s.format, s.source, s.n_bytes) for s in tree.shards] == [
        (path.name, name, tmp_path.name, path.stat().st_size)
    ]
    assert {a.status for a in tree.account} <= {"skipped"}
    items = list(read(tmp_path, tree.shards[0], limits=limits))
    assert [i.row for i in items] == list(range(len(rows)))
    assert [i.ids.tolist() for i in items] == [ids for ids, _ in rows]
    masked = name not in WITHOUT_MASK and name.partition(".")[0] not in WITHOUT_MASK
    masks = [None if i.mask is None else i.mask.astype(int).tolist() for i in items]
    assert masks == [mask if masked else None for _, mask in rows]
    assert all(i.ids.dtype == np.int64 and (i.mask is None or i.mask.dtype == np.bool_) for i in items)
    assert tree.shards[0].n_rows in (None, len(rows))


@pytest.mark.parametrize("name", READERS)
def test_every_format_reports_a_cut_file_and_never_raises(name, tmp_path):
    container, _, packing = name.partition(".")
    rows = rows_for(name, many := [([i] * 50, [1] * 50) for i in range(200)], many)
    path = write(name, rows, tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3 + 1])
    limits = Limits(hints=Hints(dtype="uint32", begins=(EOT,))) if container == "ids" else None
    items = list(read(tmp_path, Shard(path.name, name, "s", 0), limits=limits))
    assert reasons(items)
    assert all(status == "failed" for _, status, _ in reasons(items))
    assert [r.row for r in good(items)] == list(range(len(good(items))))
    whole = {tuple(ids) for ids, _ in rows}
    for record in good(items)[:-1]:
        assert tuple(record.ids.tolist()) in whole
    if container == "jsonl" and packing in ("", "gz"):  # the others work in blocks larger than this file
        assert len(good(items)) > 50
    if container in ("arrow-stream", "arrow-file", "mds", "litdata", "tar", "npy") and not packing:
        assert len(good(items)) > 50


def test_a_missing_or_special_root_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError):
        find_shards(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError):
        find_shards(tmp_path / "pipe")


def test_a_file_that_vanishes_or_changes_is_a_fault(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl_bytes(ROWS))
    shard = find_shards(tmp_path).shards[0]
    items = read(tmp_path, shard)
    next(items)
    with open(path, "ab") as file:
        file.write(b"\n")
    assert reasons(list(items))[-1] == (None, "failed", "changed while reading")
    path.unlink()
    assert [r[:2] for r in reasons(list(read(tmp_path, shard)))] == [(None, "failed")]


def touch(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(jsonl_bytes(ROWS))


def test_first_level_directories_are_sources_and_containers_are_not(tmp_path):
    root = tmp_path / "mix"
    touch(root, "B/data/train/x.jsonl", "A/rows_0-2000/x.jsonl", "rows_0-2000/x.jsonl", "data/x.jsonl", "train/x.jsonl",
          "hidden_states/x.jsonl", "tokenized_dataset/x.jsonl", "top.jsonl")  # fmt: skip
    assert {s.path: s.source for s in find_shards(root).shards} == {
        "A/rows_0-2000/x.jsonl": "A", "B/data/train/x.jsonl": "B", "data/x.jsonl": "mix", "hidden_states/x.jsonl": "mix",
        "rows_0-2000/x.jsonl": "mix", "tokenized_dataset/x.jsonl": "mix", "top.jsonl": "mix", "train/x.jsonl": "mix",
    }  # fmt: skip


def test_shards_come_in_natural_order(tmp_path):
    touch(tmp_path, "A/data_10.ckpt", "A/data_2.ckpt", "A/data_1.ckpt", "A/data_02.ckpt")
    assert [s.path[2:] for s in find_shards(tmp_path).shards] == [
        "data_1.ckpt",
        "data_02.ckpt",
        "data_2.ckpt",
        "data_10.ckpt",
    ]


def test_everything_that_is_no_shard_is_in_the_account(tmp_path):
    root = tmp_path / "mix"
    touch(root, "A/good.jsonl", "A/a.jsonl.lock", "A/a.tmp", "A/tmpabc", "A/x.incomplete", "A/rows.errors.jsonl",
          "A/rows_skipped.jsonl", "outside/x.jsonl")  # fmt: skip
    (root / "outside").rename(tmp_path / "outside")
    (root / "A/empty.jsonl").touch()
    (root / "README.md").write_text("[a link](x) and text")
    (root / "B/inner").mkdir(parents=True)
    os.symlink("..", root / "A/loop")
    os.symlink("good.jsonl", root / "A/again.jsonl")
    os.symlink(tmp_path / "outside/x.jsonl", root / "A/out.jsonl")
    os.symlink("nowhere", root / "A/broken")
    os.mkfifo(root / "A/pipe")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(root / "A/sock"))
    os.symlink("pipe", root / "A/to_pipe")
    (root / "A/table.parquet").write_bytes(b"nothing of the kind")
    tree = find_shards(root)
    server.close()
    assert [s.path for s in tree.shards] == ["A/good.jsonl"]
    account = {a.path: (a.status, a.reason) for a in tree.account}
    assert account.pop("A/table.parquet") == (
        "failed",
        "named .parquet, but its first bytes are those of no known format",
    )
    assert {status for status, _ in account.values()} == {"skipped"}
    assert {path: reason.split(",")[0] for path, (_, reason) in account.items()} == {
        "A/a.jsonl.lock": "lock file", "A/a.tmp": "an unfinished write", "A/tmpabc": "an unfinished write",
        "A/x.incomplete": "an unfinished write", "A/rows.errors.jsonl": "rows that their generator gave up",
        "A/rows_skipped.jsonl": "rows that their generator gave up", "A/empty.jsonl": "empty file", "README.md": "not data",
        "B/inner": "empty directory: holds no file", "A/loop": "a link to a directory",
        "A/again.jsonl": "a link to a file of this root", "A/out.jsonl": "a link out of the root",
        "A/broken": "a link that leads nowhere", "A/pipe": "a FIFO", "A/sock": "a socket", "A/to_pipe": "a link to a FIFO",
    }  # fmt: skip


def test_tokenizer_files_are_hints_nearest_first(tmp_path):
    for path in (
        "deep/model/tokenizer.json",
        "tokenizer/tiktoken.model",
        "deep/tokenizer_config.json",
        "tokenizer/config.json",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("{}")
    tree = find_shards(tmp_path)
    assert tree.shards == []
    assert tree.tokenizer_dirs == ["deep", "tokenizer", "deep/model"]
    assert {a.status for a in tree.account} == {"skipped"}


def test_save_to_disk_reads_what_state_json_names(tmp_path):
    root = tmp_path / "mix/A"
    root.mkdir(parents=True)
    (root / "data-00000-of-00002.arrow").write_bytes(stream_bytes(ROWS))
    (root / "cache-123.arrow").write_bytes(stream_bytes(ROWS))
    (root / "dataset_info.json").write_text("{}")
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow", "../../x.arrow"]
    (root / "state.json").write_text(json.dumps({"_data_files": [{"filename": n} for n in names]}))
    (root / "hs").mkdir()
    (root / "hs/hs_0.safetensors").write_bytes(safetensors_bytes(EQUAL_LENGTHS))
    tree = find_shards(tmp_path / "mix")
    assert [(s.path, s.n_rows) for s in tree.shards] == [("A/data-00000-of-00002.arrow", 3)]
    assert {a.path: (a.status, a.reason) for a in tree.account} == {
        "A/cache-123.arrow": ("skipped", "not named by state.json: a cache beside the data set"),
        "A/data-00001-of-00002.arrow": ("failed", "named by state.json, but missing"),
        "A/state.json": ("skipped", "metadata of a data set, not samples"),
        "A/dataset_info.json": ("skipped", "metadata of a data set, not samples"),
        "A/hs/hs_0.safetensors": ("skipped", "hidden states of rows that the Arrow files hold"),
    } | {"A/state.json": ("skipped", "metadata of a data set, not samples")}


def test_names_that_are_not_utf8_can_be_shown_and_read(tmp_path):
    raw = os.path.join(os.fsencode(tmp_path), b"caf\xe9", b"new\nline\xff.jsonl")
    os.mkdir(os.path.dirname(raw))
    with open(raw, "wb") as file:
        file.write(jsonl_bytes(ROWS))
    (shard,) = find_shards(tmp_path).shards
    assert (shard.path, shard.source) == ("caf\\xe9/new\nline\\xff.jsonl", "caf\\xe9")
    shard.path.encode("utf-8")
    assert len(good(list(read(tmp_path, shard)))) == 3


def test_a_file_that_may_be_listed_and_not_looked_at_is_lost_alone(tmp_path, monkeypatch):
    # as in a directory with r and without x, which is no obstacle to a test that runs as root
    class Listing(list):
        __enter__ = close = __exit__ = lambda self, *_: self

    class Entry:
        name, path = "a.jsonl", str(tmp_path / "a.jsonl")

        def stat(self, *, follow_symlinks):
            raise PermissionError(13, "Permission denied", self.path)

    (tmp_path / "b.jsonl").write_bytes(jsonl_bytes(ROWS))
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: Listing([Entry(), *real(path)]))
    tree = find_shards(tmp_path)
    assert [s.path for s in tree.shards] == ["b.jsonl"]
    assert [(a.path, a.status, a.reason) for a in tree.account] == [
        ("a.jsonl", "failed", "cannot be read: Permission denied")
    ]


def test_arrow_and_parquet_under_names_that_are_not_utf8_are_read(tmp_path):
    table = pa.table({"input_ids": [ids for ids, _ in ROWS], "loss_mask": [mask for _, mask in ROWS]})
    folder = os.path.join(os.fsencode(tmp_path), b"bad\xff")
    os.mkdir(folder)
    pq.write_table(table, tmp_path / "p")
    with pa.ipc.new_stream(tmp_path / "s", table.schema) as out:
        out.write_table(table)
    with pa.ipc.new_file(tmp_path / "f", table.schema) as out:
        out.write_table(table)
    for name in ("p", "s", "f"):
        os.rename(tmp_path / name, os.path.join(folder, name.encode() + b"\xfe.bin"))
    tree = find_shards(tmp_path)
    assert [s.n_rows for s in tree.shards if s.format == "parquet"] == [3]
    assert [len(good(list(read(tmp_path, s)))) for s in tree.shards] == [3, 3, 3]


@pytest.mark.parametrize(
    ("data", "status", "what"),
    [
        (b"MMIDIDX\0\0", "failed", "Megatron"),
        (b"GGUF\x03", "failed", "GGUF"),
        (b"\x89HDF\r\n\x1a\n", "failed", "HDF5"),
        (b"PARE" + b"\0" * 20, "failed", "encrypted"),
        (b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", "failed", "1.6"),
        (
            b"\x80\x04\x95\x1b\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
            "failed",
            "'posix.system'",
        ),
        (b"cos\nsystem\n(S'x'\ntR.", "skipped", "not data"),
        (b"\x80\x04K\x01.", "failed", "Python pickle"),
        (b"some text", "skipped", "not data"),
    ],
)
def test_other_containers_are_named_and_not_opened(data, status, what, tmp_path):
    (tmp_path / "file").write_bytes(data)
    (entry,) = find_shards(tmp_path).account
    assert entry.status == status
    assert what in entry.reason


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("shard.00000.mds.br", b"\x1bW\x02\xf8\x8d\x94n\xde", "Brotli"),
        ("shard.00000.mds.snappy", b"\xd8\x04\x14hello \xfe\x06\x00", "Snappy"),
        ("rows.jsonl", b"\xff\x06\x00\x00sNaPpY\x01\x0a", "Snappy"),
        ("rows.jsonl", b"\x04\x22\x4d\x18\x64\x40\xa7", "LZ4"),
    ],
)
def test_compressions_that_are_not_read_are_named(name, data, what, tmp_path):
    (tmp_path / name).write_bytes(data)
    if ".mds" in name:  # also where an index promises the shard
        shards = [
            {"format": "mds", "version": 2, "raw_data": {"basename": "shard.00000.mds"}, "zip_data": {"basename": name}}
        ]
        (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    account = {a.path: (a.status, a.reason) for a in find_shards(tmp_path).account}
    assert account[name] == ("failed", f"packed with {what}, not read: unpack it, or write it with zstd")


def test_parquet_inside_gzip_is_named(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(parquet_bytes(ROWS)))
    assert [(a.status, a.reason) for a in find_shards(tmp_path).account] == [
        ("failed", "parquet inside gz: unpack it first")
    ]


def test_an_account_counts_what_a_reader_gives():
    account = FileAccount("a")
    for item in (Record(0), Fault(1, "failed", "x"), Fault(2, "skipped", "y"), Fault(3, "failed", "x"), Record(4)):
        account.count(item)
    assert (account.status, account.rows, account.rows_failed, account.rows_skipped) == ("read", 2, 2, 1)
    assert account.row_reasons == {"x": 2, "y": 1}
    account.count(Fault(None, "failed", "cut"))
    assert (account.status, account.reason, account.rows) == ("failed", "cut", 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork beside threads: the child does little and leaves
def test_a_permission_is_a_fault_and_not_an_end(tmp_path):
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    touch(tmp_path, "A/closed.jsonl", "A/open.jsonl", "B/closed/x.jsonl")
    shard = next(s for s in find_shards(tmp_path).shards if s.path == "A/closed.jsonl")
    (tmp_path / "A/closed.jsonl").chmod(0)
    (tmp_path / "B/closed").chmod(0)
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(tmp_path)  # its parents are closed to other users
            os.chmod(".", 0o755)
            os.setuid(65534)
            tree = find_shards(Path("."))
            seen = [
                [s.path for s in tree.shards],
                [[a.path, a.status] for a in tree.account],
                reasons(list(read(".", shard))),
            ]
            os.write(into, json.dumps(seen).encode())
        finally:
            os._exit(0)
    os.close(into)
    os.waitpid(child, 0)
    with open(out) as file:
        shards, account, faults = json.load(file)
    assert (shards, account) == (["A/open.jsonl"], [["A/closed.jsonl", "failed"], ["B/closed", "failed"]])
    assert faults == [[None, "failed", "cannot be read: Permission denied"]]


def test_torch_is_never_imported(tmp_path):
    for name in WRITERS:
        (tmp_path / name).mkdir()
        write(name, rows_for(name, EQUAL_LENGTHS, EQUAL_LENGTHS), tmp_path / name)
    program = (
        "import sys; from promptkit.readers import find_shards, read; t = find_shards(sys.argv[1]);"
        "n = sum(1 for s in t.shards for _ in read(t.root, s)); print(n, 'torch' in sys.modules, 'datasets' in sys.modules)"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout.split() == [str(2 * len(WRITERS) - 2), "False", "False"]  # Dolma's ids are too few to be told


def test_sums_match_over_a_whole_tree(tmp_path):
    touch(tmp_path, "A/a.jsonl", "A/b.jsonl")
    (tmp_path / "A/b.jsonl").write_bytes(jsonl_bytes(ROWS) + b'{"input_ids": [1.5]}\n{"input_ids": [], "id": "x"}\n')
    tree = find_shards(tmp_path)
    total: Counter[str] = Counter()
    for shard in tree.shards:
        account = FileAccount(shard.path)
        for item in read(tree.root, shard):
            account.count(item)
        total.update(rows=account.rows, failed=account.rows_failed, skipped=account.rows_skipped)
    assert total == {"rows": 6, "failed": 1, "skipped": 1}


def test_what_is_packed_more_than_twice_is_failed_and_not_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(bz2.compress(gzip.compress(b'{"text": "x"}\n'))))
    (entry,) = find_shards(tmp_path).account
    assert (entry.status, entry.reason) == ("failed", "packed more than twice: unpack it first")
