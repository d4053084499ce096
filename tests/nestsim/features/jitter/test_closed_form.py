"""The closed form of a step beside its simulation."""

import math

import numpy as np
import pytest

from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import price_table_plan
from nestsim.features.jitter.closed_form import StepForm, step_form
from nestsim.features.jitter.event_graph import event_graph
from nestsim.features.jitter.job import compiled, jittered_times, paces_of
from nestsim.features.jitter.pipelines import PipelineMoments
from nestsim.scenario.load import Scenario
from nestsim.simulator.build import build_model
from nestsim.simulator.jittered import timings_of
from nestsim.simulator.kernels.jitter import (
    Operations,
    latest_cumulants,
    latest_moments,
)
from nestsim.simulator.noise import Noise
from nestsim.simulator.work import PipelineWork
from planner.cost.objective import PricedPlan
from tests import failures
from tests.nestsim.features.jitter.jobs import noisy, small
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
    paces = paces_of(evaluator, priced)
    return step_form(work, plain, scenario.jitter, paces, multiple)


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
    "no meeting before the optimizer": noisy(
        "gamma", 0.5, "operator", {"software.preset": "torchtitan"}
    ),
    "slow ones": noisy(
        "lognormal", 0.02, "step", {"jitter.slow": [{"fraction": 0.2, "factor": 1.1}]}
    ),
    "always slow": noisy(
        *("gamma", 0.1, "pass"),
        {"cluster.degraded.slow_devices": [{"fraction": 0.25, "factor": 1.05}]},
    ),
    "slow ranks beside always slow ones": noisy(
        *("lognormal", 0.02, "step"),
        {
            "plan.tensor_model_parallel_size": 2,
            "jitter.slow": [
                {"fraction": 0.1, "factor": 1.3},
                {"fraction": 0.02, "factor": 1.1},
            ],
            "cluster.degraded.slow_devices": [{"device": 3, "factor": 1.2}],
        },
    ),
}


@failures.over("name", CASES)
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


def by_recurrence(work: PipelineWork, factors: FloatArray) -> FloatArray:
    """Return when 1F1B has done all passes of replicas, by its max-plus recurrence.

    Without transfers; ``factors`` has one of each forward and backward pass of each
    stage, shape ``(2, p, m, ...)``.
    """
    num_stages, num_microbatches = len(work.devices), work.num_microbatches
    free = np.zeros(factors.shape[1:2] + factors.shape[3:])
    ends: dict[tuple[str, int, int], FloatArray] = {}
    orders = []
    for stage in range(num_stages):
        ahead = min(num_stages - 1 - stage, num_microbatches)
        order = [("f", k) for k in range(ahead)]
        for k in range(num_microbatches):
            if ahead + k < num_microbatches:
                order.append(("f", ahead + k))
            order.append(("b", k))
        orders.append(order[::-1])
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                kind, k = order[-1]
                before = {"f": ("f", stage - 1, k), "b": ("b", stage + 1, k)}[kind]
                inside = 0 <= before[1] < num_stages
                if inside and before not in ends:
                    break
                times = work.forward_time if kind == "f" else work.backward_time
                ready = ends[before] if inside else 0.0
                begin = np.maximum(free[stage], ready)
                factor = factors["fb".index(kind), stage, k]
                free[stage] = begin + times[stage] * factor
                ends[kind, stage, k] = free[stage].copy()
                order.pop()
    return np.asarray(free.max(axis=0))


LARGE = {
    "model.hidden_size": 8192,
    "model.num_attention_heads": 64,
    "model.num_layers": 16,
    "cluster.network.levels[0].fan_out": 16,
    "plan.pipeline_model_parallel_size": 8,
    "training.global_batch_size": 16,
}


def pipeline_mean(scenario: Scenario) -> float:
    """Return the mean step of a pipeline in closed form [s]."""
    evaluator, priced = prepared(scenario)
    work = evaluator.lower(priced, memory=False)
    plain, paces = evaluator.replayed_time(priced), paces_of(evaluator, priced)
    arguments = evaluator.network, work, plain, scenario.jitter, paces
    return PipelineMoments.of(*arguments).form().mean


def test_in_a_pipeline_it_is_what_draws_through_the_recurrence_of_1f1b_make() -> None:
    """Held against 20,000 and 4,000 draws of numpy's own, and the simulation."""
    wrong = []
    spread = math.sqrt(math.log(1 + 0.1**2))
    for per, shape, reach in (
        ("step", (1, 8, 1, 2, 20_000), 0.03),
        ("pass", (2, 8, 8, 2, 4_000), 0.06),
    ):
        scenario = noisy("lognormal", 0.1, per, LARGE)
        evaluator, priced = prepared(scenario)
        work = evaluator.lower(priced, memory=False)
        plain = evaluator.replayed_time(priced)
        drawn = np.random.default_rng(5).lognormal(-(spread**2) / 2, spread, shape)
        each = np.broadcast_to(drawn, (2, 8, 8, *shape[3:]))
        alone = by_recurrence(work, np.ones((2, 8, 8, 1))).max()
        lost = float(by_recurrence(work, each).max(axis=0).mean() - alone)
        # The first stage is the last to end: its slower optimizer step comes behind.
        lost += work.optimizer_time[0] * (drawn[0, 0, 0].max(axis=0).mean() - 1)
        assert alone + priced.terms["tail"] == pytest.approx(plain, rel=0.01)
        times = simulated(scenario, 300)
        error = times.std() / math.sqrt(300)
        form = pipeline_mean(scenario) - plain
        if not (
            abs(times.mean() - plain - lost) <= 3 * error
            and form == pytest.approx(lost, rel=reach)
        ):
            wrong.append((per, lost, form, times.mean() - plain, error))
    assert not wrong


def test_the_moments_of_a_replica_are_those_of_the_replay() -> None:
    """Whatever the schedule, and where stages stop for transfers between them."""
    wrong = {}
    for name, values in {
        "1f1b": {},
        "gpipe": {"plan.schedule": "gpipe"},
        "interleaved": {"plan.virtual_pipeline_model_parallel_size": 2},
        "blocking": {"software.overlap_p2p_comm": False},
        "buckets": {"software.preset": "megatron-core"},
        "zero bubbles": {"plan.schedule": "zb-h1"},
    }.items():
        evaluator, priced = prepared(small({**LARGE, **values}))
        work = evaluator.lower(priced, memory=False)
        model = build_model(evaluator.network, work)
        meets = [True] * len(work.devices)
        graph = event_graph(model, timings_of(model, work, "pass"), 0, meets)
        (alone,) = latest_moments(
            graph.operations,
            graph.fixed,
            graph.compute + graph.update,
            graph.actor,
            np.ones((1, 8)),
        )
        plain = evaluator.replayed_time(priced)
        if abs(alone / plain - 1) > 2e-3:
            wrong[name] = alone, plain
    assert not wrong


def test_beside_a_far_slower_device_nobody_is_late_and_the_mean_is_the_plain_step() -> (
    None
):
    scenario = noisy(
        *("lognormal", 0.1, "step"),
        {
            "plan.pipeline_model_parallel_size": 2,
            "cluster.degraded.slow_devices": [{"device": 0, "factor": 3.0}],
            "training.global_batch_size": 8,
        },
    )
    evaluator, priced = prepared(scenario)
    plain = evaluator.replayed_time(priced)
    assert pipeline_mean(scenario) == pytest.approx(plain, rel=0.004)


def test_the_later_of_two_normal_moments_is_clarks() -> None:
    # Two of variance 3, of which 1 in common: the difference has variance 4.
    operations = Operations(
        first=np.array([0, 1, 1]),
        second=np.array([0, 1, 1]),
        target=np.array([1, 2, 1]),
        ends=np.array([1, 2]),
        num_slots=3,
    )
    arguments = np.array([5.0, 1.0, 1.0]), np.array([1.0, 2.0, 2.0]), np.zeros(3)
    mean, variance, third = latest_cumulants(operations, *arguments)
    assert mean == pytest.approx(6.0 + 2.0 / math.sqrt(2.0 * math.pi), rel=1e-12)
    assert variance == pytest.approx(3.0 - 2.0 / math.pi, rel=1e-12)
    assert third == 0.0


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
    share = [{"fraction": 1.0, "factor": 1.5}]
    for preset in ("ideal", "torchtitan"):
        values = {"software.preset": preset}
        every = small({"jitter.slow": share, **values})
        slowed = small({"cluster.degraded.slow_devices": share, **values})
        evaluator, priced = prepared(slowed)
        expected = evaluator.replayed_time(priced)
        # No other plan: both were made as if devices were healthy.
        assert simulated(every, 3).tolist() == [expected] * 3
        # With torchtitan passes wait for their hosts: not for 1.5 times as long.
        assert form_of(every).mean == pytest.approx(expected, rel=1e-6)
        stages = {"plan.pipeline_model_parallel_size": 2}
        evaluator, priced = prepared(slowed.replace(stages))
        expected = evaluator.replayed_time(priced)
        assert pipeline_mean(every.replace(stages)) == pytest.approx(expected, 2e-3)


def test_shares_beyond_the_fleet_slow_what_is_left_of_it() -> None:
    slow = [{"fraction": 0.75, "factor": 1.5}, {"fraction": 0.75, "factor": 2.0}]
    rest = [slow[0], {"fraction": 0.25, "factor": 2.0}]
    quiet = {"jitter.compute": {"cv": 0.0}}
    both, left = (small({"jitter.slow": one, **quiet}) for one in (slow, rest))
    assert simulated(both, 9).tolist() == simulated(left, 9).tolist()
    assert form_of(both).mean == form_of(left).mean


def test_a_share_of_less_than_half_a_device_slows_as_many_steps_as_it_should() -> None:
    """Held against the binomial distribution, and draws of numpy's own.

    Compute is all that differs and does not vary: a step takes as long as its slowest
    device does, which is healthy in (1 - f)**N of the steps.
    """
    wrong, runs = [], 4000
    for fraction, ranks in ((0.03, 1), (0.004, 1), (0.3, 4)):
        shares = [{"fraction": fraction, "factor": one} for one in (1.5, 2.0)]
        scenario = small(
            {
                "jitter.compute": {"cv": 0.0},
                "jitter.slow": shares,
                "plan.tensor_model_parallel_size": ranks,
            }
        )
        evaluator, priced = prepared(scenario)
        work = evaluator.lower(priced, memory=False)
        plain = evaluator.replayed_time(priced)
        paces = paces_of(evaluator, priced)
        form = step_form(work, plain, scenario.jitter, paces)
        spec, longest = scenario.jitter, form.actors[0].compute
        drawn = np.array([spec.slowdowns(8, run).max() for run in range(runs)])
        times = plain + longest * (drawn - 1.0)
        first = [int(np.argmax(drawn == one)) for one in (1.0, 1.5, 2.0)]
        for run in first:
            (replayed,) = jittered_times(evaluator, priced, spec, range(run, run + 1))
            if replayed != pytest.approx(times[run], rel=1e-6):
                wrong.append((fraction, ranks, drawn[run], replayed, times[run]))
        healthy = (1 - 2 * fraction) ** 8
        chance = [healthy, (1 - fraction) ** 8 - healthy, 1 - (1 - fraction) ** 8]
        exact = plain + longest * float(np.dot(chance, [0.0, 0.5, 1.0]))
        theirs = np.random.default_rng(7).random((100_000, 8)).min(axis=1)
        others = np.where(
            theirs < fraction, 1.0, np.where(theirs < 2 * fraction, 0.5, 0)
        )
        others = plain + longest * others
        error = 3 / math.sqrt(runs)
        if not (
            form.mean == pytest.approx(exact, rel=1e-6)
            and abs(times.mean() - exact) <= error * times.std()
            and abs(others.mean() - exact) <= error * others.std()
            and abs(np.mean(drawn == 1.0) - healthy) <= error / 2
        ):
            wrong.append(
                (fraction, ranks, exact, form.mean, times.mean(), others.mean())
            )
    assert not wrong


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
