"""How long Alpa takes, model traced and kernels compiled."""

from pathlib import Path

import pytest

from estimators.tracing.trace import trace_model
from nestsim.scenario.load import load_scenario
from planner.rivals.alpa import Alpa
from planner.rivals.protocol import PlannerSettings
from planner.step.execution import Workload
from topologies.builders import build_network

SCENARIOS = Path(__file__).parents[2] / "scenarios"

NAMES = (
    "llama2_7b_64_h100",
    "mixtral_8x7b_128_h100",
    "gpt3_175b_512_tpuv4",
    "gpt3_175b_1024_h100",
)


@pytest.mark.benchmark(group="alpa")
@pytest.mark.parametrize("name", NAMES)
def test_alpa_on_a_shipped_scenario(benchmark, name):
    scenario = load_scenario(SCENARIOS / f"{name}.toml")
    network = build_network(scenario.network_spec)
    graph = trace_model(scenario.spec)

    def run():
        workload = Workload(
            graph=graph,
            training=scenario.training,
            accelerator=scenario.accelerator,
        )
        return Alpa().find(network, workload, scenario.search, PlannerSettings())

    run()
    outcome = benchmark.pedantic(run, rounds=3)
    benchmark.extra_info["work"] = outcome.spent.work
    benchmark.extra_info.update(outcome.statistics)
