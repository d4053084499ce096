"""What a schedule of a layer's tasks on two engines is, and what it makes of them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from estimators.engines.graph import TaskGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSchedule:
    """When each task of a graph begins, and on which engine."""

    start: tuple[float, ...]
    """Beginning of each task [s]."""

    duration: tuple[float, ...]
    """Of each task [s]."""

    engine: tuple[str, ...]
    """Of each task."""

    makespan: float
    """When the last task ends [s]."""

    lower_bound: float
    """No schedule of the graph ends earlier by more than one part in 100,000; at most
    `makespan` [s]."""

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
    """Both engines are busy."""

    tensor_only: float
    vector_only: float
    neither: float


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


def explain(schedule: EngineSchedule) -> str:
    """Say in a sentence what the two engines gain, and how sure that is."""
    total = sum(schedule.duration)
    saved = 1.0 - schedule.makespan / total if total > 0 else 0.0
    how = (
        "the optimum"
        if schedule.exact
        else f"at most {schedule.gap:.1%} above the optimum"
    )
    return (
        f"{saved:.1%} shorter than one operator after the other ({how}): both engines "
        f"are busy {engine_use(schedule).both:.1%} of the time"
    )


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
    one: list[tuple[float, float]], other: list[tuple[float, float]]
) -> float:
    common, i, j = 0.0, 0, 0
    while i < len(one) and j < len(other):
        begin = max(one[i][0], other[j][0])
        end = min(one[i][1], other[j][1])
        common += max(end - begin, 0.0)
        if one[i][1] <= other[j][1]:
            i += 1
        else:
            j += 1
    return common
