"""Slices of a Chrome trace as columns: passes and messages, kind by kind."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.outcome import SPAN_KINDS, TRANSFER_KINDS, Replay
from nestsim.simulator.trace_threads import Threads
from topologies.arrays import IntArray

_SHORT_NAMES = ("F", "B", "W", "optimizer")


class Track(NamedTuple):
    """Slices of one kind, which do not overlap within a stage, replica and kind."""

    name: str
    category: str
    thread: IntArray
    stage: IntArray
    replica: IntArray
    microbatch: IntArray
    chunk: IntArray
    alike: IntArray
    """Collectives that it stands for, where that is said at the slice; else 1."""
    begin: IntArray
    """[ns]"""
    length: IntArray
    """[ns]"""


def threads_of(replay: Replay) -> Threads:
    """Return the threads of each stage of a replay."""
    return Threads(int(replay.spans.chunk.max(initial=0)) + 1)


def nanoseconds(times: NDArray[np.float64]) -> IntArray:
    """Return moments in whole nanoseconds."""
    return np.rint(times * 1e9).astype(np.int64)


def compute_tracks(replay: Replay, chosen: IntArray) -> Iterator[Track]:
    """Return the chosen rows of the spans, a track for each kind."""
    spans, threads = replay.spans, threads_of(replay)
    for kind, name in enumerate(_SHORT_NAMES):
        here = chosen[spans.kind[chosen] == kind]
        begin, end = nanoseconds(spans.start[here]), nanoseconds(spans.end[here])
        yield Track(
            name,
            SPAN_KINDS[kind],
            threads.compute(spans.replica[here]),
            spans.stage[here],
            spans.replica[here],
            spans.microbatch[here],
            spans.chunk[here],
            np.ones_like(begin),
            begin,
            end - begin,
        )


def transfer_tracks(replay: Replay, chosen: IntArray) -> Iterator[Track]:
    """Return the chosen rows of the transfers, a track for each kind."""
    transfers, threads = replay.transfers, threads_of(replay)
    for kind, name in enumerate(TRANSFER_KINDS):
        here = chosen[transfers.kind[chosen] == kind]
        stage, replica = transfers.stage[here], transfers.replica[here]
        chunk = transfers.chunk[here]
        begin = nanoseconds(transfers.start[here])
        end = nanoseconds(transfers.end[here])
        thread = threads.transfer(kind, replica, chunk)
        alike = np.where(replica < 0, replay.transfer_multiplicity[here], 1)
        # One thread of one stage is one channel.
        channel = stage * (thread.max(initial=0) + 1) + thread
        yield Track(
            name,
            name,
            thread,
            stage,
            replica,
            transfers.microbatch[here],
            chunk,
            alike,
            begin,
            _until_next(channel, begin, end) - begin,
        )


def _until_next(channel: IntArray, begin: IntArray, end: IntArray) -> IntArray:
    """End each slice where the next one of its channel begins, if that is earlier."""
    order = np.lexsort((np.arange(channel.size), channel))
    cut = end[order].copy()
    same = channel[order][1:] == channel[order][:-1]
    cut[:-1][same] = np.minimum(cut[:-1][same], begin[order][1:][same])
    result = np.empty_like(cut)
    result[order] = cut
    return result
