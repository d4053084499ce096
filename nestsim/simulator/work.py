"""What the simulator is given: one training step, placed.

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
