"""Train promptkit/domains.npz, and say honestly how well it labels sources that it has not seen.

    python benchmarks/train_domains.py --data ../shared/data            figures only
    python benchmarks/train_domains.py --data ../shared/data --write    and write the weights

In: folders `<source>/<source>.jsonl` with rows `{"domain": "math", "prompt": ...}` or `{"domain": ..., "messages":
[...]}`, and domain_examples.json beside this file, which we wrote ourselves. Out: corrections to the written rules and
int8 weights of hashed words (no text can be read back from them).

Every figure is leave-one-source-out: the rows of a source are labelled by a model that saw no row of it, nor any row
with the same text in another source. Accuracy is averaged over sources, so that a large source counts once; macro-F1 is
over the domains with two or more sources. Two cautions. The written rules and the constants below were chosen while
looking at these figures, so expect somewhat less elsewhere; and our own examples were read while the rules were
written, so their figure says only that the rules do what we meant. Needs numpy and scipy; some 20 minutes on one core,
three with `--folds 7 --cap 100`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from benchmarks import a_folder, command
from promptkit import domains as dm
from promptkit.conversation import opening

CAP = 400  # rows per source and domain: more of the same source teaches the source
RIDGE_SIGNALS = 0.05  # pull of the signals' weights towards the written rules
RIDGE_WORDS = 0.01  # pull of the words' weights towards nothing
RIDGE_BIAS = 0.05  # pull of the base rates towards equal shares
WORD_GAIN = 3.0  # hashed features are scaled by gain / sqrt(number of terms)
OURS = "our own examples"
# Sources that collect requests of every kind under one label: a row that the rules call code or mathematics says
# nothing about chat. Left out of training, kept in every figure.
MIXED = frozenset({"arena_hard", "self_instruct", "mt_bench", "spec_bench", "glaive_toolcall"})
BY_TURNS = frozenset(
    {"fireact"}
)  # whether a row is agentic is seen in its turns only: its opening alone teaches nothing
FOUR = ("coding", "agentic", "math", "encyclopedic")


class Rows(NamedTuple):
    source: list[str]
    y: np.ndarray  # (n,) index into DOMAINS
    key: list[str]  # hash of the normalised text: the same text in two sources
    S: np.ndarray  # (n, n_signals) in 0..1
    H: csr_matrix  # (n, BUCKETS)
    full: np.ndarray  # (n,) False for variants that only training sees


def load(data: Path, cap: int) -> list[dict[str, Any]]:
    """Return rows with source, domain, text, messages, tools; variants of a row (without turns, with tools) marked."""
    out: list[dict[str, Any]] = []
    for path in sorted(data.glob("*/*.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        by_domain: dict[str, list[dict[str, Any]]] = {}
        for r in rows:
            by_domain.setdefault(r["domain"], []).append(r)
        for domain, group in sorted(by_domain.items()):
            for r in random.Random(0).sample(group, min(cap, len(group))):
                m = r.get("messages") or [{"role": "user", "content": r["prompt"]}]
                text = opening(m)
                base = {
                    "source": path.parent.name,
                    "domain": domain,
                    "text": text,
                    "messages": m,
                    "tools": None,
                    "full": True,
                }
                out.append(base)
                if len(m) > 1 and path.parent.name not in BY_TURNS:
                    out.append(base | {"messages": None, "full": False})
                schemas = m[0]["content"].split("Available tools (JSON):\n", 1)
                if (
                    m[0]["role"] == "system" and len(schemas) == 2
                ):  # as a reader gives them: schemas apart from the turns
                    bare = [{"role": "system", "content": schemas[0].strip()}, *m[1:]]
                    out.append(base | {"text": opening(bare), "messages": bare, "tools": [{}], "full": False})
    examples = json.loads(Path(__file__).with_name("domain_examples.json").read_text(encoding="utf-8"))["examples"]
    for domain, texts in examples.items():
        out += [
            {"source": OURS, "domain": domain, "text": t, "messages": None, "tools": None, "full": True} for t in texts
        ]
    return out


def featurise(rows: list[dict[str, Any]]) -> Rows:
    shown = dm._read_texts([r["text"] for r in rows])
    read = [dm._read(r["text"], x, r["messages"], r["tools"]) for r, x in zip(rows, shown, strict=True)]
    S = np.array([r.signals for r in read], dtype=np.float64) / dm._STEPS
    indptr = np.cumsum([0] + [len(r.hashed) for r in read])
    indices = np.concatenate([np.fromiter(r.hashed, dtype=np.int64, count=len(r.hashed)) for r in read])
    scale = np.repeat([WORD_GAIN / max(len(r.hashed), 1) ** 0.5 for r in read], np.diff(indptr))
    key = [hashlib.sha256(" ".join(r["text"].lower().split()).encode("utf-8", "replace")).hexdigest() for r in rows]
    return Rows(
        [r["source"] for r in rows],
        np.array([dm.DOMAINS.index(r["domain"]) for r in rows]),
        key,
        S,
        csr_matrix((scale, indices, indptr), shape=(len(rows), dm.BUCKETS)),
        np.array([r["full"] for r in rows]),
    )


def softmax(Z: np.ndarray) -> np.ndarray:
    Z = np.exp(Z - Z.max(axis=1, keepdims=True))
    return Z / Z.sum(axis=1, keepdims=True)


def weigh(rows: Rows, keep: np.ndarray) -> np.ndarray:
    """Return weights: a source counts by the cube root of its rows, a domain by the square root of that sum."""
    groups = [(s, int(d)) for s, d in zip(rows.source, rows.y, strict=True)]
    n = Counter(g for g, k in zip(groups, keep, strict=True) if k)
    w = np.array(
        [n[g] ** (1 / 3 - 1) * (2.0 if g[0] == OURS else 1.0) if k else 0.0 for g, k in zip(groups, keep, strict=True)]
    )
    mass = np.bincount(rows.y, w, len(dm.DOMAINS))
    w *= (np.maximum(mass, 1e-9) ** -0.5)[rows.y]
    return w / w.sum()


class Fit(NamedTuple):
    signals: np.ndarray
    bias: np.ndarray
    words: np.ndarray


def fit(rows: Rows, keep: np.ndarray, ridge: tuple[float, float] = (RIDGE_SIGNALS, RIDGE_WORDS)) -> Fit:
    """Minimise the weighted cross-entropy around the written rules; words seen in one source only weigh nothing."""
    R = dm.rules()
    rule_says = softmax(rows.S @ R)
    strange = np.isin(rows.source, list(MIXED)) & (
        rule_says[:, [dm.DOMAINS.index("coding"), dm.DOMAINS.index("math")]].max(axis=1) > 0.9
    )
    chatty = np.isin(rows.y, [dm.DOMAINS.index(d) for d in ("chat", "instruction-following")])
    keep = keep & ~(strange & chatty)
    w = weigh(rows, keep)
    at = np.flatnonzero(w)
    w, S, H, y = w[at], rows.S[at], rows.H[at], rows.y[at]
    codes = np.unique(np.array(rows.source)[at], return_inverse=True)[1]
    by_source = csr_matrix((np.ones(len(at)), (codes, np.arange(len(at)))))
    common = np.flatnonzero(np.asarray((by_source @ (H > 0)).astype(bool).sum(axis=0)).ravel() >= 2)
    H = H[:, common].tocsr()
    HT = H.T.tocsr()
    k, n_signals, n_words = len(dm.DOMAINS), S.shape[1], len(common)
    Y = np.eye(k)[y]
    start = S @ R

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        W = theta.reshape(n_signals + 1 + n_words, k)
        V, b, U = W[:n_signals], W[n_signals], W[n_signals + 1 :]
        Z = start + S @ V + b + H @ U
        P = softmax(Z)
        nll = -float(w @ np.log(np.maximum(P[np.arange(len(y)), y], 1e-12)))
        G = (P - Y) * w[:, None]
        grad = np.vstack([S.T @ G + 2 * ridge[0] * V, G.sum(axis=0) + 2 * RIDGE_BIAS * b, HT @ G + 2 * ridge[1] * U])
        return nll + ridge[0] * float((V**2).sum()) + RIDGE_BIAS * float(b @ b) + ridge[1] * float(
            (U**2).sum()
        ), grad.ravel()

    best = minimize(loss, np.zeros((n_signals + 1 + n_words) * k), jac=True, method="L-BFGS-B", options={"maxiter": 80})
    W = best.x.reshape(-1, k)
    words = np.zeros((dm.BUCKETS, k))
    words[common] = W[n_signals + 1 :]
    return Fit(R + W[:n_signals], W[n_signals], words)


def logits(model: Fit, rows: Rows, at: np.ndarray) -> np.ndarray:
    return rows.S[at] @ model.signals + model.bias + rows.H[at] @ model.words


def leave_sources_out(rows: Rows, folds: int, ridge: tuple[float, float] = (RIDGE_SIGNALS, RIDGE_WORDS)) -> np.ndarray:
    """Return logits of every row under a model that saw neither its source nor its text.

    With fewer folds than sources, several sources of different domains are held out together: cheaper, a little harder.
    """
    Z = np.zeros((len(rows.y), len(dm.DOMAINS)))
    source, key = np.array(rows.source), np.array(rows.key)
    mostly = {s: int(np.bincount(rows.y[source == s]).argmax()) for s in set(rows.source)}
    order = sorted(mostly, key=lambda s: (mostly[s], s))
    for i in range(min(folds, len(order))):
        held = np.isin(source, order[i::folds])
        seen = ~held & ~np.isin(key, key[held])
        Z[held] = logits(fit(rows, seen, ridge), rows, np.flatnonzero(held))
    return Z


def one_over_size(source: np.ndarray, only: np.ndarray) -> np.ndarray:
    size = Counter(source[only].tolist())
    return np.array([1 / size[s] if o else 0.0 for s, o in zip(source.tolist(), only, strict=True)])


def report(rows: Rows, Z: np.ndarray, only: np.ndarray, title: str) -> None:
    source, guess = np.array(rows.source), Z.argmax(axis=1)
    names = [s for s in sorted(set(rows.source)) if s != OURS]
    accuracy = {
        s: float((guess == rows.y)[only & (source == s)].mean()) for s in [*names, OURS] if (only & (source == s)).any()
    }
    mean = np.mean([accuracy[s] for s in names if s in accuracy])
    real = only & (source != OURS)
    w = one_over_size(source, real)  # a row counts by one over the rows of its source, as in the accuracy
    f1, lines = {}, []
    for i, d in enumerate(dm.DOMAINS):
        n_sources = len({s for s, y in zip(source[real], rows.y[real], strict=True) if y == i})
        hit = w[(guess == i) & (rows.y == i)].sum()
        total = w[guess == i].sum() + w[rows.y == i].sum()
        if n_sources:
            lines.append((d, n_sources, 2 * hit / total if total else 0.0))
        if n_sources >= 2:
            f1[d] = 2 * hit / total
    four = real & np.isin(rows.y, [dm.DOMAINS.index(d) for d in FOUR])
    inside = [float((guess == rows.y)[four & (source == s)].mean()) for s in names if (four & (source == s)).any()]
    print(f"\n{title}")
    print(f"  accuracy over {len(accuracy) - (OURS in accuracy)} sources {mean:.3f}")
    print(f"  macro-F1 over {len(f1)} domains {np.mean(list(f1.values())):.3f}")
    print(f"  accuracy over sources, rows of {', '.join(FOUR)} only {np.mean(inside):.3f}")
    for s in [*names, OURS]:
        if s in accuracy:
            rest = Counter(dm.DOMAINS[g] for g in guess[only & (source == s)])
            print(f"  {s:22s} {accuracy[s]:.2f}  " + ", ".join(f"{d} {n}" for d, n in rest.most_common(4)))
    print("  F1: " + ", ".join(f"{d} {v:.2f} ({n})" for d, n, v in lines))


def confusion(rows: Rows, Z: np.ndarray, only: np.ndarray) -> str:
    """Return the confusion table as Markdown: rows are what is true, each source weighing the same, in percent."""
    source, guess = np.array(rows.source), Z.argmax(axis=1)
    only = only & (source != OURS)
    size = Counter(zip(source[only], rows.y[only], strict=True))
    table = np.zeros((len(dm.DOMAINS),) * 2)
    for s, y, g in zip(source[only], rows.y[only], guess[only], strict=True):
        table[y, g] += 1 / size[s, y]
    head = (
        "| true | sources | " + " | ".join(d[:6] for d in dm.DOMAINS) + " |\n" + "|---" * (len(dm.DOMAINS) + 2) + "|\n"
    )
    body = ""
    for i, d in enumerate(dm.DOMAINS):
        if table[i].sum():
            cells = [f"{100 * v:.0f}" if round(100 * v) else "" for v in table[i] / table[i].sum()]
            body += f"| {d} | {table[i].sum():.0f} | " + " | ".join(cells) + " |\n"
    return head + body


def share(value: np.ndarray, where: np.ndarray, of: np.ndarray | None = None) -> float:
    """Return the mean of value / of inside `where`, or without `of` the share of the value that lies there."""
    return float(value[where].sum() / (value.sum() if of is None else max(of[where].sum(), 1e-12)))


def calibrate(rows: Rows, Z: np.ndarray, only: np.ndarray) -> tuple[float, float]:
    """Return (temperature, sure_from), chosen on held-out sources that each weigh the same.

    The temperature minimises the log loss. `sure_from` is the lowest probability from which 9 of 10 labels are right,
    and 2 of 3 of those just above it.
    """
    source = np.array(rows.source)
    w = one_over_size(source, only)

    def nll(t: float) -> float:
        P = softmax(Z / t)
        return float(-(w @ np.log(np.maximum(P[np.arange(len(P)), rows.y], 1e-9))) / w.sum())

    temperature = min((round(0.5 + 0.05 * i, 2) for i in range(60)), key=nll)
    P = softmax(Z / temperature)
    p, right = P.max(axis=1), P.argmax(axis=1) == rows.y

    def good(t: float) -> bool:
        near = (p >= t) & (p < t + 0.1)
        return share(w * right, p >= t, w) >= 0.9 and share(w * right, near, w) >= 2 / 3

    sure_from = next((t / 100 for t in range(20, 100) if good(t / 100)), 0.9)
    print(f"\ntemperature {temperature}, sure from p = {sure_from}; log loss {nll(temperature):.3f}")
    sure = p >= sure_from
    print(f"  sure {share(w, sure):.0%} of rows, of them right {share(w * right, sure, w):.0%}")
    print(f"  unsure {share(w, ~sure):.0%} of rows, of them right {share(w * right, ~sure, w):.0%}")
    for low in np.arange(0.2, 1.0, 0.1):
        b = (p >= low) & (p < low + 0.1 + (low > 0.89))
        if w[b].sum() > 0.05:
            said, was = share(w * p, b, w), share(w * right, b, w)
            print(f"  p {low:.1f}-{low + 0.1:.1f}: said {said:.2f}, right {was:.2f}, {share(w, b):.0%} of rows")
    return temperature, sure_from


def write(model: Fit, temperature: float, sure_from: float, path: Path) -> None:
    """Write the weights; the same weights give the same bytes (np.savez would store the time of day)."""
    import io
    import zipfile

    step = float(np.abs(model.words).max()) / 127 or 1.0
    arrays = {
        "signals": np.rint(model.signals * 256).astype(np.int16),
        "bias": np.rint(model.bias * 256).astype(np.int16),
        "words": np.rint(model.words / step).astype(np.int8),
        "word_step": np.float64(round(step * WORD_GAIN, 9)),
        "temperature": np.float64(temperature),
        "sure_from": np.float64(sure_from),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        for name, value in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.asarray(value), version=(1, 0), allow_pickle=False)
            z.writestr(
                zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0)), buffer.getvalue(), zipfile.ZIP_DEFLATED
            )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    print(f"\nwrote {path.name}: {path.stat().st_size:,} bytes, sha256 {digest[:16]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=a_folder, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--folds", type=int, default=1000, help="fewer than the sources: a quick look")
    parser.add_argument("--cap", type=int, default=CAP, help="rows per source and domain")
    parser.add_argument("--write", action="store_true", help="write promptkit/domains.npz")
    parser.add_argument("--searches", action="store_true", help="write promptkit/domain_searches.json and no more")
    args = parser.parse_args()
    if args.searches:
        dm.SEARCHES.write_text(dm.written(), encoding="utf-8")
        return
    rows = featurise(load(args.data, args.cap))
    print(f"{len(rows.y)} rows of {len(set(rows.source))} sources")
    report(rows, rows.S @ dm.rules(), rows.full, "written rules alone")
    Z = leave_sources_out(rows, args.folds)
    report(rows, Z, rows.full, "rules and weights, source held out")
    text_only = ~rows.full
    report(rows, Z, text_only, "the same, rows seen without their turns or with tools apart")
    print("\n" + confusion(rows, Z, rows.full))
    temperature, sure_from = calibrate(rows, Z, rows.full)
    if args.write:
        write(fit(rows, np.ones(len(rows.y), bool)), temperature, sure_from, dm.MODEL)


if __name__ == "__main__":
    command(main)
