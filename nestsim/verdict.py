"""Plan beside replay: whether the promise is kept, and why not."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nestsim.contention import contention_by_level
from nestsim.simulator.outcome import Replay
from nestsim.simulator.settings import ReplaySettings
from nestsim.simulator.work import PipelineWork
from planner.cost.objective import PricedPlan
from topologies import Network
from topologies.units import format_duration, format_size

WORTH_A_CAUSE = 0.05
"""A plan chosen by its replay that is slower than planned by this part, relative, is
reported with the cause."""

NEGLIGIBLE = 1e-3
"""Share of the iteration below which contention is not worth more replays."""

ROUNDING = 1e-9
"""Share of the iteration by which two ways to the same answer may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Simulated minus planned iteration time, by cause."""

    total: float
    """[s]; positive when the replay is slower."""

    terms: Mapping[str, float]
    """Cause -> share of `total` [s]; they add up to it. Each is a difference between
    two exact answers: ``"contention"`` (the replay's last pass instead of the planned
    one) and ``"synchronisation"`` (what is left of the step then). `explain_gap`
    replaces the first one by ``"settings"`` (what the replay simulates that the plan
    does not know, if anything), ``"slow devices"`` and, for each level of the network
    whose links several flows share, ``"contention at <level>"``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the replay says of a plan."""

    kind: str
    """``"confirmed"``, ``"slower"`` or ``"infeasible"``."""

    reason: str
    """One sentence that names the cause: which link, which stage, which term."""

    gap: Gap
    """The difference in time."""


def judge(
    network: Network,
    priced: PricedPlan,
    replay: Replay,
    *,
    tolerance: float | None,
    memory: float,
    gap: Gap | None = None,
) -> Verdict:
    """Compare a plan with its replay.

    Parameters
    ----------
    network
        The cluster, to name links and levels.
    priced, replay
        The promise and what came of it.
    tolerance
        A plan is confirmed if the simulated throughput is at least ``1 - tolerance``
        times the planned one. Faster is fine: the plan is an upper bound of the time.
        None for a plan that was chosen by this replay, whose time is then what was
        promised, however far it is from the planned one.
    memory
        What each device has to give [byte].
    gap
        The difference in time by cause, if it has been explained already.
    """
    gap = gap or gap_by_cause(priced, replay)
    peaks = [timeline.peak for timeline in replay.memory]
    fullest = int(np.argmax(peaks))
    if peaks[fullest] > memory:
        over = format_size(peaks[fullest] - memory)
        reason = f"stage {fullest} needs {format_size(peaks[fullest])}, {over} too much"
        return Verdict(kind="infeasible", reason=reason, gap=gap)
    ratio = priced.iteration_time / replay.iteration_time
    if ratio >= 1.0 - (WORTH_A_CAUSE if tolerance is None else tolerance):
        reason = f"the replay reaches {ratio:.1%} of the planned throughput"
        return Verdict(kind="confirmed", reason=reason, gap=gap)
    kind = "confirmed" if tolerance is None else "slower"
    cause = max(gap.terms, key=lambda term: gap.terms[term])
    reason = (
        f"the replay reaches {ratio:.1%} of the planned throughput: "
        f"{format_duration(gap.terms[cause])} of {cause}, "
        f"{_busiest(network, replay)}"
    )
    return Verdict(kind=kind, reason=reason, gap=gap)


def gap_by_cause(priced: PricedPlan, replay: Replay) -> Gap:
    """Split simulated minus planned time by cause.

    The plan is the step on a network where transfers never meet: what the replay adds
    is what they lose to each other.
    """
    planned_tail = priced.iteration_time - priced.pipeline_time
    replayed_tail = replay.iteration_time - replay.pipeline_time
    return Gap(
        total=replay.iteration_time - priced.iteration_time,
        terms={
            "contention": replay.pipeline_time - priced.pipeline_time,
            "synchronisation": replayed_tail - planned_tail,
        },
    )


def explain_gap(
    network: Network,
    priced: PricedPlan,
    replay: Replay,
    work: PipelineWork,
    settings: ReplaySettings,
) -> Gap:
    """Split what lies between the plan's last pass and the replay's further.

    By exact differences, too: what the replay simulates beyond the plan while each kind
    of transfer has a network of its own, as the plan assumes (collectives layer by
    layer, stages that stop for transfers); what slow devices add; what each level adds
    whose links are shared (`nestsim.contention`). That takes a run of the step for each
    such level, and is left undone where the sum is at most `NEGLIGIBLE` of the
    iteration.
    """
    coarse = gap_by_cause(priced, replay)
    if abs(coarse.terms["contention"]) <= NEGLIGIBLE * replay.iteration_time:
        return coarse
    found = contention_by_level(network, work, settings, replay.pipeline_time)
    even = found.even.pipeline
    settled = even - priced.pipeline_time
    is_rounding = abs(settled) <= ROUNDING * replay.iteration_time
    terms = {} if is_rounding else {"settings": settled}
    if found.alone != found.even:
        terms["slow devices"] = found.alone.pipeline - even
    for level, seconds in found.by_level.items():
        terms[f"contention at {level}"] = seconds
    rounding = settled if is_rounding else 0.0
    terms["synchronisation"] = coarse.terms["synchronisation"] + rounding
    return Gap(total=coarse.total, terms=terms)


def _busiest(network: Network, replay: Replay) -> str:
    """Name the stage that works most and the link that carries most for its size."""
    seconds = replay.links.num_bytes / network.links.bandwidth
    spans = replay.spans
    worked = (spans.end - spans.start) * replay.span_multiplicity
    busy = np.bincount(spans.stage, weights=worked)
    stage = f"stage {int(np.argmax(busy))} works most"
    if not seconds.any():
        return stage
    link = int(np.argmax(seconds))
    ends = network.links.source[link], network.links.target[link]
    source, target = (network.vertex_names[end] for end in ends)
    level = network.levels[int(network.links.level[link])].name
    share = seconds[link] / replay.iteration_time
    return (
        f"{stage}, link {source} -> {target} ({level}) is busy {share:.0%} of the step"
    )
