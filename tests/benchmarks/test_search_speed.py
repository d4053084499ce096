"""How long a search takes, model traced and kernels compiled."""

from pathlib import Path

import pytest

from estimators.tracing.trace import trace_model
from nestsim.scenario.load import load_scenario
from planner.search.best_first import search
from planner.step.execution import Workload
from topologies.builders import build_network

SCENARIOS = Path(__file__).parents[2] / "scenarios"

NAMES = (
    "glm4_32b_64_h100",
    "llama2_7b_64_h100",
    "mixtral_8x7b_128_h100",
    "llama3_70b_256_tpu_torus",
    "gpt3_175b_512_tpuv4",
)


@pytest.mark.benchmark(group="search")
@pytest.mark.parametrize("name", NAMES)
def test_search_of_a_shipped_scenario(benchmark, name):
    scenario = load_scenario(SCENARIOS / f"{name}.toml")
    network = build_network(scenario.network_spec)
    graph = trace_model(scenario.spec)

    def run():
        workload = Workload(
            graph=graph,
            training=scenario.training,
            accelerator=scenario.accelerator,
        )
        return search(network, workload, scenario.search)

    run()
    result = benchmark.pedantic(run, rounds=5)
    benchmark.extra_info["configurations"] = result.statistics["configurations"]
