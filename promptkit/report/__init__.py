"""A score, a reference or a pack -> one HTML file that opens by double-click, and a summary for a pull request.

The page holds everything: no network, no CDN, a content security policy that admits only its own style and script (by
hash), autoescaped text in which characters that act are visible escapes. Sorting and filtering need the script;
nothing else does. Charts are inline SVG with numbers beside them. The file stays under 3 MB: where there are more
prompts than fit, the least typical come first and the page says "shown n of N".

    page.html  the template      page.css, page.js  inlined      views.py  what the template is given
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptkit.report import views
from promptkit.visible import count, number, one_line, percent, visible
from promptkit.writing import write_file

if TYPE_CHECKING:
    from promptkit.pack import Pack
    from promptkit.reference import Reference

MAX_BYTES = 3_000_000
MAX_PROMPTS = 1000


def render(
    score: Any = None,
    reference: Reference | None = None,
    pack: Pack | None = None,
    *,
    out: str | os.PathLike[str],
    texts: Sequence[str] | None = None,
    title: str = "",
) -> Path:
    """Write the page to `out` (replaced as a whole) and return its path.

    `score` is a Score or its JSON object; `reference` adds sources, lengths and provenance; `pack` its prompts and
    manifest; `texts` are the candidates' openings in input order, which a score does not hold. Same input, same bytes.
    Raises UsageError where `out` cannot be written, ResourceError where the disk is full.
    """
    manifest = getattr(pack, "manifest", None)
    if not title and isinstance(manifest, dict):
        title = f"pack {manifest.get('name')}@{manifest.get('version')}"
    n = MAX_PROMPTS
    while True:
        page = _page(views.page(score, reference, pack, texts, title or "promptkit report", n)).encode("utf-8")
        if len(page) <= MAX_BYTES or n < 10:
            break
        n //= 2
    write_file(out, page)
    return Path(out)


def to_markdown(score: Any, texts: Sequence[str] = ()) -> str:
    """Return a summary of a score for a pull-request comment: verdict, parts, gates, what does not belong."""
    v = views.as_json(score)
    answer = {"yes": "representative", "no": "not representative"}.get(v.get("verdict_code") or "", "not sure")
    lines = [f"### promptkit: {answer}", "", _inline(v["verdict"], 2000), ""]
    lines += ["| part | value | 95 % interval |", "|---|---|---|"]
    for p in views.parts(v):
        lines.append(f"| {p['name']} | {p['value']} | {p['interval']} |")
    for g in v.get("gates") or ():
        sign = "&lt;=" if g["gate"].startswith("max_") else "&gt;="
        mark = "passed" if g["passed"] else "**failed**"
        lines.append(f"| gate: {g['key']} {sign} {g['limit']:g} | {number(g['value'])} | {mark} |")
    foreign = [p for p in views.by_typicality(v) if p.get("belongs") is False]
    if foreign:
        total = len(v["prompts"])
        lines += ["", f"{len(foreign)} of {total} prompts do not belong (chance alone: about {0.05 * total:.1f}):", ""]
        for p in foreign[:5]:
            text = views.text_of(p, texts) or p["id"]
            lines.append(f"- {number(p.get('typicality'), 3)} {_inline(text)}")
        if len(foreign) > 5:
            lines.append(f"- and {len(foreign) - 5} more")
    missing = v.get("missing") or []
    if missing:
        names = "; ".join(f"{_inline(m['name'])} ({percent(m['reference_share'])})" for m in missing[:5])
        lines += ["", f"Missing: {names}"]
    fingerprint = (v.get("reference") or {}).get("fingerprint") or ""
    lines += ["", f"n = {v.get('n')}, reference `{_inline(fingerprint[:12])}`, promptkit {v.get('promptkit_version')}"]
    return "\n".join(lines)


def _inline(text: object, n_characters: int = 120) -> str:
    """Make a text safe inside Markdown: one line, no markup of its own."""
    return one_line(text, n_characters).translate(
        {ord(c): f"&#{ord(c)};" for c in "\\`*_[]<>|#!&@~"}
    )  # @ would notify people


def _page(context: dict[str, Any]) -> str:
    import jinja2
    from markupsafe import Markup

    def read(name: str) -> str:
        return (Path(__file__).parent / name).read_text(encoding="utf-8")

    css, js = read("page.css"), read("page.js")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FunctionLoader(read),
        trim_blocks=True, lstrip_blocks=True,
        finalize=lambda x: x if isinstance(x, Markup) else visible(x, lines=True),
    )  # fmt: skip
    environment.filters.update(number=number, percent=percent, count=count)
    page: str = environment.get_template("page.html").render(
        css=Markup(css), js=Markup(js), css_hash=_csp_hash(css), js_hash=_csp_hash(js), **context
    )
    return page


def _csp_hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()
