"""Which points of a sweep are best: by throughput, and by throughput for the money."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from nestsim.evaluate.cost import pareto_front
from nestsim.evaluate.verdict import NO_ROOM
from nestsim.running.store import Outcome


def throughput_of(outcome: Outcome) -> float | None:
    """Return the throughput of a point, simulated if it was [token/s]; None if none.

    A plan that does not fit into memory has none.
    """
    row = outcome.row
    if row is None or row.get("verdict") in NO_ROOM:
        return None
    rate = row.get("simulated_tokens_per_s", row.get("planned_tokens_per_s"))
    return None if rate is None else float(rate)


def best_first(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the points with a throughput, fastest first, ties in their order."""
    known = [one for one in outcomes if throughput_of(one) is not None]
    return sorted(known, key=lambda one: (-(throughput_of(one) or 0.0), one.number))


def rate_of(outcome: Outcome) -> float | None:
    """Return what a point's cluster costs [currency/s]; None if nothing is said."""
    rate = (outcome.row or {}).get("cost_per_s")
    return float(rate) if rate else None


def currency_of(outcomes: Sequence[Outcome]) -> str:
    """Return the one currency of all points that cost something; empty without one."""
    priced = [one.row or {} for one in outcomes if rate_of(one) is not None]
    codes = {str(row["currency"]) for row in priced}
    return codes.pop() if len(codes) == 1 else ""


def front_of(outcomes: Sequence[Outcome]) -> frozenset[int]:
    """Return the numbers of the points that no other one dominates.

    None is both no dearer and no slower. Empty where points have no costs, or several
    currencies.
    """
    if not currency_of(outcomes):
        return frozenset()
    known = partial(np.array, dtype=np.float64)
    costs = known([_number(rate_of(one)) for one in outcomes])
    gains = known([_number(throughput_of(one)) for one in outcomes])
    front = pareto_front(costs, gains)
    return frozenset(one.number for one, on in zip(outcomes, front, strict=True) if on)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
