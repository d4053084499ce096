"""The plot of how the replay's time and memory grow."""

from pathlib import Path

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tests.benchmarks.plot_scales import log_scale, log_sizes

PANELS = {
    "devices": ("devices", "misaligned devices"),
    "microbatches per pipeline": ("microbatches", "microbatches unskipped"),
    "stages": ("stages",),
    "oversubscription of the leaves": ("oversubscription",),
}
"""What a column of panels shows -> groups of cases in it."""

LINES = {
    "devices": "aligned, 192 microbatches",
    "misaligned devices": "misaligned, 2:1, 32 microbatches",
    "microbatches": "misaligned, 2:1, 4,032 devices",
    "microbatches unskipped": "the same, nothing skipped",
    "stages": "17 replicas",
    "oversubscription": "misaligned, 4,032 devices",
}
"""Group -> what the others stay at."""

MEASURES = {"cpu_seconds": "CPU time [s]", "peak_mb": "peak memory [MB]"}


def draw(growth: pd.DataFrame, path: Path) -> None:
    """Draw seconds above megabytes, against each size in turn, on log scales."""
    measured = growth[growth["group"].isin(LINES)]
    panels = {
        title: [group for group in groups if (measured["group"] == group).any()]
        for title, groups in PANELS.items()
    }
    panels = {title: groups for title, groups in panels.items() if groups}
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(sns.axes_style("whitegrid"))
        mpl.rcParams.update(sns.plotting_context("notebook", font_scale=1.1))
        figure = Figure(
            figsize=(max(9.0, 4.6 * len(panels)), 8), dpi=100, layout="constrained"
        )
        FigureCanvasAgg(figure)
        axes = figure.subplots(
            len(MEASURES), len(panels), sharex="col", sharey="row", squeeze=False
        )
        for column, (title, groups) in enumerate(panels.items()):
            for place, name in enumerate(MEASURES):
                _panel(axes[place, column], measured, groups, name)
            axes[1, column].set_xlabel(title)
            axes[0, column].legend(loc="upper left", frameon=False)
        for place, (name, label) in enumerate(MEASURES.items()):
            log_scale(axes[place, 0], measured[name])
            axes[place, 0].set_ylabel(label)
        low, high = axes[0, 0].get_ylim()
        axes[0, 0].set_ylim(low, high * 3)  # room for the legends
        figure.suptitle(
            "Growth of the replay of GPT-3 175B, tensor-parallel by 8, from the priced "
            "plan to everything that happened",
            x=0.01,
            ha="left",
        )
        figure.savefig(path, metadata={"Software": None})


def _panel(axes: Axes, measured: pd.DataFrame, groups: list[str], measure: str) -> None:
    """Draw one measure of some groups against their size."""
    palette = sns.color_palette("colorblind")
    for group in groups:
        points = measured[measured["group"] == group]
        axes.plot(
            points["size"],
            points[measure],
            marker="o",
            markersize=8,
            linewidth=2,
            color=palette[groups.index(group)],
            label=LINES[group],
        )
    # The ticks are the first group's sizes: those of others may lie between them.
    log_sizes(axes, measured["size"][measured["group"] == groups[0]])
