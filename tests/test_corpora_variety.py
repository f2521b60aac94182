"""The comparison of bundled packs with public sets: the measure of variety against what it must be."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import corpora


def test_vendi_counts_kinds() -> None:
    assert corpora.vendi(np.eye(6)) == pytest.approx(6)
    assert corpora.vendi(np.ones((6, 1))) == pytest.approx(1)
    three = np.repeat(np.eye(3), 5, axis=0)
    assert corpora.vendi(three) == pytest.approx(3)
    assert corpora.variety(three) == (pytest.approx(3 / 15), pytest.approx((15 * 5 - 15) / (15 * 14)), pytest.approx(1))


def test_a_set_of_copies_is_seen_in_the_table() -> None:
    rng = np.random.default_rng(0)
    words = ["kettle", "river", "stone", "train", "lamp", "garden", "bread", "winter", "letter", "window", "bridge"]
    varied = [" ".join(rng.permutation(words)[:7]) for _ in range(90)]
    copies = ["please tell me how the old stone bridge was built"] * 90
    sets = {n: [{"messages": [{"role": "user", "content": t}], "tools": None} for t in ts]
            for n, ts in (("varied", varied), ("copies", copies))}  # fmt: skip
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in corpora.table(sets).splitlines()[2:]}
    assert float(rows["varied"][2]) > 3 * float(rows["copies"][2])
    assert rows["copies"][7] == "98.9%"
