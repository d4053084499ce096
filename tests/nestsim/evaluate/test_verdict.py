"""Verdicts on real replays of plans made to keep or to break their promise."""

from dataclasses import replace

import numpy as np
import pytest

from estimators.tracing.trace import trace_model
from estimators.training import ParallelismConfig, TrainingSpec
from nestsim.evaluate.uncertainty import MemoryBand
from nestsim.evaluate.verdict import (
    NO_ROOM,
    DeviceMemory,
    explain_gap,
    gap_by_cause,
    judge,
)
from nestsim.lowering.lower import lower_plan
from nestsim.simulator.replay import replay
from nestsim.simulator.system import ReplaySettings
from planner.cost.pricing import price_plan
from planner.step.execution import Workload
from planner.step.plan import Plan, Stage
from tests import failures
from tests.planner.fleets import executed_on, slow_fleet
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


def judged(devices, uplink, memory=2.0**40, band=None):
    net, work = network(uplink), workload()
    priced = price_plan(net, work, plan(devices, 64 // len(devices[0])))
    done = replay(net, lower_plan(net, work, priced))
    each = DeviceMemory([memory] * len(devices), band)
    verdict = judge(net, priced, done, tolerance=0.05, memory=each)
    return priced, done, verdict


ZIGZAG = [[0], [4], [1], [5]]
"""Every boundary crosses between the two nodes, all over the same two uplinks."""


def test_a_plan_on_a_fast_network_is_confirmed():
    priced, done, verdict = judged([[0], [1], [2], [3]], 1e11)
    assert verdict.kind == "confirmed"
    assert done.iteration_time == pytest.approx(priced.iteration_time, rel=1e-6)


def test_boundaries_that_share_a_slow_uplink_make_it_slower_and_name_it():
    """Each boundary alone would have the uplink; three of them share it."""
    _, _, verdict = judged(ZIGZAG, 3e5)
    assert verdict.kind == "slower"
    assert "contention" in verdict.reason
    assert "node" in verdict.reason
    assert verdict.gap.terms["contention"] > 0


BAND = MemoryBand((0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 1.0, 1.04))


@failures.over(
    ("share", "kind", "jobs"),
    [
        (1.05, "confirmed", 10),
        (1.02, "confirmed", 8),
        (0.96, "doubtful", 4),
        (0.86, "doubtful", 1),
        (0.84, "infeasible", 0),
    ],
)
def test_infeasible_is_said_outside_of_the_band_alone(share, kind, jobs):
    _, done, _ = judged(ZIGZAG, 1e11)
    peak = max(timeline.peak for timeline in done.memory)
    _, _, verdict = judged(ZIGZAG, 1e11, memory=share * peak, band=BAND)
    assert verdict.kind == kind
    assert verdict.memory.fits_in_ten == jobs
    assert verdict.memory.low == pytest.approx(0.85 * peak)
    assert (verdict.kind in NO_ROOM) == (share < 1.0)


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


def explained(devices, uplink, settings=ReplaySettings(), slowdown=1.0):  # noqa: B008
    net, job = network(uplink), workload()
    factors = np.full(net.num_devices, slowdown)
    factors[0] = 1.0
    job = executed_on(job, slow_fleet(job, factors))
    priced = price_plan(net, job, plan(devices, 64 // len(devices[0])))
    work = lower_plan(net, job, priced, settings)
    done = replay(net, work, settings)
    gap = explain_gap(net, priced, done, work, settings)
    assert sum(gap.terms.values()) == pytest.approx(gap.total, rel=1e-12, abs=1e-12)
    assert gap.total == done.iteration_time - priced.iteration_time
    return priced, done, gap


BY_LAYER = ReplaySettings(granularity="layer")


@failures.over("settings", [ReplaySettings(), BY_LAYER])
@failures.over("uplink", [3e5, 1e6, 1e8, 1e11])
def test_an_explained_gap_adds_up_and_charges_nothing_to_plain_settings(
    uplink, settings
):
    """Without contention the replay is the timeline, so only sharing is left."""
    for devices in (ZIGZAG, [[0, 4], [1, 5], [2, 6], [3, 7]]):
        priced, _, gap = explained(devices, uplink, settings)
        assert gap.terms.get("settings", 0.0) == pytest.approx(
            0.0, abs=1e-9 * priced.iteration_time
        )


def test_contention_is_charged_to_the_level_whose_links_are_shared():
    _, done, gap = explained(ZIGZAG, 3e5)
    assert "contention" not in gap.terms
    at = {name: t for name, t in gap.terms.items() if name.startswith("contention at")}
    assert gap.terms["contention at leaf"] == max(at.values())
    assert gap.terms["contention at leaf"] > 0.05 * done.iteration_time


def test_little_contention_is_not_worth_more_runs(monkeypatch):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr("nestsim.evaluate.verdict.contention_by_level", never)
    _, _, gap = explained([[0], [1], [2], [3]], 1e11)
    assert set(gap.terms) == {"contention", "synchronisation"}


def test_slow_devices_are_in_the_plan_and_no_part_of_the_gap():
    even, _, _ = explained([[0], [1], [2], [3]], 1e11)
    priced, done, gap = explained([[0], [1], [2], [3]], 1e11, slowdown=1.5)
    assert priced.iteration_time > 1.4 * even.iteration_time
    assert done.iteration_time == pytest.approx(priced.iteration_time, rel=1e-8)
    assert set(gap.terms) == {"contention", "synchronisation"}


@pytest.mark.parametrize("stage", [0, 1])
def test_classes_count_as_often_as_they_are_for_the_stage_that_works_most(stage):
    priced, done, _ = judged([[0, 1, 2, 3], [4, 5, 6, 7]], 1e11)
    counts = np.where(done.spans.stage == stage, 1000, 1)
    verdict = judge(
        network(1e11),
        replace(priced, iteration_time=0.5 * priced.iteration_time),
        replace(done, span_multiplicity=counts),
        tolerance=0.05,
        memory=DeviceMemory([2.0**40] * 2),
    )
    assert f"stage {stage} works most" in verdict.reason


def test_gradient_collectives_in_the_replay_cost_what_the_plan_says():
    """One stage on all eight devices: nothing else is on the network."""
    priced, done, _ = judged([[0, 1, 2, 3, 4, 5, 6, 7]], 1e8)
    # Ring phases end on ticks of 2^-40 s.
    assert done.iteration_time == pytest.approx(priced.iteration_time, abs=1e-9)


def test_tied_embeddings_are_synchronised_over_the_same_links():
    priced, done, _ = judged([[0], [1], [2], [4]], 1e6)
    assert priced.stages[0].tied_time > 0
    assert done.iteration_time == pytest.approx(priced.iteration_time, rel=1e-6)


def test_a_replay_of_a_replaced_plan_uses_its_algorithm():
    net, work = network(1e8), workload()
    flat = plan([[0, 1, 2, 3, 4, 5, 6, 7]], 8)
    levels = replace(flat, gradient_algorithm="hierarchical")
    times = []
    for one in (flat, levels):
        priced = price_plan(net, work, one)
        times.append(replay(net, lower_plan(net, work, priced)).iteration_time)
    assert times[0] != times[1]
