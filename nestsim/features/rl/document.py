"""What a step of reinforcement learning says: its phases, its pools, the choices."""

from collections.abc import Callable, Iterator, Mapping

from nestsim.document.figures import StackedBar, StackPart, Stacks
from nestsim.document.parts import (
    Cell,
    DataTable,
    Document,
    FactList,
    FigureBlock,
    Headline,
    KeyFigure,
    Section,
    cell,
    paragraphs,
)
from nestsim.document.wording import number, percent
from nestsim.features.rl.fabric import SAME
from nestsim.features.rl.pools import BEHIND
from nestsim.features.rl.record import PoolRecord, RlRecord
from nestsim.features.rl.step import IDLE
from topologies.units import format_duration

_PAINTS: Mapping[str, str] = {
    "rollout": "series-1",
    "reward": "series-4",
    "old log-probs": "series-2",
    "reference": "series-5",
    "values": "series-7",
    "critic": "series-8",
    "training": "series-0",
    "weights": "series-3",
    "states": "series-6",
    "swap": "series-9",
    IDLE: "idle",
}
"""Phase -> its paint."""

_CHOICES = 12
"""Choices of pools that the terminal has."""


def rl_document(data: Mapping[str, object]) -> Document:
    """Return what a step says.

    Parameters
    ----------
    data
        As ``rl.json`` has it.
    """
    if "phases" not in data:
        headline = Headline.without("NO STEP", data["reason"])
        return Document.of(str(data["scenario"]), "rl", headline, ())
    record = RlRecord.read(data)
    return Document.of(record.scenario, "rl", _headline(record), _sections(record))


def _headline(data: RlRecord) -> Headline:
    idle = f"rollout {percent(data.rollout_idle)}"
    if data.placement == "split":
        idle = f"trainer {percent(data.training_idle)}, {idle}"
    return Headline(
        verdict=data.headline,
        tone="plain",
        sentences=tuple(data.in_words),
        key_figures=(
            KeyFigure(
                "Step",
                format_duration(data.step_time_s),
                f"at least {format_duration(data.bound_s)}",
            ),
            KeyFigure(
                "Tokens/s a device",
                number(data.tokens_per_s_per_device),
                f"{number(data.tokens_per_s)} in all",
            ),
            KeyFigure(
                "Rollout",
                percent(data.rollout.time_s / data.step_time_s),
                f"{format_duration(data.rollout.time_s)} of a step",
            ),
            KeyFigure(
                "Devices",
                f"{data.num_devices:,}",
                f"{data.training_devices:,} train, {data.rollout_devices:,} roll out",
            ),
        ),
    )


def _sections(data: RlRecord) -> Iterator[Section]:
    yield Section("time", "Where the step goes", (_timeline(data), _phases(data)))
    yield Section("pools", "Pools", (_choices(data), *paragraphs([data.proof])))
    yield Section("basis", "What it is of", (FactList(data.facts),))


def _timeline(data: RlRecord) -> FigureBlock:
    """Return what each pool does in a step, as bars."""
    pools = dict.fromkeys(segment.pool for segment in data.timeline)

    def bar(pool: str) -> StackedBar:
        parts = tuple(
            StackPart(
                segment.name,
                segment.end_s - segment.start_s,
                _PAINTS[segment.name],
                f"{segment.name}: {format_duration(segment.end_s - segment.start_s)}, "
                f"from {format_duration(segment.start_s)}",
            )
            for segment in data.timeline
            if segment.pool == pool
        )
        idle = sum(part.length for part in parts if part.name == IDLE)
        words = f"waits {format_duration(idle)}" if idle else ""
        return StackedBar(pool, parts, words)

    return FigureBlock(
        name="timeline",
        title=f"A step of {format_duration(data.step_time_s)}",
        about="A bar for each pool of devices: its phases one after another, and where "
        "it waits.",
        drawing=Stacks(bars=tuple(map(bar, pools)), across="time [s]"),
        table=DataTable.of(
            "A step, moment by moment",
            data.timeline,
            {
                "Pool": lambda segment: segment.pool,
                "Phase": lambda segment: segment.name,
                "From": lambda segment: cell(segment.start_s, format_duration),
                "To": lambda segment: cell(segment.end_s, format_duration),
            },
        ),
    )


def _phases(data: RlRecord) -> DataTable:
    return DataTable.of(
        "Phases",
        data.phases,
        {
            "Phase": lambda phase: phase.name,
            "Pool": lambda phase: phase.pool,
            "Time": lambda phase: cell(phase.time_s, format_duration),
            "Share": lambda phase: cell(phase.time_s / data.step_time_s, percent),
            "Closed form": lambda phase: cell(phase.closed_form_s, format_duration),
            "Basis": lambda phase: phase.basis,
        },
    )


def _choices(data: RlRecord) -> DataTable:
    """Return the choices of pools, the fastest first."""
    ordered = sorted(
        data.choices,
        key=lambda entry: (
            entry.time_s is None,
            entry.time_s or 0.0,
            entry.rollout_devices,
        ),
    )
    columns: dict[str, Callable[[PoolRecord], Cell | str]] = {
        "Rollout": lambda entry: _devices(entry, data),
        "Training": lambda entry: cell(
            data.num_devices - entry.rollout_devices, "{:,}".format
        ),
        "Engine": lambda entry: f"tp{entry.engine_tensor_parallel_size}",
    }
    if any(entry.spread for entry in ordered):
        columns["Nodes"] = lambda entry: "spread" if entry.spread else "first"
    columns["Step"] = lambda entry: cell(entry.time_s, format_duration)
    if any(entry.contention_s is not None for entry in ordered):
        columns["Shared links"] = lambda entry: cell(
            entry.contention_s, lambda cost: format_duration(_clear(cost, entry))
        )
    columns["Note"] = _note
    return DataTable.of(
        "Choices of pools",
        ordered,
        columns,
        shown=0,
        first=_CHOICES,
    )


def _clear(cost: float, choice: PoolRecord) -> float:
    """Return a cost, 0 where it is what sums of ticks differ by [s]."""
    return cost if cost > SAME * (choice.time_s or 0.0) else 0.0


def _devices(choice: PoolRecord, data: RlRecord) -> str:
    return f"{choice.rollout_devices or data.num_devices:,}"


def _note(choice: PoolRecord) -> str:
    return "not faster, by its bound" if choice.reason == BEHIND else choice.reason
