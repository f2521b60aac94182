"""Spherical k-means, labels that do not depend on company, and names a person can read."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from promptkit import clusters


def three_heaps(n=60, d=8, seed=0):
    rng = np.random.default_rng(seed)
    X = np.repeat(np.eye(d)[:3], n, axis=0) + 0.05 * rng.normal(size=(3 * n, d))
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)


def test_heaps_are_found():
    X = three_heaps()
    labels = clusters.assign(X, clusters.fit(X, n_clusters=3))
    assert [len(set(labels[i : i + 60].tolist())) for i in (0, 60, 120)] == [1, 1, 1]
    assert len(set(labels.tolist())) == 3


def test_it_is_no_worse_than_scikit_learn():
    kmeans = pytest.importorskip("sklearn.cluster").KMeans
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 6))
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    theirs = kmeans(8, n_init=4, random_state=0).fit(X).cluster_centers_
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
    ours = clusters.fit(X, n_clusters=8)
    assert (X @ ours.T).max(axis=1).mean() > (X @ theirs.T).max(axis=1).mean() - 0.01


def test_the_same_rows_give_the_same_bytes_and_larger_clusters_come_first():
    X = np.concatenate([three_heaps(), three_heaps(seed=1)[:40]])
    C = clusters.fit(X, n_clusters=5)
    assert C.tobytes() == clusters.fit(X, n_clusters=5).tobytes()
    sizes = np.bincount(clusters.assign(X, C), minlength=5)
    assert sizes.tolist() == sorted(sizes.tolist(), reverse=True)


def heaps(k, n, spread, seed, d=24):
    rng = np.random.default_rng(seed)
    X = np.tile(np.eye(d)[:k], (n, 1)) + spread * rng.normal(size=(k * n, d)) / np.sqrt(d)
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("k", [4, 8])
def test_as_many_clusters_as_the_rows_have(k):
    assert clusters.stable_number(heaps(k, 60, 0.5, seed=k)) == k


def test_a_shapeless_cloud_has_few_clusters_and_sixteen_heaps_sixteen():
    X = np.random.default_rng(0).normal(size=(600, 24)).astype(np.float32)
    assert clusters.stable_number(X / np.linalg.norm(X, axis=1, keepdims=True)) <= 6
    assert clusters.stable_number(heaps(16, 40, 0.5, seed=0)) == 16


def test_agreement_is_that_of_the_best_matching():
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.integers(0, 4, 30), rng.integers(0, 4, 30)
        best = max(np.mean([p[x] == y for x, y in zip(a, b, strict=True)]) for p in itertools.permutations(range(4)))
        assert clusters.agreement(a, b) == pytest.approx(best)


def test_a_tenth_of_the_rows_less_hardly_moves_a_prompt():
    X = heaps(8, 80, 0.9, seed=1)
    every = clusters.assign(X, clusters.fit(X, n_clusters=8))
    for seed in range(3):
        kept = np.random.default_rng(seed).random(len(X)) < 0.9
        assert clusters.agreement(every, clusters.assign(X, clusters.fit(X[kept], n_clusters=8))) >= 0.95


def test_a_label_does_not_depend_on_the_rows_beside_it():
    X = np.random.default_rng(0).normal(size=(1000, 256)).astype(np.float32)
    C = clusters.fit(X, n_clusters=16)
    labels = clusters.assign(X, C)
    assert [int(clusters.assign(X[i : i + 1], C)[0]) for i in range(100)] == labels[:100].tolist()


@pytest.mark.parametrize(("n", "k"), [(1, 1), (9, 1), (25, 2), (400, 16)])
def test_few_rows_have_fewer_clusters(n, k):
    X = np.random.default_rng(0).normal(size=(n, 5)).astype(np.float32)
    assert clusters.fit(X).shape == (k, 5)


def test_equal_rows_and_zero_rows_are_one_cluster():
    assert clusters.fit(np.tile(np.eye(4, dtype=np.float32)[0], (50, 1))).shape == (1, 4)
    assert clusters.fit(np.zeros((50, 4), dtype=np.float32)).shape == (1, 4)
    assert clusters.fit(np.zeros((0, 4), dtype=np.float32)).shape == (1, 4)


def test_names_say_what_sets_a_cluster_apart():
    texts = ["Please write a SQL query with JOIN on the orders table"] * 6 + ["Please cook a soup of leeks"] * 6
    names = clusters.names(texts, np.repeat([0, 1], 6), 2)
    assert {"sql", "query", "join", "orders", "table"} >= set(names[0].split(", "))
    assert {"cook", "soup", "leeks"} >= set(names[1].split(", "))
    assert 2 <= len(names[0].split(", ")) <= 4


def test_names_take_identifiers_apart_and_leave_code_and_schema_words_out():
    codes = ["def parse_invoice(self, args): return readInvoice(args)", "const total = sumInvoice(params)"] * 3
    soups = ["Please cook a soup of leeks in JavaScript, with parameters"] * 6
    name = clusters.names(codes + soups, np.repeat([0, 1], 6), 2)
    assert name[0].split(", ")[0] == "invoice"
    assert "javascript" in name[1]
    assert not {"def", "self", "args", "const", "params", "parameters"} & set(", ".join(name).split(", "))


def test_the_word_that_a_text_turns_about_comes_first():
    policy = "airline policy: zebra. " + "flight " * 9
    name = clusters.names([policy] * 5 + ["soup of leeks"] * 5, np.repeat([0, 1], 5), 2)[0]
    assert name.split(", ")[0] == "flight"


def test_hashes_name_nothing():
    texts = ["kxrdwwbx0h9bchx99397477c0000gn aider turbo repository"] * 6 + ["Please cook a soup of leeks"] * 6
    name = clusters.names(texts, np.repeat([0, 1], 6), 2)[0]
    assert {"aider", "turbo", "repository"} >= set(name.split(", "))


def test_names_are_distinct_even_without_words():
    assert len(set(clusters.names(["1 2 3"] * 9, np.repeat([0, 1, 2], 3), 4))) == 4


def test_examples_are_nearest_first_and_of_different_units():
    X = three_heaps(n=20)
    C = clusters.fit(X, n_clusters=3)
    labels = clusters.assign(X, C)
    units = np.arange(60) // 10
    for c, rows in enumerate(clusters.nearest_rows(X, labels, C, units=units, n=3)):
        own = np.flatnonzero(labels == c)
        assert rows[0] == own[np.argmax(X[own] @ C[c])]
        assert len(rows) == 2  # a heap of 20 rows has two units of ten
        assert len(set(units[rows].tolist())) == 2
