"""Thousands of random problems: the search, and the placements, against definitions.

The default tests try few of each. Problems have up to 16 devices, 3 levels and 8
layers, with every size, recompute mode, ZeRO stage and sharding group open.
"""

import pytest
from hypothesis import HealthCheck, given, settings

from planner.search.placements import placements
from tests.planner.brute_force import check
from tests.planner.instances import instances, interleaved
from tests.planner.naive_placements import naive_placements
from tests.planner.search.test_each_configuration import SEEDS, check_each
from tests.planner.search.test_placement_space import clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * 3600)]

patient = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@given(instances(most_devices=8, blocks=range(1, 6)))
@settings(patient, max_examples=3000)
def test_small_clusters_get_their_optimum(instance):
    check(*instance)


@given(instances(least_devices=9, most_devices=16, blocks=range(1, 6)))
@settings(patient, max_examples=2000)
def test_larger_clusters_get_their_optimum(instance):
    check(*instance)


@given(interleaved(most_devices=16))
@settings(patient, max_examples=2000)
def test_virtual_stages_get_their_optimum(instance):
    check(*instance)


@given(instances(most_devices=16, blocks=range(1, 6)), SEEDS)
@settings(patient, max_examples=3000)
def test_each_configuration_gets_its_optimum(instance, seed):
    check_each(instance, seed, most=10)


@given(interleaved(most_devices=16), SEEDS)
@settings(patient, max_examples=1000)
def test_each_configuration_with_virtual_stages_gets_its_optimum(instance, seed):
    check_each(instance, seed, most=10)


@given(clusters())
@settings(patient, max_examples=10_000)
def test_placements_are_those_of_the_definition(case):
    found = {tuple(one.grid.ravel().tolist()) for one in placements(*case)}
    assert found == naive_placements(*case)
