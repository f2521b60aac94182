"""The vectors of a sentence-transformers model, as fast as the device allows: the library's numbers, larger batches.

    texts, longest first -> token ids (CPU, ahead of the device) -> batches of N tokens -> vectors, copied back in parts

`encode` of the library takes 32 texts at a time: it tokenises them while the GPU waits, copies, computes for a
millisecond, and waits for the answer. Here a thread tokenises the next 2,048 texts while these are computed; ids travel
unpadded, from pinned memory, and are padded on the device; a batch holds texts of about the same length up to a number
of tokens, so hardly any of it is padding. The model itself is called as the library calls it, modules and all.

That is right only for models whose tokens are plain text in, ids out. So each model shows it first: where the ids or
vectors of a few texts are not those of the library, the library's own `encode` does the work (`Fast.of` is None).

On a GPU weights are bfloat16 (as `embedders` loads them) and batches decide the last bits of a product: a text's vector
is the same for the same texts on the same machine, and beside other texts within rounding (cosine 0.9999).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from promptkit.embedders import unit_rows
from promptkit.errors import ResourceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Tokens = tuple[NDArray[np.int32], NDArray[np.int64]]  # ids of all texts in one row, and how many each text has

CHUNK = 2048  # texts that are tokenised, and whose vectors are copied back, at once
BATCH_TOKENS = {"cpu": 2048, "cuda": 131_072}  # of one batch: what stays in a cache; what hides the start of kernels
_MULTIPLE = 8  # batches are padded to it: attention kernels want aligned masks
_CHARACTERS = 8  # per token that a model can take are tokenised first; if these were too few tokens, the whole text
# They tell apart models that strip, lower, prompt or truncate in another way than ours. The long one is too long for
# any model; only its ids are compared.
_PROBES = ("", " ", "  Two  spaces ", "ÄÖ ﬁ 漢字\n\tdef f(x):\n", "One sentence, plainly.")
_LONG = "many Words 12 " * 8192


@dataclass(frozen=True)
class Fast:
    """A model that can be fed with token ids, and how."""

    model: Any
    tokenizer: Any  # of the `tokenizers` package, without padding, cutting at `limit`
    limit: int | None  # tokens of a text
    prompt: str  # put before each text, as the model's authors say
    features: dict[str, Any]  # what the model wants beside ids and mask

    @classmethod
    def of(cls, model: Any) -> Fast | None:
        """Return the model ready to be fed, or None where that would give other vectors than its own `encode`."""
        from tokenizers import Tokenizer

        read = getattr(model, "preprocess", None) or getattr(model, "tokenize", None)
        backend = getattr(getattr(model, "tokenizer", None), "backend_tokenizer", None)
        if read is None or backend is None:
            return None
        tokenizer = Tokenizer.from_str(backend.to_str())
        tokenizer.no_padding()
        tokenizer.no_truncation()
        limit = model.max_seq_length
        limit = int(limit) if limit and limit < 1 << 20 else None  # "no limit" is written as 10^30
        if limit:
            tokenizer.enable_truncation(limit)
        prompt = (getattr(model, "prompts", None) or {}).get(getattr(model, "default_prompt_name", None)) or ""
        probes = (*_PROBES, _LONG) if limit else _PROBES
        try:
            wanted = dict(read([prompt + text for text in probes]))
        except (TypeError, ValueError, KeyError, AttributeError, NotImplementedError):
            return None  # a chain that wants more than a text
        ids, mask = (np.asarray(wanted.pop(name, np.zeros(0))) for name in ("input_ids", "attention_mask"))
        types = wanted.pop("token_type_ids", None)
        if any(hasattr(v, "shape") for v in wanted.values()) or (types is not None and bool(np.asarray(types).any())):
            return None
        features = wanted | ({} if types is None else {"token_type_ids": None})
        if prompt and any(not getattr(module, "include_prompt", True) for module in model):
            return None  # the prompt's tokens are left out of the mean: the library knows how many
        fast = cls(model, tokenizer, limit, prompt, features)
        flat, lengths = fast.tokens(probes)
        real = np.arange(int(lengths.max())) < lengths[:, None]
        padded = np.zeros(real.shape, dtype=np.int64)
        padded[real] = flat
        if mask.shape != real.shape or (mask != real).any() or (ids * mask != padded).any():
            return None
        A = unit_rows(model.encode(list(_PROBES), show_progress_bar=False))
        B = unit_rows(fast.encode(_PROBES))
        alike = A.shape == B.shape and float((A * B).sum(axis=1).min()) > (0.99999 if _is_float32(model) else 0.999)
        return fast if alike else None

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Return the ids of all texts in one row, special tokens included, and how many each text has.

        Tokenising a conversation of 30,000 characters to keep its first 256 tokens is most of the work, so only its
        head is read, cut before white space (where tokenisers cut too). A head with too few tokens is read whole.
        """
        texts = [self.prompt + text for text in texts]
        limit = self.limit if self.limit and self.tokenizer.pre_tokenizer is not None else None
        heads = [_head(text, _CHARACTERS * limit) for text in texts] if limit else texts
        found = self.tokenizer.encode_batch_fast(heads)
        if limit:
            whole = [i for i, head in enumerate(heads) if len(head) < len(texts[i]) and len(found[i]) < limit]
            for i, e in zip(whole, self.tokenizer.encode_batch_fast([texts[i] for i in whole]), strict=True):
                found[i] = e
        lengths = np.array([len(e) for e in found], dtype=np.int64)
        ids = chain.from_iterable(e.ids for e in found)
        return np.fromiter(ids, dtype=np.int32, count=int(lengths.sum())), lengths

    def encode(self, texts: Sequence[str], *, batch_tokens: int | None = None) -> NDArray[np.float32]:
        """Return the vectors (n, d), float32, as the model's own normalisation leaves them."""
        import torch

        parts = chunks(texts)
        device = torch.device(self.model.device)
        batches = _Batches(self, device, batch_tokens or BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"]))
        rows, found = [], []
        with torch.inference_mode():
            last = None
            for part, (ids, lengths) in zip(parts, self._ahead(texts, parts), strict=True):
                by_length = np.argsort(-lengths, kind="stable")
                copy = batches.run(ids, (np.cumsum(lengths) - lengths)[by_length], lengths[by_length])
                rows.append(part[by_length])
                if last is not None:  # while the device computes the next
                    found.append(last())
                last = copy
            if last is not None:
                found.append(last())
        out = np.empty((len(texts), found[0].shape[1] if found else 0), dtype=np.float32)
        for at, vectors in zip(rows, found, strict=True):
            out[at] = vectors
        return out

    def _ahead(self, texts: Sequence[str], parts: list[NDArray[np.int64]]) -> Iterator[Tokens]:
        """Yield the ids of each part, the next three being tokenised meanwhile (outside the interpreter lock).

        Two at a time: the cores go on with one while the other's ids are made into an array.
        """
        with ThreadPoolExecutor(2) as pool:
            waiting = []
            for part in parts:
                waiting.append(pool.submit(self.tokens, [texts[i] for i in part]))
                if len(waiting) > 3:
                    yield waiting.pop(0).result()
            for found in waiting:
                yield found.result()


def chunks(texts: Sequence[str]) -> list[NDArray[np.int64]]:
    """Return which texts are computed together: up to CHUNK of about the same length, longest first.

    No batch spans two chunks, so a chunk's vectors have the same bytes whoever computes it, beside whatever others.
    """
    order = np.argsort([-len(text) for text in texts], kind="stable")
    return [order[at : at + CHUNK] for at in range(0, len(order), CHUNK)]


class _Batches:
    """Token ids through the model, longest text first; a batch that does not fit halves those that follow."""

    def __init__(self, fast: Fast, device: Any, batch_tokens: int) -> None:
        self.fast, self.device, self.batch_tokens = fast, device, batch_tokens
        self.pinned = device.type == "cuda"
        self.pad = int(getattr(fast.model.tokenizer, "pad_token_id", None) or 0)

    def run(
        self, ids: NDArray[np.int32], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> Callable[[], NDArray[np.float32]]:
        """Start the work; return what waits for it and returns the vectors, in the order of `starts` and `lengths`."""
        import torch

        flat, start, size = self._sent(ids), self._sent(starts), self._sent(lengths)
        out, at = None, 0
        while at < len(lengths):
            width = -int(-lengths[at] // _MULTIPLE) * _MULTIPLE
            width = min(width, self.fast.limit or width)
            n = min(max(1, self.batch_tokens // width), len(lengths) - at)
            found = None
            try:
                found = self._vectors(flat, start[at : at + n], size[at : at + n], width)
            except torch.cuda.OutOfMemoryError as error:
                if n == 1:
                    raise ResourceError(
                        f"out of memory on {self.device} with one text of {width} tokens",
                        hint="free some of its memory, or embed on the CPU: device cpu",
                    ) from error
            if found is None:  # here, since the error held on to what the batch had taken
                self.batch_tokens = width * (n // 2)
                torch.cuda.empty_cache()
                continue
            if out is None:
                out = torch.empty((len(lengths), found.shape[1]), dtype=torch.float32, device=self.device)
            out[at : at + n] = found
            at += n
        assert out is not None
        if not self.pinned:
            return out.numpy
        host = torch.empty(out.shape, dtype=torch.float32, pin_memory=True).copy_(out, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(self.device))

        def wait() -> NDArray[np.float32]:
            done.synchronize()
            return np.array(host.numpy())  # pinned memory goes back

        return wait

    def _sent(self, values: NDArray[Any]) -> Any:
        import torch

        found = torch.from_numpy(values)
        return found.pin_memory().to(self.device, non_blocking=True) if self.pinned else found

    def _vectors(self, flat: Any, start: Any, size: Any, width: int) -> Any:
        """Return the vectors of one batch: rows of `flat` are padded here, on the device."""
        import torch

        place = torch.arange(width, device=self.device)
        mask = place < size[:, None]
        at = (start[:, None] + place).clamp_(max=len(flat) - 1)
        ids = torch.where(mask, flat[at].long(), self.pad)
        features = {"input_ids": ids, "attention_mask": mask.long(), **self.fast.features}
        if "token_type_ids" in features:
            features["token_type_ids"] = torch.zeros_like(ids)
        found = self.fast.model(features)["sentence_embedding"]
        return found[:, : getattr(self.fast.model, "truncate_dim", None)].float()


def _head(text: str, at_most: int) -> str:
    """Return the first `at_most` characters or a little more, up to white space after a word; the text if short."""
    if len(text) <= at_most:
        return text
    end = next((i for i in range(at_most, min(len(text), at_most + 256)) if text[i].isspace()), len(text))
    return text[:end].rstrip() if end < len(text) else text


def _is_float32(model: Any) -> bool:
    import torch

    return all(p.dtype == torch.float32 for p in model.parameters() if p.is_floating_point())
