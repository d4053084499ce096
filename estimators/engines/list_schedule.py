"""Schedules of a graph of tasks without search.

List scheduling never leaves an engine idle while one of its tasks could begin, and
takes the task with the longest path to the end first [1]_. As one of the engines is
busy at any time, it is never later than all tasks one after the other, and so within
twice the optimum: the sum of both loads is at most twice the larger one.

References
----------
.. [1] T. C. Hu, "Parallel sequencing and assembly line problems", Operations Research
   9, 1961; J. E. Kelley, "The critical-path method", 1963.
"""

import heapq
from collections.abc import Sequence

from estimators.engines.bounds import tails
from estimators.engines.graph import ENGINES, TaskGraph

_NO_ENGINE = "none"
"""Where tasks run that take no time: they wait for others, but for no engine."""

_QUEUES = (_NO_ENGINE, *ENGINES)


class _Frontier:
    """The tasks that wait for their engine only, those of the lowest key first."""

    def __init__(
        self, graph: TaskGraph, durations: Sequence[float], keys: Sequence[float]
    ) -> None:
        self._keys = keys
        self._queues = [
            task.engine if duration > 0 else _NO_ENGINE
            for task, duration in zip(graph.tasks, durations, strict=True)
        ]
        self._successors = graph.successors()
        self._waits_for = [len(before) for before in graph.predecessors]
        self.ready: dict[str, list[tuple[float, int]]] = {q: [] for q in _QUEUES}
        for task, count in enumerate(self._waits_for):
            if count == 0:
                self._add(task)

    def _add(self, task: int) -> None:
        heapq.heappush(self.ready[self._queues[task]], (self._keys[task], task))

    def pop(self, queue: str) -> int:
        """Take the first task of an engine."""
        return heapq.heappop(self.ready[queue])[1]

    def release(self, task: int) -> list[int]:
        """Let the followers of a task no longer wait for it, and return them."""
        for follower in self._successors[task]:
            self._waits_for[follower] -= 1
            if self._waits_for[follower] == 0:
                self._add(follower)
        return self._successors[task]


def list_schedule(graph: TaskGraph, durations: Sequence[float]) -> list[float]:
    """Return when each task begins; O(n log n + edges) [s].

    Ties go to the task that is earlier in the order of execution.
    """
    last = tails(graph, durations)
    urgency = [-q - p for q, p in zip(last, durations, strict=True)]
    frontier = _Frontier(graph, durations, urgency)
    idle = set(ENGINES)
    starts = [0.0] * len(durations)
    running: list[tuple[float, int]] = []
    now = 0.0
    while True:
        while frontier.ready[_NO_ENGINE]:
            task = frontier.pop(_NO_ENGINE)
            starts[task] = now
            frontier.release(task)
        for engine in [e for e in ENGINES if e in idle and frontier.ready[e]]:
            task = frontier.pop(engine)
            idle.remove(engine)
            starts[task] = now
            heapq.heappush(running, (now + durations[task], task))
        if not running:
            return starts
        now = running[0][0]
        while running and running[0][0] == now:
            _, task = heapq.heappop(running)
            idle.add(graph.tasks[task].engine)
            frontier.release(task)


def schedule_in_order(
    graph: TaskGraph, durations: Sequence[float], keys: Sequence[float]
) -> list[float]:
    """Return the earliest beginnings if each engine runs its tasks by rising key [s].

    A task that waits for one with a higher key comes after it all the same. Ties go to
    the earlier one in the order of execution.
    """
    frontier = _Frontier(graph, durations, keys)
    starts = [0.0] * len(durations)
    free = dict.fromkeys(_QUEUES, 0.0)
    for _ in durations:
        queue = min(
            (q for q in _QUEUES if frontier.ready[q]),
            key=lambda q: frontier.ready[q][0],
        )
        task = frontier.pop(queue)
        if queue != _NO_ENGINE:
            starts[task] = max(starts[task], free[queue])
        end = free[queue] = starts[task] + durations[task]
        for follower in frontier.release(task):
            starts[follower] = max(starts[follower], end)
    return starts


def mirrored_schedule(graph: TaskGraph, durations: Sequence[float]) -> list[float]:
    """Return when each task begins if the list is built from the end backwards [s].

    It puts off what nothing waits for, where `list_schedule` would begin it as soon as
    an engine is idle and so hold up a more urgent task that is about to come.
    """
    num_tasks = len(graph.tasks)
    mirror = TaskGraph(
        tasks=graph.tasks[::-1],
        predecessors=tuple(
            tuple(sorted(num_tasks - 1 - other for other in after))
            for after in graph.successors()[::-1]
        ),
    )
    turned = durations[::-1]
    begins = list_schedule(mirror, turned)
    ends = [start + duration for start, duration in zip(begins, turned, strict=True)]
    return schedule_in_order(graph, durations, [-end for end in ends[::-1]])
