"""What is kept from replay to replay changes no time."""

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.evaluate.evaluator import Evaluator
from nestsim.scenario.simulation import SimulationSpec
from planner.cost.pricing import PlanCharges
from planner.frameworks.framework import FRAMEWORKS
from tests import failures
from tests.planner.search.replayed.worlds import random_world


def drawn_plans(world, rng, count):
    """Draw launchable plans of a job; many lie on the same placements."""
    candidates = world.candidates()
    plans = []
    for _ in range(count if len(candidates) else 0):
        configuration = candidates[rng.randrange(len(candidates))]
        leaves = list(candidates.leaves(configuration, float("inf")))
        if leaves:
            some = rng.choice(leaves)
            places = rng.sample(range(len(some.bounds)), min(3, len(some.bounds)))
            plans += [candidates.plan(some.leaf(place)) for place in places]
    return plans


def check_world(world, rng):
    """Compare a job's times with those of plans that are replayed by themselves."""
    evaluator = Evaluator(
        network=world.network,
        workload=world.workload,
        search=world.spec,
        simulation=SimulationSpec(granularity=world.settings.granularity),
    )
    charges = PlanCharges(world.network, world.workload)
    plans = drawn_plans(world, rng, 4)
    for plan in plans:
        alone = world.time(plan)
        assert evaluator.replayed_time(charges(plan)) == alone, plan
        assert evaluator.replayed_time(evaluator.price(plan)) == alone, plan
    return len(plans)


@failures.over("preset", sorted(FRAMEWORKS))
def test_plans_replayed_one_after_another_take_as_long_as_by_themselves(preset):
    checked = sum(
        check_world(random_world(seed, preset=preset), random.Random(seed))
        for seed in range(5)
    )
    assert checked >= 10


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), preset=st.sampled_from(sorted(FRAMEWORKS)))
def test_the_quick_time_of_a_plan_is_that_of_its_full_replay(seed, preset):
    world = random_world(seed, preset=preset)
    evaluator = Evaluator(
        network=world.network,
        workload=world.workload,
        search=world.spec,
        simulation=SimulationSpec(granularity=world.settings.granularity),
    )
    charges = PlanCharges(world.network, world.workload)
    for plan in drawn_plans(world, random.Random(seed), 2):
        full = evaluator.replay(evaluator.lower(evaluator.price(plan)))
        end = full.iteration_time
        assert evaluator.replayed_time(charges(plan)) == end, plan
        later = evaluator.replayed_time(charges(plan), math.nextafter(end, 0.0))
        assert later == math.inf, plan
