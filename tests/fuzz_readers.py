"""Coverage-guided fuzzing of one reader: python tests/fuzz_readers.py CONTAINER SECONDS   (needs `pip install atheris`)

    python tests/fuzz_readers.py mds 300

The shard, or a file that serves it, is replaced by the fuzzer's bytes; what is found is written to `crash-*` here. A run
fails on an exception, on rows that are not numbered from 0, on our own mistakes behind a fault, and on more than 512 MB
or 5 seconds for one file. Inputs that found faults become tests in `test_readers_tokens.py` and its neighbours.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris
import pyarrow.parquet  # noqa: F401  before instrumentation: only our own code is to be followed
import shard_files

with atheris.instrument_imports(include=["promptkit"]):
    from promptkit.readers import Fault, Hints, Limits, Shard, find_shards, read

OURS = ("AttributeError", "TypeError", "NameError", "AssertionError", "RecursionError", "UnboundLocalError", "KeyError")
LIMITS = Limits(record_bytes=1 << 20, hints=Hints(dtype="uint32", ends=(7,)))
ROWS = [([5, 6, 7, 8], [0, 0, 1, 1])] * 3


def main() -> None:
    container, seconds = sys.argv[1], sys.argv[2]
    files = shard_files.WRITERS[container](ROWS)
    names = list(files)
    root = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    corpus = Path(tempfile.mkdtemp())
    for k, data in enumerate(files.values()):
        (corpus / str(k)).write_bytes(bytes([k]) + data)

    def one(data: bytes) -> None:
        victim = names[data[0] % len(names)] if data else names[0]
        for name, good in files.items():
            (root / name).write_bytes(data[1:] if name == victim else good)
        items = list(read(root, Shard(names[0], container, "s", 0), limits=LIMITS))
        rows = [item.row for item in items if item.row is not None]
        assert rows == list(range(len(rows))), rows[:20]
        for item in items:
            assert not (isinstance(item, Fault) and item.reason.startswith(OURS)), item
        find_shards(root, limits=LIMITS)

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
