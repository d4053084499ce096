"""What a job's memory says: what it holds, why, and what would fit."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nestsim.document.figures import StackedBar, StackPart, Stacks
from nestsim.document.paints import MEMORY_PARTS, part_paint
from nestsim.document.parts import (
    Cell,
    DataTable,
    Document,
    FactList,
    FigureBlock,
    Headline,
    Section,
    Sentences,
    cell,
)
from nestsim.document.wording import (
    IDEAL_WORDS,
    layer_span,
    need_sentence,
    percent,
    plan_label,
    plural,
    size_of_limit,
)
from nestsim.features.memory.job import KeptActivations, MemoryResult, StageNeeds
from planner.memory.account import MemoryLimits
from planner.memory.changes import Change
from planner.memory.thrift import MOST_DEVICES, ThriftyPlan
from planner.step.memory import is_within
from topologies.units import format_size

_GIB = 2.0**30

_MOST_TENSORS = 12
"""Tensors of a layer that are listed one by one."""

_MOST_ROWS = 48
"""Stages that are drawn."""

_SAID = ("data_parallel_size", "num_microbatches")
"""Settings that follow from others."""

_HEADLINES: Mapping[str, str] = {
    "fits": "FITS",
    "doubtful": "MAY FIT (too little memory by the estimate)",
    "infeasible": "DOES NOT FIT",
}
"""Judgement -> headline."""

_BESIDE: Mapping[str, str] = {
    "workspace": "mixed",
    "fragmentation": "idle",
    "context": "part-other",
}
"""What is beside tensors -> its paint."""


def memory_document(result: MemoryResult) -> Document:
    """Return what the memory of a job says."""
    return Document(
        subject=result.scenario_name,
        doing="memory",
        headline=_headline(result),
        sections=tuple(_sections(result)),
    )


def _headline(result: MemoryResult) -> Headline:
    if result.memory is None:
        sentence = f"{result.framework} launches no plan of these sizes."
        return Headline.without("NOTHING TO COUNT", sentence)
    ideal = IDEAL_WORDS if result.band is None else ""
    sentences = fit_sentence(result), need_sentence(result.need)
    return Headline(
        verdict=f"{_HEADLINES[result.judgement]}{ideal}",
        tone="good" if result.fits else "bad",
        sentences=tuple(filter(None, sentences)),
    )


def _sections(result: MemoryResult) -> Iterator[Section]:
    if result.memory is not None:
        rows = _plan_facts(result)
        yield Section("plan", "The plan", (FactList(rows),))
        yield Section(
            "stages", "One device of each stage [GiB]", (_stage_figure(result),)
        )
        yield Section(
            "parameters",
            "Bytes per parameter",
            (
                _parameter_table(result),
                Sentences((parameter_sentence(result),)),
            ),
        )
    if result.changes:
        yield Section(
            "changes",
            _ONE_CHANGE,
            (_change_table(result.changes, _ONE_CHANGE, result.limits),),
        )
    if result.together:
        yield Section(
            "together",
            _TOGETHER,
            (_change_table(result.together, _TOGETHER, result.limits),),
        )
    words = [*still_words(result), *least_words(result), *fewest_words(result)]
    yield Section(
        "fitting",
        "What still fits" if result.fits else "What would fit",
        (Sentences(tuple(f"- {line}" for line in words)),),
    )
    for number, kept in enumerate(result.kept):
        if kept.total:
            yield Section(f"kept-{number}", _kept_title(kept), (_kept_table(kept),))


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
    present = {
        name for stage in stages for name, size in stage.parts.items() if size > 0.0
    }
    known = [name for name in MEMORY_PARTS if name in present]
    return [*known, *sorted(present - {*known})]


_HEADINGS: Mapping[str, str] = {
    "gradients": "grads",
    "optimizer": "optim.",
    "activations": "activ.",
    "copies of gradients": "copies",
}
"""Part -> how its column is headed, where that is shorter."""


def shown_stages(result: MemoryResult) -> list[int]:
    """Return the stages that are drawn: all, or some and the fullest one."""
    assert result.memory is not None
    count = len(result.stages)
    every = -(-count // _MOST_ROWS)
    return sorted({*range(0, count, every), result.memory.fullest, count - 1})


def _stage_figure(result: MemoryResult) -> FigureBlock:
    """Return what one device of each stage needs, and where the device ends."""
    assert result.memory is not None
    verdict = "fits" if result.fits else "does not fit"
    used = size_of_limit(result.memory.needed, result.limits.device)
    capacity = (result.device_memory - result.reserve) / _GIB
    device = "device" if not result.reserve else "device less what is kept free"
    return FigureBlock(
        name="stages",
        title=f"Stage {result.memory.fullest} {verdict}: {used} usable",
        about="Bars of the memory of a device of each stage, by what it is for.",
        drawing=Stacks(
            bars=tuple(
                _stage_bar(stage, result.stages[stage], capacity)
                for stage in shown_stages(result)
            ),
            across="needed of a device's memory [GiB]",
        ),
        note=f"Lines: the {device}, {capacity:.4g} GiB.",
        table=_stage_table(result),
    )


def _stage_bar(index: int, stage: StageNeeds, capacity: float) -> StackedBar:
    sizes = {
        name: (stage.parts.get(name, 0.0), part_paint(name))
        for name in shown_parts([stage])
    }
    sizes |= {
        name: (getattr(stage.beside, name), paint) for name, paint in _BESIDE.items()
    }
    return StackedBar(
        f"stage {index}",
        tuple(
            StackPart(
                name, size / _GIB, paint, f"stage {index}, {name}: {format_size(size)}"
            )
            for name, (size, paint) in sizes.items()
            if size
        ),
        format_size(stage.needed),
        capacity,
    )


def _stage_table(result: MemoryResult) -> DataTable:
    memory, stages = result.memory, result.stages
    assert memory is not None

    def size(of: Callable[[StageNeeds], float]) -> Callable[[int], Cell | str]:
        return lambda index: Cell(f"{of(stages[index]) / _GIB:.2f}", of(stages[index]))

    def part(name: str) -> Callable[[StageNeeds], float]:
        return lambda stage: stage.parts.get(name, 0.0)

    sums: dict[str, Callable[[StageNeeds], float]] = {
        "tensors": lambda stage: stage.peak
    }
    if any(any(stage.beside) for stage in stages):
        sums["beside"] = lambda stage: sum(stage.beside)
        sums["needed"] = lambda stage: stage.needed
    if any(stage.host for stage in stages):
        sums["on host"] = lambda stage: sum(stage.host.values())
    return DataTable.of(
        "One device of each stage [GiB]",
        range(len(stages)),
        {
            "Stage": lambda index: cell(index, str),
            "Layers": lambda index: layer_span(
                result.layer_names, memory.plan.stages[index]
            ),
            **{
                _HEADINGS.get(name, name): size(part(name))
                for name in shown_parts(stages)
            },
            **{name: size(of) for name, of in sums.items()},
        },
        shown=memory.fullest,
    )


def _parameter_table(result: MemoryResult) -> DataTable:
    """Return what a device keeps for each parameter, in its fullest stage."""
    assert result.memory is not None
    stage = result.stages[result.memory.fullest]
    rows = []
    for item in result.items:
        shared = _sharers(stage) if item.part in stage.sharded else "nobody"
        when = " (at the step's end only)" if item.part == "copies" else ""
        rows.append((item.name, item.num_bytes, shared, f"{item.reason}{when}"))
    rows.append(("together", sum(item.num_bytes for item in result.items), "", ""))
    return DataTable.of(
        "Bytes per parameter",
        rows,
        {
            "What": lambda row: row[0],
            "Bytes": lambda row: cell(row[1], lambda size: f"{size:.4g}"),
            "Shared by": lambda row: row[2],
            "Why": lambda row: row[3],
        },
    )


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
    written += [f"model.{name} = {value}" for name, value in change.step.model.items()]
    if not written:
        written = [f"{name} left out" for name in change.step.settings]
    return ", ".join(written)


def _value_words(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        listed = ", ".join(str(item) for item in value[:4])
        return f"[{listed}{', ..' if len(value) > 4 else ''}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


_ONE_CHANGE = "What would make it fit, one change at a time"
_TOGETHER = "What would make it fit, several changes together"


def _change_table(
    changes: Sequence[Change], title: str, limits: MemoryLimits
) -> DataTable:
    return DataTable.of(
        title,
        changes,
        {
            "Fits": lambda change: "yes" if change.fits else "no",
            "Change": lambda change: change.kind,
            "Setting": lambda change: (
                change_words(change) + _host_words(change, limits.host)
            ),
            "Needs": lambda change: cell(change.memory.needed, format_size),
            "Of usable": lambda change: Cell(
                _share_words(change.memory.needed, limits.device), change.memory.needed
            ),
        },
    )


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


def _count_words(thrifty: ThriftyPlan) -> str:
    plan = thrifty.memory.plan
    count = plural(plan.parallel.num_devices, "device")
    return f"{count}, {plan_label(plan)}, with {format_size(thrifty.memory.needed)}"


def _kept_title(kept: KeptActivations) -> str:
    count = f", {kept.num_layers} alike" if kept.num_layers > 1 else ""
    return (
        f"{kept.layer}{count}: keeps {format_size(kept.total)} of a microbatch "
        f"(recompute {kept.mode})"
    )


def _kept_table(kept: KeptActivations) -> DataTable:
    rows: list[tuple[str, float, float | None]] = [
        (tensor.name, tensor.num_bytes, tensor.share)
        for tensor in kept.tensors[:_MOST_TENSORS]
    ]
    others = kept.tensors[_MOST_TENSORS:]
    if others:
        size = sum(tensor.num_bytes for tensor in others)
        rows.append((plural(len(others), "smaller one"), size, None))
    if kept.rest:
        size = kept.total - sum(tensor.num_bytes for tensor in kept.tensors)
        rows.append((kept.rest, size, None))
    return DataTable.of(
        _kept_title(kept),
        rows,
        {
            "Tensor": lambda row: row[0],
            "Bytes": lambda row: cell(row[1], format_size),
            "Share of a device": lambda row: cell(
                row[2] or None, lambda share: f"1/{1.0 / share:.4g}"
            ),
        },
    )
