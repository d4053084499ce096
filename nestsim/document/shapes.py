"""Each kind of figure on axes: curves, bars, stacks, maps, Pareto fronts, clouds."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nestsim.document.canvas import heat_colours, plain_logarithms, write_beside
from nestsim.document.figures import (
    BETTER,
    STRONGEST,
    BarGroups,
    CostFront,
    Curves,
    DrawnCurve,
    FrontPoint,
    HeatMap,
    Scatter,
    Shape,
    StackedBar,
    Stacks,
    Strips,
)
from nestsim.document.lettering import (
    DPI,
    shortened,
    size_that_fits,
    spaced,
    text_width,
    widest,
    wrapped,
)
from nestsim.document.paints import DASHES, DISTINCT, INK, PAINTS, Swatch, ink_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES, _TICKS, _LABEL = 11.0, 10.0, 11.0
"""Sizes of names of rows, of numbers at axes, and of titles of axes [point]."""

_MOST_MARKED = 40
"""Points of a curve that are marked one by one."""

_POINTS = ("o", "s", "^", "D", "P", "v")

_DOT: Mapping[str, Any] = MappingProxyType(
    {
        "markersize": 8,
        "markerfacecolor": "white",
        "markeredgecolor": INK,
        "linestyle": "none",
        "zorder": 4,
        "clip_on": False,
    }
)
"""Diamonds on bars."""

_HATCHES: Mapping[str, str] = MappingProxyType(
    {
        "plain": "",
        "rising": "//",
        "falling": "\\\\",
        "dots": "..",
        "lying": "--",
        "standing": "||",
        "grid": "++",
        "net": "xx",
        "wide": "/",
        "checks": "oo",
    }
)
"""Texture of a paint -> what matplotlib calls it."""


class Margins(NamedTuple):
    """Height of the axes of a figure, and room for what stands beside them [inch]."""

    height: float
    left: float
    right: float = 0.15
    top: float = 0.12
    bottom: float = 0.66


def texture(entry: Swatch) -> dict[str, Any]:
    """Return how matplotlib draws the mark of a legend's entry."""
    if entry.line:
        return _stroke(int(entry.paint), entry.dashes)
    return _fill(entry.paint)


def _stroke(colour: int, number: int) -> dict[str, Any]:
    dash = DASHES[number % len(DASHES)]
    solid = dash[-1] == 0
    return {
        "color": DISTINCT[colour % len(DISTINCT)],
        "linestyle": "-" if solid else (0, tuple(0.5 * part for part in dash)),
    }


def _fill(paint: str) -> dict[str, Any]:
    look = PAINTS[paint]
    hatch = _HATCHES[look.texture]
    return {
        "facecolor": look.colour,
        "edgecolor": "white",
        "linewidth": 0.6,
        "hatch": hatch,
    }


def margins_of(shape: Shape, width: float) -> Margins:
    """Return what a figure needs in a panel of a width [inch]."""
    if isinstance(shape, Curves | CostFront | Scatter):
        return Margins(3.3 if width < 10 else 4.0, 0.85)
    if isinstance(shape, Strips):
        names = [row.name for row in shape.rows]
        return Margins(max(0.3 * len(names), 0.9), _room_of(names, width), right=0.9)
    if isinstance(shape, HeatMap):
        rows = [row.name for group in shape.groups for row in group.rows]
        headings = sum(bool(group.name) for group in shape.groups)
        left = _room_of(rows, width)
        cell = (width - left - 0.15) / len(shape.columns)
        names = [wrapped(name, _TICKS, cell) for name in shape.columns]
        lines = 1 + max(name.count("\n") for name in names)
        height = max(0.36 * (len(rows) + headings), 0.8)
        return Margins(height, left, bottom=0.5 + 0.2 * lines)
    groups = shape.groups if isinstance(shape, BarGroups) else ()
    rows = [bar.name for bar in shape.bars]
    height = 0.36 * (len(rows) + sum(bool(group.name) for group in groups))
    return Margins(max(height, 0.5), _room_of(rows, width))


def _room_of(names: Sequence[str], width: float) -> float:
    """Return the width of the column of names of rows."""
    return min(0.15 + widest(names, _NAMES), 0.35 * width)


def draw_shape(axes: "Axes", shape: Shape) -> None:
    """Draw a figure on axes that keep their size."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=_TICKS)
    _DRAW[type(shape)](axes, shape)
    axes.set_xlabel(shape.across, size=_LABEL, parse_math=False)
    up = shape.up if isinstance(shape, Curves | CostFront | Scatter) else ""
    axes.set_ylabel(up, size=_LABEL, parse_math=False)


def _size(axes: "Axes") -> tuple[float, float]:
    """Return width and height of axes [inch]."""
    box = axes.get_window_extent()
    return box.width / DPI, box.height / DPI


def _draw_curves(axes: "Axes", shape: Curves) -> None:
    for number, (curve, width, colour) in enumerate(
        zip(shape.curves, shape.widths(), shape.colours, strict=True)
    ):
        xs = [point.x for point in curve.points]
        stroke = _stroke(colour, number)
        if shape.stepped:
            look = stroke if curve.name else {"color": "0.75"}
            ys = [point.y for point in curve.points]
            axes.step(xs, ys, where="post", linewidth=width, **look)
            continue
        if curve.has_band:
            low, high = (
                [math.nan if end is None else end for end in ends]
                for ends in zip(*((p.low, p.high) for p in curve.points), strict=True)
            )
            paint = stroke["color"]
            axes.fill_between(xs, low, high, color=paint, alpha=0.22, linewidth=0)
        _draw_line(axes, curve, stroke | {"linewidth": width}, number)
    line: dict[str, Any] = {"color": INK, "linestyle": ":", "linewidth": 1.3}
    for place in shape.marks.upright:
        axes.axvline(place, zorder=0, **line)
    for place in shape.marks.level:
        axes.axhline(place, zorder=0, **line)
    named = zip(shape.marks.level, shape.marks.names, strict=False)
    for number, (place, name) in enumerate(named):
        # At the left and at the right in turn: limits may be near each other.
        axes.annotate(
            name,
            (number % 2, place),
            (0, 2),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            ha="right" if number % 2 else "left",
            size=_TICKS,
            parse_math=False,
        )
    axes.set_ylim(*shape.heights)
    axes.grid(axis="y", alpha=0.3)
    _scale(axes, shape)


def _draw_line(
    axes: "Axes", curve: DrawnCurve, look: Mapping[str, Any], number: int
) -> None:
    """Draw a curve, each of its points if they are few."""
    import seaborn as sns

    is_marked = len(curve.points) <= _MOST_MARKED
    sns.lineplot(
        x=[point.x for point in curve.points],
        y=[point.y for point in curve.points],
        estimator=None,
        marker=_POINTS[number % len(_POINTS)] if is_marked else None,
        markersize=6.5,
        markerfacecolor="white",
        markeredgecolor=look["color"],
        markeredgewidth=1.4,
        legend=False,
        ax=axes,
        **look,
    )


def _scale(axes: "Axes", shape: Curves) -> None:
    """Set the horizontal axis: its ends, and as many names as can be read."""
    if shape.logarithmic:
        axes.set_xscale("log", base=2)
    places, reach = shape.places, shape.reach
    if reach is not None:
        low, high = map(math.log, reach) if shape.logarithmic else reach
        room = 0.02 * (high - low)
        ends = low - room, high + room
        axes.set_xlim(*(map(math.exp, ends) if shape.logarithmic else ends))
    if shape.stepped:
        axes.set_xlim(0.0, places[-1])
        return
    if shape.round_ticks and reach is not None:
        axes.locator_params(axis="x", nbins=7)
        return
    names = [
        f"{place:g}" if shape.names is None else shape.names[place] for place in places
    ]
    width, _ = _size(axes)
    at = axes.transAxes.inverted().transform(
        axes.transData.transform([(place, 0.0) for place in places])
    )
    inches = [width * float(x) for x, _ in at]
    step = next(
        step
        for step in range(1, len(places) + 1)
        if len(spaced(inches[::step], names[::step], _TICKS)) == len(names[::step])
    )
    axes.set_xticks(places[::step], names[::step], parse_math=False)
    axes.minorticks_off()


def _draw_bars(axes: "Axes", shape: BarGroups) -> None:
    rows: list[int] = []
    row = 0
    for group in shape.groups:
        if group.name:
            axes.text(
                0.0, row, group.name, va="center", weight="bold", parse_math=False
            )
            row += 1
        rows += range(row, row + len(group.bars))
        row += len(group.bars)
    bars = shape.bars
    for place, bar in zip(rows, bars, strict=True):
        _draw_bar(axes, place, 0.0, bar.length or 0.0, bar.paint)
    for place, bar in zip(rows, bars, strict=True):
        if bar.mark is not None:
            _draw_mark(axes, bar.mark, place)
        if bar.dot is not None:
            marker = ">" if bar.dot > shape.reach else "D"
            axes.plot(min(bar.dot, shape.reach), place, marker=marker, **_DOT)
        if bar.whisker is not None:
            axes.plot(bar.whisker, [place, place], color=INK, linewidth=2.0)
    words = [
        (
            bar.length or 0.0,
            [
                min(end, shape.reach)
                for end in (bar.mark, bar.dot, *(bar.whisker or ()))
                if end is not None
            ],
            # A diamond is wider than a line.
            bar.words if bar.dot is None else f" {bar.words}",
        )
        for bar in bars
    ]
    _write_words(axes, rows, words)
    _name_rows(axes, rows, [bar.name for bar in bars], row)


def _write_words(
    axes: "Axes",
    rows: Sequence[int],
    bars: Sequence[tuple[float, Sequence[float], str]],
    low: float = 0.0,
) -> None:
    """Write words behind bars of a length; behind their marks if one is in the way."""
    whole = max(max(length, *marks, 0.0) for length, marks, _ in bars) or 1.0
    inch = whole / (0.85 * _size(axes)[0])
    ends = [
        length
        if all(length + inch * (0.2 + text_width(words, 12.0)) < mark for mark in marks)
        else max(length, *marks)
        for length, marks, words in bars
    ]
    write_beside(axes, ends, rows, [words for _, _, words in bars], low)
    last = max((max(marks, default=0.0) for _, marks, _ in bars), default=0.0)
    axes.set_xlim(low, max(axes.get_xlim()[1], 1.02 * last))


def _write_parts(axes: "Axes", row: int, bar: StackedBar) -> None:
    """Write the length of each part into it that has room for it."""
    inches = _size(axes)[0] / axes.get_xlim()[1]
    reached = 0.0
    for part in bar.parts:
        words = f"{part.length:,.0f}" if part.length >= 100 else f"{part.length:.3g}"
        room = 0.85 * inches * part.length
        size = size_that_fits([words], room, largest=10.0, smallest=8.0)
        if size is not None:
            colour = PAINTS[part.paint].colour
            axes.text(
                reached + part.length / 2,
                row,
                words,
                size=size,
                ha="center",
                va="center",
                color=ink_on(colour),
                bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.0},
            )
        reached += part.length


def _draw_bar(axes: "Axes", row: int, left: float, length: float, paint: str) -> None:
    """Draw a bar, without looking for units and limits as ``barh`` does."""
    from matplotlib.patches import Rectangle

    bar = Rectangle((left, row - 0.36), length, 0.72, **_fill(paint))
    axes.add_patch(bar)


def _draw_mark(axes: "Axes", mark: float, row: int) -> None:
    """Draw a line across a bar."""
    ends = [row - 0.4, row + 0.4]
    axes.plot([mark, mark], ends, color=INK, linewidth=2.5)


def _draw_stacks(axes: "Axes", shape: Stacks) -> None:
    low, high = shape.reach
    for row, bar in enumerate(shape.bars):
        reached = bar.start
        for part in bar.parts:
            _draw_bar(axes, row, reached, part.length, part.paint)
            reached += part.length
        if bar.mark is not None:
            _draw_mark(axes, bar.mark, row)
    for limit in shape.limits:
        axes.axvline(limit, color=INK, linestyle=(0, (5, 3)), linewidth=1.3)
    rows = list(range(len(shape.bars)))
    ends = [
        (max(bar.ends), [] if bar.mark is None else [bar.mark], bar.words)
        for bar in shape.bars
    ]
    _write_words(axes, rows, ends, 1.03 * low)
    if low < 0.0:
        axes.axvline(0.0, color=INK, linewidth=1)
    axes.set_xlim(1.03 * low, max(axes.get_xlim()[1], 1.01 * high))
    if all(len(bar.parts) > 1 or not bar.start for bar in shape.bars):
        for row, bar in enumerate(shape.bars):
            _write_parts(axes, row, bar)
    _name_rows(axes, rows, [bar.name for bar in shape.bars], len(rows))


def _draw_strips(axes: "Axes", shape: Strips) -> None:
    from matplotlib.colors import PowerNorm

    count = len(shape.rows)
    mesh = axes.pcolormesh(
        shape.edges,
        np.arange(count + 1) - 0.5,
        np.array([row.shares for row in shape.rows]),
        cmap=heat_colours(),
        norm=PowerNorm(0.5, vmin=0.0, vmax=1.0),
    )
    for row in range(1, count):
        if shape.rows[row].group != shape.rows[row - 1].group:
            axes.axhline(row - 0.5, color=INK, linewidth=1.4)
    _name_rows(axes, range(count), [row.name for row in shape.rows], count)
    axes.set_ylim(count - 0.5, -0.5)
    scale = axes.inset_axes((1.01, 0.0, 0.012, 1.0))
    shares = (0.0, 0.05, 0.2, 0.5, 1.0)
    figure = axes.get_figure()
    assert figure is not None
    figure.colorbar(
        mesh, cax=scale, ticks=shares, format=lambda share, _: f"{100 * share:.0f} %"
    )
    scale.tick_params(labelsize=_TICKS)


def _name_rows(
    axes: "Axes", rows: Sequence[float], names: Sequence[str], count: int
) -> None:
    """Write names beside rows, the first row on top."""
    # The column of names takes at most 0.35 of the panel, the axes all that is left.
    room = 0.35 / 0.65 * _size(axes)[0] - 0.15
    axes.set_yticks(
        list(rows),
        [shortened(name, _NAMES, room) for name in names],
        size=_NAMES,
        parse_math=False,
    )
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(count - 0.4, -0.6)


def _draw_heat(axes: "Axes", shape: HeatMap) -> None:
    import seaborn as sns
    from matplotlib.colors import LinearSegmentedColormap

    scale = shape.strength()
    strengths: list[list[float]] = []
    words: list[list[str]] = []
    names: list[str] = []
    for group in shape.groups:
        if group.name:
            strengths.append([math.nan] * len(shape.columns))
            words.append([""] * len(shape.columns))
            axes.text(
                0.05,
                len(names) + 0.5,
                group.name,
                va="center",
                weight="bold",
                parse_math=False,
            )
            names.append("")
        for row in group.rows:
            names.append(row.name)
            words.append(["" if cell is None else cell.words for cell in row.cells])
            strengths.append(
                [
                    math.nan
                    if cell is None
                    else math.copysign(scale.of(cell.value)[1], cell.value)
                    for cell in row.cells
                ]
            )
    width, _ = _size(axes)
    cell_width = width / len(shape.columns)
    texts = [text for row in words for text in row]
    size = size_that_fits(texts, 0.92 * cell_width, largest=11.0, smallest=6.5)
    colours = [_tint(BETTER), (1.0, 1.0, 1.0), _tint(scale.series)]
    sns.heatmap(
        np.array(strengths),
        cmap=LinearSegmentedColormap.from_list("signed", colours),
        vmin=-STRONGEST,
        vmax=STRONGEST,
        linewidths=0.8,
        linecolor="#dddddd",
        annot=None if size is None else np.array(words),
        fmt="",
        annot_kws={"size": size, "color": INK, "parse_math": False},
        cbar=False,
        xticklabels=False,
        yticklabels=False,
        ax=axes,
    )
    axes.tick_params(length=0)
    _name_rows(axes, [row + 0.5 for row in range(len(names))], names, len(names))
    axes.set_ylim(len(names), 0)
    columns = [wrapped(name, _TICKS, cell_width) for name in shape.columns]
    middles = [(column + 0.5) * cell_width for column in range(len(columns))]
    shown = spaced(middles, columns, _TICKS)
    axes.set_xticks(
        [column + 0.5 for column in shown],
        [columns[column] for column in shown],
        size=_TICKS,
        parse_math=False,
    )


def _tint(series: int) -> tuple[float, float, float]:
    """Return the strongest colour of a series on white."""
    from matplotlib.colors import to_rgb

    red, green, blue = (
        1.0 - STRONGEST * (1.0 - part) for part in to_rgb(DISTINCT[series])
    )
    return red, green, blue


def _draw_front(axes: "Axes", shape: CostFront) -> None:
    import seaborn as sns

    front = [point for point in shape.points if point.on_front]
    others = [point for point in shape.points if not point.on_front]
    axes.step(*_places(front), where="post", color=DISTINCT[0], linewidth=2.0)
    looks: tuple[tuple[Sequence[FrontPoint], Mapping[str, Any]], ...] = (
        (others, {"marker": "s", "s": 45, "facecolor": "white", "edgecolor": INK}),
        (front, {"s": 90, "color": DISTINCT[0], "edgecolor": "white"}),
    )
    for points, look in looks:
        if points:
            xs, ys = _places(points)
            sns.scatterplot(x=xs, y=ys, legend=False, ax=axes, zorder=3, **look)
    for point in front:
        axes.annotate(
            point.label,
            (point.x, point.y),
            (7, -12),
            textcoords="offset points",
            parse_math=False,
        )
    axes.set_xlim(*shape.reach)
    axes.set_ylim(*shape.heights)
    axes.grid(axis="y", alpha=0.3)


def _places(points: Sequence[FrontPoint]) -> tuple[list[float], list[float]]:
    return [point.x for point in points], [point.y for point in points]


def _draw_scatter(axes: "Axes", shape: Scatter) -> None:
    import seaborn as sns

    for number, cloud in enumerate(shape.clouds):
        colour = DISTINCT[number % len(DISTINCT)]
        sns.scatterplot(
            x=[point.x for point in cloud.points],
            y=[point.y for point in cloud.points],
            marker=_POINTS[number % len(_POINTS)],
            color=colour,
            alpha=0.75,
            s=24,
            linewidth=0,
            legend=False,
            ax=axes,
        )
        spread = [point for point in cloud.points if point.low is not None]
        axes.vlines(
            [point.x for point in spread],
            [point.low or point.y for point in spread],
            [point.high or point.y for point in spread],
            colors=colour,
            alpha=0.2,
            linewidth=1,
        )
        if cloud.line:
            xs, ys = zip(*cloud.line, strict=True)
            axes.plot(xs, ys, linewidth=1.6, **_stroke(number, number))
    ends = np.array(shape.reach)
    if shape.bands:
        axes.plot(ends, ends, color=INK, linewidth=1)
    for band in shape.bands:
        low, high = ends * (1.0 - band), ends * (1.0 + band)
        axes.fill_between(ends, low, high, color=INK, alpha=0.07, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*shape.reach)
    axes.set_ylim(*shape.heights)
    plain_logarithms(axes.xaxis)
    plain_logarithms(axes.yaxis)


_DRAW: Mapping[type[Shape], Callable[..., None]] = MappingProxyType(
    {
        Curves: _draw_curves,
        BarGroups: _draw_bars,
        Stacks: _draw_stacks,
        Strips: _draw_strips,
        HeatMap: _draw_heat,
        CostFront: _draw_front,
        Scatter: _draw_scatter,
    }
)
"""Kind of figure -> what draws it."""
