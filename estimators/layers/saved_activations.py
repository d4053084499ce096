"""What a layer keeps for its backward pass, and what it computes again.

The attention core, a dense feed-forward layer, a layer of experts and what its shared
experts do are checkpointed as a whole: what they read is kept, and their results where
somebody reads them; a layer of experts sends its tokens again. The others discard their
results once those have been read, and make them again when the backward pass asks for
them: what such a module reads is kept, what it makes is not, whoever reads it.

Which activations a layer keeps for its backward pass, and in how many bytes.

Autograd keeps what each operator's derivative needs, every tensor once [3]_. Frameworks
keep less of it (`Keeping`):

* a fused gated activation computes the result of its nonlinearity again from its
  inputs; where it weighs the results of experts, too, what experts return is not kept
  [4]_;
* products in a narrow format keep their inputs in it alone, transposed where the
  hardware asks for that [5]_. Fused attention keeps its result as it is, and the
  product behind it keeps a narrow copy. Routers and heads stay in the model's format;
* what a fused gated activation reads may be kept in 8 bits, unless it is run again
  [7]_;
* a compiler makes results of norms and activations again where products need them;
* a fused loss keeps the logits as the head made them in place of a softmax in fp32
  [6]_.

Matrices of a model's blocks: what is kept in narrow formats, and what Muon updates.

These are the weights of products, but for that of the head; embeddings, norms and
biases are what is left.

Muon brings each matrix's momentum near to an orthogonal one by five Newton-Schulz
iterations in 16 bits [8]_. Each is, with ``A`` the shorter and ``B`` the longer side of
the matrix ``X``::

    S = X X'             2 A^2 B FLOP
    T = b S + c S S      2 A^3
    X = a X + T X        2 A^2 B

The gate of a feed-forward layer and what it gates are one matrix, and so are queries,
keys and values. Whole matrices are worked on, by the ranks that share their parts: each
its part of the work (Megatron's ``muon_tp_mode`` "distributed", and its layer-wise
optimizer over data-parallel ranks [9]_). What ranks exchange for that is left out.

References
----------
.. [1] Megatron Core, ``core/transformer/transformer_config.py``:
   ``recompute_modules``; ``core/tensor_parallel/random.py``:
   ``CheckpointWithoutOutput``; ``core/transformer/transformer_layer.py``:
   ``recompute_mlp`` where there are no experts; ``core/transformer/moe/moe_layer.py``:
   ``moe_layer_recompute`` is of routing, dispatch, experts and combine.
.. [2] DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.3: RMSNorm and
   up-projections of latent attention are run again.
.. [3] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
   Models", 2022, sections 4 and 5.
.. [4] Megatron Core, ``core/fusions/fused_bias_swiglu.py``: ``SwiGLUFunction`` and
   ``WeightedSwiGLUFunction`` save their inputs.
.. [5] Transformer Engine, ``pytorch/module/linear.py``: ``_Linear.forward`` saves the
   input quantised by columns.
.. [6] FlashAttention, ``losses/cross_entropy.py``: saves logits and one fp32 number per
   row.
.. [7] Megatron Core, ``core/transformer/transformer_config.py``:
   ``activation_func_fp8_input_store``; ``core/transformer/moe/experts.py``: what is
   run again is a checkpoint, whose inputs stay as they are.
.. [8] Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
   section "Runtime analysis": at most 6 A^2 B FLOP an iteration.
.. [9] Liu et al., "Muon is Scalable for LLM Training", 2025, section 2.3; Megatron
   Core, ``core/optimizer/layer_wise_optimizer.py``.
.. [10] Liang et al., "TorchTitan", ICLR 2025, section 2.3; torchtitan's
   ``_apply_ac_to_transformer_block``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from estimators.software import Software
from estimators.tracing.graph import LayerGraph, TracedLayer, TracedOperator
from estimators.training import NARROW_FORMATS, TrainingSpec


class RecomputeModule(NamedTuple):
    """A part of a block that can be run again by itself."""

    holds: Callable[[TracedOperator], bool]
    """Whether an operator belongs to it."""

    discards: bool
    """Whether its results are not kept either."""

    with_experts: bool | None = None
    """Whether only layers with experts have it, or only those without; None: all."""


_BLOCK_NORMS = frozenset({"input_norm", "pre_mlp_norm"})
_MLA_UP = frozenset(
    {
        f"self_attention.{name}"
        for name in (
            "q_norm",
            "kv_norm",
            "linear_q_up_proj",
            "linear_kv_up_proj",
            "heads",
        )
    }
)
_ACTIVATIONS = frozenset({"activation", "multiply"})


def _name(operator: TracedOperator) -> str:
    """Return an operator's name, in the second of two blocks as in the first."""
    return operator.name.removeprefix("second.")


def _in_mlp(operator: TracedOperator) -> bool:
    return operator.name.startswith("mlp.")


RECOMPUTE_MODULES: Mapping[str, RecomputeModule] = MappingProxyType(
    {
        "core_attn": RecomputeModule(lambda op: op.core, discards=False),
        "layernorm": RecomputeModule(
            lambda op: _name(op) in _BLOCK_NORMS, discards=True
        ),
        "mla_up_proj": RecomputeModule(lambda op: _name(op) in _MLA_UP, discards=True),
        "moe_act": RecomputeModule(
            lambda op: (
                op.operation in _ACTIVATIONS
                and op.name.startswith("mlp.")
                and "shared_experts" not in op.name
            ),
            discards=True,
            with_experts=True,
        ),
        "mlp": RecomputeModule(_in_mlp, discards=False, with_experts=False),
        "shared_experts": RecomputeModule(
            lambda op: op.name.startswith("mlp.shared_experts."),
            discards=False,
            with_experts=True,
        ),
        "moe": RecomputeModule(_in_mlp, discards=False, with_experts=True),
    }
)
"""Megatron's name -> module: the core of attention, the norms in front of a block's
branches, the norms, up-projections and rotary heads of multi-head latent attention, the
activation of routed experts, dense feed-forward layers, what all tokens go to of a
layer of experts, and that layer from its router to its sum [1]_."""

ATTENTION_CORE = ("core_attn",)
"""What Megatron runs again unless it is told otherwise."""


def modules_of(layer: TracedLayer, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of some modules that a layer has operators of."""

    def some() -> tuple[str, ...]:
        return tuple(
            name
            for name in modules
            for module in _present(layer, (name,))
            if any(map(module.holds, layer.operators))
        )

    return layer.once(("modules", modules), some)


def runs_again(layer: TracedLayer, modules: tuple[str, ...]) -> tuple[bool, ...]:
    """Return whether each operator of a layer belongs to one of some modules."""

    def repeats() -> tuple[bool, ...]:
        chosen = _present(layer, modules)
        return tuple(
            any(module.holds(op) for module in chosen) for op in layer.operators
        )

    return layer.once(("runs again", modules), repeats)


def discarded_tensors(layer: TracedLayer, modules: tuple[str, ...]) -> frozenset[int]:
    """Return the results of a layer's operators that some modules do not keep."""
    discarding = [module for module in _present(layer, modules) if module.discards]
    return frozenset(
        number
        for operator in layer.operators
        if any(module.holds(operator) for module in discarding)
        for number in operator.outputs
    )


def _present(layer: TracedLayer, modules: tuple[str, ...]) -> list[RecomputeModule]:
    """Return the modules that a layer has."""
    has_experts = any(op.operation == "dispatch" for op in layer.operators)
    known = [RECOMPUTE_MODULES[name] for name in modules]
    return [module for module in known if module.with_experts in {None, has_experts}]


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


def keeping_of(
    software: Software, training: TrainingSpec, modules: tuple[str, ...] = ()
) -> Keeping:
    """Return what a job keeps.

    Parameters
    ----------
    software, training
        The job.
    modules
        What selective recompute runs again, as of `Keeping`; none: as the software has
        it.
    """
    narrow = _NARROW.get(training.matmul_precision, 0.0)
    stores = software.activation_func_fp8_input_store and not software.compiled
    return Keeping(
        fuses_activation=software.fuses_activation,
        weighs_in_activation=software.weighs_in_activation,
        repeats_elementwise=software.repeats_elementwise,
        fuses_loss=software.fuses_loss,
        input_bytes=narrow if software.keeps_narrow_inputs else 0.0,
        gated_input_bytes=1.0 if stores and software.fuses_activation else 0.0,
        recompute_modules=modules or software.recompute_modules,
    )


class Kept(NamedTuple):
    """What is kept of the tensors of a layer."""

    layer: TracedLayer
    """Layer as it was traced."""
    element_bytes: int
    """Bytes of an element of activations [byte]."""
    keeping: Keeping
    """What the software keeps instead."""

    def parts(
        self,
        operators: Sequence[TracedOperator],
        excluded: frozenset[int] = frozenset(),
        discarded: frozenset[int] = frozenset(),
    ) -> dict[int, float]:
        """Return number of each tensor that some operators keep, and what part of it.

        Other tensors are kept as they are. What is discarded is not kept, whoever reads
        it.
        """
        narrow = self._narrow()
        as_it_is = excluded | self._by(op for op in operators if not is_narrow(op))
        stored = self._gated() - excluded if self.keeping.gated_input_bytes else ()
        return {
            number: self.keeping.gated_input_bytes / self.element_bytes
            if number in stored
            else self._part(number, narrow, as_it_is)
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

    def _part(
        self, number: int, narrow: frozenset[int], as_it_is: frozenset[int]
    ) -> float:
        if number in narrow:
            part = self.keeping.input_bytes / self.element_bytes
            return part + (number in as_it_is)
        if self.keeping.fuses_loss and number in self._softmax():
            return self.element_bytes / _FP32_BYTES
        return 1.0

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


def kept_parts_of(kept: Kept, mode: str) -> dict[int, float]:
    """Return number of each tensor that is kept in a recompute mode, and its part."""
    layer, modules = kept.layer, kept.keeping.recompute_modules
    operators = layer.operators
    if mode == "none":
        return kept.parts(operators)
    again = runs_again(layer, modules)
    outside = [op for op, inside in zip(operators, again, strict=True) if not inside]
    inside = [op for op, inside in zip(operators, again, strict=True) if inside]
    read_inside = {n for op in inside for n in op.inputs}
    makers = _makers(layer)
    made_inside = {number for number, maker in makers.items() if again[maker]}
    return kept.parts(
        outside,
        frozenset(read_inside - made_inside),
        discarded_tensors(layer, modules),
    )


def _makers(layer: TracedLayer) -> dict[int, int]:
    """Return which operator makes each tensor that a layer is not given.

    Parts of a result, as a gate and what it gates, are tensors that none writes: they
    have the numbers behind it.
    """
    written = {
        number: place
        for place, operator in enumerate(layer.operators)
        for number in written_tensors(operator)
        if number not in operator.inputs
    }
    makers: dict[int, int] = {}
    latest = None
    for number in range(len(layer.tensors)):
        latest = written.get(number, latest)
        if latest is not None and number not in layer.entering:
            makers[number] = latest
    return makers


def written_tensors(operator: TracedOperator) -> tuple[int, ...]:
    """Return results, and what is written only to be kept."""
    known = {*operator.inputs, *operator.outputs}
    return (*operator.outputs, *(n for n in operator.saved if n not in known))


_FP32_BYTES = 4


def _is_loss(operator: TracedOperator) -> bool:
    return operator.operation == "cross entropy"


def is_narrow(operator: TracedOperator) -> bool:
    """Return whether a product may run in a narrow format."""
    if operator.operation != "linear" or operator.sharding.startswith("adapter"):
        return False
    return operator.sharding not in {"", "vocab", "conditioning"}


def kept_parts(layer: TracedLayer, *, gated: bool) -> list[tuple[bool, ...]]:
    """Return which parts of each operator's results are kept.

    Every second product with a weight, the first included, and fused attention [10]_.
    The projections of queries, keys and values count one by one, and so do those of the
    gate and of what it gates, which are one operator here.
    """
    parts: list[tuple[bool, ...]] = []
    count = 0
    for operator in layer.operators:
        size = 0
        if operator.operation == "linear":
            doubled = gated and operator.sharding in {"column", "expert column"}
            size = 2 if doubled else len(operator.outputs)
        kept = tuple((count + place) % 2 == 0 for place in range(size))
        parts.append((True,) if operator.operation == "attention" else kept)
        count += size
    return parts


def num_read(layer: TracedLayer) -> int:
    """Return how many operators there are up to the last that a derivative reads."""
    read = {number for op in layer.operators for number in op.saved}
    return max(
        (
            place + 1
            for place, operator in enumerate(layer.operators)
            if read.intersection(operator.outputs)
        ),
        default=0,
    )


def read_again(
    layer: TracedLayer, kept: list[tuple[bool, ...]]
) -> list[tuple[bool, ...]]:
    """Return `kept_parts` without products at the end that no derivative reads."""
    count = num_read(layer)
    return [
        parts if place < count else (False,) * len(parts)
        for place, parts in enumerate(kept)
    ]


ITERATIONS = 5
"""Newton-Schulz iterations of a step [8]_."""


class BlockMatrices(NamedTuple):
    """What part matrices of blocks have in a model, and what Muon costs."""

    share: float
    """Part of the model's parameters."""

    orthogonalisation_flops: float
    """FLOPs of Muon's iterations for each of the model's parameters [FLOP]."""


def block_matrices(graph: LayerGraph) -> BlockMatrices:
    """Return what matrices there are in a traced model."""
    matrices = flops = 0.0
    for kind in graph.kinds:
        for operator in graph.layers[kind].operators:
            if operator.operation == "linear" and operator.sharding != "vocab":
                # A traced product of experts is that of one with the rows of all.
                is_expert = operator.sharding.startswith("expert")
                count = graph.spec.num_moe_experts if is_expert else 1
                _, n, k, _ = operator.dims
                matrices += float(count) * n * k
                flops += count * _orthogonalisation(float(n), float(k))
    return BlockMatrices(matrices / graph.num_parameters, flops / graph.num_parameters)


def _orthogonalisation(n: float, k: float) -> float:
    """Return the work of one step on a matrix [FLOP]."""
    short, long = min(n, k), max(n, k)
    return ITERATIONS * (4.0 * short**2 * long + 2.0 * short**3)
