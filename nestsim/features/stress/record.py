"""A stress test as sentences, and as plain data: JSON and CSV."""

from collections import Counter
from typing import TYPE_CHECKING

from nestsim.document.dumps import ABSENT
from nestsim.document.wording import (
    UNREPEATABLE,
    hourly,
    offload_label,
    percent,
    plan_label,
    plural,
    signed_percent,
)
from nestsim.features.run.cost import cost_sentences
from nestsim.features.stress.conditions import AS_BUILT
from nestsim.features.stress.results import (
    hottest_bars,
    hottest_title,
    matrix_names,
    matrix_title,
    regret_matrix,
    share_to_keep,
    shown_conditions,
    throughput_map,
)
from nestsim.features.stress.stored import (
    AnswerRecord,
    BusyLinksRecord,
    ChoiceRecord,
    CrossedRecord,
    InverseRecord,
    MapRecord,
    RobustRecord,
    StressCostRecord,
    StressRecord,
    ToKeepRecord,
)
from nestsim.features.stress.thresholds import BestPlanChange
from nestsim.features.topology.document import degraded_json
from planner.step.plan import Plan
from topologies.units import format_bandwidth

if TYPE_CHECKING:
    from nestsim.features.stress.evaluator import ConditionResult
    from nestsim.features.stress.results import (
        InverseAnswer,
        PlanChange,
        RobustChoice,
        StressResult,
    )
    from nestsim.scenario.stress import ConditionSpec


def stress_json(result: "StressResult") -> dict[str, object]:
    """Return everything under stable keys, in SI units."""
    names = plan_names(result)
    bars = hottest_bars(result)
    return StressRecord.dump(
        result,
        headline=headline(result),
        conditions=[
            _condition_json(condition, result.network.num_devices)
            for condition in result.conditions
        ],
        plans={
            key: {"name": names[key], **plan.to_json()}
            for key, plan in result.plans.items()
        },
        made={
            planner: {name: result.made.get((planner, name)) for name in result.names}
            for planner in result.planners
        },
        cells={
            name: {key: _cell_json(result, cell) for key, cell in cells.items()}
            for name, cells in result.cells.items()
        },
        rows=stress_rows(result),
        shown=shown_conditions(result),
        lines={level: result.line(level) for level in result.axes},
        map=_map_json(result),
        crossed=CrossedRecord.dump(
            in_words=matrix_title(result),
            conditions=matrix_names(result),
            regret={who: regret_matrix(result, who).regret for who in result.planners},
        ),
        busiest_links=BusyLinksRecord(in_words=hottest_title(bars), links=bars),
        changes=[
            {
                "planner": change.planner,
                "level": change.level,
                **BestPlanChange.dump(change.change),
                "in_words": change_in_words(change),
            }
            for change in result.changes
        ],
        inverse=_inverse_json(result),
        robust=_robust_json(result),
        why_not=[
            {"planner": planner, "condition": name, "reason": reason}
            for (planner, name), reason in result.why_not.items()
        ],
        cost=_costs_json(result),
        stopped=sorted(result.stopped),
        problems=problems_in_words(result),
    )


def _map_json(result: "StressResult") -> dict[str, object] | None:
    """Return throughput over two levels' ratios; None if fewer vary."""
    if len(result.axes) < 2:
        return None
    rows, columns = list(result.axes)[-2:]
    speeds = {who: throughput_map(result, who) for who in result.planners}
    return MapRecord.dump(rows=rows, columns=columns, tokens_per_s=speeds)


def _costs_json(result: "StressResult") -> object:
    """Return what each condition's cluster costs; `ABSENT` without prices."""
    if not result.costs:
        return ABSENT
    front = result.front()
    costs = {
        name: {
            "cost_per_s": cost.rate,
            "saved_share": result.saved(name),
            "capital": cost.capital,
            "power_w": cost.power,
            "network_cost_per_s": cost.network_rate,
            "network_capital": cost.network_capital,
            "network_power_w": cost.network_power,
        }
        for name, cost in result.costs.items()
    }
    return StressCostRecord.dump(
        result,
        conditions=costs,
        pareto=[
            {"planner": planner, "condition": name}
            for planner in result.planners
            for name in result.names
            if (planner, name) in front
        ],
        assumptions=cost_sentences(result.costs[AS_BUILT]),
    )


def _condition_json(condition: "ConditionSpec", num_devices: int) -> dict[str, object]:
    return {
        "name": condition.name,
        "oversubscription": dict(condition.oversubscription),
        "degraded": degraded_json(condition.degraded, num_devices),
        "background": [
            {
                "links": traffic.links,
                "rate_bytes_per_s": traffic.rate,
                "share": traffic.share,
            }
            for traffic in condition.background
        ],
        "ecmp_seed": condition.ecmp_seed,
    }


def _cell_json(result: "StressResult", cell: "ConditionResult") -> dict[str, object]:
    return {
        "planned_iteration_time_s": cell.planned,
        "simulated_iteration_time_s": cell.simulated,
        "simulated_tokens_per_s": result.throughput(cell),
        "busiest_stage": cell.stage,
        "hottest_links": [links._asdict() for links in cell.hottest],
        "causes_s": cell.causes,
    }


def _inverse_json(result: "StressResult") -> dict[str, object] | None:
    if result.asked is None:
        return None
    to_keep = share_to_keep(result)
    return InverseRecord.dump(
        result.asked,
        to_keep=to_keep and ToKeepRecord(tokens_per_s=to_keep[0], in_words=to_keep[1]),
        answers=[
            AnswerRecord.dump(answer, in_words=answer_in_words(result, answer))
            for answer in result.answers
        ],
    )


def _robust_json(result: "StressResult") -> dict[str, object] | None:
    choices = result.robust()
    if choices is None:
        return None
    words, keys = robust_in_words(result, plan_names(result)), [*result.plans]
    least = [
        ChoiceRecord.dump(
            choice,
            plan=keys[choice.plan],
            worst_condition=result.run_names[choice.worst_condition],
            in_words=sentence,
        )
        for choice, sentence in zip(choices, words, strict=True)
    ]
    return RobustRecord.dump(least_worst=least[0], least_mean=least[1])


def stress_rows(result: "StressResult") -> list[dict[str, object]]:
    """Return one row for each planner and condition, in SI units."""
    return [
        _row(result, planner, name)
        for planner in result.planners
        for name in result.names
    ]


def _row(result: "StressResult", planner: str, name: str) -> dict[str, object]:
    kept = result.cell(planner, AS_BUILT, name)
    fresh = result.cell(planner, name, name)
    condition = result.conditions[result.names.index(name)]
    ratios = {**result.built, **condition.oversubscription}
    row: dict[str, object] = {"planner": planner, "condition": name}
    row |= {f"oversubscription_{level}": ratio for level, ratio in ratios.items()}
    for whose, cell, made_for in (
        ("kept", kept, AS_BUILT),
        ("remade", fresh, name),
    ):
        link = cell.hottest[0] if cell is not None and cell.hottest else None
        row |= {
            f"{whose}_plan": result.made.get((planner, made_for)),
            f"{whose}_planned_iteration_time_s": cell and cell.planned,
            f"{whose}_simulated_iteration_time_s": cell and cell.simulated,
            f"{whose}_simulated_tokens_per_s": cell and result.throughput(cell),
            f"{whose}_limiting_term": cell and result.term(planner, made_for, name),
            f"{whose}_busiest_stage": None if cell is None else cell.stage,
            f"{whose}_hottest_link": link and link.name,
            f"{whose}_hottest_link_level": link and link.level,
            f"{whose}_hottest_link_share": link and link.share,
        }
    row["planned_regret"] = result.regret(planner, name, planned=True)
    row["simulated_regret"] = result.regret(planner, name)
    row |= _price_cells(result, planner, name)
    row["reason"] = result.why_not.get((planner, name)) or result.failed.get(name)
    return row


def _price_cells(result: "StressResult", planner: str, name: str) -> dict[str, object]:
    """Return the cells of a row on what a plan costs; none without prices."""
    if name not in result.costs:
        return {}
    made = {
        "kept": result.cost_of(name, result.cell(planner, AS_BUILT, name)),
        "remade": result.cost_of(name, result.cell(planner, name, name)),
    }
    cost = result.costs[name]
    return {
        "currency": result.currency or None,
        "cost_per_s": cost.rate,
        "saved_share": result.saved(name),
        "network_cost_per_s": cost.network_rate,
        "power_w": cost.power,
        **{
            f"{whose}_tokens_per_currency": run and run.tokens_per_money
            for whose, run in made.items()
        },
        "pareto": (planner, name) in result.front(),
    }


def matrix_rows(result: "StressResult") -> list[dict[str, object]]:
    """Return one row for each planner, condition planned for and condition run at."""
    rows = []
    for planner in result.planners:
        for planned_for in result.names:
            for run_at in result.run_names:
                cell = result.cell(planner, planned_for, run_at)
                if cell is not None:
                    rows.append(
                        {
                            "planner": planner,
                            "planned_for": planned_for,
                            "run_at": run_at,
                            "plan": result.made[planner, planned_for],
                            "planned_iteration_time_s": cell.planned,
                            "simulated_iteration_time_s": cell.simulated,
                            "simulated_tokens_per_s": result.throughput(cell),
                        }
                    )
    return rows


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


def _differences(before: Plan, after: Plan) -> tuple[str, ...]:
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
    )


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
