"""Packs: versioned, labelled, hashed prompts in a directory `NAME/VERSION/` that any benchmark can load and cite.

    prompts.jsonl   one canonical row per line (UTF-8, LF, sorted keys, no spaces, integers), sorted by domain and id
    pack.json       the manifest, in canonical JSON: identity, counts, what it was made from
    SHA256SUMS      hash of every other file, as `sha256sum -c` reads it
    README.md       data-set card          LICENSES/   one note per licence

A row (wrapped; unknown values are null):

    {"cluster":7,"domain":"agentic","expected_output_tokens":412,"id":"9f2c... 32 hex","in_training":true,
     "language":"en","licence":"Apache-2.0","messages":[{"content":"...","role":"user"}],"n_prompt_tokens":1830,
     "n_templated_tokens":1851,"nearest_similarity_u6":731204,"row":17,"shard":"B1_glaive/train-0003.jsonl",
     "source":"B1_glaive","tags":["tools"],"tools":null,"typicality_u6":642118,"unsure":false}

Identity: a row's id is the hash of its messages and tools, so an edited prompt is another prompt; `content_hash` is
the sha256 of the bytes of prompts.jsonl and is what a benchmark cites (`name@1.2.0+sha256:ab12...`). Loading checks
names, sizes, hashes and that every row is canonical; `expect=` pins the hash in the benchmark's own code, which is
the only check that survives somebody who rewrites all files. Nothing in a pack is ever executed.
"""

from __future__ import annotations

import hashlib
import html
import itertools
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptkit.conversation import ROLES, Prompt, canonical, prompt_id
from promptkit.errors import InputError, IntegrityError, UsageError
from promptkit.registry import suggest
from promptkit.versions import diff as diff
from promptkit.versions import next_version as next_version
from promptkit.versions import parse_version

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT_VERSION = 1
LADDER = (20, 50, 100, 200, 500)

_STRING, _INT, _BOOL = (str,), (int,), (bool,)
_NONE = (type(None),)
_FIELDS: dict[str, tuple[type, ...]] = {
    "cluster": _INT + _NONE,
    "domain": _STRING,
    "expected_output_tokens": _INT + _NONE,
    "id": _STRING,
    "in_training": _BOOL,
    "language": _STRING + _NONE,
    "licence": _STRING,
    "messages": (list,),
    "n_prompt_tokens": _INT + _NONE,
    "n_templated_tokens": _INT + _NONE,
    "nearest_similarity_u6": _INT + _NONE,
    "row": _INT + _NONE,
    "shard": _STRING + _NONE,
    "source": _STRING + _NONE,
    "tags": (list,),
    "tools": (list, type(None)),
    "typicality_u6": _INT + _NONE,
    "unsure": _BOOL,
}
_DEFAULTS: dict[str, Any] = {
    **{key: None for key, kinds in _FIELDS.items() if type(None) in kinds},
    "in_training": False, "licence": "NOASSERTION", "tags": [], "unsure": False,
}  # fmt: skip

_COUNTS = ("expected_output_tokens", "n_prompt_tokens", "n_templated_tokens", "row")
_MESSAGE_KEYS = ("role", "content", "reasoning", "tool_call_id", "name")

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
_SUM_LINE = re.compile(r"([0-9a-f]{64})  ([^\n]+)\n")
# Texts that stand in for a prompt that was never fetched (SPEED-Bench ships hundreds) or was taken down.
_PLACEHOLDER = re.compile(
    r"\s*(full benchmark data should be fetched\b.*|[\[<({]*(placeholder|redacted|removed|deleted|todo)[\])>}.]*)\s*",
    re.IGNORECASE | re.DOTALL,
)
_CONVENTION = "accepted draft tokens plus the bonus token, summed over a request's steps, over the number of steps"


class Pack:
    """Prompts with an identity: iterate it, take its length, or split it. Made by `load_pack`.

    `name`, `version`, `content_hash` ("sha256:..."), `manifest` (all of pack.json), `path` (None for a part of a
    pack). A part (`sample`, `replicas`, `ladder`) is a Pack too: its hash is of its own rows, its parent's is in
    `manifest["parents"]`.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], manifest: Mapping[str, Any], path: str | None = None) -> None:
        self.manifest = dict(manifest)
        self.path = path
        self.rows = [dict(r) for r in rows]
        template = (self.manifest.get("template") or {}).get("name")
        self._prompts = [_prompt(r, template) for r in self.rows]

    @property
    def name(self) -> str:
        return str(self.manifest["name"])

    @property
    def version(self) -> str:
        return str(self.manifest["version"])

    @property
    def content_hash(self) -> str:
        """ "sha256:" and 64 hex: of the bytes of prompts.jsonl."""
        return str(self.manifest["content_hash"])

    @property
    def citation(self) -> str:
        """What a benchmark report names: name@version+sha256:hash."""
        return f"{self.name}@{self.version}+{self.content_hash}"

    def __iter__(self) -> Iterator[PackPrompt]:
        return iter(self._prompts)

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, index: int) -> PackPrompt:
        return self._prompts[index]

    def by_domain(self) -> dict[str, list[PackPrompt]]:
        """Return the prompts of each domain, domains in alphabetical order."""
        out: dict[str, list[PackPrompt]] = {}
        for prompt in self:
            out.setdefault(prompt.domain or "", []).append(prompt)
        return out

    def sample(self, n: int, seed: int = 0) -> Pack:
        """Return `n` prompts drawn with a seed, each domain by its share. Raises UsageError if there are fewer."""
        from promptkit import subsets

        return self._part(subsets.sample(self.rows, n, seed))

    def replicas(self, k: int) -> list[Pack]:
        """Return `k` disjoint parts for honest repeat runs: warm caches flatter a second run of the same prompts.

        Together they hold every prompt; each domain's count, and the total, differ by at most one; lengths, clusters
        and words are as equal as swaps make them. Raises UsageError for k below 1 or above the number of prompts.
        """
        from promptkit import subsets

        return [self._part(part) for part in subsets.replicas(self.rows, k)]

    def ladder(self, sizes: Iterable[int] = LADDER) -> dict[int, Pack]:
        """Return size -> part, each rung holding the smaller ones and as like the whole pack as its size allows.

        Sizes above the pack's own are left out. Raises UsageError for a size below 1.
        """
        from promptkit import subsets

        order, wanted = subsets.order(self.rows), sorted(set(sizes))
        if wanted and wanted[0] < 1:
            raise UsageError(f"a rung of {wanted[0]} prompts", hint="sizes are numbers above 0")
        return {n: self._part(order[:n]) for n in wanted if n <= len(self)}

    def _part(self, indices: Iterable[int] | NDArray[Any]) -> Pack:
        rows = [self.rows[i] for i in sorted(int(i) for i in indices)]
        manifest = {
            **self.manifest,
            "content_hash": content_hash(rows),
            "parents": [self.content_hash],
            "domains": _domains(rows),
            "licences": _licences(rows),
        }
        for stale in ("files", "score", "recipe_hash"):
            manifest.pop(stale, None)
        return Pack(rows, manifest)

    def __repr__(self) -> str:
        n = len({p.domain for p in self})
        return f"<Pack {self.name}@{self.version}: {len(self)} prompts, {n} domains, {self.content_hash[:19]}...>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(d)}</td><td>{len(prompts)}</td><td>{100 * len(prompts) / len(self):.1f} %</td></tr>"
            for d, prompts in self.by_domain().items()
        )
        title = html.escape(f"{self.name}@{self.version}: {len(self)} prompts")
        return (
            f"<table><caption>{title}<br><code>{html.escape(self.content_hash)}</code></caption>"
            f"<thead><tr><th>domain</th><th>prompts</th><th>share</th></tr></thead><tbody>{rows}</tbody></table>"
        )


def prompt_text(prompt: Prompt, template: str, **kwargs: Any) -> str:
    """Return a prompt as the named chat template renders it, ready to be continued by the assistant.

    Raises InputError where the template has no exact writer (see `templates.render`).
    """
    from promptkit.templates import render

    return render(prompt.messages, prompt.tools, template, **kwargs)


def prompt_ids(prompt: Prompt, tokenizer: Any, template: str, **kwargs: Any) -> NDArray[Any]:
    """Return the token ids of `prompt_text` under a promptkit Tokenizer."""
    ids: NDArray[Any] = tokenizer.encode_rendered(prompt_text(prompt, template, **kwargs))
    return ids


# ------------------------------------------------------------------------------------------------ names and bytes


def check_name(name: str) -> str:
    """Return `name` if it can name a pack: [a-z0-9][a-z0-9._-]{0,63}, no device of Windows, no dot at the end."""
    if not _NAME.fullmatch(name) or _DEVICES.fullmatch(name) or name.endswith("."):
        raise UsageError(
            f"pack name {name!r}: expected up to 64 of a-z, 0-9, dot, dash, underscore; first a letter or digit",
            hint=f"try {name_from(name)!r}",
        )
    return name


def name_from(text: str) -> str:
    """Return the nearest valid pack name, for a default taken from a directory's name."""
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("._-")[:64].rstrip("._-") or "pack"
    return f"pack-{name}"[:64] if _DEVICES.fullmatch(name) else name


def content_hash(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return "sha256:..." of the prompts.jsonl that these rows make, in whatever order they come."""
    return "sha256:" + hashlib.sha256(_lines(_canonical_rows(rows))).hexdigest()


def _canonical_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return checked rows with every key present, sorted by domain and id; InputError names the bad one."""
    out = [{**_DEFAULTS, **row} for row in rows]
    for i, row in enumerate(out):
        for problem in _row_problems(row):
            raise InputError(f"pack row {i} (id {row.get('id', 'none')!r}): {problem}", hint="see DESIGN, Packs")
    out.sort(key=lambda r: (r["domain"], r["id"]))
    for before, after in itertools.pairwise(out):
        if before["id"] == after["id"]:
            raise InputError(f"pack row {after['id']}: comes twice", hint="remove the duplicate prompt")
    return out


def _row_problems(row: Mapping[str, Any]) -> Iterator[str]:
    if row.keys() != _FIELDS.keys():
        odd = sorted(row.keys() ^ _FIELDS.keys())
        yield f"keys differ from the format: {', '.join(map(repr, odd))}"
        return
    for key, kinds in _FIELDS.items():
        if type(row[key]) not in kinds:  # bool is no int here
            yield f"{key} is {type(row[key]).__name__}, expected {' or '.join(k.__name__ for k in kinds)}"
            return
    if not row["messages"] or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        for m in row["messages"]
    ):
        yield "messages: expected a list of {role, content}, both strings"
        return
    for i, message in enumerate(row["messages"]):
        if problem := _message_problem(message):
            yield f"message {i}: {problem}"
            return
    for key in _COUNTS:
        if row[key] is not None and not 0 <= row[key] < 2**63:  # more fits into no table that a harness reads
            yield f"{key} is {row[key]}, expected 0 or more, below 2^63"
            return
    if not all(isinstance(t, str) for t in row["tags"]):
        yield "tags: expected strings"
        return
    texts = [m["content"] for m in row["messages"] if m["role"] != "system"] or [row["messages"][0]["content"]]
    if not any(t.strip() for t in texts):
        yield "no message holds text"
    if any(_PLACEHOLDER.fullmatch(t) for t in texts):
        yield "its text is a placeholder, not a prompt"
    try:
        expected = prompt_id(row["messages"], row["tools"])
        canonical(dict(row))
    except (ValueError, TypeError, RecursionError) as error:  # NaN, lone surrogates, objects, endless nesting
        yield f"cannot be written as canonical JSON ({type(error).__name__})"
        return
    if row["id"] != expected:
        yield f"id is {row['id']!r}, but its messages and tools hash to {expected}"


def _message_problem(message: Mapping[str, Any]) -> str | None:
    """Return what exporters could not make sense of in a message, None where it is as `conversation` describes it."""
    if message["role"] not in ROLES:
        return f"role is {message['role']!r}, expected one of {', '.join(ROLES)}"
    for key, value in message.items():
        if key == "tool_calls":
            if not isinstance(value, list) or not all(map(_is_call, value)):
                return "tool_calls: expected a list of {function: {name, arguments}}, with arguments as text"
        elif key not in _MESSAGE_KEYS:
            return f"unknown key {key!r}, expected {', '.join(_MESSAGE_KEYS)} or tool_calls"
        elif not isinstance(value, str):
            return f"{key} is {type(value).__name__}, expected text"
    return None


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return (
        isinstance(function, dict)
        and isinstance(function.get("name"), str | None)  # null: a call whose ids held no name
        and isinstance(function.get("arguments"), str)
        and isinstance(call.get("id"), str | None)
    )


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(canonical(dict(r)) + b"\n" for r in rows)


class PackPrompt(Prompt):
    """A prompt of a pack, which also knows the chat template that its mix was written in."""

    __slots__ = ()

    def text(self, tokenizer: Any = None, template: str | None = None) -> str:
        """Return the prompt as the chat template renders it: `template`, else the pack's own.

        Raises UsageError where the template cannot be written exactly. `tokenizer` is not needed for text; it stands
        here so that `text` and `ids` are called alike.
        """
        return prompt_text(self, template or self.extra.get("template") or "")

    def ids(self, tokenizer: Any, template: str | None = None) -> NDArray[Any]:
        """Return the token ids of `text` under `tokenizer`, a promptkit Tokenizer or the path of one."""
        from promptkit.tokenizers import load_tokenizer

        loaded = load_tokenizer(os.fspath(tokenizer)) if isinstance(tokenizer, str | Path) else tokenizer
        ids: NDArray[Any] = loaded.encode_rendered(self.text(template=template))
        return ids


def _prompt(row: Mapping[str, Any], template: str | None = None) -> PackPrompt:
    own = ("id", "messages", "tools", "domain", "source", "expected_output_tokens")
    return PackPrompt(
        id=row["id"],
        messages=row["messages"],
        tools=row["tools"],
        domain=row["domain"],
        source=row["source"],
        expected_output_tokens=row["expected_output_tokens"],
        extra={k: v for k, v in row.items() if k not in own} | {"template": template},
    )


def _domains(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    rows = list(rows)
    unsure = Counter(r["domain"] for r in rows if r["unsure"])
    return {d: {"rows": n, "unsure": unsure[d]} for d, n in sorted(Counter(r["domain"] for r in rows).items())}


def _licences(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    return dict(sorted(Counter(r["licence"] for r in rows).items()))


# ------------------------------------------------------------------------------------------------ writing


def write_pack(
    rows: Iterable[Mapping[str, Any]],
    out_dir: str | os.PathLike[str],
    *,
    name: str,
    version: str = "1.0.0",
    fields: Mapping[str, Any] | None = None,
    licence_texts: Mapping[str, str] | None = None,
) -> Path:
    """Write a pack and return its path, `out_dir/NAME/VERSION`; it appears whole or not at all.

    `rows` need `id, messages, domain`; other keys of the format default to null. `fields` are the manifest's own:
    inputs, reference, tokenizer, template, score, recipe, parents, known_limits, acceptance_length. `licence_texts`
    maps an SPDX id to its full text; without one the note under LICENSES/ says where to read it. The same rows and
    fields give the same bytes. Raises InputError for a bad row or no rows, UsageError for a bad name or version, or
    if this version exists with other rows.
    """
    from promptkit import pack_card
    from promptkit.writing import publish, temporary_beside, write_new

    check_name(name)
    parse_version(version)
    kept = _canonical_rows(rows)
    if not kept:
        raise InputError(f"pack {name}: no rows", hint="a pack holds at least one prompt")
    given = dict(fields or {})
    unknown = sorted(given.keys() - _MANIFEST_FIELDS.keys())
    if unknown:
        raise UsageError(f"manifest field {unknown[0]!r}", hint=suggest(unknown[0], list(_MANIFEST_FIELDS)))
    data = _lines(kept)
    content = "sha256:" + hashlib.sha256(data).hexdigest()
    target = Path(out_dir) / name / version
    _refuse_other_content(target, content)

    manifest: dict[str, Any] = {
        **_MANIFEST_FIELDS,
        **given,
        "format_version": FORMAT_VERSION,
        "name": name,
        "version": version,
        "content_hash": content,
        "domains": _domains(kept),
        "licences": _licences(kept),
    }
    try:
        manifest["recipe_hash"] = _recipe_hash(manifest)
        card = pack_card.card(manifest, kept)
        files = {"README.md": card, **pack_card.licence_notes(kept, licence_texts or {}), "prompts.jsonl": data}
        manifest["files"] = [
            {"path": p, "bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()}
            | ({"rows": len(kept)} if p == "prompts.jsonl" else {})
            for p, b in sorted(files.items())
        ]
        files["pack.json"] = canonical(manifest)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"pack {name}: the manifest cannot be written as canonical JSON ({error})",
            hint="give plain dicts, lists, text and finite numbers",
        ) from None
    files["SHA256SUMS"] = _sums(files)
    with temporary_beside(target, directory=True) as work:
        for path, content_bytes in sorted(files.items()):
            write_new(work / "pack" / path, content_bytes)
        publish(work / "pack", target)
    return target


_MANIFEST_FIELDS: dict[str, Any] = {
    "inputs": None,
    "reference": None,
    "tokenizer": None,
    "template": None,
    "score": None,
    "recipe": None,
    "parents": [],
    "acceptance_length": _CONVENTION,
    "known_limits": [],
}


def _recipe_hash(manifest: Mapping[str, Any]) -> str:
    made_from = {k: manifest.get(k) for k in ("inputs", "recipe", "reference", "tokenizer", "template")}
    return "sha256:" + hashlib.sha256(canonical(made_from)).hexdigest()


def _sums(files: Mapping[str, bytes]) -> bytes:
    return b"".join(f"{hashlib.sha256(b).hexdigest()}  {p}\n".encode() for p, b in sorted(files.items()))


def _refuse_other_content(target: Path, content: str) -> None:
    try:
        there = json.loads((target / "pack.json").read_bytes())["content_hash"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if there != content:
        raise UsageError(
            f"pack {target}: exists with other rows ({str(there)[:19]}...)",
            hint="a version never changes what it holds: give the next version, or remove the old one",
        )


# ------------------------------------------------------------------------------------------------ finding


def load_pack(where: str | os.PathLike[str], expect: str | None = None) -> Pack:
    """Return a pack after checking names, sizes, hashes and rows.

    `where` is a pack's directory, a directory with versions of one pack (the newest is taken), a `promptkit-out`, or
    a name (`chat-mix`, `chat-mix@1.2.0`): under ./promptkit-out, else one that comes with promptkit. `expect` is the
    content hash that it must have ("sha256:...", or a whole citation).

    Raises UsageError if there is no such pack, IntegrityError if it is not what was written.
    """
    path, pinned = _find(where)
    for _ in range(3):
        before = path.stat().st_ino
        problems, manifest, rows = _check(path, expect or pinned)
        if path.stat().st_ino == before:
            break  # else a rebuild replaced it while we read: what we saw is half old, half new
    if problems or manifest is None or rows is None:
        first = problems[0]
        more = f" (and {len(problems) - 1} more; see promptkit verify)" if len(problems) > 1 else ""
        raise IntegrityError(
            f"pack {path}: {first['path']}: {first['problem']}{more}",
            hint="fetch the pack again; do not benchmark with this copy",
        )
    return Pack(rows, manifest, path=str(path))


def verify(
    where: str | os.PathLike[str],
    expect: str | None = None,
    *,
    signature: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Return {"ok": bool, "problems": [{"path", "problem"}]} of a pack found as `load_pack` finds it.

    With `signature` and `key` (a public key of OpenSSH), SHA256SUMS must be signed by that key too; see `signing`.
    """
    if (signature is None) != (key is None):
        raise UsageError(
            "a signature needs the key of who signed, and a key the signature", hint="give both: --signature, --key"
        )
    path, pinned = _find(where)
    problems, _, _ = _check(path, expect or pinned)
    if signature is not None and key is not None and (path / "SHA256SUMS").is_file():
        from promptkit import signing

        if told := signing.problem(path / "SHA256SUMS", signature, key):
            problems.append({"path": "SHA256SUMS", "problem": told})
    return {"ok": not problems, "problems": problems}


def _find(where: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """Return the pack's directory and the hash that its citation pins."""
    path = Path(where)
    if path.is_file() and path.name == "pack.json":
        path = path.parent
    if path.is_dir():
        return _inside(path), None
    text = os.fspath(where)
    m = re.fullmatch(r"([a-z0-9][a-z0-9._-]{0,63})(?:@([0-9.]+))?(?:\+(sha256:[0-9a-f]+))?", text)
    known: dict[str, Path] = {}
    for home in [*_bundled(), Path("promptkit-out") / "packs"]:  # what was built here wins over what was shipped
        if home.is_dir():
            known |= {p.name: p for p in sorted(home.iterdir()) if p.is_dir() and _versions(p)}
    if m is None or m[1] not in known:
        raise UsageError(f"pack {text!r}: no such directory, and no pack of that name", hint=suggest(text, list(known)))
    versions = _versions(known[m[1]])
    if m[2] and m[2] not in versions:
        raise UsageError(f"pack {m[1]}: no version {m[2]}", hint="known: " + ", ".join(versions))
    return known[m[1]] / (m[2] or versions[-1]), m[3]


def _inside(path: Path) -> Path:
    if any((path / f).exists() for f in ("pack.json", "prompts.jsonl", "SHA256SUMS")):
        return path
    if versions := _versions(path):
        return path / versions[-1]
    homes = [p for p in (path / "packs", path) if p.is_dir()]
    found = sorted({p for home in homes for p in home.iterdir() if p.is_dir() and _versions(p)})
    if len(found) == 1:
        return found[0] / _versions(found[0])[-1]
    if found:
        raise UsageError(f"{path}: holds {len(found)} packs", hint="name one: " + ", ".join(map(str, found)))
    raise UsageError(f"{path}: holds no pack", hint="a pack is a directory with pack.json; see promptkit list")


def _versions(path: Path) -> list[str]:
    """Return the versions under NAME/, oldest first."""
    names = [p.parent.name for p in path.glob("*/pack.json")]
    return sorted((n for n in names if re.fullmatch(r"\d+\.\d+\.\d+", n)), key=parse_version)


def _bundled() -> list[Path]:
    from importlib.resources import files

    try:
        root = Path(str(files("promptkit_corpora")))
    except ModuleNotFoundError:  # not installed, but run from a checkout
        root = Path(__file__).resolve().parents[1] / "corpora"
    return [root, root / "packs"]


# ------------------------------------------------------------------------------------------------ checking

Problem = dict[str, str]


def _check(root: Path, expect: str | None) -> tuple[list[Problem], dict[str, Any] | None, list[dict[str, Any]] | None]:
    """Return every problem of a pack directory, and its manifest and rows where they can be read."""
    problems: list[Problem] = []

    def note(path: str, problem: str) -> None:
        problems.append({"path": path, "problem": problem})

    files = _read_all(root, note)
    for name in ("pack.json", "prompts.jsonl", "README.md", "SHA256SUMS"):
        if name not in files:
            note(name, "missing")
    _check_sums(files, note)
    manifest = _check_manifest(files, note)
    rows = _check_rows(files, note)
    if manifest is not None and rows is not None:
        _check_agreement(manifest, rows, files, note)
    if expect is not None and "prompts.jsonl" in files:
        found = hashlib.sha256(files["prompts.jsonl"]).hexdigest()
        wanted = expect.rsplit("sha256:", 1)[-1].strip().lower()
        if not wanted or found != wanted:
            note("prompts.jsonl", f"content hash is sha256:{found}, expected sha256:{wanted}")
    return problems, manifest, rows


def _read_all(root: Path, note: Any) -> dict[str, bytes]:
    """Return the bytes of every regular file of the format; whatever else is there is a problem, and is not opened."""
    files: dict[str, bytes] = {}
    for folder in ("", "LICENSES/"):
        try:
            entries = sorted(os.listdir(root / folder))
        except OSError:
            continue
        if folder and not entries:
            note("LICENSES", "empty directory")
        for entry in entries:
            name = folder + entry
            kind = os.lstat(root / name).st_mode
            if stat.S_ISDIR(kind) and name == "LICENSES":
                continue
            if not stat.S_ISREG(kind):
                note(name, "extra: a directory" if stat.S_ISDIR(kind) else "a link or special file, expected a file")
            elif folder or entry in ("pack.json", "prompts.jsonl", "README.md", "SHA256SUMS"):
                try:
                    files[name] = (root / name).read_bytes()
                except OSError as error:
                    note(name, f"cannot be read: {(error.strerror or '').lower()}")
            else:
                note(name, "extra: no file of a pack")
    return files


def _check_sums(files: Mapping[str, bytes], note: Any) -> None:
    if "SHA256SUMS" not in files:
        return
    text = files["SHA256SUMS"].decode("utf-8", "replace")
    listed = {m[2]: m[1] for m in _SUM_LINE.finditer(text)}
    if text != "".join(f"{h}  {p}\n" for p, h in sorted(listed.items())):
        note("SHA256SUMS", "not canonical: expected lines of hash, two spaces and path, sorted by path")
    for path, wanted in sorted(listed.items()):
        if path not in files:
            note(path, "missing: named in SHA256SUMS")
        elif (found := hashlib.sha256(files[path]).hexdigest()) != wanted:
            note(path, f"sha256 is {found}, SHA256SUMS says {wanted}")
    for path in sorted(files.keys() - listed.keys() - {"SHA256SUMS"}):
        note(path, "extra: not named in SHA256SUMS")


def _check_manifest(files: Mapping[str, bytes], note: Any) -> dict[str, Any] | None:
    if "pack.json" not in files:
        return None
    manifest = _parse(files["pack.json"])
    if not isinstance(manifest, dict):
        note("pack.json", "not a JSON object in canonical form")
        return None
    if manifest.get("format_version") != FORMAT_VERSION:
        note(
            "pack.json", f"format_version is {manifest.get('format_version')!r}, this promptkit reads {FORMAT_VERSION}"
        )
        return None
    missing = sorted(({*_MANIFEST_FIELDS, *_MANIFEST_OWN}) - manifest.keys())
    if missing:
        note("pack.json", "missing keys: " + ", ".join(missing))
        return None
    for key, kinds in _MANIFEST_KINDS.items():
        if not isinstance(manifest[key], kinds):
            note("pack.json", f"{key}: expected {' or '.join('null' if k in _NONE else k.__name__ for k in kinds)}")
            return None
    for key, inner, kinds in (("template", "name", _STRING), ("score", "distance_u6", _INT)):
        if not isinstance((manifest[key] or {}).get(inner), kinds + _NONE):
            note("pack.json", f"{key}: expected {inner} to be {kinds[0].__name__} or null")
            return None
    if manifest["recipe_hash"] != _recipe_hash(manifest):
        note("pack.json", "recipe_hash differs from inputs, recipe, reference, tokenizer and template")
    try:
        check_name(manifest["name"])
        parse_version(manifest["version"])
    except (UsageError, TypeError) as error:
        note("pack.json", getattr(error, "message", "name and version: expected text"))
    return manifest


_MANIFEST_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("reference", "tokenizer", "template", "score", "recipe"), (dict, *_NONE)),
    **dict.fromkeys(("parents", "known_limits", "files"), (list,)),
    **dict.fromkeys(("name", "version", "content_hash", "acceptance_length"), _STRING),
}
_MANIFEST_OWN = ("format_version", "name", "version", "content_hash", "recipe_hash", "files", "domains", "licences")


def _check_rows(files: Mapping[str, bytes], note: Any) -> list[dict[str, Any]] | None:
    if "prompts.jsonl" not in files:
        return None
    data = files["prompts.jsonl"]
    lines = data.split(b"\n")
    if lines.pop() != b"":
        note("prompts.jsonl", "the last line has no end")
        return None
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        row = _parse(line)
        if not isinstance(row, dict):
            note("prompts.jsonl", f"line {number}: not a JSON object in canonical form")
            return None
        for problem in _row_problems(row):
            note("prompts.jsonl", f"line {number}: {problem}")
            return None
        rows.append(row)
    if not rows:
        note("prompts.jsonl", "no rows")
        return None
    keys = [(r["domain"], r["id"]) for r in rows]
    if keys != sorted(keys):
        note("prompts.jsonl", "rows are not sorted by domain and id")
    if len({r["id"] for r in rows}) < len(rows):
        note("prompts.jsonl", "an id comes twice")
    return rows


def _check_agreement(
    manifest: Mapping[str, Any], rows: list[dict[str, Any]], files: Mapping[str, bytes], note: Any
) -> None:
    found = "sha256:" + hashlib.sha256(files["prompts.jsonl"]).hexdigest()
    if manifest["content_hash"] != found:
        note("prompts.jsonl", f"content hash is {found}, pack.json says {manifest['content_hash']}")
    expected = [
        {"path": p, "bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()}
        | ({"rows": len(rows)} if p == "prompts.jsonl" else {})
        for p, b in sorted(files.items())
        if p not in ("pack.json", "SHA256SUMS")
    ]
    if manifest["files"] != expected:
        note("pack.json", "files: paths, sizes, hashes or rows differ from the files beside it")
    if manifest["domains"] != _domains(rows) or manifest["licences"] != _licences(rows):
        note("pack.json", "domains or licences differ from the rows")


def _parse(data: bytes) -> Any:
    """Return the value if `data` is exactly its canonical JSON, else None: so no duplicate keys, no spaces, no NaN."""
    try:
        value = json.loads(data)
        return value if canonical(value) == data else None
    except (ValueError, RecursionError):
        return None
