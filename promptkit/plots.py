"""One matplotlib figure per view of a score: the shares, the distance beside chance, the map, the lengths.

    from promptkit import plots
    plots.shares(score)               the mix beside the prompts, by domain (or by="cluster")
    plots.noise_floor(score)          the distance, among the distances of random draws of the mix
    plots.map(reference, prompts)     the mix in two dimensions, with prompts on top
    plots.lengths(reference, pack)    tokens of openings and of responses

Each function draws into `ax`, a new figure where none is given, and returns the axes. Needs matplotlib
(`pip install "matplotlib>=3.8"`), which is imported when the first figure is drawn. Texts are drawn as they are: no
`$` of a prompt is read as a formula.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit.errors import UsageError
from promptkit.visible import number, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from promptkit.pack import Pack
    from promptkit.reference import Reference
    from promptkit.scoring import Score

MIX, HERE, FOREIGN = "#3667a6", "#b4530a", "#a3202c"  # as in the report
BARS = 16


def shares(score: Score, *, by: str = "domain", ax: Axes | None = None) -> Axes:
    """Draw the shares of the mix beside those of the prompts; `by` is "domain" or "cluster"."""
    if by not in ("domain", "cluster"):
        raise UsageError(f"shares by {by!r}", hint="known: domain, cluster")
    frame = (score.domains if by == "domain" else score.clusters).sort("reference_share", descending=True)[:BARS]
    names = [_plain(x) for x in frame["domain" if by == "domain" else "name"].to_list()]
    ax = _axes(ax, height=0.6 + 0.4 * len(names))
    at = np.arange(len(names))
    ax.barh(at - 0.2, 100 * frame["reference_share"].to_numpy(), 0.38, color=MIX, label="training mix")
    ax.barh(at + 0.2, 100 * frame["candidate_share"].to_numpy(), 0.38, color=HERE, label=f"these {score.n:,}")
    ax.set_yticks(at, names)
    ax.invert_yaxis()
    ax.set_xlabel("share, %")
    ax.legend()
    return ax


def noise_floor(score: Score, *, ax: Axes | None = None) -> Axes:
    """Draw the distance of the prompts among the distances of random draws of the mix of the same size.

    Raises UsageError for a score without them: a mix of fewer than 100 rows, or a score that was read from JSON.
    """
    drawn = score.null.get("distance")
    if drawn is None or score.distance is None:
        raise UsageError("this score has no random draws to compare with", hint="the mix is too small; see its verdict")
    ax = _axes(ax)
    ax.hist(drawn, bins=40, color=MIX, alpha=0.6, label=f"random draws of {score.n:,}")
    ax.axvline(score.distance, color=HERE, linewidth=2, label=f"these prompts: {number(score.ratio)} x the noise floor")
    ax.set_xlabel("distance to the mix (MMD)")
    ax.set_ylabel("draws")
    ax.legend()
    return ax


def map(
    reference: Reference, prompts: Iterable[Any] = (), *, score: Score | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the mix as a density and the prompts on top; with their `score`, those that do not belong as crosses.

    `prompts` is whatever `score` takes: strings, prompts, a pack. Raises UsageError where the mix is too small.
    """
    from promptkit.conversation import opening
    from promptkit.report.projection import project
    from promptkit.scoring import as_prompts

    given = list(prompts)
    texts = [opening(p.messages) for p in as_prompts(given)] if given else []
    found = project(reference, texts, points=0)
    if found is None:
        raise UsageError("the mix is too small for a map", hint="10 rows and 2 dimensions are the least")
    if score is not None and len(score.prompts) != len(texts):
        raise UsageError(f"{len(texts)} prompts, and a score of {len(score.prompts)}", hint="pass the prompts scored")
    ax = _axes(ax, height=4.5)
    x, y, share = found.cells.T
    ax.scatter(x, y, s=22, marker="s", color=MIX, alpha=0.1 + 0.7 * np.sqrt(share / share.max()), linewidths=0)
    foreign = np.array(
        [b is False for b in score.prompts["belongs"].to_list()] if score else [False] * len(texts), bool
    )
    for keep, marker, colour, label in ((~foreign, "o", HERE, "these"), (foreign, "x", FOREIGN, "does not belong")):
        if keep.any():
            ax.scatter(*found.here[keep].T, s=26, marker=marker, color=colour, label=f"{label} ({keep.sum():,})")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_xlabel(f"two directions, {100 * found.explained:.0f} % of the variation of {found.n_rows:,} rows")
    if texts:
        ax.legend()
    return ax


def lengths(reference: Reference, pack: Pack | None = None, *, of: str = "prompt", ax: Axes | None = None) -> Axes:
    """Draw the distribution of input lengths (`of="prompt"`) or output lengths (`of="response"`), in tokens."""
    if of not in ("prompt", "response"):
        raise UsageError(f"lengths of {of!r}", hint="known: prompt, response")
    mix = [n for n in reference.sample[f"n_{of}_tokens"].to_list() if n]
    here: list[int] = []
    if pack is not None:
        found = [p.extra.get("n_prompt_tokens") if of == "prompt" else p.expected_output_tokens for p in pack]
        here = [int(n) for n in found if n]
    ax = _axes(ax)
    top = max([*mix, *here, 2])
    bins = np.geomspace(1, top + 1, 25)
    ax.hist(
        mix, bins=bins, weights=np.full(len(mix), 100 / max(len(mix), 1)), color=MIX, alpha=0.6, label="training mix"
    )
    if here:
        weights = np.full(len(here), 100 / len(here))
        ax.hist(
            here, bins=bins, weights=weights, histtype="step", linewidth=2, color=HERE, label=f"pack of {len(here):,}"
        )
    ax.set_xscale("log")
    ax.set_xlabel("tokens of the opening" if of == "prompt" else "tokens of the response")
    ax.set_ylabel("share, %")
    ax.legend()
    return ax


def _axes(ax: Axes | None, height: float = 3.5) -> Axes:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise UsageError("plots need matplotlib", hint="pip install 'matplotlib>=3.8'") from None
    return plt.subplots(figsize=(7, height), layout="constrained")[1]


def _plain(text: object) -> str:
    return one_line(text, 40).replace("$", r"\$")
