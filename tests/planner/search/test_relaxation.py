"""What bounds need to know of a network, read off by hand."""

from itertools import product

import pytest

from estimators.training import Sizes
from planner.search.bounds import Relaxation
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec, TorusSpec


def tree(nodes: int = 2, racks: int = 1) -> Relaxation:
    levels = (
        LevelSpec(name="node", fan_out=4, bandwidth=8.0, latency=0.5),
        LevelSpec(name="leaf", fan_out=nodes, bandwidth=2.0, latency=0.25),
        LevelSpec(name="spine", fan_out=racks, bandwidth=1.0, latency=0.125),
    )
    used = levels[: 1 + (nodes > 1) + (racks > 1)]
    return Relaxation.of(build_network(FatTreeSpec(levels=used)))


def test_a_tree_has_the_way_out_of_its_nodes() -> None:
    alone, small, large = tree(1).terms, tree().terms, tree(2, 2).terms
    assert alone.hop_latency == 0.5
    assert small.hop_latency == 0.25
    assert large.hop_latency == 0.125
    for terms in (alone, small, large):
        assert terms.hop_inverse == terms.ports_inverse == 1 / 8
    assert (alone.block_size, alone.exit_inverse, alone.exit_link_inverse) == (4, 0, 0)
    for terms in (small, large):
        assert terms.block_size == 4
        assert terms.exit_inverse == terms.exit_link_inverse == 1 / 2
    assert [one.has_racks for one in (alone, small, large)] == [False, False, True]


def test_devices_of_a_torus_send_over_several_links_at_once() -> None:
    network = build_network(
        TorusSpec(dimensions=(3, 3), wrap=(True, True), bandwidth=8.0, latency=0.5)
    )
    terms = Relaxation.of(network).terms
    # Collectives, too, go over all links at once.
    assert (terms.hop_latency, terms.hop_inverse) == (0.5, 1 / 32)
    assert terms.ports_inverse == 1 / 32
    assert (terms.block_size, terms.exit_inverse) == (9, 0.0)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_node_holds_as_many_expert_ranks_as_there_are_and_fit(nodes: int) -> None:
    relaxation = tree(nodes)
    for tp, ep in product((1, 2, 3, 4, 8), (1, 2, 4, 8)):
        most = 1 if nodes == 1 else max(min(ep, 4 // tp), 1)
        spreads = relaxation.expert_spreads(Sizes(tp=tp, cp=1, ep=ep, pp=1, dp=ep))
        assert list(spreads) == list(range(1, most + 1)), (tp, ep)


@pytest.mark.parametrize(("nodes", "racks"), [(1, 1), (2, 1), (2, 2), (3, 1)])
def test_groups_that_no_padding_lets_straddle_nodes_are_aligned(
    nodes: int, racks: int
) -> None:
    relaxation = tree(nodes, racks)
    for tp in range(1, 9):
        # Groups may start at any size of an extent that divides a block.
        starts = [
            size
            for block in relaxation.block_sizes
            for size in range(tp, block + 1)
            if block % size == 0
        ]
        divides = 4 % tp == 0 or tp % 4 == 0
        aligned = divides and all(size % min(tp, 4) == 0 for size in starts)
        assert relaxation.terms_of(tp).is_aligned == aligned, tp


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_an_all_to_all_sends_all_but_its_own_part(ep: int) -> None:
    assert tree().exchange_inverse(ep) == (ep - 1) / ep / 8
