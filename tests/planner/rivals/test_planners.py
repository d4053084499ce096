"""What holds for every planner: its plans are of the space, and none beats ``nest``."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.rivals import PLANNERS
from planner.rivals.nest import MOST_SPLITS
from planner.rivals.protocol import PlannerOutcome, PlannerSettings, fits
from planner.search.space import SearchSpec, configuration_of
from tests.planner.brute_force import BruteForce
from tests.planner.instances import instances, interleaved
from tests.planner.rivals.examples import small_job
from topologies import InputError

relaxed = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

QUICK = PlannerSettings(budget=200, seeds=(0, 1))

CONSTRAINTS = ("Memory", "Devices", "Divisibility", "Schedule")


def found_by(name, instance, told=QUICK) -> PlannerOutcome:
    return PLANNERS[name].find(*instance, told)


def times(outcome: PlannerOutcome) -> list[float]:
    """Return the values of the objective, which plans are not ordered by."""
    return sorted(priced.closed_form_time for priced in outcome.plans)


def ends_count_as_blocks(plan, instance) -> bool:
    """Tell whether a plan's chunks are not alike, as the search's are."""
    _, workload, _ = instance
    v = plan.virtual_pipeline_model_parallel_size
    blocks = np.array([name.startswith("block") for name in workload.graph.names])
    return v > 1 and any(
        len({int(blocks[first : last + 1].sum()) for first, last in stage.chunks}) > 1
        for stage in plan.stages
    )


def check_proposals(instance) -> None:
    """Hold all planners but the exact ones against the search and the space."""
    force = BruteForce(*instance)
    best = min(times(found_by("nest", instance)), default=math.inf)
    for name in ("manual", "mcmc", "phaze"):
        outcome = found_by(name, instance)
        assert bool(outcome.why_not) == (not outcome.plans)
        if outcome.why_not:
            assert outcome.why_not.split(":")[0] in CONSTRAINTS or not len(
                force.configurations
            )
        assert len({configuration_of(p.plan) for p in outcome.plans}) == len(
            outcome.plans
        )
        for priced in outcome.plans:
            if ends_count_as_blocks(priced.plan, instance):
                assert name == "manual"
                continue
            time, peaks = force.price(priced.plan)
            assert priced.closed_form_time == pytest.approx(time, rel=1e-9)
            assert max(peaks) <= force.space.memory * (1 + 1e-9)
            assert priced.closed_form_time >= best * (1 - 1e-9)


@given(instances(most_devices=16, blocks=range(1, 7)))
@settings(relaxed, max_examples=25)
def test_no_planner_beats_nest_or_leaves_its_space(instance):
    check_proposals(instance)


@given(interleaved(most_devices=12))
@settings(relaxed, max_examples=25)
def test_no_planner_beats_nest_with_virtual_stages(instance):
    check_proposals(instance)


@given(instances(most_devices=8, blocks=range(1, 5)))
@settings(relaxed, max_examples=20)
def test_exhaustive_finds_the_k_best_of_nest(instance):
    proven, tried = found_by("nest", instance), found_by("exhaustive", instance)
    assert times(tried) == pytest.approx(times(proven), rel=1e-9)
    assert bool(tried.why_not) == (not tried.plans)


@given(interleaved(most_devices=8))
@settings(relaxed, max_examples=10)
def test_exhaustive_finds_the_k_best_of_nest_with_virtual_stages(instance):
    proven, tried = found_by("nest", instance), found_by("exhaustive", instance)
    assert times(tried) == pytest.approx(times(proven), rel=1e-9)


@given(instances(most_devices=8, blocks=range(1, 5)), st.sampled_from(list(PLANNERS)))
@settings(relaxed, max_examples=30)
def test_a_planner_asked_twice_says_the_same(instance, name):
    plan = found_by("manual", instance).plans
    told = replace(QUICK, fixed=plan[0].plan) if plan else QUICK
    if name == "fixed" and not plan:
        return
    first, second = (found_by(name, instance, told) for _ in range(2))
    assert [p.plan for p in first.plans] == [p.plan for p in second.plans]
    for field in ("spread", "evaluations", "why_not", "lower_bound", "sees"):
        assert getattr(first, field) == getattr(second, field)
    assert first.belief == pytest.approx(second.belief, nan_ok=True, rel=0)


def test_every_planner_goes_by_its_name_and_says_what_it_sees():
    for name, planner in PLANNERS.items():
        assert planner.name == name
        outcome = planner.find(
            *small_job(),
            SearchSpec(pipeline_model_parallel_sizes=(1, 2), micro_batch_sizes=(1,)),
            replace(QUICK, fixed=_any_plan()),
        )
        assert outcome.planner == name
        assert outcome.sees.endswith(".")
        assert outcome.plans
        assert not outcome.why_not


def test_nest_alone_proves_a_bound():
    instance = (*small_job(), SearchSpec(pipeline_model_parallel_sizes=(1, 2)))
    proven = found_by("nest", instance)
    assert proven.lower_bound == pytest.approx(proven.belief)
    assert proven.belief == proven.plans[0].closed_form_time
    for name in ("manual", "mcmc", "phaze", "alpa"):
        outcome = found_by(name, instance)
        assert outcome.lower_bound is None
        assert min(times(outcome)) >= min(times(proven)) * (1 - 1e-9)


def test_exhaustive_refuses_what_would_take_too_long():
    with pytest.raises(InputError, match="too large") as caught:
        found_by("exhaustive", (*small_job(num_layers=24), SearchSpec()))
    assert f"{MOST_SPLITS:,}" in caught.value.expected


def test_fixed_takes_the_plan_that_it_is_given():
    network, workload = small_job()
    plan = _any_plan()
    outcome = PLANNERS["fixed"].find(
        network, workload, SearchSpec(), replace(QUICK, fixed=plan)
    )
    assert [priced.plan for priced in outcome.plans] == [plan]
    assert math.isnan(outcome.belief)
    assert fits(workload, SearchSpec(), plan, None)


def test_fixed_names_memory_where_the_plan_does_not_fit():
    network, workload = small_job()
    reserve = workload.accelerator.memory_bytes - 1e4
    outcome = PLANNERS["fixed"].find(
        network,
        workload,
        SearchSpec(memory_reserve=reserve),
        replace(QUICK, fixed=_any_plan()),
    )
    assert not outcome.plans
    assert outcome.why_not.startswith("Memory: the plan does not fit")


def test_fixed_without_a_plan_asks_for_one():
    with pytest.raises(InputError) as caught:
        found_by("fixed", (*small_job(), SearchSpec()))
    assert caught.value.where == "plan"


def _any_plan():
    instance = (*small_job(), SearchSpec(pipeline_model_parallel_sizes=(2,)))
    return found_by("manual", instance).plans[0].plan
