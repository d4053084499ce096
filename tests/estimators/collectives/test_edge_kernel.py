"""Kernels that walk routes, to the last bit against explicit routes on all networks."""

import threading
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.collectives import edges
from estimators.collectives.cost import (
    ALGORITHMS,
    collective_rates,
    rates_by_algorithm,
    searched_algorithms,
)
from estimators.collectives.messages import (
    _prepared,
    edge_costs,
    network_arrays,
    slowest_edges,
)
from estimators.collectives.phases import RING_OPERATIONS
from tests import failures
from tests.estimators.oracles import (
    even_split,
    plain_phases,
    price_by_routes,
    rates_by_routes,
)
from tests.topologies.oracles import all_pairs
from tests.topologies.strategies import cabled_fat_trees, degraded, trees
from tests.topologies.strategies import networks as built_networks
from topologies import (
    Degradation,
    Links,
    RailSpec,
    SpineLeafSpec,
    TorusSpec,
    build_network,
    degrade,
)
from topologies.compiling import kernel

networks = built_networks | cabled_fat_trees | degraded

algorithms = st.sampled_from(sorted(ALGORITHMS))
operations = st.sampled_from(sorted(RING_OPERATIONS))
seeds = st.integers(0, 2**32 - 1)


@st.composite
def messages(draw, num_devices, most=20):
    """Sources, targets and rounds; devices may send to themselves."""
    count = draw(st.integers(0, most))
    devices = st.integers(0, num_devices - 1)

    def numbers(strategy):
        drawn = draw(st.lists(strategy, min_size=count, max_size=count))
        return np.array(drawn, dtype=np.int64)

    return numbers(devices), numbers(devices), numbers(st.integers(0, 2))


@st.composite
def groups(draw, num_devices):
    """Groups of several stages: the cluster or a part of it, evenly or at random."""

    def part(whole):
        divisors = [n for n in range(whole, 0, -1) if whole % n == 0]
        return draw(st.sampled_from(divisors))

    size = part(num_devices)
    count = part(num_devices // size)
    stages = part(num_devices // size // count)
    shape = (stages, count, size)
    devices = np.arange(stages * count * size)
    if draw(st.booleans()):
        generator = np.random.default_rng(draw(seeds))
        return generator.permutation(num_devices)[devices].reshape(shape)
    order = draw(st.permutations(range(3)))
    inner = [shape[axis] for axis in order]
    return np.transpose(devices.reshape(inner), np.argsort(order))


def sampled(draw_from, network, data):
    return data.draw(draw_from(network.num_devices))


def bits(values):
    """Make equality of floats mean equality of bits, and show the floats."""
    return [float(value).hex() for value in np.ravel(values)]


walk = kernel(edges._routes.py_func)


def walked(network, sources, targets):
    """Return what `edges._routes` writes, as compressed rows."""
    arrays = network_arrays(network)
    while True:
        links = np.zeros(len(sources) * arrays.longest, dtype=np.uint32)
        ends = np.zeros(len(sources), dtype=np.int64)
        walk(arrays, sources, targets, links, ends)
        if not _prepared(network).find_missing():
            break
        arrays = network_arrays(network)
    return np.concatenate([[0], ends]), links[: ends[-1]]


@given(networks)
@settings(max_examples=60)
def test_walked_routes_are_the_networks_own(network):
    sources, targets = all_pairs(network)
    indptr, links = walked(network, sources, targets)
    expected = network.routes(sources, targets)
    np.testing.assert_array_equal(indptr, expected.indptr)
    np.testing.assert_array_equal(links, expected.links)


@failures.over(
    "spec",
    [
        RailSpec(
            devices_per_node=8,
            node_bandwidth=450e9,
            node_latency=1e-6,
            nodes_per_unit=4,
            num_units=8,
            nic_bandwidth=50e9,
            nic_latency=2e-6,
            spine_latency=1e-6,
            pxn=pxn,
        )
        for pxn in (True, False)
    ]
    + [
        SpineLeafSpec(
            devices_per_node=8,
            node_bandwidth=450e9,
            node_latency=1e-6,
            nodes_per_leaf=4,
            num_leaves=8,
            nic_bandwidth=50e9,
            nic_latency=2e-6,
            spine_latency=1e-6,
            num_spines=7,
            trunk="ecmp",
            ecmp_seed=-3,
        ),
        TorusSpec(
            dimensions=(4, 8, 9),
            wrap=(True, False, True),
            bandwidth=50e9,
            latency=1e-6,
        ),
    ],
    ids=["rail with PXN", "rail without", "ECMP", "torus"],
)
def test_walked_routes_of_some_hundred_devices_are_the_networks_own(spec):
    network = build_network(spec)
    sources, targets = all_pairs(network)
    indptr, links = walked(network, sources, targets)
    expected = network.routes(sources, targets)
    np.testing.assert_array_equal(indptr, expected.indptr)
    np.testing.assert_array_equal(links, expected.links)


@given(networks, st.data())
@settings(max_examples=60)
def test_prices_of_messages_are_those_over_explicit_routes(network, data):
    sources, targets, rounds = sampled(messages, network, data)
    found = edge_costs(network, sources, targets, rounds)
    expected = price_by_routes(network, sources, targets, rounds)
    assert bits(found.latency) == bits(expected.latency)
    assert bits(found.inverse_bandwidth) == bits(expected.inverse_bandwidth)


@given(networks, st.data(), seeds)
@settings(max_examples=30)
def test_the_slowest_of_each_team_is_the_largest_price_in_it(network, data, seed):
    shape = tuple(data.draw(st.tuples(*[st.integers(1, 3)] * 3)))
    generator = np.random.default_rng(seed)
    sources, targets = generator.integers(0, network.num_devices, (2, *shape))
    found = slowest_edges(network, sources, targets)
    rounds = np.repeat(np.arange(shape[0]), shape[1] * shape[2])
    each = edge_costs(network, sources.ravel(), targets.ravel(), rounds)
    for column, prices in enumerate(each):
        assert bits(found[..., column]) == bits(prices.reshape(shape).max(axis=2))


@given(networks, operations, algorithms, st.booleans(), st.data())
@settings(max_examples=80)
def test_rates_are_those_over_explicit_routes(
    network, operation, algorithm, together, data
):
    members = sampled(groups, network, data)
    found = collective_rates(network, operation, members, algorithm, together=together)
    expected = rates_by_routes(
        network, operation, members, algorithm, together=together
    )
    assert bits(found) == bits(expected)


@given(trees, operations, st.booleans())
@settings(max_examples=30)
def test_stages_of_different_shapes_meet_phase_by_phase(network, operation, together):
    """Windows over the whole cluster: split evenly here, across blocks there."""
    size = max(1, network.num_devices // 2)
    starts = np.arange(network.num_devices - size + 1)
    windows = (starts[:, None] + np.arange(size))[:, None, :]
    args = (network, operation, windows, "hierarchical")
    found = collective_rates(*args, together=together)
    assert bits(found) == bits(rates_by_routes(*args, together=together))


@given(networks, st.booleans(), st.data())
@settings(max_examples=30)
def test_pricing_everything_at_once_changes_no_rate(network, together, data):
    members = sampled(groups, network, data)
    found = rates_by_algorithm(network, members, together=together)
    assert set(found) == set(searched_algorithms(network))
    for algorithm, by_operation in found.items():
        for operation, rates in by_operation.items():
            alone = collective_rates(
                network, operation, members, algorithm, together=together
            )
            assert bits(rates) == bits(alone)


@given(networks, operations, algorithms, st.data())
@settings(max_examples=50)
def test_phases_are_the_rings_of_a_grid_of_members(network, operation, algorithm, data):
    for stage in sampled(groups, network, data):
        found = ALGORITHMS[algorithm](operation, stage, network.block_sizes)
        sizes = network.block_sizes
        expected = plain_phases(operation, stage, sizes, algorithm)
        assert [phase[1:] for phase in found] == [phase[1:] for phase in expected]
        for ours, plain in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours.rings, plain.rings)


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]), max_size=4), st.data())
@settings(max_examples=80)
def test_groups_are_split_where_all_of_them_are_alike(inner, data):
    """Also over blocks that are not made of the smaller ones."""
    blocks = np.unique([*inner, 24])
    members = np.sort(data.draw(groups(24)), axis=2)
    shapes = np.full((len(members), len(blocks)), -1)
    alike = edges.split_evenly(np.ascontiguousarray(members), blocks, shapes)
    for stage, shape in zip(members, shapes.tolist(), strict=True):
        expected = even_split(stage, blocks) or (stage.shape[1],)
        assert tuple(size for size in shape if size) == expected
    assert alike == (len({tuple(shape) for shape in shapes.tolist()}) == 1)


@given(networks, algorithms, st.booleans(), seeds, st.data())
@settings(max_examples=30)
def test_the_order_of_stages_groups_and_members_changes_nothing(
    network, algorithm, together, seed, data
):
    members = sampled(groups, network, data)
    generator = np.random.default_rng(seed)
    stages = generator.permutation(len(members))
    others = generator.permutation(members.shape[1])
    shuffled = generator.permuted(members[stages], axis=2)[:, others]
    found, expected = (
        collective_rates(network, "all_reduce", each, algorithm, together=together)
        for each in (shuffled, members)
    )
    assert bits(found) == bits(np.array(expected)[stages])


@given(networks, st.data(), seeds)
@settings(max_examples=30)
def test_the_order_of_messages_changes_nothing(network, data, seed):
    sources, targets, rounds = sampled(messages, network, data)
    order = np.random.default_rng(seed).permutation(len(sources))
    found = edge_costs(network, sources[order], targets[order], rounds[order])
    expected = edge_costs(network, sources, targets, rounds)
    for ours, plain in zip(found, expected, strict=True):
        assert bits(ours) == bits(plain[order])


@given(networks, algorithms, seeds, st.data())
@settings(max_examples=40)
def test_more_bandwidth_anywhere_is_never_slower(network, algorithm, seed, data):
    members = sampled(groups, network, data)
    generator = np.random.default_rng(seed)
    factors = generator.choice([1.0, 1.0, 1.5, 4.0], size=len(network.links))
    columns = {f.name: getattr(network.links, f.name) for f in fields(Links)}
    columns["bandwidth"] = columns["bandwidth"] * factors
    wider = replace(network, links=Links(**columns))
    before = np.array(collective_rates(network, "all_reduce", members, algorithm))
    after = np.array(collective_rates(wider, "all_reduce", members, algorithm))
    assert (after[:, 1] <= before[:, 1]).all()
    assert bits(after[:, 0]) == bits(before[:, 0])


@given(networks, algorithms, st.data())
@settings(max_examples=25)
def test_what_was_priced_before_leaves_no_trace(network, algorithm, data):
    first, second = (sampled(groups, network, data) for _ in range(2))
    fresh = replace(network)
    collective_rates(network, "all_gather", first, algorithm)
    found = collective_rates(network, "all_gather", second, algorithm)
    assert bits(found) == bits(collective_rates(fresh, "all_gather", second, algorithm))


def every_kernel(network, sources, targets, rounds, members):
    """Call the kernels themselves; return all that they write and return."""
    arrays = network_arrays(network)
    arrays = arrays._replace(counts=np.zeros_like(arrays.counts))
    order = np.argsort(rounds, kind="stable")
    prices = np.zeros((2, len(sources)))
    ends = (sources[order], targets[order])
    sorted_enough = [
        edges.price_messages(arrays, *ends, each, prices)
        for each in (rounds[::-1].copy(), rounds[order])
    ]
    slowest = np.zeros((1, 1, 2))
    pairs = (values.reshape(1, 1, -1) for values in (sources, targets))
    edges.price_rounds(arrays, *pairs, slowest)
    blocks = np.array(network.block_sizes)
    ordered = np.sort(members, axis=2)
    shapes = np.zeros((len(ordered), len(blocks)), dtype=np.int64)
    alike = edges.split_evenly(ordered, blocks, shapes)
    size = ordered.shape[2]
    folds = np.array([[[1, size], [1, 1]], [[size, 1], [1, size]]])
    form_of = np.arange(len(ordered)) % 2
    turns = np.array([[0, 1, 0], [1, -1, -1]])
    factors = np.arange(24.0).reshape(2, 3, 2, 2)
    rates = np.zeros((2, 2, len(ordered), 2))
    tables = edges.RingPhaseTables(folds, turns, factors)
    for index, together in enumerate((True, False)):
        edges.price_rings(arrays, ordered, form_of, tables, together, rates[index])
    return [
        sorted_enough,
        bits(prices),
        bits(slowest),
        alike,
        shapes.tolist(),
        bits(rates),
        arrays.counts.tolist(),
    ]


@given(networks, st.data())
@settings(max_examples=40)
def test_kernels_and_their_source_agree(network, data):
    sources, targets, rounds = sampled(messages, network, data)
    members = np.ascontiguousarray(sampled(groups, network, data))
    if data.draw(st.booleans()):
        edge_costs(network, *all_pairs(network))
    compiled = every_kernel(network, sources, targets, rounds, members)
    names = [name for name in vars(edges) if hasattr(vars(edges)[name], "py_func")]
    assert len(names) == 10
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore"):
        for name in names:
            patch.setattr(edges, name, getattr(edges, name).py_func)
        assert every_kernel(network, sources, targets, rounds, members) == compiled


def test_routes_round_a_removed_link_are_found_once():
    network = degrade(torus(), Degradation(removed_links=("device 0 <-> device 1",)))
    sources, targets = all_pairs(network)
    few = edge_costs(network, np.array([0, 5]), np.array([1, 6]))
    known = network_arrays(network).detours.pairs
    assert 0 * 16 + 1 in known
    assert 1 * 16 + 0 not in known
    edge_costs(network, sources, targets)
    known = network_arrays(network).detours.pairs
    assert len(known) == len(network.routing.cut_pairs(sources, targets))
    edge_costs(network, sources, targets)
    assert network_arrays(network).detours.pairs is known
    assert few.inverse_bandwidth.tolist() == [0.1, 0.1]
    assert few.latency.tolist() == [3.0, 1.0]


def torus():
    return build_network(
        TorusSpec(dimensions=(4, 4), wrap=(True, True), bandwidth=10.0, latency=1.0)
    )


@failures.over("wrong", [-1, 16])
def test_numbers_that_are_no_devices_are_refused(wrong):
    with pytest.raises(IndexError, match="0 to 15"):
        edge_costs(torus(), np.array([0, 1]), np.array([1, wrong]))
    with pytest.raises(IndexError, match="0 to 15"):
        slowest_edges(torus(), np.array([[[wrong]]]), np.array([[[0]]]))
    with pytest.raises(IndexError, match="0 to 15"):
        collective_rates(torus(), "all_reduce", np.array([[[0, wrong]]]), "ring")


def test_kernels_are_compiled_once_whatever_arrays_are_given():
    network = torus()
    members = np.arange(16).reshape(2, 2, 4)
    frozen = members.copy()
    frozen.flags.writeable = False
    wide = np.zeros((2, 2, 8), dtype=np.int64)
    wide[..., ::2] = members
    expected = collective_rates(network, "all_reduce", members, "hierarchical")
    for each in (frozen, members.astype(np.int32), wide[..., ::2], members[..., ::-1]):
        found = collective_rates(network, "all_reduce", each, "hierarchical")
        assert found == expected
        slowest_edges(network, each, each[::-1])
        edge_costs(network, each.ravel(), each[::-1].ravel())
    for each in (edges.price_rings, edges.price_rounds, edges.price_messages):
        assert len(each.dispatcher.signatures) == 1


def test_threads_share_a_networks_arrays():
    network = torus()
    members = np.arange(16).reshape(2, 2, 4)
    expected = collective_rates(network, "all_reduce", members, "ring")
    wrong = []

    def price():
        for _ in range(200):
            found = collective_rates(network, "all_reduce", members, "ring")
            wrong.extend([found] if found != expected else [])

    threads = [threading.Thread(target=price) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
