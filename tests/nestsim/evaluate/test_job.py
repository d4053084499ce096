"""The main job on every shipped scenario, and on some made to fail."""

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from nestsim.document.terminal import print_document
from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import plan_job, run_job
from nestsim.features.run.document import run_document
from nestsim.scenario.load import load_scenario
from nestsim.simulator.jittered import jittered_replay
from nestsim.simulator.noise import Delay, Jitter, Noise
from planner.rivals.protocol import PlannerSettings

SCENARIOS = Path(__file__).parents[3] / "scenarios"
LARGE = {"deepseek_v3_2048_h800", "moe_10t_110592_gb300"}
"""Their searches take a minute, or some."""

NAMES = [
    pytest.param(path.stem, marks=pytest.mark.slow) if path.stem in LARGE else path.stem
    for path in sorted(SCENARIOS.glob("*.toml"))
    if not path.stem.endswith("_links")
]


def load(name, **search):
    scenario = load_scenario(SCENARIOS / f"{name}.toml")
    return replace(scenario, search=replace(scenario.search, **search))


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_scenario_is_planned_and_confirmed(name):
    result = run_job(load(name, keep_best=2))
    assert result.chosen is not None
    assert not result.spent.is_stopped
    chosen = result.candidates[result.chosen]
    assert chosen.verdict.kind == "confirmed"
    assert 0.2 < chosen.simulated.mfu < 0.8
    assert chosen.broken_rules == ()
    simulated = chosen.simulated.iteration_time
    assert result.lower_bound <= simulated * (1 + 1e-9)
    assert simulated <= 1.01 * result.lower_bound
    for candidate in result.candidates:
        check_memory_and_gap(candidate)


def check_memory_and_gap(candidate):
    """Hold a replay to the planned memory, and its gap to the causes that are named."""
    stages = candidate.priced.stages
    for cost, timeline in zip(stages, candidate.replay.memory, strict=True):
        assert timeline.peak <= cost.peak_memory * (1 + 1e-9)
    gap = candidate.verdict.gap
    assert sum(gap.terms.values()) == pytest.approx(gap.total, abs=1e-9)
    total = candidate.priced.iteration_time + gap.total
    assert total == pytest.approx(candidate.replay.iteration_time)


def test_an_evaluator_draws_the_runs_that_its_replays_would_be():
    evaluator = Evaluator.of(load("bert_large_16_v100"))
    priced = evaluator.find("nest", PlannerSettings()).plans[0]
    jitter = Jitter(
        compute=Noise("normal", 0.05), links=Delay("gamma", 1e-5, 1.0), per="operator"
    )
    times = evaluator.jittered_times(priced, jitter, range(5, 8))
    work, settings = evaluator.lower(priced), evaluator.simulation
    for number, time in zip(range(5, 8), times, strict=True):
        run = jittered_replay(evaluator.network, work, settings, jitter, number)
        assert run.iteration_time == time
    # The slowest of many, and never by more than the largest factors.
    plain = evaluator.replayed_time(priced)
    assert (times > plain).all()
    assert (times < 1.2 * plain).all()


def test_candidates_are_ranked_by_the_replay():
    result = run_job(load("custom_network"))
    simulated = [candidate.simulated.iteration_time for candidate in result.candidates]
    assert simulated == sorted(simulated)
    assert [c.rank for c in result.candidates] == [*range(1, len(simulated) + 1)]
    assert result.chosen == 0


def test_the_planned_objective_ranks_by_the_closed_form():
    result = run_job(load("custom_network", objective="planned"))
    planned = [candidate.priced.closed_form_time for candidate in result.candidates]
    by_rank = sorted(zip((c.rank for c in result.candidates), planned, strict=True))
    assert [time for _, time in by_rank] == sorted(planned)


def test_the_plan_job_finds_what_the_run_job_replays():
    planned = plan_job(load("custom_network"))
    replayed = run_job(load("custom_network"))
    by_rank = sorted(replayed.candidates, key=lambda candidate: candidate.rank)
    assert [c.priced.plan for c in planned.candidates] == [
        c.priced.plan for c in by_rank
    ]


def test_progress_is_reported_in_order():
    seen = []
    run_job(load("gpt3_1.3b_8_a100"), progress=lambda what, share: seen.append(what))
    steps = [what.split(":")[0] for what in seen]
    assert list(dict.fromkeys(steps)) == ["network", "model", "search", "replay"]


def test_what_does_not_fit_is_a_result_with_a_reason():
    scenario = load(
        "gpt3_175b_512_tpuv4",
        tensor_model_parallel_sizes=(4, 8),
        micro_batch_sizes=(1,),
    )
    tiny = replace(scenario.accelerator, memory_bytes=2.0**32)
    result = run_job(replace(scenario, accelerator=tiny))
    assert result.candidates == ()
    assert result.chosen is None
    assert result.lower_bound == np.inf
    assert "needs" in result.shortfall
    # 4 GiB of which the scenario reserves 2, and MaxText's context takes 0.27 GB.
    assert "1.749 GiB to give" in result.shortfall


def test_an_empty_space_says_why():
    result = run_job(load("gpt3_1.3b_8_a100", tensor_model_parallel_sizes=(5,)))
    assert result.chosen is None
    assert "not divisible" in result.shortfall


def test_two_processes_write_the_same_bytes(tmp_path):
    """Different hash seeds, so that no order of a set can hide, and threads."""
    written = []
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    for seed in ("1", "2"):
        folder = tmp_path / seed
        scenario = SCENARIOS / "custom_network.toml"
        command = [sys.executable, "-m", "nestsim", "run", str(scenario), "-q"]
        subprocess.run(
            [*command, "--output", str(folder)],
            check=True,
            capture_output=True,
            env={
                **os.environ,
                **dict.fromkeys(threads, seed),
                "PYTHONHASHSEED": seed,
            },
        )
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        written.append({p.relative_to(folder): p.read_bytes() for p in files})
    assert Path("result.json") in written[0]
    assert written[0] == written[1]


def test_beyond_what_can_be_launched_nothing_is_slower():
    inside = run_job(load("custom_network"))
    beyond = run_job(load("custom_network", launchable=False))
    first, second = (result.candidates[0].simulated for result in (inside, beyond))
    assert second.iteration_time <= first.iteration_time
    assert beyond.lower_bound <= second.iteration_time
    assert beyond.lower_bound <= inside.lower_bound * (1 + 1e-9)


def test_a_stopped_search_knows_ordinary_plans_and_says_how_far_it_is():
    # With a framework its first plan is proven to be the best.
    scenario = load("custom_network").replace({"software.preset": "ideal"})
    search = replace(scenario.search, work_limit=1)
    stopped, whole = run_job(replace(scenario, search=search)), run_job(scenario)
    assert stopped.spent.stopped_by == "work limit"
    best = stopped.candidates[0].simulated.iteration_time
    assert stopped.lower_bound <= whole.candidates[0].simulated.iteration_time
    assert best <= 1.05 * whole.candidates[0].simulated.iteration_time
    text = io.StringIO()
    print_document(run_document(stopped), Console(file=text, width=120), verbose=True)
    assert text.getvalue().startswith("CONFIRMED, IDEAL SOFTWARE, NOT PROVEN (gap ")
    assert "another plan may replay up to" in text.getvalue()
