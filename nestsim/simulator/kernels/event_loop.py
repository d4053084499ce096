"""The event loop of a whole system: actors, channels, messages and flows.

The state is a tuple of named arrays, `RunState`, which
`nestsim.simulator.compiled` makes and `advance` moves on; a number that changes
is an array of one.

Letters: ``A`` actors, ``P`` ports of an actor, ``T`` steps of all programs, ``C``
channels, with a flow each.
"""

from typing import NamedTuple

import numpy as np

from nestsim.simulator.kernels.fluid import (
    Calendar,
    FluidState,
    pop_finished,
    pop_first,
    schedule,
    solve_rates,
    start_flow,
)
from nestsim.simulator.kernels.steps import StepColumns
from topologies.arrays import (
    BoolVector,
    FloatArray,
    FloatVector,
    IntArray,
    IntMatrix,
    IntVector,
)
from topologies.compiling import kernel, subkernel, writing_kernel

# Bits of the spans of steps.
OPENS = 1
CLOSES = 2

# What `advance` returns.
DONE = 0
LOOKING = 1
WAITING_FOR_EVER = 2
NO_PROGRESS = 3
PAUSED = 4
CUT_OFF = 5

_MOST_INSTANTS = 10_000
"""Instants before `advance` returns, so that Python hears what it is asked to do."""


class ActorState(NamedTuple):
    """What the actors are doing, shape ``(A,)`` each but for the ports."""

    ports: IntMatrix
    """Channel at each port of each actor, negative for none, shape ``(A, P)``."""

    position: IntVector
    """The step to do or at work on."""

    stop: IntVector
    """Behind the last step."""

    is_at_work: IntVector
    """1 if the work of the step has begun."""

    next_waiting: IntVector
    """The next actor that waits for the same channel, negative for none."""

    first_span: IntVector
    """Where the actor's spans begin in the log."""

    num_opened: IntVector
    """Spans that have begun."""

    num_closed: IntVector
    """Spans that have ended."""


class ChannelState(NamedTuple):
    """What has become of the messages of each channel, shape ``(C,)`` each."""

    num_sources: IntVector
    """Posts for one message."""

    is_wired: IntVector
    """1 if messages need time on a link."""

    latency: FloatVector
    """Between leaving and arriving [s]."""

    more: FloatVector
    """What each message needs beyond that, by its place in the log; of length 0 if none
    does [s]."""

    missing: IntVector
    """Posts that are missing for the next message."""

    num_posted: IntVector
    """Messages that were complete at their senders."""

    num_begun: IntVector
    """Messages that have begun to leave."""

    num_left: IntVector
    """Messages that have left."""

    num_arrived: IntVector
    """Messages that have arrived."""

    is_busy: IntVector
    """1 while a message is on the links."""

    first_waiting: IntVector
    """The first actor that waits for the channel, negative for none."""

    first_message: IntVector
    """Where the channel's messages begin in the log."""


class SpanLog(NamedTuple):
    """The moments of all spans; of length 0 if they are not recorded."""

    opened: FloatVector
    """When each began [s]."""

    closed: FloatVector
    """When each ended [s]."""


class MessageLog(NamedTuple):
    """The moments of all messages."""

    posted: FloatVector
    """When each was complete at its senders [s]."""

    begun: FloatVector
    """When each began to leave [s]."""

    arrived: FloatVector
    """When each arrived or will arrive [s]."""


class LoopState(NamedTuple):
    """Where the loop stands, numbers in arrays of shape ``(1,)``."""

    now: FloatVector
    """The moment, without time that was skipped [s]."""

    next_end: FloatVector
    """When the next flow ends, without time that was skipped [s]."""

    cutoff: FloatVector
    """The last moment that is of interest, with time that was skipped [s]."""

    ready: IntVector
    """Actors that can go on, shape ``(A,)``."""

    num_ready: IntVector
    """How many they are."""

    num_working: IntVector
    """Actors that are not done."""

    is_unsolved: IntVector
    """1 if flows have started or ended since the rates were solved."""

    is_marked: IntVector
    """1 if the run is to be looked at after this instant."""

    num_solutions: IntVector
    """Instants at which rates were solved."""


class RunState(NamedTuple):
    """A system that runs."""

    reference: int
    """The actor whose marked steps are looked at, negative for none."""

    is_marked: BoolVector
    """Whether the run is looked at when the reference comes to a step, ``(T + 1,)``."""

    steps: StepColumns
    """The steps of all programs."""

    actors: ActorState
    """What each is doing."""

    channels: ChannelState
    """What has become of messages."""

    spans: SpanLog
    """When spans began and ended."""

    messages: MessageLog
    """When messages were posted, left and arrived."""

    events: Calendar
    """Item a < A ends the step of actor a, item A + c brings a message of channel c."""

    loop: LoopState
    """The moment, and what is to be done at it."""

    fluid: FluidState
    """The flows of the channels."""


@subkernel
def _make_ready(a: int, loop: LoopState) -> None:
    """Let an actor go on at this instant."""
    loop.ready[loop.num_ready[0]] = a
    loop.num_ready[0] += 1


@subkernel
def _wait(a: int, c: int, state: RunState) -> None:
    """Let an actor wait for a channel."""
    state.actors.next_waiting[a] = state.channels.first_waiting[c]
    state.channels.first_waiting[c] = a


@subkernel
def _arrive(c: int, state: RunState) -> None:
    """Count a message that has arrived, and let go on who waited for it."""
    actors, channels, need = state.actors, state.channels, state.steps.need
    channels.num_arrived[c] += 1
    a = channels.first_waiting[c]
    channels.first_waiting[c] = -1
    while a >= 0:
        following = actors.next_waiting[a]
        if need[actors.position[a]] <= channels.num_arrived[c]:
            _make_ready(a, state.loop)
        else:
            _wait(a, c, state)
        a = following


@subkernel
def _leave(now: float, c: int, state: RunState) -> None:
    """Send a message whose last byte has left on its way.

    Of those on their way only the first one is in the calendar: they arrive in order.
    """
    channels, delay = state.channels, state.fluid.bookings.delay[0]
    number, arrival = channels.num_left[c], now + channels.latency[c]
    place = channels.first_message[c] + number
    if channels.more.shape[0] > 0:
        arrival += channels.more[place]
        if number > 0:
            arrival = max(arrival, state.messages.arrived[place - 1] - delay)
    channels.num_left[c] += 1
    state.messages.arrived[place] = arrival + delay
    if number > channels.num_arrived[c]:
        return
    if arrival == now:
        _arrive(c, state)
    else:
        schedule(state.events, state.actors.position.shape[0] + c, arrival)


@subkernel
def _begin_message(now: float, c: int, state: RunState) -> None:
    """Let the next complete message begin to leave."""
    channels, delay = state.channels, state.fluid.bookings.delay[0]
    place = channels.first_message[c] + channels.num_begun[c]
    state.messages.begun[place] = now + delay
    channels.num_begun[c] += 1
    if channels.is_wired[c] == 0:
        _leave(now, c, state)
        return
    channels.is_busy[c] = 1
    start_flow(c, state.fluid)
    state.loop.is_unsolved[0] = 1


@subkernel
def _post(now: float, c: int, state: RunState) -> None:
    """Count a post, which may complete a message."""
    channels = state.channels
    channels.missing[c] -= 1
    if channels.missing[c] > 0:
        return
    channels.missing[c] = channels.num_sources[c]
    place = channels.first_message[c] + channels.num_posted[c]
    state.messages.posted[place] = now + state.fluid.bookings.delay[0]
    channels.num_posted[c] += 1
    if channels.is_busy[c] == 0:
        _begin_message(now, c, state)


@subkernel
def _go_on(now: float, a: int, state: RunState) -> None:
    """Let an actor go on until it works, waits or is done."""
    steps, actors, spans = state.steps, state.actors, state.spans
    moment = now + state.fluid.bookings.delay[0]
    i = actors.position[a]
    while True:
        if actors.is_at_work[a] == 0:
            if i == actors.stop[a]:
                state.loop.num_working[0] -= 1
                return
            if steps.source[i] >= 0:
                c = actors.ports[a, steps.source[i]]
                if state.channels.num_arrived[c] < steps.need[i]:
                    _wait(a, c, state)
                    return
            if steps.span[i] & OPENS and spans.opened.shape[0] > 0:
                spans.opened[actors.first_span[a] + actors.num_opened[a]] = moment
                actors.num_opened[a] += 1
            if steps.duration[i] > 0.0:
                actors.is_at_work[a] = 1
                schedule(state.events, a, now + steps.duration[i])
                return
        actors.is_at_work[a] = 0
        if steps.span[i] & CLOSES and spans.closed.shape[0] > 0:
            spans.closed[actors.first_span[a] + actors.num_closed[a]] = moment
            actors.num_closed[a] += 1
        if steps.target[i] >= 0:
            _post(now, actors.ports[a, steps.target[i]], state)
        i += 1
        actors.position[a] = i
        if a == state.reference and state.is_marked[i]:
            state.loop.is_marked[0] = 1


@subkernel
def _take_event(state: RunState) -> None:
    """End the step or bring the message that is due first."""
    channels, num_actors = state.channels, state.actors.position.shape[0]
    event = pop_first(state.events)
    if event < num_actors:
        _make_ready(event, state.loop)
        return
    c = event - num_actors
    _arrive(c, state)
    if channels.num_left[c] > channels.num_arrived[c]:
        place = channels.first_message[c] + channels.num_arrived[c]
        arrival = state.messages.arrived[place] - state.fluid.bookings.delay[0]
        schedule(state.events, event, arrival)


@subkernel
def _end_flows(now: float, state: RunState) -> None:
    """End the flows whose time has come; the next message of their channels begins."""
    channels, fluid = state.channels, state.fluid
    state.loop.next_end[0] = np.inf
    state.loop.is_unsolved[0] = 1
    first = fluid.num_ended[0]
    count = pop_finished(now, fluid)
    for n in range(first, first + count):
        c = fluid.ended[n]
        channels.is_busy[c] = 0
        _leave(now, c, state)
        if channels.num_begun[c] < channels.num_posted[c]:
            _begin_message(now, c, state)


@writing_kernel
def advance(state: RunState) -> int:
    """Run a system until all actors are done, or until it is to be looked at.

    Or until the cutoff has passed.

    The same as `nestsim.simulator.simpy_engine`, in the same arithmetic. At one
    instant: steps end, messages arrive and flows end; who can go on does; then the
    rates are solved once, and again if a flow ends at once. Within an instant the order
    makes no difference to any moment or byte. O(log(A + C)) per event beside the rates.

    Returns
    -------
    int
        `DONE`; `LOOKING` or `PAUSED`, and the next call goes on; `CUT_OFF`, and some
        actor is not done before the cutoff has passed; or that actors wait for what
        nobody sends (`WAITING_FOR_EVER`) or `fill` failed (`NO_PROGRESS`), which both
        cannot be.
    """
    loop, events = state.loop, state.events
    delay = state.fluid.bookings.delay[0]
    num_instants = 0
    while loop.num_working[0] > 0:
        now = loop.next_end[0]
        if events.size[0] > 0:
            now = min(now, events.due[events.heap[0]])
        if loop.num_ready[0] > 0:
            now = loop.now[0]
        if now == np.inf:
            return WAITING_FOR_EVER
        if now + delay > loop.cutoff[0]:
            return CUT_OFF
        loop.now[0] = now
        while True:
            while events.size[0] > 0 and events.due[events.heap[0]] <= now:
                _take_event(state)
            if loop.next_end[0] <= now:
                _end_flows(now, state)
            if loop.num_ready[0] > 0:
                while loop.num_ready[0] > 0:
                    loop.num_ready[0] -= 1
                    _go_on(now, loop.ready[loop.num_ready[0]], state)
                continue
            if events.size[0] > 0 and events.due[events.heap[0]] <= now:
                continue
            if loop.is_unsolved[0] == 0:
                break
            loop.is_unsolved[0] = 0
            loop.num_solutions[0] += 1
            following = solve_rates(now, state.fluid)
            if following < 0.0:
                return NO_PROGRESS
            loop.next_end[0] = following
        if loop.is_marked[0] == 1:
            loop.is_marked[0] = 0
            return LOOKING
        num_instants += 1
        if num_instants == _MOST_INSTANTS:
            return PAUSED
    return DONE


@kernel
def snapshot(state: RunState) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
    """Return what will happen next depends on, beside the positions of the actors.

    As the fields of `nestsim.simulator.steady.State`. O(A + C + messages on their way).

    Returns
    -------
    tuple[FloatArray, IntArray, FloatArray, FloatArray]
        What is left of each step, shape ``(A,)``; messages posted, started and arrived
        and posts that are missing, shape ``(4, C)``; flows, shape ``(3, C)``; and the
        time until each message arrives that has left.
    """
    now, delay = state.loop.now[0], state.fluid.bookings.delay[0]
    actors, channels, flows = state.actors, state.channels, state.fluid.flows
    num_actors, num_channels = actors.position.shape[0], channels.missing.shape[0]
    left = np.empty(num_actors)
    for a in range(num_actors):
        left[a] = state.events.due[a] - now if actors.is_at_work[a] > 0 else -1.0
    counts = np.empty((4, num_channels), np.int64)
    moving = np.zeros((3, num_channels))
    num_coming = 0
    for c in range(num_channels):
        counts[0, c] = channels.num_posted[c]
        counts[1, c] = channels.num_begun[c]
        counts[2, c] = channels.num_arrived[c]
        counts[3, c] = channels.missing[c]
        num_coming += channels.num_left[c] - channels.num_arrived[c]
        if flows.is_active[c] > 0:
            moving[0, c] = flows.remaining[c]
            moving[1, c] = flows.rate[c]
            moving[2, c] = now - flows.since[c]
    coming = np.empty(num_coming)
    i = 0
    for c in range(num_channels):
        first = channels.first_message[c]
        for n in range(channels.num_arrived[c], channels.num_left[c]):
            coming[i] = state.messages.arrived[first + n] - (now + delay)
            i += 1
    return left, counts, moving, coming


@writing_kernel
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
