"""Which rows may be shared on: SPDX expressions, read with license-expression.

    "MIT OR LicenseRef-inhouse" -> yes: one may choose MIT      "CC-BY-4.0 AND CC-BY-NC-4.0" -> no

May be shared: licences that let anybody pass the text on for any purpose, on conditions at most (attribution, share
alike, source). Not: unknown ones, non-commercial (NC: a benchmark at a company is commercial), no derivatives (ND: a
pack cuts conversations), and references that only their owner can read (LicenseRef-...).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from promptkit.errors import UsageError

UNKNOWN = "NOASSERTION"

_SHAREABLE = re.compile(
    r"Apache-[12]\.[01]|MIT(-0)?|0BSD|BSD-[1234]-Clause.*|ISC|Zlib|BSL-1\.0|Unlicense|WTFPL|PostgreSQL|NCSA|Python-2\.0(\.1)?"
    r"|PSF-2\.0|Artistic-2\.0|MPL-[12]\.[01]|EPL-[12]\.0|EUPL-1\.[12]|MS-PL|CECILL-2\.1|AFL-3\.0|OSL-3\.0|UPL-1\.0|MulanPSL-2\.0"
    r"|(A|L)?GPL-[123]\.[01](-only|-or-later)?|GFDL-1\.[123](-only|-or-later)?"
    r"|CC0-1\.0|CC-PDDC|CC-BY(-SA)?-[1234]\.[05]|PDDL-1\.0|ODC-By-1\.0|ODbL-1\.0|CDLA-Permissive-[12]\.0|CDLA-Sharing-1\.0"
    r"|C-UDA-1\.0|OGL-UK-[123]\.0|etalab-2\.0|DL-DE-(BY|ZERO)-2\.0"
)  # fmt: skip


def check(expression: str, where: str) -> str:
    """Return an SPDX expression as it is written properly ("mit or apache-2.0" -> "MIT OR Apache-2.0").

    Raises UsageError that begins with `where` for what is no expression or names an unknown licence.
    """
    if expression == UNKNOWN:
        return expression
    tree, unknown = _parse(expression), []
    if tree is not None:
        unknown = [k for k in _licensing().unknown_license_keys(tree) if not k.startswith("LicenseRef-")]
        if not unknown:
            return str(tree.render())
    raise UsageError(
        f"{where}: "
        + (f"no licence is called {unknown[0]!r}" if unknown else f"{expression!r} is no licence expression"),
        hint="give an id of https://spdx.org/licenses such as Apache-2.0, CC-BY-4.0, or LicenseRef-NAME for your own",
    )


def shareable(expression: str) -> bool:
    """Say whether a row under this licence may be passed on by anybody, for any purpose."""
    tree = None if expression == UNKNOWN else _parse(expression)
    return tree is not None and _holds(tree)


def of_source(licences: Mapping[str, str], source: str | None, stated: str | None = None) -> str:
    """Return a row's licence: its own where it states one, else what was given for its source, else unknown."""
    return stated or licences.get(source or "", UNKNOWN)


def _parse(expression: str) -> Any:
    """Return the parsed expression, None where it is none: a pool's own words ("see website"), or nothing."""
    try:
        return _licensing().parse(expression)
    except Exception:  # the library raises several kinds, AttributeError among them
        return None


def _holds(node: Any) -> bool:
    from license_expression import LicenseWithExceptionSymbol

    kind = type(node).__name__
    if kind == "AND":
        return all(_holds(a) for a in node.args)
    if kind == "OR":
        return any(_holds(a) for a in node.args)
    if isinstance(node, LicenseWithExceptionSymbol):  # an exception grants more
        node = node.license_symbol
    return bool(_SHAREABLE.fullmatch(node.key))


@lru_cache(maxsize=1)
def _licensing() -> Any:
    from license_expression import get_spdx_licensing

    return get_spdx_licensing()
