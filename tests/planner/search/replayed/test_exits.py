"""What leaves the blocks of a tree, counted one device after another."""

import random
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np

from planner.cost.groups import StageGroups
from planner.search.placements import PlacementBounds
from planner.search.replayed.orders import placed_exits, relaxed_exits
from planner.search.space import Configuration
from tests import failures
from tests.planner.search.replayed.kernel_cases import NUM_OPTIONS, compiled, drawn_case


def tiers(num_devices, sizes):
    """Return blocks of these sizes; a byte takes as many seconds to leave as it has."""
    inverses = np.array(sizes, dtype=np.float64)
    blocks = np.array(sizes, dtype=np.int64)
    return PlacementBounds(
        num_devices=num_devices,
        block_sizes=np.array([*sizes, num_devices]),
        tiers=(blocks, inverses, inverses),
    )


def shuffled(rng, shape):
    """Put tensor groups of consecutive devices anywhere, ``(pp, dp, ep, cp, tp)``."""
    *outer, tp = shape
    groups = list(range(prod(outer)))
    rng.shuffle(groups)
    grid = np.array(groups)[:, None] * tp + np.arange(tp)
    return grid.reshape(shape).astype(np.int64)


def reduce_groups(grid, stage, *, experts):
    """List the ranks of a stage that have the same parameters."""
    _, dp, ep, cp, tp = grid.shape
    if experts:
        return [
            [grid[stage, d, e, c, t] for d, c in product(range(dp), range(cp))]
            for e, t in product(range(ep), range(tp))
        ]
    return [
        [
            grid[stage, d, e, c, t]
            for d, e, c in product(range(dp), range(ep), range(cp))
        ]
        for t in range(tp)
    ]


def share(groups, inside):
    """Sum the part of each group's tensor that leaves a block in a reduce-scatter."""
    total = 0.0
    for group in groups:
        held = sum(device in inside for device in group)
        total += 1.0 - held / len(group) if held else 0.0
    return total


def leaving(grid, inside, group_sizes):
    """Return a block's row, by stage.

    ``[boundary forth, back, dense, expert, *across, *inside]``.
    """
    pp = len(grid)
    row = [[0.0] * pp for _ in range(4 + 2 * len(group_sizes))]
    for stage in range(pp):
        here, there = grid[stage].ravel(), grid[(stage + 1) % pp].ravel()
        for sender, receiver in zip(here, there, strict=True):
            row[0][stage] += sender in inside and receiver not in inside
            row[1][stage] += receiver in inside and sender not in inside
        row[2][stage] = share(reduce_groups(grid, stage, experts=False), inside)
        if grid.shape[2] > 1:
            row[3][stage] = share(reduce_groups(grid, stage, experts=True), inside)
        for option, part in enumerate(group_sizes):
            if option == 0:
                continue
            same_shard, shares_shards = [], []
            for group in reduce_groups(grid, stage, experts=False):
                ranks = sorted(group)
                same_shard += [ranks[place::part] for place in range(part)]
                shares_shards += [
                    ranks[first : first + part] for first in range(0, len(ranks), part)
                ]
            row[4 + option][stage] = share(same_shard, inside)
            row[4 + len(group_sizes) + option][stage] = share(shares_shards, inside)
    return row


@failures.over("seed", range(40))
def test_what_leaves_a_block_is_counted_rank_by_rank(seed):
    rng = random.Random(seed)
    shape = tuple(rng.choice((1, 2, 3)) for _ in range(5))
    grid, num_devices = shuffled(rng, shape), prod(shape)
    ranks = prod(shape[1:4])
    parts = [part for part in range(1, ranks) if ranks % part == 0]
    group_sizes = (ranks, *rng.sample(parts, min(2, len(parts))))
    sizes = sorted(rng.sample([1, 2, 3, 4, 6, 8], 2))
    found = placed_exits(tiers(num_devices, sizes), StageGroups(grid), group_sizes)
    expected = set()
    for size in sizes:
        for first in range(0, num_devices, size):
            inside = set(range(first, first + size))
            row = leaving(grid, inside, group_sizes)
            numbers = tuple(round(x, 9) for part in row for x in part)
            expected.add((float(size), numbers))
    rows = {
        (inverse, tuple(np.concatenate([each.ravel() for each in row]).round(9)))
        for *row, inverse in zip(*found[:4], strict=True)
    }
    assert rows == expected
    assert not found.is_choice


def drawn_sizes(rng):
    """Draw parallel sizes, and blocks of consecutive devices that divide them all."""
    tp, pp = rng.choice((1, 2)), rng.choice((1, 2, 3, 4, 6))
    cp, ep, dp = rng.choice((1, 2)), rng.choice((1, 1, 2)), rng.choice((1, 2, 3, 4))
    num_devices = tp * pp * cp * ep * dp
    blocks = [
        size
        for size in range(1, num_devices)
        if num_devices % size == 0 and (size % tp == 0 or rng.random() < 0.2)
    ]
    sizes = sorted(rng.sample(blocks, min(2, len(blocks))))
    return Configuration(tp, cp, ep, 1, 1, pp, dp * ep), sizes


def with_exits(case, exits):
    """Give a plan other exits."""
    return replace(
        case,
        exits=exits.shares.tolist(),
        exits_across=exits.across.tolist(),
        exits_inside=exits.inside.tolist(),
        exit_inverses=exits.inverses.tolist(),
        is_choice=exits.is_choice,
    )


def passes_of_no_time(case):
    """Return changes that leave only what is sent."""
    times = ("forward", "backward", "sharded", "hidden", "wires")
    return {name: np.zeros_like(getattr(case, name)).tolist() for name in times}


@failures.over("seed", range(60))
def test_no_placement_sends_less_out_of_its_blocks_than_the_relaxed_one(seed):
    """Tensor groups stand anywhere; passes and parameters are arbitrary."""
    rng = random.Random(seed)
    configuration, sizes = drawn_sizes(rng)
    tp, cp, ep, _, _, pp, dp, *_ = configuration
    bounds = tiers(configuration.devices, sizes)
    ranks = dp * cp
    part = rng.choice([n for n in range(1, ranks + 1) if ranks % n == 0])
    relaxed = relaxed_exits(bounds, configuration, NUM_OPTIONS)
    zero = rng.randrange(4)
    option = rng.randrange(2) if zero else 0
    while (case := drawn_case(rng, zero, option)).p != pp:
        pass
    case = replace(case, groups=[float(ranks), float(part)])
    # Of experts there are none unless they are spread.
    if ep == 1:
        case = replace(case, expert=[0.0] * len(case.expert))
    if seed % 2:
        case = replace(case, **passes_of_no_time(case))
    least = max((compiled(with_exits(case, one)) for one in relaxed), default=0.0)
    for _ in range(20):
        grid = shuffled(rng, (pp, dp // ep, ep, cp, tp))
        placed = placed_exits(bounds, StageGroups(grid), (ranks, part))
        assert least <= compiled(with_exits(case, placed)) * (1.0 + 1e-9)


def test_a_relaxed_placement_sends_something():
    """Four replicas of one stage over two blocks: gradients must leave them."""
    bounds = tiers(8, [4])
    (one,) = relaxed_exits(bounds, Configuration(1, 1, 1, 1, 1, 1, 8), 1)
    # Half of each of the eight ranks' gradients ends outside of its block.
    assert one.shares[:, 2, 0].tolist() == [0.5]
    assert not one.shares[:, 3].any()
    assert one.is_choice
    # Blocks of two of the four replicas of an expert, and of the eight of the rest.
    (one,) = relaxed_exits(tiers(8, [2]), Configuration(1, 1, 2, 1, 1, 1, 8), 1)
    assert one.shares[:, 2:4, 0].tolist() == [[0.75, 0.5]]


def test_nothing_is_known_of_idle_devices_and_of_groups_that_straddle():
    bounds = tiers(8, [4])
    assert relaxed_exits(bounds, Configuration(1, 1, 1, 1, 1, 1, 4), 1) == ()
    bounds = tiers(12, [4])
    assert relaxed_exits(bounds, Configuration(3, 1, 1, 1, 1, 1, 4), 1) == ()
