"""Microbatches with documents of their own: replayed, and in closed form."""

from typing import Any

import numpy as np
import pytest

from nestsim.evaluate.evaluator import Evaluator
from nestsim.evaluate.job import price_table_plan
from nestsim.features.jitter.job import (
    compiled,
    jitter_job,
    jittered_times,
)
from nestsim.scenario.load import Scenario
from planner.step.instructions import BACKWARD, FORWARD
from tests import failures
from tests.nestsim.features.jitter.jobs import check_closed_form, small
from topologies.errors import InputError

RUNS = 400
FANS = "cluster.network.levels[0].fan_out"


def packed(more: dict[str, Any] | None = None) -> Scenario:
    """Return the job with documents of about 3,500 tokens in sequences of 8,192."""
    values = {
        "model.sequence_length": 8192,
        "model.documents": "log-normal",
        "model.document_length": 1500,
        "model.document_length_sigma": 1.3,
        "jitter.documents": "drawn",
    }
    return small(values | (more or {}))


CASES: dict[str, dict[str, Any]] = {
    "replicas": {},
    "two sequences a microbatch": {"plan.micro_batch_size": 2},
    "lockstep": {"plan.tensor_model_parallel_size": 2},
    "with noise": {"jitter.compute": {"cv": 0.02, "per": "pass"}},
    "always slow": {
        "cluster.degraded.slow_devices": [{"fraction": 0.25, "factor": 1.05}]
    },
}


@failures.over("name", CASES)
def test_replicas_without_a_pipeline_take_what_the_closed_form_says(name: str) -> None:
    scenario = packed(CASES[name])
    check_closed_form(scenario, RUNS)


def test_a_device_alone_takes_what_its_sequences_take() -> None:
    scenario = packed({FANS: 1, "training.global_batch_size": 4})
    evaluator = compiled(Evaluator.of(scenario))
    priced = price_table_plan(scenario, evaluator.network, evaluator.workload)
    work = evaluator.lower(priced, memory=False)
    drawn = evaluator.packed(priced, scenario.jitter.jitter)
    assert drawn is not None
    more = sum(
        drawn.growth(work, kind, 0) * float(times[0])
        for kind, times in {
            FORWARD: work.forward_time,
            BACKWARD: work.backward_time,
        }.items()
    )
    whole = scenario.replace({"model.documents": "whole", **NO_DOCUMENTS})
    alone = compiled(Evaluator.of(whole))
    longest = alone.replayed_time(
        price_table_plan(whole, alone.network, alone.workload)
    )
    plain = evaluator.replayed_time(priced)
    assert longest - plain == pytest.approx(4 * more, rel=1e-6)
    times = jittered_times(evaluator, priced, scenario.jitter, range(20))
    sums = [drawn.drawn(0, run, 1, 4).sum() for run in range(20)]
    assert times == pytest.approx(plain + more * np.array(sums), rel=1e-6)
    assert plain * 0.8 < times.min() < plain < times.max() < longest


NO_DOCUMENTS = {"model.document_length": 0, "model.document_length_sigma": 0.0}


def test_stages_of_a_replica_see_the_same_documents() -> None:
    values = {FANS: 2, "plan.pipeline_model_parallel_size": 2}
    scenario = packed({**values, "training.global_batch_size": 1})
    evaluator = compiled(Evaluator.of(scenario))
    priced = price_table_plan(scenario, evaluator.network, evaluator.workload)
    drawn = evaluator.packed(priced, scenario.jitter.jitter)
    assert drawn is not None
    work = evaluator.lower(priced, memory=False)
    more = sum(
        drawn.growth(work, kind, stage) * float(times[stage])
        for stage in range(2)
        for kind, times in {
            FORWARD: work.forward_time,
            BACKWARD: work.backward_time,
        }.items()
    )
    times = jittered_times(evaluator, priced, scenario.jitter, range(20))
    sums = np.array([drawn.drawn(0, run, 1, 1).sum() for run in range(20)])
    plain = evaluator.replayed_time(priced)
    assert times == pytest.approx(plain + more * sums, rel=1e-6)


def test_results_depend_on_the_seed_alone() -> None:
    scenario = packed({"jitter.runs": 60})
    first, again = (jitter_job(scenario, workers=n) for n in (1, 2))
    other = jitter_job(scenario.replace({"jitter.seed": 1}), workers=1)
    steps = [job.steps for job in (first, again, other)]
    assert None not in steps
    bits = [done.times.tobytes() for done in steps if done is not None]
    assert bits[0] == bits[1] != bits[2]
    assert steps[0] is not None
    assert steps[0].loss > 0.02


def test_a_model_without_documents_has_none_to_draw() -> None:
    with pytest.raises(InputError, match=r"jitter\.documents"):
        jitter_job(small({"jitter.documents": "drawn"}), workers=1)
