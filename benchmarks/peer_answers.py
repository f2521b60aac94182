"""The answers that `benchmarks.peers` sets beside each other, each run in a process of its own.

    python -m benchmarks.peer_answers 'duplicates: rensa' INPUTS

In: a directory that `benchmarks.peers` wrote. Out: one line of JSON with processor and wall seconds of each turn, peak
memory, the version and the value itself. Only NumPy is imported here; an answer imports what it needs, so that a
library that does not agree with the others runs in an environment of its own that holds no promptkit.

    {"cpu": [0.61, 0.6], "wall": [0.62, 0.6], "peak_mb": 210, "version": "0.5.0", "value": [17995, 18000]}
"""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

TURNS, ENOUGH = 5, 5.0  # turns, and the processor seconds after which there are no more
PERMUTATIONS = 1999  # as many null draws as a score makes in each of its batches
CHOSEN = 200
THRESHOLD = 0.8  # Jaccard similarity of near-duplicates, ours and what MinHash is set to
CHANGED = 0.4  # what a tenth of the words changed leaves of the Jaccard similarity of word 5-grams


class Inputs:
    """What all answers to a question are given."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def json(self, name: str) -> Any:
        return json.loads((self.root / f"{name}.json").read_text("utf-8"))

    @cached_property
    def X(self) -> Any:
        """The mix as vectors: float32 (n, d), unit rows."""
        return np.load(self.root / "mix.npy")

    @cached_property
    def P(self) -> Any:
        """The set that is judged, in the same space."""
        return np.load(self.root / "prompts.npy")

    @property
    def texts(self) -> list[str]:
        return list(self.json("texts"))

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.json("settings"))


@dataclass
class Work:
    """`run(n)` does what is timed, n units of it. With `few` the answer would take too long: two amounts are measured
    and the seconds of `wanted` units are read off the line through them."""

    run: Callable[[int], Any]
    few: int = 0
    many: int = 0
    wanted: int = 0


@dataclass(frozen=True)
class Answer:
    question: str
    name: str
    pip: str  # "" for promptkit
    module: str
    prepare: Callable[[Inputs, int], Work]
    note: str = ""  # what it does that others do not, or less
    rows: tuple[int, ...] = (0,)  # of the mix; 0: all

    @property
    def key(self) -> str:
        return f"{self.question}: {self.name}"


# ------------------------------------------------------------------------------------------------ token ids to text


def _rows(inputs: Inputs) -> list[list[int]]:
    return [json.loads(line)["input_ids"] for line in open(inputs.root / "rows/rows.jsonl", encoding="utf-8")]


def _vocabulary(inputs: Inputs) -> dict[bytes, int]:
    with open(inputs.root / "vocabulary.pickle", "rb") as file:  # written a moment ago by the parent
        return dict(pickle.load(file))


def _tiktoken(inputs: Inputs) -> Any:
    import tiktoken

    return tiktoken.Encoding("peer", pat_str=".", mergeable_ranks=_vocabulary(inputs), special_tokens={})


def _tokenizers(inputs: Inputs) -> Any:
    from tokenizers import Tokenizer, decoders, models

    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letter = {b: chr(b) for b in plain} | {
        b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in plain)
    }
    vocabulary = {"".join(letter[b] for b in token): i for token, i in _vocabulary(inputs).items()}
    library = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    library.decoder = decoders.ByteLevel()
    return library


def _promptkit_tokenizer(inputs: Inputs) -> Any:
    import promptkit

    return promptkit.load_reference(inputs.settings["reference"]).tokenizer


def decode_ours(inputs: Inputs, n: int) -> Work:
    tokenizer = _promptkit_tokenizer(inputs)
    rows = [np.array(row, np.int64) for row in _rows(inputs)]
    return Work(lambda _: sum(len(tokenizer.decode(row)) for row in rows))


def decode_tiktoken(inputs: Inputs, n: int) -> Work:
    library, rows = _tiktoken(inputs), _rows(inputs)
    return Work(lambda _: sum(map(len, library.decode_batch(rows, num_threads=1))))


def decode_tokenizers(inputs: Inputs, n: int) -> Work:
    library, rows = _tokenizers(inputs), _rows(inputs)
    return Work(lambda _: sum(map(len, library.decode_batch(rows, skip_special_tokens=False))))


def read_ours(inputs: Inputs, n: int) -> Work:
    from promptkit import readers

    tokenizer, root = _promptkit_tokenizer(inputs), inputs.root / "rows"

    def run(_: int) -> int:
        records = (r for shard in readers.find_shards(root).shards for r in readers.read(root, shard))
        return sum(len(tokenizer.decode(r.ids)) for r in records if isinstance(r, readers.Record))

    return Work(run)


def _read_json(inputs: Inputs, decode: Callable[[list[list[int]]], list[str]]) -> Work:
    def run(_: int) -> int:
        total, batch = 0, []
        with open(inputs.root / "rows/rows.jsonl", encoding="utf-8") as file:
            for line in file:
                batch.append(json.loads(line)["input_ids"])
                if len(batch) == 1000:
                    total += sum(map(len, decode(batch)))
                    batch = []
        return total + sum(map(len, decode(batch)))

    return Work(run)


def read_tiktoken(inputs: Inputs, n: int) -> Work:
    library = _tiktoken(inputs)
    return _read_json(inputs, lambda rows: library.decode_batch(rows, num_threads=1))


def read_tokenizers(inputs: Inputs, n: int) -> Work:
    library = _tokenizers(inputs)
    return _read_json(inputs, lambda rows: library.decode_batch(rows, skip_special_tokens=False))


# ------------------------------------------------------------------------------------------------ embed


def embed_ours(inputs: Inputs, n: int) -> Work:
    from promptkit import embedders

    texts, tokenizer = inputs.texts, _promptkit_tokenizer(inputs)

    def run(_: int) -> list[int]:
        tokenizer.forget()
        ids = tokenizer.encode_batch(texts)
        return list(embedders.Lsa.fit(ids, tokenizer.encode_batch).transform(ids).shape)

    return Work(run)


def _sentence_transformer(inputs: Inputs) -> Any:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    return SentenceTransformer(inputs.settings["model"], device="cpu")


def embed_minilm(inputs: Inputs, n: int) -> Work:
    model, texts = _sentence_transformer(inputs), inputs.texts
    model.encode(texts[:32], show_progress_bar=False)
    many = min(1000, len(texts))
    return Work(
        lambda k: list(model.encode(texts[:k], show_progress_bar=False).shape), few=many // 10, many=many,
        wanted=len(texts),
    )  # fmt: skip


def _static(inputs: Inputs) -> Any:
    from model2vec import StaticModel

    return StaticModel.from_pretrained(inputs.settings["static_model"])


def embed_static(inputs: Inputs, n: int) -> Work:
    model, texts = _static(inputs), inputs.texts
    return Work(lambda _: list(model.encode(texts, use_multiprocessing=False).shape))


# ------------------------------------------------------------------------------------------------ like the mix?


def score_warm(inputs: Inputs, n: int) -> Work:
    """Every turn has a set of its own: nothing of it is known before."""
    import promptkit

    reference = promptkit.load_reference(inputs.settings["reference"])
    first, *others = inputs.json("sets")
    for _ in range(2):  # what the first two scores of a process do once
        promptkit.score(others[-1], reference)
    sets = iter([first, *others[:-1]])
    return Work(lambda _: promptkit.score(next(sets), reference).p_value)


def score_cold(inputs: Inputs, n: int) -> Work:
    """From the start of Python to its end."""
    program = "import sys, promptkit; print(promptkit.score(sys.argv[1], sys.argv[2]).p_value)"
    command = [sys.executable, "-c", program, inputs.root / "prompts.jsonl", inputs.settings["reference"]]
    return Work(lambda _: float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def mmd_drift(inputs: Inputs, n: int) -> Work:
    import torch
    from alibi_detect.cd import MMDDrift

    torch.set_num_threads(1)

    def run(k: int) -> float:
        torch.manual_seed(0)
        detector = MMDDrift(inputs.X[:n], backend="pytorch", n_permutations=k, device="cpu")
        return float(detector.predict(inputs.P)["data"]["p_val"])

    run(2)
    return Work(run, few=10, many=60, wanted=PERMUTATIONS)


def _hyppo(name: str) -> Callable[..., Any]:
    from hyppo import ksample

    test = getattr(ksample, name)
    test().test(np.eye(30, 3), np.eye(30, 3), auto=True)  # numba compiles
    test().test(np.eye(30, 3), np.eye(30, 3), reps=2, auto=False)
    return lambda *sets, **how: float(test().test(*sets, workers=1, random_state=0, **how)[1])


def hyppo_fast(inputs: Inputs, n: int) -> Work:
    test, X, P = _hyppo("Energy"), inputs.X[:n].astype(float), inputs.P.astype(float)
    return Work(lambda _: test(X, P, auto=True))


def hyppo_energy(inputs: Inputs, n: int) -> Work:
    test, X, P = _hyppo("Energy"), inputs.X[:n].astype(float), inputs.P.astype(float)
    return Work(lambda k: test(X, P, reps=k, auto=False), few=2, many=8, wanted=PERMUTATIONS)


def hyppo_mmd(inputs: Inputs, n: int) -> Work:
    test, X, P = _hyppo("MMD"), inputs.X[:n].astype(float), inputs.P.astype(float)
    return Work(lambda k: test(X, P, reps=k, auto=False), few=2, many=8, wanted=PERMUTATIONS)


def mauve_text(inputs: Inputs, n: int) -> Work:
    import logging

    import mauve

    logging.disable(logging.WARNING)
    return Work(lambda _: float(mauve.compute_mauve(p_features=inputs.P, q_features=inputs.X[:n], verbose=False).mauve))


def _permuted(inputs: Inputs, n: int, statistic: Callable[[Any, Any], float]) -> Callable[[int], float]:
    """Return a permutation test of k permutations of the labels."""

    def run(k: int) -> float:
        rng, both, m = np.random.default_rng(0), np.concatenate([inputs.P, inputs.X[:n]]), len(inputs.P)
        observed = statistic(both[:m], both[m:])
        null = []
        for _ in range(k):
            order = rng.permutation(len(both))
            null.append(statistic(both[order[:m]], both[order[m:]]))
        return float((1 + (np.array(null) >= observed).sum()) / (1 + k))

    return run


def pot_exact(inputs: Inputs, n: int) -> Work:
    import ot

    def statistic(A: Any, B: Any) -> float:
        return float(ot.emd2([], [], ot.dist(A, B), numItermax=10_000_000))

    return Work(_permuted(inputs, n, statistic), few=1, many=4, wanted=PERMUTATIONS)


def pot_sliced(inputs: Inputs, n: int) -> Work:
    import ot

    def statistic(A: Any, B: Any) -> float:
        return float(ot.sliced_wasserstein_distance(A, B, n_projections=50, seed=0))

    return Work(_permuted(inputs, n, statistic), few=1, many=6, wanted=PERMUTATIONS)


def c2st(inputs: Inputs, n: int) -> Work:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import permutation_test_score

    both = np.concatenate([inputs.P, inputs.X[:n]])
    label = np.repeat([1, 0], [len(inputs.P), len(both) - len(inputs.P)])
    model = LogisticRegression(class_weight="balanced", max_iter=300)

    def run(k: int) -> float:
        how = {"scoring": "roc_auc", "cv": 5, "n_permutations": k, "random_state": 0}
        return float(permutation_test_score(model, both, label, **how)[2])

    return Work(run, few=1, many=4, wanted=PERMUTATIONS)


# ------------------------------------------------------------------------------------------------ choose


def _choose(X: Any, domains: Sequence[str]) -> list[int]:
    from promptkit import selection

    names, counts = np.unique(domains, return_counts=True)
    quotas = selection.quotas(dict(zip(names.tolist(), counts.tolist(), strict=True)), CHOSEN)
    return [int(i) for i in selection.select(X, X, k=CHOSEN, domains=domains, quotas=quotas)]


def choose_ours(inputs: Inputs, n: int) -> Work:
    domains = inputs.json("domains")
    return Work(lambda _: _choose(inputs.X, domains))


def choose_from_texts(inputs: Inputs, n: int) -> Work:
    from promptkit import embedders

    texts, domains, tokenizer = inputs.texts, inputs.json("domains"), _promptkit_tokenizer(inputs)

    def run(_: int) -> list[int]:
        tokenizer.forget()
        ids = tokenizer.encode_batch(texts)
        return _choose(embedders.Lsa.fit(ids, tokenizer.encode_batch).transform(ids), domains)

    return Work(run)


def choose_semhash(inputs: Inputs, n: int) -> Work:
    from semhash import SemHash

    texts, model = inputs.texts, _static(inputs)
    place = {t: i for i, t in enumerate(texts)}

    def run(_: int) -> list[int]:
        index = SemHash.from_records(texts, model=model)
        return [place[t] for t in index.self_find_representative(selection_size=CHOSEN).selected]

    return Work(run)


def choose_apricot(inputs: Inputs, n: int) -> Work:
    from apricot import FacilityLocationSelection

    X = inputs.X[:n].astype(float)
    FacilityLocationSelection(3, metric="cosine").fit(X[:50])  # numba compiles

    def run(_: int) -> list[int]:
        return [int(i) for i in FacilityLocationSelection(CHOSEN, metric="cosine").fit(X).ranking]

    return Work(run)


def choose_kmedoids(inputs: Inputs, n: int) -> Work:
    import kmedoids

    def run(_: int) -> list[int]:
        X = inputs.X[:n]
        D = np.sqrt(np.maximum(2 - 2 * (X @ X.T), 0))
        np.fill_diagonal(D, 0)
        return [int(i) for i in kmedoids.fasterpam(D, CHOSEN, random_state=0, n_cpu=1).medoids]

    return Work(run)


def choose_dsir(inputs: Inputs, n: int) -> Work:
    from data_selection import HashedNgramDSIR

    texts = inputs.texts

    def run(_: int) -> list[int]:
        np.random.seed(0)
        with tempfile.TemporaryDirectory() as scratch:
            path = f"{scratch}/rows.jsonl"
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"text": t, "at": i}) + "\n" for i, t in enumerate(texts))
            dsir = HashedNgramDSIR([path], [path], cache_dir=f"{scratch}/cache", num_proc=1, min_example_length=0)
            dsir.fit_importance_estimator(num_tokens_to_fit="all")
            dsir.compute_importance_weights()
            dsir.resample(out_dir=f"{scratch}/out", num_to_sample=CHOSEN, cache_dir=f"{scratch}/cache")
            lines = [line for p in Path(scratch, "out").glob("*.jsonl") for line in p.read_text("utf-8").splitlines()]
        return [json.loads(line)["at"] for line in lines]

    return Work(run)


def choose_random(inputs: Inputs, n: int) -> Work:
    return Work(lambda _: np.random.default_rng(0).choice(len(inputs.X), CHOSEN, replace=False).tolist())


# ------------------------------------------------------------------------------------------------ near-duplicates


def grams(text: str) -> set[bytes]:
    """Return the word 5-grams of a text, folded, as every MinHash answer gets them; the words of a shorter text."""
    words = re.findall(r"\w+", text.casefold())
    return {" ".join(words[i : i + 5]).encode() for i in range(max(1, len(words) - 4))}


def duplicates_ours(inputs: Inputs, n: int) -> Work:
    from promptkit import leakage

    texts = inputs.json("planted")["texts"]

    def run(_: int) -> list[int]:
        groups = leakage.near_duplicate_groups(texts)
        return np.setdiff1d(np.arange(len(texts)), np.unique(groups, return_index=True)[1]).tolist()

    return Work(run)


def duplicates_datasketch(inputs: Inputs, n: int) -> Work:
    from datasketch import MinHash, MinHashLSH

    texts = inputs.json("planted")["texts"]

    def run(_: int) -> list[int]:
        index, found = MinHashLSH(threshold=THRESHOLD, num_perm=128), []
        for i, sketch in enumerate(MinHash.generator((list(grams(t)) for t in texts), num_perm=128)):
            if index.query(sketch):
                found.append(i)
            else:
                index.insert(i, sketch)
        return found

    return Work(run)


def duplicates_rensa(inputs: Inputs, n: int) -> Work:
    from rensa import RMinHashDeduplicator

    texts = inputs.json("planted")["texts"]

    def run(_: int) -> list[int]:
        index = RMinHashDeduplicator(threshold=THRESHOLD, num_perm=128, use_lsh=True)
        keep = index.add_pairs((str(i), list(grams(t))) for i, t in enumerate(texts))
        return [i for i, kept in enumerate(keep) if not kept]

    return Work(run)


def duplicates_semhash(inputs: Inputs, n: int) -> Work:
    from semhash import SemHash

    texts, model = inputs.json("planted")["texts"], _static(inputs)
    places: dict[str, list[int]] = {}
    for i, t in enumerate(texts):
        places.setdefault(t, []).append(i)

    def run(_: int) -> list[int]:
        result = SemHash.from_records(texts, model=model).self_deduplicate()
        return [i for t in {d.record for d in result.filtered} for i in places[t]]

    return Work(run)


# ------------------------------------------------------------------------------------------------ in training?


def leaks_ours(inputs: Inputs, n: int) -> Work:
    from promptkit import leakage

    data = inputs.json("leaks")
    return Work(lambda _: [i for i, x in enumerate(leakage.leaks(data["asked"], data["training"])) if x])


def leaks_kept(inputs: Inputs, n: int) -> Work:
    from promptkit import leakage

    data = inputs.json("leaks")
    training = leakage.Words(**leakage.hashed(data["training"]), text=data["training"].__getitem__)
    return Work(lambda _: [i for i, x in enumerate(leakage.leaks(data["asked"], training)) if x])


def _datasketch(texts: list[str], threshold: float) -> Any:
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(threshold=threshold, num_perm=128)
    with index.insertion_session() as session:
        for i, sketch in enumerate(MinHash.generator((list(grams(t)) for t in texts), num_perm=128)):
            session.insert(i, sketch)
    return index


def _look_up(index: Any, texts: list[str]) -> list[int]:
    from datasketch import MinHash

    sketches = MinHash.generator((list(grams(t)) for t in texts), num_perm=128)
    return [i for i, sketch in enumerate(sketches) if index.query(sketch)]


def leaks_datasketch(inputs: Inputs, n: int) -> Work:
    data = inputs.json("leaks")
    return Work(lambda _: _look_up(_datasketch(data["training"], CHANGED), data["asked"]))


def leaks_datasketch_kept(inputs: Inputs, n: int) -> Work:
    data = inputs.json("leaks")
    index = _datasketch(data["training"], CHANGED)
    return Work(lambda _: _look_up(index, data["asked"]))


def _rensa(texts: list[str]) -> Any:
    from rensa import RMinHashDeduplicator

    index = RMinHashDeduplicator(threshold=CHANGED, num_perm=128, use_lsh=True)
    index.add_pairs((str(i), list(grams(t))) for i, t in enumerate(texts))
    return index


def _rensa_look_up(index: Any, texts: list[str]) -> list[int]:
    found = index.is_duplicate_pairs([(f"asked {i}", list(grams(t))) for i, t in enumerate(texts)])
    return [i for i, yes in enumerate(found) if yes]


def leaks_rensa(inputs: Inputs, n: int) -> Work:
    data = inputs.json("leaks")
    return Work(lambda _: _rensa_look_up(_rensa(data["training"]), data["asked"]))


def leaks_rensa_kept(inputs: Inputs, n: int) -> Work:
    data = inputs.json("leaks")
    index = _rensa(data["training"])
    return Work(lambda _: _rensa_look_up(index, data["asked"]))


# ------------------------------------------------------------------------------------------------ all of them

GROWTH = (500, 1000, 2000, 4000)  # rows of the mix, where memory or time grows with their square

ANSWERS = [
    Answer("decode", "promptkit", "", "promptkit", decode_ours),
    Answer("decode", "tiktoken", "tiktoken", "tiktoken", decode_tiktoken, "decode_batch, one thread"),
    Answer("decode", "tokenizers", "tokenizers", "tokenizers", decode_tokenizers, "decode_batch"),
    Answer("read", "promptkit", "", "promptkit", read_ours, "every row is checked and accounted for"),
    Answer("read", "json + tiktoken", "tiktoken", "tiktoken", read_tiktoken, "nothing is checked"),
    Answer("read", "json + tokenizers", "tokenizers", "tokenizers", read_tokenizers, "nothing is checked"),
    Answer("embed", "promptkit lsa", "", "promptkit", embed_ours, "tokenized, fitted and applied"),
    Answer("embed", "MiniLM", "sentence-transformers", "sentence_transformers", embed_minilm,
           "reads the first 256 tokens; knows meaning"),
    Answer("embed", "static model", "model2vec", "model2vec", embed_static, "fitted before; first 512 tokens"),
    Answer("like", "promptkit, warm", "", "promptkit", score_warm, "all numbers of a score, from texts"),
    Answer("like", "promptkit, cold", "", "promptkit", score_cold, "the same, a process of its own"),
    Answer("like", "alibi-detect MMDDrift", "alibi-detect", "alibi_detect", mmd_drift, "p-value, from vectors", GROWTH),
    Answer("like", "hyppo Energy, chi-squared", "hyppo", "hyppo", hyppo_fast, "approximate p-value, from vectors",
           GROWTH),
    Answer("like", "hyppo Energy", "hyppo", "hyppo", hyppo_energy, "p-value, from vectors", GROWTH),
    Answer("like", "hyppo MMD", "hyppo", "hyppo", hyppo_mmd, "p-value, from vectors", GROWTH[2:3]),
    Answer("like", "mauve-text", "mauve-text", "mauve", mauve_text, "a value, no p-value, from vectors"),
    Answer("like", "POT, exact", "POT", "ot", pot_exact, "p-value, from vectors"),
    Answer("like", "POT, sliced", "POT", "ot", pot_sliced, "p-value, from vectors; 50 projections"),
    Answer("like", "scikit-learn C2ST", "scikit-learn", "sklearn", c2st, "p-value, from vectors; AUC of 5 folds"),
    Answer("choose", "promptkit", "", "promptkit", choose_from_texts, "from texts, with domain quotas"),
    Answer("choose", "promptkit, from vectors", "", "promptkit", choose_ours, "with domain quotas"),
    Answer("choose", "SemHash", "semhash", "semhash", choose_semhash, "from texts; its default, MMR"),
    Answer("choose", "apricot facility location", "apricot-select", "apricot", choose_apricot, "from vectors"),
    Answer("choose", "kmedoids FasterPAM", "kmedoids", "kmedoids", choose_kmedoids, "from vectors"),
    Answer("choose", "DSIR", "data-selection", "data_selection", choose_dsir,
           "from texts; raw and target are one here, so it draws at random"),
    Answer("choose", "random draw", "", "numpy", choose_random, "what costs nothing"),
    Answer("duplicates", "promptkit", "", "promptkit", duplicates_ours, "exact"),
    Answer("duplicates", "datasketch", "datasketch", "datasketch", duplicates_datasketch, "MinHashLSH, 128"),
    Answer("duplicates", "rensa", "rensa", "rensa", duplicates_rensa, "RMinHashDeduplicator, 128"),
    Answer("duplicates", "SemHash", "semhash", "semhash", duplicates_semhash, "cosine of meaning at least 0.9"),
    Answer("leaks", "promptkit", "", "promptkit", leaks_ours, "names the row, the kind and the share"),
    Answer("leaks", "promptkit, words kept", "", "promptkit", leaks_kept, "as a reference keeps them"),
    Answer("leaks", "datasketch", "datasketch", "datasketch", leaks_datasketch, "MinHashLSH, 128"),
    Answer("leaks", "datasketch, index kept", "datasketch", "datasketch", leaks_datasketch_kept, "lookup alone"),
    Answer("leaks", "rensa", "rensa", "rensa", leaks_rensa, "RMinHashDeduplicator, 128"),
    Answer("leaks", "rensa, index kept", "rensa", "rensa", leaks_rensa_kept, "lookup alone"),
]  # fmt: skip


# ------------------------------------------------------------------------------------------------ one of them


def cpu() -> float:
    """Return processor seconds of this process and of those it waited for."""
    return sum(os.times()[2:4]) + time.process_time()


def peak_mb() -> int:
    """Return the most memory that this process, or one it waited for, held (ru_maxrss of one's own holds the parent's
    from before this program began)."""
    status = Path("/proc/self/status").read_text()
    own = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) // 1024


def measure(answer: Answer, inputs: Inputs, rows: int) -> dict[str, Any]:
    """Return seconds of each turn, peak memory and the answer."""
    work = answer.prepare(inputs, rows or len(inputs.X))

    def turn(amount: int) -> tuple[float, float, Any]:
        start, wall = cpu(), time.perf_counter()
        result = work.run(amount)
        return cpu() - start, time.perf_counter() - wall, result

    turns: list[Any] = []
    small: list[Any] = []
    while not turns or (len(turns) < TURNS and sum(t[0] for t in turns + small) < ENOUGH):
        if work.few:
            small.append(turn(work.few))
        turns.append(turn(work.many))
    found: dict[str, Any] = {"turns": len(turns)}
    for name, at in (("cpu", 0), ("wall", 1)):
        found[name] = min(t[at] for t in turns)
        if work.few:
            each = (found[name] - min(t[at] for t in small)) / (work.many - work.few)
            found[name] += each * (work.wanted - work.many)
    if work.few:
        found["measured"] = [work.few, work.many, work.wanted]
    found["peak_mb"] = peak_mb()
    found["value"] = turns[0][2]
    return found


def main() -> None:
    key, root, *rows = sys.argv[1:]
    answer = next(a for a in ANSWERS if a.key == key)
    own = os.dup(1)
    os.dup2(2, 1)  # libraries print
    found = measure(answer, Inputs(Path(root)), int(rows[0]) if rows else 0)
    found["version"] = version(answer.pip) if answer.pip else ""
    os.write(own, json.dumps(found).encode() + b"\n")


if __name__ == "__main__":
    main()
