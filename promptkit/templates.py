"""One door to chat templates: the data (`grammars`), reading rows with them (`recover`), choosing one (`evidence`)."""

from __future__ import annotations

from promptkit.evidence import Evidence, detect
from promptkit.grammars import TEMPLATES, Template, render
from promptkit.recover import is_growing_prefix, parse_text, recover, trim

__all__ = [
    "TEMPLATES",
    "Evidence",
    "Template",
    "detect",
    "is_growing_prefix",
    "parse_text",
    "recover",
    "render",
    "trim",
]
