"""Open a training directory and read it once, in units of work that merge exactly.

    root -> Opened (shards, tokenizer, template, evidence) -> units -> Summary -> Summary
            open_directory                                     summarise  merge

The unit of work is one big shard or a batch of small files. A pure function turns it into a small summary: integer
counts, the account of its files, and the k rows with the smallest blake2b(seed, shard, row). Counts and bottom-k
samples merge exactly in any order, so one process, a pool and a cluster give the same bytes. The hash is of the place
and not of the text, so that repeated prompts keep their weight.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit import engines, readers, workers
from promptkit.conversation import Conversation, response_text
from promptkit.errors import InputError, UsageError
from promptkit.visible import visible

if TYPE_CHECKING:
    from promptkit.tokenizers import Tokenizer

Progress = Callable[[str, int, "int | None"], None]

UNIT_BYTES = 32 << 20  # a batch of small files; a bigger shard is a unit of its own
UNIT_FILES = 256
PROBE_SHARDS, PROBE_ROWS = 8, 24  # per source and container, for the evidence of tokenizer and template
MAX_UNKNOWN_IDS = 0.001  # share of ids outside the table above which a file contradicts the tokenizer
TRIES = 2  # of a shard whose worker died
MAX_TOKENIZERS = 8  # of those that lie in a directory, tried where the first does not fit
PROBE_SECONDS = 60.0  # without progress, until a probe gives a shard up
POOL_BYTES = 8 << 20  # starting processes takes longer than reading less than this


@dataclass(frozen=True)
class Plan:
    """All that a worker must know; cheap to pickle."""

    root: str
    seed: int
    sample_size: int
    template: str | None
    limits: readers.Limits
    merge_prefixes: bool
    without: Mapping[str, frozenset[int]] = field(default_factory=dict)  # shard -> rows that are held out
    bound: bytes | None = None  # rows of this priority and above cannot be in the sample any more


@dataclass
class Row:
    """A sampled row: where it stands, its priority, and what was stored."""

    priority: bytes
    shard: int  # index in the natural order of shards
    record: readers.Record


class Rows(list[Row]):
    """Rows on their way to another process: pickled as a few long arrays, where two or three a row cost ten times."""

    def __reduce__(self) -> tuple[Any, ...]:
        records = [r.record for r in self]
        arrays = []
        for name in _ARRAYS:
            found = [getattr(r, name) for r in records]
            some = [a for a in found if a is not None]
            lengths = np.array([-1 if a is None else len(a) for a in found], np.int64)
            arrays.append((lengths, np.concatenate(some) if some else None))
        rest = [tuple(getattr(r, name) for r in records) for name in _REST]
        return _rows, (b"".join(r.priority for r in self), [r.shard for r in self], rest, arrays)


def _rows(priorities: bytes, shards: list[int], rest: list[Any], arrays: list[Any]) -> list[Row]:
    columns = dict(zip(_REST, rest, strict=True))
    for name, (lengths, data) in zip(_ARRAYS, arrays, strict=True):
        at, columns[name] = 0, []
        for n in lengths.tolist():
            # Copied: a view would keep all rows alive where one is kept.
            columns[name].append(None if n < 0 else data[at : at + n].copy())
            at += max(n, 0)
    records = map(readers.Record, *(columns[f.name] for f in fields(readers.Record)))
    return [Row(priorities[16 * k : 16 * k + 16], shards[k], record) for k, record in enumerate(records)]


_ARRAYS = ("ids", "mask", "attention")
_REST = tuple(f.name for f in fields(readers.Record) if f.name not in _ARRAYS)


@dataclass
class Summary:
    """What one unit amounts to. Merging two is adding counts and keeping the smaller priorities."""

    sources: dict[str, Counter[str]] = field(default_factory=dict)
    lengths: dict[str, Counter[int]] = field(default_factory=dict)  # source -> bit length of the token count -> rows
    account: dict[int, readers.FileAccount] = field(default_factory=dict)  # shard index -> account
    sample: list[Row] = field(default_factory=list)
    bound: bytes | None = None  # the plan's, where rows may have been left out for it

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "sample": Rows(self.sample)}

    def merge(self, other: Summary, sample_size: int) -> bool:
        """Add `other` to this summary; the order of merging does not matter. Return whether the sample was cut."""
        for source, counts in other.sources.items():
            self.sources.setdefault(source, Counter()).update(counts)
        for source, lengths in other.lengths.items():
            self.lengths.setdefault(source, Counter()).update(lengths)
        self.account.update(other.account)
        self.sample += other.sample
        return self.keep(sample_size, slack=sample_size // 4 + 1024)

    def keep(self, sample_size: int, *, slack: int = 0) -> bool:
        """Cut the sample to its `sample_size` smallest priorities, once it is longer than that by more than `slack`."""
        if slack and len(self.sample) <= sample_size + slack:
            return False
        self.sample = sorted(self.sample, key=attrgetter("priority"))[:sample_size]
        return True


@dataclass(frozen=True)
class Opened:
    """A directory that was looked at: its shards, the tokenizer and template found, and why."""

    tree: readers.Tree
    tokenizer: Tokenizer | None
    template: str | None
    evidence: list[str]
    shards: list[readers.Shard]
    # with what the tokenizer tells the readers of headerless ids
    limits: readers.Limits = field(default_factory=readers.Limits)
    probed_ids: bool = True  # whether a probe met ids


# -------------------------------------------------------------------------------------- opening


def open_directory(
    root: str | os.PathLike[str],
    *,
    tokenizer: str | None = None,
    template: str | None = None,
    limits: readers.Limits | None = None,
) -> Opened:
    """Find the shards, the tokenizer and the chat template of a directory, with the evidence for each.

    Raises InputError if there is no shard, if shards hold ids and no tokenizer is found, or if the evidence
    contradicts the tokenizer. A template that the user names wins.
    """
    from promptkit import templates, tokenizers
    from promptkit.registry import resolve

    limits = limits or readers.Limits()
    if template is not None:
        resolve("template", template, templates.TEMPLATES)
    tree = readers.find_shards(os.fspath(root), limits=limits)
    if not tree.shards:
        raise InputError(f"{root}: no training shards found", hint=_found(tree.account))
    found = tokenizers.find_tokenizer(Path(tree.root), tree.tokenizer_dirs, tokenizer)
    limits = _told_by(found, limits)
    probes, has_ids = _probe(tree, limits)
    evidence = _stated(tree.evidence)
    if found is None and has_ids:
        raise _no_tokenizer(tree)
    if found is None:
        found = tokenizers.load_tokenizer("words")
        evidence.append("no shard holds token ids and no tokenizer was given: text is split into words and symbols")
    elif probes:
        foreign = [path for path, pairs in probes.items() if _unknown_share(pairs, found) > MAX_UNKNOWN_IDS]
        if 2 * len(foreign) <= len(probes):  # a few files of another tokenizer fail alone, and say so
            probes = {path: pairs for path, pairs in probes.items() if path not in foreign}
        samples = [pair for pairs in probes.values() for pair in pairs]
        seen = templates.detect(samples, found)
        evidence += seen.lines
        if not seen.tokenizer_ok:
            refused = InputError(
                f"tokenizer {found.name} does not fit these shards: {seen.reason}\n  " + "\n  ".join(seen.lines),
                hint="pass the target model's own tokenizer with --tokenizer",
            )
            if tokenizer is not None:
                raise refused
            return _another_tokenizer(tree, found, refused, template, limits)
        template = template or seen.template
    if template is None and probes:
        evidence.append("no known chat template fits: turns are taken from loss-mask runs, else one block a row")
    return Opened(
        tree=tree, tokenizer=found, template=template, evidence=evidence, shards=tree.shards, limits=limits,
        probed_ids=has_ids,
    )  # fmt: skip


def _another_tokenizer(
    tree: readers.Tree, unfit: Tokenizer, refused: InputError, template: str | None, limits: readers.Limits
) -> Opened:
    """Open the directory with the next of its tokenizers that the evidence speaks for. Raises `refused` without one."""
    for directory in tree.tokenizer_dirs[:MAX_TOKENIZERS]:
        try:
            opened = open_directory(
                tree.root, tokenizer=os.path.join(tree.root, directory), template=template, limits=limits
            )
        except (InputError, UsageError):
            continue
        where = visible(directory)
        opened.evidence.insert(0, f"tokenizer {unfit.name} does not fit; {where} holds another, which does")
        return opened
    raise refused


# What parts documents in a stream of ids without an index. Ends of turns that are also ends of text come last: they are
# used only where no beginning of text occurs.
_BEGINS = ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]", "<｜begin▁of▁sentence｜>", "[gMASK]", "]~!b[")
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<eos>", "[EOS]", "[EOT]", "</s>", "<｜end▁of▁sentence｜>")


def _told_by(tokenizer: Tokenizer | None, limits: readers.Limits) -> readers.Limits:
    """Return limits whose hints say how many ids there are, and which of them begin and end a document."""
    if tokenizer is None or tokenizer.name == "words":
        return limits
    ids = tokenizer.specials
    begins, ends = (tuple(ids[n] for n in names if n in ids) for names in (_BEGINS, _ENDS))
    return replace(limits, hints=replace(limits.hints, n_vocab=tokenizer.n_vocab, begins=begins, ends=ends))


def _stated(evidence: dict[str, Any]) -> list[str]:
    """Return as sentences what files beside the shards, and headerless ids themselves, say."""
    told = {"tokenizer": "the metadata names the tokenizer", "target_model": "the manifest names the target model"}
    lines = [f"{text} {evidence[key]!r}" for key, text in told.items() if evidence.get(key)]
    if size := evidence.get("target_vocab_size"):
        lines.append(f"the target model has {size:,} ids")
    widths = evidence.get("id_widths", {})
    lines += [f"{path}: {why}" for path, why in itertools.islice(widths.items(), PROBE_SHARDS)]
    return lines + ([f"and {len(widths) - PROBE_SHARDS} more such files"] if len(widths) > PROBE_SHARDS else [])


def _probe(tree: readers.Tree, limits: readers.Limits) -> tuple[dict[str, list[tuple[Any, Any]]], bool]:
    """Read a few rows of a few shards of each source and container.

    Returns shard path -> (ids, mask) pairs, and whether ids occur.
    """
    alike: dict[tuple[str, str], list[readers.Shard]] = {}
    for shard in tree.shards:
        alike.setdefault((shard.source, shard.format), []).append(shard)
    probes: dict[str, list[tuple[Any, Any]]] = {}
    chosen: list[readers.Shard] = []
    for shards in alike.values():
        n = min(len(shards), PROBE_SHARDS)
        chosen += (shards[i * (len(shards) - 1) // max(n - 1, 1)] for i in range(n))  # first and last among them
    tasks = [(s.path, _probe_shard, (s, tree.root, limits)) for s in chosen if foreign(s)]
    timeout = min(PROBE_SECONDS, limits.shard_timeout)
    found = dict(workers.each(tasks, 1, timeout=timeout)) if tasks else {}
    for shard in chosen:
        pairs = found[shard.path] if shard.path in found else _probe_shard(shard, tree.root, limits)
        if pairs and not isinstance(pairs, workers.Lost):  # the reader will say what is wrong with a lost one
            probes[shard.path] = pairs
    return probes, bool(probes)


def _probe_shard(shard: readers.Shard, root: str, limits: readers.Limits) -> list[tuple[Any, Any]]:
    records = (r for r in readers.read(Path(root), shard, limits=limits) if isinstance(r, readers.Record))
    some = (r for r in itertools.islice(records, PROBE_ROWS) if r.ids is not None)
    # what the attention mask leaves out is padding, perhaps thousands of ends of turns
    return [(r.ids, r.mask) if r.attention is None else _attended(r) for r in some]


def _no_tokenizer(tree: readers.Tree) -> InputError:
    named = tree.evidence.get("tokenizer") or tree.evidence.get("target_model")
    return InputError(
        f"{tree.root}: the shards hold token ids and no tokenizer lies beside them"
        + (f"; they name {named!r}" if named else ""),
        hint="pass --tokenizer with a model directory, a tiktoken.model, tokenizer.json or a cached tiktoken name",
    )


def _attended(record: readers.Record) -> tuple[Any, Any]:
    from promptkit import templates

    return templates.trim(record.ids, record.mask, record.attention, None, None)  # type: ignore[arg-type]


def _unknown_share(pairs: list[tuple[Any, Any]], tokenizer: Tokenizer) -> float:
    n = sum(len(ids) for ids, _ in pairs)
    return sum(tokenizer.n_unknown(ids) for ids, _ in pairs) / n if n else 0.0


def _found(account: Sequence[readers.FileAccount]) -> str:
    """List what a directory held instead of shards."""
    if not account:
        return "the directory holds no file at all; check the path"
    shown = [f"{visible(a.path)}: {a.status} ({_why(a)})" for a in account[:8]]
    more = f"\n    and {len(account) - 8} more" if len(account) > 8 else ""
    return (
        "found instead:\n    "
        + "\n    ".join(shown)
        + more
        + "\n  give a directory of .jsonl, .arrow, .parquet, .ckpt ..."
    )


def _why(account: readers.FileAccount) -> str:
    rows = [f"{reason}, {n:,} row{'s' * (n != 1)}" for reason, n in sorted(account.row_reasons.items())]
    return "; ".join(x for x in (account.reason, *rows) if x)


# -------------------------------------------------------------------------------------- reading


def all_units(shards: Sequence[readers.Shard]) -> list[list[int]]:
    """Group shard indices into units of work: a big shard alone, small neighbours together."""
    out: list[list[int]] = []
    size = UNIT_BYTES
    for i, shard in enumerate(shards):
        if size + shard.n_bytes > UNIT_BYTES or len(out[-1]) >= UNIT_FILES:
            out.append([])
            size = 0
        out[-1].append(i)
        size += shard.n_bytes
    return out


def collect(
    opened: Opened,
    *,
    sample_size: int,
    seed: int,
    processes: int | None = None,
    limits: readers.Limits | None = None,
    merge_prefixes: bool = False,
    without: Mapping[str, frozenset[int]] | None = None,
    engine: str = "local",
    progress: Progress | None = None,
) -> Summary:
    """Read every row once; return exact counts, the account and the bottom-k sample. Raises InputError at zero rows.

    Rows of `without` (shard -> rows) are skipped(held out), as if the directory did not hold them.
    """
    plan = replace(plan_for(opened, sample_size, seed, limits, merge_prefixes), without=without or {})
    total = Summary()

    last: list[bytes | None] = [None]
    # What is known to be out of the sample need not be sent: memory stays flat.
    jobs = run(summarise, opened, plan, processes, progress, "read", bound=lambda: last[0], engine=engine)
    for _, part in jobs:
        if total.merge(part, sample_size) and sample_size:
            last[0] = total.sample[-1].priority
    total.keep(sample_size)
    refuse_nothing(opened, total)
    return total


def summarise(unit: list[int], shards: list[readers.Shard], plan: Plan, tokenizer: Tokenizer | None) -> Summary:
    """Read the shards `unit` (indices) and return their summary. Pure: no state is kept, nothing is written."""
    total = Summary(bound=plan.bound)
    for index, shard in zip(unit, shards, strict=True):
        part = stable(lambda i=index, s=shard: _summarise_shard(i, s, plan, tokenizer), plan, shard, index)  # type: ignore[misc]
        total.merge(part, plan.sample_size)
    total.keep(plan.sample_size)
    return total


def _summarise_shard(index: int, shard: readers.Shard, plan: Plan, tokenizer: Tokenizer | None) -> Summary:
    out = Summary()
    counts = out.sources.setdefault(shard.source, Counter())
    lengths = out.lengths.setdefault(shard.source, Counter())
    bound = plan.bound or b"\xff" * 17
    for record in rows_of(index, shard, plan, tokenizer, out):
        n = count_row(record, tokenizer, plan, counts)
        lengths[n.bit_length()] += 1
        priority = row_priority(plan.seed, shard.path, record.row)
        if priority < bound:
            out.sample.append(Row(priority, index, packed(record)))
            if len(out.sample) > 2 * plan.sample_size + 1024:
                out.keep(plan.sample_size)
                bound = out.sample[-1].priority
    return out


def row_priority(seed: int, shard: str, row: int) -> bytes:
    """Return the 16 bytes by which rows are drawn: blake2b of seed, relative shard path and row number."""
    key = f"{seed}\0{shard}\0{row}".encode("utf-8", "surrogateescape")
    return hashlib.blake2b(key, digest_size=16).digest()


def rows_of(
    index: int, shard: readers.Shard, plan: Plan, tokenizer: Tokenizer | None, out: Summary
) -> Iterator[readers.Record]:
    """Yield the good rows of a shard, padding off; write its account into `out`.

    With `merge_prefixes`, a row whose ids begin the next row's is skipped: trainers that store one row per assistant
    turn would otherwise count a conversation of k turns k times.
    """
    from promptkit import templates

    entry = readers.FileAccount(path=shard.path, status="read", reason="", rows=0, rows_skipped=0, rows_failed=0)
    reasons: Counter[str] = Counter()
    held: readers.Record | None = None
    held_out = plan.without.get(shard.path, frozenset())
    n_ids = n_unknown = 0
    workers.beat(index)

    def good(record: readers.Record) -> readers.Record:
        entry.rows += 1
        return record

    for item in readers.read(Path(plan.root), shard, limits=plan.limits):
        workers.beat()
        if isinstance(item, readers.Fault):
            if item.row is None:
                entry.status, entry.reason = item.status, item.reason
            elif item.status == "failed":
                entry.rows_failed += 1
                reasons[item.reason] += 1
            else:
                entry.rows_skipped += 1
                reasons[item.reason] += 1
            continue
        record = item
        if record.row in held_out:
            entry.rows_skipped += 1
            reasons["held out"] += 1
            continue
        if record.ids is not None and tokenizer is not None:
            ids, mask = templates.trim(record.ids, record.mask, record.attention, tokenizer, plan.template)
            if ids is not record.ids or record.attention is not None:
                record.ids, record.mask, record.attention = ids, mask, None
            unknown = tokenizer.n_unknown(ids)
            n_ids, n_unknown = n_ids + len(ids), n_unknown + unknown
            if unknown:
                reasons["id outside the tokenizer: row kept and marked"] += 1
        if plan.merge_prefixes and held is not None:
            if _begins(held, record):
                entry.rows_skipped += 1
                reasons[f"prefix of row {record.row}"] += 1
            else:
                yield good(held)
            held = record
        elif plan.merge_prefixes:
            held = record
        else:
            yield good(record)
    if held is not None:
        yield good(held)
    if n_unknown > MAX_UNKNOWN_IDS * n_ids:
        entry.status = "failed"
        entry.reason = f"{n_unknown} of {n_ids} ids are not in the tokenizer: another tokenizer wrote this file?"
    entry.row_reasons = dict(sorted(reasons.items()))
    if entry.status == "read" and not entry.rows and not entry.rows_failed and not entry.rows_skipped:
        entry.status, entry.reason = "skipped", "holds no row"
    out.account[index] = entry


def _begins(shorter: readers.Record, longer: readers.Record) -> bool:
    from promptkit import templates

    if shorter.ids is not None and longer.ids is not None:
        return templates.is_growing_prefix(shorter.ids, longer.ids)
    if shorter.messages and longer.messages and len(shorter.messages) < len(longer.messages):
        return shorter.messages == longer.messages[: len(shorter.messages)]
    return False


def count_row(record: readers.Record, tokenizer: Tokenizer | None, plan: Plan, counts: Counter[str]) -> int:
    """Add one row to the counts; return its length in tokens.

    `tokens` and `supervised_tokens` count stored ids. Rows of text have none; what they would be with this tokenizer
    is counted apart, as `text_tokens` and `text_supervised_tokens`, for the shares by tokens.
    """
    counts["rows"] += 1
    if record.ids is not None:
        counts["tokens"] += len(record.ids)
        if record.mask is not None:
            counts["supervised_tokens"] += int(np.count_nonzero(record.mask))
        return len(record.ids)
    counts["text_rows"] += 1
    if tokenizer is None:
        return 0
    conversation = recover(record, tokenizer, plan.template)
    n = sum(len(i) for i in tokenizer.encode_batch([m["content"] for m in conversation.messages]))
    counts["text_tokens"] += n
    counts["text_supervised_tokens"] += len(tokenizer.encode(response_text(conversation.messages)))
    return n


def packed(record: readers.Record) -> readers.Record:
    """Return a copy that owns narrow arrays, not views that would keep a whole batch alive."""
    ids = record.ids
    if ids is None:
        return record
    unsigned = ids.view(np.uint64)
    wide = len(ids) > 0 and unsigned[unsigned.argmax()] >> 31  # none of any tokenizer's, or negative: shown as it is
    narrow = np.array(ids, np.int64 if wide else np.int32)
    mask = None if record.mask is None else np.array(record.mask, bool)
    r = record  # dataclasses.replace takes ten times as long
    return readers.Record(
        r.row, narrow, mask, r.attention, r.messages, r.tools, r.text, r.id, r.response, r.marks, r.starts
    )


_IO_ERROR = f"cannot be read: {os.strerror(errno.EIO)}"  # as the readers say it; a network disk may mend


def stable(work: Callable[[], Summary], plan: Plan, shard: readers.Shard, index: int) -> Summary:
    """Do `work` on a shard; once more if the file changed meanwhile, twice more where the disk gave an error."""
    for attempt in range(3):
        before = _stamp(plan, shard)
        out = work()
        changed = _stamp(plan, shard) != before
        if not changed and (out.account[index].reason != _IO_ERROR or attempt == 2):
            return out
        if changed and attempt:
            break
    entry = readers.FileAccount(
        path=shard.path, status="failed", reason="changed while reading", rows=0, rows_skipped=0, rows_failed=0
    )
    return Summary(account={index: entry})


def _stamp(plan: Plan, shard: readers.Shard) -> tuple[int, int] | None:
    for path in (os.path.join(plan.root, shard.path), plan.root):
        try:
            stat = os.stat(path)
        except NotADirectoryError:  # the root is itself the shard
            continue
        except OSError:
            return None
        return stat.st_size, stat.st_mtime_ns
    return None


# -------------------------------------------------------------------------------------- processes


def run(
    job: Callable[..., Any],
    opened: Opened,
    plan: Plan,
    processes: int | None,
    progress: Progress | None,
    stage: str,
    *extra: Any,
    units: Sequence[list[int]] | None = None,
    bound: Callable[[], bytes | None] | None = None,
    engine: str = "local",
) -> Iterator[tuple[list[int], Any]]:
    """Run `job` over all units, or those given, and yield (unit, result) as they finish, in no fixed order.

    `bound` is asked for the plan's, each time that a unit is begun; `engine` is a name of `engines`.

    Little that our own readers read is read in this process, unless an engine is asked for. Else a shard whose worker
    dies, or does nothing for the time of `shard_timeout`, is tried once more by itself, then counts as failed; its unit
    is done again without it. Where a machine was lost, nothing tells which shard it was at: the unit is done again in
    halves.
    """
    each = engines.engine(engine)
    work = all_units(opened.shards) if units is None else list(units)
    total = sum(opened.shards[i].n_bytes for unit in work for i in unit)
    done = 0

    def latest() -> Plan:
        return replace(plan, bound=bound()) if bound is not None else plan

    def finished(unit: list[int]) -> None:
        nonlocal done
        done += sum(opened.shards[i].n_bytes for i in unit)
        if progress:
            progress(stage, done, total)

    if progress:
        progress(stage, 0, total)
    if engine == "local" and total < POOL_BYTES and not any(foreign(opened.shards[i]) for unit in work for i in unit):
        for unit in work:
            yield unit, job(unit, [opened.shards[i] for i in unit], latest(), *extra, opened.tokenizer)
            finished(unit)
        return
    tries: Counter[int] = Counter()
    # Big units first: the workers then end evenly.
    work.sort(key=lambda unit: -sum(opened.shards[i].n_bytes for i in unit))
    while work:
        # One by one, as workers take them: the plan's bound falls with what has been read.
        tasks = ((u, job, (u, [opened.shards[i] for i in u], latest(), *extra)) for u in list(work))
        n = min(processes, len(work)) if processes else None
        work = []
        for unit, result in each(tasks, n, (opened.tokenizer,), plan.limits.shard_timeout):
            if not isinstance(result, workers.Lost):
                yield unit, result
                finished(unit)
                continue
            if result.at not in unit and len(unit) > 1:
                work += [unit[: len(unit) // 2], unit[len(unit) // 2 :]]
                continue
            bad = result.at if result.at in unit else unit[0]
            tries[bad] += 1
            at = unit.index(bad)
            work += [part for part in (unit[:at], unit[at + 1 :]) if part]
            if tries[bad] < TRIES:
                work.append([bad])
            else:
                yield [bad], _lost(bad, opened.shards[bad], result.reason)
                finished([bad])


def processes_within(memory: int, processes: int | None = None, sample_size: int = 0) -> int:
    """Return how many worker processes fit in `memory` bytes beside the process that samples and fits.

    Rows of ordinary size are assumed; what one row may ask for is `Limits.record_bytes`. Raises UsageError where not
    even one fits.
    """
    room = memory - OWN_BYTES - sample_size * ROW_BYTES
    if room < WORKER_BYTES:
        least = OWN_BYTES + sample_size * ROW_BYTES + WORKER_BYTES
        raise UsageError(
            f"memory of {memory / 2**20:,.0f} MB: about {least / 2**20:,.0f} MB are needed"
            + (f" for a sample of {sample_size:,} rows" if sample_size else ""),
            hint="allow more" + (", or take a smaller --sample-size" if sample_size else ""),
        )
    return min(processes or os.cpu_count() or 1, room // WORKER_BYTES)


# What was measured, with room to spare: docs/benchmarks.md.
OWN_BYTES, ROW_BYTES, WORKER_BYTES = 300 << 20, 40 << 10, 320 << 20


def foreign(shard: readers.Shard) -> bool:
    """Say whether a library in C++ parses these files: what it does not catch ends the process."""
    return shard.format.startswith(("arrow", "parquet", "litdata"))


def _lost(index: int, shard: readers.Shard, reason: str) -> Summary:
    entry = readers.FileAccount(path=shard.path, status="failed", reason=reason, rows=0, rows_skipped=0, rows_failed=0)
    return Summary(account={index: entry})


# -------------------------------------------------------------------------------------- accounts


def full_account(opened: Opened, summary: Summary) -> list[readers.FileAccount]:
    """Return one entry per file: the shards in order, then all that was not a shard."""
    return [summary.account[i] for i in sorted(summary.account)] + list(opened.tree.account)


def is_lossy(account: Iterable[readers.FileAccount], max_bad_shards: int, max_bad_rows: float) -> bool:
    """Say whether more failed than is allowed: files, or the share of rows. What was skipped does not count."""
    entries = list(account)
    rows = sum(a.rows for a in entries)
    failed = sum(a.rows_failed for a in entries)
    few = failed <= max_bad_rows * max(1, rows + failed)  # NaN is no limit that anything keeps
    return sum(a.status == "failed" for a in entries) > max_bad_shards or not few


def loss_line(account: Iterable[readers.FileAccount]) -> str:
    entries = list(account)
    files = sum(a.status == "failed" for a in entries)
    rows = sum(a.rows_failed for a in entries)
    return f"{files} files and {rows} rows failed, more than allowed; nothing was written"


def source_table(opened: Opened, summary: Summary) -> list[dict[str, Any]]:
    """Return one row of plain values per source, in natural order, with exact counts."""
    table: list[dict[str, Any]] = []
    formats: dict[str, list[str]] = {}
    files: Counter[str] = Counter()
    for shard in opened.shards:
        known = formats.setdefault(shard.source, [])
        files[shard.source] += 1
        if shard.format not in known:
            known.append(shard.format)
    for source in formats:
        counts = summary.sources.get(source, Counter())
        table.append(
            {
                "source": source,
                "formats": formats[source],
                "files": files[source],
                "rows": counts["rows"],
                "tokens": counts["tokens"],
                "supervised_tokens": counts["supervised_tokens"],
                "text_rows": counts["text_rows"],
                "text_tokens": counts["text_tokens"],
                "text_supervised_tokens": counts["text_supervised_tokens"],
            }
        )
    return table


def refuse_nothing(opened: Opened, summary: Summary) -> None:
    """Raise InputError where no row was read, or rows hold ids that the probes did not meet and nothing can decode."""
    if not sum(c["rows"] for c in summary.sources.values()):
        raise InputError(f"{opened.tree.root}: not one row could be read", hint=_found(full_account(opened, summary)))
    words = opened.tokenizer is not None and opened.tokenizer.encoder.identity[0] == "words"
    tokens = sum(c["tokens"] for c in summary.sources.values())
    if words and tokens:
        raise _no_tokenizer(opened.tree)
    if tokens and not opened.probed_ids and opened.template is None:
        opened.evidence.append(
            f"{tokens:,} ids stand in shards among shards of text, which no probe met: their template is not known; "
            "name it with --template, or put them into a directory of their own"
        )


def identity(tokenizer: Tokenizer | None) -> dict[str, Any] | None:
    if tokenizer is None:
        return None
    return {"name": tokenizer.name, "sha256": tokenizer.sha256, "n_vocab": tokenizer.n_vocab}


def plan_for(
    opened: Opened, sample_size: int, seed: int, limits: readers.Limits | None, merge_prefixes: bool = False
) -> Plan:
    return Plan(
        root=opened.tree.root,
        seed=seed,
        sample_size=sample_size,
        template=opened.template,
        limits=replace(limits or opened.limits, hints=opened.limits.hints),
        merge_prefixes=merge_prefixes,
    )


def recover(record: readers.Record, tokenizer: Tokenizer | None, template: str | None) -> Conversation:
    from promptkit import templates

    return templates.recover(record, tokenizer, template)
