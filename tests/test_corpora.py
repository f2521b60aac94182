"""The bundled packs: found by name, whole, made from their sources to the byte, distinct, and as varied as they claim."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import ROOT

from promptkit.conversation import Prompt, opening
from promptkit.domains import DOMAINS
from promptkit.errors import InputError, UsageError
from promptkit.pack import Pack, load_pack, verify

CORPORA = ROOT / "corpora"
SOURCES = sorted(p.stem for p in (CORPORA / "sources").glob("*.jsonl"))
NAMES = [n for n in SOURCES if (CORPORA / n).is_dir()]
# The least that each card promises: prompts with more than one user turn, with tools, and natural languages.
PROMISED = {
    "coding-agentic": (20, 60, 12),
    "math-reasoning": (15, 5, 9),
    "encyclopedic": (5, 0, 3),
    "general": (5, 0, 3),
}
if not SOURCES:
    pytest.skip("the sources of the bundled packs are in the repository only", allow_module_level=True)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a promptkit-out here would win over the bundled packs


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = util.spec_from_file_location("corpora_make", CORPORA / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pack(name: str) -> Pack:
    return load_pack(CORPORA / name)


def users(prompt: Prompt) -> int:
    return sum(m["role"] == "user" for m in prompt.messages)


def test_every_source_has_been_built() -> None:
    assert NAMES == SOURCES, "run python corpora/make.py"


@pytest.mark.parametrize("name", NAMES)
def test_pack_is_found_by_name_and_whole(name: str) -> None:
    found = load_pack(name)
    # In a checkout this is corpora/ itself, after an install the copy that was installed: the same bytes.
    assert found.path is not None
    assert Path(found.path).parts[-2:] == (name, found.version)
    assert (Path(found.path) / "prompts.jsonl").read_bytes() == (
        CORPORA / name / found.version / "prompts.jsonl"
    ).read_bytes()
    assert verify(name) == {"ok": True, "problems": []}
    assert len(found) >= 200
    assert len({p.id for p in found}) == len(found)
    assert load_pack(found.citation).content_hash == found.content_hash


@pytest.mark.parametrize("name", NAMES)
def test_sources_give_the_committed_bytes(name: str, make: ModuleType, tmp_path: Path) -> None:
    built = make.build(name, out=tmp_path)
    there = {p.relative_to(built): p.read_bytes() for p in built.rglob("*") if p.is_file()}
    committed = CORPORA / name / built.name
    assert there == {p.relative_to(committed): p.read_bytes() for p in committed.rglob("*") if p.is_file()}


def test_no_two_prompts_are_nearly_the_same() -> None:
    from promptkit.leakage import near_duplicate_groups

    prompts = [(name, p) for name in NAMES for p in pack(name)]
    for view in (lambda p: opening(p.messages), lambda p: "\n".join(m["content"] for m in p.messages)):
        groups = near_duplicate_groups([view(p) for _, p in prompts]).tolist()
        twins = {g for g, n in Counter(groups).items() if n > 1}
        assert [(n, view(p)[:60]) for (n, p), g in zip(prompts, groups, strict=True) if g in twins] == []


def test_no_long_phrase_is_a_template() -> None:
    """No run of ten words opens the user turn of two prompts of a pack: that is how nouns swapped in a frame look."""
    for name in NAMES:
        starts = Counter(" ".join(next(m["content"] for m in p.messages if m["role"] == "user").split()[:10])
                         for p in pack(name))  # fmt: skip
        assert [s for s, n in starts.items() if n > 1] == []


@pytest.mark.parametrize("name", NAMES)
def test_pack_is_as_varied_as_it_claims(name: str) -> None:
    turns, tools, languages = PROMISED[name]
    prompts = list(pack(name))
    assert {p.domain for p in prompts} <= set(DOMAINS)
    assert sum(users(p) > 1 for p in prompts) >= turns
    assert sum(p.tools is not None for p in prompts) >= tools
    assert len({p.extra["language"] for p in prompts} - {"und"}) >= languages
    words = sorted(sum(len(m["content"].split()) for m in p.messages) for p in prompts)
    assert words[0] <= 20
    assert words[-1] >= 400
    assert words[len(words) // 2] >= 15


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_can_be_answered_by_a_model(name: str) -> None:
    """It ends where the assistant speaks next; calls match the schemas that are given, results match the calls."""
    for p in pack(name):
        assert p.messages[-1]["role"] in ("user", "tool"), p.id
        assert all(m["role"] in ("system", "user", "assistant", "tool") for m in p.messages), p.id
        assert 1 <= (p.expected_output_tokens or 0) <= 4000, p.id
        schemas = {t["function"]["name"]: t["function"]["parameters"] for t in p.tools or []}
        waiting: list[str] = []
        for m in p.messages:
            if m["role"] == "tool":
                assert m["tool_call_id"] == waiting.pop(0), p.id
                continue
            assert not waiting or m["role"] == "assistant", p.id
            for call in m.get("tool_calls", ()):
                given = json.loads(call["function"]["arguments"])
                schema = schemas[call["function"]["name"]]
                assert set(schema["required"]) <= given.keys() <= schema["properties"].keys(), (p.id, call)
                waiting.append(call["id"])
        assert waiting == [], p.id


@pytest.mark.parametrize("name", NAMES)
def test_no_address_outside_the_reserved_domains(name: str) -> None:
    for p in pack(name):
        for text in strings([p.messages, p.tools]):
            for host in re.findall(
                r"[\w.+-]+@([\w-]+(?:\.[\w-]+)*\.(?:com|org|net|de|fr|io|edu|eu|co|uk|info))\b", text
            ):
                assert re.search(r"(^|\.)example\.(com|org|net)$", host), (p.id, host)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def test_answers_stay_out_of_the_packs(make: ModuleType) -> None:
    rows = make.read_source(CORPORA / "sources" / "math-reasoning.jsonl")
    assert sum("answer" in r for r in rows) >= 100
    assert all("answer" not in r for r in pack("math-reasoning").rows)


def test_packs_are_small() -> None:
    assert sum(p.stat().st_size for n in NAMES for p in (CORPORA / n).rglob("*") if p.is_file()) < 5_000_000


def test_labels_are_written_once_and_then_kept(make: ModuleType) -> None:
    row = {"messages": [{"role": "user", "content": "Wie viele Beine haben sieben Spinnen und vier Käfer zusammen?"}],
           "domain": "math", "tags": ["zählen", "long"], "expected_output_tokens": 40, "licence": "Apache-2.0"}  # fmt: skip
    (once,) = make.labelled([row])
    assert (once["language"], once["tags"]) == ("de", ["lang:de", "zählen"])
    (kept,) = make.labelled([{**once, "language": "en", "tags": ["mine"]}])
    assert (kept["language"], kept["tags"]) == ("en", ["mine"])


def test_bad_sources_are_named(make: ModuleType, tmp_path: Path) -> None:
    bad = tmp_path / "general.jsonl"
    bad.write_text('\n{"messages": []}\n')
    with pytest.raises(InputError, match=r"general\.jsonl line 2"):
        make.read_source(bad)
    bad.write_text('{"messages": [{"role": "user", "content": "Hi"}], "domain": "chat", "tags": [], '
                   '"expected_output_tokens": 5, "licence": "Apache-2.0"}\n')  # fmt: skip
    with pytest.raises(InputError, match="1 prompts without a language"):
        make.build("general", out=tmp_path / "out", sources=tmp_path)
    with pytest.raises(UsageError, match="'nothing'"):
        make.main(["nothing"])
