"""``fixed``: the plan that the scenario gives."""

import math
from dataclasses import dataclass

from planner.baselines.proposals import (
    fits,
    priced_best_first,
    too_little_memory,
)
from planner.baselines.protocol import PlannerOutcome, PlannerSettings
from planner.fixed_plan import build_plan, with_algorithms
from planner.plan import Plan
from planner.plan_checks import check_plan
from planner.progress import Progress
from planner.search_spec import SearchSpec
from planner.work import PLAN
from planner.workload import Workload
from topologies import InputError, Network


@dataclass(frozen=True, slots=True)
class Fixed:
    """Searches nothing: a plan that is given, inside the space or not."""

    name: str = "fixed"

    sees: str = "Nothing: the plan is given."

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
        is_small = fits(workload, spec, plan)
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
