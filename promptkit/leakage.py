"""Which texts are nearly the same, and which candidates the training mix already holds.

In: texts (openings). Out: a group id per text, or for each candidate the kind and share of its leak. One definition
holds everywhere in promptkit: two texts are near-duplicates when the Jaccard similarity of their word 5-grams is at
least 0.8; a text of fewer than five words has no 5-gram and equals only its own normalised copy.

    "Write a  function that ADDS two numbers!" -> write a function that adds two numbers -> {3 word 5-grams}

Words are hashed straight from UTF-8 bytes with NumPy (about 20 M words a minute would be Python's pace; this is ten
times that), grams are hashes of hashes, and pairs are found by the prefix filter (Chaudhuri, Ganti, Kaushik 2006;
Xiao et al. 2008, "PPJoin"): order the grams of every text from rare to common; two texts with Jaccard >= t share one of
the first n - ceil(t n) + 1. Unlike MinHash bands it misses nothing, needs no seed, and rare-first order keeps the
boilerplate of templated agent prompts from making every pair a candidate. Each pair is then verified exactly.
Given up: collisions of 64-bit hashes (one in 10^6 for a million distinct grams).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

JACCARD = 0.8
GRAM = 5

# Scripts without spaces (kana, ideographs): a character is a word, else a whole sentence would be one.
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W{_UNSPACED}]+")

_BATCH_BYTES = 1 << 20
_WORD_BYTES = 128  # of a longer run without a space only these bytes and its length are hashed
_P = np.uint64(0x9E3779B97F4A7C15)


def normalise(text: str) -> str:
    """Return `text` as exact duplicates are compared: NFKC, case folded, runs of white space made one space."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def near_duplicate_groups(texts: Sequence[str]) -> NDArray[np.int64]:
    """Return a group id for each text, shape (n,), numbered from 0 in order of first appearance.

    Texts share a group when a chain of near-duplicates (Jaccard >= 0.8 on word 5-grams) joins them; texts of fewer
    than five words when their normalised forms are equal. Deterministic, and independent of the order of the texts.

    >>> near_duplicate_groups(["Hello  world", "hello world", "goodbye"]).tolist()
    [0, 0, 1]
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n = len(texts)
    sets = list(_gram_sets(texts, GRAM))
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
    matrix = csr_matrix((np.ones(len(rarity), np.float32), rarity, bounds), shape=(len(sets), len(shared)))

    position = np.arange(len(rarity)) - bounds[owner] + (n_grams - n_shared)[owner]
    prefix = n_grams - np.ceil(JACCARD * n_grams - 1e-9).astype(np.int64) + 1
    in_prefix = position < prefix[owner]
    post_gram, post_text, post_at = rarity[in_prefix], owner[in_prefix], position[in_prefix]
    # Inside the list of one gram by size: once a partner is too long, so are all behind it.
    order = np.lexsort((post_text, n_grams[post_text], post_gram))
    post_gram, post_text, post_at = post_gram[order], post_text[order], post_at[order]

    left = np.arange(len(post_gram))
    gap = 0
    while len(left):
        gap += 1
        if gap & (gap - 1) == 0:
            # Drop the tails of lists whose members all have one label by now: a large group costs log, not square.
            change = (post_gram[1:] == post_gram[:-1]) & (label[post_text[1:]] != label[post_text[:-1]])
            ahead = np.append(np.flatnonzero(change), len(post_gram) - 1)
            left = left[post_gram[ahead[np.searchsorted(ahead, left)]] == post_gram[left]]
        left = left[left + gap < len(post_gram)]
        right = left + gap
        small, large = n_grams[post_text[left]], n_grams[post_text[right]]
        left = left[(post_gram[left] == post_gram[right]) & (small >= JACCARD * large - 1e-9)]
        right = left + gap
        a, b = post_text[left], post_text[right]
        needed = np.ceil(JACCARD / (1 + JACCARD) * (n_grams[a] + n_grams[b]) - 1e-9)
        possible = np.minimum(n_grams[a] - post_at[left], n_grams[b] - post_at[right])
        likely = (possible >= needed) & (label[a] != label[b])
        keys = np.unique(np.minimum(a, b)[likely] * len(sets) + np.maximum(a, b)[likely])
        for part in np.array_split(keys, len(keys) // 4096 + 1) if len(keys) else ():
            a, b = part // len(sets), part % len(sets)
            still = label[a] != label[b]
            a, b = a[still], b[still]
            common = np.asarray(matrix[a].multiply(matrix[b]).sum(axis=1)).ravel()
            jaccard = common / (n_grams[a] + n_grams[b] - common)
            near = jaccard >= JACCARD - 1e-9
            if near.any():
                yield a[near], b[near], jaccard[near]


def _gram_sets(texts: Iterable[str], size: int) -> Iterator[NDArray[np.uint64]]:
    """Yield the sorted distinct hashes of each text's word n-grams; empty where it has fewer words."""
    for words in _word_hashes(texts):
        yield _grams(words, size)


def _grams(words: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    if len(words) < size:
        return np.empty(0, dtype=np.uint64)
    mixed = words[: len(words) - size + 1].copy()
    for k in range(1, size):
        mixed *= _P
        mixed += words[k : len(words) - size + 1 + k]
    mixed = _scramble(mixed)
    mixed.sort()
    return mixed[np.r_[True, mixed[1:] != mixed[:-1]]]


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
    ends_of_texts = np.cumsum([len(b) + 1 for b in batch])
    yield from np.split(hashes, np.searchsorted(begin, ends_of_texts[:-1]))


def _scramble(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser: every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


_BYTE_HASH, _IS_WORD, _POWERS = _tables()
