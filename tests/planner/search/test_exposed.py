"""Costs that leave out what the framework hides: bounds hold, and plans come out first.

Held against each other (the bounds of a configuration against its optimum without any),
and against exact timelines, in which passes, buckets and transfers go on side by side.
"""

from dataclasses import replace

import numpy as np

from planner.search.best_first import search
from planner.search.bounds import hides_anything
from planner.search.candidates import CandidateSet
from tests.planner.search.replayed.worlds import random_world

SEEDS = range(0, 60, 3)


def worlds():
    """Yield small jobs whose framework hides something."""
    for seed in SEEDS:
        world = random_world(seed, most_devices=8)
        if hides_anything(world.workload.execution):
            yield seed, world.spec_with(micro_batch_sizes=(1, 2))


def test_no_bound_is_above_the_optimum_of_its_configuration():
    looked, failures = 0, []
    for seed, world in worlds():
        spec = replace(world.spec, hides=True)
        candidates = CandidateSet.enumerate(world.network, world.workload, spec)
        order = np.random.default_rng(seed).permutation(len(candidates))
        for index in order[:6].tolist():
            configuration = candidates[index]
            solution = candidates.solve(configuration, np.inf)
            best = np.inf if solution is None else solution.value
            bounds = [candidates.bound(index), candidates.memory_bound(index, np.inf)]
            bounds.append(candidates.relaxed_bound(configuration, 0.0, np.inf))
            if np.isfinite(bounds[-1]):
                bounds.append(candidates.placed_bound(configuration, 0.0, np.inf))
            looked += np.isfinite(best)
            if max(bounds) > best:
                failures.append((seed, configuration, bounds, best))
    assert not failures
    assert looked >= 20


def test_its_first_plans_have_shorter_exact_timelines_than_those_of_the_full_cost():
    ratios = []
    for _, world in worlds():
        best = []
        for hides in (True, False):
            spec = replace(world.spec, hides=hides, keep_best=4)
            found = search(world.network, world.workload, spec)
            times = [priced.iteration_time for priced in found.plans]
            best.append(min(times, default=np.nan))
        ratios.append(best[0] / best[1])
    known = np.array([ratio for ratio in ratios if np.isfinite(ratio)])
    assert len(known) >= 8
    assert known.mean() < 1.0, known
    assert (known < 1.0).sum() > (known > 1.0).sum(), known


def test_a_framework_that_hides_nothing_has_the_same_plans():
    for seed in range(6):
        world = random_world(seed, preset="ddp", most_devices=8)
        execution = replace(
            world.workload.execution,
            overlap_grad_reduce=False,
            overlap_param_gather=False,
            tp_comm_overlap=False,
        )
        workload = replace(world.workload, execution=execution)
        found = [
            search(world.network, workload, replace(world.spec, hides=hides))
            for hides in (False, True)
        ]
        plans = [[priced.plan for priced in one.plans] for one in found]
        assert plans[0] == plans[1]
        assert found[0].lower_bound == found[1].lower_bound
