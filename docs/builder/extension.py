"""An extension of Markdown: what the changelog says is put into its page.

A page has a mark ``<!-- changelog -->`` where what is made stands in the site. What the
repository has, too, is written by ``tests/docs/made.py``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

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


class Completion(Preprocessor):  # type: ignore[misc]
    """Completes a page before it is rendered."""

    def run(self, lines: list[str]) -> list[str]:
        """Return the lines of the page with what is made."""
        return complete("\n".join(lines)).split("\n")


class MadeParts(Extension):  # type: ignore[misc]
    """Has pages completed, as ``mkdocs.yml`` names it."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name of Markdown's
        """Put the completion before everything else."""
        md.preprocessors.register(Completion(md), "made", 1000)
