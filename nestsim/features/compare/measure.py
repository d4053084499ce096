"""Take one planner through one scenario, and say what its plan loses and why.

The planner searches; its plan is priced, replayed and judged. The simulated time of a
plan is the sum of the planned time's terms and of the gap's causes. So the difference
between two plans, or between a plan and what its planner believed, is a sum over terms,
too, and its largest part names what decides.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from nestsim.evaluate.evaluator import Evaluator, progress_of
from nestsim.evaluate.results import Candidate
from nestsim.features.compare.record import BestPlan, PlannerEntry
from nestsim.scenario.load import Scenario
from nestsim.scenario.stress import SweepSpec
from planner.cost.objective import largest_term
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
        evaluations=outcome.evaluations,
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


OWN_MODEL = "its own model"
"""Cause: what a planner's model leaves out, or counts too much, beside the common
evaluator."""


class Cause(NamedTuple):
    """The part of a difference that does most for it."""

    term: str
    """Name of the part."""

    seconds: float
    """Size of the part, of the difference's sign [s]."""


def differences(best: BestPlan, other: BestPlan) -> dict[str, float]:
    """Return by term how much longer one plan takes in the replay [s]."""
    first, second = best.terms, other.terms
    return {
        name: second.get(name, 0.0) - first.get(name, 0.0)
        for name in dict.fromkeys([*first, *second])
    }


def belief_gap(entry: PlannerEntry) -> dict[str, float]:
    """Return simulated minus believed time of a plan by cause [s].

    The entry must have a plan and a belief.
    """
    assert entry.found is not None
    by_model = entry.found.planned.iteration_time - entry.belief
    return {OWN_MODEL: by_model, **entry.found.gap_terms}


def largest(parts: Mapping[str, float]) -> Cause:
    """Return the part that does most for the sum, as `largest_term`."""
    term = largest_term(parts)
    return Cause(term, parts[term])


def turned_by(first: BestPlan, second: BestPlan) -> Cause | None:
    """Return what makes the replay reverse the order of two plans.

    None if the second one is not the faster in the replay, or is in the plan already.
    """
    is_promised = first.planned.iteration_time <= second.planned.iteration_time
    is_kept = first.simulated.iteration_time <= second.simulated.iteration_time
    if not is_promised or is_kept:
        return None
    gaps = {
        name: first.gap_terms.get(name, 0.0) - second.gap_terms.get(name, 0.0)
        for name in dict.fromkeys([*first.gap_terms, *second.gap_terms])
    }
    return largest(gaps)
