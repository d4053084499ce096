"""Memory of a step: what each stage holds over time, and what its peak is made of."""

from typing import TYPE_CHECKING

from nestsim.document.paints import Swatch, fill, line_colour, line_dash, part_paint
from nestsim.document.parts import DataTable, FigureBlock
from nestsim.document.vega.drawing import (
    TITLED_AXIS_ROOM,
    Drawing,
    drawing,
    plain_field,
    rounded,
    rows_of,
    window_axis,
    window_params,
)
from nestsim.page.tables import data_table
from nestsim.report.figures.data import (
    fullest_stage,
    memory_parts,
    memory_steps,
    memory_title,
    time_unit,
)
from nestsim.report.figures.panels import GIB
from nestsim.report.tables import add_row, new_table
from nestsim.report.wording import plural
from topologies.units import format_duration, format_size

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate
    from nestsim.simulator.system import Replay

_FEW_STAGES = 8
"""So many lines can be told apart, each by its colour and its dashes."""

_DASHES = {"usable": [5, 3], "device": [1, 2]}
_DASH_WORDS = {"usable": "Dashed", "device": "Dotted"}
"""Limit -> its line."""

_LINES = 240
"""Height of the lines [pixel]."""

_BAR, _LEAST_BARS = 26, 78
"""Height of a bar, and of the smallest figure of bars [pixel]."""


def memory_lines(
    candidate: "Candidate", memory: float, usable_memory: float
) -> FigureBlock:
    """Return what a device of each stage holds over the step.

    Parameters
    ----------
    candidate
        The plan and its replay.
    memory
        Of one device [byte].
    usable_memory
        What tensors may take of it [byte].
    """
    replay = candidate.replay
    named = _named_stages(replay)
    others = len(replay.memory) - len(named)
    legend = [
        Swatch(name=f"stage {stage}", paint=str(place), line=True)
        for place, stage in enumerate(named)
    ]
    rest = f"Thin and grey: {plural(others, 'other stage')}." if others else ""
    return FigureBlock(
        name="memory",
        title=memory_title(candidate, usable_memory),
        about="Lines of the memory that a device of each stage holds over the step, "
        "below the limit of what tensors may take.",
        drawing=_lines(replay, named, _limits(memory, usable_memory)),
        table=_peaks_table(replay),
        legend=tuple(legend),
        follows_window=True,
        note=rest,
    )


def memory_bars(
    candidate: "Candidate", memory: float, usable_memory: float
) -> FigureBlock:
    """Return what each stage's peak is made of; parameters as `memory_lines`."""
    replay = candidate.replay
    parts = memory_parts(replay)
    largest = max(parts, key=lambda name: float(parts[name].max()), default="nothing")
    return FigureBlock(
        name="memory-parts",
        title=f"The largest part of a peak is {largest}",
        about="Bars of what the memory of each stage consists of at its peak.",
        drawing=_bars(replay, _limits(memory, usable_memory)),
        table=_parts_table(replay),
        legend=tuple(Swatch(name=name, paint=part_paint(name)) for name in parts),
        note=" ".join(
            f"{_DASH_WORDS[name]}: {name}, {limit:.4g} GiB."
            for name, limit in _limits(memory, usable_memory).items()
        ),
    )


def _limits(memory: float, usable_memory: float) -> dict[str, float]:
    limits = {"usable": usable_memory / GIB}
    if usable_memory != memory:
        limits["device"] = memory / GIB
    return limits


def _named_stages(replay: "Replay") -> list[int]:
    """Return the stages whose lines are told apart."""
    count = len(replay.memory)
    if count <= _FEW_STAGES:
        return list(range(count))
    return sorted({0, fullest_stage(replay), count // 2, count - 1})


def _lines(replay: "Replay", named: list[int], limits: dict[str, float]) -> Drawing:
    scale, unit = time_unit(replay.iteration_time)
    few = len(replay.memory) <= _FEW_STAGES
    fullest = fullest_stage(replay)
    columns: dict[str, list[object]] = {"time": [], "held": [], "stage": []}
    for stage, timeline in enumerate(replay.memory):
        times, held = memory_steps(timeline, replay.iteration_time, 400 if few else 160)
        columns["time"] += [rounded(x) for x in (times / scale).tolist()]
        columns["held"] += [rounded(x, 5) for x in (held / GIB).tolist()]
        columns["stage"] += [stage] * times.size
    layers: list[Drawing] = []
    others = [k for k in range(len(replay.memory)) if k not in named]
    for stage in (*others, *named):
        place = named.index(stage) if stage in named else None
        layers.append(_line(stage, place, is_fullest=stage == fullest, unit=unit))
    highest = max(*limits.values(), *(one.peak / GIB for one in replay.memory))
    for name, limit in limits.items():
        layers += _limit_line(name, limit)
    layers[0]["encoding"]["y"]["scale"] = {"domain": [0, rounded(1.08 * highest, 4)]}
    return drawing(
        *layers,
        height=_LINES,
        params=window_params(rounded(replay.iteration_time / scale)),
        data=rows_of(columns),
    )


def _line(stage: int, place: int | None, *, is_fullest: bool, unit: str) -> Drawing:
    style: Drawing = {"stroke": "var(--rule-strong)", "strokeWidth": 0.8}
    if place is not None:
        style = {
            "stroke": line_colour(place),
            "strokeDash": line_dash(place),
            "strokeWidth": 2.8 if is_fullest else 1.8,
        }
    return {
        "transform": [{"filter": f"datum.stage === {stage}"}],
        "mark": {"type": "line", "interpolate": "step-after", "clip": True, **style},
        "encoding": {
            "x": window_axis("time", unit),
            "y": {
                "field": "held",
                "type": "quantitative",
                "axis": {
                    "title": "memory held [GiB]",
                    "tickCount": 5,
                    **TITLED_AXIS_ROOM,
                },
            },
        },
    }


def _limit_line(name: str, limit: float) -> list[Drawing]:
    at = {"datum": rounded(limit, 5), "type": "quantitative"}
    return [
        {
            "data": {"values": [{}]},
            "mark": {"type": "rule", "strokeDash": _DASHES[name], "strokeWidth": 1.2},
            "encoding": {"y": at},
        },
        {
            "data": {"values": [{}]},
            "mark": {
                "type": "text",
                "align": "right" if name == "device" else "left",
                "baseline": "bottom",
                "dy": -3,
                "stroke": "var(--ground)",
                "strokeWidth": 4,
            },
            "encoding": {
                "y": at,
                "x": {"value": "width" if name == "device" else 4},
                "text": {"value": f"{name}: {limit:.4g} GiB"},
            },
        },
    ]


def _bars(replay: "Replay", limits: dict[str, float]) -> Drawing:
    count = len(replay.memory)
    columns: dict[str, list[object]] = {
        name: [] for name in ("stage", "from", "to", "fill", "name", "words", "tip")
    }
    reached = [0.0] * count
    for name, values in memory_parts(replay).items():
        for stage, value in enumerate(values.tolist()):
            columns["stage"].append(f"stage {stage}")
            columns["from"].append(rounded(reached[stage] / GIB))
            reached[stage] += value
            columns["to"].append(rounded(reached[stage] / GIB))
            columns["fill"].append(fill(part_paint(name)))
            columns["name"].append(name)
            columns["words"].append(f"{value / GIB:.1f}")
            columns["tip"].append(f"stage {stage}, {name}: {format_size(value)}")
    highest = max(*limits.values(), *(one.peak / GIB for one in replay.memory))
    stage_axis = {
        "field": "stage",
        "type": "nominal",
        "sort": None,
        "scale": {"paddingInner": 0.25, "paddingOuter": 0.12},
        "axis": {"title": None, "ticks": False, "domain": False, "labelOverlap": True},
    }
    top = rounded(1.05 * highest, 4)
    marks: list[Drawing] = [
        {
            "mark": {"type": "bar", "strokeWidth": 0.8},
            "encoding": {
                "y": stage_axis,
                "x": {
                    "field": "from",
                    "type": "quantitative",
                    "scale": {"domain": [0, top], "nice": False},
                    "axis": {"title": "held at the stage's peak [GiB]", "tickCount": 6},
                },
                "x2": {"field": "to"},
                "fill": plain_field("fill"),
                "stroke": {"value": "var(--ground)"},
                "tooltip": {"field": "tip", "type": "nominal"},
            },
        },
        {
            "transform": [
                {"calculate": "(datum.from + datum.to) / 2", "as": "middle"},
                {
                    "filter": f"(datum.to - datum.from) / {top} * width > "
                    "8 + 7 * length(datum.words)"
                },
            ],
            "mark": {
                "type": "text",
                "fontSize": 11,
                "fill": "#000000",
                "stroke": "#ffffff",
                "strokeWidth": 3,
                "strokeJoin": "round",
                "tooltip": None,
            },
            "encoding": {
                "y": stage_axis,
                "x": {"field": "middle", "type": "quantitative"},
                "text": {"field": "words"},
            },
        },
    ]
    for name, limit in limits.items():
        marks.append(
            {
                "data": {"values": [{}]},
                "mark": {
                    "type": "rule",
                    "strokeDash": _DASHES[name],
                    "strokeWidth": 1.2,
                },
                "encoding": {"x": {"datum": rounded(limit, 5), "type": "quantitative"}},
            }
        )
    height = max(_LEAST_BARS, (_BAR if count <= 32 else 10) * count)
    return drawing(*marks, height=height, data=rows_of(columns))


def _peaks_table(replay: "Replay") -> DataTable:
    numbers = ("Peak", "At")
    table = new_table("Stage", *numbers, numbers=numbers)
    for stage, timeline in enumerate(replay.memory):
        when = format_duration(timeline.peak_time)
        add_row(table, str(stage), format_size(timeline.peak), when)
    return data_table(table, "Highest memory of a device of each stage")


def _parts_table(replay: "Replay") -> DataTable:
    parts = memory_parts(replay)
    numbers = (*parts, "total")
    table = new_table("Stage", *numbers, numbers=numbers)
    for stage, timeline in enumerate(replay.memory):
        sizes = [format_size(float(values[stage])) for values in parts.values()]
        add_row(table, str(stage), *sizes, format_size(timeline.peak))
    return data_table(table, "What the peak of each stage is made of")
