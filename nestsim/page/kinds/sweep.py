"""The page of a sweep: of what its ``result.json`` holds."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nestsim.document.figures import (
    BarGroups,
    BarsOfGroup,
    CurvePoint,
    Curves,
    DrawnCurve,
    GroupedBar,
    HeatCell,
    HeatGroup,
    HeatMap,
    HeatRow,
    Shape,
)
from nestsim.document.parts import (
    Block,
    Cell,
    DataTable,
    Document,
    FigureBlock,
    Headline,
    KeyFigure,
    Section,
)
from nestsim.page.kinds.pareto import front_figure
from nestsim.report.cost import hourly
from nestsim.report.figures.pareto import PricedPoint
from nestsim.report.wording import number, percent, plural
from topologies.units import format_duration, format_size

Point = Mapping[str, Any]
"""What became of one point."""

_MOST_ROWS = 2000
"""Points of a table; of more the fastest are shown."""

_MOST_BARS, _MOST_MAPS = 40, 24
"""Bars and maps of a figure; of more the first are drawn."""

_WIDE = 8.0
"""The largest value over the smallest from which an axis is logarithmic."""

_NO_PLAN = "no plan that fits"


def sweep_page(data: Mapping[str, Any]) -> Document:
    """Return the page of a sweep.

    Parameters
    ----------
    data
        As ``result.json`` has it.
    """
    sections = (
        Section(name="throughput", title="Throughput", blocks=_figure(data)),
        Section(name="points", title="Points", blocks=_table(data)),
        Section(name="cost", title="Throughput and cost", blocks=_front(data)),
        Section(name="failed", title="Failed", blocks=_failures(data)),
        Section(name="settings", title="What was varied", blocks=_settings(data)),
    )
    return Document(
        subject=data["scenario"],
        doing="sweep",
        headline=_headline(data),
        sections=tuple(one for one in sections if one.blocks),
    )


def _headline(data: Mapping[str, Any]) -> Headline:
    points: Sequence[Point] = data["points"]
    best = next((one for one in points if one["number"] == data["best"]), None)
    failed = f", {data['num_failed']:,} failed" if data["num_failed"] else ""
    return Headline(
        verdict=data["headline"],
        tone="bad" if best is None else "plain",
        sentences=(f"{plural(len(points), 'point')}{failed}: {data['done']}.",),
        key_figures=() if best is None else _key_figures(data, best),
    )


def _key_figures(data: Mapping[str, Any], best: Point) -> tuple[KeyFigure, ...]:
    row = _found(data, best)
    return (
        KeyFigure(
            name="Fastest point",
            value=f"{number(best['tokens_per_s'])} tokens/s",
            note=best["label"],
        ),
        KeyFigure(
            name="Time per iteration",
            value=format_duration(row["iteration_time_s"]),
            note=f"MFU {percent(row['mfu'])}",
        ),
        KeyFigure(
            name="Peak memory",
            value=format_size(row["peak_memory_bytes"]),
            note=row.get("verdict", "planned"),
        ),
    )


def _found(data: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """Return a point's numbers: of the replay, or planned where nothing was."""
    whose = "planned" if data["what"] == "plan" else "simulated"
    return {
        name.removeprefix(f"{whose}_"): value for name, value in point["result"].items()
    }


def _figure(data: Mapping[str, Any]) -> tuple[Block, ...]:
    """Return throughput over what was varied; nothing where nothing was."""
    varied = data["varied"]
    if not varied or data["best"] is None:
        return ()
    paths = [axis["path"] for axis in varied]
    if len(varied) > 1:
        about, drawing, note = _maps(data)
    elif varied[0]["positions"] is not None:
        about, drawing, note = _line(data)
    else:
        about, drawing, note = _bars(data)
    return (
        FigureBlock(
            name="sweep",
            title=f"Throughput by {', '.join(paths)}",
            about=about,
            drawing=drawing,
            table=_throughputs(data),
            note=note,
        ),
    )


_Figure = tuple[str, Shape, str]
"""What is drawn, in words; the drawing; what to know beside it."""


def _line(data: Mapping[str, Any]) -> _Figure:
    (axis,) = data["varied"]
    places = axis["positions"]
    points = [
        CurvePoint(place, one["tokens_per_s"] / 1e3, _tip(one))
        for place, one in sorted(
            zip(places, data["points"], strict=True), key=lambda pair: pair[0]
        )
        if one["tokens_per_s"] is not None
    ]
    low, high = min(places), max(places)
    missing = len(places) - len(points)
    return (
        "A curve of the throughput over the setting's values.",
        Curves(
            curves=(DrawnCurve(axis["path"], tuple(points)),),
            across=axis["path"],
            up="thousand tokens/s",
            names=dict(zip(places, axis["labels"], strict=True)),
            logarithmic=low > 0 and high / low >= _WIDE,
        ),
        f"{plural(missing, 'value')} with {_NO_PLAN} not drawn." if missing else "",
    )


def _tip(point: Point) -> str:
    speed = point["tokens_per_s"]
    words = _NO_PLAN if speed is None else f"{number(speed)} tokens/s"
    return f"{point['label']}: {words}"


def _bars(data: Mapping[str, Any]) -> _Figure:
    (axis,) = data["varied"]
    bars = [
        GroupedBar(
            label,
            None if one["tokens_per_s"] is None else one["tokens_per_s"] / 1e3,
            "none" if one["tokens_per_s"] is None else number(one["tokens_per_s"]),
            "series-0",
            tip=_tip(one),
        )
        for label, one in zip(axis["labels"], data["points"], strict=True)
    ]
    more = len(bars) - _MOST_BARS
    return (
        "Bars of the throughput, one for each value of the setting.",
        BarGroups(
            groups=(BarsOfGroup("", tuple(bars[:_MOST_BARS])),),
            across="thousand tokens/s",
        ),
        f"The first {_MOST_BARS} of {len(bars)} values." if more > 0 else "",
    )


def _maps(data: Mapping[str, Any]) -> _Figure:
    """Return a map of the first two settings for each combination of the others."""
    rows, columns, *others = data["varied"]
    best = max(filter(None, (one["tokens_per_s"] for one in data["points"])))
    found = dict(zip(_indices(data), data["points"], strict=True))

    def cell(place: tuple[int, ...]) -> HeatCell | None:
        speed = found[place]["tokens_per_s"]
        if speed is None:
            return None
        return HeatCell(speed, f"{100 * speed / best:.1f}", _tip(found[place]))

    combinations = list(itertools.product(*(range(len(o["labels"])) for o in others)))
    groups = [
        HeatGroup(
            ", ".join(
                f"{other['name']} {other['labels'][index]}"
                for other, index in zip(others, choice, strict=True)
            ),
            tuple(
                HeatRow(
                    label,
                    tuple(
                        cell((row, column, *choice))
                        for column in range(len(columns["labels"]))
                    ),
                )
                for row, label in enumerate(rows["labels"])
            ),
        )
        for choice in combinations[:_MOST_MAPS]
    ]
    about = (
        f"Cells have the throughput by {rows['path']} (rows) and {columns['path']} "
        f"(columns), as a share of the highest, {number(best)} tokens/s"
    )
    more = len(combinations) > _MOST_MAPS
    words = f" The first {_MOST_MAPS} of {len(combinations)} maps." if more else ""
    return (
        f"{about}.",
        HeatMap(
            groups=tuple(groups),
            columns=tuple(columns["labels"]),
            across=columns["path"],
        ),
        f"{about} [%]. The stronger, the more; empty: {_NO_PLAN}.{words}",
    )


def _indices(data: Mapping[str, Any]) -> Iterator[tuple[int, ...]]:
    """Yield which value each point has of each setting; the last changes fastest."""
    return itertools.product(*(range(len(axis["labels"])) for axis in data["varied"]))


def _ranked(data: Mapping[str, Any]) -> list[tuple[tuple[int, ...], Point]]:
    """Return all points that a table has, in their order; of many the fastest."""
    pairs = list(zip(_indices(data), data["points"], strict=True))
    if len(pairs) <= _MOST_ROWS:
        return pairs

    def speed(pair: tuple[tuple[int, ...], Point]) -> float:
        found = pair[1]["tokens_per_s"]
        return -math.inf if found is None else -found

    return sorted(pairs, key=speed)[:_MOST_ROWS]


def _throughputs(data: Mapping[str, Any]) -> DataTable:
    return DataTable(
        caption=f"tokens/s at each point{_limited(data)}",
        columns=(*(axis["path"] for axis in data["varied"]), "tokens/s"),
        rows=tuple(
            (*_values(data, place), _tokens(point["tokens_per_s"]))
            for place, point in _ranked(data)
        ),
        numbers=("tokens/s",),
    )


def _limited(data: Mapping[str, Any]) -> str:
    count = len(data["points"])
    return f": the fastest {_MOST_ROWS:,} of {count:,}" if count > _MOST_ROWS else ""


def _values(data: Mapping[str, Any], place: Sequence[int]) -> tuple[Cell | str, ...]:
    """Return the cells of a point's settings, which sort by their numbers."""
    return tuple(
        axis["labels"][index]
        if axis["positions"] is None
        else Cell(axis["labels"][index], axis["positions"][index])
        for axis, index in zip(data["varied"], place, strict=True)
    )


def _tokens(value: float | None) -> Cell | str:
    return "-" if value is None else Cell(number(value), value)


_NUMBERS = ("tokens/s", "Iteration", "MFU", "Peak memory")


def _table(data: Mapping[str, Any]) -> tuple[Block, ...]:
    code = data.get("currency")
    money = ("Cost", f"tokens/{code}") if code else ()
    numbers = ("Point", *_NUMBERS, *money)
    ranked = _ranked(data)
    return (
        DataTable(
            caption=f"All points{_limited(data)}",
            columns=(
                "Point",
                *(axis["name"] for axis in data["varied"]),
                *_NUMBERS,
                *money,
                "Verdict",
            ),
            rows=tuple(
                (
                    Cell(str(point["number"]), point["number"]),
                    *_values(data, place),
                    *_cells(data, point),
                )
                for place, point in ranked
            ),
            numbers=numbers,
            sortable=True,
            shown=next(
                (
                    row
                    for row, (_, point) in enumerate(ranked)
                    if point["number"] == data["best"]
                ),
                None,
            ),
        ),
    )


def _cells(data: Mapping[str, Any], point: Point) -> tuple[Cell | str, ...]:
    code = data.get("currency")
    if point["result"] is None:
        return (*["-"] * (len(_NUMBERS) + (2 if code else 0)), "failed")
    row = _found(data, point)
    memory = row["peak_memory_bytes"]
    cells: list[Cell | str] = [
        _tokens(row["tokens_per_s"]),
        Cell(format_duration(row["iteration_time_s"]), row["iteration_time_s"]),
        Cell(percent(row["mfu"]), row["mfu"]),
        Cell(format_size(memory), memory),
    ]
    if code:
        rate = row.get("cost_per_s")
        cells += [
            "-" if rate is None else Cell(hourly(rate, code), rate),
            _tokens(row.get("tokens_per_currency")),
        ]
    verdict = row.get("verdict", "planned")
    front = ", on the front" if point.get("pareto") else ""
    best = ", best" if point["number"] == data["best"] else ""
    return (*cells, f"{verdict}{best}{front}")


def _front(data: Mapping[str, Any]) -> tuple[Block, ...]:
    """Return throughput over cost; nothing without prices."""
    if not data.get("currency"):
        return ()
    points = [
        PricedPoint(
            one["label"],
            one["result"]["cost_per_s"],
            one["tokens_per_s"],
            one["pareto"],
        )
        for one in data["points"]
        if one["tokens_per_s"] is not None
        and one["result"].get("cost_per_s") is not None
    ]
    front = [one for one in points if one.on_front]
    others = [one for one in points if not one.on_front]
    shown = [*front, *others][: max(_MOST_ROWS, len(front))]
    return (front_figure(shown, data["currency"], "Point"),)


def _failures(data: Mapping[str, Any]) -> tuple[Block, ...]:
    """Return how often each reason was met, the most frequent first."""
    reasons = Counter(one["failure"] for one in data["points"] if one["failure"])
    if not reasons:
        return ()
    return (
        DataTable(
            caption="Why points failed",
            columns=("Reason", "Points"),
            rows=tuple(
                (reason, Cell(f"{count:,}", count))
                for reason, count in reasons.most_common()
            ),
            numbers=("Points",),
        ),
    )


def _settings(data: Mapping[str, Any]) -> tuple[Block, ...]:
    varied = data["varied"]
    if not varied:
        return ()
    return (
        DataTable(
            caption="Settings and their values, the last one changes fastest",
            columns=("Setting", "Values"),
            rows=tuple((axis["path"], ", ".join(axis["labels"])) for axis in varied),
        ),
    )
