"""What the simulator is given, and what it gives back.

Letters: ``p`` stages (0 is the first, with the embedding), ``v`` chunks per stage (1
without interleaving), ``d`` replicas, ``t`` lanes (tensor- and context-parallel ranks),
``m`` microbatches, ``E`` links. An *actor* is one stage of one replica: its lanes work
in lock-step. Virtual stage ``c p + i`` is chunk ``c`` of stage ``i``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class RingPhase(NamedTuple):
    """One phase of a collective of one stage: rings that turn in lock-step."""

    rings: IntArray
    """Shape ``(R, n)``: device ``rings[r, k]`` sends to ``rings[r, (k + 1) % n]``."""

    bytes_per_member: float
    """What each member sends through its port in the whole phase [byte]."""

    num_steps: int
    """Rounds; each pays the ring's largest route latency once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of one device of one stage, by what it is for [byte]."""

    static: Mapping[str, float]
    """Held for the whole step: ``"weights"``, ``"gradients"``, ``"optimizer"``,
    ``"buffers"``."""

    saved_per_microbatch: tuple[float, ...]
    """For each chunk: allocated when its forward pass starts, released when the
    backward pass of the same chunk and microbatch ends."""

    forward_working: float
    """Allocated when a forward pass starts, released when it ends."""

    backward_working: float
    """Allocated when a backward pass starts, released when it ends (with recompute:
    the largest layer's activations)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineWork:
    """One training step, placed: everything that the replay needs beside the network.

    All durations include what is folded into them (tensor-parallel collectives,
    per-microbatch ZeRO gathers); `folded` says so in words.
    """

    schedule: str
    """A name of `planner.schedules.SCHEDULES`."""

    num_chunks: int
    """Chunks ``v`` of each stage."""

    num_microbatches: int
    """Microbatches ``m`` of each replica."""

    devices: IntArray
    """Device numbers, shape ``(p, d, t)``."""

    forward_time: FloatArray
    """Of one microbatch in each virtual stage, shape ``(v p,)`` [s]."""

    backward_time: FloatArray
    """Of one microbatch in each virtual stage, shape ``(v p,)`` [s]."""

    boundary_bytes: FloatArray
    """What each lane sends over the boundary after each virtual stage, forward; the
    same comes back, shape ``(v p - 1,)`` [byte]."""

    reduce_phases: tuple[tuple[RingPhase, ...], ...]
    """Per stage: gradient collective after the last backward pass, before the
    optimizer step; empty with one replica."""

    optimizer_time: FloatArray
    """Optimizer step, shape ``(p,)`` [s]."""

    gather_phases: tuple[tuple[RingPhase, ...], ...]
    """Per stage: parameter all-gather after the optimizer step (ZeRO-1 and 2)."""

    tied_phases: tuple[RingPhase, ...]
    """Collective of the tied embedding between the first and the last stage: starts
    when the gradient collectives of both are done, and both wait for it before their
    optimizer step; empty if nothing is tied."""

    memory: tuple[StageMemory, ...]
    """Per stage."""

    folded: tuple[str, ...]
    """What is part of the durations instead of being simulated, one sentence each."""


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
