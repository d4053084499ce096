"""An instance of the published NEST artifact, read from its JSON file and checked.

Times of nodes are in the unit of the file; the artifact adds seconds of communication
to them, so a consistent file has seconds. Nodes are renumbered: everywhere in this
package a node is its position in the chain, and `NestInstance.ids` leads back.

The checks are those of the artifact, and that the graph is a chain, without which its
solver gives up. Keys that no cost depends on may be missing.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from topologies.errors import InputError
from topologies.input_file import Value, read_json


class ArtifactTraffic(NamedTuple):
    """One end of an edge, seen from the other."""

    node: int
    """Position of the node at the far end."""
    num_bytes: float
    """Traffic over the edge per microbatch and direction [byte]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChain:
    """The graph of one tensor-parallel width, nodes in the order of the chain."""

    tensor: int
    """Tensor-parallel width."""
    parameters: tuple[float, ...]
    """Parameters of each node [byte]."""
    activations: tuple[float, ...]
    """All outputs inside each node [byte]."""
    forward: tuple[float, ...]
    """Forward time of each node and microbatch [unit of the file]."""
    backward: tuple[float, ...]
    """Backward time of each node and microbatch [unit of the file]."""
    incoming: tuple[tuple[ArtifactTraffic, ...], ...]
    """Edges into each node, in the order of the file."""
    outgoing: tuple[tuple[ArtifactTraffic, ...], ...]
    """Edges out of each node, in the order of the file."""

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes."""
        return len(self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A fixed configuration that the file stores for comparison."""

    name: str
    """Name of the baseline."""
    num_layers: int
    """Transformer layers that are dealt out to the stages."""
    tensor: int
    """Tensor-parallel width."""
    pipeline: int
    """Number of stages."""
    data: int
    """Number of replicas."""
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
    """Devices of the cluster."""
    memory_bytes: float
    """Memory of one device [byte]."""
    num_microbatches: int
    """Microbatches of one batch, over all replicas."""
    bandwidths: tuple[float, ...]
    """Bandwidth of each level, from the inside out [byte/s]."""
    latencies: tuple[float, ...]
    """Latency of each level, from the inside out [s]."""
    group_sizes: tuple[int, ...]
    """Groups of the level below (devices at level 0) in one group of each level."""
    expert_parallel: int
    """Expert-parallel width."""
    context_parallel: int
    """Context-parallel width."""
    recompute: bool
    """Whether every stage but the last runs its forward pass again."""
    optimizer: str
    """Name of the optimizer: ``"SGD"`` or ``"Adam"``."""
    frequency: float
    """Cycles per unit of time; prices ZeRO and nothing else."""
    baselines: tuple[Baseline, ...] = ()
    """Plans by hand that the file compares with."""

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes, the same for all widths."""
        return len(self.ids)

    def devices_per_stage(self, tensor: int) -> int:
        """Return how many devices one stage takes without ZeRO."""
        return tensor * self.expert_parallel * self.context_parallel


MAX_FILE = 16 * 2**20
"""Longest file that is read [byte]."""

MAX_DEVICES = 10_000
"""Most devices of a cluster: the artifact's ``DEVICES_LIMIT``."""

MAX_NODES = 1_000
"""Most nodes of a graph: tables grow with its square; the largest published instance
has 97."""

MAX_LEVELS = 16
"""Most levels of a network."""

_EXPECTED = "an instance file of the NEST artifact, in JSON"

_FREQUENCY = 1.05e6
"""Cycles per millisecond at 1.05 GHz, the only value in the artifact's configs."""

_MANY = 2**31 - 1
"""Largest number that a C ``int`` holds."""

_Edges = Mapping[tuple[int, int], float]
"""(Source id, target id) -> traffic over the edge [byte]."""


def read_instance(path: Path) -> NestInstance:
    """Read and check an instance file.

    Raises
    ------
    InputError
        If the file cannot be read or something in it is wrong. The message starts
        with the file and the key.
    """
    try:
        return instance_of(read_json(path, expected=_EXPECTED, most_bytes=MAX_FILE))
    except InputError as error:
        raise error.at(str(path), ": ") from None


def instance_of(data: object) -> NestInstance:
    """Return the instance that parsed JSON describes; see `read_instance`."""
    file = Value(data)
    nodes = dict(_by_width(file["nodes"]))
    edges = dict(_by_width(file["edges"]))
    if nodes.keys() != edges.keys():
        raise InputError(
            "are not there for the same tensor-parallel widths as the nodes",
            where="edges",
            got=sorted(edges),
            expected=f"edges for the widths {sorted(nodes)}",
        )
    narrowest = min(nodes)
    tables = {t: _nodes(value) for t, value in sorted(nodes.items())}
    links = {t: _edges(edges[t], tables[narrowest]) for t in tables}
    for t in tables:
        _check_same("nodes", t, narrowest, tables)
        _check_same("edges", t, narrowest, links)
    ids = _chain_order(tables[narrowest], links[narrowest], f"edges.{narrowest}")
    return NestInstance(
        ids=ids,
        chains={t: _chain(t, ids, tables[t], links[t]) for t in tables},
        num_microbatches=int(file["mbsInBatch"].number(least=1)),
        expert_parallel=file["ep_degree"].whole(least=1, most=MAX_DEVICES),
        context_parallel=file["cp_degree"].whole(least=1, most=MAX_DEVICES),
        recompute=file["activationRecomputation"].flag(),
        optimizer=file["optimizerAlgorithm"].choice(("SGD", "Adam")),
        frequency=file.get("frequency", _FREQUENCY).number(least=1e-9),
        baselines=tuple(
            _baseline(name, value) for name, value in file.get("baselines", {}).items()
        ),
        **_network(file),
    )


def _by_width(table: Value) -> list[tuple[int, Value]]:
    """Return the graphs or edges of each tensor-parallel width."""
    graphs = []
    for key, value in table.items():
        if not (key.isascii() and key.isdigit() and 1 <= int(key[:9]) <= MAX_DEVICES):
            expected = f'a tensor-parallel width from "1" to "{MAX_DEVICES}"'
            raise InputError("is not a width", where=value.where, expected=expected)
        graphs.append((int(key), value))
    if len({width for width, _ in graphs}) < max(1, len(graphs)):
        raise table.error("names no width, or one twice", 'e.g. {"1": [...]}')
    return graphs


def _network(file: Value) -> dict[str, Any]:
    """Return the devices and levels of the network."""
    num_devices = file["maxDevices"].whole(least=1, most=MAX_DEVICES)
    sizes = file["devices_per_level"].each(
        lambda value: value.whole(least=1, most=_MANY), least=1
    )
    bandwidths = file["bws"].each(lambda value: value.number(least=1e-9), least=1)
    latencies = file["latency_per_level"].each(Value.number, least=1)
    if not len(sizes) == len(bandwidths) == len(latencies) <= MAX_LEVELS:
        raise InputError(
            "levels do not match",
            where="devices_per_level, bws, latency_per_level",
            got=(len(sizes), len(bandwidths), len(latencies)),
            expected=f"one entry for each level, at most {MAX_LEVELS}",
        )
    room = 1
    for size in sizes:
        room *= size
    if room < num_devices:
        raise InputError(
            "has no room for all devices",
            where="devices_per_level",
            got=list(sizes),
            expected=f"a product of at least maxDevices, {num_devices}",
        )
    return {
        "num_devices": num_devices,
        "memory_bytes": file["maxMemoryPerDevice"].number(least=1e-9),
        "group_sizes": sizes,
        "bandwidths": bandwidths,
        "latencies": latencies,
    }


def _nodes(value: Value) -> dict[int, tuple[float, ...]]:
    """Return id -> parameters, activations, forward, backward."""
    nodes: dict[int, tuple[float, ...]] = {}
    keys = ("parameterSize", "activationSize", "optimalLatencyFw", "optimalLatencyBw")
    rows = value.array(least=1)
    if len(rows) > MAX_NODES:
        raise value.error("has too many nodes", f"at most {MAX_NODES}")
    for row in rows:
        node = row["id"].whole(least=-_MANY, most=_MANY)
        if node in nodes:
            raise row["id"].error("is there twice", "ids that differ")
        nodes[node] = tuple(row[key].number() for key in keys)
    return nodes


def _edges(value: Value, nodes: Mapping[int, object]) -> dict[tuple[int, int], float]:
    """Return the edges of one width in the order of the file."""
    edges: dict[tuple[int, int], float] = {}
    for row in value.array():
        ends = []
        for key in ("sourceId", "destId"):
            node = row[key].whole(least=-_MANY, most=_MANY)
            if node not in nodes:
                raise row[key].error("is not the id of a node", "an id from nodes")
            ends.append(node)
        source, target = ends
        if source == target:
            raise row.error("is an edge from a node to itself", "two different nodes")
        if (source, target) in edges:
            raise row.error("is an edge that is there twice", "one edge for each pair")
        edges[source, target] = row["communicationCost"].number()
    return edges


def _check_same(
    name: str, t: int, narrowest: int, tables: Mapping[int, Mapping[Any, object]]
) -> None:
    """Refuse widths whose graphs differ in more than sizes and times."""
    different = sorted(tables[t].keys() ^ tables[narrowest].keys())
    if different:
        raise InputError(
            f"are not those of width {narrowest}",
            where=f"{name}.{t}",
            got=f"only one of them has {different[0]}",
            expected=f"the same {name} for every width",
        )


def _chain_order(
    nodes: Mapping[int, object], edges: _Edges, where: str
) -> tuple[int, ...]:
    """Return the ids in topological order, each joined to the next.

    Kahn's algorithm with a stack, as the artifact renumbers. In a chain the order is
    the only one.
    """
    waiting = dict.fromkeys(nodes, 0)
    targets: dict[int, list[int]] = {node: [] for node in nodes}
    for source, target in edges:
        waiting[target] += 1
        targets[source].append(target)
    ready = [node for node in nodes if waiting[node] == 0]
    order = []
    while ready:
        node = ready.pop()
        order.append(node)
        for target in targets[node]:
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    if len(order) < len(nodes):
        left = sorted(set(nodes) - set(order))
        raise InputError(
            "has a cycle",
            where=where,
            got=f"through some of {left[:8]}",
            expected="edges that lead from the first node to the last only",
        )
    for source, target in itertools.pairwise(order):
        if (source, target) not in edges:
            raise InputError(
                "is not a chain",
                where=where,
                got=f"no edge from {source} to {target}, its successor in the order",
                expected="nodes joined one after the other; more edges may skip some",
            )
    return tuple(order)


def _chain(
    tensor: int,
    ids: tuple[int, ...],
    nodes: Mapping[int, tuple[float, ...]],
    edges: _Edges,
) -> LayerChain:
    position = {node: i for i, node in enumerate(ids)}
    incoming: list[list[ArtifactTraffic]] = [[] for _ in ids]
    outgoing: list[list[ArtifactTraffic]] = [[] for _ in ids]
    for (source, target), num_bytes in edges.items():
        u, v = position[source], position[target]
        incoming[v].append(ArtifactTraffic(u, num_bytes))
        outgoing[u].append(ArtifactTraffic(v, num_bytes))
    columns = list(zip(*(nodes[node] for node in ids), strict=True))
    return LayerChain(
        tensor=tensor,
        parameters=columns[0],
        activations=columns[1],
        forward=columns[2],
        backward=columns[3],
        incoming=tuple(map(tuple, incoming)),
        outgoing=tuple(map(tuple, outgoing)),
    )


def _baseline(name: str, value: Value) -> Baseline:
    def count(part: Value) -> int:
        return part.whole(least=1, most=_MANY)

    return Baseline(
        name=name,
        num_layers=count(value["num_transformer_layers"]),
        tensor=count(value["t"]),
        pipeline=count(value["p"]),
        data=count(value["d"]),
        layer_partition=value.get("layer_partition", []).each(
            lambda part: part.whole(least=0, most=_MANY)
        ),
    )
