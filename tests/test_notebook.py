"""What objects say of themselves, and the figures: short, escaped, with the numbers of the score in them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLES, ROOT

import promptkit
from promptkit.errors import UsageError

EVIL = "<script>alert(1)</script>\x1b[2J"


@pytest.fixture(scope="module")
def reference(example_build: Path) -> Any:
    return promptkit.load_reference(example_build / "reference")


@pytest.fixture(scope="module")
def essays(reference: Any) -> Any:
    return promptkit.score(EXAMPLES / "original_benchmark.yaml", reference)


@pytest.fixture(scope="module")
def pack(example_build: Path) -> Any:
    (path,) = (example_build / "packs").glob("*/*")
    return promptkit.load_pack(path)


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "br":
            self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_objects_say_one_line(reference: Any, essays: Any, pack: Any) -> None:
    assert repr(essays).startswith(f"<Score no: 3 prompts, fidelity {essays.fidelity:.2f}, coverage ")
    assert repr(reference).startswith(f"<Reference {reference.fingerprint[:12]} at ")
    assert repr(pack).startswith("<Pack training_mix@1.0.0: 60 prompts, ")
    assert max(len(repr(x)) for x in (essays, pack)) < 140


def test_notebooks_show_tables(reference: Any, essays: Any, pack: Any) -> None:
    for thing, said in ((reference, "667 sampled rows"), (essays, "Not representative"), (pack, "60 prompts")):
        html = thing._repr_html_()
        tags = Tags(html)
        assert tags.open == []
        assert tags.seen <= {"p", "strong", "table", "thead", "tbody", "tr", "th", "td", "caption", "br", "code"}
        assert said in html
        assert len(html) < 5000


def test_texts_in_tables_are_inert(essays: Any) -> None:
    import dataclasses

    import polars as pl

    evil = dataclasses.replace(
        essays,
        verdict=EVIL,
        domains=pl.DataFrame({"domain": [EVIL], "reference_share": [0.5], "candidate_share": [0.1]}),
    )
    html = evil._repr_html_()
    assert "<script>" not in html
    assert "\x1b" not in html
    assert html.count("&lt;script&gt;") == 2


@pytest.fixture
def plots() -> Any:
    matplotlib = pytest.importorskip("matplotlib", reason="no matplotlib: pip install '.[plots]'")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from promptkit import plots

    yield plots
    plt.close("all")


def drawn(ax: Any) -> Any:
    """Render, so that a text which cannot be drawn fails; return the axes."""
    ax.figure.canvas.draw()
    return ax


def test_shares_are_those_of_the_score(plots: Any, essays: Any) -> None:
    ax = drawn(plots.shares(essays))
    widths = [p.get_width() for p in ax.patches]
    frame = essays.domains.sort("reference_share", descending=True)
    assert widths == pytest.approx([*(100 * frame["reference_share"]), *(100 * frame["candidate_share"])])
    assert [t.get_text() for t in ax.get_yticklabels()] == frame["domain"].to_list()
    assert len(drawn(plots.shares(essays, by="cluster")).patches) == 2 * min(len(essays.clusters), 16)
    with pytest.raises(UsageError, match="shares by 'colour'"):
        plots.shares(essays, by="colour")


def test_noise_floor_holds_all_draws_and_the_distance(plots: Any, essays: Any) -> None:
    import dataclasses

    ax = drawn(plots.noise_floor(essays))
    assert sum(p.get_height() for p in ax.patches) == len(essays.null["distance"])
    assert ax.lines[0].get_xdata()[0] == essays.distance
    with pytest.raises(UsageError, match="no random draws"):
        plots.noise_floor(dataclasses.replace(essays, null={}))


def test_map_marks_what_does_not_belong(plots: Any, reference: Any, essays: Any) -> None:
    prompts = promptkit.read_candidates(EXAMPLES / "original_benchmark.yaml")
    ax = drawn(plots.map(reference, prompts, score=essays))
    n_foreign = sum(b is False for b in essays.prompts["belongs"])
    assert [len(c.get_offsets()) for c in ax.collections[1:]] == [n for n in (3 - n_foreign, n_foreign) if n]
    with pytest.raises(UsageError, match="1 prompts, and a score of 3"):
        plots.map(reference, ["one"], score=essays)


def test_lengths_are_shares_of_each_set(plots: Any, reference: Any, pack: Any) -> None:
    for of in ("prompt", "response"):
        ax = drawn(plots.lengths(reference, pack, of=of))
        bars = [p for p in ax.patches if hasattr(p, "get_height")]
        assert sum(p.get_height() for p in bars) == pytest.approx(100)
        assert len(ax.patches) > len(bars)  # and the outline of the pack
    with pytest.raises(UsageError, match="lengths of 'turns'"):
        plots.lengths(reference, of="turns")


def test_the_same_prompt_has_one_place_whatever_it_is_shown_with(reference: Any) -> None:
    import numpy as np

    from promptkit.report.projection import project

    texts = ["Fix the failing test in utils.py", "Explain general relativity"]
    both, one = project(reference, texts), project(reference, texts[:1])
    assert both is not None
    assert one is not None
    assert np.array_equal(both.here[0], one.here[0])
    assert both.cells[:, 2].sum() == pytest.approx(1)
    assert len(both.points) == 667
    few = project(reference, points=50)
    assert few is not None
    assert len(few.points) == len(set(few.rows.tolist())) == 50


def test_directions_are_those_of_a_textbook_pca(reference: Any) -> None:
    import numpy as np
    from sklearn.decomposition import PCA

    from promptkit.report.projection import project

    found = project(reference)
    assert found is not None
    oracle = PCA(2, svd_solver="full").fit(np.asarray(reference.X, np.float64))
    expected = oracle.transform(np.asarray(reference.X, np.float64))
    for axis in (0, 1):
        sign = np.sign((expected[:, axis] * found.points[:, axis]).sum())
        assert np.allclose(sign * expected[:, axis], found.points[:, axis], atol=1e-3)
    assert found.explained == pytest.approx(oracle.explained_variance_ratio_.sum(), abs=1e-6)


def test_the_example_notebook_runs_and_is_kept_without_outputs(tmp_path: Path) -> None:
    """Its code cells, one after the other, as a kernel would run them; the last value of each is shown."""
    pytest.importorskip("matplotlib", reason="no matplotlib: pip install '.[plots]'")
    notebook = json.loads((EXAMPLES / "look_at_a_score.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert all(c.get("outputs", []) == [] for c in notebook["cells"])
    program = (
        "import ast, json, sys\n"
        "import matplotlib; matplotlib.use('Agg')\n"
        "names = {}\n"
        "if __name__ == '__main__':\n"  # build starts processes, which import this file
        "    for cell in json.loads(sys.argv[1]):\n"
        "        *body, last = ast.parse(cell).body\n"
        "        exec(compile(ast.Module(body, []), 'cell', 'exec'), names)\n"
        "        shown = eval(compile(ast.Expression(last.value), 'cell', 'eval'), names)\n"
        "        assert len(getattr(shown, '_repr_html_', shown.__repr__)()) > 10\n"
        "    print(repr(names['score']))\n"
    )
    (tmp_path / "run.py").write_text(program)
    shutil.copytree(EXAMPLES / "training_mix", tmp_path / "training_mix")
    shutil.copy(EXAMPLES / "original_benchmark.yaml", tmp_path)
    done = subprocess.run(
        [sys.executable, "run.py", json.dumps(cells)], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<Score no: 3 prompts")
