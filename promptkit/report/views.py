"""What the page shows, as plain values: every choice about data is made here, the template only places it.

Comes in: the JSON object of a score (DESIGN "Stable keys"), a Reference, a Pack. Goes out: one dict for `page.html`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from promptkit.conversation import opening
from promptkit.visible import interval, is_number, number, one_line, p_value, visible

TEXT_CHARACTERS = 600  # of one prompt on the page
NEAREST_CHARACTERS = 200
EXAMPLE_CHARACTERS = 400
WIDTH = 400  # of the distance axis

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
    "typicality": "Of one prompt: share of held-out rows of the mix, or of its own region, that are at least as odd. "
    "Uniform on [0, 1] for prompts of the mix; below 0.05 a prompt does not belong.",
    "closeness": "Mean cosine to the 10 nearest training rows, TF-IDF over all token ids of the target's tokenizer.",
    "cross-entropy": "Bits per token under a trigram model of the mix.",
    "leaked": "The prompt, or a near-duplicate (80 % of word 5-grams), is in the training mix.",
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


def _sources(reference: Any) -> list[dict[str, Any]]:
    rows = (reference.counts or {}).get("sources") or []
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
    note = f"Each bar covers lengths up to twice its label. From {len(sample):,} sampled rows."
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
                "nearest": [],
            }
        )
    return rows


# -- the page ------------------------------------------------------------------------------------------------------


def _shares(rows: Iterable[dict[str, Any]], label: str, *, paired: bool) -> list[dict[str, Any]]:
    out = [
        {
            "name": str(r.get(label) or r.get("cluster", "")),
            "note": str(r["domain"]) if label == "name" and r.get("domain") else "",
            "mix": r.get("reference_share", r.get("share")) or 0.0,
            "here": (r.get("candidate_share") or 0.0) if paired else None,
            "examples": [_cut(example_text(e), EXAMPLE_CHARACTERS) for e in (r.get("examples") or [])[:3]],
        }
        for r in rows
    ]
    return sorted(out, key=lambda r: (-r["mix"], -(r["here"] or 0.0), r["name"]))


def _top(rows: list[dict[str, Any]]) -> float:
    return max([max(r["mix"], r["here"] or 0.0) for r in rows], default=0.0) or 1.0


def page(score: Any, reference: Any, pack: Any, texts: Sequence[str] | None, title: str, limit: int) -> dict[str, Any]:
    """Return the template's variables for whatever of score, reference and pack there is."""
    v = as_json(score) if score is not None else None
    name = "pack" if pack is not None else "candidates"
    if v is not None and pack is not None and texts is None:
        openings = {p.id: opening(p.messages) for p in pack}
        texts = [openings.get(str(p["id"]), "") for p in sorted(v.get("prompts") or [], key=lambda p: p["index"])]
    if v is not None:
        domains = _shares(v.get("domains") or [], "domain", paired=True)
        clusters = _shares(v.get("clusters") or [], "name", paired=True)
    elif reference is not None:
        domains = _shares(reference.domains.to_dicts(), "domain", paired=False)
        clusters = _shares(reference.clusters.to_dicts(), "name", paired=False)
        if pack is not None:
            n_by_domain = Counter(p.domain or "" for p in pack)
            known = {d["name"] for d in domains}
            domains += [
                {"name": d, "note": "", "mix": 0.0, "here": None, "examples": []}
                for d in sorted(set(n_by_domain) - known)
            ]
            for d in domains:
                d["here"] = n_by_domain[d["name"]] / max(len(pack), 1)
    else:
        n_by_domain = Counter(p.domain or "" for p in pack) if pack is not None else Counter()
        domains = [
            {"name": d, "note": "", "mix": n / len(pack), "here": None, "examples": []}
            for d, n in sorted(n_by_domain.items())
        ]
        clusters = []
    prompts: list[dict[str, Any]] = []
    total = 0
    typicality = {"key": "typicality", "name": "typicality", "number": True, "digits": 3}
    columns: list[dict[str, Any]] = [typicality]
    if v is not None and v.get("prompts"):
        prompts, total = _prompt_rows(v, texts, limit), len(v["prompts"])
        columns += [
            {"key": "closeness", "name": "closeness", "number": True, "digits": 2},
            {"key": "cross_entropy", "name": "bits/token", "number": True, "digits": 2},
        ]
    elif pack is not None:
        prompts, total = _pack_rows(pack, limit), len(pack)
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
        "sources": _sources(reference) if reference is not None else [],
        "lengths": _lengths(reference, pack, texts, name),
        "missing": missing,
        "prompts": prompts,
        "prompts_note": f"Shown {len(prompts):,} of {total:,}, {order}. Open a row for its text.",
        "prompt_domains": sorted({p["domain"] for p in prompts if p["domain"]}),
        "columns": columns,
        "provenance": _provenance(v, reference, pack),
        "definitions": list(DEFINITIONS.items()),
    }
    ids = (
        ("domains", "Domains"), ("clusters", "Regions"), ("sources", "Sources"), ("lengths", "Lengths"),
        ("missing", "Missing"), ("prompts", "Prompts"), ("provenance", "Provenance"),
    )  # fmt: skip
    context["sections"] = [(i, label) for i, label in ids if context[i]] + [("definitions", "Definitions")]
    return context


def _subtitle(v: dict[str, Any] | None, reference: Any, pack: Any) -> str:
    said = []
    if v is not None:
        said.append(
            f"{v.get('n')} prompts against the mix {((v.get('reference') or {}).get('fingerprint') or '')[:12]}"
        )
    if pack is not None:
        said.append(f"a pack of {len(pack):,} prompts")
    if reference is not None and v is None:
        said.append(f"a training mix, described by {len(reference.sample):,} sampled rows")
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
