"""The closed form of a step beside its simulation."""

import math

import numpy as np
import pytest

from nestsim.evaluate import Evaluator
from nestsim.jitter.closed_form import StepForm, approximations, step_form
from nestsim.jitter.job import compiled, jittered_times
from nestsim.jitter.replicas import fewer_replicas
from nestsim.job import price_table_plan
from nestsim.scenario.load import Scenario
from nestsim.simulator.noise import Noise
from planner.cost.objective import PricedPlan
from tests.nestsim.jitter.jobs import noisy, small
from topologies.arrays import FloatArray

RUNS = 1500


def prepared(scenario: Scenario) -> tuple[Evaluator, PricedPlan]:
    evaluator = compiled(Evaluator.of(scenario))
    network, workload = evaluator.network, evaluator.workload
    return evaluator, price_table_plan(scenario, network, workload)


def form_of(scenario: Scenario, multiple: int = 1) -> StepForm:
    evaluator, priced = prepared(scenario)
    work = evaluator.lower(priced, memory=False)
    plain = evaluator.replayed_time(priced)
    return step_form(work, plain, scenario.jitter, 8, multiple)


def simulated(scenario: Scenario, runs: int = RUNS) -> FloatArray:
    evaluator, priced = prepared(scenario)
    return jittered_times(evaluator, priced, scenario.jitter, range(runs))


CASES = {
    "steps": noisy("normal", 0.03, "step"),
    "passes": noisy("gamma", 0.3, "pass"),
    "tailed passes": noisy("lognormal", 0.5, "pass"),
    "operators": noisy("exponential", 0.3, "operator"),
    "lockstep": noisy("lognormal", 0.1, "pass", {"plan.tensor_model_parallel_size": 4}),
    "lockstep operators": noisy(
        "uniform", 0.3, "operator", {"plan.tensor_model_parallel_size": 2}
    ),
    "slow ones": noisy(
        "lognormal", 0.02, "step", {"jitter.slow": [{"fraction": 0.2, "factor": 1.1}]}
    ),
    "always slow": noisy(
        *("gamma", 0.1, "pass"),
        {"cluster.degraded.slow_devices": [{"fraction": 0.25, "factor": 1.05}]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_without_coupling_mean_and_quantiles_are_those_of_the_simulation(
    name: str,
) -> None:
    scenario = CASES[name]
    form, times = form_of(scenario), simulated(scenario)
    error = times.std() / math.sqrt(RUNS)
    assert abs(times.mean() - form.mean) <= 4 * error + form.error
    ordered = np.sort(times)
    for share in (0.5, 0.95):
        # A quantile's place in the sample is binomial.
        reach = 4 * math.sqrt(RUNS * share * (1 - share))
        (value,) = form.quantiles(np.array([share]))
        place = np.searchsorted(ordered, [value * 0.9995, value * 1.0005])
        assert place[0] - reach <= share * RUNS <= place[1] + reach


def test_a_job_on_one_device_loses_nothing_on_average() -> None:
    alone = {"cluster.network.levels[0].fan_out": 1, "training.global_batch_size": 4}
    scenario = noisy("gamma", 0.3, "pass", alone)
    form = form_of(scenario)
    evaluator, priced = prepared(scenario)
    assert form.mean == pytest.approx(evaluator.replayed_time(priced), rel=1e-9)


def test_in_a_pipeline_the_closed_form_is_below_the_simulation() -> None:
    deep = {"plan.pipeline_model_parallel_size": 4}
    scenario = noisy("gamma", 0.3, "pass", deep)
    times = simulated(scenario, 400)
    evaluator, priced = prepared(scenario)
    work = evaluator.lower(priced, memory=False)
    none_else = approximations(
        work, scenario.jitter, 8, fewest_devices=8, sum_error=0.0
    )
    assert none_else == ("stages of a pipeline wait for each other in single passes",)
    assert form_of(scenario).mean < times.mean() - 4 * times.std() / math.sqrt(400)
    assert form_of(scenario).mean > evaluator.replayed_time(priced)


@pytest.mark.parametrize("per", ["operator", "pass", "step"])
def test_more_jitter_and_more_replicas_never_lose_less(per: str) -> None:
    means = [form_of(noisy("lognormal", cv, per)).mean for cv in (0.0, 0.01, 0.1, 0.5)]
    assert means == sorted(means)
    scenario = noisy("lognormal", 0.1, per)
    scaled = [form_of(scenario, multiple).mean for multiple in (1, 2, 4, 1024)]
    assert scaled == sorted(scaled)


def test_without_variation_the_closed_form_is_the_plain_step() -> None:
    scenario = noisy("lognormal", 0.0, "pass")
    evaluator, priced = prepared(scenario)
    plain = evaluator.replayed_time(priced)
    assert form_of(scenario).mean == pytest.approx(plain, rel=1e-12)
    nobody = small({"jitter.slow": [{"fraction": 0.0, "factor": 2.0}]})
    assert form_of(nobody).mean == pytest.approx(plain, rel=1e-12)


def test_a_factor_on_all_devices_stretches_all_compute() -> None:
    values = {"jitter.slow": [{"fraction": 1.0, "factor": 1.5}]}
    every = small(values)
    slowed = small(
        {"cluster.degraded.slow_devices": [{"fraction": 1.0, "factor": 1.5}]}
    )
    evaluator, priced = prepared(slowed)
    expected = evaluator.replayed_time(priced)
    # No other plan: both were made as if devices were healthy.
    assert simulated(every, 3).tolist() == [expected] * 3
    assert form_of(every).mean == pytest.approx(expected, rel=1e-6)


def test_shares_beyond_the_fleet_slow_what_is_left_of_it() -> None:
    slow = [{"fraction": 0.75, "factor": 1.5}, {"fraction": 0.75, "factor": 2.0}]
    rest = [slow[0], {"fraction": 0.25, "factor": 2.0}]
    quiet = {"jitter.compute": {"cv": 0.0}}
    both, left = (small({"jitter.slow": one, **quiet}) for one in (slow, rest))
    assert simulated(both, 9).tolist() == simulated(left, 9).tolist()
    for size in (1, 2, 4, 8):
        evaluator, priced = prepared(both)
        fewer = fewer_replicas(evaluator, priced.plan, size)
        assert fewer is not None
        work = fewer[0].lower(fewer[1], memory=False)
        forms = [step_form(work, 1.0, one.jitter, 8) for one in (both, left)]
        assert forms[0].mean == forms[1].mean


def test_no_step_is_shorter_than_what_it_takes_beside_compute() -> None:
    # Two symmetric draws of such a width, as a normal distribution, are below 0 at
    # times.
    wide = noisy("uniform", 0.57, "pass", {"training.global_batch_size": 8})
    form = form_of(wide)
    assert form.base > 0.0
    assert form.cdf(np.array([0.0, 0.999 * form.base])).tolist() == [0.0, 0.0]
    alone = {"cluster.network.levels[0].fan_out": 1, "training.global_batch_size": 1}
    one = form_of(noisy("uniform", 0.57, "pass", alone))
    plain = one.base + one.actors[0].compute
    assert one.mean == pytest.approx(plain, abs=2.0 * one.error)


def test_fraction_0_and_no_variation_are_the_plain_replay_to_the_bit() -> None:
    scenario = small(
        {
            "jitter.slow": [{"fraction": 0.0, "factor": 2.0}],
            "jitter.compute": {"cv": 0.0},
        }
    )
    evaluator, priced = prepared(scenario)
    plain = evaluator.replayed_time(priced)
    assert simulated(scenario, 3).tolist() == [plain] * 3
    assert scenario.jitter.jitter.compute == Noise("lognormal", 0.0)
