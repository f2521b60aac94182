"""Work in processes of its own, so that a file which kills or stops its reader costs only itself.

    for key, outcome in each(tasks, processes, setup, timeout):      # tasks: key -> (function, arguments)
        ...                                                          # outcome: the function's result, or Lost

A worker is this interpreter with one line of program, so that a script without `if __name__ == "__main__"` and a
notebook are not run again in it. It says at what it works (`beat`); where nothing is heard for `timeout` seconds it is
killed. A worker that is gone is replaced, and the caller decides what becomes of its task.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

Task = tuple[Any, Callable[..., Any], tuple[Any, ...]]

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from promptkit.workers import serve; sys.exit(serve())"
)
_BEAT_SECONDS = 1.0
_START_SECONDS = 120.0  # a machine may be busy; no file is to blame yet


@dataclass(frozen=True)
class Lost:
    """A task whose worker died or stood still; `at` is what its last `beat` named."""

    reason: str
    at: Any = None


# -------------------------------------------------------------------------------------- in the worker

_out: IO[bytes] | None = None
_last: list[Any] = [None, 0.0]  # what was named, and when


def beat(at: Any = None) -> None:
    """Say that work goes on, at `at` (None: where it was). Costs nothing outside a worker."""
    if _out is None:
        return
    now = time.monotonic()
    if (at is not None and at != _last[0]) or now - _last[1] > _BEAT_SECONDS:
        _last[:] = [_last[0] if at is None else at, now]
        _send(_out, ("beat", _last[0]))


def serve() -> int:
    """Take tasks from standard input until it closes; called by the program of a worker."""
    global _out
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started this process decides
    # Frames travel where standard output was; what a library prints must not get between them.
    _out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_take, args=(inbox,), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        setup: tuple[Any, ...] = ()
        while True:
            sent, work, arguments = inbox.get()
            _last[:] = [None, 0.0]
            _send(_out, ("beat", None))
            try:
                setup = setup if sent is None else sent
                answer: tuple[Any, ...] = ("done", work(*arguments, *setup))
            except BaseException as error:
                answer = ("raised", _portable(error), traceback.format_exc())
            _send(_out, answer)
    return 0


def _take(inbox: queue.SimpleQueue[Any]) -> None:
    while (message := _receive(sys.stdin.buffer)) is not None:
        inbox.put(message)
    os._exit(0)  # who asked is gone, killed perhaps: nobody waits for what is left of the work


def _portable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _send(file: IO[bytes], message: Any) -> None:
    """Write a message: how many pieces, their lengths, a pickle, then the data of its arrays as it lies in memory."""
    buffers: list[pickle.PickleBuffer] = []
    pieces = [memoryview(pickle.dumps(message, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append))]
    pieces += (b.raw() for b in buffers)
    for number in (len(pieces), *map(len, pieces)):
        file.write(number.to_bytes(8, "little"))
    for piece in pieces:
        file.write(piece)
    file.flush()


def _receive(file: IO[bytes]) -> Any:
    """Return the next message, None where the other side is gone."""
    try:
        lengths = [_number(file) for _ in range(_number(file))]
        data, *buffers = [_exactly(file, n) for n in lengths]
    except EOFError:
        return None
    return pickle.loads(data, buffers=buffers)


def _number(file: IO[bytes]) -> int:
    return int.from_bytes(_exactly(file, 8), "little")


def _exactly(file: IO[bytes], n: int) -> bytes:
    data = file.read(n)
    if len(data) < n:
        raise EOFError
    return data


# -------------------------------------------------------------------------------------- where it is started


class _RemoteTraceback(Exception):
    """What the worker printed, as the cause of what it raised."""

    def __str__(self) -> str:
        return f"in a worker:\n{self.args[0]}"


class _Worker:
    """One process, a thread that listens to it, and the task it has."""

    def __init__(self, heard: queue.SimpleQueue[tuple[_Worker, Any]], setup: tuple[Any, ...]) -> None:
        command = [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.key: Any = None
        self.at: Any = None
        self.since = time.monotonic()
        self.started = self.stalled = False
        self._heard = heard
        self._setup: tuple[Any, ...] | None = setup
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, task: Task) -> None:
        self.key, work, arguments = task
        self.at, self.since = None, time.monotonic()
        message, self._setup = (self._setup, work, arguments), None
        # In a thread: a pipe holds little, and the worker is still starting.
        threading.Thread(target=self._tell, args=(message,), daemon=True).start()

    def patience(self, timeout: float) -> float:
        """Return until when to wait for a word."""
        return self.since + (timeout if self.started else max(timeout, _START_SECONDS))

    def _tell(self, message: Any) -> None:
        assert self.process.stdin is not None
        try:
            _send(self.process.stdin, message)
        except OSError:  # it died: its silence says so
            pass
        except ValueError:
            if not self.process.stdin.closed:  # else `end` was quicker, as at Ctrl-C
                raise

    def _listen(self) -> None:
        assert self.process.stdout is not None
        while True:
            try:
                message = _receive(self.process.stdout)
            except Exception:  # half a message of a process that died
                message = None
            self._heard.put((self, message))
            if message is None:
                return

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


def each(
    tasks: Iterable[Task], processes: int | None, setup: tuple[Any, ...] = (), timeout: float = 600.0
) -> Iterator[tuple[Any, Any]]:
    """Run the tasks in up to `processes` workers (None: one per core); yield (key, result or Lost) as they finish.

    They come in no fixed order. `setup` is sent to each worker once and given to every function behind its own
    arguments. What a function raises is raised here.
    """
    processes = processes or os.cpu_count() or 1
    waiting: Iterator[Task] | None = iter(tasks)
    heard: queue.SimpleQueue[tuple[_Worker, Any]] = queue.SimpleQueue()
    busy: list[_Worker] = []
    idle: list[_Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < processes:
                task = next(waiting, None)  # made when it is taken
                if task is None:
                    waiting = None
                    break
                worker = idle.pop() if idle else _Worker(heard, setup)
                busy.append(worker)
                worker.start(task)
            if not busy:
                break
            until = min(w.patience(timeout) for w in busy)
            try:
                worker, message = heard.get(timeout=min(60.0, max(0.0, until - time.monotonic())))
            except queue.Empty:
                for stuck in busy:
                    if time.monotonic() >= stuck.patience(timeout) and not stuck.stalled:
                        stuck.stalled = True
                        stuck.process.kill()  # its pipe closes, and it is heard of below
                        stuck.since = float("inf")
                continue
            if worker not in busy:
                if worker in idle:  # died without a task
                    idle.remove(worker)
                    worker.end()
                continue
            worker.since = time.monotonic() if not worker.stalled else worker.since
            worker.started = True
            if message is None:
                busy.remove(worker)
                worker.end()
                yield worker.key, Lost(_why(worker, timeout), worker.at)
            elif message[0] == "beat":
                worker.at = message[1]
            else:
                busy.remove(worker)
                if worker.stalled:  # it was killed in the very moment that it answered
                    worker.end()
                else:
                    idle.append(worker)
                if message[0] == "raised":
                    raise message[1] from _RemoteTraceback(message[2])
                yield worker.key, message[1]
    finally:
        for worker in (*busy, *idle):
            worker.end()


def trim() -> None:
    """Give freed memory back to the system, where the C library (glibc) and Arrow only do so when asked."""
    import ctypes

    if "pyarrow" in sys.modules:
        import pyarrow

        pyarrow.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library, another system
        ctypes.CDLL(None).malloc_trim(0)


def in_order(
    work: Callable[..., Any], batches: Iterable[tuple[Any, ...]], processes: int, setup: tuple[Any, ...] = ()
) -> Iterator[Any]:
    """Yield `work(*batch, *setup)` of each batch, in the order of the batches, out of up to `processes` workers.

    With one process, and for a batch whose worker was lost, the work is done in this process.
    """
    if processes <= 1:
        yield from (work(*batch, *setup) for batch in batches)
        return
    kept: dict[int, tuple[Any, ...]] = {}

    def tasks() -> Iterator[Task]:
        for number, batch in enumerate(batches):
            kept[number] = batch
            yield number, work, batch

    ready: dict[int, Any] = {}
    following = 0
    for number, outcome in each(tasks(), processes, setup):
        batch = kept.pop(number)
        ready[number] = work(*batch, *setup) if isinstance(outcome, Lost) else outcome
        while following in ready:
            yield ready.pop(following)
            following += 1


def _why(worker: _Worker, timeout: float) -> str:
    if worker.stalled:
        return f"no progress for {timeout:g} seconds (--shard-timeout)"
    code = worker.process.returncode
    if code is not None and code < 0:
        memory = " (out of memory?)" if -code == 9 else ""
        with contextlib.suppress(ValueError):
            return f"the process that read it was ended by {signal.Signals(-code).name}{memory}"
    return f"the process that read it ended with code {code}"
