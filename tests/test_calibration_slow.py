"""Real text: false alarms over many refits, power against other benchmarks, what is called foreign. Minutes: -m slow.

The mix is 13 coding and agentic sources, as in the study that the score rests on; texts lie beside the checkout and are
never copied into it.
"""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from conftest import SHARED

from promptkit import domains, reference, scoring
from promptkit.conversation import canonical, opening, prompt_id
from promptkit.tokenizers import load_tokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="../shared/data is not beside this checkout"),
]

MIX = (
    "agentbench", "aider_swe_bench", "bfcl", "bigcodebench", "cruxeval", "glaive_toolcall", "gpteacher_code",
    "mini_swe_agent", "reason_tool_use", "swebench_verified", "tau_bench", "toolbench", "webarena",
)  # fmt: skip
FOREIGN = (
    "aqua_rat", "arena_hard", "bbh", "gpteacher_roleplay", "gsm8k", "ifeval", "logic_grid", "math", "mmlu", "mt_bench",
    "nq_open", "ntrex", "pubmedqa", "scitldr", "self_instruct", "spec_bench", "webquestions", "writingbench",
)  # fmt: skip
REFITS, FIT_ROWS = 20, 3000


def read(source):
    with open(SHARED / "data" / source / f"{source}.jsonl", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield row["messages"] if "messages" in row else [{"role": "user", "content": row["prompt"]}]


@pytest.fixture(scope="module")
def texts():
    return {source: [opening(m) for m in read(source)] for source in (*MIX, *FOREIGN, "humaneval")}


@pytest.fixture(scope="module")
def mix(texts):
    return [(source, text) for source in MIX for text in texts[source]]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(SHARED / "tokenizers" / "kimi_format")


def fit(rows, tokenizer, seed):
    messages = [[{"role": "user", "content": text}] for _, text in rows]
    n = len(rows)
    frame = pl.DataFrame(
        {
            "shard": [f"{source}/a.jsonl" for source, _ in rows],
            "row": list(range(n)),
            "id": [prompt_id(m) for m in messages],
            "source": [source for source, _ in rows],
            "messages": [canonical(m).decode() for m in messages],
            "tools": [None] * n,
            "text": [text for _, text in rows],
            "response_text": [None] * n,
            "n_prompt_tokens": [0] * n,
            "n_response_tokens": [0] * n,
            "n_supervised_tokens": [0] * n,
            "n_turns": [1] * n,
            "has_tools": [False] * n,
            "truncated": [False] * n,
            "language": ["en"] * n,
        },
        schema_overrides={"tools": pl.String, "response_text": pl.String},
    )
    return reference.fit(frame, tokenizer=tokenizer, seed=seed, label=domains.label, masses=domains.masses)


def draw(pool, n, rng):
    return [pool[i] for i in rng.permutation(len(pool))[:n]]


def foreign(texts, n, rng):
    return [str(rng.choice(np.array(texts[s], dtype=object))) for s in rng.choice(FOREIGN, size=n)]


@pytest.fixture(scope="module")
def trials(texts, mix, tokenizer):
    """Return (n, kind) -> p-values of sets against references that have not seen their rows."""
    found = {}
    for seed in range(REFITS):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(mix))
        ref = fit([mix[i] for i in np.sort(order[:FIT_ROWS])], tokenizer, seed)
        rest = [mix[i][1] for i in order[FIT_ROWS:]]
        for n, sets in ((20, 4), (60, 8), (200, 4)):
            for _ in range(sets):
                own = draw(rest, n, rng)
                found.setdefault((n, "in-mix"), []).append(scoring.score(own, ref, draws=499).p_value)
                if n != 60:
                    k = n // 10
                    mixed = own[k:] + foreign(texts, k, rng)
                    found.setdefault((n, "10 % foreign"), []).append(scoring.score(mixed, ref, draws=499).p_value)
        if seed == 0:
            found["reference"] = ref
    return found


@pytest.mark.parametrize("n", [20, 60, 200])
def test_sets_of_the_mix_are_rejected_at_the_nominal_rate(trials, n):
    p = np.array(trials[n, "in-mix"])
    # Sets of one refit share its held-out rows: at n = 200 the rate scatters by 0.1 from one refit to the next.
    low, high = (0.01, 0.09) if n < 200 else (0.0, 0.12)
    assert low <= (p < 0.05).mean() <= high
    assert (p < 0.01).mean() <= 0.03
    assert (p < 0.10).mean() <= 0.18


@pytest.mark.parametrize(("n", "least"), [(20, 0.28), (200, 0.95)])
def test_a_tenth_of_foreign_prompts_is_found(trials, n, least):
    """Against references of 3,000 rows; the study's 6,551 rows see a little more at n = 60 and 200."""
    assert (np.array(trials[n, "10 % foreign"]) < 0.05).mean() >= least


@pytest.mark.parametrize("source", ["mmlu", "nq_open", "gsm8k", "ntrex"])
def test_twenty_prompts_of_another_kind_are_rejected(trials, texts, source):
    ref, rng = trials["reference"], np.random.default_rng(5)
    scores = [scoring.score(draw(texts[source], 20, rng), ref, draws=499) for _ in range(10)]
    assert all(s.p_value < 0.05 and s.verdict_code == "no" for s in scores)
    assert np.mean([s.fidelity for s in scores]) < 0.3
    assert np.mean([s.ratio for s in scores]) > 1.4


def test_humaneval_belongs_more_than_trivia_and_covers_a_sliver(trials, texts):
    ref, rng = trials["reference"], np.random.default_rng(6)
    code, trivia = (scoring.score(draw(texts[s], 150, rng), ref, draws=499) for s in ("humaneval", "nq_open"))
    assert code.fidelity > trivia.fidelity + 0.3
    assert code.coverage < 0.5
    assert code.distance > trivia.distance  # by distance alone code would be the worse: why three parts are told apart


@pytest.mark.parametrize(
    "prompts",
    [
        (
            "Explain the theory of general relativity.",
            "Write a guide to B-trees.",
            "What are the economic implications of AI?",
        ),
        (
            "Explain the theory of general relativity in detail.",
            "Write a comprehensive guide to B-trees.",
            "Discuss the economic implications of artificial intelligence.",
        ),
        (
            "Can you explain Einstein's theory of general relativity in simple terms?",
            "Write a guide to B-trees, with insertion and deletion.",
            "Analyse the economic implications of AI for developing countries.",
        ),
    ],
    ids=["plain", "longer", "spoken"],
)
def test_the_three_prompts_that_started_it_are_no_sample_of_a_coding_mix(trials, prompts):
    s = scoring.score(prompts, trials["reference"])
    assert s.p_value < 0.05
    assert s.verdict_code == "no"
    # One of the three in the shortest wording gets 0.02 to 0.07 on four references: single prompts are borderline.
    assert max(s.prompts["typicality"]) < 0.1
    assert s.prompts["belongs"].to_list().count(False) >= 2
