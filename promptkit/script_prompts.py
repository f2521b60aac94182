"""A benchmark script -> the prompt lists written in it, read with `ast` and never run.

    PROMPTS = [                                     taken: PROMPTS, line 1, three rows
        "Explain the theory "
        "of general relativity.",                   implicit concatenation
        dedent(\"\"\"
            Write a guide to B-trees.\"\"\").strip(),   a few pure string calls
        f"{INTRO} What are its implications?",      names bound to one literal
    ]

Comes in: source text. Goes out: `Found(name, line, rows)`, a row being a string, a list (turns or messages) or a dict.
Values are folded from literals only, so what a program computes at run time is not seen; a prompt list that is computed
in part is refused by name, because a silent half would be scored as if it were the whole. Which lists are prompts is
judged by their name (PROMPTS, questions, ...) and, failing that, by their text; the caller says which were taken.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from promptkit.errors import InputError, UsageError

_PROMPT_NAME = re.compile(
    r"prompt|question|quer(y|ies)|instruction|conversation|dialog|message|turns?\b|request|candidate|user_input"
    r"|bench|cases|tasks|inputs|workload",
    re.I,
)
# Lists beside the prompts that would otherwise look like prose.
_OTHER_NAME = re.compile(
    r"system|template|stop|header|column|model|metric|label|choice|help|desc|epilog|url|path|answer|expect|refer", re.I
)
_TEXT_KEYS = (
    "prompt",
    "messages",
    "turns",
    "question",
    "instruction",
    "conversations",
    "text",
    "content",
    "query",
    "input",
)


class _Dynamic(Exception):
    """The value is only known when the program runs; `line` is where."""

    def __init__(self, node: ast.AST) -> None:
        self.line = getattr(node, "lineno", 0)


@dataclass(frozen=True)
class Found:
    """A list of prompts in a script: the name it is bound to, its line and its rows."""

    name: str
    line: int
    rows: list[Any]


@dataclass
class _Binding:
    name: str
    line: int
    value: Any = None
    partial: list[Any] | None = None  # what is literal in a list that is computed in part
    dynamic: int = 0  # line of the first part that is computed
    parts: tuple[str, ...] = ()  # the names it is made from
    size: int = 0  # characters and items, everything counted where it stands


def read(source: bytes, file: str) -> list[Found]:
    """Return the prompt lists of a script in source order.

    Raises UsageError where the source is no Python, InputError where it holds no list of prompts, or one of them is
    built at run time.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # their escapes are not our business
            tree = ast.parse(source, filename=file)
        bindings = _bindings(tree)
    except SyntaxError as e:
        place = f"{file}, line {e.lineno}" if e.lineno else file
        raise UsageError(
            f"{place}: not readable as Python: {e.msg}", hint="check the file, or give the prompts as YAML or JSONL"
        ) from None
    except (ValueError, RecursionError, MemoryError) as e:
        what = str(e) or type(e).__name__
        raise UsageError(f"{file}: not readable as Python: {what}", hint="give the prompts as YAML or JSONL") from None
    return _choose(bindings, file)


# -- which lists are prompts ---------------------------------------------------------------------------------------


def _choose(bindings: list[_Binding], file: str) -> list[Found]:
    named = [b for b in bindings if _PROMPT_NAME.search(b.name) and not _OTHER_NAME.search(b.name)]
    for b in named:
        if b.partial is not None and any(_is_prose(t) for t in _texts(b.partial)):
            raise InputError(
                f"{file}, line {b.dynamic}: a part of {b.name} is built at run time, and scripts are read, never run",
                hint="write the text out, or let the script dump its prompts to a JSONL file and score that",
            )
    tiers = [
        [(b, _rows(b.value)) for b in named if isinstance(b.value, (list, tuple, dict))],
        [
            (b, _rows(b.value))
            for b in bindings
            if isinstance(b.value, (list, tuple, dict)) and not _OTHER_NAME.search(b.name)
        ],
        [(b, [b.value]) for b in named if isinstance(b.value, str)],
    ]
    for strict, tier in zip((False, True, True), tiers, strict=True):
        good = [(b, rows) for b, rows in tier if rows and _looks_like_prompts(rows, strict=strict)]
        parts = {name for b, _ in good for name in b.parts}  # PROMPTS = CODING + CHAT: take the whole only
        found = [Found(b.name, b.line, rows) for b, rows in good if b.name not in parts]
        if found:
            return found
    seen = ", ".join(f"{b.name} (line {b.line})" for b in bindings if isinstance(b.value, (list, tuple, dict)))[:300]
    raise InputError(
        f"{file}: no list of prompts found" + (f" among {seen}" if seen else ""),
        hint='lists of strings written in the file are read, such as PROMPTS = ["..."]; or give YAML or JSONL',
    )


def _rows(value: Any) -> list[Any]:
    """Turn a literal into rows: list items, or a dict of name -> text (ids) or name -> list (domains)."""
    if isinstance(value, dict):
        if any(k in value for k in _TEXT_KEYS):
            return [value]
        nested = next(
            (
                value[k]
                for k in value
                if isinstance(k, str) and _PROMPT_NAME.search(k) and isinstance(value[k], (list, tuple, dict))
            ),
            None,
        )
        if nested is not None:
            return _rows(nested)
        if value and all(isinstance(v, str) for v in value.values()):
            return [{"id": str(k), "prompt": v} for k, v in value.items()]
        if value and all(isinstance(v, (list, tuple)) for v in value.values()):
            return [_with_domain(str(k), row) for k, v in value.items() for row in _rows(v)]
        if value and all(isinstance(v, dict) for v in value.values()):
            return [{"id": str(k), **v} for k, v in value.items()]
        return []
    if (
        value
        and all(isinstance(v, tuple) and all(isinstance(x, str) for x in v) for v in value)
        and len({len(v) for v in value}) == 1
    ):
        return _columns(value)
    return list(value)


def _with_domain(domain: str, row: Any) -> dict[str, Any]:
    if isinstance(row, dict):
        return {"domain": domain, **row}
    return {"domain": domain, ("messages" if isinstance(row, (list, tuple)) else "prompt"): row}


def _columns(rows: list[tuple[str, ...]]) -> list[Any]:
    """Read ("btree", "Write a guide ...") pairs: the longest column is the prompt, a short one its id or domain."""
    width = len(rows[0])
    if width == 0:
        return []
    lengths = [sum(len(r[i]) for r in rows) for i in range(width)]
    text = max(range(width), key=lambda i: (lengths[i], -i))
    out: list[Any] = [{"prompt": r[text]} for r in rows]
    short = next((i for i in range(width) if i != text and all(len(r[i]) <= 40 for r in rows)), None)
    if short is not None:
        key = "id" if len({r[short] for r in rows}) == len(rows) else "domain"
        out = [{key: r[short], **o} for r, o in zip(rows, out, strict=True)]
    return out


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        keys = [k for k in _TEXT_KEYS if k in value]
        for k in keys or list(value):
            yield from _texts(value[k])
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _texts(v)


def _is_prose(text: str) -> bool:
    return len(text.split()) >= 3


def _looks_like_prompts(rows: list[Any], *, strict: bool) -> bool:
    """Whether most rows are text that could be sent: three words (four where only the text speaks for it)."""
    if not all(isinstance(r, (str, dict, list, tuple)) for r in rows):
        return False
    if not all(any(k in r for k in _TEXT_KEYS) for r in rows if isinstance(r, dict)):
        return False
    firsts = [next(_texts(r), "") for r in rows]
    words = 4 if strict and all(isinstance(r, str) for r in rows) else 3
    good = sum(len(t.split()) >= words or (not strict and len(t) >= 12 and not t.isascii()) for t in firsts)
    return good * 2 > len(firsts)


# -- what names are bound to ---------------------------------------------------------------------------------------


def _bindings(tree: ast.Module) -> list[_Binding]:
    """Return all names bound to a literal, in source order: assignments at any depth, arguments, loops, returns."""
    found: list[_Binding] = []
    by_name: dict[str, _Binding] = {}
    counts: dict[str, int] = {}
    for node in ast.walk(tree):
        for name, _ in _bound(node):
            counts[name] = counts.get(name, 0) + 1

    spent = 0
    parts: set[str] = set()  # names looked up since the last binding

    def lookup(name: str, node: ast.AST) -> Any:
        nonlocal spent
        b = by_name.get(name)
        if b is None or b.partial is not None or (counts.get(name, 0) > 1 and isinstance(b.value, str)):
            raise _Dynamic(node)  # unknown, or bound more than once: which one holds is known at run time only
        spent += b.size  # A = [B, B, ...], B = [C, C, ...]: what is shared here would explode when it is read
        if spent > MAX_TEXT:
            raise _Dynamic(node)
        parts.add(name)
        return b.value

    nodes = sorted(
        (
            (n.lineno, n.col_offset, i, n)
            for i, n in enumerate(ast.walk(tree))
            if isinstance(n, (ast.stmt, ast.expr, ast.keyword))
        ),
        key=lambda t: t[:3],
    )
    functions = {
        id(r): f.name
        for f in ast.walk(tree)
        if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef))
        for r in ast.walk(f)
        if isinstance(r, ast.Return)
    }
    for _, _, _, node in nodes:
        pairs = list(_bound(node))
        if isinstance(node, ast.Return) and node.value is not None:
            pairs.append((functions.get(id(node), "return"), node.value))
        for name, value in pairs:
            parts.clear()
            b = _bind(name, value, lookup)
            if b is None:
                continue
            b.parts = tuple(sorted(parts - {name}))
            old = by_name.get(name)
            if (
                isinstance(node, ast.AugAssign)
                and old is not None
                and isinstance(old.value, list)
                and isinstance(b.value, list)
            ):
                old.value = [*old.value, *b.value]
                continue
            if not isinstance(node, (ast.Return, ast.keyword)):
                by_name[name] = b
            if not isinstance(value, ast.Name):  # a second name for the same list is no second list
                found.append(b)
        call = node.value if isinstance(node, ast.Expr) else None
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
            and len(call.args) == 1
        ):
            old = by_name.get(call.func.value.id)
            if old is not None and isinstance(old.value, list) and call.func.attr in ("append", "extend"):
                try:
                    more = _fold(call.args[0], lookup)
                    old.value = [*old.value, *(more if call.func.attr == "extend" else [more])]
                except _Dynamic as e:
                    old.partial, old.value, old.dynamic = old.value, None, e.line
    return found


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the (name, expression) pairs that a node binds."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, (ast.Name, ast.Attribute)):
                yield (target.id if isinstance(target, ast.Name) else target.attr), node.value
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and node.value is not None:
        if isinstance(node.target, (ast.Name, ast.Attribute)):
            yield (node.target.id if isinstance(node.target, ast.Name) else node.target.attr), node.value
    elif isinstance(node, ast.NamedExpr):
        yield node.target.id, node.value
    elif isinstance(node, ast.keyword) and node.arg and isinstance(node.value, (ast.List, ast.Tuple)):
        yield node.arg, node.value
    elif isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.target, ast.Name):
        yield node.target.id, node.iter
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        a = node.args
        named = [*a.posonlyargs, *a.args]
        yield from zip((x.arg for x in named[len(named) - len(a.defaults) :]), a.defaults, strict=True)
        yield from ((x.arg, d) for x, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d is not None)


def _bind(name: str, node: ast.expr, lookup: Callable[[str, ast.AST], Any]) -> _Binding | None:
    try:
        value = _fold(node, lookup)
    except _Dynamic as e:
        if not isinstance(node, (ast.List, ast.Tuple, ast.BinOp)):
            return None
        partial = []
        for item in node.elts if not isinstance(node, ast.BinOp) else [node.left, node.right]:
            with contextlib.suppress(_Dynamic):
                partial.append(_fold(item, lookup))
        return _Binding(name, node.lineno, partial=partial, dynamic=e.line)
    return (
        _Binding(name, node.lineno, value, size=_size(value)) if isinstance(value, (str, list, tuple, dict)) else None
    )


def _size(value: Any) -> int:
    if isinstance(value, str):
        return 1 + len(value)
    if isinstance(value, (list, tuple)):
        return 1 + sum(map(_size, value))
    if isinstance(value, dict):
        return 1 + sum(_size(k) + _size(v) for k, v in value.items())
    return 1


# -- folding literals ----------------------------------------------------------------------------------------------

_STRING_METHODS = (
    "strip",
    "lstrip",
    "rstrip",
    "lower",
    "upper",
    "split",
    "splitlines",
    "replace",
    "join",
    "removeprefix",
    "removesuffix",
)
_CONTAINERS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "sorted": sorted}
MAX_TEXT = 32 << 20  # what folding may make from names, joins and replacements in one script


def _fold(node: ast.AST, lookup: Callable[[str, ast.AST], Any]) -> Any:
    """Return the value of an expression made of literals, or raise _Dynamic."""

    def fold(n: ast.AST) -> Any:
        return _fold(n, lookup)

    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, (str, int, float, bool))):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(fold(part) for part in node.values)
    if isinstance(node, ast.FormattedValue) and node.conversion == -1 and node.format_spec is None:
        value = fold(node.value)
        if isinstance(value, str):
            return value
    if isinstance(node, ast.Name):
        return lookup(node.id, node)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        out: list[Any] = []
        for item in node.elts:
            if isinstance(item, ast.Starred):
                inner = fold(item.value)
                if not isinstance(inner, (list, tuple)):
                    raise _Dynamic(item)
                out += inner
            else:
                out.append(fold(item))
        return tuple(out) if isinstance(node, ast.Tuple) else out
    if isinstance(node, ast.Dict):
        result: dict[Any, Any] = {}
        for k, v in zip(node.keys, node.values, strict=True):
            if k is None:
                inner = fold(v)
                if not isinstance(inner, dict):
                    raise _Dynamic(v)
                result |= inner
            else:
                key = fold(k)
                if not isinstance(key, (str, int)):
                    raise _Dynamic(k)
                result[key] = fold(v)
        return result
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = fold(node.left), fold(node.right)
        if type(left) is type(right) and isinstance(left, (str, list, tuple)):
            return left + right
    if isinstance(node, ast.Call):
        return _fold_call(node, fold)
    raise _Dynamic(node)


def _fold_call(node: ast.Call, fold: Callable[[ast.AST], Any]) -> Any:
    func = node.func
    name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    if name in ("dedent", "cleandoc") and len(node.args) == 1:
        text = fold(node.args[0])
        if isinstance(text, str):
            return textwrap.dedent(text) if name == "dedent" else inspect.cleandoc(text)
    elif isinstance(func, ast.Attribute) and name in _STRING_METHODS and not node.keywords:
        text, args = fold(func.value), [fold(a) for a in node.args]
        if isinstance(text, str) and all(isinstance(a, (str, list, tuple)) for a in args):
            if name == "replace" and len(args) == 2 and (text.count(args[0]) + 1) * len(args[1]) > MAX_TEXT:
                raise _Dynamic(node)
            if name == "join" and len(args) == 1 and (len(text) + 1) * len(args[0]) > MAX_TEXT:
                raise _Dynamic(node)
            try:
                return getattr(text, name)(*args)  # a pure method of str, by the list above
            except (TypeError, ValueError):
                raise _Dynamic(node) from None
    elif name in _CONTAINERS and len(node.args) == 1 and not node.keywords:
        value = fold(node.args[0])
        if isinstance(value, (list, tuple)):
            try:
                return _CONTAINERS[name](value)
            except TypeError:
                raise _Dynamic(node) from None
    elif node.keywords and not node.args and (name == "dict" or any(k.arg in _TEXT_KEYS for k in node.keywords)):
        # dict(prompt="...") and Case(prompt="...", domain="coding") alike: a row of named fields
        row: dict[str, Any] = {}
        for k in node.keywords:
            if k.arg is None:
                raise _Dynamic(node)
            try:
                row[k.arg] = fold(k.value)
            except _Dynamic:
                if k.arg in _TEXT_KEYS:
                    raise
        return row
    raise _Dynamic(node)
