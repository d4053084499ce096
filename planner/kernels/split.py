"""Split a chain of layers into pipeline stages: the exact optimum of one placement.

Letters: ``L`` layers, ``K`` interval classes, ``p`` stages numbered by their position
``s`` from the *end* (the last stage is 1, the first ``p``), ``C`` choices of recompute
and ZeRO, ``m`` microbatches, ``v`` virtual stages, ``r`` replicas. With ``C_s`` the
time of one microbatch in the stage at ``s``, ``x[r, s]`` its transfers at both
boundaries in replica ``r`` and ``X_r`` their sum over ``s``::

    T = max_r { ws sum_s (C_s + x[r, s]) + wm max_s (C_s + x[r, s]) } + max_s end_s

with ``ws = 1 / v`` and ``wm = m - 1 / v``. Since the transfers do not depend on the
cuts (every cut carries the same bytes), the maximum over replicas moves inside::

    T = ws sum_s C_s + wm max_s (C_s + xi_s) + max_s end_s,
    xi_s = max_r { x[r, s] + ws / wm X_r }

which is minimised over all splits into ``p`` non-empty intervals and all choices that
fit. The network level that the NEST paper keeps as a state is data here: with the
placement fixed, every rate is a function of the position.

Two dynamic programs over suffixes, each O(p L w) with ``w`` the width of a window
that prefix sums of lower bounds leave open; ``C(s; i, j) = best[s, class(i, j)]``::

    g[s, i] = min_j max( C(s; i, j) + xi_s, g[s - 1, j] )            bottleneck
    f[s, i] = min_j { C(s; i, j) + f[s - 1, j] : C + xi_s <= B }     sum below B

Every solution whose maximum lies in ``[M', B)`` costs at least ``ws f(B) + wm M'``
with ``M'`` the maximum of the solution found under ``B``; the threshold therefore
falls through a finite set, and the loop stops when no maximum that is left can pay
for the smallest sum (inner proof). A step end below ``Y`` is a restriction on the
choices; ``Y`` falls likewise (outer proof). Ties go to the earliest cut and the first
choice.
"""

from typing import NamedTuple

import numpy as np

from topologies.arrays import (
    FloatArray,
    FloatCube,
    FloatMatrix,
    FloatVector,
    IntArray,
    IntCube,
    IntMatrix,
    IntVector,
)
from topologies.compiling import kernel, subkernel, writing_kernel

OK = 0
NOT_BETTER = 1
BROKEN = 2

SAFE = 1.0 - 1e-12
"""Lower bounds are scaled by this, so that rounding cannot cut off an equal value."""


class Chain(NamedTuple):
    """A chain and what its intervals cost; positions count from 1, entry 0 is unused.

    Requires ``1 <= p <= L``; the caller checks.
    """

    class_of: IntMatrix
    """Class of the interval ``i .. j - 1``, shape ``(L + 1, L + 1)``."""

    layer_minima: FloatVector
    """Lower bound of a layer's time at any choice and position, shape ``(L,)`` [s]."""

    time: FloatCube
    """Time of one microbatch, by signature, choice and class, ``(sig, C, K)`` [s]."""

    step_end: FloatCube
    """Time after the last backward pass, by the same, ``(sig, C, K)`` [s]."""

    most_in_flight: IntCube
    """Passes in flight that memory allows, by memory, choice and class, ``(mem, C,
    K)``."""

    memory_row: IntVector
    """Row of `most_in_flight` of each position, shape ``(p + 1,)``."""

    signature: IntVector
    """Row of the times of each position, shape ``(p + 1,)``."""

    adder: FloatVector
    """``xi`` of each position, shape ``(p + 1,)`` [s]."""

    step_end_adder: FloatVector
    """What each position adds to the step end, shape ``(p + 1,)`` [s]."""

    in_flight: IntVector
    """Passes in flight at each position, shape ``(p + 1,)``."""

    sum_weight: float
    """``ws > 0``."""

    max_weight: float
    """``wm >= 0``."""

    least_step_end: float
    """Lower bound of the largest step end of any solution [s]."""


class _Trial(NamedTuple):
    """What a search writes to."""

    prefix: FloatVector
    """Lower bound of the time of the first layers, shape ``(L + 1,)`` [s]."""

    stamp: IntMatrix
    """Version in which each fastest choice was looked up, shape ``(p + 1, K)``."""

    best: FloatMatrix
    """Time of the fastest choice that fits, shape ``(p + 1, K)`` [s]."""

    choice: IntMatrix
    """The fastest choice that fits, shape ``(p + 1, K)``."""

    table: FloatMatrix
    """Value of each suffix in a dynamic program, shape ``(p + 1, L + 1)`` [s]."""

    following: IntMatrix
    """Where the next stage begins in the best split of each suffix, same shape."""

    bounds: IntVector
    """First layer of each stage of the solution that was found last, ``(p + 1,)``."""

    choices: IntVector
    """Choices of that solution, from the first stage to the last, ``(p,)``."""

    best_bounds: IntVector
    """First layer of each stage of the best solution, ``(p + 1,)``."""

    best_choices: IntVector
    """Choices of the best solution, ``(p,)``."""


@subkernel
def _best_choice(
    s: int, k: int, chain: Chain, trial: _Trial, step_end_limit: float, version: int
) -> float:
    """Return ``best[s, k]``, filled once per version: the fastest choice that fits.

    Choice ``c`` fits class ``k`` at position ``s`` iff its most passes in flight there
    are at least ``in_flight[s]``, and its step end is below ``step_end_limit``. Of
    equally fast choices the one with the smaller step end, then the first; infinity if
    none fits. O(C).
    """
    if trial.stamp[s, k] == version:
        known: float = trial.best[s, k]
        return known
    fastest = np.inf
    smallest_step_end = np.inf
    picked = -1
    row = chain.signature[s]
    memory = chain.memory_row[s]
    for c in range(chain.most_in_flight.shape[1]):
        if chain.most_in_flight[memory, c, k] < chain.in_flight[s]:
            continue
        y = chain.step_end[row, c, k] + chain.step_end_adder[s]
        if not y < step_end_limit:
            continue
        t = chain.time[row, c, k]
        if t < fastest or (t == fastest and y < smallest_step_end):
            fastest = t
            smallest_step_end = y
            picked = c
    trial.stamp[s, k] = version
    trial.best[s, k] = fastest
    trial.choice[s, k] = picked
    return fastest


@subkernel
def _bottleneck(
    chain: Chain, trial: _Trial, step_end_limit: float, version: int, cut: float
) -> tuple[float, int]:
    """Return the smallest possible maximum, infinity if it exceeds ``cut``.

    And how many cuts were tried.
    """
    prefix, adder, g = trial.prefix, chain.adder, trial.table
    p = trial.best.shape[0] - 1
    tried = 0
    num_layers = len(prefix) - 1
    g[:] = np.inf
    g[0, num_layers] = 0.0
    for s in range(1, p + 1):
        last = num_layers - s if s < p else 0
        for i in range(p - s, last + 1):
            if prefix[i] > (p - s) * cut:
                break
            if prefix[num_layers] - prefix[i] > s * cut:
                continue
            value = np.inf
            start = i + 1 if s > 1 else num_layers
            for j in range(start, num_layers - s + 2):
                tried += 1
                floor = prefix[j] - prefix[i] + adder[s]
                if floor > cut or floor >= value:
                    break
                rest = g[s - 1, j]
                if rest >= value:
                    continue
                k = chain.class_of[i, j]
                t = adder[s] + _best_choice(s, k, chain, trial, step_end_limit, version)
                t = max(t, rest)
                if t <= cut and t < value:
                    value = t
            g[s, i] = value
    lowest: float = g[p, 0]
    return lowest, tried


@subkernel
def _smallest_sum(
    chain: Chain,
    trial: _Trial,
    step_end_limit: float,
    version: int,
    threshold: float,
    strict: bool,
) -> tuple[float, int]:
    """Return the smallest sum with every stage at most (below) the threshold.

    And how many cuts were tried.
    """
    prefix, adder, f = trial.prefix, chain.adder, trial.table
    p = trial.best.shape[0] - 1
    tried = 0
    num_layers = len(prefix) - 1
    f[:] = np.inf
    f[0, num_layers] = 0.0
    for s in range(1, p + 1):
        last = num_layers - s if s < p else 0
        for i in range(p - s, last + 1):
            if prefix[i] > (p - s) * threshold:
                break
            if prefix[num_layers] - prefix[i] > s * threshold:
                continue
            value = np.inf
            start = i + 1 if s > 1 else num_layers
            for j in range(start, num_layers - s + 2):
                tried += 1
                if prefix[j] - prefix[i] + adder[s] > threshold:
                    break
                rest = f[s - 1, j]
                if rest == np.inf:
                    continue
                k = chain.class_of[i, j]
                t = _best_choice(s, k, chain, trial, step_end_limit, version)
                load = adder[s] + t
                if load > threshold or (strict and load == threshold):
                    continue
                if t + rest < value:
                    value = t + rest
                    trial.following[s, i] = j
            f[s, i] = value
    total: float = f[p, 0]
    return total, tried


@subkernel
def _walk(chain: Chain, trial: _Trial) -> tuple[float, float]:
    """Read a solution back; return its largest load and its largest step end."""
    p = trial.best.shape[0] - 1
    i = 0
    largest = 0.0
    largest_step_end = 0.0
    for s in range(p, 0, -1):
        j = trial.following[s, i]
        k = chain.class_of[i, j]
        c = trial.choice[s, k]
        largest = max(largest, chain.adder[s] + trial.best[s, k])
        step_end = chain.step_end[chain.signature[s], c, k] + chain.step_end_adder[s]
        largest_step_end = max(largest_step_end, step_end)
        trial.bounds[p - s] = i
        trial.choices[p - s] = c
        i = j
    trial.bounds[p] = i
    return largest, largest_step_end


@subkernel
def _keep(trial: _Trial) -> None:
    """Remember a solution as the best one."""
    for i in range(trial.choices.shape[0]):
        trial.best_bounds[i] = trial.bounds[i]
        trial.best_choices[i] = trial.choices[i]
    trial.best_bounds[-1] = trial.bounds[-1]


@writing_kernel
def _search(chain: Chain, trial: _Trial, cutoff: float) -> tuple[int, float, int]:
    """Return status, value and how many cuts were tried; the split is in ``trial``."""
    sum_weight, max_weight = chain.sum_weight, chain.max_weight
    least_step_end = chain.least_step_end
    least_sum = trial.prefix[len(chain.layer_minima)]
    weight = max(max_weight, 1e-30)
    upper = cutoff
    value = np.inf
    step_end_limit = np.inf
    version = 0
    tried = 0
    while True:
        room = upper - least_step_end
        cut = (room - sum_weight * least_sum) / weight
        if not cut > 0.0:
            break
        version += 1
        lowest, more = _bottleneck(chain, trial, step_end_limit, version, cut)
        tried += more
        if lowest == np.inf:
            break
        total, more = _smallest_sum(
            chain, trial, step_end_limit, version, lowest, False
        )
        tried += more
        if total == np.inf:
            # Only if a layer takes less than its lower bound.
            return BROKEN, value, tried
        largest, last_step_end = _walk(chain, trial)
        front = sum_weight * total + max_weight * largest
        front_step_end = last_step_end
        if front + last_step_end < value:
            value = front + last_step_end
            _keep(trial)
        upper = min(upper, value)
        covered_sum = least_sum
        threshold = np.inf
        while True:
            threshold = min(threshold, (front - sum_weight * covered_sum) / weight)
            if threshold <= lowest * (1.0 + 1e-12):
                break
            total, more = _smallest_sum(
                chain, trial, step_end_limit, version, threshold, True
            )
            tried += more
            if total == np.inf:
                break
            largest, last_step_end = _walk(chain, trial)
            cost = sum_weight * total + max_weight * largest
            if cost < front:
                front = cost
                front_step_end = last_step_end
            if cost + last_step_end < value:
                value = cost + last_step_end
                _keep(trial)
            upper = min(upper, value)
            covered_sum = max(covered_sum, total)
            threshold = largest
        if front + least_step_end >= upper:
            break
        step_end_limit = min(front_step_end, upper - front)
    return (OK if value < cutoff else NOT_BETTER), value, tried


@kernel
def split_chain(
    chain: Chain, cutoff: float
) -> tuple[int, float, IntArray, IntArray, int]:
    """Return ``(status, T, bounds, choices, tried)`` of the best with ``T < cutoff``.

    A few passes of O(p L w) in practice: ``tried`` counts their cuts.
    """
    p = len(chain.in_flight) - 1
    num_layers = len(chain.layer_minima)
    num_classes = chain.most_in_flight.shape[2]
    trial = _Trial(
        prefix=np.zeros(num_layers + 1),
        stamp=np.zeros((p + 1, num_classes), dtype=np.int64),
        best=np.empty((p + 1, num_classes)),
        choice=np.empty((p + 1, num_classes), dtype=np.int64),
        table=np.empty((p + 1, num_layers + 1)),
        following=np.zeros((p + 1, num_layers + 1), dtype=np.int64),
        bounds=np.zeros(p + 1, dtype=np.int64),
        choices=np.zeros(p, dtype=np.int64),
        best_bounds=np.zeros(p + 1, dtype=np.int64),
        best_choices=np.zeros(p, dtype=np.int64),
    )
    for i in range(num_layers):
        trial.prefix[i + 1] = trial.prefix[i] + chain.layer_minima[i] * SAFE
    status, value, tried = _search(chain, trial, cutoff)
    return status, value, trial.best_bounds, trial.best_choices, tried


@kernel
def fits_in_memory(
    class_of: IntMatrix, most_in_flight: IntMatrix, in_flight: IntVector
) -> bool:
    """Tell whether memory leaves room for a split into at most ``p`` stages.

    A necessary condition. Memory grows with the interval under every choice, so each
    position, from the end, takes the longest interval that fits: whatever a feasible
    split leaves to the earlier stages, this leaves no more. O((p + L) C).
    """
    p = len(in_flight) - 1
    end: int = class_of.shape[0] - 1
    for s in range(1, p + 1):
        start: int = end
        while start > 0:
            k = class_of[start - 1, end]
            fits = False
            for c in range(most_in_flight.shape[0]):
                if most_in_flight[c, k] >= in_flight[s]:
                    fits = True
                    break
            if not fits:
                break
            start -= 1
        if start == end:
            return start == 0
        end = start
    return end == 0


@kernel
def stage_adders(
    boundary: FloatCube,
    num_bytes: float,
    num_chunks: int,
    sum_weight: float,
    max_weight: float,
) -> tuple[FloatArray, float]:
    """Return ``xi`` by position, entry 0 unused, and a constant to add to ``T`` [s].

    ``boundary (p, d, 2)``: latency and inverse bandwidth of the boundary after each
    stage, both directions' mean, by replica; the last one is the wrap-around. A
    microbatch crosses each forth and back, half of it charged to either side, ``v``
    times, the wrap-around ``v - 1`` times. With ``wm`` = 0 the transfers are the
    constant. O(p d).
    """
    p, num_replicas = boundary.shape[0], boundary.shape[1]
    adder = np.zeros(p + 1)
    constant = 0.0
    if p == 1:
        return adder, constant
    if max_weight > 0.0:
        adder[1:] = -np.inf
    after = np.empty(p)
    for r in range(num_replicas):
        total = 0.0
        for i in range(p):
            times = num_chunks if i < p - 1 else num_chunks - 1
            after[i] = (boundary[i, r, 0] + boundary[i, r, 1] * num_bytes) * times
            total += after[i]
        total *= 2.0 * sum_weight
        if max_weight <= 0.0:
            constant = max(constant, total)
            continue
        share = total / max_weight
        for i in range(p):
            own = after[i] + after[i - 1]
            adder[p - i] = max(adder[p - i], own + share)
    return adder, constant
