"""Heat maps with a number in each cell, and the scale of their colours beside them."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nestsim.report.figures.lettering import DPI, size_that_fits, spaced, wrapped
from topologies.arrays import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure


_LARGEST, _SMALLEST = 11.0, 7.0
"""Sizes of the numbers in cells [point]."""

_NAMES = 10.0
"""Size of the names of rows and columns [point]."""

_NO_VALUE = "#dddddd"
"""Colour of cells without a value."""

_LINES = 1.8
"""Least height of a cell with a number, in heights of its letters."""


def two_digits(value: float) -> str:
    """Write a number with two significant digits, but at most two decimals.

    Examples
    --------
    >>> [two_digits(value) for value in (14.3, 2.34, 0.163, -0.001)]
    ['14', '2.3', '0.16', '0']
    """
    size = abs(value)
    digits = 0 if size >= 9.95 else 1 if size >= 0.995 else 2
    text = f"{value:.{digits}f}"
    return "0" if float(text) == 0.0 else text


def one_decimal(value: float) -> str:
    """Write a share of 100: ``99.9``."""
    return f"{value:.1f}"


def draw_heat_map(
    axes: "Axes",
    values: FloatArray,
    names: tuple[Sequence[str], Sequence[str]],
    *,
    colours: Any,
    limits: tuple[float, float],
    words: Callable[[float], str],
) -> "QuadMesh":
    """Draw a matrix, row 0 at the bottom, with its numbers where they can be read.

    Parameters
    ----------
    axes
        Where to.
    values
        Shape ``(rows, columns)``, NaN where there is none.
    names
        Of the rows and of the columns.
    colours
        A colour map or its name.
    limits
        Values at the ends of the colour map.
    words
        How a value is written.
    """
    import seaborn as sns

    width, height = _size(axes)
    num_rows, num_columns = values.shape
    texts = ["" if math.isnan(one) else words(one) for one in values.flat]
    size = size_that_fits(
        texts,
        0.9 * width / num_columns,
        largest=min(_LARGEST, 72.0 * height / num_rows / _LINES),
        smallest=_SMALLEST,
    )
    low, high = limits
    sns.heatmap(
        values,
        cmap=colours,
        vmin=low,
        vmax=high,
        linewidths=0.8,
        annot=None if size is None else np.reshape(texts, values.shape),
        fmt="",
        annot_kws={"size": size},
        cbar=False,
        xticklabels=False,
        yticklabels=False,
        ax=axes,
    )
    axes.invert_yaxis()
    axes.set_facecolor(_NO_VALUE)
    axes.tick_params(length=0)
    rows, columns = names
    every = math.ceil(num_rows * _NAMES * 1.3 / 72.0 / height)
    kept = range(0, num_rows, every)
    axes.set_yticks(
        [row + 0.5 for row in kept],
        [rows[row] for row in kept],
        size=_NAMES,
        parse_math=False,
    )
    columns = [wrapped(name, _NAMES, width / num_columns) for name in columns]
    middles = [(column + 0.5) * width / num_columns for column in range(num_columns)]
    shown = spaced(middles, columns, _NAMES)
    axes.set_xticks(
        [column + 0.5 for column in shown],
        [columns[column] for column in shown],
        size=_NAMES,
        parse_math=False,
    )
    (mesh,) = axes.collections
    return cast("QuadMesh", mesh)


def _size(axes: "Axes") -> tuple[float, float]:
    """Return width and height of axes [inch]."""
    box = axes.get_window_extent()
    return box.width / DPI, box.height / DPI


def draw_scale(
    figure: "Figure",
    mesh: "QuadMesh",
    place: tuple[float, float, float, float],
    label: str,
) -> None:
    """Draw the scale of the colours, with what they mean.

    Parameters
    ----------
    figure, mesh
        Where to, and whose colours.
    place
        Left, bottom, width and height, as parts of the figure.
    label
        What the colours mean, with its unit.
    """
    bar = figure.colorbar(mesh, cax=figure.add_axes(place))
    bar.set_label(label, size=12)
    bar.ax.tick_params(labelsize=11)
    bar.outline.set_visible(False)
