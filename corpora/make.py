"""Build the bundled packs, corpora/NAME/1.0.0/, from the prompts written in corpora/sources/NAME.jsonl.

    python corpora/make.py            what is missing is labelled and built; nothing that exists is touched
    python corpora/make.py NAME ...   only these

For maintainers; users get the packs and not the sources. A line of a source is one prompt as its author wrote it:

    {"messages": [...], "tools": [...], "domain": "coding", "tags": ["python"], "expected_output_tokens": 300,
     "licence": "Apache-2.0", "language": "en", "answer": "..."}

`domain` is the author's judgement and stays. `language` and the structural tags come from promptkit's own detectors,
once: they are written into the source, where a person can correct them, and are not computed again, so that a better
detector does not change a published version. `answer` (where a problem has a checkable one) is for those who review
the prompts and does not go into the pack, so that nobody trains on it by accident.

The same sources give the same bytes. A version never changes what it holds: after an edit raise VERSION, or, before
it has been published, remove the directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from promptkit.conversation import opening, prompt_id
from promptkit.errors import InputError, UsageError
from promptkit.pack import write_pack
from promptkit.registry import suggest

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "sources"
VERSION = "1.0.0"
STRUCTURAL = ("code", "tools", "multi-turn", "long")  # tags that a detector sees better than an author remembers

ABOUT: dict[str, str] = {
    "coding-agentic": "Programming and acting: writing, reviewing, explaining and mending code in some thirty "
    "languages; repository issues, incidents, support desks and assistants with tool schemas, often halfway through.",
    "math-reasoning": "Mathematics from word problems to proofs, with tutoring dialogues and proofs to be corrected; "
    "logic, causes, rules and statements to reason over.",
    "encyclopedic": "Facts and explanations of the world: short questions, longer ones, follow-ups, many subjects.",
    "general": "What people ask an assistant for: writing, conversation, translation, summaries, questions about a "
    "given text, small transformations.",
}
LIMITS = [
    "Written by the authors of promptkit, not sampled from traffic: it represents the kinds of work it names, "
    "not the shares in which any service receives them. Build a pack from your own training mix for that.",
    "Lengths in tokens are null because no tokenizer is assumed; expected_output_tokens is an estimate by the author.",
    "Domains are the authors' own; a labeller, promptkit's included, will disagree on some.",
]

Row = dict[str, Any]


def read_source(path: Path) -> list[Row]:
    """Return the prompts of one source file. Raises InputError with file and line for what is no prompt."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            for key in ("messages", "domain", "tags", "expected_output_tokens", "licence"):
                row[key]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path.name} line {number}: no prompt ({error!r})", hint="see corpora/make.py") from None
        rows.append(row)
    return rows


def labelled(rows: list[Row]) -> list[Row]:
    """Return the rows, those without a `language` completed by it and by the structural tags."""
    from promptkit.domains import label
    from promptkit.languages import detect

    new = [r for r in rows if "language" not in r]
    texts = [opening(r["messages"]) for r in new]
    found = label(texts, messages=[r["messages"] for r in new], tools=[r.get("tools") for r in new])
    for row, said, language in zip(new, found, detect(texts), strict=True):
        row["language"] = language
        kept = {t for t in row["tags"] if t not in STRUCTURAL and not t.startswith("lang:")}
        kept |= {t for t in said.tags if t in STRUCTURAL}
        row["tags"] = sorted(kept | ({f"lang:{language}"} if language not in ("en", "und") else set()))
    return rows


def write_source(path: Path, rows: list[Row]) -> None:
    """Write the rows back, one line each, whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    os.replace(temporary, path)


def pack_rows(rows: list[Row]) -> list[Row]:
    """Return the rows as a pack holds them; what was not measured is null."""
    return [
        {
            "id": prompt_id(r["messages"], r.get("tools")),
            "messages": r["messages"],
            "tools": r.get("tools"),
            "domain": r["domain"],
            "tags": r["tags"],
            "language": r["language"],
            "expected_output_tokens": r["expected_output_tokens"],
            "licence": r["licence"],
            "in_training": False,
            "source": "promptkit",
        }
        for r in rows
    ]


def build(name: str, out: Path = HERE, sources: Path = SOURCES) -> Path:
    """Build one pack from its labelled source and return its directory."""
    path = sources / f"{name}.jsonl"
    rows = read_source(path)
    if unlabelled := sum("language" not in r for r in rows):
        raise InputError(f"{path.name}: {unlabelled} prompts without a language", hint="run python corpora/make.py")
    recipe: Mapping[str, Any] = {"kind": "written", "description": ABOUT[name]}
    inputs = {
        "files": [{"path": path.name, "rows": len(rows), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}]
    }
    return write_pack(
        pack_rows(rows),
        out,
        name=name,
        version=VERSION,
        fields={"inputs": inputs, "recipe": recipe, "known_limits": LIMITS},
        licence_texts={"Apache-2.0": (HERE.parent / "LICENSE").read_text(encoding="utf-8")},
    )


def main(names: list[str]) -> None:
    known = sorted(p.stem for p in SOURCES.glob("*.jsonl"))
    for name in names or known:
        if name not in known or name not in ABOUT:
            raise UsageError(f"corpus {name!r}: needs a source and a line in ABOUT", hint=suggest(name, known))
        path = SOURCES / f"{name}.jsonl"
        rows = read_source(path)
        if any("language" not in r for r in rows):
            write_source(path, labelled(rows))
        print(build(name))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (InputError, UsageError) as error:
        sys.exit(f"{error.message}\n{error.hint or ''}")
