"""How the command speaks: results on stdout, talk on stderr, and nothing untrusted as it is.

Prompts and file names are text from strangers: they may hold terminal escapes, right-to-left overrides or console
markup. `visible` shows what must not act, `rich` gets `Text` objects and never markup. A terminal gets rules, bars and
colour (unless NO_COLOR is set); a pipe gets plain aligned lines of at most 80 columns.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from promptkit.visible import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SCHEMA_VERSION = 1


def snippet(text: object, width: int) -> str:
    """Return the beginning of a text on one line of at most `width` cells, with "…" where it was cut."""
    from rich.cells import cell_len, set_cell_size

    head = str(text)[: 4 * width + 200]  # combining marks take no cell: bound the characters too
    line = visible(" ".join(head.split()))
    cut = len(head) < len(str(text)) or cell_len(line) > width
    return set_cell_size(line, max(width - 1, 1)).rstrip() + "…" if cut else line


def shell(*words: object) -> str:
    """Return a command that can be pasted."""
    return " ".join(shlex.quote(str(w)) for w in words)


@dataclass
class Talk:
    """What the user asked of the output; one per run, filled in by the options that every command has."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    color: str = "auto"
    help: bool = False

    def _console(self, stderr: bool) -> Console:
        from rich.console import Console

        stream = sys.stderr if stderr else sys.stdout
        terminal = bool(getattr(stream, "isatty", lambda: False)()) and os.environ.get("TERM") not in (
            "dumb",
            "unknown",
        )
        colour = self.color == "always" or (self.color == "auto" and terminal and not os.environ.get("NO_COLOR"))
        width = None if terminal else int(os.environ["COLUMNS"]) if os.environ.get("COLUMNS", "").isdecimal() else 80
        return Console(
            stderr=stderr, force_terminal=colour or None, no_color=not colour,
            color_system="standard" if colour else None, width=width and max(width, 20), highlight=False,
            markup=False, emoji=False, legacy_windows=False,
        )  # fmt: skip

    @property
    def out(self) -> Console:
        return self._console(False)

    @property
    def err(self) -> Console:
        return self._console(True)

    # -- results ------------------------------------------------------------------------------------------------

    def document(self, value: dict[str, Any]) -> None:
        """Print the one JSON document of a run; ASCII, so that no text in it can act on a terminal."""
        body = {"schema_version": SCHEMA_VERSION, **value}
        sys.stdout.write(json.dumps(plain(body), ensure_ascii=True, allow_nan=False, indent=2) + "\n")

    def _print(self, what: Any, *, stderr: bool = False, soft_wrap: bool = False, trim: bool = False) -> None:
        """Render with rich, write ourselves: rich pads lines with blanks, and exits on a closed pipe."""
        console = self._console(stderr)
        with console.capture() as rendered:
            console.print(what, soft_wrap=soft_wrap)
        lines = [x.rstrip(" ") for x in rendered.get().split("\n")]
        if trim:  # rich frames a table with empty lines
            lines = [*"\n".join(lines).strip("\n").split("\n"), ""]
        (sys.stderr if stderr else sys.stdout).write("\n".join(lines))

    def line(self, text: object = "", style: str = "", *, paste: bool = False) -> None:
        """Print a paragraph of our own words; `paste` keeps a command or a path on one line."""
        from rich.text import Text

        self._print(Text(visible(text, lines=True), style=style), soft_wrap=paste)

    def pair(self, name: str, text: object, *, width: int = 11) -> None:
        """Print a name and what belongs to it, wrapped beside it."""
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=0)
        grid.add_column(width=width, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(visible(name)), Text(visible(text)))
        self._print(grid)

    def heading(self, text: str) -> None:
        self.line()
        self.line(text, "bold")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, wide: str | None = None) -> None:
        """Print rows under column names; ">name" is right-aligned, the `wide` column takes what is left and is cut."""
        from rich.cells import cell_len
        from rich.text import Text

        console = self.out
        table = _table(console)
        cells = [[visible(cell) for cell in row] for row in rows]
        names = [column.lstrip(">") for column in columns]
        widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
        gap = 3 if console.is_terminal else 1  # as `_table` sets columns apart
        room = console.width - sum(w + gap for w, name in zip(widths, names, strict=True) if name != wide) - gap - 1
        for column, name in zip(columns, names, strict=True):
            table.add_column(
                Text(name),
                justify="right" if column.startswith(">") else "left",
                no_wrap=True,
                overflow="ellipsis",
                max_width=max(room, 8) if name == wide else None,
            )
        for row in cells:
            table.add_row(*map(Text, row))
        self._print(table, trim=True)

    def bar(self, share: float, top: float, width: int = 16) -> str:
        """Return a bar of `share` on a scale that ends at `top`."""
        blocks = "utf" in (getattr(sys.stdout, "encoding", "") or "").lower()
        n = round(width * min(max(share, 0.0), top) / top) if top > 0 else 0
        return ("█" if blocks else "#") * n

    # -- talk ---------------------------------------------------------------------------------------------------

    def say(self, text: str, style: str = "") -> None:
        from rich.text import Text

        if not self.quiet:
            self._print(Text(visible(text, lines=True), style=style), stderr=True, soft_wrap=True)

    def next(self, *words: object, note: str = "") -> None:
        """Print the next step: a line that works when pasted, and below it why one would."""
        self.say("next: " + shell(*words), "cyan")
        if note:
            self.say(f"      {note}", "cyan")

    def error(self, message: str, hint: str = "") -> None:
        from rich.text import Text

        said = Text.assemble(("error: ", "bold red"), visible(message, lines=True))
        self._print(said, stderr=True, soft_wrap=True)
        if hint:
            self._print(Text.assemble(("  next: ", "cyan"), visible(hint, lines=True)), stderr=True, soft_wrap=True)


def _table(console: Console) -> Table:
    from rich import box
    from rich.table import Table

    terminal = console.is_terminal
    return Table(
        box=box.SIMPLE_HEAD if terminal else None,
        pad_edge=False,
        padding=(0, 2 if terminal else 1, 0, 0),
        header_style="bold" if terminal else "",
        expand=False,
    )


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: NaN becomes null, arrays and frames lists, dataclasses mappings."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if hasattr(value, "to_dicts"):
        return plain(value.to_dicts())
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(value, "__dataclass_fields__"):
        return {k: plain(getattr(value, k)) for k in value.__dataclass_fields__}
    return str(value)


def some(n: int, what: str) -> str:
    """Return "1 row", "2 rows"."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


class Progress:
    """What the library calls with (stage, done, total): a live line on a terminal, else a line every 10 s."""

    EVERY_SECONDS = 10.0
    OF_BYTES = ("read", "hold", "twins")  # stages that count bytes; the others count rows

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.console = talk.err
        self.silent = talk.quiet or talk.json
        self.started = self.spoke = self.stage_began = time.monotonic()
        self.stage_had = 0  # done when the stage was first heard of: of that, no rate is known
        self.live: Any = None
        self.task: Any = None
        self.stage = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, stage: str, done: int, total: int | None = None) -> None:
        if self.silent:
            return
        now = time.monotonic()
        new = stage != self.stage
        if new:
            self.stage, self.stage_began, self.stage_had = stage, now, done
        if self.console.is_terminal:
            self._draw(new, done, total, self._said(done, total, now))
            return
        new = new and now - self.started >= 1  # a log says what is going on before it looks stuck
        if new or now - self.spoke >= self.EVERY_SECONDS:
            self.spoke = now
            told = (self._said(done, total, now), f"{now - self.started:.0f} s")
            self.talk.say(f"{stage}: {', '.join(filter(None, told))}")

    def _said(self, done: int, total: int | None, now: float) -> str:
        """Return how much is done, at what rate, and the time left; nothing where there is nothing to count."""
        if not total:
            return ""
        scale, digits, unit = (1e6, 1, "MB") if self.stage in self.OF_BYTES else (1, 0, "rows")
        seconds, gained = now - self.stage_began, done - self.stage_had
        said = f"{done / scale:,.{digits}f} of {total / scale:,.{digits}f} {unit}"
        if gained <= 0 or seconds < 1:
            return said
        rate = gained / scale / seconds
        return f"{said}, {rate:,.{digits if rate >= 10 else 1}f} {unit}/s{time_left(done, total, seconds, gained)}"

    def _draw(self, new: bool, done: int, total: int | None, said: str) -> None:
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Live

        if self.live is None:
            self.live = Live(
                SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=20),
                TimeElapsedColumn(), TextColumn("{task.fields[said]}", markup=False), console=self.console,
                transient=True,
            )  # fmt: skip
            self.live.start()
        if new:
            if self.task is not None:
                self.live.remove_task(self.task)
            self.task = self.live.add_task(visible(self.stage), total=total, said=said)
        self.live.update(self.task, completed=done, total=total, said=said)


def time_left(done: int, total: int | None, seconds: float, gained: int | None = None) -> str:
    """Return ", about 12 s left" from the rate of a stage; nothing before it is a tenth done or has run 3 s.

    The rate is what was `gained` (default: all that is done) in `seconds`.
    """
    if not total or seconds < 3 or not total / 10 <= done < total:
        return ""
    left = seconds * (total - done) / (gained or done)
    return f", about {left / 60:.0f} min left" if left >= 90 else f", about {left:.0f} s left"
