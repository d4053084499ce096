"""Hooks of MkDocs: what the code and the changelog say is put into the pages.

A page has a mark ``<!-- changelog -->`` where what is made stands in the site. What the
repository has, too, is written by ``tests/docs/made.py``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).parents[2]


def changelog() -> str:
    """Return the entries of the changelog, with links that hold on the site."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    _, _, entries = text.partition("\n")
    return entries.replace("](docs/", "](").replace("](README.md", "](index.md")


MADE: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "changelog": changelog,
    }
)
"""Mark -> what stands in its place."""


def complete(markdown: str) -> str:
    """Return a page's text with everything that is made in its place."""
    for mark, make in MADE.items():
        written = f"<!-- {mark} -->"
        if written in markdown:
            markdown = markdown.replace(written, make())
    return markdown


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Complete a page before it is rendered."""
    return complete(markdown)
