"""The page of jitter: of what its ``jitter.json`` holds."""

from collections.abc import Mapping, Sequence
from typing import Any

from nestsim.document.figures import (
    CurveMarks,
    CurvePoint,
    Curves,
    DrawnCurve,
)
from nestsim.document.parts import (
    Block,
    Cell,
    DataTable,
    Document,
    FactList,
    FigureBlock,
    Headline,
    KeyFigure,
    Section,
    Sentences,
)
from nestsim.report.wording import number, signed_percent
from topologies.units import format_duration

_MOST_POINTS = 200
"""Steps of a curve; of more, evenly many are drawn."""


def jitter_page(data: Mapping[str, Any]) -> Document:
    """Return the page of jitter.

    Parameters
    ----------
    data
        As ``jitter.json`` has it.
    """
    sections = (
        Section(name="steps", title="Time of a step", blocks=_steps(data)),
        Section(name="scale", title="What scale does", blocks=_scale(data)),
        Section(
            name="assumed",
            title="What differs from step to step",
            blocks=(FactList(rows=data["jitter_in_words"]),),
        ),
    )
    return Document(
        subject=data["scenario"],
        doing="jitter",
        headline=_headline(data),
        sections=tuple(one for one in sections if one.blocks),
    )


def _headline(data: Mapping[str, Any]) -> Headline:
    steps = data["steps"]
    if steps is None:
        sentences = (data["reason"],)
        return Headline(verdict=data["headline"], tone="bad", sentences=sentences)
    p50, p99 = (steps["quantiles"][name]["time_s"] for name in ("p50", "p99"))
    return Headline(
        verdict=data["headline"],
        tone="plain",
        sentences=(steps["in_words"], data["plan"]),
        key_figures=(
            KeyFigure(
                name="Mean step",
                value=format_duration(steps["mean_s"]),
                note=f"{format_duration(steps['plain_time_s'])} without jitter",
            ),
            KeyFigure(
                name="p99",
                value=format_duration(p99),
                note=f"p50 {format_duration(p50)}",
            ),
            KeyFigure(
                name="Throughput",
                value=f"{number(steps['mean_tokens_per_s'])} tokens/s",
                note=f"{number(steps['plain_tokens_per_s'])} without jitter",
            ),
        ),
    )


def _steps(data: Mapping[str, Any]) -> tuple[Block, ...]:
    """Return which share of the steps takes how long, and who was slowest."""
    steps = data["steps"]
    if steps is None:
        return ()
    times = sorted(steps["times_s"])
    places = sorted({round(k * (len(times) - 1) / _MOST_POINTS) for k in range(201)})
    points = []
    for place in places:
        share = 100 * (place + 1) / len(times)
        tip = f"{share:.1f} % of the steps take at most {format_duration(times[place])}"
        points.append(CurvePoint(times[place], share, tip))
    curve = DrawnCurve("steps", tuple(points))
    quantiles = steps["quantiles"]
    marks = CurveMarks(
        (steps["plain_time_s"], *(one["time_s"] for one in quantiles.values()))
    )
    note = "Dotted: without jitter, and " + ", ".join(quantiles)
    return (
        FigureBlock(
            name="steps",
            title=f"{len(times):,} steps: which share takes at most how long",
            about="A rising curve of the share of steps over the time of a step.",
            drawing=Curves(
                curves=(curve,),
                across="time of a step [s]",
                up="steps that take at most so long [%]",
                round_ticks=True,
                marks=marks,
            ),
            table=_quantiles(steps),
            note=f"{note}.",
        ),
        Sentences(sentences=(data["slowest"]["in_words"],)),
    )


def _quantiles(steps: Mapping[str, Any]) -> DataTable:
    rows: list[tuple[str, float, float | None, float | None]] = [
        ("without jitter", steps["plain_time_s"], None, None),
        ("mean", steps["mean_s"], None, None),
        *(
            (name, one["time_s"], one["from_s"], one["to_s"])
            for name, one in steps["quantiles"].items()
        ),
        ("longest", steps["longest_s"], None, None),
    ]
    share = f"{100 * steps['confidence']:g} %"
    return DataTable(
        caption=f"Time of a step; bands that hold the quantile with {share}",
        columns=("Step", "Time", "From", "To", "Longer"),
        rows=tuple(
            (
                name,
                *(_time(one) for one in (time, low, high)),
                _change(time / steps["plain_time_s"] - 1),
            )
            for name, time, low, high in rows
        ),
        numbers=("Time", "From", "To", "Longer"),
    )


def _time(value: float | None) -> Cell | str:
    return "-" if value is None else Cell(format_duration(value), value)


def _change(share: float) -> Cell:
    return Cell(signed_percent(share), share)


def _loss(share: float | None) -> Cell | str:
    return "-" if share is None else Cell(f"{100 * share:.2f} %", share)


def _scale(data: Mapping[str, Any]) -> tuple[Block, ...]:
    """Return the loss over the replicas: closed form, and simulation."""
    rows: Sequence[Mapping[str, Any]] = data["scale"]
    if not rows:
        return ()
    curves = [
        DrawnCurve(
            name,
            tuple(
                CurvePoint(
                    row["replicas"],
                    100 * row[key],
                    f"{name}, {row['replicas']:,} replicas: {100 * row[key]:.2f} %",
                )
                for row in rows
                if row[key] is not None
            ),
        )
        for name, key in (
            ("closed form", "closed_loss"),
            ("simulated", _SIMULATED),
            ("expected", "expected_loss"),
        )
    ]
    return (
        FigureBlock(
            name="scale",
            title="What jitter costs the same plan on other numbers of replicas",
            about="Curves of the mean loss over the replicas: closed form, simulation.",
            drawing=Curves(
                curves=tuple(curves),
                across="data-parallel replicas",
                up="longer than without jitter [%]",
                logarithmic=True,
            ),
            table=DataTable(
                caption="Mean loss by the number of replicas",
                columns=_COLUMNS,
                rows=tuple(_scale_row(row) for row in rows),
                numbers=_COLUMNS,
            ),
            note=data["closed_form"]["in_words"],
        ),
    )


_SIMULATED = "simulated_loss"

_COLUMNS = (
    *("Replicas", "Devices", "Without jitter", "Closed form", "Simulated"),
    *("Difference", "Expected", "Standard error"),
)


def _scale_row(row: Mapping[str, Any]) -> tuple[Cell | str, ...]:
    return (
        Cell(f"{row['replicas']:,}", row["replicas"]),
        Cell(f"{row['num_devices']:,}", row["num_devices"]),
        _time(row["plain_time_s"]),
        _loss(row["closed_loss"]),
        _loss(row[_SIMULATED]),
        _loss(row["difference"]),
        _loss(row["expected_loss"]),
        _loss(row["expected_loss_error"]),
    )
