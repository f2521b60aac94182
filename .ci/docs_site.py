"""What the docs site needs beside mkdocs.yml: links out of docs/ lead to the repository, figures come along."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/promptkit/promptkit/blob/main/"


def on_files(files: Any, config: Any) -> Any:
    for path in sorted(ROOT.glob("examples/*/figures/*.svg")):
        files.append(File.generated(config, f"figures/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    markdown = re.sub(r"\]\(\.\./examples/\w+/figures/([\w.-]+\.svg)\)", r"](figures/\1)", markdown)
    return re.sub(r"\]\(\.\./", f"]({REPOSITORY}", markdown)
