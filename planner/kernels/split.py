"""Split a chain of layers into pipeline stages: the exact optimum of one placement.

Letters: ``L`` layers, ``K`` interval classes, ``p`` stages numbered by their position
``s`` from the *end* (the last stage is 1, the first ``p``), ``C`` choices of recompute
and ZeRO, ``m`` microbatches, ``v`` virtual stages, ``r`` replicas. With ``C_s`` the
time of one microbatch in the stage at ``s``, ``x[r, s]`` its transfers at both
boundaries in replica ``r`` and ``X_r`` their sum over ``s``::

    T = max_r { ws sum_s (C_s + x[r, s]) + wm max_s (C_s + x[r, s]) } + max_s tail_s

with ``ws = 1 / v`` and ``wm = m - 1 / v``. Since the transfers do not depend on the
cuts (every cut carries the same bytes), the maximum over replicas moves inside::

    T = ws sum_s C_s + wm max_s (C_s + xi_s) + max_s tail_s,
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
for the smallest sum (inner proof). A tail below ``Y`` is a restriction on the choices;
``Y`` falls likewise (outer proof). Ties go to the earliest cut and the first choice.
"""

import numpy as np

from topologies.arrays import (
    FloatArray,
    FloatCube,
    FloatMatrix,
    FloatVector,
    IntArray,
    IntMatrix,
    IntVector,
)
from topologies.compiling import kernel, subkernel

OK = 0
NOT_BETTER = 1
BROKEN = 2

SAFE = 1.0 - 1e-12
"""Lower bounds are scaled by this, so that rounding cannot cut off an equal value."""


@subkernel
def best_choice(
    s: int,
    k: int,
    time: FloatCube,
    tail: FloatCube,
    slots: IntMatrix,
    signature: IntVector,
    tail_adder: FloatVector,
    in_flight: IntVector,
    tail_limit: float,
    version: int,
    stamp: IntMatrix,
    best: FloatMatrix,
    choice: IntMatrix,
) -> float:
    """Return ``best[s, k]``, filled once per version: the fastest choice that fits.

    Choice ``c`` fits class ``k`` at position ``s`` iff ``slots[c, k] >= in_flight[s]``
    and its tail is below ``tail_limit``. Of equally fast choices the one with the
    smaller tail, then the first; infinity if none fits. O(C).
    """
    if stamp[s, k] == version:
        known: float = best[s, k]
        return known
    fastest = np.inf
    smallest_tail = np.inf
    picked = -1
    row = signature[s]
    for c in range(slots.shape[0]):
        if slots[c, k] < in_flight[s]:
            continue
        y = tail[row, c, k] + tail_adder[s]
        if not y < tail_limit:
            continue
        t = time[row, c, k]
        if t < fastest or (t == fastest and y < smallest_tail):
            fastest = t
            smallest_tail = y
            picked = c
    stamp[s, k] = version
    best[s, k] = fastest
    choice[s, k] = picked
    return fastest


@subkernel
def bottleneck(
    class_of: IntMatrix,
    prefix: FloatVector,
    adder: FloatVector,
    time: FloatCube,
    tail: FloatCube,
    slots: IntMatrix,
    signature: IntVector,
    tail_adder: FloatVector,
    in_flight: IntVector,
    tail_limit: float,
    version: int,
    stamp: IntMatrix,
    best: FloatMatrix,
    choice: IntMatrix,
    cut: float,
    g: FloatMatrix,
) -> tuple[float, int]:
    """Return the smallest possible maximum, infinity if it exceeds ``cut``.

    And how many cuts were tried.
    """
    p = best.shape[0] - 1
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
                t = adder[s] + best_choice(
                    s, class_of[i, j], time, tail, slots, signature, tail_adder,
                    in_flight, tail_limit, version, stamp, best, choice,
                )  # fmt: skip
                t = max(t, rest)
                if t <= cut and t < value:
                    value = t
            g[s, i] = value
    lowest: float = g[p, 0]
    return lowest, tried


@subkernel
def smallest_sum(
    class_of: IntMatrix,
    prefix: FloatVector,
    adder: FloatVector,
    time: FloatCube,
    tail: FloatCube,
    slots: IntMatrix,
    signature: IntVector,
    tail_adder: FloatVector,
    in_flight: IntVector,
    tail_limit: float,
    version: int,
    stamp: IntMatrix,
    best: FloatMatrix,
    choice: IntMatrix,
    threshold: float,
    strict: bool,
    f: FloatMatrix,
    following: IntMatrix,
) -> tuple[float, int]:
    """Return the smallest sum with every stage at most (below) the threshold.

    And how many cuts were tried.
    """
    p = best.shape[0] - 1
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
                t = best_choice(
                    s, class_of[i, j], time, tail, slots, signature, tail_adder,
                    in_flight, tail_limit, version, stamp, best, choice,
                )  # fmt: skip
                load = adder[s] + t
                if load > threshold or (strict and load == threshold):
                    continue
                if t + rest < value:
                    value = t + rest
                    following[s, i] = j
            f[s, i] = value
    total: float = f[p, 0]
    return total, tried


@subkernel
def walk(
    class_of: IntMatrix,
    adder: FloatVector,
    tail: FloatCube,
    signature: IntVector,
    tail_adder: FloatVector,
    best: FloatMatrix,
    choice: IntMatrix,
    following: IntMatrix,
    bounds: IntVector,
    choices: IntVector,
) -> tuple[float, float]:
    """Read a solution back; return its largest load and its largest tail.

    ``bounds`` (shape ``(p + 1,)``) and ``choices`` (shape ``(p,)``) are filled from the
    first stage to the last.
    """
    p = best.shape[0] - 1
    i = 0
    largest = 0.0
    largest_tail = 0.0
    for s in range(p, 0, -1):
        j = following[s, i]
        k = class_of[i, j]
        c = choice[s, k]
        largest = max(largest, adder[s] + best[s, k])
        largest_tail = max(largest_tail, tail[signature[s], c, k] + tail_adder[s])
        bounds[p - s] = i
        choices[p - s] = c
        i = j
    bounds[p] = i
    return largest, largest_tail


@subkernel
def _keep(
    trial_bounds: IntVector,
    trial_choices: IntVector,
    bounds: IntVector,
    choices: IntVector,
) -> None:
    """Remember a solution."""
    for i in range(choices.shape[0]):
        bounds[i] = trial_bounds[i]
        choices[i] = trial_choices[i]
    bounds[-1] = trial_bounds[-1]


@kernel
def split_chain(
    class_of: IntMatrix,
    layer_minima: FloatVector,
    time: FloatCube,
    tail: FloatCube,
    slots: IntMatrix,
    signature: IntVector,
    adder: FloatVector,
    tail_adder: FloatVector,
    in_flight: IntVector,
    sum_weight: float,
    max_weight: float,
    least_tail: float,
    cutoff: float,
) -> tuple[int, float, IntArray, IntArray, int]:
    """Return ``(status, T, bounds, choices, tried)`` of the best with ``T < cutoff``.

    Shapes: ``class_of (L+1, L+1)``; ``layer_minima (L,)``, a lower bound of a layer's
    time under any choice and position; ``time`` and ``tail (sig, C, K)``; ``slots (C,
    K)``, the passes in flight that memory allows; by position, entry 0 unused:
    ``signature``, ``adder`` (``xi``), ``tail_adder`` and ``in_flight (p+1,)``.
    ``sum_weight`` is ``ws > 0``, ``max_weight`` is ``wm >= 0``; ``least_tail`` bounds
    the largest tail of any solution from below. Requires ``1 <= p <= L``; the caller
    checks. A few passes of O(p L w) in practice: ``tried`` counts their cuts.
    """
    p = len(in_flight) - 1
    num_layers = len(layer_minima)
    num_classes = slots.shape[1]
    bounds = np.zeros(p + 1, dtype=np.int64)
    choices = np.zeros(p, dtype=np.int64)
    trial_bounds = np.zeros(p + 1, dtype=np.int64)
    trial_choices = np.zeros(p, dtype=np.int64)
    best = np.empty((p + 1, num_classes))
    choice = np.empty((p + 1, num_classes), dtype=np.int64)
    stamp = np.zeros((p + 1, num_classes), dtype=np.int64)
    table = np.empty((p + 1, num_layers + 1))
    following = np.zeros((p + 1, num_layers + 1), dtype=np.int64)
    prefix = np.zeros(num_layers + 1)
    for i in range(num_layers):
        prefix[i + 1] = prefix[i] + layer_minima[i] * SAFE
    least_sum = prefix[num_layers]
    weight = max(max_weight, 1e-30)

    upper = cutoff
    value = np.inf
    tail_limit = np.inf
    version = 0
    tried = 0
    while True:
        room = upper - least_tail
        cut = (room - sum_weight * least_sum) / weight
        if not cut > 0.0:
            break
        version += 1
        lowest, more = bottleneck(
            class_of, prefix, adder, time, tail, slots, signature, tail_adder,
            in_flight, tail_limit, version, stamp, best, choice, cut, table,
        )  # fmt: skip
        tried += more
        if lowest == np.inf:
            break
        total, more = smallest_sum(
            class_of, prefix, adder, time, tail, slots, signature, tail_adder,
            in_flight, tail_limit, version, stamp, best, choice, lowest, False, table,
            following,
        )  # fmt: skip
        tried += more
        if total == np.inf:
            # Only if a layer takes less than its lower bound.
            return BROKEN, value, bounds, choices, tried
        largest, last_tail = walk(
            class_of, adder, tail, signature, tail_adder, best, choice, following,
            trial_bounds, trial_choices,
        )  # fmt: skip
        front = sum_weight * total + max_weight * largest
        front_tail = last_tail
        if front + last_tail < value:
            value = front + last_tail
            _keep(trial_bounds, trial_choices, bounds, choices)
        upper = min(upper, value)
        covered_sum = least_sum
        threshold = np.inf
        while True:
            threshold = min(threshold, (front - sum_weight * covered_sum) / weight)
            if threshold <= lowest * (1.0 + 1e-12):
                break
            total, more = smallest_sum(
                class_of, prefix, adder, time, tail, slots, signature, tail_adder,
                in_flight, tail_limit, version, stamp, best, choice, threshold, True,
                table, following,
            )  # fmt: skip
            tried += more
            if total == np.inf:
                break
            largest, last_tail = walk(
                class_of, adder, tail, signature, tail_adder, best, choice, following,
                trial_bounds, trial_choices,
            )  # fmt: skip
            cost = sum_weight * total + max_weight * largest
            if cost < front:
                front = cost
                front_tail = last_tail
            if cost + last_tail < value:
                value = cost + last_tail
                _keep(trial_bounds, trial_choices, bounds, choices)
            upper = min(upper, value)
            covered_sum = max(covered_sum, total)
            threshold = largest
        if front + least_tail >= upper:
            break
        tail_limit = min(front_tail, upper - front)
    if value < cutoff:
        return OK, value, bounds, choices, tried
    return NOT_BETTER, value, bounds, choices, tried


@kernel
def fits_in_memory(class_of: IntMatrix, slots: IntMatrix, in_flight: IntVector) -> bool:
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
            for c in range(slots.shape[0]):
                if slots[c, k] >= in_flight[s]:
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
