"""Mist as a planner: its inputs, its plans, and what it says where it has none."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from estimators.layers.work import Degrees
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from planner.plans.checks import check_plan
from planner.rivals.mist.cluster import (
    GATHER,
    NVLINK_FACTORS,
    PCIE_FACTORS,
    REDUCE,
    Mesh,
    cluster_mesh,
    device_rates,
    host_transfers,
    link_table,
    model_profile,
)
from planner.rivals.mist.planner import LARGEST_HIDDEN_SIZE, Mist
from planner.rivals.protocol import PlannerSettings, fits
from planner.search.space import SearchSpec
from planner.step.execution import Workload
from planner.step.plan import NO_OFFLOAD, Offload
from tests import failures
from tests.planner.instances import instances
from tests.planner.rivals.examples import small_job, tree
from tests.planner.strategies import tiny_spec
from topologies.accelerators import Host, load_accelerator
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec

TOLD = PlannerSettings()

HOST = Host(to_device=2e10, to_host=3e10, devices_per_link=2, memory=1e12)


def found(spec: SearchSpec, network=None, num_layers: int = 4):
    """Return what Mist finds on the small job, in its or another network."""
    usual, workload = small_job(num_layers)
    network = usual if network is None else network
    return Mist().find(network, workload, spec, TOLD)


def blocks_of(plan, num_layers: int) -> list[int]:
    """Return the blocks of each stage of the small job."""
    _, workload = small_job(num_layers)
    is_block = np.array([n.startswith("block") for n in workload.graph.names])
    return [int(is_block[s.layers[0] : s.layers[1] + 1].sum()) for s in plan.stages]


def test_a_gather_inside_a_node_takes_the_nodes_bandwidth():
    rates = link_table(tree())
    # Ring over 4: three quarters of 1 GB at 300 GB/s, and three steps of 2 us.
    expected = 0.75 * 1e9 / 3e11 + 3 * 2e-6
    assert rates.collective_time(1e9, Mesh(1, 4), GATHER) == pytest.approx(expected)
    assert rates.collective_time(1e9, Mesh(1, 4), REDUCE) == pytest.approx(
        2.1 * expected
    )


def test_devices_of_a_node_send_out_together_up_to_its_link():
    network = build_network(
        FatTreeSpec(
            levels=(
                LevelSpec(name="node", fan_out=4, bandwidth=3e11, latency=1e-6),
                LevelSpec(name="leaf", fan_out=2, bandwidth=2.5e10, latency=1e-6),
            ),
            nic="device",
        )
    )
    table = link_table(network)
    assert table.bandwidths[1].tolist() == [2.5e10, 5e10, 1e11, 1e11]
    # One link for the node: the same however many of its devices take part.
    assert set(link_table(tree()).bandwidths[1]) == {2.5e10}


def test_it_does_not_see_what_lies_above_the_node():
    node = LevelSpec(name="node", fan_out=2, bandwidth=3e11, latency=1e-6)
    leaf = LevelSpec(name="leaf", fan_out=2, bandwidth=5e10, latency=1e-6)
    spine = LevelSpec(name="spine", fan_out=2, bandwidth=5e10, latency=1e-6)
    outcomes = [
        found(SearchSpec(), build_network(FatTreeSpec(levels=(node, leaf, above))))
        for above in (spine, replace(spine, bandwidth=5e9))
    ]
    assert outcomes[0].belief == outcomes[1].belief
    assert outcomes[0].plans[0].plan == outcomes[1].plans[0].plan


def test_interference_is_that_of_the_nodes_links():
    assert device_rates(tree()).interference is NVLINK_FACTORS
    slow = build_network(
        FatTreeSpec(
            levels=(LevelSpec(name="n", fan_out=4, bandwidth=3e10, latency=1e-6),)
        )
    )
    assert device_rates(slow).interference is PCIE_FACTORS
    assert cluster_mesh(slow) == Mesh(1, 4)
    assert cluster_mesh(tree()) == Mesh(2, 4)


def test_devices_that_share_a_host_link_have_their_part_of_it():
    assert host_transfers(tree()) is None
    transfers = host_transfers(tree().with_host(HOST))
    assert transfers.to_device == 1e10
    assert transfers.to_host == 1.5e10


@failures.over("tp", [1, 2])
def test_the_profile_adds_up_to_the_layer_table(tp):
    network, workload = small_job()
    links = link_table(network)
    # Smaller messages take no time by Mist's formula.
    degrees = Degrees(tp=tp, micro_batch_size=16, sequence_parallel=tp > 1)
    profile = model_profile(workload, links, degrees)
    table = workload.table(degrees)
    layers = [profile.embedding, profile.head, *[profile.block] * profile.num_layers]
    sizes = workload.parameter_bytes
    assert sum(one.weights for one in layers) == pytest.approx(
        table.parameters.sum() * sizes.weights
    )
    assert sum(one.forward_time for one in layers) == pytest.approx(
        table.forward_time.sum()
    )
    assert sum(one.saved for one in layers) == pytest.approx(
        table.saved_bytes["none"].sum()
    )
    assert (profile.block.tensor_forward_time > 0.0) == (tp > 1)
    assert profile.block.saved_recomputed < profile.block.saved


def test_a_plan_has_what_the_tuner_chose():
    outcome = found(
        SearchSpec(pipeline_model_parallel_sizes=(2,), micro_batch_sizes=(1,)),
        num_layers=9,
    )
    plan = outcome.plans[0].plan
    assert outcome.belief > 0.0
    blocks = blocks_of(plan, 9)
    assert sum(blocks) == 9
    assert len(blocks) == 2
    assert plan.schedule == "1f1b"
    assert all(stage.offload == NO_OFFLOAD for stage in plan.stages)
    assert {stage.zero_stage for stage in plan.stages} <= {0, 1, 2, 3}
    microbatches = plan.num_microbatches * plan.parallel.data_parallel_size
    assert microbatches == 16


def test_it_keeps_to_the_lists_of_the_space():
    spec = SearchSpec(
        tensor_model_parallel_sizes=(2,),
        data_parallel_sizes=(2,),
        micro_batch_sizes=(2,),
        zero_stages=(2,),
        recompute=("full",),
    )
    plan = found(spec).plans[0].plan
    assert plan.parallel.sizes()[::3] == (2, 2)
    assert plan.micro_batch_size == 2
    assert {stage.zero_stage for stage in plan.stages} == {2}
    assert {stage.recompute for stage in plan.stages} == {"full"}


def tight(share: float) -> SearchSpec:
    """Return a space that leaves a part of the device to plans."""
    _, workload = small_job()
    return SearchSpec(
        memory_reserve=workload.accelerator.memory_bytes * (1 - share),
        offload=(NO_OFFLOAD, Offload(1.0, 1.0, 1.0, 1.0)),
    )


def test_hosts_let_it_train_in_less_memory():
    network, workload = small_job()
    with_host, little = network.with_host(HOST), tight(2e-6)
    assert found(little, network).why_not.startswith("Memory: ")
    plan = found(little, with_host).plans[0].plan
    assert fits(workload, little, plan, HOST)
    assert any(stage.offload != NO_OFFLOAD for stage in plan.stages)


def test_what_the_host_has_no_room_for_does_not_fit():
    network, workload = small_job()
    little = tight(2e-6)
    plan = found(little, network.with_host(HOST)).plans[0].plan
    assert not fits(workload, little, plan, None)
    assert not fits(workload, little, plan, replace(HOST, memory=1.0))
    small = network.with_host(replace(HOST, memory=1.0))
    assert found(little, small).why_not


def test_hosts_keep_no_more_than_the_space_allows():
    network = small_job()[0].with_host(HOST)
    some = replace(tight(3e-6), offload=(NO_OFFLOAD, Offload(optimizer=0.5)))
    none = replace(tight(3e-6), offload=(NO_OFFLOAD,))
    for stage in found(some, network).plans[0].plan.stages:
        assert stage.offload.optimizer <= 0.5
        assert stage.offload._replace(optimizer=0.0) == NO_OFFLOAD
    without = found(none, network).plans[0].plan
    assert {stage.offload for stage in without.stages} == {NO_OFFLOAD}


def test_less_memory_is_never_believed_faster():
    network = small_job()[0].with_host(HOST)
    beliefs = [found(tight(share), network).belief for share in (2e-5, 6e-6, 3e-6)]
    assert beliefs == sorted(beliefs)
    assert beliefs[0] < beliefs[-1]


@failures.over(
    ("model", "says"),
    [
        (tiny_spec(2, family="mixtral"), "mixtures of experts"),
        (replace(tiny_spec(2), hidden_size=2 * LARGEST_HIDDEN_SIZE), "16,384"),
    ],
)
def test_models_that_mist_does_not_have_are_refused_in_a_sentence(model, says):
    workload = Workload(
        graph=trace_model(model),
        training=TrainingSpec(global_batch_size=16),
        accelerator=load_accelerator("a100-80gb"),
    )
    outcome = Mist().find(tree(), workload, SearchSpec(), TOLD)
    assert not outcome.plans
    assert math.isnan(outcome.belief)
    assert outcome.why_not.startswith("Model: ")
    assert says in outcome.why_not


@failures.over(
    ("spec", "says"),
    [
        (SearchSpec(virtual_pipeline_model_parallel_sizes=(2,)), "Schedule: "),
        (SearchSpec(context_parallel_sizes=(2,)), "Schedule: "),
        (SearchSpec(recompute=("selective",)), "Recompute: "),
        (SearchSpec(micro_batch_sizes=(3,)), "Divisibility: "),
        (SearchSpec(data_parallel_sizes=(3,)), "Divisibility: "),
        (tight(1e-6), "Memory: "),
    ],
)
def test_it_says_which_constraint_left_no_plan(spec, says):
    outcome = found(spec)
    assert not outcome.plans
    assert outcome.why_not.startswith(says)
    assert outcome.why_not.endswith(".")


@given(instances(most_devices=16, blocks=range(2, 7)))
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_what_it_proposes_fits_and_holds_every_layer(instance):
    network, workload, spec = instance
    outcome = Mist().find(*instance, TOLD)
    assert bool(outcome.why_not) == (not outcome.plans)
    for priced in outcome.plans:
        check_plan(workload, priced.plan, network.num_devices)
        assert fits(workload, spec, priced.plan, None)
        layers = [stage.layers for stage in priced.plan.stages]
        assert layers[0][0] == 0
        assert layers[-1][1] == workload.chain[0] - 1
        assert all(a[1] + 1 == b[0] for a, b in pairwise(layers))
        assert {stage.zero_stage for stage in priced.plan.stages} <= set(
            spec.zero_stages
        )
        modes = {stage.recompute for stage in priced.plan.stages}
        assert modes <= set(spec.recompute)


def test_a_limit_of_work_does_not_keep_it_from_a_first_plan():
    spec = SearchSpec(work_limit=1)
    outcome = found(spec)
    assert outcome.plans == found(spec).plans
    assert len(outcome.plans) == 1
