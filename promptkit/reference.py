"""The fitted, saved profile of a training mix: all that is needed to score prompts against it, or to draw a pack.

    frame of sampled rows -> fit -> Reference -> save(dir) -> load_reference(dir) -> typicality, embed, assign

A saved reference is a directory of plain files that can be mapped, never pickles:

    reference.json      the manifest, written last: format version, fingerprint, size and sha256 of every other file
    profile.json        recipe, counts, seed, template and the tables of clusters, domains and sources
    sample.arrow        the sampled rows (Arrow IPC, uncompressed); what no score needs of them: conversations.arrow
    *.npy               vectors, centroids, word hashes and sketches for finding twins, what a score would learn anew
    prompts/ responses/ lexical profiles and calibration rows;  lsa/  embedder;  tokenizer/  the target's table

Its fingerprint is the sha256 of the list of file hashes. The same sample, options and versions give the same bytes.
`load_reference` checks every size, and the hash of a file when it is first opened; `check` checks them all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit import clusters as regions
from promptkit import embedders, gpu
from promptkit.conformal import MIN_HELDOUT, MIN_ROWS, View, folds_by_unit
from promptkit.conversation import canonical
from promptkit.errors import InputError, IntegrityError, UsageError
from promptkit.lexical import LexicalProfile, find
from promptkit.workers import trim
from promptkit.writing import publish, sha256_of, temporary_beside

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from promptkit.leakage import Words
    from promptkit.lexical import Ids
    from promptkit.tokenizers import Tokenizer

    Progress = Callable[[str, int, "int | None"], None]

FORMAT_VERSION = 6
MANIFEST = "reference.json"
WEIGHTS = ("rows", "tokens")
MASS_ROWS = 5000  # of the fit that are read for the domains of the mix
_SKETCH = 64  # smallest hashes of word 5-grams kept per row
_EXAMPLE_CHARACTERS = 300
CONVERSATION = ("messages", "tools", "response_text")
_FAMILY_ROWS, _FAMILY_SHARE = 20, 0.005


class Reference:
    """A fitted training mix. Made by `fit` or `load_reference`; never changed afterwards.

    sample : frame of the sampled rows with `domain`, `unsure`, `cluster`, `unit`, `heldout`, `weight` added, without
    `messages`, `tools` and `response_text`, which are in `conversations`, aligned with it;
    X : float32 (n, d) unit rows aligned with it;  centroids : float32 (k, d);  clusters, domains, sources : frames with
    shares and standard errors;  prompts, responses : the two `View`s, `responses` None where the mix has too few;
    tokenizer, template, recipe, counts, seed, weight, fingerprint, path (None until saved).
    """

    def __init__(
        self,
        *,
        arrays: Mapping[str, NDArray[Any]],
        profile: dict[str, Any],
        sample: Callable[[], pl.DataFrame],
        conversations: Callable[[], pl.DataFrame],
        tokenizer: Callable[[], Tokenizer],
        embedder: Any = None,
        masses: Any = None,
        fingerprint: str = "",
        path: str | None = None,
        device: str = "auto",
    ) -> None:
        self._arrays, self._profile, self._sample, self._tokenizer = arrays, profile, sample, tokenizer
        self._conversations = conversations
        self.kept: dict[Any, Any] = {}  # what a score would otherwise make anew each time; see `scoring`
        self._given_embedder, self._masses, self.device = embedder, masses, device
        self._fingerprint, self.path = fingerprint, path
        self.recipe: dict[str, Any] = profile["recipe"]
        self.counts: dict[str, Any] = profile["counts"]
        self.seed: int = profile["seed"]
        self.weight: str = profile["weight"]
        self.template: str | None = profile["template"]
        self.embedder_name: str = profile["embedder"]

    # Each part is opened when it is first asked for: a score needs neither the messages nor the response tables.

    def __repr__(self) -> str:
        where = f"{self._fingerprint[:12]} at {self.path}" if self.path else "not saved"
        return f"<Reference {where}: shares by {self.weight}, embedder {self.embedder_name}>"

    def _repr_html_(self) -> str:
        from promptkit.notebook import reference_html

        return reference_html(self)

    @cached_property
    def sample(self) -> pl.DataFrame:
        return self._sample()

    @property
    def conversations(self) -> pl.DataFrame:
        return self._conversations()  # opened each time: these are most of the bytes, and seldom needed twice

    @cached_property
    def X(self) -> NDArray[np.float32]:
        return self._arrays["vectors"]

    @cached_property
    def centroids(self) -> NDArray[np.float32]:
        return self._arrays["centroids"]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer()

    @cached_property
    def prompts(self) -> View:
        return _view(self._arrays, "prompts", self._profile["n_prompt_models"])

    @cached_property
    def responses(self) -> View | None:
        n = self._profile["n_response_models"]
        return _view(self._arrays, "responses", n) if n else None

    @cached_property
    def clusters(self) -> pl.DataFrame:
        return _table(self._profile["clusters"], cluster=int, name=str, domain=str, share=float, stderr=float, rows=int)

    @cached_property
    def domains(self) -> pl.DataFrame:
        return _table(self._profile["domains"], domain=str, share=float, stderr=float, rows=int)

    @cached_property
    def sources(self) -> pl.DataFrame:
        return _table(
            self._profile["sources"], source=str, share=float, stderr=float, rows=int, domain=str, domain_share=float,
            unsure=float,
        )  # fmt: skip

    @property
    def fingerprint(self) -> str:
        """sha256 over the hashes of all files, 64 hex; before a save, of what would be saved."""
        if not self._fingerprint:
            import tempfile

            with tempfile.TemporaryDirectory() as scratch:
                self._fingerprint = _fingerprint(self._write_files(Path(scratch)))
        return self._fingerprint

    # ------------------------------------------------------------------------------------------------- use

    @cached_property
    def embedder(self) -> Any:
        """The embedder that made `X`, checked against it; UsageError where an object of the user's is needed again."""
        if self.embedder_name == "lsa":
            part = _Part(self._arrays, "lsa")
            return embedders.Lsa.load(part, lambda texts: self.tokenizer.encode_batch(texts))
        model = self._given_embedder
        if model is None and not self._profile["embedder_is_name"]:
            raise UsageError(
                f"reference was embedded with an object, {self.embedder_name}, that a file cannot hold",
                hint="pass the same object: load_reference(path, embedder=...)",
            )
        model = embedders.embedder(self.embedder_name, device=self.device) if model is None else model
        probe = np.flatnonzero(np.abs(self.X).sum(axis=1) > 0)[:4]
        if len(probe):
            Y = embedders.embed(model, [str(self.sample["text"][int(i)]) for i in probe])
            agreement = (Y * self.X[probe]).sum(axis=1) if Y.shape[1] == self.X.shape[1] else np.zeros(1)
            if agreement.min() < 0.99:
                raise IntegrityError(
                    f"embedder {self.embedder_name}: its vectors differ from those stored in the reference "
                    f"(cosine {float(agreement.min()):.3f} on a stored row, expected 0.99 or more)",
                    hint="use the same model and version, or build the reference again",
                )
        return model

    def embed(self, texts: Sequence[str], *, ids: Sequence[Ids] | None = None) -> NDArray[np.float32]:
        """Return unit rows (m, d) in the space of `X`; `ids`, where given, saves `lsa` the encoding of the texts."""
        if isinstance(self.embedder, embedders.Lsa) and ids is not None:
            return self.embedder.transform(ids)
        return embedders.embed(self.embedder, texts)

    def domain_evidence(
        self, texts: Sequence[str]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]] | tuple[None, None]:
        """Return how much of the mix lies in each text's domains, as a logarithm (m,), and its likeliest domain (m,).

        The domain is a code, the position of `domains.DOMAINS`. None where the reference was fitted without domains.
        """
        if "domain_mass" not in self._arrays:
            return None, None
        masses = self._masses
        if masses is None:
            from promptkit import domains

            masses = domains.masses
            if self._profile["labeller"] != domains.identity():
                raise IntegrityError(
                    f"{self.path}: fitted with another domain labeller, or another version of it",
                    hint="build the reference again with this promptkit",
                )
        return _affinity(np.asarray(masses(texts), dtype=np.float64), np.asarray(self._arrays["domain_mass"]))

    def assign(self, X: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the cluster of each row of X, int64 (m,); vectors are rounded first, so near ties are stable."""
        return regions.assign(X, self.centroids)

    def region(self, X: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the regions (m, R) of vectors (m, d), for `View.typicality`: finer than what is shown, and unnamed."""
        return regions.assign_all(X, self._arrays["regions"])

    def find_units(
        self, texts: Sequence[str], *, grams: Sequence[NDArray[np.uint64]] | None = None
    ) -> NDArray[np.int64]:
        """Return the unit of the mix that each text belongs to, int64 (m,); -1 where it is not in the sample.

        A text belongs to a unit if it equals one of its openings (white space and case aside) or shares 80 % of its
        word 5-grams with one (Jaccard). Candidates come from 64 smallest gram hashes per row; then the true overlap.
        Rows of a template family (see `_units`) are found by copy only: a new issue below an old system turn is new.
        `grams` are the texts' word 5-grams (`leakage.CandidateIndex.sets`), where they are at hand.
        """
        from promptkit.leakage import JACCARD, jaccards, stretches

        hashes, holders, units = (self._arrays[name] for name in ("sketch_hashes", "sketch_rows", "units"))
        exact, exact_row = self._arrays["text_hashes"], self._arrays["text_rows"]
        found = np.full(len(texts), -1, dtype=np.int64)
        at, known = find(exact, _text_hashes(texts))
        found[known] = units[exact_row[at[known]]]
        unknown = [i for i in np.flatnonzero(~known).tolist() if texts[i].strip()]
        grams = _gram_sets([texts[i] for i in unknown]) if grams is None else [grams[i] for i in unknown]
        # Pairs of a text and a row that holds one of its hashes, and how many hashes they share.
        sketches = [own[:_SKETCH] for own in grams]
        ours = np.concatenate([np.zeros(0, dtype=np.uint64), *sketches])
        low, there = find(hashes, ours)
        n_met = np.zeros(len(ours), dtype=np.int64)
        n_met[there] = np.searchsorted(hashes, ours[there], side="right") - low[there]
        # Twins share 80 % of the union's grams, so about 57 of their smallest 64; a third is a safe first sieve.
        least = np.array([max(1, len(s) // 3) for s in sketches], dtype=np.int64)
        of_hash = np.repeat(np.arange(len(grams)), [len(s) for s in sketches])
        # A row with so many holds one that is not among the commonest of the text: rows with these alone are left out.
        order = np.lexsort((-n_met, of_hash))
        common = np.zeros(len(ours), dtype=bool)
        common[order] = np.arange(len(ours)) - np.searchsorted(of_hash, of_hash) < least[of_hash] - 1
        met = holders[stretches(low, n_met)]
        of_text, rare = np.repeat(of_hash, n_met), np.repeat(~common, n_met)
        likely = np.zeros(len(units), dtype=bool)
        likely[met[rare]] = True
        at = np.flatnonzero(likely[met])
        pairs = of_text[at] * len(units) + met[at]
        pairs, hits = np.unique(pairs[find(np.unique(pairs[rare[at]]), pairs)[1]], return_counts=True)
        text, row = np.divmod(pairs, max(len(units), 1))
        likely = (hits >= least[text]) & ~self._arrays["templated"][row]
        text, row, hits = text[likely], row[likely], hits[likely]
        order = np.lexsort((row, -hits, text))
        text, row = text[order], row[order]
        first = np.searchsorted(text, np.arange(len(grams)))
        distinct = np.unique(row).tolist()
        their = dict(zip(distinct, self.words.grams(distinct), strict=True))
        for k in np.unique(text).tolist():
            rows = row[first[k] : first[k] + 64][text[first[k] : first[k] + 64] == k].tolist()
            overlaps = jaccards(grams[k], [their[r] for r in rows])
            best = int(overlaps.argmax())  # the first of the largest
            if overlaps[best] >= JACCARD - 1e-9:
                found[unknown[k]] = units[rows[best]]
        return found

    @cached_property
    def words(self) -> Words:
        """The openings of the sample as `leakage.leaks` reads them, hashed once when the reference was fitted."""
        from promptkit.leakage import Words

        stored = (self._arrays[f"words/{name}"] for name in Words.PARTS)
        hashes, rows = self._arrays["sketch_hashes"], self._arrays["sketch_rows"]
        smallest = np.zeros(len(self._arrays["units"]), dtype=np.uint64)
        smallest[rows[::-1]] = hashes[::-1]  # ascending: the last one that is assigned is the smallest
        return Words(*stored, text=lambda i: str(self.sample["text"][i]), smallest=smallest)

    def learned(self) -> Mapping[str, NDArray[Any]] | None:
        """Return what a score by `weight` once learned of the mix as a whole (`with_learned`), None where it is not."""
        return _Part(self._arrays, "score") if "score/mean" in self._arrays else None

    def with_learned(self, arrays: Mapping[str, NDArray[Any]]) -> Reference:
        """Return this reference with what a score learns of the mix, so that no later score need learn it again."""
        return Reference(
            arrays={**self._arrays, **{f"score/{name}": a for name, a in arrays.items()}}, profile=self._profile,
            sample=lambda: self.sample, conversations=lambda: self.conversations, tokenizer=lambda: self.tokenizer,
            embedder=self._given_embedder, masses=self._masses, device=self.device,
        )  # fmt: skip

    def prefetch(self) -> None:
        """Begin, in the background, to check the files that a score opens: hashing releases the interpreter lock."""
        if isinstance(self._arrays, _Mapped):
            unread = ("conversations.arrow", "responses/")
            self._arrays.files.prefetch([n for n in self._arrays.files.files if not n.startswith(unread)])

    def check(self) -> None:
        """Raise IntegrityError unless every file is as it was written; a reference in memory has none."""
        if isinstance(self._arrays, _Mapped):
            self._arrays.files.check_all()

    # ------------------------------------------------------------------------------------------------ save

    def save(self, directory: str | Path) -> Path:
        """Write the reference to `directory` (replaced as a whole where it exists) and return it.

        Written beside the target, manifest last, and renamed: a reader sees the old one or the new one. Raises
        UsageError where something other than a reference is in the way, ResourceError where the disk is full.
        """
        target = Path(directory)
        if target.is_file() or (target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).is_file()):
            raise UsageError(
                f"{target}: exists and is no reference", hint="choose another directory, or remove this one first"
            )
        with temporary_beside(target, directory=True) as work:
            scratch = work / "reference"
            scratch.mkdir()
            files = self._write_files(scratch)
            fingerprint = _fingerprint(files)
            manifest = {"format_version": FORMAT_VERSION, "fingerprint": fingerprint, "files": files}
            (scratch / MANIFEST).write_bytes(canonical(manifest) + b"\n")
            publish(scratch, target)
        self._fingerprint, self.path = fingerprint, str(target)
        return target

    def _write_files(self, directory: Path) -> list[dict[str, Any]]:
        """Write everything but the manifest; return path, bytes and sha256 of each file, sorted by path."""
        (directory / "profile.json").write_bytes(canonical(self._profile) + b"\n")
        write_arrow(self.sample, directory / "sample.arrow")
        write_arrow(self.conversations, directory / "conversations.arrow")
        for name in sorted(self._arrays):
            path = directory / f"{name}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as out:
                # No file to numpy: into one it would write past Python, and a full disk has no errno there.
                plain: Any = SimpleNamespace(write=out.write)
                np.lib.format.write_array(plain, np.ascontiguousarray(self._arrays[name]), allow_pickle=False)
        self.tokenizer.save(directory / "tokenizer")
        paths = sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())
        return [{"path": p, "bytes": (directory / p).stat().st_size, "sha256": sha256_of(directory / p)} for p in paths]


# --------------------------------------------------------------------------------------------------------- fit


def fit(
    frame: pl.DataFrame,
    *,
    tokenizer: Tokenizer,
    counts: dict[str, Any] | None = None,
    recipe: dict[str, Any] | None = None,
    template: str | None = None,
    embedder: Any = "lsa",
    weight: str = "rows",
    seed: int = 0,
    n_clusters: int | None = None,
    label: Callable[..., Any] | Sequence[Any] | None = None,
    by_source: Mapping[str, str] | None = None,
    masses: Callable[[Sequence[str]], NDArray[np.float64]] | NDArray[np.float64] | None = None,
    conversations: Callable[[], pl.DataFrame] | None = None,
    groups: NDArray[np.int64] | None = None,
    device: str = "auto",
    threads: int = 1,
    spread: embedders.Spread | None = None,
    progress: Progress | None = None,
) -> Reference:
    """Fit the profile of a mix on its sampled rows.

    Parameters
    ----------
    frame : rows of the mix in the one schema of frames (see `frames.py`); at least one.
    tokenizer : of the target model; all ids are those of the encoded openings and responses.
    counts, recipe : kept and saved as they are (JSON); `counts["sources"]`, where it lists `source, rows,
        supervised_tokens` of the whole mix, makes the shares of sources exact.
    weight : "rows" or "tokens" (supervised tokens): what the shares represent.
    label : callable `(texts, messages=, tools=) -> [Label]` with `.domain` and `.unsure`, or what it says of the rows;
        None calls every row "other".
    by_source : source -> domain of its rows, which wins over `label`.
    masses : callable `texts -> P(domain | text)`, (n, number of domains), from the text alone; makes typicality see
        domains (`conformal`). Only `promptkit.domains.masses` survives saving; None leaves domains out. What these are
        for the rows of `frame`, (n, number of domains), saves the time to find out.
    device : "auto" (a GPU, where there is one, for an embedding model), "cpu", "cuda" or "cuda:N" (for k-means too: the
        same bytes).
    spread : has a sentence-transformers model embed the texts elsewhere (`engines.spread`); None: here.
    conversations : opens the columns `messages`, `tools` and `response_text` of the rows, where they are not in `frame`
        but on disk: they are most of its bytes and are needed for moments.
    groups : near-duplicate group of each row, int64 (n,), 0 or more; `leakage.near_duplicate_groups` where None.

    Raises InputError for a frame without rows or without weight, UsageError for an unknown weight or embedder.
    """
    import polars as pl

    if weight not in WEIGHTS:
        raise UsageError(f"weight {weight!r} is unknown", hint="known: rows, tokens")
    if n_clusters is not None and n_clusters < 1:
        raise UsageError(f"n_clusters is {n_clusters}", hint="pass 1 or more, or None for as many as are stable")
    if not len(frame):
        raise InputError(
            "the sample of the training mix holds no rows", hint="run `promptkit inspect` on the directory"
        )

    def say(stage: str, done: int, total: int | None) -> None:
        trim()  # each stage frees more than the next one can use
        if progress:
            progress(stage, done, total)

    model = embedders.embedder(embedder, device=device, threads=threads, spread=spread)
    asked = gpu.asked(device)
    opened = conversations or (lambda: frame.select(CONVERSATION))
    texts = frame["text"].to_list()
    weights = _weights(frame, weight)
    ids = tokenizer.encode_batch(texts, threads=threads)

    say("group near-duplicates", 0, len(texts))
    from promptkit import leakage  # upstairs

    hashes = leakage.hashed(texts)
    sets = leakage.gram_sets(hashes)
    sketches = _sketches(sets)
    if groups is None:
        groups = leakage.near_duplicate_groups(texts, sets)
    del sets
    units, templated = _units(texts, np.asarray(groups, dtype=np.int64))
    folds = folds_by_unit(units, seed=seed)
    # Vectors of fold 0 must come from a space that has not seen these rows, in either regime: the mix test draws from
    # them, and fitted rows lie nearer to the mix than new ones (31 % false alarms at n = 60 from 1,000 rows, measured).
    in_fit = folds != 0 if folds.max(initial=-1) >= 0 else np.ones(len(texts), dtype=bool)

    say("embed", 0, len(texts))
    encode_ids = tokenizer.encode_batch
    if model is embedders.Lsa:
        model = embedders.Lsa.fit([ids[i] for i in np.flatnonzero(in_fit)], encode_ids, seed=seed)
    X = model.transform(ids) if isinstance(model, embedders.Lsa) else embedders.embed(model, texts)
    # The number alone may see rows that are held out: it says nothing of where they lie, and hangs less on the seed.
    centroids = regions.fit(X[in_fit], n_clusters=n_clusters or regions.stable_number(X), device=asked)
    cluster = regions.assign(X, centroids)
    region_centroids = regions.fit_regions(X[in_fit], rng=seed, device=asked)
    region = regions.assign_all(X, region_centroids)

    say("label", 0, len(texts))
    domain, unsure = _labels(frame["source"].to_list(), texts, opened, label, by_source)
    sample = frame.with_columns(
        pl.Series("domain", domain, dtype=pl.String),
        pl.Series("unsure", unsure, dtype=pl.Boolean),
        pl.Series("cluster", cluster),
        pl.Series("unit", units),
        pl.Series("heldout", folds >= 0 if folds.max(initial=-1) >= 0 else np.ones(len(texts), dtype=bool)),
        pl.Series("weight", weights),
    )

    say("fit prompts", 0, len(texts))
    shared: Any = {"centroids": region_centroids, "n_vocab": tokenizer.n_vocab, "threads": threads}
    everyone = np.arange(len(texts), dtype=np.int64)
    mass_of_mix, affinity, likeliest = _affinities(texts, folds, in_fit, weights, masses, seed)
    prompts = View.fit(
        ids, rows=everyone, folds=folds, units=units, clusters=region, affinity=affinity, domain=likeliest, **shared
    )
    responses = None
    answers = opened()["response_text"].to_list()
    answered = np.array([i for i, a in enumerate(answers) if a and a.strip()], dtype=np.int64)
    if len(answered) >= MIN_ROWS:
        answer_ids = tokenizer.encode_batch([answers[i] for i in answered], threads=threads)
        del answers
        say("fit responses", 0, len(answered))
        responses = View.fit(
            answer_ids,
            rows=answered,
            folds=_refold(folds[answered], units[answered], seed),
            units=units[answered],
            clusters=region[answered],
            **shared,
        )

    order, of_texts = _sorted_hashes(texts)
    arrays: dict[str, NDArray[Any]] = {
        "vectors": X,
        "centroids": centroids,
        "regions": region_centroids,
        "units": units,
        "templated": templated,
        **sketches,
    }
    if mass_of_mix is not None:
        arrays["domain_mass"] = mass_of_mix
    arrays |= {"text_hashes": of_texts, "text_rows": order}
    arrays |= {f"words/{name}": a for name, a in hashes.items()}
    arrays |= _view_arrays("prompts", prompts)
    if responses:
        arrays |= _view_arrays("responses", responses)
    if isinstance(model, embedders.Lsa):
        arrays |= {f"lsa/{name}": a for name, a in model.arrays().items()}
    n_total = _n_rows(counts, len(frame))
    profile = {
        "recipe": recipe or {},
        "counts": counts or {},
        "seed": seed,
        "weight": weight,
        "template": template,
        "embedder": embedders.identity(model),
        "embedder_is_name": isinstance(embedder, str),
        "labeller": _labeller(masses),
        "n_prompt_models": len(prompts.profiles),
        "n_response_models": len(responses.profiles) if responses else 0,
        "clusters": _cluster_table(X, centroids, cluster, units, texts, domain, weights, n_total),
        "domains": _shares("domain", np.array(domain, dtype=object), weights, n_total),
        "sources": _source_table(frame["source"].to_list(), domain, unsure, weights, n_total, counts, weight),
    }
    if isinstance(model, embedders.SentenceTransformer):
        profile["embedded_on"] = model.embedded_on  # another device gives other last bits
    profile = json.loads(canonical(profile))  # what is in memory is what a file would hold
    say("fitted", len(texts), len(texts))
    given = None if isinstance(embedder, str) else embedder
    light = sample.drop(CONVERSATION, strict=False)
    return Reference(
        arrays=arrays, profile=profile, sample=lambda: light, conversations=opened,
        tokenizer=lambda: tokenizer, embedder=given, masses=masses if callable(masses) else None,
        device=device,
    )  # fmt: skip


def _units(texts: list[str], groups: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the unit of each row and whether it is of a template family.

    A unit is a group of near-duplicates, unless the group is a *family*: different rows of one template, such as 89
    airline tasks below one long policy, or every row of an agent with a fixed system turn, chained by what they share.
    Held out as one, a family is foreign to the fit, makes a twentieth of the held-out rows odd, and every later row of
    it "not in the mix". So a group of more than 20 rows and 0.5 % of the sample is split into exact copies.
    """
    from promptkit.leakage import normalise

    large = np.bincount(groups) > max(_FAMILY_ROWS, _FAMILY_SHARE * len(texts))
    templated = large[groups]
    seen: dict[tuple[int, str], int] = {}
    units = [  # numbered in order of first appearance
        seen.setdefault((group, normalise(text) if family else ""), len(seen))
        for group, text, family in zip(groups.tolist(), texts, templated.tolist(), strict=True)
    ]
    unit = np.array(units, dtype=np.int64)
    # Copies of one text, however many, are no family: they are found, and left out, as one.
    return unit, templated & (np.bincount(unit)[unit] < np.bincount(groups)[groups])


def _weights(frame: pl.DataFrame, weight: str) -> NDArray[np.float64]:
    if weight == "rows":
        return np.ones(len(frame))
    weights = frame["n_supervised_tokens"].fill_null(0).to_numpy().astype(np.float64)
    if not weights.sum():
        raise InputError("no row of the mix has supervised tokens to weigh it by", hint='use weight="rows"')
    return weights


def _affinities(
    texts: list[str],
    folds: NDArray[np.int64],
    in_fit: NDArray[np.bool_],
    weights: NDArray[np.float64],
    masses: Any,
    seed: int,
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None, NDArray[np.int64] | None]:
    """Return the mix's mass per domain, the affinity (else NaN) and the domain (else -1) of each calibration row.

    The mass is taken over rows that are not held out, a draw of them where they are many: its standard error is then
    below 0.7 points.
    """  # fmt: skip
    if masses is None:
        return None, None, None
    fitted = np.flatnonzero(in_fit & (weights > 0) if (weights[in_fit] > 0).any() else in_fit)
    fitted = np.sort(np.random.default_rng(seed).permutation(fitted)[:MASS_ROWS])
    read = np.union1d(fitted, np.flatnonzero(folds >= 0))
    P = np.asarray(masses([texts[i] for i in read.tolist()]) if callable(masses) else masses[read], dtype=np.float64)
    of_fit = np.searchsorted(read, fitted)
    share = np.round(np.average(P[of_fit], axis=0, weights=np.maximum(weights[fitted], 1e-12)), 9)
    affinity = np.full(len(texts), np.nan)
    likeliest = np.full(len(texts), -1, dtype=np.int64)
    affinity[read], likeliest[read] = _affinity(P, share)
    return share, affinity, likeliest


def _labeller(masses: Any) -> str | None:
    """Return the identity of promptkit's own labeller, "custom" for another, None for none."""
    if masses is None:
        return None
    from promptkit import domains

    return domains.identity() if masses is domains.masses or not callable(masses) else "custom"


def _affinity(P: NDArray[np.float64], share: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    affinity: NDArray[np.float64] = np.round(np.log((P * share).sum(axis=1) + 1e-9), 6)
    return affinity, np.argmax(np.round(P, 6), axis=1).astype(np.int64)


def _labels(
    sources: list[str],
    texts: list[str],
    conversations: Callable[[], pl.DataFrame],
    label: Callable[..., Any] | Sequence[Any] | None,
    by_source: Mapping[str, str] | None,
) -> tuple[list[str], list[bool]]:
    from promptkit.labellers import labels

    if label is None:
        return ["other"] * len(texts), [True] * len(texts)
    if callable(label):
        rows = conversations()
        messages = [json.loads(m) for m in rows["messages"]]
        tools = [json.loads(t) if t else None for t in rows["tools"]]
        found = labels(texts, messages=messages, tools=tools, sources=sources, label=label, by_source=by_source)
    else:
        found = labels(texts, sources=sources, label=lambda *_, **__: label, by_source=by_source)
    return [domain for domain, _ in found], [unsure for _, unsure in found]


def _refold(folds: NDArray[np.int64], units: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return the folds of the rows with an answer: a row is held out as a whole where enough of them are, else anew."""
    inherited = folds.max(initial=-1) == 0 and int((folds == 0).sum()) >= MIN_HELDOUT
    return folds if inherited else folds_by_unit(units, seed=seed)


# ------------------------------------------------------------------------------------------------------ tables


def _shares(what: str, values: NDArray[Any], weights: NDArray[np.float64], n_total: int | None) -> list[dict[str, Any]]:
    """Return share and standard error of each value, the largest first.

    Ratio estimator (Cochran 1977, section 2.11): se = sqrt(sum w^2 (y - p)^2) / sum w, times sqrt(1 - n / N) where the
    sample is a good part of the mix of N rows.
    """
    total, n = float(weights.sum()), len(values)
    rest = np.sqrt(max(0.0, 1.0 - n / n_total)) if n_total else 1.0
    found = []
    for value in sorted(set(values.tolist())):
        own = values == value
        share = float(weights[own].sum()) / total
        stderr = float(np.sqrt(np.sum(weights**2 * (own - share) ** 2))) / total * rest
        found.append({what: value, "share": round(share, 9), "stderr": round(stderr, 9), "rows": int(own.sum())})
    return sorted(found, key=lambda row: (-row["share"], row[what]))


def _cluster_table(
    X: NDArray[np.float32],
    centroids: NDArray[np.float32],
    cluster: NDArray[np.int64],
    units: NDArray[np.int64],
    texts: list[str],
    domain: list[str],
    weights: NDArray[np.float64],
    n_total: int | None,
) -> list[dict[str, Any]]:
    k = len(centroids)
    names = regions.names(texts, cluster, k)
    nearest = regions.nearest_rows(X, cluster, centroids, units=units, n=3)
    shares = {row["cluster"]: row for row in _shares("cluster", cluster, weights, n_total)}
    table = []
    for c in range(k):
        mass: dict[str, float] = {}
        for i in np.flatnonzero(cluster == c):
            mass[domain[i]] = mass.get(domain[i], 0.0) + weights[i] + 1e-9  # weightless rows still have a domain
        row = shares.get(c, {"cluster": c, "share": 0.0, "stderr": 0.0, "rows": 0})
        examples = [re.sub(r"\s+", " ", texts[i])[:_EXAMPLE_CHARACTERS] for i in nearest[c]]
        main = min(mass, key=lambda d: (-mass[d], d)) if mass else "other"
        table.append({**row, "name": names[c], "domain": main, "examples": examples})
    return table


def _source_table(
    sources: list[str],
    domain: list[str],
    unsure: list[bool],
    weights: NDArray[np.float64],
    n_total: int | None,
    counts: dict[str, Any] | None,
    weight: str,
) -> list[dict[str, Any]]:
    """Return the shares of the sources, and of what domain each mostly is: as much of it, and as much unsure.

    Shares are counted in the whole mix where `counts` tells, else estimated; domains are always the sample's.
    """
    table = _shares_of_sources(sources, weights, n_total, counts, weight)
    rows: dict[str, list[int]] = {}
    for i, source in enumerate(sources):
        rows.setdefault(source, []).append(i)
    for row in table:
        mass: dict[str, float] = {}
        doubt = 0.0
        for i in rows.get(row["source"], ()):
            w = weights[i] + 1e-9  # weightless rows still have a domain
            mass[domain[i]] = mass.get(domain[i], 0.0) + w
            doubt += w * unsure[i]
        total = sum(mass.values())
        main = min(mass, key=lambda d: (-mass[d], d)) if mass else None
        row["domain"] = main
        row["domain_share"] = round(mass[main] / total, 6) if main else None
        row["unsure"] = round(doubt / total, 6) if main else None
    return table


def _shares_of_sources(
    sources: list[str], weights: NDArray[np.float64], n_total: int | None, counts: dict[str, Any] | None, weight: str
) -> list[dict[str, Any]]:
    key = "rows" if weight == "rows" else "supervised_tokens"
    listed = _listed_sources(counts)
    total = sum(s.get(key) or 0 for s in listed)
    if not total:
        return _shares("source", np.array(sources, dtype=object), weights, n_total)
    table = [
        {"source": s["source"], "share": round((s.get(key) or 0) / total, 9), "stderr": 0.0, "rows": s.get("rows") or 0}
        for s in listed
    ]
    return sorted(table, key=lambda row: (-row["share"], row["source"]))


def _listed_sources(counts: dict[str, Any] | None) -> list[dict[str, Any]]:
    listed = (counts or {}).get("sources") or []
    return [s for s in listed if isinstance(s, dict) and "source" in s] if isinstance(listed, list) else []


def _n_rows(counts: dict[str, Any] | None, n: int) -> int | None:
    total = sum(s.get("rows") or 0 for s in _listed_sources(counts))
    return total if total >= n else None


def _table(table: list[dict[str, Any]], /, **columns: type) -> pl.DataFrame:
    import polars as pl

    kinds = {int: pl.Int64, float: pl.Float64, str: pl.String}
    schema: dict[str, Any] = {name: kinds[kind] for name, kind in columns.items()}
    if "cluster" in schema:
        schema["examples"] = pl.List(pl.String)
    return pl.DataFrame({name: [row[name] for row in table] for name in schema}, schema=schema)


# ------------------------------------------------------------------------------------------------ finding twins


def _text_hashes(texts: Sequence[str]) -> NDArray[np.uint64]:
    from promptkit.leakage import normalise

    digests = (hashlib.blake2b(normalise(t).encode("utf-8", "surrogatepass"), digest_size=8).digest() for t in texts)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def _sorted_hashes(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    hashes = _text_hashes(texts)
    order = np.argsort(hashes, kind="stable").astype(np.int64)
    return order, hashes[order]


def _gram_sets(texts: Sequence[str]) -> list[NDArray[np.uint64]]:
    """Return the sorted distinct hashes of each text's word 5-grams, as `leakage` defines them."""
    from promptkit import leakage

    return list(leakage._gram_sets(texts, leakage.GRAM))


def _sketches(sets: Sequence[NDArray[np.uint64]]) -> dict[str, NDArray[Any]]:
    """Return the 64 smallest gram hashes of all texts, ascending, and the row that each is of."""
    smallest = [grams[:_SKETCH] for grams in sets]
    hashes = np.concatenate([np.zeros(0, dtype=np.uint64), *smallest])
    rows = np.repeat(np.arange(len(sets), dtype=np.int32), [len(g) for g in smallest])
    order = np.argsort(hashes, kind="stable")
    return {"sketch_hashes": hashes[order], "sketch_rows": rows[order]}


# ----------------------------------------------------------------------------------------------- load and files


def load_reference(
    path: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    embedder: Any = None,
    expect: str | None = None,
    device: str = "auto",
) -> Reference:
    """Return the reference saved in `path`, or built into that directory, every file's size checked.

    A name such as "general" is that of a bundled pack, whose reference is fitted on the spot (`bundled`).

    The sha256 of a file is checked when it is first opened, before anything of it is used. `expect` pins the
    fingerprint; `tokenizer` saves loading the stored one; `embedder` is needed again where the reference was embedded
    with an object. `device` is where an embedding model runs ("auto": a GPU where there is one); with "cuda" or
    "cuda:N" the null draws of a score are summed there too. Raises UsageError (no reference there), IntegrityError (a
    file is missing or of another size).
    """
    root = Path(path)
    if not (root / MANIFEST).is_file() and (root / "reference" / MANIFEST).is_file():
        root = root / "reference"
    if not (root / MANIFEST).is_file():
        from promptkit import bundled

        if not root.exists() and str(path) in bundled.packs():
            return bundled.reference(str(path), device=device)
        raise UsageError(
            f"{root}: no reference there ({MANIFEST} is missing)",
            hint="build one: promptkit build --from DIR, then pass its reference/ directory; "
            f"or name one that comes with promptkit: {', '.join(bundled.packs())}",
        )
    manifest = _read_json(root / MANIFEST)
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise IntegrityError(
            f"{root}: reference of format {version}, this promptkit reads {FORMAT_VERSION}",
            hint="build the reference again, or use the promptkit that wrote it",
        )
    files = manifest.get("files") or []
    stored = _Files(root, files)
    fingerprint = _fingerprint(files)
    for wanted, whose in ((manifest.get("fingerprint"), "its manifest"), (expect, "what was expected")):
        if wanted is not None and str(wanted).removeprefix("sha256:") != fingerprint:
            raise IntegrityError(
                f"{root}: fingerprint {fingerprint[:16]}… differs from {whose}, {str(wanted)[:24]}…",
                hint="copy or build the reference again",
            )
    return Reference(
        arrays=_Mapped(stored),
        profile=_read_json(stored.checked("profile.json")),
        sample=lambda: _read_arrow(stored.checked("sample.arrow")),
        conversations=lambda: map_arrow(stored.checked("conversations.arrow")),
        tokenizer=lambda: tokenizer if tokenizer is not None else _load_tokenizer(stored.folder("tokenizer")),
        embedder=embedder,
        fingerprint=fingerprint,
        path=str(root),
        device=device,
    )


class _Files:
    """The files of a saved reference: all there and of the right size from the start, each hashed when it is opened."""

    def __init__(self, root: Path, files: list[dict[str, Any]]) -> None:
        self.root, self.files = root, {str(f.get("path", "")): f for f in files}
        self._hashes: dict[str, Callable[[], str]] = {}  # of the files that were opened, or soon will be
        self._refuse([p for p in map(self._misplaced, self.files) if p])
        if not files:
            self._refuse(["the manifest lists no files"])

    def checked(self, *names: str) -> Path:
        """Return the path of the first, all of them with the hash that they were written with; else IntegrityError."""
        for name in names:
            if name not in self._hashes:
                digest = sha256_of(self.root / name)
                self._hashes[name] = lambda digest=digest: digest  # type: ignore[misc]
        wrong = [name for name in names if self._hashes[name]() != self.files[name]["sha256"]]
        self._refuse([f"{name} differs from its sha256" for name in wrong])
        return self.root / names[0]

    def prefetch(self, names: list[str]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        left = sorted((n for n in names if n not in self._hashes), key=_in_order_of_use)
        if not left:
            return
        pool = ThreadPoolExecutor(2)
        for name in left:
            self._hashes[name] = pool.submit(sha256_of, self.root / name).result
        pool.shutdown(wait=False)

    def folder(self, name: str) -> Path:
        return self.checked(*(n for n in self.files if n.startswith(name + "/"))).parent

    def check_all(self) -> None:
        self.checked(*self.files)

    def _misplaced(self, name: str) -> str | None:
        path, entry = self.root / name, self.files[name]
        if not name or name.startswith("/") or ".." in Path(name).parts or path.is_symlink():
            return f"{name!r} is not a plain path inside the reference"
        if not path.is_file():
            return f"{name} is missing"
        size = path.stat().st_size
        return None if size == entry.get("bytes") else f"{name} has {size} bytes, expected {entry.get('bytes')}"

    def _refuse(self, problems: list[str]) -> None:
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise IntegrityError(f"{self.root}: {problems[0]}{more}", hint="copy or build the reference again")


class _Mapped(Mapping[str, "NDArray[Any]"]):
    """Arrays of a directory by name, checked and mapped from disk when first asked for."""

    def __init__(self, files: _Files) -> None:
        self.files = files
        self._names = [name.removesuffix(".npy") for name in files.files if name.endswith(".npy")]
        self._open: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._open:
            if name not in self._names:
                raise KeyError(name)
            path = self.files.checked(f"{name}.npy")
            try:
                # As a plain array: a slice of a memmap takes ten times as long.
                self._open[name] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
            except ValueError:  # an array without entries cannot be mapped
                self._open[name] = np.load(path, allow_pickle=False)
        return self._open[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Part(Mapping[str, "NDArray[Any]"]):
    """The arrays whose names begin with `prefix/`, without the prefix; nothing is opened before it is used."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], prefix: str) -> None:
        self._arrays, self._prefix = arrays, prefix + "/"

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[self._prefix + name]

    def __iter__(self) -> Any:
        return (n.removeprefix(self._prefix) for n in self._arrays if n.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _view_arrays(name: str, view: View) -> dict[str, NDArray[Any]]:
    found = {f"{name}/{key}": a for key, a in view.arrays().items()}
    for f, profile in enumerate(view.profiles):
        found |= {f"{name}/model_{f}/{key}": a for key, a in profile.arrays().items()}
    return found


def _view(arrays: Mapping[str, NDArray[Any]], name: str, n_models: int) -> View:
    profiles = [LexicalProfile(_Part(arrays, f"{name}/model_{f}")) for f in range(n_models)]
    return View(profiles, _Part(arrays, name))


def write_arrow(sample: pl.DataFrame, path: Path) -> None:
    """Write a frame as Arrow IPC whose bytes depend on the values alone.

    Uncompressed, one batch, strings rebuilt and nulls zeroed: a polars frame's own buffers keep traces of how it was
    made.
    """
    import polars as pl
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for column in sample:
        if column.dtype == pl.String:
            columns[column.name] = pa.array(column.to_list(), pa.large_string())
        else:
            zero = False if column.dtype == pl.Boolean else 0
            values, missing = column.fill_null(zero).to_numpy(), column.is_null().to_numpy()
            columns[column.name] = pa.array(np.ascontiguousarray(values), mask=missing if missing.any() else None)
    table = pa.table(columns)
    with pa.OSFile(os.fsencode(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)


def map_arrow(path: Path) -> pl.DataFrame:
    """Return the frame in a file of `write_arrow`, mapped from it: gone with the frame, where polars would keep it."""
    import polars as pl
    import pyarrow as pa

    with pa.memory_map(os.fsdecode(path)) as source:
        return pl.DataFrame(pa.ipc.open_file(source).read_all())


def _read_arrow(path: Path) -> pl.DataFrame:
    import polars as pl

    return pl.read_ipc(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise IntegrityError(
            f"{path}: not readable as JSON ({error})", hint="copy or build the reference again"
        ) from error
    if not isinstance(value, dict):
        raise IntegrityError(f"{path}: expected a JSON object", hint="copy or build the reference again")
    return value


def _load_tokenizer(directory: Path) -> Tokenizer:
    from promptkit.tokenizers import load_tokenizer

    return load_tokenizer(directory)


def _in_order_of_use(name: str) -> tuple[bool, str]:
    return not name.startswith(("tokenizer/", "lsa/")), name


def _fingerprint(files: list[dict[str, Any]]) -> str:
    return hashlib.sha256(canonical([[f["path"], f["sha256"]] for f in files])).hexdigest()
