"""Plans of the dynamic program that a search replays before it begins to prove."""

from dataclasses import replace

from planner.search.best_first import search
from planner.search.replayed.candidates import LaunchableCandidates
from planner.search.space import configuration_of
from planner.step.plan import Plan
from planner.work import DEFAULT_WORK, Progress, Work
from topologies import InputError

PROPOSED_SHARE = 60
"""Divisor of the search's work limit: the part that the dynamic program may spend."""

KEPT_EACH = 4
"""Plans that the dynamic program keeps for each one that is replayed first."""


def proposed_plans(
    candidates: LaunchableCandidates, progress: Progress | None = None
) -> tuple[Plan, ...]:
    """Return plans of the dynamic program that are in the space, best planned first.

    By their exact timelines. Neither these nor the planned cost are lower bounds of a
    replay: contention makes replays longer, and a split may hide more than the cost
    grants. So no configuration is left out because of its planned cost.

    Counted on the work of the search, in units only: no clock has a say. What the
    program found of their number is in the statistics.
    """
    spec = candidates.spec
    if not spec.proposals:
        return ()
    limit = DEFAULT_WORK if spec.work_limit is None else spec.work_limit
    # As if it had a plan: at the limit it ends with what it has.
    work = Work(limit=limit // PROPOSED_SHARE, has_plan=True)
    wider = replace(spec, hides=True, keep_best=KEPT_EACH * spec.proposals)
    statistics = candidates.statistics
    statistics["plans of the dynamic program"] = 0
    statistics["of these in the space"] = 0
    try:
        planned = search(
            candidates.network, candidates.workload, wider, work=work, progress=progress
        )
    except InputError:
        return ()
    finally:
        candidates.work.count(work.spent)
    ranked = sorted(
        (
            priced
            for priced in planned.plans
            if candidates.is_searched(priced.plan) and candidates.has_room(priced)
        ),
        key=lambda priced: (priced.iteration_time, configuration_of(priced.plan)),
    )
    statistics["plans of the dynamic program"] = len(planned.plans)
    statistics["of these in the space"] = len(ranked)
    return tuple(priced.plan for priced in ranked)
