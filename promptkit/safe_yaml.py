"""Hand-written YAML -> plain values in which every scalar is text and every item knows its line.

    prompts:            {"prompts": [{"id": "no", "prompt": "Explain B-trees."}]}
      - id: no          a YAML 1.1 loader makes this False; here it stays "no", and 1.10 stays "1.10"
        prompt: Explain B-trees.

Why not a loader: those build objects recursively, share aliased nodes (nine lines can expand to 9^8) and die late on
deep nesting. `ruamel.yaml` is used as a scanner only: its YAML 1.2 events come lazily and without recursion, so depth,
size and cycles are judged while the file is read, and a bomb costs no more than its own bytes. Refused, with the line:
duplicate keys (both lines), tags (`!!python/...` above all), cycles, a second document, depth over 64, more than
a million nodes after aliases are expanded, files over 32 MiB. A YAML file is configuration: what is wrong with it is a
`UsageError` (exit 2). Cost: about 1.5 s a megabyte; JSONL is the fast way for large sets.
"""

from __future__ import annotations

from typing import Any

from promptkit.errors import UsageError

MAX_BYTES = 32 << 20
MAX_DEPTH = 64
MAX_NODES = 1_000_000

_CORE_TAGS = frozenset(f"tag:yaml.org,2002:{t}" for t in ("str", "int", "float", "bool", "null", "seq", "map"))
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


class Items(list[Any]):
    """A sequence; `lines[i]` is the line (from 1) on which item i starts."""

    lines: list[int]


class Mapping(dict[str, Any]):
    """A mapping; `lines[key]` is the line (from 1) of that key."""

    lines: dict[str, int]


class _Open:
    """A collection whose end has not been read yet."""

    def __init__(self, kind: str, anchor: str | None, line: int) -> None:
        self.value: Items | Mapping = Items() if kind == "sequence" else Mapping()
        self.value.lines = [] if kind == "sequence" else {}
        self.anchor, self.line, self.size = anchor, line, 1
        self.key: tuple[str, int] | None = None
        self.merges: list[dict[str, Any]] = []


def load(text: str, name: str) -> Any:
    """Return the one document of `text` as Items, Mapping, str or None; `name` is the file's name in messages."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    if len(text) > MAX_BYTES:
        raise _refused(name, 1, f"{len(text) >> 20} MiB of YAML, at most 32 MiB", "write the prompts as JSONL")
    try:
        return _build(YAML(typ="safe", pure=True).parse(text), name)
    except YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        place = f"{name}, line {mark.line + 1}, column {mark.column + 1}" if mark else name
        problem = getattr(e, "problem", None) or str(e).split("\n")[0]
        raise UsageError(
            f"{place}: not readable as YAML: {problem}",
            hint="quote text that holds ': ' or ' #', or write it as a block ('prompt: |')",
        ) from None
    except (ValueError, OverflowError, RecursionError) as e:  # e.g. a \U escape beyond Unicode
        raise UsageError(f"{name}: not readable as YAML: {e}", hint="check the escapes in quoted text") from None


def _build(events: Any, name: str) -> Any:
    """Fold parse events into values with an explicit stack."""
    from ruamel.yaml import events as ev

    stack: list[_Open] = []
    anchors: dict[str, tuple[Any, int] | None] = {}  # None while the anchored collection is still open
    documents: list[Any] = []
    n_nodes = 0

    def place(value: Any, size: int, line: int) -> None:
        nonlocal n_nodes
        n_nodes += size
        if n_nodes > MAX_NODES:
            raise _refused(name, line, f"aliases expand to more than {MAX_NODES:,} values", "write the prompts out")
        if not stack:
            if documents and value is not None:
                raise _refused(name, line, "a second document (behind '---')", "put all prompts into one list")
            documents.extend([] if value is None else [value])
            return
        top = stack[-1]
        top.size += size
        if isinstance(top.value, Items):
            top.value.append(value)
            top.value.lines.append(line)
        elif top.key is None:
            if not isinstance(value, str):
                raise _refused(name, line, "a key that is not text", "give each field a plain name")
            if value in top.value.lines:
                found = f"key {value[:60]!r} again, first on line {top.value.lines[value]}"
                raise _refused(name, line, found, "keep one of the two", subject="duplicate")
            top.value.lines[value] = line
            top.key = (value, line)
        else:
            key, top.key = top.key[0], None
            merged = value if isinstance(value, list) else [value]
            if key == "<<" and all(isinstance(m, dict) for m in merged):
                top.merges += merged  # `<<: *defaults` fills what the mapping itself does not say
            else:
                top.value[key] = value

    for event in events:
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, ev.AliasEvent):
            if event.anchor not in anchors:
                raise _refused(name, line, f"alias *{event.anchor} of nothing", "define it first with &" + event.anchor)
            known = anchors[event.anchor]
            if known is None:
                raise _refused(name, line, f"alias *{event.anchor} lies inside itself (a cycle)", "write the value out")
            place(known[0], known[1], line)
        elif isinstance(event, ev.ScalarEvent):
            _check_tag(event, name, line)
            is_key = bool(stack) and isinstance(stack[-1].value, Mapping) and stack[-1].key is None
            value = None if not event.style and not is_key and event.value in _NULLS else event.value
            if event.anchor:
                anchors[event.anchor] = (value, 1)
            place(value, 1, line)
        elif isinstance(event, (ev.SequenceStartEvent, ev.MappingStartEvent)):
            _check_tag(event, name, line)
            if len(stack) >= MAX_DEPTH:
                raise _refused(name, line, f"nested deeper than {MAX_DEPTH}", "prompts need no more than a few levels")
            if event.anchor:
                anchors[event.anchor] = None
            kind = "sequence" if isinstance(event, ev.SequenceStartEvent) else "mapping"
            stack.append(_Open(kind, event.anchor, line))
        elif isinstance(event, (ev.SequenceEndEvent, ev.MappingEndEvent)):
            done = stack.pop()
            if isinstance(done.value, Mapping):
                for defaults in done.merges:
                    for key, value in defaults.items():
                        done.value.setdefault(key, value)
            if done.anchor:
                anchors[done.anchor] = (done.value, done.size)
            place(done.value, done.size, done.line)
    return documents[-1] if documents else None


def _check_tag(event: Any, name: str, line: int) -> None:
    tag = event.tag
    if tag is not None and str(tag) not in _CORE_TAGS and str(tag) != "!":
        raise _refused(
            name, line, f"tag {str(tag)[:80]!r}", "remove it: prompt files hold text, lists and mappings only"
        )


def _refused(name: str, line: int, found: str, hint: str, *, subject: str = "refused") -> UsageError:
    return UsageError(f"{name}, line {line}: {subject}: {found}", hint=hint)
