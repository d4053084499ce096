"""Devices of several accelerators in one cluster: the table, and what becomes of it."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import nestsim
from nestsim.cli import main
from nestsim.document.terminal import print_document
from nestsim.evaluate.cluster import device_fleet
from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import explain_job, simulate_job
from nestsim.evaluate.results import found_values
from nestsim.features.goodput.job import goodput_job
from nestsim.features.memory.job import memory_job
from nestsim.features.run.assumptions import assumptions_json, assumptions_rows
from nestsim.features.run.explain import explain_document, explain_json
from nestsim.features.run.figures import memory_title
from nestsim.scenario.load import Scenario, load_scenario
from planner.explain.request import Request
from planner.rivals.protocol import fits
from tests import failures
from topologies import InputError
from topologies.accelerators import load_accelerator

FILE = Path(__file__).parents[3] / "scenarios/mixed/llama2_7b_32_a100_h100.toml"
A100, H100 = load_accelerator("a100-80gb"), load_accelerator("h100-sxm")
GROUPS = "cluster.groups"


def two_groups(first, second, sizes=(16, 16)):
    return [
        {"accelerator": accelerator, "num_devices": size}
        for accelerator, size in zip((first, second), sizes, strict=True)
    ]


@pytest.fixture(scope="module")
def scenario():
    return load_scenario(FILE)


@pytest.fixture(scope="module")
def result(scenario):
    return simulate_job(scenario)


def test_groups_follow_each_other(scenario):
    assert [group.accelerator for group in scenario.groups] == [A100, H100]
    fleet = device_fleet(scenario, 32)
    assert [kind.accelerator for kind in fleet.kinds] == [A100, H100]
    assert fleet.of_device.tolist() == [0] * 16 + [1] * 16


def test_groups_and_slow_devices_are_kinds_of_one_fleet(scenario):
    degraded = {"slow_devices": [{"device": 3, "factor": 1.5}]}
    slow = scenario.replace({"cluster.degraded": degraded})
    fleet = device_fleet(slow, 32)
    assert [(kind.accelerator, kind.factor) for kind in fleet.kinds] == [
        (A100, 1.0),
        (A100, 1.5),
        (H100, 1.0),
    ]
    assert np.flatnonzero(fleet.factors() > 1.0).tolist() == [3]


def test_groups_of_the_clusters_own_accelerator_are_none(scenario):
    same = scenario.replace({GROUPS: two_groups("h100-sxm", "h100-sxm", (8, 24))})
    assert same.groups == ()
    assert device_fleet(same, 32) is None
    document = scenario.document()
    del document["cluster"]["groups"]
    plain = simulate_job(Scenario.from_dict(document, FILE))
    assert simulate_job(same).candidates[0].planned == plain.candidates[0].planned


def test_the_first_group_stands_for_the_cluster_if_nothing_is_said(scenario):
    document = scenario.document()
    del document["cluster"]["accelerator"]
    assert Scenario.from_dict(document, FILE).accelerator == A100


def test_what_is_planned_is_replayed_on_unequal_stages(result):
    (candidate,) = result.candidates
    planned, simulated = candidate.planned, candidate.simulated
    # Transfers meet gradients that are reduced behind the passes, which no plan knows.
    slower = simulated.iteration_time - planned.iteration_time
    assert candidate.verdict.gap.terms["contention"] == pytest.approx(slower, abs=1e-9)
    assert 0.0 <= slower < 3e-4 * planned.iteration_time
    layers = [stage.chunks for stage in candidate.priced.plan.stages]
    assert layers == [((0, 8),), ((9, 34),)]
    assert candidate.verdict.kind == "confirmed"


def test_a_mixed_cluster_is_between_those_of_either_accelerator(scenario, result):
    def times(name):
        groups = two_groups(name, name)
        even = scenario.replace({GROUPS: groups, "cluster.accelerator": name})
        (candidate,) = simulate_job(even).candidates
        return candidate.planned.iteration_time, candidate.simulated.iteration_time

    (candidate,) = result.candidates
    mixed = candidate.planned.iteration_time, candidate.simulated.iteration_time
    for fast, between, slow in zip(
        times("h100-sxm"), mixed, times("a100-80gb"), strict=True
    ):
        assert fast < between < slow


def test_stages_by_pace_are_faster_than_equal_ones(scenario, result):
    equal = scenario.replace({"plan.num_layers_per_pipeline_stage": [16, 16]})
    (slower,) = simulate_job(equal).candidates
    (candidate,) = result.candidates
    assert slower.simulated.iteration_time > 1.4 * candidate.simulated.iteration_time


def test_mfu_is_of_the_peak_of_all_devices(result):
    found = result.candidates[0].simulated
    peak = (A100.peak_flops["bf16"] + H100.peak_flops["bf16"]) / 2
    assert found.mfu == pytest.approx(found.flops_per_device / peak, rel=1e-12)


def test_reports_list_the_groups(result):
    rows = assumptions_rows(result.assumptions)
    assert rows["devices"] == "a100-80gb (80 GiB): 0-15; h100-sxm (80 GiB): 16-31"
    assert rows["operator times"] == "from the rates of a100-80gb and h100-sxm"
    groups = assumptions_json(result.assumptions)["groups"]
    assert [one["devices"] for one in groups] == [["0-15"], ["16-31"]]


def test_a_stage_is_held_to_the_memory_of_its_own_devices(scenario):
    small = {"like": "a100-80gb", "memory": "20 GB"}
    for groups, kind in (
        # The first stage needs some 12 GiB, the second one 26.
        (two_groups(small, "h100-sxm"), "confirmed"),
        (two_groups("h100-sxm", small), "infeasible"),
    ):
        changed = scenario.replace({GROUPS: groups})
        (candidate,) = simulate_job(changed).candidates
        assert candidate.verdict.kind == kind
        evaluator = Evaluator.of(changed)
        assert evaluator.workload.smallest_of().memory_bytes == 20e9


@failures.over(
    ("values", "where", "words"),
    [
        ({GROUPS: two_groups("a100-80gb", "h100-sxm", (16, 8))}, "groups", "24"),
        ({GROUPS: two_groups("a100-80gb", "a100-80gb")}, "accelerator", "h100-sxm"),
        ({GROUPS: two_groups("a100-80gb", "h100-sxm", (32, 0))}, "groups", "1"),
        ({GROUPS: []}, "groups", ""),
        ({GROUPS: two_groups("a100-80gbb", "h100-sxm")}, "groups[0]", "a100-80gb"),
        (
            {GROUPS: two_groups({"like": "a100-80gb", "memory": "1 GB"}, "h100-sxm")},
            "memory_reserve",
            "a100-80gb",
        ),
    ],
)
def test_groups_that_make_no_cluster_are_refused(scenario, values, where, words):
    with pytest.raises(InputError) as caught:
        scenario.replace(values)
    assert f"cluster.{where}" in str(caught.value)
    assert words in str(caught.value)


@failures.over(
    "groups",
    [
        [],
        "h100-sxm",
        ["h100-sxm"],
        [{"num_devices": 32}],
        [{"accelerator": 5, "num_devices": 32}],
        [{"accelerator": {}, "num_devices": 32}],
        [{"accelerator": "h100", "num_devices": 32}],
        [{"accelerator": {"like": "h100"}, "num_devices": 32}],
    ],
)
def test_what_is_wrong_with_groups_is_said_of_them_alone(scenario, groups):
    document = scenario.document()
    del document["cluster"]["accelerator"]
    document["cluster"]["groups"] = groups
    with pytest.raises(InputError) as caught:
        Scenario.from_dict(document, FILE)
    assert ": cluster.groups" in str(caught.value)
    assert "cluster.accelerator" not in str(caught.value)


def test_a_reference_of_the_same_name_but_other_values_is_told_apart(scenario):
    with pytest.raises(InputError, match="h100-sxm of the groups is written otherwise"):
        scenario.replace({"cluster.accelerator": {"like": "h100-sxm"}})


def test_prices_and_profiles_of_one_device_are_refused(scenario):
    with pytest.raises(InputError, match="cost"):
        scenario.replace({"cost": {"device_hour": "2 USD/h"}})


def test_a_format_that_one_group_cannot_is_refused(scenario):
    with pytest.raises(InputError, match="a100-80gb has no matrix rate"):
        scenario.replace({"training.matmul_precision": "fp8"})


def test_memory_alone_answers_for_one_size_of_memory(scenario):
    assert memory_job(scenario).device_memory == A100.memory_bytes
    small = {"like": "a100-80gb", "memory": "40 GB"}
    changed = scenario.replace({GROUPS: two_groups(small, "h100-sxm")})
    with pytest.raises(InputError, match="several sizes of memory"):
        memory_job(changed)


def test_the_command_simulates_the_scenario(tmp_path, capsys):
    words = ["simulate", str(FILE), "--verbose", "--no-figures"]
    assert main(words) == 0
    assert "a100-80gb (80 GiB): 0-15" in capsys.readouterr().out


def test_the_face_takes_it(result):
    report = nestsim.simulate(FILE)
    assert report.result.candidates[0].planned == result.candidates[0].planned
    assert replace(result, kind="run").assumptions.groups == result.assumptions.groups


def test_reports_compare_the_fullest_stage_with_its_own_devices(scenario):
    """The second stage needs more, and is on the devices that have more."""
    small = {"like": "a100-80gb", "memory": "20 GB"}
    changed = scenario.replace({GROUPS: two_groups(small, "h100-sxm")})
    found = simulate_job(changed)
    assert found.device_memory == H100.memory_bytes
    assert found.candidates[0].simulated.peak_memory > 20e9


@pytest.fixture(scope="module")
def tight(scenario):
    """The second stage needs more bytes, the first one more of what it has."""
    small = {"like": "a100-80gb", "name": "small", "memory": "16 GB"}
    return scenario.replace({GROUPS: two_groups(small, "h100-sxm")})


def test_the_fraction_of_memory_is_of_each_stages_own_devices(tight):
    found = simulate_job(tight)
    peaks = [timeline.peak for timeline in found.candidate.replay.memory]
    assert peaks[0] < peaks[1]
    fraction = found_values(found)["memory_fraction"]
    assert fraction == peaks[0] / 16e9 > peaks[1] / H100.memory_bytes


def test_figures_say_which_stage_lacks_memory_if_it_is_not_the_fullest(scenario):
    small = {"like": "a100-80gb", "memory": "10 GB"}
    changed = scenario.replace({GROUPS: two_groups(small, "h100-sxm")})
    found = simulate_job(changed)
    assert found.candidate.verdict.kind == "infeasible"
    title = memory_title(found.candidate, found.usable_memory)
    assert title.startswith("Stage 0 needs ")


def test_an_explanation_compares_both_plans_with_their_own_devices(tight):
    result = explain_job(
        tight, Request.parse("tp=2,pp=2,b=1,dp=8,zero=0,recompute=none")
    )
    explanation = result.explanation
    workload, reserve = Evaluator.of(tight).workload, tight.search.memory_reserve
    for priced, stage, memory in (
        (explanation.priced, explanation.lacking_stage, explanation.memory),
        (explanation.winner, explanation.winner_stage, explanation.winner_memory),
    ):
        devices = priced.plan.stages[stage].devices
        assert memory == workload.memory_on(devices, reserve)
    devices = explanation.priced.plan.stages[explanation.lacking_stage].devices
    assert result.device_name == workload.smallest_of(devices).name
    shown = explain_json(result)
    assert shown["winner"]["fullest_stage"] == explanation.winner_stage
    assert shown["named_plan"]["fullest_stage"] == explanation.lacking_stage


def test_an_explanation_shows_no_times_that_are_rounding_alone(tight):
    result = explain_job(tight, Request.parse("tp=2,pp=2,b=1"))
    winner = result.explanation.winner
    rounded = replace(winner, terms={**winner.terms, "bubble": -3.5e-18})
    explanation = replace(result.explanation, winner=rounded)
    console = Console(file=StringIO(), width=120)
    document = explain_document(replace(result, explanation=explanation))
    print_document(document, console, verbose=True)
    assert "e-09 ns" not in console.file.getvalue()


def test_the_network_is_shown_with_the_devices_of_all_groups(scenario, capsys):
    assert main(["topology", str(FILE), "--no-figures"]) == 0
    text = capsys.readouterr().out
    assert text.index("Devices 0-15") < text.index("a100-80gb (NVIDIA)")
    assert text.index("Devices 16-31") < text.index("h100-sxm (NVIDIA)")
    assert main(["topology", str(FILE), "--no-figures", "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [one["devices"] for one in groups] == [["0-15"], ["16-31"]]


def test_reports_name_the_devices_of_all_groups(scenario):
    assert scenario.device_names == "a100-80gb and h100-sxm"
    goodput = goodput_job(
        scenario.replace({"goodput": {"seeds": 2, "duration": "2 d"}})
    )
    assert goodput.device_name == scenario.device_names


@pytest.mark.parametrize("first", ["small", "large"])
def test_an_explained_plan_fits_if_each_stage_does(scenario, first):
    small = {"like": "a100-80gb", "memory": "20 GB"}
    pair = (small, "h100-sxm") if first == "small" else ("h100-sxm", small)
    changed = scenario.replace({GROUPS: two_groups(*pair)})
    explanation = explain_job(changed, Request.parse("tp=2,pp=2,b=1")).explanation
    workload = Evaluator.of(changed).workload
    plan = explanation.priced.plan
    assert explanation.fits == fits(workload, changed.search, plan, None)
    peak = explanation.priced.stages[explanation.lacking_stage].peak_memory
    assert explanation.missing_memory == peak - explanation.memory
