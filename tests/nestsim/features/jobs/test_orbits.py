"""Orbits, basins and shifts, against closed forms and jobs simulated by hand."""

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.features.jobs import orbits
from nestsim.features.jobs.orbits import Company, Orbit, orbit_of, shifted_starts
from nestsim.features.jobs.replay import replay_together
from nestsim.simulator.system import ReplaySettings
from tests.nestsim.features.jobs.fluid import dumbbell, orbit_by_hand, sender

TRUNK, WIDE, NARROW = Fraction(10**9), Fraction(2 * 10**9), Fraction(10**9, 2)

ASKED = 1e-6
"""Part of a slow-down by which orbits of both simulators may differ."""

STEPS = 600
"""Steps of the first job until which an orbit is sought by hand."""


def alone(job):
    """Return the step of a job of (compute, bytes, port, start) by itself."""
    compute, size, port, _ = job
    return compute + size / min(port, TRUNK)


def company(jobs, devices=1, most_steps=128):
    net = dumbbell(len(jobs), nics=[float(port) for _, _, port, _ in jobs])
    return Company(
        network=net,
        works=[
            sender(place, float(size), float(compute))
            for place, (compute, size, _, _) in enumerate(jobs)
        ],
        names="abc"[: len(jobs)],
        num_devices=[devices] * len(jobs),
        settings=ReplaySettings(),
        most_steps=most_steps,
        starts=[float(start) for *_, start in jobs],
        alone=[float(alone(job)) for job in jobs],
    )


def mismatch(jobs):
    """Return what a replay and the simulation by hand say differently, if locked."""
    together = company(jobs)
    shared = together.replayed(0, 0.0)
    orbit = orbit_of(shared)
    if orbit is None:
        return None, False
    by_hand = orbit_by_hand(jobs, TRUNK, STEPS)
    if by_hand is None:
        return (jobs, "no orbit by hand", orbit.steps), True
    steps, period = by_hand
    expected = [period / count / float(alone(job)) for count, job in zip(steps, jobs)]  # noqa: B905 - as many of each
    slowdowns = together.slowdowns(shared)
    if tuple(steps) != orbit.steps or slowdowns != pytest.approx(expected, rel=ASKED):
        return (jobs, steps, expected, orbit.steps, slowdowns), True
    return None, True


drawn_jobs = st.lists(
    st.tuples(
        st.integers(1, 12).map(lambda n: Fraction(n, 4)),
        st.integers(1, 12).map(lambda n: Fraction(n * 10**8)),
        st.sampled_from([NARROW, WIDE]),
        st.integers(0, 8).map(lambda n: Fraction(n, 8)),
    ),
    min_size=2,
    max_size=3,
)


@settings(max_examples=60)
@given(drawn_jobs)
def test_orbits_are_those_of_a_simulation_by_hand(jobs):
    assert mismatch(jobs)[0] is None


def test_enough_of_all_jobs_lock_to_be_held_against_a_simulation_by_hand():
    rng = random.Random(11)
    wrong, locked = [], 0
    for _ in range(120):
        jobs = [
            (
                Fraction(rng.randint(1, 12), 4),
                Fraction(rng.randint(1, 12) * 10**8),
                rng.choice([NARROW, WIDE]),
                Fraction(rng.randint(0, 8), 8),
            )
            for _ in range(rng.choice([2, 3]))
        ]
        off, is_locked = mismatch(jobs)
        wrong += [] if off is None else [off]
        locked += is_locked
    assert not wrong
    assert locked >= 20


def test_alike_jobs_keep_the_phase_that_they_begin_with():
    """Of two that compute for ``c`` and send for ``s``, begun ``d`` apart.

    What overlaps takes twice as long, so that a step takes ``c + s + max(0, s - d)``,
    ``d`` the smaller one of both ways round.
    """
    compute, sends = 2.0, 1.0
    jobs = [(Fraction(2), Fraction(10**9), WIDE, Fraction(0))] * 2
    shifts = shifted_starts(company(jobs, devices=8), 1, 8)
    span = compute + sends
    assert shifts.span == span
    for start in shifts.starts:
        apart = min(start.offset, span - start.offset)
        takes = span + max(0.0, sends - apart)
        assert start.slowdowns == pytest.approx([takes / span] * 2, rel=1e-9)
        assert start.lost == pytest.approx(16 * (1 - span / takes), abs=1e-7)
        basin = shifts.basins[start.orbit]
        assert basin.orbit.steps == (1, 1)
        behind = apart / takes if start.offset <= span / 2 else 1 - apart / takes
        assert basin.orbit.phases == pytest.approx([0.0, behind], abs=1e-6)
        assert basin.holds == "stays"
    # 3, 4 and 5 eighths of a step cost nothing: the one between the others is best.
    assert (shifts.best, shifts.worst) == (4, 0)
    assert shifts.saves == pytest.approx(16 * (1 - 3 / 4))
    assert shifts.basins[shifts.starts[4].orbit].pushed_lost == pytest.approx(0.0)
    # At the edge a push to one side costs a part of itself.
    longer = orbits.PUSH * span
    edge = shifted_starts(company(jobs), 1, 3)
    assert edge.starts[1].lost == pytest.approx(0.0, abs=1e-9)
    pushed = edge.basins[edge.starts[1].orbit].pushed_lost
    assert pushed == pytest.approx(2 * (1 - span / (span + longer)), rel=1e-6)


PULLED = [
    (Fraction(3), Fraction(9 * 10**8), WIDE, Fraction(3, 4)),
    (Fraction(3), Fraction(5 * 10**8), NARROW, Fraction(7, 8)),
]
"""Jobs that end in few orbits, wherever they begin: one cannot fill the link."""


def test_starts_end_in_the_orbits_and_basins_of_a_simulation_by_hand():
    wrong = []
    for pair in (PULLED, [PULLED[1], PULLED[0]]):
        shifts = shifted_starts(company(pair), 1, 12)
        for start in shifts.starts:
            moved = [pair[0], (*pair[1][:3], pair[1][3] + Fraction(start.offset))]
            steps, period = orbit_by_hand(moved, TRUNK, STEPS)
            expected = [
                period / count / float(alone(job))
                for count, job in zip(steps, pair, strict=True)
            ]
            if start.slowdowns != pytest.approx(expected, rel=ASKED):
                wrong.append((start, expected))
        assert len(shifts.basins) < len(shifts.starts)
        covered = sorted(itertools.chain(*(basin.starts for basin in shifts.basins)))
        assert covered == list(range(12))
        assert any(basin.holds == "returns" for basin in shifts.basins)
    assert not wrong


def test_an_orbit_that_holds_comes_back_by_hand_too():
    shifts = shifted_starts(company(PULLED), 1, 1)
    (basin,) = shifts.basins
    assert basin.holds == "returns"
    push = Fraction(orbits.PUSH) * alone(PULLED[1])
    for moved in (-push, push):
        jobs = [PULLED[0], (*PULLED[1][:3], PULLED[1][3] + moved)]
        steps, period = orbit_by_hand(jobs, TRUNK, STEPS)
        assert period == pytest.approx(basin.orbit.period, rel=ASKED)
        assert tuple(steps) == basin.orbit.steps


def test_jobs_that_drift_have_no_orbit():
    # 2 s and 2.2 s alone, never locked in so few steps.
    jobs = [(Fraction(1), TRUNK, NARROW, Fraction(0))]
    jobs += [(Fraction(6, 5), TRUNK, WIDE, Fraction(0))]
    shifts = shifted_starts(company(jobs, most_steps=8), 1, 3)
    assert all(start.orbit is None for start in shifts.starts)
    assert shifts.basins == ()


def test_all_jobs_may_begin_before_today():
    """A start moved to before 0 is that of the others moved to after it."""
    together = company(PULLED)
    earlier = together.replayed(1, -0.25)
    assert earlier.starts == pytest.approx((1.0, 0.875))
    orbit = orbit_of(earlier)
    assert orbit.distance(orbit_of(replay_at(together, (0.75, 0.625)))) < 1e-6


def replay_at(together, starts):
    return replay_together(
        together.network, together.works, together.settings, offsets=starts
    )


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6), st.floats(0.0, 1.0))
def test_an_orbit_is_the_same_from_wherever_it_is_looked_at(moments, turn):
    ends = np.sort(np.array(moments))
    marks = np.array([0.0])
    orbit = Orbit(2.0, (marks, ends))
    turned = Orbit(2.0, ((marks + turn) % 1.0, np.sort((ends + turn) % 1.0)))
    assert orbit.distance(turned) < 1e-12
    assert turned.distance(orbit) < 1e-12
    assert orbit.distance(Orbit(2.5, turned.ends)) >= 0.5 / len(moments) - 1e-12
    assert orbit.distance(Orbit(2.0, (np.array([0.0, 0.5]), ends))) == np.inf


def test_phases_are_the_least_delay_behind_the_slowest_job():
    orbit = Orbit(6.0, (np.array([0.1, 0.35, 0.6, 0.85]), np.array([0.0, 0.5])))
    assert orbit.phases == pytest.approx([0.4, 0.0])
    # What ends with the slowest job, or a rounding before it, is not a step behind.
    assert Orbit(6.0, (np.array([1e-12]), np.array([0.0]))).phases[1] < 1e-6


def test_the_middle_of_the_longest_run_round_a_circle():
    wrong = []
    for size in range(1, 9):
        for equal in itertools.product([False, True], repeat=size):
            if not any(equal):
                continue
            place = orbits._middle(equal)
            runs = [run_around(equal, at) for at in range(size)]
            is_middle = runs[place] == max(runs) or abs(len(equal) - sum(equal)) == 0
            if not (equal[place] and is_middle):
                wrong.append((equal, place))
    assert not wrong


def run_around(equal, place):
    """Return how far both neighbourhoods of a place are equal: the shorter, both."""
    if not equal[place] or all(equal):
        return (0, 0)
    size = len(equal)
    after = next(k for k in range(1, size) if not equal[(place + k) % size])
    before = next(k for k in range(1, size) if not equal[place - k])
    length = after + before - 1
    # Of two middles of an even run the first.
    return (length, -abs(2 * before - length - 1) if before <= after else -size)
