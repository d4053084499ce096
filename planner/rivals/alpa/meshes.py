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

How each operator may be split along one axis of a mesh, and the states in between.

A tensor is in one of four states along an axis: whole on every device, split along the
batch, along its features (heads, hidden or ffn size), or by experts. A strategy takes
its operator's tensors in one state and leaves them in one:

==============  =======  ========  ==========================================
strategy        enters   leaves    what it sends, beside what gradients need
==============  =======  ========  ==========================================
``data``        batch    batch     all-reduce of weight gradients, once a step
``column``      whole    features  all-reduce of the input's gradient
``row``         features whole     all-reduce of the result
``shard``       batch    batch     weights gathered twice, gradients scattered
``replicated``  whole    whole     nothing
``features``    features features  nothing (softmax statistics for a loss)
``expert``      experts  experts   all-reduce among copies of an expert
==============  =======  ========  ==========================================

All of them but the last one are Alpa's ([1]_, table 3, with the batch and one feature
dimension for the letters; ``shard`` is ZeRO-3 [2]_); ``expert`` is the extension of the
NEST paper's Alpa-E to routed experts, whose tokens travel by the all-to-all between the
states.

References
----------
.. [1] Zheng et al., "Alpa", OSDI 2022, sections 4 and 5, and its public source.
.. [2] Rajbhandari et al., "ZeRO", SC 2020.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import TracedOperator
from planner.rivals.protocol import node_levels
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
        levels, (node_size, inner, outer) = network.levels, node_levels(network)
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
        inside = [Submesh(1, width) for width in _powers(self.node_size - 1)]
        nodes = _powers(self.num_devices // self.node_size)
        return (*inside, *(Submesh(hosts, self.node_size) for hosts in nodes))

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


WHOLE, BATCH, FEATURES, EXPERTS = range(4)
"""States of a tensor along an axis."""

STATES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "data": (BATCH, BATCH),
        "column": (WHOLE, FEATURES),
        "row": (FEATURES, WHOLE),
        "shard": (BATCH, BATCH),
        "replicated": (WHOLE, WHOLE),
        "features": (FEATURES, FEATURES),
        "expert": (EXPERTS, EXPERTS),
    }
)
"""Strategy -> states in which it takes and leaves tensors."""

SHARES_BATCH = frozenset({"data", "shard", "expert"})
"""Strategies whose devices have a part of the sequences each."""

SHARES_WEIGHTS = frozenset({"column", "row", "shard", "expert"})
"""Strategies whose devices keep a part of the weights each."""

_WHOLE_TOKENS = frozenset({"norm", "top-k", "dispatch", "combine"})
"""Operators that read all features of a token, or tokens and their weights."""


class MeshCase(NamedTuple):
    """What the shardings of a stage's layers depend on, beside the layers."""

    mesh: LogicalMesh
    """Logical mesh of the stage."""

    sequences: int
    """Sequences of a microbatch, all devices of the stage together."""

    num_microbatches: int
    """Microbatches of a step: what is sent once a step costs each its part."""

    ep: int = 1
    """Devices of the first axis that share the experts, where they do."""

    plan: str = ""
    """What a plan could say that the strategies are kept to: replicas on the first
    axis, experts shared or not, and on the second axis ``"tensor"`` parallelism or
    replicas (``"data"``); empty for all strategies."""

    recompute: str = "none"
    """Recompute mode of the stage."""


class OperatorStrategy(NamedTuple):
    """A strategy on each axis."""

    first: str
    """Strategy on the first axis; ``"replicated"`` if that has one device."""
    second: str
    """Strategy on the second axis; ``"replicated"`` if that has one device."""

    @property
    def name(self) -> str:
        """Both in a word."""
        return f"{self.first}|{self.second}"

    @property
    def entering(self) -> tuple[int, int]:
        """States in which tensors enter."""
        return STATES[self.first][0], STATES[self.second][0]

    @property
    def leaving(self) -> tuple[int, int]:
        """States in which tensors leave."""
        return STATES[self.first][1], STATES[self.second][1]


def hidden_states(case: MeshCase) -> tuple[tuple[int, int], ...]:
    """Return the states that hidden states may have between layers."""
    first, second = case.mesh.axes
    outer = [BATCH] if not case.mesh.has_free_batch else [WHOLE, BATCH, FEATURES]
    inner = [WHOLE, BATCH, FEATURES]
    return tuple(
        (x, y)
        for x in (outer if first.size > 1 else [WHOLE])
        for y in (inner if second.size > 1 else [WHOLE])
        if _divides_batch(case, x == BATCH, y == BATCH)
    )


def _divides_batch(case: MeshCase, *splits: bool) -> bool:
    """Tell whether the axes that split the batch divide a microbatch's sequences."""
    sizes = zip(case.mesh.axes, splits, strict=True)
    return (
        case.sequences % math.prod(axis.size for axis, is_split in sizes if is_split)
        == 0
    )


def operator_strategies(
    spec: TransformerSpec, operator: TracedOperator, case: MeshCase
) -> tuple[OperatorStrategy, ...]:
    """Return the strategies of an operator, in the order in which ties are broken."""
    first, second = case.mesh.axes
    outer = _first_axis(spec, operator, case) if first.size > 1 else ["replicated"]
    inner = _second_axis(spec, operator, case) if second.size > 1 else ["replicated"]
    return tuple(
        OperatorStrategy(x, y)
        for x in outer
        for y in inner
        if _divides_batch(case, x in SHARES_BATCH, y in SHARES_BATCH)
    )


def _first_axis(
    spec: TransformerSpec, operator: TracedOperator, case: MeshCase
) -> list[str]:
    axis = case.mesh.first
    if case.mesh.has_free_batch:
        return _every(spec, operator, axis, case.ep)
    strategies = ["data"]
    if _has_weights(operator):
        strategies.append("shard")
    if case.ep > 1 and _is_expert(operator):
        return ["expert"] if case.plan else [*strategies, "expert"]
    if case.ep > 1 and _passes_on(operator):
        strategies.append("expert")
    return strategies


def _second_axis(
    spec: TransformerSpec, operator: TracedOperator, case: MeshCase
) -> list[str]:
    axis = case.mesh.second
    if case.plan == "data":
        return ["data", "shard"] if _has_weights(operator) else ["data"]
    divides = spec.num_moe_experts > 0 and spec.num_moe_experts % axis.size == 0
    experts = axis.size if divides and not case.plan else 1
    strategies = _every(spec, operator, axis, experts)
    if case.plan and operator.sharding:
        kept = {"column", "row", "features"}
        strategies = [
            strategy for strategy in strategies if strategy in kept
        ] or strategies
    return strategies


def _every(
    spec: TransformerSpec, operator: TracedOperator, axis: MeshAxis, ep: int
) -> list[str]:
    """Return all strategies of an operator on an axis."""
    strategies = ["data"]
    if _has_weights(operator):
        strategies += _divided(spec, operator, axis.size)
        strategies += ["shard", "replicated"]
    elif _has_features(spec, operator, axis.size):
        strategies += ["features", "replicated"]
    else:
        strategies += ["replicated"]
    if ep > 1 and (_is_expert(operator) or _passes_on(operator)):
        strategies.append("expert")
    return strategies


def _has_features(spec: TransformerSpec, operator: TracedOperator, size: int) -> bool:
    """Tell whether an operator without weights goes by heads or features alone."""
    if operator.operation in {"attention", "matmul"}:
        return splits_heads(spec, size)
    return operator.operation not in _WHOLE_TOKENS


def _divided(spec: TransformerSpec, operator: TracedOperator, size: int) -> list[str]:
    """Return the ways in which a weight may be split; vocabularies are padded."""
    if operator.operation == "embedding":
        return ["column", "row"] if spec.hidden_size % size == 0 else ["row"]
    _, columns, inner, _ = operator.dims
    by_column = columns % size == 0 or operator.sharding == "vocab"
    if operator.sharding == "qkv":
        by_column = splits_heads(spec, size)
    return ["column"] * by_column + ["row"] * (inner % size == 0)


def splits_heads(spec: TransformerSpec, size: int) -> bool:
    """Tell whether heads and query groups go evenly on so many devices."""
    heads = spec.num_attention_heads % size == 0
    groups = spec.num_query_groups
    return heads and (groups % size == 0 or size % groups == 0)


def _has_weights(operator: TracedOperator) -> bool:
    return operator.operation in {"linear", "embedding"}


def _is_expert(operator: TracedOperator) -> bool:
    return operator.sharding.startswith("expert")


def _passes_on(operator: TracedOperator) -> bool:
    """Tell whether it works on every element, wherever that is."""
    others = {"attention", "matmul", "linear", "embedding", "cross entropy", "softmax"}
    return operator.operation not in others | _WHOLE_TOKENS
