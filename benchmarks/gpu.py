"""What a GPU makes of embedding, clusters, kernels and null draws: `python -m benchmarks.gpu --model NAME_OR_PATH`.

    embed     sentences/s and tokens/s of the library's `encode` as it comes (float32, 32 texts at a time), of the
              library with bfloat16 and larger batches, and of promptkit; how alike the vectors are (cosine, by row);
              tokenising alone, the model alone; all that beside what the device can do, measured in the same run
    clusters  k-means, the CPU's and the GPU's, which must be the same bytes
    kernel    MMD of two sets by all pairs
    null      null draws: means of n rows of a table

Without --texts the bundled packs are the texts. --device cpu measures embedding without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np

from benchmarks import a_file, command
from promptkit import clusters, distances, gpu, inference
from promptkit.embedders import SentenceTransformer, unit_rows
from promptkit.errors import UsageError


def seconds(work: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    """Return the median time of work that ends with its result in host memory; the first of several is left out."""
    if repeats > 1:
        work()
    times, found = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        found = work()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2], found


def read_texts(path: Path | None) -> list[str]:
    """Return the `prompt` (or joined `messages`) of each line of a JSONL file, or the openings of the bundled packs."""
    if path is None:
        from promptkit import bundled, load_pack
        from promptkit.conversation import opening

        return [opening(p.messages) for name in bundled.packs() for p in load_pack(name)]
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [r["prompt"] if "prompt" in r else "\n".join(m["content"] for m in r["messages"]) for r in rows]


def limits(device: str) -> tuple[float, float]:
    """Return bfloat16 FLOP/s of a large matrix product on random data, and bytes/s (read + written) of a large copy."""
    import torch

    A, B = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.empty(1 << 32, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)

    def timed(work: Callable[[], Any]) -> float:
        for _ in range(3):
            work()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(10):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e4

    return 2 * 8192**3 / timed(lambda: A @ B), 2 * len(source) / timed(lambda: target.copy_(source))


def work_of(model: Any, lengths: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return FLOPs and bytes of an encoder like BERT for texts of these lengths, bfloat16, one kernel an operation.

    FLOPs: 2 per weight of a matrix and token, and 4 h L per token and layer for attention. Bytes: what the kernels of
    a layer read and write of h (24 times) and of the inner layer (4 times: product, activation); weights are cached.
    """
    config = model[0].auto_model.config
    h, layers, inner = config.hidden_size, config.num_hidden_layers, config.intermediate_size
    tokens = float(lengths.sum())
    attention = 4.0 * h * layers * float((lengths.astype(float) ** 2).sum())
    flops = 2.0 * layers * (4 * h * h + 2 * h * inner) * tokens + attention
    return flops, 2.0 * layers * (24 * h + 4 * inner) * tokens


def embed(
    name: str, texts: list[str], copies: int, device: str, batch_tokens: int | None, threads: int
) -> list[dict[str, Any]]:
    """Return one row per way to embed; the library gets the texts once."""
    import torch
    from sentence_transformers import SentenceTransformer as Library

    on_gpu = device != "cpu"
    ours = SentenceTransformer(name, device=device, batch_tokens=batch_tokens, threads=threads)
    ours.encode(texts[:2048])
    fast = ours._fast
    if fast is None:
        raise UsageError(
            f"--model {name}: left to the library's own encode, expected one whose tokens are text in, ids out",
            hint="give an encoder like all-MiniLM-L6-v2, or --only clusters kernel null",
        )
    once, texts = texts, texts * copies
    ids, lengths = fast.tokens(texts)
    rows: list[dict[str, Any]] = []

    def row(what: str, taken: float, X: Any = None) -> None:
        n = len(once) if what.startswith("library") else len(texts)
        each = {"sentences_s": n / taken, "tokens_s": lengths[:n].sum() / taken}
        rows.append({"what": what, "seconds": taken, **each})
        if X is not None:
            cosine = (unit_rows(X[: len(once)]).astype(np.float64) * default).sum(axis=1)
            rows[-1] |= {"cosine_min": float(cosine.min()), "cosine_mean": float(cosine.mean())}

    library = Library(name, device=device)
    assert all(p.dtype == torch.float32 for p in library.parameters())
    library.encode(texts[:256])
    taken, X = seconds(lambda: library.encode(once), 1)
    default = unit_rows(X).astype(np.float64)
    row("library, as it comes (float32, 32 texts)", taken)
    if on_gpu:
        library = library.bfloat16()
        for size in (32, 1024):
            taken, X = seconds(lambda size=size: library.encode(once, batch_size=size, convert_to_tensor=True), 1)  # type: ignore[misc]
            row(f"library, bfloat16, {size} texts", taken, X.float().cpu().numpy())
    row("promptkit", *seconds(lambda: ours.encode(texts)))
    row("promptkit, tokenising alone", seconds(lambda: fast.tokens(texts))[0])
    if on_gpu:
        from promptkit.sentences import BATCH_TOKENS, CHUNK, _Batches

        order, starts = np.argsort(-lengths, kind="stable"), np.cumsum(lengths) - lengths
        batches = _Batches(fast, torch.device(ours._model.device), batch_tokens or BATCH_TOKENS["cuda"])

        def model_alone() -> None:
            with torch.inference_mode():
                for at in range(0, len(order), 16 * CHUNK):
                    part = order[at : at + 16 * CHUNK]
                    first, last = int(starts[part].min()), int((starts + lengths)[part].max())
                    batches.run(ids[first:last], starts[part] - first, lengths[part])()

        row("promptkit, the model alone", seconds(model_alone)[0])
        flops, moved = work_of(ours._model, lengths)
        peak, bandwidth = limits(device)
        print(f"bfloat16 product {peak / 1e12:.0f} TFLOP/s, copy {bandwidth / 1e12:.2f} TB/s (read + written)")
        for r in rows:
            if "alone" not in r["what"] or "model" in r["what"]:
                share = r["tokens_s"] / lengths.sum()
                r |= {"of_flops": flops / peak * share, "of_bytes": moved / bandwidth * share}
    longest = (lengths == lengths.max()).mean()
    print(f"{len(texts):,} texts, {lengths.sum():,} tokens, mean {lengths.mean():.0f}, {longest:.0%} the longest\n")
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    def cell(value: Any) -> str:
        if isinstance(value, str):
            return value
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.5g}"

    keys = list(dict.fromkeys(k for r in rows for k in r))
    print("| " + " | ".join(keys) + " |\n" + "|---" * len(keys) + "|")
    for r in rows:
        print("| " + " | ".join(cell(r.get(k, "")) for k in keys) + " |")
    print(flush=True)


def compare(what: str, cpu: Callable[[], Any], on_gpu: Callable[[], Any], repeats: int = 3) -> dict[str, Any]:
    """Return the times of the same work on the CPU (once) and on the GPU, and the largest difference of the results."""
    fast, B = seconds(on_gpu, repeats)
    start = time.perf_counter()
    A = cpu()
    slow = time.perf_counter() - start
    return {
        "what": what, "cpu_s": slow, "gpu_s": fast, "ratio": slow / fast,
        "difference": float(np.abs(np.asarray(A, dtype=np.float64) - np.asarray(B, dtype=np.float64)).max()),
    }  # fmt: skip


def unit_sample(n: int, d: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return n unit rows about 64 centres."""
    centres = rng.standard_normal((64, d), dtype=np.float32)
    return unit_rows(centres[rng.integers(0, 64, n)] + rng.standard_normal((n, d), dtype=np.float32))


def matrices(device: str, what: list[str]) -> list[dict[str, Any]]:
    """Return one row per comparison of the CPU and the GPU."""
    rng, rows = np.random.default_rng(0), []
    if "clusters" in what:
        for n in (20_000, 1_000_000):
            G = clusters._grid(unit_sample(n, 384, rng))
            C = gpu.seeds(G, 16, np.random.default_rng(0), square=clusters._GRID**2, device=device)
            rows.append(compare(
                f"k-means, {n:,} x 384, 16 clusters, 10 steps",
                lambda G=G, C=C: clusters._lloyd(G, C, steps=10),
                lambda G=G, C=C: clusters._lloyd(G, C, steps=10, device=device),
            ))  # fmt: skip
    if "kernel" in what:
        for n in (200, 20_000, 100_000):
            X, Y = unit_sample(n, 384, rng), unit_sample(max(n, 20_000), 384, rng)
            on_gpu = lambda X=X, Y=Y: distances.mmd2(X, Y, bandwidth2=1.0, device=device)  # noqa: E731
            name = f"MMD, {len(X):,} and {len(Y):,} rows"
            rows.append(
                compare(name, lambda X=X, Y=Y: distances.mmd2(X, Y, bandwidth2=1.0), on_gpu)
                if n < 100_000
                else {"what": name, "gpu_s": seconds(on_gpu, 1)[0]}
            )
    if "null" in what:
        for draws, n, m in ((1999, 200, 5000), (1000, 10_000, 50_000), (10_000, 10_000, 50_000)):
            table = rng.standard_normal((m, 1560), dtype=np.float32)
            lines = inference.draw_subsets(n, m, draws, rng=rng)
            on_gpu = lambda t=table, r=lines: inference.weighted_means(r, t, device=device)  # noqa: E731
            name = f"{draws:,} null draws of {n:,} from {m:,} rows of 1,560"
            rows.append(
                compare(name, lambda t=table, r=lines: inference.weighted_means(r, t), on_gpu)
                if draws * n < 1e8
                else {"what": name, "gpu_s": seconds(on_gpu, 1)[0]}
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--texts", type=a_file, metavar="FILE.jsonl")
    parser.add_argument("--copies", type=int, default=1, help="of the texts for promptkit, so that a run lasts")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of torch on the CPU")
    parser.add_argument("--only", nargs="*", default=["embed", "clusters", "kernel", "null"])
    given = parser.parse_args()
    device = gpu.resolve(given.device)
    if "embed" in given.only:
        texts = read_texts(given.texts)
        show(embed(given.model, texts, given.copies, device, given.batch_tokens, given.threads))
    if device != "cpu" and {*given.only} - {"embed"}:
        code = f"import torch; torch.zeros(1, device={device!r}).cpu()"
        print(
            f"a new process has torch and the GPU after {seconds(lambda: run([sys.executable, '-c', code]))[0]:.1f} s\n"
        )
        show(matrices(device, given.only))


if __name__ == "__main__":
    command(main)
