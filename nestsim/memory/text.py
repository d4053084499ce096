"""The memory of a job as text: what it holds, why, and what would fit."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.memory.job import KeptActivations, MemoryResult, StageNeeds
from nestsim.report.figures.palette import MEMORY_PARTS
from nestsim.report.tables import add_row, facts, new_table, print_line, print_section
from nestsim.report.text import need_sentence
from nestsim.report.wording import (
    IDEAL_WORDS,
    layer_span,
    percent,
    plan_label,
    plural,
)
from planner.memory.changes import Change
from planner.memory.thrift import MOST_DEVICES, ThriftyPlan
from planner.step.room import is_within
from topologies.units import format_size

_GIB = 2.0**30

_MOST_TENSORS = 12
"""Tensors of a layer that are listed one by one."""

_SAID = ("data_parallel_size", "num_microbatches")
"""Settings that follow from others."""


_HEADLINES: Mapping[str, str] = {
    "fits": "FITS",
    "doubtful": "MAY FIT (too little memory by the estimate)",
    "infeasible": "DOES NOT FIT",
}
"""Judgement -> headline."""


def print_memory(result: MemoryResult, console: Console) -> None:
    """Print whether the plan fits, its stages, its parameters, and what would fit."""
    if result.memory is None:
        headline = Text("NOTHING TO COUNT", style="bold red")
        print_line(console, headline, result.scenario_name)
        console.print(
            Text(f"{result.framework} launches no plan of these sizes."),
            highlight=False,
        )
        _print_list(console, "What would fit", fewest_words(result))
        return
    style = "bold green" if result.fits else "bold red"
    ideal = IDEAL_WORDS if result.band is None else ""
    headline = Text(f"{_HEADLINES[result.judgement]}{ideal}", style=style)
    print_line(console, headline, result.scenario_name)
    for sentence in (fit_sentence(result), need_sentence(result.need)):
        if sentence:
            console.print(Text(f"  {sentence}"), highlight=False)
    console.print()
    console.print(facts(_plan_facts(result)))
    print_section(console, "One device of each stage [GiB]", _stage_table(result))
    print_section(console, "Bytes per parameter", _parameter_table(result))
    console.print(Text(f"  {parameter_sentence(result)}"), highlight=False)
    if result.changes:
        title = "What would make it fit, one change at a time"
        print_section(console, title, _change_table(result))
    _print_list(
        console,
        "What still fits" if result.fits else "What would fit",
        [*still_words(result), *least_words(result), *fewest_words(result)],
    )
    for kept in result.kept:
        if not kept.total:
            continue
        print_section(console, _kept_title(kept), _kept_table(kept))


def fit_sentence(result: MemoryResult) -> str:
    """Say how full the fullest stage is, or how much is missing."""
    memory, limits = result.memory, result.limits
    assert memory is not None
    needed = format_size(memory.needed)
    start = (
        f"Stage {memory.fullest} needs {needed} of the {format_size(limits.device)} "
        "that tensors may take"
    )
    if memory.needed > limits.device:
        return f"{start}, {format_size(memory.needed - limits.device)} too much."
    if memory.host > limits.host:
        return (
            f"{start}; its host would keep {format_size(memory.host)}, and has "
            f"{format_size(limits.host)} ([cluster.host] memory)."
        )
    return f"{start}, {_share_words(memory.needed, limits.device)}."


def _plan_facts(result: MemoryResult) -> dict[str, str]:
    assert result.memory is not None
    plan = result.memory.plan
    used = plan.parallel.num_devices
    origin = "the one that is given"
    if not result.is_given:
        origin = "the configuration that needs least, of what [search] allows"
    if result.is_start:
        origin = "what its users start with; a table [plan] gives another"
    memory = format_size(result.device_memory)
    if result.reserve:
        memory += f", {format_size(result.reserve)} of it kept free"
    return {
        "plan": f"{plan_label(plan)} on {used:,} of {result.num_devices:,} "
        f"{result.accelerator_name}; {origin}",
        "schedule": f"{plan.schedule}, "
        f"{plural(plan.num_microbatches, 'microbatch')} of {plan.micro_batch_size}",
        "framework": result.framework,
        "device": memory,
    }


def shown_parts(stages: Iterable[StageNeeds]) -> list[str]:
    """Return the parts that any stage has, in the order in which they are stacked."""
    found = {name for one in stages for name, size in one.parts.items() if size > 0.0}
    known = [name for name in MEMORY_PARTS if name in found]
    return [*known, *sorted(found - {*known})]


_HEADINGS: Mapping[str, str] = {
    "gradients": "grads",
    "optimizer": "optim.",
    "activations": "activ.",
    "copies of gradients": "copies",
}
"""Part -> how its column is headed, where that is shorter."""


def _stage_table(result: MemoryResult) -> Table:
    assert result.memory is not None
    parts = shown_parts(result.stages)
    sums: dict[str, Callable[[StageNeeds], float]] = {"tensors": lambda one: one.peak}
    if any(any(stage.beside) for stage in result.stages):
        sums["beside"] = lambda one: sum(one.beside)
        sums["needed"] = lambda one: one.needed
    if any(stage.host for stage in result.stages):
        sums["on host"] = lambda one: sum(one.host.values())
    numbers = [*(_HEADINGS.get(name, name) for name in parts), *sums]
    table = new_table("Stage", "Layers", *numbers, numbers=["Stage", *numbers])
    for index, stage in enumerate(result.stages):
        sizes = [stage.parts.get(name, 0.0) for name in parts]
        sizes += [add(stage) for add in sums.values()]
        span = layer_span(result.layer_names, result.memory.plan.stages[index])
        style = "bold" if index == result.memory.fullest else ""
        cells = [f"{size / _GIB:.2f}" for size in sizes]
        add_row(table, str(index), span, *cells, style=style)
    return table


def _parameter_table(result: MemoryResult) -> Table:
    """Return what a device keeps for each parameter, in its fullest stage."""
    assert result.memory is not None
    stage = result.stages[result.memory.fullest]
    table = new_table("What", "Bytes", "Shared by", "Why", numbers=["Bytes"])
    for item in result.items:
        shared = "nobody"
        if item.part in stage.sharded:
            shared = _sharers(stage)
        when = " (at the step's end only)" if item.part == "copies" else ""
        add_row(table, item.name, str(item.num_bytes), shared, f"{item.reason}{when}")
    add_row(table, "together", str(sum(item.num_bytes for item in result.items)), "")
    return table


def _sharers(stage: StageNeeds) -> str:
    dense, expert = stage.shares
    words = plural(int(dense.group_size), "rank")
    if float(expert.parameters) > 0.0:
        words += f" (experts: {int(expert.group_size)})"
    return words


def parameter_sentence(result: MemoryResult) -> str:
    """Say how many parameters the fullest stage has, and what they come to."""
    assert result.memory is not None
    index = result.memory.fullest
    stage = result.stages[index]
    held = sum(float(share.parameters) for share in stage.shares)
    size = 0.0
    for item in result.items:
        if item.part == "copies":
            continue
        for share in stage.shares:
            group = int(share.group_size) if item.part in stage.sharded else 1
            size += item.num_bytes * float(share.parameters) / group
    per = size / held if held else 0.0
    return (
        f"A device of stage {index} works on {held:,.0f} parameters; after sharding "
        f"they take {per:.2f} bytes each, {format_size(size)}, while passes work."
    )


def change_words(change: Change) -> str:
    """Write the settings that a change gives other values."""
    written = [
        f"{name} = {_value_words(value)}"
        for name, value in change.step.settings.items()
        if name not in _SAID and value is not None and value is not False
    ]
    written += [
        f"training.{name} = {_value_words(value)}"
        for name, value in change.step.training.items()
    ]
    if not written:
        written = [f"{name} left out" for name in change.step.settings]
    return ", ".join(written)


def _value_words(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        listed = ", ".join(str(one) for one in value[:4])
        return f"[{listed}{', ..' if len(value) > 4 else ''}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _change_table(result: MemoryResult) -> Table:
    numbers = ["Needs", "Of usable"]
    table = new_table("Fits", "Change", "Setting", *numbers, numbers=numbers)
    for change in result.changes:
        add_row(
            table,
            "yes" if change.fits else "no",
            change.kind,
            change_words(change) + _host_words(change, result.limits.host),
            format_size(change.memory.needed),
            _share_words(change.memory.needed, result.limits.device),
        )
    return table


def _host_words(change: Change, has: float) -> str:
    """Say what the host needs for a change, where it has less."""
    if is_within(change.memory.host, has):
        return ""
    return f', and memory = "{format_size(change.memory.host)}" in [cluster.host]'


def _share_words(needed: float, usable: float) -> str:
    return percent(needed / usable) if usable > 0.0 else "-"


def still_words(result: MemoryResult) -> list[str]:
    """Say which larger micro-batch and sequence still fit."""
    words = []
    if result.micro_batch is not None:
        found = result.micro_batch
        words.append(
            f"the largest micro-batch that divides the batch: {found.size}, with "
            f"{format_size(found.memory.needed)}"
        )
    if result.sequence is not None:
        found = result.sequence
        words.append(
            f"the longest sequence: {found.size:,} tokens, with "
            f"{format_size(found.memory.needed)}"
        )
    return words


def least_words(result: MemoryResult) -> list[str]:
    """Say what the same devices can do with at least."""
    if result.fits or result.least is None:
        return []
    memory = result.least.memory
    ending = "fits" if memory.fits(result.limits) else "does not fit either"
    return [
        f"the least that [search] allows on these devices: {plan_label(memory.plan)} "
        f"needs {format_size(memory.needed)}, which {ending}"
    ]


def fewest_words(result: MemoryResult) -> list[str]:
    """Say on how few devices the job fits, in whatever way."""
    if result.fewest is None:
        words = [
            f"nothing that {result.framework} launches on {MOST_DEVICES:,} devices"
        ]
    else:
        words = [f"the fewest devices that hold the job: {_count_words(result.fewest)}"]
    if result.fewest_with_hosts is not None:
        found = result.fewest_with_hosts
        kept, has = format_size(found.memory.host), format_size(result.limits.host)
        words.append(
            f"with all on hosts that can be: {_count_words(found)}, and {kept} of the "
            f"{has} that [cluster.host] has for each"
        )
    return words


def _count_words(found: ThriftyPlan) -> str:
    plan = found.memory.plan
    count = plural(plan.parallel.num_devices, "device")
    return f"{count}, {plan_label(plan)}, with {format_size(found.memory.needed)}"


def _print_list(console: Console, title: str, lines: list[str]) -> None:
    print_section(console, title, Text("\n".join(f"  - {line}" for line in lines)))


def _kept_title(kept: KeptActivations) -> str:
    count = f", {kept.num_layers} alike" if kept.num_layers > 1 else ""
    return (
        f"{kept.layer}{count}: keeps {format_size(kept.total)} of a microbatch "
        f"(recompute {kept.mode})"
    )


def _kept_table(kept: KeptActivations) -> Table:
    numbers = ["Bytes", "Share of a device"]
    table = new_table("Tensor", *numbers, numbers=numbers)
    for tensor in kept.tensors[:_MOST_TENSORS]:
        share = f"1/{1.0 / tensor.share:.4g}" if tensor.share else "-"
        add_row(table, tensor.name, format_size(tensor.num_bytes), share)
    others = kept.tensors[_MOST_TENSORS:]
    if others:
        size = sum(tensor.num_bytes for tensor in others)
        add_row(table, f"{plural(len(others), 'smaller one')}", format_size(size), "")
    if kept.rest:
        size = kept.total - sum(tensor.num_bytes for tensor in kept.tensors)
        add_row(table, kept.rest, format_size(size), "")
    return table
