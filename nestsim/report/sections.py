"""The parts that text reports are made of."""

from rich.console import Console, RenderableType
from rich.text import Text


def print_line(console: Console, headline: Text, subject: str) -> None:
    """Print what stands out, and beside it what it is about."""
    console.print(Text.assemble(headline, "  ", subject), highlight=False)


def print_section(console: Console, title: str, body: RenderableType) -> None:
    """Print a title and what stands below it."""
    console.print()
    console.print(Text(title, style="bold underline"), highlight=False)
    console.print(body, highlight=False)
