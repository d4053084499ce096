"""Why a step takes as long: each gain is the replay of the plan with one change."""

from dataclasses import replace

import pytest

import nestsim
from nestsim.document.wording import plan_label
from nestsim.evaluate.results import StepCause, WhatIf
from nestsim.features.advise.job import Trials, levers, with_plan
from nestsim.features.run.causes import waits
from nestsim.features.run.document import run_document
from nestsim.features.run.statistics import CAUSES, WAITS, step_causes
from nestsim.features.run.why import LEAST_SHARE, MOST_CAUSES, values_of
from nestsim.features.run.why_document import cause_words
from nestsim.scenario.load import Scenario
from planner.cost.objective import HOST, HOST_TRANSFERS, PART_NAMES
from tests.nestsim.features.run.test_document import shown

HOST_BOUND = """
name = "small"

[model]
family = "gpt"
num_layers = 24
hidden_size = 1024
num_attention_heads = 16
vocab_size = 50304
sequence_length = 1024

[training]
global_batch_size = 64

[software]
preset = "megatron-core"

[cluster]
system = "dgx-h100"
num_devices = 8

[plan]
micro_batch_size = 1
"""

JOB = """
name = "job"

[model]
name = "llama3-8b"
num_layers = 8
sequence_length = 4096

[training]
global_batch_size = 64

[software]
preset = "megatron-core"
overlap_grad_reduce = false

[cluster]
accelerator = "h100-sxm"
num_devices = 32

[cluster.network]
kind = "spine-leaf"
devices_per_node = 8
node_bandwidth = "450 GB/s"
node_latency = "500 ns"
nic_bandwidth = "{nic}"
nic_latency = "1 us"
nodes_per_leaf = 2
num_leaves = 2
spine_latency = "500 ns"
oversubscription = 16.0

[plan]
"""

PLANS = {
    "recompute": (
        "tensor_model_parallel_size = 8\npipeline_model_parallel_size = 2\n"
        'micro_batch_size = 1\nrecompute = "full"\n'
    ),
    "much to keep": 'micro_batch_size = 2\nrecompute = "full"\nzero_stage = 1\n',
    "pipeline": "pipeline_model_parallel_size = 4\nmicro_batch_size = 2\n",
    "gradients": "micro_batch_size = 2\nzero_stage = 1\n",
    "gathers": "micro_batch_size = 1\nzero_stage = 3\n",
}


def job(plan: str, nic: str = "100 Gbit/s") -> Scenario:
    return Scenario.from_toml(JOB.format(nic=nic) + PLANS[plan])


def by_hand(scenario: Scenario, what_if: WhatIf) -> float:
    """Return the time of the job with settings that a user would write [s]."""
    document = scenario.document()
    lever = next(lever for lever in levers() if lever.name == what_if.change)
    for path in lever.drops:
        table, _, name = path.partition(".")
        document[table].pop(name, None)
    changed = Scenario.from_dict(document).replace(dict(what_if.settings))
    return nestsim.simulate(changed).best.simulated.iteration_time


def test_a_host_bound_job_waits_for_launches_and_is_shown_cuda_graphs() -> None:
    report = nestsim.simulate(Scenario.from_toml(HOST_BOUND))
    first, *_ = report.result.why
    assert first.cause == "host launches"
    assert first.share > 0.5
    assert first.what_if.change == "CUDA graphs of a step"
    assert first.what_if.settings == {"software.cuda_graphs": "full_iteration"}
    assert first.what_if.gain > 0.5
    text = shown(run_document(report.result), 120, verbose=False)
    line = next(line for line in text.splitlines() if "host launches" in line)
    assert "CUDA graphs of a step (cuda_graphs = full_iteration): -" in line
    assert "below model error" not in line
    stored = report.to_dict()["why"][0]
    assert stored["cause"] == "host launches"
    assert stored["change"] == "CUDA graphs of a step"
    assert (stored["seconds"], stored["share"]) == (first.seconds, first.share)
    assert stored["gain"] == first.what_if.gain


@pytest.mark.parametrize("plan", PLANS)
def test_each_gain_is_the_replay_of_the_job_with_its_settings(plan: str) -> None:
    scenario = job(plan)
    report = nestsim.simulate(scenario)
    time, why = report.best.simulated.iteration_time, report.result.why
    assert 0 < len(why) <= MOST_CAUSES
    seconds = [cause.seconds for cause in why]
    assert seconds == sorted(seconds, reverse=True)
    assert all(cause.share == cause.seconds / time for cause in why)
    assert all(cause.share > LEAST_SHARE for cause in why)
    changed = [cause.what_if for cause in why if cause.what_if is not None]
    assert changed
    for what_if in changed:
        if what_if.settings:
            assert what_if.iteration_time == by_hand(scenario, what_if), what_if.change
        else:
            assert "uplinks" in what_if.change
        assert what_if.gain == 1.0 - what_if.iteration_time / time


def test_wider_uplinks_are_the_network_with_another_setting() -> None:
    document = job("gradients").document()
    document["software"]["overlap_grad_reduce"] = True
    document["software"]["overlap_param_gather"] = True
    scenario = Scenario.from_dict(document)
    why = nestsim.simulate(scenario).result.why
    wider = [cause.what_if for cause in why if "uplinks" in _change(cause)]
    words = {what_if.change for what_if in wider}
    assert words == {"leaf uplinks 1:1 instead of 16:1"}
    changed = scenario.replace({"cluster.network.oversubscription": 1.0})
    time = nestsim.simulate(changed).best.simulated.iteration_time
    assert {what_if.iteration_time for what_if in wider} == {time}


def _change(cause: StepCause) -> str:
    return "" if cause.what_if is None else cause.what_if.change


def test_what_a_search_found_is_explained_by_replays_of_that_plan() -> None:
    document = job("gradients", "400 Gbit/s").document()
    del document["plan"]
    document["search"] = {"pipeline_model_parallel_sizes": [1, 2], "keep_best": 2}
    document["model"]["num_layers"] = 4
    scenario = Scenario.from_dict(document)
    report = nestsim.run(scenario)
    changed = [cause.what_if for cause in report.result.why if cause.what_if]
    assert changed
    for what_if in changed:
        if what_if.settings and "plan" not in str([*what_if.settings]):
            again = scenario.replace(dict(what_if.settings))
            found = nestsim.simulate(again, report.best.priced.plan)
            assert found.best.simulated.iteration_time == what_if.iteration_time
    planned = nestsim.plan(scenario)
    assert planned.result.why == report.result.why
    assert planned.to_dict()["why"] == report.to_dict()["why"]


def test_a_change_without_memory_is_said_not_to_fit() -> None:
    plain = job("much to keep", "400 Gbit/s")
    report = nestsim.simulate(plain)
    selective = nestsim.simulate(plain.replace({"plan.recompute": "selective"}))
    needs = [found.best.planned.peak_memory for found in (report, selective)]
    reserve = report.result.usable_memory - sum(needs) / 2
    tight = plain.replace({"cluster.memory_reserve": f"{reserve:.0f} byte"})
    roomy_cause, tight_cause = (
        next(cause for cause in result.why if cause.cause == "recompute")
        for result in (report.result, nestsim.simulate(tight).result)
    )
    assert roomy_cause.what_if.fits
    assert not tight_cause.what_if.fits
    assert cause_words(tight_cause).endswith("(recompute = selective) does not fit")


def test_causes_add_up_to_the_step_and_each_has_its_words() -> None:
    known = {*PART_NAMES, HOST_TRANSFERS, WAITS, *CAUSES}
    assert waits().keys() == known - {"compute", "passes"}
    names = {lever.name for lever in levers()}
    for wait in waits().values():
        for name, *way in wait.changes:
            assert name in names
            assert way in ([], ["more"], ["less"])
    best = nestsim.simulate(job("pipeline")).best
    causes = step_causes(best)
    assert sum(causes.values()) == pytest.approx(best.simulated.iteration_time)
    assert causes[HOST] > 0.0
    assert causes["compute"] > 0.0


@pytest.mark.parametrize(
    ("name", "way", "expected"),
    [
        ("ZeRO", ["less"], [2, 1, 0]),
        ("ZeRO", ["more"], []),
        ("micro-batch", ["more"], [4, 8]),
        ("micro-batch", ["less"], [1]),
        ("recompute", ["less"], ["selective", "none"]),
        ("recompute", ["more"], []),
        ("chunks", ["more"], [2, 3, 4, 5, 6, 8, 10, 12]),
        ("chunks", ["less"], []),
        ("overlap of gradients", [], [True]),
    ],
)
def test_values_go_one_way_the_nearest_first(
    name: str, way: list[str], expected: list[object]
) -> None:
    plan = {"micro_batch_size": 2, "zero_stage": 3, "recompute": "full"}
    document = {**job("gathers").document(), "plan": plan}
    trials = Trials(Scenario.from_dict(document), None)
    lever = next(lever for lever in levers() if lever.name == name)
    assert [option.value for option in values_of(trials, lever, way)] == expected


def test_modules_that_a_plan_runs_again_are_part_of_the_plan_that_is_changed() -> None:
    document = job("gradients", "400 Gbit/s").document()
    document["plan"] |= {"recompute": "selective", "recompute_modules": ["layernorm"]}
    scenario = Scenario.from_dict(document)
    best = nestsim.simulate(scenario).best
    again = with_plan(scenario, best.priced.plan)
    time = nestsim.simulate(again).best.simulated.iteration_time
    assert time == best.simulated.iteration_time
    assert any(cause.what_if for cause in nestsim.simulate(scenario).result.why)


def test_a_plan_that_does_not_fit_has_no_other_reason() -> None:
    scenario = job("gradients").replace({"cluster.memory_reserve": "79 GB"})
    report = nestsim.simulate(scenario)
    assert report.best.verdict.kind == "infeasible"
    assert report.result.why == ()
    assert "Why not faster" not in str(report)


@pytest.fixture(scope="module")
def beside_a_search() -> nestsim.JobReport:
    search = {"pipeline_model_parallel_sizes": [1, 2], "keep_best": 3}
    document = {**job("recompute").document(), "search": search}
    return nestsim.run(Scenario.from_dict(document))


def test_a_run_holds_the_plan_of_the_scenario_against_its_own(
    beside_a_search: nestsim.JobReport,
) -> None:
    report, given = beside_a_search, beside_a_search.result.given
    yours = nestsim.simulate(job("recompute")).best
    time = report.best.simulated.iteration_time
    assert given.iteration_time == yours.simulated.iteration_time
    assert given.plan == yours.priced.plan
    assert sum(given.longer.values()) == pytest.approx(given.iteration_time - time)
    sizes = [abs(seconds) for seconds in given.longer.values()]
    assert sizes == sorted(sizes, reverse=True)
    ratio = given.iteration_time / time
    text = shown(run_document(report.result), 160, verbose=False)
    words = " ".join(text.split())
    assert f"{ratio:.3g} x faster than yours ({plan_label(given.plan)}: " in words
    assert "because it spends less: " in words
    lines = [line.split() for line in text.splitlines()]
    heading = next(place for place, line in enumerate(lines) if line[:1] == ["Rank"])
    assert lines[heading + 2][0] == "yours"
    assert lines[heading + 3][0] == "1"
    assert report.to_dict()["given"]["ratio"] == ratio
    ranks = [row["planner_rank"] for row in report.to_dict()["candidates"]]
    assert 0 not in ranks
    assert not any("[plan]" in notice for notice in report.notices)


def test_a_slower_search_says_so(beside_a_search: nestsim.JobReport) -> None:
    result = beside_a_search.result
    time = result.candidates[0].simulated.iteration_time
    given = replace(result.given, iteration_time=time / 2, longer={"bubble": -time / 2})
    text = " ".join(shown(run_document(replace(result, given=given)), 160).split())
    assert "2 x slower than yours" in text
    assert "because it spends more: " in text


def test_a_plan_that_does_not_go_with_the_job_is_a_notice() -> None:
    document = job("gradients").document()
    document["plan"]["tensor_model_parallel_size"] = 64
    document["search"] = {"pipeline_model_parallel_sizes": [1], "keep_best": 1}
    report = nestsim.run(Scenario.from_dict(document))
    assert report.result.given is None
    assert report.confirmed
    (notice,) = [words for words in report.notices if "[plan]" in words]
    assert "is not replayed beside the search" in notice
    assert "tensor_model_parallel_size" in notice
