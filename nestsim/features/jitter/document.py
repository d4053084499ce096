"""What jitter says: what a step takes, who is slowest, and what scale does."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nestsim.document.figures import CurveMarks, CurvePoint, Curves, DrawnCurve
from nestsim.document.parts import (
    DataTable,
    Document,
    FactList,
    FigureBlock,
    Headline,
    KeyFigure,
    Section,
    Sentences,
    cell,
    keyed,
)
from nestsim.document.wording import (
    device_ranges,
    no_plan_words,
    number,
    percent,
    plural,
    signed_percent,
)
from nestsim.features.jitter.job import JitteredSteps, JitterResult, SlowestActor
from nestsim.scenario.jitter import JitterSpec
from planner.work import Spent
from topologies.units import format_duration

_MOST_POINTS = 200
"""Steps of a curve; of more, evenly many are drawn."""

_NORMAL_95 = 1.959964
"""Quantile 0.975 of the standard normal distribution: how many standard errors the
bounds of a mean are away, by the central limit theorem."""

Record = Mapping[str, Any]


def jitter_document(data: Record) -> Document:
    """Return what jitter says.

    Parameters
    ----------
    data
        As ``jitter.json`` has it.
    """
    return Document(
        subject=data["scenario"],
        doing="jitter",
        headline=_headline(data),
        sections=tuple(_sections(data)),
    )


def _sections(data: Record) -> Iterator[Section]:
    facts = dict(data["jitter_in_words"])
    if data["steps"] is not None:
        slowest = Sentences((data["slowest"]["in_words"],))
        yield Section("steps", "Time of a step", (_steps(data["steps"]), slowest))
        facts = {"plan": data["plan"], **facts}
    if data["scale"]:
        yield Section("scale", "What scale does", (_scale(data),))
    yield Section("assumed", "What differs from step to step", (FactList(facts),))


def _headline(data: Record) -> Headline:
    steps = data["steps"]
    if steps is None:
        sentences = (data["reason"],)
        return Headline(verdict=data["headline"], tone="bad", sentences=sentences)
    p50, p99 = (steps["quantiles"][name]["time_s"] for name in ("p50", "p99"))
    return Headline(
        verdict=data["headline"],
        tone="plain",
        sentences=(steps["in_words"],),
        key_figures=(
            KeyFigure(
                "Mean step",
                format_duration(steps["mean_s"]),
                f"{format_duration(steps['plain_time_s'])} without jitter",
            ),
            KeyFigure("p99", format_duration(p99), f"p50 {format_duration(p50)}"),
            KeyFigure(
                "Throughput",
                f"{number(steps['mean_tokens_per_s'])} tokens/s",
                f"{number(steps['plain_tokens_per_s'])} without jitter",
            ),
        ),
    )


def _steps(steps: Record) -> FigureBlock:
    """Return which share of the steps takes how long."""
    times = sorted(steps["times_s"])
    places = sorted({round(k * (len(times) - 1) / _MOST_POINTS) for k in range(201)})
    points = []
    for place in places:
        share = 100 * (place + 1) / len(times)
        tip = f"{share:.1f} % of the steps take at most {format_duration(times[place])}"
        points.append(CurvePoint(times[place], share, tip))
    marks = {
        "without jitter": steps["plain_time_s"],
        **{name: one["time_s"] for name, one in steps["quantiles"].items()},
    }
    words = ", ".join(f"{name} {format_duration(at)}" for name, at in marks.items())
    tokens = steps["plain_tokens_per_s"] * steps["plain_time_s"]
    return FigureBlock(
        name="steps",
        title=f"{len(times):,} steps: which share takes at most how long",
        about="A rising curve of the share of steps over the time of a step.",
        drawing=Curves(
            curves=(DrawnCurve("steps", tuple(points)),),
            across="time of a step [s]",
            up="steps that take at most so long [%]",
            round_ticks=True,
            marks=CurveMarks(upright=tuple(marks.values())),
        ),
        note=f"From and to hold the value in {100 * steps['confidence']:g} % of all "
        f"samples. Dotted in the figure: {words}.",
        table=DataTable.of(
            "Time of a step",
            list(_step_rows(steps)),
            {
                "Step": lambda row: row[0],
                "Time": lambda row: cell(row[1], format_duration),
                "From": lambda row: cell(row[2], format_duration),
                "To": lambda row: cell(row[3], format_duration),
                "Longer": lambda row: cell(
                    row[1] / steps["plain_time_s"] - 1.0, signed_percent
                ),
                "Tokens/s": lambda row: cell(tokens / row[1], number),
            },
        ),
    )


def _step_rows(
    steps: Record,
) -> Iterator[tuple[str, float, float | None, float | None]]:
    """Yield what a step takes, by name: value, and band where there is one [s]."""
    yield "without jitter", steps["plain_time_s"], None, None
    mean, error = steps["mean_s"], steps["mean_standard_error_s"]
    reach = None if error is None else _NORMAL_95 * error
    yield (
        *("mean", mean),
        *((None, None) if reach is None else (mean - reach, mean + reach)),
    )
    for name, band in steps["quantiles"].items():
        yield name, band["time_s"], band["from_s"], band["to_s"]
    yield "longest", steps["longest_s"], None, None


def _scale(data: Record) -> FigureBlock:
    """Return the loss over the replicas: closed form, and simulation."""
    rows: Sequence[Record] = data["scale"]
    curves = {
        "closed form": "closed_loss",
        "simulated, two standard errors": "simulated_loss",
        "expected": "expected_loss",
    }
    return FigureBlock(
        name="scale",
        title="What jitter costs the same plan on other numbers of replicas",
        about="Curves of the mean loss over the replicas: closed form, simulation.",
        drawing=Curves(
            curves=tuple(
                DrawnCurve(
                    name,
                    tuple(
                        _point(row, key, name) for row in rows if row[key] is not None
                    ),
                )
                for name, key in curves.items()
            ),
            across="data-parallel replicas",
            up="longer than without jitter [%]",
            logarithmic=True,
        ),
        note=data["closed_form"]["in_words"],
        table=DataTable.of(
            "Mean loss by the number of replicas",
            rows,
            {
                "Replicas": keyed("replicas", "{:,}".format),
                "Devices": keyed("num_devices", "{:,}".format),
                "Without jitter": keyed("plain_time_s", format_duration),
                "Closed form": keyed("closed_loss", loss_words),
                "Simulated": keyed("simulated_loss", loss_words),
                "Difference": keyed("difference", signed_points),
                "Expected": keyed("expected_loss", loss_words),
                "+-": keyed("expected_loss_error", loss_words),
            },
        ),
    )


def _point(row: Record, key: str, name: str) -> CurvePoint:
    loss, error = 100 * row[key], row["expected_loss_error"]
    tip = f"{name}, {row['replicas']:,} replicas: {loss:.2f} %"
    if key != "simulated_loss" or error is None:
        return CurvePoint(row["replicas"], loss, tip)
    reach = 200 * error
    return CurvePoint(row["replicas"], loss, tip, loss - reach, loss + reach)


_PERIODS = {
    "operator": "each operator between two collectives",
    "pass": "each pass of a microbatch",
    "step": "each step",
}
"""How long a factor lasts, in words."""


def headline(result: JitterResult) -> str:
    """Say what jitter costs, or that there is no plan."""
    if result.steps is None:
        return no_plan_words(result.spent or Spent(), covers_space=True)
    lost = percent(result.steps.loss)
    return f"Jitter makes the mean step {lost} longer"


def summary(steps: JitteredSteps) -> str:
    """Say what the steps take, in one sentence."""
    mean = steps.simulated.mean
    take = "takes" if steps.times.size == 1 else "take"
    return (
        f"{plural(steps.times.size, 'step')} {take} {format_duration(mean)} on "
        f"average, {format_duration(steps.plain_time)} without jitter: "
        f"{number(steps.tokens / mean)} tokens/s in place of "
        f"{number(steps.tokens / steps.plain_time)}."
    )


def jitter_in_words(spec: JitterSpec) -> dict[str, str]:
    """Return what differs from step to step, by what it is about."""
    jitter, rows = spec.jitter, {}
    if jitter.compute is not None:
        rows["compute"] = (
            f"{jitter.compute.distribution}, coefficient of variation "
            f"{jitter.compute.cv:g}, for each device and {_PERIODS[jitter.per]}"
        )
    if jitter.links is not None:
        rows["messages"] = (
            f"{format_duration(jitter.links.mean)} longer on average, "
            f"{jitter.links.distribution}, coefficient of variation "
            f"{jitter.links.cv:g}"
        )
    if spec.slow:
        parts = [
            f"{percent(one.fraction)} of the fleet {one.factor:g} times as long"
            for one in spec.slow
        ]
        rows["slow devices"] = f"{', '.join(parts)}; others in each step"
    rows["steps"] = f"{spec.runs:,}, seed {jitter.seed}"
    return rows


def share_name(share: float) -> str:
    """Write a quantile: ``p95``."""
    return f"p{100 * share:g}"


def slowest_in_words(slowest: SlowestActor, num_stages: int) -> str:
    """Say who was slowest in the longest step."""
    stage = f"stage {slowest.stage} of " if num_stages > 1 else ""
    told = (
        f"In the longest step (run {slowest.run}, {format_duration(slowest.time)}) "
        f"{stage}replica {slowest.replica} was at work longest, on "
        f"{plural(len(slowest.devices), 'device')} "
        f"({device_ranges(slowest.devices)}): {slowest.ratio:.3f} times as long as "
        "without jitter"
    )
    if slowest.slow_devices:
        told += f"; slow: {device_ranges(slowest.slow_devices)}"
    return f"{told}."


def agreement(result: JitterResult) -> str:
    """Say how far the closed form is to be trusted, and how far off it is."""
    simulated = [row for row in result.scale if row.difference is not None]
    worst = max(simulated, key=lambda row: abs(row.difference or 0.0))
    off = worst.difference or 0.0
    error = worst.loss_error or 0.0
    known = f"standard error {points(error)}" if math.isfinite(error) else "one run"
    found = (
        f"the simulation is farthest from it with {plural(worst.replicas, 'replica')}, "
        f"{signed_points(off)} ({known})"
    )
    if not result.approximations:
        return f"The closed form is exact for the mean of this plan: {found}."
    reasons = "; ".join(result.approximations)
    return f"The closed form is an approximation ({reasons}): {found}."


def points(share: float) -> str:
    """Write a difference of two shares: ``0.12 points``."""
    return f"{100 * share:.2f} points"


def signed_points(share: float) -> str:
    """Write a signed difference of two shares: ``+0.12 points``."""
    return f"{100 * share:+.2f} points"


def loss_words(loss: float) -> str:
    """Write a loss: ``4.67 %``."""
    return f"{100 * loss + 0.0:.2f} %".replace("-0.00", "0.00")
