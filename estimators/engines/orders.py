"""Which orders of tasks a schedule shorter than a known one can still have.

Two tasks of one engine run in one order or the other. The precedences decide most
pairs, and a known schedule of length ``U`` decides more: if ``i`` before ``j`` would
take ``r_i + p_i + p_j + q_j >= U``, a shorter schedule has ``j`` before ``i`` [1]_.
That moves heads and tails, which may decide further pairs. Trying out both orders of a
pair that is still open decides it where one of them leads to a contradiction [2]_.
Often nothing is left, which proves that the known schedule is the best one.

Letters as in `estimators.engines.bounds`.

References
----------
.. [1] J. Carlier, E. Pinson, "An algorithm for solving the job-shop problem",
   Management Science 35(2), 1989: immediate selection.
.. [2] J. Carlier, E. Pinson, "Adjustment of heads and tails for the job-shop problem",
   European Journal of Operational Research 78, 1994: global operations, or shaving.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from estimators.engines.bounds import combined_bound, heads
from estimators.engines.graph import TaskGraph

TOLERANCE = 1e-5
"""Relative; lengths that differ by less count as the same. HiGHS works to 1e-6."""

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOrders:
    """What a schedule that is shorter than a known one must look like."""

    possible: bool
    """Whether there may be one."""

    earlier: list[list[int]]
    """Before each task: its predecessors, and tasks of its engine."""

    pairs: list[Pair]
    """Tasks of one engine whose order is open."""

    heads: list[float]
    """Longest paths to the tasks, decided orders included [s]."""

    tails: list[float]
    """Longest paths from them [s]."""

    lower_bound: float
    """Not even such a schedule ends earlier; the known one's length if there is none
    [s]."""


def open_orders(
    graph: TaskGraph,
    durations: Sequence[float],
    upper: float,
    earlier: Sequence[Sequence[int]] | None = None,
) -> OpenOrders:
    """Decide the order of as many pairs as heads and tails tell.

    Rounds of O(n^2), until one changes nothing.

    Parameters
    ----------
    graph
        The tasks.
    durations
        Of each task [s].
    upper
        The length of a known schedule [s].
    earlier
        The tasks before each task; its predecessors if None.
    """
    before_each = [
        list(b) for b in (graph.predecessors if earlier is None else earlier)
    ]
    limit = upper * (1.0 - TOLERANCE)
    pairs = _pairs_of_engines(graph, durations)
    while True:
        order = _topological_order(before_each)
        if order is None:
            return _impossible(before_each, upper)
        later = _turned(before_each)
        first = heads(before_each, durations, order)
        last = heads(later, durations, order[::-1])
        bound = combined_bound(graph, durations, first, last)
        if bound >= limit:
            return _impossible(before_each, upper)
        pairs = _without_ordered(pairs, later, order)
        decided = _decided(pairs, durations, first, last, limit)
        for before, after in decided:
            before_each[after].append(before)
        if not decided:
            return OpenOrders(
                possible=True,
                earlier=before_each,
                pairs=pairs,
                heads=first,
                tails=last,
                lower_bound=bound,
            )


def probed_orders(
    graph: TaskGraph, durations: Sequence[float], upper: float, orders: OpenOrders
) -> OpenOrders:
    """Decide further pairs by trying out either order.

    Each decision starts another round; O(n^2) trials a round at most.
    """
    while True:
        contradicted = _contradicted(graph, durations, upper, orders)
        if contradicted is None:
            return orders
        before, after = contradicted
        earlier = _with(orders.earlier, after, before)
        orders = open_orders(graph, durations, upper, earlier)


def _contradicted(
    graph: TaskGraph, durations: Sequence[float], upper: float, orders: OpenOrders
) -> Pair | None:
    """Return the first (earlier, later) that no shorter schedule can have."""
    for i, j in orders.pairs:
        for before, after in ((i, j), (j, i)):
            earlier = _with(orders.earlier, before, after)
            if not open_orders(graph, durations, upper, earlier).possible:
                return before, after
    return None


def _with(earlier: Sequence[Sequence[int]], before: int, after: int) -> list[list[int]]:
    """Return what comes before each task if one more order is decided."""
    return [
        [*others, before] if task == after else list(others)
        for task, others in enumerate(earlier)
    ]


def _impossible(earlier: list[list[int]], upper: float) -> OpenOrders:
    return OpenOrders(
        possible=False, earlier=earlier, pairs=[], heads=[], tails=[], lower_bound=upper
    )


def _pairs_of_engines(graph: TaskGraph, durations: Sequence[float]) -> list[Pair]:
    """Return the pairs of tasks of one engine; those without duration never clash."""
    engines = [task.engine for task in graph.tasks]
    lasting = [i for i, duration in enumerate(durations) if duration > 0]
    return [
        (i, j)
        for i, j in itertools.combinations(lasting, 2)
        if engines[i] == engines[j]
    ]


def _without_ordered(
    pairs: list[Pair], later: list[list[int]], order: Sequence[int]
) -> list[Pair]:
    """Drop the pairs one of whose tasks waits for the other one already."""
    reach = [0] * len(later)
    for task in reversed(order):
        for follower in later[task]:
            reach[task] |= 1 << follower | reach[follower]
    return [(i, j) for i, j in pairs if not (reach[i] >> j & 1 or reach[j] >> i & 1)]


def _decided(
    pairs: list[Pair],
    durations: Sequence[float],
    first: Sequence[float],
    last: Sequence[float],
    limit: float,
) -> list[Pair]:
    """Return (earlier, later) for the pairs that allow one order, or none.

    A pair that allows neither is returned both ways, which makes a cycle.
    """
    found = []
    for i, j in pairs:
        both = durations[i] + durations[j]
        if first[i] + both + last[j] >= limit:
            found.append((j, i))
        if first[j] + both + last[i] >= limit:
            found.append((i, j))
    return found


def _turned(earlier: Sequence[Sequence[int]]) -> list[list[int]]:
    later: list[list[int]] = [[] for _ in earlier]
    for task, before in enumerate(earlier):
        for other in before:
            later[other].append(task)
    return later


def _topological_order(earlier: Sequence[Sequence[int]]) -> list[int] | None:
    """Return all tasks, each after those before it, or None if there is a cycle."""
    waits_for = [len(before) for before in earlier]
    later = _turned(earlier)
    order = [task for task, count in enumerate(waits_for) if count == 0]
    for task in order:
        for follower in later[task]:
            waits_for[follower] -= 1
            if waits_for[follower] == 0:
                order.append(follower)
    return order if len(order) == len(earlier) else None
