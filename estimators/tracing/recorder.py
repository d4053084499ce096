"""Run a layer on the meta device under torch.fx and write down what it does.

The layer is traced symbolically once; the graph is then interpreted on meta tensors,
which have shapes but no values, and each node is described by its rule.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, fx, nn

from estimators.models import attention, families, layers
from estimators.tracing.graph import TracedLayer, TracedParameter
from estimators.tracing.mixers import MIXER_LAYOUTS, MIXER_RULES
from estimators.tracing.rules import (
    ARCHITECTURE_RULES,
    FUNCTION_RULES,
    MODULE_RULES,
    QKV_LAYOUTS,
    Tape,
    TracedCall,
)

_PARAMETER_LAYOUTS: Mapping[tuple[type[nn.Module], str], str] = MappingProxyType(
    {
        (layers.ColumnParallelLinear, "weight"): "tensor",
        (layers.ColumnParallelLinear, "bias"): "tensor",
        (layers.RowParallelLinear, "weight"): "tensor",
        (layers.VocabParallelLinear, "weight"): "vocab",
        (layers.VocabParallelLinear, "bias"): "vocab",
        (layers.VocabParallelEmbedding, "weight"): "vocab",
        (attention.QueryNorm, "weight"): "tensor",
        (attention.KeyNorm, "weight"): "groups",
        (attention.FlashAttention, "softmax_offset"): "tensor",
        (layers.ExpertColumnLinear, "weight"): "expert",
        (layers.ExpertRowLinear, "weight"): "expert",
        (layers.ExpertColumnLinear, "bias"): "expert",
        (layers.ExpertRowLinear, "bias"): "expert",
        (families.LaterTokenEmbedding, "weight"): "vocab",
        **MIXER_LAYOUTS,
    }
)
"""(Module, parameter) -> layout; everything else is whole on every rank."""

_RULES = MappingProxyType({**MODULE_RULES, **ARCHITECTURE_RULES, **MIXER_RULES})
_MEMORY = "memory"
_INPUT_LAYOUTS: Mapping[str, str] = MappingProxyType({"position_bias": "tensor"})
"""Argument of a layer -> layout; everything else is split along the sequence."""


def record_layer(
    module: nn.Module, inputs: tuple[Tensor, ...], *, takes_hidden: bool
) -> TracedLayer:
    """Trace one layer.

    Parameters
    ----------
    module
        On the meta device.
    inputs
        Meta tensors for one sequence. Integer ones (ids, labels) take no part in the
        accounting. An argument ``memory`` comes from the layer before, like hidden
        states.
    takes_hidden
        Whether the first input is hidden states.
    """
    graph = _Tracer().trace(module)
    recorder = _Recorder(fx.GraphModule(module, graph))
    recorder.run(*inputs)
    tape = recorder.tape
    return TracedLayer(
        tensors=tuple(tape.tensors),
        parameters=tuple(_parameters(module)),
        operators=tuple(tape.operators),
        hidden_input=0 if takes_hidden else None,
        memory_input=recorder.arguments.get(_MEMORY),
    )


class _Tracer(fx.Tracer):
    """Keeps the modules that have a rule in one piece."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002  # torch.fx's signature
        """Say whether a module is one node of the graph."""
        return type(m) in _RULES


class _Recorder(fx.Interpreter):
    """Interprets on meta tensors and applies a rule to every node."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.tape = Tape()
        self.arguments: dict[str, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, then describe it."""
        value = super().run_node(n)
        if n.op == "placeholder" and value.is_floating_point():
            layout = _INPUT_LAYOUTS.get(str(n.target), "sequence")
            number = self.tape.add(value.numel(), layout, "model")
            self.tape.numbers[n] = (number,)
            self.arguments[str(n.target)] = number
        elif n.op.startswith("call"):
            self._describe(n, value)
        return value

    def _describe(self, node: fx.Node, value: Any) -> None:
        target: Any = node.target
        if node.op == "call_module":
            target = self.fetch_attr(str(node.target))
            rule = _RULES[type(target)]
        else:
            rule = FUNCTION_RULES[target]
        given = [argument for argument in node.args if isinstance(argument, fx.Node)]
        inputs = tuple(
            i for argument in given for i in self.tape.numbers.get(argument, ())
        )
        results = value if isinstance(value, tuple) else (value,)
        rule(TracedCall(self.tape, node, target, inputs, results))


def _parameters(module: nn.Module) -> list[TracedParameter]:
    parameters = []
    for path, part in module.named_modules():
        if isinstance(part, families.LaterTokenEmbedding) and part.is_held_already:
            continue
        for name, parameter in part.named_parameters(path, recurse=False):
            if isinstance(part, attention.QKVParallelLinear):
                row = parameter.numel() // parameter.shape[0]
                parameters += [
                    TracedParameter(
                        f"{name}.{what}", heads * part.head_size * row, layout
                    )
                    for what, heads, layout in zip(
                        ("query", "key", "value", "gate"),
                        part.heads,
                        QKV_LAYOUTS,
                        strict=True,
                    )
                    if heads
                ]
                continue
            last_name = name.rpartition(".")[2]
            layout = _PARAMETER_LAYOUTS.get((type(part), last_name), "whole")
            parameters.append(TracedParameter(name, parameter.numel(), layout))
    return parameters
