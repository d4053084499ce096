"""Costs of strategies: Megatron's shardings priced in closed form, and each rule."""

from dataclasses import replace

import numpy as np
import pytest

from estimators.layers.work import Degrees
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from planner.rivals.alpa.meshes import BATCH, WHOLE, LogicalMesh, MeshAxis, MeshCase
from planner.rivals.alpa.program import solve, solve_ends
from planner.rivals.alpa.sharding import LayerPrograms
from planner.rivals.alpa.stages import StageModel
from planner.step.execution import Workload
from planner.work import Work
from tests import failures
from tests.planner.rivals.alpa.test_program import joined
from tests.planner.rivals.examples import small_job
from tests.planner.strategies import tiny_spec
from topologies.accelerators import load_accelerator

MEGATRON = {
    "self_attention.linear_qkv": "column",
    "self_attention.core_attention": "features",
    "self_attention.linear_proj": "row",
    "mlp.linear_fc1": "column",
    "mlp.activation": "features",
    "mlp.linear_fc2": "row",
}
"""Operator -> how Megatron-LM splits it over tensor ranks; others hold all of it."""


def dense():
    return small_job()[1]


def experts():
    return Workload(
        graph=trace_model(tiny_spec(2, family="mixtral")),
        training=TrainingSpec(global_batch_size=16),
        accelerator=load_accelerator("a100-80gb"),
    )


def case(dp, tp, *, inverse=(0.0, 0.0), latency=0.0, sequences=4, **settings):
    mesh = LogicalMesh(
        MeshAxis(dp, latency, inverse[0]), MeshAxis(tp, latency, inverse[1])
    )
    return MeshCase(mesh, sequences, settings.pop("count", 2), **settings)


def place_of(program, node, first, second):
    return program.nodes[node].strategies.index(f"{first}|{second}")


def chosen_as_megatron(program, dp, tp=2):
    """Return the choice of Megatron's tensor parallelism with whole hidden states."""
    first = "data" if dp > 1 else "replicated"
    end = program.nodes[0].strategies.index(f"{BATCH if dp > 1 else WHOLE}{WHOLE}")
    inner = []
    for number, node in enumerate(program.nodes[1:-1], start=1):
        second = next(
            (how for name, how in MEGATRON.items() if node.name.startswith(name)),
            "replicated",
        )
        second = second if tp > 1 else "replicated"
        inner.append(place_of(program, number, first, second))
    return (end, *inner, end)


@failures.over(("dp", "tp"), [(1, 2), (2, 2), (1, 4), (4, 2)])
def test_compute_of_megatrons_shardings_is_that_of_the_layer_table(dp, tp):
    workload = dense()
    programs = LayerPrograms(workload=workload)
    program = programs.program(1, case(dp, tp))
    table = workload.table(Degrees(tp=tp, micro_batch_size=4 // dp))
    block = table.names.index("block 0")
    expected = table.forward_time[block] + table.backward_time[block]
    cost = program.cost(chosen_as_megatron(program, dp))
    assert cost == pytest.approx(expected, rel=1e-9)


def test_megatrons_collectives_are_two_all_reduces_each_way():
    workload, tp, inverse = dense(), 2, 1e-3
    programs = LayerPrograms(workload=workload)
    slow = programs.program(1, case(1, tp, inverse=(0.0, inverse)))
    fast = programs.program(1, case(1, tp))
    chosen = chosen_as_megatron(slow, 1)
    spec = workload.graph.spec
    hidden = 4 * spec.sequence_length * spec.hidden_size * 2
    reduce = 2 * inverse * (tp - 1) / tp * hidden
    sent = slow.cost(chosen) - fast.cost(chosen)
    assert sent == pytest.approx(4 * reduce, rel=1e-6)


def test_gradients_are_reduced_once_a_step():
    workload, dp = dense(), 4
    programs = LayerPrograms(workload=workload)
    times = []
    for count in (1, 4):
        program = programs.program(1, case(dp, 1, inverse=(1e-3, 0.0), count=count))
        free = programs.program(1, case(dp, 1, count=count))
        chosen = chosen_as_megatron(program, dp, 1)
        times.append(program.cost(chosen) - free.cost(chosen))
    parameters = sum(p.elements for p in workload.graph.layers[1].parameters)
    sent = 2 * 1e-3 * (dp - 1) / dp * parameters * workload.parameter_bytes.reduce
    assert times[0] == pytest.approx(sent, rel=1e-6)
    assert times[1] == pytest.approx(sent / 4, rel=1e-6)


def test_sharded_weights_are_gathered_twice_and_scattered():
    workload, dp, inverse = dense(), 4, 1e-3
    programs = LayerPrograms(workload=workload)
    program = programs.program(1, case(dp, 1, inverse=(inverse, 0.0)))
    free = programs.program(1, case(dp, 1))
    layer = workload.graph.layers[1]
    for number, node in enumerate(program.nodes):
        if f"{'shard'}|replicated" not in node.strategies:
            continue
        place = place_of(program, number, "shard", "replicated")
        count = sum(
            p.elements for p in layer.parameters if p.name.startswith(f"{node.name}.")
        )
        width = workload.parameter_bytes
        sent = inverse * (dp - 1) / dp * count * (2 * width.gather + width.reduce)
        cost = node.cost[place] - free.nodes[number].cost[place]
        assert cost == pytest.approx(sent, rel=1e-6)
        data = place_of(program, number, "data", "replicated")
        assert node.footprint[place, 0] * dp == pytest.approx(node.footprint[data, 0])


def test_memory_of_megatrons_shardings_is_a_share_of_the_layer():
    workload = dense()
    programs = LayerPrograms(workload=workload)
    program = programs.program(1, case(2, 2))
    chosen = chosen_as_megatron(program, 2)
    table = workload.table(Degrees(tp=2, micro_batch_size=2))
    block = table.names.index("block 0")
    pairs = zip(program.nodes, chosen, strict=True)
    static, saved = sum(node.footprint[s] for node, s in pairs)[:2]
    width = workload.parameter_bytes
    each = width.weights + width.gradients + width.optimizer
    # Biases of row-parallel products and norms are small here, but not nothing.
    assert static == pytest.approx(each * table.parameters[block], rel=0.02)
    assert saved == pytest.approx(table.saved_bytes["none"][block], rel=1e-9)


@failures.over("mode", ["selective", "full", "stage"])
def test_what_is_repeated_takes_its_forward_pass_again(mode):
    workload = dense()
    programs = LayerPrograms(workload=workload)
    whole, again = (
        programs.program(1, case(1, 2, recompute=one)) for one in ("none", mode)
    )
    chosen = chosen_as_megatron(whole, 1)
    table = workload.table(Degrees(tp=2, micro_batch_size=4))
    block = table.names.index("block 0")
    added = again.cost(chosen) - whole.cost(chosen)
    assert added == pytest.approx(table.recompute_time[mode][block], rel=1e-9)
    saved = [
        sum(node.footprint[s, 1] for node, s in zip(p.nodes, chosen, strict=True))
        for p in (whole, again)
    ]
    assert saved[1] < saved[0]


def test_experts_are_shared_by_an_all_to_all_there_and_back():
    workload, dp, inverse = experts(), 2, 1e-9
    programs = LayerPrograms(workload=workload)
    shared = case(dp, 1, inverse=(inverse, 0.0), ep=2, plan="tensor")
    program = programs.program(1, shared)
    dispatch, first, last, combine = (
        next(n for n, node in enumerate(program.nodes) if node.name.endswith(name))
        for name in ("dispatch", "linear_fc1", "linear_fc2", "combine")
    )
    assert program.nodes[first].strategies == ("expert|replicated",)
    spec = workload.graph.spec
    copies = 4 * spec.sequence_length * spec.moe_router_topk * spec.hidden_size * 2
    travel = shared.mesh.first.all_to_all(copies)
    for pair in ((dispatch, first), (last, combine)):
        (edge,) = (e for e in program.edges if (e.source, e.target) == pair)
        # Both ends have one strategy; tokens one way, their gradients the other.
        assert edge.cost.shape == (1, 1)
        assert edge.cost[0, 0] == pytest.approx(2 * travel)
    whole = programs.program(1, case(dp, 1, ep=1))
    data = place_of(whole, first, "data", "replicated")
    held = whole.nodes[first].footprint[data, 0]
    assert program.nodes[first].footprint[0, 0] == pytest.approx(held / 2)


def test_a_model_without_experts_has_no_state_for_them():
    workload = dense()
    program = LayerPrograms(workload=workload).program(1, case(2, 2))
    names = {name for node in program.nodes[1:-1] for name in node.strategies}
    assert not any("expert" in name for name in names)


def test_a_batch_that_does_not_divide_leaves_nothing_to_split():
    workload = dense()
    programs = LayerPrograms(workload=workload)
    assert programs.program(1, case(3, 1)) is None
    whole = programs.program(1, case(1, 3, sequences=4))
    assert all(not name.endswith("|data") for n in whole.nodes for name in n.strategies)


@failures.over("make", [dense, experts], ids=["dense", "experts"])
@failures.over("free", [False, True])
def test_a_stage_of_blocks_is_what_highs_finds_for_all_of_it(make, free):
    workload = make()
    model = StageModel.of(workload, 1e12, Work())
    settings = {"inverse": (3e-12, 1e-11), "latency": 1e-6, "ep": 2}
    told = case(2, 1 if free else 2, **settings)
    told = told._replace(mesh=told.mesh._replace(has_free_batch=free))
    costs = model.costs(told)
    programs = [model.programs.program(kind, told) for kind in workload.graph.kinds]
    whole = programs[0]
    for program in programs[1:]:
        whole = joined(whole, program)
    chosen = solve(whole)
    assert whole.cost(chosen) == pytest.approx(costs.time[0, -1], rel=1e-8)
    assert solve_ends(whole).cost.min() == pytest.approx(costs.time[0, -1], rel=1e-9)


def test_strategies_of_a_stage_are_those_of_its_optimum():
    workload = dense()
    model = StageModel.of(workload, 1e12, Work())
    told = case(2, 2, inverse=(3e-12, 1e-11), latency=1e-6)
    costs = model.costs(told)
    layers = model.strategies(told, 0, 3)
    assert [kind for kind, _ in layers] == list(workload.graph.kinds)
    assert model.solved["programs of layers solved by HiGHS"] >= 3
    assert np.isfinite(costs.time[0, 3])


def test_shardings_that_a_plan_says_are_never_cheaper():
    workload = dense()
    model = StageModel.of(workload, 1e12, Work())
    for dp, tp in ((1, 2), (2, 2), (4, 1)):
        told = case(dp, tp, inverse=(3e-12, 1e-11), latency=1e-6)
        free, plan = (
            model.costs(told._replace(plan=said)).time for said in ("", "tensor")
        )
        upper = np.triu_indices(len(free))
        assert (free[upper] <= plan[upper] * (1 + 1e-12)).all()


def test_fp8_gathers_make_sharded_weights_worth_it():
    workload = dense()
    cheap = replace(workload.training, gather_precision="fp8")
    other = Workload(
        graph=workload.graph, training=cheap, accelerator=workload.accelerator
    )
    told = case(4, 1, inverse=(1e-6, 0.0), count=1, plan="tensor")
    for job, strategy in ((workload, "data"), (other, "shard")):
        model = StageModel.of(job, 1e12, Work())
        _, names = model.strategies(told, 0, 3)[1]
        assert f"{strategy}|replicated" in names


def test_gradients_of_both_axes_are_reduced_inside_nodes_first():
    workload, count = dense(), 0
    programs = LayerPrograms(workload=workload)
    outer, inner = 3e-3, 1e-3
    told = case(2, 2, inverse=(outer, inner), count=1, plan="data")
    program, free = (
        programs.program(1, one) for one in (told, case(2, 2, count=1, plan="data"))
    )
    width = workload.parameter_bytes
    for number, node in enumerate(program.nodes):
        count = sum(
            p.elements
            for p in workload.graph.layers[1].parameters
            if p.name.startswith(f"{node.name}.")
        )
        for place, name in enumerate(node.strategies):
            sent = node.cost[place] - free.nodes[number].cost[place]
            if name == "data|data" and count:
                reduce = 2 * count * width.reduce * (inner / 2 + outer / 2 / 2)
                assert sent == pytest.approx(reduce, rel=1e-6)
            elif name == "shard|shard":
                moved = count * (2 * width.gather + width.reduce)
                sharded = moved * (inner / 2 + outer / 2 / 2)
                assert sent == pytest.approx(sharded, rel=1e-6)
