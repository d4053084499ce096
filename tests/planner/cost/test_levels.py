"""Prices of plans on other bandwidths of one level, against networks built so."""

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.levels import (
    FACTORS,
    LevelPrices,
    estimated_terms,
    level_weights,
    linked_levels,
    with_level_bandwidth,
)
from planner.cost.pricing import price_plan
from tests import failures
from tests.planner.cost.test_pricing import TREE, plan, workload
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec

PLANS = {
    "tensor collectives inside of nodes": (2, plan([[[0, 1]]], (), m=4)),
    "gradients inside of nodes and between": (
        1,
        plan([[[0], [1], [4], [5]]], (), m=2),
    ),
    "stages in two nodes": (1, plan([[[0], [1]], [[4], [5]]], (2,), m=3)),
    "ZeRO beside passes": (1, plan([[[0], [4]]], (), m=2, zero=3)),
}


def built(node, leaf):
    """Return `TREE`, built with levels that are so many times as fast."""
    levels = (
        LevelSpec(name="node", fan_out=4, bandwidth=8.0 * node, latency=0.5),
        LevelSpec(name="leaf", fan_out=2, bandwidth=2.0 * leaf, latency=1.0),
    )
    return build_network(FatTreeSpec(levels=levels))


def priced(name, factors=(1.0, 1.0)):
    tp, of_plan = PLANS[name]
    return price_plan(built(*factors), workload(tp), of_plan)


def by_level(name):
    tp, of_plan = PLANS[name]
    levels = linked_levels(TREE)
    assert levels == (0, 1)
    return LevelPrices(TREE, workload(tp), levels)(of_plan)


def estimate(name, factors):
    row = by_level(name)
    terms = np.array([[*row.priced.terms.values()]])
    return estimated_terms(terms, row.changes[None], factors)[0]


def test_links_of_one_level_are_scaled_and_no_others():
    for level in (0, 1):
        links = with_level_bandwidth(TREE, level, 0.5).links
        expected = TREE.links.bandwidth * np.where(TREE.links.level == level, 0.5, 1)
        np.testing.assert_array_equal(links.bandwidth, expected)


@failures.over("name", PLANS)
def test_a_price_as_built_is_the_planned_one(name):
    row = by_level(name)
    assert row.priced.iteration_time == priced(name).iteration_time
    assert row.priced.terms == priced(name).terms
    assert np.array_equal(estimate(name, (1, 1)), [*priced(name).terms.values()])


@failures.over("name", PLANS)
def test_estimates_at_bandwidths_that_are_priced_are_prices(name):
    for level in (0, 1):
        for factor in FACTORS:
            factors = [1.0, 1.0]
            factors[level] = factor
            terms = priced(name, factors).terms
            found = estimate(name, factors)
            np.testing.assert_allclose(found, [*terms.values()], rtol=1e-12, atol=1e-9)


@failures.over("name", PLANS)
def test_estimates_follow_the_inverse_bandwidth(name):
    """Where one level alone sets the pace, which is so of these plans."""
    for factors in ((0.3, 1), (1, 0.3), (1, 0.8), (1, 1.6), (1.7, 1)):
        expected = priced(name, factors).iteration_time
        assert estimate(name, factors).sum() == pytest.approx(expected, rel=0.02)


def test_levels_that_nothing_crosses_change_nothing():
    changes = by_level("tensor collectives inside of nodes").changes
    assert changes[0].any()
    assert not changes[1].any()


def test_what_changes_count_for():
    np.testing.assert_allclose(
        level_weights((0.125, 0.25, 1 / 3, 0.5, 0.8, 1.0, 2.0, 4.0)),
        [
            *([3, -2, 0], [1, 0, 0], [0.5, 0.5, 0], [0, 1, 0], [0, 0.25, 0]),
            *([0, 0, 0], [0, 0, 1], [0, 0, 1.5]),
        ],
    )


def test_plans_keep_their_algorithms():
    _, of_plan = PLANS["gradients inside of nodes and between"]
    names = {
        name: LevelPrices(TREE, workload(), (0, 1))(
            replace(of_plan, gradient_algorithm=name)
        ).priced.iteration_time
        for name in ("ring", "hierarchical")
    }
    assert names["ring"] != names["hierarchical"]
