"""Readers of Mamba-2, and of its hybrids with attention (Nemotron-H)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from estimators.models.huggingface.config_file import ConfigFile
from estimators.models.library.mamba import HYBRID_KINDS, hybrid_pattern
from estimators.models.limits import CONVOLUTION_WIDTH
from estimators.models.spec import TransformerSpec
from topologies.errors import InputError

_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "mamba": "mamba",
        "linear_attention": "mamba",
        "attention": "attention",
        "full_attention": "attention",
        "mlp": "dense",
    }
)
"""Element of ``layers_block_type`` -> kind of block."""


def read_nemotron_h(config: ConfigFile) -> TransformerSpec:
    """Read a Nemotron-H; those with experts are refused."""
    config.require("mlp_hidden_act", default="relu2", allowed=("relu2",))
    for bias in ("mlp_bias", "attention_bias", "use_bias", "mamba_proj_bias"):
        config.require(bias, default=False, allowed=(False,))
    _require_mixer(config)
    pattern = _pattern(config)
    length = config.integer("max_position_embeddings", 4096)
    heads = config.integer("num_attention_heads")
    return TransformerSpec(
        family="mamba",
        num_layers=len(pattern),
        block_pattern=pattern,
        hidden_size=config.integer("hidden_size"),
        ffn_hidden_size=config.integer("intermediate_size"),
        num_attention_heads=heads,
        num_query_groups=config.integer("num_key_value_heads", heads),
        kv_channels=config.integer(_named(config, "head_dim", "attention_head_dim")),
        vocab_size=config.integer("vocab_size"),
        sequence_length=length,
        activation_func="squared_relu",
        normalization="rmsnorm",
        position_embedding_type="none",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        add_bias_linear=False,
        attention_dropout=config.number("attention_dropout", 0.0),
        hidden_dropout=config.number("hidden_dropout", 0.0),
        **_sizes(
            config,
            pattern,
            mamba_state_dim=config.integer("ssm_state_size", 128),
            mamba_num_heads=config.integer("mamba_num_heads", 128),
            mamba_head_dim=config.integer("mamba_head_dim", 64),
            mamba_chunk_size=config.integer("chunk_size", 128),
        ),
    )


def read_mamba2(config: ConfigFile) -> TransformerSpec:
    """Read a Mamba-2 without attention."""
    config.require("use_bias", default=False, allowed=(False,))
    config.require("hidden_act", default="silu", allowed=("silu", "swish"))
    _require_mixer(config)
    pattern = ("mamba",) * config.integer("num_hidden_layers")
    heads = config.integer("num_heads", 128)
    return TransformerSpec(
        family="mamba",
        num_layers=len(pattern),
        block_pattern=pattern,
        hidden_size=config.integer("hidden_size"),
        num_attention_heads=heads,
        kv_channels=config.integer("head_dim", 64),
        vocab_size=config.integer("vocab_size"),
        sequence_length=config.integer("max_position_embeddings", 2048),
        normalization="rmsnorm",
        position_embedding_type="none",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        add_bias_linear=False,
        **_sizes(
            config,
            pattern,
            mamba_state_dim=config.integer("state_size", 128),
            mamba_num_heads=heads,
            mamba_head_dim=config.integer("head_dim", 64),
            mamba_chunk_size=config.integer("chunk_size", 256),
        ),
    )


def _require_mixer(config: ConfigFile) -> None:
    """Refuse what Mamba-2 layers are not built with."""
    width = (CONVOLUTION_WIDTH,)
    config.require("conv_kernel", default=width[0], allowed=width)
    config.require("use_conv_bias", default=True, allowed=(True,))
    config.require("mamba_hidden_act", default="silu", allowed=("silu", "swish"))


def _sizes(
    config: ConfigFile, pattern: tuple[str, ...], **sizes: int
) -> dict[str, Any]:
    """Return the sizes of Mamba-2 layers, if there are any."""
    groups = config.integer("n_groups", 8)
    return {**sizes, "mamba_num_groups": groups} if "mamba" in pattern else {}


def _named(config: ConfigFile, *names: str) -> str:
    """Return the first of several names of a key that the file has."""
    return next((name for name in names if name in config.values), names[0])


def _pattern(config: ConfigFile) -> tuple[str, ...]:
    """Return the kinds of blocks, by letters or by words."""
    words: Any = config.values.get("layers_block_type")
    if words is not None:
        known = isinstance(words, list) and all(word in _TYPES for word in words)
        if not known or not words:
            raise InputError(
                "value is not supported",
                where="layers_block_type",
                got=words,
                expected="a list of " + ", ".join(f'"{name}"' for name in _TYPES),
            )
        return tuple(_TYPES[word] for word in words)
    letters = config.text("hybrid_override_pattern", None)
    allowed = [one for one in HYBRID_KINDS if one != "E"]
    if not letters or any(letter not in allowed for letter in letters):
        raise InputError(
            "value is not supported",
            where="hybrid_override_pattern",
            got=letters,
            expected='Mamba-2 "M", attention "*" and feed-forward "-", e.g. "M-M-M*-"',
        )
    return hybrid_pattern(letters)
