"""The picture of a Pareto front: throughput over cost, and what is on the front.

A dotted line goes through all points with as many tokens for the money as the best of
them has: what lies below it has fewer. Points of the front are numbered from the
cheapest on, and listed beside the axes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nestsim.report.cost import HOUR
from nestsim.report.figures.canvas import WIDTH, figure_with_headline, save_figure
from nestsim.report.figures.data import axis_ends
from nestsim.report.figures.lettering import shortened
from nestsim.report.figures.palette import INK
from nestsim.report.wording import number
from topologies.units import format_money

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LETTERS = 11.5
"""Size of the list's letters [point]."""

_LIST = 0.685
"""Where the list begins, as a part of the figure."""

MOST_LISTED = 24
"""Points of the front that are listed; of more the cheapest ones are."""


class PricedPoint(NamedTuple):
    """One point of the picture."""

    name: str
    """What tells it from the others."""

    rate: float
    """What its cluster costs [currency/s]."""

    throughput: float
    """What is trained there [token/s]."""

    on_front: bool
    """Whether no other point dominates it."""

    label: str = ""
    """What the list calls it, below its heading; empty for the name."""

    @property
    def tokens_per_money(self) -> float:
        """Tokens for one unit of the currency [token/currency]."""
        return self.throughput / self.rate


def front_headline(points: Sequence[PricedPoint], currency: str) -> str:
    """Say which point has most tokens for the money."""
    best = max(points, key=lambda one: one.tokens_per_money)
    return (
        f"Most tokens for a {currency}: {number(best.tokens_per_money)}, "
        f"with {best.name or 'the only point'}"
    )


def front_points(points: Sequence[PricedPoint]) -> list[PricedPoint]:
    """Return the points of the front, the cheapest first."""
    front = [one for one in points if one.on_front]
    return sorted(front, key=lambda one: (one.rate, one.throughput))


def draw_pareto(
    points: Sequence[PricedPoint],
    currency: str,
    subject: str,
    path: Path,
    *,
    heading: str = "",
) -> None:
    """Draw throughput over what the cluster costs each hour.

    Parameters
    ----------
    points
        At least one.
    currency
        Of all costs.
    subject
        What the points are of, one clause.
    path
        The file.
    heading
        What stands over the labels of the list.
    """
    import seaborn as sns

    front = front_points(points)
    subtitle = (
        f"{subject}: {len(front):,} of {len(points):,} points are on the Pareto front, "
        "no other is both no dearer and no slower"
    )
    headline = front_headline(points, currency)
    with figure_with_headline(headline, subtitle) as (figure, colours):
        axes = figure.add_axes((0.075, 0.12, _LIST - 0.1, 0.74))
        sns.scatterplot(
            **_places([one for one in points if not one.on_front]),
            s=49,
            linewidth=1,
            facecolor="white",
            edgecolor=colours.distinct[7],
            label="another is no dearer and no slower",
            ax=axes,
        )
        sns.lineplot(
            **_places(front),
            estimator=None,
            sort=False,
            color=colours.distinct[0],
            marker="o",
            markersize=15,
            markeredgewidth=0,
            linewidth=2,
            drawstyle="steps-post",
            label="on the Pareto front",
            ax=axes,
        )
        _draw_best_price(axes, points, currency)
        axes.set_xlabel(f"cost of the cluster [{currency}/h]")
        axes.set_ylabel("throughput [thousand tokens/s]")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="lower right", markerscale=0.7)
        _number_points(axes, front)
        _list_points(figure, front, currency, heading)
        save_figure(figure, path)


def _places(points: Sequence[PricedPoint]) -> dict[str, list[float]]:
    """Return where points are drawn, for seaborn."""
    return {
        "x": [HOUR * one.rate for one in points],
        "y": [one.throughput / 1e3 for one in points],
    }


def _draw_best_price(
    axes: "Axes", points: Sequence[PricedPoint], currency: str
) -> None:
    """Draw where tokens are as cheap as they are anywhere, inside the limits."""
    axes.margins(x=0.08, y=0.1)
    low, high = axis_ends(*axes.get_xlim())
    limits = axis_ends(*axes.get_ylim())
    best = max(one.tokens_per_money for one in points)
    slope = best / HOUR / 1e3
    axes.plot(
        [low, high],
        [slope * low, slope * high],
        color=INK,
        linestyle=":",
        linewidth=1.4,
        zorder=1,
        label=f"{format_money(1e9 / best, currency)} for a billion tokens",
    )
    axes.set_xlim(low, high)
    axes.set_ylim(*limits)


def _number_points(axes: "Axes", front: Sequence[PricedPoint]) -> None:
    for index, point in enumerate(front[:MOST_LISTED], start=1):
        axes.annotate(
            str(index),
            (HOUR * point.rate, point.throughput / 1e3),
            ha="center",
            va="center_baseline",
            size=8.5,
            weight="bold",
            color="white",
        )


def _list_points(
    figure: "Figure", front: Sequence[PricedPoint], currency: str, heading: str
) -> None:
    """Write the names of the front's points beside the axes, the best one bold."""
    best = max(front, key=lambda one: one.tokens_per_money)
    top, step = 0.855, 0.03
    room = (0.985 - _LIST - 0.095) * WIDTH
    head = shortened(heading, _LETTERS, room)
    figure.text(_LIST, top, head, size=_LETTERS, color=INK, parse_math=False)
    figure.text(0.985, top, f"tokens/{currency}", ha="right", size=_LETTERS, color=INK)
    for index, point in enumerate(front[:MOST_LISTED], start=1):
        height = top - step * index
        weight = "bold" if point is best else "normal"
        name = shortened(
            f"{index}  {point.label or point.name}", _LETTERS, room, weight
        )
        style: dict[str, Any] = {"size": _LETTERS, "weight": weight, "color": INK}
        figure.text(_LIST, height, name, parse_math=False, **style)
        words = number(point.tokens_per_money)
        figure.text(0.985, height, words, ha="right", **style)
    if len(front) > MOST_LISTED:
        height = top - step * (MOST_LISTED + 1)
        words = f"and {len(front) - MOST_LISTED:,} dearer ones"
        figure.text(_LIST, height, words, size=_LETTERS, color=INK)
