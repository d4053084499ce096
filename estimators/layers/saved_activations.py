"""Which activations a layer keeps for its backward pass, and in how many bytes.

Autograd keeps what each operator's derivative needs, every tensor once [1]_. Frameworks
keep less of it (`Keeping`):

* a fused gated activation computes the result of its nonlinearity again from its
  inputs; where it weighs the results of experts, too, what experts return is not kept
  [2]_;
* products in a narrow format keep their inputs in it alone, transposed where the
  hardware asks for that [3]_. Fused attention keeps its result as it is, and the
  product behind it keeps a narrow copy. Routers and heads stay in the model's format;
* what a fused gated activation reads may be kept in 8 bits, unless it is run again
  [5]_;
* a compiler makes results of norms and activations again where products need them;
* a fused loss keeps the logits as the head made them in place of a softmax in fp32
  [4]_.

References
----------
.. [1] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
   Models", 2022, sections 4 and 5.
.. [2] Megatron Core, ``core/fusions/fused_bias_swiglu.py``: ``SwiGLUFunction`` and
   ``WeightedSwiGLUFunction`` save their inputs.
.. [3] Transformer Engine, ``pytorch/module/linear.py``: ``_Linear.forward`` saves the
   input quantised by columns.
.. [4] FlashAttention, ``losses/cross_entropy.py``: saves logits and one fp32 number per
   row.
.. [5] Megatron Core, ``core/transformer/transformer_config.py``:
   ``activation_func_fp8_input_store``; ``core/transformer/moe/experts.py``: what is
   run again is a checkpoint, whose inputs stay as they are.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from estimators.layers.recompute_modules import ATTENTION_CORE
from estimators.number_formats import NARROW_FORMATS
from estimators.software import Software
from estimators.tracing.graph import TracedLayer, TracedOperator
from estimators.training import TrainingSpec

_NARROW: Mapping[str, float] = MappingProxyType(
    {
        name: known.activation_bytes
        for name, known in NARROW_FORMATS.items()
        if name != "int8"
    }
)
"""Format of products -> bytes of an element that they keep with its part of a scale.
Libraries of products in whole numbers keep what they cast."""


class Keeping(NamedTuple):
    """What a framework keeps less than autograd does."""

    fuses_activation: bool = False
    """Whether gated activations keep their inputs alone."""

    weighs_in_activation: bool = False
    """Whether gated activations weigh the results of experts, too."""

    repeats_elementwise: bool = False
    """Whether results of norms and activations are made again."""

    fuses_loss: bool = False
    """Whether the loss keeps logits as the head made them."""

    input_bytes: float = 0.0
    """Bytes of an element of what products keep; 0 for as it is [byte]."""

    gated_input_bytes: float = 0.0
    """Bytes of an element of what fused gated activations read; 0: as it is [byte]."""

    recompute_modules: tuple[str, ...] = ATTENTION_CORE
    """What ``"selective"`` recompute runs again, keys of `RECOMPUTE_MODULES`."""


EVERYTHING = Keeping()
"""Software that keeps what autograd does."""


def keeping_of(software: Software, training: TrainingSpec) -> Keeping:
    """Return what a job keeps."""
    narrow = _NARROW.get(training.matmul_precision, 0.0)
    stores = software.activation_func_fp8_input_store and not software.compiled
    return Keeping(
        fuses_activation=software.fuses_activation,
        weighs_in_activation=software.weighs_in_activation,
        repeats_elementwise=software.repeats_elementwise,
        fuses_loss=software.fuses_loss,
        input_bytes=narrow if software.keeps_narrow_inputs else 0.0,
        gated_input_bytes=1.0 if stores and software.fuses_activation else 0.0,
        recompute_modules=software.recompute_modules,
    )


class Kept(NamedTuple):
    """What is kept of the tensors of a layer."""

    layer: TracedLayer
    """Layer as it was traced."""
    sizes: tuple[float, ...]
    """Size of each tensor on a device, as it is [byte]."""
    element_bytes: int
    """Bytes of an element of activations [byte]."""
    keeping: Keeping
    """What the software keeps instead."""

    def size(
        self,
        operators: Sequence[TracedOperator],
        excluded: frozenset[int] = frozenset(),
        discarded: frozenset[int] = frozenset(),
    ) -> float:
        """Return what some operators keep, and other tensors as they are [byte]."""
        return sum(self.tensors(operators, excluded, discarded).values())

    def tensors(
        self,
        operators: Sequence[TracedOperator],
        excluded: frozenset[int] = frozenset(),
        discarded: frozenset[int] = frozenset(),
    ) -> dict[int, float]:
        """Return number and size of each tensor that `size` adds up [byte].

        What is discarded is not kept, whoever reads it.
        """
        narrow = self._narrow()
        as_it_is = excluded | self._by(op for op in operators if not is_narrow(op))
        stored = self._gated() - excluded if self.keeping.gated_input_bytes else ()
        return {
            number: self.sizes[number]
            * self.keeping.gated_input_bytes
            / self.element_bytes
            if number in stored
            else self._size(number, narrow, as_it_is)
            for number in sorted((excluded | self._by(operators)) - discarded)
        }

    def _by(self, operators: Iterable[TracedOperator]) -> frozenset[int]:
        """Return the tensors that some operators keep."""
        return frozenset(n for op in operators for n in self._saved(op))

    def _saved(self, operator: TracedOperator) -> tuple[int, ...]:
        if operator.operation == "combine" and self.keeping.weighs_in_activation:
            return operator.saved[1:]
        again: frozenset[int] = frozenset()
        if operator.operation == "multiply" and self.keeping.fuses_activation:
            again = self._made_by("activation")
        elif operator.operation == "linear" and self.keeping.repeats_elementwise:
            again = self._made_by("norm", "activation", "multiply")
        return tuple(number for number in operator.saved if number not in again)

    def _made_by(self, *operations: str) -> frozenset[int]:
        """Return what operators of some kinds result in."""
        return frozenset(
            number
            for operator in self.layer.operators
            if operator.operation in operations
            for number in operator.outputs
        )

    def _narrow(self) -> frozenset[int]:
        """Return what products in a narrow format read."""
        if not self.keeping.input_bytes:
            return frozenset()
        return frozenset(
            n for op in self.layer.operators if is_narrow(op) for n in op.saved
        )

    def _size(
        self, number: int, narrow: frozenset[int], as_it_is: frozenset[int]
    ) -> float:
        size = self.sizes[number]
        if number in narrow:
            part = self.keeping.input_bytes / self.element_bytes
            return size * (part + (number in as_it_is))
        if self.keeping.fuses_loss and number in self._softmax():
            return size * self.element_bytes / _FP32_BYTES
        return size

    def _gated(self) -> frozenset[int]:
        """Return what gated activations read, and the products with what they gate."""
        made = self._made_by("activation")
        gates = [
            operator
            for operator in self.layer.operators
            if operator.operation == "multiply" and made.intersection(operator.inputs)
        ]
        read = {number for operator in gates for number in operator.inputs}
        activations = [
            operator
            for operator in self.layer.operators
            if operator.operation == "activation"
            and read.intersection(operator.outputs)
        ]
        inputs = {n for operator in activations for n in operator.inputs}
        return frozenset(read | inputs) - made

    def _softmax(self) -> frozenset[int]:
        """Return what the loss keeps."""
        return self._by(op for op in self.layer.operators if _is_loss(op))


_FP32_BYTES = 4


def _is_loss(operator: TracedOperator) -> bool:
    return operator.operation == "cross entropy"


def is_narrow(operator: TracedOperator) -> bool:
    """Return whether a product may run in a narrow format."""
    return operator.operation == "linear" and operator.sharding not in {"", "vocab"}
