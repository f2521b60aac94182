"""`promptkit build`."""

from __future__ import annotations

import os
from typing import Any

import click

from promptkit.visible import number, p_value

from .app import SEED, shared
from .console import Progress, Talk
from .reading import lost, reading_options, show_account, show_sources


@click.command(
    "build",
    epilog="""\b
Examples:
  promptkit build --from /data/eagle3/synth_100k
  promptkit build --from /data/mix --pool heldout.jsonl --size 500 --name coding""",
)
@click.option("--from", "root", required=True, metavar="DIR", help="The training directory.")
@click.option(
    "--pool", multiple=True, metavar="FILE", help="Draw the pack from these prompts, not from the mix; repeatable."
)
@click.option("--size", type=click.IntRange(1), default=200, show_default=True, help="Prompts in the pack.")
@click.option("--name", help="Of the pack; default: the directory's name.")
@click.option("--version", metavar="X.Y.Z", help="Of the pack; default: 1.0.0, or the least bump over the last one.")
@click.option(
    "--out", default="promptkit-out", show_default=True, metavar="DIR", help="Where reference, pack and report go."
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Same input, options and seed: same bytes.")
@click.option(
    "--weight", type=click.Choice(["rows", "tokens"]), default="rows", show_default=True, help="What shares count."
)
@click.option("--embedder", default="lsa", show_default=True, help="lsa, or a sentence-transformers name or path.")
@click.option(
    "--sample-size", type=click.IntRange(1), default=20_000, show_default=True, help="Rows that are decoded and fitted."
)
@click.option(
    "--max-leak",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Most of a pool prompt's n-grams that training may hold.",
)
@click.option("--strict", is_flag=True, help="Write nothing when more is lost than allowed.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="For tokenizing.")
@reading_options
@shared
def build_command(talk: Talk, root: str, out: str, pool: tuple[str, ...], **options: Any) -> int:
    """Read a training directory; write its reference, a representative prompt pack and a report.

    A run that loses files or rows builds from what is good, prints the account and exits 4.
    """
    from promptkit import pipeline

    with Progress(talk) as progress:
        built = pipeline.build(root, out=out, pool=pool, progress=progress, **options)
    if talk.json:
        talk.document(built.to_json())
    else:
        show_sources(talk, built.sources)
        show_account(talk, built.account)
        for note in built.notes:
            talk.pair("note", note)
        _show_pack(talk, built)
    command = ["promptkit", "score", str(built.pack)]
    if os.path.normpath(built.reference) != os.path.join("promptkit-out", "reference"):
        command += ["--against", str(built.reference)]
    code = lost(talk, built)
    talk.next(*command, note="your own prompts go where the pack stands")
    return code


def _show_pack(talk: Talk, built: Any) -> None:
    score = built.pack_score or {}
    talk.heading(f"pack {built.name}@{built.version}, {score.get('n') or '?'} prompts")
    if score:
        talk.line(str(score.get("verdict") or ""))
        talk.line(
            f"distance   {number(score.get('ratio'))} x the noise floor of random draws of the same size"
            f" (p {p_value(score.get('p_value'))})\n"
            f"fidelity {number(score.get('fidelity'))}   coverage {number(score.get('coverage'))}"
            f"   mix overlap {number(score.get('mix_overlap'))}"
        )
    talk.line(f"cite as    {built.name}@{built.version}+{_prefixed(built.content_hash)}", paste=True)
    for what, path in (("reference", built.reference), ("pack", built.pack), ("report", built.report)):
        if path:
            talk.line(f"{what:<10} {path}", paste=True)


def _prefixed(content_hash: str) -> str:
    return content_hash if content_hash.startswith("sha256:") else f"sha256:{content_hash}"
