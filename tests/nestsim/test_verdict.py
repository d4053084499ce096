"""Verdicts on real replays of plans made to keep or to break their promise."""

from dataclasses import replace

import numpy as np
import pytest

from estimators.parallelism import ParallelismConfig
from estimators.tracing import trace_model
from estimators.training import TrainingSpec
from nestsim.placed_work import place_work
from nestsim.simulator.replay import replay
from nestsim.verdict import gap_by_cause, judge
from planner.plan import Plan, Stage
from planner.pricing import price_plan
from planner.workload import Workload
from tests.planner.strategies import tiny_spec
from topologies.accelerators import load_accelerator
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec


def network(uplink):
    return build_network(
        FatTreeSpec(
            levels=(
                LevelSpec(name="node", fan_out=4, bandwidth=1e11, latency=0.0),
                LevelSpec(name="leaf", fan_out=2, bandwidth=uplink, latency=0.0),
            )
        )
    )


def workload():
    return Workload(
        graph=trace_model(tiny_spec(5)),
        training=TrainingSpec(global_batch_size=64),
        accelerator=load_accelerator("a100-80gb"),
    )


def plan(devices, num_microbatches):
    devices = np.array(devices)[:, :, None]
    pp, dp, _ = devices.shape
    return Plan(
        parallel=ParallelismConfig(
            pipeline_model_parallel_size=pp, data_parallel_size=dp
        ),
        virtual_pipeline_model_parallel_size=1,
        micro_batch_size=1,
        num_microbatches=num_microbatches,
        schedule="1f1b",
        placement="by hand",
        gradient_algorithm="ring",
        tensor_algorithm="ring",
        stages=tuple(
            Stage(
                chunks=((s * 8 // pp, (s + 1) * 8 // pp - 1),),
                devices=tuple(tuple(row) for row in devices[s].tolist()),
                recompute="none",
                zero_stage=0,
                sharding_group_size=1,
            )
            for s in range(pp)
        ),
    )


def judged(devices, uplink, memory=2.0**40):
    net, work = network(uplink), workload()
    priced = price_plan(net, work, plan(devices, 64 // len(devices[0])))
    done = replay(net, place_work(net, work, priced))
    verdict = judge(net, priced, done, tolerance=0.05, memory=memory)
    return priced, done, verdict


ZIGZAG = [[0], [4], [1], [5]]
"""Every boundary crosses between the two nodes, all over the same two uplinks."""


def test_a_plan_on_a_fast_network_is_confirmed():
    priced, done, verdict = judged([[0], [1], [2], [3]], 1e11)
    assert verdict.kind == "confirmed"
    assert done.iteration_time <= priced.iteration_time


def test_boundaries_that_share_a_slow_uplink_make_it_slower_and_name_it():
    """Each boundary alone would have the uplink; three of them share it."""
    _, _, verdict = judged(ZIGZAG, 3e5)
    assert verdict.kind == "slower"
    assert "contention" in verdict.reason
    assert "node" in verdict.reason
    assert verdict.gap.terms["contention"] > 0


def test_what_does_not_fit_is_infeasible_by_how_much():
    _, done, _ = judged(ZIGZAG, 1e11)
    peak = max(timeline.peak for timeline in done.memory)
    _, _, verdict = judged(ZIGZAG, 1e11, memory=peak - 1024)
    assert verdict.kind == "infeasible"
    assert "1 KiB too much" in verdict.reason


@pytest.mark.parametrize("uplink", [1e11, 1e8, 1e6])
def test_the_terms_of_the_gap_add_up(uplink):
    priced, done, _ = judged([[0, 4], [1, 5], [2, 6], [3, 7]], uplink)
    gap = gap_by_cause(priced, done)
    assert sum(gap.terms.values()) == pytest.approx(gap.total)


def test_gradient_collectives_in_the_replay_cost_what_the_plan_says():
    """One stage on all eight devices: nothing else is on the network."""
    priced, done, _ = judged([[0, 1, 2, 3, 4, 5, 6, 7]], 1e8)
    # Ring phases end on ticks of 2^-40 s.
    assert done.iteration_time == pytest.approx(priced.timeline_time, abs=1e-9)


def test_tied_embeddings_are_synchronised_over_the_same_links():
    priced, done, _ = judged([[0], [1], [2], [4]], 1e6)
    assert priced.stages[0].tied_time > 0
    assert done.iteration_time == pytest.approx(priced.timeline_time, rel=1e-6)


def test_a_replay_of_a_replaced_plan_uses_its_algorithm():
    net, work = network(1e8), workload()
    flat = plan([[0, 1, 2, 3, 4, 5, 6, 7]], 8)
    levels = replace(flat, gradient_algorithm="hierarchical")
    times = []
    for one in (flat, levels):
        priced = price_plan(net, work, one)
        times.append(replay(net, place_work(net, work, priced)).iteration_time)
    assert times[0] != times[1]
