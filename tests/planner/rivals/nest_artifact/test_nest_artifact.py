"""The published NEST artifact's instances: exact under its own cost model."""

import copy
import csv
import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.kernels import nest_artifact as kernels
from planner.rivals.nest_artifact import read_instance, score_baselines, solve
from planner.rivals.nest_artifact.costs import ArtifactCosts, price_split
from planner.rivals.nest_artifact.instance import Baseline, instance_of
from planner.rivals.nest_artifact.solver import _cuts, best_cuts, zero_widths
from tests import failures
from tests.planner.rivals.nest_artifact.nest_cases import (
    Definition,
    brute_force,
    instances,
    zero_gates,
)
from topologies.compiling import Kernel
from topologies.errors import InputError

DATA = Path(__file__).parents[5] / "shared" / "data" / "nest-instances"

public = pytest.mark.skipif(
    not DATA.is_dir(), reason="the public instances are not beside the repository"
)


def small(**changes):
    """Return a plain instance: four equal nodes, two levels of two devices."""
    ids = (3, -1, 7, 0)
    node = {
        "parameterSize": 1,
        "activationSize": 1,
        "optimalLatencyFw": 1.0,
        "optimalLatencyBw": 1.0,
    }
    edges = [
        {"sourceId": u, "destId": v, "communicationCost": 4} for u, v in pairwise(ids)
    ]
    data = {
        "ep_degree": 1,
        "cp_degree": 1,
        "maxMemoryPerDevice": 100,
        "maxDevices": 4,
        "bws": [8.0, 4.0],
        "latency_per_level": [0.0, 1.0],
        "devices_per_level": [2, 2],
        "mbsInBatch": 1.0,
        "nodes": {"1": [{"id": i, **node} for i in sorted(ids)]},
        "edges": {"1": edges},
        "activationRecomputation": False,
        "optimizerAlgorithm": "SGD",
    }
    return data | changes


def value_of(solution):
    return solution.plan.time_per_batch if solution.plan else math.inf


def bounds_of(plan):
    return (0, *(stage.end for stage in plan.stages))


# The optimum.


@settings(max_examples=120)
@given(instances())
def test_the_optimum_equals_brute_force(data):
    assert value_of(solve(instance_of(data))) == brute_force(data)


@settings(max_examples=80)
@given(instances())
def test_the_plan_costs_what_the_definition_says(data):
    plan = solve(instance_of(data)).plan
    assume(plan is not None)
    model = Definition(data, plan.tensor, zero_gates(data)[plan.tensor])
    assert model.cost(bounds_of(plan), plan.data) == plan.time_per_batch


@settings(max_examples=40)
@given(instances(max_nodes=5), st.data())
def test_any_plan_is_priced_by_the_definition(data, more):
    instance = instance_of(data)
    t = more.draw(st.sampled_from(sorted(instance.chains)))
    zero = zero_widths(instance)[t]
    assert zero == zero_gates(data)[t]
    model = Definition(data, t, zero)
    costs = ArtifactCosts(instance, instance.chains[t], zero=zero)
    for bounds, d in model.plans():
        assert price_split(costs, bounds, d).time_per_batch == model.cost(bounds, d)


@settings(max_examples=80)
@given(instances(), st.data())
def test_best_cuts_of_given_degrees_equal_brute_force(data, more):
    instance = instance_of(data)
    t = more.draw(st.sampled_from(sorted(instance.chains)))
    p = more.draw(st.integers(1, instance.num_nodes + 1))
    d = more.draw(st.integers(1, instance.num_devices))
    model = Definition(data, t)
    plans = [plan for plan in model.plans() if len(plan[0]) == p + 1 and plan[1] == d]
    expected = min((model.cost(*plan) for plan in plans), default=math.inf)
    plan = best_cuts(instance, t, p, d)
    assert (plan.time_per_batch if plan else math.inf) == expected


@settings(max_examples=25)
@given(instances())
def test_compiled_kernels_equal_their_python_source(data):
    instance = instance_of(data)
    compiled = solve(instance)
    with pytest.MonkeyPatch.context() as patch:
        for module in (kernels,):
            for name, kernel in list(vars(module).items()):
                if isinstance(kernel, Kernel):
                    patch.setattr(module, name, kernel.py_func)
        interpreted = solve(instance)
    assert interpreted.plan == compiled.plan
    assert interpreted.reason == compiled.reason


def test_ties_go_to_fewer_stages_and_more_replicas():
    free = small()
    for node in free["nodes"]["1"]:
        node.update(optimalLatencyFw=0.0, optimalLatencyBw=0.0, parameterSize=0)
    free["latency_per_level"] = [0.0, 0.0]
    plan = solve(instance_of(free | {"mbsInBatch": 4})).plan
    assert (plan.data, len(plan.stages)) == (4, 1)


def test_ties_go_to_the_narrowest_width():
    data = small()
    for table in ("nodes", "edges"):
        data[table]["2"] = copy.deepcopy(data[table]["1"])
    assert solve(instance_of(data)).plan.tensor == 1


def test_a_width_that_does_not_fit_is_passed_over():
    data = small(maxMemoryPerDevice=20)
    for table in ("nodes", "edges"):
        data[table]["2"] = copy.deepcopy(data[table]["1"])
    data["nodes"]["1"][0]["activationSize"] = 21
    assert solve(instance_of(data)).plan.tensor == 2


def test_a_long_chain_of_many_levels_is_solved():
    n = 200
    node = {**small()["nodes"]["1"][0], "optimalLatencyBw": 2.0, "parameterSize": 64}
    data = small(
        nodes={"1": [{**node, "id": i} for i in range(n)]},
        edges={
            "1": [
                {"sourceId": i, "destId": i + 1, "communicationCost": 8}
                for i in range(n - 1)
            ]
        },
        maxDevices=2**12,
        devices_per_level=[2] * 12,
        bws=[16.0] * 12,
        latency_per_level=[1.0] * 12,
        mbsInBatch=64,
        activationRecomputation=True,
        maxMemoryPerDevice=1000,
    )
    instance = instance_of(data)
    plan = solve(instance).plan
    costs = ArtifactCosts(instance, instance.chains[1])
    assert price_split(costs, bounds_of(plan), plan.data) == plan
    assert len(plan.stages) > 20


# What must always hold.


@settings(max_examples=50)
@given(instances(), st.randoms(use_true_random=False))
def test_the_order_and_the_names_of_nodes_change_nothing(data, random):
    other = copy.deepcopy(data)
    for nodes, edges in zip(
        other["nodes"].values(), other["edges"].values(), strict=True
    ):
        for node in nodes:
            node["id"] = 1000 - 3 * node["id"]
        for edge in edges:
            for key in ("sourceId", "destId"):
                edge[key] = 1000 - 3 * edge[key]
        random.shuffle(nodes)
        random.shuffle(edges)
    assert solve(instance_of(other)).plan == solve(instance_of(data)).plan


@settings(max_examples=80)
@given(instances(), st.data())
def test_more_of_anything_is_never_worse(data, more):
    instance = instance_of(data)
    level = more.draw(st.integers(0, len(data["bws"]) - 1))
    faster = list(instance.bandwidths)
    faster[level] *= 4
    latencies = [time / 2 for time in instance.latencies]
    chains = {
        t: replace(chain, forward=tuple(time / 2 for time in chain.forward))
        for t, chain in instance.chains.items()
    }
    richer = more.draw(
        st.sampled_from(
            [
                replace(instance, bandwidths=tuple(faster)),
                replace(instance, latencies=tuple(latencies)),
                replace(instance, memory_bytes=2 * instance.memory_bytes),
                replace(
                    instance,
                    num_devices=instance.num_devices + 3,
                    group_sizes=(*instance.group_sizes[:-1], 16),
                ),
                replace(instance, chains=chains),
            ]
        )
    )
    # The artifact's gate of ZeRO breaks this: more memory can take ZeRO away.
    assume(not any(zero_widths(instance).values()))
    assume(not any(zero_widths(richer).values()))
    assert value_of(solve(richer)) <= value_of(solve(instance))


@settings(max_examples=50)
@given(instances())
def test_doubling_every_time_doubles_the_answer(data):
    instance = instance_of(data)
    slower = replace(
        instance,
        bandwidths=tuple(b / 2 for b in instance.bandwidths),
        latencies=tuple(2 * time for time in instance.latencies),
        frequency=instance.frequency / 2,
        chains={
            t: replace(
                chain,
                forward=tuple(2 * time for time in chain.forward),
                backward=tuple(2 * time for time in chain.backward),
            )
            for t, chain in instance.chains.items()
        },
    )
    assert value_of(solve(slower)) == 2 * value_of(solve(instance))


@settings(max_examples=50)
@given(instances())
def test_what_is_missing_is_told_with_the_least_memory_that_would_do(data):
    instance = instance_of(data)
    solution = solve(instance)
    assume(solution.plan is None)
    if "devices, there are" in solution.reason:
        assert all(
            instance.devices_per_stage(t) > instance.num_devices
            for t in instance.chains
        )
        return
    t = int(solution.reason.split(":")[0].removeprefix("tensor width "))
    chain = instance.chains[t]
    need, _ = kernels.least_memory(
        *_memory_of(instance, chain),
        instance.num_devices // instance.devices_per_stage(t),
        instance.optimizer == "Adam",
    )
    assert f"needs {need / 2**30:.4g} GiB" in solution.reason
    alone = replace(instance, chains={t: chain}, memory_bytes=need)
    assert solve(alone).plan is not None
    if not any(zero_widths(less := replace(alone, memory_bytes=need - 1)).values()):
        assert solve(less).plan is None


def _memory_of(instance, chain):
    from planner.rivals.nest_artifact.solver import _edges, _memory_tables

    return _memory_tables(instance, chain, _edges(chain.incoming))


# ZeRO, as the artifact has it.


def sharded():
    """Return an instance whose nodes fit a device only when sharded."""
    data = small(
        maxMemoryPerDevice=20, maxDevices=8, devices_per_level=[2, 4], frequency=4.0
    )
    for node in data["nodes"]["1"]:
        node.update(parameterSize=12, activationSize=0)
    return data


def test_zero_takes_more_devices_and_a_negative_cost():
    plan = solve(instance_of(sharded())).plan
    # All nodes: 48 + 48 / 8 is too much, 2 * 48 / 8 = 12 is not, 2 * 48 / 4 = 24 is.
    assert [stage.devices for stage in plan.stages] == [8]
    assert plan.stages[0].memory_bytes == 12.0
    assert plan.time_per_batch == 8.0 - 2 / 4


def test_zero_is_off_once_the_last_node_of_a_narrower_width_fits():
    data = sharded()
    for table in ("nodes", "edges"):
        data[table]["2"] = copy.deepcopy(data[table]["1"])
    assert zero_widths(instance_of(data)) == {1: True, 2: True}
    last = next(node for node in data["nodes"]["1"] if node["id"] == 0)
    last["parameterSize"] = 1
    assert zero_widths(instance_of(data)) == {1: False, 2: False}
    assert solve(instance_of(data)).plan is None


def test_a_search_with_zero_that_needs_too_much_memory_is_refused():
    data = sharded()
    instance = instance_of(data)
    chain = instance.chains[1]
    long = replace(
        chain,
        **{
            name: getattr(chain, name)[:1] * 500
            for name in ("parameters", "activations", "forward", "backward")
        },
        incoming=((),) * 500,
        outgoing=((),) * 500,
    )
    many = replace(
        instance,
        ids=tuple(range(500)),
        chains={1: long},
        num_devices=10_000,
        group_sizes=(10_000,),
        bandwidths=(1.0,),
        latencies=(0.0,),
    )
    with pytest.raises(InputError, match="too large for a search with it"):
        solve(many)


# Baselines.


@settings(max_examples=80)
@given(instances(), st.data())
def test_baselines_are_priced_in_both_orders_by_the_definition(data, more):
    instance = instance_of(data)
    n = instance.num_nodes
    p = more.draw(st.integers(1, n))
    cuts = more.draw(
        st.sets(st.integers(1, max(1, n - 1)), min_size=p - 1, max_size=p - 1)
        if p > 1
        else st.just(set())
    )
    bounds = (0, *sorted(cuts), n)
    baseline = Baseline(
        name="mine",
        num_layers=n,
        tensor=more.draw(st.sampled_from(sorted(instance.chains))),
        pipeline=p,
        data=more.draw(st.integers(1, instance.num_devices)),
        layer_partition=tuple(j - i for i, j in pairwise(bounds)),
    )
    (scored,) = score_baselines(replace(instance, baselines=(baseline,)))
    model = Definition(data, baseline.tensor)
    expected = model.cost(bounds, baseline.data)
    assert scored.true_order.time_per_batch == expected
    backwards = model.cost(bounds, baseline.data, listed_backwards=True)
    assert scored.as_scored.time_per_batch == backwards
    assert scored.best_cuts.time_per_batch <= expected
    for score in (scored.as_scored, scored.true_order, scored.best_cuts):
        assert math.isinf(score.time_per_batch) == bool(score.reason)


@failures.over(
    ("layers", "pipeline", "partition", "bounds", "problem"),
    [
        (32, 8, (), (0, 4, 8, 12, 16, 20, 24, 28, 33), ""),
        (32, 6, (), (0, 6, 12, 18, 24, 30, 33), ""),
        (32, 9, (), (0, 4, 8, 12, 16, 20, 24, 28, 32, 33), ""),
        (32, 2, (30, 2), (0, 30, 33), ""),
        (32, 2, (30, 2, 0), (0, 16, 33), ""),
        (32, 3, (16, 0, 16), None, "stage 2 of 3 is empty"),
        (32, 20, (), None, "stage 17 of 20 is empty"),
        (32, 2, (30, 3), None, "cuts for 33 layers, 32 stored, 33 nodes"),
        (40, 2, (), None, "cuts for 40 layers, 40 stored, 33 nodes"),
        (40, 2, (20, 13), (0, 20, 33), ""),
        (32, 34, (), None, "34 stages for 33 nodes"),
    ],
)
def test_the_cuts_of_a_baseline_are_the_artifacts(
    layers, pipeline, partition, bounds, problem
):
    baseline = Baseline(
        name="x",
        num_layers=layers,
        tensor=1,
        pipeline=pipeline,
        data=1,
        layer_partition=partition,
    )
    found, trouble = _cuts(baseline, num_nodes=33)
    assert trouble == problem
    if not problem:
        assert found == bounds


def test_a_baseline_without_a_price_says_why():
    stored = {"num_transformer_layers": 4, "p": 2, "d": 1, "t": 1}
    data = small(
        mbsInBatch=2,
        baselines={
            "absent width": stored | {"t": 2},
            "too many devices": stored | {"p": 4, "d": 2},
            "too many replicas": stored | {"p": 1, "d": 3},
            "empty stage": stored | {"p": 4, "num_transformer_layers": 3},
            "good": stored,
        },
    )
    scored = {one.baseline.name: one for one in score_baselines(instance_of(data))}
    reasons = {name: one.true_order.reason for name, one in scored.items()}
    assert reasons == {
        "absent width": "no graph of tensor width 2",
        "too many devices": "needs 8 devices, there are 4",
        "too many replicas": "3 replicas for 2 microbatches",
        "empty stage": "",
        "good": "",
    }
    assert scored["too many devices"].best_cuts.reason == "needs 8 devices, there are 4"
    assert scored["good"].best_cuts.reason == ""


# The public instances.


def rows():
    if not DATA.is_dir():
        return []
    with (DATA / "results.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def name_of(row):
    return f"{row['setup']}/{row['instance']}"


@public
@failures.over("row", rows(), ids=name_of)
def test_every_public_instance_gets_the_recorded_value_or_better(row):
    path = DATA / f"{name_of(row)}.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    instance = read_instance(path)
    solution = solve(instance)
    if row["instance"] == "llama2_mbs8_256":
        assert solution.plan is None
        assert "76.34 GiB on a device, which has 64 GiB" in solution.reason
        return
    plan = solution.plan
    assert Definition(data, plan.tensor).cost(bounds_of(plan), plan.data) == (
        pytest.approx(plan.time_per_batch, rel=1e-12)
    )
    if row["time_per_batch"]:
        assert plan.time_per_batch <= float(row["time_per_batch"]) * (1 + 1e-9)
        degrees = (row["t"], row["d"], row["stages"])
        assert (plan.tensor, plan.data, len(plan.stages)) == tuple(map(int, degrees))
    else:
        assert row["instance"] == "gpt3_mbs1_1024"
        assert plan.time_per_batch == pytest.approx(658194.3892, abs=1e-4)
        assert (plan.tensor, plan.data, len(plan.stages)) == (4, 16, 16)


@public
@failures.over("row", [row for row in rows() if row["time_per_batch"]], ids=name_of)
def test_where_the_artifact_found_the_optimum_we_agree_to_the_last_bit(row):
    plan = solve(read_instance(DATA / f"{name_of(row)}.json")).plan
    assert plan.time_per_batch == float(row["time_per_batch"])


RATIOS = [
    # Instance, baseline; time over the best plan's as scored, in true order, and with
    # the best cuts, with the digits that are known (None: not known).
    ("tpuv4_fatTree/llama2_mbs1_64", "Manual", "1.25", "1.000", None),
    ("tpuv4_fatTree/llama2_mbs1_256", "Manual", "1.25", "1.000", None),
    ("tpuv4_fatTree/llama2_mbs1_1024", "Manual", "1.25", "1.000", None),
    ("tpuv4_fatTree/llama2_mbs1_64", "Phaze", "1.20", "1.20", None),
    ("tpuv4_fatTree/llama2_mbs1_256", "Phaze", "1.14", "1.14", None),
    ("tpuv4_fatTree/llama2_mbs1_1024", "Phaze", "1.15", "1.15", None),
    ("tpuv4_fatTree/mixtral_mbs1_128", "Phaze", "1.50", "1.006", None),
    ("tpuv4_fatTree/mixtral_mbs1_1024", "Phaze", "1.50", "1.006", None),
    ("tpuv4_fatTree/mixtral_mbs1_128", "Manual", "2.00", "1.34", "1.001"),
    ("tpuv4_fatTree/mixtral_mbs1_1024", "Manual", "2.0", "1.35", "1.006"),
    ("tpuv4_fatTree/gpt3_mbs1_64", "Phaze", "1.167", "1.000", None),
    ("tpuv4_fatTree/gpt3_mbs1_256", "Phaze", "1.167", "1.000", None),
    ("tpuv4_fatTree/gpt3sp_mbs1_128", "Phaze", "1.167", "1.000", None),
    ("tpuv4_fatTree/gpt3_mbs1_1024", "Phaze", "1.167", "1.000", None),
    ("tpuv4_fatTree/gpt3_mbs1_256", "Manual", "1.334", "1.0005", None),
    ("tpuv4_fatTree/gpt3sp_mbs1_128", "Manual", "1.334", "1.0002", None),
    ("tpuv4_fatTree/gpt3_mbs1_256", "MCMC", None, "1.33", None),
    ("tpuv4_fatTree/llama3_mbs1_512", "Manual", "2.0", "1.34", "1.003"),
    ("tpuv4_fatTree/llama3_mbs1_128", "Manual", None, "1.99", "1.49"),
    ("tpuv4_fatTree/bert_mbs1_64", "Manual", "1.35", "1.35", "1.02"),
    ("tpuv4_fatTree/bert_mbs1_512", "Manual", "1.479", "1.479", "1.11"),
    ("h100_spineLeaf/gpt3_mbs1_128", "Manual", "1.334", "1.0008", None),
    ("h100_spineLeaf/mixtral_mbs1_1024", "Manual", "1.519", "1.013", None),
    ("h100_spineLeaf/mixtral_mbs1_1024", "Phaze", "1.250", "1.000", None),
    ("h100_spineLeaf/llama3_mbs1_128", "Manual", None, "2.38", None),
    ("h100_spineLeaf/llama3_mbs1_128", "Phaze", None, "1.357", None),
    ("h100_spineLeaf/llama3_mbs1_128", "MCMC", None, "1.306", None),
]


@public
@failures.over("case", RATIOS, ids=lambda case: f"{case[0]} {case[1]}")
def test_the_published_ratios_come_from_the_order_of_the_stages(case):
    name, baseline, *expected = case
    instance = read_instance(DATA / f"{name}.json")
    best = solve(instance).plan.time_per_batch
    (scored,) = [
        one for one in score_baselines(instance) if one.baseline.name == baseline
    ]
    scores = (scored.as_scored, scored.true_order, scored.best_cuts)
    for score, digits in zip(scores, expected, strict=True):
        if digits is not None:
            decimals = len(digits.split(".")[1])
            assert f"{score.time_per_batch / best:.{decimals}f}" == digits


# Reading.


def broken(*path, value=None, remove=False):
    """Return an instance with one value changed or taken away."""
    data = small(baselines={"B": {"num_transformer_layers": 4, "p": 1, "d": 1, "t": 1}})
    place = data
    for key in path[:-1]:
        place = place[key]
    if remove:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return data


EDGE = {"sourceId": 3, "destId": -1, "communicationCost": 1}

MISTAKES = {
    "no object": ([], "", "has the wrong type"),
    "nodes missing": (broken("nodes", remove=True), "nodes", "key is missing"),
    "edges missing": (broken("edges", remove=True), "edges", "key is missing"),
    "no graph": (small(nodes={}, edges={}), "nodes", "names no width"),
    "no nodes": (broken("nodes", "1", value=[]), "nodes.1", "is too short"),
    "width of no number": (
        small(nodes={"x": []}),
        "nodes.x",
        "is not a width",
    ),
    "width of 0": (small(nodes={"0": []}), "nodes.0", "is not a width"),
    "width twice": (
        small(nodes={"1": [], "01": []}),
        "nodes",
        "names no width, or one twice",
    ),
    "other widths": (
        broken("edges", value={"2": []}),
        "edges",
        "are not there for the same tensor-parallel widths",
    ),
    "bandwidth missing": (broken("bws", remove=True), "bws", "key is missing"),
    "text for devices": (
        broken("maxDevices", value="4"),
        "maxDevices",
        "has the wrong type",
    ),
    "part of a device": (
        broken("maxDevices", value=4.5),
        "maxDevices",
        "has the wrong type",
    ),
    "no devices": (broken("maxDevices", value=0), "maxDevices", "is out of range"),
    "too many devices": (
        broken("maxDevices", value=10**9),
        "maxDevices",
        "is out of range",
    ),
    "more devices than the network holds": (
        broken("maxDevices", value=5),
        "devices_per_level",
        "has no room for all devices",
    ),
    "levels that do not match": (
        broken("bws", value=[1.0]),
        "devices_per_level, bws, latency_per_level",
        "levels do not match",
    ),
    "bandwidth of 0": (broken("bws", 1, value=0), "bws[1]", "is out of range"),
    "negative latency": (
        broken("latency_per_level", 0, value=-1.0),
        "latency_per_level[0]",
        "is out of range",
    ),
    "no memory": (
        broken("maxMemoryPerDevice", value=0),
        "maxMemoryPerDevice",
        "is out of range",
    ),
    "no microbatch": (broken("mbsInBatch", value=0.5), "mbsInBatch", "out of range"),
    "number for true": (
        broken("activationRecomputation", value=1),
        "activationRecomputation",
        "has the wrong type",
    ),
    "unknown optimizer": (
        broken("optimizerAlgorithm", value="Lion"),
        "optimizerAlgorithm",
        "is not one of the known values",
    ),
    "list for optimizer": (
        broken("optimizerAlgorithm", value=["SGD"]),
        "optimizerAlgorithm",
        "is not one of the known values",
    ),
    "size missing": (
        broken("nodes", "1", 2, "parameterSize", remove=True),
        "nodes.1[2].parameterSize",
        "key is missing",
    ),
    "negative size": (
        broken("nodes", "1", 2, "activationSize", value=-1),
        "nodes.1[2].activationSize",
        "is out of range",
    ),
    "NaN": (
        broken("nodes", "1", 0, "optimalLatencyFw", value=math.nan),
        "nodes.1[0].optimalLatencyFw",
        "is out of range",
    ),
    "infinity": (
        broken("nodes", "1", 0, "optimalLatencyBw", value=math.inf),
        "nodes.1[0].optimalLatencyBw",
        "is out of range",
    ),
    "absurd number": (
        broken("nodes", "1", 0, "optimalLatencyBw", value=10**400),
        "nodes.1[0].optimalLatencyBw",
        "is out of range",
    ),
    "true for a number": (
        broken("nodes", "1", 0, "optimalLatencyBw", value=True),
        "nodes.1[0].optimalLatencyBw",
        "has the wrong type",
    ),
    "id twice": (
        broken("nodes", "1", 0, "id", value=7),
        "nodes.1[3].id",
        "is there twice",
    ),
    "edge to nowhere": (
        broken("edges", "1", 1, "destId", value=99),
        "edges.1[1].destId",
        "is not the id of a node",
    ),
    "edge to itself": (
        broken("edges", "1", 0, "destId", value=3),
        "edges.1[0]",
        "is an edge from a node to itself",
    ),
    "edge twice": (
        broken("edges", "1", 2, value=EDGE),
        "edges.1[2]",
        "is an edge that is there twice",
    ),
    "cycle": (
        broken("edges", "1", 0, value={**EDGE, "sourceId": 0}),
        "edges.1",
        "has a cycle",
    ),
    "branches": (
        broken("edges", "1", 1, value={**EDGE, "destId": 7}),
        "edges.1",
        "is not a chain",
    ),
    "other nodes at another width": (
        small(
            nodes={"1": small()["nodes"]["1"], "2": small()["nodes"]["1"][:3]},
            edges={"1": small()["edges"]["1"], "2": small()["edges"]["1"]},
        ),
        "nodes.2",
        "are not those of width 1",
    ),
    "other edges at another width": (
        small(
            nodes={"1": small()["nodes"]["1"], "2": small()["nodes"]["1"]},
            edges={"1": small()["edges"]["1"], "2": small()["edges"]["1"][:2]},
        ),
        "edges.2",
        "are not those of width 1",
    ),
    "baseline without a width": (
        broken("baselines", "B", "t", remove=True),
        "baselines.B.t",
        "key is missing",
    ),
    "baseline of no stages": (
        broken("baselines", "B", "p", value=0),
        "baselines.B.p",
        "is out of range",
    ),
    "partition of no numbers": (
        broken("baselines", "B", "layer_partition", value=[1, "2"]),
        "baselines.B.layer_partition[1]",
        "has the wrong type",
    ),
}


@failures.over("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_told_with_its_key(mistake):
    data, where, words = mistake
    with pytest.raises(InputError) as refused:
        instance_of(data)
    assert refused.value.where == where
    assert words in str(refused.value)
    assert len(str(refused.value).split("\n")) <= 5


@failures.over(
    ("content", "words"),
    [
        (None, "no such file"),
        (b"", "not JSON: Expecting value at line 1, column 1"),
        (b'{"a": 1,}', "not JSON"),
        (b"\xff{", "is not UTF-8 text"),
        (b"[NaN]", "not JSON: a number is not finite"),
        (b"[" * 100_000, "not JSON: nested too deeply"),
        (b"[" + b"1" * 5000 + b"]", "not JSON: a number is too long"),
        (b"{}", "nodes: key is missing"),
    ],
)
def test_files_that_are_no_instances_are_refused_by_name(content, words, tmp_path):
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_instance(path)
    assert str(refused.value).startswith(f"{path}: {words}")


def test_keys_that_no_cost_depends_on_may_be_missing():
    instance = instance_of(small())
    assert instance.baselines == ()
    assert instance.frequency == 1.05e6
    assert instance.ids == (3, -1, 7, 0)


def test_a_part_of_a_microbatch_is_dropped_as_the_artifact_does():
    assert instance_of(small(mbsInBatch=7.9)).num_microbatches == 7
