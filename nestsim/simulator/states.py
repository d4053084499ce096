"""The state of a run at one moment, and a jump from one moment to a later one.

Letters: ``A`` actors, ``C`` channels.
"""

from dataclasses import dataclass
from typing import NamedTuple

from nestsim.simulator.system import Skip
from topologies.arrays import FloatArray, IntArray


class State(NamedTuple):
    """The state of a run after everything at one instant has happened."""

    now: float
    """By the engine's clock, from which skipped time is missing [s]."""

    position: IntArray
    """Steps that each actor has done, shape ``(A,)``."""

    left: FloatArray
    """What is left of the step of each actor at work; -1 for others, shape ``(A,)``
    [s]."""

    posted: IntArray
    """Messages that were complete at their senders, shape ``(C,)``."""

    started: IntArray
    """Messages that have begun to leave, shape ``(C,)``."""

    arrived: IntArray
    """Messages that have arrived, shape ``(C,)``."""

    missing: IntArray
    """Posts until the next message is complete, shape ``(C,)``."""

    flows: FloatArray
    """Bytes left, rate and time since both were true, shape ``(3, C)``."""

    on_their_way: FloatArray
    """Time until each message arrives that has left, by channel, in order [s]."""

    num_deposits: int
    """Times that traffic was booked."""

    num_settlements: int
    """Instants at which rates were solved."""

    def key(self) -> bytes:
        """Return what must be bitwise equal for the same to happen again.

        How many messages are on their way and how many posts are missing follow from
        the rest if actors have gone whole units round; they are compared all the same.
        """
        relative = (
            self.left,
            self.posted - self.started,
            self.started - self.arrived,
            self.missing,
            self.flows,
            self.on_their_way,
        )
        return b"".join(part.tobytes() for part in relative)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Jump:
    """How far a run may be moved on."""

    num_periods: int
    """How many."""

    period: float
    """What one of them takes [s]."""

    steps: IntArray
    """Steps of each actor in a period, shape ``(A,)``."""

    opened: IntArray
    """Spans of each actor that begin in a period, shape ``(A,)``."""

    closed: IntArray
    """Spans of each actor that end in a period, shape ``(A,)``."""

    messages: IntArray
    """Messages of each channel in a period, shape ``(C,)``."""

    first_deposit: int
    """The first deposit of the last period."""

    num_settlements: int
    """Instants of a period at which rates are solved."""

    @property
    def duration(self) -> float:
        """What all of them take [s]."""
        return self.num_periods * self.period

    @property
    def num_events(self) -> int:
        """Events in a period, counted as in `Run.num_events`."""
        messages = 2 * int(self.messages.sum())
        return int(self.steps.sum()) + messages + self.num_settlements

    def skip(self, begin: float) -> Skip:
        """Return the record of this jump, made at the moment ``begin``."""
        return Skip(
            begin,
            self.period,
            self.num_periods,
            self.num_periods * int(self.closed.sum()),
            self.num_periods * self.num_events,
        )
