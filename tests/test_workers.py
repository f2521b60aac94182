"""Processes of our own: results, errors, deaths and stillness come back as what they are."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from promptkit import workers
from promptkit.errors import InputError
from promptkit.workers import Lost, each


def double(x: int, factor: int) -> int:
    print("a library talks")
    return factor * x


def whose() -> int:
    return os.getpid()


def refuse() -> None:
    raise InputError("no good", hint="another")


class Odd(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def odd() -> None:
    raise Odd(1, 2)


def die(at: object, number: int) -> None:
    workers.beat(at)
    os.kill(os.getpid(), number)


def slow(seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        workers.beat("here")
        time.sleep(0.05)
    return "done"


def still() -> None:
    workers.beat("here")
    time.sleep(600)


def test_every_task_gives_its_result_once_and_workers_are_used_again() -> None:
    assert dict(each([(k, double, (k,)) for k in range(20)], 2, (3,))) == {k: 3 * k for k in range(20)}
    assert len({pid for _, pid in each([(k, whose, ()) for k in range(6)], 2)}) <= 2
    assert list(each([], 2)) == []


def test_what_a_task_raises_is_raised_here_with_its_traceback() -> None:
    with pytest.raises(InputError, match="no good") as error:
        list(each([(0, refuse, ())], 1))
    assert error.value.hint == "another"
    assert "in refuse" in str(error.value.__cause__)
    with pytest.raises(RuntimeError, match="Odd: 1 and 2"):  # an error that cannot be sent
        list(each([(0, odd, ())], 1))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_death_is_told_with_its_place_and_the_others_go_on(number: signal.Signals) -> None:
    tasks = [("bad", die, ("file 7", number)), *((k, whose, ()) for k in range(4))]
    outcomes = dict(each(tasks, 1))
    lost = outcomes.pop("bad")
    assert isinstance(lost, Lost)
    assert lost.at == "file 7"
    assert number.name in lost.reason
    assert all(isinstance(v, int) for v in outcomes.values())


def test_who_stands_still_is_killed_and_who_beats_is_not() -> None:
    start = time.monotonic()
    outcomes = dict(each([("still", still, ()), ("slow", slow, (7.0,))], 2, timeout=5.0))
    assert outcomes["slow"] == "done"
    assert outcomes["still"] == Lost("no progress for 5 seconds (--shard-timeout)", "here")
    assert time.monotonic() - start < 60


def test_workers_end_with_the_one_who_asked() -> None:
    pids = []
    for _, pid in each([(k, whose, ()) for k in range(3)], 1):
        pids.append(pid)
        break
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('once')\nfrom promptkit.workers import each\nprint(list(each([('k', len, ('abc',))], 1)))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=env, timeout=60)
    assert done.stdout == "once\n[('k', 3)]\n", done.stderr


def test_arrays_come_whole_beside_the_rest() -> None:
    given = {"a": np.arange(200_000), "none": np.zeros(0, np.int32), "text": "x", "b": np.ones((3, 4))[:, 1:]}
    ((_, found),) = each([(0, dict, (given,))], 1)
    assert found["text"] == "x"
    for name in ("a", "none", "b"):
        np.testing.assert_array_equal(found[name], given[name])
        assert found[name].dtype == given[name].dtype


def test_a_task_for_a_worker_that_was_ended_meanwhile_is_dropped() -> None:
    worker = workers._Worker(queue.SimpleQueue(), ())
    worker.end()
    worker._tell((None, double, (1,)))  # its thread comes late, as at Ctrl-C: no traceback
