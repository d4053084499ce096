import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.simulator.build import build_model
from nestsim.simulator.replay import replay
from nestsim.simulator.simpy_engine import simulate
from nestsim.simulator.system import (
    SPAN_KINDS,
    TICK,
    TRANSFER_KINDS,
    quantise,
    tick_for,
)
from nestsim.simulator.work import RingPhase
from planner.kernels.timeline import BoundaryTimes, InstructionLists, timeline
from planner.step.schedules import SCHEDULES
from tests import failures
from tests.nestsim.simulator.cases import (
    contended_step,
    full_mesh,
    pipeline,
    replay_all,
    ring_all_reduce,
    step_sizes,
    switch,
    two_tiers,
)
from topologies.errors import InputError

sequential = [name for name, one in SCHEDULES.items() if not one.interleaves]
schedules = failures.over("schedule", sequential)


@st.composite
def lone_pipelines(draw, schedule, *, least=1e-3, most_bytes=1e7):
    """One replica, a link of its own for each pair, random speeds and latencies."""
    p, m, v = draw(step_sizes(schedule, most_stages=6, most_microbatches=12))

    def numbers(count, low, high):
        values = st.lists(st.floats(low, high), min_size=count, max_size=count)
        return np.array(draw(values))

    speed = numbers(p * p, 1e8, 1e10).reshape(p, p)
    delay = numbers(p * p, 0.0, 1e-4).reshape(p, p)
    net = full_mesh(p, lambda a, b: speed[a, b], lambda a, b: delay[a, b])
    work = pipeline(
        np.arange(p).reshape(p, 1, 1),
        m,
        num_chunks=v,
        schedule=schedule,
        forward_time=numbers(v * p, least, 0.02),
        backward_time=numbers(v * p, least, 0.02),
        boundary_bytes=numbers(v * p - 1, 0.0, most_bytes),
    )
    return net, work, speed, delay


def recurrence(work, delay, wires, rounded):
    """Return the timeline: (stage, kind, microbatch, chunk) -> (start, end).

    ``wires`` are the times that messages forward and back are on the wire.
    """
    p, m, v = work.devices.shape[0], work.num_microbatches, work.num_chunks
    virtual = work.virtual_stages()
    low, high = virtual.stage[:-1], virtual.stage[1:]
    program = SCHEDULES[work.schedule].program(p, m, v)
    durations = np.zeros((3, v * p))
    durations[:2] = work.forward_time, work.backward_time
    transfers = (*wires, delay[low, high], delay[high, low])
    boundaries = BoundaryTimes(*map(rounded, transfers))
    lists = InstructionLists(*program)
    status, start, end, _ = timeline(lists, m, rounded(durations), boundaries)
    assert status == 0
    stage = np.repeat(np.arange(p), np.diff(program.indptr))
    chunk = virtual.chunk[program.virtual_stage]
    keys = zip(stage, program.kind, program.microbatch, chunk, strict=True)
    return dict(zip(keys, zip(start, end, strict=True), strict=True))


def wires_of_pairs(work, speed):
    """Return how long messages are on the wire at the speeds of their pair's links."""
    stage, volume = work.virtual_stages().stage, work.boundary_bytes
    low, high = stage[:-1], stage[1:]
    return volume / speed[low, high], volume / speed[high, low]


def passes(spans):
    """Return the replay's spans of the only replica in the same form."""
    return {
        (stage, kind, k, chunk): (start, end)
        for stage, _, kind, k, chunk, start, end in zip(*spans, strict=True)
        if kind != SPAN_KINDS.index("optimizer")
    }


def in_ticks(values):
    return quantise(values, TICK)


@schedules
@settings(max_examples=30)
@given(data=st.data())
def test_alone_the_replay_is_exactly_the_recurrence_of_rounded_durations(
    schedule, data
):
    net, work, speed, delay = data.draw(lone_pipelines(schedule, least=0.0))
    expected = recurrence(work, delay, wires_of_pairs(work, speed), in_ticks)
    result = replay(net, work)
    assert passes(result.spans) == expected
    assert result.iteration_time == max(end for _, end in expected.values())
    assert result.pipeline_time == result.iteration_time


@schedules
@settings(max_examples=30)
@given(data=st.data())
def test_alone_the_replay_is_the_recurrence_to_a_billionth(schedule, data):
    net, work, speed, delay = data.draw(lone_pipelines(schedule))
    expected = recurrence(
        work, delay, wires_of_pairs(work, speed), lambda values: values
    )
    found = passes(replay(net, work).spans)
    assert found.keys() == expected.keys()
    for key, moments in expected.items():
        assert found[key] == pytest.approx(moments, rel=1e-9, abs=0)


@settings(max_examples=30)
@given(
    p=st.integers(1, 6),
    m=st.integers(1, 15),
    data=st.data(),
)
def test_gpipe_takes_exactly_its_closed_form(p, m, data):
    def sizes(count, most):
        values = st.lists(st.integers(0, most), min_size=count, max_size=count)
        return np.array(data.draw(values), dtype=np.float64)

    # In quarters of a second: all sums are exact.
    forward, backward, volume = sizes(p, 9) / 4, sizes(p, 9) / 4, sizes(p - 1, 12)
    net = full_mesh(p, bandwidth=4.0, latency=0.5)
    work = pipeline(
        np.arange(p).reshape(p, 1, 1),
        m,
        schedule="gpipe",
        forward_time=forward,
        backward_time=backward,
        boundary_bytes=volume,
    )
    wire = volume / 4
    once = forward.sum() + backward.sum() + 2 * wire.sum() + 2 * 0.5 * (p - 1)
    slowest = wire.max(initial=0)
    pace = max(forward.max(), slowest) + max(backward.max(), slowest)
    assert replay(net, work).iteration_time == once + (m - 1) * pace


@schedules
def test_a_single_stage_works_without_a_break(schedule):
    work = pipeline(
        [[[0]]],
        7,
        schedule=schedule,
        forward_time=[0.25],
        backward_time=[0.5],
        optimizer_time=[0.125],
    )
    result = replay(switch(1), work)
    assert result.iteration_time == 7 * 0.75 + 0.125
    assert result.pipeline_time == 7 * 0.75
    assert result.spans.end[:-1].tolist() == result.spans.start[1:].tolist()
    assert result.links.link_ids.size == 0
    assert result.transfers.start.size == 0


@settings(max_examples=30)
@given(
    n=st.integers(2, 8),
    size=st.floats(1.0, 1e9),
    bandwidth=st.floats(1e8, 1e12),
    latency=st.floats(0.0, 1e-4),
)
def test_a_ring_all_reduce_takes_its_closed_form(n, size, bandwidth, latency):
    work = pipeline(
        [[[device] for device in range(n)]],
        1,
        reduce_phases=((ring_all_reduce(range(n), size),),),
    )
    result = replay(switch(n, bandwidth, latency), work)
    expected = 2 * (n - 1) / n * size / bandwidth + 2 * (n - 1) * 2 * latency
    # Both terms are rounded, by half a tick each.
    tolerance = TICK * (1 + 1e-6) + 1e-12 * expected
    assert abs(result.iteration_time - 2.0 - expected) <= tolerance
    (kind,) = result.transfers.kind
    assert TRANSFER_KINDS[kind] == "reduce"
    assert result.transfers.start.tolist() == [2.0]


def shared_uplink(num_replicas, m, *, bandwidth, compute=0.0, schedule="gpipe"):
    """Stages in two nodes; all replicas' messages share the nodes' links."""
    net = two_tiers(
        2, num_replicas, bandwidth=bandwidth * 1024, uplink=bandwidth, latency=0.0
    )
    devices = np.arange(2 * num_replicas).reshape(2, num_replicas, 1)
    return net, pipeline(
        devices,
        m,
        schedule=schedule,
        forward_time=[compute] * 2,
        backward_time=[compute] * 2,
        boundary_bytes=[2.0**20],
    )


@failures.over("m", [1, 2, 9])
def test_two_replicas_on_one_uplink_take_exactly_twice_as_long(m):
    alone = replay(*shared_uplink(1, m, bandwidth=2.0**30)).iteration_time
    assert alone == 2 * m * 2.0**-10
    assert replay(*shared_uplink(2, m, bandwidth=2.0**30)).iteration_time == 2 * alone


@settings(max_examples=25)
@given(
    replicas=st.integers(1, 4),
    m=st.integers(1, 6),
    compute=st.floats(0.0, 1e-2),
    bandwidth=st.floats(1e8, 1e10),
    factor=st.floats(1.0, 8.0),
)
def test_more_bandwidth_on_the_one_shared_link_never_hurts(
    replicas, m, compute, bandwidth, factor
):
    slow, fast = (
        replay(*shared_uplink(replicas, m, bandwidth=b, compute=compute))
        for b in (bandwidth, bandwidth * factor)
    )
    # Each of the 4 m durations is rounded.
    assert fast.iteration_time <= slow.iteration_time + 4 * m * TICK


@schedules
def test_messages_without_bytes_or_on_one_device_arrive_at_once(schedule):
    for devices, volume in (([[[0]], [[1]]], 0.0), ([[[0]], [[0]]], 5.0)):
        work = pipeline(devices, 3, schedule=schedule, boundary_bytes=[volume])
        result = replay(switch(2, bandwidth=1.0), work)
        assert result.iteration_time == (3 + 2 - 1) * 2.0
        assert result.transfers.end.tolist() == result.transfers.posted.tolist()
        assert result.links.num_bytes.sum() == 0


def test_an_empty_message_still_pays_the_latency():
    work = pipeline([[[0]], [[1]]], 1)
    assert replay(switch(2, latency=0.5), work).iteration_time == 4.0 + 2 * 2 * 0.5


def test_no_work_at_all_ends_at_once():
    nothing = pipeline(
        [[[0]], [[1]]], 2, forward_time=[0.0, 0.0], backward_time=[0.0, 0.0]
    )
    result = replay(switch(2), nothing)
    assert result.iteration_time == 0.0
    assert result.links.bin_edges[-1] > 0


def test_sending_does_not_hold_up_the_next_pass():
    # The transfer takes as long as three passes, and the channel sends one at a time.
    work = pipeline([[[0]], [[1]]], 3, schedule="gpipe", boundary_bytes=[3.0])
    result = replay(switch(2, bandwidth=1.0), work)
    first = (result.spans.stage == 0) & (result.spans.kind == 0)
    assert result.spans.end[first].tolist() == [1.0, 2.0, 3.0]
    sent = result.transfers.kind == TRANSFER_KINDS.index("activation")
    assert result.transfers.posted[sent].tolist() == [1.0, 2.0, 3.0]
    assert result.transfers.start[sent].tolist() == [1.0, 4.0, 7.0]
    assert result.transfers.end[sent].tolist() == [4.0, 7.0, 10.0]


def test_an_unknown_schedule_is_refused():
    with pytest.raises(InputError, match="no such schedule"):
        replay(switch(1), pipeline([[[0]]], 1, schedule="zigzag"))


def test_a_run_of_days_has_a_coarser_clock_and_is_still_exact():
    work = pipeline([[[0]]], 4, forward_time=[1e5 / 3], backward_time=[2e5])
    spans = replay(switch(1), work).spans
    durations = (spans.end - spans.start)[spans.kind == 0]
    assert set(durations.tolist()) == {quantise(1e5 / 3, tick_for(1e6))}


@pytest.fixture(scope="module")
def contended():
    net, work = contended_step()
    return net, work, replay_all(net, work)


def test_every_pass_happens_once_in_each_replica(contended):
    _, work, result = contended
    p, d, _ = work.devices.shape
    found = sorted(
        zip(
            result.spans.stage,
            result.spans.replica,
            result.spans.kind,
            result.spans.microbatch,
            strict=True,
        )
    )
    expected = sorted(
        (s, r, kind, k)
        for s in range(p)
        for r in range(d)
        for kind, k in [
            *((kind, k) for kind in (0, 1) for k in range(work.num_microbatches)),
            (SPAN_KINDS.index("optimizer"), -1),
        ]
    )
    assert found == expected


def test_records_are_in_order_of_start_and_read_only(contended):
    _, _, result = contended
    for record in (result.spans, result.transfers):
        assert np.all(np.diff(record.start) >= 0)
        assert np.all(record.end >= record.start)
        assert not any(column.flags.writeable for column in record)
    assert np.all(result.transfers.posted <= result.transfers.start)


def when(record, column, **keys):
    chosen = np.ones(record.start.size, dtype=bool)
    for name, value in keys.items():
        chosen &= getattr(record, name) == value
    return getattr(record, column)[chosen]


def test_collectives_and_optimizer_wait_for_whom_they_should(contended):
    _, work, result = contended
    spans, transfers = result.spans, result.transfers
    kind = {name: i for i, name in enumerate(TRANSFER_KINDS)}
    optimizer = SPAN_KINDS.index("optimizer")
    p, d, _ = work.devices.shape
    (tied_start,) = when(transfers, "start", kind=kind["tied"])
    (tied_end,) = when(transfers, "end", kind=kind["tied"])
    reduced = []
    for stage in range(p):
        last = when(spans, "end", stage=stage, kind=1).max()
        starts = when(transfers, "start", stage=stage, kind=kind["reduce"])
        ends = when(transfers, "end", stage=stage, kind=kind["reduce"])
        assert starts.tolist() == [last, ends[0]]
        reduced.append(ends[1])
        step = tied_end if stage in {0, p - 1} else ends[1]
        steps = when(spans, "start", stage=stage, kind=optimizer)
        assert steps.tolist() == [step] * d
        (gathered,) = when(transfers, "start", stage=stage, kind=kind["gather"])
        assert gathered == when(spans, "end", stage=stage, kind=optimizer).max()
    assert tied_start == max(reduced[0], reduced[-1])
    ends = when(transfers, "end", kind=kind["gather"])
    assert result.iteration_time == ends.max()


def test_tied_weights_within_one_stage_need_its_replicas_only():
    tied = (RingPhase(np.array([[0, 1]]), 1.0, 1),)
    result = replay(
        switch(2, bandwidth=1.0), pipeline([[[0], [1]]], 1, tied_phases=tied)
    )
    assert result.iteration_time == 2.0 + 1.0


def test_messages_of_a_channel_do_not_overtake_each_other(contended):
    _, work, result = contended
    transfers = result.transfers
    for kind in (0, 1):
        for stage in range(work.devices.shape[0]):
            ends = when(transfers, "end", kind=kind, stage=stage, replica=1)
            assert np.all(np.diff(ends) > 0)


def snapshot(result):
    arrays = [*result.spans, *result.transfers]
    arrays += [result.links.num_bytes, result.links.bin_edges, result.links.rates]
    numbers = (result.iteration_time, result.pipeline_time, result.num_events)
    return [a.tobytes() for a in arrays], numbers, result.memory, result.notes


def test_the_same_step_gives_the_same_bytes(contended):
    net, work, result = contended
    assert snapshot(replay_all(net, work)) == snapshot(result)
    assert snapshot(replay(net, work)) == snapshot(replay(net, work))


@failures.over("seed", range(4))
@failures.over("replicas", [3, 4])
@failures.over("chunks", [1, 2])
def test_the_order_in_which_processes_are_created_changes_nothing(
    seed, replicas, chunks
):
    net, work = contended_step(
        num_replicas=replicas, num_microbatches=16, num_chunks=chunks
    )

    def run(shuffled):
        system = build_model(net, work).system
        order = list(range(system.program.size))
        if shuffled:
            random.Random(seed).shuffle(order)
        done = simulate(
            replace(system, program=system.program[order], ports=system.ports[order])
        )
        back = np.argsort(order)
        logs = [
            (done.span_starts[a].tobytes(), done.span_ends[a].tobytes()) for a in back
        ]
        sent = [
            tuple(times.tobytes() for times in channel)
            for channel in zip(done.posts, done.departures, done.arrivals, strict=True)
        ]
        return done.end, logs, sent, done.bins.tobytes()

    assert run(shuffled=True) == run(shuffled=False)


def test_contention_is_felt(contended):
    # Uncontended transfers of this step would all be shorter.
    net, work, result = contended
    fast = two_tiers(8, 4, bandwidth=2e9, uplink=8e9, latency=2e-6)
    assert replay(fast, work).iteration_time < 0.95 * result.iteration_time
    assert net.num_devices == fast.num_devices


def test_links_left_out_do_not_change_the_replay(monkeypatch):
    net, work = contended_step(num_microbatches=3)
    net = two_tiers(8, 4, bandwidth=2e9, uplink=8e9, latency=2e-6)
    pruned = replay(net, work)
    assert any("never limit" in sentence for sentence in pruned.notes)
    monkeypatch.setattr(
        "nestsim.simulator.folding.binding_links",
        lambda order, *_: np.ones(order.size, dtype=bool),
    )
    whole = replay(net, work)
    assert not any("never limit" in sentence for sentence in whole.notes)
    np.testing.assert_allclose(pruned.spans.end, whole.spans.end, rtol=1e-9)
    np.testing.assert_allclose(
        pruned.links.num_bytes, whole.links.num_bytes, rtol=1e-12
    )


def test_what_is_folded_is_said(contended):
    _, work, result = contended
    assert result.notes[: len(work.notes)] == work.notes
    assert any("2 tensor-parallel lanes" in sentence for sentence in result.notes)


def test_no_account_of_memory_is_kept_when_none_is_wanted(contended):
    net, work, result = contended
    without = replay(net, work, memory=False)
    assert without.memory == ()
    assert without.iteration_time == result.iteration_time
