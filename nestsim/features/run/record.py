"""Records of runs and plans: JSON under stable keys, rows of CSV, the manifest.

Times are in seconds, sizes in bytes, rates per second; a number that does not exist
(infinite, not a number) is ``null``.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nestsim.document.dumps import (
    ABSENT,
    FORMAT,
    csv_of,
    plain_record,
)
from nestsim.evaluate.results import Checked, GivenPlan
from nestsim.evaluate.uncertainty import SHARE, need_json
from nestsim.features.run.assumptions import assumptions_json
from nestsim.features.run.cost import cost_cells, cost_json
from nestsim.features.run.result_record import (
    CauseRecord,
    ChangedRecord,
    CircuitsRecord,
    GivenRecord,
    PlannedRunRecord,
    PlanRecord,
    RampRecord,
    ReplayedRunRecord,
    ResultRecord,
    SimplestRecord,
)
from nestsim.features.run.statistics import (
    bubble_fraction,
    hottest_links,
    iteration_causes,
    level_uses,
    mean_breakdown,
    stage_breakdowns,
    step_causes,
)
from planner.cost.objective import PricedPlan, StageCost
from planner.work import Spent
from topologies.network import Network

if TYPE_CHECKING:
    from nestsim.evaluate.results import (
        Candidate,
        JobResult,
        PlannedCandidate,
        PlanResult,
        ReplayedResult,
    )
    from planner.step.plan import Plan


def reported_candidate(result: "ReplayedResult") -> "Candidate | None":
    """Return the chosen candidate, the fastest if none is confirmed, None if none."""
    if result.chosen is not None:
        return result.candidates[result.chosen]
    return result.candidates[0] if result.candidates else None


def optimality_gap(iteration_time: float, lower_bound: float) -> float:
    """Return how far above the lower bound a time is, relative to the bound.

    NaN where there is no bound.
    """
    if not (math.isfinite(lower_bound) and lower_bound > 0):
        return math.nan
    return iteration_time / lower_bound - 1.0


def promised_time(
    result: "JobResult[Any]", candidate: "Candidate | PlannedCandidate"
) -> float:
    """Return the time of a plan that the search minimised [s]."""
    if result.objective == "planned":
        return candidate.priced.closed_form_time
    time: float | None = (
        candidate.simulated.iteration_time
        if hasattr(candidate, "simulated")
        else candidate.replayed_time
    )
    return math.nan if time is None else time


_OF_A_SEARCH = (
    *("planner_rank", "objective", "candidates", "given", "simplest", "search"),
)
"""Keys of ``result.json`` that a plan that was given does not have."""


def result_json(result: "ReplayedResult") -> dict[str, object]:
    """Return everything that was found about replayed plans, for programs.

    Of a plan that was given nothing was searched: six keys are missing, and the bound
    is null.
    """
    best = reported_candidate(result)
    report: dict[str, object] = {
        "format": FORMAT,
        "scenario": result.scenario_name,
        "verdict": best.verdict.kind if best else result.no_plan,
        "reason": best.verdict.reason if best else result.shortfall,
        "broken_rules": broken_rules_json(best) if best else [],
        "confirmed": result.chosen is not None,
        "planner_rank": best.rank if best else None,
        "plan": written_plan(best.priced.plan) if best else None,
        "planned": planned_json(best) if best else None,
        "simulated": simulated_json(best, result.network) if best else None,
        "gap": gap_json(best) if best else None,
        "why": [CauseRecord.dump(cause) for cause in result.why],
        "uncertainty": band_json(result, best) if best else None,
        "memory": memory_json(best) if best else need_json(result.least_need),
        "lower_bound_s": result.lower_bound,
        "objective": result.objective,
        "optimality_gap": optimality_gap(
            promised_time(result, best) if best else math.nan, result.lower_bound
        ),
        "device_memory_bytes": result.device_memory,
        "assumptions": assumptions_json(result.assumptions),
        "candidates": candidate_rows(result),
        "given": given_json(result),
        "simplest": simplest_json(result),
        "search": _search_json(result),
        **(priced_json(result, best) if best else {}),
    }
    if result.kind == "simulate":
        report |= dict.fromkeys(_OF_A_SEARCH, ABSENT)
    return ResultRecord.dump(**report)


def written_plan(plan: "Plan") -> dict[str, object]:
    """Return a plan as ``plan.json`` has it."""
    return PlanRecord.dump(**plan.to_json())


def candidate_rows(result: "ReplayedResult") -> list[dict[str, object]]:
    """Return a row for each replayed plan, fastest first."""
    return [_replayed_row(candidate) for candidate in result.candidates]


def priced_json(
    result: "JobResult[Any]", candidate: "Candidate"
) -> dict[str, dict[str, object]]:
    """Return what a replayed plan costs; nothing where the scenario does not say."""
    run, ramp, changed = result.cost_of(candidate), candidate.ramp, candidate.changed
    priced = {} if run is None else {"cost": cost_json(run)}
    if ramp is not None:
        priced["ramp"] = RampRecord.dump(ramp)
    if changed is not None:
        priced["changed"] = ChangedRecord.dump(changed)
    if candidate.circuits is not None:
        priced["circuits"] = CircuitsRecord.dump(candidate.circuits)
    return priced


def broken_rules_json(candidate: "Candidate") -> list[dict[str, str]]:
    """Return the rules of the framework that a plan breaks."""
    return [rule.to_json() for rule in candidate.broken_rules]


def given_json(result: "ReplayedResult") -> dict[str, object] | None:
    """Return the scenario's plan beside that of the search; None without."""
    given, best = result.given, reported_candidate(result)
    if given is None or best is None:
        return None
    return GivenRecord.dump(
        given,
        plan=given.plan.to_json(),
        planned_iteration_time_s=given.planned_time,
        ratio=given.iteration_time / best.simulated.iteration_time,
        longer_s=given.longer,
    )


def given_row(given: GivenPlan) -> dict[str, object]:
    """Return the scenario's plan as a row beside replayed ones; its rank is 0."""
    return {
        "planner_rank": 0,
        "parallel": given.plan.settings_json()["parallel"],
        "virtual_pipeline_model_parallel_size": (
            given.plan.virtual_pipeline_model_parallel_size
        ),
        "micro_batch_size": given.plan.micro_batch_size,
        "recompute": given.plan.settings_json()["recompute"],
        "placement": given.plan.placement,
        "planned_iteration_time_s": given.planned_time,
        "simulated_iteration_time_s": given.iteration_time,
        "simulated_peak_memory_bytes": given.peak_memory,
        "verdict": given.verdict,
    }


def simplest_json(result: "ReplayedResult") -> dict[str, object] | None:
    """Return the simplest plan that is nearly as fast; None if none is known."""
    simplest = result.simplest
    if simplest is None:
        return None
    return SimplestRecord.dump(
        simplest,
        plan=simplest.plan.to_json(),
        below_model_error=result.is_within_error(simplest.slower_by),
    )


def _search_json(result: "JobResult[Any]") -> dict[str, object]:
    proposed = result.proposed_time
    return {
        **result.search_statistics,
        **({} if math.isnan(proposed) else {"proposed_iteration_time_s": proposed}),
        **spent_json(result.spent),
    }


def spent_json(spent: Spent) -> dict[str, object]:
    """Return what a search has spent, and whether a limit ended it."""
    return {
        "work": spent.work,
        "stopped_by": spent.stopped_by or None,
        "time_limit_s": spent.time_limit,
        "reproducible": spent.is_reproducible,
    }


def plan_json(result: "PlanResult") -> dict[str, object]:
    """Return the k best plans of `nestsim plan`, for programs."""
    report: dict[str, object] = {
        "scenario": result.scenario_name,
        "plans": [
            {
                "planner_rank": candidate.rank,
                "plan": candidate.priced.plan.to_json(),
                "planned": planned_json(candidate),
                "replayed_iteration_time_s": candidate.replayed_time,
                "optimality_gap": optimality_gap(
                    promised_time(result, candidate), result.lower_bound
                ),
            }
            for candidate in result.candidates
        ],
        "why": [CauseRecord.dump(cause) for cause in result.why],
        "reason": result.shortfall or None,
        "objective": result.objective,
        "lower_bound_s": result.lower_bound,
        "device_memory_bytes": result.device_memory,
        "assumptions": assumptions_json(result.assumptions),
        "search": _search_json(result),
    }
    return plain_record(report)


def planned_json(candidate: "Candidate | PlannedCandidate") -> dict[str, object]:
    """Return what the planner believes about a plan."""
    priced = candidate.priced
    return PlannedRunRecord.dump(
        candidate.planned,
        closed_form_time_s=priced.closed_form_time,
        terms_s=priced.terms,
        stages=_stage_costs(priced),
    )


def _stage_costs(priced: PricedPlan) -> list[dict[str, object]]:
    return [
        {
            "forward_s": cost.forward_time,
            "backward_s": cost.backward_time,
            "weight_gradient_s": cost.weight_gradient_time,
            "parts_s": dict(cost.parts),
            "transfer_s": cost.transfer_time,
            "boundary_bytes": cost.boundary_bytes,
            "reduce_s": cost.reduce_time,
            "tied_s": cost.tied_time,
            "optimizer_s": cost.optimizer_time,
            "gather_s": cost.gather_time,
            "memory_bytes": dict(cost.memory),
            **_host_json(cost),
        }
        for cost in priced.stages
    ]


def _host_json(cost: StageCost) -> dict[str, object]:
    """Return what a stage has on the host, and what that costs the step's end."""
    if not cost.host_memory:
        return {}
    return {"host_s": cost.host_time, "host_memory_bytes": dict(cost.host_memory)}


def simulated_json(candidate: "Candidate", network: Network) -> dict[str, object]:
    """Return what the replay found about a plan."""
    replay = candidate.replay
    rows = stage_breakdowns(replay)
    plan = candidate.priced.plan
    causes = iteration_causes(replay, plan.schedule, plan.num_microbatches)
    return ReplayedRunRecord.dump(
        candidate.simulated,
        pipeline_time_s=replay.pipeline_time,
        bubble_fraction=bubble_fraction(replay),
        breakdown_s={
            **mean_breakdown(rows)._asdict(),
            "causes": dict(causes),
            "parts": step_causes(candidate),
            "stages": [row._asdict() for row in rows],
        },
        memory=[
            {
                "peak_bytes": timeline.peak,
                "peak_time_s": timeline.peak_time,
                "parts_bytes": dict(timeline.peak_parts),
            }
            for timeline in replay.memory
        ],
        levels=level_uses(replay, network),
        hottest_links=hottest_links(replay, network),
        folding=replay.notes,
        engine=replay.engine,
        events=replay.num_events,
    )


def gap_json(candidate: "Candidate") -> dict[str, object]:
    """Return simulated minus planned time, by cause."""
    gap = candidate.verdict.gap
    return {"total_s": gap.total, "terms": dict(gap.terms)}


def memory_json(candidate: "Candidate") -> dict[str, object] | None:
    """Return what the fullest stage needs, and how far off that may be."""
    return need_json(candidate.verdict.memory)


def band_json(
    result: "JobResult[Any]", candidate: "Candidate"
) -> dict[str, object] | None:
    """Return the 80 % band of what was simulated; None with ideal software."""
    if result.band is None:
        return None
    low, high = result.band
    simulated = candidate.simulated
    return {
        "share": SHARE,
        "iteration_time_s": [
            factor * simulated.iteration_time for factor in (low, high)
        ],
        "tokens_per_s": [
            simulated.tokens_per_second / factor for factor in (high, low)
        ],
        "reasons": [reason._asdict() for reason in result.band_reasons],
    }


def _replayed_row(candidate: "Candidate") -> dict[str, object]:
    plan = candidate.priced.plan
    return {
        "planner_rank": candidate.rank,
        "parallel": plan.settings_json()["parallel"],
        "virtual_pipeline_model_parallel_size": (
            plan.virtual_pipeline_model_parallel_size
        ),
        "micro_batch_size": plan.micro_batch_size,
        "recompute": plan.settings_json()["recompute"],
        "placement": plan.placement,
        "planned_iteration_time_s": candidate.planned.iteration_time,
        "simulated_iteration_time_s": candidate.simulated.iteration_time,
        "planned_peak_memory_bytes": candidate.planned.peak_memory,
        "simulated_peak_memory_bytes": candidate.simulated.peak_memory,
        "verdict": candidate.verdict.kind,
        "reason": candidate.verdict.reason,
        "engine": candidate.replay.engine,
    }


def assertions_json(checked: Sequence[Checked]) -> dict[str, object]:
    """Return what a report says of assertions; nothing if there is none."""
    if not checked:
        return {}
    return {
        "assertions": [
            {
                "name": item.assertion.name,
                "operator": item.assertion.operator,
                "expected": item.assertion.value,
                "found": item.value,
                "holds": item.holds,
            }
            for item in checked
        ]
    }


_ASSUMED = ("operator_times", "user_constants", "user_links")
"""What the manifest says of `nestsim.features.run.assumptions`, where it is there."""


def result_facts(result: "ReplayedResult", scenario_bytes: bytes) -> dict[str, object]:
    """Return what the manifest says beside the hash of each file."""
    known = assumptions_json(result.assumptions)
    return {
        "scenario": result.scenario_name,
        "scenario_sha256": hashlib.sha256(scenario_bytes).hexdigest(),
        "software": result.assumptions.preset,
        **{name: known[name] for name in _ASSUMED if name in known},
    }


def summary_rows(result: "ReplayedResult") -> list[dict[str, object]]:
    """Return one row for each replayed plan, fastest first, in SI units."""
    return [
        {
            "planner_rank": candidate.rank,
            "verdict": candidate.verdict.kind,
            **_plan_cells(candidate.priced.plan),
            "planned_iteration_time_s": candidate.planned.iteration_time,
            "simulated_iteration_time_s": candidate.simulated.iteration_time,
            "planned_tokens_per_s": candidate.planned.tokens_per_second,
            "simulated_tokens_per_s": candidate.simulated.tokens_per_second,
            "planned_mfu": candidate.planned.mfu,
            "simulated_mfu": candidate.simulated.mfu,
            "planned_peak_memory_bytes": candidate.planned.peak_memory,
            "simulated_peak_memory_bytes": candidate.simulated.peak_memory,
            **cost_cells(result.cost_of(candidate)),
        }
        for candidate in result.candidates
    ]


def plan_rows(candidates: Sequence["PlannedCandidate"]) -> list[dict[str, object]]:
    """Return one row for each plan that was not replayed, best first, in SI units."""
    return [
        {
            "planner_rank": candidate.rank,
            **_plan_cells(candidate.priced.plan),
            "planned_iteration_time_s": candidate.planned.iteration_time,
            "replayed_iteration_time_s": candidate.replayed_time,
            "planned_tokens_per_s": candidate.planned.tokens_per_second,
            "planned_mfu": candidate.planned.mfu,
            "planned_peak_memory_bytes": candidate.planned.peak_memory,
        }
        for candidate in candidates
    ]


def _plan_cells(plan: "Plan") -> dict[str, object]:
    """Return a plan's settings, in the order of the summary."""
    data = plan.settings_json()
    return {
        **data["parallel"],
        "virtual_pipeline_model_parallel_size": (
            plan.virtual_pipeline_model_parallel_size
        ),
        "micro_batch_size": plan.micro_batch_size,
        "num_microbatches": plan.num_microbatches,
        "recompute": data["recompute"],
        "zero_stage": data["zero_stage"],
        "placement": plan.placement,
        "devices_used": plan.devices_used,
    }


_SUMMARY_KEYS = ("planner_rank", "verdict")
"""The heading of a summary without rows."""


def summary_csv(result: "ReplayedResult") -> str:
    """Return the replayed plans as ``summary.csv`` has them."""
    rows = summary_rows(result)
    # Plans have some settings only where they are not what is usual.
    heading = [*dict.fromkeys(key for row in rows for key in row)] or [*_SUMMARY_KEYS]
    return csv_of(rows, heading)
