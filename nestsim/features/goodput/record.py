"""Goodput as JSON and as tables, in SI units."""

import math
from collections.abc import Mapping
from typing import Annotated

from nestsim.document.dumps import Of, Record
from nestsim.document.wording import amount, long_time, percent, plural
from nestsim.features.goodput.draws import GIVEN
from nestsim.features.goodput.results import GoodputFindings, GoodputResult, SeedBand
from topologies.units import format_bandwidth, format_duration, format_size


class FailureRecord(Record):
    """How often one kind of component fails."""

    component: Annotated[str, Of("name")]
    """Name of the component."""

    count: int
    """Number of such components."""

    nodes: int
    """Nodes that a failure takes out together, if it takes any."""

    mtbf_s: float
    """Mean time between failures of one of them [s]."""

    mtbf_of_all_s: float
    """Mean time between failures of all of them [s]."""

    weibull_shape: Annotated[float, Of("shape")]
    """Shape of the distribution of times; 1 for constant rates."""

    is_published: bool
    """Whether the rate is a published one."""

    counted: int | None
    """Failures that a log has of it; None where the rate is of no log."""

    mtbf_band_s: tuple[float, float] | None
    """Mean time between failures of one of them in 90 of 100 logs [s]."""

    shape_band: tuple[float, float]
    """Shape of the distribution in 90 of 100 logs."""

    as_logged: bool
    """Whether they come when the log has them."""

    source: str
    """Source of the rate."""

    in_a_run: SeedBand
    """Failures in a run."""


class PointRecord(Record):
    """Goodput at one interval between checkpoints."""

    interval_s: float
    """Training between two checkpoints [s]."""

    expected: float
    """Goodput by the closed form."""

    simulated: SeedBand | None
    """Goodput of the runs; None where only the closed form was asked."""


class IntervalsRecord(Record):
    """Intervals between checkpoints that have a name."""

    used_s: Annotated[float, Of("habits.interval")]
    """Interval of the job [s]."""

    is_given: Annotated[bool, Of("interval_is_given")]
    """Whether the user gave the interval of the job."""

    least_s: Annotated[float, Of("least_interval")]
    """Least interval that is allowed where the user gave none [s]."""

    best_s: float | None
    """Best interval by the closed form; None without failures [s]."""

    young_s: float | None
    """Young's interval; None without failures [s]."""

    daly_s: float | None
    """Daly's interval; None without failures [s]."""

    expected: Mapping[str, float]
    """Key of an interval -> goodput by the closed form."""


class TokensRecord(Record):
    """Tokens over time in the runs."""

    time_s: tuple[float, ...]
    """Times at which tokens are counted [s]."""

    p5: tuple[float, ...]
    """Tokens that 5 of 100 runs do not exceed at each time."""

    p50: tuple[float, ...]
    """Median of the tokens at each time."""

    p95: tuple[float, ...]
    """Tokens that 95 of 100 runs do not exceed at each time."""


class SeedsRecord(Record):
    """Seeds of the runs."""

    first: Annotated[int, Of("0")]
    """First of the seeds."""

    count: Annotated[int, Of("__len__")]
    """Number of the seeds."""


class HealthyRecord(Record):
    """The job when nothing fails."""

    step_time_s: float
    """Time of a step [s]."""

    tokens_per_step: Annotated[float, Of("tokens")]
    """Tokens of a step [token]."""

    tokens_per_day: float
    """Tokens of a day [token/day]."""

    source: str
    """Origin of the time of a step, in words."""


class GoodputRecord(Record):
    """``goodput.json`` with a plan."""

    scenario: str
    """Name of the scenario."""

    accelerator: str
    """Name of the devices."""

    num_devices: int
    """Devices of the job."""

    headline: str
    """The answer."""

    in_words: tuple[str, ...]
    """Sentences below the answer."""

    facts: Mapping[str, str]
    """What the job is and does, by name."""

    duration_s: Annotated[float, Of("runs.duration")]
    """Time that a run simulates [s]."""

    seeds: SeedsRecord
    """Seeds of the runs."""

    healthy: HealthyRecord
    """The job when nothing fails."""

    goodput: SeedBand
    """Share of the healthy throughput."""

    effective_training_time: Annotated[SeedBand, Of("effective_time")]
    """Share of the time that is useful training."""

    tokens_per_day: SeedBand
    """Tokens of a day on average [token/day]."""

    expected_goodput: Annotated[float, Of("expected")]
    """Goodput by the closed form."""

    interruptions: SeedBand
    """Interruptions of a run by failures."""

    mtti_s: float | None
    """Mean time to an interruption; None where nothing interrupts [s]."""

    shares: Mapping[str, SeedBand]
    """What takes time -> its share of the time."""

    failures: tuple[FailureRecord, ...]
    """What fails."""

    checkpoint: Mapping[str, object]
    """Size, times and limit of a checkpoint."""

    habits: Mapping[str, object]
    """Times and rules of recovery and maintenance."""

    intervals: IntervalsRecord
    """Intervals between checkpoints that have a name."""

    spares: Mapping[str, float | None]
    """Spare nodes, and how many are enough."""

    without: Mapping[str, float]
    """Habit that not every job has -> goodput by the closed form without it."""

    curve: tuple[PointRecord, ...]
    """Goodput over intervals."""

    tokens_over_time: TokensRecord
    """Tokens over time in the runs."""


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
    habits = findings.habits
    named = {
        "used_s": habits.interval,
        "best_s": findings.best,
        "young_s": findings.young,
        "daly_s": findings.daly,
    }
    expected = {
        name: findings.cycle.goodput(interval)
        for name, interval in named.items()
        if math.isfinite(interval)
    }
    return GoodputRecord.dump(
        findings,
        **start,
        headline=headline(findings),
        in_words=sentences(findings),
        facts=job_facts(result),
        failures=[
            FailureRecord.dump(
                kind,
                mtbf_s=1.0 / kind.rate,
                mtbf_of_all_s=1.0 / kind.total_rate,
                is_published=kind.source != GIVEN and kind.counted is None,
                as_logged=kind.moments is not None,
                mtbf_band_s=kind.rate_band
                and (1.0 / kind.rate_band[1], 1.0 / kind.rate_band[0]),
                in_a_run=findings.failures()[kind.name],
            )
            for kind in findings.kinds
        ],
        checkpoint=_checkpoint_json(findings),
        habits=_habits_json(findings),
        intervals=IntervalsRecord.dump(findings, expected=expected),
        spares={
            "count": habits.spares,
            "enough_share": findings.enough_nodes,
            "for_999_of_1000": findings.spares_needed,
        },
        tokens_over_time=_tokens(findings),
    )


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
        "peers": _peers_json(findings),
    }


def _peers_json(findings: GoodputFindings) -> dict[str, object] | None:
    facts, peers = findings.checkpoint.peers, findings.habits.peers
    if facts is None or peers is None:
        return None
    return {
        "interval_s": peers.interval,
        "stall_s": peers.stall,
        "write_s": peers.write,
        "read_s": peers.read,
        "replication_factor": facts.group,
        "replication_jump": facts.jump,
        "bytes_per_node": facts.size,
        "kept_if_one_more_is_lost": peers.kept,
        "memory_loss": findings.cycle.memory_loss,
        "memory_lost": findings.memory_lost,
    }


def _habits_json(findings: GoodputFindings) -> dict[str, object]:
    habits = findings.habits
    return {
        "num_nodes": habits.num_nodes,
        "detection_s": habits.detection,
        "diagnosis_s": habits.diagnosis,
        "hang_share": habits.hang_share,
        "hang_detection_s": habits.hang_detection,
        "restart_s": habits.restart + habits.read,
        "hot_restart_s": habits.hot_restart,
        "warm_restart_s": habits.warm_restart,
        "slow": habits.slow and habits.slow._asdict(),
        "repair_s": habits.repair,
        "elastic": habits.is_elastic,
        "maintenance_every_s": habits.maintenance_every,
        "maintenance_s": habits.maintenance,
    }


def _tokens(findings: GoodputFindings) -> TokensRecord:
    p5, p50, p95 = findings.weekly_tokens().tolist()
    count = len(p50)
    times = (findings.runs.duration * (mark + 1) / count for mark in range(count))
    return TokensRecord(time_s=tuple(times), p5=p5, p50=p50, p95=p95)


def headline(findings: GoodputFindings) -> str:
    """Say what the job trains, of what it would without failures."""
    return f"GOODPUT {percent(findings.goodput.p50)}"


def sentences(findings: GoodputFindings) -> list[str]:
    """Say what a day gives, what failures do, and what would help."""
    day, share = findings.tokens_per_day, findings.goodput
    lines = [
        f"{amount(day.p50)} tokens a day ({amount(day.p5)} to {amount(day.p95)} in 90 "
        f"of 100 runs), {percent(share.p50)} ({percent(share.p5)} to "
        f"{percent(share.p95)}) of {amount(findings.healthy.tokens_per_day)} without "
        "failures."
    ]
    if math.isinf(findings.mtti):
        lines.append("No failure interrupts the job.")
    else:
        lines.append(
            f"The job is interrupted every {long_time(findings.mtti)} on average; "
            f"{_main_cause(findings)}"
        )
    lines += [interval_sentence(findings), *_spares_sentences(findings)]
    if any(kind.shape != 1.0 or kind.moments for kind in findings.kinds):
        lines.append("Closed forms take rates as constant; the runs do not.")
    return [sentence for sentence in lines if sentence]


def _main_cause(findings: GoodputFindings) -> str:
    shares = {name: band.mean for name, band in findings.shares().items()}
    del shares["training"]
    cause = max(shares, key=lambda name: shares[name])
    name = "throughput of missing replicas" if cause == "degraded" else cause
    return f"the largest loss is {name}, {percent(shares[cause])} of the time."


def interval_sentence(findings: GoodputFindings) -> str:
    """Say whether another interval between checkpoints would give more."""
    if math.isinf(findings.best):
        return ""
    interval = findings.habits.interval
    used = f"{long_time(interval)} ({_written(findings)})"
    if findings.interval_is_given:
        expected = percent(findings.cycle.goodput(interval))
        best = percent(findings.cycle.goodput(findings.best))
        return (
            f"Checkpoints every {used}; every {long_time(findings.best)} would be "
            f"best: {best} in place of {expected} by the closed form."
        )
    others = f"Young {long_time(findings.young)}, Daly {long_time(findings.daly)}"
    if interval > findings.best and interval == findings.least_interval:
        return (
            f"Checkpoints every {used}, the least that goodput.checkpoint."
            f"least_interval allows; the closed form would have one every "
            f"{long_time(findings.best)} ({others})."
        )
    why = "which is best by the closed form"
    if findings.best <= findings.healthy.step_time:
        why = "after each step; closed forms would have more"
    return f"Checkpoints every {used}, {why} ({others})."


def _written(findings: GoodputFindings) -> str:
    return f"{format_size(findings.checkpoint_bytes_per_day)} a day"


def _spares_sentences(findings: GoodputFindings) -> list[str]:
    if not any(kind.breaks_node for kind in findings.kinds):
        return []
    needed = _enough(findings.spares_needed)
    repair = long_time(findings.habits.repair)
    if any(kind.repair is not None for kind in findings.kinds):
        repair = "as long as assumed"
    if findings.habits.spares is None:
        return [
            f"Always a spare node is taken to be there; {needed} for 99.9 % of the "
            f"time if a repair takes {repair}."
        ]
    return [
        f"{_enough(findings.habits.spares)} for {100.0 * findings.enough_nodes:.2f} % "
        f"of the time if a repair takes {repair}; {findings.spares_needed:,} for "
        "99.9 %."
    ]


def _enough(spares: int) -> str:
    is_or_are = "is" if spares == 1 else "are"
    return f"{plural(spares, 'spare node')} {is_or_are} enough"


def job_facts(result: GoodputResult) -> dict[str, str]:
    """Return what the job is and does, by name."""
    findings = result.findings
    assert findings is not None
    habits, checkpoint = findings.habits, findings.checkpoint
    runs = (
        f"{plural(len(findings.seeds), 'run')} of {long_time(findings.runs.duration)}"
    )
    per_parameter = checkpoint.bytes_per_parameter
    size = format_size(checkpoint.size)
    if per_parameter is not None:
        size += f" ({per_parameter:.4g} bytes per parameter)"
    upload = checkpoint.upload
    rate = format_bandwidth(checkpoint.size / upload) if upload else "at once"
    how = (
        f"beside the training after a copy of {format_duration(checkpoint.copy)}"
        if habits.is_asynchronous
        else "while the job waits"
    )
    rows = {
        "job": f"{result.num_devices:,} {result.device_name} in "
        f"{plural(habits.num_nodes, 'node')}; {runs}",
        "healthy step": f"{format_duration(findings.healthy.step_time)}, "
        f"{findings.healthy.source}",
        "checkpoint": f"{size}, written in {format_duration(habits.write)} "
        f"({rate}, limited by the {checkpoint.write_limit}), {how}",
        "after a failure": "noticed in "
        f"{format_duration(habits.detection)} "
        f"({percent(habits.hang_share)} are hangs: "
        f"{format_duration(habits.hang_detection)}), diagnosed in "
        f"{format_duration(habits.diagnosis)}, training again "
        f"{format_duration(habits.restart + habits.read)} later",
        **_particular_facts(findings),
    }
    if habits.is_elastic:
        rows["too few nodes"] = "the job goes on without the replicas that lack them"
    if math.isfinite(habits.maintenance_every):
        rows["planned stops"] = (
            f"every {long_time(habits.maintenance_every)} for "
            f"{format_duration(habits.maintenance)} and a restart"
        )
    return rows


def _particular_facts(findings: GoodputFindings) -> dict[str, str]:
    """Return what not every job does."""
    habits, facts = findings.habits, findings.checkpoint.peers
    rows: dict[str, str] = {}
    if habits.peers is not None and facts is not None:
        peers = habits.peers
        apart = "neighbours" if facts.jump == 1 else f"{facts.jump:,} nodes apart"
        rows["in memory"] = (
            f"a checkpoint every {format_duration(peers.interval)}, sent in "
            f"{format_duration(peers.write)}, in {plural(facts.group, 'node')} "
            f"({apart}, {format_size(facts.size)} each), read in "
            f"{format_duration(peers.read)}; {percent(findings.cycle.memory_loss)} of "
            f"the failures take it, {percent(findings.memory_lost)} of the "
            "interruptions of the runs did"
        )
    if habits.hot_restart is not None:
        rows["on spare nodes"] = (
            f"training again in {format_duration(habits.hot_restart)} where their "
            "processes are ready, and the time to read"
        )
    warm = [kind for kind in findings.kinds if kind.warm_share]
    if warm:
        whom = ", ".join(f"{percent(kind.warm_share)} of {kind.name}" for kind in warm)
        rows["same processes"] = (
            f"{whom}: nothing is diagnosed, training again in "
            f"{format_duration(habits.warm_restart)}, and the time to read"
        )
    slow = habits.slow
    if slow is not None:
        until = (
            f"noticed in {format_duration(slow.detection)} and replaced"
            if slow.is_drained
            else "not noticed"
        )
        rows["slow nodes"] = (
            f"{percent(slow.share)} of nodes that fail slow the job to "
            f"{percent(slow.speed)} for {long_time(slow.time)} before, {until}"
        )
    repairs = [kind for kind in findings.kinds if kind.repair is not None]
    if repairs:
        rows["repairs"] = "; ".join(
            f"{kind.name} {long_time(kind.repair or 0.0)}" for kind in repairs
        )
    return rows
