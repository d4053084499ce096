"""Why not this configuration: a document for people, JSON for programs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nestsim.document.parts import (
    Cell,
    DataTable,
    Document,
    Headline,
    Section,
    Tone,
    cell,
)
from nestsim.document.wording import (
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
from nestsim.features.run.record import spent_json
from planner.cost.objective import PricedPlan
from planner.step.plan import NO_OFFLOAD
from topologies.units import format_duration, format_size

if TYPE_CHECKING:
    from nestsim.evaluate.results import ExplainResult
    from planner.explain.explain import Explanation
    from planner.step.plan import Plan

_HEADLINES: Mapping[str, tuple[str, Tone]] = {
    "outside": ("OUTSIDE THE SPACE", "bad"),
    "does not fit": ("DOES NOT FIT", "bad"),
    "winner": ("THE WINNER", "good"),
    "equal": ("AS FAST AS THE WINNER", "good"),
    "slower": ("SLOWER", "bad"),
    "faster": ("FASTER THAN THE WINNER", "good"),
    "fits": ("FITS", "good"),
}
"""Verdict -> headline, and whether it is good news."""

_BY_WHAT: Mapping[bool, tuple[str, str]] = {
    True: ("simulated", "By simulated times, as nestsim run chooses."),
    False: (
        "charged",
        "By the closed form that the search minimises, over all splits of all stages.",
    ),
}
"""Whether replays decide -> name of the time that does, and the sentence about it."""


def explain_document(result: "ExplainResult") -> Document:
    """Return the verdict in words, and the named plan beside the winner."""
    explanation = result.explanation
    words, tone = _HEADLINES[explanation.verdict]
    plans = _plans(result)
    devices = plural(result.network.num_devices, "device")
    return Document(
        subject=str(explanation.request),
        doing="plan --explain",
        headline=Headline(
            verdict=words,
            tone=tone,
            sentences=(
                f"{result.scenario_name}: {devices}.",
                *explanation_sentences(result),
                *([_BY_WHAT[explanation.by_replay][1]] if plans else []),
            ),
        ),
        sections=tuple(_sections(result, plans)),
    )


def _sections(
    result: "ExplainResult", plans: Mapping[str, PricedPlan]
) -> Iterator[Section]:
    tables = {"Plans": _plans_table}
    if result.explanation.priced is not None:
        tables["Iteration time, by cause"] = _terms_table
        tables["Memory of the fullest stage"] = _memory_table
    for title, table in tables.items() if plans else ():
        block = table(result, plans, title)
        yield Section(title.split()[0].lower(), title, (block,))


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
) -> dict[str, object] | None:
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


_PLAN_ROWS: "Mapping[str, Callable[[Plan], str]]" = {
    "plan": plan_label,
    "microbatches": lambda plan: str(plan.num_microbatches),
    "schedule": schedule_label,
    "placement": lambda plan: plan.placement,
    "gradients": lambda plan: plan.gradient_algorithm,
}
"""What is said of each plan beside its degrees."""


def _plans_table(
    result: "ExplainResult", plans: Mapping[str, PricedPlan], title: str
) -> DataTable:
    devices = result.network.num_devices
    rows: dict[str, Callable[[Plan], str]] = {
        "parallelism": lambda plan: parallel_sentence(plan, devices),
        **_PLAN_ROWS,
    }
    return DataTable(
        caption=title,
        columns=("Quantity", *plans),
        rows=tuple(
            (name, *(write(priced.plan) for priced in plans.values()))
            for name, write in rows.items()
        ),
    )


def _terms_table(
    result: "ExplainResult", plans: Mapping[str, PricedPlan], title: str
) -> DataTable:
    explanation, compared = result.explanation, list(plans.values())
    whole = [priced.iteration_time for priced in compared]
    terms = [explanation.terms_of(priced) for priced in compared]
    *causes, beside = terms[0]
    times = [sum(causes.values()) for causes in terms]
    rows = [
        _times(cause, [of_plan[cause] for of_plan in terms], whole)
        for cause in causes
        if any(of_plan[cause] for of_plan in terms)
    ]
    rows += [
        _times("planned", whole, whole),
        _times(beside, [of_plan[beside] for of_plan in terms], whole),
        _times(_BY_WHAT[explanation.by_replay][0], times, times),
    ]
    numbers = tuple(plans)
    if len(plans) > 1:
        numbers = (*plans, "Difference")
        rows.append(("ratio", f"x {explanation.ratio:.3f}", "x 1.000", ""))
    return DataTable(
        caption=title, columns=("Cause", *numbers), rows=tuple(rows), numbers=numbers
    )


def _times(
    name: str, times: Sequence[float], whole: Sequence[float]
) -> tuple[str | Cell, ...]:
    """Return a row of times, and of two plans the difference."""
    cells = [
        format_duration(without_rounding(time, total))
        for time, total in zip(times, whole, strict=True)
    ]
    if len(times) > 1:
        cells.append(signed_duration(without_rounding(times[0] - times[1], whole[1])))
    return (name, *cells)


def _memory_table(
    result: "ExplainResult", plans: Mapping[str, PricedPlan], title: str
) -> DataTable:
    explanation = result.explanation
    fullest = {
        "Named": (explanation.lacking_stage, explanation.memory),
        "Winner": (explanation.winner_stage, explanation.winner_memory),
    }
    costs = [plan.stages[fullest[name][0]] for name, plan in plans.items()]
    rows: list[tuple[str | Cell, ...]] = [
        (
            "stage",
            *(f"{fullest[name][0] + 1} of {len(plans[name].stages)}" for name in plans),
        )
    ]
    rows += [
        (part, *(cell(cost.memory[part], format_size) for cost in costs))
        for part in costs[0].memory
        if any(cost.memory[part] for cost in costs)
    ]
    rows += [
        ("total", *(cell(cost.peak_memory, format_size) for cost in costs)),
        ("to give", *(cell(fullest[name][1], format_size) for name in plans)),
    ]
    return DataTable(
        caption=title,
        columns=("Part", *plans),
        rows=tuple(rows),
        numbers=tuple(plans),
    )
