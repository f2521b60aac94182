"""Acceptance length of every test prompt under every drafter of one seed -> OUT/acceptance.npz.

The target's greedy answer and its three sampled ones were made by train.py; one pass of target and drafters over them
gives the chance that each token had been drafted (`acceptance.py`), for K = 3 to 7 at once.

    al          (kinds, mixes, 2, K, n)  acceptance length, bonus token included, end effects removed; [2]: greedy,
                                        sampled (three answers pooled)
    al_served   the same as tokens over steps, cut off at the end of the answer, as a server counts
    entropy     (n,) mean nats of the served distribution over the sampled answers;  prompt_nll (n,) nats per prompt
    tokens      (n, 2) tokens that entered
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from acceptance import acceptance_length, alpha, expect
from models import FULL, LM, TEMPERATURE, TINY, Data, Head, autocast, padded
from train import BUCKET, KINDS, load_target, save_as

KS = (3, 4, 5, 6, 7)
MODES = ("greedy", "sampled")
CHUNK = 8192  # states scored against the vocabulary at once


def load_drafters(path: Path, data: Data, size: dict[str, Any], device: str) -> dict[str, torch.nn.Module]:
    """Return the drafters by "mix/kind"."""
    out: dict[str, torch.nn.Module] = {}
    for name, state in torch.load(path, weights_only=True).items():
        drafter = Head(size["head"]) if name.endswith("head") else LM(data.n_vocab, size["small"])
        drafter.load_state_dict({k: v.float() for k, v in state.items()})
        out[name] = drafter.to(device).eval()
    return out


@torch.no_grad()
def chances(
    target: LM,
    drafters: dict[str, torch.nn.Module],
    texts: list[np.ndarray],
    firsts: np.ndarray,
    mode: str,
    device: str,
) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return alpha (n, longest, 7) by drafter for a batch of texts whose answers begin at `firsts`; also answer
    lengths, the mean entropy of the served distribution over each answer, and nats per prompt token."""
    ids, lengths = padded(texts, device, multiple=BUCKET)
    first = torch.from_numpy(firsts).to(device)
    n, longest = len(texts), int((lengths - first).max())
    # One entry per answer token: its text, its number in the answer (from 0); its predictor stands one earlier.
    row = np.repeat(np.arange(n), [len(t) - f for t, f in zip(texts, firsts, strict=True)])
    at = np.concatenate([np.arange(f, len(t)) for t, f in zip(texts, firsts, strict=True)])
    row, at = torch.from_numpy(row).to(device), torch.from_numpy(at).to(device)
    number, token = at - first[row], ids[row, at]
    with autocast(device):
        hidden = target(ids)
        embedded = target.embed(ids)
        p, _, h = read(hidden[row, at - 1], target.embed.weight, token, scale=1 / TEMPERATURE)
        entropy = h.new_zeros(n).index_add_(0, row, h) / (lengths - first)

        def chance(said: torch.Tensor, weight: torch.Tensor, step: int, out: torch.Tensor) -> None:
            """Write alpha of step `step` (from 0) into out: the chain began step + 1 tokens before."""
            q, top, _ = read(said[row, at - 1], weight, token)
            a = (top == token).float() if mode == "greedy" else alpha(p, q)
            for i in range(KS[-1]) if step < 0 else (step,):
                there = number >= i + 1
                out[row[there], number[there] - 1 - i, i] = a[there]

        found = {}
        for name, drafter in drafters.items():
            found[name] = out = p.new_zeros(n, longest, KS[-1])
            if isinstance(drafter, Head):
                for i, said in enumerate(drafter.unroll(hidden, embedded, KS[-1])):
                    chance(said, target.embed.weight, i, out)
            else:  # the same at every step: it reads tokens only
                chance(drafter(ids), drafter.embed.weight, -1, out)
        nll = _prompt_nll(target, hidden, ids, first)
    return found, lengths - first, entropy, nll


def read(
    said: torch.Tensor, weight: torch.Tensor, token: torch.Tensor, *, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return, for each state, the probability of its token, the likeliest token, and (target only) the entropy."""
    out = []
    for start in range(0, len(said), CHUNK):
        part, want = said[start : start + CHUNK], token[start : start + CHUNK]
        m = len(part)
        room = CHUNK - m if said.is_cuda else 0  # one shape: a GPU is slow at new ones
        logits = F.linear(F.pad(part, (0, 0, 0, room)), weight).float() * scale
        total = logits.logsumexp(-1, keepdim=True)
        probability = (logits[:m].gather(1, want[:, None]) - total[:m])[:, 0].exp()
        entropy = probability
        if scale != 1.0:
            entropy = (total - ((logits - total).exp() * logits).sum(-1, keepdim=True))[:m, 0]
        out.append((probability, logits.argmax(-1)[:m], entropy))
    p, top, h = (torch.cat(z) for z in zip(*out, strict=True))
    return p, top, h


def _prompt_nll(target: LM, hidden: torch.Tensor, ids: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Return nats per token of each prompt, its first token and the mark of the assistant left out."""
    inside = torch.arange(ids.shape[1] - 1, device=ids.device)[None] < first[:, None] - 2
    row, at = inside.nonzero(as_tuple=True)
    p, _, _ = read(hidden[row, at], target.embed.weight, ids[row, at + 1])
    total = p.new_zeros(len(ids)).index_add_(0, row, -p.clamp_min(1e-30).log())
    return total / inside.sum(1)


def measure(
    data: Data,
    target: LM,
    drafters: dict[str, torch.nn.Module],
    made: dict[str, np.ndarray],
    *,
    batch: int,
    device: str,
) -> dict[str, np.ndarray]:
    """Return the arrays of acceptance.npz; prompts in the order of the test rows."""
    test = np.flatnonzero(data.test)
    n, where = len(test), {int(r): i for i, r in enumerate(test)}
    shape = (len(KINDS), len(data.mixes), len(MODES), len(KS), n)
    sums = {name: torch.zeros(*shape) for name in ("tokens", "steps")}
    counts = {name: torch.zeros(*shape, KS[-1]) for name in ("tried", "kept")}
    entropy, weight, nll, tokens = torch.zeros(n), torch.zeros(n), torch.zeros(n), torch.zeros(n, len(MODES))
    for j, mode in enumerate(MODES):
        rows, spans = made[f"{mode}_row"], np.split(made[f"{mode}_ids"], made[f"{mode}_starts"][1:-1])
        firsts, sizes = np.array([len(data.prompts[r]) for r in rows]), np.array([len(s) for s in spans])
        slots = torch.tensor([where[int(r)] for r in rows])
        found = torch.zeros(len(drafters), len(rows), int(sizes.max()), KS[-1], device=device)
        order = np.argsort(firsts + sizes, kind="stable")
        for start in range(0, len(order), batch):
            part = order[start : start + batch]
            texts = [np.concatenate([data.prompts[rows[i]], spans[i]]) for i in part]
            here, lengths, h, given = chances(target, drafters, texts, firsts[part], mode, device)
            for d, a in enumerate(here.values()):
                found[d, torch.from_numpy(part).to(device), : a.shape[1]] = a
            if mode == "sampled":
                entropy.index_add_(0, slots[part], (h * lengths).cpu())
                weight.index_add_(0, slots[part], lengths.cpu().float())
                nll[slots[part]] = given.cpu()
        tokens[:, j].index_add_(0, slots, torch.from_numpy(sizes).float())
        lengths = torch.from_numpy(sizes).to(device)
        for d, name in enumerate(drafters):
            mix, kind = name.split("/")
            for c, k in enumerate(KS):
                t, s, tried, kept = (z.cpu() for z in expect(found[d], lengths, k))
                at = (KINDS.index(kind), data.mixes.index(mix), j, c)
                sums["tokens"][at].index_add_(0, slots, t)
                sums["steps"][at].index_add_(0, slots, s)
                counts["tried"][at][:, :k].index_add_(0, slots, tried)
                counts["kept"][at][:, :k].index_add_(0, slots, kept)
    al = torch.empty(shape)
    for c, k in enumerate(KS):
        flat = [counts[name][:, :, :, c, :, :k].reshape(-1, k) for name in ("tried", "kept")]
        al[:, :, :, c] = acceptance_length(*flat).view(*shape[:3], n)
    served = torch.where(sums["steps"] > 0, sums["tokens"] / sums["steps"], torch.nan)
    return {
        "row": test,
        "al": al.numpy().astype(np.float32),
        "al_served": served.numpy().astype(np.float32),
        "entropy": (entropy / weight).numpy(),
        "prompt_nll": nll.numpy(),
        "tokens": tokens.numpy(),
        "mixes": np.array(data.mixes),
        "kinds": np.array(KINDS),
        "ks": np.array(KS),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(".study"), help="folder that prepare.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder of the seed that train.py wrote")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if (args.out / "acceptance.npz").exists():
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data, size, began = Data.load(args.data / "tokens.npz"), TINY if args.tiny else FULL, time.perf_counter()
    target = load_target(args.out / "target.pt", data, size, device)
    drafters = load_drafters(args.out / "drafters.pt", data, size, device)
    made = dict(np.load(args.out / "answers.npz"))
    found = measure(data, target, drafters, made, batch=8 if args.tiny else 128, device=device)
    save_as(args.out / "acceptance.npz", lambda out: np.savez_compressed(out, **found))
    k = KS.index(4)
    print(f"measured in {time.perf_counter() - began:.1f} s; mean acceptance length at K = 4:")
    for i, kind in enumerate(KINDS):
        for j, mode in enumerate(MODES):
            means = (f"{mix} {np.nanmean(found['al'][i, m, j, k]):.2f}" for m, mix in enumerate(data.mixes))
            print(f"  {kind} {mode}: {', '.join(means)}")


if __name__ == "__main__":
    main()
