"""From an architecture to its `LayerGraph`: each distinct layer, run on shapes.

A layer is called once with tensors that have shapes and no numbers. They hand each call
of a module or function to the recorder. A module that has a rule is kept in one piece:
its own calls go unseen, and the rule describes it. What is called between such modules
is described by the rule of its function.
"""

import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from estimators.models import attention, families, layers, shapes
from estimators.models.changed import with_one_of_each
from estimators.models.spec import TransformerSpec
from estimators.models.vocabulary import Tensor, nn
from estimators.tracing.graph import LayerGraph, TracedLayer, TracedParameter
from estimators.tracing.mixers import MIXER_LAYOUTS, MIXER_RULES
from estimators.tracing.rules import (
    ARCHITECTURE_RULES,
    FUNCTION_RULES,
    MODULE_RULES,
    QKV_LAYOUTS,
    Tape,
    TracedCall,
)
from estimators.tracing.trained_tower import with_trained_tower

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
        (families.NGramTables, "weight"): "vocab",
        **MIXER_LAYOUTS,
    }
)
"""(Module, parameter) -> layout; everything else is whole on every rank."""

_RULES = MappingProxyType({**MODULE_RULES, **ARCHITECTURE_RULES, **MIXER_RULES})
_MEMORY, _PASSING = "memory", "passing"
_INPUT_LAYOUTS: Mapping[str, str] = MappingProxyType(
    {
        "position_bias": "tensor",
        **dict.fromkeys(("conditioning", "time", "pooled"), "conditioning"),
    }
)
"""Argument of a layer -> layout; everything else is split along the sequence."""


def trace_model(spec: TransformerSpec) -> LayerGraph:
    """Return the chain of layers of a model; takes a few milliseconds.

    Parameters
    ----------
    spec
        The architecture.
    """
    traced = with_one_of_each(spec)
    ids, labels = families.example_inputs(traced)
    inputs = {"embedding": ids, "final norm": (families.leaving_states(traced),)}
    left = families.leaving_states(traced, normed=True)
    for depth in range(traced.mtp_num_layers):
        inputs[f"mtp {depth}"] = (left.repeat(1, 1 + depth, 1), ids[0])
    inputs["head"] = (left.repeat(1, 1 + traced.mtp_num_layers, 1), *labels)
    inputs |= {
        name: families.block_inputs(traced, kind)
        for name, kind in traced.block_kinds.items()
    }
    recorded = {
        name: record_layer(module, inputs[name], takes_hidden=name != "embedding")
        for name, module in families.build_layers(traced).items()
    }
    if spec.vision is not None:
        recorded["embedding"] = with_trained_tower(recorded["embedding"], spec.vision)
    return LayerGraph.chain(spec, recorded)


def record_layer(
    module: nn.Module, inputs: tuple[Tensor, ...], *, takes_hidden: bool
) -> TracedLayer:
    """Trace one layer.

    Parameters
    ----------
    module
        Written in `estimators.models.vocabulary`.
    inputs
        Tensors for one sequence. Integer ones (ids, labels) take no part in the
        accounting. An argument ``memory`` comes from the layer before, like hidden
        states.
    takes_hidden
        Whether the first input is hidden states.
    """
    recorder = _Recorder(module)
    arguments = recorder.run(inputs)
    tape = recorder.tape
    return TracedLayer(
        tensors=tuple(tape.tensors),
        parameters=tuple(_parameters(module)),
        operators=tuple(tape.operators),
        hidden_input=0 if takes_hidden else None,
        memory_input=arguments.get(_MEMORY),
        passing_input=arguments.get(_PASSING),
    )


class _Recorder:
    """Applies a rule to every call.

    Operators are named as torch.fx names nodes: by the path of their module and, from
    the second call of a module or function on, by the number of the call.
    """

    def __init__(self, module: nn.Module) -> None:
        self.tape = Tape()
        self._module = module
        self._paths = {part: path for path, part in module.named_modules()}
        self._stack: list[tuple[str, type[nn.Module]]] = []
        self._calls: Counter[object] = Counter()

    def run(self, inputs: tuple[Tensor, ...]) -> dict[str, int]:
        """Call the module; return its arguments' numbers of tensors."""
        arguments = {}
        given = []
        names = inspect.signature(self._module.forward).parameters
        for name, tensor in zip(
            itertools.chain(names, itertools.repeat("")), inputs, strict=False
        ):
            seen = shapes.Tensor(tensor.shape, tracer=self)
            given.append(seen)
            if tensor.is_floating_point():
                layout = _INPUT_LAYOUTS.get(name, "sequence")
                arguments[name] = self.tape.add(tensor.numel(), layout, "model")
                self.tape.numbers[seen] = (arguments[name],)
        self._module.forward(*given)
        return arguments

    def call_module(self, module: nn.Module, arguments: tuple[Any, ...]) -> Any:
        """Describe a module that has a rule; look into any other."""
        path = self._numbered(self._paths[module], "@")
        self._stack.append((path, type(module)))
        rule = _RULES.get(type(module))
        if rule is None:
            result = module.forward(*arguments)
        else:
            result = module.forward(*(_unseen(part) for part in arguments))
            results = result if isinstance(result, tuple) else (result,)
            for tensor in results:
                tensor.tracer = self
            self._describe(rule, module, arguments, results)
        self._stack.pop()
        return result

    def call_function(
        self, name: str, inputs: Sequence[Any], results: Sequence[Any]
    ) -> None:
        """Describe a function."""
        self._describe(FUNCTION_RULES[name], name, inputs, results)

    def _describe(
        self,
        rule: Callable[[TracedCall], None],
        target: Any,
        arguments: Sequence[Any],
        results: Sequence[Any],
    ) -> None:
        path = self._stack[-1][0] if self._stack else ""
        if isinstance(target, str):
            path = f"{path}.{self._numbered(target, '_')}".lstrip(".")
        numbers = self.tape.numbers
        inputs = [
            number
            for part in arguments
            if isinstance(part, shapes.Tensor)
            for number in numbers.get(part, ())
        ]
        within = frozenset(kind for _, kind in self._stack)
        node = object()
        rule(
            TracedCall(
                self.tape, node, target, tuple(inputs), tuple(results), path, within
            )
        )
        for tensor, number in zip(results, numbers.pop(node), strict=False):
            numbers[tensor] = (number,)

    def _numbered(self, name: str, mark: str) -> str:
        """Return a name, numbered from the second time on."""
        before = self._calls[mark, name]
        self._calls[mark, name] += 1
        return f"{name}{mark}{before}" if before else name


def _unseen(argument: Any) -> Any:
    """Return a tensor whose calls nobody sees."""
    if isinstance(argument, shapes.Tensor):
        return shapes.Tensor(argument.shape, argument.dtype)
    return argument


def _parameters(module: nn.Module) -> list[TracedParameter]:
    parameters = []
    for path, part in module.named_modules():
        if isinstance(part, families.LaterTokenEmbedding) and part.is_held_already:
            continue
        for name, parameter in part.named_parameters(path, recurse=False):
            if isinstance(part, attention.QKVParallelLinear):
                row = parameter.numel() // parameter.shape[0]
                parameters += [
                    TracedParameter(f"{name}.{what}", width * row, layout)
                    for what, width, layout in zip(
                        ("query", "key", "value", "gate"),
                        part.widths,
                        QKV_LAYOUTS,
                        strict=True,
                    )
                    if width
                ]
                continue
            last_name = name.rpartition(".")[2]
            layout = _PARAMETER_LAYOUTS.get((type(part), last_name), "whole")
            parameters.append(TracedParameter(name, parameter.numel(), layout))
    return parameters
