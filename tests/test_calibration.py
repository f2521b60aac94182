"""The measuring of calibration measures: its sets are judged as a score judges them, its limits hold what they should."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from conftest import ROOT

sys.path.append(str(ROOT))  # benchmarks/ is not installed
from benchmarks import calibration, worlds
from promptkit import scoring
from promptkit.errors import UsageError
from promptkit.tokenizers import load_tokenizer


@pytest.fixture(scope="module")
def fresh():
    prompts, topics = worlds.made_up("topics", 380, np.random.default_rng(0))
    ref = worlds.fit(prompts[:300], topics[:300], load_tokenizer("words"), 0)
    return prompts[300:], ref


def test_a_set_is_judged_as_a_score_judges_it(fresh):
    prompts, ref = fresh
    judge = worlds.Judge(prompts, ref)
    at = np.array([3, 70, 12, 41, 5, 66, 20, 9])
    mine, theirs = judge(at, seed=4, draws=99), scoring.score([prompts[i] for i in at], ref, seed=4, draws=99)
    assert (mine.joint.overall, mine.joint.family["mix"], mine.joint.family["fidelity"]) == (
        theirs.p_value, theirs.p_mix, theirs.p_fidelity,
    )  # fmt: skip
    for name in ("distance", "excess", "fidelity", "coverage", "mix_overlap", "domain_overlap"):
        assert getattr(mine, name) == pytest.approx(getattr(theirs, name), abs=1e-9), name
    for name, ends in theirs.intervals.items():
        assert mine.intervals[name] == pytest.approx(ends, abs=1e-9), name


@pytest.mark.parametrize("kind", worlds.MADE_UP)
def test_made_up_mixes_repeat_with_a_seed_and_are_what_they_say(kind):
    first, again, other = (worlds.made_up(kind, 60, np.random.default_rng(s))[0] for s in (1, 1, 2))
    assert [p.messages for p in first] == [p.messages for p in again] != [p.messages for p in other]
    lengths = np.array([len(p.messages[-1]["content"].split()) for p in first])
    if kind == "templates":
        assert all(p.messages[0]["role"] == "system" for p in first)
    elif kind == "heavy tails":
        assert lengths.max() > 10 * np.median(lengths)
    elif kind == "near-duplicates":
        assert len(np.unique(worlds.units_of(worlds.made_up(kind, 300, np.random.default_rng(1))[0]))) < 285


def test_limits_are_binomial_for_independent_sets_and_wider_where_refits_scatter():
    even = worlds.clustered([0.05, 0.05, 0.05, 0.05], 0.05, 100)
    assert even["rate"] == pytest.approx(0.05)
    assert even["high"] - 0.05 == pytest.approx(3.182 * np.sqrt(0.05 * 0.95 / 400), rel=1e-3)  # t with 3 degrees
    apart = worlds.clustered([0.0, 0.2, 0.0, 0.0], 0.05, 100)
    assert apart["high"] - 0.05 == pytest.approx(3.182 * 0.05, rel=1e-3)  # sd 0.1 over root 4
    assert apart["scatter"] > 4
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        rates = rng.binomial(8, rng.beta(2.0, 38.0, 50)) / 8  # mean 0.05, refits differ
        found = worlds.clustered(rates, 0.05, 8)
        inside += found["low"] <= found["rate"] <= found["high"]
    assert 0.91 <= inside / 400 <= 0.99


def test_a_tiny_run_writes_counts_and_tables_and_goes_on_where_it_stopped(tmp_path, capsys):
    out = tmp_path / "figures.json"
    options = ["--made-up", "topics", "--fit-rows", "160", "--fresh", "120", "--sizes", "10", "--sets", "3",
               "--draws", "99", "--out", str(out)]  # fmt: skip
    calibration.main([*options, "--refits", "1"])
    calibration.main([*options, "--refits", "2"])
    figures = json.loads(out.read_text())
    assert [r["seed"] for r in figures["records"]] == [0, 1]
    assert "1/1 " in capsys.readouterr().out
    for record in figures["records"]:
        assert np.array(record["p"]["10"]).shape == (3, 3)
        assert record["typicality"] == sorted(record["typicality"])
        hits, sets = record["intervals"]["mix"]["10"]["fidelity"]
        assert 0 <= hits <= sets == 3
        assert "half of its sources" in record["intervals"]
    table = out.with_suffix(".md").read_text()
    assert "| n = 10 |" in table
    assert "`coverage`" in table


def test_an_alarm_that_rings_too_often_is_marked():
    p = [[0.001, 0.5, 0.5]] + [[0.6, 0.5, 0.5]] * 4  # one set in five
    interval = {"mix": {"10": {"fidelity": [3, 5]}}}
    record = {"world": "w", "fit_rows": 9, "drawn": "groups", "regime": "split", "held_out": 3, "fresh": 50,
              "typicality": list(calibration.QUANTILES), "p": {"10": p}, "intervals": interval}  # fmt: skip
    entry = calibration.summary([{**record, "seed": s} for s in range(30)])
    text = calibration.tables({"machine": "m", "summary": entry})
    alarms = text.partition("`p_value`")[2].partition("`p_mix`")[0]
    assert alarms.count("!") == 3
    assert "20.0 (0.0-11.5) !" not in alarms.partition("| n = 10 |")[0]
    assert text.count("| n = 10 | 0.0") == 2  # p_mix and p_fidelity rang never
    assert "60.0" in text.partition("`fidelity`")[2]


def test_directories_are_read_by_source(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jsonl").write_text('{"prompt": "sort a list"}\n{"prompt": "merge two"}\n')
    (tmp_path / "b.jsonl").write_text('{"messages": [{"role": "user", "content": "hello"}]}\n')
    found = worlds.read_sources(tmp_path)
    assert {s: len(p) for s, p in found.items()} == {"a": 2, "b": 1}
    with pytest.raises(UsageError, match=r"no \*\.jsonl"):
        worlds.read_sources(tmp_path / "a" / "nothing")
