"""Would a density ratio per prompt tell foreign prompts better than typicality does?

    python -m benchmarks.density_ratio --mix DIR --foreign DIR [--tokenizer PATH] [--rows 2000] [--sets 20]

Sets of 200: kept-out rows of the mix, a tenth or half of them swapped for foreign prompts (sources with none of the
mix's main domains). For each score of a prompt, the mean area under the ROC curve (1: every foreign prompt is odder
than every prompt of the mix), alone and as a sum of ranks with typicality. The ratios, on the reference's own vectors:

    kernel density     mean Gaussian kernel to the fitted rows (variance: a part of the median squared distance)
    kernel ratio       the same to the other prompts of the set, over that to the mix
    classifier ratio   log odds of a logistic regression, set against held-out rows, each prompt scored by a model that
                       has not seen it (5 folds)

Both ratios depend on the other prompts of the file, which no value of ours may; they are measured for what they add.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from typing import Any

import numpy as np

from benchmarks import a_folder, command

SIZE = 200


def main(argv: list[str] | None = None) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mix", type=a_folder, required=True)
    parser.add_argument("--foreign", type=a_folder, required=True)
    parser.add_argument("--tokenizer", default="words", help="a tokenizer's path (default: words)")
    parser.add_argument("--rows", type=int, default=2000, help="rows that are fitted")
    parser.add_argument("--sets", type=int, default=20)
    print(table(measure(parser.parse_args(argv))))


def measure(o: argparse.Namespace) -> dict[str, dict[float, list[float]]]:
    from sklearn.metrics import roc_auc_score

    from benchmarks import worlds
    from promptkit import scoring
    from promptkit.distances import median_squared_distance
    from promptkit.tokenizers import load_tokenizer

    rng = np.random.default_rng(13)
    mix, others = worlds.read_sources(o.mix), worlds.read_sources(o.foreign)
    rows = [(s, p) for s, ps in mix.items() for p in ps]
    home = {d for d, n in Counter(p.domain for _, p in rows).items() if n >= 0.05 * len(rows)}
    rows = [rows[i] for i in rng.permutation(len(rows))[: o.rows + 3 * SIZE]]
    units = worlds.units_of([p for _, p in rows])
    kept = np.arange(len(rows)) >= o.rows
    kept &= ~np.isin(units, units[~kept])
    strange = [ps for s, ps in others.items() if s not in mix and not home & {p.domain for p in ps}]
    fit_rows = [r for r, k in zip(rows, kept, strict=True) if not k]
    ref = worlds.fit([p for _, p in fit_rows], [s for s, _ in fit_rows], load_tokenizer(o.tokenizer), 0)
    own = [p for (_, p), k in zip(rows, kept, strict=True) if k]
    foreign = [ps[i] for ps in strange for i in rng.permutation(len(ps))[:25]]
    seen = scoring._look([*own, *foreign], ref, None)
    fitted, held = (np.asarray(ref.X)[r] for r in scoring._split(ref))
    base = median_squared_distance(fitted)
    found: dict[str, dict[float, list[float]]] = {}
    for share in (0.1, 0.5):
        k = round(share * SIZE)
        for seed in range(o.sets):
            a = rng.choice(len(own), SIZE - k, replace=False)
            b = len(own) + rng.choice(len(foreign), k, replace=False)
            at, y = np.concatenate([a, b]), np.repeat([0, 1], [SIZE - k, k])
            X = seen.X[at].astype(np.float64)
            scores: dict[str, Any] = {
                "typicality": -seen.typicality[at], "cross-entropy": seen.cross_entropy[at],
                "closeness": -seen.closeness[at],
            }  # fmt: skip
            for part in (1.0, 0.25, 0.0625):
                to_mix, to_set = (log_density(X, Z, part * base, own=Z is X) for Z in (fitted, X))
                scores[f"kernel density, {part:g} of the median"] = -to_mix
                scores[f"kernel ratio, {part:g} of the median"] = to_set - to_mix
            scores["classifier ratio"] = log_odds(X, held, seed)
            for name, value in scores.items():
                found.setdefault(name, {}).setdefault(share, []).append(float(roc_auc_score(y, value)))
                if name != "typicality":
                    both = ranks(value) + ranks(scores["typicality"])
                    auc = float(roc_auc_score(y, both))
                    found.setdefault(f"typicality + {name}", {}).setdefault(share, []).append(auc)
    return found


def log_density(X: Any, Z: Any, variance: float, *, own: bool) -> Any:
    """Return log mean exp(-|x - z|^2 / (2 variance)) over Z; `own` leaves a row's pair with itself out."""
    from scipy.special import logsumexp

    from promptkit.distances import squared_distances

    L = -squared_distances(X, Z.astype(np.float64)) / (2 * variance)
    if own:
        np.fill_diagonal(L, -np.inf)
    return logsumexp(L, axis=1) - np.log(len(Z) - own)


def log_odds(X: Any, mix: Any, seed: int, folds: int = 5) -> Any:
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(seed)
    fold, out = rng.permutation(np.arange(len(X)) % folds), np.empty(len(X))
    for f in range(folds):
        model = LogisticRegression(class_weight="balanced", max_iter=300)
        Z = np.concatenate([X[fold != f], mix])
        model.fit(Z, np.repeat([1, 0], [int((fold != f).sum()), len(mix)]))
        out[fold == f] = model.decision_function(X[fold == f])
    return out


def ranks(values: Any) -> Any:
    from scipy.stats import rankdata

    return rankdata(values)


def table(found: dict[str, dict[float, list[float]]]) -> str:
    lines = ["| score | AUC, 10 % foreign | AUC, 50 % foreign |", "|---|---:|---:|"]
    for name, at in found.items():
        cells = [f"{np.mean(v):.3f} +- {np.std(v) / np.sqrt(len(v)):.3f}" for v in at.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    command(main)
