"""Find a planner's plans for a scenario: the best of them in the replay comes first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nestsim.cluster import device_slowdowns
from nestsim.lowering.lower import lower_plan
from nestsim.scenario.settings import Scenario
from nestsim.simulator.replay import replayed_time
from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan
from planner.explain.infeasibility import shortfall_and_remedy
from planner.planners.manual import manual_plans
from planner.planners.protocol import PlannerOutcome, PlannerSettings, fits
from planner.planners.registry import PLANNERS
from planner.search.best_first import search
from planner.search.replayed.search import Replays
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from planner.step.plan import Plan
from planner.work import Progress, Work
from topologies.errors import InputError
from topologies.network import Network

MOST_PLANNED = 40
"""Plans of the search for the planned time that a stopped search looks at, as far as
they can be launched."""

PLANNED_SHARE = 4
"""Divisor of the search's own limits: the part that finding plans by their planned time
may take."""

_BEYOND = (
    "A plan that the framework cannot launch would fit: search.launchable = false "
    "shows it."
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluator:
    """Judges the plans of one scenario on one network by replay."""

    scenario: Scenario
    """Scenario with its search and the settings of its replay."""

    network: Network
    """Network of the cluster."""

    workload: Workload
    """Model, job and device."""

    def judge(self, priced: PricedPlan, cutoff: float = math.inf) -> float:
        """Return the replayed iteration time of a plan [s].

        Infinite if the step has too many passes to be replayed; from the cutoff on any
        longer time may stand for it.
        """
        settings = self.scenario.simulation.replay
        slowdown = device_slowdowns(self.scenario, self.network.num_devices)
        try:
            work = lower_plan(
                self.network,
                self.workload,
                priced,
                settings,
                slowdown=slowdown,
                memory=False,
            )
        except InputError:
            return math.inf
        return replayed_time(self.network, work, settings, cutoff=cutoff)

    def find(
        self,
        planner: str,
        settings: PlannerSettings,
        *,
        starts: Sequence[Plan] = (),
        progress: Progress | None = None,
    ) -> PlannerOutcome:
        """Return the plans of a planner, best first.

        By their replays if that is the scenario's objective: a planner that does not
        look at replays is taken by the best replayed one of the plans that it proposes.

        Parameters
        ----------
        planner
            A name of `planner.planners.registry.PLANNERS`.
        settings
            Seeds, budgets and the like.
        starts
            Plans to choose from beside those that the planner proposes.
        progress
            Called with every step.

        Raises
        ------
        InputError
            If the planner refuses the space, or the plan that it is given.
        """
        spec = self.scenario.search
        if spec.objective == "replayed":
            by_layer = self.scenario.simulation.replay.granularity == "layer"
            replays = Replays(
                judge=self.judge,
                by_layer=by_layer,
                starts=tuple(starts),
                ordinary=self._ordinary_plans,
            )
            settings = replace(settings, replays=replays)
        try:
            outcome = PLANNERS[planner].find(
                self.network, self.workload, spec, settings, progress=progress
            )
        except InputError as error:
            raise (error.at("search") if error.where == "planner" else error) from None
        if planner == "nest" and not (outcome.plans or outcome.spent.is_stopped):
            return replace(outcome, why_not=self._why_not(outcome, progress))
        if spec.objective == "planned" or planner == "nest":
            return outcome
        plans = [*outcome.plans, *self._priced(starts if outcome.plans else ())]
        times = [self.judge(priced) for priced in plans]
        order = sorted(range(len(times)), key=times.__getitem__)
        return replace(
            outcome,
            plans=tuple(plans[index] for index in order),
            replayed_times=tuple(times[index] for index in order),
        )

    def _priced(self, plans: Sequence[Plan]) -> list[PricedPlan]:
        """Price plans that fit in memory."""
        network, workload = self.network, self.workload
        return [
            price_plan(network, workload, plan)
            for plan in plans
            if fits(workload, self.scenario.search, plan)
        ]

    def _ordinary_plans(self) -> Sequence[Plan]:
        """Return what a competent user would try, and the best as planned."""
        spec = self.scenario.search
        try:
            plans = manual_plans(self.network, self.workload, spec, Work())
            wider = replace(spec, keep_best=max(MOST_PLANNED, spec.keep_best))
            outcome = search(self.network, self.workload, wider, work=_share_of(spec))
        except InputError:
            return ()
        return (
            *plans[: spec.keep_best],
            *(priced.plan for priced in outcome.plans),
        )

    def _why_not(self, outcome: PlannerOutcome, progress: Progress | None) -> str:
        """Say why a search found nothing, and what would change that."""
        spec = self.scenario.search
        if spec.objective == "replayed" and spec.launchable:
            wider = replace(spec, keep_best=1)
            unlaunchable = search(self.network, self.workload, wider, progress=progress)
            if unlaunchable.plans:
                return f"{outcome.why_not} {_BEYOND}"
        return shortfall_and_remedy(
            self.network, self.workload, spec, outcome.why_not, progress=progress
        )


def _share_of(spec: SearchSpec) -> Work:
    """Return what finding ordinary plans may spend beside a search that was stopped."""
    work, time = spec.work_limit, spec.time_limit
    return Work(
        limit=None if work is None else max(work // PLANNED_SHARE, 1),
        time_limit=None if time is None else time / PLANNED_SHARE,
    )
