"""How a mistake in the input is reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import failures
from topologies.errors import MOST_LISTED, InputError, Problems, shown


def test_a_full_message_has_one_line_per_part():
    error = InputError(
        "unit is missing",
        where="cluster.bandwidth",
        got=450,
        expected='e.g. "450 GB/s"',
        hint="quote it",
    )
    assert str(error).splitlines() == [
        "cluster.bandwidth: unit is missing",
        "  got:      450",
        '  expected: e.g. "450 GB/s"',
        "  hint:     quote it",
    ]


def test_parts_that_are_not_known_are_left_out():
    assert str(InputError("is missing")) == "is missing"


def test_callers_on_the_way_up_put_their_place_in_front():
    error = InputError("is missing", hint="add it").at("bandwidth").at("links[3]")
    assert error.where == "links[3].bandwidth"
    assert str(error.at("net.toml", ": ")).startswith(
        "net.toml: links[3].bandwidth: is missing"
    )
    assert error.hint == "add it"


def test_naming_a_place_leaves_the_original_as_it_was():
    error = InputError("is missing")
    error.at("bandwidth")
    assert error.where == ""


def test_it_is_a_value_error():
    assert isinstance(InputError("is missing"), ValueError)


@given(st.text(), st.text(), st.text())
def test_no_control_character_leaves_a_message(problem, where, got):
    error = InputError(problem, where=where, got=got, expected=got, hint=got)
    lines = InputError("x", others=[error] * 30).one_line(), *str(error).split("\n")
    assert all(line.isprintable() for line in lines)


@failures.over(
    "value",
    ["a" * 10**6, [1] * 10**6, {"a" * 10**5: "b" * 10**5}, 10**5000, b"a" * 10**6],
    ids=["text", "list", "table", "number", "bytes"],
)
def test_a_message_quotes_little_of_a_large_value(value):
    told = str(InputError("is wrong", where="a.b", got=value))
    assert len(told) < 200
    assert "\n" in told


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            | st.tuples(inner)
        ),
        max_leaves=5,
    )
)
def test_a_small_value_is_shown_as_python_writes_it(value):
    written = repr(value)
    known = len(written) <= 100 and ".." not in shown(value)
    assert not known or shown(value) == written


def test_all_problems_of_a_file_are_listed_and_very_many_counted():
    problems = Problems()
    for index in range(100):
        with problems.noted(f"links[{index}]"):
            raise InputError("is missing", where="latency", expected='"2 us"')
    with pytest.raises(InputError) as caught:
        problems.refuse()
    told = str(caught.value.at("network").at("net.toml", ": ").at("cluster"))
    lines = told.splitlines()
    assert lines[0] == (
        "cluster.net.toml: network.links[0].latency: is missing "
        "(and 99 others in this file)"
    )
    expected = 'network.links[1].latency: is missing; expected "2 us"'
    assert lines[2] == f"  others:   {expected}"
    assert len(lines) == 2 + MOST_LISTED + 1
    assert lines[-1].strip() == f".. and {99 - MOST_LISTED} more"


def test_what_is_right_is_no_problem():
    problems = Problems()
    with problems.noted("a"):
        pass
    problems.refuse()
    assert not problems.errors


def test_only_mistakes_of_the_user_are_noted():
    problems = Problems()
    with pytest.raises(ZeroDivisionError), problems.noted():
        raise ZeroDivisionError
