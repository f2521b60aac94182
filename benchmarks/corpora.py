"""The bundled packs beside Spec-Bench and MT-Bench, by our own measures of variety.

    python benchmarks/corpora.py --data ../shared/data      one row per set, as Markdown

In: the four packs, and folders `<source>/<source>.jsonl` with `prompt` or `messages`. Out, for each set: prompts, how
many kinds of prompt it amounts to (Vendi score, Friedman and Dieng 2023: e to the entropy of the eigenvalues of the
kernel of cosines) over the number of prompts, the mean cosine of two prompts, the share that is a near-duplicate of an
earlier one, the mean cosine to the nearest other, lengths, languages, turns and tools.

Sets differ in size, and variety grows with it: Vendi scores and cosines are of 40 prompts, half of what MT-Bench has.
All sets are embedded in one space, LSA of word tokens fitted on 40 other prompts of each: a prompt that the space was
fitted on seems unlike all others (MT-Bench 0.86 instead of 0.49). The figures are means over twenty such divisions. The
space sees words and not meanings, and two long texts share more words than two short ones: the same measures
are also given for the first 30 words alone. Texts are the openings, and of MT-Bench the first turns.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import a_folder, command
from promptkit import embedders, languages, pack
from promptkit.bundled import packs
from promptkit.conversation import opening
from promptkit.leakage import near_duplicate_groups
from promptkit.tokenizers import words_tokenizer

DRAWS, SIZE = 20, 40


def read(path: Path, prefix: str = "") -> list[dict[str, Any]]:
    """Return distinct rows with messages and tools whose id starts so."""
    rows: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if not row["id"].startswith(prefix):
            continue
        messages = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
        key = opening(messages)
        if key not in rows or len(messages) > len(rows[key]["messages"]):
            rows[key] = {"messages": messages, "tools": None}
    return list(rows.values())


def vendi(X: np.ndarray) -> float:
    """Return the effective number of distinct rows, 1..n: e to the entropy of the eigenvalues of X X' / n.

    >>> round(vendi(np.eye(4)), 6), round(vendi(np.ones((4, 1))), 6)
    (4.0, 1.0)
    """
    values = np.linalg.eigvalsh(X @ X.T / len(X))
    values = values[values > 1e-12]
    return float(np.exp(-(values * np.log(values)).sum()))


def variety(X: np.ndarray) -> tuple[float, float, float]:
    """Return Vendi score over the number of rows, mean cosine of two, and mean cosine to the nearest other."""
    S = X.astype(np.float64) @ X.T.astype(np.float64)
    n = len(S)
    nearest = (S - 2 * np.eye(n)).max(axis=1)
    return vendi(X.astype(np.float64)) / n, float((S.sum() - np.trace(S)) / (n * (n - 1))), float(nearest.mean())


def varieties(ids: dict[str, list[Any]], tokenizer: Any) -> dict[str, np.ndarray]:
    """Return the means of `variety` by set, over divisions into what the space is fitted on and what is measured."""
    rng = np.random.default_rng(0)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ids}
    for seed in range(DRAWS):
        order = {name: rng.permutation(len(rows)).tolist() for name, rows in ids.items()}
        fitted = [ids[name][i] for name in ids for i in order[name][:SIZE]]
        space = embedders.Lsa.fit(fitted, tokenizer.encode_batch, seed=seed)
        for name in ids:
            found[name].append(variety(space.transform([ids[name][i] for i in order[name][SIZE : 2 * SIZE]])))
    return {name: np.mean(values, axis=0) for name, values in found.items()}


def table(sets: dict[str, list[dict[str, Any]]]) -> str:
    tokenizer = words_tokenizer()
    texts = {name: [opening(r["messages"]) for r in rows] for name, rows in sets.items()}
    whole = varieties({name: tokenizer.encode_batch(t) for name, t in texts.items()}, tokenizer)
    starts = {name: tokenizer.encode_batch([" ".join(t.split()[:30]) for t in ts]) for name, ts in texts.items()}
    short = varieties(starts, tokenizer)
    head = (
        "| set | prompts | Vendi | mean cosine | nearest | Vendi, 30 words | cosine, 30 words | near-duplicates "
        "| words 5 / 50 / 95 % | languages | not English | several turns | tools |\n" + 13 * "|---" + "|\n"
    )
    lines = []
    for name, rows in sets.items():
        n = len(rows)
        kinds, cosine, nearest = whole[name]
        kinds_short, cosine_short, _ = short[name]
        groups = near_duplicate_groups(texts[name])
        words = np.quantile([len(t.split()) for t in texts[name]], [0.05, 0.5, 0.95]).astype(int)
        spoken = Counter(code for code in languages.detect(texts[name]) if code != "und")
        turns = sum(sum(m["role"] == "user" for m in r["messages"]) > 1 for r in rows)
        tools = sum(bool(r["tools"]) for r in rows)
        lines.append(
            f"| {name} | {n} | {kinds:.2f} | {cosine:.3f} | {nearest:.2f} | {kinds_short:.2f} | {cosine_short:.3f} "
            f"| {1 - len(set(groups.tolist())) / n:.1%} "
            f"| {words[0]} / {words[1]} / {words[2]} | {len(spoken)} | {1 - spoken['en'] / sum(spoken.values()):.0%} "
            f"| {turns / n:.0%} | {tools / n:.0%} |"
        )
    return head + "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=a_folder, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    args = parser.parse_args()
    sets = {
        name: [{"messages": p.messages, "tools": p.tools} for p in pack.load_pack(path)]
        for name, path in packs().items()
    }
    sets |= {
        label: read(args.data / name / f"{name}.jsonl", prefix)
        for label, name, prefix in (("Spec-Bench", "spec_bench", ""), ("MT-Bench", "mt_bench", "mt_bench/mt_bench"))
    }
    print(table(sets))


if __name__ == "__main__":
    command(main)
