"""A data set of the Hugging Face hub, fetched because the user named it: hf://owner/name[@revision][:split].

    hf://nvidia/OpenCodeInstruct:train   ->   Arrow files in the cache of `datasets`, read like any others

The library `datasets` downloads and converts (its loading scripts, which are code, are not allowed); what it leaves in
its cache are Arrow streams. Paths in the result are file names and no cache paths, so that the same revision gives the
same shards on every machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from promptkit.errors import InputError, UsageError
from promptkit.readers.records import Shard, Tree

PREFIX = "hf://"
_NAME = re.compile(r"hf://(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[\w./-]+))?(?::(?P<split>[\w.-]+))?")


def is_hub(root: Any) -> bool:
    """Return whether a root is the name of a hub data set."""
    return isinstance(root, str) and root.startswith(PREFIX)


def tree_of(root: str) -> Tree:
    """Fetch a data set and return its shards. Raises UsageError for a malformed name, InputError where it fails."""
    found = _NAME.fullmatch(root)
    if found is None:
        raise UsageError(
            f"{root}: not the name of a hub data set", hint="write hf://owner/name, @revision and :split optional"
        )
    name, revision, split = found["name"], found["revision"], found["split"]
    if Path(name).exists():
        # `datasets` would read this directory in the place of the hub's data set
        raise UsageError(f"{root}: there is a local directory {name}", hint=f"read it as ./{name}, or run elsewhere")
    splits = _load(root, name, revision, split)
    files = [(key, Path(entry["filename"])) for key, part in splits.items() for entry in part.cache_files]
    if not files:
        raise InputError(
            f"{root}: `datasets` left no Arrow files", hint="save it with save_to_disk and give the directory"
        )
    base = Path(os.path.commonpath([path.parent for _, path in files]))
    rows = {key: part.num_rows for key, part in splits.items()}
    alone = {key for key in splits if sum(k == key for k, _ in files) == 1}
    shards = [
        Shard(
            path.relative_to(base).as_posix(),
            "arrow-stream",
            name.rpartition("/")[2],
            path.stat().st_size,
            rows[key] if key in alone else None,
        )
        for key, path in dict.fromkeys(files)
    ]
    return Tree(str(base), shards, [], [], {"hub": root})


def _load(root: str, name: str, revision: str | None, split: str | None) -> dict[str, Any]:
    """Return split -> data set."""
    try:
        import datasets
    except ImportError:
        raise UsageError(f"{root}: needs the library `datasets`", hint="pip install datasets") from None
    try:
        loaded = datasets.load_dataset(name, revision=revision, split=split)
    except Exception as error:  # its errors are of many kinds: network, names, parsing
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(
            f"{root}: cannot be fetched: {first}", hint="check the name, the revision and the network"
        ) from error
    return dict(loaded) if isinstance(loaded, dict) else {split or "all": loaded}
