"""The program of one traced layer on a logical mesh: what each strategy costs.

A strategy takes the operator's time on the shapes that are left to a device, by the
project's own operator model (Alpa takes none, since all its strategies divide the work
evenly; what is replicated does not), and its collectives. Resharding a tensor between
two states takes, with ``B`` the bytes that are whole along the axis::

    whole -> batch, features, experts     nothing
    batch, features, experts -> whole     an all-gather
    from one split to another             an all-to-all

and the same the other way round for its gradient. What is repeated in the backward
pass counts twice. Gradients are added up once a step: each microbatch takes its part of
it. Launch overheads of a framework, engines side by side and the sum of a tied
embedding's gradients are not in it.

Alpa reads times from profiles of its own; nothing is fitted here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from estimators.layers.saved_activations import runs_again
from estimators.layers.sharding import layer_work
from estimators.layers.shares import device_shares
from estimators.layers.work import Degrees, OperatorWork
from estimators.operators.roofline import OperatorTime
from estimators.tracing.graph import TracedLayer, TracedOperator
from planner.rivals.alpa.meshes import (
    BATCH,
    EXPERTS,
    SHARES_BATCH,
    SHARES_WEIGHTS,
    WHOLE,
    MeshAxis,
    MeshCase,
    OperatorStrategy,
    hidden_states,
    operator_strategies,
)
from planner.rivals.alpa.program import (
    FOOTPRINT,
    ProgramEdge,
    ProgramNode,
    ShardingProgram,
)
from planner.step.execution import Workload

_EXTRA_BYTES = {"mask": 1, "fp32": 4}
_LOSS_STATISTICS = 3
"""Numbers for each token that a loss over split logits adds up, in fp32."""


class _Sources(NamedTuple):
    """Which node makes what an operator reads."""

    tensors: dict[int, int]
    """Tensor -> node that makes it."""
    parts: dict[int, int]
    """Tensor that no operator makes -> tensor that it is a part of."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerPrograms:
    """The programs of a model's layers; keeps the operator times that it looked up."""

    workload: Workload
    """Model, job and device."""
    _works: dict[tuple[int, int], tuple[OperatorWork, ...]] = field(
        default_factory=dict
    )
    _times: dict[tuple[int, int, int, str, int, str, int], OperatorTime] = field(
        default_factory=dict
    )
    _sources: dict[int, _Sources] = field(default_factory=dict)

    def program(self, kind: int, case: MeshCase) -> ShardingProgram | None:
        """Return the program of a layer, None if an operator has no strategy."""
        layer = self.workload.graph.layers[kind]
        spec, states = self.workload.graph.spec, hidden_states(case)
        strategies = [operator_strategies(spec, op, case) for op in layer.operators]
        if not states or not all(strategies):
            return None
        end = self._end(layer, states, case)
        nodes = [end]
        counted: set[int] = set()
        for index, options in enumerate(strategies):
            nodes.append(self._node(kind, index, options, case, counted))
        plain = np.zeros((len(states), len(FOOTPRINT)))
        nodes.append(end._replace(name="end", footprint=plain))
        return ShardingProgram(
            nodes=tuple(nodes),
            edges=tuple(self._edges(kind, strategies, states, case)),
            entrance=0,
            leave=len(nodes) - 1,
        )

    def _end(
        self, layer: TracedLayer, states: tuple[tuple[int, int], ...], case: MeshCase
    ) -> ProgramNode:
        """Return the node of the state in which a layer is entered."""
        footprint = np.zeros((len(states), len(FOOTPRINT)))
        if layer.hidden_input is not None and case.recompute == "full":
            size = self._bytes(layer, layer.hidden_input, case)
            footprint[:, 1] = [size * _part(case, state) for state in states]
        names = tuple(f"{first}{second}" for first, second in states)
        return ProgramNode("entrance", names, np.zeros(len(states)), footprint)

    def _bytes(self, layer: TracedLayer, tensor: int, case: MeshCase) -> float:
        """Return the size of a tensor for a whole microbatch [byte]."""
        elements, _, precision = layer.tensors[tensor]
        width = self.workload.training.element_bytes
        return elements * _EXTRA_BYTES.get(precision, width) * case.sequences

    def _node(
        self,
        kind: int,
        index: int,
        strategies: tuple[OperatorStrategy, ...],
        case: MeshCase,
        counted: set[int],
    ) -> ProgramNode:
        graph = self.workload.graph
        layer = graph.layers[kind]
        operator = layer.operators[index]
        modules = self.workload.software.recompute_modules
        is_block = graph.names[graph.kinds.index(kind)].startswith("block")
        again = float(
            case.recompute == "stage"
            or (case.recompute == "full" and is_block)
            or (case.recompute == "selective" and runs_again(layer, modules)[index])
        )
        saved = [number for number in operator.saved if number not in counted]
        counted.update(saved)
        costs, needs = [], []
        for strategy in strategies:
            time = self._time(kind, index, strategy, case)
            forward, backward, step = self._sent(layer, operator, strategy, case)
            forward += self.workload.platform.slowest * time.forward
            backward += self.workload.platform.slowest * time.backward
            whole = (1.0 + again) * forward + backward
            costs.append(whole + step / case.num_microbatches)
            kept = sum(
                self._bytes(layer, number, case)
                * _part(
                    case,
                    strategy.entering
                    if number in operator.inputs
                    else strategy.leaving,
                )
                for number in saved
            )
            made = max(
                (self._bytes(layer, number, case) for number in operator.outputs),
                default=0.0,
            )
            needs.append(
                (
                    self._static(layer, operator, strategy, case),
                    0.0 if again else kept,
                    kept if again else 0.0,
                    2.0 * made * _part(case, strategy.leaving),
                )
            )
        return ProgramNode(
            operator.name,
            tuple(strategy.name for strategy in strategies),
            np.array(costs),
            np.array(needs),
        )

    def _static(
        self,
        layer: TracedLayer,
        operator: TracedOperator,
        strategy: OperatorStrategy,
        case: MeshCase,
    ) -> float:
        """Return the weights, gradients and optimizer states of a device [byte]."""
        width = self.workload.parameter_bytes
        bytes_each = width.weights + width.gradients + width.optimizer
        return (
            bytes_each
            * operator_parameters(layer, operator)
            * _weights_part(case, strategy)
        )

    def _time(
        self, kind: int, index: int, strategy: OperatorStrategy, case: MeshCase
    ) -> OperatorTime:
        """Return the time on what is left to a device [s]."""
        sequences, ep = case.sequences, 1
        parts: list[tuple[str, int]] = []
        for place, (axis, name) in enumerate(
            zip(case.mesh.axes, (strategy.first, strategy.second), strict=True)
        ):
            if name in SHARES_BATCH:
                sequences //= axis.size
            if name == "expert":
                ep *= case.ep if place == 0 else axis.size
            elif name in {"column", "row", "features"} and axis.size > 1:
                parts.append((name, axis.size))
        (outer, first), (inner, second) = (*parts, ("", 1), ("", 1))[:2]
        key = kind, index, sequences, f"{ep} {outer}", first, inner, second
        if key not in self._times:
            work = self._work(kind, sequences)[index]
            operator = self.workload.graph.layers[kind].operators[index]
            if ep > 1 and operator.sharding.startswith("expert"):
                work = work._replace(m=work.m * ep, batch=work.batch / ep)
            for name, size in parts:
                work = self._split(operator, work, name, size)
            model = self.workload.platform.operator_times(
                self.workload.training, self.workload.graph.spec
            )
            self._times[key] = model.operator_time(work)
        return self._times[key]

    def _work(self, kind: int, sequences: int) -> tuple[OperatorWork, ...]:
        if (kind, sequences) not in self._works:
            width = self.workload.training.element_bytes
            degrees = Degrees(micro_batch_size=sequences)
            work = layer_work(self.workload.graph, kind, degrees, width)
            self._works[kind, sequences] = work.operators
        return self._works[kind, sequences]

    def _split(
        self, operator: TracedOperator, work: OperatorWork, name: str, size: int
    ) -> OperatorWork:
        """Return what one of so many devices does."""
        if work.kind != "matmul":
            return work._replace(
                batch=work.batch / size,
                forward_flops=work.forward_flops / size,
                backward_flops=work.backward_flops / size,
                forward_bytes=work.forward_bytes / size,
                backward_bytes=work.backward_bytes / size,
            )
        share = 1.0 / size
        if name == "column" and operator.sharding == "qkv":
            spec = self.workload.graph.spec
            share = device_shares(spec, Degrees(tp=size)).products["qkv"].n.of(1)
        changed = {"column": "n", "row": "k", "features": "batch"}[name]
        m, n, k, batch = (
            value * (share if letter == changed else 1.0)
            for letter, value in zip(
                ("m", "n", "k", "batch"),
                (work.m, work.n, work.k, work.batch),
                strict=True,
            )
        )
        flops = 2.0 * m * n * k * batch
        width = self.workload.training.element_bytes
        traffic = (m * k + k * n + m * n) * batch * width
        return work._replace(
            m=m,
            n=n,
            k=k,
            batch=batch,
            forward_flops=flops,
            backward_flops=2.0 * flops,
            forward_bytes=traffic,
            backward_bytes=2.0 * traffic,
            weight_flops=flops if work.weight_flops > 0 else 0.0,
        )

    def _sent(
        self,
        layer: TracedLayer,
        operator: TracedOperator,
        strategy: OperatorStrategy,
        case: MeshCase,
    ) -> tuple[float, float, float]:
        """Return collectives of a forward pass, a backward pass, and a step [s]."""
        width = self.workload.parameter_bytes
        count = operator_parameters(layer, operator)
        forward = backward = step = 0.0
        names = strategy.first, strategy.second
        for place, (axis, name) in enumerate(zip(case.mesh.axes, names, strict=True)):
            others = _alone(strategy, 1 - place)
            gathered, reduced = _along(case, strategy, place)
            if name == "row":
                size = sum(self._bytes(layer, n, case) for n in operator.outputs)
                forward += axis.all_reduce(size * _part(case, others.leaving))
            elif name == "column" and operator.inputs:
                size = self._bytes(layer, operator.inputs[0], case)
                backward += axis.all_reduce(size * _part(case, others.entering))
            elif name == "shard":
                whole = axis.all_gather(count * gathered * width.gather)
                forward += whole
                backward += whole + axis.all_gather(count * reduced * width.reduce)
            elif name == "data" and count:
                step += axis.all_reduce(count * reduced * width.reduce)
            elif name == "expert" and count:
                ep = case.ep if place == 0 else axis.size
                copies = axis.of_size(axis.size // ep)
                step += copies.all_reduce(count / ep * reduced * width.reduce)
            elif name == "features" and operator.operation == "cross entropy":
                tokens = self.workload.graph.spec.sequence_length * case.sequences
                size = 4.0 * tokens * _part(case, others.entering)
                forward += _LOSS_STATISTICS * axis.all_reduce(size)
        return forward, backward, step

    def _edges(
        self,
        kind: int,
        strategies: list[tuple[OperatorStrategy, ...]],
        states: tuple[tuple[int, int], ...],
        case: MeshCase,
    ) -> Iterator[ProgramEdge]:
        """Yield what passes between the nodes of a layer."""
        layer, sources = self.workload.graph.layers[kind], self._made_by(kind)
        left = [states, *([s.leaving for s in options] for options in strategies)]
        again = float(case.recompute == "stage")
        if case.recompute == "full":
            names, kinds = self.workload.graph.names, self.workload.graph.kinds
            again = float(names[kinds.index(kind)].startswith("block"))
        for index, operator in enumerate(layer.operators):
            sent: dict[int, float] = {}
            for number in dict.fromkeys(operator.inputs):
                node = sources.tensors.get(sources.parts.get(number, number))
                if node is not None:
                    size = self._bytes(layer, number, case)
                    sent[node] = sent.get(node, 0.0) + size
            entering = [strategy.entering for strategy in strategies[index]]
            for node, size in sent.items():
                cost = [
                    [_resharding(case, size, x, y, again) for y in entering]
                    for x in left[node]
                ]
                yield ProgramEdge(node, index + 1, np.array(cost))
        last = left[-1]
        same = np.array([[0.0 if x == y else np.inf for y in states] for x in last])
        if _is_scalar(layer):
            same = np.zeros_like(same)
        yield ProgramEdge(len(layer.operators), len(layer.operators) + 1, same)

    def _made_by(self, kind: int) -> _Sources:
        """Return where an operator's inputs come from.

        What no operator makes is a part of the latest tensor before it that is split
        alike and whose size it divides: the halves of a gated product.
        """
        if kind not in self._sources:
            layer = self.workload.graph.layers[kind]
            made = {} if layer.hidden_input is None else {layer.hidden_input: 0}
            parts: dict[int, int] = {}
            for index, operator in enumerate(layer.operators):
                for number in operator.inputs:
                    if number not in made:
                        elements, layout, _ = layer.tensors[number]
                        whole = [
                            other
                            for other in made
                            if layer.tensors[other].layout == layout
                            and layer.tensors[other].elements % elements == 0
                        ]
                        if whole:
                            parts[number] = whole[-1]
                made |= dict.fromkeys(operator.outputs, index + 1)
            self._sources[kind] = _Sources(made, parts)
        return self._sources[kind]


def _is_scalar(layer: TracedLayer) -> bool:
    """Tell whether a layer ends in a loss."""
    return layer.tensors[layer.operators[-1].outputs[0]].elements == 1


def _alone(strategy: OperatorStrategy, place: int) -> OperatorStrategy:
    """Return the strategy on one axis, as if the other had one device."""
    whole = strategy._replace(first="replicated")
    return strategy._replace(second="replicated") if place == 0 else whole


def _part(case: MeshCase, states: tuple[int, int]) -> float:
    """Return the part of a tensor that a device has."""
    part = 1.0
    for axis, state in zip(case.mesh.axes, states, strict=True):
        part /= axis.size if state != WHOLE else 1
    return part


def _weights_part(case: MeshCase, strategy: OperatorStrategy) -> float:
    """Return the part of the weights that a device has."""
    part = 1.0
    names = strategy.first, strategy.second
    for place, (axis, name) in enumerate(zip(case.mesh.axes, names, strict=True)):
        if name == "expert":
            part /= case.ep if place == 0 else axis.size
        elif name in SHARES_WEIGHTS:
            part /= axis.size
    return part


def _along(
    case: MeshCase, strategy: OperatorStrategy, place: int
) -> tuple[float, float]:
    """Return the parts of weights that are gathered, and reduced, along an axis.

    Across both axes weights are gathered between nodes first, then inside of them, and
    gradients the other way round, as hierarchical collectives go.
    """
    others = _alone(strategy, 1 - place)
    if place == 1:
        whole = others._replace(first="data") if others.first == "shard" else others
        part = _weights_part(case, whole)
        return part, part
    part = _weights_part(case, others)
    return part, part / (case.mesh.second.size if others.second == "data" else 1)


def operator_parameters(layer: TracedLayer, operator: TracedOperator) -> int:
    """Return the parameters of an operator."""
    return sum(
        parameter.elements
        for parameter in layer.parameters
        if parameter.name.startswith(f"{operator.name}.")
    )


def _resharding(
    case: MeshCase,
    size: float,
    source: tuple[int, int],
    target: tuple[int, int],
    again: float,
) -> float:
    """Return the time of a tensor there and of its gradient back [s].

    Axis by axis, with what the other axis leaves of it before.
    """
    if source == target:
        return 0.0
    time = 0.0
    for place, axis in enumerate(case.mesh.axes):
        if axis.size == 1 or source[place] == target[place]:
            continue
        ep = case.ep if place == 0 else axis.size
        for before, after, times in (
            (source, target, 1.0 + again),
            (target, source, 1.0),
        ):
            other = list(before)
            other[place] = WHOLE
            left = size * _part(case, (other[0], other[1]))
            time += times * _converted(axis, ep, left, before[place], after[place])
    return time


def _converted(axis: MeshAxis, ep: int, size: float, before: int, after: int) -> float:
    """Return the time from one state along an axis to another [s]."""
    if before == WHOLE:
        return 0.0
    if after == WHOLE:
        return axis.all_gather(size)
    if EXPERTS in {before, after} and BATCH in {before, after}:
        # Tokens travel among the devices that share the experts.
        return axis.of_size(ep).all_to_all(size * ep / axis.size)
    return axis.all_to_all(size)
