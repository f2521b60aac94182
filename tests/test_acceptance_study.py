"""The acceptance study measures what speculative decoding does: its shortcuts against the slow way, on tiny models."""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import EXAMPLES

torch = pytest.importorskip("torch", reason="the study trains models")


@pytest.fixture(scope="module")
def study() -> Any:
    """The scripts import one another by name, as they do when they are run from their folder."""
    sys.path.insert(0, str(EXAMPLES / "acceptance_study"))
    torch.set_num_threads(1)
    names = ("models", "acceptance", "train", "measure", "prepare", "analyse")
    box = ModuleType("study")
    for name in names:
        setattr(box, name, importlib.import_module(name))
    yield box
    sys.path.pop(0)
    for name in names:
        sys.modules.pop(name, None)


def speculate(p: Any, q: Any, k: int, length: int, rng: Any) -> tuple[int, list[int]]:
    """Run speculative sampling by the book on memoryless p and q: number of steps, drafts kept in each."""
    done, kept = 1, []
    while done < length:
        n = 0
        while n < k and rng.random() < np.minimum(p, q).sum():  # chance that a draft is kept, summed over drafts
            n += 1
        kept.append(n)
        done += n + 1
    return len(kept), kept


def test_expected_steps_are_those_of_speculative_sampling(study: Any) -> None:
    """Texts are drawn from p alone and alpha is read off them; the book draws drafts and refuses them."""
    rng = np.random.default_rng(0)
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    k, length, n = 3, 12, 4000
    y = torch.from_numpy(rng.choice(3, size=(n, length), p=p))
    a = study.acceptance.alpha(torch.from_numpy(p)[y], torch.from_numpy(q)[y])
    chances = torch.zeros(n, length, k, dtype=torch.float64)
    for i in range(k):
        chances[:, : length - 1 - i, i] = a[:, 1 + i :]
    tokens, steps, tried, kept = study.acceptance.expect(chances, torch.full((n,), length), k)
    book = np.array([speculate(p, q, k, length, rng)[0] for _ in range(n)])
    assert float(steps.mean()) == pytest.approx(book.mean(), abs=4 * book.std() / n**0.5 + 0.02)
    assert (tokens == length - 1).all()
    # Without ends, the acceptance length of a memoryless pair is a geometric sum.
    rate = float(np.minimum(p, q).sum())
    pooled = study.acceptance.acceptance_length(tried.sum(0, keepdim=True), kept.sum(0, keepdim=True))
    assert float(pooled) == pytest.approx(1 + rate + rate**2 + rate**3, abs=0.03)


def test_greedy_chains_are_counted_by_hand(study: Any) -> None:
    """Six tokens, K = 2: after token 1 both drafts are right, then the first is wrong, then the text ends."""
    chances = torch.zeros(1, 6, 2)
    chances[0, 0] = torch.tensor([1.0, 1.0])  # tokens 2 and 3 kept, 4 is the bonus
    chances[0, 3] = torch.tensor([0.0, 1.0])  # token 5 refused
    chances[0, 4] = torch.tensor([1.0, 0.0])  # token 6 kept, the end
    tokens, steps, tried, kept = study.acceptance.expect(chances, torch.tensor([6]), 2)
    assert (float(tokens), float(steps)) == (5.0, 3.0)
    assert tried.tolist() == [[3.0, 1.0]]
    assert kept.tolist() == [[2.0, 1.0]]
    assert float(study.acceptance.acceptance_length(tried, kept)) == pytest.approx(1 + 2 / 3 + 2 / 3)


def test_unrolled_head_is_the_head_run_step_by_step(study: Any) -> None:
    torch.manual_seed(0)
    size = study.models.Size(16, 1, 2)
    head = study.models.Head(size).eval()
    for parameter in head.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    t, steps, d = 9, 4, 16
    hidden, e = torch.randn(1, t, d), torch.randn(1, t, d)
    with torch.no_grad():
        unrolled = torch.stack(list(head.unroll(hidden, e, steps)))[:, 0]

        def one(past: list[Any], feature: Any, at: int) -> Any:
            """Return what the head says at position `at` after the entries in `past`, which grows by its own."""
            x = head.join(torch.cat([head.norm_h(feature), head.norm_e(e[0, at])]))[None, None]
            q, k, v = head.block.qkv(x, torch.tensor([[at]]))
            past.append((k, v))
            keys, values = (torch.cat([entry[j] for entry in past], dim=2) for j in (0, 1))
            attended = torch.nn.functional.scaled_dot_product_attention(q, keys, values)
            return head.norm(head.block.finish(x, attended))[0, 0]

        for start in (2, 4):  # the last token known when the chain begins
            past: list[Any] = []
            for at in range(start + 1):
                said = one(past, hidden[0, at - 1] if at else torch.zeros(d), at)
            for i in range(steps):
                assert torch.allclose(said, unrolled[i, start + i], atol=1e-4), (start, i)
                if i + 1 < steps:
                    said = one(past, said, start + i + 1)


def test_generation_with_a_cache_is_generation_without(study: Any) -> None:
    torch.manual_seed(1)
    model = study.models.LM(50, study.models.Size(16, 2, 2)).eval()
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    prompts = [np.array([1, 7, 9, 2]), np.array([1, 30, 2])]
    found = model.generate(prompts, temperature=0.0, max_new=6, rng=torch.Generator())
    for prompt, answer in zip(prompts, found, strict=True):
        ids = list(prompt)
        with torch.no_grad():
            while len(ids) < len(prompt) + len(answer):
                ids.append(int(model.logits(model(torch.tensor([ids])))[0, -1].argmax()))
        assert ids[len(prompt) :] == answer.tolist()


def test_a_drafter_that_is_the_target_is_always_accepted(study: Any) -> None:
    torch.manual_seed(2)
    target = study.models.LM(40, study.models.Size(16, 2, 2)).eval()
    prompts = [np.array([1, 5, 6, 2]), np.array([1, 8, 2])]
    answers = target.generate(prompts, temperature=0.0, max_new=7, rng=torch.Generator())
    texts = [np.concatenate([p, a]) for p, a in zip(prompts, answers, strict=True)]
    firsts = np.array([4, 3])
    found, lengths, entropy, nll = study.measure.chances(target, {"x": target}, texts, firsts, "greedy", "cpu")
    _, steps, tried, kept = study.acceptance.expect(found["x"], lengths, 3)
    assert torch.equal(tried, kept)
    assert steps.tolist() == [-(-(n - 1) // 4) for n in lengths.tolist()]
    assert (entropy > 0).all()
    assert (nll > 0).all()


def test_a_test_prompt_has_no_twin_in_training(study: Any) -> None:
    sources, units = np.array(["x"] * 40 + ["y"] * 40), np.arange(80) % 50
    test = study.prepare.split(sources, units)
    assert 10 <= test.sum() <= 20
    assert len(np.unique(units[test])) == test.sum()


def test_rank_correlation_is_spearman_and_its_interval_is_of_sources(study: Any) -> None:
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    source = np.repeat(np.arange(12), 30)
    x = rng.normal(size=360)
    y = x + rng.normal(size=360) + 2 * rng.normal(size=12)[source]
    rho, low, high = study.analyse.spearman(x, y, np.zeros(360), source)
    assert rho == pytest.approx(spearmanr(x, y)[0], abs=1e-3)
    assert low < rho < high
    within = study.analyse.spearman(x, y, source, source)[0]
    assert within == pytest.approx(np.mean([spearmanr(x[source == s], y[source == s])[0] for s in range(12)]), abs=1e-3)
    assert within > rho


def test_kept_tables_follow_from_kept_results(study: Any) -> None:
    """One figure of the paper, recomputed from the Parquet files beside it."""
    results = EXAMPLES / "acceptance_study" / "results"
    d = study.analyse.load(results)
    tables = json.loads((results / "tables.json").read_text())
    for name in ("typicality", "cross_entropy", "response_cross_entropy"):
        x = study.analyse.NEAR[name] * d["score"][name].ravel().astype(float)
        y = d["al"]["head/sampled_4"]
        found = study.analyse.spearman(x, y.ravel(), np.zeros(y.size), np.tile(d["source"], len(y)))
        assert found == pytest.approx(tables["prompt head/sampled_4"][name]["pooled"], abs=0.002)


def test_public_data_sets_become_rows(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(name: str, config: str | None, *, split: str) -> list[dict[str, Any]]:
        asked.append((name, config, split))
        columns = next((prompt, answer) for n, _, _, prompt, answer, _ in study.prepare.HUB if n == name)
        return [{columns[0]: f"question of {name}", columns[1]: ["first", "second"]}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = study.prepare.read_hub()
    assert [a[0] for a in asked] == [h[0] for h in study.prepare.HUB]
    assert rows[0] == {
        "id": "gsm8k/0",
        "source": "gsm8k",
        "domain": "math",
        "prompt": "question of openai/gsm8k",
        "response": "first",
    }
