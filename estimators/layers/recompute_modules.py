"""What ``"selective"`` recompute runs again, module by module, under Megatron's names.

The attention core is checkpointed as a whole: what it reads is kept, and its result,
which the product behind it reads. The others discard their results once those have been
read, and make them again when the backward pass asks for them: what such a module reads
is kept, what it makes is not, whoever reads it.

References
----------
.. [1] Megatron Core, ``core/transformer/transformer_config.py``:
   ``recompute_modules``; ``core/tensor_parallel/random.py``:
   ``CheckpointWithoutOutput``.
.. [2] DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.3: RMSNorm and
   up-projections of latent attention are run again.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from estimators.tracing.graph import TracedLayer, TracedOperator


class RecomputeModule(NamedTuple):
    """A part of a block that can be run again by itself."""

    holds: Callable[[TracedOperator], bool]
    """Whether an operator belongs to it."""

    discards: bool
    """Whether its results are not kept either."""


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

RECOMPUTE_MODULES: Mapping[str, RecomputeModule] = MappingProxyType(
    {
        "core_attn": RecomputeModule(lambda op: op.core, discards=False),
        "layernorm": RecomputeModule(lambda op: op.name in _BLOCK_NORMS, discards=True),
        "mla_up_proj": RecomputeModule(lambda op: op.name in _MLA_UP, discards=True),
        "moe_act": RecomputeModule(
            lambda op: (
                op.operation in _ACTIVATIONS
                and op.name.startswith("mlp.")
                and "shared_experts" not in op.name
            ),
            discards=True,
        ),
    }
)
"""Megatron's name -> module: the core of attention, the norms in front of a block's
branches, the norms, up-projections and rotary heads of multi-head latent attention, and
the activation of routed experts [1]_."""

ATTENTION_CORE = ("core_attn",)
"""What Megatron runs again unless it is told otherwise."""


def runs_again(layer: TracedLayer, modules: tuple[str, ...]) -> tuple[bool, ...]:
    """Return whether each operator of a layer belongs to one of some modules."""
    chosen = _present(layer, modules)
    return tuple(any(one.holds(op) for one in chosen) for op in layer.operators)


def discarded_tensors(layer: TracedLayer, modules: tuple[str, ...]) -> frozenset[int]:
    """Return the results of a layer's operators that some modules do not keep."""
    discarding = [one for one in _present(layer, modules) if one.discards]
    return frozenset(
        number
        for operator in layer.operators
        if any(one.holds(operator) for one in discarding)
        for number in operator.outputs
    )


def _present(layer: TracedLayer, modules: tuple[str, ...]) -> list[RecomputeModule]:
    """Return the modules that a layer has."""
    has_experts = any(op.operation == "dispatch" for op in layer.operators)
    return [
        RECOMPUTE_MODULES[name] for name in modules if has_experts or name != "moe_act"
    ]
