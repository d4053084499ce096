"""The report on one plan that was given: that of `nestsim run` without the search."""

from typing import TYPE_CHECKING, Any

from rich.console import Console

from nestsim.report.assumptions import assumptions_json
from nestsim.report.json import (
    band_json,
    broken_rules_json,
    gap_json,
    job_json,
    plain_values,
    planned_json,
    simulated_json,
)
from nestsim.report.text import (
    print_broken_rules,
    print_headline,
    print_job,
    print_times,
    print_traffic,
)
from nestsim.results import SimulateResult

if TYPE_CHECKING:
    from nestsim.results import ReplayedResult


def result_json(result: "ReplayedResult") -> dict[str, Any]:
    """Return everything that was found, for programs."""
    if isinstance(result, SimulateResult):
        return simulation_json(result)
    return job_json(result)


def print_result(result: "ReplayedResult", console: Console) -> None:
    """Print everything that was found, for people."""
    if isinstance(result, SimulateResult):
        print_simulation(result, console)
    else:
        print_job(result, console)


def simulation_json(result: SimulateResult) -> dict[str, Any]:
    """Return everything that `nestsim simulate` found, for programs.

    The keys are those of `nestsim.report.json.job_json`; of a search there is nothing
    to say, and the bound that it would give is null.
    """
    candidate = result.candidate
    report: dict[str, Any] = {
        "scenario": result.scenario_name,
        "verdict": candidate.verdict.kind,
        "reason": candidate.verdict.reason,
        "broken_rules": broken_rules_json(candidate),
        "confirmed": result.chosen is not None,
        "plan": candidate.priced.plan.to_json(),
        "planned": planned_json(candidate),
        "simulated": simulated_json(candidate, result.network),
        "gap": gap_json(candidate),
        "uncertainty": band_json(result, candidate),
        "lower_bound_s": None,
        "optimality_gap": None,
        "device_memory_bytes": result.device_memory,
        "assumptions": assumptions_json(result.assumptions),
    }
    plain: dict[str, Any] = plain_values(report)
    return plain


def print_simulation(result: SimulateResult, console: Console) -> None:
    """Print what `nestsim simulate` found: verdict, plan, planned beside simulated."""
    candidate = result.candidate
    print_headline(console, result, candidate)
    print_broken_rules(console, result, candidate)
    print_times(console, result, candidate)
    print_traffic(console, candidate, result.network)
