"""What a comparison of planners comes to in sentences: who wins, why, who was wrong."""

import math
from collections.abc import Sequence

from nestsim.document.wording import (
    difference,
    percent,
    signed_duration,
    signed_percent,
)
from nestsim.features.compare.measure import (
    OWN_MODEL,
    belief_gap,
    differences,
    largest,
    turned_by,
)
from nestsim.features.compare.record import (
    BestPlan,
    Comparison,
    PlannerEntry,
    ScenarioEntries,
)
from topologies.units import format_duration

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
    best = group.best
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
    best = group.best
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
