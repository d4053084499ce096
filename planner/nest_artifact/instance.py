"""An instance of the published NEST artifact: what its solver is given.

Times of nodes are in the unit of the file; the artifact adds seconds of communication
to them, so a consistent file has seconds. Nodes are renumbered: everywhere in this
package a node is its position in the chain, and `NestInstance.ids` leads back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Traffic(NamedTuple):
    """One end of an edge, seen from the other."""

    node: int
    """Position of the node at the far end."""
    num_bytes: float
    """Sent over the edge per microbatch and direction [byte]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChain:
    """The graph of one tensor-parallel width, nodes in the order of the chain."""

    tensor: int
    """Tensor-parallel width."""
    parameters: tuple[float, ...]
    """Of each node [byte]."""
    activations: tuple[float, ...]
    """All outputs inside each node [byte]."""
    forward: tuple[float, ...]
    """Of each node and microbatch [unit of the file]."""
    backward: tuple[float, ...]
    """Of each node and microbatch [unit of the file]."""
    incoming: tuple[tuple[Traffic, ...], ...]
    """Edges into each node, in the order of the file."""
    outgoing: tuple[tuple[Traffic, ...], ...]
    """Edges out of each node, in the order of the file."""

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes."""
        return len(self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A fixed configuration that the file stores for comparison."""

    name: str
    num_layers: int
    """Transformer layers that are dealt out to the stages."""
    tensor: int
    pipeline: int
    data: int
    layer_partition: tuple[int, ...] = ()
    """Layers of each stage, first to last; empty: as even as rounding up allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NestInstance:
    """A problem of the artifact: graphs, devices, network, batch."""

    ids: tuple[int, ...]
    """Node ids of the file, in the order of the chain."""
    chains: Mapping[int, LayerChain]
    """Tensor-parallel width -> graph, narrowest first."""
    num_devices: int
    memory_bytes: float
    """Of one device [byte]."""
    num_microbatches: int
    """Of one batch, over all replicas."""
    bandwidths: tuple[float, ...]
    """Of each level, from the inside out [byte/s]."""
    latencies: tuple[float, ...]
    """Of each level [s]."""
    group_sizes: tuple[int, ...]
    """Groups of the level below (devices at level 0) in one group of each level."""
    expert_parallel: int
    context_parallel: int
    recompute: bool
    """Whether every stage but the last runs its forward pass again."""
    optimizer: str
    """``"SGD"`` or ``"Adam"``."""
    frequency: float
    """Cycles per unit of time; prices ZeRO and nothing else."""
    baselines: tuple[Baseline, ...] = ()

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes, the same for all widths."""
        return len(self.ids)

    def devices_per_stage(self, tensor: int) -> int:
        """Return how many devices one stage takes without ZeRO."""
        return tensor * self.expert_parallel * self.context_parallel
