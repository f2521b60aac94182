"""The sampled rows as a frame: one row per conversation, one fixed schema, whatever container they came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from promptkit.collect import Opened, Progress, Row, recover
from promptkit.conversation import canonical, opening, response_text

if TYPE_CHECKING:
    import polars as pl


def frame_of(
    opened: Opened, rows: Sequence[Row], *, processes: int | None = None, progress: Progress | None = None
) -> pl.DataFrame:
    """Decode sampled rows into the frame that a reference is fitted on, sorted by shard and row.

    Columns: shard, row, id, source, messages and tools (canonical JSON), text (the opening), response_text,
    n_prompt_tokens (of the opening), n_response_tokens, n_supervised_tokens, n_turns, has_tools, truncated, language.
    """
    import polars as pl

    from promptkit import languages, templates
    from promptkit.conversation import prompt_id

    ordered = sorted(rows, key=lambda r: (r.shard, r.record.row))
    tokenizer = opened.tokenizer
    assert tokenizer is not None  # open_directory always finds or builds one
    columns: dict[str, list[Any]] = {name: [] for name in FRAME}
    for number, row in enumerate(ordered):
        conversation = recover(row.record, tokenizer, opened.template)
        messages = conversation.messages
        answer = response_text(messages)
        columns["shard"].append(opened.shards[row.shard].path)
        columns["row"].append(row.record.row)
        columns["id"].append(prompt_id(messages, conversation.tools))
        columns["source"].append(opened.shards[row.shard].source)
        columns["messages"].append(canonical(messages).decode())
        columns["tools"].append(None if conversation.tools is None else canonical(conversation.tools).decode())
        columns["text"].append(opening(messages))
        columns["response_text"].append(answer or None)
        columns["n_supervised_tokens"].append(conversation.n_supervised)
        columns["n_turns"].append(sum(m["role"] == "user" for m in messages))
        columns["has_tools"].append(templates.uses_tools(conversation))
        columns["truncated"].append(conversation.truncated)
        if progress and number % 512 == 0:
            progress("decode", number, len(ordered))
    columns["n_prompt_tokens"] = [len(i) for i in tokenizer.encode_batch(columns["text"])]
    columns["n_response_tokens"] = [len(i) for i in tokenizer.encode_batch([t or "" for t in columns["response_text"]])]
    # A row without a stored mask is weighed by what its answers encode to.
    columns["n_supervised_tokens"] = [
        n if n is not None else m
        for n, m in zip(columns["n_supervised_tokens"], columns["n_response_tokens"], strict=True)
    ]
    columns["language"] = languages.detect(columns["text"])
    if progress:
        progress("decode", len(ordered), len(ordered))
    return pl.DataFrame(columns, schema=FRAME_SCHEMA())


FRAME = (
    "shard", "row", "id", "source", "messages", "tools", "text", "response_text", "n_prompt_tokens",
    "n_response_tokens", "n_supervised_tokens", "n_turns", "has_tools", "truncated", "language",
)  # fmt: skip


def FRAME_SCHEMA() -> dict[str, Any]:
    """Return the one schema of a frame; a function, because polars is imported only when it is needed."""
    import polars as pl

    kinds = {"row": pl.Int64, "n_turns": pl.Int64, "has_tools": pl.Boolean, "truncated": pl.Boolean}
    kinds |= {name: pl.Int64 for name in FRAME if name.startswith("n_")}
    return {name: kinds.get(name, pl.String) for name in FRAME}
