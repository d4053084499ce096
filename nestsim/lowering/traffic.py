"""What a plan sends: inside of each stage's passes, and group by group over a step.

A `StageTraffic` numbers the collectives inside of the passes of one stage, gives their
phases and prices; what each layer sends comes in order. Alike collectives have one
number: those of one group, operation and size. The price is the planner's: that of all
groups of the stage, and of all stages, at the same time.

A `GroupTraffic` says which groups of a plan do which operation, of how many bytes, and
how often. A *unit* of it is the groups that move in lockstep, because the ranks of a
stage do: the tensor, context and expert groups of one stage of one replica, the ranks
at one stage boundary of one replica, the data-parallel groups of one stage. A plan's
pace is its iteration time over its microbatches. What stages send in every microbatch
repeats at that pace; what they send once, at the end of the step, does not repeat, and
has an infinite period.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np

from estimators.collectives.algorithms import IN_NETWORK, algorithm_or_ring
from estimators.layers.work import InLayerTraffic, LayerTable
from nestsim.lowering.collectives import (
    LockstepGroups,
    all_to_all_phase,
    collective_lockstep_phases,
    find_lockstep_groups,
    hop_phase,
    host_phase,
)
from nestsim.simulator.work import LockstepEdgePhase, LockstepRingPhase, LockstepTraffic
from planner.cost.groups import StageGroups
from planner.cost.objective import PricedPlan
from planner.cost.passes import in_layer_rates, neighbours_of, sharding_of
from planner.cost.pricing import plan_degrees, plan_groups
from planner.cost.rates import PlacementRates
from planner.step.execution import Workload
from planner.step.ledger import (
    ACROSS,
    INSIDE,
    NEARBY,
    PASSES,
    Sent,
    dense_members,
    ledger_of,
    wire_bytes,
)
from planner.step.memory import ParameterShare, stage_share
from planner.step.offload import TO_DEVICE, TO_HOST
from planner.step.plan import Plan, Stage
from planner.step.recompute import repeated_traffic
from topologies import Network
from topologies.arrays import FloatArray, IntArray

_HOST_DIRECTIONS = frozenset({TO_DEVICE, TO_HOST})
"""Kinds of what each device exchanges with its host."""

_IN_LAYERS = frozenset({"tensor", "context", "expert", "expert tensor"})
"""Kinds of groups that layers wait for."""


class Message(NamedTuple):
    """One collective inside of a pass."""

    kind: str
    """Kind of group: ``"tensor"``, ``"context"``, ``"expert"`` or ``"expert tensor"``,
    the group of an `estimators.layers.work.InLayerTraffic`; of what ZeRO sends
    ``"layer gather"`` or ``"layer reduce"``; a direction of
    `planner.step.offload`."""

    operation: str
    """Operation of an `estimators.layers.work.InLayerTraffic`, or ``"combine"``: an
    all-to-all back from the experts that is not symmetric to the one there."""

    num_bytes: float
    """Size of the full tensor [byte]."""

    num_hops: int = 1
    """Latencies of an operation's rounds that are paid: the hops of a ring exchange,
    1 for others (0 if the collective is not counted as one)."""

    experts: bool = False
    """Whether ranks that hold the same experts send it, not those that hold the same
    dense parameters."""

    nearby: bool = False
    """Whether only those next to each other do that share a second copy of weights."""


class StageTraffic:
    """Numbers the messages of one stage.

    Parameters
    ----------
    network
        Where the devices are.
    plan
        Whose stage it is.
    members
        The stage's devices, and the groups that they form.
    index
        Which stage it is.
    expert_skew
        What the busiest rank of an expert group gets over the mean; messages between
        experts have its size.
    """

    def __init__(
        self,
        network: Network,
        plan: Plan,
        members: StageGroups,
        index: int,
        expert_skew: float,
    ) -> None:
        self.network, self.plan, self.index = network, plan, index
        self.members, self.grid = members, members.grid
        self.degrees = plan_degrees(plan)
        self.skew = expert_skew
        self.numbers: dict[Message, int] = {}
        # By kind of pass, layer and window, where kinds of devices share them [s].
        self.delays: dict[tuple[int, int, bool], float] = {}
        self._lockstep_groups: dict[tuple[str, str, bool, bool], LockstepGroups] = {}
        self._rates: PlacementRates | None = None
        self._times: dict[Message, float] = {}

    def number(self, message: Message) -> int:
        """Return the number of a message, a new one if it is the first of its kind."""
        return self.numbers.setdefault(message, len(self.numbers))

    def is_shared(self, *, experts: bool = False) -> bool:
        """Return whether shards of dense parameters, or of experts, are shared."""
        if experts:
            return self.plan.parallel.expert_data_size > 1
        return self.plan.stages[self.index].sharding_group_size > 1

    def groups_of(self, message: Message) -> IntArray:
        """Return the devices of each group that sends a message, shape ``(G, n)``."""
        return self._members(message)

    def collectives(self) -> tuple[LockstepTraffic, ...]:
        """Return what the moves of the stage's passes number."""
        collectives = []
        for message in self.numbers:
            groups = self._groups(message)
            phases = self._phases(message, groups)
            collectives.append(LockstepTraffic(message.kind, groups.of_replica, phases))
        return tuple(collectives)

    def times(self, rates: PlacementRates) -> list[float]:
        """Return the price of every message [s]."""
        return [self.time(message, rates) for message in self.numbers]

    def price(self, number: int, rates: PlacementRates) -> float:
        """Return the price of one message [s]."""
        return self.time(list(self.numbers)[number], rates)

    def delayed(self, message: Message, delay: float, rates: PlacementRates) -> Message:
        """Return a message between experts that is longer on its way by a time [s]."""
        if delay <= 0.0:
            return message
        inverse = self.time(message._replace(num_bytes=1.0, num_hops=0), rates)
        return message._replace(num_bytes=message.num_bytes + delay / inverse)

    def _groups(self, message: Message) -> LockstepGroups:
        # All kinds of context-parallel groups are of ranks of the same replicas.
        operation = message.operation if message.kind == "context" else ""
        key = message.kind, operation, message.experts, message.nearby
        if key not in self._lockstep_groups:
            grid = self.grid[0]
            devices = grid.reshape(grid.shape[0] * grid.shape[1], -1)
            self._lockstep_groups[key] = find_lockstep_groups(
                devices, self._members(message)
            )
        return self._lockstep_groups[key]

    def _members(self, message: Message) -> IntArray:
        """Return the groups that send a message, shape ``(G, n)``."""
        if message.kind in _HOST_DIRECTIONS:
            return np.asarray(self.grid.reshape(-1, 1), dtype=np.int64)
        if message.kind in _IN_LAYERS:
            groups = in_layer_groups(self.members, message.kind, message.operation)
            return np.asarray(groups[0], dtype=np.int64)
        if message.experts:
            return np.asarray(self.members.expert_data()[0], dtype=np.int64)
        group = NEARBY if message.nearby else INSIDE
        dense = self.members.dense()[0]
        return dense_members(self.plan.stages[self.index], group, dense)

    def _phases(
        self, message: Message, lockstep: LockstepGroups
    ) -> tuple[LockstepRingPhase | LockstepEdgePhase, ...]:
        kind, operation, num_bytes, num_hops, *_ = message
        if kind in _HOST_DIRECTIONS:
            hosts = self.network.host_of(lockstep.groups)
            leaves = kind == TO_HOST
            return (host_phase(lockstep, hosts, num_bytes, leaves=leaves),)
        if operation == "send_recv":
            return (hop_phase(lockstep, num_bytes, num_hops),)
        if kind == "expert" or operation == "all_to_all":
            combine = operation == "combine"
            skew = self.skew if kind == "expert" else 1.0
            phase = all_to_all_phase(lockstep, num_bytes / skew, skew, combine=combine)
            return (phase._replace(num_steps=num_hops),)
        algorithm = self.plan.gradient_algorithm
        if kind in _IN_LAYERS:
            algorithm = self.plan.tensor_algorithm
        phases = collective_lockstep_phases(
            self.network, lockstep, operation, algorithm, num_bytes
        )
        return tuple(
            phase._replace(num_steps=phase.num_steps * num_hops) for phase in phases
        )

    def time(self, message: Message, rates: PlacementRates) -> float:
        """Return the price of a message [s]."""
        if rates is not self._rates:
            self._rates = rates
            self._times.clear()
        if message not in self._times:
            self._times[message] = self._priced(message, rates)
        return self._times[message]

    def _priced(self, message: Message, rates: PlacementRates) -> float:
        """Work out the price of a message [s]."""
        kind, operation, num_bytes, num_hops, *_ = message
        stage = self.plan.stages[self.index]
        if kind in _HOST_DIRECTIONS:
            return float(rates.host.time(kind, np.asarray(num_bytes)))
        if kind in _IN_LAYERS:
            rate = in_layer_rates(rates, kind, operation)
        elif message.experts:
            rate = rates.expert_data["all_gather"]
        else:
            group = neighbours_of if message.nearby else sharding_of
            rate = group(rates, stage).inside["all_gather"]
        latency, inverse_bandwidth = rate[self.index].tolist()
        return float(num_hops * latency + num_bytes * inverse_bandwidth)


class LayerMessages(NamedTuple):
    """What one layer sends; kinds take turns."""

    forward: list[Message]
    """What its forward pass sends, in order."""

    backward: list[Message]
    """What its backward pass sends, in order."""

    repeated: list[Message]
    """What it sends when its forward pass is computed again, in order."""

    def without_experts(self) -> "LayerMessages":
        """Return what is left where others go between experts beside the pass."""
        forward, backward = (
            [message for message in sent if message.kind != "expert"]
            for sent in (self.forward, self.backward)
        )
        return self._replace(forward=forward, backward=backward)


def layer_messages(
    table: LayerTable, stage: Stage, traffic: StageTraffic
) -> dict[int, LayerMessages]:
    """Return what every layer of a stage sends, ZeRO apart."""
    messages = {}
    items = [
        item
        for item in table.traffic
        if traffic.degrees.group_size(item.group, item.operation) > 1
    ]
    repeats = [repeated_traffic(item, table, stage) for item in items]
    # Most layers of a model are alike.
    known: dict[tuple[tuple[float, ...], ...], LayerMessages] = {}
    for layer in (n for first, last in stage.chunks for n in range(first, last + 1)):
        amounts = tuple(
            (
                float(item.forward_count[layer]),
                float(item.forward_bytes[layer]),
                float(item.backward_count[layer]),
                float(item.backward_bytes[layer]),
                float(again.calls[layer]),
                float(again.num_bytes[layer]),
            )
            for item, again in zip(items, repeats, strict=True)
        )
        if amounts not in known:
            known[amounts] = _messages(traffic, items, amounts)
        messages[layer] = known[amounts]
    return messages


def _messages(
    traffic: StageTraffic,
    items: list[InLayerTraffic],
    amounts: tuple[tuple[float, ...], ...],
) -> LayerMessages:
    """Return what a layer sends, from counts and bytes of each item in either pass."""
    forward: list[list[Message]] = []
    backward: list[list[Message]] = []
    repeated: list[list[Message]] = []
    for item, amount in zip(items, amounts, strict=True):
        for messages, count, size in zip(
            (forward, backward, repeated), amount[::2], amount[1::2], strict=True
        ):
            messages.append(
                _collectives(traffic, item.group, item.operation, count, size)
            )
    return LayerMessages(*map(_in_turns, (forward, backward, repeated)))


def _collectives(
    traffic: StageTraffic, group: str, operation: str, count: float, num_bytes: float
) -> list[Message]:
    """Return collectives of one kind in one layer, of one size each."""
    number = round(count)
    if operation == "send_recv":
        hops = Message(group, operation, float(num_bytes), number)
        return [hops] if number or num_bytes else []
    if not number:
        # Sizes without a count, as in tables made up for tests, cost no latency.
        return [Message(group, operation, float(num_bytes), 0)] if num_bytes else []
    there = Message(group, operation, float(num_bytes) / number)
    back = there._replace(operation="combine")
    skewed = group == "expert" and traffic.skew > 1.0
    return [back if skewed and place % 2 else there for place in range(number)]


def in_layer_groups(members: StageGroups, kind: str, operation: str) -> IntArray:
    """Return the groups of each stage that layers wait for, ``(stages, G, n)``."""
    if kind == "context":
        by_operation = {"send_recv": members.rings, "all_to_all": members.exchanges}
        return by_operation.get(operation, members.context)()
    by_kind = {
        "tensor": members.tensor,
        "expert": members.experts,
        "expert tensor": members.expert_tensor,
    }
    return by_kind[kind]()


def _in_turns(groups: list[list[Message]]) -> list[Message]:
    turns = chain.from_iterable(zip_longest(*groups))
    return [message for message in turns if message is not None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupTraffic:
    """One operation of one kind of group; ``U`` units of ``G`` groups of ``n``."""

    kind: str
    """``"tensor"``, ``"context"``, ``"expert"``, ``"expert tensor"``, ``"pipeline"``,
    ``"data"``, ``"data in blocks"``, ``"data across blocks"``, ``"expert data"`` or
    ``"embedding"``."""

    operation: str
    """One of `estimators.collectives.cost.OPERATIONS`."""

    groups: IntArray
    """Devices of each group, shape ``(U, G, n)``."""

    stage: IntArray
    """Stage of each unit, the sending one of a boundary, shape ``(U,)``."""

    num_bytes: FloatArray
    """Mean size of the tensor of each unit, shape ``(U,)`` [byte]."""

    period: FloatArray
    """Time from one operation of each unit to the next in the steady state, shape
    ``(U,)`` [s]."""

    algorithm: str
    """Algorithm that the plan chose for the operation."""

    @property
    def num_members(self) -> int:
        """Members of each group."""
        return int(self.groups.shape[2])

    @property
    def num_groups(self) -> int:
        """Groups of all units together."""
        return int(self.groups.shape[0] * self.groups.shape[1])


class _Part(NamedTuple):
    """What one stage adds to the traffic of a kind and operation."""

    kind: str
    """Kind of group, as in `GroupTraffic`."""
    operation: str
    """Operation that the groups do."""
    groups: IntArray
    """Devices of each group, shape ``(units, groups, n)``."""
    stage: int
    """Stage of the units."""
    num_bytes: float
    """Mean size of the tensor [byte]."""
    period: float
    """Time from one operation to the next in the steady state [s]."""
    algorithm: str
    """Algorithm that the plan chose for the operation."""


def plan_traffic(workload: Workload, priced: PricedPlan) -> tuple[GroupTraffic, ...]:
    """Return what the groups of a plan do, by kind, operation and size of the groups.

    Groups of one are left out. Inner dimensions come first: tensor, context, expert,
    pipeline, data.
    """
    plan = priced.plan
    groups = plan_groups(plan)
    grid = groups.grid
    table = workload.table(plan_degrees(plan))
    pace = priced.iteration_time / plan.num_microbatches
    parts = [
        *_in_layers(workload, plan, groups, pace),
        *_boundaries(priced, grid, pace),
        *_data(workload, table, plan, pace),
        *(() if plan.joins_ends else _embedding(workload, table, grid)),
    ]
    by_kind: dict[tuple[str, str, int], list[_Part]] = {}
    for part in parts:
        if part.groups.shape[2] > 1:
            key = part.kind, part.operation, part.groups.shape[2]
            by_kind.setdefault(key, []).append(part)
    return tuple(_together(alike) for alike in by_kind.values())


def _together(parts: list[_Part]) -> GroupTraffic:
    units = [len(part.groups) for part in parts]
    operation, name = parts[0].operation, parts[0].algorithm
    return GroupTraffic(
        kind=parts[0].kind,
        operation=operation,
        groups=np.concatenate([part.groups for part in parts]),
        stage=np.repeat([part.stage for part in parts], units),
        num_bytes=np.repeat([part.num_bytes for part in parts], units),
        period=np.repeat([part.period for part in parts], units),
        algorithm=algorithm_or_ring(name, operation) if name in IN_NETWORK else name,
    )


def _in_layers(
    workload: Workload, plan: Plan, groups: StageGroups, pace: float
) -> Iterator[_Part]:
    """Yield what the layers of each stage wait for."""
    degrees = plan_degrees(plan)
    table, skew = workload.table(degrees), workload.exchange_skew(degrees)
    for item in table.traffic:
        part = 1.0 / skew if item.group == "expert" else 1.0
        for number, stage in enumerate(plan.stages):
            count, num_bytes = _per_microbatch(item, table, stage)
            if count:
                is_direct = item.operation in {"send_recv", "all_to_all"}
                yield _Part(
                    item.group,
                    item.operation,
                    _in_units(groups, item, number),
                    number,
                    part * num_bytes / count,
                    pace / count,
                    "direct" if is_direct else plan.tensor_algorithm,
                )


def _in_units(groups: StageGroups, item: InLayerTraffic, stage: int) -> IntArray:
    """Return the groups of a stage, those of a replica of their ranks together."""
    members = in_layer_groups(groups, item.group, item.operation)[stage]
    _, dp, ep, cp, tp = groups.grid.shape
    units = dp if item.group == "expert" else dp * ep
    if groups.grouping.is_folded and item.group == "expert":
        # Replicas that expert groups have in common move in lockstep, too.
        span = groups.grouping.expert_span((tp, cp, groups.ep))
        units = dp * cp * tp // math.lcm(cp * tp, span)
    blocks: IntArray = members.reshape(units, -1, members.shape[1])
    return blocks


def _per_microbatch(
    item: InLayerTraffic, table: LayerTable, stage: Stage
) -> tuple[float, float]:
    """Return how many collectives a stage does for a microbatch, and their bytes."""
    count = num_bytes = 0.0
    for first, last in stage.chunks:
        span = slice(first, last + 1)
        again = repeated_traffic(item, table, stage)
        for counts in (item.forward_count, item.backward_count, again.calls):
            count += float(counts[span].sum())
        for sizes in (item.forward_bytes, item.backward_bytes, again.num_bytes):
            num_bytes += float(sizes[span].sum())
    return count, num_bytes


def _boundaries(priced: PricedPlan, grid: IntArray, pace: float) -> Iterator[_Part]:
    """Yield the transfers between stages: activations there, gradients back."""
    pp, v = len(grid), priced.plan.virtual_pipeline_model_parallel_size
    devices = grid.reshape(pp, grid.shape[1] * grid.shape[2], -1)
    pairs = np.stack([devices, np.roll(devices, -1, axis=0)], axis=-1)
    # Chunks go round: the last stage passes on to the first one.
    for stage in range(pp if v > 1 and pp > 2 else pp - 1):
        times = 2 * v - 1 if v > 1 and pp == 2 else v
        yield _Part(
            "pipeline",
            "send_recv",
            pairs[stage],
            stage,
            priced.stages[0].boundary_bytes,
            pace / times,
            "direct",
        )


def _data(
    workload: Workload, table: LayerTable, plan: Plan, pace: float
) -> Iterator[_Part]:
    """Yield what gradients and shards of parameters need."""
    together = plan_groups(plan)
    dense, experts = together.dense(), together.expert_data()
    for number, stage in enumerate(plan.stages):
        share = stage_share(table, stage, plan)
        for sent, period, part in _sent(stage, share, pace):
            width = part * wire_bytes(sent, workload.parameter_bytes)
            groups = dense_members(stage, sent.group, dense[number])
            kind = "data across blocks" if sent.group == ACROSS else "data"
            if kind == "data" and groups.shape[1] < dense[number].shape[1]:
                kind = "data in blocks"
            shards = stage.sharding_group_size if sent.is_divided else 1
            parts = [(kind, groups, share.dense / shards)]
            if share.expert > 0 and sent.group != ACROSS:
                parts.append(("expert data", experts[number], share.expert))
            for name, members, parameters in parts:
                yield _Part(
                    name,
                    sent.operation,
                    members[None],
                    number,
                    parameters * width,
                    period,
                    plan.gradient_algorithm,
                )


def _sent(
    stage: Stage, share: ParameterShare, pace: float
) -> Iterator[tuple[Sent, float, float]]:
    """Yield what is sent, its period and the part of the parameters in it.

    Once a step, or layer by layer: the passes of a microbatch share its pace.
    """
    ledger = ledger_of(stage)
    for sent in ledger.sent:
        if sent.moment not in PASSES:
            yield sent, np.inf, 1.0
    per_pass = Counter(sent._replace(moment="") for sent in ledger.sent_at(*PASSES))
    part = 1.0 / share.num_layers
    for sent, times in per_pass.items():
        yield sent, pace * part / times, part


def _embedding(
    workload: Workload, table: LayerTable, grid: IntArray
) -> Iterator[_Part]:
    """Yield the all-reduce of the tied embedding between first and last stage."""
    if table.tied_parameters > 0:
        pairs = np.stack([grid[0].ravel(), grid[-1].ravel()], axis=1)
        size = table.tied_parameters * workload.parameter_bytes.reduce
        yield _Part("embedding", "all_reduce", pairs[None], 0, size, np.inf, "ring")
