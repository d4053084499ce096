"""Which frameworks can launch hpZ: a second copy of weights inside of nodes."""

from planner.frameworks.framework import FRAMEWORKS
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.search.launchable import broken_rules
from planner.search.launchable_sizes import LaunchFacts
from tests import failures
from tests.planner.examples import eight_devices, tiny_job

NETWORK, JOB = eight_devices(), tiny_job(2.0**40)
FACTS = LaunchFacts.of(JOB, NETWORK)


def broken(rules, **settings):
    spec = PlanSpec(
        **{"micro_batch_size": 1, "zero_stage": 3, "zero_hpz_partition_size": 4}
        | settings
    )
    found = broken_rules(build_plan(NETWORK, JOB, spec), rules, FACTS)
    return {one.rule: one for one in found}


@failures.over("name", FRAMEWORKS)
def test_only_deepspeed_keeps_second_copies(name):
    rules = FRAMEWORKS[name].rules
    found = broken(rules).get("sharding_group")
    if name in {"deepspeed", "ideal"}:
        assert found is None
    else:
        assert found is not None
        assert found.found == "second copies of weights over 4 ranks"
        assert "zero_hpz_partition_size = 1" in found.expected
    assert "sharding_group" not in broken(rules, zero_hpz_partition_size=1)


def test_deepspeed_keeps_them_of_whole_layers_alone():
    """Its groups are of ranks that follow each other in the world."""
    rules, sizes = FRAMEWORKS["deepspeed"].rules, {"tensor_model_parallel_size": 2}
    assert "tensor" in broken(rules, **sizes)["sharding_group"].expected
    assert "groups.py" in broken(rules, **sizes)["sharding_group"].source
    assert "sharding_group" not in broken(FRAMEWORKS["ideal"].rules, **sizes)
