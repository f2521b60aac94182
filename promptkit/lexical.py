"""The lexical view of a mix: how near a text is to it, and how many bits per token it costs.

In come token ids of the rows of a mix; out comes a `LexicalProfile` that gives two numbers for any other text:

    closeness      mean cosine to the 10 nearest rows, sparse TF-IDF over *all* ids of the tokenizer (0..1)
    cross_entropy  bits per token under an interpolated trigram model of the mix's ids

Both depend on nothing but the text and the mix: never on the file the text stands in. The TF-IDF is that of
scikit-learn (`sublinear_tf=True, smooth_idf=True, norm="l2"`): weight = (1 + ln tf) * (1 + ln((1 + n) / (1 + df))). An
id that the mix never used has df 0 and so the largest weight: it adds to the length of the text's vector and to no
product, which is how foreign words lower the cosine. The trigram model is Witten and Bell's (Witten and Bell 1991, "The
zero-frequency problem", method C, interpolated; Chen and Goodman 1999, section 2.6):

    P(w | u v) = (c(u v w) + T(u v) P(w | v)) / (c(u v) + T(u v)),    T = distinct ids seen after the context

down to a unigram that is mixed with the uniform distribution over the vocabulary. A start mark is a context, an end
mark is not predicted. Counts live in sorted unique keys, so a lookup is a binary search in a mapped file.

What is given up: of a mix with more than `MAX_TOKENS` tokens the tail of its longest rows is not read, so the
saved tables of 20,000 rows stay below 100 MB. Texts to be scored are always read whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.integer[Any]]

N_NEAREST = 10
MAX_TOKENS = 4_000_000
BATCH_ROWS = 256
BATCH_TOKENS = 1 << 20


# ---------------------------------------------------------------------------------------------------- TF-IDF


@dataclass(frozen=True)
class TfIdf:
    """What TF-IDF learned from a mix: which ids it used and in how many rows.

    terms : int64 (t,) ids seen, ascending;  df : int32 (t,) rows that hold each;  n_rows : rows of the fit.
    """

    terms: NDArray[np.int64]
    df: NDArray[np.int32]
    n_rows: int

    @classmethod
    def fit(cls, rows: Sequence[Ids]) -> TfIdf:
        """Count in how many of the rows each id occurs."""
        return cls._of_counts(_term_counts(rows)[1], len(rows))

    @classmethod
    def fit_transform(cls, rows: Sequence[Ids]) -> tuple[TfIdf, Any]:
        """Return what `fit` gives and what it makes of the rows (`transform`), ids counted once."""
        counts = _term_counts(rows)
        fitted = cls._of_counts(counts[1], len(rows))
        return fitted, fitted._weighted(counts, len(rows))

    @classmethod
    def _of_counts(cls, ids: NDArray[np.int64], n_rows: int) -> TfIdf:
        terms, df = np.unique(ids, return_counts=True)
        return cls(terms.astype(np.int64), df.astype(np.int32), n_rows)

    def columns(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the column of each id, and whether the mix used it (else column 0)."""
        inside = (ids >= 0) & (ids < len(self._column))
        column = self._column[np.where(inside, ids, 0)] if len(self._column) else np.full(len(ids), -1)
        known = inside & (column >= 0)
        return np.where(known, column, 0), known

    @cached_property
    def _column(self) -> NDArray[np.int64]:
        """The column of every id up to the largest that was seen, -1 for those between: one look-up, and no search."""
        column = np.full(int(self.terms[-1]) + 1 if len(self.terms) else 0, -1, dtype=np.int64)
        column[self.terms] = np.arange(len(self.terms))
        return column

    def transform(self, rows: Sequence[Ids]) -> Any:
        """Return unit rows as scipy CSR float32 (len(rows), t); ids unknown to the fit count in the length only.

        A text without ids is a row of zeros.
        """
        return self._weighted(_term_counts(rows), len(rows))

    def _weighted(self, counts: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], n: int) -> Any:
        from scipy import sparse

        owner, ids, tf = counts
        column, known = self.columns(ids)
        df = np.where(known, self.df[column] if len(self.df) else 0, 0)
        weight = (1.0 + np.log(tf)) * (1.0 + np.log((1.0 + self.n_rows) / (1.0 + df)))
        # bincount adds in the order of the ids, one row after the other: a row's bits do not depend on its neighbours.
        length = np.sqrt(np.bincount(owner, weight * weight, minlength=n))
        weight = (weight / length[owner])[known].astype(np.float32)
        starts = np.concatenate([[0], np.cumsum(np.bincount(owner[known], minlength=n))])
        shape = (n, len(self.terms))
        return sparse.csr_matrix((weight, column[known].astype(np.int32), starts.astype(np.int32)), shape=shape)


def _term_counts(rows: Sequence[Ids]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (row, id, how often) for each distinct id of each row, in the order of rows, then ids."""
    flat, starts = join(rows)
    for a, b in pairwise(starts.tolist()):
        flat[a:b].sort()
    first = np.ones(len(flat), dtype=bool)
    first[1:] = flat[1:] != flat[:-1]
    first[starts[:-1][np.diff(starts) > 0]] = True
    at = np.flatnonzero(first)
    owner = np.repeat(np.arange(len(rows)), np.diff(np.searchsorted(at, starts)))
    return owner, flat[at], np.diff(np.append(at, len(flat)))


# ------------------------------------------------------------------------------------------------- the profile


@dataclass(frozen=True)
class Neighbours:
    """The nearest rows of a fit, best first: positions in the fit (-1: no such row) and cosines, both (m, 10)."""

    position: NDArray[np.int64]
    cosine: NDArray[np.float64]

    @property
    def closeness(self) -> NDArray[np.float64]:
        """Mean cosine over the rows there are; 0 where there is none."""
        n = (self.position >= 0).sum(axis=1)
        total: NDArray[np.float64] = np.where(self.position >= 0, self.cosine, 0.0).sum(axis=1)
        mean: NDArray[np.float64] = np.round(total / np.maximum(n, 1), 6)
        return mean


class LexicalProfile:
    """The lexical profile of a mix: posting lists of unit TF-IDF rows, and the trigram counts.

    Made by `fit` or from the arrays of a saved one (they may be memory maps). `units[i]` is the near-duplicate group of
    fit row i; a text that belongs to a unit is scored without it.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._a = arrays
        self.n_rows, self.n_vocab, self.n_tokens = (int(v) for v in arrays["size"])
        self.tfidf = TfIdf(arrays["terms"], arrays["df"], self.n_rows)

    @classmethod
    def fit(cls, rows: Sequence[Ids], *, n_vocab: int, units: Ids | None = None) -> LexicalProfile:
        """Fit both parts on the token ids of the mix's rows. `n_vocab` is the size of the tokenizer's table."""
        units = np.arange(len(rows), dtype=np.int64) if units is None else np.asarray(units, dtype=np.int64)
        rows = cut(rows, MAX_TOKENS)
        tfidf, weights = TfIdf.fit_transform(rows)
        postings = weights.tocsc()
        del weights
        postings.sort_indices()
        arrays = {
            "terms": tfidf.terms,
            "df": tfidf.df,
            "units": units,
            "posting_starts": postings.indptr.astype(np.int32),
            "posting_rows": postings.indices.astype(np.int32),
            "posting_weights": postings.data,
        }
        flat, starts = join(rows)
        arrays |= _count(tfidf.columns(flat)[0], starts, len(tfidf.terms))
        arrays["size"] = np.array([len(rows), n_vocab, len(flat)], dtype=np.int64)
        return cls(arrays)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what a saved profile consists of, by name."""
        return dict(self._a)

    # ------------------------------------------------------------------------------------------- closeness

    def nearest(self, rows: Sequence[Ids], *, exclude: Ids | None = None, threads: int = 1) -> Neighbours:
        """Return the 10 nearest fit rows of each text, leaving out those of its own unit (`exclude`, -1: none).

        Cosines are rounded to 6 decimals; ties go to the earlier row.
        """
        from concurrent.futures import ThreadPoolExecutor

        from scipy import sparse

        a, m = self._a, len(rows)
        shape = (len(a["terms"]), self.n_rows)
        postings = sparse.csr_matrix((a["posting_weights"], a["posting_rows"], a["posting_starts"]), shape=shape)
        left_out = _excluded(exclude, m)
        units = np.asarray(a["units"])
        position = np.full((m, N_NEAREST), -1, dtype=np.int64)
        cosine = np.zeros((m, N_NEAREST))

        def one_batch(start: int) -> None:
            batch = self.tfidf.transform(rows[start : start + BATCH_ROWS])
            n = batch.shape[0]
            # Only the posting lists of the batch's own terms. A sum runs over the terms in one order, and those that a
            # text lacks add zeros: its bits do not depend on its neighbours.
            terms, column = np.unique(batch.indices, return_inverse=True)
            queries = np.zeros((len(terms), n), dtype=np.float32)
            queries[column, np.repeat(np.arange(n), np.diff(batch.indptr))] = batch.data
            similar = postings[terms].T.tocsr() @ queries
            for i in np.flatnonzero(left_out[start : start + n] >= 0).tolist():
                similar[units == left_out[start + i], i] = -1.0
            text, rank, best, cosines = _top(similar)
            position[start + text, rank], cosine[start + text, rank] = best, cosines

        if self.n_rows:
            with ThreadPoolExecutor(max(1, threads)) as pool:  # the sparse product releases the interpreter lock
                list(pool.map(one_batch, range(0, m, BATCH_ROWS)))
        return Neighbours(position, cosine)

    def closeness(self, rows: Sequence[Ids], *, exclude: Ids | None = None, threads: int = 1) -> NDArray[np.float64]:
        """Return the mean cosine of each text to its 10 nearest fit rows, own unit left out; 0 for empty texts."""
        return self.nearest(rows, exclude=exclude, threads=threads).closeness

    # ---------------------------------------------------------------------------------------- cross-entropy

    def cross_entropy(self, rows: Sequence[Ids], *, exclude: Ids | None = None) -> NDArray[np.float64]:
        """Return bits per token of each text under the trigram model, own unit's counts taken off.

        An empty text gets log2(n_vocab): nothing is known about it. Rounded to 6 decimals.
        """
        bits = np.empty(len(rows))
        left_out = _excluded(exclude, len(rows))
        unit = np.where(np.isin(left_out, self._a["units"]), left_out, -1)  # of the fit; a plain text has none
        plain = np.flatnonzero(unit < 0)
        sizes = np.array([len(rows[i]) for i in plain.tolist()], dtype=np.int64)
        for part in np.split(plain, _cuts(sizes, BATCH_TOKENS)):
            bits[part] = self._bits([rows[i] for i in part.tolist()], None)
        units = np.unique(unit[unit >= 0])
        for some in np.split(units, _cuts(self._unit_tokens(units), BATCH_TOKENS)):
            part = np.flatnonzero(np.isin(unit, some))
            own = self._own_counts(some, np.searchsorted(some, unit[part]))
            bits[part] = self._bits([rows[i] for i in part.tolist()], own)
        return np.round(bits, 6)

    def _bits(self, rows: Sequence[Ids], own: _Own | None) -> NDArray[np.float64]:
        """Return bits per token of each text, the counts of `own` taken off."""
        a, base = self._a, len(self._a["terms"]) + 2
        flat, starts = join(rows)
        column, known = self.tfidf.columns(flat)
        w = np.where(known, column + 1, base - 1)  # 0 is the start mark, base - 1 an id that the mix never used
        v, (pair, pair_known), (context, context_known) = _pairs(a["bi_keys"], w, starts, base)
        triple, triple_known = find(a["tri_keys"], context.astype(np.int64) * base + w)
        triple_known &= context_known

        c_w = np.where(known, a["uni_count"][w * known], 0).astype(np.float64)
        c_vw = _pick(a["bi_count"], pair, pair_known)
        c_uvw = _pick(a["tri_count"], triple, triple_known)
        seen_v = v < base - 1
        n_v = _pick(a["uni_after"], v, seen_v)
        t_v = _pick(a["uni_types"], v, seen_v)
        n_uv = _pick(a["bi_after"], context, context_known)
        t_uv = _pick(a["bi_types"], context, context_known)
        n: Any = float(self.n_tokens)
        t: Any = float(len(a["terms"]))
        sizes = np.diff(starts)
        owner = np.repeat(np.arange(len(rows)), sizes)
        if own is not None:
            whose = own.of_text[owner]
            c_w -= own.count("uni", w, whose)
            c_vw -= own.count("bi", np.where(pair_known, pair, -1), whose)
            c_uvw -= own.count("tri", np.where(triple_known, triple, -1), whose)
            n_v, t_v = n_v - own.count("uni_after", v, whose), t_v - own.count("uni_types", v, whose)
            at = np.where(context_known, context, -1)
            n_uv, t_uv = n_uv - own.count("bi_after", at, whose), t_uv - own.count("bi_types", at, whose)
            n, t = n - own.n[whose], t - own.t[whose]
        t = np.maximum(t, 1.0)  # an empty mix knows nothing: uniform
        p = (c_w + t / self.n_vocab) / (n + t)
        p = _mix(c_vw, n_v, t_v, p)
        p = _mix(c_uvw, n_uv, t_uv, p)
        total = np.bincount(owner, -np.log2(p), minlength=len(rows))
        return np.where(sizes > 0, total / np.maximum(sizes, 1), np.log2(self.n_vocab))

    def _unit_tokens(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens of the fit each of some units, ascending, has."""
        at, known = find(units, np.asarray(self._a["units"]))
        return np.bincount(at[known], np.diff(self._a["id_starts"])[known], minlength=len(units)).astype(np.int64)

    def _own_counts(self, units: NDArray[np.int64], of_text: NDArray[np.int64]) -> _Own:
        """Return what the fit rows of each of some units, ascending, added to the counts."""
        a, base = self._a, len(self._a["terms"]) + 2
        starts = a["id_starts"]
        unit_of_row, known = find(units, np.asarray(a["units"]))
        rows = np.flatnonzero(known)
        flat, own_starts = join([np.asarray(a["ids"][starts[r] : starts[r + 1]]) for r in rows])
        whose = np.repeat(unit_of_row[rows], np.diff(own_starts))
        w = flat + 1
        v, (pair, _), (context, has) = _pairs(a["bi_keys"], w, own_starts, base)
        triple = find(a["tri_keys"], context.astype(np.int64) * base + w)[0][has]
        counted = {
            "uni": (w, whose), "bi": (pair, whose), "tri": (triple, whose[has]), "uni_after": (v, whose),
            "bi_after": (context[has], whose[has]),
        }  # fmt: skip
        tables = {name: _counts(of, values) for name, (values, of) in counted.items()}
        # A context loses a type where the unit holds all occurrences of the n-gram.
        (pairs, of_pair), (triples, of_triple), (_, of_word) = (
            _all_of(tables[name], a[f"{name}_count"]) for name in ("bi", "tri", "uni")
        )
        tables["uni_types"] = _counts(of_pair, a["bi_keys"][pairs] // base)
        tables["bi_types"] = _counts(of_triple, a["tri_keys"][triples] // base)
        n, t = (np.bincount(x, minlength=len(units)).astype(np.float64) for x in (whose, of_word))
        return _Own(of_text, tables, n, t)


@dataclass(frozen=True)
class _Own:
    """The share of some units in the counts.

    of_text : (m,) which of the units each text is left without;  tables : name -> (keys, counts), keys of unit and
    index (`_keys`), ascending;  n, t : (units,) tokens and types.
    """

    of_text: NDArray[np.int64]
    tables: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]
    n: NDArray[np.float64]
    t: NDArray[np.float64]

    def count(self, name: str, index: NDArray[Any], unit: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what the unit of each index, -1 for none, added to its count."""
        keys, counts = self.tables[name]
        at, known = find(keys, _keys(unit, index))
        return _pick(counts, at, known & (index >= 0))


def _keys(unit: NDArray[np.int64], index: NDArray[Any]) -> NDArray[np.int64]:
    return np.asarray((unit << 40) + index)  # an index is below the 2**31 entries of a table, or an id


def _counts(unit: NDArray[np.int64], index: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.unique(_keys(unit, index), return_counts=True)


def _excluded(exclude: Ids | None, m: int) -> NDArray[np.int64]:
    return np.full(m, -1, dtype=np.int64) if exclude is None else np.asarray(exclude, dtype=np.int64)


def _all_of(
    table: tuple[NDArray[np.int64], NDArray[np.int64]], total: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return index and unit of those entries that are of one unit alone."""
    keys, count = table
    unit, index = keys >> 40, keys & ((1 << 40) - 1)
    whole = total[index] == count
    return index[whole], unit[whole]


def _mix(
    count: NDArray[np.float64], after: NDArray[np.float64], types: NDArray[np.float64], lower: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Interpolate one order with the one below; a context never followed by anything leaves the lower order."""
    total = after + types
    return np.where(total > 0, (count + types * lower) / np.where(total > 0, total, 1.0), lower)


def _count(column: NDArray[np.int64], starts: NDArray[np.int64], n_terms: int) -> dict[str, NDArray[Any]]:
    """Return the n-gram tables of rows given as columns of the TF-IDF.

    Symbol 0 is the start mark, s = column + 1 an id. bi_keys = v * base + w; tri_keys = (position of (u, v) in
    bi_keys) * base + w, both ascending. `*_after` is how often a context was followed by anything, `*_types` by how
    many different ids.
    """
    base = n_terms + 2
    w = column + 1
    bi_keys, bi_count = np.unique(_behind(w, starts) * base + w, return_counts=True)
    _, _, (context, has_context) = _pairs(bi_keys, w, starts, base)
    tri_keys, tri_count = np.unique((context.astype(np.int64) * base + w)[has_context], return_counts=True)
    before_bi, before_tri = bi_keys // base, tri_keys // base
    return {
        "ids": column.astype(np.int32),
        "id_starts": starts,
        "uni_count": np.bincount(w, minlength=n_terms + 1).astype(np.int32),
        "uni_after": np.bincount(before_bi, bi_count, minlength=n_terms + 1).astype(np.int32),
        "uni_types": np.bincount(before_bi, minlength=n_terms + 1).astype(np.int32),
        "bi_keys": bi_keys,
        "bi_count": bi_count.astype(np.int32),
        "bi_after": np.bincount(before_tri, tri_count, minlength=len(bi_keys)).astype(np.int32),
        "bi_types": np.bincount(before_tri, minlength=len(bi_keys)).astype(np.int32),
        "tri_keys": tri_keys,
        "tri_count": tri_count.astype(np.int32),
    }


Found = tuple["NDArray[np.int64]", "NDArray[np.bool_]"]  # as `find` has it


def _pairs(
    bi_keys: NDArray[Any], w: NDArray[np.int64], starts: NDArray[np.int64], base: int
) -> tuple[NDArray[np.int64], Found, Found]:
    """Return the symbol v before each w, the place of (v, w) in bi_keys, and that of (u, v), the pair before it.

    A first id has no pair before it: two start marks are none.
    """
    v = _behind(w, starts)
    place, known = find(bi_keys, v * base + w)
    return v, (place, known), (_behind(place, starts), _behind(known, starts))


def _behind(values: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """Return the value before each; 0, the start mark, where a text begins."""
    out = np.zeros_like(values)
    out[1:] = values[:-1]
    out[starts[:-1][np.diff(starts) > 0]] = 0
    return out


# ------------------------------------------------------------------------------------------------- small parts


def join(rows: Sequence[Ids]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all ids in one array, and where each row starts (one more than there are rows)."""
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(r) for r in rows], out=starts[1:])
    flat = np.concatenate([np.asarray(r, dtype=np.int64) for r in rows]) if rows else np.zeros(0, dtype=np.int64)
    return flat, starts


def cut(rows: Sequence[Ids], max_tokens: int) -> list[Ids]:
    """Return the rows, the longest of them cut to one common length so that all together fit `max_tokens`."""
    sizes = np.sort(np.array([len(r) for r in rows], dtype=np.int64))
    if sizes.sum() <= max_tokens:
        return list(rows)
    below = np.concatenate([[0], np.cumsum(sizes)[:-1]])  # tokens of all shorter rows
    room = (max_tokens - below) // np.arange(len(sizes), 0, -1)  # what each of the rest may keep
    limit = int(room[np.flatnonzero(room < sizes)[0]])
    return [r[: max(limit, 1)] for r in rows]


def find(keys: NDArray[Any], wanted: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the position of each wanted value in the ascending keys, and whether it is there (else position 0)."""
    if not len(keys):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
    at = np.searchsorted(keys, wanted)
    at[at == len(keys)] = 0
    known = keys[at] == wanted
    return np.where(known, at, 0), known


def _pick(values: NDArray[Any], at: NDArray[np.int64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    if not len(values):
        return np.zeros(len(at))
    return np.where(known, values[np.where(known, at, 0)], 0).astype(np.float64)


def _top(
    similar: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return column, rank, row and value of each column's largest values (at most 10, excluded ones left out).

    Ties go to the earlier row. Values are rounded to 6 decimals, and so compared: rounding moves one by half of 1e-6 at
    most. The tenth largest of the maxima of blocks of rows is no more than the tenth largest value, and found sooner.
    """
    n, m = similar.shape
    k = min(N_NEAREST, n)
    size = 128 if n >= 128 * k else 1
    peaks = similar[: n // size * size].reshape(-1, size, m).max(axis=1)
    least = np.maximum(np.partition(peaks, len(peaks) - k, axis=0)[len(peaks) - k] - np.float32(2e-6), 0.0)
    row, column = np.divmod(np.flatnonzero(similar >= least), m)  # sooner than np.nonzero
    values = np.round(similar[row, column].astype(np.float64), 6)
    order = np.lexsort((row, -values, column))
    column, row, values = column[order], row[order], values[order]
    rank = np.arange(len(column)) - np.searchsorted(column, column)
    first = rank < k
    return column[first], rank[first], row[first], values[first]


def _cuts(sizes: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Return where to split a list so that each part holds about `limit` tokens."""
    if not len(sizes):
        return np.zeros(0, dtype=np.int64)
    part = np.cumsum(sizes) // limit
    return np.flatnonzero(np.diff(part)) + 1
