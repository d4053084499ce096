"""Schedules are chosen by their replays, those that split the backward pass too."""

import math

import numpy as np
import pytest

from planner.search.replayed.replays import Replays
from planner.search.replayed.search import search_replayed
from planner.search.space import SEARCHED
from planner.step.schedules import SCHEDULES
from tests.planner.search.replayed.worlds import ROUNDING, random_world

EVERY = SEARCHED
SEEDS = range(24)
MOST_PLANS = 400


def small_worlds():
    """Yield jobs of few plans, under every schedule."""
    for seed in SEEDS:
        world = random_world(seed, preset="ideal", most_devices=8)
        if world.workload.chain[1] > 6:
            continue
        world = world.spec_with(
            schedules=EVERY,
            micro_batch_sizes=(1,),
            recompute=("none",),
            zero_stages=(0,),
            tensor_model_parallel_sizes=(1,),
            context_parallel_sizes=(1,),
            pipeline_model_parallel_sizes=(2, 3, 4),
        )
        candidates = world.candidates()
        leaves = [
            one.leaf(k)
            for number in range(len(candidates))
            for one in candidates.leaves(candidates[number], np.inf)
            for k in range(len(one.bounds))
        ]
        if 0 < len(leaves) <= MOST_PLANS:
            yield world, candidates, leaves


def test_the_answer_is_the_best_of_every_schedule():
    chosen, seen = set(), set()
    for world, candidates, leaves in small_worlds():
        times = {}
        for leaf in leaves:
            plan = candidates.plan(leaf)
            assert plan.schedule == leaf.schedule
            seen.add(plan.schedule)
            times[leaf] = world.time(plan)

        def judge(priced, cutoff, world=world):
            time = world.time(priced.plan)
            return time if time <= cutoff else math.inf

        by_layer = world.settings.granularity == "layer"
        found = search_replayed(
            world.network,
            world.workload,
            world.spec_with(proven_gap=0.0, proposals=0).spec,
            Replays(judge=judge, by_layer=by_layer, starts=()),
        )
        assert not found.spent.stopped_by
        best = min(times.values())
        assert found.plans[0].time == pytest.approx(best, rel=1e-9, abs=ROUNDING)
        assert found.lower_bound <= best * (1.0 + 1e-9) + ROUNDING
        chosen.add(found.plans[0].priced.plan.schedule)
    assert seen == set(EVERY)
    assert any(SCHEDULES[name].splits_backward for name in chosen)
