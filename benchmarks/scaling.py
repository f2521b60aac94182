"""What a build costs as the training directory grows: processor time, and the highest memory of all its processes.

    python -m benchmarks.scaling --dir DIR [--rows 10000,100000,1000000] [--processes N] [--json FILE]

Each size is DIR cut to so many rows (whole files, in the share that each source has), or its sources linked again and
again where it has fewer; each is built in a process of its own and thrown away. Prints a line per size and the exponent
of cost against rows: the slope in logarithms, of all sizes and between neighbours, for reading alone and for the whole.
20,000 sampled rows are fitted whatever the size, so a whole build grows more slowly than reading does.

Memory is given twice: as the sum of resident sets, in which pages that processes share count once for each, and with
shared pages counted once (PSS).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import promptkit
from benchmarks import a_folder, command
from benchmarks.__main__ import link, multiplied
from benchmarks.watch import Watch
from promptkit import readers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--dir", type=a_folder, required=True, help="a training directory")
    parser.add_argument("--rows", default="10000,100000,1000000", help="sizes, with commas between them")
    parser.add_argument("--processes", type=int, help="default: one per core")
    parser.add_argument("--json", type=Path, default=Path("scaling.json"), help="where the figures go")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # build this directory and print its figures
    options = parser.parse_args()
    if options.one:
        print(json.dumps(build(options.one, options.processes)))
        return
    sizes = options.rows.split(",")
    if not all(size.isdecimal() and int(size) for size in sizes):
        parser.error(f"--rows {options.rows}: whole numbers above 0, with commas between them")
    found = []
    for rows in map(int, sizes):
        with tempfile.TemporaryDirectory(prefix=".promptkit-scaling-", dir=options.dir.resolve().parent) as scratch:
            root = sized(options.dir, rows, Path(scratch) / "mix")
            command = [sys.executable, "-m", "benchmarks.scaling", "--dir", str(options.dir), "--one", str(root)]
            command += ["--processes", str(options.processes)] if options.processes else []
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        found.append(json.loads(done.stdout))
        show(found[-1])
        options.json.write_text(json.dumps({"sizes": found, "exponents": exponents(found)}, indent=1) + "\n")
    for name, slopes in exponents(found).items():
        between = ", ".join(f"{s:.2f}" for s in slopes["between"])
        print(f"exponent of {name}: {slopes['all']:.3f} over all sizes; between neighbours {between}")


def sized(root: Path, rows: int, out: Path) -> Path:
    """Return a directory of links to the files of `root` that has about `rows` rows."""
    sources = promptkit.inspect(root)
    have = sum(s["rows"] for s in sources.sources)
    if rows >= have:
        return multiplied(root, rows, out)
    shards = readers.find_shards(root).shards
    data = {s.path for s in shards}
    n_rows = {a.path: a.rows for a in sources.account}
    left = {s["source"]: s["rows"] * rows / have for s in sources.sources}
    kept = set()
    for shard in shards:
        n = n_rows.get(shard.path, 0)
        if n and left[shard.source] >= n / 2:
            left[shard.source] -= n
            kept.add(shard.path)
    for path in sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink()):
        name = path.relative_to(root).as_posix()
        if name in kept or name not in data:
            link(path, out / name)
    return out


def build(root: Path, processes: int | None) -> dict[str, Any]:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=root.parent) as out, Watch(shared_once=True) as watch:
        watch.enter("open")
        built = promptkit.build(root, out=out, processes=processes, progress=watch.progress)
        watch.leave()
    stages = watch.stages
    return {
        "rows": sum(s["rows"] for s in built.sources), "tokens": sum(s["tokens"] or 0 for s in built.sources),
        "files": len(built.account), "load_before": round(load, 1),
        "cpu_seconds": sum(s.cpu_seconds for s in stages.values()),
        "reading_cpu_seconds": sum(stages[n].cpu_seconds for n in ("open", "read") if n in stages),
        "wall_seconds": sum(s.wall_seconds for s in stages.values()),
        "peak_bytes": max(s.peak_bytes for s in stages.values()),
        "peak_bytes_shared_once": max(s.peak_bytes_shared_once for s in stages.values()),
        "stages": [vars(s) for s in stages.values()],
    }  # fmt: skip


def exponents(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the slope of log cost against log rows by least squares, and between each size and the next."""
    if len(found) < 2:
        return {}
    x = np.log([f["rows"] for f in found])
    out = {}
    for name, key in (("reading", "reading_cpu_seconds"), ("the whole build", "cpu_seconds")):
        y = np.log([f[key] for f in found])
        between = [(b - a) / (v - u) for (u, v), (a, b) in zip(pairwise(x.tolist()), pairwise(y.tolist()), strict=True)]
        out[name] = {"all": float(np.polyfit(x, y, 1)[0]), "between": between}
    return out


def show(f: dict[str, Any]) -> None:
    print(
        f"{f['rows']:>10,} rows, {f['tokens'] / 1e6:.1f} M tokens, {f['files']:,} files (load {f['load_before']}): "
        f"reading {f['reading_cpu_seconds']:.1f} s, build {f['cpu_seconds']:.1f} s of processor, "
        f"{f['wall_seconds']:.1f} s on the clock, at most {f['peak_bytes'] / 1e6:,.0f} MB, "
        f"{f['peak_bytes_shared_once'] / 1e6:,.0f} MB with shared pages counted once",
        flush=True,
    )


if __name__ == "__main__":
    command(main)
