"""Who runs units of work: processes of this machine ("local") or a Ray cluster ("ray").

    each = engine("ray")
    for key, outcome in each(tasks, processes, setup, timeout):      # as `workers.each`
        ...

Ray only deals out. On its node a Ray task hands the unit to a process of `workers`, the same that reads locally: so
results are the same, and a file that kills or stops its reader is told with its place and takes no Ray worker along.
What Ray itself loses (a worker, a node) comes back as `workers.Lost` too, and the caller does that unit again, a
bounded number of times; Ray's own retries, some of which never end, are off. Other packages add engines through the
entry-point group `promptkit.engines`.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from promptkit import __version__, workers
from promptkit.errors import ResourceError, UsageError
from promptkit.registry import resolve

Each = Callable[..., Iterator[tuple[Any, Any]]]

_STORE_BYTES = 256 << 20  # of a Ray of our own, for summaries on their way: more of them spill to its folder
_CONNECT_SECONDS = 10.0


def engine(name: str | Each) -> Each:
    """Return what runs tasks, by name or as it is. Raises UsageError where it is not known, or not installed."""
    found: Each = resolve("engines", name, ENGINES)
    if found is over_ray and find_spec("ray") is None:
        raise UsageError("engine ray: Ray is not installed", hint="pip install 'ray>=2.52', or leave --engine out")
    return found


def over_ray(
    tasks: Iterable[workers.Task], processes: int | None, setup: tuple[Any, ...] = (), timeout: float = 600.0
) -> Iterator[tuple[Any, Any]]:
    """Run the tasks as Ray tasks of one CPU, up to `processes` (None: all CPUs of the cluster) at once; `workers.each`.

    A Ray that is initialised already is used as it is; else the cluster of RAY_ADDRESS; else one is started here, for
    as long as this runs. Raises ResourceError where Ray cannot be reached or cannot run promptkit.
    """
    with _connected(processes) as ray:
        exceptions = ray.exceptions
        gone = (exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.OutOfMemoryError,
                exceptions.ObjectLostError)  # fmt: skip
        do = ray.remote(num_cpus=1, max_retries=0)(_do)
        run, shared = uuid.uuid4().hex, [ray.put(setup)]  # in a list: fetched once by a Ray worker, not by each task
        waiting: Iterator[workers.Task] | None = iter(tasks)
        busy: dict[Any, Any] = {}
        try:
            while waiting or busy:
                # Asked each time: nodes come and go.
                while waiting and len(busy) < (processes or int(ray.cluster_resources().get("CPU", 1))):
                    task = next(waiting, None)
                    if task is None:
                        waiting = None
                        break
                    key, work, arguments = task
                    busy[do.remote(run, shared, timeout, __version__, work, arguments)] = key
                if not busy:
                    break
                try:
                    (done,), _ = ray.wait(list(busy), num_returns=1)
                except SystemError as wrapped:  # what the handler of a signal raised, on its way through Ray
                    raise wrapped.__cause__ or wrapped from None
                key = busy.pop(done)
                try:
                    error, outcome = ray.get(done)
                except gone as lost:
                    # Ray's text names addresses and ids, which differ from run to run.
                    reason = f"the process that read it was lost by Ray ({type(lost).__name__})"
                    error, outcome = None, workers.Lost(reason)
                except exceptions.RayError as refused:
                    raise ResourceError(
                        f"Ray could not run a unit of work: {_first_line(getattr(refused, 'cause', None) or refused)}",
                        hint=f"every node needs Python with the same packages and promptkit {__version__}",
                    ) from refused
                if error is not None:
                    raise error
                yield key, outcome
        finally:
            for left in busy:  # on a cluster that lives on
                ray.cancel(left, force=True)


ENGINES: dict[str, Each] = {"local": workers.each, "ray": over_ray}


# -------------------------------------------------------------------------------------- in a Ray worker

_reader: list[Any] = []  # the run that it belongs to, the queue of its tasks, and what comes out


def _do(
    run: str, shared: list[Any], timeout: float, version: str, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[BaseException | None, Any]:
    """Have one task done by the reader of this Ray worker, which stays for the next; return (error, outcome)."""
    import ray

    if version != __version__:  # its summaries might mean something else
        raise RuntimeError(f"a node has promptkit {__version__}, and {version} asks")
    try:
        if not _reader or _reader[0] != run:
            tasks: queue.SimpleQueue[workers.Task | None] = queue.SimpleQueue()
            _reader[:] = [run, tasks, workers.each(iter(tasks.get, None), 1, ray.get(shared[0]), timeout)]
        _reader[1].put((None, work, arguments))
        return None, next(_reader[2])[1]
    except Exception as error:
        _reader.clear()
        return error, None


# -------------------------------------------------------------------------------------- reaching Ray


@contextmanager
def _connected(processes: int | None) -> Iterator[Any]:
    address = os.environ.get("RAY_ADDRESS", "").strip()
    if address == "local":  # as Ray has it: one of this machine
        address = ""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Its ports are open to the network. This is read when Ray is loaded, and Ray's own default from 2.59 on.
    if not address and "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "logging_level": "ERROR"}
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        if not address:
            options |= {
                "num_cpus": processes or os.cpu_count() or 1, "include_dashboard": False, "_temp_dir": folder,
                "object_store_memory": _STORE_BYTES, "_node_ip_address": "127.0.0.1",
            }  # fmt: skip
        try:
            _reach(ray, address, options)
            yield ray
        finally:
            _leave(ray)


def _reach(ray: Any, address: str, options: dict[str, Any]) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if port.isdecimal():  # where nobody answers, Ray waits for many minutes and says nothing
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        ray.init(**options)
    except SystemExit as stopped:
        if callable(handler):  # Ray's own was in its place
            handler(signal.SIGTERM, None)
        raise stopped
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        if not address:
            raise ResourceError(
                f"Ray cannot be started on this machine: {_first_line(error)}",
                hint="TMPDIR must be a short path (30 characters) and HOME a folder, both writable; or --engine local",
            ) from error
        raise ResourceError(
            f"Ray at {address} cannot be reached: {_first_line(error)}",
            hint="set RAY_ADDRESS to HOST:PORT of a cluster that runs (see: ray status), or unset it for a Ray of this "
            "machine",
        ) from error
    finally:
        _keep(handler)  # ray.init replaces it


def _leave(ray: Any) -> None:
    """Shut Ray down; SIGTERM stays with who had it.

    Ray takes its handler of signals out on the way, which leaves none: SIGTERM would end this process at once, then and
    later, with the folders and processes that it has.
    """
    if threading.current_thread() is not threading.main_thread():
        ray.shutdown()
        return
    handler = signal.getsignal(signal.SIGTERM)
    leaving = threading.Thread(target=ray.shutdown)
    leaving.start()
    try:
        while leaving.is_alive():
            leaving.join(0.02)
            _keep(handler)
    finally:
        leaving.join()
        _keep(handler)


def _keep(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
