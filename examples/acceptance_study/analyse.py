"""Does what promptkit said beforehand order what was accepted? Tables and figures, from RESULTS alone.

    collect  .study/seed*/acceptance.npz -> RESULTS/prompts.parquet, acceptance.parquet   (ids and numbers, no text)
    analyse  RESULTS/*.parquet           -> RESULTS/tables.json, tables.md, FIGURES/*.svg

Quantity: acceptance length (AL) at K = 4, sampled, end effects removed, mean over the seeds; greedy and the other K are
in `tables.json`. Every score is turned so that larger should mean nearer. Spearman; the intervals are 95 % bootstrap
over sources (1000 draws of the moments of the full data's ranks): prompts of a source are not independent.

    pooled    all (prompt, mix) pairs: which prompt and which mix together
    per mix   one drafter, which prompts does it accept: mean over the six mixes
    domain    the same within one domain of one mix;  source: within one source of one mix
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DRAWS = 1000
NEAR = {  # per prompt: column -> sign that makes larger nearer
    "typicality": 1,
    "minus_ranked": 1,
    "minus_oddness": 1,
    "rank_words_affinity_whole": 1,
    "rank_words_affinity_half": 1,
    "rank_words": 1,
    "closeness": 1,
    "cross_entropy": -1,
    "affinity": 1,
    "lsa_nearest": 1,
    "lsa_centroid": 1,
    "vocabulary_overlap": 1,
    "n_tokens": 1,
    "prompt_nll": -1,
    "target_entropy": -1,
    "response_typicality": 1,
    "response_closeness": 1,
    "response_cross_entropy": -1,
}
PROMPT_ONLY = tuple(list(NEAR)[:12])  # what reads the prompt and the mix, and no model
SETS = {
    "fidelity": 1,
    "mean_typicality": 1,
    "mean_closeness": 1,
    "mean_cross_entropy": -1,
    "mean_affinity": 1,
    "mean_lsa_nearest": 1,
    "mean_vocabulary_overlap": 1,
    "lsa_fidelity": 1,
    "coverage": 1,
    "mmd2": -1,
    "energy": -1,
    "frechet": -1,
    "kid": -1,
    "sliced_wasserstein": -1,
    "cluster_tv": -1,
    "cluster_js": -1,
    "response_fidelity": 1,
    "response_closeness": 1,
    "response_cross_entropy": -1,
    "target_entropy": -1,
}
KS, KINDS, MODES = (3, 4, 5, 6, 7), ("head", "small"), ("greedy", "sampled")
SHORT = 12  # tokens: a source whose median answer is no longer says little of chains
BANDS = {"fidelity": (0.0, 0.25, 0.5, 0.75, 0.9, 1.01), "mean_cross_entropy": (0.0, 7.0, 9.0, 10.0, 11.0, 12.0, 99.0)}


# --------------------------------------------------------------------------------------------------------- collect


def collect(data: Path, seeds: list[Path], out: Path) -> None:
    """Write ids and numbers of each test prompt; acceptance lengths in thousandths (int16)."""
    found = [np.load(path) for path in seeds]
    rows = pq.read_table(data / "rows.parquet", columns=["id", "source", "domain", "kept_out"]).take(found[0]["row"])
    mixes = found[0]["mixes"].tolist()
    table = {"row": found[0]["row"].astype(np.int32)}
    table |= {name: np.mean([z[key] for z in found], axis=0).astype(np.float32) for key, name in
              (("entropy", "target_entropy"), ("prompt_nll", "prompt_nll"))}  # fmt: skip
    tokens = np.mean([z["tokens"] for z in found], axis=0).astype(np.float32)
    table |= {"n_greedy": tokens[:, 0], "n_sampled": tokens[:, 1]}
    prompts = pa.table(table)
    for name in rows.column_names:
        prompts = prompts.append_column(name, rows[name])
    pq.write_table(prompts, out / "prompts.parquet", compression="zstd")
    parts = []
    for i, kind in enumerate(KINDS):
        for m, mix in enumerate(mixes):
            columns: dict[str, Any] = {
                "row": table["row"],
                "mix": [mix] * len(table["row"]),
                "drafter": [kind] * len(table["row"]),
            }
            for j, mode in enumerate(MODES):
                for c, k in enumerate(KS):
                    each = [z["al"][i, m, j, c] for z in found]
                    columns[f"{mode}_{k}"] = _thousandths(np.mean(each, axis=0))
                    if k == 4:
                        columns |= {f"{mode}_4_seed{s}": _thousandths(a) for s, a in enumerate(each)}
                served = np.mean([z["al_served"][i, m, j, KS.index(4)] for z in found], axis=0)
                columns[f"{mode}_4_served"] = _thousandths(served)
            parts.append(pa.table(columns))
    pq.write_table(pa.concat_tables(parts), out / "acceptance.parquet", compression="zstd", compression_level=15)


def _thousandths(al: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(al), np.round(1000 * al), -1).astype(np.int16)


# ----------------------------------------------------------------------------------------------------- correlation


def ranks_within(x: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return mean ranks of x within each group, centred and scaled to unit variance there."""
    from scipy.stats import rankdata

    out = np.zeros(len(x))
    for g in np.unique(group):
        at = np.flatnonzero(group == g)
        r = rankdata(x[at])
        out[at] = (r - r.mean()) / max(r.std(), 1e-12)
    return out


def spearman(x: np.ndarray, y: np.ndarray, group: np.ndarray, source: np.ndarray, *, least: int = 1) -> list[float]:
    """Return [rho, low, high]: Spearman within groups, averaged by size; 95 % bootstrap over sources."""
    return interval(draws_of(x, y, group, source, least=least))


def interval(draws: np.ndarray) -> list[float]:
    """Return [value, low, high] of a value followed by its bootstrap draws."""
    return [round(float(v), 3) for v in (draws[0], *np.quantile(draws[1:], [0.025, 0.975]))]


def draws_of(x: np.ndarray, y: np.ndarray, group: np.ndarray, source: np.ndarray, *, least: int = 1) -> np.ndarray:
    """Return Spearman within groups, averaged by size, then its bootstrap draws over sources, the same for every x.

    Groups of fewer than `least` pairs, or where x or y is constant, are left out.
    """
    _, group = np.unique(group, return_inverse=True)
    _, source = np.unique(source, return_inverse=True)
    a, b = ranks_within(x, group), ranks_within(y, group)
    n_groups, n_sources = int(group.max()) + 1, int(source.max()) + 1
    varies = (np.bincount(group, a * a) > 1e-9) & (np.bincount(group, b * b) > 1e-9) & (np.bincount(group) >= least)
    cell = group * n_sources + source
    moments = np.stack(
        [np.bincount(cell, z, minlength=n_groups * n_sources) for z in (np.ones_like(a), a, b, a * a, b * b, a * b)]
    ).reshape(6, n_groups, n_sources)[:, varies]
    rng = np.random.default_rng(0)
    W = np.vstack([np.ones(n_sources), rng.multinomial(n_sources, np.full(n_sources, 1 / n_sources), size=DRAWS)])
    n, sa, sb, saa, sbb, sab = np.einsum("mgs,ws->mwg", moments, W)
    safe = np.maximum(n, 1)
    covariance = sab / safe - sa * sb / safe**2
    spread = np.sqrt(np.maximum(saa / safe - (sa / safe) ** 2, 0) * np.maximum(sbb / safe - (sb / safe) ** 2, 0))
    usable = (spread > 1e-9) & (n > 1)
    rho = np.where(usable, covariance / np.where(usable, spread, 1), 0)
    return np.asarray((rho * n * usable).sum(1) / np.maximum((n * usable).sum(1), 1))


def of_means(x: np.ndarray, y: np.ndarray, cell: np.ndarray, source: np.ndarray, *, least: int = 10) -> list[float]:
    """Return [rho, low, high]: Spearman over cells (domain or cluster of a mix) of mean score and mean AL."""
    from scipy.stats import spearmanr

    _, cell = np.unique(cell, return_inverse=True)
    _, source = np.unique(source, return_inverse=True)
    shape = (int(cell.max()) + 1, int(source.max()) + 1)
    sums = np.stack(
        [np.bincount(cell * shape[1] + source, z, minlength=shape[0] * shape[1]) for z in (np.ones_like(x), x, y)]
    ).reshape(3, *shape)
    rng = np.random.default_rng(0)
    draws = rng.multinomial(shape[1], np.full(shape[1], 1 / shape[1]), size=300)
    found = []
    for w in [np.ones(shape[1]), *draws]:
        n, sx, sy = sums @ w
        keep = n >= least
        found.append(float(spearmanr(sx[keep] / n[keep], sy[keep] / n[keep])[0]))
    return [round(v, 3) for v in (found[0], *np.nanquantile(found[1:], [0.025, 0.975]).tolist())]


# --------------------------------------------------------------------------------------------------------- analyse


def load(out: Path) -> dict[str, Any]:
    """Return arrays of shape (mix, prompt) by name, and the prompts' own; `al[kind, mode, k]` likewise."""
    prompts = pq.read_table(out / "prompts.parquet").to_pydict()
    n = len(prompts["row"])
    table = {k: np.array(v) for k, v in pq.read_table(out / "prompt_scores.parquet").to_pydict().items()}
    mixes = list(dict.fromkeys(table["mix"].tolist()))
    score = {k: v.reshape(len(mixes), n) for k, v in table.items() if k not in ("row", "mix")}
    answers = pq.read_table(out / "response_scores.parquet").to_pydict()
    for name in ("response_typicality", "response_closeness", "response_cross_entropy"):
        score[name] = np.array(answers[name]).reshape(-1, len(mixes), n).mean(axis=0)
    for name in ("prompt_nll", "target_entropy"):
        score[name] = np.tile(np.array(prompts[name]), (len(mixes), 1))
    al = pq.read_table(out / "acceptance.parquet").to_pydict()
    kinds = np.array(al["drafter"])
    lengths: dict[str, np.ndarray] = {}
    for name, values in al.items():
        if name not in ("row", "mix", "drafter"):
            v = np.array(values, dtype=np.float64) / 1000
            for kind in KINDS:
                lengths[f"{kind}/{name}"] = v[kinds == kind].reshape(len(mixes), n)
    own = {k: np.array(prompts[k]) for k in ("source", "domain", "kept_out")}
    length = np.array(prompts["n_sampled"]) / 3
    short = [s for s in np.unique(own["source"]) if np.median(length[own["source"] == s]) <= SHORT]
    own["short"] = np.isin(own["source"], short)
    return {"score": score, "al": lengths, "mixes": mixes, **own}


def per_prompt(d: dict[str, Any], quantity: str) -> dict[str, dict[str, list[float]]]:
    """Return, for each score and reading, [rho, low, high]."""
    m, n = d["al"][quantity].shape
    mix, source, domain = np.repeat(np.arange(m), n), np.tile(d["source"], m), np.tile(d["domain"], m)
    y = d["al"][quantity].ravel()
    whole = d["al"][quantity][d["mixes"].index("d")]
    relative = (d["al"][quantity] / whole).ravel()
    not_d = mix != d["mixes"].index("d")
    by = {
        "pooled": np.zeros(m * n, dtype=int),
        "per mix": mix,
        "domain": np.char.add(mix.astype(str), domain.astype(str)),
        "source": np.char.add(mix.astype(str), source.astype(str)),
    }
    out: dict[str, dict[str, list[float]]] = {}
    for name, sign in NEAR.items():
        x = sign * d["score"][name].ravel().astype(np.float64)
        row = {reading: spearman(x, y, g, source, least=20) for reading, g in by.items()}
        row["domains"] = of_means(x, y, by["domain"], source)
        cluster = np.char.add(mix.astype(str), np.char.add("c", d["score"]["cluster"].ravel().astype(str)))
        row["clusters"] = of_means(x, y, cluster, source)
        row["relative"] = spearman(x[not_d], relative[not_d], np.zeros(int(not_d.sum()), dtype=int), source[not_d])
        out[name] = row
    return out


def ceiling(d: dict[str, Any], kind: str, mode: str) -> float:
    """Return the mean Spearman, per mix, between two seeds of target and drafter: what no score can be asked to beat
    by much on one seed."""
    from scipy.stats import spearmanr

    seeds = [d["al"][f"{kind}/{mode}_4_seed{s}"] for s in range(3)]
    pairs = [spearmanr(a[m], b[m])[0] for i, a in enumerate(seeds) for b in seeds[:i] for m in range(len(a))]
    return round(float(np.mean(pairs)), 3)


def set_table(d: dict[str, Any], out: Path, quantity: str) -> dict[str, np.ndarray]:
    """Return columns over (set, mix): scores, AL, AL over that of mix d on the same prompts."""
    sets = json.loads((out / "sets.json").read_text())
    table = {k: np.array(v) for k, v in pq.read_table(out / "set_scores.parquet").to_pydict().items()}
    mix = np.array([d["mixes"].index(m) for m in table["mix"]])
    whole = d["mixes"].index("d")
    means = ("response_closeness", "response_cross_entropy", "target_entropy", "prompt_nll")
    extra: dict[str, list[float]] = {name: [] for name in ("al", "relative", "response_fidelity", *means)}
    for m, name in zip(mix, table["set"], strict=True):
        rows = np.array(sets[str(name)])
        al = d["al"][quantity][:, rows].mean(axis=1)
        extra["al"].append(al[m])
        extra["relative"].append(al[m] / al[whole])
        extra["response_fidelity"].append(float((d["score"]["response_typicality"][m, rows] >= 0.05).mean()))
        for key in means:
            extra[key].append(float(d["score"][key][m, rows].mean()))
    return {**table, "mix": mix, **{k: np.array(v) for k, v in extra.items()}}


def per_set(t: dict[str, np.ndarray], kind: str) -> dict[str, dict[str, list[float]]]:
    """Return, for each set number, [rho, low, high] over sets of one kind (`source` or `blend`)."""
    at = np.array([str(s).startswith(kind + ":") for s in t["set"]])
    names, mix = t["set"][at], t["mix"][at]
    out = {}
    for name, sign in SETS.items():
        x = sign * t[name][at].astype(np.float64)
        out[name] = {
            "pooled": spearman(x, t["al"][at], np.zeros_like(mix), names),
            "per mix": spearman(x, t["al"][at], mix, names),
            "per set": spearman(x, t["al"][at], names, names),
            "relative": spearman(
                x[mix != 3], t["relative"][at][mix != 3], np.zeros_like(mix[mix != 3]), names[mix != 3]
            ),
        }
    return out


def against_best(d: dict[str, Any], quantity: str, rows: np.ndarray | None = None) -> dict[str, list[Any]]:
    """Return, pooled and per mix, the default typicality's Spearman less that of each prompt-only score.

    Entries: name of the best prompt-only score, the default's [rho, low, high], and [difference, low, high] to the
    best, paired bootstrap over sources; `all` has the rho of each.
    """
    rows = np.ones(len(d["source"]), dtype=bool) if rows is None else rows
    y = d["al"][quantity][:, rows]
    m, n = y.shape
    keep = (y > 0).ravel()
    source = np.tile(d["source"][rows], m)[keep]
    out: dict[str, list[Any]] = {}
    for reading, group in (("pooled", np.zeros(m * n, dtype=int)), ("per mix", np.repeat(np.arange(m), n))):
        draws = {
            name: draws_of(sign * d["score"][name][:, rows].ravel()[keep], y.ravel()[keep], group[keep], source)
            for name, sign in NEAR.items()
            if name in PROMPT_ONLY
        }
        out[f"{reading}, all"] = [{name: round(float(v[0]), 3) for name, v in draws.items()}]
        best = max(draws, key=lambda name: float(draws[name][0]))
        out[reading] = [best, interval(draws["typicality"]), interval(draws["typicality"] - draws[best])]
    return out


def published(t: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return, for four benchmarks, what moving from mix b (chat, encyclopedic) to mix d (all) promises and brings.

    SpecBundle tells what moving from a chat-trained drafter to a broad one brought on them (8B and 70B target).
    """
    theirs = {"gsm8k": (2.55 / 1.72, 2.32 / 1.28), "math": (3.48 / 2.78, 2.84 / 2.37),
              "humaneval": (3.34 / 3.05, 2.93 / 2.67), "mt_bench": (2.90 / 2.93, 2.96 / 2.92)}  # fmt: skip
    out = {}
    for name, gains in theirs.items():
        b, all_ = (np.flatnonzero((t["set"] == f"source:{name}") & (t["mix"] == m))[0] for m in (1, 3))
        change = {
            k: round(float(t[k][all_] - t[k][b]), 3) for k in ("fidelity", "mean_typicality", "mean_cross_entropy")
        }
        ours = round(float(t["al"][all_] / t["al"][b]), 3)
        out[name] = {**change, "al_here": ours, "al_8b": round(gains[0], 3), "al_70b": round(gains[1], 3)}
    return out


def which_mix(t: dict[str, np.ndarray], kind: str, among: tuple[int, ...]) -> dict[str, list[float]]:
    """Return, for each set number, the share of sets whose best mix it names, and the AL lost by following it."""
    out = {}
    names = [s for s in dict.fromkeys(t["set"].tolist()) if s.startswith(kind + ":")]
    for name, sign in SETS.items():
        if name == "target_entropy":  # the same under every mix
            continue
        hit, lost = [], []
        for s in names:
            at = np.flatnonzero((t["set"] == s) & np.isin(t["mix"], among))
            al, chosen = t["al"][at], int(np.argmax(sign * t[name][at]))
            hit.append(chosen == int(al.argmax()))
            lost.append(1 - al[chosen] / al.max())
        out[name] = [round(float(np.mean(hit)), 3), round(float(np.mean(lost)), 4)]
    return out


def bands(t: dict[str, np.ndarray]) -> dict[str, list[dict[str, float]]]:
    """Return AL over the AL of the all-mix drafter by band: mean, scatter of one (set, mix) pair, number of pairs."""
    out: dict[str, list[dict[str, float]]] = {}
    for kind in ("source", "blend"):
        at = np.array([str(s).startswith(kind + ":") for s in t["set"]]) & (t["mix"] != 3)
        for name, edges in BANDS.items():
            rows = []
            for low, high in pairwise(edges):
                r = t["relative"][at & (t[name] >= low) & (t[name] < high)]
                if len(r):
                    worth = (r.mean(), r.std(), *np.quantile(r, [0.1, 0.9]))
                    named = zip(("mean", "sd", "p10", "p90"), (round(float(v), 3) for v in worth), strict=True)
                    rows.append({"from": low, "to": high, "pairs": len(r), **dict(named)})
            out[f"{kind} {name}"] = rows
    return out


def domain_table(d: dict[str, Any], quantity: str) -> dict[str, dict[str, float]]:
    """Return mean AL by domain and mix."""
    out = {}
    for name in np.unique(d["domain"]):
        at = d["domain"] == name
        out[str(name)] = {"n": int(at.sum())} | {
            mix: round(float(d["al"][quantity][m, at].mean()), 3) for m, mix in enumerate(d["mixes"])
        }
    return out


# ---------------------------------------------------------------------------------------------------- tables, figures


def markdown(title: str, table: dict[str, dict[str, list[float]]], readings: tuple[str, ...]) -> str:
    lines = [f"### {title}", "", "| score | " + " | ".join(readings) + " |", "|---|" + "---|" * len(readings)]
    for name, row in table.items():
        cells = [f"{row[r][0]:.2f} [{row[r][1]:.2f}, {row[r][2]:.2f}]" for r in readings]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def bars(title: str, tables: dict[str, dict[str, list[float]]], reading: str, path: Path) -> None:
    """Draw one horizontal point with interval per score and drafter."""
    names, colours, row = list(next(iter(tables.values()))), ("#1f5fa8", "#c2571a"), 26
    left, width, height = 210, 420, 60 + row * len(names)

    def x(v: float) -> float:
        return left + (v + 0.5) / 1.5 * width

    parts = [f'<text x="10" y="20" font-size="14">{title}</text>']
    for v in (-0.4, -0.2, 0, 0.2, 0.4, 0.6, 0.8, 1.0):
        parts.append(f'<line x1="{x(v):.0f}" x2="{x(v):.0f}" y1="34" y2="{height - 20}" stroke="#ddd"/>')
        parts.append(f'<text x="{x(v):.0f}" y="{height - 6}" text-anchor="middle">{v:g}</text>')
    for i, name in enumerate(names):
        y = 50 + row * i
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{name.replace("_", " ")}</text>')
        for j, (table, colour) in enumerate(zip(tables.values(), colours, strict=False)):
            rho, low, high = table[name][reading]
            yy = y - 4 + 8 * j
            parts.append(f'<line x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{yy}" y2="{yy}" stroke="{colour}"/>')
            parts.append(f'<circle cx="{x(rho):.1f}" cy="{yy}" r="3.5" fill="{colour}"/>')
    for j, (kind, colour) in enumerate(zip(tables, colours, strict=False)):
        parts.append(f'<text x="{left + 290 + 70 * j}" y="20" fill="{colour}">{kind}</text>')
    _svg(parts, left + width + 20, height, path)


def scatter(title: str, t: dict[str, np.ndarray], name: str, path: Path) -> None:
    """Draw AL over the all-mix drafter's against a set number; sources and blends."""
    at = t["mix"] != 3
    v, r = t[name][at], t["relative"][at]
    blend = np.array([str(s).startswith("blend") for s in t["set"][at]])
    low, high = float(v.min()), float(v.max())
    parts = [f'<text x="10" y="20" font-size="14">{title}</text>']

    def place(a: float, b: float) -> tuple[float, float]:
        return 60 + (a - low) / (high - low) * 540, 330 - (b - 0.2) / 1.2 * 290

    for b in (0.2, 0.4, 0.6, 0.8, 1.0, 1.2):
        y = place(low, b)[1]
        parts.append(f'<line x1="60" x2="600" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="54" y="{y + 4:.0f}" text-anchor="end">{b:g}</text>')
    for a in np.linspace(low, high, 6):
        parts.append(f'<text x="{place(a, 0.4)[0]:.0f}" y="350" text-anchor="middle">{a:.2g}</text>')
    for a, b, is_blend in zip(v, r, blend, strict=True):
        cx, cy = place(float(a), float(b))
        colour, size = ("#9bb8d8", 2) if is_blend else ("#c2571a", 3)
        parts.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="{size}" fill="{colour}" fill-opacity="0.7"/>')
    parts.append(
        f'<text x="330" y="370" text-anchor="middle">{name.replace("_", " ")} (orange: sources, blue: blends)</text>'
    )
    _svg(parts, 620, 380, path)


def _svg(parts: list[str], width: int, height: int, path: Path) -> None:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    head += 'font-family="sans-serif" font-size="11">'
    path.write_text("\n".join([head, f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>", ""]))


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(".study"), help="folder that prepare.py wrote")
    parser.add_argument("--acceptance", type=Path, nargs="*", help="acceptance.npz of each seed: collect them first")
    parser.add_argument("--out", type=Path, default=here / "results")
    parser.add_argument("--figures", type=Path, default=here / "figures")
    args = parser.parse_args()
    if args.acceptance:
        collect(args.data, args.acceptance, args.out)
    args.figures.mkdir(parents=True, exist_ok=True)
    d = load(args.out)
    tables: dict[str, Any] = {"n_prompts": len(d["source"]), "n_sources": len(np.unique(d["source"]))}
    text = []
    readings = ("pooled", "per mix", "domain", "source", "domains", "clusters", "relative")
    for kind in KINDS:
        for mode in MODES:
            q = f"{kind}/{mode}_4"
            tables[f"prompt {q}"] = found = per_prompt(d, q)
            tables[f"ceiling {q}"] = ceiling(d, kind, mode)
            tables[f"domains {q}"] = domain_table(d, q)
            text.append(
                markdown(f"Prompts, {kind}, {mode}; two seeds agree at {tables[f'ceiling {q}']}", found, readings)
            )
            t = set_table(d, args.out, q)
            for sets in ("source", "blend"):
                tables[f"set {sets} {q}"] = found = per_set(t, sets)
                text.append(
                    markdown(f"Sets ({sets}), {kind}, {mode}", found, ("pooled", "per mix", "per set", "relative"))
                )
                tables[f"which of abc {sets} {q}"] = which_mix(t, sets, (0, 1, 2))
                tables[f"which of abcef {sets} {q}"] = which_mix(t, sets, (0, 1, 2, 4, 5))
            tables[f"bands {q}"] = bands(t)
            tables[f"default against best {q}"] = against_best(d, q)
            tables[f"default against best, kept-out sources, {q}"] = against_best(d, q, d["kept_out"])
            tables[f"published {q}"] = published(t)
            tables[f"default against best, no short answers, {q}"] = against_best(d, q, ~d["short"])
            names = {f"source:{s}" for s in np.unique(d["source"][d["short"]])}
            long = np.array([str(s) not in names for s in t["set"]])
            tables[f"set source, no short answers, {q}"] = per_set({k: v[long] for k, v in t.items()}, "source")
        for k in KS:
            q = f"{kind}/sampled_{k}"
            tables[f"default against best {q}"] = against_best(d, q)
        tables[f"default against best {kind}/sampled_4_served"] = against_best(d, f"{kind}/sampled_4_served")
    (args.out / "tables.json").write_text(json.dumps(tables, indent=1) + "\n")
    (args.out / "tables.md").write_text("\n".join(text))
    for reading in ("pooled", "per mix"):
        both = {kind: tables[f"prompt {kind}/sampled_4"] for kind in KINDS}
        bars(
            f"Prompts, Spearman with AL, {reading}",
            both,
            reading,
            args.figures / f"prompts_{reading.replace(' ', '_')}.svg",
        )
    for sets in ("source", "blend"):
        both = {kind: tables[f"set {sets} {kind}/sampled_4"] for kind in KINDS}
        bars(f"Sets ({sets}), Spearman with AL, pooled", both, "pooled", args.figures / f"sets_{sets}.svg")
    t = set_table(d, args.out, "head/sampled_4")
    for name in ("fidelity", "mean_cross_entropy"):
        scatter("AL over AL of the all-mix drafter, head, sampled, K = 4", t, name, args.figures / f"worth_{name}.svg")


if __name__ == "__main__":
    main()
