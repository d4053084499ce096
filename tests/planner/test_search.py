"""The planner against brute force over its documented space."""

from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimators.parallelism import ParallelismConfig
from planner.placements import placements
from planner.plan import Plan, Stage
from planner.pricing import _stage_cost, price_plan, rates_of
from planner.search import search
from planner.search_spec import SearchSpec
from planner.space import inner_configurations
from planner.stage_tables import choices_of
from tests.planner.strategies import accelerator, networks, workloads
from topologies.network import Network

relaxed = settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def specs():
    return st.builds(
        SearchSpec,
        micro_batch_sizes=st.just((1, 2)),
        tensor_model_parallel_sizes=st.just((1, 2)),
        recompute=st.sampled_from([("none",), ("none", "full"), ("full",)]),
        zero_stages=st.sampled_from([(0,), (0, 1), (0, 3), (1, 2), (2,)]),
        keep_best=st.integers(1, 3),
    )


def skeleton(configuration, placement, num_microbatches):
    """Return a plan whose stages are still to be filled in."""
    tp, b, pp, dp = configuration
    return Plan(
        parallel=ParallelismConfig(
            tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp,
            data_parallel_size=dp,
            sequence_parallel=tp > 1,
        ),
        micro_batch_size=b,
        num_microbatches=num_microbatches,
        schedule="1f1b",
        placement=placement.name,
        gradient_algorithm="auto",
        tensor_algorithm="auto",
        stages=tuple(
            Stage(
                layers=(0, 0),
                devices=tuple(tuple(row) for row in devices.tolist()),
                recompute="none",
                zero_stage=0,
            )
            for devices in placement.devices
        ),
    )


def stage_options(network, workload, plan, spec):
    """Price every interval and choice of every stage; None where it does not fit."""
    table = workload.table(_degrees(plan))
    rates = rates_of(network, workload, plan)
    choices = choices_of(
        spec.recompute, spec.zero_stages, plan.parallel.data_parallel_size
    )
    last = len(plan.stages) - 1
    options = {}
    for index in range(len(plan.stages)):
        for i, j in combinations(range(table.num_layers + 1), 2):
            for choice in choices:
                stage = replace(
                    plan.stages[index],
                    layers=(i, j - 1),
                    recompute=choice.recompute,
                    zero_stage=choice.zero_stage,
                )
                stages = (*plan.stages[:index], stage, *plan.stages[index + 1 :])
                if index < last and j == table.num_layers:
                    continue
                cost = _stage_cost(
                    workload, table, rates, replace(plan, stages=stages), index
                )
                if cost.peak_memory > workload.accelerator.memory_bytes:
                    continue
                load = cost.forward_time + cost.backward_time + cost.transfer_time
                if index:
                    latency, inverse = rates.boundary[index - 1]
                    load += latency + table.boundary_bytes[i] * inverse
                options.setdefault((index, i, j), []).append((load, cost.tail_time))
    return options


def _degrees(plan):
    from planner.pricing import plan_degrees

    return plan_degrees(plan)


def best_by_enumeration(network, workload, spec):
    """Return the best time of every configuration of the space."""
    num_layers = len(workload.graph.names)
    inner, _ = inner_configurations(
        workload.graph.spec,
        spec,
        num_devices=network.num_devices,
        num_layers=num_layers,
        global_batch_size=workload.training.global_batch_size,
    )
    best = {}
    for item in inner:
        for pp, dp in item.sizes:
            configuration = (item.degrees.tp, item.degrees.micro_batch_size, pp, dp)
            m = workload.num_microbatches(configuration[1], dp)
            for placement in placements(
                tp=configuration[0],
                dp=dp,
                pp=pp,
                num_devices=network.num_devices,
                block_sizes=network.block_sizes,
            ):
                plan = skeleton(configuration, placement, m)
                options = stage_options(network, workload, plan, spec)
                for cuts in combinations(range(1, num_layers), pp - 1):
                    spans = enumerate(pairwise((0, *cuts, num_layers)))
                    lists = [options.get((s, *span), []) for s, span in spans]
                    for picked in product(*lists):
                        loads, tails = zip(*picked, strict=True)
                        value = sum(loads) + (m - 1) * max(loads) + max(tails)
                        best[configuration] = min(
                            best.get(configuration, np.inf), value
                        )
    return best


@given(networks(max_devices=6), workloads(), specs())
@relaxed
def test_k_best_equal_those_of_exhaustive_search(network, workload, spec):
    expected = sorted(best_by_enumeration(network, workload, spec).values())
    result = search(network, workload, spec)
    found = [priced.iteration_time for priced in result.plans]
    assert found == pytest.approx(expected[: spec.keep_best], rel=1e-9)
    if found:
        assert result.lower_bound == pytest.approx(found[0], rel=1e-9)
        assert not result.shortfall
    else:
        assert result.lower_bound == np.inf
        assert "out of memory" in result.shortfall or "memory" in result.shortfall


@given(networks(), workloads(memory=1e6), st.integers(1, 4))
@relaxed
def test_fewer_plans_kept_are_the_first_of_more(network, workload, keep):
    spec = SearchSpec(
        micro_batch_sizes=(1, 2), tensor_model_parallel_sizes=(1, 2), keep_best=keep + 2
    )
    many = search(network, workload, spec)
    few = search(network, workload, replace(spec, keep_best=keep))
    assert [p.iteration_time for p in few.plans] == [
        p.iteration_time for p in many.plans[:keep]
    ]


def scaled(network: Network, factor: float) -> Network:
    """Return the same network with every link faster by a factor."""
    links = replace(network.links, bandwidth=network.links.bandwidth * factor)
    return replace(network, links=links)


@given(networks(), workloads(), st.sampled_from([2.0, 4.0]))
@relaxed
def test_more_bandwidth_is_never_worse(network, workload, factor):
    spec = SearchSpec(micro_batch_sizes=(1, 2), tensor_model_parallel_sizes=(1, 2))
    slow = search(network, workload, spec)
    fast = search(scaled(network, factor), workload, spec)
    assert fast.lower_bound <= slow.lower_bound * (1 + 1e-9)


@given(networks(), workloads(memory=150.0))
@relaxed
def test_more_memory_is_never_worse(network, workload):
    spec = SearchSpec(micro_batch_sizes=(1, 2), tensor_model_parallel_sizes=(1, 2))
    tight = search(network, workload, spec)
    larger = type(workload)(
        graph=workload.graph,
        training=workload.training,
        accelerator=accelerator(300.0),
    )
    larger._tables.update(workload._tables)
    roomy = search(network, larger, spec)
    assert roomy.lower_bound <= tight.lower_bound * (1 + 1e-9)


@given(networks(), workloads())
@relaxed
def test_more_choices_are_never_worse(network, workload):
    few = SearchSpec(
        micro_batch_sizes=(1,),
        tensor_model_parallel_sizes=(1,),
        recompute=("none",),
        zero_stages=(0, 1),
    )
    many = SearchSpec(micro_batch_sizes=(1, 2), tensor_model_parallel_sizes=(1, 2))
    narrow = search(network, workload, few)
    wide = search(network, workload, many)
    assert wide.lower_bound <= narrow.lower_bound * (1 + 1e-9)


@given(networks(), workloads(memory=1e6))
@relaxed
def test_a_plan_priced_again_from_its_json_costs_the_same(network, workload):
    spec = SearchSpec(micro_batch_sizes=(1, 2), tensor_model_parallel_sizes=(1, 2))
    for priced in search(network, workload, spec).plans:
        again = price_plan(network, workload, Plan.from_json(priced.plan.to_json()))
        assert again.iteration_time == priced.iteration_time
        assert sum(again.terms.values()) == pytest.approx(again.iteration_time)


@given(networks(), workloads())
@relaxed
def test_a_search_out_of_time_still_bounds_the_optimum(network, workload):
    spec = SearchSpec(micro_batch_sizes=(1, 2), tensor_model_parallel_sizes=(1, 2))
    optimum = search(network, workload, spec).lower_bound
    stopped = search(network, workload, replace(spec, time_limit=0.0))
    assert stopped.lower_bound <= optimum * (1 + 1e-9)


def test_two_searches_agree_to_the_byte():
    network, workload = _example()
    results = [search(network, workload, SearchSpec()) for _ in range(2)]
    plans = [[p.plan.to_json() for p in result.plans] for result in results]
    assert plans[0] == plans[1]
    assert results[0].statistics == results[1].statistics


def _example():
    from estimators.tracing import trace_model
    from estimators.training import TrainingSpec
    from planner.workload import Workload
    from tests.planner.strategies import tiny_spec
    from topologies.accelerators import load_accelerator
    from topologies.builders import build_network
    from topologies.specs import FatTreeSpec, LevelSpec

    network = build_network(
        FatTreeSpec(
            levels=(
                LevelSpec(name="node", fan_out=4, bandwidth=3e11, latency=1e-6),
                LevelSpec(name="leaf", fan_out=2, bandwidth=2.5e10, latency=1e-6),
            )
        )
    )
    workload = Workload(
        graph=trace_model(tiny_spec(4)),
        training=TrainingSpec(global_batch_size=16),
        accelerator=load_accelerator("a100-80gb"),
    )
    return network, workload
