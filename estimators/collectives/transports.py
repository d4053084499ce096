"""What collective libraries reach on real interconnects.

A collective of ``n`` ranks on tensors of ``S`` bytes takes

    t = latency + tau + sqrt(tau tau0)
    latency = a0 + min(a1 (n / N - 1) + a2 log2 N, a1 (n - N) + 2 a3 (N - 1))
    tau = w S / (e B)

with ``N`` nodes, ``w S`` the bytes that pass each rank's port, ``B`` the port's
bandwidth by its datasheet and ``e`` the fraction of it that large messages reach. The
square root is the slow ramp of the bandwidth with size that a line (alpha-beta) lacks:
libraries add channels and change protocols (LL, LL128, Simple) as messages grow. The
latency of an all-reduce is that of NCCL's cost model [1]_, the lesser of a tree's (a
chain inside a node, a binary tree across nodes) and a ring's through all ranks. There
is no tree for an all-gather, a reduce-scatter or a broadcast: half of a ring's steps.

A ring sends ``w = 2 (n - 1) / n`` for an all-reduce, ``(n - 1) / n`` for an all-gather,
a reduce-scatter and an all-to-all, 1 for a broadcast and send/receive; ``S`` is the
full tensor's size throughout, of the result of an all-gather and of the input of a
reduce-scatter. A switch that adds up and multicasts (NVLS) [2]_ takes ``S`` from each
rank and ``S / n`` for the sum that the rank asks for, then the reverse: ``w = (n + 1) /
n``. Of ring and switch the faster one is taken, as NCCL does. All-to-all, send and
receive are single messages between pairs: no reduction, another launch and efficiency.

Where a collective was measured in a node, its curve is taken instead of the law
(`estimators.collectives.curves`), which is left for more ranks than were measured, for
what was not measured at all, and between nodes. Links charge bytes at the bandwidth
that large messages reach (`transfer_time`); all else is the library's (`overhead`).

Constants stand in ``transports.toml``, each with its source.

References
----------
.. [1] NCCL 2.18, ``src/graph/tuning.cc``: latency and bandwidth of each algorithm.
.. [2] B. Klenk et al., "An In-Network Architecture for Accelerating Shared-Memory
   Multiprocessor Collectives", ISCA 2020.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import tomli

from estimators.collectives.curves import MeasuredCurves, measured_curves
from estimators.collectives.phases import RING_OPERATIONS
from estimators.software import Software
from topologies.network import Network

Scope = Literal["node", "fabric"]

_PAIRWISE = frozenset({"all_to_all", "send_recv"})
"""Operations that are single messages between pairs of ranks."""

_LONGEST_CHAIN = 8
"""Most ranks that add latency to an all-reduce in the switch, which reaches all of them
at once: the largest group measured."""

WIRE_FRACTIONS: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "all_reduce": lambda size: RING_OPERATIONS["all_reduce"](size).fraction,
        "all_gather": lambda size: RING_OPERATIONS["all_gather"](size).fraction,
        "reduce_scatter": lambda size: RING_OPERATIONS["reduce_scatter"](size).fraction,
        "all_to_all": lambda size: (size - 1) / size,
        "broadcast": lambda size: 1.0 if size > 1 else 0.0,
        "send_recv": lambda size: 1.0 if size > 1 else 0.0,
    }
)
"""Operation -> bytes through each rank's port over the bytes of the full tensor, by the
number of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """What a collective library reaches on one kind of interconnect."""

    name: str
    """Name of the transport's table in ``transports.toml``."""

    scope: Scope
    """Whether ranks share a node's links, or send through nodes' adapters."""

    accelerators: tuple[str, ...] = ()
    """Beginnings of the names of accelerators that have the transport; empty: found by
    its own name alone."""

    launch: float
    """Time a0 of a collective of no bytes [s]."""

    per_rank: float
    """Time a1 for each further rank of a node, the two steps of an all-reduce [s]."""

    per_doubling: float = 0.0
    """Time a2 each time the number of nodes doubles, of a tree [s]."""

    per_hop: float = 0.0
    """Time a3 of a ring's step from one node to the next, with the wire; 0 if it is not
    known but from a tree's [s]."""

    ramp: float
    """Time tau0: the bandwidth is half reached when bytes alone take this long [s]."""

    efficiency: float
    """Share of the datasheet's bandwidth that rings of large messages reach."""

    multicast_efficiency: float = 0.0
    """Share of the datasheet's bandwidth that all-reduces in the switch reach; 0 if the
    switch has none."""

    adds_in_switches: bool = False
    """Whether switches between nodes add up all-reduces (SHARP): each byte goes up once
    and comes down once, in two steps for any number of nodes."""

    links_by_size: tuple[float, ...] = ()
    """Share of a device's links that a ring of 2, 3, .. ranks can use; empty: all."""

    devices_per_switch: int = 0
    """Devices of a node that share a switch or a socket. What leaves it shares one link
    of the bandwidth that rings of more devices find (`links_by_size`); 0: none does."""

    crowding: float = 0.0
    """Part of the time of hidden collectives of parameters by which they lengthen a
    step, for each unit that the square root of the nodes they span exceeds 1 by
    (`planner.cost.crowding`)."""

    send_launch: float
    """Time of a message of no bytes between two ranks [s]."""

    send_efficiency: float
    """Share of the datasheet's bandwidth that single large messages reach."""

    source: str
    """Publication or measurement that the values are from."""

    curves: MeasuredCurves | None = None
    """Collectives in a node as they were measured; None where the law is all."""

    def reached(self, operation: str, num_ranks: int) -> float:
        """Return the fraction of the datasheet's bandwidth that large messages reach.

        In terms of a ring's bytes: where the switch adds up, it may exceed 1.
        """
        curves = self.curves
        byte_time = None if curves is None else curves.byte_time(operation, num_ranks)
        if curves is None or byte_time is None:
            if operation in _PAIRWISE:
                return self.send_efficiency
            return self._ring_share(operation, num_ranks, sums=True)
        known = max(2, num_ranks)
        if not self.sums(operation):
            known = min(known, max(curves.of(operation)))
        return WIRE_FRACTIONS[operation](known) / (byte_time * curves.bandwidth)

    def charged(self, operation: str, num_ranks: int, *, sums: bool) -> float:
        """Return the fraction of the datasheet's bandwidth that links charge bytes at.

        Of a network whose links are as fast as the quickest rings (`efficiency`) and
        whose switches do ``sums``, or do not. What a collective takes beyond is the
        library's.
        """
        reached = self.reached(operation, num_ranks)
        if operation in _PAIRWISE:
            return reached
        return min(self._ring_share(operation, num_ranks, sums=sums), reached)

    def sums(self, operation: str) -> bool:
        """Return whether a node's switch adds up what an operation sends."""
        return operation == "all_reduce" and self.multicast_efficiency > 0.0

    def _ring_share(self, operation: str, num_ranks: int, *, sums: bool) -> float:
        """Return what large messages of rings or sums in switches reach by the law."""
        bandwidth = self.efficiency * self._link_share(num_ranks)
        if sums and self.sums(operation):
            gain = 2 * (num_ranks - 1) / (num_ranks + 1)
            bandwidth = max(bandwidth, self.multicast_efficiency * gain)
        if operation == "all_reduce" and self.adds_in_switches:
            bandwidth *= 2 * (num_ranks - 1) / num_ranks
        return bandwidth

    def latency(
        self, operation: str, num_ranks: int, num_nodes: int | None = None
    ) -> float:
        """Return the time that does not depend on the size [s].

        Without a number of nodes there is one in the scope of a node, and one for
        each rank in that of a fabric, as groups of data parallelism have it.
        """
        if num_ranks == 1:
            return 0.0
        if operation == "send_recv":
            return self.send_launch
        if num_nodes is None:
            num_nodes = 1 if self.scope == "node" else num_ranks
        tree = self._tree_latency(operation, num_ranks / num_nodes, num_nodes)
        if operation == "all_to_all":
            return self.send_launch + tree
        between = self.step * (num_nodes - 1)
        ring = self.per_rank / 2 * max(0, num_ranks - num_nodes) + between
        if operation != "all_reduce":
            return self.launch + ring
        return self.launch + (min(tree, 2 * ring) if self.per_hop else tree)

    @property
    def step(self) -> float:
        """Time of a ring's step from one node to the next [s].

        Where it is not known, a quarter of a doubling's: a tree goes up and down, and
        its steps, which wait for two children, count twice.
        """
        return self.per_hop or self.per_doubling / 4

    def _tree_latency(self, operation: str, local: float, num_nodes: int) -> float:
        """Return how long a chain in each node and a tree between them wait [s]."""
        if self.sums(operation):
            local = min(local, _LONGEST_CHAIN)
        chain = self.per_rank * max(0.0, local - 1)
        between = self.per_doubling * math.log2(num_nodes)
        if operation == "all_reduce" and self.adds_in_switches and num_nodes > 1:
            between = min(between, 2 * self.step)
        return chain + between

    def _link_share(self, num_ranks: int) -> float:
        if not self.links_by_size:
            return 1.0
        # More ranks than the table has leave the node by what all of it has.
        index = min(num_ranks - 2, len(self.links_by_size) - 1)
        return self.links_by_size[max(index, 0)]


def transfer_time(
    transport: Transport,
    operation: str,
    num_ranks: int,
    num_bytes: float,
    bandwidth: float,
) -> float:
    """Return tau, the time of the bytes alone at the bandwidth reached [s].

    Parameters
    ----------
    transport
        The interconnect.
    operation
        A key of `WIRE_FRACTIONS`.
    num_ranks
        Members of the group.
    num_bytes
        ``S``, of the full tensor [byte].
    bandwidth
        ``B``, of a rank's port by its datasheet, one direction [byte/s].
    """
    assert num_ranks >= 1
    assert num_bytes >= 0
    assert bandwidth > 0
    if num_ranks == 1:
        return 0.0
    wire = WIRE_FRACTIONS[operation](num_ranks) * num_bytes
    return wire / (transport.reached(operation, num_ranks) * bandwidth)


def overhead(
    transport: Transport,
    operation: str,
    num_ranks: int,
    num_bytes: float,
    bandwidth: float,
    *,
    num_nodes: int | None = None,
) -> float:
    """Return what a collective takes beyond its bytes at the bandwidth reached [s].

    Never negative. Parameters as in `transfer_time`; ``num_nodes``, which the group
    spans, as in `Transport.latency`.
    """
    message = (transport, operation, num_ranks, num_bytes, bandwidth)
    whole = collective_time(*message, num_nodes=num_nodes)
    return max(0.0, whole - transfer_time(*message))


def collective_time(
    transport: Transport,
    operation: str,
    num_ranks: int,
    num_bytes: float,
    bandwidth: float,
    *,
    num_nodes: int | None = None,
) -> float:
    """Return the time of a collective that has its links to itself [s].

    As it was measured, and by the law where it was not. To a curve of fewer ranks come
    the law's latency and bytes of the others; sums in a switch, which reaches all ranks
    at once, have no more bytes, and messages between pairs, which leave at once, no
    more latency (2 us from 8 to 64 ranks: AIConfigurator's all-to-alls of GB200).
    """
    if num_ranks == 1:
        return 0.0
    curves, time = transport.curves, None
    if curves is not None and num_nodes in {None, 1}:
        time = curves.time(operation, num_ranks, num_bytes, bandwidth)
    if curves is None or time is None:
        message = (transport, operation, num_ranks, num_bytes, bandwidth)
        tau = transfer_time(*message)
        latency = transport.latency(operation, num_ranks, num_nodes)
        return latency + tau + ramp_time(transport, operation, tau)
    most = max(curves.of(operation))
    if num_ranks <= most:
        return time
    more = 0.0
    if operation not in _PAIRWISE:
        more = transport.latency(operation, num_ranks)
        more -= transport.latency(operation, most)
    if transport.sums(operation):
        return time + more
    wire = WIRE_FRACTIONS[operation]
    few = transfer_time(transport, operation, most, num_bytes, bandwidth)
    return time + more + few * (wire(num_ranks) / wire(most) - 1.0)


def ramp_time(transport: Transport, operation: str, tau: float) -> float:
    """Return what the slow ramp adds to bytes that take ``tau`` alone [s].

    Single messages between pairs show none.
    """
    return 0.0 if operation in _PAIRWISE else math.sqrt(tau * transport.ramp)


@cache
def transports() -> Mapping[str, Transport]:
    """Return all of ``transports.toml`` by name."""
    text = files("estimators").joinpath("transports.toml").read_text(encoding="utf-8")
    tables = tomli.loads(text)
    return MappingProxyType({name: _transport(name, tables[name]) for name in tables})


def _transport(name: str, table: Mapping[str, Any]) -> Transport:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in table.items()
        if key != "spread"
    }
    return Transport(name=name, curves=measured_curves().get(name), **values)


@cache
def find_transport(accelerator_name: str, *, inside_node: bool) -> Transport:
    """Return the interconnect of an accelerator's usual machine.

    Of transports that match the start of the name the longest match counts, ``"h100"``
    for ``"h100-sxm"``; for accelerators of which no curve is published the default one
    is returned, ``default-node`` or ``default-fabric``.
    """
    scope: Scope = "node" if inside_node else "fabric"
    known = transports()
    matches = [
        (len(start), name)
        for name, transport in known.items()
        for start in transport.accelerators
        if transport.scope == scope and accelerator_name.startswith(start)
    ]
    return known[max(matches)[1] if matches else f"default-{scope}"]


def library_network(
    network: Network, node: Transport, fabric: Transport, software: Software
) -> Network:
    """Return a network as a collective library uses it, with its latencies and steps.

    Latencies of links are those of the wire. A library's step from node to node waits
    for more: flags that processors poll, proxies of the host. What it takes is measured
    from end to end (`Transport.step`); a link out of a node is given half of it at
    least, so that prices and replays, which all read the links, wait for the same.
    Links are as fast as the quickest rings in a node; others load them by more, as long
    as they are measured to take (`Transport.charged`).

    Parameters
    ----------
    network
        As it was built; what is slow or gone stays so. Only trees change: what drives a
        torus or a list of links is not known.
    node, fabric
        What the library reaches inside nodes, and between them.
    software
        Whether it uses a library at all.
    """
    rules = network.rules
    if not software.library or rules is None:
        return network
    links = network.links
    leaves = links.level == rules.node_levels
    latency = np.where(
        leaves, np.maximum(links.latency, fabric.step / 2), links.latency
    )
    return replace(
        network,
        links=replace(links, latency=latency),
        rules=replace(
            rules,
            is_library=True,
            ring_weights=_ring_weights(node),
        ),
    )


@lru_cache(maxsize=64)
def _ring_weights(node: Transport) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Return what rings of an operation among 2, 3, .. ranks load links by."""
    if node.curves is None:
        return ()
    return tuple(
        (
            operation,
            tuple(
                max(1.0, node.efficiency / node.charged(operation, ranks, sums=False))
                for ranks in range(2, max(node.curves.of(operation)) + 1)
            ),
        )
        for operation in RING_OPERATIONS
        if node.curves.of(operation)
    )
