"""What the page shows, as plain values: every choice about data is made here, the template only places it.

Comes in: the JSON object of a score (DESIGN "Stable keys"), a Reference, a Pack. Goes out: one dict for `page.html`.
Where score, pack and texts come together, the texts are the candidates and the pack is a third thing on the map.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from promptkit.conversation import opening
from promptkit.visible import count, interval, is_number, number, one_line, p_value, percent, visible

TEXT_CHARACTERS = 600  # of one prompt on the page
NEAREST_CHARACTERS = 200
EXAMPLE_CHARACTERS = 400
WIDTH = 400  # of the distance axis
MAX_PROMPTS = 1000  # in the table
MAP_POINTS = 5000  # that can be hovered over, of all layers together
HOVER_CHARACTERS = 140

DEFINITIONS = {
    "distance": "Maximum mean discrepancy between the prompts' openings and the mix (Gaussian kernel).",
    "noise floor": "Mean distance of as many openings drawn at random from held-out rows of the mix.",
    "ratio": "Distance over noise floor: 1 on average for a random draw of the mix. For a given difference it grows "
    "with the number of prompts.",
    "excess": "Distance beyond chance; does not grow with n, so it compares sets of different size.",
    "fidelity": "Share of prompts whose typicality is at least 0.05, over 0.95 (at most 1): do these prompts belong?",
    "coverage": "Share of held-out rows of the mix within reach of a prompt, over what random draws of n reach.",
    "mix overlap": "1 - total variation distance of the shares over the regions; beside it what random draws get.",
    "domain overlap": "The same over domains.",
    "p-value": "Chance that a random draw of the mix looks at least this odd, in proportions or in belonging.",
    "typicality": "Of one prompt: share of held-out rows of the mix that are at least as odd, each beside its domain. "
    "Uniform on [0, 1] for prompts of the mix; below 0.05 a prompt does not belong.",
    "closeness": "Mean cosine to the 10 nearest training rows, TF-IDF over all token ids of the target's tokenizer.",
    "cross-entropy": "Bits per token under a trigram model of the mix.",
    "unusual": "Longer, shorter, of more user turns or with tools as at most 1 in 200 rows are: what typicality, "
    "which reads words, cannot see.",
    "leaked": "The prompt, or a near-duplicate (80 % of word 5-grams), is in the training mix.",
    "by chance": "Beside a share: where 95 % of random draws of the mix with as many prompts lie.",
    "map": "The two principal directions of the mix's vectors. Near on the map is no proof of near, and a prompt that "
    "shares nothing with the mix lies at its middle: typicality says what is foreign.",
    "opening": "What is compared: the system turn, unless it is the template's default, and the first user turn.",
}


# -- the score -----------------------------------------------------------------------------------------------------


def as_json(score: Any) -> dict[str, Any]:
    """Return a Score as its JSON object; an object is returned as it is."""
    return score if isinstance(score, dict) else dict(score.to_json())


def by_typicality(v: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the prompts, least typical first; those without a typicality last."""
    return sorted(
        v.get("prompts") or [],
        key=lambda p: (p.get("typicality") is None, p.get("typicality") or 0.0, p.get("index") or 0),
    )


def text_of(prompt: dict[str, Any], texts: Sequence[str] | None) -> str:
    index = prompt.get("index")
    if texts and isinstance(index, int) and 0 <= index < len(texts):
        return texts[index]
    return str(prompt.get("text") or "")


def parts(v: dict[str, Any]) -> list[dict[str, Any]]:
    chance, bounds = v.get("chance") or {}, v.get("intervals") or {}
    return [
        {
            "name": name,
            "value": p_value(v.get(key)) if key == "p_value" else number(v.get(key), digits),
            "interval": interval(bounds.get(key), digits),
            "chance": number(chance.get(key), digits),
            "asks": asks,
        }
        for name, key, digits, asks in (
            ("fidelity", "fidelity", 2, "do these prompts belong?"),
            ("coverage", "coverage", 2, "is the mix reached?"),
            ("mix overlap", "mix_overlap", 2, "are the proportions right?"),
            ("domain overlap", "domain_overlap", 2, "the same, by domain"),
            ("ratio", "ratio", 2, "how far, in multiples of the noise floor?"),
            ("excess", "excess", 3, "how far beyond chance, whatever the size?"),
            ("p-value", "p_value", 3, "could a random draw of the mix look like this?"),
        )
    ]


def _score_view(v: dict[str, Any]) -> dict[str, Any]:
    return {
        "verdict": v["verdict"],
        "code": v.get("verdict_code") if v.get("verdict_code") in ("yes", "no") else "unsure",
        "n": v.get("n"),
        "ratio": v.get("ratio"),
        "noise_floor": v.get("noise_floor"),
        "axis": _axis(v),
        "parts": parts(v),
        "chance": any(is_number(x) for x in (v.get("chance") or {}).values()),
        "power": _power(v),
        "advice": f"Size: {v['advice']}." if v.get("advice") else "",
        "worth": f"Worth: {v['worth']['text']}." if v.get("worth") else "",
    }


def _axis(v: dict[str, Any]) -> dict[str, Any] | None:
    """Place the noise floor, the band of random draws and this set on an axis that begins at 0."""
    ratio, floor = v.get("ratio"), v.get("noise_floor")
    if not is_number(ratio) or not is_number(floor) or math.isinf(ratio) or floor <= 0:
        return None
    band = (v.get("intervals") or {}).get("noise_floor") or [None, None]
    top = max(2.0, 1.15 * ratio)

    def x(r: float) -> float:
        return round(10.0 + WIDTH * min(max(r, 0.0), top) / top, 1)

    ok = None not in band
    return {
        "at": x(ratio),
        "one": x(1.0),
        "low": x(band[0] / floor) if ok else None,
        "high": x(band[1] / floor) if ok else None,
        "anchor": "middle" if 60 < x(ratio) < 360 else "start" if x(ratio) <= 60 else "end",
    }


def _structure(v: dict[str, Any]) -> list[dict[str, Any]]:
    """Return how long and how built the prompts are beside the mix: medians as counts, the others as shares."""
    rows = []
    for s in v.get("structure") or []:
        mix, here = s.get("reference"), s.get("candidates")
        if s["what"].startswith("median"):
            mix, here = (count(round(x)) if is_number(x) else "-" for x in (mix, here))
        else:
            mix, here = percent(mix), percent(here)
        rows.append({"what": s["what"], "mix": mix, "here": here, "p_value": p_value(s.get("p_value"))})
    return rows


def _power(v: dict[str, Any]) -> str:
    known = [p for p in v.get("power") or [] if is_number(p.get("power")) and p.get("n") == v.get("n")]
    blind = [f"{p['change']} (seen in {100 * p['power']:.0f} % of tries)" for p in known if p["power"] < 0.8]
    if not known:
        return ""
    return f"{v.get('n')} prompts cannot reliably see: {'; '.join(blind)}." if blind else ""


def _prompt_rows(v: dict[str, Any], texts: Sequence[str] | None, limit: int) -> list[dict[str, Any]]:
    rows = []
    for p in by_typicality(v)[:limit]:
        flags = []
        if p.get("belongs") is False:
            flags.append({"kind": "bad", "text": "does not belong"})
        if p.get("leaked"):
            flags.append({"kind": "mild", "text": "leaked"})
        if p.get("outliers"):
            flags.append({"kind": "mild", "text": "unusual in length or structure"})
        text = text_of(p, texts) or str(p["id"])
        near = sorted(p.get("nearest") or [], key=lambda x: -(x.get("similarity") or 0.0))[:3]
        rows.append(
            {
                "id": str(p["id"]),
                "typicality": p.get("typicality"),
                "cross_entropy": p.get("cross_entropy"),
                "closeness": p.get("closeness"),
                "domain": p.get("domain") or "",
                "flags": flags,
                "head": one_line(text, 90),
                "text": _cut(text, TEXT_CHARACTERS),
                "unusual": "; ".join(p.get("outliers") or []),
                "nearest": [
                    {
                        "similarity": x.get("similarity"),
                        "source": x.get("source") or "",
                        "text": one_line(x.get("text") or "", NEAREST_CHARACTERS),
                    }
                    for x in near
                ],
            }
        )  # fmt: skip
    return rows


def example_text(example: Any) -> str:
    """Return an example opening, which is a text or an object with one."""
    return example if isinstance(example, str) else str(example.get("text") or "")


def _cut(text: str, n: int) -> str:
    return text if len(text) <= n else text[:n].rstrip() + f"… ({len(text) - n:,} more characters)"


# -- the reference and the pack ------------------------------------------------------------------------------------


def _sources(reference: Any, pack: Any) -> list[dict[str, Any]]:
    rows = (reference.counts or {}).get("sources") or []
    drawn = Counter(str(p.source) for p in pack if p.source) if pack is not None else Counter()
    here = {s["source"]: drawn[s["source"]] / len(pack) for s in rows} if drawn else {}
    if not any(here.values()):  # a pack of the user's own prompts
        here = {}
    n_rows = sum(s.get("rows") or 0 for s in rows) or 1
    n_tokens = sum(s.get("supervised_tokens") or 0 for s in rows) or 1
    return [
        {
            "source": s["source"],
            "rows": s.get("rows"),
            "tokens": s.get("tokens"),
            "supervised_tokens": s.get("supervised_tokens"),
            "row_share": (s.get("rows") or 0) / n_rows,
            "token_share": (s.get("supervised_tokens") or 0) / n_tokens,
            "here": here.get(s["source"]),
            "band": _chance_band((s.get("rows") or 0) / n_rows, len(pack)) if here else None,
        }
        for s in rows
    ]


def _histogram(
    title: str, note: str, mix: Iterable[Any], here: Iterable[Any] | None, name: str
) -> dict[str, Any] | None:
    """Shares per power-of-two bin; bin k holds lengths from 2^k up to, not including, 2^(k+1)."""
    a = Counter(int(x).bit_length() - 1 for x in mix if x)
    b = Counter(int(x).bit_length() - 1 for x in here if x) if here is not None else None
    if not a:
        return None
    keys = range(min([*a, *(b or a)]), max([*a, *(b or a)]) + 1)
    bins = [
        {
            "label": f"{2**k:,}+",
            "mix": a[k] / a.total(),
            "here": b[k] / b.total() if b else None,
        }
        for k in keys
    ]
    top = max(max(a[k] / a.total(), b[k] / b.total() if b else 0.0) for k in keys)
    return {"title": title, "note": note, "bins": bins, "top": top, "name": name}


def _lengths(reference: Any, pack: Any, texts: Sequence[str] | None, name: str) -> list[dict[str, Any]]:
    if reference is None:
        return []
    sample = reference.sample
    here_in: list[int] | None = None
    here_out: list[int] | None = None
    if pack is not None:
        here_in = [p.extra.get("n_prompt_tokens") or 0 for p in pack]
        here_out = [p.expected_output_tokens or 0 for p in pack]
    elif texts:
        here_in = [len(ids) for ids in reference.tokenizer.encode_batch(list(texts))]
    note = f"Each bar covers lengths up to twice its label. From {_n(len(sample), 'sampled row')}."
    made = [
        _histogram("Openings (input)", note, sample["n_prompt_tokens"].to_list(), here_in, name),
        _histogram("Responses (output)", note, sample["n_response_tokens"].to_list(), here_out, name),
    ]
    return [h for h in made if h is not None]


def _pack_rows(pack: Any, limit: int) -> list[dict[str, Any]]:
    rows = []
    for p in list(pack)[:limit]:
        text = opening(p.messages)
        flags = []
        if p.extra.get("in_training"):
            flags.append({"kind": "mild", "text": "in training"})
        if len(p.messages) > 2:
            flags.append({"kind": "good", "text": f"{len(p.messages)} turns"})
        typicality = p.extra.get("typicality_u6")
        rows.append(
            {
                "id": p.id,
                "typicality": typicality / 1e6 if typicality is not None else None,
                "n_prompt_tokens": p.extra.get("n_prompt_tokens"),
                "expected_output_tokens": p.expected_output_tokens,
                "domain": p.domain or "",
                "flags": flags,
                "head": one_line(text, 90),
                "text": _cut(text, TEXT_CHARACTERS),
                "unusual": "",
                "nearest": [],
            }
        )
    return rows


# -- the map -------------------------------------------------------------------------------------------------------


def _map(
    v: dict[str, Any] | None,
    reference: Any,
    pack: Any,
    beside: Any,
    texts: Sequence[str] | None,
    name: str,
) -> dict[str, Any] | None:
    """Lay out the mix and what is shown with it; at most MAP_POINTS places have a text to hover over."""
    from promptkit.report.projection import project

    layers: list[tuple[str, list[dict[str, Any]]]] = []
    if v is not None and texts:
        scored = [(p, text_of(p, texts)) for p in by_typicality(v)]
        layers.append((name, [_place(p, t) for p, t in scored if t]))
    elif pack is not None:
        layers.append((name, [_pack_place(p) for p in pack]))
    if beside is not None:
        layers.append(("pack", [_pack_place(p) for p in beside]))
    total = sum(len(rows) for _, rows in layers)
    layers = [(label, rows[: MAP_POINTS // (2 * len(layers))]) for label, rows in layers]
    shown = [row for _, rows in layers for row in rows]
    found = project(reference, [row.pop("opening") for row in shown], points=MAP_POINTS - len(shown))
    if found is None:
        return None
    for row, (x, y) in zip(shown, found.here.tolist(), strict=True):
        row.update(x=x, y=y)
    rows = found.rows.tolist()
    sample = reference.sample[rows]
    kinds = {str(row["kind"]) for row in shown}
    return {
        **_drawing(found, shown),
        "kinds": [k for k in ("here", "foreign", "pack") if k in kinds],
        "name": name,
        "cells": found.cells.tolist(),
        "cell": found.cell,
        "mix": {
            "x": found.points[:, 0].tolist(),
            "y": found.points[:, 1].tolist(),
            "text": [one_line(t, HOVER_CHARACTERS) for t in sample["text"].to_list()],
            "domain": sample["domain"].to_list(),
            "source": [one_line(s, 60) for s in sample["source"].to_list()],
        },
        "layers": [{"name": label, **_columns(rows)} for label, rows in layers],
        "domains": sorted({*sample["domain"].to_list(), *(str(row["domain"]) for row in shown)}),
        "n_rows": found.n_rows,
        "n_prompts": total,
        "what": name if beside is None else "prompts",
        "explained": found.explained,
    }


def _map_note(m: dict[str, Any]) -> str:
    said = f"Shaded: all {_n(m['n_rows'], 'sampled row')} of the mix. To hover over: {len(m['mix']['x']):,} of "
    said += _n(m["n_rows"], "row")
    if m["layers"]:
        said += f", {sum(len(layer['x']) for layer in m['layers']):,} of {m['n_prompts']:,} {m['what']}"
    return f"{said}. The two directions hold {100 * m['explained']:.0f} % of the mix's variation."


def shrink(context: dict[str, Any]) -> dict[str, Any] | None:
    """Return the page with half as many prompts, or half the points, whichever holds more text; None at the end."""
    prompts, m = context["prompts"], context["map"]
    table = sum(len(p["text"]) + sum(len(x["text"]) for x in p["nearest"]) for p in prompts)
    layers = m["layers"] if m else []
    points = sum(map(len, m["mix"]["text"])) + 2 * sum(len(t) for x in layers for t in x["text"]) if m else 0
    if table >= points and len(prompts) >= 20:
        return _noted({**context, "prompts": prompts[: len(prompts) // 2]})
    if m is None or len(m["mix"]["x"]) + sum(len(layer["x"]) for layer in layers) < 20:
        return None
    halves = [{k: x[: (len(x) + 1) // 2] if isinstance(x, list) else x for k, x in layer.items()} for layer in layers]
    marks, at = [], 0
    for whole, half in zip(layers, halves, strict=True):
        marks += m["marks"][at : at + len(half["x"])]
        at += len(whole["x"])
    mix = {k: x[::2] for k, x in m["mix"].items()}
    return _noted({**context, "map": {**m, "mix": mix, "layers": halves, "marks": marks}})


def _noted(context: dict[str, Any]) -> dict[str, Any]:
    """Say how much of the whole is shown."""
    prompts, m = context["prompts"], context["map"]
    shown = f"Shown {len(prompts):,} of {context['n_prompts']:,}, {context['order']}. Open a row for its text."
    context["prompts_note"] = shown
    context["prompt_domains"] = sorted({p["domain"] for p in prompts if p["domain"]})
    if m:
        context["map"] = {**m, "note": _map_note(m)}
    return context


def _drawing(found: Any, shown: list[dict[str, Any]]) -> dict[str, Any]:
    """Place the density and the prompts in an SVG: what a page without its script, or on paper, shows."""
    width, height, edge = 800.0, 480.0, 10.0
    cells, (w, h) = found.cells, found.cell
    xs, ys = [*cells[:, 0], *(row["x"] for row in shown)], [*cells[:, 1], *(row["y"] for row in shown)]
    left, top = min(xs) - w, max(ys) + h
    x_scale = (width - 2 * edge) / (max(xs) + w - left)
    y_scale = (height - 2 * edge) / (top - (min(ys) - h))

    def x(value: float) -> float:
        return float(round(edge + (value - left) * x_scale, 1))

    def y(value: float) -> float:
        return float(round(edge + (top - value) * y_scale, 1))

    shades = (cells[:, 2] / cells[:, 2].max()) ** 0.5  # linear, one crowded cell would hide all others
    return {
        "width": int(width),
        "height": int(height),
        "square": [round(w * x_scale, 1), round(h * y_scale, 1)],
        "squares": [
            {"x": x(cx - w / 2), "y": y(cy + h / 2), "shade": round(0.12 + 0.7 * float(s), 2)}
            for (cx, cy, _), s in zip(cells.tolist(), shades, strict=True)
        ],
        "marks": [{**row, "x": x(row["x"]), "y": y(row["y"])} for row in shown],
    }


def _place(p: dict[str, Any], text: str) -> dict[str, Any]:
    said = [f"typicality {number(p.get('typicality'))}"]
    said += ["does not belong"] * (p.get("belongs") is False) + ["leaked"] * bool(p.get("leaked"))
    kind = "foreign" if p.get("belongs") is False else "here"
    head = one_line(text, HOVER_CHARACTERS)
    return {"opening": text, "text": head, "domain": p.get("domain") or "", "said": ", ".join(said), "kind": kind}


def _pack_place(p: Any) -> dict[str, Any]:
    text = opening(p.messages)
    known = p.extra.get("typicality_u6")
    said = f"typicality {number(known / 1e6)}" if known is not None else ""
    head = one_line(text, HOVER_CHARACTERS)
    return {"opening": text, "text": head, "domain": p.domain or "", "said": said, "kind": "pack"}


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [row[key] for row in rows] for key in ("x", "y", "text", "domain", "said", "kind")}


def _n(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


# -- the page ------------------------------------------------------------------------------------------------------


def _chance_band(share: float, n: int | None) -> tuple[float, float] | None:
    """Return the shares between which 95 % of random draws of n prompts lie, for a share of the mix."""
    if not n or not 0 <= share <= 1:
        return None
    from scipy.stats import binom

    low, high = (float(binom.ppf(q, n, share)) / n for q in (0.025, 0.975))
    return low, high


def _token_shares(reference: Any) -> dict[str, float]:
    """Return each domain's share of the supervised tokens of the sampled rows; empty where nothing is known of them."""
    found: dict[str, float] = {}
    for domain, tokens in zip(
        reference.sample["domain"].to_list(), reference.sample["n_supervised_tokens"].to_list(), strict=True
    ):
        found[domain] = found.get(domain, 0.0) + float(tokens or 0)
    total = sum(found.values())
    return {k: v / total for k, v in found.items()} if total else {}


def _shares(rows: Iterable[dict[str, Any]], label: str, *, paired: bool, n: int | None = None) -> list[dict[str, Any]]:
    out = [
        {
            "name": str(r.get(label) or r.get("cluster", "")),
            "note": str(r["domain"]) if label == "name" and r.get("domain") else "",
            "mix": r.get("reference_share", r.get("share")) or 0.0,
            "here": (r.get("candidate_share") or 0.0) if paired else None,
            "band": _chance_band(r.get("reference_share") or 0.0, n) if paired else None,
            "tokens": None,
            "examples": [_cut(example_text(e), EXAMPLE_CHARACTERS) for e in (r.get("examples") or [])[:3]],
        }
        for r in rows
    ]
    return sorted(out, key=lambda r: (-r["mix"], -(r["here"] or 0.0), r["name"]))


def _top(rows: list[dict[str, Any]]) -> float:
    return (
        max(
            [max(r["mix"], r["here"] or 0.0, r["tokens"] or 0.0, *(r["band"] or (0.0,))) for r in rows],
            default=0.0,
        )
        or 1.0
    )


def page(score: Any, reference: Any, pack: Any, texts: Sequence[str] | None, title: str) -> dict[str, Any]:
    """Return the template's variables for whatever of score, reference and pack there is."""
    v = as_json(score) if score is not None else None
    name = "candidates" if pack is None or (v is not None and texts is not None) else "pack"
    beside = pack if name == "candidates" else None  # shown on the map only
    if beside is not None:
        pack = None
    if v is not None and pack is not None and texts is None:
        openings = {p.id: opening(p.messages) for p in pack}
        texts = [openings.get(str(p["id"]), "") for p in sorted(v.get("prompts") or [], key=lambda p: p["index"])]
    if v is not None:
        domains = _shares(v.get("domains") or [], "domain", paired=True, n=v.get("n"))
        clusters = _shares(v.get("clusters") or [], "name", paired=True, n=v.get("n"))
    elif reference is not None:
        domains = _shares(reference.domains.to_dicts(), "domain", paired=False)
        clusters = _shares(reference.clusters.to_dicts(), "name", paired=False)
        if pack is not None:
            n_by_domain = Counter(p.domain or "" for p in pack)
            known = {d["name"] for d in domains}
            domains += [
                {"name": d, "note": "", "mix": 0.0, "here": None, "band": None, "tokens": None, "examples": []}
                for d in sorted(set(n_by_domain) - known)
            ]
            for d in domains:
                d["here"] = n_by_domain[d["name"]] / max(len(pack), 1)
    else:
        n_by_domain = Counter(p.domain or "" for p in pack) if pack is not None else Counter()
        domains = [
            {"name": d, "note": "", "mix": n / len(pack), "here": None, "band": None, "tokens": None, "examples": []}
            for d, n in sorted(n_by_domain.items())
        ]
        clusters = []
    if reference is not None:
        tokens = _token_shares(reference)
        for d in domains:
            d["tokens"] = tokens.get(d["name"], 0.0) if tokens else None
    sources = _sources(reference, pack) if reference is not None else []
    prompts: list[dict[str, Any]] = []
    total = 0
    typicality = {"key": "typicality", "name": "typicality", "number": True, "digits": 3}
    columns: list[dict[str, Any]] = [typicality]
    if v is not None and v.get("prompts"):
        prompts, total = _prompt_rows(v, texts, MAX_PROMPTS), len(v["prompts"])
        columns += [
            {"key": "closeness", "name": "closeness", "number": True, "digits": 2},
            {"key": "cross_entropy", "name": "bits/token", "number": True, "digits": 2},
        ]
    elif pack is not None:
        prompts, total = _pack_rows(pack, MAX_PROMPTS), len(pack)
        columns += [
            {"key": "n_prompt_tokens", "name": "input", "number": True, "digits": 0},
            {"key": "expected_output_tokens", "name": "output", "number": True, "digits": 0},
        ]
    columns += [
        {"key": "domain", "name": "domain", "number": False},
        {"key": "head", "name": "prompt", "number": False},
    ]
    order = "least typical first" if v is not None else "in the pack's order"
    missing = [
        {
            "name": str(m.get("name") or m.get("cluster")),
            "mix": m.get("reference_share"),
            "here": m.get("candidate_share"),
            "examples": [_cut(example_text(e), EXAMPLE_CHARACTERS) for e in (m.get("examples") or [])[:3]],
        }
        for m in (v or {}).get("missing") or []
    ]
    context: dict[str, Any] = {
        "title": visible(title),
        "subtitle": _subtitle(v, reference, pack),
        "name": name,
        "base": "pack" if v is None and reference is None else "mix",
        "score": _score_view(v) if v is not None else None,
        "domains": domains,
        "top_domain": _top(domains),
        "clusters": clusters,
        "top_cluster": _top(clusters),
        "sources": sources,
        "top_source": max(
            (max(s["row_share"], s["here"] or 0.0, *(s["band"] or (0.0,))) for s in sources), default=1.0
        ),
        "map": _map(v, reference, pack, beside, texts, name) if reference is not None else None,
        "lengths": _lengths(reference, pack, texts, name),
        "structure": _structure(v or {}),
        "missing": missing,
        "prompts": prompts,
        "n_prompts": total,
        "order": order,
        "columns": columns,
        "provenance": _provenance(v, reference, pack),
        "definitions": list(DEFINITIONS.items()),
    }
    ids = (
        ("map", "Map"), ("domains", "Domains"), ("clusters", "Regions"), ("sources", "Sources"), ("lengths", "Lengths"),
        ("structure", "Structure"), ("missing", "Missing"), ("prompts", "Prompts"), ("provenance", "Provenance"),
    )  # fmt: skip
    context = _noted(context)
    context["sections"] = [(i, label) for i, label in ids if context[i]] + [("definitions", "Definitions")]
    return context


def _subtitle(v: dict[str, Any] | None, reference: Any, pack: Any) -> str:
    said = []
    if v is not None:
        fingerprint = (v.get("reference") or {}).get("fingerprint") or ""
        said.append(f"{_n(v.get('n') or 0, 'prompt')} against the mix {fingerprint[:12]}")
    if pack is not None:
        said.append(f"a pack of {_n(len(pack), 'prompt')}")
    if reference is not None and v is None:
        said.append(f"a training mix, described by {_n(len(reference.sample), 'sampled row')}")
    return ", ".join(said)


def _provenance(v: dict[str, Any] | None, reference: Any, pack: Any) -> list[tuple[str, str]]:
    rows: list[tuple[str, Any]] = []
    if reference is not None:
        rows += [
            ("reference", reference.fingerprint),
            ("template", reference.template or "none"),
        ]
        rows += [(f"recipe: {k}", value) for k, value in sorted((reference.recipe or {}).items()) if k != "evidence"]
        rows += [
            (
                "tokenizer",
                f"{reference.tokenizer.name}, {reference.tokenizer.n_vocab:,} ids, sha256 {reference.tokenizer.sha256}",
            )
        ]
    elif v is not None:
        rows += [
            ("reference", (v.get("reference") or {}).get("fingerprint")),
        ]
    if v is not None:
        rows += [("seed", v.get("seed")), ("promptkit", v.get("promptkit_version"))]
    manifest = getattr(pack, "manifest", None)
    if isinstance(manifest, dict):
        keep = ("name", "version", "content_hash", "recipe_hash", "reference", "acceptance_length")
        rows += [(f"pack: {k}", manifest[k]) for k in keep if manifest.get(k) is not None]
    return [(k, value if isinstance(value, str) else _flat(value)) for k, value in rows if value is not None]


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_flat(x)}" for k, x in value.items())
    return str(value)
