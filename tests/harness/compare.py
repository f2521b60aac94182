"""What a harness should have got from an export, and the comparison with what it got. Runs without promptkit.

An export is a directory with `ids.jsonl` (the prompts that it carries, in the order of its file) and `export.json`
(the command, the losses); a pack is a directory with `prompts.jsonl`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

DEFAULT_TOKENS = 512  # what an exporter asks for where a row does not know its length

Row = dict[str, Any]


def jsonl(path: Path) -> list[Row]:
    """Return the documents of a JSON-lines file. Lines end at newline only: prompts may hold U+2028."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def expected(export: Path, pack: Path) -> list[Row]:
    """Return the pack's rows that the export carries, in its order; exit unless the losses account for the others.

    A row has `id`, `messages`, `tools` and `max_tokens`.
    """
    rows = {r["id"]: r for r in jsonl(pack / "prompts.jsonl")}
    about = json.loads((export / "export.json").read_text(encoding="utf-8"))
    ids = [r["id"] for r in jsonl(export / "ids.jsonl")]
    left_out = len(rows) - len(set(ids))
    said = sum(x["count"] for x in about["losses"])
    if len(set(ids)) < len(ids) or not set(ids) <= rows.keys() or left_out > said:
        sys.exit(f"{export}: {len(ids)} ids, {len(rows)} prompts, but losses count {said}: {about['losses']}")
    in_order = [i for i in rows if i in set(ids)]
    if ids != in_order:
        sys.exit(f"{export}: ids.jsonl is not in the pack's order")
    return [
        {
            "id": i,
            "messages": rows[i]["messages"],
            "tools": rows[i]["tools"],
            "max_tokens": DEFAULT_TOKENS
            if rows[i]["expected_output_tokens"] is None
            else max(1, rows[i]["expected_output_tokens"]),
        }
        for i in ids
    ]


def turns(rows: list[Row], pack: Path) -> list[Row]:
    """Return a row for each request: in a pack that is replayed each user turn is one, with an equal share of the length.

    Histories, which hold an assistant or tool turn already, are sent at once.
    """
    manifest = json.loads((pack / "pack.json").read_text(encoding="utf-8"))
    if (manifest.get("recipe") or {}).get("turns") != "all":
        return rows
    out: list[Row] = []
    for row in rows:
        roles = [m["role"] for m in row["messages"]]
        if "assistant" in roles or "tool" in roles:
            out.append(row)
            continue
        ends = [i + 1 for i, role in enumerate(roles) if role == "user"]
        share = -(-row["max_tokens"] // len(ends))
        for start, end in zip([0, *ends], ends, strict=False):
            out.append({**row, "messages": row["messages"][start:end], "max_tokens": share})
    return out


def words(export: Path) -> list[str]:
    """Return the export's command as the words that a shell would make of it, variables filled in."""
    command = json.loads((export / "export.json").read_text(encoding="utf-8"))["command"]
    return [os.path.expandvars(w) for w in shlex.split(command)]


def plain(messages: list[Row]) -> list[Row]:
    """Messages with content parts of text joined and what is null or empty left out, to compare across clients."""
    out = []
    for m in messages:
        content = m.get("content")
        if isinstance(content, list):
            content = "".join(part["text"] for part in content)
        more = {k: v for k, v in m.items() if k not in ("role", "content") and v not in (None, "", [])}
        out.append({"role": m["role"], "content": content or "", **more})
    return out


def judge(name: str, got: list[Row], want: list[Row], keys: tuple[str, ...] = ("messages", "max_tokens")) -> None:
    """Compare row by row, print counts, and exit with status 1 where anything differs."""
    wrong = [] if len(got) == len(want) else [f"{len(got)} prompts, expected {len(want)}"]
    for i, (g, w) in enumerate(zip(got, want, strict=False)):
        for key in keys:
            a, b = (plain(x[key]) if key == "messages" else x[key] for x in (g, w))
            if a != b:
                wrong.append(f"row {i} ({w['id']}) {key}:\n  got      {_short(a)}\n  expected {_short(b)}")
    if wrong:
        print("\n".join(wrong[:5]))
        sys.exit(f"{name}: {len(wrong)} differences")
    turns = sum(len(r["messages"]) for r in got) if "messages" in keys else len(got)
    tokens = sum(r["max_tokens"] for r in got)
    print(f"{name}: {len(got)} prompts, {turns} messages, {tokens} output tokens, in the pack's order")


def arguments(description: str | None) -> tuple[Path, Path]:
    """Return the export and the pack that a check was given."""
    if len(sys.argv) != 3:
        sys.exit(f"{description}\n\nusage: check EXPORT_DIRECTORY PACK_DIRECTORY")
    return Path(sys.argv[1]), Path(sys.argv[2])


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) < 400 else f"{text[:300]} ... {text[-90:]}"
