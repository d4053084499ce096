"""The limits of each size of an architecture, and the checks of one field at a time.

What fields must be together, `estimators.models.spec` checks.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from topologies.errors import InputError

FAMILY_NAMES = ("gpt", "llama", "mixtral", "mamba", "bert", "t5", "vit")
"""Names of the families of models, whose ends `estimators.models.families` builds."""

MODULE_FAMILY = "module"
"""Family of a user's own module, which is traced and not built."""

MAX_LAYERS = 4_000
"""Most transformer blocks: some planners keep tables of all pairs of them."""

MAX_WIDTH = 1_000_000
"""Largest width of hidden states and heads, and most heads and experts."""

MAX_SEQUENCE = 100_000_000
"""Most tokens per sequence."""

MAX_VOCABULARY = 1_000_000_000
"""Most entries of the word embedding."""

MAX_DEPTHS = 16
"""Most layers of multi-token prediction."""

CONVOLUTION_WIDTH = 4
"""Tokens that the convolution of a Mamba-2 layer reaches (Dao and Gu, 2024)."""

NUM_BUCKETS = 32
"""Ranges of distances that T5's position biases tell apart (Raffel et al., 2020)."""

LONGEST_DISTANCE = 128
"""Distance from which on T5's position biases tell none apart [tokens]."""

NUM_CHANNELS = 3
"""Colours of a pixel of a vision transformer's images."""

MAX_ELEMENTS = 2**56
"""Most elements of one tensor: its bytes and FLOPs are counted in 64 bits."""

_LARGEST = MappingProxyType(
    {
        "num_layers": MAX_LAYERS,
        "sequence_length": MAX_SEQUENCE,
        "decoder_sequence_length": MAX_SEQUENCE,
        "max_position_embeddings": MAX_SEQUENCE,
        "vocab_size": MAX_VOCABULARY,
        "window_size": MAX_SEQUENCE,
        "attention_chunk_size": MAX_SEQUENCE,
        "ffn_hidden_size": 4 * MAX_WIDTH,
        "moe_ffn_hidden_size": 4 * MAX_WIDTH,
        "moe_shared_expert_intermediate_size": 4 * MAX_WIDTH,
        "mtp_num_layers": MAX_DEPTHS,
    }
)
"""Sizes whose limit is another than `MAX_WIDTH`."""

_CHOICES = {
    "family": (*FAMILY_NAMES, MODULE_FAMILY),
    "normalization": ("layernorm", "rmsnorm"),
    "position_embedding_type": ("learned", "rope", "alibi", "relative", "none"),
    "attention_implementation": ("flash", "plain"),
    "moe_router_score_function": ("softmax", "sigmoid"),
    "activation_func": ("", "gelu", "silu", "relu", "squared_relu"),
    "norm_placement": ("pre", "post", "sandwich", "shared"),
    "softmax_type": ("vanilla", "learnable"),
}
_EXAMPLES = MappingProxyType(
    {
        "num_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "vocab_size": 32_000,
        "sequence_length": 4096,
        "ffn_hidden_size": 11_008,
        "kv_channels": 128,
        "max_position_embeddings": 4096,
    }
)
_FUSED_ONLY: Mapping[str, object] = MappingProxyType(
    {"window_size": 0, "softmax_type": "vanilla", "attn_logit_softcapping": 0.0}
)
"""What only fused attention does here."""

_NOT_IN_BERT: Mapping[str, object] = MappingProxyType(
    {
        "window_size": 0,
        "softmax_type": "vanilla",
        "attn_logit_softcapping": 0.0,
        "final_logit_softcapping": 0.0,
        "norm_placement": "pre",
        "parallel_residual": False,
        "embedding_layernorm": False,
        "scale_embeddings": False,
    }
)
"""What BERT's own modules do not have."""

_NOT_IN_LATENT: Mapping[str, object] = MappingProxyType(
    {
        "window_size": 0,
        "softmax_type": "vanilla",
        "attn_logit_softcapping": 0.0,
        "qk_layernorm": False,
        "add_attention_bias": False,
        "rotary_percent": 1.0,
    }
)
"""What multi-head latent attention does not have; its latents have norms anyway."""

_BOUNDS = MappingProxyType(
    {
        "rotary_percent": (1e-6, 1.0, "above 0 up to 1, e.g. 0.5"),
        "attn_logit_softcapping": (0.0, 1e6, "0 for none, or a bound, e.g. 50.0"),
        "final_logit_softcapping": (0.0, 1e6, "0 for none, or a bound, e.g. 30.0"),
    }
)
"""Numbers that are no probabilities: the least, the most, and both in words."""

LATENT_WIDTHS = ("q_lora_rank", "qk_pos_emb_head_dim", "v_head_dim")
MAMBA_SIZES = MappingProxyType(
    {
        "mamba_state_dim": 128,
        "mamba_head_dim": 64,
        "mamba_num_groups": 8,
        "mamba_chunk_size": 128,
        "mamba_num_heads": 0,
    }
)
"""Size of Mamba-2 layers -> what it is by default; 0 where that follows from others."""

IMAGE_SIZES = ("image_size", "patch_size")
"""Sizes that vision transformers alone have."""

_MAY_BE_ZERO = (
    "num_moe_experts",
    "moe_router_topk",
    "moe_shared_expert_intermediate_size",
    "moe_router_num_groups",
    "moe_router_group_topk",
    "mtp_num_layers",
    "window_size",
    "attention_chunk_size",
    "kv_lora_rank",
    *LATENT_WIDTHS,
    *MAMBA_SIZES,
    *IMAGE_SIZES,
    "decoder_sequence_length",
    "num_token_types",
)


def check_values(spec: Any) -> None:
    """Refuse the first field of an architecture that is wrong by itself.

    Raises
    ------
    InputError
        With the field's name, what it has and what is expected.
    """
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.type is int:
            lowest = 0 if field.default == 0 else 1
            _check_integer(field.name, value, lowest)
        elif field.type is bool and not isinstance(value, bool):
            raise InputError(
                "must be true or false",
                where=field.name,
                got=value,
                expected="true or false",
            )
        elif field.name in _BOUNDS:
            _check_number(field.name, value)
        elif field.type is float:
            _check_probability(field.name, value)
        elif field.name in _CHOICES and value not in _CHOICES[field.name]:
            raise InputError(
                "not one of the choices",
                where=field.name,
                got=value,
                expected=" or ".join(f'"{c}"' for c in _CHOICES[field.name]),
            )


def _check_integer(name: str, value: object, lowest: int) -> None:
    most = _LARGEST.get(name, MAX_WIDTH)
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        what = "0 for the default, or 1, 2, ..." if lowest == 0 else "1, 2, ..."
        if name in _MAY_BE_ZERO:
            what = "0 for none, or 1, 2, ..."
        raise InputError(
            f"must be a whole number of at least {lowest}",
            where=name,
            got=value,
            expected=f"{what}, at most {most:,}",
        )
    if value > most:
        raise InputError(
            f"must be at most {most:,}",
            where=name,
            got=value,
            expected=f"a whole number up to {most:,}, e.g. {_EXAMPLES.get(name, 8)}",
        )


def _check_number(name: str, value: object) -> None:
    least, most, expected = _BOUNDS[name]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (math.isfinite(float(value)) and least <= value <= most):  # type: ignore[arg-type,operator]  # a number, as just seen
        raise InputError(
            "must be a number between its bounds",
            where=name,
            got=value,
            expected=expected,
        )


def _check_probability(name: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (math.isfinite(float(value)) and 0 <= float(value) < 1):  # type: ignore[arg-type]  # a number, as just seen
        raise InputError(
            "must be a probability below 1",
            where=name,
            got=value,
            expected="0 up to but without 1, e.g. 0.1",
        )


def require_divides(spec: Any, divisor: str, number: str) -> None:
    """Refuse a field that does not divide another one.

    Raises
    ------
    InputError
        With both.
    """
    if getattr(spec, number) % getattr(spec, divisor):
        raise InputError(
            f"does not divide {number}",
            where=divisor,
            got=getattr(spec, divisor),
            expected=f"a divisor of {number} = {getattr(spec, number)}",
        )


def check_attention(spec: Any) -> None:
    """Refuse what attention and its norms cannot be together.

    Raises
    ------
    InputError
        With the field that does not fit.
    """
    _check_window(spec)
    needed = (
        (spec.attention_implementation != "flash", "plain attention", _FUSED_ONLY),
        (spec.family == "bert", "a bert", _NOT_IN_BERT),
        (spec.kv_lora_rank > 0, "multi-head latent attention", _NOT_IN_LATENT),
        (
            spec.position_embedding_type != "rope",
            "positions that are not rotary",
            {"rotary_percent": 1.0},
        ),
        (
            not spec.parallel_residual and spec.norm_placement == "shared",
            "branches that are not parallel",
            {"norm_placement": "pre"},
        ),
        (
            not spec.qk_layernorm or spec.normalization != "rmsnorm",
            "queries and keys without a root mean square norm",
            {"qk_layernorm_whole": False},
        ),
    )
    for applies, what, values in needed:
        if applies:
            _require_values(spec, what, values)


def _require_values(spec: Any, what: str, values: Mapping[str, object]) -> None:
    """Refuse a field that has another value than it must have."""
    for name, value in values.items():
        if getattr(spec, name) != value:
            raise InputError(
                f"does not go with {what}",
                where=name,
                got=getattr(spec, name),
                expected=f"{str(value).lower()} there",
            )


def _check_window(spec: Any) -> None:
    windows = any(kind.startswith("window") for kind in spec.block_kinds.values())
    if windows != (spec.window_size > 0):
        raise InputError(
            "a window and blocks with one go together",
            where="window_size",
            got=spec.window_size,
            expected="1, 2, ... if a block of block_pattern has a window, else 0",
        )
    if spec.window_size and not spec.causal:
        raise InputError(
            "sliding windows look back, as causal attention does",
            where="window_size",
            got=spec.window_size,
            expected="0, or causal = true",
        )
