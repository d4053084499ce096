"""Write a replay as a Chrome trace, the JSON that Perfetto and chrome://tracing open.

A process is a stage; its threads are the compute stream, the two directions in which
each of its chunks sends, and its collectives. A slice of a sending thread lasts from
the first byte's leaving to the message's arrival, or to the next message's start if
that comes first. Arrows lead from a message to the pass that works on it. Slices are
numbered by microbatch, and where stages have several chunks by chunk too: ``F 3.1`` is
the forward pass of microbatch 3 through chunk 1. Moments are rounded to nanoseconds,
the resolution of Perfetto.

Letters: ``p`` stages, ``v`` chunks of each.

References
----------
.. [1] Google, "Trace Event Format" (the JSON object form; X, M, C, s and f events; flow
   ends bind to the enclosing slice with ``"bp": "e"``).
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.outcome import SPAN_KINDS, TRANSFER_KINDS, Replay
from nestsim.simulator.trace_threads import Threads

IntArray = NDArray[np.int64]
Event = dict[str, Any]

_SHORT_NAMES = ("F", "B", "optimizer")
_ACTIVATION = TRANSFER_KINDS.index("activation")
_GRADIENT = TRANSFER_KINDS.index("gradient")


class _Track(NamedTuple):
    """Slices of one kind, which do not overlap within a stage, replica and kind."""

    name: str
    category: str
    thread: IntArray
    stage: IntArray
    replica: IntArray
    microbatch: IntArray
    chunk: IntArray
    begin: IntArray
    """[ns]"""
    length: IntArray
    """[ns]"""


def write_chrome_trace(
    replay: Replay, path: Path, *, max_events: int = 100_000
) -> None:
    """Write a trace file; the same replay gives the same bytes.

    All replicas are shown if that takes at most a quarter of the events allowed, else
    the first one; of what still does not fit, the earliest part. ``otherData`` in the
    file says what was left out.

    Parameters
    ----------
    replay
        What happened.
    path
        File to write.
    max_events
        The most events in the file, names of processes and threads apart.
    """
    num_replicas = int(replay.spans.replica.max(initial=0)) + 1
    left_out = []
    shown = num_replicas
    if num_replicas > 1 and _most_events(replay) > max_events // 4:
        shown = 1
        left_out.append(f"replicas 1 to {num_replicas - 1}")
    events = _events(replay, shown, max_events)
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
        "traceEvents": [*_names(replay, shown), *_with_heads(kept)],
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


def _most_events(replay: Replay) -> int:
    """Return an upper bound of the events of all replicas."""
    counters = sum(len(timeline.times) for timeline in replay.memory)
    return replay.spans.start.size + 3 * replay.transfers.start.size + counters


def _events(replay: Replay, shown: int, max_events: int) -> list[Event]:
    """Return slices, counters and arrows, in order of time; slices before arrows.

    Slices that surely lie beyond the first ``max_events`` are not even built.
    """
    spans, transfers = replay.spans, replay.transfers
    work = np.flatnonzero(spans.replica < shown)[: max_events + 1]
    messages = np.flatnonzero(transfers.replica < shown)[: max_events + 1]
    compute = list(_compute_tracks(replay, work))
    sends = list(_transfer_tracks(replay, messages))
    numbered = _threads(replay).num_chunks > 1
    events = [
        event for track in (*compute, *sends) for event in _slices(track, numbered)
    ]
    events.extend(_counters(replay))
    events.extend(_arrows(compute, sends, _num_stages(replay)))
    return sorted(events, key=_order)


def _order(event: Event) -> tuple[float, int]:
    return event["ts"], "XCsf".index(event["ph"])


def _with_heads(events: list[Event]) -> list[Event]:
    """Drop the arrows that have lost their head."""
    heads = {event["id"] for event in events if event["ph"] == "f"}
    return [event for event in events if event["ph"] != "s" or event["id"] in heads]


def _num_stages(replay: Replay) -> int:
    return int(replay.spans.stage.max(initial=0)) + 1


def _threads(replay: Replay) -> Threads:
    return Threads(int(replay.spans.chunk.max(initial=0)) + 1)


def _nanoseconds(times: NDArray[np.float64]) -> IntArray:
    return np.rint(times * 1e9).astype(np.int64)


def _compute_tracks(replay: Replay, chosen: IntArray) -> Iterator[_Track]:
    spans, threads = replay.spans, _threads(replay)
    for kind, name in enumerate(_SHORT_NAMES):
        here = chosen[spans.kind[chosen] == kind]
        begin, end = _nanoseconds(spans.start[here]), _nanoseconds(spans.end[here])
        yield _Track(
            name,
            SPAN_KINDS[kind],
            threads.compute(spans.replica[here]),
            spans.stage[here],
            spans.replica[here],
            spans.microbatch[here],
            spans.chunk[here],
            begin,
            end - begin,
        )


def _transfer_tracks(replay: Replay, chosen: IntArray) -> Iterator[_Track]:
    transfers, threads = replay.transfers, _threads(replay)
    for kind, name in enumerate(TRANSFER_KINDS):
        here = chosen[transfers.kind[chosen] == kind]
        stage, replica = transfers.stage[here], transfers.replica[here]
        chunk = transfers.chunk[here]
        begin = _nanoseconds(transfers.start[here])
        end = _nanoseconds(transfers.end[here])
        thread = threads.transfer(kind, replica, chunk)
        # One thread of one stage is one channel.
        channel = stage * (thread.max(initial=0) + 1) + thread
        yield _Track(
            name,
            name,
            thread,
            stage,
            replica,
            transfers.microbatch[here],
            chunk,
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


def _slices(track: _Track, numbered: bool) -> Iterator[Event]:
    """Return the slices of a track; ``numbered``: chunks are told apart."""
    for thread, stage, replica, microbatch, chunk, begin, length in zip(
        *(column.tolist() for column in track[2:]), strict=True
    ):
        name, args = track.name, {}
        if microbatch >= 0:
            name += f" {microbatch}.{chunk}" if numbered else f" {microbatch}"
            args = {"microbatch": microbatch}
            args |= {"chunk": chunk} if numbered else {}
        if replica >= 0:
            args["replica"] = replica
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


def _counters(replay: Replay) -> Iterator[Event]:
    for stage, timeline in enumerate(replay.memory):
        times = _nanoseconds(np.array(timeline.times)).tolist()
        for moment, total in zip(times, timeline.total, strict=True):
            yield {
                "ph": "C",
                "name": "memory",
                "pid": stage,
                "tid": 0,
                "ts": moment / 1000,
                "args": {"bytes": total},
            }


def _arrows(
    compute: list[_Track], sends: list[_Track], num_stages: int
) -> Iterator[Event]:
    """Lead from each message to its pass; slices too short to be seen have none."""
    number = 0
    for kind, offset in ((_ACTIVATION, 1), (_GRADIENT, -1)):
        passes = dict(_places(compute[kind], num_stages, 0))
        for key, place in _places(sends[kind], num_stages, offset):
            if key not in passes:
                continue
            number += 1
            common = {"name": sends[kind].name, "cat": "message", "id": number}
            yield {"ph": "s", **common, **place}
            yield {"ph": "f", "bp": "e", **common, **passes[key]}


def _places(
    track: _Track, num_stages: int, offset: int
) -> Iterator[tuple[tuple[int, int, int], dict[str, float]]]:
    """Return where each visible slice begins, by receiver, replica and microbatch.

    The receiver is ``offset`` virtual stages from the track's own.
    """
    for thread, stage, replica, microbatch, chunk, begin, length in zip(
        *(column.tolist() for column in track[2:]), strict=True
    ):
        if length > 0:
            place = {"pid": stage, "tid": thread, "ts": begin / 1000}
            receiver = chunk * num_stages + stage + offset
            yield (receiver, replica, microbatch), place


def _names(replay: Replay, shown: int) -> Iterable[Event]:
    """Name processes and threads, and put them in order."""
    threads = _threads(replay)
    for stage in range(_num_stages(replay)):
        yield _metadata("process_name", stage, 0, name=f"stage {stage}")
        yield _metadata("process_sort_index", stage, 0, sort_index=stage)
        yield _metadata("thread_name", stage, threads.collectives, name="collectives")
        for replica in range(shown):
            suffix = f", replica {replica}" if shown > 1 else ""
            for column, name in enumerate(threads.names()):
                thread = replica * threads.per_replica + column
                yield _metadata("thread_name", stage, thread, name=name + suffix)
                yield _metadata("thread_sort_index", stage, thread, sort_index=thread)


def _metadata(kind: str, stage: int, thread: int, **args: object) -> Event:
    return {"ph": "M", "name": kind, "pid": stage, "tid": thread, "ts": 0, "args": args}
