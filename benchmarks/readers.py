"""Reading and decoding beside the best that bare libraries do with the same files.

    python -m benchmarks.readers [--rows 2000] [--tokenizer DIR] [--json FILE]

Writes rows of ids and masks (and hidden states, in torch files) to a directory that is thrown away, then takes turns:
promptkit, the library alone, promptkit, ... What the library alone must give is what promptkit gives, an array of ids
and one of the mask for each row, but unchecked. The figure is the least processor time of a few turns, which other
programs disturb little; files are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import command
from benchmarks.limits import gather_decode
from promptkit import readers
from promptkit.tokenizers import Tokenizer, load_tokenizer

TURNS = 7
HIDDEN = 64  # numbers of a hidden state: enough to see whether they are read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=2000, help="rows of about 1,000 ids (default 2000)")
    parser.add_argument("--tokenizer", help="whose table decodes (default: 150,000 made-up words)")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else None
    with tempfile.TemporaryDirectory(prefix="promptkit-readers-") as scratch:
        figures = measure(Path(scratch), options.rows, tokenizer)
    print(f"{'what':22}{'M tokens/s':>12}{'the best beside it':>34}{'M tokens/s':>12}{'times':>8}")
    for f in figures:
        best = f["beside"][f["best"]]
        print(f"{f['what']:22}{f['promptkit'] / 1e6:12.1f}{f['best']:>34}{best / 1e6:12.1f}{f['times']:8.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def measure(root: Path, n_rows: int, tokenizer: Tokenizer | None) -> list[dict[str, Any]]:
    """Return for each container, and for decoding, tokens per second of promptkit and of what stands beside it."""
    rng = np.random.default_rng(0)
    table, decode = _table(tokenizer)
    lengths = rng.integers(200, 1800, n_rows)
    # Ids as text has them: a few make up most of it.
    ids = [np.minimum(rng.zipf(1.2, n), len(table)).astype(np.int64) - 1 for n in lengths]
    masks = [(np.arange(n) > n // 3).astype(np.int8) for n in lengths]
    n_tokens = int(lengths.sum())
    write(root, ids, masks)
    flat = np.concatenate(ids)
    joined = np.concatenate([[0], np.cumsum(lengths)])

    contests: dict[str, tuple[Callable[[], int], dict[str, Callable[[], int]]]] = {}
    for name, beside in BESIDE.items():
        path = root / name
        if not any(path.iterdir()):  # torch is not installed
            continue
        contests[name] = (lambda p=path: _read(p), {k: lambda p=path, w=work: w(p) for k, work in beside.items()})  # type: ignore[misc]
    contests["decode, all at once"] = (
        lambda: len(decode(flat)),
        {"NumPy gather": lambda: len(gather_decode(flat, table).decode("utf-8", "replace"))},
    )
    contests["decode, row by row"] = (
        lambda: sum(len(decode(row)) for row in ids),
        {
            "bytes.join of a list": lambda: sum(
                len(b"".join(map(table.__getitem__, row.tolist())).decode("utf-8", "replace")) for row in ids
            )
        },
    )
    texts = sum(len(decode(row)) for row in ids)
    assert contests["decode, all at once"][1]["NumPy gather"]() == len(decode(flat))
    assert contests["decode, row by row"][1]["bytes.join of a list"]() == texts
    stream = root / "arrow"
    contests["arrow, and decode"] = (
        lambda: sum(len(decode(r.ids)) for r in _records(stream) if r.ids is not None),
        {"pyarrow, gather, str a row": lambda: _arrow_decode(stream, table, joined)},
    )
    figures = []
    for name, (ours, beside) in contests.items():
        times = {"": best_of(ours)} | {k: best_of(w) for k, w in beside.items()}
        rates = {k: n_tokens / t for k, t in times.items()}
        own = rates.pop("")
        best = max(rates, key=lambda k: rates[k])
        figures.append({"what": name, "promptkit": own, "beside": rates, "best": best, "times": rates[best] / own})
    return figures


def _table(tokenizer: Tokenizer | None) -> tuple[list[bytes], Callable[[Any], str]]:
    if tokenizer is None:
        from promptkit.encoders import RankEncoder

        ranks = {b"%x" % k if k > 255 else bytes([k]): k for k in range(150_000)}
        ranks |= {b" " + b"%x" % k: 150_000 + k for k in range(1000)}
        encoder = RankEncoder(ranks, "cl100k")
        tokenizer = Tokenizer({i: t for t, i in ranks.items()}, {}, name="made up", encoder=encoder)
    return [tokenizer.token(i) for i in range(tokenizer.n_vocab)], tokenizer.decode


def best_of(work: Callable[[], Any]) -> float:
    """Return the least processor time of a few turns; the first, which fills caches, does not count."""
    work()
    times = []
    for _ in range(TURNS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return max(min(times), 1e-9)


# -------------------------------------------------------------------------------------- files


def write(root: Path, ids: list[Any], masks: list[Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"input_ids": pa.array(ids, pa.list_(pa.int32())), "loss_mask": pa.array(masks, pa.list_(pa.int8()))}
    table = pa.table(columns)
    for name in BESIDE:
        (root / name).mkdir()
    with pa.ipc.new_stream(str(root / "arrow/a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    pq.write_table(table, root / "parquet/a.parquet", row_group_size=1000)
    with open(root / "jsonl/a.jsonl", "w", encoding="utf-8") as file:
        for i, m in zip(ids, masks, strict=True):
            file.write(json.dumps({"input_ids": i.tolist(), "loss_mask": m.tolist()}) + "\n")
    try:
        import torch
    except ImportError:
        return
    for k, (i, m) in enumerate(zip(ids, masks, strict=True)):
        row = {"input_ids": torch.tensor(i), "loss_mask": torch.tensor(m, dtype=torch.int64)}
        row["hidden_state"] = torch.zeros(1, len(i), HIDDEN)
        torch.save(row, root / f"torch/data_{k}.ckpt")


# -------------------------------------------------------------------------------------- promptkit and the others


def _records(path: Path) -> list[readers.Record]:
    tree = readers.find_shards(path)
    return [r for shard in tree.shards for r in readers.read(path, shard) if isinstance(r, readers.Record)]


def _read(path: Path) -> int:
    """Rows as promptkit's readers give them, from opening the directory on."""
    return sum(len(r.ids) for r in _records(path) if r.ids is not None)


def _pairs(batch: Any) -> int:
    """An array of ids and one of the mask for each row of a batch, by pyarrow and NumPy alone."""
    columns = []
    for name, dtype in (("input_ids", np.int64), ("loss_mask", bool)):
        column = batch.column(name)
        edges = column.offsets.to_numpy().tolist()
        values = column.values.to_numpy().astype(dtype)
        columns.append([values[a:b] for a, b in pairwise(edges)])
    return sum(len(i) for i, _ in zip(*columns, strict=True))


def _arrow(path: Path) -> int:
    import pyarrow as pa

    with pa.memory_map(str(path / "a.arrow")) as file, pa.ipc.open_stream(file) as stream:
        return sum(map(_pairs, stream))


def _arrow_decode(path: Path, table: list[bytes], edges: Any) -> int:
    """The ids of a memory-mapped file, one gather, a string for each row."""
    import pyarrow as pa

    with pa.memory_map(str(path / "a.arrow")) as file, pa.ipc.open_stream(file) as stream:
        ids = np.concatenate([b.column("input_ids").values.to_numpy() for b in stream]).astype(np.int64)
    sizes = np.array([len(t) for t in table])[ids]
    ends = np.concatenate([[0], np.cumsum(sizes)])[edges].tolist()
    data = gather_decode(ids, table)
    return sum(len(data[a:b].decode("utf-8", "replace")) for a, b in pairwise(ends))


def _parquet(path: Path) -> int:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path / "a.parquet") as file:
        return sum(map(_pairs, file.iter_batches(1000, columns=["input_ids", "loss_mask"], use_threads=False)))


def _orjson(path: Path) -> int:
    import orjson

    n = 0
    with open(path / "a.jsonl", "rb") as file:
        for line in file:
            row = orjson.loads(line)
            ids, _ = np.array(row["input_ids"], np.int64), np.array(row["loss_mask"], bool)
            n += len(ids)
    return n


def _torch(path: Path, **how: Any) -> int:
    import torch

    n = 0
    for name in os.listdir(path):
        row = torch.load(path / name, **how)
        n += len(row["input_ids"].numpy())
        row["loss_mask"].numpy().astype(bool)
    return n


def _bytes(path: Path) -> int:
    """The bytes alone: what no reader of all of them can beat."""
    return sum(len((path / name).read_bytes()) for name in os.listdir(path))


BESIDE: dict[str, dict[str, Callable[[Path], int]]] = {
    "arrow": {"pyarrow, mapped": _arrow},
    "parquet": {"pyarrow, one thread": _parquet},
    "jsonl": {"orjson, NumPy": _orjson},
    "torch": {
        "torch.load": lambda p: _torch(p, weights_only=True),
        "torch.load, mapped": lambda p: _torch(p, weights_only=True, mmap=True),
    },
}


if __name__ == "__main__":
    command(main)
