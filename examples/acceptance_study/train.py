"""One seed of the study: target, its own answers to every prompt, drafters for every mix. Resumable stage by stage.

    OUT/target.pt       language model on all training rows (those of kept-out sources too)
    OUT/answers.npz     the target's answers: two sampled ones per training row of the mixes, for the test prompts one
                        greedy and three sampled ones (the house style: nobody else's words reach a drafter)
    OUT/drafters.pt     per mix one Head and one small LM, trained to the served distribution (softmax of the target's
                        logits at temperature 0.7) on the answers to the mix's prompts, the same steps for each mix

A stage whose file is there is not done again. Files are written beside their name and renamed.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from models import ASSISTANT, END, FULL, LM, MAX_NEW, TEMPERATURE, TINY, Data, Head, autocast, padded

KINDS = ("head", "small")
BUCKET = 64  # texts are padded to a multiple of this
UNROLL = 3  # steps of the chain that the head is trained on
MAX_ASKED = 4096  # positions per batch that enter the loss: the softmax over the vocabulary costs more than the models
SAMPLES_TRAIN, SAMPLES_TEST = 2, 3


def schedule(step: int, steps: int, peak: float) -> float:
    """Return the learning rate: a short linear rise, then half a cosine to a tenth."""
    rise = max(1, steps // 20)
    if step < rise:
        return peak * (step + 1) / rise
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise))))


def optimizer_of(parameters: Any, peak: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(list(parameters), lr=peak, betas=(0.9, 0.95), weight_decay=0.1)


def advance(optimizer: torch.optim.Optimizer, loss: torch.Tensor, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 1.0)
    optimizer.step()


# ---------------------------------------------------------------------------------------------------------- target


def train_target(data: Data, size: dict[str, Any], *, steps: int, batch: int, seed: int, device: str) -> LM:
    """Return the target, trained on packed texts of 512 tokens; prompts are learned as well as answers."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 1])
    end = np.array([END], dtype=np.uint16)
    texts = [
        np.concatenate([data.prompts[i], data.answers[i], end]) if len(data.answers[i]) else data.prompts[i][:-1]
        for i in np.flatnonzero(data.free)
    ]
    model = LM(data.n_vocab, size["target"], dropout=0.1).to(device)
    optimizer = optimizer_of(model.parameters(), 1.5e-3)
    stream, width = _packed(texts, rng), 513
    for step in range(steps):
        ids = torch.from_numpy(np.stack([next(stream) for _ in range(batch)])[:, :width].astype(np.int64)).to(device)
        with autocast(device):
            logits = model.logits(model(ids[:, :-1]))
            loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        advance(optimizer, loss, schedule(step, steps, 1.5e-3))
        if step % 100 == 0 or step == steps - 1:
            print(f"target step {step} loss {loss.item():.3f}", flush=True)
    return model.eval()


def _packed(texts: list[np.ndarray], rng: np.random.Generator, width: int = 513) -> Iterator[np.ndarray]:
    """Yield blocks of texts strung together in ever new orders."""
    rest = np.zeros(0, dtype=np.uint16)
    while True:
        rest = np.concatenate([rest, *(texts[i] for i in rng.permutation(len(texts)))])
        whole = len(rest) // width
        yield from rest[: whole * width].reshape(whole, width)
        rest = rest[whole * width :]


@torch.no_grad()
def unseen_loss(model: LM, data: Data, device: str, n: int = 512) -> float:
    """Return nats per token of real answers to test prompts: whether the target learned more than to recite."""
    rows = [i for i in np.flatnonzero(data.test) if len(data.answers[i])][:n]
    total = count = 0.0
    for start in range(0, len(rows), 64):
        part = rows[start : start + 64]
        ids, lengths = padded([np.concatenate([data.prompts[i], data.answers[i]]) for i in part], device)
        with autocast(device):
            logits = model.logits(model(ids[:, :-1])).float()
        loss = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        column = torch.arange(ids.shape[1] - 1, device=device)[None] + 1
        first = torch.tensor([len(data.prompts[i]) for i in part], device=device)
        inside = (column >= first[:, None]) & (column < lengths[:, None])
        total, count = total + float((loss * inside).sum()), count + float(inside.sum())
    return total / max(count, 1)


# --------------------------------------------------------------------------------------------------------- answers


def answer(
    model: LM, texts: Sequence[np.ndarray], *, temperature: float, max_new: int, batch: int, seed: int, device: str
) -> list[np.ndarray]:
    """Return the target's answer to each text, batches of similar length."""
    rng = torch.Generator(device).manual_seed(seed)
    order = np.argsort([len(t) for t in texts], kind="stable")
    out: list[np.ndarray] = [np.zeros(0, dtype=np.uint16)] * len(texts)
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        with autocast(device):
            found = model.generate([texts[i] for i in part], temperature=temperature, max_new=max_new, rng=rng)
        for i, a in zip(part, found, strict=True):
            out[i] = a
    return out


def answers(model: LM, data: Data, *, max_new: int, batch: int, seed: int, device: str) -> dict[str, np.ndarray]:
    """Return all answers: `*_row` (index of the prompt), `*_ids` flat, `*_starts`; test answers: greedy first."""
    train, test = np.flatnonzero(data.member.any(1)), np.flatnonzero(data.test)
    jobs = {
        "train": (np.repeat(train, SAMPLES_TRAIN), TEMPERATURE),
        "greedy": (test, 0.0),
        "sampled": (np.repeat(test, SAMPLES_TEST), TEMPERATURE),
    }
    out: dict[str, np.ndarray] = {}
    for k, (name, (rows, temperature)) in enumerate(jobs.items()):
        texts = [data.prompts[i] for i in rows]
        options = {"max_new": max_new, "batch": batch, "seed": seed * 10 + k, "device": device}
        found = answer(model, texts, temperature=temperature, **options)
        out[f"{name}_row"] = rows
        out[f"{name}_ids"] = np.concatenate(found)
        out[f"{name}_starts"] = np.cumsum([0, *map(len, found)])
    return out


# -------------------------------------------------------------------------------------------------------- drafters


def train_drafter(
    kind: str,
    target: LM,
    texts: list[np.ndarray],
    firsts: np.ndarray,
    size: dict[str, Any],
    *,
    steps: int,
    batch_tokens: int,
    seed: int,
    device: str,
) -> torch.nn.Module:
    """Return a drafter trained on texts whose answers begin at `firsts`.

    The loss is the cross-entropy to the target's served distribution over answer tokens.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 2])
    n_vocab = target.embed.num_embeddings
    drafter = (Head(size["head"]) if kind == "head" else LM(n_vocab, size["small"])).to(device)
    peak = 1e-3 if kind == "head" else 2e-3
    optimizer = optimizer_of(drafter.parameters(), peak)
    batches = _batches(np.array([len(t) for t in texts]), batch_tokens, rng)
    for step in range(steps):
        part = next(batches)
        ids, _ = padded([texts[i] for i in part], device, multiple=BUCKET)
        asked = [np.arange(firsts[i], len(texts[i]) - 1) for i in part]
        row = np.repeat(np.arange(len(part)), [len(a) for a in asked])
        # Position p predicts token p + 1. The answer's first token comes with the prefill: no drafter is asked for it.
        column, since = np.concatenate(asked), np.concatenate([a - a[0] for a in asked])
        chosen = np.sort(rng.choice(len(row), MAX_ASKED, replace=len(row) < MAX_ASKED))
        row, column, since = (torch.from_numpy(z[chosen]).to(device) for z in (row, column, since))
        with autocast(device):
            with torch.no_grad():
                hidden = target(ids)
                wanted = (target.logits(hidden[row, column]).float() / TEMPERATURE).softmax(-1)
            if kind == "head":
                loss = ids.new_zeros((), dtype=torch.float32)
                for i, said in enumerate(drafter.unroll(hidden, target.embed(ids).detach(), UNROLL)):
                    logits = F.linear(said[row, column], target.embed.weight.detach())
                    each = F.cross_entropy(logits.float(), wanted, reduction="none")
                    began = since >= i  # chains that began inside the answer
                    loss = loss + (each * began).sum() / began.sum().clamp_min(1) / UNROLL
            else:
                loss = F.cross_entropy(drafter.logits(drafter(ids)[row, column]).float(), wanted)
        advance(optimizer, loss, schedule(step, steps, peak))
    print(f"  {kind}: last loss {loss.item():.3f}", flush=True)
    return drafter.eval()


def _batches(lengths: np.ndarray, batch_tokens: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield indices of texts of similar length in ever new random batches of `batch_tokens`, padding included.

    A batch is padded to a multiple of `BUCKET` and always full, so that there are few shapes: a GPU is slow at new ones
    (185 ms instead of 35 ms a step, measured). What is left over of a bucket goes to the next longer one.
    """
    bucket = -(-lengths // BUCKET)
    while True:
        batches, rest = [], np.zeros(0, dtype=np.int64)
        for b in range(1, int(bucket.max()) + 1):
            own = np.concatenate([rest, rng.permutation(np.flatnonzero(bucket == b))])
            n = max(1, batch_tokens // (b * BUCKET))
            whole = len(own) // n
            batches += [(b, part) for part in own[: whole * n].reshape(whole, n)]
            rest = own[whole * n :]
        if len(rest):
            batches.append((b, np.concatenate([rest, rng.choice(len(lengths), n - len(rest))])))
        for i in rng.permutation(len(batches)):
            yield batches[i][1]


def trained_drafters(
    data: Data, target: LM, made: dict[str, np.ndarray], size: dict[str, Any], *, options: dict[str, Any]
) -> dict[str, Any]:
    """Return state dicts by "mix/kind"."""
    rows = made["train_row"]
    spans = np.split(made["train_ids"], made["train_starts"][1:-1])
    out = {}
    for m, mix in enumerate(data.mixes):
        own = [j for j in np.flatnonzero(data.member[rows, m]) if len(spans[j]) > 1]
        texts = [np.concatenate([data.prompts[rows[j]], spans[j]]) for j in own]
        firsts = np.array([len(data.prompts[rows[j]]) for j in own])
        for kind in KINDS:
            began = time.perf_counter()
            drafter = train_drafter(kind, target, texts, firsts, size, **options)
            out[f"{mix}/{kind}"] = {k: v.to(torch.bfloat16) for k, v in drafter.state_dict().items()}
            print(f"mix {mix}: {kind} on {len(texts)} answers, {time.perf_counter() - began:.1f} s", flush=True)
    return out


# ------------------------------------------------------------------------------------------------------------ main


def save_as(path: Path, write: Any) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with open(scratch, "wb") as out:
        write(out)
    os.replace(scratch, path)


def load_target(path: Path, data: Data, size: dict[str, Any], device: str) -> LM:
    model = LM(data.n_vocab, size["target"], dropout=0.1)
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.to(device).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(".study"), help="folder that prepare.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder of this seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="models and steps of a dry run on a CPU")
    parser.add_argument("--target-steps", type=int, default=900)
    parser.add_argument("--drafter-steps", type=int, default=400)
    args = parser.parse_args()
    assert ASSISTANT  # prompts end with it, see models.Data
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    data, size = Data.load(args.data / "tokens.npz"), TINY if args.tiny else FULL
    batch, max_new, many = (4, 12, 64) if args.tiny else (64, MAX_NEW, 2048)
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()

    def clock(what: str) -> None:
        print(f"[{time.perf_counter() - began:6.1f} s] {what}", flush=True)

    path = args.out / "target.pt"
    if not path.exists():
        steps = {"steps": args.target_steps, "batch": batch}
        target = train_target(data, size, **steps, seed=args.seed, device=device)
        save_as(path, lambda out: torch.save(target.state_dict(), out))
    target = load_target(path, data, size, device)
    clock(f"target; {unseen_loss(target, data, device):.3f} nats per token on real answers to test prompts")

    path = args.out / "answers.npz"
    if not path.exists():
        made = answers(target, data, max_new=max_new, batch=many, seed=args.seed, device=device)
        save_as(path, lambda out: np.savez_compressed(out, **made))
    made = dict(np.load(path))
    clock(f"answers; mean length {np.diff(made['sampled_starts']).mean():.1f} sampled, greedy "
          f"{np.diff(made['greedy_starts']).mean():.1f}")  # fmt: skip

    path = args.out / "drafters.pt"
    if not path.exists():
        tokens = 1024 if args.tiny else 32_768
        options = {"steps": args.drafter_steps, "batch_tokens": tokens, "seed": args.seed, "device": device}
        states = trained_drafters(data, target, made, size, options=options)
        save_as(path, lambda out: torch.save(states, out))
    clock("drafters")


if __name__ == "__main__":
    main()
