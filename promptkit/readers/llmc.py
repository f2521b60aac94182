"""llm.c's token files: 256 int32 of header, then ids.

    20240520 (u16) or 20240801 (u32) · version · number of ids · 253 zeros      ids

Each document begins with its end-of-text id: 50256 of GPT-2 in files of 16 bits, 128000 or 128001 of Llama 3 in those
of 32 bits; the tokenizer's own are looked for too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from promptkit.readers.id_streams import documents, pieces
from promptkit.readers.npy import bounded
from promptkit.readers.records import BadFile, Fault, Limits, Record
from promptkit.readers.streams import Stream

HEADER = 1024
WIDTHS = {20240520: ("<u2", (50256,)), 20240801: ("<u4", (128000, 128001))}
EVALUATION = 20240522


def read(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the documents of one file."""
    stream = Stream.of(path, limits)
    header = np.frombuffer(stream.take(HEADER, "the header"), "<i4")
    if int(header[0]) not in WIDTHS:
        raise BadFile("not an llm.c token file: its first bytes are others")
    dtype, separators = WIDTHS[int(header[0])]
    n_ids = int(header[2])
    if n_ids < 0:
        raise BadFile(f"its header counts {n_ids} ids")
    body = bounded(stream, n_ids * np.dtype(dtype).itemsize)
    begins = () if limits.hints.begins or limits.hints.ends else separators
    yield from documents(pieces(body, dtype), limits, begins=begins)
    if stream.some(1):
        raise BadFile(f"there are more ids than the {n_ids} that its header counts")
