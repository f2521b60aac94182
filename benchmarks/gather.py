"""What gathering the parts of a very large mix costs: parts as workers would leave them, made up and not read.

    python -m benchmarks.gather                        # 10,000 shards of 10,000 rows: 100 million rows
    python -m benchmarks.gather --shards 1000          # how it grows

Rows have 450 random ids. Their priorities are uniform, and a part holds those below the bound of the moment, as when
one start of `build --parts` reads everything; which rows are in the sample depends on the priorities alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import command
from promptkit import collect, parts, readers, tokenizers

TOKENS = 450  # of a row, as in the synthetic mixes
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "training_mix" / "tokenizer"


def make(folder: Path, shards: int, rows: int, sample_size: int) -> int:
    """Write the parts of `shards` files of `rows` rows; return how many rows they hold."""
    root = folder / "mix"
    root.mkdir()
    n_bytes = rows * TOKENS * 8  # ids and mask as int64 and more: a unit of its own where it is above 32 MB
    listed = [readers.Shard(f"part-{k:06d}.arrow", "arrow-stream", "mix", n_bytes) for k in range(shards)]
    for shard in listed:
        with open(root / shard.path, "wb") as f:
            f.truncate(n_bytes)  # a hole: it has a size and takes no room
    tokenizer = tokenizers.load_tokenizer(EXAMPLE)
    tree = readers.Tree(str(root), listed, [], [], {})
    opened = collect.Opened(tree=tree, tokenizer=tokenizer, template=None, evidence=[], shards=listed)
    plan = collect.plan_for(opened, sample_size, 0, None, merge_prefixes=True)
    store = parts.Parts(folder / "parts", opened, plan)
    assert len(store.units) == shards, "shards must be above collect.UNIT_BYTES: more rows, please"
    store.publish()
    rng = np.random.default_rng(0)
    kept, written = parts._Smallest(sample_size), 0
    for unit in store.units:
        bound = kept.bound()
        share = 1.0 if bound is None else int.from_bytes(bound[:8], "big") / 2.0**64
        n = int(rng.binomial(rows, share))
        drawn = sorted((rng.random(n) * share * 2.0**64).astype(np.uint64).tolist())
        priorities = [p.to_bytes(8, "big") + rng.bytes(8) for p in drawn][:sample_size]
        sample = [
            collect.Row(p, unit[0], readers.Record(k, rng.integers(0, 256, TOKENS), rng.random(TOKENS) < 0.6))
            for k, p in enumerate(priorities)
        ]
        entry = readers.FileAccount(listed[unit[0]].path, "read", "", rows, 0, 0)
        counts = Counter(rows=rows, tokens=rows * TOKENS, supervised_tokens=rows * TOKENS * 6 // 10)
        summary = collect.Summary(
            {"mix": counts}, {"mix": Counter({TOKENS.bit_length(): rows})}, {unit[0]: entry}, sample, bound
        )
        store.write(unit, summary, bound)
        kept.add(priorities)
        written += len(priorities)
    return written


def gather(folder: Path) -> dict[str, Any]:
    """Gather in this process; return what it took of it."""
    start, wall = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    found = parts.gather(folder)
    wall, end = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "rows": sum(c["rows"] for c in found.summary.sources.values()),
        "sample": len(found.summary.sample),
        "cpu_seconds": round(end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime, 1),
        "wall_seconds": round(wall, 1),
        "peak_mb": round(end.ru_maxrss / 1024),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=10_000, help="of a shard")
    parser.add_argument("--sample-size", type=int, default=20_000)
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.shards, options.rows, options.sample_size) < 1:
        parser.error("--shards, --rows and --sample-size are 1 or more")
    if options.only:
        print(json.dumps(gather(options.only)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = make(folder, options.shards, options.rows, options.sample_size)
        files = list((folder / "parts").glob("*.npz"))
        told = {"parts": len(files), "rows_in_parts": written, "mb": round(sum(f.stat().st_size for f in files) / 1e6)}
        # In a process of its own: peak memory is of gathering alone.
        command = [sys.executable, "-m", "benchmarks.gather", "--only", str(folder / "parts")]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        print(json.dumps(told | json.loads(done.stdout)))


if __name__ == "__main__":
    command(main)
