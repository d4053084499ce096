"""Who proposes the plan that is reported, and who confirms it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nestsim.document.dumps import dump_json
from nestsim.document.wording import engine_sentence, others_sentence
from nestsim.evaluate import job as jobs
from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import run_job, simulate_job
from nestsim.features.run.record import result_json
from nestsim.scenario.load import load_scenario
from nestsim.simulator import replay as replays
from nestsim.simulator.build import build_model
from nestsim.simulator.replay import fold_model
from nestsim.simulator.simpy_engine import simulate

SCENARIOS = Path(__file__).parents[3] / "scenarios"


@pytest.fixture(scope="module")
def scenario():
    return load_scenario(SCENARIOS / "custom_network.toml")


@pytest.fixture(scope="module")
def result(scenario):
    return run_job(scenario)


def reported_replay(scenario, plan):
    """Return the replay of a given plan as it is reported."""
    return simulate_job(scenario, plan=plan).candidate


def test_the_reported_replay_is_simpys(scenario, result):
    best = result.candidates[result.chosen]
    evaluator = Evaluator.of(scenario)
    work = evaluator.lower(evaluator.price(best.priced.plan))
    model = build_model(evaluator.network, work)
    # Every actor, with nothing folded, skipped or compiled.
    whole = simulate(model.system)
    folded = simulate(fold_model(model).system, skipping=True)
    report = result_json(result)["simulated"]
    assert report["engine"] == "simpy"
    assert report["events"] == folded.num_events <= whole.num_events
    assert report["iteration_time_s"] == whole.end == folded.end
    assert engine_sentence(best) == f"Confirmed by SimPy: {folded.num_events:,} events."


def test_what_else_is_confirmed_simpy_has_replayed_too(scenario, result, monkeypatch):
    rows = result_json(result)["candidates"]
    assert len(rows) > 1
    assert {row["engine"] for row in rows} == {"simpy"}
    assert others_sentence(result.candidates) == ""
    # With SimPy's running time forecast as long, and events for the first two alone.
    events = [one.replay.num_events for one in result.candidates]
    monkeypatch.setattr(replays, "LONG", 0.0)
    monkeypatch.setattr(jobs, "MOST_SIMPY_EVENTS", sum(events[:2]))
    again = run_job(scenario)
    engines = [one.replay.engine for one in again.candidates]
    assert again.chosen == result.chosen == 0
    assert engines == ["simpy", "simpy", *("compiled" for _ in events[2:])]
    assert others_sentence(again.candidates).startswith(
        "Confirmed by the compiled engine: #3"
    )
    for ours, theirs in zip(result.candidates, again.candidates, strict=True):
        assert ours.simulated == theirs.simulated


def test_beyond_a_number_of_events_the_compiled_engine_answers_the_same(
    scenario, result, monkeypatch
):
    best = result.candidates[result.chosen]
    ours = reported_replay(scenario, best.priced.plan)
    monkeypatch.setattr(replays, "MOST_SIMPY_EVENTS", ours.replay.num_events - 1)
    theirs = reported_replay(scenario, best.priced.plan)
    assert (ours.replay.engine, theirs.replay.engine) == ("simpy", "compiled")
    assert engine_sentence(theirs).startswith("Confirmed by the compiled engine: ")
    for name in ("iteration_time", "num_events", "num_skipped", "notes"):
        assert getattr(ours.replay, name) == getattr(theirs.replay, name)
    for name in ("spans", "transfers"):
        for mine, its in zip(
            getattr(ours.replay, name), getattr(theirs.replay, name), strict=True
        ):
            assert np.array_equal(mine, its)
    assert np.array_equal(ours.replay.links.rates, theirs.replay.links.rates)


def test_engines_that_differ_in_the_last_bit_are_no_confirmation(
    scenario, result, monkeypatch
):
    compiled = replays.simulate_compiled

    def off_by_a_bit(system, *, skipping):
        run = compiled(system, skipping=skipping)
        last = run.arrivals[-1].copy()
        last[-1] = np.nextafter(last[-1], np.inf)
        return replace(run, arrivals=(*run.arrivals[:-1], last))

    monkeypatch.setattr(replays, "simulate_compiled", off_by_a_bit)
    plan = result.candidates[result.chosen].priced.plan
    with pytest.raises(AssertionError, match=r"SimPy's engine .* the compiled engine"):
        reported_replay(scenario, plan)


def test_the_dynamic_program_proposes_and_changes_no_answer(scenario, result):
    search = replace(scenario.search, proposals=0)
    without = run_job(replace(scenario, search=search))
    ours, theirs = result_json(result), result_json(without)
    assert dump_json(ours["plan"]) == dump_json(theirs["plan"])
    assert ours["simulated"] == theirs["simulated"]
    assert ours["lower_bound_s"] == theirs["lower_bound_s"]
    said = ours["search"]
    assert said["plans of the dynamic program"] >= said["of these in the space"] > 0
    assert said["work"] > theirs["search"]["work"]
    assert said["plans replayed"] > theirs["search"]["plans replayed"]
    assert said["proposed_iteration_time_s"] >= ours["simulated"]["iteration_time_s"]
    assert not {"proposed_iteration_time_s", "of these in the space"} & {
        *theirs["search"]
    }
