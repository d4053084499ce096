"""DualPipe-V with experts: its pairs hide all-to-alls, as planned and as replayed."""

from dataclasses import replace

import pytest

from nestsim.lowering.lower import lower_plan
from nestsim.simulator.replay import ReplaySettings, replay
from planner.cost.pricing import price_plan
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from tests import failures
from tests.planner.examples import eight_devices, tiny_job

NETWORK = eight_devices()


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
    job, found = priced(slowdown, "dualpipe-v")
    replayed = replay(NETWORK, lower_plan(NETWORK, job, found), ReplaySettings())
    assert replayed.iteration_time == pytest.approx(found.iteration_time, rel=1e-8)


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
    _, found = priced(1.25, "dualpipe-v", ep=1)
    for stage in found.stages:
        for times in stage.chunk_times:
            assert times.paired_forward == times.forward
            assert times.paired_backward == times.backward
