"""Steps over optical switches: closed forms, and what always holds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.simulator.changing import FlowChange
from nestsim.simulator.circuits import CircuitEngine, replay_circuits
from nestsim.simulator.replay import replay
from nestsim.simulator.system import TICK, quantise
from nestsim.simulator.work import Bucket, RingPhase
from tests import failures
from tests.nestsim.simulator.cases import pipeline
from tests.nestsim.simulator.systems import Builder, wire
from tests.nestsim.simulator.test_changing import WEIGHT, fluid_times
from topologies.builders import build_network
from topologies.circuits import OpticalSpec
from topologies.errors import InputError
from topologies.specs import FatTreeSpec, LevelSpec

RATE, LATENCY = 1e9, 2.0**-10
SENT, REDUCED = 2e9, 3e9


def switched(num_devices):
    """All devices below one switch."""
    level = LevelSpec(name="leaf", fan_out=num_devices, bandwidth=RATE, latency=LATENCY)
    return build_network(FatTreeSpec(levels=(level,)))


def optical(ports=2, time=0.0):
    return OpticalSpec(level="leaf", ports=ports, reconfiguration_time=time)


def two_by_two(**changes):
    """Two stages of two replicas, a microbatch each, and a ring of two for each."""
    rings = [RingPhase(np.array([[0, 1]]), REDUCED, 2)]
    rings += [RingPhase(np.array([[2, 3]]), REDUCED, 2)]
    fields = {
        "boundary_bytes": [SENT],
        "reduce_phases": tuple((ring,) for ring in rings),
    }
    return pipeline([[[0], [1]], [[2], [3]]], 1, **fields | changes)


def step_of(spec, work=None, num_devices=4):
    net, work = switched(num_devices), work or two_by_two()
    return replay_circuits(net, work, spec, replay(net, work).iteration_time)


@failures.over("time", [0.0, 0.5, 1.0, 2.5])
def test_a_change_hides_behind_the_passes_that_send_nothing_more(time: float) -> None:
    """Forward 1 s, 2 s of activation, both passes, 2 s of gradient, 1 s, 3 s.

    Circuits come back behind the first forward pass, and change behind the last
    backward pass; what is longer than these 1 s is waited for twice.
    """
    step = step_of(optical(ports=1, time=time))
    shown = max(0.0, time - 1.0)
    assert step.iteration_time == pytest.approx(11.0 + 8 * LATENCY + 2 * shown)
    assert step.changed_at == pytest.approx(7.0 + 4 * LATENCY + shown)
    assert step.fixed_time is None
    assert (step.fixed_ports, step.pairs) == (2, (4, 4))


def test_circuits_that_stay_share_the_bandwidth_among_all_phases() -> None:
    """A port for the other stage, a port for the other replica: half the rate."""
    step = step_of(optical(ports=2))
    assert step.fixed_time == pytest.approx(4.0 + 14.0 + 8 * LATENCY)
    assert step.iteration_time == pytest.approx(11.0 + 8 * LATENCY)


def test_circuits_that_are_the_same_in_both_phases_never_go_dark() -> None:
    """The ring of one stage over two devices is what its pipeline never uses."""
    ring = RingPhase(np.array([[0, 1]]), SENT, 2)
    work = pipeline([[[0]], [[1]]], 1, boundary_bytes=[SENT], tied_phases=(ring,))
    dark = step_of(optical(ports=1, time=100.0), work, num_devices=2)
    assert dark.iteration_time == pytest.approx(dark.plain_time)
    assert dark.fixed_time == pytest.approx(dark.plain_time)


def test_a_step_of_a_single_phase_has_nothing_to_change() -> None:
    step = step_of(optical(ports=1, time=100.0), two_by_two(reduce_phases=((), ())))
    assert step.changed_at is None
    assert step.iteration_time == step.fixed_time == pytest.approx(step.plain_time)


def test_a_reduction_behind_the_last_backward_pass_waits_for_its_circuits() -> None:
    """Of the second stage it could begin halfway through that pass, at 4.5 s."""
    rings = [RingPhase(np.array([[2 * s, 2 * s + 1]]), REDUCED, 2) for s in range(2)]
    buckets = tuple((Bucket(0, 0.5, (ring,)),) for ring in rings)
    work = two_by_two(reduce_phases=((), ()), reduce_buckets=buckets)
    step = step_of(optical(ports=1), work)
    # The first stage's begins half a pass before its end, when circuits have changed.
    assert step.iteration_time == pytest.approx(10.5 + 8 * LATENCY)
    assert step.changed_at == pytest.approx(7.0 + 4 * LATENCY)


@st.composite
def steps(draw):
    """Pipelines over one switch, with rings for gradients and parameters."""
    p, d = draw(st.integers(1, 3)), draw(st.integers(2, 3))
    devices = np.array(draw(st.permutations(range(p * d)))).reshape(p, d, 1)
    size = st.sampled_from([0.0, 0.3e9, 1e9, 2.5e9])
    return p * d, pipeline(
        devices,
        draw(st.integers(1, 4)),
        boundary_bytes=[draw(size) for _ in range(p - 1)],
        reduce_phases=tuple((RingPhase(s.T, draw(size), d - 1),) for s in devices),
        gather_phases=tuple((RingPhase(s.T, draw(size), d - 1),) for s in devices),
        optimizer_time=[0.25] * p,
    )


@settings(max_examples=60)
@given(steps(), st.integers(2, 6), st.sampled_from([0.0, 0.1, 1.0, 3.0]))
def test_changing_at_once_is_never_slower_than_what_stays(step, ports, time):
    """And a change costs what it takes at most, at the beginning and at the end."""
    num_devices, work = step
    at_once = step_of(optical(ports), work, num_devices)
    later = step_of(optical(ports, time), work, num_devices)
    near = 1.0 + 1e-9
    if at_once.fixed_time is not None:
        assert at_once.iteration_time <= at_once.fixed_time * near
        assert at_once.changing_time <= at_once.fixed_time * near
    assert at_once.changing_time <= later.changing_time * near
    assert later.changing_time <= (at_once.changing_time + 2.0 * time) * near


def test_links_with_too_few_ports_are_refused_by_the_phase_that_needs_them() -> None:
    middle = pipeline([[[0]], [[1]], [[2]]], 1, boundary_bytes=[SENT, SENT])
    with pytest.raises(InputError, match="2 for what the passes") as caught:
        step_of(optical(ports=1), middle, num_devices=3)
    assert "cluster.optical.ports" in str(caught.value)
    star = RingPhase(np.array([[0, 1], [0, 2], [0, 3]]), REDUCED, 2)
    work = replace(two_by_two(), tied_phases=(star,))
    with pytest.raises(InputError, match="3 for what the end"):
        step_of(optical(ports=2), work)


@st.composite
def two_phases(draw):
    """Flows of two phases, and what links carry and hold in three patterns."""
    num_flows = draw(st.integers(2, 4))

    def each(values):
        return draw(st.lists(values, min_size=num_flows, max_size=num_flows))

    at_end = np.array(each(st.booleans()))
    at_end[:2] = False, True
    rooms = st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=4, max_size=4)
    held_before = np.array(each(st.booleans()))
    held_after = np.array(each(st.booleans()))
    patterns = [
        (draw(rooms), held_before & at_end),
        (draw(rooms), held_before | held_after),
        (draw(rooms), held_after & ~at_end),
    ]
    starts = each(st.sampled_from([0.1, 0.5, 2.0]))
    sizes = each(st.sampled_from([0.4, 1.0, 2.5]))
    duration = draw(st.sampled_from([0.0, 0.4]))
    return at_end, each(WEIGHT), starts, sizes, patterns, duration


@settings(max_examples=100)
@given(two_phases())
def test_circuits_change_when_a_plain_fluid_has_no_more_of_the_passes(case):
    at_end, rows, starts, sizes, patterns, duration = case
    weights = [[row.get(link, 0) for link in range(4)] for row in rows]
    never = (128.0, weights, [1.0] * 4, [False] * len(rows))
    begin, dark, after = ((weights, room, held) for room, held in patterns)
    alone = fluid_times(starts, sizes, [(0.0, *begin), never])
    moment = max(end for end, late in zip(alone, at_end, strict=True) if not late)
    epochs = [(0.0, *begin), (moment, *dark), (moment + duration, *after), never]
    ends = fluid_times(starts, sizes, epochs)

    builder = Builder(
        2 * len(rows),
        [wire(f, num_bytes=size, links=rows[f]) for f, size in enumerate(sizes)],
    )
    for f, start in enumerate(starts):
        builder.step(f, start, target=f)
        builder.step(len(rows) + f, 0.0, source=f)
    system = builder.system(patterns[0][0])
    changes = [
        FlowChange(
            time=float(quantise(time, TICK)),
            incidence=system.incidence,
            capacity=np.array(room),
            latency=system.latency,
            held=held,
        )
        for time, (room, held) in zip((0.0, 0.0, duration), patterns, strict=True)
    ]
    engine = CircuitEngine(
        system,
        changes[:1],
        awaited=~at_end,
        number=int((~at_end).sum()),
        following=changes[1:],
    )
    run = engine.result(engine.run())
    assert engine.changed_at == pytest.approx(moment, rel=1e-9)
    got = [float(arrivals[0]) for arrivals in run.arrivals]
    assert got == pytest.approx(ends, rel=1e-9)
