"""Links that change in the middle of a step: a plain fluid simulator, closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.simulator.changing import ChangingEngine, FlowChange, replay_changing
from nestsim.simulator.replay import replay
from nestsim.simulator.system import TICK, quantise
from tests import failures
from tests.nestsim.simulator.cases import pipeline
from tests.nestsim.simulator.systems import Builder, wire
from topologies import Degradation, degrade
from topologies.builders import build_network
from topologies.errors import InputError
from topologies.link_events import LinkEvent, link_moments
from topologies.specs import TorusSpec


def fluid_times(starts, sizes, epochs):
    """Return when each flow ends: small steps from event to event, nothing clever.

    Epochs are (time, weights of flows on links, capacities, flows that are held).
    """
    left, end = list(sizes), [math.inf] * len(sizes)
    now = 0.0
    moments = [epoch[0] for epoch in epochs[1:]]
    while any(math.isinf(moment) for moment in end):
        _, weights, capacity, held = [e for e in epochs if e[0] <= now][-1]
        moving = [
            f
            for f in range(len(sizes))
            if starts[f] <= now and math.isinf(end[f]) and not held[f]
        ]
        rates = filled(moving, weights, capacity)
        ahead = [moment for moment in (*starts, *moments) if moment > now]
        ahead += [now + left[f] / rates[f] for f in moving]
        then = min(ahead)
        for f in moving:
            left[f] -= rates[f] * (then - now)
            if left[f] <= 1e-12 * sizes[f]:
                end[f] = then
        now = then
    return end


def filled(moving, weights, capacity):
    """Return max-min fair rates by raising all that are not stopped by a full link."""
    rates, open_flows = dict.fromkeys(moving, 0.0), set(moving)
    while open_flows:
        steps = {}
        for link, room in enumerate(capacity):
            lanes = sum(weights[f][link] for f in open_flows)
            if lanes:
                used = sum(weights[f][link] * rates[f] for f in moving)
                steps[link] = (room - used) / lanes
        step = min(steps.values())
        for f in open_flows:
            rates[f] += step
        full = [link for link, its in steps.items() if its <= step * (1 + 1e-9)]
        open_flows = {f for f in open_flows if not any(weights[f][k] for k in full)}
    return rates


def incidence(weights):
    return Builder(1, [wire(0, links=row) for row in weights]).system([1.0] * 4)


WEIGHT = st.dictionaries(st.integers(0, 3), st.integers(1, 2), min_size=1, max_size=3)


@st.composite
def changing_flows(draw):
    num_flows = draw(st.integers(1, 4))
    rows = st.lists(WEIGHT, min_size=num_flows, max_size=num_flows)
    rooms = st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=4, max_size=4)
    held = st.lists(st.booleans(), min_size=num_flows, max_size=num_flows)
    times = sorted(draw(st.sets(st.sampled_from([0.3, 1.0, 1.7, 4.0]), max_size=3)))
    epochs = [(0.0, draw(rows), draw(rooms), [False] * num_flows)]
    epochs += [(time, draw(rows), draw(rooms), draw(held)) for time in times]
    # In the end all may move.
    epochs += [(9.0, draw(rows), draw(rooms), [False] * num_flows)]
    starts = draw(
        st.lists(
            st.sampled_from([0.1, 0.5, 2.0]), min_size=num_flows, max_size=num_flows
        )
    )
    sizes = draw(
        st.lists(
            st.sampled_from([0.4, 1.0, 2.5]), min_size=num_flows, max_size=num_flows
        )
    )
    return starts, sizes, epochs


@settings(max_examples=200)
@given(changing_flows())
def test_flows_end_when_a_plain_fluid_ends_them(case):
    starts, sizes, epochs = case
    builder = Builder(
        2 * len(sizes),
        [
            wire(f, num_bytes=size, links=epochs[0][1][f])
            for f, size in enumerate(sizes)
        ],
    )
    for f, start in enumerate(starts):
        builder.step(f, start, target=f)
        builder.step(len(sizes) + f, 0.0, source=f)
    changes = [
        FlowChange(
            time=float(quantise(time, TICK)),
            incidence=incidence(rows).incidence,
            capacity=np.array(capacity),
            latency=np.zeros(len(sizes)),
            held=np.array(held),
        )
        for time, rows, capacity, held in epochs[1:]
    ]
    engine = ChangingEngine(builder.system(epochs[0][2]), changes)
    run = engine.result(engine.run())
    weights = [
        (time, [[row.get(k, 0) for k in range(4)] for row in rows], capacity, held)
        for time, rows, capacity, held in epochs
    ]
    ends = fluid_times(starts, sizes, weights)
    got = [float(arrivals[0]) for arrivals in run.arrivals]
    assert got == pytest.approx(ends, rel=1e-9)


RATE, SIZE, LATENCY = 1e9, 2e9, 2.0**-10


def ring():
    """Four devices in a ring, each way by itself."""
    return build_network(
        TorusSpec(dimensions=(4,), wrap=(True,), bandwidth=RATE, latency=LATENCY)
    )


def two_stages(**changes):
    """A forward pass, 2 s of an activation, two passes, 2 s of a gradient, a pass."""
    return pipeline([[[0]], [[1]]], 1, boundary_bytes=[SIZE], **changes)


def took(*events):
    net, work = ring(), two_stages()
    plain = replay(net, work).iteration_time
    assert plain == pytest.approx(8.0 + 2 * LATENCY)
    return replay_changing(net, work, events, plain)


def event(time, links="device 0 -> device 1", **settings):
    return LinkEvent(time=time, links=links, **settings)


def test_what_is_left_of_a_message_goes_round_a_link_that_fails() -> None:
    """It waits until routes know, and has two hops more."""
    step = took(event(1.5, is_down=True, reroute_time=0.25))
    assert step.iteration_time == pytest.approx(8.25 + 4 * LATENCY)
    stopped, rerouted = step.hits
    assert (stopped.time, stopped.num_flows) == (1.5, 1)
    assert (rerouted.time, rerouted.num_flows) == (1.75, 1)
    assert stopped.num_bytes == rerouted.num_bytes == pytest.approx(1.5e9)


def test_a_message_that_is_posted_meanwhile_waits_as_well() -> None:
    step = took(event(0.9, is_down=True, reroute_time=0.5))
    assert step.iteration_time == pytest.approx(8.4 + 4 * LATENCY)


def test_a_slow_link_is_slow_from_then_on_and_until_it_is_not() -> None:
    """1 s is left at 1.5 s: half as fast until 2 s a quarter of a second is lost."""
    step = took(event(1.5, factor=2.0), event(2.0))
    assert step.iteration_time == pytest.approx(8.25 + 2 * LATENCY)
    step = took(event(1.5, factor=4.0))
    assert step.iteration_time == pytest.approx(8.0 + 3 * 1.5 + 2 * LATENCY)


def test_a_link_that_is_back_before_routes_know_was_a_pause() -> None:
    down = event(1.5, is_down=True, reroute_time=10.0)
    step = took(down, event(2.25, reroute_time=10.0))
    assert step.iteration_time == pytest.approx(8.75 + 2 * LATENCY)


def test_both_ways_and_two_messages_over_one_link() -> None:
    """The gradient goes the other way round for the rest of the step."""
    step = took(event(1.5, "device 0 <-> device 1", is_down=True, reroute_time=0.0))
    assert step.iteration_time == pytest.approx(8.0 + 6 * LATENCY)


@failures.over("time", [8.5, 100.0])
def test_what_happens_after_the_step_changes_no_bit(time: float) -> None:
    net, work = ring(), two_stages()
    plain = replay(net, work).iteration_time
    down = event(time, is_down=True)
    step = replay_changing(net, work, [down], plain)
    assert (step.iteration_time, step.hits) == (plain, ())


def test_a_link_that_is_down_from_the_beginning_is_one_that_is_gone() -> None:
    links = "device 0 <-> device 1"
    gone = degrade(ring(), Degradation(removed_links=(links,)))
    step = took(event(0.0, links, is_down=True, reroute_time=0.0))
    assert step.iteration_time == replay(gone, two_stages()).iteration_time


def test_many_replicas_are_simulated_one_by_one_and_folding_would_be_wrong() -> None:
    """Of four alike pipelines the one that is hit makes the step later."""
    net = build_network(
        TorusSpec(dimensions=(4, 4), wrap=(True, True), bandwidth=RATE, latency=LATENCY)
    )
    stages = np.arange(16).reshape(4, 4, 1)
    work = pipeline(stages, 6, boundary_bytes=[SIZE] * 3)
    folded = replay(net, work)
    assert folded.num_classes < folded.num_actors
    plain = folded.iteration_time
    links = f"{net.vertex_names[0]} -> {net.vertex_names[4]}"
    nothing = replay_changing(net, work, [event(1.5, links)], plain)
    assert nothing.iteration_time == pytest.approx(plain, rel=1e-12)
    down = event(1.5, links, is_down=True, reroute_time=3.0)
    assert replay_changing(net, work, [down], plain).iteration_time > plain


def test_moments_know_what_is_dead_and_what_routes_avoid() -> None:
    down = event(1.0, is_down=True, reroute_time=1.0)
    moments = link_moments(ring(), [down, event(5.0, factor=2.0, reroute_time=0.5)])
    assert [moment.time for moment in moments] == [0.0, 1.0, 2.0, 5.0, 5.5]
    assert [moment.is_dead.sum() for moment in moments] == [0, 1, 1, 0, 0]
    hops = [len(moment.network.route(0, 1)) for moment in moments]
    assert hops == [1, 1, 3, 3, 1]
    assert [moment.capacity.min() for moment in moments] == [RATE] * 3 + [RATE / 2] * 2


@failures.over(
    ("events", "words"),
    [
        ([event(1.0, "device 0 -> device 2", is_down=True)], "no such link"),
        (
            [
                event(1.0, "device 0 <-> *", is_down=True),
            ],
            "cuts devices off",
        ),
    ],
)
def test_events_that_cannot_be_are_refused(events: list[LinkEvent], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        took(*events)
    assert "cluster.link_events" in str(caught.value)


def test_links_that_are_down_have_no_bandwidth_to_divide() -> None:
    with pytest.raises(InputError, match="divides the bandwidth"):
        event(1.0, is_down=True, factor=2.0)
