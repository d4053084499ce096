"""Passes layer by layer, timelines of unlike directions, and rates chosen by name."""

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.choices import (
    HostCosts,
    MemoryChoice,
    Sharers,
    _ends_behind,
    choice_columns,
    interval_classes,
)
from planner.cost.objective import HOST_TRANSFERS
from planner.cost.passes import PassPrices
from planner.cost.pricing import plan_groups, price_plan, rates_of
from planner.cost.rates import AlgorithmChoice, PricedGrid, group_rates
from planner.cost.stage import stage_price
from planner.cost.timeline import AlikeReplicas, PlanTimeline, last_pass
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.step.instructions import BACKWARD, FORWARD, WEIGHT
from planner.step.memory import expert_group_size
from planner.step.plan import Offload
from tests.planner.cost.test_pricing import TREE, plan, table, workload
from tests.planner.cost.test_timeline import reference
from tests.planner.examples import eight_devices, tiny_job
from topologies.accelerators import Host

CUTS = ((), (1,), (2,), (1, 2))
"""First layers of the stages after the first, of a chain of three layers."""


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_passes_go_through_the_layers_of_their_stage_and_no_others(cuts, schedule):
    job, chain = workload(), table()
    made = replace(plan([[[d]] for d in range(len(cuts) + 1)], cuts, m=4))
    made = replace(made, schedule=schedule)
    rates = rates_of(TREE, job, made)
    for index, stage in enumerate(made.stages):
        prices = PassPrices(job, rates, made, index)
        ((first, last),) = stage.chunks
        passes, layers = prices.passes(), range(first, last + 1)
        later = chain.weight_gradient_time * (schedule == "zb-h1")
        works = {FORWARD: chain.forward_time, BACKWARD: chain.backward_time - later}
        if schedule == "zb-h1":
            works[WEIGHT] = later
        assert set(passes[0]) == set(works)
        for kind, work in works.items():
            order = list(layers if kind == FORWARD else reversed(layers))
            assert passes[0][kind].whole == work[order].sum()
            (done,) = prices.progress(passes, kind)
            assert done.chunk == 0
            assert done.dense == chain.parameters[order].tolist()
            assert done.expert == [0.0] * len(order)
            ends = np.cumsum(work[order])
            share = ends[-1] or 1.0
            assert done.end == pytest.approx((ends / share).tolist(), rel=1e-15)
            begins = ends - work[order]
            assert done.begin == pytest.approx((begins / share).tolist(), rel=1e-15)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("cuts", CUTS)
def test_a_timeline_tells_directions_and_boundaries_apart(cuts, schedule):
    rng, p, m = np.random.default_rng(len(cuts)), len(cuts) + 1, 5
    job, made = workload(), plan([[[d]] for d in range(p)], cuts, m=m)
    made = replace(made, schedule=schedule)
    rates = rates_of(TREE, job, made)
    prices = [stage_price(job, rates, made, index) for index in range(p)]
    timeline = PlanTimeline(made, prices, 1.0)
    durations = np.array([price.cost.chunk_times[0][:3] for price in prices]).T
    pipelines, expected = [], []
    for _ in range(4):
        boundaries = rng.integers(0, 8, (p, 2, 2)).astype(float)
        wires = boundaries[:-1, 1] * prices[0].cost.boundary_bytes
        latencies = boundaries[:-1, 0]
        times = (*wires.T, *latencies.T)
        _, _, ends = reference(schedule, p, m, durations, *times)
        pipelines.append(AlikeReplicas(timeline, boundaries))
        expected.append(max(ends))
        assert timeline.last_pass(boundaries) == max(ends)
    assert last_pass(pipelines) == max(expected)
    for index in range(p):
        assert timeline.busy(index) == m * durations[:, index].sum()


@pytest.mark.parametrize("name", ["ring", "tree", "hierarchical", "auto"])
def test_an_algorithm_that_is_named_sets_the_rates(name, monkeypatch):
    searched = ("ring",)
    monkeypatch.setattr("planner.cost.rates.searched_algorithms", lambda _: searched)
    made = plan([[[0, 1, 4, 5], [2, 3, 6, 7]]], (), m=2)
    groups = plan_groups(made)
    rates = PricedGrid(TREE, groups).rates(
        AlgorithmChoice(name, 64.0), AlgorithmChoice(name, 64.0)
    )
    used = "ring" if name == "auto" else name
    for found, members in (
        (rates.tensor, groups.tensor()),
        (rates.data, groups.dense()),
    ):
        expected = group_rates(TREE, members, used)
        for operation in ("all_reduce", "all_gather", "reduce_scatter"):
            assert np.array_equal(found[operation], expected[operation])


@pytest.mark.parametrize("family", ["gpt", "mixtral"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("zero", [0, 3])
def test_the_search_exposes_of_exchanges_with_the_host_what_prices_do(
    family, recompute, zero
):
    host = Host(to_device=2e7, to_host=1e7, latency=1e-6, memory=1e15, adam_rate=1e8)
    network, job = eight_devices().with_host(host), tiny_job(2.0**40, family=family)
    costs, total = HostCosts.of(network, job), 0.0
    for offload in (
        Offload(weights=0.5),
        Offload(activations=0.75),
        Offload(weights=0.25, gradients=1.0, activations=0.5),
    ):
        spec = PlanSpec(
            micro_batch_size=1,
            pipeline_model_parallel_size=2,
            data_parallel_size=2,
            expert_model_parallel_size=2 if family == "mixtral" else 1,
            recompute=recompute,
            zero_stage=zero,
            **{f"offload_{name}": part for name, part in offload._asdict().items()},
        )
        made = build_plan(network, job, spec)
        chain = job.table(made.degrees)
        classes = interval_classes(chain.kinds)
        choices = choice_columns((MemoryChoice(recompute, zero, 0, offload),), costs)
        (exposed,) = costs.exposed_times(
            chain,
            classes,
            choices,
            Sharers(np.array([2.0]), expert_group_size(made)),
            1,
        )
        for priced, stage in zip(
            price_plan(network, job, made).stages, made.stages, strict=True
        ):
            ((first, last),) = stage.chunks
            expected = priced.parts[HOST_TRANSFERS]
            total += expected
            number = classes.class_of[first, last + 1]
            assert exposed[number] == pytest.approx(expected, rel=1e-12)
    assert total > 0.0


@pytest.mark.parametrize("cpu_adam", [False, True])
def test_the_search_adds_of_hosts_to_the_step_what_prices_do(cpu_adam):
    host = Host(to_device=2e7, to_host=1e7, latency=1e-3, memory=1e15, adam_rate=1e6)
    network, job = eight_devices().with_host(host), tiny_job(2.0**40)
    job = replace(job, execution=replace(job.execution, cpu_adam=cpu_adam))
    costs = HostCosts.of(network, job)

    def end(offload):
        parts = {f"offload_{name}": part for name, part in offload._asdict().items()}
        spec = PlanSpec(micro_batch_size=1, data_parallel_size=1, **parts)
        made = build_plan(network, job, spec)
        (stage,) = price_plan(network, job, made).stages
        held = stage.memory["weights"] / job.parameter_bytes.weights
        return stage.host_time + stage.optimizer_time, held

    bare, held = end(Offload())
    for offload in (
        Offload(optimizer=0.5),
        Offload(optimizer=1.0, weights=0.25, gradients=0.5),
        Offload(weights=1.0, gradients=1.0),
    ):
        once, each = costs.step_end(offload)
        assert once + held * each == pytest.approx(end(offload)[0] - bare, rel=1e-9)
        assert once == pytest.approx(round(once / 1e-3) * 1e-3)


def test_ends_behind_a_kind_are_those_after_its_last_layer():
    chain = table()
    classes, saved = interval_classes(chain.kinds), chain.saved_bytes["none"]
    found = _ends_behind(chain, classes)
    for first in range(3):
        for last in range(first, 3):
            layers = range(first, last + 1)
            for kind in range(3):
                behind = [n for n in layers if n > kind and not chain.is_block[n]]
                number = classes.class_of[first, last + 1]
                assert found[number, kind] == sum(saved[n] for n in behind)


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("cuts", CUTS)
def test_layer_by_layer_passes_take_as_long_as_the_whole_stage_is_charged(zero, cuts):
    devices = [[[2 * d], [2 * d + 1]] for d in range(len(cuts) + 1)]
    job, made = workload(), plan(devices, cuts, m=4, zero=zero)
    rates = rates_of(TREE, job, made)
    for index in range(len(devices)):
        (passes,) = PassPrices(job, rates, made, index).passes()
        cost = stage_price(job, rates, made, index).cost
        assert passes[FORWARD].whole == pytest.approx(cost.forward_time, rel=1e-12)
        assert passes[BACKWARD].whole == pytest.approx(cost.backward_time, rel=1e-12)
