"""Naming links and switches by text."""

from fnmatch import fnmatchcase

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import failures
from tests.topologies.strategies import cabled_fat_trees, custom_network, networks
from topologies import (
    FatTreeSpec,
    InputError,
    LevelSpec,
    SpineLeafSpec,
    build_network,
)
from topologies.degrade import _match_names, select_links, select_switches

NETWORK = build_network(
    SpineLeafSpec(
        devices_per_node=2,
        node_bandwidth=4.0,
        node_latency=0.0,
        nodes_per_leaf=2,
        num_leaves=3,
        nic_bandwidth=1.0,
        nic_latency=0.0,
        num_spines=12,
        spine_latency=0.0,
        trunk="ecmp",
    )
)


def named(network, selector):
    """Links that a text selects, by the names of their ends."""
    names, links = network.vertex_names, network.links
    return [
        (names[links.source[link]], names[links.target[link]])
        for link in np.flatnonzero(select_links(network, selector))
    ]


@given(network=networks | cabled_fat_trees, data=st.data())
@settings(max_examples=40)
def test_the_names_that_reports_print_select_the_link(network, data):
    if not len(network.links):
        return
    link = data.draw(st.integers(0, len(network.links) - 1))
    ends = network.links.source[link], network.links.target[link]
    here, there = (network.vertex_names[end] for end in ends)
    assert set(named(network, f"{here} -> {there}")) == {(here, there)}
    both = {(here, there), (there, here)}
    assert set(named(network, f"{here} <-> {there}")) == both


def test_an_arrow_is_one_way_and_a_double_arrow_is_both():
    assert named(NETWORK, "leaf 0 -> spine 1") == [("leaf 0", "spine 1")]
    assert named(NETWORK, "spine 1 -> leaf 0") == [("spine 1", "leaf 0")]
    assert len(named(NETWORK, "leaf 0 <-> spine 1")) == 2


@failures.over("text", ["leaf0->spine1", "leaf 0->spine 1", " leaf  0  ->  spine1 "])
def test_blanks_may_be_left_out(text):
    assert named(NETWORK, text) == [("leaf 0", "spine 1")]


def test_a_star_stands_for_any_text():
    assert len(named(NETWORK, "leaf 0 -> spine *")) == 12
    assert len(named(NETWORK, "leaf * <-> spine 1")) == 6
    assert len(named(NETWORK, "leaf*->spine1*")) == 9
    assert len(named(NETWORK, "device 3 -> *")) == 2
    assert len(named(NETWORK, "* -> *")) == len(NETWORK.links)


def test_a_level_is_all_of_its_links():
    found = select_links(NETWORK, "level spine")
    assert np.array_equal(found, NETWORK.links.level == 2)


def test_blanks_count_where_names_differ_in_them_alone():
    text = 'devices = 1\n[[links]]\nsource = 0\ntarget = "{}"\n'
    text += 'bandwidth = "1 B/s"\nlatency = "1 s"\n'
    lines = text.format("s 1") + text.format("s1").removeprefix("devices = 1\n")
    network = custom_network(lines)
    assert named(network, "0 -> s 1") == [("0", "s 1")]
    assert named(network, "0 -> s1") == [("0", "s1")]


def test_cables_between_the_same_two_are_told_apart_by_their_place():
    levels = (
        LevelSpec(name="node", fan_out=2, latency=0.0, bandwidth=8.0),
        LevelSpec(name="leaf", fan_out=2, latency=0.0, bandwidth=9.0, num_cables=3),
    )
    network = build_network(FatTreeSpec(levels=levels, trunk="ecmp"))
    all_three = np.flatnonzero(select_links(network, "node 1 -> leaf 0"))
    assert len(all_three) == 3
    for place, link in enumerate(all_three):
        found = select_links(network, f"node 1 -> leaf 0 #{place}")
        assert np.flatnonzero(found).tolist() == [link]
    assert select_links(network, "node * <-> leaf 0 #2").sum() == 4
    with pytest.raises(InputError, match="no such link"):
        select_links(network, "node 1 -> leaf 0 #3")


@failures.over(
    ("text", "problem", "hint"),
    [
        ("leaf 0 -> spin 1", "no such vertex", 'did you mean "spine 1"?'),
        ("leaf 0 -> leaf 1", "no such link", ""),
        ("level spines", "no such level", 'did you mean "spine"?'),
        ("leaf 0", "does not name links", ""),
        ("", "does not name links", ""),
        ("->", "does not name links", ""),
        ("leaf 7 <-> spine *", "no such vertex", 'did you mean "leaf 2"?'),
    ],
)
def test_what_names_nothing_is_refused(text, problem, hint):
    with pytest.raises(InputError, match=problem) as caught:
        select_links(NETWORK, text)
    assert caught.value.hint == hint


def test_switches_are_named_alone_or_by_a_star():
    spines = select_switches(NETWORK, "spine *")
    assert [NETWORK.vertex_names[v] for v in spines] == [
        f"spine {i}" for i in range(12)
    ]
    for text in ("device 0", "*", "spin 1"):
        with pytest.raises(InputError):
            select_switches(NETWORK, text)


def test_a_name_may_end_like_a_cable():
    network = custom_network(
        'devices = 1\n[[links]]\nsource = 0\ntarget = "s #1"\n'
        'bandwidth = "1 B/s"\nlatency = "1 s"\n'
    )
    assert named(network, "0 -> s #1") == [("0", "s #1")]
    assert named(network, "0 -> s #1 #0") == [("0", "s #1")]


def test_a_level_without_links_is_refused():
    with pytest.raises(InputError, match="no links on this level"):
        select_links(custom_network("devices = 1"), "level alone")


@given(
    name=st.text(alphabet="ab ", max_size=8),
    wanted=st.text(alphabet="ab *", max_size=8).filter(lambda text: "*" in text),
)
@settings(max_examples=150)
def test_stars_mean_what_they_mean_to_a_shell(name, wanted):
    assert bool(_match_names([name], wanted)) == fnmatchcase(name, wanted)


@pytest.mark.timeout(20)
def test_very_many_stars_take_no_time():
    names = ["a" * 5000] * 20
    assert _match_names(names, "*" * 200 + "a*" * 2000 + "a") == list(range(20))
    assert _match_names(names, "*a" * 2000 + "b") == []
    with pytest.raises(InputError, match="no such vertex"):
        select_links(NETWORK, "*" * 60 + ".. <-> *")
