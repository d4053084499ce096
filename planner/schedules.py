"""Pipeline schedules: the order in which a stage works on its microbatches.

A schedule is a rule that writes a list of instructions for each stage; nothing else
limits what is in flight. The planner's recurrence and the simulator read the same
lists. To add a schedule, write the function of its instructions and of its
in-flight count, and add one entry to `SCHEDULES`; a pass of another kind (such as
the weight gradients of a zero-bubble schedule) takes the next number after
`BACKWARD`.

Letters: ``p`` stages, ``m`` microbatches, stage ``i`` from 0.

References
----------
.. [1] Huang et al., "GPipe: Efficient Training of Giant Neural Networks using
   Pipeline Parallelism", NeurIPS 2019, section 2.3.
.. [2] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
   Clusters Using Megatron-LM", SC 2021, section 2.2 (PipeDream-Flush, called 1F1B).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topologies.errors import InputError

IntArray = NDArray[np.int64]

FORWARD = 0
"""Kind of instruction: forward pass of one microbatch."""

BACKWARD = 1
"""Kind of instruction: backward pass of one microbatch."""


class Instructions(NamedTuple):
    """What one stage does, in order: arrays of one length."""

    kind: IntArray
    """`FORWARD` or `BACKWARD`."""

    microbatch: IntArray
    """From 0."""


class Program(NamedTuple):
    """The instructions of all stages, in compressed rows."""

    indptr: IntArray
    """Shape ``(p + 1,)``: stage ``i`` has positions ``indptr[i]:indptr[i + 1]``."""

    kind: IntArray
    """`FORWARD` or `BACKWARD`."""

    microbatch: IntArray
    """From 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A pipeline schedule."""

    name: str
    """As in scenarios and plans."""

    instructions: Callable[[int, int, int], Instructions]
    """``(stage, num_stages, num_microbatches)`` -> what the stage does."""

    in_flight: Callable[[int, int, int], int]
    """``(stage, num_stages, num_microbatches)`` -> the most microbatches whose
    activations the stage keeps at once."""

    def program(self, num_stages: int, num_microbatches: int) -> Program:
        """Return the instructions of all stages."""
        lists = [
            self.instructions(stage, num_stages, num_microbatches)
            for stage in range(num_stages)
        ]
        lengths = [0, *(one.kind.size for one in lists)]
        return Program(
            np.cumsum(lengths, dtype=np.int64),
            np.concatenate([one.kind for one in lists]),
            np.concatenate([one.microbatch for one in lists]),
        )


def find_schedule(name: str) -> Schedule:
    """Return the schedule of that name.

    Raises
    ------
    InputError
        If there is none.
    """
    if name not in SCHEDULES:
        expected = ", ".join(f'"{known}"' for known in SCHEDULES)
        raise InputError("no such schedule", got=name, expected=expected)
    return SCHEDULES[name]


def _one_f_one_b(stage: int, num_stages: int, num_microbatches: int) -> Instructions:
    """F_0..F_{w-1}; then F_{w+j}, B_j; then the last w B; w = min(m, p-1-i) [2]_."""
    warmup = min(num_microbatches, num_stages - 1 - stage)
    steady = num_microbatches - warmup
    kind = np.full(2 * num_microbatches, FORWARD, dtype=np.int64)
    microbatch = np.empty_like(kind)
    cooldown = warmup + 2 * steady
    kind[warmup + 1 : cooldown : 2] = BACKWARD
    kind[cooldown:] = BACKWARD
    microbatch[kind == FORWARD] = np.arange(num_microbatches)
    microbatch[kind == BACKWARD] = np.arange(num_microbatches)
    return Instructions(kind, microbatch)


def _one_f_one_b_in_flight(stage: int, num_stages: int, num_microbatches: int) -> int:
    return min(num_stages - stage, num_microbatches)


def _gpipe(_stage: int, _num_stages: int, num_microbatches: int) -> Instructions:
    """All forward passes, then all backward passes [1]_."""
    kind = np.repeat(np.array([FORWARD, BACKWARD]), num_microbatches)
    microbatch = np.tile(np.arange(num_microbatches), 2)
    return Instructions(kind, microbatch)


def _gpipe_in_flight(_stage: int, _num_stages: int, num_microbatches: int) -> int:
    return num_microbatches


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        "1f1b": Schedule(
            name="1f1b",
            instructions=_one_f_one_b,
            in_flight=_one_f_one_b_in_flight,
        ),
        "gpipe": Schedule(
            name="gpipe", instructions=_gpipe, in_flight=_gpipe_in_flight
        ),
    }
)
"""Name -> schedule."""
