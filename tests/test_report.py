"""The page: everything on it, nothing from the network, and hostile text that does nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import types
from html.parser import HTMLParser

import pytest
from score_example import HOSTILE, TEXTS, score_json

from promptkit.errors import UsageError
from promptkit.report import MAX_BYTES, render, to_markdown


class Page(HTMLParser):
    """Tags with their attributes, and the text outside script and style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._inside = "", ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def html(tmp_path):
    return render(score=score_json(), texts=TEXTS, out=tmp_path / "r.html", title="bench <i>.py").read_text()


def test_page_holds_verdict_parts_and_definitions(html):
    page = Page(html)
    assert "2 of 4 prompts do not belong" in page.text
    assert "this set: 1.80 x" in page.text
    for term in ("fidelity", "coverage", "mix overlap", "noise floor", "typicality", "opening"):
        assert term in page.text
    assert "ab" * 32 in page.text


def test_prompts_are_sorted_by_typicality_and_flagged(html):
    text = Page(html).text
    at = [text.rindex(t) for t in ("general relativity in depth", "{{7*7}} </style> ca", "inserts a key into a B-tree")]
    assert at == sorted(at)
    assert text.count("does not belong") >= 2
    assert "leaked" in text


def test_hostile_text_stays_text(html):
    page = Page(html)
    assert len(page.named("script")) == 1
    assert len(page.named("style")) == 1
    assert not page.named("i")
    assert not page.named("b")
    assert '<script>alert("x")</script>' in page.text
    assert "{{7*7}}" in page.text
    for acting in ("\x1b", "\x07", "\u202e", "\u202c"):
        assert acting not in html
    assert r"\x1b[2J\x07 \u202eevil" in page.text


def test_page_asks_the_network_for_nothing(html):
    page = Page(html)
    for tag, attributes in page.tags:
        assert "src" not in attributes, tag
        assert not [a for a in attributes if a.startswith("on") or a == "style"], tag
        assert (attributes.get("href") or "#").startswith("#")
    assert not page.named("link")
    (policy,) = [m["content"] for m in page.named("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_policy_hashes_are_those_of_the_script_and_style(html):
    import base64
    import hashlib

    for tag in ("script", "style"):
        body = re.search(f"<{tag}>(.*?)</{tag}>", html, re.S)[1]
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in html


def test_large_sets_stay_below_the_size_limit_and_say_what_is_shown(tmp_path):
    prompts = [
        {
            **score_json()["prompts"][0],
            "index": i,
            "id": f"{i:032x}",
            "typicality": i / 5000,
            "nearest": [{"similarity": 0.5, "text": "<" * 500, "source": "s"}] * 10,
        }
        for i in range(5000)
    ]
    page = render(
        score=score_json(prompts=prompts), texts=["<&>'\"" * 400] * 5000, out=tmp_path / "r.html"
    ).read_bytes()
    assert len(page) <= MAX_BYTES
    assert re.search(rb"Shown \d+ of 5,000, least typical first", page)


def test_same_score_gives_the_same_bytes(tmp_path):
    pages = [
        render(score=score_json(), texts=TEXTS, out=tmp_path / f"{i}.html", title="t").read_bytes() for i in range(2)
    ]
    assert pages[0] == pages[1]


def test_values_that_do_not_exist_are_dashes(tmp_path):
    empty = score_json(
        distance=None,
        noise_floor=None,
        ratio=None,
        p_value=float("nan"),
        intervals={},
        power=[],
        missing=[],
        clusters=[],
        domains=[],
    )
    text = Page(render(score=empty, out=tmp_path / "r.html").read_text()).text
    assert "this set:" not in text
    assert not re.search(r"\bnan\b", text, re.I)
    assert "None" not in text


def test_a_pack_has_its_name_shares_and_prompts(tmp_path):
    from promptkit.conversation import prompt_id
    from promptkit.pack import load_pack, write_pack

    sent = [[{"role": "user", "content": t}] for t in TEXTS]
    rows = [
        {"id": prompt_id(m), "messages": m, "domain": d, "in_training": True, "typicality_u6": 440000}
        for m, d in zip(sent, ["coding", "coding", "coding", "chat"], strict=True)
    ]
    pack = load_pack(write_pack(rows, tmp_path, name="mine"))
    text = Page(render(pack=pack, out=tmp_path / "r.html").read_text()).text
    assert "pack mine@1.0.0" in text
    assert "75.0 %" in text
    assert "training mix" not in text.split("What the numbers mean")[0]
    assert text.count("in training") == 4
    assert "0.440" in text
    assert pack.content_hash in text


def test_a_reference_has_sources_regions_and_lengths(tmp_path):
    import numpy as np
    import polars as pl

    class Tokenizer:
        name, n_vocab, sha256 = "words", 1000, "ee" * 32

        def encode_batch(self, texts):
            return [t.split() for t in texts]

    reference = types.SimpleNamespace(
        sample=pl.DataFrame({"n_prompt_tokens": [3, 9, 17, 16], "n_response_tokens": [100, None, 120, 5], "domain": ["coding", "coding", "coding", "chat"], "n_supervised_tokens": [60, 20, 10, 10]}),
        X=np.zeros((4, 2), dtype=np.float32),
        domains=pl.DataFrame({"domain": ["coding", "chat"], "share": [0.75, 0.25]}),
        clusters=pl.DataFrame({"cluster": [0], "name": ["b-tree, index"], "domain": ["coding"], "share": [1.0], "examples": [["Write a B-tree."]]}),
        counts={"sources": [{"source": "B1_glaive", "rows": 30, "tokens": 900, "supervised_tokens": 300}, {"source": "C1", "rows": 10, "tokens": 90, "supervised_tokens": 100}]},
        tokenizer=Tokenizer(), fingerprint="cd" * 32, template="kimi-k2", recipe={"seed": 0, "tokenizer": {"name": "x"}}, path="secret/place",
    )  # fmt: skip
    html = render(reference=reference, out=tmp_path / "r.html", title="mix").read_text()
    text = Page(html).text
    for said in (
        "B1_glaive",
        "900",
        "75.0 %",
        "90.0 %",  # of the supervised tokens are coding
        "b-tree, index",
        "Write a B-tree.",
        "16+",
        "Openings (input)",
        "cd" * 32,
        "kimi-k2",
    ):
        assert said in text
    assert "secret/place" not in html  # a path of the machine that wrote it
    both = render(score=score_json(), reference=reference, texts=TEXTS, out=tmp_path / "b.html").read_text()
    assert "Sources" in both
    assert "this set" in both


def test_unwritable_target_is_a_usage_error(tmp_path):
    (tmp_path / "dir").mkdir()
    with pytest.raises(UsageError, match="is a directory"):
        render(score=score_json(), out=tmp_path / "dir")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="FIFO"):  # as root, /dev/null would be replaced
        render(score=score_json(), out=tmp_path / "fifo")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dir", "fifo"]


def test_markdown_names_verdict_gates_and_foreign_prompts():
    gate = {"gate": "max_ratio", "key": "ratio", "value": 1.8, "limit": 1.5, "passed": False}
    text = to_markdown(score_json(gates=[gate]), TEXTS)
    assert text.startswith("### promptkit: not representative\n\nNot representative of the training mix: 2 of 4")
    assert "| gate: ratio &lt;= 1.5 | 1.80 | **failed** |" in text
    assert "- 0.001 Explain the theory of general relativity in depth." in text
    assert "Missing: pandas, dataframe, column (30.0 %)" in text


def test_markdown_text_is_inert():
    text = to_markdown(score_json(), [HOSTILE, "@everyone [x](http://e) `a` |\n# b", *TEXTS[2:]])
    assert "<script>" not in text
    assert "@everyone" not in text
    assert "](http" not in text
    assert "\n# b" not in text


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_shows_the_page_without_errors(tmp_path, html):
    path = tmp_path / "page.html"
    path.write_text(html)
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", f"--user-data-dir={tmp_path / 'profile'}",
         "--enable-logging=stderr", "--v=0", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "4 of 4 rows shown" in done.stdout
    assert "CONSOLE" not in done.stderr  # script errors and policy violations are logged there


def test_structure_size_and_worth_are_on_the_page(tmp_path):
    v = score_json()
    v["advice"] = "to call this set within 0.10 of the mix takes about 400 prompts like these"
    v["worth"] = {"text": "sets like this had 0.80 of the acceptance length"}
    v["structure"] = [
        {"what": "median tokens", "reference": 1810.0, "candidates": 37.0, "p_value": 0.0004},
        {"what": "tools", "reference": 0.281, "candidates": 0.0, "p_value": None},
    ]
    v["prompts"][1]["outliers"] = ["9 user turns, more than 99.8 % of the mix"]
    page = Page(render(score=v, texts=TEXTS, out=tmp_path / "r.html").read_text())
    assert "Size: to call this set within 0.10 of the mix takes about 400 prompts like these." in page.text
    assert "Worth: sets like this had 0.80 of the acceptance length." in page.text
    for said in ("1,810", "37", "< 0.001", "28.1 %", "0.0 %"):
        assert said in page.text
    assert page.text.count("unusual in length or structure") == 1
    assert "9 user turns, more than 99.8 % of the mix" in page.text
    assert {"href": "#structure"} in page.named("a")
