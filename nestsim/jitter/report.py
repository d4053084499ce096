"""What jitter costs, as text."""

import math
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.jitter.job import JitteredSteps, JitterResult, SlowestActor
from nestsim.jitter.order_statistics import CONFIDENCE, QuantileBand
from nestsim.jitter.scale import ScaleRow
from nestsim.report.tables import add_row, facts, new_table, print_line, print_section
from nestsim.report.wording import (
    device_ranges,
    no_plan_words,
    number,
    percent,
    plan_label,
    plural,
    signed_percent,
)
from nestsim.scenario.operations.jitter import JitterSpec
from planner.work import Spent
from topologies.units import format_duration

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


def print_jitter(result: JitterResult, console: Console) -> None:
    """Print what steps take, who is slowest, and what scale does."""
    steps, priced = result.steps, result.priced
    if steps is None or priced is None:
        print_line(
            console, Text(headline(result), style="bold red"), result.scenario_name
        )
        console.print(Text(f"  {result.shortfall}"), highlight=False)
        return
    print_line(console, Text(headline(result), style="bold"), result.scenario_name)
    console.print(Text(f"  {summary(steps)}"), highlight=False)
    console.print()
    rows = {"plan": plan_label(priced.plan), **jitter_in_words(result.spec)}
    console.print(facts(rows), highlight=False)
    print_section(console, "Time of a step", _steps_table(steps))
    bands = f"Bands hold what they are of in {100 * CONFIDENCE:g} % of all samples."
    told = slowest_in_words(steps.slowest, len(priced.plan.stages))
    for line in (bands, told):
        console.print(Text(f"  {line}"), highlight=False)
    title = "The same plan on other numbers of replicas"
    print_section(console, title, _scale_table(result.scale))
    console.print(Text(f"  {agreement(result)}"), highlight=False)


def _steps_table(steps: JitteredSteps) -> Table:
    numbers = ("Time", "From", "To", "Longer", "Tokens/s")
    table = new_table("", *numbers, numbers=numbers)
    for name, time, low, high in step_rows(steps):
        add_row(
            table,
            name,
            format_duration(time),
            "-" if low is None else format_duration(low),
            "-" if high is None else format_duration(high),
            signed_percent(time / steps.plain_time - 1.0),
            number(steps.tokens / time),
        )
    return table


def step_rows(
    steps: JitteredSteps,
) -> Iterator[tuple[str, float, float | None, float | None]]:
    """Yield what a step takes, by name: value, and band where there is one [s]."""
    mean = steps.simulated
    yield "without jitter", steps.plain_time, None, None
    # 1.96 standard errors: the normal distribution, by the central limit theorem.
    reach = _NORMAL_95 * mean.standard_error
    has_band = mean.num_runs > 1
    low, high = (mean.mean - reach, mean.mean + reach) if has_band else (None, None)
    yield "mean", mean.mean, low, high
    for band in steps.bands():
        yield _band_row(band)
    yield "longest", steps.worst, None, None


_NORMAL_95 = 1.959964
"""Quantile 0.975 of the standard normal distribution."""


def _band_row(band: QuantileBand) -> tuple[str, float, float | None, float | None]:
    return share_name(band.share), band.value, band.low, band.high


def _scale_table(scale: tuple[ScaleRow, ...]) -> Table:
    numbers = (
        *("Replicas", "Devices", "No jitter", "Closed form", "Simulated"),
        *("Difference", "Expected", "+-"),
    )
    table = new_table(*numbers, numbers=numbers)
    for row in scale:
        is_simulated = row.simulated_loss is not None
        add_row(
            table,
            f"{row.replicas:,}",
            f"{row.num_devices:,}",
            format_duration(row.plain_time),
            loss_words(row.closed_loss),
            loss_words(row.simulated_loss),
            signed_points(row.difference or 0.0) if is_simulated else "-",
            loss_words(row.expected_loss),
            loss_words(row.loss_error),
        )
    return table


def loss_words(loss: float | None) -> str:
    """Write a loss: ``4.67 %``; ``-`` where there is none, or it is not known."""
    if loss is None or not math.isfinite(loss):
        return "-"
    return f"{100 * loss + 0.0:.2f} %".replace("-0.00", "0.00")
