"""Sizes and groups that a search tries, against their definitions."""

from dataclasses import replace

from planner.frameworks.framework import FRAMEWORKS
from planner.search.space import SearchSpec, divisors, groupings_of
from tests.planner.strategies import tiny_spec


def test_divisors_are_those_that_divide():
    assert divisors(0) == []
    for number in range(1, 50):
        others = range(1, number + 1)
        products = [n for n in others if any(n * other == number for other in others)]
        assert divisors(number) == products


def test_levels_of_context_parallelism_exchange_heads_among_as_many_as_can():
    rules = FRAMEWORKS["ideal"].rules
    spec = SearchSpec(cp_comm_types=("a2a+p2p",))
    for groups in (1, 2, 4, 6, 12):
        model = replace(tiny_spec(1), num_query_groups=groups)
        for tp in (1, 2):
            for cp in (2, 3, 4, 8, 12):
                held = max(groups // tp, 1)
                both = [n for n in range(2, cp) if cp % n == held % n == 0]
                sizes = tp, cp, 1
                groupings = groupings_of(model, spec, rules, sizes, within_data=False)
                levels = [grouping.a2a for grouping in groupings if not grouping.etp]
                # Where all of them can, there are no two levels.
                assert levels == ([max(both)] if both and held % cp else [])
