"""What every planner takes, does and returns, so that they can be compared.

A planner proposes plans of one documented space (`planner.search.space`); what it may
see of the network is part of its definition. Whatever it believes, its plans are priced
by one evaluator (`planner.cost.pricing.price_plan`) and kept only if they fit in memory
(`planner.step.memory`); where none is left, it says why not.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan
from planner.search.space import SearchSpec, configuration_of
from planner.search.thriftiest import memory_sentence
from planner.step.execution import Workload
from planner.step.memory import (
    has_room,
    host_room,
    host_sentence,
    is_within,
    stage_rooms,
)
from planner.step.plan import Plan
from planner.work import Progress, Spent, Work
from topologies import Network
from topologies.accelerators import Host
from topologies.units import format_size

if TYPE_CHECKING:
    from planner.plans.spec import PlanSpec
    from planner.search.replayed.replays import Replays

STARTS = ("manual", "random", "dp")
"""Where a Metropolis walk may start: the plan of Megatron's heuristics, a random one
that fits, or one with data parallelism alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """Settings of planners beside the space; each reads what concerns it."""

    time_limit: float | None = None
    """Time after which a search returns what it has, once it has a plan; None for
    `SearchSpec.time_limit` [s]."""

    seeds: tuple[int, ...] = tuple(range(10))
    """Seeds of Metropolis walks, one walk for each."""

    budget: int = 4000
    """Steps of each walk, as TopoOpt's scripts have it."""

    init: str = "manual"
    """Where walks start, a name of `STARTS`; at random where that does not fit."""

    alpha: float = 20.0
    """Greed of Metropolis walks: a plan that is slower by the fraction ``x`` is
    accepted with probability ``exp(-alpha x)``."""

    fixed: "PlanSpec | Plan | None" = None
    """Plan that the planner ``fixed`` proposes."""

    replays: "Replays | None" = field(default=None, repr=False, compare=False)
    """How plans are judged by replay; None where only the planner's model does."""

    def allowance(self, spec: SearchSpec) -> Work:
        """Return what a search of a space may spend: the same for every planner."""
        limit = spec.time_limit if self.time_limit is None else self.time_limit
        return Work(limit=spec.work_limit, time_limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerOutcome:
    """What a planner found, what it believes of it, and what that took.

    `Planner.find` puts in who looked, and how long that took.
    """

    planner: str = ""
    """Name of the planner."""

    plans: tuple[PricedPlan, ...]
    """Distinct configurations that fit, best first by the common evaluator; empty if
    nothing does."""

    belief: float = math.nan
    """Iteration time of the planner's best plan by its own model; NaN if it has none
    [s]."""

    sees: str = ""
    """What the planner sees of the network, in one sentence."""

    spent: Spent
    """Work of the search, and which limit stopped it, if one did."""

    search_time: float = math.nan
    """Wall time of the search [s]."""

    evaluations: int
    """Number of plans or parts of plans that were priced; of configurations for
    ``nest``."""

    lower_bound: float | None = None
    """Lower bound of the time of all plans of the space; None from planners that prove
    nothing [s]."""

    covers_space: bool = False
    """Whether finding nothing means that nothing of the space fits."""

    why_not: str = ""
    """Constraint or limit that stopped the planner, in a sentence; empty if it found a
    plan."""

    statistics: Mapping[str, int] = field(default_factory=dict)
    """Number of the things looked at by what became of them; empty from planners that
    do not count."""

    proposed_time: float = math.nan
    """Fastest replay of the plans that a dynamic program proposed to the search, NaN
    if there was none [s]."""

    launchable_time: float = math.nan
    """Fastest replay of its plans that the framework can launch, NaN if there is none
    or nobody looked [s]."""

    free_time: float = math.nan
    """Fastest replay of its plans that no framework's rules hold; NaN if it had only
    such as keep them, because it was held to them [s]."""

    refused: tuple[Plan, ...] = ()
    """Its own first plan that fits and that the framework cannot launch, where rules
    hold; empty if there is none."""

    replayed_times: tuple[float, ...] = ()
    """Iteration times of `plans` in the replay, rising; empty if they were ordered
    otherwise [s]. `lower_bound` is one of replayed times then."""

    simplest: PricedPlan | None = None
    """The simplest plan that replays nearly as fast as the best; None where none was
    looked for."""

    notes: tuple[str, ...] = ()
    """What else is to be known of what was found, in sentences."""

    spread: tuple[float, ...] = ()
    """Best iteration time of each seed, in their order; infinite where a walk found
    nothing; empty from planners without seeds [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a planner is asked for, and the account that its work goes on."""

    network: Network
    """Cluster, of which a planner looks at what its definition lets it see."""

    workload: Workload
    """Model, job and device."""

    spec: SearchSpec
    """What may be tried, and how many plans to keep."""

    settings: PlannerSettings
    """Seeds, budgets and the like."""

    work: Work
    """Account that the search is counted on, with its limits."""

    progress: Progress | None
    """Takes reports now and then; None for no reports."""

    @property
    def problem(self) -> tuple[Network, Workload, SearchSpec]:
        """Cluster, job and space."""
        return self.network, self.workload, self.spec

    def report(self, doing: str, share: float | None = None) -> None:
        """Report what the planner does, and what share of it is done."""
        if self.progress is not None:
            self.progress(doing, share)


class Planner(ABC):
    """Proposes plans for a workload on a cluster."""

    name: ClassVar[str]
    """What scenarios call the planner."""

    sees: ClassVar[str]
    """What the planner sees of the network, in one sentence."""

    def find(
        self,
        network: Network,
        workload: Workload,
        spec: SearchSpec,
        settings: PlannerSettings,
        *,
        progress: Progress | None = None,
    ) -> PlannerOutcome:
        """Propose plans.

        Parameters are those of `PlanRequest`.

        Returns
        -------
        PlannerOutcome
            The same for the same arguments, unless there is a limit of time.
        """
        work = settings.allowance(spec)
        request = PlanRequest(
            network=network,
            workload=workload,
            spec=spec,
            settings=settings,
            work=work,
            progress=progress,
        )
        outcome = self.answer(request)
        return replace(
            outcome, planner=self.name, sees=self.sees, search_time=work.elapsed
        )

    @abstractmethod
    def answer(self, request: PlanRequest) -> PlannerOutcome:
        """Return what the planner finds, but for its name and the time it took."""


NO_SIZES = "Devices: the search space has no sizes for this cluster and batch."
"""Why a planner finds nothing where the space is empty."""


def fits(workload: Workload, spec: SearchSpec, plan: Plan, host: Host | None) -> bool:
    """Tell whether a plan fits in the memory that plans may use.

    Parameters
    ----------
    workload, spec
        The job, and what plans leave free.
    plan
        The plan.
    host
        What stands behind each device, for plans that offload; None for nothing.
    """
    rooms = stage_rooms(workload, plan, spec.memory_reserve)
    return has_room(workload, plan, rooms, host_room(host))


def priced_best_first(
    network: Network, workload: Workload, plans: Iterable[Plan]
) -> tuple[PricedPlan, ...]:
    """Price plans by the common evaluator; ties go to the smaller configuration."""
    priced = [price_plan(network, workload, plan) for plan in plans]
    return tuple(
        sorted(
            priced, key=lambda item: (item.iteration_time, configuration_of(item.plan))
        )
    )


def too_little_memory(
    network: Network, workload: Workload, spec: SearchSpec, plan: Plan
) -> str:
    """Say by how much a plan does not fit, and what fills its fullest stage."""
    priced = price_plan(network, workload, plan)
    rooms = stage_rooms(workload, plan, spec.memory_reserve)
    peaks = [stage.peak_memory for stage in priced.stages]
    worst = max(range(len(peaks)), key=lambda stage: peaks[stage] - rooms[stage])
    if is_within(peaks[worst], rooms[worst]):
        return host_sentence(priced.host_memory, network.host)
    name = workload.smallest_of(plan.stages[worst].devices).name
    return (
        f"it needs {format_size(peaks[worst])} per device and {name} "
        f"has {format_size(max(rooms[worst], 0.0))} to give. "
        f"{memory_sentence(priced, worst)}"
    )


def node_levels(network: Network) -> tuple[int, int, int]:
    """Return what planners see that know nodes alone.

    Returns
    -------
    tuple
        Devices of a node, its outermost level, and the next one if there is one.
    """
    rules, last = network.rules, len(network.levels) - 1
    if rules is None:
        return network.block_sizes[0], 0, min(1, last)
    inside = min(rules.node_levels - 1, last)
    return rules.node_size, inside, min(inside + 1, last)


def allows(sizes: tuple[int, ...] | None, size: int) -> bool:
    """Tell whether a space has a size; all of them where it lists none."""
    return sizes is None or size in sizes


def believed_time(plans: tuple[PricedPlan, ...]) -> float:
    """Return what the planned objective is for the first plan, NaN without one [s]."""
    return plans[0].closed_form_time if plans else math.nan
