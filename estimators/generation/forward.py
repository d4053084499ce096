"""Time of one forward step of a replica, without what reads caches.

A step takes some tokens of each sequence through all layers, and the last one of each
to the output layer. Layers are the training model's (`estimators.layers.sharding`),
traced with one token to a sequence: their products, sums over ranks and exchanges. What
an engine does otherwise:

* Kernels follow each other in a graph, at least `KERNEL_TIME` each; residual sums,
  products with gates and the like are fused into the kernels beside them, and cost half
  of their traffic.
* A step of ``T`` tokens, each of which goes to ``k`` of ``E`` experts alike, wakes
  ``E (1 - (1 - k/E)^T)`` of them: that many weights are read.
* Ranks of a node add up by kernels of the engine (`estimators.generation.laws`), where
  these are quicker than the library.
* Logits are gathered, and sampled from; there is no loss.

Tokens of a step beyond the most that it takes (`EngineSetup.batched_tokens`) are
further steps, each of which takes as long as a full one.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from estimators.collectives.cost import (
    CollectiveRate,
    collective_rates,
    searched_algorithms,
)
from estimators.collectives.transports import collective_time
from estimators.generation.engine import EngineSetup
from estimators.generation.laws import all_reduce_curves, small_product_factor
from estimators.layers.sharding import layer_work
from estimators.layers.work import CollectiveWork, OperatorWork
from estimators.models.spec import TransformerSpec
from estimators.operators.roofline import OperatorModel
from estimators.operators.shape_tables import KERNEL_TIME
from estimators.platform import Platform
from estimators.software import IDEAL, Software
from estimators.tracing.graph import INDEX_SCORES, LayerGraph
from estimators.tracing.recurrences import RECURRENCES
from estimators.tracing.trace import trace_model
from estimators.training import NARROW_FORMATS, TrainingSpec
from topologies import InputError, Network
from topologies.arrays import FloatVector, IntArray

TOKENS = tuple(
    sorted({round(2 ** (i / 2)) for i in range(29)} | {3 * 2**i for i in range(13)})
)
"""Tokens of a step that are priced; between them time is a line."""

FUSED = frozenset(
    {"add", "multiply", "dropout", "concatenate", "repeat", "cumulative sum"}
)
"""Operations that engines fuse into others."""

FUSED_TRAFFIC = 0.5
"""Part of a fused operation's traffic that is left, assumed: one of a sum's two
operands, and of what it writes, stays on the chip."""

_MIXING = frozenset(
    {"attention", INDEX_SCORES, "state passing", "scan", "selective scan", *RECURRENCES}
)


class NodeTraffic(NamedTuple):
    """What ranks of a replica that are on several nodes send to each other."""

    operation: str
    """Name of the collective."""

    ranks: int
    """Ranks of a group."""

    stride: int
    """Ranks lie so far apart."""

    algorithm: str
    """Algorithm that its time is of."""

    bytes_per_token: float
    """Size of the full tensors of all layers, of a rank's token [byte]."""

    def groups(self, devices: IntArray) -> IntArray:
        """Return the groups of each replica, ``(replicas, groups, ranks)``.

        Parameters
        ----------
        devices
            Of each replica, ``(replicas, n)``.
        """
        blocks = devices.reshape(len(devices), -1, self.ranks, self.stride)
        return blocks.swapaxes(2, 3).reshape(len(devices), -1, self.ranks)


def mixes(work: OperatorWork) -> bool:
    """Return whether tokens of a sequence see each other in an operator.

    Then it reads caches, and `estimators.generation.caches` prices it.
    """
    is_product = work.kind == "matmul" and ".scan." in work.name
    return is_product or work.operation in _MIXING


def one_token(spec: TransformerSpec) -> TransformerSpec:
    """Return an architecture as an engine runs it, with one token to a sequence.

    Layers that predict later tokens are not run, and pictures have become tokens.
    """
    return replace(
        spec,
        sequence_length=1,
        mtp_num_layers=0,
        vision=None,
        documents="whole",
        document_length=0,
        document_length_sigma=0.0,
        document_length_samples=(),
        document_length_counts=(),
    )


def engine_software(software: Software) -> Software:
    """Return how an engine runs kernels: all of a step in one graph."""
    return replace(
        IDEAL,
        cuda_graphs="full_iteration",
        library=True,
        node_transports=software.node_transports,
        fabric_transport=software.fabric_transport,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ForwardTimes:
    """Forward steps of one model on one rank of an engine."""

    graph: LayerGraph
    """The model, traced with one token to a sequence."""

    platform: Platform
    """Device, and what its kernels and links reach, run by an engine."""

    network: Network
    """Where replicas are placed, side by side."""

    engine: EngineSetup
    """How a replica is split."""

    @classmethod
    def of(
        cls,
        spec: TransformerSpec,
        platform: Platform,
        network: Network,
        engine: EngineSetup,
    ) -> "ForwardTimes":
        """Build those of a model.

        Raises
        ------
        InputError
            If the engine cannot run it so, or the network is smaller than a replica.
        """
        engine.check(spec)
        if engine.num_devices > network.num_devices:
            raise InputError(
                "a replica has more devices than the network",
                where="engine",
                got=f"tp {engine.tp} x ep {engine.ep}",
                expected=f"at most {network.num_devices:,} devices",
            )
        software = engine_software(platform.software)
        return cls(
            graph=trace_model(one_token(spec)),
            platform=replace(platform, software=software, profile=None),
            network=network,
            engine=engine,
        )

    def layers_time(self, tokens: int) -> float:
        """Return the time of all layers but the last, of a rank's tokens [s]."""
        return sum(
            count * self._layer_time(kind, tokens)
            for kind, count in self._counts.items()
            if kind != self.graph.kinds[-1]
        )

    def head_time(self, sequences: int) -> float:
        """Return the time of the output layer and of sampling [s]."""
        return self._layer_time(self.graph.kinds[-1], sequences)

    @cached_property
    def tables(self) -> tuple[FloatVector, FloatVector, FloatVector]:
        """Tokens of a rank's step, and what layers and the head take, shape ``(T,)``.

        Up to the most tokens that a step takes [token, s, s].
        """
        most = self.engine.batched_tokens
        numbers = [number for number in TOKENS if number < most] + [most]
        layers = [self.layers_time(number) for number in numbers]
        heads = [self.head_time(number) for number in numbers]
        # A kernel that is quicker for more rows would take these.
        return (
            np.array(numbers, dtype=np.float64),
            np.maximum.accumulate(layers),
            np.maximum.accumulate(heads),
        )

    @cached_property
    def _counts(self) -> dict[int, int]:
        kinds = self.graph.kinds
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    def _layer_time(self, kind: int, tokens: int) -> float:
        work = layer_work(self.graph, kind, self.engine.degrees(tokens), 2)
        is_head = kind == self.graph.kinds[-1]
        return (
            sum(self._operator_time(item, is_head=is_head) for item in work.operators)
            + sum(
                self.collective_time(item) for item in work.collectives if not is_head
            )
            + (self._gathering_time(tokens) if is_head else 0.0)
        )

    def _operator_time(self, work: OperatorWork, *, is_head: bool) -> float:
        if mixes(work):
            return 0.0
        model = self.models[1 if is_head else 0]
        if work.kind == "memory":
            seconds = work.forward_bytes / model.memory_rate
            if work.operation in FUSED:
                return FUSED_TRAFFIC * seconds
            return max(KERNEL_TIME, seconds)
        if work.is_grouped:
            return model.operator_time(self._woken(work)).forward
        part = small_product_factor(
            self.platform.accelerator,
            "bf16" if is_head or not work.has_weight else self.engine.dtype,
            work.m,
        )
        return part * model.operator_time(work).forward

    def _woken(self, work: OperatorWork) -> OperatorWork:
        """Return the product of experts that some token was sent to."""
        spec = self.graph.spec
        chance = spec.moe_router_topk / spec.num_moe_experts
        tokens = work.m / chance
        woken = 1.0 - (1.0 - chance) ** max(tokens, 1.0)
        return work._replace(m=work.m / woken, batch=max(1.0, work.batch * woken))

    @cached_property
    def models(self) -> tuple[OperatorModel, OperatorModel]:
        """Operators of blocks, and those of the output layer, in 16 bits."""
        engine, platform = self.engine, self.platform
        peaks = platform.accelerator.peak_flops
        narrow = engine.dtype in NARROW_FORMATS
        plain = engine.dtype if not narrow else "bf16" if "bf16" in peaks else "fp16"
        job = TrainingSpec(global_batch_size=1, precision=plain)
        parts = platform.accelerator, platform.software, platform.constants
        head = OperatorModel.of(parts[0], job, *parts[1:])
        if not narrow:
            return head, head
        narrow_job = replace(job, matmul_precision=engine.dtype)
        blocks = OperatorModel.of(parts[0], narrow_job, *parts[1:])
        # Weights are there in the narrow format alone.
        return replace(blocks, weight_products=blocks.weight_products[1:]), head

    def _gathering_time(self, tokens: int) -> float:
        """Return what gathering logits of all tensor-parallel ranks takes [s]."""
        size = 2.0 * tokens * self.graph.spec.vocab_size
        return self._time("all_gather", self.engine.tp, 1, size)

    def collective_time(self, item: CollectiveWork) -> float:
        """Return the time of the collectives of a forward pass [s]."""
        if item.forward_count == 0:
            return 0.0
        engine = self.engine
        ranks = engine.degrees(1).group_size(item.group, item.operation)
        stride = engine.tp if item.group == "expert" else 1
        size = item.forward_bytes / item.forward_count
        return item.forward_count * self._time(item.operation, ranks, stride, size)

    def between_nodes(self) -> tuple[NodeTraffic, ...]:
        """Return what layers send from node to node, without the output layer."""
        sizes: dict[tuple[str, int, int], float] = {}
        degrees = self.engine.degrees(1)
        for kind, count in self._counts.items():
            if kind == self.graph.kinds[-1]:
                continue
            for item in layer_work(self.graph, kind, degrees, 2).collectives:
                ranks = degrees.group_size(item.group, item.operation)
                stride = self.engine.tp if item.group == "expert" else 1
                if item.forward_count and ranks * stride > node_size(self.network):
                    key = item.operation, ranks, stride
                    sizes[key] = sizes.get(key, 0.0) + count * item.forward_bytes
        return tuple(
            NodeTraffic(*key, _quickest(self.network, *key)[0], size)
            for key, size in sizes.items()
        )

    def _time(self, operation: str, ranks: int, stride: int, size: float) -> float:
        """Return the time of one collective of ranks that lie ``stride`` apart [s]."""
        if ranks == 1:
            return 0.0
        platform, span = self.platform, ranks * stride
        bandwidth = platform.accelerator.interconnect_bandwidth
        inside = span <= node_size(self.network)
        transport = platform.transport(inside_node=inside, num_ranks=span)
        if inside:
            time = collective_time(transport, operation, ranks, size, bandwidth)
            curves = all_reduce_curves(platform.accelerator.constants_name)
            if curves is not None:
                quick = curves.time(operation, ranks, size, bandwidth)
                time = time if quick is None else min(time, quick)
            return time
        _, rate = _quickest(self.network, operation, ranks, stride)
        return transport.latency(operation, ranks) + rate.time(size)


def node_size(network: Network) -> int:
    """Return the devices of a node, or of what joins neighbours most closely."""
    return network.block_sizes[0] if network.rules is None else network.rules.node_size


@lru_cache(maxsize=256)
def _quickest(
    network: Network, operation: str, ranks: int, stride: int
) -> tuple[str, CollectiveRate]:
    """Return algorithm and rate over real links, all groups of a replica at a time."""
    span = ranks * stride
    groups = np.arange(span).reshape(ranks, stride).T[None]
    names = ("direct",) if operation == "all_to_all" else searched_algorithms(network)
    rates = [collective_rates(network, operation, groups, name)[0] for name in names]
    return min(zip(names, rates, strict=True), key=lambda named: named[1].time(2.0**20))
