"""Degraded clusters: from the scenario to the plan, the replay and the summary."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from estimators.platform import message_time
from nestsim.cli import main
from nestsim.evaluate.cluster import build_job, cluster_network, device_fleet
from nestsim.features.topology.trees import find_wear
from nestsim.lowering.lower import lower_plan
from nestsim.scenario.load import load_scenario
from nestsim.simulator.replay import replay
from planner.cost.pricing import price_plan
from planner.search.best_first import search
from planner.step.instructions import FORWARD
from tests import failures
from tests.planner.fleets import slow_fleet
from topologies import (
    Degradation,
    FatTreeSpec,
    LevelSpec,
    SlowDevice,
    SlowLinks,
    TorusSpec,
    build_network,
    degrade,
)

SCENARIOS = Path(__file__).parents[3] / "scenarios"
DEGRADED = SCENARIOS / "llama2_7b_64_h100_degraded.toml"

WRONG_INPUT = 2

SLOWDOWN = 1.1
"""Of device 21."""

REMOVED = 'removed_links = ["leaf 0 <-> spine 1"]'
SLOW = 'links = "device 40 <-> leaf 2", factor = 4.0'
DEVICE = "device = 21"

CASES = {
    "no such vertex": (
        *(REMOVED, 'removed_links = ["leaf 0 <-> spine 2"]', "removed_links[0]"),
        ("no such vertex", "got:      'spine 2'", 'did you mean "spine'),
    ),
    "no neighbours": (
        *(REMOVED, 'removed_links = ["device 0 <-> spine 1"]', "removed_links[0]"),
        ("no such link", "two names of neighbours"),
    ),
    "no selector": (
        *(REMOVED, 'removed_links = ["leaf 0"]', "removed_links[0]"),
        ("does not name links", '"leaf 0 -> spine 1"'),
    ),
    "no such level": (
        *(SLOW, 'links = "level leav", factor = 4.0', "slow_links[0].links"),
        ("no such level", 'did you mean "leaf"?'),
    ),
    "speeding up": (
        *(SLOW, 'links = "level leaf", factor = 0.5', "slow_links[0].factor"),
        ("got:      0.5",),
    ),
    "no factor": (
        *(SLOW, 'links = "level leaf"', "slow_links[0].factor"),
        ("missing",),
    ),
    "no such device": (
        *(DEVICE, "device = 64", "slow_devices[0].device"),
        ("no such device", "got:      64", "0 to 63"),
    ),
    "negative device": (
        *(DEVICE, "device = -1", "slow_devices[0].device"),
        ("got:      -1",),
    ),
    "a device and a fraction": (
        *(DEVICE, "device = 21, fraction = 0.1", "slow_devices[0].device"),
        ("by none or both", "either device = 5 or fraction = 0.01"),
    ),
    "neither device nor fraction": (
        *("device = 21, factor", "factor", "slow_devices[0].device"),
        ("by none or both",),
    ),
    "more than all devices": (
        *(DEVICE, "fraction = 1.5", "slow_devices[0].fraction"),
        ("got:      1.5",),
    ),
    "a seed of a device": (
        *(DEVICE, "device = 21, seed = 3", "slow_devices[0].seed"),
        ("goes with a fraction alone",),
    ),
    "a device is no switch": (
        *(REMOVED, 'removed_switches = ["device 3"]', "removed_switches[0]"),
        ("is a device, which cannot be removed",),
    ),
    "cut off": (
        *(REMOVED, 'removed_switches = ["spine *"]', ""),
        ("cuts devices off from the others",),
    ),
    "the same twice": (
        *(REMOVED, f"{REMOVED[:-1]}, {REMOVED[17:]}", "removed_links[1]"),
        ("stands in the list twice",),
    ),
    "unknown key": (
        *(REMOVED, 'removed_link = ["leaf 0 <-> spine 1"]', "removed_link"),
        ('did you mean "removed_links"?',),
    ),
}


@failures.over("command", ["topology", "plan", "collectives"])
@failures.over("case", CASES.values(), ids=CASES.keys())
def test_a_mistake_is_told_with_file_setting_and_reason(
    case, command, tmp_path, monkeypatch, capsys
):
    old, new, setting, words = case
    text = DEGRADED.read_text(encoding="utf-8")
    assert old in text
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text(text.replace(old, new, 1), encoding="utf-8")
    assert main([command, "bad.toml"]) == WRONG_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    where = f"cluster.degraded.{setting}" if setting else "cluster.degraded:"
    assert f"bad.toml: {where}" in captured.err
    for word in words:
        assert word in captured.err


def test_the_table_becomes_what_the_network_takes():
    assert load_scenario(DEGRADED).degradation == Degradation(
        removed_links=("leaf 0 <-> spine 1",),
        slow_links=(SlowLinks(links="device 40 <-> leaf 2", factor=4.0),),
        slow_devices=(SlowDevice(device=21, factor=SLOWDOWN),),
    )
    assert load_scenario(SCENARIOS / "llama2_7b_64_h100.toml").degradation is None


def test_no_route_uses_what_was_removed():
    scenario = load_scenario(DEGRADED)
    network = cluster_network(scenario)
    whole = build_network(scenario.network_spec)
    names = network.vertex_names
    ends = names.index("leaf 0"), names.index("spine 1")
    gone = np.isin(network.links.source, ends) & np.isin(network.links.target, ends)
    assert gone.sum() == 2
    sources, targets = (a.ravel() for a in np.indices((64, 64)))
    assert not gone[network.routes(sources, targets).links].any()
    assert gone[whole.routes(sources, targets).links].any()
    slow = network.links.bandwidth < whole.links.bandwidth
    assert slow.sum() == 2
    assert (whole.links.bandwidth[slow] == 4 * network.links.bandwidth[slow]).all()


@pytest.fixture(scope="module")
def planned():
    """Return the job's scenario, network, workload and best plan."""
    scenario = load_scenario(DEGRADED)
    scenario = replace(scenario, search=replace(scenario.search, keep_best=1))
    network, workload = build_job(scenario, None)
    (best,) = search(network, workload, scenario.search).plans
    return scenario, network, workload, best


def test_a_slow_device_slows_down_the_actor_that_it_is_part_of(planned):
    scenario, network, workload, best = planned
    fleet = device_fleet(scenario, network.num_devices)
    assert workload.fleet.factors().tolist() == fleet.factors().tolist()
    work = lower_plan(network, workload, best)
    slow = (work.devices == 21).any(axis=2)
    assert slow.sum() == 1
    (stage,) = np.flatnonzero(slow.any(axis=1))
    slow = slow[stage]
    own, other = (work.of_kind(int(work.kind[stage, of].max())) for of in (slow, ~slow))
    assert own.optimizer_time[stage] > other.optimizer_time[stage]
    # The host takes the same for the messages of a slow device.
    messages = 2.0 * message_time(workload.platform)
    compute = [
        times.forward_time[stage] - times.sent_in(FORWARD, stage) - messages
        for times in (own, other)
    ]
    assert compute[0] == pytest.approx(SLOWDOWN * compute[1], rel=1e-12)
    assert any("21 (" in said for said in work.notes)
    healthy = workload.on(None)
    even = lower_plan(network, healthy, price_plan(network, healthy, best.plan))
    assert even.others == ()
    assert not any("slow device" in said for said in even.notes)


@pytest.mark.parametrize("granularity", ["stage", "layer"])
def test_a_slower_device_never_shortens_the_step_and_folding_is_exact(
    planned, granularity
):
    scenario, network, workload, best = planned
    settings = replace(scenario.simulation, granularity=granularity)
    times = []
    for factor in (1.0, 1.25, 3.0):
        slowdown = np.ones(64)
        slowdown[21] = factor
        job = workload.on(slow_fleet(workload, slowdown))
        priced = price_plan(network, job, best.plan)
        work = lower_plan(network, job, priced, settings)
        folded = replay(network, work, settings)
        unfolded = replay(network, work, replace(settings, folding=False))
        assert folded.iteration_time == unfolded.iteration_time
        assert folded.links.num_bytes.tolist() == unfolded.links.num_bytes.tolist()
        times.append(folded.iteration_time)
    assert times[0] < times[1] < times[2]


def test_the_summary_says_what_is_degraded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["topology", str(DEGRADED), "-o", "network.svg"]) == 0
    out = capsys.readouterr().out
    for words in (
        "leaf 0 <-> spine 1    removed (2 directed links)",
        "device 40 <-> leaf 2  bandwidth divided by 4 (2 directed links)",
        f"device 21             computes {SLOWDOWN:g} times as long",
    ):
        assert words in out
    assert "removed" in Path("network.svg").read_text(encoding="utf-8")
    assert main(["topology", str(DEGRADED), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["degraded"] == {
        "removed_links": ["leaf 0 <-> spine 1"],
        "removed_switches": [],
        "slow_links": [{"links": "device 40 <-> leaf 2", "factor": 4.0}],
        "slow_devices": [{"device": 21, "factor": SLOWDOWN}],
    }
    whole = SCENARIOS / "llama2_7b_64_h100.toml"
    assert main(["topology", str(whole), "-o", "whole.svg"]) == 0
    assert "Degraded" not in capsys.readouterr().out
    assert "removed" not in Path("whole.svg").read_text(encoding="utf-8")


def test_a_fraction_is_told_with_the_number_of_its_devices(tmp_path, capsys):
    text = DEGRADED.read_text(encoding="utf-8")
    file = tmp_path / "some.toml"
    file.write_text(text.replace(DEVICE, "fraction = 0.1, seed = 4"), encoding="utf-8")
    assert main(["topology", str(file), "--no-figures"]) == 0
    told = f"10.0 % of the devices, seed 4  6 devices compute {SLOWDOWN:g} times"
    assert told in capsys.readouterr().out
    assert main(["topology", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["degraded"]["slow_devices"] == [
        {"fraction": 0.1, "factor": SLOWDOWN, "seed": 4, "num_devices": 6}
    ]
    factors = device_fleet(load_scenario(file), 64).factors()
    assert sorted(factors.tolist()) == [1.0] * 58 + [SLOWDOWN] * 6


TORUS = TorusSpec(dimensions=(4, 4), wrap=(True, True), bandwidth=10.0, latency=1.0)


def test_wear_is_what_is_left_in_the_worse_direction():
    network = build_network(TORUS)
    assert find_wear(network) == {}
    left = degrade(
        network,
        Degradation(
            removed_links=("device 0 -> device 1", "device 4 <-> device 8"),
            slow_links=(
                SlowLinks(links="device 1 <-> device 2", factor=2.0),
                SlowLinks(links="device 2 -> device 1", factor=2.0),
                SlowLinks(links="device 1 -> device 0", factor=2.0),
            ),
        ),
    )
    assert find_wear(left) == {(0, 1): 0.0, (4, 8): 0.0, (1, 2): 0.25}


def test_one_of_several_cables_gone_is_a_part():
    levels = (
        LevelSpec(name="node", fan_out=4, bandwidth=8.0, latency=0.0),
        LevelSpec(name="leaf", fan_out=2, bandwidth=32.0, latency=0.0, num_cables=4),
    )
    network = build_network(FatTreeSpec(levels=levels, trunk="ecmp"))
    left = degrade(network, Degradation(removed_links=("node 0 <-> leaf 0 #1",)))
    ends = network.vertex_names.index("node 0"), network.vertex_names.index("leaf 0")
    assert find_wear(left) == {ends: 0.75}
