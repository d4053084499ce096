"""Where stages, replicas and groups stand: nestings over device numbers.

A placement is a sequence of factors, innermost first; a factor gives one parallel
dimension, or a part of it, a stride over device numbers. Tensor parallelism is always
innermost with stride 1. Context, expert, data and pipeline parallelism follow in any
order (``dp`` here counts the replicas of each expert; times ``ep`` it is the
data-parallel size). Data and pipeline parallelism may each be split once into an inner
part that fills a block of the network and an outer part, as long as another dimension
is still to be placed, between them or outside: pipelines inside a node and replicas
across, the reverse, or half of one inside the other. Once per placement the extent may
be padded to the size of a block, leaving devices idle to avoid a slow link.

`PlacementBounds` bounds the rates of a placement by what must leave the blocks of a
tree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from estimators.training import ParallelismConfig
from planner.cost.choices import MemoryChoice
from planner.cost.groups import StageGroups
from planner.cost.rates import PlacementRates, StageRates
from planner.kernels import placement_loads as loads
from planner.kernels.nestings import PAD, enumerate_nestings
from planner.search.device_kinds import (
    DeviceOrder,
    PlacedKinds,
    device_orders,
    placed_kinds,
)
from planner.search.space import Configuration
from planner.step.execution import Workload
from planner.step.plan import Plan, Stage
from planner.work import PRICED_DEVICES, Work
from topologies import Network
from topologies.arrays import FloatArray, IntArray


class Extents(NamedTuple):
    """Sizes of the dimensions of a placement; ``dp`` counts replicas of experts."""

    tp: int
    """Tensor-parallel size."""
    cp: int
    """Context-parallel size."""
    ep: int
    """Expert-parallel size."""
    dp: int
    """Replicas of each expert."""
    pp: int
    """Pipeline stages."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """Devices of every stage, replica and rank."""

    name: str
    """Factors of the nesting, innermost first: ``"tp8 dp4 pp2"``; ``"/12"`` after a
    factor means padded to an extent of 12 devices."""

    extents: Extents
    """Sizes of the dimensions."""

    steps: tuple[tuple[int, ...], ...]
    """Size and stride of the inner factor and stride of the outer one (0 if there is
    none), of each dimension in the order of `Extents`."""

    order: DeviceOrder | None = None
    """Order of the devices that the strides count; None for that of their numbers."""

    def ordered(self, order: DeviceOrder | None) -> "Placement":
        """Return the same nesting over devices in another order."""
        if order is None:
            return self
        return replace(self, name=f"{self.name}, {order.name}", order=order)

    @property
    def place(self) -> object:
        """What tells placements apart."""
        order = "" if self.order is None else self.order.name
        return self.extents, self.steps, order

    @property
    def rows(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Devices of each stage as `planner.step.plan.Stage` has them."""
        return tuple(
            tuple(tuple(row) for row in devices.tolist()) for devices in self.devices
        )

    @property
    def grid(self) -> IntArray:
        """Device numbers, shape ``(pp, dp, ep, cp, tp)``, stages from first to last."""
        grid = np.zeros((1,) * len(self.extents), dtype=np.int64)
        for axis, (size, step) in enumerate(zip(self.extents, self.steps, strict=True)):
            inner, inner_stride, outer_stride = step
            ranks = np.arange(size, dtype=np.int64)
            offsets = ranks % inner * inner_stride + ranks // inner * outer_stride
            shape = [1] * len(self.extents)
            shape[-1 - axis] = size
            grid = grid + offsets.reshape(shape)
        return grid if self.order is None else self.order.devices[grid]

    @property
    def devices(self) -> IntArray:
        """Device numbers, shape ``(p, d, ranks)``.

        Replica ``dp_rank * ep + ep_rank``, rank ``cp_rank * tp + tp_rank``.
        """
        pp, dp, ep, cp, tp = self.grid.shape
        return self.grid.reshape(pp, dp * ep, cp * tp)


def extents_of(configuration: Configuration) -> Extents:
    """Return the sizes of a configuration's dimensions."""
    tp, cp, _, dp, pp = configuration.sizes
    ep = configuration.extents_ep
    return Extents(tp, cp, ep, dp // ep, pp)


def groups_of(configuration: Configuration, placement: Placement) -> StageGroups:
    """Return the groups that a configuration's ranks form on a placement."""
    return StageGroups(placement.grid, configuration.grouping, configuration.ep)


@lru_cache(maxsize=4096)
def placements(
    extents: Extents, num_devices: int, block_sizes: tuple[int, ...]
) -> tuple[Placement, ...]:
    """Return every placement of the space that fits the cluster, without repetition.

    Parameters
    ----------
    extents
        Sizes of the dimensions.
    num_devices
        Devices of the cluster.
    block_sizes
        `Network.block_sizes`, rising.

    Returns
    -------
    tuple[Placement, ...]
        Empty if the devices do not suffice. Compact orders come first.
    """
    if math.prod(extents) > num_devices:
        return ()
    steps, logs = enumerate_nestings(
        np.array(extents, dtype=np.int64), num_devices, np.array(block_sizes)
    )
    return tuple(
        Placement(
            name=_name(extents.tp, log),
            extents=extents,
            steps=tuple(zip(*[iter(row)] * 3, strict=True)),
        )
        for row, log in zip(steps.tolist(), logs.tolist(), strict=True)
    )


def whole_dimensions(order: Sequence[str], extents: Extents) -> Placement:
    """Return the placement of whole dimensions nested into each other.

    Parameters
    ----------
    order
        Names of the dimensions, innermost first; those of size 1 may be left out.
    extents
        Sizes of the dimensions.
    """
    sizes = extents._asdict()
    steps, stride, parts = dict.fromkeys(sizes, (1, 0, 0)), 1, []
    for dimension in order:
        size = sizes[dimension]
        if size > 1 or dimension == "tp":
            steps[dimension] = (size, stride, 0)
            parts.append(f"{dimension}{size}")
        stride *= size
    return Placement(name=" ".join(parts), extents=extents, steps=tuple(steps.values()))


def name_parts(name: str) -> tuple[str, str]:
    """Return the nesting of a placement's name and the order of its devices.

    Examples
    --------
    >>> name_parts("tp8 dp2 pp4, slow first")
    ('tp8 dp2 pp4', 'slow first')
    >>> name_parts(" tp8  dp2 pp4")
    ('tp8 dp2 pp4', '')
    """
    nesting, _, order = (" ".join(part.split()) for part in name.partition(","))
    return nesting, order


def _name(tp: int, log: list[int]) -> str:
    """Return the factors of a log, innermost first."""
    parts = [f"tp{tp}"]
    for dim, size in zip(*[iter(log)] * 2, strict=True):
        if dim == PAD:
            parts[-1] += f"/{size}"
        elif dim >= 0:
            parts.append(f"{Extents._fields[dim]}{size}")
    return " ".join(parts)


MOST_KNOWN = 2**10
"""Placements whose kinds of devices, and sizes whose placements, are kept at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DevicePlaces:
    """What devices there are on the placements of a job."""

    network: Network
    """Network that plans are placed on."""
    workload: Workload
    """Model, job and devices."""
    reserve: float
    """Memory that plans must leave free [byte]."""
    work: Work
    """Work that looking at devices that differ is counted on."""
    _kinds: dict[object, PlacedKinds] = field(default_factory=dict)
    _orders: dict[int, tuple[DeviceOrder | None, ...]] = field(default_factory=dict)
    _ordered: dict[object, tuple[Placement, ...]] = field(default_factory=dict)

    def kinds(self, placement: Placement) -> PlacedKinds:
        """Return the kinds of devices that work on a placement, found once."""
        key = placement.place
        if key not in self._kinds:
            if len(self._kinds) >= MOST_KNOWN:
                self._kinds.clear()
            if self.workload.fleet is not None:
                self.work.count(math.prod(placement.extents) // PRICED_DEVICES)
            self._kinds[key] = placed_kinds(
                self.workload, placement.devices, self.reserve
            )
        return self._kinds[key]

    def over_orders(self, nested: tuple[Placement, ...]) -> tuple[Placement, ...]:
        """Return placements over devices in every order that is tried.

        Each order where other kinds work together than in those before it.
        """
        group = nested[0].extents.tp if nested else 1
        if group not in self._orders:
            self._orders[group] = device_orders(self.network, self.workload, group)
        if len(self._orders[group]) == 1:
            return nested
        key = nested[0].extents
        if key not in self._ordered:
            if len(self._ordered) >= MOST_KNOWN:
                self._ordered.clear()
            distinct: dict[object, Placement] = {}
            for plain, order in product(nested, self._orders[group]):
                placement = plain.ordered(order)
                distinct.setdefault((plain.steps, self.kinds(placement).key), placement)
            self._ordered[key] = tuple(distinct.values())
        return self._ordered[key]


MOST_NUMBERS = 2**24
"""Numbers that are kept of placements' loads at a time: 128 MB."""


class Loads(NamedTuple):
    """Lower bounds of a placement's inverse bandwidths [s/byte]."""

    rates: FloatArray
    """Least rates of each stage, columns as in `planner.kernels.placement_loads`, shape
    ``(p, NUM_RATES)``."""
    boundary: FloatArray
    """Least inverse bandwidth over the boundary after each stage, the mean of both
    directions, by replica, shape ``(p, d)`` [s/byte]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacementBounds:
    """Bounds rates of placements on one network."""

    num_devices: int
    """Devices of the cluster."""
    block_sizes: IntArray
    """Devices of all blocks of the network, rising."""
    tiers: tuple[IntArray, FloatArray, FloatArray]
    """Blocks of devices with ways out of them: size [device], inverse bandwidth of all
    ways out together, and of the fastest link out [s/byte]."""
    _known: dict[object, Loads] = field(default_factory=dict)
    _held: list[int] = field(default_factory=lambda: [0])
    """Count of numbers that are kept, in a list because the rest is frozen."""

    @classmethod
    def of(cls, network: Network) -> "PlacementBounds":
        """Read the tiers off a network; only trees have any."""
        links = network.links
        # Where switches add up, what leaves in half of an all-reduce is all of it.
        part = 0.5 if network.adds_in_switches else 1.0
        tiers = [
            (
                level.block_size,
                part / level.uplink_bandwidth,
                part / links.bandwidth[links.level == number + 1].max(),
            )
            for number, level in enumerate(network.levels)
            if network.is_tree
            and level.num_blocks > 1
            # Where a tier does not block, what leaves it left a tier below as fast.
            and (number == 0 or level.oversubscription > 1.0)
        ]
        sizes, inverses, alone = zip(*tiers, strict=True) if tiers else ((), (), ())
        return cls(
            num_devices=network.num_devices,
            block_sizes=np.array(network.block_sizes, dtype=np.int64),
            tiers=(
                np.array(sizes, dtype=np.int64),
                np.array(inverses, dtype=np.float64),
                np.array(alone, dtype=np.float64),
            ),
        )

    def rates(
        self, placement: Placement, relaxed: tuple[StageRates, ...]
    ) -> StageRates:
        """Return rates elementwise at most the placement's.

        ``relaxed`` are rates one of which is at most those of any placement of these
        sizes.
        """
        base = relaxed[0]
        row = base.rows[0]
        if len(relaxed) > 1:
            row = np.min([rates.rows[0] for rates in relaxed], axis=0)
        if placement.order is not None:
            # Blocks above nodes hold others.
            return base._replace(rows=row[None])
        least = self._loads(placement)
        rows, signature = loads.placement_rows(least.rates, row, base.group_sizes[0])
        boundary = np.empty((*least.boundary.shape, 2))
        boundary[..., 0] = base.boundary[0, 0, 0]
        boundary[..., 1] = np.maximum(least.boundary, base.boundary[0, 0, 1])
        return base._replace(rows=rows, signature=signature, boundary=boundary)

    def _loads(self, placement: Placement) -> Loads:
        key = placement.extents, placement.steps
        least = self._known.get(key)
        if least is None:
            if self._held[0] > MOST_NUMBERS:
                self._known.clear()
                self._held[0] = 0
            least = Loads(
                *loads.placement_loads(
                    np.array(placement.extents),
                    np.array(placement.steps),
                    self.num_devices,
                    self.block_sizes,
                    *self.tiers,
                )
            )
            self._known[key] = least
            self._held[0] += least.rates.size + least.boundary.size
        return least


class StageOutline(NamedTuple):
    """What a search has chosen for a stage, beside its devices."""

    chunks: tuple[tuple[int, int], ...]
    """First and last layer of each chunk."""
    choice: MemoryChoice
    """What it does about its memory."""
    num_layers: int | None = None
    """Blocks of each chunk that are recomputed; None for all."""


class PlanOutline(NamedTuple):
    """What a search has chosen for a plan, beside its sizes and devices."""

    stages: tuple[StageOutline, ...]
    """Stages from the first to the last."""
    schedule: str
    """Name of the schedule."""
    num_microbatches: int
    """Microbatches of a replica."""
    sequence_parallel: bool
    """Whether sequences are split among tensor-parallel ranks."""


def placed_plan(
    configuration: Configuration,
    outline: PlanOutline,
    placement: Placement,
    rates: PlacementRates,
) -> Plan:
    """Return the plan of some sizes, with its stages on a placement."""

    def group_size(choice: MemoryChoice) -> int:
        if not choice.zero_stage:
            return 1
        return rates.shardings[choice.sharding].group_size

    stages = tuple(
        Stage(
            chunks=chunks,
            devices=devices,
            recompute=choice.recompute,
            zero_stage=choice.zero_stage,
            sharding_group_size=group_size(choice),
            offload=choice.offload,
            recompute_num_layers=num_layers,
        )
        for (chunks, choice, num_layers), devices in zip(
            outline.stages, placement.rows, strict=True
        )
    )
    return Plan(
        parallel=ParallelismConfig(
            tensor_model_parallel_size=configuration.tp,
            pipeline_model_parallel_size=configuration.pp,
            data_parallel_size=configuration.dp,
            context_parallel_size=configuration.cp,
            expert_model_parallel_size=configuration.ep,
            sequence_parallel=outline.sequence_parallel,
            **configuration.grouping.settings(configuration.cp, configuration.ep),
        ),
        virtual_pipeline_model_parallel_size=configuration.v,
        micro_batch_size=configuration.b,
        num_microbatches=outline.num_microbatches,
        schedule=outline.schedule,
        placement=placement.name,
        gradient_algorithm=rates.gradient_algorithm,
        tensor_algorithm=rates.tensor_algorithm,
        stages=stages,
        recompute_modules=outline.stages[0].choice.recompute_modules,
    )
