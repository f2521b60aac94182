"""Parts: any number of workers, killed or not, give what one build gives; nothing is done twice or mistaken."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from promptkit import collect, parts, pipeline
from promptkit.errors import InputError, IntegrityError, UsageError

KILLED = """
import os, signal, sys
from promptkit import collect, parts, pipeline, writing
collect.UNIT_FILES = 1
left = [int(sys.argv[3])]
flush = writing.publish
def publish(temporary, target):
    if str(target).endswith(".npz"):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)  # the part is written and has no name yet
    flush(temporary, target)
writing.publish = publish
pipeline.work(sys.argv[1], parts=sys.argv[2], worker=(1, 3), sample_size=40)
"""


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr(collect, "UNIT_FILES", 1)


@pytest.fixture
def mix(tmp_path):
    """Seven files in two sources; texts of the one, ids of none."""
    rng = random.Random(3)
    words = ["sort", "merge", "list", "array", "pivot", "index", "table", "query", "find", "grep", "files", "select"]
    for k in range(7):
        rows = []
        for _ in range(rng.randrange(20, 40)):
            text = " ".join(rng.choices(words, k=12))
            rows.append({"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}]})
        path = tmp_path / "mix" / ("a", "b")[k % 2] / f"part-{k}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return tmp_path / "mix"


def tree(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(Path(root).rglob("*")) if p.is_file()}


def of_build(built):
    return tree(built.reference) | tree(built.pack) | {"account": repr(built.account).encode()}


def alike(a, b):
    """Compare two gathered summaries by all that they hold."""
    rows = [
        sorted((r.priority, r.shard, r.record.row, repr(r.record.messages), repr(r.record.ids)) for r in s.sample)
        for s in (a, b)
    ]
    return rows[0] == rows[1] and (a.sources, a.lengths, a.account) == (b.sources, b.lengths, b.account)


@pytest.mark.parametrize("n", [1, 3])
def test_workers_in_any_order_give_the_bytes_of_one_build(mix, tmp_path, n):
    workers = list(range(n))
    random.Random(n).shuffle(workers)
    for i in workers:
        pipeline.work(mix, parts=tmp_path / "p", worker=(i, n), sample_size=40)
    plain = pipeline.build(mix, out=tmp_path / "one", size=5, sample_size=40, name="mix")
    moved = shutil.move(mix, tmp_path / "elsewhere")  # the directory need not be there
    merged = pipeline.merge(tmp_path / "p", out=tmp_path / "two", size=5, name="mix")
    assert of_build(merged) == of_build(plain)
    assert Path(moved).is_dir()


def test_a_killed_worker_leaves_no_half_part_and_costs_only_what_it_was_at(mix, tmp_path):
    folder = tmp_path / "p"
    run = subprocess.run(
        [sys.executable, "-c", KILLED, mix, folder, "1"], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    )
    assert run.returncode == -signal.SIGKILL
    assert len(list(folder.glob("*.npz"))) == 1
    for i in (0, 2):
        pipeline.work(mix, parts=folder, worker=(i, 3), sample_size=40)
    with pytest.raises(InputError, match=r"1 of 7 parts are missing: [ab]/part-\d\.jsonl"):
        parts.gather(folder)
    assert pipeline.work(mix, parts=folder, worker=(1, 3), sample_size=40) == (1, 1)
    opened = collect.open_directory(mix)
    assert alike(parts.gather(folder).summary, collect.collect(opened, sample_size=40, seed=0, merge_prefixes=True))
    assert pipeline.work(mix, parts=folder, worker=(0, 1), sample_size=40) == (0, 7)


def test_changed_files_and_options_are_other_parts(mix, tmp_path):
    folder = tmp_path / "p"
    assert pipeline.work(mix, parts=folder, worker=(0, 1), sample_size=40) == (7, 0)
    assert pipeline.work(mix, parts=folder, worker=(0, 1), sample_size=41) == (7, 0)
    assert pipeline.work(mix, parts=folder, worker=(0, 1), sample_size=40, seed=1) == (7, 0)
    file = mix / "a" / "part-0.jsonl"
    file.write_text(file.read_text() * 2)
    done, found = pipeline.work(mix, parts=folder, worker=(0, 1), sample_size=40)
    assert done >= 1
    assert done + found >= 7
    now = collect.collect(collect.open_directory(mix), sample_size=40, seed=0, merge_prefixes=True)
    assert alike(parts.gather(folder).summary, now)  # the plan that was started last


def test_the_same_size_and_time_with_other_bytes_is_seen_where_the_source_is_verified(mix, tmp_path):
    file = mix / "b" / "part-1.jsonl"
    for verify, word in ((False, "sort"), (True, "merge")):
        folder = tmp_path / f"p{verify}"
        pipeline.work(mix, parts=folder, worker=(0, 1), sample_size=40, verify_source=verify)
        stamp = file.stat()
        file.write_text(file.read_text().replace(word, word[::-1]))
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        done, _ = pipeline.work(mix, parts=folder, worker=(0, 1), sample_size=40, verify_source=verify)
        assert (done >= 1) == verify


def test_rows_that_a_bound_left_out_are_fetched_when_the_files_that_made_it_are_gone(mix, tmp_path):
    folder = tmp_path / "p"
    pipeline.work(mix, parts=folder, worker=(0, 1), sample_size=10)
    assert any(parts._state_of(p)[1] for p in folder.glob("*.npz"))
    first = sorted(mix.rglob("*.jsonl"), key=lambda p: -p.stat().st_size)
    for file in first[:3]:  # what was read first, and made the bound
        file.unlink()
    pipeline.work(mix, parts=folder, worker=(0, 1), sample_size=10)
    now = collect.collect(collect.open_directory(mix), sample_size=10, seed=0, merge_prefixes=True)
    assert alike(parts.gather(folder).summary, now)


def test_a_build_with_parts_goes_on_where_it_was_stopped(mix, tmp_path, monkeypatch):
    plain = pipeline.build(mix, out=tmp_path / "one", size=5, sample_size=40, name="mix")
    write, written = parts.Parts.write, []

    def stop(self, unit, *rest):
        if len(written) == 4:
            raise KeyboardInterrupt
        written.append(unit)
        write(self, unit, *rest)

    monkeypatch.setattr(parts.Parts, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        pipeline.build(mix, out=tmp_path / "two", parts=tmp_path / "p", size=5, sample_size=40, name="mix")
    assert not (tmp_path / "two").exists()
    monkeypatch.setattr(
        parts.Parts, "write", lambda self, unit, *rest: written.append(unit) or write(self, unit, *rest)
    )
    built = pipeline.build(mix, out=tmp_path / "two", parts=tmp_path / "p", size=5, sample_size=40, name="mix")
    assert of_build(built) == of_build(plain)
    assert len(written) == 7


def test_damaged_parts_are_named_and_done_again(mix, tmp_path):
    folder = tmp_path / "p"
    pipeline.work(mix, parts=folder, worker=(0, 1), sample_size=40)
    part = sorted(folder.glob("*.npz"))[0]
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data[: len(data) - 3])
    with pytest.raises(IntegrityError, match=part.name):
        parts.gather(folder)
    assert pipeline.work(mix, parts=folder, worker=(0, 1), sample_size=40) == (1, 6)
    parts.gather(folder)


def test_ten_thousand_parts_of_a_few_rows_bind_the_sample(monkeypatch):
    rng = random.Random(0)
    every = [rng.randbytes(16) for _ in range(10_000)]
    kept = parts._Smallest(100)
    for p in every:
        kept.add([p])
    assert kept.bound() == sorted(every)[99]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda mix, out: parts.gather(out), "no parts there"),
        (lambda mix, out: pipeline.work(mix, parts=out, worker=(3, 3)), "worker 3/3"),
        (lambda mix, out: pipeline.build(mix, out=out, parts=out, holdout=0.1), "holdout and parts"),
    ],
)
def test_what_cannot_be_done_is_said(mix, tmp_path, call, said):
    with pytest.raises(UsageError, match=said):
        call(mix, tmp_path / "p")


def test_the_command_reads_in_shares_merges_and_refuses_what_has_no_effect(mix, tmp_path, promptkit_command):
    folder = tmp_path / "p"
    start = ("build", "--from", mix, "--parts", folder, "--sample-size", "40", "--processes", "1")
    first = promptkit_command(*start, "--worker", "0/2", "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["worker"] == [0, 2]
    refused = promptkit_command(*start, "--worker", "1/2", "--size", "3")
    assert refused.returncode == 2
    assert "--size" in refused.stderr
    assert promptkit_command(*start, "--worker", "1/2").returncode == 0
    merged = promptkit_command("merge", folder, "--out", tmp_path / "out", "--size", "5", "--json")
    assert merged.returncode == 0, merged.stderr
    assert json.loads(merged.stdout)["name"] == "mix"
    assert promptkit_command("build", "--from", mix, "--worker", "2/2", "--parts", folder).returncode == 2
    assert promptkit_command("build", "--from", mix, "--worker", "0/2").returncode == 2
