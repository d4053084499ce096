"""Prices and memory of plans whose weight gradients are passes of their own."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.pricing import price_plan
from planner.step.instructions import BACKWARD, FORWARD
from planner.step.memory import stage_activations
from planner.step.schedules import SCHEDULES
from planner.step.virtual import interleave_chain
from tests import failures
from tests.planner.cost.test_pricing import TREE, plan, table, workload
from tests.planner.examples import eight_devices, tiny_job
from tests.planner.step.cycle_time import CLOSED_FORMS, PipelineTimes

ONE_WAY = 24 / 2.0 + 1.0 + 0.5 + 0.5 + 1.0
"""24 bytes from one node to the other: 2 byte/s and two hops each of 0.5 and 1 s."""


def split(devices, cuts, *, m, schedule="zb-h1", **settings):
    return replace(plan(devices, cuts, m=m, **settings), schedule=schedule)


def test_weight_gradients_leave_the_backward_pass():
    priced = price_plan(TREE, workload(), split([[[0]], [[4]]], (2,), m=8))
    first, last = priced.stages
    assert (first.forward_time, first.backward_time) == (5, 10 - 3)
    assert (last.forward_time, last.backward_time) == (2, 4 - 2)
    assert (first.weight_gradient_time, last.weight_gradient_time) == (3, 2)
    assert [stage.chunk_times for stage in priced.stages] == [
        ((5, 7, 3, 0, 0, 0),),
        ((2, 2, 2, 0, 0, 0),),
    ]
    joined = price_plan(TREE, workload(), plan([[[0]], [[4]]], (2,), m=8)).stages
    for one, other in zip(priced.stages, joined, strict=True):
        assert one.parts == other.parts
        assert one.work_time == other.work_time == sum(one.parts.values())
        assert other.weight_gradient_time == 0
        both = one.forward_time, other.backward_time
        assert other.chunk_times[0] == (*both, 0, 0, 0, 0)


def test_the_price_is_the_timeline_and_its_terms_add_up():
    priced = price_plan(TREE, workload(), split([[[0]], [[4]]], (2,), m=8))
    message = np.array([ONE_WAY - 3.0])
    latency = np.array([3.0])
    times = PipelineTimes(
        np.array([5.0, 2.0]),
        np.array([7.0, 2.0]),
        np.array([3.0, 2.0]),
        *(message, message, latency, latency),
    )
    pipeline = priced.pipeline_time
    assert pipeline <= CLOSED_FORMS["zb-h1"](times, 8).time
    assert sum(priced.terms.values()) == priced.iteration_time
    assert priced.terms["compute"] == 8 * 15
    assert priced.terms["tail"] == priced.iteration_time - pipeline


@failures.over("schedule", ["gpipe", "zb-h1"])
@failures.over("m", [1, 2, 5, 16])
def test_transfers_bubble_and_tail_are_what_the_slowest_stage_does_not_work(
    schedule, m
):
    near = split([[[0]], [[1]]], (2,), m=m, schedule=schedule)
    priced = price_plan(TREE, workload(), near)
    terms = priced.terms
    assert min(terms[name] for name in ("transfers", "bubble", "tail")) >= 0
    assert terms["transfers"] > 0
    assert priced.iteration_time == pytest.approx(sum(terms.values()))


@settings(max_examples=25)
@given(m=st.integers(1, 20), cut=st.integers(1, 2), far=st.booleans())
def test_gpipe_is_priced_by_its_closed_form(m, cut, far):
    devices = [[[0]], [[4 if far else 1]]]
    gpipe = split(devices, (cut,), m=m, schedule="gpipe")
    priced = price_plan(TREE, workload(), gpipe)
    latency, bandwidth = (3.0, 2.0) if far else (1.0, 8.0)
    one, other = priced.stages
    message, delay = np.array([24 / bandwidth]), np.array([latency])
    times = PipelineTimes(
        np.array([one.forward_time, other.forward_time]),
        np.array([one.backward_time, other.backward_time]),
        np.zeros(2),
        *(message, message, delay, delay),
    )
    form = CLOSED_FORMS["gpipe"](times, m)
    assert priced.pipeline_time == form.time


def test_zero_reduces_gradients_once_they_are_there():
    whole = price_plan(TREE, workload(), plan([[[0], [1]]], (), m=4, zero=3))
    apart = price_plan(TREE, workload(), split([[[0], [1]]], (), m=4, zero=3))
    gather = 3 * 1.0 + 0.5 * 80 / 8.0
    scatter = 3 * 1.0 + 0.5 * 160 / 8.0
    (joined,), (stage,) = whole.stages, apart.stages
    assert stage.forward_time == joined.forward_time == 7 + gather
    assert stage.backward_time == 14 - 5 + gather
    assert stage.weight_gradient_time == 5 + scatter
    assert joined.backward_time == 14 + gather + scatter


def memory(recompute, index, *, cut=2):
    plan = split([[[0]], [[4]]], (cut,), m=8, recompute=recompute)
    found = price_plan(TREE, workload(), plan).stages[index].memory
    return found["activations"], found["working"]


def test_a_stage_keeps_what_products_need_in_place_of_what_was_saved():
    # First stage: two microbatches wait for their backward pass, none for weights.
    assert memory("none", 0) == (2 * 51, 3)
    # Last stage: one waits for either; 8 in place of 7 come up in the backward pass.
    assert memory("none", 1) == (7 + 8, 6 + 1)


def test_recompute_saves_nothing_of_what_products_need():
    assert memory("full", 0) == (2 * 6, 3 + 45 + (40 - 6))
    # Head and block in the last stage, from the input that came in.
    assert memory("stage", 1, cut=1) == (24 + 48, 57 + 6)


@st.composite
def pipelines(draw):
    pp = draw(st.sampled_from([1, 2, 4]))
    return pp, draw(st.integers(1, 9)), draw(st.sampled_from(["none", "full", "stage"]))


@settings(max_examples=25)
@given(size=pipelines())
def test_no_moment_of_the_schedule_needs_more_than_the_bound(size):
    """Go through the lists, each allocation and release in its place."""
    pp, m, recompute = size
    job, network = tiny_job(80e9, num_blocks=4), eight_devices()
    layers = job.chain[0]
    bounds = [0, *(1 + 4 * s // pp for s in range(1, pp)), layers]
    base = plan([[[s]] for s in range(pp)], (1,) * (pp - 1), m=m)
    stages = tuple(
        replace(
            base.stages[s],
            chunks=((bounds[s], bounds[s + 1] - 1),),
            recompute=recompute,
        )
        for s in range(pp)
    )
    whole = replace(base, schedule="zb-h1", stages=stages)
    priced = price_plan(network, job, whole)
    of_job = job.table(next(iter(job._tables)))
    for index, (stage, cost) in enumerate(zip(stages, priced.stages, strict=True)):
        each = stage_activations(of_job, stage, splits_backward=True)
        alive, most = 0.0, 0.0
        kinds = SCHEDULES["zb-h1"].instructions(index, pp, m).kind
        for kind in kinds.tolist():
            if kind == FORWARD:
                alive += each.saved[0]
                most = max(most, alive + each.forward_working)
            elif kind == BACKWARD:
                most = max(most, alive + each.backward_working)
                alive += each.kept[0] - each.saved[0]
            else:
                most = max(most, alive)
                alive -= each.kept[0]
        assert alive == pytest.approx(0, abs=1e-3)
        bound = cost.memory["activations"] + cost.memory["working"]
        assert most <= bound * (1 + 1e-12)
        in_place = each.forward_working == each.backward_working
        assert not in_place or most == pytest.approx(bound)


def test_no_layer_has_more_weight_gradients_than_backward_pass():
    found = table()
    assert (found.weight_gradient_time <= found.backward_time).all()
    real = tiny_job(80e9)
    price_plan(eight_devices(), real, base_of(real))
    for one in real._tables.values():
        assert (one.weight_gradient_time <= one.backward_time).all()
        assert one.weight_gradient_time.sum() > 0


def base_of(job):
    base = plan([[[0]]], (), m=1)
    stage = replace(base.stages[0], chunks=((0, job.chain[0] - 1),))
    return replace(base, stages=(stage,))


@failures.over("v", [1, 2, 4])
def test_folding_a_chain_keeps_its_weight_gradients(v):
    job = tiny_job(80e9, num_blocks=4)
    price_plan(eight_devices(), job, base_of(job))
    (whole,) = job._tables.values()
    interleaved = interleave_chain(whole, v)
    assert interleaved.weight_gradient_time.shape == interleaved.backward_time.shape
    time = interleaved.weight_gradient_time.sum()
    assert time == pytest.approx(whole.weight_gradient_time.sum())
    kept = interleaved.weight_gradient_bytes.sum()
    assert kept == pytest.approx(whole.weight_gradient_bytes.sum())
