"""Reader of T5."""

from collections.abc import Mapping
from types import MappingProxyType

from estimators.models.huggingface.config_file import ConfigFile
from estimators.models.limits import LONGEST_DISTANCE, NUM_BUCKETS
from estimators.models.spec import TransformerSpec, encoder_decoder_pattern

_PROJECTIONS: Mapping[str, tuple[str, bool]] = MappingProxyType(
    {
        "relu": ("relu", False),
        "gelu": ("gelu", False),
        "gated-gelu": ("gelu", True),
        "gated-silu": ("silu", True),
    }
)
"""``feed_forward_proj`` -> nonlinearity, and whether it is gated."""


def read_t5(config: ConfigFile) -> TransformerSpec:
    """Read a T5; without a length, that of pre-training: 512 tokens, 114 of targets."""
    config.require("feed_forward_proj", default="relu", allowed=tuple(_PROJECTIONS))
    for name, size in (
        ("relative_attention_num_buckets", NUM_BUCKETS),
        ("relative_attention_max_distance", LONGEST_DISTANCE),
    ):
        config.require(name, default=size, allowed=(size,))
    encoder = config.integer("num_layers", 6)
    decoder = config.integer("num_decoder_layers", encoder)
    projection = config.values.get("feed_forward_proj", "relu")
    activation, gated = _PROJECTIONS.get(str(projection), ("relu", False))
    dropout = config.number("dropout_rate", 0.1)
    return TransformerSpec(
        family="t5",
        num_layers=encoder + decoder,
        block_pattern=encoder_decoder_pattern(encoder, decoder),
        hidden_size=config.integer("d_model"),
        ffn_hidden_size=config.integer("d_ff"),
        num_attention_heads=config.integer("num_heads"),
        kv_channels=config.integer("d_kv"),
        vocab_size=config.integer("vocab_size"),
        sequence_length=config.integer("n_positions", 512),
        decoder_sequence_length=114,
        gated_linear_unit=gated,
        activation_func=activation,
        normalization="rmsnorm",
        position_embedding_type="relative",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=True),
        add_bias_linear=False,
        hidden_dropout=dropout,
        attention_dropout=dropout,
    )
