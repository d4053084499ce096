"""Device numbers as short lists of ranges, the form in which plans are written.

``"0-7"`` are devices 0 to 7, ``"0-62:2"`` every second one from 0 to 62, and ``"5"`` is
device 5. A list of such texts keeps the order of the devices, so that what is written
is read back as it was. A stage of 6,400 devices takes one text where they follow each
other, and one for each replica where they do not.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from topologies.errors import InputError

MOST_DEVICES = 16_000_000
"""Devices that a plan may name; more are slips of the keyboard."""

EXPECTED = 'a range of devices: "0-7", "0-62:2" (every second one) or "5"'

_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?")


def to_ranges(devices: Iterable[int]) -> list[str]:
    """Write device numbers as ranges, in their order.

    Runs of the same distance are taken greedily from the front; two numbers make a
    range only if they follow each other. O(n).

    Examples
    --------
    >>> to_ranges([0, 1, 2, 3, 8, 9, 10, 11])
    ['0-3', '8-11']
    >>> to_ranges([0, 8, 16, 24, 5])
    ['0-24:8', '5']
    """
    numbers = np.fromiter(devices, np.int64)
    steps = np.diff(numbers)
    turns = np.flatnonzero(steps[1:] != steps[:-1]) + 1
    ranges = []
    start = 0  # of what is not written yet
    for last in [*turns.tolist(), *[steps.size] * (steps.size > 0)]:
        step = int(steps[last - 1])
        if last > start and step > 0 and (last - start > 1 or step == 1):
            ranges.append(_range(int(numbers[start]), int(numbers[last]), step))
            start = last + 1
        else:
            ranges.extend(str(number) for number in numbers[start:last].tolist())
            start = max(start, last)
    return [*ranges, *(str(number) for number in numbers[start:].tolist())]


def _range(first: int, last: int, step: int) -> str:
    return f"{first}-{last}" if step == 1 else f"{first}-{last}:{step}"


def from_ranges(texts: Sequence[Any]) -> list[int]:
    """Read device numbers that `to_ranges` wrote.

    Raises
    ------
    InputError
        If one is no range, or all together are too many; ``where`` is its position.
    """
    return list(chain.from_iterable(parsed_ranges(texts)))


def parsed_ranges(texts: Sequence[Any]) -> list[range]:
    """Return each range, none of them empty, without naming the devices one by one.

    Raises
    ------
    InputError
        As `from_ranges`.
    """
    ranges: list[range] = []
    total = 0
    for position, text in enumerate(texts):
        found = _RANGE.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise _error("is not a range", position, text)
        first = int(found[1])
        last, step = int(found[2] or first), int(found[3] or 1)
        if last < first or step < 1 or (last - first) % step:
            raise _error("is a range that does not reach its end", position, text)
        ranges.append(range(first, last + 1, step))
        total += len(ranges[-1])
        if total > MOST_DEVICES:
            raise _error(f"names more than {MOST_DEVICES:,} devices", position, text)
    return ranges


def _error(problem: str, position: int, value: object) -> InputError:
    got = value[:40] if isinstance(value, str) else type(value).__name__
    return InputError(problem, where=f"[{position}]", got=got, expected=EXPECTED)
