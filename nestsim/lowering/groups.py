"""Who sends together inside of layers, and the phases of what they send.

The groups of a stage that have an actor in common, directly or through other groups,
move in lockstep anyway: their actors are one *lockstep group*, and what they send is
one flow.

Letters: ``d`` replicas, ``t`` ranks of a replica, ``G`` groups of ``n`` devices.
"""

from typing import NamedTuple

import numpy as np

from estimators.collectives.algorithms import algorithm_or_ring
from estimators.collectives.cost import RING_ALGORITHMS, algorithm_phases
from estimators.collectives.messages import placed_exchanges
from nestsim.simulator.work import LockstepEdgePhase, LockstepRingPhase
from topologies import Network
from topologies.arrays import IntArray

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
    name = algorithm_or_ring(algorithm, operation)
    if name not in RING_ALGORITHMS:
        return tuple(
            LockstepEdgePhase(
                phase.sources,
                phase.targets,
                np.repeat(
                    lockstep.of_group, phase.sources.size // len(lockstep.groups)
                ),
                phase.fraction * num_bytes,
                phase.num_steps,
            )
            for phase in placed_exchanges(network, operation, lockstep.groups, name)
        )
    phases = algorithm_phases(network, operation, lockstep.groups, name)
    return tuple(
        LockstepRingPhase(
            phase.rings,
            np.repeat(lockstep.of_group, len(phase.rings) // len(lockstep.groups)),
            phase.fraction * num_bytes,
            phase.num_steps,
        )
        for phase in phases
    )


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
