"""Validation of collectives for people and machines: text, JSON, rows and a picture.

The picture shows time over size, small multiples of curves.
"""

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.document.canvas import figure_with_headline, save_figure
from nestsim.document.dumps import csv_of, plain_values
from nestsim.document.lettering import DPI, shortened
from nestsim.document.paints import INK
from nestsim.document.terminal import add_row, new_table
from nestsim.document.wording import percent, plural, signed_percent
from nestsim.features.validation.collective_runner import CollectivesValidation
from nestsim.features.validation.metrics import Errors, grouped
from nestsim.features.validation.rows.columns import REFUSALS
from topologies.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from nestsim.features.validation.collective_runner import CollectiveResult, Curve

_NUMBERS = ("Rows", "Median", "MAPE", "90th pct", "Worst", "Bias")
"""Columns of the table of errors."""


def collectives_json(result: CollectivesValidation) -> dict[str, Any]:
    """Return the result as plain values with stable keys, errors as fractions.

    Everything stands under ``"collectives"``: ``"median_of_curves"`` is the median
    over curves of each one's median error; other errors pool rows.
    """
    curves = [
        {**curve._asdict(), **_errors_json(errors)}
        for curve, errors in result.errors_by_curve().items()
    ]
    by_source = {
        source: _errors_json(errors)
        for source, errors in result.errors_by("source_key").items()
    }
    by_family = {
        name: _errors_json(errors) for name, errors in result.errors_by_family().items()
    }
    plain: dict[str, Any] = plain_values(
        {
            "measurements": result.name,
            "collectives": {
                "rows": len(result.rows),
                "scored": len(result.scored),
                "refused": len(result.refused),
                "median_of_curves": result.median_of_curves(),
                **_without_count(result.errors()),
                "by_accelerator": by_family,
                "by_source": by_source,
                "curves": curves,
                "refusals": dict(
                    Counter(row.code for row in result.refused).most_common()
                ),
            },
        }
    )
    return plain


def _errors_json(errors: Errors) -> dict[str, Any]:
    return {"scored": errors.rows, **_without_count(errors)}


def _without_count(errors: Errors) -> dict[str, Any]:
    return {key: value for key, value in errors._asdict().items() if key != "rows"}


_COLUMNS = (
    "row_id",
    "source_key",
    "status",
    "measured",
    "predicted",
    "unit",
    "error",
    "basis",
    "transport",
    "code",
    "reason",
    "assumed",
)
"""Columns of the file with a line for every row."""


def collectives_csv(result: CollectivesValidation) -> str:
    """Return a table with a line for every row of the file, in its order.

    ``error`` is relative, with its sign; numbers have all their digits.
    """
    rows = []
    for row in result.rows:
        case = row.case
        rows.append(
            [
                row.row.row_id,
                row.row.source,
                "refused" if case is None else "scored",
                *(row.measured, row.predicted),
                "s",
                row.error,
                "" if case is None else case.basis,
                "" if case is None else (case.across or case.inside).name,
                row.code,
                row.reason,
                "" if case is None else "; ".join(case.assumed),
            ]
        )
    return csv_of(rows, _COLUMNS)


def print_collectives(result: CollectivesValidation, console: Console) -> None:
    """Print the errors by curve and by accelerator, and what was refused."""
    console.print(
        Text(
            f"{result.name}: {plural(len(result.rows), 'row')} about the time of a "
            f"collective, {len(result.scored):,} predicted and compared, "
            f"{len(result.refused):,} refused"
        )
    )
    if result.scored:
        console.print()
        console.print(_curves_table(result))
        console.print()
        console.print(_families_table(result))
        console.print()
        console.print(Text(headline(result) + "."))
    if result.refused:
        console.print()
        console.print(_refusals_table(result))


def headline(result: CollectivesValidation) -> str:
    """Say how far off the predictions are."""
    count = len(result.curves())
    return (
        f"Predicted collectives are {percent(result.median_of_curves())} off in the "
        f"median of {plural(count, 'curve')}, each by its median"
    )


def _curves_table(result: CollectivesValidation) -> Table:
    table = new_table("Curve", *_NUMBERS, numbers=_NUMBERS)
    for curve, errors in sorted(result.errors_by_curve().items()):
        add_row(table, curve.label(), *_cells(errors))
    return table


def _families_table(result: CollectivesValidation) -> Table:
    table = new_table("Accelerator", *_NUMBERS, numbers=_NUMBERS)
    for name, errors in sorted(result.errors_by_family().items()):
        add_row(table, name, *_cells(errors))
    add_row(table, "all", *_cells(result.errors()), style="bold")
    return table


def _cells(errors: Errors) -> list[str]:
    return [
        f"{errors.rows:,}",
        percent(errors.median_ape),
        percent(errors.mape),
        percent(errors.p90_ape),
        percent(errors.max_ape),
        signed_percent(errors.bias),
    ]


def _refusals_table(result: CollectivesValidation) -> Table:
    table = new_table("Refused", "Rows", "Why", "Sources", numbers=("Rows",))
    for code, count in Counter(row.code for row in result.refused).most_common():
        sources = Counter(row.row.source for row in result.refused if row.code == code)
        counts = ", ".join(f"{name} {number}" for name, number in sources.most_common())
        add_row(table, code, f"{count:,}", REFUSALS[code], counts)
    return table


_FIGURE_COLUMNS = 4
"""Panels beside each other."""

_MOST_PANELS = 16


class Panel(NamedTuple):
    """Curves that share axes: those of a source, an operation and a node count."""

    title: str
    """Title of the panel."""

    curves: "tuple[tuple[Curve, list[CollectiveResult]], ...]"
    """Curves with their rows."""


def panels(result: "CollectivesValidation") -> tuple[Panel, ...]:
    """Return what is drawn: most points first, curves of a single point left out."""
    keyed = (
        ((curve.source, curve.operation, curve.num_nodes), (curve, rows))
        for curve, rows in result.curves().items()
        if len({row.case.num_bytes for row in rows if row.case}) > 1
    )
    drawn = [
        Panel(_title(*key), tuple(sorted(curves, key=lambda one: one[0])))
        for key, curves in grouped(keyed).items()
    ]
    drawn.sort(key=lambda panel: -sum(len(rows) for _, rows in panel.curves))
    return tuple(drawn[:_MOST_PANELS])


def _title(source: str, operation: str, num_nodes: int) -> str:
    return f"{source}\n{operation}, {plural(num_nodes, 'node')}"


def draw_collectives(result: "CollectivesValidation", path: Path) -> None:
    """Draw measured points and predicted lines, a colour for each number of ranks."""
    assert result.scored
    shown = panels(result)
    errors = result.errors()
    subtitle = (
        f"{result.name}: {plural(errors.rows, 'row')}, {len(result.refused):,} more "
        f"refused; {percent(errors.median_ape)} off in the median of all rows; "
        "points measured, lines predicted"
    )
    num_rows = max(1, math.ceil(len(shown) / _FIGURE_COLUMNS))
    with figure_with_headline(
        headline(result), subtitle, height=1.5 + 3.2 * num_rows
    ) as (
        figure,
        colours,
    ):
        height = 1.5 + 3.2 * num_rows
        ranks = sorted({one.num_ranks for panel in shown for one, _ in panel.curves})
        paint = dict(zip(ranks, itertools.cycle(colours.distinct), strict=False))
        grid = figure.add_gridspec(
            num_rows,
            _FIGURE_COLUMNS,
            left=0.065,
            right=0.985,
            top=1 - 1.35 / height,
            bottom=0.6 / height,
            hspace=0.45,
            wspace=0.22,
        )
        for number, panel in enumerate(shown):
            axes = figure.add_subplot(
                grid[number // _FIGURE_COLUMNS, number % _FIGURE_COLUMNS]
            )
            _draw_panel(axes, panel, paint)
            if number % _FIGURE_COLUMNS == 0:
                axes.set_ylabel("time")
            if number + _FIGURE_COLUMNS >= len(shown):
                axes.set_xlabel("size")
        save_figure(figure, path)


def _draw_panel(axes: "Axes", panel: Panel, paint: "Mapping[int, Any]") -> None:
    """Draw the curves of a panel, in the colour of their number of ranks."""
    for curve, rows in panel.curves:
        colour = paint[curve.num_ranks]
        sizes = [row.case.num_bytes for row in rows if row.case]
        measured = [row.measured for row in rows]
        predicted = [row.predicted for row in rows]
        label = f"{curve.num_ranks} ranks"
        axes.plot(sizes, predicted, color=colour, linewidth=1.3, label=label)
        axes.plot(
            sizes,
            measured,
            color=colour,
            marker="o",
            markersize=3.5,
            markeredgewidth=0,
            linestyle="none",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    _name_ticks(axes.xaxis, 32.0, 4.0, format_size)
    _name_ticks(axes.yaxis, 10.0, 2.0, format_duration)
    width = axes.get_window_extent().width / DPI
    title = "\n".join(shortened(one, 10.0, width) for one in panel.title.split("\n"))
    axes.set_title(title, fontsize=10, color=INK, loc="left", parse_math=False)
    axes.tick_params(labelsize=9)
    axes.legend(loc="upper left", fontsize=8, frameon=False, handlelength=1.2)
    axes.spines[["top", "right"]].set_visible(False)


def _name_ticks(
    axis: "Axis", wide: float, narrow: float, words: "Callable[[float], str]"
) -> None:
    """Write powers of a base at an axis, of a smaller one where it is short."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    base = wide if high / low >= wide**2 else narrow
    axis.set_major_locator(LogLocator(base=base, numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: words(value))
