"""Exports to evaluation harnesses: what stands in each file, what is asked for, what is lost, in prompts that break loaders.

Each format is read back with a plain reader of its container; the harnesses' own loaders run in tests/harness.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile import SYSTEM, dialogues, row, rows, user
from hypothesis import given
from hypothesis import strategies as st

from promptkit.exporters import Export, export
from promptkit.exporters.promptfoo import template_safe
from promptkit.pack import Pack, load_pack, write_pack


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return load_pack(write_pack(rows(), tmp_path_factory.mktemp("packs"), name="hostile"))


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    where = tmp_path_factory.mktemp("packs")
    return load_pack(write_pack(dialogues(), where, name="replay", fields={"recipe": {"turns": "all"}}))


def json_lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    assert data.isascii()  # so that no reader can cut a line at U+2028 or U+0085
    return [json.loads(line) for line in data.decode().splitlines()]


def losses(done: Export) -> dict[str, int]:
    return {loss.what: loss.count for loss in done.losses}


def plain(pack: Pack) -> list[Any]:
    """Return the prompts of one user turn and nothing else."""
    return [p for p in pack if not p.tools and [m["role"] for m in p.messages] == ["user"]]


def asked(prompt: Any) -> int:
    return prompt.expected_output_tokens or 512


OURS = (
    "evalscope",
    "hf-dataset",
    "inspect",
    "lighteval",
    "lm-eval",
    "mt-bench",
    "promptfoo",
    "specdec-bench",
    "specforge",
)
LEFT_OUT = {"tool definitions": 2, "history": 2, "system turn": 1}


@pytest.mark.parametrize("target", OURS)
def test_every_prompt_is_carried_or_counted(target: str, hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, target, tmp_path)
    ids = json_lines(Path(done.ids))
    assert len({r["id"] for r in ids}) == len({r["reported"] for r in ids}) == len(ids)
    order = {p.id: i for i, p in enumerate(hostile)}
    assert [r["id"] for r in ids] == sorted((r["id"] for r in ids), key=order.__getitem__)
    left_out = sum(x.count for x in done.losses if x.note.startswith("left out"))
    assert len(ids) + left_out == len(hostile) or left_out == 0


@pytest.mark.parametrize("target", OURS)
def test_an_export_is_a_pure_function(target: str, hostile: Pack, tmp_path: Path) -> None:
    once, again = (
        {p.name: p.read_bytes() for p in sorted(Path(export(hostile, target, tmp_path / d).ids).parent.rglob("*"))
         if p.is_file() and p.name != "export.json"}
        for d in ("a", "a")
    )  # fmt: skip
    assert once == again


# ------------------------------------------------------------------------------------------------ MT-Bench family


def test_mt_bench_has_int_ids_and_one_turn_each(hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, "mt-bench", tmp_path)
    got = json_lines(tmp_path / "mt-bench/hostile/question.jsonl")
    wanted = plain(hostile)
    assert [q["turns"] for q in got] == [[p.messages[0]["content"]] for p in wanted]
    assert [q["category"] for q in got] == [p.domain for p in wanted]
    assert [q["question_id"] for q in got] == [int(p.id[:13], 16) for p in wanted]
    assert [r["reported"] for r in json_lines(Path(done.ids))] == [str(q["question_id"]) for q in got]
    longest = max(map(asked, wanted))
    assert losses(done) == {
        **LEFT_OUT,
        "no expected output length": sum(p.expected_output_tokens is None for p in wanted),
        "output length of its own": sum(asked(p) != longest for p in wanted),
    }
    assert f"--max-new-tokens {longest}" in done.command
    assert f"--num_prompts {len(wanted)} " in done.notes[2]  # AngelSlim takes 80 otherwise
    assert f"--num_requests {len(wanted)}" in done.notes[3]


def test_mt_bench_ids_are_the_same_in_a_domain(hostile: Pack, tmp_path: Path) -> None:
    export(hostile, "mt-bench", tmp_path)
    whole = {q["question_id"]: q for q in json_lines(tmp_path / "mt-bench/hostile/question.jsonl")}
    parts = [q for f in (tmp_path / "mt-bench/by-domain").rglob("question.jsonl") for q in json_lines(f)]
    assert len(parts) == len(whole)
    assert all(whole[q["question_id"]] == q for q in parts)


def test_mt_bench_replays_turns_and_leaves_system_turns_out(replay: Pack, tmp_path: Path) -> None:
    done = export(replay, "mt-bench", tmp_path)
    got = json_lines(tmp_path / "mt-bench/replay/question.jsonl")
    wanted = [[m["content"] for m in p.messages] for p in replay if p.messages[0]["role"] == "user"]
    assert [q["turns"] for q in got] == wanted
    assert losses(done)["system turn"] == 1
    assert losses(done)["later turns (AngelSlim)"] == 2


def test_specdec_bench_is_a_table_with_speed_bench_columns(replay: Pack, hostile: Pack, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    export(replay, "specdec-bench", tmp_path)
    got = parquet.read_table(tmp_path / "specdec-bench/replay.parquet").to_pylist()
    assert [(r["question_id"], r["multiturn"]) for r in got] == [
        (p.id, len(p.messages) > 1) for p in replay if p.messages[0]["role"] == "user"
    ]
    done = export(hostile, "specdec-bench", tmp_path)
    got = parquet.read_table(tmp_path / "specdec-bench/hostile.parquet").to_pylist()
    assert [r["turns"] for r in got] == [[p.messages[0]["content"]] for p in plain(hostile)]
    assert {r["category"] for r in got} == {"chat", "coding", "math & logic"}
    assert f"--num_requests {len(got)} " in done.command


# ------------------------------------------------------------------------------------------------ Hugging Face


def test_hf_dataset_loads_whole_and_by_domain(hostile: Pack, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    done = export(hostile, "hf-dataset", tmp_path / "out")
    where, cache = str(tmp_path / "out/hf-dataset"), str(tmp_path / "cache")
    got = list(datasets.load_dataset(where, split="test", cache_dir=cache))
    assert [r["id"] for r in got] == [p.id for p in hostile]
    assert [[{k: v for k, v in m.items() if v is not None} for m in r["messages"]] for r in got] == [
        p.messages for p in hostile
    ]
    assert [r["tools"] and json.loads(r["tools"]) for r in got] == [p.tools for p in hostile]
    assert [r["max_tokens"] for r in got] == [asked(p) for p in hostile]
    assert losses(done) == {}
    one = datasets.load_dataset(where, "math_logic", split="test", cache_dir=cache)
    assert one["id"] == [p.id for p in hostile.by_domain()["math & logic"]]
    assert set(datasets.get_dataset_config_names(where)) == {"default", "chat", "coding", "math_logic"}


# ------------------------------------------------------------------------------------------------ Inspect AI


def test_inspect_carries_everything(hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, "inspect", tmp_path)
    got = json_lines(tmp_path / "inspect/hostile.jsonl")
    assert [s["id"] for s in got] == [p.id for p in hostile]
    assert [[m["content"] for m in s["input"]] for s in got] == [[m["content"] for m in p.messages] for p in hostile]
    assert [s["metadata"]["max_tokens"] for s in got] == [asked(p) for p in hostile]
    by_id = {s["id"]: s for s in got}
    agentic = next(p for p in hostile if any(m["role"] == "tool" for m in p.messages))
    assert by_id[agentic.id]["metadata"]["body"] == {"messages": agentic.messages, "tools": agentic.tools}
    call = by_id[agentic.id]["input"][2]["tool_calls"][0]
    assert call == {"id": "functions.ls:0", "function": "ls", "arguments": {"path": "."}}
    assert losses(done) == {"no expected output length": 5}
    compile((tmp_path / "inspect/pack_hostile.py").read_text(), "hostile.py", "exec")


def test_inspect_replays_turns_with_equal_shares(replay: Pack, tmp_path: Path) -> None:
    done = export(replay, "inspect", tmp_path)
    got = {s["id"]: s["metadata"] for s in json_lines(tmp_path / "inspect/replay.jsonl")}
    three = next(p for p in replay if [m["role"] for m in p.messages] == ["user"] * 3)
    assert got[three.id]["replay"] is True
    assert got[three.id]["max_tokens"] == -(-three.expected_output_tokens // 3)
    assert losses(done) == {"output length of each turn": 3}


def test_inspect_changes_into_the_directory_and_names_the_task_alone(hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, "inspect", tmp_path, base_url="http://localhost:9/v1", model="m/x")
    words = shlex.split(done.command)
    assert words[:4] == ["cd", str(tmp_path / "inspect"), "&&", "PACK_API_KEY=${PACK_API_KEY:-none}"]
    assert words[4:9] == ["inspect", "eval", "pack_hostile.py", "--model", "openai-api/pack/m/x"]
    assert "http://localhost:9/v1" in words


def test_a_pack_that_no_row_fits_is_refused(tmp_path: Path) -> None:
    from promptkit.errors import InputError

    pack = load_pack(write_pack([row([SYSTEM, user("One.")])], tmp_path, name="systems"))
    with pytest.raises(InputError, match=r"system turn \(1\)"):
        export(pack, "mt-bench", tmp_path / "out")


# ------------------------------------------------------------------------------------------------ lm-evaluation-harness


def test_lm_eval_has_a_task_for_each_domain_under_one_tag(hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, "lm-eval", tmp_path)
    where = tmp_path / "lm-eval"
    kept = [p for p in hostile if not p.tools]
    got = [
        row
        for domain in ("chat", "coding", "math_logic")
        for row in json_lines(where / f"pack_hostile__{domain}.jsonl")
    ]
    assert [(r["id"], json.loads(r["messages"]), r["max_tokens"]) for r in got] == [
        (p.id, p.messages, asked(p)) for p in kept
    ]
    assert losses(done) == {"tool definitions": 2, "no expected output length": 4, "order of sending": len(kept)}
    text = (where / "pack_hostile__math_logic.yaml").read_text()
    assert 'task: "pack_hostile__math_logic"\ntag: "pack_hostile"\nclass: !function pack_task.PackTask\n' in text
    assert '"until": []' in text  # else the answer ends at the first blank line
    compile((where / "pack_task.py").read_text(), "pack_task.py", "exec")


def test_lm_eval_names_never_clash_with_those_of_a_domain_export(hostile: Pack, tmp_path: Path) -> None:
    """Tasks of by-domain are found too, because --include_path is searched to the bottom."""
    export(hostile, "lm-eval", tmp_path)
    heads = [dict(x.split(": ") for x in p.read_text().splitlines()[:2]) for p in tmp_path.rglob("*.yaml")]
    names = [h["task"] for h in heads] + sorted({h["tag"] for h in heads})
    assert len(names) == 6 + 4
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("target", OURS)
def test_labels_may_hold_anything(target: str, tmp_path: Path) -> None:
    labels = ["../../up", "a b", "a&b", "a_b_2", "default", "ids", 'q"$HOME`id`', "ц", "x" * 300]
    pack = load_pack(write_pack([row([user(d)], domain=d) for d in labels], tmp_path / "packs", name="odd"))
    done = export(pack, target, tmp_path / "out")
    assert len(done.commands) == len(labels)
    assert len(Path(done.ids).read_bytes().splitlines()) == len(labels)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "packs"]
    whole = [Path(f) for f in done.files if "by-domain" not in f]
    if target == "lm-eval":
        assert sum(f.suffix == ".yaml" for f in whole) == len(labels)
    if target == "hf-dataset":
        assert sum(f.suffix == ".parquet" for f in whole) == len(labels)


# ------------------------------------------------------------------------------------------------ promptfoo


def test_promptfoo_leaves_nothing_to_its_template_engine(hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, "promptfoo", tmp_path)
    got = json_lines(tmp_path / "promptfoo/hostile.jsonl")
    for test, p in zip(got, hostile, strict=True):
        text = test["vars"]["messages"]
        assert not any(x in text for x in ("{{", "{%", "{#", "#}", "%}"))
        assert text.startswith("[")  # so never file://, and no newline at its end to be cut
        assert text.endswith("]")
        assert json.loads(text) == p.messages
        assert json.loads(test["vars"].get("tools", "null")) == p.tools
        assert test["vars"]["max_tokens"] == asked(p)
        assert test["metadata"]["id"] == p.id
    assert losses(done) == {"no expected output length": 5}
    config = json.loads((tmp_path / "promptfoo/hostile.json").read_text())
    assert config["tests"] == "file://hostile.jsonl"
    assert config["prompts"] == ["file://hostile.cjs"]


@given(st.recursive(st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=8))
def test_template_safe_json_is_the_same_json_without_braces_in_strings(value: Any) -> None:
    text = template_safe(value)
    assert json.loads(text) == value
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    assert text.count("{") == outside.count("{")
    assert text.count("}") == outside.count("}")


# ------------------------------------------------------------------------------------------------ evalscope


def test_evalscope_lines_are_whole_bodies(hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, "evalscope", tmp_path)
    got = json_lines(tmp_path / "evalscope/hostile.jsonl")
    assert [(b["messages"], b.get("tools"), b["max_tokens"]) for b in got] == [
        (p.messages, p.tools, asked(p)) for p in hostile
    ]
    assert losses(done) == {"no expected output length": 5}
    words = shlex.split(done.command)
    assert words[words.index("--number") + 1] == str(len(hostile))
    assert "--no-test-connection" in words
    assert [r["reported"] for r in json_lines(Path(done.ids))] == [str(i) for i in range(len(hostile))]


def test_reasoning_of_earlier_turns_is_said_where_it_is_sent(tmp_path: Path) -> None:
    history = [user("Hi."), {"role": "assistant", "content": "Hello.", "reasoning": "A greeting."}, user("Well?")]
    pack = load_pack(write_pack([row(history, expected_output_tokens=9)], tmp_path, name="reasoning"))
    for target in ("evalscope", "inspect", "lm-eval", "promptfoo"):
        assert losses(export(pack, target, tmp_path / "out"))["reasoning of earlier turns"] == 1


# ------------------------------------------------------------------------------------------------ LightEval


def test_lighteval_rows_are_text_that_no_reader_takes_for_a_date(hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, "lighteval", tmp_path)
    got = json_lines(tmp_path / "lighteval/hostile/test.jsonl")
    wanted = plain(hostile)
    assert [(r["id"], json.loads(r["prompt"]), r["max_tokens"], r["domain"]) for r in got] == [
        (p.id, p.messages[0]["content"], asked(p), p.domain) for p in wanted
    ]
    assert all(r["prompt"].startswith('"') for r in got)
    assert losses(done) == {**LEFT_OUT, "no expected output length": 4, "order of sending": len(wanted)}
    compile((tmp_path / "lighteval/pack_hostile.py").read_text(), "hostile.py", "exec")


def test_lighteval_is_never_answered_from_a_cache(hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, "lighteval", tmp_path)
    assert ',cache_dir=$(mktemp -d)" ' in done.command
    assert export(hostile, "lighteval", tmp_path, base_url="http://x", model="m").command.count("$(mktemp -d)") == 1
    assert "litellm.cache = None" in (tmp_path / "lighteval/pack_hostile.py").read_text()


def test_lighteval_names_the_only_task_of_a_pack_with_one_domain(replay: Pack, hostile: Pack, tmp_path: Path) -> None:
    """The name before the colon stands for all tasks only where there are several."""
    assert "'pack_replay:chat|0'" in export(replay, "lighteval", tmp_path).command
    assert "'pack_hostile|0'" in export(hostile, "lighteval", tmp_path).command


# ------------------------------------------------------------------------------------------------ SpecForge

STUBS = {
    "benchmarker/__init__.py": "",
    "benchmarker/base.py": """
class Benchmarker:
    def __init__(self, num_samples=None, subset=None):
        self.num_samples, self.subset = num_samples, subset
""",
    "benchmarker/registry.py": """
class Registry(dict):
    def register(self, name):
        return lambda cls: self.setdefault(name, cls)
BENCHMARKS = Registry()
""",
    "sglang/__init__.py": """
def function(f): return f
def system(text): return ("system", text)
def user(text): return ("user", text)
def assistant(gen): return ("assistant", gen)
def gen(name, max_tokens): return (name, max_tokens)
""",
    "sglang/global_config.py": "class global_config: enable_precache_with_tracing = True",
    "bench_eagle3.py": """
import json, sys
from benchmarker.registry import BENCHMARKS
from sglang.global_config import global_config
class State(list):
    def __iadd__(self, one):
        self.append(one)
        return self
def main():
    out = {"argv": sys.argv[1:], "traced": global_config.enable_precache_with_tracing, "sent": {}}
    for item in sys.argv[sys.argv.index("--benchmark-list") + 1 :]:
        if item.startswith("--"):
            break
        name, *subset = item.split("::")
        benchmark = BENCHMARKS[name](subset=subset or None)
        questions, labels = benchmark.load_data()
        states = []
        for q in questions:
            states.append(State())
            benchmark.create_sgl_function()(states[-1], **q)
        out["sent"][item] = states
        assert all(s[-1][1][0] == benchmark.get_answer_keys()[-1] for s in states)
        assert len(labels) == len(questions)
    print(json.dumps(out))
""",
}


def run_plugin(command: str, stubs: Path) -> dict[str, Any]:
    """Run a SpecForge command with stand-ins for SpecForge and SGLang."""
    for name, text in STUBS.items():
        (stubs / name).parent.mkdir(parents=True, exist_ok=True)
        (stubs / name).write_text(text)
    command = command.replace("$SPECFORGE/benchmarks", str(stubs)).replace(" python ", f" {sys.executable} ")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_specforge_plugin_sends_every_turn_with_its_length(hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, "specforge", tmp_path, base_url="http://localhost:8123", model="m")
    got = run_plugin(done.command, tmp_path / "stubs")
    kept = [p for p in hostile if not p.tools and all(m["role"] in ("system", "user") for m in p.messages)]
    kept = [p for p in kept if sum(m["role"] == "user" for m in p.messages) == 1]
    assert got["sent"] == {
        "hostile": [
            [[m["role"], m["content"]] for m in p.messages] + [["assistant", ["answer_1", asked(p)]]] for p in kept
        ]
    }
    assert got["traced"] is False
    assert got["argv"][-5:] == ["--host", "localhost", "--port", "8123", "--skip-launch-server"]
    assert losses(done) == {"tool definitions": 2, "history": 2, "no expected output length": 4}


def test_specforge_plugin_runs_one_domain(hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, "specforge", tmp_path, base_url="http://localhost:8123", model="m")
    command = done.command.removesuffix("--benchmark-list hostile") + "--benchmark-list 'hostile::math & logic'"
    (sent,) = run_plugin(command, tmp_path / "stubs")["sent"].values()
    ids = [r["id"] for r in json_lines(Path(done.ids)) if r["domain"] == "math & logic"]
    assert len(sent) == len(ids) > 3


def test_specforge_has_a_benchmark_for_each_number_of_turns(replay: Pack, tmp_path: Path) -> None:
    done = export(replay, "specforge", tmp_path, base_url="http://localhost:8123", model="m")
    sent = run_plugin(done.command, tmp_path / "stubs")["sent"]
    ids = {r["reported"]: r["id"] for r in json_lines(Path(done.ids))}
    prompts = {p.id: p for p in replay}
    assert {name: len(states) for name, states in sent.items()} == {
        "replay": 1,
        "replay-2-turns": 2,
        "replay-3-turns": 1,
    }
    for name, states in sent.items():
        for i, state in enumerate(states):
            p = prompts[ids[f"{name}:{i}"]]
            assert [x for x in state if x[0] != "assistant"] == [[m["role"], m["content"]] for m in p.messages]
            assert len([x for x in state if x[0] == "assistant"]) == sum(m["role"] == "user" for m in p.messages)
