"""A benchmark that takes its prompts from a pack: what an author changes to become representative.

    promptkit build --from examples/training_mix
    python examples/use_in_a_benchmark.py promptkit-out/packs/training_mix/1.0.0

Prints how the pack is composed, then sends it to `$BASE_URL` with model `$MODEL` if both are set.
"""

import json
import os
import sys
import time
import urllib.request

import promptkit


def request_tokens(prompt: promptkit.Prompt) -> tuple[int, float]:
    """Send one prompt to an OpenAI-compatible server; return generated tokens and seconds."""
    body = {
        "model": os.environ["MODEL"],
        "messages": prompt.messages,
        "max_tokens": prompt.expected_output_tokens or 512,
        "temperature": 0,
    }
    if prompt.tools:
        body["tools"] = prompt.tools
    url = os.environ["BASE_URL"] + "/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    start = time.perf_counter()
    with urllib.request.urlopen(request) as answer:
        n_tokens = json.load(answer)["usage"]["completion_tokens"]
    return n_tokens, time.perf_counter() - start


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    pack = promptkit.load_pack(sys.argv[1])  # verifies names, sizes and hashes
    for domain, prompts in pack.by_domain().items():
        print(f"{domain:22}{len(prompts):5} prompts")
    if "BASE_URL" not in os.environ or "MODEL" not in os.environ:
        print("set BASE_URL and MODEL to send them")
        return
    for domain, prompts in pack.by_domain().items():
        results = [request_tokens(p) for p in prompts]
        n_tokens, seconds = (sum(column) for column in zip(*results, strict=True))
        print(f"{domain:22}{n_tokens / seconds:8.1f} tokens/s")


if __name__ == "__main__":
    main()
