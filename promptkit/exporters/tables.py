"""Rows as parquet, in memory: the same rows and version of pyarrow give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def parquet(rows: Sequence[dict[str, Any]], schema: Any) -> bytes:
    """Return a parquet file of `rows` with the columns of a pyarrow schema."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), out, compression="zstd")
    return out.getvalue()
