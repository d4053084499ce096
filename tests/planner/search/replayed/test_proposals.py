"""What the dynamic program proposes is replayed first, and changes no answer."""

from dataclasses import replace

import pytest

from planner.search.best_first import search
from planner.search.candidates import CandidateSet
from planner.search.launchable import broken_rules
from planner.search.launchable_sizes import LaunchFacts
from planner.search.replayed.proposals import KEPT_EACH
from planner.search.replayed.replays import OTHER_LAYOUTS
from planner.work import LimitReachedError, Work
from tests.planner.search.replayed.test_search import SEEDS, searched, wholes

PROPOSALS = 3


def launchable_plans(world):
    """Return what the dynamic program finds that can be launched, in any order."""
    wider = replace(world.spec, hides=True, keep_best=KEPT_EACH * PROPOSALS)
    found = search(world.network, world.workload, wider)
    idle = world.spec.idle_devices
    facts = LaunchFacts.of(world.workload, world.network, idle_devices=idle)
    return [
        priced
        for priced in found.plans
        if not broken_rules(priced.plan, world.spec.rules, facts)
        and priced.plan.schedule in world.spec.schedules
    ]


def test_its_best_plans_are_replayed_before_any_other():
    asked = 0
    for case in wholes(SEEDS[:5]):
        found, judge = searched(case, proposals=PROPOSALS)
        known = launchable_plans(case.world)
        times = {priced.plan: priced.iteration_time for priced in known}
        number = min(PROPOSALS, found.statistics["of these in the space"])
        first = judge.plans[:number]
        assert set(first) <= set(times)
        planned = [times[plan] for plan in first]
        assert planned == sorted(planned)
        if number:
            asked += 1
            best = min(case.world.time(plan) for plan in first)
            assert found.proposed_time == best
            assert found.plans[0].time <= best
    assert asked >= 2


def test_nothing_is_made_where_listing_alone_takes_all_that_it_may_spend():
    for case in wholes(SEEDS[:5]):
        spec, network = replace(case.world.spec, hides=True), case.world.network
        job = replace(case.world.workload)
        work = Work(limit=1, has_plan=True)
        with pytest.raises(LimitReachedError):
            CandidateSet.enumerate(network, job, spec, work=work)
        assert not job._tables
        listed = Work(limit=1)
        CandidateSet.enumerate(network, job, spec, work=listed)
        assert job._tables
        assert listed.spent == work.spent


def test_without_it_the_answer_and_its_proof_are_the_same():
    costs, answers = set(), 0
    for case in wholes(SEEDS[:5]):
        for gap in (0.0, 0.01, 0.2):
            without, _ = searched(case, proven_gap=gap, proposals=0)
            found, _ = searched(case, proven_gap=gap, proposals=PROPOSALS)
            assert "plans of the dynamic program" not in without.statistics
            assert bool(found.plans) == bool(without.plans)
            if not found.plans:
                continue
            answers += 1
            costs.add(found.spent.work > without.spent.work)
            ours, theirs = found.plans[0], without.plans[0]
            if found.statistics.get(OTHER_LAYOUTS):
                # Plans beyond the space end a search earlier (test_free_layouts).
                assert ours.time <= theirs.time * (1.0 + gap)
                continue
            assert ours.time <= theirs.time
            if ours.time == theirs.time:
                assert ours.priced.plan.to_json() == theirs.priced.plan.to_json()
            else:
                assert ours.time == found.proposed_time
            assert found.lower_bound == min(without.lower_bound, ours.time)
    assert answers >= 6
    assert True in costs


def test_a_share_of_the_work_limit_ends_it_and_no_clock_does():
    for case in wholes(SEEDS[:4]):
        whole, _ = searched(case, proposals=PROPOSALS, time_limit=1e-9)
        again, _ = searched(case, proposals=PROPOSALS)
        key = "plans of the dynamic program"
        assert whole.statistics.get(key) == again.statistics.get(key)
        stopped, _ = searched(case, proposals=PROPOSALS, work_limit=60)
        assert stopped.statistics[key] == 0
