"""Measure the collectives of a scenario's plan: the one given, or the best found."""

from collections.abc import Sequence
from dataclasses import dataclass

from nestsim.collective_measures import Table, measure
from nestsim.evaluate import Evaluator
from nestsim.job import built
from nestsim.plan_traffic import plan_traffic
from nestsim.scenario.settings import Scenario
from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan
from planner.plans.build import build_plan
from planner.step.execution import Workload
from planner.work import Progress, Spent
from topologies.errors import InputError
from topologies.network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesResult:
    """What a report on collectives needs."""

    scenario_name: str
    network: Network
    priced: PricedPlan | None
    """The plan whose groups communicate; None if none fits."""

    shortfall: str
    """Why there is no plan, in one sentence; empty if there is one."""

    spent: Spent | None
    """The work of the search; None where the plan was given."""

    tables: tuple[Table, ...]
    """By kind of group and operation; empty if no device sends anything."""


def collectives_job(
    scenario: Scenario, sizes: Sequence[int], *, progress: Progress | None = None
) -> CollectivesResult:
    """Measure what the groups of the scenario's plan do, at every size.

    Raises
    ------
    InputError
        If parts of the scenario do not go together.
    """
    network, workload = built(scenario, progress)
    shortfall, priced, spent = "", None, None
    if scenario.plan is not None:
        priced = _given(scenario, network, workload)
    else:
        evaluator = Evaluator(scenario=scenario, network=network, workload=workload)
        found = evaluator.find("nest", scenario.planner_settings, progress=progress)
        spent, shortfall = found.spent, found.why_not
        priced = found.plans[0] if found.plans else None
    tables: tuple[Table, ...] = ()
    if priced is not None:
        traffics = plan_traffic(workload, priced)
        tables = measure(network, traffics, sizes, progress=progress)
    return CollectivesResult(
        scenario_name=scenario.name,
        network=network,
        priced=priced,
        shortfall=shortfall,
        spent=spent,
        tables=tables,
    )


def _given(scenario: Scenario, network: Network, workload: Workload) -> PricedPlan:
    """Return the plan of the table [plan]."""
    assert scenario.plan is not None
    try:
        plan = build_plan(network, workload, scenario.plan)
        return price_plan(network, workload, plan)
    except InputError as error:
        raise error.at("plan") from None
