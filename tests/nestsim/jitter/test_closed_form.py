"""The closed form of a step beside its simulation."""

import math

import numpy as np
import pytest

from nestsim.evaluate import Evaluator
from nestsim.jitter.closed_form import StepForm, approximations, step_form
from nestsim.jitter.job import compiled, jittered_times
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
    assert approximations(work, scenario.jitter, 8)
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
