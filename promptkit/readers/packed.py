"""Rows that hold several conversations, as packing for training makes them, cut into one Record each.

    input_ids     7 7 7 8 8 9 9 9 0 0      position_ids  0 1 2 0 1 0 1 2 0 0        Axolotl, LLaMA-Factory
                                           attention_mask  1 1 1 2 2 3 3 3 0 0      LLaMA-Factory with neat_packing

A conversation begins where the positions go back to 0 or the number in the attention mask changes; where a row of
`labels` has neither, at the beginning-of-text id of the tokenizer. A tail of equal positions that nothing supervises is
padding. Rows are counted anew, because each conversation is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptkit.readers.records import Fault, Record


def starts_of(
    positions: NDArray[Any] | None, segments: NDArray[Any] | None, begins: NDArray[np.bool_] | None
) -> tuple[int, ...]:
    """Return where conversations begin in a row: nothing for a row of one."""
    if positions is not None:
        zero = positions == 0
        # in a run of zeros only the first is a beginning; the others are padding
        at = np.flatnonzero(zero & ~np.concatenate([[False], zero[:-1]]))
        at = at[at < end_of(positions)]
    elif segments is not None:
        at = np.flatnonzero(np.diff(segments, prepend=segments[:1] - 1) != 0)
        at = at[segments[at] > 0]
    elif begins is not None:
        at = np.flatnonzero(begins & ~np.concatenate([[False], begins[:-1]]))
    else:
        return ()
    return tuple(at.tolist()) if len(at) > 1 else ()


def end_of(positions: NDArray[Any]) -> int:
    """Return where a tail of zeros begins: one zero alone may be a conversation of one token, two are padding."""
    other = np.flatnonzero(positions)
    end = int(other[-1]) + 1 if len(other) else 1
    return end if len(positions) - end > 1 else len(positions)


def cut(items: Iterator[Record | Fault]) -> Iterator[Record | Fault]:
    """Yield the conversations of packed rows as rows of their own, all rows numbered in the order they come."""
    shift = 0
    for item in items:
        if isinstance(item, Fault):
            yield item if item.row is None or not shift else replace(item, row=item.row + shift)
            continue
        if not item.starts or item.ids is None:
            yield replace(item, row=item.row + shift) if shift else item
            continue
        edges = [*item.starts, len(item.ids)]
        edges[0] = 0
        for k in range(len(edges) - 1):
            a, b = edges[k], edges[k + 1]
            yield replace(
                item,
                row=item.row + shift + k,
                ids=item.ids[a:b],
                mask=None if item.mask is None else item.mask[a:b],
                attention=None if item.attention is None else item.attention[a:b],
                id=None if item.id is None else f"{item.id}#{k}",
                starts=(),
            )
        shift += len(edges) - 2
