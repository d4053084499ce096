"""The pages of the documentation, and the blocks of code that stand in them."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.glob("*.md"))]

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code of a page."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        first = self.text.split("\n")[0]
        return f"{self.page.stem}: {first[:50]}"


def read(page: Path) -> str:
    """Return a page as it is written."""
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return _BLOCK.sub("", read(page))


def blocks(language: str) -> list[Block]:
    """Return the blocks of a language on all pages."""
    return [
        Block(page, found[1], found[2])
        for page in PAGES
        for found in _BLOCK.finditer(read(page))
        if found[1] == language
    ]


def commands() -> list[tuple[str, str]]:
    """Return the command lines of all pages: the page's name, and the words.

    A line with a prompt is one; where a block of a console has none, its first line.
    """
    found: list[tuple[str, str]] = []
    for block in blocks("console"):
        text = block.text.replace("\\\n", " ")
        lines = [line[2:] for line in text.split("\n") if line.startswith("$ ")]
        lines = lines or text.split("\n")[:1]
        found += [(block.page.name, line.split("  #")[0].strip()) for line in lines]
    return found
