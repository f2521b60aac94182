"""What a Reference or a Score says of itself at a Python prompt (one line) and in a notebook (a small table).

Everything shown is escaped: openings and names of sources come from strangers. Colours are those of the notebook.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from promptkit.visible import interval, number, p_value, percent, visible

if TYPE_CHECKING:
    from promptkit.reference import Reference
    from promptkit.scoring import Score

LISTED = 12  # rows of one table


def score_line(score: Score) -> str:
    """Return `<Score no: 3 prompts, fidelity 0.35, ...>`."""
    prompts = f"{score.n:,} prompt{'' if score.n == 1 else 's'}"
    return (
        f"<Score {score.verdict_code}: {prompts}, fidelity {number(score.fidelity)}, coverage {number(score.coverage)},"
        f" mix overlap {number(score.mix_overlap)}, ratio {number(score.ratio)}, p {p_value(score.p_value)}>"
    )


def score_html(score: Score) -> str:
    """Return the verdict, its parts with intervals, and the shares of domains beside the mix."""
    parts = [
        (name, number(value, digits), interval(score.intervals.get(key), digits), number(score.chance.get(key), digits))
        for name, key, value, digits in (
            ("fidelity", "fidelity", score.fidelity, 2),
            ("coverage", "coverage", score.coverage, 2),
            ("mix overlap", "mix_overlap", score.mix_overlap, 2),
            ("ratio", "ratio", score.ratio, 2),
            ("excess", "excess", score.excess, 3),
        )
    ]
    domains = score.domains.sort("reference_share", descending=True).to_dicts()
    return (
        f"<p><strong>{_escaped(score.verdict)}</strong></p>"
        + _table(("part", "value", "95 % interval", "by chance"), parts)
        + _table(
            ("domain", "mix", "here"),
            [(d["domain"], percent(d["reference_share"]), percent(d["candidate_share"])) for d in domains],
        )
    )


def reference_html(reference: Reference) -> str:
    """Return the fingerprint, and the shares of sources and domains with their standard errors."""
    n = len(reference.sample)
    head = f"training mix {reference.fingerprint[:12]}: {n:,} sampled row{'' if n == 1 else 's'}, shares by "
    tables = [
        _table(
            (what, "share", "standard error"),
            [
                (row[what], percent(row["share"]), percent(row["stderr"]))
                for row in frame.sort("share", descending=True).to_dicts()
            ],
        )
        for what, frame in (("source", reference.sources), ("domain", reference.domains))
    ]
    return f"<p><strong>{_escaped(head + reference.weight)}</strong></p>" + "".join(tables)


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    given = list(rows)
    shown = "".join(f"<tr>{''.join(f'<td>{_escaped(x)}</td>' for x in row)}</tr>" for row in given[:LISTED])
    more = f"<tr><td>and {len(given) - LISTED} more</td></tr>" if len(given) > LISTED else ""
    return (
        f"<table><thead><tr>{''.join(f'<th>{_escaped(x)}</th>' for x in names)}</tr></thead>"
        f"<tbody>{shown}{more}</tbody></table>"
    )


def _escaped(text: object) -> str:
    return html.escape(visible(text))
