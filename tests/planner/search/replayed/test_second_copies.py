"""Second copies of sharded weights: held against every copy of every plan."""

import math
from dataclasses import replace

import numpy as np

from planner.search.launchable import is_launchable
from planner.search.replayed.replays import OTHER_COPIES, Replays
from planner.search.replayed.search import search_replayed
from planner.search.replayed.second_copies import SecondCopies
from planner.step.ledger import shards_weights
from tests.planner.search.replayed.test_search import (
    Judge,
    Whole,
    every_leaf,
    fits,
    has_sharding,
    told_apart,
)
from tests.planner.search.replayed.worlds import random_world
from topologies import InputError

NAMES = {"fsdp": "reshard_after_forward", "deepspeed": "zero_hpz_partition_size"}
"""How frameworks call such copies."""


def copies_of(world, plan, name):
    """Yield a plan with copies over each number of ranks that can be priced."""
    if not all(shards_weights(stage.zero_stage) for stage in plan.stages):
        return
    for size in range(2, plan.stages[0].sharding_group_size):
        stages = tuple(replace(stage, **{name: size}) for stage in plan.stages)
        other = replace(plan, stages=stages)
        try:
            world.priced(other)
        except InputError:
            continue
        if is_launchable(world.network, world.workload, world.spec, other):
            yield other


def with_copies(seed, preset):
    """Return the replays of all plans, with copies and without, and who is listed."""
    world = random_world(seed, preset=preset, most_devices=8)
    listed = [plan for plan in every_leaf(world) if has_sharding(world, plan)]
    plans = {told_apart(plan): plan for plan in listed}
    names = set(plans)
    for plan in listed:
        for other in copies_of(world, plan, NAMES[preset]):
            plans[told_apart(other)] = other
    prices = {name: world.priced(plan) for name, plan in plans.items()}
    times = {
        name: world.time_of(priced) if fits(world, priced) else math.inf
        for name, priced in prices.items()
    }
    return Whole(world, times, plans), names


def answer(case, proposals=4):
    """Search a job."""
    world = case.world
    by_layer = world.settings.granularity == "layer"
    spec = replace(world.spec, proposals=proposals)
    replays = Replays(judge=Judge(case), by_layer=by_layer)
    return search_replayed(world.network, world.workload, spec, replays)


def test_a_plan_with_copies_wins_where_it_is_the_fastest():
    case, listed = with_copies(51, "fsdp")
    best_listed = min(case.times[name] for name in listed)
    assert case.best < 0.985 * best_listed
    found, without = answer(case), answer(case, proposals=0)
    assert found.plans[0].time == case.best
    assert found.plans[0].priced.plan.stages[0].reshard_after_forward
    assert found.statistics[OTHER_COPIES]
    assert without.plans[0].time == best_listed
    assert OTHER_COPIES not in without.statistics
    # What is proven is of the plans that are listed.
    assert found.lower_bound <= case.best + case.slack


def test_answers_with_copies_are_never_slower_than_without():
    for preset, seed in (("fsdp", 30), ("fsdp", 71), ("deepspeed", 51)):
        case, _ = with_copies(seed, preset)
        found, without = answer(case), answer(case, proposals=0)
        assert case.best <= found.plans[0].time <= without.plans[0].time


def test_each_copy_that_fits_is_proposed_once():
    for preset, seed in (("fsdp", 51), ("deepspeed", 51)):
        case, listed = with_copies(seed, preset)
        world, some = case.world, 0
        candidates = world.candidates()
        proposing = SecondCopies(candidates=candidates)
        for name in sorted(listed, key=str)[:80]:
            plan = case.plans[name]
            priced = world.priced(plan)
            wanted = {
                told_apart(other)
                for other in copies_of(world, plan, NAMES[preset])
                if candidates.has_room(world.priced(other))
            }
            proposed = list(proposing.proposed(priced, np.inf))
            assert {told_apart(other.plan) for other in proposed} == wanted
            assert not any(candidates.has_listed_layout(p.plan) for p in proposed)
            again = [plan, *(other.plan for other in proposed)]
            for known in again:
                assert not list(proposing.proposed(world.priced(known), np.inf))
            some += len(wanted)
        assert some


def test_frameworks_without_copies_get_none():
    case, _ = with_copies(51, "fsdp")
    rules = replace(case.world.spec.rules, reshards_in_groups=False)
    world = case.world.spec_with(rules=rules)
    found = answer(Whole(world, case.times, case.plans))
    assert OTHER_COPIES not in found.statistics
