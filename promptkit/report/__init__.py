"""A score, a reference or a pack -> one HTML file that opens by double-click, and a summary for a pull request.

The page holds everything: no network, no CDN, autoescaped text in which characters that act are visible escapes, a
content security policy that admits only its own scripts (by hash). All charts are inline SVG with numbers beside them;
the map is drawn again by BokehJS, whose files lie in the bokeh package and are inlined, for hover, zoom and filters.
Without that package, or without scripts, the SVG stays. The file stays under 3 MB: where there are more prompts than
fit, the least typical come first and the page says "shown n of N".

    page.html  the template      page.css, page.js, map.js  inlined      views.py  what the template is given
    projection.py  the mix in two dimensions
"""

from __future__ import annotations

import base64
import hashlib
import json
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

    `score` is a Score or its JSON object; `reference` adds the map, sources, lengths and provenance; `pack` its prompts
    and manifest; `texts` are the candidates' openings in input order, which a score does not hold. A score with texts
    and a pack is of the texts, and the pack is shown on the map. Same input, same bytes.
    Raises UsageError where `out` cannot be written, ResourceError where the disk is full.
    """
    manifest = getattr(pack, "manifest", None)
    if not title and isinstance(manifest, dict) and (score is None or texts is None):
        title = f"pack {manifest.get('name')}@{manifest.get('version')}"
    context: dict[str, Any] | None = views.page(score, reference, pack, texts, title or "promptkit report")
    while context is not None:
        page = _page(context).encode("utf-8")
        context = views.shrink(context) if len(page) > MAX_BYTES else None
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

    css, scripts = read("page.css"), [read("page.js")]
    styles = f"'sha256-{_csp_hash(css)}'"
    data = context.get("map")
    library = _bokeh() if data else []
    if data and library:
        scripts = [*library, *scripts, read("map.js")]
        # BokehJS makes <style> elements and draws its tools with data: images; neither can reach the network
        styles = "'unsafe-inline'; img-src data:"
        keep = ("cells", "cell", "mix", "layers", "name")
        text = json.dumps({k: data[k] for k in keep}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        data["json"] = Markup(text.translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}))
    hashes = " ".join(f"'sha256-{_csp_hash(js)}'" for js in scripts)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FunctionLoader(read),
        trim_blocks=True, lstrip_blocks=True,
        finalize=lambda x: x if isinstance(x, Markup) else visible(x, lines=True),
    )  # fmt: skip
    environment.filters.update(number=number, percent=percent, count=count)
    page: str = environment.get_template("page.html").render(
        css=Markup(css), scripts=[Markup(js) for js in scripts], bokeh=bool(library),
        policy=Markup(f"style-src {styles}; script-src {hashes}"), **context,
    )  # fmt: skip
    return page


def _bokeh() -> list[str]:
    """Return BokehJS from the installed bokeh package; nothing where there is none, or none that can be inlined."""
    from importlib.util import find_spec

    found = find_spec("bokeh")
    if found is None or not found.submodule_search_locations:
        return []
    folder = Path(next(iter(found.submodule_search_locations))) / "server" / "static" / "js"
    try:
        texts = [(folder / name).read_text(encoding="utf-8") for name in ("bokeh.min.js", "bokeh-api.min.js")]
    except OSError:
        return []
    return texts if not any("</script" in t.lower() or "<!--" in t for t in texts) else []


def _csp_hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()
