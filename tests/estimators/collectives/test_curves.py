"""Measured curves of collectives: what lies between, below and beyond their knots."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.collectives.cost import algorithm_phases, collective_rates
from estimators.collectives.curves import MeasuredCurves, TimeCurve, measured_curves
from estimators.collectives.messages import exchange_rates
from estimators.collectives.transports import (
    collective_time,
    library_network,
    overhead,
    transfer_time,
    transports,
)
from estimators.software import Software
from tests import failures
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec

FEW = TimeCurve((1e3, 1e6, 2e6), (10e-6, 30e-6, 50e-6))
MANY = TimeCurve((1e3, 1e6, 2e6), (40e-6, 120e-6, 200e-6))
TWO = MeasuredCurves(
    bandwidth=100e9, curves=(("all_gather", 2, FEW), ("all_gather", 8, MANY))
)
MEASURED = sorted(measured_curves())


def test_a_curve_is_flat_below_its_knots_and_a_line_beyond_them():
    assert [FEW.time(size) for size in (0.0, 1e3, 1e6, 2e6)] == [
        *(10e-6, 10e-6),
        *(30e-6, 50e-6),
    ]
    # Half of the way from 1 kB to 1 MB and from 10 us to 30 us, in the logarithms.
    assert FEW.time(math.sqrt(1e9)) == pytest.approx(math.sqrt(300) * 1e-6)
    # 20 us for the last megabyte: 20 ps for each byte.
    assert FEW.slope == pytest.approx(20e-12)
    assert FEW.time(5e6) == pytest.approx(110e-6)


def test_bytes_never_take_longer_than_a_curve():
    steep = TimeCurve((1e3, 1e6, 2e6), (10e-6, 30e-6, 90e-6))
    assert steep.slope == pytest.approx(30e-12)


def test_between_numbers_of_ranks_times_are_means_in_the_logarithm():
    # 4 is half of the way from 2 to 8.
    assert TWO.time("all_gather", 4, 1e6, 100e9) == pytest.approx(60e-6)
    assert TWO.byte_time("all_gather", 4) == pytest.approx(40e-12)
    assert TWO.time("all_gather", 16, 1e6, 100e9) == 120e-6
    assert TWO.time("all_reduce", 4, 1e6, 100e9) is None


def test_a_port_of_half_the_bandwidth_takes_what_twice_the_bytes_do():
    assert TWO.time("all_gather", 2, 1e6, 50e9) == TWO.time("all_gather", 2, 2e6, 100e9)


def test_more_ranks_than_measured_add_the_latency_and_the_bytes_of_the_law():
    law = replace(transports()["default-node"], per_rank=2e-6, curves=TWO)
    eight, sixteen = (
        collective_time(law, "all_gather", ranks, 1e9, 100e9) for ranks in (8, 16)
    )
    wire = 1e9 * MANY.slope * ((15 / 16) / (7 / 8) - 1)
    assert sixteen - eight == pytest.approx(8e-6 + wire)
    # Nothing is known of all-reduces but the law.
    plain = replace(law, curves=None)
    assert collective_time(law, "all_reduce", 4, 1e6, 1e11) == collective_time(
        plain, "all_reduce", 4, 1e6, 1e11
    )


@given(
    st.sampled_from(MEASURED),
    st.sampled_from(("all_reduce", "all_gather", "reduce_scatter", "all_to_all")),
    st.integers(2, 72),
    st.floats(1.0, 1e11),
    st.booleans(),
)
def test_links_and_library_together_take_the_whole(name, operation, ranks, size, sums):
    transport = transports()[name]
    message = (transport, operation, ranks, size, 100e9)
    whole = collective_time(*message)
    assert transfer_time(*message) + overhead(*message) == pytest.approx(whole)
    share = transport.charged(operation, ranks, sums=sums)
    assert 0.0 < share <= transport.reached(operation, ranks)


@failures.over("name", MEASURED)
def test_every_transport_has_all_curves(name):
    curves = measured_curves()[name]
    for operation in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        assert list(curves.of(operation)) == [2, 4, 8]


def test_a_node_of_pcie_is_the_slower_the_more_ranks_share_it():
    # NVIDIA's AIConfigurator on L40S, 512 MiB: 26.7, 150 and 685 ms.
    transport, size = transports()["pcie-l40s"], 2.0**29
    times = [
        collective_time(transport, "all_reduce", ranks, size, 31.5e9)
        for ranks in (2, 4, 8)
    ]
    assert times == pytest.approx([26.66e-3, 150.4e-3, 685.2e-3], rel=0.01)


def test_links_charge_what_rings_of_an_operation_reach():
    node, fabric = transports()["nvswitch-h100"], transports()["default-fabric"]
    spec = FatTreeSpec(
        levels=(
            LevelSpec(
                name="node",
                fan_out=8,
                latency=0.5e-6,
                bandwidth=450e9,
                efficiency=node.efficiency,
            ),
            LevelSpec(name="leaf", fan_out=2, latency=1e-6, bandwidth=50e9),
        ),
        nic="device",
    )
    built = build_network(spec)
    software = Software(name="megatron-core")
    network = library_network(built, node, fabric, software)
    groups = np.array([[[0, 1, 2, 3]]])
    for operation in ("all_gather", "reduce_scatter"):
        (rate,) = collective_rates(network, operation, groups, "ring")
        reached = node.reached(operation, 4) * 450e9
        assert rate.inverse_bandwidth == pytest.approx(0.75 / reached)
        exchanged = exchange_rates(network, operation, groups, "ring")
        assert exchanged[0, 1] == pytest.approx(rate.inverse_bandwidth)
        # What is replayed is what is priced.
        (phase,) = algorithm_phases(network, operation, groups[0], "ring")
        sent = phase.fraction / (450e9 * node.efficiency)
        assert rate.inverse_bandwidth == pytest.approx(sent)
    # Between nodes links are slower than any of it.
    across = np.array([[[0, 8]]])
    for found in (built, network):
        (rate,) = collective_rates(found, "all_gather", across, "ring")
        assert rate.inverse_bandwidth == pytest.approx(0.5 / 50e9)
