"""Checks of single parameters that the records of `topologies.specs` share."""

import math

from topologies.errors import InputError

MAX_DEVICES = 2**20
"""Largest cluster that the builders take."""

MAX_SPINE_LINKS = 2**22
"""Most separate leaf-to-spine links (ECMP) that the builders take."""

MIN_RATIO, MAX_RATIO = 1e-6, 1e6
"""Oversubscription outside is no switch."""

MIN_EFFICIENCY = 1e-6
"""Less of a bandwidth is none."""

MAX_CABLES = 2**40
"""Most cables of one link; their number is kept in 64 bits."""

MAX_SLOWDOWN = 1e9
"""The product of all factors on one link or device."""


def check_count(where: str, value: object) -> None:
    """Refuse what is not a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        problem = "must be a whole number of at least 1"
        expected = "a positive whole number, e.g. 8"
        raise InputError(problem, where=where, got=value, expected=expected)


def check_bandwidth(where: str, value: float) -> None:
    """Refuse what is not positive and finite, NaN included."""
    if not (value > 0 and math.isfinite(value)):
        problem = "must be a positive, finite bandwidth"
        expected = "a positive number of bytes per second, e.g. 450e9"
        raise InputError(problem, where=where, got=value, expected=expected)


def check_latency(where: str, value: float) -> None:
    """Refuse what is negative, infinite or not a number."""
    if not (value >= 0 and math.isfinite(value)):
        problem = "must be a finite latency that is not negative"
        raise InputError(
            problem, where=where, got=value, expected="0 s or more, e.g. 2e-6"
        )


def check_ratio(where: str, value: float) -> None:
    """Refuse an oversubscription that no switch has."""
    if not MIN_RATIO <= value <= MAX_RATIO:
        problem = "must be a positive, finite ratio"
        expected = f"from {MIN_RATIO:g} to {MAX_RATIO:g}, e.g. 2 for 2:1"
        raise InputError(problem, where=where, got=value, expected=expected)


def check_efficiency(where: str, value: float) -> None:
    """Refuse what is no fraction of a bandwidth."""
    if not MIN_EFFICIENCY <= value <= 1:
        problem = "must be more than 0 and at most 1"
        expected = f"a fraction from {MIN_EFFICIENCY:g} to 1, e.g. 0.9"
        raise InputError(problem, where=where, got=value, expected=expected)


def check_choice(where: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a word that is not one of the choices."""
    if value not in choices:
        expected = " or ".join(f'"{choice}"' for choice in choices)
        raise InputError("unknown choice", where=where, got=value, expected=expected)


def check_num_devices(where: str, value: int) -> None:
    """Refuse a cluster of more than `MAX_DEVICES`."""
    if value > MAX_DEVICES:
        expected = f"at most {MAX_DEVICES} devices"
        raise InputError("too many devices", where=where, got=value, expected=expected)
