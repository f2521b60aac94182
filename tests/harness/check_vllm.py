"""Compare what vLLM's own loader makes of an export, as the printed command tells it, with the pack.

    vllm/bin/python tests/harness/check_vllm.py EXPORT_DIRECTORY PACK_DIRECTORY

An export of templated text is compared with `texts.jsonl` beside the export, if it is there: {"id", "text"} rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import byte_tokenizer
from compare import arguments, expected, jsonl, judge, words
from vllm.benchmarks.datasets import get_samples
from vllm.benchmarks.serve import add_cli_args
from vllm.tokenizers import get_tokenizer

export, pack = arguments(__doc__)
parser = argparse.ArgumentParser()
add_cli_args(parser)
args = parser.parse_args(words(export)[3:])  # after `vllm bench serve`
with TemporaryDirectory() as folder:
    tokenizer = get_tokenizer(str(byte_tokenizer.write(Path(folder))))
    samples = get_samples(args, tokenizer)
want = expected(export, pack)
got = [{"text": s.prompt, "max_tokens": s.expected_output_len} for s in samples]
if args.backend == "openai-chat":
    for row in got:
        row["messages"] = [{"role": "user", "content": row["text"]}]
    judge("vllm", got, want)
else:
    texts = {r["id"]: r["text"] for r in jsonl(export.parent / "texts.jsonl")}
    for row in want:
        row["text"] = texts[row["id"]]
    judge("vllm", got, want, keys=("text", "max_tokens"))
