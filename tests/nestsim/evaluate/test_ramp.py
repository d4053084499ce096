"""Batches that grow: what the way up costs, against jobs of each batch by itself."""

import math

import pytest

import nestsim
from nestsim.document.terminal import plain_text
from nestsim.evaluate.ramp import RampStep, RampUp
from nestsim.scenario.load import Scenario
from planner.search.launchable import broken_rules, rules_of
from planner.search.launchable_sizes import LaunchFacts
from tests.nestsim.launch.megatron.small import small_scenario
from topologies.errors import InputError

RAMP = [16, 16, 400]
TOKENS = 1e6


def ramped(**tables: dict[str, object]) -> Scenario:
    """Return a small job whose batches grow from 16 to 64 sequences."""
    training = {"rampup_batch_size": RAMP}
    return small_scenario({}, training=training, **tables)


def test_a_way_up_by_hand() -> None:
    # Steps of 1 and 2 sequences take 3 s and 4 s, of 4 sequences 6 s: 1.5 s a sequence.
    ramp = RampUp(
        steps=(
            RampStep(
                global_batch_size=1, num_microbatches=1, num_steps=10, iteration_time=3
            ),
            RampStep(
                global_batch_size=2, num_microbatches=2, num_steps=5, iteration_time=4
            ),
        ),
        global_batch_size=4,
        iteration_time=6.0,
    )
    assert (ramp.sequences, ramp.num_steps, ramp.time) == (20, 15, 50.0)
    assert ramp.extra_time == 50.0 - 20 * 1.5
    assert ramp.extra_time_of(1e9) == ramp.extra_time
    # A run that ends on its way up: 4 steps of 1; then all of these and 2.5 steps of 2.
    assert ramp.extra_time_of(4) == 4 * 3 - 4 * 1.5
    assert ramp.extra_time_of(15) == 30 + 2.5 * 4 - 15 * 1.5


def test_steps_take_what_jobs_of_their_batch_take() -> None:
    plain = small_scenario({})
    report = nestsim.simulate(ramped().replace({"cost.tokens": TOKENS}))
    ramp = report.result.candidate.ramp
    assert ramp is not None
    # 3 increments in 400 sequences: 9 steps of 16 pass 133.3, 4 of 32 to 272, 3 of 48.
    assert [(step.global_batch_size, step.num_steps) for step in ramp.steps] == [
        (16, 9),
        (32, 4),
        (48, 3),
    ]
    alone = {
        batch: nestsim.simulate(plain.replace({"training.global_batch_size": batch}))
        for batch in (16, 32, 48, 64)
    }
    times = {batch: job.best.simulated.iteration_time for batch, job in alone.items()}
    for step in ramp.steps:
        assert step.iteration_time == pytest.approx(
            times[step.global_batch_size], rel=1e-12
        )
        assert step.num_microbatches == step.global_batch_size // 4
    way_up = 9 * times[16] + 4 * times[32] + 3 * times[48]
    whole = (TOKENS / 256 - 416) / 64 * times[64]
    assert report.cost is not None
    assert report.cost.run_time == pytest.approx(way_up + whole, rel=1e-12)
    data = report.to_dict()
    assert data["ramp"]["time_s"] == pytest.approx(way_up, rel=1e-12)
    assert data["ramp"]["extra_time_s"] > 0
    assert "Batches that grow" in plain_text(report.print_to)


def test_a_job_without_a_ramp_says_nothing_of_one() -> None:
    report = nestsim.simulate(small_scenario({}))
    assert "ramp" not in report.to_dict()
    assert "Batches that grow" not in plain_text(report.print_to)


def test_replicas_that_do_not_divide_a_batch_are_refused() -> None:
    # 4 replicas of 1 sequence, and batches of 18, 20, .. 64.
    with pytest.raises(InputError) as caught:
        nestsim.simulate(ramped().replace({"training.rampup_batch_size": [18, 2, 100]}))
    assert caught.value.where.endswith("plan.micro_batch_size")
    assert "18 sequences" in caught.value.expected


def test_a_search_keeps_to_plans_that_run_at_every_batch() -> None:
    scenario = ramped(search={"micro_batch_sizes": [1, 2, 4, 8]})
    document = scenario.document()
    del document["plan"]
    document["training"]["rampup_batch_size"] = [4, 4, 400]
    report = nestsim.run(Scenario.from_dict(document))
    facts = report.result.assumptions.training
    for candidate in report.result.candidates:
        plan = candidate.priced.plan
        assert candidate.broken_rules == ()
        assert 4 % (plan.micro_batch_size * plan.parallel.data_parallel_size) == 0
        assert candidate.ramp is not None
        assert math.isfinite(candidate.ramp.time)
    assert facts.batch_sizes[0] == 4


def test_a_plan_that_cannot_run_at_a_batch_breaks_a_rule() -> None:
    scenario = small_scenario({})
    report = nestsim.simulate(scenario)
    evaluated = report.result.candidate.priced.plan
    rules = rules_of(scenario.search)
    facts = LaunchFacts(
        is_block=(False, *[True] * 8, False, False),
        num_attention_heads=8,
        num_query_groups=8,
        num_moe_experts=8,
        sequence_length=256,
        global_batch_size=64,
        ramp_sizes=(18, 20),
        num_devices=16,
    )
    (broken,) = broken_rules(evaluated, rules, facts)
    assert broken.rule == "global_batch"
    assert "18 sequences of training.rampup_batch_size" in broken.found
