"""Engines: a Ray cluster gives the same bytes as this machine, and what dies on it costs time or is accounted for.

Ray is an extra: where it is not installed, what needs it is skipped.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import CHECKOUT, ROOT, Command
from test_parts import alike
from test_workers import double, odd, refuse

from promptkit import collect, engines, parts, pipeline, sentences, workers
from promptkit.embedders import SentenceTransformer
from promptkit.errors import InputError, ResourceError, UsageError
from promptkit.readers import Shard

EACH = engines.over_ray


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Two CPUs that the tests share; `over_ray` uses a Ray that is initialised already."""
    pytest.importorskip("ray", reason="the extra promptkit[ray] is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        path = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(path))  # where its workers find the functions below
        with engines._connected(2) as it:
            yield it
    assert not it.is_initialized()


@pytest.fixture
def mix(tmp_path: Path) -> Path:
    root = tmp_path / "mix"
    for k in range(6):
        path = root / "ab"[k % 2] / f"part-{k}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"messages": [{"role": "user", "content": f"sort list {k} {j}"},
                              {"role": "assistant", "content": f"sorted {j * k} " * 5}]} for j in range(25)]  # fmt: skip
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return root


def tree(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


# -- what a Ray worker does ------------------------------------------------------------------------------------------


def reader_and_its_ray_worker() -> tuple[int, int]:
    return os.getpid(), os.getppid()


def kill_reader() -> None:
    workers.beat("file 7")
    os.kill(os.getpid(), signal.SIGKILL)


def kill_ray_worker() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def still() -> None:
    workers.beat("here")
    time.sleep(600)


def lose_once(unit: list[int], shards: list[Shard], plan: collect.Plan, flag: str, tokenizer: Any) -> collect.Summary:
    """Read as always, but for the first time that shard 3 is met: then the Ray worker is killed in the middle."""
    if 3 in unit and not os.path.exists(flag):
        Path(flag).write_text(str(os.getpid()))
        kill_ray_worker()
    return collect.summarise(unit, shards, plan, tokenizer)


def lose_always(unit: list[int], shards: list[Shard], plan: collect.Plan, tokenizer: Any) -> collect.Summary:
    if 3 in unit:
        kill_ray_worker()
    return collect.summarise(unit, shards, plan, tokenizer)


def test_results_errors_and_the_deaths_of_readers_are_those_of_local_workers(ray: Any) -> None:
    assert dict(EACH([(k, double, (k,)) for k in range(9)], 2, (3,))) == {k: 3 * k for k in range(9)}
    assert list(EACH([], 2)) == []
    with pytest.raises(InputError, match="no good") as error:
        list(EACH([(0, refuse, ())], 2))
    assert error.value.hint == "another"
    with pytest.raises(RuntimeError, match="Odd: 1 and 2"):
        list(EACH([(0, odd, ())], 2))
    outcomes = dict(EACH([("bad", kill_reader, ()), ("still", still, ()), ("good", len, ("abc",))], None, (), 2.0))
    assert outcomes["good"] == 3
    assert outcomes["bad"].at == "file 7"
    assert "SIGKILL" in outcomes["bad"].reason
    assert outcomes["still"] == workers.Lost("no progress for 2 seconds (--shard-timeout)", "here")


def test_a_reader_stays_for_the_next_task_and_ends_with_its_ray_worker(ray: Any) -> None:
    pairs = dict(EACH([(k, reader_and_its_ray_worker, ()) for k in range(6)], 1))
    assert len(set(pairs.values())) == 1
    reader, worker = pairs[0]
    os.kill(worker, signal.SIGKILL)
    end = time.monotonic() + 30
    while Path(f"/proc/{reader}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(reader, 0)


def test_a_lost_ray_worker_is_told_and_the_others_go_on(ray: Any) -> None:
    outcomes = dict(EACH([("bad", kill_ray_worker, ()), *((k, len, ("abc",)) for k in range(4))], 2))
    lost = outcomes.pop("bad")
    assert isinstance(lost, workers.Lost)
    assert "lost by Ray" in lost.reason
    assert set(outcomes.values()) == {3}


def test_a_worker_killed_in_the_middle_costs_time_only(ray: Any, mix: Path, tmp_path: Path) -> None:
    opened = collect.open_directory(mix)
    plan = collect.plan_for(opened, 40, 0, None)
    total, flag = collect.Summary(), tmp_path / "flag"
    for _, part in collect.run(lose_once, opened, plan, 2, None, "read", str(flag), engine="ray"):
        total.merge(part, 40)
    total.keep(40)
    assert flag.exists()
    assert alike(total, collect.collect(opened, sample_size=40, seed=0))


def test_a_unit_that_always_dies_is_accounted_for(ray: Any, mix: Path) -> None:
    opened = collect.open_directory(mix)
    plan = collect.plan_for(opened, 40, 0, None)
    total = collect.Summary()
    for _, part in collect.run(lose_always, opened, plan, 2, None, "read", engine="ray"):
        total.merge(part, 40)
    failed = {i: a.reason for i, a in total.account.items() if a.status == "failed"}
    assert failed.keys() == {3}
    assert "lost by Ray" in failed[3]
    assert sum(a.rows for a in total.account.values()) == 5 * 25


def test_a_restart_over_ray_redoes_nothing(
    ray: Any, mix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "UNIT_FILES", 1)
    opened = collect.open_directory(mix)
    plan = collect.plan_for(opened, 40, 0, None, True)
    assert parts.work(opened, plan, tmp_path / "p", processes=2, engine="ray") == (6, 0)
    next((tmp_path / "p").glob("*.npz")).unlink()
    assert parts.work(opened, plan, tmp_path / "p", processes=2, engine="ray") == (1, 5)
    assert parts.work(opened, plan, tmp_path / "p", processes=2) == (0, 6)


def test_conversations_are_those_of_this_machine(ray: Any, mix: Path, tmp_path: Path) -> None:
    for engine in ("local", "ray"):
        pipeline.detokenize(mix, tmp_path / f"{engine}.jsonl", processes=2, engine=engine)
    assert filecmp.cmp(tmp_path / "local.jsonl", tmp_path / "ray.jsonl", shallow=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["local.jsonl", "mix", "ray.jsonl"]


def test_a_node_of_another_version_is_refused(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "__version__", "9.9.9")
    with pytest.raises(ResourceError, match=r"9\.9\.9") as error:
        list(EACH([(0, len, ("abc",))], 1))
    assert "every node" in error.value.hint


# -- actors that embed -----------------------------------------------------------------------------------------------


class DiesOnce(engines._Actor):
    """An actor that is killed in the middle of the first texts that any of them gets."""

    def encode(self, texts: list[str]) -> Any:
        flag = Path(self.model.name).parent / "flag"
        if not flag.exists():
            flag.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(texts)


class DiesAlways(engines._Actor):
    def load(self, *arguments: Any) -> Any:
        return "cpu float32", np.zeros((1, 2), dtype=np.float32)

    def encode(self, texts: list[str]) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class DiesLoading(engines._Actor):
    def load(self, *arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="session")
def tiny(minilm: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a model of MiniLM's tokens that has one small layer, of random weights."""
    import torch
    from sentence_transformers import SentenceTransformer as Model
    from sentence_transformers.models import Pooling, Transformer
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("models")
    AutoTokenizer.from_pretrained(minilm).save_pretrained(place / "layers")
    shape = BertConfig(
        vocab_size=30522, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    BertModel(shape).save_pretrained(place / "layers")
    Model(modules=[Transformer(str(place / "layers"), max_seq_length=64), Pooling(32)], device="cpu").save(
        str(place / "tiny")
    )
    return str(place / "tiny")


def texts_of(n: int) -> list[str]:
    return [f"sort list {k * 7919 % n} " + "by its length " * (k % 11) for k in range(n)]


def test_vectors_of_actors_are_the_bytes_of_this_machine(ray: Any, tiny: str) -> None:
    model, texts = SentenceTransformer(tiny, device="cpu"), texts_of(3 * sentences.CHUNK + 5)
    expected = model.encode(texts)
    for processes in (1, 2):
        X, on = engines.embed_over_ray(model, texts, processes=processes)
        assert X.tobytes() == expected.tobytes()
        assert on == model.embedded_on == "cpu float32"
    # So are those of a model that is left to the library's own `encode`.
    assert model._fast is not None
    model._fast = None
    shuffled = [texts[k] for k in np.random.default_rng(0).permutation(len(texts))]
    found = [model.encode([shuffled[i] for i in chunk]) for chunk in sentences.chunks(shuffled)]
    together = np.empty_like(expected)
    for chunk, vectors in zip(sentences.chunks(shuffled), found, strict=True):
        together[chunk] = vectors
    assert together.tobytes() == model.encode(shuffled).tobytes()


def test_an_actor_killed_in_the_middle_costs_time_only(
    ray: Any, minilm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentences, "CHUNK", 8)  # an actor, which does not see that, is given one of these at a time
    monkeypatch.setattr(engines, "_RUN", 1)
    monkeypatch.setattr(engines, "_Actor", DiesOnce)
    (tmp_path / "model").symlink_to(minilm)
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    X, _ = engines.embed_over_ray(model, texts_of(40), processes=2)
    assert (tmp_path / "flag").exists()
    assert X.tobytes() == model.encode(texts_of(40)).tobytes()


@pytest.mark.parametrize(("actor", "what"), [(DiesAlways, "embedded 20 texts"), (DiesLoading, "loaded the model")])
def test_actors_that_always_die_are_an_error(ray: Any, monkeypatch: pytest.MonkeyPatch, actor: type, what: str) -> None:
    monkeypatch.setattr(engines, "_Actor", actor)
    with pytest.raises(
        ResourceError, match=f"{what} was lost 3 times \\(ActorDiedError\\), expected at most 2"
    ) as error:
        engines.embed_over_ray(SentenceTransformer("some/model"), texts_of(20), processes=1)
    assert "ray status" in error.value.hint


def test_a_machine_that_cannot_load_the_model_is_named(ray: Any, tmp_path: Path) -> None:
    model = SentenceTransformer(str(tmp_path / "nothing-here"), device="cpu")
    with pytest.raises(UsageError, match=f"nothing-here.*on machine {socket.gethostname()}") as error:
        engines.embed_over_ray(model, ["a"])
    assert "must be one that all see" in error.value.hint
    with pytest.raises(UsageError, match="cluster has no GPU"):
        engines.embed_over_ray(SentenceTransformer(str(tmp_path), device="cuda"), ["a"])


def test_actors_for_which_there_is_no_place_are_not_waited_for_without_end(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_ACTOR_SECONDS", 0.5)
    monkeypatch.setattr(engines, "_places", lambda *_: ("cpu", 1, {"num_cpus": 64, "memory": 1 << 30}))
    with pytest.raises(ResourceError, match=r"none of 1 Ray actors.*64 CPU and 1,073,741,824 bytes") as error:
        engines.embed_over_ray(SentenceTransformer("some/model"), ["a"])
    assert "ray status" in error.value.hint


class Other(engines._Actor):
    def load(self, *arguments: Any) -> Any:
        return "cpu float32", np.full((1, 2), os.getpid(), dtype=np.float32)

    def encode(self, texts: list[str]) -> Any:
        time.sleep(0.1)
        return np.zeros((len(texts), 2), dtype=np.float32)


def test_actors_with_different_models_are_refused(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "CHUNK", 8)
    monkeypatch.setattr(engines, "_RUN", 1)
    monkeypatch.setattr(engines, "_Actor", Other)
    with pytest.raises(ResourceError, match="do not give the same vectors"):
        engines.embed_over_ray(SentenceTransformer("some/model"), texts_of(4000), processes=2)


def test_there_is_one_actor_for_each_gpu_else_as_many_as_cpus_and_memory_allow() -> None:
    big, small = {"CPU": 16.0, "memory": 9.0 * (2 << 30)}, {"CPU": 4.0, "memory": 64.0 * (2 << 30)}
    on_gpus = {"num_gpus": 1, "num_cpus": 0}
    assert engines._places("auto", 1, [big | {"GPU": 4.0}, small, small | {"GPU": 1.0}], 2) == ("auto", 5, on_gpus)
    assert engines._places("cuda:1", 1, [big | {"GPU": 4.0}], None) == ("cuda", 4, on_gpus)
    on_cpus = {"num_cpus": 1, "memory": 2 << 30}
    assert engines._places("cpu", 1, [big | {"GPU": 4.0}, small], None) == ("cpu", 9 + 4, on_cpus)
    assert engines._places("auto", 1, [big, small], 3) == ("cpu", 3, on_cpus)
    assert engines._places("auto", 3, [big, small], None) == ("cpu", 5 + 1, on_cpus | {"num_cpus": 3})
    assert engines._places("auto", 8, [{"CPU": 4.0, "memory": 1e9}], None) == ("cpu", 1, {"num_cpus": 0})


GPUS = """
import json, sys, numpy as np, ray
from promptkit import engines
from promptkit.embedders import SentenceTransformer
ray.init(address="local", num_cpus=1, num_gpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[2])
seen = []
kill = ray.kill
ray.kill = lambda actor: (seen.append(ray.get(actor.holds.remote())), kill(actor))
class Tells(engines._Actor):
    def holds(self):
        return [ray.get_gpu_ids(), self.model.device]
engines._Actor = Tells
engines._RUN = 1
X, on = engines.embed_over_ray(SentenceTransformer(sys.argv[1]), json.load(sys.stdin))
json.dump([sorted(seen), on, X.tolist()], sys.stdout)
"""


def test_each_actor_holds_a_gpu_of_its_own(tiny: str) -> None:
    """The GPUs are none: torch sees none of them, and `auto` is the CPU. Who holds which is Ray's part."""
    pytest.importorskip("ray", reason="the extra promptkit[ray] is not installed")
    texts = texts_of(2 * sentences.CHUNK)
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"PYTHONPATH": str(ROOT)}
    place = Path("/tmp") / f"pk{os.getpid()}g"
    place.mkdir()
    try:
        done = subprocess.run(
            [sys.executable, "-c", GPUS, tiny, str(place)], input=json.dumps(texts), env=env, timeout=240,
            capture_output=True, text=True,
        )  # fmt: skip
    finally:
        shutil.rmtree(place)
    assert done.returncode == 0, done.stderr
    held, on, X = json.loads(done.stdout)
    assert held == [[["0"], "auto"], [["1"], "auto"]] or held == [[[0], "auto"], [[1], "auto"]]
    assert on == "cpu float32"
    assert np.float32(X).tobytes() == SentenceTransformer(tiny, device="cpu").encode(texts).tobytes()


# -- the command -----------------------------------------------------------------------------------------------------


def test_a_build_over_a_ray_of_its_own_gives_the_bytes_of_a_local_one(
    mix: Path, tmp_path: Path, promptkit_command: Command
) -> None:
    pytest.importorskip("ray", reason="the extra promptkit[ray] is not installed")
    place = Path("/tmp") / f"pk{os.getpid()}"  # Ray's sockets have short names
    place.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"TMPDIR": str(place)}
    try:
        for engine in ("local", "ray"):
            done = promptkit_command(
                "build", "--from", mix, "--out", tmp_path / engine, "--size", "5", "--engine", engine,
                "--processes", "2", "--json", cwd=tmp_path, env=env,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            json.loads(done.stdout)
        assert tree(tmp_path / "local") == tree(tmp_path / "ray")
        assert list(place.iterdir()) == []
    finally:
        shutil.rmtree(place)


def test_a_cluster_that_is_not_there_is_named(mix: Path, promptkit_command: Command) -> None:
    pytest.importorskip("ray", reason="the extra promptkit[ray] is not installed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    done = promptkit_command("inspect", mix, "--engine", "ray", env={**os.environ, "RAY_ADDRESS": address}, timeout=120)
    assert done.returncode == 6
    assert f"Ray at {address} cannot be reached" in done.stderr
    assert "RAY_ADDRESS" in done.stderr


@pytest.mark.parametrize("address", ["nonsense", "http://head:8265", " 127.0.0.1:1 "])
def test_an_address_that_is_none_is_named(
    mix: Path, monkeypatch: pytest.MonkeyPatch, promptkit_command: Command, address: str
) -> None:
    pytest.importorskip("ray", reason="the extra promptkit[ray] is not installed")
    done = promptkit_command("inspect", mix, "--engine", "ray", env={**os.environ, "RAY_ADDRESS": address}, timeout=120)
    assert done.returncode == 6, done.stderr
    assert f"Ray at {address.strip()} cannot be reached" in done.stderr
    assert "HOST:PORT" in done.stderr


class Stop(BaseException):
    """What a handler of SIGTERM raises, as the command's does."""


@pytest.fixture
def stops() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_signal_while_ray_starts_is_raised_when_it_has_started(stops: None) -> None:
    steps: list[str] = []

    def init(**_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        steps.append("whole")

    ray = SimpleNamespace(init=init, exceptions=SimpleNamespace(RayError=ValueError))
    with ThreadPoolExecutor(1) as thread:
        thread.submit(int).result()
        with pytest.raises(Stop):
            engines._reach(thread, ray, "", {})
    assert steps == ["whole"]


def finish_late(flag: str) -> None:
    time.sleep(15)
    Path(flag).write_text("done")


def test_a_signal_while_a_unit_is_read_is_not_kept_waiting(ray: Any, stops: None, tmp_path: Path) -> None:
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(Stop):
        list(EACH([(0, finish_late, (str(tmp_path / "flag"),))], 1))
    assert not (tmp_path / "flag").exists()


def children_of(pid: int) -> list[int]:
    return [int(k) for path in Path(f"/proc/{pid}/task").glob("*/children") for k in path.read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read in /proc")
@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGTERM, 0.1), (signal.SIGTERM, 1.5), (signal.SIGINT, 1.0)])
def test_a_command_stopped_while_ray_starts_leaves_nothing(mix: Path, number: signal.Signals, seconds: float) -> None:
    pytest.importorskip("ray", reason="the extra promptkit[ray] is not installed")
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"PYTHONPATH": str(ROOT)}
    place = Path("/tmp") / f"pk{os.getpid()}s"
    place.mkdir()
    try:
        command = subprocess.Popen(
            [sys.executable, "-c", CHECKOUT, "inspect", str(mix), "--engine", "ray", "--processes", "1"], text=True,
            env=env | {"TMPDIR": str(place)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        while not list(place.iterdir()):
            assert command.poll() is None
            time.sleep(0.01)
        time.sleep(seconds)  # into its start, which takes some
        family = children_of(command.pid)
        command.send_signal(number)
        _, said = command.communicate(timeout=120)
        assert command.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number], said
        assert "run the same command again" in said.splitlines()[-1]
        assert "Traceback" not in said
        assert list(place.iterdir()) == []
        end = time.monotonic() + 20
        while any(Path(f"/proc/{pid}").exists() for pid in family) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(Path(f"/proc/{pid}").exists() for pid in family)
    finally:
        shutil.rmtree(place)


AFTERWARDS = """
import os, signal, sys, threading
from promptkit import engines
def stop(*_):
    raise SystemExit(99)
signal.signal(signal.SIGTERM, stop)
assert list(engines.over_ray([], 1)) == []
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""


def test_a_signal_after_ray_has_left_reaches_who_had_it(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra promptkit[ray] is not installed")
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": "/tmp",
    }
    done = subprocess.run([sys.executable, "-c", AFTERWARDS], env=env, timeout=120, capture_output=True, text=True)
    assert done.returncode == 99, done.stderr


def test_without_ray_the_next_step_is_said(mix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="Ray is not installed") as error:
        pipeline.build(mix, out=tmp_path / "out", engine="ray")
    assert "ray>=2.52" in error.value.hint
    assert not (tmp_path / "out").exists()


def test_what_makes_no_sense_with_ray_is_refused(mix: Path, tmp_path: Path, promptkit_command: Command) -> None:
    start = ("build", "--from", mix, "--engine")
    for words, said in (
        ((*start, "rey"), "did you mean 'ray'"),
        ((*start, "ray", "--worker", "0/2", "--parts", tmp_path / "p"), "both deal out the units"),
    ):
        done = promptkit_command(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
    with pytest.raises(UsageError, match="holdout"):
        pipeline.build(mix, out=tmp_path / "out", engine="ray", holdout=0.1)
