"""Circuits through optical switches: which links are joined, for what is to be sent.

An optical circuit switch joins each of its ports that light comes in by to a port that
it leaves by, and passes on nothing else. A link into it is several ports; a *pattern*
says how many ports of one link are joined to which other one. Ports in and out are
joined by themselves, so a pattern is any matrix of counts whose rows and columns sum up
to the ports of a link at most: by Koenig's theorem on bipartite graphs it is so many
matchings, and as many small switches, one for each port of a link, do as one large one.

References
----------
.. [1] Wang et al., "TopoOpt: Co-optimizing Network Topology and Parallelization
   Strategy for Distributed Training Jobs", NSDI 2023 (circuits for a job's traffic).
.. [2] Urata et al., "Mission Apollo: Landing Optical Circuit Switching at Datacenter
   Scale", 2022 (switches that take milliseconds).
.. [3] Ding et al., "Photonic Rails in ML Datacenters with Opus", 2026 (circuits that
   change between the phases of a step).
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.degrade import select_links
from topologies.errors import InputError, located
from topologies.link_events import Moment
from topologies.network import Network
from topologies.settings import Examples, Spec, Text

MOST_PORTS = 1024
"""Ports of a link into an optical switch."""

SAME = 1e-12
"""Relative difference up to which times are alike: that of float64's quotients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpticalSpec(Spec):
    """Switches of a level that join circuits, which change within a step."""

    level: Annotated[Text, Examples("leaf")]
    """Level of a tree whose switches are optical."""

    ports: Annotated[int, Ge(1), Le(MOST_PORTS), Examples(4)] = 2
    """Ports that each link into these switches consists of, which share its bandwidth.
    Each is joined to a port of one other link at a time."""

    reconfiguration_time: Annotated[Moment, Examples("25 ms")]
    """How long circuits that are changed carry nothing [s]."""


def optical_switches(network: Network, level: str) -> BoolArray:
    """Return which vertices are the switches of a level.

    Raises
    ------
    InputError
        If the network has no such level, or its switches cannot be optical.
    """
    if not network.is_tree:
        raise InputError(
            "has no switches between devices",
            where="cluster.optical.level",
            got=f"a network of kind {network.kind}",
            expected="a tree: fat-tree, spine-leaf or rail",
        )
    fabric = network.without_host()
    with located("cluster.optical.level"):
        chosen = select_links(fabric, f"level {level}")
    if network.adds_in_switches:
        raise InputError(
            "adds up nothing on its way",
            where="cluster.optical.level",
            got="a network whose switches add up all-reduces",
            expected="switches that only pass on",
        )
    links = fabric.links
    number = int(links.level[chosen][0])
    is_switch, below = np.zeros((2, len(network.vertex_names)), dtype=np.bool_)
    below[: network.num_devices] = True
    for ends in (links.source, links.target):
        is_switch[ends[chosen]] = True
        below[ends[links.level < number]] = True
    return np.asarray(is_switch & ~below)


def most_peers(demand: FloatArray) -> int:
    """Return the ports that a link needs for a circuit to whatever it sends to."""
    sends = demand > 0.0
    return int(max(sends.sum(axis=0).max(), sends.sum(axis=1).max()))


def assign_circuits(
    demand: FloatArray, others: FloatArray, ports: int
) -> IntArray | None:
    """Return the pattern in which the longest of all transfers is shortest.

    Circuits carry alike, so it is the least of the largest demand over count. Ports
    that are left go to the transfers that take longest then, and what these cannot use
    to those of other phases.

    Parameters
    ----------
    demand
        Bytes from link to link, shape ``(n, m)`` [byte].
    others
        What other phases send, shape ``(n, m)`` [byte].
    ports
        Ports of a link.

    Returns
    -------
    IntArray | None
        Ports from link to link, at least one where there is demand; None if links have
        less ports than peers.
    """
    if most_peers(demand) > ports:
        return None
    needed = demand > 0.0
    # The answer is a quotient; with one port for each there is a pattern.
    times = np.unique(demand[needed][:, None] / np.arange(1, ports + 1))
    low, high = 0, times.size - 1
    while low < high:
        middle = (low + high) // 2
        if _fits(_counts(demand, times[middle]), ports):
            high = middle
        else:
            low = middle + 1
    counts = _counts(demand, times[low]) if times.size else needed.astype(np.int64)
    for sent in (demand, others):
        while True:
            free = (counts.sum(axis=1) < ports)[:, None] & (counts.sum(axis=0) < ports)
            longest = np.where(free, sent / np.maximum(counts, 0.5), 0.0)
            place = np.unravel_index(int(longest.argmax()), counts.shape)
            if not longest[place]:
                break
            counts[place] += 1
    return counts


def _counts(demand: FloatArray, time: float) -> IntArray:
    """Return the least ports with which no transfer takes longer."""
    return np.ceil(demand / time * (1.0 - SAME)).astype(np.int64)


def _fits(counts: IntArray, ports: int) -> bool:
    return bool(max(counts.sum(axis=0).max(), counts.sum(axis=1).max()) <= ports)
