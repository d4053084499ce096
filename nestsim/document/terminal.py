"""A document in a terminal: headline, sentences, and sections with their tables.

Cells are `rich.text.Text`, never markup: names may contain brackets. Columns of numbers
never wrap; those of words break between words. Nothing rests on colour alone.

Tables stay whole in a pipe. In a terminal that is too narrow for one its columns follow
each other in several tables, which all begin with the same columns.
"""

import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from rich import box
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

_MIN_WIDTHS: Mapping[str, int] = {"Layers": 12, "Plan": 16, "Saving": 9}
"""Columns of words that must not become narrower than their longest word."""

_WIDTH = 100
"""Columns of a report that is kept as a text."""

_STYLES: Mapping[Tone, str] = {"good": "bold green", "bad": "bold red", "plain": "bold"}

_WITH_TABLE = DataTable | FigureBlock

_APART = ", "
"""Between the group of a column and its name: two lines of its heading."""


MORE = "More with --verbose, and in report.txt of a folder of results: "
"""Before the titles of the sections that are not printed."""


def print_document(
    document: Document, console: Console, *, verbose: bool = False
) -> None:
    """Print what a result says; the same document gives the same text.

    Parameters
    ----------
    document
        What is printed.
    console
        Where it is printed.
    verbose
        Print sections of details, too, not only their titles.
    """
    headline = document.headline
    verdict = Text(headline.verdict, style=_STYLES[headline.tone])
    if len(verdict) + len(document.subject) + 2 <= console.width:
        print_line(console, verdict, document.subject)
    else:
        console.print(verdict, highlight=False)
        _print_sentences([document.subject], console)
    _print_sentences(headline.sentences, console)
    sections = [section for section in document.sections if section.in_text]
    for section in sections:
        if verbose or not section.detail:
            _print_blocks(section, console, verbose=verbose)
    titles = [section.title.lower() for section in sections if section.detail]
    if titles and not verbose:
        console.print()
        _print_sentences([f"{MORE}{', '.join(titles)}."], console)


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


def _print_blocks(section: Section, console: Console, *, verbose: bool) -> None:
    console.print()
    _print(Text(section.title, style="bold underline"), console)
    blocks = [block for block in section.blocks if is_in_text(block)]
    for number, block in enumerate(blocks):
        if number and isinstance(block, _WITH_TABLE):
            console.print()
        if isinstance(block, DataTable) and block.caption != section.title:
            _print_sentences([block.caption], console)
        _print_block(block if verbose else _brief(block), console)


def _brief(block: Block) -> Block:
    """Return a block with what a terminal has of it without ``--verbose``."""
    if isinstance(block, DataTable) and block.brief is not None:
        known = block.shown in block.brief and block.shown is not None
        kept = [name not in block.details for name in block.columns]
        return replace(
            block,
            columns=tuple(itertools.compress(block.columns, kept)),
            rows=tuple(
                tuple(itertools.compress(block.rows[number], kept))
                for number in block.brief
            ),
            shown=block.brief.index(block.shown or 0) if known else None,
            first=None,
        )
    if isinstance(block, FigureBlock):
        table = _brief(block.table)
        assert isinstance(table, DataTable)
        left = len(block.table.rows) - len(table.rows)
        more = f"{left:,} more with --verbose." if left else ""
        return replace(block, table=table, note=f"{block.note} {more}".strip())
    if isinstance(block, FactList) and block.brief is not None:
        return FactList({name: block.rows[name] for name in block.brief})
    return block


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
    """Yield the columns of each table that stands for a whole one.

    The first ones begin each of them: those before the first group, or the first alone.
    Words can break, numbers cannot.
    """
    count = len(table.columns)
    groups = [name.partition(_APART)[::2] for name in table.columns]
    lead = next((place for place in range(count) if groups[place][1]), count)
    has_groups = 0 < lead < count
    widths = [
        2 + max(len(part) for text in texts for part in text.split(ends) or [""])
        for name, texts in zip(
            table.columns,
            zip(
                map(_heading, table.columns),
                *(map(_words, row) for row in table.rows),
                strict=True,
            ),
            strict=True,
        )
        for ends in ("\n" if has_groups or name in table.numbers else None,)
    ]
    if sum(widths) <= room:
        yield list(range(count))
        return
    if not has_groups:
        lead, groups = 1, [(name, "") for name in table.columns]
    shown = list(range(lead))
    for _, members in itertools.groupby(range(lead, count), lambda at: groups[at][0]):
        group = list(members)
        if sum(widths[at] for at in (*shown, *group)) > room and len(shown) > lead:
            yield shown
            shown = list(range(lead))
        shown += group
    yield shown


def new_table(*columns: str, numbers: Sequence[str] = ()) -> Table:
    """Return an empty table; columns in ``numbers`` stand right and never wrap."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        is_number = column in numbers
        table.add_column(
            Text(column),
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
            min_width=max(map(len, column.split("\n")))
            if is_number
            else _MIN_WIDTHS.get(column),
        )
    return table


def add_row(table: Table, *cells: str, style: str = "") -> None:
    """Add a row of plain text."""
    table.add_row(*(Text(cell) for cell in cells), style=style)


def facts(rows: Mapping[str, str]) -> Table:
    """Return names and values, one pair a line."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(f"  {name}"), Text(value))
    return table


def print_line(console: Console, headline: Text, subject: str) -> None:
    """Print what stands out, and beside it what it is about."""
    console.print(Text.assemble(headline, "  ", subject), highlight=False)


def plain_text(print_to: Callable[[Console], object]) -> str:
    """Return what is printed as a terminal without colours would show it."""
    buffer = io.StringIO()
    print_to(
        Console(
            file=buffer,
            width=_WIDTH,
            color_system=None,
            force_terminal=False,
            force_jupyter=False,  # it would show the text in a cell, and return none
            legacy_windows=False,
        )
    )
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return "\n".join(lines) + "\n"
