"""Jobs on one fabric as JSON and CSV, in SI units."""

from typing import Any

from nestsim.document.dumps import csv_of
from nestsim.document.wording import device_ranges
from nestsim.features.jobs.document import (
    devices_in_words,
    headline,
    shifts_in_words,
    slowdown_in_words,
)
from nestsim.features.jobs.orbits import Shifts
from nestsim.features.jobs.results import (
    PlacementChoice,
    TenancyResult,
    TenantOutcome,
)
from nestsim.features.jobs.steady import Steady
from planner.step.plan import to_ranges

MOST_LINKS = 20
"""Kinds of shared links that are listed."""


def jobs_json(result: TenancyResult) -> dict[str, Any]:
    """Return everything that was found, for programs."""
    links = result.links[:MOST_LINKS]
    return {
        "headline": headline(result),
        "scenario": result.name,
        "num_devices": result.network.num_devices,
        "reason": result.shortfall or None,
        "lost_devices": result.lost if result.outcomes else None,
        "lost_in_words": devices_in_words(result.lost),
        "ecmp_seeds": list(result.seeds),
        "jobs": [_job_json(outcome) for outcome in result.outcomes],
        "levels": [
            {
                "level": level.level,
                "num_links": level.num_links,
                "num_shared": level.num_shared,
                "busiest_share": list(level.busiest),
                "busiest_share_of_all": level.total,
            }
            for level in result.levels
        ],
        "shared_links": [
            {
                "link": link.link,
                "level": link.level,
                "num_alike": link.num_alike,
                "share": list(link.shares),
                "share_of_all": link.total,
            }
            for link in links
        ],
        "placements": [] if result.choice is None else [_choice_json(result.choice)],
        "shifts": [_shifts_json(shifts) for shifts in result.shifts],
        "notes": list(result.notes),
    }


def job_rows(result: TenancyResult) -> list[dict[str, Any]]:
    """Return one row for each job."""
    return [_row(outcome) for outcome in result.outcomes]


def jobs_csv(result: TenancyResult) -> str:
    """Return one line for each job."""
    return csv_of(job_rows(result))


def _row(outcome: TenantOutcome) -> dict[str, Any]:
    seeds = outcome.seed_range if outcome.by_seed else (None, None, None)
    return {
        "job": outcome.tenant.name,
        "num_devices": len(outcome.devices),
        "step_alone_s": outcome.alone,
        "step_together_s": outcome.together,
        "slowdown": outcome.slowdown,
        "slowdown_from": outcome.slowdown_range[0],
        "slowdown_to": outcome.slowdown_range[1],
        "tokens_per_s_alone": outcome.tokens_per_second(outcome.alone),
        "tokens_per_s_together": outcome.tokens_per_second(outcome.together),
        "slowdown_least_of_seeds": seeds[0],
        "slowdown_median_of_seeds": seeds[1],
        "slowdown_largest_of_seeds": seeds[2],
    }


def _job_json(outcome: TenantOutcome) -> dict[str, Any]:
    return {
        **_row(outcome),
        "start_s": outcome.tenant.start,
        "slowdown_in_words": slowdown_in_words(
            outcome.slowdown, *outcome.slowdown_range
        ),
        "long_run": _steady_json(outcome.steady),
        "devices": to_ranges(outcome.devices.tolist()),
        "plan_is_given": outcome.made.is_given,
        "fits": outcome.made.fits,
        "planned_step_s": outcome.priced.iteration_time,
        "plan": outcome.made.plan.to_json(),
        "slowdown_by_seed": list(outcome.by_seed),
    }


def _steady_json(steady: Steady) -> dict[str, Any]:
    """Return how a job's step among the others is known."""
    lock = steady.lock
    return {
        "is_settled": steady.is_settled,
        "steps_counted": steady.counted.size,
        "lock": None
        if lock is None
        else {
            "period_s": lock.period,
            "steps": lock.steps,
            "begin_s": lock.begin,
            "phase": lock.phase,
        },
    }


def _choice_json(choice: PlacementChoice) -> dict[str, Any]:
    names = [tenant.name for tenant in choice.tenants]
    return {
        "jobs": names,
        "beside": list(choice.others),
        "is_complete": choice.is_complete,
        "chosen": choice.chosen,
        "candidates": [
            {
                "places": [
                    {
                        "job": name,
                        "label": label,
                        "devices": to_ranges(devices.tolist()),
                        "devices_in_words": device_ranges(devices.tolist()),
                        "step_s": step,
                    }
                    for name, label, devices, step in zip(
                        names,
                        candidate.labels,
                        candidate.devices,
                        candidate.step_times,
                        strict=True,
                    )
                ],
                "slowdown": list(candidate.slowdowns),
                "lost_devices": candidate.lost,
            }
            for candidate in choice.judged
        ],
    }


def _shifts_json(shifts: Shifts) -> dict[str, Any]:
    """Return what starts of a job make of those that it meets."""
    return {
        "job": shifts.job,
        "in_words": shifts_in_words(shifts),
        "beside": list(shifts.beside),
        "span_s": shifts.span,
        "best": shifts.best,
        "worst": shifts.worst,
        "saved_devices": shifts.saves,
        "starts": [
            {
                "later_s": start.offset,
                "slowdown": list(start.slowdowns),
                "lost_devices": start.lost,
                "orbit": start.orbit,
                "is_settled": start.is_settled,
            }
            for start in shifts.starts
        ],
        "orbits": [
            {
                "period_s": basin.orbit.period,
                "steps": list(basin.orbit.steps),
                "phases": list(basin.orbit.phases),
                "slowdown": list(basin.slowdowns),
                "starts": list(basin.starts),
                "pushed": basin.holds,
                "pushed_lost_devices": basin.pushed_lost,
            }
            for basin in shifts.basins
        ],
    }


def shift_rows(result: TenancyResult) -> list[dict[str, Any]]:
    """Return a row for each job beside each start of each job that is shifted."""
    rows = []
    for shifts in result.shifts:
        for start in shifts.starts:
            basin = None if start.orbit is None else shifts.basins[start.orbit]
            rows += [
                {
                    "shifted": shifts.job,
                    "later_s": start.offset,
                    "job": name,
                    "slowdown": start.slowdowns[place],
                    "lost_devices_of_all": start.lost,
                    "orbit": start.orbit,
                    "period_s": basin and basin.orbit.period,
                    "steps": basin and basin.orbit.steps[place],
                    "phase": basin and basin.orbit.phases[place],
                    "pushed": basin and basin.holds,
                }
                for place, name in enumerate(shifts.beside)
            ]
    return rows
