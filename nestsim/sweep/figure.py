"""The picture of a sweep: throughput over one setting, two, or more.

One setting of numbers makes a line, one of names makes bars. Two make a map; with more
there is one map for each combination of the others.

The folder of a sweep: its store, and everything that is made of it at the end.

Beside ``sweep.sqlite``, which grows point by point: ``scenario.toml`` (a copy of the
input), ``points.csv``, ``points.parquet``, ``result.json``, a picture of
sweeps over one or two settings (``sweep.png``), one of throughput over cost where the
scenario has prices (``pareto.png``), and ``manifest.json`` with the hash of
each. None of these depends on the number of workers, or on interruptions.
"""

import hashlib
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nestsim.report.destination import Writer
from nestsim.report.figures.canvas import (
    HEIGHT,
    WIDTH,
    figure_with_headline,
    save_figure,
)
from nestsim.report.figures.data import LEAST_SPAN
from nestsim.report.figures.heat_maps import draw_heat_map, draw_scale, one_decimal
from nestsim.report.figures.lettering import DPI, shortened, spaced, widest
from nestsim.report.figures.palette import INK
from nestsim.report.figures.panels import PLAIN_BARS, Colours, write_beside
from nestsim.report.figures.pareto import PricedPoint, draw_pareto
from nestsim.report.folder import PAGE
from nestsim.report.json import dump_json
from nestsim.sweep.axes import Axis
from nestsim.sweep.job import STORE, ScenarioSweepResult, write_csv, write_parquet
from nestsim.sweep.ranking import (
    best_first,
    currency_of,
    front_of,
    rate_of,
    throughput_of,
)
from nestsim.sweep.report import (
    point_label,
    positions,
    short_names,
    sweep_headline,
    sweep_json,
    value_label,
    varied_axes,
)
from topologies.arrays import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_BARS = 40
"""Bars of a figure; of more names the first are drawn."""

MOST_PANELS = 24
"""Maps of a figure; of more combinations the first are drawn."""

_COLUMNS = 4
"""Maps beside one another."""

_LETTERS = 12.0
"""Size of the names of values [point]."""

_NO_PLAN = "no plan that fits"


def is_drawn(result: ScenarioSweepResult) -> bool:
    """Tell whether there is a picture: something varies, and there is a throughput."""
    return bool(varied_axes(result)) and bool(best_first(result.outcomes))


def draw_sweep(result: ScenarioSweepResult, path: Path) -> None:
    """Draw throughput over all settings that are varied."""
    varied = varied_axes(result)
    values = [throughput_of(one) for one in result.outcomes]
    numbers = np.array([math.nan if one is None else one for one in values])
    grid = numbers.reshape([len(axis.values) for axis in varied])
    subtitle = f"{result.scenario_name}: {len(values):,} points"
    failed = int(np.isnan(numbers).sum())
    if failed:
        sign = " (grey)" if len(varied) > 1 else ""
        subtitle += f", {failed:,} of them without a plan that fits{sign}"
    num_panels = math.prod(grid.shape[2:])
    if num_panels > MOST_PANELS:
        subtitle += f"; the first {MOST_PANELS} of {num_panels:,} maps"
    rows = math.ceil(min(num_panels, MOST_PANELS) / _COLUMNS)
    height = HEIGHT if rows < 3 else 2.0 + 3.4 * rows
    with figure_with_headline(sweep_headline(result), subtitle, height) as (
        figure,
        colours,
    ):
        if len(varied) > 1:
            _draw_maps(figure, varied, grid, colours)
        elif (places := positions(varied[0].values)) is not None:
            axes = figure.add_axes((0.09, 0.13, 0.87, 0.74))
            _draw_line(axes, varied[0], places, grid, colours)
        else:
            _draw_bars(figure, varied[0], grid, colours)
        save_figure(figure, path)


def priced_points(result: ScenarioSweepResult) -> list[PricedPoint]:
    """Return the points that cost something and reach something."""
    front = front_of(result.outcomes)
    paths = [axis.path for axis in varied_axes(result)]
    points = []
    for one in result.outcomes if front else ():
        rate, throughput = rate_of(one), throughput_of(one)
        if rate is None or throughput is None:
            continue
        label = point_label(result, one)
        values = ", ".join(value_label(one.point[path]) for path in paths)
        on_front = one.number in front
        points.append(PricedPoint(label, rate, throughput, on_front, values))
    return points


def _draw_front(result: ScenarioSweepResult, path: Path) -> None:
    draw_pareto(
        priced_points(result),
        currency_of(result.outcomes),
        result.scenario_name,
        path,
        heading=", ".join(short_names([axis.path for axis in varied_axes(result)])),
    )


def _draw_line(
    axes: "Axes", axis: Axis, places: FloatArray, values: FloatArray, colours: Colours
) -> None:
    """Draw throughput over a setting whose values are numbers."""
    import seaborn as sns

    order = np.argsort(places, kind="stable")
    places, values = places[order], values[order]
    names = [value_label(axis.values[index]) for index in order]
    missing = np.isnan(values)
    color = colours.distinct[0]
    sns.lineplot(
        x=places, y=values, estimator=None, marker="o", color=color, lw=2, ax=axes
    )
    if missing.any():
        sns.scatterplot(
            x=places[missing],
            y=0.0,
            marker="x",
            color=colours.distinct[3],
            s=100,
            linewidth=1.5,
            clip_on=False,
            label=_NO_PLAN,
            ax=axes,
        )
        axes.legend(frameon=False)
    is_wide = places[0] > 0 and places[-1] / places[0] >= 8
    if is_wide:
        axes.set_xscale("log")
        axes.minorticks_off()
    along = np.log(places) if is_wide else places
    width = axes.get_window_extent().width / DPI
    inches = width * (along - along[0]) / ((along[-1] - along[0]) or 1.0)
    kept = spaced(inches.tolist(), names, _LETTERS)
    axes.set_xticks(places[kept], [names[n] for n in kept], parse_math=False)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("throughput [tokens/s]")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(axis.path, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)


def _draw_bars(
    figure: "Figure", axis: Axis, values: FloatArray, colours: Colours
) -> None:
    """Draw throughput over a setting whose values are names, one bar each."""
    import seaborn as sns

    values = values[:_MOST_BARS]
    names = [
        shortened(value_label(one), _LETTERS, 0.4 * WIDTH)
        for one in axis.values[:_MOST_BARS]
    ]
    left = 0.035 + widest(names, _LETTERS) / WIDTH
    axes = figure.add_axes((left, 0.13, 0.97 - left, 0.74))
    lengths = np.nan_to_num(values)
    rows = [*range(len(names))]
    style = {**PLAIN_BARS, "color": colours.distinct[0], "width": 0.7}
    sns.barplot(x=lengths, y=rows, orient="h", ax=axes, **style)
    words = [_NO_PLAN if math.isnan(one) else f"{one:,.0f}" for one in values]
    write_beside(axes, lengths.tolist(), rows, words)
    axes.set_yticks(rows, names, size=_LETTERS, parse_math=False)
    axes.set_ylim(max(len(names), 4) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("throughput [tokens/s]")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_title(axis.path, loc="left", size=14, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_maps(
    figure: "Figure", varied: Sequence[Axis], grid: FloatArray, colours: Colours
) -> None:
    """Draw a map over the first two settings for each combination of the others."""
    rows, columns, *others = varied
    shares = 100.0 * grid / np.nanmax(grid)
    shares = shares.reshape(*shares.shape[:2], -1)
    limits = (min(float(np.nanmin(shares)), 100.0 * (1.0 - LEAST_SPAN)), 100.0)
    combinations = list(itertools.product(*(range(len(o.values)) for o in others)))
    combinations = combinations[:MOST_PANELS]
    names = tuple([value_label(one) for one in axis.values] for axis in (rows, columns))
    titles = short_names([axis.path for axis in others]) if others else []
    num_columns = min(_COLUMNS, len(combinations))
    num_rows = math.ceil(len(combinations) / num_columns)
    height = figure.get_figheight()
    room = widest(names[0], 10.0)
    left, right = (0.75 + min(room, 3.0)) / WIDTH, 0.92
    bottom, top = 1.0 / height, 1 - (1.5 if others else 1.1) / height
    panels = figure.add_gridspec(
        num_rows,
        num_columns,
        left=left,
        right=right,
        bottom=bottom,
        top=top,
        wspace=0.08,
        hspace=0.3,
    )
    for number, choice in enumerate(combinations):
        axes = figure.add_subplot(panels[number // num_columns, number % num_columns])
        mesh = draw_heat_map(
            axes,
            shares[:, :, number],
            (names[0], names[1]),
            colours=colours.ordered,
            limits=limits,
            words=one_decimal,
        )
        title = ", ".join(
            f"{name} {value_label(other.values[index])}"
            for name, other, index in zip(titles, others, choice, strict=True)
        )
        width = axes.get_window_extent().width / DPI
        title = shortened(title, 13.0, width)
        axes.set_title(title, loc="left", size=13, parse_math=False)
        if number % num_columns:
            axes.set_yticks([])
        if number + num_columns < len(combinations):
            axes.set_xticks([])
    style: dict[str, Any] = {"size": 13, "color": INK, "parse_math": False}
    middle = (bottom + top) / 2
    figure.text((left + right) / 2, 0.3 / height, columns.path, ha="center", **style)
    figure.text(
        0.3 / WIDTH, middle, rows.path, rotation=90, ha="center", va="center", **style
    )
    draw_scale(
        figure,
        mesh,
        (0.935, bottom, 0.012, top - bottom),
        "throughput, share of the highest [%]",
    )


FILES = (
    *("scenario.toml", "points.csv", "points.parquet", "result.json"),
    *("sweep.png", "pareto.png", PAGE),
)
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
        if priced_points(result):
            writers["pareto.png"] = lambda path: _draw_front(result, path)
    return writers


def sweep_facts(result: ScenarioSweepResult, scenario_bytes: bytes) -> dict[str, Any]:
    """Return what the manifest says beside the hash of each file."""
    return {
        "scenario": result.scenario_name,
        "scenario_sha256": hashlib.sha256(scenario_bytes).hexdigest(),
        "store": STORE,
    }
