"""A small model on one node, with and without a pipeline, for tests of jitter."""

import math
from collections.abc import Mapping
from typing import Any

from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import price_table_plan
from nestsim.features.jitter.closed_form import step_form
from nestsim.features.jitter.job import compiled, jittered_times, paces_of
from nestsim.scenario.load import Scenario

TEXT = """
name = "small"

[model]
family = "llama"
num_layers = 4
hidden_size = 2048
num_attention_heads = 16
vocab_size = 8000
sequence_length = 1024

[training]
global_batch_size = 32

[cluster]
accelerator = "a100-80gb"

[cluster.network]
kind = "fat-tree"

[[cluster.network.levels]]
name = "node"
fan_out = 8
bandwidth = "100 GB/s"
latency = "1 us"

[software]
preset = "ideal"

[plan]
micro_batch_size = 1
"""


def small(values: Mapping[str, Any] | None = None) -> Scenario:
    """Return the job on eight devices: eight replicas of four microbatches."""
    scenario = Scenario.from_toml(TEXT)
    return scenario.replace(values) if values else scenario


def noisy(
    distribution: str, cv: float, per: str, more: Mapping[str, Any] | None = None
) -> Scenario:
    """Return the job with random factors on compute."""
    compute = {"distribution": distribution, "cv": cv, "per": per}
    return small({"jitter.compute": compute, **(more or {})})


def check_closed_form(scenario: Scenario, runs: int) -> None:
    """Hold the mean step of a plan's runs to the closed form, within four errors."""
    evaluator = compiled(Evaluator.of(scenario))
    priced = price_table_plan(scenario, evaluator.network, evaluator.workload)
    times = jittered_times(evaluator, priced, scenario.jitter, range(runs))
    form = step_form(
        evaluator.lower(priced, memory=False),
        evaluator.replayed_time(priced),
        scenario.jitter,
        paces_of(evaluator, priced),
        packed=evaluator.packed(priced, scenario.jitter.jitter),
    )
    error = times.std() / math.sqrt(runs)
    assert abs(times.mean() - form.mean) <= 4 * error + form.error
