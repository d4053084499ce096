"""Real layers: their graphs, and what two engines make of them."""

import pytest

from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees
from estimators.models.library import load_model
from estimators.operators.layer_time import layer_schedules, layer_time
from estimators.operators.roofline import OperatorModel
from estimators.operators.schedules import (
    backward_graph,
    engines_of,
    forward_graph,
    partial_graph,
)
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from tests import failures
from tests.estimators.operators.cases import engine_use, is_feasible
from topologies.accelerators import load_accelerator

BLOCK = 1
TPU = OperatorModel.of(load_accelerator("tpu-v5p"), TrainingSpec(global_batch_size=8))
NAMES = ("gpt3-1.3b", "llama2-7b", "mixtral-8x7b", "bert-large")


def layer_of(name, kind=BLOCK, implementation="flash", **degrees):
    """Return a traced layer, the work of its operators and their times."""
    graph = trace_model(load_model(name, attention_implementation=implementation))
    works = layer_work(graph, kind, Degrees(**degrees), 2).operators
    times = tuple(TPU.operator_time(work) for work in works)
    return graph.layers[kind], works, times


def names_before(layer, graph, name):
    """Return the operators that a forward task waits for."""
    (task,) = (i for i, op in enumerate(layer.operators) if op.name == name)
    return {layer.operators[other].name for other in graph.predecessors[task]}


def every_layer():
    for name in NAMES:
        for implementation in ("flash", "plain"):
            for kind in range(3):
                yield layer_of(name, kind, implementation, tp=2)


def test_products_run_on_the_tensor_engine_and_the_rest_on_the_vector_engine():
    layer, works, _ = layer_of("llama2-7b")
    on_tensor = {
        op.operation
        for op, engine in zip(layer.operators, engines_of(works), strict=True)
        if engine == "tensor"
    }
    assert on_tensor == {"linear", "attention"}


def test_residual_additions_wait_for_both_branches():
    layer, works, _ = layer_of("gpt3-1.3b")
    graph = forward_graph(layer, engines_of(works))
    assert names_before(layer, graph, "add") == {"attention_dropout"}
    assert names_before(layer, graph, "add_1") == {"add", "mlp_dropout"}
    assert names_before(layer, graph, "input_norm") == set()


def test_parts_of_a_tensor_wait_for_whoever_wrote_it():
    """The gate and the other half of a gated product."""
    layer, works, _ = layer_of("llama2-7b")
    graph = forward_graph(layer, engines_of(works))
    assert "mlp.linear_fc1" in names_before(layer, graph, "mlp.activation")
    assert "mlp.linear_fc1" in names_before(layer, graph, "mlp.mul")


def test_tokens_are_dispatched_after_the_router_but_their_gradients_do_not_wait():
    layer, works, _ = layer_of("mixtral-8x7b")
    engines = engines_of(works)
    graph = forward_graph(layer, engines)
    assert "mlp.topk" in names_before(layer, graph, "mlp.dispatch")
    back = backward_graph(layer, engines, (False,) * len(works))
    names = [layer.operators[task.operator].name for task in back.tasks]
    before = {names[other] for other in back.predecessors[names.index("mlp.topk")]}
    assert "mlp.combine" in before
    assert "mlp.dispatch" not in before


@failures.over("name", NAMES)
def test_the_backward_pass_turns_every_dependency_round(name):
    layer, works, _ = layer_of(name)
    engines = engines_of(works)
    last = len(works) - 1
    forward = forward_graph(layer, engines).predecessors
    backward = backward_graph(layer, engines, (False,) * len(works)).predecessors
    pairs = {(other, task) for task, some in enumerate(forward) for other in some}
    turned = {
        (last - task, last - other)
        for task, some in enumerate(backward)
        for other in some
    }
    router = {
        (i, j)
        for i, one in enumerate(layer.operators)
        for j, two in enumerate(layer.operators)
        if (one.operation, two.operation) == ("top-k", "dispatch")
    }
    assert turned == pairs - router


def test_nothing_waits_for_a_weights_gradient():
    for layer, works, times in every_layer():
        weighted = tuple(time.weight_gradient > 0 for time in times)
        graph = backward_graph(layer, engines_of(works), weighted)
        followers = graph.successors()
        linears = sum(op.operation == "linear" for op in layer.operators)
        parts = [
            i for i, task in enumerate(graph.tasks) if task.part == "weight gradient"
        ]
        assert len(parts) == linears
        for task in parts:
            assert followers[task] == []
            assert graph.predecessors[task] == graph.predecessors[task - 1]
            assert graph.tasks[task - 1].operator == graph.tasks[task].operator


def test_tasks_take_as_long_as_their_operators_and_wait_for_earlier_ones():
    for layer, works, times in every_layer():
        for schedule, of_operators in zip(
            layer_schedules(layer, works, times),
            (sum(t.forward for t in times), sum(t.backward for t in times)),
            strict=True,
        ):
            assert sum(schedule.duration) == pytest.approx(of_operators)
        graphs = (
            forward_graph(layer, engines_of(works)),
            backward_graph(layer, engines_of(works), (True,) * len(works)),
        )
        for graph in graphs:
            for task, before in enumerate(graph.predecessors):
                assert all(other < task for other in before)


def test_times_are_between_the_bound_and_one_operator_after_the_other():
    for layer, works, times in every_layer():
        found = layer_time(layer, works, times)
        forward, backward = (
            sum(column) for column in list(zip(*times, strict=True))[:2]
        )
        slack = 1 + 1e-9
        least, least_back = (
            schedule.lower_bound for schedule in layer_schedules(layer, works, times)
        )
        assert forward / 2 <= least * slack
        assert least <= found.forward <= forward * slack
        assert backward / 2 <= least_back * slack
        assert least_back <= found.backward <= backward * slack
        assert found.input_gradient <= found.backward * slack
        apart = found.input_gradient + found.weight_gradient
        assert found.backward <= apart * slack
        assert found.repeated <= found.forward * slack
        assert found.exact


def test_schedules_of_real_layers_are_feasible():
    for layer, works, times in every_layer():
        engines = engines_of(works)
        weighted = tuple(time.weight_gradient > 0 for time in times)
        forward, backward = layer_schedules(layer, works, times)
        assert is_feasible(forward_graph(layer, engines), forward)
        assert is_feasible(backward_graph(layer, engines, weighted), backward)


@failures.over("name", ["gpt3-1.3b", "llama2-7b"])
def test_a_decoder_s_forward_pass_is_a_chain_and_its_backward_pass_is_not(name):
    layer, works, times = layer_of(name)
    forward, backward = layer_schedules(layer, works, times)
    assert forward.makespan == pytest.approx(sum(time.forward for time in times))
    assert engine_use(forward).both == pytest.approx(0.0, abs=1e-9)
    found = layer_time(layer, works, times)
    in_turn = sum(time.backward - time.weight_gradient for time in times)
    assert found.input_gradient == pytest.approx(in_turn)
    assert found.weight_gradient == sum(time.weight_gradient for time in times)
    # Weights' gradients hide what the vector engine does meanwhile.
    vector = sum(
        time.backward
        for time, engine in zip(times, engines_of(works), strict=True)
        if engine == "vector"
    )
    saved = sum(time.backward for time in times) - backward.makespan
    assert 0.3 * vector < saved <= vector * (1 + 1e-9)
    assert engine_use(backward).both * backward.makespan == pytest.approx(saved)


def test_repeated_values_are_copied_while_scores_are_computed():
    layer, works, times = layer_of("llama3-8b", implementation="plain")
    again = tuple(i for i, work in enumerate(works) if work.again)
    core = partial_graph(layer, engines_of(works), again)
    assert len(core.tasks) == sum(op.core for op in layer.operators)
    inside = [time for time, op in zip(times, layer.operators, strict=True) if op.core]
    in_turn = sum(time.forward for time in inside)
    copy = next(
        time.forward
        for time, op in zip(times, layer.operators, strict=True)
        if op.operation == "repeat"
    )
    assert layer_time(layer, works, times).repeated == pytest.approx(in_turn - copy)


def test_the_core_of_fused_attention_is_one_operator():
    layer, works, times = layer_of("llama2-7b")
    (inside,) = (t for t, op in zip(times, layer.operators, strict=True) if op.core)
    assert layer_time(layer, works, times).repeated == inside.forward
