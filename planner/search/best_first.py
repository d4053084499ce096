"""Best-first search over configurations; in each, an exact split of every placement.

What it minimises, for the objective ``"planned"``, is a closed form of the iteration
time that charges collectives and the step's end in full
(`planner.cost.objective.PricedPlan.closed_form_time`), not the planned time of the
plans that it returns, which hides what the framework hides. With `SearchSpec.hides`
the closed form leaves out what is hidden, about as the planned time does
(`planner.search.bounds`); that proposes plans to the search for the fastest replay.

A configuration fixes tensor-, context- and expert-parallel size, micro-batch size,
virtual stages, stages and replicas. Bounds, each admissible, are sharpened as far as
needed::

    LB1  closed form, for all configurations at once
    MEM  the same, and what memory forces stages to recompute and to shard
    LB2  exact split under rates that no placement can beat, with true memory
    LB3  the same under what must leave the blocks of a tree, placement by placement
    T    exact split under the rates of each placement

A heap keeps configurations by their sharpest bound; when the smallest one left is not
below the k-th best value found, the k best are optimal. Stopped early, it is a lower
bound of what was not looked at. A stopped search has done the first steps of the whole
one, so what a larger limit finds is never worse.

References
----------
.. [1] Narayanan et al., SC 2021, section 2.2: the iteration time of 1F1B.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan
from planner.search.candidates import (
    CONFIGURATIONS_PER_REPORT,
    CandidateSet,
    Solution,
    assemble_plan,
)
from planner.search.space import Configuration, SearchSpec
from planner.search.thriftiest import space_infeasibility
from planner.step.execution import Workload
from planner.work import LimitReachedError, Progress, Spent, Work, stopped_sentence
from topologies import Network

FIRST_OPENING = 256
"""Configurations looked at before the best of them are solved for something to compare
with; four times as many before the next attempt."""

_MEMORY, _RELAXED, _PLACED = range(3)
"""Which bound a waiting configuration has."""

LEFT = "left when stopped"
"""Key in the statistics of configurations that a stopped search has not finished
with."""

_PRUNED_BY = (
    "pruned by the memory bound",
    "pruned by the relaxed split",
    "pruned by the bounds of placements",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found, and how sure it is."""

    plans: tuple[PricedPlan, ...]
    """The k best distinct configurations by the closed form, best first; empty if
    nothing fits."""

    lower_bound: float
    """Lower bound of the closed form over all plans of the space [s]; infinite if
    nothing fits."""

    statistics: Mapping[str, int]
    """Configurations and placements by what became of them."""

    infeasibility: str
    """Why there is no plan, in one sentence; empty if there is one."""

    spent: Spent
    """Work of the search, and which limit stopped it, if one did."""


class _SplitFound(NamedTuple):
    """The best split of a configuration."""

    value: float
    """Closed-form time of the split [s]."""
    configuration: Configuration
    """Sizes of the plan."""
    solution: Solution
    """Split, choices and placement of the plan."""


class _Waiting(NamedTuple):
    """A configuration by its sharpest bound."""

    bound: float
    """Lower bound of the configuration's closed form [s]."""
    sharpness: int
    """Which of the bounds `bound` is, later ones sharper."""
    configuration: Configuration
    """Configuration that waits."""


@dataclass(slots=True, kw_only=True)
class _BestPlanned:
    """The k best so far, one per configuration."""

    keep: int
    """Most configurations that are kept."""
    splits: list[_SplitFound] = field(default_factory=list)
    """Best split of each configuration, best first."""

    @property
    def cutoff(self) -> float:
        """Only values below this are of interest."""
        return self.splits[-1].value if len(self.splits) == self.keep else np.inf

    def add(self, item: _SplitFound) -> None:
        """Keep what is found, in the place of what its configuration had before."""
        others = [
            split for split in self.splits if split.configuration != item.configuration
        ]
        self.splits = sorted([*others, item], key=lambda split: split[:2])[: self.keep]


def search(
    network: Network,
    workload: Workload,
    spec: SearchSpec,
    *,
    work: Work | None = None,
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
    work
        What it is counted on, with limits instead of those of ``spec``.
    progress
        Called now and then.

    Returns
    -------
    SearchResult
        Plans in order of iteration time, ties by configuration; `lower_bound` equals
        the best one's time unless a limit stopped the search. The same for the same
        arguments, unless there is a limit of time.

    Raises
    ------
    InputError
        If the space is too large.
    """
    if work is None:
        work = Work(limit=spec.work_limit, time_limit=spec.time_limit)
    candidates = CandidateSet.enumerate(
        network, workload, spec, work=work, progress=progress
    )
    frontier = _Frontier(candidates, spec.keep_best, progress)
    try:
        while not frontier.is_done:
            frontier.advance()
    except LimitReachedError:
        pass
    frontier.count_what_is_left()
    spent = work.total()
    if frontier.is_done:
        # The limit came with the end.
        spent = replace(spent, stopped_by="")
    return _result(network, workload, frontier, spent)


class _Frontier:
    """Configurations that may still be among the k best, by their sharpest bounds."""

    def __init__(
        self, candidates: CandidateSet, keep: int, progress: Progress | None = None
    ) -> None:
        self.candidates = candidates
        self._progress = progress
        self.best = _BestPlanned(keep=keep)
        self.next_index = 0
        """Configurations in the order of LB1 that have been looked at."""
        self._waiting: list[_Waiting] = []
        self._next_opening = FIRST_OPENING
        self._is_open = False

    @property
    def bound(self) -> float:
        """The smallest bound left: no configuration left is faster [s]."""
        fresh = self.candidates.bound(self.next_index)
        return min(fresh, self._waiting[0].bound) if self._waiting else fresh

    @property
    def is_done(self) -> bool:
        """Whether nothing left can be among the k best."""
        return self.bound >= self.best.cutoff or self.bound == np.inf

    def advance(self) -> None:
        """Sharpen the smallest bound left, or solve what it belongs to."""
        if self.next_index >= self._next_opening and self.best.cutoff == np.inf:
            self._open()
            self._is_open = True
            self._let_limits_count()
            self._next_opening *= 4
        elif self.candidates.bound(self.next_index) <= self.bound:
            value = self.candidates.memory_bound(self.next_index, self.best.cutoff)
            self._wait(value, _MEMORY, self.candidates[self.next_index])
            self.next_index += 1
            if self.next_index % CONFIGURATIONS_PER_REPORT == 0:
                self.report()
        else:
            self._sharpen([heapq.heappop(self._waiting)])

    def report(self) -> None:
        """Report how far it is."""
        if self._progress is None:
            return
        looked, total = self.next_index, len(self.candidates)
        work = self.candidates.work
        share = max(looked / total, min(work.share, 1.0))
        self._progress(
            f"search: {looked:,} of {total:,} configurations, {work.spent / 1e6:,.0f} "
            "million units of work",
            share,
        )

    def _sharpen(self, items: list[_Waiting]) -> None:
        """Sharpen bounds one after another; solve those that are as sharp as can be.

        What a limit keeps from being done goes on waiting.
        """
        items = items[::-1]
        try:
            while items:
                self._sharpen_one(*items[-1])
                items.pop()
                self.report()
        finally:
            for item in items:
                heapq.heappush(self._waiting, item)

    def _sharpen_one(
        self, bound: float, sharpness: int, configuration: Configuration
    ) -> None:
        cutoff = self.best.cutoff
        if sharpness == _MEMORY:
            self._wait(
                self.candidates.relaxed_bound(configuration, bound, cutoff),
                _RELAXED,
                configuration,
            )
        elif sharpness == _RELAXED:
            self._wait(
                self.candidates.placed_bound(configuration, bound, cutoff),
                _PLACED,
                configuration,
            )
        else:
            for solution in self.candidates.solutions(configuration, cutoff):
                self.best.add(_SplitFound(solution.value, configuration, solution))
                self._let_limits_count()

    def _let_limits_count(self) -> None:
        """From the k-th plan on, or the first one if the opening is done."""
        if self.best.cutoff < np.inf or (self._is_open and self.best.splits):
            self.candidates.work.note_plan()

    def _wait(self, value: float, sharpness: int, configuration: Configuration) -> None:
        if value < self.best.cutoff:
            heapq.heappush(self._waiting, _Waiting(value, sharpness, configuration))

    def _open(self) -> None:
        """Solve what looks best so far, to have something to compare with.

        Bounds stop early where they exceed a value that is known; and a search that
        a limit stops has something to show.
        """
        for sharpness in (_MEMORY, _RELAXED, _PLACED):
            chosen = [item for item in self._waiting if item.sharpness == sharpness]
            number = self.best.keep * 4 ** (_PLACED - sharpness)
            chosen = heapq.nsmallest(number, chosen)
            taken = set(chosen)
            self._waiting = [item for item in self._waiting if item not in taken]
            heapq.heapify(self._waiting)
            self._sharpen(chosen)

    def count_what_is_left(self) -> None:
        """Say in the statistics what became of what was not solved."""
        statistics = self.candidates.statistics
        fresh = len(self.candidates) - self.next_index
        if not self.is_done:
            statistics[LEFT] = fresh + len(self._waiting)
            return
        statistics["pruned by the closed-form bound"] = fresh
        for item in self._waiting:
            statistics[_PRUNED_BY[item.sharpness]] += 1


def _result(
    network: Network, workload: Workload, frontier: _Frontier, spent: Spent
) -> SearchResult:
    best, candidates = frontier.best, frontier.candidates
    plans = tuple(
        price_plan(
            network,
            workload,
            assemble_plan(candidates, split.configuration, split.solution),
        )
        for split in best.splits
    )
    # What every step takes once is no matter of the plan: the search leaves it out.
    once = workload.iteration_time
    times = [split.value + once for split in best.splits]
    if not candidates.splitter.hides:
        charged = [plan.closed_form_time for plan in plans]
        assert np.allclose(charged, times, rtol=1e-9, atol=0.0)
        times = charged
    return SearchResult(
        plans=plans,
        lower_bound=min([frontier.bound + once, *times]),
        statistics=dict(candidates.statistics),
        infeasibility="" if plans else _infeasibility(frontier, spent),
        spent=spent,
    )


def _infeasibility(frontier: _Frontier, spent: Spent) -> str:
    """Say why there is no plan: nothing fits, or the search was stopped."""
    if not spent.is_stopped:
        return space_infeasibility(frontier.candidates)
    total = len(frontier.candidates)
    left = frontier.candidates.statistics[LEFT]
    return stopped_sentence(spent, f"{total - left:,} of {total:,} configurations")
