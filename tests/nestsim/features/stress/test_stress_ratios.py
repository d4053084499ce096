"""Other ratios: the same switches with the bandwidths that were asked for."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.features.stress.conditions import (
    built_ratios,
    canonical,
    network_ratios,
    ratio_condition,
    with_ratios,
)
from nestsim.features.stress.evaluator import ConditionEvaluator
from tests import failures
from tests.nestsim.features.stress.clusters import small
from topologies import (
    FatTreeSpec,
    LevelSpec,
    PodsSpec,
    RailSpec,
    SpineLeafSpec,
    TorusSpec,
    build_network,
)
from topologies.errors import InputError

ratio = st.floats(0.25, 64.0)


def fat_tree(nic: str, trunk: str, given_bandwidth: bool) -> FatTreeSpec:
    levels = (
        LevelSpec(name="node", fan_out=4, bandwidth=400e9, latency=1e-6),
        LevelSpec(
            name="leaf",
            fan_out=2,
            bandwidth=50e9 if given_bandwidth else None,
            latency=1e-6,
            oversubscription=2.0,
        ),
        LevelSpec(name="spine", fan_out=3, latency=1e-6),
    )
    return FatTreeSpec(levels=levels, nic=nic, trunk=trunk)  # type: ignore[arg-type]


SPINE_LEAF = {
    "devices_per_node": 4,
    "node_bandwidth": 400e9,
    "node_latency": 1e-6,
    "nic_bandwidth": 50e9,
    "nic_latency": 1e-6,
    "spine_latency": 1e-6,
    "num_spines": 2,
    "oversubscription": 2.0,
}
SPECS = {
    **{
        f"fat-tree {nic} {trunk} {given}": fat_tree(nic, trunk, given)
        for nic in ("node", "device")
        for trunk in ("ideal", "ecmp")
        for given in (True, False)
    },
    "spine-leaf": SpineLeafSpec(nodes_per_leaf=2, num_leaves=3, **SPINE_LEAF),  # type: ignore[arg-type]
    "rail": RailSpec(nodes_per_unit=2, num_units=3, **SPINE_LEAF),  # type: ignore[arg-type]
}


@failures.over("kind", SPECS)
@settings(max_examples=15)
@given(inner=ratio, outer=ratio)
def test_a_network_has_the_ratios_that_were_asked_for(
    kind: str, inner: float, outer: float
) -> None:
    spec = SPECS[kind]
    built = build_network(spec)
    first, second = built_ratios(built)
    changed = build_network(with_ratios(spec, {second: outer, first: inner}))
    assert built_ratios(changed) == pytest.approx({first: inner, second: outer})
    assert changed.vertex_names == built.vertex_names
    assert np.array_equal(changed.links.source, built.links.source)
    nodes = built.links.level == 0
    assert np.array_equal(changed.links.bandwidth[nodes], built.links.bandwidth[nodes])


@failures.over("kind", SPECS)
def test_the_ratios_as_built_are_the_network_as_built(kind: str) -> None:
    built = build_network(SPECS[kind])
    same = build_network(with_ratios(SPECS[kind], built_ratios(built)))
    np.testing.assert_allclose(same.links.bandwidth, built.links.bandwidth, rtol=1e-12)
    assert canonical(built_ratios(built), built_ratios(same)) == ()


TORUS = TorusSpec(dimensions=(4,), wrap=(True,), bandwidth=1e9, latency=1e-6)


@failures.over("pod", [TORUS, SPECS["spine-leaf"]], ids=["torus", "tree"])
def test_pods_have_the_ratios_that_were_asked_for_inside_and_between(pod) -> None:
    spec = PodsSpec(
        pod=pod, num_pods=2, nic_bandwidth=1e9, nic_latency=1e-6, latency=1e-6
    )
    built = built_ratios(build_network(spec))
    assert built == built_ratios(build_network(pod)) | {"pod": 1.0}
    asked = {level: 3.0 + number for number, level in enumerate(built)}
    changed = with_ratios(spec, asked)
    assert built_ratios(build_network(changed)) == pytest.approx(asked)


def test_a_level_without_links_up_is_refused_with_those_that_have_some() -> None:
    with pytest.raises(InputError) as raised:
        with_ratios(SPECS["spine-leaf"], {"spine": 2.0})
    assert 'expected: "node" or "leaf"' in str(raised.value)
    with pytest.raises(InputError, match="no level with links to one above"):
        with_ratios(TORUS, {"dimension 0": 2.0})


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> ConditionEvaluator:
    return ConditionEvaluator.of(small(tmp_path_factory.mktemp("ratios")))


@settings(max_examples=25)
@given(
    level=st.sampled_from(["node", "leaf"]),
    low=st.floats(0.5, 40.0),
    factor=st.floats(1.01, 8.0),
    planner=st.sampled_from(["nest", "manual"]),
)
def test_more_oversubscription_never_makes_a_plan_faster(
    evaluator: ConditionEvaluator, level: str, low: float, factor: float, planner: str
) -> None:
    built = network_ratios(evaluator.scenario)
    plan = evaluator.make(ratio_condition(()), planner).plan
    assert plan is not None
    better, worse = (
        evaluator.run(ratio_condition(canonical(built, {level: one})), plan)
        for one in (low, low * factor)
    )
    assert worse.planned >= better.planned * (1.0 - 1e-9)
    # Where transfers meet, a slower network may let them miss each other.
    assert worse.simulated >= better.simulated * (1.0 - 0.01)


def test_a_fixed_plan_without_contention_only_gets_slower(tmp_path: Path) -> None:
    scenario = small(tmp_path)
    alone = {f"{name}_model_parallel_sizes": (1,) for name in ("tensor", "pipeline")}
    evaluator = ConditionEvaluator.of(
        replace(scenario, search=replace(scenario.search, **alone))
    )
    built = network_ratios(evaluator.scenario)
    plan = evaluator.make(ratio_condition(()), "manual").plan
    assert plan is not None
    assert len(plan.stages) == 1, "data parallelism alone: nothing meets"
    times = [
        evaluator.run(ratio_condition(canonical(built, {"leaf": one})), plan).simulated
        for one in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    ]
    assert times == sorted(times)
    assert times[-1] > 1.1 * times[0]
