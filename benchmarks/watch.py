"""Wall time, processor time and peak memory of a process and all that it starts, per named stage.

Linux only: /proc is read, so nothing has to be installed. Memory is the sum of resident sets over the process tree;
pages that processes share are counted once for each, so the figure errs on the high side. With `shared_once` it is
also summed with each page divided among those that share it (PSS), which is what the machine needs, and slow to read.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PAGE, TICK = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
INTERVAL = 0.05  # seconds between looks at memory; a peak that is shorter can be missed


@dataclass
class Stage:
    """What one stage took. `peak_bytes` is the highest memory of the tree while it ran."""

    name: str
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    peak_bytes_shared_once: int = 0


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat behind the name, which may hold blanks and brackets."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def tree(root: int) -> list[int]:
    """Return `root` and all living processes below it."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
            except OSError:  # ended meanwhile
                continue
    found, queue = [], [root]
    while queue:
        found.append(queue.pop())
        queue += children.get(found[-1], [])
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Return the processor time of living processes and of their children that have ended."""
    total = 0
    for pid in pids:
        try:
            total += sum(map(int, _stat(pid)[11:15]))
        except OSError:
            continue
    return total / TICK


def resident_bytes(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return total * PAGE


def shared_once_bytes(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


class Watch:
    """Times stages one after the other; `enter` ends the last one. Use as a context manager."""

    def __init__(self, *, shared_once: bool = False) -> None:
        self.stages: dict[str, Stage] = {}
        self._current: Stage | None = None
        self._since = (0.0, 0.0)
        self._peak = self._peak_once = 0
        self._shared_once = shared_once
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        looks = 0
        while not self._stop.wait(INTERVAL):
            pids = tree(os.getpid())
            self._peak = max(self._peak, resident_bytes(pids))
            looks += 1
            if self._shared_once and looks % 10 == 0:
                self._peak_once = max(self._peak_once, shared_once_bytes(pids))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()
        self._stop.set()
        self._thread.join()

    def enter(self, name: str) -> None:
        """Begin (or go on with) a stage."""
        if self._current is not None and self._current.name == name:
            return
        self.leave()
        self._current = self.stages.setdefault(name, Stage(name))
        self._since = (time.perf_counter(), cpu_seconds(tree(os.getpid())))

    def leave(self) -> None:
        """End the running stage, if there is one."""
        pids = tree(os.getpid())
        if self._current is not None:
            wall, cpu = self._since
            self._current.wall_seconds += time.perf_counter() - wall
            self._current.cpu_seconds += max(0.0, cpu_seconds(pids) - cpu)
            self._current.peak_bytes = max(self._current.peak_bytes, self._peak, resident_bytes(pids))
            self._current.peak_bytes_shared_once = max(self._current.peak_bytes_shared_once, self._peak_once)
        self._current, self._peak, self._peak_once = None, 0, 0

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Time a block."""
        self.enter(name)
        try:
            yield self.stages[name]
        finally:
            self.leave()

    def progress(self, stage: str, done: int, total: int | None) -> None:
        """Take the callbacks of promptkit: the stage that speaks is the stage that runs."""
        self.enter(stage)
