"""The scenario of 10 T parameters on 110,592 devices: what it is said to be."""

from pathlib import Path

import pytest

from estimators.tracing.trace import trace_model
from nestsim.evaluate.cluster import job_network
from nestsim.scenario.load import load_scenario

SCENARIO = load_scenario(Path("scenarios/moe_10t_110592_gb300.toml"))


def test_the_mixture_has_ten_trillion_parameters() -> None:
    spec = SCENARIO.spec
    hidden, width = 12288, 5632
    experts = 93 * 512 * 3 * hidden * width
    total = trace_model(spec).num_parameters
    assert experts < total
    assert total == pytest.approx(1e13, rel=0.02)


def test_every_rack_and_pod_is_full() -> None:
    network = job_network(SCENARIO)
    assert network.num_devices == 64 * 36 * 48
    assert [*network.block_sizes] == [64, 64 * 36, 64 * 36 * 48]
