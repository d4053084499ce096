"""Families are opened when they are due, and floors say when that is."""

import random
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from estimators.layers.shares import chain_parameters
from estimators.training import Sizes, expert_data_size
from planner.search.replayed import candidates as module
from planner.search.replayed.families import ConfigurationQueue
from tests import failures
from tests.planner.search.replayed.worlds import random_world

BOUNDS = st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0, np.inf]), min_size=1, max_size=5)


@given(st.lists(st.tuples(BOUNDS, st.integers(0, 2)), max_size=6))
def test_configurations_come_as_if_all_had_been_bounded_before(families):
    every = [np.array(bounds) for bounds, _ in families]
    floors = np.array([min(bounds) - less for bounds, less in families])
    starts = np.cumsum([0, *map(len, every)])
    opened = []

    def first_bounds(number):
        opened.append(number)
        return every[number]

    queue = ConfigurationQueue(floors, starts, first_bounds)
    values = np.concatenate([np.zeros(0), *every])
    order = np.argsort(values, kind="stable")
    for index in order[np.isfinite(values[order])].tolist():
        assert queue.bound == values[index]
        assert queue.number == index
        assert all(floors[number] <= values[index] for number in opened)
        queue.drop()
    assert queue.bound == np.inf
    assert sorted(opened) == list(range(len(every)))


def test_no_configuration_is_faster_than_the_floor_of_its_family():
    near = Counter()
    with failures.collected() as case:
        for seed in range(60):
            candidates = random_world(seed).candidates()
            for number, floor in enumerate(candidates.floors.tolist()):
                least = float(candidates.first_bounds(number).min())
                near[floor > 0.5 * least] += np.isfinite(least)
                with case((seed, candidates.families[number].degrees)):
                    assert floor <= least
    assert near[True] > near[False] > 0


@failures.over("seed", range(20))
def test_parameters_and_groups_of_families_are_those_of_tables(seed):
    candidates = random_world(seed).candidates()
    workload = candidates.workload
    for family in candidates.families:
        degrees, table = family.degrees, workload.table(family.degrees)
        every, experts = chain_parameters(workload.graph, degrees)
        np.testing.assert_allclose(every, table.parameters.sum(), rtol=1e-12)
        np.testing.assert_allclose(experts, table.expert_parameters.sum(), rtol=1e-12)
        pairs = zip(family.dp.tolist(), family.pp.tolist(), strict=True)
        assert family.expert_data_sizes.tolist() == [
            expert_data_size(Sizes(*degrees[:3], dp, pp), degrees.grouping)
            for dp, pp in pairs
        ]


@failures.over("seed", range(0, 60, 4))
def test_bounds_do_not_depend_on_what_was_bounded_before(seed, monkeypatch):
    world = random_world(seed)
    every = range(len(world.candidates()))
    drawn = random.Random(seed).sample(every, min(len(every), 30))
    found = []
    for kept, order in ((512, drawn), (1, drawn[::-1])):
        monkeypatch.setattr(module, "MOST_UNPLACED", kept)
        candidates = world.candidates()
        bounds = {
            number: candidates.relaxed_bound(candidates[number], np.inf)
            for number in order
        }
        found.append(bounds | {"work": candidates.work.spent})
    alone = {}
    for number in drawn[:5]:
        candidates = world.candidates()
        alone[number] = candidates.relaxed_bound(candidates[number], np.inf)
    assert found[0] == found[1]
    assert alone.items() <= found[0].items()
