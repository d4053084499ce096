"""The event loop in SimPy: one process per actor, channels between, one network.

Everything that happens at one instant has the normal priority, and the network's rates
are solved once after it, with a lower one. Given the rates, the outcome does not depend
on the order of processing inside an instant (a Kahn network): nothing is granted to
whoever comes first.
"""

from array import array
from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray
from simpy import Environment, Event, Timeout
from simpy.events import EventPriority

from nestsim.simulator.fluid import Fluid
from nestsim.simulator.system import CLOSES, NONE, OPENS, Run, Step, System

FloatArray = NDArray[np.float64]

_SETTLE = EventPriority(2)
"""After SimPy's urgent (0) and normal (1) events of the same instant."""


class Channel:
    """The state of one channel, and its log."""

    __slots__ = (
        "arrivals",
        "arrived",
        "busy",
        "flow",
        "latency",
        "missing",
        "num_sources",
        "posts",
        "starts",
        "waiting",
    )

    def __init__(self, flow: int, latency: float, num_sources: int) -> None:
        self.flow = flow
        """Number of its flow in the network; `NONE` if its messages need no link."""
        self.latency = latency
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
        """When the receivers had it [s]."""


class Actor:
    """One worker, and its log."""

    __slots__ = ("channels", "ends", "starts", "steps")

    def __init__(
        self, steps: Sequence[Step], channels: Sequence[Channel | None]
    ) -> None:
        self.steps = steps
        self.channels = channels
        """The channel in each slot of the steps."""
        self.starts = array("d")
        """When each span began [s]."""
        self.ends = array("d")
        """When each span ended [s]."""


class _Settlement(Event):
    """Comes once everything else at this instant has been processed."""

    def __init__(self, engine: "Engine") -> None:
        self.env = engine.environment
        self.callbacks = [engine.settle]
        self._ok = True
        self._value = None
        self.env.schedule(self, priority=_SETTLE)


def simulate(system: System) -> Run:
    """Run all actors to their ends.

    The same system gives bitwise the same run, whatever the order of its actors.
    """
    engine = Engine(system)
    return engine.result(engine.run())


class Engine:
    """Runs actors over channels until all are done."""

    def __init__(self, system: System) -> None:
        self.environment = Environment()
        wired = system.wired.tolist()
        self.channels = [
            Channel(number if wired[number] else NONE, latency, sources)
            for number, (latency, sources) in enumerate(
                zip(system.latency.tolist(), system.num_sources.tolist(), strict=True)
            )
        ]
        self.actors = [
            Actor(
                system.programs[program],
                [None if c == NONE else self.channels[c] for c in slots],
            )
            for program, slots in zip(
                system.program.tolist(), system.slots.tolist(), strict=True
            )
        ]
        self.num_events = 0
        self._fluid = Fluid(system)
        self._settling = False
        self._next_end = -1.0
        self._working = len(self.actors)
        for actor in self.actors:
            self.environment.process(self._run(actor))

    def run(self) -> float:
        """Process events until the last actor is done; return that moment [s].

        Not until the queue is empty: SimPy cannot take back timeouts, and one that
        has become meaningless may lie after the end.
        """
        step = self.environment.step
        while self._working:
            step()
            self.num_events += 1
        return float(self.environment.now)

    def result(self, end: float) -> Run:
        """Collect the logs of a run that has ended."""
        return Run(
            end=end,
            span_starts=tuple(_logged(actor.starts) for actor in self.actors),
            span_ends=tuple(_logged(actor.ends) for actor in self.actors),
            posts=tuple(_logged(channel.posts) for channel in self.channels),
            departures=tuple(_logged(channel.starts) for channel in self.channels),
            arrivals=tuple(_logged(channel.arrivals) for channel in self.channels),
            bins=self._fluid.bins,
            bin_width=self._fluid.bin_width,
            num_events=self.num_events,
        )

    def _run(self, actor: Actor) -> Generator[Event, object, None]:
        environment = self.environment
        slots = actor.channels
        for duration, source, need, target, span in actor.steps:
            if source != NONE:
                channel = slots[source]
                assert channel is not None
                if channel.arrived < need:
                    wake = Event(environment)
                    channel.waiting.append((need, wake))
                    yield wake
            if span & OPENS:
                actor.starts.append(environment.now)
            if duration > 0.0:
                yield Timeout(environment, duration)
            if span & CLOSES:
                actor.ends.append(environment.now)
            if target != NONE:
                channel = slots[target]
                assert channel is not None
                self._post(channel)
        self._working -= 1

    def _post(self, channel: Channel) -> None:
        channel.missing -= 1
        if channel.missing:
            return
        channel.missing = channel.num_sources
        channel.posts.append(self.environment.now)
        if not channel.busy:
            self._start(channel)

    def _start(self, channel: Channel) -> None:
        """Let the next complete message leave."""
        channel.starts.append(self.environment.now)
        if channel.flow == NONE:
            self._leave(channel)
            return
        channel.busy = True
        self._fluid.start(channel.flow)
        self._touch()

    def _leave(self, channel: Channel) -> None:
        if channel.latency > 0.0:
            arrival = Timeout(self.environment, channel.latency, channel)
            arrival.callbacks.append(self._on_arrival)
        else:
            self._arrive(channel)

    def _on_arrival(self, event: Event) -> None:
        channel = event.value
        assert channel is not None
        self._arrive(channel)

    def _arrive(self, channel: Channel) -> None:
        channel.arrivals.append(self.environment.now)
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
        if not self._settling:
            self._settling = True
            _Settlement(self)

    def settle(self, _event: Event) -> None:
        """Solve the rates and set the one timer of the network."""
        self._settling = False
        now = self.environment.now
        following = self._fluid.settle(now)
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
        for flow in self._fluid.harvest(self.environment.now):
            channel = self.channels[flow]
            channel.busy = False
            self._leave(channel)
            if len(channel.starts) < len(channel.posts):
                self._start(channel)
        self._touch()


def _logged(log: Sequence[float]) -> FloatArray:
    return np.array(log, dtype=np.float64)
