"""What changed between two packs, and the least version number that says so honestly.

    patch   card or packaging: the rows, their labels and what they stand for are the same
    minor   rows added, or an unknown (null) value filled in: every old row is as it was
    major   a row removed, edited or relabelled; another reference, tokenizer, template or embedder

A number compared with one from another major version is compared with another benchmark.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptkit.errors import UsageError

if TYPE_CHECKING:
    from promptkit.pack import Pack

Version = tuple[int, int, int]
_RANK = {None: 0, "patch": 1, "minor": 2, "major": 3}
_STANDS_FOR = ("reference", "tokenizer", "template")


def parse_version(version: str) -> Version:
    """Return (major, minor, patch). Raises UsageError for anything but three numbers with dots."""
    m = re.fullmatch(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})", version)
    if m is None:
        raise UsageError(f"version {version!r}: expected MAJOR.MINOR.PATCH", hint="for example 1.0.0")
    return int(m[1]), int(m[2]), int(m[3])


def bumped(version: str, bump: str | None) -> str:
    """Return the version after a bump of "patch", "minor" or "major"; the same one for None."""
    major, minor, patch = parse_version(version)
    new = {None: (major, minor, patch), "patch": (major, minor, patch + 1), "minor": (major, minor + 1, 0)}
    return ".".join(map(str, new.get(bump, (major + 1, 0, 0))))


def diff(a: Pack | str | os.PathLike[str], b: Pack | str | os.PathLike[str]) -> dict[str, Any]:
    """Return how pack `b` differs from pack `a`.

    `added, removed, changed, relabelled`: lists of ids (an edited message is another id, so it shows as removed and
    added; relabelled is another domain, changed any other field). `distance_before, distance_after`: each pack's
    distance to the reference it was built from, None where it is not stored. `bump`: the least version bump that
    tells the truth, None when nothing changed.
    """
    a, b = _loaded(a), _loaded(b)
    out = _row_changes(a.rows, b.rows)
    out["distance_before"], out["distance_after"] = _distance(a.manifest), _distance(b.manifest)
    out["bump"] = _largest(_row_bump(a.rows, b.rows, out), _manifest_bump(a.manifest, b.manifest))
    return out


def next_version(
    home: str | os.PathLike[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    wanted: str | None = None,
    fields: Mapping[str, Any] | None = None,
) -> str:
    """Return the version under which these rows may be written to `home` (`.../NAME`), 1.0.0 when it is the first.

    Compared with the newest version there: the same version if nothing changed, else the least bump. A `wanted`
    version is returned if it is at least that. `fields` (of the manifest to come) are compared too where given.
    Raises UsageError for a `wanted` version that is too small or holds other rows.
    """
    from promptkit import pack

    if wanted is not None:
        parse_version(wanted)
    there = pack._versions(Path(home)) if Path(home).is_dir() else []
    if not there:
        return wanted or "1.0.0"
    content = pack.content_hash(rows := list(rows))
    if wanted in there and pack.load_pack(Path(home) / wanted).content_hash == content:
        return wanted
    newest = pack.load_pack(Path(home) / there[-1])
    kept = pack._canonical_rows(rows)
    bump = _row_bump(newest.rows, kept, _row_changes(newest.rows, kept))
    if fields is not None:
        bump = _largest(bump, _manifest_bump(newest.manifest, fields))
    least = bumped(newest.version, bump)
    if wanted is None:
        return least
    if parse_version(wanted) < parse_version(least):
        raise UsageError(
            f"version {wanted}: pack {newest.name}@{newest.version} is there, and this one "
            + (f"differs by a {bump} change" if bump else "is the same"),
            hint=f"the least honest version is {least}",
        )
    return wanted


def _loaded(pack: Pack | str | os.PathLike[str]) -> Pack:
    if isinstance(pack, str | os.PathLike):
        from promptkit.pack import load_pack

        return load_pack(pack)
    return pack


Rows = list[dict[str, Any]]


def _row_changes(before: Rows, after: Rows) -> dict[str, Any]:
    old, new = {r["id"]: r for r in before}, {r["id"]: r for r in after}
    both = sorted(old.keys() & new.keys())

    def rest(row: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in row.items() if k != "domain"}

    return {
        "added": sorted(new.keys() - old.keys()),
        "removed": sorted(old.keys() - new.keys()),
        "changed": [i for i in both if rest(old[i]) != rest(new[i])],
        "relabelled": [i for i in both if old[i]["domain"] != new[i]["domain"]],
    }


def _row_bump(before: Rows, after: Rows, changes: Mapping[str, Any]) -> str | None:
    old, new = {r["id"]: r for r in before}, {r["id"]: r for r in after}
    edited = any(old[i][k] not in (None, new[i][k]) for i in changes["changed"] for k in old[i])
    if changes["removed"] or changes["relabelled"] or edited:
        return "major"
    return "minor" if changes["added"] or changes["changed"] else None


def _manifest_bump(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Compare what the rows stand for, then the rest of the manifest that is written down in both."""
    if any(before.get(k) != after.get(k) for k in _STANDS_FOR if k in before and k in after):
        return "major"
    embedders = [(m.get("recipe") or {}).get("embedder") for m in (before, after)]
    if embedders[0] != embedders[1] and "recipe" in after:
        return "major"
    own = ("version", "content_hash", "files", "domains", "licences", "parents", "recipe_hash")
    same = {k for k in before.keys() & after.keys() if k not in own}
    # The card names version and hash, so it moves with them: only the licence notes tell packaging.
    notes = [[f for f in m.get("files") or () if f["path"].startswith("LICENSES/")] for m in (before, after)]
    differs = any(json.dumps(before[k], sort_keys=True) != json.dumps(after[k], sort_keys=True) for k in same)
    return "patch" if differs or ("files" in after and notes[0] != notes[1]) else None


def _largest(*bumps: str | None) -> str | None:
    return max(bumps, key=lambda b: _RANK[b])


def _distance(manifest: Mapping[str, Any]) -> float | None:
    value = (manifest.get("score") or {}).get("distance_u6")
    return None if value is None else value / 1e6
