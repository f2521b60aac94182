"""Regions of a mix: spherical k-means on unit vectors, and names a person can read.

In: unit rows (n, d) and the texts behind them. Out: `k` unit centroids, a cluster for any vector, and for each cluster
two to four words and the texts nearest to its centre. Sixteen coarse clusters carry the shares, the mix test and the
within-region typicality; centroids are fitted once and stored.

Same bytes anywhere: vectors are rounded to multiples of 2^-16 and products of such numbers are summed in float64
without any rounding error, so a label depends neither on the BLAS nor on its threads nor on how many rows are
labelled at once. Ties go to the lower cluster. Spherical k-means: Dhillon and Modha 2001; seeds: Arthur and
Vassilvitskii 2007.

Density clustering was left out: it leaves many prompts unassigned, and a mix table must add up to one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

N_CLUSTERS = 16
ROWS_PER_CLUSTER = 10  # with fewer rows than this per cluster, fewer clusters
N_STARTS = 4
MAX_STEPS = 50
_GRID = float(1 << 16)


def fit(
    X: NDArray[np.float32], *, n_clusters: int = N_CLUSTERS, rng: np.random.Generator | int = 0
) -> NDArray[np.float32]:
    """Return unit centroids (k, d), the largest cluster first.

    k is `n_clusters`, or fewer where there are fewer than 10 rows for each or fewer distinct rows. The best of four
    k-means++ starts by total cosine; a cluster that runs empty takes the row that fits worst.
    """
    rng = np.random.default_rng(rng)
    G = _grid(X)
    n_distinct = len(np.unique(G, axis=0)) if len(G) else 0
    k = max(1, min(n_clusters, len(G) // ROWS_PER_CLUSTER, n_distinct))
    if n_distinct < 2:
        return (G[:1] / _GRID).astype(np.float32) if len(G) else np.zeros((1, X.shape[1]), dtype=np.float32)
    best, best_value = G[:k], -np.inf
    for _ in range(N_STARTS if k > 1 else 1):
        C = _lloyd(G, _seeds(G, k, rng))
        value = float((G @ C.T).max(axis=1).sum())
        if value > best_value:
            best, best_value = C, value
    sizes = np.bincount((G @ best.T).argmax(axis=1), minlength=k)
    return (best[np.argsort(-sizes, kind="stable")] / _GRID).astype(np.float32)


def assign(X: NDArray[np.float32], centroids: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the cluster of each row, int64 (n,): the centroid of largest cosine, the lower number on a tie."""
    labels = np.empty(len(X), dtype=np.int64)
    C = _grid(centroids).T
    for start in range(0, len(X), 8192):
        labels[start : start + 8192] = (_grid(X[start : start + 8192]) @ C).argmax(axis=1)
    return labels


def _grid(X: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return X in units of 2^-16, whole numbers: their dot products are exact in float64 (256 * 2^32 < 2^53)."""
    return np.rint(np.asarray(X, dtype=np.float64) * _GRID)


def _seeds(G: NDArray[np.float64], k: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return k rows, each drawn in proportion to its distance (1 - cosine) from the rows drawn before."""
    chosen = [int(rng.integers(len(G)))]
    far = np.full(len(G), np.inf)
    for _ in range(k - 1):
        # At least 1 for any other row, so that rows a rounding apart can still be told apart.
        far = np.minimum(far, np.maximum(_GRID**2 - G @ G[chosen[-1]], 1.0))
        far[(G - G[chosen[-1]] == 0).all(axis=1)] = 0.0
        total = np.cumsum(np.rint(far))  # whole numbers again: the draw is exact
        chosen.append(min(int(np.searchsorted(total, rng.random() * total[-1], side="right")), len(G) - 1))
    return G[chosen]


def _lloyd(G: NDArray[np.float64], C: NDArray[np.float64]) -> NDArray[np.float64]:
    labels = np.full(len(G), -1)
    for _ in range(MAX_STEPS):
        similar = G @ C.T
        new = similar.argmax(axis=1)
        if (new == labels).all():
            break
        labels = new
        own = similar[np.arange(len(G)), labels]
        for empty in np.flatnonzero(np.bincount(labels, minlength=len(C)) == 0):
            worst = int(np.argmin(own))
            labels[worst], own[worst] = empty, np.inf
        C = np.stack([_unit_grid(G[labels == c].sum(axis=0)) for c in range(len(C))])
    return C


def _unit_grid(total: NDArray[np.float64]) -> NDArray[np.float64]:
    length = float(np.sqrt(np.sum(total * total)))
    return np.rint(total / (length or 1.0) * _GRID)


def nearest_rows(
    X: NDArray[np.float32],
    labels: NDArray[np.int64],
    centroids: NDArray[np.float32],
    *,
    units: NDArray[np.int64],
    n: int,
) -> list[list[int]]:
    """Return for each cluster its `n` rows nearest to the centre, no two of one near-duplicate unit."""
    C, found = _grid(centroids), []
    for c in range(len(C)):
        rows = np.flatnonzero(labels == c)
        order = rows[np.argsort(-(_grid(X[rows]) @ C[c]), kind="stable")]
        _, first = np.unique(units[order], return_index=True)
        found.append([int(r) for r in order[np.sort(first)[:n]]])
    return found


# --------------------------------------------------------------------------------------------------------- names

# A word or code identifier of three characters or more; numbers and markers name nothing.
_TERM = re.compile(r"[^\W\d]\w{2,}")
# A run of letters with digits as long as a hash or a temporary directory's name tells a person nothing.
_HASH = re.compile(r"(?=[^\W_]*\d)[^\W_]{16,}")
_MAX_CHARACTERS = 4000  # of a text: enough to name it, and a log of a megabyte must not name a cluster

_BOILERPLATE = """
the and for you your are was were been being have has had having does did doing done with without this that these
those there here where when which who whom whose what why how not but nor yet than then them they their theirs its
itself his her hers him she our ours one two can could should would will shall may might must from into onto over
under above below between about after before during while until because since though although also any all each
every both either neither some such same other another more most much many few less least very too just only own
out off down again further once ever never now per via etc let lets get got give given gives use used using make
made makes want need needs like please help helpful assistant user system human answer answers question questions
following follow follows write provide provided task tasks respond response reply output input example examples
instruction instructions based first second last next new way good best well know think see find say said don doesn
isn aren won didn ll ve re im explain describe create return returns text sure yes okay
"""


def names(texts: Sequence[str], labels: NDArray[np.int64], k: int) -> list[str]:
    """Return a name for each cluster: two to four terms that it uses more than the others do.

    Class-based TF-IDF (Grootendorst 2022): share of the cluster's texts with the term times ln(1 + k / summed shares).
    Terms are words and code identifiers, boilerplate of chats removed. Names are distinct.
    """
    boilerplate = set(_BOILERPLATE.split())
    used = [Counter[str]() for _ in range(k)]
    for text, label in zip(texts, labels.tolist(), strict=True):
        found_terms = {t.casefold() for t in _TERM.findall(text[:_MAX_CHARACTERS]) if not _HASH.fullmatch(t)}
        used[label].update(found_terms - boilerplate)
    sizes = np.maximum(np.bincount(labels, minlength=k), 1)
    total: dict[str, float] = {}
    for c, counts in enumerate(used):
        for term, count in counts.items():
            total[term] = total.get(term, 0.0) + count / sizes[c]
    found: list[str] = []
    for c, counts in enumerate(used):
        least = 2 if sizes[c] >= 4 else 1  # a term of one text names no region
        weight = {t: round(n / sizes[c] * float(np.log1p(k / total[t])), 9) for t, n in counts.items() if n >= least}
        terms = _spread(sorted(weight, key=lambda t: (-weight[t], t))[:24], weight)
        name = ", ".join(terms) or "(no words)"
        found.append(name if name not in found else f"{name} ({c})")
    return found


def _spread(ranked: list[str], weight: dict[str, float]) -> list[str]:
    """Return two to four terms, leaving out forms of a term already taken and the tail that says little."""
    taken: list[str] = []
    for term in ranked:
        if any(term.startswith(t[:5]) or t.startswith(term[:5]) for t in taken if min(len(t), len(term)) >= 5):
            continue
        if len(taken) >= 2 and weight[term] < 0.4 * weight[taken[0]]:
            break
        taken.append(term)
        if len(taken) == 4:
            break
    return taken
