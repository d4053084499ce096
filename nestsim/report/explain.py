"""Why not this configuration: text for people, JSON for programs."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from nestsim.report.json import spent_json
from nestsim.report.tables import add_row, new_table
from nestsim.report.wording import (
    layer_span,
    offload_label,
    parallel_sentence,
    plan_label,
    plural,
    recompute_label,
    schedule_label,
    signed_duration,
    without_rounding,
    zero_label,
)
from planner.cost.objective import PricedPlan
from planner.step.plan import NO_OFFLOAD
from topologies.units import format_duration, format_size

if TYPE_CHECKING:
    from nestsim.evaluate.results import ExplainResult
    from planner.explain.explain import Explanation
    from planner.step.plan import Plan

_HEADLINES: Mapping[str, tuple[str, str]] = {
    "outside": ("OUTSIDE THE SPACE", "bold red"),
    "does not fit": ("DOES NOT FIT", "bold red"),
    "winner": ("THE WINNER", "bold green"),
    "equal": ("AS FAST AS THE WINNER", "bold green"),
    "slower": ("SLOWER", "bold yellow"),
    "faster": ("FASTER THAN THE WINNER", "bold green"),
    "fits": ("FITS", "bold green"),
}
"""Verdict -> headline and style; the words say the same without colour."""

_BY_WHAT: Mapping[bool, tuple[str, str]] = {
    True: ("simulated", "By simulated times, as nestsim run chooses."),
    False: (
        "charged",
        "By the closed form that the search minimises, over all splits of all stages.",
    ),
}
"""Whether replays decide -> name of the time that does, and the sentence about it."""


def print_explanation(result: "ExplainResult", console: Console) -> None:
    """Print the verdict in words, then the named plan term by term by the winner."""
    explanation = result.explanation
    words, style = _HEADLINES[explanation.verdict]
    console.print(
        Text.assemble(Text(words, style=style), f"  {explanation.request}"),
        highlight=False,
    )
    subject = f"{result.scenario_name}: {plural(result.network.num_devices, 'device')}"
    console.print(Text(subject), highlight=False)
    for sentence in explanation_sentences(result):
        console.print(Text(sentence), highlight=False)
    plans = _plans(result)
    if not plans:
        return
    console.print(Text(_BY_WHAT[explanation.by_replay][1]), highlight=False)
    _section(console, "Plans", _plans_table(result, plans))
    if explanation.priced is None:
        return
    _section(console, "Iteration time, by cause", _terms_table(result, plans))
    _section(console, "Memory of the fullest stage", _memory_table(result, plans))


def explanation_sentences(result: "ExplainResult") -> tuple[str, ...]:
    """Say why the named values lost or do not fit, a sentence for each reason."""
    explanation = result.explanation
    sentences = [_SENTENCES[explanation.verdict](result)]
    if explanation.verdict == "does not fit" and explanation.winner is not None:
        sentences.append(f"With enough memory: {_compared(result)}")
    if explanation.excluded:
        clauses = "; ".join(explanation.excluded)
        sentences.append(
            f"The scenario does not search {explanation.request}: {clauses}."
        )
    if explanation.winner is None:
        stopped = explanation.spent.is_stopped
        nothing = "" if stopped else "Nothing in the scenario's space fits. "
        sentences.append(f"{nothing}{explanation.infeasibility}")
    elif explanation.spent.is_stopped:
        sentences.append(
            "The scenario's search was stopped by the "
            f"{explanation.spent.stopped_by}: the winner is the best so far."
        )
    return tuple(sentences)


def explain_json(result: "ExplainResult") -> dict[str, Any]:
    """Return the explanation for programs."""
    explanation = result.explanation
    both = explanation.priced is not None and explanation.winner is not None
    term, seconds = explanation.largest_difference() if both else (None, None)
    return {
        "scenario": result.scenario_name,
        "named": dict(explanation.request.values),
        "verdict": explanation.verdict,
        "decided_by": _BY_WHAT[explanation.by_replay][0],
        "reason": " ".join(explanation_sentences(result)),
        "rule": explanation.rule or None,
        "not_searched": list(explanation.excluded),
        "time_ratio": explanation.ratio if both else None,
        "difference_s": dict(explanation.differences()) if both else None,
        "largest_difference": {"term": term, "seconds": seconds} if both else None,
        "available_memory_bytes": explanation.memory,
        "missing_memory_bytes": (
            max(explanation.missing_memory, 0.0)
            if explanation.priced is not None
            else None
        ),
        "lower_bound_s": explanation.lower_bound,
        "search": spent_json(explanation.spent),
        "named_plan": _plan_json(
            explanation, explanation.priced, explanation.lacking_stage
        ),
        "winner": _plan_json(explanation, explanation.winner, explanation.winner_stage),
    }


def _plan_json(
    explanation: "Explanation", priced: PricedPlan | None, index: int
) -> dict[str, Any] | None:
    """Return a plan with the memory of its fullest stage, of the given number."""
    if priced is None:
        return None
    cost, terms = priced.stages[index], explanation.terms_of(priced)
    return {
        "plan": priced.plan.to_json(),
        "iteration_time_s": sum(terms.values()),
        "planned_time_s": priced.iteration_time,
        "terms_s": dict(terms),
        "fullest_stage": index,
        "peak_memory_bytes": cost.peak_memory,
        "memory_bytes": dict(cost.memory),
    }


def _outside(result: "ExplainResult") -> str:
    rule = result.explanation.rule
    return f"No such configuration: {rule}."


def _lacking(result: "ExplainResult") -> str:
    explanation = result.explanation
    priced = explanation.priced
    assert priced is not None
    index = explanation.lacking_stage
    stage, cost = priced.plan.stages[index], priced.stages[index]
    name, size = max(cost.memory.items(), key=lambda part: part[1])
    saving = f"{recompute_label(stage.recompute)}, {zero_label(stage.zero_stage)}"
    if stage.offload != NO_OFFLOAD:
        saving += f", {offload_label(stage.offload)}"
    return (
        f"Stage {index + 1} of {len(priced.stages)} "
        f"({layer_span(result.layer_names, stage)}) needs "
        f"{format_size(cost.peak_memory)} even with {saving}, and {result.device_name} "
        f"has {format_size(explanation.memory)} to give: "
        f"{format_size(explanation.missing_memory)} too little. Most of it is {name}, "
        f"{format_size(size)}."
    )


def _compared(result: "ExplainResult") -> str:
    explanation = result.explanation
    seconds = explanation.time - explanation.winner_time
    term, most = explanation.largest_difference()
    longer = "longer" if seconds > 0 else "shorter"
    return (
        f"it takes {format_duration(abs(seconds))} {longer} than the winner (x "
        f"{explanation.ratio:.3f}); the largest term of the difference is {term}, "
        f"{signed_duration(most)}."
    )


def _slower(result: "ExplainResult") -> str:
    sentence = _compared(result)
    return sentence[:1].upper() + sentence[1:]


def _fitting(result: "ExplainResult") -> str:
    if result.explanation.spent.is_stopped:
        return "It fits; the scenario's search was stopped before it had a plan."
    return "It fits, and nothing that the scenario searches does."


def _winning(result: "ExplainResult") -> str:
    if result.explanation.spent.is_stopped:
        return "It is the best plan that is known of the scenario's space."
    return "It is the best plan of the scenario's space."


_SENTENCES: "Mapping[str, Callable[[ExplainResult], str]]" = {
    "outside": _outside,
    "does not fit": _lacking,
    "winner": _winning,
    "equal": lambda _: "Another plan takes as long, and comes first.",
    "slower": _slower,
    "faster": _slower,
    "fits": _fitting,
}
"""Verdict -> the sentence about it."""


def _plans(result: "ExplainResult") -> dict[str, PricedPlan]:
    """Return the plans that there are, by the heading of their column."""
    explanation = result.explanation
    plans = {"Named": explanation.priced, "Winner": explanation.winner}
    if explanation.verdict == "winner":
        plans = {"Winner": explanation.winner}
    return {name: plan for name, plan in plans.items() if plan is not None}


def _section(console: Console, title: str, body: RenderableType) -> None:
    console.print()
    console.print(Text(title, style="bold underline"), highlight=False)
    console.print(body, highlight=False)


def _plans_table(result: "ExplainResult", plans: Mapping[str, PricedPlan]) -> Table:
    table = new_table("", *plans)
    rows: dict[str, Callable[[Plan], str]] = {
        "plan": plan_label,
        "parallelism": lambda plan: parallel_sentence(plan, result.network.num_devices),
        "microbatches": lambda plan: str(plan.num_microbatches),
        "schedule": schedule_label,
        "placement": lambda plan: plan.placement,
        "gradients": lambda plan: plan.gradient_algorithm,
    }
    for name, write in rows.items():
        add_row(table, name, *(write(priced.plan) for priced in plans.values()))
    return table


def _terms_table(result: "ExplainResult", plans: Mapping[str, PricedPlan]) -> Table:
    numbers = (*plans, *(("Difference",) if len(plans) > 1 else ()))
    table = new_table("Cause", *numbers, numbers=numbers)
    explanation, shown = result.explanation, list(plans.values())
    whole = [priced.iteration_time for priced in shown]
    terms = [explanation.terms_of(priced) for priced in shown]
    *causes, beside = terms[0]
    for term in causes:
        if any(one[term] for one in terms):
            _add_times(table, term, [one[term] for one in terms], whole)
    table.add_section()
    _add_times(table, "planned", whole, whole)
    _add_times(table, beside, [one[beside] for one in terms], whole)
    table.add_section()
    times = [sum(one.values()) for one in terms]
    _add_times(table, _BY_WHAT[explanation.by_replay][0], times, times)
    if len(shown) > 1:
        add_row(table, "ratio", f"x {explanation.ratio:.3f}", "x 1.000")
    return table


def _add_times(table: Table, name: str, times: list[float], whole: list[float]) -> None:
    """Add a row of times, and of two plans the difference."""
    cells = [
        format_duration(without_rounding(time, total))
        for time, total in zip(times, whole, strict=True)
    ]
    if len(times) > 1:
        cells.append(signed_duration(without_rounding(times[0] - times[1], whole[1])))
    add_row(table, name, *cells)


def _memory_table(result: "ExplainResult", plans: Mapping[str, PricedPlan]) -> Table:
    table = new_table("Part", *plans, numbers=tuple(plans))
    explanation = result.explanation
    fullest = {
        "Named": (explanation.lacking_stage, explanation.memory),
        "Winner": (explanation.winner_stage, explanation.winner_memory),
    }
    stages = {name: fullest[name][0] for name in plans}
    places = [f"{stages[name] + 1} of {len(plans[name].stages)}" for name in plans]
    add_row(table, "stage", *places)
    costs = [plans[name].stages[stages[name]] for name in plans]
    for part in costs[0].memory:
        if any(cost.memory[part] for cost in costs):
            add_row(table, part, *(format_size(cost.memory[part]) for cost in costs))
    table.add_section()
    add_row(table, "total", *(format_size(cost.peak_memory) for cost in costs))
    add_row(table, "to give", *(format_size(fullest[name][1]) for name in plans))
    return table
