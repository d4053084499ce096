"""How soon a graph of tasks can be done at best, by relaxations that are quick.

Letters: ``p`` a task's duration; ``r`` its head, the longest path of durations to its
beginning; ``q`` its tail, the longest path from its end to the end of all.

- The critical path: the largest ``r + p + q``. No number of engines would help.
- The load of an engine: the sum of its ``p``.
- Both together: of any tasks of one engine none begins before the least of their heads,
  they run one after the other, and the least of their tails is still to come:
  ``min r + sum p + min q``. The largest of these over all subsets of an engine's tasks
  is the length of Jackson's preemptive schedule [1]_, which is found in O(n log n). It
  covers the other two.

References
----------
.. [1] J. Carlier, "The one-machine sequencing problem", European Journal of Operational
   Research 11, 1982, section 3.
"""

import heapq
import math
from collections.abc import Sequence

from estimators.engines.graph import ENGINES, TaskGraph


def heads(
    predecessors: Sequence[Sequence[int]],
    durations: Sequence[float],
    order: Sequence[int],
) -> list[float]:
    """Return the longest path to each task's beginning [s].

    Parameters
    ----------
    predecessors
        Of each task.
    durations
        Of each task [s].
    order
        All tasks, each after its predecessors.
    """
    ready = [0.0] * len(durations)
    for task in order:
        for other in predecessors[task]:
            ready[task] = max(ready[task], ready[other] + durations[other])
    return ready


def tails(graph: TaskGraph, durations: Sequence[float]) -> list[float]:
    """Return the longest path from each task's end to the end of all [s]."""
    order = range(len(durations) - 1, -1, -1)
    return heads(graph.successors(), durations, order)


def engine_bound(tasks: Sequence[tuple[float, float, float]]) -> float:
    """Return the largest ``min r + sum p + min q`` over subsets of one engine's tasks.

    It is the time at which the last tail is over if the engine always runs the task
    with the longest tail of those whose head has passed, and drops it for a better one.

    Parameters
    ----------
    tasks
        Head, duration and tail of each [s].
    """
    coming = sorted(tasks)
    waiting: list[tuple[float, float]] = []
    now = end = 0.0
    place = 0
    while waiting or place < len(coming):
        if not waiting:
            now = max(now, coming[place][0])
        while place < len(coming) and coming[place][0] <= now:
            _, duration, tail = coming[place]
            heapq.heappush(waiting, (-tail, duration))
            place += 1
        next_head = coming[place][0] if place < len(coming) else math.inf
        minus_tail, left = waiting[0]
        if now + left <= next_head:
            heapq.heappop(waiting)
            now += left
            end = max(end, now - minus_tail)
        else:
            waiting[0] = (minus_tail, left - (next_head - now))
            now = next_head
    return end


def combined_bound(
    graph: TaskGraph,
    durations: Sequence[float],
    first: Sequence[float],
    last: Sequence[float],
) -> float:
    """Return the largest bound of an engine, given heads and tails [s]."""
    triples = list(zip(first, durations, last, strict=True))
    return max(
        engine_bound(
            [
                triple
                for triple, task in zip(triples, graph.tasks, strict=True)
                if task.engine == engine
            ]
        )
        for engine in ENGINES
    )


def lower_bound(graph: TaskGraph, durations: Sequence[float]) -> float:
    """Return a time that no schedule can beat [s]."""
    first = heads(graph.predecessors, durations, range(len(durations)))
    return combined_bound(graph, durations, first, tails(graph, durations))
