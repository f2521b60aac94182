"""The three models of the study, and what they read. PyTorch only; the same code runs on a CPU (dry run) and a GPU.

    LM      a plain transformer: the target, and the small drafter that knows nothing of the target
    Head    one layer over [target's last hidden state at t - 1, embedding of the token at t], as EAGLE's drafters
            (Li et al. 2024, arXiv:2401.15077); from its second step on it reads its own output, trained for that by
            unrolling (EAGLE-3's training-time test, arXiv:2503.01840). It embeds and scores by the target's matrix.

A text is  <|user|> prompt <|assistant|> answer <|end|>.  Weights are float32, arithmetic is bfloat16 under autocast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

END, USER, ASSISTANT = 0, 1, 2
MAX_NEW = 128  # tokens generated per answer
TEMPERATURE = 0.7  # at which the target is served; drafters are trained towards that distribution


@dataclass(frozen=True)
class Size:
    """Shape of a transformer: width, layers, heads."""

    d: int
    layers: int
    heads: int


FULL = {"target": Size(512, 8, 8), "head": Size(512, 1, 8), "small": Size(256, 2, 4)}
TINY = {"target": Size(32, 2, 2), "head": Size(32, 1, 2), "small": Size(16, 1, 2)}


def rotate(x: Tensor, position: Tensor) -> Tensor:
    """Return x (batch, heads, time, width) turned by rotary position embedding; position (batch or 1, time)."""
    half = x.shape[-1] // 2
    rate = 10_000 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = position[:, None, :, None].float() * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Block(nn.Module):
    """Pre-norm attention and MLP; `qkv` and `finish` stand apart because each caller attends in its own way."""

    def __init__(self, size: Size, dropout: float = 0.0) -> None:
        super().__init__()
        d = size.d
        self.heads, self.dropout = size.heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(d, bias=False), nn.LayerNorm(d, bias=False)
        self.to_qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def qkv(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n, t, d = x.shape
        q, k, v = self.to_qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return rotate(q, position), rotate(k, position), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        drop = self.dropout if self.training else 0.0
        n, _, t, _ = attended.shape
        x = x + F.dropout(self.proj(attended.transpose(1, 2).reshape(n, t, -1)), drop, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), drop, self.training)


class LM(nn.Module):
    """A decoder-only transformer with tied embeddings; `forward` gives the last hidden states, `logits` scores them."""

    def __init__(self, n_vocab: int, size: Size, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(n_vocab, size.d)
        self.blocks = nn.ModuleList(Block(size, dropout) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.d, bias=False)
        initialise(self)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed.weight)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        position = torch.arange(ids.shape[1], device=ids.device)[None]
        for block in self.blocks:
            q, k, v = block.qkv(x, position)
            x = block.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.norm(x)

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[np.ndarray], *, temperature: float, max_new: int, rng: torch.Generator
    ) -> list[np.ndarray]:
        """Return one answer per text in `prompts` (ids, not empty); greedy at temperature 0; the end mark is kept."""
        device = self.embed.weight.device
        ids, lengths = padded(prompts, device, multiple=32)
        n, longest = ids.shape
        rows, total = torch.arange(n, device=device), longest + max_new
        caches, x = [], self.embed(ids)
        position = torch.arange(longest, device=device)[None]
        for block in self.blocks:
            q, k, v = block.qkv(x, position)
            x = block.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))
            caches.append([F.pad(t, (0, 0, 0, max_new)).contiguous() for t in (k, v)])
        hidden = self.norm(x[rows, lengths - 1])
        out = torch.full((n, max_new), END, device=device)
        alive, column = torch.ones(n, dtype=torch.bool, device=device), torch.arange(total, device=device)
        for step in range(max_new):
            logits = self.logits(hidden).float()
            if temperature > 0:  # Gumbel's trick: one pass, no cumulative sum over the vocabulary
                noise = torch.empty_like(logits).exponential_(generator=rng)
                token = (logits / temperature - noise.clamp_min(1e-20).log()).argmax(-1)
            else:
                token = logits.argmax(-1)
            out[:, step] = torch.where(alive, token, END)
            alive &= token != END
            if step + 1 == max_new or (step % 8 == 7 and not alive.any()):
                break
            at = lengths + step
            x = self.embed(token)[:, None]
            seen = (column[None] <= at[:, None])[:, None, None]
            for block, (keys, values) in zip(self.blocks, caches, strict=True):
                q, k, v = block.qkv(x, at[:, None])
                keys[rows, :, at], values[rows, :, at] = k[:, :, 0].to(keys.dtype), v[:, :, 0].to(values.dtype)
                x = block.finish(x, F.scaled_dot_product_attention(q, keys, values, attn_mask=seen))
            hidden = self.norm(x[:, 0])
        answers = out.cpu().numpy().astype(np.uint16)
        ends = np.where((answers == END).any(1), (answers == END).argmax(1) + 1, max_new)
        return [a[:e] for a, e in zip(answers, ends, strict=True)]


class Head(nn.Module):
    """Drafts from the target's features; `unroll` runs every chain of a text at once.

    Output i at position p is what the i-th step of the chain that began i - 1 tokens earlier says after reading token
    p: it reads output i - 1 at p - 1 (step 1: the target's hidden state there) and the token at p. It attends to the
    step-1 entries up to p - i + 1, where the target's features end, and to its own chain's entries since.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.join = nn.Linear(2 * size.d, size.d, bias=False)
        self.norm_h, self.norm_e = nn.LayerNorm(size.d, bias=False), nn.LayerNorm(size.d, bias=False)
        self.block, self.norm = Block(size), nn.LayerNorm(size.d, bias=False)
        initialise(self)

    def unroll(self, hidden: Tensor, embedded: Tensor, steps: int) -> Iterator[Tensor]:
        """Yield `steps` times what the head says (batch, time, d), to be scored by the target's vocabulary matrix."""
        t = hidden.shape[1]
        position = torch.arange(t, device=hidden.device)[None]
        chain: list[tuple[Tensor, Tensor]] = []
        said, e = hidden, self.norm_e(embedded)
        for i in range(1, steps + 1):
            before = F.pad(said, (0, 0, 1, 0))[:, :t]
            x = self.join(torch.cat([self.norm_h(before), e], dim=-1))
            q, k, v = self.block.qkv(x, position)
            if i == 1:
                keys, values = k, v
                attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                chain.append((k, v))
                attended = self._attend(q, keys, values, chain)
            said = self.norm(self.block.finish(x, attended))
            yield said

    @staticmethod
    def _attend(q: Tensor, keys: Tensor, values: Tensor, chain: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return attention to the true entries up to p - len(chain) and to one entry of each step of the chain."""
        t, back = q.shape[2], len(chain)
        ones = torch.ones(t, t, dtype=torch.bool, device=q.device)
        # Step j of the chain that stands at p now stood at p - (steps since): one diagonal each.
        masks = [ones.tril(-back), *(ones.tril(-s).triu(-s) for s in range(back - 1, -1, -1))]
        k, v = (torch.cat([true, *own], dim=2) for true, *own in zip((keys, values), *chain, strict=True))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.cat(masks, dim=1))


def initialise(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)


def padded(texts: Sequence[np.ndarray], device: Any, *, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """Return ids (n, longest), padded on the right with the end mark, and lengths (n,).

    `multiple` rounds the longest up, so that few shapes occur and the GPU's allocator finds its blocks again.
    """
    lengths = np.array([len(t) for t in texts])
    ids = np.full((len(texts), -(-int(lengths.max()) // multiple) * multiple), END, dtype=np.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    return torch.from_numpy(ids).to(device), torch.from_numpy(lengths).to(device)


@dataclass(frozen=True)
class Data:
    """tokens.npz as lists: `prompts[i]` with its marks, `answers[i]` without; test, free (n,), member (n, mixes)."""

    prompts: list[np.ndarray]
    answers: list[np.ndarray]
    test: np.ndarray
    free: np.ndarray
    member: np.ndarray
    mixes: list[str]
    n_vocab: int

    @classmethod
    def load(cls, path: Path) -> Data:
        with np.load(path) as z:
            prompts = np.split(z["prompt_ids"], z["prompt_starts"][1:-1])
            answers = np.split(z["answer_ids"], z["answer_starts"][1:-1])
            marks = [np.array([m], dtype=np.uint16) for m in (USER, ASSISTANT)]
            prompts = [np.concatenate([marks[0], p, marks[1]]) for p in prompts]
            return cls(prompts, answers, z["test"], z["free"], z["member"], z["mixes"].tolist(), int(z["n_vocab"]))


def autocast(device: str) -> Any:
    return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")
