"""A training directory as a candidate: does the mix that we train on today still look like the one of the reference?

    directory -> read once, as a build reads it -> bottom-k sample by hash -> prompts with their answers -> `score`

A row becomes the prompt that it is: whole conversation, tools and the answers of the assistant, so that lengths, turns,
tools and responses are compared beside the openings. The sample depends on the seed and on the places of the rows
alone, so a larger one holds the smaller.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptkit import readers
from promptkit.collect import Progress, collect, full_account, is_lossy, open_directory
from promptkit.conversation import Prompt
from promptkit.errors import InputError, UsageError

SAMPLE = 1000


@dataclass(frozen=True)
class Drawn:
    """Rows of a directory as prompts; `rows` is how many it holds, `lossy` says that more failed than is allowed."""

    prompts: list[Prompt]
    rows: int
    account: list[readers.FileAccount]
    lossy: bool


def is_training_directory(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a directory, and neither a pack nor the versions of one."""
    where = Path(path)
    return where.is_dir() and not (where / "pack.json").is_file() and not any(where.glob("*/pack.json"))


def draw(
    root: str | os.PathLike[str],
    *,
    size: int = SAMPLE,
    seed: int = 0,
    tokenizer: str | None = None,
    template: str | None = None,
    processes: int | None = None,
    limits: readers.Limits | None = None,
    dtype: str | None = None,
    fields: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Drawn:
    """Return `size` rows of a training directory as prompts, drawn by hash; all rows where it holds fewer.

    Options are those of `inspect`. Rows without text are left out. Raises InputError where nothing can be read.
    """
    from promptkit.frames import frame_of

    if size < 1:
        raise UsageError(f"sample is {size}", hint=f"give a number of rows above 0; {SAMPLE} is the default")
    limits = readers.with_hints(limits, dtype=dtype, fields=fields)
    opened = open_directory(root, tokenizer=tokenizer, template=template, limits=limits)
    summary = collect(
        opened, sample_size=size, seed=seed, processes=processes, limits=limits, merge_prefixes=True, progress=progress
    )
    account = full_account(opened, summary)
    frame = frame_of(opened, summary.sample, progress=progress)
    prompts = [
        Prompt(
            id=row["id"],
            messages=json.loads(row["messages"]),
            tools=json.loads(row["tools"]) if row["tools"] else None,
            response=row["response_text"],
            source=row["source"],
            extra={"shard": row["shard"], "row": row["row"]},
        )
        for row in frame.iter_rows(named=True)
        if row["text"].strip()
    ]
    if not prompts:
        raise InputError(f"{root}: no sampled row holds text", hint="look at a row with `promptkit inspect`")
    rows: Any = sum(a.rows for a in account)
    return Drawn(prompts, int(rows), account, is_lossy(account, 0, 0.001))
