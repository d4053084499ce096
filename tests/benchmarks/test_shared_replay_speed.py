"""How long two jobs on 1,024 devices take to replay together, and each alone."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nestsim.evaluate.evaluator import Evaluator
from nestsim.features.jobs.replay import replay_alone, replay_together, slowdown
from nestsim.scenario.load import scenario_of
from planner.plans.build import build_plan

pytestmark = pytest.mark.benchmark(timer=time.process_time)

GPT3 = {
    "tensor_model_parallel_size": 8,
    "pipeline_model_parallel_size": 8,
    "sequence_parallel": True,
    "micro_batch_size": 1,
    "recompute": "selective",
    "zero_stage": 1,
    "order": "tp-cp-ep-dp-pp",
}


def evaluator(num_devices, trunk):
    """Take leaves of 32 H100, oversubscribed 2:1."""
    network = {
        "kind": "spine-leaf",
        "devices_per_node": 8,
        "node_bandwidth": "450 GB/s",
        "node_latency": "500 ns",
        "nodes_per_leaf": 4,
        "num_leaves": num_devices // 32,
        "nic_bandwidth": "400 Gbit/s",
        "nic_latency": "1 us",
        "num_spines": 8,
        "spine_latency": "1 us",
        "oversubscription": 2.0,
        "trunk": trunk,
    }
    document = {
        "name": "GPT-3 among others",
        "model": {"name": "gpt3-175b"},
        "training": {"global_batch_size": 1536},
        "cluster": {
            "accelerator": "h100-sxm",
            "num_devices": num_devices,
            "memory_reserve": "4 GiB",
            "network": network,
        },
        "plan": GPT3,
    }
    scenario = scenario_of(document, Path("jobs.toml"), b"")
    return scenario, Evaluator.of(scenario)


def moved(plan, devices):
    """Place a plan for 512 devices on 512 of the 1,024."""
    stages = [
        replace(
            stage,
            devices=tuple(tuple(devices[k] for k in row) for row in stage.devices),
        )
        for stage in plan.stages
    ]
    return replace(plan, stages=tuple(stages))


# Hashed trunks leave hardly two actors alike.
@pytest.mark.parametrize("trunk", ["ideal", "ecmp"])
def test_two_jobs_on_1024_devices_that_share_all_spines(benchmark, trunk):
    scenario, half = evaluator(512, trunk)
    _, whole = evaluator(1024, trunk)
    plan = build_plan(half.network, half.workload, scenario.plan)
    nodes = np.arange(1024).reshape(32, 4, 8)
    works = [
        whole.lower(whole.price(moved(plan, part.ravel().tolist())), memory=False)
        for part in (nodes[:, :2], nodes[:, 2:])
    ]
    settings = whole.simulation

    def judge():
        shared = replay_together(whole.network, works, settings)
        alone = replay_alone(whole.network, works, shared, settings)
        return shared, [slowdown(shared, one, job) for job, one in enumerate(alone)]

    judge()
    shared, slowdowns = benchmark.pedantic(judge, rounds=3)
    benchmark.extra_info["events"] = shared.num_events
    benchmark.extra_info["classes"] = shared.num_classes
    benchmark.extra_info["slowdowns"] = slowdowns
    assert benchmark.stats.stats.median < 10.0
