"""Secrets and personal data: real forms are found, what manuals use as examples is not, and values are never repeated.

Keys are put together at run time, so that no scanner takes this file for a leak.
"""

from __future__ import annotations

import base64
import json
import random
import re
import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptkit import personal

RNG = random.Random(0)


def rand(n: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(RNG.choice(alphabet) for _ in range(n))


UPPER = string.ascii_uppercase + "234567"
HEX = "0123456789abcdef"
BODY = "\n".join(rand(64) for _ in range(4))

KEYS = {
    "aws id": "AK" + "IA" + rand(16, UPPER),
    "aws secret": f'aws_secret_key = "{rand(40)}"',
    "azure": "Account" + f"Key={rand(86)}==",
    "github": "gh" + "p_" + rand(36),
    "github fine": "github_" + "pat_" + rand(82),
    "gitlab": "gl" + "pat-" + rand(20),
    "openai old": "sk" + "-" + rand(20) + "T3Blbk" + "FJ" + rand(20),
    "openai": "sk" + "-proj-" + rand(60),
    "anthropic": "sk" + "-ant-api03-" + rand(80),
    "hugging face": "hf" + "_" + rand(34),
    "google": "AI" + "za" + rand(35),
    "slack": "xo" + "xb-" + rand(12, "0123456789") + "-" + rand(12, "0123456789") + "-" + rand(24),
    "stripe": "sk" + "_live_" + rand(24),
    "npm": "//registry/:_auth" + f"Token={'npm'}_{rand(36)}",
    "mailchimp": rand(32, HEX) + "-us" + "12",
    "sendgrid": "S" + f"G.{rand(22)}.{rand(43)}",
    "telegram": rand(9, "23456789") + ":AA" + rand(33),
    "private key": f"-----BEGIN RSA {'PRIVATE'} KEY-----\n{BODY}\n-----END",
    "private key in a string": f"-----BEGIN {'PRIVATE'} KEY-----\\n{rand(64)}\\n{rand(64)}",
    "web token": "eyJ"
    + "hbGciOiJIUzI1NiJ9."
    + base64.urlsafe_b64encode(json.dumps({"sub": rand(12)}).encode()).decode()
    + "."
    + rand(43),
    "login in a url": "postgres://ada:" + rand(14) + "@db.prod-cluster.net:5432/x",
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_is_found_in_prose_and_in_code(name):
    assert personal.kinds(f"Why does this fail? {KEYS[name]} Thanks.") == (personal.KEY,)
    assert personal.kinds(f"config = {{\n    'k': '{KEYS[name]}',\n}}") == (personal.KEY,)


@pytest.mark.parametrize(
    "text",
    [
        "key = 'AKIAIOSFODNN7EXAMPLE'  # from the manual",
        'aws_secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"',
        "export OPENAI_API_KEY=sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "OPENAI_API_KEY=sk-your-key-here, HF_TOKEN=hf_your_token",
        "sk-proj-" + "a" * 40,
        "if line.startswith('-----BEGIN PRIVATE KEY-----'): raise ValueError",
        "-----BEGIN RSA PRIVATE KEY-----\n...\n-----END RSA PRIVATE KEY-----",
        "postgres://user:password@localhost:5432/db and redis://:hunter22@127.0.0.1",
        "https://user:pass@example.com/path, mysql://root:root@db/x, amqp://guest:guest@rabbit.example.org",
        "requests.get(f'https://{user}:{token}@api.github.com')",
        # the token of every tutorial: {"sub":"1234567890","name":"John Doe",...}
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4gRG9lIiwiaWF0IjoxNTE2MjM5MDIyfQ.SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8, sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "uuid 123e4567-e89b-12d3-a456-426614174000, a task-management2024systemforlargecompaniesworldwide",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
    ],
)
def test_dummies_hashes_and_quoted_headers_are_no_keys(text):
    assert personal.kinds(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "Mail ada.k@web.de the log.",
        "From: Ada King <a.king1815@gmail.com>",
        "author_email='ada@kings-college.ac.uk',",
        "Kontakt: müller ada_k@uni-bonn.de!",
        "mailto: ada+list@posteo.net",
    ],
)
def test_an_address_is_found(text):
    assert personal.kinds(text) == (personal.EMAIL,)


@pytest.mark.parametrize(
    "text",
    [
        "jane@example.com, bob@mail.example.org, x@foo.test, me@company.com, boss@mycompany.com, a@b.com, mary@email.com",
        "git clone git@github.com:ada/repo.git && pip install git+ssh://git@gitlab.com/x/y.git",
        "ssh ada@host.prod-cluster.net:/srv and rsync -a x ada@build7.debian.net:/tmp",
        "noreply@github.com, support@stripe.com, security@python.org, root@localhost, user@192.168.0.1",
        "y = x@w.transpose(0, 1) + q@k.mean(1) - (a@b.sum)",
        "@app.route('/x')\n@pytest.mark.skip\nclass A: pass  # lodash@4.17.21, @types/node@20.1.0, @user.name",
        "re.match(r'[^@]+@[^@]+\\.[^@]+', s); f'{name}@{domain}.com'",
        "https://medium.com/@ada.king/post and https://x.io/a@b.de/c",
    ],
)
def test_examples_roles_remotes_and_code_are_no_addresses(text):
    assert personal.kinds(text) == ()


@pytest.mark.parametrize(
    "text",
    ["Call +44 7911 842396 now", "ring me: +49 (0)170 5550134.", "(415) 236-8714", "tel 212-736-5019", "415.236.8714"],
)
def test_a_number_is_found(text):
    assert personal.kinds(text) == (personal.PHONE,)


@pytest.mark.parametrize(
    "text",
    [
        "555-0123, (212) 555-0187, +1 415 555 2671, 123-456-7890, (123) 456-7891, +1234567890, +79999999999",
        "1-800-275-2273 and +1 800 275 2273",  # toll-free: a firm's
        "365 730 1095 1460\n415 236 8714",  # a table
        "192.168.100.200 10.0.0.1 version 3.141.5926 5.10.236.8714",
        "2024-12-01 12:30:45, 1701388800, isbn 978-3-16-148410-0, x = 2147483647 + 4294967295",
        "$415.236.8714, a-415-236-8714-b, 415-236-8714%",
        "id 00000000-0000-0000-0000-415236871412, 4152368714",
    ],
)
def test_fiction_versions_dates_and_tables_are_no_numbers(text):
    assert personal.kinds(text) == ()


def test_a_request_is_flagged_for_any_of_its_texts_and_says_every_kind():
    call = {"id": "1", "type": "function", "function": {"name": "mail", "arguments": '{"to": "ada.k@web.de"}'}}
    messages = [
        {"role": "user", "content": "Write to her."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": KEYS["github"]},
    ]
    assert personal.flags([personal.texts_of(messages), personal.texts_of(messages[:1])]) == [
        (personal.EMAIL, personal.KEY),
        (),
    ]
    tools = [{"type": "function", "function": {"name": "x", "description": "ask +44 7911 842396"}}]
    assert personal.flags([personal.texts_of(messages[:1], tools)]) == [(personal.PHONE,)]


def test_nothing_of_a_value_is_returned():
    shown = repr(personal.flags([[KEYS["github"], "ada.k@web.de"]]))
    assert KEYS["github"][4:12] not in shown
    assert "web.de" not in shown


@given(st.text(max_size=300) | st.text("@.+-0123456789abk:/ \n", max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_without_a_crash(text):
    assert set(personal.kinds(text)) <= {personal.EMAIL, personal.KEY, personal.PHONE}


@given(st.lists(st.sampled_from([*KEYS.values(), *KEYS]) | st.text(max_size=20), max_size=5), st.booleans())
@settings(max_examples=200, deadline=None)
def test_looking_for_strings_first_loses_no_key(parts, upper):
    text = "ſK ".join(parts).upper() if upper else " ".join(parts)
    found = list(personal._key_values(text))
    slow = [m for _, _, pattern in personal._keys() for m in pattern.finditer(text)]
    assert found[: len(slow)] == [
        max((g for g in m.groups() if g and len(g) >= 16), key=len, default=m[0]) for m in slow
    ]


PLAIN_PHONE = re.compile(
    r"(?<![\w.+$€£,=/\-])(?:\+\d[\d ().\-]{6,18}\d|\(\d{3}\) ?\d{3}[-. ]\d{4}|\d{3}-\d{3}-\d{4}|\d{3}\.\d{3}\.\d{4})"
    r"(?![\w%-]|\.\d)"
)


@given(
    st.lists(st.sampled_from(["+44", "(212)", "415", "7911", "0199", "-", ".", " ", "a", "€", "\n", "٣"])).map("".join)
)
@settings(max_examples=300, deadline=None)
def test_the_pattern_of_numbers_matches_what_its_plain_form_does(text):
    assert [m.span() for m in personal._PHONE.finditer(text)] == [m.span() for m in PLAIN_PHONE.finditer(text)]


@pytest.mark.parametrize("text", ["a@" * 50_000, "+1 " * 40_000, "1-" * 60_000, "a." * 60_000 + "@", "://" + "a" * 10**5, "sk-" * 40_000, "eyJ" * 40_000, "eyJa." * 30_000, "1." * 60_000, "aws" * 40_000, "http://a:b" * 20_000])  # fmt: skip
def test_no_text_makes_the_scan_crawl(text):
    start = time.process_time()
    personal.kinds(text)
    assert time.process_time() - start < 3


def test_ten_thousand_prompts_take_a_few_seconds():
    words = ["def", "sort", "values", "return", "the", "list", "of", "prompts", "for", "index", "in"]
    texts = [[" ".join(RNG.choice(words) for _ in range(100)) + str(i)] for i in range(10_000)]
    start = time.process_time()
    personal.flags(texts)
    assert time.process_time() - start < 10
