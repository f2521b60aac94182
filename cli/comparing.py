"""`promptkit compare`: several sets of prompts, or all versions of a pack, beside one mix."""

from __future__ import annotations

from typing import Any

import click

from promptkit.visible import count, is_number, number, p_value

from .app import SEED, shared
from .console import Progress, Talk, plain
from .scoring import resolve_reference

ALPHA = 0.05


@click.command(
    "compare",
    epilog="""\b
Examples:
  promptkit compare old.yaml new.yaml
  promptkit compare promptkit-out/packs/mix --against promptkit-out/reference

\b
A SET is what score takes. The directory of a pack stands for all its versions,
oldest first. Each set is compared with the one before it.""",
)
@click.argument("sets", nargs=-1, required=True, metavar="SET...")
@click.option("--against", metavar="REF", help="A reference, or the directory of a build; default: the one built here.")
@click.option("--paired", is_flag=True, help="Prompt i of a set is a version of prompt i of the one before it.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of the null draws.")
@click.option("--draws", type=click.IntRange(99), default=999, show_default=True, help="Null draws.")
@shared
def compare_command(talk: Talk, sets: tuple[str, ...], against: str | None, paired: bool, seed: int, draws: int) -> int:
    """Say which of several SETs lies nearer to the training mix, and whether that is more than chance."""
    from promptkit.candidates import read_candidates
    from promptkit.reference import load_reference
    from promptkit.trend import trend, versions

    path = resolve_reference(talk, against)
    names = [str(v) for s in sets for v in (versions(s) if s != "-" else [s])]
    with Progress(talk) as progress:
        progress("read the sets", 0, len(names))
        prompts = [read_candidates(name) for name in names]
        progress("load the reference", 0)
        reference = load_reference(path)
        progress("score", 0, sum(map(len, prompts)))
        steps = trend(prompts, reference, names=names, paired=paired, seed=seed, draws=draws)
    found = plain([s.to_json() for s in steps])
    if talk.json:
        talk.document({"reference": steps[0].score.reference, "paired": paired, "sets": found})
        return 0
    _show(talk, found)
    talk.next("promptkit", "score", names[-1], *(["--against", against] if against else []), note="all about the last")
    return 0


def _show(talk: Talk, sets: list[dict[str, Any]]) -> None:
    for i, s in enumerate(sets, 1):
        talk.line(f"{i}  {s['name']}", paste=True)
    talk.line()
    talk.table(
        [">set", ">prompts", ">distance", ">floor", ">excess", ">fidelity", ">coverage", ">typicality", "like the mix"],
        [
            [
                str(i), count(s["n"]), number(s["distance"], 3), number(s["noise_floor"], 3), number(s["excess"], 3),
                number(s["fidelity"]), number(s["coverage"]), number(s["typicality"]), s["verdict_code"],
            ]
            for i, s in enumerate(sets, 1)
        ],
    )  # fmt: skip
    talk.line()
    for i, s in enumerate(sets[1:], 2):
        c = s["change"]
        talk.line(f"{i} against {i - 1} ({count(c['n_shared'])} prompts in common): {_said(c)}")
    talk.line("p-values are adjusted for the number of tests (Holm)")


def _said(change: dict[str, Any]) -> str:
    """Return a change in words: what is more than chance, and which way."""
    parts = []
    for key, up, down in (
        ("excess", "farther from", "nearer to"),
        ("typicality", "more typical of", "less typical of"),
    ):
        p, difference = change[f"{key}_p_value"], change[key]
        if not is_number(p):
            continue
        value = f"{key} {difference:+.3f}" if is_number(difference) else key
        if p < ALPHA and is_number(difference):
            parts.append(f"{up if difference > 0 else down} the mix ({value}, p {p_value(p)})")
        else:
            parts.append(f"no difference shown in {key} ({value.removeprefix(key).strip() or '-'}, p {p_value(p)})")
    return "; ".join(parts)
