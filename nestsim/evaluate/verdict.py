"""Plan beside replay: whether the promise is kept, and why not.

What transfers lose to each other is found level by level of the network. The plan
prices each transfer as if its own kind had the network to itself: the messages over one
boundary of all replicas at once, or the same collective of all groups of a stage. The
step is run again under this assumption, which costs every flow a fixed rate. The links
of one level after another, from the inside out, are then shared by whatever truly meets
there; the last level gives the replay itself. The differences between neighbours in
this chain add up to all that contention adds. They can be negative, where replicas keep
out of each other's way. What an outer level costs is counted on top of the inner ones:
the order is part of the definition.

Letters: ``F`` flows, ``E`` links.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from nestsim.evaluate.uncertainty import MemoryBand, MemoryNeed
from nestsim.simulator.build import build_model
from nestsim.simulator.flows import Flows
from nestsim.simulator.frames import FramedStep, Lines
from nestsim.simulator.programs import StageProgram
from nestsim.simulator.replay import fold_model, run_system
from nestsim.simulator.system import (
    SPAN_KINDS,
    Incidence,
    Replay,
    ReplaySettings,
    Run,
    System,
)
from nestsim.simulator.work import PipelineWork
from planner.cost.objective import PricedPlan
from planner.step.memory import host_room, host_sentence, is_within, judge_room
from topologies.arrays import IntArray
from topologies.network import Links, Network
from topologies.units import format_duration, format_size


class Ends(NamedTuple):
    """When a step is over."""

    pipeline: float
    """Moment at which the last pass ends [s]."""

    whole: float
    """Moment at which the last duty ends [s]."""


class Contention(NamedTuple):
    """A step as the plan assumes it, and what each level adds to it."""

    alone: Ends
    """End of a step in which each kind of transfer has a network of its own."""

    by_level: Mapping[str, float]
    """Name of the level -> how much later the last pass ends because the links of this
    level are shared, too; levels on which nothing can meet are left out [s]."""


def contention_by_level(
    network: Network, work: PipelineWork, settings: ReplaySettings, pipeline: float
) -> Contention:
    """Split what contention costs by level; that takes one run for each such level.

    Parameters
    ----------
    network, work, settings
        What was replayed.
    pipeline
        When the last pass of the replay ended [s].
    """
    if settings.engine == "auto":  # the replay was compiled, too, to be held to it
        settings = replace(settings, engine="compiled")
    shared, chain = _framed_chain(network, work, settings) or _model_chain(
        network, work, settings
    )
    reached = [*(ends.pipeline for ends in chain), pipeline]
    by_level: dict[str, float] = {}
    for number, level in enumerate(shared):
        name = network.level_name(level)
        added = reached[number + 1] - reached[number]
        by_level[name] = by_level.get(name, 0.0) + added
    return Contention(chain[0], by_level)


_Chain = tuple[tuple[int, ...], list[Ends]]
"""Levels whose links are shared, rising, and the ends of a step in which the first ones
are, from none to all but the last."""


def _framed_chain(
    network: Network, work: PipelineWork, settings: ReplaySettings
) -> _Chain | None:
    """Run a step whose families of flows are worked out once; None if none are."""
    if not settings.folding or work.layers is not None:
        return None
    framed, links, chain = FramedStep(network, work), network.links, []
    flows, shared = framed.flows, shared_levels(framed.num_crossing, links)
    for levels in _sets_of_levels(shared):
        lines = private_links(flows.incidence, links, levels, flows.family)
        step = framed.fold(lines)
        if step is None:
            return None
        chain.append(_ends(step.folding.system, step.programs, settings))
    return shared, chain


def _model_chain(
    network: Network, work: PipelineWork, settings: ReplaySettings
) -> _Chain:
    """Run a step whose flows are all worked out."""
    model, links, chain = build_model(network, work), network.links, []
    incidence, kinds = model.flows.incidence, kinds_of_transfer(model.flows)
    num_crossing = np.bincount(incidence.links, minlength=len(links))
    shared = shared_levels(num_crossing, links)
    for levels in _sets_of_levels(shared):
        lines = private_links(incidence, links, levels, kinds)
        system = replace(
            model.system, incidence=lines.incidence, capacity=lines.capacity
        )
        folding = fold_model(model._replace(system=system))
        chain.append(_ends(folding.system, model.programs, settings))
    return shared, chain


def _sets_of_levels(shared: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the first of some levels, from none to all but the last."""
    return [shared[:number] for number in range(max(1, len(shared)))]


def shared_levels(num_crossing: IntArray, links: Links) -> tuple[int, ...]:
    """Return the levels that have a link which several flows cross, rising.

    ``num_crossing`` are the flows that cross each link, shape ``(E,)``.
    """
    return tuple(np.unique(links.level[num_crossing > 1]).tolist())


def _ends(
    system: System, programs: Sequence[StageProgram], settings: ReplaySettings
) -> Ends:
    """Run a folded step."""
    run = run_system(system, settings)
    return Ends(_last_pass(programs, system.program, run), run.end)


def kinds_of_transfer(flows: Flows) -> IntArray:
    """Give the flows that the plan prices together the same number, shape ``(F,)``."""
    kinds = np.arange(len(flows))
    in_passes = (row for own in flows.in_passes for each in own for row in each)
    for together in (*flows.activation, *flows.gradient, *in_passes):
        kinds[together] = together.min(initial=len(flows))
    return kinds


def private_links(
    incidence: Incidence, links: Links, shared: Sequence[int], kinds: IntArray
) -> Lines:
    """Give each flow a link of its own instead of all that are not shared.

    It has the rate that they allow the flow's pairs while all flows of the same kind,
    and no others, are active.

    Parameters
    ----------
    incidence, links
        Which flow crosses which link, and the links.
    shared
        Levels whose links stay as they are.
    kinds
        Of each flow, shape ``(F,)``.

    Returns
    -------
    Lines
        Links renumbered, those that are shared first.
    """
    num_flows = incidence.indptr.size - 1
    flow = np.repeat(np.arange(num_flows), np.diff(incidence.indptr))
    kept = np.isin(links.level[incidence.links], shared)
    crossed = incidence.links[~kept]
    keys = kinds[flow[~kept]] * len(links) + crossed
    _, together = np.unique(keys, return_inverse=True)
    weight = np.bincount(together, incidence.weights[~kept])[together]
    limit = np.full(num_flows, np.inf)
    np.minimum.at(limit, flow[~kept], links.bandwidth[crossed] / weight)
    limited = np.flatnonzero(np.isfinite(limit))
    common = np.unique(incidence.links[kept])
    flows = np.concatenate((flow[kept], limited))
    number = np.concatenate(
        (
            np.searchsorted(common, incidence.links[kept]),
            common.size + np.arange(limited.size),
        )
    )
    weights = np.concatenate((incidence.weights[kept], np.ones(limited.size)))
    order = np.lexsort((number, flows))
    sizes = np.bincount(flows, minlength=num_flows)
    indptr = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    capacity = np.concatenate((links.bandwidth[common], limit[limited]))
    crossing = Incidence(indptr, number[order].astype(np.int64), weights[order])
    return Lines(crossing, capacity, common.size)


def _last_pass(programs: Sequence[StageProgram], program: IntArray, run: Run) -> float:
    """Return when the last pass of all actors ended [s]."""
    optimizer = SPAN_KINDS.index("optimizer")
    return max(
        (
            float(ends[programs[kind].kinds != optimizer].max(initial=0.0))
            for kind, ends in zip(program.tolist(), run.span_ends, strict=True)
        ),
        default=0.0,
    )


WORTH_A_CAUSE = 0.05
"""Relative difference by which a plan chosen by its replay must be slower than planned
to be reported with the cause."""

NEGLIGIBLE = 1e-3
"""Share of the iteration below which contention is not worth more replays."""

ROUNDING = 1e-9
"""Share of the iteration by which two ways to the same answer may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Simulated minus planned iteration time, by cause."""

    total: float
    """Difference in iteration time, positive when the replay is slower [s]."""

    terms: Mapping[str, float]
    """Cause -> share of `total` [s]; they add up to it. Each is a difference between
    two exact answers: ``"contention"`` (the replay's last pass instead of the planned
    one) and ``"synchronisation"`` (what is left of the step then). `explain_gap`
    replaces the first one by ``"settings"`` (what the replay simulates that the plan
    does not know, if anything) and, for each level of the network whose links several
    flows share, ``"contention at <level>"``. What slow devices cost is in the plan, and
    no cause of its own."""


NO_ROOM = frozenset({"doubtful", "infeasible"})
"""Verdicts on plans that need more memory than there is, by the estimate: the band of
what they need reaches below what there is, or is all above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the replay says of a plan."""

    kind: str
    """``"confirmed"``, ``"slower"``, ``"doubtful"`` or ``"infeasible"``."""

    reason: str
    """One sentence that names the cause: which link, which stage, which term."""

    gap: Gap
    """Difference in time, by cause."""

    memory: MemoryNeed | None = None
    """What the fullest stage needs, with its band; None with ideal software."""


class DeviceMemory(NamedTuple):
    """What the devices of a plan have, and how well it is known what they need."""

    rooms: Sequence[float]
    """What a device of each stage has to give [byte]."""

    band: MemoryBand | None = None
    """How far off what plans need may be; None for exact."""


def judge(
    network: Network,
    priced: PricedPlan,
    replay: Replay,
    *,
    tolerance: float | None,
    memory: DeviceMemory,
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
        What devices have. A plan is confirmed only if it fits by the estimate, and
        infeasible only if it fits nowhere in the band.
    gap
        The difference in time by cause, if it has been explained already.
    """
    gap = gap or gap_by_cause(priced, replay)
    peaks = [timeline.peak for timeline in replay.memory]
    missing = np.array(peaks) - np.array(memory.rooms)
    fullest = int(np.argmax(missing))
    room, band = memory.rooms[fullest], memory.band
    need = None if band is None else band.need(peaks[fullest], room)
    low = peaks[fullest] if need is None else need.low
    kind: str = judge_room(peaks[fullest], low, room)
    if kind != "fits":
        reason = (
            f"stage {fullest} needs {format_size(peaks[fullest])}, "
            f"{format_size(missing[fullest])} too much"
        )
        return Verdict(kind=kind, reason=reason, gap=gap, memory=need)
    if not is_within(priced.host_memory, host_room(network.host)):
        reason = host_sentence(priced.host_memory, network.host).rstrip(".")
        return Verdict(kind="infeasible", reason=reason, gap=gap, memory=need)
    ratio = priced.iteration_time / replay.iteration_time
    if ratio >= 1.0 - (WORTH_A_CAUSE if tolerance is None else tolerance):
        reason = f"the replay reaches {ratio:.1%} of the planned throughput"
        return Verdict(kind="confirmed", reason=reason, gap=gap, memory=need)
    kind = "confirmed" if tolerance is None else "slower"
    cause = max(gap.terms, key=lambda term: gap.terms[term])
    reason = (
        f"the replay reaches {ratio:.1%} of the planned throughput: "
        f"{format_duration(gap.terms[cause])} of {cause}, "
        f"{_busiest(network, replay)}"
    )
    return Verdict(kind=kind, reason=reason, gap=gap, memory=need)


def gap_by_cause(priced: PricedPlan, replay: Replay) -> Gap:
    """Split simulated minus planned time by cause.

    The plan is the step on a network where transfers never meet: what the replay adds
    is what they lose to each other.
    """
    planned_step_end = priced.iteration_time - priced.pipeline_time
    replayed_step_end = replay.iteration_time - replay.pipeline_time
    return Gap(
        total=replay.iteration_time - priced.iteration_time,
        terms={
            "contention": replay.pipeline_time - priced.pipeline_time,
            "synchronisation": replayed_step_end - planned_step_end,
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
    layer, stages that stop for transfers); what each level adds whose links are shared
    (`nestsim.evaluate.verdict`). That takes a run of the step for each
    such level, and is left undone where the sum is at most `NEGLIGIBLE` of the
    iteration.
    """
    coarse = gap_by_cause(priced, replay)
    if abs(coarse.terms["contention"]) <= NEGLIGIBLE * replay.iteration_time:
        return coarse
    contention = contention_by_level(network, work, settings, replay.pipeline_time)
    settled = contention.alone.pipeline - priced.pipeline_time
    is_rounding = abs(settled) <= ROUNDING * replay.iteration_time
    terms = {} if is_rounding else {"settings": settled}
    for level, seconds in contention.by_level.items():
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
    level = network.level_name(int(network.links.level[link]))
    share = seconds[link] / replay.iteration_time
    return (
        f"{stage}, link {source} -> {target} ({level}) is busy {share:.0%} of the step"
    )
