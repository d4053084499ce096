"""Decoders that are a GPT but for positions, biases, heads or nonlinearity."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from estimators.models.library.published import PublishedModel
from estimators.models.spec import TransformerSpec


def _gpt(
    num_layers: int, hidden_size: int, heads: int, vocab_size: int
) -> TransformerSpec:
    """Return a GPT-2 of some size, without dropout."""
    return TransformerSpec(
        family="gpt",
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_attention_heads=heads,
        vocab_size=vocab_size,
        sequence_length=2048,
    )


def _bloom(num_layers: int, hidden_size: int, heads: int) -> TransformerSpec:
    """Return a BLOOM: ALiBi, and a norm behind the word embedding."""
    return replace(
        _gpt(num_layers, hidden_size, heads, 250_880),
        position_embedding_type="alibi",
        embedding_layernorm=True,
    )


def _falcon(
    num_layers: int, hidden_size: int, heads: int, groups: int
) -> TransformerSpec:
    """Return a Falcon: parallel branches without biases; one norm with one key."""
    return replace(
        _gpt(num_layers, hidden_size, heads, 65_024),
        num_query_groups=groups,
        position_embedding_type="rope",
        parallel_residual=True,
        norm_placement="shared" if groups == 1 else "pre",
        add_bias_linear=False,
    )


def _pythia(
    num_layers: int, hidden_size: int, heads: int, vocab_size: int
) -> TransformerSpec:
    """Return a GPT-NeoX: parallel branches, a quarter of each head turned, untied."""
    return replace(
        _gpt(num_layers, hidden_size, heads, vocab_size),
        position_embedding_type="rope",
        rotary_percent=0.25,
        parallel_residual=True,
        tie_word_embeddings=False,
    )


def _mpt(num_layers: int, hidden_size: int, heads: int) -> TransformerSpec:
    """Return an MPT: ALiBi, no biases at all."""
    return replace(
        _gpt(num_layers, hidden_size, heads, 50_432),
        position_embedding_type="alibi",
        layernorm_bias=False,
        add_bias_linear=False,
    )


def _opt(num_layers: int, hidden_size: int, heads: int) -> TransformerSpec:
    """Return an OPT: ReLU, and two more rows of positions than there are tokens."""
    return replace(
        _gpt(num_layers, hidden_size, heads, 50_272),
        activation_func="relu",
        max_position_embeddings=2050,
        hidden_dropout=0.1,
    )


def _nemotron(num_layers: int, hidden_size: int, heads: int) -> TransformerSpec:
    """Return a Nemotron-4: squared ReLU, no biases, half of each head turned."""
    return replace(
        _gpt(num_layers, hidden_size, heads, 256_000),
        num_query_groups=8,
        activation_func="squared_relu",
        position_embedding_type="rope",
        rotary_percent=0.5,
        add_bias_linear=False,
        tie_word_embeddings=False,
        sequence_length=4096,
        max_position_embeddings=4096,
    )


def _starcoder2(
    num_layers: int, hidden_size: int, heads: int, groups: int, *, tied: bool = True
) -> TransformerSpec:
    """Return a StarCoder2."""
    return replace(
        _gpt(num_layers, hidden_size, heads, 49_152),
        num_query_groups=groups,
        position_embedding_type="rope",
        tie_word_embeddings=tied,
        sequence_length=4096,
        max_position_embeddings=4096,
    )


_BLOOM_SOURCE = "Le Scao et al., BLOOM, 2022, table 3; config.json of bigscience/bloom"
_FALCON_SOURCE = (
    "Almazrouei et al., The Falcon Series of Open Language Models, 2023, table 16; "
    "config.json of tiiuae/falcon"
)
_PYTHIA_SOURCE = "Biderman et al., Pythia, 2023, table 1"
_MPT_SOURCE = "MosaicML, Introducing MPT, 2023: config.json of mosaicml/mpt"
_OPT_SOURCE = (
    "Zhang et al., OPT, 2022, table 1; dropout 0.1, and none behind the softmax, by "
    "transformers' configuration"
)
_STARCODER2_SOURCE = (
    "Lozhkov et al., StarCoder 2 and The Stack v2, 2024, table 6; sequences of its "
    "first phase, 4,096, which its window does not cut"
)

MODELS: Mapping[str, PublishedModel] = MappingProxyType(
    {
        "gpt-neox-20b": PublishedModel(
            _pythia(44, 6144, 64, 50_432),
            "Black et al., GPT-NeoX-20B, 2022, section 2; config.json of "
            "EleutherAI/gpt-neox-20b",
        ),
        "pythia-6.9b": PublishedModel(_pythia(32, 4096, 32, 50_432), _PYTHIA_SOURCE),
        "pythia-12b": PublishedModel(_pythia(36, 5120, 40, 50_688), _PYTHIA_SOURCE),
        "opt-6.7b": PublishedModel(_opt(32, 4096, 32), _OPT_SOURCE),
        "opt-66b": PublishedModel(_opt(64, 9216, 72), _OPT_SOURCE),
        "opt-175b": PublishedModel(_opt(96, 12288, 96), _OPT_SOURCE),
        "bloom-560m": PublishedModel(_bloom(24, 1024, 16), _BLOOM_SOURCE),
        "bloom-7b1": PublishedModel(_bloom(30, 4096, 32), _BLOOM_SOURCE),
        "bloom-176b": PublishedModel(_bloom(70, 14336, 112), _BLOOM_SOURCE),
        "falcon-7b": PublishedModel(_falcon(32, 4544, 71, 1), _FALCON_SOURCE),
        "falcon-40b": PublishedModel(_falcon(60, 8192, 128, 8), _FALCON_SOURCE),
        "falcon-180b": PublishedModel(_falcon(80, 14848, 232, 8), _FALCON_SOURCE),
        "mpt-7b": PublishedModel(_mpt(32, 4096, 32), _MPT_SOURCE),
        "mpt-30b": PublishedModel(_mpt(48, 7168, 64), _MPT_SOURCE),
        "starcoder2-3b": PublishedModel(
            _starcoder2(30, 3072, 24, 2), _STARCODER2_SOURCE
        ),
        "starcoder2-7b": PublishedModel(
            _starcoder2(32, 4608, 36, 4), _STARCODER2_SOURCE
        ),
        "starcoder2-15b": PublishedModel(
            _starcoder2(40, 6144, 48, 4, tied=False), _STARCODER2_SOURCE
        ),
        "nemotron4-15b": PublishedModel(
            _nemotron(32, 6144, 48), "Parmar et al., Nemotron-4 15B, 2024, table 1"
        ),
        "nemotron4-340b": PublishedModel(
            _nemotron(96, 18432, 96),
            "NVIDIA, Nemotron-4 340B Technical Report, 2024, table 1",
        ),
    }
)
"""Name -> architecture and source."""
