"""The plans of the planner that a scenario names."""

import math
from dataclasses import replace

from nestsim.scenario.settings import Scenario
from planner.baselines.registry import PLANNERS
from planner.progress import Progress
from planner.remedies import shortfall_and_remedy
from planner.search import SearchResult, search
from planner.workload import Workload
from topologies.errors import InputError
from topologies.network import Network


def find_plans(
    scenario: Scenario,
    network: Network,
    workload: Workload,
    progress: Progress | None,
) -> SearchResult:
    """Return the k best plans of a scenario's planner, or why there are none.

    Raises
    ------
    InputError
        If the planner refuses the space, or the plan that it is given.
    """
    if scenario.planner != "nest":
        return _found_by_another(scenario, network, workload, progress)
    found = search(network, workload, scenario.search, progress=progress)
    shortfall = shortfall_and_remedy(
        network, workload, scenario.search, found, progress=progress
    )
    return replace(found, shortfall=shortfall)


def _found_by_another(
    scenario: Scenario,
    network: Network,
    workload: Workload,
    progress: Progress | None,
) -> SearchResult:
    """Return the plans of a planner that proves no lower bound."""
    try:
        outcome = PLANNERS[scenario.planner].find(
            network,
            workload,
            scenario.search,
            scenario.planner_settings,
            progress=progress,
        )
    except InputError as error:
        raise (error.at("search") if error.where == "planner" else error) from None
    statistics = {f"plans priced by {outcome.planner}": outcome.evaluations}
    return SearchResult(
        plans=outcome.plans,
        lower_bound=math.nan,
        statistics=statistics,
        shortfall=outcome.why_not,
        spent=outcome.spent,
        covers_space=outcome.covers_space,
    )
