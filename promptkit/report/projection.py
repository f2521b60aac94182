"""A training mix in two dimensions, with any prompts laid on top: what the map of the report and `plots.map` draw.

    reference, texts -> principal components of the reference's vectors -> density, points, the texts' places

The two directions are those along which the mix itself varies most. They depend on the reference alone, so the same
prompt has the same place in every report about it, whatever it is shown with (t-SNE would move it, and takes seconds).
Two directions hold a small part of 256 (`explained` says how much): near on the map is no proof of near, and a prompt
that shares nothing with the mix lies at its middle, not outside. Typicality says what is foreign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CELLS = 48  # of the density, along each side
MIN_ROWS = 10  # below, directions are noise
DIGITS = 4


@dataclass(frozen=True)
class Projection:
    """Places are (n, 2) arrays of numbers rounded to 4 digits; `cells` holds (x, y, share of all rows) of each cell.

    `rows` are the numbers of the rows in `points`; `cell` is the width and height of a cell.
    """

    cells: NDArray[np.float64]
    cell: tuple[float, float]
    rows: NDArray[np.int64]
    points: NDArray[np.float64]
    here: NDArray[np.float64]
    n_rows: int
    explained: float


def project(reference: Any, texts: Sequence[str] = (), *, points: int = 5000) -> Projection | None:
    """Return where the rows of a reference and the given openings lie; None for fewer than 10 rows or 2 dimensions.

    All rows make the density; `points` of them, evenly spread over the sample, get a place of their own.
    """
    from threadpoolctl import threadpool_limits

    X = np.asarray(reference.X, dtype=np.float64)
    n, d = X.shape
    if n < MIN_ROWS or d < 2:
        return None
    with threadpool_limits(1):  # sums of BLAS differ in the last bit with the number of threads
        mean = X.mean(axis=0)
        spread, axes = np.linalg.eigh((X - mean).T @ (X - mean) / n)
        axes = axes[:, :-3:-1]
        axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), (0, 1)])  # eigenvectors have no sign of their own
        places = np.round((X - mean) @ axes, DIGITS)
        Y = np.asarray(reference.embed(list(texts)), dtype=np.float64) if len(texts) else np.zeros((0, d))
        here = np.round((Y - mean) @ axes, DIGITS)
    everything = np.vstack([places, here])
    low, high = everything.min(axis=0), everything.max(axis=0)
    size = np.maximum((high - low) / CELLS, 10.0**-DIGITS)
    at = np.minimum(((places - low) / size).astype(np.int64), CELLS - 1)
    counts = np.bincount(at[:, 0] * CELLS + at[:, 1], minlength=CELLS * CELLS)
    used = np.flatnonzero(counts)
    centres = low + (np.column_stack([used // CELLS, used % CELLS]) + 0.5) * size
    rows = np.unique(np.linspace(0, n - 1, min(max(points, 0), n)).astype(np.int64))
    return Projection(
        cells=np.column_stack([np.round(centres, DIGITS), counts[used] / n]),
        cell=(round(float(size[0]), DIGITS + 1), round(float(size[1]), DIGITS + 1)),
        rows=rows,
        points=places[rows],
        here=here,
        n_rows=n,
        explained=float(spread[-2:].sum() / max(spread.sum(), 1e-12)),
    )
