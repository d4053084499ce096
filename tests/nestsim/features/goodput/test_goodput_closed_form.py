"""Closed forms: against each other, published ones, and the simulation."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from nestsim.features.goodput.closed_form import (
    NodeLoss,
    daly_interval,
    enough_nodes,
    spares_for,
    young_interval,
)
from nestsim.features.goodput.cycle import Cycle, Outage
from nestsim.features.goodput.draws import FailureKind
from nestsim.features.goodput.simulate import GoodputRuns, RecoveryHabits, run_seeds
from tests import failures

HOUR = 3600.0
DAY = 24 * HOUR


def failing(mtti: float, **settings: object) -> FailureKind:
    given = {"count": 1, "shape": 1.0, "breaks_node": False, **settings}
    return FailureKind(name="device", stream=0, rate=1 / mtti, source="", **given)


def job(**settings: object) -> RecoveryHabits:
    given = {
        "interval": 600.0,
        "copy": 0.0,
        "write": 30.0,
        "is_asynchronous": False,
        "detection": 0.0,
        "hang_detection": 0.0,
        "hang_share": 0.0,
        "restart": 300.0,
        "repair": DAY,
        "spares": None,
        "num_nodes": 1,
    }
    return RecoveryHabits(**{**given, **settings})


def cycle_of(habits: RecoveryHabits, mtti: float) -> Cycle:
    return Cycle(
        mtti=mtti,
        stall=habits.stall,
        background=habits.background,
        outages=(Outage(habits.mean_detection, habits.restart),),
    )


RESTART = 300.0
CYCLE = Cycle(
    mtti=3 * HOUR, stall=30.0, background=0.0, outages=(Outage(0.0, RESTART),)
)


def test_daly_s_complete_model_is_a_special_case() -> None:
    """Daly 2006: the total time is M exp(R/M) (exp((t + d)/M) - 1) T / t."""
    for interval in (100.0, 700.0, 5000.0):
        total = (
            CYCLE.mtti
            * math.exp(RESTART / CYCLE.mtti)
            * math.expm1((interval + CYCLE.stall) / CYCLE.mtti)
            / interval
        )
        assert CYCLE.goodput(interval) == pytest.approx(1 / total, rel=1e-12)


@failures.over("stall", [1.0, 30.0, 600.0, 7200.0])
@failures.over("background", [0.0, 40.0, 4000.0])
def test_no_interval_is_better_than_the_best_one(
    stall: float, background: float
) -> None:
    cycle = Cycle(
        mtti=3 * HOUR,
        stall=stall,
        background=background,
        outages=(Outage(60.0, RESTART),),
    )
    found = minimize_scalar(
        lambda log: -cycle.goodput(math.exp(log)),
        bounds=(0.0, 12.0),
        method="bounded",
        options={"xatol": 1e-9},
    )
    best = cycle.goodput(cycle.best_interval())
    assert best == pytest.approx(-found.fun, rel=1e-9)
    assert best >= -found.fun * (1 - 1e-12)


@failures.over("stall", [0.1, 1.0, 5.0, 20.0])
def test_young_and_daly_hold_where_checkpoints_are_short(stall: float) -> None:
    """Within 5 % in the interval and 0.1 % in the waste, for C up to M/500."""
    cycle = Cycle(
        mtti=3 * HOUR, stall=stall, background=0.0, outages=(Outage(0.0, 300.0),)
    )
    best = cycle.best_interval()
    assert young_interval(stall, cycle.mtti) == pytest.approx(best, rel=0.05)
    assert daly_interval(stall, cycle.mtti) == pytest.approx(best, rel=0.001)
    waste = 1 - cycle.goodput(best)
    for interval in (young_interval, daly_interval):
        other = 1 - cycle.goodput(interval(stall, cycle.mtti))
        assert other == pytest.approx(waste, rel=0.001)


def test_the_simulated_best_interval_is_young_s() -> None:
    """Within 5 %: the top of a parabola through means of the same failures."""
    stall, mtti = 20.0, 3 * HOUR
    young = young_interval(stall, mtti)
    factors = np.array([0.5, 0.65, 0.8, 1.0, 1.25, 1.6, 2.0])
    means = [
        run_seeds(
            job(write=stall, interval=factor * young),
            [failing(mtti)],
            range(50),
            200 * DAY,
            num_marks=1,
        ).goodput.mean()
        for factor in factors
    ]
    # Waste is a t + b/t + c to first order: both ends weigh alike.
    terms = np.column_stack([factors, 1 / factors, np.ones(len(factors))])
    (grows, falls, _), *_ = np.linalg.lstsq(terms, 1 - np.array(means), rcond=None)
    assert math.sqrt(falls / grows) == pytest.approx(1.0, rel=0.05)


@failures.over("number", range(12))
def test_the_mean_of_the_simulation_is_the_closed_form(number: int) -> None:
    """Within 3 standard errors of 100 seeds, for habits drawn at random."""
    numbers = np.random.default_rng(number)
    mtti = float(10 ** numbers.uniform(3, 5))
    write = mtti * float(10 ** numbers.uniform(-3.5, -0.5))
    habits = job(
        interval=mtti * float(10 ** numbers.uniform(-2, 0.3)),
        write=write,
        copy=write * float(numbers.uniform(0, 0.5)),
        is_asynchronous=bool(numbers.integers(2)),
        detection=mtti * float(10 ** numbers.uniform(-3, -1)),
        hang_detection=mtti * float(10 ** numbers.uniform(-2, -0.5)),
        hang_share=float(numbers.uniform(0, 0.5)),
        restart=mtti * float(10 ** numbers.uniform(-3, -0.5)),
    )
    runs = run_seeds(habits, [failing(mtti)], range(100), 3000 * mtti, num_marks=1)
    error = runs.goodput.std(ddof=1) / math.sqrt(100)
    expected = cycle_of(habits, mtti).goodput(habits.interval)
    assert abs(runs.goodput.mean() - expected) < 3 * error


def test_half_the_time_between_failures_never_trains_more_on_average() -> None:
    means = [
        run_seeds(job(), [failing(mtti)], range(50), 100 * DAY).goodput.mean()
        for mtti in (16 * HOUR, 8 * HOUR, 4 * HOUR, 2 * HOUR, HOUR)
    ]
    assert means == sorted(means, reverse=True)


def test_seeds_know_nothing_of_each_other() -> None:
    together = run_seeds(job(), [failing(HOUR)], [3, 1, 2], 30 * DAY)
    for row, seed in enumerate([3, 1, 2]):
        alone = run_seeds(job(), [failing(HOUR)], [seed], 30 * DAY)
        assert (alone.trained[0] == together.trained[row]).all()
        assert (alone.causes[0] == together.causes[row]).all()


def test_twice_the_rate_is_the_same_failures_in_half_the_time() -> None:
    slow = failing(DAY).draw(7, 100 * DAY)
    fast = failing(DAY / 2).draw(7, 50 * DAY)
    assert np.allclose(slow, 2 * fast, rtol=1e-12)


@failures.over("shape", [0.5, 0.8, 1.5, 3.0])
def test_weibull_failures_come_as_often_as_they_should(shape: float) -> None:
    """In the long run as the mean says, the first ones as the distribution does."""
    kind = failing(DAY, count=50, shape=shape)
    times = np.concatenate([kind.draw(seed, 1000 * DAY) for seed in range(5)])
    late = ((times > 500 * DAY).sum()) / (5 * 50 * 500)
    assert late == pytest.approx(1.0, rel=0.03)
    single = failing(DAY, shape=shape)
    first = [single.draw(seed, 20 * DAY)[:1].sum() or np.inf for seed in range(400)]
    scale = DAY / math.gamma(1 + 1 / shape)
    for time in (0.1 * DAY, 0.5 * DAY, DAY):
        expected = 1 - math.exp(-((time / scale) ** shape))
        assert (np.array(first) < time).mean() == pytest.approx(expected, abs=0.08)


def test_the_time_without_enough_nodes_is_palm_s() -> None:
    """50 nodes that fail every 50 days, repaired in 1: Poisson with mean 1."""
    kind = failing(50 * DAY, count=50, breaks_node=True)
    habits = job(write=0.0, interval=HOUR, restart=0.0, num_nodes=50)
    for spares in (0, 1, 2, 4):
        runs: GoodputRuns = run_seeds(
            RecoveryHabits(
                **{
                    **{name: getattr(habits, name) for name in habits.__slots__},
                    "spares": spares,
                }
            ),
            [kind],
            range(20),
            500 * DAY,
            num_marks=1,
        )
        waited = runs.shares()["waiting for repair"]
        error = waited.std(ddof=1) / math.sqrt(20)
        (enough,) = enough_nodes(
            [NodeLoss(kind.total_rate)], DAY, np.array([float(spares)])
        )
        assert abs(waited.mean() - (1 - enough)) < 3 * error + 1e-6


def test_spares_are_enough_and_none_too_many() -> None:
    for mean in (0.01, 1.0, 9.0, 100.0):
        found = spares_for([NodeLoss(mean)], 1.0, 0.999)
        shares = enough_nodes([NodeLoss(mean)], 1.0, np.array([found - 1.0, found]))
        assert shares[1] >= 0.999
        assert found == 0 or shares[0] < 0.999


def test_no_failures_and_no_checkpoints_are_healthy() -> None:
    cycle = Cycle(mtti=math.inf, stall=10.0, background=0.0, outages=())
    assert cycle.goodput(90.0) == 0.9
    assert cycle.best_interval() == math.inf
    assert young_interval(0.0, math.inf) == 0.0
