"""What promptkit says of every test prompt and test set, against every mix, before anything is drafted. CPU only.

    OUT/rows.parquet, OUT/seed*/answers.npz  ->  RESULTS/prompt_scores.parquet    (prompt, mix)
                                                 RESULTS/response_scores.parquet  (prompt, mix, seed)
                                                 RESULTS/set_scores.parquet       (set, mix);  RESULTS/sets.json

A mix is a reference that promptkit fits on the mix's prompts and the target's answers to them (of one seed), as a user
would on hidden-state shards. A test prompt is scored by that reference, its answer (three sampled ones, strung
together) by the reference's view of responses. Sets are the test prompts of one source, those of one domain, and
blends: 2 to 6 sources in random proportions, 120 prompts.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from prepare import MIXES

N_BLENDS, BLEND_SIZE, MIN_SOURCE, MIX_ROWS = 120, 120, 20, 1000


def sets_of(sources: np.ndarray, domains: np.ndarray, *, seed: int = 0) -> dict[str, list[int]]:
    """Return name -> positions of test prompts: `source:x`, `domain:x` (20 prompts at least) and `blend:i`."""
    rng = np.random.default_rng(seed)
    out: dict[str, list[int]] = {}
    for kind, names in (("source", sources), ("domain", domains)):
        for name in np.unique(names):
            own = np.flatnonzero(names == name)
            if len(own) >= MIN_SOURCE:
                out[f"{kind}:{name}"] = own.tolist()
    pool = [out[name] for name in sorted(out) if name.startswith("source:")]
    for i in range(N_BLENDS):
        chosen = rng.permutation(len(pool))[: rng.integers(2, 7)]
        counts = rng.multinomial(BLEND_SIZE, rng.dirichlet(np.ones(len(chosen))))
        rows = [r for c, n in zip(chosen, counts, strict=True) for r in rng.permutation(pool[c])[:n]]
        out[f"blend:{i:03d}"] = sorted(int(r) for r in rows)
    return out


def reference_of(rows: dict[str, Any], member: np.ndarray, answers: dict[int, str], tokenizer: Any) -> Any:
    """Return promptkit's reference of the member rows; `answers` gives a row's answer by the target."""
    import polars as pl

    from promptkit import domains, reference
    from promptkit.conversation import canonical
    from promptkit.frames import FRAME_SCHEMA

    own = np.flatnonzero(member)
    texts, replies = [rows["prompt"][i] for i in own], [answers.get(int(i)) for i in own]
    lengths = [len(x) for x in tokenizer.encode_batch([r or "" for r in replies])]
    n = len(own)
    columns: dict[str, Any] = {
        "shard": ["mix"] * n,
        "row": own,
        "id": [rows["id"][i] for i in own],
        "source": [rows["source"][i] for i in own],
        "messages": [canonical([{"role": "user", "content": t}]).decode() for t in texts],
        "tools": [None] * n,
        "text": texts,
        "response_text": replies,
        "n_prompt_tokens": [len(x) for x in tokenizer.encode_batch(texts)],
        "n_response_tokens": lengths,
        "n_supervised_tokens": lengths,
        "n_turns": [1] * n,
        "has_tools": [False] * n,
        "truncated": [False] * n,
        "language": ["und"] * n,
    }
    frame = pl.DataFrame(columns, schema=FRAME_SCHEMA())
    return reference.fit(
        frame,
        tokenizer=tokenizer,
        label=domains.label,
        masses=domains.masses,
        groups=np.array([rows["unit"][i] for i in own]),
        threads=2,
    )


def prompt_scores(ref: Any, texts: list[str]) -> dict[str, np.ndarray]:
    """Return what the reference says of each prompt, and baselines that read the prompt alone or its vocabulary."""
    ids = ref.tokenizer.encode_batch(texts)
    X = ref.embed(texts, ids=ids)
    region, (affinity, domain), units = ref.region(X), ref.domain_evidence(texts), ref.find_units(texts)
    seen = ref.prompts.typicality(ids, region, affinity=affinity, domain=domain, exclude_units=units)
    known = ref.prompts.profile.tfidf.terms
    S = np.sort(X @ ref.X[~ref.sample["heldout"].to_numpy()].T, axis=1)[:, -10:]
    return {
        "typicality": seen.typicality,
        "closeness": seen.closeness,
        "cross_entropy": seen.cross_entropy,
        "affinity": affinity,
        "lsa_nearest": S.mean(axis=1),
        "lsa_centroid": X @ ref.X.mean(axis=0),
        "vocabulary_overlap": np.array([np.isin(i, known).mean() if len(i) else 0.0 for i in ids]),
        "n_tokens": np.array([float(len(i)) for i in ids]),
        "cluster": ref.assign(X),
        "in_mix": units >= 0,
        **_oddness_parts(ref, seen, affinity, domain, region),
    }


def _oddness_parts(
    ref: Any, seen: Any, affinity: np.ndarray, domain: np.ndarray, region: np.ndarray
) -> dict[str, np.ndarray]:
    """Return what typicality is the p-value of, and the sums of ranks it is made from: what each step is worth.

    `minus_oddness` orders prompts as typicality does, but also those odder than every held-out row, which all share
    the least p-value.
    """
    from promptkit.conformal import _in_region
    from promptkit.lexical import Neighbours

    view, n = ref.prompts, max(len(ref.prompts.rows), 1)
    words = view._rank_distance(-seen.closeness) + view._rank_bits(seen.cross_entropy)
    foreign = view._rank_affinity(-affinity)
    near = Neighbours(seen.nearest, seen.nearest_cosine)
    inside = _in_region(near, ref.region(ref.X), region)
    group = view._groups(region, inside)
    odd = view._less_usual(view._odd(seen.closeness, seen.cross_entropy, affinity), group)
    return {
        "minus_oddness": -odd / n,
        "minus_ranked": -view._ranked(odd, domain),
        "rank_words": -words / n,
        "rank_words_affinity_half": -(words + 0.5 * foreign) / n,
        "rank_words_affinity_whole": -(words + foreign) / n,
    }


def response_view(ref: Any, answers: dict[int, str]) -> Any:
    """Return the view of responses that a reference of the same prompts with other answers would hold."""
    from promptkit.conformal import View

    held = ref.sample["heldout"].to_numpy()
    assert ref.prompts.regime == "split", "the mix is too small: folds are not told by `heldout`"
    ids = ref.tokenizer.encode_batch([answers.get(int(i), "") for i in ref.sample["row"]])
    some = np.flatnonzero([len(i) > 0 for i in ids])
    return View.fit(
        [ids[i] for i in some],
        rows=some,
        folds=np.where(held, 0, -1)[some],
        units=ref.sample["unit"].to_numpy()[some],
        clusters=ref.region(ref.X)[some],
        centroids=ref._arrays["regions"],
        n_vocab=ref.tokenizer.n_vocab,
        threads=2,
    )


def response_scores(ref: Any, view: Any, clusters: np.ndarray, replies: list[str]) -> dict[str, np.ndarray]:
    """Return what a view of responses says of each reply."""
    ids = ref.tokenizer.encode_batch(replies)
    seen = view.typicality(ids, clusters)
    return {
        "response_typicality": seen.typicality,
        "response_closeness": seen.closeness,
        "response_cross_entropy": seen.cross_entropy,
    }


def set_scores(
    ref: Any, X: np.ndarray, found: dict[str, np.ndarray], sets: dict[str, list[int]]
) -> list[dict[str, Any]]:
    """Return set-level numbers: means of prompt scores, fidelity, distances of the set's vectors to the mix's."""
    from promptkit import distances

    rng = np.random.default_rng(0)
    fitted = np.flatnonzero(~ref.sample["heldout"].to_numpy())
    Y = ref.X[np.sort(rng.permutation(fitted)[:MIX_ROWS])]
    names = ("mmd2", "energy", "frechet", "kid", "sliced_wasserstein", "coverage")
    mix_shares = np.bincount(ref.sample["cluster"].to_numpy(), minlength=len(ref.centroids))
    out = []
    for name, rows in sets.items():
        Z = X[rows]
        row: dict[str, Any] = {"set": name, "n": len(rows)}
        for score in ("typicality", "closeness", "cross_entropy", "affinity", "lsa_nearest", "vocabulary_overlap"):
            row[f"mean_{score}"] = float(found[score][rows].mean())
        row["fidelity"] = min(1.0, float((found["typicality"][rows] >= 0.05).mean()) / 0.95)
        own = np.bincount(found["cluster"][rows], minlength=len(mix_shares))
        row["cluster_tv"] = distances.total_variation(own, mix_shares)
        row["cluster_js"] = distances.jensen_shannon(own, mix_shares)
        row["lsa_fidelity"] = distances.fidelity(Z, Y)
        for d in names:
            row[d] = float(distances.DISTANCES[d](Z, Y))
        out.append(row)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(".study"), help="folder that prepare.py wrote")
    parser.add_argument("--answers", type=Path, nargs="+", help="answers.npz of each seed, in the order of seeds")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    from promptkit.tokenizers import load_tokenizer

    rows = pq.read_table(args.data / "rows.parquet").to_pydict()
    tokenizer = load_tokenizer(args.data / "tokenizer")
    test = np.flatnonzero(np.array(rows["test"]))
    texts = [rows["prompt"][i] for i in test]
    sets = sets_of(np.array(rows["source"])[test], np.array(rows["domain"])[test])
    began = time.perf_counter()
    train_answers, replies = zip(*(answers_of(dict(np.load(p)), test, tokenizer) for p in args.answers), strict=True)
    by_prompt: list[pa.Table] = []
    by_response: list[pa.Table] = []
    by_set: list[dict[str, Any]] = []
    for mix in MIXES:
        same = {"row": test, "mix": [mix] * len(test)}
        ref = reference_of(rows, np.array(rows[f"mix_{mix}"]), train_answers[0], tokenizer)
        print(f"mix {mix}: fitted, {time.perf_counter() - began:.0f} s", flush=True)
        found = prompt_scores(ref, texts)
        by_prompt.append(pa.table({**same, **found}))
        by_set += [{"mix": mix, **row} for row in set_scores(ref, ref.embed(texts), found, sets)]
        for seed in range(len(args.answers)):  # prompts are the same for every seed, answers are not
            view = response_view(ref, train_answers[seed]) if seed else ref.responses
            said = response_scores(ref, view, ref.region(ref.embed(texts)), replies[seed])
            by_response.append(pa.table({**same, "seed": [seed] * len(test), **said}))
        print(f"mix {mix}: scored, {time.perf_counter() - began:.0f} s", flush=True)
    by_response = [t for seed in range(len(args.answers)) for t in by_response[seed :: len(args.answers)]]
    pq.write_table(_small(pa.concat_tables(by_prompt)), args.out / "prompt_scores.parquet", compression="zstd")
    pq.write_table(_small(pa.concat_tables(by_response)), args.out / "response_scores.parquet", compression="zstd")
    pq.write_table(_small(pa.Table.from_pylist(by_set)), args.out / "set_scores.parquet", compression="zstd")
    (args.out / "sets.json").write_text(json.dumps(sets, separators=(",", ":")) + "\n")


def answers_of(made: dict[str, np.ndarray], test: np.ndarray, tokenizer: Any) -> tuple[dict[int, str], list[str]]:
    """Return the first answer to each training prompt by row, and for each test prompt its sampled ones, joined."""
    rows, spans = made["train_row"], np.split(made["train_ids"], made["train_starts"][1:-1])
    first = np.flatnonzero(np.append(True, rows[:-1] != rows[1:]))
    answers = {int(rows[j]): _text(tokenizer, spans[j]) for j in first}
    replies: dict[int, list[str]] = {}
    spans = np.split(made["sampled_ids"], made["sampled_starts"][1:-1])
    for r, s in zip(made["sampled_row"], spans, strict=True):
        replies.setdefault(int(r), []).append(_text(tokenizer, s))
    return answers, ["\n".join(replies[int(i)]) for i in test]


def _text(tokenizer: Any, ids: np.ndarray) -> str:
    return str(tokenizer.decode(ids[ids > 2].astype(np.int64)))


def _small(table: pa.Table) -> pa.Table:
    """Return the table with float32 for float64 and int32 for int64."""
    kinds = {pa.float64(): pa.float32(), pa.int64(): pa.int32()}
    return table.cast(pa.schema([(f.name, kinds.get(f.type, f.type)) for f in table.schema]))


if __name__ == "__main__":
    main()
