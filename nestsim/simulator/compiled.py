"""The event loop, compiled, and the flows that both engines move.

The engine says which flows start and asks when the next one ends; everything between
is arithmetic on arrays. Flows and links are plain numbers here, with weights: a class
of flows with a multiplicity is just a flow of that weight.

The event loop, compiled: the same runs as SimPy's, bit for bit, much faster.

The readable statement of what happens is `nestsim.simulator.simpy_engine`; this
is the path for runs of millions of steps. All state lies in arrays with names, which
`nestsim.simulator.kernels.event_loop.advance` moves on; skipping and logs are arranged
here.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nestsim.simulator.folding import Listing, list_steps, num_posts_of_channels
from nestsim.simulator.kernels import event_loop as kernels
from nestsim.simulator.kernels import fluid as sharing
from nestsim.simulator.kernels.steps import StepColumns
from nestsim.simulator.steady import Jump, SteadyState, Watch
from nestsim.simulator.system import CLOSES, NONE, OPENS, Incidence, Run, Skip, System
from topologies.arrays import FloatArray, IntArray
from topologies.compiling import check_once

NUM_BINS = 256
"""Time bins of the recorded traffic; between half of them and all are used, since
their width doubles as the run goes on. A power of two."""

_MAX_RECORD = 2**24
"""Numbers kept of the traffic: large networks get wider bins instead."""

_DEPOSITS_PER_FLOW = 64
"""Changes of rate that are remembered, on average; those of one period are needed."""

_MOST_DEPOSITS = 2**20

MOST_UNWATCHED_STEPS = 50_000
"""Steps of all actors up to which a run whose end alone is asked for skips nothing.
Measured on plans of GLM-4 32B, GPT-3 175B and Mixtral 8x7B: a step takes 0.3 to 0.6 us,
and to watch a run until it repeats takes 1 to 40 ms."""

_FIRST_BIN_WIDTH = 2.0**-30
"""About a nanosecond; a power of two, so that merged bins keep exact edges [s]."""


class Fluid:
    """Max-min fair flows over links, with a calendar of their ends.

    Each channel of a system is a flow; none without a link may be started.

    Parameters
    ----------
    system
        The flows and links.
    remember
        Whether what was moved lately can be booked again with `repeat`.
    recording
        Whether what is moved is booked at all; without it there are no bins.
    """

    def __init__(
        self, system: System, *, remember: bool = False, recording: bool = True
    ) -> None:
        num_flows, num_links = system.num_bytes.size, system.capacity.size
        num_bins = NUM_BINS
        while num_bins > 16 and num_bins * system.num_recorded > _MAX_RECORD:
            num_bins //= 2
        num_recent = min(_DEPOSITS_PER_FLOW * num_flows, _MOST_DEPOSITS)
        self.most_deposits = num_recent if remember and recording else 0
        """Deposits that are remembered."""
        self.bins = np.zeros((num_flows, num_bins if recording else 0))
        self.kernel_state = sharing.FluidState(
            tick=system.tick,
            crossings=crossings_of(system.incidence, num_links),
            flows=sharing.FlowState(
                np.array(system.num_bytes, dtype=np.float64),
                *np.zeros((4, num_flows)),
                *np.zeros((2, num_flows), np.int64),
            ),
            links=links_of(system.capacity),
            ends=empty_calendar(num_flows),
            bookings=sharing.Bookings(
                bins=self.bins,
                bin_width=np.full(1, _FIRST_BIN_WIDTH),
                delay=np.zeros(1),
                recent=sharing.Deposits(
                    np.zeros(self.most_deposits, np.int64),
                    *np.zeros((3, self.most_deposits)),
                ),
                num_deposits=np.zeros(1, np.int64),
            ),
            started=np.zeros(num_flows, np.int64),
            num_started=np.zeros(1, np.int64),
            ended=np.zeros(num_flows, np.int64),
            num_ended=np.zeros(1, np.int64),
            num_searches=np.zeros(1, np.int64),
        )
        """What the kernels work on."""

    @property
    def bin_width(self) -> float:
        """Width of the time bins at this moment [s]."""
        return float(self.kernel_state.bookings.bin_width[0])

    def start(self, flow: int) -> None:
        """Start an idle flow; its rate is known after the next `solve_rates`."""
        started, num_started = self.kernel_state.started, self.kernel_state.num_started
        started[num_started[0]] = flow
        num_started[0] += 1

    def solve_rates(self, now: float) -> float:
        """Solve the rates after starts and ends; return the next end [s].

        Infinite when no flow is active. Call once per instant, after everything that
        starts at it has been started.
        """
        following = self._solve_rates(now, self.kernel_state)
        assert following >= 0, "filling made no progress"
        return following

    def pop_finished(self, now: float) -> list[int]:
        """End the flows whose time has come; then `solve_rates` must be called."""
        first = int(self.kernel_state.num_ended[0])
        count = self._pop_finished(now, self.kernel_state)
        ended: list[int] = self.kernel_state.ended[first : first + count].tolist()
        return ended

    @cached_property
    def _solve_rates(self) -> Callable[[float, sharing.FluidState], float]:
        return check_once(sharing.solve_rates, 0.0, self.kernel_state)

    @cached_property
    def _pop_finished(self) -> Callable[[float, sharing.FluidState], int]:
        return check_once(sharing.pop_finished, 0.0, self.kernel_state)

    @property
    def num_deposits(self) -> int:
        """Times that traffic was booked; repeated ones not counted."""
        return int(self.kernel_state.bookings.num_deposits[0])

    def state(self, now: float) -> FloatArray:
        """Return bytes left, rate and time since both were true, shape ``(3, F)``.

        Zeros for flows that are not active.
        """
        flows = self.kernel_state.flows
        values = np.stack((flows.remaining, flows.rate, now - flows.since))
        return np.asarray(values * flows.is_active)

    def repeat(self, first: int, count: int, period: float) -> None:
        """Book all deposits from ``first`` on ``count`` times more.

        Each time a period later; from now on the clock is that much behind.
        """
        assert self.num_deposits - first <= self.most_deposits
        bookings = self.kernel_state.bookings
        sharing.repeat_deposits(first, count, period, bookings)
        bookings.delay[0] += count * period


def max_min_rates(incidence: Incidence, capacity: FloatArray) -> FloatArray:
    """Return the max-min fair level of each flow when all are active [byte/s].

    Every flow must cross a link, and capacities must be positive.
    """
    num_flows, num_links = incidence.indptr.shape[0] - 1, capacity.shape[0]
    level = np.full(num_flows, -1.0)
    links = links_of(capacity)
    links.listed[:] = np.arange(num_links)
    crossings = crossings_of(incidence, num_links)
    crossings.num_active[:] = np.diff(crossings.link_indptr)
    status = sharing.fill(
        crossings, links, num_links, np.arange(num_flows), num_flows, level
    )
    assert status == 0, "filling made no progress"
    return level


def empty_calendar(num_items: int) -> sharing.Calendar:
    """Return a calendar without items, and with room for so many."""
    return sharing.Calendar(
        heap=np.full(num_items, -1),
        place=np.full(num_items, -1),
        due=np.zeros(num_items),
        size=np.zeros(1, np.int64),
    )


def links_of(capacity: FloatArray) -> sharing.LinkState:
    """Return links that no flow uses yet."""
    reals = np.zeros((3, capacity.size))
    integers = np.zeros((4, capacity.size), np.int64)
    return sharing.LinkState(
        capacity=np.array(capacity, dtype=np.float64),
        used=reals[0],
        open_weight=reals[1],
        frozen_weight=reals[2],
        open_count=integers[0],
        frozen_count=integers[1],
        mark=integers[2],
        listed=integers[3],
    )


def crossings_of(incidence: Incidence, num_links: int) -> sharing.Crossings:
    """Return the incidence by flow, and its pattern by link; no flow is active."""
    counts = np.bincount(incidence.links, minlength=num_links)
    flows = np.repeat(np.arange(incidence.indptr.size - 1), np.diff(incidence.indptr))
    order = np.argsort(incidence.links, kind="stable")
    places = np.empty(order.size, np.int64)
    places[order] = np.arange(order.size)
    return sharing.Crossings(
        flow_indptr=np.array(incidence.indptr, dtype=np.int64),
        flow_links=np.array(incidence.links, dtype=np.int64),
        flow_weights=np.array(incidence.weights, dtype=np.float64),
        link_indptr=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        link_flows=flows[order].astype(np.int64),
        link_entries=order.astype(np.int64),
        places=places,
        num_active=np.zeros(num_links, np.int64),
    )


assert (OPENS, CLOSES) == (kernels.OPENS, kernels.CLOSES)


class _Log(NamedTuple):
    """Moments of each actor or channel, one after another in one array."""

    moments: FloatArray
    first: IntArray
    length: IntArray
    """How many moments each has so far, counted by the kernel."""

    def pieces(self) -> tuple[FloatArray, ...]:
        """Return the moments of each."""
        return tuple(
            self.moments[begin : begin + length]
            for begin, length in zip(
                self.first.tolist(), self.length.tolist(), strict=True
            )
        )

    def record_again(self, size: IntArray, jump: Jump) -> None:
        """Repeat the last ``size`` moments of each in every period skipped."""
        kernels.record_again(
            self.moments, self.first, self.length, size, jump.num_periods, jump.period
        )
        self.length[:] += jump.num_periods * size


def simulate_compiled(system: System, *, skipping: bool = False) -> Run:
    """Run all actors to their ends.

    Returns bitwise what `nestsim.simulator.simpy_engine.simulate` returns.
    """
    engine = CompiledEngine(system, skipping=skipping)
    return engine.result(engine.run())


def end_of_compiled_run(
    system: System, *, skipping: bool = False, cutoff: float = math.inf
) -> float:
    """Return the end of the run alone, infinity if it is later than the cutoff [s].

    Bitwise what `nestsim.simulator.simpy_engine.end_of_run` returns. Short runs skip
    nothing: to watch them takes longer than to run them.
    """
    skipping = skipping and num_steps(system) > MOST_UNWATCHED_STEPS
    return CompiledEngine(system, skipping=skipping, recording=False).run(cutoff)


def num_steps(system: System) -> int:
    """Return the steps of all actors."""
    length = np.array([len(steps) for steps in system.programs], np.int64)
    return int(length[system.program].sum())


class CompiledEngine:
    """Runs actors over channels until all are done."""

    def __init__(
        self, system: System, *, skipping: bool = False, recording: bool = True
    ) -> None:
        listing = list_steps(system)
        skipping = skipping and not system.is_delayed
        self._fluid = Fluid(system, remember=skipping, recording=recording)
        self._first = listing.first[system.program]
        self._delay = 0.0
        self._skips: list[Skip] = []
        marked = np.zeros(listing.duration.size + 1, dtype=np.bool_)
        reference = NONE
        if skipping and self._first.size:
            most_deposits = self._fluid.most_deposits
            self._watch = Watch(system, listing, most_deposits=most_deposits)
            reference = self._watch.reference
            marked[self._first[reference] + self._watch.marks] = True
        num_spans = _num_spans(listing)[system.program]
        num_messages = num_posts_of_channels(system, listing) // system.num_sources
        num_channels = system.latency.size
        self._actors = actors = _actor_state(system, listing, num_spans)
        self._channels = channels = _channel_state(system, num_messages)
        spans = kernels.SpanLog(*np.zeros((2, int(num_spans.sum()) * recording)))
        messages = kernels.MessageLog(*np.zeros((3, int(num_messages.sum()))))
        self._loop = _loop_state(self._first.size)
        self._state = kernels.RunState(
            reference=reference,
            is_marked=marked,
            steps=StepColumns(
                listing.duration,
                listing.source,
                listing.need,
                listing.target,
                listing.span,
            ),
            actors=actors,
            channels=channels,
            spans=spans,
            messages=messages,
            events=empty_calendar(self._first.size + num_channels),
            loop=self._loop,
            fluid=self._fluid.kernel_state,
        )
        first_span, first_message = actors.first_span, channels.first_message
        self._opened = _Log(spans.opened, first_span, actors.num_opened)
        self._closed = _Log(spans.closed, first_span, actors.num_closed)
        self._posted = _Log(messages.posted, first_message, channels.num_posted)
        self._begun = _Log(messages.begun, first_message, channels.num_begun)
        self._left = _Log(messages.arrived, first_message, channels.num_left)

    def run(self, cutoff: float = math.inf) -> float:
        """Process events until the last actor is done; return that moment [s].

        As soon as the cutoff has passed, infinity is returned instead.
        """
        self._loop.cutoff[0] = cutoff
        going_on = (kernels.LOOKING, kernels.PAUSED)
        while (status := kernels.advance(self._state)) in going_on:
            if status == kernels.PAUSED:
                continue
            jump = self._watch.look(self._snapshot())
            if jump is not None:
                self._skip(jump)
        if status == kernels.CUT_OFF:
            return math.inf
        assert status != kernels.NO_PROGRESS, "filling made no progress"
        assert status == kernels.DONE, "an actor waits for ever"
        return float(self._loop.now[0]) + self._delay

    def result(self, end: float) -> Run:
        """Collect the logs of a run that has ended."""
        actors, channels = self._actors, self._channels
        steps = int((actors.position - self._first).sum())
        messages = int(channels.num_begun.sum() + channels.num_arrived.sum())
        solutions = int(self._loop.num_solutions[0])
        skipped = sum(skip.num_events for skip in self._skips)
        arrived = self._left._replace(length=channels.num_arrived)
        return Run(
            end=end,
            span_starts=self._opened.pieces(),
            span_ends=self._closed.pieces(),
            posts=self._posted.pieces(),
            departures=self._begun.pieces(),
            arrivals=arrived.pieces(),
            bins=self._fluid.bins,
            bin_width=self._fluid.bin_width,
            num_events=steps + messages + solutions - skipped,
            skips=tuple(self._skips),
        )

    def _snapshot(self) -> SteadyState:
        """Return the state at the end of an instant."""
        left, counts, flows, on_their_way = kernels.snapshot(self._state)
        posted, started, arrived, missing = counts
        return SteadyState(
            now=float(self._loop.now[0]),
            position=self._actors.position - self._first,
            left=left,
            posted=posted,
            started=started,
            arrived=arrived,
            missing=missing,
            flows=flows,
            on_their_way=on_their_way,
            num_deposits=self._fluid.num_deposits,
            num_solutions=int(self._loop.num_solutions[0]),
        )

    def _skip(self, jump: Jump) -> None:
        """Move the run on."""
        self._skips.append(jump.skip(float(self._loop.now[0]) + self._delay))
        self._fluid.repeat(jump.first_deposit, jump.num_periods, jump.period)
        self._delay += jump.duration
        self._loop.num_solutions[0] += jump.num_periods * jump.num_solutions
        self._actors.position[:] += jump.num_periods * jump.steps
        self._channels.num_arrived[:] += jump.num_periods * jump.messages
        if self._opened.moments.size:
            self._opened.record_again(jump.opened, jump)
            self._closed.record_again(jump.closed, jump)
        for log in (self._posted, self._begun, self._left):
            log.record_again(jump.messages, jump)


def _actor_state(
    system: System, listing: Listing, num_spans: IntArray
) -> kernels.ActorState:
    """Return actors that have not begun."""
    num_actors = system.program.size
    return kernels.ActorState(
        ports=np.array(system.ports, dtype=np.int64),
        position=listing.first[system.program].astype(np.int64),
        stop=listing.first[system.program + 1].astype(np.int64),
        is_at_work=np.zeros(num_actors, np.int64),
        next_waiting=np.full(num_actors, NONE),
        first_span=_starts(num_spans),
        num_opened=np.zeros(num_actors, np.int64),
        num_closed=np.zeros(num_actors, np.int64),
    )


def _channel_state(system: System, num_messages: IntArray) -> kernels.ChannelState:
    """Return channels that nothing has been posted to."""
    num_channels = system.latency.size
    assert system.delays.size in {0, num_messages.sum()}
    return kernels.ChannelState(
        num_sources=np.array(system.num_sources, dtype=np.int64),
        is_wired=system.wired.astype(np.int64),
        latency=np.array(system.latency, dtype=np.float64),
        more=np.array(system.delays, dtype=np.float64),
        missing=np.array(system.num_sources, dtype=np.int64),
        num_posted=np.zeros(num_channels, np.int64),
        num_begun=np.zeros(num_channels, np.int64),
        num_left=np.zeros(num_channels, np.int64),
        num_arrived=np.zeros(num_channels, np.int64),
        is_busy=np.zeros(num_channels, np.int64),
        first_waiting=np.full(num_channels, NONE),
        first_message=_starts(num_messages),
    )


def _loop_state(num_actors: int) -> kernels.LoopState:
    """Return the loop before its first instant, at which all actors can go on."""
    return kernels.LoopState(
        now=np.zeros(1),
        next_end=np.full(1, np.inf),
        cutoff=np.full(1, np.inf),
        ready=np.arange(num_actors),
        num_ready=np.full(1, num_actors),
        num_working=np.full(1, num_actors),
        is_unsolved=np.zeros(1, np.int64),
        is_marked=np.zeros(1, np.int64),
        num_solutions=np.zeros(1, np.int64),
    )


def _num_spans(listing: Listing) -> IntArray:
    """Return the spans of each program."""
    opened = np.concatenate(([0], np.cumsum((listing.span & OPENS) > 0)))
    return np.diff(opened[listing.first]).astype(np.int64)


def _starts(sizes: IntArray) -> IntArray:
    """Return where each of consecutive pieces begins."""
    return np.cumsum(sizes) - sizes
