"""Exports in the real harnesses: their own loaders read them, their own clients send them to a server that writes down.

Needs the environments that `python tests/harness/setup.py` makes (under build/harness, or where PROMPTKIT_HARNESS_DIR
says); a harness that has none is skipped, unless PROMPTKIT_HARNESS_NEEDED names it.

    python tests/harness/setup.py && pytest -m harness
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hostile
import pytest
from conftest import ROOT, Command

from promptkit.pack import Pack, load_pack, write_pack

sys.path.insert(0, str(ROOT / "tests" / "harness"))
import byte_tokenizer
import compare
from mock_server import Server

pytestmark = pytest.mark.harness

HARNESSES = Path(os.environ.get("PROMPTKIT_HARNESS_DIR") or ROOT / "build" / "harness")
NEEDED = set(filter(None, os.environ.get("PROMPTKIT_HARNESS_NEEDED", "").split(",")))

# check_NAME.py -> the environment that it runs in, and the target that it is made for
CHECKS = {
    "vllm": ("vllm", "vllm"),
    "sglang": ("sglang", "sglang"),
    "aiperf": ("aiperf", "aiperf"),
    "guidellm": ("guidellm", "guidellm"),
    "evalscope": ("evalscope", "evalscope"),
    "lm_eval": ("lm-eval", "lm-eval"),
    "inspect": ("inspect", "inspect"),
    "lighteval": ("lighteval", "lighteval"),
    "promptfoo": ("promptfoo", "promptfoo"),
}
CLIENTS = ("aiperf", "guidellm", "vllm", "sglang", "evalscope", "lm-eval")
REORDER = {"lm-eval"}  # sends requests of equal settings together; ids come back with its samples
PACKS = ("plain", "hostile", "replay")


def environment(name: str) -> Path:
    """Return the directory of a harness's programs; skip without it, fail where it is needed."""
    programs = HARNESSES / name / "bin"
    if not programs.is_dir():
        if name in NEEDED:
            pytest.fail(f"no environment for {name} in {HARNESSES}: python tests/harness/setup.py --only {name}")
        pytest.skip(f"no environment for {name} in {HARNESSES}: python tests/harness/setup.py --only {name}")
    return programs


def variables(programs: Path, **more: str) -> dict[str, str]:
    """Return a harness's environment: its programs first, nothing of ours, nothing fetched."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "HF_HUB_OFFLINE")}
    own = {"PATH": f"{programs}{os.pathsep}{clean['PATH']}", "OPENAI_API_KEY": "none", "OMP_NUM_THREADS": "1"}
    return {**clean, **own, **more}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer.write(tmp_path_factory.mktemp("tokenizer") / "bytes")


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three packs: hostile texts as single turns, the same among conversations, and turns to replay."""
    out = tmp_path_factory.mktemp("packs")
    rows = hostile.rows()
    plain = [r for r in rows if len(r["messages"]) == 1 and not r["tools"]]
    template = {"template": {"name": "kimi-k2"}}
    return {
        "plain": write_pack(plain, out, name="plain"),
        "hostile": write_pack(rows, out, name="hostile", fields=template),
        "replay": write_pack(hostile.dialogues(), out, name="replay", fields={"recipe": {"turns": "all"}}),
    }


Make = Callable[[str, str], Path]


@pytest.fixture
def exported(packs: dict[str, Path], tokenizer: Path, tmp_path: Path, promptkit_command: Command) -> Make:
    """Run `promptkit export` as a user does; return the directory of the export."""

    def make(pack: str, target: str) -> Path:
        command = ("export", packs[pack], "--to", target, "--out", tmp_path / pack, "--tokenizer", tokenizer)
        done = promptkit_command(*command)
        assert done.returncode == 0, done.stderr
        return tmp_path / pack / target

    return make


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("check", CHECKS)
def test_own_loader_gives_back_the_pack(check: str, pack: str, packs: dict[str, Path], exported: Make) -> None:
    """Prompts, order, turns, tools and output lengths, as check_NAME.py of tests/harness compares them."""
    name, target = CHECKS[check]
    programs = environment(name)
    export = exported(pack, target)
    write_texts(load_pack(packs[pack]), export.parent / "texts.jsonl")
    python = programs / "python"
    script = ROOT / "tests" / "harness" / f"check_{check}.py"
    done = subprocess.run(
        [str(python) if python.exists() else sys.executable, str(script), str(export), str(packs[pack])],
        env=variables(programs, BASE_URL="http://127.0.0.1:9", MODEL="m"),
        cwd=export.parent,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("client", CLIENTS)
def test_server_receives_the_pack_from_the_printed_command(
    client: str, pack: str, packs: dict[str, Path], exported: Make, tmp_path: Path, tokenizer: Path
) -> None:
    """Number of requests, prompt text, tools and max_tokens of each, in the pack's order, and nothing else."""
    programs = environment(client)
    export = exported(pack, client)
    command = json.loads((export / "export.json").read_text())["command"]
    record = tmp_path / "record.jsonl"
    with Server(record) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = subprocess.run(
            ["bash", "-c", command],
            env=variables(programs, BASE_URL=server.url, MODEL="mock"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )
        server.shutdown()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    posts = [r for r in compare.jsonl(record) if r["method"] == "POST"]
    want = [
        (r["id"], line)
        for r in compare.turns(compare.expected(export, packs[pack]), packs[pack])
        for line in [wanted(r, load_pack(packs[pack]), posts[0]["path"] if posts else "")]
    ]
    got, lines = [received(p["body"]) for p in posts], [line for _, line in want]
    if client in REORDER:
        got, lines = (sorted(x, key=lambda line: json.dumps(line, sort_keys=True)) for x in (got, lines))
    assert got == lines


@pytest.fixture
def guidellm_server(tmp_path: Path) -> Iterator[str]:
    """GuideLLM's own mock server: the first token after 50 ms, the next ones every 5 ms."""
    programs = environment("guidellm")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [programs / "guidellm", "mock-server", "--port", port, "--ttft-ms", "50", "--itl-ms", "5"]
    log = tmp_path / "mock-server.log"
    with log.open("w") as out, subprocess.Popen(command, env=variables(programs), stdout=out, stderr=out) as server:
        try:
            for _ in range(240):
                assert server.poll() is None, log.read_text()[-3000:]
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models"):
                    break
                time.sleep(0.5)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


@pytest.mark.parametrize("script", ["benchmark_single_stream.py", "benchmark_parallel.py"])
def test_example_benchmarks_on_the_mock_server_of_guidellm(
    script: str, guidellm_server: str, packs: dict[str, Path]
) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), str(packs["plain"])],
        env={**os.environ, "BASE_URL": guidellm_server, "MODEL": "mock", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()[2:]
    assert [line[:22].strip() for line in lines] == list(load_pack(packs["plain"]).by_domain())
    if "single" in script:
        for line in lines:
            first, rate = (float(x) for x in re.findall(r"([\d.]+) \[", line))
            assert first >= 50, "no first token is earlier than the server sends it"
            assert 20 < rate < 210, "200 tokens per second at most"


def wanted(row: dict[str, Any], pack: Pack, path: str) -> dict[str, Any]:
    """Return what the server should see of a row: messages, or the text of the pack's template."""
    if not path.endswith("/chat/completions"):
        (prompt,) = [p for p in pack if p.id == row["id"]]
        return {"prompt": prompt.text(), "max_tokens": row["max_tokens"]}
    tools = {"tools": row["tools"]} if row["tools"] else {}
    return {"messages": compare.plain(row["messages"]), "max_tokens": row["max_tokens"], **tools}


def received(body: dict[str, Any]) -> dict[str, Any]:
    """Return the same of a request. In a conversation only what is new counts: what comes after the last answer."""
    length = body.get("max_completion_tokens") or body.get("max_tokens")
    if "messages" not in body:
        return {"prompt": body["prompt"], "max_tokens": length}
    messages = compare.plain(body["messages"])
    answers = [i for i, m in enumerate(messages) if m["role"] == "assistant" and m["content"].startswith("The mock")]
    tools = {"tools": body["tools"]} if body.get("tools") else {}
    return {"messages": messages[answers[-1] + 1 if answers else 0 :], "max_tokens": length, **tools}


def write_texts(pack: Pack, path: Path) -> None:
    """Write the templated text of each prompt, for targets that take text."""
    if (pack.manifest.get("template") or {}).get("name"):
        path.write_text("".join(json.dumps({"id": p.id, "text": p.text()}) + "\n" for p in pack))
