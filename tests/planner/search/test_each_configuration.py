"""Every configuration on its own: its exact optimum, and bounds that no plan beats."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.search.candidates import CandidateSet
from tests.planner.brute_force import BruteForce
from tests.planner.instances import instances, interleaved
from tests.planner.naive_space import Sizes

relaxed = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

SEEDS = st.integers(0, 2**32 - 1)


def check_each(instance, seed, *, most):
    """Hold bounds and optima of some configurations against enumeration."""
    force = BruteForce(*instance)
    candidates = CandidateSet.enumerate(*instance)
    every = [candidates[index] for index in range(len(candidates))]
    assert sorted(Sizes(*one[:7]) for one in every) == force.configurations
    order = np.random.default_rng(seed).permutation(len(every))
    for index in order[:most].tolist():
        best = force.best_of(Sizes(*every[index][:7]), np.inf)
        solution = candidates.solve(every[index], np.inf)
        value = np.inf if solution is None else solution.value
        assert value == pytest.approx(best, rel=1e-9)
        bound = candidates.bound(index)
        assert bound <= best
        bound = candidates.memory_bound(index, np.inf)
        assert bound <= best
        bound = candidates.relaxed_bound(every[index], bound, np.inf)
        assert bound <= best
        if np.isfinite(bound):
            assert candidates.placed_bound(every[index], bound, np.inf) <= best


@given(instances(most_devices=16, blocks=range(1, 6)), SEEDS)
@settings(relaxed, max_examples=60)
def test_each_configuration_has_the_optimum_of_exhaustive_search(instance, seed):
    check_each(instance, seed, most=8)


@given(interleaved(most_devices=12), SEEDS)
@settings(relaxed, max_examples=30)
def test_each_one_with_virtual_stages_has_that_of_exhaustive_search(instance, seed):
    check_each(instance, seed, most=8)
