"""docs/schema/promptkit.schema.json is what `--json` prints: each command's document is valid and has no unnamed key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLES, ROOT, Command
from score_example import score_json

jsonschema = pytest.importorskip("jsonschema", reason="no jsonschema: pip install '.[test]'")
SCHEMA = json.loads((ROOT / "docs/schema/promptkit.schema.json").read_text(encoding="utf-8"))


def check(name: str, document: dict[str, Any]) -> None:
    part = SCHEMA["$defs"]["build" if name == "merge" else name]
    assert name != "merge" or SCHEMA["$defs"]["merge"]["$ref"] == "#/$defs/build"
    jsonschema.Draft202012Validator(part).validate(document)
    assert set(document) <= set(part["properties"]), "a new key must be published"


@pytest.fixture(scope="module")
def results(example_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (pack,) = (example_build / "packs").glob("*/*")
    rows = [json.loads(line) for line in (pack / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    path = tmp_path_factory.mktemp("results") / "results.jsonl"
    path.write_text("".join(json.dumps({"id": r["id"], "al": 2 + i % 7}) + "\n" for i, r in enumerate(rows)))
    return path


# words of a command; PACK, OUT, ... stand for paths
CALLS = {
    "score": ["score", "ESSAYS", "--against", "OUT", "--max-ratio", "1.5", "--draws", "99"],
    "compare": ["compare", "ESSAYS", "ESSAYS", "--against", "OUT"],
    "inspect": ["inspect", "MIX", "--processes", "1"],
    "detokenize": ["detokenize", "MIX", "-o", "rows.jsonl", "--processes", "1"],
    "build": ["build", "--from", "MIX", "--size", "20", "--processes", "1"],
    "merge": ["merge", "parts", "--size", "20", "--out", "merged"],
    "export": ["export", "PACK", "--to", "vllm", "--out", "exported"],
    "reweight": ["reweight", "RESULTS", "--pack", "PACK", "--against", "OUT"],
    "verify": ["verify", "PACK"],
    "diff": ["diff", "PACK", "PACK"],
    "list": ["list", "."],
    "report": ["report", "PACK"],
    "doctor": ["doctor"],
    "error": ["verify", "no-such-pack"],
}


@pytest.mark.parametrize("name", CALLS)
def test_documents_are_valid_and_fully_named(
    promptkit_command: Command, example_build: Path, results: Path, tmp_path: Path, name: str
) -> None:
    (pack,) = (example_build / "packs").glob("*/*")
    paths = {"OUT": example_build, "PACK": pack, "RESULTS": results, "MIX": EXAMPLES / "training_mix",
             "ESSAYS": EXAMPLES / "original_benchmark.yaml"}  # fmt: skip

    def document(*words: str) -> dict[str, Any]:
        done = promptkit_command(*(str(paths.get(w, w)) for w in words), "--json", cwd=tmp_path)
        return dict(json.loads(done.stdout))

    if name == "merge":  # of what workers left
        check("worker", document("build", "--from", "MIX", "--worker", "0/1", "--parts", "parts"))
    check(name, document(*CALLS[name]))


def test_every_command_with_json_is_published(promptkit_command: Command) -> None:
    done = promptkit_command("--help")
    commands = set(re.findall(r"^  ([a-z]+)  ", done.stdout.partition("Commands:")[2], re.M))
    assert commands | {"error"} == set(CALLS)
    assert set(SCHEMA["$defs"]) == {*CALLS, "worker"}


def test_a_wrong_document_is_not_valid() -> None:
    whole = {"schema_version": 1, **score_json()}
    for change in ({"fidelity": "0.5"}, {"verdict_code": "maybe"}, {"prompts": [{"index": 0}]}):
        with pytest.raises(jsonschema.ValidationError):
            check("score", {**whole, **change})
