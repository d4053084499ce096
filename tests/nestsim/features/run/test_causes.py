"""Iterations by cause: closed forms, and sums on random replays."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.features.run.statistics import CAUSES, iteration_causes
from nestsim.simulator.replay import replay
from nestsim.simulator.work import PipelineWork, RingPhase
from tests.nestsim.simulator.cases import (
    contended_step,
    full_mesh,
    pipeline,
    replay_all,
)
from tests.nestsim.simulator.folding_cases import steps
from topologies.network import Network


def causes_of(net: Network, work: PipelineWork) -> dict[str, float]:
    done = replay(net, work)
    found = iteration_causes(done, work.schedule, work.num_microbatches)
    assert tuple(found) == CAUSES
    total = sum(found.values())
    assert total == pytest.approx(done.iteration_time, rel=1e-12)
    return dict(found)


@settings(max_examples=25)
@given(step=steps())
def test_causes_add_up_to_the_iteration(step: tuple[Network, PipelineWork]) -> None:
    found = causes_of(*step)
    assert found["bubble"] >= -1e-9
    assert found["optimizer"] >= 0.0
    assert found["synchronisation"] >= -1e-9


@settings(max_examples=20)
@given(step=steps())
def test_folding_changes_no_cause(step: tuple[Network, PipelineWork]) -> None:
    net, work = step
    ours, theirs = (
        iteration_causes(done, work.schedule, work.num_microbatches)
        for done in (replay(net, work), replay_all(net, work))
    )
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def line(p: int, m: int, **changes: object) -> PipelineWork:
    return pipeline([[[s]] for s in range(p)], m, **changes)


@given(p=st.integers(1, 5), m=st.integers(1, 9))
@settings(max_examples=25)
def test_equal_stages_on_a_free_network_have_the_bubble_of_the_closed_form(
    p: int, m: int
) -> None:
    found = causes_of(full_mesh(p), line(p, m))
    assert found == pytest.approx(
        {**dict.fromkeys(CAUSES, 0.0), "passes": 2.0 * m, "bubble": 2.0 * (p - 1)},
        abs=1e-9,
    )


def test_a_stage_that_works_longer_is_imbalance_and_no_bubble() -> None:
    # The last of four stages takes twice as long: it sets the pace m - 1 times.
    times = [1.0, 1.0, 1.0, 2.0]
    work = line(4, 10, forward_time=times, backward_time=times)
    found = causes_of(full_mesh(4), work)
    assert found["passes"] == pytest.approx(10 * 2.5)
    assert found["bubble"] == pytest.approx(3 * 2.5)
    assert found["stage imbalance"] == pytest.approx(9 * (4.0 - 2.5))
    assert found["transfers"] == pytest.approx(0.0, abs=1e-9)


def test_what_messages_add_is_transfers() -> None:
    # One microbatch goes there and back, 0.5 s over each of two boundaries.
    work = line(3, 1, boundary_bytes=[5e8, 5e8])
    found = causes_of(full_mesh(3, 1e9), work)
    assert found["transfers"] == pytest.approx(4 * 0.5)


def test_the_step_end_is_synchronisation_but_for_the_longest_optimizer_step() -> None:
    rings = tuple(
        (RingPhase(np.array([[2 * s, 2 * s + 1]]), 1e9, 1),) for s in range(2)
    )
    work = pipeline(
        [[[0], [1]], [[2], [3]]],
        2,
        reduce_phases=rings,
        optimizer_time=[0.25, 0.75],
    )
    found = causes_of(full_mesh(4, 1e9), work)
    # The first stage ends last; the second one takes its longer step meanwhile.
    assert found["optimizer"] == pytest.approx(0.75)
    assert found["optimizer"] + found["synchronisation"] == pytest.approx(1.25)


def test_the_replica_with_the_slowest_stage_is_the_one_that_counts() -> None:
    work = pipeline([[[0], [1]], [[2], [3]]], 5, slowdown=[[1.0, 1.0], [1.0, 2.0]])
    found = causes_of(full_mesh(4), work)
    assert found["passes"] == pytest.approx(5 * (2.0 + 4.0) / 2)
    assert found["stage imbalance"] == pytest.approx(4 * (4.0 - 3.0))
    assert found["transfers"] == pytest.approx(0.0, abs=1e-9)


def test_split_backward_passes_count_as_work() -> None:
    work = dataclasses.replace(line(3, 6, weight_time=[1.0] * 3), schedule="zb-h1")
    found = causes_of(full_mesh(3), work)
    assert found["passes"] == pytest.approx(6 * 3.0)


def test_several_chunks_are_told_apart() -> None:
    net, work = contended_step(num_chunks=2, num_microbatches=8)
    found = causes_of(net, work)
    per_microbatch = (work.forward_time.sum() + work.backward_time.sum()) / 4
    assert found["passes"] == pytest.approx(8 * per_microbatch, rel=1e-6)
