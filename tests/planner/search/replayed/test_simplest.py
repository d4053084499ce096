"""The simplest plan that is nearly as fast, and alternatives that are no twins."""

import math
from dataclasses import replace

import pytest

from planner.search.replayed.replays import Alternative, Replays
from planner.search.replayed.search import search_replayed
from planner.search.replayed.simplest import (
    WORDS,
    Complexity,
    complexity_of,
    simpler_leaves,
)
from planner.search.space import configuration_of
from tests.planner.search.replayed.test_search import (
    SEEDS,
    Judge,
    told_apart,
    wholes,
)

WITHIN = 0.1


def simplest_of(case, within, **changes):
    """Search a job for simple plans, too; return what was found and what was asked."""
    world, judge = case.world, Judge(case)
    by_layer = world.settings.granularity == "layer"
    replays = Replays(judge=judge, by_layer=by_layer, simplest_within=within)
    spec = replace(world.spec, proposals=0, **changes)
    return search_replayed(world.network, world.workload, spec, replays), judge


def key_of(case, plan):
    """Return how simple a plan is, counted anew from what the plan says of itself."""
    rules = case.world.spec.rules
    return complexity_of(plan, case.world.workload, rules).key


def test_no_plan_that_was_replayed_within_the_share_is_simpler():
    slower = 0
    for case in wholes(SEEDS):
        without, before = simplest_of(case, 0.0)
        found, judge = simplest_of(case, WITHIN)
        if not found.plans:
            assert found.simplest is None
            continue
        assert without.simplest is None
        # The answer is no other one unless it is faster, and as sure.
        assert found.plans[0].time <= without.plans[0].time
        assert found.lower_bound == min(without.lower_bound, found.plans[0].time)
        assert judge.plans[: len(before.plans)] == before.plans
        limit = found.plans[0].time * (1.0 + WITHIN)
        simplest = found.simplest
        name = told_apart(simplest.priced.plan)
        assert simplest.time == case.times[name] <= limit
        assert name in set(map(told_apart, judge.plans))
        near = [plan for plan in judge.plans if case.times[told_apart(plan)] <= limit]
        assert key_of(case, simplest.priced.plan) == min(key_of(case, p) for p in near)
        slower += simplest.time > found.plans[0].time
    assert slower >= 2


def test_a_share_in_which_everything_is_close_gives_the_simplest_of_the_space():
    exact, total = 0, 0
    for case in wholes(SEEDS):
        if math.isinf(case.best):
            continue
        found, _ = simplest_of(case, WITHIN, proven_gap=0.0)
        total += 1
        near = [
            plan
            for name, plan in case.plans.items()
            if case.times[name] <= found.plans[0].time * (1.0 + WITHIN)
        ]
        exact += key_of(case, found.simplest.priced.plan) == min(
            key_of(case, plan) for plan in near
        )
    assert exact == total >= 6


def test_the_search_counts_a_plan_as_the_plan_itself_does():
    kinds = set()
    for case in wholes(SEEDS):
        world, candidates = case.world, case.world.candidates()
        left = [(0.0, candidates[number], 0) for number in range(len(candidates))]
        keys = []
        for key, leaf in simpler_leaves(candidates, left, math.inf):
            plan = candidates.plan(leaf)
            complexity = complexity_of(plan, world.workload, candidates.rules)
            assert key == complexity.key
            kinds |= {n for n, v in complexity._asdict().items() if v}
            keys.append(key)
        # Those of a configuration that was opened late are no simpler than it.
        assert keys == sorted(keys)
    assert len(kinds) >= 5


def test_fewer_things_are_simpler_and_the_first_things_decide_ties():
    plain = Complexity()
    assert not any(plain)
    assert plain.key < Complexity(counted_recompute=1).key
    assert Complexity(chunks=8).key < Complexity(layout=1, host_offload=1).key
    assert Complexity(rank_order=1).key < Complexity(chunks=2).key
    assert Complexity(chunks=2).key < Complexity(chunks=3).key
    assert Complexity(chunks=3).beyond(plain) == ("3 chunks per stage",)
    assert plain.beyond(Complexity(chunks=3)) == ()
    assert set(WORDS) == set(Complexity._fields)


@pytest.mark.parametrize("keep", [1, 3, 5])
def test_kept_plans_are_alternatives_and_the_best_of_them(keep):
    several = 0
    for case in wholes(SEEDS):
        found, judge = simplest_of(case, 0.0, keep_best=keep)
        kinds = [Alternative.of(plan.priced.plan) for plan in found.plans]
        assert len(kinds) == len(set(kinds)) <= keep
        times = [plan.time for plan in found.plans]
        assert times == sorted(times)
        several += len(kinds) > 1
        # Of its kind each is the fastest that was replayed, of equals the smallest.
        for plan, kind in zip(found.plans, kinds, strict=True):
            twins = [
                (case.times[told_apart(twin)], configuration_of(twin))
                for twin in judge.plans
                if Alternative.of(twin) == kind
            ]
            assert (plan.time, configuration_of(plan.priced.plan)) == min(twins)
    assert (several >= 4) == (keep > 1)
