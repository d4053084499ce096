"""Systems put together of what steps share: array by array those of folding."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.evaluate.verdict import _framed_chain, _model_chain
from nestsim.simulator.build import build_model
from nestsim.simulator.frames import FramedStep, Frames
from nestsim.simulator.replay import (
    fold_model,
    model_step,
    replay,
    replay_step,
    replayed_time,
)
from nestsim.simulator.system import ReplaySettings
from nestsim.simulator.work import RingPhase
from planner.step.schedules import SCHEDULES
from tests import failures
from tests.nestsim.simulator.cases import contended_step, pipeline, step_sizes, switch
from tests.nestsim.simulator.folding_cases import grid, networks, work_on

DEFAULT = ReplaySettings()


def assert_same_system(ours, folded):
    """Compare all that decides when things happen."""
    for first, other in zip(ours.programs, folded.programs, strict=True):
        for mine, its in zip(first.columns, other.columns, strict=True):
            np.testing.assert_array_equal(mine, its)
    for mine, its in zip(ours.incidence, folded.incidence, strict=True):
        np.testing.assert_array_equal(mine, its)
    for name in ("program", "ports", "num_sources", "latency", "num_bytes", "capacity"):
        np.testing.assert_array_equal(
            getattr(ours, name), getattr(folded, name), err_msg=name
        )
    assert ours.tick == folded.tick


def assert_as_folded(frames, net, work):
    """Compare the system of a step with the one that is folded by itself."""
    ours, step = frames.system(work), FramedStep(net, work).fold()
    folding = fold_model(build_model(net, work))
    assert ours is not None
    assert step is not None
    for system in (ours, step.folding.system):
        assert_same_system(system, folding.system)
    for name in ("actors", "channels"):
        classes = getattr(step.folding, name), getattr(folding, name)
        for mine, its in zip(*classes, strict=True):
            np.testing.assert_array_equal(mine, its)


def assert_same_replay(net, work):
    """Compare what is said of a step with what is said of one folded by itself."""
    apart = replay_step(net, work, model_step(build_model(net, work), DEFAULT), DEFAULT)
    ours = replay(net, work)
    for name in ("spans", "transfers", "notes", "engine", "iteration_time", "memory"):
        np.testing.assert_equal(getattr(ours, name), getattr(apart, name))
    for name in ("span_multiplicity", "transfer_multiplicity", "representative"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(apart, name))
    for name in ("bin_edges", "rates", "link_ids", "row"):
        mine, its = getattr(ours.links, name), getattr(apart.links, name)
        np.testing.assert_array_equal(mine, its, err_msg=name)
    np.testing.assert_allclose(ours.links.num_bytes, apart.links.num_bytes, rtol=1e-14)
    assert _framed_chain(net, work, DEFAULT) == _model_chain(net, work, DEFAULT)


@settings(max_examples=40)
@given(st.data())
def test_steps_on_the_same_devices_get_the_systems_that_folding_gives_them(data):
    net = data.draw(networks())
    n = net.num_devices
    t = data.draw(st.sampled_from([t for t in (1, 2, 4) if 2 * t <= n]))
    p = data.draw(st.integers(1, min(6, n // (2 * t))))
    d = max(1, min(12, n // (p * t)) - data.draw(st.sampled_from([0, 0, 1])))
    nesting = data.draw(st.sampled_from(["pipeline inside", "data inside"]))
    devices = grid(range(n), (p, d, t), nesting)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    frames = Frames(net)
    for _ in range(4):
        work = dataclasses.replace(work_on(data.draw, rng, devices), layers=None)
        assert_as_folded(frames, net, work)
    assert_same_replay(net, work)


@failures.over("schedule", SCHEDULES)
@settings(max_examples=8)
@given(data=st.data())
def test_steps_of_every_schedule_share_frames(schedule, data):
    frames = None
    for _ in range(3):
        p, m, v = data.draw(step_sizes(schedule, most_stages=3, most_microbatches=6))
        net, work = contended_step(
            num_replicas=4, num_stages=2 * p, num_microbatches=2 * m, num_chunks=v
        )
        frames = frames or Frames(net)
        if frames.network.num_devices == net.num_devices:
            step = dataclasses.replace(work, schedule=schedule)
            assert_as_folded(frames, net, step)
            assert_same_replay(net, step)


def test_no_more_is_kept_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr("nestsim.simulator.frames._ROOM", 300)
    net = switch(6)
    frames = Frames(net)
    for _ in range(2):
        for ring in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
            phases = ((RingPhase(np.array([ring]), 1e6, 2),),)
            work = pipeline([[[0], [1], [2]]], 2, reduce_phases=phases)
            assert_as_folded(frames, net, work)
            assert len(frames._frames) <= 2


def test_a_step_that_needs_a_coarser_tick_is_folded_by_itself():
    net = switch(2)
    work = pipeline([[[0]], [[1]]], 2, forward_time=[5000.0] * 2, boundary_bytes=[1.0])
    frames = Frames(net)
    assert frames.system(work) is None
    assert replayed_time(net, work, frames=frames) == replayed_time(net, work)
