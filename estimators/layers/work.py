"""What one layer costs one device: the numbers that come out of a traced model.

Letters: ``s`` sequence length, ``b`` micro-batch size, ``h`` hidden size, ``tp``,
``cp``, ``ep`` parallel degrees. Everything is for one microbatch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from estimators.grouping import PLAIN_GROUPING, Grouping


class Degrees(NamedTuple):
    """What a layer's local shapes depend on."""

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

    @property
    def etp(self) -> int:
        """Expert-tensor-parallel size."""
        return self.grouping.etp or self.tp

    @property
    def spreads_experts(self) -> bool:
        """Whether experts have other replicas than the rest of a layer."""
        return self.ep > 1 or self.grouping.is_folded

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
    kernel) or ``"memory"`` (everything bound by memory traffic)."""

    m: float
    """Rows of the product on this device; 0 unless a matmul."""

    n: float
    """Columns of the product on this device; 0 unless a matmul."""

    k: float
    """Inner dimension on this device; 0 unless a matmul."""

    batch: float
    """Independent products of that shape, e.g. heads or experts; 0 unless a matmul."""

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

    keys: float = 0.0
    """Tokens that a fused attention kernel has keys of on this device, on which its
    rate depends; 0 unless attention."""

    @property
    def is_scan(self) -> bool:
        """Whether the backward pass makes the result again, as that of a scan does."""
        return self.operation == "scan"

    @property
    def is_grouped(self) -> bool:
        """Whether it is the product of several experts with their weights."""
        return self.weight_flops > 0 and self.batch > 1


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """One layer of the chain on one device."""

    operators: tuple[OperatorWork, ...]
    """Operators in the order of execution."""

    collectives: tuple[CollectiveWork, ...]
    """Collectives that the layer waits for; empty where no group has more than one
    member."""

    parameters: float
    """Parameters held by this device, tied ones included."""

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
