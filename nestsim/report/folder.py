"""The folder of results: everything about one run, complete or not there at all.

Holds ``scenario.toml`` (a copy of the input), ``plan.json``, ``result.json``,
``summary.csv``, ``report.txt``, ``trace.json``, ``figures/*.png``, ``page.html`` where
it was asked for, and ``manifest.json`` with the hash of each. No file holds a time
stamp: the same scenario gives the same folder.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.report.assumptions import assumptions_json
from nestsim.report.cost import cost_cells
from nestsim.report.figures.data import hottest_link_use
from nestsim.report.frames import csv_of
from nestsim.report.json import dump_json, reported_candidate
from nestsim.report.tables import plain_text
from nestsim.report.text import print_result, result_json
from nestsim.simulator.trace import write_chrome_trace

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate, PlannedCandidate, ReplayedResult
    from planner.step.plan import Plan

PAGE = "page.html"
"""Everything to look at in one file (`nestsim.page`), where it was asked for."""

FILES = (
    *("scenario.toml", "plan.json", "result.json", "summary.csv", "report.txt"),
    "trace.json",
    *(f"figures/{n}.png" for n in ("timeline", "memory", "links", "gap", "topology")),
    PAGE,
)
"""Files of the folder, but the manifest; without a plan, figures or the page there are
fewer."""

_ASSUMED = ("operator_times", "user_constants", "user_links")
"""What the manifest says of `nestsim.report.assumptions`, where it is there."""


def result_facts(result: "ReplayedResult", scenario_bytes: bytes) -> dict[str, Any]:
    """Return what the manifest says beside the hash of each file."""
    known = assumptions_json(result.assumptions)
    return {
        "scenario": result.scenario_name,
        "scenario_sha256": hashlib.sha256(scenario_bytes).hexdigest(),
        "software": result.assumptions.preset,
        **{name: known[name] for name in _ASSUMED if name in known},
    }


def result_writers(
    result: "ReplayedResult", scenario_bytes: bytes
) -> dict[str, Callable[[Path], object]]:
    """Return the function that writes each file, by name relative to the folder."""
    best = reported_candidate(result)
    writers: dict[str, Callable[[Path], object]] = {
        "scenario.toml": lambda path: path.write_bytes(scenario_bytes),
        "result.json": lambda path: _write_json(path, result_json(result)),
        "summary.csv": lambda path: _write_summary(path, summary_rows(result)),
        "report.txt": lambda path: path.write_text(
            plain_text(lambda console: print_result(result, console)), encoding="utf-8"
        ),
    }
    if best is not None:
        writers |= _plan_writers(best, result)
    return writers | _figure_writers(best, result)


def _plan_writers(
    best: "Candidate", result: "ReplayedResult"
) -> dict[str, Callable[[Path], object]]:
    """Return the writers of what only a plan has."""
    return {
        "plan.json": lambda path: _write_json(path, best.priced.plan.to_json()),
        "trace.json": lambda path: write_chrome_trace(
            best.replay,
            path,
            max_events=result.max_trace_events,
            link_use=hottest_link_use(best.replay, result.network),
        ),
    }


def _figure_writers(
    best: "Candidate | None", result: "ReplayedResult"
) -> dict[str, Callable[[Path], object]]:
    """Return the writers of the figures: of the network, and of the plan if any."""
    from nestsim.report.figures.run import (
        draw_gap,
        draw_links,
        draw_memory,
        draw_timeline,
    )
    from nestsim.report.topology.draw import draw_topology

    network = result.network
    memory = result.device_memory, result.usable_memory
    writers: dict[str, Callable[[Path], object]] = {
        "figures/topology.png": lambda path: draw_topology(network, path)
    }
    if best is None:
        return writers
    return writers | {
        "figures/timeline.png": lambda path: draw_timeline(best, path),
        "figures/memory.png": lambda path: draw_memory(best, *memory, path),
        "figures/links.png": lambda path: draw_links(best, network, path),
        "figures/gap.png": lambda path: draw_gap(best, result.candidates, path),
    }


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(dump_json(data), encoding="utf-8")


def summary_rows(result: "ReplayedResult") -> list[dict[str, Any]]:
    """Return one row for each replayed plan, fastest first, in SI units."""
    return [
        {
            "planner_rank": one.rank,
            "verdict": one.verdict.kind,
            **_plan_cells(one.priced.plan),
            "planned_iteration_time_s": one.planned.iteration_time,
            "simulated_iteration_time_s": one.simulated.iteration_time,
            "planned_tokens_per_s": one.planned.tokens_per_second,
            "simulated_tokens_per_s": one.simulated.tokens_per_second,
            "planned_mfu": one.planned.mfu,
            "simulated_mfu": one.simulated.mfu,
            "planned_peak_memory_bytes": one.planned.peak_memory,
            "simulated_peak_memory_bytes": one.simulated.peak_memory,
            **cost_cells(result.cost_of(one.simulated)),
        }
        for one in result.candidates
    ]


def plan_rows(candidates: Sequence["PlannedCandidate"]) -> list[dict[str, Any]]:
    """Return one row for each plan that was not replayed, best first, in SI units."""
    return [
        {
            "planner_rank": one.rank,
            **_plan_cells(one.priced.plan),
            "planned_iteration_time_s": one.planned.iteration_time,
            "replayed_iteration_time_s": one.replayed_time,
            "planned_tokens_per_s": one.planned.tokens_per_second,
            "planned_mfu": one.planned.mfu,
            "planned_peak_memory_bytes": one.planned.peak_memory,
        }
        for one in candidates
    ]


def _plan_cells(plan: "Plan") -> dict[str, Any]:
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


def _write_summary(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    # Plans have some settings only where they are not what is usual.
    heading = [*dict.fromkeys(key for row in rows for key in row)] or [*_SUMMARY_KEYS]
    path.write_text(csv_of(rows, heading), encoding="utf-8", newline="")
