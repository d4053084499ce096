"""The event loop in SimPy: one process per actor, channels between, one network.

Everything that happens at one instant has the normal priority, and the network's rates
are solved once after it, with a lower one. Given the rates, the outcome does not depend
on the order of processing inside an instant (a Kahn network): nothing is granted to
whoever comes first. Where the run repeats itself, periods are skipped: the state stays
as it is, in SimPy's queue too, and the clock gets a delay that all records add to it.

What the SimPy engine is made of: actors, channels, an event, and their logs.
"""

import math
from array import array
from collections.abc import Callable, Generator, Sequence

import numpy as np
from simpy import Environment, Event, Timeout
from simpy.core import EmptySchedule
from simpy.events import EventPriority

from nestsim.simulator.compiled import Fluid
from nestsim.simulator.folding import list_steps, num_posts_of_channels
from nestsim.simulator.steady import Jump, SteadyState, Watch
from nestsim.simulator.system import CLOSES, NONE, OPENS, Run, Skip, Step, System
from topologies.arrays import FloatArray


class Channel:
    """The state of one channel, and its log."""

    __slots__ = (
        "arrivals",
        "arrived",
        "busy",
        "flow",
        "latency",
        "missing",
        "more",
        "num_sources",
        "posts",
        "starts",
        "waiting",
    )

    def __init__(self, flow: int, latency: float, num_sources: int) -> None:
        self.flow = flow
        """Number of its flow in the network; `NONE` if its messages need no link."""
        self.latency = latency
        self.more: Sequence[float] = ()
        """What each message needs beyond that, in order; empty if none does [s]."""
        self.num_sources = num_sources
        self.missing = num_sources
        """Posts until the next message is complete."""
        self.busy = False
        self.arrived = 0
        """Messages that have arrived."""
        self.waiting: list[tuple[int, Event]] = []
        """How many arrivals each waiting actor needs, and what wakes it."""
        self.posts = array("d")
        """When each message was complete at its senders [s]."""
        self.starts = array("d")
        """When its first byte left [s]."""
        self.arrivals = array("d")
        """When the receivers had it, or will have it [s]."""


class Actor:
    """One worker, and its log."""

    __slots__ = ("channels", "ends", "marks", "position", "starts", "steps", "until")

    def __init__(
        self, steps: Sequence[Step], channels: Sequence[Channel | None]
    ) -> None:
        self.steps = steps
        self.channels = channels
        """The channel in each slot of the steps."""
        self.position = 0
        """Steps done."""
        self.marks: frozenset[int] = frozenset()
        """Positions at which the run is looked at."""
        self.until = -1.0
        """When the step at work ends, by SimPy's clock; the past for none [s]."""
        self.starts = array("d")
        """When each span began [s]."""
        self.ends = array("d")
        """When each span ended [s]."""


class InstantEnd(Event):
    """Comes once everything of a higher priority at this instant has been processed."""

    def __init__(
        self,
        environment: Environment,
        priority: EventPriority,
        callback: Callable[[Event], None],
    ) -> None:
        self.env = environment
        self.callbacks = [callback]
        self._ok = True
        self._value = None
        environment.schedule(self, priority=priority)


def logged(log: Sequence[float]) -> FloatArray:
    """Return a log as an array."""
    return np.array(log, dtype=np.float64)


def record_again(log: "array[float]", size: int, jump: Jump) -> None:
    """Repeat the last ``size`` moments of a log in every period that is skipped."""
    if size:
        periods = np.arange(1, jump.num_periods + 1) * jump.period
        last = np.array(log[-size:])
        log.frombytes((periods[:, None] + last).tobytes())


_SOLVE = EventPriority(2)
"""After SimPy's urgent (0) and normal (1) events of the same instant."""

_LOOK = EventPriority(3)
"""After the rates have been solved."""


def simulate(system: System, *, skipping: bool = False) -> Run:
    """Run all actors to their ends.

    The same system gives bitwise the same run, whatever the order of its actors, and
    whether periods are skipped or not.
    """
    engine = Engine(system, skipping=skipping)
    return engine.result(engine.run())


def end_of_run(
    system: System, *, skipping: bool = False, cutoff: float = math.inf
) -> float:
    """Return the end of the run alone, infinity if it is later than the cutoff [s]."""
    return Engine(system, skipping=skipping, recording=False).run(cutoff)


class Engine:
    """Runs actors over channels until all are done."""

    def __init__(
        self, system: System, *, skipping: bool = False, recording: bool = True
    ) -> None:
        self.environment = Environment()
        skipping = skipping and not system.is_delayed
        wired = system.wired.tolist()
        self.channels = [
            Channel(number if wired[number] else NONE, latency, sources)
            for number, (latency, sources) in enumerate(
                zip(system.latency.tolist(), system.num_sources.tolist(), strict=True)
            )
        ]
        programs = [tuple(steps) for steps in system.programs]
        if system.is_delayed:
            num_posted = num_posts_of_channels(system, list_steps(system))
            ends = np.cumsum(num_posted // system.num_sources)[:-1]
            for channel, delays in zip(
                self.channels, np.split(system.delays, ends), strict=True
            ):
                channel.more = delays.tolist()
        self.actors = [
            Actor(
                programs[program],
                [None if c == NONE else self.channels[c] for c in slots],
            )
            for program, slots in zip(
                system.program.tolist(), system.ports.tolist(), strict=True
            )
        ]
        self._fluid = Fluid(system, remember=skipping, recording=recording)
        self._solving = False
        self._looking = False
        self._num_solutions = 0
        self._next_end = -1.0
        self._delay = 0.0
        self._skips: list[Skip] = []
        self._working = len(self.actors)
        if skipping and self.actors:
            self._watch = Watch(
                system, list_steps(system), most_deposits=self._fluid.most_deposits
            )
            marks = frozenset(self._watch.marks.tolist())
            self.actors[self._watch.reference].marks = marks
        for actor in self.actors:
            self.environment.process(self._run(actor))

    def run(self, cutoff: float = math.inf) -> float:
        """Process events until the last actor is done; return that moment [s].

        Not until the queue is empty: SimPy cannot take back timeouts, and one that
        has become meaningless may lie after the end. The last instant is finished.
        As soon as the cutoff has passed, infinity is returned instead.
        """
        environment = self.environment
        step = environment.step
        try:
            while self._working:
                step()
                if environment.now + self._delay > cutoff:
                    return math.inf
        except EmptySchedule as nothing_left:
            raise AssertionError("an actor waits for ever") from nothing_left
        while environment.peek() == environment.now:
            step()
        return float(environment.now + self._delay)

    def result(self, end: float) -> Run:
        """Collect the logs of a run that has ended."""
        steps = sum(actor.position for actor in self.actors)
        messages = sum(
            len(channel.starts) + channel.arrived for channel in self.channels
        )
        skipped = sum(skip.num_events for skip in self._skips)
        return Run(
            end=end,
            span_starts=tuple(logged(actor.starts) for actor in self.actors),
            span_ends=tuple(logged(actor.ends) for actor in self.actors),
            posts=tuple(logged(channel.posts) for channel in self.channels),
            departures=tuple(logged(channel.starts) for channel in self.channels),
            arrivals=tuple(
                logged(channel.arrivals[: channel.arrived]) for channel in self.channels
            ),
            bins=self._fluid.bins,
            bin_width=self._fluid.bin_width,
            num_events=steps + messages + self._num_solutions - skipped,
            skips=tuple(self._skips),
        )

    def _run(self, actor: Actor) -> Generator[Event, object, None]:
        environment = self.environment
        slots, steps = actor.channels, actor.steps
        num_steps = len(steps)
        while actor.position < num_steps:
            duration, source, need, target, span = steps[actor.position]
            if source != NONE:
                channel = slots[source]
                assert channel is not None
                if channel.arrived < need:
                    wake = Event(environment)
                    channel.waiting.append((need, wake))
                    yield wake
            if span & OPENS:
                actor.starts.append(environment.now + self._delay)
            if duration > 0.0:
                actor.until = environment.now + duration
                yield Timeout(environment, duration)
            if span & CLOSES:
                actor.ends.append(environment.now + self._delay)
            self._finish(actor, target)
        self._working -= 1

    def _finish(self, actor: Actor, target: int) -> None:
        """Post what a step has to post, and go on to the next one.

        Periods may have been skipped since it began: then it is a later step, which
        does the same.
        """
        if target != NONE:
            channel = actor.channels[target]
            assert channel is not None
            self._post(channel)
        actor.position += 1
        if actor.position in actor.marks and not self._looking:
            self._looking = True
            InstantEnd(self.environment, _LOOK, self._look)

    def _post(self, channel: Channel) -> None:
        channel.missing -= 1
        if channel.missing:
            return
        channel.missing = channel.num_sources
        channel.posts.append(self.environment.now + self._delay)
        if not channel.busy:
            self._start(channel)

    def _start(self, channel: Channel) -> None:
        """Let the next complete message leave."""
        channel.starts.append(self.environment.now + self._delay)
        if channel.flow == NONE:
            self._leave(channel)
            return
        channel.busy = True
        self._fluid.start(channel.flow)
        self._touch()

    def _leave(self, channel: Channel) -> None:
        now, arrivals = self.environment.now, channel.arrivals
        latency = channel.latency
        if channel.more:
            latency += channel.more[len(arrivals)]
            if arrivals:
                latency = max(latency, arrivals[-1] - self._delay - now)
        arrivals.append(now + latency + self._delay)
        if latency > 0.0:
            arrival = Timeout(self.environment, latency, channel)
            arrival.callbacks.append(self._on_arrival)
        else:
            self._arrive(channel)

    def _on_arrival(self, event: Event) -> None:
        channel = event.value
        assert channel is not None
        self._arrive(channel)

    def _arrive(self, channel: Channel) -> None:
        channel.arrived += 1
        if not channel.waiting:
            return
        still_waiting = []
        for need, wake in channel.waiting:
            if need <= channel.arrived:
                wake.succeed()
            else:
                still_waiting.append((need, wake))
        channel.waiting = still_waiting

    def _touch(self) -> None:
        """See to it that the rates are solved at the end of this instant."""
        if not self._solving:
            self._solving = True
            InstantEnd(self.environment, _SOLVE, self._solve_rates)

    def _solve_rates(self, _event: Event) -> None:
        """Solve the rates and set the one timer of the network."""
        self._solving = False
        self._num_solutions += 1
        now = self.environment.now
        following = self._fluid.solve_rates(now)
        if following != self._next_end:
            self._next_end = following
            if following < float("inf"):
                timer = Timeout(self.environment, following - now, following)
                timer.callbacks.append(self._on_timer)

    def _on_timer(self, event: Event) -> None:
        if event.value != self._next_end:
            return
        # This moment is over: if the next end comes at once, it needs its own timer.
        self._next_end = -1.0
        for flow in self._fluid.pop_finished(self.environment.now):
            channel = self.channels[flow]
            channel.busy = False
            self._leave(channel)
            if len(channel.starts) < len(channel.posts):
                self._start(channel)
        self._touch()

    def _look(self, _event: Event) -> None:
        """Skip periods, if the state is one that has been before."""
        self._looking = False
        jump = self._watch.look(self._state())
        if jump is None:
            return
        self._skips.append(jump.skip(self.environment.now + self._delay))
        self._fluid.repeat(jump.first_deposit, jump.num_periods, jump.period)
        self._delay += jump.duration
        self._num_solutions += jump.num_periods * jump.num_solutions
        for actor, steps, opened, closed in zip(
            self.actors,
            (jump.num_periods * jump.steps).tolist(),
            jump.opened.tolist(),
            jump.closed.tolist(),
            strict=True,
        ):
            actor.position += steps
            record_again(actor.starts, opened, jump)
            record_again(actor.ends, closed, jump)
        for channel, messages in zip(
            self.channels, jump.messages.tolist(), strict=True
        ):
            for log in (channel.posts, channel.starts, channel.arrivals):
                record_again(log, messages, jump)
            more = jump.num_periods * messages
            channel.arrived += more
            channel.waiting = [(need + more, wake) for need, wake in channel.waiting]

    def _state(self) -> SteadyState:
        """Return the state at the end of an instant."""
        now, channels = self.environment.now, self.channels
        until = np.array([actor.until for actor in self.actors])
        coming = [
            moment
            for channel in channels
            if len(channel.arrivals) > channel.arrived
            for moment in channel.arrivals[channel.arrived :]
        ]
        return SteadyState(
            now=now,
            position=np.array([actor.position for actor in self.actors], np.int64),
            left=np.where(until > now, until - now, -1.0),
            posted=np.array([len(channel.posts) for channel in channels], np.int64),
            started=np.array([len(channel.starts) for channel in channels], np.int64),
            arrived=np.array([channel.arrived for channel in channels], np.int64),
            missing=np.array([channel.missing for channel in channels], np.int64),
            flows=self._fluid.state(now),
            on_their_way=np.array(coming) - (now + self._delay),
            num_deposits=self._fluid.num_deposits,
            num_solutions=self._num_solutions,
        )
