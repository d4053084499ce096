"""Random graphs of tasks, and an oracle that tries every order."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from estimators.operators.schedules import (
    ENGINES,
    EngineSchedule,
    OperatorTask,
    TaskGraph,
    makespan,
)


class Case(NamedTuple):
    """A graph and how long its tasks take, in whole numbers: sums are exact."""

    graph: TaskGraph
    durations: tuple[float, ...]


def graph_of(engines: Sequence[str], *edges: tuple[int, int]) -> TaskGraph:
    """Return a graph from the engine of each task and its (earlier, later) pairs."""
    return TaskGraph(
        tasks=tuple(
            OperatorTask(i, "forward", engine) for i, engine in enumerate(engines)
        ),
        predecessors=tuple(
            tuple(sorted(before for before, after in edges if after == task))
            for task in range(len(engines))
        ),
    )


@st.composite
def cases(draw: st.DrawFn, *, most_tasks: int = 6, shortest: int = 0) -> Case:
    """Draw a graph with integer durations, some of them 0 by default."""
    size = draw(st.integers(1, most_tasks))
    engines = draw(st.lists(st.sampled_from(ENGINES), min_size=size, max_size=size))
    pairs = [(i, j) for j in range(size) for i in range(j)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    lengths = st.lists(st.integers(shortest, 7), min_size=size, max_size=size)
    return Case(graph_of(engines, *edges), tuple(map(float, draw(lengths))))


def every_makespan(case: Case) -> Iterator[float]:
    """Yield the length of every schedule that begins each task as soon as it can.

    Tasks are placed one by one, in all orders that the precedences allow. A shortest
    schedule is among them: place tasks by their beginnings.
    """
    graph, durations = case

    def place(ends: dict[int, float], free: dict[str, float]) -> Iterator[float]:
        if len(ends) == len(durations):
            yield max(ends.values())
        for task, before in enumerate(graph.predecessors):
            if task in ends or any(other not in ends for other in before):
                continue
            engine = graph.tasks[task].engine
            start = max((ends[other] for other in before), default=0.0)
            if durations[task] == 0:
                yield from place({**ends, task: start}, free)
                continue
            end = max(start, free[engine]) + durations[task]
            yield from place({**ends, task: end}, {**free, engine: end})

    return place({}, dict.fromkeys(ENGINES, 0.0))


def shortest(case: Case) -> float:
    """Return the length of the shortest schedule."""
    return min(every_makespan(case))


def as_schedule(case: Case, starts: Sequence[float]) -> EngineSchedule:
    """Return beginnings as a schedule of which nothing is claimed."""
    return EngineSchedule(
        start=tuple(starts),
        duration=case.durations,
        engine=tuple(task.engine for task in case.graph.tasks),
        makespan=makespan(starts, case.durations),
        lower_bound=0.0,
        exact=False,
    )


def is_feasible(graph: TaskGraph, schedule: EngineSchedule) -> bool:
    """Say whether tasks wait for each other and engines run one task at a time."""
    begins = schedule.start
    ends = [s + p for s, p in zip(begins, schedule.duration, strict=True)]
    waits = all(
        ends[other] <= begins[task]
        for task, before in enumerate(graph.predecessors)
        for other in before
    )
    return waits and all(
        earlier[1] <= later[0]
        for engine in set(schedule.engine)
        for earlier, later in itertools.pairwise(_busy_times(schedule, engine))
    )


class EngineUse(NamedTuple):
    """Fractions of a schedule's time; they add up to one."""

    both: float
    """Time during which both engines are busy [s]."""

    tensor_only: float
    """Time during which the tensor engine alone is busy [s]."""
    vector_only: float
    """Time during which the vector engine alone is busy [s]."""
    neither: float
    """Time during which no engine is busy [s]."""


def engine_use(schedule: EngineSchedule) -> EngineUse:
    """Return how much of the time each engine is busy; all 0 if nothing takes time."""
    if schedule.makespan <= 0:
        return EngineUse(0.0, 0.0, 0.0, 0.0)
    tensor = _busy_times(schedule, "tensor")
    vector = _busy_times(schedule, "vector")
    both = _common_time(tensor, vector) / schedule.makespan
    tensor_only, vector_only = (
        max(sum(end - start for start, end in times) / schedule.makespan - both, 0.0)
        for times in (tensor, vector)
    )
    neither = max(1.0 - both - tensor_only - vector_only, 0.0)
    return EngineUse(both, tensor_only, vector_only, neither)


def _busy_times(schedule: EngineSchedule, engine: str) -> list[tuple[float, float]]:
    """Return the beginnings and ends of an engine's tasks that take time, in order."""
    return sorted(
        (start, start + duration)
        for start, duration, where in zip(
            schedule.start, schedule.duration, schedule.engine, strict=True
        )
        if where == engine and duration > 0
    )


def _common_time(
    first: list[tuple[float, float]], second: list[tuple[float, float]]
) -> float:
    common, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        begin = max(first[i][0], second[j][0])
        end = min(first[i][1], second[j][1])
        common += max(end - begin, 0.0)
        if first[i][1] <= second[j][1]:
            i += 1
        else:
            j += 1
    return common
