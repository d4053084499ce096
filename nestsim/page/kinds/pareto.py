"""Throughput over what a cluster costs, and what is on the Pareto front."""

from collections.abc import Sequence

from nestsim.document.figures import CostFront, FrontPoint
from nestsim.document.parts import Cell, DataTable, FigureBlock
from nestsim.report.cost import HOUR, hourly
from nestsim.report.figures.pareto import PricedPoint, front_headline, front_points
from nestsim.report.wording import number


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
    ordered = (*front, *(one for one in points if not one.on_front))
    return FigureBlock(
        name="pareto",
        title=front_headline(points, currency),
        about=f"{len(front)} of {len(points)} points are on the Pareto front of "
        "throughput and cost: no other is both no dearer and no slower.",
        drawing=CostFront(
            points=tuple(
                FrontPoint(
                    HOUR * one.rate,
                    one.throughput / 1e3,
                    one.on_front,
                    f"{one.name or 'the only point'}: {number(one.throughput)} "
                    f"tokens/s, {hourly(one.rate, currency)}",
                )
                for one in ordered
            ),
            across=f"cost of the cluster [{currency}/h]",
            up="thousand tokens/s",
        ),
        table=DataTable(
            caption="Cost of the cluster and throughput; the front first",
            columns=(heading, "Cost", "Throughput", f"tokens/{currency}", "Front"),
            rows=tuple(
                (
                    one.name or "the only point",
                    Cell(hourly(one.rate, currency), one.rate),
                    Cell(f"{number(one.throughput)} tokens/s", one.throughput),
                    Cell(number(one.tokens_per_money), one.tokens_per_money),
                    "on it" if one.on_front else "",
                )
                for one in ordered
            ),
            numbers=("Cost", "Throughput", f"tokens/{currency}"),
            sortable=True,
        ),
        note="Filled: on the Pareto front. Hollow: another is no dearer and no slower.",
    )
