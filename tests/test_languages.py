"""Languages: our own sentences, code that is no language, and the translated rows of the shared data."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptkit.languages import detect, prose

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"

SENTENCES = {
    "en": "Could you explain why the sky turns red when the sun goes down?",
    "de": "Kannst du mir erklären, warum der Himmel bei Sonnenuntergang rot wird?",
    "fr": "Peux-tu m'expliquer pourquoi le ciel devient rouge au coucher du soleil ?",
    "es": "¿Puedes explicarme por qué el cielo se pone rojo cuando se oculta el sol?",
    "it": "Puoi spiegarmi perché il cielo diventa rosso quando tramonta il sole?",
    "pt": "Você pode me explicar por que o céu fica vermelho quando o sol se põe?",
    "ru": "Объясни, пожалуйста, почему небо краснеет на закате солнца.",
    "zh": "请解释一下为什么日落时天空会变成红色。",
    "ja": "夕方になると空が赤くなるのはなぜか、説明してください。",
    "ko": "해가 질 때 하늘이 왜 붉게 변하는지 설명해 줄 수 있나요?",
    "ar": "هل يمكنك أن تشرح لي لماذا تصبح السماء حمراء عند غروب الشمس؟",
    "hi": "क्या आप बता सकते हैं कि सूर्यास्त के समय आकाश लाल क्यों हो जाता है?",
    "tr": "Güneş batarken gökyüzünün neden kırmızıya döndüğünü açıklar mısın?",
    "vi": "Bạn có thể giải thích tại sao bầu trời chuyển sang màu đỏ khi mặt trời lặn không?",
}


@pytest.mark.parametrize("code", sorted(SENTENCES))
def test_a_sentence_is_told_by_its_language(code: str) -> None:
    assert detect([SENTENCES[code]]) == [code]


@pytest.mark.parametrize("code", ["de", "ja", "ru", "en"])
def test_code_beside_the_prose_does_not_change_the_language(code: str) -> None:
    snippet = "```python\nfor name in names:\n    print(name.upper(), len(name))\nreturn sorted(names)\n```"
    assert detect([f"{SENTENCES[code]}\n\n{snippet}", f"{snippet}\n{SENTENCES[code]}"]) == [code, code]


@pytest.mark.parametrize(
    "text", ["", "   \n", "42", "x = [1, 2, 3]", "```\nfoo(bar)\n```", "https://example.com/a/b", "?!"]
)
def test_what_has_no_prose_is_und(text: str) -> None:
    assert detect([text]) == ["und"]


@pytest.mark.parametrize("text", ["who sang the song", "Fix the bug", "What is a monad?", "Write a haiku"])
def test_short_english_requests_are_english(text: str) -> None:
    assert detect([text]) == ["en"]


def test_a_docstring_is_the_prose_of_a_stub() -> None:
    stub = 'def area(r):\n    """ Return the area of the circle with the given radius.\n    >>> area(0)\n    0.0\n    """\n'
    assert prose(stub) == '""" Return the area of the circle with the given radius. """'
    assert detect([stub]) == ["en"]


def test_the_request_behind_long_schemas_is_read() -> None:
    schemas = '[{"name": "f", "parameters": {"x": {"type": "int"}}}]\n' * 200
    assert detect([schemas + SENTENCES["fr"]]) == ["fr"]


def test_a_language_does_not_depend_on_its_batch() -> None:
    texts = list(SENTENCES.values())
    assert detect(texts) == [detect([t])[0] for t in texts] == list(reversed(detect(texts[::-1])))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_any_text_gets_a_two_letter_code_or_und(text: str) -> None:
    (code,) = detect([text])
    assert code == "und" or (len(code) == 2 and code.isalpha() and code.islower())


def test_lone_surrogates_and_long_words_are_no_trouble() -> None:
    start = time.perf_counter()
    assert len(detect(["\ud800 hello there", "a" * 100_000, "/" * 5000, " " * 5000 + "x", "`" * 5000, "(" * 5000])) == 6
    assert time.perf_counter() - start < 5  # the quadratic version of these patterns took minutes


def test_importing_it_loads_no_model() -> None:
    code = "import sys, promptkit.languages; print('py3langid' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_translated_news_sentences_are_told_apart() -> None:
    path = SHARED / "ntrex" / "ntrex.jsonl"
    if not path.exists():
        pytest.skip("shared data absent: ../shared/data/ntrex")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    codes = {"deu": "de", "fra": "fr", "spa": "es", "hin": "hi", "zho": "zh"}
    expected = [codes[r["id"].split("/")[1][:3]] for r in rows]
    got = detect([r["response"] for r in rows])
    right = {c: [g == c for g, e in zip(got, expected, strict=True) if e == c] for c in set(expected)}
    assert {c: len(v) for c, v in right.items()} == dict.fromkeys(right, 160)
    assert min(sum(v) for v in right.values()) >= 155  # 97 % per language
    assert detect([r["prompt"] for r in rows]).count("en") == 800  # the request and its sentence are English
