"""The space of placements against its definition."""

import numpy as np
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from planner.search.placements import Extents, placements
from tests.planner.naive_placements import naive_placements

MOST_DEVICES = 64


@st.composite
def blocks(draw):
    """Nested blocks of a tree, or any rising sizes, of which tori may have many."""
    if draw(st.booleans()):
        fan_outs = st.lists(st.sampled_from([2, 3, 4, 5, 6, 8]), min_size=1, max_size=3)
        sizes = np.cumprod(draw(fan_outs)).tolist()
        assume(sizes[-1] <= MOST_DEVICES)
        return tuple(sizes)
    most = draw(st.integers(2, MOST_DEVICES))
    inner = draw(st.sets(st.integers(2, most), max_size=2))
    return tuple(sorted({*inner, most}))


@st.composite
def clusters(draw):
    """Sizes, and a cluster that they fit, with devices to spare more often than not."""
    block_sizes = draw(blocks())
    num_devices = left = block_sizes[-1]
    sizes = {}
    for name in draw(st.permutations(Extents._fields)):
        most = min(left, 8 if name in {"dp", "pp"} else 4)
        sizes[name] = draw(st.integers(1, most))
        left //= sizes[name]
    return Extents(**sizes), num_devices, block_sizes


def grids(case):
    return [tuple(one.grid.ravel().tolist()) for one in placements(*case)]


@given(clusters())
@settings(max_examples=200)
def test_placements_are_those_of_the_definition(case):
    found = grids(case)
    assert set(found) == naive_placements(*case)
    assert len(set(found)) == len(found)
    event(f"{min(len(found) // 10 * 10, 100)} placements or more")


@given(clusters())
@settings(max_examples=80)
def test_no_placement_gives_a_device_away_twice_or_leaves_the_cluster(case):
    sizes, num_devices, _ = case
    for numbers in naive_placements(*case):
        assert len(set(numbers)) == np.prod(sizes)
        assert set(numbers) <= set(range(num_devices))
    for numbers in grids(case):
        assert len(set(numbers)) == np.prod(sizes)
        assert set(numbers) <= set(range(num_devices))


@given(clusters(), st.integers(1, 40))
@settings(max_examples=80)
def test_more_devices_in_the_same_blocks_only_add_placements(case, more):
    sizes, num_devices, block_sizes = case
    larger = placements(sizes, num_devices + more, block_sizes)
    assert set(grids(case)) <= {tuple(one.grid.ravel().tolist()) for one in larger}


def test_a_gap_stands_between_the_parts_of_a_dimension_only_with_another_one_to_come():
    """What the definition says of parts with nothing but a gap between them."""
    alone = naive_placements((1, 1, 1, 1, 3), 12, (2, 12))
    beside = naive_placements((1, 1, 1, 2, 3), 12, (2, 12))
    assert (0, 1, 3) not in alone
    assert (0, 6, 1, 7, 3, 9) in beside
