"""What bounds of a replay read of a schedule's lists.

Stages repeat themselves in the middle of a step: nothing here changes beyond some
microbatches for each stage, so that short lists say it all.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from estimators.layers.work import LayerTable
from planner.kernels.replay_terms import PassOrder
from planner.step.schedules import BACKWARD, FORWARD, SCHEDULES, WEIGHT
from planner.step.schedules.language import round_length
from topologies.arrays import FloatArray, IntArray

ENOUGH = 2
"""Microbatches for each stage after which 1F1B repeats itself, interleaved or not."""

ENOUGH_LISTED = 4
"""Microbatches for each stage after which the schedules that are read list by list
repeat themselves."""


class _PipelineSizes(Protocol):
    """Sizes of a pipeline."""

    @property
    def p(self) -> int:
        """Stages."""

    @property
    def v(self) -> int:
        """Chunks of each stage."""

    @property
    def m(self) -> int:
        """Microbatches."""


class _Lists(NamedTuple):
    """What is read off the lists of a schedule; see `PassOrder`."""

    waiting: IntArray
    waiting_starts: IntArray
    first_backward: IntArray
    last_backward: IntArray
    done: IntArray
    after: IntArray
    behind: IntArray


@lru_cache(maxsize=8192)
def pass_counts(schedule: str, p: int, m: int, v: int) -> tuple[IntArray, IntArray]:
    """Return passes in flight, and forward passes before the first backward one.

    Neither grows beyond `ENOUGH` rounds of microbatches, or `ENOUGH_LISTED` of them for
    each stage of listed ones, but where all forward passes come first.
    """
    found = SCHEDULES[schedule]
    if found.forward_first:
        held = [found.in_flight(i, p, m, v) + found.bubbles_kept(p) for i in range(p)]
        return np.array(held), np.full(p, m * v)
    m = min(
        m, ENOUGH_LISTED * p if found.splits_backward else ENOUGH * round_length(p, m)
    )
    in_flight = np.array([found.in_flight(i, p, m, v) for i in range(p)])
    program = found.program(p, m, v)
    first = np.zeros(p, dtype=np.int64)
    for i in range(p):
        kinds = program.kind[program.indptr[i] : program.indptr[i + 1]]
        first[i] = np.argmax(kinds == BACKWARD)
    return in_flight, first


def is_listed(schedule: str) -> bool:
    """Tell whether bounds read a schedule's lists, as they do where it splits."""
    return SCHEDULES[schedule].splits_backward


def pass_order(
    schedule: str,
    sizes: _PipelineSizes,
    tables: Sequence[LayerTable],
    wires: FloatArray,
) -> PassOrder:
    """Return the order of the passes of a schedule.

    Parameters
    ----------
    schedule
        Its name.
    sizes
        Of the pipeline.
    tables
        Its layers, for each row of the times of passes; one for all if all are alike.
    wires
        Transfers over the boundary after each stage, activations (0) and gradients (1),
        by replica, shape ``(R, p, 2)`` [s].
    """
    p, v, m = sizes.p, sizes.v, sizes.m
    fixed = _fixed_order(schedule, p, min(m, ENOUGH_LISTED * p), v)
    if not fixed.is_listed:
        return fixed
    virtual = SCHEDULES[schedule].virtual_stages(p, v)
    crossed = virtual.after_each(np.swapaxes(wires, 0, 1))
    weight = np.zeros((len(tables), tables[0].num_layers + 1))
    for row, table in zip(weight, tables, strict=True):
        np.cumsum(table.weight_gradient_time, out=row[1:])
    return fixed._replace(
        weight=weight,
        kept=np.array(tables[0].weight_gradient_bytes, dtype=np.float64),
        crossed=np.ascontiguousarray(np.swapaxes(crossed, 0, 1)),
    )


@lru_cache(maxsize=8192)
def _fixed_order(schedule: str, p: int, m: int, v: int) -> PassOrder:
    """Return what neither layers nor links have a say in."""
    virtual = SCHEDULES[schedule].virtual_stages(p, v)
    listed = is_listed(schedule)
    lists = read_lists(schedule, p, m, v) if listed else _unread(p, v)
    crossed = virtual.boundary[~virtual.stays]
    return PassOrder(
        number=virtual.number.copy(),
        stage=virtual.stage.copy(),
        crossings=np.bincount(crossed, minlength=p).astype(np.int64),
        is_listed=listed,
        weight=np.zeros((0, 0)),
        kept=np.zeros(0),
        crossed=np.zeros((0, 0, 2)),
        **lists._asdict(),
    )


@lru_cache(maxsize=8192)
def read_lists(schedule: str, p: int, m: int, v: int) -> _Lists:
    """Read the lists of all stages of a schedule that splits the backward pass."""
    found, number = SCHEDULES[schedule], SCHEDULES[schedule].virtual_stages(p, v).number
    lists = _unread(p, v)
    waiting = [found.waiting(i, p, m, v) for i in range(p)]
    for i in range(p):
        kind, microbatch, chunk = found.instructions(i, p, m, v)
        backward = np.flatnonzero(kind == BACKWARD)
        lists.first_backward[i] = number[i, chunk[backward[0]]]
        lists.last_backward[i] = number[i, chunk[backward[-1]]]
        completes = np.flatnonzero((kind == WEIGHT) & (microbatch == m - 1))[0]
        for c in range(v):
            here = chunk == c
            lists.done[i, c] = (here & (kind == FORWARD))[: backward[0]].sum()
            lists.after[i, c] = here[backward[-1] + 1 :].sum()
            for one in (FORWARD, BACKWARD, WEIGHT):
                lists.behind[i, one, c] = (here & (kind == one))[completes:].sum()
    sizes = [0, *(len(rows) for rows in waiting)]
    return lists._replace(
        waiting=np.concatenate(waiting), waiting_starts=np.cumsum(sizes)
    )


def _unread(p: int, v: int) -> _Lists:
    """Return lists that say nothing."""
    return _Lists(
        waiting=np.zeros((0, 2, v), dtype=np.int64),
        waiting_starts=np.zeros(p + 1, dtype=np.int64),
        first_backward=np.zeros(p, dtype=np.int64),
        last_backward=np.zeros(p, dtype=np.int64),
        done=np.zeros((p, v), dtype=np.int64),
        after=np.zeros((p, v), dtype=np.int64),
        behind=np.zeros((p, 3, v), dtype=np.int64),
    )
