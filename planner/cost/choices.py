"""What stages may choose and what intervals of layers cost, as the kernels read it.

A chain of ``L`` layers has ``L (L + 1) / 2`` intervals, but every cost of a stage
except its boundaries depends only on how many layers of each kind it holds. A model
with a hundred equal blocks has a few hundred such classes, so tables are kept per
class.

A choice is a recompute mode, a stage of ZeRO, who shares its shards, and what the host
keeps. What hosts cost (`planner.step.offload`) is added up here over the interval
classes of a chain, and for each parameter at the step's end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.layers.work import LayerTable
from estimators.training import ParameterBytes
from planner.kernels import tables as rows
from planner.step.execution import Workload
from planner.step.offload import (
    HeldParameters,
    HostRates,
    host_rates,
    on_the_way,
    pass_transfers,
    step_transfers,
)
from planner.step.plan import NO_OFFLOAD, Offload
from planner.step.recompute import repeats_by_mode
from topologies import Network
from topologies.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IntervalClasses:
    """The classes of all intervals of one chain."""

    class_of: IntArray
    """Class of the interval ``i .. j - 1``, shape ``(L + 1, L + 1)``; -1 if empty."""

    counts: IntArray
    """Number of layers of each kind in an interval of each class, shape ``(K,
    kinds)``."""

    whole: int
    """Class of the whole chain."""

    first_of_kind: IntArray
    """First layer of each kind, shape ``(kinds,)``."""

    def sums(self, values: FloatArray) -> FloatArray:
        """Add up a per-kind quantity over the interval, shape ``(K,)``."""
        return np.asarray(self.counts @ values, dtype=np.float64)

    def maxima(self, values: FloatArray) -> FloatArray:
        """Return the largest per-kind quantity in the interval, shape ``(K,)``."""
        present = np.where(self.counts > 0, values, -np.inf)
        return np.asarray(present.max(axis=1), dtype=np.float64)


def interval_classes(kinds: IntArray) -> IntervalClasses:
    """Group the intervals of a chain whose layer ``l`` is of kind ``kinds[l]``.

    Cost O(L^2) in numpy, once for chains of the same kinds.
    """
    return _interval_classes(tuple(kinds.tolist()))


@lru_cache(maxsize=256)
def _interval_classes(chain: tuple[int, ...]) -> IntervalClasses:
    kinds = np.array(chain, dtype=np.int64)
    num_layers = len(kinds)
    one_hot = np.eye(int(kinds.max()) + 1, dtype=np.int64)[kinds]
    prefix = np.vstack([np.zeros_like(one_hot[:1]), np.cumsum(one_hot, axis=0)])
    first, last = np.triu_indices(num_layers + 1, k=1)
    counts, class_ids = np.unique(
        prefix[last] - prefix[first], axis=0, return_inverse=True
    )
    class_of = np.full((num_layers + 1, num_layers + 1), -1, dtype=np.int64)
    class_of[first, last] = class_ids.ravel()
    return IntervalClasses(
        class_of=class_of,
        counts=counts,
        whole=int(class_of[0, num_layers]),
        first_of_kind=np.unique(kinds, return_index=True)[1],
    )


RECOMPUTE_MODES: Mapping[str, int] = MappingProxyType(
    {
        "none": rows.NONE,
        "selective": rows.SELECTIVE,
        "full": rows.FULL,
        "stage": rows.STAGE,
    }
)
"""Recompute mode -> its number in the kernels, cheapest in time first."""

RATE_COLUMNS: Mapping[tuple[str, str], int] = MappingProxyType(
    {
        ("tensor", "all_reduce"): rows.TENSOR_REDUCE,
        ("tensor", "all_gather"): rows.TENSOR_PASS,
        ("tensor", "reduce_scatter"): rows.TENSOR_PASS,
        ("context", "send_recv"): rows.CONTEXT,
        ("context", "all_gather"): rows.CONTEXT_PASS,
        ("context", "reduce_scatter"): rows.CONTEXT_PASS,
        ("context", "all_to_all"): rows.CONTEXT_EXCHANGE,
        ("expert tensor", "all_gather"): rows.EXPERT_TENSOR,
        ("expert tensor", "reduce_scatter"): rows.EXPERT_TENSOR,
        ("expert", "all_to_all"): rows.EXPERT,
    }
)
"""(Group, operation) of an in-layer collective -> its column of the rates."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassTable:
    """One chain under one set of degrees, ready for the kernels."""

    classes: IntervalClasses
    sums: rows.ClassSums
    """What the intervals of each class take and hold."""

    has_block: NDArray[np.bool_]
    """Whether intervals of the class hold a transformer block, shape ``(K,)``."""

    traffic: rows.ClassTraffic
    """What they send inside of layers."""


def class_table(table: LayerTable, *, num_chunks: int = 1) -> ClassTable:
    """Sum the table of a chain over its interval classes. O(L^2 + K kinds)."""
    classes = interval_classes(table.kinds)
    first_of_kind = classes.first_of_kind
    num_classes = len(classes.counts)

    def total(values: FloatArray) -> FloatArray:
        return classes.sums(values[first_of_kind])

    recompute = np.zeros((rows.NUM_MODES, num_classes))
    for mode in ("selective", "full", "stage"):
        recompute[RECOMPUTE_MODES[mode]] = total(table.recompute_time[mode])
    saved, working, once = _memory(table, classes, num_chunks)
    parameters = total(table.parameters - table.expert_parameters)
    parameters[classes.whole] -= table.tied_parameters
    sums = rows.ClassSums(
        compute=total(table.forward_time + table.backward_time),
        recompute=recompute,
        saved=saved,
        working=working,
        once=once,
        frozen=total(table.frozen_weights),
        num_layers=total(np.where(table.is_block > 0, num_chunks, 1.0)),
        parameters=parameters,
        expert_parameters=total(table.expert_parameters),
        largest_layer=classes.maxima(table.largest_parameters[first_of_kind]),
        most_saved=_most_saved(table, classes, num_chunks),
    )
    return ClassTable(
        classes=classes,
        sums=sums,
        has_block=total(table.is_block) > 0,
        traffic=_traffic(table, total, num_classes),
    )


def _most_saved(
    table: LayerTable, classes: IntervalClasses, num_chunks: int
) -> FloatArray:
    """Return the most that is on its way by recompute mode, shape ``(R, K)`` [byte].

    A block of an interleaved chain is as many layers as there are chunks.
    """
    most = np.zeros((rows.NUM_MODES, len(classes.counts)))
    per_chunk = np.where(table.is_block > 0, 1.0 / num_chunks, 1.0)
    for mode in ("none", "selective", "full"):
        saved = on_the_way(table, table.saved_bytes[mode]) * per_chunk
        most[RECOMPUTE_MODES[mode]] = classes.maxima(saved[classes.first_of_kind])
    return most


def _memory(
    table: LayerTable, classes: IntervalClasses, num_chunks: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return what a pass in flight keeps, what one works with, what is kept once.

    With virtual stages a pass is one chunk: it keeps its part of the blocks; the ends
    of the chain belong to one chunk, the last of which runs its backward pass at
    once.
    """
    num_classes = len(classes.counts)
    saved, working = np.zeros((2, rows.NUM_MODES, num_classes))
    once = np.zeros(num_classes)
    first_of_kind = classes.first_of_kind
    is_block = table.is_block[first_of_kind]
    leading = (np.arange(len(table.kinds)) < table.is_block.argmax())[first_of_kind]
    trailing = (is_block == 0) & ~leading
    present = classes.counts > 0
    behind = _ends_behind(table, classes)
    if num_chunks > 1:
        # The largest of the other chunks' blocks, which have no end behind them.
        behind[:, is_block > 0] = 0.0
    for mode in ("none", "selective", "full"):
        row = RECOMPUTE_MODES[mode]
        kept = table.saved_bytes[mode][first_of_kind]
        if num_chunks > 1:
            # One number for all modes: the most of any.
            here = classes.sums(np.where(trailing, kept, 0.0))
            once = np.maximum(once, here)
            kept = np.where(trailing, 0.0, np.where(leading, kept, kept / num_chunks))
        saved[row] = classes.sums(kept)
        works = table.working_bytes[mode][first_of_kind]
        working[row] = (np.where(present, works, -np.inf) - behind).max(axis=1)
    # Recompute of the whole stage: its input, and everything while it is redone.
    entering = float(table.boundary_bytes[1:-1].max(initial=0.0))
    start = classes.counts[:, table.kinds[0]] > 0
    saved[rows.STAGE] = np.where(start, 0.0, entering)
    everything = classes.sums(table.saved_bytes["none"][first_of_kind])
    working[rows.STAGE] = everything + working[rows.NONE]
    return saved, working, once


def _ends_behind(table: LayerTable, classes: IntervalClasses) -> FloatArray:
    """Return what ends of the chain save behind layers, shape ``(K, kinds)`` [byte].

    Of those that follow all layers of a kind (`planner.step.recompute.alive_inside`).
    """
    kinds, first = table.kinds, classes.first_of_kind
    last = len(kinds) - 1 - np.unique(kinds[::-1], return_index=True)[1]
    ends = (table.saved_bytes["none"] * (1.0 - table.is_block))[first]
    follows = first[:, None] > last[None, :]
    return np.asarray((classes.counts * ends) @ follows, dtype=np.float64)


def _traffic(
    table: LayerTable, total: Callable[[FloatArray], FloatArray], num_classes: int
) -> rows.ClassTraffic:
    shape = len(table.traffic), rows.NUM_MODES, num_classes
    columns = [RATE_COLUMNS[item.group, item.operation] for item in table.traffic]
    traffic = rows.ClassTraffic(
        rate=np.array(columns, dtype=np.int64),
        num_calls=np.zeros((shape[0], num_classes)),
        num_bytes=np.zeros((shape[0], num_classes)),
        recompute_count=np.zeros(shape),
        recompute_bytes=np.zeros(shape),
    )
    for j, item in enumerate(table.traffic):
        traffic.num_calls[j] = total(item.forward_count + item.backward_count)
        traffic.num_bytes[j] = total(item.forward_bytes + item.backward_bytes)
        for mode, (count, sent) in repeats_by_mode(item, table).items():
            row = RECOMPUTE_MODES[mode]
            traffic.recompute_count[j, row] = total(count)
            traffic.recompute_bytes[j, row] = total(sent)
    return traffic


class MemoryChoice(NamedTuple):
    """What a stage may do about its memory."""

    recompute: str
    """Recompute mode of the stage."""
    zero_stage: int
    """Stage of ZeRO, 0 to 3."""
    sharding: int
    """Number of the placement's sharding option; 0 is the whole group."""
    offload: Offload = NO_OFFLOAD
    """What the host keeps."""
    counting: int = 0
    """0 if all blocks of each chunk are recomputed, 1 if as few as memory asks for, 2
    if as few of every n-th."""
    recompute_modules: tuple[str, ...] = ()
    """What selective recompute of all stages runs again; none: as the software has
    it."""


def choices_of(
    recompute: tuple[str, ...],
    zero_stages: tuple[int, ...],
    *,
    num_replicas: int,
    num_options: int = 1,
    num_chunks: int = 1,
    offloads: tuple[Offload, ...] = (NO_OFFLOAD,),
) -> tuple[MemoryChoice, ...]:
    """Return the choices worth trying, cheapest first.

    With one replica there is nothing to shard over: ZeRO collapses to its smallest
    stage. A stage's recompute from its input is for stages of one chunk.
    """
    stages = sorted(set(zero_stages))
    if num_replicas == 1:
        stages = stages[:1]
    kinds = [kind for kind in RECOMPUTE_MODES if kind in recompute]
    if num_chunks > 1:
        kinds = [kind for kind in kinds if kind != "stage"]
    return tuple(
        MemoryChoice(kind, stage, option, offload)
        for offload in offloads
        for kind in kinds
        for stage in stages
        for option in range(num_options if stage > 0 else 1)
        if goes_with(kind, offload)
    )


def goes_with(recompute: str, offload: Offload) -> bool:
    """Tell whether a recompute mode goes with what the host keeps.

    A stage that is done again from its input keeps nothing that passes exchange.
    """
    return recompute != "stage" or not offload.in_passes


def choice_columns(
    choices: tuple[MemoryChoice, ...],
    costs: "HostCosts | None" = None,
    module_sets: tuple[tuple[str, ...], ...] = (),
) -> rows.Choices:
    """Return the choices as the kernels read them.

    Parameters
    ----------
    choices
        The choices.
    costs
        What hosts cost; None if they keep nothing.
    module_sets
        What selective recompute may run again of the choices' modules, quick ones
        first: rows of the kernels behind the recompute modes. One counts where those
        before it and no recompute, which come first in ``choices``, do not fit.
    """
    quicker = {
        choice: number for number, choice in enumerate(choices) if not choice.counting
    }
    unless = [-1] * len(choices)
    for number, choice in enumerate(choices):
        if choice.recompute_modules:
            place = module_sets.index(choice.recompute_modules)
            before = [
                choice._replace(recompute="none", recompute_modules=()),
                *(choice._replace(recompute_modules=s) for s in module_sets[:place]),
            ]
            known = [quicker[other] for other in before if other in quicker]
            unless[number] = known[-1] if known else -1
    modes = [
        rows.NUM_MODES + module_sets.index(choice.recompute_modules)
        if choice.recompute_modules
        else RECOMPUTE_MODES[choice.recompute]
        for choice in choices
    ]
    offloads = [choice.offload for choice in choices]
    ends = [(0.0, 0.0)] * len(choices)
    if any(offload != NO_OFFLOAD for offload in offloads):
        assert costs is not None, "hosts keep something"
        ends = [costs.step_end(offload) for offload in offloads]
    once, step = np.array(ends).reshape(-1, 2).T
    return rows.Choices(
        recompute=np.array(modes, dtype=np.int64),
        zero_stage=np.array([choice.zero_stage for choice in choices], dtype=np.int64),
        sharding=np.array([choice.sharding for choice in choices], dtype=np.int64),
        counting=np.array([choice.counting for choice in choices], dtype=np.int64),
        unless=np.array(unless, dtype=np.int64),
        offload=np.array(offloads, dtype=np.float64),
        host_step=np.ascontiguousarray(step),
        host_once=np.ascontiguousarray(once),
    )


class Sharers(NamedTuple):
    """Devices that share shards."""

    groups: FloatArray
    """Devices that share shards of dense parameters under each sharding option."""

    expert_group: float
    """Devices that share shards of experts."""


class HostCosts(NamedTuple):
    """What hosts cost a job."""

    rates: HostRates
    """What the host link costs each device."""

    parameter_bytes: ParameterBytes
    """Bytes per parameter."""

    cpu_adam: bool
    """Whether the host updates what it keeps."""

    step_time: float
    """Time in which a device updates a parameter [s]."""

    memory: float
    """Memory of the host that each device may use [byte]."""

    @classmethod
    def of(cls, network: Network, workload: Workload) -> "HostCosts":
        """Return what the hosts of a network cost a job."""
        sizes = workload.parameter_bytes
        return cls(
            host_rates(network.host),
            sizes,
            workload.execution.cpu_adam,
            workload.step_time(),
            0.0 if network.host is None else network.host.memory,
        )

    def step_end(self, offload: Offload) -> tuple[float, float]:
        """Return what it adds to the step's end: once, and per updated parameter [s].

        The bytes of `planner.step.offload.step_transfers`.
        """
        sent = step_transfers(
            offload, 1.0, self.parameter_bytes, cpu_adam=self.cpu_adam
        )
        once = np.sum(
            sent._replace(on_host=0.0).times(
                self.rates._replace(to_device=0.0, to_host=0.0)
            )
        )
        repeated = np.sum(sent.times(self.rates._replace(latency=0.0)))
        slower = 0.0
        if sent.on_host > 0.0:
            slower = sent.on_host * (self.rates.adam_time - self.step_time)
        return float(once), float(repeated) + slower

    def exposed_times(
        self,
        table: LayerTable,
        classes: IntervalClasses,
        choices: rows.Choices,
        sharers: "Sharers",
        num_chunks: int,
    ) -> FloatArray:
        """Return by how much what layers exchange outlasts their compute, ``(C, K)``.

        As `planner.cost.stage` has it [s].

        Parameters
        ----------
        table, classes
            An interleaved chain, and its interval classes.
        choices
            What stages may choose from.
        sharers
            Devices that share shards.
        num_chunks
            Chunks of each stage: as many layers are one block of the chain.
        """
        kinds = classes.first_of_kind
        dense = (table.parameters - table.expert_parameters)[kinds]
        expert = table.expert_parameters[kinds]
        layers = np.where(table.is_block > 0, float(num_chunks), 1.0)[kinds]
        rates = self.rates._replace(latency=layers * self.rates.latency)
        found = np.zeros((len(choices.recompute), len(classes.counts)))
        names = {number: name for name, number in RECOMPUTE_MODES.items()}
        for c, fractions in enumerate(choices.offload.tolist()):
            offload = Offload(*fractions)
            if not offload.in_passes:
                continue
            mode = names[int(choices.recompute[c])]
            group = float(sharers.groups[choices.sharding[c]])
            sent = pass_transfers(
                offload,
                HeldParameters(dense, expert, group, sharers.expert_group),
                (table.saved_bytes[mode] * table.is_block)[kinds],
                zero_stage=int(choices.zero_stage[c]),
                parameter_bytes=self.parameter_bytes,
            )
            backward = table.backward_time[kinds]
            if mode != "none":
                backward = backward + table.recompute_time[mode][kinds]
            forward = sent.forward.times(rates) - table.forward_time[kinds]
            backward = sent.backward.times(rates) - backward
            exposed = np.maximum(forward, 0.0) + np.maximum(backward, 0.0)
            found[c] = classes.sums(exposed)
        return found
