"""A training directory as a candidate of a score: what is drawn of it, and what the command says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import EXAMPLES, Command

from promptkit import drift
from promptkit.conversation import opening
from promptkit.errors import InputError, UsageError

MIX = EXAMPLES / "training_mix"


def test_rows_become_the_prompts_that_they_are():
    drawn = drift.draw(MIX, size=40, processes=1)
    assert len(drawn.prompts) == 40 < drawn.rows
    assert not drawn.lossy
    assert len({(p.extra["shard"], p.extra["row"]) for p in drawn.prompts}) == 40
    assert all(opening(p.messages).strip() for p in drawn.prompts)
    assert sum(p.response is not None for p in drawn.prompts) > 20
    assert len({p.source for p in drawn.prompts}) > 1


def test_a_sample_is_its_seeds_and_a_smaller_one_is_part_of_a_larger():
    def places(**options):
        return [(p.extra["shard"], p.extra["row"]) for p in drift.draw(MIX, processes=1, **options).prompts]

    assert places(size=30) == places(size=30)
    assert set(places(size=10)) < set(places(size=30))
    assert places(size=30) != places(size=30, seed=1)
    assert len(places(size=10**6)) > 100


def test_packs_are_no_training_directories(tmp_path, example_build):
    assert drift.is_training_directory(MIX)
    (pack,) = (example_build / "packs").glob("*/*")
    assert not drift.is_training_directory(pack)
    assert not drift.is_training_directory(pack.parent)
    assert not drift.is_training_directory(EXAMPLES / "candidates.jsonl")
    assert not drift.is_training_directory("no such place")
    with pytest.raises(InputError, match="no training shards"):
        drift.draw(tmp_path)
    with pytest.raises(UsageError, match="sample is 0"):
        drift.draw(MIX, size=0)


def test_a_mix_has_not_drifted_from_itself_and_half_of_it_has(
    promptkit_command: Command, example_build: Path, tmp_path: Path
):
    against = ("--against", example_build / "reference", "--draws", "199", "--json")
    done = promptkit_command("score", MIX, *against, "--sample", "120")
    assert done.returncode == 0, done.stderr
    same = json.loads(done.stdout)
    assert same["n"] == same["drift"]["sampled"] == 120
    assert same["drift"]["rows"] > 120
    assert same["p_value"] > 0.01
    assert same["responses"]["n"] > 60
    rows = [p for p in drift.draw(MIX, size=10**6, processes=1).prompts if p.source == same_source(MIX)]
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.jsonl").write_text("".join(json.dumps({"messages": p.messages}) + "\n" for p in rows))
    done = promptkit_command("score", other, *against, "--tokenizer", "x")
    assert done.returncode == 2  # no such option here: detokenize the directory first
    done = promptkit_command("score", other, *against)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["p_mix"] < 0.01
    text = promptkit_command("score", MIX, *against[:-1], "--sample", "60")
    assert "drift: 60 of " in text.stdout
    assert "in both: 60 of 60" in text.stdout or "in both: " in text.stdout
    assert "leaked" not in text.stdout
    file = EXAMPLES / "candidates.jsonl"
    assert promptkit_command("score", file, *against, "--sample", "60").returncode == 2


def same_source(root: Path) -> str:
    return sorted(p.name for p in root.iterdir() if p.is_dir())[0]
