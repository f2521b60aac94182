"""`promptkit export`: a pack in the file and the command of each harness."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from promptkit.errors import InputError, PromptkitError, UsageError

from .app import shared
from .console import Talk, some

if TYPE_CHECKING:
    from promptkit.exporters import Export


@click.command(
    "export",
    epilog="""\b
Examples:
  promptkit export promptkit-out --to vllm --base-url http://localhost:8000
  promptkit export coding-agentic --to sglang --to aiperf --out exports
  promptkit export coding-agentic --to all --template kimi-k2.5""",
)
@click.argument("pack")
@click.option(
    "--to", "targets", multiple=True, metavar="NAME", help="A harness, or all; repeatable. Without it: which there are."
)
@click.option(
    "--out", default="promptkit-out/exports", show_default=True, metavar="DIR", help="Files go to DIR/NAME, replaced."
)
@click.option("--base-url", metavar="URL", help="The server's root, without /v1; default: $BASE_URL in the command.")
@click.option("--model", metavar="NAME", help="The model as the server names it; default: $MODEL in the command.")
@click.option("--template", metavar="NAME", help="Chat template for targets that take text; default: the pack's.")
@click.option("--tokenizer", metavar="PATH", help="For targets that take ids, and for clients that need one.")
@click.option(
    "--output-tokens", type=click.IntRange(1), default=512, show_default=True, help="Where a prompt knows no length."
)
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True, help="Requests at a time.")
@shared
def export_command(talk: Talk, pack: str, targets: tuple[str, ...], **options: Any) -> int:
    """Write PACK as a harness reads it, and print the command that sends each prompt once.

    What the harness cannot carry, or changes, is listed and counted. A target that cannot carry one prompt exits 4;
    with `--to all` it is said and the others are written.
    """
    from promptkit.exporters import EXPORTERS, export
    from promptkit.pack import load_pack
    from promptkit.registry import resolve, suggest

    if not targets:
        raise UsageError("no target: give --to NAME", hint=suggest("", [*EXPORTERS, "all"]))
    names = list(dict.fromkeys(n for t in targets for n in (EXPORTERS if t == "all" else [t])))
    for name in names:
        resolve("exporters", name, {**EXPORTERS, "all": None})
    loaded = load_pack(pack)
    done: list[Export] = []
    refused: list[dict[str, Any]] = []
    errors: list[PromptkitError] = []
    for name in names:
        try:
            done.append(export(loaded, name, **options))
        except InputError as error:
            if len(names) == 1:
                raise
            errors.append(error)
            refused.append({"target": name, "reason": error.message, "hint": error.hint})
    if talk.json:
        several = len(names) > 1
        talk.document({"exports": [e.to_json() for e in done], "refused": refused} if several else done[0].to_json())
    else:
        for i, item in enumerate(done):
            talk.line() if i else None
            _show(talk, item, len(loaded))
    for refusal in errors:
        talk.error(refusal.message, refusal.hint)
    if done:
        _next(talk, done, **options)
    return 4 if errors and ("all" not in targets or not done) else 0


def _show(talk: Talk, done: Export, n: int) -> None:
    directory = os.path.dirname(done.ids)
    own = [f for f in done.files if os.path.dirname(f) == directory and f not in (done.ids, f"{directory}/export.json")]
    talk.line(f"{done.target}: {n - len(done.left_out):,} of {some(n, 'prompt')}", "bold")
    for path in own or [directory]:
        talk.line(f"file     {path}", paste=True)
    if done.commands:
        talk.line(f"domains  {directory}/by-domain ({len(done.commands)}; commands: export.json)", paste=True)
    talk.line(f"ids      {done.ids}", paste=True)
    for loss in done.losses:
        talk.pair("loss", f"{loss.count:,} x {loss.what}: {loss.note}", width=9)
    for note in done.notes:
        talk.pair("note", note, width=9)
    talk.line(done.command, "green", paste=True)


def _next(talk: Talk, done: Sequence[Export], base_url: str | None, model: str | None, **_: Any) -> None:
    blanks = [f"{name}={value}" for name, value, given in (
        ("BASE_URL", "http://localhost:8000", base_url), ("MODEL", "NAME", model),
    ) if given is None and any(f"${name}" in e.command for e in done)]  # fmt: skip
    if blanks:
        talk.next("export", *blanks, note="then paste the command")
    else:
        talk.say("next: paste the command; ids.jsonl joins its results to prompts and domains", "cyan")
