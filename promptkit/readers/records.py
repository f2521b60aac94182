"""What a reader gives back: shards, records and faults, and the account of what was not read.

    find_shards(root) -> Tree(shards, account)        read(root, shard) -> Record | Fault, in row order

A `Record` is one row as stored, not yet decoded. A `Fault` takes its place where a row (or, with `row=None`, the rest
of the file) cannot be used. Nothing else ever comes out of a reader: bad content is a value, not an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from promptkit.conversation import Message


@dataclass(frozen=True, slots=True)
class Hints:
    """What the bytes of a file do not say by themselves: told by the user, or by the tokenizer once it is known."""

    dtype: str | None = None  # of ids in files without a header: a numpy name such as "uint16" (--dtype)
    fields: tuple[tuple[str, str], ...] = ()  # (field, column): where detection is wrong (--map field=column)
    n_vocab: int | None = None  # one more than the highest id of the tokenizer
    begins: tuple[int, ...] = ()  # ids that begin a document in a stream of ids (beginning of text)
    ends: tuple[int, ...] = ()  # ids that end one (end of text)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one file may ask for; each is a flag of the command. `hints` travel with them to every reader."""

    record_bytes: int = 64 << 20  # one row: decoded ids, mask and text
    inflate_ratio: int = 200  # bytes out per compressed byte in
    inflate_bytes: int = 64 << 30  # bytes out per file
    nesting: int = 256  # depth of a JSON value
    shard_timeout: int = 600  # seconds without a row or a piece of a file
    hints: Hints = Hints()


@dataclass(frozen=True, slots=True)
class Shard:
    """One file that may hold training rows: a unit of work, cheap to pickle."""

    path: str  # posix, relative to the root
    format: str  # a key of READERS
    source: str
    n_bytes: int
    n_rows: int | None = None  # where the container says it without being read


@dataclass(slots=True, eq=False)  # not frozen, which would cost two microseconds a row
class Record:
    """One row as stored. `ids` is int64; `mask` (True = supervised) and `attention` are bool of the same length."""

    row: int
    ids: NDArray[np.int64] | None = None
    mask: NDArray[np.bool_] | None = None
    attention: NDArray[np.bool_] | None = None
    messages: list[Message] | None = None  # roles system, user, assistant, tool; content is a string
    tools: list[Any] | None = None
    text: str | None = None  # stored rendered text, may hold chat markers
    id: str | None = None
    response: str | None = None
    marks: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()  # where conversations begin in a packed row; the door cuts it there


@dataclass(frozen=True, slots=True)
class Fault:
    """A row that is not used, or (row None) the rest of the file, and why. Reasons repeat, to be counted."""

    row: int | None
    status: Literal["failed", "skipped"]
    reason: str


@dataclass(slots=True)
class FileAccount:
    """What became of one file: `rows` were read, the others are counted with their reasons."""

    path: str
    status: Literal["read", "skipped", "failed"] = "read"
    reason: str = ""
    rows: int = 0
    rows_skipped: int = 0
    rows_failed: int = 0
    row_reasons: dict[str, int] = field(default_factory=dict)

    def count(self, item: Record | Fault) -> None:
        """Enter what a reader gave: rows before a fault of the whole file stay counted as read."""
        if isinstance(item, Record):
            self.rows += 1
        elif item.row is None:
            self.status, self.reason = item.status, item.reason
        else:
            if item.status == "failed":
                self.rows_failed += 1
            else:
                self.rows_skipped += 1
            self.row_reasons[item.reason] = self.row_reasons.get(item.reason, 0) + 1


@dataclass(frozen=True, slots=True)
class Tree:
    """What lies under a root: shards in natural order, and an account of everything that is no shard."""

    root: str
    shards: list[Shard]
    account: list[FileAccount]
    tokenizer_dirs: list[str]  # relative to the root, nearest first
    evidence: dict[str, Any]  # e.g. target_vocab_size, target_model, tokenizer, id_widths (path -> sentence)


Reader = Callable[[Path, Limits], Iterator["Record | Fault"]]


class BadRow(Exception):
    """This row cannot be used; the argument is the reason."""

    status: Literal["failed", "skipped"] = "failed"


class EmptyRow(BadRow):
    """This row holds nothing."""

    status = "skipped"


class BadFile(Exception):
    """The rest of this file cannot be used; the argument is the reason."""

    status: Literal["failed", "skipped"] = "failed"


class NoSamples(BadFile):
    """This file is sound, and holds something else than samples."""

    status = "skipped"
