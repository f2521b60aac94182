"""Latency of one stream: time to the first token, and tokens per second after it, per domain.

    BASE_URL=http://localhost:8000 MODEL=m python examples/benchmark_single_stream.py coding-agentic

Prompts one at a time, streamed; means with 95 % Student t intervals; none for a domain in which a request failed.
"""

import json
import os
import sys
import time
import urllib.request

from scipy import stats

import promptkit

if not (len(sys.argv) > 1 and "BASE_URL" in os.environ and "MODEL" in os.environ):
    sys.exit(__doc__)
URL, MODEL = os.environ["BASE_URL"] + "/v1/chat/completions", os.environ["MODEL"]


def stream(prompt: promptkit.Prompt) -> tuple[float, float]:
    """Return milliseconds to the first token and tokens per second after it."""
    body = {"model": MODEL, "messages": prompt.messages} | ({"tools": prompt.tools} if prompt.tools else {})
    body |= {"max_tokens": max(2, prompt.expected_output_tokens or 512), "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(URL, json.dumps(body).encode(), {"Content-Type": "application/json"})
    start, times, tokens = time.perf_counter(), [], 0
    with urllib.request.urlopen(request, timeout=600) as answer:
        for event in (json.loads(line[6:]) for line in answer if line.startswith(b"data: {")):
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            if any(text for c in event["choices"] for key, text in c["delta"].items() if key != "role"):
                times.append(time.perf_counter())
    if tokens < 2 or len(times) < 2:
        raise ValueError(f"{tokens} tokens in {len(times)} parts, nothing to time")
    return 1000 * (times[0] - start), (tokens - 1) / (times[-1] - times[0])


def mean(values: list[float]) -> str:  # one value has no interval, and no time or rate is below 0
    n, centre = len(values), stats.tmean(values)
    low, high = stats.t.interval(0.95, n - 1, centre, stats.sem(values)) if n > 1 else (0, float("inf"))
    return f"{centre:9.1f} [{max(0, low):.1f}, {high:.1f}]"


pack = promptkit.load_pack(sys.argv[1])
print(f"{pack.citation}\n{'domain':22}{'prompts':>8}  {'first token, ms':26}{'tokens/s after it'}")
failures = 0
for domain, prompts in pack.by_domain().items():
    results = []
    for prompt in prompts:
        try:
            results.append(stream(prompt))
        except (OSError, ValueError, KeyError) as error:
            print(f"{prompt.id} failed: {error}", file=sys.stderr)
    failures += (failed := len(prompts) - len(results))
    cells = [] if failed else [mean(list(column)) for column in zip(*results, strict=True)]
    print(f"{domain:22}{len(prompts):8}  " + (f"no numbers: {failed} failed" if failed else f"{cells[0]:26}{cells[1]}"))
sys.exit(f"{failures} of {len(pack)} requests failed" if failures else 0)
