"""Coverage-guided fuzzing of one reader: python tests/fuzz_readers.py CONTAINER SECONDS   (needs `pip install atheris`)

    python tests/fuzz_readers.py mds 300
    python tests/fuzz_readers.py jsonl.gz 300        the same inside gz, zst, xz or bz2
    python tests/fuzz_readers.py tokenizer 300       rank files, tokenizer.json, tekken.json, tokenizer.model

The shard, or a file that serves it, is replaced by the fuzzer's bytes; what is found is written to `crash-*` here. A run
fails on an exception, on rows that are not numbered from 0, on our own mistakes behind a fault, and on more than 512 MB
or 5 seconds for one file. Inputs that found faults become tests in `test_readers_tokens.py` and its neighbours.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import sys
import tempfile
from pathlib import Path

import atheris
import numpy as np
import pyarrow.parquet  # noqa: F401  before instrumentation: only our own code is to be followed
import shard_files
import zstandard

with atheris.instrument_imports(include=["promptkit"]):
    from promptkit.errors import PromptkitError
    from promptkit.readers import Fault, Hints, Limits, Shard, find_shards, read
    from promptkit.readers.look import look
    from promptkit.tokenizers import load_tokenizer

OURS = ("AttributeError", "TypeError", "NameError", "AssertionError", "RecursionError", "UnboundLocalError", "KeyError")
LIMITS = Limits(record_bytes=1 << 20, hints=Hints(dtype="uint32", ends=(7,)))
ROWS = [([5, 6, 7, 8], [0, 0, 1, 1])] * 3


PACKERS = {"gz": gzip.compress, "zst": zstandard.compress, "xz": lzma.compress, "bz2": bz2.compress}


def seeds(container: str) -> dict[str, bytes]:
    """Return good files to begin with: the first is the shard, the others serve it."""
    if container == "tokenizer":
        piece = b"\x0a\x0c\x0a\x05<unk>\x15\0\0\0\0\x18\x02"
        vocab = {"a": 0, "b": 1, "ab": 2, "<0x41>": 3}
        model = {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]}
        added = [{"id": 4, "content": "<s>", "special": True}]
        tekken = {"config": {"default_num_special_tokens": 2, "default_vocab_size": 4, "pattern": "."},
                  "vocab": [{"rank": 0, "token_bytes": "YQ=="}]}  # fmt: skip
        return {
            "tiktoken.model": b"YQ== 0\nYg== 1\n",
            "tokenizer.json": json.dumps({"model": model, "added_tokens": added}).encode(),
            "tekken.json": json.dumps(tekken).encode(),
            "tokenizer.model": piece + b"\x0a\x0a\x0a\x01a\x15\0\0\0\0\x18\x01" + b"\x12\x02\x18\x02",
        }
    base, _, packing = container.partition(".")
    files = shard_files.WRITERS[base](ROWS)
    return {name: PACKERS[packing](data) if packing else data for name, data in files.items()}


def main() -> None:
    container, seconds = sys.argv[1], sys.argv[2]
    files = seeds(container)
    names = list(files)
    root = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    corpus = Path(tempfile.mkdtemp())
    for k, data in enumerate(files.values()):
        (corpus / str(k)).write_bytes(bytes([k]) + data)

    def one(data: bytes) -> None:
        victim = names[data[0] % len(names)] if data else names[0]
        for name, good in files.items():
            (root / name).write_bytes(data[1:] if name == victim else good)
        if container == "tokenizer":
            with contextlib.suppress(PromptkitError):
                load_tokenizer(root / victim).decode(np.arange(6))
            return
        items = list(read(root, Shard(names[0], container, "s", 0), limits=LIMITS))
        rows = [item.row for item in items if item.row is not None]
        assert rows == list(range(len(rows))), rows[:20]
        for item in items:
            assert not (isinstance(item, Fault) and item.reason.startswith(OURS)), item
        find_shards(root, limits=LIMITS)
        look(root / names[0], container, LIMITS)

    options = [
        f"-max_total_time={seconds}",
        "-timeout=5",
        "-rss_limit_mb=2048",
        "-malloc_limit_mb=512",
        "-max_len=8192",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
