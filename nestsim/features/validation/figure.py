"""The picture of a validation: predicted against measured, with error bands."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nestsim.document.canvas import (
    GIB,
    Colours,
    figure_with_headline,
    plain_logarithms,
    save_figure,
)
from nestsim.document.paints import INK
from nestsim.document.wording import percent, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nestsim.features.validation.runner import RowResult, ValidationResult

BANDS = (0.1, 0.25)
"""Relative errors that the picture shows as bands around equality."""

_MOST_SOURCES = 18
_MARKERS = "osD^v<>pP*Xhdo"


def headline(result: "ValidationResult") -> str:
    """Say how far off the predictions are."""
    errors = result.errors()
    what = "Predicted memory is"
    if result.kind == "throughput":
        what = "Predicted step times are"
    return (
        f"{what} {percent(errors.mape)} off on average, "
        f"{percent(errors.median_ape)} in the median"
    )


def within(result: "ValidationResult", band: float) -> float:
    """Return the share of scored rows whose error is at most ``band``."""
    errors = np.array([abs(row.error) for row in result.scored])
    return float((errors <= band).mean())


def draw_validation(result: "ValidationResult", path: Path) -> None:
    """Draw every scored row, predicted over measured, one colour for each source."""
    assert result.scored
    subtitle = (
        f"{result.name}: {plural(len(result.scored), 'row')}, "
        f"{len(result.refused):,} more refused; "
        + ", ".join(
            f"{percent(within(result, band))} within {100 * band:g} %" for band in BANDS
        )
    )
    with figure_with_headline(headline(result), subtitle) as (figure, colours):
        grid = figure.add_gridspec(
            1,
            2,
            left=0.065,
            right=0.985,
            top=0.86,
            bottom=0.09,
            wspace=0.14,
            width_ratios=(1.25, 1),
        )
        both = figure.add_subplot(grid[0])
        over = figure.add_subplot(grid[1])
        sources = _draw_rows(both, over, result.scored, colours)
        _finish(both, over, result)
        handles, labels = both.get_legend_handles_labels()
        named = dict(zip(labels, handles, strict=True))
        both.legend(
            [named[source] for source in sources[:_MOST_SOURCES]],
            sources[:_MOST_SOURCES],
            loc="upper left",
            fontsize=10,
            frameon=False,
            markerscale=1.5,
        )
        save_figure(figure, path)


def _draw_rows(
    both: "Axes", over: "Axes", rows: Sequence["RowResult"], colours: Colours
) -> list[str]:
    """Draw all rows, and return the names of their sources, the largest first."""
    import pandas as pd
    import seaborn as sns

    unit = _unit(rows[0])
    frame = pd.DataFrame(
        {
            "source": [row.row.source for row in rows],
            "measured": [row.measured / unit for row in rows],
            "predicted": [row.predicted / unit for row in rows],
            "error": [100.0 * row.error for row in rows],
        }
    )
    counts = frame["source"].value_counts()
    names = {source: f"{source} ({count})" for source, count in counts.items()}
    frame["source"] = frame["source"].map(names)
    sources, distinct = [*names.values()], colours.distinct
    numbers = range(len(sources))
    palette = {sources[n]: distinct[n % len(distinct)] for n in numbers}
    style: dict[str, Any] = {
        "data": frame,
        "x": "measured",
        "hue": "source",
        "style": "source",
        "palette": palette,
        "markers": {
            sources[n]: _MARKERS[n // len(distinct) % len(_MARKERS)] for n in numbers
        },
        "hue_order": sources,
        "style_order": sources,
        "s": 20,
        "alpha": 0.7,
        "linewidth": 0,
    }
    sns.scatterplot(y="predicted", ax=both, **style)
    sns.scatterplot(y="error", ax=over, legend=False, **style)
    banded = [(row, row.band) for row in rows if row.band is not None]
    both.vlines(
        [row.measured for row, _ in banded],
        [row.predicted * band.low for row, band in banded],
        [row.predicted * band.high for row, band in banded],
        colors=[palette[names[row.row.source]] for row, _ in banded],
        alpha=0.2,
        linewidth=1,
    )
    return sources


def _unit(row: "RowResult") -> float:
    """Return what values are divided by: memory is drawn in GiB."""
    return GIB if np.isnan(row.planned) else 1.0


def _finish(both: "Axes", over: "Axes", result: "ValidationResult") -> None:
    """Draw the bands and label the axes."""
    name, unit = ("time of a step", "s")
    if result.kind == "memory":
        name, unit = ("memory of a device", "GiB")
    scale = _unit(result.scored[0])
    values = [row.measured / scale for row in result.scored]
    values += [row.predicted / scale for row in result.scored]
    ends = np.array([min(values) / 1.3, max(values) * 1.3])
    both.plot(ends, ends, color=INK, linewidth=1)
    over.axhline(0, color=INK, linewidth=1)
    for band in BANDS:
        shade = {"color": INK, "alpha": 0.07, "linewidth": 0}
        both.fill_between(ends, ends * (1 - band), ends * (1 + band), **shade)  # type: ignore[arg-type]  # keywords of PolyCollection
        over.axhspan(-100 * band, 100 * band, **shade)  # type: ignore[arg-type]  # likewise
        over.annotate(
            f"within {100 * band:g} %",
            (ends[0], 100 * band),
            xytext=(3, -3),
            textcoords="offset points",
            va="top",
            size=10,
        )
    for axes in (both, over):
        axes.set_xscale("log")
        axes.set_xlim(*ends)
        plain_logarithms(axes.xaxis)
        axes.set_xlabel(f"measured {name} [{unit}]")
        axes.spines[["top", "right"]].set_visible(False)
    both.set_yscale("log")
    both.set_ylim(*ends)
    plain_logarithms(both.yaxis)
    both.set_ylabel(f"predicted [{unit}]")
    over.set_ylabel("error [%]: above 0, predicted too large")
