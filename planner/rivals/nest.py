"""The searches of this project (``nest``) and the plan of the scenario (``fixed``)."""

import math
from dataclasses import dataclass

from planner.plans.build import build_plan, with_algorithms
from planner.plans.checks import check_plan
from planner.rivals.protocol import (
    PlannerOutcome,
    PlannerSettings,
    believed_time,
    fits,
    priced_best_first,
    too_little_memory,
)
from planner.search.best_first import search
from planner.search.replayed.search import Replays, search_by_replay
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from planner.step.plan import Plan
from planner.work import PLAN, Progress, Work
from topologies import InputError, Network


@dataclass(frozen=True, slots=True)
class Nest:
    """Best-first search: for the fastest replay, or for the least planned time.

    The first where the space asks for it and something replays plans.
    """

    name: str = "nest"
    """Name of the planner."""

    sees: str = "Every link and route, through the price of each placement."
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
        """Return the k best plans of the space with a lower bound."""
        work = settings.allowance(spec)
        if spec.objective == "replayed" and settings.replays is not None:
            replays = settings.replays
            return self._find_by_replay(
                network, workload, spec, replays, work, progress
            )
        found = search(network, workload, spec, work=work, progress=progress)
        return PlannerOutcome(
            planner=self.name,
            plans=found.plans,
            belief=believed_time(found.plans),
            sees=self.sees,
            spent=found.spent,
            search_time=work.elapsed,
            evaluations=found.statistics.get("configurations", 0),
            statistics=found.statistics,
            lower_bound=found.lower_bound,
            covers_space=found.covers_space,
            why_not=found.infeasibility,
        )

    def _find_by_replay(
        self,
        network: Network,
        workload: Workload,
        spec: SearchSpec,
        replays: Replays,
        work: Work,
        progress: Progress | None,
    ) -> PlannerOutcome:
        found = search_by_replay(
            network, workload, spec, replays, work=work, progress=progress
        )
        return PlannerOutcome(
            planner=self.name,
            plans=tuple(plan.priced for plan in found.plans),
            belief=found.plans[0].time if found.plans else float("nan"),
            sees=self.sees,
            spent=found.spent,
            search_time=work.elapsed,
            evaluations=found.statistics.get("configurations", 0),
            statistics=found.statistics,
            lower_bound=found.lower_bound,
            proposed_time=found.proposed_time,
            launchable_time=found.launchable_time,
            replayed_times=tuple(plan.time for plan in found.plans),
            covers_space=not found.spent.is_stopped,
            why_not=found.infeasibility,
        )


@dataclass(frozen=True, slots=True)
class Fixed:
    """Searches nothing: a plan that is given, inside the space or not."""

    name: str = "fixed"
    """Name of the planner."""

    sees: str = "Nothing: the plan is given."
    """What the planner sees of the network, in one sentence."""

    def find(
        self,
        network: Network,
        workload: Workload,
        spec: SearchSpec,
        settings: PlannerSettings,
        *,
        progress: Progress | None = None,  # noqa: ARG002  the protocol's
    ) -> PlannerOutcome:
        """Return the plan, if it fits in memory.

        Raises
        ------
        InputError
            If none is given, or it does not fit the model, the batch or the cluster,
            with the setting in ``where``.
        """
        work = settings.allowance(spec)
        work.count(PLAN)
        plan = _plan(network, workload, settings)
        is_small = fits(workload, spec, plan, network.host)
        why_not = ""
        if not is_small:
            short = too_little_memory(network, workload, spec, plan)
            why_not = f"Memory: the plan does not fit: {short}"
        return PlannerOutcome(
            planner=self.name,
            plans=priced_best_first(network, workload, [plan] if is_small else []),
            belief=math.nan,
            sees=self.sees,
            spent=work.total(),
            search_time=work.elapsed,
            evaluations=1,
            covers_space=True,
            why_not=why_not,
        )


def _plan(network: Network, workload: Workload, settings: PlannerSettings) -> Plan:
    given = settings.fixed
    if given is None:
        raise InputError(
            "there is no plan to take",
            where="plan",
            expected="a table [plan] in the scenario",
        )
    if isinstance(given, Plan):
        check_plan(workload, given, network.num_devices)
        return with_algorithms(network, workload, given)
    try:
        return build_plan(network, workload, given)
    except InputError as error:
        raise error.at("plan") from None
