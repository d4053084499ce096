"""What jitter costs, as plain data: JSON and CSV."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from nestsim.document.dumps import plain_record, plain_values
from nestsim.document.wording import (
    device_ranges,
    no_plan_words,
    number,
    percent,
    plan_label,
    plural,
)
from nestsim.features.jitter.job import (
    SHARES,
    JitteredSteps,
    JitterResult,
    SlowestActor,
)
from nestsim.features.jitter.order_statistics import CONFIDENCE
from nestsim.features.jitter.scale import ScaleRow
from nestsim.features.run.record import spent_json
from nestsim.scenario.jitter import JitterSpec
from planner.work import Spent
from topologies.units import format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileRecord:
    """A quantile of the times of steps."""

    time_s: float
    """Time that so many steps take at most [s]."""

    from_s: float | None
    """Lower end of the band that holds it; None where there are too few steps [s]."""

    to_s: float | None
    """Upper end of the band that holds it; None where there are too few steps [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsRecord:
    """What the steps of a plan take."""

    in_words: str
    """Sentence about the steps."""

    plain_time_s: float
    """Time of a step without jitter [s]."""

    mean_s: float
    """Mean time of a step [s]."""

    mean_standard_error_s: float | None
    """Standard error of the mean; None of one step [s]."""

    longest_s: float
    """Time of the longest step [s]."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WordsRecord:
    """What is said in one sentence."""

    in_words: str | None
    """The sentence; None for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRecord:
    """The plan on one number of replicas."""

    replicas: int
    """Replicas of the plan."""

    num_devices: int
    """Devices of all replicas."""

    plain_time_s: float
    """Time of a step without jitter [s]."""

    closed_loss: float
    """Mean loss by the closed form."""

    simulated_loss: float | None
    """Mean loss of the runs; None where nothing was simulated."""

    difference: float | None
    """Simulated less closed form; None where nothing was simulated."""

    expected_loss: float | None
    """Loss that is to be expected; None where it is not known."""

    expected_loss_error: float | None
    """Standard error of the expected loss; None where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JitterRecord:
    """What a document says of ``jitter.json``."""

    scenario: str
    """Name of the scenario."""

    headline: str
    """The answer."""

    reason: str | None
    """Reason why there is no plan; None with one."""

    plan: str | None
    """The plan; None without one."""

    jitter_in_words: Mapping[str, str]
    """What differs from step to step, by what it is about."""

    steps: StepsRecord | None
    """What the steps take; None without a plan."""

    slowest: WordsRecord | None
    """Who was slowest in the longest step; None without a plan."""

    scale: tuple[ScaleRecord, ...]
    """The plan on fewer and on more replicas."""

    closed_form: WordsRecord
    """How far the closed form can be trusted."""


def jitter_json(result: JitterResult) -> dict[str, object]:
    """Return everything under stable keys, in SI units."""
    steps, priced = result.steps, result.priced
    record = {
        "headline": headline(result),
        "scenario": result.scenario_name,
        "reason": result.shortfall or None,
        "num_devices": result.num_devices,
        "plan": None if priced is None else plan_label(priced.plan),
        "settings": None if priced is None else priced.plan.settings_json(),
        "jitter": _spec_json(result.spec),
        "jitter_in_words": jitter_in_words(result.spec),
        "search": None if result.spent is None else spent_json(result.spent),
        **(
            {"steps": None, "slowest": None}
            if steps is None or priced is None
            else {
                "steps": _steps_json(steps),
                "slowest": {
                    **_slowest_json(steps),
                    "in_words": slowest_in_words(
                        steps.slowest, len(priced.plan.stages)
                    ),
                },
            }
        ),
        "scale": [_row_json(row) for row in result.scale],
        "closed_form": {
            "is_exact": not result.approximations,
            "approximations": list(result.approximations),
            "in_words": agreement(result) if result.scale else None,
        },
    }
    return plain_record(record)


def _spec_json(spec: JitterSpec) -> dict[str, object]:
    """Return the table [jitter] with its defaults, in SI units."""
    compute, links = spec.jitter.compute, spec.jitter.links
    return {
        "compute": None
        if compute is None
        else {
            "distribution": compute.distribution,
            "cv": compute.cv,
            "per": spec.jitter.per,
        },
        "links": None
        if links is None
        else {
            "distribution": links.distribution,
            "mean_s": links.mean,
            "cv": links.cv,
        },
        "slow": [
            {"fraction": share.fraction, "factor": share.factor} for share in spec.slow
        ],
        "runs": spec.runs,
        "seed": spec.jitter.seed,
        "most_replicas": spec.most_replicas,
    }


def _steps_json(steps: JitteredSteps) -> dict[str, object]:
    mean = steps.simulated
    return {
        "in_words": summary(steps),
        "plain_time_s": steps.plain_time,
        "mean_s": mean.mean,
        "mean_standard_error_s": mean.standard_error,
        "longest_s": steps.worst,
        "loss": steps.loss,
        "plain_tokens_per_s": steps.tokens / steps.plain_time,
        "mean_tokens_per_s": steps.tokens / mean.mean,
        "confidence": CONFIDENCE,
        "quantiles": {
            share_name(band.share): {
                "time_s": band.value,
                "from_s": band.low,
                "to_s": band.high,
                "tokens_per_s": steps.tokens / band.value,
            }
            for band in steps.bands()
        },
        "times_s": steps.times.tolist(),
    }


def _slowest_json(steps: JitteredSteps) -> dict[str, object]:
    slowest = steps.slowest
    return {
        "run": slowest.run,
        "time_s": slowest.time,
        "stage": slowest.stage,
        "replica": slowest.replica,
        "devices": list(slowest.devices),
        "slow_devices": list(slowest.slow_devices),
        "ratio": slowest.ratio,
    }


def _row_json(row: ScaleRow) -> dict[str, object]:
    simulated = row.simulated
    names = (f"closed_{share_name(share)}_s" for share in SHARES)
    return {
        "replicas": row.replicas,
        "num_devices": row.num_devices,
        "plain_time_s": row.plain_time,
        "closed_mean_s": row.closed_mean,
        "closed_error_s": row.closed_error,
        **dict(zip(names, row.closed_quantiles, strict=True)),
        "closed_loss": row.closed_loss,
        "simulated_runs": simulated and simulated.num_runs,
        "simulated_mean_s": simulated and simulated.mean,
        "simulated_standard_error_s": simulated and simulated.standard_error,
        "simulated_loss": row.simulated_loss,
        "difference": row.difference,
        "expected_loss": row.expected_loss,
        "expected_loss_error": row.loss_error,
    }


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
    rows: list[dict[str, object]] = plain_values(list(map(_row_json, result.scale)))
    return rows


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
