"""What a terminal shows, as golden text: at 80 and 140 columns, piped, and under NO_COLOR.

After a change on purpose: `PROMPTKIT_GOLDEN=write pytest tests/test_terminal.py`, then read the diff of tests/golden.
Escapes of the terminal are written as they are made visible elsewhere (`\\x1b[1m`).
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from test_cli import fake, load_main, pipeline, scored  # noqa: F401

from promptkit.visible import visible

GOLDEN = Path(__file__).parent / "golden"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Pipe(io.StringIO):
    encoding = "utf-8"


LOOKS = {
    "80": (Terminal, {"COLUMNS": "80"}),
    "140": (Terminal, {"COLUMNS": "140"}),
    "no_color": (Terminal, {"COLUMNS": "80", "NO_COLOR": "1"}),
    "piped": (Pipe, {}),
}


def shown(monkeypatch: pytest.MonkeyPatch, look: str, *words: str) -> str:
    stream, env = LOOKS[look]
    for name in ("COLUMNS", "NO_COLOR", "LINES", "FORCE_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **env}.items():
        monkeypatch.setenv(name, value)
    out, err = stream(), Pipe()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with pytest.raises(SystemExit):
        load_main()(list(words))
    return visible(out.getvalue(), lines=True) + "-- stderr\n" + visible(err.getvalue(), lines=True)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("words", [("score", "p.jsonl"), ("build", "--from", "mix")], ids=["score", "build"])
def test_output_is_the_golden_one(monkeypatch, tmp_path, scored, pipeline, look, words):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    text = shown(monkeypatch, look, *words)
    path = GOLDEN / f"{words[0]}_{look}.txt"
    if os.environ.get("PROMPTKIT_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["score", "build"])
def test_golden_texts_fit_their_width_and_colour_is_for_terminals(command):
    import re

    from rich.cells import cell_len

    for look in LOOKS:
        text = (GOLDEN / f"{command}_{look}.txt").read_text(encoding="utf-8").partition("-- stderr")[0]
        assert (r"\x1b[1" in text) is (look in ("80", "140"))  # prompts hold other escapes, and those are always shown
        lines = re.sub(r"\\x1b\[[0-9;]*m", "", text).split("\n")
        wide = [x for x in lines if cell_len(x) > (140 if look == "140" else 80)]
        assert [x for x in wide if not x.startswith("cite as")] == []


def test_a_pipe_hears_of_each_stage_once_a_second_has_passed(monkeypatch, tmp_path):
    import time

    def slow(*_, progress, **__):
        from promptkit.errors import InputError

        for stage in ("open", "read", "read", "fit"):
            progress(stage, 1, 2)
            if stage == "open":
                time.sleep(1.05)
        raise InputError("done")

    monkeypatch.chdir(tmp_path)
    fake(monkeypatch, "pipeline", inspect=slow)
    said = shown(monkeypatch, "piped", "inspect", "mix").partition("-- stderr\n")[2].splitlines()
    assert said[:2] == ["read: 0.0 of 0.0 MB, 1 s", "fit: 1 of 2 rows, 1 s"]


@pytest.mark.parametrize("look", ["80", "piped"])
def test_progress_tells_rate_and_time_left_from_the_first_unit_on(monkeypatch, look):
    """By a clock that we set: a stage's rate is its own, and what was done before it was first heard of is no rate."""
    console = sys.modules[load_main().__module__.replace(".app", ".console")]
    clock, err = [100.0], LOOKS[look][0]()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    heard = []
    with console.Progress(console.Talk()) as progress:
        monkeypatch.setattr(progress, "_draw", lambda *told: heard.append(told[-1]))
        for seconds, *told in (
            (2, "read", 0, 400_000_000),
            (12, "read", 100_000_000, 400_000_000),
            (22, "read", 300_000_000, 400_000_000),
            (23, "decode", 256, 2_000),
            (33, "decode", 1_256, 2_000),
            (34, "write", 0, None),
        ):
            clock[0] = 100.0 + seconds
            progress(*told)
    lines = err.getvalue().splitlines()
    expected = [
        "0.0 of 400.0 MB",
        "100.0 of 400.0 MB, 10.0 MB/s, about 30 s left",
        "300.0 of 400.0 MB, 15.0 MB/s, about 7 s left",
        "256 of 2,000 rows",
        "1,256 of 2,000 rows, 100 rows/s, about 7 s left",
        "",
    ]
    if look == "80":
        assert heard == expected
    else:
        stages = ["read", "read", "read", "decode", "decode"]
        at = [2, 12, 22, 23, 33]
        assert lines == [f"{s}: {e}, {t} s" for s, e, t in zip(stages, expected, at, strict=False)] + ["write: 34 s"]
