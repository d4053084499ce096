"""Panels of the figures of memory, links and the gap: axes in, marks on them out.

The axes and colours come from `nestsim.report.figures.run`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nestsim.report.figures.data import (
    LinkRows,
    WaterfallStep,
    fullest_stage,
    memory_parts,
    memory_steps,
    time_unit,
    waterfall_ends,
)
from nestsim.report.figures.lettering import DPI, shortened, text_width, widest
from nestsim.report.figures.palette import (
    DISTINCT,
    INK,
    LONGER,
    PLANNED,
    SHORTER,
    SIMULATED,
    level_colour,
    part_colour,
)
from nestsim.report.wording import plan_label, signed_duration
from nestsim.simulator.system import Replay
from topologies.units import format_duration, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import Colormap

    from nestsim.evaluate.results import Candidate

GIB = 2.0**30

_FEW_STAGES = 8
"""So many lines can be told apart by distinct colours."""

_MOST_CANDIDATES = 12
"""Rows of the replayed plans that stay legible."""

_CAUSE = DISTINCT[9]
"""Colour of what the planned time is made of."""

PLAIN_BARS: Mapping[str, Any] = MappingProxyType({"errorbar": None, "saturation": 1})
"""What seaborn is told of bars that stand for one number each."""

_LETTERS, _BESIDE = 12.0, 5.0
"""Size of the words beside bars, and how far from them they stand [point]."""


class Colours(NamedTuple):
    """What the panels paint with."""

    distinct: "tuple[Any, ...]"
    """Ten colours that colour-blind people can tell apart."""
    ordered: "Colormap"
    """For many lines in an order."""
    heat: "Colormap"
    """From light (nothing) to dark."""


def draw_memory_lines(axes: "Axes", replay: Replay, colours: Colours) -> None:
    """Draw the memory that a device of each stage holds, the fullest one bold."""
    total = replay.iteration_time
    scale, unit = time_unit(total)
    num_stages = len(replay.memory)
    few = num_stages <= _FEW_STAGES
    fullest = fullest_stage(replay)
    named = {0, fullest, num_stages // 2, num_stages - 1}
    for stage, timeline in enumerate(replay.memory):
        times, held = memory_steps(timeline, total, 400 if few else 160)
        axes.step(
            times / scale,
            held / GIB,
            where="post",
            color=colours.distinct[stage]
            if few
            else colours.ordered(stage / (num_stages - 1)),
            linewidth=2.6 if stage == fullest else 1.5,
            zorder=3 if stage == fullest else 2,
            label=f"stage {stage}" if few or stage in named else None,
        )
    axes.set_xlim(0, total / scale)
    axes.set_xlabel(f"time [{unit}]")
    axes.set_ylabel("memory held [GiB]")
    axes.set_title("Over the step", loc="left", size=14)
    axes.spines[["top", "right"]].set_visible(False)
    _legend_below(axes, ncols=5)


def draw_memory_parts(axes: "Axes", replay: Replay) -> None:
    """Draw what each stage's peak is made of, the first stage on top."""
    num_stages = len(replay.memory)
    stages = np.arange(num_stages)
    left = np.zeros(num_stages)
    for name, values in memory_parts(replay).items():
        axes.barh(
            stages,
            values / GIB,
            left=left / GIB,
            height=0.72,
            color=part_colour(name),
            edgecolor="white",
            linewidth=0.6 if num_stages <= 32 else 0.0,
            label=name,
        )
        left += values
    if num_stages <= 24:
        peaks = [f"{timeline.peak / GIB:.1f}" for timeline in replay.memory]
        _write_at_end(axes, peaks)
    every = range(0, num_stages, -(-num_stages // 24))
    axes.set_yticks(list(every), [f"stage {stage}" for stage in every], size=11)
    room = max(0.5, (3 - num_stages) / 2)
    axes.set_ylim(num_stages - 1 + room, -room)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("held at the stage's peak [GiB]")
    axes.set_title("What the peak is made of", loc="left", size=14)
    _legend_below(axes, ncols=3)


def _legend_below(axes: "Axes", ncols: int) -> None:
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.09),
        ncols=ncols,
        frameon=False,
        fontsize=12,
        columnspacing=1.4,
        handlelength=1.4,
    )


def draw_heat(axes: "Axes", rows: LinkRows, colours: Colours) -> "QuadMesh":
    """Draw links as rows, time across, utilisation as colour; levels apart.

    Colours follow the square root of the utilisation: a few percent, which is what
    activations often need, must not look like nothing.
    """
    from matplotlib.colors import PowerNorm

    scale, _ = time_unit(float(rows.bin_edges[-1]))
    mesh = axes.pcolormesh(
        rows.bin_edges / scale,
        np.arange(len(rows.names) + 1) - 0.5,
        rows.utilisation,
        cmap=colours.heat,
        norm=PowerNorm(0.5, vmin=0.0, vmax=1.0),
    )
    axes.set_ylim(len(rows.names) - 0.5, -0.5)
    axes.set_yticks(range(len(rows.names)), rows.names, size=11, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelbottom=False)
    for row in range(1, len(rows.levels)):
        if rows.levels[row] != rows.levels[row - 1]:
            axes.axhline(row - 0.5, color=INK, linewidth=1.4)
    return mesh


def draw_level_means(axes: "Axes", levels: LinkRows) -> None:
    """Draw the mean utilisation of each level's links over time."""
    scale, unit = time_unit(float(levels.bin_edges[-1]))
    shares = 100 * levels.utilisation
    for name, number, values in zip(levels.names, levels.numbers, shares, strict=True):
        axes.stairs(
            values,
            levels.bin_edges / scale,
            baseline=None,
            color=level_colour(number),
            linewidth=2,
            label=name,
        )
    axes.set_ylim(0, max(1.15 * float(shares.max()), 1.0))
    axes.locator_params(axis="y", nbins=5)
    axes.set_xlim(0, levels.bin_edges[-1] / scale)
    axes.set_xlabel(f"time [{unit}]")
    axes.set_ylabel("mean of the\nlinks in use [%]")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        [f"level {name}" for name in levels.names],
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=len(levels.names),
        frameon=False,
        fontsize=11,
        handlelength=1.2,
        borderaxespad=0.1,
    )


def draw_planned(
    axes: "Axes", candidate: "Candidate", steps: Sequence[WaterfallStep]
) -> None:
    """Draw the planned time as a waterfall by cause, and simulated below planned."""
    totals = (
        WaterfallStep("planned", 0.0, candidate.planned.iteration_time),
        WaterfallStep("simulated", 0.0, candidate.simulated.iteration_time),
    )
    paint = [_CAUSE] * len(steps) + [PLANNED, SIMULATED]
    _draw_steps(axes, [*steps, *totals], paint, format_duration)
    axes.set_title("Planned, by cause, beside simulated", loc="left", size=14)


def draw_causes(axes: "Axes", steps: Sequence[WaterfallStep], planned: float) -> None:
    """Draw simulated minus planned as a waterfall by cause."""
    axes.set_title("Simulated minus planned, by cause", loc="left", size=14)
    if not steps:
        axes.annotate(
            "No difference beyond rounding.",
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, -6),
            textcoords="offset points",
            va="top",
            size=13,
            color=INK,
        )
        axes.set_axis_off()
        return
    total = WaterfallStep("difference", 0.0, sum(step.length for step in steps))
    bars = [*steps, total]
    paint = [LONGER if bar.length > 0 else SHORTER for bar in bars]
    _draw_steps(axes, bars, paint, signed_duration, planned)
    axes.axvline(0, color=INK, linewidth=1)


def _draw_steps(
    axes: "Axes",
    bars: Sequence[WaterfallStep],
    paint: Sequence[str],
    words: Callable[[float], str],
    whole: float = 0.0,
) -> None:
    """Draw bars from top to bottom, their lengths in words in a column at the right."""
    low, high = waterfall_ends(bars, whole)
    span = (high - low) or 1e-9
    scale, unit = time_unit(span)
    for row, (bar, colour) in enumerate(zip(bars, paint, strict=True)):
        axes.barh(row, bar.length / scale, left=bar.start / scale, color=colour)
    _write_at_end(axes, [words(bar.length) for bar in bars])
    _name_rows(axes, [bar.name for bar in bars])
    margin = 0.03 * span
    left, right = margin * (low < 0.0), margin * (high > 0.0)
    axes.set_xlim((low - left) / scale, (high + right) / scale)
    axes.set_xlabel(f"time [{unit}]")


def draw_candidates(
    axes: "Axes", shown: "Candidate", candidates: "Sequence[Candidate]"
) -> None:
    """Draw planned and simulated iteration time of all replayed plans."""
    listed = candidates[:_MOST_CANDIDATES]
    longest = max(
        time
        for c in listed
        for time in (c.planned.iteration_time, c.simulated.iteration_time)
    )
    scale, unit = time_unit(longest)
    lengths, rows, words = [], [], []
    for row, candidate in enumerate(listed):
        planned = candidate.planned.iteration_time
        simulated = candidate.simulated.iteration_time
        kind, memory = candidate.verdict.kind, candidate.simulated.peak_memory
        hatch = "" if kind == "confirmed" else "///"
        upper, lower = row - 0.17, row + 0.17
        axes.barh(upper, planned / scale, 0.3, color=PLANNED)
        axes.barh(
            lower,
            simulated / scale,
            0.3,
            color=SIMULATED,
            edgecolor="white",
            hatch=hatch,
        )
        lengths += [planned / scale, simulated / scale]
        rows += [upper, lower]
        words += [
            format_duration(planned),
            f"{format_duration(simulated)}, {kind}, {format_size(memory)}",
        ]
    write_beside(axes, lengths, rows, words)
    _name_rows(axes, [_candidate_name(c, c is shown) for c in listed])
    room = max(0.6, (4 - len(listed)) / 2)
    axes.set_ylim(len(listed) - 1 + room, -room)
    axes.bar(0, 0, color=PLANNED, label="planned")
    axes.bar(0, 0, color=SIMULATED, label="simulated (hatched: not confirmed)")
    _legend_below(axes, ncols=2)
    axes.set_xlabel(f"iteration time [{unit}]")
    axes.set_title("Replayed plans (* is this one)", loc="left", size=14)


def write_beside(
    axes: "Axes",
    lengths: Sequence[float],
    rows: Sequence[float],
    words: Sequence[str],
) -> None:
    """Write at the right of bars, on an axis that is long enough for the words.

    Parameters
    ----------
    axes
        Where the bars are; they begin at 0.
    lengths, rows
        Of each bar, as on the axes.
    words
        What stands beside each bar.
    """
    whole = axes.get_window_extent().width / DPI
    gap = _BESIDE / 72.0
    texts = [shortened(text, _LETTERS, 0.7 * whole) for text in words]
    end = max(lengths, default=0.0) or 1.0
    for length, text in zip(lengths, texts, strict=True):
        # Bar, gap and text end before the axis does.
        end = max(end, length * whole / (whole - gap - text_width(text, _LETTERS)))
    axes.set_xlim(0.0, 1.01 * end)
    for length, row, text in zip(lengths, rows, texts, strict=True):
        axes.annotate(
            text,
            (length, row),
            xytext=(_BESIDE, 0),
            textcoords="offset points",
            va="center",
            size=_LETTERS,
            parse_math=False,
        )


def plain_logarithms(axis: "Axis") -> None:
    """Write 1, 2, 5, 10, .. at a logarithmic axis, not powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    steps = (1.0, 2.0, 5.0) if high / low < 2e3 else (1.0,)
    axis.set_major_locator(LogLocator(base=10.0, subs=steps, numticks=99))
    axis.set_major_formatter(lambda value, _: f"{value:,.12g}")
    axis.set_minor_formatter(NullFormatter())


def _write_at_end(axes: "Axes", words: Sequence[str]) -> None:
    """Write a column at the right of the axes, one text a row, where no bar ends."""
    whole = axes.get_window_extent().width / DPI
    column = 1.0 + (widest(words, _LETTERS) + _BESIDE / 72.0) / whole
    for row, text in enumerate(words):
        axes.text(
            column,
            row,
            text,
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            size=_LETTERS,
        )


def _candidate_name(candidate: "Candidate", is_shown: bool) -> str:
    """Write a plan on two lines: the degrees, and the rest."""
    degrees, _, rest = plan_label(candidate.priced.plan).partition(" b")
    return f"{'* ' if is_shown else ''}{degrees}\nb{rest}"


def _name_rows(axes: "Axes", names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, size=12, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
