"""Typicality: does a text belong to the mix? A conformal p-value, uniform on rows of the mix itself.

    token ids, domain masses -> closeness, cross-entropy, affinity -> oddness -> ranks -> p = typicality

*Oddness* is the sum of the text's ranks, among held-out rows, in distance (low closeness), in cross-entropy and in
foreignness of domain (low affinity); beyond the range of the held-out rows farther is farther. If the text lies in a
region of the mix whose own rows are odder than most, four fifths of that are taken off: of the difference of the median
oddness of the held-out rows of its cluster from that of all. So a rare but legitimate region is not foreign. Which
region a text lies in hangs on where a clustering happens to draw its borders, so there are five, and what is taken off
is their mean: on the sources below each of the five alone flagged 0.94 to 0.95 of foreign prompts, all five 0.96.
Held-out rows fitted neither the neighbours nor the trigram model, so under the null a text is exchangeable with them,
and p = (1 + #{held-out at least as odd}) / (1 + held-out) (Vovk, Gammerman and Shafer 2005).

*Affinity* is the logarithm of the mix's share of the text's domains: sum over domains of P(domain | text) times the
share of the mix in that domain. Words alone find "a guide to B-trees" as far from code as "the economic implications
of AI": both are essays in words that no training row uses. On 13 coding and agentic sources against 18 foreign ones
(one split) affinity raised the mean AUC from 0.983 to 0.991 and the share of foreign prompts flagged from 0.94 to 0.96,
and lowered the share of HumanEval and MBPP flagged, which are of the mix's domains, from 0.40 and 0.47 to 0.02 and 0.
A larger weight passes whole sources whose domain the mix has.

Those rates are over all rows. Rows of a tidy domain would then hardly ever be flagged and rows of a loose one often: of
the rows kept out of those 13 sources 1.1 to 1.7 % of the coding ones and 4.9 to 6.3 % of the agentic ones, at a nominal
5 % (five splits). So a text is ranked twice: among all held-out rows (0.8 of the weight) and among those of its domain
(its likeliest, from the text alone; where there are fewer than 40 such rows, among all). The geometric mean of the two
p-values is ranked once more, which makes it a p-value again: 1.0 to 2.1 % and 4.4 to 5.9 %, AUCs as before. A larger
weight evens domains out further, and costs what the whole is for: at 0.5 the correlation of typicality with acceptance
falls by 0.01 (docs/acceptance.md).

A text lies in a region only where at least half of its 10 nearest rows are of that cluster; else nothing is taken off,
for held-out rows as for candidates. Every text has *a* nearest centroid, and what the vectors cannot express lands in
the loosest cluster, whose own rows are all odd.

Regimes:  split   one model, fitted on the rows that are not held out;
          cross   few rows: 5 folds, each row held out once, five models (cross-conformal, Vovk 2015);
          none    fewer than 100 rows: one model on all rows, typicality is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit.lexical import N_NEAREST, LexicalProfile, Neighbours

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from promptkit.lexical import Ids

MIN_ROWS = 100  # fewer rows in all: p-values are refused
MIN_HELDOUT = 400  # fewer held-out rows than this: cross-conformal
MIN_GROUP = 40  # a cluster with fewer held-out rows is joined with its nearest
N_FOLDS = 5
MIN_AGREEMENT = 0.5  # share of the nearest rows that must be of a text's own cluster
REGION_SHARE = 0.8  # of what is usual in a loose region that is taken off
WEIGHTS = (0.8, 0.2)  # of the ranks among all rows, and among those of the domain


@dataclass(frozen=True)
class TypicalityResult:
    """What a view says of m texts.

    typicality : (m,) 0..1, NaN where the reference has fewer than 100 rows;  closeness : (m,) mean cosine to the 10
    nearest;  cross_entropy : (m,) bits per token;  nearest : (m, 10) sample indices, best first, -1 where there is
    none;  nearest_cosine : (m, 10).
    """

    typicality: NDArray[np.float64]
    closeness: NDArray[np.float64]
    cross_entropy: NDArray[np.float64]
    nearest: NDArray[np.int64]
    nearest_cosine: NDArray[np.float64]


class View:
    """The fitted view of the prompts, or of the responses, of a mix.

    profile : the lexical profile (of the first fold where there are five);  rows : (h,) sample indices of the
    calibration rows;  closeness, cross_entropy, oddness, p : (h,) what each of them got while held out.
    """

    def __init__(self, profiles: Sequence[LexicalProfile], arrays: Mapping[str, NDArray[Any]]) -> None:
        self.profiles = list(profiles)
        self._a = arrays
        self.rows = np.asarray(arrays["rows"])
        self.fold = np.asarray(arrays["fold"])
        self.closeness = np.asarray(arrays["closeness"])
        self.cross_entropy = np.asarray(arrays["cross_entropy"])
        self._units = np.asarray(arrays["units"])  # of the calibration rows
        self._group_of = np.asarray(arrays["group_of"])  # (R, k): cluster -> group of clusters, by clustering
        # A held-out row that lies in no region is compared with all rows only: group -1.
        self._group = self._groups(np.asarray(arrays["clusters"]), np.asarray(arrays["in_region"]))
        self._rank_distance = _Rank(-self.closeness)
        self._rank_bits = _Rank(self.cross_entropy)
        self._rank_affinity = _Rank(-np.asarray(arrays["affinity"])) if "affinity" in arrays else None
        raw = self._odd(self.closeness, self.cross_entropy, arrays.get("affinity"))
        self._usual = self._usual_oddness(raw)
        self._odd_of_row = self._less_usual(raw, self._group)
        domain = np.asarray(arrays.get("domain", np.full(len(self.rows), -1)))
        self._strata = [_Stratum(self._odd_of_row, codes) for codes in (np.zeros_like(domain), domain)]
        self.oddness = self._ranked(self._odd_of_row, domain, itself=True)
        self._sorted = [np.sort(self.oddness[self.fold == f]) for f in range(len(self.profiles))]
        # A held-out row is ranked among the others: the "1 +" of the p-value is the row itself.
        self.p = _share_at_least(np.sort(self.oddness), self.oddness)

    @property
    def profile(self) -> LexicalProfile:
        """The lexical profile; where the view is cross-conformal, that of the first fold."""
        return self.profiles[0]

    @property
    def regime(self) -> str:
        """`split`, `cross` or `none`."""
        return "none" if not len(self.rows) else "cross" if len(self.profiles) > 1 else "split"

    @classmethod
    def fit(
        cls,
        ids: Sequence[Ids],
        *,
        rows: NDArray[np.int64],
        folds: NDArray[np.int64],
        units: NDArray[np.int64],
        clusters: NDArray[np.int64],
        centroids: NDArray[np.float32],
        n_vocab: int,
        affinity: NDArray[np.float64] | None = None,
        domain: NDArray[np.int64] | None = None,
        threads: int = 1,
    ) -> View:
        """Fit on token ids, one entry per sample row in `rows`.

        `folds` (one per entry): -1 fits every model and calibrates none, f >= 0 is held out of model f. All arrays are
        aligned with `ids`; `units` are near-duplicate groups, which must not straddle folds; `clusters` is (n, R), the
        cluster in each of R clusterings, whose `centroids` are (R, k, d); `domain` is a code of the likeliest domain
        (-1: unknown).
        """
        n_models = max(1, int(folds.max(initial=-1)) + 1)
        profiles, calibration = [], np.flatnonzero(folds >= 0)
        closeness, bits = np.zeros(len(ids)), np.zeros(len(ids))
        in_region = np.zeros(clusters.shape, dtype=bool)
        fitted: dict[str, NDArray[Any]] = {}
        for f in range(n_models):
            inside, outside = np.flatnonzero(folds != f), np.flatnonzero(folds == f)
            profile = LexicalProfile.fit([ids[i] for i in inside.tolist()], n_vocab=n_vocab, units=units[inside])
            profiles.append(profile)
            fitted |= {f"fit_rows_{f}": rows[inside], f"fit_clusters_{f}": clusters[inside]}
            held = [ids[i] for i in outside.tolist()]
            near = profile.nearest(held, threads=threads)
            closeness[outside] = near.closeness
            bits[outside] = profile.cross_entropy(held)
            in_region[outside] = _in_region(near, clusters[inside], clusters[outside])
        group_of = [
            join_small(np.bincount(c[inside], minlength=len(centres)), centres)
            for c, inside, centres in zip(clusters[calibration].T, in_region[calibration].T, centroids, strict=True)
        ]
        arrays = {
            "rows": rows[calibration],
            "fold": folds[calibration],
            "units": units[calibration],
            "clusters": clusters[calibration],
            "group_of": np.stack(group_of),
            "closeness": closeness[calibration],
            "cross_entropy": bits[calibration],
            "in_region": in_region[calibration],
            **fitted,
        }
        if affinity is not None:
            arrays["affinity"] = np.asarray(affinity, dtype=np.float64)[calibration]
        if domain is not None:
            arrays["domain"] = np.asarray(domain, dtype=np.int64)[calibration]
        return cls(profiles, arrays)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what a saved view consists of besides its profiles, by name."""
        return dict(self._a)

    def nearest(self, ids: Sequence[Ids], exclude_units: NDArray[np.int64]) -> list[Neighbours]:
        """Return the nearest rows of texts under each model: products, which leave other threads free."""
        return [profile.nearest(ids, exclude=exclude_units) for profile in self.profiles]

    def typicality(
        self,
        ids: Sequence[Ids],
        clusters: NDArray[np.int64],
        *,
        affinity: NDArray[np.float64] | None = None,
        domain: NDArray[np.int64] | None = None,
        exclude_units: NDArray[np.int64] | None = None,
        neighbours: Callable[[], Sequence[Neighbours]] | None = None,
    ) -> TypicalityResult:
        """Return how typical m texts are: token ids, clusters (m, R), domain affinities (m,), codes of domains (m,).

        A view that was fitted with affinities needs them; without codes a text is not ranked within its domain.
        A text that belongs to a unit of the mix (`exclude_units`, -1: none) is scored without that unit: not among the
        neighbours, not in the counts, not among the held-out rows. Each text is scored on its own, to the last bit.
        `neighbours` gives what `nearest` says of these texts and units, where it was asked before.
        """
        m = len(ids)
        clusters = np.asarray(clusters, dtype=np.int64)
        exclude = np.full(m, -1, dtype=np.int64) if exclude_units is None else np.asarray(exclude_units, dtype=np.int64)
        bits = np.stack([profile.cross_entropy(ids, exclude=exclude) for profile in self.profiles])
        found = neighbours() if neighbours else self.nearest(ids, exclude)
        closeness = np.stack([n.closeness for n in found])
        rows = [np.where(n.position >= 0, self._a[f"fit_rows_{f}"][n.position], -1) for f, n in enumerate(found)]
        nearest, cosine = _merge(rows, [n.cosine for n in found])
        groups = [
            self._groups(clusters, _in_region(n, self._a[f"fit_clusters_{f}"], clusters)) for f, n in enumerate(found)
        ]
        domain = np.full(m, -1, dtype=np.int64) if domain is None else np.asarray(domain, dtype=np.int64)
        typicality = self._typicality(closeness, bits, affinity, groups, domain, exclude)
        return TypicalityResult(
            typicality, np.round(closeness.mean(axis=0), 6), np.round(bits.mean(axis=0), 6), nearest, cosine
        )

    def _typicality(
        self,
        closeness: NDArray[np.float64],
        bits: NDArray[np.float64],
        affinity: NDArray[np.float64] | None,
        groups: Sequence[NDArray[np.int64]],
        domain: NDArray[np.int64],
        exclude: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Return the p-value of each text from its scores (models, m) and its group (-1: none) under each model."""
        m, h = closeness.shape[1], len(self.rows)
        if not h:
            return np.full(m, np.nan)
        # Under five models a text may lie in its region for some only; the region counts where most say so.
        group = np.max(groups, axis=0)
        group[np.mean([g >= 0 for g in groups], axis=0) < 0.5] = -1
        odd = np.stack(
            [
                self._ranked(self._less_usual(self._odd(c, b, affinity), group), domain, exclude=exclude)
                for c, b in zip(closeness, bits, strict=True)
            ]
        )
        odder, n = np.zeros(m), np.full(m, float(h))
        for f, held_out in enumerate(self._sorted):
            odder += _n_at_least(held_out, odd[f])
        for i, unit in enumerate(exclude):
            if unit >= 0:
                held = np.flatnonzero(self._units == unit)
                odder[i] -= (self.oddness[held] >= odd[self.fold[held], i]).sum()
                n[i] -= len(held)
        typicality: NDArray[np.float64] = (1 + odder) / (1 + n)
        return typicality

    def _odd(
        self,
        closeness: NDArray[np.float64],
        bits: NDArray[np.float64],
        affinity: NDArray[np.float64] | None,
    ) -> NDArray[np.float64]:
        odd = self._rank_distance(-closeness) + self._rank_bits(bits)
        if self._rank_affinity is not None:
            if affinity is None:
                raise ValueError("this view was fitted with domain affinities: pass `affinity`, one value per text")
            odd = odd + self._rank_affinity(-np.asarray(affinity))
        return np.round(odd, 6)

    def _ranked(
        self,
        odd: NDArray[np.float64],
        domain: NDArray[np.int64],
        *,
        exclude: NDArray[np.int64] | None = None,
        itself: bool = False,
    ) -> NDArray[np.float64]:
        """Return what is ranked last: minus the weighted mean log of p among all rows and among those of the domain."""
        codes = (np.zeros_like(domain), domain)
        found = [s.p(odd, c, itself=itself) for s, c in zip(self._strata, codes, strict=True)]
        if exclude is not None:  # a row of the mix is ranked without its own unit, as it was while held out
            for i in np.flatnonzero(exclude >= 0):
                own = np.flatnonzero(self._units == exclude[i])
                for p, stratum, code in zip(found, self._strata, codes, strict=True):
                    p[i] = stratum.p_without(odd[i], int(code[i]), own)
        logs = np.zeros_like(odd)
        for weight, p in zip(WEIGHTS, found, strict=True):
            logs -= weight * np.log(np.where(np.isnan(p), found[0], p))
        ranked: NDArray[np.float64] = np.round(logs, 9)
        return ranked

    def _groups(self, clusters: NDArray[np.int64], inside: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the group of each text in each clustering, (m, R), -1 where it lies in no region."""
        group = self._group_of[np.arange(clusters.shape[1]), clusters]
        return np.where(inside, group, -1).astype(np.int64)

    def _usual_oddness(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, per clustering and group, by how much its median oddness exceeds that of all held-out rows.

        (R, groups + 1): the last column is that of no group, 0.
        """
        usual = np.zeros((self._group.shape[1], int(self._group_of.max(initial=-1)) + 2), dtype=np.float64)
        of_all = np.median(raw) if len(raw) else 0.0
        for r, group in enumerate(self._group.T):
            for g in np.unique(group[group >= 0]):
                usual[r, g] = max(0.0, round(float(np.median(raw[group == g]) - of_all), 6))
        return usual

    def _less_usual(self, raw: NDArray[np.float64], group: NDArray[np.int64]) -> NDArray[np.float64]:
        taken = self._usual[np.arange(group.shape[1]), group].mean(axis=1)  # group -1 finds the 0 at the end
        less: NDArray[np.float64] = np.round(raw - REGION_SHARE * taken, 6)
        return less


class _Stratum:
    """The held-out rows by a code (of domain; one for all); codes below 0 and those of few rows are none: p is NaN."""

    def __init__(self, odd: NDArray[np.float64], codes: NDArray[np.int64]) -> None:
        self.odd, self.codes = odd, codes
        known, sizes = np.unique(codes, return_counts=True)
        kept = known[(known >= 0) & (sizes >= min(MIN_GROUP, len(odd)))].tolist()
        self.ascending = {int(c): np.sort(odd[codes == c]) for c in kept}

    def p(self, odd: NDArray[np.float64], codes: NDArray[np.int64], *, itself: bool) -> NDArray[np.float64]:
        """Return the share of rows of the same code that are at least as odd; `itself`: the texts are these rows."""
        found = np.full(len(odd), np.nan)
        for code, ascending in self.ascending.items():
            own = codes == code
            found[own] = (_n_at_least(ascending, odd[own]) + (not itself)) / (len(ascending) + (not itself))
        return found

    def p_without(self, odd: float, code: int, left_out: NDArray[np.int64]) -> float:
        """Return p of one text among the rows of its code that are not `left_out`."""
        if code not in self.ascending:
            return float("nan")
        own = left_out[self.codes[left_out] == code]
        ascending = self.ascending[code]
        n = len(ascending) - len(own)
        at_least = int(_n_at_least(ascending, np.array([odd]))[0]) - int((self.odd[own] >= odd).sum())
        return (1 + at_least) / (1 + n)


class _Rank:
    """Rank among held-out values as a continuous, non-decreasing function; beyond the largest it goes on rising."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values, counts = np.unique(values, return_counts=True)
        self.n = len(values)
        self.ranks = np.cumsum(counts) - (counts - 1) / 2.0  # ties share the middle of their ranks
        self.spread = max(float(self.values[-1] - self.values[0]), 1e-6) if self.n else 1.0

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        if not self.n:
            return np.zeros_like(x)
        beyond = np.maximum(x - self.values[-1], 0.0) / self.spread * self.n
        ranks: NDArray[np.float64] = np.interp(x, self.values, self.ranks) + beyond
        return ranks


def _in_region(near: Neighbours, fit_clusters: NDArray[np.int64], clusters: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether enough of the nearest rows of each text are of its own cluster, in each clustering: (m, R)."""
    there = near.position >= 0
    if not len(fit_clusters):
        return np.zeros(clusters.shape, dtype=bool)
    same = there[:, :, None] & (fit_clusters[near.position] == clusters[:, None, :])
    agree: NDArray[np.bool_] = same.sum(axis=1) >= MIN_AGREEMENT * np.maximum(there.sum(axis=1), 1)[:, None] - 1e-9
    return agree


def join_small(sizes: NDArray[np.int64], centroids: NDArray[np.float32], least: int = MIN_GROUP) -> NDArray[np.int64]:
    """Return a group for each cluster: clusters of fewer than `least` held-out rows joined with their nearest.

    The smallest group joins the group whose centre has the largest cosine with its own, until none is too small. All
    -1, no group, where even together they are.
    """
    if sizes.sum() < least:
        return np.full(len(sizes), -1, dtype=np.int64)
    group = np.arange(len(sizes))
    C = np.round(np.asarray(centroids, dtype=np.float64), 5)
    while True:
        alive = np.unique(group)
        total = np.array([sizes[group == g].sum() for g in alive])
        if len(alive) < 2 or total.min() >= least:
            return np.searchsorted(alive, group)
        small = int(np.argmin(total))
        # A group's centre is the mean of its rows; a cluster without rows counts a little, or it would have none.
        centre = np.stack([(C[group == g] * (sizes[group == g, None] + 1e-3)).sum(axis=0) for g in alive])
        centre /= np.maximum(np.sqrt((centre**2).sum(axis=1, keepdims=True)), 1e-12)
        similar = np.round((centre * centre[small]).sum(axis=1), 6)
        similar[small] = -np.inf
        group[group == alive[small]] = alive[int(np.argmax(similar))]


def folds_by_unit(units: NDArray[np.int64], *, seed: int) -> NDArray[np.int64]:
    """Return the fold of each row: 0 = held out of the only model, -1 = fit; or 0..4; or all -1 for too few rows.

    Whole units are dealt in a seeded random order: a quarter of the rows is held out where that gives 400 of them;
    else five folds of nearly equal size; below 100 rows, or 10 units, nothing is held out.
    """
    n = len(units)
    unit, inverse, size = np.unique(units, return_inverse=True, return_counts=True)
    fold_of = np.full(len(unit), -1, dtype=np.int64)
    if n < MIN_ROWS or len(unit) < 2 * N_FOLDS:  # copies of a few texts calibrate nothing
        return fold_of[inverse]
    order = np.random.default_rng(seed).permutation(len(unit))
    held = 0
    for u in order:
        if held + size[u] <= n // 4:
            fold_of[u], held = 0, held + size[u]
    if held < MIN_HELDOUT:
        room = np.zeros(N_FOLDS, dtype=np.int64)
        for u in order:
            f = int(np.argmin(room))
            fold_of[u], room[f] = f, room[f] + size[u]
    return fold_of[inverse]


def _n_at_least(ascending: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.int64]:
    return len(ascending) - np.searchsorted(ascending, x, side="left")


def _share_at_least(ascending: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    return _n_at_least(ascending, x) / max(len(ascending), 1)


def _merge(
    rows: list[NDArray[np.int64]], cosines: list[NDArray[np.float64]]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the 10 nearest over all models, each row once with its largest cosine."""
    if len(rows) == 1:
        return rows[0], cosines[0]
    all_rows, all_cosines = np.concatenate(rows, axis=1), np.concatenate(cosines, axis=1)
    nearest = np.full((len(all_rows), N_NEAREST), -1, dtype=np.int64)
    cosine = np.zeros((len(all_rows), N_NEAREST))
    for i, (r, c) in enumerate(zip(all_rows, all_cosines, strict=True)):
        order = np.lexsort((r, -c))
        order = order[r[order] >= 0]
        _, first = np.unique(r[order], return_index=True)
        best = order[np.sort(first)[:N_NEAREST]]
        nearest[i, : len(best)], cosine[i, : len(best)] = r[best], c[best]
    return nearest, cosine
