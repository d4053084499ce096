"""A document in a terminal: headline, sentences, and sections with their tables.

Tables stay whole in a pipe. In a terminal that is too narrow for one its columns follow
each other in several tables, which all begin with the same columns.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from nestsim.document.parts import (
    Block,
    Cell,
    DataTable,
    Document,
    FactList,
    FigureBlock,
    Section,
    Sentences,
    Snippet,
    Tone,
    is_in_text,
)
from nestsim.report.tables import facts, new_table, print_line

_STYLES: Mapping[Tone, str] = {"good": "bold green", "bad": "bold red", "plain": "bold"}

_WITH_TABLE = DataTable | FigureBlock

_APART = ", "
"""Between the group of a column and its name: two lines of its heading."""


def print_document(document: Document, console: Console) -> None:
    """Print what a result says; the same document gives the same text."""
    headline = document.headline
    verdict = Text(headline.verdict, style=_STYLES[headline.tone])
    if len(verdict) + len(document.subject) + 2 <= console.width:
        print_line(console, verdict, document.subject)
    else:
        console.print(verdict, highlight=False)
        _print_sentences([document.subject], console)
    _print_sentences(headline.sentences, console)
    for section in document.sections:
        if section.in_text:
            _print_blocks(section, console)


class _Trimmed:
    """What is printed without blanks at the ends of lines."""

    def __init__(self, body: RenderableType) -> None:
        self._body = body

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Segment]:
        for line in console.render_lines(self._body, options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                text, style, _ = line.pop()
                line.append(Segment(text.rstrip(), style))
            yield from (*line, Segment.line())


def _print(body: RenderableType, console: Console) -> None:
    console.print(_Trimmed(body), highlight=False, end="")


def _print_blocks(section: Section, console: Console) -> None:
    console.print()
    _print(Text(section.title, style="bold underline"), console)
    blocks = [block for block in section.blocks if is_in_text(block)]
    for number, block in enumerate(blocks):
        if number and isinstance(block, _WITH_TABLE):
            console.print()
        if isinstance(block, DataTable) and block.caption != section.title:
            _print_sentences([block.caption], console)
        _print_block(block, console)


def _print_block(block: Block, console: Console) -> None:
    if isinstance(block, DataTable):
        _print_table(block, console)
    elif isinstance(block, FigureBlock):
        _print_sentences([block.title], console)
        _print_table(block.table, console)
        _print_sentences([block.note] if block.note else [], console)
    elif isinstance(block, FactList):
        _print(facts(block.rows), console)
    elif isinstance(block, Sentences):
        _print_sentences(block.sentences, console)
    elif isinstance(block, Snippet):
        _print(Text(f"{block.name}\n{block.text}"), console)


def _print_sentences(sentences: Sequence[str], console: Console) -> None:
    for sentence in sentences:
        _print(Padding(Text(sentence), (0, 0, 0, 2), expand=False), console)


def _print_table(table: DataTable, console: Console) -> None:
    rows = table.rows[: table.first]
    for columns in _pieces(table, console.width):
        _print(_text_table(table, rows, columns), console)
    more = len(table.rows) - len(rows)
    if more:
        _print_sentences([f"{more:,} more on the page and in the JSON."], console)


def _text_table(
    table: DataTable, rows: Sequence[Sequence[str | Cell]], columns: Sequence[int]
) -> Table:
    headings = [_heading(table.columns[column]) for column in columns]
    numbers = [_heading(name) for name in table.numbers]
    text = new_table(*headings, numbers=numbers)
    for place, row in enumerate(rows):
        style = "bold" if place == table.shown else ""
        text.add_row(*(Text(_words(row[column])) for column in columns), style=style)
    return text


def _heading(column: str) -> str:
    return column.replace(_APART, "\n", 1)


def _words(cell: str | Cell) -> str:
    return cell.text if isinstance(cell, Cell) else cell


def _pieces(table: DataTable, room: int) -> Iterator[list[int]]:
    """Yield the columns of each table that stands for a whole one."""
    count = len(table.columns)
    widths = [
        2 + max(len(line) for text in texts for line in text.split("\n"))
        for texts in zip(
            map(_heading, table.columns),
            *(map(_words, row) for row in table.rows),
            strict=True,
        )
    ]
    groups = [name.partition(_APART)[::2] for name in table.columns]
    lead = next((place for place in range(count) if groups[place][1]), count)
    if lead in {0, count} or sum(widths) <= room:
        yield list(range(count))
        return
    shown = list(range(lead))
    for _, members in itertools.groupby(range(lead, count), lambda at: groups[at][0]):
        group = list(members)
        if sum(widths[at] for at in (*shown, *group)) > room and len(shown) > lead:
            yield shown
            shown = list(range(lead))
        shown += group
    yield shown
