"""What jitter costs, as plain data: JSON and CSV."""

import math
from collections.abc import Mapping
from typing import Annotated

from nestsim.document.dumps import Of, Record
from nestsim.document.wording import (
    device_ranges,
    no_plan_words,
    number,
    percent,
    plan_label,
    plural,
)
from nestsim.features.jitter.job import (
    JitteredSteps,
    JitterResult,
    SlowestActor,
)
from nestsim.features.jitter.order_statistics import CONFIDENCE
from nestsim.features.run.record import spent_json
from nestsim.scenario.jitter import JitterSpec, SlowShare
from planner.work import Spent
from topologies.units import format_duration


class NoiseRecord(Record):
    """How much compute differs from step to step."""

    distribution: str
    """Distribution of the factor on compute times."""

    cv: float
    """Coefficient of variation of the factor."""

    per: str
    """How long a factor lasts."""


class DelayRecord(Record):
    """How much messages differ."""

    distribution: str
    """Distribution of the extra time of a message."""

    mean_s: float
    """Mean of the extra time [s]."""

    cv: float
    """Coefficient of variation of the extra time."""


class SettingsRecord(Record):
    """The table [jitter] with its defaults."""

    compute: NoiseRecord | None
    """How much compute differs; None for not at all."""

    links: Annotated[DelayRecord | None, Of("jitter.links")]
    """How much messages differ; None for not at all."""

    documents: Annotated[bool, Of("jitter.documents")]
    """Whether each microbatch has the attention of documents that are drawn."""

    images: Annotated[bool, Of("jitter.images")]
    """Whether each microbatch has pictures that are drawn."""

    slow: tuple[SlowShare, ...]
    """Shares of the fleet that are slow."""

    runs: int
    """Steps that are replayed."""

    seed: Annotated[int, Of("jitter.seed")]
    """Seed of all draws."""

    most_replicas: int
    """Multiple of the plan's replicas up to which the loss is computed."""


class QuantileRecord(Record):
    """A quantile of the times of steps."""

    time_s: Annotated[float, Of("value")]
    """Time that so many steps take at most [s]."""

    from_s: Annotated[float | None, Of("low")]
    """Lower end of the band that holds it; None where there are too few steps [s]."""

    to_s: Annotated[float | None, Of("high")]
    """Upper end of the band that holds it; None where there are too few steps [s]."""

    tokens_per_s: float
    """Throughput at that time [token/s]."""


class StepsRecord(Record):
    """What the steps of a plan take."""

    in_words: str
    """Sentence about the steps."""

    plain_time_s: float
    """Time of a step without jitter [s]."""

    mean_s: Annotated[float, Of("simulated.mean")]
    """Mean time of a step [s]."""

    mean_standard_error_s: Annotated[float | None, Of("simulated.standard_error")]
    """Standard error of the mean; None of one step [s]."""

    longest_s: Annotated[float, Of("worst")]
    """Time of the longest step [s]."""

    loss: float
    """Mean time over the time without jitter, less 1."""

    plain_tokens_per_s: float
    """Throughput without jitter [token/s]."""

    mean_tokens_per_s: float
    """Throughput at the mean time [token/s]."""

    confidence: float
    """Share of all samples in which the band of a quantile holds it."""

    quantiles: Mapping[str, QuantileRecord]
    """Name of a quantile -> its time."""

    times_s: tuple[float, ...]
    """Time of each step [s]."""


class SlowestRecord(Record):
    """Who was slowest in the longest step."""

    run: int
    """Number of the run."""

    time_s: float
    """Time of the step [s]."""

    stage: int
    """Stage of the pipeline."""

    replica: int
    """Replica of the stage."""

    devices: tuple[int, ...]
    """Devices of the replica."""

    slow_devices: tuple[int, ...]
    """Devices of the replica that were slow in this run."""

    ratio: float
    """Time at work over what it is without jitter."""

    in_words: str
    """Sentence about it."""


class ScaleRecord(Record):
    """The plan on one number of replicas."""

    replicas: int
    """Replicas of the plan."""

    num_devices: int
    """Devices of all replicas."""

    plain_time_s: float
    """Time of a step without jitter [s]."""

    closed_mean_s: float
    """Mean time of a step by the closed form [s]."""

    closed_error_s: float | None
    """By how much the first term that is left out moves the closed form [s]."""

    closed_p50_s: Annotated[float, Of("closed_quantiles.0")]
    """Time that half of the steps take at most by the closed form [s]."""

    closed_p95_s: Annotated[float, Of("closed_quantiles.1")]
    """Time that 95 % of the steps take at most by the closed form [s]."""

    closed_p99_s: Annotated[float, Of("closed_quantiles.2")]
    """Time that 99 % of the steps take at most by the closed form [s]."""

    closed_loss: float
    """Mean loss by the closed form."""

    simulated_runs: Annotated[int | None, Of("simulated.num_runs")]
    """Steps that were simulated; None where none was."""

    simulated_mean_s: Annotated[float | None, Of("simulated.mean")]
    """Mean time of simulated steps; None where none was simulated [s]."""

    simulated_standard_error_s: Annotated[float | None, Of("simulated.standard_error")]
    """Standard error of that mean; None where fewer than two were simulated [s]."""

    simulated_loss: float | None
    """Mean loss of the runs; None where nothing was simulated."""

    difference: float | None
    """Simulated less closed form; None where nothing was simulated."""

    expected_loss: float | None
    """Loss that is to be expected; None where it is not known."""

    expected_loss_error: Annotated[float | None, Of("loss_error")]
    """Standard error of the expected loss; None where it is not known."""


class ClosedFormRecord(Record):
    """How far the closed form can be trusted."""

    is_exact: bool
    """Whether the closed form is exact for the mean of this plan."""

    approximations: tuple[str, ...]
    """Why it is not exact, one clause each."""

    in_words: str | None
    """Sentence about it; None without a plan."""


class JitterRecord(Record):
    """``jitter.json``: what jitter costs."""

    headline: str
    """The answer."""

    scenario: Annotated[str, Of("scenario_name")]
    """Name of the scenario."""

    reason: Annotated[str | None, Of("shortfall")]
    """Reason why there is no plan; None with one."""

    num_devices: int
    """Devices of the cluster."""

    plan: str | None
    """The plan; None without one."""

    settings: Annotated[Mapping[str, object] | None, Of("priced.plan.settings_json")]
    """Settings of the plan; None without one."""

    jitter: SettingsRecord
    """The table [jitter] with its defaults."""

    jitter_in_words: Mapping[str, str]
    """What differs from step to step, by what it is about."""

    search: Mapping[str, object] | None
    """What the search has spent; None where the plan was given."""

    steps: StepsRecord | None
    """What the steps take; None without a plan."""

    slowest: SlowestRecord | None
    """Who was slowest in the longest step; None without a plan."""

    scale: tuple[ScaleRecord, ...]
    """The plan on fewer and on more replicas."""

    closed_form: ClosedFormRecord
    """How far the closed form can be trusted."""


def jitter_json(result: JitterResult) -> dict[str, object]:
    """Return everything under stable keys, in SI units."""
    steps, priced, spec = result.steps, result.priced, result.spec
    noise = spec.jitter.compute
    compute = noise and NoiseRecord.dump(noise, per=spec.jitter.per)
    slowest = None
    if steps is not None and priced is not None:
        words = slowest_in_words(steps.slowest, len(priced.plan.stages))
        slowest = SlowestRecord.dump(steps.slowest, in_words=words)
    return JitterRecord.dump(
        result,
        headline=headline(result),
        plan=priced and plan_label(priced.plan),
        jitter=SettingsRecord.dump(spec, compute=compute),
        jitter_in_words=jitter_in_words(spec),
        search=result.spent and spent_json(result.spent),
        steps=steps and _steps_json(steps),
        slowest=slowest,
        closed_form=ClosedFormRecord.dump(
            result,
            is_exact=not result.approximations,
            in_words=agreement(result) if result.scale else None,
        ),
    )


def _steps_json(steps: JitteredSteps) -> dict[str, object]:
    return StepsRecord.dump(
        steps,
        in_words=summary(steps),
        plain_tokens_per_s=steps.tokens / steps.plain_time,
        mean_tokens_per_s=steps.tokens / steps.simulated.mean,
        confidence=CONFIDENCE,
        quantiles={
            share_name(band.share): QuantileRecord.dump(
                band, tokens_per_s=steps.tokens / band.value
            )
            for band in steps.bands()
        },
    )


def run_rows(result: JitterResult) -> list[dict[str, object]]:
    """Return one row for each replayed step of the plan as it is."""
    steps = result.steps
    if steps is None:
        return []
    return [
        {"run": run, "step_time_s": time, "tokens_per_s": steps.tokens / time}
        for run, time in enumerate(steps.times.tolist())
    ]


def scale_rows(result: JitterResult) -> list[dict[str, object]]:
    """Return one row for each number of replicas."""
    return [ScaleRecord.dump(row) for row in result.scale]


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
    if jitter.documents:
        rows["documents"] = "drawn for each microbatch of each replica"
    if jitter.images:
        rows["pictures"] = "drawn for each microbatch of each replica"
    if spec.slow:
        parts = [
            f"{percent(share.fraction)} of the fleet {share.factor:g} times as long"
            for share in spec.slow
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
    sentence = (
        f"In the longest step (run {slowest.run}, {format_duration(slowest.time)}) "
        f"{stage}replica {slowest.replica} was at work longest, on "
        f"{plural(len(slowest.devices), 'device')} "
        f"({device_ranges(slowest.devices)}): {slowest.ratio:.3f} times as long as "
        "without jitter"
    )
    if slowest.slow_devices:
        sentence += f"; slow: {device_ranges(slowest.slow_devices)}"
    return f"{sentence}."


def agreement(result: JitterResult) -> str:
    """Say how far the closed form is to be trusted, and how far off it is."""
    simulated = [row for row in result.scale if row.difference is not None]
    worst = max(simulated, key=lambda row: abs(row.difference or 0.0))
    off = worst.difference or 0.0
    error = worst.loss_error or 0.0
    known = f"standard error {points(error)}" if math.isfinite(error) else "one run"
    farthest = (
        f"the simulation is farthest from it with {plural(worst.replicas, 'replica')}, "
        f"{signed_points(off)} ({known})"
    )
    if not result.approximations:
        return f"The closed form is exact for the mean of this plan: {farthest}."
    reasons = "; ".join(result.approximations)
    return f"The closed form is an approximation ({reasons}): {farthest}."


def points(share: float) -> str:
    """Write a difference of two shares: ``0.12 points``."""
    return f"{100 * share:.2f} points"


def signed_points(share: float) -> str:
    """Write a signed difference of two shares: ``+0.12 points``."""
    return f"{100 * share:+.2f} points"
