"""The simplest plan that is nearly as fast, in the job, its report and its record."""

from dataclasses import replace
from typing import Any

import pytest

from nestsim.evaluate.job import run_job
from nestsim.evaluate.results import ReplayedResult, SimplestPlan
from nestsim.evaluate.uncertainty import Band
from nestsim.features.run.document import run_document
from nestsim.features.run.record import result_json
from nestsim.scenario.load import load_scenario
from tests.docs.pages import ROOT
from tests.nestsim.features.run.examples import FOUR_STAGES, INTERLEAVED, make_job
from tests.nestsim.features.run.test_document import shown


def with_simplest(**changes: Any) -> ReplayedResult:
    """Return a job of two chunks a stage beside which there is a plan without."""
    result, other = make_job(*INTERLEAVED), make_job(*FOUR_STAGES).candidates[0]
    simplest = SimplestPlan(
        plan=other.priced.plan,
        iteration_time=1.01 * result.candidates[0].simulated.iteration_time,
        peak_memory=2.0**30,
        slower_by=0.01,
        within=0.02,
        spared=("2 chunks per stage",),
        added=(),
    )
    return replace(result, simplest=replace(simplest, **changes))


@pytest.mark.parametrize(
    ("high", "is_below"), [(None, False), (1.005, False), (1.2, True)]
)
def test_the_report_says_whether_the_model_sees_the_difference(
    high: float | None, is_below: bool
) -> None:
    band = None if high is None else Band(1.0 / high, high)
    result = replace(with_simplest(), band=band)
    text = " ".join(shown(run_document(result), 200).split())
    assert "takes 1.0 % longer" in text
    assert ("below the model's error" in text) == is_below
    assert "does without 2 chunks per stage" in text
    stored = result_json(result)["simplest"]
    assert isinstance(stored, dict)
    assert stored["below_model_error"] == is_below
    assert stored["spared"] == ["2 chunks per stage"]


def test_a_plan_that_is_the_simplest_itself_is_shown_once() -> None:
    document = run_document(with_simplest(spared=(), slower_by=0.0))
    assert "Simpler:" not in shown(document, 200)
    assert "simplest plan the plan above" in " ".join(shown(document, 200).split())


@pytest.mark.parametrize("within", [0.0, 0.02])
def test_a_run_replays_and_confirms_a_simpler_plan(within: float) -> None:
    scenario = load_scenario(ROOT / "scenarios" / "gpt3_175b_1024_h100.toml")
    spec = replace(
        scenario.search,
        tensor_model_parallel_sizes=(8,),
        pipeline_model_parallel_sizes=(8,),
        micro_batch_sizes=(2,),
        simplest_within=within,
        proposals=0,
    )
    scenario = replace(scenario, search=spec)
    result = run_job(scenario)
    if not within:
        assert result.simplest is None
        return
    best, simplest = result.candidates[0], result.simplest
    assert simplest is not None
    assert 0.0 < simplest.slower_by <= within
    assert not simplest.is_reported
    slower = best.simulated.iteration_time * (1.0 + simplest.slower_by)
    assert simplest.iteration_time == pytest.approx(slower)
    assert simplest.peak_memory <= result.usable_memory
