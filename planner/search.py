"""Best-first search over configurations; in each, an exact split of every placement.

A configuration fixes tensor-, context- and expert-parallel size, micro-batch size,
virtual stages, stages and replicas. Bounds, each admissible, are sharpened as far as
needed::

    LB1  closed form, for all configurations at once
    MEM  parameters of the mean stage: no split fits in memory
    LB2  exact split under rates that no placement can beat, with true memory
    T    exact split under the rates of each placement

A heap keeps configurations by their sharpest bound; when the smallest one left is not
below the k-th best value found, the k best are optimal. Stopped early, it is a lower
bound of what was not looked at.

References
----------
.. [1] Narayanan et al., SC 2021, section 2.2: the iteration time of 1F1B.
"""

import heapq
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.assembly import assemble_plan
from planner.candidates import CandidateSet, Solution
from planner.objective import PricedPlan
from planner.pricing import price_plan
from planner.progress import Progress
from planner.search_spec import SearchSpec
from planner.shortfall import memory_shortfall
from planner.space import Configuration
from planner.workload import Workload
from topologies import Network

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found, and how sure it is."""

    plans: tuple[PricedPlan, ...]
    """The k best distinct configurations, best first; empty if nothing fits."""

    lower_bound: float
    """No plan of the space is faster [s]; infinite if nothing fits."""

    statistics: Mapping[str, int]
    """Configurations and placements by what became of them."""

    shortfall: str
    """Why nothing fits, in one sentence; empty if something does."""


class _Found(NamedTuple):
    value: float
    configuration: Configuration
    solution: Solution


@dataclass(slots=True, kw_only=True)
class _Best:
    """The k best so far, one per configuration."""

    keep: int
    found: list[_Found] = field(default_factory=list)

    @property
    def cutoff(self) -> float:
        """Only values below this are of interest."""
        return self.found[-1].value if len(self.found) == self.keep else np.inf

    def add(self, item: _Found) -> None:
        self.found = sorted([*self.found, item], key=lambda f: f[:2])[: self.keep]


def search(
    network: Network,
    workload: Workload,
    spec: SearchSpec,
    *,
    progress: Progress | None = None,
) -> SearchResult:
    """Find the k best plans of the space, with proof.

    Parameters
    ----------
    network
        The cluster.
    workload
        Model, job and device.
    spec
        What to try, how many plans to keep, and when to stop.
    progress
        Called now and then.

    Returns
    -------
    SearchResult
        Plans in order of iteration time, ties by configuration; `lower_bound` equals
        the best one's time unless the time limit stopped the search.
    """
    started = time.monotonic()
    candidates = CandidateSet.enumerate(network, workload, spec)
    statistics = candidates.statistics
    best = _Best(keep=spec.keep_best)
    waiting: list[tuple[float, Configuration]] = []
    next_index = 0
    bound = np.inf
    while True:
        fresh = candidates.bound(next_index)
        opened = waiting[0][0] if waiting else np.inf
        bound = min(fresh, opened)
        if bound >= best.cutoff or bound == np.inf:
            break
        if spec.time_limit is not None and time.monotonic() - started > spec.time_limit:
            statistics["left when time ran out"] = (
                len(candidates) - next_index + len(waiting)
            )
            break
        if fresh <= opened:
            relaxed = candidates.relaxed_bound(next_index, best.cutoff)
            if relaxed < best.cutoff:
                heapq.heappush(waiting, (relaxed, candidates[next_index]))
            next_index += 1
        else:
            _, configuration = heapq.heappop(waiting)
            solution = candidates.solve(configuration, best.cutoff)
            if solution is not None:
                best.add(_Found(solution.value, configuration, solution))
        if progress is not None:
            done = next_index / len(candidates)
            progress(f"search: {next_index} of {len(candidates)} configurations", done)
    statistics["pruned by the closed-form bound"] = len(candidates) - next_index
    statistics["pruned by the relaxed split"] += len(waiting)
    return _result(network, workload, best, bound, candidates)


def _result(
    network: Network,
    workload: Workload,
    best: _Best,
    bound: float,
    candidates: CandidateSet,
) -> SearchResult:
    plans = tuple(
        price_plan(
            network,
            workload,
            assemble_plan(candidates, found.configuration, found.solution),
        )
        for found in best.found
    )
    for priced, found in zip(plans, best.found, strict=True):
        assert np.isclose(priced.iteration_time, found.value, rtol=1e-9, atol=0.0)
    return SearchResult(
        plans=plans,
        lower_bound=min([bound, *(plan.iteration_time for plan in plans)]),
        statistics=dict(candidates.statistics),
        shortfall="" if plans else memory_shortfall(candidates),
    )
