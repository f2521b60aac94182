"""The score of a set of prompts: what it says of good and bad sets, what it refuses, and what may not change it."""

from __future__ import annotations

import copy
import json
import math
import types

import numpy as np
import polars as pl
import pytest
from conftest import ROOT

from promptkit import conversation, reference, scoring
from promptkit.comparison import ALPHA, Rows
from promptkit.conversation import Prompt, canonical, prompt_id
from promptkit.errors import InputError, UsageError
from promptkit.tokenizers import load_tokenizer

# A mix of four kinds of coding and agentic requests, and two kinds of text that it does not hold.
WORDS = {
    "sort": "sort merge list array pivot stable ascending index swap heap quick bubble insertion python function integers",
    "shell": "bash find grep remove directory files permission archive lines count user home recursive pipe xargs sed",
    "query": "select join table orders customers total group month average rows column having index view trigger update",
    "issue": "traceback raises pytest failing regression parser config module import branch commit patch release wheel lint",
    "trivia": "king battle river empire painter novel century capital island treaty queen mountain opera poet harbour saint",
    "translate": "der und nicht mit eine auf werden haben dem sich auch nach wird bei einer zwischen wurde durch gegen ohne",
}
OPEN = {
    "sort": ("Write a function to", "Implement in python:", "Optimise this code to"),
    "shell": ("Give me a shell command to", "Write a bash script that will", "In the terminal,"),
    "query": ("Write a SQL query to", "Given these tables,", "Speed up this query:"),
    "issue": ("Fix this bug:", "The following test fails:", "Open a pull request that resolves"),
    "trivia": ("Who was", "When did", "What is known of"),
    "translate": ("Uebersetze:", "Bitte den Satz:", "Auf deutsch:"),
}
MIX = ("sort", "shell", "query", "issue")
NEAREST_KEYS = {"similarity", "text", "source"}
STABLE = {
    "verdict", "verdict_code", "representative", "n", "n_effective", "distance", "noise_floor", "ratio", "excess", "p_value", "p_fidelity",
    "p_mix", "fidelity", "coverage", "mix_overlap", "domain_overlap", "typicality", "cross_entropy", "closeness", "intervals", "power",
    "equivalence", "advice", "structure", "domains", "clusters", "missing", "prompts", "responses", "worth", "reference", "seed", "promptkit_version",
}  # fmt: skip
PROMPT_KEYS = {
    "index", "id", "typicality", "belongs", "cross_entropy", "closeness", "domain", "cluster", "nearest_similarity",
    "nearest", "n_tokens", "length_percentile", "outliers", "influence", "leaked", "leak",
}  # fmt: skip


def text(kind, rng):
    words = WORDS[kind].split()
    body = " ".join(rng.choice(words, rng.integers(8, 20)))
    return f"{rng.choice(OPEN[kind])} {body} {rng.integers(10**6)}"


def texts(n, seed, kinds=MIX, shares=(0.4, 0.3, 0.2, 0.1)):
    rng = np.random.default_rng(seed)
    shares = shares if len(kinds) == 4 else None
    return [text(kinds[i], rng) for i in rng.choice(len(kinds), size=n, p=shares)]


def frame(n, seed, *, tokens=None):
    rng = np.random.default_rng(seed)
    rows = []
    for i, t in enumerate(texts(n, seed)):
        answer = "sure : " + " ".join(rng.choice(t.split(), 12))
        messages = [{"role": "user", "content": t}, {"role": "assistant", "content": answer}]
        rows.append((t, answer, messages, i))
    return pl.DataFrame(
        {
            "shard": ["a.jsonl"] * n,
            "row": list(range(n)),
            "id": [prompt_id(m) for _, _, m, _ in rows],
            "source": [next(k for k in MIX if t.startswith(OPEN[k])) for t, _, _, _ in rows],
            "messages": [canonical(m).decode() for _, _, m, _ in rows],
            "tools": [None] * n,
            "text": [t for t, _, _, _ in rows],
            "response_text": [a for _, a, _, _ in rows],
            "n_prompt_tokens": [len(t.split()) for t, _, _, _ in rows],
            "n_response_tokens": [14] * n,
            "n_supervised_tokens": [14] * n if tokens is None else tokens,
            "n_turns": [1] * n,
            "has_tools": [False] * n,
            "truncated": [False] * n,
            "language": ["en"] * n,
        },
        schema_overrides={"tools": pl.String, "n_supervised_tokens": pl.Int64},
    )


def label(texts, *, messages=None, tools=None):
    coding = ("Write a f", "Implement", "Optimise", "Write a S", "Given these", "Speed up")
    domain = ["coding" if t.startswith(coding) else "agentic" for t in texts]
    return [types.SimpleNamespace(domain=d, unsure=False) for d in domain]


def fit(n, seed=0, **more):
    return reference.fit(frame(n, seed, **more), tokenizer=load_tokenizer("words"), seed=seed, label=label)


@pytest.fixture(scope="module")
def ref():
    return fit(1700)  # 425 held out: split


@pytest.fixture(scope="module")
def small():
    return fit(300)  # crossed folds


@pytest.fixture(scope="module")
def good(ref):
    return scoring.score(texts(200, 99), ref, draws=499)


@pytest.fixture(scope="module")
def bad(ref):
    return scoring.score(texts(20, 5, ("trivia", "translate")), ref, draws=499)


# ---------------------------------------------------------------------------------------------- what it says


def test_a_set_like_the_mix_is_representative(good):
    assert good.verdict_code == "yes"
    assert good.representative
    assert good.p_value > 0.05
    assert good.ratio == pytest.approx(1.0, abs=0.3)
    assert good.ratio == good.distance / good.noise_floor
    assert good.fidelity > 0.95
    assert 0.8 < good.coverage < 1.2
    assert good.mix_overlap == pytest.approx(good.chance["mix_overlap"], abs=0.06)
    assert good.missing.is_empty()
    assert good.verdict.startswith("Representative of the training mix: the prompts belong (")
    assert "10.0" in good.verdict  # how many of 200 chance alone would call foreign


def test_a_foreign_set_is_refused_and_its_parts_say_why(bad):
    assert bad.verdict_code == "no"
    assert bad.p_value == bad.p_fidelity == 1 / 500
    assert bad.fidelity < 0.1
    assert bad.coverage < 0.6
    assert bad.ratio > 1.5
    assert not any(bad.prompts["belongs"])
    assert bad.verdict.startswith(
        "Not representative of the training mix (p = 0.002): 20 of 20 prompts do not belong (chance alone: 1.0)"
    )


def test_a_set_of_one_kind_belongs_but_covers_a_sliver(ref):
    s = scoring.score(texts(60, 4, ("shell",)), ref, draws=499)
    assert s.verdict_code == "no"
    assert s.p_fidelity > 0.05
    assert s.p_mix < 0.01
    assert s.fidelity > 0.95
    assert s.coverage < 0.6
    assert s.intervals["coverage"][1] < 0.8
    assert "the prompts belong" in s.verdict
    assert "most missing" in s.verdict
    gone = s.missing.row(0, named=True)
    assert gone["candidate_share"] < 0.5 * gone["reference_share"]
    assert 1 <= len(gone["examples"]) <= 3
    assert any(gone["examples"][0].startswith(OPEN[k]) for k in ("sort", "query", "issue"))
    gaps = (s.missing["reference_share"] - s.missing["candidate_share"]).to_list()
    assert gaps == sorted(gaps, reverse=True)


def test_twenty_good_prompts_are_too_few_to_be_sure_and_it_says_what_they_miss(ref):
    s = scoring.score(texts(20, 31), ref, draws=499)
    assert s.verdict_code == "unsure"
    assert "20 prompts are too few to be sure" in s.verdict
    assert "10 % foreign" in s.verdict
    power = {(r["n"], r["change"]): r["power"] for r in s.power}
    assert power[20, "10 % foreign"] < 0.8 < power[200, "25 % foreign"]


def test_words_of_certainty_need_an_interval(ref):
    """At n = 9 nothing is shown: neither that prompts belong nor that the mix is reached."""
    s = scoring.score(texts(9, 12), ref, draws=199)
    assert s.intervals["fidelity"][0] < 0.9
    assert s.intervals["coverage"][0] < 0.9 <= s.intervals["coverage"][1]
    assert "no sign of foreign prompts" in s.verdict
    assert "they may reach as much" in s.verdict
    assert "the prompts belong" not in s.verdict


def test_the_margin_is_the_users(ref):
    """The same set, the same numbers: what is near enough decides the verdict."""
    some = texts(200, 31)
    wide, narrow = (scoring.score(some, ref, draws=199, margin=m) for m in (0.5, 0.005))
    assert (wide.excess, wide.p_value, wide.intervals) == (narrow.excess, narrow.p_value, narrow.intervals)
    assert wide.verdict_code == "yes"
    assert narrow.verdict_code != "yes"
    assert (wide.equivalence["margin"], narrow.equivalence["margin"]) == (0.5, 0.005)
    assert wide.equivalence["p_value"] < narrow.equivalence["p_value"]
    assert "within 0.50 of the mix" in wide.advice
    assert "within 0.005 of the mix" in narrow.advice or narrow.advice.startswith("whether")
    for wrong in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(UsageError, match="margin is"):
            scoring.score(some, ref, margin=wrong)


def test_equivalence_and_advice(good, bad, ref):
    assert good.equivalence["margin"] == 0.10
    assert good.equivalence["p_value"] < 0.025  # one side of a 95 % interval: what a yes asks of the distance
    assert good.equivalence["n_needed"] <= 200
    assert good.advice == "200 prompts are enough to call this set within 0.10 of the mix"
    assert bad.equivalence["p_value"] > 0.9
    assert bad.equivalence["n_needed"] is None
    assert bad.advice.startswith("more prompts like these will not bring the set within 0.10 of the mix: ")
    few = scoring.score(texts(20, 31), ref, draws=199)
    assert 20 < few.equivalence["n_needed"] < 500
    assert (
        few.advice
        == f"to call this set within 0.10 of the mix takes about {few.equivalence['n_needed']} prompts like these"
    )


def test_foreign_prompts_are_no_matter_of_the_margin(ref):
    wide = scoring.score(texts(20, 5, ("trivia", "translate")), ref, draws=99, margin=1.0)
    assert wide.equivalence["p_value"] < 0.025
    assert wide.advice == "more prompts like these will not represent the mix: too many of them do not belong"


def test_shares_are_tested_all_at_once(good, ref):
    assert min(good.clusters["p_value"]) > 0.05
    shell = scoring.score(texts(60, 4, ("shell",)), ref, draws=99)
    domains = {d: p for d, p in shell.domains.select("domain", "p_value").rows()}
    assert domains["coding"] < 0.01
    found = shell.clusters.filter(pl.col("p_value") < 0.05)
    assert len(found) > 3
    over = found.filter(pl.col("candidate_share") > pl.col("reference_share"))
    assert over["candidate_share"].sum() > 0.8
    assert shell.domains["p_value"].null_count() == 0
    refused = scoring.score(texts(20, 1), fit(50)).domains["p_value"]
    assert refused.null_count() == len(refused)


def test_length_and_structure_stand_beside_the_mix(ref):
    many = [{"role": "user", "content": "find files"}, {"role": "assistant", "content": "x"}] * 3
    many.append({"role": "user", "content": "Now remove the directory"})
    s = scoring.score([*texts(30, 3), "word " * 900, many], ref, draws=99)
    *usual, long, turns = s.prompts["outliers"].to_list()
    assert usual == [[]] * 30
    assert long == ["900 tokens, longer than all of the mix"]
    assert turns[-1] == "4 user turns, more than all of the mix"
    assert s.prompts["length_percentile"][30] == 1.0
    rows = {r["what"]: r for r in s.structure}
    assert rows["median tokens"]["p_value"] > 0.05
    assert rows["tools"] == {"what": "tools", "reference": 0.0, "candidates": 0.0, "p_value": 1.0}


def test_repeated_prompts_are_seen(ref):
    s = scoring.score(texts(20, 8) * 10, ref, draws=199)
    assert s.p_mix < 0.05
    assert s.coverage < 0.7
    assert s.verdict_code == "no"


def test_shares_add_up_and_overlap_is_what_they_share(good):
    for table, overlap in ((good.domains, good.domain_overlap), (good.clusters, good.mix_overlap)):
        mine, theirs = table["reference_share"].to_numpy(), table["candidate_share"].to_numpy()
        assert mine.sum() == pytest.approx(1.0)
        assert theirs.sum() == pytest.approx(1.0)
        assert np.minimum(mine, theirs).sum() == pytest.approx(overlap)


def test_set_means_are_means_of_prompts(good):
    assert good.cross_entropy == pytest.approx(good.prompts["cross_entropy"].mean())
    assert good.closeness == pytest.approx(good.prompts["closeness"].mean())
    belong = good.prompts["belongs"].mean()
    assert good.fidelity == pytest.approx(min(1.0, belong / 0.95))


def test_intervals_hold_their_values(good, bad):
    for s in (good, bad):
        for name, (low, high) in s.intervals.items():
            assert low <= getattr(s, name) <= high, name
        assert set(s.intervals) >= {"fidelity", "coverage", "excess", "noise_floor", "mix_overlap", "domain_overlap"}


def test_influence_is_the_distance_less_that_of_the_others(ref):
    prompts = texts(8, 3)
    whole = scoring.score(prompts, ref, draws=99)
    for i in (0, 5):
        rest = scoring.score(prompts[:i] + prompts[i + 1 :], ref, draws=99)
        assert whole.prompts["influence"][i] == pytest.approx(whole.distance - rest.distance, abs=1e-5)


def test_nearest_rows_are_rows_of_the_mix(good, ref):
    stored = set(ref.sample["text"].to_list())
    for row in good.prompts.head(20).iter_rows(named=True):
        assert len(row["nearest"]) == 3
        assert row["nearest_similarity"] == row["nearest"][0]["similarity"]
        for near in row["nearest"]:
            assert set(near) == NEAREST_KEYS
            assert near["text"] in stored  # all shorter than the cut
            assert near["source"] in MIX


# ---------------------------------------------------------------------------------------------- what may not change it

OWN = (
    "typicality",
    "belongs",
    "cross_entropy",
    "closeness",
    "domain",
    "cluster",
    "nearest_similarity",
    "nearest",
    "n_tokens",
    "length_percentile",
    "outliers",
    "leaked",
    "leak",
)


def test_a_prompt_scores_the_same_alone_in_ten_and_in_a_thousand(ref):
    prompts = texts(5, 21) + texts(5, 22, ("trivia", "translate"))
    crowd = prompts + texts(990, 23, tuple(WORDS), None)
    big = scoring.score(crowd, ref, draws=99).prompts
    ten = scoring.score(prompts, ref, draws=99).prompts
    for i, prompt in enumerate(prompts):
        alone = scoring.score([prompt], ref, draws=99).prompts
        for name in OWN:
            assert alone[name].to_list()[0] == ten[name].to_list()[i] == big[name].to_list()[i], name


def test_so_do_real_prompts_against_a_built_reference(example_build):
    """1,000 real prompts of 37 sources, with the tokenizer, labeller and files of a build."""
    data = ROOT.parent / "shared" / "data"
    if not data.is_dir():
        pytest.skip(f"no shared prompts at {data.name}")
    from promptkit.candidates import read_candidates
    from promptkit.reference import load_reference

    files = [sorted(d.glob("*.jsonl"))[:1] for d in sorted(data.iterdir()) if d.is_dir()]
    pool = [p for (f,) in filter(None, files) for p in read_candidates(f)[:40]][:1000]
    built = load_reference(example_build / "reference")
    ten = pool[3::100]
    crowd = scoring.score(pool, built, draws=99).prompts
    few = scoring.score(ten, built, draws=99).prompts
    for i, prompt in enumerate(ten):
        alone = scoring.score([prompt], built, draws=99).prompts
        for name in OWN:
            assert alone[name].to_list()[0] == few[name].to_list()[i] == crowd[name].to_list()[3 + 100 * i], name


def test_the_order_of_prompts_changes_nothing_about_the_set(ref):
    prompts = texts(100, 40)  # 100 of 425 held-out rows
    a = scoring.score(prompts, ref, draws=199).to_json()
    b = scoring.score(prompts[::-1], ref, draws=199).to_json()
    for key in STABLE - {"prompts"}:
        assert a[key] == b[key], key
    assert [p["influence"] for p in a["prompts"]] == [p["influence"] for p in b["prompts"][::-1]]


def test_same_seed_same_answer_other_seed_other_draws(ref):
    prompts = texts(30, 41)
    first, again, other = (scoring.score(prompts, ref, draws=199, seed=s).to_json() for s in (1, 1, 2))
    assert first == again
    assert first["noise_floor"] != other["noise_floor"]
    assert first["distance"] == other["distance"]


def test_a_saved_reference_gives_the_same_score(ref, tmp_path):
    path = ref.save(tmp_path / "reference")
    prompts = texts(25, 42)
    mine, theirs = scoring.score(prompts, ref, draws=99).to_json(), scoring.score(prompts, path, draws=99).to_json()
    assert mine == theirs
    assert theirs["reference"]["path"] == str(path)


def test_rows_of_the_mix_are_scored_without_themselves(ref):
    held = ref.sample.filter("heldout")["text"].to_list()[:60]
    fitted = ref.sample.filter(~pl.col("heldout"))["text"].to_list()[:60]
    typicality = {
        name: scoring.score(t, ref, draws=99).prompts["typicality"] for name, t in (("held", held), ("fit", fitted))
    }
    assert abs(typicality["held"].mean() - typicality["fit"].mean()) < 0.12
    assert (
        typicality["fit"].max() < 1.0 or typicality["fit"].mean() < 0.7
    )  # a row that saw itself would be typical as none


def test_a_pack_drawn_from_the_mix_covers_it(ref):
    drawn = ref.sample.sample(120, seed=3)["text"].to_list()
    s = scoring.score(drawn, ref, draws=99)
    assert 0.85 < s.coverage < 1.2
    assert s.verdict_code == "yes"
    assert s.prompts["leaked"].all()


# ---------------------------------------------------------------------------------------------- JSON


def finite(value):
    if isinstance(value, dict):
        return all(finite(v) for v in value.values())
    if isinstance(value, list):
        return all(finite(v) for v in value)
    return not isinstance(value, float) or math.isfinite(value)


def test_json_has_the_stable_keys_and_no_nan(good, bad, small):
    one = scoring.score(["Fix this bug: pytest"], small)
    for s in (good, bad, one):
        j = s.to_json()
        assert set(j) == STABLE | {"schema_version", "chance"}
        assert json.loads(json.dumps(j, allow_nan=False)) == j
        assert finite(j)
        assert all(set(p) == PROMPT_KEYS for p in j["prompts"])
        assert [p["index"] for p in j["prompts"]] == list(range(s.n))
        assert j["representative"] is (j["verdict_code"] == "yes")
    assert set(good.to_json()["domains"][0]) == {"domain", "reference_share", "candidate_share", "p_value"}
    shares = {"cluster", "name", "domain", "reference_share", "candidate_share", "p_value"}
    assert set(good.to_json()["clusters"][0]) == shares
    assert set(good.to_json()["equivalence"]) == {"margin", "p_value", "n_needed"}
    assert set(good.to_json()["structure"][0]) == {"what", "reference", "candidates", "p_value"}
    assert set(good.to_json()["power"][0]) == {"n", "change", "power"}


def test_attributes_are_the_json_keys(good):
    for key in STABLE:
        assert hasattr(good, key), key
    for name in ("prompts", "domains", "clusters", "missing"):
        assert isinstance(getattr(good, name), pl.DataFrame)
    assert set(good.missing.columns) == {"cluster", "name", "domain", "reference_share", "candidate_share", "examples"}
    assert good.null["distance"].mean() == pytest.approx(good.noise_floor)
    with pytest.raises(AttributeError):
        good.n = 3


# ---------------------------------------------------------------------------------------------- responses, weights, labels


def with_answers(prompts, answers):
    out = []
    for i, (p, a) in enumerate(zip(prompts, answers, strict=True)):
        messages = [{"role": "user", "content": p}]
        out.append(Prompt(f"p{i}", messages, response=a))
    return out


def test_responses_are_scored_where_there_are_any(ref):
    prompts = texts(10, 50)
    like = ["sure : " + " ".join(p.split()[::-1][:12]) for p in prompts]
    foreign = ["Es war einmal ein König, der hatte drei Töchter und ein großes Schloss."] * 10
    good = scoring.score(with_answers(prompts, like), ref, draws=99)
    bad = scoring.score(with_answers(prompts, foreign), ref, draws=99)
    assert good.responses["n"] == bad.responses["n"] == 10
    assert good.responses["fidelity"] > 0.7 > bad.responses["fidelity"]
    assert good.responses["cross_entropy"] < bad.responses["cross_entropy"]
    assert set(good.to_json()["prompts"][0]) == PROMPT_KEYS | {"response_typicality", "response_cross_entropy"}
    half = scoring.score(with_answers(prompts, [like[0], *[None] * 9]), ref, draws=99)
    assert half.responses["n"] == 1
    assert [("response_typicality" in p) for p in half.to_json()["prompts"]] == [True] + [False] * 9
    assert scoring.score(prompts, ref, draws=99).responses is None


def test_weights_count_as_repetition(ref):
    prompts = texts(6, 60)

    def weighted(weights):
        messages = [[{"role": "user", "content": p}] for p in prompts]
        return [Prompt(f"p{i}", m, weight=w) for i, (m, w) in enumerate(zip(messages, weights, strict=True))]

    a = scoring.score(weighted([3, 1, 1, 1, 1, 1]), ref, draws=99)
    b = scoring.score([prompts[0]] * 2 + prompts, ref, draws=99)
    assert a.distance == pytest.approx(b.distance, abs=1e-5)
    assert a.mix_overlap == pytest.approx(b.mix_overlap)
    assert a.cross_entropy == pytest.approx(b.cross_entropy)
    equal = scoring.score(weighted([2] * 6), ref, draws=99).to_json()
    plain = scoring.score(prompts, ref, draws=99).to_json()
    assert equal["p_value"] == plain["p_value"]
    with pytest.raises(InputError, match="weights"):
        scoring.score(weighted([0] * 6), ref)


def test_a_benchmark_that_runs_one_kind_ten_times_as_often(ref, tmp_path):
    """Forty prompts of each of two kinds, one run ten times: what counts is what is run, and it tells less."""
    prompts = texts(40, 61, ("sort",)) + texts(40, 62, ("shell",))
    path = tmp_path / "p.csv"
    path.write_text("prompt,runs\n" + "".join(f'"{t}",{10 if i < 40 else 1}\n' for i, t in enumerate(prompts)))
    from promptkit.candidates import read_candidates

    weighed = scoring.score(read_candidates(path, weights="runs"), ref, draws=199)
    plain = scoring.score(read_candidates(path), ref, draws=199)
    assert (plain.n, plain.n_effective) == (80, 80.0)
    assert weighed.n == 80
    assert weighed.n_effective == pytest.approx(440**2 / (40 * 100 + 40), abs=1e-6)
    repeated = scoring.score([p for i, p in enumerate(prompts) for _ in range(10 if i < 40 else 1)], ref, draws=99)
    for key in ("distance", "mix_overlap", "domain_overlap", "typicality", "cross_entropy", "fidelity"):
        assert getattr(weighed, key) == pytest.approx(getattr(repeated, key), abs=1e-5), key
        assert getattr(weighed, key) != pytest.approx(getattr(plain, key), abs=1e-5) or key in ("fidelity",), key
    assert weighed.noise_floor > plain.noise_floor
    assert np.ptp(weighed.intervals["fidelity"]) > np.ptp(plain.intervals["fidelity"])
    for a, b in zip(weighed.prompts["typicality"], plain.prompts["typicality"], strict=True):
        assert a == b


def test_a_candidates_own_domain_is_kept(ref):
    messages = [{"role": "user", "content": "Write a bash script that will find files"}]
    s = scoring.score(
        [Prompt("a", messages, domain="math"), Prompt("b", messages, domain="my own words")] * 2, ref, draws=99
    )
    assert s.prompts["domain"].to_list()[:2] == ["math", "my own words"]
    assert (
        "my own words" not in s.domains["domain"].to_list()
    )  # no such domain in any mix: the labeller's word is compared
    assert s.domains.filter(domain="math")["candidate_share"].item() == 0.5


def test_a_mix_by_tokens_counts_by_tokens():
    tokens = [200 if t.startswith(OPEN["issue"]) else 5 for t in texts(600, 0)]
    ref = reference.fit(frame(600, 0, tokens=tokens), tokenizer=load_tokenizer("words"), weight="tokens", label=label)
    by_tokens = scoring.score(texts(60, 70, ("issue",)), ref, draws=199)
    by_rows = scoring.score(texts(60, 70, ("issue",)), ref, draws=199, weight="rows")
    assert by_tokens.ratio < by_rows.ratio
    assert by_tokens.mix_overlap > by_rows.mix_overlap + 0.3
    assert by_rows.p_mix < 0.01


# ---------------------------------------------------------------------------------------------- weird input


def test_one_prompt_has_its_own_values_and_no_set(ref):
    s = scoring.score(["Write a bash script that will remove files"], ref)
    assert s.n == 1
    assert "too few for a set" in s.verdict
    assert s.verdict_code == "unsure"
    for name in ("distance", "noise_floor", "ratio", "excess", "p_value", "fidelity", "coverage", "mix_overlap"):
        assert getattr(s, name) is None
    row = s.prompts.row(0, named=True)
    assert row["typicality"] > 0
    assert row["influence"] is None
    assert s.cross_entropy == row["cross_entropy"]


@pytest.mark.parametrize("n", [2, 3, 9])
def test_a_handful_gets_everything_with_what_it_cannot_see(ref, n):
    s = scoring.score(texts(n, n), ref, draws=199)
    assert s.p_value is not None
    assert s.coverage is not None
    assert s.ratio is not None
    assert s.verdict_code != "yes"
    assert {r["n"] for r in s.power} >= {n, 10, 20}


def test_a_reference_of_fifty_rows_gives_distances_and_no_p_values():
    s = scoring.score(texts(20, 1), fit(50))
    assert (s.p_value, s.p_fidelity, s.p_mix, s.fidelity, s.noise_floor, s.ratio) == (None,) * 6
    assert s.distance > 0
    assert s.mix_overlap > 0
    assert s.prompts["typicality"].null_count() == 20
    assert s.prompts["belongs"].null_count() == 20
    assert "only 50 rows" in s.verdict
    assert s.verdict_code == "unsure"
    json.dumps(s.to_json(), allow_nan=False)


def test_crossed_folds_accept_the_mix_and_refuse_another(small):
    assert scoring.score(texts(40, 12), small, draws=499).p_value > 0.01
    assert scoring.score(texts(40, 13, ("trivia", "translate")), small, draws=499).p_value < 0.01


def test_more_candidates_than_held_out_rows(small):
    s = scoring.score(texts(150, 14), small, draws=199)  # 60 rows held out of the first fold
    assert s.p_value > 0.01
    assert s.ratio == pytest.approx(1.0, abs=0.4)
    assert any(r["power"] is None for r in s.power)


def test_identical_prompts_are_a_set_of_one_text(ref):
    s = scoring.score(["Fix this bug: pytest failing regression"] * 30, ref, draws=199)
    assert s.verdict_code == "no"
    assert s.prompts["typicality"].n_unique() == 1
    assert [p for p in s.prompts["influence"] if p is None] == []


def test_a_mix_without_words_still_gives_an_answer():
    blank = frame(120, 0).with_columns(pl.lit("?").alias("text"))
    ref = reference.fit(blank, tokenizer=load_tokenizer("words"), label=label)
    s = scoring.score(["?", "Fix this bug", "find files"], ref, draws=99)
    assert s.n == 3
    assert not s.prompts["belongs"][1]
    json.dumps(s.to_json(), allow_nan=False)


def test_long_short_and_strange_prompts_get_values(ref):
    strange = ["x", "word " * 20_000, "日本語のテキストです。", "\U0001f600", "def", "a\x00b", "\u202eevil"]
    s = scoring.score(strange, ref, draws=99)
    assert s.prompts["typicality"].null_count() == 0
    assert s.prompts["typicality"].is_between(0, 1).all()
    assert not s.prompts["belongs"][2]


@pytest.mark.parametrize("nothing", [[], (), pl.DataFrame({"prompt": []})])
def test_no_candidates_is_an_input_error(ref, nothing):
    with pytest.raises(InputError, match="no candidates"):
        scoring.score(nothing, ref)


def test_empty_prompts_are_named(ref):
    with pytest.raises(InputError, match=r"candidates 1, 3: 2 of 4 prompts have no text"):
        scoring.score(["Fix this bug", " \n", "find files", ""], ref)


def test_wrong_arguments_are_refused(ref):
    with pytest.raises(UsageError, match="draws is 5"):
        scoring.score(["a b"], ref, draws=5)
    with pytest.raises(UsageError, match="weight 'bytes' is unknown"):
        scoring.score(["a b", "c d"], ref, weight="bytes")
    with pytest.raises(InputError, match="candidate 1: found int"):
        scoring.score(["a b", 7], ref)
    with pytest.raises(UsageError, match="got one Prompt"):
        scoring.score(Prompt("a", [{"role": "user", "content": "a b"}]), ref)


def test_vectors_that_are_not_finite_name_the_prompts(ref):
    broken = copy.copy(ref)
    broken.embed = lambda texts, ids=None: np.where(
        np.arange(len(texts))[:, None] == 2, np.nan, ref.embed(texts, ids=ids)
    )
    with pytest.raises(InputError, match="rows 2 hold NaN or infinity"):
        scoring.score(texts(5, 1), broken)


def test_every_form_of_candidates_gives_the_same_score(ref, tmp_path):
    strings = texts(12, 80)
    messages = [[{"role": "user", "content": t}] for t in strings]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": t}) + "\n" for t in strings), encoding="utf-8")
    forms = {
        "messages": messages,
        "mappings": [{"prompt": t} for t in strings],
        "prompts": [Prompt(prompt_id(m), m) for m in messages],
        "path": path,
        "frame of prompts": pl.DataFrame({"prompt": strings}),
        "frame of messages": pl.DataFrame({"messages": [canonical(m).decode() for m in messages]}),
        "generator": (t for t in strings),
    }
    expected = scoring.score(strings, ref, draws=99).to_json()
    for name, form in forms.items():
        assert scoring.score(form, ref, draws=99).to_json() == expected, name


def test_what_is_compared_is_the_opening(ref):
    opening = {"role": "user", "content": "Write a bash script that will find files"}
    more = [opening, {"role": "assistant", "content": "done"}, {"role": "user", "content": "Wer war der König?"}]
    default = [{"role": "system", "content": sorted(conversation.DEFAULT_SYSTEMS)[0]}, opening]
    found = scoring.score([[opening], more, default], ref, draws=99).prompts
    assert found["typicality"].n_unique() == 1


def test_alpha_is_where_belonging_ends():
    assert ALPHA == 0.05
    r = Rows(
        np.eye(2, dtype=np.float32),
        np.zeros(2, int),
        np.zeros(2, int),
        np.array([0.05, 0.0499]),
        np.arange(2),
        np.full(2, 0.5),
    )
    assert len(r.take(np.array([1]))) == 1
    assert r.take(np.array([1])).weights.tolist() == [1.0]
