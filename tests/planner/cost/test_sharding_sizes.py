"""Which sizes of sharding groups are priced: those of blocks, and those asked for."""

import numpy as np

from planner.cost.groups import StageGroups
from planner.cost.rates import AlgorithmChoice, PricedGrid
from topologies import FatTreeSpec, LevelSpec, build_network

NODES_OF_FOUR = build_network(
    FatTreeSpec(
        levels=tuple(
            LevelSpec(name=name, fan_out=size, bandwidth=1.0, latency=0.0)
            for name, size in (("node", 4), ("fabric", 12))
        )
    )
)
AUTO = AlgorithmChoice("auto", 1.0)


def sizes(asked, *, aligned):
    groups = StageGroups(np.arange(48).reshape(1, 48, 1, 1, 1))
    grid = PricedGrid(NODES_OF_FOUR, groups, asked, aligned=aligned)
    return [option.group_size for option in grid.rates(AUTO, AUTO).shardings]


def test_a_plan_may_have_any_divisor_and_a_search_those_that_fit_blocks():
    asked = (2, 3, 4, 5, 6, 8, 12, 16, 24, 48)
    # The whole group, those of nodes, and divisors of the 48 ranks.
    assert sizes((), aligned=False) == [48, 4]
    assert sizes(asked, aligned=False) == [48, 4, 2, 3, 6, 8, 12, 16, 24]
    # In a node, or of whole nodes.
    assert sizes(asked, aligned=True) == [48, 4, 2, 8, 12, 16, 24]
