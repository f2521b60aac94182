"""`promptkit verify`, `diff`, `list` and `report`: what is done with things that were built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from promptkit.errors import InputError, PromptkitError, UsageError
from promptkit.visible import count, number

from .app import shared
from .console import Talk, plain, some


@click.command(
    "verify",
    epilog="""\b
Examples:
  promptkit verify promptkit-out/packs/synth_100k/1.0.0
  promptkit verify mix@1.0.0 --signature mix-1.0.0.sig --key ada.pub""",
)
@click.argument("pack")
@click.option("--expect", metavar="HASH", help="The content hash that it must have, or a whole citation.")
@click.option("--signature", metavar="FILE", help="Of SHA256SUMS, made by ssh-keygen -Y sign -n promptkit.")
@click.option("--key", metavar="FILE", help="Public key (OpenSSH) that must have signed.")
@shared
def verify_command(talk: Talk, pack: str, expect: str | None, signature: str | None, key: str | None) -> int:
    """Check names, sizes and hashes of PACK, and who signed it; exits 5 where one differs."""
    from promptkit.pack import verify

    found = plain(verify(pack, expect, signature=signature, key=key))
    if talk.json:
        talk.document(found)
    elif found["ok"]:
        from promptkit.pack import load_pack

        signed = f", signed by {key}" if signature else ""
        # a directory of versions or a name says not which
        talk.line(f"ok: {load_pack(pack).citation}{signed}", paste=True)
    else:
        for p in found["problems"]:
            talk.line(f"{p['path']}: {p['problem']}", "red", paste=True)
    if found["ok"]:
        talk.next("promptkit", "score", pack, note="how well does it represent the mix?")
        return 0
    talk.error(f"{pack}: {some(len(found['problems']), 'problem')}", "fetch the pack again; do not benchmark with it")
    return 5


@click.command(
    "diff",
    epilog="""\b
Example:
  promptkit diff packs/mix/1.0.0 packs/mix/1.1.0 --exit-code""",
)
@click.argument("old")
@click.argument("new")
@click.option("--exit-code", is_flag=True, help="Exit 3 where the two differ.")
@shared
def diff_command(talk: Talk, old: str, new: str, exit_code: bool) -> int:
    """Say which prompts were added, removed, changed or relabelled between two packs, and the least version bump."""
    from promptkit.pack import diff

    found = plain(diff(old, new))
    kinds = ("added", "removed", "changed", "relabelled")
    if talk.json:
        talk.document(found)
    else:
        for kind in kinds:
            ids = found[kind]
            shown = ids if talk.verbose else ids[:5]
            more = f" and {len(ids) - len(shown)} more" if len(ids) > len(shown) else ""
            talk.pair(kind, f"{len(ids):>5}   {' '.join(i[:8] for i in shown)}{more}", width=12)
        talk.line(f"distance    {number(found.get('distance_before'), 3)} -> {number(found.get('distance_after'), 3)}")
        talk.line(f"least bump  {found.get('bump') or 'none: nothing changed'}")
    talk.next("promptkit", "verify", new)
    return 3 if exit_code and any(found[k] for k in kinds) else 0


@click.command(
    "list",
    epilog="""\b
Example:
  promptkit list promptkit-out""",
)
@click.argument("directory", default=".")
@shared
def list_command(talk: Talk, directory: str) -> int:
    """List the packs and references under DIRECTORY, and the packs that come with promptkit."""
    from .scoring import references_here

    root = Path(directory)
    if not root.is_dir():
        raise UsageError(f"{directory}: no such directory", hint="give the directory of a build, or none for this one")
    packs = [_describe(p) for p in _pack_directories(root)] + [{**_describe(p), "bundled": True} for p in _bundled()]
    references = [str(p) for p in references_here(root)] + [str(root)] * (root / "reference.json").is_file()
    from promptkit import bundled

    names = list(bundled.packs())
    if talk.json:
        talk.document({"packs": packs, "references": references, "bundled_references": names})
        return 0
    if packs:
        talk.table(
            ["pack", ">prompts", "content", "where"],
            [
                [
                    f"{p['name']}@{p['version']}",
                    count(p["prompts"]),
                    (p["content_hash"] or "").removeprefix("sha256:")[:12],
                    p["path"],
                ]
                for p in packs
            ],
            wide="where",
        )
    else:
        talk.line("no packs here")
    for path in references:
        talk.line(f"reference  {path}", paste=True)
    for name in names:
        talk.line(f"reference  {name} (comes with promptkit)")
    if packs:
        talk.next("promptkit", "verify", packs[0]["path"])
    else:
        talk.next("promptkit", "build", "--from", "TRAINING_DIR", note="a reference, a prompt pack and a report")
    return 0


def _pack_directories(root: Path) -> list[Path]:
    patterns = ("pack.json", "*/pack.json", "*/*/pack.json", "packs/*/*/pack.json", "*/packs/*/*/pack.json")
    return sorted({p.parent for pattern in patterns for p in root.glob(pattern)})


def _bundled() -> list[Path]:
    from importlib.resources import files

    try:
        root = Path(str(files("promptkit_corpora")))
    except ModuleNotFoundError:
        return []
    return _pack_directories(root)


def _describe(path: Path) -> dict[str, Any]:
    """Return what a pack's manifest says, without checking it (verify does); a broken one is listed as such."""
    try:
        manifest = json.loads((path / "pack.json").read_bytes())
        rows = next((f.get("rows") for f in manifest.get("files", ()) if f.get("path") == "prompts.jsonl"), None)
        name, version, content = (manifest.get(k) for k in ("name", "version", "content_hash"))
    except (OSError, ValueError, AttributeError, TypeError):
        name, version, content, rows = "unreadable", "?", None, None
    return {"name": str(name), "version": str(version), "prompts": rows, "content_hash": content, "path": str(path)}


@click.command(
    "report",
    epilog="""\b
Examples:
  promptkit report promptkit-out/reference
  promptkit report packs/mix/1.0.0 --against promptkit-out/reference
  promptkit report score.json --out score.html""",
)
@click.argument("what", metavar="REF|PACK|SCORE.json")
@click.option("--out", metavar="FILE", default="report.html", show_default=True, help="The HTML file to write.")
@click.option("--against", metavar="REF", help="For a pack: the mix to show it on (map, shares, lengths).")
@shared
def report_command(talk: Talk, what: str, out: str, against: str | None) -> int:
    """Write one self-contained HTML page about a reference, a pack or a saved `score --json`."""
    from promptkit.reference import load_reference
    from promptkit.report import render

    path = Path(what)
    if against is not None and not (path / "pack.json").is_file():
        raise UsageError(f"--against with {what}, which is no pack directory", hint="leave it out, or name a pack")
    if not path.exists():
        raise UsageError(
            f"{what}: no such file or directory", hint="give a reference, a pack or the output of score --json"
        )
    if path.is_file():
        render(score=_saved_score(path), out=out, title=path.name)
    elif (path / "pack.json").is_file():
        from promptkit.pack import load_pack

        mix = load_reference(_reference_in(Path(against))) if against is not None else None
        render(pack=load_pack(what), reference=mix, out=out)
    else:
        render(reference=load_reference(_reference_in(path)), out=out, title=path.name)
    if talk.json:
        talk.document({"report": out})
    else:
        talk.line(f"report {out}, {Path(out).stat().st_size / 1e6:.2f} MB", paste=True)
    talk.say("a browser shows it; it needs no network", "cyan")
    return 0


def pack_beside(reference: str) -> Any:
    """Return the pack of the build that made a reference, where there is exactly one and it is whole; else None."""
    from promptkit.pack import load_pack

    found = _pack_directories(Path(reference).parent / "packs")
    try:
        return load_pack(found[0]) if len(found) == 1 else None
    except PromptkitError:
        return None  # a report on prompts is no place to complain about a pack


def _reference_in(path: Path) -> str:
    inside = path / "reference"
    return str(inside if (inside / "reference.json").is_file() else path)


def _saved_score(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as e:
        raise InputError(
            f"{path}: not readable as JSON: {e}", hint="save it with: promptkit score ... --json > score.json"
        ) from None
    if not isinstance(value, dict) or not {"verdict", "prompts", "domains"} <= set(value):
        raise InputError(
            f"{path}: no score (no verdict, prompts or domains in it)",
            hint="save it with: promptkit score ... --json > score.json",
        )
    return value
