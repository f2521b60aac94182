"""From a directory to its shards, and to an account of everything that is no shard.

    A1_deepswekimi/rows_0-2000/data_7.ckpt      source A1_deepswekimi
    B2_opencodeinstruct/data-00000-of-00002.arrow
    tokenizer/tiktoken.model                    no data: a hint

Every first-level sub-directory is a source, unless its name is one that containers use (`rows_*`, `data`, splits, ...).
Nothing is left out in silence: files of no known kind, unfinished writes, links, devices and directories that hold
nothing are entries of the account. Links to directories are never followed, links to files only inside the root, and
only regular files are opened.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptkit.errors import UsageError
from promptkit.readers import datatrove, hub, parquet_footer
from promptkit.readers.arrow_headers import count_rows
from promptkit.readers.companions import Index, index_of, serves
from promptkit.readers.detect import detect, unfinished
from promptkit.readers.records import BadFile, FileAccount, Limits, Shard, Tree
from promptkit.readers.torch_zip import vocabulary_size

DEPTH = 64
CONTAINER = re.compile(
    r"rows_.*|\d+|data|train|test|validation|valid|val|dev|eval|splits?|shards?|default|hidden_states|vocab_mapping"
    r"|tokenized_dataset|processed_dataset|last_run_prepared|[0-9a-f]{32}"
)
# What lies in a model directory; a directory with one of the first group is a hint for the tokenizer.
TOKENIZER = re.compile(
    r"tiktoken\.model|.*\.tiktoken|tokenizer\.json|tokenizer_config\.json|tokenizer\.model.*|tekken\.json"
)
MODEL = re.compile(
    r"config\.json|generation_config\.json|special_tokens_map\.json|added_tokens\.json|vocab\.json|merges\.txt"
    r"|chat_template\.(jinja|json)|(pre)?processor_config\.json|training_args\.bin|(optimizer|scheduler)\.pt|rng_state.*\.pth|pytorch_model.*|model.*\.safetensors(\.index\.json)?"
)
METADATA = ("state.json", "dataset_info.json", "dataset_dict.json", "dataset_infos.json", "data_config.json")
HIDDEN_STATES = re.compile(r"hs_\d+\.safetensors")
FAILED_ROWS = re.compile(r".*([._-]errors?|_skipped)\.jsonl")


@dataclass
class _Walk:
    root: Path
    limits: Limits
    shards: list[Shard] = field(default_factory=list)
    account: list[FileAccount] = field(default_factory=list)
    tokenizer_dirs: list[str] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)


def natural(path: str) -> list[Any]:
    """Return a sort key under which data_2 comes before data_10, and equal numbers are told apart by spelling."""
    parts = [[(int(p), "") if p.isdigit() else (-1, p) for p in _DIGITS.split(part)] for part in path.split("/")]
    return [parts, path]


_DIGITS = re.compile(r"([0-9]{1,18})")


def find_shards(root: Path | str, *, limits: Limits | None = None) -> Tree:
    """Return the shards under `root` (a directory, one file, or hf://owner/name) and the account of what is no shard.

    Only the last form uses the network. Raises UsageError where `root` does not exist or cannot be listed.
    """
    if hub.is_hub(root):
        return hub.tree_of(str(root))
    root = Path(root)
    limits = limits or Limits()
    try:
        mode = root.stat().st_mode
    except OSError as error:
        raise UsageError(
            f"{root}: {error.strerror or error}", hint="give the directory of the training shards"
        ) from error
    if stat.S_ISREG(mode):
        walk = _Walk(root.parent, limits)
        index = index_of(root.parent, set(os.listdir(root.parent))) if root.suffix in (".bin", ".mds") else None
        told = index.formats.get(root.name, "") if index is not None else ""
        _file(walk, root.name, root.name.split(".")[0], root.stat(), told)
        return _tree(walk)
    if not stat.S_ISDIR(mode):
        raise UsageError(f"{root}: neither a directory nor a regular file", hint="give the directory of the shards")
    walk = _Walk(root, limits)
    try:
        os.scandir(root).close()
    except OSError as error:
        raise UsageError(f"{root}: {error.strerror or error}", hint="check its permissions") from error
    _directory(walk, "", 0)
    return _tree(walk)


def _tree(walk: _Walk) -> Tree:
    dirs = sorted(set(walk.tokenizer_dirs), key=lambda d: (d.count("/") + (d != "."), natural(d)))
    return Tree(
        str(walk.root),
        sorted(walk.shards, key=lambda s: natural(s.path)),
        sorted(walk.account, key=lambda a: natural(a.path)),
        dirs,
        walk.evidence,
    )


def _directory(walk: _Walk, relative: str, depth: int, beside_arrow: bool = False) -> bool:
    """Walk one directory; return whether there is a file in it or below it."""
    where = relative or "."
    if depth > DEPTH:
        walk.account.append(FileAccount(where, "failed", f"directories nested deeper than {DEPTH}"))
        return True
    try:
        with os.scandir(locate(walk.root, relative)) as listing:
            entries = sorted(listing, key=lambda e: e.name)
    except OSError as error:
        walk.account.append(FileAccount(where, "failed", f"cannot be listed: {error.strerror or error}"))
        return True
    if not entries:
        walk.account.append(FileAccount(where, "skipped", "empty directory: holds no file"))
        return False
    names = {e.name for e in entries}
    known = _named_by_container(walk, relative, names)
    beside_arrow |= known is not None
    index = _index(walk, relative, names)
    found = False
    for entry in entries:
        name = shown(entry.name)
        path = f"{relative}/{name}" if relative else name
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError as error:  # a directory that may be listed and not entered; a file that went away
            walk.account.append(FileAccount(path, "failed", f"cannot be read: {error.strerror or error}"))
            found = True
            continue
        if stat.S_ISLNK(info.st_mode):
            target = _inside(walk, entry)
            if target is None:
                continue
            info = target
        if stat.S_ISDIR(info.st_mode):
            found |= _directory(walk, path, depth + 1, known is not None)
        elif not stat.S_ISREG(info.st_mode):
            walk.account.append(FileAccount(path, "skipped", f"{_special(info.st_mode)}, never opened"))
        else:
            found = True
            if (
                known is not None
                and name.endswith(".arrow")
                and name not in known
                and not unfinished(name, info.st_size)
            ):
                walk.account.append(
                    FileAccount(path, "skipped", "not named by state.json: a cache beside the data set")
                )
            elif beside_arrow and HIDDEN_STATES.fullmatch(name):
                walk.account.append(FileAccount(path, "skipped", "hidden states of rows that the Arrow files hold"))
            elif index is not None and index.refused and name == "index.json":
                walk.account.append(FileAccount(path, "failed", f"index.json names {index.refused} paths, not files"))
            elif why := _served(name, names, index):
                walk.account.append(FileAccount(path, "skipped", why))
            else:
                told = index.formats.get(name, "") if index is not None else ""
                _file(walk, path, _source(walk, path), info, told)
    if not found and not _has_account(walk, relative):
        walk.account.append(FileAccount(where, "skipped", "holds no file"))
    return found


def _has_account(walk: _Walk, relative: str) -> bool:
    prefix = f"{relative}/" if relative else ""
    return any(a.path.startswith(prefix) for a in reversed(walk.account))


def _inside(walk: _Walk, entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the stat of the regular file inside the root that a link leads to, else None and an entry."""
    path = shown(os.path.relpath(entry.path, walk.root).replace(os.sep, "/"))
    try:
        target = os.path.realpath(entry.path, strict=True)
        info = os.stat(target)
    except (OSError, ValueError, RuntimeError):
        walk.account.append(FileAccount(path, "skipped", "a link that leads nowhere"))
        return None
    if stat.S_ISDIR(info.st_mode):
        walk.account.append(FileAccount(path, "skipped", "a link to a directory, not followed"))
    elif os.path.commonpath([os.path.realpath(walk.root), target]) != os.path.realpath(walk.root):
        walk.account.append(FileAccount(path, "skipped", "a link out of the root, not followed"))
    elif not stat.S_ISREG(info.st_mode):
        walk.account.append(FileAccount(path, "skipped", f"a link to {_special(info.st_mode)}, never opened"))
    else:
        walk.account.append(
            FileAccount(path, "skipped", "a link to a file of this root, which is read in its own place")
        )
    return None


def _special(mode: int) -> str:
    for test, name in ((stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket")):
        if test(mode):
            return name
    return "a device"


def _source(walk: _Walk, path: str) -> str:
    first, _, rest = path.partition("/")
    if not rest or CONTAINER.fullmatch(first):
        return shown(walk.root.resolve().name) or "root"
    return first


def _named_by_container(walk: _Walk, relative: str, names: set[str]) -> set[str] | None:
    """Return the files that a save_to_disk directory names in state.json, or None where this is none.

    Only base names are taken: a path in there would be an order to look elsewhere.
    """
    if not {"state.json", "dataset_info.json"} <= names:
        return None
    try:
        state = json.loads((locate(walk.root, relative) / "state.json").read_bytes()[: 16 << 20])
        files = {str(f["filename"]) for f in state["_data_files"]}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    for name in sorted(files - names):
        path = f"{relative}/{name}" if relative else name
        if "/" in name or "\\" in name or name in ("", ".", ".."):
            path, why = f"{relative}/state.json" if relative else "state.json", "state.json names a path, not a file"
            walk.account.append(FileAccount(path, "failed", why))
        else:
            walk.account.append(FileAccount(path, "failed", "named by state.json, but missing"))
    return files


def _index(walk: _Walk, relative: str, names: set[str]) -> Index | None:
    """Return what an index.json of MDS or LitData says of this directory; what it misses goes into the account."""
    index = index_of(locate(walk.root, relative), names)
    if index is None:
        return None
    inside = f"{relative}/" if relative else ""
    for name in index.missing:
        walk.account.append(FileAccount(inside + name, "failed", "named by index.json, but missing"))
    return index


def _served(name: str, names: set[str], index: Index | None) -> str | None:
    """Return why a file only serves others of its directory, None where it stands for itself."""
    if index is not None and name == "index.json":
        return f"index of {index.what} shards"
    if index is not None and name in index.copies:
        return "packed copy of a shard that lies beside it"
    return serves(name, names)


def _file(walk: _Walk, path: str, source: str, info: os.stat_result, told: str = "") -> None:
    name = path.rpartition("/")[2]
    directory = path.rpartition("/")[0] or "."
    skip = unfinished(name, info.st_size)
    if skip is None and TOKENIZER.fullmatch(name):
        walk.tokenizer_dirs.append(directory)
        skip = "tokenizer, not samples"
    if skip is None and MODEL.fullmatch(name):
        skip = "model file, not samples"
    if skip is None and name in METADATA:
        skip = "metadata of a data set, not samples"
    if skip is None and FAILED_ROWS.fullmatch(name):
        skip = "rows that their generator gave up, not samples"
    if skip is not None:
        walk.account.append(FileAccount(path, "skipped", skip))
        return
    actual = locate(walk.root, path)
    try:
        if name == "manifest.json" and _manifest(walk, actual):
            walk.account.append(FileAccount(path, "skipped", "manifest of a cache, not samples"))
            return
        verdict = detect(actual, walk.limits, told)
        if verdict.format == "torch" and not _SERIES.search(name) and (size := _vocabulary(actual)):
            walk.evidence.setdefault("target_vocab_size", size)
            walk.evidence.setdefault("target_vocab_from", path)
            walk.account.append(FileAccount(path, "skipped", "vocabulary mapping, not samples"))
            return
    except OSError as error:
        walk.account.append(FileAccount(path, "failed", f"cannot be read: {error.strerror or error}"))
        return
    if verdict.format:
        if verdict.note:
            walk.evidence.setdefault("id_widths", {})[path] = verdict.note
        if verdict.format == "datatrove" and (named := datatrove.tokenizer_of(actual)[0]):
            walk.evidence.setdefault("tokenizer", named)
        rows = _count(actual, verdict.format, walk.limits)
        walk.shards.append(Shard(path, verdict.format, source, info.st_size, rows))
    else:
        walk.account.append(FileAccount(path, verdict.status, verdict.reason))


def _count(path: Path, kind: str, limits: Limits) -> int | None:
    """Return the number of rows where the container states it."""
    if kind == "parquet":
        return parquet_footer.count_rows(path)
    if kind in ("arrow-stream", "arrow-file"):
        return count_rows(path, stream=kind == "arrow-stream", limits=limits)
    return 1 if kind.startswith("torch") and _SERIES.search(path.name) else None


# data_17.ckpt: one of a series of samples. Opening each here would read a directory of 100k files twice.
_SERIES = re.compile(r"_\d+\.(ckpt|pt)(\.\w+)?$")


def _vocabulary(path: Path) -> int | None:
    try:
        return vocabulary_size(path)
    except (BadFile, OSError):
        return None  # the reader will say what is wrong with it


def _manifest(walk: _Walk, path: Path) -> bool:
    """Take the evidence out of NeMo Automodel's manifest; return whether it is one."""
    try:
        with open(path, "rb") as file:
            manifest = json.loads(file.read(16 << 20))
    except (ValueError, RecursionError):
        return False
    if not isinstance(manifest, dict) or "format_version" not in manifest:
        return False
    if isinstance(manifest.get("target_vocab_size"), int):
        walk.evidence.setdefault("target_vocab_size", manifest["target_vocab_size"])
    if isinstance(manifest.get("target_model"), str):
        walk.evidence.setdefault("target_model", manifest["target_model"])
    return True


# ---- names that are not UTF-8


def shown(name: str) -> str:
    """Return a file name as text that can be written down: bytes that are not UTF-8 become \\xff."""
    try:
        name.encode("utf-8")
        return name
    except UnicodeEncodeError:
        return os.fsencode(name).decode("utf-8", "backslashreplace")


def locate(root: Path, path: str) -> Path:
    """Return where a path of a Tree lies: `shown` taken back, part by part, for names that need it."""
    where = root / path
    if "\\" not in path or os.path.lexists(where):
        return where
    where = root
    for part in path.split("/"):
        direct = where / part
        if not os.path.lexists(direct):
            direct = where / next((n for n in os.listdir(where) if shown(n) == part), part)
        where = direct
    return where
