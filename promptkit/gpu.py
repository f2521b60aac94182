"""Clusters, kernels and null draws through torch, on a GPU, when `device` says so; NumPy does the same without torch.

    rows (n, d), whole numbers of 2^-16  ->  `seeds`, `lloyd`              the same bytes as on the CPU
    X (n, d), Y (m, d)                   ->  `mmd2`                        within 1e-6 of `distances.mmd2`
    rows of a table, by draw             ->  `sums`                        within 1e-6 of `inference.weighted_means`

Clusters are exact in float64 wherever they are computed (`clusters`), so they do not depend on the device. The others
are float32 products whose sums are rounded in another order; what is drawn is drawn by NumPy on the CPU, so a p-value
ranks the same draws. A GPU pays for large numbers only: docs/benchmarks.md says from where on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_BLOCK = 1 << 28  # numbers of one block of a kernel, or of the rows that are drawn: 1 GB


def resolve(device: str) -> str:
    """Return "cpu", "cuda" or "cuda:N"; "auto" is the GPU where torch sees one. UsageError for a GPU not there."""
    if device == "cpu":
        return device
    if device != "auto" and not re.fullmatch(r"cuda(:\d+)?", device):
        raise UsageError(f"unknown device {device!r}", hint="known: auto, cpu, cuda, cuda:N")
    import torch

    n = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda" if n else "cpu"
    if int(device.partition(":")[2] or 0) >= n:
        raise UsageError(
            f"device {device!r}: torch {torch.__version__} sees {n} GPUs",
            hint="use device cpu, or install a torch that is built for your GPU and driver",
        )
    return device


def asked(device: str) -> str:
    """Return the device for what NumPy does as well: "cpu" unless a GPU is named. "auto" does not load torch."""
    return "cpu" if device == "auto" else resolve(device)


def _on(device: str, *arrays: NDArray[Any]) -> list[Any]:
    import torch

    return [torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in arrays]


# ------------------------------------------------------------------------------------------------ clusters


def lloyd(G: Floats, C: Floats, *, steps: int, unit: Callable[[Floats], Floats], device: str) -> Floats:
    """Return the centroids that at most `steps` steps of k-means lead to; `unit` makes one of a cluster's sum.

    Every sum is one of whole numbers below 2^53, so neither the order of atomic additions nor the device shows.
    """
    import torch

    (rows,) = _on(device, G)
    labels = torch.full((len(G),), -1, dtype=torch.int64, device=rows.device)
    for _ in range(steps):
        own, new = (rows @ _on(device, C)[0].T).max(dim=1)
        if torch.equal(new, labels):
            break
        labels = new
        for empty in torch.nonzero(torch.bincount(labels, minlength=len(C)) == 0).ravel().tolist():
            worst = int(own.argmin())
            labels[worst], own[worst] = empty, float("inf")
        sums = torch.zeros(C.shape, dtype=rows.dtype, device=rows.device).index_add_(0, labels, rows)
        C = np.stack([unit(total) for total in sums.cpu().numpy()])
    return C


def seeds(G: Floats, k: int, rng: np.random.Generator, *, square: float, device: str) -> Floats:
    """Return k rows of G by k-means++ on the cosine; `square` is the squared length of a row."""
    import torch

    (rows,) = _on(device, G)
    chosen = [int(rng.integers(len(G)))]
    far = torch.full((len(G),), float("inf"), dtype=rows.dtype, device=rows.device)
    for _ in range(k - 1):
        last = rows[chosen[-1]]
        far = torch.minimum(far, (square - rows @ last).clamp_(min=1.0))
        far[(rows == last).all(dim=1)] = 0.0
        total = far.round().cumsum(0)
        at = torch.searchsorted(total, rng.random() * total[-1:], right=True)
        chosen.append(min(int(at), len(G) - 1))
    return G[chosen]


# ------------------------------------------------------------------------------------------------ kernels, null draws


def mmd2(X: NDArray[Any], Y: NDArray[Any], *, bandwidth2: float, device: str) -> float:
    """Return the unbiased squared MMD under exp(-|x - y|^2 / (2 bandwidth2)); NaN where a set has one row."""
    import torch

    A, B = _on(device, X.astype(np.float32, copy=False), Y.astype(np.float32, copy=False))

    def mean(P: Any, Q: Any) -> float:
        p, q = ((Z * Z).sum(dim=1) for Z in (P, Q))
        step, parts = max(1, _BLOCK // len(Q)), []
        for at in range(0, len(P), step):
            D = P[at : at + step] @ Q.T
            D.mul_(-2.0).add_(p[at : at + step, None]).add_(q).clamp_(min=0.0)
            parts.append(D.mul_(-0.5 / bandwidth2).exp_().sum(dtype=torch.float64))
        return float(sum(parts)) / (len(P) * len(Q))  # read at the end: no block waits for the one before

    def within(P: Any) -> float:
        n = len(P)
        return (mean(P, P) * n - 1.0) / (n - 1) if n > 1 else float("nan")

    return within(A) + within(B) - 2.0 * mean(A, B)


def sums(
    rows: NDArray[np.integer],
    starts: NDArray[np.integer],
    weights: NDArray[np.float32] | None,
    table: NDArray[np.float32],
    *,
    device: str,
) -> NDArray[np.float32]:
    """Return (draws, columns): for the rows from each of `starts` to the next, the sum of these rows of `table`.

    Each row counts by its weight, where `weights` are given. This is a sparse matrix (draws, rows of the table) times
    the table: `rows` are its indices, `starts` its indptr without the last. Sums have the same order each time.
    """
    import torch

    (lines,) = _on(device, table)
    ends = np.append(starts[1:], len(rows))
    out = np.empty((len(starts), table.shape[1]), dtype=np.float32)
    step = max(1, _BLOCK // max(1, len(rows) // max(1, len(starts))))
    for at in range(0, len(starts), step):
        first, last = int(starts[at]), int(ends[min(at + step, len(ends)) - 1])
        r, s = _on(
            device, rows[first:last].astype(np.int32, copy=False), (starts[at : at + step] - first).astype(np.int32)
        )
        w = None if weights is None else _on(device, weights[first:last])[0]
        found = torch.nn.functional.embedding_bag(r, lines, s, mode="sum", per_sample_weights=w)
        out[at : at + step] = found.cpu().numpy()
    return out
