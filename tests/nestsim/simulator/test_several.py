"""Steps in a row, and several jobs in one system."""

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nestsim.lowering.lower import lower_plan
from nestsim.simulator.flows import binding_links, build_flows
from nestsim.simulator.folding import unfolded
from nestsim.simulator.replay import replay, run_system
from nestsim.simulator.several import (
    Stint,
    carried_bytes,
    fold_jobs,
    join_jobs,
    step_ends,
)
from nestsim.simulator.system import GRANULARITIES, ReplaySettings
from nestsim.simulator.work import Bucket, EdgePhase
from tests import failures
from tests.nestsim.lowering.test_arrivals import executions
from tests.nestsim.lowering.test_lower import priced_plans, relaxed
from tests.nestsim.simulator.arrivals import FORMS
from tests.nestsim.simulator.cases import contended_step, pipeline, switch, two_tiers
from tests.nestsim.simulator.folding_cases import grid, spine_leaf, steps, work_on
from tests.planner.examples import executed

ANYHOW = ReplaySettings(engine="compiled")


def run(net, stints, form=ANYHOW):
    """Return the ends of all steps, and the bytes of jobs on links."""
    model = join_jobs(net, stints)
    folding = fold_jobs(model) if form.folding else unfolded(model.system)
    done = run_system(folding.system, form)
    ends = step_ends(model, folding, done)
    assert max(one[-1] for one in ends) == done.end
    return ends, carried_bytes(model, folding, done, len(net.links))


def same(ours, theirs):
    return [a.tobytes() for a in ours] == [b.tobytes() for b in theirs]


@settings(max_examples=30)
@given(steps(), st.integers(1, 5))
def test_steps_in_a_row_are_those_of_the_plain_replay(case, count):
    net, work = case
    once = replay(net, work, ANYHOW, memory=False)
    (first,), _ = run(net, [Stint(work, 1)])
    assert first.tolist() == [once.iteration_time]
    (ends,), (carried,) = run(net, [Stint(work, count)])
    assert ends.size == count
    assert (np.diff(ends) > 0).all()
    np.testing.assert_allclose(carried, count * once.links.num_bytes, rtol=1e-12)
    # A step may meet the next one, of stages that are done sooner; no later one.
    (fewer,), _ = run(net, [Stint(work, max(1, count - 1))])
    assert fewer[: max(0, count - 2)].tobytes() == ends[: max(0, count - 2)].tobytes()


@given(priced_plans(), st.sampled_from(GRANULARITIES), executions)
@settings(relaxed, max_examples=20)
def test_plans_alone_begin_with_the_step_of_the_plain_replay(
    case, granularity, execution
):
    network, job, priced = case
    form = replace(ANYHOW, granularity=granularity)
    work = lower_plan(network, executed(job, **execution), priced, form)
    once = replay(network, work, form, memory=False)
    (first,), _ = run(network, [Stint(work, 1)], form)
    assert first.tolist() == [once.iteration_time]
    (ends,), (carried,) = run(network, [Stint(work, 3)], form)
    np.testing.assert_allclose(carried, 3 * once.links.num_bytes, rtol=1e-12)
    if len(work.devices) == 1:
        np.testing.assert_allclose(ends, first * [1, 2, 3], rtol=1e-9)


@settings(max_examples=25)
@given(steps(), st.data())
def test_all_ways_to_run_jobs_give_the_same_bits(case, data):
    net, work = case
    spare = np.setdiff1d(np.arange(net.num_devices), work.devices)
    stints = [Stint(work, data.draw(st.integers(1, 6)))]
    if spare.size >= 2:
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        other = work_on(data.draw, rng, spare[:2].reshape(2, 1, 1))
        stints.append(Stint(other, 3, start=1e-3))
    results = [run(net, stints, form) for form in FORMS]
    for ends, carried in results[1:]:
        assert same(ends, results[0][0])
        assert carried.tobytes() == results[0][1].tobytes()


def halves(draw):
    """Two jobs over one network of two leaves, each with devices in both."""
    net = spine_leaf(
        2,
        devices_per_node=2,
        nodes_per_leaf=draw(st.sampled_from([2, 4])),
        oversubscription=draw(st.sampled_from([1.0, 4.0])),
    )
    nodes = np.arange(net.num_devices).reshape(-1, 2)
    works = []
    for part in (nodes[::2].ravel(), nodes[1::2].ravel()):
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        p = draw(st.sampled_from([1, 2, 4]))
        nesting = draw(st.sampled_from(["pipeline inside", "data inside"]))
        works.append(work_on(draw, rng, grid(part, (p, part.size // p, 1), nesting)))
    return net, works


@settings(max_examples=25)
@given(st.data())
def test_jobs_in_another_order_do_the_same(data):
    net, works = halves(data.draw)
    stints = [Stint(works[0], 3), Stint(works[1], 4, start=2e-3)]
    ends, carried = run(net, stints)
    turned, turned_bytes = run(net, stints[::-1])
    assert same(ends, turned[::-1])
    assert carried.tobytes() == turned_bytes[::-1].tobytes()


@settings(max_examples=30)
@given(st.data())
def test_what_jobs_carry_together_is_what_each_carries_alone(data):
    net, works = halves(data.draw)
    _, carried = run(net, [Stint(work, 2) for work in works])
    for work, bytes_of_job in zip(works, carried, strict=True):
        once = replay(net, work, ANYHOW, memory=False).links.num_bytes
        np.testing.assert_allclose(bytes_of_job, 2 * once, rtol=1e-12)


@settings(max_examples=25)
@given(st.data(), st.sampled_from([0.0, 1.0 / 3.0, 5.0]))
def test_jobs_that_share_no_link_are_alone(data, start):
    net = spine_leaf(2, devices_per_node=2, nodes_per_leaf=4, oversubscription=8.0)
    works = []
    for leaf in np.arange(net.num_devices).reshape(2, -1):
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        p = data.draw(st.sampled_from([1, 2, 4]))
        shape = (p, leaf.size // p, 1)
        works.append(work_on(data.draw, rng, grid(leaf, shape, "pipeline inside")))
    ends, carried = run(net, [Stint(works[0], 4), Stint(works[1], 3, start)])
    assert not (carried > 0).all(axis=0).any()
    (first,), _ = run(net, [Stint(works[0], 4)])
    (second,), _ = run(net, [Stint(works[1], 3)])
    assert ends[0].tobytes() == first.tobytes()
    begun = np.diff(ends[1])
    assert begun.tobytes() == np.diff(second).tobytes()
    np.testing.assert_allclose(ends[1][0] - start, second[0], atol=1e-12, rtol=0)


def test_alike_actors_of_different_jobs_stay_apart():
    net = two_tiers(2, 4, bandwidth=1e9, uplink=1e9)
    phase = [EdgePhase(np.array(pair)[:, 0], np.array(pair)[:, 1], 1e6, 1)
             for pair in ([[0, 4], [1, 5]], [[2, 6], [3, 7]])]  # fmt: skip
    works = [
        pipeline([[[k], [k + 1], [k + 4], [k + 5]]], 2, reduce_phases=((one,),))
        for k, one in zip((0, 2), phase, strict=True)
    ]
    model = join_jobs(net, [Stint(work, 2) for work in works])
    folding = fold_jobs(model)
    assert folding.actors.sizes.tolist() == [4, 4]
    assert folding.actors.of.tolist() == [0] * 4 + [1] * 4


def test_a_stage_without_overlaps_takes_as_long_each_time():
    net = switch(4, bandwidth=1e9)
    ring = EdgePhase(np.array([0, 1]), np.array([1, 0]), 5e8, 1)
    work = pipeline(
        [[[0], [1]]],
        3,
        forward_time=[0.25],
        backward_time=[0.5],
        optimizer_time=[0.125],
        reduce_phases=((ring,),),
        gather_phases=((ring,),),
    )
    (ends,), _ = run(net, [Stint(work, 5)])
    once = 3 * 0.75 + 0.5 + 0.125 + 0.5
    assert ends.tolist() == [once * k for k in range(1, 6)]


@failures.over("reduces", [False, True])
@failures.over("at", [0.0, 0.5, 1.0])
def test_parameters_are_gathered_when_the_optimizer_has_changed_them(at, reduces):
    """Not before: a stream's next step begins when its actor's has ended."""
    net = switch(2, bandwidth=1e9)
    ring = EdgePhase(np.array([0, 1]), np.array([1, 0]), 5e8, 1)
    work = pipeline(
        [[[0], [1]]],
        2,
        forward_time=[0.25],
        backward_time=[0.5],
        optimizer_time=[0.125],
        gather_buckets=((Bucket(0, at, (ring,)),),),
        reduce_buckets=((Bucket(0, 0.5, (ring,)),) if reduces else (),),
    )
    (ends,), _ = run(net, [Stint(work, 4)])
    # The gather takes 0.5 s; the reduction as long as the second half of a pass twice.
    waiting = 0.5 - at * 0.25
    reducing = 0.25 if reduces else 0.0
    once = waiting + 2 * 0.75 + reducing + 0.125
    assert ends.tolist() == [once * k for k in range(1, 5)]


def test_stages_go_on_to_the_next_step_as_soon_as_they_can():
    """Two stages, one microbatch: the last one has less to do behind its backward."""
    net = switch(2, bandwidth=1e9)
    work = pipeline([[[0]], [[1]]], 1, optimizer_time=[1.0, 5.0])
    (ends,), _ = run(net, [Stint(work, 3)])
    # F0 B0 O0 = 0-1, 3-4, 4-5; stage 1: 1-2, 2-3, then 5 s. Its next pass waits for its
    # own optimizer, at 8, though the first stage has sent long before.
    assert ends.tolist() == [8.0, 15.0, 22.0]


def test_a_link_that_one_job_cannot_fill_is_filled_by_two():
    # Devices send at 1 GB/s into uplinks of 1.5 GB/s.
    net = two_tiers(2, 2, bandwidth=1e9, uplink=1.5e9, latency=0.0)
    works = [pipeline([[[k]], [[k + 2]]], 1, boundary_bytes=[3e9]) for k in range(2)]
    flows = [build_flows(net, work) for work in works]
    uplinks = {8, 9, 10, 11}
    for one in flows:
        assert not uplinks & set(binding_links([one], net.links).tolist())
    assert uplinks & set(binding_links(flows, net.links).tolist())
    alone, _ = run(net, [Stint(works[0], 2)])
    assert alone[0].tolist() == [10.0, 20.0]
    together, _ = run(net, [Stint(work, 2) for work in works])
    # At 0.75 GB/s each, both ways.
    assert [one.tolist() for one in together] == [[12.0, 24.0]] * 2


def test_long_replays_take_a_coarser_clock():
    net = switch(2, bandwidth=1e9)
    work = pipeline([[[0]], [[1]]], 4, forward_time=[700.0] * 2)
    (ends,), _ = run(net, [Stint(work, 12)])
    once = replay(net, work).iteration_time
    assert ends[-1] > 2**13
    np.testing.assert_allclose(ends, once * np.arange(1, 13), rtol=1e-12)


@settings(max_examples=20)
@given(st.integers(1, 4), st.booleans())
def test_blocking_transfers_go_on_over_steps(count, blocking):
    net, work = contended_step()
    work = replace(work, blocking_transfers=blocking)
    (ends,), _ = run(net, [Stint(work, count)])
    once = replay(net, work).iteration_time
    assume(count > 1)
    np.testing.assert_allclose(np.diff(ends, prepend=0.0), once, rtol=0.05)


@failures.over("count", [3, 4, 9])
def test_periods_inside_of_each_step_are_skipped(count):
    """Whole steps repeat as well, but states do so long before."""
    net = two_tiers(2, 4, bandwidth=1e9, uplink=1e9, latency=0.0)
    works = [pipeline([[[k]], [[k + 4]]], 64, boundary_bytes=[1e8]) for k in range(2)]
    model = join_jobs(net, [Stint(work, count) for work in works])
    plain = run_system(model.system, replace(ANYHOW, skipping=False))
    skipped = run_system(model.system, ANYHOW)
    assert len(skipped.skips) == count
    assert skipped.num_events < plain.num_events / 4
    assert skipped.end == plain.end
