"""Old or new, never torn: every write, flush and rename fails once, and nothing half-written is left."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from promptkit import writing
from promptkit.errors import ResourceError, UsageError

CALLS = ("open", "write", "fsync", "rename", "replace", "mkdir")


class Failing:
    """Make the k-th of the counted system calls fail; `reached` says whether it came to that."""

    def __init__(self, monkeypatch, k, code=errno.ENOSPC, calls=CALLS):
        self.n, self.reached = 0, False
        for name in calls:
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name), k, code))
        swap = writing._swap
        monkeypatch.setattr(writing, "_swap", self.wrap(swap, k, code))

    def wrap(self, real, k, code):
        def call(*args, **kwargs):
            self.n += 1
            if self.n == k:
                self.reached = True
                raise OSError(code, os.strerror(code))
            return real(*args, **kwargs)

        return call


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def publish_directory(out, text):
    with writing.temporary_beside(out / "work", directory=True) as work:
        writing.write_new(work / "d" / "a", text)
        writing.write_new(work / "d" / "sub" / "b", text * 2)
        writing.publish(work / "d", out / "deep" / "d")


def failures(run, check, monkeypatch):
    """Run with the 1st, 2nd, ... call failing until none is left to fail; return how many there were."""
    for k in range(1, 200):
        with monkeypatch.context() as patch:
            failing = Failing(patch, k)
            try:
                run()
                done = True
            except ResourceError:
                done = False
        check(done)
        if not failing.reached:
            return k - 1
    raise AssertionError("never ran through")


def test_every_failing_call_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    target = tmp_path / "deep" / "file"
    seen = set()

    def run():
        if target.exists():
            target.write_bytes(b"old")
        writing.write_file(target, b"new")

    def check(done):
        here = tree(tmp_path)
        assert not done or here == {"deep/file": b"new"}
        assert here in ({}, {"deep/file": b"old"}, {"deep/file": b"new"})
        assert here or not (tmp_path / "deep").exists()
        seen.add(here.get("deep/file"))

    assert failures(run, check, monkeypatch) >= 5
    assert None in seen
    assert b"new" in seen


@pytest.mark.parametrize("before", [False, True])
def test_every_failing_call_leaves_the_old_directory_or_the_new_one(tmp_path, monkeypatch, before):
    old = {"deep/d/a": b"1", "deep/d/sub/b": b"11"} if before else {}
    new = {"deep/d/a": b"2", "deep/d/sub/b": b"22"}
    if before:
        publish_directory(tmp_path, b"1")

    def check(done):
        assert tree(tmp_path) in ([new] if done else [old, new])
        assert not list(tmp_path.rglob("*.tmp"))

    assert failures(lambda: publish_directory(tmp_path, b"2"), check, monkeypatch) >= 8
    assert tree(tmp_path) == new


def test_a_directory_is_replaced_where_names_cannot_be_exchanged(tmp_path, monkeypatch):
    publish_directory(tmp_path, b"1")
    monkeypatch.setattr(writing, "_swap", lambda a, b: False)
    publish_directory(tmp_path, b"2")
    assert tree(tmp_path) == {"deep/d/a": b"2", "deep/d/sub/b": b"22"}


def test_a_failed_second_rename_brings_the_old_directory_back(tmp_path, monkeypatch):
    publish_directory(tmp_path, b"1")
    monkeypatch.setattr(writing, "_swap", lambda a, b: False)
    real, n = os.rename, iter(range(9))

    def rename(a, b):
        if next(n) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(a, b)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(ResourceError):
        publish_directory(tmp_path, b"2")
    assert tree(tmp_path) == {"deep/d/a": b"1", "deep/d/sub/b": b"11"}


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="directories are exchanged in one step there only")
def test_a_reader_never_misses_a_directory_that_is_replaced(tmp_path):
    publish_directory(tmp_path, b"0")
    stop, missed = threading.Event(), []

    def read():
        while not stop.is_set():
            try:
                os.stat(tmp_path / "deep" / "d" / "a")
            except FileNotFoundError:
                missed.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(100):
        publish_directory(tmp_path, b"%d" % i)
    stop.set()
    reader.join()
    assert not missed


def test_full_disk_message_has_path_needed_and_free_bytes(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ResourceError, match=r"file: no space left .* 5 bytes needed, [\d,]+ bytes free"):
        writing.write_file(tmp_path / "file", b"12345")


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(data)[:3]))
    writing.write_file(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_block_that_raises_leaves_nothing_and_its_error_comes_through(tmp_path):
    def half():
        with writing.temporary_beside(tmp_path / "new" / "file") as temporary:
            temporary.write_bytes(b"half")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        half()
    assert not list(tmp_path.iterdir())


def test_a_file_never_replaces_a_directory(tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(UsageError, match="is a directory"):
        writing.write_file(tmp_path / "d", b"x")
    with pytest.raises(UsageError, match="is a directory"):
        writing.check_writable(tmp_path / "d")


def test_a_path_below_a_file_is_refused_before_work(tmp_path):
    (tmp_path / "f").write_bytes(b"")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("f", "dangling"):
        with (
            pytest.raises(UsageError, match=f"{name}: is no directory"),
            writing.temporary_beside(tmp_path / name / "x", directory=True),
        ):
            pass
    with pytest.raises(UsageError, match="not a directory"):
        writing.check_writable(tmp_path / "f" / "out.jsonl")
    with pytest.raises(UsageError, match="is a file"), writing.only_one(tmp_path / "f"):
        pass


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="drops to another user, which takes root")
def test_no_permission_is_refused_before_work(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.owner() == "root" and folder != Path("/") and "pytest" in str(folder):
            folder.chmod(0o755)
    code = (
        "import os, sys\nfrom promptkit import writing, errors\nos.setuid(65534)\n"
        "try:\n    writing.check_writable(sys.argv[1])\nexcept errors.UsageError as e:\n    print(e)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    told = subprocess.run([sys.executable, "-c", code, str(closed / "f")], capture_output=True, text=True, env=env)
    assert "no permission to write" in told.stdout, told.stderr


def test_second_writer_is_refused_and_told_who_holds(tmp_path):
    out = tmp_path / "out"
    code = "import sys\nfrom promptkit import writing\nwith writing.only_one(sys.argv[1]):\n    print('x', flush=True); input()\n"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    )
    try:
        assert holder.stdout.readline() == b"x\n"
        with pytest.raises(UsageError, match=f"process {holder.pid}"), writing.only_one(out):
            pass
    finally:
        holder.kill()  # as a crash would: the lock must not outlive it
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    (out / ".pack.0123456789ab.tmp").mkdir()
    with writing.only_one(out):
        assert [p.name for p in out.iterdir()] == [".lock"]
    assert list(out.iterdir()) == []


def test_a_refused_run_leaves_no_empty_output_folder(tmp_path):
    with pytest.raises(KeyError), writing.only_one(tmp_path / "a" / "out"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_work_is_not_blamed_on_the_place(tmp_path):
    shard = PermissionError(errno.EACCES, "Permission denied", "shard")
    with pytest.raises(PermissionError) as error, writing.only_one(tmp_path / "out"):
        raise shard
    assert error.value is shard


def test_room_is_told_as_it_was_when_the_disk_was_full(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_free", lambda path: 9 if list(tmp_path.iterdir()) else 1000)

    def fill() -> None:
        with writing.temporary_beside(tmp_path / "a") as temporary:
            temporary.write_bytes(b"x")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ResourceError, match=r", 9 bytes free"):
        fill()


def test_ctrl_c_while_clearing_up_leaves_nothing(tmp_path, monkeypatch):
    real, calls = writing._remove, []

    def interrupted(path):
        calls.append(path)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(path)

    monkeypatch.setattr(writing, "_remove", interrupted)
    with pytest.raises(KeyboardInterrupt), writing.temporary_beside(tmp_path / "a", directory=True) as work:
        (work / "part").write_bytes(b"x")
    assert not list(tmp_path.iterdir())
