"""The picture of a job's memory: a bar for each stage, stacked by what it is for."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nestsim.memory.job import MemoryResult
from nestsim.memory.text import shown_parts
from nestsim.report.figures.canvas import figure_with_headline, save_figure
from nestsim.report.figures.lettering import size_that_fits
from nestsim.report.figures.palette import INK, ink_on, part_colour
from nestsim.report.wording import plan_label, size_of_limit
from topologies.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GIB = 2.0**30

_ROWS = ((8, 0.62), (24, 0.36), (10_000, 0.2))
"""Most stages, and the height of a row of as many [inch]."""

_HEAD, _FOOT = 1.25, 1.75
"""Heights above and below the rows [inch]."""

_WIDTH = 13.3
"""Of the axes [inch]."""

_MOST_ROWS = 48
"""Stages that have a row each."""

_HATCHES = {"workspace": "", "fragmentation": "////", "context": "...."}
"""What is beside tensors -> how its grey bars are hatched."""

_GREY = "#d9d9d9"


def headline(result: MemoryResult) -> str:
    """Say how full the fullest stage is."""
    assert result.memory is not None
    found = size_of_limit(result.memory.needed, result.limits.device)
    verdict = "fits" if result.fits else "does not fit"
    return f"Stage {result.memory.fullest} {verdict}: {found} usable"


def shown_stages(result: MemoryResult) -> list[int]:
    """Return the stages that have a row: all, or some and the fullest one."""
    assert result.memory is not None
    count = len(result.stages)
    every = -(-count // _MOST_ROWS)
    return sorted({*range(0, count, every), result.memory.fullest, count - 1})


def draw_memory_account(result: MemoryResult, path: Path) -> None:
    """Draw what one device of each stage needs, and where the device ends."""
    assert result.memory is not None
    rows = shown_stages(result)
    bar = next(size for most, size in _ROWS if len(rows) <= most)
    height = _HEAD + _FOOT + max(len(rows), 2) * bar
    subtitle = f"{plan_label(result.memory.plan)}: one device of each stage at its peak"
    with figure_with_headline(headline(result), subtitle, height) as (figure, _):
        axes = figure.add_axes(
            (0.085, _FOOT / height, _WIDTH / 16.0, 1 - (_HEAD + _FOOT) / height)
        )
        capacity = (result.device_memory - result.reserve) / _GIB
        most = max(stage.needed / _GIB for stage in result.stages)
        axes.set_xlim(0, 1.08 * max(capacity, most))
        _draw_bars(axes, result, rows)
        dashes: dict[str, Any] = {"color": INK, "linestyle": (0, (5, 3)), "zorder": 4}
        words = "device" if not result.reserve else "device less what is kept free"
        line = axes.axvline(capacity, label=f"{words}: {capacity:.4g} GiB", **dashes)
        bars, _ = axes.get_legend_handles_labels()
        axes.legend(
            handles=[*(bar for bar in bars if bar is not line), line],
            loc="upper center",
            bbox_to_anchor=(0.5, -0.72 / (height - _HEAD - _FOOT)),
            ncols=8,
            frameon=False,
            fontsize=12,
            columnspacing=1.4,
            handlelength=1.4,
        )
        save_figure(figure, path)


def _draw_bars(axes: "Axes", result: MemoryResult, rows: list[int]) -> None:
    places, left = np.arange(len(rows)), np.zeros(len(rows))
    stages = [result.stages[row] for row in rows]
    style: dict[str, Any] = {
        "height": 0.76,
        "edgecolor": "white",
        "linewidth": 0.6 if len(rows) <= 32 else 0.0,
    }
    for name in shown_parts(stages):
        sizes = np.array([stage.parts.get(name, 0.0) for stage in stages]) / _GIB
        colour = part_colour(name)
        axes.barh(places, sizes, left=left, color=colour, label=name, **style)
        _write_sizes(axes, sizes, left, colour)
        left += sizes
    for name, hatch in _HATCHES.items():
        sizes = np.array([getattr(stage.beside, name) for stage in stages]) / _GIB
        if sizes.any():
            look = {**style, "color": _GREY, "hatch": hatch}
            axes.barh(places, sizes, left=left, label=name, **look)
        left += sizes
    for place, stage in enumerate(stages):
        axes.annotate(
            format_size(stage.needed),
            (left[place], place),
            (5, 0),
            textcoords="offset points",
            va="center",
            size=11 if len(rows) <= 24 else 8,
            color=INK,
            zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )
    axes.set_yticks(places, [f"stage {row}" for row in rows], size=11)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("needed of a device's memory [GiB]")


def _write_sizes(axes: "Axes", sizes: Any, left: Any, colour: str) -> None:
    """Write sizes into the bars that have room for them."""
    inch = _WIDTH / axes.get_xlim()[1]
    if len(sizes) > 24:
        return
    for place, (size, start) in enumerate(zip(sizes, left, strict=True)):
        words = f"{size:.1f}"
        letters = size_that_fits([words], 0.9 * size * inch, largest=11, smallest=8)
        if letters is not None:
            axes.text(
                start + size / 2,
                place,
                words,
                ha="center",
                va="center",
                size=letters,
                color=ink_on(colour),
            )
