"""Our docstrings say `name : what it is`, types being in the signature; the site's parser takes that for a type."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Prose(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and "\n---" in obj.docstring.value:
            obj.docstring.value = re.sub(r"^(\w+(?:, \w+)*) : (?=\S)", r"\1\n    ", obj.docstring.value, flags=re.M)
