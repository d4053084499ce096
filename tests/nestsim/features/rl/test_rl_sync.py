"""New weights: the bytes of closed forms, and who takes part."""

import numpy as np
import pytest

from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import price_table_plan
from nestsim.features.rl.sync import (
    broadcast_weights,
    copy_groups,
    exchange,
    gather_weights,
)
from planner.step.plan import Plan
from tests.nestsim.features.rl.small import small
from topologies.network import Network

BANDWIDTH = 100e9
"""Of a device's link into its node [byte/s]."""


def job(values: dict[str, object]) -> tuple[Network, Plan]:
    scenario = small({"training.global_batch_size": 32, **values})
    evaluator = Evaluator.of(scenario)
    priced = price_table_plan(scenario, evaluator.network, evaluator.workload)
    return evaluator.network, priced.plan


def test_copies_are_replicas_or_all_that_shard() -> None:
    _, plan = job(
        {
            "plan.tensor_model_parallel_size": 2,
            "plan.pipeline_model_parallel_size": 2,
        }
    )
    groups = copy_groups(plan)
    assert groups.shape == (2, 4)
    replica = sorted(d for stage in plan.stages for d in stage.devices[0])
    assert sorted(groups[0].tolist()) == replica
    _, sharded = job({"plan.zero_stage": 3})
    assert copy_groups(sharded).shape == (1, 8)


def test_an_all_gather_takes_what_each_has_to_receive() -> None:
    """``(n - 1) / n`` of the bytes over a link, and a step's latency each."""
    network, _ = job({})
    gathered = exchange(network, "all_gather", np.arange(8).reshape(2, 4), 8e9)
    assert gathered is not None
    assert gathered.closed_form == pytest.approx(0.75 * 8e9 / BANDWIDTH, rel=1e-3)
    assert gathered.time == pytest.approx(gathered.closed_form, rel=1e-6)


def test_a_broadcast_takes_all_bytes_once() -> None:
    network, _ = job({})
    sent = exchange(network, "broadcast", np.arange(5)[None], 8e9)
    assert sent is not None
    assert 8e9 / BANDWIDTH <= sent.time <= 2.1 * 8e9 / BANDWIDTH
    assert sent.time == pytest.approx(sent.closed_form, rel=1e-6)


def test_one_device_needs_nothing() -> None:
    network, plan = job({})
    assert exchange(network, "all_gather", np.arange(8)[:, None], 8e9) is None
    assert gather_weights(network, plan, 10**9) is None
    assert broadcast_weights(network, np.arange(8), np.arange(0), 10**9) is None


def test_faster_links_are_never_slower() -> None:
    times = []
    for bandwidth in ("50 GB/s", "100 GB/s", "200 GB/s"):
        network, plan = job(
            {
                "plan.pipeline_model_parallel_size": 2,
                "plan.data_parallel_size": 2,
                "cluster.network.levels[0].bandwidth": bandwidth,
            }
        )
        gathered = gather_weights(network, plan, 10**9)
        sent = broadcast_weights(network, np.arange(4), np.arange(4, 8), 10**9)
        assert gathered is not None
        assert sent is not None
        assert sent.num_members == 5
        times.append(gathered.time + sent.time)
    assert times[0] > times[1] > times[2]
