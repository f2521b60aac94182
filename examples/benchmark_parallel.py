"""Throughput with parallel requests: generated tokens per second of the whole server, per domain.

    BASE_URL=http://localhost:8000 MODEL=m python examples/benchmark_parallel.py coding-agentic 16

Sends each domain by itself with so many requests at a time (default 8), in five runs. Each run has prompts of its
own, a replica of the pack: sending the same ones again would measure the server's cache. Means over runs with 95 %
Student t intervals. A domain in which a request failed has no numbers.
"""

import json
import os
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from scipy import stats

import promptkit

if not (len(sys.argv) > 1 and "BASE_URL" in os.environ and "MODEL" in os.environ):
    sys.exit(__doc__)
URL, MODEL = os.environ["BASE_URL"] + "/v1/chat/completions", os.environ["MODEL"]
JSON = {"Content-Type": "application/json"}
RUNS = 5


def generated(prompt: promptkit.Prompt) -> int | None:
    """Send a prompt; return how many tokens the server generated, or None and say what went wrong."""
    body = {"model": MODEL, "messages": prompt.messages, "temperature": 0}
    body |= {"max_tokens": prompt.expected_output_tokens or 512} | ({"tools": prompt.tools} if prompt.tools else {})
    try:
        request = urllib.request.Request(URL, json.dumps(body).encode(), JSON)
        with urllib.request.urlopen(request, timeout=600) as answer:
            return int(json.load(answer)["usage"]["completion_tokens"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{prompt.id} failed: {error}", file=sys.stderr)
        return None


pack = promptkit.load_pack(sys.argv[1])
rates: dict[str, list[float]] = {domain: [] for domain in pack.by_domain()}
failed = dict.fromkeys(rates, 0)
with ThreadPoolExecutor(int(sys.argv[2]) if len(sys.argv) > 2 else 8) as pool:
    for replica in pack.replicas(min(RUNS, len(pack))):
        for domain, prompts in replica.by_domain().items():
            start = time.perf_counter()
            counts = list(pool.map(generated, prompts))
            rates[domain].append(sum(n or 0 for n in counts) / (time.perf_counter() - start))
            failed[domain] += counts.count(None)
print(f"{pack.citation}\n{'domain':22}{'prompts':>8}{'runs':>6}  tokens/s")
for domain, prompts in pack.by_domain().items():
    runs, centre = len(rates[domain]), stats.tmean(rates[domain])
    low, high = stats.t.interval(0.95, runs - 1, centre, stats.sem(rates[domain])) if runs > 1 else (0, float("inf"))
    result = f"{centre:9.1f} [{max(0, low):.1f}, {high:.1f}]"  # one run has no interval, and no rate is below 0
    print(f"{domain:22}{len(prompts):8}{runs:6}", f"no numbers: {failed[domain]} failed" if failed[domain] else result)
sys.exit(f"{sum(failed.values())} of {len(pack)} requests failed" if any(failed.values()) else 0)
