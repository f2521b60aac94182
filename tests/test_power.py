"""The power study measures power: what is found grows with what is wrong, and other tests see the same sets."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from conftest import ROOT

sys.path.append(str(ROOT))  # benchmarks/ is not installed
from benchmarks import density_ratio, power, power_peers, worlds


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Three sources of a mix, and a directory that holds one of them and two foreign ones."""
    root = tmp_path_factory.mktemp("power")
    prompts, topics = worlds.made_up("topics", 900, np.random.default_rng(0))
    strange, _ = worlds.made_up("near-duplicates", 260, np.random.default_rng(1))

    def write(part, source, rows, domain):
        (root / part).mkdir(exist_ok=True)
        lines = [json.dumps({"prompt": p.messages[-1]["content"], "domain": domain}) for p in rows]
        (root / part / f"{source}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    for i, topic in enumerate(("topic 00", "topic 01", "topic 02")):
        rows = [p for p, t in zip(prompts, topics, strict=True) if t == topic]
        write("mix", f"s{i}", rows, "coding")
        if i == 0:
            write("all", "s0", rows, "coding")
    write("all", "trivia", strange[:130], "encyclopedic")
    write("all", "letters", strange[130:], "writing")
    return root


def test_a_run_finds_what_is_foreign_and_hands_its_sets_to_other_tests(directories, tmp_path, capsys):
    out, sets = tmp_path / "power.json", tmp_path / "sets.npz"
    power.main(["--mix", str(directories / "mix"), "--foreign", str(directories / "all"), "--sizes", "10,30", "--sets",
                "4", "--draws", "99", "--out", str(out), "--save-sets", str(sets)])  # fmt: skip
    figures = json.loads(out.read_text())
    assert figures["foreign"] == ["letters", "trivia"]
    changes = {(c["n"], c["share"]): c["p_value"] for c in figures["changes"]}
    assert changes[30, 0.0] <= 0.4
    assert changes[30, 0.25] >= 0.8
    by_source = {(s["source"], s["n"]): s for s in figures["sources"]}
    assert by_source["trivia", 30]["p_value"] == 1.0
    assert by_source["trivia", 30]["fidelity"] < 0.3 < 0.7 < by_source["s0", 10]["fidelity"]
    assert by_source["s0", 10]["in_mix"]
    shares = [c["share"] for c in figures["contamination"] if c["n"] == 10]
    assert shares == sorted(shares)
    assert min(shares) >= 0.1  # a part that rounds to no prompt at all is not measured
    assert "found in 80 %" in out.with_suffix(".md").read_text()

    with np.load(sets) as stored:
        data = {name: stored[name] for name in stored.files}
    assert data["30|foreign|0.25"].shape == (16, 30)
    plain, mixed = data["30|foreign|0.0"], data["30|foreign|0.25"]
    assert [len(np.setdiff1d(m, p)) for p, m in zip(plain, mixed, strict=True)] == [8] * 16  # the same sets but for 8
    capsys.readouterr()
    power_peers.main([str(sets), "--count", "3", "--out", str(tmp_path / "peers.json")])
    assert "| in-mix | 10 |" in capsys.readouterr().out
    rows = json.loads((tmp_path / "peers.json").read_text())
    assert {r["test"] for r in rows} >= {"C2ST", "MAUVE"}


def test_the_smallest_share_lies_on_the_line_between_two_points():
    assert power.smallest([(0.0, 0.05), (0.1, 0.6), (0.2, 1.0)]) == pytest.approx(0.15)
    assert power.smallest([(0.2, 1.0), (0.1, 0.8), (0.0, 0.0)]) == pytest.approx(0.1)
    assert power.smallest([(0.0, 0.05), (0.5, 0.7)]) is None
    assert power.smallest([]) is None


@pytest.mark.parametrize("test", [power_peers.c2st, power_peers.mauve_test])
def test_other_tests_keep_their_level_and_find_a_shift(test):
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((300, 5))
    p = np.array([test(rng.standard_normal((40, 5)), Y, s) for s in range(30)])
    assert (p < 0.05).mean() <= 0.2
    assert 0.25 < p.mean() < 0.75
    assert np.mean([test(rng.standard_normal((40, 5)) + 1.5, Y, s) < 0.05 for s in range(5)]) == 1.0


def test_mauve_of_shares_is_mauve_texts():
    mauve = pytest.importorskip(
        "mauve.compute_mauve", reason="mauve-text is not installed; it is an oracle of this test"
    )
    rng = np.random.default_rng(0)
    for _ in range(10):
        p, q = rng.dirichlet(np.full(7, 0.4), size=2)
        p[rng.integers(7)] = 0.0
        p /= p.sum()
        x, y = mauve.get_divergence_curve_for_multinomials(p, q, np.linspace(1e-6, 1 - 1e-6, 25), 5).T
        a, b = np.argsort(x), np.argsort(y)
        theirs = (mauve.compute_area_under_curve(x[a], y[a]) + mauve.compute_area_under_curve(y[b], x[b])) / 2
        assert power_peers.mauve_of_shares(p, q) == pytest.approx(theirs, abs=1e-9)


def test_mauve_of_equal_shares_is_one_and_of_disjoint_ones_almost_none():
    assert power_peers.mauve_of_shares([1, 2, 3], [2, 4, 6]) == pytest.approx(1.0, abs=1e-4)
    assert power_peers.mauve_of_shares([1, 0], [0, 1]) < 0.01
    near, far = (power_peers.mauve_of_shares([5, 5], [5 + d, 5 - d]) for d in (1, 4))
    assert far < near < 1


def test_mauve_depends_on_the_number_of_rows_and_of_clusters():
    """The published weakness: two draws of one law are called far apart where the draws are small or clusters many."""
    from sklearn.cluster import KMeans

    def mean(n, k):
        values = []
        for s in range(12):
            X = np.random.default_rng([s, n]).standard_normal((2 * n, 8))
            labels = KMeans(k, n_init=1, random_state=0).fit(X).labels_
            values.append(power_peers.mauve_of_shares(*(np.bincount(h, minlength=k) for h in np.split(labels, 2))))
        return float(np.mean(values))

    assert mean(400, 16) > 0.95
    assert mean(30, 16) < 0.9 * mean(400, 16)  # n
    assert mean(100, 50) < 0.9 * mean(100, 5)  # clusters


def test_density_ratios_are_what_they_say():
    rng = np.random.default_rng(0)
    mix, X = rng.standard_normal((200, 3)), rng.standard_normal((40, 3)) + np.repeat([0.0, 3.0], 20)[:, None]
    brute = [np.log(np.mean([np.exp(-((x - z) ** 2).sum() / 2) for z in mix])) for x in X]
    np.testing.assert_allclose(density_ratio.log_density(X, mix, 1.0, own=False), brute, rtol=1e-9)
    left_out = np.log(np.mean([np.exp(-((X[0] - z) ** 2).sum() / 2) for z in X[1:]]))
    assert density_ratio.log_density(X, X, 1.0, own=True)[0] == pytest.approx(left_out)
    odds = density_ratio.log_odds(X, mix, 0)
    assert odds[20:].min() > odds[:20].max()  # what lies beside the mix is told from what lies in it
