"""Who runs units of work: processes of this machine ("local") or a Ray cluster ("ray").

    each = engine("ray")
    for key, outcome in each(tasks, processes, setup, timeout):      # as `workers.each`
        ...

Ray only deals out. On its node a Ray task hands the unit to a process of `workers`, the same that reads locally: so
results are the same, and a file that kills or stops its reader is told with its place and takes no Ray worker along.
What Ray itself loses (a worker, a node) comes back as `workers.Lost` too, and the caller does that unit again, a
bounded number of times; Ray's own retries, some of which never end, are off. Other packages add engines through the
entry-point group `promptkit.engines`.

    X, on = spread("ray")(model, texts)                              # as `model.encode(texts)`, `model.embedded_on`

A sentence-transformers model is loaded by actors, one a GPU of the cluster, or CPU actors where it has none; each is
given runs of whole chunks (`sentences.chunks`), so the bytes are those of this machine, however many actors there are.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from promptkit import __version__, workers
from promptkit.errors import PromptkitError, ResourceError, UsageError
from promptkit.registry import resolve

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from promptkit.embedders import SentenceTransformer, Spread

Each = Callable[..., Iterator[tuple[Any, Any]]]

_STORE_BYTES = 256 << 20  # of a Ray of our own, for summaries on their way: more of them spill to its folder
_CONNECT_SECONDS = 10.0
_SIGNAL_SECONDS = 0.005  # between looks at who has SIGTERM
_WAIT_SECONDS = 0.2  # that a signal waits for Ray
_ACTOR_BYTES = 2 << 30  # of a node's memory, for torch, a model of usual size and its batches on the CPU
_ACTOR_SECONDS = 600.0  # until the first actor has a place and its model, which may be fetched from a hub
_RETRIES = 2  # of texts whose actor was lost
_RUN = 8  # chunks at most that an actor is given at once: it tokenises some while it computes others


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
                (done,) = _wait(ray, busy)
                key = busy.pop(done)
                try:
                    error, outcome = _get(ray, done)
                except _Gone as lost:
                    error, outcome = None, workers.Lost(f"the process that read it was lost by Ray ({lost})")
                if error is not None:
                    raise error
                yield key, outcome
        finally:
            for left in busy:  # on a cluster that lives on
                ray.cancel(left, force=True)


ENGINES: dict[str, Each] = {"local": workers.each, "ray": over_ray}


def spread(name: str | Each, processes: int | None = None) -> Spread | None:
    """Return what has a model embed texts where this engine runs things; None: a model does so by itself, here."""
    return partial(embed_over_ray, processes=processes) if engine(name) is over_ray else None


def embed_over_ray(
    model: SentenceTransformer, texts: list[str], *, processes: int | None = None
) -> tuple[NDArray[np.float32], str]:
    """Return the unit rows (n, d) of the texts, and what they were embedded on, by actors that load `model`.

    There is one for each GPU of the cluster, none of them for device "cpu"; without GPUs as many as CPUs and memory
    allow, up to `processes`. Ray is reached as by `over_ray`. Texts whose actor is lost are embedded again by another,
    started in its place, `_RETRIES` times. Raises UsageError where a machine cannot load the model, ResourceError where
    actors are lost too often, find no place, or do not have the same model.
    """
    import numpy as np

    from promptkit import sentences

    with _connected(processes) as ray:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        device, n, needs = _places(model.device, model.threads, nodes, processes)
        chunks = sentences.chunks(texts)
        size = max(1, min(_RUN, len(chunks) // (4 * n)))
        runs = [np.concatenate(chunks[at : at + size]) for at in range(0, len(chunks), size)]
        name = os.path.abspath(model.name) if os.path.isdir(model.name) else model.name
        remote = ray.remote(_Actor).options(max_restarts=0, **needs)
        actors: list[Any] = []
        busy: dict[Any, tuple[Any, int]] = {}  # what is awaited -> an actor and its run, -1 while it loads the model
        idle: list[Any] = []
        waiting, lost = deque(range(len(runs))), Counter[int]()
        X, on = np.empty((0, 0), dtype=np.float32), ""

        def start() -> None:
            actors.append(remote.remote())
            busy[actors[-1].load.remote(__version__, name, device, model.batch_tokens, model.threads)] = actors[-1], -1

        try:
            for _ in range(min(n, len(runs))):
                start()
            while waiting or any(run >= 0 for _, run in busy.values()):
                while waiting and idle:
                    actor, run = idle.pop(), waiting.popleft()
                    busy[actor.encode.remote([texts[i] for i in runs[run]])] = actor, run
                done = _wait(ray, busy, None if any(run >= 0 for _, run in busy.values()) else _ACTOR_SECONDS)
                if not done:
                    raise ResourceError(
                        f"embedder {model.name}: none of {len(busy)} Ray actors was ready within {_ACTOR_SECONDS:g} "
                        f"seconds, expected one to find {_told(needs)} free and to load the model",
                        hint="see `ray status` for who holds them, or leave --engine out",
                    )
                actor, run = busy.pop(done[0])
                try:
                    answer = _get(ray, done[0])
                except _Gone as gone:
                    lost[run] += 1
                    if run >= 0:
                        waiting.appendleft(run)
                    if lost[run] <= _RETRIES:
                        start()
                    elif run >= 0 or not (busy or idle):
                        work = f"embedded {len(runs[run]):,} texts" if run >= 0 else "loaded the model"
                        raise ResourceError(
                            f"embedder {model.name}: the Ray actor that {work} was lost {lost[run]} times ({gone}), "
                            f"expected at most {_RETRIES}",
                            hint="the log of Ray on that machine says why; too little memory is the usual reason: "
                            "see `ray status`, or leave --engine out",
                        ) from gone
                    continue
                idle.append(actor)
                if run >= 0:
                    X[runs[run]] = answer
                    continue
                found, probe = answer
                if not on:
                    on, first = found, probe
                    X = np.empty((len(texts), probe.shape[1]), dtype=np.float32)
                elif found != on or probe.shape != first.shape or np.abs(probe - first).max() > 1e-2:
                    raise ResourceError(
                        f"embedder {model.name}: actors on {on} and {found} do not give the same vectors, expected one "
                        "model on one kind of device",
                        hint="give all machines of the cluster the same model files, torch and GPUs",
                    )
            return X, on
        finally:
            for actor in actors:  # on a cluster that lives on
                ray.kill(actor)


def _places(
    device: str, threads: int, nodes: list[dict[str, float]], processes: int | None
) -> tuple[str, int, dict[str, float]]:
    """Return the device of an actor, how many actors there are, and what of a node each needs."""
    gpus = 0 if device == "cpu" else sum(int(node.get("GPU", 0)) for node in nodes)
    if gpus:  # Ray shows an actor only the GPU that it holds
        return device.partition(":")[0], gpus, {"num_gpus": 1, "num_cpus": 0}
    if device.startswith("cuda"):
        raise UsageError(
            f"device {device!r}: the Ray cluster has no GPU", hint="use device auto or cpu, or see `ray status`"
        )
    room = sum(min(int(node.get("CPU", 0)) // threads, int(node.get("memory", 0)) // _ACTOR_BYTES) for node in nodes)
    if not room:  # one that may be slow is better than none
        return "cpu", 1, {"num_cpus": 0}
    n = min(room, max(1, processes // threads)) if processes else room
    return "cpu", n, {"num_cpus": threads, "memory": _ACTOR_BYTES}


def _told(needs: dict[str, float]) -> str:
    names = {"num_gpus": "{:g} GPU", "num_cpus": "{:g} CPU", "memory": "{:,.0f} bytes"}
    return " and ".join(names[what].format(value) for what, value in needs.items() if value) or "nothing"


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


class _Actor:
    """A model in a Ray worker of its own."""

    def load(
        self, version: str, name: str, device: str, batch_tokens: int | None, threads: int
    ) -> tuple[str, NDArray[np.float32]]:
        """Load the model; return what it embeds on, and a vector by which models can be told apart."""
        from promptkit.embedders import SentenceTransformer

        if version != __version__:
            raise RuntimeError(f"a node has promptkit {__version__}, and {version} asks")
        self.model = SentenceTransformer(name, device=device, batch_tokens=batch_tokens, threads=threads)
        try:
            return self.model.embedded_on, self.model.encode(["One sentence, plainly."])
        except UsageError as error:
            raise UsageError(
                f"{error.message}, on machine {socket.gethostname()} of the Ray cluster",
                hint=f"{error.hint}; so on every machine of the cluster (a model's folder must be one that all see)",
            ) from None

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        return self.model.encode(texts)


# -------------------------------------------------------------------------------------- reaching Ray


class _Gone(Exception):
    """Ray lost a process. Its own text names addresses and ids, which differ from run to run."""


def _wait(ray: Any, pending: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """Return what is done, one or none. A signal is raised soon: what Ray waits for itself, it waits for to the end."""
    some, end = list(pending), time.monotonic() + (float("inf") if timeout is None else timeout)
    try:
        done: list[Any] = []
        while not done and time.monotonic() < end:
            done = ray.wait(some, num_returns=1, timeout=_WAIT_SECONDS)[0]
    except SystemError as wrapped:  # what the handler of a signal raised, on its way through Ray
        raise wrapped.__cause__ or wrapped from None
    return done


def _get(ray: Any, done: Any) -> Any:
    exceptions = ray.exceptions
    try:
        return ray.get(done)
    except (exceptions.WorkerCrashedError, exceptions.RayActorError, exceptions.NodeDiedError,
            exceptions.OutOfMemoryError, exceptions.ObjectLostError) as lost:  # fmt: skip
        raise _Gone(type(lost).__name__) from lost
    except exceptions.RayError as refused:
        cause = getattr(refused, "cause", None) or refused
        if isinstance(cause, PromptkitError):
            raise cause from None
        raise ResourceError(
            f"Ray could not run a unit of work: {_first_line(cause)}",
            hint=f"every node needs Python with the same packages and promptkit {__version__}",
        ) from refused


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
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(1) as thread,  # lives as long as Ray: the system ends Ray's services with who started them
    ):
        if not address:
            options |= {
                "num_cpus": processes or os.cpu_count() or 1, "include_dashboard": False, "_temp_dir": folder,
                "object_store_memory": _STORE_BYTES, "_node_ip_address": "127.0.0.1",
            }  # fmt: skip
        thread.submit(int).result()  # a signal while a thread starts would lose it
        try:
            _reach(thread, ray, address, options)
            yield ray
        finally:
            _apart(thread, ray.shutdown)


def _reach(thread: ThreadPoolExecutor, ray: Any, address: str, options: dict[str, Any]) -> None:
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if port.isdecimal():  # where nobody answers, Ray waits for many minutes and says nothing
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        _apart(thread, partial(ray.init, **options))
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


def _apart(thread: ThreadPoolExecutor, work: Callable[[], Any]) -> None:
    """Have Ray start or shut down in that thread, and wait for its end whatever signal comes; then it is raised.

    Half a Ray leaves processes and folders, or aborts this process as it exits. Ray's C++ puts a handler of SIGTERM of
    its own in, and takes it out without putting the old one back: all the time SIGTERM is given back to who had it.
    """
    handler = signal.getsignal(signal.SIGTERM)
    doing = thread.submit(work)
    try:
        while not wait([doing], timeout=_SIGNAL_SECONDS).done:
            _keep(handler)
        doing.result()
    finally:
        wait([doing])
        _keep(handler)


def _keep(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
