"""Work that many processes share in a build comes back in order, and in the same bytes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from conftest import ROOT

import promptkit
from promptkit import collect, domains, frames, workers
from promptkit.errors import UsageError
from promptkit.tokenizers import load_tokenizer


def twice(x: int, added: int) -> int:
    return 2 * x + added


def die_elsewhere(x: int, home: int) -> int:
    if x == 3 and os.getpid() != home:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


@pytest.mark.parametrize("processes", [1, 3])
def test_results_come_in_the_order_of_the_batches(processes):
    batches = ((i,) for i in range(20))
    assert list(workers.in_order(twice, batches, processes, (1,))) == [2 * i + 1 for i in range(20)]


def test_a_batch_whose_worker_dies_is_done_here():
    batches = ((i,) for i in range(6))
    assert list(workers.in_order(die_elsewhere, batches, 2, (os.getpid(),))) == list(range(6))


def test_a_build_has_the_same_bytes_whether_rows_are_decoded_and_labelled_here_or_in_workers(
    tmp_path, monkeypatch, example_build
):
    monkeypatch.setattr(frames, "POOL_ROWS", 1)
    monkeypatch.setattr(domains, "POOL_TEXTS", 1)
    built = promptkit.build(ROOT / "examples" / "training_mix", out=tmp_path / "out", size=60, processes=2)
    mine, theirs = ({p.relative_to(r).as_posix(): p.read_bytes() for p in Path(r).rglob("*") if p.is_file()}
                    for r in (built.reference, example_build / "reference"))  # fmt: skip
    assert mine == theirs


def test_labels_and_masses_of_rows_are_those_of_the_texts():
    texts = ["Prove that 7 divides 2^(3n) - 1.", "Translate into French: the bridge is closed.", "def f(x):"]
    messages = ['[{"role":"user","content":"x"}]'] * 3
    labels, P = domains.of_rows(texts, messages, [None, "[]", None])
    parsed = [[{"role": "user", "content": "x"}]] * 3
    assert labels == domains.label(texts, messages=parsed, tools=[None, [], None], spoken=False, explain=False)
    assert P.tobytes() == domains.masses(texts).tobytes()
    assert domains.of_rows([], [], [])[1].shape == (0, len(domains.DOMAINS))


def test_remembered_texts_are_encoded_to_the_same_ids_and_forgotten():
    tokenizer = load_tokenizer("words")
    texts = ["a list", "b table", "a list"]
    plain = [i.tolist() for i in tokenizer.encode_batch(texts)]
    tokenizer.remember(texts[:1], tokenizer.encode_batch(texts[:1]))
    assert [i.tolist() for i in tokenizer.encode_batch(texts)] == plain
    tokenizer.forget()
    assert [i.tolist() for i in tokenizer.encode_batch(texts, threads=2)] == plain


def test_the_time_left_is_told_once_a_rate_is_known():
    console = pytest.importorskip("promptkit_cli.console")
    assert console.time_left(1, 100, 60.0) == ""
    assert console.time_left(25, 100, 10.0) == ", about 30 s left"
    assert console.time_left(10, 100, 60.0) == ", about 9 min left"
    assert console.time_left(100, 100, 60.0) == console.time_left(5, None, 60.0) == ""


def test_a_bound_on_memory_is_a_bound_on_processes():
    assert collect.processes_within(64 << 30, 8, 20_000) == 8
    assert collect.processes_within(2 << 30, 8, 20_000) < 8
    assert collect.processes_within(2 << 30, 8, 20_000) <= collect.processes_within(3 << 30, 8, 20_000)
    assert collect.processes_within(64 << 30, None) == (os.cpu_count() or 1)
    with pytest.raises(UsageError, match=r"1,\d\d\d MB are needed for a sample of 20,000 rows"):
        collect.processes_within(512 << 20, 8, 20_000)


@pytest.mark.parametrize(("given", "code"), [("100T", 0), ("12", 2), ("4X", 2)])
def test_memory_is_given_with_a_unit(promptkit_command, given, code):
    done = promptkit_command("inspect", ROOT / "examples" / "training_mix", "--memory", given, "--json")
    assert done.returncode == code, done.stderr
