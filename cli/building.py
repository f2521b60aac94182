"""`promptkit build`."""

from __future__ import annotations

import os
from typing import Any

import click

from promptkit.errors import UsageError
from promptkit.visible import number, p_value

from .app import SEED, shared
from .console import Progress, Talk, some
from .reading import lost, reading_options, show_account, show_sources


def _licences(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    return _by_source("--licence", "SPDX", "Apache-2.0", pairs)


def _domains(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    return _by_source("--domain", "DOMAIN", "coding", pairs)


def _by_source(option: str, what: str, example: str, pairs: tuple[str, ...]) -> dict[str, str]:
    """Turn SOURCE=VALUE options into a mapping; the library checks both."""
    out: dict[str, str] = {}
    for pair in pairs:
        source, equals, value = pair.partition("=")
        if not equals or source in out:
            raise UsageError(f"{option} {pair}: not SOURCE={what}, or a source twice", hint=f"write A1={example}")
        out[source] = value.strip()
    return out


@click.command(
    "build",
    epilog="""\b
Examples:
  promptkit build --from /data/eagle3/synth_100k
  promptkit build --from /data/mix --pool heldout.jsonl --size 500 --name coding
  promptkit build --from /data/mix --holdout 0.02 --name unseen""",
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
@click.option(
    "--holdout",
    type=float,
    metavar="FRACTION",
    help="Keep this share of rows for the pack; the next training must leave them out.",
)
@click.option(
    "--keep-personal-data", is_flag=True, help="Draw prompts with keys, tokens, e-mail addresses, phone numbers too."
)
@click.option(
    "--licence",
    "licences",
    multiple=True,
    metavar="SOURCE=SPDX",
    callback=_licences,
    help="Licence of a source's rows, for example A1=Apache-2.0; repeatable.",
)
@click.option(
    "--domain",
    "domains",
    multiple=True,
    metavar="SOURCE=DOMAIN",
    callback=_domains,
    help="Domain of all rows of a source, for example A1=coding; wins over any labeller; repeatable.",
)
@click.option(
    "--labeller",
    metavar="MODULE:CALLABLE",
    help="Your own labeller; its module is imported, that is, run.",
)
@click.option("--redistributable", is_flag=True, help="Take rows that may not be shared out of the pack.")
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
        _show_domains(talk, built.sources)
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
    _show_seen(talk, built)
    talk.line(f"cite as    {built.name}@{built.version}+{_prefixed(built.content_hash)}", paste=True)
    for what, path in (
        ("reference", built.reference), ("pack", built.pack), ("report", built.report), ("holdout", built.holdout),
        ("withheld", built.withheld),
    ):  # fmt: skip
        if path:
            talk.line(f"{what:<10} {path}", paste=True)


def _show_domains(talk: Talk, sources: list[dict[str, Any]]) -> None:
    """Print what each source is, by the sampled rows, and how much of it the labeller was not sure of."""
    rows = [
        [s["source"], s["domain"], f"{s['domain_share']:.0%}", f"{s['unsure']:.0%}"] for s in sources if s.get("domain")
    ]
    if rows:
        talk.table(["source", "mostly", ">of its rows", ">unsure"], rows, wide="source")


def _show_seen(talk: Talk, built: Any) -> None:
    """Say, before a number is taken from the pack, whether a drafter has seen its prompts."""
    n = built.in_training
    if built.holdout:
        talk.line("unseen     provided the next training run excludes the rows of holdout.jsonl", "bold")
    elif n:
        talk.line(
            f"IN TRAINING: {some(n, 'prompt')} of the pack {'is a row' if n == 1 else 'are rows'} of the training mix."
            " A drafter trained on it has seen them, and its acceptance length here is flattered; by how much we have"
            " not measured. --holdout or --pool makes a pack that it has not seen.",
            "bold yellow",
        )


def _prefixed(content_hash: str) -> str:
    return content_hash if content_hash.startswith("sha256:") else f"sha256:{content_hash}"
