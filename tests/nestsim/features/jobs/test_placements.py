"""Placements among those that other jobs leave."""

from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from nestsim.features.jobs.placements import (
    MOST_CANDIDATES,
    Room,
    candidates,
    compact,
    spread,
)
from tests import failures
from topologies.builders import build_network
from topologies.network import Network
from topologies.specs import RailSpec, SpineLeafSpec, TorusSpec


def network(nodes: int = 4, leaves: int = 4, devices: int = 2) -> Network:
    return build_network(
        SpineLeafSpec(
            devices_per_node=devices,
            node_bandwidth=400e9,
            node_latency=1e-6,
            nodes_per_leaf=nodes,
            num_leaves=leaves,
            nic_bandwidth=50e9,
            nic_latency=2e-6,
            spine_latency=3e-6,
        )
    )


def room(*taken: list[int], of: Network | None = None) -> Room:
    return Room.of(of or network(), [np.array(one, np.int64) for one in taken])


def leaves(devices: NDArray[np.int64] | None) -> list[int]:
    """Return how many devices there are below each leaf of the network above."""
    assert devices is not None
    return np.bincount(devices // 8, minlength=4).tolist()


def test_compact_is_the_smallest_block_with_room() -> None:
    assert leaves(compact(room(), 8)) == [8, 0, 0, 0]
    # Leaf 1 has less room than leaf 2, and enough.
    assert leaves(compact(room([*range(8)], [*range(8, 12)]), 4)) == [0, 4, 0, 0]
    assert leaves(compact(room([*range(6)], [*range(8, 10)]), 8)) == [0, 0, 8, 0]


def test_compact_takes_whole_blocks_first_and_the_rest_where_it_just_fits() -> None:
    taken = [*range(4)], [*range(8, 14)]
    assert leaves(compact(room(*taken), 18)) == [0, 2, 8, 8]
    assert leaves(compact(room(*taken), 20)) == [4, 0, 8, 8]


def test_spread_takes_in_turn_from_all_leaves() -> None:
    assert leaves(spread(room(), 8)) == [2, 2, 2, 2]
    assert leaves(spread(room(), 16)) == [4, 4, 4, 4]
    assert leaves(spread(room([*range(8)]), 8)) == [0, 4, 2, 2]


@failures.over("size", [2, 6, 8, 20])
def test_all_candidates_are_free_and_as_many_as_asked_for(size: int) -> None:
    taken = [0, 1, 2, 9, 17, 18, 19]
    for found in candidates(room(taken), size).listed:
        assert len(found.devices) == size
        assert np.array_equal(found.devices, np.unique(found.devices))
        assert not set(found.devices.tolist()) & set(taken)


def test_no_room_is_no_candidate() -> None:
    full = room([*range(30)])
    assert compact(full, 4) is None
    assert spread(full, 4) is None
    assert candidates(full, 4).listed == ()
    # One device of every node is free, which makes no whole node.
    halves = room([*range(0, 32, 2)])
    assert compact(halves, 2) is None
    assert compact(halves, 1) is not None


def alike(one: list[int], other: list[int], taken: list[int], leaves: int) -> bool:
    """Tell by brute force whether exchanging nodes and leaves makes one the other.

    Two nodes of two devices below each leaf; ranks count.
    """

    def marks(devices: list[int]) -> list[object]:
        held = {device: ("job", rank) for rank, device in enumerate(devices)}
        held |= {device: ("taken", rank) for rank, device in enumerate(taken)}
        return [held.get(device) for device in range(4 * leaves)]

    wanted, start = marks(other), marks(one)
    for order in permutations(range(leaves)):
        turned: list[object] = []
        for place, leaf in enumerate(order):
            block = start[4 * leaf : 4 * leaf + 4]
            goal = wanted[4 * place : 4 * place + 4]
            turned += block if block == goal else [*block[2:], *block[:2]]
        if turned == wanted:
            return True
    return False


@failures.over(
    "taken", [[], [0, 1], [0, 1, 4, 5], [*range(6)]], ids=lambda taken: str(len(taken))
)
def test_few_placements_are_all_candidates_and_none_alike(taken: list[int]) -> None:
    free = room(taken, of=network(nodes=2, leaves=3))
    found = candidates(free, 4)
    assert found.is_complete
    listed = [one.devices.tolist() for one in found.listed]
    for first, second in combinations(listed, 2):
        assert not alike(first, second, taken, 3)
    nodes = [node for node in range(6) if 2 * node not in taken]
    for pair in combinations(nodes, 2):
        devices = [device for node in pair for device in (2 * node, 2 * node + 1)]
        assert any(alike(devices, one, taken, 3) for one in listed)


def test_many_placements_are_tried_by_some_of_them() -> None:
    large = network(nodes=8, leaves=16, devices=8)
    found = candidates(room([*range(100)], of=large), 256)
    assert not found.is_complete
    assert 4 <= len(found.listed) <= MOST_CANDIDATES
    labels = [one.label for one in found.listed]
    assert labels[0] == "compact"
    assert "spread, node by node" in labels
    assert "32 in each leaf" in labels


def test_a_worn_network_has_no_placements_alike() -> None:
    even = candidates(room(), 2).listed
    worn = Room.of(network(), [], is_even=False)
    assert len(even) == 1
    assert len(candidates(worn, 2).listed) == 16


def test_rails_and_tori_have_candidates_too() -> None:
    rails = build_network(
        RailSpec(
            devices_per_node=4,
            node_bandwidth=400e9,
            node_latency=1e-6,
            nodes_per_unit=4,
            num_units=2,
            nic_bandwidth=50e9,
            nic_latency=2e-6,
            spine_latency=3e-6,
        )
    )
    torus = build_network(
        TorusSpec(dimensions=(4, 8), wrap=(True, True), bandwidth=1e9, latency=1e-6)
    )
    for one in (rails, torus):
        found = candidates(room([*range(8)], of=one), 8).listed
        assert len(found) > 1
        assert all(len(each.devices) == 8 for each in found)
