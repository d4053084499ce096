"""What figures show, as data: the page and the picture are both drawn from it.

Lengths and places are in the unit that the axis names. A *tip* is what the page shows
where somebody points at a mark; *words* stand beside it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from nestsim.document.paints import Swatch

LEAST_SPAN = 0.01
"""Part of its highest value that an axis spans at least."""


def axis_ends(low: float, high: float) -> tuple[float, float]:
    """Return the ends of an axis around values, so far apart that nothing is blown up.

    Examples
    --------
    >>> axis_ends(50.0, 100.0)
    (50.0, 100.0)
    >>> axis_ends(99.95, 100.0)
    (99.475, 100.475)
    """
    lacking = LEAST_SPAN * max(abs(low), abs(high)) - (high - low)
    return (low, high) if lacking <= 0 else (low - lacking / 2, high + lacking / 2)


class CurvePoint(NamedTuple):
    """A point of a curve."""

    x: float
    y: float
    tip: str = ""
    """Text that the page shows where somebody points at the point."""

    low: float | None = None
    """Lower end of the band around the curve; None for no band."""

    high: float | None = None
    """Upper end of the band around the curve; None for no band."""


class DrawnCurve(NamedTuple):
    """Points joined by lines, from left to right."""

    name: str
    """What the curve is; empty for a thin grey one that the legend does not name."""

    points: tuple[CurvePoint, ...]
    series: int | None = None
    """Number of the line's colour; None for its place among the curves."""

    @property
    def has_band(self) -> bool:
        """Whether its points have bands."""
        return any(point.low is not None for point in self.points)


class CurveMarks(NamedTuple):
    """Dotted lines across the drawing to read curves by."""

    upright: tuple[float, ...] = ()
    """Where upright lines stand."""

    level: tuple[float, ...] = ()
    """How high level lines lie."""

    names: tuple[str, ...] = ()
    """What is written at the level lines; none for nothing."""


_NO_MARKS = CurveMarks()


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Curves over a number; the vertical axis begins at 0, or below where one does."""

    curves: tuple[DrawnCurve, ...]
    """In the order of the legend; later ones are thinner, so that equal ones show."""

    across: str
    """Title of the horizontal axis."""

    up: str
    """Title of the vertical axis."""

    names: Mapping[float, str] | None = None
    """What places on the horizontal axis are called; None for their numbers."""

    logarithmic: bool = False
    """Whether the horizontal axis is."""

    round_ticks: bool = False
    """Whether the horizontal axis has round numbers in place of those of the points."""

    marks: CurveMarks = _NO_MARKS
    """Lines to read curves by."""

    stepped: bool = False
    """Whether a value holds until the next point, all along the page's common window
    of time, from 0 on."""

    @property
    def legend(self) -> tuple[Swatch, ...]:
        """Return what the lines stand for; nothing for a line alone."""
        return tuple(
            Swatch(name=curve.name, paint=str(colour), line=True, dash=number)
            for number, (curve, colour) in enumerate(
                zip(self.curves, self.colours, strict=True)
            )
            if len(self.curves) > 1 and curve.name
        )

    @property
    def colours(self) -> tuple[int, ...]:
        """Return the number of each line's colour; dashes go by its place."""
        return tuple(
            number if curve.series is None else curve.series
            for number, curve in enumerate(self.curves)
        )

    @property
    def places(self) -> list[float]:
        """Return where points stand, rising."""
        return sorted({point.x for curve in self.curves for point in curve.points})

    @property
    def reach(self) -> tuple[float, float] | None:
        """Return the ends of the horizontal axis; None for a single place."""
        ends = [*self.places, *self.marks.upright]
        low, high = min(ends), max(ends)
        if low == high:
            return None
        return (low, high) if self.logarithmic else axis_ends(low, high)

    @property
    def heights(self) -> tuple[float, float]:
        """Return the ends of the vertical axis."""
        heights = [
            height
            for curve in self.curves
            for point in curve.points
            for height in (point.y, point.low, point.high)
            if height is not None
        ]
        heights += [*self.marks.level, 0.0]
        return 1.08 * min(heights), 1.08 * max(heights) or 1.0

    def widths(self) -> Iterator[float]:
        """Yield the width of each line [pixel]."""
        count = len(self.curves)
        for number, curve in enumerate(self.curves):
            if self.stepped:
                yield 1.8 if curve.name else 0.8
                continue
            yield 1.6 + 2.4 * (count - 1 - number) / max(count - 1, 1)


class GroupedBar(NamedTuple):
    """One member of a group of bars."""

    name: str
    """Text before the bar."""

    length: float | None
    """Of the bar, in the unit of the axis; None for no bar."""

    words: str
    """Text behind the bar."""

    paint: str
    """Name of the bar's paint."""

    mark: float | None = None
    """Where a line across the bar stands; None for none."""

    tip: str = ""
    """Text that the page shows where somebody points at the bar."""

    dot: float | None = None
    """Where a diamond stands, at the end of an axis that is too short; None for
    none."""

    whisker: tuple[float, float] | None = None
    """From where to where a thin line lies on the bar: its range; None for none."""


class BarsOfGroup(NamedTuple):
    """Bars below one name."""

    name: str
    """Of the group; empty for none."""

    bars: tuple[GroupedBar, ...]


_FAR = 1.4
"""Diamonds that are so many times behind all bars are off the axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarGroups:
    """Groups of bars; lines across and diamonds on them are what to compare with."""

    groups: tuple[BarsOfGroup, ...]
    """From top to bottom."""

    across: str
    """Title of the horizontal axis."""

    @classmethod
    def of(cls, bars: Iterable[GroupedBar], across: str) -> "BarGroups":
        """Return bars of one group, which has no name."""
        return cls(groups=(BarsOfGroup("", tuple(bars)),), across=across)

    @property
    def legend(self) -> tuple[Swatch, ...]:
        """Return nothing: bars have their names beside them."""
        return ()

    @property
    def bars(self) -> list[GroupedBar]:
        """Return the bars of all groups."""
        return [bar for group in self.groups for bar in group.bars]

    @property
    def reach(self) -> float:
        """Return the last place on the axis.

        Diamonds far behind all bars and lines do not make the bars short.
        """
        ends = [
            end
            for bar in self.bars
            for end in (bar.length, bar.mark, *(bar.whisker or ()))
            if end
        ]
        limit = _FAR * max(ends, default=1.0)
        ends += [bar.dot for bar in self.bars if bar.dot and bar.dot <= limit]
        return max(ends, default=1.0)


class StackPart(NamedTuple):
    """A part of a bar."""

    name: str
    """What the part is; the legend names each once."""

    length: float
    """In the unit of the axis."""

    paint: str
    """Name of its paint."""

    tip: str
    """Text that the page shows where somebody points at the part."""


class StackedBar(NamedTuple):
    """A bar of parts, one after the other."""

    name: str
    """Text before the bar."""

    parts: tuple[StackPart, ...]
    """From left to right; none for nothing to draw."""

    words: str
    """Text behind the bar."""

    mark: float | None = None
    """Where a line across the bar stands; None for none."""

    start: float = 0.0
    """Where the bar begins: bars of a waterfall begin where the one before ends."""

    @property
    def ends(self) -> tuple[float, float]:
        """Return where the bar begins, and where its last part ends."""
        return self.start, self.start + sum(part.length for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """What makes up each of several things."""

    bars: tuple[StackedBar, ...]
    """From top to bottom."""

    across: str
    """Title of the horizontal axis."""

    limits: tuple[float, ...] = ()
    """Where dashed lines across all bars stand."""

    whole: float = 0.0
    """What bars are a part of: the axis spans at least a hundredth of it."""

    @property
    def legend(self) -> tuple[Swatch, ...]:
        """Return what the parts are, in their order."""
        names = {part.name: part.paint for bar in self.bars for part in bar.parts}
        return tuple(Swatch(name=name, paint=paint) for name, paint in names.items())

    @property
    def reach(self) -> tuple[float, float]:
        """Return the ends of the axis: of the bars, marks and limits, 0 among them."""
        ends = [end for bar in self.bars for end in (*bar.ends, bar.mark or 0.0)]
        low = min(0.0, *ends, *self.limits)
        high = max(0.0, *ends, *self.limits)
        lacking = max(0.0, LEAST_SPAN * self.whole - (high - low))
        if low == high and not lacking:
            return 0.0, 1.0
        return (low, high + lacking) if high >= -low else (low - lacking, high)


HeatMeaning = Literal["plain", "worse"]
"""Whether numbers above 0 are bad news."""

HEAT_SERIES: Mapping[HeatMeaning, int] = MappingProxyType({"plain": 0, "worse": 3})
"""Series whose colour stands for numbers above 0."""

BETTER = 2
"""Series whose colour stands for numbers below 0."""

STRONGEST = 0.55
"""Opacity of the largest number: words on it can be read in the light and the dark."""


class HeatCell(NamedTuple):
    """A number of a map."""

    value: float
    words: str
    """Text in the cell."""

    tip: str
    """Text that the page shows where somebody points at the cell."""


class HeatRow(NamedTuple):
    """A row of a map."""

    name: str
    cells: tuple[HeatCell | None, ...]
    """One for each column; None for no number."""


class HeatGroup(NamedTuple):
    """Rows below one name."""

    name: str
    """Of the group; empty for none."""

    rows: tuple[HeatRow, ...]

    @classmethod
    def of(
        cls,
        name: str,
        rows: Sequence[str],
        num_columns: int,
        cell: Callable[[int, int], HeatCell | None],
    ) -> "HeatGroup":
        """Return the rows of these names, with a cell for each row and column."""
        columns = range(num_columns)
        return cls(
            name,
            tuple(
                HeatRow(row, tuple(cell(place, column) for column in columns))
                for place, row in enumerate(rows)
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Rows in groups, columns, each number written in its cell.

    The stronger the colour the larger the number.
    """

    groups: tuple[HeatGroup, ...]
    """From top to bottom."""

    columns: tuple[str, ...]
    """Names, from left to right."""

    across: str
    """What the columns are."""

    meaning: HeatMeaning = "plain"
    """What numbers above 0 are."""

    @property
    def legend(self) -> tuple[Swatch, ...]:
        """Return nothing: cells have their numbers in them."""
        return ()

    def strength(self) -> "HeatScale":
        """Return how strong the colour of a number is."""
        sizes = [
            abs(cell.value)
            for group in self.groups
            for row in group.rows
            for cell in row.cells
            if cell is not None
        ]
        low, high = min(sizes, default=0.0), max(sizes, default=0.0)
        return HeatScale(low, (high - low) or 1.0, HEAT_SERIES[self.meaning])


class HeatScale(NamedTuple):
    """Numbers of a map -> series and opacity of their colour."""

    low: float
    reach: float
    series: int

    def of(self, value: float) -> tuple[int, float]:
        """Return the series of a number's colour, and the colour's opacity."""
        series = self.series if value > 0 else BETTER
        return series, STRONGEST * (abs(value) - self.low) / self.reach


class FrontPoint(NamedTuple):
    """A point with a price."""

    x: float
    y: float
    on_front: bool
    """Whether no other point is both no dearer and no slower."""

    tip: str
    """Text that the page shows where somebody points at the point."""

    label: str = ""
    """Text beside the point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFront:
    """What is gained over what it costs, and the Pareto front of both."""

    points: tuple[FrontPoint, ...]
    """Those of the front from the cheapest on."""

    across: str
    """Title of the horizontal axis: the cost."""

    up: str
    """Title of the vertical axis: the gain."""

    @property
    def legend(self) -> tuple[Swatch, ...]:
        """Return what the line stands for."""
        return (Swatch(name="on the front", paint="0", line=True),)

    @property
    def reach(self) -> tuple[float, float]:
        """Return the ends of the horizontal axis."""
        return _roomy_ends([point.x for point in self.points])

    @property
    def heights(self) -> tuple[float, float]:
        """Return the ends of the vertical axis."""
        return _roomy_ends([point.y for point in self.points])


def _roomy_ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis on which no point lies at the end."""
    low, high = axis_ends(min(values), max(values))
    room = 0.08 * ((high - low) or 1.0)
    return max(low - room, 0.0), high + room


class Strip(NamedTuple):
    """A row of shares over time."""

    name: str
    """Text above the row."""

    group: str
    """A line parts rows of different groups."""

    shares: tuple[float, ...]
    """One for each interval, from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strips:
    """Rows of shares over the page's common window of time: the darker the more.

    Colours follow the square root: a few percent must not look like nothing.
    """

    rows: tuple[Strip, ...]
    """From top to bottom."""

    edges: tuple[float, ...]
    """Ends of the intervals, one more than there are, rising."""

    across: str
    """Title of the horizontal axis."""

    unit: str
    """Unit of time."""

    @property
    def legend(self) -> tuple[Swatch, ...]:
        """Return nothing: rows have their names above them."""
        return ()


class CloudPoint(NamedTuple):
    """A point of a cloud; both of its places are above 0."""

    x: float
    y: float
    tip: str
    """Text that the page shows where somebody points at the point."""

    low: float | None = None
    """Lower end of the line upright through the point; None for no line."""

    high: float | None = None
    """Upper end of that line; None for no line."""


class Cloud(NamedTuple):
    """Points of one colour, and a line that need not go through them."""

    name: str
    points: tuple[CloudPoint, ...]
    line: tuple[tuple[float, float], ...] = ()
    """Places that the line joins, from left to right; none for no line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Clouds of points over logarithmic axes."""

    clouds: tuple[Cloud, ...]
    """In the order of the legend; later ones lie above."""

    across: str
    """Title of the horizontal axis."""

    up: str
    """Title of the vertical axis."""

    bands: tuple[float, ...] = ()
    """Relative distances from equal places that are shaded, around a line of equality;
    none for no line, and axes of their own."""

    @property
    def legend(self) -> tuple[Swatch, ...]:
        """Return what the colours stand for."""
        return tuple(
            Swatch(name=cloud.name, paint=str(number), line=True)
            if cloud.line
            else Swatch(name=cloud.name, paint=f"series-{number % MOST_CLOUDS}")
            for number, cloud in enumerate(self.clouds)
        )

    @property
    def reach(self) -> tuple[float, float]:
        """Return the ends of the horizontal axis."""
        places = [point.x for cloud in self.clouds for point in cloud.points]
        places += [x for cloud in self.clouds for x, _ in cloud.line]
        return self._ends(places if not self.bands else [*places, *self._heights])

    @property
    def heights(self) -> tuple[float, float]:
        """Return the ends of the vertical axis; with bands, those of the other."""
        return self.reach if self.bands else self._ends(self._heights)

    @property
    def _heights(self) -> list[float]:
        heights = [point.y for cloud in self.clouds for point in cloud.points]
        return heights + [y for cloud in self.clouds for _, y in cloud.line]

    @staticmethod
    def _ends(places: Sequence[float]) -> tuple[float, float]:
        return min(places) / 1.25, max(places) * 1.25


MOST_CLOUDS = 10
"""Clouds that colours tell apart."""

Shape = Curves | BarGroups | Stacks | HeatMap | CostFront | Strips | Scatter
"""What page and picture can draw."""
