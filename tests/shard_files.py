"""Every container of token ids, written by hand from its layout: rows of (ids, mask) -> the files that hold them.

    write("megatron", rows) -> {"a.bin": ..., "a.idx": ...}      the first file is the shard, the others serve it

None of these writers shares a line with the readers, and none needs the library whose format it writes.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch_files

Rows = list[tuple[list[int], list[int]]]
Files = dict[str, bytes]


def table(rows: Rows) -> pa.Table:
    ids, masks = zip(*rows, strict=True)
    return pa.table(
        {"input_ids": pa.array(ids, pa.list_(pa.int32())), "loss_mask": pa.array(masks, pa.list_(pa.int8()))}
    )


def stream_bytes(rows: Rows) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table(rows).schema) as writer:
        writer.write_table(table(rows), max_chunksize=2)
    return sink.getvalue()


def file_bytes(rows: Rows) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table(rows).schema) as writer:
        writer.write_table(table(rows), max_chunksize=2)
    return sink.getvalue()


def parquet_bytes(rows: Rows) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table(rows), sink, row_group_size=2)
    return sink.getvalue()


def torch_bytes(rows: Rows) -> bytes:
    sink = io.BytesIO()
    torch_files.save([{"input_ids": np.array([i]), "loss_mask": np.array([m])} for i, m in rows], sink)
    return sink.getvalue()


def jsonl_bytes(rows: Rows) -> bytes:
    return b"".join(json.dumps({"input_ids": i, "loss_mask": m}).encode() + b"\n" for i, m in rows)


def safetensors_bytes(rows: Rows) -> bytes:
    """Stacked rows, as NeMo Automodel writes them; all of one length."""
    ids, mask = (np.array([r[k] for r in rows], np.int64) for k in (0, 1))
    header = json.dumps({
        "input_ids": {"dtype": "I64", "shape": ids.shape, "data_offsets": [0, ids.nbytes]},
        "loss_mask": {"dtype": "I64", "shape": mask.shape, "data_offsets": [ids.nbytes, 2 * ids.nbytes]},
    }).encode()  # fmt: skip
    return len(header).to_bytes(8, "little") + header + ids.tobytes() + mask.tobytes()


def npy_bytes(array: np.ndarray) -> bytes:
    """A NumPy array, its header written out by hand (version 1.0, padded to 64)."""
    head = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {array.shape!r}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + array.tobytes()


def npz_bytes(arrays: dict[str, np.ndarray], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", compression) as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", npy_bytes(array))
    return sink.getvalue()


def npy(rows: Rows) -> Files:
    """Ids and masks as matrices in files of their own; all rows of one length."""
    ids, mask = (np.array([r[k] for r in rows]) for k in (0, 1))
    return {"input_ids.npy": npy_bytes(ids.astype("<i4")), "loss_mask.npy": npy_bytes(mask.astype("?"))}


def npz(rows: Rows) -> Files:
    return {
        "a.pkl": npz_bytes(
            {"input_ids": np.array([r[0] for r in rows], "<u4"), "loss_mask": np.array([r[1] for r in rows], "i1")}
        )
    }


def megatron(rows: Rows, dtype: str = "<i4", code: int = 4) -> Files:
    arrays = [np.array(i, dtype) for i, _ in rows]
    lengths = [len(a) for a in arrays]
    offsets = np.cumsum([0, *(a.nbytes for a in arrays)])[:-1]
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(rows), len(rows) + 1)
    index += (
        np.array(lengths, "<i4").tobytes()
        + offsets.astype("<i8").tobytes()
        + np.arange(len(rows) + 1).astype("<i8").tobytes()
    )
    return {"a_text_document.bin": b"".join(a.tobytes() for a in arrays), "a_text_document.idx": index}


def datatrove(rows: Rows) -> Files:
    return {
        "00000_a.ds": b"".join(np.array(i, "<u4").tobytes() for i, _ in rows),
        "00000_a.ds.index": np.cumsum([len(i) for i, _ in rows]).astype("<u8").tobytes(),
        "00000_a.ds.loss": b"".join(bytes(m) for _, m in rows),
        "00000_a.ds.metadata": b"moonshotai/Kimi-K2.5|4\n9\n9.00 T",
    }


def dolma(rows: Rows) -> Files:
    ends = np.cumsum([0, *(len(i) for i, _ in rows)]).tolist()
    lines = "".join(f"{a},{b},doc{k},src,{k}\n" for k, (a, b) in enumerate(itertools.pairwise(ends)))
    return {
        "token_ids_part_0.npy": b"".join(np.array(i, "<u4").tobytes() for i, _ in rows),
        "token_ids_part_0.csv.gz": gzip.compress(lines.encode()),
        "labels_mask_part_0.npy": b"".join(bytes(m) for _, m in rows),
    }


def llmc(rows: Rows, magic: int = 20240801) -> Files:
    ids = [i for row, _ in rows for i in row]
    header = np.zeros(256, "<i4")
    header[:3] = magic, 7, len(ids)
    return {"a.pkl": header.tobytes() + np.array(ids, "<u4" if magic == 20240801 else "<u2").tobytes()}


def stream(rows: Rows, dtype: str = "<u4") -> Files:
    return {"train.bin": np.array([i for row, _ in rows for i in row], dtype).tobytes()}


def chunk(samples: list[bytes], config: bytes = b"") -> bytes:
    start = 4 + 4 * (len(samples) + 1) + len(config)
    offsets = np.cumsum([start, *(len(s) for s in samples)]).astype("<u4")
    return struct.pack("<I", len(samples)) + offsets.tobytes() + config + b"".join(samples)


def mds_bytes(columns: dict[str, tuple[str, int | None]], rows: list[dict[str, bytes]]) -> bytes:
    """An MDS shard: columns as name -> (encoding, fixed size), rows as name -> encoded value."""
    names = sorted(columns)
    config = {"version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": 1 << 26, "column_names": names,
              "column_encodings": [columns[n][0] for n in names], "column_sizes": [columns[n][1] for n in names]}  # fmt: skip
    samples = []
    for row in rows:
        sizes = b"".join(struct.pack("<I", len(row[n])) for n in names if columns[n][1] is None)
        samples.append(sizes + b"".join(row[n] for n in names))
    return chunk(samples, json.dumps(config, sort_keys=True).encode())


def mds_array(values: list[int], code: int, dtype: str, *, typed: bool = True) -> bytes:
    """An array without a fixed shape: [type] · dimensions and width of sizes · sizes · values."""
    return (
        (bytes([code]) if typed else b"")
        + bytes([1 << 2 | 2])
        + struct.pack("<I", len(values))
        + np.array(values, dtype).tobytes()
    )


def mds(rows: Rows) -> Files:
    data = mds_bytes(
        {"input_ids": ("ndarray:int32", None), "loss_mask": ("ndarray", None), "n": ("int", 8)},
        [
            {"input_ids": mds_array(i, 33, "<i4", typed=False), "loss_mask": mds_array(m, 9, "i1"), "n": bytes(8)}
            for i, m in rows
        ],
    )
    return {"shard.00000.mds": data}


def mds_index(*names: str) -> bytes:
    shards = [{"format": "mds", "version": 2, "raw_data": {"basename": n}, "zip_data": None} for n in names]
    return json.dumps({"version": 2, "shards": shards}).encode()


def litdata_index(names: list[str] | None, formats: list[str], *files: str, **config: Any) -> bytes:
    leaf = {"type": None, "context": None, "children_spec": []}
    tree = (
        leaf
        if names is None
        else {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [leaf] * len(names)}
    )
    chunks = [{"filename": f, "chunk_size": 1, "chunk_bytes": 1, "dim": config.pop("dim", None)} for f in files]
    return json.dumps({"chunks": chunks, "config": {"data_format": formats, "data_spec": json.dumps([1, tree]), "compression": None, "encryption": None, **config}}).encode()  # fmt: skip


def litdata_sample(*leaves: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(leaf)) for leaf in leaves) + b"".join(leaves)


def litdata(rows: Rows) -> Files:
    samples = [litdata_sample(np.array(i, "<i8").tobytes(), np.array(m, "<i4").tobytes()) for i, m in rows]
    index = litdata_index(["input_ids", "loss_mask"], ["no_header_tensor:18", "no_header_numpy:2"], "chunk-0-0.bin")
    return {"chunk-0-0.bin": chunk(samples), "index.json": index}


def tar_bytes(members: dict[str, bytes], format: int = tarfile.USTAR_FORMAT) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=format) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def webdataset(rows: Rows) -> Files:
    members = {}
    for k, (i, m) in enumerate(rows):
        members[f"{k:06d}.input_ids.npy"] = npy_bytes(np.array(i, "<i8"))
        members[f"{k:06d}.loss_mask.npy"] = npy_bytes(np.array(m, "u1"))
    return {"a.pkl": tar_bytes(members)}


def _single(writer: Callable[[Rows], bytes]) -> Callable[[Rows], Files]:
    return lambda rows: {"a.pkl": writer(rows)}


WRITERS: dict[str, Callable[[Rows], Files]] = {
    "jsonl": _single(jsonl_bytes),
    "arrow-stream": _single(stream_bytes),
    "arrow-file": _single(file_bytes),
    "parquet": _single(parquet_bytes),
    "torch": _single(torch_bytes),
    "safetensors": _single(safetensors_bytes),
    "npy": npy,
    "npz": npz,
    "megatron": megatron,
    "datatrove": datatrove,
    "ids": dolma,
    "llmc": llmc,
    "mds": mds,
    "litdata": litdata,
    "tar": webdataset,
}
MATRICES = ("safetensors", "npy", "npz")  # rows of one length only
STREAMS = ("llmc", "ids.gz", "ids.zst", "ids.xz", "ids.bz2")  # documents begin or end with an id of their own
WITHOUT_MASK = ("megatron", *STREAMS)
