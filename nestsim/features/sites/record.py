"""What sites train together, as plain data: JSON and CSV."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated

from nestsim.document.dumps import Of, Record
from nestsim.document.wording import amount, no_plan_words, percent, plural
from nestsim.features.run.record import spent_json
from nestsim.features.sites.job import (
    SHARES,
    SitesFindings,
    SitesResult,
    Way,
)
from planner.work import Spent
from topologies.units import format_duration, format_size

QUALITY = (
    "How well the model learns is not predicted: sites that meet more seldom, on fewer "
    "bits or later, may need more tokens for the same loss."
)
"""What no number here says."""


class WayRecord(Record):
    """One way to train on all sites."""

    name: str
    """What people call it."""

    is_given: bool
    """Whether it is the scenario's own."""

    sync_every: Annotated[int, Of("loop.sync_every")]
    """Inner steps between two synchronisations of the same parameters."""

    fragments: Annotated[int, Of("loop.fragments")]
    """Parts of the model that are synchronised in turn."""

    delay: Annotated[int, Of("loop.delay")]
    """Inner steps that go on while a synchronisation is under way."""

    sent_bytes: Annotated[float, Of("loop.bytes_sent")]
    """Bytes that a site sends for a synchronisation of one part [byte]."""

    all_reduce_s: float
    """Time of such a synchronisation [s]."""

    waiting_s: float
    """What of it sites wait for [s]."""

    round_s: float
    """Time in which all parts are synchronised once [s]."""

    compute_share: float
    """Share of the time in inner steps."""

    tokens_per_day: float
    """Tokens a day of all sites [1/d]."""

    least_bandwidth_bytes_per_s: tuple[float | None, ...]
    """Uplink for each of the compute shares; None where none is enough [byte/s]."""

    over_bandwidth: tuple[float, ...]
    """Tokens a day at each bandwidth of the curve [1/d]."""

    over_latency: tuple[float, ...]
    """Tokens a day at each latency of the curve [1/d]."""


class OuterRecord(Record):
    """What the outer optimizer keeps and does on each device."""

    copy_bytes: float
    """Parameters at the last synchronisation [byte]."""

    momentum_bytes: float
    """Momentum [byte]."""

    gradient_bytes: float
    """Sum of a part's outer gradients [byte]."""

    resident_bytes: float
    """What of them is on the device beside inner steps [byte]."""

    at_once_bytes: float
    """What of them is there while the outer optimizer works [byte]."""

    time_s: float
    """Outer optimizer of all parameters [s]."""


class ReplayedRecord(Record):
    """The scenario's own way in the replay."""

    round_time_s: float
    """Time in which all parts are synchronised once [s]."""

    num_fragments: int
    """Synchronisations that were replayed."""

    is_settled: bool
    """Whether the others go like the last one."""

    num_actors: int
    """Sites that were simulated."""

    num_events: int
    """Events of the replay."""

    engine: str
    """What replayed them."""

    difference: float
    """Replay less closed form, relative to it."""


class SitesRecord(Record):
    """``sites.json``: what sites far apart train together."""

    headline: str
    """The answer."""

    scenario: Annotated[str, Of("scenario_name")]
    """Name of the scenario."""

    reason: Annotated[str | None, Of("shortfall")]
    """Reason why there is no plan; None with one."""

    num_devices: int
    """Devices of a site."""

    plan: Annotated[str | None, Of("findings.plan")]
    """Plan of each site; None without one."""

    search: Mapping[str, object] | None
    """What the search has spent; None where the plan was given."""

    in_words: tuple[str, ...]
    """Sentences about it."""

    facts: Mapping[str, str]
    """What it rests on, by name."""

    step_time_s: Annotated[float | None, Of("findings.step_time")]
    """Inner step; None without a plan [s]."""

    alone_per_day: Annotated[float | None, Of("findings.alone_per_day")]
    """Tokens a day of one site alone; None without a plan [1/d]."""

    num_sites: Annotated[int | None, Of("findings.spec.count")]
    """Sites; None without a plan."""

    bandwidth_bytes_per_s: Annotated[float | None, Of("findings.spec.slowest")]
    """Slowest uplink of a site; None without a plan [byte/s]."""

    latency_s: Annotated[float | None, Of("findings.spec.latency")]
    """One way between sites; None without a plan [s]."""

    outer: Annotated[OuterRecord | None, Of("findings.state")]
    """The outer optimizer; None without a plan."""

    replayed: ReplayedRecord | None
    """The scenario's own way in the replay; None without a plan."""

    compute_shares: tuple[float, ...]
    """Shares of the time in inner steps that least bandwidths are for."""

    bandwidths_bytes_per_s: tuple[float, ...]
    """Bandwidths of the curve [byte/s]."""

    latencies_s: tuple[float, ...]
    """Latencies of the curve [s]."""

    ways: tuple[WayRecord, ...]
    """Ways to train on all sites; none without a plan."""


def sites_json(result: SitesResult) -> dict[str, object]:
    """Return everything under stable keys, in SI units."""
    findings = result.findings
    return SitesRecord.dump(
        result,
        headline=headline(result),
        search=result.spent and spent_json(result.spent),
        in_words=() if findings is None else tuple(_sentences(findings)),
        facts={} if findings is None else job_facts(result, findings),
        replayed=None if findings is None else _replayed(findings),
        compute_shares=SHARES,
        bandwidths_bytes_per_s=() if findings is None else findings.bandwidths(),
        latencies_s=() if findings is None else findings.latencies(),
        ways=()
        if findings is None
        else tuple(_way(findings, way) for way in findings.ways),
    )


def _way(findings: SitesFindings, way: Way) -> dict[str, object]:
    rate = findings.spec.rate()
    return WayRecord.dump(
        way,
        all_reduce_s=way.loop.all_reduce_time(rate),
        waiting_s=way.loop.waiting_time(rate),
        round_s=way.loop.round_time(rate),
        compute_share=way.loop.compute_share(rate),
        tokens_per_day=findings.tokens_per_day(way),
        least_bandwidth_bytes_per_s=tuple(
            findings.least_bandwidth(way, share) for share in SHARES
        ),
        over_bandwidth=findings.over_bandwidth(way),
        over_latency=findings.over_latency(way),
    )


def _replayed(findings: SitesFindings) -> dict[str, object]:
    expected = findings.given.loop.round_time(findings.spec.rate())
    time = findings.replayed.round_time
    return ReplayedRecord.dump(findings.replayed, difference=time / expected - 1.0)


def headline(result: SitesResult) -> str:
    """Say what all sites train, or that there is no plan."""
    findings = result.findings
    if findings is None:
        return no_plan_words(result.spent or Spent(), covers_space=True)
    tokens = amount(findings.tokens_per_day(findings.given))
    return f"{tokens} tokens a day on {plural(findings.spec.count, 'site')}"


def _sentences(findings: SitesFindings) -> Iterator[str]:
    spec, rate, given = findings.spec, findings.spec.rate(), findings.given
    times = findings.tokens_per_day(given) / findings.alone_per_day
    share = percent(given.loop.compute_share(rate))
    yield (
        f"{times:.3g} times what one site trains alone "
        f"({amount(findings.alone_per_day)}): {share} of the time is inner steps "
        f"({given.name})."
    )
    together = findings.ways[0]
    if given.loop.sync_every > 1:
        kept = percent(together.loop.compute_share(rate))
        needed = findings.least_bandwidth(together, 0.9)
        yield (
            f"Synchronous in each step it would be {kept}; "
            + (
                f"90 % would take {gigabits(needed)} each way."
                if math.isfinite(needed)
                else "no bandwidth gives 90 %, as the latency is too long."
            )
        )
    if spec.slow_uplinks:
        alike = findings.tokens_per_day(given, spec.rate(bandwidth=spec.bandwidth))
        yield (
            f"The slowest uplink, {gigabits(spec.slowest)}, decides: with "
            f"{gigabits(spec.bandwidth)} everywhere it would be {amount(alike)} a day."
        )
    if spec.tcp_rate(spec.latency) < spec.share * spec.slowest:
        yield (
            f"Loss holds {plural(spec.connections, 'connection')} of TCP to "
            f"{gigabits(rate)} of {gigabits(spec.share * spec.slowest)}."
        )
    needs, room = findings.state.resident, max(0.0, findings.room)
    if room < needs and not spec.synchronous:
        yield (
            f"The outer optimizer keeps {format_size(needs)} on each device, and the "
            f"inner step leaves {format_size(room)}: offload = true, or a plan of less "
            "memory."
        )
    yield QUALITY


def job_facts(result: SitesResult, findings: SitesFindings) -> dict[str, str]:
    """Return what the numbers rest on, by name."""
    spec, state, replayed = findings.spec, findings.state, findings.replayed
    loss = f", {100 * spec.loss:g} % loss" if spec.loss else ""
    others = f", of which others leave {percent(spec.share)}" if spec.share < 1 else ""
    source = ", as given" if findings.is_measured else ""
    slower = ", ".join(map(gigabits, sorted(spec.slow_uplinks)))
    slow = f", slower ones {slower}" if slower else ""
    settled = "" if replayed.is_settled else "; not yet as it goes on"
    difference = replayed.round_time / findings.given.loop.round_time(spec.rate()) - 1.0
    rows = {
        "a site": f"{result.num_devices:,} {result.device_name}, {findings.plan}; "
        f"step {format_duration(findings.step_time)}{source}, "
        f"{amount(findings.tokens)} tokens",
        "between sites": f"{gigabits(spec.bandwidth)} each way{slow}{others}, "
        f"{format_duration(spec.latency)} one way{loss}; all-reduce in a ring",
        "parameters": amount(findings.num_parameters),
        "replay": f"{plural(replayed.num_fragments, 'synchronisation')} of "
        f"{plural(replayed.num_actors, 'site')}, {replayed.num_events:,} events "
        f"({replayed.engine}): {difference:+.1e} of the closed form{settled}",
    }
    if not spec.synchronous:
        parts = ["a copy of the parameters", "the sum of a part's outer gradients"]
        if state.momentum:
            parts.insert(1, "momentum")
        rows["outer optimizer"] = (
            f"{format_duration(state.time)} for all parameters; of each device "
            f"{format_size(state.resident)} beside inner steps, "
            f"{format_size(state.at_once)} while it works ({', '.join(parts)}, in fp32)"
        )
    return rows


def gigabits(rate: float) -> str:
    """Write a rate as networks are sold: ``10 Gbit/s``."""
    bits = 8.0 * rate
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if bits >= scale:
            return f"{bits / scale:.4g} {prefix}bit/s"
    return f"{bits / 1e3:.4g} kbit/s"
