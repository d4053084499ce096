"""Scales that the plots of growth share."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter


def log_scale(axes: Axes, values: pd.Series) -> None:
    """Set a log scale with room for all values and ticks at 1, 2 and 5."""
    axes.set_yscale("log")
    axes.set_ylim(float(values.min()) / 1.5, float(values.max()) * 1.5)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def log_sizes(axes: Axes, sizes: pd.Series) -> None:
    """Set a log scale with a tick at each size that was measured."""
    axes.set_xscale("log")
    axes.set_xticks(sorted(set(sizes)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
