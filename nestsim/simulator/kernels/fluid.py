"""Max-min fair sharing of links by flows, and the moments at which flows end.

A flow ``f`` moves ``bytes[f]`` at a level ``x[f]``, the rate of one of its lanes
[byte/s]; its weight ``w[f, l]`` on a link ``l`` is the number of its lanes there.
Levels are max-min fair under ``sum_f w[f, l] x[f] <= C[l]``. They change only when a
flow starts or ends, and only for flows joined to it by a chain of shared links.

The functions call each other and live in one file, because the compilation cache does
not notice changes in another. The state lies in arrays whose rows are named by the
constants below; `nestsim.simulator.fluid` allocates them.

References
----------
.. [1] Bertsekas, Gallager, "Data Networks", 2nd ed., Prentice Hall 1992, section 6.5.2
   (max-min flow control by progressive filling).
"""

import numba
import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

# Rows of the flows' float state, shape (5, F).
REMAINING = 0
RATE = 1
SINCE = 2
FINISH = 3
LEVEL = 4
NUM_FLOW_ROWS = 5

# Rows of the flows' integer state, shape (6, F): active or not, mark of the last
# search, the heap and each flow's place in it (-1 if none), buffers of flows that
# started and ended since the last settlement.
ACTIVE = 0
FLOW_MARK = 1
HEAP = 2
PLACE = 3
STARTED = 4
ENDED = 5
NUM_FLOW_INT_ROWS = 6

# Rows of the links' float state, shape (3, L).
USED = 0
OPEN_WEIGHT = 1
FROZEN_WEIGHT = 2
NUM_LINK_ROWS = 3

# Rows of the links' integer state, shape (4, L).
LINK_MARK = 0
OPEN_COUNT = 1
FROZEN_COUNT = 2
LINK_LIST = 3
NUM_LINK_INT_ROWS = 4

# Counters.
HEAP_SIZE = 0
MARK = 1
NUM_ENDED = 2
NUM_COUNTERS = 3

# Scalars.
TICK = 0
BIN_WIDTH = 1

_RATIO_TOLERANCE = 1.0 + 1e-12


@numba.njit(cache=True, error_model="numpy")
def fill(
    flows: IntArray,
    num_flows: int,
    links: IntArray,
    num_links: int,
    flow_indptr: IntArray,
    flow_links: IntArray,
    flow_weights: FloatArray,
    link_indptr: IntArray,
    link_flows: IntArray,
    capacity: FloatArray,
    level: FloatArray,
    link_state: FloatArray,
    link_ints: IntArray,
) -> int:
    """Fill one component level by level; write the flows' levels [1]_.

    Per round: ``lam`` = least (capacity - used) / open weight over links with open
    flows; links within 1e-12 of it are saturated; their open flows are frozen at
    ``lam``; every link then subtracts the frozen weight and adds ``lam`` times it,
    with one multiplication. Sums of integer weights are exact, so n equal flows give
    bit for bit what one flow of weight n gives, and no order of flows matters. Rounds
    are at most the number of distinct levels; each is linear in the incidences.

    Preconditions: capacities and weights are positive; ``level`` is negative for the
    flows of the component, and not negative for all other flows on its links; each
    flow has a link. ``links`` is overwritten.

    Returns
    -------
    int
        0, or 1 if a round froze nothing, which the preconditions exclude.
    """
    used = link_state[USED]
    open_weight = link_state[OPEN_WEIGHT]
    frozen_weight = link_state[FROZEN_WEIGHT]
    open_count = link_ints[OPEN_COUNT]
    frozen_count = link_ints[FROZEN_COUNT]
    for j in range(num_links):
        link = links[j]
        used[link] = 0.0
        open_weight[link] = 0.0
        open_count[link] = 0
        frozen_weight[link] = 0.0
        frozen_count[link] = 0
    for i in range(num_flows):
        f = flows[i]
        for e in range(flow_indptr[f], flow_indptr[f + 1]):
            open_weight[flow_links[e]] += flow_weights[e]
            open_count[flow_links[e]] += 1
    num_open = num_flows
    floor = 0.0
    while num_open > 0:
        lam = np.inf
        for j in range(num_links):
            link = links[j]
            if open_count[link] > 0:
                ratio = (capacity[link] - used[link]) / open_weight[link]
                lam = min(lam, ratio)
        # Levels rise from round to round, but for rounding.
        lam = max(lam, floor)
        floor = lam
        threshold = lam * _RATIO_TOLERANCE
        before = num_open
        for j in range(num_links):
            link = links[j]
            if open_count[link] == 0:
                continue
            if (capacity[link] - used[link]) / open_weight[link] > threshold:
                continue
            for e in range(link_indptr[link], link_indptr[link + 1]):
                f = link_flows[e]
                if level[f] >= 0.0:
                    continue
                level[f] = lam
                num_open -= 1
                for q in range(flow_indptr[f], flow_indptr[f + 1]):
                    frozen_weight[flow_links[q]] += flow_weights[q]
                    frozen_count[flow_links[q]] += 1
        if num_open == before:
            return 1
        remaining_links = 0
        for j in range(num_links):
            link = links[j]
            used[link] += lam * frozen_weight[link]
            open_weight[link] -= frozen_weight[link]
            open_count[link] -= frozen_count[link]
            frozen_weight[link] = 0.0
            frozen_count[link] = 0
            if open_count[link] > 0:
                links[remaining_links] = link
                remaining_links += 1
        num_links = remaining_links
    return 0


@numba.njit(cache=True, error_model="numpy")
def _precedes(finish: FloatArray, f: int, g: int) -> bool:
    """Order of the heap: by time, equal times by flow number."""
    return finish[f] < finish[g] or (finish[f] == finish[g] and f < g)


@numba.njit(cache=True, error_model="numpy")
def _sift(heap: IntArray, place: IntArray, finish: FloatArray, f: int, n: int) -> None:
    """Move flow ``f`` of an indexed binary heap of size ``n`` to where it belongs."""
    i = place[f]
    while i > 0:
        parent = (i - 1) // 2
        if not _precedes(finish, f, heap[parent]):
            break
        heap[i] = heap[parent]
        place[heap[i]] = i
        i = parent
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and _precedes(finish, heap[child + 1], heap[child]):
            child += 1
        if not _precedes(finish, heap[child], f):
            break
        heap[i] = heap[child]
        place[heap[i]] = i
        i = child
    heap[i] = f
    place[f] = i


@numba.njit(cache=True, error_model="numpy")
def _deposit(
    bins: FloatArray,
    scalars: FloatArray,
    f: int,
    begin: float,
    end: float,
    amount: float,
) -> None:
    """Spread ``amount`` bytes of a flow evenly over ``begin..end`` in its time bins.

    When the bins do not reach ``end``, neighbours are merged and the width doubles.
    """
    num_bins = bins.shape[1]
    while end > num_bins * scalars[BIN_WIDTH]:
        for g in range(bins.shape[0]):
            for k in range(num_bins // 2):
                bins[g, k] = bins[g, 2 * k] + bins[g, 2 * k + 1]
            for k in range(num_bins // 2, num_bins):
                bins[g, k] = 0.0
        scalars[BIN_WIDTH] *= 2.0
    width = scalars[BIN_WIDTH]
    first = min(int(begin / width), num_bins - 1)
    last = min(int(end / width), num_bins - 1)
    if first == last:
        bins[f, first] += amount
        return
    per_second = amount / (end - begin)
    bins[f, first] += per_second * ((first + 1) * width - begin)
    for k in range(first + 1, last):
        bins[f, k] += per_second * width
    bins[f, last] += per_second * (end - last * width)


@numba.njit(cache=True, error_model="numpy")
def settle(
    now: float,
    num_started: int,
    flow_indptr: IntArray,
    flow_links: IntArray,
    flow_weights: FloatArray,
    link_indptr: IntArray,
    link_flows: IntArray,
    capacity: FloatArray,
    num_bytes: FloatArray,
    flow_state: FloatArray,
    flow_ints: IntArray,
    link_state: FloatArray,
    link_ints: IntArray,
    counters: IntArray,
    scalars: FloatArray,
    bins: FloatArray,
) -> float:
    """Solve the rates again after flows have started and ended; return the next end.

    Takes the flows in row `STARTED` and those that `harvest` has ended since the last
    call. Only their components are solved: a search from their links through active
    flows. A flow whose level comes out bitwise unchanged keeps its moment of
    completion; for another one ``remaining`` is brought up to date and the time left is
    rounded to the tick. Linear in the component's incidences times rounds, plus
    O(log F) per changed flow.

    Returns
    -------
    float
        The earliest completion, infinite if no flow is active; -1 if `fill` failed
        [s].
    """
    remaining = flow_state[REMAINING]
    rate = flow_state[RATE]
    since = flow_state[SINCE]
    finish = flow_state[FINISH]
    level = flow_state[LEVEL]
    active = flow_ints[ACTIVE]
    flow_mark = flow_ints[FLOW_MARK]
    heap = flow_ints[HEAP]
    place = flow_ints[PLACE]
    link_mark = link_ints[LINK_MARK]
    links = link_ints[LINK_LIST]
    counters[MARK] += 1
    mark = counters[MARK]
    num_links = 0
    for i in range(num_started):
        f = flow_ints[STARTED, i]
        active[f] = 1
        remaining[f] = num_bytes[f]
        rate[f] = 0.0
        since[f] = now
    for i in range(num_started + counters[NUM_ENDED]):
        if i < num_started:
            f = flow_ints[STARTED, i]
        else:
            f = flow_ints[ENDED, i - num_started]
        for e in range(flow_indptr[f], flow_indptr[f + 1]):
            link = flow_links[e]
            if link_mark[link] != mark:
                link_mark[link] = mark
                links[num_links] = link
                num_links += 1
    counters[NUM_ENDED] = 0
    # The started flows are no longer needed: their row takes the component's flows.
    flows = flow_ints[STARTED]
    num_flows = 0
    i = 0
    while i < num_links:
        link = links[i]
        i += 1
        for e in range(link_indptr[link], link_indptr[link + 1]):
            f = link_flows[e]
            if active[f] == 0 or flow_mark[f] == mark:
                continue
            flow_mark[f] = mark
            level[f] = -1.0
            flows[num_flows] = f
            num_flows += 1
            for q in range(flow_indptr[f], flow_indptr[f + 1]):
                other = flow_links[q]
                if link_mark[other] != mark:
                    link_mark[other] = mark
                    links[num_links] = other
                    num_links += 1
    status = fill(
        flows,
        num_flows,
        links,
        num_links,
        flow_indptr,
        flow_links,
        flow_weights,
        link_indptr,
        link_flows,
        capacity,
        level,
        link_state,
        link_ints,
    )
    if status != 0:
        return -1.0
    tick = scalars[TICK]
    for i in range(num_flows):
        f = flows[i]
        if level[f] == rate[f]:
            continue
        if now > since[f]:
            moved = min(rate[f] * (now - since[f]), remaining[f])
            _deposit(bins, scalars, f, since[f], now, moved)
            remaining[f] -= moved
        since[f] = now
        rate[f] = level[f]
        finish[f] = now + np.ceil(remaining[f] / rate[f] / tick - 0.5) * tick
        if place[f] < 0:
            place[f] = counters[HEAP_SIZE]
            counters[HEAP_SIZE] += 1
        _sift(heap, place, finish, f, counters[HEAP_SIZE])
    return finish[heap[0]] if counters[HEAP_SIZE] > 0 else np.inf


@numba.njit(cache=True, error_model="numpy")
def harvest(
    now: float,
    flow_state: FloatArray,
    flow_ints: IntArray,
    counters: IntArray,
    scalars: FloatArray,
    bins: FloatArray,
) -> int:
    """End every flow whose time has come; append them to row `ENDED`, return how many.

    Equal times go by flow number. What the rounding to ticks left of a flow is booked
    in its last interval, so a flow's bins add up to its bytes. O(log F) per flow.
    """
    remaining = flow_state[REMAINING]
    rate = flow_state[RATE]
    since = flow_state[SINCE]
    finish = flow_state[FINISH]
    heap = flow_ints[HEAP]
    place = flow_ints[PLACE]
    count = 0
    while counters[HEAP_SIZE] > 0 and finish[heap[0]] <= now:
        f = heap[0]
        counters[HEAP_SIZE] -= 1
        n = counters[HEAP_SIZE]
        place[f] = -1
        if n > 0:
            moved = heap[n]
            heap[0] = moved
            place[moved] = 0
            _sift(heap, place, finish, moved, n)
        _deposit(bins, scalars, f, since[f], now, remaining[f])
        remaining[f] = 0.0
        rate[f] = 0.0
        flow_ints[ACTIVE, f] = 0
        flow_state[LEVEL, f] = 0.0
        flow_ints[ENDED, counters[NUM_ENDED]] = f
        counters[NUM_ENDED] += 1
        count += 1
    return count


@numba.njit(cache=True, error_model="numpy")
def spread(
    indptr: IntArray,
    rows: IntArray,
    weights: FloatArray,
    flow_values: FloatArray,
    out: FloatArray,
) -> None:
    """Add every flow's row, times its weight, to the rows of the links that it crosses.

    ``out[l, k] += sum_f w[f, l] flow_values[f, k]``, in order of flows.
    """
    for f in range(indptr.shape[0] - 1):
        for e in range(indptr[f], indptr[f + 1]):
            for k in range(flow_values.shape[1]):
                out[rows[e], k] += weights[e] * flow_values[f, k]
