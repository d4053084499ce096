"""What a command does once: each plan is lowered and replayed once, and said once."""

import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nestsim
from nestsim.cli import main
from nestsim.features.run.command import JobReport
from nestsim.simulator import simpy_engine

SCENARIO = "scenarios/gpt3_1.3b_8_a100.toml"


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what a command does: whole lowerings, SimPy's runs, records."""
    done: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            # What searches lower for their times alone has no memory.
            done[name] += options.get("memory", True)
            return function(*args, **options)

        return call

    evaluator = nestsim.evaluate.evaluator
    lower = counted("lowered", evaluator.lower_plan)
    monkeypatch.setattr(evaluator, "lower_plan", lower)
    simulate = counted("SimPy", simpy_engine.simulate)
    monkeypatch.setattr(simpy_engine, "simulate", simulate)
    monkeypatch.setattr(JobReport, "parts", counted("said", JobReport.parts))
    return done


def test_a_run_replays_each_plan_once(
    counts: Counter[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", SCENARIO, "-q", "--output", str(tmp_path / "out")]) == 0
    result = (tmp_path / "out" / "result.json").read_text()
    num_plans = result.count('"engine": "simpy"') - 1  # once more of the best
    assert num_plans > 1
    assert counts == {"lowered": num_plans, "SimPy": num_plans, "said": 1}
    assert "CONFIRMED" in capsys.readouterr().out


def test_a_replay_of_a_given_plan_is_one(
    counts: Counter[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    best = nestsim.plan(SCENARIO).plans[0]
    plan.write_text(json.dumps(best.to_json()))
    counts.clear()
    main(["simulate", SCENARIO, "--plan", str(plan), "--json", "-q"])
    assert counts == {"lowered": 1, "SimPy": 1, "said": 1}
    capsys.readouterr()


def test_a_comparison_lowers_each_plan_once(counts: Counter[str]) -> None:
    report = nestsim.compare(SCENARIO, planners=["nest", "manual"])
    plans = {row["planner"] for row in report.rows()}
    assert plans == {"nest", "manual"}
    assert counts["lowered"] == len(plans)
    assert counts["SimPy"] <= len(plans)


def test_what_a_report_says_is_made_once_and_stays_as_it_is() -> None:
    report = nestsim.simulate(SCENARIO, nestsim.plan(SCENARIO).plans[0])
    text = report.to_json()
    report.to_dict()["plan"]["schedule"] = "none"
    assert report.to_json() == text
    assert report.written is report.written
    again = pickle.loads(pickle.dumps(report))
    assert "written" not in vars(again)
    assert again.to_json() == text
