"""The fastest replay of plans that a framework can launch, or of any.

`search_beyond` tells what the framework's rules cost: it also replays the plans of
`planner.search.best_first`, whose stages choose for themselves. What bounds the
replayed time of that wider space is weak: in every plan some stage has the work of the
mean stage, and pipelines without chunks fill and empty.
"""

from dataclasses import replace

import numpy as np

from planner.search.best_first import search
from planner.search.replayed.floors import least_work
from planner.search.replayed.replays import BestReplayed, ReplayedPlan, Replays
from planner.search.replayed.search import ReplayedSearch, search_replayed
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from planner.work import Progress, Work
from topologies import Network

MOST_BEYOND = 20
"""Most plans of the wider space that are replayed."""


def search_by_replay(
    network: Network,
    workload: Workload,
    spec: SearchSpec,
    replays: Replays,
    *,
    work: Work | None = None,
    progress: Progress | None = None,
) -> ReplayedSearch:
    """Find the fastest replay of launchable plans, or beyond them if `spec` says so.

    Parameters are those of `search_replayed`.
    """
    find = search_replayed if spec.launchable else search_beyond
    return find(network, workload, spec, replays, work=work, progress=progress)


def search_beyond(
    network: Network,
    workload: Workload,
    spec: SearchSpec,
    replays: Replays,
    *,
    work: Work | None = None,
    progress: Progress | None = None,
) -> ReplayedSearch:
    """Find the fastest replay among launchable plans and the best planned ones.

    Parameters are those of `search_replayed`; either search may spend the whole
    allowance.
    """
    rules = replace(spec, launchable=True)
    inside = search_replayed(
        network, workload, rules, replays, work=work, progress=progress
    )
    wider = replace(spec, keep_best=max(MOST_BEYOND, spec.keep_best))
    allowance = Work(limit=spec.work_limit, time_limit=spec.time_limit)
    outside = search(network, workload, wider, work=allowance, progress=progress)
    within, beyond = (BestReplayed(keep=spec.keep_best) for _ in range(2))
    for plan in inside.plans:
        within.add(plan)
    proposed = inside.proposed_time
    for priced in outside.plans:
        time = replays.judge(priced, np.inf)
        if np.isfinite(time):
            proposed = np.fmin(proposed, time)
            beyond.add(ReplayedPlan(time=time, priced=priced))
    plans, simplest = within.ranked(beyond), inside.simplest
    near = beyond.time * (1.0 + replays.simplest_within)
    least = least_work(network, workload, spec)
    stopped = inside.spent.stopped_by or outside.spent.stopped_by
    return ReplayedSearch(
        plans=plans,
        lower_bound=min([least, *(plan.time for plan in plans)]),
        statistics={
            **inside.statistics,
            **{f"beyond: {name}": count for name, count in outside.statistics.items()},
        },
        spent=replace(
            inside.spent,
            work=inside.spent.work + outside.spent.work,
            stopped_by=stopped,
        ),
        infeasibility="" if plans else outside.infeasibility,
        proposed_time=float(proposed),
        launchable_time=min((plan.time for plan in inside.plans), default=np.nan),
        simplest=simplest if simplest and simplest.time <= near else None,
    )
