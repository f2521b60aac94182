"""Stored fields -> messages: the schemas of the data sets that training mixes are made of."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptkit.conversation import ROLES
from promptkit.readers import Limits, find_shards, read
from promptkit.readers.records import BadRow
from promptkit.readers.schemas import to_record

HI = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {"type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}}


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({"messages": HI}, HI),
        ({"messages": json.dumps(HI)}, HI),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}, HI),
        ({"conversations": [{"from": "user", "value": "Hi"}, {"from": "assistant", "value": "Ho"}], "system": "Be brief."}, [SYSTEM, *HI]),
        ({"conversation": [{"role": "human", "content": "Hi"}, {"role": "chatgpt", "content": "Ho"}]}, HI),
        ({"instruction": "Hi", "input": "", "output": "Ho"}, HI),
        ({"instruction": "Hi", "input": "there", "output": "Ho"}, [{"role": "user", "content": "Hi\n\nthere"}, HI[1]]),
        ({"instruction": "Hi", "response": "Ho"}, HI),
        ({"instruction": "Hi", "output": "Ho", "system": "Be brief.", "history": [["a", "b"]]},
         [SYSTEM, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, *HI]),
        ({"lang": "python", "raw_index": 1, "seed": "x", "problem": "Hi", "solution": "Ho"}, HI),
        ({"id": "a", "input": "Hi", "output": "Ho", "domain": "generic", "unit_tests": "[]"}, HI),
        ({"question": "Hi", "answer": "Ho"}, HI),
        ({"prompt": "Hi", "completion": "Ho"}, HI),
        ({"prompt": HI[:1], "chosen": HI[1:]}, HI),
        ({"prompt": "Hi"}, HI[:1]),
        ({"problem": "Hi", "deepseek_reasoning": "Hm", "deepseek_solution": "Ho"}, [HI[0], HI[1] | {"reasoning": "Hm"}]),
        ({"trajectory": [{"role": "system", "text": None, "system_prompt": "Be brief."}, {"role": "user", "text": "Hi"}, {"role": "ai", "text": "Ho"}]},
         [SYSTEM, *HI]),
        ({"trajectory": [{"action": "ls"}, {"action": "cat", "query": [SYSTEM, HI[0]], "response": "Ho"}]}, [SYSTEM, *HI]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
         [{"role": "user", "content": "a\nb"}]),
        ({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [
            {"type": "reasoning", "value": "Hm"}, {"type": "text", "value": "Ho"}, {"type": "tool_call", "value": '{"name": "ls", "arguments": {"path": "."}}'}]}]},
         [HI[0], HI[1] | {"reasoning": "Hm", "tool_calls": [CALL]}]),
        ({"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Ho"},
                                                         {"type": "tool_use", "id": "c", "name": "ls", "input": {"path": "."}}]}]},
         [HI[1] | {"reasoning": "Hm", "tool_calls": [{"id": "c", **CALL}]}]),
        ({"source_path": "x", "history": HI}, HI),
        ({"task_id": 1, "traj": HI}, HI),
        ({"messages": [{"role": "developer", "content": "Be brief."}, *HI]}, [SYSTEM, *HI]),
        ({"messages": [HI[0], {"role": "assistant", "content": None, "reasoning_content": "Hm", "tool_calls": [{"id": "c", **CALL}]},
                       {"role": "tool", "content": "x", "tool_call_id": "c", "name": "ls"}]},
         [HI[0], {"role": "assistant", "content": "", "reasoning": "Hm", "tool_calls": [{"id": "c", **CALL}]},
          {"role": "tool", "content": "x", "tool_call_id": "c", "name": "ls"}]),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": json.dumps([CALL])}]},
         [{"role": "assistant", "content": "", "tool_calls": [CALL]}]),
        ({"messages": [{"role": "assistant", "content": "", "function_call": {"name": "ls", "arguments": {"path": "."}}}]},
         [{"role": "assistant", "content": "", "tool_calls": [CALL]}]),
        ({"conversations": [{"from": "function_call", "value": '{"name": "ls", "arguments": {"path": "."}}'}, {"from": "observation", "value": "x"}]},
         [{"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "x"}]),
        ({"conversations": [{"from": "function_call", "value": "ls ."}]}, [{"role": "assistant", "content": "ls ."}]),
        ({"messages": [{"role": "assistant_analysis", "content": "Hm"}, {"role": "assistant_final", "content": "Ho"}]},
         [{"role": "assistant", "content": "", "reasoning": "Hm"}, HI[1]]),
    ],
)  # fmt: skip
def test_schemas_become_messages(fields, messages):
    record = to_record(0, fields, Limits())
    assert record.messages == messages
    assert record.marks == ()


def test_glaive_v2_is_taken_apart():
    fields = {
        "system": 'SYSTEM: You may call functions. Use them if required -\n{\n "name": "add", "parameters": {"a": {}}\n}\n\n{"name": "sub"}\n',
        "chat": 'USER: 1 + 2?\n\n\nASSISTANT: <functioncall> {"name": "add", "arguments": \'{"a": 1, "b": 2}\'} <|endoftext|>\n\n\n'
        'FUNCTION RESPONSE: {"sum": 3}\n\n\nASSISTANT: It is 3.\nReally. <|endoftext|>\n\n\nUSER: Time?\n\n\n'
        'ASSISTANT: <functioncall> {"name": "now"} <|endoftext|>',
    }
    record = to_record(0, fields, Limits())
    assert record.tools == [{"name": "add", "parameters": {"a": {}}}, {"name": "sub"}]
    assert record.messages == [
        {"role": "system", "content": "You may call functions. Use them if required -"},
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}]},
        {"role": "tool", "content": '{"sum": 3}'},
        {"role": "assistant", "content": "It is 3.\nReally."},
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "now", "arguments": "{}"}}]},
    ]  # fmt: skip


def test_tools_come_as_a_list_a_string_or_strings():
    tool = {"type": "function", "function": {"name": "ls"}}
    for tools in ([tool], json.dumps([tool]), [json.dumps(tool)], json.dumps(tool)):
        assert to_record(0, {"messages": HI, "tools": tools}, Limits()).tools == [tool]
    assert to_record(0, {"messages": HI, "tools": "[]"}, Limits()).tools is None
    record = to_record(0, {"messages": HI, "tools": "ls, cat"}, Limits())
    assert (record.tools, record.marks) == (None, ("tools are not JSON: left out",))


def test_ids_text_and_messages_may_stand_beside_each_other():
    fields = {
        "data_id": "d",
        "formatted_prompt": "<|im_user|>",
        "input_ids": [[1, 2, 3]],
        "packed_loss_mask": "0,2,1",
        "messages": HI,
    }
    record = to_record(4, fields, Limits())
    assert (record.row, record.id, record.text, record.messages) == (4, "d", "<|im_user|>", HI)
    assert (record.ids.tolist(), record.mask.tolist()) == ([1, 2, 3], [True, True, False])


def test_what_is_bent_is_marked():
    record = to_record(
        0, {"messages": [{"role": "critic", "content": [{"type": "image"}, {"type": "text", "text": "x"}]}]}, Limits()
    )
    assert record.messages == [{"role": "user", "content": "x"}]
    assert record.marks == ("role critic read as user", "content parts that are not text left out")
    record = to_record(0, {"input_ids": [1, 2, 3, 4], "position_ids": [0, 1, 0, 1]}, Limits())
    assert (record.starts, record.marks) == ((0, 2), ("cut out of a packed row",))


def test_a_record_over_the_limit_fails():
    with pytest.raises(BadRow, match="larger than 100 bytes"):
        to_record(0, {"input_ids": [1] * 20}, Limits(record_bytes=100))
    with pytest.raises(BadRow, match="larger than 100 bytes"):
        to_record(0, {"messages": [{"role": "user", "content": "x" * 101}]}, Limits(record_bytes=100))


odd = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=5) | st.just('[{"role": "user"}]'),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "from", "content", "value", "text", "tool_calls", "function", "name", "query"]),
            inner,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(
    ["input_ids", "loss_mask", "labels", "packed_loss_mask", "attention_mask", "position_ids", "messages", "conversations",
     "trajectory", "tools", "text", "prompt", "chosen", "instruction", "input", "output", "history", "chat", "system", "status",
     "error", "id"]), odd, max_size=6))  # fmt: skip
def test_any_fields_give_a_record_of_the_promised_shape_or_a_reason(fields):
    try:
        record = to_record(0, fields, Limits())
    except BadRow:
        return
    assert record.ids is not None or record.messages or record.text
    for message in record.messages or ():
        assert message["role"] in ROLES
        assert isinstance(message["content"], str)
        for call in message.get("tool_calls", ()):
            assert isinstance(call["function"]["arguments"], str)
    if record.mask is not None:
        assert len(record.mask) == len(record.ids)


@pytest.mark.parametrize(
    "piece", ["\n", " ", "\n \n", "<functioncall> {", '<functioncall> {"name": "f", "arguments": \'', "USER: "]
)
def test_hostile_glaive_chats_are_read_in_linear_time(piece: str, tmp_path: Path) -> None:
    for marker in ("USER: a\n\nASSISTANT: ", "USER: "):
        chat = marker + piece * 40_000 + "x"
        (tmp_path / "a.jsonl").write_text(json.dumps({"system": "SYSTEM: s", "chat": chat}) + "\n")
        start = time.process_time()
        tree = find_shards(tmp_path)
        assert len([item for shard in tree.shards for item in read(tree.root, shard)]) == 1
        assert time.process_time() - start < 3
