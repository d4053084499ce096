"""What no configuration can beat, before layouts and placements are looked at.

Some stage of every plan has the work of the mean stage, under rates that no placement
can beat, and on devices that are the best of all.
"""

import numpy as np

from planner.cost.rates import StageRates
from planner.kernels import tables
from planner.search.bounds import Relaxation
from planner.search.device_kinds import group_speeds, kind_speeds
from planner.search.replayed.bounds import ReplayBounds
from planner.search.replayed.space import ConfigurationFamily
from planner.search.space import Configuration, Inner
from planner.step.execution import Workload
from topologies.arrays import FloatArray


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
    relaxed: tuple[StageRates, ...], tp: int, blocks: tuple[int, ...]
) -> tuple[StageRates, ...]:
    """Return rates where shards are shared inside of blocks of a network.

    Rates across blocks are per byte of a shard.

    Parameters
    ----------
    found
        Rates of a configuration.
    tp
        Its tensor-parallel size.
    blocks
        `Network.block_sizes`, rising.
    """
    sizes = relaxed[0].group_sizes
    if len(sizes) == 1:
        return relaxed
    inside = [blocks[0]] * (len(sizes) - 2) + [max(blocks[:-1], default=blocks[0])]
    shared = sizes.copy()
    for option, block in enumerate(inside, start=1):
        shared[option] = min(sizes[0], max(block // tp, 1))
    changed = []
    for rates in relaxed:
        rows = rates.rows.copy()
        first = tables.SHARD_ACROSS + 1
        rows[:, first::4] *= shared / sizes
        changed.append(rates._replace(rows=rows, group_sizes=shared))
    return tuple(changed)


def first_bounds(
    bounds: ReplayBounds,
    family: ConfigurationFamily | Inner,
    rates: tuple[StageRates, ...],
    *,
    pairs: bool,
) -> FloatArray:
    """Bound the configurations of a family: some stage has the mean stage's work [s].

    Where devices differ, of those of a replica that the best devices could be. Of
    blocks alone, too: slow devices need not be as slow at what is beside them.
    """
    workload, degrees = bounds.workload, family.degrees
    times = [bounds.pass_times(degrees, row, pairs=pairs) for row in rates]
    least = mean_stage_bounds(workload, family, times)
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


def mean_stage_bounds(
    workload: Workload,
    family: ConfigurationFamily | Inner,
    times: list[tuple[FloatArray, FloatArray]],
) -> FloatArray:
    """Bound the configurations of a family: some stage has the mean stage's work [s].

    ``times`` are of the layers' forward and backward passes, under rates one of which
    holds.
    """
    whole = min(float(forward.sum() + backward.sum()) for forward, backward in times)
    batch = workload.training.global_batch_size
    m = np.ceil(batch / (family.degrees.micro_batch_size * family.dp))
    lead = workload.messages_time(2) * (family.pp > 1)
    return np.asarray(m * (whole / family.pp + 2.0 * family.v * lead) * (1.0 - 1e-12))
