"""The event loop, compiled: the same runs as SimPy's, bit for bit, much faster.

The readable statement of what happens is `nestsim.simulator.engines.simpy_engine`; this
is the path for runs of millions of steps. All state lies in arrays, which
`nestsim.simulator.kernels.fluid.advance` moves on; skipping and logs are arranged here.
"""

import math
from typing import NamedTuple

import numpy as np

from nestsim.simulator.engines.fluid import Fluid
from nestsim.simulator.folding import Listing, list_steps, num_posts_of_channels
from nestsim.simulator.kernels import fluid as kernels
from nestsim.simulator.kernels.snapshot import snapshot
from nestsim.simulator.steady import Jump, SteadyState, Watch
from nestsim.simulator.system import CLOSES, NONE, OPENS, Run, Skip, System
from topologies.arrays import FloatArray, IntArray

assert (OPENS, CLOSES) == (kernels.OPENS, kernels.CLOSES)


class _Log(NamedTuple):
    """Moments of each actor or channel, one after another in one array."""

    moments: FloatArray
    first: IntArray
    length: IntArray
    """So far; the row that the kernel counts in."""

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

    Returns bitwise what `nestsim.simulator.engines.simpy_engine.simulate` returns.
    """
    engine = CompiledEngine(system, skipping=skipping)
    return engine.result(engine.run())


def end_of_compiled_run(
    system: System, *, skipping: bool = False, cutoff: float = math.inf
) -> float:
    """Return the end of the run alone, infinity if it is later than the cutoff [s].

    Bitwise what `nestsim.simulator.engines.simpy_engine.end_of_run` returns.
    """
    return CompiledEngine(system, skipping=skipping, recording=False).run(cutoff)


class CompiledEngine:
    """Runs actors over channels until all are done."""

    def __init__(
        self, system: System, *, skipping: bool = False, recording: bool = True
    ) -> None:
        listing = list_steps(system)
        num_actors, num_channels = system.program.size, system.latency.size
        self._fluid = Fluid(system, remember=skipping, recording=recording)
        self._first = listing.first[system.program]
        self._actors = np.zeros((kernels.NUM_ACTOR_ROWS, num_actors), np.int64)
        self._actors[kernels.POSITION] = self._first
        self._actors[kernels.STOP] = listing.first[system.program + 1]
        self._actors[kernels.READY] = np.arange(num_actors)
        num_spans = _num_spans(listing)[system.program]
        self._actors[kernels.FIRST_SPAN] = _starts(num_spans)
        self._channels = np.zeros((kernels.NUM_CHANNEL_ROWS, num_channels), np.int64)
        self._channels[kernels.NUM_SOURCES] = system.num_sources
        self._channels[kernels.MISSING] = system.num_sources
        self._channels[kernels.WIRED] = system.wired
        self._channels[kernels.FIRST_WAITING] = NONE
        num_messages = num_posts_of_channels(system, listing) // system.num_sources
        self._channels[kernels.FIRST_MESSAGE] = _starts(num_messages)
        spans = np.zeros((2, int(num_spans.sum()) if recording else 0))
        self._messages = messages = np.zeros((3, int(num_messages.sum())))
        self._opened, self._closed = (
            _Log(spans[row], self._actors[kernels.FIRST_SPAN], self._actors[length])
            for row, length in (
                (kernels.OPENED, kernels.NUM_OPENED),
                (kernels.CLOSED, kernels.NUM_CLOSED),
            )
        )
        self._posted, self._begun, self._left = (
            _Log(
                messages[row],
                self._channels[kernels.FIRST_MESSAGE],
                self._channels[length],
            )
            for row, length in (
                (kernels.POSTED, kernels.NUM_POSTED),
                (kernels.BEGUN, kernels.NUM_BEGUN),
                (kernels.ARRIVED, kernels.NUM_LEFT),
            )
        )
        self._events = np.full((2, num_actors + num_channels), -1, dtype=np.int64)
        self._due = np.zeros(num_actors + num_channels)
        self._loop = np.zeros(kernels.NUM_LOOP_INTS, np.int64)
        self._loop[[kernels.NUM_WORKING, kernels.NUM_READY]] = num_actors
        self._moments = np.zeros(kernels.NUM_LOOP_FLOATS)
        self._moments[kernels.NEXT_END] = np.inf
        self._delay = 0.0
        self._skips: list[Skip] = []
        marked = np.zeros(listing.duration.size + 1, dtype=np.bool_)
        reference = NONE
        if skipping and num_actors:
            most_deposits = self._fluid.most_deposits
            self._watch = Watch(system, listing, most_deposits=most_deposits)
            reference = self._watch.reference
            marked[self._first[reference] + self._watch.marks] = True
        self._arguments = (
            reference,
            marked,
            listing.duration,
            np.stack((listing.source, listing.need, listing.target, listing.span)),
            np.array(system.ports, dtype=np.int64),
            self._actors,
            self._channels,
            np.array(system.latency, dtype=np.float64),
            spans,
            messages,
            self._events,
            self._due,
            self._loop,
            self._moments,
            *self._fluid.arguments,
        )

    def run(self, cutoff: float = math.inf) -> float:
        """Process events until the last actor is done; return that moment [s].

        As soon as the cutoff has passed, infinity is returned instead.
        """
        self._moments[kernels.CUTOFF] = cutoff
        going_on = (kernels.LOOKING, kernels.PAUSED)
        while (status := kernels.advance(*self._arguments)) in going_on:
            if status == kernels.PAUSED:
                continue
            jump = self._watch.look(self._state())
            if jump is not None:
                self._skip(jump)
        if status == kernels.CUT_OFF:
            return math.inf
        assert status != kernels.NO_PROGRESS, "filling made no progress"
        assert status == kernels.DONE, "an actor waits for ever"
        return float(self._moments[kernels.NOW]) + self._delay

    def result(self, end: float) -> Run:
        """Collect the logs of a run that has ended."""
        actors, channels = self._actors, self._channels
        steps = int((actors[kernels.POSITION] - self._first).sum())
        messages = int(channels[[kernels.NUM_BEGUN, kernels.NUM_ARRIVED]].sum())
        settlements = int(self._loop[kernels.NUM_SETTLEMENTS])
        skipped = sum(skip.num_events for skip in self._skips)
        arrived = self._left._replace(length=channels[kernels.NUM_ARRIVED])
        return Run(
            end=end,
            span_starts=self._opened.pieces(),
            span_ends=self._closed.pieces(),
            posts=self._posted.pieces(),
            departures=self._begun.pieces(),
            arrivals=arrived.pieces(),
            bins=self._fluid.bins,
            bin_width=self._fluid.bin_width,
            num_events=steps + messages + settlements - skipped,
            skips=tuple(self._skips),
        )

    def _state(self) -> SteadyState:
        """Return the state at the end of an instant."""
        now = float(self._moments[kernels.NOW])
        left, (posted, started, arrived, missing), flows, on_their_way = snapshot(
            now,
            self._delay,
            self._actors,
            self._channels,
            self._messages,
            self._due,
            *self._fluid.flows,
        )
        return SteadyState(
            now=now,
            position=self._actors[kernels.POSITION] - self._first,
            left=left,
            posted=posted,
            started=started,
            arrived=arrived,
            missing=missing,
            flows=flows,
            on_their_way=on_their_way,
            num_deposits=self._fluid.num_deposits,
            num_settlements=int(self._loop[kernels.NUM_SETTLEMENTS]),
        )

    def _skip(self, jump: Jump) -> None:
        """Move the run on."""
        self._skips.append(jump.skip(float(self._moments[kernels.NOW]) + self._delay))
        self._fluid.repeat(jump.first_deposit, jump.num_periods, jump.period)
        self._delay += jump.duration
        self._loop[kernels.NUM_SETTLEMENTS] += jump.num_periods * jump.num_settlements
        self._actors[kernels.POSITION] += jump.num_periods * jump.steps
        self._channels[kernels.NUM_ARRIVED] += jump.num_periods * jump.messages
        if self._opened.moments.size:
            self._opened.record_again(jump.opened, jump)
            self._closed.record_again(jump.closed, jump)
        for log in (self._posted, self._begun, self._left):
            log.record_again(jump.messages, jump)


def _num_spans(listing: Listing) -> IntArray:
    """Return the spans of each program."""
    opened = np.concatenate(([0], np.cumsum((listing.span & OPENS) > 0)))
    return np.diff(opened[listing.first]).astype(np.int64)


def _starts(sizes: IntArray) -> IntArray:
    """Return where each of consecutive pieces begins."""
    return np.cumsum(sizes) - sizes
