"""What the machine and the bare libraries allow, measured in the same run as promptkit.

A ratio against these says how far a stage is from the best that could be done with the same files, and stays meaningful
on another machine; seconds do not.
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from promptkit.readers import Shard, read
from promptkit.readers.fields import WANTED

FIRST = 64 << 10  # bytes in which a packed torch file has its ids and mask: hidden states follow


def seconds(work: Callable[[], Any]) -> float:
    """Return the processor time of this process: the clock says little on a machine with other work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def raw_bytes(root: Path, shards: Sequence[Shard], limit: int = 1 << 30) -> tuple[int, float]:
    """Read the files' bytes and do nothing with them; return bytes and seconds. Warm files come from the page cache."""
    total, start = 0, time.perf_counter()
    for shard in shards:
        with open(root / shard.path, "rb", buffering=0) as f:
            while total < limit and (block := f.read(1 << 20)):
                total += len(block)
    return total, time.perf_counter() - start


def bare_read(path: Path, kind: str) -> None:
    """Parse one file with the fastest library for its container, only the columns of a row, and check nothing."""
    if kind.startswith("jsonl"):
        import orjson

        for line in _opened(path, kind):
            if line.strip():
                orjson.loads(line)
    elif kind == "arrow-stream":
        import pyarrow as pa

        with pa.memory_map(str(path)) as f, pa.ipc.open_stream(f) as stream:
            for batch in stream:
                for column in batch.select([n for n in batch.schema.names if n in WANTED]).columns:
                    for buffer in filter(None, column.buffers()):
                        np.frombuffer(buffer, np.uint8).max(initial=0)  # touches the pages
    elif kind == "parquet":
        import pyarrow.parquet as pq

        pq.read_table(path, columns=[n for n in pq.read_schema(path).names if n in WANTED])
    elif kind.startswith("torch."):
        with _opened(path, kind) as f:
            f.read(FIRST)
    elif kind.startswith("torch"):
        with _opened(path, kind) as f, zipfile.ZipFile(f) as archive:
            names = archive.namelist()
            for ending in ("/data.pkl", "/data/0", "/data/1"):  # ids and mask come first
                archive.read(next(n for n in names if n.endswith(ending)))
    else:
        path.read_bytes()


def checked_read(root: Path, shard: Shard) -> None:
    """Read one shard as promptkit does, every value checked, rows as arrays."""
    for _ in read(root, shard):
        pass


def _opened(path: Path, kind: str) -> Any:
    import bz2
    import gzip
    import io
    import lzma

    packing = kind.rpartition(".")[2]
    if packing == "zst":
        import zstandard

        return io.BufferedReader(zstandard.open(path, "rb"))  # lines, which the stream itself has not
    opener: dict[str, Any] = {"gz": gzip.open, "xz": lzma.open, "bz2": bz2.open}
    return opener.get(packing, open)(path, "rb")


def gather_decode(ids: np.ndarray, table: Sequence[bytes]) -> bytes:
    """Decode by one NumPy gather: byte counts and offsets of each token, then all bytes at once."""
    lengths = np.fromiter(map(len, table), np.int64, len(table))
    flat = np.frombuffer(b"".join(table), np.uint8)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    size = lengths[ids]
    ends = np.cumsum(size)
    index = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - size, size) + np.repeat(starts[ids], size)
    decoded: bytes = flat[index].tobytes()
    return decoded
