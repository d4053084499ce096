"""Why not this configuration? Any that a user names, beside the best of the space.

Both are found by the scenario's own search and compared by what that minimises: the
time of the replay, or the closed form of the planned objective.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from planner.cost.objective import PricedPlan, largest_term
from planner.cost.pricing import price_plan
from planner.explain.infeasibility import explain_infeasibility
from planner.explain.request import Request, broken_rule, exclusions, nothing_left
from planner.search.best_first import search
from planner.search.candidates import CandidateSet
from planner.search.launchable import broken_rules
from planner.search.launchable_sizes import LaunchFacts
from planner.search.replayed.beyond import search_by_replay
from planner.search.replayed.candidates import LaunchableCandidates
from planner.search.replayed.replays import ReplayedPlan, Replays
from planner.search.replayed.search import ReplayedSearch
from planner.search.space import SearchSpec
from planner.search.thriftiest import thriftiest_plan
from planner.step.execution import Workload
from planner.step.memory import is_within
from planner.step.plan import Plan
from planner.work import Progress, Spent, Work
from topologies import Network
from topologies.errors import short_repr

SAME = 1e-9
"""Times that differ by less than this part count as equal: the sums differ in order."""

REPLAYED, CHARGED = "simulated less planned", "charged, though hidden"
"""Names of what the time that a search minimises has beside the planned time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What became of the values that a user named."""

    request: Request
    """Values that the user named."""

    priced: PricedPlan | None
    """Best plan with the requested values; if none fits, the one that needs the least
    memory, priced as if there were enough. None if a rule forbids every one."""

    time: float
    """What the search minimises of the priced plan: its replayed time, or its closed
    form [s]; NaN without one."""

    winner: PricedPlan | None
    """Best plan of the scenario's space; None if nothing fits."""

    winner_time: float
    """As `time`, of the winner [s]."""

    by_replay: bool
    """Whether `time` is that of a replay."""

    rule: str
    """Rule of the space that the request breaks, as a clause; empty if none is."""

    excluded: tuple[str, ...]
    """What leaves the requested values out of the scenario's space, as clauses:
    settings, or rules of the framework."""

    memory: float
    """Memory that plans may use of each device, where devices differ of those of
    `lacking_stage` [byte]."""

    lacking_stage: int
    """Stage of the priced plan whose devices have the least room left; 0 without a
    plan."""

    winner_memory: float
    """As `memory`, of the winner's `winner_stage` [byte]."""

    winner_stage: int
    """As `lacking_stage`, of the winner."""

    lower_bound: float
    """Lower bound of what the search minimises over the scenario's space [s]; infinite
    if nothing fits."""

    infeasibility: str
    """Why no plan of the scenario's space was found, and what would help; empty if
    one was."""

    spent: Spent
    """Work of the scenario's search, and which limit stopped it, if one did."""

    __repr__ = short_repr

    @property
    def fits(self) -> bool:
        """Whether the priced plan has enough memory."""
        if self.priced is None:
            return False
        needed = self.priced.stages[self.lacking_stage].peak_memory
        return is_within(needed, self.memory)

    @property
    def missing_memory(self) -> float:
        """What the fullest stage's devices lack, negative if they have room [byte]."""
        assert self.priced is not None
        return self.priced.stages[self.lacking_stage].peak_memory - self.memory

    @property
    def ratio(self) -> float:
        """`time` over the winner's; needs both plans."""
        return self.time / self.winner_time

    @property
    def verdict(self) -> str:
        """What became of it, in one word or two.

        ``"outside"`` the space, ``"does not fit"``, ``"winner"``, ``"equal"`` to it,
        ``"slower"``, ``"faster"`` (possible only where the scenario leaves the named
        values out), ``"fits"`` where no plan of the scenario's space was found.
        """
        if self.priced is None:
            return "outside"
        if not self.fits:
            return "does not fit"
        if self.winner is None:
            return "fits"
        if self.priced.plan == self.winner.plan:
            return "winner"
        if abs(self.ratio - 1.0) <= SAME:
            return "equal"
        return "slower" if self.ratio > 1.0 else "faster"

    def differences(self) -> Mapping[str, float]:
        """Return each term less the winner's; they add up to that of the times [s]."""
        assert self.priced is not None
        assert self.winner is not None
        priced, theirs = self.terms_of(self.priced), self.terms_of(self.winner)
        return {name: time - theirs[name] for name, time in priced.items()}

    def terms_of(self, priced: PricedPlan) -> Mapping[str, float]:
        """Return one of the two plans' terms; they add up to its time [s]."""
        time = self.time if priced is self.priced else self.winner_time
        beside = REPLAYED if self.by_replay else CHARGED
        return {**priced.terms, beside: time - priced.iteration_time}

    def largest_difference(self) -> tuple[str, float]:
        """Return the term that does most for the difference of the times, and it [s].

        As `largest_term`.
        """
        terms = self.differences()
        name = largest_term(terms)
        return name, terms[name]


class _Job(NamedTuple):
    """What is planned, and how plans are judged."""

    network: Network
    """Network that plans are placed on."""
    workload: Workload
    """Model, job and device."""
    spec: SearchSpec
    """Space of the scenario."""
    replays: Replays | None
    """What replays plans; None where planned times decide."""
    progress: Progress | None
    """Called now and then."""

    @property
    def keeps_rules(self) -> bool:
        """Whether the scenario's search looks at launchable plans alone."""
        return self.replays is not None and self.spec.launchable

    def search(self, spec: SearchSpec) -> ReplayedSearch:
        """Search a space as the scenario's is searched."""
        if self.replays is None:
            return self.search_planned(spec)
        return search_by_replay(
            self.network, self.workload, spec, self.replays, progress=self.progress
        )

    def search_planned(self, spec: SearchSpec) -> ReplayedSearch:
        """Search all splits of a space for the least planned time."""
        result = search(self.network, self.workload, spec, progress=self.progress)
        return ReplayedSearch(
            plans=tuple(self.judged(priced) for priced in result.plans),
            lower_bound=result.lower_bound,
            statistics=result.statistics,
            spent=result.spent,
            infeasibility=result.infeasibility,
        )

    def judged(self, priced: PricedPlan) -> ReplayedPlan:
        """Return a plan with its time, replayed if that decides.

        What has too many passes to be replayed takes as long as planned.
        """
        if self.replays is None:
            return ReplayedPlan(time=priced.closed_form_time, priced=priced)
        time = self.replays.judge(priced, math.inf)
        return ReplayedPlan(
            time=time if math.isfinite(time) else priced.iteration_time, priced=priced
        )

    def launchable_plan(self, spec: SearchSpec) -> ReplayedPlan | None:
        """Return the fastest launchable plan, else the thriftiest; None without one."""
        result = self.search(spec)
        if result.plans:
            return result.plans[0]
        candidates = LaunchableCandidates.enumerate(
            self.network, self.workload, spec, by_layer=True, work=Work()
        )
        if not len(candidates):
            return None
        plan = candidates.plan(candidates.thriftiest())
        return self.judged(price_plan(self.network, self.workload, plan))

    def any_plan(self, spec: SearchSpec) -> ReplayedPlan | None:
        """Return the best plan of all splits, else the thriftiest; None without one."""
        result = self.search_planned(spec) if self.keeps_rules else self.search(spec)
        if result.plans:
            return result.plans[0]
        candidates = CandidateSet.enumerate(self.network, self.workload, spec)
        if not len(candidates):
            return None
        return self.judged(thriftiest_plan(candidates).priced)

    def refusal(self, plan: Plan, winner: Plan | None) -> str:
        """Say what keeps the framework from a plan, and not from the winner."""
        rules = self.spec.rules
        if not self.keeps_rules or rules is None:
            return ""
        idle = self.spec.idle_devices
        facts = LaunchFacts.of(self.workload, self.network, idle_devices=idle)
        broken = broken_rules(plan, rules, facts)
        known = broken_rules(winner, rules, facts) if winner is not None else ()
        same = {rule.rule for rule in known}
        reasons = "; ".join(
            f"{rule.rule.replace('_', ' ')}: {rule.found}; expected: {rule.expected}"
            for rule in broken
            if rule.rule not in same
        )
        return f"{rules.framework} cannot launch it ({reasons})" if reasons else ""


def explain(
    network: Network,
    workload: Workload,
    spec: SearchSpec,
    request: Request,
    *,
    replays: Replays | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """Price what a user names beside the best plan of the scenario's space.

    Values that are not named are searched, within what the scenario allows. Two
    searches: the scenario's own, so that the winner is the plan that `nestsim plan`
    prints, and one of the named values alone. What can be launched comes first; where
    no such plan has the named values, one of all splits is priced, and what keeps it
    from being launched is said. A plan of the space that replays faster than the
    winner, by less than the search has proven, is the winner.

    Parameters
    ----------
    network, workload, spec
        The job, and the scenario's space.
    request
        What is named.
    replays
        What judges plans, where the objective is the replayed time; None for planned
        times.
    progress
        Called now and then.
    """
    if spec.objective != "replayed":
        replays = None
    job = _Job(network, workload, spec, replays, progress)
    result = job.search(spec)
    best = result.plans[0] if result.plans else None
    named, rule = _named_plan(job, request)
    excluded = [*exclusions(spec, request)]
    if named is not None:
        winning = best.priced.plan if best is not None else None
        excluded += filter(None, [job.refusal(named.priced.plan, winning)])
    memory, lacking = _room(workload, spec, named)
    if named is not None and best is not None and not excluded:
        needed = named.priced.stages[lacking].peak_memory
        best = named if named.time < best.time and is_within(needed, memory) else best
    winner_memory, winner_stage = _room(workload, spec, best)
    return Explanation(
        request=request,
        priced=named.priced if named else None,
        time=named.time if named else math.nan,
        winner=best.priced if best else None,
        winner_time=best.time if best else math.nan,
        by_replay=replays is not None,
        rule=rule,
        excluded=tuple(excluded),
        memory=memory,
        lacking_stage=lacking,
        winner_memory=winner_memory,
        winner_stage=winner_stage,
        lower_bound=result.lower_bound,
        infeasibility=result.infeasibility
        if result.spent.is_stopped
        else explain_infeasibility(
            network, workload, spec, result.infeasibility, progress=progress
        ),
        spent=result.spent,
    )


def _named_plan(job: _Job, request: Request) -> tuple[ReplayedPlan | None, str]:
    """Return the best plan with the named values, or the rule that forbids it."""
    spec, narrowed = job.spec, request.narrowed(job.spec)
    named = job.launchable_plan(narrowed) if job.keeps_rules else None
    if named is not None:
        return named, ""
    rule = broken_rule(job.workload, spec, request, job.network.num_devices) or ""
    if not rule:
        named = job.any_plan(narrowed)
        rule = "" if named else nothing_left(spec, request)
    return named, rule


def _room(
    workload: Workload, spec: SearchSpec, named: ReplayedPlan | None
) -> tuple[float, int]:
    """Return what the devices of the fullest stage have [byte], and which it is."""
    if named is None:
        return workload.memory_on(reserve=spec.memory_reserve), 0
    plan, costs = named.priced.plan, named.priced.stages
    rooms = [
        workload.memory_on(stage.devices, spec.memory_reserve) for stage in plan.stages
    ]
    missing = [cost.peak_memory - room for cost, room in zip(costs, rooms, strict=True)]
    lacking = missing.index(max(missing))
    return rooms[lacking], lacking
