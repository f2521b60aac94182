"""What a fidelity was worth in acceptance length, in the study of `docs/acceptance.md`: context, never a promise.

    fidelity 0.31 [0.22, 0.42], n = 120
        -> "in our study of toy models, sets with a fidelity of 0 to 0.5 had 0.86 (0.51 to 1.03) of the acceptance ..."

A row of `BANDS` is the acceptance length of (set, mix) pairs of the study over that of a drafter trained on all mixes,
on the same prompts: mean, 5th and 95th percentile of single pairs. Sets: 33 sources and 120 blends under five mixes,
head and small drafter, K = 4, sampled, mean of three seeds; fidelity is promptkit's own. A test computes the rows again
from the results that are kept in `examples/acceptance_study/results`. Cross-entropy was worth as much, but its bits
belong to the study's tokenizer, so no sentence is made of it.
"""

from __future__ import annotations

from typing import Any

# fidelity from, to (the last one includes its end), mean ratio, 5th and 95th percentile, pairs
BANDS = (
    (0.0, 0.25, 0.72, 0.51, 0.94, 518),
    (0.25, 0.5, 0.86, 0.64, 1.03, 286),
    (0.5, 0.75, 0.92, 0.66, 1.07, 228),
    (0.75, 0.9, 0.98, 0.84, 1.14, 184),
    (0.9, 1.0, 1.03, 0.88, 1.21, 314),
)
LEAST = 20  # prompts of the smallest set of the study
SOURCE = "docs/acceptance.md: one toy target, three seeds, 30 drafters on five mixes, 153 sets of prompts"


def worth(fidelity: float | None, bounds: tuple[float, float] | None, n: int) -> dict[str, Any] | None:
    """Return what sets of such a fidelity had, `text, band, ratio, low, high, source`; None below 20 prompts.

    Where the 95 % interval of the fidelity touches several bands, `band`, `low` and `high` span them; `ratio`
    is that of the band which holds the fidelity itself.
    """
    if fidelity is None or bounds is None or n < LEAST:
        return None
    touched = [b for b in BANDS if b[0] <= bounds[1] and (b[1] > bounds[0] or b[1] == 1.0)]
    own = next(b for b in BANDS if fidelity < b[1] or b[1] == 1.0)
    touched = touched if own in touched else [own]
    low, high = min(b[3] for b in touched), max(b[4] for b in touched)
    band = [touched[0][0], touched[-1][1]]
    text = (
        f"in our study of toy models, sets with a fidelity of {band[0]:g} to {band[1]:g} had {own[2]:.2f} "
        f"({low:.2f} to {high:.2f}) of the acceptance length of a drafter trained on everything; "
        "no promise for other models (docs/acceptance.md)"
    )
    return {"text": text, "band": band, "ratio": own[2], "low": low, "high": high, "source": SOURCE}
