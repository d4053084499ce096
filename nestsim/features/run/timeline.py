"""The timeline of a step: what each stage computes and sends, and the page's figure.

Bars are columns; the script thins them out to what can be told apart in the window of
time that is shown. Compute stands above, messages and collectives below, stage by
stage.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.document.drawing import (
    AXIS_ROOM,
    OUTLINED,
    TIP,
    Drawing,
    drawing,
    number_field,
    plain_field,
    rounded,
    text_layer,
    window_axis,
    window_params,
)
from nestsim.document.paints import Swatch, fill
from nestsim.document.parts import Cell, DataTable, FigureBlock, cell
from nestsim.document.wording import percent, time_unit
from nestsim.features.run.statistics import (
    COLLECTIVE_KINDS,
    mean_breakdown,
    stage_breakdowns,
)
from nestsim.simulator.system import SPAN_KINDS, TRANSFER_KINDS, Replay
from topologies.arrays import FloatArray, IntArray
from topologies.units import format_duration

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate

BAR_KINDS = (*SPAN_KINDS, "send", *COLLECTIVE_KINDS)
"""Kinds of bars of the timeline; messages between stages are ``"send"``."""

_INSIDE = tuple(range(TRANSFER_KINDS.index("tied") + 1, len(TRANSFER_KINDS)))
"""Kinds of transfers that are part of passes: those after the first five."""

_DENSE = 64
"""Passes of one stage from which on the whole step is too dense to read."""

_ZOOM_SHARE = 0.6
"""Zoomed panels pay off when they show less than this share of the step."""

BAR_NAMES = {
    "weight": "weight gradient",
    "send": "activation or gradient",
    "reduce": "gradient reduction",
    "gather": "parameter gather",
    "tied": "tied embedding",
}
"""Kind of bar -> what it is called, where that is not its own name."""

COMPUTE_LANE, NETWORK_LANE = (-0.42, 0.2), (0.23, 0.42)
"""Top and bottom of the bars around their stage's row."""

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


class Bars(NamedTuple):
    """Bars of a timeline: arrays of one length."""

    kind: IntArray
    """An index into `BAR_KINDS`."""
    stage: IntArray
    microbatch: IntArray
    """-1 where there is none."""
    chunk: IntArray
    """-1 where there is none."""
    start: FloatArray
    end: FloatArray

    @property
    def num_chunks(self) -> int:
        """Chunks per stage."""
        return int(self.chunk.max(initial=0)) + 1


class Window(NamedTuple):
    """A part of the step to look at."""

    title: str
    start: float
    end: float


def timeline_bars(replay: Replay, replica: int = 0) -> Bars:
    """Return everything that one replica computes and sends.

    Where it is alike to another one, that one's records are its own. Collectives inside
    layers are part of the passes.
    Collectives belong to every replica; a tied embedding's collective shows at the
    first and at the last stage.
    """
    spans, transfers = replay.spans, replay.transfers
    representative = replay.representative[:, replica]
    own = spans.replica == representative[spans.stage]
    names = [kind if kind in COLLECTIVE_KINDS else "send" for kind in TRANSFER_KINDS]
    bar_of = np.array([BAR_KINDS.index(name) for name in names])
    sent = transfers.replica == representative[transfers.stage]
    rows = (sent | (transfers.replica < 0)) & ~np.isin(transfers.kind, _INSIDE)
    tied = np.flatnonzero(transfers.kind == TRANSFER_KINDS.index("tied"))
    pick = np.concatenate((np.flatnonzero(rows), tied))
    stage = transfers.stage[pick].copy()
    if tied.size:
        # The record names one end; the copy stands at the other one.
        last = len(replay.memory) - 1
        stage[-tied.size :] = np.where(transfers.stage[tied] == 0, last, 0)
    return Bars(
        np.concatenate((spans.kind[own], bar_of[transfers.kind[pick]])),
        np.concatenate((spans.stage[own], stage)),
        np.concatenate((spans.microbatch[own], transfers.microbatch[pick])),
        np.concatenate((spans.chunk[own], transfers.chunk[pick])),
        np.concatenate((spans.start[own], transfers.start[pick])),
        np.concatenate((spans.end[own], transfers.end[pick])),
    )


def timeline_windows(replay: Replay) -> tuple[Window, ...]:
    """Return the whole step, and its two ends where the whole is too dense to read.

    The warm-up lasts until the first stage has ended its first backward pass; the
    tail is as long before the last backward pass, and goes on to the end.
    """
    total = replay.iteration_time
    whole = Window("The whole step", 0.0, total)
    spans = replay.spans
    first = (spans.stage == 0) & (spans.kind == SPAN_KINDS.index("backward"))
    if (
        replay.span_multiplicity[first].sum() / replay.representative.shape[1]
        <= _DENSE / 2
    ):
        return (whole,)
    warm_up = 1.1 * float(spans.end[first].min())
    tail = max(replay.pipeline_time - warm_up, 0.0)
    if warm_up + total - tail > _ZOOM_SHARE * total:
        return (whole,)
    return (
        whole,
        Window("Warm-up", 0.0, warm_up),
        Window("Cool-down and synchronisation", tail, total),
    )


def timeline_title(replay: Replay) -> str:
    """Say where the devices' time goes."""
    mean = mean_breakdown(stage_breakdowns(replay))
    total = replay.iteration_time or 1.0
    compute = (mean.passes + mean.optimizer) / total
    return (
        f"Devices compute for {percent(compute)} of the "
        f"{format_duration(replay.iteration_time)}; they wait for "
        f"{percent((mean.host + mean.waiting) / total)} and synchronise for "
        f"{percent(mean.synchronisation / total)}"
    )


def timeline_figure(
    candidate: "Candidate", *, of: str = "", total: float | None = None
) -> FigureBlock:
    """Return the timeline of the first replica.

    Parameters
    ----------
    candidate
        The plan and its replay.
    of
        What its title begins with, where a page has several timelines.
    total
        End of the time axis; None for that of the step [s].
    """
    replay = candidate.replay
    end = replay.iteration_time if total is None else total
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
        name=f"timeline-{of.lower()}" if of else "timeline",
        title=f"{of}: {timeline_title(replay)}" if of else timeline_title(replay),
        about="Timeline of replica 0: for each pipeline stage a row of passes, and "
        "below it a row of messages and collectives.",
        drawing=_drawing(end, stages),
        table=_table(replay),
        legend=(
            *(Swatch(name=_name(kind), paint=BAR_KINDS[kind]) for kind in present),
            *_mixed(bars, replay.iteration_time),
        ),
        bars=_columns(bars, counts, stages, end),
        follows_window=True,
        hint=" ".join(notes),
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


def _drawing(end: float, stages: list[int]) -> Drawing:
    scale, unit = time_unit(end)
    total = rounded(end / scale)
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
                "tooltip": TIP,
            },
        },
        text_layer(
            {**OUTLINED, "clip": True},
            transform=[
                {"filter": f"{room} > 10 + 8 * length(datum.label)"},
                {"calculate": "(datum.start + datum.end) / 2", "as": "middle"},
                {"calculate": "(datum.top + datum.bottom) / 2", "as": "centre"},
            ],
            x=number_field("middle"),
            y=number_field("centre"),
            text={"field": "label"},
        ),
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
    records = [{"stage": stage, **row._asdict()} for stage, row in enumerate(rows)]

    def written(seconds: float) -> str:
        return f"{format_duration(seconds)} ({percent(seconds / total)})"

    return DataTable.of(
        "How a device of each stage spends the step",
        records,
        {
            "Stage": lambda row: cell(row["stage"], str),
            **{
                name.replace("_", " ").capitalize(): _cell_of(name, written)
                for name in names
            },
        },
    )


def _cell_of(
    name: str, write: Callable[[float], str]
) -> Callable[[Mapping[str, float]], Cell | str]:
    return lambda row: cell(row[name], write)
