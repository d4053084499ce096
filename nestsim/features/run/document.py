"""What runs and plans say: a verdict, a plan, its times, and what they rest on.

The terminal has the verdict, the plan and its times; sections of details stand in the
page and in ``report.txt``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nestsim.document.drawing import rounded
from nestsim.document.parts import (
    Document,
    FactList,
    Headline,
    KeyFigure,
    Section,
    Sentences,
    Snippet,
    TimeWindow,
)
from nestsim.document.wording import (
    context_kinds,
    engine_sentence,
    gap_sentence,
    mfu_words,
    need_sentence,
    no_plan_words,
    number,
    offload_label,
    others_sentence,
    parallel_sentence,
    percent,
    plan_label,
    plural,
    recompute_of_plan,
    schedule_label,
    second_copies_of_plan,
    size_of_limit,
    spent_words,
    time_unit,
    verdict_words,
    zero_label,
)
from nestsim.evaluate.results import Checked
from nestsim.evaluate.uncertainty import SHARE, Reason
from nestsim.features.run.assumptions import assumptions_rows
from nestsim.features.run.causes import (
    causes_table,
    gap_figure,
    gap_table,
    planned_figure,
    plans_figure,
)
from nestsim.features.run.cost import (
    cost_rows,
    cost_sentences,
    parts_table,
    ramp_sections,
)
from nestsim.features.run.devices import devices_figure
from nestsim.features.run.figures import link_figures, memory_bars, memory_lines
from nestsim.features.run.record import (
    candidate_rows,
    given_row,
    optimality_gap,
    promised_time,
    reported_candidate,
)
from nestsim.features.run.tables import (
    assertion_sections,
    changed_sections,
    circuit_sections,
    planned_stage_table,
    plans_table,
    stage_table,
    throughput_table,
    traffic_blocks,
)
from nestsim.features.run.timeline import timeline_figure, timeline_windows
from nestsim.features.run.why_document import given_sentence, time_facts, why_sections
from nestsim.features.topology.document import tiers_table
from nestsim.lowering.notes import left_out_level_notes
from nestsim.scenario.goodput import GoodputSpec
from planner.cost.objective import PricedPlan
from planner.frameworks.framework import IDEAL_PRESET
from planner.search.replayed.replays import OTHER_COPIES, OTHER_LAYOUTS
from planner.step.plan import Plan
from topologies.errors import InputError
from topologies.network import Network
from topologies.units import format_duration, format_size

if TYPE_CHECKING:
    from nestsim.evaluate.cost import RunCost
    from nestsim.evaluate.results import (
        Candidate,
        JobResult,
        PlannedCandidate,
        PlanResult,
        ReplayedResult,
        SimplestPlan,
    )
    from nestsim.scenario.load import Scenario
    from nestsim.simulator.system import Replay

    AnyCandidate = Candidate | PlannedCandidate

ROUNDING = 1e-9
"""Gaps up to this are none."""

LEAST_SAID = 1e-3
"""Smaller gaps are told as this one, as a part of the time."""

BEFORE_GOODPUT = "time"
"""Section behind which stands what a plan trains through failures."""

_BEYOND = (
    (OTHER_LAYOUTS, "layout", " of blocks"),
    (OTHER_COPIES, "plan", " with second copies of weights"),
)
"""What a search tries that its proof is not about: statistic, what it counts."""

_PLAN_DETAILS = ("sequence parallel", "collectives", "planner's rank")
"""What of a plan the terminal has with ``--verbose`` only."""


def run_document(
    result: "ReplayedResult",
    checked: Sequence[Checked] = (),
    rows: Sequence[Mapping[str, object]] = (),
) -> Document:
    """Return what ``nestsim run`` and ``nestsim simulate`` say.

    Parameters
    ----------
    result
        What was found.
    checked
        Assertions of the scenario.
    rows
        ``candidates`` of ``result.json``, where no more is to be said of other plans
        than a folder of results holds; empty for all that ``result`` says.
    """
    best = reported_candidate(result)
    return Document(
        subject=result.scenario_name,
        doing=result.kind,
        headline=_no_plan(result) if best is None else _headline(result, best),
        sections=(
            *(() if best is None else _replayed(result, best, rows)),
            *assertion_sections(checked),
            _basis(result),
            *(() if result.kind == "simulate" else (_search(result, best),)),
        ),
    )


def plan_document(result: "PlanResult", checked: Sequence[Checked] = ()) -> Document:
    """Return what ``nestsim plan`` says: the k best plans, and the best one."""
    best = result.candidates[0] if result.candidates else None
    return Document(
        subject=result.scenario_name,
        doing=result.kind,
        headline=_no_plan(result)
        if best is None
        else Headline(
            verdict=plural(len(result.candidates), "plan"),
            tone="plain",
            sentences=_sentences(
                f"On {plural(result.network.num_devices, 'device')}, best first.",
                proof_sentence(result, best),
            ),
        ),
        sections=(
            *(() if best is None else _planned(result, best)),
            *assertion_sections(checked),
            _basis(result),
            _search(result, best),
        ),
    )


def launch_section(snippets: Sequence[Snippet]) -> Section:
    """Return configurations that launch a plan, for the page."""
    return Section("launch", "Launch it", tuple(snippets), in_text=False)


def _sentences(*sentences: str) -> tuple[str, ...]:
    """Return the sentences that say anything."""
    return tuple(filter(None, sentences))


def _no_plan(result: "JobResult[Any]") -> Headline:
    return Headline(
        verdict=no_plan_words(result.spent, covers_space=result.covers_space),
        tone="bad",
        sentences=_sentences(result.shortfall, need_sentence(result.least_need)),
    )


def _headline(result: "ReplayedResult", best: "Candidate") -> Headline:
    kind, simulated, planned = best.verdict.kind, best.simulated, best.planned
    tokens = f"{number(simulated.tokens_per_second)} tokens/s"
    devices = plural(result.network.num_devices, "device")
    time = format_duration(simulated.iteration_time)
    reason = best.verdict.reason
    confirms = result.chosen is not None or result.kind != "run"
    return Headline(
        verdict=verdict_words(kind, result.assumptions.preset)
        + unproven_words(result, best),
        tone="good" if kind == "confirmed" else "bad",
        sentences=_sentences(
            f"{tokens} on {devices}, MFU {mfu_words(simulated)}, {time} per iteration.",
            f"{reason[:1].upper()}{reason[1:]}.",
            need_sentence(best.verdict.memory),
            band_sentence(result, best),
            proof_sentence(result, best),
            given_sentence(result, best),
            simplest_sentence(result),
            "" if confirms else "The replay confirms no plan; this is the fastest one.",
        ),
        key_figures=(
            KeyFigure(
                "Throughput",
                tokens,
                f"planned {number(planned.tokens_per_second)}; on {devices}",
            ),
            KeyFigure(
                "Time per iteration",
                time,
                f"planned {format_duration(planned.iteration_time)}",
            ),
            KeyFigure(
                "MFU",
                percent(simulated.mfu),
                mfu_words(simulated).removeprefix(percent(simulated.mfu)).strip(" ()"),
            ),
            KeyFigure(
                "Peak memory",
                size_of_limit(simulated.peak_memory, result.device_memory),
                f"{size_of_limit(simulated.peak_memory, result.usable_memory)} usable",
            ),
        ),
    )


def _replayed(
    result: "ReplayedResult", best: "Candidate", rows: Sequence[Mapping[str, object]]
) -> Iterator[Section]:
    """Yield what there is to say of a plan that was replayed."""
    network, replay = result.network, best.replay
    if best.broken_rules:
        broken = {
            rule.rule.replace("_", " "): f"{rule.found}; expected: {rule.expected}"
            for rule in best.broken_rules
        }
        preset = result.assumptions.preset
        who = "any framework" if preset == IDEAL_PRESET.name else preset
        title = f"What keeps {who} from launching it"
        yield Section("rules", title, (FactList(broken),))
    yield from why_sections(result)
    rows_of_plan = {
        **plan_facts(best.priced, network, best.rank),
        "peak memory": size_of_limit(best.simulated.peak_memory, result.device_memory),
    }
    shown = tuple(name for name in rows_of_plan if name not in _PLAN_DETAILS)
    yield Section("plan", "Plan", (FactList(rows_of_plan, brief=shown),))
    sentence = gap_sentence(best.verdict.gap, best.planned.iteration_time)
    yield Section(
        "throughput",
        "Planned beside simulated",
        (
            throughput_table(best, result.device_memory),
            *([Sentences((sentence,))] if sentence else []),
        ),
        detail=best.verdict.kind == "confirmed",
    )
    yield Section("time", "Where the time goes", (time_facts(best),))
    if (simplest := result.simplest) is not None and not simplest.is_reported:
        facts = FactList(simplest_facts(result, simplest))
        title = "The simplest plan that is nearly as fast"
        yield Section("simplest", title, (facts,), detail=True)
    if result.kind == "run":
        known = rows or [
            {**row, "saving": _saving(candidate.priced.plan)}
            for row, candidate in zip(
                candidate_rows(result), result.candidates, strict=True
            )
        ]
        if (given := result.given) is not None:
            saving = {} if rows else {"saving": _saving(given.plan)}
            known = [{**given_row(given), **saving}, *known]
        others = "" if rows else others_sentence(result.candidates)
        yield Section(
            "candidates",
            "Replayed plans",
            (
                plans_figure(known, best.rank),
                *([Sentences((others,))] if others else []),
            ),
        )
    yield from ramp_sections(best)
    yield from changed_sections(best)
    yield from circuit_sections(best)
    yield from _cost(result.cost_of(best))
    yield Section(
        "devices",
        "Stages and devices",
        (devices_figure(best, network, stage_table(best, result.layer_names)),),
        detail=True,
    )
    memory = result.device_memory, result.usable_memory
    links = link_figures(replay, network)
    yield Section(
        "step",
        "One step",
        (
            step_window(replay),
            timeline_figure(best),
            memory_lines(best, *memory),
            *links,
            memory_bars(best, *memory),
        ),
        detail=True,
    )
    yield Section(
        "causes",
        "Times by cause",
        (
            planned_figure(best),
            gap_figure(best) or gap_table(best),
        ),
        detail=True,
    )
    yield Section(
        "details",
        "Details of the replay",
        folded=True,
        blocks=(
            *traffic_blocks(replay, network),
            Sentences((*replay.notes, engine_sentence(best))),
        ),
        detail=True,
    )
    caption = f"The network: {network.kind}, from the inside out"
    yield Section("network", "Network", (tiers_table(network, caption),), detail=True)


def _planned(result: "PlanResult", best: "PlannedCandidate") -> Iterator[Section]:
    """Yield what there is to say of plans that were not replayed."""
    priced = best.priced
    yield from why_sections(result)
    yield Section("plans", "Plans, best first", (plans_table(result),))
    notes = left_out_level_notes(result.network, priced.plan)
    yield Section(
        "plan",
        "The best plan",
        (
            FactList(plan_facts(priced, result.network, 1)),
            *([Sentences(tuple(notes))] if notes else []),
        ),
    )
    yield Section(
        "causes",
        "Its time, by cause",
        (causes_table("Its time, by cause", priced.terms, priced.iteration_time),),
    )
    yield Section(
        "stages",
        "Its stages",
        (planned_stage_table(priced, result.layer_names),),
        detail=True,
    )


def _cost(run: "RunCost | None") -> Iterator[Section]:
    """Yield what a replayed plan costs; nothing without prices and powers."""
    if run is None:
        return
    facts = FactList(cost_rows(run))
    yield Section("cost", "Cost and power", (facts,))
    yield Section(
        "cost-basis",
        "What cost and power rest on",
        (
            parts_table(run.cluster),
            Sentences(cost_sentences(run.cluster, run.ramp)),
        ),
        detail=True,
    )


def _basis(result: "JobResult[Any]") -> Section:
    return Section(
        "assumptions",
        "What this rests on",
        (FactList(assumptions_rows(result.assumptions)),),
        detail=True,
    )


def _search(result: "JobResult[Any]", best: "AnyCandidate | None") -> Section:
    return Section(
        "search",
        "Search",
        folded=True,
        blocks=(FactList(search_facts(result, best)),),
        detail=best is not None,
    )


def proof_sentence(result: "JobResult[Any]", best: "AnyCandidate") -> str:
    """Say what the search has proven of a plan; empty where that is nothing."""
    gap = optimality_gap(promised_time(result, best), result.lower_bound)
    if result.objective == "planned" or not math.isfinite(gap):
        return ""
    faster = percent(max(gap / (1.0 + gap), LEAST_SAID))
    counts = result.search_statistics
    tried = [
        plural(counts[name], word) + of
        for name, word, of in _BEYOND
        if counts.get(name, 0)
    ]
    beyond = f" Tried beyond it: {' and '.join(tried)}." if tried else ""
    if result.spent.is_stopped:
        return (
            f"Not proven: the {result.spent.stopped_by} ended the search, and another "
            f"plan may replay up to {faster} faster.{beyond}"
        )
    # What `Execution.frees_gradients` gives back, the search does not count on.
    whole = result.assumptions.execution.frees_gradients
    plans = "the search space" + whole * " that fits with whole gradients"
    if gap <= ROUNDING:
        return f"Proven: no other plan of {plans} replays faster.{beyond}"
    return (
        f"Proven: no other plan of {plans} replays more than {faster} faster.{beyond}"
    )


def simplest_sentence(result: "JobResult[Any]") -> str:
    """Say how much slower a simpler plan is; empty if none is known."""
    simplest = result.simplest
    if simplest is None or simplest.is_reported:
        return ""
    label = plan_label(simplest.plan)
    return f"Simpler: {label} takes {simplest_words(result, simplest)}."


def unproven_words(result: "ReplayedResult", best: "Candidate") -> str:
    """Say how much a stopped search has left open; empty if it has proven its plan."""
    gap = optimality_gap(promised_time(result, best), result.lower_bound)
    if not result.spent.is_stopped or not math.isfinite(gap):
        return ""
    return f", NOT PROVEN (gap {percent(gap)})"


def band_sentence(result: "JobResult[Any]", candidate: "Candidate") -> str:
    """Say how far a throughput can be off; empty where that is not known."""
    if result.band is None:
        return ""
    low, high = result.band
    simulated = candidate.simulated.tokens_per_second
    return (
        f"Expect {10 * SHARE:g} of 10 jobs like this one between "
        f"{number(simulated / high)} and {number(simulated / low)} tokens/s."
        + reasons_sentence(result.band_reasons)
    )


def reasons_sentence(reasons: Sequence[Reason]) -> str:
    """Say why a band is wider than those of jobs that were measured."""
    if not reasons:
        return ""
    clauses = (f"{words} (+{percent(added)})" for words, added in reasons)
    return f" That is wider than usual: {', '.join(clauses)}."


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


def simplest_facts(
    result: "JobResult[Any]", simplest: "SimplestPlan"
) -> dict[str, str]:
    """Return what a simpler plan than the reported one is, and what it costs."""
    plan, time = simplest.plan, format_duration(simplest.iteration_time)
    rows = {
        "plan": plan_label(plan),
        "placement": f"{plan.placement} (innermost first)",
        "schedule": schedule_label(plan),
        "time": f"{time} per iteration, {simplest_words(result, simplest)}",
        "peak memory": size_of_limit(simplest.peak_memory, result.device_memory),
        "does without": ", ".join(simplest.spared),
        "but has": ", ".join(simplest.added),
    }
    return {name: words for name, words in rows.items() if words}


def simplest_words(result: "JobResult[Any]", simplest: "SimplestPlan") -> str:
    """Say how much slower a simpler plan is, and whether the model sees that much."""
    words = f"{percent(simplest.slower_by)} longer"
    if not result.is_within_error(simplest.slower_by):
        return words
    return f"{words}, which is below the model's error"


def _saving(plan: Plan) -> str:
    """Write what tells a plan from others of its degrees: memory saving, groupings."""
    grouping = plan.parallel.grouping
    _, _, saving = plan_label(plan).partition(f" b{plan.micro_batch_size}")
    kinds = [
        *context_kinds(grouping),
        *([f"etp{grouping.etp}"] if grouping.etp else []),
        *(["ep-overlap"] if plan.overlap_moe_expert_parallel_comm else []),
    ]
    return " ".join([*kinds, saving.strip()]).strip()


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
    if result.simplest is not None and result.simplest.is_reported:
        within = percent(result.simplest.within)
        rows["simplest plan"] = f"the plan above, of those replayed within {within}"
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


def step_window(replay: "Replay") -> TimeWindow:
    """Return the windows of a step that its figures can show."""
    scale, unit = time_unit(replay.iteration_time)
    return TimeWindow(
        total=rounded(replay.iteration_time / scale),
        unit=unit,
        choices=tuple(
            (window.title, rounded(window.start / scale), rounded(window.end / scale))
            for window in timeline_windows(replay)
        ),
    )


def run_goodput(scenario: "Scenario", result: "ReplayedResult") -> Section:
    """Return what ``nestsim goodput`` says of the reported plan, in short.

    Nothing stands in it if the scenario has no table [goodput], or nothing fits. What
    does not go together there says so in place of it: the plan stands.
    """
    if scenario.goodput == GoodputSpec() or not result.candidates:
        return Section("goodput", "Through failures", ())
    # With scipy's distributions: jobs that ask for no goodput do not wait for them.
    from nestsim.features.goodput.document import goodput_section
    from nestsim.features.goodput.job import goodput_job
    from nestsim.features.goodput.record import goodput_json

    try:
        trained = goodput_job(scenario, replayed=result)
    except InputError as error:
        return Section("goodput", "Through failures", (Sentences((str(error),)),))
    return goodput_section(goodput_json(trained))
