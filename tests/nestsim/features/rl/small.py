"""A small model on one node, with a step of reinforcement learning, for tests."""

from collections.abc import Mapping
from typing import Any

from nestsim.scenario.load import Scenario
from tests.nestsim.features.jitter.jobs import TEXT as JOB

TEXT = f"""{JOB}zero_stage = 1

[rl]
prompts = 16
samples = 8
prompt_length = 100
response_lengths = "log-normal"
response_length = 400
response_length_sigma = 0.7

[rl.engine]
tensor_parallel_size = 1
memory_utilisation = 0.5
"""

SPLIT = {"rl.placement": "split", "rl.rollout_devices": 4}
"""Half of the devices for each."""


def small(values: Mapping[str, Any] | None = None) -> Scenario:
    """Return the step on eight devices that training and rollout share."""
    scenario = Scenario.from_toml(TEXT)
    return scenario.replace(values) if values else scenario
