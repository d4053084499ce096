"""The picture of a document: its headline, and a panel for each of its figures.

Panels stand in two columns; the first of an odd number, and figures over time, are as
wide as the sheet. All lengths are in inches from the lower left corner of the sheet.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.document.canvas import (
    SUBTITLE,
    WIDTH,
    figure_with_headline,
    save_figure,
)
from nestsim.document.figures import Shape
from nestsim.document.lettering import filled, text_width
from nestsim.document.paints import INK, Swatch
from nestsim.document.parts import Document, FigureBlock
from nestsim.document.shapes import Margins, draw_shape, margins_of, texture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PANELS = 12
"""Figures of one picture; of more the first ones are drawn."""

_POINT = "  ·  "
"""Between the parts of the subtitle."""

_HEAD, _SIDE, _BETWEEN, _GAP = 1.1, 0.2, 0.55, 0.3
"""Height of the headline, margin at both sides, room between columns, between rows."""

_TITLE, _LEGEND, _NOTE = 13.0, 11.0, 10.0
"""Sizes of the letters [point]."""

_LINE = 1.45 / 72.0
"""Height of a line for each point of its letters."""

_MARK, _APART = 0.34, 0.28
"""Width of a mark of a legend with the space behind it, and space between entries."""


def has_picture(document: Document) -> bool:
    """Return whether any figure of a document can be drawn."""
    return any(_shape(block) is not None for block in document.figures)


def draw_document(document: Document, path: Path) -> None:
    """Draw the figures of a document that has some into a file."""
    blocks = [block for block in document.figures if _shape(block) is not None]
    rows = _rows(blocks[:MOST_PANELS])
    heights = [max(panel.height for panel in row) for row in rows]
    height = _HEAD + sum(heights) + _GAP * len(rows)
    verdict, subtitle = document.headline.verdict, _subtitle(document, len(blocks))
    with figure_with_headline(verdict, subtitle, height) as (sheet, _):
        top = height - _HEAD
        for row, reach in zip(rows, heights, strict=True):
            left = _SIDE
            for panel in row:
                _draw_panel(sheet, panel, left, top)
                left += panel.width + _BETWEEN
            top -= reach + _GAP
        save_figure(sheet, path)


def _subtitle(document: Document, num_figures: int) -> str:
    """Return what the picture is about, with as many key figures as have room."""
    parts = [document.subject]
    if num_figures > MOST_PANELS:
        parts.append(f"the first {MOST_PANELS} of {num_figures} figures")
    for figure in document.headline.key_figures:
        parts.append(f"{figure.name} {figure.value}")
        if text_width(_POINT.join(parts), SUBTITLE) > WIDTH - 2 * _SIDE:
            parts.pop()
            break
    return _POINT.join(parts)


def _shape(block: FigureBlock) -> Shape | None:
    """Return what is drawn; None for what only the page draws."""
    return None if isinstance(block.drawing, Mapping) else block.drawing


@dataclass(frozen=True, slots=True)
class _Panel:
    """A figure with what stands around it."""

    shape: Shape
    width: float
    title: str
    legend: tuple[tuple[tuple[float, Swatch], ...], ...]
    """Lines of entries, each with its distance from the panel's left end."""
    note: str
    margins: Margins

    @classmethod
    def of(cls, block: FigureBlock, width: float) -> "_Panel":
        shape = _shape(block)
        assert shape is not None
        return cls(
            shape=shape,
            width=width,
            title=filled(block.title, _TITLE, width, 3, "bold"),
            legend=tuple(_legend_lines(block.entries, width)),
            note=filled(block.below, _NOTE, width, 4),
            margins=margins_of(shape, width),
        )

    @property
    def top(self) -> float:
        """Height of title and legend."""
        lines = _height(self.title, _TITLE) + len(self.legend) * _LINE * _LEGEND
        return lines + self.margins.top

    @property
    def height(self) -> float:
        body = self.margins.height + self.margins.bottom
        return self.top + body + _height(self.note, _NOTE)


def _rows(blocks: Sequence[FigureBlock]) -> list[list[_Panel]]:
    """Return panels in rows: figures over time in whole rows, others in pairs."""
    whole = WIDTH - 2 * _SIDE
    half = (whole - _BETWEEN) / 2
    rows: list[list[_Panel]] = []
    for follows, group in itertools.groupby(blocks, lambda block: block.follows_window):
        members = list(group)
        alone = len(members) if follows else len(members) % 2
        rows += [[_Panel.of(block, whole)] for block in members[:alone]]
        pairs = zip(members[alone::2], members[alone + 1 :: 2], strict=True)
        rows += [[_Panel.of(block, half) for block in pair] for pair in pairs]
    return rows


def _height(text: str, size: float) -> float:
    return (text.count("\n") + 1) * _LINE * size if text else 0.0


def _legend_lines(
    entries: Sequence[Swatch], room: float
) -> list[tuple[tuple[float, Swatch], ...]]:
    """Return the entries of a legend in lines that are no wider than a room."""
    lines: list[list[tuple[float, Swatch]]] = []
    reached = room
    for entry in entries:
        width = _MARK + text_width(entry.name, _LEGEND)
        if reached + width > room:
            lines.append([])
            reached = 0.0
        lines[-1].append((reached, entry))
        reached += width + _APART
    return [tuple(line) for line in lines]


def _draw_panel(sheet: "Figure", panel: _Panel, left: float, top: float) -> None:
    inches = sheet.dpi_scale_trans
    words: dict[str, Any] = {"transform": inches, "va": "top", "parse_math": False}
    sheet.text(left, top, panel.title, size=_TITLE, weight="bold", **words)
    line_top = top - _height(panel.title, _TITLE)
    for line in panel.legend:
        for distance, entry in line:
            _draw_entry(sheet, entry, left + distance, line_top)
        line_top -= _LINE * _LEGEND
    margins = panel.margins
    bottom = top - panel.top - margins.height
    width, height = sheet.get_size_inches()
    axes = sheet.add_axes(
        (
            (left + margins.left) / width,
            bottom / height,
            (panel.width - margins.left - margins.right) / width,
            margins.height / height,
        )
    )
    draw_shape(axes, panel.shape)
    note_top = bottom - margins.bottom
    sheet.text(left, note_top, panel.note, size=_NOTE, color=INK, **words)


def _draw_entry(sheet: "Figure", entry: Swatch, left: float, top: float) -> None:
    """Draw an entry of a legend: its mark, and its name behind it."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    inches = sheet.dpi_scale_trans
    look = texture(entry)
    if entry.line:
        middle = top - 0.1
        mark = [left, left + _MARK - 0.08], [middle, middle]
        sheet.add_artist(Line2D(*mark, transform=inches, linewidth=2.0, **look))
    else:
        place = left, top - 0.17
        patch = Rectangle(place, _MARK - 0.08, 0.15, transform=inches, **look)
        sheet.add_artist(patch)
    sheet.text(
        left + _MARK,
        top,
        entry.name,
        size=_LEGEND,
        transform=inches,
        va="top",
        parse_math=False,
    )
