"""What clusters cost and draw, against sums on paper."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestsim.evaluate.cost import RunCost, cluster_cost
from nestsim.scenario.hardware.cost import CostSpec, LinkPrice, SwitchPrice
from tests.topologies.test_parts import GBIT, leaf_spine, rail
from topologies.builders import build_network
from topologies.errors import InputError
from topologies.specs import TorusSpec

LINK = LinkPrice(
    bandwidth=400 * GBIT,
    nic=1500.0,
    nic_power=25.0,
    switch_port=900.0,
    switch_port_power=20.0,
    cable=500.0,
    transceiver=700.0,
    transceiver_power=8.0,
)
BOUGHT = CostSpec(
    currency="USD",
    device=25_000.0,
    node=80_000.0,
    years=4.0,
    electricity=0.08 / 3.6e6,
    power_usage_effectiveness=1.2,
    device_power=700.0,
    power_factor=0.9,
    node_power=2500.0,
    links=(LINK,),
)


def changed(**values):
    from dataclasses import replace

    return replace(BOUGHT, **values)


def test_a_bought_cluster_is_the_sum_of_its_parts():
    cost = cluster_cost(BOUGHT, build_network(rail()))
    # 1,024 cables from NICs to rail switches, 1,024 from those to spines.
    network = 1024 * (1500 + 900 + 500 + 2 * 700) + 1024 * (2 * 900 + 500 + 2 * 700)
    assert cost.network_capital == network
    assert cost.capital == network + 1024 * 25_000 + 128 * 80_000
    network_power = 1024 * (25 + 20 + 16) + 1024 * (40 + 16)
    power = network_power + 1024 * 700 * 0.9 + 128 * 2500
    assert cost.network_power == pytest.approx(1.2 * network_power, rel=1e-12)
    assert cost.power == pytest.approx(1.2 * power, rel=1e-12)
    hourly = cost.capital / (4 * 365 * 24) + 1.2 * power / 1000 * 0.08
    assert cost.rate * 3600 == pytest.approx(hourly, rel=1e-12)


def test_rent_is_of_every_device_and_says_nothing_of_the_network():
    spec = CostSpec(currency="EUR", device_hour=2.5 / 3600, device_power=700.0)
    cost = cluster_cost(spec, build_network(rail()))
    assert cost.rate * 3600 == pytest.approx(1024 * 2.5, rel=1e-12)
    assert cost.capital is None
    assert cost.network_rate is None
    assert cost.power == 1024 * 700.0
    run = RunCost(cluster=cost, iteration_time=2.0, tokens_per_second=1e6)
    assert run.network_share_of_cost is None
    assert run.network_share_of_power is None


def test_whole_switches_are_as_many_as_their_ports_need():
    # 64 ports: a rail switch has 32 down and 32 up; the spines have 1,024 together.
    switch = SwitchPrice(bandwidth=64 * 400 * GBIT, price=40_000.0, power=1000.0)
    spec = changed(links=(LinkPrice(bandwidth=400 * GBIT, cable=1.0),))
    spec = CostSpec(years=1.0, links=spec.links, switches=(switch,))
    for ratio, spines in ((1.0, 16), (2.0, 8), (3.0, 6), (32.0, 1)):
        network = build_network(rail(oversubscription=ratio))
        parts = cluster_cost(spec, network).parts
        count = {one.level: one.count for one in parts if one.name == "switches"}
        assert count == {"rail unit": 32, "spine": spines}


def test_entries_that_name_a_level_hold_there_alone():
    inside = LinkPrice(bandwidth=450e9, levels=("node",), cable=10.0)
    spine = LinkPrice(bandwidth=800 * GBIT, levels=("spine",), cable=2000.0)
    cost = cluster_cost(changed(links=(inside, LINK, spine)), build_network(rail()))
    cables = {one.level: one for one in cost.parts if one.name == "cables"}
    assert (cables["node"].count, cables["node"].price) == (1024, 10_240.0)
    assert (cables["rail unit"].count, cables["rail unit"].price) == (1024, 512_000.0)
    assert (cables["spine"].count, cables["spine"].price) == (512, 1_024_000.0)
    alone = cluster_cost(changed(links=(spine,)), build_network(rail()))
    assert alone.unpriced_levels == ("rail unit",)


def test_the_slowest_link_that_carries_a_cable_counts():
    speeds = tuple(
        LinkPrice(bandwidth=speed * GBIT, cable=1.0) for speed in (800, 200, 400)
    )
    spec = CostSpec(years=1.0, links=speeds)
    network = build_network(leaf_spine(nic_bandwidth=300 * GBIT))
    cost = cluster_cost(spec, network)
    speed = {one.level: one.speed for one in cost.parts if one.name == "cables"}
    # A leaf's one cable to its spine carries 32 x 300 Gbit/s: the fastest, 12 of them.
    assert speed == {"leaf": 400 * GBIT, "spine": 800 * GBIT}
    count = {one.level: one.count for one in cost.parts if one.name == "cables"}
    assert count == {"leaf": 128, "spine": 4 * 12}


def test_a_torus_has_adapters_at_both_ends_and_no_switch():
    spec = TorusSpec(dimensions=(4, 4), wrap=(True, True), bandwidth=50e9, latency=1e-6)
    cost = cluster_cost(BOUGHT, build_network(spec))
    assert cost.network_capital == 32 * (2 * 1500 + 500 + 2 * 700)
    nodes = next(one for one in cost.parts if one.name == "nodes")
    assert nodes.count == 2


def test_a_level_that_there_is_not_is_refused():
    wrong = LinkPrice(bandwidth=1e9, levels=("spine", "core"), cable=1.0)
    with pytest.raises(InputError) as caught:
        cluster_cost(changed(links=(LINK, wrong)), build_network(rail()))
    assert caught.value.where == "cost.links[1].levels[1]"
    assert '"rail unit"' in caught.value.expected


def test_power_that_nobody_knows_is_no_power():
    cost = cluster_cost(CostSpec(node_power=2500.0), build_network(rail()))
    assert cost.power is None
    assert cost.rate is None


def test_a_run_costs_its_time_at_the_clusters_rate():
    cost = cluster_cost(changed(tokens=3e11), build_network(rail()))
    run = RunCost(cluster=cost, iteration_time=8.0, tokens_per_second=4e5)
    assert run.step_cost == 8.0 * cost.rate
    assert run.step_energy == 8.0 * cost.power
    assert run.tokens_per_money == 4e5 / cost.rate
    assert run.tokens_per_joule == 4e5 / cost.power
    assert run.run_time == 3e11 / 4e5
    assert run.run_cost == pytest.approx(3e11 / run.tokens_per_money, rel=1e-12)
    assert run.run_energy == pytest.approx(3e11 / run.tokens_per_joule, rel=1e-12)
    share = cost.network_capital / cost.capital
    assert run.network_share_of_capital == share
    assert run.network_share_of_power == cost.network_power / cost.power
    assert 0 < run.network_share_of_cost < 1


PRICES = (
    "nic",
    "nic_power",
    "switch_port",
    "switch_port_power",
    "cable",
    "transceiver",
    "transceiver_power",
)


@given(
    name=st.sampled_from(PRICES),
    more=st.floats(0, 1e5),
    ratio=st.floats(0.5, 20),
    speed=st.floats(1e5, 1e7),
)
def test_dearer_links_never_make_a_cheaper_run(name, more, ratio, speed):
    from dataclasses import replace

    dear = replace(LINK, **{name: getattr(LINK, name) + more})
    network = build_network(leaf_spine(oversubscription=ratio))
    costs = [
        RunCost(
            cluster=cluster_cost(changed(links=(link,), tokens=1e12), network),
            iteration_time=1.0,
            tokens_per_second=speed,
        )
        for link in (LINK, dear)
    ]
    assert costs[1].run_cost >= costs[0].run_cost
    assert costs[1].tokens_per_money <= costs[0].tokens_per_money


@given(ratio=st.floats(0.5, 20), worse=st.floats(1, 20))
def test_a_worse_network_is_never_dearer(ratio, worse):
    switch = SwitchPrice(bandwidth=25.6e12 / 8, price=40_000.0, power=1000.0)
    spec = changed(switches=(switch,))
    before, after = (
        cluster_cost(spec, build_network(leaf_spine(oversubscription=one)))
        for one in (ratio, ratio * worse)
    )
    assert after.capital <= before.capital
    assert after.rate <= before.rate


@given(speed=st.floats(1, 1e9), faster=st.floats(1, 100))
def test_more_throughput_is_never_dearer_for_a_token(speed, faster):
    cost = cluster_cost(BOUGHT, build_network(leaf_spine()))
    slow, fast = (
        RunCost(cluster=cost, iteration_time=1.0, tokens_per_second=one)
        for one in (speed, speed * faster)
    )
    assert fast.tokens_per_money >= slow.tokens_per_money
    assert fast.tokens_per_joule >= slow.tokens_per_joule
