"""The replay of stages with several chunks.

Channels of several chunks join the same two stages and share the link between them, so
that a network of one link for each pair of devices is contended. What is compared with
the recurrence exactly: messages that only have a latency, over the real network; and
messages with bytes where every channel has a link of its own, in place of the network.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.simulator.build import build_model
from nestsim.simulator.flows import build_flows
from nestsim.simulator.folding import unfolded
from nestsim.simulator.replay import collect_spans, replay
from nestsim.simulator.simpy_engine import simulate
from nestsim.simulator.system import SPAN_KINDS, TICK, TRANSFER_KINDS, Incidence
from planner.step.schedules import grouped_name
from tests import failures
from tests.nestsim.simulator.cases import (
    contended_step,
    full_mesh,
    pipeline,
    replay_all,
    switch,
)
from tests.nestsim.simulator.test_replay import (
    in_ticks,
    lone_pipelines,
    passes,
    recurrence,
    wires_of_pairs,
)
from topologies.errors import InputError

ACTIVATION, GRADIENT = range(2)


def replay_apart(net, work, capacity):
    """Replay with a link of its own for each channel, instead of the network's."""
    model = build_model(net, work)
    flows = np.arange(len(model.flows))
    own = Incidence(np.arange(flows.size + 1), flows, np.ones(flows.size))
    system = dataclasses.replace(model.system, incidence=own, capacity=capacity)
    spans, _ = collect_spans(model, unfolded(system), simulate(system))
    return spans


names = [
    "interleaved-1f1b",
    "interleaved-1f1b",
    "interleaved-1f1b in groups of 5",
]
cases = st.sampled_from(names).flatmap(lambda name: lone_pipelines(name, least=0.0))


@settings(max_examples=30)
@given(
    case=st.sampled_from(names).flatmap(
        lambda name: lone_pipelines(name, least=0.0, most_bytes=0.0)
    )
)
def test_messages_without_bytes_follow_exactly_the_recurrence(case):
    net, work, speed, delay = case
    expected = recurrence(work, delay, wires_of_pairs(work, speed), in_ticks)
    result = replay(net, work)
    assert passes(result.spans) == expected
    assert result.iteration_time == max(end for _, end in expected.values())
    assert result.pipeline_time == result.iteration_time


@settings(max_examples=30)
@given(case=cases, data=st.data())
def test_channels_with_links_of_their_own_follow_exactly_the_recurrence(case, data):
    net, work, _, delay = case
    flows = build_flows(net, work)
    speeds = st.lists(st.floats(1e8, 1e10), min_size=len(flows), max_size=len(flows))
    capacity = np.array(data.draw(speeds))
    wires = tuple(
        work.boundary_bytes / capacity[of[:, 0]]
        for of in (flows.activation, flows.gradient)
    )
    expected = recurrence(work, delay, wires, in_ticks)
    assert passes(replay_apart(net, work, capacity)) == expected


@settings(max_examples=30)
@given(case=cases)
def test_sharing_links_between_chunks_never_makes_a_pass_earlier(case):
    net, work, speed, delay = case
    alone = recurrence(work, delay, wires_of_pairs(work, speed), in_ticks)
    shared = passes(replay(net, work).spans)
    assert shared.keys() == alone.keys()
    # Each change of rate rounds an end to the nearest tick.
    slack = TICK * len(shared)
    for key, (start, end) in alone.items():
        assert shared[key][0] >= start - slack
        assert shared[key][1] >= end - slack


def test_equal_chunks_take_the_closed_form_of_the_divided_bubble():
    # A stage's time is 3 s; chunks of 1.5 s divide the bubble by two.
    p, m, v = 4, 8, 2
    work = pipeline(
        np.arange(p).reshape(p, 1, 1),
        m,
        num_chunks=v,
        forward_time=[0.5] * (v * p),
        backward_time=[1.0] * (v * p),
    )
    assert replay(switch(p), work).iteration_time == m * 3.0 + (p - 1) * 3.0 / v


@failures.over(("p", "v"), [(2, 2), (3, 2), (3, 1)])
def test_replicas_that_share_no_link_run_as_if_alone(p, v):
    # Each pair of devices has its own link, and each link its own speed.
    net = full_mesh(3 * p, bandwidth=lambda a, b: 1e9 / (1 + (a * a + b) % 7))

    def step(devices):
        return pipeline(
            devices,
            2 * p,
            num_chunks=v,
            forward_time=[1e-3 * (1 + s % 3) for s in range(v * p)],
            backward_time=[2e-3 * (1 + s % 2) for s in range(v * p)],
            boundary_bytes=[1e6 * (1 + s % 4) for s in range(v * p - 1)],
        )

    devices = np.arange(3 * p).reshape(3, p, 1).transpose(1, 0, 2)
    together = replay_all(net, step(devices)).spans
    ends = []
    for replica in range(3):
        alone = replay(net, step(devices[:, [replica]])).spans
        own = together.replica == replica
        assert passes(column[own] for column in together) == passes(alone)
        ends.append(alone.end.max())
    assert len(set(ends)) == 3


def when(transfers, **keys):
    """Return (start, end) of the only transfer with these keys."""
    chosen = np.ones(transfers.start.size, dtype=bool)
    for name, value in keys.items():
        chosen &= getattr(transfers, name) == value
    ((start,), (end,)) = transfers.start[chosen], transfers.end[chosen]
    return start, end


def test_chunks_share_the_link_between_their_stages():
    # Passes take no time; links carry 1 byte/s. Boundaries of 3, 1 and 1 byte.
    work = pipeline(
        [[[0]], [[1]]],
        2,
        num_chunks=2,
        forward_time=[0.0] * 4,
        backward_time=[0.0] * 4,
        boundary_bytes=[3.0, 1.0, 1.0],
    )
    sent = replay(full_mesh(2, bandwidth=1.0), work).transfers
    of = {"kind": ACTIVATION, "stage": 0}
    assert when(sent, **of, microbatch=0, chunk=0) == (0.0, 3.0)
    # Round the corner, from the last stage to the first, on the link back.
    back = {"kind": ACTIVATION, "stage": 1, "chunk": 0}
    assert when(sent, **back, microbatch=0) == (3.0, 4.0)
    # From 4 s on the second chunk's message has half of the link, until 6 s.
    assert when(sent, **of, microbatch=0, chunk=1) == (4.0, 6.0)
    assert when(sent, **of, microbatch=1, chunk=0) == (3.0, 7.0)


def test_boundaries_go_round_the_stages():
    net, work = full_mesh(3), pipeline([[[0]], [[1]], [[2]]], 3, num_chunks=2)
    flows = build_flows(net, work)
    links = np.split(flows.incidence.links, flows.incidence.indptr[1:-1])
    sender = list(zip(flows.stage.tolist(), flows.chunk.tolist(), strict=True))
    # Link 3 a + b leads from device a to device b.
    ahead = [(*sender[f], *links[f].tolist()) for f in flows.activation[:, 0]]
    assert ahead == [(0, 0, 1), (1, 0, 5), (2, 0, 6), (0, 1, 1), (1, 1, 5)]
    back = [(*sender[f], *links[f].tolist()) for f in flows.gradient[:, 0]]
    assert back == [(1, 0, 3), (2, 0, 7), (0, 1, 2), (1, 1, 3), (2, 1, 7)]


@pytest.fixture(scope="module")
def contended():
    net, work = contended_step(num_chunks=2, num_microbatches=8)
    return work, replay_all(net, work)


def test_every_pass_and_message_happens_once_in_each_replica(contended):
    work, result = contended
    p, d, _ = work.devices.shape
    m, v = work.num_microbatches, work.num_chunks
    spans = result.spans
    columns = (spans.stage, spans.replica, spans.kind, spans.microbatch, spans.chunk)
    expected = [
        (s, r, kind, k, c)
        for s in range(p)
        for r in range(d)
        for kind in (0, 1)
        for k in range(m)
        for c in range(v)
    ]
    optimizer = SPAN_KINDS.index("optimizer")
    expected += [(s, r, optimizer, -1, -1) for s in range(p) for r in range(d)]
    assert sorted(zip(*columns, strict=True)) == sorted(expected)
    transfers = result.transfers
    boundary = transfers.chunk * p + transfers.stage - transfers.kind
    for kind in (ACTIVATION, GRADIENT):
        own = transfers.kind == kind
        found = zip(
            boundary[own],
            transfers.replica[own],
            transfers.microbatch[own],
            strict=True,
        )
        assert sorted(found) == [
            (k, r, n) for k in range(v * p - 1) for r in range(d) for n in range(m)
        ]
    collective = transfers.kind > TRANSFER_KINDS.index("gradient")
    assert set(transfers.chunk[collective].tolist()) == {-1}


def test_a_pass_waits_for_the_message_of_its_own_chunk_and_microbatch(contended):
    work, result = contended
    p = work.devices.shape[0]
    begun = {
        (kind, c * p + s, r, k): start
        for s, r, kind, k, c, start, _ in zip(*result.spans, strict=True)
    }
    transfers = result.transfers
    rows = zip(*transfers[:5], transfers.end, strict=True)
    for kind, stage, replica, microbatch, chunk, end in rows:
        if kind > GRADIENT:
            continue
        receiver = chunk * p + stage + (1 if kind == ACTIVATION else -1)
        assert begun[kind, receiver, replica, microbatch] >= end


def test_messages_of_a_channel_do_not_overtake_each_other(contended):
    work, result = contended
    transfers = result.transfers
    for kind in (ACTIVATION, GRADIENT):
        for stage in range(work.devices.shape[0]):
            for chunk in range(work.num_chunks):
                own = (transfers.kind == kind) & (transfers.stage == stage)
                own &= (transfers.chunk == chunk) & (transfers.replica == 1)
                assert np.all(np.diff(transfers.end[own]) > 0)


def order_of_megatron(p, m, v, group, stage):
    """List (is backward, microbatch, chunk) as Megatron-LM's loops go.

    The table of ``get_schedule_table``, warm-up, steady part and cool-down of
    ``forward_backward_pipelining_with_interleaving``.
    """
    table = [
        (microbatch, chunk)
        for first in range(0, m, group)
        for chunk in range(v)
        for microbatch in range(first, min(first + group, m))
    ]
    warmup = min((p - stage - 1) * 2 + (v - 1) * group, m * v)
    forward = iter([(False, k, c) for k, c in table])
    backward = iter([(True, k, v - 1 - c) for k, c in table])
    order = [next(forward) for _ in range(warmup)]
    for _ in range(m * v - warmup):
        order += [next(forward), next(backward)]
    return order + list(backward)


def spans_by_brute_force(p, m, v, group, times, delay):
    """Return (stage, is backward, microbatch, chunk) -> (start, end), pass by pass."""
    todo = [order_of_megatron(p, m, v, group, stage) for stage in range(p)]
    free, done = [0.0] * p, {}
    while any(todo):
        for stage in range(p):
            if not todo[stage]:
                continue
            back, k, c = todo[stage][0]
            number = c * p + stage
            source = number + 1 if back else number - 1
            ready = 0.0
            if source in (-1, v * p):
                needed = (stage, False, k, c) if back else None
            else:
                needed = (source % p, back, k, source // p)
                ready = delay
            if needed is not None and needed not in done:
                continue
            arrived = done[needed][1] + ready if needed is not None else 0.0
            start = max(free[stage], arrived)
            end = free[stage] = start + times[back][number]
            done[stage, back, k, c] = start, end
            todo[stage].pop(0)
    return done


@failures.over(
    ("p", "m", "v", "group"),
    [(2, 5, 2, 3), (2, 8, 3, 4), (4, 11, 2, 6), (3, 9, 2, 9), (4, 8, 2, 4)],
)
def test_groups_of_a_size_are_replayed_in_the_order_of_megatron(p, m, v, group):
    # Moments are whole numbers of eighths, so that ticks round nothing.
    forward = [(1 + n % 3) / 8 for n in range(v * p)]
    backward = [(2 + n % 2) / 8 for n in range(v * p)]
    work = pipeline(
        np.arange(p).reshape(p, 1, 1),
        m,
        num_chunks=v,
        schedule=grouped_name("interleaved-1f1b", group),
        forward_time=forward,
        backward_time=backward,
    )
    net = full_mesh(p, latency=0.5)
    expected = spans_by_brute_force(p, m, v, group, (forward, backward), 0.5)
    assert passes(replay(net, work).spans) == {
        (stage, int(back), k, c): span for (stage, back, k, c), span in expected.items()
    }


def test_larger_groups_wait_less_for_slow_links():
    def step(group):
        work = pipeline(
            np.arange(4).reshape(4, 1, 1),
            16,
            num_chunks=2,
            schedule=grouped_name("interleaved-1f1b", group),
        )
        return replay(full_mesh(4, latency=1.0), work).iteration_time

    # Groups of 4 wait a delay a stage in each turn: 4 s of 4 passes.
    times = [step(group) for group in (4, 8, 16)]
    assert times[0] > times[1] >= times[2]
    # Nothing is left to wait for but the way there and back.
    assert times[1] == 16 * 2 * 2 + 2 * 3 * (1.0 + 1.0)


def test_sizes_that_the_schedule_does_not_take_are_refused():
    with pytest.raises(InputError, match="microbatches"):
        replay(switch(2), pipeline([[[0]], [[1]]], 5, num_chunks=2))
    with pytest.raises(InputError, match="chunks per stage"):
        replay(switch(2), pipeline([[[0]], [[1]]], 2, num_chunks=2, schedule="1f1b"))
