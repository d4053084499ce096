"""A traced model: the chain of its layers, and what each of them does, as plain data.

Sizes are those of one sequence on one device that works alone. Every tensor says how
it is laid out over devices, so that `estimators.layers.sharding` can tell the share of
one device without looking at the model again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from estimators.models.spec import TransformerSpec
from estimators.tracing.recurrences import RECURRENCES

Fact = TypeVar("Fact")

LAYOUTS: Mapping[str, str] = MappingProxyType(
    {
        "whole": "every rank of the tensor group holds all of it",
        "conditioning": "a row of each sequence, on every rank of tensor and context",
        "sequence": "split along the sequence if sequence_parallel, else whole",
        "tensor": "split over the tensor group",
        "groups": "split over the tensor group as far as there are query groups",
        "experts": "tokens of an expert group, whole over the expert-tensor group",
        "expert tensor": "the same, split over the expert-tensor group",
        "vocab": "split over the tensor group along the padded vocabulary",
        "expert": "split over the expert and the tensor group (parameters only)",
    }
)
"""How a tensor is laid out -> what that means."""


INDEX_SCORES = "index scores"
"""Operation that scores all earlier tokens for each query, to choose keys of them."""


class TracedTensor(NamedTuple):
    """One tensor of a layer; views of it count as itself."""

    elements: int
    """Elements of the tensor for one sequence."""

    layout: str
    """How the tensor is laid out over ranks, a key of `LAYOUTS`."""

    precision: str
    """Number format of the tensor: ``"model"`` (that of the training job), ``"fp32"``
    or ``"mask"`` (one byte)."""


class TracedParameter(NamedTuple):
    """One parameter of a layer."""

    name: str
    """Name of the parameter in its layer."""
    elements: int
    """Elements of the whole parameter."""
    layout: str
    """How the parameter is laid out over ranks, a key of `LAYOUTS`."""
    frozen: bool = False
    """Whether it is no part of the training (`estimators.tracing.trained_tower`);
    weights beside adapters are told apart by their names."""


class TracedOperator(NamedTuple):
    """One operator of a layer. Tensors are given by number."""

    name: str
    """Path of the module or function in the layer."""

    operation: str
    """Kind of operator: ``"linear"`` (product with a weight), ``"matmul"`` (of two
    activations), ``"attention"`` (fused), a key of
    `estimators.tracing.recurrences.RECURRENCES` (fused), or a name of an operator bound
    by memory: ``"norm"``, ``"dropout"``, ``"dispatch"`` and so on."""

    sharding: str
    """How tensor-parallel ranks split the operator: ``"column"``, ``"qkv"``,
    ``"vocab"`` (output features split), ``"row"`` (input features split), ``"heads"``,
    ``"per head"`` (of rows by a weight of each head), ``"copied"`` (all of it on every
    rank), ``"replicated"`` (the same where all ranks have its rows already),
    ``"conditioning"`` (of a row of each sequence), ``"expert column"``, ``"expert
    row"``, ``"adapter .. in"`` and ``".. out"`` (the factors of an adapter beside a
    column- or row-parallel product), or ``""`` where only the layout of the tensors
    matters."""

    inputs: tuple[int, ...]
    """Numbers of the tensors read."""

    outputs: tuple[int, ...]
    """Numbers of the tensors written."""

    saved: tuple[int, ...]
    """Numbers of the tensors kept for the backward pass; those that are neither read
    nor written are written for this purpose."""

    dims: tuple[int, int, int, int]
    """Sizes of the operator: rows m, columns n, inner size k and independent products
    of a product; for fused attention queries, keys, head size and heads; for a
    recurrence tokens, the widths of a value and of a key, and heads; else zeros."""

    core: bool
    """Whether the operator belongs to the attention core, which selective recompute
    repeats."""

    sees_all: bool = False
    """Whether every query of fused attention sees every key, though the model is
    causal elsewhere: in an encoder, or from a decoder to it."""
    window: int = 0
    """Keys that a query of fused attention sees, those of its own token included; 0
    for all of them. Keys that index scores choose."""
    summaries: int = 0
    """Keys of fused attention that stand for tokens before, beside those of tokens."""
    chosen: int = 0
    """Summaries that a query sees; 0 for all of them."""
    frozen: bool = False
    """Whether the operator's weight is not trained (`estimators.layers.adapters`)."""
    forward_only: bool = False
    """Whether no gradient goes through it: nothing before it is trained either."""

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key, causal masks not subtracted.

        A window of ``w`` keys leaves ``s w - w (w - 1) / 2`` pairs of the ``s (s + 1) /
        2`` of a causal mask. As the square is twice as many without the diagonal, those
        of a window count twice, without the diagonal: a band on both sides of it, which
        is the square where ``w = s``.
        """
        m, n, _, _ = self.dims
        w = 0 if self.operation == INDEX_SCORES else self.window
        if m != n and w:  # of summaries, whose number grows with the tokens
            return _chosen_pairs(m, n, w)
        beside = _chosen_pairs(m, self.summaries, self.chosen or self.summaries)
        return beside + (2 * n * w - w * (w - 1) - n if w else m * n)

    @property
    def model_flops(self) -> int:
        """Forward products of one sequence, causal masks not subtracted [FLOP].

        The convention of Narayanan et al., SC'21, appendix, and of Megatron-LM. What a
        sliding window hides is subtracted. A recurrence has the products of its chunks.
        """
        tokens, value, k, batch = self.dims
        if recurrence := RECURRENCES.get(self.operation):
            flops: float = recurrence.flops(recurrence.forward, tokens, k, value)
            return round(batch * flops)
        return (4 if self.operation == "attention" else 2) * self.pairs * k * batch


def _chosen_pairs(queries: int, summaries: int, chosen: int) -> int:
    """Return pairs of queries and summaries, twice as many as a causal mask leaves."""
    if chosen >= summaries:
        return queries * summaries
    return 2 * queries * chosen - queries * chosen**2 // summaries


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedLayer:
    """One distinct layer."""

    tensors: tuple[TracedTensor, ...]
    """Tensors of the layer's forward pass."""

    parameters: tuple[TracedParameter, ...]
    """Parameters of the layer, a tied weight included."""

    operators: tuple[TracedOperator, ...]
    """Operators in the order of execution."""

    hidden_input: int | None
    """Number of the tensor of hidden states that enters; None for the first layer."""

    memory_input: int | None = None
    """Number of the tensor that enters beside hidden states and is passed on as it is,
    what an encoder made for all blocks of a decoder; None without one."""

    passing_input: int | None = None
    """Number of a tensor that only blocks behind it read, and that is sent to it for
    them; None without one."""

    _facts: dict[object, Any] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """What `once` keeps."""

    def once(self, key: object, make: Callable[[], Fact]) -> Fact:
        """Return what is made of the layer alone, made once for each key."""
        if key not in self._facts:
            self._facts[key] = make()
        fact: Fact = self._facts[key]
        return fact

    @property
    def entering(self) -> tuple[int, ...]:
        """Return the numbers of what it is given, and keeps to run again."""
        both = (self.hidden_input, self.memory_input)
        return tuple(number for number in both if number is not None)

    @property
    def sent(self) -> tuple[int, ...]:
        """Return the numbers of what the layer before sends."""
        passing = () if self.passing_input is None else (self.passing_input,)
        return (*self.entering, *passing)

    @property
    def has_experts(self) -> bool:
        """Whether any of it depends on how experts are spread."""
        return self.once(
            "experts", lambda: any(map(self.is_of_experts, self.operators))
        )

    def is_of_experts(self, operator: TracedOperator) -> bool:
        """Tell whether one of its operators depends on how experts are spread."""
        if operator.sharding.startswith("expert"):
            return True
        touched = (*operator.inputs, *operator.outputs, *operator.saved)
        return operator.operation in {"dispatch", "combine"} or any(
            self.tensors[number].layout.startswith("expert") for number in touched
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """A model as a chain of layers, repeated ones stored once."""

    spec: TransformerSpec
    """Architecture that was traced."""

    names: tuple[str, ...]
    """Names of the layers of the chain in the order of execution: ``"embedding"``,
    ``"block 0"`` .., ``"final norm"``, ``"mtp 0"`` .. where tokens further ahead are
    predicted, ``"head"``; a BERT has no final norm."""

    kinds: tuple[int, ...]
    """Place of each layer of the chain in `layers`."""

    layers: tuple[TracedLayer, ...]
    """Distinct layers of the chain."""

    base: "LayerGraph | None" = None
    """The model before it got adapters; None where it has none."""

    @classmethod
    def chain(
        cls, spec: TransformerSpec, layers: Mapping[str, TracedLayer]
    ) -> "LayerGraph":
        """Line the layers up: each kind of block where the architecture has it."""
        blocks = spec.block_kinds
        kind_of = {name: kind for kind, name in enumerate(layers)}
        name_of = {kind: name for name, kind in blocks.items()}
        places = [kind_of[name_of[kind]] for kind in spec.block_pattern]
        if not places:
            places = [kind_of["block"]] * spec.num_layers
        names: list[str] = []
        kinds: list[int] = []
        for name, kind in kind_of.items():
            if name not in blocks:
                names.append(name)
                kinds.append(kind)
            elif name == next(iter(blocks)):
                names += [f"block {i}" for i in range(spec.num_layers)]
                kinds += places
        return cls(
            spec=spec,
            names=tuple(names),
            kinds=tuple(kinds),
            layers=tuple(layers.values()),
        )

    @property
    def tied_parameters(self) -> int:
        """Parameters of the embedding that the other end of the chain has, too.

        The head's weight may be the same, and multi-token prediction embeds again.
        """
        spec = self.spec
        shared = spec.tie_word_embeddings or spec.mtp_num_layers
        return spec.vocab_size * spec.hidden_size if shared else 0

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model, shared ones counted once, unpadded."""
        by_kind = [sum(p.elements for p in layer.parameters) for layer in self.layers]
        shared = self.tied_parameters + self.spec.copied_parameters
        return sum(by_kind[kind] for kind in self.kinds) - shared
