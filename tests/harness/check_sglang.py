"""Compare what SGLang's own loader makes of an export, as the printed command tells it, with the pack.

sglang/bin/python tests/harness/check_sglang.py EXPORT_DIRECTORY PACK_DIRECTORY
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import byte_tokenizer
from compare import arguments, expected, judge, words
from sglang.benchmark import serving
from sglang.benchmark.datasets import get_dataset
from transformers import AutoTokenizer

export, pack = arguments(__doc__)
parsed: list[argparse.Namespace] = []
serving.run_benchmark = parsed.append  # the command's arguments, through the client's own parser
sys.argv = words(export)[2:]  # after `python -m`
serving.cli_main()
with TemporaryDirectory() as folder:
    tokenizer = AutoTokenizer.from_pretrained(byte_tokenizer.write(Path(folder)))
    rows = get_dataset(parsed[0], tokenizer, parsed[0].model)
got = [
    {"messages": r.prompt, "max_tokens": r.output_len, "tools": r.extra_request_body.pop("tools", None)} for r in rows
]
if more := [r.extra_request_body for r in rows if r.extra_request_body]:
    sys.exit(f"sglang: {len(more)} rows put other keys into the request: {more[0]}")
judge("sglang", got, expected(export, pack), keys=("messages", "tools", "max_tokens"))
