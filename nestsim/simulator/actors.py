"""What the SimPy engine is made of: actors, channels, an event, and their logs."""

from array import array
from collections.abc import Callable, Sequence

import numpy as np
from simpy import Environment, Event
from simpy.events import EventPriority

from nestsim.simulator.states import Jump
from nestsim.simulator.system import Step
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
