"""The plot of how the search's time and memory grow."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tests.benchmarks.plot_scales import log_scale, log_sizes

SIZES = {"layers": "layers", "devices": "devices", "levels": "network levels"}
MEASURES = {"seconds": "search time [s]", "peak_mb": "peak memory [MB]"}
MOST_MB = 600.0
"""What a search may take at most: the figure that the planner has to meet."""


def draw(growth: pd.DataFrame, path: Path) -> None:
    """Draw seconds above megabytes, against each size in turn, on log scales."""
    measured = growth.dropna(subset=["seconds"]).astype({"stopped": bool})
    sizes = [size for size in SIZES if (measured["group"] == size).any()]
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(sns.axes_style("whitegrid"))
        mpl.rcParams.update(sns.plotting_context("notebook", font_scale=1.1))
        figure = Figure(
            figsize=(max(11.0, 2 + 4.2 * len(sizes)), 8), dpi=100, layout="constrained"
        )
        FigureCanvasAgg(figure)
        axes = figure.subplots(
            len(MEASURES), len(sizes), sharex="col", sharey="row", squeeze=False
        )
        for column, size in enumerate(sizes):
            points = measured[measured["group"] == size]
            for place, name in enumerate(MEASURES):
                _panel(axes[place, column], points, size, name)
            axes[0, column].set_title(_trend(points, size), loc="left")
        for place, (name, label) in enumerate(MEASURES.items()):
            log_scale(axes[place, 0], measured[name])
            axes[place, 0].set_ylabel(label)
        top = max(MOST_MB, float(measured["peak_mb"].max()))
        axes[1, 0].set_ylim(100, 1.3 * top)
        figure.suptitle(
            "Growth of the planner's search, everything searched\n"
            "48 layers, 512 devices, 3 levels, and one of them changed"
            + ("; hollow: cut by the time limit" if measured["stopped"].any() else ""),
            x=0.01,
            ha="left",
        )
        figure.savefig(path, metadata={"Software": None})


def _panel(axes: Axes, points: pd.DataFrame, size: str, measured: str) -> None:
    """Draw one measure against one size."""
    is_time = measured == "seconds"
    colour = sns.color_palette("colorblind")[0 if is_time else 1]
    sns.lineplot(points, x=size, y=measured, ax=axes, color=colour, linewidth=2)
    for stopped, part in points.groupby("stopped"):
        face = "white" if stopped else colour
        axes.plot(
            part[size], part[measured], "o", color=colour, markerfacecolor=face, ms=9
        )
    if not is_time:
        axes.axhline(MOST_MB, color="#333333", linestyle="--", linewidth=1.2)
        axes.annotate(
            f"at most {MOST_MB:g} MB",
            (0.02, MOST_MB),
            (0, -5),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="top",
        )
    log_sizes(axes, points[size])
    axes.set_xlabel("" if is_time else SIZES[size])
    axes.set_ylabel("")


def _trend(points: pd.DataFrame, size: str) -> str:
    """Say how time grows, by least squares of the logarithms over finished points.

    Nothing where they are not near a line: a power law would be a tale.
    """
    finished = points[~points["stopped"]]
    if size == "levels" or len(finished) < 3:
        return ""
    sizes, seconds = np.log(finished[size]), np.log(finished["seconds"])
    if np.corrcoef(sizes, seconds)[0, 1] < 0.98:
        return ""
    slope, _ = np.polyfit(sizes, seconds, 1)
    return f"time grows as {size}$^{{{slope:.1f}}}$"
