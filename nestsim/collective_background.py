"""What goes on while a collective is measured, and the measurement in it."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.collective_runs import Repeated, Wires, spans, time_alone
from topologies.arrays import FloatArray, IntArray
from topologies.network import Links

MOST_OPERATIONS = 20
"""Measured in the job's traffic; the default of nccl-tests."""

PERIODS = 4
"""Of the slowest background traffic, over which the measured operations spread."""

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class Background(NamedTuple):
    """A unit that goes on all the time."""

    wires: Wires
    num_bytes: float
    """Of the full tensor [byte]."""
    delay: float
    """Until its first operation, beside the work before it [s]."""
    gap: float
    """Work before each operation [s]."""

    def lasting(self, time: float, alone: float) -> Repeated:
        """Return the unit with enough operations for a time, however fast they are."""
        count = 1 + math.ceil(time / (self.gap + alone))
        first = self.delay + self.gap
        return Repeated(self.wires, self.num_bytes, (first, *(self.gap,) * (count - 1)))


def evenly(numbers: IntArray) -> FloatArray:
    """Return numbers in [0, 1) of which those of any range of numbers lie evenly.

    Multiples of the golden ratio, modulo 1 (Knuth, "The Art of Computer Programming",
    volume 3, section 6.4, theorem S).
    """
    return np.asarray(numbers * _GOLDEN % 1.0)


def reached(
    links: Links, units: Sequence[Wires], background: Sequence[Background]
) -> list[Background]:
    """Return the background that can matter: joined to the units by links in use."""
    used = np.zeros(len(links), dtype=np.bool_)
    for wires in units:
        _mark(used, wires)
    found: list[Background] = []
    left = list(background)
    while left:
        near = [_touches(used, unit.wires) for unit in left]
        if not any(near):
            break
        joined = [unit for unit, is_near in zip(left, near, strict=True) if is_near]
        left = [unit for unit, is_near in zip(left, near, strict=True) if not is_near]
        for unit in joined:
            _mark(used, unit.wires)
        found += joined
    return found


def _mark(used: NDArray[np.bool_], wires: Wires) -> None:
    for wire in wires:
        used[wire.links] = True


def _touches(used: NDArray[np.bool_], wires: Wires) -> bool:
    return any(bool(used[wire.links].any()) for wire in wires)


def busy_time(
    links: Links,
    units: Sequence[Wires],
    num_bytes: float,
    background: Sequence[Background],
    together: float,
) -> float:
    """Return the mean time of the slowest unit's operations among the background [s].

    Parameters
    ----------
    links
        Of the network.
    units
        What is measured.
    num_bytes
        Of the full tensor [byte].
    background
        At least one unit.
    together
        How long the operation takes without background [s].
    """
    alone = [time_alone(links, unit.wires, unit.num_bytes) for unit in background]
    period = max(unit.gap + time for unit, time in zip(background, alone, strict=True))
    window = PERIODS * period
    count = min(max(math.ceil(window / together), 1), MOST_OPERATIONS)
    mean_gap = max(window / count - together, 0.0)
    gaps = tuple((2.0 * mean_gap * evenly(1 + np.arange(count))).tolist())
    measured = [Repeated(wires, num_bytes, gaps) for wires in units]
    lasting = sum(gaps) + count * together
    while True:
        lasting *= 1.5
        others = [
            unit.lasting(lasting, time)
            for unit, time in zip(background, alone, strict=True)
        ]
        found = spans(links, [*measured, *others])
        ours, theirs = found[: len(units)], found[len(units) :]
        end = max(float(ends[-1]) for _, ends in ours)
        # The background must not have run out before the last one was done.
        if all(float(ends[-1]) >= end for _, ends in theirs):
            return max(float((ends - starts).mean()) for starts, ends in ours)
        lasting = max(lasting, end)
