"""Plans for networks of which parts have been slowed and removed."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.planner.brute_force import check
from tests.planner.instances import Instance, instances
from tests.topologies.strategies import degraded_networks


@st.composite
def degraded_instances(draw, **limits):
    """Return a problem on what is left of its network."""
    instance = draw(instances(**limits))
    _, left = draw(degraded_networks(st.just(instance.network)))
    return Instance(left, instance.workload, instance.spec)


@given(degraded_instances(most_devices=12, blocks=range(1, 5)))
@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_k_best_equal_those_of_exhaustive_search(instance):
    check(*instance)
