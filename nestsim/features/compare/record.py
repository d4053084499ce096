"""A comparison of planners as sentences, as JSON, as CSV and as a folder of files.

The sentences say who wins, why, and who was wrong. Search times differ from run to run.
They stand in the JSON that is printed and in a table of their own; everything else has
the same bytes every time.

The folder holds a copy of each scenario, ``comparison.csv``, ``comparison.json``,
``comparison.png``, ``report.txt``, ``search_times.csv`` and ``manifest.json`` with the
hash of each file that is the same on every run. While a comparison is under way, and
after it was killed, it holds the store of finished points that the same comparison goes
on from.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from nestsim.document.dumps import ABSENT, csv_of, plain_values
from nestsim.document.folder import PAGE, REPORT
from nestsim.document.wording import (
    difference,
    percent,
    signed_duration,
    signed_percent,
)
from nestsim.features.compare.results import (
    OWN_MODEL,
    BestPlan,
    ComparedEntries,
    Comparison,
    PlannerEntry,
    ScenarioEntries,
    belief_gap,
    differences,
    largest,
    turned_by,
)
from nestsim.features.compare.stored import (
    ComparisonRecord,
    GroupRecord,
    PlannedRecord,
    PlannerRecord,
)
from nestsim.features.run.cost import cost_cells, cost_json
from nestsim.features.run.result_record import ThroughputRecord
from nestsim.features.sweep.scenario_task import PLAN_COLUMNS
from nestsim.scenario.load import Scenario
from topologies.units import format_duration


def comparison_json(
    comparison: Comparison, *, with_times: bool = True
) -> dict[str, object]:
    """Return a comparison for programs.

    Parameters
    ----------
    comparison
        What was found.
    with_times
        Whether to add how long the searches took, which differs from run to run.
    """
    return ComparisonRecord.dump(
        comparison,
        headline=comparison_title(comparison),
        groups=[
            GroupRecord.dump(
                group,
                space="launchable" if group.launchable else "free",
                entries=[
                    _entry_json(group, entry, with_times=with_times)
                    for entry in group.entries
                ],
                sentences=sentences(group),
            )
            for group in comparison.groups
        ],
    )


def _entry_json(
    group: ScenarioEntries, entry: PlannerEntry, *, with_times: bool
) -> dict[str, object]:
    made, best = entry.found, group.fastest
    gap = planned = longer = None
    if made is not None:
        total = made.simulated.iteration_time - made.planned.iteration_time
        gap = {"total_s": total, "terms": made.gap_terms}
        terms = made.planned_terms
        planned = PlannedRecord.dump(made.planned, terms_s=terms)
        longer = differences(best.found, made) if best and best.found else None
    return PlannerRecord.dump(
        entry,
        **varying(group, entry, with_times=with_times),
        planned=planned,
        gap=gap,
        relative_throughput={
            "planned": group.planned_ratio(entry),
            "simulated": group.simulated_ratio(entry),
        },
        simulated_minus_belief_s=belief_gap(entry)
        if made and math.isfinite(entry.belief)
        else None,
        longer_than_fastest_s=longer,
    )


def varying(
    group: ComparedEntries, entry: PlannerEntry, *, with_times: bool
) -> dict[str, object]:
    """Return the keys that not every record of an entry has.

    No cost where the scenario does not say, and no time of the search where it is not
    asked for.
    """
    run = group.cost_of(entry)
    return {
        "cost": ABSENT if group.cost is None else run and cost_json(run),
        "search_time_s": entry.search_time if with_times else ABSENT,
    }


def comparison_rows(comparison: Comparison) -> list[dict[str, object]]:
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
            **_search_cells(entry, _entry_json(group, entry, with_times=False)),
            **{n: priced[group.scenario, entry.planner].get(n) for n in columns},
            "obstacle": entry.obstacle,
        }
        for group in comparison.groups
        for entry in group.entries
    ]


_PARALLEL_COLUMNS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "data_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "sequence_parallel",
)
"""Parallel sizes of a plan that have a column."""


def _plan_cells(group: ScenarioEntries, entry: PlannerEntry) -> dict[str, object]:
    made = entry.found
    data = made.plan.settings_json() if made else {"parallel": {}}
    cells: dict[str, object] = {
        "verdict": made.verdict if made else "none",
        "valid": entry.is_valid,
        **{name: data["parallel"].get(name) for name in _PARALLEL_COLUMNS},
        **{name: data.get(name) for name in PLAN_COLUMNS},
        "devices_used": made.plan.devices_used if made else None,
        "belief_iteration_time_s": entry.belief,
    }
    planned, simulated = throughput_cells(made)
    for name in planned:
        cells[f"planned_{name}"] = planned[name]
        cells[f"simulated_{name}"] = simulated[name]
    cells["base"] = group.base
    cells["planned_relative_throughput"] = group.planned_ratio(entry)
    cells["simulated_relative_throughput"] = group.simulated_ratio(entry)
    return cells


def throughput_cells(made: BestPlan | None) -> list[dict[str, object]]:
    """Return the cells of a plan's throughput, planned and replayed; empty for none."""
    names = ("iteration_time_s", "tokens_per_s", "mfu", "peak_memory_bytes")
    if made is None:
        return [dict.fromkeys(names)] * 2
    sides = (ThroughputRecord.dump(x) for x in (made.planned, made.simulated))
    return [{name: side[name] for name in names} for side in sides]


_SEARCH_COLUMNS = (
    *("evaluations", "work", "stopped_by", "reproducible", "lower_bound_s"),
)
"""Keys of an entry's record on its search that have a column."""


def _search_cells(
    entry: PlannerEntry, record: Mapping[str, object]
) -> dict[str, object]:
    finite = [time for time in entry.spread if math.isfinite(time)]
    return {
        **{name: record[name] for name in _SEARCH_COLUMNS},
        "num_seeds": len(entry.spread),
        "best_seed_s": min(finite, default=None),
        "worst_seed_s": max(entry.spread, default=None),
    }


def search_times(
    name: str, groups: Mapping[str, ComparedEntries]
) -> list[dict[str, object]]:
    """Return how long each search took, a row each.

    Parameters
    ----------
    name
        What the groups are.
    groups
        Label -> what each planner found there.
    """
    return [
        {name: label, "planner": entry.planner, "search_time_s": entry.search_time}
        for label, group in groups.items()
        for entry in group.entries
    ]


def rows_csv(rows: Sequence[dict[str, object]]) -> str:
    """Write rows as CSV, empty where JSON has null."""
    return csv_of(plain_values(list(rows)))


STORE = "sweep.sqlite"
"""Name of the store of finished points in the folder of a comparison that is under
way."""

TIMES = "search_times.csv"
"""Name of the file that differs from run to run."""

FILES = (
    *("comparison.csv", "comparison.json", "comparison.png", REPORT),
    *(TIMES, PAGE),
)
"""Names of the files of a comparison beside copies of what was read."""


def comparison_facts(scenarios: Sequence[Scenario]) -> dict[str, object]:
    """Return what the manifest says beside the hash of each file."""
    copies = scenario_copies(scenarios)
    names = {n: scenario.name for n, scenario in zip(copies, scenarios, strict=True)}
    modules = {
        n: scenario.module_facts()
        for n, scenario in zip(copies, scenarios, strict=True)
    }
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


EQUAL = 1e-9
"""Relative difference of times that rounding explains."""

CLOSE = 0.01
"""Relative difference of times below which no verdict separates them under
contention."""

FAR = 0.05
"""Relative miss of a belief by the replay above which it is worth a sentence."""


LEAST_LEAD = 5e-4
"""A lead that a title names."""


def comparison_title(comparison: Comparison) -> str:
    """Say who is fastest in the replay, and by how much or how often."""
    groups = comparison.groups
    wins = [name for group in groups for name in fastest(group)]
    most = max((wins.count(name) for name in comparison.planners), default=0)
    if most == 0:
        return "No planner has a plan that the replay finds room for"
    winners = [name for name in comparison.planners if wins.count(name) == most]
    title = f"Fastest in the replay: {listed(winners)}"
    if len(groups) > 1:
        return f"{title}, in {most} of {len(groups)} scenarios"
    times = [entry.simulated_time for entry in groups[0].entries if entry.is_valid]
    lead = max(times) / min(times) - 1.0
    return f"{title}, up to {percent(lead)} ahead" if lead >= LEAST_LEAD else title


def sentences(group: ScenarioEntries) -> list[str]:
    """Return what is to be said of one scenario."""
    best = group.fastest
    if best is None or best.found is None:
        nothing = "No planner has a plan that the replay finds room for."
        return [nothing, *_repeatable(group)]
    lines = [_winner(group, best), *_of_rules(group)]
    for entry in group.entries:
        if entry is best or entry.found is None or not entry.is_valid:
            continue
        if not _are_equal(entry, best):
            lines.append(_slower(entry.planner, best.found, entry))
            lines += _reversal(entry, best)
    lines += _misses(group.entries)
    for entry in group.entries:
        lines += _search(entry)
    return lines + _repeatable(group)


def _repeatable(group: ScenarioEntries) -> list[str]:
    """Say so if searches of another run may find something else."""
    if all(entry.spent.is_reproducible for entry in group.entries):
        return []
    return ["Searches had a limit of wall time: results may differ from run to run."]


def fastest(group: ScenarioEntries) -> list[str]:
    """Return the planners whose plan no other one's beats in the replay."""
    best = group.fastest
    return [
        entry.planner
        for entry in group.entries
        if best is not None and entry.is_valid and _are_equal(entry, best)
    ]


def _are_equal(entry: PlannerEntry, other: PlannerEntry) -> bool:
    gap = difference(other.simulated_time, entry.simulated_time)
    return abs(gap) <= EQUAL


def _winner(group: ScenarioEntries, best: PlannerEntry) -> str:
    names = fastest(group)
    verb = "is" if len(names) == 1 else "are"
    time = format_duration(best.simulated_time)
    return f"{listed(names)} {verb} fastest in the replay, with {time} per iteration."


def _of_rules(group: ScenarioEntries) -> list[str]:
    """Say what plans were held to, who was not, and what that costs."""
    if not group.framework:
        return []
    every = "All planners are" if group.launchable else "No planner is"
    rules = f"rules: {group.framework}"
    lines = [f"{every} held to what can be launched ({rules})."]
    broken: dict[str, list[str]] = {}
    for entry in group.entries:
        if entry.found is not None and entry.found.broken_rules:
            text = "; ".join(entry.found.broken_rules)
            broken.setdefault(text, []).append(entry.planner)
    lines += [
        f"{listed(names)}: the plan breaks rules of the framework: {text}."
        for text, names in broken.items()
    ]
    price = group.launchability_price
    least = " at least" if group.launchable else ""
    if price > 1.0 + EQUAL:
        lines.append(
            f"What can be launched costs{least} {percent(price - 1.0)}: its fastest "
            f"plan takes {price:.3f} times as long in the replay as the fastest that "
            "cannot, of the plans that planners had."
        )
    elif math.isfinite(price) and not group.launchable:
        lines.append(
            "What can be launched costs nothing here: no plan that cannot, of those "
            "that planners had, is faster in the replay."
        )
    return lines


def _slower(name: str, best: BestPlan, entry: PlannerEntry) -> str:
    assert entry.found is not None
    parts = differences(best, entry.found)
    longer = difference(best.simulated.iteration_time, entry.simulated_time)
    cause = largest(parts)
    total = entry.simulated_time - best.simulated.iteration_time
    close = " (too close to tell apart under contention)" if longer < CLOSE else ""
    return (
        f"{name} takes {percent(longer)} longer, {signed_duration(total)}{close}: the "
        f"term that differs most is {cause.term}, {signed_duration(cause.seconds)}."
    )


def _reversal(entry: PlannerEntry, best: PlannerEntry) -> list[str]:
    """Say what cost a planner the lead that its plan had."""
    assert entry.found is not None
    assert best.found is not None
    cause = turned_by(entry.found, best.found)
    if cause is None:
        return []
    lead = difference(entry.planned_time, best.planned_time)
    return [
        f"As planned, {entry.planner} is not slower than {best.planner} (by "
        f"{percent(lead)} faster): the replay turns that round, mostly by {cause.term} "
        f"({signed_duration(cause.seconds)})."
    ]


def _misses(entries: Sequence[PlannerEntry]) -> list[str]:
    """Say of promises that are far off by how much, and by which term."""
    planners: dict[str, list[str]] = {}
    for entry in entries:
        if text := _miss(entry):
            planners.setdefault(text, []).append(entry.planner)
    return [f"{listed(names)}: {text}" for text, names in planners.items()]


def _miss(entry: PlannerEntry) -> str:
    """Compare what was believed, planned and replayed; "" where that is close."""
    made = entry.found
    if made is None:
        return ""
    planned, simulated = made.planned.iteration_time, made.simulated.iteration_time
    believes = math.isfinite(entry.belief)
    promise = entry.belief if believes else planned
    off = difference(promise, simulated)
    if abs(off) <= FAR:
        return ""
    by_model = difference(promise, planned)
    if abs(by_model) <= EQUAL:
        before = f"planned {format_duration(planned)}"
    else:
        before = (
            f"believed {format_duration(promise)}, planned {format_duration(planned)} "
            f"by the common evaluator ({signed_percent(by_model)})"
        )
    cause = largest(belief_gap(entry) if believes else made.gap_terms)
    text = (
        f"{before}, replayed {format_duration(simulated)} ({signed_percent(off)}). "
        f"Most of it is {cause.term}, {signed_duration(cause.seconds)}."
    )
    if cause.term == OWN_MODEL:
        text += f" What it sees: {entry.sees[:1].lower()}{entry.sees[1:]}"
    return text


def _search(entry: PlannerEntry) -> list[str]:
    """Say what is to be known of a search.

    What its planner notes, seeds that differ, a limit that ended it.
    """
    lines = [f"{entry.planner}: {note}" for note in entry.notes]
    times = [time for time in entry.spread if math.isfinite(time)]
    if times and len(entry.spread) > 1:
        failed = len(entry.spread) - len(times)
        nothing = f"; {failed} found nothing" if failed else ""
        low, high = min(times), max(times)
        between = (
            "all the same plan's time"
            if difference(low, high) <= EQUAL
            else f"{format_duration(low)} to {format_duration(high)} "
            f"({signed_percent(difference(low, high))})"
        )
        lines.append(
            f"{entry.planner}'s best by {len(entry.spread)} seeds, as planned: "
            f"{between}{nothing}."
        )
    if entry.spent.is_stopped and entry.found is not None:
        lines.append(
            f"The {entry.spent.stopped_by} ended the search of {entry.planner}; this "
            "is its best so far."
        )
    return lines


def listed(names: Sequence[str]) -> str:
    """Write names as a list: ``nest, manual and mcmc``."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if names[1:] else names[0]
