"""Holdout: what is written is left out of the reference, nothing near it stays in training, and no template is a twin."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import promptkit
from promptkit import collect, holdout, leakage
from promptkit.errors import InputError, UsageError


def words(rng: random.Random, n: int, vocabulary: int = 4000) -> str:
    return " ".join(f"w{rng.randrange(vocabulary)}" for _ in range(n))


def make_mix(folder: Path, seed: int = 0) -> list[tuple[str, int, str]]:
    """Write three sources; return (shard, row, opening): plain, with copies and near-copies, under one long template."""
    rng = random.Random(seed)
    plain = [words(rng, rng.randrange(15, 60)) for _ in range(150)]
    copied = [words(rng, 40) for _ in range(40)]
    for text in list(copied):
        changed = text.split()
        changed[rng.randrange(5)] = "other"
        again = list(changed)
        again[-1] = "last"  # near the changed one, and less near the first
        copied += [text.upper().replace(" ", "\n"), " ".join(changed), " ".join(again)]
    rng.shuffle(copied)
    template = words(rng, 300)
    agent = [f"{template} {words(rng, 25)}" for _ in range(120)]
    out = []
    for source, texts in (("plain", plain), ("copied", copied), ("agent", agent)):
        (folder / source).mkdir(parents=True)
        lines = [
            json.dumps({"messages": [{"role": "user", "content": t}, {"role": "assistant", "content": words(rng, 12)}]})
            for t in texts
        ]
        (folder / source / "rows.jsonl").write_text("\n".join(lines) + "\n")
        out += [(f"{source}/rows.jsonl", i, t) for i, t in enumerate(texts)]
    return out


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, int, str]]]:
    folder = tmp_path_factory.mktemp("mix")
    return folder, make_mix(folder)


def held(folder: Path, fraction: float = 0.2, **options: object) -> tuple[holdout.Holdout, bytes]:
    opened = collect.open_directory(folder)
    found = holdout.hold(opened, fraction, size=10, sample_size=20_000, seed=0, processes=1, **options)  # type: ignore[arg-type]
    return found, found.lines(opened.shards)


def near(a: str, b: str) -> bool:
    """Return whether two texts are near-duplicates, the slow way."""
    x, y = ({tuple(w[i : i + 5]) for i in range(len(w) - 4)} for w in (re.findall(r"\w+", t.lower()) for t in (a, b)))
    return len(x & y) >= 0.8 * len(x | y) - 1e-9 if x and y else a.lower().split() == b.lower().split()


def test_no_row_that_stays_in_training_is_near_a_held_one(mix):
    folder, rows = mix
    found, _ = held(folder)
    out = [t for shard, row, t in rows if row in found.rows.get(shard, ()) and not shard.startswith("agent")]
    stays = [t for shard, row, t in rows if row not in found.rows.get(shard, ()) and not shard.startswith("agent")]
    assert len(out) > 60
    assert not [(a, b) for a in out for b in stays if near(a, b)]
    assert found.n_twins > 20


def test_rows_under_one_template_are_no_twins_of_each_other(mix):
    folder, rows = mix
    found, _ = held(folder)
    agent = [t for s, _, t in rows if s.startswith("agent")]
    assert near(agent[0], agent[1])  # or this test would show nothing
    assert 10 <= len(found.rows["agent/rows.jsonl"]) <= 40


def test_about_the_fraction_is_drawn_and_the_seed_decides_which(mix):
    folder, rows = mix
    found, _ = held(folder)
    assert abs(found.n_drawn - 0.2 * len(rows)) < 4 * (0.2 * 0.8 * len(rows)) ** 0.5
    wider, _ = held(folder, 0.4)
    assert all(found.rows[s] <= wider.rows[s] for s in found.rows)
    drawn = Counter(holdout.is_drawn(seed, "x", i, 0.5) for seed in range(2) for i in range(1000))
    assert 900 < drawn[True] < 1100
    assert [holdout.is_drawn(0, "x", i, 0.5) for i in range(99)] != [
        holdout.is_drawn(1, "x", i, 0.5) for i in range(99)
    ]


def test_any_number_of_processes_writes_the_same_lines_in_the_order_of_the_shards(mix, monkeypatch):
    folder, _ = mix
    _, one = held(folder)
    monkeypatch.setattr(collect, "UNIT_FILES", 1)
    monkeypatch.setattr(collect, "POOL_BYTES", 0)
    opened = collect.open_directory(folder)
    two = holdout.hold(opened, 0.2, size=10, sample_size=20_000, seed=0, processes=2)
    assert two.lines(opened.shards) == one
    lines = [json.loads(x) for x in one.splitlines()]
    assert all(set(x) == {"shard", "row"} for x in lines)
    order = [s.path for s in opened.shards]
    assert lines == sorted(lines, key=lambda x: (order.index(x["shard"]), x["row"]))


def test_twins_equal_a_brute_force_search():
    rng = random.Random(3)
    texts = [words(rng, rng.randrange(1, 40), 60) for _ in range(30)]
    others = [*texts[:5], "", "w1"]
    for t in texts:
        for share in (0.02, 0.1):
            others.append(" ".join("new" if rng.random() < share else w for w in t.split()))
    twins = leakage.Twins(texts, np.empty(0, np.uint64))
    assert twins.among(others) == [i for i, o in enumerate(others) if any(near(o, t) for t in texts)]


def test_rows_that_begin_a_held_conversation_are_held_with_it(tmp_path):
    rng = random.Random(1)
    turns = []
    for _ in range(60):
        talk = [{"role": "user", "content": words(rng, 20)}, {"role": "assistant", "content": words(rng, 5)}]
        turns.append(talk)
        turns.append([*talk, {"role": "user", "content": words(rng, 9)}, {"role": "assistant", "content": "ok"}])
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jsonl").write_text("".join(json.dumps({"messages": t}) + "\n" for t in turns))
    found, _ = held(tmp_path)
    rows = found.rows["a/x.jsonl"]
    assert rows
    assert {r ^ 1 for r in rows} == set(rows)  # 2k begins 2k + 1
    assert found.n_drawn == found.n_twins


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_a_fraction_is_more_than_nothing_and_less_than_all(tmp_path, fraction):
    with pytest.raises(UsageError, match="holdout is"):
        promptkit.build(tmp_path, out=tmp_path / "o", holdout=fraction)


def test_a_pool_and_a_holdout_contradict_each_other(tmp_path):
    (tmp_path / "p.jsonl").write_text("{}")
    with pytest.raises(UsageError, match="a pool and a holdout"):
        promptkit.build(tmp_path, out=tmp_path / "o", holdout=0.1, pool=[tmp_path / "p.jsonl"])


def test_a_mix_too_small_for_its_fraction_is_told(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jsonl").write_text('{"text": "Write a sort."}\n')
    with pytest.raises(InputError, match=r"no row is drawn at a fraction of 0\.001"):
        held(tmp_path, 0.001)


@pytest.fixture(scope="module")
def built(mix, tmp_path_factory):
    folder, _ = mix
    return promptkit.build(
        folder, out=tmp_path_factory.mktemp("o"), holdout=0.2, size=20, processes=1, name="unseen",
        licences={"plain": "mit", "agent": "CC-BY-NC-4.0"},
    )  # fmt: skip


def test_the_reference_is_fitted_without_the_held_rows_and_the_pack_is_drawn_from_them_only(mix, built):
    _, rows = mix
    lines = [json.loads(x) for x in Path(built.holdout).read_text().splitlines()]
    out = {(x["shard"], x["row"]) for x in lines}
    fitted = promptkit.load_reference(built.reference)
    sampled = set(zip(fitted.sample["shard"].to_list(), fitted.sample["row"].to_list(), strict=True))
    assert len(sampled) == len(rows) - len(out)
    assert not sampled & out
    assert sum(s["rows"] for s in built.sources) == len(sampled)
    assert sum(a.row_reasons.get("held out", 0) for a in built.account) == len(out)
    pack = promptkit.load_pack(built.pack)
    assert {(p.extra["shard"], p.extra["row"]) for p in pack} <= out
    assert not any(p.extra["in_training"] for p in pack)
    assert built.in_training == 0
    assert json.loads(json.dumps(built.to_json()))["holdout"] == built.holdout


def test_the_card_says_on_what_condition_the_prompts_are_unseen(built):
    import hashlib

    card = (Path(built.pack) / "README.md").read_text("utf-8")
    assert "None of the 20 prompts is in training, provided the next training run excludes the rows of" in card
    assert hashlib.sha256(Path(built.holdout).read_bytes()).hexdigest() in card
    assert "are in the training data**" not in card


def test_rows_carry_the_licence_that_was_stated_for_their_source(built):
    pack = promptkit.load_pack(built.pack)
    found = {(p.source, p.extra["licence"]) for p in pack}
    assert found <= {("plain", "MIT"), ("agent", "CC-BY-NC-4.0"), ("copied", "NOASSERTION")}
    assert len(found) == 3


def test_redistributable_leaves_out_what_may_not_be_shared_and_says_how_to_have_it(mix, built, tmp_path):
    folder, _ = mix
    licences = {"plain": "MIT", "agent": "CC-BY-NC-4.0"}
    shared = promptkit.build(
        folder, out=tmp_path, holdout=0.2, size=20, processes=1, name="unseen", licences=licences, redistributable=True
    )
    whole, part = promptkit.load_pack(built.pack), promptkit.load_pack(shared.pack)
    assert {p.extra["licence"] for p in part} == {"MIT"}
    left = json.loads(Path(shared.withheld).read_text("utf-8"))
    assert left["whole_content_hash"] == whole.content_hash
    assert sorted([p.id for p in part] + [r["id"] for r in left["withheld"]]) == sorted(p.id for p in whole)
    assert left["recipe"]["licences"] == licences
    text = Path(shared.withheld).read_text("utf-8")
    assert not any(p.messages[0]["content"] in text for p in whole)
    assert shared.pack_score["n"] == len(part)
    assert f"{len(whole) - len(part)} further prompts were chosen and are withheld" in (
        Path(shared.pack) / "README.md"
    ).read_text("utf-8")
    told = r"no prompt of the pack may be shared on: licences are NOASSERTION\n.*--licence (\w+)=Apache-2.0"
    with pytest.raises(InputError, match=told) as error:
        promptkit.build(folder, out=tmp_path / "n", size=5, processes=1, redistributable=True)
    assert (folder / str(error.value).rpartition("--licence ")[2].partition("=")[0]).is_dir(), "a source of this mix"


def test_a_licence_of_a_source_that_is_not_there_is_refused(mix, tmp_path):
    folder, _ = mix
    with pytest.raises(UsageError, match="licence of 'plian': no such source") as error:
        promptkit.build(folder, out=tmp_path, licences={"plian": "MIT"})
    assert "did you mean 'plain'" in error.value.hint
    with pytest.raises(UsageError, match="no licence is called 'MTI'"):
        promptkit.build(folder, out=tmp_path, licences={"plain": "MTI"})
