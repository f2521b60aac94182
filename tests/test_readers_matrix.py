"""One set of conversations, written in every container with every chat template that it makes sense for.

Each template is one directory with one source per container; `detokenize` must give the same conversations for all of
them. The rows are those at which readers and templates have failed: one turn, many turns, tools, reasoning, Chinese and
emoji, an empty system turn, a quoted marker, a turn of 200,000 characters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shard_files
import tiny_tokenizers as tiny
import torch_files
from shard_files import WITHOUT_MASK, WRITERS

from promptkit.pipeline import detokenize
from promptkit.templates import render
from promptkit.tokenizers import Tokenizer, load_tokenizer

QUOTE = "\ue000"  # stands where a marker is quoted: encoded as ordinary text
LONG = "".join(f"line {k} of a long file\n" for k in range(9000))[:200_000]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "Be brief."}
PLAIN = [
    [user("Hi"), assistant("Ho")],
    [SYSTEM, user("one"), assistant("two"), user("three"), assistant("four")],
    [user("Grüße, 你好，世界！🙂👩‍👩‍👧"), assistant("日本語 ✓ ᐃᓄᒃ")],
    [user(f"What does {QUOTE} mean?"), assistant(f"{QUOTE} ends a turn.")],
    [user("Sum this up:\n" + LONG), assistant("Long.")],
]
EMPTY_SYSTEM = [{"role": "system", "content": ""}, user("Hi"), assistant("Ho")]
THINKING = [user("2 + 2?"), assistant("4", reasoning="Two and two.")]
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]
CALL = {"id": "functions.ls:0", "type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}}
AGENT = [
    user("What is here?"),
    assistant("I look.", tool_calls=[CALL]),
    {"role": "tool", "content": "a.py\nb.py", "tool_call_id": "functions.ls:0", "name": "ls"},
    assistant("Two files."),
]


def without_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """ChatML writes neither the id of a call nor the name of what answers."""
    out = [{k: v for k, v in m.items() if k not in ("tool_call_id", "name")} for m in messages]
    for m in out:
        if "tool_calls" in m:
            m["tool_calls"] = [{k: v for k, v in c.items() if k != "id"} for c in m["tool_calls"]]
    return out


# Harmony names who answers, and gives no ids.
NAMED_AGENT = [m | ({"name": "ls"} if m["role"] == "tool" else {}) for m in without_ids(AGENT)]
DECLARED = ("kimi-k2.5", "qwen3")  # whose tools are written out as the model's own template does


def call_of(message: dict[str, Any]) -> tuple[str, str]:
    (call,) = message["tool_calls"]
    return call["function"]["name"], call["function"]["arguments"]


def llama3(messages: list[dict[str, Any]]) -> str:
    out = "<|begin_of_text|>"
    for m in messages:
        out += (
            f"<|start_header_id|>{'ipython' if m['role'] == 'tool' else m['role']}<|end_header_id|>\n\n{m['content']}"
        )
        if "tool_calls" in m:
            name, arguments = call_of(m)
            out += f'<|python_tag|>{{"name": "{name}", "parameters": {arguments}}}<|eom_id|>'
        else:
            out += "<|eot_id|>"
    return out


def glm(messages: list[dict[str, Any]]) -> str:
    out = "[gMASK]<sop>"
    for m in messages:
        if m["role"] == "tool":
            out += f"<|observation|>\n<tool_response>\n{m['content']}\n</tool_response>"
            continue
        thought = f"<think>{m['reasoning']}</think>\n" if "reasoning" in m else ""
        out += f"<|{m['role']}|>\n{thought}{m['content']}"
        if "tool_calls" in m:
            name, arguments = call_of(m)
            pairs = "".join(
                f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in json.loads(arguments).items()
            )
            out += f"\n<tool_call>{name}\n{pairs}</tool_call>"
    return out


def deepseek(messages: list[dict[str, Any]]) -> str:
    out, roles = "<｜begin▁of▁sentence｜>", [m["role"] for m in messages]
    for before, m in zip(["", *roles], messages, strict=False):
        if m["role"] == "system":
            out += m["content"]
        elif m["role"] == "user":
            out += f"<｜User｜>{m['content']}"
        elif m["role"] == "tool":
            out += f"<｜tool▁output▁begin｜>{m['content']}<｜tool▁output▁end｜>"
        else:
            out += ("" if before == "tool" else "<｜Assistant｜>") + m["content"]
            if "tool_calls" in m:
                name, arguments = call_of(m)
                out += f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}"
                out += "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            out += "<｜end▁of▁sentence｜>"
    return out


def mistral(messages: list[dict[str, Any]]) -> str:
    forms = {"system": "[SYSTEM_PROMPT]{}[/SYSTEM_PROMPT]", "user": "[INST]{}[/INST]", "assistant": "{}</s>",
             "tool": "[TOOL_RESULTS]{}[/TOOL_RESULTS]"}  # fmt: skip
    out = "<s>"
    for m in messages:
        content = m["content"]
        if "tool_calls" in m:
            name, arguments = call_of(m)
            content += f'[TOOL_CALLS][{{"name": "{name}", "arguments": {arguments}}}]'
        out += forms[m["role"]].replace("{}", content)
    return out


def minimax(messages: list[dict[str, Any]]) -> str:
    out = "]~!b["
    for m in messages:
        content = f"<response>{m['content']}</response>" if m["role"] == "tool" else m["content"]
        if "reasoning" in m:
            content = f"<think>\n{m['reasoning']}\n</think>\n\n{content}"
        if "tool_calls" in m:
            name, arguments = call_of(m)
            pairs = "".join(f'<parameter name="{k}">{v}</parameter>\n' for k, v in json.loads(arguments).items())
            content += f'\n<minimax:tool_call>\n<invoke name="{name}">\n{pairs}</invoke>\n</minimax:tool_call>'
        out += f"]~b]{'ai' if m['role'] == 'assistant' else m['role']}\n{content}[e~[\n"
    return out


def gemma(messages: list[dict[str, Any]]) -> str:
    roles = {"user": "user", "assistant": "model"}
    return "<bos>" + "".join(f"<start_of_turn>{roles[m['role']]}\n{m['content']}<end_of_turn>\n" for m in messages)


def harmony(messages: list[dict[str, Any]]) -> str:
    out = ""
    for m in messages:
        if "reasoning" in m:
            out += f"<|start|>assistant<|channel|>analysis<|message|>{m['reasoning']}<|end|>"
        if m["role"] == "tool":
            out += f"<|start|>functions.{m['name']} to=assistant<|channel|>commentary<|message|>{m['content']}<|end|>"
        elif "tool_calls" in m:
            name, arguments = call_of(m)
            out += (
                f"<|start|>assistant<|channel|>commentary<|message|>{m['content']}<|end|><|start|>assistant<|channel|>"
            )
            out += f"commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
        else:
            channel = "<|channel|>final" if m["role"] == "assistant" else ""
            out += f"<|start|>{m['role']}{channel}<|message|>{m['content']}<|end|>"
    return out


# template -> (special names, how it is written, conversations, the marker that a row quotes, what ends a document in a stream)
FAMILIES: dict[str, Any] = {
    "kimi-k2.5": (tiny.KIMI, None, [*PLAIN, EMPTY_SYSTEM, THINKING, AGENT], "<|im_end|>", "[EOS]"),
    "qwen3": (tiny.CHATML, None, [*PLAIN, EMPTY_SYSTEM, THINKING, without_ids(AGENT)], "<|im_end|>", "<|endoftext|>"),
    "llama3": (
        "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|> <|python_tag|>",
        llama3, [*PLAIN, EMPTY_SYSTEM, without_ids(AGENT)], "<|eot_id|>", "<|end_of_text|>",
    ),
    "glm": (
        "[gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> <think> </think> <tool_call> </tool_call> <|endoftext|>",
        glm, [*PLAIN, THINKING, without_ids(AGENT)], "<|user|>", "<|endoftext|>",
    ),
    "deepseek": (
        "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> <think> </think> <｜tool▁calls▁begin｜> "
        "<｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>",
        deepseek, [*PLAIN, without_ids(AGENT)], "<｜User｜>", "",
    ),
    "mistral": (
        "<s> </s> [INST] [/INST] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] "
        "[TOOL_RESULTS] [/TOOL_RESULTS]",
        mistral, [*PLAIN, without_ids(AGENT)], "[INST]", "",
    ),
    "gemma": (
        "<bos> <eos> <start_of_turn> <end_of_turn>", gemma, [c for c in PLAIN if c[0]["role"] == "user"], "<end_of_turn>", "",
    ),
    "harmony": ("<|start|> <|end|> <|return|> <|call|> <|channel|> <|constrain|> <|message|>", harmony, [*PLAIN, THINKING, NAMED_AGENT], "<|end|>", None),
    "minimax": (
        "]~!b[ ]~b] [e~[ <think> </think> <minimax:tool_call> </minimax:tool_call>",
        minimax, [*PLAIN, EMPTY_SYSTEM, THINKING, without_ids(AGENT)], "[e~[", "",
    ),
}  # fmt: skip


def ids_of(text: str, quoted: str, tokenizer: Tokenizer) -> list[int]:
    """Encode a rendered text, the quoted marker as the text that a careful trainer makes of it."""
    out: list[int] = []
    for k, piece in enumerate(text.split(QUOTE)):
        out += tokenizer.encode(quoted).tolist() if k else []
        out += tokenizer.encode_rendered(piece).tolist()
    return out


def write_matrices(rows: shard_files.Rows, pad: int) -> dict[str, dict[str, bytes]]:
    """Stacked rows with an attention mask, padded to one length."""
    n = max(len(i) for i, _ in rows)
    ids = np.array([i + [pad] * (n - len(i)) for i, _ in rows], np.int64)
    mask = np.array([m + [0] * (n - len(m)) for _, m in rows], np.int64)
    attention = np.array([[1] * len(i) + [0] * (n - len(i)) for i, _ in rows], np.int64)
    arrays = {"input_ids": ids, "loss_mask": mask, "attention_mask": attention}
    header, data = {}, b""
    for name, array in arrays.items():
        header[name] = {"dtype": "I64", "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    head = json.dumps(header).encode()
    return {
        "safetensors": {"shard-000000.safetensors": len(head).to_bytes(8, "little") + head + data},
        "npz": {"a.npz": shard_files.npz_bytes(arrays, 0)},
        "npy": {f"{name}.npy": shard_files.npy_bytes(array) for name, array in arrays.items()},
    }


def write_text(conversations: list[Any], root: Path) -> list[str]:
    """The same conversations as messages, in the containers that can hold text."""
    rows = [{"messages": m, **({"tools": TOOLS} if any("tool_calls" in x for x in m) else {})} for m in conversations]
    strings = [{k: json.dumps(v, ensure_ascii=False) for k, v in r.items()} for r in rows]
    files = {
        "text-jsonl": ("a.jsonl", "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows).encode()),
        "text-json": ("a.json", json.dumps(rows, indent=1).encode()),
        "text-tar": ("a.tar", shard_files.tar_bytes({f"{k}.json": json.dumps(r).encode() for k, r in enumerate(rows)})),
        "text-mds": ("shard.00000.mds", shard_files.mds_bytes(
            {"messages": ("json", None), "tools": ("str", None)},
            [{"messages": json.dumps(r["messages"]).encode(), "tools": json.dumps(r.get("tools", [])).encode()} for r in rows])),
        "text-litdata": ("chunk-0-0.bin", shard_files.chunk(
            [shard_files.litdata_sample(s["messages"].encode(), s.get("tools", "[]").encode()) for s in strings])),
    }  # fmt: skip
    for name, (file, data) in files.items():
        (root / name).mkdir()
        (root / name / file).write_bytes(data)
    index = shard_files.litdata_index(["messages", "tools"], ["str", "str"], "chunk-0-0.bin")
    (root / "text-litdata/index.json").write_bytes(index)
    table = pa.table({"messages": [s["messages"] for s in strings], "tools": [s.get("tools") for s in strings]})
    (root / "text-parquet").mkdir()
    pq.write_table(table, root / "text-parquet/a.parquet")
    (root / "text-arrow").mkdir()
    with pa.ipc.new_stream(str(root / "text-arrow/a.arrow"), table.schema) as writer:
        writer.write_table(table)
    (root / "text-torch").mkdir()
    torch_files.save(strings, root / "text-torch/a.pt")
    return [*files, "text-parquet", "text-arrow", "text-torch"]


@pytest.mark.parametrize("template", FAMILIES)
def test_the_same_conversations_come_out_of_every_container(template: str, tmp_path: Path) -> None:
    specials, writer, conversations, quoted, ending = FAMILIES[template]
    if isinstance(specials, str):
        specials = {name: 700 + i for i, name in enumerate(specials.split())}
    root = tmp_path / "mix"
    tiny.write_tiktoken(root / "tokenizer", specials)
    tokenizer = load_tokenizer(root / "tokenizer")
    rows = []
    for messages in conversations:
        tools = TOOLS if any("tool_calls" in m for m in messages) else None
        text = (
            writer(messages)
            if writer
            else render(messages, tools, template, generation_prompt=False, default_system=False)
        )
        ids = ids_of(text, quoted, tokenizer)
        rows.append((ids, [0] * (len(ids) - 1) + [1]))
    files = {name: write(rows) for name, write in WRITERS.items() if name not in ("safetensors", "npy", "npz", "llmc")}
    files |= write_matrices(rows, pad=max(specials.values()))
    if ending is not None:  # a stream without an index needs an id between documents
        end = [specials[ending]] if ending else []
        parted = [(ids + end, mask) for ids, mask in rows]
        files |= {"llmc": shard_files.llmc(parted), "stream": shard_files.stream(parted)}
    for name, parts in files.items():
        (root / name).mkdir()
        for file, data in parts.items():
            (root / name / file).write_bytes(data)
    texts = write_text(
        [[{**m, "content": m["content"].replace(QUOTE, quoted)} for m in c] for c in conversations], root
    )

    done = detokenize(root, tmp_path / "out.jsonl", processes=1)

    assert done.template["name"] == template, done.template["evidence"]
    assert [(a.path, a.reason) for a in done.account if a.status == "failed" or a.rows_failed] == []
    found: dict[str, list[Any]] = {}
    for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found.setdefault(row["source"], []).append(row)
    assert sorted(found) == sorted([*files, *texts])
    expected = [[{**m, "content": m["content"].replace(QUOTE, quoted)} for m in c] for c in conversations]
    for source, got in found.items():
        assert [r["row"] for r in got] == list(range(len(rows))), source
        for k, row in enumerate(got):
            assert row["messages"] == expected[k], (source, k)
            told = source in texts or template in DECLARED
            tools = TOOLS if told and any("tool_calls" in m for m in expected[k]) else None
            assert row.get("tools") == tools, (source, k)
            assert "truncated" not in row, (source, k)
            if source in files:
                more = source in ("llmc", "stream") and bool(ending)
                assert row["n_tokens"] == len(rows[k][0]) + more, (source, k)
                unmasked = source in (*WITHOUT_MASK, "stream")
                assert row["n_supervised"] == (None if unmasked else 1), (source, k)
