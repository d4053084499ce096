"""Quantities derived from a replay: where the time went, and which links were busy.

All functions are pure and deterministic; ties go to the lower index.

A simulated iteration is split cause by cause by four exact timelines of the same
schedule and passes, one inside the other, and the differences between them. The passes
are those of the replica whose slowest stage works longest (the first one of equals),
each stage's as long as it took them on average:

- the work of its mean stage: ``"passes"``, collectives inside layers included, but for
  what of it devices wait for their hosts' launches;
- ``"host"``: these waits, and what hosts take once in each step, out of its end;
- all stages alike, nothing sent between them: what is added is the ``"bubble"``;
- its stages as they are, nothing sent: what is added is ``"stage imbalance"``;
- the replay until its last pass ends: what is added is ``"transfers"``, the wait for
  messages, with all contention and with what replicas do to each other;
- the replay: what is added is the step's end, of which ``"optimizer"`` is as much as
  the longest optimizer step there, and ``"synchronisation"`` is the rest.

Differences are differences: bubbles aside, they can be negative.

Letters: ``p`` stages, ``d`` replicas, ``v`` chunks of each stage, ``m`` microbatches,
``E`` links, ``T`` the iteration time. An actor is one stage of one replica.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.system import SPAN_KINDS, TRANSFER_KINDS, Replay
from planner.cost.objective import HIDDEN, HOST, net_parts
from planner.step.instructions import Program
from planner.step.schedules import SCHEDULES
from topologies.arrays import FloatArray, IntArray
from topologies.network import Network

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate

COLLECTIVE_KINDS = ("reduce", "gather", "tied")
"""The members of `TRANSFER_KINDS` that are collectives."""


class Breakdown(NamedTuple):
    """How a device of one stage spends the iteration; the parts add up to it [s]."""

    forward: float
    """Forward passes, without waits for the host [s]."""

    backward: float
    """Backward passes, without waits for the host [s]."""

    weight_gradient: float
    """Passes for the weights' gradients in schedules that split these off; else part of
    `backward` [s]."""
    host: float
    """Time in which the device waits for its host: for launches of kernels, for
    messages between stages, for libraries, and once in each step [s]."""
    waiting: float
    """Time neither computing nor inside a collective: the bubble, and waiting for
    messages and for the slowest stage at the end [s]."""
    synchronisation: float
    """Time inside a collective of the stage while nothing is computed [s]."""
    optimizer: float
    """Optimizer step, without waits for the host [s]."""

    @property
    def passes(self) -> float:
        """All passes, without waits for the host [s]."""
        return self.forward + self.backward + self.weight_gradient


class HotLink(NamedTuple):
    """One link and what it carried."""

    link: int
    """Number of the link."""

    name: str
    """Ends of the link, ``"vertex -> vertex"``."""
    level: str
    """Name of the link's level."""

    num_bytes: float
    """Bytes that the link carried [byte]."""
    utilisation: float
    """Bytes carried over bytes that the link could have carried in the whole
    iteration."""


class LevelUse(NamedTuple):
    """The links of one level that carried anything."""

    name: str
    """Name of the level."""

    num_links: int
    """Links of the level."""

    num_used: int
    """Links of the level that carried something."""

    num_bytes: float
    """Bytes that all links of the level carried [byte]."""
    mean_utilisation: float
    """Bytes carried over bytes that the used links could have carried."""
    max_utilisation: float
    """Utilisation of the level's hottest link."""


def bubble_fraction(replay: Replay) -> float:
    """Return the share of device time without compute until the last backward ends.

    The mean over the plan's devices; idle devices of the cluster don't count. Equal
    stages without communication give ``(p - 1) / (m + p - 1)``: Narayanan et al.,
    "Efficient Large-Scale Language Model Training", SC'21, section 2.2.1, there
    relative to the ideal time, here to the whole.
    """
    if replay.pipeline_time <= 0:
        return 0.0
    spans = replay.spans
    inside = np.minimum(spans.end, replay.pipeline_time) - spans.start
    busy = float((np.maximum(inside, 0.0) * replay.span_multiplicity).sum())
    return 1.0 - busy / (replay.pipeline_time * replay.num_actors)


def stage_breakdowns(replay: Replay) -> tuple[Breakdown, ...]:
    """Return how each stage spends the iteration, as means over its replicas [s]."""
    return tuple(_stage_breakdown(replay, stage) for stage in range(len(replay.memory)))


def mean_breakdown(breakdowns: tuple[Breakdown, ...]) -> Breakdown:
    """Return the mean over stages, which have equally many devices [s]."""
    means = np.array(breakdowns, dtype=np.float64).mean(axis=0)
    return Breakdown(*(float(mean) for mean in means))


def link_utilisation(replay: Replay, network: Network) -> FloatArray:
    """Return each link's bytes over ``bandwidth * T``, shape ``(E,)``."""
    if replay.iteration_time <= 0:
        return np.zeros(len(network.links))
    utilisation: FloatArray = replay.links.num_bytes / (
        network.links.bandwidth * replay.iteration_time
    )
    return utilisation


def hottest_first(utilisation: FloatArray) -> IntArray:
    """Return the order of links from the most to the least used, ties by number.

    Differences below 1e-9 of the capacity are rounding, and count as ties.
    """
    return np.argsort(-np.round(utilisation, 9), kind="stable")


def link_name(network: Network, link: int) -> str:
    """Return ``"vertex -> vertex"`` of a link."""
    source, target = network.links.source[link], network.links.target[link]
    return f"{network.vertex_names[source]} -> {network.vertex_names[target]}"


def hottest_links(
    replay: Replay, network: Network, count: int = 10
) -> tuple[HotLink, ...]:
    """Return the links that were used most, relative to their capacity, hottest first.

    Links that carried nothing are left out.
    """
    utilisation = link_utilisation(replay, network)
    order = hottest_first(utilisation)[:count]
    return tuple(
        HotLink(
            link=int(link),
            name=link_name(network, int(link)),
            level=network.level_name(int(network.links.level[link])),
            num_bytes=float(replay.links.num_bytes[link]),
            utilisation=float(utilisation[link]),
        )
        for link in order
        if utilisation[link] > 0
    )


def level_uses(replay: Replay, network: Network) -> tuple[LevelUse, ...]:
    """Return the traffic of each level that carried anything, innermost first."""
    utilisation = link_utilisation(replay, network)
    uses = []
    for number in range(len(network.levels) + (network.host is not None)):
        of_level = network.links.level == number
        used = of_level & (replay.links.num_bytes > 0)
        if not used.any():
            continue
        carried = float(replay.links.num_bytes[used].sum())
        capacity = float(network.links.bandwidth[used].sum()) * replay.iteration_time
        uses.append(
            LevelUse(
                name=network.level_name(number),
                num_links=int(of_level.sum()),
                num_used=int(used.sum()),
                num_bytes=carried,
                mean_utilisation=carried / capacity,
                max_utilisation=float(utilisation[used].max()),
            )
        )
    return tuple(uses)


def union_length(start: FloatArray, end: FloatArray) -> float:
    """Return the length of the union of closed intervals.

    Sorted by start, interval ``k`` adds what reaches beyond all earlier ones:
    ``max(end_k - max(start_k, max over i < k of end_i), 0)``. O(n log n).

    Parameters
    ----------
    start, end
        Shape ``(n,)``, ``start <= end`` [s].
    """
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    covered = np.concatenate(([-np.inf], np.maximum.accumulate(end)))[:-1]
    return float(np.maximum(end - np.maximum(start, covered), 0.0).sum())


def collective_rows(replay: Replay, stage: int) -> NDArray[np.bool_]:
    """Mark the transfers that are collectives of a stage, shape ``(n,)``.

    The collective of a tied embedding belongs to the first and to the last stage.
    """
    transfers = replay.transfers
    kinds = [TRANSFER_KINDS.index(kind) for kind in COLLECTIVE_KINDS]
    rows: NDArray[np.bool_] = np.isin(transfers.kind, kinds) & (
        transfers.stage == stage
    )
    if stage in (0, len(replay.memory) - 1):
        rows |= transfers.kind == TRANSFER_KINDS.index("tied")
    return rows


def _stage_breakdown(replay: Replay, stage: int) -> Breakdown:
    spans = replay.spans
    of_stage = np.flatnonzero(spans.stage == stage)
    collective = collective_rows(replay, stage)
    together = replay.transfers.start[collective], replay.transfers.end[collective]
    # Alike replicas are recorded once, and count as often as they are.
    replicas, members = np.unique(replay.representative[stage], return_counts=True)
    by_replica = of_stage[np.argsort(spans.replica[of_stage], kind="stable")]
    cuts = np.searchsorted(spans.replica[by_replica], replicas[1:])
    exposed = 0.0
    for rows, count in zip(np.split(by_replica, cuts), members.tolist(), strict=True):
        exposed += count * _exposed(together, (spans.start[rows], spans.end[rows]))
    num_replicas = replay.representative.shape[1]
    worked = (spans.end - spans.start)[of_stage] * replay.span_multiplicity[of_stage]
    total = np.bincount(spans.kind[of_stage], weights=worked, minlength=len(SPAN_KINDS))
    busy = total / num_replicas
    synchronisation = exposed / num_replicas
    waiting = replay.iteration_time - float(busy.sum()) - synchronisation
    forward, backward, once = _host_time(replay)[stage].tolist()
    return Breakdown(
        forward=float(busy[SPAN_KINDS.index("forward")]) - forward,
        backward=float(busy[SPAN_KINDS.index("backward")]) - backward,
        weight_gradient=float(busy[SPAN_KINDS.index("weight")]),
        host=forward + backward + once,
        waiting=max(waiting, 0.0),
        synchronisation=synchronisation,
        optimizer=float(busy[SPAN_KINDS.index("optimizer")]) - once,
    )


def _host_time(replay: Replay) -> FloatArray:
    """Return `Replay.host_time`, 0 where it says nothing."""
    if replay.host_time is None:
        return np.zeros((replay.representative.shape[0], 3))
    return replay.host_time


def _exposed(
    inner: tuple[FloatArray, FloatArray], cover: tuple[FloatArray, FloatArray]
) -> float:
    """Return the length of the union of ``inner`` that ``cover`` does not hide."""
    if inner[0].size == 0:
        return 0.0
    both = union_length(
        np.concatenate((inner[0], cover[0])), np.concatenate((inner[1], cover[1]))
    )
    return max(both - union_length(*cover), 0.0)


CAUSES = (
    "passes",
    "host",
    "bubble",
    "stage imbalance",
    "transfers",
    "synchronisation",
    "optimizer",
)
"""What an iteration consists of."""

ROUNDING = 1e-9
"""Share of an iteration below which a difference of times is none."""


def step_causes(candidate: "Candidate") -> dict[str, float]:
    """Return the simulated iteration by cause, its passes by what they do [s].

    The parts add up to it: those of `iteration_causes`, with the planner's parts of the
    passes of the mean stage in place of ``"passes"``. `HIDDEN` is what the replayed
    passes are shorter than all that they do; where they are longer, they wait for
    weights that are still under way, or for links that are shared: `WAITS`.
    """
    replay, plan = candidate.replay, candidate.priced.plan
    causes = dict(iteration_causes(replay, plan.schedule, plan.num_microbatches))
    passes, parts = causes.pop("passes"), _parts_of_passes(candidate)
    hidden = passes - math.fsum(parts.values())
    if abs(hidden) > ROUNDING * replay.iteration_time:
        parts[HIDDEN if hidden < 0.0 else WAITS] = hidden
    return {**parts, **causes}


def exposed_causes(candidate: "Candidate") -> dict[str, float]:
    """Return `step_causes` with what is hidden taken off the collectives [s]."""
    return net_parts(step_causes(candidate))


WAITS = "waits in passes"
"""Cause of passes that the replay makes longer than all that they do."""


def _parts_of_passes(candidate: "Candidate") -> dict[str, float]:
    """Return the parts of the passes of the mean stage, without the host's [s]."""
    stages, plan = candidate.priced.stages, candidate.priced.plan
    names = dict.fromkeys(name for stage in stages for name in stage.parts)
    return {
        name: plan.num_microbatches
        * math.fsum(stage.parts.get(name, 0.0) for stage in stages)
        / len(stages)
        for name in names
        if name != HOST
    }


_NUM_PASS_KINDS = 3


def iteration_causes(
    replay: Replay, schedule: str, num_microbatches: int
) -> Mapping[str, float]:
    """Return the simulated iteration by cause [s]; the parts add up to it.

    Parameters
    ----------
    replay
        What happened.
    schedule
        A name of `planner.step.schedules.SCHEDULES`.
    num_microbatches
        Of each replica.
    """
    num_stages = replay.representative.shape[0]
    durations = _pass_times(replay)
    balanced = np.broadcast_to(durations.mean(axis=1, keepdims=True), durations.shape)
    work = num_microbatches * float(durations.sum()) / num_stages
    sizes = num_stages, num_microbatches, durations.shape[1] // num_stages
    program = SCHEDULES[schedule].program(*sizes)
    alike = _end(program, num_microbatches, balanced.copy())
    alone = _end(program, num_microbatches, durations)
    step_end = replay.iteration_time - replay.pipeline_time
    optimizer = _longest_optimizer(replay)
    waits = _host_time(replay)
    host, once = float(waits[:, :2].sum()) / num_stages, float(waits[:, 2].max())
    parts = (
        work - host,
        host + once,
        alike - work,
        alone - alike,
        replay.pipeline_time - alone,
        step_end - optimizer,
        optimizer - once,
    )
    return dict(zip(CAUSES, parts, strict=True))


def _pass_times(replay: Replay) -> FloatArray:
    """Return the mean times of the slowest replica's passes, shape ``(3, v p)`` [s]."""
    spans = replay.spans
    num_stages, num_replicas = replay.representative.shape
    num_chunks = int(spans.chunk.max(initial=0)) + 1
    rows = np.flatnonzero(spans.kind < _NUM_PASS_KINDS)
    shape = (num_stages, num_replicas, _NUM_PASS_KINDS, num_chunks)
    cells = np.ravel_multi_index(
        (
            spans.stage[rows],
            spans.replica[rows],
            spans.kind[rows],
            spans.chunk[rows],
        ),
        shape,
    )
    lengths = (spans.end - spans.start)[rows]
    size = int(np.prod(shape))
    total = np.bincount(cells, weights=lengths, minlength=size).reshape(shape)
    count = np.bincount(cells, minlength=size).reshape(shape)
    mean = total / np.maximum(count, 1)
    of_stage = np.arange(num_stages)[:, None]
    worked = mean.sum(axis=(2, 3))[of_stage, replay.representative]
    slowest = int(np.argmax(worked.max(axis=0)))
    chosen = mean[np.arange(num_stages), replay.representative[:, slowest]]
    virtual = SCHEDULES[replay.schedule].virtual_stages(num_stages, num_chunks)
    return np.ascontiguousarray(
        chosen[virtual.stage, :, virtual.chunk].T, dtype=np.float64
    )


def _end(program: Program, num_microbatches: int, durations: FloatArray) -> float:
    """Return when the last pass ends if messages take no time [s]."""
    from planner.kernels.timeline import BoundaryTimes, InstructionLists, timeline

    nothing = BoundaryTimes(*[np.zeros(durations.shape[1] - 1)] * 4)
    lists = InstructionLists(*program)
    status, _, _, ends = timeline(lists, num_microbatches, durations, nothing)
    assert status == 0, "a schedule's instructions wait for each other"
    return float(ends.max())


def _longest_optimizer(replay: Replay) -> float:
    """Return the longest optimizer step, as far as it is behind the last pass [s]."""
    spans = replay.spans
    steps = spans.kind == SPAN_KINDS.index("optimizer")
    begin = np.maximum(spans.start[steps], replay.pipeline_time)
    return float(np.maximum(spans.end[steps] - begin, 0.0).max(initial=0.0))
