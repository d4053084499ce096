"""How a mistake in the input is told."""

from topologies.errors import InputError


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
