"""Simulated collectives against closed forms, and against sharing by hand."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.collectives.algorithms import OPERATIONS, algorithms_for
from estimators.collectives.messages import exchange_rates, placed_exchanges
from nestsim.features.collectives.job import bus_factor, measure, sizes_between
from nestsim.features.collectives.runs import (
    Background,
    Repeated,
    build_system,
    busy_time,
    durations,
    evenly,
    reached,
    spans,
    wires_of,
)
from nestsim.lowering.traffic import GroupTraffic
from nestsim.simulator.simpy_engine import simulate
from tests import failures
from topologies import FatTreeSpec, LevelSpec, TorusSpec, build_network

TICK = 2.0**-40
CASES = [(op, name) for op in OPERATIONS for name in algorithms_for(op)]


def tree(nic="node", bandwidths=(80e9, 20e9, 30e9)):
    sizes = (4, 3, 2)
    return build_network(
        FatTreeSpec(
            levels=tuple(
                LevelSpec(name=str(k), fan_out=n, bandwidth=b, latency=2e-6)
                for k, (n, b) in enumerate(zip(sizes, bandwidths, strict=True))
            ),
            nic=nic,
        )
    )


def torus():
    return build_network(
        TorusSpec(
            dimensions=(4, 3, 2),
            wrap=(True, True, False),
            bandwidth=50e9,
            latency=1e-6,
        )
    )


NETWORKS = {"tree": tree(), "rails": tree("device"), "torus": torus()}


def wires(network, operation, groups, name):
    return wires_of(network, placed_exchanges(network, operation, groups, name))


@st.composite
def placed(draw):
    """One or more groups of equal size on 24 devices."""
    devices = draw(st.permutations(range(24)))
    size = draw(st.sampled_from([2, 3, 4, 6, 8, 12]))
    count = draw(st.integers(1, 24 // size))
    return np.array(devices[: count * size]).reshape(count, size)


@given(
    st.sampled_from(sorted(NETWORKS)),
    placed(),
    st.sampled_from(CASES),
    st.integers(1, 2**32),
)
@settings(max_examples=40)
def test_alone_the_simulation_equals_the_closed_form(which, groups, case, size):
    """To half a tick a phase, for the time on the wire and for the latency."""
    network, (operation, name) = NETWORKS[which], case
    ((latency, inverse),) = exchange_rates(network, operation, groups[None], name)
    unit = wires(network, operation, groups, name)
    (times,) = durations(network.links, [Repeated(unit, size, (0.0, 3e-6))])
    expected = latency + size * inverse
    assert times == pytest.approx(expected, abs=(len(unit) + 1) * TICK, rel=1e-14)
    assert times[0] == times[1]


def test_a_ring_of_four_by_hand():
    """S = 4 MB: six rounds of 1 MB over 80 GB/s and two links of 2 us each."""
    unit = wires(tree(), "all_reduce", np.arange(4)[None], "ring")
    (times,) = durations(tree().links, [Repeated(unit, 4e6, (0.0,))])
    assert times[0] == pytest.approx(6 * (2 * 2e-6 + 1e6 / 80e9), abs=2 * TICK)


def test_two_rings_over_one_uplink_take_twice_as_long():
    """Nodes 0 and 1: 20 GB/s out of each, shared by pairs (0, 4) and (1, 5)."""
    network = tree()
    units = [
        Repeated(wires(network, "all_reduce", np.array([pair]), "ring"), 2e6, (0.0,))
        for pair in ([0, 4], [1, 5])
    ]
    latency = 2 * 4 * 2e-6
    (alone,) = durations(network.links, units[:1])
    both = durations(network.links, units)
    assert alone[0] == pytest.approx(latency + 2e6 / 20e9, abs=2 * TICK)
    assert both[0][0] == both[1][0] == pytest.approx(latency + 4e6 / 20e9, abs=4 * TICK)


@given(placed(), st.sampled_from(CASES), st.integers(1, 10**9))
@settings(max_examples=25)
def test_simulating_one_of_each_class_changes_no_moment(groups, case, size):
    network, (operation, name) = NETWORKS["rails"], case
    units = [
        Repeated(wires(network, operation, group[None], name), size, (0.0, 1e-5))
        for group in groups
    ]
    run = simulate(build_system(network.links, units))
    for (starts, ends), *plain in zip(
        spans(network.links, units), run.span_starts, run.span_ends, strict=True
    ):
        assert starts.tobytes() == plain[0].tobytes()
        assert ends.tobytes() == plain[1].tobytes()


# Among other traffic.


def pair_unit(network, pair):
    return wires(network, "send_recv", np.array([pair]), "direct")


def test_a_link_that_is_always_taken_leaves_half_of_its_bandwidth():
    network = tree()
    ours, other = pair_unit(network, [0, 4]), pair_unit(network, [1, 5])
    size = 20e6
    always = Background(other, size, delay=0.0, gap=0.0)
    alone = 4 * 2e-6 + size / 20e9
    busy = busy_time(network.links, [ours], size, [always], alone)
    # Half of the bandwidth but for moments in which the other one's bytes fly.
    assert alone + 0.9 * size / 20e9 < busy <= 4 * 2e-6 + 2 * size / 20e9 + 1e-9


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_what_rests_for_a_share_of_the_time_leaves_the_link_for_that_share(share):
    """Short operations meet the other one as often as it is there."""
    network = tree()
    ours, other = pair_unit(network, [0, 4]), pair_unit(network, [1, 5])
    size, small = 200e6, 2e5
    taken = size / 20e9
    part = Background(other, size, delay=0.0, gap=taken * share / (1 - share))
    wire = small / 20e9
    busy = busy_time(network.links, [ours], small, [part], 4 * 2e-6 + wire)
    slowed = (busy - 4 * 2e-6) / wire - 1.0
    assert slowed == pytest.approx(1 - share, abs=0.12)


def test_what_shares_no_link_with_the_measured_does_not_matter():
    network = tree()
    ours = pair_unit(network, [0, 1])
    near = Background(pair_unit(network, [1, 5]), 1e6, 0.0, 0.0)
    joined = Background(pair_unit(network, [6, 9]), 1e6, 0.0, 0.0)
    bridge = Background(pair_unit(network, [5, 6]), 1e6, 0.0, 0.0)
    apart = Background(pair_unit(network, [20, 21]), 1e6, 0.0, 0.0)
    assert reached(network.links, [ours], [apart]) == []
    found = reached(network.links, [ours], [joined, apart, bridge, near])
    assert {id(one) for one in found} == {id(joined), id(bridge), id(near)}


def test_moments_lie_evenly():
    values = np.sort(evenly(1 + np.arange(20)))
    steps = np.diff(np.concatenate([[0.0], values, [1.0]]))
    assert steps.max() < 2.0 / 20


# The table.


def traffic(groups, operation="all_reduce", kind="data", **changes):
    groups = np.array(groups)
    units = len(groups)
    values = {
        "kind": kind,
        "operation": operation,
        "groups": groups,
        "stage": np.zeros(units, np.int64),
        "num_bytes": np.full(units, 1e7),
        "period": np.full(units, math.inf),
        "algorithm": "ring",
        **changes,
    }
    return GroupTraffic(**values)


def test_columns_are_those_of_nccl_tests():
    """PERFORMANCE.md: algbw = S / t, busbw = algbw times 2 (n - 1) / n."""
    (table,) = measure(tree(), [traffic([[[0, 1, 2, 3]]])], [1024, 2**24])
    for row in table.rows:
        for timing in (row.alone, row.together, row.busy):
            assert timing.algorithm_bandwidth == row.num_bytes / timing.time
            factor = timing.bus_bandwidth / timing.algorithm_bandwidth
            assert factor == pytest.approx(2 * 3 / 4)
    assert table.rows[-1].alone.bus_bandwidth == pytest.approx(80e9, rel=0.03)


@failures.over(
    ("operation", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all", 0.875),
        ("broadcast", 1.0),
        ("send_recv", 1.0),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(operation, factor):
    assert bus_factor(operation, 8) == factor


def test_the_cheapest_algorithm_depends_on_the_size():
    """Few rounds win when small; once over each uplink wins when large."""
    (table,) = measure(tree(), [traffic([[list(range(12))]])], [64, 2**30])
    small, large = table.rows
    assert small.algorithm == "direct"
    assert large.algorithm.startswith("hierarchical")
    for row in table.rows:
        assert row.closed_forms[row.algorithm] == min(row.closed_forms.values())
        assert set(row.closed_forms) == set(algorithms_for("all_reduce"))


def test_of_equally_cheap_algorithms_the_first_is_taken():
    """Two members: a ring, swapped halves and both trees are one and the same."""
    (table,) = measure(tree(), [traffic([[[0, 1]]])], [2**20])
    assert table.rows[0].algorithm == "ring"


def test_alone_is_one_group_and_together_are_all():
    pairs = [[[0, 4]], [[1, 5]], [[2, 6]], [[3, 7]]]
    (table,) = measure(tree(), [traffic(pairs)], [2**30])
    (row,) = table.rows
    assert row.together.time == pytest.approx(4 * row.alone.time, rel=1e-3)
    assert row.busy == row.together


def test_other_kinds_of_groups_are_met_and_ends_of_the_step_are_not():
    pairs, others = [[[0, 4]]], [[[1, 5]]]
    data = traffic(pairs)
    steady = traffic(others, "send_recv", "pipeline", period=np.array([1e-9]))
    once = dataclasses.replace(steady, period=np.array([math.inf]))
    same = dataclasses.replace(steady, kind="data")
    size = 2**28
    busy = measure(tree(), [data, steady], [size])[0].rows[0]
    assert busy.busy.time > 1.8 * busy.together.time
    for unlike in (once, same):
        row = measure(tree(), [data, unlike], [size])[0].rows[0]
        assert row.busy == row.together == busy.together


def test_the_same_input_gives_the_same_table():
    parts = [
        traffic([[[0, 4, 8]], [[1, 5, 9]]], period=np.array([1e-3, 2e-3])),
        traffic([[[2, 6]], [[3, 7]]], "send_recv", "pipeline", period=np.full(2, 1e-3)),
    ]
    first, second = (measure(tree(), parts, [2**10, 2**20]) for _ in range(2))
    assert [table.rows for table in first] == [table.rows for table in second]


def test_sizes_go_up_to_the_last_one():
    assert sizes_between(8, 128, 2) == (8, 16, 32, 64, 128)
    assert sizes_between(8, 127, 4) == (8, 32)
    assert sizes_between(5, 5, 2) == (5,)


def test_progress_names_what_is_measured_and_rises():
    told = []
    parts = [traffic([[[0, 1]]]), traffic([[[0, 1]]], "send_recv", "pipeline")]
    measure(tree(), parts, [8, 16], progress=lambda *words: told.append(words))
    assert [share for _, share in told] == [0.0, 0.25, 0.5, 0.75]
    assert told[-1][0] == "collectives: pipeline send-recv"
