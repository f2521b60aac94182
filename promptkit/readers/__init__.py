"""Training shards of any container -> rows as stored. The door of the readers.

    tree = find_shards("/data/eagle3/synth_100k")
    for shard in tree.shards:
        for item in read(tree.root, shard):      # Record | Fault, lazily, in row order
            ...

Formats are told by magic bytes. No code in a file is ever run, torch is never imported, and bad content is a `Fault` in
the place of the row (or of the rest of the file) and never an exception. One reader is one file in this directory and
one line in `READERS`; it may raise BadFile, BadRow and what its library raises, all of which end here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from promptkit.readers import (
    arrow,
    datatrove,
    headerless,
    json_lines,
    litdata,
    llmc,
    mds,
    megatron,
    npy,
    npz,
    packed,
    parquet,
    safetensors,
    torch_packed,
    torch_zip,
    webdataset,
)
from promptkit.readers.fields import check_map
from promptkit.readers.records import (
    BadFile,
    BadRow,
    Fault,
    FileAccount,
    Hints,
    Limits,
    Reader,
    Record,
    Shard,
    Tree,
)
from promptkit.readers.walk import find_shards, locate
from promptkit.readers.widths import check_dtype

__all__ = [
    "READERS", "Fault", "FileAccount", "Hints", "Limits", "Record", "Shard", "Tree",
    "find_shards", "read", "with_hints",
]  # fmt: skip

_PACKINGS = ("gz", "zst", "xz", "bz2")

# Read forwards only, so packed as well as plain.
_FORWARD: dict[str, Reader] = {
    "npy": npy.read,
    "llmc": llmc.read,
    "mds": mds.read,
    "litdata": litdata.read,
    "tar": webdataset.read,
}

READERS: dict[str, Reader] = {
    "jsonl": json_lines.read,
    **{f"jsonl.{p}": json_lines.read for p in _PACKINGS},
    "arrow-stream": arrow.read_stream,
    **{f"arrow-stream.{p}": arrow.read_packed_stream for p in _PACKINGS},
    "arrow-file": arrow.read_file,
    "parquet": parquet.read,
    "torch": torch_zip.read,
    **{f"torch.{p}": torch_packed.read_packed for p in _PACKINGS},
    "safetensors": safetensors.read,
    "npz": npz.read,
    "megatron": megatron.read,
    "datatrove": datatrove.read,
    "ids": headerless.read,
    **{f"ids.{p}": headerless.read_packed for p in _PACKINGS},
    **{name + packing: reader for name, reader in _FORWARD.items() for packing in ("", *(f".{p}" for p in _PACKINGS))},
}

# A file whose first rows have no known field is no file of samples; after this many there is no need to look further.
UNKNOWN_ROWS = 1000


def with_hints(limits: Limits | None, *, dtype: str | None = None, fields: Mapping[str, str] | None = None) -> Limits:
    """Return limits that carry what the user says about files: the type of ids without a header, and field -> column.

    Raises UsageError for an unknown type or field.
    """
    limits = limits or Limits()
    check_dtype(dtype)
    pairs = check_map((fields or {}).items())
    hints = replace(limits.hints, dtype=dtype or limits.hints.dtype, fields=pairs or limits.hints.fields)
    return replace(limits, hints=hints)


def read(root: Path | str, shard: Shard, *, limits: Limits | None = None) -> Iterator[Record | Fault]:
    """Yield the rows of one shard in order, each as a Record or a Fault; `Fault.row` None is the rest of the file."""
    path = locate(root if isinstance(root, Path) else Path(root), shard.path)
    limits = limits or Limits()
    try:
        try:
            before = _state(path)
        except NotADirectoryError:  # the root is itself the shard
            path = Path(root)
            before = _state(path)
        yield from packed.cut(_settled(_guarded(READERS[shard.format](path, limits))))
        if _state(path) != before:
            yield Fault(None, "failed", "changed while reading")
    except OSError as error:
        yield Fault(None, "failed", f"cannot be read: {error.strerror or error}")


def _state(path: str | Path) -> tuple[int, int]:
    info = os.stat(path)
    return info.st_size, info.st_mtime_ns


def _guarded(items: Iterator[Record | Fault]) -> Iterator[Record | Fault]:
    """Turn whatever a reader raises into its last fault."""
    try:
        yield from items
    except (BadFile, BadRow) as error:
        yield Fault(None, error.status, str(error))
    except OSError as error:
        yield Fault(None, "failed", f"cannot be read: {error.strerror or error}")
    except MemoryError:
        yield Fault(None, "failed", "needs more memory than there is")
    except Exception as error:  # a hostile file must not end the run; our own mistakes are named the same way
        yield Fault(None, "failed", f"{type(error).__name__}: {str(error)[:160]}")


def _settled(items: Iterator[Record | Fault]) -> Iterator[Record | Fault]:
    """Give one fault "skipped: not samples" for a file in which no row has a known field."""
    unknown: list[Fault] = []
    for item in items:
        if isinstance(item, Fault) and item.row is not None and item.reason.startswith("no known field"):
            unknown.append(item)
            if len(unknown) < UNKNOWN_ROWS:
                continue
            break
        yield from unknown
        yield item
        yield from items
        return
    if unknown:
        yield Fault(None, "skipped", "not samples" + unknown[0].reason.removeprefix("no known field"))
