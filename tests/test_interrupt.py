"""Ctrl-C and SIGTERM, for real: the code says so, nothing is half-written, nobody is left behind, and a second start
finishes what was begun without doing it again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import CHECKOUT, ROOT

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the family of a process is read in /proc")

# A unit is a file, and even little is read by workers.
SMALL_UNITS = "from promptkit import collect\ncollect.UNIT_FILES, collect.POOL_BYTES = 1, 0\n"
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "mix"
    root.mkdir()
    for k in range(12):
        rows = [{"messages": [{"role": "user", "content": f"sort the list number {k} of {j} items"},
                              {"role": "assistant", "content": f"here is item {j * k} sorted. " * 40}]} for j in range(200)]  # fmt: skip
        (root / f"part-{k}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return root


@pytest.fixture(scope="module")
def plain(mix: Path) -> dict[str, Path]:
    """What a build into an empty folder leaves ("old"), and what a second one into a copy of that leaves ("both")."""
    places = {"old": mix.parent / "old", "both": mix.parent / "both"}
    for place, size in (("old", "4"), ("both", "5")):
        if place == "both":
            shutil.copytree(places["old"], places["both"])
        words = ("build", "--from", mix, "--name", "mix", "--processes", "2", "--size", size, "--out", places[place])
        Run(mix.parent, *words).finish()
    return places


@pytest.fixture
def temporary() -> Iterator[Path]:
    """TMPDIR of the command; Ray's sockets lie there and have short names."""
    place = Path("/tmp") / f"pk{os.getpid()}"
    place.mkdir()
    yield place
    shutil.rmtree(place)


class Run:
    """A command in a session of its own, as from a terminal."""

    def __init__(self, temporary: Path, *words: str | os.PathLike[str]) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"TMPDIR": str(temporary)}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        self.process = subprocess.Popen(
            [sys.executable, "-c", SMALL_UNITS + CHECKOUT, *map(os.fspath, words)], env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def until(self, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + 240
        while not ready():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                pytest.fail(f"ended before it was stopped: {self.process.communicate()}")
            time.sleep(0.005)

    def stop(self, number: signal.Signals, *, group: bool) -> str:
        """Send a signal, to its whole group as Ctrl-C does; return stderr. Nobody it started may be left."""
        family = descendants(self.process.pid)
        assert family, "no worker had been started"
        os.killpg(self.process.pid, number) if group else self.process.send_signal(number)
        _, said = self.process.communicate(timeout=120)
        assert self.process.returncode == CODES[number], said
        assert "Traceback" not in said
        end = time.monotonic() + 20
        while (left := [pid for pid in family if alive(pid)]) and time.monotonic() < end:
            time.sleep(0.05)
        assert left == []
        return said

    def finish(self) -> None:
        _, said = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, said


def stat_of(pid: int) -> list[str]:
    """Return state, parent, ... of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def alive(pid: int) -> bool:
    try:
        return stat_of(pid)[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                children.setdefault(int(stat_of(int(path.name))[1]), []).append(int(path.name))
            except OSError:
                continue
    found, todo = [], [pid]
    while todo:
        new = children.get(todo.pop(), [])
        found += new
        todo += new
    return found


def tree(root: Path, *, without: str = "") -> dict[str, bytes]:
    found = {p.relative_to(root).as_posix(): p for p in sorted(root.rglob("*")) if p.is_file()}
    return {name: p.read_bytes() for name, p in found.items() if not (without and name.startswith(without))}


ENGINES = [
    "local",
    pytest.param("ray", marks=pytest.mark.skipif(find_spec("ray") is None, reason="promptkit[ray] is not installed")),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("number", CODES)
def test_a_stopped_build_leaves_what_was_there_and_goes_on(
    mix: Path, plain: dict[str, Path], tmp_path: Path, temporary: Path, number: signal.Signals, engine: str
) -> None:
    shutil.copytree(plain["old"], tmp_path / "out")
    words = ("build", "--from", mix, "--name", "mix", "--processes", "2", "--size", "5", "--resume")
    resumed = (*words, "--out", tmp_path / "out", "--engine", engine)
    run, parts = Run(temporary, *resumed), tmp_path / "out" / "parts"
    run.until(lambda: any(parts.glob("*.npz")))
    said = run.stop(number, group=number == signal.SIGINT)
    assert "run the same command again" in said
    assert tree(tmp_path / "out", without="parts/") == tree(plain["old"])
    assert not list((tmp_path / "out").rglob("*.tmp"))
    assert list(temporary.iterdir()) == []
    done = {p.name: p.stat().st_mtime_ns for p in parts.glob("*.npz")}
    assert 1 <= len(done) < 12

    Run(temporary, *resumed[:-1], "local").finish()  # the parts are the same, whoever read
    assert {name: (parts / name).stat().st_mtime_ns for name in done} == done
    assert len(list(parts.glob("*.npz"))) == 12
    assert tree(tmp_path / "out", without="parts/") == tree(plain["both"])
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", CODES)
def test_a_stopped_detokenize_leaves_the_old_file(
    mix: Path, tmp_path: Path, temporary: Path, number: signal.Signals
) -> None:
    words = ("detokenize", mix, "--processes", "2", "-o")
    Run(temporary, *words, tmp_path / "plain.jsonl").finish()
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "rows.jsonl").write_text("old\n")
    run = Run(temporary, *words, folder / "rows.jsonl")
    run.until(lambda: any(folder.glob(".rows.jsonl.*.tmp/*.jsonl")))
    run.stop(number, group=number == signal.SIGINT)
    assert tree(folder) == {"rows.jsonl": b"old\n"}
    assert list(temporary.iterdir()) == []
    Run(temporary, *words, folder / "rows.jsonl").finish()
    assert (folder / "rows.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()
