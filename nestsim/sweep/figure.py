"""The picture of a sweep over one setting (a line) or two (a map): throughput.

The folder of a sweep: its store, and everything that is made of it at the end.

Beside ``sweep.sqlite``, which grows point by point: ``scenario.toml`` (a copy of the
input), ``points.csv``, ``points.parquet``, ``result.json``, a picture of
sweeps over one or two settings (``sweep.png``), and ``manifest.json`` with the hash of
each. None of these depends on the number of workers, or on interruptions.
"""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nestsim.report.destination import Writer
from nestsim.report.figures.canvas import figure_with_headline, save_figure
from nestsim.report.figures.panels import INK, Colours
from nestsim.report.json import dump_json
from nestsim.sweep.axes import Axis
from nestsim.sweep.job import STORE, ScenarioSweepResult, write_csv, write_parquet
from nestsim.sweep.report import (
    best_first,
    short_names,
    sweep_json,
    throughput_of,
    value_label,
)
from topologies.errors import InputError
from topologies.units import BASE_UNITS, parse_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

_MOST_TICKS = 24
_MOST_WRITTEN = 144
"""Cells of a map into which numbers are written."""


def is_drawn(result: ScenarioSweepResult) -> bool:
    """Tell whether there is a picture: of one or two settings, with anything in it."""
    return len(_varied(result)) in {1, 2} and bool(best_first(result.outcomes))


def _varied(result: ScenarioSweepResult) -> list[Axis]:
    return [axis for axis in result.axes if len(axis.values) > 1]


def headline(result: ScenarioSweepResult) -> str:
    """Say which point is the fastest, and what lies between it and the slowest."""
    ranked = best_first(result.outcomes)
    best, worst = (throughput_of(one) or 0.0 for one in (ranked[0], ranked[-1]))
    paths = [axis.path for axis in _varied(result)]
    at = ", ".join(
        f"{name} {value_label(ranked[0].point[path])}"
        for name, path in zip(short_names(paths), paths, strict=True)
    )
    return f"{best:,.0f} tokens/s at {at}; {1 - worst / best:.1%} less at the slowest"


def draw_sweep(result: ScenarioSweepResult, path: Path) -> None:
    """Draw throughput over the one or two settings that are varied."""
    varied = _varied(result)
    failed = sum(throughput_of(one) is None for one in result.outcomes)
    subtitle = f"{result.scenario_name}: {len(result.outcomes):,} points"
    if failed:
        subtitle += f", {failed:,} of them without a plan that fits"
    with figure_with_headline(headline(result), subtitle) as (figure, colours):
        axes = figure.add_axes((0.09, 0.13, 0.87, 0.74))
        values = [throughput_of(one) for one in result.outcomes]
        numbers = np.array([math.nan if one is None else one for one in values])
        grid = numbers.reshape([len(axis.values) for axis in varied])
        if len(varied) == 1:
            _draw_line(axes, varied[0], grid, colours)
        else:
            _draw_map(axes, varied, grid, colours)
        save_figure(figure, path)


def positions(values: Sequence[object]) -> "NDArray[np.float64] | None":
    """Return where values stand on an axis of numbers, in base units; None if none."""
    if all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in values
    ):
        return np.array(values, dtype=np.float64)
    for dimension in BASE_UNITS:
        try:
            return np.array([parse_quantity(one, dimension) for one in values])
        except InputError:
            continue
    return None


def _draw_line(
    axes: "Axes", axis: Axis, values: "NDArray[np.float64]", colours: Colours
) -> None:
    places = positions(axis.values)
    if places is None:
        places = np.arange(len(axis.values), dtype=np.float64)
    order = np.argsort(places, kind="stable")
    places, values = places[order], values[order]
    labels = [value_label(axis.values[index]) for index in order]
    axes.plot(places, values, marker="o", color=colours.distinct[0], linewidth=2)
    missing = np.isnan(values)
    axes.plot(
        places[missing],
        np.zeros(int(missing.sum())),
        marker="x",
        linestyle="",
        color=colours.distinct[3],
        markersize=10,
        label="no plan that fits",
    )
    if missing.any():
        axes.legend(frameon=False)
    if places[0] > 0 and places[-1] / places[0] >= 8:
        axes.set_xscale("log")
        axes.minorticks_off()
    step = math.ceil(len(labels) / _MOST_TICKS)
    axes.set_xticks(places[::step], labels[::step])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("throughput [tokens/s]")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(axis.path, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)


def _draw_map(
    axes: "Axes", varied: Sequence[Axis], grid: "NDArray[np.float64]", colours: Colours
) -> None:
    rows, columns = varied
    shares = grid / np.nanmax(grid)
    image = axes.imshow(
        shares, cmap=colours.ordered, aspect="auto", origin="lower", vmax=1.0
    )
    bar = axes.figure.colorbar(image, ax=axes, pad=0.015)
    bar.set_label("throughput relative to the best")
    for axis, place in ((columns, axes.set_xticks), (rows, axes.set_yticks)):
        step = math.ceil(len(axis.values) / _MOST_TICKS)
        labels = [value_label(one) for one in axis.values]
        place(range(0, len(labels), step), labels[::step])
    axes.set_xlabel(columns.path, parse_math=False)
    axes.set_ylabel(rows.path, parse_math=False)
    lightest = float(np.nanmin(shares))
    middle = (1.0 + lightest) / 2
    for (row, column), share in np.ndenumerate(shares):
        if math.isnan(share):
            axes.text(column, row, "x", ha="center", va="center", color=INK)
        elif shares.size <= _MOST_WRITTEN:
            colour = "white" if share < middle else "black"
            text = f"{100 * share:.3g}"
            axes.text(column, row, text, ha="center", va="center", color=colour, size=9)


FILES = ("scenario.toml", "points.csv", "points.parquet", "result.json", "sweep.png")
"""Files of the folder, but the store and the manifest."""


def sweep_writers(
    result: ScenarioSweepResult, scenario_bytes: bytes
) -> dict[str, Writer]:
    """Return what writes each file that is made of the points, by name."""
    writers: dict[str, Writer] = {
        "scenario.toml": lambda path: path.write_bytes(scenario_bytes),
        "points.csv": lambda path: write_csv(result.outcomes, path),
        "points.parquet": lambda path: write_parquet(result.outcomes, path),
        "result.json": lambda path: path.write_text(
            dump_json(sweep_json(result)), encoding="utf-8"
        ),
    }
    if is_drawn(result):
        writers["sweep.png"] = lambda path: draw_sweep(result, path)
    return writers


def sweep_facts(result: ScenarioSweepResult, scenario_bytes: bytes) -> dict[str, Any]:
    """Return what the manifest says beside the hash of each file."""
    return {
        "scenario": result.scenario_name,
        "scenario_sha256": hashlib.sha256(scenario_bytes).hexdigest(),
        "store": STORE,
    }
