"""Regions of a mix: spherical k-means on unit vectors, and names a person can read.

In: unit rows (n, d) and the texts behind them. Out: `k` unit centroids, a cluster for any vector, and for each cluster
two to four words and the texts nearest to its centre. They carry the shares and the mix test; centroids are fitted once
and stored. (The regions of typicality are others: `fit_regions`.)

No dice: k-means (Dhillon and Modha 2001) starts from the clusters that Ward's tree has at that level, found on at most
3,000 rows. From random starts two seeds agreed on about 0.75 of the prompts at sixteen clusters, from the tree on 0.83
to 0.94 (docs/domains.md), at the same mean cosine. How many there are is read off the data: sixteen, or, where an
eighth fewer rows gives others, the largest of 12, 8, 6 and 4 that stays as it is (`stable_number`).

Same bytes anywhere: vectors are rounded to multiples of 2^-16 and products of such numbers are summed in float64
without any rounding error, so a label depends neither on the BLAS nor on its threads nor on how many rows are
labelled at once. Ties go to the lower cluster.

Density clustering was left out: it leaves many prompts unassigned, and a mix table must add up to one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from promptkit import gpu

if TYPE_CHECKING:
    from numpy.typing import NDArray

N_CLUSTERS = 16
FEWER = (12, 8, 6, 4)  # tried in turn where 16 are not stable
STABLE = 0.885  # of the rows are where they were after an eighth of the rows was left out, on average
ROWS_PER_CLUSTER = 10  # with fewer rows than this per cluster, fewer clusters
MAX_STEPS = 50
N_REGION_FITS = 5  # clusterings of `fit_regions`
_TREE_ROWS = 3000  # of which the tree is grown: 36 MB of distances, half a second
_CHECK_ROWS, _PARTS = 2000, 8
_GRID = float(1 << 16)


def fit(X: NDArray[np.float32], *, n_clusters: int = N_CLUSTERS, device: str = "cpu") -> NDArray[np.float32]:
    """Return unit centroids (k, d), the largest cluster first.

    k is `n_clusters`, or fewer where there are fewer than 10 rows for each or fewer distinct rows. Of more than 3,000
    rows another order may give other clusters. `device` ("cuda") changes the time alone (`gpu`).
    """
    G = _grid(X)
    k = _possible(G, n_clusters)
    if not k:
        return _only_centroid(G)
    some = _some(G, _TREE_ROWS)
    C = _lloyd(G, _cut(some, _tree(some), k), device=device)
    sizes = np.bincount((G @ C.T).argmax(axis=1), minlength=len(C))
    return (C[np.argsort(-sizes, kind="stable")] / _GRID).astype(np.float32)


def fit_regions(
    X: NDArray[np.float32], *, rng: np.random.Generator | int = 0, device: str = "cpu"
) -> NDArray[np.float32]:
    """Return unit centroids (5, k, d) of the regions in which typicality compares a text with its like (`conformal`).

    k-means from k-means++ rows (Arthur and Vassilvitskii 2007), at most 16 clusters, five times from other rows: what a
    text is compared with is the mean over the five, and hangs less on where one of them draws its borders.
    Not the clusters that are shown: the tree gathers what fits nowhere in one loose cluster (0.30 of the example mix
    against 0.12), where essays are then at home: at sixteen clusters the essays on relativity and on economics get
    0.087 and 0.066 from the tree's and 0.027 and 0.013 from one of these, as far from the mix as they are.
    """
    rng = np.random.default_rng(rng)
    G = _grid(X)
    k = _possible(G, N_CLUSTERS)
    if not k:
        return _only_centroid(G)[None]
    n_fits = N_REGION_FITS if k > 1 else 1
    found = np.stack([_lloyd(G, _seeds(G, k, rng, device=device), device=device) for _ in range(n_fits)])
    return (found / _GRID).astype(np.float32)


def stable_number(X: NDArray[np.float32]) -> int:
    """Return how many clusters these rows have: 16, or the most that do not hang on which rows are there.

    An eighth of (at most 2,000) rows is left out, eight times; each time the rest is clustered and all rows assigned.
    Two such clusterings agree on the rows that the best one-to-one matching of their clusters puts together. The number
    is the largest whose mean agreement is 0.885 or more; where none is, the one that agrees best.
    """
    G = _some(_grid(X), _CHECK_ROWS)
    parts = [G[np.arange(len(G)) % _PARTS != p] for p in range(_PARTS)]
    if len(np.unique(G, axis=0)) < N_CLUSTERS * ROWS_PER_CLUSTER:
        return N_CLUSTERS  # `fit` takes fewer by itself
    trees = [_tree(part) for part in parts]
    agreed: dict[int, float] = {}
    for k in (N_CLUSTERS, *FEWER):
        labels = [(G @ _lloyd(p, _cut(p, t, k)).T).argmax(axis=1) for p, t in zip(parts, trees, strict=True)]
        pairs = [agreement(labels[a], labels[b]) for a in range(_PARTS) for b in range(a)]
        agreed[k] = round(float(np.mean(pairs)), 6)
        if agreed[k] >= STABLE:
            return k
    return max(agreed, key=lambda k: (agreed[k], k))


def agreement(a: NDArray[np.integer], b: NDArray[np.integer]) -> float:
    """Return the share of rows that two clusterings put together under the best one-to-one matching of clusters.

    >>> agreement(np.array([0, 0, 1, 1]), np.array([5, 5, 2, 5]))
    0.75
    """
    from scipy.optimize import linear_sum_assignment

    both = np.zeros((int(a.max(initial=0)) + 1, int(b.max(initial=0)) + 1))
    np.add.at(both, (a, b), 1)
    return float(both[linear_sum_assignment(-both)].sum()) / max(len(a), 1)


def assign(X: NDArray[np.float32], centroids: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the cluster of each row, int64 (n,): the centroid of largest cosine, the lower number on a tie."""
    labels = np.empty(len(X), dtype=np.int64)
    C = _grid(centroids).T
    for start in range(0, len(X), 8192):
        labels[start : start + 8192] = (_grid(X[start : start + 8192]) @ C).argmax(axis=1)
    return labels


def assign_all(X: NDArray[np.float32], clusterings: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the cluster of each row in each of R clusterings, (R, k, d) centroids, as int64 (n, R)."""
    return np.stack([assign(X, centroids) for centroids in clusterings], axis=1)


def _grid(X: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return X in units of 2^-16, whole numbers: their dot products are exact in float64 (256 * 2^32 < 2^53)."""
    return np.rint(np.asarray(X, dtype=np.float64) * _GRID)


def _possible(G: NDArray[np.float64], wanted: int) -> int:
    """Return how many of the wanted clusters these rows can have; 0 where no two rows differ."""
    n_distinct = len(np.unique(G, axis=0)) if len(G) else 0
    return max(1, min(wanted, len(G) // ROWS_PER_CLUSTER, n_distinct)) if n_distinct > 1 else 0


def _only_centroid(G: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the one centroid of rows that do not differ; of no rows, the origin."""
    return (G[:1] / _GRID).astype(np.float32) if len(G) else np.zeros((1, G.shape[1]), dtype=np.float32)


def _some(G: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return at most n rows, evenly spaced: rows lie in the order of their files, so every source is there."""
    return G if len(G) <= n else G[np.linspace(0, len(G) - 1, n).astype(np.int64)]


def _tree(G: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import pdist

    return np.asarray(linkage(pdist(G / _GRID), "ward"))


def _cut(G: NDArray[np.float64], tree: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Return the mean directions of the k clusters that the tree has at that level."""
    from scipy.cluster.hierarchy import fcluster

    labels = fcluster(tree, k, "maxclust") - 1
    return np.stack([_unit_grid(G[labels == c].sum(axis=0)) for c in range(int(labels.max()) + 1)])


def _seeds(G: NDArray[np.float64], k: int, rng: np.random.Generator, *, device: str = "cpu") -> NDArray[np.float64]:
    """Return k rows, each drawn in proportion to its distance (1 - cosine) from the rows drawn before."""
    if device != "cpu":
        return gpu.seeds(G, k, rng, square=_GRID**2, device=gpu.resolve(device))
    chosen = [int(rng.integers(len(G)))]
    far = np.full(len(G), np.inf)
    for _ in range(k - 1):
        # At least 1 for any other row, so that rows a rounding apart can still be told apart.
        far = np.minimum(far, np.maximum(_GRID**2 - G @ G[chosen[-1]], 1.0))
        far[(G - G[chosen[-1]] == 0).all(axis=1)] = 0.0
        total = np.cumsum(np.rint(far))  # whole numbers again: the draw is exact
        chosen.append(min(int(np.searchsorted(total, rng.random() * total[-1], side="right")), len(G) - 1))
    return G[chosen]


def _lloyd(
    G: NDArray[np.float64], C: NDArray[np.float64], *, steps: int = MAX_STEPS, device: str = "cpu"
) -> NDArray[np.float64]:
    if device != "cpu":
        return gpu.lloyd(G, C, steps=steps, unit=_unit_grid, device=gpu.resolve(device))
    labels = np.full(len(G), -1)
    for _ in range(steps):
        similar = G @ C.T
        new = similar.argmax(axis=1)
        if (new == labels).all():
            break
        labels = new
        own = similar[np.arange(len(G)), labels]
        for empty in np.flatnonzero(np.bincount(labels, minlength=len(C)) == 0):
            worst = int(np.argmin(own))
            labels[worst], own[worst] = empty, np.inf
        members = (labels == np.arange(len(C))[:, None]).astype(np.float64)
        C = np.stack([_unit_grid(total) for total in members @ G])  # whole numbers: exact, and no copy of the rows
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

# A word, or a part of an identifier: `parseJsonFile` and `parse_json_file` are parse, json and file; JavaScript and
# DataFrame are words. Three letters or more: numbers and markers name nothing.
_WORD = re.compile(r"\w+")
_PART = re.compile(r"[^\W\d_]{3,}\d*")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
# A run of letters with digits as long as a hash or a temporary directory's name tells a person nothing.
_HASH = re.compile(r"(?=[^\W_]*\d)[^\W_]{16,}")
_MAX_CHARACTERS = 4000  # of a text: enough to name it, and a log of a megabyte must not name a cluster

# Words of chats, of code whatever it does, and of tool schemas.
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
isn aren won didn ll ve re im explain describe create return returns text sure yes okay take takes taking tell show
name names named call called calls contain contains contained containing start starts starting start end ends available
above expected correct correctly whether including included instead note means must should ensure provides providing
specific different number numbers line lines item items list lists value values whose thing things try way ways work
works working time times set sets case cases point points part parts finish allowed current help currently right left
def self cls str int len dict bool none true false null elif else args kwargs func import print float char void const
var let lambda async await static public private class struct main tmp foo bar baz param params todo obj arg elem str1
properties property parameters parameter required type types object objects description optional default enum schema
field fields format function functions code python integer integers string strings remember hello calculates calculate
final subfunction restart task tasks obtained
"""


def names(texts: Sequence[str], labels: NDArray[np.int64], k: int) -> list[str]:
    """Return a name for each cluster: two to four terms that it uses more than the others do.

    Class-based TF-IDF (Grootendorst 2022): use of the term per text of the cluster times ln(1 + k / its use in all). A
    text that says a term 1, 2-3, 4-7 or more times uses it 1, 2, 3 or 4 times, so that below one long policy the word
    that it turns about comes before those that it says once. Terms are words and parts of identifiers; what chats,
    code and tool schemas say of anything is left out. Names are distinct.
    """
    boilerplate = set(_BOILERPLATE.split())
    used = [Counter[str]() for _ in range(k)]
    holders = [Counter[str]() for _ in range(k)]
    for text, label in zip(texts, labels.tolist(), strict=True):
        terms = _terms(text[:_MAX_CHARACTERS])
        for term, times in terms.items():
            used[label][term] += min(times, 15).bit_length()
        holders[label].update(terms.keys())
    sizes = np.maximum(np.bincount(labels, minlength=k), 1)
    total: dict[str, float] = {}
    for c, counts in enumerate(used):
        for term, count in counts.items():
            total[term] = total.get(term, 0.0) + count / sizes[c]
    found: list[str] = []
    for c, counts in enumerate(used):
        least = 2 if sizes[c] >= 4 else 1  # a term of one text names no region
        weight = {
            t: round(n / sizes[c] * float(np.log1p(k / total[t])), 9)
            for t, n in counts.items()
            if holders[c][t] >= least and t not in boilerplate
        }
        chosen = _spread(sorted(weight, key=lambda t: (-weight[t], t))[:24], weight)
        name = ", ".join(chosen) or "(no words)"
        found.append(name if name not in found else f"{name} ({c})")
    return found


def _terms(text: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for word, times in Counter(_WORD.findall(text)).items():
        for part in _parts(word):
            found[part] += times
    return found


@lru_cache(maxsize=1 << 14)
def _parts(word: str) -> tuple[str, ...]:
    if _HASH.fullmatch(word):
        return ()
    return tuple(p.casefold() for p in _PART.findall(_HUMP.sub("_", word) if word[0].islower() else word))


def _spread(ranked: list[str], weight: dict[str, float]) -> list[str]:
    """Return two to four terms, leaving out forms of a term already taken and the tail that says little."""
    taken: list[str] = []
    for term in ranked:
        if any(term.startswith(t[:5]) or t.startswith(term[:5]) for t in taken):
            continue
        if len(taken) >= 2 and weight[term] < 0.4 * weight[taken[0]]:
            break
        taken.append(term)
        if len(taken) == 4:
            break
    return taken
