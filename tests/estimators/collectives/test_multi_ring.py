"""Collectives round all rings of a torus: as fast as links allow, and possible."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from estimators.collectives.cost import collective_rates, searched_algorithms
from estimators.collectives.phases import RING_OPERATIONS
from estimators.collectives.tori import MULTI_RING, Side, multi_ring_exchanges
from tests import failures
from topologies import (
    FatTreeSpec,
    InputError,
    LevelSpec,
    PodsSpec,
    TorusSpec,
    build_network,
)

WIRE = 8.0  # bytes a second
LATENCY = 0.5


def torus(*sides, wrap=True):
    return build_network(
        TorusSpec(
            dimensions=sides,
            wrap=(wrap,) * len(sides),
            bandwidth=WIRE,
            latency=LATENCY,
        )
    )


def rate(network, operation, groups):
    (found,) = collective_rates(network, operation, groups[None], MULTI_RING)
    return found


def everyone(network):
    return np.arange(network.num_devices)[None]


@failures.over("operation", sorted(RING_OPERATIONS))
@failures.over("sides", [(4,), (8, 4), (4, 8, 8), (16, 16, 12), (3, 5)])
def test_a_torus_takes_bytes_over_bidirectional_bandwidth_times_axes(operation, sides):
    """Austin et al., "How to Scale Your Model", part 3; hops of half a ring."""
    network = torus(*sides)
    n, passes = network.num_devices, 2 if operation == "all_reduce" else 1
    found = rate(network, operation, everyone(network))
    bidirectional = 2 * WIRE
    expected = passes * (n - 1) / n / (bidirectional * len(sides))
    assert found.inverse_bandwidth == pytest.approx(expected)
    hops = sum(side // 2 for side in sides)
    assert found.latency == pytest.approx(passes * hops * LATENCY)


def test_a_dimension_of_two_and_a_line_receive_over_one_link():
    assert rate(torus(2, 8), "all_gather", everyone(torus(2, 8))) == pytest.approx(
        (LATENCY * (1 + 4), 15 / 16 / (3 * WIRE))
    )
    mesh = torus(4, 4, wrap=False)
    assert rate(mesh, "all_gather", everyone(mesh)) == pytest.approx(
        (LATENCY * 6, 15 / 16 / (2 * WIRE))
    )


def test_planes_of_a_torus_do_not_meet():
    network = torus(4, 8, 8)
    planes = np.arange(256).reshape(4, 64)
    expected = 63 / 64 / (4 * WIRE)
    assert rate(network, "all_gather", planes).inverse_bandwidth == pytest.approx(
        expected
    )
    columns = np.arange(256).reshape(4, 64).T.copy()
    assert rate(network, "all_gather", columns).inverse_bandwidth == pytest.approx(
        3 / 4 / (2 * WIRE)
    )


def test_pods_are_crossed_by_what_is_left_of_their_tori():
    pod = TorusSpec(
        dimensions=(4, 4), wrap=(True, True), bandwidth=WIRE, latency=LATENCY
    )
    network = build_network(
        PodsSpec(
            pod=pod,
            num_pods=2,
            devices_per_nic=1,
            nic_bandwidth=1.0,
            nic_latency=1.0,
            latency=1.0,
        )
    )
    found = rate(network, "reduce_scatter", everyone(network))
    inside, between = 15 / 16 / (4 * WIRE), 1 / 2 / 16 / 1.0
    assert found.inverse_bandwidth == pytest.approx(inside + between)
    reduced = rate(network, "all_reduce", everyone(network))
    assert reduced.inverse_bandwidth == pytest.approx(2 * (inside + between))


def loads_of(order, axes):
    """Return bytes that a link of each axis carries if axes are gathered in an order.

    Brute force: pieces are passed round rings, one block at a time, and counted.
    """
    sizes = [axis.size for axis in axes]
    loads = np.zeros(len(axes))
    held = 1.0 / math.prod(sizes)  # of the tensor, before the first axis
    for axis in order:
        size, closed = axes[axis]
        carried = np.zeros((2, size))  # of the link out of each place, both ways
        for block in range(size):
            if not closed:  # to both ends of the line
                carried[0, block : size - 1] += 1
                carried[1, 1 : block + 1] += 1
            elif size == 2:
                carried[0, block] += 1
            else:  # half of it either way round, to all others
                for k in range(size - 1):
                    carried[0, (block + k) % size] += 0.5
                    carried[1, (block - k) % size] += 0.5
        loads[axis] = carried.max() * held
        held *= size
    return loads


axes = st.lists(
    st.builds(Side, st.integers(2, 7), st.booleans()), min_size=1, max_size=3
).map(tuple)


@given(axes)
@settings(max_examples=60)
def test_pieces_in_different_orders_can_load_links_no_more_than_is_charged(sides):
    """There are shares of the orders, of sum 1, that do it; and none do better."""
    (exchange,) = multi_ring_exchanges("all_gather", sides, ())
    orders = list(itertools.permutations(range(len(sides))))
    loads = np.array([loads_of(order, sides) for order in orders]).T
    charged = np.full(len(sides), exchange.fraction)
    # The least largest load over all shares of the orders.
    best = linprog(
        [*np.zeros(len(orders)), 1.0],
        A_ub=np.hstack([loads, -np.ones((len(sides), 1))]),
        b_ub=np.zeros(len(sides)),
        A_eq=[[*np.ones(len(orders)), 0.0]],
        b_eq=[1.0],
    )
    assert best.fun == pytest.approx(charged[0])
    n = math.prod(side.size for side in sides)
    ports = sum(side.num_ports for side in sides)
    assert exchange.fraction * ports == pytest.approx((n - 1) / n)


def test_searches_in_tori_choose_it_and_trees_do_not_have_it():
    assert MULTI_RING in searched_algorithms(torus(4, 4))
    level = LevelSpec(name="node", fan_out=4, bandwidth=1.0, latency=0.0)
    tree = build_network(FatTreeSpec(levels=(level,)))
    assert MULTI_RING not in searched_algorithms(tree)
    with pytest.raises(InputError, match="only tori and meshes"):
        collective_rates(tree, "all_gather", np.arange(4)[None, None], MULTI_RING)
