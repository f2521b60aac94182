"""Finished units of work on disk: many machines share one build, and a restart redoes nothing.

    root -> Opened -> units -> Summary -> PARTS/KEY.npz        work    any number of machines, each its share of units
                                          PARTS/plan-KEY.json
                               PARTS -> Opened, Summary        gather  as if one process had read everything

A part is what one unit (one big shard or a batch of small files, see `collect`) amounts to: counts, account, and the
sampled rows as stored. Its name is the hash of the options and of path, size and modification time of the files (with
`verify_source`, of their bytes too), so what changed is another part, and none is ever mistaken for another. Parts
appear whole or not at all. They are arrays and JSON, never pickles, and name no place: PARTS may be moved.

A worker keeps only rows that can still be among the k smallest priorities of all that it knows to be done; the limit
that it used, the *bound*, stands in the part. Where that turns out too low (files changed since), the part is named and
done again: a sample is never short of rows without a word.
"""

from __future__ import annotations

import hashlib
import heapq
import io
import json
import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from promptkit import collect, readers, tokenizers, writing
from promptkit.collect import Opened, Plan, Progress, Row, Summary
from promptkit.conversation import canonical
from promptkit.errors import InputError, IntegrityError, UsageError
from promptkit.readers.walk import locate

FORMAT = 1
# Reasons of the moment: such a part is done again when a worker is started again.
_PASSING = ("changed while reading", "the process that read it", "no progress for", "cannot be read")
_FIELDS = ("messages", "tools", "text", "id", "response", "marks", "starts")


@dataclass(frozen=True)
class Gathered:
    """What the parts of a directory amount to: all that a build needs of it. `root` is where it was read."""

    root: str
    opened: Opened
    summary: Summary
    plan: Plan
    dtype: str | None
    fields: dict[str, str]


class Parts:
    """The parts of one plan in a folder. `units` are all that there must be, in order."""

    def __init__(self, folder: str | os.PathLike[str], opened: Opened, plan: Plan, *, verify_source: bool = False):
        self.folder, self.opened, self.plan, self.verify_source = Path(folder), opened, plan, verify_source
        self.units = collect.all_units(opened.shards)
        options = asdict(replace(plan, root="", without={}, bound=None))
        tokenizer = opened.tokenizer.sha256 if opened.tokenizer else None
        self._options = [FORMAT, _version(), options, tokenizer, verify_source]
        self._keys: dict[int, str] = {}

    def key(self, unit: Sequence[int]) -> str:
        """Return the name of the part of a unit; its files must be there. Raises InputError where one is not."""
        if unit[0] not in self._keys:
            self._keys[unit[0]] = _hash([self._options, [self._state(i) for i in unit]])
        return self._keys[unit[0]]

    def _state(self, index: int) -> list[Any]:
        root = Path(self.opened.tree.root)
        shard = self.opened.shards[index].path
        path = root if root.is_file() else locate(root, shard)
        try:
            info = os.stat(path)
            digest = writing.sha256_of(path) if self.verify_source else None
        except OSError as error:
            raise InputError(
                f"{shard}: {error.strerror or error}, and it was there a moment ago",
                hint="start the worker again once the directory no longer changes",
            ) from error
        return [shard, info.st_size, info.st_mtime_ns, digest]

    def path(self, unit: Sequence[int]) -> Path:
        return self.folder / f"{self.key(unit)}.npz"

    # ------------------------------------------------------------------------------------------- the plan

    def publish(self) -> str:
        """Write what `gather` must know, keys of all units included, and return the key of the plan."""
        tree = self.opened.tree
        told = {
            "format": FORMAT, "root": str(Path(tree.root).absolute()), "keys": [self.key(u) for u in self.units],
            "plan": asdict(replace(self.plan, root="", without={}, bound=None)),
            "shards": [asdict(s) for s in self.opened.shards],
            "account": [asdict(a) for a in tree.account], "evidence": self.opened.evidence,
            "template": self.opened.template, "probed_ids": self.opened.probed_ids,
        }  # fmt: skip
        key = _hash({k: v for k, v in told.items() if k not in ("root",)} | {"options": self._options})
        if self.opened.tokenizer is not None:
            name = f"tokenizer-{self.opened.tokenizer.sha256[:16]}"
            told["tokenizer"], target = name, self.folder / name
            if not target.is_dir():
                with writing.temporary_beside(target, directory=True) as work:
                    self.opened.tokenizer.save(work / "tokenizer")
                    if not target.is_dir():  # else another worker was faster
                        writing.publish(work / "tokenizer", target)
        path = self.folder / f"plan-{key}.json"
        writing.write_file(path, canonical(told) + b"\n")  # anew each time: the newest is what was started last
        return key

    # ------------------------------------------------------------------------------------------- reading and writing

    def write(self, unit: Sequence[int], summary: Summary, bound: bytes | None) -> None:
        writing.write_file(self.path(unit), _packed(unit, summary, bound))

    def state(self, unit: Sequence[int]) -> tuple[list[bytes], bytes | None, bool] | None:
        """Return the priorities and the bound of a finished unit and whether it is worth another try; None without."""
        return _state_of(self.path(unit))


def work(
    opened: Opened,
    plan: Plan,
    folder: str | os.PathLike[str],
    *,
    worker: tuple[int, int] = (0, 1),
    processes: int | None = None,
    verify_source: bool = False,
    engine: str = "local",
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Read the units of worker I of N that have no part yet and write their parts; return (units done, units found).

    Workers need know nothing of each other. Whichever units a killed one left undone are done when any worker with the
    same I and N is started again.
    """
    index, n = worker
    if not 0 <= index < n:
        raise UsageError(f"worker {index}/{n}: not one of 0 to {n - 1}", hint="write I/N with I from 0 to N - 1")
    parts = Parts(folder, opened, plan, verify_source=verify_source)
    # By size, then dealt in turn: every worker has about the same to read.
    by_size = sorted(parts.units, key=lambda u: (-sum(opened.shards[i].n_bytes for i in u), u[0]))
    own = by_size[index::n]
    parts.publish()
    states = {u[0]: parts.state(u) for u in parts.units}
    found = [u for u in own if (s := states[u[0]]) is not None and not s[2]]
    done = 0
    todo = [u for u in own if u not in found]
    states |= {u[0]: None for u in todo}
    for _ in range(2):  # twice only where parts of older files turn out to hold too little
        kept = _Smallest(plan.sample_size)
        for state in states.values():
            kept.add(state[0] if state else ())
        for unit, summary, bound in _read_units(opened, plan, todo, kept, processes, engine, progress):
            parts.write(unit, summary, bound)
            states[unit[0]] = [r.priority for r in summary.sample], bound, False
            done += 1
        todo = [u for u in own if u[0] in _short(states, plan.sample_size)]
        if not todo:
            break
        states |= {u[0]: None for u in todo}
    return done, len(found)


def _read_units(
    opened: Opened,
    plan: Plan,
    units: list[list[int]],
    kept: _Smallest,
    processes: int | None,
    engine: str,
    progress: Progress | None,
) -> Iterator[tuple[list[int], Summary, bytes | None]]:
    """Yield (unit, summary, bound) of each unit, whole, though a lost shard may have parted it on the way."""
    whole = {i: tuple(unit) for unit in units for i in unit}
    halves: dict[tuple[int, ...], tuple[Summary, set[int], list[bytes | None]]] = {}
    jobs = collect.run(
        collect.summarise, opened, plan, processes, progress, "read", units=units, bound=kept.bound, engine=engine
    )
    for piece, summary in jobs:
        unit = whole[piece[0]]
        total, seen, bounds = halves.setdefault(unit, (Summary(), set(), []))
        total.merge(summary, plan.sample_size)
        seen.update(piece)
        bounds.append(summary.bound)
        if len(seen) == len(unit):
            del halves[unit]
            total.keep(plan.sample_size)
            # What a unit itself cuts off is behind as many rows of its own as a sample holds: that needs no bound.
            kept.add([r.priority for r in total.sample])
            yield list(unit), total, min((b for b in bounds if b is not None), default=None)


class _Smallest:
    """The k smallest of all priorities so far."""

    def __init__(self, k: int) -> None:
        self.k, self._heap = k, list[tuple[int, bytes]]()

    def add(self, priorities: Any) -> None:
        for p in priorities:
            item = (-int.from_bytes(p, "big"), p)
            if len(self._heap) < self.k:
                heapq.heappush(self._heap, item)
            elif item > self._heap[0]:
                heapq.heapreplace(self._heap, item)

    def bound(self) -> bytes | None:
        """Return what a row's priority must be below to matter; None while all do."""
        return self._heap[0][1] if self.k and len(self._heap) >= self.k else None


def _short(states: dict[int, Any], k: int) -> set[int]:
    """Return the parts whose bound is too low for a sample of k rows out of all parts there are."""
    kept = _Smallest(k)
    for state in states.values():
        kept.add(state[0] if state else ())
    last = kept.bound()
    return {i for i, s in states.items() if s and s[1] is not None and (last is None or s[1] < last)}


def gather(folder: str | os.PathLike[str]) -> Gathered:
    """Return what all parts of the plan that was started last amount to.

    Raises UsageError where there is no plan, InputError naming the workers' shards whose parts are missing or short,
    IntegrityError for a part or a plan that is damaged.
    """
    folder = Path(folder)
    plans = sorted(folder.glob("plan-*.json"), key=lambda p: (p.stat().st_mtime_ns, p.name)) if folder.is_dir() else []
    if not plans:
        raise UsageError(
            f"{folder}: no parts there (no plan-*.json)",
            hint=f"make them first: promptkit build --from DIR --worker 0/1 --parts {folder}",
        )
    try:
        told = json.loads(plans[-1].read_bytes())
        shards = [readers.Shard(**s) for s in told["shards"]]
        plan = _plan(told["plan"])
        account = [readers.FileAccount(**a) for a in told["account"]]
        keys, evidence = list(told["keys"]), list(told["evidence"])
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{plans[-1]}: not a plan ({error})", hint="start a worker again") from error
    tokenizer = tokenizers.load_tokenizer(folder / told["tokenizer"]) if told.get("tokenizer") else None
    tree = readers.Tree(told["root"], shards, account, [], {})
    opened = Opened(
        tree=tree, tokenizer=tokenizer, template=told["template"], evidence=evidence, shards=shards,
        limits=plan.limits, probed_ids=told["probed_ids"],
    )  # fmt: skip
    units = collect.all_units(shards)
    paths = {u[0]: folder / f"{key}.npz" for u, key in zip(units, keys, strict=True)}
    missing = [u for u in units if not paths[u[0]].is_file()]
    if missing:
        raise InputError(
            f"{folder}: {len(missing)} of {len(units)} parts are missing: {_listed(missing, shards)}",
            hint="start the workers that have not ended well again, with the same I/N and options; "
            "what is done stays done",
        )
    states: dict[int, Any] = {}
    for u in units:
        states[u[0]] = _state_of(paths[u[0]])
        if states[u[0]] is None:
            raise IntegrityError(
                f"{paths[u[0]]}: damaged part ({_listed([u], shards)})", hint="delete it and start the workers again"
            )
    if short := _short(states, plan.sample_size):
        listed = _listed([u for u in units if u[0] in short], shards)
        raise InputError(
            f"{folder}: {len(short)} parts were made beside files that have changed since, and hold too few rows: "
            f"{listed}",
            hint="start the workers again: they do these anew",
        )
    total = Summary()
    for u in units:
        total.merge(_unpacked(paths[u[0]], u), plan.sample_size)
    total.keep(plan.sample_size)
    collect.refuse_nothing(opened, total)
    hints = plan.limits.hints
    return Gathered(told["root"], opened, total, plan, hints.dtype, dict(hints.fields))


def _listed(units: list[list[int]], shards: list[readers.Shard]) -> str:
    names = [shards[u[0]].path + (f" and {len(u) - 1} more files" if len(u) > 1 else "") for u in units]
    return "; ".join(names[:5]) + (f"; and {len(names) - 5} more" if len(names) > 5 else "")


def _plan(told: dict[str, Any]) -> Plan:
    limits = dict(told["limits"])
    hints = {k: _tuples(v) for k, v in limits.pop("hints").items()}
    return Plan(**{**told, "limits": readers.Limits(**limits, hints=readers.Hints(**hints))})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# ---------------------------------------------------------------------------------------- one part as bytes


def _packed(unit: Sequence[int], summary: Summary, bound: bytes | None) -> bytes:
    import numpy as np

    place = {index: k for k, index in enumerate(unit)}
    rows, ids, masks = [], [], []
    for r in summary.sample:
        record = r.record
        has = [record.ids is not None, record.mask is not None]
        rest = {f: v for f in _FIELDS if (v := getattr(record, f)) not in (None, ())}
        n = 0 if record.ids is None else len(record.ids)
        rows.append([place[r.shard], record.row, n, *has, rest])
        if record.ids is not None:
            ids.append(np.asarray(record.ids, dtype="<i8"))
        if record.mask is not None:
            masks.append(np.asarray(record.mask, dtype=bool))
    flat = np.concatenate([np.zeros(0, "<i8"), *ids])
    narrow = not len(flat) or bool(flat.min() >= -(1 << 31) and flat.max() < 1 << 31)
    told = {
        "format": FORMAT, "bound": bound.hex() if bound is not None else None, "sources": summary.sources,
        "lengths": {s: {str(k): n for k, n in c.items()} for s, c in summary.lengths.items()},
        "account": [[place[i], asdict(a)] for i, a in sorted(summary.account.items())], "rows": rows,
    }  # fmt: skip
    out = io.BytesIO()
    np.savez(
        out, told=np.frombuffer(json.dumps(told).encode("ascii"), np.uint8),
        priorities=np.frombuffer(b"".join(r.priority for r in summary.sample), np.uint8),
        ids=flat.astype("<i4") if narrow else flat, masks=np.concatenate([np.zeros(0, bool), *masks]),
    )  # fmt: skip
    return out.getvalue()


def _state_of(path: Path) -> tuple[list[bytes], bytes | None, bool] | None:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as part:
            told = json.loads(part["told"].tobytes())
            flat = part["priorities"].tobytes()
        passing = any(a["status"] == "failed" and a["reason"].startswith(_PASSING) for _, a in told["account"])
        bound = None if told["bound"] is None else bytes.fromhex(told["bound"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    return [flat[k : k + 16] for k in range(0, len(flat), 16)], bound, passing


def _unpacked(path: Path, unit: Sequence[int]) -> Summary:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as part:
            told = json.loads(part["told"].tobytes())
            priorities, ids, masks = part["priorities"].tobytes(), part["ids"], part["masks"]
        if told["format"] != FORMAT:
            raise ValueError(f"format {told['format']}")
        out = Summary(
            sources={s: Counter(c) for s, c in told["sources"].items()},
            lengths={s: Counter({int(k): n for k, n in c.items()}) for s, c in told["lengths"].items()},
            account={unit[k]: readers.FileAccount(**a) for k, a in told["account"]},
        )
        at = at_mask = 0
        for number, (k, row, n, has_ids, has_mask, rest) in enumerate(told["rows"]):
            fields: dict[str, Any] = {f: tuple(v) if f in ("marks", "starts") else v for f, v in rest.items()}
            fields["ids"] = np.array(ids[at : at + n]) if has_ids else None
            fields["mask"] = np.array(masks[at_mask : at_mask + n]) if has_mask else None
            record = readers.Record(row=row, **fields)
            at, at_mask = at + n * has_ids, at_mask + n * has_mask
            out.sample.append(Row(priorities[16 * number : 16 * number + 16], unit[k], record))
    except (OSError, ValueError, KeyError, IndexError, TypeError, zipfile.BadZipFile) as error:
        raise IntegrityError(f"{path}: damaged part ({error})", hint="delete it and start the workers again") from error
    return out


# ---------------------------------------------------------------------------------------- small parts


def _hash(value: Any) -> str:
    data = json.dumps(value, sort_keys=True, separators=(",", ":"), default=sorted)
    return hashlib.sha256(data.encode("ascii")).hexdigest()[:32]


def _version() -> str:
    from promptkit import __version__

    return __version__
