"""The timeline of a step: what each stage computes and sends.

Bars are columns; the script thins them out to what can be told apart in the window of
time that is shown. Compute stands above, messages and collectives below, stage by
stage.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nestsim.document.paints import Swatch, fill
from nestsim.document.parts import DataTable, FigureBlock
from nestsim.document.vega.drawing import (
    AXIS_ROOM,
    Drawing,
    drawing,
    plain_field,
    rounded,
    window_axis,
    window_params,
)
from nestsim.page.tables import data_table
from nestsim.report.figures.data import (
    BAR_KINDS,
    Bars,
    Window,
    time_unit,
    timeline_bars,
    timeline_title,
    timeline_windows,
)
from nestsim.report.figures.timeline import BAR_NAMES, COMPUTE_LANE, NETWORK_LANE
from nestsim.report.statistics import stage_breakdowns
from nestsim.report.tables import add_row, new_table
from nestsim.report.wording import percent
from topologies.arrays import IntArray
from topologies.units import format_duration

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate
    from nestsim.simulator.system import Replay

MOST_BARS = 24_000
"""Bars that a page holds. In longer steps those between warm-up and cool-down that are
too short to be told apart are joined, and then stages are left out."""

MIXED = len(BAR_KINDS)
"""Kind of joined bars of several kinds that compute; the next one is of others."""

_COMPUTES = [
    *map(BAR_KINDS.index, ("forward", "backward", "weight", "optimizer")),
    MIXED,
]
"""Kinds in the upper row of a stage."""

_TOLD_APART, _NARROW = 500, 2000
"""Bars of this part of the step and shorter can be too short to be told apart; no gap
between joined ones is longer than that part of the step."""

_STAGE, _LEAST = 46, 110
"""Height of a stage, and of the smallest figure [pixel]."""


def timeline_figure(candidate: "Candidate") -> FigureBlock:
    """Return the timeline of the first replica."""
    replay = candidate.replay
    num_stages = len(replay.memory)
    every, notes = timeline_bars(replay), ["Replica 0. Numbers in bars: microbatches."]
    counts = np.ones(every.start.size, dtype=np.int64)
    if every.start.size > MOST_BARS:
        every, counts = joined_bars(every, timeline_windows(replay))
        notes.append("Between warm-up and cool-down, short bars are drawn as one.")
    stages = shown_stages(every, num_stages)
    if len(stages) < num_stages:
        shown = ", ".join(map(str, stages))
        notes.append(f"Stages shown: {shown} of {num_stages}.")
    kept = np.isin(every.stage, stages)
    bars, counts = picked(every, kept), counts[kept]
    present = [kind for kind in np.unique(bars.kind).tolist() if kind < MIXED]
    return FigureBlock(
        name="timeline",
        title=timeline_title(replay),
        about="Timeline of replica 0: for each pipeline stage a row of passes, and "
        "below it a row of messages and collectives.",
        drawing=_drawing(replay, stages),
        table=_table(replay),
        legend=(
            *(Swatch(name=_name(kind), paint=BAR_KINDS[kind]) for kind in present),
            *_mixed(bars, replay.iteration_time),
        ),
        bars=_columns(bars, counts, stages, replay.iteration_time),
        follows_window=True,
        note=" ".join(notes),
    )


def picked(bars: Bars, rows: NDArray[np.generic]) -> Bars:
    """Return some of the bars, by a mask or by their numbers."""
    return Bars(**{name: column[rows] for name, column in bars._asdict().items()})


def joined_bars(bars: Bars, windows: Sequence[Window]) -> tuple[Bars, IntArray]:
    """Join bars that nobody can tell apart in the first window, but in no other one.

    Parameters
    ----------
    bars
        In any order.
    windows
        The whole step, and those in which each bar stays.

    Returns
    -------
    tuple[Bars, IntArray]
        The bars, lane by lane, and how many each stands for. What is joined has no
        microbatch, and the kind `MIXED` if it is of several.
    """
    total = windows[0].end - windows[0].start
    lane = _lanes(bars)
    order = np.lexsort((bars.end, bars.start, lane))
    bars, lane = picked(bars, order), lane[order]
    joins = bars.end - bars.start < total / _TOLD_APART
    for window in windows[1:]:
        joins &= (bars.end < window.start) | (bars.start > window.end)
    begins = np.ones(lane.size, dtype=bool)
    for cut in np.split(np.arange(lane.size), np.flatnonzero(np.diff(lane)) + 1):
        reached = np.maximum.accumulate(bars.end[cut])[:-1]
        near = bars.start[cut][1:] - reached < total / _NARROW
        begins[cut[1:]] = ~(joins[cut][1:] & joins[cut][:-1] & near)
    first = np.flatnonzero(begins)
    counts = np.diff(np.append(first, lane.size))
    kind = np.maximum.reduceat(bars.kind, first)
    several = kind != np.minimum.reduceat(bars.kind, first)
    joined = picked(bars, first)._replace(
        kind=np.where(several, MIXED + lane[first] % 2, kind),
        end=np.maximum.reduceat(bars.end, first),
        microbatch=np.where(counts > 1, -1, bars.microbatch[first]),
    )
    return joined, counts


def _lanes(bars: Bars) -> IntArray:
    """Return which row each bar is in: a stage has one to compute and one to send."""
    lanes: IntArray = 2 * bars.stage + ~np.isin(bars.kind, _COMPUTES)
    return lanes


def shown_stages(bars: Bars, num_stages: int, most: int = MOST_BARS) -> list[int]:
    """Return as many stages as a page can hold the bars of.

    All of them, or some of them evenly spaced, the first and the last among them.
    """
    counts = np.bincount(bars.stage, minlength=num_stages)
    for number in range(num_stages, 1, -1):
        stages = np.unique(np.linspace(0, num_stages - 1, number).round().astype(int))
        if counts[stages].sum() <= most:
            chosen: list[int] = stages.tolist()
            return chosen
    return [0]


def _mixed(bars: Bars, total: float) -> tuple[Swatch, ...]:
    """Return the legend of bars that are drawn as one; none where there are none."""
    if not np.any(bars.end - bars.start < total / _TOLD_APART):
        return ()
    return (Swatch(name="several, too short to be told apart", paint="mixed"),)


def _name(kind: int) -> str:
    return BAR_NAMES.get(BAR_KINDS[kind], BAR_KINDS[kind])


def _columns(
    bars: Bars, counts: IntArray, stages: list[int], total: float
) -> dict[str, object]:
    """Return what the script draws: columns of bars, facts of lanes and kinds."""
    scale, unit = time_unit(total)
    lane = _lanes(bars._replace(stage=np.searchsorted(stages, bars.stage)))
    order = np.lexsort((bars.kind, bars.end, bars.start))
    lanes = [
        (row, part)
        for row in range(len(stages))
        for part in (COMPUTE_LANE, NETWORK_LANE)
    ]
    return {
        "start": [rounded(x) for x in (bars.start[order] / scale).tolist()],
        "length": [
            rounded(x, 4) for x in ((bars.end - bars.start)[order] / scale).tolist()
        ],
        "kind": bars.kind[order].tolist(),
        "lane": lane[order].tolist(),
        "label": ["" if mb < 0 else str(mb) for mb in bars.microbatch[order].tolist()],
        "counts": {
            str(place): count
            for place, count in enumerate(counts[order].tolist())
            if count > 1
        },
        "names": [*(_name(kind) for kind in range(len(BAR_KINDS))), "mixed", "mixed"],
        "fills": [fill(name) for name in (*BAR_KINDS, "mixed", "mixed")],
        "mixed": fill("mixed"),
        "tops": [row + part[0] for row, part in lanes],
        "bottoms": [row + part[1] for row, part in lanes],
        "stages": [stage for stage in stages for _ in range(2)],
        "unit": unit,
    }


def _drawing(replay: "Replay", stages: list[int]) -> Drawing:
    scale, unit = time_unit(replay.iteration_time)
    total = rounded(replay.iteration_time / scale)
    across = window_axis("start", unit)
    rows = {
        "field": "top",
        "type": "quantitative",
        "scale": {"domain": [-0.5, len(stages) - 0.5], "reverse": True, "nice": False},
        "axis": {
            "values": list(range(len(stages))),
            "labelExpr": f"'stage ' + {stages}[datum.value]",
            "title": None,
            "grid": False,
            "ticks": False,
            "domain": False,
            **AXIS_ROOM,
        },
    }
    room = "(datum.end - datum.start) / (to - from) * width"
    return drawing(
        {
            "mark": {"type": "rect", "clip": True},
            "encoding": {
                "x": across,
                "x2": {"field": "end"},
                "y": rows,
                "y2": {"field": "bottom"},
                "fill": plain_field("fill"),
                "stroke": {"value": "var(--ground)"},
                "strokeWidth": {
                    "condition": {"test": f"{room} > 4", "value": 0.6},
                    "value": 0,
                },
                "tooltip": {"field": "tip", "type": "nominal"},
            },
        },
        {
            "transform": [
                {"filter": f"{room} > 10 + 8 * length(datum.label)"},
                {"calculate": "(datum.start + datum.end) / 2", "as": "middle"},
                {"calculate": "(datum.top + datum.bottom) / 2", "as": "centre"},
            ],
            "mark": {
                "type": "text",
                "clip": True,
                "fontSize": 11,
                "fill": "#000000",
                "stroke": "#ffffff",
                "strokeWidth": 3,
                "strokeJoin": "round",
                "tooltip": None,
            },
            "encoding": {
                "x": {"field": "middle", "type": "quantitative"},
                "y": {"field": "centre", "type": "quantitative"},
                "text": {"field": "label"},
            },
        },
        height=max(_LEAST, _STAGE * len(stages)),
        params=window_params(total),
        data={"name": "bars", "values": []},
    )


def _table(replay: "Replay") -> DataTable:
    """Return where the time of each stage's devices goes."""
    total = replay.iteration_time or 1.0
    rows = stage_breakdowns(replay)
    names = [
        name
        for name in rows[0]._fields
        if name not in {"weight_gradient", "host"}
        or any(getattr(row, name) for row in rows)
    ]
    headings = [name.replace("_", " ").capitalize() for name in names]
    table = new_table("Stage", *headings, numbers=headings)
    for stage, row in enumerate(rows):
        times = [getattr(row, name) for name in names]
        add_row(
            table,
            str(stage),
            *(f"{format_duration(time)} ({percent(time / total)})" for time in times),
        )
    return data_table(table, "How a device of each stage spends the step")
