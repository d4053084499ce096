"""What the simulator gives back: everything that happened in one training step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Spans(NamedTuple):
    """Work on compute streams, in order of start: read-only arrays of one length."""

    stage: IntArray
    replica: IntArray
    kind: IntArray
    """An index into `SPAN_KINDS`."""
    microbatch: IntArray
    """-1 where there is none."""
    chunk: IntArray
    """-1 where there is none."""
    start: FloatArray
    end: FloatArray


SPAN_KINDS = ("forward", "backward", "optimizer")


class Transfers(NamedTuple):
    """Stage-to-stage messages and collectives, in order of start."""

    kind: IntArray
    """An index into `TRANSFER_KINDS`."""
    stage: IntArray
    """The sending stage; for collectives the stage that it belongs to."""
    replica: IntArray
    """-1 for collectives."""
    microbatch: IntArray
    """-1 for collectives."""
    chunk: IntArray
    """The sending chunk; -1 for collectives."""
    posted: FloatArray
    """When the sender had it ready [s]."""
    start: FloatArray
    """When its first byte left (a channel sends one message at a time) [s]."""
    end: FloatArray
    """When the receiver had it, latency included [s]."""
    num_bytes: FloatArray
    """Per lane or ring member [byte]."""


TRANSFER_KINDS = ("activation", "gradient", "reduce", "gather", "tied")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTimeline:
    """Memory of one device of a stage over the step (replicas are alike in bytes)."""

    times: tuple[float, ...]
    """Moments of change, rising [s]."""

    total: tuple[float, ...]
    """Bytes held from that moment on."""

    peak: float
    """The largest total [byte]."""

    peak_time: float
    """First moment at which it is reached [s]."""

    peak_parts: Mapping[str, float]
    """What the peak is made of [byte]: the static parts, ``"activations"``,
    ``"working"``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkUse:
    """Traffic on every link of the network."""

    num_bytes: FloatArray
    """Carried in the step, shape ``(E,)`` [byte]."""

    bin_edges: FloatArray
    """Time bins, shape ``(K + 1,)`` [s]."""

    rates: FloatArray
    """Mean load of the links in `link_ids` per bin, shape ``(H, K)`` [byte/s]."""

    link_ids: IntArray
    """The links that `rates` describes: those that carried anything, shape ``(H,)``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """Everything that happened in one simulated training step."""

    iteration_time: float
    """Until the last stage has finished its last duty [s]."""

    pipeline_time: float
    """Until the last backward pass has ended [s]."""

    spans: Spans
    """Compute."""

    transfers: Transfers
    """Communication."""

    memory: tuple[MemoryTimeline, ...]
    """Per stage: the replica with the largest peak, the first one of equals."""

    links: LinkUse
    """Link traffic."""

    num_events: int
    """Events that the engine processed."""

    folded: tuple[str, ...]
    """What was not simulated event by event, one sentence each."""
