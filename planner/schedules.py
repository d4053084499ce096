"""Pipeline schedules: the order in which a stage works on its microbatches.

A schedule is a rule that writes a list of instructions for each stage; nothing else
limits what is in flight. The planner's recurrence and the simulator read the same
lists. To add a schedule, write the function of its instructions and of its
in-flight count, and add one entry to `SCHEDULES`; a pass of another kind (such as
the weight gradients of a zero-bubble schedule) takes the next number after
`BACKWARD`.

Letters: ``p`` stages, ``m`` microbatches, ``v`` chunks of each stage, stage ``i`` and
chunk ``c`` from 0. Virtual stage ``c p + i`` is chunk ``c`` of stage ``i``.

References
----------
.. [1] Huang et al., "GPipe: Efficient Training of Giant Neural Networks using
   Pipeline Parallelism", NeurIPS 2019, section 2.3.
.. [2] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
   Clusters Using Megatron-LM", SC 2021, section 2.2: 2.2.1 PipeDream-Flush, called
   1F1B, and 2.2.2 interleaved stages.
.. [3] Megatron-LM, ``megatron/core/pipeline_parallel/schedules.py``, functions
   ``get_pp_rank_microbatches`` and ``get_schedule_table``, groups of ``p``
   microbatches. Up to 2023 it ran all forward passes first where ``m = p``.
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
"""Kind of instruction: forward pass of one microbatch through one chunk."""

BACKWARD = 1
"""Kind of instruction: backward pass of one microbatch through one chunk."""


class Instructions(NamedTuple):
    """What one stage does, in order: arrays of one length."""

    kind: IntArray
    """`FORWARD` or `BACKWARD`."""

    microbatch: IntArray
    """From 0."""

    chunk: IntArray
    """From 0."""


class Program(NamedTuple):
    """The instructions of all stages, in compressed rows."""

    indptr: IntArray
    """Shape ``(p + 1,)``: stage ``i`` has positions ``indptr[i]:indptr[i + 1]``."""

    kind: IntArray
    """`FORWARD` or `BACKWARD`."""

    microbatch: IntArray
    """From 0."""

    chunk: IntArray
    """From 0."""


class _Sizes(NamedTuple):
    p: int
    m: int
    v: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A pipeline schedule.

    Every method refuses, with `InputError`, sizes that `check` refuses.
    """

    name: str
    """As in scenarios and plans."""

    interleaves: bool
    """Whether stages consist of several chunks: if so there are at least two stages
    and two chunks, and microbatches come in groups of ``p``; if not there is one
    chunk."""

    write: Callable[[int, _Sizes], Instructions]
    """``(stage, sizes)`` -> what the stage does."""

    count: Callable[[int, _Sizes], int]
    """``(stage, sizes)`` -> the most activations that the stage keeps at once."""

    def check(
        self, num_stages: int, num_microbatches: int, num_chunks: int = 1
    ) -> None:
        """Refuse sizes that the schedule cannot have.

        Raises
        ------
        InputError
            If so, with what is expected.
        """
        if not self.interleaves:
            _expect(num_chunks == 1, self.name, "chunks per stage", num_chunks, "1")
            return
        _expect(num_stages >= 2, self.name, "pipeline stages", num_stages, "2 or more")
        _expect(num_chunks >= 2, self.name, "chunks per stage", num_chunks, "2 or more")
        _expect(
            num_microbatches % num_stages == 0,
            self.name,
            "microbatches",
            num_microbatches,
            f"a multiple of the {num_stages} stages",
        )

    def instructions(
        self, stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 1
    ) -> Instructions:
        """Return what a stage does, in order."""
        self.check(num_stages, num_microbatches, num_chunks)
        return self.write(stage, _Sizes(num_stages, num_microbatches, num_chunks))

    def in_flight(
        self, stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 1
    ) -> int:
        """Return the most activations that a stage keeps at once.

        An activation is what one chunk saves of one microbatch.
        """
        self.check(num_stages, num_microbatches, num_chunks)
        return self.count(stage, _Sizes(num_stages, num_microbatches, num_chunks))

    def held(
        self, stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 1
    ) -> IntArray:
        """Return how many activations of each chunk a stage keeps when it is fullest.

        Distinct rows, shape ``(n, v)``: what is kept whenever a backward pass follows
        a forward pass. It is never more in between, so that ``max(held @ saved)`` is
        exactly the most that is kept at once, whatever each chunk saves. The largest
        sum of a row is `in_flight`.
        """
        kind, _, chunk = self.instructions(
            stage, num_stages, num_microbatches, num_chunks
        )
        change = np.zeros((kind.size, num_chunks), dtype=np.int64)
        change[np.arange(kind.size), chunk] = np.where(kind == FORWARD, 1, -1)
        fullest = (kind[:-1] == FORWARD) & (kind[1:] == BACKWARD)
        alive: IntArray = np.cumsum(change, axis=0)[:-1][fullest]
        return np.unique(alive, axis=0)

    def program(
        self, num_stages: int, num_microbatches: int, num_chunks: int = 1
    ) -> Program:
        """Return the instructions of all stages."""
        lists = [
            self.instructions(stage, num_stages, num_microbatches, num_chunks)
            for stage in range(num_stages)
        ]
        lengths = [0, *(one.kind.size for one in lists)]
        return Program(
            np.cumsum(lengths, dtype=np.int64),
            *(np.concatenate(columns) for columns in zip(*lists, strict=True)),
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


def _expect(holds: bool, schedule: str, what: str, got: int, expected: str) -> None:
    if not holds:
        raise InputError(
            f"{schedule} does not work with this number of {what}",
            got=got,
            expected=expected,
        )


def _warm_up_then_alternate(
    forward: tuple[IntArray, IntArray], backward: tuple[IntArray, IntArray], warmup: int
) -> Instructions:
    """Return ``warmup`` forward passes, then pairs F, B, then the last backward ones.

    Both orders are given as microbatches and chunks, ``N`` of each.
    """
    num_passes = forward[0].size
    kind = np.full(2 * num_passes, FORWARD, dtype=np.int64)
    cooldown = 2 * num_passes - warmup
    kind[warmup + 1 : cooldown : 2] = BACKWARD
    kind[cooldown:] = BACKWARD
    columns = np.empty((2, kind.size), dtype=np.int64)
    columns[:, kind == FORWARD] = forward
    columns[:, kind == BACKWARD] = backward
    microbatch, chunk = columns
    return Instructions(kind, microbatch, chunk)


def _in_turn(sizes: _Sizes) -> tuple[IntArray, IntArray]:
    return np.arange(sizes.m), np.zeros(sizes.m, dtype=np.int64)


def _one_f_one_b(stage: int, sizes: _Sizes) -> Instructions:
    """F_0..F_{w-1}; then F_{w+j}, B_j; then the last w B; w = min(m, p-1-i) [2]_."""
    order = _in_turn(sizes)
    return _warm_up_then_alternate(order, order, min(sizes.m, sizes.p - 1 - stage))


def _one_f_one_b_in_flight(stage: int, sizes: _Sizes) -> int:
    return min(sizes.p - stage, sizes.m)


def _gpipe(_stage: int, sizes: _Sizes) -> Instructions:
    """All forward passes, then all backward passes [1]_."""
    order = _in_turn(sizes)
    return _warm_up_then_alternate(order, order, sizes.m)


def _gpipe_in_flight(_stage: int, sizes: _Sizes) -> int:
    return sizes.m


def _interleaved(stage: int, sizes: _Sizes) -> Instructions:
    """As 1F1B, with w = min(m v, 2 (p-1-i) + (v-1) p) [2]_, [3]_.

    Microbatches go in groups of p through the first chunk, the second, and so on:
    forward pass ``n`` is of microbatch ``(n div p v) p + n mod p`` and chunk
    ``(n mod p v) div p``; backward pass ``n`` of the same microbatch and of the chunk
    as far from the last one as that is from the first.
    """
    p, m, v = sizes
    group, place = np.divmod(np.arange(m * v), p * v)
    chunk = place // p
    microbatch = group * p + place % p
    warmup = min(m * v, 2 * (p - 1 - stage) + (v - 1) * p)
    return _warm_up_then_alternate(
        (microbatch, chunk), (microbatch, v - 1 - chunk), warmup
    )


def _interleaved_in_flight(stage: int, sizes: _Sizes) -> int:
    p, m, v = sizes
    return min(m * v, 2 * (p - 1 - stage) + (v - 1) * p + 1)


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        "1f1b": Schedule(
            name="1f1b",
            interleaves=False,
            write=_one_f_one_b,
            count=_one_f_one_b_in_flight,
        ),
        "gpipe": Schedule(
            name="gpipe",
            interleaves=False,
            write=_gpipe,
            count=_gpipe_in_flight,
        ),
        "interleaved-1f1b": Schedule(
            name="interleaved-1f1b",
            interleaves=True,
            write=_interleaved,
            count=_interleaved_in_flight,
        ),
    }
)
"""Name -> schedule."""
