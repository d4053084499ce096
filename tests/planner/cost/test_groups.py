"""Groups of ranks beside Megatron's way to count them, one rank at a time."""

from itertools import product

import numpy as np
import pytest

from estimators.grouping import Grouping
from estimators.training import ParallelismConfig
from planner.cost.groups import StageGroups
from tests import failures
from topologies import InputError


def members(groups):
    """Return groups without an order among them or inside."""
    return {tuple(sorted(one)) for one in groups.reshape(-1, groups.shape[-1]).tolist()}


def by_key(num_ranks, key):
    """Sort ranks into groups by what their members have in common."""
    found = {}
    for rank in range(num_ranks):
        found.setdefault(key(rank), []).append(rank)
    return {tuple(one) for one in found.values()}


@failures.over(
    ("tp", "cp", "dp", "ep", "etp"),
    [
        (4, 1, 2, 8, 1),
        (4, 2, 1, 2, 2),
        (2, 2, 3, 4, 1),
        (4, 1, 1, 1, 1),
        (8, 1, 2, 4, 2),
    ],
)
def test_experts_count_the_ranks_of_a_stage_as_megatron_does(tp, cp, dp, ep, etp):
    """Ranks are etp x ep x edp there, the first one innermost."""
    ranks = tp * cp * dp
    grid = np.arange(ranks).reshape(1, dp, 1, cp, tp)
    groups = StageGroups(grid, Grouping(etp=etp), ep)

    def split(rank):
        return rank % etp, rank // etp % ep, rank // (etp * ep)

    assert members(groups.experts()) == by_key(ranks, lambda r: split(r)[::2])
    assert members(groups.expert_tensor()) == by_key(ranks, lambda r: split(r)[1:])
    assert members(groups.expert_data()) == by_key(ranks, lambda r: split(r)[:2])
    config = ParallelismConfig(
        tensor_model_parallel_size=tp,
        context_parallel_size=cp,
        data_parallel_size=dp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
        sequence_parallel=True,
    )
    assert config.expert_data_size == groups.expert_data().shape[2]


def test_levels_divide_the_context_ranks_neighbours_exchange():
    grid = np.arange(2 * 8 * 2).reshape(1, 2, 1, 8, 2)
    groups = StageGroups(grid, Grouping(cp_comm_type="a2a+p2p", a2a=4))
    place = {
        int(grid[0, d, 0, c, t]): (d, c, t)
        for d, c, t in product(range(2), range(8), range(2))
    }

    def inner(rank):
        d, c, t = place[rank]
        return d, c // 4, t

    def outer(rank):
        d, c, t = place[rank]
        return d, c % 4, t

    assert members(groups.exchanges()) == by_key(32, inner)
    assert members(groups.rings()) == by_key(32, outer)
    assert groups.context().shape == (1, 4, 8)


@failures.over(
    ("settings", "where"),
    [
        ({"expert_tensor_parallel_size": 3}, "expert_tensor_parallel_size"),
        (
            {"expert_tensor_parallel_size": 1, "expert_model_parallel_size": 3},
            "expert_model_parallel_size",
        ),
        ({"cp_comm_type": "ring"}, "cp_comm_type"),
        ({"cp_comm_type": "a2a+p2p"}, "hierarchical_context_parallel_sizes"),
        (
            {"hierarchical_context_parallel_sizes": (2, 2)},
            "hierarchical_context_parallel_sizes",
        ),
        (
            {
                "cp_comm_type": "a2a+p2p",
                "hierarchical_context_parallel_sizes": (2, 4),
            },
            "hierarchical_context_parallel_sizes",
        ),
    ],
)
def test_groups_that_do_not_come_out_even_are_refused(settings, where):
    with pytest.raises(InputError) as error:
        ParallelismConfig(
            tensor_model_parallel_size=4, context_parallel_size=4, **settings
        )
    assert error.value.where == where
