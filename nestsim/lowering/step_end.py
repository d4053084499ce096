"""The collectives of one stage around its optimizer step, whole or in buckets.

Without overlap the gradients are reduced after the last backward pass, and what was
updated in shards is gathered after the optimizer step (`planner.step.ledger`). With
overlap both go bucket by bucket behind compute (`planner.step.exposure`): gradients
behind the backward pass that completes them, parameters behind the next forward pass.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from estimators.collectives.algorithms import algorithm_or_ring
from estimators.collectives.cost import RING_ALGORITHMS, algorithm_phases
from estimators.collectives.messages import placed_exchanges
from estimators.training import ParameterBytes
from nestsim.simulator.work import Bucket, EdgePhase, Phase, RingPhase
from planner.cost.groups import StageGroups
from planner.step.exposure import PassProgress, parameter_buckets
from planner.step.ledger import (
    ACROSS,
    AFTER_OPTIMIZER,
    BEFORE_OPTIMIZER,
    INSIDE,
    LEDGER,
    REPLICAS,
    wire_bytes,
)
from planner.step.plan import Plan, Stage
from topologies import Network
from topologies.arrays import IntArray

Phases = tuple[Phase, ...]
"""Phases of a collective, one after another."""

_EXPERTS = "experts"
"""Groups of devices that hold the same experts, beside those of the ledger."""


class StepCollective(NamedTuple):
    """A collective of one stage around its optimizer step, before any algorithm."""

    operation: str
    """One of `estimators.collectives.algorithms.OPERATIONS`."""

    groups: IntArray
    """Devices of each group, shape ``(G, n)``."""

    num_bytes: float
    """Size of the full tensor [byte]."""


class StepEnd:
    """The collectives of one stage at the end of the step.

    Parameters
    ----------
    network
        Where the devices are.
    plan, stage
        Whose stage it is.
    groups
        The stage's devices, and the groups that they form.
    parameter_bytes
        Bytes of a parameter.
    """

    def __init__(
        self,
        network: Network,
        plan: Plan,
        stage: Stage,
        groups: StageGroups,
        parameter_bytes: ParameterBytes,
    ) -> None:
        self.network, self.stage = network, stage
        self.parameter_bytes = parameter_bytes
        self.algorithm = plan.gradient_algorithm
        self.dense: IntArray = groups.dense()[0]
        self.experts: IntArray = groups.expert_data()[0]
        self._of_a_byte: dict[tuple[str, str], Phases] = {}
        self._known: dict[tuple[str, float, float], Phases] = {}

    def reduce(self, dense: float, expert: float) -> Phases:
        """Return what reduces the gradients of some parameters of a device."""
        return self._sent(BEFORE_OPTIMIZER, dense, expert)

    def gather(self, dense: float, expert: float) -> Phases:
        """Return what gathers the weights of some parameters after an update."""
        return self._sent(AFTER_OPTIMIZER, dense, expert)

    def to_and_from_host(self, to_host: float, to_device: float) -> Phases:
        """Return what each device exchanges with its host, both ways at once.

        Parameters
        ----------
        to_host, to_device
            What a device sends and receives [byte]; equal if it is both.
        """
        num_bytes = max(to_host, to_device)
        if num_bytes == 0.0:
            return ()
        devices = np.sort(self.dense.ravel())
        hosts = self.network.host_of(devices)
        ways = [(devices, hosts)] * (to_host > 0.0) + [(hosts, devices)] * (
            to_device > 0.0
        )
        assert len(ways) == 1 or to_host == to_device
        sources, targets = (np.concatenate(ends) for ends in zip(*ways, strict=True))
        return (EdgePhase(sources, targets, num_bytes, 1),)

    def _sent(self, moment: str, dense: float, expert: float) -> Phases:
        """Return what some parameters have a device send at a moment, each once."""
        key = moment, dense, expert
        if key not in self._known:
            self._known[key] = self._written(moment, dense, expert)
        return self._known[key]

    def _written(self, moment: str, dense: float, expert: float) -> Phases:
        phases: Phases = ()
        for group, operation, num_bytes in self._parts(moment, dense, expert):
            phases += self._over(group, operation, num_bytes)
        return phases

    def collectives(
        self, moment: str, dense: float, expert: float
    ) -> tuple[StepCollective, ...]:
        """Return what some parameters have a device send at a moment, undivided.

        Those of a single rank are left out.
        """
        found = (
            StepCollective(operation, self._members(group), num_bytes)
            for group, operation, num_bytes in self._parts(moment, dense, expert)
            if num_bytes > 0.0
        )
        return tuple(one for one in found if one.groups.shape[1] > 1)

    def _parts(
        self, moment: str, dense: float, expert: float
    ) -> Iterator[tuple[str, str, float]]:
        """Yield group, operation and size of what is sent at a moment [byte]."""
        for sent in LEDGER[self.stage.zero_stage].sent_at(moment):
            width = wire_bytes(sent, self.parameter_bytes)
            part = self.stage.sharding_group_size if sent.group == ACROSS else 1
            yield sent.group, sent.operation, dense * width / part
            if sent.group != ACROSS:
                yield _EXPERTS, sent.operation, expert * width

    def _members(self, group: str) -> IntArray:
        """Return the groups of devices that a collective is done by."""
        if group == _EXPERTS:
            return self.experts
        if group == REPLICAS:
            return self.dense
        size = self.stage.sharding_group_size
        parts = np.sort(self.dense, axis=1).reshape(len(self.dense), -1, size)
        if group == INSIDE:
            return np.asarray(parts.reshape(-1, size), np.int64)
        crossing = np.swapaxes(parts, 1, 2).reshape(-1, parts.shape[1])
        return np.asarray(crossing, np.int64)

    def _over(self, group: str, operation: str, num_bytes: float) -> Phases:
        """Return the phases of a collective; all buckets share its rings."""
        if num_bytes == 0.0:
            return ()
        key = group, operation
        if key not in self._of_a_byte:
            self._of_a_byte[key] = collective_phases(
                self.network, operation, self._members(group), self.algorithm, 1.0
            )
        return tuple(
            phase._replace(bytes_per_member=phase.bytes_per_member * num_bytes)
            for phase in self._of_a_byte[key]
        )


def collective_phases(
    network: Network,
    operation: str,
    groups: IntArray,
    algorithm: str,
    num_bytes: float,
) -> Phases:
    """Return the phases of one collective over groups of shape ``(groups, n)``.

    An operation that the algorithm does not have is done by rings.
    """
    name = algorithm_or_ring(algorithm, operation)
    if name in RING_ALGORITHMS:
        return tuple(
            RingPhase(phase.rings, phase.fraction * num_bytes, phase.num_steps)
            for phase in algorithm_phases(network, operation, groups, name)
        )
    return tuple(
        EdgePhase(
            phase.sources, phase.targets, phase.fraction * num_bytes, phase.num_steps
        )
        for phase in placed_exchanges(network, operation, groups, name)
    )


def reduce_buckets(
    step_end: StepEnd, chunks: Sequence[PassProgress], size: float
) -> tuple[Bucket, ...]:
    """Return the gradient buckets of chunks, given in the order of their passes.

    A bucket is full when its last parameter's gradient is there.
    """
    return tuple(_buckets(step_end.reduce, chunks, size, first=False))


def gather_buckets(
    step_end: StepEnd, chunks: Sequence[PassProgress], size: float
) -> tuple[Bucket, ...]:
    """Return the parameter buckets of chunks, given in the order of their passes.

    A bucket is needed with its first parameter.
    """
    return tuple(_buckets(step_end.gather, chunks, size, first=True))


def _buckets(
    collective: Callable[[float, float], Phases],
    chunks: Sequence[PassProgress],
    size: float,
    *,
    first: bool,
) -> Iterator[Bucket]:
    for progress in chunks:
        for bucket in parameter_buckets(progress, size, first=first):
            phases = collective(bucket.dense, bucket.expert)
            if phases:
                yield Bucket(bucket.chunk, bucket.at, phases)
