"""hpZ in the replay: which groups gather what, how often, and what devices hold."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from nestsim.lowering.lower import lower_plan, stage_collectives
from nestsim.lowering.traffic import plan_traffic
from nestsim.simulator.replay import replay
from nestsim.simulator.system import ReplaySettings
from planner.cost.pricing import price_plan
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.step.instructions import BACKWARD, FIRST_FORWARD, FORWARD, USUAL_KIND
from planner.step.memory import SECOND_COPY
from planner.step.schedules import SCHEDULES
from tests import failures
from tests.planner.examples import eight_devices, executed, tiny_job

NETWORK = eight_devices()
OVERLAPS = {"overlap_param_gather": True, "overlap_grad_reduce": True}
GRANULARITY = ("stage", "layer")


def priced(size=4, *, overlaps=None, **settings):
    """Eight replicas on two nodes of four, two microbatches."""
    job = tiny_job(2.0**40)
    job = executed(job, **(overlaps or {}))
    spec = PlanSpec(
        **{"micro_batch_size": 1, "zero_stage": 3, "zero_hpz_partition_size": size}
        | settings
    )
    return job, price_plan(NETWORK, job, build_plan(NETWORK, job, spec))


ALL, PAIRS = [[0, 1, 2, 3]], [[0, 1], [2, 3]]
OBSERVED = (ALL, PAIRS, PAIRS, PAIRS, PAIRS, PAIRS)
"""Groups in which DeepSpeed 0.19.8 gathers weights, pass by pass: logged calls of
``_dist_allgather_fn`` of ``deepspeed/runtime/zero/partition_parameters.py`` in the
second step of four processes (gloo, bf16, SGD, three linear layers, ZeRO-3,
``zero_hpz_partition_size`` 2, three accumulation steps, nothing persistent)."""


def gathers(moves, numbers):
    """Return how often moves send each collective."""
    return Counter(numbers[move.post] for move in moves if move.post >= 0)


def test_passes_gather_from_the_copy_but_the_first():
    job, found = priced()
    work = lower_plan(NETWORK, job, found, ReplaySettings(granularity="layer"))
    (sent,) = stage_collectives(NETWORK, job, found)
    messages = [message for message, _ in sent.in_passes]
    groups = {message: members.tolist() for message, members in sent.in_passes}
    table = job.table(found.plan.degrees)
    owned = table.parameters.copy()
    owned[-1] -= table.tied_parameters
    expected = Counter((2.0 * owned).tolist())
    for kind, nearby in ((FIRST_FORWARD, False), (FORWARD, True), (BACKWARD, True)):
        posted = gathers(work.layers.passes[kind][0], messages)
        weights = {m: n for m, n in posted.items() if m.kind == "layer gather"}
        assert {m.nearby for m in weights} == {nearby}
        assert Counter({m.num_bytes: n for m, n in weights.items()}) == expected
        for message in weights:
            ranks = [[0, 1, 2, 3], [4, 5, 6, 7]] if nearby else [[*range(8)]]
            assert groups[message] == ranks


@failures.over("granularity", GRANULARITY)
@failures.over("size", [2, 4])
def test_weights_that_are_sharded_again_are_replayed_as_planned(size, granularity):
    job, found = priced(1, reshard_after_forward=size)
    work = lower_plan(NETWORK, job, found, ReplaySettings(granularity=granularity))
    done = replay(NETWORK, work)
    assert done.iteration_time == pytest.approx(found.iteration_time, rel=1e-6)
    assert found.iteration_time < priced(1)[1].iteration_time
    share = job.table(found.plan.degrees)
    kept = 2 * (share.parameters.sum() - share.tied_parameters) / size
    for timeline in done.memory:
        assert timeline.peak_parts[SECOND_COPY] == pytest.approx(kept)


def test_backward_passes_gather_what_was_sharded_again():
    job, found = priced(1, reshard_after_forward=4)
    work = lower_plan(NETWORK, job, found, ReplaySettings(granularity="layer"))
    (sent,) = stage_collectives(NETWORK, job, found)
    messages = [message for message, _ in sent.in_passes]
    groups = {message: members.tolist() for message, members in sent.in_passes}
    for kind, nearby in ((FORWARD, False), (BACKWARD, True)):
        posted = gathers(work.layers.passes[kind][0], messages)
        weights = [m for m in posted if m.kind == "layer gather"]
        assert weights
        for message in weights:
            ranks = [[0, 1, 2, 3], [4, 5, 6, 7]] if nearby else [[*range(8)]]
            assert groups[message] == ranks


def test_a_step_gathers_in_the_groups_of_deepspeed():
    job = tiny_job(2.0**40)
    job = replace(job, training=replace(job.training, global_batch_size=12))
    spec = PlanSpec(
        micro_batch_size=1,
        data_parallel_size=4,
        zero_stage=3,
        zero_hpz_partition_size=2,
    )
    found = price_plan(NETWORK, job, build_plan(NETWORK, job, spec))
    work = lower_plan(NETWORK, job, found, ReplaySettings(granularity="layer"))
    (sent,) = stage_collectives(NETWORK, job, found)
    program = SCHEDULES["1f1b"].program(1, 3, 1)
    rows = program.kind, program.virtual_stage, program.indptr
    passes = []
    for kind in SCHEDULES["1f1b"].written_kinds(*rows, first=True).tolist():
        posted = {move.post for move in work.layers.passes[kind][0]} - {-1}
        groups = [
            sent.in_passes[number][1].tolist()
            for number in sorted(posted)
            if sent.in_passes[number][0].kind == "layer gather"
        ]
        assert all(one == groups[0] for one in groups)
        passes.append(groups[0])
    assert tuple(passes) == OBSERVED


@failures.over(
    ("granularity", "overlaps"), [("stage", {}), ("stage", OVERLAPS), ("layer", {})]
)
@failures.over("recompute", ["none", "full", "stage"])
@failures.over("size", [2, 4, 8])
def test_the_replay_takes_what_was_planned(size, recompute, overlaps, granularity):
    job, found = priced(size, overlaps=overlaps, recompute=recompute)
    work = lower_plan(NETWORK, job, found, ReplaySettings(granularity=granularity))
    done = replay(NETWORK, work)
    assert done.iteration_time == pytest.approx(found.iteration_time, rel=1e-6)
    assert (
        found.iteration_time
        < priced(1, overlaps=overlaps, recompute=recompute)[1].iteration_time
        or size == 8
    )
    share = job.table(found.plan.degrees)
    held = 2 * (share.parameters.sum() - share.tied_parameters) / size
    for timeline in done.memory:
        assert timeline.peak_parts[SECOND_COPY] == pytest.approx(held)
        assert timeline.peak <= found.stages[0].peak_memory * (1 + 1e-9)


def test_forward_passes_hide_what_was_planned():
    """Layer by layer, in rings, of one phase each.

    In backward passes gathers and reductions meet on their links.
    """
    job, found = priced(overlaps=OVERLAPS, gradient_algorithm="ring")
    work = lower_plan(NETWORK, job, found, ReplaySettings(granularity="layer"))
    spans = replay(NETWORK, work).spans
    forward = np.flatnonzero((spans.kind == FORWARD) & (spans.replica == 0))
    times = found.stages[0].chunk_times[0]
    lengths = (spans.end - spans.start)[forward]
    assert lengths == pytest.approx([times.first_forward, times.forward], rel=1e-6)
    assert times.first_forward > 1.1 * times.forward


@failures.over("granularity", GRANULARITY)
def test_a_stage_may_keep_copies_beside_one_that_does_not(granularity):
    job, found = priced((2, 1), pipeline_model_parallel_size=2, data_parallel_size=4)
    plan = replace(found.plan, num_microbatches=1)
    found = price_plan(NETWORK, job, plan)
    work = lower_plan(NETWORK, job, found, ReplaySettings(granularity=granularity))
    done = replay(NETWORK, work)
    assert done.iteration_time == pytest.approx(found.iteration_time, rel=1e-6)
    first, last = found.stages
    assert first.chunk_times[0].first_forward > first.forward_time
    assert last.chunk_times[0].first_forward == pytest.approx(last.forward_time)
    assert (SECOND_COPY in first.memory, SECOND_COPY in last.memory) == (True, False)


def test_traffic_tells_both_groups():
    job, found = priced()
    traffic = plan_traffic(job, found)
    alike = {
        (one.kind, one.operation, one.num_members, bool(np.isinf(one.period).all()))
        for one in traffic
    }
    assert alike == {
        ("data", "all_gather", 8, True),
        ("data in blocks", "all_gather", 4, False),
        ("data", "reduce_scatter", 8, False),
    }


def test_plans_without_copies_have_no_pass_apart():
    job, found = priced(1)
    work = lower_plan(NETWORK, job, found)
    assert not work.tells_first
    assert "zero_hpz_partition_size" not in str(found.plan.to_json())
    assert not any("second copy" in note for note in work.notes)
    job, found = priced(4)
    work = lower_plan(NETWORK, job, found)
    assert work.tells_first
    assert any("second copy" in note for note in work.notes)


@failures.over("name", SCHEDULES)
def test_the_first_forward_pass_of_each_chunk_is_apart(name):
    schedule = SCHEDULES[name]
    v = schedule.num_chunks or (2 if schedule.interleaves else 1)
    program = schedule.program(2, 4, v)
    rows = program.kind, program.virtual_stage, program.indptr
    usual, written = (schedule.written_kinds(*rows, first=one) for one in (False, True))
    apart = np.flatnonzero(written == FIRST_FORWARD)
    assert sorted(program.virtual_stage[apart].tolist()) == list(range(2 * v))
    assert {*program.microbatch[apart].tolist()} == {0}
    assert (np.delete(written, apart) == np.delete(usual, apart)).all()
    # None of them has another pass beside it.
    assert (usual[apart] == FORWARD).all()
    assert {USUAL_KIND[kind] for kind in written[apart].tolist()} == {FORWARD}
