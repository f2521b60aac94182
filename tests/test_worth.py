"""What a fidelity was worth: the sentence says what the study's kept results say, and nothing where it cannot."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from conftest import EXAMPLES

from promptkit.worth import BANDS, worth

RESULTS = EXAMPLES / "acceptance_study" / "results"


@pytest.fixture(scope="module")
def pairs() -> tuple[np.ndarray, np.ndarray]:
    """Fidelity and AL over the all-mix drafter's of every (set, mix, drafter), from the Parquet files alone."""
    sets = json.loads((RESULTS / "sets.json").read_text())
    scores = pl.read_parquet(RESULTS / "set_scores.parquet").rows_by_key(("set", "mix"), named=True)
    acceptance = pl.read_parquet(RESULTS / "acceptance.parquet", columns=["mix", "drafter", "sampled_4"])
    fidelity, ratio = [], []
    for drafter in ("head", "small"):
        al = {m: acceptance.filter(mix=m, drafter=drafter)["sampled_4"].to_numpy() / 1000 for m in "abcdef"}
        for name, rows in sets.items():
            for mix in "abcef" if not name.startswith("domain:") else "":
                fidelity.append(scores[name, mix][0]["fidelity"])
                ratio.append(al[mix][rows].mean() / al["d"][rows].mean())
    return np.array(fidelity), np.array(ratio)


def test_bands_are_those_of_the_kept_results(pairs: tuple[np.ndarray, np.ndarray]) -> None:
    fidelity, ratio = pairs
    for low, high, mean, p5, p95, n in BANDS:
        r = ratio[(fidelity >= low) & ((fidelity < high) | (high == 1.0))]
        assert len(r) == n
        assert (r.mean(), *np.quantile(r, [0.05, 0.95])) == pytest.approx((mean, p5, p95), abs=0.0051)
    assert sum(b[5] for b in BANDS) == len(ratio)


def test_sentence_names_band_value_and_limits() -> None:
    said = worth(0.62, (0.55, 0.7), 100)
    assert said is not None
    assert (said["band"], said["ratio"], said["low"], said["high"]) == ([0.5, 0.75], 0.92, 0.66, 1.07)
    assert "0.5 to 0.75 had 0.92 (0.66 to 1.07)" in said["text"]
    assert "no promise" in said["text"]


@pytest.mark.parametrize(
    ("fidelity", "bounds", "band"),
    [
        (0.31, (0.22, 0.42), [0.0, 0.5]),
        (1.0, (0.97, 1.0), [0.9, 1.0]),
        (0.0, (0.0, 0.1), [0.0, 0.25]),
        (0.9, (0.74, 0.99), [0.5, 1.0]),
    ],
)
def test_interval_that_touches_several_bands_spans_them(
    fidelity: float, bounds: tuple[float, float], band: list[float]
) -> None:
    said = worth(fidelity, bounds, 50)
    assert said is not None
    assert said["band"] == band
    touched = [b for b in BANDS if b[0] >= band[0] and b[1] <= band[1]]
    assert (said["low"], said["high"]) == (min(b[3] for b in touched), max(b[4] for b in touched))


def test_nothing_is_said_of_small_sets_or_without_fidelity() -> None:
    assert worth(0.9, (0.7, 1.0), 19) is None
    assert worth(None, None, 200) is None
    assert worth(0.9, None, 200) is None
