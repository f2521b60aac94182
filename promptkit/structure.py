"""How long a prompt is and how it is built, beside the rows of the mix: token counts, user turns, tools.

Typicality looks at words only, and a set of short openings may be typical of a mix whose rows are long and call tools.
Each prompt gets the share of the mix that is shorter, and words for what hardly any row of the mix has; the set gets
its medians and shares beside those of the mix. Conformal, as typicality: an outlier is what at most 1 in 200 rows of
the mix exceeds, and below 199 rows nothing can be called one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit import inference
from promptkit.conversation import Conversation, Prompt, uses_tools

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RARE = 0.005  # share of the mix that may be at least as extreme, on either side


def shapes(prompts: Sequence[Prompt], n_tokens: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Return `n_tokens` (of the opening), `n_turns` (user turns) and `has_tools` of each prompt."""
    return {
        "n_tokens": np.array(n_tokens, dtype=np.int64),
        "n_turns": np.array([sum(m["role"] == "user" for m in p.messages) for p in prompts], dtype=np.int64),
        "has_tools": np.array([uses_tools(Conversation(p.messages, p.tools)) for p in prompts], dtype=bool),
    }


def of_sample(sample: pl.DataFrame) -> dict[str, NDArray[Any]]:
    """Return the same of the rows of a reference's sample."""
    return {
        "n_tokens": sample["n_prompt_tokens"].to_numpy(),
        "n_turns": sample["n_turns"].to_numpy(),
        "has_tools": sample["has_tools"].to_numpy(),
    }


def length_percentiles(n_tokens: NDArray[Any], mix: dict[str, NDArray[Any]]) -> Floats:
    """Return the share of the mix's openings that are shorter; of those as long, half."""
    ascending = np.sort(mix["n_tokens"])
    below, up_to = np.searchsorted(ascending, n_tokens, "left"), np.searchsorted(ascending, n_tokens, "right")
    share: Floats = (below + up_to) / (2.0 * len(ascending))
    return share


def outliers(shape: dict[str, NDArray[Any]], mix: dict[str, NDArray[Any]]) -> list[list[str]]:
    """Return, for each prompt, what of it hardly any row of the mix has, in words; mostly nothing."""
    ascending, turns = np.sort(mix["n_tokens"]), np.sort(mix["n_turns"])
    m, with_tools = len(ascending), int(mix["has_tools"].sum())
    out: list[list[str]] = []
    lengths, user_turns = shape["n_tokens"], shape["n_turns"]
    all_shorter = np.searchsorted(ascending, lengths, "left").tolist()
    all_longer = (m - np.searchsorted(ascending, lengths, "right")).tolist()
    all_fewer = np.searchsorted(turns, user_turns, "left").tolist()
    for i, tools in enumerate(shape["has_tools"]):
        length, n_turns = lengths[i], user_turns[i]
        shorter, longer, fewer = all_shorter[i], all_longer[i], all_fewer[i]
        said = []
        if (1 + m - shorter) <= RARE * (1 + m):
            said.append(f"{length:,} tokens, longer than {_share(shorter, m)} of the mix")
        elif (1 + m - longer) <= RARE * (1 + m):
            said.append(f"{length:,} tokens, shorter than {_share(longer, m)} of the mix")
        if n_turns > 1 and (1 + m - fewer) <= RARE * (1 + m):
            said.append(f"{n_turns} user turns, more than {_share(fewer, m)} of the mix")
        if tools and 1 + with_tools <= RARE * (1 + m):
            said.append(f"tools, which {_share(m - with_tools, m)} of the mix does without")
        out.append(said)
    return out


def table(
    shape: dict[str, NDArray[Any]], mix: dict[str, NDArray[Any]], weights: Floats, row_weights: Floats
) -> list[dict[str, Any]]:
    """Return `what, reference, candidates, p_value` for length, turns and tools; p-values by Benjamini-Hochberg.

    Lengths are tested by the mean of their percentiles, which is 0.5 for draws of the mix; shares by `share_test`.
    """
    n, m = inference.effective_size(weights), inference.effective_size(row_weights)
    rows = row_weights / row_weights.sum()
    # In one order, whatever the file's: sums of the same numbers in another order differ in the last bit.
    order = np.lexsort((weights, shape["has_tools"], shape["n_turns"], shape["n_tokens"]))
    w = weights[order]
    ascending = np.argsort(mix["n_tokens"], kind="stable")
    cumulated, lengths = np.concatenate([[0.0], np.cumsum(rows[ascending])]), mix["n_tokens"][ascending]
    tokens = shape["n_tokens"][order]
    below, up_to = np.searchsorted(lengths, tokens, "left"), np.searchsorted(lengths, tokens, "right")
    percentile = 0.5 * (cumulated[below] + cumulated[up_to])
    shift = abs(float(w @ percentile) - 0.5) / np.sqrt((1.0 / n + 1.0 / m) / 12.0)
    out: list[dict[str, Any]] = [
        {
            "what": "median tokens",
            "reference": _median(lengths, rows[ascending]),
            "candidates": _median(tokens, w),
            "p_value": 2.0 * (1.0 - inference.normal_cdf(shift)),
        }
    ]
    for what, of_mix, own in (
        ("several user turns", mix["n_turns"] > 1, shape["n_turns"] > 1),
        ("tools", mix["has_tools"], shape["has_tools"]),
    ):
        expected, share = float(rows @ of_mix), float(w @ own[order])
        p = inference.share_test(share, n, expected, m)
        out.append({"what": what, "reference": expected, "candidates": share, "p_value": p})
    for row, p in zip(out, inference.benjamini_hochberg([r["p_value"] for r in out]), strict=True):
        row["p_value"] = float(p)
    return out


def _median(ascending: NDArray[Any], weights: Floats) -> float:
    return float(ascending[int(np.searchsorted(np.cumsum(weights), 0.5 * weights.sum() - 1e-12))])


def _share(part: int, whole: int) -> str:
    return "all" if part == whole else f"{np.floor(1000 * part / whole) / 10:.1f} %"
