"""Plans crossed with conditions, and the links that they keep busiest."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nestsim.document.wording import percent, signed_percent
from nestsim.features.stress.conditions import AS_BUILT
from nestsim.features.stress.words import shown_conditions
from topologies.arrays import FloatArray

if TYPE_CHECKING:
    from nestsim.features.stress.results import StressResult

_MOST_BARS = 14
"""Links that are named."""


class Matrix(NamedTuple):
    """Plans made for some conditions, run at the same ones."""

    names: tuple[str, ...]
    regret: FloatArray
    """Of the plan made for the row's condition under the column's, over that of the
    plan made there; NaN where there is none."""


class LinkBar(NamedTuple):
    """A link and the condition under which it is busiest."""

    link: str
    level: str
    share: float
    condition: str


def throughput_map(result: "StressResult", planner: str) -> FloatArray:
    """Return throughput over the ratios of the two outermost levels that vary.

    Of a planner's plans, re-made for each combination; rows are the ratios of the
    inner level; NaN where there is no plan [token/s].
    """
    inner, outer = list(result.axes)[-2:]
    rows = []
    for first in result.axes[inner]:
        names = [
            result.at({inner: first, outer: second}) for second in result.axes[outer]
        ]
        cells = [result.cell(planner, name, name) for name in names]
        rows.append([math.nan if c is None else result.throughput(c) for c in cells])
    return np.array(rows)


def matrix_names(result: "StressResult") -> tuple[str, ...]:
    """Return the conditions that are crossed in the picture."""
    if result.axes:
        return result.line([*result.axes][-1])
    return tuple(name for name in shown_conditions(result) if name in result.cells)


def regret_matrix(result: "StressResult", planner: str) -> Matrix:
    """Cross a planner's plans: each one made for a condition, run at all."""
    names = matrix_names(result)
    regret = np.full((len(names), len(names)), math.nan)
    for column, run_at in enumerate(names):
        own = result.cell(planner, run_at, run_at)
        for row, planned_for in enumerate(names):
            cell = result.cell(planner, planned_for, run_at)
            if cell is not None and own is not None:
                regret[row, column] = cell.simulated / own.simulated - 1.0
    return Matrix(names, regret)


def matrix_title(result: "StressResult") -> str:
    """Say what a plan costs at worst where it was not made for."""
    found = [regret_matrix(result, planner) for planner in result.planners]
    worst, where = _worst(result, found)
    title = f"Planned for one network, run on another: at worst {signed_percent(worst)}"
    return f"{title}{where}"


def _worst(result: "StressResult", found: Sequence[Matrix]) -> tuple[float, str]:
    """Return the largest regret, and whose it is."""
    peaks = [float(np.nanmax(one.regret, initial=0.0)) for one in found]
    number = int(np.argmax(peaks))
    if peaks[number] <= 0.0:
        return 0.0, ""
    one = found[number]
    row, column = np.argwhere(one.regret == peaks[number])[0].tolist()
    return peaks[number], (
        f", {result.planners[number]}'s plan for {one.names[row]} at "
        f"{one.names[column]}"
    )


def share_to_keep(result: "StressResult") -> tuple[float, str] | None:
    """Return the throughput that is to be kept [token/s], and what it is.

    None if no share is to be kept, or there is no plan.
    """
    asked = result.asked
    if asked is None or not result.answers:
        return None
    whole = result.tokens / result.answers[0].base_time
    best = "1:1" if asked.quantity == "oversubscription" else "its full bandwidth"
    words = f"to keep: {percent(asked.keep)} of {result.planners[0]}'s"
    return asked.keep * whole, f"{words}, level {asked.level} at {best}"


def hottest_bars(result: "StressResult") -> tuple[LinkBar, ...]:
    """Return the links that the first planner's healthy plan keeps busiest.

    Each with the condition where it is, the busiest first.
    """
    planner = result.planners[0]
    bars: dict[str, LinkBar] = {}
    for name in result.run_names:
        cell = result.cell(planner, AS_BUILT, name)
        for link in cell.hottest if cell is not None else ():
            if link.name not in bars or link.share > bars[link.name].share:
                bars[link.name] = LinkBar(link.name, link.level, link.share, name)
    order = sorted(bars.values(), key=lambda bar: (-bar.share, bar.link))
    return tuple(order[:_MOST_BARS])


def hottest_title(bars: Sequence[LinkBar]) -> str:
    """Name the busiest link of all."""
    if not bars:
        return "Nothing was sent over the network"
    first = bars[0]
    return (
        f"The busiest link, {first.link}, is busy {percent(first.share)} of the "
        f"step under {first.condition}"
    )
