"""Packs: what is written is what is loaded, every change of a byte is found, and a failed write leaves nothing."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from conftest import EXAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st

from promptkit import pack as packs
from promptkit.conversation import canonical, prompt_id
from promptkit.errors import InputError, IntegrityError, ResourceError, UsageError
from promptkit.pack import Pack, content_hash, diff, load_pack, next_version, verify, write_pack
from promptkit.tokenizers import load_tokenizer


def row(text="Sort a list in Python.", domain="coding", **more):
    messages = more.pop("messages", [{"role": "user", "content": text}])
    tools = more.pop("tools", None)
    return {"id": prompt_id(messages, tools), "messages": messages, "tools": tools, "domain": domain, **more}


def many(n, seed=0):
    rng = np.random.default_rng(seed)
    words = [f"w{i}" for i in range(400)]
    domains = rng.choice(["coding", "agentic", "math", "chat"], size=n, p=[0.5, 0.3, 0.15, 0.05])
    out = []
    for i, d in enumerate(domains):
        cluster = int(rng.integers(0, 6))
        length = int(np.exp(rng.normal(4.5, 1.0))) + 5
        text = f"prompt {i} " + " ".join(rng.choice(words[cluster * 60 : cluster * 60 + 100], size=min(length, 80)))
        out.append(
            row(
                text, str(d), cluster=cluster, n_prompt_tokens=length, expected_output_tokens=int(rng.integers(20, 900)),
                typicality_u6=int(rng.integers(0, 10**6)), nearest_similarity_u6=int(rng.integers(0, 10**6)),
                licence="Apache-2.0", source="A1", shard="A1/x.jsonl", row=i, language="en", in_training=True, tags=["python"],
            )
        )  # fmt: skip
    return out


@pytest.fixture
def small(tmp_path):
    return write_pack(
        [row("One plus one?", "math"), row(), row("Sort it in C.")], tmp_path, name="small", version="1.0.0"
    )


def files(path):
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


# -- the format


def test_rows_are_canonical_sorted_and_complete(small):
    lines = (small / "prompts.jsonl").read_bytes().split(b"\n")
    assert lines[-1] == b""
    rows = [json.loads(line) for line in lines[:-1]]
    assert [r["domain"] for r in rows] == ["coding", "coding", "math"]
    assert rows[0]["id"] < rows[1]["id"]
    assert rows[2] == {
        "cluster": None, "domain": "math", "expected_output_tokens": None, "id": prompt_id([{"role": "user", "content": "One plus one?"}]),
        "in_training": False, "language": None, "licence": "NOASSERTION", "messages": [{"content": "One plus one?", "role": "user"}],
        "n_prompt_tokens": None, "n_templated_tokens": None, "nearest_similarity_u6": None, "row": None, "shard": None,
        "source": None, "tags": [], "tools": None, "typicality_u6": None, "unsure": False,
    }  # fmt: skip
    assert lines[0].startswith(b'{"cluster":null,"domain":"coding","expected_output_tokens":null,"id":"')


def test_content_hash_is_the_sha256_of_prompts_jsonl(small):
    pack = load_pack(small)
    assert pack.content_hash == "sha256:" + hashlib.sha256((small / "prompts.jsonl").read_bytes()).hexdigest()
    assert pack.content_hash == content_hash([row(), row("Sort it in C."), row("One plus one?", "math")])
    assert pack.citation == f"small@1.0.0+{pack.content_hash}"


def test_nothing_but_the_named_files_is_there_and_sha256sum_agrees(small):
    assert sorted(files(small)) == ["LICENSES/NOASSERTION.txt", "README.md", "SHA256SUMS", "pack.json", "prompts.jsonl"]
    assert small.parent.name == "small"
    assert not list(small.parent.parent.glob(".*"))
    if sys.platform == "linux":
        assert (
            subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=small, capture_output=True).returncode
            == 0
        )


def test_same_rows_in_any_order_give_the_same_bytes(tmp_path):
    rows = many(30)
    fields = {"recipe": {"seed": 1, "embedder": "lsa"}, "reference": {"fingerprint": "f"}}
    a = write_pack(rows, tmp_path / "a", name="x", version="1.0.0", fields=fields)
    b = write_pack(rows[::-1], tmp_path / "b", name="x", version="1.0.0", fields=fields)
    assert files(a) == files(b)


@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.sampled_from(["a", "b", "é"])),
        min_size=1, max_size=4, unique_by=lambda t: t[0],
    )
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_text_comes_back_as_it_was(tmp_path_factory, texts):
    rows = [row(t, d) for t, d in texts if t.strip() and not packs._PLACEHOLDER.fullmatch(t)]
    if rows:
        path = write_pack(rows, tmp_path_factory.mktemp("p"), name="t", version="1.0.0")
        assert verify(path) == {"ok": True, "problems": []}
        assert {p.id: p.messages[0]["content"] for p in load_pack(path)} == {
            r["id"]: r["messages"][0]["content"] for r in rows
        }


def test_prompts_carry_what_the_row_stores(tmp_path):
    tools = [{"type": "function", "function": {"name": "ls", "parameters": {"minimum": 0.5}}}]
    path = write_pack(
        [row(tools=tools, expected_output_tokens=7, n_prompt_tokens=5, in_training=True)], tmp_path, name="x"
    )
    prompt = next(iter(load_pack(path)))
    assert (prompt.tools, prompt.expected_output_tokens, prompt.domain) == (tools, 7, "coding")
    assert prompt.extra["n_prompt_tokens"] == 5
    assert prompt.extra["in_training"] is True


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"domain": None}, "domain is NoneType"),
        ({"cluster": 1.0}, "cluster is float"),
        ({"cluster": True}, "cluster is bool"),
        ({"id": "0" * 32}, "its messages and tools hash to"),
        ({"margin": 1}, "keys differ from the format: 'margin'"),
        ({"messages": []}, "messages: expected a list"),
        ({"messages": [{"role": "user", "content": None}]}, "messages: expected a list"),
        ({"messages": [{"role": "user", "content": " "}]}, "no message holds text"),
        ({"messages": [{"role": "user", "content": "[REDACTED]"}]}, "placeholder"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "canonical JSON"),
        ({"tools": [float("nan")]}, "canonical JSON"),
        ({"tags": [1]}, "tags: expected strings"),
        ({"messages": [{"role": "developer", "content": "x"}]}, "message 0: role is 'developer', expected one of"),
        ({"messages": [{"role": "user", "content": "x", "reasoning": 5}]}, "message 0: reasoning is int"),
        ({"messages": [{"role": "user", "content": "x", "image": "y"}]}, "message 0: unknown key 'image'"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": "f"}]}, "message 0: tool_calls"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [None]}]}, "message 0: tool_calls"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"x": 1}]}]}, "message 0: tool_calls"),
        (
            {
                "messages": [
                    {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
                ]
            },
            "message 0: tool_calls",
        ),
        ({"expected_output_tokens": -1}, "expected_output_tokens is -1"),
        ({"row": 2**63}, "row is 9223372036854775808"),
    ],
)
def test_bad_rows_are_named_and_nothing_is_written(tmp_path, bad, told):
    good = row("fine")
    with pytest.raises(InputError, match=told) as error:
        write_pack([good, {**row(), **bad}], tmp_path / "out", name="x")
    assert "row 1" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_no_rows_and_twice_the_same_row_are_errors(tmp_path):
    with pytest.raises(InputError, match="no rows"):
        write_pack([], tmp_path, name="x")
    with pytest.raises(InputError, match="comes twice"):
        write_pack([row(), row()], tmp_path, name="x")


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b", ".x", "x" * 65, "con", "nul.txt", "x.", "é", "a b"])
def test_names_that_are_no_directory_names_are_refused(tmp_path, name):
    with pytest.raises(UsageError, match="pack name"):
        write_pack([row()], tmp_path, name=name)
    assert packs.check_name(packs.name_from(name))


@pytest.mark.parametrize("version", ["1", "1.0", "v1.0.0", "1.0.0-rc1", "01.0.0", "../1", "1.0.0\n"])
def test_versions_are_three_numbers(tmp_path, version):
    with pytest.raises(UsageError, match="version"):
        write_pack([row()], tmp_path, name="x", version=version)


def test_an_existing_version_never_changes_what_it_holds(tmp_path):
    write_pack([row()], tmp_path, name="x")
    write_pack([row()], tmp_path, name="x")
    with pytest.raises(UsageError, match="exists with other rows"):
        write_pack([row("another")], tmp_path, name="x")


def test_card_is_inert_and_loud_about_training_rows(tmp_path):
    rows = [row(source="<img src=x onerror=1>|`x`\n# no", licence="MIT OR Apache-2.0", language="no", in_training=True)]
    path = write_pack(rows, tmp_path, name="x", licence_texts={"MIT": "Permission is hereby granted"})
    card = (path / "README.md").read_text("utf-8")
    assert "1 of 1 prompts are in the training data" in card
    assert "<img" not in card.replace("\\<img", "")
    assert '- "no"' in card  # Norwegian, which YAML would read as false
    assert rows[0]["messages"][0]["content"] not in card
    assert sorted(p.name for p in (path / "LICENSES").iterdir()) == ["Apache-2.0.txt", "MIT.txt"]
    assert "Permission is hereby granted" in (path / "LICENSES" / "MIT.txt").read_text("utf-8")
    from ruamel.yaml import YAML

    header = YAML(typ="safe").load(card.split("---\n")[1])
    assert header["language"] == ["no"]
    assert header["license_name"] == "MIT OR Apache-2.0"


def test_card_counts_what_was_searched_for_and_found(tmp_path):
    counts = {"looked_at": 90, "flagged": 3, "found": {"e-mail address": 2, "phone number": 1}, "kept": False}
    path = write_pack([row()], tmp_path, name="x", fields={"recipe": {"personal_data": counts}})
    card = (path / "README.md").read_text("utf-8")
    assert "90 prompts were searched" in card
    assert "e-mail address 2, phone number 1, in 3 prompts; they were left out." in card
    kept = write_pack([row()], tmp_path, name="y", fields={"recipe": {"personal_data": {**counts, "kept": True}}})
    assert "they may be in this pack" in (kept / "README.md").read_text("utf-8")


# -- verify


def test_a_good_pack_has_no_problems(small):
    assert verify(small) == {"ok": True, "problems": []}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_flipped_bit_is_found(tmp_path_factory, data):
    path = write_pack([row(), row("One plus one?", "math")], tmp_path_factory.mktemp("p"), name="x")
    name = data.draw(st.sampled_from(sorted(files(path))))
    original = (path / name).read_bytes()
    at, bit = data.draw(st.integers(0, len(original) - 1)), data.draw(st.integers(0, 7))
    (path / name).write_bytes(original[:at] + bytes([original[at] ^ (1 << bit)]) + original[at + 1 :])
    assert not verify(path)["ok"]
    with pytest.raises(IntegrityError):
        load_pack(path)


def unnoticed(path, values, monkeypatch):
    """Return (file, place, new value) of each single byte that could be replaced without a problem being told.

    What the disk would hold is handed to the checks directly: thousands of files take minutes to write.
    """
    original, missed = files(path), []

    def found(name, data):
        monkeypatch.setattr(packs, "_read_all", lambda *_: {**original, name: data})
        return not verify(path)["ok"]

    for name, data in original.items():
        assert not found(name, data)
        for at, byte in enumerate(data):
            missed += [(name, at, v) for v in values(byte) if not found(name, data[:at] + bytes([v]) + data[at + 1 :])]
        missed += [(name, len(d), None) for d in (data[:-1], data[1:], data + b"\n", b"") if not found(name, d)]
    return missed


def test_every_byte_of_every_file_counts(tmp_path, monkeypatch):
    path = write_pack([row(), row("One plus one?", "math")], tmp_path, name="x")
    assert unnoticed(path, lambda byte: (byte ^ 1, byte ^ 0x20), monkeypatch) == []


@pytest.mark.slow
def test_every_other_value_of_every_byte_of_every_file_is_found(tmp_path, monkeypatch):
    path = write_pack([row(), row("One plus one?", "math")], tmp_path, name="x")
    assert unnoticed(path, lambda byte: [b for b in range(256) if b != byte], monkeypatch) == []


def test_swapped_files_and_swapped_lines_are_found(small):
    there = files(small)
    for a, b in itertools.combinations(sorted(there), 2):
        (small / a).write_bytes(there[b])
        (small / b).write_bytes(there[a])
        assert not verify(small)["ok"], (a, b)
        for name in (a, b):
            (small / name).write_bytes(there[name])
    for name, original in there.items():
        lines = original.splitlines(keepends=True)
        for i, j in itertools.combinations(range(len(lines)), 2):
            if lines[i] != lines[j]:
                swapped = [*lines]
                swapped[i], swapped[j] = lines[j], lines[i]
                (small / name).write_bytes(b"".join(swapped))
                assert not verify(small)["ok"], (name, i, j)
        (small / name).write_bytes(original)
    assert verify(small)["ok"]


def test_a_renamed_file_is_missing_and_extra(small):
    (small / "prompts.jsonl").rename(small / "Prompts.jsonl")
    problems = {(p["path"], p["problem"].split(":")[0]) for p in verify(small)["problems"]}
    assert {("Prompts.jsonl", "extra"), ("prompts.jsonl", "missing")} <= problems


@pytest.mark.parametrize("name", ["prompts.jsonl", "pack.json", "README.md", "SHA256SUMS", "LICENSES/NOASSERTION.txt"])
def test_a_missing_file_is_found_by_name(small, name):
    (small / name).unlink()
    found = verify(small)
    assert not found["ok"]
    assert name in {p["path"] for p in found["problems"]} or found["problems"][0]["path"] == "LICENSES"


def test_extra_files_directories_and_links_are_found(small):
    (small / "note.txt").write_bytes(b"")
    (small / "data").mkdir()
    (small / "LICENSES" / "x").symlink_to("/etc/hostname")
    assert {p["path"] for p in verify(small)["problems"]} == {"note.txt", "data", "LICENSES/x"}


def forged(path, change):
    """Rewrite prompts.jsonl and everything that vouches for it, as somebody who knows the format would."""
    data = change((path / "prompts.jsonl").read_bytes())
    (path / "prompts.jsonl").write_bytes(data)
    manifest = json.loads((path / "pack.json").read_bytes())
    manifest["content_hash"] = "sha256:" + hashlib.sha256(data).hexdigest()
    for f in manifest["files"]:
        b = (path / f["path"]).read_bytes()
        f.update(bytes=len(b), sha256=hashlib.sha256(b).hexdigest())
    (path / "pack.json").write_bytes(canonical(manifest))
    (path / "SHA256SUMS").unlink()
    (path / "SHA256SUMS").write_bytes(packs._sums(files(path)))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: b"\n".join(d.rstrip(b"\n").split(b"\n")[::-1]) + b"\n", "not sorted"),
        (lambda d: d.replace(b'{"cluster"', b'{ "cluster"', 1), "canonical"),
        (lambda d: d.replace(b'"unsure":false}', b'"unsure":false,"unsure":false}', 1), "canonical"),
        (lambda d: d.replace(b"Sort a list", b"Sort a LIST"), "hash to"),
        (lambda d: d.split(b"\n")[0] + b"\n" + d, "twice"),
        (lambda d: d.replace(b'"cluster":null', b'"cluster":1.5', 1), "cluster is float"),
        (lambda d: d + b"[" * 100_000 + b"\n", "canonical"),
        (lambda d: d[:-1], "no end"),
        (lambda d: d.split(b"\n")[0] + b"\n", "differ"),
    ],
)
def test_consistent_forgeries_of_the_wrong_form_are_found(small, change, told):
    forged(small, change)
    problems = verify(small)["problems"]
    assert any(told in p["problem"] for p in problems), problems
    with pytest.raises(IntegrityError):
        load_pack(small)


def test_a_forgery_of_the_right_form_is_found_by_expect_alone(small):
    expected = load_pack(small).content_hash
    forged(small, lambda d: d.replace(b'"unsure":false', b'"unsure":true', 1))
    manifest = json.loads((small / "pack.json").read_bytes())
    manifest["domains"]["coding"]["unsure"] = 1
    (small / "pack.json").write_bytes(canonical(manifest))
    (small / "SHA256SUMS").write_bytes(packs._sums({k: v for k, v in files(small).items() if k != "SHA256SUMS"}))
    assert verify(small)["ok"]
    assert not verify(small, expect=expected)["ok"]
    with pytest.raises(IntegrityError, match="expected sha256:"):
        load_pack(small, expect=expected)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"format_version": 2}, "format_version is 2"),
        ({"name": "../x"}, "pack name"),
        ({"version": "1"}, "MAJOR.MINOR.PATCH"),
        ({"recipe_hash": "sha256:0"}, "recipe_hash differs"),
        ({"files": [{"path": "../../etc/passwd"}]}, "files: paths"),
        ({"content_hash": "sha256:0"}, "content hash is"),
        ({"template": "kimi-k2"}, "template: expected"),
        ({"template": {"name": 5}}, "template: expected"),
        ({"recipe": [1]}, "recipe: expected"),
        ({"score": {"distance_u6": "near"}}, "score: expected"),
        ({"known_limits": "none"}, "known_limits: expected"),
    ],
)
def test_a_bad_manifest_is_told(small, edit, told):
    manifest = {**json.loads((small / "pack.json").read_bytes()), **edit}
    (small / "pack.json").write_bytes(canonical(manifest))
    (small / "SHA256SUMS").write_bytes(packs._sums({k: v for k, v in files(small).items() if k != "SHA256SUMS"}))
    problems = verify(small)["problems"]
    assert any(told in p["problem"] for p in problems), problems


@given(st.binary(max_size=200))
@settings(max_examples=30, deadline=None)
def test_any_bytes_as_manifest_or_rows_are_a_problem_and_no_crash(tmp_path_factory, data):
    path = write_pack([row()], tmp_path_factory.mktemp("p"), name="x")
    for name in ("pack.json", "prompts.jsonl", "SHA256SUMS"):
        kept = (path / name).read_bytes()
        (path / name).write_bytes(data)
        assert not verify(path)["ok"]
        (path / name).write_bytes(kept)


def test_expect_takes_a_hash_or_a_citation(small):
    pack = load_pack(small)
    for expect in (pack.content_hash, pack.content_hash[7:], pack.citation):
        assert load_pack(small, expect=expect).content_hash == pack.content_hash
    assert not verify(small, expect="sha256:")["ok"]


# -- signatures


@pytest.fixture
def signed(small, tmp_path):
    """A pack, the signature of its hashes, and the public keys of who signed and of a stranger."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    keys = []
    for who in ("ada", "eve"):
        keys.append(tmp_path / who)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", who, "-f", keys[-1]], check=True)
    sign = ["ssh-keygen", "-Y", "sign", "-q", "-n", "promptkit", "-f", keys[0]]
    done = subprocess.run(sign, input=(small / "SHA256SUMS").read_bytes(), capture_output=True, check=True)
    (tmp_path / "small.sig").write_bytes(done.stdout)
    return small, tmp_path / "small.sig", *(k.with_suffix(".pub") for k in keys)


def test_a_signature_is_good_for_its_key_its_bytes_and_its_purpose_only(signed):
    path, signature, ada, eve = signed
    assert verify(path, signature=signature, key=ada) == {"ok": True, "problems": []}
    assert "not one of these hashes by this key" in verify(path, signature=signature, key=eve)["problems"][0]["problem"]
    letter = subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-q", "-n", "file", "-f", ada.with_suffix("")],
        input=(path / "SHA256SUMS").read_bytes(), capture_output=True, check=True,
    ).stdout  # fmt: skip
    good = signature.read_bytes()
    signature.write_bytes(letter)
    assert not verify(path, signature=signature, key=ada)["ok"]
    signature.write_bytes(good)
    forged(path, lambda d: d.replace(b'"unsure":false', b'"unsure":true', 1))
    assert any("signature" in p["problem"] for p in verify(path, signature=signature, key=ada)["problems"])


def test_a_signature_needs_a_key_and_a_public_one(signed, monkeypatch):
    path, signature, ada, _ = signed
    for options in ({"signature": signature}, {"key": ada}):
        with pytest.raises(UsageError, match="a signature needs the key"):
            verify(path, **options)
    for key in (ada.with_suffix(""), signature):
        with pytest.raises(UsageError, match="no public key of OpenSSH"):
            verify(path, signature=signature, key=key)
    with pytest.raises(UsageError, match="no such file"):
        verify(path, signature=path / "none", key=ada)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UsageError, match="ssh-keygen is not installed"):
        verify(path, signature=signature, key=ada)


# -- finding


def test_a_pack_is_found_by_version_directory_name_directory_output_and_name(tmp_path, monkeypatch):
    out = tmp_path / "promptkit-out"
    write_pack([row()], out / "packs", name="mix", version="1.9.0")
    write_pack([row("more")], out / "packs", name="mix", version="1.10.0")
    monkeypatch.chdir(tmp_path)
    for where in (out / "packs" / "mix" / "1.10.0", out / "packs" / "mix", out / "packs", out, "mix", "mix@1.10.0"):
        assert load_pack(where).version == "1.10.0"
    assert load_pack("mix@1.9.0").version == "1.9.0"
    with pytest.raises(IntegrityError):
        load_pack("mix@1.9.0+sha256:" + "0" * 64)
    with pytest.raises(UsageError, match=r"no version 2\.0\.0"):
        load_pack("mix@2.0.0")
    with pytest.raises(UsageError, match="did you mean 'mix'"):
        load_pack("mixx")
    write_pack([row()], out / "packs", name="other")
    with pytest.raises(UsageError, match="holds 2 packs"):
        load_pack(out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no pack"):
        load_pack(tmp_path / "empty")


def test_a_rebuild_while_reading_is_read_again(small, monkeypatch):
    real, n = packs._check, []

    def check(path, expect):
        if not n.append(1) and len(n) == 1:
            path.rename(path.parent / "old")
            write_pack([row()], path.parent.parent, name="small", version="1.0.0")
            return [{"path": "prompts.jsonl", "problem": "half old, half new"}], None, None
        return real(path, expect)

    monkeypatch.setattr(packs, "_check", check)
    assert len(load_pack(small)) == 1


# -- failing writes


def test_every_failing_call_while_writing_leaves_no_half_pack(tmp_path, monkeypatch):
    from test_writing import failures, tree

    write_pack([row()], tmp_path / "whole", name="x")
    whole = tree(tmp_path / "whole")
    out = tmp_path / "out"
    out.mkdir()

    def check(done):
        there = tree(out)
        assert there == whole if done else there in ({}, whole)
        if there:
            assert verify(out / "x")["ok"]
        else:
            assert not list(out.iterdir())

    def run():
        if (out / "x").exists():
            shutil.rmtree(out / "x")
        write_pack([row()], out, name="x")

    assert failures(run, check, monkeypatch) >= 15


def test_full_disk_is_a_resource_error_with_the_path(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ResourceError, match="bytes free"):
        write_pack([row()], tmp_path / "out", name="x")
    assert list(tmp_path.iterdir()) == []


# -- parts


@pytest.fixture(scope="module")
def pack200():
    rows = packs._canonical_rows(many(200))
    return Pack(rows, {"name": "mix", "version": "1.0.0", "content_hash": content_hash(rows)})


def spread(parts):
    """Largest gap between parts in mean log length and in cluster shares."""
    length = [np.mean([np.log(p.extra["n_prompt_tokens"]) for p in part]) for part in parts]
    share = np.array([[np.mean([p.extra["cluster"] == c for p in part]) for c in range(6)] for part in parts])
    return np.ptp(length), np.ptp(share, axis=0).max()


@pytest.mark.parametrize("k", [1, 2, 3, 7, 200])
def test_replicas_are_disjoint_whole_and_equal_in_domains(pack200, k):
    parts = pack200.replicas(k)
    assert sorted(p.id for part in parts for p in part) == [p.id for p in sorted(pack200, key=lambda p: p.id)]
    assert np.ptp([len(part) for part in parts]) <= 1
    for domain in pack200.by_domain():
        assert np.ptp([len(part.by_domain().get(domain, [])) for part in parts]) <= 1


def test_replicas_are_more_alike_than_random_parts(pack200):
    rng = np.random.default_rng(0)
    prompts = list(pack200)
    random_spread = []
    for _ in range(50):
        order = rng.permutation(200)
        random_spread.append(spread([[prompts[i] for i in order[j::4]] for j in range(4)]))
    ours = spread(pack200.replicas(4))
    assert ours[0] < np.quantile([s[0] for s in random_spread], 0.05)
    assert ours[1] < np.quantile([s[1] for s in random_spread], 0.05)


def test_ladder_is_nested_and_each_rung_is_like_the_pack(pack200):
    rungs = pack200.ladder()
    assert list(rungs) == [20, 50, 100, 200]
    ids = [{p.id for p in r} for r in rungs.values()]
    assert ids[0] < ids[1] < ids[2] < ids[3] == {p.id for p in pack200}
    whole = {d: len(m) / 200 for d, m in pack200.by_domain().items()}
    for n, rung in rungs.items():
        assert len(rung) == n
        for d, share in whole.items():
            count = len(rung.by_domain().get(d, []))
            assert abs(count - n * share) <= 1
            assert count >= 1 or share <= 1 / (2 * n)
    rng = np.random.default_rng(0)
    prompts = list(pack200)
    chance = [spread([[prompts[i] for i in rng.permutation(200)[:20]], prompts]) for _ in range(100)]
    assert spread([list(rungs[20]), prompts])[0] < np.quantile([c[0] for c in chance], 0.2)


def test_sample_is_seeded_and_keeps_domain_shares(pack200):
    a, b, c = pack200.sample(40), pack200.sample(40), pack200.sample(40, seed=1)
    assert [p.id for p in a] == [p.id for p in b] != [p.id for p in c]
    for d, members in pack200.by_domain().items():
        assert abs(len(a.by_domain().get(d, [])) - len(members) / 5) <= 1
    for bad in (0, 201):
        with pytest.raises(UsageError):
            pack200.sample(bad)


def test_a_part_has_its_own_hash_and_names_its_parent(pack200):
    part = pack200.sample(40)
    assert part.content_hash == content_hash(part.rows) != pack200.content_hash
    assert part.manifest["parents"] == [pack200.content_hash]
    assert sum(d["rows"] for d in part.manifest["domains"].values()) == 40


def test_parts_do_not_depend_on_the_order_of_equal_runs(pack200):
    again = Pack(pack200.rows, pack200.manifest)
    assert [[p.id for p in part] for part in pack200.replicas(5)] == [
        [p.id for p in part] for part in again.replicas(5)
    ]


def test_shown_in_a_notebook_untrusted_names_are_escaped():
    rows = packs._canonical_rows([row(domain="<script>alert(1)</script>")])
    shown = Pack(rows, {"name": "x", "version": "1.0.0", "content_hash": content_hash(rows)})._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_repr_says_what_it_is(pack200):
    assert repr(pack200).startswith("<Pack mix@1.0.0: 200 prompts, 4 domains, sha256:")


# -- diff and versions


BASE = [row(), row("One plus one?", "math"), row("Sort it in C.")]


@pytest.mark.parametrize(
    ("rows", "fields", "bump"),
    [
        (BASE, {}, None),
        (BASE, {"known_limits": ["English only"]}, "patch"),
        (BASE, {"recipe": {"promptkit_version": "9"}}, "patch"),
        ([*BASE, row("Sort it in Rust.")], {}, "minor"),
        ([{**BASE[0], "n_templated_tokens": 9}, *BASE[1:]], {}, "minor"),
        (BASE[1:], {}, "major"),
        ([row("Sort a list in Perl."), *BASE[1:]], {}, "major"),
        ([{**BASE[0], "domain": "chat"}, *BASE[1:]], {}, "major"),
        ([{**BASE[0], "unsure": True}, *BASE[1:]], {}, "major"),
        (BASE, {"reference": {"fingerprint": "other"}}, "major"),
        (BASE, {"tokenizer": {"sha256": "other"}}, "major"),
        (BASE, {"template": {"name": "chatml"}}, "major"),
        (BASE, {"recipe": {"embedder": "other"}}, "major"),
        ([*BASE, row("Sort it in Rust.")], {"tokenizer": {"sha256": "other"}}, "major"),
    ],
)
def test_bump_table(tmp_path, rows, fields, bump):
    a = write_pack(BASE, tmp_path / "a", name="x")
    b = write_pack(rows, tmp_path / "b", name="x", fields=fields)
    assert diff(a, b)["bump"] == bump


def test_licence_texts_are_packaging(tmp_path):
    a = write_pack(BASE, tmp_path / "a", name="x")
    b = write_pack(BASE, tmp_path / "b", name="x", licence_texts={"NOASSERTION": "ask Ada"})
    assert diff(a, b)["bump"] == "patch"


def test_diff_lists_ids_by_kind(tmp_path):
    base = [row("a"), row("b"), row("c"), row("d")]
    new = [row("b", "math"), row("c", unsure=True), row("d"), row("e")]
    a = write_pack(base, tmp_path / "a", name="x", fields={"score": {"distance_u6": 120000}})
    b = write_pack(new, tmp_path / "b", name="x")
    assert diff(a, b) == {
        "added": [row("e")["id"]], "removed": [row("a")["id"]], "changed": [row("c")["id"]], "relabelled": [row("b")["id"]],
        "distance_before": 0.12, "distance_after": None, "bump": "major",
    }  # fmt: skip


def test_next_version_is_the_least_honest_one(tmp_path):
    home = tmp_path / "x"
    assert next_version(home, BASE) == "1.0.0"
    assert next_version(home, BASE, wanted="0.1.0") == "0.1.0"
    write_pack(BASE, tmp_path, name="x", version="1.2.3")
    assert next_version(home, BASE) == "1.2.3"
    assert next_version(home, [*BASE, row("new")]) == "1.3.0"
    assert next_version(home, BASE[1:]) == "2.0.0"
    assert next_version(home, BASE, fields={"known_limits": ["x"]}) == "1.2.4"
    assert next_version(home, BASE[1:], wanted="4.0.0") == "4.0.0"
    assert next_version(home, BASE, wanted="1.2.3") == "1.2.3"
    with pytest.raises(UsageError, match=r"least honest version is 2\.0\.0"):
        next_version(home, BASE[1:], wanted="1.3.0")
    with pytest.raises(UsageError, match=r"x@1\.2\.3 is there, and this one is the same"):
        next_version(home, BASE, wanted="1.0.0")


def test_domains_count(pack200):
    assert Counter(p.domain for p in pack200) == {d: len(m) for d, m in pack200.by_domain().items()}


def test_prompts_of_a_pack_render_themselves_for_the_template_of_their_mix(tmp_path):
    messages = [{"role": "user", "content": "Sort 3 1 2."}]
    row = {"id": prompt_id(messages, None), "messages": messages, "domain": "coding"}
    fields = {"template": {"name": "chatml", "kwargs": {}}}
    (prompt,) = load_pack(write_pack([row], tmp_path, name="p", version="1.0.0", fields=fields))
    assert prompt.text() == "<|im_start|>user\nSort 3 1 2.<|im_end|>\n<|im_start|>assistant\n"
    kimi = prompt.text(template="kimi-k2.5")
    assert kimi.startswith("<|im_user|>user<|im_middle|>Sort 3 1 2.<|im_end|><|im_assistant|>assistant<|im_middle|>")
    tokenizer = load_tokenizer(EXAMPLES / "training_mix" / "tokenizer")
    ids = prompt.ids(tokenizer, template="kimi-k2.5")
    assert tokenizer.decode(ids) == kimi
    assert tokenizer.specials["<|im_user|>"] == ids[0]
