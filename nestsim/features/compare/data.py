"""A comparison of planners as JSON, as CSV and as a folder of files.

Search times differ from run to run. They stand in the JSON that is printed and in a
table of their own; everything else has the same bytes every time.

The folder holds a copy of each scenario, ``comparison.csv``, ``comparison.json``,
``comparison.png``, ``report.txt``, ``search_times.csv`` and ``manifest.json`` with the
hash of each file that is the same on every run. While a comparison is under way, and
after it was killed, it holds the store of finished points that the same comparison goes
on from.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nestsim.document.dumps import csv_of, dump_json, plain_values
from nestsim.document.folder import PAGE, Writer, writer_of
from nestsim.document.parts import Document
from nestsim.document.sheet import draw_document
from nestsim.document.terminal import plain_text, print_document
from nestsim.features.compare.document import comparison_document
from nestsim.features.compare.measure import belief_gap, differences
from nestsim.features.compare.record import Comparison, PlannerEntry, ScenarioEntries
from nestsim.features.compare.words import comparison_title, sentences
from nestsim.features.run.cost import cost_cells, cost_json
from nestsim.features.run.record import _throughput
from nestsim.scenario.load import Scenario


def comparison_json(
    comparison: Comparison, *, with_times: bool = True
) -> dict[str, Any]:
    """Return a comparison for programs.

    Parameters
    ----------
    comparison
        What was found.
    with_times
        Whether to add how long the searches took, which differs from run to run.
    """
    report = {
        "headline": comparison_title(comparison),
        "planners": comparison.planners,
        "base": comparison.base,
        "groups": [
            _group_json(one, with_times=with_times) for one in comparison.groups
        ],
    }
    plain: dict[str, Any] = plain_values(report)
    return plain


def _group_json(group: ScenarioEntries, *, with_times: bool) -> dict[str, Any]:
    best = group.best
    return {
        "scenario": group.scenario,
        "model": group.model,
        "num_devices": group.num_devices,
        "device_memory_bytes": group.device_memory,
        "fastest": best.planner if best else None,
        "confirmed": group.is_confirmed,
        "space": "launchable" if group.launchable else "free",
        "launchability_price": group.launchability_price,
        "entries": [
            _entry_json(group, entry, with_times=with_times) for entry in group.entries
        ],
        "sentences": sentences(group),
    }


def _entry_json(
    group: ScenarioEntries, entry: PlannerEntry, *, with_times: bool
) -> dict[str, Any]:
    made, best = entry.found, group.best
    gap = simulated = None
    if made is not None:
        total = made.simulated.iteration_time - made.planned.iteration_time
        gap = {"total_s": total, "terms": made.gap_terms}
        simulated = _throughput(made.simulated)
    return {
        "planner": entry.planner,
        "sees": entry.sees,
        "valid": entry.is_valid,
        "verdict": made.verdict if made else None,
        "reason": (made.reason if made else "") or entry.obstacle,
        "plan": made.plan.to_json() if made else None,
        "broken_rules": list(made.broken_rules) if made else [],
        "launchable_time_s": entry.launchable_time,
        "free_time_s": entry.free_time,
        **({"search_time_s": entry.search_time} if with_times else {}),
        "evaluations": entry.evaluations,
        "work": entry.spent.work,
        "stopped_by": entry.spent.stopped_by or None,
        "reproducible": entry.spent.is_reproducible,
        "lower_bound_s": entry.lower_bound,
        "belief_s": entry.belief,
        "seeds_s": entry.spread,
        "notes": list(entry.notes),
        "planned": {**_throughput(made.planned), "terms_s": made.planned_terms}
        if made
        else None,
        "simulated": simulated,
        **_cost_json(group, entry),
        "gap": gap,
        "relative_throughput": {
            "planned": group.planned_ratio(entry),
            "simulated": group.simulated_ratio(entry),
        },
        "simulated_minus_belief_s": belief_gap(entry)
        if made and math.isfinite(entry.belief)
        else None,
        "longer_than_fastest_s": differences(best.found, made)
        if made and best and best.found
        else None,
    }


def _cost_json(group: ScenarioEntries, entry: PlannerEntry) -> dict[str, Any]:
    """Return what a plan costs; nothing where the scenario does not say."""
    run = group.cost_of(entry)
    if run is None:
        return {} if group.cost is None else {"cost": None}
    return {"cost": cost_json(run)}


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return one row for each scenario and planner, in SI units."""
    priced = {
        (group.scenario, entry.planner): cost_cells(group.cost_of(entry))
        for group in comparison.groups
        for entry in group.entries
    }
    columns = dict.fromkeys(name for cells in priced.values() for name in cells)
    return [
        {
            "scenario": group.scenario,
            "model": group.model,
            "num_devices": group.num_devices,
            "planner": entry.planner,
            **_plan_cells(group, entry),
            **_search_cells(entry),
            **{n: priced[group.scenario, entry.planner].get(n) for n in columns},
            "obstacle": entry.obstacle,
        }
        for group in comparison.groups
        for entry in group.entries
    ]


_PLAN_COLUMNS = (
    "virtual_pipeline_model_parallel_size",
    "micro_batch_size",
    "num_microbatches",
    "schedule",
    "recompute",
    "zero_stage",
    "placement",
)
"""Settings of a plan that have a column."""

_PARALLEL_COLUMNS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "data_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "sequence_parallel",
)
"""Parallel sizes of a plan that have a column."""


def _plan_cells(group: ScenarioEntries, entry: PlannerEntry) -> dict[str, Any]:
    made = entry.found
    data = made.plan.settings_json() if made else {"parallel": {}}
    cells: dict[str, Any] = {
        "verdict": made.verdict if made else "none",
        "valid": entry.is_valid,
        **{name: data["parallel"].get(name) for name in _PARALLEL_COLUMNS},
        **{name: data.get(name) for name in _PLAN_COLUMNS},
        "devices_used": made.plan.devices_used if made else None,
        "belief_iteration_time_s": entry.belief,
    }
    for name, field in (
        ("iteration_time_s", "iteration_time"),
        ("tokens_per_s", "tokens_per_second"),
        ("mfu", "mfu"),
        ("peak_memory_bytes", "peak_memory"),
    ):
        cells[f"planned_{name}"] = getattr(made.planned, field) if made else None
        cells[f"simulated_{name}"] = getattr(made.simulated, field) if made else None
    cells["base"] = group.base
    cells["planned_relative_throughput"] = group.planned_ratio(entry)
    cells["simulated_relative_throughput"] = group.simulated_ratio(entry)
    return cells


def _search_cells(entry: PlannerEntry) -> dict[str, Any]:
    finite = [time for time in entry.spread if math.isfinite(time)]
    return {
        "evaluations": entry.evaluations,
        "work": entry.spent.work,
        "stopped_by": entry.spent.stopped_by or None,
        "reproducible": entry.spent.is_reproducible,
        "lower_bound_s": entry.lower_bound,
        "num_seeds": len(entry.spread),
        "best_seed_s": min(finite, default=None),
        "worst_seed_s": max(entry.spread, default=None),
    }


def comparison_csv(comparison: Comparison) -> str:
    """Return the rows as CSV."""
    return rows_csv(comparison_rows(comparison))


def search_times_csv(comparison: Comparison) -> str:
    """Return how long the searches took as CSV."""
    return rows_csv(
        [
            {
                "scenario": group.scenario,
                "planner": entry.planner,
                "search_time_s": entry.search_time,
            }
            for group in comparison.groups
            for entry in group.entries
        ]
    )


def rows_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Write rows as CSV, empty where JSON has null."""
    return csv_of(plain_values(list(rows)))


STORE = "sweep.sqlite"
"""Name of the store of finished points in the folder of a comparison that is under
way."""

TIMES = "search_times.csv"
"""Name of the file that differs from run to run."""

FILES = (
    *("comparison.csv", "comparison.json", "comparison.png", "report.txt"),
    *(TIMES, PAGE),
)
"""Names of the files of a comparison beside copies of what was read."""


def comparison_files(scenarios: Sequence[Scenario]) -> list[str]:
    """Return the names of all files of the folder, but the store and the manifest."""
    return [*scenario_copies(scenarios), *FILES]


def comparison_writers(
    comparison: Comparison, scenarios: Sequence[Scenario]
) -> dict[str, Writer]:
    """Return what writes each file, by name."""
    data = comparison_json(comparison, with_times=False)
    texts: dict[str, str | bytes] = {
        **scenario_copies(scenarios),
        "comparison.csv": comparison_csv(comparison),
        "comparison.json": dump_json(data),
        TIMES: search_times_csv(comparison),
    }
    return folder_writers(texts, comparison_document(data))


def folder_writers(
    texts: Mapping[str, str | bytes], document: Document
) -> dict[str, Writer]:
    """Return what writes texts, the report and the picture, by name."""
    report = plain_text(lambda console: print_document(document, console))
    return {
        **{name: writer_of(text) for name, text in texts.items()},
        "report.txt": writer_of(report),
        "comparison.png": lambda path: draw_document(document, path),
    }


def comparison_facts(scenarios: Sequence[Scenario]) -> dict[str, Any]:
    """Return what the manifest says beside the hash of each file."""
    copies = scenario_copies(scenarios)
    names = {n: one.name for n, one in zip(copies, scenarios, strict=True)}
    modules = {n: one.module_facts() for n, one in zip(copies, scenarios, strict=True)}
    used = {name: facts for name, facts in modules.items() if facts}
    return {"scenarios": names, **({"modules": used} if used else {})}


def scenario_copies(scenarios: Sequence[Scenario]) -> dict[str, bytes]:
    """Return the scenario files under different names, as the user wrote them."""
    return copies_of((scenario.path.stem, scenario.text) for scenario in scenarios)


def copies_of(files: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Return texts by names without ``.toml``, each of which gets a name of its own."""
    copies: dict[str, bytes] = {}
    for stem, text in files:
        name, number = f"{stem}.toml", 1
        while name in copies:
            number += 1
            name = f"{stem}_{number}.toml"
        copies[name] = text
    return copies
