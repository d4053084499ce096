"""What stages may do about their memory, as data and as the kernels read it.

A choice is a recompute mode, a stage of ZeRO, who shares its shards, and what the host
keeps. What hosts cost (`planner.step.offload`) is added up here over the interval
classes of a chain, and for each parameter at the step's end.
"""

from typing import NamedTuple

import numpy as np

from estimators.layers.work import LayerTable
from estimators.training import ParameterBytes
from planner.cost.classes import RECOMPUTE_MODES, IntervalClasses
from planner.kernels import tables as rows
from planner.step.execution import Workload
from planner.step.offload import (
    HeldParameters,
    HostRates,
    host_rates,
    pass_transfers,
    step_transfers,
)
from planner.step.plan import NO_OFFLOAD, Offload
from topologies import Network
from topologies.arrays import FloatArray


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
    choices: tuple[MemoryChoice, ...], costs: "HostCosts | None" = None
) -> rows.Choices:
    """Return the choices as the kernels read them.

    Parameters
    ----------
    choices
        The choices.
    costs
        What hosts cost; None if they keep nothing.
    """
    modes = [RECOMPUTE_MODES[choice.recompute] for choice in choices]
    offloads = [choice.offload for choice in choices]
    ends = [(0.0, 0.0)] * len(choices)
    if any(offload != NO_OFFLOAD for offload in offloads):
        assert costs is not None, "hosts keep something"
        ends = [costs.step_end(offload) for offload in offloads]
    once, step = np.array(ends).T
    return rows.Choices(
        recompute=np.array(modes, dtype=np.int64),
        zero_stage=np.array([choice.zero_stage for choice in choices], dtype=np.int64),
        sharding=np.array([choice.sharding for choice in choices], dtype=np.int64),
        counting=np.array([choice.counting for choice in choices], dtype=np.int64),
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
        each = workload.parameter_bytes
        return cls(
            host_rates(network.host),
            each,
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
        each = np.sum(sent.times(self.rates._replace(latency=0.0)))
        slower = 0.0
        if sent.on_host > 0.0:
            slower = sent.on_host * (self.rates.adam_time - self.step_time)
        return float(once), float(each) + slower

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
                table.saved_bytes[mode][kinds],
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
