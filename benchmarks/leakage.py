"""How many planted copies does the leak check find, and how often is it wrong?

    python -m benchmarks.leakage PATH... [--planted 2000] [--seed 0] [--json]
    python -m benchmarks.leakage --candidates 1000 --training DIR

PATH: files of prompts that `promptkit score` reads, or directories of them (a directory's name is the source). Groups
of near-duplicates are dealt to two sides. One side is the training mix; copies of its prompts are planted: as they are,
with case and white space changed, with a tenth of the words replaced by words of other prompts, with a strange
beginning or ending of twenty words. The other side is what must not be found: other prompts of the same sources, one
of each group. Some of these share a task or a template with training in truth, so what is found of them is an upper
bound of the error; `precision` is that of equally many copies and other prompts. Translations and paraphrases are not
looked for.

The second form measures time and memory: openings of a training directory as training, every n-th as a candidate.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import a_folder, command
from promptkit import leakage
from promptkit.candidates import read_candidates
from promptkit.conversation import opening
from promptkit.errors import UsageError

LENGTHS = ((1, 8), (8, 13), (13, 25), (25, 60), (60, 200), (200, 10**9))
SUFFIXES = (".jsonl", ".json", ".yaml", ".yml", ".csv", ".txt", ".parquet")


def read(paths: list[Path]) -> list[tuple[str, str]]:
    """Return (source, opening) of every prompt, once."""
    found: dict[str, str] = {}
    for path in paths:
        files = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES) if path.is_dir() else [path]
        for file in files:
            try:
                prompts = read_candidates(file)
            except Exception as error:  # somebody's folder holds other files too
                print(f"{file.name}: not read ({type(error).__name__})")
                continue
            for p in prompts:
                found.setdefault(opening(p.messages), p.source or file.parent.name)
    texts = [(source, text) for text, source in found.items() if text.strip()]
    if not texts:
        where = ", ".join(map(str, paths)) or "no path given"
        raise UsageError(f"{where}: no prompts, expected files or folders of them", hint="name some, or --training DIR")
    return texts


def plants(texts: list[str], rng: np.random.Generator) -> dict[str, Callable[[str], str]]:
    """Return kind -> how a text is changed."""
    words = [w for t in rng.permutation(len(texts))[:2000] for w in texts[t].split()[:200]]

    def some(n: int) -> list[str]:
        return [words[i] for i in rng.integers(len(words), size=n)]

    def shout(text: str) -> str:
        return "".join(" \n\t "[rng.integers(4)] * int(rng.integers(1, 3)) if c == " " else c for c in text).upper()

    def replace(text: str) -> str:
        return " ".join(some(1)[0] if rng.random() < 0.1 else w for w in text.split())

    return {
        "as it is": lambda t: t,
        "case and white space": shout,
        "a tenth of the words": replace,
        "20 words before": lambda t: " ".join([*some(20), t]),
        "20 words after": lambda t: " ".join([t, *some(20)]),
    }


def measure(rows: list[tuple[str, str]], planted: int, seed: int) -> dict[str, Any]:
    """Return recall of each kind of copy and the share of other prompts found, by length in words."""
    rng = np.random.default_rng(seed)
    texts = [t for _, t in rows]
    groups = leakage.near_duplicate_groups(texts)
    side = rng.random(int(groups.max()) + 1) < 0.5
    training = [t for t, g in zip(texts, groups, strict=True) if side[g]]
    _, first = np.unique(groups, return_index=True)
    others = [texts[i] for i in rng.permutation(first[~side[groups[first]]])[:planted]]
    originals = [training[i] for i in rng.permutation(len(training))[:planted]]
    kinds = plants(training, rng)
    candidates = [change(t) for change in kinds.values() for t in originals] + others
    lengths = [len(t.split()) for t in originals] * len(kinds) + [len(t.split()) for t in others]
    kind = np.repeat([*kinds, "other prompts"], [len(originals)] * len(kinds) + [len(others)])
    found = np.array([x is not None for x in leakage.leaks(candidates, training)])
    table = {}
    for name in [*kinds, "other prompts"]:
        of_kind = kind == name
        by_length = {}
        for low, high in LENGTHS:
            these = of_kind & (np.array(lengths) >= low) & (np.array(lengths) < high)
            by_length[f"{low}+"] = [int(these.sum()), round(float(found[these].mean()), 3) if these.any() else None]
        table[name] = {"n": int(of_kind.sum()), "found": round(float(found[of_kind].mean()), 3), "by_words": by_length}
    wrong = table["other prompts"]["found"]
    for name in kinds:
        hit = table[name]["found"]
        table[name]["precision"] = round(hit / (hit + wrong), 3) if hit else None
    return {"training": len(training), "kinds": table}


def clock(folder: Path, n: int) -> dict[str, Any]:
    """Return seconds and memory of checking n candidates against all openings of a training directory."""
    from promptkit import collect

    opened = collect.open_directory(folder)
    summary = collect.collect(opened, sample_size=10**9, seed=0)
    texts = [opening(collect.recover(r.record, opened.tokenizer, opened.template).messages) for r in summary.sample]
    del summary
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu = time.perf_counter(), time.process_time()
    found = leakage.leaks([f"{t} please" for t in texts[:: max(1, len(texts) // n)][:n]], texts)
    return {
        "candidates": len(found), "training": len(texts), "characters": sum(map(len, texts)),
        "found": sum(x is not None for x in found), "seconds": round(time.perf_counter() - start, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "more_memory_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--planted", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--training", type=a_folder)
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.training:
        print(json.dumps(clock(args.training, args.candidates)))
        return
    done = measure(read(args.paths), args.planted, args.seed)
    if args.json:
        print(json.dumps(done))
        return
    heads = [f"{low}+" for low, _ in LENGTHS]
    print(f"{done['training']} training prompts; found, by words of the original")
    print(f"{'':<22}{'n':>6}{'all':>7}{'precision':>11}  " + "".join(f"{h:>7}" for h in heads))
    for name, row in done["kinds"].items():
        cells = "".join(f"{'-' if row['by_words'][h][1] is None else row['by_words'][h][1]:>7}" for h in heads)
        print(f"{name:<22}{row['n']:>6}{row['found']:>7}{row.get('precision') or '':>11}  {cells}")


if __name__ == "__main__":
    command(main)
