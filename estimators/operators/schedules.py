"""The tasks of a pass through a layer, and their schedules on two engines.

An accelerator such as a TPU, Trainium or Gaudi runs matrix products on one engine and
everything else on another, and both can be busy at once with independent operators of
a layer's dataflow graph.

Forward, a task waits for the operators that wrote what it reads. A tensor that no
operator wrote is a part of an earlier one (``chunk``, an index); the trace does not say
of which, so its reader waits for all operators whose results are numbered below it:
never too little. Token dispatch waits for the router's choice, which are integers that
a trace leaves out.

Backward, every dependency turns round. A product with a weight becomes two tasks: the
gradient of its input, which the operators before it wait for, and that of its weight,
which only waits for the gradient of its result, and which nothing waits for.

Collectives have no task. A pass starts when the pass of the layer before is complete,
and operators are not cut into slices, so that dependent operators never overlap.

Schedules of a layer's tasks on two engines: quick ones, and bounds of the best one.

List scheduling never leaves an engine idle while one of its tasks could begin, and
takes the task with the longest path to the end first [1]_. As one of the engines is
busy at any time, it is never later than all tasks one after the other, and so within
twice the optimum: the sum of both loads is at most twice the larger one.

Letters: ``p`` a task's duration; ``r`` its head, the longest path of durations to its
beginning; ``q`` its tail, the longest path from its end to the end of all. How soon a
graph can be done at best:

- The critical path: the largest ``r + p + q``. No number of engines would help.
- The load of an engine: the sum of its ``p``.
- Both together: of any tasks of one engine none begins before the least of their heads,
  they run one after the other, and the least of their tails is still to come:
  ``min r + sum p + min q``. The largest of these over all subsets of an engine's tasks
  is the length of Jackson's preemptive schedule [2]_, which is found in O(n log n). It
  covers the other two.

Two tasks of one engine run in one order or the other. The precedences decide most
pairs, and a known schedule of length ``U`` decides more: if ``i`` before ``j`` would
take ``r_i + p_i + p_j + q_j >= U``, a shorter schedule has ``j`` before ``i`` [3]_.
That moves heads and tails, which may decide further pairs. Trying out both orders of a
pair that is still open decides it where one of them leads to a contradiction [4]_.
Often nothing is left, which proves that the known schedule is the best one.

References
----------
.. [1] T. C. Hu, "Parallel sequencing and assembly line problems", Operations Research
   9, 1961; J. E. Kelley, "The critical-path method", 1963.
.. [2] J. Carlier, "The one-machine sequencing problem", European Journal of Operational
   Research 11, 1982, section 3.
.. [3] J. Carlier, E. Pinson, "An algorithm for solving the job-shop problem",
   Management Science 35(2), 1989: immediate selection.
.. [4] J. Carlier, E. Pinson, "Adjustment of heads and tails for the job-shop problem",
   European Journal of Operational Research 78, 1994: global operations, or shaving.
"""

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from estimators.layers.work import OperatorWork
from estimators.operators.roofline import OperatorTime
from estimators.tracing.graph import TracedLayer, TracedOperator

ENGINES = ("tensor", "vector")
"""Names of the engines: one for matrix products and fused attention, one for everything
that is bound by memory traffic."""

_ENGINE_OF_KIND = dict.fromkeys(("matmul", "attention", "recurrence"), "tensor")
_ENGINE_OF_KIND["memory"] = "vector"


class OperatorTask(NamedTuple):
    """One operator in one pass, or its part of the weight's gradient."""

    operator: int
    """Number of the operator in its layer."""

    part: str
    """Part of the operator: ``"forward"``, ``"backward"`` (all of it but the weight's
    gradient) or ``"weight gradient"``."""

    engine: str
    """Engine that the task runs on, one of `ENGINES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGraph:
    """Tasks in order of execution, which is a topological order."""

    tasks: tuple[OperatorTask, ...]
    """Tasks of the layer: an engine runs one at a time, and one that has begun to its
    end."""

    predecessors: tuple[tuple[int, ...], ...]
    """Tasks that must have ended before each task, all of them earlier in `tasks`."""

    def successors(self) -> list[list[int]]:
        """Return for each task those that wait for it."""
        followers: list[list[int]] = [[] for _ in self.tasks]
        for task, before in enumerate(self.predecessors):
            for other in before:
                followers[other].append(task)
        return followers

    def durations(self, times: Sequence[OperatorTime]) -> tuple[float, ...]:
        """Return how long each task takes, from the times of the operators [s]."""
        return tuple(_duration(task, times[task.operator]) for task in self.tasks)


def _duration(task: OperatorTask, time: OperatorTime) -> float:
    if task.part == "forward":
        return time.forward
    if task.part == "weight gradient":
        return time.weight_gradient
    return max(time.backward - time.weight_gradient, 0.0)


def engines_of(works: Iterable[OperatorWork]) -> tuple[str, ...]:
    """Return the engine that runs each operator."""
    return tuple(_ENGINE_OF_KIND[work.kind] for work in works)


@lru_cache(maxsize=256)
def forward_graph(layer: TracedLayer, engines: tuple[str, ...]) -> TaskGraph:
    """Return the tasks of the forward pass; task ``i`` is operator ``i``."""
    assert len(engines) == len(layer.operators), "one engine per operator"
    waits = _data_dependencies(layer)
    for number, operator in enumerate(layer.operators):
        if operator.operation == "dispatch":
            waits[number] |= _routers(layer.operators[:number])
    return TaskGraph(
        tasks=tuple(
            OperatorTask(i, "forward", engine) for i, engine in enumerate(engines)
        ),
        predecessors=tuple(tuple(sorted(before)) for before in waits),
    )


@lru_cache(maxsize=256)
def partial_graph(
    layer: TracedLayer, engines: tuple[str, ...], chosen: tuple[int, ...]
) -> TaskGraph:
    """Return the tasks of some operators of the forward pass.

    What else they wait for has been kept.
    """
    whole = forward_graph(layer, engines)
    place = {task: new for new, task in enumerate(chosen)}
    return TaskGraph(
        tasks=tuple(whole.tasks[task] for task in chosen),
        predecessors=tuple(
            tuple(place[other] for other in whole.predecessors[task] if other in place)
            for task in chosen
        ),
    )


@lru_cache(maxsize=256)
def backward_graph(
    layer: TracedLayer, engines: tuple[str, ...], weighted: tuple[bool, ...]
) -> TaskGraph:
    """Return the tasks of the backward pass, last operator first.

    Parameters
    ----------
    layer
        What was traced.
    engines
        Of each operator.
    weighted
        Whether an operator has a weight's gradient that is a task of its own. It
        comes right after that of the input, as autograd runs them.
    """
    assert len(engines) == len(weighted) == len(layer.operators), "one per operator"
    readers: list[set[int]] = [set() for _ in layer.operators]
    for number, before in enumerate(_data_dependencies(layer)):
        for other in before:
            readers[other].add(number)
    tasks: list[OperatorTask] = []
    predecessors: list[tuple[int, ...]] = []
    place: dict[int, int] = {}
    for number in reversed(range(len(layer.operators))):
        waits = tuple(sorted(place[reader] for reader in readers[number]))
        place[number] = len(tasks)
        parts = ("backward", "weight gradient")[: 1 + weighted[number]]
        tasks += [OperatorTask(number, part, engines[number]) for part in parts]
        predecessors += [waits] * len(parts)
    return TaskGraph(tasks=tuple(tasks), predecessors=tuple(predecessors))


def _data_dependencies(layer: TracedLayer) -> list[set[int]]:
    """Return for each operator those that must have run, by the tensors it reads."""
    writers = {
        tensor: number
        for number, operator in enumerate(layer.operators)
        for tensor in operator.outputs
    }
    waits = []
    for operator in layer.operators:
        before: set[int] = set()
        for tensor in operator.inputs:
            if tensor in writers:
                before.add(writers[tensor])
            elif tensor != layer.hidden_input:
                before |= {writer for made, writer in writers.items() if made < tensor}
        waits.append(before)
    return waits


def _routers(operators: Sequence[TracedOperator]) -> set[int]:
    """Return the last choice of experts among some operators."""
    routers = [
        i for i, operator in enumerate(operators) if operator.operation == "top-k"
    ]
    return set(routers[-1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSchedule:
    """When each task of a graph begins, and on which engine."""

    start: tuple[float, ...]
    """Beginning of each task [s]."""

    duration: tuple[float, ...]
    """Duration of each task [s]."""

    engine: tuple[str, ...]
    """Engine of each task."""

    makespan: float
    """End of the last task [s]."""

    lower_bound: float
    """Lower bound of the ends of all schedules of the graph, to one part in 100,000; at
    most `makespan` [s]."""

    exact: bool
    """Whether `makespan` is the shortest, to one part in 100,000."""

    @property
    def gap(self) -> float:
        """What `makespan` may be above the optimum, at most, as a fraction of it."""
        return self.makespan / self.lower_bound - 1.0 if self.lower_bound > 0 else 0.0


def makespan(starts: Sequence[float], durations: Sequence[float]) -> float:
    """Return when the last task ends [s]."""
    ends = (start + p for start, p in zip(starts, durations, strict=True))
    return max(ends, default=0.0)


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


_NO_ENGINE = "none"
"""Engine of tasks that take no time: they wait for others, but for no engine."""

_QUEUES = (_NO_ENGINE, *ENGINES)


class _WaitingTasks:
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
    frontier = _WaitingTasks(graph, durations, urgency)
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
    frontier = _WaitingTasks(graph, durations, keys)
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


TOLERANCE = 1e-5
"""Relative difference below which lengths count as the same. HiGHS works to 1e-6."""

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOrders:
    """What a schedule that is shorter than a known one must look like."""

    possible: bool
    """Whether there may be a shorter schedule."""

    earlier: list[list[int]]
    """Tasks before each task: its predecessors, and tasks of its engine."""

    pairs: list[Pair]
    """Tasks of one engine whose order is open."""

    heads: list[float]
    """Longest path to each task, decided orders included [s]."""

    tails: list[float]
    """Longest path from the end of each task, decided orders included [s]."""

    lower_bound: float
    """Lower bound of the ends of such schedules; the known one's length if there is
    none [s]."""


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
            return _no_orders(before_each, upper)
        later = _reverse_edges(before_each)
        first = heads(before_each, durations, order)
        last = heads(later, durations, order[::-1])
        bound = combined_bound(graph, durations, first, last)
        if bound >= limit:
            return _no_orders(before_each, upper)
        pairs = _without_ordered(pairs, later, order)
        decided = _decided_pairs(pairs, durations, first, last, limit)
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
        contradicted = _first_contradiction(graph, durations, upper, orders)
        if contradicted is None:
            return orders
        before, after = contradicted
        earlier = _with_edge(orders.earlier, after, before)
        orders = open_orders(graph, durations, upper, earlier)


def _first_contradiction(
    graph: TaskGraph, durations: Sequence[float], upper: float, orders: OpenOrders
) -> Pair | None:
    """Return the first (earlier, later) that no shorter schedule can have."""
    for i, j in orders.pairs:
        for before, after in ((i, j), (j, i)):
            earlier = _with_edge(orders.earlier, before, after)
            if not open_orders(graph, durations, upper, earlier).possible:
                return before, after
    return None


def _with_edge(
    earlier: Sequence[Sequence[int]], before: int, after: int
) -> list[list[int]]:
    """Return what comes before each task if one more order is decided."""
    return [
        [*others, before] if task == after else list(others)
        for task, others in enumerate(earlier)
    ]


def _no_orders(earlier: list[list[int]], upper: float) -> OpenOrders:
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


def _decided_pairs(
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


def _reverse_edges(earlier: Sequence[Sequence[int]]) -> list[list[int]]:
    later: list[list[int]] = [[] for _ in earlier]
    for task, before in enumerate(earlier):
        for other in before:
            later[other].append(task)
    return later


def _topological_order(earlier: Sequence[Sequence[int]]) -> list[int] | None:
    """Return all tasks, each after those before it, or None if there is a cycle."""
    waits_for = [len(before) for before in earlier]
    later = _reverse_edges(earlier)
    order = [task for task, count in enumerate(waits_for) if count == 0]
    for task in order:
        for follower in later[task]:
            waits_for[follower] -= 1
            if waits_for[follower] == 0:
                order.append(follower)
    return order if len(order) == len(earlier) else None
