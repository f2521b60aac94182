"""NumPy's .npz: a ZIP of .npy files, stored (`savez`) or deflated (`savez_compressed`).

    input_ids.npy  (S, n) or (n,)      loss_mask.npy  the same shape

Entries are inflated side by side and row by row. The entry's name is only ever a field name.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from promptkit.readers.fields import is_sample, wanted
from promptkit.readers.limits import HARMLESS, ModestReads
from promptkit.readers.npy import Array, one, open_array, rows
from promptkit.readers.records import BadFile, BadRow, Fault, Limits, NoSamples, Record
from promptkit.readers.streams import Stream
from promptkit.readers.tables import not_samples
from promptkit.readers.zip_directory import check_apart

MAX_ENTRIES = 10_000


def read(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of the arrays of one file: many where the ids have two dimensions, one where they have one."""
    try:
        with open(path, "rb") as raw:
            zipfile.ZipFile(ModestReads(raw)).close()
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise BadFile("truncated or damaged .npz: no ZIP directory at its end") from error
    with archive, ExitStack() as stack:
        entries = {e.filename.removesuffix(".npy"): e for e in archive.infolist()[: MAX_ENTRIES + 1]}
        if len(entries) > MAX_ENTRIES:
            raise BadFile(f"a ZIP of more than {MAX_ENTRIES} entries")
        if not is_sample(entries, limits.hints):
            raise NoSamples(not_samples(entries))
        check_apart([(e.header_offset, e.compress_size) for e in archive.infolist()])
        arrays: dict[str, Array] = {}
        for name in sorted(wanted(limits.hints) & entries.keys()):
            entry = entries[name]
            if entry.file_size > max(HARMLESS, limits.inflate_ratio * entry.compress_size):
                raise BadFile(f"unpacks to more than {limits.inflate_ratio} times its size (--inflate-ratio)")
            try:
                file = stack.enter_context(archive.open(entry))
            except (RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
                raise BadFile(f"an entry cannot be read: {str(error)[:80]}") from error
            arrays[name] = open_array(Stream(_chunks(file)))
        dimensions = {len(a.shape) for a in arrays.values()}
        try:
            if dimensions == {1}:
                yield one(0, {k: a.whole(limits) for k, a in arrays.items()}, limits)
            elif dimensions == {2}:
                yield from rows(arrays, limits)
            else:
                raise BadFile("arrays of one and of two dimensions side by side, or of more")
        except BadRow as error:
            yield Fault(0, error.status, str(error))


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    try:
        while data := file.read(1 << 20):
            yield data
    except (zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        raise BadFile(f"a damaged entry: {str(error)[:80]}") from error
    except Exception as error:  # zlib.error, lzma.LZMAError
        raise BadFile("a damaged entry: its packed data is not what it says") from error
