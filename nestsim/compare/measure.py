"""Take one planner through one scenario: search, price, replay, judge."""

from dataclasses import replace

from nestsim.compare.record import Entry, Found
from nestsim.evaluate import Evaluator
from nestsim.job import announced, built, explained, replayed
from nestsim.scenario.settings import Scenario, SweepSpec
from planner.planners.protocol import PlannerSettings
from planner.work import Progress
from topologies.errors import InputError


def for_comparison(scenario: Scenario) -> Scenario:
    """Return a scenario as it is compared: replayed folded.

    Folding is exact. What other commands do with it is left out.
    """
    simulation = scenario.simulation
    return replace(
        scenario,
        sweep=SweepSpec(),
        assertions=(),
        simulation=replace(
            simulation,
            trace="representatives",
            replay=replace(simulation.replay, folding=True),
        ),
    )


def measure(
    scenario: Scenario,
    planner: str,
    settings: PlannerSettings,
    *,
    progress: Progress | None = None,
) -> Entry:
    """Return what a planner finds for a scenario, and what becomes of it.

    Network and prices are made anew, so that no planner profits from what another one
    has looked up. Each planner answers for the best replayed one of the plans that it
    proposes.

    Parameters
    ----------
    scenario
        As `for_comparison` returns it.
    planner
        A name of `planner.planners.registry.PLANNERS`.
    settings
        Seeds, budgets and the like.
    progress
        Told about every step.

    Raises
    ------
    InputError
        If parts of the scenario do not go together. What a planner refuses is a
        result.
    """
    network, workload = built(scenario, progress)
    announced(progress, planner)
    try:
        evaluator = Evaluator(scenario=scenario, network=network, workload=workload)
        outcome = evaluator.find(planner, settings, progress=progress)
    except InputError as error:
        return Entry(planner=planner, why_not=_refusal(error))
    found = None
    if outcome.plans:
        told = announced(progress, f"{planner}: replay")
        best = outcome.plans[0]
        candidate = replayed(scenario, network, workload, best, 1, told)
        candidate = explained(scenario, network, workload, candidate)
        found = Found(
            plan=best.plan,
            planned=candidate.planned,
            simulated=candidate.simulated,
            planned_terms=dict(best.terms),
            gap_terms=dict(candidate.verdict.gap.terms),
            verdict=candidate.verdict.kind,
            reason=candidate.verdict.reason,
        )
    bound = outcome.lower_bound
    return Entry(
        planner=planner,
        sees=outcome.sees,
        belief=outcome.belief,
        evaluations=outcome.evaluations,
        lower_bound=float("nan") if bound is None else bound,
        spent=outcome.spent,
        spread=tuple(outcome.spread),
        search_time=outcome.search_time,
        found=found,
        why_not=outcome.why_not if found is None else "",
    )


def _refusal(error: InputError) -> str:
    """Say in a sentence what a planner asks for."""
    where = "" if error.where in {"", "planner"} else f"{error.where}: "
    expected = f"; expected: {error.expected}" if error.expected else ""
    return f"Refused: {where}{error.problem}{expected}."
