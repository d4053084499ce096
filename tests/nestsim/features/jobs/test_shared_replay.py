"""Jobs over shared links, against closed forms and a simulation by hand."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.features.jobs.replay import (
    LEAST_STEPS,
    long_run_notes,
    replay_alone,
    replay_together,
    slowdown,
    steady_step,
)
from nestsim.simulator.system import TICK, ReplaySettings
from tests.nestsim.features.jobs.fluid import TRUNK, by_hand, dumbbell, sender
from tests.nestsim.simulator.cases import contended_step, pipeline
from topologies.errors import InputError

FORM = ReplaySettings()


@pytest.mark.parametrize("num_jobs", [1, 2, 3])
def test_jobs_in_phase_each_take_their_share_of_a_link(num_jobs):
    net = dumbbell(num_jobs)
    works = [sender(job, 1e9, 0.5) for job in range(num_jobs)]
    together = replay_together(net, works, FORM, steps=[4] * num_jobs)
    alone = replay_alone(net, works, together, FORM)
    for job in range(num_jobs):
        assert together.step_times(job).tolist() == [0.5 + num_jobs] * 4
        assert steady_step(together, job).time == 0.5 + num_jobs
        assert slowdown(together, alone[job], job) == (0.5 + num_jobs) / 1.5
    shared = together.shared_links().tolist()
    assert shared == ([TRUNK] if num_jobs > 1 else [])
    assert together.num_bytes[:, TRUNK].tolist() == [4e9] * num_jobs
    busy = together.shares(net.links)[:, TRUNK]
    np.testing.assert_allclose(busy, 1.0 / (0.5 + num_jobs), rtol=1e-15)


def test_jobs_that_take_turns_do_not_disturb_each_other():
    works = [sender(job, 1e9, 1.0) for job in range(2)]
    net = dumbbell(2)
    together = replay_together(net, works, FORM, steps=[5, 5], offsets=[0.0, 1.0])
    assert together.starts == (0.0, 1.0)
    assert together.ends[1].tolist() == [3.0, 5.0, 7.0, 9.0, 11.0]
    # Its first step begins before the other job does; its last one ends as it did.
    assert together.window(0).tolist() == [1, 2, 3, 4]
    assert together.window(1).tolist() == [1, 2, 3]
    for job, alone in enumerate(replay_alone(net, works, together, FORM)):
        assert slowdown(together, alone, job) == 1.0


job_numbers = st.tuples(
    st.integers(1, 9).map(lambda n: Fraction(n, 4)),
    st.integers(1, 9).map(lambda n: n * 10**8),
    st.sampled_from([Fraction(10**9, 4), Fraction(10**9, 2), Fraction(2 * 10**9)]),
    st.integers(1, 5),
    st.integers(0, 4).map(lambda n: Fraction(n, 2)),
)


@settings(max_examples=120)
@given(
    st.lists(job_numbers, min_size=1, max_size=4), st.sampled_from(["simpy", "auto"])
)
def test_jobs_do_what_a_simulation_by_hand_does(jobs, engine):
    caps = [float(cap) for _, _, cap, _, _ in jobs]
    net = dumbbell(len(jobs), nics=caps)
    works = [
        sender(k, float(size), float(compute))
        for k, (compute, size, _, _, _) in enumerate(jobs)
    ]
    together = replay_together(
        net,
        works,
        ReplaySettings(engine=engine),
        steps=[count for _, _, _, count, _ in jobs],
        offsets=[float(start) for *_, start in jobs],
    )
    expected = by_hand(jobs, Fraction(10**9))
    for ours, theirs in zip(together.ends, expected, strict=True):
        np.testing.assert_allclose(ours, [float(t) for t in theirs], atol=1e-9)


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.floats(0.01, 3.0), st.floats(1e6, 3e9), st.floats(0.0, 4.0)),
        min_size=1,
        max_size=4,
    )
)
def test_all_jobs_are_busy_until_each_has_enough_steps(jobs):
    net = dumbbell(len(jobs))
    works = [sender(k, size, compute) for k, (compute, size, _) in enumerate(jobs)]
    together = replay_together(net, works, FORM, offsets=[start for *_, start in jobs])
    stop = min(ends[-1] for ends in together.ends)
    alone = replay_alone(net, works, together, FORM)
    for job in range(len(jobs)):
        window = together.window(job)
        assert window.size >= 2
        assert window[0] >= 1
        assert together.ends[job][window[-1]] <= stop
        assert together.steps[job] >= LEAST_STEPS
        # One link for all: nobody gains by company, or loses more than by sharing it.
        assert 1 - 1e-9 <= slowdown(together, alone[job], job) <= len(jobs) + 1e-9


LONG_RUNS = [
    # compute [s], bytes, and bytes/s of the sender's port
    [("1/2", 10**9, 2 * 10**9), ("7/10", 10**9, 2 * 10**9)],
    [("1", 10**9, 2 * 10**9), ("3/10", 4 * 10**8, 2 * 10**9)],
    [("3", 10**8, 2 * 10**9), ("3/10", 4 * 10**8, 2 * 10**9)],
    [("5/4", 10**9, 5 * 10**8), ("3/4", 10**9, 2 * 10**9)],
    [
        ("7/4", 5 * 10**8, 2 * 10**9),
        ("3/4", 3 * 10**8, 2 * 10**9),
        ("1/2", 10**8, 10**9),
    ],
    [("1", 10**8, 2 * 10**9), ("101/100", 10**8, 2 * 10**9)],
]


def test_steps_of_different_length_take_what_they_take_in_the_long_run():
    """Held against 500 steps by hand, and what two jobs with full ports must do.

    Each byte of one delays the other as much as the reverse, so that both lose the same
    time, and in the long run the same share of it.
    """
    wrong, known = [], 0
    for jobs in LONG_RUNS:
        numbers = [(Fraction(c), Fraction(s), Fraction(cap)) for c, s, cap in jobs]
        net = dumbbell(len(jobs), nics=[float(cap) for *_, cap in numbers])
        works = [sender(k, float(s), float(c)) for k, (c, s, _) in enumerate(numbers)]
        together = replay_together(net, works, FORM)
        alone = replay_alone(net, works, together, FORM)
        factors = [slowdown(together, one, job) for job, one in enumerate(alone)]
        hand = by_hand([(*one, 500, Fraction(0)) for one in numbers], Fraction(10**9))
        stop = min(ends[-1] for ends in hand)
        for job, ends in enumerate(hand):
            later = [float(end) for end in ends if end <= stop][50:]
            mean = (later[-1] - later[0]) / (len(later) - 1)
            steady = steady_step(together, job)
            known += steady.is_settled
            low, high = steady.low * (1 - 0.005), steady.high * (1 + 0.005)
            if not low <= mean <= high:
                wrong.append((jobs, job, mean, steady))
        full = len(jobs) == 2 and all(cap >= 10**9 for *_, cap in numbers)
        if full and together.is_settled and abs(factors[0] / factors[1] - 1) > 0.005:
            wrong.append((jobs, factors))
        if together.shares(net.links).sum(axis=0).max() > 1.0 + 1e-12:
            wrong.append((jobs, together.shares(net.links)))
    assert not wrong
    assert known >= 11


def test_jobs_that_lock_say_so_with_their_phase():
    # 3/2 s and 17/10 s alone: 17 steps of one take as long as 15 of the other.
    works = [sender(0, 1e9, 0.5), sender(1, 1e9, 0.7)]
    net = dumbbell(2)
    together = replay_together(net, works, FORM)
    locks = [one.lock for one in together.steady]
    assert [lock.steps for lock in locks] == [17, 15]
    port, zero = Fraction(2 * 10**9), Fraction(0)
    jobs = [(Fraction(c), Fraction(10**9), port, 200, zero) for c in ("1/2", "7/10")]
    hand = by_hand(jobs, Fraction(10**9))
    assert float(hand[0][150] - hand[0][133]) == pytest.approx(
        locks[0].period, rel=1e-9
    )
    for lock, ends in zip(locks, hand, strict=True):
        after = next(end for end in ends if end > lock.begin + 1e-6)
        behind = float(after - Fraction(lock.begin)) * lock.steps / lock.period
        assert lock.phase == pytest.approx(behind % 1.0, abs=1e-6)
    alone = replay_alone(net, works, together, FORM)
    factors = [slowdown(together, one, job) for job, one in enumerate(alone)]
    assert factors[0] == pytest.approx(factors[1], rel=1e-8)
    told = "".join(long_run_notes(["a", "b"], together))
    assert 'They are locked: 17 steps of "a"' in told
    # With fewer steps nothing repeats, and a range holds what is true.
    short = replay_together(net, works, FORM, steps=8)
    for job, one in enumerate(short.steady):
        assert not one.is_settled
        assert one.low < one.high
        assert one.low <= together.steady[job].time * 1.001
    assert "neither locked nor settled" in "".join(long_run_notes(["a", "b"], short))


def test_jobs_with_a_device_in_common_are_refused():
    works = [sender(0, 1e9, 1.0), sender(0, 1e9, 2.0)]
    with pytest.raises(InputError, match="devices of their own") as caught:
        replay_together(dumbbell(2), works, FORM)
    assert "device 0 in two places, 2 such" in str(caught.value)


def test_a_job_that_makes_no_step_among_others_has_no_steady_step():
    works = [sender(0, 1e9, 0.5), sender(1, 1e9, 50.0)]
    together = replay_together(dumbbell(2), works, FORM, steps=[2, 2])
    assert steady_step(together, 0).time == 1.5
    with pytest.raises(InputError, match="no step but its first"):
        steady_step(together, 1)


def test_alone_is_what_a_job_does_without_others():
    net, work = contended_step()
    (alone,) = replay_alone(net, [work], replay_together(net, [work], FORM), FORM)
    together = replay_together(net, [work], FORM)
    assert slowdown(together, alone, 0) == 1.0
    assert together.num_classes < together.num_actors


def test_a_long_replay_says_so_before_it_starts(monkeypatch):
    monkeypatch.setattr("nestsim.simulator.replay._WORTH_A_WORD", 0.0)
    told = []
    works = [sender(job, 1e9, 0.5) for job in range(2)]
    replay_together(
        dumbbell(2),
        works,
        FORM,
        steps=[2, 2],
        progress=lambda doing, _: told.append(doing),
    )
    assert told == ["about 0 s, less if its state repeats"]


def test_jobs_of_which_one_has_far_too_short_steps_are_refused():
    works = [sender(0, 1e3, 1e-7), sender(1, 1e9, 50.0)]
    with pytest.raises(InputError, match="too many steps") as caught:
        replay_together(dumbbell(2), works, FORM)
    assert caught.value.where == "jobs[0]"


def test_jobs_that_send_nothing_disturb_nobody():
    works = [pipeline([[[0]]], 3), pipeline([[[1]]], 1), sender(1, 1e9, 0.5)]
    together = replay_together(dumbbell(2), [works[0], works[2]], FORM)
    assert together.step_times(0)[0] == 6.0
    assert together.step_times(1)[0] == 1.5
    silent = replay_together(dumbbell(2), works[:2], FORM, steps=[2, 3])
    assert [ends.tolist() for ends in silent.ends] == [[6.0, 12.0], [2.0, 4.0, 6.0]]
    assert not silent.num_bytes.any()


def test_what_nobody_disturbs_is_the_same_beside_jobs_of_long_steps():
    works = [
        pipeline([[[0]]], 3, forward_time=[0.1], backward_time=[0.3]),
        # Bounded by its stages one after another, and so on a coarser tick.
        pipeline(
            [[[device]] for device in range(1, 8)],
            8,
            forward_time=[500.0] * 7,
            backward_time=[500.0] * 7,
        ),
    ]
    together = replay_together(dumbbell(4), works, FORM)
    assert together.tick > TICK
    alone = replay_alone(dumbbell(4), works, together, FORM)
    assert together.groups == ((0,), (1,))
    assert [one.tick for one in alone] == list(together.ticks)
    assert [slowdown(together, alone[job], job) for job in range(2)] == [1.0, 1.0]
