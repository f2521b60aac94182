"""The measuring tools measure: a stage that burns time shows it, the bare decoder decodes, links multiply rows."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import EXAMPLES, ROOT

if not Path("/proc/self/statm").exists():
    pytest.skip("benchmarks read /proc", allow_module_level=True)

sys.path.append(str(ROOT))  # benchmarks/ is not installed
import promptkit
from benchmarks import limits
from benchmarks.__main__ import multiplied
from benchmarks.watch import Watch
from promptkit import readers


def test_watch_sees_time_and_memory_of_children() -> None:
    burn = (
        "import time; x = bytearray(150 << 20); end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    )
    with Watch() as watch:
        with watch.stage("child"):
            subprocess.run([sys.executable, "-c", burn], check=True)
        with watch.stage("sleep"):
            time.sleep(0.2)
    child, sleep = watch.stages["child"], watch.stages["sleep"]
    assert child.cpu_seconds >= 0.25
    assert child.peak_bytes > 150 << 20
    assert sleep.wall_seconds >= 0.2
    assert sleep.cpu_seconds < child.cpu_seconds


def test_progress_callbacks_become_stages() -> None:
    with Watch() as watch:
        for stage in ("read", "read", "decode", "read"):
            watch.progress(stage, 0, None)
    assert list(watch.stages) == ["read", "decode"]


def test_gather_decodes_like_a_join() -> None:
    table = [b"a", b"", "ü".encode(), b"xyz"]
    ids = np.array([3, 0, 1, 2, 2, 3])
    assert limits.gather_decode(ids, table) == b"xyza" + "üü".encode() + b"xyz"
    assert limits.gather_decode(np.array([], np.int64), table) == b""


def test_bare_readers_take_every_example_shard() -> None:
    shards = readers.find_shards(EXAMPLES / "training_mix").shards
    for shard in shards:
        limits.bare_read(EXAMPLES / "training_mix" / shard.path, shard.format)
    n_bytes, _ = limits.raw_bytes(EXAMPLES / "training_mix", shards)
    assert n_bytes == sum(s.n_bytes for s in shards)


def test_links_multiply_the_rows(tmp_path: Path) -> None:
    root = multiplied(EXAMPLES / "training_mix", 1500, tmp_path / "mix")
    tree = readers.find_shards(root)
    once = readers.find_shards(EXAMPLES / "training_mix")
    assert len(tree.shards) == 3 * len(once.shards)
    assert tree.tokenizer_dirs == once.tokenizer_dirs
    assert len({s.source for s in tree.shards}) == 18


def test_sizes_keep_every_file_that_is_no_shard_and_the_share_of_sources(tmp_path: Path) -> None:
    from benchmarks import scaling

    whole = promptkit.inspect(EXAMPLES / "training_mix")
    half = promptkit.inspect(scaling.sized(EXAMPLES / "training_mix", 300, tmp_path / "mix"))
    rows = {s["source"]: s["rows"] for s in whole.sources}
    assert half.tokenizer == whole.tokenizer
    assert 0 < sum(s["rows"] for s in half.sources) < sum(rows.values())
    assert all(s["rows"] <= rows[s["source"]] for s in half.sources)


def test_exponents_are_slopes_in_logarithms() -> None:
    from benchmarks import scaling

    found = [{"rows": n, "reading_cpu_seconds": 2 * n, "cpu_seconds": n**0.5} for n in (10, 100, 1000)]
    slopes = scaling.exponents(found)
    assert slopes["reading"]["between"] == pytest.approx([1.0, 1.0])
    assert slopes["the whole build"]["all"] == pytest.approx(0.5)


def test_readers_are_set_beside_libraries_that_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import readers as beside

    monkeypatch.setattr(beside, "TURNS", 1)
    figures = {f["what"]: f for f in beside.measure(tmp_path, 30, None)}
    assert {"arrow", "parquet", "jsonl", "decode, all at once", "arrow, and decode"} <= set(figures)
    for name, works in beside.BESIDE.items():
        if name in figures:
            assert {work(tmp_path / name) for work in works.values()} == {beside._read(tmp_path / name)}
    assert all(f["promptkit"] > 0 and f["times"] > 0 for f in figures.values())


@pytest.mark.slow
def test_whole_run_writes_figures(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--dir", EXAMPLES / "training_mix", "--size", "40", "--json", out],
        cwd=ROOT, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert figures["directory"]["rows"] == 667
    stages = {s["name"]: s for s in figures["stages"]}
    assert {"read", "decode", "select", "cluster", "leak check of the pack"} <= set(stages)
    assert sum(s["wall_seconds"] for s in figures["stages"]) >= figures["build_wall_seconds"]
    assert all(limit["seconds"] > 0 for limit in figures["limits"])


WRONG = {
    "": [["--dir", "nope"]],
    "peers": [["--dir", "nope"], ["--reference", "nope"], ["--reference", "general", "--prompts", "nope"],
              ["--reference", "general", "--python", "nope"]],
    "gpu": [["--texts", "nope"], ["--device", "cuda:99"], ["--model", "/nope", "--device", "cpu"]],
    "readers": [["--tokenizer", "nope"]],
    "scaling": [["--dir", "nope"]],
    "leakage": [[], ["nope"], ["--training", "nope"]],
    "selection": [["--mix", "", "--reference", "nope"]],
    "power": [["--mix", "nope", "--foreign", "."], ["--mix", "promptkit", "--foreign", "promptkit"]],
    "power_peers": [["nope"]],
    "calibration": [["--dir", "nope"], ["--dir", "promptkit", "--out", "nope.json"]],
    "density_ratio": [["--mix", ".", "--foreign", "nope"]],
    "exact_decode": [["--data", "nope", "README.md"], ["--data", ".", "nope"]],
    "train_domains": [["--data", "nope"]],
    "corpora": [["--data", "nope"]],
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_there_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "gpu":
        pytest.importorskip("sentence_transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(ROOT)
    command = f"benchmarks.{name or '__main__'}"
    monkeypatch.delitem(sys.modules, command, raising=False)  # to be run, not found there
    for words in WRONG[name]:
        monkeypatch.setattr(sys, "argv", [command, *words])
        with pytest.raises(SystemExit) as done:
            runpy.run_module(command, run_name="__main__", alter_sys=True)
        said = capsys.readouterr().err
        assert done.value.code == 2, said
        (line,) = said.splitlines()
        assert line.startswith("error: ")
        assert "; next: " in line
        assert "nope" in line or "cuda:99" in line or words in ([], WRONG["power"][-1], WRONG["calibration"][-1])


def test_peers_answer_beside_promptkit_and_missing_ones_are_named(
    tmp_path: Path, example_build: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import peers

    absent = peers.Answer("duplicates", "not there", "no-such-peer", "no_such_peer", lambda inputs, n: None)
    questions = "decode,duplicates,leaks"
    monkeypatch.setattr(peers, "ANSWERS", [*peers.ANSWERS, absent])
    monkeypatch.setattr(peers, "PLANTED", 20)
    out = tmp_path / "figures.json"
    peers.main(["--reference", str(example_build / "reference"), "--questions", questions, "--json", str(out)])
    figures = json.loads(out.read_text("utf-8"))
    assert set(figures["questions"]) == set(questions.split(","))
    answers = {(a["question"], a["answer"]): a for a in figures["answers"]}
    assert len(answers) == len([a for a in peers.ANSWERS if a.question in figures["questions"]])  # none left out
    for a in answers.values():
        assert ("missing" in a) != (a.get("cpu", 0) > 0)
        assert "missing" not in a or a["missing"] == f"not installed: pip install {a['pip']}"
    ours = answers["duplicates", "promptkit"]
    assert ours["times"] == 1
    assert ours["quality"]["found at 0.8 or more"] == 1  # by definition
    assert ours["quality"]["by_kind"]["case and spaces"] == 1
    assert answers["leaks", "promptkit"]["quality"]["found"] > 0.9
    same = {a["quality"]["characters"] for (q, _), a in answers.items() if q == "decode" and "quality" in a}
    assert len(same) == 1  # tiktoken and tokenizers give the same text
    assert "not installed: pip install no-such-peer" in capsys.readouterr().out
