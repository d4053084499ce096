"""Layers traced by torch itself: what tracing on shapes is held to.

torch.fx records the modules with torch's own words as a graph, in which those with a
rule stand in one piece, and torch's tensors of the meta device say what shapes come
out of each node. Rules, which say what follows from shapes, are those of the product;
modules find theirs by the names of their classes.
"""

from typing import Any

import torch
from torch import Tensor, fx, nn

from estimators.models.changed import with_one_of_each
from estimators.models.spec import TransformerSpec
from estimators.tracing import rules, trace
from estimators.tracing.graph import LayerGraph, TracedLayer
from tests.estimators import torch_models

RULES = {kind.__name__: rule for kind, rule in trace._RULES.items()}
assert len(RULES) == len(trace._RULES), "classes have names of their own"
MARKED = {kind.__name__: kind for kind in rules._CORE | rules._UNMASKED}


def torch_layers(spec: TransformerSpec) -> dict[str, TracedLayer]:
    """Trace the layers of a model, without their parameters."""
    spec = with_one_of_each(spec)
    families = torch_models.families
    ids, labels = families.example_inputs(spec)
    inputs = {"embedding": ids, "final norm": (families.leaving_states(spec),)}
    left = families.leaving_states(spec, normed=True)
    for depth in range(spec.mtp_num_layers):
        inputs[f"mtp {depth}"] = (left.repeat(1, 1 + depth, 1), *ids)
    inputs["head"] = (left.repeat(1, 1 + spec.mtp_num_layers, 1), *labels)
    for name, kind in spec.block_kinds.items():
        inputs[name] = families.block_inputs(spec, kind)
    return {
        name: record(module, inputs[name], takes_hidden=name != "embedding")
        for name, module in families.build_layers(spec).items()
    }


def parameters(spec: TransformerSpec) -> list[tuple[str, int]]:
    """Return path and elements of all parameters of distinct layers."""
    layers = torch_models.families.build_layers(with_one_of_each(spec))
    return [
        (name, parameter.numel())
        for layer in layers.values()
        for path, part in layer.named_modules()
        if not getattr(part, "is_held_already", False)
        for name, parameter in part.named_parameters(path, recurse=False)
    ]


def traced_parameters(graph: LayerGraph) -> list[tuple[str, int]]:
    """Return the same of a traced model, heads of one weight together."""
    sizes: dict[tuple[int, str], int] = {}
    for place, layer in enumerate(graph.layers):
        for name, elements, *_ in layer.parameters:
            path, _, last = name.rpartition(".")
            whole = path if last in {"query", "key", "value", "gate"} else name
            sizes[place, whole] = sizes.get((place, whole), 0) + elements
    return [(name, size) for (_, name), size in sizes.items()]


def record(
    module: nn.Module, inputs: tuple[Tensor, ...], *, takes_hidden: bool
) -> TracedLayer:
    """Trace one layer."""
    graph = _Tracer().trace(module)
    recorder = _Recorder(fx.GraphModule(module, graph))
    recorder.run(*inputs)
    return TracedLayer(
        tensors=tuple(recorder.tape.tensors),
        parameters=(),
        operators=tuple(recorder.tape.operators),
        hidden_input=0 if takes_hidden else None,
        memory_input=recorder.arguments.get("memory"),
        passing_input=recorder.arguments.get("passing"),
    )


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m).__name__ in RULES


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.tape = rules.Tape()
        self.arguments: dict[str, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "placeholder" and value.is_floating_point():
            layout = trace._INPUT_LAYOUTS.get(str(n.target), "sequence")
            number = self.tape.add(value.numel(), layout, "model")
            self.tape.numbers[n] = (number,)
            self.arguments[str(n.target)] = number
        elif n.op.startswith("call"):
            self._describe(n, value)
        return value

    def _describe(self, node: fx.Node, value: Any) -> None:
        given = [argument for argument in node.args if isinstance(argument, fx.Node)]
        numbers = self.tape.numbers
        inputs = tuple(i for argument in given for i in numbers.get(argument, ()))
        name = getattr(node.target, "__name__", node.target)
        if name == "getitem" and isinstance(node.args[1], int):  # of several results
            numbers[node] = inputs[node.args[1] : node.args[1] + 1]
            return
        stack = node.meta.get("nn_module_stack", {})
        path = list(stack)[-1] if stack else ""
        target: Any = name
        if node.op == "call_module":
            target = self.fetch_attr(str(node.target))
            rule = RULES[type(target).__name__]
        else:
            rule, path = rules.FUNCTION_RULES[name], f"{path}.{node}".lstrip(".")
        kinds = {kind.__name__ for _, kind in stack.values()}
        within = frozenset(MARKED[kind] for kind in kinds & MARKED.keys())
        results = value if isinstance(value, tuple | list) else (value,)
        assert all(torch.is_tensor(result) for result in results)
        rule(
            rules.TracedCall(
                self.tape, node, target, inputs, tuple(results), path, within
            )
        )
