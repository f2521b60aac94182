"""A file of candidate prompts in any of the shapes people keep them in -> `list[Prompt]`.

    prompts.yaml        - Explain B-trees.                   a list of strings, of mappings, `prompts:`, promptfoo
    question.jsonl      {"question_id": 81, "category": "writing", "turns": ["...", "..."]}             MT-Bench
    sharegpt.json       [{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}]}]
    batch.jsonl         {"custom_id": "a", "body": {"messages": [...]}}                                 OpenAI Batch
    results.jsonl       {"prompt": "...", "generated_text": "..."}                 a harness's results, with the answers
    prompts.csv/.tsv    a header with a prompt column              prompts.txt     one prompt a line
    prompts.parquet     columns as in JSONL                        bench.py      string lists, read with ast, never run
    PACK/               a promptkit pack                           -               standard input

The shape is judged by the content; the suffix only settles what content cannot (YAML or text). Compressed files (gz,
zst, xz, bz2) are opened. Which field means what: `dialects.py`. A final assistant turn is
the candidate's response, as is `response`, `output`, `completion`, `generated_text`, ... `weight` says how much a
prompt counts. Text is kept as it is; lone surrogates become U+FFFD. All problems of a file are reported at once with
their lines. YAML and scripts are written by hand, so what is wrong in them is a UsageError (2); data files raise
InputError (4), and so does a file of 0 prompts.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from promptkit.conversation import Prompt
from promptkit.dialects import (
    EXPECTED,
    MESSAGE_KEYS,
    PROMPT_KEYS,
    RESPONSE_KEYS,
    BadRow,
    Row,
    cut,
    json_in_string,
    kind_of,
    to_prompt,
)
from promptkit.errors import InputError, PromptkitError, UsageError
from promptkit.registry import resolve

MAX_BYTES = 1 << 30  # of one file, inflated
MAX_INFLATE_RATIO = 200

CONTAINER_KEYS = (
    "prompts", "questions", "candidates", "data", "rows", "samples", "examples", "items", "requests", "instances",
    "records", "results",
)  # fmt: skip


def read_candidates(
    path: str | Path,
    *,
    fmt: str | None = None,
    column: str | None = None,
    response: str | None = None,
    weights: str | None = None,
) -> list[Prompt]:
    """Return the prompts of a file, a pack directory or standard input ("-"), in file order.

    `fmt` names the format where it should not be guessed: yaml, json, jsonl, csv, tsv, txt, parquet, arrow, py.
    `column` names the field or column that holds the prompt (a text, or a list of messages) where it is none of the
    usual ones; then no other is looked at.
    `response` names the field that holds a model's answer where it is none of the usual ones, `weights` the field that
    says how much a prompt counts (`weight` where there is one, else 1): how often a benchmark runs it.
    A row without an id gets the hash of its content (`#2`, ... on repeats); given ids must be unique.
    """
    where = Path(path)
    if str(path) != "-" and fmt is None and column is None and response is None and weights is None:
        pack = _pack(where)
        if pack is not None:
            return pack
    name, raw = _bytes(where) if str(path) != "-" else ("standard input", sys.stdin.buffer.read(MAX_BYTES + 1))
    if not raw.strip(b" \t\r\n\0"):
        raise InputError(f"{name}: empty file, no prompts", hint="write one prompt a line, or a YAML list of prompts")
    kind = fmt or _sniff(where.name, raw)
    read = resolve("candidate format", kind, FORMATS)
    if column is not None and kind in ("csv", "tsv"):
        read = partial(_from_csv, mark="\t" if kind == "tsv" else ",", column=column)
    rows = read(raw, name, where)
    if column is not None:
        rows = [_from_column(row, name, column) for row in rows]
    wrong: type[PromptkitError] = UsageError if kind in ("yaml", "py") else InputError
    if response is not None and not any(isinstance(r.value, Mapping) and response in r.value for r in rows):
        raise UsageError(f"{name}: no row has a field {response!r}", hint="name the field that holds the answers")
    if weights is not None:
        rows = _weighed(rows, name, weights)
    return _prompts(rows, name, Path(name).name, wrong, (response,) if response else RESPONSE_KEYS)


def _from_column(row: Row, name: str, column: str) -> Row:
    fields = row.value if isinstance(row.value, Mapping) else {}
    value = fields.get(column, fields.get(column.lower()))  # the columns of a CSV file are in lower case here
    if value is None:
        near = difflib.get_close_matches(column, [str(k) for k in fields], n=1)
        known = ", ".join(cut(str(k), 30) for k in list(fields)[:8]) or "nothing"
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"{name}, {row.place}: no field {column!r}", hint=f"{guess}it has {known}")
    rest = {k: v for k, v in fields.items() if k not in (*PROMPT_KEYS, *MESSAGE_KEYS, "turns")}
    return replace(row, value={**rest, "messages" if isinstance(value, list) else "prompt": value})


def _weighed(rows: list[Row], name: str, field: str) -> list[Row]:
    """Return the rows with `field` as their weight; one without it is an error, since 1 would be a guess."""
    out = []
    for row in rows:
        value = row.value if isinstance(row.value, Mapping) else {}
        weight = value.get(field, value.get(field.lower()))  # the columns of a CSV file are in lower case here
        if weight is None or weight == "":
            known = sorted({k for r in rows if isinstance(r.value, Mapping) for k in r.value if isinstance(k, str)})
            raise UsageError(
                f"{name}, {row.place}: no field {field!r} to weigh it by",
                hint=f"each prompt needs one; fields: {', '.join(cut(k, 30) for k in known[:8]) or 'none'}",
            )
        out.append(Row({**value, "weight": weight}, row.place, row.defaults))
    return out


def _pack(where: Path) -> list[Prompt] | None:
    """Return the prompts of a pack's directory or name (`chat-mix@1.2.0`), None where the path is something else."""
    is_directory = where.is_dir()
    if not is_directory and (where.exists() or not re.fullmatch(r"[a-z0-9][a-z0-9._-]*(@[\w.+:-]+)?", str(where))):
        return None
    from promptkit.pack import load_pack

    try:
        return list(load_pack(str(where)))
    except UsageError:
        if is_directory:
            raise
        return None  # no pack has that name: it was meant as a file


def _prompts(
    rows: list[Row], name: str, source: str, wrong: type[PromptkitError], response_keys: tuple[str, ...]
) -> list[Prompt]:
    prompts: list[Prompt] = []
    bad: list[str] = []
    first: dict[str, str] = {}  # given id -> where it stood first
    repeats: dict[str, int] = {}
    empty = 0
    for row in rows:
        try:
            prompt, given = to_prompt(row, source, response_keys)
        except BadRow as e:
            bad.append(f"{row.place}: {e}")
            empty += "empty" in str(e)
            continue
        if given and prompt.id in first:
            bad.append(f"{row.place}: id {cut(prompt.id)} again, first at {first[prompt.id]}")
            continue
        if given:
            first[prompt.id] = row.place
        else:
            repeats[prompt.id] = n = repeats.get(prompt.id, 0) + 1
            if n > 1:
                prompt = _replace_id(prompt, f"{prompt.id}#{n}")
        prompts.append(prompt)
    if not rows or (empty == len(bad) == len(rows)):
        what = f"{len(rows)} rows, all of them empty" if rows else "no prompts"
        raise InputError(f"{name}: {what}", hint=f"each prompt is {EXPECTED}")
    if bad:
        more = f"\n  and {len(bad) - 5} more" if len(bad) > 5 else ""
        hint = (
            "make the ids unique, or leave them out"
            if all(" again, first at " in b for b in bad)
            else f"each prompt is {EXPECTED}"
        )
        if len(bad) == 1:
            raise wrong(f"{name}, {bad[0]}", hint=hint)
        raise wrong(
            f"{name}: {len(bad)} of {len(rows)} rows cannot be used\n  " + "\n  ".join(bad[:5]) + more, hint=hint
        )
    return prompts


def _replace_id(p: Prompt, new: str) -> Prompt:
    return Prompt(new, p.messages, p.tools, p.response, p.domain, p.source, p.weight, p.expected_output_tokens, p.extra)


# -- bytes -> rows -------------------------------------------------------------------------------------------------


def _bytes(path: Path) -> tuple[str, bytes]:
    """Return the name without a compression suffix, and the content."""
    try:
        if not path.exists():
            near = difflib.get_close_matches(path.name, _siblings(path), n=1, cutoff=0.6)
            raise UsageError(
                f"{path}: no such file",
                hint=f"did you mean {str(path.parent / near[0])!r}?"
                if near
                else "check the path; it is taken from the current directory",
            )
        if path.is_dir():
            raise UsageError(f"{path}: is a directory, and a format was given", hint="leave the format out for a pack")
        if not path.is_file():
            raise UsageError(f"{path}: not a regular file", hint="give '-' and pipe the prompts into standard input")
        if path.stat().st_size > MAX_BYTES:
            raise InputError(
                f"{path}: {path.stat().st_size >> 20} MiB, at most 1024", hint="score a sample of it, or split it"
            )
        raw = path.read_bytes()
    except OSError as e:
        raise UsageError(f"{path}: cannot be read: {e.strerror or e}", hint="check the permissions") from None
    except ValueError as e:  # a NUL in the name
        raise UsageError(f"{str(path)!r}: no usable path: {e}", hint="check the path") from None
    if raw[:2] == b"\x1f\x8b" or raw[:4] == b"\x28\xb5\x2f\xfd" or raw[:6] == b"\xfd7zXZ\0" or raw[:3] == b"BZh":
        raw = _inflate(raw, str(path))
    return str(path), raw


def _siblings(path: Path) -> list[str]:
    try:
        return [p.name for p in itertools.islice(path.parent.iterdir(), 5000)]
    except OSError:
        return []


def _inflate(raw: bytes, name: str) -> bytes:
    import bz2
    import gzip
    import io
    import lzma
    import zlib

    import zstandard

    limit = min(MAX_BYTES, MAX_INFLATE_RATIO * len(raw) + (1 << 20))
    packed = io.BytesIO(raw)
    try:
        stream: Any
        if raw[:2] == b"\x1f\x8b":
            stream = gzip.GzipFile(fileobj=packed)
        elif raw[:3] == b"BZh":
            stream = bz2.BZ2File(packed)
        elif raw[:1] == b"\xfd":
            stream = lzma.LZMAFile(packed)  # noqa: SIM115, over memory
        else:
            stream = zstandard.ZstdDecompressor(max_window_size=1 << 28).stream_reader(packed, read_across_frames=True)
        out = bytes(stream.read(limit + 1))
        if raw[:1] == b"\x28" and len(out) <= limit:
            # stream_reader returns what it has on a cut frame and says nothing; one-shot decoding checks the end
            size = zstandard.frame_content_size(raw)
            if size >= 0 and len(out) < size:
                raise EOFError("the zstd frame ends early")
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error, zstandard.ZstdError, MemoryError) as e:
        raise InputError(f"{name}: cannot be decompressed: {e}", hint="copy the file again") from None
    if len(out) > limit:
        raise InputError(f"{name}: inflates to more than {limit >> 20} MiB", hint="unpack it and look what it is")
    return out


_SUFFIXES = {
    ".yaml": "yaml", ".yml": "yaml", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv",
    ".tsv": "tsv", ".txt": "txt", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".py": "py",
}  # fmt: skip


def _sniff(name: str, raw: bytes) -> str:
    """Name the format: containers by their magic, then the suffix, then what the text looks like."""
    if raw[:4] == b"PAR1":
        return "parquet"
    if raw[:6] == b"ARROW1":
        return "arrow"
    suffixes = [s.lower() for s in Path(name).suffixes if s.lower() not in (".gz", ".zst", ".xz", ".bz2")]
    known = _SUFFIXES.get(suffixes[-1]) if suffixes else None
    if known in ("parquet", "arrow"):
        raise InputError(
            f"{name}: named {suffixes[-1]}, but its first bytes are not {known}'s",
            hint="copy the file again, or rename it",
        )
    if known is not None:
        return known
    head = raw[:65536].decode("utf-8", errors="replace").lstrip("\ufeff \t\r\n")
    if head[:1] in ("{", "["):
        return "json"
    lines = [x for x in head.splitlines() if x.strip() and not x.lstrip().startswith("#")]
    first = lines[0] if lines else ""
    if head.startswith("#!") and "python" in head.split("\n", 1)[0]:
        return "py"
    if re.match(r"(import|from) [\w.]+|\"\"\"|[A-Z_]+ *(: *\w[^=]*)?= *[\[({\"']", first):
        return "py"
    if first.startswith(("- ", "---", "%YAML")) or re.match(r"[\w-]+:\s*([|>][+-]?)?\s*$", first):
        return "yaml"
    for mark, kind in (("\t", "tsv"), (",", "csv")):
        if mark in first and {c.strip().strip('"').lower() for c in first.split(mark)} & {
            *PROMPT_KEYS,
            *MESSAGE_KEYS,
            "turns",
        }:
            return kind
    return "txt"


def _text(raw: bytes, name: str, wrong: type[PromptkitError] = InputError) -> str:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise wrong(f"{name}: UTF-16 text; expected UTF-8", hint=f"iconv -f UTF-16 -t UTF-8 {name} > utf8.txt")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = raw.count(b"\n", 0, e.start) + 1
        raise wrong(
            f"{name}, line {line}: byte 0x{raw[e.start]:02x} is not UTF-8", hint="save the file as UTF-8"
        ) from None
    return text.replace("\r\n", "\n")


def _from_txt(raw: bytes, name: str, path: Path) -> list[Row]:
    """One prompt a line, blank lines skipped; with lines of three dashes, what lies between them (several lines)."""
    text = _text(raw, name)
    if "\0" in text:
        raise InputError(f"{name}: holds NUL bytes, so it is no text", hint="give text, YAML, JSONL, CSV or Parquet")
    lines = text.split("\n")
    if not any(x.strip() == "---" for x in lines):
        return [Row(x.strip(), f"line {i}") for i, x in enumerate(lines, 1) if x.strip()]
    rows: list[Row] = []
    block: list[str] = []
    for i, x in enumerate([*lines, "---"], 1):
        if x.strip() != "---":
            block.append(x)
        elif any(b.strip() for b in block):
            rows.append(
                Row(
                    "\n".join(block).strip("\n"),
                    f"line {i - len(block) + next(j for j, b in enumerate(block) if b.strip())}",
                )
            )
        if x.strip() == "---":
            block = []
    return rows


def _from_csv(raw: bytes, name: str, path: Path, mark: str = ",", column: str = "") -> list[Row]:
    import csv
    import io

    text = _text(raw, name)
    first = text.split("\n", 1)[0]
    if mark == "," and first.count(";") > first.count(","):
        mark = ";"  # what a spreadsheet writes where the comma is the decimal sign
    old = csv.field_size_limit(MAX_BYTES)  # a global of the module: put back below
    try:
        table = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
        rows = [(table.line_num, r) for r in table if any(c.strip() for c in r)]
    except csv.Error as e:
        raise InputError(
            f"{name}, line {table.line_num}: not readable as CSV: {e}",
            hint='text with quotes or line breaks goes into "..."',
        ) from None
    finally:
        csv.field_size_limit(old)
    if not rows:
        return []
    header = [c.strip() for c in rows[0][1]]
    lower = [c.lower() for c in header]
    twice = next((c for i, c in enumerate(lower) if c and c in lower[:i]), None)
    if twice is not None:
        raise InputError(f"{name}, line 1: column {cut(twice)} twice", hint="rename one of the two")
    known = {*PROMPT_KEYS, *MESSAGE_KEYS, "turns", "prompt_0", column.lower()}
    if not known & set(lower):
        rest = [i for i, c in enumerate(lower) if not c.startswith("__")]  # promptfoo's own columns
        if lower[rest[0]] in ("prompts", "questions") if len(rest) == 1 else False:
            lower[rest[0]] = "prompt"
        else:
            columns = ", ".join(cut(c, 30) for c in header[:8])
            raise InputError(
                f"{name}, line 1: no prompt column among {columns}",
                hint="name one with --column (or give the file as .txt: one prompt a line)",
            )
    out: list[Row] = []
    for line, cells in rows[1:]:
        if len(cells) > len(header):
            raise InputError(
                f"{name}, line {line}: {len(cells)} cells; the header has {len(header)}",
                hint='text with a comma goes into "..."',
            )
        out.append(Row({k: c for k, c in zip(lower, cells, strict=False) if c != ""}, f"line {line}"))
    return out


def _from_tsv(raw: bytes, name: str, path: Path) -> list[Row]:
    return _from_csv(raw, name, path, "\t")


def _from_yaml(raw: bytes, name: str, path: Path) -> list[Row]:
    from promptkit import safe_yaml

    return _shape(safe_yaml.load(_text(raw, name, UsageError), name), name, path, UsageError)


def _from_json(raw: bytes, name: str, path: Path) -> list[Row]:
    """One JSON document, or rows where the first of several lines is a value by itself."""
    text = _text(raw, name)
    lines = [(i, x) for i, x in enumerate(text.split("\n"), 1) if x.strip()]
    if len(lines) > 1 and _is_json(lines[0][1]):
        return [Row(_json(x, name, i), f"line {i}") for i, x in lines]
    return _shape(_json(text, name, 1), name, path, InputError)


def _from_jsonl(raw: bytes, name: str, path: Path) -> list[Row]:
    """One value a line; a file that is one pretty-printed document is read as that, whatever its name says."""
    text = _text(raw, name)
    lines = [(i, x) for i, x in enumerate(text.split("\n"), 1) if x.strip()]
    if lines and _is_json(lines[0][1]):
        return [Row(_json(x, name, i), f"line {i}") for i, x in lines]
    return _shape(_json(text, name, 1), name, path, InputError)


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.strip() not in ("[", "{") and line.strip().endswith("}")  # a broken row is still a row
    return True


def _json(text: str, name: str, line: int) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(items)
        if len(out) < len(items):
            seen: set[str] = set()
            twice = next(k for k, _ in items if k in seen or seen.add(k))  # type: ignore[func-returns-value]
            raise BadRow(f"key {cut(twice)} twice in one object")
        return out

    def constant(word: str) -> Any:
        raise BadRow(f"{word} is not JSON")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as e:
        place = f"{name}, line {line + e.lineno - 1}, column {e.colno}"
        raise InputError(
            f"{place}: not readable as JSON: {e.msg}", hint="one JSON value a file, or one a line"
        ) from None
    except BadRow as e:
        raise InputError(
            f"{name}{f', line {line}' if line > 1 else ''}: {e}",
            hint="write each key once, and null for a missing number",
        ) from None
    except RecursionError:
        raise InputError(
            f"{name}, line {line}: nested too deeply", hint="prompts need no more than a few levels"
        ) from None
    except ValueError as e:  # integers of thousands of digits
        raise InputError(f"{name}, line {line}: not readable as JSON: {e}", hint="check the numbers") from None


def _from_table(raw: bytes, name: str, path: Path) -> list[Row]:
    import io

    import polars as pl

    try:
        frame = pl.read_parquet(io.BytesIO(raw)) if raw[:4] == b"PAR1" else pl.read_ipc(io.BytesIO(raw))
        rows = frame.to_dicts()
    except BaseException as e:  # polars reports a panic of its core as a BaseException
        if isinstance(e, (KeyboardInterrupt, SystemExit)):
            raise
        raise InputError(
            f"{name}: not readable as Parquet or Arrow: {str(e)[:200]}", hint="copy the file again"
        ) from None
    return [Row(row, f"row {i}") for i, row in enumerate(rows)]


def _from_script(raw: bytes, name: str, path: Path) -> list[Row]:
    from promptkit import script_prompts

    rows: list[Row] = []
    for found in script_prompts.read(raw, name):
        for i, value in enumerate(found.rows):
            rows.append(Row(value, f"{found.name}[{i}] (line {found.line})", {"script_name": found.name}))
    return rows


FORMATS: dict[str, Callable[[bytes, str, Path], list[Row]]] = {
    "yaml": _from_yaml,
    "json": _from_json,
    "jsonl": _from_jsonl,
    "csv": _from_csv,
    "tsv": _from_tsv,
    "txt": _from_txt,
    "parquet": _from_table,
    "arrow": _from_table,
    "py": _from_script,
}


# -- a YAML or JSON document -> rows -------------------------------------------------------------------------------


def _shape(value: Any, name: str, path: Path, wrong: type[PromptkitError], depth: int = 0) -> list[Row]:
    """Find the prompts of a document: the list itself, one under `prompts:`, `data:`, ..., or a promptfoo config."""
    if value is None:
        return []
    if isinstance(value, list):
        return list(_listed(value))
    if isinstance(value, Mapping):
        given = value.get("prompts")
        files = isinstance(given, list) and any(isinstance(p, str) and p.startswith("file://") for p in given)
        if "tests" in value or files or (given is not None and ("providers" in value or "targets" in value)):
            return _promptfoo(value, name, path, wrong)
        columns = _parallel(value)
        if columns:
            return columns
        for key in CONTAINER_KEYS:
            inner = value.get(key)
            if isinstance(inner, list):
                return list(_listed(inner))
            if isinstance(inner, Mapping) and depth < 3:
                return _keyed(inner, key) or _shape(inner, name, path, wrong, depth + 1)
        if any(value.get(k) is not None for k in (*MESSAGE_KEYS, "turns", "body", *PROMPT_KEYS)):
            return [Row(value, "line 1")]
        return _keyed(value, None) or _nothing(value, name, wrong)
    raise wrong(
        f"{name}: found {kind_of(value)}; expected a list of prompts",
        hint="begin each prompt with '- ', or name the file .txt",
    )


def _nothing(value: Mapping[str, Any], name: str, wrong: type[PromptkitError]) -> list[Row]:
    if not value:
        return []
    found = ", ".join(cut(str(k), 30) for k in list(value)[:8])
    hint = "put the prompts into a list under `prompts:`"
    if any(k in value for k in ("generated_texts", "generated_text", "outputs", "responses")):
        hint = "this holds answers without their prompts: join the two, or have the harness write its prompts too"
    raise wrong(f"{name}: no prompts under the keys {found}; expected a list, or a mapping with prompts", hint=hint)


def _listed(items: list[Any]) -> Iterator[Row]:
    lines = getattr(items, "lines", None)
    for i, value in enumerate(items):
        yield Row(value, f"line {lines[i]}" if lines else f"item {i}")


def _keyed(value: Mapping[str, Any], container: str | None) -> list[Row]:
    """Read `prompts: {coding: [...], chat: [...]}` (domains) and `prompts: {btree: "..."}` (ids)."""
    lines = getattr(value, "lines", {})
    if value and all(isinstance(v, list) and v for v in value.values()):
        firsts = [v[0] for v in value.values()]
        if container or all(isinstance(f, Mapping) or (isinstance(f, str) and len(f.split()) > 2) for f in firsts):
            return [Row(r.value, r.place, {"domain": str(k)}) for k, v in value.items() for r in _listed(v)]
    if container in ("prompts", "questions") and value and all(isinstance(v, str) for v in value.values()):
        return [
            Row(v, f"line {lines[k]}" if k in lines else f"key {cut(str(k))}", {"id": str(k)}) for k, v in value.items()
        ]
    return []


def _parallel(value: Mapping[str, Any]) -> list[Row]:
    """Read {"prompts": [...], "generated_texts": [...]}: two lists of one length, as some harnesses write them."""
    prompts = value.get("prompts")
    answers = next(
        (
            value[k]
            for k in ("generated_texts", "responses", "outputs", "completions")
            if isinstance(value.get(k), list)
        ),
        None,
    )
    if isinstance(prompts, list) and answers is not None and len(prompts) == len(answers):
        rows = [p if isinstance(p, Mapping) else {"prompt": p} for p in prompts]
        return [Row({**r, "response": a}, f"item {i}") for i, (r, a) in enumerate(zip(rows, answers, strict=True))]
    return []


# -- promptfoo: templates x tests ----------------------------------------------------------------------------------

MAX_RENDERED = 100_000


def _promptfoo(config: Mapping[str, Any], name: str, path: Path, wrong: type[PromptkitError]) -> list[Row]:
    """Fill each prompt template with the vars of each test: `{{name}}` only, no other Nunjucks."""
    templates = config.get("prompts")
    templates = [templates] if isinstance(templates, str) else templates if isinstance(templates, list) else []
    named = [t.get("raw") or t.get("label") or t.get("id") if isinstance(t, Mapping) else t for t in templates]
    texts = [_file(t, name, path, wrong) for t in named]
    tests = config.get("tests")
    if isinstance(tests, (str, Mapping)):
        tests = [tests]
    listed: list[Row] = []
    for row in _listed(tests) if isinstance(tests, list) else ():
        if isinstance(row.value, str):
            inner = path.parent / row.value.removeprefix("file://")
            text = _file(row.value if row.value.startswith("file://") else "file://" + row.value, name, path, wrong)
            kind = _sniff(inner.name, text.encode())
            if kind not in ("yaml", "json", "jsonl", "csv", "tsv"):
                raise wrong(
                    f"{name}: tests in {cut(row.value)} are {kind}; expected YAML, JSONL, JSON or CSV",
                    hint="write the tests out",
                )
            if kind in ("csv", "tsv"):
                import csv
                import io

                table = csv.DictReader(io.StringIO(text), delimiter="\t" if kind == "tsv" else ",")
                listed += [Row({"vars": dict(r)}, f"{inner.name}, line {table.line_num}") for r in table]
            else:
                rows = (
                    _from_yaml(text.encode(), str(inner), inner)
                    if kind == "yaml"
                    else FORMATS[kind](text.encode(), str(inner), inner)
                )
                listed += [Row(r.value, f"{inner.name}, {r.place}") for r in rows]
        else:
            listed.append(row)
    default = config.get("defaultTest")
    shared = default.get("vars") if isinstance(default, Mapping) else None
    out: list[Row] = []
    for row in listed or [Row({}, "prompts")]:
        test = row.value if isinstance(row.value, Mapping) else {}
        variables = {
            **(shared if isinstance(shared, Mapping) else {}),
            **(test["vars"] if isinstance(test.get("vars"), Mapping) else {}),
        }
        meta = test["metadata"] if isinstance(test.get("metadata"), Mapping) else {}
        lists = {k: v for k, v in variables.items() if isinstance(v, list)}
        for combo in itertools.product(*lists.values()):
            filled = {**variables, **dict(zip(lists, combo, strict=True))}
            for j, text in enumerate(texts):
                if len(out) >= MAX_RENDERED:
                    raise wrong(
                        f"{name}: more than {MAX_RENDERED:,} prompts from templates and vars",
                        hint="score fewer of them",
                    )
                value: dict[str, Any] = {"prompt": _render(text, filled, f"{name}, {row.place}", wrong)}
                chat = json_in_string(value["prompt"])
                if isinstance(chat, list):
                    value = {"messages": chat}
                value |= {k: meta[k] for k in ("id", "domain", "category") if isinstance(meta.get(k), str)}
                if (len(texts) > 1 or lists) and "id" in value:
                    del value["id"]  # one test makes several prompts
                out.append(Row(value, row.place if len(texts) == 1 else f"{row.place}, template {j}"))
    return out


def _file(text: Any, name: str, path: Path, wrong: type[PromptkitError]) -> str:
    """Return a template, read from beside the config where it says file://."""
    if not isinstance(text, str):
        raise wrong(f"{name}: a prompt template is {kind_of(text)}; expected text", hint="write the template out")
    if not text.startswith("file://"):
        return text
    inside = path.parent / text.removeprefix("file://")
    root = path.parent.resolve()
    try:
        if (
            root not in inside.resolve().parents
            or inside.suffix.lower() in (".py", ".js", ".ts", ".mjs", ".cjs")
            or not inside.is_file()
        ):
            raise wrong(
                f"{name}: {cut(text)} is not a text file beside the config",
                hint="write the prompts out; code is never run",
            )
        return _text(_bytes(inside)[1], str(inside), wrong)
    except (OSError, ValueError, RuntimeError) as e:
        raise wrong(f"{name}: {cut(text)} cannot be read: {e}", hint="check the path") from None


_VARIABLE = re.compile(r"\{\{-?\s*([\w.]+)\s*-?\}\}")
_RAW = re.compile(r"\{%-?\s*raw\s*-?%\}(.*?)\{%-?\s*endraw\s*-?%\}", re.S)


def _render(text: str, variables: Mapping[str, Any], place: str, wrong: type[PromptkitError]) -> str:
    def fill(match: re.Match[str]) -> str:
        value = variables.get(match[1])
        if value is None:
            known = ", ".join(map(str, variables)) or "none"
            raise wrong(
                f"{place}: the template's variable {match[1]!r} has no value (vars: {known})",
                hint="add it to the test's vars",
            )
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        return _RAW.sub(lambda m: m[1], shown)

    return _VARIABLE.sub(fill, text)
