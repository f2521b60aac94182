"""The command: one function per command, results on stdout, talk on stderr, one exit code per kind of trouble."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
import types
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from conftest import ROOT
from score_example import HOSTILE, TEXTS, score_json

from promptkit.errors import InputError, IntegrityError, ResourceError, UsageError
from promptkit.trend import SHOWN, Change


def load_main():
    """Take `main` from the entry point, or from cli/ where the package is not installed."""
    points = entry_points(group="console_scripts", name="promptkit")
    if points:
        return next(iter(points)).load()
    name = "cli_of_the_checkout"  # not promptkit_cli: other tests ask whether that is installed
    if name not in sys.modules:
        where = ROOT / "cli"
        spec = importlib.util.spec_from_file_location(
            name, where / "__init__.py", submodule_search_locations=[str(where)]
        )
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name].main


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    before = signal.getsignal(signal.SIGTERM)

    def call(*words: str) -> Result:
        with pytest.raises(SystemExit) as done:
            load_main()(list(words))
        captured = capsys.readouterr()
        return Result(done.value.code, captured.out, captured.err)

    yield call
    signal.signal(signal.SIGTERM, before)


def fake(monkeypatch, name: str, **members) -> None:
    module = types.ModuleType(f"promptkit.{name}")
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, f"promptkit.{name}", module)
    # another test file may have imported the real one, which then is an attribute of the package as well
    monkeypatch.setitem(vars(sys.modules["promptkit"]), name, module)


@pytest.fixture
def scored(monkeypatch, tmp_path):
    """A reference in the current directory and a score of it, so that the command alone is tested."""
    calls = []

    def score(candidates, reference, **options):
        calls.append({"candidates": candidates, "reference": reference, **options})
        return types.SimpleNamespace(to_json=lambda: score_json(**(changes | {"n": len(candidates)})))

    changes: dict = {}
    fake(monkeypatch, "scoring", score=score)
    fake(monkeypatch, "reference", load_reference=lambda path, device="auto": types.SimpleNamespace(path=path, weight="rows"))
    (tmp_path / "promptkit-out" / "reference").mkdir(parents=True)
    (tmp_path / "promptkit-out" / "reference" / "reference.json").write_text("{}")
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps(t) for t in TEXTS))
    return types.SimpleNamespace(calls=calls, changes=changes)


# -- score ---------------------------------------------------------------------------------------------------------

GOLDEN = """\
Not representative of the training mix: 2 of 4 prompts do not belong, and most
of the mix is missing.

part     value 95 % interval by chance asks
fidelity  0.53 0.16 to 0.93          - do these prompts belong?
coverage  0.31 0.10 to 0.50          - is the mix reached?
mix       0.22 -                     - are the proportions right?
domains   0.40 -                     - the same, by domain

distance   0.612 = 1.80 x 0.340, the mean of random draws of 4
excess     0.231 beyond chance (95 %: 0.120 to 0.330), comparable across sizes
p-value    < 0.001 (belonging < 0.001, proportions 0.021)
typicality 0.27 on average (the mix: 0.50): what ranks sets by acceptance

does not belong: 2 of 4 (chance alone would list about 0.2)
"""


def test_score_prints_the_verdict_and_its_parts(run, scored):
    done = run("score", "p.jsonl")
    assert done.code == 0
    assert done.out.startswith(GOLDEN)
    for said in (
        "pandas, dataframe, column: 30.0 % of the mix, 0.0 % here",
        "Group a dataframe by two columns",
        "encyclopedic",
        "4 prompts cannot reliably see: 10 % foreign prompts",
        "ranks sets and mixes well, single prompts",
    ):
        assert said in done.out
    assert done.out.index("Explain the theory of general relativity") < done.out.index("<script>")
    assert "against: promptkit-out/reference (the only reference built here)" in done.err
    assert "next: promptkit score p.jsonl --report score.html" in done.err


def test_what_is_off_stands_in_its_row_and_length_only_where_it_differs(run, scored):
    out = run("score", "p.jsonl").out
    domains = {line.split()[0]: line for line in out.splitlines() if line.startswith(("coding", "agentic", "encyclo"))}
    assert domains["encyclopedic"].endswith("too many")
    assert not domains["coding"].endswith(("too many", "too few"))
    assert "median tokens: 212 in the mix, 11 here" in out
    assert "tools: 75.0 % in the mix, 0.0 % here" in out
    assert "several user turns" not in out
    assert "odd ones: 1 of 4 (chance alone would list about 0.0)" in out
    assert "2,004 tokens, longer than 99.9 % of the mix: <script>" in out
    assert "size: more prompts like these will not bring the set within 0.10 of the mix" in out
    scored.changes.update(structure=[], prompts=score_json()["prompts"][:1])
    assert "length and structure" not in run("score", "p.jsonl").out


def test_weights_show_what_they_leave_of_n(run, scored):
    assert "equal weight" not in run("score", "p.jsonl").out
    scored.changes.update(n_effective=1.43)
    assert "weights    4 prompts, weighted, tell as much as 1.4 of equal weight" in run("score", "p.jsonl").out


def test_every_line_fits_eighty_columns_and_hides_nothing_dangerous(run, scored):
    from rich.cells import cell_len

    done = run("score", "p.jsonl")
    assert max(cell_len(line) for line in done.out.splitlines()) <= 80
    for acting in ("\x1b", "\x07", "\u202e", "\u202c"):
        assert acting not in done.out + done.err
    assert r"\x1b[2J\x07 \u202eevil" in done.out
    assert "[red]" in done.out


@pytest.mark.parametrize("columns", ["20", "40", "140"])
def test_any_width_works(run, scored, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    done = run("score", "p.jsonl")
    assert done.code == 0
    assert max(len(line) for line in done.out.splitlines()) <= int(columns)


def test_score_json_is_one_document_with_the_stable_keys(run, scored):
    done = run("score", "p.jsonl", "--json", "-q")
    value = json.loads(done.out)
    assert value["schema_version"] == 1
    assert set(score_json()) <= set(value)
    assert value["gates"] == []
    assert done.out.isascii()
    assert done.err == ""


@pytest.mark.parametrize(
    ("flags", "changes", "code"),
    [
        (["--max-ratio", "1.8"], {}, 0),
        (["--max-ratio", "1.79"], {}, 3),
        (["--max-ratio", "1.5"], {"ratio": 1.504}, 0),  # printed as 1.50, and the printed value is judged
        (["--min-fidelity", "0.53"], {}, 0),
        (["--min-fidelity", "0.9"], {}, 3),
        (["--min-coverage", "0"], {"coverage": None}, 3),
        (["--min-fidelity", "0"], {"fidelity": float("nan")}, 3),
        (["--max-ratio", "9"], {"ratio": float("nan")}, 3),
        (["--min-mix-overlap", "0.3"], {}, 3),
        (["--min-n", "5"], {}, 3),
        (["--max-ratio", "2", "--min-fidelity", "0.9"], {}, 3),
        (["--max-ratio", "nan"], {}, 2),
        (["--max-ratioo", "2"], {}, 2),
        (["--min-nonsense", "2"], {}, 2),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"], ["--markdown"]])
def test_gates_judge_what_is_printed_in_every_format(run, scored, flags, changes, code, form):
    scored.changes.update(changes)
    done = run("score", "p.jsonl", *flags, *form)
    assert done.code == code
    if code == 3:
        assert "FAILED" in done.out or '"passed": false' in done.out or "**failed**" in done.out


def test_score_options_reach_the_library(run, scored):
    run("score", "p.jsonl", "--seed", "7", "--draws", "199", "--weight", "tokens", "--against", "promptkit-out")
    (call,) = scored.calls
    assert (call["seed"], call["draws"], call["weight"]) == (7, 199, "tokens")
    assert call["reference"].path == os.path.join("promptkit-out", "reference")
    assert [p.messages[0]["content"] for p in call["candidates"]] == TEXTS


def test_weights_come_from_the_field_named(run, scored):
    Path("w.jsonl").write_text("".join(json.dumps({"prompt": t, "runs": i + 1}) + "\n" for i, t in enumerate(TEXTS)))
    assert run("score", "w.jsonl", "--weights", "runs").code == 0
    assert [p.weight for p in scored.calls[0]["candidates"]] == [1, 2, 3, 4]
    assert "fields: 'prompt', 'runs'" in run("score", "w.jsonl", "--weights", "times").err


def test_score_writes_a_report(run, scored, tmp_path, monkeypatch):
    fake(monkeypatch, "reference", load_reference=lambda path, device="auto": None)
    monkeypatch.setattr(
        sys.modules["promptkit.scoring"], "score", lambda c, r, **o: types.SimpleNamespace(to_json=score_json)
    )
    done = run("score", "p.jsonl", "--report", "r.html", "--weight", "rows")
    assert done.code == 0
    assert "report: r.html" in done.err
    assert "general relativity" in (tmp_path / "r.html").read_text()


def test_markdown_is_short_and_alone_on_stdout(run, scored):
    done = run("score", "p.jsonl", "--markdown", "--max-ratio", "1.5")
    assert done.code == 3
    assert done.out.startswith("### promptkit: not representative")
    assert "| gate: ratio &lt;= 1.5 | 1.80 | **failed** |" in done.out
    assert run("score", "p.jsonl", "--markdown", "--json").code == 2


def test_one_prompt_shows_its_own_values(run, scored):
    scored.changes.update(
        prompts=score_json()["prompts"][2:3], distance=None, verdict="One prompt is too few for a set."
    )
    Path("one.yaml").write_text("- Write a function that inserts a key into a B-tree.\n")
    out = run("score", "one.yaml").out
    assert "typicality 0.44" in out
    assert "closeness  0.32" in out
    assert "Implement a B-tree in Python." in out
    assert "leaked: it is" in out
    assert "tokens     10   longer than 1.0 % of the mix" in out
    assert "odd" not in out
    scored.changes.update(
        prompts=[{**score_json()["prompts"][2], "outliers": ["9 user turns, more than all of the mix"]}]
    )
    assert "odd: 9 user turns, more than all of the mix" in run("score", "one.yaml").out
    assert "fidelity" not in out


def test_the_margin_goes_to_the_score(run, scored):
    run("score", "p.jsonl", "--margin", "0.2")
    run("score", "p.jsonl")
    assert [call["margin"] for call in scored.calls] == [0.2, 0.1]
    assert run("score", "p.jsonl", "--margin", "0").code == 2


def test_a_gate_on_the_number_of_prompts_prints_a_count(run, scored):
    assert "gate n >= 9: 4, FAILED" in run("score", "p.jsonl", "--min-n", "9").out


def test_a_training_directory_is_a_sample_of_its_rows(run, scored, monkeypatch):
    from promptkit.candidates import read_candidates

    asked = []

    def draw(directory, **options):
        asked.append((directory, options["size"], options["seed"]))
        return types.SimpleNamespace(prompts=read_candidates("p.jsonl"), rows=90_000, lossy=len(asked) > 1)

    fake(monkeypatch, "drift", draw=draw, SAMPLE=1000, is_training_directory=lambda path: path == "mix")
    done = run("score", "mix", "--seed", "5")
    assert done.code == 0
    assert "drift: 4 of 90,000 rows of mix stand for that mix" in done.out
    assert "in both: 1 of 4 rows are in the sample of the reference" in done.out
    assert "leaked" not in done.out
    lossy = run("score", "mix", "--sample", "7", "--json")
    assert lossy.code == 4
    assert json.loads(lossy.out)["drift"] == {"directory": "mix", "rows": 90_000, "sampled": 4, "lossy": True}
    assert asked == [("mix", 1000, 5), ("mix", 7, 0)]
    assert "no training directory" in run("score", "p.jsonl", "--sample", "7").err


def test_standard_input_has_no_next_step_to_paste(run, scored, monkeypatch):
    monkeypatch.setattr(
        sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(b"Write a sort.\n"), isatty=lambda: False)
    )
    done = run("score", "-", "--format", "txt")
    assert done.code == 0
    assert "next:" not in done.err


def test_shares_that_count_tokens_are_said(run, scored):
    assert "count supervised tokens" in run("score", "p.jsonl", "--weight", "tokens").err
    assert "count supervised tokens" not in run("score", "p.jsonl").err


def test_script_lists_are_named(run, scored, tmp_path):
    (tmp_path / "b.py").write_text('PROMPTS = ["Explain general relativity.", "Write a guide to B-trees."]\n')
    done = run("score", "b.py")
    assert "2 read from the lists PROMPTS (2) of b.py; the script was not run" in done.err


def test_references_none_and_several_are_usage_errors(run, scored, tmp_path):
    (tmp_path / "other" / "reference").mkdir(parents=True)
    (tmp_path / "other" / "reference" / "reference.json").write_text("{}")
    done = run("score", "p.jsonl")
    assert done.code == 2
    assert "2 references in this directory" in done.err
    assert "other/reference" in done.err
    for folder in ("other", "promptkit-out"):
        (tmp_path / folder / "reference" / "reference.json").unlink()
    done = run("score", "p.jsonl")
    assert done.code == 2
    assert "promptkit build --from TRAINING_DIR" in done.err


@pytest.mark.parametrize(
    ("content", "code"), [("", 4), ("prompts: []", 4), ("- &a [*a]", 2), ("a: b: c", 2), ("- ''", 4)]
)
def test_unusable_prompt_files(run, scored, tmp_path, content, code):
    (tmp_path / "p.yaml").write_text(content)
    done = run("score", "p.yaml")
    assert done.code == code
    assert "error: p.yaml" in done.err
    assert "next: " in done.err
    assert done.out == ""


def test_missing_prompt_file_suggests(run, scored):
    done = run("score", "p.json")
    assert done.code == 2
    assert "did you mean 'p.jsonl'?" in done.err


def test_compare_says_which_way_and_whether_by_chance(run, scored, monkeypatch):
    names = []

    def trend(sets, reference, **options):
        names.extend(options["names"])
        changes = [None, Change(3, 0.1, 0.001, -0.2, 0.01), Change(4, -0.01, 0.6, None, None)]
        values = {k: score_json().get(k) for k in SHOWN}
        return [
            types.SimpleNamespace(
                to_json=lambda n=n, c=c: {"name": n, **values, "change": c and vars(c)},
                score=types.SimpleNamespace(reference=score_json()["reference"]),
            )
            for n, c in zip(options["names"], changes, strict=False)
        ]

    fake(monkeypatch, "trend", trend=trend, versions=lambda path: [Path(path)])
    done = run("compare", "p.jsonl", "p.jsonl", "p.jsonl")
    assert done.code == 0
    assert names == ["p.jsonl"] * 3
    assert "farther from the mix (excess +0.100, p 0.001)" in " ".join(done.out.split())
    assert "less typical of the mix (typicality -0.200, p 0.010)" in " ".join(done.out.split())
    assert "3 against 2 (4 prompts in common): no difference shown in excess (-0.010, p 0.600)" in " ".join(
        done.out.split()
    )
    assert "(Holm)" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    value = json.loads(run("compare", "p.jsonl", "p.jsonl", "--json", "-q").out)
    assert [s["name"] for s in value["sets"]] == ["p.jsonl"] * 2
    assert set(value) == {"schema_version", "reference", "paired", "sets"}


# -- the other commands --------------------------------------------------------------------------------------------


def account(
    path: str, status: str, reason: str | None = None, rows: int = 0, failed: int = 0, reasons: dict | None = None
):
    return types.SimpleNamespace(
        path=path,
        status=status,
        reason=reason,
        rows=rows,
        rows_skipped=0,
        rows_failed=failed,
        row_reasons=reasons or {},
    )


SOURCES = [
    {
        "source": "B1_glaive",
        "formats": ["jsonl"],
        "files": 3,
        "rows": 1200,
        "tokens": 345678,
        "supervised_tokens": 123456,
    },
    {
        "source": "[red]\x1b[31mevil" + "x" * 100,
        "formats": ["arrow"],
        "files": 1,
        "rows": 1,
        "tokens": 2,
        "supervised_tokens": 1,
    },
]
READ = {
    "sources": SOURCES,
    "account": [account("a/1.jsonl", "read", rows=1200), account("b/\x1b]0;x\x07bad.pt", "failed", "pickle protocol 4 is never run"), account("c.jsonl", "read", rows=3, failed=2, reasons={"not JSON": 2}), account("config.json", "skipped", "not samples")],
    "tokenizer": {"name": "kimi", "sha256": "ab" * 32, "n_vocab": 163840},
    "template": {"name": "kimi-k2", "evidence": {"lines": ["98 % of rows begin with <|im_user|>"]}},
}  # fmt: skip


def result(lossy: bool, **more):
    return types.SimpleNamespace(
        **READ,
        lossy=lossy,
        to_json=lambda: {"schema_version": 1, "sources": SOURCES, "account": [vars(a) for a in READ["account"]]},
        **more,
    )


@pytest.fixture
def pipeline(monkeypatch):
    calls = []

    def record(name, value):
        def function(*args, progress=None, **options):
            calls.append((name, args, options))
            progress("read", 1, 2)
            return value

        return function

    sample = {
        "shard": "a/1.jsonl",
        "row": 0,
        "messages": [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": "", "reasoning": "Think."}],
    }
    built = result(
        True,
        reference="promptkit-out/reference",
        pack="promptkit-out/packs/m/1.0.0",
        report="promptkit-out/report.html",
        name="m",
        version="1.0.0",
        content_hash="cd" * 32,
        notes=["few rows"],
        in_training=200,
        holdout=None,
        withheld=None,
        pack_score={"n": 200, "ratio": 0.8, "p_value": 0.5, "fidelity": 1.0, "coverage": 1.0, "mix_overlap": 0.97},
    )
    fake(
        monkeypatch,
        "pipeline",
        inspect=record("inspect", result(False, sample=sample)),
        detokenize=record("detokenize", result(True, rows=1203, out="o.jsonl")),
        build=record("build", built),
    )
    return calls


def test_inspect_shows_sources_template_sample_and_losses(run, pipeline):
    done = run("inspect", "mix", "--tokenizer", "tok", "--processes", "2")
    assert done.code == 0
    assert pipeline[0][:2] == ("inspect", ("mix",))
    assert pipeline[0][2]["tokenizer"] == "tok"
    assert pipeline[0][2]["processes"] == 2
    for said in (
        "B1_glaive",
        "1,200",
        "345,678",
        "kimi-k2",
        "98 % of rows",
        "2 read, 1 skipped, 1 failed",
        "pickle protocol 4 is never run",
        r"b/\x1b]0;x\x07bad.pt",
        "2 rows: not JSON (2)",
        "not samples",
        "Think.",
    ):
        assert said in done.out
    assert "\x1b" not in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert "next: promptkit build --from mix" in done.err


def test_lossy_runs_print_the_account_and_exit_4_after_writing(run, pipeline):
    done = run("detokenize", "mix", "-o", "o.jsonl", "--sample", "5")
    assert done.code == 4
    assert pipeline[0][1] == ("mix", "o.jsonl")
    assert pipeline[0][2]["sample"] == 5
    assert "1,203 rows -> o.jsonl" in done.out
    assert "--max-bad-shards" in done.err


def test_build_passes_options_and_prints_what_to_cite(run, pipeline):
    done = run(
        "build",
        "--from",
        "mix",
        "--pool",
        "a.jsonl",
        "--pool",
        "b.jsonl",
        "--size",
        "50",
        "--max-leak",
        "0.2",
        "--name",
        "m",
    )
    assert done.code == 4
    name, args, options = pipeline[0]
    assert (name, args) == ("build", ("mix",))
    assert options["pool"] == ("a.jsonl", "b.jsonl")
    assert (options["size"], options["max_leak"], options["name"], options["out"]) == (50, 0.2, "m", "promptkit-out")
    assert f"cite as    m@1.0.0+sha256:{'cd' * 32}" in done.out
    assert "note       few rows" in done.out
    assert "next: promptkit score promptkit-out/packs/m/1.0.0\n" in done.err


def test_build_says_loudly_whether_the_drafter_has_seen_the_pack(run, pipeline):
    done = run("build", "--from", "mix")
    assert "IN TRAINING: 200 prompts of the pack are rows of the training mix." in done.out.replace("\n", " ")
    import promptkit.pipeline

    built = promptkit.pipeline.build("mix", progress=lambda *_: None)
    built.in_training, built.holdout, built.withheld = 0, "promptkit-out/holdout.jsonl", "promptkit-out/withheld.json"
    done = run("build", "--from", "mix", "--holdout", "0.02", "--licence", "A1=MIT", "--redistributable")
    assert "IN TRAINING" not in done.out
    assert "unseen     provided the next training run excludes the rows of holdout.jsonl" in done.out
    assert "holdout    promptkit-out/holdout.jsonl" in done.out
    assert "withheld   promptkit-out/withheld.json" in done.out
    options = pipeline[-1][2]
    assert (options["holdout"], options["licences"], options["redistributable"]) == (0.02, {"A1": "MIT"}, True)
    assert not options["keep_personal_data"]
    assert max(len(x) for x in done.out.splitlines() if "sha256" not in x) <= 80


def test_the_licence_of_a_source_can_stand_in_pyproject(run, pipeline, tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[tool.promptkit.build]\nlicence = ["A1=MIT", "B2=CC-BY-4.0"]\n')
    monkeypatch.chdir(tmp_path)
    run("build", "--from", "mix")
    assert pipeline[0][2]["licences"] == {"A1": "MIT", "B2": "CC-BY-4.0"}


@pytest.mark.parametrize("bad", ["MIT", "A1=MIT --licence A1=MIT"])
def test_a_licence_option_names_a_source_once(run, bad):
    done = run("build", "--from", "mix", "--licence", *bad.split())
    assert done.code == 2
    assert "SOURCE=SPDX" in done.err


def test_json_of_the_reading_commands_is_one_document(run, pipeline):
    for words in (["inspect", "mix"], ["detokenize", "mix", "-o", "o.jsonl"], ["build", "--from", "mix"]):
        value = json.loads(run(*words, "--json").out)
        assert value["schema_version"] == 1
        assert value["sources"][0]["source"] == "B1_glaive"


def test_nothing_given_is_help_and_help_holds_no_control_character(run):
    bare = run()
    assert bare.code == 0
    assert bare.out == run("--help").out
    assert "\b" not in bare.out + run("score", "--help").out


def test_verify_names_what_it_found(run, example_build):
    done = run("verify", str(example_build / "packs" / "training_mix"))
    assert done.out.startswith("ok: training_mix@1.0.0+sha256:")


def test_verify_names_the_problems_and_exits_5(run, monkeypatch):
    fake(
        monkeypatch,
        "pack",
        verify=lambda p, *_, **__: {"ok": False, "problems": [{"path": "prompts.jsonl", "problem": "sha256 differs"}]},
    )
    done = run("verify", "pack")
    assert done.code == 5
    assert "1 problem\n" in done.err
    assert "prompts.jsonl: sha256 differs" in done.out
    assert json.loads(run("verify", "pack", "--json").out)["ok"] is False


def test_diff_exits_3_only_when_asked(run, monkeypatch):
    found = {
        "added": ["a" * 32],
        "removed": [],
        "changed": [],
        "relabelled": [],
        "distance_before": 0.1,
        "distance_after": 0.2,
        "bump": "minor",
    }
    fake(monkeypatch, "pack", diff=lambda a, b: found)
    done = run("diff", "a", "b")
    assert done.code == 0
    assert "least bump  minor" in done.out
    assert run("diff", "a", "b", "--exit-code").code == 3


def test_list_names_packs_and_references(run, tmp_path):
    pack = tmp_path / "promptkit-out" / "packs" / "m" / "1.0.0"
    pack.mkdir(parents=True)
    (pack / "pack.json").write_text(
        json.dumps(
            {
                "name": "m",
                "version": "1.0.0",
                "content_hash": "sha256:" + "ab" * 32,
                "files": [{"path": "prompts.jsonl", "rows": 200}],
            }
        )
    )
    done = run("list")
    assert "m@1.0.0" in done.out
    assert "200" in done.out
    assert run("list", "nowhere").code == 2


def test_report_of_a_saved_score(run, tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(score_json()))
    done = run("report", "s.json", "--out", "r.html")
    assert done.code == 0
    assert (tmp_path / "r.html").stat().st_size > 5000
    (tmp_path / "s.json").write_text("{}")
    assert run("report", "s.json").code == 4
    assert run("report", "nothing").code == 2


def test_doctor_says_what_is_there(run):
    value = json.loads(run("doctor", "--json").out)
    assert value["packages"]["polars"]
    assert value["free_disk_bytes"] > 0
    assert "tokenizers" in value
    assert "package" in run("doctor").out


# -- usage, settings, errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scroe", "x"], "did you mean 'score'?"),
        (["score"], "Missing argument"),
        (["score", "p", "--agianst", "x"], "--against"),
        (["score", "p", "--weight", "row"], "rows"),
        (["build", "--size", "0", "--from", "x"], "--size"),
        (["build"], "--from"),
    ],
)
def test_usage_errors_exit_2_and_suggest(run, words, said):
    done = run(*words)
    assert done.code == 2
    assert said in done.err
    assert done.out == ""


def test_every_command_has_help_with_an_example(run):
    for name in ("inspect", "detokenize", "build", "score", "verify", "diff", "list", "report", "doctor"):
        done = run(name, "--help")
        assert done.code == 0
        assert "Example" in done.out
        assert f"promptkit {name}" in done.out
        assert max(map(len, done.out.splitlines())) <= 100
        assert name in run("--help").out


def test_settings_are_defaults_that_flags_override(run, scored, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.promptkit]\nseed = 7\n[tool.promptkit.score]\nmax_ratio = 1.5\n")
    assert run("score", "p.jsonl").code == 3
    assert scored.calls[-1]["seed"] == 7
    assert run("score", "p.jsonl", "--max-ratio", "2", "--seed", "8").code == 0
    assert scored.calls[-1]["seed"] == 8


def test_settings_of_a_directory_above_count(run, scored, tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text("[tool.promptkit.score]\nmax_ratio = 1.5\n")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert run("score", "../p.jsonl", "--against", "../promptkit-out").code == 3


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[tool.promptkit]\nmax_ratoi = 1\n", "did you mean 'max_ratio'?"),
        ("[tool.promptkit.score]\nmax_ratoi = 1\n", "did you mean 'max_ratio'?"),
        ("[tool.promptkit.scroe]\nmax_ratio = 1\n", "did you mean 'score'?"),
        ("[tool.promptkit.score]\nmax_ratio = 'high'\n", "(from [tool.promptkit] in"),
        ("[tool.promptkit\n", "not readable as TOML"),
    ],
)
def test_bad_settings_exit_2_with_a_hint(run, scored, tmp_path, toml, said):
    (tmp_path / "pyproject.toml").write_text(toml)
    done = run("score", "p.jsonl")
    assert done.code == 2
    assert said in done.err
    assert run("score", "--help").code == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("u", hint="h"), 2), (InputError("i"), 4), (IntegrityError("x"), 5), (ResourceError("r"), 6),
        (OSError(28, "No space left on device", "out"), 6), (MemoryError(), 6), (PermissionError(13, "Permission denied", "out"), 2),
        (KeyboardInterrupt(), 130), (BrokenPipeError(32, "Broken pipe"), 141), (ZeroDivisionError("bug [red]"), 1),
    ],
)  # fmt: skip
def test_each_kind_of_error_has_its_exit_code(monkeypatch, error, code, tmp_path):
    monkeypatch.chdir(tmp_path)

    def fail(*_, **__):
        raise error

    # In a process of its own: a closed pipe makes the command give up its standard output.
    child = os.fork()
    if child == 0:
        fake(monkeypatch, "pipeline", inspect=fail)
        try:
            load_main()(["inspect", "mix"])
        except SystemExit as e:
            os._exit(e.code)
        os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code


def test_errors_under_json_are_one_document(run, monkeypatch):
    def fail(*_, **__):
        raise InputError("mix\x1b[2J: nothing", hint="look")

    fake(monkeypatch, "pipeline", inspect=fail)
    done = run("inspect", "mix", "--json")
    assert json.loads(done.out)["error"] == {
        "kind": "InputError",
        "message": "mix\x1b[2J: nothing",
        "hint": "look",
        "exit_code": 4,
    }
    assert r"mix\x1b[2J: nothing" in done.err


def test_bugs_are_called_bugs_and_show_a_traceback_with_v(run, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("oh [red]")

    fake(monkeypatch, "pipeline", inspect=fail)
    done = run("inspect", "mix")
    assert done.code == 1
    assert "this is a bug in promptkit: ZeroDivisionError: oh [red]" in done.err
    assert "Traceback" not in done.err
    assert "Traceback" in run("inspect", "mix", "-v").err


# -- the real process ----------------------------------------------------------------------------------------------

HEAVY = (
    "numpy",
    "polars",
    "pyarrow",
    "sklearn",
    "scipy",
    "torch",
    "tiktoken",
    "tokenizers",
    "rich",
    "jinja2",
    "ruamel",
)


def test_help_and_version_load_nothing_heavy(promptkit_command, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        f"import atexit, sys\natexit.register(lambda: sys.stderr.write(','.join(m for m in {HEAVY!r} if m in sys.modules)))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    for words in (["--help"], ["--version"], ["score", "--help"], ["build", "--help"]):
        done = promptkit_command(*words, env=env)
        assert done.returncode == 0
        assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_full_disk_under_stdout_exits_6_without_a_traceback(tmp_path, more):
    command = [sys.executable, *_program(), "doctor", *more]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=_env(), cwd=tmp_path)
    assert done.returncode == 6
    assert b"disk full" in done.stderr
    assert b"Traceback" not in done.stderr


def test_closed_pipe_exits_141_without_a_traceback(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, *_program(), "doctor"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env=_env(),
        cwd=tmp_path,
    )
    os.close(writer)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr


def test_sigterm_exits_143(tmp_path):
    hang = "import promptkit.pipeline as p, time\np.inspect = lambda *a, **k: (print('ready', flush=True), time.sleep(60))\n"
    child = subprocess.Popen(
        [sys.executable, *_program(hang), "inspect", "mix"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_env(),
        cwd=tmp_path,
    )
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=30) == 143


def test_slow_runs_say_a_plain_line_when_piped(run, monkeypatch):
    main = load_main()
    console = sys.modules[main.__module__.rsplit(".", 1)[0] + ".console"]
    monkeypatch.setattr(console.Progress, "EVERY_SECONDS", 0.05)

    def slow(*_, progress, **__):
        for i in range(3):
            time.sleep(0.06)
            progress("decode", i + 1, 3)
        raise InputError("done")

    fake(monkeypatch, "pipeline", inspect=slow)
    assert "decode: 3 of 3 rows, 0 s\n" in run("inspect", "mix").err
    assert "decode:" not in run("inspect", "mix", "-q").err


@pytest.mark.parametrize(("extra", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_terminal_gets_colour_unless_it_says_no(tmp_path, extra, coloured):
    env = {**_env(), "TERM": "xterm-256color", "COLUMNS": "80", **extra}
    env.pop("NO_COLOR", None) if "NO_COLOR" not in extra else None
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, [sys.executable, *_program(), "scroe"], env)
    out = b""
    while True:
        try:
            chunk = os.read(fd, 4096)
        except OSError:
            break
        if not chunk:
            break
        out += chunk
    os.waitpid(pid, 0)
    assert b"no command 'scroe'" in out
    assert (b"\x1b[1;31m" in out) is coloured


def _program(before: str = "") -> list[str]:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\n{before}\nfrom test_cli import load_main\nload_main()()"
    )
    return ["-c", code]


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def test_output_that_is_not_utf8_is_no_failure(tmp_path):
    env = {**_env(), "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    done = subprocess.run([sys.executable, *_program(), "inspect", "日本"], capture_output=True, env=env, cwd=tmp_path)
    assert done.returncode == 2
    assert b"\\u65e5\\u672c" in done.stderr
    assert Path(tmp_path).is_dir()
