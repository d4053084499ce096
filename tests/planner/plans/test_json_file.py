"""Plans that are read of files, with the settings that few plans have."""

import json
from dataclasses import replace

import pytest

from estimators.training import ParallelismConfig
from planner.plans.written import read_plan
from planner.step.plan import Plan
from tests import failures
from tests.planner.plans.test_build import built, sizes
from topologies import InputError


def written(tmp_path, plan: Plan, **parallel):
    """Return a file of the plan, with other values among its parallel sizes."""
    content = plan.to_json()
    content["parallel"].update(parallel)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    return path


@failures.over(
    "groups",
    [
        {"cp_comm_type": "a2a"},
        {
            "cp_comm_type": "a2a+p2p",
            "hierarchical_context_parallel_sizes": (2, 2),
        },
        {"expert_tensor_parallel_size": 1},
    ],
)
def test_groups_of_their_own_are_read_back(tmp_path, groups):
    parallel = ParallelismConfig(
        tensor_model_parallel_size=2, context_parallel_size=4, **groups
    )
    plan = replace(built(**sizes(tp=2, cp=4)), parallel=parallel)
    assert read_plan(written(tmp_path, plan)) == plan


def test_fractions_on_hosts_are_read_back(tmp_path):
    plan = built(zero_stage=1, offload_optimizer=0.5, offload_weights=0.25)
    assert read_plan(written(tmp_path, plan)) == plan


@failures.over(
    ("name", "value"),
    [
        ("cp_comm_type", 4),
        ("hierarchical_context_parallel_sizes", "2"),
        ("hierarchical_context_parallel_sizes", [2, "x"]),
        ("context_parallel_size", "a2a"),
        ("context_parallel_size", 4.0),
    ],
)
def test_values_of_another_type_are_named(tmp_path, name, value):
    path = written(tmp_path, built(**sizes(tp=2, cp=4)), **{name: value})
    with pytest.raises(InputError) as caught:
        read_plan(path)
    assert f"parallel.{name}" in str(caught.value)
