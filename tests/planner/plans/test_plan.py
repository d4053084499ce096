"""Plans survive the way through JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.training import ParallelismConfig
from planner.step.plan import NO_OFFLOAD, Offload, Plan, Stage
from tests import failures
from topologies import InputError


@st.composite
def plans(draw):
    pp, dp, tp = (draw(st.integers(1, 3)) for _ in range(3))
    stages = tuple(
        Stage(
            chunks=((2 * s, 2 * s + 1),),
            devices=tuple(
                tuple(100 * s + 10 * d + t for t in range(tp)) for d in range(dp)
            ),
            recompute=draw(st.sampled_from(["none", "full"])),
            zero_stage=draw(st.integers(0, 3)),
            sharding_group_size=draw(st.integers(1, 3)),
            recompute_num_layers=draw(st.sampled_from([None, 0, 1])),
            offload=draw(
                st.one_of(
                    st.just(NO_OFFLOAD), st.builds(Offload, *[st.floats(0, 1)] * 4)
                )
            ),
        )
        for s in range(pp)
    )
    return Plan(
        parallel=ParallelismConfig(
            tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp,
            data_parallel_size=dp,
            sequence_parallel=draw(st.booleans()),
        ),
        virtual_pipeline_model_parallel_size=draw(st.integers(1, 4)),
        micro_batch_size=draw(st.integers(1, 8)),
        num_microbatches=draw(st.integers(1, 64)),
        schedule=draw(st.sampled_from(["1f1b", "combined-1f1b"])),
        placement="tp1",
        gradient_algorithm="ring",
        tensor_algorithm="hierarchical",
        stages=stages,
    )


@given(plans())
def test_a_plan_says_that_it_hides_all_to_alls_only_where_it_does(plan):
    written = plan.to_json().get("overlap_moe_expert_parallel_comm", False)
    assert written == (plan.schedule == "combined-1f1b")


@given(plans())
def test_a_plan_read_back_is_the_same_plan(plan):
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@given(plans())
def test_devices_used_is_the_product_of_the_degrees(plan):
    assert plan.devices_used == plan.parallel.num_devices


@given(plans(), st.data())
def test_a_missing_key_is_named(plan, data):
    written = plan.to_json()
    summaries = {"recompute", "zero_stage", "overlap_moe_expert_parallel_comm"}
    key = data.draw(st.sampled_from(sorted(set(written) - summaries)))
    del written[key]
    with pytest.raises(InputError, match="missing") as caught:
        Plan.from_json(written)
    assert caught.value.where == key


@failures.over("value", [None, "x", [1, 2, 3]])
def test_nonsense_is_refused_as_input(value):
    stage = {"chunks": value, "devices": [[0]], "recompute": "none", "zero_stage": 0}
    written = {
        "parallel": {},
        "virtual_pipeline_model_parallel_size": 1,
        "micro_batch_size": 1,
        "num_microbatches": 1,
        "schedule": "1f1b",
        "placement": "",
        "gradient_algorithm": "ring",
        "tensor_algorithm": "ring",
        "stages": [stage],
    }
    with pytest.raises(InputError):
        Plan.from_json(written)
