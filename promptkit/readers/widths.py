"""How wide the ids of a file without a header are: said by the user, or told from the bytes with evidence.

    05 00 07 00 05 00      16 bits: 5, 7, 5
    05 00 00 00 07 00 00 00      32 bits: every second 16-bit word is 0 (or 1, 2 for a vocabulary of 163,840)
    05 00 00 00 00 00 00 00      64 bits: three of four words are 0

Little-endian, as every writer of such files writes. Where two widths are possible, or the bytes do not look like ids
at all (the commonest ids of any text make up much of it), nothing is guessed: the reason asks for --dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from promptkit.errors import UsageError
from promptkit.readers.records import BadFile, Hints, NoSamples
from promptkit.registry import suggest

SAMPLE_BYTES = 1 << 18
DTYPES = {
    f"{kind}{8 * size}": f"<{kind[0]}{size}" if size > 1 else f"{kind[0]}{size}"
    for kind in ("uint", "int")
    for size in (1, 2, 4, 8)
}
HIGH = 15  # no vocabulary reaches 2^20: the upper half of a 32-bit id is at most this
COMMON, COMMON_SHARE = 64, 0.15  # in any text the 64 commonest ids are a third of all; in other data far less
ASK = "pass --dtype (uint16, uint32, int32, int64)"


@dataclass(frozen=True, slots=True)
class Width:
    dtype: str  # a numpy dtype with its byte order, such as "<u2"
    why: str  # one sentence of evidence


def check_dtype(name: str | None) -> None:
    """Raises UsageError for a name that is no integer type."""
    if name is not None and name not in DTYPES:
        raise UsageError(f"unknown dtype {name!r}", hint=suggest(name, list(DTYPES)))


def width_of(sample: bytes, n_bytes: int | None, hints: Hints) -> Width:
    """Return the width of ids of which `sample` are the first bytes and `n_bytes` is the size of all, where known.

    Raises BadFile where it cannot be told, NoSamples where the bytes are a mask and no ids.
    """
    if hints.dtype is not None:
        code = DTYPES[hints.dtype]
        _whole(n_bytes, code)
        return Width(code, f"ids are {hints.dtype}, as --dtype says")
    if len(sample) >= 16 and not np.frombuffer(sample, np.uint8).max(initial=0) > 1:
        raise NoSamples("bytes of 0 and 1: a label mask, not ids")
    words = np.frombuffer(sample[: len(sample) // 8 * 8], "<u2")
    if len(words) < 16:
        raise BadFile(f"ids without a header, too few to tell their width; {ASK}")
    low, second, third, fourth = (words[k::4] for k in range(4))
    even, odd = words[::2], words[1::2]
    if not third.any() and not fourth.any() and _ids(low) and (second <= HIGH).all():
        return _settled("<i8", sample, n_bytes, hints, "three of four 16-bit words are high halves of 64-bit ids")
    if (odd <= HIGH).all() and not (even <= HIGH).all():
        high = int(odd.max())
        return _settled("<u4", sample, n_bytes, hints, f"every second 16-bit word is at most {high}: 32-bit ids")
    if (odd <= HIGH).mean() > 0.9:
        raise BadFile(f"ids without a header, of 16 or of 32 bits: both are possible; {ASK}")
    share = np.sort(np.bincount(words, minlength=1 << 16))[-COMMON:].sum() / len(words)
    if share < COMMON_SHARE:
        raise BadFile(
            f"no known header, and read as 16-bit ids the {COMMON} commonest are {share:.0%} of all: no text; {ASK}"
        )
    return _settled("<u2", sample, n_bytes, hints, f"16-bit ids: the {COMMON} commonest are {share:.0%} of all")


def _ids(words: np.ndarray) -> bool:
    return bool((words > HIGH).any())


def _settled(code: str, sample: bytes, n_bytes: int | None, hints: Hints, why: str) -> Width:
    _whole(n_bytes, code)
    size = np.dtype(code).itemsize
    top = int(np.frombuffer(sample[: len(sample) // size * size], code).max())
    if hints.n_vocab is not None and top >= hints.n_vocab:
        raise BadFile(f"{why}, but the id {top} is outside the tokenizer ({hints.n_vocab} ids); {ASK}")
    return Width(code, f"read as {np.dtype(code).name}: {why}; the highest of the first ones is {top:,}")


def _whole(n_bytes: int | None, code: str) -> None:
    dtype = np.dtype(code)
    if n_bytes is not None and n_bytes % dtype.itemsize:
        raise BadFile(f"{n_bytes} bytes are not a whole number of {dtype.name} ids; {ASK} or check the copy")
