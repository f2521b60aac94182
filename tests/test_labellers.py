"""Labels of the user's: a domain by source wins, a labeller of one's own is imported by name, and scores ask for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLES, Command

import promptkit
from promptkit import labellers
from promptkit.errors import InputError, UsageError

MIX = EXAMPLES / "training_mix"


def by_length(texts: Sequence[str], **_: Any) -> list[str]:
    return ["terse" if len(t) < 400 else "wordy" for t in texts]


@pytest.fixture(scope="module")
def text_mix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources of plain rows, 60 each."""
    root = tmp_path_factory.mktemp("mix")
    for source, what in (("A1", "Translate into French: it is {} o'clock."), ("B2", "Which river is {} km long?")):
        (root / source).mkdir()
        lines = [json.dumps({"prompt": what.format(i), "response": f"Number {i}."}) for i in range(60)]
        (root / source / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return root


def test_a_sources_domain_wins_and_is_sure(text_mix: Path, tmp_path: Path) -> None:
    built = promptkit.build(text_mix, size=20, out=tmp_path / "out", processes=1, domains={"A1": "writing"})
    told = {s["source"]: s for s in built.sources}
    assert (told["A1"]["domain"], told["A1"]["domain_share"], told["A1"]["unsure"]) == ("writing", 1.0, 0.0)
    assert told["B2"]["domain"] == "encyclopedic"
    pack = promptkit.load_pack(built.pack)
    assert {(p.source, p.domain) for p in pack} >= {("A1", "writing")}
    assert not any(p.domain == "translation" for p in pack)
    reference = promptkit.load_reference(built.reference)
    assert reference.recipe["domains"] == {"A1": "writing"}
    assert dict(zip(reference.domains["domain"], reference.domains["share"], strict=True))["writing"] == 0.5


def test_unknown_sources_and_domains_are_refused(text_mix: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="domain of 'A7': no such source"):
        promptkit.build(text_mix, out=tmp_path / "out", processes=1, domains={"A7": "coding"})
    with pytest.raises(UsageError, match="'codin' is none") as caught:
        promptkit.build(text_mix, out=tmp_path / "out", domains={"A1": "codin"})
    assert "did you mean 'coding'" in (caught.value.hint or "")


def test_a_labeller_of_ones_own_labels_and_is_needed_again(text_mix: Path, tmp_path: Path) -> None:
    built = promptkit.build(
        text_mix, size=20, out=tmp_path / "out", processes=1, labeller=by_length, domains={"B2": "rivers"}
    )
    reference = promptkit.load_reference(built.reference)
    assert set(reference.domains["domain"]) == {"terse", "rivers"}
    with pytest.raises(UsageError, match=r"labelled by .*by_length"):
        promptkit.score(["Translate into French: goodbye."], reference)
    score = promptkit.score(["Translate into French: goodbye.", "x " * 300], reference, labeller=by_length)
    assert score.prompts["domain"].to_list() == ["terse", "wordy"]
    assert promptkit.score(built.pack, reference).n == 20  # a pack says its own domains


def test_the_command_imports_a_labeller_from_the_working_directory(
    text_mix: Path, tmp_path: Path, promptkit_command: Command
) -> None:
    (tmp_path / "mine.py").write_text("def label(texts, messages, tools):\n    return ['mine'] * len(texts)\n")
    (tmp_path / "pyproject.toml").write_text('[tool.promptkit.build]\ndomain = ["B2=math"]\n')
    args = ["build", "--from", text_mix, "--size", "10", "--processes", "1", "--labeller", "mine:label", "--json"]
    done = promptkit_command(*args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {s["source"]: s["domain"] for s in json.loads(done.stdout)["sources"]} == {"A1": "mine", "B2": "math"}
    for wrong in ("mine", "mine:nothing", "not_there:label"):
        failed = promptkit_command(*args[:-2], wrong, cwd=tmp_path)
        assert failed.returncode == 2, failed.stderr


@pytest.mark.parametrize("answer", [[], [None, "coding"], ["", "coding"], [3, "coding"]])
def test_what_a_labeller_answers_is_checked(answer: list[Any]) -> None:
    with pytest.raises(InputError, match="labeller"):
        labellers.labels(["a", "b"], label=lambda texts, messages, tools: answer)
