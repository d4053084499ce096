"""DualPipe-V with experts: its pairs hide all-to-alls, as planned and as replayed."""

from dataclasses import replace

import pytest

from estimators.tracing.trace import trace_model
from nestsim.lowering.lower import lower_plan
from nestsim.simulator.replay import replay
from nestsim.simulator.system import ReplaySettings
from planner.cost.pricing import price_plan
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.step.execution import SHARED
from tests import failures
from tests.planner.examples import eight_devices, tiny_job
from tests.planner.fleets import slow_fleet
from topologies import FatTreeSpec, LevelSpec, build_network
from topologies.accelerators import load_accelerator

NETWORK = eight_devices()

SLOW = 1.6e-5
"""Latency with which all-to-alls are longer than some forward windows [s]."""


def priced(slowdown: float, schedule: str, ep: int = 2):
    """Return a job of experts on two stages and two replicas, and its price."""
    job = tiny_job(80e9, family="mixtral")
    execution = replace(job.execution, expert_communication_slowdown=slowdown)
    job = replace(job, execution=execution)
    spec = PlanSpec(
        micro_batch_size=1,
        pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=2,
        data_parallel_size=2,
        expert_model_parallel_size=ep,
        schedule=schedule,
    )
    return job, price_plan(NETWORK, job, build_plan(NETWORK, job, spec))


@failures.over("slowdown", [1.0, 1.25])
def test_pairs_last_as_long_in_the_replay_as_they_are_planned_to(slowdown):
    job, planned = priced(slowdown, "dualpipe-v")
    replayed = replay(NETWORK, lower_plan(NETWORK, job, planned), ReplaySettings())
    assert replayed.iteration_time == pytest.approx(planned.iteration_time, rel=1e-8)


def test_pairs_hide_all_to_alls_and_pay_for_the_processors_that_these_have():
    (_, plain), (_, slowed) = (priced(slowdown, "dualpipe-v") for slowdown in (1, 1.25))
    for quick, slow in zip(plain.stages, slowed.stages, strict=True):
        for times, others in zip(quick.chunk_times, slow.chunk_times, strict=True):
            assert times.paired_forward < times.forward
            assert times.paired_backward < times.backward
            # All compute of a layer with experts, and no all-to-all, is in it.
            assert others.paired_forward <= 1.25 * times.paired_forward
            assert others.paired_forward > 1.2 * times.paired_forward
            assert others.forward == times.forward


def test_without_all_to_alls_pairs_are_passes_in_turn():
    _, planned = priced(1.25, "dualpipe-v", ep=1)
    for stage in planned.stages:
        for times in stage.chunk_times:
            assert times.paired_forward == pytest.approx(times.forward, rel=1e-12)
            assert times.paired_backward == pytest.approx(times.backward, rel=1e-12)


def expert_job(**execution):
    """Return a mixture with experts of all tokens on H100s that NCCL connects."""
    job = tiny_job(80e9, family="mixtral")
    software = replace(job.software, library=True)
    spec = replace(job.graph.spec, moe_shared_expert_intermediate_size=512)
    return replace(
        job,
        graph=trace_model(spec),
        software=software,
        accelerator=load_accelerator("h100-sxm"),
        execution=replace(job.execution, **execution),
    )


def planned_and_replayed(job, schedule, network=NETWORK):
    """Return a plan's price, held against its replay."""
    spec = PlanSpec(
        micro_batch_size=1,
        data_parallel_size=2,
        expert_model_parallel_size=2,
        schedule=schedule,
    )
    planned = price_plan(network, job, build_plan(network, job, spec))
    replayed = replay(network, lower_plan(network, job, planned), ReplaySettings())
    assert replayed.iteration_time == pytest.approx(planned.iteration_time, rel=1e-8)
    return planned


def test_weight_gradients_that_wait_make_pairs_no_longer_in_plan_and_replay():
    level = LevelSpec(name="node", fan_out=2, bandwidth=3e11, latency=1.5e-5)
    now, later = (
        planned_and_replayed(
            expert_job(delay_wgrad_compute=delays),
            "combined-1f1b",
            build_network(FatTreeSpec(levels=(level,))),
        )
        for delays in (False, True)
    )
    (times,), (others,) = now.stages[0].chunk_times, later.stages[0].chunk_times
    assert others.paired_forward > times.paired_forward
    assert others.paired_backward < times.paired_backward
    assert later.iteration_time < now.iteration_time


def test_devices_that_differ_send_between_experts_together():
    """What goes on beside compute is as slow as the slowest device has it."""
    level = LevelSpec(name="node", fan_out=2, bandwidth=3e9, latency=SLOW)
    network = build_network(FatTreeSpec(levels=(level,)))
    spec = PlanSpec(
        micro_batch_size=1,
        data_parallel_size=2,
        expert_model_parallel_size=2,
        schedule="combined-1f1b",
    )
    times = []
    for factors in ((1.0, 1.0), (1.0, 2.0), (2.0, 2.0)):
        job = expert_job(expert_communication_slowdown=1.25)
        job = job.on(slow_fleet(job, factors))
        planned = price_plan(network, job, build_plan(network, job, spec))
        settings = ReplaySettings(granularity="layer")
        work = lower_plan(network, job, planned, settings)
        times.append(replay(network, work, settings).iteration_time)
    quick, mixed, slow = times
    assert quick < mixed <= slow * (1.0 + 1e-9)


def test_experts_of_all_tokens_hide_all_to_alls_as_far_as_they_last():
    alone, beside = (
        planned_and_replayed(expert_job(moe_shared_expert_overlap=overlaps), "1f1b")
        for overlaps in (False, True)
    )
    job = expert_job()
    shared = job.part_times(SHARED, alone.plan.degrees).sum(axis=1)
    microbatches = alone.plan.num_microbatches
    saved = (alone.iteration_time - beside.iteration_time) / microbatches
    assert 0.0 < saved <= shared[0] + shared[1]
    # A gather of all tokens is in no step of the dispatcher that others go beside.
    software = replace(job.software, moe_token_dispatcher_type="allgather")
    for overlaps in (False, True):
        job = expert_job(moe_shared_expert_overlap=overlaps)
        planned = planned_and_replayed(replace(job, software=software), "1f1b")
        assert planned.terms["hidden"] == 0.0
