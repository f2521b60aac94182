"""Token ids and nothing else: nanoGPT's `.bin`, the `.npy` of Dolma, OLMo and nanotron that has no NumPy header.

    05 00 07 00 32 c4 ...

The width is stated (`--dtype`), or told from the bytes (`widths`). Dolma lists the documents in a `.csv.gz` of the same
name (start, end, id, source, place); OLMo-core keeps a label mask of one byte per id (`labels_mask_*` beside
`token_ids_*`). Without such a list the stream is cut at the tokenizer's end of text.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from promptkit.readers.id_streams import as_ids, documents, pieces
from promptkit.readers.limits import plain_chunks
from promptkit.readers.records import BadFile, Fault, Limits, Record
from promptkit.readers.streams import Stream
from promptkit.readers.widths import SAMPLE_BYTES, width_of

LINE = 1 << 16


def read(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the documents of one file."""
    n_bytes = path.stat().st_size
    with open(path, "rb") as file:
        code = width_of(file.read(SAMPLE_BYTES), n_bytes, limits.hints).dtype
    index = index_beside(path)
    if index is None:
        yield from documents(pieces(Stream.of_plain(path), code), limits)
    else:
        yield from _listed(path, index, code, n_bytes, limits)


def read_packed(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the documents of a packed file; its width has to be stated."""
    code = width_of(b"", None, limits.hints).dtype
    yield from documents(pieces(Stream.of(path, limits), code), limits)


def index_beside(path: Path) -> Path | None:
    """Return Dolma's list of documents beside a file of ids, if there is one."""
    index = path.with_name(path.name.removesuffix(".npy") + ".csv.gz")
    return index if path.name.endswith(".npy") and index.is_file() and not index.is_symlink() else None


def mask_beside(path: Path) -> Path | None:
    """Return the label mask beside a file of ids: one byte per id."""
    mask = path.with_name(path.name.replace("token_ids", "labels_mask"))
    return mask if mask != path and mask.is_file() and not mask.is_symlink() else None


def _listed(path: Path, index: Path, code: str, n_bytes: int, limits: Limits) -> Iterator[Record | Fault]:
    size = np.dtype(code).itemsize
    n_ids = n_bytes // size
    masks = mask_beside(path)
    if masks is not None and masks.stat().st_size != n_ids:
        raise BadFile(f"its label mask has {masks.stat().st_size} bytes for {n_ids} ids: another --dtype?")
    with open(path, "rb") as file, open(masks or path, "rb") as mask_file:
        for row, (start, stop, name) in enumerate(_spans(index, n_ids, limits)):
            if (stop - start) * 9 > limits.record_bytes:
                yield Fault(row, "failed", f"record larger than {limits.record_bytes} bytes (--record-bytes)")
                continue
            if start == stop:
                yield Fault(row, "skipped", "a document of no ids")
                continue
            file.seek(start * size)
            ids = as_ids(np.frombuffer(file.read((stop - start) * size), code))
            mask = None
            if masks is not None:
                mask_file.seek(start)
                mask = np.frombuffer(mask_file.read(stop - start), np.uint8) != 0
            yield Record(row, ids, mask, id=name or None)


def _spans(index: Path, n_ids: int, limits: Limits) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and id of each document, checked against the number of ids."""
    last = 0
    for line in csv.reader(_lines(index, limits)):
        try:
            start, stop = int(line[0]), int(line[1])
        except (IndexError, ValueError):
            raise BadFile(f"{index.name}: a line that is not start,end,id,source,place") from None
        if not last <= start <= stop <= n_ids:
            raise BadFile(f"{index.name}: document {start}-{stop} lies outside of the {n_ids} ids, or overlaps")
        last = stop
        yield start, stop, line[2] if len(line) > 2 else ""


def _lines(index: Path, limits: Limits) -> Iterator[str]:
    held = b""
    for chunk in plain_chunks(index, limits):
        *lines, held = (held + chunk).split(b"\n")
        if len(held) > LINE:
            raise BadFile(f"{index.name}: a line longer than {LINE} bytes")
        yield from (line.decode("utf-8", "replace") for line in lines if line.strip())
    if held.strip():
        yield held.decode("utf-8", "replace")
