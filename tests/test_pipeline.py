"""Reading a mix: exact counts, the same bytes however the work is cut, an account whose sums match."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tiny_tokenizers as tiny
from conftest import EXAMPLES, ROOT, Command

from promptkit import collect, frames, pipeline, readers, workers
from promptkit.errors import InputError, UsageError
from promptkit.tokenizers import load_tokenizer

MIX = EXAMPLES / "training_mix"


@pytest.fixture(scope="module")
def opened() -> collect.Opened:
    return collect.open_directory(MIX)


def key(row: collect.Row) -> tuple[bytes, int, int]:
    return row.priority, row.shard, row.record.row


def test_summaries_merge_to_the_same_in_any_order_and_grouping(opened: collect.Opened) -> None:
    plan = collect.plan_for(opened, 50, 0, None)
    parts = [collect.summarise([i], [s], plan, opened.tokenizer) for i, s in enumerate(opened.shards)]
    whole = collect.summarise(list(range(len(parts))), list(opened.shards), plan, opened.tokenizer)
    for seed in range(3):
        shuffled = random.Random(seed).sample(parts, len(parts))
        half = len(shuffled) // 2
        groups = [shuffled[:half], shuffled[half:]]
        total = collect.Summary()
        for group in groups:
            middle = collect.Summary()
            for part in group:
                middle.merge(part, 50)
            total.merge(middle, 50)
        total.keep(50)
        assert [key(r) for r in total.sample] == [key(r) for r in whole.sample]
        assert (total.sources, total.lengths, total.account) == (whole.sources, whole.lengths, whole.account)


def test_the_sample_holds_the_rows_of_smallest_hash(opened: collect.Opened) -> None:
    every = collect.collect(opened, sample_size=10**6, seed=7, processes=1)
    few = collect.collect(opened, sample_size=40, seed=7, processes=1)
    assert len(every.sample) == sum(c["rows"] for c in every.sources.values()) > 500
    assert [key(r) for r in few.sample] == sorted(map(key, every.sample))[:40]
    other = collect.collect(opened, sample_size=40, seed=8, processes=1)
    assert [key(r) for r in other.sample] != [key(r) for r in few.sample]


def test_two_processes_give_the_sample_and_counts_of_one(
    opened: collect.Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = collect.collect(opened, sample_size=60, seed=0, processes=1)
    monkeypatch.setattr(collect, "UNIT_FILES", 20)
    monkeypatch.setattr(collect, "POOL_BYTES", 0)
    two = collect.collect(opened, sample_size=60, seed=0, processes=2)
    assert (two.sources, two.account) == (one.sources, one.account)
    assert frames.frame_of(opened, two.sample).equals(frames.frame_of(opened, one.sample))


def test_the_account_names_every_file_and_its_sums_match_the_rows_written(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    done = pipeline.detokenize(MIX, out, processes=1)
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert done.rows == len(rows) == sum(a.rows for a in done.account)
    assert Counter(r["source"] for r in rows) == {s["source"]: s["rows"] for s in done.sources}
    on_disk = {p.relative_to(MIX).as_posix() for p in MIX.rglob("*") if p.is_file()}
    assert {a.path for a in done.account} == on_disk
    assert sum(r["n_tokens"] or 0 for r in rows) == sum(s["tokens"] for s in done.sources)
    assert not done.lossy


def test_parquet_output_holds_the_same_rows_as_jsonl(tmp_path: Path) -> None:
    import polars as pl

    pipeline.detokenize(MIX, tmp_path / "a.jsonl", sample=30, processes=1)
    pipeline.detokenize(MIX, tmp_path / "a.parquet", sample=30, processes=1)
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text("utf-8").splitlines()]
    table = pl.read_parquet(tmp_path / "a.parquet").to_dicts()
    assert len(lines) == len(table) == 30
    for line, row in zip(lines, table, strict=True):
        assert (row["shard"], row["row"], json.loads(row["messages"])) == (line["shard"], line["row"], line["messages"])


def broken_copy(tmp_path: Path) -> Path:
    copy = tmp_path / "mix"
    shutil.copytree(MIX, copy)
    shard = next((copy / "B3_codeinstruct").rglob("*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-200])
    return copy


def test_a_lost_shard_is_named_and_the_rest_is_written(tmp_path: Path) -> None:
    done = pipeline.detokenize(broken_copy(tmp_path), tmp_path / "rows.jsonl", processes=1)
    failed = [a for a in done.account if a.status == "failed"]
    assert done.lossy
    assert [a.path.split("/")[0] for a in failed] == ["B3_codeinstruct"]
    assert done.rows > 400
    again = pipeline.detokenize(tmp_path / "mix", tmp_path / "rows.jsonl", processes=1, max_bad_shards=1)
    assert not again.lossy


def test_strict_writes_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    copy = broken_copy(tmp_path)
    out = tmp_path / "out" / "rows.jsonl"
    out.parent.mkdir()
    out.write_text("before\n")
    with pytest.raises(InputError, match="1 files and 0 rows failed"):
        pipeline.detokenize(copy, out, processes=1, strict=True)
    assert [p.name for p in out.parent.iterdir()] == ["rows.jsonl"]
    assert out.read_text() == "before\n"


def test_growing_prefixes_of_neighbours_count_once_in_the_mix_and_stay_in_detokenize(tmp_path: Path) -> None:
    shutil.copytree(MIX / "tokenizer", tmp_path / "mix" / "tokenizer")
    opened = collect.open_directory(MIX)
    shard = next(s for s in opened.shards if s.source == "B1_toolcalls")
    ids = [r.ids.tolist() for r in readers.read(MIX, shard) if isinstance(r, readers.Record) and r.ids is not None][:3]
    grown = [ids[0][:40], ids[0][:90], ids[0], ids[1], ids[2][:30], ids[2]]
    (tmp_path / "mix" / "S").mkdir()
    lines = [json.dumps({"input_ids": i, "loss_mask": [1] * len(i)}) for i in grown]
    (tmp_path / "mix" / "S" / "rows.jsonl").write_text("\n".join(lines) + "\n")
    small = collect.open_directory(tmp_path / "mix")
    merged = collect.collect(small, sample_size=10, seed=0, processes=1, merge_prefixes=True)
    assert sorted(r.record.row for r in merged.sample) == [2, 3, 5]
    (entry,) = [a for a in merged.account.values() if a.path.startswith("S/")]
    assert (entry.rows, entry.rows_skipped) == (3, 3)
    assert entry.row_reasons == {"prefix of row 1": 1, "prefix of row 2": 1, "prefix of row 5": 1}
    assert pipeline.detokenize(tmp_path / "mix", tmp_path / "o.jsonl", processes=1).rows == 6


def test_a_pool_prompt_that_the_mix_holds_is_marked_and_said(tmp_path: Path, example_build: Path) -> None:
    from promptkit.packing import pack_rows
    from promptkit.reference import load_reference

    fitted = load_reference(example_build)
    held = fitted.sample["text"].to_list()[:3]
    new = ["Write a Python function that counts the goats in a list.", "Fix this Rust code: fn main() { goat(); }"]
    pool = tmp_path / "pool.jsonl"
    pool.write_text("".join(json.dumps({"prompt": t}) + "\n" for t in held + new))
    drawn = pack_rows(fitted, pool=[pool], size=5)
    rows, notes = drawn.rows, drawn.notes
    assert any(r["in_training"] for r in rows)
    assert all(r["in_training"] == (r["messages"][-1]["content"] in held) for r in rows)
    assert any("3 of 5 pool prompts are in the training sample, or nearly so, and may be drawn" in n for n in notes)
    rows = pack_rows(fitted, pool=[pool], size=2, max_leak=0.25).rows
    assert rows
    assert {r["messages"][-1]["content"] for r in rows} <= set(new)
    assert not any(r["in_training"] for r in rows)
    pool.write_text(json.dumps({"prompt": "Tell me a bedtime story about a goat.", "domain": "writing"}))
    with pytest.raises(InputError, match="none of 1 is of a domain that 1 prompts of this mix would hold"):
        pack_rows(fitted, pool=[pool], size=1)


def test_prompts_with_secrets_or_personal_data_are_not_drawn_unless_asked_for(
    example_build: Path, tmp_path: Path
) -> None:
    from promptkit.packing import pack_rows
    from promptkit.reference import load_reference

    fitted = load_reference(example_build)
    clean = ["Write a Python function that counts the goats in a list.", "Sort a list of goats in Python."]
    private = [
        "Write a Python mail to ada.k@web.de with the list.",
        "Write a Python call to +44 7911 842396, jo@gmx.de.",
    ]
    pool = tmp_path / "pool.jsonl"
    pool.write_text("".join(json.dumps({"prompt": t, "domain": "coding"}) + "\n" for t in clean + private))
    drawn = pack_rows(fitted, pool=[pool], size=4)
    assert sorted(r["messages"][-1]["content"] for r in drawn.rows) == sorted(clean)
    found = {"e-mail address": 2, "phone number": 1}
    assert drawn.personal_data == {"looked_at": 4, "flagged": 2, "found": found, "kept": False}
    assert any("2 of 4 prompts seem to hold secrets or personal data" in n for n in drawn.notes)
    assert not any("web.de" in n or "7911" in n for n in drawn.notes)
    kept = pack_rows(fitted, pool=[pool], size=4, keep_personal_data=True)
    assert len(kept.rows) == 4
    assert kept.personal_data["kept"]


def test_a_pool_that_is_missing_or_not_there_to_limit_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pool none\.jsonl: no such file"):
        pipeline.build(tmp_path / "nowhere", out=tmp_path, pool=["none.jsonl"])
    for odd, told in (
        ({"max_leak": float("nan"), "pool": [tmp_path]}, "max_leak is nan"),
        ({"max_leak": 1.5, "pool": [tmp_path]}, "max_leak is 1.5"),
        ({"version": "1.0"}, "version '1.0'"),
        ({"turns": "last"}, "turns is 'last'"),
    ):
        with pytest.raises(UsageError, match=told):
            pipeline.build(tmp_path / "nowhere", out=tmp_path, **odd)
    with pytest.raises(UsageError, match="max_leak was given for a pack drawn from the mix"):
        pipeline.build(tmp_path / "nowhere", out=tmp_path, max_leak=0.2)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_numpy_or_scikit_learn_refuses_is_refused_at_once(tmp_path: Path, seed: int) -> None:
    with pytest.raises(UsageError, match=f"seed is {seed}"):
        pipeline.build(MIX, out=tmp_path, seed=seed)


def test_a_missing_directory_and_an_empty_one_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        pipeline.inspect(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no training shards") as error:
        pipeline.inspect(tmp_path)
    assert error.value.hint


def test_where_no_row_could_be_read_the_error_says_what_was_wrong_with_each_file(tmp_path: Path) -> None:
    (tmp_path / "a\n  forged.jsonl").write_text("not json")
    with pytest.raises(InputError, match="not one row") as error:
        pipeline.inspect(tmp_path)
    assert "a\\n  forged.jsonl: read (not JSON, or cut, 1 row)" in error.value.hint


def test_ids_without_a_tokenizer_name_the_option(tmp_path: Path) -> None:
    shutil.copytree(MIX / "B1_toolcalls", tmp_path / "mix" / "B1_toolcalls")
    with pytest.raises(InputError, match="no tokenizer") as error:
        pipeline.inspect(tmp_path / "mix")
    assert "--tokenizer" in error.value.hint
    with_one = pipeline.inspect(tmp_path / "mix", tokenizer=str(MIX / "tokenizer"))
    assert with_one.sources[0]["rows"] > 0


@pytest.mark.parametrize("name", ["text_7b.jsonl", "zzz.jsonl"])
def test_ids_among_many_shards_of_text_are_not_overlooked(tmp_path: Path, name: str) -> None:
    for i in range(15):
        (tmp_path / f"text_{i}.jsonl").write_text('{"text": "Write a sort."}\n')
    (tmp_path / name).write_text('{"input_ids": [5, 6, 7]}\n')
    with pytest.raises(InputError, match="no tokenizer"):
        pipeline.inspect(tmp_path)


def test_text_only_directories_need_no_tokenizer(tmp_path: Path) -> None:
    shutil.copytree(MIX / "D1_raw", tmp_path / "mix" / "D1_raw")
    seen = pipeline.inspect(tmp_path / "mix")
    assert seen.sources[0]["text_rows"] == seen.sources[0]["rows"] > 0
    assert any("words and symbols" in line for line in seen.template["evidence"])


def test_a_file_full_of_foreign_ids_is_failed_not_guessed(tmp_path: Path) -> None:
    shutil.copytree(MIX, tmp_path / "mix")
    lines = [json.dumps({"input_ids": [10**6 + i] * 50, "loss_mask": [1] * 50}) for i in range(5)]
    (tmp_path / "mix" / "B1_toolcalls" / "zz.jsonl").write_text("\n".join(lines) + "\n")
    done = pipeline.detokenize(tmp_path / "mix", tmp_path / "o.jsonl", processes=1)
    (entry,) = [a for a in done.account if a.path.endswith("zz.jsonl")]
    assert entry.status == "failed"
    assert "250 of 250 ids" in entry.reason
    assert done.lossy


def test_of_several_tokenizers_the_one_that_fits_is_used(tmp_path: Path) -> None:
    """The nearest comes first; where the evidence speaks against it the others are tried, and that is said."""
    words = ["zero", "one", "two", "three"]
    good = tiny.write_kimi(tmp_path / "mix" / "z" / "model")
    tokenizer = load_tokenizer(good)
    tiny.write_tiktoken(tmp_path / "mix" / "other", {**tiny.CHATML, "[X]": 163_900})
    text = "<|im_user|>user<|im_middle|>{}<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>{}<|im_end|>"
    rows = [tokenizer.encode_rendered(text.format(w, w[::-1])).tolist() for w in words * 10]
    (tmp_path / "mix" / "a.jsonl").write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in rows))
    opened = collect.open_directory(tmp_path / "mix")
    assert opened.tokenizer is not None
    assert opened.tokenizer.sha256 == tokenizer.sha256
    assert any("z/model holds another" in line for line in opened.evidence)
    with pytest.raises(InputError, match="does not fit"):
        collect.open_directory(tmp_path / "mix", tokenizer=str(tmp_path / "mix" / "other"))


def kill_at_the_third_shard(
    unit: list[int], shards: list[readers.Shard], plan: collect.Plan, tokenizer: object
) -> collect.Summary:
    for index in unit:
        workers.beat(index)
        if index == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return collect.summarise(unit, shards, plan, tokenizer)  # type: ignore[arg-type]


def kill_once(
    unit: list[int], shards: list[readers.Shard], plan: collect.Plan, flag: str, tokenizer: object
) -> collect.Summary:
    if 2 in unit and not Path(flag).exists():
        Path(flag).touch()
        kill_at_the_third_shard(unit, shards, plan, tokenizer)
    return collect.summarise(unit, shards, plan, tokenizer)  # type: ignore[arg-type]


def sleep_at_the_third_shard(
    unit: list[int], shards: list[readers.Shard], plan: collect.Plan, tokenizer: object
) -> collect.Summary:
    for index in unit:
        workers.beat(index)
        if index == 2:
            time.sleep(600)
    return collect.summarise(unit, shards, plan, tokenizer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("job", "seconds", "reason"),
    [
        (kill_at_the_third_shard, 600, "the process that read it was ended by SIGKILL (out of memory?)"),
        (sleep_at_the_third_shard, 5, "no progress for 5 seconds (--shard-timeout)"),
    ],
)
def test_a_shard_that_ends_or_stops_its_reader_costs_only_itself(
    opened: collect.Opened, job: Any, seconds: int, reason: str
) -> None:
    plan = collect.plan_for(opened, 10, 0, readers.Limits(shard_timeout=seconds))
    total = collect.Summary()
    for _, part in collect.run(job, opened, plan, 2, None, "read"):
        total.merge(part, 10)
    good = collect.collect(opened, sample_size=10, seed=0)
    lost = total.account.pop(2)
    assert (lost.path, lost.status, lost.reason, lost.rows) == (opened.shards[2].path, "failed", reason, 0)
    assert good.account.pop(2).rows > 0
    assert total.account == good.account


def test_a_worker_that_died_by_chance_costs_nothing(opened: collect.Opened, tmp_path: Path) -> None:
    plan = collect.plan_for(opened, 10, 0, None)
    total = collect.Summary()
    for _, part in collect.run(kill_once, opened, plan, 2, None, "read", str(tmp_path / "flag")):
        total.merge(part, 10)
    assert (tmp_path / "flag").exists()
    assert total.account == collect.collect(opened, sample_size=10, seed=0).account


@pytest.mark.skipif(os.name != "posix", reason="a process that aborts is told by its signal")
def test_a_killer_among_the_shards_is_survived_by_the_command(tmp_path: Path, promptkit_command: Command) -> None:
    """The probes before reading meet it too. A Parquet reader that ends its process stands in for a fault of a library."""
    mix = tmp_path / "mix"
    shutil.copytree(MIX, mix)
    victim = next((mix / "B3_codeinstruct").rglob("*.parquet"))
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'pyarrow.parquet' and 'promptkit.workers' in sys.modules:\n"
        "            os.abort() if sys.argv[0] == '-c' else sys.exit('parsed outside a worker')\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    path = os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = promptkit_command("inspect", mix, "--json", env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 4, done.stderr
    account = {a["path"]: a for a in json.loads(done.stdout)["account"]}
    failed = [p for p, a in account.items() if a["status"] == "failed"]
    assert failed == [p.relative_to(mix).as_posix() for p in sorted(mix.rglob("*.parquet"))]
    assert victim.relative_to(mix).as_posix() in failed
    assert "SIGABRT" in account[failed[0]]["reason"]


def test_rungs_and_replicas_of_a_real_pack_are_as_near_the_mix_as_their_size_allows(example_build: Path) -> None:
    import numpy as np

    import promptkit

    fitted = promptkit.load_reference(example_build)
    pack = promptkit.load_pack(example_build)

    def distance(part: object) -> float:
        return float(promptkit.score(part, fitted).distance)

    rng = np.random.default_rng(0)
    texts = fitted.sample["text"].to_list()
    for n, rung in pack.ladder(sizes=(10, 30)).items():
        chance = [distance([texts[i] for i in rng.permutation(len(texts))[:n]]) for _ in range(5)]
        assert distance(rung) < np.median(chance), n
    ours = [distance(part) for part in pack.replicas(3)]
    order = rng.permutation(len(pack))
    dealt = [distance([pack[int(i)] for i in order[j::3]]) for j in range(3)]
    assert max(ours) < np.median(dealt) + np.ptp(dealt)
    assert np.ptp(ours) < 0.25 * np.mean(ours)


def test_other_directories_processes_hash_seeds_and_time_zones_give_the_same_bytes(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = "import promptkit, sys; promptkit.build(sys.argv[1], out=sys.argv[2], size=12, name='m', processes=int(sys.argv[3]))"
    packs = []
    for number, (seed, zone) in enumerate((("1", "UTC"), ("2", "Asia/Tokyo"))):
        folder = tmp_path / f"deep{number}" / ("x" * (9 * number + 1))
        shutil.copytree(MIX, folder / "mix")
        env = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": "C" if number else "C.UTF-8"}
        arguments = [str(folder / "mix"), str(folder / "out"), str(number + 1)]
        subprocess.run([sys.executable, "-c", program, *arguments], env=env, check=True, capture_output=True)
        root = folder / "out" / "packs"
        packs.append({p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()})
    assert len(packs[0]) == 5
    assert packs[0] == packs[1]
