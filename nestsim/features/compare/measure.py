"""Take one planner through one scenario, and say what its plan loses and why.

The planner searches; its plan is priced, replayed and judged. The simulated time of a
plan is the sum of the planned time's terms and of the gap's causes. So the difference
between two plans, or between a plan and what its planner believed, is a sum over terms,
too, and its largest part names what decides.
"""

from dataclasses import replace
from typing import NamedTuple

from nestsim.evaluate.evaluator import Evaluator, progress_of
from nestsim.evaluate.results import Candidate
from nestsim.features.compare.record import BestPlan, PlannerEntry
from nestsim.scenario.load import Scenario
from nestsim.scenario.settings import SweepSpec
from planner.rivals.protocol import PlannerSettings
from planner.work import Progress
from topologies.errors import InputError
from topologies.network import Network


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


class ReplayedEntry(NamedTuple):
    """What became of one planner on one scenario."""

    entry: PlannerEntry
    """What is kept of it."""

    candidate: Candidate | None
    """Its plan with the whole replay; None without one."""

    network: Network
    """Where it was replayed."""


def measure(
    scenario: Scenario,
    planner: str,
    settings: PlannerSettings,
    *,
    progress: Progress | None = None,
) -> PlannerEntry:
    """Return what a planner finds for a scenario: the entry of `measured`."""
    return measured(scenario, planner, settings, progress=progress).entry


def measured(
    scenario: Scenario,
    planner: str,
    settings: PlannerSettings,
    *,
    progress: Progress | None = None,
) -> ReplayedEntry:
    """Return what a planner finds for a scenario, and what becomes of it.

    Network and prices are made anew, so that no planner profits from what another one
    has looked up. Each planner answers for the best replayed one of the plans that it
    proposes.

    Parameters
    ----------
    scenario
        As `for_comparison` returns it.
    planner
        A name of `planner.rivals.PLANNERS`.
    settings
        Seeds, budgets and the like.
    progress
        Called with every step.

    Raises
    ------
    InputError
        If parts of the scenario do not go together. What a planner refuses is a
        result.
    """
    evaluator = Evaluator.of(scenario, progress)
    progress_of(progress, planner)
    try:
        outcome = evaluator.find(planner, settings, progress=progress)
    except InputError as error:
        refused = PlannerEntry(planner=planner, why_not=_refusal(error))
        return ReplayedEntry(refused, None, evaluator.network)
    made = candidate = None
    if outcome.plans:
        named_progress = progress_of(progress, f"{planner}: replay")
        best = outcome.plans[0]
        candidate = evaluator.explain(evaluator.evaluate(best, 1, named_progress))
        made = BestPlan(
            plan=best.plan,
            planned=candidate.planned,
            simulated=candidate.simulated,
            planned_terms=dict(best.terms),
            gap_terms=dict(candidate.verdict.gap.terms),
            verdict=candidate.verdict.kind,
            reason=candidate.verdict.reason,
            broken_rules=tuple(
                f"{one.rule} ({one.found})" for one in candidate.broken_rules
            ),
        )
    bound = outcome.lower_bound
    entry = PlannerEntry(
        planner=planner,
        sees=outcome.sees,
        belief=outcome.belief,
        evaluations=int(outcome.evaluations),
        lower_bound=float("nan") if bound is None else bound,
        spent=outcome.spent,
        spread=tuple(outcome.spread),
        search_time=outcome.search_time,
        launchable_time=outcome.launchable_time,
        free_time=outcome.free_time,
        notes=outcome.notes,
        found=made,
        why_not=outcome.why_not if made is None else "",
    )
    return ReplayedEntry(entry, candidate, evaluator.network)


def _refusal(error: InputError) -> str:
    """Say in a sentence what a planner asks for."""
    where = "" if error.where in {"", "planner"} else f"{error.where}: "
    expected = f"; expected: {error.expected}" if error.expected else ""
    return f"Refused: {where}{error.problem}{expected}."
