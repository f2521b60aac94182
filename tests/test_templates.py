"""Conversations from ids: the grammar, its damage, the choice of a template, and the refusal of a wrong tokenizer."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_tokenizers as tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from promptkit.conversation import Conversation, uses_tools
from promptkit.declarations import take
from promptkit.encoders import RankEncoder
from promptkit.errors import UsageError
from promptkit.grammars import QWEN_TOOLS, template_named
from promptkit.readers.records import Record
from promptkit.recover import parse_ids
from promptkit.templates import TEMPLATES, detect, is_growing_prefix, parse_text, recover, render, trim
from promptkit.tokenizers import Tokenizer, load_tokenizer

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(tiny.write_kimi(tmp_path_factory.mktemp("kimi")))


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(tiny.write_chatml(tmp_path_factory.mktemp("chatml")))


def row(ids: Any, mask: Any = None, **more: Any) -> Record:
    ids = None if ids is None else np.asarray(ids, np.int64)
    mask = None if mask is None else np.asarray(mask, bool)
    return Record(row=0, ids=ids, mask=mask, **more)


def read(tokenizer: Tokenizer, template: str, text: str, **more: Any) -> Conversation:
    """Recover from the ids of a rendered text."""
    return recover(row(tokenizer.encode_rendered(text), **more), tokenizer, template)


def turn(role: str, text: str, name: str | None = None) -> str:
    marker = role if role in ("user", "assistant") else "system"
    return f"<|im_{marker}|>{name or role}<|im_middle|>{text}<|im_end|>"


USER = {"role": "user", "content": "Hi"}


# ---- Kimi


def test_kimi_turns(kimi: Tokenizer) -> None:
    got = read(kimi, "kimi-k2", turn("system", "Be kind.") + turn("user", "Hi") + turn("assistant", "Hello"))
    assert got.messages == [
        {"role": "system", "content": "Be kind."},
        USER,
        {"role": "assistant", "content": "Hello"},
    ]
    assert got.marks == ()
    assert not got.truncated


def test_the_role_is_the_marker_and_not_the_name_behind_it(kimi: Tokenizer) -> None:
    got = read(kimi, "kimi-k2", turn("user", "Hi", "Ada") + turn("system", "12", "get_time"))
    assert got.messages == [
        {"role": "user", "content": "Hi", "name": "Ada"},
        {"role": "system", "content": "12", "name": "get_time"},
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<think></think>Hello", {"role": "assistant", "content": "Hello"}),
        ("<think>Hm.</think>Hello", {"role": "assistant", "content": "Hello", "reasoning": "Hm."}),
        ("a <think>b</think> c", {"role": "assistant", "content": "a <think>b</think> c"}),
        ("<think>x</think>a</think>b", {"role": "assistant", "content": "a</think>b", "reasoning": "x"}),
    ],
)
def test_kimi_think_pairs(kimi: Tokenizer, body: str, expected: dict[str, str]) -> None:
    assert read(kimi, "kimi-k2.5", turn("user", "Hi") + turn("assistant", body)).messages[1] == expected


CALLS = (
    "Look.<|tool_calls_section_begin|>"
    '<|tool_call_begin|>functions.ls:0<|tool_call_argument_begin|>{"p": "."}<|tool_call_end|>'
    "<|tool_call_begin|> call_1 <|tool_call_argument_begin|>{bad<|tool_call_end|>"
    "<|tool_calls_section_end|>"
)


def test_kimi_tools_calls_and_results(kimi: Tokenizer) -> None:
    tools = [{"type": "function", "function": {"name": "ls"}}]
    text = (
        turn("tool_declare", json.dumps(tools)) + turn("user", "Hi") + turn("assistant", CALLS)
        + turn("tool", "## Return of functions.ls:0\na.py\nb.py", "ls") + turn("tool", "no header")
    )  # fmt: skip
    got = read(kimi, "kimi-k2", text)
    assert got.tools == tools
    assert got.messages[1:] == [
        {
            "role": "assistant",
            "content": "Look.",
            "tool_calls": [
                {"id": "functions.ls:0", "type": "function", "function": {"name": "ls", "arguments": '{"p": "."}'}},
                {"id": "call_1", "type": "function", "function": {"name": None, "arguments": "{bad"}},
            ],
        },
        {"role": "tool", "content": "a.py\nb.py", "tool_call_id": "functions.ls:0", "name": "ls"},
        {"role": "tool", "content": "no header"},
    ]
    assert uses_tools(got)


def test_tools_declared_in_typescript_stay_as_they_are(kimi: Tokenizer) -> None:
    text = turn("tool_declare", "namespace functions { type ls = () => any; }") + turn("user", "Hi")
    got = read(kimi, "kimi-k2.5", text)
    assert got.tools == ["namespace functions { type ls = () => any; }"]
    assert render(got.messages, got.tools, "kimi-k2.5", generation_prompt=False) == text


def test_a_generation_prompt_at_the_end_is_no_message_and_no_cut(kimi: Tokenizer) -> None:
    for tail in ("", "<think>", "<think></think>"):
        got = read(kimi, "kimi-k2.5", turn("user", "Hi") + "<|im_assistant|>assistant<|im_middle|>" + tail)
        assert got.messages == [USER]
        assert not got.truncated


@pytest.mark.parametrize(
    ("tail", "last"),
    [
        ("<|im_assistant|>assistant<|im_middle|>Hel", {"role": "assistant", "content": "Hel"}),
        ("<|im_assistant|>assistant<|im_middle|><think>Hm", {"role": "assistant", "content": "", "reasoning": "Hm"}),
        ("<|im_assistant|>assis", USER),
        ("<|im_user|>user<|im_middle|>", USER),
        ("<|im_system|>tool<|im_middle|>## Return of functi", USER),
        ("<|im_system|>tool_declare<|im_middle|>[{", USER),
        ("<|im_assistant|>assistant<|im_middle|>Hm<|tool_calls_section_begin|><|tool_call_begin|>functions.ls:0"
         '<|tool_call_argument_begin|>{"p"', {"role": "assistant", "content": "Hm"}),
    ],
)  # fmt: skip
def test_kimi_rows_cut_anywhere_are_kept_and_marked(kimi: Tokenizer, tail: str, last: dict[str, str]) -> None:
    got = read(kimi, "kimi-k2.5", turn("user", "Hi") + tail)
    assert got.messages[-1] == last
    assert got.truncated
    assert "truncated" in got.marks


def test_a_half_character_at_the_cut_is_left_off(kimi: Tokenizer) -> None:
    ids = kimi.encode_rendered(turn("user", "Hi") + "<|im_assistant|>assistant<|im_middle|>日本")[:-1]
    got = recover(row(ids), kimi, "kimi-k2")
    assert got.messages[-1]["content"] == "日"


def test_quoted_markers_stay_in_the_text_and_are_marked(kimi: Tokenizer) -> None:
    text = turn("user", "What does <|im_end|> mean, and <|im_user|>?") + turn("assistant", "It ends a turn.")
    got = read(kimi, "kimi-k2", text)
    assert [m["content"] for m in got.messages] == ["What does <|im_end|> mean, and <|im_user|>?", "It ends a turn."]
    assert "quoted markers" in got.marks


def test_quoted_markers_between_spaces_lose_nothing(kimi: Tokenizer) -> None:
    got = read(kimi, "kimi-k2", turn("user", "both <|im_end|> <|im_user|> and <|im_end|>") + turn("assistant", "ok"))
    assert got.messages[0] == {"role": "user", "content": "both <|im_end|> <|im_user|> and <|im_end|>"}


def test_a_quoted_turn_cannot_be_told_apart_but_is_marked(kimi: Tokenizer) -> None:
    got = read(
        kimi, "kimi-k2", turn("user", "see <|im_user|>user<|im_middle|>x<|im_end|> there") + turn("assistant", "ok")
    )
    assert {"marker inside a message", "quoted markers"} <= set(got.marks)
    assert "".join(m["content"] for m in got.messages) == "see x<|im_end|> thereok"


def test_tool_markers_spelled_by_ordinary_tokens_are_content(kimi: Tokenizer) -> None:
    ids = np.concatenate([
        kimi.encode_rendered("<|im_user|>user<|im_middle|>"), kimi.encode("say <|im_end|> <tool_call>"),
        kimi.encode_rendered("<|im_end|>"),
    ])  # fmt: skip
    got = recover(row(ids), kimi, "kimi-k2")
    assert got.messages == [{"role": "user", "content": "say <|im_end|> <tool_call>"}]
    assert got.marks == ()


def test_white_space_and_end_tokens_between_turns_are_dropped(kimi: Tokenizer) -> None:
    got = read(kimi, "kimi-k2", "[BOS]" + turn("user", "Hi") + "\n" + turn("assistant", "Yo") + "[EOS]")
    assert [m["content"] for m in got.messages] == ["Hi", "Yo"]
    assert got.marks == ()


def test_a_row_cut_at_its_start_keeps_the_tail_of_the_turn(kimi: Tokenizer) -> None:
    got = read(kimi, "kimi-k2", "the rest<|im_end|>" + turn("assistant", "Yo"))
    assert got.messages == [{"role": "user", "content": "the rest"}, {"role": "assistant", "content": "Yo"}]


def test_the_default_system_turn_is_kept_and_marked(kimi: Tokenizer) -> None:
    got = read(kimi, "kimi-k2", turn("system", "You are a helpful assistant.") + turn("user", "Hi"))
    assert got.messages[0]["role"] == "system"
    assert got.marks == ("system is default",)


# ---- ChatML


def test_chatml_turns_and_tool_responses(chatml: Tokenizer) -> None:
    text = (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nLook.\n<tool_call>\n"
        '{"name": "ls", "arguments": {"p":  "."}}\n</tool_call>\n<tool_call>\n{"name": "pwd", "arguments": {}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\na\n\n</tool_response>\n<tool_response>\n/\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nDone<|im_end|>\n"
    )
    got = read(chatml, "qwen3", text)
    assert got.messages == [
        USER,
        {
            "role": "assistant",
            "content": "Look.",
            "tool_calls": [
                {"type": "function", "function": {"name": "ls", "arguments": '{"p":  "."}'}},
                {"type": "function", "function": {"name": "pwd", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "content": "a\n"},
        {"role": "tool", "content": "/"},
        {"role": "assistant", "content": "Done"},
    ]
    assert render(got.messages, None, "qwen3") == text


def test_chatml_role_line_is_told_from_the_first_line(chatml: Tokenizer) -> None:
    got = read(chatml, "chatml", "<|im_start|>user\n\n\nHi<|im_end|>\n")
    assert got.messages == [{"role": "user", "content": "\n\nHi"}]


@pytest.mark.parametrize(
    ("tail", "last"),
    [
        ("<|im_start|>assistant\nHel", {"role": "assistant", "content": "Hel"}),
        ("<|im_start|>ass", USER),
        ("<|im_start|>user\n", USER),
        ("<|im_start|>assistant\nHm\n<tool_call>\n{", {"role": "assistant", "content": "Hm"}),
        ("<|im_start|>user\n<tool_response>\nhal", {"role": "tool", "content": "hal"}),
        ("<|im_start|>assistant\n<think>\nHm", {"role": "assistant", "content": "", "reasoning": "Hm"}),
    ],
)
def test_chatml_rows_cut_anywhere(chatml: Tokenizer, tail: str, last: dict[str, str]) -> None:
    got = read(chatml, "qwen3", "<|im_start|>user\nHi<|im_end|>\n" + tail)
    assert got.messages[-1] == last
    assert got.truncated


def test_a_call_that_is_no_json_stays_in_the_text(chatml: Tokenizer) -> None:
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nx\n<tool_call>\nls .\n</tool_call><|im_end|>\n"
    got = read(chatml, "chatml", text)
    assert got.messages[1] == {"role": "assistant", "content": "x\n<tool_call>\nls .\n</tool_call>"}
    assert "malformed tool call" in got.marks


def test_quoted_chatml_markers(chatml: Tokenizer) -> None:
    text = "<|im_start|>user\nthe token <|im_start|> opens, <|im_end|> ends\nok?<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    got = read(chatml, "chatml", text)
    assert [m["content"] for m in got.messages] == ["the token <|im_start|> opens, <|im_end|> ends\nok?", "yes"]
    assert "quoted markers" in got.marks


def test_calls_spelled_by_ordinary_tokens_are_read_where_the_tokenizer_has_no_such_token(tmp_path: Path) -> None:
    specials = {k: v for k, v in tiny.CHATML.items() if "tool" not in k and "think" not in k}
    tokenizer = load_tokenizer(tiny.write_tiktoken(tmp_path, specials))
    text = '<|im_start|>assistant\n<think>\nhm\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>\n'
    got = read(tokenizer, "chatml", text)
    assert got.messages[0]["tool_calls"][0]["function"]["name"] == "f"
    assert got.messages[0]["reasoning"] == "hm"


def test_qwens_own_tool_list_is_taken_off_the_system_turn(chatml: Tokenizer) -> None:
    tools = [{"name": "a"}, {"name": "b"}]
    for messages in ([{"role": "system", "content": "Be kind."}, USER], [USER]):
        text = render(messages, tools, "qwen3")
        assert QWEN_TOOLS[0] in text
        got = read(chatml, "qwen3", text)
        assert (got.messages, got.tools) == (messages, tools)


# ---- other families

DS = "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜> <｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜> <think> </think>"
LLAMA = "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|> <|python_tag|>"
GLM = "[gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> <think> </think> <tool_call> </tool_call> <|endoftext|>"
HARMONY = "<|start|> <|end|> <|return|> <|call|> <|channel|> <|constrain|> <|message|>"
MISTRAL = "<s> </s> [INST] [/INST] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]"
K3 = "<|im_end|> <|im_user|> <|im_middle|> <|open|> <|close|> <|sep|> <|end_of_msg|>"


def called(name: str, arguments: str, content: str = "", **more: str) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": content, **more, "tool_calls": [call]}


SYSTEM = {"role": "system", "content": "Be kind."}
DONE = {"role": "assistant", "content": "Done"}


@pytest.mark.parametrize(
    ("template", "specials", "text", "messages"),
    [
        (
            "llama3",
            LLAMA,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nLook.<|eom_id|><|start_header_id|>ipython<|end_header_id|>\n\n12<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nDone<|eot_id|>",
            [SYSTEM, USER, {"role": "assistant", "content": "Look."}, {"role": "tool", "content": "12"}, DONE],
        ),
        (
            "deepseek",
            DS,
            "<｜begin▁of▁sentence｜>Be kind.<｜User｜>Hi<｜Assistant｜><think>hm</think>Look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ls<｜tool▁sep｜>{}"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜><｜tool▁output▁begin｜>a<｜tool▁output▁end｜>Done<｜end▁of▁sentence｜>",
            [SYSTEM, USER, called("ls", "{}", "Look.", reasoning="hm"), {"role": "tool", "content": "a"}, DONE],
        ),
        (
            "deepseek",
            DS,
            "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ls\n```json\n{}\n```"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜><｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>a<｜tool▁output▁end｜>\n"
            "<｜tool▁output▁begin｜>b<｜tool▁output▁end｜><｜tool▁outputs▁end｜>Done<｜end▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>Done<｜end▁of▁sentence｜>",
            [USER, called("ls", "{}"), {"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}, DONE, USER, DONE],
        ),
        (
            "glm",
            GLM,
            "[gMASK]<sop><|system|>\nBe kind.<|user|>\nHi<|assistant|>\n<think>hm</think>\nLook.\n<tool_call>ls\n<arg_key>p</arg_key>\n"
            "<arg_value>.</arg_value>\n<arg_key>n</arg_key>\n<arg_value>2</arg_value>\n</tool_call><|observation|>\n<tool_response>\na\n</tool_response>"
            "<|assistant|>\n<think></think>\nDone",
            [SYSTEM, USER, called("ls", '{"p": ".", "n": 2}', "Look.", reasoning="hm"), {"role": "tool", "content": "a"}, DONE],
        ),
        (
            "harmony",
            HARMONY,
            "<|start|>system<|message|>Be kind.<|end|><|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>analysis<|message|>hm<|end|>"
            "<|start|>assistant<|channel|>commentary to=functions.ls <|constrain|>json<|message|>{}<|call|>"
            "<|start|>functions.ls to=assistant<|channel|>commentary<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>Done<|return|>",
            [SYSTEM, USER, called("ls", "{}", reasoning="hm"), {"role": "tool", "content": "a", "name": "ls"}, DONE],
        ),
        (
            "gemma",
            "<bos> <eos> <start_of_turn> <end_of_turn>",
            "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nDone<end_of_turn>\n",
            [USER, DONE],
        ),
        (
            "mistral",
            MISTRAL,
            "<s>[SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT][INST] Hi[/INST][TOOL_CALLS][{\"name\": \"ls\", \"arguments\": {}}]</s>"
            "[TOOL_RESULTS]a[/TOOL_RESULTS] Done</s>",
            [SYSTEM, USER, called("ls", "{}"), {"role": "tool", "content": "a"}, DONE],
        ),
        (
            "minimax",
            "]~!b[ ]~b] [e~[ <think> </think>",
            "]~!b[]~b]system\nBe kind.[e~[\n]~b]user\nHi[e~[\n]~b]ai\n<think>\nhm\n</think>\n\nDone[e~[\n",
            [SYSTEM, USER, {**DONE, "reasoning": "hm"}],
        ),
        (
            "kimi-k3",
            K3,
            '<|open|>message role="user"<|sep|>Hi<|close|>message<|sep|><|end_of_msg|><|open|>message role="assistant"<|sep|><|open|>think<|sep|>hm'
            "<|close|>think<|sep|><|open|>response<|sep|>Done<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>",
            [USER, {**DONE, "reasoning": "hm"}],
        ),
    ],
)  # fmt: skip
def test_other_families(
    template: str, specials: str, text: str, messages: list[dict[str, Any]], tmp_path: Path
) -> None:
    ids = {name: 700 + i for i, name in enumerate(specials.split())}
    tokenizer = load_tokenizer(tiny.write_tiktoken(tmp_path, ids))
    stored = tokenizer.encode_rendered(text).astype(np.int64)
    got = recover(row(stored), tokenizer, template)
    assert got.messages == messages
    assert not got.truncated
    assert [m for m in got.marks if m != "truncated"] == []
    assert parse_text(text, None).messages == messages
    found = detect([(stored, None)] * 8, tokenizer)
    assert (found.template, found.tokenizer_ok) == (template, True)


MINIMAX = "]~!b[ ]~b] [e~[ <think> </think> <minimax:tool_call> </minimax:tool_call>"


@pytest.mark.parametrize(
    ("behind", "name", "arguments"),
    [
        ('{"name": "ls", "parameters": {"p": 1}}', "ls", '{"p": 1}'),
        ('brave_search.call(query="a (b)")', "brave_search", 'query="a (b)"'),
        ("print(1)\nprint(2)", "code_interpreter", "print(1)\nprint(2)"),
    ],
)
def test_what_llama_calls_behind_its_tag(behind: str, name: str, arguments: str, tmp_path: Path) -> None:
    ids = {n: 700 + i for i, n in enumerate(LLAMA.split())}
    tokenizer = load_tokenizer(tiny.write_tiktoken(tmp_path, ids))
    text = (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        f"<|start_header_id|>assistant<|end_header_id|>\n\n<|python_tag|>{behind}"
    )
    got = recover(row(tokenizer.encode_rendered(text + "<|eom_id|>").astype(np.int64)), tokenizer, "llama3")
    assert got.messages == [USER, called(name, arguments)]
    assert got.marks == ()
    cut = recover(row(tokenizer.encode_rendered(text).astype(np.int64)), tokenizer, "llama3")
    assert cut.truncated
    assert "unfinished tool call" in cut.marks
    assert cut.messages == [USER]


def invoke(name: str, **parameters: str) -> str:
    inner = "".join(f'<parameter name="{k}">{v}</parameter>\n' for k, v in parameters.items())
    return f'<invoke name="{name}">\n{inner}</invoke>\n'


@pytest.mark.parametrize("special", [True, False])
def test_minimax_calls_come_in_one_block_and_results_in_one_turn(special: bool, tmp_path: Path) -> None:
    """Its call tags are tokens of their own in some vocabularies and text in others."""
    names = MINIMAX.split() if special else MINIMAX.split()[:5]
    tokenizer = load_tokenizer(tiny.write_tiktoken(tmp_path, {n: 700 + i for i, n in enumerate(names)}))

    def read(answer: str) -> Conversation:
        text = (
            f"]~!b[]~b]user\nHi[e~[\n]~b]ai\n{answer}[e~[\n"
            "]~b]tool\n<response>a</response>\n<response>b\nc</response>[e~[\n]~b]ai\nDone[e~[\n"
        )
        return recover(row(tokenizer.encode_rendered(text).astype(np.int64)), tokenizer, "minimax")

    block = "Look.\n<minimax:tool_call>\n" + invoke("ls", p=".", n="2") + invoke("cat") + "</minimax:tool_call>"
    got = read(block)
    first = called("ls", '{"p": ".", "n": 2}', "Look.")
    first["tool_calls"] += called("cat", "{}")["tool_calls"]
    results = [{"role": "tool", "content": "a"}, {"role": "tool", "content": "b\nc"}]
    assert got.messages == [USER, first, *results, DONE]
    assert got.marks == ()
    for bad in ("<minimax:tool_call>no call</minimax:tool_call>", "<minimax:tool_call>" + invoke("ls")):
        got = read("Look." + bad)
        assert got.messages[1] == {"role": "assistant", "content": "Look." + bad}
        assert "malformed tool call" in got.marks


LS = {"type": "function", "function": {"name": "ls", "description": "List.\nAll.", "parameters": {"type": "object"}}}
CAT = {"type": "function", "function": {"name": "cat", "parameters": {"type": "object", "properties": {}}}}
MAY_CALL = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
XML_PROSE = (
    "\n</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
)
TYPESCRIPT = "namespace functions {\n\n// List.\ntype ls = (_: {\np: string,\n}) => any;\n\n} // namespace functions"
JSON_LINES = json.dumps(LS) + "\n" + json.dumps(CAT)


def llama_tools(before: str, space: str) -> str:
    lead = f'{before}{space}Respond in the format {{"name": function name, "parameters": dictionary of argument name and its value}}.'
    return f"{lead}{space[:1].strip(chr(10))}Do not use variables.\n\n" + "".join(
        json.dumps(t, indent=4) + "\n\n" for t in (LS, CAT)
    )


# template -> the specials, a rendered row with declared tools, and its messages and tools
DECLARATIONS: dict[str, Any] = {
    "glm": (
        GLM,
        f"[gMASK]<sop><|system|>\n{MAY_CALL}{JSON_LINES}{XML_PROSE}<tool_call>{{function-name}}\n<arg_key>{{arg-key-1}}</arg_key>\n...\n</tool_call>"
        "<|system|>\nBe kind.<|user|>\nHi<|assistant|>\n<think></think>\nDone",
        [SYSTEM, USER, DONE], [LS, CAT],
    ),
    "qwen3": (
        "<|im_start|> <|im_end|> <|endoftext|> <think> </think> <tool_call> </tool_call>",
        f"<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>\n{JSON_LINES}\n</tools>\n\n"
        "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n<tool_call>\n<function=example_function_name>\n"
        "</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- none\n</IMPORTANT>\n\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nhm\n</think>\n\n<tool_call>\n<function=ls>\n<parameter=p>\n.\n</parameter>\n<parameter=n>\n2\n</parameter>\n"
        "</function>\n</tool_call><|im_end|>\n",
        [SYSTEM, USER, called("ls", '{"p": ".", "n": 2}', reasoning="hm")], [LS, CAT],
    ),
    "minimax": (
        MINIMAX,
        "]~!b[]~b]system\nBe kind.\n\n# Tools\nYou may call one or more tools to assist with the user query.\nHere are the tools available in "
        f"JSONSchema format:\n\n<tools>\n<tool>{json.dumps(LS['function'])}</tool>\n<tool>{json.dumps(CAT['function'])}</tool>\n</tools>\n\n"
        "When making tool calls, use XML format to invoke tools and pass parameters:\n\n<minimax:tool_call>\n<invoke name=\"tool-name-1\">\n"
        "...\n</invoke>\n</minimax:tool_call>[e~[\n]~b]user\nHi[e~[\n]~b]ai\nDone[e~[\n",
        [SYSTEM, USER, DONE], [LS, CAT],
    ),
    "deepseek": (
        DS,
        "<｜begin▁of▁sentence｜>Be kind.\n\n## Tools\nYou have access to the following tools:\n\n### ls\nDescription: List.\nAll.\n\n"
        'Parameters: {"type": "object"}\n\n### cat\n\nParameters: {"type": "object", "properties": {}}\n\nIMPORTANT: ALWAYS adhere to this exact '
        "format for tool use:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>\n\nWhere:\n\n- For multiple tool calls, chain them directly without separators or spaces\n"
        "<｜User｜>Hi<｜Assistant｜></think>Done<｜end▁of▁sentence｜>",
        [SYSTEM, USER, DONE], [LS, CAT],
    ),
    "llama3": (
        LLAMA,
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n\n"
        + llama_tools("You have access to the following functions. To call a function, please respond with JSON for a function call.", " ")
        + "Be kind.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "ls", "parameters": {"p": "."}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"a"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\nDone<|eot_id|>",
        [{"role": "system", "content": "Environment: ipython\n\nBe kind."}, USER, called("ls", '{"p": "."}'),
         {"role": "tool", "content": '"a"'}, DONE], [LS, CAT],
    ),
    "harmony": (
        HARMONY,
        f"<|start|>system<|message|>Be kind.<|end|><|start|>developer<|message|># Instructions\n\nBe brief.\n\n# Tools\n\n## functions\n\n{TYPESCRIPT}"
        "<|end|><|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|>Done<|return|>",
        [SYSTEM, {"role": "system", "content": "Be brief."}, USER, DONE], [TYPESCRIPT],
    ),
    "mistral": (
        MISTRAL + " [CALL_ID] [ARGS] [TOOL_CONTENT] [THINK] [/THINK]",
        f"<s>[SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT][AVAILABLE_TOOLS]{json.dumps([LS, CAT])}[/AVAILABLE_TOOLS][INST]Hi[/INST][THINK]hm[/THINK]Look."
        '[TOOL_CALLS]ls[CALL_ID]abc[ARGS]{"p": "."}</s>[TOOL_RESULTS]abc[TOOL_CONTENT]a[/TOOL_RESULTS]Done</s>',
        [SYSTEM, USER, {**(c := called("ls", '{"p": "."}', "Look.", reasoning="hm")), "tool_calls": [{"id": "abc", **c["tool_calls"][0]}]},
         {"role": "tool", "content": "a", "tool_call_id": "abc"}, DONE], [LS, CAT],
    ),
}  # fmt: skip


@pytest.mark.parametrize("template", DECLARATIONS)
def test_declared_tools_are_taken_off_the_text(template: str, tmp_path: Path) -> None:
    """The words around them are those of the models' own templates (GLM-4.6, Qwen3.5, MiniMax-M2, V3.1, Llama 3.1, ...)."""
    specials, text, messages, tools = DECLARATIONS[template]
    tokenizer = load_tokenizer(tiny.write_tiktoken(tmp_path, {n: 700 + i for i, n in enumerate(specials.split())}))
    got = recover(row(tokenizer.encode_rendered(text).astype(np.int64)), tokenizer, template)
    assert got.messages == messages
    assert got.tools == tools
    assert got.marks == ()
    assert parse_text(text, template_named(template)).messages == messages


@pytest.mark.parametrize("template", [t for t in DECLARATIONS if t != "mistral"])
def test_a_declaration_that_is_not_whole_stays_in_the_text(template: str) -> None:
    text = DECLARATIONS[template][1]
    broken = text.replace('"name": "cat"', '"title": 3').replace("### cat", "##cat").replace("} // name", "} name")
    got = parse_text(broken, template_named(template))
    assert got.tools == ([LS] if template == "llama3" else None)  # Llama's list has no end: what comes before is sure
    declared = "".join(m["content"] for m in got.messages if m["role"] == "system")
    assert any(word in declared for word in ("ls =", "### ls", "<tools>", '"title": 3'))


@pytest.mark.parametrize("template", DECLARATIONS)
def test_hostile_declarations_and_calls_are_read_in_linear_time(template: str) -> None:
    """Heads without ends, parameters without ends: nothing is searched again for each."""
    t = template_named(template)
    turn = {"glm": "<|user|>\nx<|assistant|>\n<tool_call>f\n", "qwen3": "<|im_start|>assistant\n<tool_call>\n<function=f>\n",
            "minimax": "]~b]ai\n<minimax:tool_call>\n<invoke name=\"f\">\n"}.get(template, "")  # fmt: skip
    end = {
        "glm": "</tool_call>",
        "qwen3": "</function>\n</tool_call><|im_end|>",
        "minimax": "</invoke></minimax:tool_call>[e~[",
    }
    half = {"glm": "<arg_key>", "qwen3": "<parameter=a>\n", "minimax": '<parameter name="a">'}.get(template, "")
    start = time.process_time()
    for piece in (
        half,
        MAY_CALL,
        "\n\n# Tools\n\n## functions\n\n",
        "\n### a\nDescription: ",
        "\n</tools>\n\nFor each function call, ",
    ):
        if piece:
            parse_text(turn + piece * (100_000 // len(piece)) + end.get(template, ""), t)
    take(t.grammar, MAY_CALL * 2000)
    take(
        t.grammar,
        "## Tools\nYou have access to the following tools:\n"
        + "\n### a\nDescription: b" * 20_000
        + "\nIMPORTANT: ALWAYS adhere",
    )
    assert time.process_time() - start < 3


@pytest.mark.parametrize("template", TEMPLATES)
def test_rows_of_one_marker_are_read_in_linear_time(template: str) -> None:
    """A million of them may stand in a row; each is looked at once."""
    t = template_named(template)
    for marker in t.markers:
        start = time.process_time()
        parse_text(marker * 20_000, t)
        if t.inner and t.opener and t.header_end == "\n":
            parse_text(f"{t.opener}assistant\n{t.inner[0]}" + marker * 20_000, t)
        elif t.inner and "<|assistant|>" in t.roles:
            parse_text("<|assistant|>" + t.inner[0] + marker * 20_000, t)
        assert time.process_time() - start < 1.5, marker


# ---- render


def messages_of(names: bool) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Conversations as templates can hold them: no marker in the text, reasoning only where it is kept."""
    text = st.text(st.characters(codec="utf-8", exclude_characters="<\r"), max_size=12).map(lambda t: "x" + t + "y")
    call = st.builds(
        lambda n, k: {
            **({"id": f"functions.{n}:{k}"} if names else {}),
            "type": "function",
            "function": {"name": n, "arguments": '{"k": 1}'},
        },
        st.sampled_from(["ls", "get_time"]),
        st.integers(0, 9),
    )

    def tidy(parts: list[tuple[str, str, str, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = [USER]
        for kind, content, _, calls in parts:
            if kind == "assistant":
                out.append({"role": "assistant", "content": content})
                if calls:
                    out[-1]["tool_calls"] = calls
            elif kind == "tool":
                out.append({"role": "tool", "content": content})
                if names:
                    out[-1]["tool_call_id"] = "functions.ls:0"
            else:
                out.append({"role": kind, "content": content})
        if out[-1]["role"] == "assistant" and parts[-1][2]:
            calls = out[-1].pop("tool_calls", None)
            out[-1]["reasoning"] = parts[-1][2]
            out[-1].update({"tool_calls": calls} if calls else {})
        return out

    part = st.tuples(
        st.sampled_from(["user", "assistant", "tool"]), text, st.just("") | text, st.lists(call, max_size=2)
    )
    return st.lists(part, max_size=6).map(tidy)


@pytest.mark.parametrize("template", ["kimi-k2.5", "qwen3"])
def test_what_is_rendered_is_read_back(template: str, kimi: Tokenizer, chatml: Tokenizer) -> None:
    tokenizer = kimi if template.startswith("kimi") else chatml

    @given(messages_of(names=template.startswith("kimi")))
    @settings(max_examples=80, deadline=None)
    def check(messages: list[dict[str, Any]]) -> None:
        text = render(messages, None, template, default_system=False)
        ids = tokenizer.encode_rendered(text)
        got = parse_ids(ids.astype(np.int64), None, tokenizer, TEMPLATES[template])
        wanted = json.loads(unicodedata.normalize("NFC", json.dumps(messages, ensure_ascii=False)))
        assert got.messages == (wanted if tokenizer is chatml else messages)
        assert parse_text(text, TEMPLATES[template]).messages == messages
        assert render(got.messages, None, template, default_system=False).startswith(tokenizer.decode(ids)[:1])

    check()


def test_only_the_last_answer_keeps_its_reasoning() -> None:
    messages = [
        USER,
        {"role": "assistant", "content": "a", "reasoning": "r1"},
        USER,
        {"role": "assistant", "content": "b", "reasoning": "r2"},
    ]
    for template in ("kimi-k2.5", "qwen3"):
        text = render(messages, None, template)
        assert "r1" not in text
        assert "r2" in text


def test_reasoning_between_tool_calls_is_kept_while_the_task_goes_on() -> None:
    call = {"id": "functions.ls:0", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    messages = [
        USER,
        {"role": "assistant", "content": "", "reasoning": "first", "tool_calls": [call]},
        {"role": "tool", "content": "a", "tool_call_id": "functions.ls:0"},
    ]
    assert "<think>first</think>" in render(messages, None, "kimi-k2.5")
    assert "<think>\nfirst\n</think>" in render(messages, None, "qwen3")


@pytest.mark.parametrize(
    ("template", "kwargs", "text"),
    [
        (
            "kimi-k2",
            {},
            turn("system", "You are a helpful assistant")
            + turn("user", "Hi")
            + "<|im_assistant|>assistant<|im_middle|>",
        ),
        ("kimi-k2.5", {}, turn("user", "Hi") + "<|im_assistant|>assistant<|im_middle|><think>"),
        (
            "kimi-k2.5",
            {"thinking": False},
            turn("user", "Hi") + "<|im_assistant|>assistant<|im_middle|><think></think>",
        ),
        ("chatml", {}, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        (
            "qwen3",
            {"thinking": False},
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        ("qwen3", {"generation_prompt": False}, "<|im_start|>user\nHi<|im_end|>\n"),
    ],
)
def test_prompts_are_rendered_as_the_models_templates_do(template: str, kwargs: dict[str, bool], text: str) -> None:
    assert render([USER], None, template, **kwargs) == text


def test_unknown_templates_list_the_known() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'kimi-k2.*known: chatml, "):
        render([USER], None, "kimi-k2.")


# ---- padding


def ended(kimi: Tokenizer) -> np.ndarray:
    return kimi.encode_rendered(turn("user", "Hi") + turn("assistant", "Yo!")).astype(np.int64)


def test_zeros_behind_a_closed_turn_are_padding(kimi: Tokenizer) -> None:
    ids = ended(kimi)
    for n in (1, 3, 50):
        padded, mask = np.pad(ids, (0, n)), np.pad(np.ones(len(ids), bool), (0, n))
        got, got_mask = trim(padded, mask, None, kimi, "kimi-k2")
        assert got.tolist() == ids.tolist()
        assert got_mask is not None
        assert len(got_mask) == len(ids)


def test_a_real_exclamation_mark_at_the_end_is_kept(kimi: Tokenizer) -> None:
    ids = kimi.encode_rendered("<|im_assistant|>assistant<|im_middle|>Yo!").astype(np.int64)
    assert ids[-1] == 0
    assert len(trim(ids, None, None, kimi, "kimi-k2")[0]) == len(ids)
    supervised = np.ones(len(ids) + 5, bool)
    supervised[0] = False
    assert len(trim(np.pad(ids, (0, 5)), supervised, None, kimi, "kimi-k2")[0]) == len(ids) + 5


def test_pad_tokens_and_attention_masks_are_honoured(kimi: Tokenizer) -> None:
    ids = ended(kimi)
    padded = np.concatenate([[1255, 1255], ids, [1255]])
    assert trim(padded, None, None, kimi, None)[0].tolist() == ids.tolist()
    attention = np.zeros(len(ids) + 3, bool)
    attention[1 : len(ids) + 1] = True
    assert trim(np.pad(ids, (1, 2), constant_values=7), None, attention, kimi, None)[0].tolist() == ids.tolist()


def test_chatml_newline_before_the_zeros(chatml: Tokenizer) -> None:
    ids = chatml.encode_rendered("<|im_start|>user\nHi<|im_end|>\n").astype(np.int64)
    assert trim(np.pad(ids, (0, 2)), None, None, chatml, "chatml")[0].tolist() == ids.tolist()


def test_counts_are_those_of_the_ids_less_padding(kimi: Tokenizer) -> None:
    ids = ended(kimi)
    mask = np.zeros(len(ids) + 8, bool)
    mask[5:9] = True
    got = recover(row(np.pad(ids, (0, 8)), mask), kimi, "kimi-k2")
    assert (got.n_tokens, got.n_supervised) == (len(ids), 4)


@given(st.lists(st.sampled_from([0, 0, 0, 5, 1002, 1255]), max_size=30), st.booleans())
@settings(max_examples=80, deadline=None)
def test_trim_only_takes_off_ends(kimi: Tokenizer, numbers: list[int], masked: bool) -> None:
    ids = np.array(numbers, np.int64)
    got, _ = trim(ids, np.zeros(len(ids), bool) if masked else None, None, kimi, "kimi-k2")
    text = ",".join(map(str, numbers))
    assert ",".join(map(str, got.tolist())) in text
    assert trim(got, None, None, kimi, "kimi-k2")[0].tolist() == got.tolist()


# ---- whole rows


def test_stored_messages_come_first_then_text_then_ids(kimi: Tokenizer) -> None:
    ids = kimi.encode_rendered(turn("user", "from ids")).astype(np.int64)
    text = turn("user", "from text")
    assert recover(row(ids), kimi, "kimi-k2").messages[0]["content"] == "from ids"
    got = recover(row(ids, text=text), kimi, "kimi-k2")
    assert got.messages[0]["content"] == "from text"
    assert "ids differ from the text" in got.marks
    assert recover(row(ids, text=text, messages=[USER]), kimi, "kimi-k2").messages == [USER]
    assert got.n_tokens == len(ids)


def test_text_that_is_longer_than_the_ids_is_whole_and_the_row_is_cut(kimi: Tokenizer) -> None:
    text = turn("user", "Hi") + turn("assistant", "a long answer")
    ids = kimi.encode_rendered(text).astype(np.int64)
    assert recover(row(ids, text=text), kimi, "kimi-k2").marks == ()
    got = recover(row(ids[:-4], text=text), kimi, "kimi-k2")
    assert got.messages[1]["content"] == "a long answer"
    assert got.truncated
    assert got.n_tokens == len(ids) - 4


def test_stored_text_tells_its_own_template(kimi: Tokenizer) -> None:
    assert recover(row(None, text="<|im_start|>user\nHi<|im_end|>\n"), None, None).messages == [USER]
    assert recover(row(None, text=turn("user", "Hi")), None, None).messages == [USER]
    plain = recover(row(None, text="no marker"), None, None)
    assert plain.messages == [{"role": "user", "content": "no marker"}]
    assert plain.marks == ("no template: one text",)


def test_lone_surrogates_in_stored_text_become_replacement_characters() -> None:
    assert recover(row(None, text="a\ud800b"), None, None).messages[0]["content"] == "a\ufffdb"


def test_ids_without_a_tokenizer_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no tokenizer was found"):
        recover(row([1, 2, 3]), None, None)


def test_ids_outside_the_table_are_shown_and_counted(kimi: Tokenizer) -> None:
    ids = kimi.encode_rendered(turn("user", "Hi")).astype(np.int64)
    bad = np.insert(ids, 4, 99_999)
    got = recover(row(bad), kimi, "kimi-k2")
    assert "<|unknown_id_99999|>" in got.messages[0]["content"]
    assert "bad ids: 1" in got.marks


def test_without_a_template_the_loss_mask_tells_the_turns(kimi: Tokenizer) -> None:
    question, answer = kimi.encode("ask "), kimi.encode("answer")
    ids = np.concatenate([question, answer]).astype(np.int64)
    mask = np.arange(len(ids)) >= len(question)
    got = recover(row(ids, mask), kimi, None)
    assert [(m["role"], m["content"]) for m in got.messages] == [("user", "ask "), ("assistant", "answer")]
    assert got.marks == ("no template: turns from the loss mask",)
    for useless in (np.zeros(len(ids), bool), np.ones(len(ids), bool), None):
        got = recover(row(ids, useless), kimi, None)
        assert [m["content"] for m in got.messages] == ["ask answer"]
        assert got.marks == ("no template: one text",)


@pytest.mark.parametrize("template", [*TEMPLATES, None])
def test_any_ids_are_read_without_an_error_and_nothing_is_lost(
    template: str | None, kimi: Tokenizer, chatml: Tokenizer
) -> None:
    tokenizer = kimi if template and template.startswith("kimi") else chatml
    markers = list(tokenizer.specials.values())[:24]
    words = [int(i) for word in ("user", "assistant", "\n", "tool", "a", "{}") for i in tokenizer.encode(word)]

    @given(
        st.lists(st.sampled_from([*markers, *words]) | st.integers(-5, 2000), max_size=40), st.booleans(), st.binary()
    )
    @settings(max_examples=150, deadline=None)
    def check(numbers: list[int], masked: bool, bits: bytes) -> None:
        ids = np.array(numbers, np.int64)
        mask = np.array([b % 2 for b in (bits * 40 + b"\0" * 40)[: len(ids)]], bool) if masked else None
        got = parse_ids(ids, mask, tokenizer, TEMPLATES[template] if template else None)
        assert all(m["role"] in ("system", "user", "assistant", "tool") for m in got.messages)
        assert all(isinstance(m["content"], str) for m in got.messages)
        if any("no template" in m for m in got.marks) and mask is None:
            assert "".join(m["content"] for m in got.messages) == tokenizer.decode(ids)
        recover(row(ids, mask), tokenizer, template)

    check()


# ---- growing prefixes, tool use


def test_growing_prefixes() -> None:
    a, b = np.array([1, 2, 3]), np.array([1, 2, 3, 4])
    assert is_growing_prefix(a, b)
    assert not is_growing_prefix(b, a)
    assert not is_growing_prefix(a, a)
    assert not is_growing_prefix(np.array([1, 9, 3]), b)
    assert not is_growing_prefix(np.array([], int), b)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER, {"role": "assistant", "content": "<function=bash>\n<parameter=cmd>ls</parameter>\n</function>"}], True),
        ([USER, {"role": "assistant", "content": '<functioncall> {"name": "f"}'}], True),
        ([USER, {"role": "assistant", "content": "Look.\n```bash\nls\n```"}, {"role": "user", "content": "<returncode>0</returncode>"}], True),
        ([USER, {"role": "assistant", "content": "```\nls -F\n```"}, {"role": "user", "content": "a\n(Open file: n/a)\n(Current directory: /x)\nbash-$"}], True),
        ([USER, {"role": "assistant", "content": "Use this:\n```bash\nls\n```"}, {"role": "user", "content": "Thanks!"}], False),
        ([{"role": "user", "content": "what is <tool_call>?"}, {"role": "assistant", "content": "A tag."}], False),
    ],
)  # fmt: skip
def test_tool_use_in_plain_text(messages: list[dict[str, Any]], expected: bool) -> None:
    assert uses_tools(Conversation(messages)) is expected


# ---- which template, which tokenizer


def rows_of(tokenizer: Tokenizer, template: str, n: int = 30) -> list[tuple[np.ndarray, None]]:
    out = []
    for i in range(n):
        messages = [
            {"role": "system", "content": f"the assistant {i} is testing"},
            {"role": "user", "content": "in the beginning there was a user " * (i % 5 + 1)},
            {"role": "assistant", "content": f"the answer is {i}, an assistant said to the user", "reasoning": "hm"},
        ]
        text = render(messages, None, template)
        out.append((tokenizer.encode_rendered(text).astype(np.int64), None))
    return out


@pytest.mark.parametrize("template", ["kimi-k2", "kimi-k2.5", "chatml", "qwen3"])
def test_the_template_is_recognised(template: str, kimi: Tokenizer, chatml: Tokenizer) -> None:
    tokenizer = kimi if template.startswith("kimi") else chatml
    found = detect(rows_of(tokenizer, template), tokenizer)
    assert (found.template, found.tokenizer_ok, found.score) == (template, True, 1.0)
    assert any("30 of 30 rows hold its turn markers" in line for line in found.lines)


def changed(
    tokenizer: Tokenizer, *, permute: bool = False, specials: dict[str, int] | None = None, fill: int = 0
) -> Tokenizer:
    """The same tokenizer with its ordinary ids permuted, other specials, or ordinary tokens up to an id."""
    assert isinstance(tokenizer.encoder, RankEncoder)
    ranks = dict(tokenizer.encoder.ranks)
    if permute:
        ids = sorted(ranks.values())
        other = np.random.default_rng(0).permutation(ids).tolist()
        ranks = {t: other[ids.index(i)] for t, i in ranks.items()}
    for i in range(len(ranks), fill):
        ranks[b"zq%d" % i] = i
    table = {i: t for t, i in ranks.items()}
    return Tokenizer(
        table, tokenizer.specials if specials is None else specials, name="x", encoder=RankEncoder(ranks, "kimi")
    )


def named(tokenizer: Tokenizer) -> dict[str, int]:
    return {s: i for s, i in tokenizer.specials.items() if "reserved" not in s}


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("kimi rows, chatml tokenizer", "not in the table"),
        ("chatml rows, kimi tokenizer", "not in the table"),
        ("specials of the other family over a full table", "stands before a role word"),
        ("no special at all over a full table", "stands before a role word"),
        ("specials shifted by one", "only .* of them in their place"),
        ("specials renumbered as in some conversions", "only .* of them in their place"),
        ("permuted ranks", "not a role"),
        ("u32 read as u16", "every second id"),
        ("ids off by one", "."),
    ],
)
def test_a_wrong_tokenizer_is_refused_with_its_evidence(
    case: str, reason: str, kimi: Tokenizer, chatml: Tokenizer
) -> None:
    rows, other = rows_of(kimi, "kimi-k2.5"), kimi
    if case == "kimi rows, chatml tokenizer":
        other = chatml
    elif case == "chatml rows, kimi tokenizer":
        rows = rows_of(chatml, "qwen3")
    elif case == "specials of the other family over a full table":
        other = changed(kimi, specials=tiny.CHATML, fill=1300)
    elif case == "no special at all over a full table":
        other = changed(kimi, specials={}, fill=1300)
    elif case == "specials shifted by one":
        other = changed(kimi, specials={s: i + 1 for s, i in kimi.specials.items()}, fill=1001)
    elif case == "specials renumbered as in some conversions":
        order = [
            "<|im_end|>",
            "<|im_user|>",
            "<|im_assistant|>",
            "<|im_system|>",
            "<|im_middle|>",
            "<think>",
            "</think>",
        ]
        rest = {f"<|reserved_token_{i}|>": i for i in range(1007, 1256)}
        other = changed(kimi, specials={**{s: 1000 + i for i, s in enumerate(order)}, **rest})
    elif case == "permuted ranks":
        other = changed(kimi, permute=True)
    elif case == "u32 read as u16":
        rows = [(ids.astype("<u4").view("<u2").astype(np.int64), None) for ids, _ in rows]
    elif case == "ids off by one":
        rows = [(ids + 1, None) for ids, _ in rows]
    found = detect(rows, other)
    assert not found.tokenizer_ok
    assert found.template is None
    assert found.reason is not None
    assert re.search(reason, found.reason)
    assert found.reason in found.lines


def test_plain_text_is_never_refused(kimi: Tokenizer) -> None:
    rows = [(kimi.encode("the user is in the system, " * 20).astype(np.int64), None) for _ in range(10)]
    found = detect(rows, kimi)
    assert (found.template, found.tokenizer_ok) == (None, True)
    assert "no known template" in found.lines[-1]


def test_an_unknown_template_with_named_markers_is_said_and_not_refused(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny.write_tiktoken(tmp_path, {"<|turn|>": 700, "<|done|>": 701}))
    text = "<|turn|>user\nin the beginning<|done|><|turn|>assistant\nthe answer is an answer<|done|>"
    found = detect([(tokenizer.encode_rendered(text).astype(np.int64), None)] * 20, tokenizer)
    assert (found.template, found.tokenizer_ok) == (None, True)
    assert any("'<|turn|>' belongs to no known template" in line for line in found.lines)


def test_one_bad_row_does_not_refuse_a_tokenizer(kimi: Tokenizer) -> None:
    rows = rows_of(kimi, "kimi-k2.5")
    rows[3] = (np.insert(rows[3][0], 5, [99_999] * 3), None)
    assert detect(rows, kimi).tokenizer_ok


def test_no_rows_are_no_evidence(kimi: Tokenizer) -> None:
    found = detect([], kimi)
    assert (found.template, found.tokenizer_ok) == (None, True)


# ---- the real thing


@pytest.mark.skipif(not (SHARED / "tools" / "make_synth.py").exists(), reason="../shared/tools is not there")
@pytest.mark.parametrize("flavour", ["kimi", "chatml"])
def test_synthetic_training_directories_are_recovered_exactly(flavour: str, tmp_path: Path) -> None:
    for package in ("torch", "datasets", "zstandard"):
        pytest.importorskip(package)
    from promptkit.readers import find_shards
    from promptkit.readers import read as read_shard
    from promptkit.tokenizers import find_tokenizer

    tokenizers = tmp_path / "tokenizers"
    shutil.copytree(SHARED / "tokenizers", tokenizers)
    shutil.copy(
        tokenizers / "kimi_format" / "tiktoken.model", tokenizers / "qwen" / "tiktoken.model"
    )  # a flattened link
    make = [sys.executable, str(SHARED / "tools" / "make_synth.py"), "--rows", "300", "--flavour", flavour]
    where = ["--out", str(tmp_path / "mix"), "--golden", str(tmp_path / "golden"), "--tokenizers", str(tokenizers)]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([*make, *where], check=True, capture_output=True, env=env)

    tree = find_shards(tmp_path / "mix")
    tokenizer = find_tokenizer(tmp_path / "mix", tree.tokenizer_dirs, None)
    assert tokenizer is not None
    rows = [
        (shard.path, r) for shard in tree.shards for r in read_shard(tmp_path / "mix", shard) if isinstance(r, Record)
    ]
    found = detect([(r.ids, r.mask) for _, r in rows if r.ids is not None], tokenizer)
    assert found.template == {"kimi": "kimi-k2.5", "chatml": "qwen3"}[flavour]
    golden = {}
    for line in (tmp_path / "golden" / "golden.jsonl").read_text(encoding="utf-8").splitlines():
        answer = json.loads(line)
        golden[answer["shard"], answer["row"]] = answer
    with open(tmp_path / "found.jsonl", "w", encoding="utf-8") as f:
        for path, record in rows:
            got, answer = recover(record, tokenizer, found.template), golden[path, record.row]
            assert (got.n_tokens, got.n_supervised) == (answer["n_tokens"], answer["n_supervised"])
            assert got.truncated == answer.get("truncated", False)
            assert got.tools == answer.get("tools")
            f.write(json.dumps({"shard": path, "row": record.row, "messages": got.messages}) + "\n")
            if not got.truncated and record.ids is not None and not path.startswith("A1"):
                ids, _ = trim(record.ids, record.mask, None, tokenizer, found.template)
                again = tokenizer.encode_rendered(
                    render(got.messages, got.tools, found.template, default_system=False, generation_prompt=False)
                )
                assert again.tolist() == ids[: len(again)].tolist()  # but for a generation prompt at the end
    check = [
        sys.executable,
        str(SHARED / "tools" / "check_golden.py"),
        str(tmp_path / "golden"),
        str(tmp_path / "found.jsonl"),
    ]
    done = subprocess.run([*check, "--min-exact", "0.995", "--per-source"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
