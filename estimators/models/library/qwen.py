"""Qwen 2.5 and Qwen 3, dense."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from estimators.models.library.llama import llama_spec
from estimators.models.library.published import PublishedModel
from estimators.models.spec import TransformerSpec

_LENGTH = 4096


def _qwen2(
    num_layers: int,
    hidden_size: int,
    ffn_hidden_size: int,
    heads: int,
    groups: int,
    vocab_size: int = 152064,
) -> TransformerSpec:
    """Return a Qwen 2.5; those with the smaller vocabulary have a tied head."""
    llama = llama_spec(
        num_layers, hidden_size, ffn_hidden_size, heads, groups, vocab_size, _LENGTH
    )
    tied = vocab_size == 151936
    return replace(llama, add_qkv_bias=True, tie_word_embeddings=tied)


def _qwen3(
    num_layers: int,
    hidden_size: int,
    ffn_hidden_size: int,
    heads: int,
    groups: int,
    *,
    tied: bool = False,
) -> TransformerSpec:
    """Return a Qwen 3: heads of 128 channels, queries and keys normalised."""
    llama = llama_spec(
        num_layers, hidden_size, ffn_hidden_size, heads, groups, 151936, _LENGTH
    )
    return replace(llama, kv_channels=128, qk_layernorm=True, tie_word_embeddings=tied)


_QWEN2_SOURCE = (
    "Qwen Team, Qwen2.5 Technical Report, 2024, table 1; config.json of Qwen/Qwen2.5; "
    "sequences of its first phase, 4,096"
)
_QWEN3_SOURCE = (
    "Qwen Team, Qwen3 Technical Report, 2025, table 1; config.json of Qwen/Qwen3; "
    "sequences of its first phases, 4,096"
)

MODELS: Mapping[str, PublishedModel] = MappingProxyType(
    {
        "qwen2.5-0.5b": PublishedModel(
            _qwen2(24, 896, 4864, 14, 2, 151936), _QWEN2_SOURCE
        ),
        "qwen2.5-1.5b": PublishedModel(
            _qwen2(28, 1536, 8960, 12, 2, 151936), _QWEN2_SOURCE
        ),
        "qwen2.5-3b": PublishedModel(
            _qwen2(36, 2048, 11008, 16, 2, 151936), _QWEN2_SOURCE
        ),
        "qwen2.5-7b": PublishedModel(_qwen2(28, 3584, 18944, 28, 4), _QWEN2_SOURCE),
        "qwen2.5-14b": PublishedModel(_qwen2(48, 5120, 13824, 40, 8), _QWEN2_SOURCE),
        "qwen2.5-32b": PublishedModel(_qwen2(64, 5120, 27648, 40, 8), _QWEN2_SOURCE),
        "qwen2.5-72b": PublishedModel(_qwen2(80, 8192, 29568, 64, 8), _QWEN2_SOURCE),
        "qwen3-0.6b": PublishedModel(
            _qwen3(28, 1024, 3072, 16, 8, tied=True), _QWEN3_SOURCE
        ),
        "qwen3-1.7b": PublishedModel(
            _qwen3(28, 2048, 6144, 16, 8, tied=True), _QWEN3_SOURCE
        ),
        "qwen3-4b": PublishedModel(
            _qwen3(36, 2560, 9728, 32, 8, tied=True), _QWEN3_SOURCE
        ),
        "qwen3-8b": PublishedModel(_qwen3(36, 4096, 12288, 32, 8), _QWEN3_SOURCE),
        "qwen3-14b": PublishedModel(_qwen3(40, 5120, 17408, 40, 8), _QWEN3_SOURCE),
        "qwen3-32b": PublishedModel(_qwen3(64, 5120, 25600, 64, 8), _QWEN3_SOURCE),
    }
)
"""Name -> architecture and source."""
