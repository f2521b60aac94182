"""Small tokenizers in the real file formats: 256 bytes, a few merges, and the real special names."""

from __future__ import annotations

import base64
import json
from pathlib import Path

WORDS = ["us", "er", "user", "as", "si", "st", "an", "assist", "ant", "assistant", "sy", "sys", "te", "em", "system",
         "to", "ol", "tool", "th", "he", " t", " the", "in", "ing", " a", "!!", "!!!!", "\n\n"]  # fmt: skip

KIMI = {
    "[BOS]": 1000, "[EOS]": 1001, "<|im_end|>": 1002, "<|im_user|>": 1003, "<|im_assistant|>": 1004,
    "<|im_system|>": 1010, "<|tool_calls_section_begin|>": 1011, "<|tool_calls_section_end|>": 1012,
    "<|tool_call_begin|>": 1013, "<|tool_call_argument_begin|>": 1014, "<|tool_call_end|>": 1015,
    "<|im_middle|>": 1017, "<think>": 1022, "</think>": 1023, "[PAD]": 1255,
}  # fmt: skip
CHATML = {
    "<|endoftext|>": 600, "<|im_start|>": 601, "<|im_end|>": 602, "<tool_call>": 603, "</tool_call>": 604,
    "<tool_response>": 605, "</tool_response>": 606, "<think>": 607, "</think>": 608,
}  # fmt: skip


def ranks() -> dict[bytes, int]:
    """`!` is id 0, as in all vocabularies of this family; the other bytes follow, then the words."""
    order = [33, *(b for b in range(256) if b != 33)]
    table = {bytes([b]): i for i, b in enumerate(order)}
    for word in WORDS:
        table.setdefault(word.encode(), len(table))
    return table


def write_tiktoken(folder: Path, specials: dict[str, int], *, pad: str | None = None, eos: str | None = None) -> Path:
    """Write tiktoken.model and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{base64.b64encode(t).decode()} {r}\n" for t, r in ranks().items()]
    (folder / "tiktoken.model").write_text("".join(lines))
    config = {"added_tokens_decoder": {str(i): {"content": s, "special": True} for s, i in specials.items()}}
    config.update({k: v for k, v in (("pad_token", pad), ("eos_token", eos)) if v})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_kimi(folder: Path) -> Path:
    return write_tiktoken(folder, KIMI, pad="[PAD]", eos="[EOS]")


def write_chatml(folder: Path) -> Path:
    return write_tiktoken(folder, CHATML, pad="<|endoftext|>", eos="<|im_end|>")
