"""What a sweep says: the points, the best of them, and what failed."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nestsim.document.figures import (
    BarGroups,
    CurvePoint,
    Curves,
    DrawnCurve,
    GroupedBar,
    HeatCell,
    HeatGroup,
    HeatMap,
    Shape,
)
from nestsim.document.fronts import PricedPoint, front_figure
from nestsim.document.parts import (
    Cell,
    DataTable,
    Document,
    FigureBlock,
    Headline,
    KeyFigure,
    Section,
    cell,
)
from nestsim.document.wording import hourly, number, percent, plural
from nestsim.features.sweep.record import (
    AxisRecord,
    SweepRecord,
    SweptPoint,
    value_label,
)
from topologies.units import format_duration, format_size

_Ranked = tuple[tuple[int, ...], SweptPoint]
"""Which value a point has of each setting, and the point."""

_MOST_ROWS, _MOST_IN_TEXT = 2000, 20
"""Points of a table, and those that the text has; of more the fastest are shown."""

_MOST_BARS, _MOST_MAPS = 40, 12
"""Bars and maps of a figure; of more the first are drawn."""

_WIDE = 8.0
"""The largest value over the smallest from which an axis is logarithmic."""

_NO_PLAN = "no plan that fits"

_MOST_REASONS = 5
"""Reasons of failures that the text has."""


def sweep_document(data: Mapping[str, object]) -> Document:
    """Return what a sweep says.

    Parameters
    ----------
    data
        As ``result.json`` has it.
    """
    record = SweepRecord.read(data)
    return Document.of(record.scenario, "sweep", _headline(record), _sections(record))


def _sections(data: SweepRecord) -> Iterator[Section]:
    drawn = data.varied and data.best is not None
    for name, title, blocks, in_text in (
        # The numbers of the figure are those of the table below.
        ("throughput", "Throughput", [_figure] if drawn else [], False),
        ("points", "Points", [_table], True),
        ("cost", "Throughput and cost", [_front] if data.currency else [], True),
        ("failed", "Failed", [_failures] if data.num_failed else [], True),
        ("settings", "What was varied", [_settings] if data.settings else [], True),
    ):
        yield Section(
            name, title, tuple(block(data) for block in blocks), in_text=in_text
        )


def _headline(data: SweepRecord) -> Headline:
    points = data.points
    best = next((point for point in points if point.number == data.best), None)
    failed = f", {data.num_failed:,} failed" if data.num_failed else ""
    return Headline(
        verdict=data.headline,
        tone="bad" if best is None else "plain",
        sentences=(f"{plural(len(points), 'point')}{failed}: {data.done}.",),
        key_figures=() if best is None else _key_figures(data, best),
    )


def _key_figures(data: SweepRecord, best: SweptPoint) -> tuple[KeyFigure, ...]:
    row = _results(data, best)
    return (
        KeyFigure(
            "Fastest point", f"{number(best.tokens_per_s or 0.0)} tokens/s", best.label
        ),
        KeyFigure(
            "Time per iteration",
            format_duration(row["iteration_time_s"]),
            f"MFU {percent(row['mfu'])}",
        ),
        KeyFigure(
            "Peak memory",
            format_size(row["peak_memory_bytes"]),
            row.get("verdict", "planned"),
        ),
    )


def _results(data: SweepRecord, point: SweptPoint) -> dict[str, Any]:
    """Return a point's numbers: of the replay, or planned where nothing was."""
    whose, result = "planned" if data.what == "plan" else "simulated", point.result
    return {
        name.removeprefix(f"{whose}_"): value for name, value in (result or {}).items()
    }


def _figure(data: SweepRecord) -> FigureBlock:
    """Return throughput over what was varied."""
    varied = data.varied
    paths = [axis.path for axis in varied]
    if len(varied) > 1:
        about, drawing, note = _maps(data)
    elif (places := varied[0].positions) is not None:
        about, drawing, note = _line(data, places)
    else:
        about, drawing, note = _bars(data)
    return FigureBlock(
        name="sweep",
        title=f"Throughput by {', '.join(paths)}",
        about=about,
        drawing=drawing,
        table=_throughputs(data),
        note=note,
    )


_Figure = tuple[str, Shape, str]
"""What is drawn, in words; the drawing; what to know beside it."""


def _line(data: SweepRecord, places: Sequence[float]) -> _Figure:
    (axis,) = data.varied
    points = [
        CurvePoint(place, point.tokens_per_s / 1e3, _tip(point))
        for place, point in sorted(
            zip(places, data.points, strict=True), key=lambda pair: pair[0]
        )
        if point.tokens_per_s is not None
    ]
    low, high = min(places), max(places)
    missing = len(places) - len(points)
    return (
        "A curve of the throughput over the setting's values.",
        Curves(
            curves=(DrawnCurve(axis.path, tuple(points)),),
            across=axis.path,
            up="thousand tokens/s",
            names=dict(zip(places, axis.labels, strict=True)),
            logarithmic=low > 0 and high / low >= _WIDE,
        ),
        f"{plural(missing, 'value')} with {_NO_PLAN} not drawn." if missing else "",
    )


def _tip(point: SweptPoint) -> str:
    speed = point.tokens_per_s
    words = _NO_PLAN if speed is None else f"{number(speed)} tokens/s"
    return f"{point.label}: {words}"


def _bars(data: SweepRecord) -> _Figure:
    (axis,) = data.varied
    bars = [
        GroupedBar(
            label,
            None if point.tokens_per_s is None else point.tokens_per_s / 1e3,
            _NO_PLAN if point.tokens_per_s is None else number(point.tokens_per_s),
            "series-0",
            tip=_tip(point),
        )
        for label, point in zip(axis.labels, data.points, strict=True)
    ]
    more = len(bars) - _MOST_BARS
    return (
        "Bars of the throughput, one for each value of the setting.",
        BarGroups.of(bars[:_MOST_BARS], "thousand tokens/s"),
        f"The first {_MOST_BARS} of {len(bars)} values." if more > 0 else "",
    )


def _maps(data: SweepRecord) -> _Figure:
    """Return a map of the first two settings for each combination of the others."""
    rows, columns, *others = data.varied
    best = max(filter(None, (point.tokens_per_s for point in data.points)))
    points = dict(zip(_indices(data), data.points, strict=True))

    def group(choice: tuple[int, ...]) -> HeatGroup:
        def heat(row: int, column: int) -> HeatCell | None:
            point = points[row, column, *choice]
            speed = point.tokens_per_s
            if speed is None:
                return None
            return HeatCell(speed, f"{100 * speed / best:.1f}", _tip(point))

        name = ", ".join(
            f"{other.name} {other.labels[index]}"
            for other, index in zip(others, choice, strict=True)
        )
        return HeatGroup.of(name, rows.labels, len(columns.labels), heat)

    combinations = list(itertools.product(*(range(len(o.labels)) for o in others)))
    groups = map(group, combinations[:_MOST_MAPS])
    about = (
        f"Cells have the throughput by {rows.path} (rows) and {columns.path} "
        f"(columns), as a share of the highest, {number(best)} tokens/s"
    )
    more = len(combinations) > _MOST_MAPS
    words = f" The first {_MOST_MAPS} of {len(combinations)} maps." if more else ""
    return (
        f"{about}.",
        HeatMap(
            groups=tuple(groups),
            columns=tuple(columns.labels),
            across=columns.path,
        ),
        f"{about} [%]. The stronger, the more; empty: {_NO_PLAN}.{words}",
    )


def _indices(data: SweepRecord) -> Iterator[tuple[int, ...]]:
    """Yield which value each point has of each setting; the last changes fastest."""
    return itertools.product(*(range(len(axis.labels)) for axis in data.varied))


def _ranked(data: SweepRecord) -> list[_Ranked]:
    """Return all points that a table has; of more than a few the fastest first."""
    pairs = list(zip(_indices(data), data.points, strict=True))
    if len(pairs) <= _MOST_IN_TEXT:
        return pairs

    def speed(pair: _Ranked) -> float:
        tokens = pair[1].tokens_per_s
        return math.inf if tokens is None else -tokens

    return sorted(pairs, key=speed)[:_MOST_ROWS]


def _throughputs(data: SweepRecord) -> DataTable:
    return DataTable.of(
        f"tokens/s at each point{_limited(data)}",
        _ranked(data),
        {
            **_values(data, whole=True),
            "tokens/s": lambda pair: cell(pair[1].tokens_per_s, number),
        },
    )


def _limited(data: SweepRecord) -> str:
    count = len(data.points)
    return f": the fastest {_MOST_ROWS:,} of {count:,}" if count > _MOST_ROWS else ""


def _values(
    data: SweepRecord, *, whole: bool = False
) -> dict[str, Callable[[_Ranked], Cell | str]]:
    """Return the columns of the settings, which sort by their numbers.

    They are called by their whole paths or by short names.
    """

    def value(place: int, axis: AxisRecord) -> Callable[[_Ranked], Cell | str]:
        labels, positions = axis.labels, axis.positions
        if positions is None:
            return lambda pair: str(labels[pair[0][place]])
        return lambda pair: Cell(labels[pair[0][place]], positions[pair[0][place]])

    varied = enumerate(data.varied)
    return {
        axis.path if whole else axis.name: value(place, axis) for place, axis in varied
    }


def _table(data: SweepRecord) -> DataTable:
    code, ranked = data.currency, _ranked(data)
    best = [point.number == data.best for _, point in ranked]

    def of(key: str, write: Callable[[float], str]) -> Callable[[_Ranked], Cell | str]:
        def written(pair: _Ranked) -> Cell | str:
            return cell(_results(data, pair[1]).get(key), write)

        return written

    money = {
        "Cost": of("cost_per_s", lambda rate: hourly(rate, str(code))),
        f"tokens/{code}": of("tokens_per_currency", number),
    }
    return DataTable.of(
        f"All points{_limited(data)}",
        ranked,
        {
            "Point": lambda pair: cell(pair[1].number, str),
            **_values(data),
            "tokens/s": of("tokens_per_s", number),
            "Iteration": of("iteration_time_s", format_duration),
            "MFU": of("mfu", percent),
            "Peak memory": of("peak_memory_bytes", format_size),
            **(money if code else {}),
            "Verdict": lambda pair: _verdict(data, pair[1]),
        },
        sortable=True,
        shown=best.index(True) if any(best) else None,
        first=_MOST_IN_TEXT,
    )


def _verdict(data: SweepRecord, point: SweptPoint) -> str:
    if point.result is None:
        return "failed"
    verdict = _results(data, point).get("verdict", "planned")
    best = ", best" if point.number == data.best else ""
    front = ", on the front" if point.pareto else ""
    return f"{verdict}{best}{front}"


def _front(data: SweepRecord) -> FigureBlock:
    """Return throughput over cost."""
    points = [
        PricedPoint(point.label, cost, point.tokens_per_s, point.pareto)
        for point in data.points
        if point.tokens_per_s is not None
        and (cost := (point.result or {}).get("cost_per_s"))
    ]
    front = [point for point in points if point.on_front]
    others = [point for point in points if not point.on_front]
    shown = [*front, *others][: max(_MOST_ROWS, len(front))]
    return front_figure(shown, data.currency or "", "Point")


def _failures(data: SweepRecord) -> DataTable:
    """Return how often each reason was met, the most frequent first."""
    reasons = Counter(point.failure for point in data.points if point.state == "failed")
    return DataTable.of(
        "Failed",
        reasons.most_common(),
        {
            "Points": lambda pair: cell(pair[1], "{:,}".format),
            "Reason": lambda pair: pair[0] or "-",
        },
        first=_MOST_REASONS,
    )


def _settings(data: SweepRecord) -> DataTable:
    return DataTable.of(
        "Settings and their values, the last one changes fastest",
        data.settings.items(),
        {
            "Setting": lambda pair: pair[0],
            "Values": lambda pair: ", ".join(map(value_label, pair[1])),
        },
        first=_MOST_REASONS,
    )
