"""How long a hundred steps with jitter take, of plans that real jobs have."""

import time
from pathlib import Path

import pytest

from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import price_table_plan
from nestsim.scenario.load import load_scenario
from nestsim.simulator.jittered import jittered_times
from nestsim.simulator.noise import PERIODS, Delay, Jitter, Noise

SCENARIOS = Path(__file__).parents[2] / "scenarios"

# CPU seconds: other work on the machine does not count.
pytestmark = pytest.mark.benchmark(group="jitter", timer=time.process_time)


@pytest.mark.parametrize("distribution", ["normal", "gamma"])
@pytest.mark.parametrize("per", PERIODS)
@pytest.mark.parametrize("name", ["llama2_7b_64_h100", "gpt_76b_1024_a100"])
def test_a_hundred_runs(benchmark, name, per, distribution):
    scenario = load_scenario(SCENARIOS / f"{name}.toml")
    evaluator = Evaluator.of(scenario)
    if scenario.plan is None:
        found = evaluator.find(scenario.planner, scenario.planner_settings)
        priced = found.plans[0]
    else:
        priced = price_table_plan(scenario, evaluator.network, evaluator.workload)
    work = evaluator.lower(priced, memory=False)
    jitter = Jitter(
        compute=Noise(distribution, 0.05),
        per=per,
        links=Delay("exponential", 5e-6, 1.0),
    )

    def hundred():
        settings = evaluator.simulation
        return jittered_times(evaluator.network, work, settings, jitter, range(100))

    times = benchmark.pedantic(hundred, rounds=3, warmup_rounds=1)
    benchmark.extra_info["slower_than_planned"] = times.mean() / priced.iteration_time
