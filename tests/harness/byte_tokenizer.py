"""A tokenizer folder for clients that insist on one: each byte of the text is a token, and no model is its owner.

    python tests/harness/byte_tokenizer.py DIR

It loses nothing (decoding gives the bytes back), needs no download and counts as `mock_server.py` counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

CHAT = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


def write(directory: Path) -> Path:
    """Write tokenizer.json, tokenizer_config.json and the config.json that model loaders look for."""
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = {c: i for i, c in enumerate(byte_characters())} | {"<end>": 256}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    files = {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": 256, "content": "<end>", **special}],
            "normalizer": None,
            "pre_tokenizer": level,
            "post_processor": None,
            "decoder": level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": vocabulary,
                "merges": [],
            },
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<end>",
            "model_max_length": 1_000_000,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT,
        },
        "config.json": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 257, **dict.fromkeys(("bos_token_id", "eos_token_id"), 256)},
    }
    for name, document in files.items():
        (directory / name).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return directory


def byte_characters() -> list[str]:
    """Return the printable character that byte-level tokenizers write for each byte: its own, or one above 255."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    above = iter(range(256, 512))
    return [chr(b) if b in own else chr(next(above)) for b in range(256)]


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
