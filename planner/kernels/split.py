"""Split a chain of layers into pipeline stages: the exact optimum of one placement.

Letters: ``L`` layers, ``K`` interval classes, ``p`` stages numbered by their position
``s`` from the *end* (the last stage is 1, the first ``p``), ``C`` choices of recompute
and ZeRO, ``m`` microbatches. With ``x(s, i)`` the one-way transfer over the boundary
between positions ``s`` and ``s + 1`` when the stage at ``s`` starts with layer ``i``
(0 at both ends of the pipeline)::

    t(s; i, j) = best[s, class(i, j)] + x(s, i) + x(s - 1, j)
    T          = sum_s t + (m - 1) max_s t + max_s tail_s

is minimised over all splits into ``p`` non-empty intervals and all choices that fit.
The network level that the paper keeps as a state is data here: with the placement
fixed, every rate is a function of the position.

Two dynamic programs over suffixes, each O(p L w) with ``w`` the width of a window
that prefix sums of lower bounds leave open::

    g[s, i] = min_j max( t(s; i, j), g[s - 1, j] )               bottleneck
    f[s, i] = min_j { t(s; i, j) + f[s - 1, j] : t <= B }        sum under a threshold

Every solution whose maximum lies in ``[M', B)`` costs at least ``f(B) + (m - 1) M'``
with ``M'`` the maximum of the solution found under ``B``; the threshold therefore
falls through a finite set, and the loop stops when no maximum that is left can pay
for the smallest sum (inner proof). A tail below ``Y`` is a restriction on the choices;
``Y`` falls likewise (outer proof). Ties go to the earliest cut and the first choice.
"""

import numba
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

OK = 0
NOT_BETTER = 1

SAFE = 1.0 - 1e-12
"""Lower bounds are scaled by this, so that rounding cannot cut off an equal value."""


@numba.njit(cache=True, error_model="numpy")
def fill_choices(
    time: FloatArray,
    slots: IntArray,
    parameters: FloatArray,
    zero_of: IntArray,
    signature: IntArray,
    tail_fixed: FloatArray,
    tail_rate: FloatArray,
    in_flight: IntArray,
    tail_limit: float,
    best: FloatArray,
    choice: IntArray,
) -> None:
    """Fill ``best[s, k]`` and ``choice[s, k]``: the fastest choice that fits.

    A choice ``c`` fits class ``k`` at position ``s`` iff ``slots[c, k] >=
    in_flight[s]`` and its tail ``tail_fixed[s, z] + tail_rate[s, z] parameters[k]`` is
    below ``tail_limit``. Of equally fast choices the one with the smaller tail, then
    the first. O(p K C).
    """
    num_choices, num_classes = slots.shape
    for s in range(1, len(in_flight)):
        for k in range(num_classes):
            best[s, k] = np.inf
            choice[s, k] = -1
            best_tail = np.inf
            for c in range(num_choices):
                if slots[c, k] < in_flight[s]:
                    continue
                z = zero_of[c]
                tail = tail_fixed[s, z] + tail_rate[s, z] * parameters[k]
                if not tail < tail_limit:
                    continue
                t = time[signature[s], c, k]
                if t < best[s, k] or (t == best[s, k] and tail < best_tail):
                    best[s, k] = t
                    choice[s, k] = c
                    best_tail = tail


@numba.njit(cache=True, error_model="numpy")
def bottleneck(
    class_of: IntArray,
    cut_bytes: FloatArray,
    prefix: FloatArray,
    inverse: FloatArray,
    latency: FloatArray,
    best: FloatArray,
    cut: float,
    g: FloatArray,
) -> float:
    """Return the smallest possible maximum, infinity if it exceeds ``cut``."""
    p = best.shape[0] - 1
    num_layers = len(prefix) - 1
    g[:] = np.inf
    g[0, num_layers] = 0.0
    for s in range(1, p + 1):
        first = p - s
        last = num_layers - s if s < p else 0
        for i in range(first, last + 1):
            if prefix[i] > (p - s) * cut:
                break
            if prefix[num_layers] - prefix[i] > s * cut:
                continue
            before = 0.0 if s == p else cut_bytes[i] * inverse[s] + latency[s]
            value = np.inf
            start = i + 1 if s > 1 else num_layers
            for j in range(start, num_layers - s + 2):
                floor = prefix[j] - prefix[i] + before
                if floor > cut or floor >= value:
                    break
                rest = g[s - 1, j]
                if rest >= value:
                    continue
                t = best[s, class_of[i, j]] + before
                if s > 1:
                    t += cut_bytes[j] * inverse[s - 1] + latency[s - 1]
                t = max(t, rest)
                if t <= cut and t < value:
                    value = t
            g[s, i] = value
    lowest: float = g[p, 0]
    return lowest


@numba.njit(cache=True, error_model="numpy")
def smallest_sum(
    class_of: IntArray,
    cut_bytes: FloatArray,
    prefix: FloatArray,
    inverse: FloatArray,
    latency: FloatArray,
    best: FloatArray,
    threshold: float,
    strict: bool,
    f: FloatArray,
    following: IntArray,
) -> float:
    """Return the smallest sum with every stage at most (below) the threshold."""
    p = best.shape[0] - 1
    num_layers = len(prefix) - 1
    f[:] = np.inf
    f[0, num_layers] = 0.0
    for s in range(1, p + 1):
        first = p - s
        last = num_layers - s if s < p else 0
        for i in range(first, last + 1):
            if prefix[i] > (p - s) * threshold:
                break
            if prefix[num_layers] - prefix[i] > s * threshold:
                continue
            before = 0.0 if s == p else cut_bytes[i] * inverse[s] + latency[s]
            value = np.inf
            start = i + 1 if s > 1 else num_layers
            for j in range(start, num_layers - s + 2):
                if prefix[j] - prefix[i] + before > threshold:
                    break
                rest = f[s - 1, j]
                if rest == np.inf:
                    continue
                t = best[s, class_of[i, j]] + before
                if s > 1:
                    t += cut_bytes[j] * inverse[s - 1] + latency[s - 1]
                if t > threshold or (strict and t == threshold):
                    continue
                if t + rest < value:
                    value = t + rest
                    following[s, i] = j
            f[s, i] = value
    total: float = f[p, 0]
    return total


@numba.njit(cache=True, error_model="numpy")
def walk(
    class_of: IntArray,
    cut_bytes: FloatArray,
    inverse: FloatArray,
    latency: FloatArray,
    best: FloatArray,
    choice: IntArray,
    parameters: FloatArray,
    zero_of: IntArray,
    tail_fixed: FloatArray,
    tail_rate: FloatArray,
    following: IntArray,
    bounds: IntArray,
    choices: IntArray,
) -> tuple[float, float]:
    """Read a solution back; return its largest stage time and largest tail.

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
        t = best[s, k] + (0.0 if s == p else cut_bytes[i] * inverse[s] + latency[s])
        if s > 1:
            t += cut_bytes[j] * inverse[s - 1] + latency[s - 1]
        z = zero_of[choice[s, k]]
        largest = max(largest, t)
        largest_tail = max(
            largest_tail, tail_fixed[s, z] + tail_rate[s, z] * parameters[k]
        )
        bounds[p - s] = i
        choices[p - s] = choice[s, k]
        i = j
    bounds[p] = i
    return largest, largest_tail


@numba.njit(cache=True, error_model="numpy")
def split_chain(
    class_of: IntArray,
    cut_bytes: FloatArray,
    layer_minima: FloatArray,
    time: FloatArray,
    slots: IntArray,
    parameters: FloatArray,
    zero_of: IntArray,
    signature: IntArray,
    inverse: FloatArray,
    latency: FloatArray,
    tail_fixed: FloatArray,
    tail_rate: FloatArray,
    in_flight: IntArray,
    num_microbatches: int,
    cutoff: float,
) -> tuple[int, float, IntArray, IntArray]:
    """Return ``(status, T, bounds, choices)`` of the best split with ``T < cutoff``.

    Shapes: ``class_of (L+1, L+1)``, ``cut_bytes (L+1,)``, ``layer_minima (L,)`` (a
    lower bound of each layer's time under any choice and position), ``time (sig, C,
    K)``, ``slots (C, K)`` (microbatches in flight that memory allows), ``parameters
    (K,)``, ``zero_of (C,)``; by position, entry 0 unused: ``signature``,
    ``inverse``, ``latency`` and ``in_flight (p+1,)``, ``tail_fixed`` and
    ``tail_rate (p+1, 4)``. ``inverse[s]`` and ``latency[s]`` price the boundary
    between ``s`` and ``s + 1`` one way (mean of both directions). Requires
    ``1 <= p <= L``; the caller checks. A few passes of O(p L w) in practice.
    """
    p = len(in_flight) - 1
    num_layers = len(layer_minima)
    num_classes = len(parameters)
    bounds = np.zeros(p + 1, dtype=np.int64)
    choices = np.zeros(p, dtype=np.int64)
    trial_bounds = np.zeros(p + 1, dtype=np.int64)
    trial_choices = np.zeros(p, dtype=np.int64)
    best = np.empty((p + 1, num_classes))
    choice = np.empty((p + 1, num_classes), dtype=np.int64)
    table = np.empty((p + 1, num_layers + 1))
    following = np.zeros((p + 1, num_layers + 1), dtype=np.int64)
    prefix = np.zeros(num_layers + 1)
    for i in range(num_layers):
        prefix[i + 1] = prefix[i] + layer_minima[i] * SAFE
    weight = max(num_microbatches - 1.0, 1e-30)

    smallest_cut = np.inf
    for i in range(1, num_layers):
        smallest_cut = min(smallest_cut, cut_bytes[i])
    least_sum = prefix[num_layers]
    for s in range(1, p):
        least_sum += 2.0 * (smallest_cut * inverse[s] + latency[s]) * SAFE
    mean_parameters = parameters[class_of[0, num_layers]] / p
    least_tail = np.inf
    for s in range(1, p + 1):
        for c in range(len(zero_of)):
            z = zero_of[c]
            tail = (tail_fixed[s, z] + tail_rate[s, z] * mean_parameters) * SAFE
            least_tail = min(least_tail, tail)

    upper = cutoff
    value = np.inf
    tail_limit = np.inf
    while True:
        room = upper - least_tail
        cut = min((room - least_sum) / weight, room / (1.0 + weight))
        if not cut > 0.0:
            break
        fill_choices(
            time, slots, parameters, zero_of, signature, tail_fixed, tail_rate,
            in_flight, tail_limit, best, choice,
        )  # fmt: skip
        lowest = bottleneck(
            class_of, cut_bytes, prefix, inverse, latency, best, cut, table
        )
        if lowest == np.inf:
            break
        total = smallest_sum(
            class_of, cut_bytes, prefix, inverse, latency, best, lowest, False,
            table, following,
        )  # fmt: skip
        largest, tail = walk(
            class_of, cut_bytes, inverse, latency, best, choice, parameters, zero_of,
            tail_fixed, tail_rate, following, trial_bounds, trial_choices,
        )  # fmt: skip
        front = total + weight * largest
        front_tail = tail
        if front + tail < value:
            value = front + tail
            bounds[:] = trial_bounds
            choices[:] = trial_choices
        upper = min(upper, value)
        covered_sum = least_sum
        threshold = np.inf
        while True:
            threshold = min(threshold, (front - covered_sum) / weight)
            if threshold <= lowest * (1.0 + 1e-12):
                break
            total = smallest_sum(
                class_of, cut_bytes, prefix, inverse, latency, best, threshold, True,
                table, following,
            )  # fmt: skip
            if total == np.inf:
                break
            largest, tail = walk(
                class_of, cut_bytes, inverse, latency, best, choice, parameters,
                zero_of, tail_fixed, tail_rate, following, trial_bounds,
                trial_choices,
            )  # fmt: skip
            if total + weight * largest < front:
                front = total + weight * largest
                front_tail = tail
            if total + weight * largest + tail < value:
                value = total + weight * largest + tail
                bounds[:] = trial_bounds
                choices[:] = trial_choices
            upper = min(upper, value)
            covered_sum = max(covered_sum, total)
            threshold = largest
        if front + least_tail >= upper:
            break
        tail_limit = min(front_tail, upper - front)
    if value < cutoff:
        return OK, value, bounds, choices
    return NOT_BETTER, value, bounds, choices


@numba.njit(cache=True, error_model="numpy")
def fits_in_memory(class_of: IntArray, slots: IntArray, in_flight: IntArray) -> bool:
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


@numba.njit(cache=True, error_model="numpy")
def least_bottlenecks(layer_minima: FloatArray) -> FloatArray:
    """Return the smallest possible maximum for every number of stages.

    ``bound[p] = min over splits into p intervals of max of sums``, shape ``(L + 1,)``,
    entry 0 infinite. O(L^3) worst case, O(L^2 w) with the break on sums.
    """
    num_layers = len(layer_minima)
    prefix = np.zeros(num_layers + 1)
    for i in range(num_layers):
        prefix[i + 1] = prefix[i] + layer_minima[i]
    bound = np.full(num_layers + 1, np.inf)
    previous = np.full(num_layers + 1, np.inf)
    previous[0] = 0.0
    current = np.empty(num_layers + 1)
    for p in range(1, num_layers + 1):
        current[:] = np.inf
        for j in range(p, num_layers + 1):
            for i in range(j - 1, p - 2, -1):
                load = prefix[j] - prefix[i]
                if load >= current[j]:
                    break
                current[j] = min(current[j], max(load, previous[i]))
        bound[p] = current[num_layers]
        previous[:] = current
    return bound
