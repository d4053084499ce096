"""Planners under the same rules, and what the rules cost.

The framework is DistributedDataParallel, of which it is known without any table that it
has replicas and nothing else: no pipeline, no shards.
"""

import json
import math
from dataclasses import replace

import pytest

from nestsim.evaluate.evaluator import Evaluator
from nestsim.features.compare.job import (
    SPACES,
    CompareSettings,
    compare_job,
    store_facts,
)
from nestsim.features.compare.record import comparison_json, sentences
from nestsim.features.compare.results import PlannerEntry, ScenarioEntries
from nestsim.scenario.load import Scenario
from tests.nestsim.features.compare.small import load
from topologies.errors import InputError

SEARCHES = ("nest", "manual", "mcmc", "phaze", "alpa", "mist")


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """Return the small job of another framework, with a plan that it cannot launch."""
    given = load(tmp_path_factory.mktemp("spaces"), plan=True)
    document = given.document()
    document["software"]["preset"] = "ddp"
    job = Scenario.from_dict(document, given.path)
    return replace(job, planner_settings=replace(job.planner_settings, seeds=(0,)))


@pytest.fixture(scope="module")
def compared(scenario: Scenario) -> dict[str, ScenarioEntries]:
    """Return what every planner finds in both spaces."""
    return {
        space: compare_job(
            [scenario], CompareSettings(planners=(*SEARCHES, "fixed"), space=space)
        ).groups[0]
        for space in SPACES
    }


def searched(group: ScenarioEntries) -> list[PlannerEntry]:
    return [entry for entry in group.entries if entry.planner != "fixed"]


def is_replicas_alone(entry: PlannerEntry) -> bool:
    """Tell whether a plan is what DistributedDataParallel is."""
    assert entry.found is not None, (entry.planner, entry.why_not)
    plan = entry.found.plan
    tp, cp, ep, dp, pp = plan.parallel.sizes()
    return (
        (tp, cp, ep, dp, pp) == (1, 1, 1, 8, 1)
        and plan.num_microbatches * plan.micro_batch_size * dp == 16
        and all(stage.zero_stage == 0 for stage in plan.stages)
    )


def test_all_planners_are_held_to_the_same_rules(
    compared: dict[str, ScenarioEntries],
) -> None:
    within, free = compared["launchable"], compared["free"]
    wrong = [
        entry.planner for entry in searched(within) if not is_replicas_alone(entry)
    ]
    assert not wrong
    assert all(e.found and not e.found.broken_rules for e in searched(within))
    assert {e.planner for e in searched(free) if not is_replicas_alone(e)} >= {
        "nest",
        "mcmc",
        "alpa",
        "mist",
    }


def test_nobody_beats_the_search_in_either_space(
    compared: dict[str, ScenarioEntries], scenario: Scenario
) -> None:
    for group in compared.values():
        nest, *others = searched(group)
        gap = 1.0 + scenario.search.proven_gap
        ahead = [
            e.planner for e in others if nest.simulated_time > gap * e.simulated_time
        ]
        assert not ahead


def test_the_price_is_that_of_two_replays(
    compared: dict[str, ScenarioEntries], scenario: Scenario
) -> None:
    within, free = compared["launchable"], compared["free"]
    best = [
        min(searched(group), key=lambda entry: entry.simulated_time)
        for group in (within, free)
    ]
    ratio = best[0].simulated_time / best[1].simulated_time
    assert free.launchability_price == pytest.approx(ratio)
    assert free.launchability_price > 1.0
    # What was seen on the way bounds it.
    assert 1.0 < within.launchability_price <= free.launchability_price * (1 + 1e-9)
    # Replayed once more, by nothing that compared them.
    evaluator = Evaluator.of(scenario)
    again = []
    for entry in best:
        assert entry.found is not None
        again.append(evaluator.replayed_time(evaluator.price(entry.found.plan)))
    assert again[0] / again[1] == pytest.approx(free.launchability_price)


def test_a_given_plan_is_taken_as_it_is_and_told_of(
    compared: dict[str, ScenarioEntries],
) -> None:
    for group in compared.values():
        entry = group.entries[-1]
        assert entry.found is not None
        assert entry.found.plan.parallel.sizes()[:1] == (4,)
        assert any(rule.startswith("pipeline") for rule in entry.found.broken_rules)
        (said,) = (
            one
            for one in sentences(group)
            if "breaks rules" in one and one.startswith("fixed")
        )
        assert "pipeline (2 stages)" in said


def test_the_report_says_the_space_and_the_price(
    compared: dict[str, ScenarioEntries], scenario: Scenario
) -> None:
    within, free = (" ".join(sentences(compared[space])) for space in SPACES)
    assert "All planners are held to what can be launched" in within
    assert "costs at least" in within
    assert "No planner is held to what can be launched" in free
    assert f"{compared['free'].launchability_price:.3f} times as long" in free
    found = compare_job([scenario], CompareSettings(planners=("manual",)))
    (group,) = json.loads(json.dumps(comparison_json(found)))["groups"]
    # The scenario's own word, without the option.
    assert group["space"] == "launchable"
    assert group["launchability_price"] == found.groups[0].launchability_price or (
        group["launchability_price"] is None
        and math.isnan(found.groups[0].launchability_price)
    )


def test_a_store_of_another_space_is_not_taken_up(scenario: Scenario) -> None:
    facts = {
        store_facts([scenario], CompareSettings(planners=("nest",), space=space))[
            "space"
        ]
        for space in ("", *SPACES)
    }
    assert len(facts) == 3


def test_a_space_that_there_is_not_is_refused(scenario: Scenario) -> None:
    with pytest.raises(InputError, match="is not a space"):
        compare_job([scenario], CompareSettings(planners=("nest",), space="any"))


def test_entries_with_prices_survive_the_store(
    compared: dict[str, ScenarioEntries],
) -> None:
    for group in compared.values():
        for entry in group.entries:
            again = PlannerEntry.from_row(json.loads(json.dumps(entry.to_row())))
            assert again.to_row() == entry.to_row()
