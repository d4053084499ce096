"""Settings, their values, and the points that they make together."""

import copy
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.features.sweep.axes import (
    axes_of_texts,
    axis,
    axis_of_text,
    merged,
    product,
)
from nestsim.scenario.editing import parse_path, spelt, with_values
from tests import failures
from topologies.errors import InputError

DOCUMENT = {
    "training": {"global_batch_size": 512},
    "cluster": {"network": {"levels": [{"bandwidth": "1 GB/s"}, {"fanout": 4}]}},
}


@failures.over(
    ("text", "values"),
    [
        ("a.b=1,2", (1, 2)),
        ("a.b = 1 , 2.5 , true", (1, 2.5, True)),
        ("a.b=200 Gbit/s,400 Gbit/s", ("200 Gbit/s", "400 Gbit/s")),
        ('a.b="200 Gbit/s","x, y"', ("200 Gbit/s", "x, y")),
        ("a.b=h100-sxm,a100-80gb", ("h100-sxm", "a100-80gb")),
        ("a.b=[1,2]", (1, 2)),
        ("a.b=[[1,2]]", ([1, 2],)),
        ("a.b=[1,2],[4]", ([1, 2], [4])),
        ("a.b={ x = 1, y = [2, 3] },{}", ({"x": 1, "y": [2, 3]}, {})),
        ("a.b=1e6", (1e6,)),
        ("a.b=2 us", ("2 us",)),
    ],
)
def test_values_are_toml_and_what_is_not_is_a_string(text, values) -> None:
    found = axis_of_text(text)
    assert found.path == "a.b"
    assert found.values == values
    assert [type(one) for one in found.values] == [type(one) for one in values]


@failures.over(
    ("text", "problem"),
    [
        ("a.b", "is not a setting with values"),
        ("=1", "is not a setting with values"),
        ("a..b=1", "is not the path of a setting"),
        ("a[x]=1", "is not the path of a setting"),
        ("a b=1", "is not the path of a setting"),
        ("a=", "is not a list of values"),
        ("a=1,,2", "is not a list of values"),
        ("a=[1,2", "is not a list of values"),
        ('a="x', "is not a list of values"),
        ("a=[1 2]", "is not TOML"),
        ("a=[]", "has no values"),
        ("a=1,1", "stands in the list twice"),
        ("a=nan", "is no value of a setting"),
        ("a=2020-01-01", "is no value of a setting"),
        ("sweep.workers=1,2", "[sweep] is not a part of what is evaluated"),
        ("assert.mfu=1,2", "[assert] is not a part of what is evaluated"),
    ],
)
def test_what_is_wrong_with_a_setting_is_said(text, problem) -> None:
    with pytest.raises(InputError) as caught:
        axis_of_text(text)
    assert caught.value.problem.startswith(problem)


def test_true_and_1_and_1_0_are_different_values() -> None:
    assert len(axis("a", [True, 1, 1.0]).values) == 3


def test_the_last_setting_changes_fastest() -> None:
    points = product([axis("a", [1, 2]), axis("b.c", ["x", "y", "z"])])
    expected = [{"a": a, "b.c": b} for a in (1, 2) for b in "xyz"]
    assert list(points) == expected


sizes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(sizes)
@settings(max_examples=25)
def test_the_product_has_every_combination_once(counts) -> None:
    axes = [axis(f"a{n}", list(range(count))) for n, count in enumerate(counts)]
    points = [tuple(point.values()) for point in product(axes)]
    assert len(points) == math.prod(counts)
    assert points == list(itertools.product(*(range(count) for count in counts)))


def test_points_do_not_share_lists() -> None:
    first, second = product([axis("a", [[1]]), axis("b", [1, 2])])
    assert first["a"] == second["a"]
    assert first["a"] is not second["a"]


def test_too_many_points_are_refused() -> None:
    axes = [axis(name, list(range(1001))) for name in "ab"]
    with pytest.raises(InputError, match="too many points"):
        product(axes)


def test_the_command_line_stands_over_the_table() -> None:
    table = {"a": (1, 2), "b": (3,)}
    axes = merged(table, axes_of_texts(["b=5,6", "c=7"]))
    assert [(one.path, one.values) for one in axes] == [
        ("a", (1, 2)),
        ("b", (5, 6)),
        ("c", (7,)),
    ]


@failures.over(
    ("table", "texts", "where"),
    [
        ({}, [], "--set"),
        ({}, ["a=1", "a=2"], "--set"),
        ({}, ["a=1,1"], "--set: a"),
        ({"a": (1, 1)}, [], "sweep.set: a"),
    ],
)
def test_mistakes_name_where_they_are(table, texts, where) -> None:
    with pytest.raises(InputError) as caught:
        merged(table, axes_of_texts(texts))
    assert caught.value.where == where


def test_values_are_put_in_and_tables_made() -> None:
    before = copy.deepcopy(DOCUMENT)
    changed = with_values(
        DOCUMENT,
        {"cluster.network.levels[1].fanout": 8, "simulation.seed": 3, "name": "x"},
    )
    assert changed["cluster"]["network"]["levels"] == [
        {"bandwidth": "1 GB/s"},
        {"fanout": 8},
    ]
    assert changed["simulation"] == {"seed": 3}
    assert changed["name"] == "x"
    assert before == DOCUMENT


def test_outer_settings_are_put_in_before_inner_ones() -> None:
    changed = with_values({}, {"a.b.c": 1, "a.b": {"d": 2}})
    assert changed == {"a": {"b": {"c": 1, "d": 2}}}


@failures.over(
    ("path", "problem"),
    [
        ("cluster.network.levels[2].fanout", "the list has no entry [2]"),
        ("cluster.network[0].fanout", "there is no list"),
        ("training.global_batch_size.x", "there is no table"),
        ("cluster.network.levels.x", "there is no table"),
    ],
)
def test_paths_that_lead_nowhere_are_refused(path, problem) -> None:
    with pytest.raises(InputError) as caught:
        with_values(DOCUMENT, {path: 1})
    assert caught.value.problem.startswith(problem)
    assert caught.value.where == path


def test_paths_have_positions_and_quoted_names() -> None:
    assert parse_path('a."b.c"[0][12].d-e') == ("a", "b.c", 0, 12, "d-e")


def test_points_are_spelt_as_toml() -> None:
    point = {"a.b": "1 GB/s", "c": True, "d": [1, {"e": 2}]}
    assert spelt(point) == 'a.b = "1 GB/s", c = true, d = [1, { e = 2 }]'
