"""Hooks of mkdocs: the pages at the root of the checkout are pages of the site, too."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
ELSEWHERE = re.compile(r"\[([^\]]+)\]\((?:\.\./)*(?:examples|benchmarks|scripts|tests)/[^)]*\)")
"""Links to sources, which the site does not have."""


def on_files(files: Files, config: Any) -> Files:  # noqa: ANN401 - untyped library
    """Add the pages at the root, with their links as seen from ``docs/``."""
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Point links to the pages at the root to where they are in the site."""
    for name in PAGES:
        markdown = markdown.replace(f"](../{name}", f"]({name}")
    return ELSEWHERE.sub(r"\1", markdown)
