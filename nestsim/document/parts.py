"""What a result says: headline, sections, tables and figures as plain data.

Every kind of result is a `Document` of the same parts, so that all of them look and
read alike, in the terminal, on the page, in pictures and in Markdown. Texts are texts:
renderers escape what their format needs escaped. Nothing here knows a format.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

from nestsim.document.figures import Shape
from nestsim.document.paints import Swatch

Record = TypeVar("Record")
"""What a row of a table is about."""

Tone = Literal["good", "bad", "plain"]
"""How what is said is marked, beside its words: with a sign and a colour."""


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A number that everybody looks for first."""

    name: str
    """What it is."""

    value: str
    """The number with its unit."""

    note: str = ""
    """What it is to be compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What comes first: the answer."""

    verdict: str
    """The answer in one or two words."""

    tone: Tone
    """Whether it is good news."""

    sentences: tuple[str, ...] = ()
    """Why, and how sure."""

    key_figures: tuple[KeyFigure, ...] = ()
    """The numbers of the answer."""

    @classmethod
    def without(cls, verdict: str, reason: object) -> "Headline":
        """Return the headline of a job that found nothing, and why."""
        return cls(verdict=verdict, tone="bad", sentences=(str(reason),))


@dataclass(frozen=True, slots=True)
class Cell:
    """A number in a cell of a table."""

    text: str
    """What is read."""

    key: float
    """What rows are sorted by; a finite number, in SI units."""


def cell(value: float | None, write: Callable[[float], str]) -> "str | Cell":
    """Return a number in a cell, written for people; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return "-"
    return Cell(write(value), value)


def keyed(
    key: str, write: Callable[[float], str]
) -> "Callable[[Mapping[str, Any]], str | Cell]":
    """Return what writes the number that a record has under a key into a cell."""
    return lambda record: cell(record[key], write)


def field_cell(
    name: str, write: Callable[[float], str]
) -> "Callable[[object], str | Cell]":
    """Return what writes the number that a field of a record has into a cell."""
    return lambda record: cell(getattr(record, name), write)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """Rows below headings."""

    kind: ClassVar[str] = "table"

    caption: str
    """What the rows are."""

    columns: tuple[str, ...]
    """Headings; those of numbers stand in `numbers`, too."""

    rows: tuple[tuple["str | Cell", ...], ...]
    """One text or cell for each column."""

    numbers: tuple[str, ...] = ()
    """Columns that stand right."""

    sortable: bool = False
    """Whether readers can sort it by a click on a heading."""

    shown: int | None = None
    """The row that stands out; None for none."""

    first: int | None = None
    """How many of the first rows the terminal has; None for all."""

    brief: tuple[int, ...] | None = None
    """Rows that the terminal has without ``--verbose``; None for the first ones."""

    details: tuple[str, ...] = ()
    """Columns that the terminal has with ``--verbose`` only, if `brief` says rows."""

    @classmethod
    def of(  # noqa: PLR0913 - those of the fields
        cls,
        caption: str,
        records: Iterable[Record],
        columns: Mapping[str, Callable[[Record], "str | Cell"]],
        *,
        sortable: bool = False,
        shown: int | None = None,
        first: int | None = None,
        numbers: Sequence[str] = (),
    ) -> "DataTable":
        """Return a table of records; columns with cells that have keys are numbers.

        Parameters
        ----------
        caption, sortable, shown, first
            As the fields.
        records
            One for each row.
        columns
            Heading -> what writes a record's cell.
        numbers
            Columns of texts that are numbers, too.
        """
        rows = tuple(
            tuple(write(record) for write in columns.values()) for record in records
        )
        right = {*numbers} | {
            name
            for row in rows
            for name, text in zip(columns, row, strict=True)
            if isinstance(text, Cell)
        }
        return cls(
            caption=caption,
            columns=tuple(columns),
            rows=rows,
            numbers=tuple(name for name in columns if name in right),
            sortable=sortable,
            shown=shown,
            first=first,
        )


@dataclass(frozen=True, slots=True)
class FactList:
    """Names and what they stand for, in order."""

    kind: ClassVar[str] = "facts"

    rows: Mapping[str, str]
    """Name -> value."""

    brief: tuple[str, ...] | None = None
    """Names that the terminal has without ``--verbose``; None for all."""


@dataclass(frozen=True, slots=True)
class Sentences:
    """Plain text."""

    kind: ClassVar[str] = "sentences"

    sentences: tuple[str, ...]
    """One paragraph each."""


def paragraphs(sentences: Iterable[str]) -> tuple["Block", ...]:
    """Return the block of sentences; no block for none."""
    block = Sentences(tuple(sentences))
    return (block,) if block.sentences else ()


def fact_lists(*lists: Mapping[str, str]) -> tuple["Block", ...]:
    """Return the blocks of lists of facts; none for those without any."""
    return tuple(FactList(rows) for rows in lists if rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureBlock:
    """A figure, and the numbers behind it as a table."""

    kind: ClassVar[str] = "figure"

    name: str
    """Of letters and hyphens, no other figure of the page has it."""

    title: str
    """What is seen, as a sentence."""

    about: str
    """What is drawn: read aloud in the picture's place."""

    drawing: Shape | Mapping[str, Any]
    """What is drawn. A Vega-Lite specification without its width stands for what only
    the page draws."""

    table: DataTable
    """The numbers behind it."""

    legend: tuple[Swatch, ...] = ()
    """What its paints stand for; empty for what the drawing itself says."""

    bars: Mapping[str, Any] = field(default_factory=dict)
    """Columns of bars of a timeline, which the page thins out to what can be told
    apart; empty for other figures."""

    follows_window: bool = False
    """Whether its time axis is the page's common window."""

    note: str = ""
    """What to know beside the legend."""

    hint: str = ""
    """How to read the drawing: page and picture have it before the note."""

    in_text: bool = True
    """Whether the terminal and Markdown have its numbers, too."""

    opened: bool = False
    """Whether the page shows its numbers without a click."""

    @property
    def below(self) -> str:
        """Return what stands below the drawing."""
        return f"{self.hint} {self.note}".strip()

    @property
    def entries(self) -> tuple[Swatch, ...]:
        """Return the entries of the legend."""
        if self.legend or isinstance(self.drawing, Mapping):
            return self.legend
        return self.drawing.legend


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """The time that all figures over time show, which readers can change."""

    kind: ClassVar[str] = "window"

    total: float
    """The longest one, in `unit`."""

    unit: str
    """Of all times of the figures."""

    choices: tuple[tuple[str, float, float], ...]
    """Names of windows to choose, and their ends in `unit`; the first one is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """A text to copy: a command, a configuration."""

    kind: ClassVar[str] = "snippet"

    name: str
    """Where it belongs: a file or a program."""

    text: str
    """All of it."""

    note: str = ""
    """What it does not say, or what to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explorer:
    """Candidates that readers of the page choose from, and change what they rest on."""

    kind: ClassVar[str] = "explorer"

    name: str
    """Of letters and hyphens, no other part of the page has it."""

    title: str
    """What is chosen from."""

    columns: Mapping[str, Any]
    """The candidates in columns, as `nestsim.features.run.whatif` has them."""


Block = DataTable | FactList | Sentences | FigureBlock | TimeWindow | Snippet | Explorer
"""What stands in a section."""


def is_in_text(block: Block) -> bool:
    """Return whether the terminal and Markdown have a block, not the page alone."""
    if isinstance(block, FigureBlock):
        return block.in_text
    return not isinstance(block, TimeWindow | Explorer)


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    name: str
    """Of letters and hyphens: links of the page lead to it."""

    title: str
    blocks: tuple[Block, ...]

    folded: bool = False
    """Whether readers of the page open it."""

    in_text: bool = True
    """Whether the terminal and Markdown have it, too, not the page alone."""

    detail: bool = False
    """Whether the terminal has it with ``--verbose`` only; ``report.txt`` has it."""


def table_section(name: str, table: DataTable) -> Section:
    """Return the section of a table, whose caption is its heading."""
    return Section(name, table.caption, (table,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """All that a result says."""

    subject: str
    """What the result is about, such as a scenario's name."""

    doing: str
    """The command that found it, in a word or two: ``"run"``."""

    headline: Headline
    sections: tuple[Section, ...]

    @classmethod
    def of(
        cls, subject: str, doing: str, headline: Headline, sections: Iterable[Section]
    ) -> "Document":
        """Return a document of the sections in which something stands."""
        kept = tuple(section for section in sections if section.blocks)
        return cls(subject=subject, doing=doing, headline=headline, sections=kept)

    def with_section(self, section: Section, after: str = "") -> "Document":
        """Return the document with one more section, if anything stands in it.

        Behind the section of a name; at the end without a name.
        """
        if not section.blocks:
            return self
        names = [known.name for known in self.sections]
        place = names.index(after) + 1 if after in names else len(names)
        before, behind = self.sections[:place], self.sections[place:]
        return replace(self, sections=(*before, section, *behind))

    def with_figures(self, *names: str) -> "Document":
        """Return the document with no other figures than these; all for no names."""
        sections = (
            replace(
                section,
                blocks=tuple(
                    block
                    for block in section.blocks
                    if not (isinstance(block, FigureBlock) and block.name not in names)
                ),
            )
            for section in self.sections
        )
        return replace(self, sections=tuple(sections)) if names else self

    @property
    def explorers(self) -> tuple[Explorer, ...]:
        """All candidates to choose from, in order."""
        return tuple(
            block
            for section in self.sections
            for block in section.blocks
            if isinstance(block, Explorer)
        )

    @property
    def figures(self) -> tuple[FigureBlock, ...]:
        """All figures, in order."""
        return tuple(
            block
            for section in self.sections
            for block in section.blocks
            if isinstance(block, FigureBlock)
        )
