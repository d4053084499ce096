"""The collectives that a traced layer waits for, from how its operators are split.

Letters as in `estimators.sharding`. ``S`` = b s/cp h e, a full tensor of hidden states.

Tensor group [1]_ [2]_. A column-parallel product adds up the gradients of its input,
a row-parallel one its results: one all-reduce of S each. With sp the all-reduce becomes
an all-gather before (after, in the backward pass) and a reduce-scatter; since the saved
input of a column-parallel product is split too, it is gathered once more for the
weight's gradient. The loss over a split vocabulary needs the largest logit, the
label's logit and the sum of exponentials of every token, in fp32.

Experts [3]_. Tokens travel to their experts and back: one all-to-all of the copies that
a device dispatches each way, forward and backward. With sp each tensor rank dispatches
its own part, which is then gathered over the tensor group, and results are
reduce-scattered before they travel back.

Context group [4]_. Keys and values go round a ring in cp - 1 hops; backward they do so
again, and so do their gradients.

References
----------
.. [1] Shoeybi et al., "Megatron-LM", 2019, section 3.
.. [2] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
   Models", 2022, section 4.2.2.
.. [3] Megatron-LM, ``MoEAlltoAllTokenDispatcher``.
.. [4] Liu et al., "Ring Attention with Blockwise Transformers", 2023, section 3.
"""

from collections.abc import Iterator
from typing import NamedTuple

from estimators.layer_graph import TracedLayer, TracedOperator
from estimators.layer_work import CollectiveWork, Degrees
from estimators.shares import Shares

_COLUMN = frozenset({"column", "qkv", "vocab"})
_FP32_BYTES = 4


class _Case(NamedTuple):
    """What every rule needs to know."""

    layer: TracedLayer
    shares: Shares
    degrees: Degrees
    element_bytes: int

    def size(self, number: int, layout: str = "") -> float:
        """Return the local size of a tensor, or what it would be in a layout [byte]."""
        tensor = self.layer.tensors[number]
        share = self.shares.tensors[layout or tensor.layout]
        return share.of(tensor.elements) * self.element_bytes


def layer_collectives(
    layer: TracedLayer, shares: Shares, degrees: Degrees, element_bytes: int
) -> tuple[CollectiveWork, ...]:
    """Return the collectives of one layer, those of one kind and group together."""
    case = _Case(layer, shares, degrees, element_bytes)
    total: dict[tuple[str, str], CollectiveWork] = {}
    for operator in layer.operators:
        for work in _of_operator(case, operator):
            key = work.operation, work.group
            total[key] = _sum(total[key], work) if key in total else work
    return tuple(total.values())


def _sum(one: CollectiveWork, other: CollectiveWork) -> CollectiveWork:
    return CollectiveWork(
        one.operation,
        one.group,
        one.forward_count + other.forward_count,
        one.forward_bytes + other.forward_bytes,
        one.backward_count + other.backward_count,
        one.backward_bytes + other.backward_bytes,
    )


def _of_operator(case: _Case, operator: TracedOperator) -> Iterator[CollectiveWork]:
    if case.degrees.tp > 1:
        yield from _tensor_group(case, operator)
    if case.degrees.ep > 1 and operator.operation in {"dispatch", "combine"}:
        copies = (
            operator.outputs if operator.operation == "dispatch" else operator.inputs
        )
        size = case.size(copies[0], "sequence")
        yield CollectiveWork("all_to_all", "expert", 1, size, 1, size)
    if case.degrees.cp > 1 and operator.operation == "attention":
        hops = case.degrees.cp - 1
        size = hops * sum(case.size(number) for number in operator.inputs[1:])
        yield CollectiveWork("send_recv", "context", hops, size, 2 * hops, 2 * size)


def _tensor_group(case: _Case, operator: TracedOperator) -> Iterator[CollectiveWork]:
    sp = case.degrees.sequence_parallel
    if operator.sharding in _COLUMN:
        size = case.size(operator.inputs[0], "whole")
        if sp:
            yield CollectiveWork("all_gather", "tensor", 1, size, 1, size)
        yield _enter(size, sp=sp)
    elif operator.sharding == "row":
        yield from _leave(case.size(operator.outputs[0], "whole"), sp=sp)
    elif operator.operation == "dispatch":
        copies = case.size(operator.outputs[0], "whole")
        if sp:
            yield CollectiveWork("all_gather", "tensor", 1, copies, 0, 0.0)
        yield _enter(copies if sp else case.size(operator.inputs[0], "whole"), sp=sp)
    elif operator.operation == "combine":
        # Adding up the copies of a token and adding up over ranks commute: without
        # sp the all-reduce is over tokens, not over copies.
        number = operator.inputs[0] if sp else operator.outputs[0]
        yield from _leave(case.size(number, "whole"), sp=sp)
    elif operator.operation == "cross entropy":
        yield from _loss(case, operator)


def _enter(size: float, *, sp: bool) -> CollectiveWork:
    """Add up the gradients of what entered a tensor-parallel part."""
    operation = "reduce_scatter" if sp else "all_reduce"
    return CollectiveWork(operation, "tensor", 0, 0.0, 1, size)


def _leave(size: float, *, sp: bool) -> Iterator[CollectiveWork]:
    """Add up the partial results of a tensor-parallel part."""
    operation = "reduce_scatter" if sp else "all_reduce"
    yield CollectiveWork(operation, "tensor", 1, size, 0, 0.0)
    if sp:
        yield CollectiveWork("all_gather", "tensor", 0, 0.0, 1, size)


def _loss(case: _Case, operator: TracedOperator) -> Iterator[CollectiveWork]:
    logits = case.layer.tensors[operator.inputs[0]]
    if logits.layout != "vocab":
        return
    (product,) = (o for o in case.layer.operators if operator.inputs[0] in o.outputs)
    tokens = case.shares.tensors["whole"].of(product.dims[0])
    yield CollectiveWork("all_reduce", "tensor", 3, 3 * _FP32_BYTES * tokens, 0, 0.0)
