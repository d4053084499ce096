"""Max-min fair sharing of links by flows.

A flow ``f`` moves ``num_bytes[f]`` at a level ``x[f]``, the rate of one of its lanes
[byte/s]; its weight ``w[f, l]`` on a link ``l`` is the number of its lanes there.
Levels are max-min fair under ``sum_f w[f, l] x[f] <= C[l]``. They change only when a
flow starts or ends, and only for flows joined to it by a chain of shared links.

The state is a tuple of named arrays, `FluidState`, which
`nestsim.simulator.compiled` makes; a number that changes is an array of one.
`nestsim.simulator.kernels.event_loop` runs a whole system on it.

Letters: ``F`` flows, ``L`` links, ``E`` pairs of a flow and a link.

References
----------
.. [1] Bertsekas, Gallager, "Data Networks", 2nd ed., Prentice Hall 1992, section 6.5.2
   (max-min flow control by progressive filling).
"""

from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatMatrix, FloatVector, IntVector
from topologies.compiling import subkernel, writing_kernel

_RATIO_TOLERANCE = 1.0 + 1e-12


class Crossings(NamedTuple):
    """Which flow crosses which link, in compressed rows both ways."""

    flow_indptr: IntVector
    """Where the links of each flow begin, shape ``(F + 1,)``."""

    flow_links: IntVector
    """Links of the flows, flow by flow, shape ``(E,)``."""

    flow_weights: FloatVector
    """Lanes of the flow on each of them, positive, shape ``(E,)``."""

    link_indptr: IntVector
    """Where the flows of each link begin, shape ``(L + 1,)``."""

    link_flows: IntVector
    """Flows over the links, link by link, those that are active first, ``(E,)``."""

    link_entries: IntVector
    """Where the flow has that link in `flow_links`, shape ``(E,)``."""

    places: IntVector
    """Where the link has that flow in `link_flows`, shape ``(E,)``."""

    num_active: IntVector
    """Flows of each link that are active, shape ``(L,)``."""


class FlowState(NamedTuple):
    """What the flows are doing, shape ``(F,)`` each."""

    num_bytes: FloatVector
    """Size of a flow, for one lane [byte]."""

    remaining: FloatVector
    """What was left of it at the moment ``since`` [byte]."""

    rate: FloatVector
    """Rate of one lane since that moment, 0 if the flow is not active [byte/s]."""

    since: FloatVector
    """Moment at which its rate changed last [s]."""

    level: FloatVector
    """Rate that was solved last, negative while it is being solved [byte/s]."""

    is_active: IntVector
    """1 for flows that have started and not ended."""

    mark: IntVector
    """The last search that has come to the flow."""


class LinkState(NamedTuple):
    """The links, and what filling them needs to know, shape ``(L,)`` each."""

    capacity: FloatVector
    """Capacity of a link, positive [byte/s]."""

    used: FloatVector
    """What flows whose level is known take of it [byte/s]."""

    open_weight: FloatVector
    """Lanes of flows whose level is not known."""

    open_count: IntVector
    """Flows whose level is not known."""

    frozen_weight: FloatVector
    """Lanes of flows whose level was found in this round."""

    frozen_count: IntVector
    """Flows whose level was found in this round."""

    mark: IntVector
    """The last search that has come to the link."""

    listed: IntVector
    """The links of the component that is being solved."""


class Calendar(NamedTuple):
    """Items by when they are due: a binary heap in which each knows its place.

    Equal moments go by the numbers of the items.
    """

    heap: IntVector
    """The items in the calendar, as a heap, shape ``(items,)``."""

    place: IntVector
    """Place of each item in the heap, -1 if it has none, shape ``(items,)``."""

    due: FloatVector
    """When each item is due, shape ``(items,)`` [s]."""

    size: IntVector
    """Items in the calendar, shape ``(1,)``."""


class Deposits(NamedTuple):
    """The latest deposits, shape ``(R,)`` each: deposit n is in place n mod R."""

    flow: IntVector
    """Which flow moved bytes."""

    begin: FloatVector
    """From when on [s]."""

    end: FloatVector
    """Until when [s]."""

    amount: FloatVector
    """Bytes moved [byte]."""


class Bookings(NamedTuple):
    """What flows have moved, by time."""

    bins: FloatMatrix
    """Bytes of each flow in each time bin; no columns if traffic is not recorded, shape
    ``(F, bins)`` [byte]."""

    bin_width: FloatVector
    """Width of a time bin, shape ``(1,)`` [s]."""

    delay: FloatVector
    """Time that was skipped and is not on the clock, shape ``(1,)`` [s]."""

    recent: Deposits
    """What was booked last; of length 0 if it need not be remembered."""

    num_deposits: IntVector
    """Deposits so far, shape ``(1,)``."""


class FluidState(NamedTuple):
    """Flows over links at one moment."""

    tick: float
    """Unit of the clock [s]."""

    crossings: Crossings
    """Which flow crosses which link."""

    flows: FlowState
    """What each flow is doing."""

    links: LinkState
    """Capacities, and working space of `fill`."""

    ends: Calendar
    """When each active flow ends."""

    bookings: Bookings
    """What flows have moved."""

    started: IntVector
    """Flows that have started since the rates were solved, shape ``(F,)``."""

    num_started: IntVector
    """How many they are, shape ``(1,)``."""

    ended: IntVector
    """Flows that have ended since the rates were solved, shape ``(F,)``."""

    num_ended: IntVector
    """How many they are, shape ``(1,)``."""

    num_searches: IntVector
    """Searches for components so far, shape ``(1,)``."""


@subkernel
def _exchange(crossings: Crossings, entry: int, place: int) -> None:
    """Let a flow take another place among those of a link."""
    flows, entries = crossings.link_flows, crossings.link_entries
    was, other = crossings.places[entry], entries[place]
    flows[was], flows[place] = flows[place], flows[was]
    entries[was], entries[place] = other, entry
    crossings.places[entry], crossings.places[other] = place, was


@subkernel
def _activate(crossings: Crossings, f: int) -> None:
    """List a flow among the active ones of its links."""
    for e in range(crossings.flow_indptr[f], crossings.flow_indptr[f + 1]):
        link = crossings.flow_links[e]
        number = crossings.num_active[link]
        _exchange(crossings, e, crossings.link_indptr[link] + number)
        crossings.num_active[link] = number + 1


@subkernel
def _deactivate(crossings: Crossings, f: int) -> None:
    """Take a flow from the active ones of its links."""
    for e in range(crossings.flow_indptr[f], crossings.flow_indptr[f + 1]):
        link = crossings.flow_links[e]
        number = crossings.num_active[link] - 1
        _exchange(crossings, e, crossings.link_indptr[link] + number)
        crossings.num_active[link] = number


@writing_kernel
def fill(
    crossings: Crossings,
    links: LinkState,
    num_links: int,
    flows: IntVector,
    num_flows: int,
    level: FloatVector,
) -> int:
    """Fill one component level by level; write the flows' levels [1]_.

    Per round: ``lam`` = least (capacity - used) / open weight over links with open
    flows; links within 1e-12 of it are saturated; their open flows are frozen at
    ``lam``; every link then subtracts the frozen weight and adds ``lam`` times it,
    with one multiplication. Sums of integer weights are exact, so n equal flows give
    bit for bit what one flow of weight n gives, and no order of flows matters. Rounds
    are at most the number of distinct levels; each is linear in the incidences.

    Preconditions: capacities and weights are positive; ``level`` is negative for the
    flows of the component, all of them active, and not negative for all other active
    flows on its links; each flow has a link. ``links.listed`` has the component's links
    and is overwritten.

    Returns
    -------
    int
        0, or 1 if a round froze nothing, which the preconditions exclude.
    """
    flow_indptr, flow_links = crossings.flow_indptr, crossings.flow_links
    flow_weights = crossings.flow_weights
    link_indptr, link_flows = crossings.link_indptr, crossings.link_flows
    num_active = crossings.num_active
    capacity, used, listed = links.capacity, links.used, links.listed
    open_weight, open_count = links.open_weight, links.open_count
    frozen_weight, frozen_count = links.frozen_weight, links.frozen_count
    for j in range(num_links):
        link = listed[j]
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
            link = listed[j]
            if open_count[link] > 0:
                ratio = (capacity[link] - used[link]) / open_weight[link]
                lam = min(lam, ratio)
        # Levels rise from round to round, but for rounding.
        lam = max(lam, floor)
        floor = lam
        threshold = lam * _RATIO_TOLERANCE
        before = num_open
        for j in range(num_links):
            link = listed[j]
            if open_count[link] == 0:
                continue
            if (capacity[link] - used[link]) / open_weight[link] > threshold:
                continue
            for e in range(link_indptr[link], link_indptr[link] + num_active[link]):
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
            link = listed[j]
            used[link] += lam * frozen_weight[link]
            open_weight[link] -= frozen_weight[link]
            open_count[link] -= frozen_count[link]
            frozen_weight[link] = 0.0
            frozen_count[link] = 0
            if open_count[link] > 0:
                listed[remaining_links] = link
                remaining_links += 1
        num_links = remaining_links
    return 0


@subkernel
def _precedes(due: FloatVector, f: int, g: int) -> bool:
    """Order of a calendar: by time, equal times by number."""
    return due[f] < due[g] or (due[f] == due[g] and f < g)


@subkernel
def _sift(calendar: Calendar, item: int) -> None:
    """Move an item of the heap to where it belongs."""
    heap, place, due = calendar.heap, calendar.place, calendar.due
    n = calendar.size[0]
    i = place[item]
    while i > 0:
        parent = (i - 1) // 2
        if not _precedes(due, item, heap[parent]):
            break
        heap[i] = heap[parent]
        place[heap[i]] = i
        i = parent
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and _precedes(due, heap[child + 1], heap[child]):
            child += 1
        if not _precedes(due, heap[child], item):
            break
        heap[i] = heap[child]
        place[heap[i]] = i
        i = child
    heap[i] = item
    place[item] = i


@subkernel
def schedule(calendar: Calendar, item: int, moment: float) -> None:
    """Set when an item is due, whether it is in the calendar or not. O(log items)."""
    calendar.due[item] = moment
    if calendar.place[item] < 0:
        calendar.place[item] = calendar.size[0]
        calendar.size[0] += 1
    _sift(calendar, item)


@subkernel
def pop_first(calendar: Calendar) -> int:
    """Take the first item out of a calendar that is not empty. O(log items)."""
    item = calendar.heap[0]
    calendar.size[0] -= 1
    calendar.place[item] = -1
    if calendar.size[0] > 0:
        moved = calendar.heap[calendar.size[0]]
        calendar.heap[0] = moved
        calendar.place[moved] = 0
        _sift(calendar, moved)
    return int(item)


@subkernel
def _book(bookings: Bookings, f: int, begin: float, end: float, amount: float) -> None:
    """Spread ``amount`` bytes of a flow evenly over ``begin..end`` in its time bins.

    When the bins do not reach ``end``, neighbours are merged and the width doubles.
    """
    bins = bookings.bins
    num_bins = bins.shape[1]
    while end > num_bins * bookings.bin_width[0]:
        for g in range(bins.shape[0]):
            for k in range(num_bins // 2):
                bins[g, k] = bins[g, 2 * k] + bins[g, 2 * k + 1]
            for k in range(num_bins // 2, num_bins):
                bins[g, k] = 0.0
        bookings.bin_width[0] *= 2.0
    width = bookings.bin_width[0]
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
    bookings: Bookings, f: int, begin: float, end: float, amount: float
) -> None:
    """Book what a flow moved from ``begin`` to ``end``, and remember it.

    Nothing if there are no bins.
    """
    if bookings.bins.shape[1] == 0:
        return
    begin += bookings.delay[0]
    end += bookings.delay[0]
    recent = bookings.recent
    if recent.flow.shape[0] > 0:
        n = bookings.num_deposits[0] % recent.flow.shape[0]
        recent.flow[n] = f
        recent.begin[n] = begin
        recent.end[n] = end
        recent.amount[n] = amount
    bookings.num_deposits[0] += 1
    _book(bookings, f, begin, end, amount)


@writing_kernel
def repeat_deposits(first: int, count: int, period: float, bookings: Bookings) -> None:
    """Book all deposits from ``first`` on again, ``count`` times, a period later each.

    In the order and with the arithmetic in which they would have come one by one, so
    that the bins are bitwise the same. O(count x deposits). Precondition: they are
    still remembered.
    """
    recent = bookings.recent
    for k in range(1, count + 1):
        for deposit in range(first, bookings.num_deposits[0]):
            n = deposit % recent.flow.shape[0]
            _book(
                bookings,
                recent.flow[n],
                recent.begin[n] + k * period,
                recent.end[n] + k * period,
                recent.amount[n],
            )


@subkernel
def start_flow(f: int, fluid: FluidState) -> None:
    """Start an idle flow; its rate is known when the rates have been solved."""
    fluid.started[fluid.num_started[0]] = f
    fluid.num_started[0] += 1


@writing_kernel
def solve_rates(now: float, fluid: FluidState) -> float:
    """Solve the rates again after flows have started and ended; return the next end.

    Only the components of those flows are solved: a search from their links through
    active flows. A flow whose level comes out bitwise unchanged keeps its moment of
    completion; for another one ``remaining`` is brought up to date and the time left is
    rounded to the tick. Linear in the component's incidences times rounds, plus
    O(log F) per changed flow.

    Returns
    -------
    float
        The earliest completion, infinite if no flow is active; -1 if `fill` failed
        [s].
    """
    crossings, links, ends = fluid.crossings, fluid.links, fluid.ends
    flow_indptr, flow_links = crossings.flow_indptr, crossings.flow_links
    remaining, rate, since = fluid.flows.remaining, fluid.flows.rate, fluid.flows.since
    level, is_active = fluid.flows.level, fluid.flows.is_active
    flow_mark, link_mark, listed = fluid.flows.mark, links.mark, links.listed
    started, num_started = fluid.started, fluid.num_started[0]
    fluid.num_searches[0] += 1
    mark = fluid.num_searches[0]
    num_links = 0
    for i in range(num_started):
        f = started[i]
        is_active[f] = 1
        _activate(crossings, f)
        remaining[f] = fluid.flows.num_bytes[f]
        rate[f] = 0.0
        since[f] = now
    for i in range(num_started + fluid.num_ended[0]):
        f = started[i] if i < num_started else fluid.ended[i - num_started]
        for e in range(flow_indptr[f], flow_indptr[f + 1]):
            link = flow_links[e]
            if link_mark[link] != mark:
                link_mark[link] = mark
                listed[num_links] = link
                num_links += 1
    fluid.num_started[0] = 0
    fluid.num_ended[0] = 0
    # The started flows are no longer needed: their array takes the component's flows.
    component = started
    num_flows = 0
    i = 0
    while i < num_links:
        link = listed[i]
        i += 1
        first = crossings.link_indptr[link]
        for e in range(first, first + crossings.num_active[link]):
            f = crossings.link_flows[e]
            if flow_mark[f] == mark:
                continue
            flow_mark[f] = mark
            level[f] = -1.0
            component[num_flows] = f
            num_flows += 1
            for q in range(flow_indptr[f], flow_indptr[f + 1]):
                other = flow_links[q]
                if link_mark[other] != mark:
                    link_mark[other] = mark
                    listed[num_links] = other
                    num_links += 1
    if fill(crossings, links, num_links, component, num_flows, level) != 0:
        return -1.0
    for i in range(num_flows):
        f = component[i]
        if level[f] == rate[f]:
            continue
        if now > since[f]:
            moved = min(rate[f] * (now - since[f]), remaining[f])
            _deposit(fluid.bookings, f, since[f], now, moved)
            remaining[f] -= moved
        since[f] = now
        rate[f] = level[f]
        left = np.ceil(remaining[f] / rate[f] / fluid.tick - 0.5) * fluid.tick
        schedule(ends, f, now + left)
    return ends.due[ends.heap[0]] if ends.size[0] > 0 else np.inf


@writing_kernel
def pop_finished(now: float, fluid: FluidState) -> int:
    """End every flow whose time has come; append them to ``ended``, return how many.

    Equal times go by flow number. What the rounding to ticks left of a flow is booked
    in its last interval, so a flow's bins add up to its bytes. O(log F) per flow.
    """
    flows, ends = fluid.flows, fluid.ends
    count = 0
    while ends.size[0] > 0 and ends.due[ends.heap[0]] <= now:
        f = pop_first(ends)
        _deposit(fluid.bookings, f, flows.since[f], now, flows.remaining[f])
        flows.remaining[f] = 0.0
        flows.rate[f] = 0.0
        flows.level[f] = 0.0
        flows.is_active[f] = 0
        _deactivate(fluid.crossings, f)
        fluid.ended[fluid.num_ended[0]] = f
        fluid.num_ended[0] += 1
        count += 1
    return count


@writing_kernel
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
