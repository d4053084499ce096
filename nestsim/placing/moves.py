"""The small language in which passes are written down: work, send, wait.

Letters: an operation is work of some seconds, or a number of a stage's collectives to
send or to wait for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nestsim.simulator.system import NONE
from nestsim.simulator.work import Move, Moves


@dataclass(slots=True)
class Pass:
    """One pass of a chunk, operation by operation."""

    operations: list[tuple[str, float, int]] = field(default_factory=list)
    """``("work", seconds, NONE)``, ``("send", 0, number)`` or ``("wait", 0, number)``;
    a number is waited for before it is sent again."""

    worked: float = 0.0
    """All work so far [s]."""

    layers: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Layer -> work of the pass before it begins, and when it has ended [s]."""

    def work(self, duration: float) -> None:
        """Compute."""
        if duration > 0.0:
            self.operations.append(("work", duration, NONE))
            self.worked += duration

    def send(self, number: int) -> None:
        """Start a collective."""
        self.operations.append(("send", 0.0, number))

    def wait(self, number: int) -> None:
        """Wait for the end of a collective."""
        self.operations.append(("wait", 0.0, number))

    def exchange(self, numbers: Sequence[int]) -> None:
        """Do collectives one after another."""
        for number in numbers:
            self.send(number)
            self.wait(number)

    def send_all(self, numbers: Sequence[int]) -> None:
        """Start several collectives."""
        for number in numbers:
            self.send(number)

    def wait_all(self, numbers: Sequence[int]) -> None:
        """Wait for several collectives."""
        for number in numbers:
            self.wait(number)

    def moves(self) -> Moves:
        """Return the pass as moves: wait, work and send in this order join."""
        found: list[Move] = []
        current = Move(NONE, 0.0, NONE)
        nothing = current
        for name, duration, number in self.operations:
            fits = current == nothing if name == "wait" else current.post == NONE
            if not fits:
                found.append(current)
                current = nothing
            if name == "work":
                current = current._replace(duration=current.duration + duration)
            elif name == "send":
                current = current._replace(post=number)
            else:
                current = current._replace(wait=number)
        return (*found, current) if current != nothing or not found else tuple(found)

    def time(self, prices: Sequence[float]) -> float:
        """Return how long the pass takes if every collective takes its price [s].

        Those of one number follow one another; all others are under way together.
        """
        now = 0.0
        ends = dict[int, float]()
        for name, duration, number in self.operations:
            if name == "work":
                now += duration
            elif name == "send":
                ends[number] = max(now, ends.get(number, now)) + prices[number]
            else:
                now = max(now, ends.get(number, now))
        return now
