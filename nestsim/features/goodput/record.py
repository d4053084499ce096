"""Goodput as JSON and as tables, in SI units."""

import math
from collections.abc import Mapping

from nestsim.document.dumps import plain_values
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
    findings = result.findings
    if findings is None:
        return {**start, "reason": result.shortfall}
    record = {
        **start,
        "headline": headline(findings),
        "in_words": sentences(findings),
        "facts": job_facts(result),
        "duration_s": findings.runs.duration,
        "seeds": {"first": findings.seeds[0], "count": len(findings.seeds)},
        "healthy": {
            "step_time_s": findings.healthy.step_time,
            "tokens_per_step": findings.healthy.tokens,
            "tokens_per_day": findings.healthy.tokens_per_day,
            "source": findings.healthy.source,
        },
        "goodput": findings.goodput._asdict(),
        "effective_training_time": findings.effective_time._asdict(),
        "tokens_per_day": findings.tokens_per_day._asdict(),
        "expected_goodput": findings.expected,
        "interruptions": findings.interruptions._asdict(),
        "mtti_s": findings.mtti,
        "shares": _bands(findings.shares()),
        "failures": [
            {
                "component": kind.name,
                "count": kind.count,
                "mtbf_s": 1.0 / kind.rate,
                "mtbf_of_all_s": 1.0 / kind.total_rate,
                "weibull_shape": kind.shape,
                "is_published": kind.source != GIVEN,
                "source": kind.source,
                "in_a_run": findings.failures()[kind.name]._asdict(),
            }
            for kind in findings.kinds
        ],
        "checkpoint": _checkpoint_json(findings),
        "habits": _habits_json(findings),
        "intervals": {
            "used_s": findings.habits.interval,
            "is_given": findings.interval_is_given,
            "least_s": findings.least_interval,
            "best_s": findings.best,
            "young_s": findings.young,
            "daly_s": findings.daly,
            "expected": {
                f"{name}_s": findings.cycle.goodput(interval)
                for name, interval in (
                    ("used", findings.habits.interval),
                    ("best", findings.best),
                    ("young", findings.young),
                    ("daly", findings.daly),
                )
                if math.isfinite(interval)
            },
        },
        "spares": {
            "count": findings.habits.spares,
            "enough_share": findings.enough_nodes,
            "for_999_of_1000": findings.spares_needed,
        },
        "curve": [
            {
                "interval_s": point.interval,
                "expected": point.expected,
                "simulated": None
                if point.simulated is None
                else point.simulated._asdict(),
            }
            for point in findings.curve
        ],
        "tokens_over_time": _tokens_json(findings),
    }
    plain: dict[str, object] = plain_values(record)
    return plain


def _bands(bands: Mapping[str, SeedBand]) -> dict[str, object]:
    return {name: band._asdict() for name, band in bands.items()}


def _checkpoint_json(findings: GoodputFindings) -> dict[str, object]:
    facts = findings.checkpoint
    return {
        "size_bytes": facts.size,
        "bytes_per_parameter": facts.bytes_per_parameter,
        "copy_s": facts.copy,
        "upload_s": facts.upload,
        "read_s": facts.read,
        "limited_by": facts.write_limit,
        "asynchronous": findings.habits.is_asynchronous,
        "stall_s": findings.habits.stall,
        "bytes_per_day": findings.checkpoint_bytes_per_day,
    }


def _habits_json(findings: GoodputFindings) -> dict[str, object]:
    habits = findings.habits
    return {
        "num_nodes": habits.num_nodes,
        "detection_s": habits.detection - findings.diagnosis,
        "diagnosis_s": findings.diagnosis,
        "hang_share": habits.hang_share,
        "hang_detection_s": habits.hang_detection - findings.diagnosis,
        "restart_s": habits.restart,
        "repair_s": habits.repair,
        "elastic": habits.is_elastic,
        "maintenance_every_s": habits.maintenance_every,
        "maintenance_s": habits.maintenance,
    }


def _tokens_json(findings: GoodputFindings) -> dict[str, list[float]]:
    low, middle, high = findings.weekly_tokens().tolist()
    count = len(middle)
    times = [findings.runs.duration * (mark + 1) / count for mark in range(count)]
    return {"time_s": times, "p5": low, "p50": middle, "p95": high}


def seed_rows(findings: GoodputFindings) -> list[dict[str, object]]:
    """Return one row for each seed: shares of its time, and its interruptions."""
    runs = findings.runs
    shares, day = runs.shares(), findings.healthy.tokens_per_day
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
        for place, seed in enumerate(findings.seeds)
    ]
