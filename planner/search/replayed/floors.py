"""What no configuration can beat, before placements and memory are looked at.

Under rates that no placement can beat, and on devices that are the best of all, some
stage of every plan has the work of the mean stage. A pipeline without chunks fills and
empties, too, however its layers are cut. Where all devices are alike, each layout has
its own paths of waits (`planner.kernels.family_bounds`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.rates import StageRates
from planner.kernels import family_bounds as kernel
from planner.kernels import tables
from planner.search.bounds import Relaxation, best_group_rates
from planner.search.device_kinds import group_speeds, kind_speeds
from planner.search.replayed.bounds import ReplayBounds
from planner.search.replayed.orders import is_listed
from planner.search.replayed.space import ConfigurationFamily, LaunchableSpace
from planner.search.space import (
    Configuration,
    Inner,
    SearchSpec,
    inner_configurations,
)
from planner.step.execution import Workload
from planner.step.schedules import SCHEDULES
from topologies import Network
from topologies.arrays import BoolArray, FloatArray, IntArray


def relaxed_rates(
    relaxation: Relaxation, tensor: FloatArray, configuration: Configuration
) -> tuple[StageRates, ...]:
    """Return rates one of which no placement of a configuration can beat."""
    sizes, grouping = configuration.sizes, configuration.grouping
    spreads = relaxation.expert_spreads(sizes)
    if grouping.is_folded:
        spreads = range(1, 2)
    return tuple(
        relaxation.rates(tensor, sizes, together, grouping) for together in spreads
    )


def shared_inside(
    relaxed: tuple[StageRates, ...], tp: int, relaxation: Relaxation
) -> tuple[StageRates, ...]:
    """Return rates where shards are shared inside of blocks of a network.

    Rates across blocks are per byte of a shard.

    Parameters
    ----------
    found
        Rates of a configuration.
    tp
        Its tensor-parallel size.
    relaxation
        What is known of the network, and of the sizes that are tried.
    """
    sizes = relaxed[0].group_sizes
    if len(sizes) == 1:
        return relaxed
    blocks = relaxation.block_sizes
    inside = [blocks[0]] * (len(sizes) - 2) + [max(blocks[:-1], default=blocks[0])]
    shared = sizes.copy()
    for option, block in enumerate(inside, start=1):
        shared[option] = min(sizes[0], max(block // tp, 1))
    asked = max(
        (size for size in relaxation.sharding_sizes if size < sizes[0]), default=1
    )
    shared[-1] = max(shared[-1], asked)
    changed = []
    for rates in relaxed:
        rows = rates.rows.copy()
        first = tables.SHARD_ACROSS + 1
        rows[:, first::4] *= shared / sizes
        changed.append(rates._replace(rows=rows, group_sizes=shared))
    return tuple(changed)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpaceLayouts:
    """Every layout of a space whose devices are alike, as `kernel` reads them."""

    table: kernel.FamilyLayouts
    """Layouts of all numbers of stages and chunks."""

    first: IntArray
    """Number of the first layout by stages and chunks, shape ``(p + 1, v + 1)``."""

    count: IntArray
    """How many layouts there are, likewise."""

    is_plain: bool
    """Whether pipelines without chunks are 1F1B."""

    @classmethod
    def of(
        cls, space: LaunchableSpace, families: Sequence[ConfigurationFamily]
    ) -> "SpaceLayouts | None":
        """Return the layouts, None if paths of waits are not those of `kernel`.

        Which is where devices differ, and where lists of passes are read.
        """
        fleet, tried = space.workload.fleet, space.tried_schedules
        mixed = fleet is not None and not fleet.is_uniform
        if mixed or not families or any(is_listed(name) for name in tried):
            return None
        sizes = (
            [family.pp for family in families],
            [family.v for family in families],
        )
        shape = tuple(
            1 + max(int(column.max()) for column in columns) for columns in sizes
        )
        is_there = np.zeros(shape, dtype=np.bool_)
        for family in families:
            is_there[family.pp, family.v] = True
        first, count = np.zeros((2, *shape), dtype=np.int64)
        starts, cuts = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        num_layouts, length = 0, 0
        for p, v in np.argwhere(is_there).tolist():
            some = space.cuts(p, v)
            first[p, v], count[p, v] = num_layouts, len(some)
            starts.append(length + some.shape[1] * np.arange(len(some)))
            cuts.append(some.ravel())
            num_layouts, length = num_layouts + len(some), length + some.size
        return cls(
            table=kernel.FamilyLayouts(np.concatenate(starts), np.concatenate(cuts)),
            first=first,
            count=count,
            is_plain={name for name in tried if not SCHEDULES[name].interleaves}
            <= {"1f1b"},
        )

    def bounds(
        self,
        family: ConfigurationFamily,
        m: IntArray,
        times: kernel.FamilyTimes,
        *,
        pairs: bool,
    ) -> FloatArray:
        """Bound configurations of some microbatches by paths of waits [s]."""
        is_plain = self.is_plain and not pairs
        ahead = np.where((family.v == 1) & is_plain, np.minimum(family.pp, m), m)
        place = family.pp, family.v
        rows = kernel.FamilyRows(
            family.pp, family.v, m, ahead, self.first[place], self.count[place]
        )
        return kernel.family_bounds(rows, self.table, times)


def first_bounds(
    bounds: ReplayBounds,
    family: ConfigurationFamily | Inner,
    rates: tuple[StageRates, ...],
    *,
    pairs: bool,
    fills: bool = False,
    cuts: SpaceLayouts | None = None,
) -> FloatArray:
    """Bound the configurations of a family before placements are looked at [s].

    Some stage has the mean stage's work. Where devices differ, of those of a replica
    that the best devices could be. Of blocks alone, too: slow devices need not be as
    slow at what is beside them.

    Parameters
    ----------
    bounds
        Of the job.
    family
        The configurations.
    rates
        One of which no placement can beat.
    pairs
        Whether passes may go on beside each other.
    fills
        Whether no schedule puts weight gradients off: so pipelines fill and empty.
    cuts
        Layouts, where they are known.
    """
    workload, degrees = bounds.workload, family.degrees
    times = [bounds.pass_times(degrees, row, pairs=pairs) for row in rates]
    least = mean_stage_bounds(workload, family, times, fills=fills)
    if cuts is not None:
        assert isinstance(family, ConfigurationFamily), "layouts are of a framework"
        beside = [np.add(*both) for both in times]
        passes, alone = np.zeros((2, len(beside[0]) + 1))
        np.cumsum(np.min(beside, axis=0), out=passes[1:])
        if pairs:
            whole = [np.add(*bounds.pass_times(degrees, row)) for row in rates]
            np.cumsum(np.min(np.subtract(whole, beside), axis=0), out=alone[1:])
        paths = kernel.FamilyTimes(
            passes,
            alone,
            bounds.least_wire(degrees, rates),
            2.0 * workload.messages_time(2),
            float(workload.iteration_time),
        )
        m = _num_microbatches(workload, family)
        least = np.maximum(least, cuts.bounds(family, m, paths, pairs=pairs))
    fleet = workload.fleet
    if fleet is None or fleet.is_uniform:
        return least
    kind_times = [
        [bounds.pass_times(degrees, row, pairs=pairs, kinds=(kind,)) for row in rates]
        for kind in range(len(fleet.kinds))
    ]
    is_block = workload.table(degrees).is_block > 0
    for layers in (np.ones_like(is_block), is_block):
        if not layers.any():
            continue
        part = [(forward[layers], backward[layers]) for forward, backward in times]
        speeds = np.max(
            [
                kind_speeds(
                    np.add(*part[number]),
                    [np.add(*kind[number])[layers] for kind in kind_times],
                )
                for number in range(len(rates))
            ],
            axis=0,
        )
        groups = group_speeds(fleet, speeds, degrees.tp * degrees.cp)
        stages = groups.stages(family.pp, family.dp)
        bound = mean_stage_bounds(workload, family, part) * family.pp / stages
        least = np.maximum(least, bound * (1.0 - 1e-12))
    return least


def least_work(network: Network, workload: Workload, spec: SearchSpec) -> float:
    """Return what any plan takes at least, whatever its stages choose [s].

    The mean stage works in any configuration, and pipelines without chunks fill.
    """
    inner, _ = inner_configurations(workload, spec, network.num_devices)
    relaxation = Relaxation.of(network, spec.sharding_group_sizes or ())
    bounds = ReplayBounds.of(network, workload, by_layer=True, memory=np.inf)
    rules = spec.rules
    pairs = rules is not None and (
        rules.overlap_expert_parallel
        or any(SCHEDULES[name].pairs_chunks for name in rules.schedules)
    )
    listed = (*spec.schedules, *(rules.schedules if rules is not None else ()))
    fills = not any(is_listed(name) for name in listed)
    tensor: dict[int, FloatArray] = {}
    least = np.inf
    for item in inner:
        tp = item.degrees.tp
        if tp not in tensor:
            tensor[tp] = best_group_rates(network, tp)
        rates = relaxed_rates(relaxation, tensor[tp], item.configuration(0))
        may_pair = pairs and item.degrees.ep > 1
        floors = first_bounds(bounds, item, rates, pairs=may_pair, fills=fills)
        least = min(least, float(floors.min()))
    return least


def family_bounds(
    bounds: ReplayBounds,
    family: ConfigurationFamily,
    rates: tuple[StageRates, ...],
    pairs: BoolArray,
    *,
    fills: bool,
    cuts: SpaceLayouts | None,
) -> FloatArray:
    """Return `first_bounds`, whether or not passes may be beside each other [s]."""
    bound = np.zeros(len(pairs))
    for mode in {*pairs.tolist()}:
        least = first_bounds(bounds, family, rates, pairs=mode, fills=fills, cuts=cuts)
        bound[pairs == mode] = least[pairs == mode]
    return bound


def mean_stage_bounds(
    workload: Workload,
    family: ConfigurationFamily | Inner,
    times: list[tuple[FloatArray, FloatArray]],
    *,
    fills: bool = False,
) -> FloatArray:
    """Bound the configurations of a family: some stage has the mean stage's work [s].

    Parameters
    ----------
    workload, family
        The job and the configurations.
    times
        Of the layers' forward and backward passes, under rates one of which holds.
    fills
        Whether pipelines fill and empty, as for `first_bounds`.
    """
    whole = min(float(forward.sum() + backward.sum()) for forward, backward in times)
    lead = workload.messages_time(2) * (family.pp > 1)
    work = whole + 2.0 * family.v * family.pp * lead
    share = mean_stage_shares(workload, family, fills=fills)
    return np.asarray(share * work * (1.0 - 1e-12))


def mean_stage_shares(
    workload: Workload, family: ConfigurationFamily | Inner, *, fills: bool
) -> FloatArray:
    """Return what the mean stage takes over the work of a microbatch, at least."""
    m = _num_microbatches(workload, family)
    share = m / family.pp
    if fills:
        share = np.where(family.v == 1, pipelined(m, family.pp), share)
    return np.asarray(share)


def pipelined(m: IntArray, p: IntArray) -> FloatArray:
    """Return the least time of a pipeline without chunks over a microbatch's work.

    ``T >= sum_{k < i} t_k + m t_i`` for all stages ``i`` gives ``T - s_{i+1} >= (1 - 1
    / m) (T - s_i)`` with ``s_i`` the sum of ``t_k``, ``k < i``, so that ``T - W >= T (1
    - 1 / m)^p``, however the work ``W`` is cut. At least ``m / p``.
    """
    return np.asarray(1.0 / (1.0 - (1.0 - 1.0 / m) ** p))


def _num_microbatches(
    workload: Workload, family: ConfigurationFamily | Inner
) -> IntArray:
    """Return the microbatches of each configuration's replicas."""
    batch = workload.training.global_batch_size
    return np.asarray(-(-batch // (family.degrees.micro_batch_size * family.dp)))
