"""The findings of a stress test in sentences, and the names of its plans."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from nestsim.document.wording import (
    UNREPEATABLE,
    hourly,
    offload_label,
    percent,
    plan_label,
    plural,
    signed_percent,
)
from nestsim.features.stress.conditions import AS_BUILT
from topologies.units import format_bandwidth

if TYPE_CHECKING:
    from nestsim.features.stress.results import (
        InverseAnswer,
        PlanChange,
        RobustChoice,
        StressResult,
    )

MOST_ROWS = 24
"""Conditions that the text and figures show."""


def plan_names(result: "StressResult") -> dict[str, str]:
    """Return a short name for each plan, no two alike, by key."""
    names = {
        key: f"{plan_label(plan)} ({plan.placement})"
        for key, plan in result.plans.items()
    }
    for detail in ("gradient_algorithm", "tensor_algorithm"):
        count = Counter(names.values())
        names = {
            key: f"{name} {getattr(result.plans[key], detail)}"
            if count[name] > 1
            else name
            for key, name in names.items()
        }
    count = Counter(names.values())
    seen: Counter[str] = Counter()
    for key, name in names.items():
        if count[name] > 1:
            seen[name] += 1
            names[key] = f"{name} #{seen[name]}"
    return names


def shown_conditions(result: "StressResult") -> tuple[str, ...]:
    """Return the conditions that tables and figures show.

    All, if they are few; else without combinations of ratios; then the first ones.
    """
    if len(result.names) <= MOST_ROWS:
        return result.names
    simple = [name for name in result.names if name not in result.combined]
    return tuple(simple[:MOST_ROWS])


def headline(result: "StressResult") -> str:
    """Say what keeping the healthy plan costs at worst, and what the network costs."""
    planner = result.planners[0]
    base = result.cell(planner, AS_BUILT, AS_BUILT)
    if base is None:
        return f"{planner} finds no plan for the network as built"
    costs = {
        name: base.simulated / cell.simulated
        for name in result.run_names
        if (cell := result.cell(planner, AS_BUILT, name)) is not None
    }
    worst = min(costs, key=lambda name: costs[name])
    return (
        f"Kept, {planner}'s plan reaches {percent(costs[worst])} of its throughput "
        f"under {worst}, the worst of {plural(len(costs), 'condition')}"
    )


def change_in_words(plan_change: "PlanChange") -> str:
    """Say between which ratios a planner's plan changes, and to what."""
    from planner.step.plan import Plan

    change = plan_change.change
    before, after = (Plan.from_json(data) for data in (change.before, change.after))
    labels = [f"{plan_label(plan)} ({plan.placement})" for plan in (before, after)]
    if labels[0] == labels[1]:
        labels = [
            f"{label}, {detail}"
            for label, detail in zip(labels, _differences(before, after), strict=True)
        ]
    gain = signed_percent(-change.gain)
    simulated = signed_percent(-change.simulated_gain)
    return (
        f"{plan_change.planner}, {plan_change.level} between {change.low:.4g}:1 and "
        f"{change.high:.4g}:1: from {labels[0]} to {labels[1]} "
        f"(time there: planned {gain}, simulated {simulated})"
    )


def _differences(before: Any, after: Any) -> tuple[str, str]:
    """Return how two plans of the same degrees differ."""
    for name in ("gradient_algorithm", "tensor_algorithm"):
        first, second = getattr(before, name), getattr(after, name)
        if first != second:
            words = name.replace("_algorithm", " collectives by")
            return f"{words} {first}", f"{words} {second}"
    pairs = zip(before.stages, after.stages, strict=True)
    stage = next(index for index, (a, b) in enumerate(pairs) if a != b)
    return tuple(
        f"stage {stage}: layers {plan.stages[stage].layers}, recompute "
        f"{plan.stages[stage].recompute}, "
        f"shards of {plan.stages[stage].sharding_group_size} "
        f"{offload_label(plan.stages[stage].offload)}".rstrip()
        for plan in (before, after)
    )  # type: ignore[return-value]


def answer_in_words(result: "StressResult", answer: "InverseAnswer") -> str:
    """Say how far a level can be worsened."""
    asked = result.asked
    assert asked is not None
    share = percent(asked.keep)
    plan = "the plan kept" if answer.policy == "kept" else "plans re-made"
    by = asked.quantity == "oversubscription"

    def end(worsening: float, bandwidth: float | None) -> str:
        left = format_bandwidth(bandwidth or 0.0)
        if by:
            return f"{worsening:.4g}:1 ({left} from each block)"
        return f"{left} a link (a factor of {worsening:.4g})"

    what = f"the {'highest oversubscription' if by else 'lowest bandwidth'}"
    begin = f"With {plan}, {what} of level {asked.level} that keeps {share} is "
    low, high = answer.bandwidths
    if answer.kept is None:
        text = f"With {plan}, no {asked.quantity} of level {asked.level} keeps {share}"
    elif answer.lost is None:
        text = f"{begin}beyond {end(answer.kept, low)}, the worst that was tried"
    else:
        text = f"{begin}between {end(answer.kept, low)} and {end(answer.lost, high)}"
    if not answer.is_monotone:
        text += (
            "; throughput does not fall all the way there, so this is one crossing of "
            "perhaps several"
        )
    return f"{text}. {_saved_in_words(answer)}".rstrip()


def _saved_in_words(answer: "InverseAnswer") -> str:
    """Say what the network saves that keeps the share; empty without prices."""
    if answer.costs is None or answer.kept is None:
        return ""
    before, after = answer.costs
    if not before.rate or not after.rate:
        return ""
    code, left = before.currency, after.rate / before.rate
    text = (
        f"Against 1:1 it saves {percent(1 - left)} of the cost of the cluster, "
        f"{hourly(before.rate - after.rate, code)} of {hourly(before.rate, code)}"
    )
    if before.network_rate and after.network_rate is not None:
        share = 1.0 - after.network_rate / before.network_rate
        text += f", and {percent(share)} of that of its network"
    gained = dict(answer.tried)[answer.kept] / left - 1.0
    return f"{text}; tokens for a {code}: {signed_percent(gained)}."


def robust_in_words(result: "StressResult", names: dict[str, str]) -> tuple[str, ...]:
    """Name the plans with the least worst and the least mean regret."""
    choices = result.robust()
    if choices is None:
        return ("There is no plan",)

    def sentence(what: str, choice: "RobustChoice") -> str:
        key = list(result.plans)[choice.plan]
        origin = next(
            f"{planner}'s for {name}"
            for (planner, name), made in result.made.items()
            if made == key
        )
        return (
            f"Least {what} regret: {names[key]}, {origin}: at worst "
            f"{percent(choice.worst)} slower than the best plan "
            f"({result.run_names[choice.worst_condition]}), "
            f"{percent(choice.mean)} on average"
        )

    return sentence("worst-case", choices[0]), sentence("mean", choices[1])


def problems_in_words(result: "StressResult") -> list[str]:
    """Say what has no results, and which results may be better."""
    lines = [
        f"{planner}, {name}: {why}" for (planner, name), why in result.why_not.items()
    ]
    lines += [f"{name}: {why}" for name, why in result.failed.items()]
    if result.stopped:
        count = plural(len(result.stopped), "search")
        lines.append(
            f"{count} stopped by search.work_limit or search.time_limit: plans are the "
            "best found so far"
        )
    if not result.is_reproducible:
        lines.append(UNREPEATABLE)
    return lines
