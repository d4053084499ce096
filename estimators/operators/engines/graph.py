"""The tasks of one pass through a layer, and which of them wait for which.

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
"""

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

_ENGINE_OF_KIND = {"matmul": "tensor", "attention": "tensor", "memory": "vector"}


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
    found = [i for i, operator in enumerate(operators) if operator.operation == "top-k"]
    return set(found[-1:])
