"""From devices to rates: what collectives and transfers cost at each stage.

All groups of one kind, of all stages and replicas, are priced as communicating at the
same time, so that groups that share links share them in the price. In-layer groups
and gradients are priced at the slowest group of a stage; boundaries replica by replica,
all replicas of a boundary sending at the same time in either direction.

`planner.search.bounds` and `planner.search.placements` fill the same types with
bounds.

References
----------
.. [1] Transformer Engine, ``initialize_ub`` of ``transformer_engine/pytorch/module/
   base.py``: the ranks of a tensor-parallel group exchange buffers that each maps from
   the others' memory, which those of one NVLink domain can.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from estimators.collectives.cost import (
    collective_rates,
    rates_by_algorithm,
    searched_algorithms,
)
from estimators.collectives.messages import level_shapes, slowest_edges
from estimators.collectives.phases import RING_OPERATIONS
from planner.cost.groups import StageGroups
from planner.kernels import tables as columns
from planner.step.offload import HostRates, host_rates
from topologies import Network
from topologies.arrays import BoolArray, FloatArray, IntArray


def widest_overlap(network: Network) -> int:
    """Return the most tensor-parallel ranks whose collectives products can hide [1]_.

    Those of a node; where nothing tells nodes apart, as in tori, all.
    """
    return network.num_devices if network.rules is None else network.rules.node_size


def can_overlap(network: Network, groups: IntArray) -> BoolArray:
    """Return whether products can hide what groups of each stage send [1]_.

    Parameters
    ----------
    network
        The cluster.
    groups
        Devices of tensor-parallel groups, shape ``(stages, groups, members)``.
    """
    nodes = groups // widest_overlap(network)
    return np.asarray((nodes == nodes[..., :1]).all(axis=(1, 2)))


Rates = Mapping[str, FloatArray]
"""Operation -> latency [s] and inverse bandwidth [s/byte] of each stage, ``(p, 2)``."""


class AlgorithmChoice(NamedTuple):
    """A collective algorithm, or what it is chosen by."""

    name: str
    """Name of the algorithm, one of
    `estimators.collectives.cost.ALGORITHM_NAMES`, or ``"auto"``: the cheapest of
    `searched_algorithms`, as NCCL chooses by size."""
    num_bytes: float
    """Typical size of the full tensor that ``"auto"`` goes by [byte]."""


class StageRates(NamedTuple):
    """The rates of a placement, or bounds of them, as the split reads them."""

    rows: FloatArray
    """Distinct rows of rates, shape ``(sig, R)``; columns as in
    `planner.kernels.tables`."""
    signature: IntArray
    """Number of each stage's row of rates, first to last, shape ``(p,)``."""
    group_sizes: FloatArray
    """Number of ranks of each sharding option."""
    boundary: FloatArray
    """Latency [s] and inverse bandwidth [s/byte] of the boundary after each stage, the
    mean of both directions, by replica, shape ``(p, d, 2)``."""
    tied: FloatArray
    """Latency [s] and inverse bandwidth [s/byte] of an all-reduce between the first and
    the last stage, shape ``(2,)``."""
    senders: FloatArray
    """Number of ranks that each sharding option sends shards from one by one, where
    software does; in bounds of several placements at most as many as any of them."""


class ShardingRates(NamedTuple):
    """Rates of one way to share ZeRO's shards."""

    group_size: int
    """Data-parallel ranks that share the shards."""
    inside: Rates
    """Rates of all-gather and reduce-scatter among the ranks that share shards."""
    across: Rates
    """Rates of an all-reduce of a shard among the ranks that hold the same one; 0 if
    nobody else does."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacementRates:
    """Latency [s] and inverse bandwidth [s/byte] of a placement, by stage."""

    tensor: Rates
    """Rates of tensor-parallel collectives, per byte of the full tensor."""

    hides_tensor: BoolArray
    """Whether products can hide tensor-parallel collectives, if the framework does so,
    shape ``(p,)``."""

    context: FloatArray
    """Latency [s] and inverse bandwidth [s/byte] of one hop of the context-parallel
    ring, shape ``(p, 2)``."""

    context_pass: FloatArray
    """Latency [s] and inverse bandwidth [s/byte] of an all-gather or reduce-scatter
    over context-parallel ranks, per byte of the full tensor, shape ``(p, 2)``."""

    context_exchange: FloatArray
    """Latency [s] and inverse bandwidth [s/byte] of an all-to-all of context-parallel
    ranks, per byte that a rank holds, shape ``(p, 2)``."""

    expert: FloatArray
    """Latency [s] and inverse bandwidth [s/byte] of an all-to-all of expert-parallel
    ranks, per byte that a rank holds, shape ``(p, 2)``."""

    expert_tensor: FloatArray
    """Latency [s] and inverse bandwidth [s/byte] of an all-gather or reduce-scatter
    over the ranks that share each expert, per byte of the full tensor, shape ``(p,
    2)``; 0 where those are tensor-parallel groups."""

    data: Rates
    """Rates of collectives over the replicas of dense parameters."""

    expert_data: Rates
    """Rates of collectives over the replicas of experts."""

    shardings: tuple[ShardingRates, ...]
    """Ways to share ZeRO's shards; the first is the whole group."""

    activation: FloatArray
    """Latency [s] and inverse bandwidth [s/byte] of activations over the boundary after
    each stage, per byte of a rank, by replica, shape ``(p, d, 2)``; the last one is the
    wrap-around to the first stage."""

    gradient: FloatArray
    """Latency [s] and inverse bandwidth [s/byte] of gradients back over the boundary
    after each stage, per byte of a rank, by replica, shape ``(p, d, 2)``; the last one
    is the wrap-around to the first stage."""

    tied: FloatArray
    """Latency [s] and inverse bandwidth [s/byte] of an all-reduce between the first and
    the last stage, shape ``(2,)``."""

    tensor_algorithm: str
    """Algorithm of the tensor-parallel collectives."""

    gradient_algorithm: str
    """Algorithm of the data-parallel collectives."""

    host: HostRates
    """What the host link costs each device."""

    node_size: int
    """Devices of a node; all of them where nothing tells nodes apart."""

    @cached_property
    def signatures(self) -> tuple[FloatArray, IntArray]:
        """The distinct rows of `packed`, and which one each stage has."""
        packed = self.packed()
        if (packed == packed[0]).all():
            return packed[:1], np.zeros(len(packed), dtype=np.int64)
        rows, signature = np.unique(packed, axis=0, return_inverse=True)
        return rows, signature.ravel()

    @cached_property
    def of_stages(self) -> tuple[bytes, ...]:
        """All rates of each stage but those of its boundaries, equal if alike."""
        many = [self.tensor, self.data, self.expert_data]
        many += [rates for way in self.shardings for rates in (way.inside, way.across)]
        rows = [
            self.hides_tensor[:, None],
            self.context,
            self.context_pass,
            self.context_exchange,
            self.expert,
            self.expert_tensor,
            *(row for rates in many for row in rates.values()),
        ]
        return tuple(row.tobytes() for row in np.concatenate(rows, axis=1))

    @cached_property
    def group_sizes(self) -> FloatArray:
        """Ranks of each sharding option."""
        return np.array([float(option.group_size) for option in self.shardings])

    @cached_property
    def stage_rates(self) -> StageRates:
        """What the split reads."""
        boundary = 0.5 * (self.activation + self.gradient)
        sizes = self.group_sizes
        return StageRates(*self.signatures, sizes, boundary, self.tied, sizes)

    def packed(self) -> FloatArray:
        """Return the rates as the kernels read them, one row per stage."""
        num_stages = len(self.context)
        packed = np.zeros(
            (num_stages, columns.NUM_FIXED_RATES + 4 * len(self.shardings))
        )
        pairs = {
            columns.TENSOR_REDUCE: self.tensor["all_reduce"],
            columns.TENSOR_PASS: self.tensor["all_gather"],
            columns.CONTEXT: self.context,
            columns.CONTEXT_PASS: self.context_pass,
            columns.CONTEXT_EXCHANGE: self.context_exchange,
            columns.EXPERT: self.expert,
            columns.EXPERT_TENSOR: self.expert_tensor,
            columns.DENSE_REDUCE: self.data["all_reduce"],
            columns.EXPERT_REDUCE: self.expert_data["all_reduce"],
            columns.EXPERT_PASS: self.expert_data["all_gather"],
        }
        for option, sharding in enumerate(self.shardings):
            inside = columns.SHARD_PASS + 4 * option
            pairs[inside] = sharding.inside["all_gather"]
            pairs[inside + 2] = sharding.across["all_reduce"]
        for column, rates in pairs.items():
            packed[:, column : column + 2] = rates
        return packed


class AlgorithmChooser(NamedTuple):
    """Chooses algorithms by what an all-reduce costs each stage, ``(p, 2)``."""

    tensor: Mapping[str, FloatArray]
    """Algorithm -> latency [s] and inverse bandwidth [s/byte] of a tensor-parallel
    all-reduce at each stage, shape ``(p, 2)``."""
    gradient: Mapping[str, FloatArray]
    """Algorithm -> latency [s] and inverse bandwidth [s/byte] of a data-parallel
    all-reduce at each stage, shape ``(p, 2)``."""

    def names(
        self, tensor: AlgorithmChoice, gradient: AlgorithmChoice
    ) -> tuple[str, str]:
        """Return the algorithms of tensor and of data collectives."""
        return _cheapest(self.tensor, tensor), _cheapest(self.gradient, gradient)


class PricedGrid:
    """A placement's rates under every algorithm, worked out when asked for.

    Micro-batch size and virtual stages change which algorithm is chosen, not what it
    costs: configurations that differ in those alone share one of these.

    Parameters
    ----------
    network
        The cluster.
    groups
        Devices, and the groups that they form.
    sharding_sizes
        As for `placement_rates`.
    aligned
        Whether of these only sizes are priced that divide the ranks of each block, or
        that these divide.
    """

    def __init__(
        self,
        network: Network,
        groups: StageGroups,
        sharding_sizes: Sequence[int] = (),
        *,
        aligned: bool = False,
    ) -> None:
        pp, dp, ep, cp, tp = groups.grid.shape
        ranks = groups.grid.reshape(pp, dp * ep, cp * tp)
        self.network, self.num_stages = network, pp
        self._sharding_sizes = _sharding_parts(
            network, groups.dense(), sharding_sizes, aligned=aligned
        )
        self._searched = searched_algorithms(network)
        self._tensor_groups = groups.tensor()
        self._tensor = _by_algorithm(network, self._tensor_groups)
        self._hides_tensor = can_overlap(network, self._tensor_groups)
        self._dense = groups.dense()
        self._data = _by_algorithm(network, self._dense)
        self._experts = groups.expert_data() if groups.spreads_experts else None
        self._context = _hop_rates(network, groups.rings())
        self._context_exchange = _all_to_all_rates(network, groups.exchanges())
        self._expert = _all_to_all_rates(network, groups.experts())
        self._gathering = _gathering_groups(groups)
        self._activation = _boundary_rates(network, ranks, np.roll(ranks, -1, axis=0))
        self._gradient = _boundary_rates(network, np.roll(ranks, -1, axis=0), ranks)
        self._tied = _tied_rate(network, ranks)
        self._chosen: dict[tuple[str, str], PlacementRates] = {}

    def rates(
        self, tensor: AlgorithmChoice, gradient: AlgorithmChoice
    ) -> PlacementRates:
        """Return the rates under the algorithms chosen, made once for each choice."""
        self._name(self._tensor, self._tensor_groups, tensor)
        self._name(self._data, self._dense, gradient)
        names = self.chooser().names(tensor, gradient)
        if names not in self._chosen:
            self._chosen[names] = self._assemble(*names)
        return self._chosen[names]

    def chooser(self) -> "AlgorithmChooser":
        """Return what tells which algorithms are chosen, without the rest."""
        return AlgorithmChooser(
            *(
                {name: rates[name]["all_reduce"] for name in self._searched}
                for rates in (self._tensor, self._data)
            )
        )

    def _name(
        self, priced: dict[str, Rates], groups: IntArray, choice: AlgorithmChoice
    ) -> None:
        """Price groups under an algorithm that the search does not try."""
        if choice.name != "auto" and choice.name not in priced:
            priced[choice.name] = group_rates(self.network, groups, choice.name)

    def _assemble(self, tensor: str, gradient: str) -> PlacementRates:
        data = expert_data = self._data[gradient]
        experts = self._experts
        if experts is not None:
            expert_data = group_rates(self.network, experts, gradient)
        context_pass, expert_tensor = (
            group_rates(self.network, members, tensor)["all_gather"]
            for members in self._gathering
        )
        return PlacementRates(
            tensor=self._tensor[tensor],
            hides_tensor=self._hides_tensor,
            context=self._context,
            context_pass=context_pass,
            context_exchange=self._context_exchange,
            expert=self._expert,
            expert_tensor=expert_tensor,
            data=data,
            expert_data=expert_data,
            shardings=_shardings(
                self.network,
                self._dense,
                gradient,
                data,
                self._sharding_sizes if experts is None else (),
            ),
            activation=self._activation,
            gradient=self._gradient,
            tied=self._tied,
            tensor_algorithm=tensor,
            gradient_algorithm=gradient,
            host=host_rates(self.network.host),
            node_size=widest_overlap(self.network),
        )


def placement_rates(
    network: Network,
    groups: StageGroups,
    *,
    tensor: AlgorithmChoice,
    gradient: AlgorithmChoice,
    sharding_sizes: Collection[int] = (),
) -> PlacementRates:
    """Price a placement.

    Parameters
    ----------
    network
        The cluster.
    groups
        Devices, and the groups that they form.
    tensor, gradient
        How the tensor-parallel and the data-parallel collectives are done.
    sharding_sizes
        Sizes of sharding groups that are priced beside those that blocks of the network
        lead to.
    """
    priced = PricedGrid(network, groups, tuple(sorted(sharding_sizes)))
    return priced.rates(tensor, gradient)


def _gathering_groups(groups: StageGroups) -> tuple[IntArray, IntArray]:
    """Return the groups that gather keys and values, and rows of experts.

    Groups of one where they are not gathered, or where tensor-parallel groups do it.
    """
    alone = groups.grid.reshape(len(groups.grid), -1, 1)
    gathers = groups.grouping.cp_comm_type == "all_gather"
    return (
        groups.context() if gathers else alone,
        groups.expert_tensor() if groups.grouping.etp else alone,
    )


def group_rates(
    network: Network, groups: IntArray, algorithm: str
) -> Mapping[str, FloatArray]:
    """Return ``(stages, 2)`` rates of each operation for groups of given shape.

    ``groups`` has shape ``(stages, groups, n)``.
    """
    if groups.shape[2] == 1:
        return free_rates(groups.shape[0])
    return _equal_halves(rates_by_algorithm(network, groups, (algorithm,))[algorithm])


def free_rates(num_stages: int) -> dict[str, FloatArray]:
    """Return the rates of groups of one."""
    return dict.fromkeys(RING_OPERATIONS, np.zeros((num_stages, 2)))


def _by_algorithm(network: Network, groups: IntArray) -> dict[str, Rates]:
    if groups.shape[2] == 1:
        return dict.fromkeys(searched_algorithms(network), free_rates(groups.shape[0]))
    priced = rates_by_algorithm(network, groups)
    return {algorithm: _equal_halves(rates) for algorithm, rates in priced.items()}


def _equal_halves(rates: Rates) -> Rates:
    """Price all-gather and reduce-scatter, which mirror each other, at the dearer.

    They differ only where stages have unlike phases, which then meet in another order.
    """
    larger = np.maximum(rates["all_gather"], rates["reduce_scatter"])
    return {**rates, "all_gather": larger, "reduce_scatter": larger}


def _cheapest(reduces: Mapping[str, FloatArray], choice: AlgorithmChoice) -> str:
    """Return the algorithm that the slowest stage fares best with; ties the first."""
    if choice.name != "auto":
        return choice.name

    def slowest(name: str) -> float:
        rates = reduces[name]
        return float((rates[:, 0] + rates[:, 1] * choice.num_bytes).max())

    return min(reduces, key=slowest)


def _shardings(
    network: Network,
    groups: IntArray,
    algorithm: str,
    whole: Rates,
    parts: Sequence[int],
) -> tuple[ShardingRates, ...]:
    """Return the whole group, and parts of it, each of ranks that follow each other."""
    num_stages, num_groups, size = groups.shape
    options = [ShardingRates(size, whole, free_rates(num_stages))]
    for part in parts:
        members = np.sort(groups, axis=2).reshape(num_stages, num_groups, -1, part)
        inside = group_rates(network, members.reshape(num_stages, -1, part), algorithm)
        across = np.swapaxes(members, 2, 3).reshape(num_stages, -1, size // part)
        options.append(
            ShardingRates(part, inside, group_rates(network, across, algorithm))
        )
    return tuple(options)


def _sharding_parts(
    network: Network, groups: IntArray, asked: Sequence[int], *, aligned: bool
) -> tuple[int, ...]:
    """Return the ranks of every group in each block of the network, and sizes asked.

    ``aligned`` ones only: those that blocks are filled by, or that fill blocks.
    """
    size, even = groups.shape[2], sharding_sizes(groups, network.block_sizes)
    return even + tuple(
        part
        for part in asked
        if 1 < part < size
        and size % part == 0
        and part not in even
        and not (aligned and any(part % each and each % part for each in even))
    )


def sharding_sizes(groups: IntArray, block_sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of ranks that every group has in each block, if it is even.

    ``groups`` has shape ``(stages, groups, n)``; sizes 1 and ``n`` are left out.
    """
    size = groups.shape[2]
    ordered = np.sort(groups.reshape(1, -1, size), axis=2)
    shape = level_shapes(ordered, np.array(block_sizes, dtype=np.int64))[0]
    inside = np.cumprod(shape[shape > 0]).tolist()
    return tuple(part for part in inside if part < size)


def _hop_rates(network: Network, groups: IntArray) -> FloatArray:
    """Price a hop of rings of shape ``(stages, groups, n)``, all turning at once."""
    num_stages, _, size = groups.shape
    if size == 1:
        return np.zeros((num_stages, 2))
    following = np.roll(groups, -1, axis=2)
    return _slowest(network, groups, following)


def _all_to_all_rates(network: Network, groups: IntArray) -> FloatArray:
    """Price an all-to-all: a rank sends ``1 / n`` of what it holds to each other."""
    num_stages, _, size = groups.shape
    if size == 1:
        return np.zeros((num_stages, 2))
    members = np.ascontiguousarray(groups, dtype=np.int64)
    return _exchange_rates(network, members.shape, members.tobytes())


@lru_cache(maxsize=128)
def _exchange_rates(
    network: Network, shape: tuple[int, int, int], members: bytes
) -> FloatArray:
    """Price the all-to-alls of some groups, which many placements have in common.

    It meets all pairs of a group: the dearest of what a placement costs.
    """
    groups = np.frombuffer(members, dtype=np.int64).reshape(shape)
    pairs = (*shape, shape[2])
    senders = np.broadcast_to(groups[..., :, None], pairs)
    receivers = np.broadcast_to(groups[..., None, :], pairs)
    rates = np.asarray(_slowest(network, senders, receivers) / (1.0, shape[2]))
    rates.flags.writeable = False
    return rates


def _slowest(network: Network, senders: IntArray, receivers: IntArray) -> FloatArray:
    """Price messages sent at once; return the slowest of each stage (first axis)."""
    shape = (1, len(senders), -1)
    edges = slowest_edges(network, senders.reshape(shape), receivers.reshape(shape))
    return np.asarray(edges[0])


def _boundary_rates(
    network: Network, senders: IntArray, receivers: IntArray
) -> FloatArray:
    """Price the transfers of each boundary, all replicas and ranks at the same time.

    Different boundaries are priced apart: the schedule staggers them. Shape
    ``(p, d, 2)``: the slowest rank of each replica.
    """
    num_stages, num_replicas, _ = senders.shape
    if num_stages == 1:
        return np.zeros((1, num_replicas, 2))
    return slowest_edges(network, senders, receivers)


def _tied_rate(network: Network, ranks: IntArray) -> FloatArray:
    if ranks.shape[0] == 1:
        return np.zeros(2)
    pairs = np.stack([ranks[0].ravel(), ranks[-1].ravel()], axis=1)
    return np.array(collective_rates(network, "all_reduce", pairs[None], "ring")[0])
