"""Goodput as JSON and as tables, in SI units."""

import math
from collections.abc import Mapping

from nestsim.features.goodput.document import headline, job_facts, sentences
from nestsim.features.goodput.results import GoodputFindings, GoodputResult, SeedBand
from nestsim.features.goodput.simulate import GIVEN


def goodput_json(result: GoodputResult) -> dict[str, object]:
    """Return everything that was found, for programs and for the page."""
    start = {
        "scenario": result.scenario_name,
        "accelerator": result.device_name,
        "num_devices": result.num_devices,
    }
    found = result.found
    if found is None:
        return {**start, "reason": result.shortfall}
    return {
        **start,
        "headline": headline(found),
        "in_words": sentences(found),
        "facts": job_facts(result),
        "duration_s": found.runs.duration,
        "seeds": {"first": found.seeds[0], "count": len(found.seeds)},
        "healthy": {
            "step_time_s": found.healthy.step_time,
            "tokens_per_step": found.healthy.tokens,
            "tokens_per_day": found.healthy.tokens_per_day,
            "source": found.healthy.source,
        },
        "goodput": found.goodput._asdict(),
        "effective_training_time": found.effective_time._asdict(),
        "tokens_per_day": found.tokens_per_day._asdict(),
        "expected_goodput": found.expected,
        "interruptions": found.interruptions._asdict(),
        "mtti_s": _finite(found.mtti),
        "shares": _bands(found.shares()),
        "failures": [
            {
                "component": kind.name,
                "count": kind.count,
                "mtbf_s": 1.0 / kind.rate,
                "mtbf_of_all_s": 1.0 / kind.total_rate,
                "weibull_shape": kind.shape,
                "is_published": kind.source != GIVEN,
                "source": kind.source,
                "in_a_run": found.failures()[kind.name]._asdict(),
            }
            for kind in found.kinds
        ],
        "checkpoint": _checkpoint_json(found),
        "habits": _habits_json(found),
        "intervals": {
            "used_s": found.habits.interval,
            "is_given": found.interval_is_given,
            "least_s": found.least_interval,
            "best_s": _finite(found.best),
            "young_s": _finite(found.young),
            "daly_s": _finite(found.daly),
            "expected": {
                f"{name}_s": found.cycle.goodput(interval)
                for name, interval in (
                    ("used", found.habits.interval),
                    ("best", found.best),
                    ("young", found.young),
                    ("daly", found.daly),
                )
                if math.isfinite(interval)
            },
        },
        "spares": {
            "count": found.habits.spares,
            "enough_share": found.enough_nodes,
            "for_999_of_1000": found.spares_needed,
        },
        "curve": [
            {
                "interval_s": point.interval,
                "expected": point.expected,
                "simulated": None
                if point.simulated is None
                else point.simulated._asdict(),
            }
            for point in found.curve
        ],
        "tokens_over_time": _tokens_json(found),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _bands(bands: Mapping[str, SeedBand]) -> dict[str, object]:
    return {name: band._asdict() for name, band in bands.items()}


def _checkpoint_json(found: GoodputFindings) -> dict[str, object]:
    facts = found.checkpoint
    return {
        "size_bytes": facts.size,
        "bytes_per_parameter": facts.bytes_per_parameter,
        "copy_s": facts.copy,
        "upload_s": facts.upload,
        "read_s": facts.read,
        "limited_by": facts.write_limit,
        "asynchronous": found.habits.is_asynchronous,
        "stall_s": found.habits.stall,
        "bytes_per_day": found.checkpoint_bytes_per_day,
    }


def _habits_json(found: GoodputFindings) -> dict[str, object]:
    habits = found.habits
    return {
        "num_nodes": habits.num_nodes,
        "detection_s": habits.detection - found.diagnosis,
        "diagnosis_s": found.diagnosis,
        "hang_share": habits.hang_share,
        "hang_detection_s": habits.hang_detection - found.diagnosis,
        "restart_s": habits.restart,
        "repair_s": habits.repair,
        "elastic": habits.is_elastic,
        "maintenance_every_s": _finite(habits.maintenance_every),
        "maintenance_s": habits.maintenance,
    }


def _tokens_json(found: GoodputFindings) -> dict[str, list[float]]:
    low, middle, high = found.weekly_tokens().tolist()
    count = len(middle)
    times = [found.runs.duration * (mark + 1) / count for mark in range(count)]
    return {"time_s": times, "p5": low, "p50": middle, "p95": high}


def seed_rows(found: GoodputFindings) -> list[dict[str, object]]:
    """Return one row for each seed: shares of its time, and its interruptions."""
    runs = found.runs
    shares, day = runs.shares(), found.healthy.tokens_per_day
    return [
        {
            "seed": seed,
            "goodput": float(runs.goodput[place]),
            "effective_training_time": float(runs.effective_time[place]),
            "tokens_per_day": float(runs.goodput[place]) * day,
            "interruptions": int(runs.interruptions[place]),
            **{
                name.replace(" ", "_"): float(share[place])
                for name, share in shares.items()
                if name != "training"
            },
        }
        for place, seed in enumerate(found.seeds)
    ]
