"""The report in a real browser, opened from disk without a network: it draws, answers, stays inert, and can be read.

Needs the packages playwright and axe-playwright-python (which carries axe-core) and a Chromium of the system: no
browser is downloaded. Skips with the reason where one of them is missing.
"""

from __future__ import annotations

import shutil
import types
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from score_example import HOSTILE, TEXTS, score_json

sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install '.[test]'")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

EVIL = "<img src=x onerror=window.owned=1><script>window.owned=1</script>\"'><svg onload=window.owned=1>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def mix(n: int, *, text: str = "Write a parser") -> Any:
    """A reference as far as a report looks at it: n rows in two heaps, 16 dimensions."""
    import numpy as np
    import polars as pl

    X = np.random.default_rng(0).normal(size=(n, 16)).astype(np.float32)
    X[: n // 2, 0] += 6
    coding = [i < n // 2 for i in range(n)]
    sample = pl.DataFrame(
        {
            "text": [f"{text} number {i}" for i in range(n)],
            "domain": ["coding" if c else "chat" for c in coding],
            "source": ["A1" if c else EVIL for c in coding],
            "n_prompt_tokens": [5 + i % 90 for i in range(n)],
            "n_response_tokens": [9 + i % 400 for i in range(n)],
            "n_supervised_tokens": [9 + i % 400 for i in range(n)],
        }
    )
    sources = [{"source": s, "rows": n // 2, "tokens": n, "supervised_tokens": n} for s in ("A1", EVIL)]

    def embed(texts: list[str]) -> Any:
        Y = np.zeros((len(texts), 16), dtype=np.float32)
        Y[:, 0] = 3 * np.arange(len(texts))
        Y[:, 1] = 30  # away from all rows, so that a pointer meets one point only
        return Y

    tokenizer = types.SimpleNamespace(
        name="words", n_vocab=9, sha256="ee" * 32, encode_batch=lambda texts: [t.split() for t in texts]
    )
    return types.SimpleNamespace(
        X=X, sample=sample, embed=embed, tokenizer=tokenizer, counts={"sources": sources}, fingerprint="cd" * 32,
        template=EVIL, recipe={"seed": 0, "note": EVIL}, path=None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from promptkit.report import render

    pytest.importorskip("bokeh", reason="no bokeh: the map stays the drawing that needs no script")
    score = score_json()
    score["prompts"][1]["domain"] = EVIL
    score["clusters"][0]["name"] = score["missing"][0]["name"] = EVIL
    texts = [TEXTS[0], EVIL + HOSTILE, *TEXTS[2:]]
    out = tmp_path_factory.mktemp("report") / "report.html"
    return render(score=score, reference=mix(400, text=EVIL), texts=texts, out=out, title=EVIL)


Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Open a file with the network off; at the end, nothing was asked for and nothing was complained about."""
    contexts, asked, said = [], [], []

    def open_(path: Path, *, width: int = 1440, height: int = 900, scheme: str = "light", **more: Any) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True, **more
        )
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda r: asked.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
        page.on("pageerror", lambda e: said.append(str(e)))
        page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
        page.goto(path.as_uri())
        if more.get("java_script_enabled", True) and 'id="map-data"' in path.read_text(encoding="utf-8"):
            page.wait_for_selector("#map-chart[data-ready]")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert asked == []
    assert said == []


def at(page: Any, kind: str, index: int) -> tuple[float, float]:
    """Where on the screen the n-th point of a kind lies, by the chart's own scales."""
    page.locator("#map-chart").scroll_into_view_if_needed()
    x, y = page.evaluate(
        """([kind, index]) => {
          const view = Object.values(Bokeh.index)[0] ?? Bokeh.index.roots[0];
          const source = view.model.renderers.map((r) => r.data_source).find((s) => s.name === kind);
          const box = view.el.getBoundingClientRect();
          return [box.x + view.frame.bbox.x + view.frame.x_scale.compute(source.data.x[index]) - view.frame.bbox.x,
                  box.y + view.frame.y_scale.compute(source.data.y[index])];
        }""",
        [kind, index],
    )
    return x, y


def test_hovering_shows_the_prompt_as_text(open_page: Open, report: Path) -> None:
    page = open_page(report)
    page.mouse.move(*at(page, "here", 0))
    page.locator(".bk-Tooltip").get_by_text("inserts a key into a B-tree").wait_for()
    page.locator(".bk-Tooltip").get_by_text("typicality 0.44, leaked").wait_for()
    page.mouse.move(*at(page, "foreign", 1))  # hostile text, least typical but one
    page.locator(".bk-Tooltip").get_by_text("<img src=x onerror").first.wait_for()
    assert page.evaluate("window.owned") is None


def test_hostile_texts_become_no_elements(open_page: Open, report: Path) -> None:
    page = open_page(report)
    for summary in page.locator("details").all():
        summary.evaluate("(d) => { d.open = true; }")
    page.mouse.move(*at(page, "mix", 0))
    page.wait_for_timeout(300)
    assert page.evaluate("window.owned") is None
    assert page.locator("img, iframe, object, [onerror], [onload]").count() == 0
    assert page.title().startswith("<img src=x")


def test_map_is_filtered_by_domain_and_by_words(open_page: Open, report: Path) -> None:
    page = open_page(report)
    shown = page.locator("#map-shown")
    assert shown.inner_text() == "404 of 404 points shown"
    page.locator("#map-domain").select_option("coding")
    assert shown.inner_text() == "201 of 404 points shown"
    page.locator("#map-search").fill("B-tree key")
    assert shown.inner_text() == "1 of 404 points shown"
    page.locator("#map-search").fill("")
    page.locator("#map-domain").select_option("")
    assert shown.inner_text() == "404 of 404 points shown"


def test_table_is_sorted_searched_and_filtered_by_keyboard(open_page: Open, report: Path) -> None:
    page = open_page(report)
    rows = page.locator("table.prompts tbody tr:visible")

    def values() -> list[str]:
        return [r.locator("td").first.inner_text() for r in rows.all()]

    assert values() == ["0.001", "0.020", "0.440", "0.800"]
    page.get_by_role("button", name="typicality").focus()
    page.keyboard.press("Enter")
    assert values() == ["0.800", "0.440", "0.020", "0.001"]
    page.get_by_role("button", name="domain").press("Enter")
    assert [r.locator("td[data-name=domain]").inner_text() for r in rows.all()][-2:] == ["coding", "encyclopedic"]
    page.locator("#search").fill("b-tree general")
    assert values() == ["0.001"]  # its text, and its nearest training row
    page.locator("#search").fill("")
    page.locator("#domain").select_option("coding")
    assert values() == ["0.440"]
    page.locator("table.prompts summary:visible").press("Enter")
    assert page.get_by_text("nearest training rows", exact=True).locator("visible=true").count() == 1


def test_every_control_is_reached_by_tab(open_page: Open, report: Path) -> None:
    page = open_page(report)
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.slice(0, 40)"))
    assert {"map-search", "map-domain", "search", "domain", "typicality", "closeness", "Provenance"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_contrast_names_and_structure_pass_axe(open_page: Open, report: Path, scheme: str, width: int) -> None:
    spec = find_spec("axe_playwright_python")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no axe-core: pip install axe-playwright-python")
    page = open_page(report, scheme=scheme, width=width)
    page.evaluate((Path(next(iter(spec.submodule_search_locations))) / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")
    assert len(found["passes"]) > 20
    assert [(v["id"], [n["html"][:200] for n in v["nodes"][:3]]) for v in found["violations"]] == []


@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_is_wider_than_the_screen(open_page: Open, report: Path, width: int) -> None:
    page = open_page(report, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_without_scripts_the_drawing_and_the_table_stay(open_page: Open, report: Path) -> None:
    page = open_page(report, java_script_enabled=False)
    assert page.locator("svg.map circle").count() == 4
    assert page.locator("svg.map rect.density").count() > 50
    assert "general relativity" in page.locator("svg.map circle title").first.text_content()
    assert page.locator("table.prompts tbody tr:visible").count() == 4


def test_without_bokeh_the_drawing_is_filtered(
    open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from promptkit import report

    monkeypatch.setattr(report, "_bokeh", lambda: [])
    path = report.render(score=score_json(), reference=mix(400), texts=TEXTS, out=tmp_path / "r.html")
    assert path.stat().st_size < 400_000
    assert "unsafe-inline" not in path.read_text(encoding="utf-8")
    page = open_page(path)
    assert page.locator("#map-shown").inner_text() == "4 of 4 points shown"
    page.locator("#map-domain").select_option("coding")
    assert page.locator("svg.map circle:visible").count() == 1
    page.locator("#map-search").fill("relativity")
    assert page.locator("#map-shown").inner_text() == "0 of 4 points shown"


def test_a_mix_of_20000_rows_is_ready_within_two_seconds(open_page: Open, tmp_path: Path) -> None:
    """The best of three: other processes only make it slower. Ready: drawn, and a pointer gets its text."""
    from promptkit.report import MAX_BYTES, render

    pytest.importorskip("bokeh", reason="no bokeh")
    path = render(score=score_json(), reference=mix(20_000), texts=TEXTS, out=tmp_path / "r.html")
    assert path.stat().st_size <= MAX_BYTES
    seconds = []
    for _ in range(3):
        page = open_page(path)
        page.mouse.move(*at(page, "here", 0))
        page.locator(".bk-Tooltip").get_by_text("inserts a key into a B-tree").wait_for()
        seconds.append(page.evaluate("performance.now()") / 1000)
        assert "To hover over: 4,996 of 20,000 rows, 4 of 4 candidates" in page.locator("#map").inner_text()
    assert min(seconds) < 2


def test_20000_long_prompts_on_a_map_stay_below_the_limit_and_say_what_is_shown(tmp_path: Path) -> None:
    import re

    from promptkit.report import MAX_BYTES, render

    first = score_json()["prompts"][0]
    prompts = [{**first, "index": i, "id": f"{i:032x}", "typicality": i / 20_000} for i in range(20_000)]
    path = render(
        score=score_json(prompts=prompts, n=20_000), reference=mix(20_000, text="<script>&日本語 " * 20),
        texts=["<&>'\"日本語 " * 200] * 20_000, out=tmp_path / "r.html",
    )  # fmt: skip
    page = path.read_text(encoding="utf-8")
    assert path.stat().st_size <= MAX_BYTES
    rows, candidates = re.findall(r"To hover over: ([\d,]+) of 20,000 rows, ([\d,]+) of 20,000 candidates", page)[0]
    assert page.count('<circle class="foreign"') == int(candidates.replace(",", ""))
    assert int(rows.replace(",", "")) >= 100
    assert re.search(r"Shown \d+ of 20,000, least typical first", page)
