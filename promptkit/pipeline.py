"""From a training directory to conversations (`detokenize`), to a description (`inspect`), to a pack (`build`).

    paths -> [Shard] -> summaries -> bottom-k sample -> frame -> Reference -> Pack
             find_shards  collect                       frame_of  fit         pack_rows, write_pack

The mix is read once. Only the sample is decoded; what is said about turns, tools, languages and domains rests on it and
carries its standard error, whereas rows and tokens are counted exactly.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptkit import engines, readers
from promptkit.collect import (
    Opened,
    Plan,
    Progress,
    Summary,
    collect,
    count_row,
    full_account,
    identity,
    is_lossy,
    loss_line,
    open_directory,
    plan_for,
    recover,
    refuse_nothing,
    rows_of,
    run,
    source_table,
    stable,
)  # fmt: skip
from promptkit.conversation import Conversation, canonical
from promptkit.errors import InputError, UsageError
from promptkit.parts import Gathered, gather
from promptkit.parts import work as work_on_parts
from promptkit.registry import suggest

if TYPE_CHECKING:
    from promptkit.holdout import Holdout
    from promptkit.labellers import Labeller
    from promptkit.packing import Drawn
    from promptkit.tokenizers import Tokenizer


@dataclass(frozen=True)
class Inspection:
    """What is in a directory: `sources` and `containers` are plain values, `account` has one entry per file."""

    root: str
    sources: list[dict[str, Any]]
    account: list[readers.FileAccount]
    tokenizer: dict[str, Any] | None
    template: dict[str, Any]
    sample: dict[str, Any] | None
    lossy: bool
    containers: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return the object that `inspect --json` prints."""
        return {"schema_version": 1, **asdict(self)}


def inspect(
    root: str | os.PathLike[str],
    *,
    tokenizer: str | None = None,
    template: str | None = None,
    processes: int | None = None,
    limits: readers.Limits | None = None,
    dtype: str | None = None,
    fields: Mapping[str, str] | None = None,
    max_bad_shards: int = 0,
    max_bad_rows: float = 0.001,
    engine: str = "local",
    progress: Progress | None = None,
) -> Inspection:
    """Say what a training directory holds: each source, its containers, rows, tokens, and one decoded row.

    Reads every row once and decodes one. `engine` says who reads: processes of this machine ("local") or a Ray cluster
    ("ray"); the answer is the same. `dtype` is the type of ids in files without a header ("uint16", ...), `fields`
    maps a field ("messages", "input_ids", "prompt", ...) to the column that holds it where detection is wrong. Raises
    InputError where nothing can be read or the tokenizer is contradicted.
    """
    limits = readers.with_hints(limits, dtype=dtype, fields=fields)
    opened = open_directory(root, tokenizer=tokenizer, template=template, limits=limits)
    summary = collect(
        opened, sample_size=1, seed=0, processes=processes, limits=limits, engine=engine, progress=progress
    )
    from promptkit.containers import containers

    first = summary.sample[0]
    shard = opened.shards[first.shard]
    conversation = recover(first.record, opened.tokenizer, opened.template)
    return Inspection(
        root=str(root),
        sources=source_table(opened, summary),
        account=full_account(opened, summary),
        tokenizer=identity(opened.tokenizer),
        template={"name": opened.template, "evidence": opened.evidence},
        sample={"shard": shard.path, **_output_row(shard, first.record, conversation)},
        lossy=is_lossy(full_account(opened, summary), max_bad_shards, max_bad_rows),
        containers=containers(opened),
    )


@dataclass(frozen=True)
class Detokenized:
    """Where the conversations went, how many, and what was lost on the way."""

    out: str
    rows: int
    sources: list[dict[str, Any]]
    account: list[readers.FileAccount]
    tokenizer: dict[str, Any] | None
    template: dict[str, Any]
    lossy: bool

    def to_json(self) -> dict[str, Any]:
        """Return the object that `detokenize --json` prints."""
        return {"schema_version": 1, **asdict(self)}


def detokenize(
    root: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    tokenizer: str | None = None,
    template: str | None = None,
    sample: int | None = None,
    seed: int = 0,
    processes: int | None = None,
    limits: readers.Limits | None = None,
    dtype: str | None = None,
    fields: Mapping[str, str] | None = None,
    max_bad_shards: int = 0,
    max_bad_rows: float = 0.001,
    strict: bool = False,
    engine: str = "local",
    progress: Progress | None = None,
) -> Detokenized:
    """Write every row of a training directory as a conversation, in shard order, to a .jsonl or .parquet file.

    One row of the output: `source, shard, row, n_tokens, n_supervised, messages` and, where they exist, `tools`,
    `truncated`, `marks`. Rows are never merged. With `sample`, only that many rows, drawn by hash. The file appears
    whole or not at all. `dtype`, `fields` and `engine` are those of `inspect` (a Ray cluster writes beside `out`: all
    its nodes must see that folder). `lossy` says that more was lost than `max_bad_shards` and `max_bad_rows` allow;
    with `strict` nothing is written then and InputError is raised.
    """
    from promptkit.writing import check_writable, temporary_beside

    out = Path(out)
    if out.suffix not in (".jsonl", ".parquet"):
        raise UsageError(
            f"output {out}: the suffix is {out.suffix or 'missing'!r}", hint="name a .jsonl or .parquet file"
        )
    if sample is not None and sample < 1:
        raise UsageError(f"sample is {sample}", hint="give a number of rows above 0, or leave it out for all rows")
    check_writable(out)
    limits = readers.with_hints(limits, dtype=dtype, fields=fields)
    opened = open_directory(root, tokenizer=tokenizer, template=template, limits=limits)
    with temporary_beside(out, directory=True) as parts:
        if sample is None:
            summary, paths = _write_all(
                opened, parts, processes=processes, limits=limits, engine=engine, progress=progress
            )
        else:
            summary = collect(
                opened, sample_size=sample, seed=seed, processes=processes, limits=limits, engine=engine,
                progress=progress,
            )  # fmt: skip
            paths = [_write_sample(opened, summary, parts)]
        account = full_account(opened, summary)
        lossy = is_lossy(account, max_bad_shards, max_bad_rows)
        if lossy and strict:
            raise InputError(
                loss_line(account), hint="see `promptkit inspect`; leave out --strict to keep what is good"
            )
        rows = _publish_rows(paths, out)
    return Detokenized(
        out=str(out),
        rows=rows,
        sources=source_table(opened, summary),
        account=account,
        tokenizer=identity(opened.tokenizer),
        template={"name": opened.template, "evidence": opened.evidence},
        lossy=lossy,
    )


@dataclass(frozen=True)
class Build:
    """Paths of what was written, the account of what was read, and the pack's own score."""

    reference: str
    pack: str
    report: str
    account: list[readers.FileAccount]
    sources: list[dict[str, Any]]
    pack_score: dict[str, Any]
    name: str
    version: str
    content_hash: str
    in_training: int  # prompts of the pack that the training mix holds
    personal_data: dict[str, Any]
    notes: list[str]
    lossy: bool
    holdout: str | None = None  # holdout.jsonl: rows that the next training run must leave out
    withheld: str | None = None  # what was chosen and may not be shared

    def to_json(self) -> dict[str, Any]:
        """Return the object that `build --json` prints."""
        return {"schema_version": 1, **asdict(self)}


def build(
    root: str | os.PathLike[str] | Gathered,
    *,
    pool: Sequence[str | os.PathLike[str]] = (),
    size: int = 200,
    name: str | None = None,
    version: str | None = None,
    out: str | os.PathLike[str] = "promptkit-out",
    seed: int = 0,
    weight: str = "rows",
    embedder: Any = "lsa",
    tokenizer: str | None = None,
    template: str | None = None,
    turns: str | None = None,
    sample_size: int = 20_000,
    processes: int | None = None,
    limits: readers.Limits | None = None,
    dtype: str | None = None,
    fields: Mapping[str, str] | None = None,
    max_bad_shards: int = 0,
    max_bad_rows: float = 0.001,
    strict: bool = False,
    max_leak: float | None = None,
    holdout: float | None = None,
    keep_personal_data: bool = False,
    licences: Mapping[str, str] | None = None,
    redistributable: bool = False,
    labeller: str | Labeller | None = None,
    domains: Mapping[str, str] | None = None,
    parts: str | os.PathLike[str] | None = None,
    device: str = "auto",
    threads: int = 1,
    engine: str = "local",
    progress: Progress | None = None,
) -> Build:
    """Read a training directory; write its reference, a representative pack of `size` prompts, and a report.

    The pack is drawn from the mix itself (then its rows are marked in_training) or, with `pool`, from files of prompts
    (then those that the sample holds, or nearly so, are). `weight` says whether the mix is represented by rows or by
    supervised tokens. `dtype`, `fields` and `engine` are those of `inspect`. `max_leak` is the highest share of a pool
    prompt's n-grams that training may hold. With `holdout`, that fraction of the rows and their near-twins are written
    to holdout.jsonl, the reference is fitted without them and the pack is drawn from them: unseen by a drafter whose
    training leaves them out. Prompts that seem to hold secrets or personal data are not drawn unless
    `keep_personal_data`. `licences` maps a source to the SPDX expression of its rows; `redistributable` takes rows that
    may not be shared out of the pack and says beside it which. `labeller` (a callable, or "module:callable" to import)
    says what domain a row is instead of promptkit, and `domains` maps a source to the domain of all its rows, which
    wins (`labellers`). `device` is where an embedding model runs, as in `reference.fit`; over Ray it runs in actors of
    the cluster. `parts` is a folder that keeps
    what was read of each shard, so that a build that was stopped goes on where it was; `root` may be what
    `parts.gather` found there instead (`merge`). Everything is written beside its target and renamed at the end: a
    build that fails leaves what was there before.

    Raises UsageError (options, output), InputError (nothing readable, wrong tokenizer, unusable pool), ResourceError
    (disk, memory).
    """
    import scipy.linalg  # noqa: F401  brings a BLAS of its own, which threadpool_limits must find loaded
    from threadpoolctl import threadpool_limits

    from promptkit import domains as built_in
    from promptkit import gpu, labellers, pack, packing, reference, requests, scoring, versions, workers, writing
    from promptkit import holdout as holding
    from promptkit import licences as licensing
    from promptkit.frames import frame_of

    if size < 1:
        raise UsageError(f"size is {size}", hint="give a number of prompts above 0")
    _check_sample(sample_size, seed)
    gpu.asked(device)  # refused now, and not when all has been read
    if weight not in ("rows", "tokens"):
        raise UsageError(f"weight is {weight!r}", hint="known: rows, tokens")
    if version is not None:
        versions.parse_version(version)
    if turns is not None and turns not in requests.TURNS:
        raise UsageError(f"turns is {turns!r}", hint=f"known: {', '.join(requests.TURNS)}")
    limits = readers.with_hints(limits, dtype=dtype, fields=fields)
    out = Path(out)
    packing.check_pool(pool, max_leak, holdout=holdout is not None)
    if holdout is not None:
        holding.check_fraction(holdout)
    licences = {source: licensing.check(x, f"licence of {source}") for source, x in sorted((licences or {}).items())}
    label, labeller_name = labellers.of(labeller)
    domains = labellers.check(domains, own_names=label is not None)
    gathered = None if isinstance(root, (str, os.PathLike)) else root
    if holdout is not None and (gathered or parts):
        raise UsageError(
            "a holdout and parts were given: which rows are held out shows only when all rows have been compared",
            hint="build on one machine without parts, or leave --holdout out",
        )
    engines.engine(engine)
    if holdout is not None and engine != "local":
        raise UsageError(
            f"a holdout and the engine {engine}: near-twins of held rows are found on one machine",
            hint="leave --engine or --holdout out",
        )
    root = gathered.root if gathered else os.fspath(root)  # type: ignore[arg-type]
    name = pack.check_name(name or pack.name_from(Path(root).resolve().name))
    # BLAS adds in another order on another number of threads, and the bytes would differ with it.
    with writing.only_one(out), threadpool_limits(threads):
        if gathered:
            opened = gathered.opened
        else:
            opened = open_directory(root, tokenizer=tokenizer, template=template, limits=limits)
        _refuse_unknown_sources("licence", licences, opened, pool)
        _refuse_unknown_sources("domain", domains, opened, pool)
        held = None
        if holdout is not None:
            held = holding.hold(
                opened, holdout, size=size, sample_size=sample_size, seed=seed, processes=processes, limits=limits,
                progress=progress,
            )  # fmt: skip
        if parts is not None and not gathered:
            work_on_parts(
                opened, plan_for(opened, sample_size, seed, limits, True), parts, processes=processes, engine=engine,
                progress=progress,
            )  # fmt: skip
            gathered = gather(parts)
            opened = gathered.opened
        summary = gathered.summary if gathered else collect(
            opened, sample_size=sample_size, seed=seed, processes=processes, limits=limits,
            merge_prefixes=True, without=held.rows if held else None, engine=engine, progress=progress,
        )  # fmt: skip
        account = full_account(opened, summary)
        lossy = is_lossy(account, max_bad_shards, max_bad_rows)
        if lossy and strict:
            raise InputError(
                loss_line(account), hint="see `promptkit inspect`; leave out --strict to keep what is good"
            )
        frame = frame_of(opened, summary.sample, processes=processes, progress=progress)
        summary.sample = []  # decoded now; the ids need not stay in memory
        frame, notes = _comparable(frame)
        workers.trim()
        held_frame = None if held is None else frame_of(opened, held.pool, processes=processes, progress=progress)
        recipe = {
            "promptkit_version": _version(),
            "seed": seed,
            "weight": weight,
            "embedder": embedder if isinstance(embedder, str) else type(embedder).__name__,
            "sample_size": sample_size,
            "turns": turns,
            "size": size,
            "template": opened.template,
            "tokenizer": identity(opened.tokenizer),
            "evidence": opened.evidence,
            **({"dtype": dtype} if dtype else {}),
            **({"fields": dict(fields)} if fields else {}),
            **({"labeller": labeller_name} if labeller_name else {}),
            **({"domains": domains} if domains else {}),
            **({"holdout": _holdout_recipe(held, holdout, opened)} if held and holdout else {}),
        }
        sources = source_table(opened, summary)
        told = [asdict(a) for a in account]
        account_hash = hashlib.sha256(canonical(told)).hexdigest()
        counts = {"sources": sources, "account_sha256": account_hash, "lengths": _lengths(summary)}
        assert opened.tokenizer is not None  # open_directory finds one, builds one or raises
        if progress:
            progress("label", 0, len(frame))
        labels, of_domains = built_in.of_rows(
            *(frame[name].to_list() for name in ("text", "messages", "tools")), processes=processes
        )
        with writing.temporary_beside(out / "build", directory=True) as room:
            # What was said and done is most of the bytes and seldom needed: it waits on the disk.
            apart = room / "conversations.arrow"
            reference.write_arrow(frame.select(reference.CONVERSATION), apart)
            frame = frame.drop(reference.CONVERSATION)
            workers.trim()
            fitted = reference.fit(
                frame, tokenizer=opened.tokenizer, counts=counts, recipe=recipe, template=opened.template,
                embedder=embedder, weight=weight, seed=seed, label=label or labels, by_source=domains,
                masses=of_domains, conversations=lambda: reference.map_arrow(apart), device=device, threads=threads,
                spread=engines.spread(engine, processes), progress=progress,
            )  # fmt: skip
            by_domain = {row["source"]: row for row in fitted.sources.to_dicts()}
            for s in sources:
                s |= {key: by_domain.get(s["source"], {}).get(key) for key in ("domain", "domain_share", "unsure")}
            del summary, frame, labels, of_domains
            workers.trim()
            # From here on the reference is what was saved: what of it is not needed takes no memory.
            scoring.learn(fitted).save(room / "reference")
            del fitted
            gc.collect()  # a reference and its embedder know each other
            workers.trim()
            saved = reference.load_reference(
                room / "reference", tokenizer=opened.tokenizer,
                embedder=None if isinstance(embedder, str) else embedder, device=device,
            )  # fmt: skip
            drawn = packing.pack_rows(
                saved, pool=pool, held=held_frame, size=size, seed=seed, turns=turns, max_leak=max_leak,
                keep_personal_data=keep_personal_data, licences=licences, redistributable=redistributable,
                label=label, by_source=domains, progress=progress,
            )  # fmt: skip
            opened.tokenizer.forget()
            workers.trim()
            if progress:
                progress("write", 0, None)
            chosen_with = {"licences": licences} if licences else {}
            built, places = _write_rest(
                room, out, name, version, saved, drawn, opened, held, sources=sources, account=account, told=told,
                notes=notes + drawn.notes, lossy=lossy, chosen_with=chosen_with,
            )  # fmt: skip
            del saved, drawn  # Windows moves no file that is mapped
            for part, place in places.items():
                writing.publish(room / part, place)
            return built


def work(
    root: str | os.PathLike[str],
    *,
    parts: str | os.PathLike[str],
    worker: tuple[int, int],
    seed: int = 0,
    sample_size: int = 20_000,
    tokenizer: str | None = None,
    template: str | None = None,
    processes: int | None = None,
    limits: readers.Limits | None = None,
    dtype: str | None = None,
    fields: Mapping[str, str] | None = None,
    verify_source: bool = False,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Read the share of worker I of N (`worker`, I from 0) of a training directory into the folder `parts`.

    Any number of machines may do this at once, or one after the other; `merge` then builds what `build` would have
    built. What is done already is not done again: with `verify_source` files are the same if their bytes are, else if
    path, size and modification time are. Returns how many units of work were done now, and how many were found done.
    """
    _check_sample(sample_size, seed)
    limits = readers.with_hints(limits, dtype=dtype, fields=fields)
    opened = open_directory(root, tokenizer=tokenizer, template=template, limits=limits)
    return work_on_parts(
        opened, plan_for(opened, sample_size, seed, limits, True), parts, worker=worker, processes=processes,
        verify_source=verify_source, progress=progress,
    )  # fmt: skip


def merge(parts: str | os.PathLike[str], **options: Any) -> Build:
    """Build from what workers left in the folder `parts`: the same bytes as one `build` of the directory.

    `options` are those of `build` that say what is fitted, chosen and written; how the directory is read, the seed and
    the size of the sample are the workers'. The directory itself need not be there.
    """
    gathered = gather(parts)
    return build(
        gathered, seed=gathered.plan.seed, sample_size=gathered.plan.sample_size, dtype=gathered.dtype,
        fields=gathered.fields or None, **options,
    )  # fmt: skip


def _check_sample(sample_size: int, seed: int) -> None:
    if sample_size < 1:
        raise UsageError(f"sample size is {sample_size}", hint="give a number of rows above 0; the default is 20000")
    if not 0 <= seed < 2**32:
        raise UsageError(f"seed is {seed}", hint="give a number from 0 to 4294967295")


def _refuse_unknown_sources(
    what: str, given: Mapping[str, str], opened: Opened, pool: Sequence[str | os.PathLike[str]]
) -> None:
    """Raise UsageError for a source that is not there: a misspelling. Pools may name any source."""
    known = list(dict.fromkeys(s.source for s in opened.shards))
    for source in given:
        if source not in known and not pool:
            raise UsageError(f"{what} of {source!r}: no such source", hint=suggest(source, known))


def _holdout_recipe(held: Holdout, fraction: float, opened: Opened) -> dict[str, Any]:
    """Return what a manifest says of the holdout: no floats, and the hash of the file that must be left out."""
    return {
        "fraction_u6": round(fraction * 1e6),
        "drawn": held.n_drawn,
        "near_twins": held.n_twins,
        "sha256": hashlib.sha256(held.lines(opened.shards)).hexdigest(),
    }


def _comparable(frame: Any) -> tuple[Any, list[str]]:
    """Leave out rows that hold no text to compare; say how many."""
    import polars as pl

    kept = frame.filter(pl.col("text").str.strip_chars().str.len_bytes() > 0)
    lost = len(frame) - len(kept)
    if not len(kept):
        raise InputError(
            "no sampled row holds text", hint="look at a row with `promptkit inspect`; is the tokenizer the right one?"
        )
    return kept, [f"{lost} sampled rows hold no text and are left out"] if lost else []


def _lengths(summary: Summary) -> dict[str, dict[str, int]]:
    """Return, per source, rows by the bit length of their token count ("9": 256 to 511 tokens), summed exactly."""
    return {source: {str(bits): n for bits, n in sorted(c.items())} for source, c in sorted(summary.lengths.items())}


def _inputs(opened: Opened, account: Sequence[readers.FileAccount], account_hash: str) -> dict[str, Any]:
    """Return what was read per source and container, and the hash of the full account that lies beside the pack."""
    where = {s.path: s for s in opened.shards}
    table: dict[tuple[str, str], Counter[str]] = {}
    for a in account:
        if a.path in where:
            counts = table.setdefault((where[a.path].source, where[a.path].format), Counter())
            counts.update(files=1, rows=a.rows, rows_skipped=a.rows_skipped, rows_failed=a.rows_failed)
            counts["files_failed"] += a.status == "failed"
    rows = [{"source": s, "format": f, **dict(sorted(c.items()))} for (s, f), c in sorted(table.items())]
    return {"containers": rows, "account_sha256": account_hash}


def _write_rest(
    room: Path,
    out: Path,
    name: str,
    version: str | None,
    fitted: Any,
    drawn: Drawn,
    opened: Opened,
    held: Holdout | None,
    *,
    sources: list[dict[str, Any]],
    account: list[readers.FileAccount],
    told: list[dict[str, Any]],
    notes: list[str],
    lossy: bool,
    chosen_with: dict[str, Any],
) -> tuple[Build, dict[str, Path]]:
    """Write the rest into `room`, where the reference is; return the place of each part of it, too."""
    from promptkit import pack, report

    rows = drawn.rows
    in_training = sum(r["in_training"] for r in rows)
    pack_score = {k: v for k, v in drawn.score.to_json().items() if k != "prompts"}
    pack_score["reference"] = {"path": str(out / "reference"), "fingerprint": fitted.fingerprint}
    content = pack.content_hash(rows)
    recipe = {**fitted.recipe, "personal_data": drawn.personal_data, **chosen_with}
    if drawn.withheld:
        recipe["withheld"] = {
            "rows": len(drawn.withheld),
            "whole_content_hash": pack.content_hash([*rows, *drawn.withheld]),
        }
    fields: dict[str, Any] = {
        "inputs": _inputs(opened, account, fitted.counts["account_sha256"]),
        "reference": {"fingerprint": fitted.fingerprint},
        "tokenizer": identity(opened.tokenizer),
        "template": {"name": opened.template, "kwargs": {}},
        "recipe": recipe,
        "score": _score_summary(pack_score),
        "known_limits": _limits(in_training, held, notes),
    }
    version = pack.next_version(out / "packs" / name, rows, wanted=version, fields=fields)
    packed = pack.write_pack(rows, room / "packs", name=name, version=version, fields=fields)
    report.render(score=drawn.score, reference=fitted, pack=pack.load_pack(packed), out=room / "report.html")
    beside = {"account": told, "sources": sources, "notes": notes}
    (room / "account.json").write_bytes(canonical(beside) + b"\n")
    places = {
        "reference": out / "reference",
        f"packs/{name}/{version}": out / "packs" / name / version,
        "report.html": out / "report.html",
        "account.json": out / f"build-{name}-{version}.json",
    }
    if held is not None:
        (room / "holdout.jsonl").write_bytes(held.lines(opened.shards))
        places["holdout.jsonl"] = out / "holdout.jsonl"
    if drawn.withheld:
        left = {
            "pack": f"{name}@{version}+{content}",
            **recipe["withheld"],
            "how": "build without redistributable, from the same training data with the same recipe",
            "recipe": recipe,
            "withheld": [{k: v for k, v in r.items() if k not in ("messages", "tools")} for r in drawn.withheld],
        }
        (room / "withheld.json").write_bytes(canonical(left) + b"\n")
        places["withheld.json"] = out / f"withheld-{name}-{version}.json"
    built = Build(
        reference=str(out / "reference"),
        pack=str(out / "packs" / name / version),
        report=str(out / "report.html"),
        account=account,
        sources=sources,
        pack_score=pack_score,
        name=name,
        version=version,
        content_hash=content,
        in_training=in_training,
        personal_data=drawn.personal_data,
        notes=notes,
        lossy=lossy,
        holdout=str(places["holdout.jsonl"]) if held is not None else None,
        withheld=str(places["withheld.json"]) if drawn.withheld else None,
    )
    return built, places


def _score_summary(score: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a pack's score that its manifest keeps, in 1e-6 units: a manifest holds no floats."""
    kept = ("n", "distance", "noise_floor", "ratio", "p_value", "fidelity", "coverage", "mix_overlap", "domain_overlap")
    out: dict[str, Any] = {"verdict_code": score["verdict_code"]}
    for key in kept:
        value = score[key]
        out[key if isinstance(value, int) else f"{key}_u6"] = (
            value if isinstance(value, int | None) else round(value * 1e6)
        )
    return out


def _limits(in_training: int, held: Holdout | None, notes: list[str]) -> list[str]:
    told = ["a prompt score ranks sets and mixes well and single prompts poorly; it promises no acceptance length"]
    if in_training:
        told.append(f"{in_training} prompts are rows of the training mix: the drafter has seen them, which flatters it")
    if held is not None:
        told.append("not in training provided the next training run excludes the rows of holdout.jsonl")
    return told + notes


def _version() -> str:
    from promptkit import __version__

    return __version__


# -------------------------------------------------------------------------------------- writing conversations


def _output_row(shard: readers.Shard, record: readers.Record, conversation: Conversation) -> dict[str, Any]:
    """Return the row of `detokenize`: stable keys first, optional ones only where they say something."""
    row: dict[str, Any] = {
        "source": shard.source,
        "shard": shard.path,
        "row": record.row,
        "n_tokens": conversation.n_tokens,
        "n_supervised": conversation.n_supervised,
        "messages": conversation.messages,
    }
    if conversation.tools is not None:
        row["tools"] = conversation.tools
    if conversation.truncated:
        row["truncated"] = True
    if conversation.marks:
        row["marks"] = list(conversation.marks)
    return row


def _line(row: dict[str, Any]) -> bytes:
    # Key order is the documented one, so no sorting; text is written as it is, not as \u escapes.
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def _write_unit(
    unit: list[int], shards: list[readers.Shard], plan: Plan, parts: str, tokenizer: Tokenizer | None
) -> Summary:
    """Write the conversations of a unit to a part file named by its first shard; return its counts and account."""
    total = Summary()
    path = Path(parts) / f"{unit[0]:08d}.jsonl"
    # A name of its own: one who was taken for dead may still be writing the same rows.
    half = path.with_suffix(f".{secrets.token_hex(6)}")
    with open(half, "wb") as f:
        for index, shard in zip(unit, shards, strict=True):
            start = f.tell()

            def work(index: int = index, shard: readers.Shard = shard, start: int = start) -> Summary:
                f.seek(start)
                f.truncate()
                out = Summary()
                counts = out.sources.setdefault(shard.source, Counter())
                for record in rows_of(index, shard, plan, tokenizer, out):
                    count_row(record, tokenizer, plan, counts)
                    f.write(_line(_output_row(shard, record, recover(record, tokenizer, plan.template))))
                return out

            total.merge(stable(work, plan, shard, index), 0)
            if total.account[index].reason == "changed while reading":
                f.seek(start)
                f.truncate()
    os.replace(half, path)
    return total


def _write_all(
    opened: Opened,
    parts: Path,
    *,
    processes: int | None,
    limits: readers.Limits | None,
    engine: str,
    progress: Progress | None,
) -> tuple[Summary, list[Path]]:
    total = Summary()
    paths: list[Path] = []
    plan = plan_for(opened, 0, 0, limits)
    for unit, part in run(_write_unit, opened, plan, processes, progress, "read", str(parts), engine=engine):
        total.merge(part, 0)
        if part.sources:  # else its file was lost, and there is none
            paths.append(parts / f"{unit[0]:08d}.jsonl")
    refuse_nothing(opened, total)
    return total, sorted(paths)


def _write_sample(opened: Opened, summary: Summary, parts: Path) -> Path:
    path = parts / "sample.jsonl"
    with open(path, "wb") as f:
        for row in sorted(summary.sample, key=lambda r: (r.shard, r.record.row)):
            conversation = recover(row.record, opened.tokenizer, opened.template)
            f.write(_line(_output_row(opened.shards[row.shard], row.record, conversation)))
    return path


def _publish_rows(paths: list[Path], out: Path) -> int:
    """Join the part files into `out`, which appears whole or not at all; return the number of rows."""
    import shutil

    from promptkit.writing import temporary_beside

    rows = 0
    with temporary_beside(out) as temporary:
        if out.suffix == ".jsonl":
            with open(temporary, "wb") as f:
                for path in paths:
                    with open(path, "rb") as part:
                        rows += sum(1 for _ in part)
                        part.seek(0)
                        shutil.copyfileobj(part, f, 1 << 20)
        else:
            rows = _write_parquet(paths, temporary)
    return rows


def _write_parquet(paths: list[Path], out: Path) -> int:
    """Write part files as Parquet; `messages`, `tools` and `marks` are JSON strings, whose schema never drifts."""
    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = ("source", "shard", "messages", "tools", "marks")
    schema = pa.schema(
        [
            ("source", pa.string()),
            ("shard", pa.string()),
            ("row", pa.int64()),
            ("n_tokens", pa.int64()),
            ("n_supervised", pa.int64()),
            ("messages", pa.string()),
            ("tools", pa.string()),
            ("truncated", pa.bool_()),
            ("marks", pa.string()),
        ]
    )
    n = 0
    with pq.ParquetWriter(out, schema, compression="zstd", write_page_checksum=True) as writer:
        batch: list[dict[str, Any]] = []

        def flush() -> None:
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            batch.clear()

        for path in paths:
            with open(path, "rb") as f:
                for line in f:
                    row = orjson.loads(line)
                    for key in text[2:]:
                        if key in row:
                            row[key] = orjson.dumps(row[key]).decode()
                    batch.append({**row, "truncated": bool(row.get("truncated"))})
                    n += 1
                    if len(batch) == 1000:
                        flush()
        flush()
    return n
