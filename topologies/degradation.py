"""What is wrong with a network: one frozen record of slowed and removed parts.

Links are named by text (`topologies.selectors`), devices by number.
"""

import math
from dataclasses import dataclass

from topologies.errors import InputError


def _check_factor(value: float) -> None:
    if isinstance(value, bool) or not (value >= 1 and math.isfinite(value)):
        raise InputError(
            "must be a finite factor of at least 1",
            where="factor",
            got=value,
            expected="a number of at least 1, e.g. 2 for half as fast",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLinks:
    """Links that carry less than they were built for."""

    links: str
    """Which: ``"leaf 0 -> spine 1"``, ``"leaf 0 <-> spine *"`` or ``"level spine"``."""

    factor: float
    """What their bandwidth is divided by, at least 1."""

    def __post_init__(self) -> None:
        _check_factor(self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowDevice:
    """A device that computes more slowly than the others."""

    device: int
    """Its number."""

    factor: float
    """What its compute times are multiplied by, at least 1."""

    def __post_init__(self) -> None:
        _check_factor(self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """Everything that is slowed or removed; nothing by default.

    What is named several times is slowed by the product of the factors.
    """

    slow_links: tuple[SlowLinks, ...] = ()
    """Links with less bandwidth."""

    removed_links: tuple[str, ...] = ()
    """Links that are gone, named as in `SlowLinks`."""

    removed_switches: tuple[str, ...] = ()
    """Switches that are gone with all their links, by name; ``*`` stands for any
    text."""

    slow_devices: tuple[SlowDevice, ...] = ()
    """Devices that compute more slowly."""
