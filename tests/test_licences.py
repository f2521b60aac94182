"""Licences: which expressions let a row be shared on, and how a misspelt one is told."""

from __future__ import annotations

import pytest

from promptkit.errors import UsageError
from promptkit.licences import check, of_source, shareable


@pytest.mark.parametrize(
    "expression",
    [
        "MIT", "mit", "Apache-2.0", "BSD-3-Clause", "CC-BY-4.0", "CC-BY-SA-3.0", "CC0-1.0", "ODC-By-1.0", "GPL-3.0-only",
        "GPL-2.0+", "GPL-2.0-only WITH Classpath-exception-2.0", "MIT AND CC-BY-4.0", "MIT OR LicenseRef-inhouse",
        "CC-BY-NC-4.0 OR (Apache-2.0 AND MIT)",
    ],
)  # fmt: skip
def test_may_be_shared(expression):
    assert shareable(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "NOASSERTION", "NONE", "", "see the website", "LicenseRef-inhouse", "CC-BY-NC-4.0", "CC-BY-NC-SA-4.0", "CC-BY-ND-4.0",
        "MIT AND CC-BY-NC-4.0", "MIT AND LicenseRef-inhouse", "CC-BY-NC-4.0 OR NOASSERTION", "MIT AND", "(MIT", "llama3",
        "\u200bMIT AND x", "MIT OR" * 500,
    ],
)  # fmt: skip
def test_may_not_be_shared(expression):
    assert not shareable(expression)


def test_an_expression_is_written_properly():
    assert check("mit or apache-2.0", "x") == "MIT OR Apache-2.0"
    assert check("NOASSERTION", "x") == "NOASSERTION"
    assert check("MIT AND LicenseRef-inhouse", "x") == "MIT AND LicenseRef-inhouse"


@pytest.mark.parametrize("bad", ["MTI", "MIT AND", "", "see the website", "(MIT"])
def test_what_is_no_expression_is_refused_with_where_it_stands(bad):
    with pytest.raises(UsageError, match="licence of A1: "):
        check(bad, "licence of A1")


def test_a_row_speaks_for_itself_then_its_source():
    assert of_source({"A1": "MIT"}, "A1", "CC-BY-4.0") == "CC-BY-4.0"
    assert of_source({"A1": "MIT"}, "A1") == "MIT"
    assert of_source({"A1": "MIT"}, None) == of_source({}, "A1") == "NOASSERTION"
