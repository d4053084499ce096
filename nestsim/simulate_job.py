"""Replay one plan that is given, and judge it as the planner's own."""

from nestsim.job import announced, built, explained, job_facts, replayed
from nestsim.results import SimulateResult
from nestsim.scenario.settings import Scenario
from planner.cost.objective import PricedPlan
from planner.cost.pricing import price_plan
from planner.plans.build import build_plan, with_algorithms
from planner.plans.checks import check_plan
from planner.step.execution import Workload
from planner.step.plan import Plan
from planner.work import Progress
from topologies.errors import InputError
from topologies.network import Network


def simulate_job(
    scenario: Scenario,
    *,
    plan: Plan | None = None,
    source: str = "plan",
    progress: Progress | None = None,
) -> SimulateResult:
    """Price, replay and judge one plan.

    Parameters
    ----------
    scenario
        The model, the job and the cluster.
    plan
        The plan; None for the one of the scenario's table [plan].
    source
        What errors call ``plan``: the file that it was read from.
    progress
        Told about every step.

    Raises
    ------
    InputError
        If there is no plan, or it does not fit the model, the batch or the cluster.
        Too little memory is a verdict, not an error.
    """
    network, workload = built(scenario, progress)
    if plan is None:
        priced = _from_table(scenario, network, workload)
    else:
        priced = _from_file(network, workload, plan, source)
    told = announced(progress, "replay: the plan")
    return SimulateResult(
        **job_facts(scenario, network, workload),
        candidate=explained(
            scenario,
            network,
            workload,
            replayed(scenario, network, workload, priced, 0, told),
            progress,
        ),
        max_trace_events=scenario.simulation.trace_events,
    )


def _from_table(scenario: Scenario, network: Network, workload: Workload) -> PricedPlan:
    if scenario.plan is None:
        raise InputError(
            "there is no plan to replay",
            where="plan",
            expected="a table [plan] in the scenario, or --plan PLAN.json",
        )
    try:
        return price_plan(
            network, workload, build_plan(network, workload, scenario.plan)
        )
    except InputError as error:
        raise error.at("plan") from None


def _from_file(
    network: Network, workload: Workload, plan: Plan, source: str
) -> PricedPlan:
    try:
        check_plan(workload, plan, network.num_devices)
        return price_plan(network, workload, with_algorithms(network, workload, plan))
    except InputError as error:
        raise error.at(source, ": ") from None
