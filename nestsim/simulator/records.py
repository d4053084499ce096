"""From the logs of actors and channels to the records of spans and transfers.

Logs know slots and numbers of messages; records know stages, replicas and microbatches.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.flows import SIGNAL
from nestsim.simulator.folding import Folding
from nestsim.simulator.model import Model
from nestsim.simulator.outcome import Spans, Transfers
from nestsim.simulator.posts import num_posts
from nestsim.simulator.programs import StageProgram
from nestsim.simulator.system import CLOSES, OPENS, Run, System
from topologies.arrays import FloatArray, IntArray

_NONE = np.zeros(0, np.int64)


def collect_spans(model: Model, folding: Folding, run: Run) -> tuple[Spans, IntArray]:
    """Return the spans of all actors simulated, and how many each stands for.

    In order of start; equal ones by stage and replica.
    """
    actors = folding.actors
    programs = [model.programs[k] for k in folding.system.program.tolist()]
    length = np.array([program.kinds.size for program in programs], np.int64)
    stage, replica = np.divmod(actors.first, model.num_replicas)
    start = _joined(run.span_starts)
    order = np.argsort(start, kind="stable")
    spans = Spans(
        stage=np.repeat(stage, length)[order],
        replica=np.repeat(replica, length)[order],
        kind=np.concatenate([program.kinds for program in programs])[order],
        microbatch=np.concatenate([one.microbatches for one in programs])[order],
        chunk=np.concatenate([program.chunks for program in programs])[order],
        start=start[order],
        end=_joined(run.span_ends)[order],
    )
    multiplicity = np.repeat(actors.sizes, length)[order]
    _freeze(*spans, multiplicity)
    return spans, multiplicity


def collect_transfers(
    model: Model, folding: Folding, run: Run
) -> tuple[Transfers, IntArray]:
    """Return the messages of all channels simulated, and how many each stands for.

    In order of start; equal ones by flow number.
    """
    flows, channels = model.flows, folding.channels
    counts = np.array([arrivals.size for arrivals in run.arrivals], np.int64)
    start = _joined(run.departures)
    assert start.size == counts.sum(), "a message is under way at the end"
    order = np.argsort(start, kind="stable")
    shown = flows.kind[np.repeat(channels.first, counts)] != SIGNAL
    order = order[shown[order]]
    flow = np.repeat(channels.first, counts)[order]
    microbatch = np.concatenate([*_microbatches(model, folding.system), _NONE])
    transfers = Transfers(
        kind=flows.kind[flow],
        stage=flows.stage[flow],
        replica=flows.replica[flow],
        microbatch=microbatch[order],
        chunk=flows.chunk[flow],
        posted=_joined(run.posts)[order],
        start=start[order],
        end=_joined(run.arrivals)[order],
        num_bytes=flows.num_bytes[flow],
    )
    multiplicity = np.repeat(channels.sizes, counts)[order]
    _freeze(*transfers, multiplicity)
    return transfers, multiplicity


def _microbatches(model: Model, system: System) -> list[IntArray]:
    """Return the microbatch of each message of each channel, in order.

    The messages of a channel are posted by the same steps of all its senders, or by
    steps of no microbatch.
    """
    found = [_NONE] * system.num_bytes.size
    for program, counts in enumerate(num_posts(system.programs, system.slots.shape[1])):
        actors = np.flatnonzero(system.program == program)
        targets, posted = _posted(model.programs[program])
        for slot in np.flatnonzero(counts).tolist():
            sent = posted[targets == slot]
            for channel in system.slots[actors, slot].tolist():
                known = found[channel]
                # A receiver that says that it is ready has no microbatch.
                found[channel] = np.maximum(known, sent) if known.size else sent
    return found


def _posted(program: StageProgram) -> tuple[IntArray, IntArray]:
    """Return the slot that each step posts to, and the microbatch that it posts.

    That of the span that the step is part of, -1 for what is posted outside of any.
    """
    flags = program.steps.span
    opened = np.cumsum(flags & OPENS > 0)
    closes = flags & CLOSES > 0
    closed: IntArray = np.cumsum(closes) - closes
    spans = np.where(opened > closed, closed, -1)
    return program.steps.target, np.append(program.microbatches, -1)[spans]


def _joined(logs: Sequence[FloatArray]) -> FloatArray:
    return np.concatenate([*logs, np.zeros(0)])


def _freeze(*columns: NDArray[np.generic]) -> None:
    for values in columns:
        values.flags.writeable = False
