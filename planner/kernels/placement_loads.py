"""What leaves the blocks of a tree under a placement: bounds of its rates, in O(N).

Pricing a placement exactly follows every ring over every link. A bound needs only
what every algorithm must send out of each block of devices, over all its ways out
together: of a reduce-scatter or all-gather over ``n`` ranks, ``k`` of which stand in
the block, ``1 - k / n`` of the tensor; of a ring's hop, the hops that leave; of an
all-to-all, what ranks outside are sent; of a stage boundary, the lanes that cross.
Groups of a kind communicate at the same time, those of all stages; collectives of
several phases meet only where the stages have like phases. Out of a block with one
way, everybody takes that; where there are several, a stage (a replica, at a boundary)
is bounded by its own share alone, spread evenly: its busiest way carries no less.

Letters: ``N`` devices, ``p`` stages, ``d`` replicas, ``T`` tiers of blocks.
"""

from typing import NamedTuple

import numpy as np

from planner.kernels import tables
from topologies.arrays import (
    FloatArray,
    FloatMatrix,
    FloatVector,
    IntArray,
    IntCube,
    IntMatrix,
    IntVector,
)
from topologies.compiling import kernel, subkernel

# Columns of the result, seconds per byte.
PASS = 0  # reduce-scatter or all-gather over the replicas of dense parameters
NODE_PASS = 1  # the same out of nodes alone
NODE_GROUPS = 2  # a tensor out of a node for each group that leaves it
NODE_MEMBERS = 3  # a tensor out of a node for each member of those groups
EXPERT_PASS = 4  # reduce-scatter or all-gather over the replicas of experts
CONTEXT = 5  # a hop of the context-parallel ring
EXCHANGE = 6  # all-to-all of expert-parallel ranks, per byte held
NUM_RATES = 7


class Groups(NamedTuple):
    """Groups of ranks of one kind."""

    key: IntVector
    """Group of each rank."""

    size: int
    """Members of each group."""

    stage_of_key: IntVector
    """Stage of each group."""


@subkernel
def offsets(sizes: IntVector, steps: IntMatrix, dim: int) -> IntArray:
    """Return what a rank of a dimension adds to the device number."""
    places = np.empty(sizes[dim], dtype=np.int64)
    inner = steps[dim, 0]
    for rank in range(sizes[dim]):
        places[rank] = rank % inner * steps[dim, 1] + rank // inner * steps[dim, 2]
    return places


@subkernel
def _stages(p: int, per_stage: int) -> IntArray:
    """Return the stage of each group, ``per_stage`` of them in each."""
    stages = np.empty(p * per_stage, dtype=np.int64)
    for key in range(p * per_stage):
        stages[key] = key // per_stage
    return stages


@subkernel
def _meet(
    owner: IntVector, key: IntVector, stage_of_key: IntVector, p: int, blocks: IntVector
) -> bool:
    """Tell whether the groups of all stages go through like phases, and so meet.

    They do if at every tier each block that a group touches holds the same number of
    its members, the same one in all stages: a hierarchical collective has a phase for
    each tier that divides its groups evenly, and phases of different stages share links
    only where they have the same number. Other groups may have like phases, too.
    O(N T).
    """
    count = np.zeros(stage_of_key.shape[0], dtype=np.int64)
    touched = np.empty(stage_of_key.shape[0], dtype=np.int64)
    num_devices = owner.shape[0]
    even = np.empty(p, dtype=np.int64)
    for block in blocks:
        if block >= num_devices:
            break
        even[:] = -1
        for first in range(0, num_devices, block):
            num_touched = 0
            for device in range(first, min(first + block, num_devices)):
                rank = owner[device]
                if rank >= 0:
                    group = key[rank]
                    if count[group] == 0:
                        touched[num_touched] = group
                        num_touched += 1
                    count[group] += 1
            for i in range(num_touched):
                s = stage_of_key[touched[i]]
                if even[s] == -1:
                    even[s] = count[touched[i]]
                elif even[s] != count[touched[i]]:
                    even[s] = 0
                count[touched[i]] = 0
        for s in range(p):
            if even[s] == 0 or even[s] != even[0]:
                return False
    return True


@subkernel
def _leaving_passes(
    owner: IntVector,
    groups: Groups,
    block: int,
    inverse: float,
    meet: bool,
    rates: FloatMatrix,
    columns: tuple[int, int, int, int],
) -> None:
    """Raise each stage's rates to what its groups send out of their blocks.

    ``owner (N,)`` is the rank on each device or -1. ``meet``: whether groups of all
    stages share the ways out, or those of each stage alone. ``columns``: where the
    share, the groups, the members and the exchange go, -1 for nowhere. O(N).
    """
    key, size, stage_of_key = groups.key, groups.size, groups.stage_of_key
    count = np.zeros(stage_of_key.shape[0], dtype=np.int64)
    touched = np.empty(block, dtype=np.int64)
    num_devices = owner.shape[0]
    leaving = np.zeros((rates.shape[0], 4))
    every = np.zeros(4)
    for first in range(0, num_devices, block):
        num_touched = 0
        for device in range(first, min(first + block, num_devices)):
            rank = owner[device]
            if rank < 0:
                continue
            group = key[rank]
            if count[group] == 0:
                touched[num_touched] = group
                num_touched += 1
            count[group] += 1
        every[:] = 0.0
        for i in range(num_touched):
            leaving[stage_of_key[touched[i]]] = 0.0
        for i in range(num_touched):
            k = count[touched[i]]
            if k < size:
                s = stage_of_key[touched[i]]
                amounts = (1.0 - k / size, 1.0, float(k), k * (size - k) / size)
                for column in range(4):
                    leaving[s, column] += amounts[column]
                    every[column] += amounts[column]
        for i in range(num_touched):
            group = touched[i]
            if count[group] < size:
                s = stage_of_key[group]
                for column in range(4):
                    if columns[column] >= 0:
                        load = every[column] if meet else leaving[s, column]
                        known = rates[s, columns[column]]
                        rates[s, columns[column]] = max(known, load * inverse)
            count[group] = 0


@kernel
def placement_loads(
    sizes: IntVector,
    steps: IntMatrix,
    num_devices: int,
    all_blocks: IntVector,
    blocks: IntVector,
    inverses: FloatVector,
    link_inverses: FloatVector,
) -> tuple[FloatArray, FloatArray]:
    """Return lower bounds of a placement's inverse bandwidths.

    Parameters
    ----------
    sizes
        Of tensor, context, expert, data (replicas of experts) and pipeline parallelism.
    steps
        `planner.search.placements.Placement.steps`, shape ``(5, 3)``.
    num_devices
        Of the cluster.
    all_blocks
        Devices of the network's blocks, rising.
    blocks, inverses, link_inverses
        Of each tier with ways out: devices of a block, seconds for a byte to leave it
        over all its ways out together, and over the fastest one, shape ``(T,)``.

    Returns
    -------
    tuple
        Rates by stage, columns as above, shape ``(p, NUM_RATES)``; and those of the
        boundary after each stage, both directions' mean, by replica, ``(p, d)``.
    """
    tp, cp, ep, dp, p = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    tensor, context = offsets(sizes, steps, 0), offsets(sizes, steps, 1)
    experts, data = offsets(sizes, steps, 2), offsets(sizes, steps, 3)
    pipeline = offsets(sizes, steps, 4)
    num_ranks = p * dp * ep * cp * tp
    device = np.empty(num_ranks, dtype=np.int64)
    dense_key = np.empty(num_ranks, dtype=np.int64)
    expert_key = np.empty(num_ranks, dtype=np.int64)
    exchange_key = np.empty(num_ranks, dtype=np.int64)
    owner = np.empty(num_devices, dtype=np.int64)
    for i in range(num_devices):
        owner[i] = -1
    rank = 0
    for s in range(p):
        for d in range(dp):
            for e in range(ep):
                for c in range(cp):
                    for t in range(tp):
                        device[rank] = (
                            pipeline[s] + data[d] + experts[e] + context[c] + tensor[t]
                        )
                        owner[device[rank]] = rank
                        dense_key[rank] = s * tp + t
                        expert_key[rank] = (s * ep + e) * tp + t
                        exchange_key[rank] = ((s * dp + d) * cp + c) * tp + t
                        rank += 1
    rates = np.zeros((p, NUM_RATES))
    boundary = np.zeros((p, dp * ep))
    stage_of_dense = _stages(p, tp)
    stage_of_expert = _stages(p, ep * tp)
    stage_of_exchange = _stages(p, dp * cp * tp)
    nodes = (PASS, NODE_GROUPS, NODE_MEMBERS, -1)
    above = (PASS, -1, -1, -1)
    expert_columns = (EXPERT_PASS, -1, -1, -1)
    exchange_columns = (-1, -1, -1, EXCHANGE)
    n = dp * ep * cp
    lanes = cp * tp
    home = np.empty(num_ranks, dtype=np.int64)
    ring = np.empty(lanes, dtype=np.int64)
    for i in range(lanes):
        ring[i] = i + tp if i + tp < lanes else i + tp - lanes
    leaving = np.zeros(num_devices, dtype=np.int64)
    arriving = np.zeros(num_devices, dtype=np.int64)
    meet = p == 1 or _meet(owner, dense_key, stage_of_dense, p, all_blocks)
    experts_meet = meet
    if ep > 1 and p > 1:
        experts_meet = _meet(owner, expert_key, stage_of_expert, p, all_blocks)
    for tier in range(blocks.shape[0]):
        block, inverse = blocks[tier], inverses[tier]
        # With several ways out, who shares one is not known here.
        one_way = inverse >= link_inverses[tier]
        if n > 1:
            _leaving_passes(
                owner, Groups(dense_key, n, stage_of_dense), block, inverse,
                meet and one_way, rates, nodes if tier == 0 else above,
            )  # fmt: skip
            if tier == 0:
                for s in range(p):
                    rates[s, NODE_PASS] = rates[s, PASS]
        if ep > 1:
            _leaving_passes(
                owner, Groups(expert_key, dp * cp, stage_of_expert), block, inverse,
                experts_meet and one_way, rates, expert_columns,
            )  # fmt: skip
            _leaving_passes(
                owner, Groups(exchange_key, ep, stage_of_exchange), block, inverse,
                one_way, rates, exchange_columns,
            )  # fmt: skip
        for rank in range(num_ranks):
            home[rank] = device[rank] // block
        if cp > 1:
            _context_hops(
                home,
                ring,
                n * tp,
                one_way,
                inverse,
                link_inverses[tier],
                leaving,
                rates,
            )
        if p > 1:
            _boundaries(
                home, lanes, one_way, inverse, link_inverses[tier], leaving, arriving,
                boundary,
            )  # fmt: skip
    return rates, boundary


@subkernel
def _context_hops(
    home: IntVector,
    ring: IntVector,
    per_stage: int,
    one_way: bool,
    inverse: float,
    link_inverse: float,
    leaving: IntVector,
    rates: FloatMatrix,
) -> None:
    """Raise each stage's rate to what the hops of its rings send out of their blocks.

    ``home (ranks,)`` is the block of each rank; ``ring (cp tp,)`` where the rank that
    a rank sends to stands among those of its replica; ``leaving`` is scratch, all 0
    before and after. Where there are several ways out, a stage's hops count alone.
    O(N).
    """
    size = ring.shape[0]
    num_stages = rates.shape[0]
    if one_way:
        _count_hops(home, ring, 0, home.shape[0], leaving)
    for s in range(num_stages):
        begin, end = s * per_stage, (s + 1) * per_stage
        if not one_way:
            _count_hops(home, ring, begin, end, leaving)
        most = 0
        for first in range(begin, end, size):
            for i in range(size):
                home_of_rank = home[first + i]
                if home[first + ring[i]] != home_of_rank:
                    most = max(most, leaving[home_of_rank])
        if most > 0:
            load = max(most * inverse, link_inverse)
            rates[s, CONTEXT] = max(rates[s, CONTEXT], load)
        if not one_way:
            for rank in range(begin, end):
                leaving[home[rank]] = 0
    for rank in range(home.shape[0]):
        leaving[home[rank]] = 0


@subkernel
def _count_hops(
    home: IntVector, ring: IntVector, begin: int, end: int, leaving: IntVector
) -> None:
    """Count the hops of ranks ``begin..end - 1`` out of their blocks."""
    size = ring.shape[0]
    for first in range(begin, end, size):
        for i in range(size):
            if home[first + ring[i]] != home[first + i]:
                leaving[home[first + i]] += 1


@subkernel
def _boundaries(
    home: IntVector,
    lanes: int,
    one_way: bool,
    inverse: float,
    link_inverse: float,
    forth: IntVector,
    back: IntVector,
    boundary: FloatMatrix,
) -> None:
    """Raise each boundary's rate to what its lanes send out of their blocks.

    Both directions leave a block of their own; half of either is added to the mean,
    unless a tier below has asked for more. Where there are several ways out, the lanes
    of a replica count alone. ``home (ranks,)`` is the block of each rank; ``forth`` and
    ``back`` are scratch, all 0 before and after. O(N).
    """
    p, num_replicas = boundary.shape
    per_stage = home.shape[0] // p
    together = num_replicas if one_way else 1
    for s in range(p):
        here = s * per_stage
        there = here + per_stage if s < p - 1 else 0
        for r in range(0, num_replicas, together):
            begin, end = r * lanes, (r + together) * lanes
            crossing = False
            for i in range(begin, end):
                a, b = home[here + i], home[there + i]
                if a != b:
                    forth[a] += 1
                    back[b] += 1
                    crossing = True
            if not crossing:
                continue
            for q in range(r, r + together):
                most_forth, most_back = 0, 0
                for i in range(q * lanes, (q + 1) * lanes):
                    a, b = home[here + i], home[there + i]
                    if a != b:
                        most_forth = max(most_forth, forth[a])
                        most_back = max(most_back, back[b])
                if most_forth > 0:
                    load = max(most_forth * inverse, link_inverse)
                    load += max(most_back * inverse, link_inverse)
                    boundary[s, q] = max(boundary[s, q], 0.5 * load)
            for i in range(begin, end):
                forth[home[here + i]] = 0
                back[home[there + i]] = 0


@kernel
def placement_rows(
    loads: FloatMatrix, row: FloatVector, group: float
) -> tuple[FloatArray, IntArray]:
    """Return rates at least a relaxed row and the loads: distinct rows, and which.

    Columns as in `planner.kernels.tables`. Hybrid sharding (options after the whole
    group, of which ``group`` ranks share shards): inside nodes at least ``2 (1 - k /
    n)`` of a group's gradients leave; in racks half of the tensor does to share it, and
    ``2 k / n`` of it across. Distinct rows stand in order of their first stage.
    O(p rows R).
    """
    p = loads.shape[0]
    options = (row.shape[0] - tables.NUM_FIXED_RATES) // 4
    rows = np.empty((p, row.shape[0]))
    signature = np.empty(p, dtype=np.int64)
    num_rows = 0
    candidate = np.empty(row.shape[0])
    for s in range(p):
        for k in range(row.shape[0]):
            candidate[k] = row[k]
        load = loads[s]
        candidate[tables.DENSE_REDUCE + 1] = max(
            candidate[tables.DENSE_REDUCE + 1], 2.0 * load[PASS]
        )
        candidate[tables.SHARD_PASS + 1] = max(
            candidate[tables.SHARD_PASS + 1], load[PASS]
        )
        candidate[tables.EXPERT_REDUCE + 1] = max(
            candidate[tables.EXPERT_REDUCE + 1], 2.0 * load[EXPERT_PASS]
        )
        candidate[tables.EXPERT_PASS + 1] = max(
            candidate[tables.EXPERT_PASS + 1], load[EXPERT_PASS]
        )
        candidate[tables.CONTEXT + 1] = max(
            candidate[tables.CONTEXT + 1], load[CONTEXT]
        )
        candidate[tables.EXPERT + 1] = max(candidate[tables.EXPERT + 1], load[EXCHANGE])
        if options > 1:
            across = 2.0 * group * load[NODE_PASS]
            candidate[tables.SHARD_ACROSS + 5] = max(
                candidate[tables.SHARD_ACROSS + 5], across
            )
        if options > 2:
            candidate[tables.SHARD_PASS + 9] = max(
                candidate[tables.SHARD_PASS + 9], 0.5 * load[NODE_GROUPS]
            )
            across = 2.0 * load[NODE_MEMBERS]
            candidate[tables.SHARD_ACROSS + 9] = max(
                candidate[tables.SHARD_ACROSS + 9], across
            )
        known = -1
        for other in range(num_rows):
            same = True
            for k in range(row.shape[0]):
                same = same and rows[other, k] == candidate[k]
            if same:
                known = other
                break
        if known < 0:
            for k in range(row.shape[0]):
                rows[num_rows, k] = candidate[k]
            known = num_rows
            num_rows += 1
        signature[s] = known
    return rows[:num_rows].copy(), signature


@kernel
def leaving_shares(groups: IntCube, block_size: int, num_blocks: int) -> FloatArray:
    """Sum ``1 - k / n`` over groups with ``k`` of ``n`` ranks in a block, ``k > 0``.

    Parameters
    ----------
    groups
        Device numbers, shape ``(p, groups, n)``.
    block_size, num_blocks
        Devices of each block, and how many there are.

    Returns
    -------
    numpy.ndarray
        Shape ``(num_blocks, p)``; O(p groups n).
    """
    num_stages, num_groups, size = groups.shape
    shares = np.zeros((num_blocks, num_stages))
    counts = np.zeros(num_blocks, dtype=np.int64)
    for s in range(num_stages):
        for g in range(num_groups):
            for k in range(size):
                counts[groups[s, g, k] // block_size] += 1
            for k in range(size):
                block = groups[s, g, k] // block_size
                if counts[block] > 0:
                    shares[block, s] += 1.0 - counts[block] / size
                    counts[block] = 0
    return shares
