"""Fine-tuning with low-rank adapters: a traced model whose weights are frozen.

A target ``y = x W`` gets two thin products beside it [1]_::

    y = x W + s (x A) B        A: k x r,  B: r x n,  r (k + n) parameters

Of a frozen weight there is no gradient, so its product's backward pass is that of its
input alone, and its input is not kept; ``A`` reads the same input, which is kept for
it, and ``B`` what ``A`` made. The embedding's backward pass is not there. Whatever else
a layer does stays as it is. The first block's products still make the gradients of
their inputs, though nothing reads them.

Scale and sum are kernels of their own, that read and write as much as the product has
made. Going back, gradients pass the sum as they are; they are scaled, and what comes
back through the adapter is added to the gradient of the product's input.

Tensor-parallel ranks share both factors [2]_: those of a column-parallel product have
parts of the rank and of the outputs, of a row-parallel one parts of the inputs and of
the outputs. What the ranks exchange for it is in `estimators.layers.shares`.

QLoRA [3]_ keeps the weights of a block's products in 4 bits (NF4), and makes them 16
bits wide before each product, forward, backward and where a block is run again: a
kernel that reads the one and writes the other [4]_. 64 weights share a scale, which
takes 8 bits, and 256 of the scales one in fp32::

    4 + 8 / 64 + 32 / (64 * 256) = 4.127 bits

Embeddings, norms and the head stay in 16 bits.

What parameters take on average, as of other models whose weights are not all alike
(`estimators.training.TrainingSpec.mean_parameter_bytes`): right for a model as a whole,
not for each stage of a pipeline.

References
----------
.. [1] Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022,
   section 4.1; Hugging Face PEFT 0.21.2, ``tuners/lora/layer.py``: ``Linear.forward``
   adds ``lora_B(lora_A(x)) * scaling`` to what the layer made.
.. [2] Megatron Bridge 067f987, ``src/megatron/bridge/peft/utils.py``,
   ``ParallelLinearAdapter``; ``peft/lora.py``: targets and rank unless told otherwise;
   ``peft/canonical_lora.py``: queries, keys and values by themselves.
.. [3] Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", NeurIPS 2023,
   section 3: NF4, double quantisation, blocks of 64 and 256.
.. [4] bitsandbytes 0.50.2, ``autograd/_functions.py``: ``MatMul4Bit.forward`` and
   ``.backward`` dequantise the weight and multiply; ``functional.py``:
   ``quantize_4bit`` with ``compress_statistics``.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from estimators.tracing.graph import (
    LayerGraph,
    TracedLayer,
    TracedOperator,
    TracedParameter,
    TracedTensor,
)
from estimators.training import ParameterBytes, ParameterItem, TrainingSpec
from topologies.errors import InputError

NF4_BYTES = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Size of a weight in NF4 with its part of the scales, quantised twice [3]_ [byte]."""


class TargetPart(NamedTuple):
    """Which part of a traced product an adapter is of."""

    operator: str
    """Last part of the product's name."""
    place: int = 0
    """Place of the part among the product's."""
    parts: int = 1
    """Parts that the product has."""


TARGETS: Mapping[str, TargetPart] = MappingProxyType(
    {
        # Hugging Face's Llama and those built like it.
        "q_proj": TargetPart("linear_qkv", 0, 3),
        "k_proj": TargetPart("linear_qkv", 1, 3),
        "v_proj": TargetPart("linear_qkv", 2, 3),
        "o_proj": TargetPart("linear_proj"),
        "gate_proj": TargetPart("linear_fc1", 0, 2),
        "up_proj": TargetPart("linear_fc1", 1, 2),
        "down_proj": TargetPart("linear_fc2"),
        # Megatron Bridge's canonical LoRA [2]_.
        "linear_q": TargetPart("linear_qkv", 0, 3),
        "linear_k": TargetPart("linear_qkv", 1, 3),
        "linear_v": TargetPart("linear_qkv", 2, 3),
        "linear_fc1_gate": TargetPart("linear_fc1", 0, 2),
        "linear_fc1_up": TargetPart("linear_fc1", 1, 2),
    }
)
"""Name of a target elsewhere -> the product here. Other names are those of products."""


class AdaptedParts(NamedTuple):
    """Parts of a model's parameters, adapters included, that are kept otherwise."""

    adapters: float
    """Part that adapters are: what is trained."""
    quantised: float
    """Part that is kept in 4 bits."""


def with_adapters(graph: LayerGraph, training: TrainingSpec) -> LayerGraph:
    """Return a model as it is fine-tuned: itself where all of it is trained.

    Parameters
    ----------
    graph
        The traced model, with adapters of another kind or without.
    training
        Which products get adapters, and of which rank.

    Raises
    ------
    InputError
        If a target is not there, or is a product of routed experts.
    """
    base = graph.base or graph
    if training.adapter == "none":
        return base
    blocks = {
        kind
        for name, kind in zip(base.names, base.kinds, strict=True)
        if name.startswith("block")
    }
    missing = set(training.adapter_targets)
    layers = []
    for kind, layer in enumerate(base.layers):
        adapted = _AdaptedLayer(layer, training, is_block=kind in blocks)
        missing -= adapted.found
        layers.append(adapted.traced())
    if missing:
        raise _no_target(base, sorted(missing)[0])
    return replace(base, layers=tuple(layers), base=base)


def adapted_parts(graph: LayerGraph) -> AdaptedParts:
    """Return what part adapters, and weights in 4 bits, are of a model's parameters."""
    adapters = quantised = 0.0
    for kind in graph.kinds:
        layer = graph.layers[kind]
        adapters += sum(p.elements for p in layer.parameters if ".lora_" in p.name)
        quantised += _quantised(layer)
    total = graph.num_parameters
    return AdaptedParts(adapters / total, quantised / total)


def _quantised(layer: TracedLayer) -> float:
    """Return how many parameters of a layer are kept in 4 bits."""
    # A traced product of experts is one with the rows of all: its weight is not.
    names = {
        operator.name.removesuffix(_DEQUANTIZE)
        for operator in layer.operators
        if operator.operation == "dequantize"
    }
    return float(
        sum(
            parameter.elements
            for parameter in layer.parameters
            if any(parameter.name.startswith(f"{name}.weight") for name in names)
        )
    )


def relative_sizes(graph: LayerGraph) -> list[float]:
    """Return the mean size of a parameter of each distinct layer over the model's.

    Of weights as they are kept, in 16 and in 4 bits.
    """
    narrow = 1.0 - NF4_BYTES / _WIDE_BYTES
    mean = 1.0 - narrow * adapted_parts(graph).quantised
    return [
        (1.0 - narrow * _quantised(layer) / max(_elements(layer), 1)) / mean
        for layer in graph.layers
    ]


def _elements(layer: TracedLayer) -> int:
    return sum(parameter.elements for parameter in layer.parameters)


_WIDE_BYTES = 2


def adapted_items(
    training: TrainingSpec, parts: AdaptedParts
) -> tuple[ParameterItem, ...]:
    """Return what is kept for a parameter on average, adapters and frozen weights."""
    plain = 1.0 - parts.adapters - parts.quantised
    reason = f"in {training.precision}, and not trained"
    frozen = [
        ParameterItem(
            "weights", "frozen weights", plain * training.element_bytes, reason
        )
    ]
    if parts.quantised:
        narrow = f"of products of blocks, in NF4, {8 * NF4_BYTES:.3f} bits with scales"
        frozen.append(
            ParameterItem(
                "weights",
                "frozen weights in 4 bits",
                parts.quantised * NF4_BYTES,
                narrow,
            )
        )
    trained = (
        item._replace(
            name=f"adapters: {item.name}", num_bytes=parts.adapters * item.num_bytes
        )
        for item in training.parameter_items
    )
    return (*frozen, *trained)


def adapted_bytes(training: TrainingSpec, parts: AdaptedParts) -> ParameterBytes:
    """Return what a parameter takes on average, adapters and frozen weights [byte].

    Adapters are kept as all parameters would be if they were trained; frozen weights
    travel as they are kept, where they are sharded.
    """
    trained = training.parameter_bytes
    plain = 1.0 - parts.adapters - parts.quantised
    frozen = plain * training.element_bytes + parts.quantised * NF4_BYTES
    part = parts.adapters
    return ParameterBytes(
        weights=frozen + part * trained.weights,
        gradients=part * trained.gradients,
        optimizer=part * trained.optimizer,
        gather=frozen + part * trained.gather,
        reduce=part * trained.reduce,
        copies=part * trained.copies,
        frozen=frozen,
    )


_DEQUANTIZE = ".dequantize"


class _AdaptedLayer:
    """One layer of a model while it gets adapters."""

    def __init__(
        self, layer: TracedLayer, training: TrainingSpec, *, is_block: bool
    ) -> None:
        self.layer = layer
        self.rank = training.adapter_rank
        self.tensors = list(layer.tensors)
        self.parameters = list(layer.parameters)
        self.operators: list[TracedOperator] = []
        self.found: set[str] = set()
        quantised = is_block and training.adapter == "qlora"
        for operator in layer.operators:
            targets = self._targets(operator, training) if is_block else {}
            self._add(operator, targets, quantised=quantised)

    def traced(self) -> TracedLayer:
        """Return the layer with its adapters."""
        return replace(
            self.layer,
            tensors=tuple(self.tensors),
            parameters=tuple(self.parameters),
            operators=tuple(self.operators),
        )

    def _targets(
        self, operator: TracedOperator, training: TrainingSpec
    ) -> dict[str, TargetPart]:
        """Return the targets that a product is or has, by their names."""
        if operator.operation != "linear":
            return {}
        name = operator.name.rpartition(".")[2]
        targets = {}
        for target in training.adapter_targets:
            part = TARGETS.get(target, TargetPart(target))
            if target == name:
                part = TargetPart(name)
            if part.operator == name and self._has(operator, part):
                targets[target] = part
        if targets and operator.sharding.startswith("expert"):
            raise InputError(
                "is a product of routed experts, whose adapters are not modelled",
                where="training.adapter_targets",
                got=next(iter(targets)),
                expected='products of attention, e.g. ["linear_qkv", "linear_proj"]',
            )
        self.found |= set(targets)
        return targets

    def _has(self, operator: TracedOperator, part: TargetPart) -> bool:
        """Tell whether a product has so many parts."""
        if part.parts == _QUERY_KEY_VALUE:
            return len(operator.outputs) == part.parts
        return part.parts == 1 or self._is_gated(operator)

    def _is_gated(self, operator: TracedOperator) -> bool:
        """Tell whether what a product makes is a gate and what it gates."""
        if len(operator.outputs) != 1:
            return False
        made = operator.outputs[0]
        size = self.layer.tensors[made].elements
        return any(
            other.operation == "activation"
            and other.inputs
            and 2 * self.layer.tensors[other.inputs[0]].elements == size
            and made < other.inputs[0] <= made + 2
            for other in self.layer.operators
        )

    def _add(
        self,
        operator: TracedOperator,
        targets: Mapping[str, TargetPart],
        *,
        quantised: bool,
    ) -> None:
        """Add an operator with what stands beside it."""
        if operator.operation == "linear":
            if quantised:
                self.operators.append(
                    operator._replace(
                        name=operator.name + _DEQUANTIZE,
                        operation="dequantize",
                        inputs=(),
                        outputs=(),
                        saved=(),
                        dims=(0, *operator.dims[1:]),
                        frozen=True,
                    )
                )
            operator = operator._replace(saved=(), frozen=True)
        elif operator.operation == "embedding":
            operator = operator._replace(frozen=True)
        if not targets:
            self.operators.append(operator)
            return
        outputs = self._adapted_outputs(operator, targets)
        kept = {number: self._tensor(self.tensors[number]) for number in outputs}
        self.operators.append(
            operator._replace(
                outputs=tuple(kept.get(number, number) for number in operator.outputs)
            )
        )
        deltas = [
            self._add_factors(operator, target, part)
            for target, part in targets.items()
        ]
        self.operators.append(
            TracedOperator(
                name=f"{operator.name}.lora_sum",
                operation="adapter sum",
                sharding="",
                inputs=(*kept.values(), *(n for delta in deltas for n in delta)),
                outputs=tuple(outputs),
                saved=(),
                dims=(0, 0, 0, 0),
                core=False,
            )
        )

    def _adapted_outputs(
        self, operator: TracedOperator, targets: Mapping[str, TargetPart]
    ) -> list[int]:
        """Return the tensors of a product that adapters add to."""
        places = {
            part.place for part in targets.values() if part.parts == _QUERY_KEY_VALUE
        }
        if len(places) < len(targets):
            return list(operator.outputs)
        return [operator.outputs[place] for place in sorted(places)]

    def _add_factors(
        self, operator: TracedOperator, target: str, part: TargetPart
    ) -> tuple[int, ...]:
        """Add ``A``, ``B`` and the scale of one adapter; return what it results in."""
        m, n, k, _ = operator.dims
        made = [self.tensors[number] for number in operator.outputs]
        if part.parts == _QUERY_KEY_VALUE:
            made = [made[part.place]]
            n = made[0].elements // m
        elif part.parts > 1:
            made = [t._replace(elements=t.elements // part.parts) for t in made]
            n //= part.parts
        kind = "row" if operator.sharding == "row" else "column"
        name = operator.name
        if part.parts > 1:
            name = f"{name}.{target}"
        middle = self._tensor(TracedTensor(m * self.rank, "whole", "model"))
        wide = tuple(self._tensor(tensor) for tensor in made)
        scaled = tuple(self._tensor(tensor) for tensor in made)
        for suffix, size in (("a", self.rank * k), ("b", self.rank * n)):
            self.parameters.append(
                TracedParameter(f"{name}.lora_{suffix}.weight", size, "tensor")
            )
        plain = TracedOperator(
            name=f"{name}.lora_a",
            operation="linear",
            sharding=f"adapter {kind} in",
            inputs=operator.inputs,
            outputs=(middle,),
            saved=operator.inputs,
            dims=(m, self.rank, k, 1),
            core=False,
        )
        self.operators += (
            plain._replace(
                name=f"{name}.lora_input",
                operation="adapter input",
                sharding="",
                outputs=(),
                saved=(),
                dims=(0, 0, 0, 0),
            ),
            plain,
            plain._replace(
                name=f"{name}.lora_b",
                sharding=f"adapter {kind} out",
                inputs=(middle,),
                outputs=wide,
                saved=(middle,),
                dims=(m, n, self.rank, 1),
            ),
            plain._replace(
                name=f"{name}.lora_scale",
                operation="multiply",
                sharding="",
                inputs=wide,
                outputs=scaled,
                saved=(),
                dims=(0, 0, 0, 0),
            ),
        )
        return scaled

    def _tensor(self, tensor: TracedTensor) -> int:
        """Add a tensor, and return its number."""
        self.tensors.append(tensor)
        return len(self.tensors) - 1


_QUERY_KEY_VALUE = 3


def _no_target(graph: LayerGraph, target: str) -> InputError:
    names = sorted(
        {
            operator.name.rpartition(".")[2]
            for kind, layer in enumerate(graph.layers)
            if graph.names[graph.kinds.index(kind)].startswith("block")
            for operator in layer.operators
            if operator.operation == "linear"
        }
    )
    return InputError(
        "is no product of the model's blocks",
        where="training.adapter_targets",
        got=target,
        expected=f"some of {', '.join(names)}, or Hugging Face's names of them",
    )
