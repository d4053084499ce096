"""Quantities in and out."""

import itertools
import math

import pint
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import failures
from topologies.errors import InputError
from topologies.units import (
    BASE_UNITS,
    EXAMPLES,
    RANGES,
    USUAL_UNITS,
    _in_base_units,
    currency,
    format_bandwidth,
    format_duration,
    format_energy,
    format_money,
    format_power,
    format_rate,
    format_size,
    parse_quantity,
)


@failures.over(
    ("text", "dimension", "value"),
    [
        ("450 GB/s", "bandwidth", 450e9),
        ("400 Gbit/s", "bandwidth", 50e9),
        ("1 GiB/s", "bandwidth", 2.0**30),
        ("80 GB", "size", 80e9),
        ("80 GiB", "size", 80 * 2.0**30),
        ("8 Mbit", "size", 1e6),
        ("2 us", "duration", 2e-6),
        ("1.5 ms", "duration", 1.5e-3),
        ("0 s", "duration", 0.0),
        ("989.4 TFLOP/s", "rate", 989.4e12),
        ("2 PFLOP", "work", 2e15),
        ("1.2 kW", "power", 1200.0),
        ("1200 USD", "price", 1200.0),
        ("2.50EUR / h", "price of time", 2.5 / 3600),
        ("36 CNY/min", "price of time", 0.6),
        ("0.08 USD/kWh", "price of energy", 0.08 / 3.6e6),
        ("80 USD/MWh", "price of energy", 0.08 / 3.6e6),
    ],
)
def test_quantities_become_base_units(text, dimension, value):
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-12)


@failures.over(
    ("text", "dimension", "problem"),
    [
        (450e9, "bandwidth", "no unit"),
        (True, "bandwidth", "no unit"),
        ("450", "bandwidth", "no unit"),
        ("450 GB", "bandwidth", "not one of bandwidth"),
        ("450 quux/s", "bandwidth", "unknown unit"),
        ("2 GB/s", "duration", "not one of duration"),
        ("-1 us", "duration", "not negative"),
        ("nan us", "duration", "not a quantity"),
        ("inf GB/s", "bandwidth", "not a quantity"),
        ("9**9**9 s", "duration", "not a quantity"),
        ("1 GB/s/", "bandwidth", "not a quantity"),
        ("1 GB//s", "bandwidth", "not a quantity"),
        ("1 degC", "bandwidth", "not a quantity"),
        ("1 dB", "bandwidth", "not a quantity"),
        ("1 Hz", "bandwidth", "unknown unit"),
        ("1 USD", "bandwidth", "unknown unit"),
        ("1 usd", "price", "unknown unit"),
        ("1 W", "price", "not one of price"),
        ("1 USD/W", "price of time", "not one of price of time"),
        ("1 USD", "price of energy", "not one of price of energy"),
        ("1 USDD", "price", "unknown unit"),
        ("1 $", "price", "not a quantity"),
        ("8 radian", "size", "unknown unit"),
        ("1e400 GB/s", "bandwidth", "not negative"),
        ("GB/s +", "bandwidth", "not a quantity"),
        ("1 GB)/(s", "bandwidth", "not a quantity"),
        (None, "size", "no unit"),
        ([1], "size", "no unit"),
    ],
)
def test_what_is_no_quantity_is_refused(text, dimension, problem):
    with pytest.raises(InputError, match=problem) as caught:
        parse_quantity(text, dimension)
    assert EXAMPLES[dimension].split('"')[1] in caught.value.expected


PREFIXES = ("", "f", "p", "n", "µ", "u", "m", "k", "M", "G", "T", "P", "E", "Z", "Y")
BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "mega", "gibi")
NAMES = {
    "duration": ("s", "sec", "second", "seconds", "min", "h", "hour", "day", "weeks"),
    "size": ("bit", "bits", "B", "byte", "bytes", "octet"),
    "bandwidth": ("bps", "Bd", "B/s", "bit/s", "byte / second", "GB/min"),
}


@failures.over("dimension", NAMES)
def test_units_are_those_of_pints_own_list(dimension):
    full = pint.UnitRegistry(cache_folder=None)
    for prefix, name in itertools.product((*PREFIXES, *BINARY), NAMES[dimension]):
        if (prefix and name.startswith("G")) or prefix + name == "Eh":
            continue  # two prefixes; exahours are hartrees there
        text = f"3 {prefix}{name}"
        there = float(full.Quantity(text).to(BASE_UNITS[dimension]).magnitude)
        if RANGES[dimension].smallest <= there <= RANGES[dimension].largest:
            assert parse_quantity(text, dimension) == pytest.approx(there, rel=1e-13)


@given(
    st.sampled_from([(d, u) for d, units in USUAL_UNITS.items() for u in units]),
    st.one_of(
        st.integers(0, 10**19).map(str), st.floats(0, 1e30).map(lambda x: f"{x!r}")
    ),
    st.sampled_from(["", " ", "  "]),
)
def test_usual_units_give_the_very_number_that_pint_gives(named, number, space):
    dimension, unit = named
    text = f"{number}{space}{unit}"
    try:
        value = parse_quantity(text, dimension)
    except InputError as error:
        assert "absurdly" in error.problem  # noqa: PT017
    else:
        assert value == _in_base_units(text, dimension, "")


@failures.over("dimension", BASE_UNITS)
def test_every_dimensions_example_is_one(dimension):
    for example in EXAMPLES[dimension].split('"')[1::2]:
        assert parse_quantity(example, dimension) > 0


@failures.over(
    ("text", "code"),
    [
        ("2.50 USD/h", "USD"),
        ("1e3EUR", "EUR"),
        ("5 W", ""),
        ("5 usd", ""),
        (5, ""),
        ("USD 5", ""),
    ],
)
def test_the_currency_of_an_amount_is_its_three_letters(text, code):
    assert currency(text) == code


def test_money_power_and_energy_are_written_for_people():
    assert format_money(2.5, "USD") == "2.5 USD"
    assert format_money(1_234_567.0, "EUR") == "1,235,000 EUR"
    assert format_money(1234.4, "EUR") == "1,234 EUR"
    assert format_power(716_800.0) == "716.8 kW"
    assert format_energy(3.6e9) == "1 MWh"


@given(value=st.integers(1, 10**15))
def test_bandwidths_survive_writing_and_reading(value):
    text = format_bandwidth(float(value))
    assert parse_quantity(text, "bandwidth") == pytest.approx(value, rel=1e-3)


@given(value=st.integers(1, 2**50))
def test_sizes_survive_writing_and_reading(value):
    text = format_size(float(value))
    assert parse_quantity(text, "size") == pytest.approx(value, rel=1e-3)


@given(exponent=st.floats(-9, 3))
def test_durations_survive_writing_and_reading(exponent):
    value = 10**exponent
    text = format_duration(value)
    assert parse_quantity(text, "duration") == pytest.approx(value, rel=1e-3)


def test_numbers_for_people_have_four_digits_and_a_prefix():
    assert format_bandwidth(450e9) == "450 GB/s"
    assert format_rate(989.4e12) == "989.4 TFLOP/s"
    assert format_size(80 * 2.0**30) == "80 GiB"
    assert format_size(512) == "512 B"
    assert format_duration(12.34567e-3) == "12.35 ms"
    assert format_duration(0.0) == "0 s"
    assert math.isclose(parse_quantity(format_bandwidth(12.5), "bandwidth"), 12.5)


@failures.over(
    ("text", "dimension"),
    [
        ("1e-300 GB/s", "bandwidth"),
        ("1e30 GB/s", "bandwidth"),
        ("0.5 B/s", "bandwidth"),
        ("1e-310 s", "duration"),
        ("1e-16 s", "duration"),
        ("1e9 s", "duration"),
        ("1e-9 B", "size"),
        ("1e30 GB", "size"),
        ("1 FLOP/s", "rate"),
        ("1e30 FLOP/s", "rate"),
    ],
)
def test_what_no_hardware_has_is_refused_with_the_range(text, dimension):
    with pytest.raises(InputError, match=r"is absurdly (small|large)") as caught:
        parse_quantity(text, dimension)
    assert caught.value.expected.startswith("from ")


@failures.over("dimension", sorted(RANGES))
def test_the_ends_of_each_range_are_accepted(dimension):
    for end in RANGES[dimension].written.removeprefix("from ").split(" to "):
        value = parse_quantity(end, dimension)
        assert value in RANGES[dimension][:2] or math.isclose(
            value, RANGES[dimension].smallest, rel_tol=1e-9
        )
