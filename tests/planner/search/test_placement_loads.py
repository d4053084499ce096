"""What leaves the blocks of a tree, against its definition, rank by rank."""

from collections import Counter
from itertools import product

import numpy as np

from planner.kernels.placement_loads import (
    CONTEXT,
    EXCHANGE,
    EXPERT_PASS,
    NODE_GROUPS,
    NODE_MEMBERS,
    NODE_PASS,
    NUM_RATES,
    PASS,
    leaving_shares,
    placement_loads,
)
from planner.search.placements import Extents, placements


def random_case(seed):
    """Return a placement, blocks of devices, and tiers of some blocks of a network.

    A tier is its block, and the time of a byte over all ways out and over the fastest.
    """
    rng = np.random.default_rng(seed)
    blocks = np.cumprod(rng.integers(2, 5, rng.integers(2, 4)))
    sizes, left = {}, int(blocks[-1])
    for name in rng.permutation(Extents._fields):
        sizes[name] = int(rng.integers(1, min(left, 3) + 1))
        left //= sizes[name]
    nested = placements(Extents(**sizes), int(blocks[-1]), tuple(blocks.tolist()))
    times = rng.integers(1, 6, (len(blocks), 2)).astype(float).tolist()
    tiers = list(zip(blocks.tolist(), *zip(*times, strict=True), strict=True))
    tiers = tiers[int(rng.integers(0, 2)) :]
    return nested[rng.integers(len(nested))], blocks, tiers


def members(grid, axes):
    """Yield the stage and the devices of each group whose ranks differ along axes."""
    others = [axis for axis in range(5) if axis not in axes]
    for place in product(*(range(grid.shape[axis]) for axis in others)):
        index = [slice(None)] * 5
        for axis, number in zip(others, place, strict=True):
            index[axis] = number
        yield place[0], grid[tuple(index)].ravel()


def meet(grid, axes, blocks):
    """Tell whether all blocks of a size hold as many of all groups that they touch."""
    return len(grid) == 1 or all(
        len({n for _, group in members(grid, axes) for n in held(group, block)}) == 1
        for block in blocks
    )


def held(group, block):
    return Counter((group // block).tolist()).values()


def leaving(grid, axes, tier, meets, share):
    """Return the time of what leaves a stage's busiest block, by stage.

    Of a group with ``k`` of ``n`` ranks in a block it is ``share(k, n)``; groups of all
    stages count if they meet and there is one way out.
    """
    block, inverse, link = tier
    together = meets and inverse >= link
    out = Counter()
    for s, group in members(grid, axes):
        for home, k in Counter((group // block).tolist()).items():
            if k < len(group):
                out[s, home] += share(k, len(group))
    most = np.zeros(len(grid))
    for s, home in out:
        stages = range(len(grid)) if together else [s]
        most[s] = max(most[s], sum(out.get((other, home), 0.0) for other in stages))
    return most * inverse


def crossing(homes, others, together):
    """Return how many lanes share the busiest block of a replica's, both ways.

    ``homes`` and ``others (replicas, lanes)`` are blocks that lanes leave and enter, if
    they differ; lanes of all replicas count ``together``, or those of a replica alone.
    """
    most = np.zeros((len(homes), 2))
    for r in range(len(homes)):
        beside = slice(None) if together else [r]
        moves = homes[beside] != others[beside]
        mine = homes[r] != others[r]
        for way, blocks in enumerate((homes, others)):
            counts = Counter(blocks[beside][moves].tolist())
            most[r, way] = max((counts[b] for b in blocks[r][mine]), default=0)
    return most


def naive_loads(grid, blocks, tiers):
    """Return rates, shape ``(p, NUM_RATES)``, and those of boundaries, ``(p, d)``."""
    pp, dp, ep, cp, tp = grid.shape
    rates, boundary = np.zeros((NUM_RATES, pp)), np.zeros((pp, dp * ep))
    replicas, experts, spread = (1, 2, 3), (1, 3), (2,)
    dense = meet(grid, replicas, blocks)
    for number, tier in enumerate(tiers):
        block, inverse, link = tier
        homes = (grid // block).reshape(pp, dp * ep, cp * tp)
        onward = (np.roll(grid, -1, axis=3) // block).reshape(homes.shape)
        stages = homes.reshape(pp, -1), onward.reshape(pp, -1)
        hops = crossing(*stages, together=inverse >= link)[:, 0]
        loads = {
            PASS: leaving(grid, replicas, tier, dense, lambda k, n: 1 - k / n),
            EXCHANGE: leaving(grid, spread, tier, True, lambda k, n: k * (n - k) / n),
            CONTEXT: seconds(hops, inverse, link),
        }
        if ep > 1:
            alike = meet(grid, experts, blocks)
            loads[EXPERT_PASS] = leaving(
                grid, experts, tier, alike, lambda k, n: 1 - k / n
            )
        if number == 0:
            loads[NODE_PASS] = loads[PASS]
            loads[NODE_GROUPS] = leaving(grid, replicas, tier, dense, lambda k, n: 1)
            loads[NODE_MEMBERS] = leaving(grid, replicas, tier, dense, lambda k, n: k)
        for column, load in loads.items():
            rates[column] = np.maximum(rates[column], load)
        for s in range(pp):
            lanes = crossing(homes[s], homes[(s + 1) % pp], together=inverse >= link)
            load = seconds(lanes, inverse, link).sum(axis=1) / 2
            boundary[s] = np.maximum(boundary[s], load)
    return rates.T, boundary


def seconds(count, inverse, link):
    """Return the time of a byte of all of them, and at least that of a link."""
    return np.where(count > 0, np.maximum(count * inverse, link), 0.0)


def test_loads_are_those_of_the_definition():
    for seed in range(100):
        placement, blocks, tiers = random_case(seed)
        expected = naive_loads(placement.grid, blocks, tiers)
        sizes, *times = map(np.array, zip(*tiers, strict=True))
        loads = placement_loads(
            np.array(placement.extents),
            np.array(placement.steps),
            int(blocks[-1]),
            blocks,
            sizes,
            *times,
        )
        for load, exact in zip(loads, expected, strict=True):
            np.testing.assert_allclose(load, exact, rtol=1e-12, err_msg=str(seed))


def test_shares_that_leave_are_those_of_the_groups_that_a_block_holds_in_part():
    rng = np.random.default_rng(0)
    for _ in range(20):
        pp, count, size, block = rng.integers(1, 5, 4)
        groups = rng.permutation(pp * count * size).reshape(pp, count, size)
        blocks = -(-groups.size // block)
        held = np.array(
            [(groups // block == home).sum(axis=2) for home in range(blocks)]
        )
        expected = np.where(held > 0, 1.0 - held / size, 0.0).sum(axis=2)
        shares = leaving_shares(groups, block, blocks)
        np.testing.assert_allclose(shares, expected, atol=1e-12)
