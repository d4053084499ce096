"""What the timeline shows: bars, windows to look at, and what they say."""

from typing import NamedTuple

import numpy as np

from nestsim.report.statistics import (
    COLLECTIVE_KINDS,
    mean_breakdown,
    stage_breakdowns,
)
from nestsim.report.wording import percent
from nestsim.simulator.outcome import SPAN_KINDS, TRANSFER_KINDS, Replay
from topologies.arrays import FloatArray, IntArray
from topologies.units import format_duration

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


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit that suits a time axis of this length: its seconds, its name."""
    for length, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= 2 * length:
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
    stand_in = replay.stand_in[:, replica]
    own = spans.replica == stand_in[spans.stage]
    names = [kind if kind in COLLECTIVE_KINDS else "send" for kind in TRANSFER_KINDS]
    bar_of = np.array([BAR_KINDS.index(name) for name in names])
    sent = transfers.replica == stand_in[transfers.stage]
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
    if replay.span_multiplicity[first].sum() / replay.stand_in.shape[1] <= _DENSE / 2:
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
    compute = (mean.passes + mean.optimizer) / total
    return (
        f"Devices compute for {percent(compute)} of the "
        f"{format_duration(replay.iteration_time)}; they wait for "
        f"{percent(mean.waiting / total)} and synchronise for "
        f"{percent(mean.synchronisation / total)}"
    )
