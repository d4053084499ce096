"""The candidates that a search leaves, against everything in its space."""

import math

from planner.search.replayed.replays import Replays
from planner.search.replayed.search import search_replayed
from planner.search.replayed.shortlist import shortlist
from planner.search.replayed.trail import ProofTrail
from planner.search.space import configuration_of
from tests import failures
from tests.planner.search.replayed.test_search import Judge, told_apart, wholes

SEEDS = 42, 53, 56, 63, 64, 65, 67
"""Jobs of ten to a hundred plans that fit."""


def kind_of(plan):
    return configuration_of(plan)._replace(v=1), plan.stages[0].recompute


def searched(case):
    """Search a job, and return what the search noted."""
    trail = ProofTrail()
    by_layer = case.world.settings.granularity == "layer"
    transfers = case.world.transfers
    judge = Judge(case)
    replays = Replays(judge=judge, by_layer=by_layer, transfers=transfers, trail=trail)
    search_replayed(case.world.network, case.world.workload, case.world.spec, replays)
    return trail


def check(case):
    trail = searched(case)
    counts = dict(trail.candidates.statistics), trail.candidates.work.spent
    short = shortlist(trail, 1000)
    assert counts == (dict(trail.candidates.statistics), trail.candidates.work.spent)
    kinds = [kind_of(candidate.plan) for candidate in short]
    assert len(kinds) == len(set(kinds))
    replayed = {
        kind_of(plan): time.exact
        for plan, time in trail.replays.items()
        if time.exact is not None
    }
    assert {kind_of(plan) for plan in case.fitting()} <= set(kinds)
    for candidate, kind in zip(short, kinds, strict=True):
        assert math.isfinite(candidate.time) == (kind in replayed)
        time = case.times.get(told_apart(candidate.plan))
        if math.isfinite(candidate.time):
            assert candidate.time == min(
                time.exact
                for plan, time in trail.replays.items()
                if kind_of(plan) == kind and time.exact is not None
            )
        elif time is not None:
            assert candidate.bound <= time + case.slack
    order = [c.bound if math.isnan(c.time) else c.time for c in short]
    assert order == sorted(order)
    few = shortlist(trail, 2)
    assert len(few) <= 2
    assert {kind_of(candidate.plan) for candidate in few} <= set(kinds)
    return len(short)


def test_a_shortlist_has_the_best_plan_of_every_kind():
    counts = []
    with failures.collected() as case:
        for whole in wholes(SEEDS):
            with case(whole.world.spec):
                counts.append(check(whole))
    assert len(counts) == len(SEEDS)
    assert min(counts) >= 3
