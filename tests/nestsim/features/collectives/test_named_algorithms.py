"""Collective algorithms that a plan names: priced and replayed as the same messages."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimators.collectives.algorithms import (
    ALGORITHM_NAMES,
    IN_NETWORK,
    algorithm_or_ring,
    in_network_algorithms,
)
from estimators.collectives.cost import ALGORITHMS, collective_rates
from estimators.collectives.phases import RING_OPERATIONS
from nestsim.cli import main
from nestsim.evaluate.cluster import build_job
from nestsim.lowering.collectives import (
    collective_lockstep_phases,
    collective_phases,
    find_lockstep_groups,
)
from nestsim.lowering.lower import lower_plan
from nestsim.scenario.load import load_scenario
from nestsim.simulator.build import build_model
from nestsim.simulator.flows import build_flows
from nestsim.simulator.replay import fold_model, replay
from nestsim.simulator.system import ReplaySettings
from nestsim.simulator.work import LayerTraffic, LockstepTraffic
from planner.cost.groups import StageGroups
from planner.cost.pricing import price_plan, rates_of
from planner.cost.rates import AlgorithmChoice, PricedGrid
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from tests import failures
from tests.nestsim.ideal import ideal_text
from tests.nestsim.simulator.cases import pipeline
from tests.nestsim.simulator.test_folding import assert_same_run
from tests.topologies.strategies import degraded, tori, trees
from topologies import InputError

SCENARIOS = Path(__file__).parents[4] / "scenarios"

OPERATIONS = st.sampled_from(sorted(RING_OPERATIONS))

relaxed = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def placed_groups(draw):
    """Return a network and the devices of one stage, shape ``(d, t)``."""
    network = draw((trees | tori | degraded).filter(lambda n: n.num_devices >= 2))
    if network.rules is not None and draw(st.booleans()):
        rules = replace(
            network.rules,
            is_library=draw(st.booleans()),
            adds_in_switches=draw(st.booleans()),
            summed_weight=draw(st.sampled_from([0.0, 1.0, 1.18])),
        )
        network = replace(network, rules=rules)
    n = network.num_devices
    d = draw(st.integers(2, min(n, 9)))
    t = draw(st.integers(1, min(4, n // d)))
    order = np.arange(n)
    if draw(st.booleans()):
        order = np.array(draw(st.permutations(range(n))))
    return network, order[: d * t].reshape(d, t)


def lone_flow_time(network, flows, numbers):
    """Return how long flows take one after another, each alone [s]."""
    total = 0.0
    incidence = flows.incidence
    for flow in numbers:
        here = slice(incidence.indptr[flow], incidence.indptr[flow + 1])
        share = incidence.weights[here] / network.links.bandwidth[incidence.links[here]]
        slowest = share.max(initial=0.0)
        total += flows.latency[flow] + flows.num_bytes[flow] * slowest
    return total


def name_on(data, network):
    """Draw an algorithm that a network has."""
    added = in_network_algorithms(network.rules)
    return data.draw(st.sampled_from((*added, *ALGORITHM_NAMES)))


@given(placed=placed_groups(), data=st.data(), operation=OPERATIONS)
@relaxed
def test_phases_of_a_stage_take_as_long_alone_as_the_price_says(
    placed, data, operation
):
    network, devices = placed
    name = name_on(data, network)
    groups = np.ascontiguousarray(devices.T)
    phases = collective_phases(network, operation, groups, name, 1e6)
    work = pipeline(devices[None], 1, reduce_phases=(phases,))
    flows = build_flows(network, work)
    found = lone_flow_time(network, flows, flows.reduce[0])
    used = algorithm_or_ring(name, operation)
    (rate,) = collective_rates(network, operation, groups[None], used)
    assert found == pytest.approx(rate.time(1e6), rel=1e-9)
    assert_same_run(
        fold_model(build_model(network, work)), build_model(network, work).system
    )


@given(placed=placed_groups(), data=st.data(), operation=OPERATIONS)
@relaxed
def test_phases_of_lockstep_groups_are_those_of_their_groups(placed, data, operation):
    network, devices = placed
    name = name_on(data, network)
    lockstep = find_lockstep_groups(devices.T, np.ascontiguousarray(devices.T))
    phases = collective_lockstep_phases(network, lockstep, operation, name, 1e6)
    traffic = LockstepTraffic("tensor", lockstep.of_replica, phases)
    layers = LayerTraffic(collectives=((traffic,),), passes={})
    work = pipeline(devices.T[None], 1, layers=layers)
    flows = build_flows(network, work)
    used = algorithm_or_ring(name, operation)
    for number, group in enumerate(devices.T):
        alone = flows.in_passes[0][0][:, number]
        (rate,) = collective_rates(network, operation, group[None, None], used)
        level_by_level = used in IN_NETWORK or used.startswith("hierarchical")
        if not level_by_level:
            # Levels are those at which all groups split evenly, not those of one.
            found = lone_flow_time(network, flows, alone)
            assert found == pytest.approx(rate.time(1e6), rel=1e-9)
        ends = [
            phase.sources[phase.lockstep == number].tolist()
            for phase in phases
            if hasattr(phase, "sources")
        ]
        assert all(set(sources) <= set(group.tolist()) for sources in ends)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    file = tmp_path_factory.mktemp("ideal") / "job.toml"
    file.write_text(ideal_text("llama2_7b_64_h100"), encoding="utf-8")
    network, workload = build_job(load_scenario(file), None)
    return network, workload


@pytest.fixture(scope="module")
def adding(llama):
    """The same job where switches add up, those of nodes slower than they pass on."""
    network, workload = llama
    rules = replace(network.rules, adds_in_switches=True, summed_weight=1.25)
    return replace(network, rules=rules), workload


@failures.over("granularity", ["stage", "layer"])
@failures.over("name", [*ALGORITHM_NAMES, *IN_NETWORK])
def test_a_plan_of_one_stage_is_replayed_in_the_time_that_it_is_priced_at(
    adding, name, granularity
):
    network, workload = adding
    spec = PlanSpec(
        micro_batch_size=1,
        tensor_model_parallel_size=4,
        zero_stage=0 if name in IN_NETWORK else 1,
        gradient_algorithm=name,
        tensor_algorithm=name,
    )
    plan = build_plan(network, workload, spec)
    assert (plan.gradient_algorithm, plan.tensor_algorithm) == (name, name)
    priced = price_plan(network, workload, plan)
    how = ReplaySettings(granularity=granularity)
    done = replay(network, lower_plan(network, workload, priced, how), how)
    assert done.iteration_time == pytest.approx(priced.iteration_time, rel=1e-6)


def test_algorithms_have_prices_of_their_own(llama):
    network, workload = llama
    times = {}
    for name in ALGORITHM_NAMES:
        spec = PlanSpec(
            micro_batch_size=1, tensor_model_parallel_size=4, tensor_algorithm=name
        )
        plan = build_plan(network, workload, spec)
        times[name] = price_plan(network, workload, plan).iteration_time
    assert times["direct"] < times["ring"]
    assert len(set(times.values())) >= 4


@pytest.mark.parametrize("name", IN_NETWORK)
def test_sums_in_switches_are_refused_where_no_switch_adds_up(llama, adding, name):
    network, workload = llama
    spec = PlanSpec(micro_batch_size=1, gradient_algorithm=name)
    with pytest.raises(InputError, match="no switches of the network") as caught:
        build_plan(network, workload, spec)
    assert caught.value.where == "gradient_algorithm"
    assert f"({name} = true)" in str(caught.value)
    groups = np.arange(8).reshape(1, 1, 8)
    with pytest.raises(InputError, match="no switches of the network"):
        collective_rates(network, "all_reduce", groups, name)
    assert build_plan(*adding, spec).gradient_algorithm == name


def test_auto_takes_sums_in_switches_where_they_are_cheaper(llama, adding):
    spec = PlanSpec(micro_batch_size=1, tensor_model_parallel_size=8, zero_stage=0)
    before, after = (build_plan(*each, spec) for each in (llama, adding))
    assert before.gradient_algorithm in ALGORITHMS
    assert after.gradient_algorithm == "sharp"
    old, new = (
        price_plan(*each, plan).iteration_time
        for each, plan in ((llama, before), (adding, after))
    )
    assert new < old


def test_naming_an_algorithm_does_not_change_what_auto_takes(llama):
    network, workload = llama
    plan = build_plan(network, workload, PlanSpec(micro_batch_size=1))
    auto = AlgorithmChoice("auto", 1.0)
    groups = StageGroups(np.arange(64).reshape(1, 16, 1, 1, 4))
    before, grid_rates = PricedGrid(network, groups), PricedGrid(network, groups)
    named = grid_rates.rates(auto._replace(name="direct"), auto)
    assert named.tensor_algorithm == "direct"
    for size in (1.0, 1e9):
        choice = AlgorithmChoice("auto", size)
        ours, theirs = (each.rates(choice, choice) for each in (grid_rates, before))
        assert ours.tensor_algorithm == theirs.tensor_algorithm
        assert ours.tensor_algorithm in ALGORITHMS
    assert rates_of(network, workload, plan).gradient_algorithm in ALGORITHMS


def test_the_command_line_takes_every_algorithm_and_lists_them(
    tmp_path, monkeypatch, capsys
):
    text = (SCENARIOS / "llama2_7b_64_h100.toml").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    plan = "\n[plan]\nmicro_batch_size = 1\ntensor_model_parallel_size = 4\n"
    file = tmp_path / "named.toml"
    for name in ("halving-doubling", "halving"):
        file.write_text(f'{text}{plan}gradient_algorithm = "{name}"\n', "utf-8")
        status = main(["simulate", "named.toml", "--json"])
        captured = capsys.readouterr()
        if name in ALGORITHM_NAMES:
            assert status == 0
            assert f'"gradient_algorithm": "{name}"' in captured.out
        else:
            assert status == 2
            assert "named.toml: plan.gradient_algorithm" in captured.err
            assert all(known in captured.err for known in ALGORITHM_NAMES)
