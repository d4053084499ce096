"""Which part of a tensor, a parameter or a product one device has.

Letters as in `estimators.sharding`.

References
----------
.. [1] Megatron-LM, ``--make-vocab-size-divisible-by``: the vocabulary is padded to a
   multiple of 128 tp.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from estimators.layer_work import Degrees
from estimators.models.spec import TransformerSpec

_VOCAB_MULTIPLE = 128


class Share(NamedTuple):
    """The part ``numerator / denominator`` of a count; exact where it divides."""

    numerator: int
    denominator: int

    def of(self, count: int) -> float:
        """Return that part of a count."""
        return count * self.numerator / self.denominator


class ProductShare(NamedTuple):
    """What one device has of each dimension of a product."""

    m: Share
    n: Share
    k: Share
    batch: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """All parts of one device, relative to one sequence on a device by itself."""

    tensors: Mapping[str, Share]
    """Layout of an activation -> elements for the whole micro-batch."""

    parameters: Mapping[str, Share]
    """Layout of a parameter -> elements."""

    products: Mapping[str, ProductShare]
    """Sharding of an operator -> local dimensions for the whole micro-batch."""


def padded_vocab_size(spec: TransformerSpec, tp: int) -> int:
    """Return the rows of the embedding together: real ones if nothing is split."""
    if tp == 1:
        return spec.vocab_size
    multiple = _VOCAB_MULTIPLE * tp
    return math.ceil(spec.vocab_size / multiple) * multiple


@lru_cache(maxsize=1024)
def device_shares(spec: TransformerSpec, degrees: Degrees) -> Shares:
    """Return what one device has under the given degrees."""
    tp, cp, ep, b, sp = degrees
    groups = min(tp, spec.num_query_groups)
    padded, vocab = padded_vocab_size(spec, tp), spec.vocab_size
    tensors = {
        "whole": Share(b, cp),
        "sequence": Share(b, cp * tp if sp else cp),
        "tensor": Share(b, cp * tp),
        "groups": Share(b, cp * groups),
        "vocab": Share(b * padded, cp * tp * vocab),
    }
    parameters = {
        "whole": Share(1, 1),
        "tensor": Share(1, tp),
        "groups": Share(1, groups),
        "vocab": Share(padded, tp * vocab),
        "expert": Share(1, ep * tp),
    }
    return Shares(
        tensors=MappingProxyType(tensors),
        parameters=MappingProxyType(parameters),
        products=MappingProxyType(_product_shares(spec, degrees, tensors, parameters)),
    )


def _product_shares(
    spec: TransformerSpec,
    degrees: Degrees,
    tensors: Mapping[str, Share],
    parameters: Mapping[str, Share],
) -> dict[str, ProductShare]:
    tp, cp, ep, b, _ = degrees
    all_of, rows, split = Share(1, 1), tensors["whole"], parameters["tensor"]
    groups = min(tp, spec.num_query_groups)
    heads, kv = spec.num_attention_heads, 2 * spec.num_query_groups
    qkv = Share(heads * groups + kv * tp, tp * groups * (heads + kv))
    # Tokens reach the experts evenly. The traced product counts the rows of all
    # experts: a device has as many, over its E / ep experts.
    experts = max(spec.num_moe_experts, 1)
    rows_per_expert, local_experts = Share(b * ep, cp * experts), Share(experts, ep)
    return {
        "": ProductShare(tensors["sequence"], all_of, all_of, all_of),
        "column": ProductShare(rows, split, all_of, all_of),
        "qkv": ProductShare(rows, qkv, all_of, all_of),
        "vocab": ProductShare(rows, parameters["vocab"], all_of, all_of),
        "row": ProductShare(rows, all_of, split, all_of),
        "heads": ProductShare(Share(1, cp), all_of, all_of, Share(b, tp)),
        "expert column": ProductShare(rows_per_expert, split, all_of, local_experts),
        "expert row": ProductShare(rows_per_expert, all_of, split, local_experts),
    }


def divisibility_problem(spec: TransformerSpec, degrees: Degrees) -> str | None:
    """Say why a model cannot be split this way, or return None if it can."""
    problems = (
        _tensor_problem(spec, degrees),
        _context_problem(spec, degrees),
        _expert_problem(spec, degrees),
    )
    return next((problem for problem in problems if problem), None)


def _tensor_problem(spec: TransformerSpec, degrees: Degrees) -> str | None:
    tp, groups = degrees.tp, spec.num_query_groups
    for name in ("num_attention_heads", "ffn_hidden_size"):
        if getattr(spec, name) % tp:
            return (
                f"tensor_model_parallel_size {tp} does not divide "
                f"{name} {getattr(spec, name)}"
            )
    if spec.moe_shared_expert_intermediate_size % tp:
        return (
            f"tensor_model_parallel_size {tp} does not divide "
            "moe_shared_expert_intermediate_size "
            f"{spec.moe_shared_expert_intermediate_size}"
        )
    if groups % tp and tp % groups:
        return (
            f"tensor_model_parallel_size {tp} is neither a divisor nor a multiple of "
            f"num_query_groups {groups}"
        )
    return None


def _context_problem(spec: TransformerSpec, degrees: Degrees) -> str | None:
    tp, cp = degrees.tp, degrees.cp
    if cp > 1 and spec.attention_implementation != "flash":
        return f"context_parallel_size {cp} needs flash attention"
    parts = cp * (tp if degrees.sequence_parallel else 1)
    # Ranks of a causal ring take one early and one late chunk each, to be equally
    # busy (Megatron-LM's context parallelism).
    parts *= 2 if cp > 1 and spec.causal else 1
    if spec.sequence_length % parts:
        return (
            f"sequence_length {spec.sequence_length} does not split into the {parts} "
            f"parts that context_parallel_size {cp} and tensor_model_parallel_size "
            f"{tp} ask for"
        )
    return None


def _expert_problem(spec: TransformerSpec, degrees: Degrees) -> str | None:
    ep, experts = degrees.ep, spec.num_moe_experts
    if ep > 1 and experts == 0:
        return f"expert_model_parallel_size {ep}, but the model has no experts"
    if experts % ep:
        return f"expert_model_parallel_size {ep} does not divide the {experts} experts"
    return None
