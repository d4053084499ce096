"""Steady state: find out that a run repeats itself, and by how much it may be moved on.

A run is determined by its state: where each actor stands in its program and how much of
its step is left, the messages of each channel, and what is left of each flow and at
which rate it goes. Let the states at two moments, ``period`` apart, differ only in that
actors have gone on by whole units of a loop of their programs, and channels by as many
messages as those units need. Times are multiples of a tick and therefore exact, so the
same happens once more, a period later, bit for bit, and again, until the first actor
leaves its loop. So whole periods need no simulation: the actors and channels are moved
on, the clock is set forward, and what was recorded in the period is recorded again.

Loops are found in the lists of steps themselves, whatever schedule wrote them. States
are compared each time that one actor, the *reference*, has gone through a unit of a
loop, and exactly: a tolerance would take a slow drift for a repetition. A run in which
the state never repeats only pays for the comparisons.

Letters: ``A`` actors, ``C`` channels.

References
----------
.. [1] Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", Wiley 1992,
   theorem 3.109: a max-plus linear system, such as a pipeline without contention,
   becomes periodic after finitely many events.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nestsim.simulator.folding import Listing
from nestsim.simulator.kernels.steps import find_repeats
from nestsim.simulator.system import CLOSES, NONE, OPENS, Skip, System
from topologies.arrays import BoolArray, FloatArray, IntArray


class SteadyState(NamedTuple):
    """The state of a run after everything at one instant has happened."""

    now: float
    """Moment by the engine's clock, from which skipped time is missing [s]."""

    position: IntArray
    """Steps that each actor has done, shape ``(A,)``."""

    left: FloatArray
    """Time left of the step of each actor at work; -1 for others, shape ``(A,)``
    [s]."""

    posted: IntArray
    """Messages of each channel that were complete at their senders, shape ``(C,)``."""

    started: IntArray
    """Messages of each channel that have begun to leave, shape ``(C,)``."""

    arrived: IntArray
    """Messages of each channel that have arrived, shape ``(C,)``."""

    missing: IntArray
    """Posts until the next message of each channel is complete, shape ``(C,)``."""

    flows: FloatArray
    """Bytes left, rate and time since both were true, shape ``(3, C)``."""

    on_their_way: FloatArray
    """Time until each message arrives that has left, by channel, in order [s]."""

    num_deposits: int
    """Times that traffic was booked."""

    num_solutions: int
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
    """Periods that the run is moved on."""

    period: float
    """Duration of a period [s]."""

    steps: IntArray
    """Steps of each actor in a period, shape ``(A,)``."""

    opened: IntArray
    """Spans of each actor that begin in a period, shape ``(A,)``."""

    closed: IntArray
    """Spans of each actor that end in a period, shape ``(A,)``."""

    messages: IntArray
    """Messages of each channel in a period, shape ``(C,)``."""

    first_deposit: int
    """Number of the first deposit of the last period."""

    num_solutions: int
    """Instants of a period at which rates are solved."""

    @property
    def duration(self) -> float:
        """What all of them take [s]."""
        return self.num_periods * self.period

    @property
    def num_events(self) -> int:
        """Events in a period, counted as in `Run.num_events`."""
        messages = 2 * int(self.messages.sum())
        return int(self.steps.sum()) + messages + self.num_solutions

    def skip(self, begin: float) -> Skip:
        """Return the record of this jump, made at the moment ``begin``."""
        return Skip(
            begin,
            self.period,
            self.num_periods,
            self.num_periods * int(self.closed.sum()),
            self.num_periods * self.num_events,
        )


_MOST_STATES = 256
"""States that are remembered: the longest period that is found, in units. The period of
a pipeline without contention is at most its number of stages."""

_MOST_BYTES = 2**27
"""Size of the states that are remembered [byte]."""


class _Loops(NamedTuple):
    """Loops of all programs, by number; steps as numbered by the listing."""

    begin: IntArray
    """First step of each loop."""

    end: IntArray
    """Step behind each loop's last round."""

    unit: IntArray
    """Steps of each loop once round."""

    of_step: IntArray
    """Loop that each step belongs to, -1 for none; one more behind the last."""


class Watch:
    """Looks at a run from time to time, and says when it may be moved on."""

    def __init__(self, system: System, listing: Listing, *, most_deposits: int) -> None:
        self._listing = listing
        self._loops = _find_loops(self._listing)
        self._ports = system.ports
        self._first = self._listing.first[system.program]
        self._length = np.diff(self._listing.first)[system.program]
        self._opens = _running(self._listing.span & OPENS)
        self._closes = _running(self._listing.span & CLOSES)
        self._most_deposits = most_deposits
        self._seen: OrderedDict[bytes, SteadyState] = OrderedDict()
        self._num_bytes = 0
        self.reference, self.marks = self._choose(system.program)
        """The actor after whose steps the run should be looked at, and the positions
        in its program, rising; no positions if no program has a loop."""

    def look(self, state: SteadyState) -> Jump | None:
        """Compare the state with earlier ones; return a jump if there is one.

        The caller must make the jump: the earlier states are forgotten.
        """
        key = state.key()
        earlier = self._seen.pop(key, None)
        if earlier is not None:
            jump = self._jump(earlier, state)
            if jump is not None:
                self._seen.clear()
                self._num_bytes = 0
                return jump
            self._num_bytes -= _size(key, earlier)
        self._seen[key] = state
        self._num_bytes += _size(key, state)
        while len(self._seen) > _MOST_STATES or self._num_bytes > _MOST_BYTES:
            self._num_bytes -= _size(*self._seen.popitem(last=False))
        return None

    def _choose(self, program: IntArray) -> tuple[int, IntArray]:
        """Return the reference: an actor that goes through the fewest units.

        In 1F1B that is one of the first stage: while it is in its loop, all are. Of
        each program the loop with the most steps counts, of equals the first actor.
        """
        first, loops = self._listing.first, self._loops
        best = (np.iinfo(np.int64).max, 0)
        for number in np.unique(program).tolist():
            inside = np.flatnonzero(
                (loops.begin >= first[number]) & (loops.begin < first[number + 1])
            )
            if inside.size:
                longest = inside[np.argmax((loops.end - loops.begin)[inside])]
                size = int(loops.end[longest] - loops.begin[longest])
                units = size // int(loops.unit[longest])
                best = min(best, (units, int(np.argmax(program == number))))
        reference = best[1]
        if not program.size:
            return reference, np.zeros(0, np.int64)
        begin = first[program[reference]]
        loops_of_program = np.flatnonzero(
            (loops.begin >= begin) & (loops.begin < first[program[reference] + 1])
        )
        marks = [
            np.arange(loops.begin[k] + loops.unit[k], loops.end[k], loops.unit[k])
            for k in loops_of_program
        ]
        joined: IntArray = np.concatenate([*marks, np.zeros(0, np.int64)])
        return reference, np.unique(joined - begin)

    def _jump(self, then: SteadyState, now: SteadyState) -> Jump | None:
        """Return how far equal states allow to go on, if they do."""
        steps = now.position - then.position
        messages = now.posted - then.posted
        moving = steps > 0
        if now.num_deposits - then.num_deposits > self._most_deposits:
            return None
        at, before = self._first + now.position, self._first + then.position
        if not (
            self._loops_agree(before[moving], at[moving])
            and self._needs_agree(at, steps, messages)
            and self._stuck_for_good(
                ~moving & (now.position < self._length), at, messages
            )
        ):
            return None
        remaining = self._loops.end[self._loops.of_step[at[moving]]] - 1 - at[moving]
        # The reference has moved, at least.
        num_periods = int((remaining // steps[moving]).min())
        if num_periods < 1:
            return None
        return Jump(
            num_periods=num_periods,
            period=now.now - then.now,
            steps=steps,
            opened=self._opens[at] - self._opens[before],
            closed=self._closes[at] - self._closes[before],
            messages=messages,
            first_deposit=then.num_deposits,
            num_solutions=now.num_solutions - then.num_solutions,
        )

    def _loops_agree(self, before: IntArray, at: IntArray) -> bool:
        """Whether actors have gone whole units round one loop."""
        loop = self._loops.of_step[at]
        return bool(
            np.all(loop >= 0)
            and np.array_equal(loop, self._loops.of_step[before])
            and not np.any((at - before) % self._loops.unit[loop])
        )

    def _needs_agree(self, at: IntArray, steps: IntArray, messages: IntArray) -> bool:
        """Whether actors need as many more messages as channels have carried."""
        loops, listing = self._loops, self._listing
        loop = np.where(steps > 0, loops.of_step[at], NONE)
        for k in np.unique(loop[loop != NONE]).tolist():
            actors = np.flatnonzero(loop == k)
            units = steps[actors] // loops.unit[k]
            once = np.arange(loops.begin[k], loops.begin[k] + loops.unit[k])
            waiting = once[listing.source[once] != NONE]
            gained = listing.need[waiting + loops.unit[k]] - listing.need[waiting]
            ports, index = np.unique(listing.source[waiting], return_index=True)
            carried = messages[self._ports[np.ix_(actors, ports)]]
            if not np.array_equal(carried, units[:, None] * gained[index]):
                return False
        return True

    def _stuck_for_good(
        self, stuck: BoolArray, at: IntArray, messages: IntArray
    ) -> bool:
        """Whether nothing came that actors wait for that have not moved."""
        actors = np.flatnonzero(stuck)
        channels = self._ports[actors, self._listing.source[at[actors]]]
        return not np.any(messages[channels])


def _find_loops(listing: Listing) -> _Loops:
    """Return the loops of every program."""
    symbols = listing.symbols()
    rows = [np.zeros((0, 3), np.int64)]
    for first, last in zip(listing.first[:-1], listing.first[1:], strict=True):
        repeats = find_repeats(symbols[first:last])
        rows.append(repeats + np.array([first, first, 0]))
    begin, end, unit = np.concatenate(rows).T
    of_step = np.full(symbols.size + 1, -1, dtype=np.int64)
    for k in range(begin.size):
        of_step[begin[k] : end[k]] = k
    return _Loops(begin, end, unit, of_step)


def _running(flags: IntArray) -> IntArray:
    """Return how many flags are set before each step."""
    return np.concatenate(([0], np.cumsum(flags != 0))).astype(np.int64)


def _size(key: bytes, state: SteadyState) -> int:
    """Return about how many bytes it takes to remember a state."""
    return 3 * len(key) + state.position.nbytes
