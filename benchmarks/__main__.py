"""Measure promptkit on a training directory.

    python -m benchmarks --dir DIR [--rows N] [--processes N] [--json FILE]

Builds a reference and a pack of 200 from DIR in a directory that is thrown away, then scores that pack cold, and sets
each stage beside what bare libraries need for the same data. Prints a table and writes JSON. Give `--processes 1` for
the cost of one core. With --rows, the sources of DIR are linked as often as needed to have at least N rows: reading
scales as it would, but the groups of near-duplicates are larger than in any real mix.

Close other programs: load is printed because it changes everything.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import promptkit
from benchmarks import a_folder, command, limits
from benchmarks.watch import Watch
from promptkit import collect, leakage, readers

LIBRARIES = ("numpy", "polars", "pyarrow", "orjson", "tiktoken", "tokenizers", "scikit-learn", "scipy", "zstandard")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--dir", type=a_folder, required=True, help="a training directory")
    parser.add_argument("--rows", type=int, help="link the sources again until there are at least so many rows")
    parser.add_argument("--size", type=int, default=200, help="prompts in the pack (default 200)")
    parser.add_argument("--processes", type=int, help="default: one per core")
    parser.add_argument("--sample-size", type=int, default=20_000, help="rows that are fitted (default 20000)")
    parser.add_argument("--json", type=Path, default=Path("benchmark.json"), help="where the figures go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="promptkit-benchmark-") as scratch:
        root = options.dir if options.rows is None else multiplied(options.dir, options.rows, Path(scratch) / "mix")
        figures = measure(root, Path(scratch), options)
    options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    show(figures)
    print(f"\nwritten to {options.json}")


def multiplied(root: Path, rows: int, out: Path) -> Path:
    """Return a directory with hard links to the sources of `root`, often enough to hold `rows` rows."""
    have = sum(s["rows"] for s in promptkit.inspect(root).sources)
    files = [p for p in sorted(root.rglob("*")) if p.is_file() and not p.is_symlink()]
    tokenizers = {Path(d) for d in readers.find_shards(root).tokenizer_dirs}
    for copy in range(-(-rows // have)):
        for path in files:
            first, *rest = path.relative_to(root).parts
            if copy and Path(first) in tokenizers:
                continue
            link(path, out.joinpath(first if Path(first) in tokenizers else f"{first}_{copy:04d}", *rest))
    return out


def link(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, target)
    except OSError:  # another file system
        target.write_bytes(path.read_bytes())


def measure(root: Path, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    load = os.getloadavg()[0]
    with Watch() as watch:
        watch.enter("open")
        start = time.perf_counter()
        built = promptkit.build(
            root, out=scratch / "out", size=options.size, processes=options.processes,
            sample_size=options.sample_size, progress=watch.progress,
        )  # fmt: skip
        watch.leave()
        wall = time.perf_counter() - start
    stages = [vars(s) for s in watch.stages.values()]

    reference = promptkit.load_reference(built.reference)
    sample = reference.sample
    texts, answers = sample["text"].to_list(), [t or "" for t in reference.conversations["response_text"].to_list()]
    n_rows = sum(s["rows"] for s in built.sources)
    n_tokens = sum(s["tokens"] or 0 for s in built.sources)
    # rows and tokens that pass through each stage; a stage that is not named here is shown without a rate
    opened = int(sample["n_prompt_tokens"].sum())
    answered = int(sample["n_response_tokens"].sum())
    amounts = {
        "read": (n_rows, n_tokens), "decode": (len(sample), opened + answered), "embed": (len(sample), opened),
        "group near-duplicates": (len(sample), opened), "label": (len(sample), opened),
        "fit prompts": (len(sample), opened), "fit responses": (len(sample), answered), "select": (len(sample), opened),
    }  # fmt: skip

    singles = Watch()
    with singles:
        with singles.stage("a process that imports promptkit"):
            subprocess.run([sys.executable, "-c", "import promptkit"], check=True)
        with singles.stage(f"score {options.size} prompts (cold)"):
            program = "import sys, promptkit; promptkit.score(sys.argv[1], sys.argv[2])"
            subprocess.run([sys.executable, "-c", program, built.pack, built.reference], check=True)
        pack = list(promptkit.load_pack(built.pack))
        for _ in range(2):  # what is made once for all sets of a size, and once for these prompts
            promptkit.score(pack, reference)
        with singles.stage(f"score {options.size} prompts (again)"):
            promptkit.score(pack, reference)
        with singles.stage("sample: hash of each row"):
            for n in range(n_rows):
                collect.row_priority(0, "A1_source/train-00000-of-00001.parquet", n)
        with singles.stage("cluster"):
            from promptkit import clusters

            clusters.fit(reference.X, n_clusters=16)
        with singles.stage("leak check of the pack"):
            leakage.leaks([p.messages[-1]["content"] for p in promptkit.load_pack(built.pack)], texts)
    amounts["sample: hash of each row"] = (n_rows, n_tokens)
    amounts["cluster"] = (len(sample), opened)
    amounts["leak check of the pack"] = (len(sample), opened)
    stages += [vars(s) for s in singles.stages.values()]
    for stage in stages:
        rows, tokens = amounts.get(stage["name"], (None, None))
        stage.update(rows=rows, tokens=tokens)

    return {
        "machine": machine(load), "promptkit": promptkit.__version__,
        "directory": {"rows": n_rows, "tokens": n_tokens, "bytes": size_of(root), "sampled": len(sample)},
        "build_wall_seconds": wall, "build_peak_bytes": max(s.peak_bytes for s in watch.stages.values()),
        "processes": options.processes, "stages": stages,
        "limits": bounds(root, reference, texts, answers, {s["name"]: s for s in stages}),
    }  # fmt: skip


def bounds(
    root: Path, reference: Any, texts: list[str], answers: list[str], stages: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the limits, each with the stage that it bounds and how many times longer that stage took."""
    shards = readers.find_shards(root).shards
    n_bytes, raw = limits.raw_bytes(root, shards)
    kinds: defaultdict[str, float] = defaultdict(float)
    ours: defaultdict[str, float] = defaultdict(float)
    for shard in {s.format: s for s in shards}.values():  # importing the libraries belongs to neither
        limits.bare_read(root / shard.path, shard.format)
        limits.checked_read(root, shard)
    for shard in shards:
        kinds[shard.format] += limits.seconds(partial(limits.bare_read, root / shard.path, shard.format))
        ours[shard.format] += limits.seconds(partial(limits.checked_read, root, shard))
    bare, read_alone = sum(kinds.values()), sum(ours.values())

    tokenizer = reference.tokenizer
    encoded = tokenizer.encode_batch([*texts, *answers])
    ids = np.concatenate(encoded).astype(np.int64)
    used, dense = np.unique(ids, return_inverse=True)
    table = tokenizer.tokens(used)
    gather = limits.seconds(lambda: limits.gather_decode(dense, table).decode("utf-8", "replace"))
    rows = [row.astype(np.int64) for row in encoded]
    decode_alone = limits.seconds(lambda: [tokenizer.decode(row) for row in rows])
    encode = limits.seconds(lambda: tokenizer.encode_batch(texts))
    read, decode = stages.get("read", {}), stages.get("decode", {})
    fit = stages.get("fit prompts", {})
    return [
        {"limit": "read the bytes of all shards (at most 1 GiB)", "seconds": raw, "mb_per_second": n_bytes / raw / 1e6},
        {"limit": "parse all shards with bare libraries, one process", "seconds": bare, "of": "read",
         "ratio_cpu": ratio(read.get("cpu_seconds"), bare), "by_format": dict(sorted(kinds.items()))},
        {"limit": "the same by promptkit's readers, all values checked", "seconds": read_alone,
         "times": read_alone / bare, "by_format": dict(sorted(ours.items()))},
        {"limit": "decode the sampled tokens by one NumPy gather", "seconds": gather, "of": "decode",
         "tokens_per_second": len(ids) / gather, "ratio_cpu": ratio(decode.get("cpu_seconds"), gather)},
        {"limit": "the same by promptkit's tokenizer, row by row", "seconds": decode_alone,
         "times": decode_alone / gather, "tokens_per_second": len(ids) / decode_alone},
        {"limit": "encode the sampled openings once", "seconds": encode, "of": "fit prompts",
         "tokens_per_second": sum(map(len, encoded[: len(texts)])) / encode,
         "ratio_cpu": ratio(fit.get("cpu_seconds"), encode)},
    ]  # fmt: skip


def ratio(a: float | None, b: float) -> float | None:
    return a / b if a is not None and b else None


def size_of(root: Path) -> int:
    return sum(p.stat().st_size for p in root.rglob("*") if p.is_file())


def machine(load: float) -> dict[str, Any]:
    def field(path: str, name: str) -> str:
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            return "unknown"
        return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "unknown")

    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "missing"
    return {
        "processor": field("/proc/cpuinfo", "model name"), "cores": os.cpu_count(),
        "memory": field("/proc/meminfo", "MemTotal"), "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(), "load_before": round(load, 2), "libraries": versions,
    }  # fmt: skip


def show(figures: dict[str, Any]) -> None:
    m, d = figures["machine"], figures["directory"]
    print(f"{m['processor']}, {m['cores']} cores, {m['memory']}, {m['system']}, Python {m['python']}")
    print(f"load before: {m['load_before']}")
    print(f"{d['rows']:,} rows, {d['tokens']:,} tokens, {d['bytes'] / 1e6:,.0f} MB, {d['sampled']:,} sampled\n")
    print(f"{'stage':30}{'wall s':>9}{'cpu s':>9}{'peak MB':>9}{'k rows/s':>10}{'M tok/s':>9}")
    for s in figures["stages"]:
        wall = max(s["wall_seconds"], 1e-9)
        rates = [f"{n / wall / unit:.2f}" if n else "" for n, unit in ((s["rows"], 1e3), (s["tokens"], 1e6))]
        print(
            f"{s['name']:30}{wall:9.2f}{s['cpu_seconds']:9.2f}{s['peak_bytes'] / 1e6:9.0f}{rates[0]:>10}{rates[1]:>9}"
        )
    print(f"{'build':30}{figures['build_wall_seconds']:9.2f}{'':9}{figures['build_peak_bytes'] / 1e6:9.0f}\n")
    for limit in figures["limits"]:
        rate = [f"{limit[k] / unit:,.1f} {label}" for k, unit, label in
                (("mb_per_second", 1, "MB/s"), ("tokens_per_second", 1e6, "M tokens/s")) if k in limit]  # fmt: skip
        times = limit.get("ratio_cpu")
        against = [f"{limit['of']} takes {times:.1f} times its processor time"] if times else []
        against += [f"{limit['times']:.2f} times the limit above"] if "times" in limit else []
        print(f"{limit['limit']}: {limit['seconds']:.2f} s" + "".join(f", {t}" for t in itertools.chain(rate, against)))


if __name__ == "__main__":
    command(main)
