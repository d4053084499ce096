"""Collectives of a stage: inside of its layers, and around its optimizer step.

The groups of a stage that have an actor in common, directly or through other groups,
move in lockstep anyway: their actors are one *lockstep group*, and what they send is
one flow.

Letters: ``d`` replicas, ``t`` ranks of a replica, ``G`` groups of ``n`` devices.

The collectives of one stage around its optimizer step, whole or in buckets.

Without overlap the gradients are reduced after the last backward pass, and what was
updated in shards is gathered after the optimizer step (`planner.step.ledger`). With
overlap both go bucket by bucket behind compute (`planner.step.exposure`): gradients
behind the backward pass that completes them, parameters behind the next forward pass.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from estimators.collectives.algorithms import algorithm_or_ring
from estimators.collectives.cost import RING_ALGORITHMS, algorithm_phases
from estimators.collectives.messages import placed_exchanges
from estimators.training import ParameterBytes
from nestsim.simulator.work import (
    Bucket,
    EdgePhase,
    LockstepEdgePhase,
    LockstepRingPhase,
    Phase,
    RingPhase,
)
from planner.cost.groups import StageGroups
from planner.step.exposure import (
    PassProgress,
    parameter_buckets,
)
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
from topologies.keeping import Keeper

_UNITS = 2.0**20
"""Weights of messages are whole multiples of its inverse: their sums are exact."""


class LockstepGroups(NamedTuple):
    """Groups of devices of one kind in one stage, and the lockstep groups they form."""

    groups: IntArray
    """Devices of each group, those of a lockstep group adjacent, shape ``(G, n)``."""

    of_group: IntArray
    """Lockstep group that each group belongs to, rising, shape ``(G,)``."""

    of_replica: IntArray
    """Lockstep group that each replica belongs to, shape ``(d,)``."""


def find_lockstep_groups(devices: IntArray, groups: IntArray) -> LockstepGroups:
    """Sort the replicas of a stage into lockstep groups.

    Parameters
    ----------
    devices
        Devices of each replica, shape ``(d, t)``.
    groups
        Devices that do collectives together, shape ``(G, n)``.
    """
    replica = np.full(int(devices.max()) + 1, -1)
    replica[devices] = np.arange(len(devices))[:, None]
    members = replica[groups]
    label = np.arange(len(devices))
    while True:
        lowest = label.copy()
        np.minimum.at(lowest, members, label[members].min(axis=1)[:, None])
        if np.array_equal(lowest, label):
            break
        label = lowest
    of_replica = np.unique(label, return_inverse=True)[1].ravel()
    of_group = of_replica[members[:, 0]]
    order = np.argsort(of_group, kind="stable")
    return LockstepGroups(groups[order], of_group[order], of_replica)


def collective_lockstep_phases(
    network: Network,
    lockstep: LockstepGroups,
    operation: str,
    algorithm: str,
    num_bytes: float,
) -> tuple[LockstepRingPhase | LockstepEdgePhase, ...]:
    """Return the phases of a collective of ``num_bytes`` in every group.

    An operation that the algorithm does not have is done by rings.
    """
    of_group, count = lockstep.of_group, len(lockstep.groups)
    phases: list[LockstepRingPhase | LockstepEdgePhase] = []
    for phase in collective_phases(
        network, operation, lockstep.groups, algorithm, num_bytes
    ):
        sent = phase.bytes_per_member, phase.num_steps
        rows = phase.rings if isinstance(phase, RingPhase) else phase.sources
        lockstep_of = np.repeat(of_group, len(rows) // count)
        if isinstance(phase, RingPhase):
            phases.append(LockstepRingPhase(phase.rings, lockstep_of, *sent))
        else:
            phases.append(LockstepEdgePhase(*phase.ends(), lockstep_of, *sent))
    return tuple(phases)


def hop_phase(
    lockstep: LockstepGroups, num_bytes: float, num_hops: int
) -> LockstepRingPhase:
    """Return hops round the ring of every group, of together ``num_bytes``."""
    return LockstepRingPhase(lockstep.groups, lockstep.of_group, num_bytes, num_hops)


def host_phase(
    lockstep: LockstepGroups, hosts: IntArray, num_bytes: float, *, leaves: bool
) -> LockstepEdgePhase:
    """Return what every device exchanges with its host.

    Parameters
    ----------
    lockstep
        Groups of one device each.
    hosts
        Vertex of the host of each group's device, shape ``(G, 1)``.
    num_bytes
        What each device sends or receives [byte].
    leaves
        Whether devices send.
    """
    ends = lockstep.groups.ravel(), hosts.ravel()
    sources, targets = ends if leaves else ends[::-1]
    return LockstepEdgePhase(sources, targets, lockstep.of_group, num_bytes, 1)


def all_to_all_phase(
    lockstep: LockstepGroups, num_bytes: float, skew: float, *, combine: bool
) -> LockstepRingPhase:
    """Return an all-to-all of ranks that hold ``num_bytes`` each.

    Every pair of a group is a ring of two. With a skew the first rank of a group gets
    ``skew`` times the mean (in a combine: sends it), which is ``n`` times at most, and
    the others share the rest.
    """
    size = lockstep.groups.shape[1]
    first, second = np.triu_indices(size, 1)
    pairs = np.stack([lockstep.groups[:, first], lockstep.groups[:, second]], axis=2)
    weights = None
    if skew > 1.0:
        weight = np.full(size, (size - skew) / (size - 1))
        weight[0] = skew
        weight = np.maximum(np.round(weight * _UNITS), 1.0) / _UNITS
        # A message goes from either rank to the other, weighted as its receiver.
        both = np.stack([weight[second], weight[first]], axis=1)
        weights = np.tile(both[:, ::-1] if combine else both, (len(pairs), 1))
    return LockstepRingPhase(
        pairs.reshape(-1, 2),
        np.repeat(lockstep.of_group, first.size),
        num_bytes / size,
        1,
        weights,
    )


Phases = tuple[Phase, ...]
"""Phases of a collective, one after another."""

_EXPERTS = "experts"
"""Groups of devices that hold the same experts, beside those of the ledger."""


class StepCollective(NamedTuple):
    """A collective of one stage around its optimizer step, before any algorithm."""

    operation: str
    """One of `estimators.collectives.cost.OPERATIONS`."""

    groups: IntArray
    """Devices of each group, shape ``(G, n)``."""

    num_bytes: float
    """Size of the full tensor [byte]."""


class KeptPhases:
    """Keeps the phases of collectives of a byte on one network, by who does them.

    Parameters
    ----------
    network
        The network.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self._phases = Keeper[tuple[str, str, tuple[int, ...], bytes], Phases](
            # Rings have each device once or twice, both ways.
            lambda key, phases: (1 + 2 * len(phases)) * len(key[3]),
            _ROOM,
        )

    def of_a_byte(self, operation: str, groups: IntArray, algorithm: str) -> Phases:
        """Return the `collective_phases` of a byte."""
        return self._phases.get(
            (operation, algorithm, groups.shape, groups.tobytes()),
            partial(collective_phases, self.network, operation, groups, algorithm, 1.0),
        )


_ROOM = 2**25
"""Bytes that kept phases may take, and their keys."""


class StepEnd:
    """The collectives of one stage at the end of the step.

    Parameters
    ----------
    known
        Phases of collectives on the network.
    plan, stage
        Whose stage it is.
    groups
        The stage's devices, and the groups that they form.
    parameter_bytes
        Bytes of a parameter.
    """

    def __init__(
        self,
        known: KeptPhases,
        plan: Plan,
        stage: Stage,
        groups: StageGroups,
        parameter_bytes: ParameterBytes,
    ) -> None:
        self.known, self.stage = known, stage
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
        hosts = self.known.network.host_of(devices)
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
        every = (
            StepCollective(operation, self._members(group), num_bytes)
            for group, operation, num_bytes in self._parts(moment, dense, expert)
            if num_bytes > 0.0
        )
        return tuple(
            collective for collective in every if collective.groups.shape[1] > 1
        )

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
            self._of_a_byte[key] = self.known.of_a_byte(
                operation, self._members(group), self.algorithm
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
    phases_of = cache(collective)
    for progress in chunks:
        for at, dense, expert in parameter_buckets(progress, size, first=first):
            if phases := phases_of(dense, expert):
                yield Bucket(progress.chunk, at, phases)
