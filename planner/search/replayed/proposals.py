"""Plans that a search replays before it begins to prove.

Those that a competent user would try, and some of the dynamic program.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.cost.objective import PricedPlan
from planner.search.best_first import search
from planner.search.launchable import is_launchable
from planner.search.replayed.candidates import LaunchableCandidates
from planner.search.replayed.replays import (
    SLACK,
    ReplayedPlan,
    Replays,
    SearchProgress,
    replay_work,
)
from planner.search.space import SearchSpec, configuration_of
from planner.step.execution import Workload
from planner.work import DEFAULT_WORK, LimitReachedError, Progress, Work
from topologies import InputError, Network

PROPOSED_SHARE = 60
"""Divisor of the search's work limit: the part that the dynamic program may spend."""

KEPT_EACH = 4
"""Plans that the dynamic program keeps for each one that is replayed first."""


def ordinary_answers(
    network: Network,
    workload: Workload,
    spec: SearchSpec,
    replays: Replays,
    work: Work,
    progress: SearchProgress,
) -> list[ReplayedPlan]:
    """Replay what a competent user would try, of listed sizes, where it can run."""
    progress("what a competent user would try", None)
    answers: list[ReplayedPlan] = []
    for priced in replays.ordinary():
        plan = priced.plan
        sizes = configuration_of(plan)
        listed = (
            (spec.micro_batch_sizes, sizes.b),
            (spec.tensor_model_parallel_sizes, sizes.tp),
            (spec.pipeline_model_parallel_sizes, sizes.pp),
            (spec.virtual_pipeline_model_parallel_sizes, sizes.v),
            (spec.data_parallel_sizes, sizes.dp),
            (spec.context_parallel_sizes, sizes.cp),
            (spec.expert_model_parallel_sizes, sizes.ep),
        )
        if any(known and size not in known for known, size in listed):
            continue
        if is_launchable(network, workload, spec, plan):
            work.count(replay_work(plan))
            least = min((done.time for done in answers), default=np.inf)
            time = replays.judge(priced, least * SLACK)
            answers.append(ReplayedPlan(time=time, priced=priced))
            progress.best = min(progress.best, time)
            progress("what a competent user would try", None)
    return answers


class ProposedPlans(NamedTuple):
    """Plans of the dynamic program that have room, best planned first."""

    listed: tuple[PricedPlan, ...] = ()
    """Those of the space."""
    beyond: tuple[PricedPlan, ...] = ()
    """Those of its sizes in layouts beyond the listed ones."""


def proposed_plans(
    candidates: LaunchableCandidates, progress: Progress | None = None
) -> ProposedPlans:
    """Return plans of the dynamic program that can be launched.

    Ordered by their exact timelines. Neither these nor the planned cost are lower
    bounds of a replay: contention makes replays longer, and a split may hide more than
    the cost grants. So no configuration is left out because of its planned cost.

    Counted on the work of the search, in units only: no clock has a say. What the
    program found of their number is in the statistics.
    """
    spec = candidates.spec
    if not spec.proposals:
        return ProposedPlans()
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
    except (InputError, LimitReachedError):
        return ProposedPlans()
    finally:
        candidates.work.count(work.spent)
    ranked = sorted(
        filter(candidates.has_room, planned.plans),
        key=lambda priced: (priced.iteration_time, configuration_of(priced.plan)),
    )
    usable = [priced for priced in ranked if candidates.is_of_space(priced.plan)]
    proposed: dict[bool, list[PricedPlan]] = {True: [], False: []}
    for priced in usable:
        proposed[candidates.has_listed_layout(priced.plan)].append(priced)
    statistics["plans of the dynamic program"] = len(planned.plans)
    statistics["of these in the space"] = len(proposed[True])
    return ProposedPlans(tuple(proposed[True]), tuple(proposed[False]))
