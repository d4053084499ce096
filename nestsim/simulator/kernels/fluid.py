"""Max-min fair sharing of links by flows, and the event loop of a whole system.

A flow ``f`` moves ``bytes[f]`` at a level ``x[f]``, the rate of one of its lanes
[byte/s]; its weight ``w[f, l]`` on a link ``l`` is the number of its lanes there.
Levels are max-min fair under ``sum_f w[f, l] x[f] <= C[l]``. They change only when a
flow starts or ends, and only for flows joined to it by a chain of shared links.

The functions call each other and live in one file, because the compilation cache does
not notice changes in another. The state lies in arrays whose rows are named by the
constants below; `nestsim.simulator.engines.fluid` allocates those of the network, and
`nestsim.simulator.engines.compiled` those of the loop.

References
----------
.. [1] Bertsekas, Gallager, "Data Networks", 2nd ed., Prentice Hall 1992, section 6.5.2
   (max-min flow control by progressive filling).
"""

import numpy as np

from topologies.arrays import BoolVector, FloatMatrix, FloatVector, IntMatrix, IntVector
from topologies.compiling import kernel, subkernel

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
NUM_DEPOSITS = 3
NUM_COUNTERS = 4

# Scalars; what `DELAY` is added to are the moments at which traffic is booked, because
# time that was skipped is not on the clock.
TICK = 0
BIN_WIDTH = 1
DELAY = 2
NUM_SCALARS = 3

# Rows of the latest deposits, shape (4, R): deposit n is in column n mod R.
DEPOSIT_FLOW = 0
DEPOSIT_BEGIN = 1
DEPOSIT_END = 2
DEPOSIT_AMOUNT = 3
NUM_DEPOSIT_ROWS = 4

_RATIO_TOLERANCE = 1.0 + 1e-12


@kernel
def fill(
    flows: IntVector,
    num_flows: int,
    links: IntVector,
    num_links: int,
    flow_indptr: IntVector,
    flow_links: IntVector,
    flow_weights: FloatVector,
    link_indptr: IntVector,
    link_flows: IntVector,
    capacity: FloatVector,
    level: FloatVector,
    link_state: FloatMatrix,
    link_ints: IntMatrix,
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


@subkernel
def _precedes(finish: FloatVector, f: int, g: int) -> bool:
    """Order of the heap: by time, equal times by flow number."""
    return finish[f] < finish[g] or (finish[f] == finish[g] and f < g)


@subkernel
def _sift(
    heap: IntVector, place: IntVector, finish: FloatVector, f: int, n: int
) -> None:
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


@subkernel
def _book(
    bins: FloatMatrix,
    scalars: FloatVector,
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


@subkernel
def _deposit(
    bins: FloatMatrix,
    scalars: FloatVector,
    counters: IntVector,
    recent: FloatMatrix,
    f: int,
    begin: float,
    end: float,
    amount: float,
) -> None:
    """Book what a flow moved from ``begin`` to ``end``, and remember it.

    Nothing if there are no bins.
    """
    if bins.shape[1] == 0:
        return
    begin += scalars[DELAY]
    end += scalars[DELAY]
    if recent.shape[1] > 0:
        column = counters[NUM_DEPOSITS] % recent.shape[1]
        recent[DEPOSIT_FLOW, column] = f
        recent[DEPOSIT_BEGIN, column] = begin
        recent[DEPOSIT_END, column] = end
        recent[DEPOSIT_AMOUNT, column] = amount
    counters[NUM_DEPOSITS] += 1
    _book(bins, scalars, f, begin, end, amount)


@kernel
def repeat_deposits(
    first: int,
    count: int,
    period: float,
    bins: FloatMatrix,
    scalars: FloatVector,
    counters: IntVector,
    recent: FloatMatrix,
) -> None:
    """Book all deposits from ``first`` on again, ``count`` times, a period later each.

    In the order and with the arithmetic in which they would have come one by one, so
    that the bins are bitwise the same. O(count x deposits). Precondition: ``recent``
    still has them.
    """
    for k in range(1, count + 1):
        for n in range(first, counters[NUM_DEPOSITS]):
            column = n % recent.shape[1]
            _book(
                bins,
                scalars,
                int(recent[DEPOSIT_FLOW, column]),
                recent[DEPOSIT_BEGIN, column] + k * period,
                recent[DEPOSIT_END, column] + k * period,
                recent[DEPOSIT_AMOUNT, column],
            )


@kernel
def settle(
    now: float,
    num_started: int,
    flow_indptr: IntVector,
    flow_links: IntVector,
    flow_weights: FloatVector,
    link_indptr: IntVector,
    link_flows: IntVector,
    capacity: FloatVector,
    num_bytes: FloatVector,
    flow_state: FloatMatrix,
    flow_ints: IntMatrix,
    link_state: FloatMatrix,
    link_ints: IntMatrix,
    counters: IntVector,
    scalars: FloatVector,
    bins: FloatMatrix,
    recent: FloatMatrix,
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
            _deposit(bins, scalars, counters, recent, f, since[f], now, moved)
            remaining[f] -= moved
        since[f] = now
        rate[f] = level[f]
        finish[f] = now + np.ceil(remaining[f] / rate[f] / tick - 0.5) * tick
        if place[f] < 0:
            place[f] = counters[HEAP_SIZE]
            counters[HEAP_SIZE] += 1
        _sift(heap, place, finish, f, counters[HEAP_SIZE])
    return finish[heap[0]] if counters[HEAP_SIZE] > 0 else np.inf


@kernel
def harvest(
    now: float,
    flow_state: FloatMatrix,
    flow_ints: IntMatrix,
    counters: IntVector,
    scalars: FloatVector,
    bins: FloatMatrix,
    recent: FloatMatrix,
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
        _deposit(bins, scalars, counters, recent, f, since[f], now, remaining[f])
        remaining[f] = 0.0
        rate[f] = 0.0
        flow_ints[ACTIVE, f] = 0
        flow_state[LEVEL, f] = 0.0
        flow_ints[ENDED, counters[NUM_ENDED]] = f
        counters[NUM_ENDED] += 1
        count += 1
    return count


@kernel
def spread(
    indptr: IntVector,
    rows: IntVector,
    weights: FloatVector,
    flow_values: FloatMatrix,
    out: FloatMatrix,
) -> None:
    """Add every flow's row, times its weight, to the rows of the links that it crosses.

    ``out[l, k] += sum_f w[f, l] flow_values[f, k]``, in order of flows.
    """
    for f in range(indptr.shape[0] - 1):
        for e in range(indptr[f], indptr[f + 1]):
            for k in range(flow_values.shape[1]):
                out[rows[e], k] += weights[e] * flow_values[f, k]


# Rows of the steps' integers, shape (4, T): as in `nestsim.simulator.system.Step`.
SOURCE = 0
NEED = 1
TARGET = 2
SPAN = 3
NUM_STEP_ROWS = 4

# Bits of `SPAN`.
OPENS = 1
CLOSES = 2

# Rows of the actors' integers, shape (8, A): step to do or at work on, and behind the
# last one; whether the step's work has begun; the next actor that waits for the same
# channel; actors that can go on; the first place in the log of spans, and how many
# began and ended.
POSITION = 0
STOP = 1
AT_WORK = 2
NEXT_WAITING = 3
READY = 4
FIRST_SPAN = 5
NUM_OPENED = 6
NUM_CLOSED = 7
NUM_ACTOR_ROWS = 8

# Rows of the channels' integers, shape (10, C): posts for one message; whether it needs
# time on a link; the first place in the log of messages; posts that are missing for the
# next one; messages that were posted, began to leave, left, arrived; whether one is on
# the link; the first actor that waits.
NUM_SOURCES = 0
WIRED = 1
FIRST_MESSAGE = 2
MISSING = 3
NUM_POSTED = 4
NUM_BEGUN = 5
NUM_LEFT = 6
NUM_ARRIVED = 7
BUSY = 8
FIRST_WAITING = 9
NUM_CHANNEL_ROWS = 10

# Rows of the logs, shapes (2, spans) and (3, messages).
OPENED = 0
CLOSED = 1
POSTED = 0
BEGUN = 1
ARRIVED = 2

# Rows of the events, shape (2, A + C): the heap, and the place of each event in it (-1
# if none). Event a < A ends the step of actor a, event A + c brings a message of
# channel c.
EVENT_HEAP = 0
EVENT_PLACE = 1

# Integers of the loop: events in the heap, actors that are not done, actors that can go
# on, flows that start at this instant, whether rates must be solved, whether the run is
# to be looked at, instants at which rates were solved.
NUM_EVENTS = 0
NUM_WORKING = 1
NUM_READY = 2
NUM_STARTED = 3
TOUCHED = 4
LOOK = 5
NUM_SETTLEMENTS = 6
NUM_LOOP_INTS = 7

# Numbers of the loop: the moment, when the next flow ends, and the last moment that is
# of interest, which, unlike the others, counts the time that was skipped.
NOW = 0
NEXT_END = 1
CUTOFF = 2
NUM_LOOP_FLOATS = 3

# What `advance` returns.
DONE = 0
LOOKING = 1
WAITING_FOR_EVER = 2
NO_PROGRESS = 3
PAUSED = 4
CUT_OFF = 5

_MOST_INSTANTS = 10_000
"""Instants before `advance` returns, so that Python hears what it is asked to do."""


@subkernel
def _schedule(
    event: int, moment: float, events: IntMatrix, due: FloatVector, loop: IntVector
) -> None:
    """Put an event that is not in the heap into it."""
    due[event] = moment
    events[EVENT_PLACE, event] = loop[NUM_EVENTS]
    loop[NUM_EVENTS] += 1
    _sift(events[EVENT_HEAP], events[EVENT_PLACE], due, event, loop[NUM_EVENTS])


@subkernel
def _next_event(events: IntMatrix, due: FloatVector, loop: IntVector) -> int:
    """Take the first event out of the heap."""
    event = events[EVENT_HEAP, 0]
    loop[NUM_EVENTS] -= 1
    size = loop[NUM_EVENTS]
    events[EVENT_PLACE, event] = -1
    if size > 0:
        moved = events[EVENT_HEAP, size]
        events[EVENT_HEAP, 0] = moved
        events[EVENT_PLACE, moved] = 0
        _sift(events[EVENT_HEAP], events[EVENT_PLACE], due, moved, size)
    return int(event)


@subkernel
def _arrive(
    c: int, steps: IntMatrix, actors: IntMatrix, channels: IntMatrix, loop: IntVector
) -> None:
    """Count a message that has arrived, and let go on who waited for it."""
    channels[NUM_ARRIVED, c] += 1
    a = channels[FIRST_WAITING, c]
    channels[FIRST_WAITING, c] = -1
    while a >= 0:
        following = actors[NEXT_WAITING, a]
        if steps[NEED, actors[POSITION, a]] <= channels[NUM_ARRIVED, c]:
            actors[READY, loop[NUM_READY]] = a
            loop[NUM_READY] += 1
        else:
            actors[NEXT_WAITING, a] = channels[FIRST_WAITING, c]
            channels[FIRST_WAITING, c] = a
        a = following


@subkernel
def _leave(
    now: float,
    delay: float,
    c: int,
    steps: IntMatrix,
    actors: IntMatrix,
    channels: IntMatrix,
    latency: FloatVector,
    messages: FloatMatrix,
    events: IntMatrix,
    due: FloatVector,
    loop: IntVector,
) -> None:
    """Send a message whose last byte has left on its way.

    Of those on their way only the first one is in the heap: they arrive in order.
    """
    number = channels[NUM_LEFT, c]
    channels[NUM_LEFT, c] += 1
    messages[ARRIVED, channels[FIRST_MESSAGE, c] + number] = now + latency[c] + delay
    if latency[c] == 0.0:
        _arrive(c, steps, actors, channels, loop)
    elif number == channels[NUM_ARRIVED, c]:
        _schedule(actors.shape[1] + c, now + latency[c], events, due, loop)


@subkernel
def _begin_message(
    now: float,
    delay: float,
    c: int,
    steps: IntMatrix,
    actors: IntMatrix,
    channels: IntMatrix,
    latency: FloatVector,
    messages: FloatMatrix,
    events: IntMatrix,
    due: FloatVector,
    loop: IntVector,
    flow_ints: IntMatrix,
) -> None:
    """Let the next complete message begin to leave."""
    messages[BEGUN, channels[FIRST_MESSAGE, c] + channels[NUM_BEGUN, c]] = now + delay
    channels[NUM_BEGUN, c] += 1
    if channels[WIRED, c] == 0:
        _leave(
            now,
            delay,
            c,
            steps,
            actors,
            channels,
            latency,
            messages,
            events,
            due,
            loop,
        )
        return
    channels[BUSY, c] = 1
    flow_ints[STARTED, loop[NUM_STARTED]] = c
    loop[NUM_STARTED] += 1
    loop[TOUCHED] = 1


@subkernel
def _go_on(
    now: float,
    delay: float,
    reference: int,
    marked: BoolVector,
    duration: FloatVector,
    steps: IntMatrix,
    slots: IntMatrix,
    actors: IntMatrix,
    channels: IntMatrix,
    latency: FloatVector,
    spans: FloatMatrix,
    messages: FloatMatrix,
    events: IntMatrix,
    due: FloatVector,
    loop: IntVector,
    flow_ints: IntMatrix,
) -> None:
    """Let all actors that can go on do so, until each works, waits or is done."""
    while loop[NUM_READY] > 0:
        loop[NUM_READY] -= 1
        a = actors[READY, loop[NUM_READY]]
        i = actors[POSITION, a]
        while True:
            if actors[AT_WORK, a] == 0:
                if i == actors[STOP, a]:
                    loop[NUM_WORKING] -= 1
                    break
                if steps[SOURCE, i] >= 0:
                    c = slots[a, steps[SOURCE, i]]
                    if channels[NUM_ARRIVED, c] < steps[NEED, i]:
                        actors[NEXT_WAITING, a] = channels[FIRST_WAITING, c]
                        channels[FIRST_WAITING, c] = a
                        break
                if steps[SPAN, i] & OPENS and spans.shape[1] > 0:
                    place = actors[FIRST_SPAN, a] + actors[NUM_OPENED, a]
                    spans[OPENED, place] = now + delay
                    actors[NUM_OPENED, a] += 1
                if duration[i] > 0.0:
                    actors[AT_WORK, a] = 1
                    _schedule(a, now + duration[i], events, due, loop)
                    break
            actors[AT_WORK, a] = 0
            if steps[SPAN, i] & CLOSES and spans.shape[1] > 0:
                place = actors[FIRST_SPAN, a] + actors[NUM_CLOSED, a]
                spans[CLOSED, place] = now + delay
                actors[NUM_CLOSED, a] += 1
            if steps[TARGET, i] >= 0:
                c = slots[a, steps[TARGET, i]]
                channels[MISSING, c] -= 1
                if channels[MISSING, c] == 0:
                    channels[MISSING, c] = channels[NUM_SOURCES, c]
                    place = channels[FIRST_MESSAGE, c] + channels[NUM_POSTED, c]
                    messages[POSTED, place] = now + delay
                    channels[NUM_POSTED, c] += 1
                    if channels[BUSY, c] == 0:
                        _begin_message(
                            now,
                            delay,
                            c,
                            steps,
                            actors,
                            channels,
                            latency,
                            messages,
                            events,
                            due,
                            loop,
                            flow_ints,
                        )
            i += 1
            actors[POSITION, a] = i
            if a == reference and marked[i]:
                loop[LOOK] = 1


@kernel
def advance(
    reference: int,
    marked: BoolVector,
    duration: FloatVector,
    steps: IntMatrix,
    slots: IntMatrix,
    actors: IntMatrix,
    channels: IntMatrix,
    latency: FloatVector,
    spans: FloatMatrix,
    messages: FloatMatrix,
    events: IntMatrix,
    due: FloatVector,
    loop: IntVector,
    moments: FloatVector,
    flow_indptr: IntVector,
    flow_links: IntVector,
    flow_weights: FloatVector,
    link_indptr: IntVector,
    link_flows: IntVector,
    capacity: FloatVector,
    num_bytes: FloatVector,
    flow_state: FloatMatrix,
    flow_ints: IntMatrix,
    link_state: FloatMatrix,
    link_ints: IntMatrix,
    counters: IntVector,
    scalars: FloatVector,
    bins: FloatMatrix,
    recent: FloatMatrix,
) -> int:
    """Run a system until all actors are done, or until it is to be looked at.

    Or until the cutoff has passed.

    The same as `nestsim.simulator.engines.simpy_engine`, in the same arithmetic. At one
    instant: steps end, messages arrive and flows end; who can go on does; then the
    rates are solved once, and again if a flow ends at once. Within an instant the order
    makes no difference to any moment or byte. O(log(A + C)) per event beside the rates.

    Parameters
    ----------
    reference, marked
        The run is looked at after an instant at which this actor has come to a step
        that is marked, shape ``(T + 1,)``.
    duration, steps
        Of all programs, shapes ``(T,)`` [s] and ``(NUM_STEP_ROWS, T)``.
    slots
        Channel in each slot of each actor, shape ``(A, S)``.
    spans, bins
        Without columns if spans, and what flows move, are not to be recorded.

    Returns
    -------
    int
        `DONE`; `LOOKING` or `PAUSED`, and the next call goes on; `CUT_OFF`, and some
        actor is not done before the cutoff has passed; or that actors wait for what
        nobody sends (`WAITING_FOR_EVER`) or `fill` failed (`NO_PROGRESS`), which both
        cannot be.
    """
    num_actors = actors.shape[1]
    delay = scalars[DELAY]
    num_instants = 0
    while loop[NUM_WORKING] > 0:
        now = moments[NEXT_END]
        if loop[NUM_EVENTS] > 0:
            now = min(now, due[events[EVENT_HEAP, 0]])
        if loop[NUM_READY] > 0:
            now = moments[NOW]
        if now == np.inf:
            return WAITING_FOR_EVER
        if now + delay > moments[CUTOFF]:
            return CUT_OFF
        moments[NOW] = now
        while True:
            while loop[NUM_EVENTS] > 0 and due[events[EVENT_HEAP, 0]] <= now:
                event = _next_event(events, due, loop)
                if event < num_actors:
                    actors[READY, loop[NUM_READY]] = event
                    loop[NUM_READY] += 1
                    continue
                c = event - num_actors
                _arrive(c, steps, actors, channels, loop)
                if channels[NUM_LEFT, c] > channels[NUM_ARRIVED, c]:
                    place = channels[FIRST_MESSAGE, c] + channels[NUM_ARRIVED, c]
                    _schedule(
                        event, messages[ARRIVED, place] - delay, events, due, loop
                    )
            if moments[NEXT_END] <= now:
                moments[NEXT_END] = np.inf
                first = counters[NUM_ENDED]
                count = harvest(
                    now, flow_state, flow_ints, counters, scalars, bins, recent
                )
                loop[TOUCHED] = 1
                for n in range(first, first + count):
                    c = flow_ints[ENDED, n]
                    channels[BUSY, c] = 0
                    _leave(
                        now,
                        delay,
                        c,
                        steps,
                        actors,
                        channels,
                        latency,
                        messages,
                        events,
                        due,
                        loop,
                    )
                    if channels[NUM_BEGUN, c] < channels[NUM_POSTED, c]:
                        _begin_message(
                            now,
                            delay,
                            c,
                            steps,
                            actors,
                            channels,
                            latency,
                            messages,
                            events,
                            due,
                            loop,
                            flow_ints,
                        )
            if loop[NUM_READY] > 0:
                _go_on(
                    now,
                    delay,
                    reference,
                    marked,
                    duration,
                    steps,
                    slots,
                    actors,
                    channels,
                    latency,
                    spans,
                    messages,
                    events,
                    due,
                    loop,
                    flow_ints,
                )
                continue
            if loop[NUM_EVENTS] > 0 and due[events[EVENT_HEAP, 0]] <= now:
                continue
            if loop[TOUCHED] == 0:
                break
            loop[TOUCHED] = 0
            loop[NUM_SETTLEMENTS] += 1
            following = settle(
                now,
                loop[NUM_STARTED],
                flow_indptr,
                flow_links,
                flow_weights,
                link_indptr,
                link_flows,
                capacity,
                num_bytes,
                flow_state,
                flow_ints,
                link_state,
                link_ints,
                counters,
                scalars,
                bins,
                recent,
            )
            if following < 0.0:
                return NO_PROGRESS
            loop[NUM_STARTED] = 0
            moments[NEXT_END] = following
        if loop[LOOK] == 1:
            loop[LOOK] = 0
            return LOOKING
        num_instants += 1
        if num_instants == _MOST_INSTANTS:
            return PAUSED
    return DONE


@kernel
def record_again(
    log: FloatVector,
    first: IntVector,
    length: IntVector,
    size: IntVector,
    num_periods: int,
    period: float,
) -> None:
    """Repeat the last moments of each log in every period that is skipped.

    Log ``k`` lies from ``first[k]`` on; its last ``size[k]`` of ``length[k]`` moments
    are those of a period: ``x[j] = x[j - size] + period`` for the following
    ``num_periods * size`` ones.
    """
    for k in range(first.shape[0]):
        begin = first[k] + length[k]
        for j in range(begin, begin + num_periods * size[k]):
            log[j] = log[j - size[k]] + period
