"""Best-first search for the plan that replays fastest.

`search_replayed` looks at the plans that a framework can launch. Everything is ordered
by a lower bound of the replayed time, sharpened step by step::

    all configurations   some stage has the mean stage's work
    a configuration      paths of waits, under rates that no placement can beat
    a plan               the same on its placement, each transfer alone on its links
    the replay           of the plan with the least bound

The search ends when no bound left is below the best replay over 1 + `proven_gap`: no
other plan of the space replays faster by more than that. Stopped before, the least
bound left still says how much faster any plan could be. After the proof a few more
plans are replayed: alternatives, and simpler plans that are nearly as fast.

First of all the plans that a competent user would try are replayed, before anything is
listed, so that there is an answer at once; then some plans of the dynamic program
(`proposed_plans`). The queue is not told how fast they are, but for what it need not
look at: plans slower than the best of them by more than `SLACK`. So the proof is the
same, and the answer with them is never slower than without.

From plans that were replayed others are proposed that are not listed (`FreeLayouts`,
`SecondCopies`). They are no part of what is proven; the search ends when no plan of the
space is faster than they are, by more than `proven_gap`.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from planner.cost.objective import PricedPlan
from planner.cost.pricing import PlanCharges, price_plan
from planner.search.best_first import LEFT
from planner.search.replayed.candidates import LaunchableCandidates, Leaves
from planner.search.replayed.free_layouts import FreeLayouts
from planner.search.replayed.proposals import ordinary_answers, proposed_plans
from planner.search.replayed.replays import (
    OTHER_COPIES,
    OTHER_LAYOUTS,
    SLACK,
    Alternative,
    BestReplayed,
    ReplayedPlan,
    Replays,
    SearchProgress,
    replay_work,
)
from planner.search.replayed.second_copies import SecondCopies
from planner.search.replayed.simplest import (
    MOST_LEFT,
    MOST_SIMPLER,
    Left,
    SimplestReplayed,
    simpler_leaves,
)
from planner.search.replayed.timelines import TimelineBounds
from planner.search.replayed.trail import OpenedPlans, RelaxedBound, ReplayTime
from planner.search.space import Configuration, SearchSpec, configuration_of
from planner.search.thriftiest import fullest_stage, memory_sentence, sizes_label
from planner.step.execution import Workload
from planner.step.plan import Plan
from planner.work import (
    LimitReachedError,
    Progress,
    Spent,
    Work,
    stopped_sentence,
)
from topologies import Network
from topologies.units import format_size

STEPS_PER_REPORT = 64
"""Steps between two reports of progress."""

LOOKS_AROUND = 0.5
"""Part of the limit of work after which a search that has no proof looks around its
best plan: most have one by then, and as much is left."""

LOOKED_AT = 8
"""Plans that are replayed then of each configuration, those of the least bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedSearch:
    """What a search found, and how sure it is."""

    plans: tuple[ReplayedPlan, ...]
    """The fastest of each of the best alternatives, best first; empty if nothing
    fits."""

    lower_bound: float
    """Lower bound of the replays of all plans of the space [s]; infinite if nothing
    fits."""

    statistics: Mapping[str, int]
    """Number of configurations, plans and replays by what became of them."""

    spent: Spent
    """Work of the search, and which limit stopped it, if one did."""

    infeasibility: str = ""
    """Why there is no plan, in a sentence or two; empty if there is one."""

    proposed_time: float = np.nan
    """Fastest replay of the dynamic program's plans; NaN if none was replayed [s]."""

    launchable_time: float = np.nan
    """Fastest replay of the plans that the framework can launch, where others were
    looked at, too; NaN if there is none [s]."""

    simplest: ReplayedPlan | None = None
    """The simplest of the replayed plans that are nearly as fast as the best
    (`Replays.simplest_within`); None if none was looked for."""


class _WaitingPlan(NamedTuple):
    """What a bound is known of."""

    bound: float
    """Lower bound of the replay of what waits [s]."""
    number: int
    """Number in the order of arrival, which decides between equal bounds."""
    item: Configuration | Leaves
    """Configuration, or plans of one placement, that waits."""
    place: int = 0
    """Position of the next plan among those of a placement."""
    is_sharp: bool = False
    """Whether the bound is that of the plan's timeline."""


def search_replayed(
    network: Network,
    workload: Workload,
    spec: SearchSpec,
    replays: Replays,
    *,
    work: Work | None = None,
    progress: Progress | None = None,
) -> ReplayedSearch:
    """Find the launchable plan that replays fastest, with proof.

    Parameters
    ----------
    network, workload, spec
        The job, what to try and when to stop.
    replays
        What judges plans, and how.
    work
        What it is counted on, with limits instead of those of ``spec``.
    progress
        Called now and then.
    """
    if work is None:
        work = Work(limit=spec.work_limit, time_limit=spec.time_limit)
    shown = SearchProgress(show=progress)
    first = ordinary_answers(network, workload, spec, replays, work, shown)
    candidates = LaunchableCandidates.enumerate(
        network,
        workload,
        spec,
        by_layer=replays.by_layer,
        work=work,
        progress=shown,
    )
    frontier = _ReplayFrontier(candidates, replays, shown)
    frontier.begin_with(first)
    try:
        for done in first:
            frontier.deal_anew(done.priced, done.time)
        for plan in replays.starts:
            frontier.try_plan(plan)
        frontier.propose()
        steps = frontier.prove()
        frontier.try_layouts()
        frontier.fill(steps)
        frontier.sharpen()
        frontier.simplify()
    except LimitReachedError:
        pass
    spent = work.total()
    if frontier.is_proven:
        # The limit came with the end.
        spent = replace(spent, stopped_by="")
    else:
        candidates.statistics[LEFT] = frontier.num_left
        for plan in frontier.others:
            frontier.replay(plan)
    plans = frontier.best.ranked(frontier.ordinary, frontier.proposed, frontier.free)
    lower_bound = min([frontier.bound, *(plan.time for plan in plans)])
    if replays.trail is not None:
        best = (plans[0].priced, plans[0].time) if plans else (None, np.inf)
        replays.trail.finish(candidates, lower_bound, spent.stopped_by, *best)
    return ReplayedSearch(
        plans=plans,
        lower_bound=lower_bound,
        statistics=dict(candidates.statistics),
        spent=spent,
        infeasibility="" if plans else _why_not(frontier, spent),
        proposed_time=frontier.proposed_time,
        simplest=frontier.simplest_plan,
    )


class _ReplayFrontier:
    """What is left of the space, by its sharpest bounds."""

    def __init__(
        self,
        candidates: LaunchableCandidates,
        replays: Replays,
        progress: SearchProgress,
    ) -> None:
        self.candidates, self.judge = candidates, replays.judge
        self.trail = replays.trail
        """What is to be filled for a certificate."""
        self._charges = PlanCharges(candidates.network, candidates.workload)
        self._timelines = TimelineBounds(
            bounds=candidates.bounds,
            prices=candidates.prices,
            transfers=replays.transfers,
        )
        self.tolerance, self._progress = candidates.spec.proven_gap, progress
        self.best = BestReplayed(keep=candidates.spec.keep_best)
        """What the queue has replayed, and what the search was told to start with."""
        self.proposed = BestReplayed(keep=max(candidates.spec.proposals, 1))
        """What the dynamic program proposed and was replayed before the queue."""
        self.others: tuple[Plan, ...] = ()
        """What it proposed beside."""
        self.ordinary = BestReplayed(keep=candidates.spec.keep_best)
        """What a competent user would try, replayed before all else."""
        self.free = BestReplayed(keep=candidates.spec.keep_best)
        """Plans beyond those that are listed."""
        self._layouts = FreeLayouts(candidates=candidates)
        self._copies = SecondCopies(candidates=candidates)
        self.simplest = SimplestReplayed(
            workload=candidates.workload,
            rules=candidates.rules,
            within=replays.simplest_within,
        )
        """What is nearly as fast as the best."""
        self._times: dict[Plan, float] = {}
        self._fresh = candidates.queue()
        self._num_fresh = len(candidates) - candidates.statistics["out of memory"]
        self._num_bounded = 0
        self._waiting: list[_WaitingPlan] = []
        self._twins: list[_WaitingPlan] = []
        self._number = 0

    @property
    def bound(self) -> float:
        """The smallest bound left: no plan that was not replayed is faster [s]."""
        aside = self._twins[0].bound if self._twins else np.inf
        return min(self._fresh_bound, self._waiting_bound, aside)

    @property
    def _fresh_bound(self) -> float:
        """The bound of the next configuration, infinite if all were looked at [s]."""
        return self._fresh.bound

    @property
    def _waiting_bound(self) -> float:
        """The smallest bound of what was looked at, infinite if nothing waits [s]."""
        return self._waiting[0].bound if self._waiting else np.inf

    @property
    def is_proven(self) -> bool:
        """Whether no plan left can be faster by more than the tolerance."""
        return self.bound >= self._answer_time / (1.0 + self.tolerance)

    @property
    def _answer_time(self) -> float:
        """The fastest replay of the queue and of free layouts [s]."""
        return min(self.best.time, self.free.time)

    @property
    def num_left(self) -> int:
        """Configurations that are not finished with."""
        waiting = {
            plan.item.configuration if isinstance(plan.item, Leaves) else plan.item
            for plan in self._waiting
        }
        return self._num_fresh - self._num_bounded + len(waiting)

    @property
    def proposed_time(self) -> float:
        """Fastest replay of the proposals, NaN if there is none [s]."""
        time = self.proposed.time
        return time if np.isfinite(time) else np.nan

    def begin_with(self, plans: Sequence[ReplayedPlan]) -> None:
        """Take plans of the space that were replayed before all else."""
        self.candidates.statistics["plans replayed"] += len(plans)
        least = min((done.time for done in plans), default=np.inf)
        for done in plans:
            if self.candidates.is_searched(done.priced.plan):
                self._keep(self.ordinary, done)
                self._note(done.priced.plan, done.time, least * SLACK)

    def _keep(self, best: BestReplayed, done: ReplayedPlan) -> None:
        """Remember how long a plan takes, and keep it if it fits."""
        plan = done.priced.plan
        self._times[plan] = done.time
        if np.isfinite(done.time):
            best.add(done)
            self.simplest.add(done, self._least_time)
            self.candidates.work.note_plan()

    def propose(self) -> None:
        """Replay what the dynamic program proposes."""
        self._report("plan by a dynamic program")
        listed, beyond = proposed_plans(self.candidates, self._progress)
        number = self.candidates.spec.proposals
        self.others = tuple(priced.plan for priced in listed[number:])
        replayed = []
        for priced in listed[:number]:
            self._count(priced.plan)
            cutoff = self.proposed.time * SLACK
            replayed.append(self._replayed(priced.plan, cutoff, priced))
            self._keep(self.proposed, replayed[-1])
        for done in replayed:
            self.deal_anew(done.priced, done.time)
        for priced in beyond[:number]:
            if priced.iteration_time < self._beyond_limit:
                self._try_beyond(priced)

    def try_plan(self, plan: Plan) -> None:
        """Replay a plan, and count that."""
        if plan not in self._times:
            self._count(plan)
        self.replay(plan)

    def _count(self, plan: Plan) -> None:
        """Count the replay of a plan."""
        self.candidates.work.spend(replay_work(plan))

    def prove(self) -> int:
        """Go on until nothing left can be faster by more; return in how many steps."""
        steps, looked_around = 0, False
        while not self.is_proven:
            if steps % STEPS_PER_REPORT == 0:
                self._report()
            if not looked_around and self.candidates.work.share >= LOOKS_AROUND:
                looked_around = True
                self.look_around()
            self._advance()
            steps += 1
        return steps

    def look_around(self) -> None:
        """Replay plans of as many stages and replicas as the best, in other chunks.

        Where transfers meet, bounds of plans with chunks may all be below the replay of
        one without, so that the queue does not come to it before a limit does. What was
        left of the space stays as it was.
        """
        kept = self.best.ranked(self.ordinary, self.proposed)
        if not kept:
            return
        mine = configuration_of(kept[0].priced.plan)
        for other in self.candidates.with_other_chunks(mine):
            listed = self.candidates.leaves(other, self._cutoff)
            some = [leaves for leaves in listed if len(leaves.bounds)]
            if not some:
                continue
            leaves = min(some, key=lambda leaves: float(leaves.bounds[0]))
            for place in range(min(LOOKED_AT, len(leaves.bounds))):
                if leaves.bounds[place] >= self._beyond_limit:
                    break
                self.try_plan(plan := self.candidates.plan(leaves.leaf(place)))
                # Cut off here it would be later, when cutoffs have fallen.
                self._times.setdefault(plan, np.inf)

    def try_layouts(self) -> None:
        """Look for layouts beyond the listed ones in plans that the proof spared."""
        listed = [w for w in self._waiting if isinstance(w.item, Leaves)]
        for waiting in heapq.nsmallest(self.best.keep, listed):
            assert isinstance(waiting.item, Leaves)
            plan = self.candidates.plan(waiting.item.leaf(waiting.place))
            priced = price_plan(self.candidates.network, self.candidates.workload, plan)
            self.deal_anew(priced, waiting.bound)

    def fill(self, proved_in: int) -> None:
        """Replay some more plans, as alternatives, in half of the proof's steps."""
        limit = self._answer_time * SLACK
        try:
            for _ in range(max(8 * self.best.keep, proved_in // 2)):
                self._set_twins_aside()
                least = min(self._fresh_bound, self._waiting_bound)
                if len(self.best.fastest) >= self.best.keep or not least < limit:
                    return
                self._advance()
        finally:
            while self._twins:
                heapq.heappush(self._waiting, self._twins.pop())

    def _set_twins_aside(self) -> None:
        """Take from the front what is no alternative to what is kept.

        Of configurations those of kept sizes, whatever they recompute.
        """
        while self._waiting:
            item, place = self._waiting[0].item, self._waiting[0].place
            is_listed = isinstance(item, Leaves)
            sizes = item.configuration if isinstance(item, Leaves) else item
            mode = item.leaf(place).choice.recompute if isinstance(item, Leaves) else ""
            alike = Alternative(sizes.tp, sizes.pp, sizes.ep, sizes.cp, mode)
            kept = {known if is_listed else known[:-1] for known in self.best.fastest}
            if (alike if is_listed else alike[:-1]) not in kept:
                return
            self._twins.append(heapq.heappop(self._waiting))

    def sharpen(self) -> None:
        """Sharpen some of the least bounds left, which costs no replays."""
        for _ in range(8 * self.best.keep):
            replays = self._waiting and self._waiting[0].is_sharp
            if self.bound >= self._answer_time or (
                replays and self._waiting_bound < self._fresh_bound
            ):
                return
            self._advance()

    def simplify(self) -> None:
        """Replay simpler plans than those that were, if they may be fast enough.

        What was left of the space stays as it was.
        """
        limit = self.simplest.limit(self._least_time)
        if not self.simplest.within or not np.isfinite(limit):
            return
        leaves = simpler_leaves(self.candidates, self._left(limit), limit)
        for key, leaf in islice(leaves, MOST_SIMPLER):
            least = self.simplest.least(self._least_time)
            if least is not None and key >= least[0].key:
                return
            self._report("look for simpler plans")
            self.candidates.statistics["simpler plans tried"] += 1
            self.try_plan(self.candidates.plan(leaf))

    def _left(self, limit: float) -> Iterator[Left]:
        """Yield what is left within a limit, by its sharpest bounds."""
        yield from [(w.bound, w.item, w.place) for w in self._waiting]
        for bound, number in islice(self._fresh.ahead(), MOST_LEFT):
            if bound > limit:
                return
            yield bound, self.candidates[number], 0

    @property
    def simplest_plan(self) -> ReplayedPlan | None:
        """The simplest plan that is nearly as fast as the best, if there is any."""
        least = self.simplest.least(self._least_time)
        return None if least is None else least[1]

    def _advance(self) -> None:
        """Sharpen the smallest bound left, or replay the plan that it is of."""
        if self._fresh_bound <= self._waiting_bound:
            self._look_at_next()
        else:
            self._open(heapq.heappop(self._waiting))

    def _look_at_next(self) -> None:
        """Sharpen the bound of the next configuration; drop it if it does not fit."""
        configuration = self.candidates[self._fresh.number]
        floor = self._fresh_bound
        value = self.candidates.relaxed_bound(configuration, self._cutoff)
        if self.trail is not None:
            looked = RelaxedBound(value, self._cutoff)
            self.trail.relaxed[self._fresh.number] = looked
        self._fresh.drop()
        self._num_bounded += 1
        if np.isinf(value):
            self.candidates.statistics["out of memory"] += 1
        else:
            self._wait(max(value, floor), configuration)

    def _open(self, waiting: _WaitingPlan) -> None:
        """List the plans of a configuration, or replay the next one of a placement.

        What a limit keeps from being done goes on waiting.
        """
        try:
            if isinstance(waiting.item, Leaves):
                leaf = waiting.item.leaf(waiting.place)
                if waiting.is_sharp:
                    self.try_plan(plan := self.candidates.plan(leaf))
                    if self.trail is not None:
                        self.trail.note_tried(waiting.item, waiting.place, plan)
                    return
                relaxed = self.candidates.least_rates(waiting.item.configuration)
                sharp = self._timelines.bound(leaf, relaxed, self._answer_time)
                if self.trail is not None:
                    self.trail.note_timeline(waiting.item, sharp)
                bound = max(waiting.bound, sharp)
                heapq.heappush(
                    self._waiting, waiting._replace(bound=bound, is_sharp=True)
                )
                self._wait_for(waiting.item, waiting.place + 1, waiting.bound)
            else:
                cutoff = self._cutoff
                listed = list(self.candidates.leaves(waiting.item, cutoff))
                if self.trail is not None:
                    opened = OpenedPlans(cutoff, tuple(listed))
                    self.trail.opened[waiting.item] = opened
                self.candidates.statistics["configurations opened"] += 1
                for leaves in listed:
                    self._wait_for(leaves, 0, waiting.bound)
        except LimitReachedError:
            heapq.heappush(self._waiting, waiting)
            raise

    @property
    def _cutoff(self) -> float:
        """Bounds from here on need not be known [s]."""
        return self._least_time * SLACK

    @property
    def _least_time(self) -> float:
        """The fastest replay so far, infinite if there is none [s]."""
        return min(self._answer_time, self.proposed.time, self.ordinary.time)

    def _wait(self, bound: float, configuration: Configuration) -> None:
        self._number += 1
        waiting = _WaitingPlan(bound, self._number, configuration)
        heapq.heappush(self._waiting, waiting)

    def _wait_for(self, leaves: Leaves, index: int, floor: float) -> None:
        """Wait for a plan of a placement, which is no faster than a floor."""
        if index < len(leaves.bounds):
            self._number += 1
            bound = max(float(leaves.bounds[index]), floor)
            heapq.heappush(
                self._waiting, _WaitingPlan(bound, self._number, leaves, index)
            )

    def replay(self, plan: Plan) -> None:
        """Replay a plan, whatever the limit, and keep it if it is among the best."""
        kept = self.best.cutoff(plan)
        near = self.simplest.limit(self._least_time) if self.simplest.within else 0.0
        done = self._replayed(plan, min(max(kept, near), self._cutoff))
        if done.time < min(kept, self._cutoff):
            self.best.add(done)
            self.candidates.work.note_plan()
            self.deal_anew(done.priced, done.time)
        self.simplest.add(done, self._least_time)
        self._report()

    def deal_anew(self, priced: PricedPlan, time: float) -> None:
        """Replay layouts beyond those that are listed, from a plan of the space.

        Those that may be faster than the best plan by more than the tolerance; none if
        the plan's replay, or its bound, is no alternative [s].
        """
        if not time < self._cutoff:
            return
        for other in self._layouts.proposed(priced, self._beyond_limit):
            self._try_beyond(other)
        for other in self._copies.proposed(priced, self._beyond_limit):
            self._try_beyond(other, OTHER_COPIES)

    @property
    def _beyond_limit(self) -> float:
        """Plans beyond the listed layouts must be planned to take less [s]."""
        return self._least_time / (1.0 + self.tolerance)

    def _try_beyond(self, priced: PricedPlan, kind: str = OTHER_LAYOUTS) -> None:
        """Replay a plan beyond those that are listed."""
        self._count(priced.plan)
        self.candidates.statistics[kind] += 1
        cutoff = self._least_time
        time = self.judge(priced, cutoff)
        self._note(priced.plan, time, cutoff)
        if time < cutoff:
            self.free.add(ReplayedPlan(time=time, priced=priced))
            self.candidates.work.note_plan()

    def _replayed(
        self, plan: Plan, cutoff: float, priced: PricedPlan | None = None
    ) -> ReplayedPlan:
        """Replay a plan, unless that was done before; it may have been priced."""
        candidates = self.candidates
        if plan in self._times:
            candidates.statistics["proposals met again"] += 1
            time = self._times[plan]
        else:
            candidates.statistics["plans replayed"] += 1
            time = self.judge(charged := self._charges(plan), cutoff)
            self._note(plan, time, cutoff)
            if not np.isfinite(time):
                # Nobody keeps it: most plans are cut off.
                return ReplayedPlan(time=time, priced=charged)
        if priced is None:
            priced = price_plan(candidates.network, candidates.workload, plan)
        return ReplayedPlan(time=time, priced=priced)

    def _note(self, plan: Plan, time: float, cutoff: float) -> None:
        """Note a replay for a certificate, if one is asked for."""
        if self.trail is not None:
            self.trail.replays[plan] = ReplayTime(time, cutoff)

    def _report(self, doing: str = "") -> None:
        """Say how good the best plan so far is, beside what is done."""
        work, statistics = self.candidates.work, self.candidates.statistics
        self._progress.best, self._progress.bound = self._least_time, self.bound
        doing = doing or f"{statistics['plans replayed']} plans replayed"
        self._progress(doing, min(work.share, 1.0) or None)


def _why_not(frontier: _ReplayFrontier, spent: Spent) -> str:
    """Say why there is no plan: what stopped the search, or what fits nowhere."""
    if not spent.is_stopped:
        return _infeasibility(frontier.candidates)
    number, left = len(frontier.candidates), frontier.num_left
    return stopped_sentence(spent, f"{number - left:,} of {number:,} configurations")


def _infeasibility(candidates: LaunchableCandidates) -> str:
    """Say what stops every plan of a space that can be launched.

    In one sentence, and what fills the fullest stage of the plan that needs the least
    memory.
    """
    if not len(candidates):
        reasons = ", ".join(
            f"{count} {why}" for why, count in candidates.statistics.items() if count
        )
        return (
            f"Rules of {candidates.rules.framework} leave nothing of the search space: "
            f"{reasons or 'no sizes divide the batch and the devices'}."
        )
    memory = candidates.bounds.memory
    name = candidates.workload.accelerator.name
    if memory <= 0:
        return f"The memory reserve leaves nothing of {name}'s memory to plan with."
    leaf = candidates.thriftiest()
    priced = price_plan(candidates.network, candidates.workload, candidates.plan(leaf))
    workload = candidates.workload
    kinds = candidates.listing.kinds(leaf.placement)
    stage = fullest_stage(priced, kinds.scarcity)
    needed, memory = priced.stages[stage].peak_memory, memory / kinds.scarcity[stage]
    name = workload.smallest_of(priced.plan.stages[stage].devices).name
    return (
        f"Out of memory: the least demanding configuration by rules of "
        f"{candidates.rules.framework} "
        f"({sizes_label(leaf.configuration)}) needs {format_size(needed)} per device, "
        f"and {name} has {format_size(memory)} to give, "
        f"{format_size(needed - memory)} too little. {memory_sentence(priced, stage)}"
    )
