"""Tables of what a run or a search found, and of its assertions."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from nestsim.document.parts import (
    Block,
    Cell,
    DataTable,
    FactList,
    Section,
    Sentences,
    cell,
)
from nestsim.document.wording import (
    device_ranges,
    difference,
    layer_span,
    number,
    percent,
    plan_label,
    plural,
    saving_label,
    signed_percent,
    size_of_limit,
    stage_devices,
)
from nestsim.evaluate.results import Checked
from nestsim.features.run.statistics import (
    HotLink,
    LevelUse,
    hottest_links,
    level_uses,
    stage_breakdowns,
)
from planner.cost.objective import PricedPlan
from topologies.network import Network
from topologies.units import format_duration, format_size

if TYPE_CHECKING:
    from nestsim.evaluate.results import (
        Candidate,
        PlannedCandidate,
        PlanResult,
        Throughput,
    )
    from nestsim.simulator.system import Replay

    AnyCandidate = Candidate | PlannedCandidate


def throughput_table(candidate: "Candidate", device_memory: float) -> DataTable:
    """Return planned beside simulated."""
    planned, simulated = candidate.planned, candidate.simulated

    def teraflops(rate: float) -> str:
        return number(rate / 1e12)

    def memory(used: float) -> str:
        return size_of_limit(used, device_memory)

    rows: dict[str, tuple[str, Callable[[float], str]]] = {
        "Iteration time": ("iteration_time", format_duration),
        "Tokens/s": ("tokens_per_second", number),
        "Tokens/s/device": ("tokens_per_second_per_device", number),
        "TFLOP/s/device": ("flops_per_device", teraflops),
        "MFU": ("mfu", percent),
        "MFU, causal": ("mfu_causal", percent),
        "Peak memory": ("peak_memory", memory),
    }
    if simulated.mfu_causal == simulated.mfu:
        del rows["MFU, causal"]

    def written(
        reached: "Throughput",
    ) -> Callable[[tuple[str, tuple[str, Callable[[float], str]]]], Cell | str]:
        return lambda row: cell(getattr(reached, row[1][0]), row[1][1])

    return DataTable.of(
        "Planned beside simulated",
        rows.items(),
        {
            "Quantity": lambda row: row[0],
            "Planned": written(planned),
            "Simulated": written(simulated),
            "Difference": lambda row: signed_percent(
                difference(getattr(planned, row[1][0]), getattr(simulated, row[1][0]))
            ),
        },
        numbers=("Difference",),
    )


def stage_table(candidate: "Candidate", layer_names: Sequence[str]) -> DataTable:
    """Return what each stage holds, how long it works and how full it gets."""
    replay, total = candidate.replay, candidate.replay.iteration_time
    rows = stage_breakdowns(replay)
    return DataTable.of(
        "Stages",
        range(len(rows)),
        {
            **_stage_columns(candidate.priced, layer_names),
            "Memory": lambda stage: cell(replay.memory[stage].peak, format_size),
            "Busy": lambda stage: percent(
                rows[stage].passes / total if total else math.nan
            ),
        },
        numbers=("Busy",),
    )


def planned_stage_table(priced: PricedPlan, layer_names: Sequence[str]) -> DataTable:
    """Return what each stage holds, and its planned times and memory."""
    costs = priced.stages
    return DataTable.of(
        "Its stages",
        range(len(costs)),
        {
            **_stage_columns(priced, layer_names),
            "Tail": lambda stage: cell(costs[stage].step_end_time, format_duration),
            "Memory": lambda stage: cell(costs[stage].peak_memory, format_size),
        },
    )


def _stage_columns(
    priced: PricedPlan, layer_names: Sequence[str]
) -> dict[str, Callable[[int], Cell | str]]:
    """Return what stages hold, how they save memory if not alike, and their passes."""
    stages, costs = priced.plan.stages, priced.stages
    columns: dict[str, Callable[[int], Cell | str]] = {
        "Stage": lambda stage: cell(stage, str),
        "Layers": lambda stage: layer_span(layer_names, stages[stage]),
        "Devices": lambda stage: device_ranges(stage_devices(stages[stage]), most=2),
    }
    if len({saving_label(stage) for stage in stages}) > 1:
        columns["Saving"] = lambda stage: saving_label(stages[stage]) or "none"
    columns["Forward"] = lambda stage: cell(costs[stage].forward_time, format_duration)
    columns["Backward"] = lambda stage: cell(
        costs[stage].backward_time, format_duration
    )
    if any(cost.weight_gradient_time > 0.0 for cost in costs):
        columns["Weight"] = lambda stage: cell(
            costs[stage].weight_gradient_time, format_duration
        )
    return columns


def plans_table(result: "PlanResult") -> DataTable:
    """Return the k best plans of the search, best first."""
    return DataTable.of(
        "Plans, best first",
        result.candidates,
        {
            "#": lambda candidate: cell(candidate.rank, str),
            "Plan": lambda candidate: plan_label(candidate.priced.plan),
            "Placement": lambda candidate: candidate.priced.plan.placement,
            "Iteration": lambda candidate: cell(
                candidate.planned.iteration_time, format_duration
            ),
            "Tokens/s": lambda candidate: cell(
                candidate.planned.tokens_per_second, number
            ),
            "MFU": lambda candidate: cell(candidate.planned.mfu, percent),
            "Memory": lambda candidate: cell(
                candidate.planned.peak_memory, format_size
            ),
        },
    )


def traffic_blocks(replay: "Replay", network: Network) -> list[Block]:
    """Return what links carried."""
    uses = level_uses(replay, network)
    if not uses:
        return [Sentences(("No link carried anything.",))]
    level_columns: dict[str, Callable[[LevelUse], Cell | str]] = {
        "Level": lambda use: use.name,
        "Links used": lambda use: f"{number(use.num_used)} of {number(use.num_links)}",
        "Carried": lambda use: cell(use.num_bytes, format_size),
        "Mean use": lambda use: cell(use.mean_utilisation, percent),
        "Highest use": lambda use: cell(use.max_utilisation, percent),
    }
    link_columns: dict[str, Callable[[HotLink], Cell | str]] = {
        "Link": lambda link: link.name,
        "Level": lambda link: link.level,
        "Carried": lambda link: cell(link.num_bytes, format_size),
        "Use": lambda link: cell(link.utilisation, percent),
    }
    links = hottest_links(replay, network)
    return [
        DataTable.of(
            "Links by level, over the iteration",
            uses,
            level_columns,
            numbers=("Links used",),
        ),
        DataTable.of("Hottest links", links, link_columns),
    ]


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


def assertion_sections(checked: Sequence[Checked]) -> tuple[Section, ...]:
    """Return each assertion with what was found; nothing if there is none."""
    if not checked:
        return ()
    table = DataTable.of(
        "Assertions",
        checked,
        {
            "Assertion": lambda item: item.assertion.name,
            "Expected": lambda item: item.assertion.written,
            "Found": _value_found,
            "Outcome": lambda item: _WORDS[item.holds],
        },
    )
    return (Section("assertions", "Assertions", (table,)),)


def _value_found(checked: Checked) -> str:
    write = _WRITERS.get(checked.assertion.quantity)
    if write is None or isinstance(checked.value, str):
        return str(checked.value)
    return write(checked.value)


def changed_sections(candidate: "Candidate") -> Iterator[Section]:
    """Yield the step in which links fail, slow down or come back; nothing without."""
    changed = candidate.changed
    if changed is None:
        return
    later = changed.iteration_time - changed.plain_time
    share = signed_percent(later / changed.plain_time)
    facts = {
        "step": f"{format_duration(changed.iteration_time)}, {share} on "
        f"{format_duration(changed.plain_time)} if nothing happens",
    }
    for hit in changed.hits:
        facts[f"at {format_duration(hit.time)}"] = (
            f"{plural(hit.num_flows, 'transfer')} in flight, each device with "
            f"{format_size(hit.num_bytes / max(1, hit.num_flows))} left on average, "
            "stand still or go on elsewhere"
            if hit.num_flows
            else "nothing in flight is stopped or rerouted"
        )
    yield Section("link-events", "Links that change in the step", (FactList(facts),))


def circuit_sections(candidate: "Candidate") -> Iterator[Section]:
    """Yield the step over optical switches; nothing without any."""
    step = candidate.circuits
    if step is None:
        return

    def beside(time: float) -> str:
        share = signed_percent(time / step.plain_time - 1.0)
        return f"{format_duration(time)}, {share}"

    changes = step.changed_at is not None
    facts = {
        "step": beside(step.iteration_time),
        "packet switches": format_duration(step.plain_time),
        "circuits that stay": f"need {step.fixed_ports} ports of each link"
        if step.fixed_time is None
        else beside(step.fixed_time),
        "circuits that change": beside(step.changing_time)
        if changes
        else "nothing to change: the passes or the end of the step send nothing there",
        "joined": f"{plural(step.pairs[0], 'pair')} of links for the passes, "
        f"{step.pairs[1]} for the end of the step; {plural(step.ports, 'port')} a link",
    }
    if step.changed_at is not None:
        facts["changed"] = (
            f"at {format_duration(step.changed_at)}, and back as the step begins, "
            f"{format_duration(step.reconfiguration_time)} each time"
        )
    yield Section("circuits", "Over optical switches", (FactList(facts),))
