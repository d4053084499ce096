"""Conditions: what they do to a scenario, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from nestsim.evaluate.cluster import cluster_network
from nestsim.features.stress.conditions import (
    all_conditions,
    apply_condition,
    axes_of,
    network_ratios,
)
from nestsim.features.stress.job import stress_job
from nestsim.scenario.load import load_scenario
from nestsim.scenario.stress import BackgroundSpec, ConditionSpec
from tests import failures
from tests.nestsim.features.stress.clusters import TEXT, small
from topologies.degrade import Degradation, SlowLinks
from topologies.errors import InputError


def background(*specs: BackgroundSpec) -> ConditionSpec:
    return ConditionSpec(name="busy", background=specs)


def test_background_traffic_leaves_the_rest_of_each_link(tmp_path: Path) -> None:
    scenario = small(tmp_path)
    before = cluster_network(scenario).links
    condition = background(
        BackgroundSpec(links="level spine", share=0.25),
        BackgroundSpec(links="leaf 0 -> spine 0", rate=2e9),
    )
    after = cluster_network(apply_condition(scenario, condition)).links
    spine = before.level == 2
    names = cluster_network(scenario).vertex_names
    chosen = (before.source == names.index("leaf 0")) & (
        before.target == names.index("spine 0")
    )
    expected = before.bandwidth.copy()
    expected[spine] *= 0.75
    expected[chosen] -= 2e9
    assert chosen.sum() == 1
    np.testing.assert_allclose(after.bandwidth, expected, rtol=1e-12)


def test_background_traffic_that_fills_a_link_is_refused(tmp_path: Path) -> None:
    for specs in (
        [BackgroundSpec(links="level leaf", rate=20e9)],
        [BackgroundSpec(links="level leaf", share=0.5)] * 2,
    ):
        with pytest.raises(InputError, match="leaves nothing of a link"):
            apply_condition(small(tmp_path), background(*specs))


def test_a_condition_adds_to_what_the_scenario_says(tmp_path: Path) -> None:
    more = '[[cluster.degraded.slow_links]]\nlinks = "level leaf"\nfactor = 2.0\n'
    scenario = small(tmp_path, more)
    slow = Degradation(slow_links=(SlowLinks(links="level leaf", factor=3.0),))
    condition = ConditionSpec(
        name="worse", degraded=slow, oversubscription={"leaf": 4.0}, ecmp_seed=7
    )
    links = cluster_network(apply_condition(scenario, condition)).links
    built = cluster_network(small(tmp_path)).links
    # ECMP has a link for each of the cables that an ideal trunk stands for.
    assert links.bandwidth[links.level == 1].max() * 6 == pytest.approx(
        built.bandwidth[built.level == 1].max()
    )
    total = links.bandwidth[links.level == 2].sum()
    assert total * 2 == pytest.approx(built.bandwidth[built.level == 2].sum())


def test_nothing_said_is_five_ratios_of_each_level_above_the_node(
    tmp_path: Path,
) -> None:
    scenario = small(tmp_path)
    built = network_ratios(scenario)
    axes = axes_of(scenario.stress, built)
    assert axes == {"leaf": (1.0, 2.0, 4.0, 8.0, 16.0)}
    names = [one.name for one in all_conditions(scenario.stress, axes, built)]
    # 2:1 is as built, and is there once.
    assert names == ["as built", "leaf 1:1", "leaf 4:1", "leaf 8:1", "leaf 16:1"]


def test_each_ratio_alone_and_every_combination_is_a_condition(tmp_path: Path) -> None:
    axes = {"node": (5.0, 10.0, 20.0), "leaf": (2.0, 4.0)}
    scenario = small(tmp_path, oversubscription=axes)
    built = network_ratios(scenario)
    conditions = all_conditions(scenario.stress, axes_of(scenario.stress, built), built)
    names = {one.name for one in conditions}
    assert len(names) == len(conditions) == 6
    assert {"as built", "node 5:1", "leaf 4:1", "node 20:1, leaf 4:1"} < names


WITHOUT_PLANNERS = TEXT.replace('planners = ["nest", "manual"]', "")

TABLE = """
[[stress.conditions]]
name = "one"
"""

NAMED_AS_RATIO = "oversubscription = { leaf = [4.0] }\n" + TABLE.replace(
    "one", "leaf 4:1"
)

MISTAKES = {
    "unknown level": ("oversubscription = { laef = [1.0] }", "stress.oversubscription"),
    "no ratio": ("oversubscription = { leaf = [0.0] }", "stress.oversubscription.leaf"),
    "unknown planner": ('planners = ["nest", "nset"]', "stress.planners[1]"),
    "no plan": ('planners = ["fixed"]', "stress.planners[0]"),
    "keeping all": ("keep = 1.0", "stress.keep"),
    "unknown asked level": ('keep = 0.9\nlevel = "rack"', "stress.level"),
    "no ratio to ask of": (
        'keep = 0.9\nlevel = "spine"\nquantity = "oversubscription"',
        "stress.quantity",
    ),
    "two of a name": (TABLE + TABLE, "stress.conditions[1].name"),
    "taken name": (NAMED_AS_RATIO, "stress.conditions[0].name"),
    "half a background": (
        TABLE + 'background = [{ links = "level leaf" }]',
        "stress.conditions[0].background[0].rate",
    ),
    "no such link": (
        TABLE + 'background = [{ links = "level laef", share = 0.5 }]',
        'condition "one"',
    ),
    "cut off": (
        TABLE + 'degraded.removed_switches = ["leaf 0"]',
        'condition "one"',
    ),
}


@failures.over("case", MISTAKES)
def test_a_mistake_is_one_error_that_names_the_setting(
    case: str, tmp_path: Path
) -> None:
    text, where = MISTAKES[case]
    path = tmp_path / "wrong.toml"
    path.write_text(WITHOUT_PLANNERS + text, encoding="utf-8")
    with pytest.raises(InputError) as raised:
        stress_job(load_scenario(path))
    assert where in str(raised.value)
    assert "got:" in str(raised.value) or "expected:" in str(raised.value)
