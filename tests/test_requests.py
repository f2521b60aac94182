"""What a pack sends of a training conversation."""

from __future__ import annotations

import pytest

from promptkit.errors import UsageError
from promptkit.requests import request


def turn(role: str, content: str, **more: object) -> dict[str, object]:
    return {"role": role, "content": content, **more}


TALK = [
    turn("system", "You are a helpful assistant."),
    turn("user", "Sort these numbers."),
    turn("assistant", "Which ones?", reasoning="None were given."),
    turn("user", "3 1 2"),
    turn("assistant", "1 2 3"),
]


def test_a_short_talk_is_sent_as_its_first_turn_without_the_default_system_turn() -> None:
    sent = request(TALK, tools=False, truncated=False, key="a")
    assert sent is not None
    assert sent.messages == [turn("user", "Sort these numbers.")]
    assert sent.answer == "None were given.\nWhich ones?"


def test_all_turns_are_the_user_turns_as_mt_bench_replays_them() -> None:
    sent = request(TALK, tools=False, truncated=False, key="a", turns="all")
    assert sent is not None
    assert [m["content"] for m in sent.messages] == ["Sort these numbers.", "3 1 2"]


def test_a_row_with_tools_is_sent_as_the_history_before_one_assistant_turn() -> None:
    stops = set()
    for key in "abcdefgh":
        sent = request(TALK, tools=True, truncated=False, key=key)
        assert sent is not None
        assert all("reasoning" not in m for m in sent.messages)
        stops.add((len(sent.messages), sent.answer))
    assert stops == {(1, "None were given.\nWhich ones?"), (3, "1 2 3")}


def test_the_same_key_always_gives_the_same_request() -> None:
    assert request(TALK, tools=True, truncated=False, key="k") == request(TALK, tools=True, truncated=False, key="k")


def test_a_cut_last_message_is_never_sent_nor_expected() -> None:
    cut = [turn("user", "Do it."), turn("assistant", "Done."), turn("user", "And no")]
    sent = request(cut, tools=True, truncated=True, key="a")
    assert sent is not None
    assert (sent.messages, sent.answer) == ([turn("user", "Do it.")], "Done.")


def test_a_row_cut_inside_its_first_user_turn_is_no_request() -> None:
    assert request([turn("user", "Write a pro")], tools=False, truncated=True, key="a") is None


def test_a_row_without_a_user_turn_is_no_request() -> None:
    assert (
        request([turn("system", "Be brief."), turn("assistant", "Yes.")], tools=False, truncated=False, key="a") is None
    )


def test_an_unknown_reading_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="first, all, prefix"):
        request(TALK, tools=False, truncated=False, key="a", turns="last")
