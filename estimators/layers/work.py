"""What layers cost one device: a layer's numbers, and the planner's tables of a chain.

Letters: ``s`` sequence length, ``b`` micro-batch size, ``h`` hidden size, ``tp``,
``cp``, ``ep`` parallel degrees. Everything is for one microbatch.

The tables that the planner reads: costs of a chain of layers on one device.

Letters: ``L`` layers of the chain, from the embedding to the head and loss; ``tp``,
``cp``, ``ep`` parallel degrees; ``b`` micro-batch size. Everything is for one
microbatch on one device of the group; collectives are kept as bytes, since their
time depends on where the group is placed.

Model FLOPs are what a model needs, however it is run: matrix products only, two FLOP
for a multiply-add, a backward pass of twice the forward pass. Of routed experts those
that a token uses count. Recomputed work is not model FLOPs. Attention is counted in two
ways. The common one takes the full square of attention scores even if the mask is
causal, ``12 s^2 h`` FLOP for each layer and sequence, forward and backward: that of
Narayanan et al. [1]_, Korthikanti et al. [2]_ and PaLM's model FLOPs utilisation [3]_.
The other leaves out what a causal mask hides, half of the square, as FlashAttention's
figures do [4]_. Models without a causal mask have one number. What a sliding window
hides counts in neither (`TracedOperator.pairs`).

References
----------
.. [1] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
   Using Megatron-LM", SC'21, section 5.1 and appendix, equation 3.
.. [2] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
   Models", MLSys 2023, appendix A.
.. [3] Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022,
   appendix B.
.. [4] Dao, "FlashAttention-2", 2023, section 4.1: divided by 2 with a causal mask.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.grouping import PLAIN_GROUPING, Grouping
from estimators.layers.documents import worked_flops
from estimators.tracing.graph import INDEX_SCORES, LayerGraph, TracedOperator
from topologies.arrays import FloatArray, IntArray


class Degrees(NamedTuple):
    """What the costs of a layer on one device depend on."""

    tp: int = 1
    """Tensor-parallel size."""
    cp: int = 1
    """Context-parallel size."""
    ep: int = 1
    """Expert-parallel size."""
    micro_batch_size: int = 1
    """Sequences of a micro-batch."""
    sequence_parallel: bool = False
    """Whether tensor-parallel ranks split what they do not share along the sequence."""
    grouping: Grouping = PLAIN_GROUPING
    """How context-parallel ranks share attention, and tensor-parallel ones experts."""
    recompute_modules: tuple[str, ...] = ()
    """What ``"selective"`` recompute runs again, keys of `estimators.layers.
    saved_activations.RECOMPUTE_MODULES`; none: as the software has it."""

    @property
    def etp(self) -> int:
        """Expert-tensor-parallel size."""
        return self.grouping.etp or self.tp

    @property
    def spreads_experts(self) -> bool:
        """Whether experts have other replicas than the rest of a layer."""
        return self.ep > 1 or self.grouping.is_folded

    @property
    def dense(self) -> "Degrees":
        """The same but for what experts alone depend on."""
        kept = Grouping(cp_comm_type=self.grouping.cp_comm_type, a2a=self.grouping.a2a)
        return self._replace(ep=1, grouping=kept)

    def group_size(self, group: str, operation: str) -> int:
        """Return the ranks of a group that does a `CollectiveWork`."""
        if group != "context":
            sizes = {"tensor": self.tp, "expert": self.ep, "expert tensor": self.etp}
            return sizes[group]
        if operation == "send_recv":
            return self.grouping.ring(self.cp)
        if operation == "all_to_all":
            return self.grouping.exchanging(self.cp)
        return self.cp


class OperatorWork(NamedTuple):
    """One operator on one device, forward and backward."""

    name: str
    """Path of the module or function in the model."""

    kind: str
    """``"matmul"`` (dense matrix products), ``"attention"`` (a fused attention
    kernel), ``"recurrence"`` (the kernels of a linear recurrence) or ``"memory"``
    (everything bound by memory traffic)."""

    m: float
    """Rows of the product on this device; queries of fused attention that its keys pass
    by; tokens of a sequence of a recurrence; 0 for what is bound by memory."""

    n: float
    """Columns of the product on this device; keys that a query of fused attention sees
    in one kernel, causal masks not subtracted; width of a value of a recurrence; 0 for
    what is bound by memory."""

    k: float
    """Inner dimension on this device; head size of fused attention; width of a key of a
    recurrence; 0 for what is bound by memory."""

    batch: float
    """Independent products of that shape, e.g. heads or experts; heads of all sequences
    of fused attention or of a recurrence; 0 for what is bound by memory."""

    forward_flops: float
    """2 m n k batch for a matmul [FLOP]."""

    backward_flops: float
    """4 m n k batch for a matmul with a weight gradient [FLOP]."""

    forward_bytes: float
    """Memory traffic of the forward pass: operands and results once [byte]."""

    backward_bytes: float
    """Memory traffic of the backward pass [byte]."""

    core: bool = False
    """Whether it belongs to the attention core."""

    again: bool = False
    """Whether selective recompute runs it again."""

    weight_flops: float = 0.0
    """Matmul FLOPs of `backward_flops` that are a product's weight gradient [FLOP]."""

    repeated: float = 1.0
    """Part of the forward pass that is run again where every second product and fused
    attention are saved."""

    operation: str = ""
    """Kind of operator, as `TracedOperator.operation` has it: a measured profile looks
    its times up by this name."""

    heads_per_group: float = 1.0
    """Query heads for each head of keys and values of fused attention."""

    variant: str = "all"
    """Which fused attention it is: a query sees ``"all"`` keys up to its own, or a
    ``"window"`` of them, or heads of values are narrower than those of queries, as in
    ``"latent"`` attention."""

    is_frozen: bool = False
    """Whether it is a product with a weight that is not trained."""

    forward_only: bool = False
    """Whether it has no backward pass."""

    is_unread: bool = False
    """Whether it is one of the last operators, which make the layer's result and
    nothing that a derivative reads."""

    @property
    def is_scan(self) -> bool:
        """Whether the backward pass makes the result again, as that of a scan does."""
        return self.operation == "scan"

    @property
    def has_weight(self) -> bool:
        """Whether it is a product with a weight, trained or not."""
        return self.weight_flops > 0 or self.is_frozen

    @property
    def is_grouped(self) -> bool:
        """Whether it is the product of several experts with their weights."""
        return self.has_weight and self.batch > 1


class CollectiveWork(NamedTuple):
    """Collectives of one kind in one layer."""

    operation: str
    """Name of the collective: ``"all_reduce"``, ``"all_gather"``, ``"reduce_scatter"``,
    ``"all_to_all"`` or ``"send_recv"`` (one hop of a ring)."""

    group: str
    """Ranks that take part: ``"tensor"``, ``"context"``, ``"expert"`` or ``"expert
    tensor"``. Of context-parallel ranks those of a ring hop, those that exchange heads
    do all-to-alls, and all of them gather."""

    forward_count: int
    """Collectives in a forward pass."""
    forward_bytes: float
    """Size of the full tensors of all collectives of a forward pass together [byte]."""

    backward_count: int
    """Collectives in a backward pass without recompute."""
    backward_bytes: float
    """Size of the full tensors of all collectives of a backward pass without recompute
    together [byte]."""

    repeated_count: int = 0
    """Collectives of a forward pass that selective recompute repeats."""
    repeated_bytes: float = 0.0
    """Size of the full tensors of all collectives that selective recompute repeats
    together [byte]."""


def sent_in_passes(
    operator: TracedOperator, sent: Iterable[CollectiveWork]
) -> tuple[CollectiveWork, ...]:
    """Return the collectives of an operator in the passes that it has."""
    if not operator.forward_only:
        return tuple(sent)
    return tuple(
        work._replace(backward_count=0, backward_bytes=0.0)
        for work in sent
        if work.forward_count
    )


def summed_collectives(
    sent: Iterable[tuple[Iterable[CollectiveWork], bool]],
) -> tuple[CollectiveWork, ...]:
    """Return collectives of operators, those of one kind and group together.

    ``sent`` has those of each operator, and whether selective recompute runs it again.
    """
    total: dict[tuple[str, str], CollectiveWork] = {}
    for works, runs_again in sent:
        for work in map(_repeated, works) if runs_again else works:
            key = work.operation, work.group
            total[key] = _sum(total[key], work) if key in total else work
    return tuple(total.values())


def _repeated(work: CollectiveWork) -> CollectiveWork:
    """Return the collectives of an operator that is run again."""
    return work._replace(
        repeated_count=work.forward_count, repeated_bytes=work.forward_bytes
    )


def _sum(first: CollectiveWork, second: CollectiveWork) -> CollectiveWork:
    return CollectiveWork(
        first.operation,
        first.group,
        first.forward_count + second.forward_count,
        first.forward_bytes + second.forward_bytes,
        first.backward_count + second.backward_count,
        first.backward_bytes + second.backward_bytes,
        first.repeated_count + second.repeated_count,
        first.repeated_bytes + second.repeated_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """One layer of the chain on one device."""

    operators: tuple[OperatorWork, ...]
    """Operators in the order of execution."""

    collectives: tuple[CollectiveWork, ...]
    """Collectives that the layer waits for; empty where no group has more than one
    member."""

    sent: tuple[tuple[CollectiveWork, ...], ...]
    """Collectives of each operator, of which `collectives` are the sums."""

    kept_sizes: tuple[float, ...]
    """Size of each tensor of the layer where it is kept [byte]."""

    parameters: float
    """Parameters held by this device, tied ones included, frozen ones of a vision tower
    left out."""

    frozen_parameters: float
    """Those left out."""

    expert_parameters: float
    """Parameters of `parameters` that belong to routed experts."""

    largest_weight: float
    """Elements of the layer's largest weight on this device."""

    model_flops: float
    """Forward matmul and attention FLOPs of the whole layer, all devices of its
    tensor, context and expert group together [FLOP]."""

    saved_bytes: Mapping[str, float]
    """Activations kept for the backward pass under recompute ``"none"``,
    ``"selective"`` (attention core recomputed), ``"products"`` (every second product
    and fused attention saved) and ``"full"`` (the input) [byte]."""

    working_bytes: float
    """Memory used only inside the layer's forward or backward pass beside what is saved
    [byte]."""

    gathered_bytes: float
    """Bytes by which inputs of products exceed what is saved of them, once sequence
    parallelism has gathered them [byte]."""

    loss_bytes: float
    """Size of the logits in fp32, where the loss is in this layer [byte]."""

    weight_gradient_bytes: float
    """Memory that the weight gradients of products need, if they are put off until
    after the layer's backward pass: inputs, and gradients of results [byte]."""

    input_bytes: float
    """Size of the hidden states that enter the layer, on this device; 0 for the first
    layer [byte]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InLayerTraffic:
    """Collectives of one kind that layers wait for, forward and backward."""

    operation: str
    """Name of the collective: ``"all_reduce"``, ``"all_gather"``, ``"reduce_scatter"``,
    ``"all_to_all"`` or ``"send_recv"`` (hops of a ring; their bytes are those of the
    hops together)."""

    group: str
    """Ranks that take part, as in `estimators.layers.work.CollectiveWork`."""

    forward_count: FloatArray
    """Collectives in one forward pass, shape ``(L,)``."""

    forward_bytes: FloatArray
    """Size of the full tensors of all collectives of a forward pass together, shape
    ``(L,)`` [byte]."""

    backward_count: FloatArray
    """Collectives in one backward pass without recompute, shape ``(L,)``."""

    backward_bytes: FloatArray
    """Size of the full tensors of all collectives of a backward pass without recompute
    together, shape ``(L,)`` [byte]."""

    repeated_count: FloatArray
    """Collectives of a forward pass that selective recompute repeats, ``(L,)``."""

    repeated_bytes: FloatArray
    """Size of the full tensors of all collectives that selective recompute repeats
    together, shape ``(L,)`` [byte]."""

    def __post_init__(self) -> None:
        _freeze(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerTable:
    """Costs of the ``L`` layers for one microbatch on one device.

    Arrays are float64 (kinds int64), C-contiguous and read-only.
    """

    names: tuple[str, ...]
    """Name of each layer, e.g. ``"embedding"``, ``"block 0"``, ``"head"``."""

    kinds: IntArray
    """Number of each layer's kind, dense from 0, shape ``(L,)``: layers of equal kind
    have equal costs."""

    forward_time: FloatArray
    """Compute of the forward pass, without collectives, shape ``(L,)`` [s]."""

    backward_time: FloatArray
    """Compute of the backward pass without recompute, shape ``(L,)`` [s]."""

    weight_gradient_time: FloatArray
    """Compute of `backward_time` which nothing but the optimizer waits for: the weight
    gradients of matrix products, shape ``(L,)`` [s]."""

    recompute_time: Mapping[str, FloatArray]
    """Compute that each recompute mode but ``"none"`` adds to the backward pass: the
    attention core (``"selective"``), the forward compute of blocks (``"full"``) or of
    every layer (``"stage"``), shape ``(L,)`` [s]."""

    host_time: Mapping[str, FloatArray] = field(default_factory=dict)
    """Part of these times that a device waits for its host (`estimators.platform`): of
    the ``"forward"`` and the ``"backward"`` pass, and of what each recompute mode
    repeats, shape ``(L,)`` each; 0 where a name is missing [s]."""

    forward_flops: FloatArray
    """Model FLOPs of one forward pass of the *whole* layer (all tensor- and
    context-parallel devices together) for this micro-batch, shape ``(L,)`` [FLOP]."""

    parameters: FloatArray
    """Parameters held by one device, shape ``(L,)``; of a vision tower those that are
    trained. The tied head counts its copy
    of the embedding here; `tied_parameters` says how many that are."""

    expert_parameters: FloatArray
    """Parameters of `parameters` that are sharded over the expert-parallel group and
    therefore synchronised over fewer replicas, shape ``(L,)``; 0 with ``ep`` = 1, where
    experts are like any other parameters."""

    tied_parameters: float
    """Parameters per device that the last layer shares with the first: counted once
    in a stage that holds both, synchronised between stages otherwise."""

    largest_parameters: FloatArray
    """Parameters gathered together where they are sharded, shape ``(L,)``: `parameters`
    of a single layer, also where blocks are interleaved, or its largest weight. Those
    of a model with weights in 4 bits count by their size over the model's mean."""

    is_block: FloatArray
    """Whether a layer is a transformer block, shape ``(L,)``: 1 for blocks, 0 for the
    ends of the chain."""

    saved_bytes: Mapping[str, FloatArray]
    """Activations that the forward pass keeps for the backward pass under ``"none"``,
    ``"selective"`` and ``"full"`` recompute (a block its input, other layers what they
    save), shape ``(L,)`` [byte]. Under ``"stage"`` a stage keeps its input only."""

    working_bytes: Mapping[str, FloatArray]
    """Peak memory inside the layer's forward or backward pass beside what is saved
    (gradients of activations, recomputed activations), under ``"none"``,
    ``"selective"`` and ``"full"`` recompute, shape ``(L,)`` [byte]."""

    weight_gradient_bytes: FloatArray
    """Memory that weight gradients need, if they are put off until after the backward
    pass, instead of what was saved for that, shape ``(L,)`` [byte]."""

    boundary_bytes: FloatArray
    """Activation that one device sends if the chain is cut before layer ``l``, shape
    ``(L + 1,)``; the ends are 0. The gradient coming back has the same size."""

    traffic: tuple[InLayerTraffic, ...]
    """In-layer collectives; empty where no group has more than one member."""

    frozen_weights: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Weights of a vision tower that are not trained, whole on each device, shape
    ``(L,)``; zeros if left out [byte]."""

    def __post_init__(self) -> None:
        if not self.frozen_weights.size:
            object.__setattr__(self, "frozen_weights", np.zeros(self.num_layers))
        _freeze(self)
        assert self.boundary_bytes.shape == (self.num_layers + 1,)

    @property
    def num_layers(self) -> int:
        """Number of layers ``L``."""
        return len(self.names)

    def waited(self, name: str) -> FloatArray:
        """Return one of `host_time`, ``(L,)`` [s]."""
        return self.host_time.get(name, np.zeros(self.num_layers))


def _freeze(table: InLayerTraffic | LayerTable) -> None:
    for column in fields(table):
        value = getattr(table, column.name)
        frozen: Any
        if isinstance(value, Mapping):
            frozen = {
                mode: _frozen_array(array, column.name) for mode, array in value.items()
            }
            frozen = MappingProxyType(frozen)
        elif isinstance(value, np.ndarray):
            frozen = _frozen_array(value, column.name)
        else:
            continue
        object.__setattr__(table, column.name, frozen)


def _frozen_array(value: NDArray[Any], name: str) -> NDArray[Any]:
    kind = np.int64 if name == "kinds" else np.float64
    if not value.flags.writeable and value.base is None and value.dtype == kind:
        return value  # a column of another table
    array = np.array(value, dtype=kind, order="C")
    array.flags.writeable = False
    return array


_FORWARD_AND_BACKWARD = 3
_WITHOUT_WEIGHT_GRADIENT = 2


def model_flops_per_sequence(graph: LayerGraph, *, counts_masked: bool = True) -> float:
    """Return the forward and backward FLOPs of one sequence [FLOP].

    A product with a frozen weight has no second product in its backward pass.

    Parameters
    ----------
    graph
        The traced model.
    counts_masked
        Whether the half of attention that a causal mask hides counts.
    """
    halves = graph.spec.causal and not counts_masked
    by_kind = [
        sum(
            _passes(op)
            * worked_flops(graph.spec, op)
            / (2 if halves and _is_masked(op) else 1)
            for op in layer.operators
        )
        for layer in graph.layers
    ]
    return float(sum(by_kind[kind] for kind in graph.kinds))


def _passes(operator: TracedOperator) -> int:
    """Return how many times the work of a forward pass a step has of an operator."""
    if operator.forward_only:
        return 1
    return _WITHOUT_WEIGHT_GRADIENT if operator.frozen else _FORWARD_AND_BACKWARD


def _is_masked(operator: TracedOperator) -> bool:
    """Tell whether it multiplies queries with keys, or scores with values, causally."""
    core = operator.core and operator.operation == "matmul"
    fused = operator.operation in {"attention", INDEX_SCORES}
    return (fused or core) and not operator.sees_all
