"""Circuits through optical switches: every pattern of small switches, and which are."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import failures
from topologies.builders import build_network
from topologies.circuits import assign_circuits, most_peers, optical_switches
from topologies.errors import InputError
from topologies.specs import FatTreeSpec, LevelSpec, RailSpec, TorusSpec

DEMAND = st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.0, 7.0])


@st.composite
def demands(draw, most=3):
    n, m = draw(st.integers(1, most)), draw(st.integers(1, most))
    row = st.lists(DEMAND, min_size=m, max_size=m)
    return np.array(draw(st.lists(row, min_size=n, max_size=n)))


def longest(demand, counts):
    """Return the longest of all transfers, infinite where one has no circuit."""
    needed = demand > 0.0
    with np.errstate(divide="ignore"):
        return (demand[needed] / counts[needed]).max(initial=0.0)


def is_pattern(counts, ports):
    sums = (*counts.sum(axis=0), *counts.sum(axis=1))
    return counts.min() >= 0 and max(sums) <= ports


def every_pattern(shape, ports):
    """Yield all matrices of counts that the ports allow."""
    for counts in itertools.product(range(ports + 1), repeat=shape[0] * shape[1]):
        matrix = np.array(counts).reshape(shape)
        if is_pattern(matrix, ports):
            yield matrix


@given(demands(2), st.integers(1, 4))
def test_no_pattern_at_all_is_better(demand, ports):
    best = min(longest(demand, counts) for counts in every_pattern(demand.shape, ports))
    counts = assign_circuits(demand, np.zeros_like(demand), ports)
    if counts is None:
        assert np.isinf(best)
        assert most_peers(demand) > ports
    else:
        assert is_pattern(counts, ports)
        assert longest(demand, counts) == best


@given(demands(), demands(), st.integers(1, 9))
def test_a_pattern_for_a_phase_is_no_worse_than_that_for_the_step(one, other, ports):
    """And no port is left idle that a transfer of any phase could use."""
    n, m = np.minimum(one.shape, other.shape)
    one, other = one[:n, :m], other[:n, :m]
    whole = assign_circuits(one + other, 0.0 * one, ports)
    part = assign_circuits(one, other, ports)
    if whole is None:
        return
    assert part is not None
    assert longest(one, part) <= longest(one, whole)
    free = (part.sum(axis=1) < ports)[:, None] & (part.sum(axis=0) < ports)
    assert not (free & (one + other > 0.0)).any()


def tree():
    levels = [
        LevelSpec(name=n, fan_out=2, bandwidth=1e9, latency=0.0)
        for n in ("node", "leaf")
    ]
    top = LevelSpec(name="spine", fan_out=2, bandwidth=1e9, latency=0.0)
    return build_network(FatTreeSpec(levels=(*levels, top)))


def rails():
    nodes = {
        "devices_per_node": 2,
        "node_bandwidth": 1e9,
        "nic_bandwidth": 1e9,
        "node_latency": 0.0,
        "spine_latency": 0.0,
        "nic_latency": 0.0,
    }
    return build_network(
        RailSpec(**nodes, nodes_per_unit=3, num_units=1, rail_only=True)
    )


@failures.over(
    ("network", "level", "names"),
    [
        (tree(), "node", ["node 0", "node 1", "node 2", "node 3"]),
        (tree(), "leaf", ["leaf 0", "leaf 1"]),
        (tree(), "spine", ["spine 0"]),
        (rails(), "rail unit", ["rail unit 0 rail 0", "rail unit 0 rail 1"]),
    ],
)
def test_switches_of_a_level_are_those_that_its_links_lead_into(network, level, names):
    chosen = np.flatnonzero(optical_switches(network, level))
    assert [network.vertex_names[vertex] for vertex in chosen] == names


@failures.over(
    ("network", "level", "words"),
    [
        (tree(), "rail", "no such level"),
        (
            build_network(
                TorusSpec(dimensions=(4,), wrap=(True,), bandwidth=1e9, latency=0.0)
            ),
            "1 hop",
            "no switch",
        ),
    ],
)
def test_what_is_no_level_of_switches_is_refused(network, level, words):
    with pytest.raises(InputError, match=words) as caught:
        optical_switches(network, level)
    assert "cluster.optical.level" in str(caught.value)
