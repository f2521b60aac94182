"""Exports: what holds for every target, the format of each serving client, and the command.

The formats are read back with plain readers; the clients' own loaders, and a server that writes down what they send,
are in tests/harness.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_cli
from hostile import CALL, SYSTEM, TOOL, assistant, dialogues, row, rows, user
from tiny_tokenizers import write_kimi

from promptkit.errors import InputError, UsageError
from promptkit.exporters import EXPORTERS, Export, export
from promptkit.exporters.job import Job, Loss, Piece, lines
from promptkit.pack import Pack, load_pack, write_pack

run = test_cli.run  # the command through its entry point

EVERY = sorted(EXPORTERS)
KIMI = {"template": {"name": "kimi-k2.5", "kwargs": {}}}
DOMAINS = ("chat", "../up", "math & logic")  # a domain is any text, and names no path


def packed(tmp_path: Path, some: list[dict[str, Any]], name: str = "p", **fields: Any) -> Pack:
    return load_pack(write_pack(some, tmp_path / "packs", name=name, fields=fields))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Every hostile prompt, and one with reasoning, in a pack whose template we can write."""
    history = [user("Hm?"), assistant("Yes.", reasoning="I think."), user("Go on.")]
    where = tmp_path_factory.mktemp("packs")
    return load_pack(write_pack([*rows(), row(history)], where, name="hostile", fields=KIMI))


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    where = tmp_path_factory.mktemp("packs")
    return load_pack(write_pack(dialogues(), where, name="replay", fields={"recipe": {"turns": "all"}, **KIMI}))


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Prompts that every target carries, each with a word of its own, over domains with difficult names."""
    some = [row([user(f"mark{i:02d} please")], domain=DOMAINS[i % 3], expected_output_tokens=9) for i in range(12)]
    return load_pack(write_pack(some, tmp_path_factory.mktemp("packs"), name="marked", fields=KIMI))


def json_lines(path: str | Path) -> list[dict[str, Any]]:
    data = Path(path).read_bytes()
    assert data.isascii()  # so that no reader can cut a line at U+2028 or U+0085
    return [json.loads(line) for line in data.decode().splitlines()]


def losses(done: Export) -> dict[str, int]:
    return {loss.what: loss.count for loss in done.losses}


def main_file(done: Export) -> Path:
    folder = Path(done.ids).parent
    return next(Path(f) for f in done.files if Path(f).parent == folder and Path(f) != Path(done.ids))


def text_of(path: Path) -> str:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return json.dumps(pq.read_table(path).to_pylist(), default=str)
    return path.read_bytes().decode("utf-8", "replace")


def plain(pack: Pack) -> list[Any]:
    return [p for p in pack if not p.tools and [m["role"] for m in p.messages] == ["user"]]


def asked(prompt: Any) -> int:
    return prompt.expected_output_tokens or 512


# ------------------------------------------------------------------------------------------------ every target


@pytest.mark.parametrize("which", ["hostile", "replay", "marked"])
@pytest.mark.parametrize("target", EVERY)
def test_every_prompt_is_carried_or_a_counted_loss(
    target: str, which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pack: Pack = request.getfixturevalue(which)
    done = export(pack, target, tmp_path)
    ids = json_lines(done.ids)
    order = [p.id for p in pack]
    carried = [r["id"] for r in ids]
    assert carried == [i for i in order if i in set(carried)]  # the pack's order, none twice
    assert len({r["reported"] for r in ids}) == len(ids)
    assert {r["id"]: r["domain"] for r in ids}.items() <= {p.id: p.domain for p in pack}.items()
    assert done.left_out == [i for i in order if i not in set(carried)]
    assert sum(x.count for x in done.losses if x.note.startswith("left out")) == len(done.left_out)
    assert all(0 < x.count <= len(pack) and x.what and x.note for x in done.losses)
    about = json.loads((Path(done.ids).parent / "export.json").read_text())
    assert about["pack"] == pack.citation
    assert about["left_out"] == done.left_out


@pytest.mark.parametrize("target", EVERY)
def test_the_command_is_one_line_that_sends_each_prompt_once(target: str, hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, target, tmp_path / "with space", concurrency=4)
    for command in (done.command, *done.commands.values()):
        assert "\n" not in command
        words = shlex.split(command)
        assert not any("repeat" in w.lower() for w in words)
        for before, after in zip(words, [*words[1:], ""], strict=True):
            assert "warm" not in before.lower() or after == "0"
        assert "/v1/v1" not in command
    assert str(Path(done.ids).parent) in " ".join(shlex.split(done.command))


@pytest.mark.parametrize("target", EVERY)
def test_the_same_bytes_twice_and_whole_replacement(target: str, hostile: Pack, marked: Pack, tmp_path: Path) -> None:
    def written(pack: Pack) -> dict[str, bytes]:
        folder = Path(export(pack, target, tmp_path).ids).parent
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    once = written(hostile)
    other = written(marked)
    assert written(hostile) == once
    assert not {name for name in other if "hostile" in name}


@pytest.mark.parametrize("target", EVERY)
def test_a_domain_file_holds_its_prompts_and_no_other(target: str, marked: Pack, tmp_path: Path) -> None:
    done = export(marked, target, tmp_path)
    assert sorted(done.commands) == sorted(DOMAINS)
    top = Path(done.ids).parent
    folders = {p for p in (top / "by-domain").iterdir()}
    assert len(folders) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == [target]  # nothing climbed out
    wanted = [{p.messages[0]["content"][:6] for p in some} for some in marked.by_domain().values()]
    found = []
    for folder in folders:
        text = "".join(text_of(p) for p in folder.rglob("*") if p.is_file())
        found.append(set(re.findall(r"mark\d\d", text)))
    assert sorted(found, key=sorted) == sorted(wanted, key=sorted)


@pytest.mark.parametrize("target", EVERY)
def test_prompts_stand_in_the_packs_order(target: str, marked: Pack, tmp_path: Path) -> None:
    done = export(marked, target, tmp_path)
    top = Path(done.ids).parent
    order = [p.messages[0]["content"][:6] for p in marked]
    seen: set[str] = set()
    for path in map(Path, done.files):
        if "by-domain" not in path.relative_to(top).parts:
            marks = list(dict.fromkeys(re.findall(r"mark\d\d", text_of(path))))
            assert marks == sorted(marks, key=order.index), path
            seen |= set(marks)
    assert seen == set(order)


@pytest.mark.parametrize("target", EVERY)
def test_url_and_model_are_filled_in_or_left_to_the_shell(target: str, marked: Pack, tmp_path: Path) -> None:
    open_ended = export(marked, target, tmp_path)
    filled = export(marked, target, tmp_path, base_url="http://host:8000/v1/", model="me/it")
    for name, value in (("$BASE_URL", "http://host:8000"), ("$MODEL", "me/it")):
        assert (name in open_ended.command) == (value in filled.command)
        assert name not in filled.command


def test_a_pack_may_be_called_as_our_own_files_are(tmp_path: Path) -> None:
    for name in ("ids", "export"):
        pack = packed(tmp_path, [row([user("Hello there")])], name=name)
        for target in ("vllm", "sglang-agentic-trace"):
            done = export(pack, target, tmp_path / "out")
            assert [r["reported"] for r in json_lines(done.ids)] == ["0"]
            assert "Hello there" in main_file(done).read_text()


def test_an_exporter_of_ones_own_is_a_function(marked: Pack, tmp_path: Path) -> None:
    def my_bench(job: Job) -> Piece:
        kept = job.prompts[:-1]
        loss = [Loss("the last", 1, "left out: for the test")]
        files = {"mine.jsonl": lines([{"p": p.messages[0]["content"]} for p in kept])}
        return Piece(
            files if kept else {}, job.shell("bench", job.file("mine.jsonl")), loss, [(p.id, p.id) for p in kept]
        )

    done = export(marked, my_bench, tmp_path)
    assert done.target == "my-bench"
    assert len(json_lines(tmp_path / "my-bench/mine.jsonl")) == len(marked) - 1
    assert done.left_out == [marked[len(marked) - 1].id]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"to": "vlm"}, "vllm"),
        ({"to": "vllm", "template": "kimi-k9"}, "kimi-k2"),
        ({"to": "vllm", "output_tokens": 0}, "above 0"),
        ({"to": "vllm", "concurrency": 0}, "above 0"),
        ({"to": "vllm", "model": ""}, "the server names it"),
        ({"to": "vllm", "base_url": ""}, "http://localhost:8000"),
        ({"to": "vllm", "base_url": "localhost:8000"}, "http://localhost:8000"),
    ],
)
def test_bad_options_are_refused_with_the_next_step(
    options: dict[str, Any], said: str, marked: Pack, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as error:
        export(marked, out=tmp_path, **options)
    assert said in error.value.hint
    assert not list(tmp_path.iterdir())


def test_the_reason_that_nothing_is_carried_gives_the_hint(tmp_path: Path) -> None:
    """Not the first of the losses, which may be another matter."""
    late = packed(tmp_path, [row([user("Hm?"), {"role": "system", "content": "Late."}])])
    with pytest.raises(InputError, match=r"carried: a later system turn \(1\)\n") as error:
        export(late, "aiperf-multi-turn", tmp_path)
    assert "aiperf-mooncake" in error.value.hint


def test_a_directory_is_no_option_of_the_command_and_has_a_name(
    marked: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert " ./-odd/vllm/marked.jsonl " in export(marked, "vllm", "-odd").command
    nameless = packed(tmp_path, [row([user("Hm?")], domain=""), row([user("Ho!")], domain="chat")])
    assert "vllm/by-domain/none-" in " ".join(export(nameless, "vllm", "out").files)


@pytest.mark.parametrize("target", ["vllm", "vllm-spec-bench", "sglang", "aiperf", "genai-perf"])
def test_a_client_that_loads_the_models_tokenizer_says_so(target: str, marked: Pack, tmp_path: Path) -> None:
    assert "--tokenizer PATH" in " ".join(export(marked, target, tmp_path).notes)
    assert "--tokenizer PATH" not in " ".join(export(marked, target, tmp_path, tokenizer="words").notes)


# ------------------------------------------------------------------------------------------------ vLLM


def test_vllm_sends_plain_packs_to_the_chat_endpoint(tmp_path: Path) -> None:
    pack = packed(tmp_path, [row([user("2 + 2?")], expected_output_tokens=3), row([user("Why?\n")])], **KIMI)
    done = export(pack, "vllm", tmp_path)
    assert sorted((r["prompt"], r["output_tokens"]) for r in json_lines(main_file(done))) == [
        ("2 + 2?", 3), ("Why?\n", 512),
    ]  # fmt: skip
    words = shlex.split(done.command)
    assert words[:3] == ["vllm", "bench", "serve"]
    assert "/v1/chat/completions" in words
    for flag in ("--skip-chat-template", "--no-oversample", "--disable-shuffle"):
        assert flag in words
    for flag, value in (("--custom-output-len", "-1"), ("--num-prompts", "-1")):
        assert words[words.index(flag) + 1] == value
    assert losses(done) == {"no expected output length": 1}


def test_vllm_sends_templated_text_where_one_prompt_of_the_pack_needs_it(hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, "vllm", tmp_path)
    got = json_lines(main_file(done))
    assert [r["prompt"] for r in got] == [p.text() for p in hostile]
    assert [r["output_tokens"] for r in got] == [asked(p) for p in hostile]
    assert got[0]["prompt"].startswith("<|im_")
    for command in (done.command, *done.commands.values()):  # domains of plain prompts too: one pack, one measure
        assert "/v1/completions" in shlex.split(command)
        assert "--skip-chat-template" in command
    assert done.left_out == []
    assert losses(done)["tool declarations"] == 2


@pytest.mark.parametrize("template", [None, "llama3"])
def test_vllm_without_a_template_carries_plain_prompts_and_names_the_next_step(
    template: str | None, tmp_path: Path
) -> None:
    done = export(packed(tmp_path, rows()), "vllm", tmp_path, template=template)
    assert len(json_lines(main_file(done))) == 21
    (loss,) = [x for x in done.losses if x.what == "system turn, history or tools"]
    assert loss.count == 5
    assert "--template" in loss.note
    assert ("llama3" in loss.note) == (template is not None)


@pytest.mark.parametrize("numbers", [["1", "2.5"], ["nan", "1_000", " 7\n"]])
def test_vllm_never_writes_a_file_of_nothing_but_numbers(numbers: list[str], tmp_path: Path) -> None:
    some = [row([user(t)], domain="math") for t in numbers]
    with pytest.raises(InputError, match="only numbers"):
        export(packed(tmp_path, some), "vllm", tmp_path)
    mixed = export(packed(tmp_path, [*some, row([user("Words.")])], name="mixed"), "vllm", tmp_path)
    assert len(json_lines(main_file(mixed))) == len(numbers) + 1  # as text among texts they are safe
    assert sorted(mixed.commands) == ["chat"]
    assert any("math alone lacks" in n for n in mixed.notes)
    text = export(packed(tmp_path, some, name="t", **KIMI), "vllm", tmp_path)
    assert all(t["prompt"].startswith("<|im_user|>") for t in json_lines(main_file(text)))


def test_vllm_bench_shapes_carry_single_user_turns_and_one_length(hostile: Pack, tmp_path: Path) -> None:
    spec, speed = (export(hostile, t, tmp_path) for t in ("vllm-spec-bench", "vllm-speed-bench"))
    wanted = plain(hostile)
    assert [r["turns"] for r in json_lines(main_file(spec))] == [[p.messages[0]["content"]] for p in wanted]
    got = json_lines(tmp_path / "vllm-speed-bench/qualitative.jsonl")
    assert [(r["question_id"], r["category"], r["messages"]) for r in got] == [
        (p.id, p.domain, p.messages) for p in wanted
    ]
    longest = str(max(map(asked, wanted)))
    for done, flag in ((spec, "--spec-bench-output-len"), (speed, "--speed-bench-output-len")):
        words = shlex.split(done.command)
        assert words[words.index(flag) + 1] == longest
        assert losses(done)["output length of its own"] == sum(str(asked(p)) != longest for p in wanted)
    assert "--skip-chat-template" not in spec.command  # it knows no such flag: text, templated by the client, once
    assert "/v1/completions" in spec.command
    words = shlex.split(speed.command)
    assert words[words.index("--dataset-path") + 1] == str(tmp_path / "vllm-speed-bench")


def test_vllm_multi_turn_has_filler_of_the_asked_length_or_one_limit(replay: Pack, tmp_path: Path) -> None:
    from promptkit.tokenizers import load_tokenizer

    rough = export(replay, "vllm-multi-turn", tmp_path)
    words = shlex.split(rough.command)
    assert words[words.index("--limit-max-tokens") + 1] == "101"  # the row of one turn
    assert "--no-early-stop" in words  # else the first client to end stops the others
    path = write_kimi(tmp_path / "kimi")
    exact = export(replay, "vllm-multi-turn", tmp_path, tokenizer=path)
    assert "--limit" not in exact.command
    tokenizer = load_tokenizer(str(path))
    for item in json.loads(main_file(exact).read_bytes()):
        prompt = next(p for p in replay if p.id == item["id"])
        assert [m["content"] for m in item["messages"][::2]] == [m["content"] for m in prompt.messages]
        assert [m["role"] for m in item["messages"]] == ["user", "assistant"] * len(prompt.messages)
        share = -(-asked(prompt) // len(prompt.messages))
        assert {len(tokenizer.encode(m["content"])) for m in item["messages"][1::2]} == {share}
    assert losses(exact)["system turn"] == 1


# ------------------------------------------------------------------------------------------------ chat bodies


def body_of(prompt: Any) -> dict[str, Any]:
    tools = {"tools": prompt.tools} if prompt.tools else {}
    return {"messages": prompt.messages, "max_tokens": asked(prompt), **tools}


def test_sglang_rows_are_whole_requests(hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, "sglang", tmp_path)
    assert json_lines(main_file(done)) == [body_of(p) for p in hostile]
    words = shlex.split(done.command)
    assert words[words.index("--num-prompts") + 1] == str(len(hostile))  # more samples than rows would come again
    assert "--disable-ignore-eos" in words
    assert "--flush-cache" not in words
    assert any("--flush-cache" in n for n in done.notes)


def test_sglang_agentic_trace_replays_turns_and_sends_histories_at_once(
    replay: Pack, hostile: Pack, tmp_path: Path
) -> None:
    got = json.loads(main_file(export(replay, "sglang-agentic-trace", tmp_path)).read_bytes())["conversations"]
    assert sorted(len(c) for c in got) == [1, 2, 2, 3]
    assert [[m["role"] for m in t["messages"]] for c in got if len(c) == 2 for t in c].count(["system", "user"]) == 1
    done = export(hostile, "sglang-agentic-trace", tmp_path)
    got = json.loads(main_file(done).read_bytes())["conversations"]
    assert all(len(c) == 1 for c in got)
    assert losses(done)["tool definitions"] == 2
    assert losses(done)["tool calls, names or reasoning in the history"] == 1


def test_aiperf_takes_the_type_that_carries_the_pack(hostile: Pack, replay: Pack, marked: Pack, tmp_path: Path) -> None:
    for pack, kind in ((hostile, "mooncake_trace"), (replay, "multi_turn"), (marked, "single_turn")):
        done = export(pack, "aiperf", tmp_path)
        words = shlex.split(done.command)
        assert words[words.index("--custom-dataset-type") + 1] == kind
        assert done.left_out == []
        assert [r["session_id"] for r in json_lines(main_file(done))] == [p.id for p in pack]


def test_aiperf_rows(hostile: Pack, replay: Pack, marked: Pack, tmp_path: Path) -> None:
    got = json_lines(main_file(export(hostile, "aiperf", tmp_path)))
    assert [(r["messages"], r["output_length"], r.get("tools")) for r in got] == [
        (p.messages, asked(p), p.tools) for p in hostile
    ]
    got = json_lines(main_file(export(marked, "aiperf", tmp_path)))
    assert [(r["text"], r["output_length"]) for r in got] == [(p.messages[0]["content"], 9) for p in marked]
    done = export(replay, "aiperf", tmp_path)
    for r, p in zip(json_lines(main_file(done)), replay, strict=True):
        assert [(t["role"], t["text"]) for t in r["turns"]] == [(m["role"], m["content"]) for m in p.messages]
        n = sum(m["role"] == "user" for m in p.messages)
        assert {t["output_length"] for t in r["turns"] if t["role"] == "user"} == {-(-asked(p) // n)}
    assert "--num-sessions 4" in done.command


def test_aiperf_leaves_out_what_would_break_the_whole_file(tmp_path: Path) -> None:
    empty = row([user(""), user("x")])
    fields = {"recipe": {"turns": "all"}}
    done = export(packed(tmp_path, [empty, row([user("One."), user("Two.")])], **fields), "aiperf", tmp_path)
    assert losses(done)["an empty message"] == 1
    assert len(json_lines(main_file(done))) == 1


def test_guidellm_rows_are_conversations_as_text(hostile: Pack, replay: Pack, tmp_path: Path) -> None:
    done = export(hostile, "guidellm", tmp_path)
    got = [json.loads(r["conversation_turns"]) for r in json_lines(main_file(done))]
    assert [g["graph_id"] for g in got] == [p.id for p in hostile]
    for g, p in zip(got, hostile, strict=True):
        (turn,) = g["turns"]
        assert turn["columns"]["raw_messages_column"] == [p.messages]
        assert turn["columns"]["output_tokens_count_column"] == [asked(p)]
        assert turn["columns"].get("tools_column") == ([p.tools] if p.tools else None)
    assert "extras.body.ignore_eos=false" in done.command
    done = export(replay, "guidellm", tmp_path)
    got = [json.loads(r["conversation_turns"]) for r in json_lines(main_file(done))]
    assert [g["turns"][0]["parents"] for g in got] == [[]] * 4
    assert sum(len(g["turns"]) for g in got) == 8
    assert "count=8" in done.command
    with pytest.raises(UsageError, match="commas"):
        export(replay, "guidellm", tmp_path / "a,b")


def test_genai_perf_puts_messages_over_its_own(hostile: Pack, tmp_path: Path) -> None:
    got = json_lines(main_file(export(hostile, "genai-perf", tmp_path)))
    assert all(r["text_input"].strip() for r in got)  # else it invents one
    assert [(r["messages"], r["output_length"], r.get("tools")) for r in got] == [
        (p.messages, asked(p), p.tools) for p in hostile
    ]


@pytest.mark.parametrize("target", ["k6", "locust"])
def test_load_scripts_lie_beside_an_array_of_requests(target: str, hostile: Pack, tmp_path: Path) -> None:
    done = export(hostile, target, tmp_path)
    got = json.loads((tmp_path / target / "hostile.json").read_bytes())
    assert got == [{"id": p.id, "domain": p.domain, "body": body_of(p)} for p in hostile]
    script = tmp_path / target / ("hostile.js" if target == "k6" else "locustfile.py")
    assert str(script) in shlex.split(done.command)
    assert "hostile.json" in script.read_text()
    if target == "locust":
        compile(script.read_text(), str(script), "exec")


def test_openai_batch_joins_by_custom_id_and_leaves_the_file_alone(tmp_path: Path) -> None:
    import subprocess

    tricky = row([user('"model": "MODEL"')], [{**TOOL, "x": {"model": "MODEL"}}])
    pack = packed(tmp_path, [tricky])
    done = export(pack, "openai-batch", tmp_path)
    path = main_file(done)
    (before,) = json_lines(path)
    assert before["custom_id"] == pack[0].id
    assert before["body"] == {"model": "MODEL", **body_of(pack[0])}
    assert "-i" not in shlex.split(done.command)
    copy = done.command.split(" | ")[0]
    made = subprocess.run(["sh", "-c", copy], capture_output=True, text=True, check=True, env={"MODEL": "me/it"})
    assert json.loads(made.stdout)["body"] == {**before["body"], "model": "me/it"}
    assert json_lines(path) == [before]
    filled = export(pack, "openai-batch", tmp_path, model="me/it")
    assert json_lines(path)[0]["body"]["model"] == "me/it"
    assert "|" not in shlex.split(filled.command)


# ------------------------------------------------------------------------------------------------ ids and text


def test_trtllm_holds_templated_text_or_ids(hostile: Pack, tmp_path: Path) -> None:
    from promptkit.tokenizers import load_tokenizer

    done = export(hostile, "trtllm", tmp_path)
    got = json_lines(main_file(done))
    assert [r["prompt"] for r in got] == [p.text() for p in hostile]
    assert [r["task_id"] for r in got] == list(range(len(hostile)))
    words = shlex.split(done.command)
    assert words[words.index("--warmup") + 1] == "0"
    path = write_kimi(tmp_path / "kimi")
    done = export(hostile, "trtllm", tmp_path, tokenizer=path)
    tokenizer = load_tokenizer(str(path))
    for r, p in zip(json_lines(main_file(done)), hostile, strict=True):
        assert tokenizer.decode(r["input_ids"]) == p.text()
        assert "prompt" not in r
        assert r["output_tokens"] == asked(p)


def test_a_target_of_templated_text_refuses_a_pack_without_a_template(tmp_path: Path) -> None:
    pack = packed(tmp_path, rows())
    with pytest.raises(InputError) as error:
        export(pack, "trtllm", tmp_path)
    assert "--template" in error.value.hint
    assert export(pack, "trtllm", tmp_path, template="chatml").left_out == []


def test_reasoning_and_calls_of_the_history_stay_as_they_are(tmp_path: Path) -> None:
    history = [user("List."), assistant("", tool_calls=[CALL], reasoning="Look."),
               {"role": "tool", "content": "", "tool_call_id": CALL["id"]}]  # fmt: skip
    pack = packed(tmp_path, [row([SYSTEM, *history], [TOOL])], **KIMI)
    for target in ("sglang", "aiperf", "openai-batch", "k6", "locust", "genai-perf", "guidellm"):
        done = export(pack, target, tmp_path)
        assert losses(done)["reasoning of earlier turns"] == 1, target
        text = "".join(text_of(Path(f)) for f in done.files if "by-domain" not in f)
        text = text.replace('\\"', '"').replace("\\\\", "\\") if target == "guidellm" else text  # JSON inside JSON
        assert json.dumps(CALL["function"]["arguments"]) in text, target


# ------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def here(run: Any, tmp_path: Path) -> Path:
    write_pack(rows(), tmp_path / "promptkit-out" / "packs", name="mix")
    return tmp_path


def test_export_prints_files_losses_and_the_command_on_one_line(run: Any, here: Path) -> None:
    done = run("export", "mix", "--to", "vllm")
    assert done.code == 0
    out = done.out.splitlines()
    assert out[0] == "vllm: 21 of 26 prompts"
    assert "file     promptkit-out/exports/vllm/mix.jsonl" in out
    assert any("5 x system turn, history or tools" in line for line in out)
    (command,) = [line for line in out if line.startswith("vllm bench serve")]
    assert command == export("mix", "vllm").command
    assert max(len(line) for line in out if line != command) <= 80
    assert "next: export BASE_URL=http://localhost:8000 MODEL=NAME" in done.err
    filled = run("export", "mix", "--to", "vllm", "--base-url", "http://h:1", "--model", "m", "--out", "x")
    assert "next: paste the command" in filled.err
    assert "$" not in filled.out
    assert (here / "x/vllm/mix.jsonl").is_file()


def test_export_json_has_the_stable_keys(run: Any, here: Path) -> None:
    one = json.loads(run("export", "mix", "--to", "sglang", "--json").out)
    assert {"schema_version", "target", "files", "command", "losses", "ids"} <= set(one)
    assert all(Path(f).is_file() for f in [*one["files"], one["ids"]])
    assert set(one["losses"][0]) == {"what", "count", "note"}
    two = json.loads(run("export", "mix", "--to", "sglang", "--to", "aiperf", "--json").out)
    assert [e["target"] for e in two["exports"]] == ["sglang", "aiperf"]
    assert two["refused"] == []


def test_export_to_all_writes_what_can_be_and_says_what_cannot(run: Any, here: Path) -> None:
    done = run("export", "mix", "--to", "all", "--json")
    assert done.code == 0
    value = json.loads(done.out)
    targets = [e["target"] for e in value["exports"]] + [r["target"] for r in value["refused"]]
    assert sorted(targets) == EVERY
    (refused,) = value["refused"]
    assert refused["target"] == "trtllm"
    assert "--template" in refused["hint"]
    assert "trtllm" in done.err
    assert sorted(p.name for p in (here / "promptkit-out/exports").iterdir()) == sorted(set(EVERY) - {"trtllm"})


def test_a_target_asked_for_by_name_that_cannot_carry_the_pack_exits_4(run: Any, here: Path) -> None:
    assert run("export", "mix", "--to", "trtllm").code == 4
    both = run("export", "mix", "--to", "trtllm", "--to", "k6")
    assert both.code == 4
    assert "k6: 26 of 26 prompts" in both.out
    assert run("export", "mix", "--to", "trtllm", "--template", "chatml").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mix", "--to", "vlm"], "did you mean 'vllm'?"),
        (["mix"], "known: aiperf"),
        (["mxi", "--to", "vllm"], "did you mean 'mix'?"),
        (["mix", "--to", "vllm", "--template", "kimi-k25"], "did you mean 'kimi-k2.5'?"),
        (["mix", "--to", "vllm", "--output-tokens", "0"], "--output-tokens"),
    ],
)
def test_export_suggests_the_name_that_was_meant(run: Any, here: Path, words: list[str], said: str) -> None:
    done = run("export", *words)
    assert done.code == 2
    assert said in done.err
    assert not (here / "promptkit-out/exports").exists()


def test_job_words_survive_the_shell() -> None:
    import subprocess

    job = Job([], "n", "d")
    words = ["plain", "with space", "it's", "$(id)", "a$MODEL'b", 'q"$BASE_URL\\`x']
    for made in (job, replace(job, model="m$(id)", base_url="http://h/?a='b'")):
        line = "printf '%s\\n' " + made.shell(*words)
        env = {"MODEL": "m$(id)", "BASE_URL": "http://h/?a='b'"}
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, env=env)
        assert done.stdout.splitlines() == [
            w.replace("$MODEL", env["MODEL"]).replace("$BASE_URL", env["BASE_URL"]) for w in words
        ]


# ------------------------------------------------------------------------------------------------ the page


def test_the_page_names_every_target_and_shows_its_exact_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = (test_cli.ROOT / "docs" / "exports.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    pack = load_pack(test_cli.ROOT / "corpora" / "coding-agentic")
    for target in EVERY:
        assert re.search(rf"^\| .*`{target}`", page, re.MULTILINE), f"{target} is not in the table"
        command = export(pack, target, template="kimi-k2.5").command
        assert f"```bash\n{command}\n```" in page, f"docs/exports.md, {target}: {command}"
