"""Readers of Llama, Mistral and Mixtral."""

from dataclasses import replace

from estimators.models.huggingface.config_file import ConfigFile
from estimators.models.spec import TransformerSpec, with_sequence_length
from topologies.errors import InputError


def read_llama(
    config: ConfigFile, *, default_groups: int | None = None
) -> TransformerSpec:
    """Read the Llama and Mistral families."""
    config.require("hidden_act", default="silu", allowed=("silu", "swish"))
    bias = config.flag("attention_bias", default=False)
    config.require("mlp_bias", default=False, allowed=(bias,))
    length = config.integer("max_position_embeddings")
    heads = config.integer("num_attention_heads")
    return TransformerSpec(
        family="llama",
        num_layers=config.integer("num_hidden_layers"),
        hidden_size=config.integer("hidden_size"),
        ffn_hidden_size=config.integer("intermediate_size"),
        num_attention_heads=heads,
        num_query_groups=config.integer("num_key_value_heads", default_groups or heads),
        kv_channels=config.integer("head_dim") if config.values.get("head_dim") else 0,
        vocab_size=config.integer("vocab_size"),
        sequence_length=length,
        max_position_embeddings=length,
        gated_linear_unit=True,
        normalization="rmsnorm",
        position_embedding_type="rope",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        add_bias_linear=bias,
        attention_dropout=config.number("attention_dropout", 0.0),
    )


def read_mistral(config: ConfigFile) -> TransformerSpec:
    """Read Mistral; without a length, sequences end where its window does."""
    spec = read_llama(config, default_groups=8)  # the default of MistralConfig
    window = config.values.get("sliding_window")
    if window is not None:
        window = config.integer("sliding_window")
        spec = with_sequence_length(spec, min(window, spec.sequence_length))
    return spec


def read_mixtral(config: ConfigFile) -> TransformerSpec:
    """Read Mixtral."""
    dense = read_mistral(config)
    return replace(
        dense,
        family="mixtral",
        num_moe_experts=config.integer("num_local_experts"),
        moe_router_topk=config.integer("num_experts_per_tok"),
    )


def limit_window(config: ConfigFile, spec: TransformerSpec) -> TransformerSpec:
    """Refuse sequences that a sliding window would cut: full attention is built."""
    window = config.values.get("sliding_window")
    windowed = config.values["model_type"] in {"mistral", "mixtral"}
    if windowed and window is not None and spec.sequence_length > window:
        raise InputError(
            "sliding-window attention is not modelled beyond its window",
            where="sliding_window",
            got=window,
            expected=f"null, or at least the sequence length {spec.sequence_length}",
        )
    return spec
