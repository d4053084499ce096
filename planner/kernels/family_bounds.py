"""Lower bounds of all configurations of a family in a single call.

What `planner.kernels.replay_bound` says of plans, less all that needs rates of a
configuration: memory, what is sent for gradients, what leaves a block. Letters and
paths of waits are those; the least over the layouts holds for each of them::

    T >= sum_{k < i} (f_k + x + b_k + y) + m t_i + end
    T >= (1 + q) (sum_k (f_k + b_k) + sum (x + y)) + r max_i t_i + end

the second one with 1F1B only, ``m - 1 = q n + r``, ``n`` the forward passes that the
first stage has first.

Where passes go on beside each other, which takes chunks or a single stage, each round
has ``p`` microbatches or more, and stage ``i`` is at least ``2 (p - 1 - i) + 1`` passes
beyond a round of each chunk but the last one ahead. So at least ``p`` passes of each
kind of these chunks have no other beside them, and of the last one ``min(p - 1, 2 (p -
1 - i) + 1)``: where all forward passes come first the last of them makes a pair.
"""

from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatVector, IntVector
from topologies.compiling import kernel

_SAFE = 1.0 - 1e-12


class FamilyRows(NamedTuple):
    """Configurations of a family whose stages work one after another, ``(N,)`` each."""

    pp: IntVector
    """Stages."""

    v: IntVector
    """Chunks of each stage."""

    m: IntVector
    """Microbatches of each replica."""

    ahead: IntVector
    """Forward passes that the first stage has first if it is 1F1B, else `m`."""

    first_layout: IntVector
    """Number in `FamilyLayouts.starts` of the first layout."""

    num_layouts: IntVector
    """Number of layouts."""


class FamilyLayouts(NamedTuple):
    """Ways to cut the chain, one after another."""

    starts: IntVector
    """Where each layout begins in `cuts`."""

    cuts: IntVector
    """First layer of each virtual stage, and the number of layers."""


class FamilyTimes(NamedTuple):
    """Least times, whatever the placement and what is repeated."""

    passes: FloatVector
    """Forward and backward passes of a microbatch, summed over the layers before each,
    shape ``(L + 1,)`` [s]."""

    alone: FloatVector
    """What a forward and a backward pass take more with no other beside them, summed
    as `passes` [s]."""

    wire: float
    """Transfers over a boundary, forth and back [s]."""

    messages: float
    """Messages of a forward and a backward pass, where there are several stages [s]."""

    end: float
    """What each stage does after its last backward pass [s]."""


@kernel
def family_bounds(
    rows: FamilyRows, layouts: FamilyLayouts, times: FamilyTimes
) -> FloatVector:
    """Return a lower bound of the replays of each configuration, ``(N,)`` [s].

    In O(layouts of all rows times virtual stages).
    """
    bounds = np.empty(rows.pp.size)
    for n in range(rows.pp.size):
        p, v, m = rows.pp[n], rows.v[n], rows.m[n]
        messages = times.messages if p > 1 else 0.0
        turns, rest = (m - 1) // rows.ahead[n], (m - 1) % rows.ahead[n]
        least = np.inf
        for y in range(
            rows.first_layout[n], rows.first_layout[n] + rows.num_layouts[n]
        ):
            start = layouts.starts[y]
            value, before, most, whole = 0.0, 0.0, 0.0, 0.0
            for i in range(p):
                work, first, filling = 0.0, 0.0, 0.0
                for chunk in range(v):
                    k = start + chunk * p + i
                    begin, stop = layouts.cuts[k], layouts.cuts[k + 1]
                    held = times.passes[stop]
                    held += messages - times.passes[begin]
                    more = times.alone[stop] - times.alone[begin]
                    first = held + more if chunk == 0 else first
                    work += held
                    last = min(p - 1, 2 * (p - 1 - i) + 1)
                    filling += (p if chunk < v - 1 else last) * more
                value = max(value, before + m * work + filling)
                before += first + times.wire
                most = max(most, work)
                whole += work
            if turns >= 1:
                way = whole + (p - 1) * times.wire
                value = max(value, (1.0 + turns) * way + rest * most)
            least = min(least, value)
        bounds[n] = (least + times.end) * _SAFE
    return bounds
