"""Which planner a scenario asks for, and what its jobs then do."""

import itertools
import math
import time
from pathlib import Path

import pytest

from nestsim.cli import main
from nestsim.document.dumps import dump_json
from nestsim.evaluate.job import plan_job, run_job
from nestsim.evaluate.results import FAILED
from nestsim.features.run.record import plan_json
from nestsim.scenario import load_scenario
from nestsim.scenario.schema import scenario_schema
from planner.rivals import PLANNERS
from planner.rivals.protocol import STARTS, PlannerOutcome, PlannerSettings
from planner.work import Work
from tests import failures
from topologies.errors import InputError

SHIPPED = Path(__file__).parents[3] / "scenarios" / "gpt3_1.3b_8_a100.toml"


def scenario(folder: Path, *search: str, more: str = ""):
    """Return the shipped scenario with other settings of its search."""
    text = SHIPPED.read_text(encoding="utf-8")
    head, found, tail = text.partition("\n[search]\n")
    assert found
    path = folder / "scenario.toml"
    settings = "\n".join(search)
    path.write_text(f"{head}{found}{settings}\n{tail}\n{more}\n", encoding="utf-8")
    return load_scenario(path)


def test_scenarios_know_all_planners_and_no_others():
    definitions = scenario_schema()["$defs"]
    assert definitions["SearchTable"]["properties"]["planner"]["enum"] == [*PLANNERS]
    assert definitions["McmcSpec"]["properties"]["init"]["enum"] == [*STARTS]


def test_what_a_scenario_leaves_out_is_as_planners_have_it():
    loaded = load_scenario(SHIPPED)
    assert loaded.planner == "nest"
    assert loaded.planner_settings == PlannerSettings(fixed=loaded.plan)


def test_settings_reach_the_planner(tmp_path):
    loaded = scenario(
        tmp_path,
        'planner = "mcmc"',
        'mcmc = { budget = 50, seeds = [7, 5], init = "dp", alpha = 2.5 }',
    )
    assert loaded.planner == "mcmc"
    told = loaded.planner_settings
    assert (told.budget, told.seeds, told.init, told.alpha) == (50, (7, 5), "dp", 2.5)


@failures.over("name", ["manual", "phaze", "alpa", "mist"])
def test_the_plans_of_a_job_are_those_of_its_planner(tmp_path, name):
    result = plan_job(scenario(tmp_path, f'planner = "{name}"'))
    found = {"manual": 5, "phaze": 1, "alpa": 1, "mist": 1}
    assert len(result.candidates) == found[name]
    assert math.isnan(result.lower_bound)
    report = plan_json(result)
    assert report["lower_bound_s"] is None
    assert report["plans"][0]["optimality_gap"] is None
    assert f"plans priced by {name}" in report["search"]


def test_a_fixed_plan_is_replayed_as_any_other(tmp_path):
    loaded = scenario(
        tmp_path,
        'planner = "fixed"',
        more="[plan]\nmicro_batch_size = 1\ntensor_model_parallel_size = 2",
    )
    result = run_job(loaded)
    (candidate,) = result.candidates
    sizes = candidate.priced.plan.parallel
    assert sizes.tensor_model_parallel_size == 2
    assert candidate.simulated.iteration_time > 0


def test_fixed_without_a_plan_is_refused_where_it_is_written(tmp_path):
    with pytest.raises(InputError) as caught:
        scenario(tmp_path, 'planner = "fixed"')
    assert caught.value.where.endswith("search.planner")


def test_exhaustive_on_a_large_space_is_refused_where_it_is_written(tmp_path):
    loaded = scenario(tmp_path, 'planner = "exhaustive"', "launchable = false")
    with pytest.raises(InputError, match="too large") as caught:
        plan_job(loaded)
    assert caught.value.where == "search.planner"


def test_a_planner_that_finds_nothing_says_why(tmp_path):
    loaded = scenario(
        tmp_path,
        'planner = "manual"',
        "pipeline_model_parallel_sizes = [7]",
    )
    result = plan_job(loaded)
    assert not result.candidates
    assert result.shortfall.startswith("Divisibility")


@failures.over("limit", ["work_limit = 1", ""])
@failures.over("planner", ["nest", "manual", "mcmc", "phaze", "alpa", "mist"])
def test_no_clock_decides_what_is_reported(planner, limit, tmp_path, monkeypatch):
    loaded = scenario(tmp_path, f'planner = "{planner}"', limit)
    quick = dump_json(plan_json(plan_job(loaded)))
    now = itertools.count(step=1000)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    assert dump_json(plan_json(plan_job(loaded))) == quick


@pytest.mark.parametrize("planner", ["nest", "mcmc"])
def test_a_search_stopped_without_a_plan_says_so_and_fails(
    planner, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("planner.work.MOST_WORK", 10)
    nothing = PlannerOutcome(plans=(), spent=Work().total(), evaluations=0)
    monkeypatch.setattr("planner.rivals.manual.propose", lambda *_: nothing)
    asserted = '[assert]\nverdict = "infeasible"'
    scenario(tmp_path, f'planner = "{planner}"', "work_limit = 1", more=asserted)
    file = str(tmp_path / "scenario.toml")
    assert main(["plan", file, "-q"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("STOPPED before a plan was found")
    assert "NO PLAN" not in said
    # That nothing fits is not what was found.
    assert main(["run", file, "-q", "-o", str(tmp_path / "out")]) == FAILED
    assert capsys.readouterr().out.startswith("STOPPED before a plan was found")
