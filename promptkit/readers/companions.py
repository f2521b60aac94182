"""Files that belong together: which one is the shard, and which only serves it.

    X.bin + X.idx            Megatron            index.json {"version": 2, "shards": [...]}        MDS
    X.ds + X.ds.index ...    datatrove           index.json {"chunks": [...], "config": {...}}     LitData
    X.npy + X.csv.gz         Dolma               input_ids.npy + loss_mask.npy

Names in an index are only ever base names of the same directory; a path in there is refused, because it would be an
order to look elsewhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptkit.readers import headerless, litdata, megatron
from promptkit.readers.fields import IDS
from promptkit.readers.npy import BESIDE

MAX_INDEX = 64 << 20


@dataclass(frozen=True, slots=True)
class Index:
    """What an index.json says of its directory: the format of each file it names, and what is wrong with it."""

    what: str
    formats: dict[str, str] = field(default_factory=dict)
    copies: frozenset[str] = frozenset()  # packed copies of files that lie there unpacked
    missing: tuple[str, ...] = ()
    refused: int = 0  # names that are no base names


def serves(name: str, names: set[str]) -> str | None:
    """Return why a file is no shard of its own although its bytes may look like one, told by its neighbours."""
    stem, _, extension = name.rpartition(".")
    if extension == "idx" and f"{stem}.bin" in names:
        return f"index of {stem}.bin"
    if extension in ("index", "loss", "metadata") and stem.endswith(".ds") and stem in names:
        return f"{extension} of {stem}"
    if name.endswith(".csv.gz") and name.removesuffix(".csv.gz") + ".npy" in names:
        return f"list of documents of {name.removesuffix('.csv.gz')}.npy"
    if name == "meta.pkl" and any(n.endswith(".bin") for n in names):
        return "nanoGPT's meta.pkl: a pickle, never read"
    if ".npy" in name:
        for ids, masks in (*((i, BESIDE) for i in IDS), ("token_ids", ("labels_mask",))):
            for mask in masks:
                if mask in name and name.replace(mask, ids) in names:
                    return f"mask of {name.replace(mask, ids)}"
    return None


def kind_of(path: Path) -> str | None:
    """Return the format of a file that its neighbours tell: Megatron, datatrove, Dolma; None for all others."""
    if path.suffix == ".bin":
        index = path.with_suffix(".idx")
        if index.is_file() and not index.is_symlink():
            with open(index, "rb") as file:
                return "megatron" if file.read(9) == megatron.MAGIC else None
    if path.suffix == ".ds":
        return "datatrove"
    if path.suffix == ".npy" and headerless.index_beside(path) is not None:
        with open(path, "rb") as file:
            return None if file.read(6) == b"\x93NUMPY" else "ids"
    return None


def index_of(directory: Path, names: set[str]) -> Index | None:
    """Return what the index.json of a directory says, None where there is none of MDS or LitData."""
    if "index.json" not in names:
        return None
    found = litdata.load_index(directory)
    if found is not None:
        return _index("LitData", [(_name(c, "filename"), None) for c in found["chunks"]], "litdata", names)
    try:
        with open(directory / "index.json", "rb") as file:
            value = json.loads(file.read(MAX_INDEX))
    except (OSError, ValueError, RecursionError):
        return None
    shards = value.get("shards") if isinstance(value, dict) else None
    if not isinstance(shards, list) or not any(isinstance(s, dict) and s.get("format") == "mds" for s in shards):
        return None
    return _index("MDS", [(_base(s, "raw_data"), _base(s, "zip_data")) for s in shards], "mds", names)


def _name(entry: Any, key: str) -> str:
    value = entry.get(key) if isinstance(entry, dict) else None
    return value if isinstance(value, str) else ""


def _base(shard: Any, key: str) -> str | None:
    entry = shard.get(key) if isinstance(shard, dict) else None
    return _name(entry, "basename") if isinstance(entry, dict) else None


def _index(what: str, pairs: list[tuple[str | None, str | None]], kind: str, names: set[str]) -> Index:
    formats: dict[str, str] = {}
    copies: set[str] = set()
    missing: list[str] = []
    refused = 0
    for plain, packed in pairs:
        told = [n for n in (plain, packed) if n is not None]
        if not told or not all(_is_base(n) for n in told):
            refused += 1
            continue
        there = [n for n in told if n in names]
        if not there:
            missing.append(told[0])
            continue
        formats[there[0]] = kind
        copies.update(there[1:])
    return Index(what, formats, frozenset(copies), tuple(missing), refused)


def _is_base(name: str) -> bool:
    return name not in ("", ".", "..") and not any(c in name for c in "/\\\0") and len(name) < 256
