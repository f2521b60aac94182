"""A stream of ids without a document index -> documents.

    5 7 9 EOT 6 6 EOT 4      ->  [5 7 9 EOT] [6 6 EOT] [4]
    BOS 5 7 9 BOS 6 6        ->  [BOS 5 7 9] [BOS 6 6]

The ids that part documents come from the tokenizer (`Hints.begins`, `Hints.ends`) or from the format itself. No id is
dropped: a separator stays with the document that it ends or begins, and a run of them stays together. Without any
separator a short stream is one document, and a long one is cut into pieces of equal length, which is said in a mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from promptkit.readers.limits import CHUNK
from promptkit.readers.records import BadFile, Fault, Limits, Record
from promptkit.readers.streams import Stream

LOOK = 1 << 20  # ids in which a separator must show
WHOLE = 1 << 17  # a stream of so many ids may be one document
PIECE = 4096
UNCUT = f"no end of text among the ids: cut every {PIECE} ids"


def pieces(stream: Stream, dtype: str) -> Iterator[NDArray[np.int64]]:
    """Yield the rest of a stream as int64 arrays. Raises BadFile where it ends inside an id."""
    kind = np.dtype(dtype)
    while data := stream.some(CHUNK):
        if len(data) % kind.itemsize:
            raise BadFile(f"the file ends inside an id of {kind.itemsize} bytes: another --dtype, or a cut copy?")
        yield as_ids(np.frombuffer(data, kind))


def as_ids(values: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return integers as int64. Raises BadFile beyond 63 bits."""
    if values.dtype.itemsize == 8 and values.dtype.kind == "u" and len(values) and int(values.max()) > 2**63 - 1:
        raise BadFile("an id beyond 64 bits: another --dtype?")
    return values.astype(np.int64)


def documents(
    arrays: Iterable[NDArray[np.int64]], limits: Limits, *, begins: Iterable[int] = (), ends: Iterable[int] = ()
) -> Iterator[Record | Fault]:
    """Yield the documents of a stream as rows; `begins` and `ends` are added to what the tokenizer told."""
    arrays = iter(arrays)
    head: list[NDArray[np.int64]] = []
    while sum(map(len, head)) < LOOK and (piece := next(arrays, None)) is not None:
        head.append(piece)
    seen = np.concatenate(head) if head else np.zeros(0, np.int64)
    if not len(seen):
        return
    cuts, before = _separators(seen, {*begins, *limits.hints.begins}, {*ends, *limits.hints.ends})
    rest = _chain(seen, arrays)
    if cuts is not None:
        found = _parted(rest, cuts, before, limits)
    elif len(seen) <= WHOLE:
        found = iter([seen])
    else:
        found = _equal(rest)
    marks = (UNCUT,) if cuts is None and len(seen) > WHOLE else ()
    for row, ids in enumerate(found):
        if ids is None:
            yield Fault(row, "failed", f"record larger than {limits.record_bytes} bytes (--record-bytes)")
        else:
            yield Record(row, ids, marks=marks)


def _separators(seen: NDArray[np.int64], begins: set[int], ends: set[int]) -> tuple[NDArray[np.int64] | None, bool]:
    """Return the ids to cut at, and whether the cut lies before them."""
    present = set(np.unique(seen).tolist())
    begins, ends = begins & present, ends & present
    first = int(seen[0])
    if first in begins | ends:  # llm.c writes its end of text before each document
        return np.array([first]), True
    if begins:  # in some families the end of text also ends turns, so a beginning is the better sign
        return np.array(sorted(begins)), True
    return (np.array(sorted(ends)), False) if ends else (None, False)


def _chain(first: NDArray[np.int64], rest: Iterator[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
    yield first
    yield from rest


def _parted(
    arrays: Iterator[NDArray[np.int64]], cuts: NDArray[np.int64], before: bool, limits: Limits
) -> Iterator[NDArray[np.int64] | None]:
    """Yield the documents; None in the place of one above the limit, of which no more than the limit was held."""
    most = limits.record_bytes // 9  # as everywhere: 8 bytes of id and 1 of mask
    held: list[NDArray[np.int64]] = []
    n_held = 0
    last = before  # whether the id before the piece is a separator; no cut lies before the very first id
    for array in arrays:
        is_cut = np.isin(array, cuts)
        previous = np.concatenate([[last], is_cut[:-1]])
        last = bool(is_cut[-1]) if len(is_cut) else last
        at = np.flatnonzero(is_cut & ~previous if before else previous & ~is_cut).tolist()
        start = 0
        for stop in [*at, len(array)]:
            n_held += stop - start
            held = [*held, array[start:stop]] if n_held <= most else []
            if stop < len(array):
                if n_held:
                    yield np.concatenate(held) if n_held <= most else None
                held, n_held = [], 0
            start = stop
    if n_held:
        yield np.concatenate(held) if n_held <= most else None


def _equal(arrays: Iterator[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
    held = np.zeros(0, np.int64)
    for array in arrays:
        held = np.concatenate([held, array])
        whole = len(held) // PIECE * PIECE
        yield from held[:whole].reshape(-1, PIECE)
        held = held[whole:]
    if len(held):
        yield held
