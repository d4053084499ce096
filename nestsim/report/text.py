"""Results as text, for a person at a terminal or reading a log.

A report is on a job with its search, on one plan that was given, or on a scenario's
assertions, what was found beside the expected. Nothing rests on colour alone, and
nothing is cut off: the same report is readable at 80 columns, at 120, and in a file.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.evaluate.results import Checked
from nestsim.evaluate.uncertainty import SHARE, MemoryNeed
from nestsim.lowering.notes import left_out_level_notes
from nestsim.report.assumptions import assumptions_json, assumptions_rows
from nestsim.report.cost import print_cost
from nestsim.report.json import (
    band_json,
    broken_rules_json,
    gap_json,
    job_json,
    memory_json,
    optimality_gap,
    plain_values,
    planned_json,
    priced_json,
    promised_time,
    reported_candidate,
    simulated_json,
)
from nestsim.report.statistics import (
    bubble_fraction,
    hottest_links,
    iteration_causes,
    level_uses,
    mean_breakdown,
    stage_breakdowns,
)
from nestsim.report.tables import (
    VERDICT_STYLES,
    add_row,
    candidates_table,
    causes_table,
    facts,
    gap_table,
    levels_table,
    links_table,
    new_table,
    planned_stage_table,
    plans_table,
    print_line,
    print_section,
    stage_table,
    throughput_table,
)
from nestsim.report.wording import (
    engine_sentence,
    gap_sentence,
    mfu_words,
    no_plan_words,
    number,
    offload_label,
    others_sentence,
    parallel_sentence,
    percent,
    plural,
    recompute_of_plan,
    schedule_label,
    second_copies_of_plan,
    spent_words,
    verdict_words,
    zero_label,
)
from planner.cost.objective import PricedPlan
from planner.frameworks.framework import IDEAL_PRESET
from topologies.network import Network
from topologies.units import format_duration, format_size

if TYPE_CHECKING:
    from nestsim.evaluate.results import (
        Candidate,
        JobResult,
        PlannedCandidate,
        PlanResult,
        ReplayedResult,
    )

if TYPE_CHECKING:
    AnyCandidate = Candidate | PlannedCandidate

ROUNDING = 1e-9
"""Gaps up to this are none."""

_NUM_LINKS = 5
"""Rows of the table of hottest links; `result.json` has more."""


def print_job(result: "ReplayedResult", console: Console) -> None:
    """Print what `nestsim run` found: verdict, plan, planned beside simulated, why."""
    best = reported_candidate(result)
    if best is None:
        _print_shortfall(result, console)
        return
    print_headline(console, result, best, unproven_words(result, best))
    if result.chosen is None:
        console.print(
            Text("No replayed plan was confirmed; the fastest one is shown."),
            highlight=False,
        )
    print_proof(console, result, best)
    print_broken_rules(console, result, best)
    print_times(console, result, best)
    print_section(
        console,
        "Replayed plans, fastest first (Rank: the planner's; *: the plan above)",
        candidates_table(result.candidates, result.chosen or 0),
    )
    if sentence := others_sentence(result.candidates):
        console.print(Text(sentence), highlight=False)
    print_traffic(console, best, result.network)
    print_section(console, "Search", facts(search_facts(result, best)))


def print_proof(
    console: Console,
    result: "JobResult[Any]",
    best: "AnyCandidate",
) -> None:
    """Print what the search has proven of the plan that it found."""
    sentence = proof_sentence(result, best)
    if sentence:
        console.print(Text(sentence), highlight=False)


def proof_sentence(result: "JobResult[Any]", best: "AnyCandidate") -> str:
    """Say what the search has proven of a plan; empty where that is nothing."""
    gap = optimality_gap(promised_time(result, best), result.lower_bound)
    if result.objective == "planned" or not math.isfinite(gap):
        return ""
    if result.spent.is_stopped:
        return (
            f"Not proven: the {result.spent.stopped_by} ended the search, and another "
            f"plan may replay up to {percent(gap / (1.0 + gap))} faster."
        )
    # What `Execution.frees_gradients` gives back, the search does not count on.
    whole = result.assumptions.execution.frees_gradients
    plans = "the search space" + whole * " that fits with whole gradients"
    if gap <= ROUNDING:
        return f"Proven: no other plan of {plans} replays faster."
    return (
        f"Proven: no other plan of {plans} replays more than "
        f"{percent(gap / (1.0 + gap))} faster."
    )


def print_plans(result: "PlanResult", console: Console) -> None:
    """Print the k best plans of `nestsim plan` and the stages of the best one."""
    if not result.candidates:
        _print_shortfall(result, console)
        return
    best = result.candidates[0]
    print_line(
        console,
        Text(plural(len(result.candidates), "plan"), style="bold"),
        f"{result.scenario_name}: {plural(result.network.num_devices, 'device')}",
    )
    print_proof(console, result, best)
    print_section(console, "Plans, best first", plans_table(result.candidates))
    rows = plan_facts(best.priced, result.network, 1)
    print_section(console, "The best plan", facts(rows))
    for sentence in left_out_level_notes(result.network, best.priced.plan):
        console.print(Text(sentence), highlight=False)
    _print_assumptions(result, console)
    print_section(
        console, "Its stages", planned_stage_table(best.priced, result.layer_names)
    )
    print_section(
        console,
        "Its time, by cause",
        causes_table(best.priced.terms, best.priced.iteration_time),
    )
    print_section(console, "Search", facts(search_facts(result, best)))


def unproven_words(result: "ReplayedResult", best: "Candidate") -> str:
    """Say how much a stopped search has left open; empty if it has proven its plan."""
    gap = optimality_gap(promised_time(result, best), result.lower_bound)
    if not result.spent.is_stopped or not math.isfinite(gap):
        return ""
    return f", NOT PROVEN (gap {percent(gap)})"


def print_headline(
    console: Console, result: "JobResult[Any]", best: "Candidate", unproven: str = ""
) -> None:
    """Print the verdict on a plan, its throughput and the reason."""
    kind = best.verdict.kind
    simulated = best.simulated
    print_line(
        console,
        Text(
            f"{verdict_words(kind, result.assumptions.preset)}{unproven}",
            style=VERDICT_STYLES[kind],
        ),
        f"{result.scenario_name}: {number(simulated.tokens_per_second)} tokens/s on "
        f"{plural(result.network.num_devices, 'device')}, "
        f"MFU {mfu_words(simulated)}, "
        f"{format_duration(simulated.iteration_time)} per iteration",
    )
    said = reason_sentence(best), memory_sentence(best), band_sentence(result, best)
    for sentence in said:
        if sentence:
            console.print(Text(sentence), highlight=False)


def reason_sentence(candidate: "Candidate") -> str:
    """Say why a plan is confirmed or not."""
    reason = candidate.verdict.reason
    return f"{reason[:1].upper()}{reason[1:]}."


def memory_sentence(candidate: "Candidate") -> str:
    """Say how likely a plan fits; empty where it does, as far as is known."""
    return need_sentence(candidate.verdict.memory)


def need_sentence(need: MemoryNeed | None) -> str:
    """Say how likely there is as much memory; empty where that is not in doubt."""
    if need is None or need.fits_in_ten == 10:
        return ""
    sizes = f"{format_size(need.low)} to {format_size(need.high)}"
    of_jobs = f"{need.fits_in_ten}" if need.fits_in_ten else "less than 1"
    return (
        f"It needs {format_size(need.estimate)} ({sizes} in {10 * SHARE:g} of 10 jobs) "
        f"of {format_size(need.room)}: fits in {of_jobs} of 10 jobs like this one."
    )


def band_sentence(result: "JobResult[Any]", candidate: "Candidate") -> str:
    """Say how far a throughput can be off; empty where that is not known."""
    if result.band is None:
        return ""
    low, high = result.band
    simulated = candidate.simulated.tokens_per_second
    return (
        f"{10 * SHARE:g} of 10 jobs like this one can be expected between "
        f"{number(simulated / high)} and {number(simulated / low)} tokens/s."
    )


def print_broken_rules(
    console: Console, result: "JobResult[Any]", candidate: "Candidate"
) -> None:
    """Print what keeps a framework from launching a plan; nothing if it can."""
    if not candidate.broken_rules:
        return
    title = broken_rules_title(result)
    print_section(console, title, facts(broken_rules_facts(candidate)))


def broken_rules_title(result: "JobResult[Any]") -> str:
    """Say what the rules are about that a plan breaks."""
    preset = result.assumptions.preset
    who = "any framework" if preset == IDEAL_PRESET.name else preset
    return f"What keeps {who} from launching it"


def broken_rules_facts(candidate: "Candidate") -> dict[str, str]:
    """Return what keeps a framework from launching a plan, by rule."""
    return {
        rule.rule.replace("_", " "): f"{rule.found}; expected: {rule.expected}"
        for rule in candidate.broken_rules
    }


def print_times(console: Console, result: "JobResult[Any]", best: "Candidate") -> None:
    """Print what a plan is, what was planned and simulated, and what takes the time."""
    plan = best.priced.plan
    rows = plan_facts(best.priced, result.network, best.rank)
    print_section(console, "Plan", facts(rows))
    _print_assumptions(result, console)
    times = throughput_table(best, result.device_memory)
    print_section(console, "Planned beside simulated", times)
    print_section(console, "Simulated minus planned, by cause", gap_table(best))
    sentence = gap_sentence(best.verdict.gap, best.planned.iteration_time)
    if sentence:
        console.print(Text(sentence), highlight=False)
    causes = iteration_causes(best.replay, plan.schedule, plan.num_microbatches)
    table = causes_table(causes, best.replay.iteration_time)
    print_section(console, "Simulated iteration, by cause", table)
    planned = causes_table(best.priced.terms, best.priced.iteration_time)
    print_section(console, "Planned iteration, by cause", planned)
    print_section(console, "Stages", stage_table(best, result.layer_names))
    print_section(console, "Where the time goes", facts(time_facts(best)))
    print_cost(console, result.cost_of(best.simulated))


def _print_assumptions(result: "JobResult[Any]", console: Console) -> None:
    rows = facts(assumptions_rows(result.assumptions))
    print_section(console, "What this rests on", rows)


def _print_shortfall(result: "JobResult[Any]", console: Console) -> None:
    headline = no_plan_words(result.spent, covers_space=result.covers_space)
    print_line(console, Text(headline, style="bold red"), result.scenario_name)
    console.print(Text(result.shortfall), highlight=False)
    if sentence := need_sentence(result.least_need):
        console.print(Text(sentence), highlight=False)
    _print_assumptions(result, console)
    print_section(console, "Search", facts(search_facts(result, None)))


def plan_facts(priced: PricedPlan, network: Network, rank: int) -> dict[str, str]:
    """Return what a plan is, by name; of one that was given, the rank is 0."""
    plan = priced.plan
    data = plan.settings_json()
    zero = [zero_label(data["zero_stage"]), *second_copies_of_plan(plan)]
    saving = f"{recompute_of_plan(plan)}, {', '.join(zero)}"
    offloads = {offload_label(stage.offload) for stage in plan.stages}
    if offloads != {""}:
        saving += f", {offloads.pop() if len(offloads) == 1 else 'offload mixed'}"
    rows = {
        "parallelism": parallel_sentence(plan, network.num_devices),
        "sequence parallel": "on" if plan.parallel.sequence_parallel else "off",
        "micro batch": f"{plural(plan.micro_batch_size, 'sequence')}; "
        f"{plural(plan.num_microbatches, 'microbatch')} per step and replica",
        "memory saving": saving,
        "schedule": schedule_label(plan),
        "placement": f"{plan.placement} (innermost first)",
        "collectives": f"gradients {plan.gradient_algorithm}, "
        f"tensor {plan.tensor_algorithm}",
    }
    if priced.host_memory and network.host is not None:
        rows["on the host"] = (
            f"{format_size(priced.host_memory)} of {format_size(network.host.memory)} "
            "for each device"
        )
    if rank:  # a plan that was given has none
        rows["planner's rank"] = number(rank)
    return rows


def time_facts(candidate: "Candidate") -> dict[str, str]:
    """Return where the time of a device goes, by name."""
    mean = mean_breakdown(stage_breakdowns(candidate.replay))
    total = candidate.replay.iteration_time
    rows = {
        name.replace("_", " "): f"{format_duration(seconds)} "
        f"({percent(seconds / total)})"
        for name, seconds in mean._asdict().items()
        if seconds or name not in {"weight_gradient", "host"}
    }
    rows["bubble"] = (
        f"{percent(bubble_fraction(candidate.replay))} of the device time until the "
        "last backward pass has ended"
    )
    return rows


def print_traffic(console: Console, best: "Candidate", network: Network) -> None:
    """Print what links carried, and what the replay did not simulate one by one."""
    uses = level_uses(best.replay, network)
    if not uses:
        print_section(console, "Links", Text("  no link carried anything"))
    else:
        print_section(console, "Links by level, over the iteration", levels_table(uses))
        links = hottest_links(best.replay, network, _NUM_LINKS)
        print_section(console, "Hottest links", links_table(links))
    print_section(console, "How the replay was done", _sentences(best))


def _sentences(candidate: "Candidate") -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    for sentence in (*candidate.replay.notes, engine_sentence(candidate)):
        table.add_row(Text("  -"), Text(sentence))
    return table


def search_facts(
    result: "JobResult[Any]", best: "AnyCandidate | None"
) -> dict[str, str]:
    """Return what a search did, what it spent and what it has proven, by name."""
    rows = {
        name.replace("_", " "): number(count)
        for name, count in result.search_statistics.items()
    }
    if best is not None and math.isfinite(result.proposed_time):
        above = result.proposed_time / promised_time(result, best) - 1.0
        rows["best proposal"] = (
            f"{format_duration(result.proposed_time)} in the replay, "
            + (f"{percent(above)} above the plan above" if above > 0.0 else "as fast")
        )
    rows |= spent_words(result.spent, has_plan=best is not None)
    if math.isfinite(result.lower_bound) and result.lower_bound > 0:
        how = "as planned" if result.objective == "planned" else "in the replay"
        rows["lower bound"] = (
            f"{format_duration(result.lower_bound)} per iteration, {how}"
        )
        if best is not None:
            gap = optimality_gap(promised_time(result, best), result.lower_bound)
            rows["optimality gap"] = f"{percent(gap)} above the lower bound, {how}"
    return rows


_WRITERS: Mapping[str, Callable[[float], str]] = MappingProxyType(
    {
        "iteration_time": format_duration,
        "throughput": lambda value: f"{value:.6g} tokens/s",
        "mfu": lambda value: f"{value:.4g}",
        "gap": lambda value: f"{value:+.4g}",
        "memory_fraction": lambda value: f"{value:.4g}",
        "peak_memory": format_size,
    }
)
"""Quantity -> how its value is written."""

_WORDS = {True: "holds", False: "FAILED", None: "not checked"}
"""Whether an assertion holds -> the word for it."""


def print_assertions(checked: Sequence[Checked], console: Console) -> None:
    """Print each assertion with what was found; nothing if there is none."""
    if not checked:
        return
    table = new_table("assertion", "expected", "found", "")
    for item in checked:
        style = "bold red" if item.holds is False else ""
        add_row(
            table,
            item.assertion.name,
            item.assertion.written,
            _value_found(item),
            _WORDS[item.holds],
            style=style,
        )
    print_section(console, "Assertions", table)


def _value_found(checked: Checked) -> str:
    write = _WRITERS.get(checked.assertion.quantity)
    if write is None or isinstance(checked.value, str):
        return str(checked.value)
    return write(checked.value)


def assertions_json(checked: Sequence[Checked]) -> dict[str, Any]:
    """Return what a report says of assertions; nothing if there is none."""
    if not checked:
        return {}
    return {
        "assertions": [
            {
                "name": one.assertion.name,
                "operator": one.assertion.operator,
                "expected": one.assertion.value,
                "found": one.value,
                "holds": one.holds,
            }
            for one in checked
        ]
    }


def result_json(result: "ReplayedResult") -> dict[str, Any]:
    """Return everything that was found, for programs."""
    if result.kind == "simulate":
        return simulation_json(result)
    return job_json(result)


def print_result(result: "ReplayedResult", console: Console) -> None:
    """Print everything that was found, for people."""
    if result.kind == "simulate":
        print_simulation(result, console)
    else:
        print_job(result, console)


def simulation_json(result: "ReplayedResult") -> dict[str, Any]:
    """Return everything that `nestsim simulate` found, for programs.

    The keys are those of `nestsim.report.json.job_json`; of a search there is nothing
    to say, and the bound that it would give is null.
    """
    candidate = result.candidate
    report: dict[str, Any] = {
        "scenario": result.scenario_name,
        "verdict": candidate.verdict.kind,
        "reason": candidate.verdict.reason,
        "broken_rules": broken_rules_json(candidate),
        "confirmed": result.chosen is not None,
        "plan": candidate.priced.plan.to_json(),
        "planned": planned_json(candidate),
        "simulated": simulated_json(candidate, result.network),
        "gap": gap_json(candidate),
        "uncertainty": band_json(result, candidate),
        "memory": memory_json(candidate),
        "lower_bound_s": None,
        "optimality_gap": None,
        "device_memory_bytes": result.device_memory,
        "assumptions": assumptions_json(result.assumptions),
        **priced_json(result, candidate),
    }
    plain: dict[str, Any] = plain_values(report)
    return plain


def print_simulation(result: "ReplayedResult", console: Console) -> None:
    """Print what `nestsim simulate` found: verdict, plan, planned beside simulated."""
    candidate = result.candidate
    print_headline(console, result, candidate)
    print_broken_rules(console, result, candidate)
    print_times(console, result, candidate)
    print_traffic(console, candidate, result.network)
