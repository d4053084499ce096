"""The network as Alpa sees it: devices of a node, nodes, and two links of one speed.

A submesh is some devices of one node, or some whole nodes; a logical mesh has its
devices in two axes. Each axis has a latency ``a`` and an inverse bandwidth ``b``, those
inside a node or those between nodes; how links are shared, and by whom, is not seen.
With ``n`` devices of an axis, and ``B`` bytes of a tensor that is whole on it ([1]_,
``ClusterEnvironment``)::

    all-gather, reduce-scatter   a + b (n - 1) / n B
    all-reduce                   a + 2 b (n - 1) / n B
    all-to-all                   a + b (n - 1) / n^2 B n / 2

The factor ``n / 2`` of the last one is Alpa's penalty. Alpa also adds 0.1, 0.01, 0.001
and 0.001 to all-gathers, all-reduces, reduce-scatters and all-to-alls. There they order
shardings of equal cost, in a program whose unit is arbitrary; in Alpa-E, whose unit is
the second, a block's collectives would take longer than the rest of its step. They
are left out: equal costs are ordered by the position of the strategy.

References
----------
.. [1] Zheng et al., "Alpa", OSDI 2022, sections 4 and 5, and its public source.
"""

from typing import NamedTuple

from topologies import Network


class MeshAxis(NamedTuple):
    """One axis of a logical mesh."""

    size: int
    """Devices along the axis."""

    latency: float
    """Latency ``a`` of a collective [s]."""

    inverse: float
    """Inverse bandwidth ``b`` [s/byte]."""

    def all_gather(self, num_bytes: float) -> float:
        """Return the time of an all-gather or a reduce-scatter [s]."""
        if self.size == 1:
            return 0.0
        return self.latency + self.inverse * (self.size - 1) / self.size * num_bytes

    def all_reduce(self, num_bytes: float) -> float:
        """Return the time of an all-reduce [s]."""
        if self.size == 1:
            return 0.0
        part = 2.0 * (self.size - 1) / self.size
        return self.latency + self.inverse * part * num_bytes

    def all_to_all(self, num_bytes: float) -> float:
        """Return the time of an all-to-all [s]."""
        if self.size == 1:
            return 0.0
        part = (self.size - 1) / self.size / 2.0
        return self.latency + self.inverse * part * num_bytes

    def of_size(self, size: int) -> "MeshAxis":
        """Return a part of the axis."""
        return self._replace(size=size)


class Submesh(NamedTuple):
    """Devices of one node, or whole nodes."""

    hosts: int
    """Nodes of the submesh."""
    width: int
    """Devices of each of them."""

    @property
    def size(self) -> int:
        """Devices together."""
        return self.hosts * self.width


class LogicalMesh(NamedTuple):
    """The devices of a submesh in two axes."""

    first: MeshAxis
    """Axis that the batch is split over, unless it is free."""

    second: MeshAxis
    """Axis inside of a node, of what shares each layer's matrices."""

    has_free_batch: bool = False
    """Whether the batch may stay whole on the first axis."""

    @property
    def axes(self) -> tuple[MeshAxis, MeshAxis]:
        """Both axes."""
        return self.first, self.second

    @property
    def size(self) -> int:
        """Devices together."""
        return self.first.size * self.second.size


class TwoLevelMesh(NamedTuple):
    """A cluster of nodes."""

    num_devices: int
    """Devices of the cluster."""
    node_size: int
    """Devices of a node."""
    inside: MeshAxis
    """Latency and inverse bandwidth inside a node; its size is a node's."""
    between: MeshAxis
    """Latency and inverse bandwidth between nodes; its size is their number."""

    @classmethod
    def of(cls, network: Network) -> "TwoLevelMesh":
        """Read what Alpa may see of a network."""
        rules, levels = network.rules, network.levels
        node_size = network.block_sizes[0] if rules is None else rules.node_size
        inner = 0 if rules is None else rules.node_levels - 1
        inner = min(inner, len(levels) - 1)
        outer = min(inner + 1, len(levels) - 1)
        num_nodes = network.num_devices // node_size
        inside, between = (
            MeshAxis(
                size,
                levels[number].latency,
                1.0 / levels[number].bandwidth if levels[number].bandwidth > 0 else 0.0,
            )
            for number, size in ((inner, node_size), (outer, num_nodes))
        )
        return cls(network.num_devices, node_size, inside, between)

    def submeshes(self) -> tuple[Submesh, ...]:
        """Return the submeshes that stages may have, smallest first.

        Powers of two inside of a node, the node, and powers of two of nodes ([1]_,
        ``get_submesh_choices``). NEST's runs stop at 128 devices; that cap is left out.
        """
        found = [Submesh(1, width) for width in _powers(self.node_size - 1)]
        nodes = _powers(self.num_devices // self.node_size)
        return (*found, *(Submesh(hosts, self.node_size) for hosts in nodes))

    def logical(self, submesh: Submesh, second: int) -> LogicalMesh:
        """Return a submesh with an axis of so many devices inside of nodes."""
        outer = self.inside if submesh.hosts == 1 else self.between
        return LogicalMesh(
            outer.of_size(submesh.size // second), self.inside.of_size(second)
        )

    def logical_meshes(self, submesh: Submesh) -> tuple[LogicalMesh, ...]:
        """Return its logical meshes: ``(n / mp, mp)``, and ``(n, 1)`` with free batch.

        ``mp`` divides what a node gives ([1]_, ``single_node_model_parallel``).
        """
        widths = [mp for mp in range(1, submesh.width + 1) if submesh.width % mp == 0]
        forced = [self.logical(submesh, mp) for mp in widths]
        return (*forced, forced[0]._replace(has_free_batch=True))


def _powers(most: int) -> list[int]:
    """Return the powers of two up to a number."""
    return [2**k for k in range(most.bit_length())]
