"""Readers of Llama, Mistral and Mixtral."""

from dataclasses import replace

from estimators.models.huggingface.config_file import ConfigFile
from estimators.models.huggingface.windows import with_config_windows
from estimators.models.spec import TransformerSpec, with_sequence_length


def read_llama(
    config: ConfigFile, *, default_groups: int | None = None
) -> TransformerSpec:
    """Read the Llama and Mistral families."""
    config.require("hidden_act", default="silu", allowed=("silu", "swish"))
    bias = config.flag("mlp_bias", default=False)
    attention_bias = config.flag("attention_bias", default=False)
    if bias and not attention_bias:
        config.require("mlp_bias", default=False, allowed=(False,))
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
        add_attention_bias=attention_bias,
        attention_dropout=config.number("attention_dropout", 0.0),
    )


def read_mistral(config: ConfigFile) -> TransformerSpec:
    """Read Mistral; without a length, sequences end where its window does."""
    spec = read_llama(config, default_groups=8)  # the default of MistralConfig
    spec = with_config_windows(config, spec, [True] * spec.num_layers)
    if spec.window_size:
        length = min(spec.window_size, spec.sequence_length)
        spec = with_sequence_length(spec, length)
    return spec


def read_mixtral(config: ConfigFile) -> TransformerSpec:
    """Read Mixtral."""
    dense = read_mistral(config)
    return replace(
        dense,
        family="mixtral",
        num_moe_experts=config.integer("num_local_experts"),
        moe_router_topk=config.integer("num_experts_per_tok"),
        block_pattern=tuple(
            kind.replace("dense", "experts") for kind in dense.block_pattern
        ),
    )
