"""The two benchmarks of examples/ as a user starts them, against the recording server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLES, ROOT

from promptkit.pack import load_pack, write_pack

sys.path.insert(0, str(ROOT / "tests" / "harness"))
from mock_server import Server  # type: ignore[import-not-found]

SCRIPTS = ("benchmark_single_stream.py", "benchmark_parallel.py")


@contextlib.contextmanager
def server(record: Path, **options: Any) -> Iterator[Server]:
    import threading

    with Server(record, **options) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def run(script: str, pack: Path, url: str, *more: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "BASE_URL": url, "MODEL": "mock", "PYTHONPATH": path}
    command = [sys.executable, str(EXAMPLES / script), str(pack), *more]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve prompts in two domains, one with tools and one without a known length, and one domain of one prompt."""
    from promptkit.conversation import prompt_id

    tool = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}]
    rows = []
    for i in range(13):
        messages = [{"role": "user", "content": f"Question {i}: why?\u2028And how?"}]
        tools = tool if i == 3 else None
        rows.append(
            {
                "id": prompt_id(messages, tools),
                "messages": messages,
                "tools": tools,
                "domain": "rare" if i == 12 else ("math", "chat")[i % 2],
                "expected_output_tokens": None if i == 5 else 20 + i,
            }
        )
    return write_pack(rows, tmp_path_factory.mktemp("packs"), name="small")


def received(record: Path) -> list[str]:
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    return sorted(
        json.dumps([r["body"]["messages"], r["body"].get("tools"), r["body"]["max_tokens"]], sort_keys=True)
        for r in rows
        if r["method"] == "POST"
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_prompt_is_sent_once_with_its_tools_and_length(script: str, pack: Path, tmp_path: Path) -> None:
    with server(tmp_path / "record.jsonl") as running:
        done = run(script, pack, running.url)
    assert (done.returncode, done.stderr) == (0, "")
    sent = [[p.messages, p.tools, p.expected_output_tokens or 512] for p in load_pack(pack)]
    assert received(tmp_path / "record.jsonl") == sorted(json.dumps(x, sort_keys=True) for x in sent)


def test_first_token_and_rate_are_those_of_the_server(pack: Path, tmp_path: Path) -> None:
    with server(tmp_path / "record.jsonl", delay=0.02) as running:
        done = run("benchmark_single_stream.py", pack, running.url)
    lines = done.stdout.splitlines()
    assert lines[0] == load_pack(pack).citation
    for domain, n in (("chat", 6), ("math", 6), ("rare", 1)):
        (line,) = [x for x in lines if x.startswith(domain)]
        count, first, rate = re.fullmatch(rf"{domain} +(\d+) +([\d.]+) \[.*?\] +([\d.]+) \[.*?\]", line).groups()  # type: ignore[union-attr]
        assert int(count) == n
        assert 20 <= float(first) < 200  # one token's delay, and what a busy machine adds
        assert 15 < float(rate) <= 50  # never more than the server's own 50 tokens per second
        assert ("inf" in line) == (n == 1), "one prompt has no interval"


def test_throughput_counts_requests_in_parallel(pack: Path, tmp_path: Path) -> None:
    with server(tmp_path / "record.jsonl", delay=0.01) as running:
        one, four = (run("benchmark_parallel.py", pack, running.url, n).stdout for n in ("1", "4"))
    rate = {n: float(re.search(r"^math +6 +5 +([\d.]+) \[", out, re.M)[1]) for n, out in ((1, one), (4, four))}  # type: ignore[index]
    assert 30 < rate[1] <= 100, "one stream gives the server's 100 tokens per second at most"
    # Five runs of a domain of six prompts: one run has two, so parallel requests gain there and only there.
    assert rate[1] < rate[4] <= 240
    rows = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    assert max(r["in_flight"] for r in rows) > 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_domain_with_a_failed_request_has_no_numbers(script: str, pack: Path, tmp_path: Path) -> None:
    with server(tmp_path / "record.jsonl", fail_every=13) as running:  # the last request: of one domain
        done = run(script, pack, running.url, *(["1"] if "parallel" in script else []))
    assert done.returncode == 1
    assert "1 of 13 requests failed" in done.stderr
    assert "HTTP Error 500" in done.stderr
    failed = [line for line in done.stdout.splitlines() if "no numbers: 1 failed" in line]
    assert len(failed) == 1
    assert sum("[" in line for line in done.stdout.splitlines()) == 2, "the other domains keep theirs"


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_server_at_all_is_no_result(script: str, pack: Path) -> None:
    done = run(script, pack, "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "13 of 13 requests failed" in done.stderr
    assert "[" not in done.stdout
