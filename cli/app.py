"""The command group, what all commands share, and the one place where an error becomes an exit code.

0 done, gates passed   2 usage   3 the answer is no   4 input unusable   5 integrity   6 resources
130 interrupted   143 terminated   141 closed pipe   1 is left to bugs
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from promptkit import __version__
from promptkit.errors import PromptkitError, UsageError

from .console import Talk

F = TypeVar("F", bound=Callable[..., Any])

SEED = click.IntRange(0, 2**32 - 1)
device_option = click.option(
    "--device", default="auto", show_default=True, metavar="auto|cpu|cuda[:N]",
    help="Of an embedding model; cuda: of k-means and null draws too.",
)  # fmt: skip
COMMANDS = {  # name -> module that defines it; loaded when needed, so that --help of one costs that one
    "inspect": "reading", "detokenize": "reading", "build": "building", "score": "scoring", "compare": "comparing",
    "export": "exporting", "reweight": "reweighting", "verify": "packs", "diff": "packs", "list": "packs",
    "report": "packs", "merge": "building", "doctor": "doctor",
}  # fmt: skip


class ClosedPipe(BaseException):
    """The reader of our output went away; BaseException, because click turns EPIPE into exit 1."""


class Terminated(BaseException):
    """SIGTERM."""


class Commands(click.Group):
    """A group whose commands are loaded by name, and that knows near misses."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from importlib import import_module

        if cmd_name not in COMMANDS:
            return None
        module = import_module(f".{COMMANDS[cmd_name]}", __package__)
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(f"no command {name!r}", hint=f"{hint}known: {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ClosedPipe from None


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  promptkit build --from /data/eagle3/synth_100k
  promptkit score prompts.yaml --against promptkit-out/reference

\b
Exit codes: 0 done, 2 usage, 3 the answer is no (a gate), 4 input unusable,
5 integrity, 6 resources. Completion: eval "$(_PROMPTKIT_COMPLETE=bash_source promptkit)"
(or zsh_source, fish_source).""",
)
@click.version_option(__version__, prog_name="promptkit", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Benchmark LLM inference with prompts that represent the training data, and prove it.

    Reads the tokenized training shards of a drafter, scores prompts against that mix and makes prompt packs of it.
    """
    if ctx.invoked_subcommand and not ctx.ensure_object(Talk).help:  # help works beside a broken pyproject.toml
        from .settings import defaults

        ctx.default_map = defaults(Path.cwd(), ctx.invoked_subcommand)


def shared(command: F) -> F:
    """Add the options of every command, and pass its Talk as the first argument."""

    @click.option("--json", "json_", is_flag=True, help="Print one JSON document on stdout, and nothing else there.")
    @click.option("-q", "--quiet", is_flag=True, help="No progress, no next step: errors and results only.")
    @click.option("-v", "--verbose", is_flag=True, help="Say more; show tracebacks of bugs.")
    @click.option(
        "--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="Colour (NO_COLOR counts)."
    )
    @click.pass_context
    @functools.wraps(command)
    def run(ctx: click.Context, /, json_: bool, quiet: bool, verbose: bool, color: str, **options: Any) -> Any:
        talk = ctx.find_object(Talk) or Talk()
        talk.json, talk.quiet, talk.verbose, talk.color = json_, quiet, verbose, color
        return command(talk, **options)

    return run  # type: ignore[return-value]


def main(args: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    words = list(sys.argv[1:] if args is None else args)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 is no reason to fail
    talk = Talk(
        json="--json" in words, verbose=bool({"-v", "--verbose"} & {*words}), help=bool({"-h", "--help"} & {*words})
    )
    code = _run(words, talk)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = 141
    except OSError as e:
        code = _failed(e, talk)
    if code == 141:
        # Python flushes again on exit; what is left goes nowhere, silently.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run(words: list[str], talk: Talk) -> int:
    def terminate(_number: int, _frame: object) -> NoReturn:
        raise Terminated

    with contextlib.suppress(ValueError):  # not the main thread: whoever embeds us handles signals
        signal.signal(signal.SIGTERM, terminate)
    try:
        result = cli.main(args=words or ["--help"], prog_name="promptkit", standalone_mode=False, obj=talk)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as e:
        return e.exit_code
    except (click.Abort, KeyboardInterrupt):
        talk.error("interrupted", "run the same command again")
        return 130
    except Terminated:
        talk.error("terminated", "run the same command again")
        return 143
    except ClosedPipe:
        return 141
    except (PromptkitError, click.ClickException, OSError, MemoryError) as e:
        return _failed(e, talk)
    except Exception as e:
        if talk.verbose:
            import traceback

            from promptkit.visible import visible

            sys.stderr.write(visible(traceback.format_exc(), lines=True))
        talk.error(
            f"this is a bug in promptkit: {type(e).__name__}: {e}",
            "" if talk.verbose else "run it again with -v for the traceback, and report that",
        )
        return 1


def _failed(error: BaseException, talk: Talk) -> int:
    """Print an error that is somebody's to mend, and return its exit code."""
    code, kind, message, hint = _described(error)
    if talk.json:
        with contextlib.suppress(OSError):  # stdout itself may be what is full; stderr still says so
            talk.document({"error": {"kind": kind, "message": message, "hint": hint, "exit_code": code}})
    talk.error(message, hint)
    return code


def _described(error: BaseException) -> tuple[int, str, str, str]:
    if isinstance(error, PromptkitError):
        return error.exit_code, type(error).__name__, error.message, error.hint
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "promptkit"
        message = error.format_message().removesuffix(".")
        from .settings import origin

        return 2, "UsageError", message + origin(error), f"{path} --help"
    if isinstance(error, click.ClickException):
        return 2, "UsageError", error.format_message(), ""
    if isinstance(error, MemoryError):
        return (
            6,
            "ResourceError",
            "out of memory",
            "use fewer --processes, a smaller --sample-size, or a larger machine",
        )
    assert isinstance(error, OSError)
    where = f"{error.filename}: " if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return 6, "ResourceError", f"{where}disk full", "free some space there and in TMPDIR, or choose another --out"
    if error.errno == errno.EFBIG:
        return 6, "ResourceError", f"{where}{error.strerror}", "raise the limit of file sizes (ulimit -f)"
    if error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return 6, "ResourceError", f"{where}{error.strerror}", "raise the limit (ulimit), or use fewer --processes"
    return 2, "UsageError", f"{where}{error.strerror or error}", "check the path and its permissions"
