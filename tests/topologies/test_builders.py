"""The table of kinds and the records that the builders read."""

import math
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings

from tests import failures
from tests.topologies.strategies import torus_specs, tree_specs
from topologies import (
    BUILDERS,
    CustomSpec,
    FatTreeSpec,
    InputError,
    LevelSpec,
    RailSpec,
    SpineLeafSpec,
    TorusSpec,
    build_network,
)

LEVEL = LevelSpec(name="node", fan_out=2, latency=0.0, bandwidth=1.0)
SPINE_LEAF = SpineLeafSpec(
    devices_per_node=2,
    node_bandwidth=4.0,
    node_latency=0.0,
    nodes_per_leaf=2,
    num_leaves=2,
    nic_bandwidth=1.0,
    nic_latency=0.0,
    spine_latency=0.0,
)
RAIL = RailSpec(
    devices_per_node=2,
    node_bandwidth=4.0,
    node_latency=0.0,
    nodes_per_unit=2,
    num_units=2,
    nic_bandwidth=1.0,
    nic_latency=0.0,
    spine_latency=0.0,
)
TORUS = TorusSpec(dimensions=(2, 3), wrap=(True, False), bandwidth=1.0, latency=0.0)


def test_the_table_has_the_documented_kinds():
    assert set(BUILDERS) == {
        "fat-tree",
        "spine-leaf",
        "rail",
        "torus",
        "mesh",
        "custom",
        "dragonfly",
        "dragonfly+",
        "hyperx",
        "node-torus",
    }


@given(spec=tree_specs | torus_specs())
@settings(max_examples=30)
def test_a_network_has_the_kind_and_the_size_of_its_record(spec):
    network = build_network(spec)
    assert network.kind == spec.kind
    assert network.num_devices == spec.num_devices


@given(spec=tree_specs | torus_specs())
@settings(max_examples=30)
def test_networks_survive_pickling(spec):
    network = build_network(spec)
    copy = pickle.loads(pickle.dumps(network))
    pairs = np.arange(network.num_devices), np.zeros(network.num_devices, dtype=int)
    for mine, theirs in zip(network.routes(*pairs), copy.routes(*pairs), strict=True):
        assert np.array_equal(mine, theirs)


def numeric_fields(spec, words):
    names = [field.name for field in fields(spec)]
    return [name for name in names if any(word in name for word in words)]


@failures.over("spec", [SPINE_LEAF, RAIL, TORUS, LEVEL], ids=repr)
@failures.over("value", [0.0, -1.0, math.nan, math.inf])
def test_bandwidths_and_ratios_are_positive_and_finite(spec, value):
    for name in numeric_fields(spec, ("bandwidth", "oversubscription")):
        with pytest.raises(InputError) as caught:
            replace(spec, **{name: value})
        assert caught.value.where == name


@failures.over("spec", [SPINE_LEAF, RAIL, TORUS, LEVEL], ids=repr)
@failures.over("value", [-1e-9, math.nan, math.inf])
def test_latencies_are_finite_and_not_negative(spec, value):
    names = numeric_fields(spec, ("latency",))
    assert names
    for name in names:
        with pytest.raises(InputError) as caught:
            replace(spec, **{name: value})
        assert caught.value.where == name


@failures.over("spec", [SPINE_LEAF, RAIL, LEVEL], ids=repr)
@failures.over("value", [0, -1, 2.0, True])
def test_counts_are_whole_and_at_least_one(spec, value):
    names = numeric_fields(spec, ("num_", "devices_per", "nodes_per", "fan_out"))
    assert names
    for name in names:
        with pytest.raises(InputError) as caught:
            replace(spec, **{name: value})
        assert caught.value.where == name


@failures.over(
    ("spec", "changes", "where"),
    [
        (TORUS, {"dimensions": ()}, "dimensions"),
        (TORUS, {"dimensions": (2,) * 4, "wrap": (True,) * 4}, "dimensions"),
        (TORUS, {"dimensions": (2, 0)}, "dimensions[1]"),
        (TORUS, {"wrap": (True,)}, "wrap"),
        (TORUS, {"dimensions": (2**11, 2**11)}, "dimensions"),
        (SPINE_LEAF, {"trunk": "lag"}, "trunk"),
        (SPINE_LEAF, {"nic": "switch"}, "nic"),
        (SPINE_LEAF, {"num_leaves": 2**19}, "num_leaves"),
        (SPINE_LEAF, {"num_leaves": 2**15, "num_spines": 2**8}, "num_spines"),
        (RAIL, {"num_units": 2**19}, "num_units"),
        (LEVEL, {"name": " "}, "name"),
        (FatTreeSpec(levels=(LEVEL,)), {"nic": "switch"}, "nic"),
    ],
)
def test_impossible_records_are_refused_by_setting(spec, changes, where):
    with pytest.raises(InputError) as caught:
        replace(spec, **changes)
    assert caught.value.where == where


def test_a_torus_without_wrapping_is_a_mesh():
    assert TORUS.kind == "torus"
    assert replace(TORUS, wrap=(False, False)).kind == "mesh"


TWO_LEVELS = FatTreeSpec(
    levels=(LEVEL, LevelSpec(name="leaf", fan_out=2, latency=0.0, bandwidth=1.0))
)


@failures.over(
    ("spec", "number"),
    [(SPINE_LEAF, 0), (SPINE_LEAF, 1), (RAIL, 0), (RAIL, 1), (TWO_LEVELS, 0)],
)
def test_a_record_changes_one_oversubscription(spec, number):
    built = build_network(spec).tiers()
    tiers = build_network(spec.with_oversubscription(built, number, 8.0)).tiers()
    for place, (before, after) in enumerate(zip(built, tiers, strict=True)):
        expected = 8.0 if place == number else before.oversubscription
        assert after.oversubscription == expected
    assert [tier.num_links for tier in tiers] == [tier.num_links for tier in built]


def test_records_without_switches_refuse_what_switches_have():
    with pytest.raises(InputError, match="no parallel cables"):
        TORUS.with_ecmp_seed(1)
    tiers = build_network(TORUS).tiers()
    with pytest.raises(InputError, match="no links to a level above"):
        TORUS.with_oversubscription(tiers, 0, 2.0)


def test_a_list_of_links_answers_for_its_file(tmp_path):
    here, there = (CustomSpec(path=tmp_path / name) for name in ("a.toml", "b.toml"))
    assert here.files == (tmp_path / "a.toml",)
    assert TORUS.files == ()
    assert here.without_folders() == there.without_folders()
    error = InputError("is missing", where="devices")
    assert here.located(error, "network").where == "network.path: devices"
    assert TORUS.located(error, "network").where == "network.devices"
    here.path.write_text("devices = 1\n", encoding="utf-8")
    assert here.num_devices == 1
    with pytest.raises(InputError, match="no such file"):
        there.num_devices  # noqa: B018 (read for its error)
