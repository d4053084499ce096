"""Why not this configuration? Any that a user names, beside the best of the space."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.cost.objective import PricedPlan
from planner.explain.infeasibility import explain_infeasibility
from planner.explain.request import Request, broken_rule, exclusions, nothing_left
from planner.search.best_first import search
from planner.search.candidates import CandidateSet
from planner.search.space import SearchSpec
from planner.search.thriftiest import thriftiest_plan
from planner.step.execution import Workload
from planner.step.room import is_within
from planner.work import Progress, Spent
from topologies import Network
from topologies.short_repr import short_repr

SAME = 1e-9
"""Times that differ by less than this part count as equal: the sums differ in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What became of the values that a user named."""

    request: Request
    """Values that the user named."""

    priced: PricedPlan | None
    """Best plan with the requested values; if none fits, the one that needs the least
    memory, priced as if there were enough. None if a rule forbids every one."""

    winner: PricedPlan | None
    """Best plan of the scenario's space; None if nothing fits."""

    rule: str
    """Rule of the space that the request breaks, as a clause; empty if none is."""

    excluded: tuple[str, ...]
    """Settings of the scenario that leave the requested values out, as clauses."""

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
    """Lower bound of what the search minimises (`PricedPlan.closed_form_time`) over the
    scenario's space [s]; infinite if nothing fits."""

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
        """Iteration time over the winner's; needs both plans."""
        assert self.priced is not None
        assert self.winner is not None
        return self.priced.iteration_time / self.winner.iteration_time

    @property
    def verdict(self) -> str:
        """What became of it, in one word or two.

        ``"outside"`` the space, ``"does not fit"``, ``"winner"``, ``"equal"`` to it,
        ``"slower"``, ``"faster"`` (possible only where the scenario leaves the named
        values out, a limit stopped its search, or what the search minimises orders the
        two otherwise), ``"fits"`` where no plan of the scenario's space was found.
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
        theirs = self.winner.terms
        return {name: time - theirs[name] for name, time in self.priced.terms.items()}

    def largest_difference(self) -> tuple[str, float]:
        """Return the term that does most for the difference of the times, and it [s].

        The first of equals.
        """
        terms = self.differences()
        sign = 1.0 if sum(terms.values()) >= 0.0 else -1.0
        name = max(terms, key=lambda term: sign * terms[term])
        return name, terms[name]


def explain(
    network: Network,
    workload: Workload,
    spec: SearchSpec,
    request: Request,
    *,
    progress: Progress | None = None,
) -> Explanation:
    """Price what a user names beside the best plan of the scenario's space.

    Values that are not named are searched, within what the scenario allows. Two
    searches: the scenario's own, so that the winner is the plan that `nestsim plan`
    prints, and one of the named values alone.
    """
    found = search(network, workload, spec, progress=progress)
    rule = broken_rule(workload, spec, request, network.num_devices) or ""
    priced = None
    if not rule:
        narrowed = request.narrowed(spec)
        priced = _best_plan(network, workload, narrowed, progress)
        rule = "" if priced else nothing_left(spec, request)
    memory, lacking = _room(workload, spec, priced)
    winner = found.plans[0] if found.plans else None
    winner_memory, winner_stage = _room(workload, spec, winner)
    return Explanation(
        request=request,
        priced=priced,
        winner=winner,
        rule=rule,
        excluded=tuple(exclusions(spec, request)),
        memory=memory,
        lacking_stage=lacking,
        winner_memory=winner_memory,
        winner_stage=winner_stage,
        lower_bound=found.lower_bound,
        infeasibility=found.infeasibility
        if found.spent.is_stopped
        else explain_infeasibility(
            network, workload, spec, found.infeasibility, progress=progress
        ),
        spent=found.spent,
    )


def _room(
    workload: Workload, spec: SearchSpec, priced: PricedPlan | None
) -> tuple[float, int]:
    """Return what the devices of the fullest stage have [byte], and which it is."""
    if priced is None:
        return workload.memory_on(reserve=spec.memory_reserve), 0
    stages = priced.plan.stages
    rooms = [workload.memory_on(one.devices, spec.memory_reserve) for one in stages]
    missing = [
        cost.peak_memory - room for cost, room in zip(priced.stages, rooms, strict=True)
    ]
    lacking = missing.index(max(missing))
    return rooms[lacking], lacking


def _best_plan(
    network: Network,
    workload: Workload,
    spec: SearchSpec,
    progress: Progress | None,
) -> PricedPlan | None:
    """Return the best plan that fits, else the thriftiest; None if there is none."""
    found = search(network, workload, spec, progress=progress)
    if found.plans:
        return found.plans[0]
    candidates = CandidateSet.enumerate(network, workload, spec)
    return thriftiest_plan(candidates).priced if len(candidates) else None
