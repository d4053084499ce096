"""What one pass of a stage does, before it is known which one in the step it is.

A pass begins when what it needs has come, and ends when its last move is done; what it
sends to the next stage leaves with its end.
"""

from itertools import pairwise
from typing import NamedTuple

from nestsim.simulator.slots import StageSlots
from nestsim.simulator.system import NONE
from nestsim.simulator.work import Moves

RUNNING = -1
"""Need of a part that waits for all that its actor has posted to the slot so far."""


class Part(NamedTuple):
    """A step of a pass: wait, work, post."""

    duration: float
    """[s]"""

    source: int = NONE
    """Slot to wait for, or `NONE`."""

    need: int = RUNNING
    """Messages that must have come there."""

    target: int = NONE
    """Slot to post to, or `NONE`."""


class Mark(NamedTuple):
    """Something to wait for or to post in the middle of a pass."""

    at: float
    """As a fraction of the pass's duration."""

    source: int = NONE
    """Slot to wait for, or `NONE`."""

    need: int = RUNNING
    """Messages that must have come there."""

    target: int = NONE
    """Slot to post to, or `NONE`."""


Parts = tuple[Part, ...]


def parts_of(moves: Moves, slots: StageSlots) -> Parts:
    """Turn moves into parts; phases after the first are posted where they are due."""
    parts = []
    for wait, duration, post in moves:
        source = NONE
        if wait != NONE:
            phases = slots.teams[wait]
            parts += [Part(0.0, one, target=other) for one, other in pairwise(phases)]
            source = phases[-1]
        target = slots.teams[post][0] if post != NONE else NONE
        parts.append(Part(duration, source, target=target))
    return tuple(parts)


def scaled(parts: Parts, factor: float) -> Parts:
    """Return the same parts with all durations times a factor."""
    if factor == 1.0:
        return parts
    return tuple(part._replace(duration=part.duration * factor) for part in parts)


def marked(parts: Parts, marks: list[Mark], *, after: float = 1.0) -> Parts:
    """Put marks, which rise, into a pass, dividing parts where they fall inside.

    Whatever follows the first mark takes ``after`` times as long. What is left over
    by rounding comes at the end.
    """
    total = sum(part.duration for part in parts)
    found: list[Part] = []
    left = list(reversed(marks))
    past, factor = 0.0, 1.0
    for part in parts:
        rest, done = part, 0.0
        while left and left[-1].at * total < past + part.duration:
            mark = left.pop()
            until = max(mark.at * total - past, done)
            found += _stopped(rest, (until - done) * factor, mark)
            # Waiting takes place before the rest; posting is over.
            rest = Part(0.0, mark.source, mark.need, rest.target)
            done, factor = until, after
        found.append(rest._replace(duration=(part.duration - done) * factor))
        past += part.duration
    for mark in reversed(left):
        found.append(Part(0.0, mark.source, mark.need, mark.target))
    return tuple(found)


def _stopped(rest: Part, duration: float, mark: Mark) -> list[Part]:
    """Return what comes before a mark: nothing if there is nothing to do."""
    part = Part(duration, rest.source, rest.need, mark.target)
    idle = duration == 0.0 and part.source == NONE and part.target == NONE
    return [] if idle else [part]


def between_stages(parts: Parts, arrival: Part, target: int) -> Parts:
    """Let a pass wait for its input, and post its output.

    Parameters
    ----------
    parts
        At least one.
    arrival
        A part without duration that waits for the input, or for nothing.
    target
        Slot of the output, or `NONE`.
    """
    if arrival.source != NONE:
        first = parts[0]
        if first.source == NONE:
            joined = first._replace(source=arrival.source, need=arrival.need)
            parts = (joined, *parts[1:])
        else:
            parts = (arrival, *parts)
    if target != NONE:
        last = parts[-1]
        if last.target == NONE:
            parts = (*parts[:-1], last._replace(target=target))
        else:
            parts = (*parts, Part(0.0, target=target))
    return parts


def beginning(parts: Parts) -> int:
    """Return the part with which the span of a pass begins: the first to do anything.

    Waiting before it is not part of the pass.
    """
    for number, part in enumerate(parts):
        if part.duration > 0.0 or part.target != NONE:
            return number
    return len(parts) - 1
