"""`promptkit inspect` and `promptkit detokenize`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import click

from promptkit.errors import UsageError
from promptkit.visible import count, visible

from .app import SEED, shared
from .console import Progress, Talk, snippet, some

F = TypeVar("F", bound=Callable[..., Any])
# Caps of what one file may ask for (readers.Limits).
CAPS = {
    "record_bytes": "Most bytes of one row (default 64 MiB).",
    "inflate_ratio": "Most bytes that one packed byte may become (default 200).",
    "inflate_bytes": "Most bytes that one file may unpack to (default 64 GiB).",
    "nesting": "Deepest JSON value (default 256).",
    "shard_timeout": "Seconds without progress after which a file fails (default 600).",
}
SHOWN = 20  # files listed in a table; --json lists all


def _fields(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    """Turn FIELD=COLUMN options into a mapping; the library checks the names."""
    out: dict[str, str] = {}
    for pair in pairs:
        field, equals, column = pair.partition("=")
        if not equals or field in out:
            raise UsageError(f"--map {pair}: not FIELD=COLUMN, or a field twice", hint="write --map messages=dialog")
        out[field] = column
    return out


def _bytes(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Turn 512M, 4G or 4GiB into bytes."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", value.strip(), re.I)
    if not found:
        raise UsageError(f"--memory {value}: no size", hint="write 4G or 1500M")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def reading_options(command: F) -> F:
    """Add the options of every command that reads a training directory; caps reach the command as `limits`."""

    @wraps(command)
    def limited(*args: Any, **options: Any) -> Any:
        from promptkit.readers import Limits

        given = {name: options.pop(name) for name in CAPS}
        if (memory := options.pop("memory")) is not None:
            from promptkit.collect import processes_within

            sample = options.get("sample_size") or 0
            options["processes"] = processes_within(memory, options["processes"], sample)
        return command(*args, limits=Limits(**{k: v for k, v in given.items() if v is not None}), **options)

    caps = [
        click.option(f"--{name.replace('_', '-')}", type=click.IntRange(1), metavar="N", help=text)
        for name, text in reversed(CAPS.items())
    ]
    wrapped = cast(F, limited)
    for option in (
        *caps,
        click.option(
            "--max-bad-rows",
            type=click.FloatRange(0, 1),
            default=0.001,
            show_default=True,
            help="Share of rows that may fail.",
        ),
        click.option(
            "--max-bad-shards", type=click.IntRange(0), default=0, show_default=True, help="Files that may fail."
        ),
        click.option(
            "--map",
            "fields",
            multiple=True,
            metavar="FIELD=COLUMN",
            callback=_fields,
            help="Read FIELD (messages, input_ids, prompt, ...) from COLUMN; repeatable.",
        ),
        click.option(
            "--dtype", help="Type of ids in files without a header (uint16, uint32, ...); default: by evidence."
        ),
        click.option(
            "--memory", metavar="SIZE", callback=_bytes, help="Use no more processes than fit in this, for example 4G."
        ),
        click.option(
            "--engine", default="local", show_default=True, metavar="NAME",
            help="Who reads: local processes, or ray (the cluster of RAY_ADDRESS, else one started here).",
        ),
        click.option("--processes", type=click.IntRange(1), help="Worker processes (default: one per core)."),
        click.option("--template", help="Chat template of the ids; default: by evidence."),
        click.option(
            "--tokenizer",
            help="Model directory, tiktoken.model, tokenizer.json or tiktoken name; default: found nearby.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped


@click.command(
    "inspect",
    epilog="""\b
Example:
  promptkit inspect /data/eagle3/synth_100k""",
)
@click.argument("directory")
@reading_options
@shared
def inspect_command(talk: Talk, directory: str, **options: Any) -> int:
    """Say what a training directory holds: sources, rows, tokens, tokenizer, template, one decoded row.

    Every row is read and every file is accounted for: read, skipped or failed, and why.
    """
    from promptkit import pipeline

    with Progress(talk) as progress:
        found = pipeline.inspect(directory, progress=progress, **options)
    if talk.json:
        talk.document(found.to_json())
    else:
        show_sources(talk, found.sources)
        talk.line()
        show_tokenizer(talk, found.tokenizer, found.template, ids=any(s["tokens"] for s in found.sources))
        show_containers(talk, getattr(found, "containers", ()))
        if found.sample:
            show_sample(talk, found.sample)
        show_account(talk, found.account)
    code = lost(talk, found)
    talk.next("promptkit", "build", "--from", directory, note="a reference, a prompt pack and a report")
    return code


@click.command(
    "detokenize",
    epilog="""\b
Examples:
  promptkit detokenize /data/mix -o rows.jsonl
  promptkit detokenize /data/mix -o sample.parquet --sample 1000""",
)
@click.argument("directory")
@click.option("-o", "--out", required=True, metavar="FILE", help="A .jsonl or .parquet file to write.")
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Only N rows, drawn by hash of (shard, row).")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of the sample.")
@click.option("--strict", is_flag=True, help="Write nothing when more is lost than allowed.")
@reading_options
@shared
def detokenize_command(talk: Talk, directory: str, out: str, **options: Any) -> int:
    """Write every training row as a conversation, in shard order; rows are never merged.

    A run that loses files or rows writes what is good, prints the account and exits 4.
    """
    from promptkit import pipeline

    with Progress(talk) as progress:
        done = pipeline.detokenize(directory, out, progress=progress, **options)
    if talk.json:
        talk.document(done.to_json())
    else:
        show_sources(talk, done.sources)
        talk.line()
        show_tokenizer(talk, done.tokenizer, done.template, ids=any(s["tokens"] for s in done.sources))
        show_account(talk, done.account)
        talk.line()
        talk.line(f"{done.rows:,} rows -> {done.out}", paste=True)
    code = lost(talk, done)
    talk.next("promptkit", "build", "--from", directory, note="a reference, a prompt pack and a report")
    return code


# -- what the reading commands and build show alike ----------------------------------------------------------------


def show_sources(talk: Talk, sources: list[dict[str, Any]]) -> None:
    rows = [
        [
            s["source"],
            listed(s.get("formats") or ()),
            count(s.get("files")),
            count(s["rows"]),
            "(text)" if s.get("text_rows") and not s["tokens"] else count(s["tokens"]),
            count(s["supervised_tokens"]),
        ]
        for s in sources
    ]
    if len(rows) > 1:
        totals = [sum(s.get(k) or 0 for s in sources) for k in ("files", "rows", "tokens", "supervised_tokens")]
        rows.append(["all", "", *map(count, totals)])
    talk.table(["source", "format", ">files", ">rows", ">tokens", ">supervised"], rows, wide="source")


def listed(formats: Sequence[str]) -> str:
    """The first few, so that the numbers beside them keep their room."""
    more = len(formats) - FORMATS
    return ", ".join(formats[:FORMATS]) + (f", {more} more" if more > 0 else "")


FORMATS = 3


def show_tokenizer(talk: Talk, tokenizer: dict[str, Any] | None, template: dict[str, Any], *, ids: bool = True) -> None:
    if tokenizer is None:
        talk.pair("tokenizer", "none (no shard holds ids)")
    else:
        talk.pair("tokenizer", f"{tokenizer['name']}, {tokenizer['n_vocab']:,} ids, sha256 {tokenizer['sha256'][:12]}")
    evidence = template.get("evidence")
    lines = evidence.get("lines", []) if isinstance(evidence, dict) else getattr(evidence, "lines", evidence) or []
    without = "none known: turns come from loss masks, or a row is one blob" if ids else "none needed: no row holds ids"
    talk.pair("template", template.get("name") or without)
    for text in [lines] if isinstance(lines, str) else lines:
        talk.pair("", f"- {text}")


KEYS = 8  # columns shown of a container; --json lists all


def show_containers(talk: Talk, containers: Iterable[dict[str, Any]]) -> None:
    """Print for each source and container its columns, its mask, its template and the beginning of one row."""
    for c in containers:
        talk.heading(f"{c['source']}, {c['format']}")
        keys = [f"{k['name']} {k['type']}" for k in c["keys"]]
        more = [f"and {len(keys) - KEYS} more"] if len(keys) > KEYS else []
        talk.pair("  columns", "; ".join([*keys[:KEYS], *more]) or "not stated")
        if mask := c.get("mask"):
            field = f"{mask['field']}: " if mask["field"] else ""
            n = mask["runs_per_row"]
            runs = f"{mask['supervised_share']:.1%} supervised, {n:g} run{'s' * (n != 1)} a row"
            talk.pair("  mask", field + "; ".join(x for x in (runs, mask["convention"]) if x))
        if c.get("template"):
            talk.pair("  template", f"{c['template']}, {c['template_share']:.1%} of its turn markers in place")
        messages = (c["sample"] or {}).get("messages") or ()
        width = min(talk.out.width, 100) - 22
        for label, m in zip(("  one row", "", ""), messages, strict=False):
            text = m["content"] or m.get("reasoning") or "(a tool call)"
            talk.pair(label, f"{m['role']:<10} {snippet(text, width)}")


def show_sample(talk: Talk, sample: dict[str, Any]) -> None:
    talk.heading(f"one row: {snippet(sample['shard'], 50)}, row {sample['row']}")
    width = min(talk.out.width, 100) - 12
    for message in sample["messages"][:6]:
        text = message["content"] or message.get("reasoning") or "(a tool call)"
        talk.line(f"{message['role']:<10} {snippet(text, width)}")
    if len(sample["messages"]) > 6:
        talk.line(f"           and {len(sample['messages']) - 6} more turns")


def show_account(talk: Talk, account: Iterable[Any]) -> None:
    """Print what became of the files: totals, every failure (up to a limit, said), skipped ones by reason."""
    entries = list(account)
    by_status = Counter(a.status for a in entries)
    rows = {k: sum(getattr(a, k) or 0 for a in entries) for k in ("rows", "rows_skipped", "rows_failed")}
    talk.line()
    talk.pair("files", ", ".join(f"{by_status[k]:,} {k}" for k in ("read", "skipped", "failed")))
    talk.pair("rows", f"{rows['rows']:,} read, {rows['rows_skipped']:,} skipped, {rows['rows_failed']:,} failed")
    failed = [a for a in entries if a.status == "failed" or a.rows_failed]
    if failed:
        talk.heading("lost")
        for a in failed[:SHOWN]:  # a path may be longer than a line: it stands alone, its reason below
            what = "whole file" if a.status == "failed" and not a.rows else some(a.rows_failed, "row")
            what += f", and {a.rows_skipped:,} skipped" if a.rows_failed and a.rows_skipped else ""
            reasons = "; ".join(f"{r} ({n:,})" for r, n in sorted(a.row_reasons.items())) if a.rows_failed else ""
            talk.line(f"  {visible(a.path)}", paste=True)
            talk.pair("", f"{what}: {'; '.join(x for x in (a.reason, reasons) if x)}", width=4)
        if len(failed) > SHOWN:
            talk.line(f"  and {len(failed) - SHOWN:,} more; --json lists all")
    skipped = Counter(a.reason or "no reason given" for a in entries if a.status == "skipped")
    marked: Counter[str] = Counter()
    for a in entries:
        if a.status != "skipped" and not a.rows_failed:
            where = skipped if a.rows_skipped else marked
            where.update({f"row: {r}" if a.rows_skipped else r: n for r, n in a.row_reasons.items()})
    for heading, reasons_of in (("skipped", skipped), ("rows kept with a remark", marked)):
        if reasons_of:
            talk.heading(heading)
        for reason, n in sorted(reasons_of.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]:
            talk.pair(f"{n:>7,}", reason, width=9)
    if talk.verbose:
        for a in entries:
            if a.status == "skipped":
                talk.line(f"  {visible(a.path)}: {a.reason}", paste=True)


def lost(talk: Talk, result: Any) -> int:
    """Return 4 when more was lost than allowed (what is good has been written all the same)."""
    if not result.lossy:
        return 0
    talk.error(
        "more was lost than --max-bad-shards and --max-bad-rows allow; what could be read was used",
        "mend or remove the files listed above, or raise the two limits to accept the loss",
    )
    return 4
