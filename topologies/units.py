"""Read quantities such as ``"400 Gbit/s"`` into base units, and write them back.

Inside the code every number is in base units: seconds, bytes, bytes per second, FLOP
and FLOP per second, watts. Units appear at the two edges only: here, and in reports.
``GB`` is 1e9 bytes and ``GiB`` 2**30 bytes; ``Gbit`` is an eighth of a ``GB``. Money is
in the currency that it is written in, three capital letters as in ISO 4217 (``USD``).
"""

import math
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from topologies.errors import InputError

if TYPE_CHECKING:
    import pint

BASE_UNITS: Mapping[str, str] = MappingProxyType(
    {
        "duration": "second",
        "lifetime": "second",
        "size": "byte",
        "bandwidth": "byte / second",
        "work": "FLOP",
        "rate": "FLOP / second",
        "power": "watt",
        "price": "money",
        "price of time": "money / second",
        "price of energy": "money / joule",
    }
)
"""Dimension of a setting -> the unit that it has inside the code."""

EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "duration": '"2 us"',
        "lifetime": '"365 d"',
        "size": '"80 GiB"',
        "bandwidth": '"450 GB/s" or "400 Gbit/s"',
        "work": '"2 PFLOP"',
        "rate": '"989 TFLOP/s"',
        "power": '"700 W"',
        "price": '"1200 USD"',
        "price of time": '"2.50 USD/h"',
        "price of energy": '"0.08 USD/kWh"',
    }
)
"""Dimension of a setting -> how values of it may be written, for messages."""


class Range(NamedTuple):
    """What a quantity may be, besides 0."""

    smallest: float
    """Smallest value in the base unit of the dimension."""

    largest: float
    """Largest value in the base unit of the dimension."""

    written: str
    """Smallest and largest value, as people write them."""


RANGES: Mapping[str, Range] = MappingProxyType(
    {
        "duration": Range(1e-15, 1e7, "from 1 fs to 10000000 s"),
        "lifetime": Range(1e-3, 1e12, "from 1 ms to 1e12 s"),
        "size": Range(1.0, 1e18, "from 1 B to 1000 PB"),
        "bandwidth": Range(1.0, 1e18, "from 1 B/s to 1000 PB/s"),
        "work": Range(1.0, 1e30, "from 1 FLOP to 1e30 FLOP"),
        "rate": Range(1e3, 1e24, "from 1 kFLOP/s to 1000000 EFLOP/s"),
        "power": Range(1e-3, 1e9, "from 1 mW to 1 GW"),
        "price": Range(1e-3, 1e15, "from 0.001 USD to 1e15 USD"),
        "price of time": Range(
            1e-6 / 3600, 1e12 / 3600, "from 1e-6 USD/h to 1e12 USD/h"
        ),
        "price of energy": Range(
            1e-6 / 3.6e6, 1e9 / 3.6e6, "from 1e-6 USD/kWh to 1e9 USD/kWh"
        ),
    }
)
"""Dimension of a setting -> its range; outside is a slip of the keyboard."""

NUMBER_PATTERN = r"([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][+-]?[0-9]{1,3})?"
"""Regular expression of the number of a quantity, without its sign."""

UNIT_PATTERN = r"[A-Za-zµμ]{1,20}( ?/ ?[A-Za-zµμ]{1,20})?"
"""Regular expression of the unit of a quantity."""

USUAL_UNITS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "duration": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
        "lifetime": {"s": 1.0},
        "size": {"B": 1.0, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40},
        "bandwidth": {"B/s": 1.0, "GB/s": 1e9, "TB/s": 1e12, "Gbit/s": 1e9 / 8},
        "work": {"FLOP": 1.0},
        "rate": {"FLOP/s": 1.0, "TFLOP/s": 1e12, "PFLOP/s": 1e15},
        "power": {"W": 1.0, "kW": 1e3},
    }
)
"""Dimension of a setting -> unit -> what it is in the base unit.

Nearly all that people write, for which importing pint would take 0.15 s of a command.
"""

# The units library evaluates what it is given as an expression, powers included: only
# one number and one unit may reach it, or "9**9**9 s" would never come back.
_QUANTITY = re.compile(
    rf"\s*(?P<sign>[+-]?)(?P<number>{NUMBER_PATTERN})\s*(?P<unit>{UNIT_PATTERN})?"
)


_DEFINITIONS = """
femto- = 1e-15 = f-
pico- = 1e-12 = p-
nano- = 1e-9 = n-
micro- = 1e-6 = µ- = μ- = u-
milli- = 1e-3 = m-
kilo- = 1e3 = k-
mega- = 1e6 = M-
giga- = 1e9 = G-
tera- = 1e12 = T-
peta- = 1e15 = P-
exa- = 1e18 = E-
zetta- = 1e21 = Z-
yotta- = 1e24 = Y-
kibi- = 2**10 = Ki-
mebi- = 2**20 = Mi-
gibi- = 2**30 = Gi-
tebi- = 2**40 = Ti-
pebi- = 2**50 = Pi-
exbi- = 2**60 = Ei-
second = [time] = s = sec
minute = 60 * second = min
hour = 60 * minute = h = hr
day = 24 * hour = d
week = 7 * day
bit = [information]
byte = 8 * bit = B = octet
baud = bit / second = Bd = bps
FLOP = [floating_point_operations] = FLOPs
kelvin = [temperature]; offset: 0 = K
degree_Celsius = kelvin; offset: 273.15 = degC
decibel = 1 ; logbase: 10; logfactor: 10 = dB
joule = [energy] = J
watt = joule / second = W
watt_hour = watt * hour = Wh
money = [currency]
"""
"""The units that a setting may be written in, as pint defines them, but that a bit is
not a mere number (for pint, 1 Hz is a bandwidth); and two that look like some of them
and are not. Reading pint's own list of hundreds of units takes twelve times as long."""


_PRICE = re.compile(rf"(\s*[+-]?{NUMBER_PATTERN}\s*)(?P<code>[A-Z]{{3}})\s*(/.*)?")


def currency(text: object) -> str:
    """Return the currency that an amount of money is written in, empty if none is.

    Examples
    --------
    >>> currency("2.50 USD/h")
    'USD'
    """
    found = _PRICE.fullmatch(text) if isinstance(text, str) else None
    return found["code"] if found else ""


def _plain_money(text: str) -> str:
    """Return an amount with the one name that all currencies have in the registry."""
    found = _PRICE.fullmatch(text)
    if not found:
        return text
    return f"{text[: found.start('code')]}money{text[found.end('code') :]}"


@cache
def _registry() -> "pint.UnitRegistry[float]":
    import pint

    return pint.UnitRegistry(_DEFINITIONS.strip().splitlines(), cache_folder=None)


def parse_quantity(text: object, dimension: str) -> float:
    """Convert ``"<number> <unit>"`` to base units.

    Parameters
    ----------
    text
        As written in the scenario. A bare number is refused: nobody can tell GB/s
        from Gbit/s by looking at it.
    dimension
        A key of `BASE_UNITS`.

    Returns
    -------
    float
        In the unit `BASE_UNITS` gives for the dimension; 0, or inside `RANGES`.

    Raises
    ------
    InputError
        If the number or the unit is missing, the unit is unknown or of another
        dimension, or the value is negative, infinite, or none that hardware has.

    Examples
    --------
    >>> parse_quantity("400 Gbit/s", "bandwidth")
    50000000000.0
    >>> parse_quantity("80 GiB", "size")
    85899345920.0
    """
    expected = f"a number with a unit, e.g. {EXAMPLES[dimension]}"
    if not isinstance(text, str):
        raise InputError("quantity has no unit", got=text, expected=expected)
    written = _QUANTITY.fullmatch(text)
    if not written:
        raise InputError("not a quantity", got=text, expected=expected)
    factor = USUAL_UNITS.get(dimension, {}).get(written["unit"])
    if factor is None or written["sign"]:
        value = _in_base_units(text, dimension, expected)
    else:
        value = float(written["number"]) * factor
    if not (math.isfinite(value) and value >= 0):
        raise InputError("must be finite and not negative", got=text, expected=expected)
    _check_range(text, value, dimension)
    return value


def _in_base_units(text: str, dimension: str, expected: str) -> float:
    """Return a quantity of any unit that there is, in that of its dimension."""
    import pint

    try:
        plain = _plain_money(text) if dimension.startswith("price") else text
        quantity: pint.Quantity[float] = _registry().Quantity(plain)
        if quantity.unitless:
            raise InputError("quantity has no unit", got=text, expected=expected)
        return float(quantity.to(BASE_UNITS[dimension]).magnitude)
    except pint.DimensionalityError:
        problem = f"unit is not one of {dimension}"
        raise InputError(problem, got=text, expected=expected) from None
    except pint.UndefinedUnitError:
        raise InputError("unknown unit", got=text, expected=expected) from None
    except pint.PintError:  # units with an offset, such as degrees Celsius
        raise InputError("not a quantity", got=text, expected=expected) from None


def _check_range(text: str, value: float, dimension: str) -> None:
    """Refuse what no hardware has."""
    known = RANGES[dimension]
    if value and not known.smallest <= value <= known.largest:
        extreme = "small" if value < known.smallest else "large"
        raise InputError(
            f"is absurdly {extreme}",
            got=text,
            expected=f"{known.written}, e.g. {EXAMPLES[dimension]}",
        )


_DECIMAL = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def _with_prefix(value: float, unit: str) -> str:
    for scale, prefix in _DECIMAL:
        if abs(value) >= scale:
            return f"{value / scale:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def format_bandwidth(value: float) -> str:
    """Write bytes per second for people: ``450 GB/s``."""
    return _with_prefix(value, "B/s")


def format_rate(value: float) -> str:
    """Write FLOP per second for people: ``989 TFLOP/s``."""
    return _with_prefix(value, "FLOP/s")


def format_size(value: float) -> str:
    """Write bytes for people, in binary units: ``71.3 GiB``."""
    for scale, unit in ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value / 1024:.4g} KiB" if abs(value) >= 1024 else f"{value:.4g} B"


def format_duration(value: float) -> str:
    """Write seconds for people: ``12.3 ms``."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value / 1e-9:.4g} ns" if value else "0 s"


def format_power(value: float) -> str:
    """Write watts for people: ``716.8 kW``."""
    return _with_prefix(value, "W")


def format_energy(value: float) -> str:
    """Write joules for people, in watt hours: ``1.29 MWh``."""
    return _with_prefix(value / 3600.0, "Wh")


def format_money(value: float, code: str) -> str:
    """Write an amount of money for people: ``2.5 USD``, ``1,234,000 USD``."""
    if abs(value) >= 1e5:
        value = float(f"{value:.4g}")
    if abs(value) >= 1000:
        return f"{value:,.0f} {code}"
    return f"{value:.4g} {code}"
