"""The planner against brute force over its documented space."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.cost.pricing import price_plan
from planner.search.best_first import search
from planner.search.space import SearchSpec
from planner.step.plan import Plan
from tests.planner.brute_force import check
from tests.planner.instances import instances, interleaved
from tests.planner.strategies import accelerator, networks, workloads
from topologies.network import Network

relaxed = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


SMALL = SearchSpec(
    micro_batch_sizes=(1, 2),
    tensor_model_parallel_sizes=(1, 2),
    context_parallel_sizes=(1,),
    virtual_pipeline_model_parallel_sizes=(1, 2),
)
"""A space small enough for many searches."""

RULED_OUT = (
    "out of memory",
    "pruned by the closed-form bound",
    "pruned by the memory bound",
    "pruned by the relaxed split",
)
"""What becomes of configurations whose placements are not looked at."""


@given(instances(most_devices=8, blocks=range(1, 5)))
@settings(relaxed, max_examples=30)
def test_k_best_equal_those_of_exhaustive_search(instance):
    check(*instance)


@given(instances(least_devices=9, most_devices=16, blocks=range(1, 6)))
@settings(relaxed, max_examples=15)
def test_k_best_of_sixteen_devices_equal_those_of_exhaustive_search(instance):
    check(*instance)


@given(interleaved(most_devices=12))
@settings(relaxed, max_examples=20)
def test_k_best_with_virtual_stages_equal_those_of_exhaustive_search(instance):
    check(*instance)


@given(networks(), workloads(memory=1e6), st.integers(1, 4))
@relaxed
def test_fewer_plans_kept_are_the_first_of_more(network, workload, keep):
    spec = replace(SMALL, keep_best=keep + 2)
    many = search(network, workload, spec)
    few = search(network, workload, replace(spec, keep_best=keep))
    assert [p.closed_form_time for p in few.plans] == [
        p.closed_form_time for p in many.plans[:keep]
    ]


def scaled(network: Network, factor: float) -> Network:
    """Return the same network with every link faster by a factor."""
    links = replace(network.links, bandwidth=network.links.bandwidth * factor)
    return replace(network, links=links)


@given(networks(), workloads(), st.sampled_from([2.0, 4.0]))
@relaxed
def test_more_bandwidth_is_never_worse(network, workload, factor):
    slow = search(network, workload, SMALL)
    fast = search(scaled(network, factor), workload, SMALL)
    assert fast.lower_bound <= slow.lower_bound * (1 + 1e-9)


@given(networks(), workloads(memory=150.0))
@relaxed
def test_more_memory_is_never_worse(network, workload):
    tight = search(network, workload, SMALL)
    larger = type(workload)(
        graph=workload.graph,
        training=workload.training,
        accelerator=accelerator(300.0),
    )
    larger._tables.update(workload._tables)
    roomy = search(network, larger, SMALL)
    assert roomy.lower_bound <= tight.lower_bound * (1 + 1e-9)


@given(networks(), workloads())
@relaxed
def test_more_choices_are_never_worse(network, workload):
    few = replace(
        SMALL,
        micro_batch_sizes=(1,),
        tensor_model_parallel_sizes=(1,),
        virtual_pipeline_model_parallel_sizes=(1,),
        recompute=("none",),
        zero_stages=(0, 1),
    )
    narrow = search(network, workload, few)
    wide = search(network, workload, SMALL)
    assert wide.lower_bound <= narrow.lower_bound * (1 + 1e-9)


@given(networks(), workloads(memory=1e6))
@relaxed
def test_a_plan_priced_again_from_its_json_costs_the_same(network, workload):
    for priced in search(network, workload, SMALL).plans:
        again = price_plan(network, workload, Plan.from_json(priced.plan.to_json()))
        assert again.iteration_time == priced.iteration_time
        assert sum(again.terms.values()) == pytest.approx(again.iteration_time)


@given(networks(), workloads())
@relaxed
def test_a_search_out_of_work_or_time_still_bounds_the_optimum(network, workload):
    whole = search(network, workload, SMALL)
    ends = sum(whole.statistics.get(name, 0) for name in (*RULED_OUT, "placed"))
    assert ends == whole.statistics["configurations"]
    optimum = whole.lower_bound
    for limit in ({"time_limit": 0.0}, {"work_limit": 1}):
        stopped = search(network, workload, replace(SMALL, **limit))
        assert stopped.lower_bound <= optimum * (1 + 1e-9)


def test_two_searches_agree_to_the_byte():
    network, workload = _example()
    results = [search(network, workload, SearchSpec()) for _ in range(2)]
    plans = [[p.plan.to_json() for p in result.plans] for result in results]
    assert plans[0] == plans[1]
    assert results[0].statistics == results[1].statistics


def _example():
    from estimators.tracing.trace import trace_model
    from estimators.training import TrainingSpec
    from planner.step.execution import Workload
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


@given(networks(), workloads())
@relaxed
def test_less_compute_is_never_worse(network, workload):
    slow = search(network, workload, SMALL)
    for degrees, table in list(workload._tables.items()):
        workload._tables[degrees] = replace(
            table,
            forward_time=0.5 * table.forward_time,
            backward_time=0.5 * table.backward_time,
            recompute_time={
                mode: 0.5 * time for mode, time in table.recompute_time.items()
            },
        )
    fast = search(network, workload, SMALL)
    assert fast.lower_bound <= slow.lower_bound * (1 + 1e-9)


@given(networks(), workloads())
@relaxed
def test_renaming_levels_changes_nothing(network, workload):
    levels = tuple(
        replace(level, name=f"tier {number}")
        for number, level in enumerate(reversed(network.levels))
    )[::-1]
    renamed = replace(network, levels=levels)
    plans, again = (search(one, workload, SMALL).plans for one in (network, renamed))
    assert [p.plan.to_json() for p in plans] == [p.plan.to_json() for p in again]
