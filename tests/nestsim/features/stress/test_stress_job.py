"""The stress test as a whole: plans, the cross, changes, workers, reports."""

import csv
import io
import json
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from nestsim.cli import main
from nestsim.document.dumps import dump_json
from nestsim.document.sheet import has_picture
from nestsim.document.terminal import print_document
from nestsim.features.stress.conditions import AS_BUILT
from nestsim.features.stress.document import stress_document
from nestsim.features.stress.evaluator import (
    ALIKE,
    ConditionEvaluator,
    plan_key,
)
from nestsim.features.stress.job import STORE_NAMES, FindChanges, stress_job
from nestsim.features.stress.record import plan_names, stress_json
from nestsim.features.stress.results import StressResult, hottest_bars, regret_matrix
from nestsim.features.stress.thresholds import CROSSOVER_TOLERANCE
from nestsim.features.sweep.executors.protocol import Shared
from nestsim.features.sweep.scenario_task import scenario_digest
from nestsim.scenario.load import Scenario
from planner.step.plan import Plan
from tests import failures
from tests.nestsim.features.stress.clusters import CONDITIONS, NEIGHBOURS, small
from topologies.errors import InputError


def test_every_plan_runs_under_every_condition(result: StressResult) -> None:
    names = {"as built", "leaf 4:1", "leaf 16:1", "node 40:1", "node 40:1, leaf 4:1"}
    names |= {"node 40:1, leaf 16:1", "ECMP seed 0", "ECMP seed 1"}
    assert set(result.names) == names | {"slow device", NEIGHBOURS}
    assert not result.failed
    assert not result.why_not
    assert all(set(result.cells[name]) == set(result.plans) for name in result.names)
    assert set(result.made.values()) == set(result.plans)
    assert len(set(plan_names(result).values())) == len(result.plans)


def test_keeping_the_plan_is_never_better(result: StressResult) -> None:
    for planner in result.planners:
        regrets = {name: result.regret(planner, name) for name in result.names}
        assert all(one is not None and one >= -1e-9 for one in regrets.values())
        assert regrets[AS_BUILT] == 0.0


def test_a_plan_has_no_regret_where_it_was_made_for(result: StressResult) -> None:
    for planner in result.planners:
        matrix = regret_matrix(result, planner)
        assert matrix.names == result.line("leaf")
        assert (matrix.regret.diagonal() == 0.0).all()
        assert result.regret(planner, AS_BUILT) == 0.0


def test_planned_times_know_of_slow_devices(result: StressResult) -> None:
    kept, fresh = (result.made["nest", name] for name in (AS_BUILT, "slow device"))
    cells = result.cells["slow device"]
    assert cells[fresh].simulated <= cells[kept].simulated
    healthy = result.cells[AS_BUILT][kept]
    slow = result.cells["slow device"][kept]
    assert slow.planned > 1.05 * healthy.planned
    assert slow.simulated > 1.05 * healthy.simulated
    assert result.term("nest", AS_BUILT, "slow device") == "compute"


def test_the_causes_of_a_cell_add_up_to_its_time(result: StressResult) -> None:
    for cells in result.cells.values():
        for cell in cells.values():
            assert sum(cell.causes.values()) == pytest.approx(cell.simulated, rel=1e-9)
            assert all(0.0 < link.share <= 1.0 + 1e-6 for link in cell.hottest)
            shares = [round(link.share / ALIKE) for link in cell.hottest]
            assert shares == sorted(shares, reverse=True)


def test_a_change_has_its_plans_at_its_two_ratios(tmp_path: Path) -> None:
    axes = {"leaf": (1.0, 4.0, 16.0, 64.0)}
    result = stress_job(
        small(tmp_path, rank="planned", oversubscription=axes, planners=("nest",))
    )
    found = [one for one in result.changes if one.planner == "nest"]
    assert found
    for one in found:
        change = one.change
        assert change.low < change.high <= change.low * (1.0 + CROSSOVER_TOLERANCE)
        assert change.before != change.after
        # What the search minimises may order two plans otherwise than their times.
        assert abs(change.gain) < 0.1


def test_the_inverse_question_is_answered_both_ways(result: StressResult) -> None:
    assert [one.policy for one in result.answers] == ["kept", "re-made"]
    assert result.asked is not None
    assert result.asked[:2] == ("leaf", "oversubscription")
    for answer in result.answers:
        shares = dict(answer.tried)
        assert answer.kept is not None
        assert answer.lost is not None
        assert shares[answer.kept] >= 0.8 > shares[answer.lost]


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path) -> None:
    settings = {"oversubscription": {"leaf": (1.0, 4.0, 8.0)}, "keep": 0.7}
    one, two = (
        stress_job(small(tmp_path, workers=workers, **settings)) for workers in (1, 2)
    )
    assert dump_json(stress_json(one)) == dump_json(stress_json(two))


def test_a_test_goes_on_with_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"oversubscription": {"leaf": (1.0, 8.0)}, "planners": ("manual",)}
    first = stress_job(small(tmp_path, **settings), stores=tmp_path)
    made = {path.stem for path in tmp_path.glob("*.sqlite")}
    assert made <= set(STORE_NAMES)
    assert {"plans", "replays"} <= made

    def never(*_: object) -> None:
        raise AssertionError("nothing is left to do")

    with monkeypatch.context() as patch:
        patch.setattr(ConditionEvaluator, "make", never)
        patch.setattr(ConditionEvaluator, "run", never)
        again = stress_job(small(tmp_path, **settings), stores=tmp_path)
    assert dump_json(stress_json(again)) == dump_json(stress_json(first))
    other = small(tmp_path, **{**settings, "oversubscription": {"leaf": (1.0, 9.0)}})
    with pytest.raises(InputError, match="another sweep"):
        stress_job(other, stores=tmp_path)
    assert stress_job(other, stores=tmp_path, restart=True).names[-1] == "leaf 9:1"


def test_plans_are_ranked_by_what_the_search_minimises_or_as_asked(
    tmp_path: Path,
) -> None:
    axes = {"leaf": (2.0, 16.0)}
    by = {
        rank: stress_job(
            small(tmp_path, rank=rank, oversubscription=axes, planners=("nest",))
        )
        for rank in (None, "simulated", "planned")
    }
    assert by[None].made == by["simulated"].made
    objectives = [by[rank].objective for rank in (None, "simulated", "planned")]
    assert objectives == ["replayed", "replayed", "planned"]


def test_the_command_writes_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small(tmp_path, CONDITIONS)
    folder = tmp_path / "out"
    status = main(
        [
            *("stress", str(tmp_path / "small.toml"), "-o", str(folder), "-q"),
            *("--oversubscription", "leaf=2,8", "--oversubscription", "node=10,20"),
            *("--planners", "nest,manual", "--keep", "0.9", "--workers", "1"),
        ]
    )
    assert status == 0
    printed = capsys.readouterr()
    assert not printed.err
    for words in ("slow device", "Least worst-case regret", "keeps 90.0 %", "between"):
        assert words in printed.out
    data = json.loads((folder / "stress.json").read_text(encoding="utf-8"))
    assert data["oversubscription"] == {"node": [10.0, 20.0], "leaf": [2.0, 8.0]}
    with (folder / "stress.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * len(data["conditions"])
    assert float(rows[0]["simulated_regret"]) == 0.0
    pictures = {"throughput.png", "map.png", "matrix.png", "links.png"}
    assert {path.name for path in folder.glob("*.png")} == pictures
    assert not [*folder.glob(".*")]


@failures.over("option", ["leaf", "leaf=", "leaf=1,1", "leaf=-2", "=2"])
def test_ratios_that_are_none_are_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small(tmp_path)
    file = str(tmp_path / "small.toml")
    assert main(["stress", file, "--oversubscription", option]) == 2
    assert capsys.readouterr().err.startswith("--oversubscription")


def test_a_model_that_fits_nowhere_says_why(tmp_path: Path) -> None:
    scenario = small(tmp_path, planners=("nest",), oversubscription={"leaf": (4.0,)})
    search = replace(scenario.search, memory_reserve=79.9 * 2**30)
    result = stress_job(replace(scenario, search=search))
    assert not result.plans
    assert all("memory" in reason.lower() for reason in result.why_not.values())
    assert len(result.why_not) == 2
    assert not has_picture(stress_document(stress_json(result)))
    assert result.robust() is None


def test_a_limit_of_work_repeats_and_one_of_time_is_said_not_to(tmp_path: Path) -> None:
    scenario = small(tmp_path, planners=("nest",), oversubscription={"leaf": (4.0,)})
    for limit, repeats in (({"work_limit": 1}, True), ({"time_limit": 1e-9}, False)):
        search = replace(scenario.search, keep_best=1, **limit)
        result = stress_job(replace(scenario, search=search))
        assert result.plans
        assert not result.why_not
        assert stress_json(result)["reproducible"] == repeats
        out = io.StringIO()
        document = stress_document(stress_json(result))
        print_document(document, Console(file=out, width=200))
        assert ("may differ from run to run" in out.getvalue()) == (not repeats)


def test_the_busiest_links_are_named_with_their_condition(result: StressResult) -> None:
    bars = hottest_bars(result)
    assert bars
    assert all(bar.condition in result.names for bar in bars)
    assert [bar.share for bar in bars] == sorted(
        (bar.share for bar in bars), reverse=True
    )
    key = result.made["nest", AS_BUILT]
    assert plan_key(Plan.from_json(result.plans[key].to_json())) == key


def test_a_worker_makes_its_evaluator_once(tmp_path: Path) -> None:
    def task(scenario: Scenario) -> FindChanges:
        make = partial(ConditionEvaluator.of, scenario)
        evaluator = Shared(scenario_digest(scenario), make)
        sent = FindChanges(scenario=scenario, evaluator=evaluator)
        received: FindChanges = pickle.loads(pickle.dumps(sent))
        assert received.key({}) == sent.key({})
        return received

    evaluator = task(small(tmp_path)).evaluator()
    assert task(small(tmp_path)).evaluator() is evaluator
    other = small(tmp_path).replace({"training.global_batch_size": 32})
    assert task(other).evaluator() is not evaluator
