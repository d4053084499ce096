"""What figures of a replay show: arrays and words, before anything is drawn.

Memory, links and the gap; of the timeline its bars, the windows to look at, and what
they say.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nestsim.evaluate.verdict import NO_ROOM
from nestsim.report.figures.palette import MEMORY_PARTS
from nestsim.report.statistics import (
    COLLECTIVE_KINDS,
    hottest_first,
    link_name,
    link_utilisation,
    mean_breakdown,
    stage_breakdowns,
)
from nestsim.report.wording import (
    gap_cause,
    percent,
    signed_percent,
    size_of_limit,
    without_rounding,
)
from nestsim.simulator.system import SPAN_KINDS, TRANSFER_KINDS, MemoryTimeline, Replay
from topologies.arrays import FloatArray, IntArray
from topologies.network import Network
from topologies.units import format_duration

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate

_CHANGES_PER_MICROBATCH = 5
"""At most four allocations and releases, so that an interval holds a whole period."""


class LinkRows(NamedTuple):
    """Utilisation of some links over time."""

    names: tuple[str, ...]
    """The link, and behind it how many are alike; or the level."""
    levels: tuple[str, ...]
    """Name of each row's level."""
    numbers: tuple[int, ...]
    """Position of each row's level in the network, from the inside out."""
    bin_edges: FloatArray
    """Shape ``(K + 1,)`` [s]."""
    utilisation: FloatArray
    """Of the capacity, shape ``(rows, K)``."""


class WaterfallStep(NamedTuple):
    """One bar of a waterfall."""

    name: str
    start: float
    """Where the bar begins [s]."""
    length: float
    """Signed [s]."""


def memory_steps(
    timeline: MemoryTimeline, total: float, most: int = 800
) -> tuple[FloatArray, FloatArray]:
    """Return the corners of a step function of the memory held.

    With more than ``most`` changes the result has equal intervals, about one a
    microbatch, each with the highest value that was held in it: peaks are never lost.

    Parameters
    ----------
    timeline
        Memory of one device.
    total
        End of the step; the last value is held until then [s].
    most
        Changes that can be told apart in a figure.

    Returns
    -------
    tuple[FloatArray, FloatArray]
        Moments [s], shape ``(n,)``, and the bytes held from each on, shape ``(n,)``;
        the last moment is ``total``.
    """
    times, values = np.array(timeline.times), np.array(timeline.total)
    if times.size <= most:
        return np.append(times, total), np.append(values, values[-1])
    num_intervals = times.size // _CHANGES_PER_MICROBATCH
    edges = np.linspace(times[0], total, num_intervals + 1)
    # What is held when an interval begins counts in it, hence the value before it.
    before = np.searchsorted(times, edges[:-1], side="right") - 1
    after = np.maximum(np.searchsorted(times, edges[1:], side="left"), before + 1)
    highest = np.array([values[a:b].max() for a, b in zip(before, after, strict=True)])
    return edges, np.append(highest, highest[-1])


def fullest_stage(replay: Replay) -> int:
    """Return the stage with the highest peak, the first one of equals."""
    peaks = [timeline.peak for timeline in replay.memory]
    return peaks.index(max(peaks))


def memory_parts(replay: Replay) -> dict[str, FloatArray]:
    """Return what each stage's peak is made of: part -> shape ``(p,)`` [byte].

    In the order of `nestsim.report.figures.palette.MEMORY_PARTS`, others behind. Parts
    that are nowhere more than 0 are left out.
    """
    present = {name for t in replay.memory for name in t.peak_parts}
    names = [name for name in MEMORY_PARTS if name in present]
    names += sorted(present.difference(names))
    parts = {
        name: np.array([t.peak_parts.get(name, 0.0) for t in replay.memory])
        for name in names
    }
    return {name: values for name, values in parts.items() if values.max() > 0}


def memory_title(candidate: "Candidate", usable_memory: float) -> str:
    """Say which stage is the fullest and whether it fits.

    Parameters
    ----------
    candidate
        The plan and its replay.
    usable_memory
        What tensors may take of a device [byte].
    """
    replay = candidate.replay
    stage = fullest_stage(replay)
    peak = replay.memory[stage].peak
    fits = candidate.verdict.kind not in NO_ROOM
    if not fits and peak <= usable_memory:
        # A stage on devices with less memory, or a host.
        reason = candidate.verdict.reason
        return reason[:1].upper() + reason[1:]
    finding = "is the fullest" if fits else "does not fit"
    return f"Stage {stage} {finding}: {size_of_limit(peak, usable_memory)} usable"


def link_rows(replay: Replay, network: Network, most: int = 20) -> LinkRows:
    """Return the hottest links of each level over time, outermost level first.

    Links that carry the same at all times share a row. Every level that carried
    anything gets an equal share of the rows; what a level with few links leaves over
    goes to the hottest of the others.
    """
    links = replay.links
    mean = link_utilisation(replay, network)[links.link_ids]
    level = network.links.level[links.link_ids]
    order = hottest_first(mean)
    used = np.unique(level)
    share = most // used.size if used.size else 0
    first = [row for n in used for row in order[level[order] == n][:share]]
    rest = order[~np.isin(order, first)].tolist()
    rows = np.array(sorted(first + rest[: most - len(first)]), dtype=np.int64)
    rows = rows[hottest_first(mean[rows])]
    rows = rows[np.argsort(-level[rows], kind="stable")]
    ids = links.link_ids[rows]
    return LinkRows(
        names=tuple(
            link_name(network, link) + (f" (x{count:,})" if count > 1 else "")
            for link, count in zip(
                ids.tolist(), links.num_alike[rows].tolist(), strict=True
            )
        ),
        levels=tuple(network.level_name(int(n)) for n in network.links.level[ids]),
        numbers=tuple(network.links.level[ids].tolist()),
        bin_edges=links.bin_edges,
        utilisation=links.rates[rows] / network.links.bandwidth[ids][:, None],
    )


def hottest_link_use(
    replay: Replay, network: Network, most: int = 8
) -> dict[str, FloatArray]:
    """Return the rows of `link_rows` by name, for the counters of a trace."""
    rows = link_rows(replay, network, most)
    return dict(zip(rows.names, np.minimum(rows.utilisation, 1.0), strict=True))


def level_rows(replay: Replay, network: Network) -> LinkRows:
    """Return each level's mean over the links in use, outermost level first."""
    links = replay.links
    level = network.links.level[links.link_ids]
    capacity = network.links.bandwidth[links.link_ids] * links.num_alike
    loads = links.rates * links.num_alike[:, None]
    used = np.unique(level)[::-1]
    means = [loads[level == n].sum(axis=0) / capacity[level == n].sum() for n in used]
    names = tuple(network.level_name(int(n)) for n in used)
    shape = (len(used), links.bin_edges.size - 1)
    return LinkRows(
        names=names,
        levels=names,
        numbers=tuple(used.tolist()),
        bin_edges=links.bin_edges,
        utilisation=np.array(means).reshape(shape),
    )


def links_title(replay: Replay, network: Network) -> str:
    """Say which link is the hottest, and how hot."""
    utilisation = link_utilisation(replay, network)
    if not utilisation.size or not utilisation.max() > 0:
        return "No link carried anything"
    hottest = int(hottest_first(utilisation)[0])
    row = replay.links.row[hottest]
    highest = replay.links.rates[row].max() / network.links.bandwidth[hottest]
    return (
        f"The hottest link, {link_name(network, hottest)}, is used to "
        f"{percent(float(utilisation[hottest]))} over the step, "
        f"at its busiest to {percent(min(float(highest), 1.0))}"
    )


def waterfall(candidate: "Candidate") -> tuple[WaterfallStep, ...]:
    """Return the planned time by cause, one bar after the other.

    Causes without a share are left out; what the causes leave unexplained, beyond
    rounding, is shown as ``"other"``.
    """
    steps, reached = [], 0.0
    planned = candidate.priced.iteration_time
    terms = dict(candidate.priced.terms)
    other = planned - math.fsum(terms.values())
    if abs(other) > 1e-6 * planned:
        terms["other"] = other
    for name, seconds in terms.items():
        if seconds:
            steps.append(WaterfallStep(name, reached, seconds))
            reached += seconds
    return tuple(steps)


def gap_steps(candidate: "Candidate") -> tuple[WaterfallStep, ...]:
    """Return simulated minus planned time by cause, one bar after the other.

    Causes that do nothing beyond rounding are left out.
    """
    steps, reached = [], 0.0
    planned = candidate.planned.iteration_time
    for name, exact in candidate.verdict.gap.terms.items():
        seconds = without_rounding(exact, planned)
        if seconds:
            steps.append(WaterfallStep(name, reached, seconds))
            reached += seconds
    return tuple(steps)


def gap_title(candidate: "Candidate") -> str:
    """Say how far the replay is from the plan, and the largest cause."""
    planned = candidate.planned.iteration_time
    gap = candidate.verdict.gap
    share = gap.total / planned if planned else math.nan
    if abs(share) < 5e-4:
        return "The replay takes as long as planned, within 0.1 %"
    how = f"{percent(abs(share))} {'longer' if gap.total > 0 else 'shorter'}"
    cause = gap_cause(gap)
    if not cause:
        return f"The replay is {how} than planned"
    part = signed_percent(gap.terms[cause] / planned)
    return f"The replay is {how} than planned; the largest cause is {cause} ({part})"


BAR_KINDS = (*SPAN_KINDS, "send", *COLLECTIVE_KINDS)
"""Kinds of bars of the timeline; messages between stages are ``"send"``."""

_INSIDE = tuple(range(TRANSFER_KINDS.index("tied") + 1, len(TRANSFER_KINDS)))
"""Kinds of transfers that are part of passes: those after the first five."""

_DENSE = 64
"""Passes of one stage from which on the whole step is too dense to read."""

_ZOOM_SHARE = 0.6
"""Zoomed panels pay off when they show less than this share of the step."""


class Bars(NamedTuple):
    """Bars of a timeline: arrays of one length."""

    kind: IntArray
    """An index into `BAR_KINDS`."""
    stage: IntArray
    microbatch: IntArray
    """-1 where there is none."""
    chunk: IntArray
    """-1 where there is none."""
    start: FloatArray
    end: FloatArray

    @property
    def num_chunks(self) -> int:
        """Chunks per stage."""
        return int(self.chunk.max(initial=0)) + 1


class Window(NamedTuple):
    """A part of the step to look at."""

    title: str
    start: float
    end: float


LEAST_SPAN = 0.01
"""Part of its highest value that an axis spans at least."""


def axis_ends(low: float, high: float) -> tuple[float, float]:
    """Return the ends of an axis around values, so far apart that nothing is blown up.

    Examples
    --------
    >>> axis_ends(50.0, 100.0)
    (50.0, 100.0)
    >>> axis_ends(99.95, 100.0)
    (99.475, 100.475)
    """
    lacking = LEAST_SPAN * max(abs(low), abs(high)) - (high - low)
    return (low, high) if lacking <= 0 else (low - lacking / 2, high + lacking / 2)


def waterfall_ends(bars: Sequence[WaterfallStep], whole: float) -> tuple[float, float]:
    """Return the ends of an axis of bars around 0 [s].

    Parameters
    ----------
    bars
        What is drawn.
    whole
        Time that they are a part of: a gap of 0.07 % of it is a short bar [s].
    """
    ends = [end for bar in bars for end in (bar.start, bar.start + bar.length)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    lacking = max(0.0, LEAST_SPAN * whole - (high - low))
    return (low, high + lacking) if high >= -low else (low - lacking, high)


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit of a time axis of this length: its seconds, its name.

    The one that `topologies.units.format_duration` writes the length in.
    """
    for length, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= length:
            return length, name
    return 1e-9, "ns"


def timeline_bars(replay: Replay, replica: int = 0) -> Bars:
    """Return everything that one replica computes and sends.

    Where it is alike to another one, that one's records are its own. Collectives inside
    layers are part of the passes.
    Collectives belong to every replica; a tied embedding's collective shows at the
    first and at the last stage.
    """
    spans, transfers = replay.spans, replay.transfers
    representative = replay.representative[:, replica]
    own = spans.replica == representative[spans.stage]
    names = [kind if kind in COLLECTIVE_KINDS else "send" for kind in TRANSFER_KINDS]
    bar_of = np.array([BAR_KINDS.index(name) for name in names])
    sent = transfers.replica == representative[transfers.stage]
    rows = (sent | (transfers.replica < 0)) & ~np.isin(transfers.kind, _INSIDE)
    tied = np.flatnonzero(transfers.kind == TRANSFER_KINDS.index("tied"))
    pick = np.concatenate((np.flatnonzero(rows), tied))
    stage = transfers.stage[pick].copy()
    if tied.size:
        # The record names one end; the copy stands at the other one.
        last = len(replay.memory) - 1
        stage[-tied.size :] = np.where(transfers.stage[tied] == 0, last, 0)
    return Bars(
        np.concatenate((spans.kind[own], bar_of[transfers.kind[pick]])),
        np.concatenate((spans.stage[own], stage)),
        np.concatenate((spans.microbatch[own], transfers.microbatch[pick])),
        np.concatenate((spans.chunk[own], transfers.chunk[pick])),
        np.concatenate((spans.start[own], transfers.start[pick])),
        np.concatenate((spans.end[own], transfers.end[pick])),
    )


def timeline_windows(replay: Replay) -> tuple[Window, ...]:
    """Return the whole step, and its two ends where the whole is too dense to read.

    The warm-up lasts until the first stage has ended its first backward pass; the
    tail is as long before the last backward pass, and goes on to the end.
    """
    total = replay.iteration_time
    whole = Window("The whole step", 0.0, total)
    spans = replay.spans
    first = (spans.stage == 0) & (spans.kind == SPAN_KINDS.index("backward"))
    if (
        replay.span_multiplicity[first].sum() / replay.representative.shape[1]
        <= _DENSE / 2
    ):
        return (whole,)
    warm_up = 1.1 * float(spans.end[first].min())
    tail = max(replay.pipeline_time - warm_up, 0.0)
    if warm_up + total - tail > _ZOOM_SHARE * total:
        return (whole,)
    return (
        whole,
        Window("Warm-up", 0.0, warm_up),
        Window("Cool-down and synchronisation", tail, total),
    )


def timeline_title(replay: Replay) -> str:
    """Say where the devices' time goes."""
    mean = mean_breakdown(stage_breakdowns(replay))
    total = replay.iteration_time or 1.0
    compute = (mean.passes - mean.host + mean.optimizer) / total
    return (
        f"Devices compute for {percent(compute)} of the "
        f"{format_duration(replay.iteration_time)}; they wait for "
        f"{percent((mean.host + mean.waiting) / total)} and synchronise for "
        f"{percent(mean.synchronisation / total)}"
    )
