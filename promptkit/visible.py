r"""Text from strangers -> text that shows itself and does nothing.

A prompt or a file name may hold terminal escapes (`\x1b[2J`), right-to-left overrides, invisible characters or lone
surrogates. Before any of it reaches a terminal or a page it is made visible: `a\x1b[2Jb` prints as those very signs.
Below: numbers as every output prints them, "-" where there is none (None, NaN).
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any, TypeGuard

_JOINERS = "\u200c\u200d"  # Persian, Indic scripts and emoji need them, and they move nothing
_ACTING = (
    "Cc",
    "Cf",
    "Cs",
    "Zl",
    "Zp",
)  # control, format (bidi, zero width), surrogates, line and paragraph separators
_PLAIN = re.compile(r"[\x20-\x7e\n]*")


def visible(text: object, *, lines: bool = False) -> str:
    """Return the text with every character that acts written as an escape; line breaks stay with `lines`."""
    given = str(text)
    if _PLAIN.fullmatch(given) and (lines or "\n" not in given):
        return given
    return "".join(
        c
        if (c == "\n" and lines) or c in _JOINERS or unicodedata.category(c) not in _ACTING
        else c.encode("unicode_escape").decode()
        for c in given
    )


def one_line(text: object, n_characters: int) -> str:
    """Return the beginning of a text on one line, with "…" where it was cut."""
    given = str(text)
    line = visible(" ".join(given[: 2 * n_characters + 200].split()))
    if len(line) <= n_characters and len(given) <= 2 * n_characters + 200:
        return line
    return line[: n_characters - 1].rstrip() + "…"


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def number(value: Any, digits: int = 2) -> str:
    return f"{value:,.{digits}f}" if is_number(value) else "-"


def percent(value: Any) -> str:
    return f"{100 * value:.1f} %" if is_number(value) else "-"


def count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def p_value(value: Any) -> str:
    return "< 0.001" if is_number(value) and value < 0.001 else number(value, 3)


def interval(bounds: Any, digits: int = 2) -> str:
    """Return [low, high] as it is printed."""
    return f"{number(bounds[0], digits)} to {number(bounds[1], digits)}" if bounds and None not in bounds else "-"
