"""Known answers by hand, from both engines."""

import pytest

from nestsim.simulator.compiled import simulate_compiled
from nestsim.simulator.simpy_engine import simulate
from nestsim.simulator.system import CLOSES, NONE, OPENS
from tests import failures
from tests.nestsim.simulator.systems import Builder, meeting, wire

engines = failures.over("engine", [simulate, simulate_compiled])


def on_link(sender, num_bytes, *, weight=1.0, latency=0.0, link=0):
    return wire(sender, num_bytes=num_bytes, latency=latency, links={link: weight})


@engines
def test_messages_leave_one_by_one_and_latency_does_not_hold_them_up(engine):
    builder = Builder(2, [on_link(0, 1.0, latency=5.0)])
    builder.step(0, 0.0, target=0)
    builder.step(0, 0.25, target=0)
    builder.step(1, 3.0, source=0, lag=1)
    builder.step(1, 1.0, source=0)
    run = engine(builder.system([1.0]))
    assert run.posts[0].tolist() == [0.0, 0.25]
    assert run.departures[0].tolist() == [0.0, 1.0]
    assert run.arrivals[0].tolist() == [6.0, 7.0]
    # The second message is there before the receiver asks for it.
    assert run.span_starts[1].tolist() == [6.0, 9.0]
    assert run.span_ends[1].tolist() == [9.0, 10.0]
    assert run.end == 10.0


@engines
def test_sending_does_not_stop_the_sender(engine):
    builder = Builder(1, [on_link(0, 100.0)])
    for _ in range(3):
        builder.step(0, 1.0, target=0)
    run = engine(builder.system([1.0]))
    assert run.span_ends[0].tolist() == [1.0, 2.0, 3.0]
    assert run.end == 3.0
    # What is on its way when the last actor is done has not arrived.
    assert run.departures[0].tolist() == [1.0]
    assert run.arrivals[0].tolist() == []


@engines
def test_two_flows_share_a_link_while_both_are_there(engine):
    builder = Builder(3, [on_link(0, 1.0), on_link(1, 1.0)])
    builder.step(0, 0.0, target=0)
    builder.step(1, 0.5, target=1)
    builder.step(2, 0.0, source=0)
    builder.step(2, 0.0, source=1)
    run = engine(builder.system([1.0]))
    # Alone until 0.5, half as fast until the first is through at 1.5, alone again.
    assert run.arrivals[0].tolist() == [1.5]
    assert run.arrivals[1].tolist() == [2.0]


@engines
def test_a_flow_of_two_pairs_takes_twice_the_share_of_a_link(engine):
    builder = Builder(2, [on_link(0, 1.0, weight=2.0), on_link(1, 1.0)])
    for actor in (0, 1):
        builder.step(actor, 0.0, target=actor)
        builder.step(actor, 0.0, source=actor)
    run = engine(builder.system([1.0]))
    # Three pairs of 1/3 each: all have their byte after 3 s.
    assert run.arrivals[0].tolist() == run.arrivals[1].tolist()
    assert run.end == pytest.approx(3.0, abs=1e-11)


@engines
def test_an_incast_takes_as_long_as_all_its_bytes(engine):
    num_senders = 7
    builder = Builder(num_senders, [on_link(a, 1.0) for a in range(num_senders)])
    for actor in range(num_senders):
        builder.step(actor, 0.125, target=actor)
        builder.step(actor, 0.0, source=actor)
    run = engine(builder.system([1.0]))
    assert run.end == pytest.approx(0.125 + num_senders, abs=1e-11)
    assert run.bins.sum() == pytest.approx(num_senders)


@engines
def test_a_collective_starts_with_its_last_member_and_ends_for_all_at_once(engine):
    ring = meeting(range(3), num_bytes=2.0, latency=0.5, links={0: 1.0})
    builder = Builder(3, [ring])
    for duration in (1.0, 2.0):
        for actor in range(3):
            builder.step(actor, duration * (1 + actor), target=0, span=OPENS)
        for actor in range(3):
            builder.step(actor, 0.0, source=0, span=CLOSES)
    run = engine(builder.system([1.0]))
    assert run.posts[0].tolist() == [3.0, 11.5]
    assert run.departures[0].tolist() == run.posts[0].tolist()
    assert run.arrivals[0].tolist() == [5.5, 14.0]
    for actor in range(3):
        assert run.span_starts[actor].tolist() == [0.0, 5.5]
        assert run.span_ends[actor].tolist() == [5.5, 14.0]


@engines
def test_messages_without_bytes_or_links_do_not_queue(engine):
    nothing = wire(0, num_bytes=0.0, latency=2.0, links={0: 1.0})
    at_home = wire(0, num_bytes=9.0, latency=2.0)
    builder = Builder(3, [nothing, at_home])
    for _ in range(3):
        builder.step(0, 0.0, target=0)
        builder.step(0, 0.0, target=1)
    for channel in (0, 1):
        builder.step(1 + channel, 0.0, source=channel)
    run = engine(builder.system([1.0]))
    for channel in (0, 1):
        assert run.departures[channel].tolist() == [0.0, 0.0, 0.0]
        assert run.arrivals[channel].tolist() == [2.0, 2.0, 2.0]
    assert run.bins.sum() == 0.0


@engines
def test_flows_shorter_than_half_a_tick_end_at_once(engine):
    builder = Builder(1, [on_link(0, 2.0**-42)])
    for _ in range(3):
        builder.step(0, 0.0, target=0)
        builder.step(0, 0.0, source=0)
    run = engine(builder.system([1.0]))
    assert run.arrivals[0].tolist() == [0.0, 0.0, 0.0]
    assert run.end == 0.0


@engines
def test_the_last_instant_is_finished(engine):
    # The last actor is done at the moment at which another one's message arrives.
    builder = Builder(2, [on_link(0, 1.0), wire(1)])
    builder.step(0, 0.0, target=0)
    builder.step(1, 1.0, target=1)
    run = engine(builder.system([1.0]))
    assert run.end == 1.0
    assert [log.tolist() for log in run.arrivals] == [[1.0], [1.0]]


@engines
def test_no_timer_that_became_meaningless_moves_the_end(engine):
    # Alone the long flow would end at 10; the short one puts that off; then nobody
    # waits for either.
    builder = Builder(2, [on_link(0, 10.0), on_link(1, 1.0)])
    builder.step(0, 0.0, target=0)
    builder.step(1, 1.0, target=1)
    builder.step(1, 1.0, source=1)
    run = engine(builder.system([1.0]))
    assert run.arrivals[1].tolist() == [3.0]
    assert run.end == 4.0


@engines
def test_events_are_steps_messages_and_solutions(engine):
    builder = Builder(2, [on_link(0, 1.0), wire(1)])
    builder.step(0, 1.0, target=0)
    builder.step(1, 0.5, source=0, target=1)
    builder.step(0, 0.5, source=1)
    run = engine(builder.system([1.0]))
    # 3 steps; 2 messages that left and arrived; the flow's start and end.
    assert run.num_events == 3 + 2 * 2 + 2


@engines
def test_spans_may_hold_many_steps(engine):
    builder = Builder(1, [wire(0, latency=1.0)])
    builder.step(0, 1.0, target=0, span=OPENS)
    builder.step(0, 2.0, span=0)
    builder.step(0, 0.0, source=0, span=CLOSES)
    builder.step(0, 1.0, source=NONE)
    run = engine(builder.system([1.0]))
    assert run.span_starts[0].tolist() == [0.0, 3.0]
    assert run.span_ends[0].tolist() == [3.0, 4.0]
