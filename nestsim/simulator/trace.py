"""Write a replay as a Chrome trace, the JSON that Perfetto and chrome://tracing open.

A process is a stage. Every replica has a thread for compute, one for each direction and
chunk in which it sends, since those messages do not wait for each other, and one for
each kind of collective that it takes part in without other replicas. Collectives of
several replicas have no replica: they have threads of their own, one for each kind,
before those of replica 0. Counters show the memory of each stage, and in a process of
their own how much of some links is in use.

A slice of a sending thread lasts from the first byte's leaving to the message's
arrival, or to the next message's start if that comes first. Arrows lead from a message
to the pass that works on it. Slices are numbered by microbatch, and where stages have
several chunks by chunk too: ``F 3.1`` is the forward pass of microbatch 3 through chunk
1. Moments are rounded to nanoseconds, the resolution of Perfetto. Of replicas that are
alike, the recorded one represents the others, and the names of its threads say how
many; so does ``alike`` at collectives of several replicas. Slices are kept as columns,
kind by kind.

Letters: ``p`` stages, ``v`` chunks of each.

References
----------
.. [1] Google, "Trace Event Format" (the JSON object form; X, M, C, s and f events; flow
   ends bind to the enclosing slice with ``"bp": "e"``).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.system import SPAN_KINDS, TRANSFER_KINDS, Replay
from planner.step.instructions import VirtualStages
from planner.step.schedules import SCHEDULES
from topologies.arrays import FloatArray, IntArray

_DIRECTIONS = {
    TRANSFER_KINDS.index("activation"): "send activations",
    TRANSFER_KINDS.index("gradient"): "send gradients",
}
"""Kind of message between stages -> name of its threads."""

_COLLECTIVES = tuple(
    kind for kind in range(len(TRANSFER_KINDS)) if kind not in _DIRECTIONS
)
"""Kinds of collectives."""


class Threads(NamedTuple):
    """Numbers and names of the threads of one stage."""

    num_chunks: int
    """Chunks ``v`` of each stage."""

    @property
    def per_replica(self) -> int:
        """Numbers that each replica takes."""
        return 1 + len(_DIRECTIONS) * self.num_chunks + len(_COLLECTIVES)

    def compute(self, replica: IntArray) -> IntArray:
        """Return the threads of passes and optimizer steps."""
        return len(_COLLECTIVES) + replica * self.per_replica

    def transfer(self, kind: int, replica: IntArray, chunk: IntArray) -> IntArray:
        """Return the threads of messages of one kind, or of collectives."""
        behind = self.compute(replica) + 1
        if kind in _DIRECTIONS:
            first = list(_DIRECTIONS).index(kind) * self.num_chunks
            return behind + first + chunk
        column = _COLLECTIVES.index(kind)
        first = len(_DIRECTIONS) * self.num_chunks
        return np.where(replica < 0, column, behind + first + column)

    def name(self, thread: int) -> tuple[str, int]:
        """Return what a thread shows, and the replica; -1 for one of several."""
        if thread < len(_COLLECTIVES):
            return f"{TRANSFER_KINDS[_COLLECTIVES[thread]]}, replicas together", -1
        replica, column = divmod(thread - len(_COLLECTIVES), self.per_replica)
        if column == 0:
            return "compute", replica
        direction, chunk = divmod(column - 1, self.num_chunks)
        if direction < len(_DIRECTIONS):
            suffix = f", chunk {chunk}" if self.num_chunks > 1 else ""
            return list(_DIRECTIONS.values())[direction] + suffix, replica
        kind = _COLLECTIVES[column - 1 - len(_DIRECTIONS) * self.num_chunks]
        return TRANSFER_KINDS[kind], replica


_SHORT_NAMES = ("F", "B", "W", "optimizer")
"""Names of slices, by kind of span."""


class Track(NamedTuple):
    """Slices of one kind, which do not overlap within a stage, replica and kind."""

    name: str
    """Name of the track."""

    category: str
    """Category of its slices."""

    thread: IntArray
    """Thread of each slice."""

    stage: IntArray
    """Stage of each slice."""

    replica: IntArray
    """Replica of each slice."""

    microbatch: IntArray
    """Microbatch of each slice."""

    chunk: IntArray
    """Chunk of each slice."""

    alike: IntArray
    """Collectives that it stands for, where that is said at the slice; else 1."""
    begin: IntArray
    """Moment at which each slice begins [ns]."""
    length: IntArray
    """Duration of each slice [ns]."""


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


Event = dict[str, Any]
"""Event of a trace, as JSON."""

_ACTIVATION = TRANSFER_KINDS.index("activation")
_GRADIENT = TRANSFER_KINDS.index("gradient")
_NO_LINKS: Mapping[str, FloatArray] = MappingProxyType({})


def write_chrome_trace(
    replay: Replay,
    path: Path,
    *,
    max_events: int = 100_000,
    link_use: Mapping[str, FloatArray] = _NO_LINKS,
) -> None:
    """Write a trace file; the same replay gives the same bytes.

    All replicas recorded are shown if that takes no more events than allowed, else the
    first one; of what still does not fit, the earliest part.
    ``otherData`` in the file says what was left out.

    Parameters
    ----------
    replay
        What happened.
    path
        File to write.
    max_events
        The most events in the file, names of processes and threads apart.
    link_use
        Links to show: name -> share of the capacity in use in each of the time bins of
        ``replay.links``.
    """
    num_replicas = replay.representative.shape[1]
    left_out = []
    shown = num_replicas
    if replay.num_classes < replay.num_actors:
        alike = replay.num_actors - replay.num_classes
        left_out.append(f"{alike} stages of replicas that are alike to others")
    if num_replicas > 1 and _most_events(replay, link_use) > max_events:
        shown = 1
        left_out.append(f"replicas 1 to {num_replicas - 1}")
    events = _events(replay, shown, max_events, link_use)
    kept = events[:max_events]
    if len(kept) < len(events):
        left_out.append(f"what starts after {kept[-1]['ts'] if kept else 0} us")
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "left_out": "; ".join(left_out) or "nothing",
            "replicas_shown": shown,
            "replicas": num_replicas,
        },
        "traceEvents": [*_names(replay, shown, kept), *_with_heads(kept)],
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


def _most_events(replay: Replay, link_use: Mapping[str, FloatArray]) -> int:
    """Return an upper bound of the events of all replicas."""
    counters = sum(len(timeline.times) for timeline in replay.memory)
    counters += sum(shares.size + 1 for shares in link_use.values())
    sent = replay.transfers.kind
    arrows = 2 * int(np.isin(sent, (_ACTIVATION, _GRADIENT)).sum())
    return replay.spans.start.size + sent.size + arrows + counters


def _events(
    replay: Replay, shown: int, max_events: int, link_use: Mapping[str, FloatArray]
) -> list[Event]:
    """Return slices, counters and arrows, in order of time; slices before arrows.

    Slices that surely lie beyond the first ``max_events`` are not even built.
    """
    spans, transfers = replay.spans, replay.transfers
    work = np.flatnonzero(spans.replica < shown)[: max_events + 1]
    messages = np.flatnonzero(transfers.replica < shown)[: max_events + 1]
    compute = list(compute_tracks(replay, work))
    sends = list(transfer_tracks(replay, messages))
    numbered = threads_of(replay).num_chunks > 1
    events = [
        event for track in (*compute, *sends) for event in _slices(track, numbered)
    ]
    events.extend(_memory_counters(replay))
    events.extend(_link_counters(replay, link_use))
    events.extend(_arrows(compute, sends, replay))
    return sorted(events, key=_order)


def _order(event: Event) -> tuple[float, int]:
    return event["ts"], "XCsf".index(event["ph"])


def _with_heads(events: list[Event]) -> list[Event]:
    """Drop the arrows that have lost their head."""
    heads = {event["id"] for event in events if event["ph"] == "f"}
    return [event for event in events if event["ph"] != "s" or event["id"] in heads]


def _num_stages(replay: Replay) -> int:
    return int(replay.spans.stage.max(initial=0)) + 1


def _slices(track: Track, numbered: bool) -> Iterator[Event]:
    """Return the slices of a track; ``numbered``: chunks are told apart."""
    for thread, stage, replica, microbatch, chunk, alike, begin, length in zip(
        *(column.tolist() for column in track[2:]), strict=True
    ):
        name, args = track.name, {}
        if microbatch >= 0:
            name += f" {microbatch}.{chunk}" if numbered else f" {microbatch}"
            args = {"microbatch": microbatch}
            args |= {"chunk": chunk} if numbered else {}
        if replica >= 0:
            args["replica"] = replica
        if alike > 1:
            args["alike"] = alike
        yield {
            "ph": "X",
            "name": name,
            "cat": track.category,
            "pid": stage,
            "tid": thread,
            "ts": begin / 1000,
            "dur": length / 1000,
            "args": args,
        }


def _memory_counters(replay: Replay) -> Iterator[Event]:
    for stage, timeline in enumerate(replay.memory):
        times = nanoseconds(np.array(timeline.times)).tolist()
        for moment, total in zip(times, timeline.total, strict=True):
            yield {
                "ph": "C",
                "name": "memory",
                "pid": stage,
                "tid": 0,
                "ts": moment / 1000,
                "args": {"bytes": total},
            }


def _link_counters(
    replay: Replay, link_use: Mapping[str, FloatArray]
) -> Iterator[Event]:
    """Return each link's use where it changes, in percent; none after the step."""
    moments = nanoseconds(replay.links.bin_edges).tolist()
    for name, shares in link_use.items():
        before = -1.0
        for moment, share in zip(moments, [*shares.tolist(), 0.0], strict=True):
            percent = round(100.0 * share, 3)
            if percent != before:
                yield {
                    "ph": "C",
                    "name": name,
                    "pid": _num_stages(replay),
                    "tid": 0,
                    "ts": moment / 1000,
                    "args": {"percent": percent},
                }
            before = percent


def _arrows(
    compute: list[Track], sends: list[Track], replay: Replay
) -> Iterator[Event]:
    """Lead from each message to its pass; slices too short to be seen have none."""
    number = 0
    virtual = SCHEDULES[replay.schedule].virtual_stages(
        _num_stages(replay), int(replay.spans.chunk.max(initial=0)) + 1
    )
    for kind, offset in ((_ACTIVATION, 1), (_GRADIENT, -1)):
        passes = dict(_places(compute[kind], replay.representative, virtual, 0))
        for key, place in _places(sends[kind], replay.representative, virtual, offset):
            if key not in passes:
                continue
            number += 1
            common = {"name": sends[kind].name, "cat": "message", "id": number}
            yield {"ph": "s", **common, **place}
            yield {"ph": "f", "bp": "e", **common, **passes[key]}


def _places(
    track: Track, representative: IntArray, virtual: VirtualStages, offset: int
) -> Iterator[tuple[tuple[int, int, int], dict[str, float]]]:
    """Return where each visible slice begins, by receiver, replica and microbatch.

    The receiver is ``offset`` virtual stages from the track's own; the replica is the
    one that stands for it there.
    """
    seen = track.length > 0
    thread, stage, replica, microbatch, chunk, _, begin, _ = (
        column[seen] for column in track[2:]
    )
    receiver = virtual.number[stage, chunk] + offset
    recorded = representative[virtual.stage[receiver], replica]
    keys = zip(receiver.tolist(), recorded.tolist(), microbatch.tolist(), strict=True)
    slices = zip(stage.tolist(), thread.tolist(), begin.tolist(), strict=True)
    for key, (process, row, moment) in zip(keys, slices, strict=True):
        yield key, {"pid": process, "tid": row, "ts": moment / 1000}


def _names(replay: Replay, shown: int, events: list[Event]) -> Iterable[Event]:
    """Name the processes and threads of some events, and put them in order."""
    threads = threads_of(replay)
    num_stages = _num_stages(replay)
    used = {(event["pid"], event["tid"]) for event in events}
    for process in range(num_stages + (num_stages in {pid for pid, _ in used})):
        name = f"stage {process}" if process < num_stages else "links"
        yield _metadata("process_name", process, 0, name=name)
        yield _metadata("process_sort_index", process, 0, sort_index=process)
    slices = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    for stage, thread in sorted(slices):
        name, replica = threads.name(thread)
        if shown > 1 and replica >= 0:
            name += f", replica {replica}"
            count = int((replay.representative[stage] == replica).sum())
            name += f" and {count - 1} alike" if count > 1 else ""
        yield _metadata("thread_name", stage, thread, name=name)
        yield _metadata("thread_sort_index", stage, thread, sort_index=thread)


def _metadata(kind: str, stage: int, thread: int, **args: object) -> Event:
    return {"ph": "M", "name": kind, "pid": stage, "tid": thread, "ts": 0, "args": args}
