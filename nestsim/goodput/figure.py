"""The picture of goodput: over intervals, over time, and what takes the rest."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nestsim.goodput.report import headline, interval_rows
from nestsim.goodput.results import DAY, GoodputFindings, GoodputResult
from nestsim.report.figures.canvas import figure_with_headline, save_figure
from nestsim.report.figures.palette import DISTINCT, INK, ink_on
from nestsim.report.wording import amount, long_time, percent, token_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 10.2
"""Of the figure [inch]."""

CAUSE_COLOURS = {
    "lost work": DISTINCT[3],
    "checkpoints": DISTINCT[0],
    "detection and diagnosis": DISTINCT[4],
    "restart": DISTINCT[1],
    "waiting for repair": DISTINCT[5],
    "maintenance": DISTINCT[7],
    "degraded": DISTINCT[9],
}
"""What takes time from the training -> its colour."""

_SHORT_TICKS = (1e-3, 1e-2, 0.1, 1, 10, 30, 60, 120, 300, 600, 1800)
_LONG_TICKS = (3600, 7200, 14400, 43200, 86400, 604800, 30 * DAY, 365 * DAY, 3650 * DAY)
_TICKS = (*_SHORT_TICKS, *_LONG_TICKS)
"""Times that an axis of intervals may name [s]."""


def draw_goodput(result: GoodputResult, path: Path) -> None:
    """Draw goodput over intervals, tokens over time, and the time by cause."""
    found = result.found
    assert found is not None
    subtitle = (
        f"{result.scenario_name}: {amount(found.tokens_per_day.p50)} tokens a day, "
        f"{len(found.seeds):,} runs of {long_time(found.runs.duration)}"
    )
    title = f"{headline(found)[:1]}{headline(found)[1:].lower()} of the healthy job"
    with figure_with_headline(title, subtitle, _HEIGHT) as (figure, _):
        grid = figure.add_gridspec(
            2,
            2,
            left=0.07,
            right=0.965,
            top=0.845,
            bottom=0.085,
            hspace=0.62,
            wspace=0.2,
            height_ratios=(3, 1),
        )
        _draw_intervals(figure.add_subplot(grid[0, 0]), found)
        _draw_tokens(figure.add_subplot(grid[0, 1]), found)
        _draw_causes(figure.add_subplot(grid[1, :]), found)
        save_figure(figure, path)


def _draw_intervals(axes: "Axes", found: GoodputFindings) -> None:
    import seaborn as sns

    axes.set_title("Goodput over the checkpoint interval", loc="left", size=14)
    axes.spines[["top", "right"]].set_visible(False)
    if not found.curve:
        axes.text(0.5, 0.5, "nothing fails", transform=axes.transAxes, ha="center")
        axes.set_axis_off()
        return
    xs = [one.interval for one in found.curve]
    sns.lineplot(
        x=xs,
        y=[100.0 * one.expected for one in found.curve],
        estimator=None,
        color=DISTINCT[0],
        linewidth=2.4,
        label="closed form, nodes always there",
        ax=axes,
    )
    points = [
        (one.interval, one.simulated)
        for one in found.curve
        if one.simulated is not None
    ]
    # The mean of runs that hardly ever fail may not be between p5 and p95.
    low, middle, high = (
        np.array([100.0 * getattr(band, name) for _, band in points])
        for name in ("p5", "p50", "p95")
    )
    places = [interval for interval, _ in points]
    axes.errorbar(
        places,
        middle,
        yerr=[middle - low, high - middle],
        fmt="none",
        ecolor=DISTINCT[1],
        capsize=4,
    )
    axes.plot(
        places,
        [100.0 * band.mean for _, band in points],
        "o",
        color=DISTINCT[1],
        label="simulated: mean, p5 to p95",
    )
    looks: Any = {"Young 1974": ":", "Daly 2006": "--", "best": "-", "this job's": "-."}
    for name, interval, _ in interval_rows(found):
        if xs[0] <= interval <= xs[-1]:
            axes.axvline(
                interval,
                color=INK,
                linestyle=looks[name],
                linewidth=1.4,
                zorder=0,
                label=f"{name}: {long_time(interval)}",
            )
    axes.set_xscale("log")
    axes.minorticks_off()
    ticks: list[float] = []
    apart = (xs[-1] / xs[0]) ** 0.09
    for tick in _TICKS:
        is_free = not ticks or tick >= apart * ticks[-1]
        if xs[0] <= tick <= xs[-1] and is_free:
            ticks.append(tick)
    axes.set_xticks(ticks, [_short_time(tick) for tick in ticks])
    axes.set_xlabel("training between two checkpoints")
    axes.set_ylabel("goodput [%]")
    axes.legend(
        frameon=False,
        fontsize=10,
        ncols=3,
        loc="upper center",
        bbox_to_anchor=(0.48, -0.14),
        columnspacing=1.2,
        handlelength=1.6,
    )


def _short_time(seconds: float) -> str:
    for scale, unit in ((DAY, "d"), (3600, "h"), (60, "min")):
        if seconds >= scale:
            return f"{seconds / scale:g} {unit}"
    return f"{seconds:g} s"


def _draw_tokens(axes: "Axes", found: GoodputFindings) -> None:
    import seaborn as sns

    axes.set_title("Tokens over time", loc="left", size=14)
    low, middle, high = found.weekly_tokens()
    count = len(middle)
    days = found.runs.duration / DAY * np.arange(count + 1) / count
    scale, unit = token_unit(float(high[-1]))
    healthy = found.healthy.tokens_per_day * days
    axes.plot(days, healthy / scale, color=INK, linestyle="--", label="nothing fails")
    lines = [np.concatenate([[0.0], one]) / scale for one in (low, middle, high)]
    axes.fill_between(
        days, lines[0], lines[2], color=DISTINCT[2], alpha=0.3, label="p5 to p95"
    )
    axes.plot(days, lines[1], color=DISTINCT[2], linewidth=2.2, label="p50 of the runs")
    axes.set_xlim(0, days[-1])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time [d]")
    axes.set_ylabel(f"tokens [{unit}]")
    axes.legend(frameon=False, fontsize=10.5, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    # Bands of many failures are too narrow to be seen beside the whole.
    inset = axes.inset_axes((0.64, 0.1, 0.34, 0.3))
    inset.patch.set_alpha(0.0)
    share = np.asarray(found.runs.goodput) * 100.0
    bins = min(20, max(1, len(share) // 5))
    sns.histplot(x=share, bins=bins, color=DISTINCT[2], alpha=1.0, ax=inset)
    inset.set_title("runs by goodput [%]", size=10)
    inset.set(yticks=[], ylabel="")
    inset.locator_params(axis="x", nbins=4)
    inset.tick_params(labelsize=9.5)
    inset.spines[["top", "right", "left"]].set_visible(False)


def _draw_causes(axes: "Axes", found: GoodputFindings) -> None:
    shares = {name: band.mean for name, band in found.shares().items()}
    lost = {name: shares[name] for name in CAUSE_COLOURS if shares[name] > 0.0}
    total = sum(lost.values())
    axes.set_title(
        f"What takes the other {percent(total)} of the time, on average",
        loc="left",
        size=14,
        pad=30,
    )
    left = 0.0
    for name, share in lost.items():
        colour = CAUSE_COLOURS[name]
        words = f"{name} {100.0 * share:.2f} %"
        axes.barh(
            [0], [100.0 * share], left=100.0 * left, color=colour, label=words, height=1
        )
        if share > 0.08 * total:
            axes.text(
                100.0 * (left + share / 2),
                0,
                f"{100.0 * share:.2f} %",
                ha="center",
                va="center",
                size=11,
                color=ink_on(colour),
            )
        left += share
    axes.set_xlim(0, 100.0 * (total or 1.0))
    axes.set_yticks([])
    axes.set_xlabel("share of the time [%]")
    axes.spines[["top", "right", "left"]].set_visible(False)
    if lost:
        axes.legend(
            frameon=False,
            fontsize=11,
            ncols=len(lost),
            loc="lower left",
            bbox_to_anchor=(-0.01, 0.97),
            columnspacing=1.2,
            handlelength=1.2,
        )
