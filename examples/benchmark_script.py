"""A benchmark as many people keep it: the prompts stand in the script. `promptkit score` reads the list, never runs it.

promptkit score examples/benchmark_script.py
"""

import json
import os
import time
import urllib.request

PROMPTS = [
    "Write a Python function that merges overlapping intervals and returns them sorted. Include two examples.",
    "Our nightly job fails with `KeyError: 'total'` in report.py since the upgrade. How would you find the cause?",
    """Review this function and point out the bug:

def average(values):
    return sum(values) / len(values) - 1
""",
    "Add a --verbose flag to this argparse script and log each processed file when it is given.",
    "Translate this SQL into Polars: SELECT city, avg(price) FROM sales GROUP BY city HAVING count(*) > 5",
    "A tank is filled by two pipes in 4 and 6 hours. How long do both need together? Think step by step.",
]


def main() -> None:
    url = os.environ["BASE_URL"] + "/v1/chat/completions"
    for prompt in PROMPTS:
        body = {"model": os.environ["MODEL"], "max_tokens": 512, "messages": [{"role": "user", "content": prompt}]}
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        start = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            n = json.load(answer)["usage"]["completion_tokens"]
        print(f"{n / (time.perf_counter() - start):7.1f} tokens/s  {prompt[:60]!r}")


if __name__ == "__main__":
    main()
