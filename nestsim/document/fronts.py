"""Throughput over what a cluster costs, and what is on the Pareto front."""

from collections.abc import Sequence
from typing import NamedTuple

from nestsim.document.figures import CostFront, FrontPoint
from nestsim.document.parts import Cell, DataTable, FigureBlock
from nestsim.document.wording import HOUR, hourly, number

_MOST_NAMED = 16
"""Points of the front that the note names."""

_MOST_IN_TEXT = 20
"""Points of the front that the text has."""


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

    @property
    def tokens_per_money(self) -> float:
        """Tokens for one unit of the currency [token/currency]."""
        return self.throughput / self.rate


def front_headline(points: Sequence[PricedPoint], currency: str) -> str:
    """Say which point has most tokens for the money."""
    best = max(points, key=lambda point: point.tokens_per_money)
    return (
        f"Most tokens for a {currency}: {number(best.tokens_per_money)}, "
        f"with {best.name or 'the only point'}"
    )


def front_points(points: Sequence[PricedPoint]) -> list[PricedPoint]:
    """Return the points of the front, the cheapest first."""
    front = [point for point in points if point.on_front]
    return sorted(front, key=lambda point: (point.rate, point.throughput))


def front_figure(
    points: Sequence[PricedPoint], currency: str, heading: str
) -> FigureBlock:
    """Return the figure of points with prices.

    Parameters
    ----------
    points
        At least one.
    currency
        Of all costs.
    heading
        What the names of points are.
    """
    front = front_points(points)
    names = [point.name or "the only point" for point in front[:_MOST_NAMED]]
    named = ", ".join(f"{place} {name}" for place, name in enumerate(names, start=1))
    ordered = (*front, *(point for point in points if not point.on_front))
    return FigureBlock(
        name="pareto",
        title=front_headline(points, currency),
        about=f"{len(front)} of {len(points)} points are on the Pareto front of "
        "throughput and cost: no other is both no dearer and no slower.",
        drawing=CostFront(
            points=tuple(
                FrontPoint(
                    HOUR * point.rate,
                    point.throughput / 1e3,
                    point.on_front,
                    f"{point.name or 'the only point'}: {number(point.throughput)} "
                    f"tokens/s, {hourly(point.rate, currency)}",
                    str(place) if point.on_front else "",
                )
                for place, point in enumerate(ordered, start=1)
            ),
            across=f"cost of the cluster [{currency}/h]",
            up="thousand tokens/s",
        ),
        table=DataTable(
            caption="Cost of the cluster and throughput; the front first",
            columns=(heading, "Cost", "Throughput", f"tokens/{currency}", "Front"),
            rows=tuple(
                (
                    point.name or "the only point",
                    Cell(hourly(point.rate, currency), point.rate),
                    Cell(f"{number(point.throughput)} tokens/s", point.throughput),
                    Cell(number(point.tokens_per_money), point.tokens_per_money),
                    "on it" if point.on_front else "",
                )
                for point in ordered
            ),
            numbers=("Cost", "Throughput", f"tokens/{currency}"),
            sortable=True,
            first=min(len(front), _MOST_IN_TEXT),
        ),
        note=f"On the front: {named}{', ..' if len(front) > len(names) else ''}. "
        "Hollow: another is no dearer and no slower.",
    )
