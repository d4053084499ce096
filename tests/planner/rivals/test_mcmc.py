"""Metropolis walks: how near they come, and what makes them repeatable."""

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from planner.cost.pricing import price_plan
from planner.rivals.manual import propose as propose_manual
from planner.rivals.mcmc import MOVES, Mcmc, propose, reset_span
from planner.rivals.mcmc_state import Walkable, WalkState
from planner.rivals.protocol import STARTS, PlannerSettings, fits
from planner.search.best_first import search
from planner.search.candidates import CandidateSet
from planner.search.space import SearchSpec
from planner.step.plan import NO_OFFLOAD, Offload
from tests import failures
from tests.planner.instances import instances, interleaved
from tests.planner.rivals.examples import small_job
from topologies.accelerators import Host

relaxed = settings(
    max_examples=30,
    suppress_health_check=list(HealthCheck),
)

SPACE = SearchSpec(micro_batch_sizes=(1, 2))


def walkable(network, workload, spec) -> Walkable:
    return Walkable.of(CandidateSet.enumerate(network, workload, spec))


# Walks promise nothing, 2 of 300 problems drawn at random were missed by more than 5 %:
# the same problems each time, so that a second miss is a change.
def test_walks_come_within_five_percent_of_the_optimum():
    ratios = []

    @given(instances(most_devices=16, blocks=range(1, 7)))
    @settings(relaxed, max_examples=16, derandomize=True, phases=[Phase.generate])
    def walk(instance):
        optimum = search(*instance).plans
        assume(optimum)
        walked = Mcmc().find(*instance, PlannerSettings()).plans
        least = min(priced.closed_form_time for priced in walked)
        ratios.append(least / optimum[0].closed_form_time)

    walk()
    missed = [ratio for ratio in ratios if ratio > 1.05]
    assert len(ratios) >= 16
    assert len(missed) <= 1, missed


@given(
    instances(most_devices=12, blocks=range(1, 6)) | interleaved(most_devices=12),
    st.integers(0, 2**32 - 1),
)
@relaxed
def test_a_state_costs_what_its_plan_costs(instance, seed):
    network, workload, spec = instance
    space, rng = walkable(*instance), Random(seed)
    assume(len(space.prices.candidates))
    state = next(filter(None, (space.random(rng) for _ in range(50))), None)
    assume(state is not None)
    for _ in range(60):
        proposed = propose(space, state, rng)
        proposed = None if proposed is None else space.settled(*proposed)
        if proposed is None:
            continue
        value, plan = space.value(proposed), space.plan(proposed)
        assert fits(workload, spec, plan, None)
        assert value == pytest.approx(
            price_plan(network, workload, plan).closed_form_time, rel=1e-9
        )
        floor = space.floor(proposed.configuration, proposed.bounds)
        assert floor <= value * (1 + 1e-9)
        state = proposed


@given(instances(most_devices=12, blocks=range(1, 6)), st.integers(0, 2**32 - 1))
@relaxed
def test_a_state_that_does_not_fit_is_never_priced(instance, seed):
    _, workload, spec = instance
    space, rng = walkable(*instance), Random(seed)
    candidates = space.prices.candidates
    assume(len(candidates))
    for _ in range(20):
        configuration = candidates[rng.randrange(len(candidates))]
        number = rng.randrange(len(space.placements(configuration)))
        choices = space.prices.chain(configuration, number).choices
        state = WalkState(
            configuration,
            number,
            space.split(configuration, rng),
            tuple(rng.choice(choices) for _ in range(configuration.pp)),
        )
        has_blocks = configuration.v == 1
        if has_blocks and np.isinf(space.value(state)):
            assert not fits(workload, spec, space.plan(state), None)


@given(instances(most_devices=12, blocks=range(1, 6)), st.integers(0, 2**32 - 1))
@relaxed
def test_a_memory_split_is_found_where_any_split_fits(instance, seed):
    space, rng = walkable(*instance), Random(seed)
    candidates = space.prices.candidates
    assume(len(candidates))
    for _ in range(10):
        configuration = candidates[rng.randrange(len(candidates))]
        if configuration.v > 1:
            continue
        found = candidates.solve(configuration, np.inf)
        if found is not None:
            names = [one.name for one in space.placements(configuration)]
            number = names.index(found.placement.name)
            settled = space.settled(
                configuration, number, space.uniform(configuration), ()
            )
            assert settled is not None
            assert space.value(settled) < math.inf


def test_every_move_leads_somewhere():
    network, workload = small_job()
    space, rng = walkable(network, workload, SearchSpec()), Random(0)
    state = space.random(rng)
    changed = set()
    for _ in range(400):
        for name, move in MOVES.items():
            proposed = move(space, state, rng)
            if proposed is not None:
                changed.add(name)
                state = space.settled(*proposed) or state
    # Neither experts nor blocks of replicas are there to move.
    assert changed >= set(MOVES) - {"expert-parallel size", "sharding"}


def test_the_spread_has_a_time_for_each_seed_and_the_best_is_proposed():
    settings_ = PlannerSettings(budget=60, seeds=(3, 1, 4), init="random")
    outcome = Mcmc().find(*small_job(), SPACE, settings_)
    assert len(outcome.spread) == 3
    least = min(priced.closed_form_time for priced in outcome.plans)
    assert min(outcome.spread) == pytest.approx(least)
    alone = Mcmc().find(*small_job(), SPACE, replace(settings_, seeds=(1,)))
    assert alone.spread == outcome.spread[1:2]


def test_a_longer_walk_is_never_worse_than_its_beginning():
    told = PlannerSettings(budget=100, seeds=(0, 1), init="random")
    short = Mcmc().find(*small_job(), SPACE, told)
    # Of the same span between resets, so that both begin alike.
    long = Mcmc().find(*small_job(), SPACE, replace(told, budget=199))
    assert all(a >= b for a, b in zip(short.spread, long.spread, strict=True))


def test_a_walk_from_the_manual_plan_is_never_slower_than_that():
    network, workload = small_job()
    space = walkable(network, workload, SPACE)
    told = PlannerSettings(budget=1, seeds=(0,), init="manual")
    plan = propose_manual(network, workload, SPACE).plans[0].plan
    priced = price_plan(network, workload, plan).closed_form_time
    assert space.plan(space.state_of(plan)) == plan
    assert Mcmc().find(network, workload, SPACE, told).spread[0] <= priced * (1 + 1e-9)


@failures.over("init", STARTS)
def test_walks_start_anywhere(init):
    told = PlannerSettings(budget=200, seeds=(0,), init=init)
    assert Mcmc().find(*small_job(), SPACE, told).plans


@failures.over(("budget", "span"), [(1, 1), (100, 1), (4000, 40), (10**6, 1000)])
def test_walks_go_back_to_their_best_as_flexflow_does(budget, span):
    assert reset_span(budget) == span


def test_walks_leave_to_hosts_what_devices_have_no_room_for():
    network, workload = small_job()
    host = Host(to_device=2e10, to_host=3e10, memory=1e12)
    reserve = workload.accelerator.memory_bytes * (1 - 3e-6)
    tight = SearchSpec(
        micro_batch_sizes=(1,),
        tensor_model_parallel_sizes=(1,),
        pipeline_model_parallel_sizes=(1, 2),
        data_parallel_sizes=(1,),
        memory_reserve=reserve,
    )
    offload = (NO_OFFLOAD, Offload(1.0, 1.0, 1.0, 1.0))
    told = PlannerSettings(seeds=(0, 1))
    alone = Mcmc().find(network, workload, tight, told).plans
    more = replace(tight, offload=offload)
    found = Mcmc().find(network.with_host(host), workload, more, told).plans
    assert fits(workload, more, found[0].plan, host)
    assert found[0].closed_form_time < alone[0].closed_form_time
    assert any(stage.offload != NO_OFFLOAD for stage in found[0].plan.stages)
