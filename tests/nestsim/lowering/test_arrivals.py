"""A replay waits for all that is sent, and each step of it for what it needs."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.collectives.algorithms import ALGORITHM_NAMES
from nestsim.lowering.lower import lower_plan
from nestsim.simulator.build import build_model
from nestsim.simulator.system import GRANULARITIES, SPAN_KINDS, ReplaySettings
from planner.cost.pricing import price_plan
from tests import failures
from tests.nestsim.lowering.test_lower import priced_plans, real, relaxed
from tests.nestsim.simulator.arrivals import (
    assert_all_arrives,
    assert_nothing_is_left,
    of,
)
from tests.nestsim.simulator.folding_cases import steps
from tests.planner.examples import executed
from tests.planner.instances import ANY, instances

executions = st.builds(
    dict,
    overlap_grad_reduce=st.booleans(),
    overlap_param_gather=st.booleans(),
    overlap_p2p_comm=st.booleans(),
    tp_comm_overlap=st.booleans(),
    communication_slowdown=st.sampled_from([1.0, 1.25]),
)


WIDE = instances(
    least_devices=8,
    most_devices=16,
    blocks=(1, 2, 3),
    knobs=ANY._replace(
        tp=((1,),), cp=((1,),), pp=((1, 2),), zero=((0,), (0,), (1, 2), (3,))
    ),
)
"""Mostly replicas: their groups span the levels of the network."""


@given(
    priced_plans() | priced_plans(WIDE),
    st.sampled_from(GRANULARITIES),
    executions,
    st.sampled_from(("hierarchical", "hierarchical", *ALGORITHM_NAMES)),
    st.floats(1.0, 30.0),
)
@settings(relaxed, max_examples=30)
def test_all_that_a_plan_sends_arrives_before_it_is_needed(
    case, granularity, execution, algorithm, size
):
    network, job, priced = case
    job, chosen = executed(job, **execution), ReplaySettings(granularity=granularity)
    plan = replace(priced.plan, gradient_algorithm=algorithm)
    priced = price_plan(network, job, plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nestsim.lowering.lower.bucket_parameters", lambda _: size)
        work = lower_plan(network, job, priced, chosen)
    assert_nothing_is_left(network, work)
    assert_all_arrives(build_model(network, work))


@given(steps())
@settings(max_examples=25)
def test_all_that_a_step_sends_arrives_before_it_is_needed(case):
    network, work = case
    assert_nothing_is_left(network, work)
    assert_all_arrives(build_model(network, work))


@failures.over("zero", [0, 1])
def test_gradients_reduced_level_by_level_arrive_before_the_optimizer_step(zero):
    """Over two nodes the first and the last phase of a bucket are one flow."""
    whole = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}
    net, job, priced = real("tensor", data_parallel_size=8, zero_stage=zero, **whole)
    plan = replace(priced.plan, gradient_algorithm="hierarchical")
    job = executed(job, overlap_grad_reduce=True, overlap_param_gather=True)
    work = lower_plan(net, job, price_plan(net, job, plan))
    phases = [len(one.phases) for own in work.reduce_buckets for one in own]
    assert max(phases) == 3 - zero
    result = assert_nothing_is_left(net, work)
    late = result.transfers.kind == of("reduce")
    begins = result.spans.kind == SPAN_KINDS.index("optimizer")
    assert result.transfers.end[late].max() <= result.spans.start[begins].max()
