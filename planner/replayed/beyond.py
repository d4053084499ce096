"""Search beyond what a framework can launch, for what its rules cost.

The plans of `planner.search`, whose stages choose for themselves, beside those that can
be launched; all are replayed. What bounds the replayed time of the wider space is weak:
in every plan some stage has the work of the mean stage.
"""

from dataclasses import replace

import numpy as np

from planner.progress import Progress
from planner.relaxation import Relaxation, best_group_rates
from planner.replayed.bounds import ReplayBounds
from planner.replayed.candidates import mean_stage_bounds, relaxed_rates
from planner.replayed.search import (
    ReplayedPlan,
    ReplayedSearch,
    Replays,
    search_replayed,
)
from planner.search import search
from planner.search_spec import SearchSpec
from planner.space import configuration_of, inner_configurations
from planner.work import Work
from planner.workload import Workload
from topologies import Network

MOST_BEYOND = 20
"""Plans of the wider space that are replayed."""


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

    Parameters are those of `planner.replayed.search.search_replayed`; either search may
    spend the whole allowance.
    """
    inside = search_replayed(
        network, workload, spec, replays, work=work, progress=progress
    )
    wider = replace(spec, keep_best=max(MOST_BEYOND, spec.keep_best))
    allowance = Work(limit=spec.work_limit, time_limit=spec.time_limit)
    outside = search(network, workload, wider, work=allowance, progress=progress)
    found = {configuration_of(one.priced.plan): one for one in inside.plans}
    for priced in outside.plans:
        time = replays.judge(priced, np.inf)
        configuration = configuration_of(priced.plan)
        known = found.get(configuration)
        if np.isfinite(time) and (known is None or time < known.time):
            found[configuration] = ReplayedPlan(time=time, priced=priced)
    ranked = sorted(found.items(), key=lambda item: (item[1].time, item[0]))
    plans = tuple(plan for _, plan in ranked[: spec.keep_best])
    least = _least_work(network, workload, spec)
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
        shortfall="" if plans else outside.shortfall,
    )


def _least_work(network: Network, workload: Workload, spec: SearchSpec) -> float:
    """Return what the mean stage works at least, in any configuration [s]."""
    inner, _ = inner_configurations(
        workload.graph.spec,
        spec,
        num_devices=network.num_devices,
        chain=workload.chain,
        global_batch_size=workload.training.global_batch_size,
    )
    relaxation = Relaxation.of(network)
    bounds = ReplayBounds(workload=workload, by_layer=True, memory=np.inf)
    tensor = {}
    least = np.inf
    for item in inner:
        tp = item.degrees.tp
        if tp not in tensor:
            tensor[tp] = best_group_rates(network, tp)
        rates = relaxed_rates(relaxation, tensor[tp], item.configuration(0))
        times = [bounds.pass_times(item.degrees, one) for one in rates]
        found = mean_stage_bounds(workload, item, times)
        least = min(least, float(found.min()))
    return least
