"""The sampled rows as a frame: one row per conversation, one fixed schema, whatever container they came from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit import readers, workers
from promptkit.collect import Opened, Progress, Row, Rows, recover
from promptkit.conversation import canonical, id_of, opening, response_text, uses_tools

if TYPE_CHECKING:
    import polars as pl

    from promptkit.encoders import Ids
    from promptkit.tokenizers import Tokenizer


def frame_of(
    opened: Opened, rows: Sequence[Row], *, processes: int | None = None, progress: Progress | None = None
) -> pl.DataFrame:
    """Decode sampled rows into the frame that a reference is fitted on, sorted by shard and row.

    Columns: shard, row, id, source, messages and tools (canonical JSON), text (the opening), response_text,
    n_prompt_tokens (of the opening), n_response_tokens, n_supervised_tokens, n_turns, has_tools, truncated, language.
    """
    import polars as pl

    ordered = sorted(rows, key=lambda r: (r.shard, r.record.row))
    tokenizer = opened.tokenizer
    assert tokenizer is not None  # open_directory always finds or builds one
    columns: dict[str, list[Any]] = {name: [] for name in FRAME}
    n = 1 if len(ordered) < POOL_ROWS else processes or os.cpu_count() or 1
    shards = {r.shard: opened.shards[r.shard] for r in ordered}
    parts = (Rows(ordered[k : k + BATCH]) for k in range(0, len(ordered), BATCH))
    batches = ((part, {r.shard: shards[r.shard] for r in part}) for part in parts)
    for found, ids, answer_ids in workers.in_order(_decode, batches, n, (opened.template, tokenizer)):
        for name, values in found.items():
            columns[name] += values
        for texts, encoded, lengths in (
            (found["text"], ids, found["n_prompt_tokens"]),
            ([t or "" for t in found["response_text"]], answer_ids, found["n_response_tokens"]),
        ):
            tokenizer.remember(texts, np.split(encoded, np.cumsum(lengths)[:-1]))
        if progress:
            progress("decode", len(columns["row"]), len(ordered))
    return pl.DataFrame(columns, schema=FRAME_SCHEMA())


def _decode(
    rows: list[Row], shards: dict[int, readers.Shard], template: str | None, tokenizer: Tokenizer
) -> tuple[dict[str, list[Any]], Ids, Ids]:
    """Return the columns of some rows, and the ids of their openings and of their answers, all in one."""
    from promptkit import languages

    columns: dict[str, list[Any]] = {name: [] for name in FRAME}
    for row in rows:
        shard, record = shards[row.shard], row.record
        conversation = recover(record, tokenizer, template)
        messages = conversation.messages
        answer = response_text(messages)
        columns["shard"].append(shard.path)
        columns["row"].append(record.row)
        stored, tools = canonical(messages), canonical(conversation.tools)
        columns["id"].append(id_of(stored, tools))
        columns["source"].append(shard.source)
        columns["messages"].append(stored.decode())
        columns["tools"].append(None if conversation.tools is None else tools.decode())
        columns["text"].append(opening(messages))
        columns["response_text"].append(answer or None)
        columns["n_supervised_tokens"].append(conversation.n_supervised)
        columns["n_turns"].append(sum(m["role"] == "user" for m in messages))
        columns["has_tools"].append(uses_tools(conversation))
        columns["truncated"].append(conversation.truncated)
    ids, answers = (tokenizer.encode_batch([t or "" for t in columns[x]]) for x in ("text", "response_text"))
    columns["n_prompt_tokens"], columns["n_response_tokens"] = [len(i) for i in ids], [len(i) for i in answers]
    # A row without a stored mask is weighed by what its answers encode to.
    columns["n_supervised_tokens"] = [
        n if n is not None else m
        for n, m in zip(columns["n_supervised_tokens"], columns["n_response_tokens"], strict=True)
    ]
    columns["language"] = languages.detect(columns["text"])
    return columns, np.concatenate(ids), np.concatenate(answers)


BATCH, POOL_ROWS = 256, 2000  # rows that a worker takes at once; with fewer in all, starting workers takes longer
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
