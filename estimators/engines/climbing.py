"""Better schedules by small steps."""

from collections.abc import Sequence

from estimators.engines.graph import TaskGraph
from estimators.engines.list_schedule import schedule_in_order
from estimators.engines.orders import TOLERANCE, OpenOrders, Pair, open_orders
from estimators.engines.schedule import makespan


def climb(
    graph: TaskGraph,
    durations: Sequence[float],
    starts: list[float],
    orders: OpenOrders,
) -> tuple[list[float], OpenOrders]:
    """Improve a schedule by moving one task past another while that helps.

    Only pairs whose order is open are looked at: a schedule that orders any other pair
    the other way is no shorter.

    Parameters
    ----------
    graph
        The tasks.
    durations
        Of each task [s].
    starts
        A schedule [s].
    orders
        What `open_orders` says of its length.

    Returns
    -------
    tuple
        The beginnings [s], and what `open_orders` says of their length.
    """
    better = _first_better(graph, durations, starts, orders.pairs)
    while better is not None:
        starts = better
        orders = open_orders(graph, durations, makespan(starts, durations))
        better = _first_better(graph, durations, starts, orders.pairs)
    return starts, orders


def _first_better(
    graph: TaskGraph,
    durations: Sequence[float],
    starts: Sequence[float],
    pairs: Sequence[Pair],
) -> list[float] | None:
    limit = makespan(starts, durations) * (1.0 - TOLERANCE)
    place = [0.0] * len(starts)
    for number, task in enumerate(sorted(range(len(starts)), key=starts.__getitem__)):
        place[task] = float(number)
    for pair in pairs:
        one, other = sorted(pair, key=place.__getitem__)
        for task, new in ((one, place[other] + 0.5), (other, place[one] - 0.5)):
            keys = place.copy()
            keys[task] = new
            found = schedule_in_order(graph, durations, keys)
            if makespan(found, durations) < limit:
                return found
    return None
