"""References of the bundled packs: found by name, quick, and each pack is nearest to its own kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Command

import promptkit
from promptkit import bundled
from promptkit.errors import UsageError

NAMES = ["coding-agentic", "encyclopedic", "general", "math-reasoning"]
OWN = {
    "coding-agentic": {"coding", "agentic"},
    "math-reasoning": {"math", "reasoning"},
    "encyclopedic": {"encyclopedic"},
    "general": {"writing", "chat", "translation", "summarization", "rag", "instruction-following"},
}


def test_a_bundled_reference_is_loaded_by_name_and_the_same_each_time() -> None:
    assert list(bundled.packs()) == NAMES
    one, two = promptkit.load_reference("general"), promptkit.load_reference("general")
    assert one.path == "general"
    assert one.fingerprint == two.fingerprint
    assert len(one.sample) == len(promptkit.load_pack("general"))


@pytest.mark.parametrize("name", NAMES)
def test_a_packs_largest_domains_are_its_own(name: str) -> None:
    shares = promptkit.load_reference(name).domains
    own = OWN[name]
    assert set(shares["domain"].to_list()[: len(own)][:2]) <= own
    assert sum(s for d, s in zip(shares["domain"], shares["share"], strict=True) if d in own) > 0.7


def test_the_held_out_half_of_each_pack_is_nearest_to_its_own_other_half() -> None:
    packs = {name: list(promptkit.load_pack(name)) for name in NAMES}
    references = {name: bundled.fit(prompts[::2]) for name, prompts in packs.items()}
    for name, prompts in packs.items():
        scores = {other: promptkit.score(prompts[1::2], r, draws=99) for other, r in references.items()}
        own = scores.pop(name)
        assert own.fidelity > 0.95
        for other, s in scores.items():
            assert own.cross_entropy < s.cross_entropy, (name, other)
            assert own.domain_overlap > 0.95 > 0.2 > s.domain_overlap, (name, other)
            assert s.verdict_code != "yes", (name, other)


def test_the_command_scores_against_a_name_and_lists_it(tmp_path: Path, promptkit_command: Command) -> None:
    (tmp_path / "p.txt").write_text("Translate into Dutch: the train is late.\nWrite a poem about a kettle.\n")
    done = promptkit_command("score", "p.txt", "--against", "general", "--draws", "99", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reference"]["path"] == "general"
    assert "general (comes with promptkit" in promptkit_command("list", cwd=tmp_path).stdout
    wrong = promptkit_command("score", "p.txt", "--against", "generol", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "math-reasoning" in wrong.stderr
    with pytest.raises(UsageError, match="no reference there"):
        promptkit.load_reference(tmp_path / "general")
