"""T5, T5 1.1 and Flan-T5."""

from collections.abc import Mapping
from types import MappingProxyType

from estimators.models.library.published import PublishedModel
from estimators.models.spec import TransformerSpec, encoder_decoder_pattern


def _t5(
    num_layers: int,
    hidden_size: int,
    ffn_hidden_size: int,
    heads: int,
    kv_channels: int = 64,
    *,
    gated: bool = False,
) -> TransformerSpec:
    """Return a T5 with that many blocks in its encoder, and in its decoder.

    Inputs and targets of pre-training: spans of 512 tokens of which 15 % are replaced
    make targets of 114.
    """
    return TransformerSpec(
        family="t5",
        num_layers=2 * num_layers,
        block_pattern=encoder_decoder_pattern(num_layers, num_layers),
        hidden_size=hidden_size,
        ffn_hidden_size=ffn_hidden_size,
        num_attention_heads=heads,
        kv_channels=kv_channels,
        vocab_size=32128,
        sequence_length=512,
        decoder_sequence_length=114,
        gated_linear_unit=gated,
        activation_func="gelu" if gated else "relu",
        normalization="rmsnorm",
        position_embedding_type="relative",
        tie_word_embeddings=not gated,
        add_bias_linear=False,
        hidden_dropout=0.0 if gated else 0.1,
        attention_dropout=0.0 if gated else 0.1,
    )


_T5 = (
    "Raffel et al., Exploring the Limits of Transfer Learning, 2020, sections 2.1, "
    "3.1.4 and 3.7; vocabulary of google-t5's config.json"
)
_T5_11 = (
    "google-research/text-to-text-transfer-transformer, released_checkpoints.md, 2020: "
    "T5 1.1; config.json of google/t5-v1_1"
)
_FLAN = "Chung et al., Scaling Instruction-Finetuned Language Models, 2022: T5 1.1's"

_VERSION_1_1 = MappingProxyType(
    {
        "small": _t5(8, 512, 1024, 6, gated=True),
        "base": _t5(12, 768, 2048, 12, gated=True),
        "large": _t5(24, 1024, 2816, 16, gated=True),
        "xl": _t5(24, 2048, 5120, 32, gated=True),
        "xxl": _t5(24, 4096, 10240, 64, gated=True),
    }
)

MODELS: Mapping[str, PublishedModel] = MappingProxyType(
    {
        "t5-small": PublishedModel(_t5(6, 512, 2048, 8), _T5),
        "t5-base": PublishedModel(_t5(12, 768, 3072, 12), _T5),
        "t5-large": PublishedModel(_t5(24, 1024, 4096, 16), _T5),
        "t5-3b": PublishedModel(_t5(24, 1024, 16384, 32, 128), _T5),
        "t5-11b": PublishedModel(_t5(24, 1024, 65536, 128, 128), _T5),
        **{
            f"t5-v1-1-{size}": PublishedModel(spec, _T5_11)
            for size, spec in _VERSION_1_1.items()
        },
        **{
            f"flan-t5-{size}": PublishedModel(spec, _FLAN)
            for size, spec in _VERSION_1_1.items()
        },
    }
)
"""Name -> architecture and source."""
