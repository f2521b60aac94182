"""Every shape people keep prompts in becomes the same list of Prompts, and every bad file says what and where."""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from promptkit.candidates import FORMATS, read_candidates
from promptkit.errors import InputError, PromptkitError, UsageError

TWO = ["Explain B-trees to a new colleague.", "Fix the bug in parser.py."]
SHARED = Path(__file__).resolve().parents[2] / "shared"


def texts(path: Path, **kwargs) -> list[str]:
    return [m["content"] for p in read_candidates(path, **kwargs) for m in p.messages]


@pytest.fixture
def put(tmp_path):
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


SHAPES = {
    "list.yaml": "- Explain B-trees to a new colleague.\n- Fix the bug in parser.py.\n",
    "maps.yaml": "- prompt: Explain B-trees to a new colleague.\n- question: Fix the bug in parser.py.\n",
    "under.yml": "name: mine\nprompts:\n  - Explain B-trees to a new colleague.\n  - instruction: Fix the bug in parser.py.\n",
    "ids.yaml": "prompts:\n  a: Explain B-trees to a new colleague.\n  b: Fix the bug in parser.py.\n",
    "domains.yaml": "coding:\n  - Explain B-trees to a new colleague.\n  - Fix the bug in parser.py.\n",
    "promptfoo.yaml": "prompts: ['Explain {{topic}} to a new colleague.', 'Fix the bug in {{ file }}.']\nproviders: [echo]\ntests:\n  - vars: {topic: B-trees, file: parser.py}\n",
    "rows.jsonl": '{"prompt": "Explain B-trees to a new colleague."}\n\n{"text": "Fix the bug in parser.py."}\n',
    "strings.jsonl": '"Explain B-trees to a new colleague."\n"Fix the bug in parser.py."\n',
    "array.json": json.dumps(TWO),
    "pretty.json": json.dumps([{"prompt": t} for t in TWO], indent=2),
    "data.json": json.dumps({"data": [{"input": t} for t in TWO]}),
    "sharegpt.json": json.dumps(
        [{"conversations": [{"from": "human", "value": t}, {"from": "gpt", "value": "Yes."}]} for t in TWO]
    ),
    "batch.jsonl": "\n".join(
        json.dumps({"custom_id": f"r{i}", "method": "POST", "body": {"messages": [{"role": "user", "content": t}]}})
        for i, t in enumerate(TWO)
    ),
    "question.jsonl": json.dumps({"question_id": 81, "category": "coding", "turns": TWO}),
    "aiperf.jsonl": json.dumps({"session_id": "s", "turns": [{"text": t} for t in TWO]}),
    "p.csv": 'prompt,domain\n"Explain B-trees to a new colleague.",coding\nFix the bug in parser.py.,coding\n',
    "semicolon.csv": "id;prompt\na;Explain B-trees to a new colleague.\nb;Fix the bug in parser.py.\n",
    "p.tsv": "prompt\tid\nExplain B-trees to a new colleague.\ta\nFix the bug in parser.py.\tb\n",
    "p.txt": "Explain B-trees to a new colleague.\n\nFix the bug in parser.py.\n",
    "blocks.txt": "Explain B-trees to a new colleague.\n---\nFix the bug in parser.py.\n",
    "bom.txt": "\ufeffExplain B-trees to a new colleague.\r\nFix the bug in parser.py.\r\n",
    "script.py": 'import os\nPROMPTS = [\n    "Explain B-trees "\n    "to a new colleague.",\n    "Fix the bug in parser.py.",\n]\nos.abort()\n',
    "rows.jsonl.gz": gzip.compress("\n".join(json.dumps({"prompt": t}) for t in TWO).encode()),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_gives_the_same_two_texts(put, name):
    assert texts(put(name, SHAPES[name])) == TWO


@pytest.mark.parametrize("name", ["list.yaml", "rows.jsonl", "p.txt", "p.csv", "script.py"])
def test_shape_is_found_without_a_suffix(put, name):
    assert texts(put("prompts", SHAPES[name])) == TWO


def test_parquet_columns_are_fields(tmp_path):
    import polars as pl

    pl.DataFrame({"id": ["a", "b"], "messages": [[{"role": "user", "content": t}] for t in TWO]}).write_parquet(
        tmp_path / "p.parquet"
    )
    prompts = read_candidates(tmp_path / "p.parquet")
    assert [p.id for p in prompts] == ["a", "b"]
    assert texts(tmp_path / "p.parquet") == TWO


ANSWERS = {
    "vllm": {"prompt": "Hi there", "generated_text": "Sum."},
    "request output": {"prompt": "Hi there", "outputs": [{"index": 0, "text": "Sum."}]},
    "sglang": {"prompt": "Hi there", "output": "Sum."},
    "lm-eval": {
        "doc_id": 3,
        "doc": {"question": "raw"},
        "target": "no",
        "arguments": {"gen_args_0": {"arg_0": "Hi there", "arg_1": {}}},
        "resps": [["Sum."]],
        "filtered_resps": ["Sum."],
    },
    "lm-eval old": {"doc_id": 3, "doc": {}, "arguments": [["Hi there", {}]], "resps": [["Sum."]]},
    "evalscope": {
        "messages": [{"role": "user", "content": "Hi there"}],
        "model_output": {"choices": [{"message": {"role": "assistant", "content": "Sum."}}]},
    },
    "inspect": {
        "id": "x",
        "input": [{"role": "user", "content": "Hi there"}],
        "output": {"completion": "Sum."},
        "target": "no",
    },
    "promptfoo": {"prompt": {"raw": "Hi there", "label": "l"}, "response": {"output": "Sum."}},
    "chat": {"messages": [{"role": "user", "content": "Hi there"}, {"role": "assistant", "content": "Sum."}]},
    "alpaca": {"instruction": "Hi there", "input": "", "output": "Sum."},
    "answer": {"question": "Hi there", "answer": "Sum."},
    "completion": {"prompt": "Hi there", "completion": "Sum."},
}


@pytest.mark.parametrize("name", ANSWERS)
def test_generated_answers_become_the_response(put, name):
    (prompt,) = read_candidates(put("r.jsonl", json.dumps(ANSWERS[name])))
    assert prompt.messages == [{"role": "user", "content": "Hi there"}]
    assert prompt.response == "Sum."


def test_any_field_can_say_how_often_a_prompt_is_run(put):
    rows = put("p.jsonl", '{"prompt": "a", "Runs": 10}\n{"prompt": "b", "Runs": 1, "weight": 7}\n')
    assert [p.weight for p in read_candidates(rows)] == [1, 7]
    assert [p.weight for p in read_candidates(rows, weights="Runs")] == [10, 1]
    table = put("p.csv", "prompt,Runs\na,10\nb,0.5\n")
    assert [p.weight for p in read_candidates(table, weights="Runs")] == [10, 0.5]
    for content, said in (
        ('{"prompt": "a", "n": 1}\n{"prompt": "b"}\n', "line 2: no field 'n' to weigh it by"),
        ('"a"\n"b"\n', "line 1: no field 'n'"),
    ):
        with pytest.raises(UsageError, match=said):
            read_candidates(put("q.jsonl", content), weights="n")
    with pytest.raises(InputError, match="weight '-1'"):
        read_candidates(put("r.jsonl", '{"prompt": "a", "n": -1}\n'), weights="n")


def test_what_a_data_set_wanted_is_no_response(put):
    row = {"question": "Which is prime?", "choices": ["4", "5"], "reference": "5", "target": "5", "answer": 1}
    (prompt,) = read_candidates(put("r.jsonl", json.dumps(row)))
    assert prompt.response is None


def test_parallel_lists_are_joined(put):
    path = put("r.json", json.dumps({"prompts": TWO, "generated_texts": ["a", "b"], "input_lens": [1, 2]}))
    assert [(p.messages[0]["content"], p.response) for p in read_candidates(path)] == [(TWO[0], "a"), (TWO[1], "b")]


def test_answers_without_prompts_say_so(put):
    with pytest.raises(InputError, match="answers without"):
        read_candidates(put("r.json", json.dumps({"generated_texts": ["a"], "input_lens": [1]})))
    with pytest.raises(InputError, match="answer without its prompt"):
        read_candidates(
            put("r.jsonl", '{"custom_id": "a", "response": {"body": {"choices": [{"message": {"content": "x"}}]}}}')
        )


def test_history_tools_and_fields_are_kept(put):
    row = {
        "id": "t1", "domain": "agentic", "weight": 2, "output_tokens": 40, "tools": '[{"type": "function", "function": {"name": "ls"}}]',
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "List"}, {"type": "image_url", "image_url": {}}]},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [{"id": "c", "function": {"name": "ls", "arguments": {"path": "."}}}]},
            {"role": "tool", "tool_call_id": "c", "content": "a.py"},
            {"role": "user", "content": "And now?"},
        ],
    }  # fmt: skip
    (p,) = read_candidates(put("r.jsonl", json.dumps(row)))
    assert [m["role"] for m in p.messages] == ["system", "user", "assistant", "tool", "user"]
    assert p.messages[1]["content"] == "List"
    assert p.messages[2] == {
        "role": "assistant",
        "content": "",
        "reasoning": "hm",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}}],
    }
    assert (p.id, p.domain, p.weight, p.expected_output_tokens) == ("t1", "agentic", 2.0, 40)
    assert p.tools == [{"type": "function", "function": {"name": "ls"}}]


def test_a_call_without_a_name_is_read_as_detokenize_writes_it(put):
    call = {"id": "call_0", "type": "function", "function": {"name": None, "arguments": "{}"}}
    row = {"messages": [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "", "tool_calls": [call]}]}
    (p,) = read_candidates(put("r.jsonl", json.dumps(row)))
    assert p.messages[0] == {"role": "user", "content": "Go"}


def test_yaml_text_with_a_colon_is_told_to_be_quoted(put):
    with pytest.raises(
        UsageError, match="line 2: no prompt among the keys 'Fix this'; text that holds ': ' needs quotes"
    ):
        read_candidates(put("p.yaml", "- Write a sort.\n- Fix this: it fails on empty input\n"))


def test_a_config_of_nothing_but_files_reads_them(put):
    put("a.txt", "Write a sort.")
    (p,) = read_candidates(put("p.yaml", "prompts:\n  - file://a.txt\n"))
    assert p.messages[0]["content"] == "Write a sort."
    with pytest.raises(UsageError, match="file://none"):
        read_candidates(put("q.yaml", "prompts:\n  - file://none.txt\n"))


def test_system_prompt_field_leads(put):
    (p,) = read_candidates(put("r.jsonl", '{"system_prompt": "Be brief.", "prompt": "Why?"}'))
    assert [m["role"] for m in p.messages] == ["system", "user"]


def test_a_pack_is_read_by_directory_and_by_name(tmp_path, monkeypatch):
    from promptkit.conversation import prompt_id
    from promptkit.pack import write_pack

    rows = [
        {"id": prompt_id(m), "messages": m, "domain": "coding"} for m in ([{"role": "user", "content": t}] for t in TWO)
    ]
    where = write_pack(rows, tmp_path / "promptkit-out" / "packs", name="mine")
    monkeypatch.chdir(tmp_path)
    assert sorted(texts(where)) == sorted(texts("mine@1.0.0")) == TWO
    with pytest.raises(UsageError, match="mien: no such file"):
        read_candidates("mien")
    with pytest.raises(UsageError):
        read_candidates(tmp_path)
    with pytest.raises(UsageError, match="is a directory"):
        read_candidates(where, fmt="yaml")


def test_ids_are_content_hashes_and_repeats_are_told_apart(put):
    a, b, c = read_candidates(put("p.txt", "Same.\nSame.\nOther.\n"))
    assert len(a.id) == 32
    assert b.id == a.id + "#2"
    assert c.id not in (a.id, b.id)


# -- YAML: D5 29-32 ------------------------------------------------------------------------------------------------


def test_yaml_scalars_stay_text(put):
    prompts = read_candidates(
        put("p.yaml", "- {id: no, prompt: NO}\n- {id: 1.10, prompt: 12:30:45}\n- {id: 0x1F, prompt: 1e3}\n")
    )
    assert [(p.id, p.messages[0]["content"]) for p in prompts] == [("no", "NO"), ("1.10", "12:30:45"), ("0x1F", "1e3")]


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)
BAD_YAML = {
    "python tag": ("- ok\n- !!python/object/apply:os.system ['true']\n", "line 2.*tag"),
    "custom tag": ("- !secret x\n", "line 1.*tag"),
    "alias bomb": (BOMB, "aliases expand"),
    "cycle": ("- &a [*a]\n", "cycle"),
    "deep": ("[" * 100_000, "nested deeper"),
    "deep blocks": ("- " * 100_000, "nested deeper"),
    "duplicate key": ("prompts:\n  - id: a\n    prompt: x\n    id: b\n", "line 4.*'id'.*line 2"),
    "duplicate id": (
        "- {id: a, prompt: x y z}\n- {id: b, prompt: x}\n- {id: a, prompt: y}\n",
        "line 3: id 'a' again, first at line 1",
    ),
    "no yaml": ("- a: b: c\n", "line 1, column"),
    "two documents": ("- a\n---\n- b\n", "second document"),
    "just text": ("hello there\n", "found text"),
    "latin-1": (b"- caf\xe9\n", "line 1: byte 0xe9"),
    "utf-16": ("- a".encode("utf-16"), "UTF-16"),
    "number as role": ("- messages: [{role: 3, content: x}]\n", "role '3'"),
    "weight": ("- {prompt: x, weight: nan}\n", "weight 'nan'"),
}


@pytest.mark.parametrize("name", BAD_YAML)
def test_bad_yaml_is_a_usage_error_with_the_place(put, name):
    content, message = BAD_YAML[name]
    with pytest.raises(UsageError, match=message) as caught:
        read_candidates(put("p.yaml", content))
    assert caught.value.exit_code == 2
    assert caught.value.hint
    assert "p.yaml" in caught.value.message


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_yaml_bombs_are_refused_within_two_seconds_and_200_mb(put):
    code = (
        "import sys, time; from promptkit.candidates import read_candidates\n"
        # VmHWM starts anew with the program; ru_maxrss would hold the peak of the test runner that forked it.
        "peak = lambda: next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('VmHWM'))\n"
        "t = time.perf_counter()\n"
        "try: read_candidates(sys.argv[1])\n"
        "except Exception as e: print(type(e).__name__, time.perf_counter() - t, peak())"
    )
    for content in (BOMB, "[" * 100_000, "- &a [*a]\n"):
        out = subprocess.run(
            [sys.executable, "-c", code, str(put("p.yaml", content))], capture_output=True, text=True, check=True
        ).stdout.split()
        assert out[0] == "UsageError"
        assert float(out[1]) < 2
        assert int(out[2]) < 200 * 1024


def test_yaml_anchors_and_merges_work(put):
    (p,) = read_candidates(put("p.yaml", "base: &b {domain: coding}\nprompts:\n  - <<: *b\n    prompt: Why?\n"))
    assert p.domain == "coding"


EMPTY = {"p.yaml": ["", "prompts: []\n", "- ''\n- '  '\n", "# nothing\n", "{}"], "p.jsonl": ["", "\n\n", '{"prompt": ""}\n'], "p.json": ["[]", '{"prompts": []}'], "p.csv": ["prompt,id\n"], "p.txt": ["\n  \n"], "p.py": ["PROMPTS = []\n", "x = 1\n"]}  # fmt: skip


@pytest.mark.parametrize(("name", "content"), [(n, c) for n, cs in EMPTY.items() for c in cs])
def test_no_prompts_is_an_input_error(put, name, content):
    with pytest.raises(InputError) as caught:
        read_candidates(put(name, content))
    assert caught.value.exit_code == 4


BAD_DATA = {
    "broken.jsonl": ('{"prompt": "a"}\n{"prompt": \n', "line 2"),
    "second.jsonl": ('{"prompt": "a"}\n{"promt": "b"}\n', "line 2: no prompt among the keys 'promt'"),
    "nan.jsonl": ('{"prompt": "a"}\n{"prompt": "a", "weight": NaN}\n', "line 2.*NaN"),
    "twice.jsonl": ('{"prompt": "a", "prompt": "b"}\n', "'prompt' twice"),
    "deep.json": ("[" * 100_000 + "]" * 100_000, "nested|deep|JSON"),
    "number.json": ("[1, 2]", "2 of 2 rows.*\n.*item 0: prompt is a number"),
    "column.csv": ("a,b\n1,2\n", "no prompt column among 'a', 'b'"),
    "ragged.csv": ("prompt,id\nhello there, you,x\n", "line 2: 3 cells"),
    "quote.csv": ('prompt,id\n"hello,x\n', "not readable as CSV"),
    "zip.parquet": (b"PK\x03\x04 nonsense", "first bytes"),
    "cut.parquet": (b"PAR1 nonsense", "not readable as Parquet"),
    "cut.jsonl.gz": (gzip.compress(b'{"prompt": "a"}' * 1000)[:40], "cannot be decompressed"),
    "nul.txt": (b"abc\0def", "NUL"),
    "dup.jsonl": ('{"id": 7, "prompt": "a"}\n{"id": "7", "prompt": "b"}\n', "line 2: id '7' again, first at line 1"),
    "calls.jsonl": (
        '{"messages": [{"role": "assistant", "tool_calls": [{"x": 1}]}]}',
        "tool call without a function name",
    ),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_is_an_input_error_with_the_place(put, name):
    content, message = BAD_DATA[name]
    with pytest.raises(InputError, match=message):
        read_candidates(put(name, content))


def test_gzip_bomb_is_refused(put):
    with pytest.raises(InputError, match="inflates to more than"):
        read_candidates(put("bomb.jsonl.gz", gzip.compress(b" " * (40 << 20))))


def test_several_problems_are_reported_at_once(put):
    with pytest.raises(InputError) as caught:
        read_candidates(put("p.jsonl", '{"a": 1}\n{"prompt": "ok"}\n[3]\n'))
    assert "2 of 3 rows" in caught.value.message
    assert "line 1:" in caught.value.message
    assert "line 3:" in caught.value.message


def test_missing_file_suggests_the_nearest(put):
    path = put("prompts.yaml", "- a\n")
    with pytest.raises(UsageError, match="no such file") as caught:
        read_candidates(path.with_name("promts.yaml"))
    assert "prompts.yaml" in caught.value.hint


def test_unknown_format_lists_the_known(put):
    with pytest.raises(UsageError) as caught:
        read_candidates(put("p.txt", "a"), fmt="yml")
    assert all(f in caught.value.hint for f in FORMATS)


def test_lone_surrogates_are_replaced_and_counted(put):
    (p,) = read_candidates(put("p.jsonl", '{"prompt": "a\\ud800b \\ud83d\\ude00 \\u2028"}'))
    assert p.messages[0]["content"] == "a\ufffdb \U0001f600 \u2028"
    assert p.extra["surrogates_replaced"] == 1


# -- scripts -------------------------------------------------------------------------------------------------------

SCRIPT = '''
"""A benchmark."""
import requests
from textwrap import dedent

MODEL = "kimi-k2.5"
HEADERS = ["Content-Type: application/json is what the server wants here"]
SYSTEM_PROMPT = "You are a helpful assistant that answers questions."
INTRO = "Explain the theory"
CODING = [
    dedent("""
        Write a detailed guide to B-trees,
        with code.
    """).strip(),
]
PROMPTS = [
    f"{INTRO} of general relativity "
    "in depth.",
    *CODING,
] + ["What are the economic implications of AI" + " over the next decade?"]

def main():
    for p in PROMPTS:
        requests.post("http://localhost", json={"messages": [{"role": "user", "content": p}]})
    open("marker", "w").write("the script was run")

main()
'''


def test_script_lists_are_read_and_never_run(put, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prompts = read_candidates(put("bench.py", SCRIPT))
    assert [p.messages[0]["content"] for p in prompts] == [
        "Explain the theory of general relativity in depth.",
        "Write a detailed guide to B-trees,\nwith code.",
        "What are the economic implications of AI over the next decade?",
    ]
    assert {p.source for p in prompts} == {"bench.py:PROMPTS"}
    assert "(line 16)" in prompts[0].extra["place"]
    assert not (tmp_path / "marker").exists()


SCRIPTS = {
    "dict of texts": ('BENCH = {"a": "Explain general relativity now.", "b": "Write a guide to B-trees."}', [("a", None), ("b", None)]),
    "dict of lists": ('prompts = {"coding": ["Write a guide to B-trees."], "chat": ["Tell me about your day."]}', [(None, "coding"), (None, "chat")]),
    "pairs": ('PROMPTS = [("rel", "Explain general relativity now."), ("bt", "Write a guide to B-trees.")]', [("rel", None), ("bt", None)]),
    "domains": ('PROMPTS = [("x", "Explain general relativity now."), ("x", "Write a guide to B-trees.")]', [(None, "x"), (None, "x")]),
    "mappings": ('tests = [dict(id="r", prompt="Explain general relativity now."), Case(prompt="Write a guide to B-trees.", domain="d", n=f())]', [("r", None), (None, "d")]),
    "nested config": ('CONFIG = {"model": "m", "prompts": ["Explain general relativity now.", "Write a guide to B-trees."]}', [(None, None)] * 2),
    "in a function": ('def get():\n    return ["Explain general relativity right now.", "Write a guide to B-trees for me."]', [(None, None)] * 2),
    "argument": ('run(model="m", prompts=["Explain general relativity now.", "Write a guide to B-trees."])', [(None, None)] * 2),
    "default": ('def run(prompts=("Explain general relativity now.", "Write a guide to B-trees.")):\n    pass', [(None, None)] * 2),
    "split": ('PROMPTS = """Explain general relativity now.\nWrite a guide to B-trees.\n""".strip().splitlines()', [(None, None)] * 2),
    "append": ('prompts = ["Explain general relativity now."]\nprompts.append("Write a guide to B-trees.")', [(None, None)] * 2),
    "augmented": ('prompts = ["Explain general relativity now."]\nprompts += ["Write a guide to B-trees."]', [(None, None)] * 2),
    "class": ('class Bench:\n    questions: list[str] = ["Explain general relativity now.", "Write a guide to B-trees."]', [(None, None)] * 2),
    "one": ('prompt = "Explain general relativity to me."\nbanner = ["-" , "="]', [(None, None)]),
    "unnamed": ('THINGS = ["Explain general relativity to a student.", "Write a guide to B-trees for me."]', [(None, None)] * 2),
    "loop": ('for p in ["Explain general relativity to a student.", "Write a guide to B-trees for me."]:\n    ask(p)', [(None, None)] * 2),
    "messages": ('REQUESTS = [{"messages": [{"role": "user", "content": "Explain general relativity."}]}]', [(None, None)]),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_shapes(put, name):
    source, expected = SCRIPTS[name]
    got = [(p.id if len(p.id) < 30 else None, p.domain) for p in read_candidates(put("b.py", source))]
    assert got == expected


def test_script_whose_prompts_are_computed_is_refused(put):
    with pytest.raises(InputError, match=r"line 3: a part of PROMPTS is built at run time"):
        read_candidates(put("b.py", 'PROMPTS = [\n    "Explain general relativity.",\n    open("x").read(),\n]'))


def test_script_without_prompts_names_what_it_saw(put):
    with pytest.raises(InputError, match=r"no list of prompts found among MODELS \(line 1\)"):
        read_candidates(put("b.py", 'MODELS = ["a", "b"]'))


def test_script_that_is_no_python_names_the_line(put):
    with pytest.raises(UsageError, match="line 2: not readable as Python"):
        read_candidates(put("b.py", "x = 1\nPROMPTS = [\n"))


@pytest.mark.parametrize(
    "source",
    [
        'a0 = "x" * 9\nprompts_0 = "xxxxxxxxxxxxxxx"\n'
        + "".join(f"prompts_{i + 1} = prompts_{i} + prompts_{i}\n" for i in range(60)),
        'l_0 = ["a b c d e f"] \n' + "".join(f"l_{i + 1} = [{', '.join([f'l_{i}'] * 9)}]\n" for i in range(30)),
        "PROMPTS = [" + '"a".replace("a", "aaaaaaaaaaaaaaaaaaaa")' * 3 + "]",
        "x = " + "(" * 5000,
        "x = " + "-" * 100_000 + "1",
        "x = " + " + ".join(['"a"'] * 50_000),
    ],
    ids=["doubling text", "nested lists", "replace", "parentheses", "minus", "sum"],
)
def test_hostile_scripts_cost_little(put, source):
    start = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of all tests that this process ran before
    with pytest.raises(PromptkitError):
        read_candidates(put("b.py", source))
    assert time.perf_counter() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19  # KiB


# -- anything at all -----------------------------------------------------------------------------------------------

JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["prompt", "messages", "turns", "role", "content", "prompts", "tests", "vars", "id", "weight", "tools", "tool_calls", "function", "name", "body", "choices", "output", "arguments", "doc", "domain", "input", "from"]) | st.text(max_size=4), inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


def read_or_refuse(path: Path, fmt: str | None) -> None:
    try:
        prompts = read_candidates(path, fmt=fmt)
    except (UsageError, InputError):
        return
    assert prompts
    assert all(m["content"].encode() is not None for p in prompts for m in p.messages)
    assert len({p.id for p in prompts}) == len(prompts)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    raw=st.binary(max_size=200) | st.text(max_size=100).map(lambda t: t.encode("utf-8", "surrogatepass")),
    fmt=st.sampled_from([None, *FORMATS]),
)
def test_any_bytes_give_prompts_or_a_promptkit_error(tmp_path, raw, fmt):
    path = tmp_path / "x"
    path.write_bytes(raw)
    read_or_refuse(path, fmt)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=JSONISH)
def test_any_json_value_gives_prompts_or_a_promptkit_error(tmp_path, value):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(value))
    read_or_refuse(path, None)
    path.with_suffix(".yaml").write_text(json.dumps(value))
    read_or_refuse(path.with_suffix(".yaml"), None)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.sampled_from(['PROMPTS = ', '[', ']', '"Explain B-trees now."', ', ', 'f"{x} a b c"', '\n', 'x = "a b c d"\n', '+', '.strip()', '(', ')', 'dict(prompt=', '.split()', '"".join(', 'prompts += ', '{', '}', ': ', '*x', '.replace("a", "b")', 'sorted(', '1', '.join([1])']), max_size=14))  # fmt: skip
def test_any_script_gives_prompts_or_a_promptkit_error(tmp_path, parts):
    path = tmp_path / "x.py"
    path.write_text("".join(parts))
    read_or_refuse(path, None)


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="the shared real prompts are not beside this checkout")
@pytest.mark.parametrize("source", ["mt_bench", "gsm8k", "bfcl", "tau_bench"])
def test_real_prompt_files_are_read_whole(source):
    path = SHARED / "data" / source / f"{source}.jsonl"
    rows = path.read_text().count("\n")
    assert len(read_candidates(path)) == rows


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "n,Ask,prompt\n1,Fix it,other\n"),
        ("a.tsv", "n\tAsk\n1\tFix it\n"),
        ("a.jsonl", '{"n": 1, "Ask": "Fix it", "prompt": "other"}\n'),
        ("a.json", '[{"Ask": [{"role": "user", "content": "Fix it"}]}]'),
    ],
)
def test_the_prompt_column_can_be_named(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    (prompt,) = read_candidates(tmp_path / name, column="Ask")
    assert [m["content"] for m in prompt.messages] == ["Fix it"]
    with pytest.raises(PromptkitError, match=r"no (field|prompt column)") as caught:
        read_candidates(tmp_path / name, column="Akk")
    assert "ask" in f"{caught.value} {caught.value.hint}".lower()
