"""Who sends together inside of layers, and the phases of what they send.

The groups of a stage that have an actor in common, directly or through other groups,
move in lock-step anyway: their actors are one *team*, and what they send one flow.

Letters: ``d`` replicas, ``t`` lanes, ``G`` groups of ``n`` devices.
"""

from typing import NamedTuple

import numpy as np

from estimators.collectives.algorithms import algorithm_or_ring
from estimators.collectives.cost import ALGORITHMS
from estimators.collectives.placed import placed_exchanges
from nestsim.simulator.work import TeamEdgePhase, TeamPhase
from topologies import Network
from topologies.arrays import IntArray

_UNITS = 2.0**20
"""Weights of lanes are whole numbers of its inverse, so that sums are exact."""


class Teams(NamedTuple):
    """Groups of one kind in one stage, those of a team next to each other."""

    groups: IntArray
    """Shape ``(G, n)``."""

    team_of_group: IntArray
    """Rising, shape ``(G,)``."""

    team: IntArray
    """Of each replica, shape ``(d,)``."""


def find_teams(lanes: IntArray, groups: IntArray) -> Teams:
    """Sort the replicas of a stage into teams.

    Parameters
    ----------
    lanes
        Devices of each replica, shape ``(d, t)``.
    groups
        Devices that do collectives together, shape ``(G, n)``.
    """
    replica = np.full(int(lanes.max()) + 1, -1)
    replica[lanes] = np.arange(len(lanes))[:, None]
    members = replica[groups]
    label = np.arange(len(lanes))
    while True:
        lowest = label.copy()
        np.minimum.at(lowest, members, label[members].min(axis=1)[:, None])
        if np.array_equal(lowest, label):
            break
        label = lowest
    team = np.unique(label, return_inverse=True)[1].ravel()
    of_group = team[members[:, 0]]
    order = np.argsort(of_group, kind="stable")
    return Teams(groups[order], of_group[order], team)


def collective_team_phases(
    network: Network, teams: Teams, operation: str, algorithm: str, num_bytes: float
) -> tuple[TeamPhase | TeamEdgePhase, ...]:
    """Return the phases of a collective of ``num_bytes`` in every group.

    An operation that the algorithm does not have is done by rings.
    """
    name = algorithm_or_ring(algorithm, operation)
    if name not in ALGORITHMS:
        return tuple(
            TeamEdgePhase(
                phase.sources,
                phase.targets,
                np.repeat(teams.team_of_group, phase.sources.size // len(teams.groups)),
                phase.fraction * num_bytes,
                phase.num_steps,
            )
            for phase in placed_exchanges(network, operation, teams.groups, name)
        )
    found = ALGORITHMS[name](
        operation, teams.groups, network.block_sizes, network.rules
    )
    return tuple(
        TeamPhase(
            phase.rings,
            np.repeat(teams.team_of_group, len(phase.rings) // len(teams.groups)),
            phase.fraction * num_bytes,
            phase.num_steps,
        )
        for phase in found
    )


def hop_phase(teams: Teams, num_bytes: float, num_hops: int) -> TeamPhase:
    """Return hops round the ring of every group, of together ``num_bytes``."""
    return TeamPhase(teams.groups, teams.team_of_group, num_bytes, num_hops)


def all_to_all_phase(
    teams: Teams, num_bytes: float, skew: float, *, combine: bool
) -> TeamPhase:
    """Return an all-to-all of ranks that hold ``num_bytes`` each.

    Every pair of a group is a ring of two. With a skew the first rank of a group gets
    ``skew`` times the mean (in a combine: sends it), which is ``n`` times at most, and
    the others share the rest.
    """
    size = teams.groups.shape[1]
    one, other = np.triu_indices(size, 1)
    pairs = np.stack([teams.groups[:, one], teams.groups[:, other]], axis=2)
    weights = None
    if skew > 1.0:
        each = np.full(size, (size - skew) / (size - 1))
        each[0] = skew
        each = np.maximum(np.round(each * _UNITS), 1.0) / _UNITS
        # A lane goes from either rank to the other: its weight is the receiver's.
        both = np.stack([each[other], each[one]], axis=1)
        weights = np.tile(both[:, ::-1] if combine else both, (len(pairs), 1))
    return TeamPhase(
        pairs.reshape(-1, 2),
        np.repeat(teams.team_of_group, one.size),
        num_bytes / size,
        1,
        weights,
    )
