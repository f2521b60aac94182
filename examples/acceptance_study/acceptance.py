"""How many tokens a step of chain drafting yields, exactly, from one parallel pass over the target's own answer.

Speculative decoding is lossless: what comes out is the target's text, whatever drafts. So the text may be fixed first,
and the only question left is which of its tokens had been drafted.

* Greedy: a drafted token is accepted where it equals the text's. alpha is 0 or 1.
* Sampled (Leviathan et al. 2023): x ~ q is kept with probability min(1, p(x) / q(x)), else a token comes from
  the residual. Given that y comes out, it had been drafted and kept with probability
  q(y) min(1, p(y) / q(y)) / p(y) = min(1, q(y) / p(y)). alpha is that, and nothing needs to be drawn.

`alpha[m, i]` belongs to token m + i of an answer (from 1) when the chain began after token m: steps i = 1..K. From it
the expected number of steps follows by a sum over where a step may begin. The first token of an answer comes with the
prefill and is no step's.
"""

from __future__ import annotations

import torch
from torch import Tensor


def alpha(p: Tensor, q: Tensor) -> Tensor:
    """Return the chance that a token of the text had been drafted and kept, given its p and q (not logarithms)."""
    return torch.where(q >= p, torch.ones_like(p), q / p.clamp_min(1e-30))


def expect(chances: Tensor, lengths: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what chains of k drafts do to n answers.

    Parameters
    ----------
    chances : (n, longest, >= k); [:, m, i] is alpha of token m + 2 + i, counted from 1, for the chain after m + 1.
    lengths : (n,) tokens of each answer, its first and its end mark included.

    Returns
    -------
    tokens (n,), steps (n,) : yielded by steps, and the expected number of steps; their ratio is the acceptance length
        as a server counts it, the bonus token included, cut off at the end of the answer.
    tried, kept (n, k) : expected number of times that draft i was reached inside the answer, and that it was kept.
        kept / tried is the hazard of Kaplan and Meier (1958): the end of a text censors a chain, it does not reject.
    """
    n, longest, _ = chances.shape
    start = chances.new_zeros(n, longest + k + 2)
    start[:, 0] = 1.0
    steps = chances.new_zeros(n)
    tried, kept = chances.new_zeros(n, k), chances.new_zeros(n, k)
    for m in range(longest):  # m + 1 tokens are known
        here = start[:, m] * (m + 1 < lengths)
        steps += here
        reach = here
        for i in range(k):
            inside = m + 2 + i <= lengths
            a = chances[:, m, i] * inside
            tried[:, i] += reach * inside
            kept[:, i] += reach * a
            start[:, m + i + 1] += reach * (1.0 - a)  # refused: i drafts kept and the target's own token
            reach = reach * a
        start[:, m + k + 1] += reach
    return (lengths - 1).clamp_min(0).to(steps.dtype), steps, tried, kept


def acceptance_length(tried: Tensor, kept: Tensor) -> Tensor:
    """Return 1 + the sum over i of the chance that i drafts are kept, (n,), from (n, k) counts; end effects removed.

    A draft that no chain of an answer reached has the hazard of the one before it; without any, NaN.
    """
    total = torch.ones_like(tried[:, 0])
    survive = torch.ones_like(total)
    hazard = torch.full_like(total, float("nan"))
    for i in range(tried.shape[1]):
        hazard = torch.where(tried[:, i] > 1e-6, kept[:, i] / tried[:, i].clamp_min(1e-9), hazard)
        survive = survive * hazard
        total = total + survive
    return total
