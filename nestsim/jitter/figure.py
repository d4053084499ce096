"""The picture of jitter: how long steps take, and what scale does to the loss."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nestsim.jitter.job import JitteredSteps, JitterResult
from nestsim.jitter.report import headline, share_name
from nestsim.jitter.scale import ScaleRow
from nestsim.report.figures.canvas import figure_with_headline, save_figure
from nestsim.report.figures.data import axis_ends
from nestsim.report.figures.palette import INK
from nestsim.report.figures.panels import Colours
from nestsim.report.wording import plan_label, plural
from topologies.units import format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BOTTOM, _HEIGHT = 0.22, 0.62
_LEFT, _RIGHT = (0.07, _BOTTOM, 0.4, _HEIGHT), (0.56, _BOTTOM, 0.41, _HEIGHT)
"""Of the two panels."""


def draw_jitter(result: JitterResult, path: Path) -> None:
    """Draw the distribution of the step's time beside the loss over the replicas."""
    steps, priced = result.steps, result.priced
    assert steps is not None
    assert priced is not None
    label = plan_label(priced.plan)
    subtitle = (
        f"{result.scenario_name}, {label}: {plural(steps.times.size, 'step')} with "
        f"other draws, seed {result.spec.jitter.seed}"
    )
    with figure_with_headline(headline(result), subtitle) as (figure, colours):
        _draw_steps(figure.add_axes(_LEFT), steps, colours)
        _draw_scale(figure.add_axes(_RIGHT), result.scale, colours)
        save_figure(figure, path)


def _draw_steps(axes: "Axes", steps: JitteredSteps, colours: Colours) -> None:
    """Draw which share of the steps takes at most how long, and the quantiles."""
    import seaborn as sns

    blue, orange, _, red, *_ = colours.distinct
    sns.ecdfplot(
        x=steps.times,
        stat="percent",
        color=blue,
        linewidth=2.5,
        label="steps with jitter",
        ax=axes,
    )
    axes.axvline(
        steps.plain_time,
        color=INK,
        linestyle=(0, (5, 3)),
        label=f"without jitter, {format_duration(steps.plain_time)}",
    )
    mean = steps.simulated.mean
    axes.axvline(mean, color=red, linewidth=1.8, label=f"mean, {format_duration(mean)}")
    for band in steps.bands():
        height = 100.0 * band.share
        if band.low is not None:
            high = steps.worst if band.high is None else band.high
            axes.plot([band.low, high], [height, height], color=orange, linewidth=4)
        axes.plot(
            [band.value],
            [height],
            marker="o",
            color=orange,
            markersize=9,
            markeredgecolor="white",
            linestyle="",
            zorder=5,
        )
        left = band.value if band.low is None else band.low
        axes.annotate(
            f"{share_name(band.share)}  {format_duration(band.value)}",
            (left, height),
            (-12, 9 if band.share > 0.95 else -3),
            textcoords="offset points",
            ha="right",
            va="center",
            color=INK,
            size=12,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )
    axes.plot([], [], color=orange, linewidth=4, marker="o", label="quantile and band")
    axes.set_ylim(0, 108)
    axes.set_xlabel("time of a step [s]")
    axes.set_ylabel("steps that take at most so long [%]")
    axes.margins(x=0.08)
    axes.set_xlim(*axis_ends(*axes.get_xlim()))
    _finish(axes, "Time of a step")


def _draw_scale(axes: "Axes", scale: tuple[ScaleRow, ...], colours: Colours) -> None:
    """Draw the loss over the replicas: closed form as a line, simulation as points."""
    import seaborn as sns

    blue, orange, *_ = colours.distinct
    replicas = [row.replicas for row in scale]
    sns.lineplot(
        x=replicas,
        y=[100.0 * row.closed_loss for row in scale],
        estimator=None,
        color=blue,
        linewidth=2.5,
        label="closed form",
        ax=axes,
    )
    done = [row for row in scale if row.simulated is not None]
    axes.errorbar(
        [row.replicas for row in done],
        [100.0 * (row.simulated_loss or 0.0) for row in done],
        yerr=[200.0 * _error(row) for row in done],
        color=orange,
        marker="o",
        markersize=9,
        markeredgecolor="white",
        linestyle="",
        capsize=4,
        label="simulated, two standard errors",
    )
    further = [row for row in scale if row.replicas >= done[-1].replicas]
    axes.plot(
        [row.replicas for row in further],
        [100.0 * row.expected_loss for row in further],
        color=orange,
        linestyle=(0, (4, 2)),
        label="expected, from there on",
    )
    axes.set_xscale("log", base=2)
    shown = replicas if len(replicas) <= 12 else replicas[::2]
    axes.set_xticks(shown, [f"{one:,}" for one in shown])
    axes.minorticks_off()
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_xlabel("data-parallel replicas")
    axes.set_ylabel("longer than without jitter, on average [%]")
    _finish(axes, "The same plan on other numbers of replicas")


def _error(row: ScaleRow) -> float:
    error = row.loss_error or 0.0
    return error if np.isfinite(error) else 0.0


def _finish(axes: "Axes", title: str) -> None:
    axes.set_title(title, loc="left", size=14)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        frameon=False,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.13),
        ncols=2,
        fontsize=12,
    )
