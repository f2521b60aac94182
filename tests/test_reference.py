"""The reference: fitted, saved, verified; on our own texts, and on real ones where they lie beside the checkout."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from promptkit import reference
from promptkit.conversation import canonical, opening, prompt_id, response_text
from promptkit.errors import InputError, IntegrityError, ResourceError, UsageError
from promptkit.tokenizers import load_tokenizer

TOPICS = {
    "A_sort": "sort list python function returns numbers ascending merge array index pivot stable",
    "B_shell": "bash files directory find grep remove permission user home count lines archive",
    "C_sql": "select orders customers join table total group month average rows column query",
}


def sentence(words, rng, n=None):
    return " ".join(rng.choice(words.split(), n or rng.integers(6, 18)))


def frame(n=200, *, seed=0, responses=True):
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        source = list(TOPICS)[i % 3 if i % 5 else 0]
        messages = [{"role": "user", "content": f"{sentence(TOPICS[source], rng)} {i}"}]
        if responses:
            messages.append({"role": "assistant", "content": sentence(TOPICS[source], rng)})
        rows.append(row(source, i, messages))
    return pl.DataFrame(rows, schema=SCHEMA)


SCHEMA = {
    "shard": pl.String, "row": pl.Int64, "id": pl.String, "source": pl.String, "messages": pl.String, "tools": pl.String,
    "text": pl.String, "response_text": pl.String, "n_prompt_tokens": pl.Int64, "n_response_tokens": pl.Int64,
    "n_supervised_tokens": pl.Int64, "n_turns": pl.Int64, "has_tools": pl.Boolean, "truncated": pl.Boolean,
    "language": pl.String,
}  # fmt: skip


def row(source, i, messages):
    text, answer = opening(messages), response_text(messages)
    return {
        "shard": f"{source}/a.jsonl", "row": i, "id": prompt_id(messages), "source": source,
        "messages": canonical(messages).decode(), "tools": None, "text": text, "response_text": answer or None,
        "n_prompt_tokens": len(text.split()), "n_response_tokens": len(answer.split()),
        "n_supervised_tokens": len(answer.split()) or None, "n_turns": 1, "has_tools": False, "truncated": False,
        "language": "en",
    }  # fmt: skip


@dataclass
class Label:
    domain: str
    unsure: bool = False


def label(texts, *, messages=None, tools=None):
    assert len(messages) == len(tools) == len(texts)
    return [Label("coding" if "python" in t or "select" in t else "agentic") for t in texts]


@pytest.fixture(scope="module")
def words():
    return load_tokenizer("words")


@pytest.fixture(scope="module")
def fitted(words):
    return reference.fit(frame(), tokenizer=words, recipe={"size": 1}, template="chatml", label=label)


@pytest.fixture(scope="module")
def saved(fitted, tmp_path_factory):
    return fitted.save(tmp_path_factory.mktemp("ref") / "reference")


def test_the_directory_of_a_build_serves_as_its_reference(fitted, saved):
    again = reference.load_reference(saved.parent)
    assert again.fingerprint == fitted.fingerprint
    assert repr(again).startswith(f"<Reference {fitted.fingerprint[:12]} at ")


def test_a_saved_reference_says_what_the_fitted_one_says(fitted, saved):
    again = reference.load_reference(saved)
    assert again.fingerprint == fitted.fingerprint
    assert (again.recipe, again.template, again.seed) == ({"size": 1}, "chatml", 0)
    assert again.sample.equals(fitted.sample)
    assert again.conversations.equals(fitted.conversations)
    for table in ("clusters", "domains", "sources"):
        assert getattr(again, table).equals(getattr(fitted, table))
    texts = ["python sort list index merge numbers array", "count files home directory", "what is love"]
    ids = again.tokenizer.encode_batch(texts)
    X = fitted.embed(texts)
    np.testing.assert_array_equal(again.embed(texts), X)
    np.testing.assert_array_equal(again.embed(texts, ids=ids), X)
    for view in ("prompts", "responses"):
        a = getattr(again, view).typicality(ids, again.region(X))
        b = getattr(fitted, view).typicality(ids, fitted.region(X))
        assert a.typicality.tobytes() == b.typicality.tobytes()
    assert a.typicality[2] < a.typicality[0]


def test_the_sample_has_the_added_columns_and_x_is_aligned_with_it(fitted):
    apart = {"messages", "tools", "response_text"}
    added = {"domain", "unsure", "cluster", "unit", "heldout", "weight"}
    assert set(fitted.sample.columns) == {*SCHEMA, *added} - apart
    assert set(fitted.conversations.columns) == apart
    first = json.loads(fitted.conversations["messages"][0])
    assert opening(first) == fitted.sample["text"][0]
    np.testing.assert_array_equal(fitted.embed(fitted.sample["text"].to_list()), fitted.X)
    np.testing.assert_array_equal(fitted.assign(fitted.X), fitted.sample["cluster"].to_numpy())
    assert fitted.X.dtype == np.float32


def test_shares_add_up_and_carry_standard_errors(fitted):
    for table in (fitted.clusters, fitted.domains, fitted.sources):
        assert table["share"].sum() == pytest.approx(1.0)
    assert fitted.sources["source"].to_list()[0] == "A_sort"
    share, stderr = fitted.sources.row(0)[1:3]
    assert share == pytest.approx(fitted.sample["source"].eq("A_sort").mean())
    assert stderr == pytest.approx(np.sqrt(share * (1 - share) / 200), rel=1e-6)
    assert set(fitted.domains["domain"]) == {"coding", "agentic"}


def test_counts_of_the_whole_mix_make_source_shares_exact(words):
    counts = {
        "sources": [
            {"source": s, "rows": r, "supervised_tokens": t} for s, r, t in (("A_sort", 900, 10), ("B_shell", 100, 90))
        ]
    }
    by_rows = reference.fit(frame(), tokenizer=words, counts=counts)
    by_tokens = reference.fit(frame(), tokenizer=words, counts=counts, weight="tokens")
    assert by_rows.sources.drop("domain", "domain_share", "unsure").rows() == [
        ("A_sort", 0.9, 0.0, 900), ("B_shell", 0.1, 0.0, 100),
    ]  # fmt: skip
    assert by_tokens.sources.rows()[0][:4] == ("B_shell", 0.9, 0.0, 100)


def test_token_weights_are_supervised_tokens(words):
    ref = reference.fit(frame(), tokenizer=words, weight="tokens")
    w = ref.sample["n_supervised_tokens"].to_numpy()
    np.testing.assert_array_equal(ref.sample["weight"].to_numpy(), w)
    own = ref.sample["source"].eq("A_sort").to_numpy()
    assert ref.sources.filter(pl.col("source") == "A_sort")["share"][0] == pytest.approx(w[own].sum() / w.sum())
    with pytest.raises(InputError, match="supervised"):
        reference.fit(frame(responses=False), tokenizer=words, weight="tokens")


def test_the_same_rows_give_the_same_bytes_however_the_frame_was_made(words, fitted, saved, tmp_path):
    f = frame()
    pieces = pl.concat([f[120:], f[:120]]).sort("row")  # the same rows, other buffers
    again = reference.fit(pieces, tokenizer=words, recipe={"size": 1}, template="chatml", label=label)
    again.save(tmp_path / "again")
    for a in sorted(Path(saved).rglob("*")):
        if a.is_file():
            assert a.read_bytes() == (tmp_path / "again" / a.relative_to(saved)).read_bytes(), a.name
    assert again.fingerprint == fitted.fingerprint


def test_another_seed_or_row_is_another_fingerprint(words, fitted):
    other = reference.fit(frame(), tokenizer=words, recipe={"size": 1}, template="chatml", label=label, seed=1)
    assert other.fingerprint != fitted.fingerprint


@pytest.mark.parametrize("what", ["vectors.npy", "prompts/model_0/tri_keys.npy", "sample.arrow", "profile.json"])
def test_a_changed_byte_is_an_integrity_error_that_names_the_file(saved, tmp_path, what):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(saved, copy)
    data = bytearray((copy / what).read_bytes())
    data[-2] ^= 1
    (copy / what).write_bytes(data)
    with pytest.raises(IntegrityError, match=what):
        reference.load_reference(copy).check()
    use = {"vectors.npy": lambda r: r.X, "sample.arrow": lambda r: r.sample, "profile.json": lambda r: r.seed}
    with pytest.raises(IntegrityError, match=what):  # and before anything of it is used
        use.get(what, lambda r: r.prompts.profile.cross_entropy([np.arange(9)]))(reference.load_reference(copy))
    (copy / what).unlink()
    with pytest.raises(IntegrityError, match="missing"):
        reference.load_reference(copy)


def test_a_file_that_is_checked_ahead_is_refused_when_it_is_opened(saved, tmp_path):
    import shutil

    copy = Path(shutil.copytree(saved, tmp_path / "copy"))
    data = (copy / "vectors.npy").read_bytes()
    (copy / "vectors.npy").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    r = reference.load_reference(copy)
    r.prefetch()
    assert len(r.centroids)
    for _ in range(2):
        with pytest.raises(IntegrityError, match="vectors"):
            _ = r.X


def test_a_wrong_fingerprint_format_or_path_is_refused(saved, tmp_path):
    import shutil

    with pytest.raises(IntegrityError, match="fingerprint"):
        reference.load_reference(saved, expect="sha256:" + "0" * 64)
    with pytest.raises(UsageError, match="no reference there"):
        reference.load_reference(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy)
    manifest = json.loads((copy / "reference.json").read_text())
    for change in ({"format_version": 99}, {"files": []}, {"files": [{"path": "../x", "bytes": 1, "sha256": ""}]}):
        (copy / "reference.json").write_text(json.dumps(manifest | change))
        with pytest.raises(IntegrityError):
            reference.load_reference(copy)
    (copy / "reference.json").write_text("{")
    with pytest.raises(IntegrityError, match="JSON"):
        reference.load_reference(copy)


def test_a_full_disk_is_a_resource_error_whichever_file_it_hits(fitted, saved, tmp_path):
    sizes = {p.stat().st_size for p in saved.rglob("*") if p.is_file()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in sizes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, hard))  # Python ignores SIGXFSZ: a write fails instead
        try:
            with pytest.raises(ResourceError, match="while writing"):
                fitted.save(tmp_path / "r")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not list(tmp_path.iterdir())


def test_save_replaces_a_reference_but_nothing_else(fitted, tmp_path):
    target = tmp_path / "r"
    fitted.save(target)
    fitted.save(target)
    assert reference.load_reference(target).path == str(target)
    assert [p.name for p in tmp_path.iterdir()] == ["r"]  # no leftovers
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not delete")
    with pytest.raises(UsageError, match="no reference"):
        fitted.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_units_of_the_mix_are_found_by_copy_and_by_near_copy(fitted):
    long = " ".join(f"word{i}" for i in range(60))
    extra = row("A_sort", 999, [{"role": "user", "content": long}])
    ref = reference.fit(frame().extend(pl.DataFrame([extra], schema=SCHEMA)), tokenizer=fitted.tokenizer)
    text, unit = ref.sample["text"], ref.sample["unit"]
    queries = [
        text[3].upper().replace(" ", "\n  "),  # equal, white space and case aside
        long.replace("word59", "other"),  # 55 of 57 word 5-grams
        long.replace("word30", "other"),  # 51 of 61
        " ".join(f"word{i}" for i in range(30)),  # half of them
        "nothing of the kind",
        "",
    ]
    assert ref.find_units(queries).tolist() == [unit[3], unit[200], unit[200], -1, -1, -1]


def test_units_are_those_of_a_search_row_by_row(fitted):
    """The oracle looks at every row: its sketch, then the true overlap; the first of the best rows wins."""
    from promptkit import leakage

    rng = np.random.default_rng(4)
    longer = [" ".join(rng.choice(["one", "two", "three", "four", "five", "six", "seven"], 40)) for _ in range(12)]
    twins = [t.replace("seven", "other", 1) for t in longer]
    extra = [row("A_sort", 900 + i, [{"role": "user", "content": t}]) for i, t in enumerate([*longer, *twins])]
    ref = reference.fit(frame(40).extend(pl.DataFrame(extra, schema=SCHEMA)), tokenizer=fitted.tokenizer)
    texts, units = ref.sample["text"].to_list(), ref.sample["unit"].to_list()
    held = [set(leakage._grams([w], 5)[0].tolist()) for w in leakage._word_hashes(texts)]
    smallest = [set(sorted(g)[:64]) for g in held]
    queries = [t.replace("six", "else", k % 3) for k, t in enumerate(longer)] + ["", "one", *texts[:5]]
    expected = []
    for query in queries:
        own = set(leakage._grams([next(iter(leakage._word_hashes([query])))], 5)[0].tolist())
        same = [i for i, t in enumerate(texts) if leakage.normalise(t) == leakage.normalise(query)]
        sketch = set(sorted(own)[:64])
        met = {i: len(sketch & smallest[i]) for i in range(len(texts))}
        rows = [i for i in met if met[i] >= max(1, len(sketch) // 3) and own]
        rows.sort(key=lambda i: (-met[i], i))
        near = [(len(own & held[i]) / len(own | held[i]), -k, i) for k, i in enumerate(rows[:64])]
        best = max((x for x in near if x[0] >= 0.8 - 1e-9), default=None)
        expected.append(units[same[0]] if same else units[best[2]] if best else -1)
    assert ref.find_units(queries).tolist() == expected
    assert any(e >= 0 for e in expected[:12])
    assert -1 in expected


def test_near_duplicates_never_straddle_held_out_and_fit(words):
    f = pl.concat([frame(900), frame(900)])  # each row twice
    ref = reference.fit(f, tokenizer=words)
    assert ref.prompts.regime == "split"
    assert ref.sample.group_by("unit").agg(pl.col("heldout").n_unique())["heldout"].max() == 1
    assert 0.2 < ref.sample["heldout"].mean() < 0.3


def test_rows_of_one_template_are_not_one_unit_but_their_copies_are(words):
    policy = " ".join(f"rule{i}" for i in range(80))
    tasks = [f"{policy} task {i // 2}" for i in range(60)]  # 30 tasks, each twice, chained by the policy
    copies = ["the very same prompt is repeated here many times"] * 60
    extra = [row("A_sort", 1000 + i, [{"role": "user", "content": t}]) for i, t in enumerate(tasks + copies)]
    ref = reference.fit(frame(100).extend(pl.DataFrame(extra, schema=SCHEMA)), tokenizer=words)
    unit = ref.sample["unit"].to_numpy()
    assert len(set(unit[100:160].tolist())) == 30
    assert len(set(unit[160:].tolist())) == 1
    queries = [f"{policy} task 3", f"{policy} task 99", "the very same prompt is repeated here many times"]
    assert ref.find_units(queries).tolist() == [unit[106], -1, unit[160]]


@pytest.mark.parametrize("n", [1, 2, 50])
def test_few_rows_give_neighbours_and_no_p_values(words, n, tmp_path):
    ref = reference.fit(frame(n), tokenizer=words)
    ref = reference.load_reference(ref.save(tmp_path / "r"))
    texts = ["sort a list", "", "x", "list " * 20_000]
    found = ref.prompts.typicality(words.encode_batch(texts), ref.region(ref.embed(texts)))
    assert np.isnan(found.typicality).all()
    assert np.isfinite(found.cross_entropy).all()
    assert (found.nearest[0] >= 0).sum() == min(n, 10)
    assert ref.responses is None


def test_a_mix_of_equal_rows_fits_and_refuses_p_values(words):
    same = [row("A_sort", i, [{"role": "user", "content": "sort this list of numbers now"}]) for i in range(300)]
    ref = reference.fit(pl.DataFrame(same, schema=SCHEMA), tokenizer=words)
    found = ref.prompts.typicality(words.encode_batch(["sort this list of numbers now"]), np.array([[0]]))
    assert (found.closeness[0], len(ref.clusters)) == (1.0, 1)
    assert np.isnan(found.typicality[0])


def test_odd_candidates_are_scored(fitted):
    texts = ["", "sort", "\x00\ud800", "sort list " * 10_000, "完全な外国語"]
    found = fitted.prompts.typicality(fitted.tokenizer.encode_batch(texts), fitted.region(fitted.embed(texts)))
    assert ((found.typicality > 0) & (found.typicality <= 1)).all()
    assert found.typicality[4] <= found.typicality[1]


def test_empty_frames_and_unknown_options_are_refused(words):
    with pytest.raises(InputError, match="no rows"):
        reference.fit(frame()[:0], tokenizer=words)
    with pytest.raises(UsageError, match="rows, tokens"):
        reference.fit(frame(), tokenizer=words, weight="bytes")
    with pytest.raises(UsageError, match="unknown embedder"):
        reference.fit(frame(), tokenizer=words, embedder="lsb")


class Lengths:
    """An embedder of the user's: a few numbers about the text."""

    def __init__(self, shift=0.0):
        self.shift = shift

    def encode(self, texts):
        return np.array([[1.0, len(t) / 50 + self.shift, t.count("s") / 9] for t in texts])


def test_an_object_as_embedder_is_needed_again_and_checked(words, tmp_path):
    path = reference.fit(frame(), tokenizer=words, embedder=Lengths()).save(tmp_path / "r")
    with pytest.raises(UsageError, match="embedder="):
        reference.load_reference(path).embed(["a"])
    with pytest.raises(IntegrityError, match="differ"):
        reference.load_reference(path, embedder=Lengths(shift=40.0)).embed(["a"])
    assert reference.load_reference(path, embedder=Lengths()).embed(["a"]).shape == (1, 3)


def test_typicality_from_a_saved_reference_needs_no_heavy_library(saved):
    code = f"""
import sys
from promptkit.reference import load_reference
import numpy as np
ref = load_reference({str(saved)!r}, tokenizer=object())
ids = [np.array([1, 2, 3])] * 3
ref.prompts.typicality(ids, ref.region(ref.embed(None, ids=ids)))
print(sorted({{"sklearn", "torch", "polars", "sentence_transformers"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------------- real prompts

SHARED = Path(__file__).resolve().parents[2] / "shared"
MIX = (
    "agentbench aider_swe_bench bfcl bigcodebench cruxeval glaive_toolcall gpteacher_code mini_swe_agent "
    "reason_tool_use swebench_verified tau_bench toolbench webarena"
)
FOREIGN = (
    "aqua_rat arena_hard bbh gpteacher_roleplay gsm8k ifeval logic_grid math mmlu mt_bench nq_open ntrex pubmedqa "
    "scitldr self_instruct spec_bench webquestions writingbench"
)


def real(sources):
    rows = []
    for source in sources:
        for i, line in enumerate((SHARED / "data" / source / f"{source}.jsonl").read_text("utf-8").splitlines()):
            r = json.loads(line)
            rows.append(row(source, i, r.get("messages") or [{"role": "user", "content": r["prompt"]}]))
    return pl.DataFrame(rows, schema=SCHEMA).with_columns(response_text=pl.lit(None, pl.String))


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="real prompts are not beside this checkout")
def test_typicality_separates_real_sources_as_measured():
    from promptkit import domains
    from promptkit.leakage import near_duplicate_groups

    tokenizer = load_tokenizer(SHARED / "tokenizers" / "kimi_format")
    everything = real(MIX.split())
    groups = near_duplicate_groups(everything["text"].to_list())
    units, _ = reference._units(everything["text"].to_list(), groups)
    kept = np.isin(units, np.random.default_rng(0).permutation(np.unique(units))[: len(np.unique(units)) // 6])
    ref = reference.fit(
        everything.filter(pl.Series(~kept)), tokenizer=tokenizer, groups=groups[~kept], masses=domains.masses
    )

    def p(texts):
        ids = tokenizer.encode_batch(texts)
        clusters = ref.region(ref.embed(texts, ids=ids))
        affinity, domain = ref.domain_evidence(texts)
        return ref.prompts.typicality(ids, clusters, affinity=affinity, domain=domain).typicality

    fresh = p(everything.filter(pl.Series(kept))["text"].to_list())
    assert 0.02 < (fresh < 0.05).mean() < 0.08
    foreign = {s: p(real([s])["text"].to_list()) for s in FOREIGN.split()}
    auc = [(v[:, None] < fresh).mean() + (v[:, None] == fresh).mean() / 2 for v in foreign.values()]
    assert np.mean(auc) > 0.98
    assert min(auc) > 0.93
    assert np.mean([(v < 0.05).mean() for v in foreign.values()]) > 0.90
    for benchmark in ("humaneval", "mbpp"):
        assert (p(real([benchmark])["text"].to_list()) < 0.05).mean() < 0.45
