"""The pictures of jobs on one fabric: their slow-downs, and the links they share."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nestsim.report.figures.canvas import (
    WIDTH,
    figure_with_headline,
    heat_colours,
    save_figure,
)
from nestsim.report.figures.heat_maps import draw_heat_map, one_decimal
from nestsim.report.figures.lettering import widest
from nestsim.report.figures.palette import DISTINCT, INK
from nestsim.report.figures.panels import write_beside
from nestsim.report.wording import plural
from nestsim.tenancy.results import TenancyResult
from nestsim.tenancy.text import headline, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

_HEAD, _FOOT, _ROW = 1.5, 1.1, 0.62
"""Heights above and below the rows, and of a row [inch]."""

_MOST_NAMES = 3.2
"""Most that names of jobs take [inch]."""

_ALL = "all jobs"


def draw_jobs(result: TenancyResult, path: Path) -> None:
    """Draw the slow-down of each job, and the busiest links of each level by job."""
    jobs = [one.tenant.name for one in result.outcomes]
    rows = max(len(jobs) + 1, 3)
    height = _HEAD + _FOOT + rows * _ROW
    seeds = f"; whiskers: {plural(len(result.seeds), 'ECMP seed')}"
    subtitle = (
        "Left: what the other jobs add to each job's step"
        f"{seeds if result.seeds else ''}. Right: the busiest link of each level, the "
        "share of its capacity that each job takes"
    )
    with figure_with_headline(headline(result), subtitle, height) as (figure, _):
        names = min(widest(jobs, 11.0), _MOST_NAMES)
        left = (0.4 + names) / WIDTH
        grid = figure.add_gridspec(
            1,
            2,
            left=left,
            right=0.93,
            top=1 - _HEAD / height,
            bottom=_FOOT / height,
            wspace=0.12 + 2.2 * names / WIDTH,
        )
        _draw_slowdowns(figure.add_subplot(grid[0]), result)
        _draw_levels(figure.add_subplot(grid[1]), result)
        save_figure(figure, path)


def _draw_slowdowns(axes: "Axes", result: TenancyResult) -> None:
    longer = [100.0 * (one.slowdown - 1.0) for one in result.outcomes]
    rows = list(range(len(longer)))
    colours = [DISTINCT[row % len(DISTINCT)] for row in rows]
    axes.barh(rows, longer, color=colours, height=0.62)
    ends, words = list(longer), [times(one.slowdown) for one in result.outcomes]
    for row, one in enumerate(result.outcomes):
        if not one.by_seed:
            continue
        low, middle, high = (100.0 * (found - 1.0) for found in one.seed_range)
        style: dict[str, Any] = {"color": INK, "zorder": 3}
        axes.plot([low, high], [row, row], linewidth=2.0, **style)
        axes.plot([low, middle, high], [row] * 3, "|", markersize=14, **style)
        ends[row] = max(ends[row], high)
        words[row] += f"; seeds {times(1 + low / 100)} to {times(1 + high / 100)}"
    axes.set_ylim(max(len(rows), 2) - 0.4, -0.6)
    write_beside(axes, ends, rows, words)
    axes.set_yticks(
        rows,
        [one.tenant.name for one in result.outcomes],
        size=11,
        parse_math=False,
    )
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("longer beside the others [% of the step alone]")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_levels(axes: "Axes", result: TenancyResult) -> None:
    """Draw a row for each job, and one for all, with a column for each level."""
    names: Sequence[str] = [*(one.tenant.name for one in result.outcomes), _ALL]
    shares = np.array(
        [[*level.busiest, level.total] for level in result.levels]
    ).T.reshape(len(names), -1)
    if not shares.size:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "Nothing is sent", ha="center", transform=axes.transAxes)
        return
    mesh = draw_heat_map(
        axes,
        100.0 * shares[::-1],
        (names[::-1], [level.level for level in result.levels]),
        colours=heat_colours(),
        limits=(0.0, max(100.0 * float(shares.max()), 1.0)),
        words=one_decimal,
    )
    axes.set_xlabel("level of the network")
    bar = axes.figure.colorbar(mesh, ax=axes, pad=0.02, fraction=0.05)
    bar.outline.set_visible(False)
    bar.set_label("share of the capacity [%]", size=11)
