"""The planner against brute force over its documented space."""

from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimators.parallelism import ParallelismConfig
from planner.placements import Extents, placements
from planner.plan import Plan, Stage
from planner.pricing import plan_degrees, price_plan, rates_of
from planner.search import search
from planner.search_spec import SearchSpec
from planner.space import inner_configurations
from planner.stage_cost import stage_cost
from tests.planner.strategies import accelerator, networks, workloads
from topologies.network import Network

relaxed = settings(
    deadline=None,
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


def specs(*, wide):
    sizes = (1, 2) if wide else (1,)
    return st.builds(
        SearchSpec,
        micro_batch_sizes=st.just((1, 2)),
        tensor_model_parallel_sizes=st.just((1, 2)),
        context_parallel_sizes=st.just(sizes),
        expert_model_parallel_sizes=st.just(sizes),
        virtual_pipeline_model_parallel_sizes=st.sampled_from([(1,), (1, 2), (2,)]),
        # Enumeration tries every choice of every stage: few where sizes are many.
        recompute=st.sampled_from(
            [("none",), ("selective",)]
            if wide
            else [("none",), ("none", "full"), ("selective", "stage"), ("stage",)]
        ),
        zero_stages=st.sampled_from(
            [(0,), (1,), (3,)] if wide else [(0,), (0, 1), (0, 3), (1, 2), (2,)]
        ),
        keep_best=st.integers(1, 3),
    )


def skeleton(configuration, placement, num_microbatches):
    """Return a plan whose stages are still to be filled in."""
    tp, cp, ep, b, v, pp, dp = configuration
    return Plan(
        parallel=ParallelismConfig(
            tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp,
            data_parallel_size=dp,
            context_parallel_size=cp,
            expert_model_parallel_size=ep,
            sequence_parallel=tp > 1,
        ),
        virtual_pipeline_model_parallel_size=v,
        micro_batch_size=b,
        num_microbatches=num_microbatches,
        schedule="1f1b" if v == 1 else "interleaved-1f1b",
        placement=placement.name,
        gradient_algorithm="auto",
        tensor_algorithm="auto",
        stages=tuple(
            Stage(
                chunks=((0, 0),) * v,
                devices=tuple(tuple(row) for row in devices.tolist()),
                recompute="none",
                zero_stage=0,
                sharding_group_size=1,
            )
            for devices in placement.devices
        ),
    )


def chunked_cuts(num_layers, pp, v):
    """Yield the chunks of every stage for every split of the space.

    Chains have one layer before the blocks and one after. With virtual stages every
    round has the same cuts, and every stage a block.
    """
    if v == 1:
        for cuts in combinations(range(1, num_layers), pp - 1):
            spans = pairwise((0, *cuts, num_layers))
            yield [((i, j - 1),) for i, j in spans]
        return
    length = (num_layers - 2) // v
    for cuts in combinations(range(1, length), pp - 1):
        rounds = list(pairwise((0, *cuts, length)))
        chunks = [
            [(1 + turn * length + i, turn * length + j) for turn in range(v)]
            for i, j in rounds
        ]
        chunks[0][0] = (0, chunks[0][0][1])
        chunks[-1][-1] = (chunks[-1][-1][0], num_layers - 1)
        yield [tuple(stage) for stage in chunks]


def stage_choices(workload, rates, plan, spec):
    """Yield every choice of recompute, ZeRO and sharding group."""
    sizes = plan.parallel.sizes()
    zeros = sorted(spec.zero_stages)
    zeros = zeros[:1] if sizes.dp * sizes.cp == 1 else zeros
    modes = spec.recompute
    if plan.virtual_pipeline_model_parallel_size > 1:
        modes = [mode for mode in modes if mode != "stage"]
    for recompute, zero in product(modes, zeros):
        groups = [option.group_size for option in rates.shardings] if zero else [1]
        for group in groups:
            yield recompute, zero, group


def best_split(network, workload, plan, spec):
    """Return the best time of all splits and choices of one placement."""
    table = workload.table(plan_degrees(plan))
    rates = rates_of(network, workload, plan)
    m, v = plan.num_microbatches, plan.virtual_pipeline_model_parallel_size
    boundary = float(table.boundary_bytes[1:-1].max(initial=0.0))
    transfers = transfers_by_hand(rates, boundary, v)
    options = {}

    def options_of(index, chunks):
        if (index, chunks) not in options:
            found = []
            for recompute, zero, group in stage_choices(workload, rates, plan, spec):
                stage = replace(
                    plan.stages[index],
                    chunks=chunks,
                    recompute=recompute,
                    zero_stage=zero,
                    sharding_group_size=group,
                )
                stages = (*plan.stages[:index], stage, *plan.stages[index + 1 :])
                cost = stage_cost(
                    workload, table, rates, replace(plan, stages=stages), index
                )
                if cost.peak_memory <= workload.accelerator.memory_bytes:
                    work = cost.forward_time + cost.backward_time
                    found.append((work, cost.tail_time))
            options[index, chunks] = found
        return options[index, chunks]

    best = np.inf
    for chunks in chunked_cuts(table.num_layers, len(plan.stages), v):
        lists = [options_of(s, stage) for s, stage in enumerate(chunks)]
        for picked in product(*lists):
            works, tails = (np.array(values) for values in zip(*picked, strict=True))
            loads = works + transfers
            times = loads.sum(axis=1) / v + (m - 1 / v) * loads.max(axis=1)
            best = min(best, times.max() + tails.max())
    return best


def transfers_by_hand(rates, boundary, v):
    """Half of each round trip to the stage at either side, replica by replica."""
    num_stages, num_replicas, _ = rates.activation.shape
    transfers = np.zeros((num_replicas, num_stages))
    for r in range(num_replicas):
        for s in range(num_stages):
            following = (s + 1) % num_stages
            crossings = v if s < num_stages - 1 else v - 1
            one = sum(
                0.5 * (direction[s, r, 0] + direction[s, r, 1] * boundary)
                for direction in (rates.activation, rates.gradient)
            )
            transfers[r, s] += crossings * one * (num_stages > 1)
            transfers[r, following] += crossings * one * (num_stages > 1)
    return transfers


def best_by_enumeration(network, workload, spec):
    """Return the best time of every configuration of the space."""
    inner, _ = inner_configurations(
        workload.graph.spec,
        spec,
        num_devices=network.num_devices,
        chain=workload.chain,
        global_batch_size=workload.training.global_batch_size,
    )
    best = {}
    for item in inner:
        for place in range(len(item.pp)):
            configuration = item.configuration(place)
            tp, cp, ep, b, _, pp, dp = configuration
            m = workload.num_microbatches(b, dp)
            for placement in placements(
                Extents(tp, cp, ep, dp // ep, pp),
                network.num_devices,
                network.block_sizes,
            ):
                plan = skeleton(configuration, placement, m)
                value = best_split(network, workload, plan, spec)
                best[configuration] = min(best.get(configuration, np.inf), value)
    return best


def check_against_enumeration(network, workload, spec):
    every = best_by_enumeration(network, workload, spec).values()
    expected = sorted(value for value in every if np.isfinite(value))
    result = search(network, workload, spec)
    found = [priced.iteration_time for priced in result.plans]
    assert found == pytest.approx(expected[: spec.keep_best], rel=1e-9)
    if found:
        assert result.lower_bound == pytest.approx(found[0], rel=1e-9)
        assert not result.shortfall
    else:
        assert result.lower_bound == np.inf
        assert result.shortfall


@given(networks(max_devices=6), workloads(max_blocks=3), specs(wide=False))
@relaxed
def test_k_best_equal_those_of_exhaustive_search(network, workload, spec):
    check_against_enumeration(network, workload, spec)


@given(networks(max_devices=8), workloads(wide=True, max_blocks=2), specs(wide=True))
@relaxed
def test_context_and_expert_parallelism_equal_exhaustive_search(
    network, workload, spec
):
    check_against_enumeration(network, workload, spec)


@given(networks(), workloads(memory=1e6), st.integers(1, 4))
@relaxed
def test_fewer_plans_kept_are_the_first_of_more(network, workload, keep):
    spec = replace(SMALL, keep_best=keep + 2)
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
def test_a_search_out_of_time_still_bounds_the_optimum(network, workload):
    optimum = search(network, workload, SMALL).lower_bound
    stopped = search(network, workload, replace(SMALL, time_limit=0.0))
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


@pytest.mark.slow
@given(networks(max_devices=12), workloads(max_blocks=4), specs(wide=False))
@settings(relaxed, max_examples=300)
@pytest.mark.timeout(3600)
def test_larger_instances_equal_exhaustive_search(network, workload, spec):
    check_against_enumeration(network, workload, spec)


@pytest.mark.slow
@given(networks(max_devices=12), workloads(wide=True), specs(wide=True))
@settings(relaxed, max_examples=300)
@pytest.mark.timeout(3600)
def test_larger_split_by_context_and_experts_equal_exhaustive_search(
    network, workload, spec
):
    check_against_enumeration(network, workload, spec)
