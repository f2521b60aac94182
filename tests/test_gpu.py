"""What torch computes on a device is what NumPy computes; here the device is the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from promptkit import clusters, distances, gpu, inference
from promptkit.embedders import unit_rows
from promptkit.errors import UsageError

torch = pytest.importorskip("torch")


def rows(n, d=24, seed=0):
    rng = np.random.default_rng(seed)
    return unit_rows(rng.standard_normal((7, d))[rng.integers(0, 7, n)] + 0.5 * rng.standard_normal((n, d)))


@pytest.fixture
def torch_for_cuda(monkeypatch):
    """Let "cuda" mean torch on the CPU, so that the path of a GPU is taken without one."""
    monkeypatch.setattr(gpu, "resolve", lambda device: "cpu")


@pytest.mark.parametrize("k", [1, 2, 16])
def test_clusters_are_the_same_bytes(torch_for_cuda, k):
    X = np.concatenate([rows(900), rows(3)[[0] * 40]])  # forty rows that are equal: ties
    on_gpu = clusters.fit(X, n_clusters=k, device="cuda")
    assert on_gpu.tobytes() == clusters.fit(X, n_clusters=k).tobytes()
    assert clusters.fit_regions(X, rng=3, device="cuda").tobytes() == clusters.fit_regions(X, rng=3).tobytes()


def test_an_empty_cluster_takes_the_row_that_fits_worst(torch_for_cuda):
    G = clusters._grid(rows(200))
    C = np.stack([G[0], G[1], -G[0], G[1]])  # the last one ties with the second, which wins: empty from the start
    expected = clusters._lloyd(G, C)
    np.testing.assert_array_equal(clusters._lloyd(G, C, device="cuda"), expected)


@pytest.mark.parametrize(("n", "m"), [(1, 50), (40, 90), (300, 7)])
def test_mmd_of_blocks_is_that_of_numpy(torch_for_cuda, monkeypatch, n, m):
    monkeypatch.setattr(gpu, "_BLOCK", 500)
    X, Y = rows(n), rows(m, seed=1)
    expected = distances.mmd2(X.astype(np.float64), Y.astype(np.float64), bandwidth2=0.7)
    np.testing.assert_allclose(distances.mmd2(X, Y, bandwidth2=0.7, device="cuda"), expected, atol=1e-6)


@pytest.mark.parametrize("n", [1, 9, 150])
@pytest.mark.parametrize("weighted", [False, True])
def test_means_of_draws_are_those_of_numpy(torch_for_cuda, monkeypatch, n, weighted):
    monkeypatch.setattr(gpu, "_BLOCK", 64)
    rng = np.random.default_rng(2)
    table = rng.standard_normal((200, 33)).astype(np.float32)
    drawn = inference.draw_subsets(n, 200, 50, rng=rng, probabilities=np.ones(200) if weighted else None)
    weights = rng.random(n) / n if weighted else None
    expected = inference.weighted_means(drawn, table.astype(np.float64), weights, rng=4)
    found = inference.weighted_means(drawn, table, weights, rng=4, device="cuda")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_a_device_by_name():
    assert gpu.resolve("cpu") == "cpu"
    assert gpu.resolve("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    assert gpu.asked("auto") == "cpu"
    with pytest.raises(UsageError, match="unknown device"):
        gpu.asked("tpu")
    with pytest.raises(UsageError, match="sees"):
        gpu.asked("cuda:99")
