"""The text report of a stress test: its tables, and its findings in sentences."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from nestsim.report.cost import cost_sentences, hourly
from nestsim.report.tables import print_line, print_section
from nestsim.report.wording import (
    UNREPEATABLE,
    number,
    offload_label,
    percent,
    plan_label,
    plural,
    signed_percent,
)
from nestsim.stress.conditions import AS_BUILT
from topologies.units import format_bandwidth

if TYPE_CHECKING:
    from rich.console import Console

    from nestsim.stress.evaluator import ConditionResult
    from nestsim.stress.results import (
        InverseAnswer,
        PlanChange,
        RobustChoice,
        StressResult,
    )

MOST_ROWS = 24
"""Conditions that a table shows."""


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


def limits_in_words(
    result: "StressResult", planner: str, planned_for: str, run_at: str
) -> str:
    """Name the link, the stage and the term that limit a plan."""
    cell = result.cell(planner, planned_for, run_at)
    if cell is None:
        return "-"
    return f"{result.term(planner, planned_for, run_at)}; {_link_in_words(cell)}"


def _link_in_words(cell: "ConditionResult") -> str:
    stage = f"stage {cell.stage}"
    if not cell.hottest:
        return f"no link; {stage}"
    link = cell.hottest[0]
    return f"{link.name} ({link.level}) busy {percent(link.share)}; {stage}"


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


_NOTEWORTHY = 1e-3
"""Size of a negative regret above which it is explained."""

_NEGATIVE = (
    "Negative: the re-made plan is faster as planned, but slower in the replay; with "
    'search.objective = "replayed" the replay chooses.'
)
"""Explanation of a negative regret."""


def print_stress(result: "StressResult", console: "Console") -> None:
    """Print the report."""
    print_line(console, Text(headline(result), style="bold"), result.scenario_name)
    names = plan_names(result)
    shown = shown_conditions(result)
    title = f"Conditions, by {result.planners[0]}"
    if len(shown) < len(result.names):
        title += f" ({len(shown)} of {len(result.names)})"
    print_section(console, title, _condition_table(result, shown))
    if any(
        (result.regret(result.planners[0], name) or 0.0) < -_NOTEWORTHY
        for name in shown
    ):
        console.print(Text(_NEGATIVE), highlight=False)
    legend = [
        f"{made}: {names[result.made[result.planners[0], made]]}"
        for made in _first_conditions(result)
    ]
    print_section(
        console,
        "Plans, and the first condition each is made for",
        Text("\n".join(legend)),
    )
    print_section(console, "All planners", _planner_table(result, shown))
    print_section(console, "Where the best plan changes", _changes_text(result))
    if result.asked is not None:
        print_section(console, "How far it can go", _answers_text(result))
    if result.currency:
        title = "How much is saved (*: on the Pareto front of throughput and cost)"
        print_section(console, title, _savings_table(result, shown))
        body = Text("\n".join(cost_sentences(result.costs[AS_BUILT])))
        print_section(console, "What costs rest on", body)
    print_section(console, "The robust choice", _robust_text(result, names))
    problems = problems_in_words(result)
    if problems:
        print_section(console, "Without results", Text("\n".join(problems)))


def _first_conditions(result: "StressResult") -> list[str]:
    """Return for each plan of the first planner the first condition it is made for."""
    seen: dict[str, str] = {}
    for name in result.names:
        key = result.made.get((result.planners[0], name))
        if key is not None:
            seen.setdefault(key, name)
    return list(seen.values())


def _condition_table(result: "StressResult", shown: tuple[str, ...]) -> Table:
    planner = result.planners[0]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("condition")
    for heading in ("tokens/s kept", "re-made", "regret", "planned"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("what limits the kept plan: term; link; stage")
    for name in shown:
        kept = result.cell(planner, AS_BUILT, name)
        fresh = result.cell(planner, name, name)
        table.add_row(
            name,
            "-" if kept is None else number(result.throughput(kept)),
            "-" if fresh is None else number(result.throughput(fresh)),
            _signed(result.regret(planner, name)),
            _signed(result.regret(planner, name, planned=True)),
            limits_in_words(result, planner, AS_BUILT, name),
        )
    return table


def _savings_table(result: "StressResult", shown: tuple[str, ...]) -> Table:
    """Return what each condition's cluster costs, and what a planner makes of it."""
    planner, code, front = result.planners[0], result.currency, result.front()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("condition")
    paid = ("the cluster", "saved", "its network")
    for heading in (*paid, f"tokens/{code} kept", "re-made", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in shown:
        cost, saved = result.costs[name], result.saved(name)
        kept = result.cost_of(name, result.cell(planner, AS_BUILT, name))
        fresh = result.cost_of(name, result.cell(planner, name, name))
        assert cost.rate is not None
        assert saved is not None
        table.add_row(
            name,
            hourly(cost.rate, code),
            percent(saved),
            "-" if cost.network_rate is None else hourly(cost.network_rate, code),
            *(
                "-" if run is None else number(run.tokens_per_money or 0.0)
                for run in (kept, fresh)
            ),
            "*" if (planner, name) in front else "",
        )
    return table


def _planner_table(result: "StressResult", shown: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tokens/s, plan re-made")
    for planner in result.planners:
        table.add_column(planner, justify="right", no_wrap=True)
    for name in shown:
        cells = [result.cell(planner, name, name) for planner in result.planners]
        table.add_row(
            name,
            *("-" if c is None else number(result.throughput(c)) for c in cells),
        )
    return table


def _signed(regret: float | None) -> str:
    return "-" if regret is None else signed_percent(regret)


def _changes_text(result: "StressResult") -> Text:
    lines = [change_in_words(one) for one in result.changes]
    if not lines:
        lines = ["At none of the ratios" if result.axes else "No ratios were varied"]
    return Text("\n".join(lines))


def _answers_text(result: "StressResult") -> Text:
    if not result.answers:
        return Text("No plan was found")
    return Text("\n".join(answer_in_words(result, one) for one in result.answers))


def _robust_text(result: "StressResult", names: dict[str, str]) -> Text:
    about = (
        f"Of {plural(len(result.plans), 'plan')} by all planners under "
        f"{plural(len(result.run_names), 'condition')} of equal weight, by the replay"
    )
    return Text("\n".join((about, *robust_in_words(result, names))))


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
