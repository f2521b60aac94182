"""The two things in a pack that people read: the data-set card and the licence notes.

The card begins with the YAML header that the Hugging Face hub reads. It holds counts and names only, never a prompt's
text. Names come from strangers' directories, so nothing in them may act as Markdown or HTML.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]

# The hub's own identifiers, for the header; any other licence is "other".
_HUB = {"Apache-2.0", "MIT", "CC-BY-4.0", "CC-BY-SA-3.0", "CC-BY-SA-4.0", "CC0-1.0", "BSD-3-Clause", "ODC-By-1.0"}
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"))


def card(manifest: Mapping[str, Any], rows: Rows) -> bytes:
    """Return README.md: header, how to load and cite, domains, sources, licences, what to know before using it."""
    name, version, n = manifest["name"], manifest["version"], len(rows)
    trained = sum(r["in_training"] for r in rows)
    parts = [
        _header(manifest, rows),
        f"# {name} {version}",
        _inert((manifest["recipe"] or {}).get("description", "")),  # only written packs have one
        f"{n} prompts with domain labels, {_origin(manifest)}.",
    ]
    recipe = manifest["recipe"] or {}
    if "holdout" in recipe:
        parts.append(_unseen(recipe["holdout"], n))
    if trained:
        parts.append(
            f"> **{trained} of {n} prompts are in the training data** of the drafter that this pack was built for. "
            "They represent its mix best and flatter it, by how much was not measured: report results on prompts it "
            "never saw beside these."
        )
    parts += [
        f"Cite as `{name}@{version}+{manifest['content_hash']}`. The hash is the sha256 of `prompts.jsonl`.",
        "```python\nimport promptkit\n\n"
        f'for prompt in promptkit.load_pack("PATH/{name}/{version}", expect="{manifest["content_hash"]}"):\n'
        "    print(prompt.id, prompt.domain, prompt.messages)\n```",
        "Check a copy with `promptkit verify PATH` or `sha256sum -c SHA256SUMS`.",
        "## Domains",
        _table(("domain", "prompts", "share", "unsure label"), [
            (d, c["rows"], f"{100 * c['rows'] / n:.1f} %", c["unsure"]) for d, c in manifest["domains"].items()
        ]),
        "## Sources",
        _table(("source", "prompts"), sorted(Counter(str(r["source"] or "not known") for r in rows).items())),
        "## Lengths",
        _table(("", "5 %", "median", "95 %"), [_quantiles(rows, "n_prompt_tokens", "prompt tokens"),
                                              _quantiles(rows, "expected_output_tokens", "expected output tokens")]),
        "## Licences",
        _table(("licence", "prompts"), manifest["licences"].items()),
        _withheld(recipe),
        "NOASSERTION means that the licence is not known: ask before you share these rows." * (
            "NOASSERTION" in manifest["licences"]
        ),
        *_personal(recipe.get("personal_data")),
        "## Known limits",
        "\n".join(f"- {_inert(limit)}" for limit in manifest["known_limits"] or ["none recorded"]),
        f"Acceptance length on this pack means: {_inert(manifest['acceptance_length'])}.",
    ]  # fmt: skip
    return ("\n\n".join(p for p in parts if p) + "\n").encode("utf-8", "replace")


def _unseen(holdout: Mapping[str, Any], n: int) -> str:
    rows = holdout["drawn"] + holdout["near_twins"]
    return (
        f"> **None of the {n} prompts is in training, provided the next training run excludes the rows of "
        f"holdout.jsonl** ({rows} rows: {holdout['drawn']} drawn by chance, {holdout['near_twins']} near-twins of "
        f"these; sha256 `{holdout['sha256']}`). A drafter that was trained before, or without that file, has seen them."
    )


def _withheld(recipe: Mapping[str, Any]) -> str:
    if not (left := recipe.get("withheld")):
        return ""
    return (
        f"{left['rows']} further prompts were chosen and are withheld, as they may not be shared. Whoever has the same "
        f"training data can build the whole pack; its content hash is `{left['whole_content_hash']}`."
    )


def _personal(counts: Mapping[str, Any] | None) -> list[str]:
    """Say what was looked for, what was found and what was done; only packs that were built have it."""
    if not counts:
        return []
    found = ", ".join(f"{kind} {n}" for kind, n in counts["found"].items()) or "nothing"
    done = "they may be in this pack" if counts["kept"] else "they were left out"
    return [
        "## Personal data",
        f"{counts['looked_at']} prompts were searched for keys and tokens, e-mail addresses and phone numbers. Found: "
        f"{found}, in {counts['flagged']} prompts" + (f"; {done}." if counts["flagged"] else ".") + " Patterns find "
        "forms, not people: names, addresses of houses and passwords in prose pass.",
    ]


def _origin(manifest: Mapping[str, Any]) -> str:
    if (manifest["recipe"] or {}).get("kind") == "written":
        return "written for promptkit; they stand for no particular training mix"
    return "chosen by promptkit to represent a training mix"


def licence_notes(rows: Rows, texts: Mapping[str, str]) -> dict[str, bytes]:
    """Return LICENSES/<id>.txt -> bytes for each licence id in use: its text where given, else where to read it."""
    by_id: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        for spdx in _ids(row["licence"]):
            by_id.setdefault(spdx, []).append(row)
    out: dict[str, bytes] = {}
    for spdx, held in sorted(by_id.items()):
        sources = ", ".join(sorted({str(r["source"] or "not known") for r in held}))
        note = f"{spdx}\n\n{len(held)} rows of this pack, from: {' '.join(sources.split())}\n\n"
        if spdx in texts:
            note += texts[spdx].rstrip() + "\n"
        elif spdx == "NOASSERTION":
            note += "The licence of these rows is not known. Ask whoever holds the training data before sharing them.\n"
        else:
            note += f"The text of this licence: https://spdx.org/licenses/{spdx}.html\n"
        out[f"LICENSES/{spdx}.txt"] = note.encode("utf-8", "replace")
    return out


def _ids(expression: str) -> list[str]:
    words = re.findall(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}", expression)
    return sorted({w.rstrip(".") for w in words if w not in ("AND", "OR", "WITH")}) or ["NOASSERTION"]


def _header(manifest: Mapping[str, Any], rows: Rows) -> str:
    licences = list(manifest["licences"])
    spdx = licences[0].lower() if len(licences) == 1 and licences[0] in _HUB else "other"
    languages = sorted({r["language"] for r in rows if re.fullmatch(r"[a-z]{2,3}", r["language"] or "")} - {"und"})
    size = next((label for limit, label in _SIZES if len(rows) < limit), "n>100K")
    lines = [f"license: {spdx}"]
    if spdx == "other":
        lines += [f"license_name: {_yaml(', '.join(licences))}", "license_link: LICENSES"]
    if languages:
        lines += ["language:", *(f"- {_yaml(code)}" for code in languages)]
    lines += [
        f"pretty_name: {_yaml(manifest['name'] + ' ' + manifest['version'])}",
        f"size_categories:\n- {_yaml(size)}",
        "tags:\n- benchmark\n- prompts\n- speculative-decoding",
        "configs:\n- config_name: default\n  data_files: prompts.jsonl",
    ]
    return "---\n" + "\n".join(lines) + "\n---"


def _yaml(text: str) -> str:
    """Return a double-quoted YAML scalar: JSON's escapes are a part of YAML's, and `no` stays text."""
    return json.dumps(text)


def _table(head: Sequence[str], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_inert(cell) for cell in line) + " |" for line in lines)


def _inert(cell: Any) -> str:
    """Return text that neither ends a table cell nor acts as Markdown or HTML."""
    text = "".join(c if c.isprintable() else " " for c in str(cell))
    return re.sub(r"([\\`*_\[\]<>|!#])", r"\\\1", text) if text != "---" else text


def _quantiles(rows: Rows, key: str, name: str) -> tuple[Any, ...]:
    values = sorted(r[key] for r in rows if r[key] is not None)
    if not values:
        return name, "-", "-", "-"
    return name, *(values[min(len(values) - 1, len(values) * q // 100)] for q in (5, 50, 95))
