"""Which texts are nearly the same, and which candidates the training mix already holds.

In: texts (openings). Out: a group id per text, or for each candidate the kind and share of its leak. One definition
holds everywhere in promptkit: two texts are near-duplicates when the Jaccard similarity of their word 5-grams is at
least 0.8; a text of fewer than five words has no 5-gram and equals only its own normalised copy.

    "Write a  function that ADDS two numbers!" -> write a function that adds two numbers -> {3 word 5-grams}

Words are hashed straight from UTF-8 bytes with NumPy (about 5 M words a second on one core), grams are hashes of
hashes, and pairs are found by the prefix filter (Chaudhuri, Ganti, Kaushik 2006; Xiao et al. 2008, "PPJoin"): order
the grams of every text from rare to common; two texts with Jaccard >= t share one of the first n - ceil(t n) + 1.
Unlike MinHash bands it misses nothing, needs no seed, and rare-first order keeps the boilerplate of templated agent
prompts from making every pair a candidate. Each pair is then verified exactly. Given up: collisions of 64-bit hashes
(one in 10^7 for a million distinct grams).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

JACCARD = 0.8
GRAM = 5
CONTAINED = (8, 13)  # word n-grams whose share is measured
MIN_SHARE = 0.25  # of 8-grams; a copy with a tenth of its words changed keeps 0.9^8 = 0.43
# Of 5-grams in one and the same training text: such a copy keeps 0.9^5 = 0.59. Few 8-grams make the share above a
# gamble for short prompts; one text must hold all of these, so that common phrases of many texts do not add up.
MIN_SHARE_OF_ONE = 0.3
MIN_GRAMS = 4  # prompts of fewer than eight words share so many by chance
BOILERPLATE = 10  # a gram in more distinct training texts is a template's, as in GPT-3's decontamination

# Scripts without spaces (kana, ideographs): a character is a word, else a whole sentence would be one.
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W{_UNSPACED}]+")

_BATCH_BYTES = 1 << 20
_BATCH_TEXTS = 1000
_BATCH_HITS = 1 << 16
_WORD_BYTES = 128  # of a longer run without a space only these bytes and its length are hashed
_P = np.uint64(0x9E3779B97F4A7C15)
_LOW = np.uint64(0xFFFFFFFF)
_NO_GRAMS: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)


def normalise(text: str) -> str:
    """Return `text` as exact duplicates are compared: NFKC, case folded, runs of white space made one space."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def near_duplicate_groups(texts: Sequence[str], sets: Sequence[NDArray[np.uint64]] | None = None) -> NDArray[np.int64]:
    """Return a group id for each text, shape (n,), numbered from 0 in order of first appearance.

    Texts share a group when a chain of near-duplicates (Jaccard >= 0.8 on word 5-grams) joins them; texts of fewer
    than five words when their normalised forms are equal. Deterministic, and independent of the order of the texts.
    `sets` are their word 5-grams (`gram_sets`), where they are at hand.

    >>> near_duplicate_groups(["Hello  world", "hello world", "goodbye"]).tolist()
    [0, 0, 1]
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n = len(texts)
    sets = list(_gram_sets(texts, GRAM)) if sets is None else sets
    # Copies first: they are the bulk of the pairs and need no join.
    seen: dict[bytes | str, int] = {}
    labels = np.array(
        [seen.setdefault(s.tobytes() if len(s) else normalise(t), len(seen)) for t, s in zip(texts, sets, strict=True)],
        dtype=np.int64,
    )
    _, first = np.unique(labels, return_index=True)
    root = np.arange(len(first))
    for a, b, _ in _similar_pairs([sets[i] for i in first], root):
        edges = coo_matrix((np.ones(len(a), np.int8), (root[a], root[b])), shape=(len(root), len(root)))
        root[:] = connected_components(edges, directed=False)[1][root]

    groups: dict[int, int] = {}
    return np.array([groups.setdefault(g, len(groups)) for g in root[labels].tolist()], dtype=np.int64).reshape(n)


def leaks(
    candidates: Sequence[str] | CandidateIndex, training: Iterable[str] | Words, *, min_share: float = MIN_SHARE
) -> list[dict[str, Any] | None]:
    """Return, for each candidate, what the training texts hold of it: None, or {kind, share, row, ngram_8, ngram_13}.

    kind "exact": equal after `normalise` (share 1); "near": Jaccard of word 5-grams >= 0.8 (share is the Jaccard);
    "ngram": at least `min_share` of its word 8-grams are anywhere in training, or 0.3 of its 5-grams in one training
    text (share is the larger part; `ngram_8` and `ngram_13` are those of 8- and 13-grams). `row` is the number of the
    training text that holds it, the first or the likest. How much each finds, and how often it is wrong:
    docs/leakage.md.

    A gram in more than ten *distinct* training texts is boilerplate (a system prompt, a tool schema) and counts
    neither for nor against. Distinct is counted by the smallest 5-gram hash of each text, so that twenty rollouts of
    one task are one or two texts and not a template. `training` is read once, in order; memory is flat in it. Hashed
    before (`Words`), only the texts of it that share a word 5-gram with a candidate are looked at. `candidates` may be
    an index of them that has read nothing yet.
    Translations and paraphrases are not found.
    """
    index = candidates if isinstance(candidates, CandidateIndex) else CandidateIndex(candidates)
    index.read(training)
    near = index.near()
    parts = {f"ngram_{n}": index.shares(n) for n in CONTAINED}
    (main, ones), (main_8, _) = index.main_rows(GRAM), index.main_rows(CONTAINED[0])
    out: list[dict[str, Any] | None] = []
    for c in range(len(index.normalised)):
        shares = {name: round(part[c], 6) for name, part in parts.items()}
        part, one = shares[f"ngram_{CONTAINED[0]}"], ones[c]
        if c in index.equal:
            kind, share, row = "exact", 1.0, index.equal[c]
        elif c in near:
            kind, (share, row) = "near", near[c]
        elif one >= max(min_share, MIN_SHARE_OF_ONE) or (part > 0 and part >= min_share):
            kind, share = "ngram", max(part, one if one >= MIN_SHARE_OF_ONE else 0.0)
            row = int((main if one >= MIN_SHARE_OF_ONE else main_8)[c])
        else:
            out.append(None)
            continue
        out.append({"kind": kind, "share": round(share, 6), "row": row, **shares})
    return out


class Words:
    """Texts as `leaks` reads them: the hashes of all their words, which take most of its time when made from text.

    words : uint64 (w,);  starts : int64 (n + 1,) where each text begins;  low : uint32 (w,) the low halves of the
    hashes of the 5-grams that begin at the words, ascending, by which all but a few are passed over;  places : uint32
    (w,) at which word each of them begins;  text : what a text is in full;  smallest : uint64 (n,) of each text's
    5-gram hashes, where that is known already.
    """

    PARTS = ("words", "starts", "low", "places")

    def __init__(
        self,
        words: NDArray[np.uint64],
        starts: NDArray[np.int64],
        low: NDArray[np.uint32],
        places: NDArray[np.uint32],
        *,
        text: Callable[[int], str],
        smallest: NDArray[np.uint64] | None = None,
    ) -> None:
        self.words, self.starts, self.low, self.places, self.text = words, starts, low, places, text
        self.smallest = _smallest(starts, *_every_gram(words, starts)) if smallest is None else smallest

    def grams(self, rows: Iterable[int]) -> list[NDArray[np.uint64]]:
        """Return the sorted distinct hashes of the word 5-grams of some of the texts."""
        return _grams([self.words[self.starts[row] : self.starts[row + 1]] for row in rows], GRAM)

    def near(self, grams: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return where some 5-grams may begin, ascending; some of them stand across the end of their text."""
        own = np.unique((grams & _LOW).astype(np.uint32))
        first = np.searchsorted(self.low, own)
        there = self.low[np.minimum(first, len(self.low) - 1)] == own if len(self.low) else np.zeros(len(own), bool)
        own, first = own[there], first[there]
        n = np.searchsorted(self.low, own, side="right") - first
        return np.sort(self.places[stretches(first, n)]).astype(np.int64)


def hashed(texts: Sequence[str]) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of `Words` by name."""
    each = list(_word_hashes(texts))
    words = np.concatenate([_NO_GRAMS, *each])
    keys = np.arange(len(words), dtype=np.uint64)  # the place in the lower half, the hash above it
    for at in range(0, len(words), 1 << 17):  # blocks, and four words more: the last grams need them
        grams = _scramble(_raw(words[at : at + (1 << 17) + GRAM - 1], None, GRAM))[: 1 << 17]
        keys[at : at + len(grams)] |= grams << np.uint64(32)
    keys.sort()
    low, places = (keys >> np.uint64(32)).astype(np.uint32), (keys & _LOW).astype(np.uint32)
    return {"words": words, "starts": _starts(each), "low": low, "places": places}


def gram_sets(hashes: Mapping[str, NDArray[Any]]) -> list[NDArray[np.uint64]]:
    """Return the sorted distinct hashes of each text's word 5-grams, from `hashed(texts)`."""
    bounds = pairwise(hashes["starts"].tolist())
    return list(_sets((hashes["words"][a:b] for a, b in bounds), GRAM))


def _is_in(ascending: NDArray[Any], values: NDArray[Any]) -> NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(len(values), dtype=bool)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.asarray(ascending[at] == values)


def boilerplate(texts: Sequence[str], mix: Iterable[str]) -> NDArray[np.uint64]:
    """Return those word 5-grams of `texts` that more than ten distinct texts of the mix hold: a template's."""
    index = CandidateIndex(texts)
    index.read(mix)
    table = index.tables[GRAM]
    return table.grams[table.common()]


class Twins:
    """Texts, and which others are copies or near-duplicates of one of them; `leaks`' kinds "exact" and "near".

    What is boilerplate is given, not counted on the way, so that any batch of texts has the same answer in any order.
    """

    def __init__(self, texts: Sequence[str], boilerplate: NDArray[np.uint64]) -> None:
        self.equal = {normalise(t) for t in texts}
        self.boilerplate = boilerplate
        distinct = {s.tobytes(): s for s in _gram_sets(texts, GRAM) if len(s)}
        self.sets = list(distinct.values())
        own = [self._own(s) for s in self.sets]
        self.n_own = np.array([len(s) for s in own], dtype=np.int64)
        self.bare = np.flatnonzero(self.n_own == 0)
        # Postings: who holds a gram that is no boilerplate.
        owner = np.repeat(np.arange(len(own)), self.n_own)
        grams = np.concatenate([_NO_GRAMS, *own])
        order = np.argsort(grams, kind="stable")
        self.grams, self.owner = grams[order], owner[order]
        self.table = _Table(np.unique(np.concatenate([_NO_GRAMS, *self.sets])))

    def among(self, texts: Sequence[str]) -> list[int]:
        """Return the positions of the given texts that nearly equal one of ours, ascending."""
        return [
            i
            for i, (text, grams) in enumerate(zip(texts, _gram_sets(texts, GRAM), strict=True))
            if normalise(text) in self.equal or (len(grams) and self._near(grams))
        ]

    def _near(self, grams: NDArray[np.uint64]) -> bool:
        if len(self.table.find(grams)[0]) < JACCARD * len(grams) - 1e-9:  # most texts end here
            return False
        own = self._own(grams)
        if len(own):
            left, right = np.searchsorted(self.grams, own, side="left"), np.searchsorted(self.grams, own, side="right")
            met = np.concatenate([self.owner[a:b] for a, b in zip(left, right, strict=True)])
            common = np.bincount(met, minlength=len(self.sets))
            likely = np.flatnonzero(common >= JACCARD * (len(own) + self.n_own - common) - 1e-9)
            likely = likely[self.n_own[likely] > 0]
        else:
            likely = self.bare
        return any(jaccard(grams, self.sets[i]) >= JACCARD - 1e-9 for i in likely.tolist())

    def _own(self, grams: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return np.setdiff1d(grams, self.boilerplate, assume_unique=True)


def jaccard(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> float:
    """Return the Jaccard similarity of two sets of grams, each ascending; one of them at least is not empty."""
    common = int(_is_in(a, b).sum())
    return common / (len(a) + len(b) - common)


def jaccards(grams: NDArray[np.uint64], others: Sequence[NDArray[np.uint64]]) -> NDArray[np.float64]:
    """Return `jaccard` of a set of grams with each of some others, none of them empty."""
    sizes = np.array([len(o) for o in others])
    common = np.add.reduceat(_is_in(grams, np.concatenate(others)), np.cumsum(sizes) - sizes, dtype=np.int64)
    return np.asarray(common / (len(grams) + sizes - common))


class CandidateIndex:
    """The grams of the candidates, and what one pass over the training texts says about each gram.

    Training is the long side, so it is streamed against the candidates: a text that shares no gram costs one look-up
    per gram in a small table, and only texts of which four fifths are candidates' grams are kept for `near`.
    """

    def __init__(self, candidates: Sequence[str]) -> None:
        words = list(_word_hashes(candidates))
        self.sets = {n: _grams(words, n) for n in (GRAM, *CONTAINED)}
        self.tables: dict[int, _Table] = {}
        self.at: dict[int, NDArray[np.int64]] = {}  # where the grams of all sets, one after the other, are in the table
        self.owner: dict[int, NDArray[np.int64]] = {}  # and whose each of them is
        for n, sets in self.sets.items():
            distinct, self.at[n] = np.unique(np.concatenate([_NO_GRAMS, *sets]), return_inverse=True)
            self.tables[n] = _Table(distinct)
            self.owner[n] = np.repeat(np.arange(len(sets)), [len(s) for s in sets])
        self.normalised = [normalise(t) for t in candidates]
        self.by_words: dict[bytes, list[int]] = {}
        for c, w in enumerate(words):
            self.by_words.setdefault(w.tobytes(), []).append(c)
        self.smallest = np.unique(np.array([s[0] if len(s) else 0 for s in self.sets[GRAM]], dtype=np.uint64))
        self.least = max(1.0, JACCARD * min((len(s) for s in self.sets[GRAM] if len(s)), default=0))
        self.equal: dict[int, int] = {}
        self.kept: list[NDArray[np.uint64]] = []  # each set of grams once, with the first row that has it
        self.kept_sets: set[bytes] = set()
        self.kept_row: list[int] = []

    def read(self, training: Iterable[str] | Words) -> None:
        if isinstance(training, Words):
            words, starts = training.words, training.starts
            self._read_copies(words, starts, training.smallest, 0, training.text)
            at = training.near(self.tables[GRAM].grams)
            # In parts that stay in the cache, each of whole texts.
            cuts = np.searchsorted(starts, at[::_BATCH_HITS], side="right") - 1
            cuts = np.unique(np.append(cuts, len(starts) - 1)).tolist()
            for first, behind in pairwise(cuts):
                own = starts[first : behind + 1]
                low, high = np.searchsorted(at, own[[0, -1]])
                part = at[low:high]
                part = part[part + GRAM <= own[_owners(own, part) + 1]]
                grams = _scramble(_raw(words, part, GRAM))
                self._read_hits(words, own, part, grams, training.smallest[first:behind], first)
            return
        texts: list[str] = []
        row = 0

        def batch() -> None:
            each = list(_word_hashes(texts))
            words, starts = np.concatenate([_NO_GRAMS, *each]), _starts(each)
            at, grams = _every_gram(words, starts)
            smallest = _smallest(starts, at, grams)
            self._read_copies(words, starts, smallest, row, lambda i: texts[i - row])
            self._read_hits(words, starts, at, grams, smallest, row)

        for text in training:
            texts.append(text)
            if len(texts) == _BATCH_TEXTS:
                batch()
                row += len(texts)
                texts = []
        if texts:
            batch()

    def _read_copies(
        self, words: NDArray[np.uint64], starts: NDArray[np.int64], smallest: NDArray[np.uint64], row: int,
        text: Callable[[int], str],
    ) -> None:  # fmt: skip
        """Note which candidates equal one of some training texts, given by their words; `row` is that of the first."""
        for i in np.flatnonzero(_is_in(self.smallest, smallest)).tolist():
            for c in self.by_words.get(words[starts[i] : starts[i + 1]].tobytes(), ()):
                if c not in self.equal and normalise(text(row + i)) == self.normalised[c]:  # as are the words
                    self.equal[c] = row + i

    def _read_hits(
        self, words: NDArray[np.uint64], starts: NDArray[np.int64], at: NDArray[np.int64], grams: NDArray[np.uint64],
        smallest: NDArray[np.uint64], row: int,
    ) -> None:  # fmt: skip
        """Note what some training texts hold. Of all their 5-grams those that begin `at` may be candidates'."""
        for n in (GRAM, *CONTAINED):
            # An 8-gram of a candidate begins with a 5-gram of it, a 13-gram with an 8-gram: only hits go on.
            if n > GRAM:
                at = at[at + n <= starts[_owners(starts, at) + 1]]
                grams = _scramble(_raw(words, at, n))
            hit, place = self.tables[n].find(grams)
            at = at[hit]
            owner = _owners(starts, at)
            sketch = np.uint64(1) << (smallest[owner] & np.uint64(63))  # one bit per text, by its smallest 5-gram hash
            self.tables[n].note(place, sketch, row + owner)
            if n == GRAM:
                self._keep(words, starts, owner, place, row)

    def _keep(
        self, words: NDArray[np.uint64], starts: NDArray[np.int64], owner: NDArray[np.int64], at: NDArray[np.int64],
        row: int,
    ) -> None:  # fmt: skip
        """Keep the texts whose 5-grams are, four fifths of them, candidates' grams: no other can be near one."""
        enough = np.bincount(owner, minlength=len(starts) - 1) >= self.least  # a gram may count twice: none is lost
        own, at = owner[enough[owner]], at[enough[owner]]
        pairs = np.unique(own * len(self.tables[GRAM].grams) + at)
        found = np.bincount(pairs // max(1, len(self.tables[GRAM].grams)), minlength=len(starts) - 1)
        likely = np.flatnonzero(found >= self.least)
        each = _grams([words[starts[i] : starts[i + 1]] for i in likely.tolist()], GRAM)  # a text may repeat itself
        for i, grams in zip(likely.tolist(), each, strict=True):
            if found[i] >= JACCARD * len(grams) - 1e-9 and (key := grams.tobytes()) not in self.kept_sets:
                self.kept_sets.add(key)
                self.kept.append(grams)
                self.kept_row.append(row + i)

    def near(self) -> dict[int, tuple[float, int]]:
        """Return candidate -> (Jaccard, training row) of its likest near-duplicate, boilerplate aside.

        Both the whole texts and what is left of them without boilerplate must be alike: two tasks under one long
        system prompt are no leak of each other. Where nothing is left of either, the whole texts decide.
        """
        if not self.kept:
            return {}
        table = self.tables[GRAM]
        boilerplate = table.grams[table.common()]
        whole = [*self.sets[GRAM], *self.kept]
        kept = ~_is_in(boilerplate, np.concatenate(whole))
        own = [s[k] for s, k in zip(whole, _split(kept, [len(s) for s in whole]), strict=True)]
        bare = [s if not len(o) else _NO_GRAMS for s, o in zip(whole, own, strict=True)]
        side = (np.arange(len(whole)) >= len(self.sets[GRAM])).astype(np.int64)
        best: dict[int, tuple[float, int]] = {}
        for sets in (own, bare):
            if not all(any(map(len, some)) for some in (sets[: len(self.normalised)], sets[len(self.normalised) :])):
                continue
            for candidates, others, _ in _similar_pairs(sets, side):
                for c, other in zip(candidates.tolist(), others.tolist(), strict=True):
                    overlap = jaccard(whole[c], whole[other])
                    row = self.kept_row[other - len(self.sets[GRAM])]
                    before, its_row = best.get(c, (0.0, 0))
                    if overlap >= JACCARD - 1e-9 and (-overlap, row) < (-before, its_row):
                        best[c] = overlap, row
        return best

    def shares(self, n: int) -> list[float]:
        """Return the part of each candidate's n-grams, boilerplate aside, that training holds."""
        table, at, owner = self._own(n)
        size = np.bincount(owner, minlength=len(self.normalised))
        found = np.bincount(owner[table.seen[at] != 0], minlength=len(self.normalised))
        return [float(x) for x in found / np.maximum(size, 1)]

    def main_rows(self, n: int) -> tuple[NDArray[np.int64], list[float]]:
        """Return, for each candidate, the training row that is first to hold most of its found n-grams, -1 for none,
        and the part of all its n-grams, boilerplate aside, that are these; 0 where it has too few.
        """
        table, at, owner = self._own(n)
        size = np.bincount(owner, minlength=len(self.normalised))
        seen = table.seen[at] != 0
        pairs, counts = np.unique((owner[seen] << 32) + table.first[at[seen]], return_counts=True)
        owner, row = pairs >> 32, pairs & 0xFFFFFFFF
        rows, most = np.full(len(size), -1), np.zeros(len(size), dtype=np.int64)
        order = np.lexsort((-row, counts))  # the last that is written is the first of those with most
        rows[owner[order]], most[owner[order]] = row[order], counts[order]
        return rows, [float(x) for x in np.where(size >= MIN_GRAMS, most / np.maximum(size, 1), 0.0)]

    def _own(self, n: int) -> tuple[_Table, NDArray[np.int64], NDArray[np.int64]]:
        """Return the table of n-grams, where in it all candidates' are, boilerplate aside, and whose each is."""
        own = ~self.tables[n].common()[self.at[n]]
        return self.tables[n], self.at[n][own], self.owner[n][own]


class _Table:
    """Sorted grams, and for each: a bit per distinct training text that holds it, and the first row that does."""

    def __init__(self, grams: NDArray[np.uint64]) -> None:
        self.grams = grams
        self.seen = np.zeros(len(grams), dtype=np.uint64)
        self.first = np.full(len(grams), -1, dtype=np.int64)
        self._common: NDArray[np.bool_] | None = None
        self._mask = np.uint64((1 << max(16, len(grams).bit_length() + 4)) - 1)
        self._maybe = np.zeros(int(self._mask) + 1, dtype=bool)
        self._maybe[grams & self._mask] = True

    def find(self, grams: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of the given grams that are in the table, and where in the table they are."""
        where = np.flatnonzero(self._maybe[grams & self._mask])  # a no is certain
        if not len(where):
            return where, where
        at = np.minimum(np.searchsorted(self.grams, grams[where]), len(self.grams) - 1)
        hit = self.grams[at] == grams[where]
        return where[hit], at[hit]

    def note(self, at: NDArray[np.int64], bits: NDArray[np.uint64], rows: NDArray[np.int64]) -> None:
        np.bitwise_or.at(self.seen, at, bits)
        new = self.first[at] < 0
        self.first[at[new][::-1]] = rows[new][::-1]  # the last assignment wins: the first row

    def common(self) -> NDArray[np.bool_]:
        """Mark boilerplate. 64 bits hold ten texts nearly without collision, and more than ten is all that is asked."""
        if self._common is None:
            self._common = np.asarray(_n_bits(self.seen) > BOILERPLATE)
        return self._common


def _raw(words: NDArray[np.uint64], at: NDArray[np.int64] | None, n: int) -> NDArray[np.uint64]:
    """Return the unscrambled n-grams that begin at some words (None: at all); as in `_grams`, those over the end wrong.

    Horner's rule; behind the end come zeros.
    """
    if at is None:
        words, at = np.concatenate([words, np.zeros(n, np.uint64)]), np.arange(len(words))
        mixed: NDArray[np.uint64] = words[: len(at)].copy()
        for k in range(1, n):
            mixed *= _P
            mixed += words[k : len(at) + k]
        return mixed
    if 4 * len(at) > (at[-1] - at[0] if len(at) else 0):  # they ascend, and lie close: all are made sooner
        first, behind = (int(at[0]), int(at[-1]) + n) if len(at) else (0, 0)
        return _raw(words[first:behind], None, n)[at - first]
    mixed = words[at]
    for k in range(1, n):
        mixed *= _P
        mixed += words[at + k]
    return mixed


def _split(array: NDArray[Any], sizes: Sequence[int] | NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return the parts of an array, as views. `np.split` does the same in ten times as long."""
    ends = np.cumsum(sizes).tolist()
    return [array[end - size : end] for end, size in zip(ends, map(int, sizes), strict=True)]


def stretches(first: NDArray[np.int64], n: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers from each of `first` on, `n` of each, one after the other."""
    return np.asarray(np.repeat(first - np.cumsum(n) + n, n) + np.arange(n.sum()))


def _starts(each: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Return where each of some arrays begins, one after the other, and where the last one ends."""
    starts = np.zeros(len(each) + 1, dtype=np.int64)
    np.cumsum([len(x) for x in each], out=starts[1:])
    return starts


def _owners(starts: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return of which text each of some words is, where texts begin at `starts`; the words ascend."""
    return np.repeat(np.arange(len(starts) - 1), np.diff(np.searchsorted(at, starts)))


def _every_gram(words: NDArray[np.uint64], starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return where the 5-grams of texts begin, and their hashes."""
    end = np.repeat(starts[1:], np.diff(starts))
    at = np.flatnonzero(np.arange(GRAM, len(words) + GRAM) <= end)
    return at, _scramble(_raw(words, None, GRAM))[at]


def _smallest(starts: NDArray[np.int64], at: NDArray[np.int64], grams: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the smallest of each text's 5-gram hashes; 0 where it has none."""
    smallest = np.zeros(len(starts) - 1, dtype=np.uint64)
    begin = np.searchsorted(at, starts)
    some = np.flatnonzero(np.diff(begin))
    if len(some):
        smallest[some] = np.minimum.reduceat(grams, begin[some])
    return smallest


def _similar_pairs(
    sets: Sequence[NDArray[np.uint64]], label: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
    """Yield batches (a, b, jaccard), a < b, of all pairs of sets with Jaccard >= 0.8 whose labels differ.

    A pair may come more than once. A caller that unites groups writes their common label into `label` as it goes and
    so never pays for the pairs inside a group.
    """
    from scipy.sparse import csr_matrix

    n_grams = np.array([len(s) for s in sets], dtype=np.int64)
    if not n_grams.sum():
        return
    grams = np.concatenate(sets)
    owner = np.repeat(np.arange(len(sets)), n_grams)

    # Only grams that two texts share can match; the others count in the sizes and fill the rare end of the order.
    ordered = np.sort(grams)
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    frequency = np.diff(np.r_[starts, len(ordered)])
    shared, frequency = ordered[starts][frequency > 1], frequency[frequency > 1]
    del ordered, starts
    if not len(shared):
        return
    at = np.minimum(np.searchsorted(shared, grams), len(shared) - 1)
    keep = shared[at] == grams
    at, owner = at[keep], owner[keep]
    del grams, keep

    rank = np.empty(len(shared), dtype=np.int64)  # rare first, ties by hash
    rank[np.argsort(frequency, kind="stable")] = np.arange(len(shared))
    rarity = rank[at]
    order = np.lexsort((rarity, owner))
    rarity, owner = rarity[order], owner[order]
    n_shared = np.bincount(owner, minlength=len(sets))
    bounds = np.r_[0, np.cumsum(n_shared)]
    n_own = n_grams - n_shared  # grams that no other text has
    parity = _parity(shared[at[order]], owner, len(sets))
    del at
    matrix = csr_matrix((np.ones(len(rarity), np.float32), rarity, bounds), shape=(len(sets), len(shared)))

    position = np.arange(len(rarity)) - bounds[owner] + (n_grams - n_shared)[owner]
    prefix = n_grams - np.ceil(JACCARD * n_grams - 1e-9).astype(np.int64) + 1
    in_prefix = position < prefix[owner]
    post_gram, post_text, post_at = rarity[in_prefix], owner[in_prefix], position[in_prefix]
    # The list of each gram by size, so that the partners of a posting are the next `reach`: not too long, and the grams
    # from here on must still be enough for the overlap that Jaccard asks for.
    order = np.lexsort((post_text, n_grams[post_text], post_gram))
    post_gram, post_text, post_at = post_gram[order], post_text[order].astype(np.int32), post_at[order].astype(np.int32)
    base = int(n_grams.max()) + 1
    size = n_grams[post_text]
    longest = np.minimum(size / JACCARD, (size - post_at) * (1 + JACCARD) / JACCARD - size)
    longest = np.clip(np.floor(longest + 1e-9).astype(np.int64), 0, base - 1)
    last = np.searchsorted(post_gram * base + size, post_gram * base + longest, side="right")
    reach = (last - 1 - np.arange(len(post_gram))).astype(np.int32)
    same_list = post_gram[1:] == post_gram[:-1]

    left = np.flatnonzero(reach > 0).astype(np.int32)
    gap = 0
    while len(left):
        gap += 1
        if gap & (gap - 1) == 0 or gap % 64 == 0:
            # Drop the tails of lists whose members all have one label by now: a large group costs log, not square.
            change = same_list & (label[post_text[1:]] != label[post_text[:-1]])
            ahead = np.append(np.flatnonzero(change), len(post_gram) - 1)
            left = left[post_gram[ahead[np.searchsorted(ahead, left)]] == post_gram[left]]
        left = left[reach[left] >= gap]
        a, b = post_text[left], post_text[left + gap]
        differ = label[a] != label[b]
        here, a, b = left[differ], a[differ], b[differ]
        needed = np.ceil(JACCARD / (1 + JACCARD) * (n_grams[a] + n_grams[b]) - 1e-9)
        possible = np.minimum(n_grams[a] - post_at[here], n_grams[b] - post_at[here + gap])
        # Grams in one of the two only: those nobody shares, and at least the bits in which their parities differ.
        most = n_grams[a] + n_grams[b] - 2 * needed
        likely = (possible >= needed) & (n_own[a] + n_own[b] <= most)
        a, b, most = a[likely], b[likely], most[likely]
        likely = n_own[a] + n_own[b] + _differing_bits(parity, a, b) <= most
        low, high = np.minimum(a, b)[likely].astype(np.int64), np.maximum(a, b)[likely]
        keys = np.unique(low * len(sets) + high)
        for part in np.array_split(keys, len(keys) // 4096 + 1) if len(keys) else ():
            a, b = part // len(sets), part % len(sets)
            still = label[a] != label[b]
            a, b = a[still], b[still]
            common = np.asarray(matrix[a].multiply(matrix[b]).sum(axis=1)).ravel()
            jaccard = common / (n_grams[a] + n_grams[b] - common)
            near = jaccard >= JACCARD - 1e-9
            if near.any():
                yield a[near], b[near], jaccard[near]


def _parity(grams: NDArray[np.uint64], owner: NDArray[np.int64], n: int) -> NDArray[np.uint64]:
    """Return a 512-bit sketch per set, (n, 8) uint64: bit j says whether an odd number of its grams falls on j.

    Two sketches differ in at most as many bits as the sets in grams: an exact bound for eight words a pair.
    """
    sketch = np.zeros((n, 8), dtype=np.uint64)
    bit = np.uint64(1) << (grams >> np.uint64(58))
    np.bitwise_xor.at(sketch, (owner, (grams >> np.uint64(55)).astype(np.int64) & 7), bit)
    return sketch


def _differing_bits(sketch: NDArray[np.uint64], a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    n: NDArray[np.int64] = _n_bits(sketch[a] ^ sketch[b]).sum(axis=1, dtype=np.int64)
    return n


def _n_bits(x: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the number of set bits of each element (NumPy has it from 2.0 on)."""
    if hasattr(np, "bitwise_count"):
        return np.asarray(np.bitwise_count(x), dtype=np.int64)
    n = _BITS[x.reshape(-1, 1).view(np.uint8)].sum(axis=1, dtype=np.int64).reshape(x.shape)
    return np.asarray(n)


def _gram_sets(texts: Iterable[str], size: int) -> Iterator[NDArray[np.uint64]]:
    """Yield the sorted distinct hashes of each text's word n-grams; empty where it has fewer words."""
    return _sets(_word_hashes(texts), size)


def _sets(words: Iterator[NDArray[np.uint64]], size: int) -> Iterator[NDArray[np.uint64]]:
    while batch := list(islice(words, 64)):  # sorted together: fewer calls, and still short
        yield from _grams(batch, size)


def _grams(texts: Sequence[NDArray[np.uint64]], size: int) -> list[NDArray[np.uint64]]:
    """Return the same of texts that are given by their words."""
    if not texts:
        return []
    words, starts = np.concatenate(texts), _starts(texts)
    owner = np.repeat(np.arange(len(texts)), np.diff(starts))
    own = np.flatnonzero(np.arange(size, len(words) + size) <= starts[owner + 1])
    owner, grams = owner[own], _scramble(_raw(words, None, size)[own])
    for some in _split(grams, np.bincount(owner, minlength=len(texts))):
        some.sort()
    new = np.ones(len(grams), dtype=bool)
    new[1:] = (grams[1:] != grams[:-1]) | (owner[1:] != owner[:-1])
    return _split(grams[new], np.bincount(owner[new], minlength=len(texts)))


def _word_hashes(texts: Iterable[str]) -> Iterator[NDArray[np.uint64]]:
    """Yield the hash of each word of each text, in order. Batched by bytes, so memory is flat."""
    batch: list[bytes] = []
    size = 0
    for text in texts:
        raw = _plain(text)
        batch.append(raw)
        size += len(raw)
        if size >= _BATCH_BYTES:
            yield from _hash_batch(batch)
            batch, size = [], 0
    if batch:
        yield from _hash_batch(batch)


def _plain(text: str) -> bytes:
    """Return UTF-8 whose words are the runs of letters, digits, underscores and bytes beyond ASCII."""
    if text.isascii():
        return text.encode("ascii")
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", text).casefold())).encode("utf-8", "surrogatepass")


def _tables() -> tuple[NDArray[np.uint64], NDArray[np.bool_], NDArray[np.uint64]]:
    byte = np.arange(256)
    lower = np.where((byte >= 65) & (byte <= 90), byte + 32, byte)
    is_word = np.array([b >= 128 or chr(b).isalnum() or b == 95 for b in range(256)])
    powers = np.cumprod(np.full(_WORD_BYTES, _P, dtype=np.uint64), dtype=np.uint64)
    return _scramble(lower.astype(np.uint64) + np.uint64(1)), is_word, powers


def _hash_batch(batch: list[bytes]) -> Iterator[NDArray[np.uint64]]:
    data = np.frombuffer(b" " + b" ".join(batch) + b" ", dtype=np.uint8)
    step = np.diff(_IS_WORD[data].view(np.int8))
    begin, end = np.flatnonzero(step == 1) + 1, np.flatnonzero(step == -1) + 1
    length = end - begin
    read = np.minimum(length, _WORD_BYTES)
    hashes = length.astype(np.uint64)
    block = 1 << 17
    for i in range(0, len(begin), block):
        n = read[i : i + block]
        first = np.cumsum(n) - n
        offset = np.arange(n.sum()) - np.repeat(first, n)
        values = _BYTE_HASH[data[np.repeat(begin[i : i + block], n) + offset]] * _POWERS[offset]
        hashes[i : i + block] += np.add.reduceat(values, first)
    hashes = _scramble(hashes)
    bounds = np.searchsorted(begin, np.cumsum([len(b) + 1 for b in batch[:-1]]))
    yield from _split(hashes, np.diff(bounds, prepend=0, append=len(hashes)))


def _scramble(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser: every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


_BYTE_HASH, _IS_WORD, _POWERS = _tables()
_BITS = np.array([bin(b).count("1") for b in range(256)], dtype=np.uint8)
