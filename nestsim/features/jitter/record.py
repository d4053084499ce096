"""What jitter costs, as plain data: JSON and CSV."""

from nestsim.document.dumps import plain_values
from nestsim.document.wording import plan_label
from nestsim.features.jitter.document import (
    agreement,
    headline,
    jitter_in_words,
    share_name,
    slowest_in_words,
    summary,
)
from nestsim.features.jitter.job import SHARES, JitteredSteps, JitterResult
from nestsim.features.jitter.order_statistics import CONFIDENCE
from nestsim.features.jitter.scale import ScaleRow
from nestsim.features.run.record import spent_json
from nestsim.scenario.jitter import JitterSpec


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
    plain: dict[str, object] = plain_values(record)
    return plain


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
        "slow": [{"fraction": one.fraction, "factor": one.factor} for one in spec.slow],
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
