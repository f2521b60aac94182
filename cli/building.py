"""`promptkit build` and `promptkit merge`."""

from __future__ import annotations

import os
from typing import Any

import click

from promptkit.errors import UsageError
from promptkit.visible import number, p_value

from .app import SEED, device_option, shared
from .console import Progress, Talk, shell, some
from .reading import CAPS, lost, reading_options, show_account, show_sources


def _worker(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    index, _slash, n = value.partition("/")
    if not (index.isdecimal() and n.isdecimal() and int(index) < int(n)):
        raise UsageError(f"--worker {value}: not I/N with I from 0 to N - 1", hint="the first of eight is 0/8")
    return int(index), int(n)


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
  promptkit build --from /data/mix --holdout 0.02 --name unseen
  promptkit build --from /data/mix --worker 0/8 --parts /shared/parts""",
)
@click.option("--from", "root", required=True, metavar="DIR", help="The training directory.")
@click.option(
    "--pool", multiple=True, metavar="FILE", help="Draw the pack from these prompts, not from the mix; repeatable."
)
@click.option("--size", type=click.IntRange(1), default=200, show_default=True, help="Prompts in the pack.")
@click.option(
    "--turns", type=click.Choice(["first", "prefix", "all"]), help="What of a row is sent; default: chosen per row."
)
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
@device_option
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
@click.option("--parts", metavar="DIR", help="Keep what was read of each shard here, and do not read it again.")
@click.option("--resume", is_flag=True, help="The same, in OUT/parts: a build that was stopped goes on where it was.")
@click.option("--worker", metavar="I/N", callback=_worker, help="Only read the I-th of N shares (from 0) into --parts.")
@click.option("--verify-source", is_flag=True, help="With --worker: hash whole files instead of trusting their times.")
@reading_options
@shared
def build_command(
    talk: Talk, root: str, out: str, pool: tuple[str, ...], parts: str | None, resume: bool,
    worker: tuple[int, int] | None, verify_source: bool, **options: Any,
) -> int:  # fmt: skip
    """Read a training directory; write its reference, a representative prompt pack and a report.

    A run that loses files or rows builds from what is good, prints the account and exits 4. With --worker it only
    reads its share; when all workers are done, `promptkit merge` builds.
    """
    from promptkit import pipeline

    if resume and parts:
        raise UsageError("--resume and --parts together", hint="--parts alone resumes too, from its folder")
    if worker is not None:
        return _work(talk, root, parts, worker, verify_source, options)
    if verify_source:
        raise UsageError("--verify-source without --worker", hint="use --worker 0/1 with --parts, then promptkit merge")
    with Progress(talk) as progress:
        built = pipeline.build(
            root, out=out, pool=pool, parts=parts or (os.path.join(out, "parts") if resume else None),
            progress=progress, **options,
        )  # fmt: skip
    return _show(talk, built)


def _work(
    talk: Talk, root: str, parts: str | None, worker: tuple[int, int], verify_source: bool, options: dict[str, Any]
) -> int:
    """Read one worker's share; refuse what only the merge can use, rather than let it have no effect."""
    from promptkit import pipeline

    if parts is None:
        raise UsageError("--worker without --parts", hint="name a folder that all workers share: --parts DIR")
    ctx = click.get_current_context()
    for param in ctx.command.params:
        given = ctx.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
        if given and param.name not in (*_OF_WORKERS, *_OF_ALL):
            raise UsageError(
                f"{param.opts[0]} with --worker: it says what is built, and workers only read",
                hint=f"a holdout needs one machine: {shell('promptkit', 'build', '--from', root, '--holdout', 'F')}"
                if param.name == "holdout"
                else f"give it to {shell('promptkit', 'merge', parts)}",
            )
    if options["engine"] != "local":
        raise UsageError(
            f"--worker with --engine {options['engine']}: both deal out the units of work",
            hint=f"{shell('promptkit', 'build', '--from', root, '--engine', options['engine'], '--parts', parts)}",
        )
    wanted = {k: options[k] for k in (*_READ, "limits")}
    with Progress(talk) as progress:
        done, found = pipeline.work(
            root, parts=parts, worker=worker, verify_source=verify_source, progress=progress, **wanted
        )
    if talk.json:
        talk.document({"parts": parts, "worker": list(worker), "done": done, "found": found})
    else:
        talk.line(f"worker {worker[0]}/{worker[1]}: {some(done, 'part')} written, {found:,} found done, in {parts}")
    talk.next("promptkit", "merge", parts, note="when all workers have ended")
    return 0


_READ = ("seed", "sample_size", "tokenizer", "template", "processes", "dtype", "fields")
_OF_WORKERS = ("root", "parts", "worker", "verify_source", "memory", "engine", *_READ, *CAPS)
_OF_ALL = ("json_", "quiet", "verbose", "color")


@click.command(
    "merge",
    epilog="""\b
Example, on any number of machines, then on one:
  promptkit build --from /data/mix --worker $I/$N --parts /shared/parts
  promptkit merge /shared/parts --out promptkit-out --size 500""",
)
@click.argument("parts")
@shared
def merge_command(talk: Talk, parts: str, pool: tuple[str, ...], **options: Any) -> int:
    """Build from what workers left in PARTS: the same bytes as one build of the whole directory.

    Parts that are missing are named, and nothing is built. The training directory need not be there.
    """
    from promptkit import pipeline

    with Progress(talk) as progress:
        built = pipeline.merge(parts, pool=pool, progress=progress, **options)
    return _show(talk, built)


# What is fitted, chosen and written is said as to `build`; how the directory is read, the workers were told.
merge_command.params[1:1] = [
    p for p in build_command.params if p.name not in (*_OF_WORKERS, *_OF_ALL, "resume", "holdout")
]


def _show(talk: Talk, built: Any) -> int:
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
        talk.heading("domains, by the sampled rows")
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
