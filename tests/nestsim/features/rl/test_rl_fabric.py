"""One fabric: equal to the sum of phases where nothing meets, more where it does."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from estimators.generation.forward import NodeTraffic
from nestsim.features.rl.document import rl_document
from nestsim.features.rl.evaluate import Pools
from nestsim.features.rl.fabric import engines_work
from nestsim.features.rl.job import RlResult, rl_job
from nestsim.features.rl.pools import PoolChoice
from nestsim.features.rl.record import rl_json
from nestsim.features.rl.step import step_time
from nestsim.simulator.replay import replay
from nestsim.simulator.system import ReplaySettings
from tests.nestsim.features.rl.small import SPLIT, small
from tests.nestsim.simulator.cases import switch

AHEAD = {**SPLIT, "rl.schedule": "one-step-off", "rl.mini_batches": 2}

RACKS = {
    "cluster.network.levels": [
        {"name": "node", "fan_out": 2, "bandwidth": "100 GB/s", "latency": "1 us"},
        {
            "name": "rack",
            "fan_out": 4,
            "bandwidth": "12.5 GB/s",
            "latency": "1 us",
            "oversubscription": 8,
        },
        {"name": "spine", "fan_out": 4, "latency": "1 us"},
    ],
    **AHEAD,
    "rl.rollout_devices": 16,
}
"""Racks of four nodes, with an eighth of their bandwidth between them."""

EXPERTS = {
    **RACKS,
    "model.family": "mixtral",
    "model.num_moe_experts": 16,
    "model.moe_router_topk": 2,
    "plan.expert_model_parallel_size": 16,
    "rl.engine.expert_parallel_size": 2,
    "rl.prompts": 64,
    "rl.algorithm": "ppo",
}
"""Experts of all devices of the trainer: most of what they send leaves racks."""


def result_of(values: Mapping[str, Any]) -> RlResult:
    return rl_job(small(values))


@pytest.mark.parametrize(
    "values",
    [
        AHEAD,
        {**AHEAD, "rl.schedule": "asynchronous", "rl.staleness": 2},
        {**AHEAD, "rl.algorithm": "ppo", "rl.reward_time": "1 s"},
        {**AHEAD, "plan.pipeline_model_parallel_size": 2},
        {**AHEAD, "rl.engine.tensor_parallel_size": 2},
    ],
)
def test_where_nothing_meets_it_is_the_sum_of_phases(values: dict[str, Any]) -> None:
    """Phases by themselves: their replays on networks of their own."""
    step = result_of(values).step
    assert step is not None
    assert step.fabric is not None
    assert step.fabric.engine == "simpy"
    trained = step.trainer
    alone = {
        "rollout": step.rollout.time,
        "training": trained.training,
        "old log-probs": trained.forward,
        "weights": sum(sent.time for sent in step.sync),
    }
    for phase in step.phases:
        assert phase.time == pytest.approx(alone.get(phase.name, phase.time), rel=1e-9)
    together = step_time(step.phases, overlaps=True, is_split=True)
    assert step.time == together
    assert step.fabric.apart == pytest.approx(step.time.time, rel=1e-9)
    assert not step.fabric.costs
    assert step.fabric.closed_form == pytest.approx(step.time.time, rel=1e-2)


def test_phases_in_turn_are_not_replayed_together() -> None:
    for values in ({}, SPLIT):
        step = result_of(values).step
        assert step is not None
        assert step.fabric is None
        assert rl_json(result_of(values))["fabric"] is None


def test_engines_of_several_nodes_are_slower_beside_a_trainer_on_their_links() -> None:
    """Engines of four nodes, one in each rack, and a trainer in all racks."""
    engines = {**RACKS, "rl.engine.tensor_parallel_size": 8}
    scenario = small(engines)

    assert scenario.rl is not None
    pools = Pools.of(scenario, scenario.rl, None)
    first, spread = (
        pools.steps[choice]
        for choice in pools.choices()
        if pools.evaluate(choice, float("inf"))
    )
    assert (first.choice, spread.choice) == (
        PoolChoice(16, 8),
        PoolChoice(16, 8, spread=True),
    )
    assert first.fabric is not None
    assert spread.fabric is not None
    assert not first.fabric.costs  # racks of their own
    assert spread.fabric.costs
    assert spread.fabric.contention > 0.01 * spread.time.time
    # No phase is quicker for company, and rollout and training are slower.
    alone = {"rollout": spread.rollout.time, "training": spread.trainer.training}
    for phase in spread.phases:
        assert phase.time >= alone.get(phase.name, 0.0) * (1.0 + 1e-3)
    # No more than if each of them had half of every link.
    assert spread.time.time < 2.0 * spread.fabric.apart


def test_a_trainer_of_experts_is_faster_on_more_uplinks() -> None:
    """16 of 32 devices send to all: 3/4 leave racks of 4, 1/2 leave racks of 8."""
    answer = result_of(EXPERTS)
    assert answer.step is not None
    assert answer.step.choice == PoolChoice(16, 1, spread=True)
    times = {entry.choice.spread: entry.time for entry in answer.search.explored}
    assert times[True] is not None
    assert times[False] is not None
    assert times[True] < 0.99 * times[False]
    text = rl_document(rl_json(answer))
    assert "spread" in str(text)
    data = rl_json(answer)
    assert data["spread"] is True


def test_nodes_of_the_trainer_are_first_or_even() -> None:
    first = PoolChoice(8, 1).devices(16, 2)
    assert [devices.tolist() for devices in first] == [[*range(8)], [*range(8, 16)]]
    training, rollout = PoolChoice(8, 1, spread=True).devices(16, 2)
    assert training.tolist() == [0, 1, 4, 5, 8, 9, 12, 13]
    assert sorted([*training, *rollout]) == [*range(16)]
    training, _ = PoolChoice(12, 1, spread=True).devices(16, 2)
    assert training.tolist() == [0, 1, 8, 9]


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_engine_alone_takes_the_time_of_its_rollout(replicas: int) -> None:
    """Rings of two over ports of 10 bytes/s: 5 s of 20 s are sent."""
    traffic = NodeTraffic("all_reduce", 2, 1, "ring", 0.5)
    devices = np.arange(2 * replicas).reshape(replicas, 2)
    network = switch(4, bandwidth=10.0)
    work = engines_work(network, [traffic], devices, 20.0, 100.0)
    assert work is not None
    assert 64 * work.forward_time[0] == pytest.approx(15.0, rel=1e-6)
    settings = ReplaySettings(engine="compiled", granularity="layer")
    done = replay(network, work, settings, memory=False)
    assert done.iteration_time == pytest.approx(20.0, rel=1e-9)
    assert engines_work(network, [], devices, 20.0, 100.0) is None
