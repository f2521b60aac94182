"""Parquet, row group by row group, only the columns that are needed.

Page checksums are verified where the writer left some. A damaged row group loses its own rows, which the footer counts,
and no others; a cut file has no footer and is lost whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from promptkit.readers.arrow import short
from promptkit.readers.fields import TOKENS
from promptkit.readers.parquet_footer import MAX_FOOTER, ColumnSize, column_sizes
from promptkit.readers.records import BadFile, Fault, Limits, Record
from promptkit.readers.tables import records, wanted_columns

if TYPE_CHECKING:
    import pyarrow as pa

# Rows decoded at a time. Few, because a dictionary page of one long text can stand for it in every row; more where the
# columns hold numbers, whose footer says how many there are.
BATCH, NUMBER_BATCH, NUMBERS = 64, 1024, 2 << 20


def read(path: Path, limits: Limits) -> Iterator[Record | Fault]:
    """Yield the rows of one Parquet file."""
    import pyarrow as pa

    _check_footer(path)
    with pa.OSFile(os.fsencode(path)) as source:  # as text, pyarrow refuses names that are not UTF-8
        yield from _read(source, path, limits)


def _check_footer(path: Path) -> None:
    """Refuse a footer that is absent, encrypted, or so long that reading it alone would fill the memory."""
    with open(path, "rb") as raw:
        raw.seek(0, 2)
        raw.seek(max(0, raw.tell() - 8))
        length, magic = raw.read(4), raw.read(4)
    if magic == b"PARE":
        raise BadFile("Parquet with an encrypted footer: decrypt it first")
    if magic != b"PAR1":
        raise BadFile("truncated Parquet: no footer, so nothing can be read")
    if (n := int.from_bytes(length, "little")) > MAX_FOOTER:
        raise BadFile(f"a Parquet footer of {n:,} bytes, more than {MAX_FOOTER:,}")


def _read(source: pa.OSFile, path: Path, limits: Limits) -> Iterator[Record | Fault]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    errors = (pa.ArrowException, OSError, ValueError)
    try:
        file = pq.ParquetFile(source, page_checksum_verification=True)
        n_groups = file.num_row_groups
        columns = wanted_columns(file.schema_arrow, limits.hints)
    except errors as error:
        raise BadFile(f"damaged Parquet footer: {short(error)}") from error
    sizes = column_sizes(path)
    if len(sizes) != n_groups:
        raise BadFile("damaged Parquet footer: two readers count different row groups")
    with file:
        row = 0
        for group in range(n_groups):
            n_rows = file.metadata.row_group(group).num_rows
            done = 0
            why = "holds fewer rows than the footer counts"
            try:
                _check_sizes(sizes[group], max(n_rows, 1), columns, limits)
                for batch in file.iter_batches(
                    _batch(sizes[group], n_rows, columns), row_groups=[group], columns=columns, use_threads=False
                ):
                    yield from records(batch, row + done, limits)
                    done += batch.num_rows
            except errors as error:
                why = short(error)
            if done != n_rows:
                if not 0 <= n_rows - done <= 10_000_000:
                    raise BadFile(f"damaged Parquet: {why}")
                for lost in range(row + done, row + n_rows):
                    yield Fault(lost, "failed", f"damaged Parquet row group: {why}")
            row += n_rows
        if row != file.metadata.num_rows:
            raise BadFile(f"damaged Parquet footer: it counts {file.metadata.num_rows} rows, its groups {row}")


def _batch(sizes: list[ColumnSize], n_rows: int, columns: list[str]) -> int:
    """Return how many rows to decode at a time."""
    if not TOKENS.issuperset(columns):
        return BATCH
    a_row = max((s.n_values for s in sizes if s.name in columns), default=0) // max(n_rows, 1) + 1
    return min(NUMBER_BATCH, max(BATCH, NUMBERS // a_row))


def _check_sizes(sizes: list[ColumnSize], n_rows: int, columns: list[str], limits: Limits) -> None:
    """Refuse a row group whose packed pages claim to be far larger than they are."""
    for column in sizes:
        if column.name not in columns:
            continue
        if column.plain > max(16 << 20, limits.inflate_ratio * max(column.packed, 1)) or (
            column.plain > limits.inflate_bytes
        ):
            raise BadFile(f"a column unpacks to more than {limits.inflate_ratio} times its size (--inflate-ratio)")
        if column.n_values > n_rows * (limits.record_bytes // 8):
            raise BadFile(f"records larger than {limits.record_bytes} bytes (--record-bytes)")
