"""Options that take several values in a row: ``--networks a.toml b.toml``."""

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SEVERAL = ("--networks",)
"""Names of these options, whichever command has them."""


class SeveralValues(TyperCommand):
    """A command whose options in `SEVERAL` take all words up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of a command line."""
        return super().parse_args(ctx, list(repeated(args)))


def repeated(args: "Sequence[str]") -> "Iterator[str]":
    """Yield the words of a command line with the option before each of its values.

    Examples
    --------
    >>> list(repeated(["job", "--networks", "a", "b", "-q"]))
    ['job', '--networks', 'a', '--networks', 'b', '-q']
    """
    option, is_first = "", False
    for word in args:
        if word.startswith("-") and word != "-":
            option, is_first = (word, True) if word in SEVERAL else ("", False)
            yield word
            continue
        if option and not is_first:
            yield option
        is_first = False
        yield word
