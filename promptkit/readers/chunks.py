"""Chunks of samples with a table of offsets: the layout that MosaicML's MDS and LitData share.

    u32 n · u32 offsets[n + 1], from the start of the file · (MDS: JSON config) · samples

The table says where the first sample begins, so that what lies between is the config. Samples follow each other
without holes, so the file is read once, forwards, and a packed one is read the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from promptkit.readers.records import BadFile, Limits
from promptkit.readers.streams import Stream

MAX_SAMPLES = 1 << 24
MAX_CONFIG = 1 << 22


def open_chunk(stream: Stream) -> tuple[np.ndarray[Any, Any], bytes]:
    """Return the sizes of the samples and what lies before the first. Raises BadFile where the table lies."""
    n = int.from_bytes(stream.take(4, "its header"), "little")
    if n > MAX_SAMPLES:
        raise BadFile(f"its header counts {n} samples, more than {MAX_SAMPLES}")
    offsets = np.frombuffer(stream.take(4 * (n + 1), "its table of offsets"), "<u4").astype(np.int64)
    sizes = np.diff(offsets)
    gap = int(offsets[0]) - stream.at
    if gap < 0 or gap > MAX_CONFIG or (sizes < 0).any():
        raise BadFile("its table of offsets is out of order")
    return sizes, stream.take(gap, "its header")


def samples(stream: Stream, sizes: np.ndarray[Any, Any], limits: Limits) -> Iterator[bytes | None]:
    """Yield the bytes of each sample; None in the place of one that is too large."""
    for size in sizes.tolist():
        if size > limits.record_bytes:
            stream.skip(size, "a sample")
            yield None
        else:
            yield stream.take(size, "a sample")


def split(data: bytes, sizes: list[int]) -> list[bytes]:
    """Return `data` cut into parts of these sizes. Raises ValueError where they do not fill it."""
    if sum(sizes) != len(data):
        raise ValueError("sizes do not fit")
    out, at = [], 0
    for size in sizes:
        out.append(data[at : at + size])
        at += size
    return out


def shaped(data: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return an array of numbers. Raises ValueError where shape and bytes differ."""
    values = np.frombuffer(data, np.uint8) != 0 if dtype == "?" else np.frombuffer(data, dtype)
    return values.reshape(shape)
