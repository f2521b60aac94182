"""Prompts and answers of many sources -> one tokenizer, one split, the mixes of the study. CPU, a few minutes.

    data/<source>/<source>.jsonl   {"id", "source", "domain", "prompt" | "messages", "response"?}   (or: --hub)
        -> OUT/tokenizer/tokenizer.json   byte-level BPE, trained on the training rows
           OUT/rows.parquet               one row per prompt with its text: stays on this machine
           OUT/tokens.npz                 ids only: all that the GPU needs

A row is an opening (system and first user turn) and the first answer. Openings longer than 320 tokens keep their first
96 and last 224, for the models and for the scores alike, so both see the same text. Near-duplicates (Jaccard 0.8 on
word 5-grams) never straddle the split; groups of more than 20 are templates and are split into exact copies.

Three roles of a row: `train` of a source that the mixes hold, `train` of a source that only the target learns (kept
out of every mix: `KEPT_OUT`), and `test`. So a test prompt can lie inside a mix, in a known domain but an unknown
source, or in an unknown domain.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

SPECIALS = ("<|end|>", "<|user|>", "<|assistant|>")
N_VOCAB = 16_384
HEAD, TAIL, MAX_ANSWER = 96, 224, 126
TEST_SHARE, MAX_TEST = 0.25, 150

A, B, C = ("coding", "agentic"), ("encyclopedic", "chat", "writing"), ("math", "reasoning")
# What drafters are trained on: domains -> share of the rows; None takes every row there is.
MIXES: dict[str, dict[tuple[str, ...], float] | None] = {
    "a": {A: 1.0},
    "b": {B: 1.0},
    "c": {C: 1.0},
    "d": None,
    "e": {A: 0.6, C: 0.3, B: 0.1},
    "f": {B: 0.6, A: 0.3, C: 0.1},
}
BLEND_ROWS = 4000
KEPT_OUT = frozenset({
    "humaneval", "exercism", "bfcl", "aqua_rat", "logic_grid", "webquestions", "arena_hard", "ifeval", "mt_bench",
    "spec_bench",
})  # fmt: skip

# Public stand-ins for a machine without the folder: name, config, split, prompt, answer, domain.
HUB = (
    ("openai/gsm8k", "main", "train", "question", "answer", "math"),
    ("google-research-datasets/mbpp", "full", "train", "text", "code", "coding"),
    ("openai/openai_humaneval", None, "test", "prompt", "canonical_solution", "coding"),
    ("databricks/databricks-dolly-15k", None, "train", "instruction", "response", "chat"),
    ("google-research-datasets/nq_open", None, "validation", "question", "answer", "encyclopedic"),
    ("deepmind/aqua_rat", "raw", "validation", "question", "rationale", "math"),
    ("SWE-bench/SWE-bench_Verified", None, "test", "problem_statement", "patch", "agentic"),
    ("tasksource/bigbench", "logical_deduction", "train", "inputs", "targets", "reasoning"),
)
MAX_HUB_ROWS = 4000


def read_folder(folder: Path) -> list[dict[str, Any]]:
    """Return rows `id, source, domain, prompt, response` of every `<source>/<source>.jsonl` below a folder."""
    from promptkit.conversation import opening

    rows = []
    for path in sorted(folder.glob("*/*.jsonl")):
        if path.stem != path.parent.name:
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            messages = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
            answer = row.get("response") or next((m["content"] for m in messages if m["role"] == "assistant"), None)
            rows.append(
                {
                    "id": row["id"],
                    "source": row["source"],
                    "domain": row["domain"],
                    "prompt": opening(messages),
                    "response": answer if isinstance(answer, str) else None,
                }
            )
    if not rows:
        sys.exit(f"{folder}: no <source>/<source>.jsonl found; give another --data, or --hub")
    return [r for r in rows if r["prompt"].strip()]


def read_hub() -> list[dict[str, Any]]:
    """Return the same rows from public data sets, downloaded by `datasets`."""
    from datasets import load_dataset

    rows = []
    for name, config, split, prompt, answer, domain in HUB:
        source = name.split("/")[-1]
        for i, row in enumerate(load_dataset(name, config, split=f"{split}[:{MAX_HUB_ROWS}]")):
            given = row[answer]
            rows.append(
                {
                    "id": f"{source}/{i}",
                    "source": source,
                    "domain": domain,
                    "prompt": row[prompt],
                    "response": given[0] if isinstance(given, list) else given,
                }
            )
    return rows


def units_of(texts: list[str]) -> np.ndarray:
    """Return the near-duplicate group of each text; a template with more than 20 rows is split into exact copies."""
    from promptkit.leakage import near_duplicate_groups, normalise

    groups = np.asarray(near_duplicate_groups(texts))
    large = np.bincount(groups)[groups] > 20
    seen: dict[tuple[int, str], int] = {}
    keys = [(int(g), normalise(t) if big else "") for g, t, big in zip(groups, texts, large, strict=True)]
    return np.array([seen.setdefault(key, len(seen)) for key in keys])


def split(sources: np.ndarray, units: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Return whether each row is a test row: per source a quarter, 150 at most; a unit with a test row has no other."""
    rng = np.random.default_rng(seed)
    test = np.zeros(len(sources), dtype=bool)
    taken: set[int] = set()
    for source in np.unique(sources):
        own = rng.permutation(np.flatnonzero(sources == source))
        want = min(int(np.ceil(TEST_SHARE * len(own))), MAX_TEST)
        for i in own:
            if want and int(units[i]) not in taken:
                test[i], want = True, want - 1
                taken.add(int(units[i]))
    return test


def membership(
    sources: np.ndarray, domains: np.ndarray, free: np.ndarray, *, blend_rows: int = BLEND_ROWS, seed: int = 0
) -> np.ndarray:
    """Return (n, mixes) bool: the training rows of each mix, drawn from the `free` rows of sources not kept out."""
    rng = np.random.default_rng(seed)
    free = free & ~np.isin(sources, sorted(KEPT_OUT))
    member = np.zeros((len(sources), len(MIXES)), dtype=bool)
    for column, shares in enumerate(MIXES.values()):
        if shares is None:
            member[free, column] = True
            continue
        for names, share in shares.items():
            rows = np.flatnonzero(free & np.isin(domains, names))
            if share < 1.0:
                rows = rng.permutation(rows)[: int(share * blend_rows)]
            member[rows, column] = True
    return member


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of <source>/<source>.jsonl")
    parser.add_argument("--hub", action="store_true", help="fetch public data sets through `datasets` instead")
    parser.add_argument("--out", type=Path, default=Path(".study"))
    parser.add_argument("--rows", type=int, help="draw this many rows only (a dry run)")
    parser.add_argument("--vocab", type=int, default=N_VOCAB)
    args = parser.parse_args()

    import pyarrow as pa
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    rows = read_hub() if args.hub else read_folder(args.data)
    if args.rows:
        rows = [rows[i] for i in np.sort(np.random.default_rng(0).permutation(len(rows))[: args.rows])]
    sources, domains = (np.array([r[key] for r in rows]) for key in ("source", "domain"))
    units = units_of([r["prompt"] for r in rows])
    test = split(sources, units)
    twins = np.isin(units, units[test]) & ~test  # of test rows: used for nothing
    free = ~test & ~twins
    member = membership(sources, domains, free)

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=args.vocab,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [t[:4000] for i in np.flatnonzero(free) for t in (rows[i]["prompt"], rows[i]["response"] or "")]
    tokenizer.train_from_iterator(texts, trainer)
    (args.out / "tokenizer").mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out / "tokenizer" / "tokenizer.json"))

    # Special tokens in a text stay text: ids 0 to 2 are structure and nothing else.
    tokenizer.encode_special_tokens = True
    prompts = [e.ids for e in tokenizer.encode_batch([r["prompt"] for r in rows])]
    answers = [e.ids[:MAX_ANSWER] for e in tokenizer.encode_batch([r["response"] or "" for r in rows])]
    prompts = [p if len(p) <= HEAD + TAIL else p[:HEAD] + p[-TAIL:] for p in prompts]

    def flat(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        return np.concatenate([np.array(x, dtype=np.uint16) for x in lists]), np.cumsum([0, *map(len, lists)])

    (p_ids, p_starts), (r_ids, r_starts) = flat(prompts), flat(answers)
    np.savez_compressed(
        args.out / "tokens.npz",
        prompt_ids=p_ids,
        prompt_starts=p_starts,
        answer_ids=r_ids,
        answer_starts=r_starts,
        test=test,
        free=free,
        member=member,
        mixes=np.array(list(MIXES)),
        n_vocab=tokenizer.get_vocab_size(),
    )
    columns = {key: [r[key] for r in rows] for key in ("id", "source", "domain", "response")}
    columns["prompt"] = tokenizer.decode_batch(prompts)
    columns |= {"unit": units, "test": test, "free": free, "kept_out": np.isin(sources, sorted(KEPT_OUT))}
    columns |= {f"mix_{name}": member[:, i] for i, name in enumerate(MIXES)}
    pq.write_table(pa.table(columns), args.out / "rows.parquet")
    sizes = ", ".join(f"{name} {int(member[:, i].sum())}" for i, name in enumerate(MIXES))
    print(
        f"{len(rows)} rows, {len(np.unique(sources))} sources, {int(test.sum())} test, {int(twins.sum())} twins unused"
    )
    print(f"rows per mix: {sizes}; {len(p_ids) / 1e6:.2f} M prompt and {len(r_ids) / 1e6:.2f} M answer tokens")


if __name__ == "__main__":
    main()
